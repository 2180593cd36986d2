//! Messages over Thalweg's own links: each is a slot with one record that is offered, fetched and released, as in a
//! node, without the other work of nodes (headers are not parsed, nothing is built).
//!
//! A conversation needs two links, one each way: each end is a source and a builder.

use super::control::{Job, Watchdog, Work, connection_error};
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
    Welcome, record_bytes,
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
    /// Starts to listen: in `directory` under `name` for shm, at `here` for all others.
    pub(super) fn open_listener(
        link: Link,
        here: std::net::IpAddr,
        directory: &Path,
        name: &str,
    ) -> Result<Self, BenchError> {
        let kind = match link {
            Link::Shm => LinkKind::SHM,
            Link::Rdma => thalweg_rdma_link::register_links().iwarp,
            Link::RdmaEfe => thalweg_rdma_link::register_links().efe,
            _ => LinkKind::TCP,
        };
        let address = match link {
            Link::Shm => Address::new(kind, &directory.join(name).display().to_string()),
            _ => Address::new(kind, &std::net::SocketAddr::new(here, 0).to_string()),
        }
        .map_err(BenchError::Usage)?;
        let mut builders = Endpoints::<dyn BuilderEndpoint>::new().map_err(link_error)?;
        let address = builders.add_listener(&address, EAGER).map_err(link_error)?;
        Ok(Self { builders, address })
    }

    /// Returns the address that the other end is to connect to.
    pub(super) fn listen_address(&self) -> String {
        self.address.to_string()
    }

    /// Connects to the address of the other end and waits for the other end to connect to this one.
    pub(super) fn connect_and_accept(mut self, theirs: &str, job: &Job) -> Result<Verbs, BenchError> {
        let address: Address =
            theirs.parse().map_err(|_| connection_error("the other end announces no valid address"))?;
        let record = record_bytes(job.size);
        if record > MAX_RECORD_BYTES {
            return Err(connection_error("a record of more than 1 GiB cannot be sent"));
        }
        let messages = Messages::new(job.size);
        let (slots, greeting) = create_slots(record, messages.message_bytes(Phase::Ordinary))?;
        let mut sources = Endpoints::sharing_poller(&self.builders)
            .with_builders(std::slice::from_ref(&address))
            .map_err(link_error)?;
        sources.register_memory(&greeting.arena).map_err(link_error)?;
        sources.connect_to_builder(PEER_INDEX, &address, job.congestion.as_deref(), &greeting).map_err(link_error)?;
        let maps = address.link_kind().maps;
        let mut places = Vec::new();
        if !maps {
            let mut span = Arena::create_local("bench-places", record * 2).map_err(arena_error)?;
            self.builders.register_memory(span.arena()).map_err(link_error)?;
            places.extend((0..2).map(|_| span.take_front(record)));
        }
        let mut verbs = Verbs {
            sources,
            builders: self.builders,
            maps,
            now: Duration::ZERO,
            begun: Instant::now(),
            last_activity: Duration::ZERO,
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
        while verbs.builders.accept_peer(0, PEER_INDEX).map_err(link_error)?.is_none() {
            verbs.wait_and_drive("waiting for the other end to connect")?;
        }
        verbs.drive_until("the other end's welcome", |verbs| verbs.welcome)?;
        Ok(verbs)
    }
}

/// Makes slots for records, in which the payload lies from the beginning, as a device leaves it; and the greeting of a
/// source that has these slots.
fn create_slots(record: usize, payload: &[u8]) -> Result<(Vec<Span>, SourceGreeting), BenchError> {
    let count = (SLOT_MEMORY_BYTES / record).clamp(2, 32);
    let mut rest = Arena::create("bench-slots", record * count).map_err(arena_error)?;
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
    /// Last time that a link was woken, or had work, before a wait.
    last_activity: Duration,
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
    fn drive_links(&mut self, woken: bool) -> Result<(), BenchError> {
        self.turns += 1;
        if woken || self.turns.is_multiple_of(TURNS_PER_CLOCK_READ) {
            self.now = self.begun.elapsed();
        }
        let source = self.drive_source(woken);
        let builder = self.drive_builder(woken);
        self.tokens.clear();
        source.and(builder)
    }

    fn drive_source(&mut self, woken: bool) -> Result<(), BenchError> {
        self.ready.clear();
        self.sources.poll_peers(self.now, &self.tokens, &mut self.ready);
        if woken && self.ready.is_empty() {
            return self.flush_source();
        }
        let received = self.sources.receive_messages(PEER_INDEX, &mut self.source_messages);
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
        received.map_err(link_error)?;
        self.flush_source()
    }

    fn drive_builder(&mut self, woken: bool) -> Result<(), BenchError> {
        self.ready.clear();
        self.builders.poll_peers(self.now, &self.tokens, &mut self.ready);
        if woken && self.ready.is_empty() {
            return Ok(());
        }
        loop {
            let received = self.builders.receive_messages(PEER_INDEX, &mut self.builder_messages);
            let mut messages = std::mem::take(&mut self.builder_messages);
            for message in messages.drain(..) {
                self.handle_message(message)?;
            }
            self.builder_messages = messages;
            self.fetch_offered()?;
            self.flush_builder()?;
            if !received.map_err(link_error)? {
                return Ok(());
            }
        }
    }

    fn source_link(&mut self) -> Result<&mut (dyn SourceLink + 'static), BenchError> {
        self.sources.source_link_mut(PEER_INDEX).ok_or_else(|| connection_error("the other end is gone"))
    }

    fn builder_link(&mut self) -> Result<&mut (dyn BuilderLink + 'static), BenchError> {
        self.builders.builder_link_mut(PEER_INDEX).ok_or_else(|| connection_error("the other end is gone"))
    }

    fn flush_source(&mut self) -> Result<(), BenchError> {
        self.sources.flush_messages(self.now, &mut self.broken);
        self.broken.pop().map_or(Ok(()), |(_, error)| Err(link_error(error)))
    }

    fn flush_builder(&mut self) -> Result<(), BenchError> {
        self.builders.flush_messages(self.now, &mut self.broken);
        self.broken.pop().map_or(Ok(()), |(_, error)| Err(link_error(error)))
    }

    fn handle_message(&mut self, message: Received) -> Result<(), BenchError> {
        match message {
            Received::Hello(..) => {
                self.builder_link()?.send_message(&Message::Welcome(Welcome {
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
            Received::Message(Message::Offer(_)) => {
                return Err(connection_error("a record of another length was offered"));
            }
            Received::Message(_) => {}
            Received::Arrived { bytes, .. } => self.arrived.push_back(bytes),
        }
        Ok(())
    }

    fn fetch_offered(&mut self) -> Result<(), BenchError> {
        let mut requested = false;
        while let Some(offer) = self.waiting.front().copied() {
            let place = if self.maps {
                None
            } else {
                let Some(place) = self.places.pop() else { break };
                Some(place)
            };
            self.waiting.pop_front();
            match self.builder_link()?.fetch_offer(&offer, place).map_err(link_error)? {
                Some(bytes) => self.arrived.push_back(bytes),
                None => requested = true,
            }
        }
        if requested { self.flush_builder() } else { Ok(()) }
    }

    /// Drives the links until `done` holds.
    fn drive_until(&mut self, doing: &str, done: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let mut watchdog = Watchdog::default();
        self.last_activity = self.begun.elapsed();
        while !done(self) {
            let turn = match self.wait {
                Wait::Poll => watchdog.count_empty_poll(doing).and_then(|()| self.drive_links(false)),
                Wait::Sleep => self.wait_and_drive(doing),
            };
            if !done(self) {
                turn?;
            }
        }
        Ok(())
    }

    /// Waits until a link has work, and drives it.
    fn wait_and_drive(&mut self, doing: &str) -> Result<(), BenchError> {
        let waits = self.sources.prepare_wait() & self.builders.prepare_wait();
        let now = self.begun.elapsed();
        self.tokens.clear();
        let due = self.sources.next_timeout().into_iter().chain(self.builders.next_timeout()).min();
        let timeout = due.map_or(PEER_TIMEOUT, |due| due.saturating_sub(now).min(PEER_TIMEOUT));
        let timeout = if waits { timeout } else { Duration::ZERO };
        let Self { builders, tokens, .. } = self;
        builders.poller().wait_for_events(Some(timeout), |token| tokens.push(token)).map_err(link_error)?;
        if !waits || !self.tokens.is_empty() {
            self.last_activity = now;
        } else if self.begun.elapsed() >= self.last_activity + PEER_TIMEOUT {
            return Err(BenchError::Silent { doing: doing.to_owned(), timeout: PEER_TIMEOUT });
        }
        self.drive_links(true)
    }
}

impl Exchange for Verbs {
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        if self.free.is_empty() {
            self.flush_pending()?;
            self.drive_until("waiting for a slot", |verbs| !verbs.free.is_empty())?;
        }
        let Some(mut slot) = self.free.pop() else { return Err(connection_error("no slot")) };
        slot[HEADER_LEN] = phase as u8;
        let unreleased = (self.offered.len() + 1) * self.record;
        let eager = self.record <= EAGER.limit as usize && unreleased <= EAGER.credit as usize;
        let offer = Announcement {
            ticket: self.next,
            first: EventId(self.next),
            arena_offset: slot.arena_offset() as u64,
            count: 1,
            bytes: self.record as u32,
            disposition: if eager { Disposition::Eager } else { Disposition::Held },
        };
        self.source_link()?.announce_offer(&offer);
        self.offered.push_back(slot);
        self.next += 1;
        self.tally.sent += 1;
        if !self.stream || phase != Phase::Ordinary || self.next.is_multiple_of(8) {
            return self.flush_pending();
        }
        Ok(())
    }

    fn flush_pending(&mut self) -> Result<(), BenchError> {
        self.flush_source()?;
        // Answered messages can be released: after the answer, which the other end waits for.
        if self.release > 0 {
            let below = std::mem::take(&mut self.release);
            self.builder_link()?.release_tickets(below);
            self.flush_builder()?;
        }
        Ok(())
    }

    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        if self.arrived.is_empty() {
            self.drive_until("waiting for a message over Thalweg's link", |verbs| !verbs.arrived.is_empty())?;
        }
        let Some(bytes) = self.arrived.pop_front() else { return Err(connection_error("no message")) };
        let mut first = [0];
        bytes.copy_bytes_to(HEADER_LEN, &mut first);
        let phase = Phase::from_byte(first[0]);
        if self.check {
            let mut payload = vec![0; self.size];
            bytes.copy_bytes_to(HEADER_LEN, &mut payload);
            self.messages.check_received(&payload, 0, self.tally.received)?;
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
            self.builder_link()?.release_tickets(below);
            self.flush_builder()?;
            self.fetch_offered()?;
        }
        Ok(phase)
    }

    fn wait_for_delivery(&mut self) -> Result<(), BenchError> {
        let below = self.tally.received;
        // The other end may be gone already, with all that it needed.
        let _ = self.builder_link().map(|builder| builder.release_tickets(below));
        let _ = self.flush_pending();
        let _ = self.flush_builder();
        let _ = self.drive_until("waiting for the last release", |verbs| verbs.offered.is_empty());
        Ok(())
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        if self.arrived.is_empty() {
            self.drive_links(false)?;
        }
        Ok(!self.arrived.is_empty())
    }

    fn counters(&self) -> Tally {
        // The links count records, with headers and padding; this is the payload's part of them.
        let sent = self.sources.source_link(PEER_INDEX).map_or(0, |link| link.copied_bytes());
        let records = u128::from(sent + self.builders.builder_link(PEER_INDEX).map_or(0, |link| link.copied_bytes()));
        let copied = records * self.size as u128 / self.record as u128;
        Tally { copied: u64::try_from(copied).unwrap_or(u64::MAX), ..self.tally }
    }
}

fn link_error(error: LinkError) -> BenchError {
    connection_error(&error.to_string())
}

fn arena_error(error: thalweg_arena::ArenaError) -> BenchError {
    BenchError::Unavailable { what: "shared memory".into(), why: error.to_string() }
}
