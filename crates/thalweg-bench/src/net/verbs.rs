//! Messages over Thalweg's own links: each is a slot with one record that is offered, fetched and released, as in a
//! node, without the other work of nodes (headers are not parsed, nothing is built).
//!
//! A conversation needs two links, one each way: each end is a source and a builder.

use super::control::{Job, Watchdog, Work, gone};
use super::exchange::Messages;
use super::{Exchange, Link, PEER_TIMEOUT, Phase, Tally, Wait};
use crate::BenchError;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Span};
use thalweg_link::{
    Address, BuilderEndpoint, BuilderLink, Bytes, Eager, Endpoints, LinkError, LinkKind, Received, SourceEndpoint,
    SourceGreeting, SourceLink,
};
use thalweg_wire::{
    Announcement, Capabilities, Disposition, EventId, HEADER_LEN, Hello, Message, RecordBytes, RunNumber, SourceId,
    Welcome, record_len,
};

/// Default eager limits of builders.
const EAGER: Eager = Eager { credit: 128 << 10, limit: 16 << 10 };

/// Memory that slots in flight may take, in bytes: as in the shm instrument, they should stay in the cache.
const SLOT_MEMORY_BYTES: usize = 4 << 20;

/// Longest record, in bytes: its length has 32 bits, and blocks are smaller.
const MAX_RECORD_BYTES: usize = 1 << 30;

/// Number of the other end, as a source and as a builder.
const PEER_INDEX: usize = 0;
/// Number of turns while polling for which one reading of the clock is used: nothing here needs more precision.
const TURNS_PER_CLOCK_READ: u32 = 64;

/// Listening end of a link, before the other end has connected to it.
#[derive(Debug)]
pub(super) struct ListeningEnd {
    builders: Endpoints<dyn BuilderEndpoint>,
    address: Address,
}

impl ListeningEnd {
    /// Starts to listen: at `here` for tcp, in `directory` under `name` for shm.
    pub(super) fn open(link: Link, here: std::net::IpAddr, directory: &Path, name: &str) -> Result<Self, BenchError> {
        let address = match link {
            Link::Shm => Address::new(LinkKind::SHM, &directory.join(name).display().to_string()),
            _ => Address::new(LinkKind::TCP, &std::net::SocketAddr::new(here, 0).to_string()),
        }
        .map_err(BenchError::Usage)?;
        let mut builders = Endpoints::<dyn BuilderEndpoint>::new().map_err(failed)?;
        let address = builders.add(&address, EAGER).map_err(failed)?;
        Ok(Self { builders, address })
    }

    /// Returns the address that the other end is to connect to.
    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Connects to the address of the other end and waits for the other end to connect to this one.
    pub(super) fn meet(mut self, theirs: &str, job: &Job) -> Result<Verbs, BenchError> {
        let address: Address = theirs.parse().map_err(|_| gone("the other end announces no valid address"))?;
        let record = record_len(job.size);
        if record > MAX_RECORD_BYTES {
            return Err(gone("a record of more than 1 GiB cannot be sent"));
        }
        let messages = Messages::new(job.size);
        let (slots, greeting) = slots(record, messages.get(Phase::Ordinary))?;
        let mut sources = Endpoints::beside(&self.builders).towards(std::slice::from_ref(&address)).map_err(failed)?;
        sources.register(&greeting.arena).map_err(failed)?;
        sources.connect(PEER_INDEX, &address, job.congestion.as_deref(), &greeting).map_err(failed)?;
        let maps = address.kind().maps;
        let mut places = Vec::new();
        if !maps {
            let mut span = Arena::create_local("bench-places", record * 2).map_err(unavailable)?;
            self.builders.register(span.arena()).map_err(failed)?;
            places.extend((0..2).map(|_| span.take_front(record)));
        }
        let mut verbs = Verbs {
            sources,
            builders: self.builders,
            maps,
            now: Duration::ZERO,
            begun: Instant::now(),
            turns: 0,
            tokens: Vec::new(),
            ready: Vec::new(),
            broken: Vec::new(),
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
            source_messages: Vec::new(),
            builder_messages: Vec::new(),
            welcome: false,
            tally: Tally::default(),
        };
        while verbs.builders.accept(0, PEER_INDEX).map_err(failed)?.is_none() {
            verbs.sleep("waiting for the other end to connect")?;
        }
        verbs.until("the other end's welcome", |verbs| verbs.welcome)?;
        Ok(verbs)
    }
}

/// Makes slots for records, in which the payload lies from the beginning, as a device leaves it; and the greeting of a
/// source that has these slots.
fn slots(record: usize, payload: &[u8]) -> Result<(Vec<Span>, SourceGreeting), BenchError> {
    let count = (SLOT_MEMORY_BYTES / record).clamp(2, 32);
    let mut rest = Arena::create("bench-slots", record * count).map_err(unavailable)?;
    let arena = std::sync::Arc::clone(rest.arena());
    let mut slots: Vec<Span> = (0..count).map(|_| rest.take_front(record)).collect();
    for slot in &mut slots {
        slot[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
    }
    let hello = Hello {
        session: 1,
        source: SourceId::new(1, 0),
        builder: 0,
        builders: 1,
        slots: count as u32,
        slot_bytes: record as u32,
        max_payload: payload.len() as u32,
        capabilities: Capabilities::empty(),
        description: 2,
    };
    Ok((slots, SourceGreeting { hello, description: "{}".into(), arena }))
}

/// One end: a source and a builder.
#[derive(Debug)]
pub(super) struct Verbs {
    sources: Endpoints<dyn SourceEndpoint>,
    builders: Endpoints<dyn BuilderEndpoint>,
    /// Whether records are read in place.
    maps: bool,
    now: Duration,
    begun: Instant,
    turns: u32,
    tokens: Vec<u64>,
    ready: Vec<usize>,
    broken: Vec<(usize, LinkError)>,
    wait: Wait,
    stream: bool,
    check: bool,
    size: usize,
    record: usize,
    messages: Messages,
    /// As a source: slots to fill, and offered ones, oldest first.
    free: Vec<Span>,
    offered: VecDeque<Span>,
    next: u64,
    /// As a builder: places to fetch into, offers that wait for one, and records that have arrived.
    places: Vec<Span>,
    waiting: VecDeque<Announcement>,
    arrived: VecDeque<Bytes>,
    /// Ticket below which everything is to be released.
    release: u64,
    source_messages: Vec<Message>,
    builder_messages: Vec<Received>,
    welcome: bool,
    tally: Tally,
}

impl Verbs {
    /// Drives both links, or only those that were `woken`. If one has ended, the other's messages are still received.
    fn turn(&mut self, woken: bool) -> Result<(), BenchError> {
        self.turns += 1;
        if woken || self.turns.is_multiple_of(TURNS_PER_CLOCK_READ) {
            self.now = self.begun.elapsed();
        }
        let source = self.source_turn(woken);
        let builder = self.builder_turn(woken);
        self.tokens.clear();
        source.and(builder)
    }

    fn source_turn(&mut self, woken: bool) -> Result<(), BenchError> {
        self.ready.clear();
        self.sources.poll(self.now, &self.tokens, &mut self.ready);
        if woken && self.ready.is_empty() {
            return self.flush_source();
        }
        let received = self.sources.receive(PEER_INDEX, &mut self.source_messages);
        for message in self.source_messages.drain(..) {
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
        received.map_err(failed)?;
        self.flush_source()
    }

    fn builder_turn(&mut self, woken: bool) -> Result<(), BenchError> {
        self.ready.clear();
        self.builders.poll(self.now, &self.tokens, &mut self.ready);
        if woken && self.ready.is_empty() {
            return Ok(());
        }
        loop {
            let received = self.builders.receive(PEER_INDEX, &mut self.builder_messages);
            let mut messages = std::mem::take(&mut self.builder_messages);
            for message in messages.drain(..) {
                self.on_message(message)?;
            }
            self.builder_messages = messages;
            self.fetch()?;
            self.flush_builder()?;
            if !received.map_err(failed)? {
                return Ok(());
            }
        }
    }

    fn source(&mut self) -> Result<&mut (dyn SourceLink + 'static), BenchError> {
        self.sources.link_mut(PEER_INDEX).ok_or_else(|| gone("the other end is gone"))
    }

    fn builder(&mut self) -> Result<&mut (dyn BuilderLink + 'static), BenchError> {
        self.builders.link_mut(PEER_INDEX).ok_or_else(|| gone("the other end is gone"))
    }

    fn flush_source(&mut self) -> Result<(), BenchError> {
        self.sources.flush(self.now, &mut self.broken);
        self.broken.pop().map_or(Ok(()), |(_, error)| Err(failed(error)))
    }

    fn flush_builder(&mut self) -> Result<(), BenchError> {
        self.builders.flush(self.now, &mut self.broken);
        self.broken.pop().map_or(Ok(()), |(_, error)| Err(failed(error)))
    }

    fn on_message(&mut self, message: Received) -> Result<(), BenchError> {
        match message {
            Received::Hello(..) => {
                self.builder()?.send(&Message::Welcome(Welcome {
                    run: RunNumber(1),
                    eager_credit: EAGER.credit,
                    eager_limit: EAGER.limit,
                    most_records: 1,
                    running: true,
                    released_below: 0,
                    capabilities: Capabilities::empty(),
                }));
                self.flush_builder()?;
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
        let mut requested = false;
        while let Some(offer) = self.waiting.front().copied() {
            let place = if self.maps {
                None
            } else {
                let Some(place) = self.places.pop() else { break };
                Some(place)
            };
            self.waiting.pop_front();
            match self.builder()?.fetch(&offer, place).map_err(failed)? {
                Some(bytes) => self.arrived.push_back(bytes),
                None => requested = true,
            }
        }
        if requested { self.flush_builder() } else { Ok(()) }
    }

    /// Drives the links until `done` holds.
    fn until(&mut self, doing: &str, done: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::default();
        while !done(self) {
            let turn = match self.wait {
                Wait::Poll => watchdog.look(doing).and_then(|()| self.turn(false)),
                Wait::Sleep => self.sleep(doing),
            };
            if !done(self) {
                turn?;
            }
        }
        Ok(())
    }

    /// Waits until a link has work, and drives it.
    fn sleep(&mut self, doing: &str) -> Result<(), BenchError> {
        let waits = self.sources.prepare_wait() & self.builders.prepare_wait();
        let timeout = if waits { PEER_TIMEOUT } else { Duration::ZERO };
        let begun = Instant::now();
        self.tokens.clear();
        let Self { builders, tokens, .. } = self;
        builders.poller().wait(Some(timeout), |token| tokens.push(token)).map_err(failed)?;
        if waits && self.tokens.is_empty() && begun.elapsed() >= PEER_TIMEOUT {
            return Err(BenchError::Silent { doing: doing.to_owned(), timeout: PEER_TIMEOUT });
        }
        self.turn(true)
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
        let offer = Announcement {
            ticket: self.next,
            first: EventId(self.next),
            arena_offset: slot.offset() as u64,
            count: 1,
            bytes: self.record as u32,
            disposition: if eager { Disposition::Eager } else { Disposition::Held },
        };
        self.source()?.offer(&offer);
        self.offered.push_back(slot);
        self.next += 1;
        self.tally.sent += 1;
        if !self.stream || phase != Phase::Ordinary || self.next.is_multiple_of(8) {
            return self.flush();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.flush_source()?;
        // Answered messages can be released: after the answer, which the other end waits for.
        if self.release > 0 {
            let below = std::mem::take(&mut self.release);
            self.builder()?.release(below);
            self.flush_builder()?;
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
            self.builder()?.release(below);
            self.flush_builder()?;
            self.fetch()?;
        }
        Ok(phase)
    }

    fn finish(&mut self) -> Result<(), BenchError> {
        let below = self.tally.received;
        // The other end may be gone already, with all that it needed.
        let _ = self.builder().map(|builder| builder.release(below));
        let _ = self.flush();
        let _ = self.flush_builder();
        let _ = self.until("waiting for the last release", |verbs| verbs.offered.is_empty());
        Ok(())
    }

    fn waiting(&mut self) -> Result<bool, BenchError> {
        if self.arrived.is_empty() {
            self.turn(false)?;
        }
        Ok(!self.arrived.is_empty())
    }

    fn tally(&self) -> Tally {
        // The links count records, with headers and padding; this is the payload's part of them.
        let sent = self.sources.link(PEER_INDEX).map_or(0, |link| link.copied());
        let records = u128::from(sent + self.builders.link(PEER_INDEX).map_or(0, |link| link.copied()));
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
