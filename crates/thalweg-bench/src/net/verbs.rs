//! Messages over Thalweg's own links: each is a slot with one record that is offered, fetched and released, as a node does
//! it, without what nodes do beside (headers are not parsed, nothing is built).
//!
//! A conversation needs two links, one each way: each end is a source and a builder.

use super::control::{Job, Patience, Work, gone};
use super::exchange::Messages;
use super::{Exchange, Link, PATIENCE, Phase, Tally, Wait};
use crate::BenchError;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Span};
use thalweg_link::{
    Address, BuilderLink, Bytes, Eager, Interest, LinkError, LinkKind, Listener, Poller, Received, SourceGreeting,
    SourceLink, connect,
};
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, HEADER_LEN, Hello, Message, RecordBytes, RunNumber, SourceId,
    Welcome, record_len,
};

/// As builders have it by default.
const EAGER: Eager = Eager { credit: 128 << 10, limit: 16 << 10 };

/// Memory that slots under way may take: as in the shm instrument, they should stay in the cache.
const SLOTS: usize = 4 << 20;

/// The longest record: its length has 32 bits, and blocks are smaller.
const LONGEST: usize = 1 << 30;

const SOURCE: u64 = 0;
const BUILDER: u64 = 1;

/// Where an end listens, before the other has connected to it.
#[derive(Debug)]
pub(super) struct Door {
    listener: Listener,
}

impl Door {
    /// Opens it: at `here` for tcp, in `directory` under `name` for shm.
    pub(super) fn open(link: Link, here: std::net::IpAddr, directory: &Path, name: &str) -> Result<Self, BenchError> {
        let address = match link {
            Link::Shm => Address::new(LinkKind::SHM, &directory.join(name).display().to_string()),
            _ => Address::new(LinkKind::TCP, &std::net::SocketAddr::new(here, 0).to_string()),
        }
        .map_err(BenchError::Usage)?;
        Ok(Self { listener: Listener::open(&address, EAGER).map_err(failed)? })
    }

    /// Where the other end is to connect.
    pub(super) fn address(&self) -> String {
        self.listener.address().to_string()
    }

    /// Connects to the other end's door and waits for the other end at this one.
    pub(super) fn meet(self, theirs: &str, job: &Job) -> Result<Verbs, BenchError> {
        let address: Address = theirs.parse().map_err(|_| gone("the other end listens at no address"))?;
        let record = record_len(job.size);
        if record > LONGEST {
            return Err(gone("a record of more than 1 GiB cannot be sent"));
        }
        let slots = (SLOTS / record).clamp(2, 32);
        let mut arena = Arena::create("bench-slots", record * slots).map_err(unavailable)?;
        let mut slots: Vec<Span> = (0..slots).map(|_| arena.take_front(record)).collect();
        // Their payloads lie there from the beginning, as a device leaves them.
        let messages = Messages::new(job.size);
        for slot in &mut slots {
            slot[HEADER_LEN..HEADER_LEN + job.size].copy_from_slice(messages.get(Phase::Ordinary));
        }
        let hello = Hello {
            session: 1,
            source: SourceId::new(1, 0),
            builder: 0,
            builders: 1,
            slots: slots.len() as u32,
            slot_bytes: record as u32,
            max_payload: job.size as u32,
            capabilities: Capabilities::empty(),
            description: 2,
        };
        let greeting = SourceGreeting { hello, description: "{}".into(), arena: std::sync::Arc::clone(arena.arena()) };
        let mut source = connect(&address, job.congestion.as_deref(), &greeting).map_err(failed)?;
        let mut builder = self.accept(&mut source)?;
        let poller = Poller::new().map_err(failed)?;
        poller.add(source.fd(), SOURCE, source.interest()).map_err(failed)?;
        poller.add(builder.fd(), BUILDER, builder.interest()).map_err(failed)?;
        let interests = (source.interest(), builder.interest());
        builder.flush().map_err(failed)?;
        let mut places = Vec::new();
        if !builder.maps() {
            let mut span = Arena::create_local("bench-places", record * 2).map_err(unavailable)?;
            places.extend((0..2).map(|_| span.take_front(record)));
        }
        let mut verbs = Verbs {
            source,
            builder,
            poller,
            interests,
            wait: job.wait,
            stream: job.work == Work::Receive,
            check: job.check_data,
            size: job.size,
            record,
            messages,
            free: slots,
            offered: VecDeque::new(),
            next: 0,
            places,
            waiting: VecDeque::new(),
            arrived: VecDeque::new(),
            release: 0,
            heard: Vec::new(),
            said: Vec::new(),
            welcome: false,
            tally: Tally::default(),
        };
        verbs.until("the other end's welcome", |verbs| verbs.welcome)?;
        Ok(verbs)
    }

    fn accept(&self, source: &mut Box<dyn SourceLink>) -> Result<Box<dyn BuilderLink>, BenchError> {
        use std::os::fd::AsFd;
        let begun = Instant::now();
        let poller = Poller::new().map_err(failed)?;
        poller.add(self.listener.as_fd(), BUILDER, Interest::READ).map_err(failed)?;
        poller.add(source.fd(), SOURCE, source.interest()).map_err(failed)?;
        loop {
            source.flush().map_err(failed)?;
            poller.change(source.fd(), SOURCE, source.interest()).map_err(failed)?;
            if let Some((builder, _)) = self.listener.accept().map_err(failed)? {
                return Ok(builder);
            }
            if begun.elapsed() > PATIENCE {
                return Err(BenchError::Silent {
                    doing: "waiting for the other end to connect".into(),
                    patience: PATIENCE,
                });
            }
            if source.prepare_wait() {
                poller.wait(Some(PATIENCE), |_| {}).map_err(failed)?;
            }
        }
    }
}

/// One end.
#[derive(Debug)]
pub(super) struct Verbs {
    source: Box<dyn SourceLink>,
    builder: Box<dyn BuilderLink>,
    poller: Poller,
    interests: (Interest, Interest),
    wait: Wait,
    stream: bool,
    check: bool,
    size: usize,
    record: usize,
    messages: Messages,
    /// As a source: slots to fill, and those that are offered, oldest first.
    free: Vec<Span>,
    offered: VecDeque<Span>,
    next: u64,
    /// As a builder: places to fetch into, offers that wait for one, and records that are here.
    places: Vec<Span>,
    waiting: VecDeque<Announcement>,
    arrived: VecDeque<Bytes>,
    /// What will be released: everything below.
    release: u64,
    heard: Vec<Message>,
    said: Vec<Received>,
    welcome: bool,
    tally: Tally,
}

impl Verbs {
    /// Lets both links do what they can. One that has ended does not keep the other from being heard.
    fn turn(&mut self) -> Result<(), BenchError> {
        let source = self.source_turn();
        let builder = self.builder_turn();
        source.and(builder)
    }

    fn source_turn(&mut self) -> Result<(), BenchError> {
        // What did not fit the socket before goes first.
        let ready = self.source.ready(&mut self.heard).and_then(|()| self.source.flush());
        for message in self.heard.drain(..) {
            match message {
                Message::Release { below } => {
                    while self.next - (self.offered.len() as u64) < below {
                        let Some(slot) = self.offered.pop_front() else { break };
                        self.free.push(slot);
                    }
                }
                Message::Welcome(_) => self.welcome = true,
                _ => {}
            }
        }
        ready.map_err(failed)
    }

    fn builder_turn(&mut self) -> Result<(), BenchError> {
        loop {
            let ready = self.builder.flush().and_then(|()| self.builder.ready(&mut self.said));
            let mut said = std::mem::take(&mut self.said);
            for one in said.drain(..) {
                self.on_message(one)?;
            }
            self.said = said;
            self.fetch()?;
            if !ready.map_err(failed)? {
                return Ok(());
            }
        }
    }

    fn on_message(&mut self, said: Received) -> Result<(), BenchError> {
        match said {
            Received::Hello(..) => {
                self.builder.send(&Message::Welcome(Welcome {
                    run: RunNumber(1),
                    eager_credit: EAGER.credit,
                    eager_limit: EAGER.limit,
                    most_records: 1,
                    running: true,
                    released_below: 0,
                    capabilities: Capabilities::empty(),
                }));
                self.builder.flush().map_err(failed)?;
            }
            Received::Message(Message::Offer(offer)) if offer.bytes as usize == self.record => {
                self.waiting.push_back(offer)
            }
            Received::Message(Message::Offer(_)) => return Err(gone("a record of another length was offered")),
            Received::Message(_) => {}
            Received::Arrived { bytes, .. } => self.arrived.push_back(bytes),
        }
        Ok(())
    }

    fn fetch(&mut self) -> Result<(), BenchError> {
        let mut asked = false;
        while let Some(offer) = self.waiting.front().copied() {
            let place = if self.builder.maps() {
                None
            } else {
                let Some(place) = self.places.pop() else { break };
                Some(place)
            };
            self.waiting.pop_front();
            match self.builder.fetch(&offer, place).map_err(failed)? {
                Some(bytes) => self.arrived.push_back(bytes),
                None => asked = true,
            }
        }
        if asked { self.builder.flush().map_err(failed) } else { Ok(()) }
    }

    /// Goes on until something has come about.
    fn until(&mut self, doing: &str, done: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let mut patience = Patience::default();
        while !done(self) {
            let turn = match self.wait {
                Wait::Poll => patience.look(doing).and_then(|()| self.turn()),
                Wait::Sleep => self.sleep(doing),
            };
            if !done(self) {
                turn?;
            }
        }
        Ok(())
    }

    /// Waits until a link has something to do, and lets it.
    fn sleep(&mut self, doing: &str) -> Result<(), BenchError> {
        let interests = (self.source.interest(), self.builder.interest());
        if interests.0 != self.interests.0 {
            self.poller.change(self.source.fd(), SOURCE, interests.0).map_err(failed)?;
        }
        if interests.1 != self.interests.1 {
            self.poller.change(self.builder.fd(), BUILDER, interests.1).map_err(failed)?;
        }
        self.interests = interests;
        let (mut source, mut builder) = (!self.source.prepare_wait(), !self.builder.prepare_wait());
        let begun = Instant::now();
        let patience = if source || builder { Duration::ZERO } else { PATIENCE };
        let woken = |token| if token == SOURCE { source = true } else { builder = true };
        self.poller.wait(Some(patience), woken).map_err(failed)?;
        if !source && !builder && begun.elapsed() >= PATIENCE {
            return Err(BenchError::Silent { doing: doing.to_owned(), patience: PATIENCE });
        }
        let built = if builder { self.builder_turn() } else { Ok(()) };
        if source { built.and(self.source_turn()) } else { built }
    }
}

impl Exchange for Verbs {
    fn send(&mut self, phase: Phase) -> Result<(), BenchError> {
        if self.free.is_empty() {
            self.flush()?;
            self.until("waiting for a slot", |verbs| !verbs.free.is_empty())?;
        }
        let Some(mut slot) = self.free.pop() else { return Err(gone("no slot")) };
        slot[HEADER_LEN] = phase as u8;
        let unreleased = (self.offered.len() + 1) * self.record;
        let eager = self.record <= EAGER.limit as usize && unreleased <= EAGER.credit as usize;
        self.source.offer(&Announcement {
            ticket: self.next,
            first: EventId(self.next),
            arena_offset: slot.offset() as u64,
            count: 1,
            bytes: self.record as u32,
            disposition: if eager { Disposition::Eager } else { Disposition::Held },
        });
        self.offered.push_back(slot);
        self.next += 1;
        self.tally.sent += 1;
        if !self.stream || phase != Phase::Ordinary || self.next.is_multiple_of(8) {
            return self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.source.flush().map_err(failed)?;
        // What has been answered can be released: after the answer, which somebody waits for.
        if self.release > 0 {
            self.builder.release(self.release);
            self.release = 0;
            self.builder.flush().map_err(failed)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Phase, BenchError> {
        if self.arrived.is_empty() {
            self.until("waiting for a message over Thalweg's link", |verbs| !verbs.arrived.is_empty())?;
        }
        let Some(bytes) = self.arrived.pop_front() else { return Err(gone("no message")) };
        let mut first = [0];
        bytes.copy_to(HEADER_LEN, &mut first);
        let phase = Phase::of(first[0]);
        if self.check {
            let mut payload = vec![0; self.size];
            bytes.copy_to(HEADER_LEN, &mut payload);
            self.messages.check(&payload, 0, self.tally.received)?;
        }
        if let Bytes::Place(place) = bytes {
            self.places.push(place);
        }
        self.tally.received += 1;
        self.tally.received_bytes += self.size as u64;
        let below = self.tally.received;
        if !self.stream {
            self.release = below;
        } else if self.arrived.is_empty() || phase == Phase::End {
            self.builder.release(below);
            self.builder.flush().map_err(failed)?;
            self.fetch()?;
        }
        Ok(phase)
    }

    fn finish(&mut self) -> Result<(), BenchError> {
        self.builder.release(self.tally.received);
        // The other end may be gone already, with all it wanted.
        let _ = self.flush();
        let _ = self.builder.flush();
        let _ = self.until("waiting for the last release", |verbs| verbs.offered.is_empty());
        Ok(())
    }

    fn waiting(&mut self) -> Result<bool, BenchError> {
        if self.arrived.is_empty() {
            self.turn()?;
        }
        Ok(!self.arrived.is_empty())
    }

    fn tally(&self) -> Tally {
        // The links count records, with headers and padding; of these this is the payload's part.
        let records = u128::from(self.source.copied() + self.builder.copied());
        let copied = records * self.size as u128 / self.record as u128;
        Tally { copied: u64::try_from(copied).unwrap_or(u64::MAX), ..self.tally }
    }
}

fn failed(error: LinkError) -> BenchError {
    gone(&error.to_string())
}

fn unavailable(error: thalweg_arena::ArenaError) -> BenchError {
    BenchError::Unavailable { what: "shared memory".into(), why: error.to_string() }
}
