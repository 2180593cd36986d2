//! Sending half of one class: packets until they are acknowledged, and which of them are to be sent again.

use crate::event::{ConnectionId, Event};
use crate::frame::{Class, Status, WINDOW_PACKETS};
use crate::receiving::{NOT_READY_UNIT_NANOS, window_place};
use crate::round_trip::RoundTrip;
use crate::{ConnectionCounters, Packet};
use std::collections::VecDeque;

/// Sending half of one class of a connection. Bit *i* of its bitmaps stands for sequence number `below` + *i*.
#[derive(Debug)]
pub(crate) struct SendingHalf<P> {
    /// Packets by their numbers modulo the window; allocated with the first packet.
    places: Vec<Place<P>>,
    /// Number below which all packets are acknowledged, the next to be sent for the first time, and the next to be queued.
    below: u32,
    unsent: u32,
    end: u32,
    acknowledged: u128,
    /// Packets that the peer has and has not accepted yet.
    held: u128,
    /// Packets on the way that others, sent later, have overtaken.
    overtaken: u128,
    /// Packets to be sent again.
    lost: u128,
    /// Credit granted, used and queued for, in bytes since the beginning.
    granted: u64,
    sent_bytes: u64,
    queued_bytes: u64,
    /// Credit that the peer knows to be wanted, in bytes since the beginning.
    announced: u64,
    /// Time before which nothing is to be sent: the peer is not ready.
    not_before: u64,
}

#[derive(Debug)]
struct Place<P> {
    packet: Option<P>,
    cost: u32,
    transmissions: u32,
    sent_at: u64,
    overtaken_at: u64,
}

impl<P> Place<P> {
    fn new(packet: Option<P>, cost: u32) -> Self {
        Self { packet, cost, transmissions: 0, sent_at: 0, overtaken_at: 0 }
    }
}

/// Effects of a status block.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Progress {
    /// Time at which the newest of the newly acknowledged packets was sent.
    pub(crate) newest_sent_at: u64,
    /// True if there is a new acknowledgement or credit.
    pub(crate) is_progress: bool,
}

/// State of a connection that its sending halves share.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    pub(crate) in_flight: &'a mut u64,
    pub(crate) round_trip: &'a mut RoundTrip,
    pub(crate) counters: &'a mut ConnectionCounters,
    pub(crate) now: u64,
}

impl<P: Packet> SendingHalf<P> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            below: 0,
            unsent: 0,
            end: 0,
            acknowledged: 0,
            held: 0,
            overtaken: 0,
            lost: 0,
            granted: 0,
            sent_bytes: 0,
            queued_bytes: 0,
            announced: 0,
            not_before: 0,
        }
    }

    /// Queues a packet that costs this number of bytes of credit, and returns its number; the packet, if the window is full.
    pub(crate) fn push_packet(&mut self, packet: P, cost: u32) -> Result<u32, P> {
        if self.free_places() == 0 {
            return Err(packet);
        }
        if self.places.is_empty() {
            self.places.resize_with(WINDOW_PACKETS as usize, || Place::new(None, 0));
        }
        let sequence = self.end;
        self.places[window_place(sequence)] = Place::new(Some(packet), cost);
        self.end = sequence.wrapping_add(1);
        self.queued_bytes += u64::from(cost);
        Ok(sequence)
    }

    /// Returns the number of packets that may be queued.
    pub(crate) fn free_places(&self) -> u32 {
        WINDOW_PACKETS - self.end.wrapping_sub(self.below)
    }

    /// Returns the credit left for packets that are not queued yet, in bytes.
    pub(crate) fn credit_left(&self) -> u64 {
        self.granted.saturating_sub(self.queued_bytes)
    }

    /// True if every packet was acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.below == self.end
    }

    /// True if a packet was sent that is not acknowledged.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.below != self.unsent
    }

    /// Returns the credit that could be used, with a delay window of this length, in bytes since the beginning.
    pub(crate) fn wanted_bytes(&self, window_bytes: u64) -> u64 {
        self.queued_bytes.min(self.sent_bytes.saturating_add(window_bytes))
    }

    /// True if a packet waits for credit.
    pub(crate) fn lacks_credit(&self) -> bool {
        self.unsent != self.end
            && self.sent_bytes + u64::from(self.places[window_place(self.unsent)].cost) > self.granted
    }

    /// True if a packet waits for credit, and the peer has granted all that it knows to be wanted.
    pub(crate) fn has_unannounced_demand(&self) -> bool {
        self.lacks_credit() && self.announced <= self.granted
    }

    /// Records that a frame announces the credit that is wanted.
    pub(crate) fn mark_announced(&mut self, wanted: u64) {
        self.announced = wanted;
    }

    /// Returns the packet to be sent next and the bytes it costs, credit and readiness permitting: a lost one before a
    /// new one.
    pub(crate) fn next_packet(&self, now: u64) -> Option<(u32, u32)> {
        if now < self.not_before {
            return None;
        }
        if self.lost != 0 {
            let sequence = self.below.wrapping_add(self.lost.trailing_zeros());
            return Some((sequence, self.places[window_place(sequence)].cost));
        }
        (self.unsent != self.end && !self.lacks_credit())
            .then(|| (self.unsent, self.places[window_place(self.unsent)].cost))
    }

    /// Records that a packet is sent at `sent_at`, and returns the packet.
    pub(crate) fn mark_sent(&mut self, sequence: u32, sent_at: u64, sender: &mut Sender<'_>) -> Option<&P> {
        let place = &mut self.places[window_place(sequence)];
        place.sent_at = sent_at;
        place.transmissions += 1;
        *sender.in_flight += u64::from(place.cost);
        if sequence == self.unsent {
            self.unsent = sequence.wrapping_add(1);
            self.sent_bytes += u64::from(place.cost);
        } else {
            self.lost &= !(1 << sequence.wrapping_sub(self.below));
            sender.counters.sent_again += 1;
        }
        sender.counters.packets_sent += 1;
        place.packet.as_ref()
    }

    /// Processes a status block. `echo_sent_at` is the time at which the newest frame was sent that the peer had received when
    /// it sent the block, if that is known; `is_newest` is false for a frame that others have overtaken.
    pub(crate) fn on_status(
        &mut self,
        status: &Status,
        echo_sent_at: Option<u64>,
        is_newest: bool,
        sender: &mut Sender<'_>,
    ) -> Progress {
        let mut progress = Progress::default();
        let sent = low_bits(self.unsent.wrapping_sub(self.below));
        let Some([acknowledged, received]) = self.align_bitmaps(status) else { return progress };
        let fresh = acknowledged & sent & !self.acknowledged;
        let arrived = (acknowledged | received) & sent & !self.acknowledged & !self.held;
        for at in set_bits(arrived) {
            self.on_arrival(at, echo_sent_at, sender);
            let sent_at = self.places[window_place(self.below.wrapping_add(at))].sent_at;
            progress.newest_sent_at = progress.newest_sent_at.max(sent_at);
        }
        self.acknowledged |= fresh;
        self.held = (self.held | arrived) & !self.acknowledged;
        if is_newest {
            // A packet that arrived and is not there any more was refused.
            let refused = self.held & !received;
            self.held &= !refused;
            self.lost |= refused;
            if status.not_ready_10us > 0 {
                sender.counters.refused_by_peer += u64::from(refused.count_ones());
                self.not_before = sender.now + u64::from(status.not_ready_10us) * NOT_READY_UNIT_NANOS;
            } else {
                self.not_before = 0;
            }
        }
        progress.is_progress = fresh != 0 || arrived != 0 || status.granted > self.granted;
        self.granted = self.granted.max(status.granted);
        progress
    }

    /// Returns the bitmaps of acknowledged and received packets, with bit 0 standing for `below`; `None` for numbers that
    /// were never sent.
    fn align_bitmaps(&self, status: &Status) -> Option<[u128; 2]> {
        let ahead = status.below.wrapping_sub(self.below);
        let behind = self.below.wrapping_sub(status.below);
        let bitmaps = [status.acknowledged, status.received];
        if ahead <= self.unsent.wrapping_sub(self.below) {
            Some(bitmaps.map(|bitmap| low_bits(ahead) | bitmap.checked_shl(ahead).unwrap_or(0)))
        } else if behind <= u32::MAX / 2 {
            Some(bitmaps.map(|bitmap| bitmap.checked_shr(behind).unwrap_or(0)))
        } else {
            None
        }
    }

    /// Processes the news that a packet has arrived.
    fn on_arrival(&mut self, at: u32, echo_sent_at: Option<u64>, sender: &mut Sender<'_>) {
        let (bit, place) = (1 << at, &self.places[window_place(self.below.wrapping_add(at))]);
        if self.lost & bit == 0 {
            *sender.in_flight = sender.in_flight.saturating_sub(u64::from(place.cost));
        }
        // A copy that was sent after all that the peer has received cannot be the one that arrived (Eifel, RFC 3522).
        let is_first_copy = place.transmissions == 1;
        let was_sent_in_vain = !is_first_copy && echo_sent_at.is_some_and(|newest| place.sent_at > newest);
        // Of three copies, the second may be the one that arrived: it was not late since the first was overtaken.
        if place.overtaken_at > 0 && (is_first_copy || was_sent_in_vain && place.transmissions == 2) {
            sender.round_trip.record_reordering(sender.now.saturating_sub(place.overtaken_at), sender.now);
        }
        sender.counters.sent_in_vain += u64::from(was_sent_in_vain);
        self.lost &= !bit;
        self.overtaken &= !bit;
    }

    /// Passes acknowledged packets to `events`, in order.
    pub(crate) fn release_packets(&mut self, connection: ConnectionId, class: Class, events: &mut VecDeque<Event<P>>) {
        let whole = self.acknowledged.trailing_ones();
        for _ in 0..whole {
            let sequence = self.below;
            if let Some(packet) = self.places[window_place(sequence)].packet.take() {
                events.push_back(Event::Acknowledged { connection, class, sequence, packet });
            }
            self.below = sequence.wrapping_add(1);
        }
        for bitmap in [&mut self.acknowledged, &mut self.held, &mut self.overtaken, &mut self.lost] {
            *bitmap = bitmap.checked_shr(whole).unwrap_or(0);
        }
    }

    /// Marks packets on the way that were sent before `newest`, a time of sending from which something has arrived.
    pub(crate) fn mark_overtaken(&mut self, newest: u64, now: u64) {
        let sent = low_bits(self.unsent.wrapping_sub(self.below));
        let candidates = sent & !self.acknowledged & !self.held & !self.lost & !self.overtaken;
        for at in set_bits(candidates) {
            let place = &mut self.places[window_place(self.below.wrapping_add(at))];
            if place.sent_at < newest {
                place.overtaken_at = now.max(1);
                self.overtaken |= 1 << at;
            }
        }
    }

    /// Marks packets as lost that were overtaken too long ago (RFC 8985, with time alone).
    pub(crate) fn mark_lost(&mut self, sender: &mut Sender<'_>) {
        if self.overtaken == 0 {
            return;
        }
        let tolerance = sender.round_trip.reorder_tolerance(sender.now);
        for at in set_bits(self.overtaken) {
            let place = &self.places[window_place(self.below.wrapping_add(at))];
            if place.overtaken_at + tolerance <= sender.now {
                *sender.in_flight = sender.in_flight.saturating_sub(u64::from(place.cost));
                self.overtaken &= !(1 << at);
                self.lost |= 1 << at;
            }
        }
    }

    /// Marks the oldest packet on the way as lost, since no answer comes: the last resort.
    pub(crate) fn mark_oldest_lost(&mut self, sender: &mut Sender<'_>) {
        let sent = low_bits(self.unsent.wrapping_sub(self.below));
        let on_the_way = sent & !self.acknowledged & !self.held & !self.lost;
        if let Some(at) = set_bits(on_the_way).next() {
            let cost = self.places[window_place(self.below.wrapping_add(at))].cost;
            *sender.in_flight = sender.in_flight.saturating_sub(u64::from(cost));
            self.overtaken &= !(1 << at);
            self.lost |= 1 << at;
            sender.counters.sent_by_timer += 1;
        }
    }

    /// Returns the time at which [`mark_lost`](Self::mark_lost) or [`next_packet`](Self::next_packet) has something to do,
    /// if that is known.
    pub(crate) fn next_deadline(&self, round_trip: &RoundTrip, now: u64) -> Option<u64> {
        let overtaken = set_bits(self.overtaken)
            .map(|at| self.places[window_place(self.below.wrapping_add(at))].overtaken_at)
            .min()
            .map(|earliest| earliest + round_trip.reorder_tolerance(now));
        let ready = (self.not_before > now && !self.is_empty()).then_some(self.not_before);
        overtaken.into_iter().chain(ready).min()
    }
}

/// Returns a bitmap whose lowest `count` bits are set.
fn low_bits(count: u32) -> u128 {
    u128::MAX.checked_shr(128 - count.min(128)).unwrap_or(0)
}

/// Returns the numbers of the bits that are set, in order.
fn set_bits(mut bitmap: u128) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (bitmap != 0).then(|| {
            let at = bitmap.trailing_zeros();
            bitmap &= bitmap - 1;
            at
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        half: SendingHalf<Vec<u8>>,
        in_flight: u64,
        round_trip: RoundTrip,
        counters: ConnectionCounters,
    }

    impl World {
        /// Sends five packets, the first with this number, at the times 1 to 5 µs.
        fn with_packets_sent(first: u32) -> Self {
            let half = SendingHalf { below: first, unsent: first, end: first, granted: 100, ..SendingHalf::new() };
            let (round_trip, counters) = (RoundTrip::new(), ConnectionCounters::default());
            let mut world = Self { half, in_flight: 0, round_trip, counters };
            world.round_trip.record_round_trip(10_000);
            for number in 0..5u8 {
                let sequence = world.half.push_packet(vec![number], 10).unwrap();
                assert_eq!(world.half.next_packet(0), Some((sequence, 10)));
                world.send(sequence, 1_000 * (u64::from(number) + 1));
            }
            world
        }

        fn send(&mut self, sequence: u32, now: u64) {
            let Self { half, in_flight, round_trip, counters } = self;
            assert!(half.mark_sent(sequence, now, &mut Sender { in_flight, round_trip, counters, now }).is_some());
        }

        /// Processes a status with these packets accepted, counted from the first, and looks for losses.
        fn on_status(&mut self, below: u32, acknowledged: u128, echo_sent_at: u64, now: u64) {
            let Self { half, in_flight, round_trip, counters } = self;
            let mut sender = Sender { in_flight, round_trip, counters, now };
            let status = Status { below, acknowledged, received: acknowledged, granted: 100, ..Status::EMPTY };
            let progress = half.on_status(&status, Some(echo_sent_at), true, &mut sender);
            half.mark_overtaken(progress.newest_sent_at, now);
            half.mark_lost(&mut sender);
        }
    }

    #[test]
    fn a_packet_that_was_overtaken_for_too_long_is_lost_also_where_numbers_wrap() {
        for first in [0, u32::MAX - 1] {
            let mut world = World::with_packets_sent(first);
            world.on_status(first, 0b0_1110, 0, 12_000);
            assert_eq!(world.half.next_packet(12_000), None, "it may come yet");
            let deadline = world.half.next_deadline(&world.round_trip, 12_000).unwrap();
            assert_eq!(deadline, 12_000 + world.round_trip.reorder_tolerance(12_000));
            world.on_status(first, 0b0_1110, 0, deadline);
            assert_eq!(world.half.next_packet(deadline), Some((first, 10)));
            world.send(first, deadline);
            assert_eq!((world.in_flight, world.counters.sent_again), (20, 1));
            world.on_status(first.wrapping_add(5), 0, deadline, deadline + 10_000);
            let mut events = VecDeque::new();
            world.half.release_packets(ConnectionId { index: 0, generation: 0 }, Class::Posted, &mut events);
            assert_eq!((events.len(), world.half.is_empty(), world.in_flight), (5, true, 0));
            assert_eq!(world.counters.sent_in_vain, 0);
        }
    }

    #[test]
    fn a_first_copy_that_arrives_after_all_teaches_the_tolerance() {
        let mut world = World::with_packets_sent(0);
        world.on_status(0, 0b0_1110, 0, 12_000);
        world.on_status(0, 0b0_1110, 0, 30_000);
        world.send(0, 30_000);
        // The peer has seen no frame of those sent since.
        world.on_status(4, 0, 4_000, 32_000);
        assert_eq!(world.counters.sent_in_vain, 1);
        assert_eq!(world.round_trip.reorder_tolerance(32_000), 30_000, "1.5 times the 20 µs by which it was late");
    }

    /// The second copy arrives while the peer is silent for a while, and a third was sent in vain meanwhile: no packet was
    /// reordered.
    #[test]
    fn a_copy_that_waits_for_a_silent_peer_is_no_reordering() {
        let mut world = World::with_packets_sent(0);
        let before = world.round_trip.reorder_tolerance(12_000);
        world.on_status(0, 0b0_1110, 0, 12_000);
        world.on_status(0, 0b0_1110, 0, 30_000);
        world.send(0, 30_000);
        let World { half, in_flight, round_trip, counters } = &mut world;
        half.mark_oldest_lost(&mut Sender { in_flight, round_trip, counters, now: 60_000_000 });
        world.send(0, 60_000_000);
        // The peer has received the second copy, and nothing that was sent since.
        world.on_status(4, 0, 30_000, 80_000_000);
        assert_eq!((world.counters.sent_in_vain, world.in_flight), (1, 10));
        assert_eq!(world.round_trip.reorder_tolerance(80_000_000), before);
    }

    #[test]
    fn nonsense_and_old_news_change_nothing() {
        let mut world = World::with_packets_sent(0);
        world.on_status(77, u128::MAX, 0, 12_000);
        world.on_status(u32::MAX - 3, 0, 0, 12_000);
        assert_eq!((world.in_flight, world.half.next_packet(12_000)), (50, None));
    }
}
