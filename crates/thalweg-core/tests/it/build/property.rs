//! Whole runs under a seeded scheduler that loses, repeats, delays and reorders the messages between sources and
//! builder, cuts connections, lets sources drop and die, and damages records, against an oracle that follows each
//! fragment from outside and knows its bucket of the ledger.

use crate::build::rig::{DEADLINE, RUN, books, config, id, lay, ms};
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig, Check, Hold, Path, Window};
use thalweg_wire::{
    Announcement, Disposition, EventId, FinalCounters, FragmentHeader, GOLDEN_GAMMA, Status, crc32c, mix_bits,
    record_bytes,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_fragment_is_in_its_bucket_and_every_event_is_closed_once(world in world()) {
        for builder in 0..world.builders {
            Run::new(&world, builder).take_its_course();
        }
    }
}

proptest! {
    /// Sources that send anything at all are refused or believed, and cost neither memory nor time without limit.
    #[test]
    fn no_source_is_too_strange(
        builders in 1u32..4, slots in prop_oneof![Just(2), Just(u32::MAX)], first in number(), hold: bool, near: bool,
        credit: bool, level2: bool,
        calls in proptest::collection::vec((0usize..2, strange_or_abandoned()), 1..80),
    ) {
        let hold = if hold { Hold::UntilClosed } else { Hold::UntilArrived };
        let window = if credit { Window::Credit(PATH) } else { Window::Constant(1 << 20) };
        let level2 = if level2 { vec![1] } else { vec![] };
        let first = EventId(first);
        let mut builder = Builder::new(BuilderConfig { builders, level2, first, hold, window, ..config(2) });
        let mut now = ms(1);
        let mut tickets = [0u64; 2];
        builder.source_connected(0, slots, false);
        builder.source_connected(1, slots, near);
        for (source, call) in calls {
            match call {
                Strange::Offer(mut offer, in_order, in_share) => {
                    if in_order {
                        offer.ticket = tickets[source];
                    }
                    if in_share {
                        offer.first.0 -= offer.first.0 % u64::from(builders);
                    }
                    tickets[source] += u64::from(builder.handle_offer(source, offer, now).is_ok() && in_order);
                }
                Strange::End(final_counters) => _ = builder.source_ended(source, final_counters),
                Strange::Arrived(ticket, bytes) => {
                    let ticket = ticket.unwrap_or(tickets[source].saturating_sub(1));
                    if builder.arrived(source, ticket, &bytes[..]).finish().is_err() {
                        builder.give_up_source(source, now);
                    }
                }
                Strange::EndAt(end) => {
                    let end = builder.end_before(EventId(end), now);
                    prop_assert!(end >= builder.closed_until());
                }
                Strange::Abandon => builder.abandon_run(now),
                Strange::Gone => builder.source_disconnected(source, now),
                Strange::GivenUp => builder.give_up_source(source, now),
                Strange::Connected => tickets[source] = builder.source_connected(source, slots, near && source == 1),
                Strange::Received(bytes) => builder.count_received(source, bytes, now),
                Strange::Lost(sent, lost) => builder.report_losses(source, sent, lost),
                Strange::Stalled(stalled) => builder.set_stalled(stalled, now),
                Strange::Time(time) => {
                    now = now.saturating_add(time);
                    builder.advance_time(now);
                }
                Strange::Taken => _ = (0..20).map_while(|_| builder.next_closed()).count(),
            }
            while let Some(event) = builder.next_decision() {
                builder.decide_event(event, event.0 % 3 == 0);
                builder.decide_event(event, event.0 % 3 != 0);
            }
            _ = (0..20).map_while(|_| builder.next_fetch(now)).count();
            _ = (builder.next_release(source), builder.next_deadline(now), builder.next_request_time());
            prop_assert!(builder.open_event_count() <= 8);
            prop_assert!(builder.bytes_in_flight() < 1 << 34);
        }
        let mut ledger = builder.final_ledger(true, &[u64::MAX / 4, 0], 0);
        ledger.merge_ledger(&builder.final_ledger(false, &[], u64::MAX));
        ledger.merge_ledger(&ledger.clone());
        _ = (ledger.incomplete_reasons(false), builder.source_costs(), builder.progress_counts(), builder.is_finished());
    }
}

#[derive(Debug, Clone)]
enum Strange {
    Offer(Announcement, bool, bool),
    End(FinalCounters),
    Arrived(Option<u64>, Vec<u8>),
    Received(u64),
    Lost(u64, u64),
    EndAt(u64),
    Abandon,
    Gone,
    GivenUp,
    Connected,
    Stalled(bool),
    Time(Duration),
    Taken,
}

/// Generates a small number, or one at the limit of the type or of another type.
fn number() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(vec![0, 1, 1 << 32, 1 << 40, 1 << 63, u64::MAX]);
    let edge = (edge, 0u64..3, any::<bool>())
        .prop_map(|(edge, off, up)| if up { edge.saturating_add(off) } else { edge.saturating_sub(off) });
    prop_oneof![8 => 0u64..40, 2 => (0u64..40).prop_map(|n| u64::MAX - n), 2 => any::<u64>(), 3 => edge]
}

fn strange() -> impl Strategy<Value = Strange> {
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let how = prop::sample::select(vec![
        Disposition::Held,
        Disposition::Held,
        Disposition::Eager,
        Disposition::DroppedNewest,
        Disposition::DroppedOldest,
    ]);
    let offer = (number(), number(), number(), proptest::option::of(number()), how, 0u8..10, any::<bool>());
    let offer = offer.prop_map(move |(ticket, first, count, bytes, disposition, in_order, in_share)| {
        let count = small(count);
        let bytes = bytes.map_or(count.saturating_mul(128), small);
        let offer = Announcement { ticket, first: EventId(first), arena_offset: first, count, bytes, disposition };
        Strange::Offer(offer, in_order < 8, in_share)
    });
    let final_counters = (number(), prop_oneof![0u64..8, number()], number(), number(), number());
    let end = final_counters.prop_map(|(accepted, tickets, cpu_nanos, copied_bytes, dropped_newest)| {
        let final_counters =
            FinalCounters { accepted, tickets, cpu_nanos, copied_bytes, dropped_newest, ..FinalCounters::default() };
        Strange::End(final_counters)
    });
    let status = prop_oneof![6 => Just(0), 1 => any::<u32>()];
    let more = prop_oneof![Just(0), Just(30), Just(60), Just(u32::MAX - 200)];
    let records = proptest::collection::vec((number(), 0u32..70, 0u32..70, more, status), 0..6).prop_map(|records| {
        let records = records.into_iter().map(|(event, offset, length, more, status)| {
            let header = FragmentHeader {
                run: RUN,
                event: EventId(event),
                source: id(0),
                total_length: offset + length + more,
                offset,
                piece_length: length,
                status: Status::NO_PAYLOAD_CRC | Status::from_bits_retain(status),
                ..FragmentHeader::default()
            };
            (header, vec![0; length as usize])
        });
        lay(&records.collect::<Vec<_>>())
    });
    let arrived = (proptest::option::of(number()), records).prop_map(|(ticket, bytes)| Strange::Arrived(ticket, bytes));
    prop_oneof![
        8 => offer,
        4 => arrived,
        2 => number().prop_map(Strange::Received),
        2 => (number(), number()).prop_map(|(sent, lost)| Strange::Lost(sent, lost)),
        1 => number().prop_map(Strange::EndAt),
        1 => end,
        1 => Just(Strange::Gone),
        1 => Just(Strange::GivenUp),
        2 => Just(Strange::Connected),
        1 => any::<bool>().prop_map(Strange::Stalled),
        2 => prop_oneof![Just(DEADLINE), Just(ms(1)), Just(Duration::MAX)].prop_map(Strange::Time),
        2 => Just(Strange::Taken),
    ]
}

/// Generates a call, rarely an abandonment of the run.
fn strange_or_abandoned() -> impl Strategy<Value = Strange> {
    prop_oneof![200 => strange(), 1 => Just(Strange::Abandon)]
}

/// A slow path, so that slots are requested in pieces and pacing matters.
const PATH: Path = Path { rate: 2e5, round_trip: ms(10), buffer: 2000, segment: 20, unasked: 0 };

/// Parameters drawn for a run; everything else follows from the seed.
#[derive(Debug, Clone)]
struct World {
    seed: u64,
    sources: usize,
    builders: u32,
    events: u64,
    open_events: u32,
    window: Window,
    per_slot: u32,
    slots: usize,
    check: Check,
    hold: Hold,
    /// With trigger levels: number of sources that level 2 fetches from first, and percentage of events that each level
    /// accepts.
    level2: usize,
    accept: [u64; 2],
    /// Times at which the end of the run is set, in milliseconds, with the event before which it ends.
    ends: Vec<(u64, u64)>,
    /// Time at which the run is abandoned, in milliseconds.
    abandoned: Option<u64>,
    /// True if messages may be lost, repeated and overtake each other; otherwise they come late, but in order.
    lossy: bool,
    chances: Chances,
}

/// Probabilities, in percent.
#[derive(Debug, Clone)]
struct Chances {
    skip: u64,
    pieces: u64,
    cut: u64,
    die: u64,
    damage: u64,
    stall: u64,
}

fn world() -> impl Strategy<Value = World> {
    let chances = (0..8u64, 0..8u64, 0..3u64, 0..2u64, 0..8u64, 0..4u64)
        .prop_map(|(skip, pieces, cut, die, damage, stall)| Chances { skip, pieces, cut, die, damage, stall });
    let shape = (1usize..6, 1u32..4, 1u64..120, 4u32..20, 0u64..4000, 1u32..5, 1usize..6);
    let manner = (any::<u64>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let trigger = prop_oneof![Just((0, [100, 100])), (0usize..4, [0..=100u64, 0..=100u64])];
    let time = || prop_oneof![Just(0), 0u64..400];
    let ends = (proptest::collection::vec((time(), 0u64..300), 0..3), proptest::option::weighted(0.1, time()));
    (shape, manner, trigger, ends, chances).prop_map(|(shape, manner, (level2, accept), (ends, abandoned), chances)| {
        let (seed, payloads, closed, lossy, credit) = manner;
        let (sources, builders, events, open_events, window, per_slot, slots) = shape;
        let window = if credit {
            Window::Credit(Path { buffer: window, unasked: window / 4, ..PATH })
        } else {
            Window::Constant(window)
        };
        let check = if payloads { Check::Payloads } else { Check::Headers };
        let hold = if closed { Hold::UntilClosed } else { Hold::UntilArrived };
        let level2 = level2.min(sources);
        World {
            seed,
            sources,
            builders,
            events,
            open_events,
            window,
            per_slot,
            slots,
            check,
            hold,
            level2,
            accept,
            ends,
            abandoned,
            lossy,
            chances,
        }
    })
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn chance(&mut self, of_hundred: u64) -> bool {
        self.below(100) < of_hundred
    }

    fn delay(&mut self, most: u64) -> Duration {
        Duration::from_micros(1 + self.below(1000 * most))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Block,
    DropNewest,
    DropOldest,
}

/// Content of a ticket: pieces of fragments of consecutive events (by index in the builder's share).
#[derive(Debug, Clone)]
struct Held {
    offer: Announcement,
    first: u64,
    bytes: Vec<u8>,
    /// True if it was fetched and sent: its slot may not be reused before it is released.
    sent: bool,
}

/// State of a source, as the source knows it.
struct SourceModel {
    policy: Policy,
    /// Index after the last event of its device.
    end: u64,
    next_event: u64,
    next_ticket: u64,
    unreleased: BTreeMap<u64, Held>,
    filling: Vec<Vec<u8>>,
    filling_first: u64,
    dropping: u32,
    accepted: u64,
    ended: Option<FinalCounters>,
    /// Number of the connection; nothing sent over an earlier one arrives.
    connection: u64,
    connected: bool,
    dead: bool,
    /// Time at which the last message in order arrives.
    last_arrival: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Bucket {
    Recorded,
    DroppedNewest,
    DroppedOldest,
    Corrupt,
    Lost,
    Rejected,
    BeyondEnd,
    /// None of these: its event was closed before.
    Late,
}

/// State of a source at the builder, as known from outside.
#[derive(Default)]
struct Oracle {
    /// Tickets that were offered, those below `next` in order: first event, count, disposition.
    heard: BTreeMap<u64, (u64, u32, Disposition)>,
    next: u64,
    /// Offers that overtook others on their way.
    early: BTreeMap<u64, Announcement>,
    last_words: Option<FinalCounters>,
    /// Tickets whose bytes have arrived, or which were dropped or lost.
    done: BTreeSet<u64>,
    /// First decision on each fragment. Fragments that were mentioned and are not here must be late.
    buckets: BTreeMap<u64, Bucket>,
    /// Bytes recorded of each fragment, and its length.
    recorded: BTreeMap<u64, (u32, u32)>,
    missing: BTreeSet<u64>,
    /// Events that were closed without the source because it had not mentioned them in time.
    timed_out: BTreeSet<u64>,
    /// Events that were closed without the source for no given reason.
    silent: BTreeSet<u64>,
    given_up: bool,
    /// Index of the first event beyond the end of the run.
    stop: Option<u64>,
}

#[derive(Debug, Clone)]
enum Happening {
    Device(usize),
    Offer(usize, u64, Announcement),
    End(usize, u64, FinalCounters),
    Release(usize, u64, u64),
    Piece(usize, u64, u64, u64),
    Served(usize, u64, u64),
    Remind(usize, u64),
    Cut(usize),
    Connect(usize),
    EndAt(u64),
    StopAt(usize, u64),
    Abandon,
    Stall(bool),
    Nothing,
}

struct Run<'a> {
    world: &'a World,
    number: u32,
    builder: Builder,
    dice: Dice,
    now: Duration,
    agenda: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    count: u64,
    sources: Vec<SourceModel>,
    oracle: Vec<Oracle>,
    /// Fetches under way: source and ticket, the number of the fetch, and its bytes that were requested and have not
    /// arrived.
    fetches: BTreeMap<(usize, u64), (u64, u64)>,
    /// Bytes requested at the last check: a window that shrinks takes nothing back.
    most: u64,
    closed: BTreeSet<u64>,
    /// Events that level 2 has rejected, and those that it has accepted.
    rejected: BTreeSet<u64>,
    accepted: BTreeSet<u64>,
    /// Events that the event filter has rejected.
    filtered: BTreeSet<u64>,
    end: EventId,
    abandoned: bool,
    stalled: bool,
}

impl<'a> Run<'a> {
    fn new(world: &'a World, number: u32) -> Self {
        let mut dice = Dice(world.seed ^ u64::from(number) << 32);
        let builder = Builder::new(BuilderConfig {
            builder: number,
            builders: world.builders,
            rank: (number, world.builders),
            open_events: world.open_events,
            window: world.window,
            check: world.check,
            hold: world.hold,
            // The last sources: the choice must not matter.
            level2: (world.sources - world.level2..world.sources).collect(),
            ..config(world.sources as u16)
        });
        let sources = (0..world.sources).map(|_| SourceModel {
            policy: [Policy::Block, Policy::DropNewest, Policy::DropOldest][dice.below(3) as usize],
            end: world.events - if dice.chance(10) { dice.below(world.events) } else { 0 },
            next_event: 0,
            next_ticket: 0,
            unreleased: BTreeMap::new(),
            filling: Vec::new(),
            filling_first: 0,
            dropping: 0,
            accepted: 0,
            ended: None,
            connection: 0,
            connected: false,
            dead: false,
            last_arrival: Duration::ZERO,
        });
        let sources: Vec<SourceModel> = sources.collect();
        let oracle = sources.iter().map(|_| Oracle::default()).collect();
        let mut run = Self {
            world,
            number,
            builder,
            dice,
            now: ms(10),
            agenda: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            count: 0,
            sources,
            oracle,
            fetches: BTreeMap::new(),
            most: 0,
            closed: BTreeSet::new(),
            rejected: BTreeSet::new(),
            accepted: BTreeSet::new(),
            filtered: BTreeSet::new(),
            end: EventId(u64::MAX),
            abandoned: false,
            stalled: false,
        };
        for (at, end) in &world.ends {
            match at {
                0 => run.end_at(*end),
                _ => run.later(ms(*at), Happening::EndAt(*end)),
            }
        }
        if let Some(at) = world.abandoned {
            run.later(ms(at), Happening::Abandon);
        }
        for source in 0..world.sources {
            run.connect(source);
            run.later(Duration::ZERO, Happening::Device(source));
        }
        run
    }

    fn take_its_course(mut self) {
        let mut steps = 0;
        while !self.builder.is_finished() {
            steps += 1;
            assert!(steps < 200_000, "the run does not end: {:#?}", self.builder);
            let timer = self.builder.next_deadline(self.now).map(|at| at.max(self.now));
            let next = self.agenda.peek().map(|Reverse((at, _))| *at);
            match (timer, next) {
                (Some(timer), Some(next)) if timer <= next => self.now = timer,
                (Some(timer), None) => self.now = timer,
                (_, Some(next)) => {
                    self.now = self.now.max(next);
                    let Some(Reverse((_, number))) = self.agenda.pop() else { break };
                    let happening = self.happenings.remove(&number).unwrap();
                    self.happens(happening);
                }
                (None, None) => panic!("nothing will ever happen: {:#?}", self.builder),
            }
            self.serve_the_builder();
        }
        self.audit();
    }

    fn later(&mut self, delay: Duration, happening: Happening) {
        self.count += 1;
        self.agenda.push(Reverse((self.now + delay, self.count)));
        self.happenings.insert(self.count, happening);
    }

    /// Acts on the builder's state, as a node does after every happening.
    fn serve_the_builder(&mut self) {
        for source in self.builder.advance_time(self.now) {
            self.given_up(source);
        }
        self.level2();
        while let Some(closed) = self.builder.next_closed() {
            assert!(closed.count == 1 || closed.missing.is_empty());
            let missing: BTreeMap<usize, Status> =
                closed.missing.iter().map(|missing| (missing.source, missing.status)).collect();
            assert_eq!(missing.len(), closed.missing.len(), "a source is missing once");
            for step in 0..u64::from(closed.count) {
                let event = closed.first.0 + step * u64::from(self.world.builders);
                assert_eq!(event % u64::from(self.world.builders), u64::from(self.number));
                let index = event / u64::from(self.world.builders);
                assert!(self.closed.insert(index), "event {event} is closed twice");
                assert_eq!(self.accepted.contains(&index), self.world.level2 > 0, "event {event} was not accepted");
                let accept = self.accepts(index, 1);
                for (source, oracle) in self.oracle.iter_mut().enumerate() {
                    let whole = oracle.buckets.get(&index) == Some(&Bucket::Recorded);
                    let status = missing.get(&source);
                    assert_eq!(whole, status.is_none(), "source {source} of event {event}");
                    oracle.missing.extend(status.map(|_| index));
                    oracle.timed_out.extend(status.filter(|why| why.contains(Status::TIMED_OUT)).map(|_| index));
                    oracle.silent.extend(status.filter(|why| **why == Status::MISSING).map(|_| index));
                    if whole && !accept {
                        oracle.buckets.insert(index, Bucket::Rejected);
                    }
                }
                if !accept {
                    self.filtered.insert(index);
                    self.builder.reject_closed(&closed.missing);
                }
            }
        }
        assert!(self.builder.open_event_count() <= u64::from(self.world.open_events));
        let mut room = !self.stalled;
        while let Some(fetch) = match room {
            true => self.builder.next_fetch(self.now),
            false if self.stalled => None,
            false => self.builder.next_piece(self.now),
        } {
            let (source, ticket) = (fetch.source, fetch.offer.ticket);
            assert!(self.sources[source].connected, "asks a source that is away");
            if fetch.range.start == 0 && self.dice.chance(3) {
                self.builder.cancel_fetch(source, ticket);
                let again = self.dice.delay(5);
                self.later(again, Happening::Nothing);
                room = false;
                continue;
            }
            self.count += 1;
            let bytes = u64::from(fetch.range.end - fetch.range.start);
            let under_way = self.fetches.entry((source, ticket)).or_insert((self.count, 0));
            assert!(fetch.range.start > 0 || under_way.1 == 0, "asks twice");
            under_way.1 += bytes;
            let number = under_way.0;
            let delay = self.dice.delay(10);
            if fetch.range.end > bytes as u32 || fetch.range.end < fetch.offer.bytes {
                self.later(delay, Happening::Piece(source, ticket, number, bytes));
            }
            if fetch.range.end == fetch.offer.bytes {
                self.later(delay, Happening::Served(source, ticket, number));
            }
        }
        if let Some(at) = self.builder.next_request_time()
            && !self.stalled
        {
            assert!(at > self.now, "waits for what is past");
            self.later(at - self.now, Happening::Nothing);
        }
        let asked: u64 = self.fetches.values().map(|(_, bytes)| bytes).sum();
        assert_eq!(self.builder.bytes_in_flight(), asked);
        let window = match self.world.window {
            Window::Constant(window) => window,
            // Data that wait at the builder after a gap are requested, and no longer in the network.
            Window::Credit(_) if self.world.lossy => u64::MAX,
            Window::Credit(_) | Window::Search { .. } => self.builder.credit_state().unwrap().window,
        };
        let alone = self.fetches.values().filter(|(_, bytes)| *bytes > 0).count() == 1;
        assert!(asked <= window.max(self.most) || alone, "{asked} bytes in a window of {window}");
        self.most = asked;
        for source in 0..self.sources.len() {
            if let Some(below) = self.builder.next_release(source)
                && self.sources[source].connected
            {
                let connection = self.sources[source].connection;
                self.send(source, Happening::Release(source, connection, below));
            }
        }
    }

    /// Returns whether a trigger level accepts an event.
    fn accepts(&self, index: u64, level: usize) -> bool {
        let draw = Dice(self.world.seed ^ index << 8 ^ level as u64).chance(self.world.accept[level]);
        draw || level == 0 && self.world.level2 == 0
    }

    /// Decides on the events for which the first-asked sources have all answered.
    fn level2(&mut self) {
        while let Some(event) = self.builder.next_decision() {
            let index = event.0 / u64::from(self.world.builders);
            let accept = self.accepts(index, 0);
            self.builder.decide_event(event, accept);
            let decided = if accept { &mut self.accepted } else { &mut self.rejected };
            assert!(decided.insert(index), "event {index} is decided on twice");
            for oracle in &mut self.oracle {
                if !accept && oracle.buckets.get(&index) == Some(&Bucket::Recorded) {
                    oracle.buckets.insert(index, Bucket::Rejected);
                }
            }
        }
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Device(source) => self.device(source),
            Happening::Offer(source, connection, offer) => {
                if self.is_current(source, connection) {
                    self.heard(source, offer);
                }
            }
            Happening::End(source, connection, final_counters) => {
                if self.is_current(source, connection) {
                    self.oracle[source].last_words = Some(final_counters);
                    self.end_of(source);
                }
            }
            Happening::Release(source, connection, below) => {
                if self.is_current(source, connection) {
                    self.sources[source].unreleased = self.sources[source].unreleased.split_off(&below);
                }
            }
            Happening::Piece(source, ticket, number, bytes) => self.piece(source, ticket, number, bytes),
            Happening::Served(source, ticket, number) => self.served(source, ticket, number),
            Happening::Remind(source, connection) => {
                if self.is_current(source, connection) {
                    self.say_all(source);
                    self.later(DEADLINE / 8, Happening::Remind(source, connection));
                }
            }
            Happening::EndAt(end) => self.end_at(end),
            Happening::StopAt(source, index) => {
                let entry = &mut self.sources[source];
                entry.end = entry.end.min(index.max(entry.next_event));
            }
            Happening::Abandon => {
                self.abandoned = true;
                self.builder.abandon_run(self.now);
                self.fetches.clear();
            }
            Happening::Cut(source) => self.cut(source),
            Happening::Connect(source) => self.connect(source),
            Happening::Stall(stalled) => {
                self.stalled = stalled;
                self.builder.set_stalled(stalled, self.now);
            }
            Happening::Nothing => {}
        }
    }

    /// Sets the end of the run at the builder, and later at every source.
    fn end_at(&mut self, end: u64) {
        let closed = self.builder.closed_until();
        assert!(closed <= self.end, "closed beyond the end");
        self.end = self.end.min(EventId(end).max(closed));
        let end = self.builder.end_before(EventId(end), self.now);
        assert_eq!(end, self.end);
        let builders = u64::from(self.world.builders);
        let stop = end.0.saturating_sub(u64::from(self.number)).div_ceil(builders);
        for source in 0..self.sources.len() {
            self.oracle[source].end_at(stop);
            let delay = self.dice.delay(50);
            self.later(delay, Happening::StopAt(source, stop));
        }
    }

    fn is_current(&self, source: usize, connection: u64) -> bool {
        self.sources[source].connected && self.sources[source].connection == connection
    }

    /// Sends a message, in either direction.
    fn send(&mut self, source: usize, message: Happening) {
        if !self.world.lossy {
            let arrival = (self.now + self.dice.delay(4)).max(self.sources[source].last_arrival);
            self.sources[source].last_arrival = arrival;
            self.later(arrival.saturating_sub(self.now), message);
            return;
        }
        let copies = [0, 1, 1, 1, 1, 1, 1, 1, 1, 2][self.dice.below(10) as usize];
        for _ in 0..copies {
            let delay = self.dice.delay(10);
            self.later(delay, message.clone());
        }
    }

    fn announce(&mut self, source: usize, ticket: u64) {
        let entry = &self.sources[source];
        if entry.connected {
            let message = Happening::Offer(source, entry.connection, entry.unreleased[&ticket].offer);
            self.send(source, message);
        }
    }

    fn say_all(&mut self, source: usize) {
        let tickets: Vec<u64> = self.sources[source].unreleased.keys().copied().collect();
        for ticket in tickets {
            self.announce(source, ticket);
        }
        let entry = &self.sources[source];
        if let Some(final_counters) = entry.ended {
            self.send(source, Happening::End(source, entry.connection, final_counters));
        }
    }

    /// Produces the next event of the device, and applies the source's policy to it.
    fn device(&mut self, source: usize) {
        let chances = self.world.chances.clone();
        if self.sources[source].dead {
            return;
        }
        if self.dice.chance(chances.cut) && self.sources[source].connected {
            self.later(Duration::ZERO, Happening::Cut(source));
        }
        if self.dice.chance(chances.stall) && !self.stalled {
            self.later(Duration::ZERO, Happening::Stall(true));
            let length = self.dice.delay(300);
            self.later(length, Happening::Stall(false));
        }
        if self.dice.below(1000) < chances.die {
            self.sources[source].dead = true;
            self.later(Duration::ZERO, Happening::Cut(source));
            return;
        }
        if self.sources[source].next_event == self.sources[source].end {
            self.offer_slot(source);
            if self.sources[source].filling.is_empty() && self.announce_drops(source) {
                let entry = &mut self.sources[source];
                entry.ended = Some(books(entry.accepted, entry.next_ticket));
                if self.sources[source].connected {
                    self.say_all(source);
                }
                return;
            }
        } else if self.dice.chance(chances.skip) {
            self.offer_slot(source);
            if self.sources[source].filling.is_empty() && self.announce_drops(source) {
                self.sources[source].next_event += 1 + self.dice.below(40) / 39 * 30;
                self.sources[source].next_event = self.sources[source].next_event.min(self.sources[source].end);
            }
        } else {
            self.accept(source);
        }
        let most = if self.dice.chance(1) { 250 } else { 2 };
        let pause = self.dice.delay(most);
        self.later(pause, Happening::Device(source));
    }

    fn accept(&mut self, source: usize) {
        let index = self.sources[source].next_event;
        if self.dice.chance(self.world.chances.pieces) {
            self.offer_slot(source);
            let free = self.free_slots(source);
            if free >= 2 && self.sources[source].filling.is_empty() && self.announce_drops(source) {
                let pieces = 2 + self.dice.below(free as u64 - 1).min(2);
                for piece in 0..pieces {
                    let record = self.record(source, index, piece, pieces);
                    self.issue(source, index, 1, Disposition::Held, record);
                }
                self.sources[source].accepted += 1;
                self.sources[source].next_event += 1;
                return;
            }
        }
        if self.sources[source].filling.is_empty() {
            if !self.may_issue(source) {
                return;
            }
            if self.free_slots(source) == 0 {
                match self.sources[source].policy {
                    Policy::Block => return,
                    Policy::DropNewest => {
                        self.sources[source].dropping += 1;
                        self.sources[source].accepted += 1;
                        self.sources[source].next_event += 1;
                        if self.dice.chance(20) {
                            self.announce_drops(source);
                        }
                        return;
                    }
                    Policy::DropOldest => {
                        let may_go = |held: &&mut Held| !held.sent && !held.offer.disposition.is_dropped();
                        let Some(oldest) = self.sources[source].unreleased.values_mut().find(may_go) else { return };
                        oldest.offer =
                            Announcement { bytes: 0, disposition: Disposition::DroppedOldest, ..oldest.offer };
                        oldest.bytes.clear();
                        let ticket = oldest.offer.ticket;
                        self.announce(source, ticket);
                    }
                }
            }
            if !self.announce_drops(source) {
                return;
            }
            self.sources[source].filling_first = index;
        }
        let record = self.record(source, index, 0, 1);
        let entry = &mut self.sources[source];
        entry.filling.push(record);
        entry.accepted += 1;
        entry.next_event += 1;
        if entry.filling.len() == self.world.per_slot as usize || self.dice.chance(30) {
            self.offer_slot(source);
        }
    }

    /// Returns a record: a piece of an event's fragment, one of `pieces`, each of 40 to 71 bytes.
    fn record(&mut self, source: usize, index: u64, piece: u64, pieces: u64) -> Vec<u8> {
        let length = 40 + (index % 32) as u32;
        let payload: Vec<u8> = (0..length).map(|i| (u64::from(i) * 3 + index + 50 * piece) as u8).collect();
        let header = FragmentHeader {
            status: if self.dice.chance(5) { Status::EMPTY } else { Status::empty() },
            run: RUN,
            event: self.event(index),
            source: id(source),
            total_length: length * pieces as u32,
            offset: length * piece as u32,
            piece_length: length,
            payload_crc: crc32c(&payload),
            ..FragmentHeader::default()
        };
        lay(&[(header, payload)])
    }

    fn event(&self, index: u64) -> EventId {
        EventId(index * u64::from(self.world.builders) + u64::from(self.number))
    }

    fn free_slots(&self, source: usize) -> usize {
        let entry = &self.sources[source];
        let held = entry.unreleased.values().filter(|held| !held.offer.disposition.is_dropped()).count();
        self.world.slots - held.min(self.world.slots)
    }

    /// Returns whether the source may number another offer: on a lossy link not further ahead of the releases than the
    /// builder can store.
    fn may_issue(&self, source: usize) -> bool {
        let entry = &self.sources[source];
        let oldest = entry.unreleased.keys().next().copied().unwrap_or(entry.next_ticket);
        !self.world.lossy || entry.next_ticket - oldest < 2 * self.world.slots as u64
    }

    fn issue(&mut self, source: usize, first: u64, count: u32, disposition: Disposition, bytes: Vec<u8>) {
        let event = self.event(first);
        let entry = &mut self.sources[source];
        let ticket = entry.next_ticket;
        entry.next_ticket += 1;
        let offer =
            Announcement { ticket, first: event, arena_offset: 0, count, bytes: bytes.len() as u32, disposition };
        entry.unreleased.insert(ticket, Held { offer, first, bytes, sent: false });
        self.announce(source, ticket);
    }

    fn offer_slot(&mut self, source: usize) {
        if self.sources[source].filling.is_empty() || !self.may_issue(source) {
            return;
        }
        let entry = &mut self.sources[source];
        let (records, first) = (std::mem::take(&mut entry.filling), entry.filling_first);
        self.issue(source, first, records.len() as u32, Disposition::Held, records.concat());
    }

    /// Announces dropped fragments. Returns true if none are left to announce.
    fn announce_drops(&mut self, source: usize) -> bool {
        let entry = &mut self.sources[source];
        let (count, next) = (entry.dropping, entry.next_event);
        if count > 0 && self.may_issue(source) {
            self.sources[source].dropping = 0;
            self.issue(source, next - u64::from(count), count, Disposition::DroppedNewest, Vec::new());
        }
        self.sources[source].dropping == 0
    }

    /// Delivers an offer as links do: offers that overtake each other in order, and `End` after them.
    fn heard(&mut self, source: usize, offer: Announcement) {
        if offer.ticket > self.oracle[source].next {
            let early = self.oracle[source].early.entry(offer.ticket).or_insert(offer);
            if offer.disposition.is_dropped() {
                *early = offer;
            }
            return;
        }
        self.offered(source, offer);
        while let Some(offer) = self.oracle[source].next_in_order() {
            self.offered(source, offer);
        }
        self.end_of(source);
    }

    fn end_of(&mut self, source: usize) {
        let oracle = &mut self.oracle[source];
        if let Some(final_counters) = oracle.last_words.take_if(|final_counters| oracle.next >= final_counters.tickets)
        {
            self.builder.source_ended(source, final_counters).unwrap();
        }
    }

    fn offered(&mut self, source: usize, offer: Announcement) {
        let call_off = self.builder.handle_offer(source, offer, self.now).unwrap();
        let fetch = self.fetches.contains_key(&(source, offer.ticket));
        assert!(!call_off || fetch, "calls off what it did not ask for");
        if call_off {
            self.fetches.remove(&(source, offer.ticket));
        }
        let first = offer.first.0 / u64::from(self.world.builders);
        let oracle = &mut self.oracle[source];
        let heard = oracle.heard.entry(offer.ticket).or_insert((first, offer.count, offer.disposition));
        assert_eq!((heard.0, heard.1), (first, offer.count));
        if offer.disposition.is_dropped() && !oracle.done.contains(&offer.ticket) {
            heard.2 = offer.disposition;
        }
        oracle.drops(offer.ticket);
        oracle.next = oracle.next.max(offer.ticket + 1);
    }

    /// Delivers a part of the requested bytes.
    fn piece(&mut self, source: usize, ticket: u64, number: u64, bytes: u64) {
        let held = self.sources[source].unreleased.get_mut(&ticket);
        if let Some(held) = held.filter(|held| !held.offer.disposition.is_dropped())
            && let Some((fetch, left)) = self.fetches.get_mut(&(source, ticket))
            && *fetch == number
        {
            held.sent = true;
            *left -= bytes;
            self.builder.count_received(source, bytes, self.now);
            if self.world.lossy {
                self.builder.report_losses(source, bytes, self.dice.below(bytes));
            }
        }
    }

    /// Answers a fetch at its source.
    fn served(&mut self, source: usize, ticket: u64, number: u64) {
        let under_way = self.fetches.get(&(source, ticket)).is_some_and(|(fetch, _)| *fetch == number);
        let held = self.sources[source].unreleased.get_mut(&ticket);
        let Some(held) = held.filter(|held| !held.offer.disposition.is_dropped()) else {
            // The source has made room meanwhile, and has announced it.
            return;
        };
        held.sent |= under_way;
        let mut held = held.clone();
        if !under_way {
            if !self.fetches.contains_key(&(source, ticket)) {
                assert_eq!(self.builder.arrived(source, ticket, &held.bytes[..]).count(), 0, "no event waits for this");
            }
            return;
        }
        let left = self.fetches.remove(&(source, ticket)).map_or(0, |(_, left)| left);
        if self.world.lossy && left == u64::from(held.offer.bytes) && self.dice.chance(10) {
            self.builder.cancel_fetch(source, ticket);
            return;
        }
        self.builder.count_received(source, left, self.now);
        let intact = held.bytes.clone();
        if self.dice.chance(self.world.chances.damage) {
            let at = self.dice.below(held.bytes.len() as u64) as usize;
            held.bytes[at] ^= 1 << self.dice.below(8);
        }
        if self.dice.chance(self.world.chances.damage / 4) {
            held.bytes.truncate(self.dice.below(held.bytes.len() as u64) as usize);
        }
        let good = self.good_records(&intact, &held.bytes);
        let mut recorded = BTreeSet::new();
        let builders = u64::from(self.world.builders);
        let oracle = &mut self.oracle[source];
        let (closed, rejected_events) = (&self.closed, &self.rejected);
        let mut arrival = self.builder.arrived(source, ticket, &held.bytes[..]);
        for (at, header) in &mut arrival {
            assert_eq!(FragmentHeader::decode(&held.bytes[at as usize..]), Ok(header));
            let index = header.event.0 / builders;
            assert!(!closed.contains(&index), "recorded after its event was closed");
            assert!(!rejected_events.contains(&index), "recorded after its event was rejected");
            assert!(oracle.stop.is_none_or(|stop| index < stop), "recorded beyond the end");
            assert!(recorded.insert(index));
            let (length, total) = oracle.recorded.entry(index).or_insert((0, header.total_length));
            *length += header.piece_length;
            assert!(*length <= *total, "recorded twice");
            if length == total {
                assert_eq!(oracle.buckets.insert(index, Bucket::Recorded), None);
            }
        }
        arrival.finish().unwrap();
        assert!(oracle.done.insert(ticket), "arrived twice");
        for (step, good) in (0..).zip(good) {
            let index = held.first + step;
            if !good {
                assert!(!recorded.contains(&index), "records what is damaged");
                oracle.put(index, Bucket::Corrupt);
            }
        }
        if self.dice.chance(10) {
            assert_eq!(self.builder.arrived(source, ticket, &held.bytes[..]).count(), 0, "it has arrived already");
        }
    }

    /// Returns which records of a slot are still usable after what happened to its bytes.
    fn good_records(&self, intact: &[u8], arrived: &[u8]) -> Vec<bool> {
        let mut good = Vec::new();
        let (mut at, mut readable) = (0, true);
        while at < intact.len() {
            let payload = FragmentHeader::decode(&intact[at..]).unwrap().piece_length as usize;
            let end = at + 64 + payload;
            let same = |range: std::ops::Range<usize>| arrived.get(range.clone()) == Some(&intact[range]);
            readable &= same(at..at + 64) && end <= arrived.len();
            good.push(readable && (self.world.check == Check::Headers || same(at + 64..end)));
            at += record_bytes(payload);
        }
        good
    }

    fn cut(&mut self, source: usize) {
        if !self.sources[source].connected {
            return;
        }
        self.sources[source].connected = false;
        self.builder.source_disconnected(source, self.now);
        self.fetches.retain(|(of, _), _| *of != source);
        if !self.sources[source].dead {
            let most = if self.dice.chance(20) { 400 } else { 40 };
            let away = self.dice.delay(most);
            self.later(away, Happening::Connect(source));
        }
    }

    fn connect(&mut self, source: usize) {
        if self.sources[source].dead {
            return;
        }
        let below = self.builder.source_connected(source, self.world.slots as u32, false);
        let entry = &mut self.sources[source];
        entry.connected = true;
        entry.connection += 1;
        entry.last_arrival = self.now;
        entry.unreleased = entry.unreleased.split_off(&below);
        let connection = entry.connection;
        self.oracle[source].forget_early();
        self.say_all(source);
        if self.world.lossy {
            self.later(DEADLINE / 8, Happening::Remind(source, connection));
        }
    }

    /// Notes that the builder has given a source up: fragments that have not arrived are lost.
    fn given_up(&mut self, source: usize) {
        self.cut(source);
        let oracle = &mut self.oracle[source];
        oracle.forget_early();
        oracle.given_up = true;
        for (ticket, (first, count, _)) in oracle.heard.clone() {
            if oracle.done.insert(ticket) {
                for index in first..first + u64::from(count) {
                    oracle.put(index, Bucket::Lost);
                }
            }
        }
        // Fragments of which only some pieces have arrived are lost too.
        for index in oracle.recorded.keys().copied().collect::<Vec<_>>() {
            oracle.put(index, Bucket::Lost);
        }
    }

    /// Notes that fragments of events that were not closed when the run was abandoned are lost.
    fn abandoned(&mut self) {
        for source in 0..self.sources.len() {
            self.given_up(source);
            let closed = &self.closed;
            let open = self.oracle[source].buckets.iter_mut().filter(|(index, _)| !closed.contains(index));
            open.filter(|(_, bucket)| **bucket == Bucket::Recorded).for_each(|(_, bucket)| *bucket = Bucket::Lost);
        }
    }

    /// Compares the ledger after the run with the oracle.
    fn audit(&mut self) {
        if self.abandoned {
            self.abandoned();
        }
        let stop = self.end.0.saturating_sub(u64::from(self.number)).div_ceil(u64::from(self.world.builders));
        assert!(self.closed.range(stop..).next().is_none(), "closed beyond the end");
        assert_eq!(self.builder.next_closed(), None);
        assert_eq!(self.builder.bytes_in_flight(), 0);
        assert_eq!(self.builder.open_event_count(), 0);
        assert!(self.accepted.is_disjoint(&self.rejected));
        let triggered = self.builder.trigger_counts();
        assert_eq!(triggered.level2, self.closed.len() as u64);
        assert_eq!(triggered.filter, (self.closed.len() - self.filtered.len()) as u64);
        assert_eq!(self.builder.event_counts().0, triggered.filter);
        // A number that no source mentions is no event, though level 2 was asked about it.
        let fetched = |index: &&u64| self.oracle.iter().any(|o| o.buckets.get(index) == Some(&Bucket::Rejected));
        // An event at or beyond the end was decided on, and is no event of the run.
        let seen = self.rejected.range(..stop).filter(fetched).count() as u64;
        let seen = if self.abandoned { 0 } else { seen };
        assert!((seen..=self.rejected.len() as u64).contains(&(triggered.level1 - triggered.level2)));
        let ledger = self.builder.final_ledger(true, &[], 0);
        for (source, (oracle, books)) in self.oracle.iter().zip(&ledger.sources).enumerate() {
            let mentioned: BTreeSet<u64> = oracle
                .heard
                .range(..oracle.next)
                .flat_map(|(_, (first, count, _))| *first..*first + u64::from(*count))
                .collect();
            let found = [
                (Bucket::Recorded, books.recorded),
                (Bucket::DroppedNewest, books.dropped_newest),
                (Bucket::DroppedOldest, books.dropped_oldest),
                (Bucket::Corrupt, books.corrupt),
                (Bucket::Lost, books.lost),
                (Bucket::Rejected, books.rejected),
                (Bucket::BeyondEnd, books.beyond_end),
                (Bucket::Late, books.late),
            ];
            // Fragments that were dropped or lost after they were too late are in one bucket or the other, which only
            // the builder can tell. So are fragments that were not needed any more, or too late for an event that was
            // rejected.
            let too_late =
                |index: &u64| oracle.given_up || oracle.timed_out.contains(index) || !self.closed.contains(index);
            for (bucket, count) in found {
                let default = |index: &u64| match index {
                    index if *index >= stop => Bucket::BeyondEnd,
                    index if self.rejected.contains(index) => Bucket::Rejected,
                    _ => Bucket::Late,
                };
                let bucket_of = |index: &u64| oracle.buckets.get(index).copied().unwrap_or_else(|| default(index));
                let (unsure, sure): (Vec<u64>, Vec<u64>) =
                    mentioned.iter().copied().filter(|index| bucket_of(index) == bucket).partition(too_late);
                let (least, all) = (sure.len() as u64, (sure.len() + unsure.len()) as u64);
                let (rejected, fetched) = self.rejections(&mentioned, oracle);
                let good = match bucket {
                    Bucket::Recorded => count == all,
                    Bucket::Corrupt if rejected == 0 => count == all,
                    Bucket::Late => count >= all,
                    Bucket::Rejected => (fetched..=rejected).contains(&count),
                    // The fragment may have been too late, or rejected, before the end was set.
                    Bucket::BeyondEnd => (all.saturating_sub(books.late + books.rejected)..=all).contains(&count),
                    _ => (least..=all).contains(&count),
                };
                assert!(good, "source {source}, {bucket:?} {least} to {all}: {books:#?}");
            }
            let sum: u64 = found.into_iter().map(|(_, count)| count).sum();
            assert_eq!(sum, mentioned.len() as u64, "source {source}: {books:#?}");
            assert_eq!((books.accepted, books.unaccounted), (sum, 0), "{books:#?}");
            let last = mentioned.last().copied().unwrap_or(0);
            let skipped = oracle.silent.range(..last).count() as u64;
            let exact = !oracle.given_up;
            assert!(books.skipped == skipped || !exact && books.skipped < skipped, "not {skipped}: {books:#?}");
            for (index, bucket) in &oracle.buckets {
                let filtered = *bucket == Bucket::Rejected && self.filtered.contains(index);
                let whole = *bucket == Bucket::Recorded || filtered;
                assert!(self.closed.contains(index) || !whole, "recorded, and event {index} was never closed");
                assert!(whole != oracle.missing.contains(index) || !self.closed.contains(index));
            }
        }
    }
}

impl Run<'_> {
    /// Returns the number of these fragments that may count as rejected, and the number of those that must: those that
    /// were in place.
    fn rejections(&self, mentioned: &BTreeSet<u64>, oracle: &Oracle) -> (u64, u64) {
        let in_place = |index: &&u64| oracle.buckets.get(*index) == Some(&Bucket::Rejected);
        let may = |index: &&u64| self.rejected.contains(*index) || in_place(index);
        (mentioned.iter().filter(may).count() as u64, mentioned.iter().filter(in_place).count() as u64)
    }
}

impl Oracle {
    /// Counts a ticket that is in order as dropped if it was announced so, and nothing happened to it before.
    fn drops(&mut self, ticket: u64) {
        let (first, count, how) = self.heard[&ticket];
        if !how.is_dropped() || !self.done.insert(ticket) {
            return;
        }
        let bucket = if how == Disposition::DroppedNewest { Bucket::DroppedNewest } else { Bucket::DroppedOldest };
        for index in first..first + u64::from(count) {
            self.put(index, bucket);
        }
    }

    /// Counts a fragment. The first decision on it holds.
    fn put(&mut self, index: u64, bucket: Bucket) {
        let is_beyond = self.stop.is_some_and(|stop| index >= stop);
        self.buckets.entry(index).or_insert(if is_beyond { Bucket::BeyondEnd } else { bucket });
    }

    /// Ends the run before this event.
    fn end_at(&mut self, stop: u64) {
        self.stop = Some(stop);
        let moved = [Bucket::Recorded, Bucket::DroppedNewest, Bucket::DroppedOldest, Bucket::Lost];
        let beyond = self.buckets.range_mut(stop..).filter(|(_, bucket)| moved.contains(bucket));
        beyond.for_each(|(_, bucket)| *bucket = Bucket::BeyondEnd);
    }

    fn next_in_order(&mut self) -> Option<Announcement> {
        self.early.remove(&self.next)
    }

    /// Forgets early messages, which are to be repeated on the next connection.
    fn forget_early(&mut self) {
        self.early.clear();
        self.last_words = None;
    }
}
