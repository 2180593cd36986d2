//! Peers that do not keep to the rules.

use super::TIMEOUT;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thalweg_arena::{Slot, SlotPool};
use thalweg_link::{Address, LinkError, SourceGreeting};
use thalweg_link_conformance::SourceEnd;
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, FragmentHeader, GOLDEN_GAMMA, HEADER_LEN, Hello, Losses,
    MESSAGE_LEN, Message, PayloadType, Refusal, RunNumber, SourceId, Status, crc32c, mix_bits, record_bytes,
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
        capabilities: Capabilities::empty(),
        description: 2,
    }
}

/// A bare TCP connection, over which anything at all can be sent.
#[derive(Debug)]
pub(crate) struct Stranger(TcpStream);

impl Stranger {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
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
    link: SourceEnd,
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
        let link = SourceEnd::connect_to_builder(&to, &greeting).unwrap();
        let id = hello.source;
        Self {
            address: address.to_owned(),
            id,
            link,
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
        self.link.send_message(message);
        // That the builder has had enough is heard when it is listened to.
        let _ = self.link.flush_messages();
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
        let mut slot = self.pool.take_slot().expect("a slot that was released is free");
        slot[..records.len()].copy_from_slice(records);
        let offer = self.announcement(event, slot.arena_offset() as u64, records.len() as u32);
        self.kept.push_back((offer.ticket, slot));
        self.ticket += 1;
        self.link.announce_offer(&offer);
        true
    }

    /// Changes what lies in the slots that are not released.
    pub(crate) fn rewrite(&mut self, mut change: impl FnMut(&mut [u8])) {
        self.kept.iter_mut().for_each(|(_, slot)| change(slot));
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
        let deadline = Instant::now() + TIMEOUT;
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
            self.link.flush_messages()?;
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the builder did not say what was waited for");
            if self.link.prepare_wait() {
                self.link.poller().wait_for_events(Some(left), |_| {})?;
            }
            let mut said = Vec::new();
            self.end = self.link.receive_messages(&mut said).err();
            for message in &said {
                match message {
                    Message::Start { run, .. } => self.run = *run,
                    Message::Release { below } => {
                        let done = self.kept.partition_point(|(ticket, _)| ticket < below);
                        self.kept.drain(..done).for_each(|(_, slot)| self.pool.return_slot(slot));
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
    bytes.resize(record_bytes(payload.len()), 0);
    bytes
}

/// A small generator of numbers that a seed decides.
#[derive(Debug, Clone)]
pub(crate) struct Lot(pub(crate) u64);

impl Lot {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.0)
    }

    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    pub(crate) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// One thing that a source must not do, or that a builder must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offence {
    /// A number that cannot be, in a field of a message: its kind, and where the field begins and how long it is.
    Field { kind: u8, at: usize, bytes: usize, value: u64 },
    /// 2³²−1 events dropped in one offer.
    DropsThemAll,
    /// Runs of drops, one behind the other.
    DropsInRuns,
    /// An event 2⁴⁰ ahead.
    FarAhead,
    /// `Paused` with 2⁶³, whether or not it was asked.
    PausedFarAhead,
    /// A status bit that only builders set.
    SaysMissing,
    /// One event in two tickets.
    Twice,
    /// One event twice in one slot.
    TwiceInOneSlot,
    /// A fragment in two pieces.
    InPieces,
    /// Bytes that nobody asked for.
    Unasked,
    /// An offer of fewer bytes than its records have.
    TooShort,
    /// An event behind later ones.
    Backwards,
    /// A ticket that leaves some out.
    Gap,
    /// A record whose bytes are damaged.
    Damaged,
    /// Bytes that are no message.
    Garbage,
}

/// What a hostile source does once it has done the worst it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Goes on as if nothing had been, beyond any end.
    GoesOn,
    /// Listens, and says nothing more: what it owes it keeps.
    Silent,
    /// Says a byte of a message now and then.
    Drips,
    /// Says a whole message now and then, and nothing in it.
    Chatters,
    /// Does not even listen.
    Deaf,
    /// Goes.
    Leaves,
    /// Goes, and comes back.
    ComesBack,
}

/// Numbers that no field should take anybody aback with.
const MONSTERS: [u64; 6] = [1 << 63, u64::MAX, 1 << 32, 1 << 40, (1 << 32) - 1, 1 << 31];
/// The fields of every message, from `docs/wire.md`: its kind, and where each begins and how long it is.
const FIELDS: [(u8, &[(usize, usize)]); 14] = [
    (1, &[(8, 8), (16, 4), (20, 4), (24, 4), (28, 4), (32, 4), (36, 4), (40, 4), (44, 4)]),
    (2, &[(8, 4), (12, 4), (16, 4), (20, 4), (24, 4), (28, 8)]),
    (3, &[(8, 4), (12, 4)]),
    (4, &[(8, 8), (16, 8), (24, 4)]),
    (5, &[(8, 8), (16, 8), (24, 8), (32, 4), (36, 4), (40, 4)]),
    (6, &[(8, 8), (16, 4), (20, 4)]),
    (7, &[(8, 8), (16, 4), (20, 4)]),
    (8, &[(8, 8)]),
    (9, &[(8, 8)]),
    (10, &[(8, 8)]),
    (11, &[(8, 8)]),
    (12, &[(8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8), (56, 4)]),
    (13, &[(8, 8)]),
    (14, &[(8, 8), (16, 8)]),
];

impl Offence {
    pub(crate) fn draw(lot: &mut Lot) -> Self {
        const OTHERS: [Offence; 15] = [
            Offence::DropsThemAll,
            Offence::DropsInRuns,
            Offence::FarAhead,
            Offence::PausedFarAhead,
            Offence::SaysMissing,
            Offence::Twice,
            Offence::TwiceInOneSlot,
            Offence::InPieces,
            Offence::Unasked,
            Offence::TooShort,
            Offence::Backwards,
            Offence::Gap,
            Offence::Damaged,
            Offence::Garbage,
            Offence::FarAhead,
        ];
        if lot.below(3) > 0 {
            return lot.one_of(&OTHERS);
        }
        let (kind, fields) = lot.one_of(&FIELDS);
        let (at, bytes) = lot.one_of(fields);
        Self::Field { kind, at, bytes, value: lot.one_of(&MONSTERS) }
    }
}

impl Manner {
    pub(crate) fn draw(lot: &mut Lot) -> Self {
        use Manner::*;
        lot.one_of(&[GoesOn, Silent, Drips, Chatters, Deaf, Leaves, ComesBack])
    }
}

/// What a hostile source does in one run.
#[derive(Debug, Clone)]
pub(crate) struct Mischief {
    /// Events that it offers and sends as it should before.
    pub(crate) honest: u64,
    /// Done in one write, together with what is owed.
    pub(crate) offences: Vec<Offence>,
    /// What is owed is written in front of the first of them, behind it, or not at all.
    pub(crate) arrivals: u64,
    pub(crate) manner: Manner,
}

impl Mischief {
    pub(crate) fn draw(lot: &mut Lot) -> Self {
        Self {
            honest: lot.below(40),
            offences: (0..1 + lot.below(3)).map(|_| Offence::draw(lot)).collect(),
            arrivals: lot.below(3),
            manner: Manner::draw(lot),
        }
    }
}

/// A source of the topology that is played over bare TCP and keeps to no rule. It sends what its [`Mischief`] says, and
/// hears everything without ever waiting for more than a moment.
#[derive(Debug)]
pub(crate) struct Villain {
    to: SocketAddr,
    hello: Hello,
    stream: TcpStream,
    inbox: Vec<u8>,
    run: RunNumber,
    started: bool,
    /// The builder has ended the conversation.
    over: bool,
    ticket: u64,
    event: u64,
    /// The bytes of every ticket that it offered.
    slots: BTreeMap<u64, Vec<u8>>,
    /// What it was asked for and did not send: ticket, offset, length.
    owed: VecDeque<(u64, u32, u32)>,
}

impl Villain {
    /// Connects as this source.
    pub(crate) fn connect(to: SocketAddr, source: &str) -> Self {
        let hello = hello(source);
        let mut villain = Self {
            to,
            hello,
            stream: TcpStream::connect(to).unwrap(),
            inbox: Vec::new(),
            run: RunNumber(0),
            started: false,
            over: false,
            ticket: 0,
            event: 0,
            slots: BTreeMap::new(),
            owed: VecDeque::new(),
        };
        villain.greet();
        villain
    }

    fn greet(&mut self) {
        // The moment that it listens before it does something else.
        self.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        self.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut bytes = Message::Hello(self.hello).encode().to_vec();
        bytes.extend_from_slice(b"{}");
        self.send(&bytes);
    }

    /// Does all of it, until the builder is gone or `run_over`.
    pub(crate) fn play(mut self, mischief: &Mischief, run_over: &AtomicBool) {
        let deadline = Instant::now() + TIMEOUT;
        let goes_on = |villain: &Self| !villain.over && !run_over.load(Ordering::Relaxed) && Instant::now() < deadline;
        while goes_on(&self) && !self.started {
            self.on_message();
        }
        for _ in 0..mischief.honest {
            let record = self.record(self.event, b"honest", Status::SIMULATED);
            let offer = self.offer(1, record);
            self.send(&offer);
            self.event += 1;
            while goes_on(&self) && !self.slots.is_empty() {
                self.on_message();
                let owed = self.arrivals();
                self.send(&owed);
            }
        }
        // Something to be owed when it comes to the worst.
        let record = self.record(self.event, b"owed", Status::SIMULATED);
        let offer = self.offer(1, record);
        self.send(&offer);
        self.event += 1;
        let asked = Instant::now() + Duration::from_secs(2);
        while goes_on(&self) && self.owed.is_empty() && Instant::now() < asked {
            self.on_message();
        }

        let mut batch = Vec::new();
        for (number, offence) in mischief.offences.iter().enumerate() {
            if number as u64 == mischief.arrivals {
                batch.extend(self.arrivals());
            }
            batch.extend(self.commit(*offence));
        }
        if mischief.arrivals == mischief.offences.len() as u64 {
            batch.extend(self.arrivals());
        }
        self.send(&batch);

        let mut said = Message::Losses(Losses::default()).encode().into_iter().cycle();
        while goes_on(&self) {
            if mischief.manner == Manner::Deaf {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            self.on_message();
            match mischief.manner {
                Manner::GoesOn => {
                    let mut more = self.arrivals();
                    let record = self.record(self.event, b"more", Status::SIMULATED);
                    more.extend(self.offer(1, record));
                    self.event += 1;
                    self.send(&more);
                }
                Manner::Silent | Manner::Deaf => {}
                Manner::Drips => self.send(&[said.next().unwrap_or(0)]),
                Manner::Chatters => self.send(&Message::Losses(Losses::default()).encode()),
                Manner::Leaves => return,
                Manner::ComesBack => {
                    let Ok(stream) = TcpStream::connect(self.to) else { return };
                    self.stream = stream;
                    self.inbox.clear();
                    self.owed.clear();
                    self.greet();
                }
            }
        }
    }

    fn commit(&mut self, offence: Offence) -> Vec<u8> {
        let event = self.event;
        let announcement = |ticket, first, count, bytes, disposition| {
            let offer = Announcement { ticket, first: EventId(first), arena_offset: 0, count, bytes, disposition };
            Message::Offer(offer).encode().to_vec()
        };
        match offence {
            Offence::Field { kind, at, bytes, value } => {
                let mut cell = announcement(self.ticket, event, 1, 128, Disposition::Held);
                if kind != 5 {
                    cell[8..60].fill(0);
                }
                cell[5] = kind;
                cell[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
                let crc = crc32c(&cell[..60]);
                cell[60..].copy_from_slice(&crc.to_le_bytes());
                cell
            }
            Offence::DropsThemAll => {
                self.ticket += 1;
                announcement(self.ticket - 1, event, u32::MAX, 0, Disposition::DroppedNewest)
            }
            Offence::DropsInRuns => {
                let run = |number: u64| {
                    let first = event + number * (1 << 20);
                    announcement(self.ticket + number, first, 1 << 20, 0, Disposition::DroppedNewest)
                };
                let runs = (0..200).flat_map(run).collect();
                self.ticket += 200;
                self.event += 200 << 20;
                runs
            }
            Offence::FarAhead => {
                self.event += 1 << 40;
                let record = self.record(self.event, b"far ahead", Status::SIMULATED);
                self.offer(1, record)
            }
            Offence::PausedFarAhead => Message::Paused { next: EventId(1 << 63), asked_by: 0 }.encode().to_vec(),
            Offence::SaysMissing => {
                let record = self.record(event, b"", Status::MISSING);
                self.event += 1;
                self.offer(1, record)
            }
            Offence::Twice => {
                let record = self.record(event, b"twice", Status::SIMULATED);
                let mut both = self.offer(1, record.clone());
                both.extend(self.offer(1, record));
                self.event += 1;
                both
            }
            Offence::TwiceInOneSlot => {
                let mut records = self.record(event, b"twice", Status::SIMULATED);
                records.extend_from_within(..);
                self.event += 2;
                self.offer_from(event, 2, records)
            }
            Offence::InPieces => {
                let pieces = [0, 100].map(|offset| {
                    let header = FragmentHeader { total_length: 200, offset, ..self.header(event, &[7; 100]) };
                    with_header(&header, &[7; 100])
                });
                self.event += 1;
                pieces.into_iter().flat_map(|piece| self.offer_from(event, 1, piece)).collect()
            }
            Offence::Unasked => {
                let mut bytes = Message::Data { ticket: self.ticket + 7, offset: 0, length: 64 }.encode().to_vec();
                bytes.extend_from_slice(&[0x5a; 64]);
                bytes
            }
            Offence::TooShort => announcement(self.ticket, event, 1, 63, Disposition::Held),
            Offence::Backwards => announcement(self.ticket, 0, 1, 128, Disposition::Held),
            Offence::Gap => announcement(self.ticket + 5, event, 1, 128, Disposition::Held),
            Offence::Damaged => {
                let mut record = self.record(event, b"damaged", Status::SIMULATED);
                record[40..70].fill(0xa5);
                self.event += 1;
                self.offer_from(event, 1, record)
            }
            Offence::Garbage => vec![0xa5; 100],
        }
    }

    fn header(&self, event: u64, payload: &[u8]) -> FragmentHeader {
        FragmentHeader {
            payload_type: PayloadType::RAW,
            status: Status::SIMULATED,
            run: self.run,
            event: EventId(event),
            source: self.hello.source,
            total_length: payload.len() as u32,
            piece_length: payload.len() as u32,
            payload_crc: crc32c(payload),
            ..FragmentHeader::default()
        }
    }

    fn record(&self, event: u64, payload: &[u8], status: Status) -> Vec<u8> {
        with_header(&FragmentHeader { status, ..self.header(event, payload) }, payload)
    }

    /// An offer of the event that it is at.
    fn offer(&mut self, count: u32, records: Vec<u8>) -> Vec<u8> {
        self.offer_from(self.event, count, records)
    }

    fn offer_from(&mut self, first: u64, count: u32, records: Vec<u8>) -> Vec<u8> {
        let offer = Announcement {
            ticket: self.ticket,
            first: EventId(first),
            arena_offset: 0,
            count,
            bytes: records.len() as u32,
            disposition: Disposition::Held,
        };
        self.slots.insert(self.ticket, records);
        self.ticket += 1;
        Message::Offer(offer).encode().to_vec()
    }

    /// All that it owes.
    fn arrivals(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (ticket, offset, length) in self.owed.drain(..) {
            let Some(records) = self.slots.get(&ticket) else { continue };
            let Some(part) = records.get(offset as usize..(offset + length) as usize) else { continue };
            bytes.extend_from_slice(&Message::Data { ticket, offset, length }.encode());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// Sends it, as far as the builder takes it within a moment.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Hears what comes within a moment.
    fn on_message(&mut self) {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.over = true,
            Ok(read) => self.inbox.extend_from_slice(&bytes[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.over = true,
        }
        while let Some(cell) = self.inbox.first_chunk() {
            let message = Message::decode(cell);
            self.inbox.drain(..MESSAGE_LEN);
            match message {
                Ok(Message::Start { run, first, .. }) if !self.started => {
                    (self.run, self.event, self.started) = (run, first.0, true);
                }
                Ok(Message::Fetch { ticket, offset, length }) => self.owed.push_back((ticket, offset, length)),
                Ok(Message::Release { below }) => self.slots = self.slots.split_off(&below),
                // What follows is text.
                Ok(Message::Refuse { .. } | Message::Bye) | Err(_) => {
                    self.over = true;
                    return;
                }
                Ok(_) => {}
            }
        }
    }
}
