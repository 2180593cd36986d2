//! Test fixtures: configurations, slots full of records, and a builder whose outputs are recorded.

use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig, Check, Closed, Hold, Ledger, Missing, Violation, Window};
use thalweg_wire::{
    Announcement, Disposition, EventId, FinalCounters, FragmentHeader, RunNumber, SourceId, Status, crc32c,
    record_bytes,
};

pub(crate) const RUN: RunNumber = RunNumber(42);
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// Returns the configuration of a single builder, with events from 0 on, at most 8 of them open.
pub(crate) fn config(sources: u16) -> BuilderConfig {
    BuilderConfig {
        run: RUN,
        builder: 0,
        builders: 1,
        rank: (0, 1),
        sources: (0..sources).map(|i| (id(usize::from(i)), format!("s{i}"))).collect(),
        level2: Vec::new(),
        first: EventId(0),
        window: Window::Constant(1 << 20),
        held: u64::MAX,
        deadline: DEADLINE,
        open_events: 8,
        max_payload: 1 << 16,
        check: Check::Payloads,
        hold: Hold::UntilArrived,
    }
}

pub(crate) fn id(source: usize) -> SourceId {
    SourceId::new(1, source as u16)
}

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns the header and payload of a whole fragment.
pub(crate) fn fragment(source: usize, event: u64, payload: &[u8]) -> (FragmentHeader, Vec<u8>) {
    let header = FragmentHeader {
        status: Status::SIMULATED,
        run: RUN,
        event: EventId(event),
        source: id(source),
        total_length: payload.len() as u32,
        piece_length: payload.len() as u32,
        payload_crc: crc32c(payload),
        ..FragmentHeader::default()
    };
    (header, payload.to_vec())
}

/// Returns the header and payload of the piece `range` of a fragment of `total` bytes.
pub(crate) fn piece(source: usize, event: u64, range: std::ops::Range<u32>, total: u32) -> (FragmentHeader, Vec<u8>) {
    let payload: Vec<u8> = range.clone().map(|i| i as u8).collect();
    let (header, payload) = fragment(source, event, &payload);
    (FragmentHeader { total_length: total, offset: range.start, ..header }, payload)
}

/// Returns records as they lie in a slot.
pub(crate) fn lay(fragments: &[(FragmentHeader, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (header, payload) in fragments {
        let begin = bytes.len();
        bytes.extend(header.encode());
        bytes.extend(payload);
        bytes.resize(begin + record_bytes(payload.len()), 0);
    }
    bytes
}

/// Returns the slot in which a source of the rig offers these events.
pub(crate) fn slot(source: usize, events: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let fragments: Vec<_> = events.into_iter().map(|event| fragment(source, event, &payload(source, event))).collect();
    lay(&fragments)
}

/// Returns 100 bytes that depend on the source and the event.
pub(crate) fn payload(source: usize, event: u64) -> Vec<u8> {
    (0..100).map(|i| (i + 7 * source as u64 + 13 * (event & 0xff)) as u8).collect()
}

pub(crate) fn books(accepted: u64, tickets: u64) -> FinalCounters {
    FinalCounters { accepted, tickets, ..FinalCounters::default() }
}

/// First event, number of events, and the missing sources with the reasons.
pub(crate) type Closing = (u64, u32, Vec<(usize, Status)>);

/// A builder, the time, and the builder's recorded outputs.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) builder: Builder,
    pub(crate) now: Duration,
    /// Number of times each (event, source) was recorded.
    pub(crate) recorded: BTreeMap<(u64, usize), u32>,
    closed: Vec<Closed>,
    /// Bytes requested, by source and ticket.
    asked: BTreeMap<(usize, u64), u64>,
    tickets: Vec<u64>,
    stride: u64,
}

impl Rig {
    /// Returns a rig whose sources are connected, with 4 slots each.
    pub(crate) fn new(config: BuilderConfig) -> Self {
        let (sources, stride) = (config.sources.len(), u64::from(config.builders));
        let mut builder = Builder::new(config);
        for source in 0..sources {
            assert_eq!(builder.source_connected(source, 4, false), 0);
        }
        let (recorded, closed) = (BTreeMap::new(), Vec::new());
        Self { builder, now: ms(1000), recorded, closed, asked: BTreeMap::new(), tickets: vec![0; sources], stride }
    }

    pub(crate) fn announcement(&self, source: usize, first: u64, count: u32, how: Disposition) -> Announcement {
        let bytes = if how.is_dropped() { 0 } else { count * record_bytes(100) as u32 };
        let ticket = self.tickets[source];
        Announcement { ticket, first: EventId(first), arena_offset: 0, count, bytes, disposition: how }
    }

    /// Offers the next ticket of a source; returns its number.
    pub(crate) fn offer(&mut self, source: usize, first: u64, count: u32) -> u64 {
        self.announce(source, self.announcement(source, first, count, Disposition::Held)).unwrap()
    }

    /// Announces the next ticket of a source as dropped.
    pub(crate) fn drop_newest(&mut self, source: usize, first: u64, count: u32) -> u64 {
        self.announce(source, self.announcement(source, first, count, Disposition::DroppedNewest)).unwrap()
    }

    pub(crate) fn announce(&mut self, source: usize, offer: Announcement) -> Result<u64, Violation> {
        assert!(!self.builder.handle_offer(source, offer, self.now)?, "nothing to call off");
        self.tickets[source] = self.tickets[source].max(offer.ticket + 1);
        Ok(offer.ticket)
    }

    /// Repeats the offer of a ticket, now as dropped to make room. Returns true if its fetch is to be called off.
    pub(crate) fn drop_oldest(&mut self, source: usize, ticket: u64, first: u64, count: u32) -> bool {
        let offer = self.announcement(source, first, count, Disposition::DroppedOldest);
        self.builder.handle_offer(source, Announcement { ticket, ..offer }, self.now).unwrap()
    }

    /// Returns the next fetch: source, ticket, first event, count.
    pub(crate) fn ask(&mut self) -> Option<(usize, u64, u64, u32)> {
        let fetch = self.builder.next_fetch(self.now)?;
        self.asked.insert((fetch.source, fetch.offer.ticket), u64::from(fetch.offer.bytes));
        Some((fetch.source, fetch.offer.ticket, fetch.offer.first.0, fetch.offer.count))
    }

    /// Delivers these bytes.
    pub(crate) fn arrive(&mut self, source: usize, ticket: u64, bytes: &[u8]) {
        self.try_arrive(source, ticket, bytes).unwrap();
    }

    /// Delivers these bytes, which may be more than a source may send.
    pub(crate) fn try_arrive(&mut self, source: usize, ticket: u64, bytes: &[u8]) -> Result<(), Violation> {
        let recorded = &mut self.recorded;
        let asked = self.asked.remove(&(source, ticket)).unwrap_or(0);
        self.builder.count_received(source, asked, self.now);
        let mut arrival = self.builder.arrived(source, ticket, bytes);
        for (at, header) in &mut arrival {
            assert_eq!(FragmentHeader::decode(&bytes[at as usize..]), Ok(header));
            assert_eq!(header.source, id(source));
            *recorded.entry((header.event.0, source)).or_default() += 1;
        }
        arrival.finish()
    }

    /// Fetches and delivers everything that may be fetched. Takes closed events, so that no event is held up.
    pub(crate) fn fetch_all(&mut self) {
        self.closed.extend(std::iter::from_fn(|| self.builder.next_closed()));
        while let Some((source, ticket, first, count)) = self.ask() {
            let events = (0..u64::from(count)).map(|i| first + i * self.stride);
            self.arrive(source, ticket, &slot(source, events));
            self.closed.extend(std::iter::from_fn(|| self.builder.next_closed()));
        }
    }

    /// Advances the time. Returns the sources given up.
    pub(crate) fn wait(&mut self, time: Duration) -> Vec<usize> {
        self.now += time;
        self.builder.advance_time(self.now)
    }

    /// Returns the events closed since the last call, ordered by event.
    pub(crate) fn closed(&mut self) -> Vec<Closing> {
        let closed = std::mem::take(&mut self.closed).into_iter();
        let mut closed: Vec<_> = closed
            .chain(std::iter::from_fn(|| self.builder.next_closed()))
            .map(|Closed { first, count, missing }| {
                let missing = missing.iter().map(|Missing { source, status }| {
                    assert!(status.contains(Status::MISSING));
                    (*source, *status - Status::MISSING)
                });
                (first.0, count, missing.collect())
            })
            .collect();
        closed.sort_by_key(|(first, ..)| *first);
        closed
    }

    /// Ends a source, with as many tickets as it offered.
    pub(crate) fn end(&mut self, source: usize, accepted: u64) {
        self.builder.source_ended(source, books(accepted, self.tickets[source])).unwrap();
    }

    /// Returns the final counters of a run that was recorded.
    pub(crate) fn ledger(&self) -> Ledger {
        self.builder.final_ledger(true, &[], 0)
    }

    /// Takes everything that is left and checks the final state.
    pub(crate) fn assert_finished(&mut self) {
        self.fetch_all();
        assert!(self.builder.is_finished());
        assert_eq!((self.builder.bytes_in_flight(), self.builder.open_event_count()), (0, 0));
        assert_eq!(self.ledger().unaccounted, 0, "{:#?}", self.ledger());
        assert!(self.recorded.values().all(|times| *times == 1));
    }
}
