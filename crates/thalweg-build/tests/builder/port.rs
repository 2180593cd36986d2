//! A builder behind a switch port, in a model of the network: what it asks for keeps the port busy and does not overflow it.

use crate::rig::{RUN, config, fragment, id, lay};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;
use thalweg_build::{Builder, BuilderConfig, Check, Path, Window};
use thalweg_wire::{Announcement, Disposition, EventId};

/// Bytes in a second that the port carries, and that it holds.
const PORT: f64 = 118e6;
const BUFFER: u64 = 340_000;
const SEGMENT: u32 = 1448;
const EVENTS: u64 = 200;
const PAYLOAD: usize = 64 << 10;
/// A fragment with its header.
const SLOT: u32 = PAYLOAD as u32 + 64;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// A fetch reaches its source.
    Asked {
        source: usize,
        ticket: u64,
        bytes: u32,
    },
    /// Data reach the port, and behind it the builder.
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
    /// The pace lets more be asked for.
    Wake,
}

#[derive(Debug)]
struct Network {
    builder: Builder,
    one_way: Duration,
    /// Of each source's link: bytes in a second, and until when it is busy.
    links: Vec<(f64, Duration)>,
    port_busy: Duration,
    longest_queue: f64,
    now: Duration,
    next: BinaryHeap<Reverse<(Duration, u64, Next)>>,
    happened: u64,
    here: HashMap<(usize, u64), u32>,
    /// When each event was complete.
    complete: Vec<Duration>,
}

impl Network {
    /// Sources with links of these rates have all their events ready.
    fn new(links: &[f64], one_way: Duration) -> Self {
        let path = Path { rate: PORT, round_trip: 2 * one_way, buffer: BUFFER, segment: SEGMENT, unasked: 0 };
        let events_in_window = path.widest() / (links.len() * PAYLOAD) as u64;
        let mut builder = Builder::new(BuilderConfig {
            window: Window::Credit(path),
            open_events: 4 * (events_in_window as u32 + 4),
            max_payload: PAYLOAD as u32,
            check: Check::Headers,
            deadline: Duration::from_secs(3600),
            ..config(links.len() as u16)
        });
        for source in 0..links.len() {
            builder.connected(source, EVENTS as u32, false);
            for event in 0..EVENTS {
                let (first, disposition) = (EventId(event), Disposition::Held);
                let offer = Announcement { ticket: event, first, arena_offset: 0, count: 1, bytes: SLOT, disposition };
                assert!(!builder.offered(source, offer, Duration::ZERO).unwrap());
            }
        }
        Self {
            builder,
            one_way,
            links: links.iter().map(|rate| (*rate, Duration::ZERO)).collect(),
            port_busy: Duration::ZERO,
            longest_queue: 0.0,
            now: Duration::ZERO,
            next: BinaryHeap::new(),
            happened: 0,
            here: HashMap::new(),
            complete: Vec::new(),
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
            if let Some(at) = self.builder.next_ask() {
                self.after(at, Next::Wake);
            }
            let Some(Reverse((at, _, next))) = self.next.pop() else { return self };
            self.now = at;
            self.happens(next);
            while let Some(closed) = self.builder.next_closed() {
                assert_eq!((closed.count, closed.missing.len()), (1, 0));
                self.complete.push(self.now);
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
                self.after(self.port_busy, Next::Arrived { source, ticket, bytes });
            }
            Next::Arrived { source, ticket, bytes } => {
                self.builder.received(source, u64::from(bytes), self.now);
                let here = self.here.entry((source, ticket)).or_default();
                *here += bytes;
                if *here == SLOT {
                    let slot = slot(source, ticket);
                    self.builder.arrived(source, ticket, &slot, |event, at| assert_eq!((event.0, at), (ticket, 0)));
                }
            }
            Next::Wake => {}
        }
    }

    /// Bytes in a second, from when a quarter of the events was complete.
    fn goodput(&self) -> f64 {
        assert_eq!(self.complete.len() as u64, EVENTS, "every event is complete");
        let from = self.complete.len() / 4;
        let events = (self.complete.len() - 1 - from) as f64;
        let bytes = events * self.links.len() as f64 * f64::from(SLOT);
        bytes / (self.complete[self.complete.len() - 1] - self.complete[from]).as_secs_f64()
    }
}

/// A fragment, as it lies in a slot.
fn slot(source: usize, event: u64) -> Vec<u8> {
    let (header, payload) = fragment(source, event, &[0; PAYLOAD]);
    assert_eq!((header.run, header.source), (RUN, id(source)));
    lay(&[(header, payload)])
}

#[track_caller]
fn assert_full_and_safe(links: &[f64]) {
    for one_way in [100, 1_000, 10_000].map(Duration::from_micros) {
        let network = Network::new(links, one_way).run();
        let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
        let ceiling = PORT.min(slowest * links.len() as f64);
        let share = network.goodput() / ceiling;
        assert!(share > 0.98, "{} sources, {one_way:?}: {share}", links.len());
        assert!(
            network.longest_queue < BUFFER as f64,
            "{} sources, {one_way:?}: {}",
            links.len(),
            network.longest_queue
        );
    }
}

#[test]
fn the_port_is_full_and_does_not_overflow() {
    for sources in [1, 3, 10, 40] {
        assert_full_and_safe(&vec![PORT; sources]);
    }
}

#[test]
fn a_source_that_is_just_quick_enough_is_kept_busy() {
    let mut links = vec![PORT; 10];
    links[0] = PORT / 10.0;
    assert_full_and_safe(&links);
}

#[test]
fn the_others_wait_for_a_source_that_is_not_quick_enough_and_for_nothing_else() {
    let mut links = vec![PORT; 4];
    links[2] = PORT / 10.0;
    assert_full_and_safe(&links);
}
