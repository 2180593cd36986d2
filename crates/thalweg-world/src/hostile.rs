//! A source that breaks the protocol after following it for a while.

use crate::random::Random;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::SlotPool;
use thalweg_link::{Address, Endpoints, Poller, SourceEndpoint, SourceGreeting};
use thalweg_node::{Clock, Handle, Idle, Node, NodeError, SourceReport};
use thalweg_wire::{
    Announcement, Capabilities, Contact, Disposition, EventId, FinalCounters, FragmentHeader, HEADER_LEN, Hello, Left,
    Losses, Message, NotTaken, Room, RoomReport, RunCounters, RunNumber, SourceId, crc32c,
};

const SLOT_COUNT: u32 = 8;
/// Maximum number of its offers that a builder keeps, by the builder's own rule: one for each slot, and as many again
/// in flight.
pub(crate) const MOST_OPEN_OFFERS: u64 = 2 * SLOT_COUNT as u64 + 2;
const SLOT_BYTES: u32 = 4096;
/// Size in bytes of a record in its slots: a header, and as many bytes of payload.
const RECORD_BYTES: usize = 2 * HEADER_LEN;
/// Maximum number of messages that it sends in a turn.
const MOST_AT_ONCE: u64 = 20;

/// A peer with the id of a source that sends arbitrary messages, and correct ones among them, so that the protocol
/// advances.
#[derive(Debug)]
pub(crate) struct Hostile {
    id: SourceId,
    endpoints: Endpoints<dyn SourceEndpoint>,
    /// Pool that keeps its slots in memory.
    _pool: SlotPool,
    builders: Vec<Counterpart>,
    random: Random,
    clock: Arc<dyn Clock>,
    /// Average number of messages of which one breaks a rule.
    breaks_one_in: u64,
    /// Maximum number of offers that it has open.
    open_offers: u64,
    next_turn: Duration,
    until: Duration,
}

/// A builder, as seen by the hostile peer.
#[derive(Debug)]
struct Counterpart {
    address: Address,
    greeting: SourceGreeting,
    started: bool,
    next_ticket: u64,
    next_event: u64,
    released: u64,
    connect_at: Duration,
}

impl Hostile {
    /// Connects to all builders, repeatedly, until `until`. If `floods` is set, it offers more than it has slots for.
    pub(crate) fn new(
        id: SourceId,
        builders: &[Address],
        mut random: Random,
        clock: Arc<dyn Clock>,
        until: Duration,
        floods: bool,
    ) -> Result<Self, NodeError> {
        let mut pool = SlotPool::new("hostile", SLOT_COUNT, SLOT_BYTES as usize)?;
        let mut slots: Vec<_> = std::iter::from_fn(|| pool.take_slot()).collect();
        for slot in &mut slots {
            for (at, record) in slot.chunks_exact_mut(RECORD_BYTES).enumerate() {
                record.copy_from_slice(&draw_record(&mut random, id, at as u64));
            }
        }
        slots.into_iter().for_each(|slot| pool.return_slot(slot));
        let mut endpoints = Endpoints::new()?.with_builders(builders)?;
        endpoints.register_memory(pool.arena())?;
        let session = random.next_u64();
        let count = u32::try_from(builders.len()).unwrap_or(u32::MAX);
        let counterparts = builders.iter().zip(0..).map(|(address, builder)| {
            let hello = Hello {
                session,
                source: id,
                builder,
                builders: count,
                slots: SLOT_COUNT,
                slot_bytes: SLOT_BYTES,
                max_payload: 64,
                capabilities: Capabilities::ASSIGNED,
                description: 2,
            };
            Counterpart {
                address: address.clone(),
                greeting: SourceGreeting { hello, description: "{}".into(), arena: Arc::clone(pool.arena()) },
                started: false,
                next_ticket: 0,
                next_event: u64::from(builder),
                released: 0,
                connect_at: clock.now(),
            }
        });
        let builders = counterparts.collect();
        let breaks_one_in = random.draw_logarithmic(1..1000);
        let next_turn = clock.now();
        let open_offers = if floods { u64::MAX } else { u64::from(SLOT_COUNT) };
        Ok(Self { id, endpoints, _pool: pool, builders, random, clock, breaks_one_in, open_offers, next_turn, until })
    }

    fn receive_messages(&mut self, at: usize) {
        let mut messages = Vec::new();
        if self.endpoints.receive_messages(at, &mut messages).is_err() {
            self.disconnect_from(at);
        }
        let builder = &mut self.builders[at];
        for message in messages {
            match message {
                Message::Start { .. } => builder.started = true,
                Message::Release { below } => builder.released = builder.released.max(below),
                Message::Bye => self.endpoints.close_link(at),
                _ => {}
            }
        }
    }

    fn disconnect_from(&mut self, at: usize) {
        self.endpoints.close_link(at);
        self.builders[at].connect_at = self.clock.now() + self.random.draw_milliseconds(50..3000);
    }

    fn send_messages(&mut self, at: usize) {
        let Self { builders, random, endpoints, breaks_one_in, open_offers, id, .. } = self;
        let builder = &mut builders[at];
        let Some(link) = endpoints.source_link_mut(at).filter(|_| builder.started) else { return };
        for _ in 0..random.draw_from(0..MOST_AT_ONCE) {
            if random.once_in(*breaks_one_in) {
                link.send_message(&draw_message(random, builder, *id));
            } else if builder.next_ticket < builder.released.saturating_add(*open_offers) {
                let stride = u64::from(builder.greeting.hello.builders);
                let offer = honest_offer(builder, random);
                link.announce_offer(&offer);
                builder.next_ticket += 1;
                builder.next_event += u64::from(offer.count) * stride;
            }
        }
    }
}

impl Node for Hostile {
    type Report = SourceReport;

    fn begin(&self, _handle: &Handle) -> Result<(), NodeError> {
        Ok(())
    }

    fn turn(&mut self, woken: &[u64], _handle: &Handle) -> Result<Option<SourceReport>, NodeError> {
        let now = self.clock.now();
        if now >= self.until {
            return Ok(Some(SourceReport::default()));
        }
        let mut ready = Vec::new();
        self.endpoints.poll_peers(now, woken, &mut ready);
        ready.into_iter().for_each(|at| self.receive_messages(at));
        for at in 0..self.builders.len() {
            if self.endpoints.source_link(at).is_none() && self.builders[at].connect_at <= now {
                let Counterpart { address, greeting, .. } = &self.builders[at];
                if self.endpoints.connect_to_builder(at, address, None, greeting).is_err() {
                    self.disconnect_from(at);
                }
            }
        }
        if now >= self.next_turn {
            (0..self.builders.len()).for_each(|at| self.send_messages(at));
            self.next_turn = now + Duration::from_micros(self.random.draw_logarithmic(100..300_000));
        }
        let mut broken = Vec::new();
        self.endpoints.flush_messages(now, &mut broken);
        broken.into_iter().for_each(|(at, _)| self.disconnect_from(at));
        Ok(None)
    }

    fn idle(&mut self) -> Idle {
        let now = self.clock.now();
        if !self.endpoints.prepare_wait() {
            return Idle::Ask(Some(Duration::ZERO));
        }
        let due = self.endpoints.next_timeout().into_iter().chain([self.next_turn, self.until]);
        Idle::Ask(due.min().map(|at| at.saturating_sub(now)))
    }

    fn poller(&self) -> &Arc<Poller> {
        self.endpoints.poller()
    }
}

/// Returns a record that is correct, or nearly so.
fn draw_record(random: &mut Random, source: SourceId, event: u64) -> [u8; RECORD_BYTES] {
    let payload = [u8::try_from(event % 256).unwrap_or(0); HEADER_LEN];
    let header = FragmentHeader {
        run: RunNumber(42),
        event: EventId(event),
        source: if random.once_in(8) { SourceId::new(9, 9) } else { source },
        total_length: 64,
        piece_length: 64,
        payload_crc: if random.once_in(8) { 1 } else { crc32c(&payload) },
        ..FragmentHeader::default()
    };
    let mut record = [0; RECORD_BYTES];
    record[..HEADER_LEN].copy_from_slice(&header.encode());
    record[HEADER_LEN..].copy_from_slice(&payload);
    if random.once_in(8) {
        record[usize::try_from(random.draw_from(0..RECORD_BYTES as u64)).unwrap_or(0)] ^= 1 << random.draw_from(0..8);
    }
    record
}

/// Returns an offer that keeps the rules, of a slot with arbitrary content.
fn honest_offer(builder: &Counterpart, random: &mut Random) -> Announcement {
    let count = u32::try_from(random.draw_from(1..u64::from(SLOT_BYTES) / RECORD_BYTES as u64)).unwrap_or(1);
    let slot = builder.next_ticket % u64::from(SLOT_COUNT);
    let dropped = random.once_in(8);
    Announcement {
        ticket: builder.next_ticket,
        first: EventId(builder.next_event),
        arena_offset: slot * u64::from(SLOT_BYTES),
        count,
        bytes: if dropped { 0 } else { count * u32::try_from(RECORD_BYTES).unwrap_or(u32::MAX) },
        disposition: if dropped { Disposition::DroppedNewest } else { Disposition::Held },
    }
}

/// Returns a number near `to`, or near the end of the range.
fn draw_near(random: &mut Random, to: u64) -> u64 {
    match random.draw_from(0..5) {
        0 => u64::MAX - random.draw_from(0..3),
        1 => random.draw_logarithmic(1..u64::MAX),
        _ => to.wrapping_add(random.draw_from(0..9)).wrapping_sub(4),
    }
}

fn draw_u32(random: &mut Random) -> u32 {
    u32::try_from(random.draw_logarithmic(1..1 << 32)).unwrap_or(u32::MAX)
}

/// Returns any message of a source or of a builder.
fn draw_message(random: &mut Random, builder: &Counterpart, id: SourceId) -> Message {
    let (ticket, event) = (builder.next_ticket, builder.next_event);
    let of_builder = u32::try_from(random.draw_from(0..u64::from(builder.greeting.hello.builders) + 1)).unwrap_or(0);
    match random.draw_from(0..17) {
        0..=4 => Message::Offer(Announcement {
            ticket: draw_near(random, ticket),
            first: EventId(draw_near(random, event)),
            count: draw_u32(random),
            bytes: 64 * (draw_u32(random) >> 20).max(1),
            ..honest_offer(builder, random)
        }),
        5 => Message::Paused { next: EventId(draw_near(random, event)), asked_by: of_builder },
        6 => Message::EndsAt { end: EventId(draw_near(random, event)) },
        7 => Message::Running,
        8 => Message::NotTaken(NotTaken {
            dead_nanos: draw_near(random, 0),
            fragments: draw_near(random, 0),
            of_no_event: draw_near(random, 0),
            device_away: draw_u32(random) & 1 == 1,
        }),
        9 => Message::End(FinalCounters {
            accepted: draw_near(random, event),
            dropped_newest: draw_near(random, 0),
            tickets: draw_near(random, ticket),
            ..FinalCounters::default()
        }),
        10 => Message::Losses(Losses { sent: draw_near(random, 0), again: draw_near(random, 0) }),
        11 => Message::RoomReport(RoomReport {
            room: Room {
                builder: of_builder,
                closed_below: EventId(draw_near(random, event)),
                room: draw_near(random, 8),
                closed: draw_near(random, event),
            },
            contact: random.pick_one(&[Contact::Away, Contact::Connected, Contact::Done]),
            next: EventId(draw_near(random, event)),
            assigned: EventId(draw_near(random, event)),
        }),
        12 => Message::Left(Left { builder: of_builder, accepted: draw_near(random, event), ..Left::default() }),
        13 => Message::Passed { below: EventId(draw_near(random, event)), tickets: draw_near(random, ticket) },
        14 => Message::RunEnded(RunCounters {
            run: RunNumber(draw_u32(random)),
            accepted: draw_near(random, event),
            tickets: draw_near(random, ticket),
            ..RunCounters::default()
        }),
        15 => Message::Hello(Hello { source: id, description: 0, ..builder.greeting.hello }),
        _ => Message::StopAt { end: EventId(draw_near(random, event)), end_here: random.once_in(2) },
    }
}
