//! A builder at a switch port, in a model of the network: its requests keep the port busy and do not overflow it.

use crate::build::rig::{RUN, config, fragment, id, lay};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig, Check, Path, Window};
use thalweg_wire::{Announcement, Disposition, EventId};

/// Rate of the port in bytes per second, and length of its buffer in bytes.
const PORT: f64 = 118e6;
const BUFFER: u64 = 340_000;
const SEGMENT: u32 = 1448;

/// Properties of the sources' data.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    events: u64,
    /// One of this number of segments is lost on its way, and is repeated a round trip later; data after it wait.
    lost_of: u64,
    /// Limits of the payload length in bytes: any number between these two, different for each source and event.
    smallest: usize,
    largest: usize,
}

const EVEN: Traffic = Traffic { events: 200, lost_of: u64::MAX, smallest: 64 << 10, largest: 64 << 10 };

impl Traffic {
    fn payload(&self, source: usize, event: u64) -> usize {
        let mixed = (source as u64 * 1_000_003 + event * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        self.smallest + mixed as usize % (self.largest - self.smallest + 1)
    }

    /// Returns the length of a fragment with its header, as it lies in a slot.
    fn slot_bytes(&self, source: usize, event: u64) -> u32 {
        self.payload(source, event).next_multiple_of(64) as u32 + 64
    }

    fn offer(&self, source: usize, event: u64) -> Announcement {
        let bytes = self.slot_bytes(source, event);
        Announcement {
            ticket: event,
            first: EventId(event),
            arena_offset: 0,
            count: 1,
            bytes,
            disposition: Disposition::Held,
        }
    }
}

/// An event of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// A fetch reaches its source.
    Asked {
        source: usize,
        ticket: u64,
        bytes: u32,
    },
    /// Data reach the port, and after it the builder.
    AtPort {
        source: usize,
        ticket: u64,
        bytes: u32,
    },
    Arrived {
        source: usize,
        ticket: u64,
        bytes: u32,
    },
    /// The offer of a slot that was released and filled again reaches the builder.
    Offered {
        source: usize,
        ticket: u64,
    },
}

#[derive(Debug)]
struct Network {
    builder: Builder,
    traffic: Traffic,
    /// Number of slots of each source: as many as events can be open, and two.
    slots: u64,
    one_way: Duration,
    /// For each source's link: bytes per second, and the time until which it is busy.
    links: Vec<(f64, Duration)>,
    /// For each source: the time until which its arrived data wait after a gap.
    gaps: Vec<Duration>,
    segments: u64,
    port_busy: Duration,
    longest_queue: f64,
    now: Duration,
    next: BinaryHeap<Reverse<(Duration, u64, Next)>>,
    happened: u64,
    here: HashMap<(usize, u64), u32>,
    complete: u64,
    /// Number of bytes that have arrived, by time.
    arrived: Vec<(Duration, u64)>,
}

impl Network {
    /// Returns a network of sources that always have more data, with links of these rates.
    fn new(links: &[f64], one_way: Duration, traffic: Traffic) -> Self {
        let path = Path { rate: PORT, round_trip: 2 * one_way, buffer: BUFFER, segment: SEGMENT, unasked: 0 };
        let event = links.len() * (traffic.smallest + traffic.largest) / 2;
        let open_events = 4 * (path.widest_window_bytes() / event as u64) as u32 + 8;
        let slots = u64::from(open_events) + 2;
        let mut builder = Builder::new(BuilderConfig {
            window: Window::Credit(path),
            open_events,
            max_payload: traffic.largest as u32,
            check: Check::Headers,
            deadline: Duration::from_secs(3600),
            ..config(links.len() as u16)
        });
        for source in 0..links.len() {
            builder.source_connected(source, slots as u32, false);
            for event in 0..slots.min(traffic.events) {
                assert!(!builder.handle_offer(source, traffic.offer(source, event), Duration::ZERO).unwrap());
            }
        }
        Self {
            builder,
            traffic,
            slots,
            one_way,
            links: links.iter().map(|rate| (*rate, Duration::ZERO)).collect(),
            gaps: vec![Duration::ZERO; links.len()],
            segments: 0,
            port_busy: Duration::ZERO,
            longest_queue: 0.0,
            now: Duration::ZERO,
            next: BinaryHeap::new(),
            happened: 0,
            here: HashMap::new(),
            complete: 0,
            arrived: Vec::new(),
        }
    }

    fn after(&mut self, at: Duration, next: Next) {
        self.happened += 1;
        self.next.push(Reverse((at, self.happened, next)));
    }

    fn run(mut self) -> Self {
        loop {
            while let Some(fetch) = self.builder.next_fetch(self.now) {
                let (source, ticket, bytes) = (fetch.source, fetch.offer.ticket, fetch.range.len() as u32);
                self.after(self.now + self.one_way, Next::Asked { source, ticket, bytes });
            }
            let next = self.next.peek().map(|Reverse((at, ..))| *at);
            // Pacing allows more requests before anything else happens.
            if let Some(at) = self.builder.next_request_time().filter(|at| next.is_none_or(|next| *at < next)) {
                self.now = self.now.max(at);
                continue;
            }
            let Some(Reverse((at, _, next))) = self.next.pop() else { return self };
            self.now = at;
            self.happens(next);
            while let Some(closed) = self.builder.next_closed() {
                assert_eq!((closed.count, closed.missing.len()), (1, 0));
                self.complete += 1;
            }
        }
    }

    fn happens(&mut self, next: Next) {
        let took = |bytes: u32, rate: f64| Duration::from_secs_f64(f64::from(bytes) / rate);
        match next {
            Next::Asked { source, ticket, mut bytes } => {
                while bytes > 0 {
                    let segment = bytes.min(SEGMENT);
                    bytes -= segment;
                    let (rate, busy) = &mut self.links[source];
                    *busy = self.now.max(*busy) + took(segment, *rate);
                    let at = *busy + self.one_way;
                    self.after(at, Next::AtPort { source, ticket, bytes: segment });
                }
            }
            Next::AtPort { source, ticket, bytes } => {
                self.port_busy = self.now.max(self.port_busy) + took(bytes, PORT);
                let queue = (self.port_busy - self.now).as_secs_f64() * PORT;
                self.longest_queue = self.longest_queue.max(queue);
                self.segments += 1;
                let lost = self.segments.is_multiple_of(self.traffic.lost_of);
                let here = self.port_busy + if lost { 2 * self.one_way } else { Duration::ZERO };
                self.gaps[source] = self.gaps[source].max(here);
                self.builder.report_losses(source, u64::from(bytes), if lost { u64::from(bytes) } else { 0 });
                self.after(self.gaps[source], Next::Arrived { source, ticket, bytes });
            }
            Next::Arrived { source, ticket, bytes } => {
                self.builder.count_received(source, u64::from(bytes), self.now);
                let before = self.arrived.last().map_or(0, |(_, bytes)| *bytes);
                self.arrived.push((self.now, before + u64::from(bytes)));
                let here = self.here.entry((source, ticket)).or_default();
                *here += bytes;
                if *here == self.traffic.slot_bytes(source, ticket) {
                    let slot = slot(source, ticket, self.traffic.payload(source, ticket));
                    let mut arrival = self.builder.arrived(source, ticket, &slot[..]);
                    for (at, header) in &mut arrival {
                        assert_eq!((header.event.0, at), (ticket, 0));
                    }
                    arrival.finish().unwrap();
                    let next = ticket + self.slots;
                    if next < self.traffic.events {
                        self.after(self.now + 2 * self.one_way, Next::Offered { source, ticket: next });
                    }
                }
            }
            Next::Offered { source, ticket } => {
                let offer = self.traffic.offer(source, ticket);
                assert!(!self.builder.handle_offer(source, offer, self.now).unwrap());
            }
        }
    }

    /// Returns the rate of the middle half of all bytes, in bytes per second.
    fn goodput(&self) -> f64 {
        assert_eq!(self.complete, self.traffic.events, "every event is complete");
        let all = self.arrived[self.arrived.len() - 1].1;
        let at = |bytes: u64| self.arrived[self.arrived.partition_point(|(_, arrived)| *arrived < bytes)];
        let (from, to) = (at(all / 4), at(all / 4 * 3));
        (to.1 - from.1) as f64 / (to.0 - from.0).as_secs_f64()
    }
}

/// Returns a fragment, as it lies in a slot.
fn slot(source: usize, event: u64, payload: usize) -> Vec<u8> {
    let (header, payload) = fragment(source, event, &vec![0; payload]);
    assert_eq!((header.run, header.source), (RUN, id(source)));
    lay(&[(header, payload)])
}

#[track_caller]
fn assert_full_and_safe(links: &[f64], one_way: Duration, traffic: Traffic) {
    let least = if traffic.lost_of < u64::MAX { 0.95 } else { 0.98 };
    assert_carried_and_safe(links, one_way, traffic, least);
}

/// Checks that at least this part of what the links allow is carried, and that the port does not overflow.
#[track_caller]
fn assert_carried_and_safe(links: &[f64], one_way: Duration, traffic: Traffic, least: f64) {
    let network = Network::new(links, one_way, traffic).run();
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let ceiling = PORT.min(slowest * links.len() as f64);
    let share = network.goodput() / ceiling;
    assert!(share > least, "{} sources, {one_way:?}: {share}", links.len());
    assert!(network.longest_queue < BUFFER as f64, "{} sources, {one_way:?}: {}", links.len(), network.longest_queue);
}

/// Tests sources with links of these rates, near and far.
#[track_caller]
fn assert_full_and_safe_at_any_distance(links: &[f64]) {
    for one_way in [100, 1_000, 10_000].map(Duration::from_micros) {
        assert_full_and_safe(links, one_way, EVEN);
    }
}

#[test]
fn the_port_is_full_and_does_not_overflow() {
    for sources in [1, 3, 10, 40] {
        assert_full_and_safe_at_any_distance(&vec![PORT; sources]);
    }
}

/// A source whose fragments happen to be long falls behind. If the others went on regardless, all would wait at the
/// last event that may be open.
#[test]
fn no_source_runs_far_ahead_of_the_others() {
    let uneven = Traffic { events: 60, lost_of: u64::MAX, smallest: 1 << 10, largest: 1 << 20 };
    assert_full_and_safe(&[PORT; 20], Duration::from_millis(50), uneven);
}

#[test]
fn a_segment_lost_now_and_then_does_not_keep_the_port_waiting() {
    for sources in [1, 3, 10] {
        for one_way in [1, 10].map(Duration::from_millis) {
            assert_full_and_safe(&vec![PORT; sources], one_way, Traffic { events: 400, lost_of: 1000, ..EVEN });
        }
    }
}

#[test]
fn a_source_that_is_just_quick_enough_is_kept_busy() {
    let mut links = vec![PORT; 10];
    links[0] = PORT / 10.0;
    assert_full_and_safe_at_any_distance(&links);
}

#[test]
fn the_others_wait_for_a_source_that_is_not_quick_enough_and_for_nothing_else() {
    let mut links = vec![PORT; 4];
    links[2] = PORT / 10.0;
    assert_full_and_safe_at_any_distance(&links);
}

/// The window holds about three usual pieces, so three such sources would be active at a time.
#[test]
fn sources_that_are_all_slower_than_the_port_fill_it_together() {
    for (sources, part) in [(8, 0.1), (8, 0.2), (8, 0.5), (16, 0.1), (16, 0.05)] {
        for one_way in [20, 1_000].map(Duration::from_micros) {
            let traffic = Traffic { events: 100, ..EVEN };
            assert_carried_and_safe(&vec![part * PORT; sources], one_way, traffic, 0.95);
        }
    }
    assert_carried_and_safe(&[0.02 * PORT; 40], Duration::from_micros(100), EVEN, 0.95);
}

#[test]
fn sources_of_different_rates_below_that_of_the_port_wait_for_the_slowest_only() {
    let links: Vec<f64> = (0..12).map(|source| PORT / 12.0 * f64::from(1 + source % 3)).collect();
    assert_carried_and_safe(&links, Duration::from_micros(100), EVEN, 0.95);
}

/// A slow source is fetched from ahead of the others. If there is no place for that, it must not be tried again and
/// again instead of the others.
#[test]
fn without_a_place_for_what_is_ahead_those_behind_are_asked() {
    let links = [PORT / 10.0, PORT, PORT];
    let Network { mut builder, now, .. } = Network::new(&links, Duration::from_micros(100), EVEN).run();
    let short = Traffic { smallest: 1 << 10, largest: 1 << 10, ..EVEN };
    for source in 0..links.len() {
        for event in EVEN.events..EVEN.events + 4 {
            assert!(!builder.handle_offer(source, short.offer(source, event), now).unwrap());
        }
    }
    let mut asked = std::iter::from_fn(|| builder.next_fetch(now));
    let ahead = asked.find(|fetch| fetch.offer.first.0 > EVEN.events).expect("one that is ahead");
    assert_eq!(ahead.source, 0, "only the slow one is ahead");
    assert!(builder.cancel_fetch(ahead.source, ahead.offer.ticket), "there is something else to try");
    let next = builder.next_fetch(now).expect("the others have nothing under way");
    assert_eq!((next.source, next.offer.first.0), (1, EVEN.events));
}
