//! Receiving half of one class: which packets have arrived, which were accepted, and the credit of the peer.

use crate::frame::{Class, Status, WINDOW_PACKETS};

/// Unit of [`Status::not_ready_10us`], in nanoseconds.
pub(crate) const NOT_READY_UNIT_NANOS: u64 = 10_000;
/// Number of times that the wait before a repeated grant is doubled, at most.
const MAX_REPEAT_BACKOFF: u32 = 9;

/// Receiving half of one class of a connection.
#[derive(Debug)]
pub(crate) struct ReceivingHalf {
    below: u32,
    /// Accepted packets, and those that arrived (accepted ones included): bit *i* stands for `below` + *i*.
    accepted: u128,
    arrived: u128,
    /// Credit that the packets of the window cost, in bytes, by their numbers modulo its length.
    costs: [u32; WINDOW_PACKETS as usize],
    /// Credit granted, that of packets that arrived and were not refused, and that of accepted ones, in bytes since the
    /// beginning.
    granted: u64,
    arrived_bytes: u64,
    accepted_bytes: u64,
    /// Credit that is out and that the port's pool does not count any more, in bytes.
    written_off: u64,
    /// Credit that the peer could use, in bytes since the beginning.
    wanted: u64,
    /// Wait that the upper layer asked for with its latest refusal, in units of 10 µs, and the time at which the wait ends;
    /// it begins with the status that carries it first.
    refused_wait_10us: u16,
    not_ready_until: u64,
    /// True if the class waits for its turn in the port's pool.
    pub(crate) is_waiting: bool,
    /// Time of the latest arrival or grant, in nanoseconds.
    active_at: u64,
    /// Number of times that the status was repeated since then, because a grant was not used, and the last time.
    repeats: u32,
    repeated_at: u64,
}

/// Fate of a packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The packet is new.
    New,
    /// The packet arrived before.
    Repeated,
    /// The packet is ahead of the window: no peer that keeps to the protocol sends it.
    BeyondWindow,
    /// The packet is more than the peer had credit for.
    BeyondCredit,
}

impl ReceivingHalf {
    pub(crate) fn new() -> Self {
        Self {
            below: 0,
            accepted: 0,
            arrived: 0,
            costs: [0; WINDOW_PACKETS as usize],
            granted: 0,
            arrived_bytes: 0,
            accepted_bytes: 0,
            written_off: 0,
            wanted: 0,
            refused_wait_10us: 0,
            not_ready_until: 0,
            is_waiting: false,
            active_at: 0,
            repeats: 0,
            repeated_at: 0,
        }
    }

    /// Processes the arrival of a packet that costs this number of bytes of credit.
    pub(crate) fn on_packet(&mut self, sequence: u32, cost: u32, now: u64) -> Fate {
        let ahead = sequence.wrapping_sub(self.below);
        if ahead >= WINDOW_PACKETS {
            // The numbers before the window, half of all, were received before.
            return if ahead > u32::MAX / 2 { Fate::Repeated } else { Fate::BeyondWindow };
        }
        if self.arrived >> ahead & 1 == 1 {
            return Fate::Repeated;
        }
        if self.arrived_bytes + u64::from(cost) > self.granted {
            return Fate::BeyondCredit;
        }
        self.arrived |= 1 << ahead;
        self.arrived_bytes += u64::from(cost);
        self.costs[window_place(sequence)] = cost;
        (self.active_at, self.repeats) = (now, 0);
        Fate::New
    }

    /// Processes the acceptance of a packet by the upper layer. Returns the bytes of credit that return to the pool.
    pub(crate) fn accept_packet(&mut self, sequence: u32) -> u64 {
        let Some(ahead) = self.pending_packet(sequence) else { return 0 };
        let cost = u64::from(self.costs[window_place(sequence)]);
        self.accepted |= 1 << ahead;
        self.accepted_bytes += cost;
        (self.refused_wait_10us, self.not_ready_until) = (0, 0);
        let whole = self.accepted.trailing_ones();
        self.below = self.below.wrapping_add(whole);
        self.accepted = self.accepted.checked_shr(whole).unwrap_or(0);
        self.arrived = self.arrived.checked_shr(whole).unwrap_or(0);
        let forgiven = self.written_off.min(cost);
        self.written_off -= forgiven;
        cost - forgiven
    }

    /// Processes the refusal of a packet by the upper layer: it is to be sent again after a while, with the credit that
    /// it had. Returns false if no such packet waits for acceptance.
    pub(crate) fn refuse_packet(&mut self, sequence: u32, wait_10us: u16) -> bool {
        let Some(ahead) = self.pending_packet(sequence) else { return false };
        self.arrived &= !(1 << ahead);
        self.arrived_bytes -= u64::from(self.costs[window_place(sequence)]);
        self.refused_wait_10us = wait_10us.max(1);
        true
    }

    /// Returns the place in the window of a packet that arrived and was not accepted.
    fn pending_packet(&self, sequence: u32) -> Option<u32> {
        let ahead = sequence.wrapping_sub(self.below);
        (ahead < WINDOW_PACKETS && (self.arrived & !self.accepted) >> ahead & 1 == 1).then_some(ahead)
    }

    /// Returns the number below which all packets were accepted.
    pub(crate) fn accepted_below(&self) -> u32 {
        self.below
    }

    /// Records the credit that the peer could use, by its newest frame or one that was overtaken.
    pub(crate) fn set_wanted(&mut self, wanted: u64, is_newest: bool) {
        self.wanted = if is_newest { wanted } else { self.wanted.max(wanted) };
    }

    /// Returns the bytes to be granted so that the peer has what it wants, and `standing` at least, but no more than
    /// `most` that are not accepted.
    pub(crate) fn needed_bytes(&self, standing: u64, most: u64) -> u64 {
        let goal = self.wanted.max(self.arrived_bytes.saturating_add(standing));
        goal.min(self.accepted_bytes.saturating_add(most)).saturating_sub(self.granted)
    }

    pub(crate) fn add_grant(&mut self, bytes: u64, now: u64) {
        self.granted = self.granted.saturating_add(bytes);
        (self.active_at, self.repeats) = (now, 0);
    }

    /// True if the peer could use more credit than it has.
    pub(crate) fn lacks_grant(&self) -> bool {
        self.wanted > self.granted
    }

    /// True if a packet is missing before one that has arrived.
    pub(crate) fn has_gap(&self) -> bool {
        self.arrived & self.arrived.wrapping_add(1) != 0
    }

    /// Returns the time at which a status is to be repeated, since the peer does not use a grant that it asked for: the
    /// grant may have been lost. `timeout` is the time in which it would have been used.
    pub(crate) fn repeat_deadline(&self, timeout: u64) -> Option<u64> {
        let is_expected = self.wanted > self.arrived_bytes && self.granted > self.arrived_bytes;
        is_expected.then(|| self.active_at.max(self.repeated_at) + (timeout << self.repeats))
    }

    /// Notes that a status is repeated.
    pub(crate) fn note_repeat(&mut self, now: u64) {
        self.repeated_at = now;
        self.repeats = (self.repeats + 1).min(MAX_REPEAT_BACKOFF);
    }

    /// Returns the bytes granted and not accepted that the port's pool counts.
    pub(crate) fn pool_bytes(&self) -> u64 {
        self.granted - self.accepted_bytes - self.written_off
    }

    /// Returns the bytes granted and not accepted that the pool does not count any more.
    pub(crate) fn written_off_bytes(&self) -> u64 {
        self.written_off
    }

    /// Writes off credit that was not used since `before`. Returns the bytes that return to the pool.
    pub(crate) fn write_off_unused(&mut self, before: u64) -> u64 {
        if self.active_at >= before {
            return 0;
        }
        let bytes = self.pool_bytes();
        self.written_off += bytes;
        bytes
    }

    /// True if credit was written off that the peer has not used since: it gets no more until it has.
    pub(crate) fn has_written_off(&self) -> bool {
        self.written_off > 0
    }

    /// True if the peer has used the class, or may.
    pub(crate) fn is_used(&self) -> bool {
        self.granted > 0 || self.wanted > 0
    }

    /// Returns the status block for the peer.
    pub(crate) fn status_block(&mut self, class: Class, now: u64) -> Status {
        let wait = u64::from(std::mem::take(&mut self.refused_wait_10us)) * NOT_READY_UNIT_NANOS;
        self.not_ready_until = self.not_ready_until.max(if wait > 0 { now + wait } else { 0 });
        let left = self.not_ready_until.saturating_sub(now).div_ceil(NOT_READY_UNIT_NANOS);
        Status {
            class,
            not_ready_10us: u16::try_from(left).unwrap_or(u16::MAX),
            below: self.below,
            granted: self.granted,
            acknowledged: self.accepted,
            received: self.arrived,
        }
    }
}

/// Returns the index of a packet in a ring as long as the window.
pub(crate) fn window_place(sequence: u32) -> usize {
    (sequence % WINDOW_PACKETS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half_with_credit(bytes: u64) -> ReceivingHalf {
        let mut half = ReceivingHalf::new();
        half.add_grant(bytes, 0);
        half
    }

    #[test]
    fn each_packet_is_new_once_and_acceptance_moves_the_window() {
        let mut half = half_with_credit(1_000);
        assert_eq!(half.on_packet(1, 10, 0), Fate::New);
        assert_eq!(half.on_packet(1, 10, 0), Fate::Repeated);
        assert_eq!((half.accept_packet(1), half.accepted_below()), (10, 0));
        assert_eq!(half.accept_packet(1), 0, "accepted already");
        assert_eq!(half.status_block(Class::Posted, 0).acknowledged, 0b10);
        assert_eq!(half.on_packet(0, 10, 0), Fate::New);
        assert_eq!(half.status_block(Class::Posted, 0).received, 0b11);
        assert_eq!((half.accept_packet(0), half.accepted_below()), (10, 2));
        assert_eq!(half.on_packet(0, 10, 0), Fate::Repeated);
        assert_eq!(half.on_packet(130, 10, 0), Fate::BeyondWindow);
        assert_eq!(half.on_packet(129, 10, 0), Fate::New);
        assert_eq!(half.accept_packet(77), 0, "a packet that never arrived");
    }

    #[test]
    fn a_whole_window_is_accepted_at_once() {
        let mut half = half_with_credit(1_000);
        for sequence in (0..WINDOW_PACKETS).rev() {
            assert_eq!(half.on_packet(sequence, 1, 0), Fate::New);
            assert_eq!(half.accept_packet(sequence), 1);
            assert_eq!(half.accepted_below(), if sequence == 0 { WINDOW_PACKETS } else { 0 });
        }
        assert_eq!(half.status_block(Class::Posted, 0).received, 0);
    }

    #[test]
    fn credit_is_kept_to_and_a_refused_packet_needs_none_again() {
        let mut half = half_with_credit(100);
        assert_eq!(half.on_packet(0, 101, 0), Fate::BeyondCredit);
        assert_eq!(half.on_packet(0, 100, 0), Fate::New);
        assert!(half.refuse_packet(0, 7));
        assert!(!half.refuse_packet(0, 7), "refused already");
        assert_eq!(half.status_block(Class::Posted, 0).received, 0);
        assert_eq!(half.status_block(Class::Posted, 0).not_ready_10us, 7);
        assert_eq!(half.status_block(Class::Posted, 30_000).not_ready_10us, 4, "the wait began with the first status");
        assert_eq!(half.pool_bytes(), 100);
        assert_eq!(half.on_packet(0, 100, 0), Fate::New);
        assert_eq!(half.accept_packet(0), 100);
        assert_eq!(half.status_block(Class::Posted, 0).not_ready_10us, 0);
    }

    #[test]
    fn credit_that_is_not_used_is_written_off_and_does_not_return_twice() {
        let mut half = half_with_credit(100);
        half.add_grant(0, 5);
        assert_eq!(half.write_off_unused(5), 0);
        assert_eq!(half.write_off_unused(6), 100);
        assert_eq!(half.write_off_unused(6), 0);
        assert_eq!(half.on_packet(0, 60, 7), Fate::New);
        assert_eq!((half.accept_packet(0), half.pool_bytes()), (0, 0));
    }

    #[test]
    fn numbers_wrap() {
        let mut half = ReceivingHalf { below: u32::MAX, ..half_with_credit(100) };
        for sequence in [1, 0, u32::MAX] {
            assert_eq!(half.on_packet(sequence, 1, 0), Fate::New);
            half.accept_packet(sequence);
        }
        assert_eq!(half.accepted_below(), 2);
        assert_eq!(half.on_packet(u32::MAX, 1, 0), Fate::Repeated);
    }
}
