//! Delay window: the bytes that a sender keeps in flight so that queues on the way stay short.
//!
//! EFE of the ExpEther papers controls congestion by delay, with probe packets and a *predicted* round trip (Shimonishi,
//! Higuchi, Yoshikawa and Iwata, *A Congestion Control Algorithm for Data Center Area Communications*, 2008; IEICE
//! NS2006-244). The published abstracts give the principle, not the constants. So the principle is theirs, and the formula
//! is put together from published parts:
//!
//! - Every frame is a probe: it carries a stamp, and the answer echoes it (and the time for which it was held, which is
//!   no delay of the network). Where no packets are in flight, a status frame that asks for an answer is the probe.
//! - A round is the time until a frame sent at its beginning is answered. Its delay *r* is the least of its samples: a
//!   queue delays all of them, a busy host only some (Vegas; Brakmo and Peterson, 1994).
//! - The prediction is where *r* is going (TIMELY's gradient; Mittal and others, SIGCOMM 2015, section 4.3), one round
//!   ahead, since a change of the window shows only then: p = max(base, r + (r − r′)), with r′ of the round before, and
//!   *base* the least round trip of the last 10 to 20 s.
//! - With the queueing delay q = p − base and the target T, to which four times the variation of the samples is added (RFC
//!   6298: delays that vary more than the target are not those of a queue of ours) (Swift; Kumar and others, SIGCOMM 2020, algorithm 1):
//!   - q ≤ T: W ← W + one packet; W ← 2·W from the beginning until q first exceeds T/2;
//!   - q > T: W ← W·(1 − min(½, 0.8·(q − T)/p)).
//!
//! A window that was not used is not enlarged. Losses do not shrink it, since they are not a sign of congestion where
//! credit keeps queues below their buffers; a peer that answers nothing at all does, and the window then begins anew,
//! unless its first answer shows that it was only late, as a host is whose processor another program has.

use crate::round_trip::Extremes;

/// First window, and least one, in packets of maximum length. The first as in RFC 6928.
const FIRST_WINDOW_PACKETS: u64 = 10;
const MIN_WINDOW_PACKETS: u64 = 2;
/// Time for which the least round trip is remembered, at least, in nanoseconds.
const BASE_MEMORY_NANOS: u64 = 10_000_000_000;
/// Swift's multiplicative decrease: its factor, and the greatest part of a window that goes at a time.
const DECREASE_FACTOR: f64 = 0.8;
const MAX_DECREASE: f64 = 0.5;

/// Delay window of a connection.
#[derive(Debug)]
pub(crate) struct DelayWindow {
    bytes: u64,
    packet_bytes: u64,
    max_bytes: u64,
    target: u64,
    base: Extremes,
    /// Time of sending from which on an echo ends the round.
    round_end: u64,
    round_least: Option<u64>,
    previous_least: Option<u64>,
    is_starting: bool,
    was_limiting: bool,
    /// The window before the peer's silence, until the peer answers.
    before_silence: Option<Silence>,
}

/// Time from which on a peer counted as silent, and the window until then.
#[derive(Debug, Clone, Copy)]
struct Silence {
    since: u64,
    bytes: u64,
    is_starting: bool,
}

impl DelayWindow {
    /// Creates a window for packets of at most `packet_bytes`, for a target delay in nanoseconds.
    pub(crate) fn new(packet_bytes: u64, target: u64) -> Self {
        Self {
            bytes: packet_bytes * FIRST_WINDOW_PACKETS,
            packet_bytes,
            max_bytes: packet_bytes * u64::from(crate::WINDOW_PACKETS) * crate::CLASS_COUNT as u64,
            target,
            base: Extremes::new(BASE_MEMORY_NANOS),
            round_end: 0,
            round_least: None,
            previous_least: None,
            is_starting: true,
            was_limiting: false,
            before_silence: None,
        }
    }

    /// Sets the maximum length of a packet, before the window is in use.
    pub(crate) fn set_packet_bytes(&mut self, packet_bytes: u64) {
        if packet_bytes != self.packet_bytes {
            *self = Self::new(packet_bytes, self.target);
        }
    }

    /// Returns the window in bytes.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.bytes
    }

    /// True if `bytes` more may be sent while `in_flight` bytes are in flight.
    pub(crate) fn has_room(&mut self, in_flight: u64, bytes: u64) -> bool {
        let has_room = in_flight == 0 || in_flight + bytes <= self.bytes;
        self.was_limiting |= !has_room || (in_flight + bytes) * 2 > self.bytes;
        has_room
    }

    /// Records the round trip of a frame that was sent at `sent_at` and echoed now.
    /// `variation` is that of the latest round trips.
    pub(crate) fn record_round_trip(&mut self, took: u64, variation: u64, sent_at: u64, now: u64) {
        self.base.record_value(took, now);
        self.round_least = Some(self.round_least.map_or(took, |least| least.min(took)));
        if sent_at >= self.round_end {
            self.end_round(self.target + variation * 4);
            self.round_end = now;
        }
    }

    /// Shrinks the window to its least: the peer answers nothing. Once it does, the window doubles as at the beginning,
    /// unless [`end_silence`](Self::end_silence) finds that nothing was lost.
    pub(crate) fn shrink_to_least(&mut self, now: u64) {
        let Self { bytes, is_starting, .. } = *self;
        self.before_silence.get_or_insert(Silence { since: now, bytes, is_starting });
        self.bytes = self.packet_bytes * MIN_WINDOW_PACKETS;
        self.is_starting = true;
    }

    /// Processes the first answer after a silence: the peer had received the frame that was sent at `sent_at`, and none sent
    /// later. If that frame was sent before the silence, the peer was late and the network has lost nothing: the window is
    /// what it was (Eifel response, RFC 4015).
    pub(crate) fn end_silence(&mut self, sent_at: u64) {
        if let Some(silence) = self.before_silence.take()
            && sent_at < silence.since
        {
            (self.bytes, self.is_starting) = (self.bytes.max(silence.bytes), silence.is_starting);
        }
    }

    fn end_round(&mut self, target: u64) {
        let (Some(least), Some(base)) = (self.round_least.take(), self.base.least_value()) else { return };
        let previous = self.previous_least.replace(least).unwrap_or(least);
        let predicted = (least * 2).saturating_sub(previous).max(base);
        let (queueing, was_limiting) = (predicted - base, std::mem::take(&mut self.was_limiting));
        if queueing > target {
            self.is_starting = false;
            let part = DECREASE_FACTOR * (queueing - target) as f64 / predicted.max(1) as f64;
            self.bytes -= (self.bytes as f64 * part.min(MAX_DECREASE)) as u64;
        } else if was_limiting {
            self.is_starting &= queueing <= target / 2;
            self.bytes += if self.is_starting { self.bytes } else { self.packet_bytes };
        }
        self.bytes = self.bytes.clamp(self.packet_bytes * MIN_WINDOW_PACKETS, self.max_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of 1 byte a nanosecond, 20 µs long.
    fn run_rounds(window: &mut DelayWindow, now: &mut u64, rounds: usize) -> u64 {
        const BASE_NANOS: u64 = 20_000;
        for _ in 0..rounds {
            let took = BASE_NANOS.max(window.window_bytes());
            assert!(!window.has_room(window.window_bytes(), 1));
            let sent_at = *now;
            *now += took;
            window.record_round_trip(took, 0, sent_at, *now);
        }
        window.window_bytes().saturating_sub(BASE_NANOS)
    }

    #[test]
    fn a_full_link_keeps_a_queue_of_the_target() {
        let (mut window, mut now) = (DelayWindow::new(1000, 5_000), 0);
        window.record_round_trip(20_000, 0, 0, 0);
        run_rounds(&mut window, &mut now, 100);
        for _ in 0..100 {
            let queue = run_rounds(&mut window, &mut now, 1);
            assert!((2_000..9_000).contains(&queue), "{queue} bytes for a target of 5000");
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut window = DelayWindow::new(1000, 5_000);
        let first = window.window_bytes();
        for round in 1..100 {
            assert!(window.has_room(0, 1000));
            window.record_round_trip(20_000, 0, round * 20_000, (round + 1) * 20_000);
        }
        assert_eq!(window.window_bytes(), first);
        window.shrink_to_least(5_000_000);
        assert_eq!(window.window_bytes(), 2000);
        window.end_silence(5_000_001);
        assert_eq!(window.window_bytes(), 2000, "what was sent before was lost");
    }

    #[test]
    fn a_peer_that_was_late_and_lost_nothing_leaves_the_window_as_it_was() {
        let (mut window, mut now) = (DelayWindow::new(1000, 5_000), 0);
        run_rounds(&mut window, &mut now, 20);
        let before = window.window_bytes();
        window.shrink_to_least(now + 10);
        window.shrink_to_least(now + 20);
        window.end_silence(now + 9);
        assert_eq!(window.window_bytes(), before);
        window.end_silence(now + 9);
        assert_eq!(window.window_bytes(), before, "once");
    }

    #[test]
    fn a_single_late_sample_of_a_round_is_no_queue() {
        let (mut window, mut now) = (DelayWindow::new(1000, 5_000), 0);
        for _ in 0..10 {
            let before = window.window_bytes();
            assert!(!window.has_room(before, 1));
            // Sent in the round before, and echoed late.
            window.record_round_trip(3_000_000, 0, now.max(1) - 1, now);
            window.record_round_trip(20_000, 0, now, now + 20_000);
            now += 20_000;
            assert!(window.window_bytes() >= before);
        }
    }
}
