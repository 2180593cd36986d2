//! Peers that do not keep to the rules.

use super::PATIENCE;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;
use thalweg_arena::{Slot, SlotPool};
use thalweg_link::{Address, LinkError, Poller, SourceGreeting, SourceLink, connect};
use thalweg_wire::{
    Announcement, Disposition, EventId, FragmentHeader, HEADER_LEN, Hello, MESSAGE_LEN, Message, PayloadType, Refusal,
    RunNumber, SourceId, Status, crc32c, record_len,
};

/// Bytes in one of its slots.
pub(crate) const SLOT: u32 = 64 << 10;
/// How many slots it has.
pub(crate) const SLOTS: u32 = 4;

/// What an honest source of a system with one builder says first.
pub(crate) fn hello(source: &str) -> Hello {
    Hello {
        session: 0x5e55_1011,
        source: source.parse().unwrap(),
        builder: 0,
        builders: 1,
        slots: SLOTS,
        slot_bytes: SLOT,
        max_payload: SLOT - HEADER_LEN as u32,
        withdraws: false,
        description: 2,
    }
}

/// A bare TCP connection, over which anything at all can be sent.
#[derive(Debug)]
pub(crate) struct Stranger(TcpStream);

impl Stranger {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends it, as far as the builder still listens.
    pub(crate) fn send(mut self, bytes: &[u8]) -> Self {
        match self.0.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            result => result.unwrap(),
        }
        self
    }

    pub(crate) fn say(self, message: &Message) -> Self {
        self.send(&message.encode())
    }

    pub(crate) fn greet(self, hello: Hello) -> Self {
        self.say(&Message::Hello(hello)).send(b"{}")
    }

    /// Listens until the builder ends the conversation, and returns its words.
    pub(crate) fn dismissed(mut self) -> (Refusal, String) {
        loop {
            let mut cell = [0; MESSAGE_LEN];
            self.0.read_exact(&mut cell).expect("the builder says why it ends a conversation");
            if let Message::Refuse { reason, text } = Message::decode(&cell).unwrap() {
                let mut words = vec![0; text as usize];
                self.0.read_exact(&mut words).unwrap();
                return (reason, String::from_utf8(words).unwrap());
            }
        }
    }
}

/// One of the sources of the topology, played by the test: it keeps to the rules as long as it is told to.
#[derive(Debug)]
pub(crate) struct Impostor {
    pub(crate) address: String,
    id: SourceId,
    link: Box<dyn SourceLink>,
    poller: Poller,
    pool: SlotPool,
    pub(crate) run: RunNumber,
    ticket: u64,
    /// Tickets that are not released, with their slots.
    kept: VecDeque<(u64, Slot)>,
    /// What the builder said and nobody listened to yet, and how the link ended behind that.
    said: VecDeque<Message>,
    end: Option<LinkError>,
    words: Option<String>,
}

impl Impostor {
    /// Connects as this source, and is welcomed.
    pub(crate) fn join(address: &str, source: &str) -> Self {
        let mut joined = Self::connect(address, source);
        joined.listen(|message| matches!(message, Message::Welcome(_))).expect("it is welcomed");
        joined
    }

    /// Connects as this source.
    pub(crate) fn connect(address: &str, source: &str) -> Self {
        let to: Address = address.parse().unwrap();
        let pool = SlotPool::new("impostor", SLOTS, SLOT as usize).unwrap();
        let hello = hello(source);
        let greeting = SourceGreeting { hello, description: "{}".into(), arena: Arc::clone(pool.arena()) };
        let link = connect(&to, None, &greeting).unwrap();
        let poller = Poller::new().unwrap();
        poller.add(link.fd(), 0, link.interest()).unwrap();
        let id = hello.source;
        Self {
            address: address.to_owned(),
            id,
            link,
            poller,
            pool,
            run: RunNumber(0),
            ticket: 0,
            kept: VecDeque::new(),
            said: VecDeque::new(),
            end: None,
            words: None,
        }
    }

    /// Waits for the beginning of the run.
    pub(crate) fn start(mut self) -> Self {
        self.listen(|message| matches!(message, Message::Start { .. })).expect("the run begins");
        self
    }

    pub(crate) fn say(&mut self, message: &Message) {
        self.link.say(message);
        // That the builder has had enough is heard when it is listened to.
        let _ = self.link.flush();
    }

    /// A record of this source: a header that is right, and a payload.
    pub(crate) fn record(&self, event: u64, payload: &[u8]) -> Vec<u8> {
        self.piece(event, payload.len() as u32, 0, payload)
    }

    /// A record that is a piece of a fragment.
    pub(crate) fn piece(&self, event: u64, total: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
        let header = FragmentHeader {
            payload_type: PayloadType::RAW,
            status: Status::SIMULATED,
            run: self.run,
            event: EventId(event),
            source: self.id,
            total_length: total,
            offset,
            piece_length: payload.len() as u32,
            payload_crc: crc32c(payload),
            ..FragmentHeader::default()
        };
        with_header(&header, payload)
    }

    /// Offers these bytes as the records of one event. True where they were fetched and released; false where the
    /// builder had enough first.
    pub(crate) fn offer(&mut self, event: u64, records: &[u8]) -> bool {
        self.post(event, records) && self.settle()
    }

    /// As [`offer`](Self::offer), but waits only where no slot is free.
    pub(crate) fn post(&mut self, event: u64, records: &[u8]) -> bool {
        while self.kept.len() == SLOTS as usize {
            if self.listen(|message| matches!(message, Message::Release { .. })).is_err() {
                return false;
            }
        }
        let mut slot = self.pool.take().expect("a slot that was released is free");
        slot[..records.len()].copy_from_slice(records);
        let offer = self.announcement(event, slot.offset() as u64, records.len() as u32);
        self.kept.push_back((offer.ticket, slot));
        self.ticket += 1;
        self.link.offer(&offer);
        true
    }

    /// Waits until everything that was offered is released.
    pub(crate) fn settle(&mut self) -> bool {
        let all = self.ticket;
        self.kept.is_empty()
            || self.listen(|message| matches!(message, Message::Release { below } if *below >= all)).is_ok()
    }

    /// What an honest source would announce next.
    pub(crate) fn announcement(&self, event: u64, arena_offset: u64, bytes: u32) -> Announcement {
        Announcement {
            ticket: self.ticket,
            first: EventId(event),
            arena_offset,
            count: 1,
            bytes,
            disposition: Disposition::Held,
        }
    }

    /// Listens until the builder says what is waited for. An error is how the link ended instead.
    pub(crate) fn listen(&mut self, mut is_it: impl FnMut(&Message) -> bool) -> Result<(), LinkError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.said.pop_front() {
                if is_it(&message) {
                    return Ok(());
                }
            }
            if let Some(error) = self.end.take() {
                if let LinkError::Refused { text, .. } = &error {
                    self.words = Some(text.clone());
                }
                return Err(error);
            }
            self.link.flush()?;
            self.poller.change(self.link.fd(), 0, self.link.interest())?;
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the builder did not say what was waited for");
            self.poller.wait(Some(left), |_| {})?;
            let mut said = Vec::new();
            self.end = self.link.ready(&mut said).err();
            for message in &said {
                match message {
                    Message::Start { run, .. } => self.run = *run,
                    Message::Release { below } => {
                        let done = self.kept.partition_point(|(ticket, _)| ticket < below);
                        self.kept.drain(..done).for_each(|(_, slot)| self.pool.give_back(slot));
                    }
                    _ => {}
                }
            }
            self.said.extend(said);
        }
    }

    /// Listens until the builder ends the conversation, and returns its words.
    pub(crate) fn expelled(mut self) -> String {
        loop {
            if let Some(words) = self.words {
                return words;
            }
            if let Err(error) = self.listen(|_| false)
                && !matches!(error, LinkError::Refused { .. })
            {
                panic!("expected to be expelled with a reason, not {error:?}");
            }
        }
    }
}

/// A header in front of a payload, as it lies in a slot.
pub(crate) fn with_header(header: &FragmentHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(record_len(payload.len()), 0);
    bytes
}
