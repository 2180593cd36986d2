//! The search for the capacity of a link: the window is raised until something is lost.
//!
//! While more bytes in flight mean a higher rate, the window grows by a quarter in each round trip. When they no longer
//! do, the port is busy and any addition waits in its buffer: then the window grows by a piece at a time, so that the
//! window at the first loss gives the length of the buffer. The network then held *C*·*τ* + *B*.

use crate::build::credit::LONGEST_PIECE;
use std::time::Duration;

/// Measured capacity of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCapacity {
    /// Payload bytes per second: C.
    pub rate: f64,
    /// Shortest time from a fetch to its first data: τ.
    pub round_trip: Duration,
    /// Bytes that were queued at the port when the first were lost: B. If nothing was ever lost, a lower bound of B.
    pub buffer: u64,
    /// Largest of the measurements of B, of which `buffer` is the smallest.
    pub largest_buffer: u64,
    /// True if something was lost at all.
    pub lost: bool,
}

/// State of a search.
#[derive(Debug)]
pub(crate) struct Search {
    window: f64,
    segment: f64,
    most: f64,
    climb: Climb,
    round_trip: Option<Duration>,
    began: Option<Duration>,
    received: u64,
    lost: u64,
    /// Rates of rounds in which the port was busy, in bytes per second.
    rates: Vec<f64>,
    best: f64,
    /// Number of rounds since the best rate was last exceeded.
    level: u32,
    /// Estimated number of bytes queued at the port at the first loss, after a climb in long steps. A loss is reported
    /// rounds later: the steps taken meanwhile are included.
    coarse: Option<f64>,
    /// The same after each climb in short steps.
    edges: Vec<f64>,
    found: Option<LinkCapacity>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Climb {
    /// Growth by a quarter each round.
    Fast,
    /// Growth by a piece each round.
    Slow,
    /// Pause of this number of rounds, so that what was lost no longer matters.
    Rest(u32),
}

/// Number of times the buffer is measured if the results agree. The smallest result counts: traffic of others may have
/// been in it.
const EDGE_COUNT: usize = 2;
/// Number of times the buffer is measured if they do not: a loss for another reason (a tail loss probe of a busy host)
/// ends a climb early. The smallest and the largest are then left out.
const MAX_EDGE_COUNT: usize = 5;
/// Part of the larger result by which two results that agree may differ.
const MAX_EDGE_DIFFERENCE: f64 = 0.25;
/// Start of the short steps, as a fraction of the result of the long steps.
const FALL_BACK_FRACTION: f64 = 0.6;
/// Number of rounds without a loss after which earlier losses no longer matter.
const REST_ROUNDS: u32 = 4;
/// Number of rounds without progress that show that the port is busy.
const LEVEL_ROUNDS: u32 = 4;
/// Shortest time over which a rate is taken: shorter ones show the timing of single packets rather than the rate.
const MIN_RATE_PERIOD: Duration = Duration::from_millis(2);

impl Search {
    /// Returns a search with `segment` bytes per segment that gives up at a window of `most` bytes.
    pub(crate) fn new(segment: u32, most: u64) -> Self {
        let segment = f64::from(segment.max(1));
        Self {
            window: 8.0 * segment,
            segment,
            most: most as f64,
            climb: Climb::Fast,
            round_trip: None,
            began: None,
            received: 0,
            lost: 0,
            rates: Vec::new(),
            best: 0.0,
            level: 0,
            coarse: None,
            edges: Vec::new(),
            found: None,
        }
    }

    pub(crate) fn window_bytes(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between a few segments and `most`"
        )]
        let window = self.window as u64;
        window
    }

    /// Returns the number of bytes requested at a time.
    pub(crate) fn piece_bytes(&self) -> u64 {
        (self.window_bytes() / 8).clamp(1, LONGEST_PIECE)
    }

    pub(crate) fn found_capacity(&self) -> Option<LinkCapacity> {
        self.found
    }

    pub(crate) fn record_round_trip(&mut self, took: Duration) {
        self.round_trip = Some(self.round_trip.map_or(took, |shortest| shortest.min(took)));
    }

    pub(crate) fn count_lost(&mut self, bytes: u64) {
        self.lost = self.lost.saturating_add(bytes);
    }

    pub(crate) fn count_received(&mut self, bytes: u64, now: Duration) {
        let Some(round_trip) = self.round_trip.filter(|_| self.found.is_none()) else { return };
        let began = *self.began.get_or_insert(now);
        self.received += bytes;
        let took = now.saturating_sub(began);
        if took < round_trip.max(MIN_RATE_PERIOD) {
            return;
        }
        let rate = self.received as f64 / took.as_secs_f64();
        let lost = std::mem::take(&mut self.lost);
        (self.began, self.received) = (Some(now), 0);
        self.finish_round(rate, lost, round_trip);
    }

    fn finish_round(&mut self, rate: f64, lost: u64, round_trip: Duration) {
        self.level = if rate > 1.02 * self.best { 0 } else { self.level + 1 };
        self.best = self.best.max(rate);
        let product = self.carried_rate() * round_trip.as_secs_f64();
        match self.climb {
            // Data held back by a gap arrive all at once and look like a faster port: the window was too wide.
            Climb::Rest(_) if lost > 0 => self.fall_back_to(0.9 * self.window),
            Climb::Rest(0) => self.climb = Climb::Slow,
            Climb::Rest(rounds) => self.climb = Climb::Rest(rounds - 1),
            Climb::Fast if lost > 0 => self.fall_back_to(product),
            Climb::Fast if self.level >= LEVEL_ROUNDS => self.fall_back_to(product),
            Climb::Fast => self.window *= 1.25,
            Climb::Slow if lost > 0 => {
                let edge = (self.window - product).max(0.0);
                self.edges.extend(self.coarse.map(|_| edge));
                let is_enough = self.edges.len() == EDGE_COUNT && self.edges_agree();
                if is_enough || self.edges.len() == MAX_EDGE_COUNT {
                    self.finish_search(round_trip, true);
                } else {
                    let coarse = *self.coarse.get_or_insert(edge);
                    self.fall_back_to(product + FALL_BACK_FRACTION * coarse);
                }
            }
            Climb::Slow => {
                self.rates.push(rate);
                let (segments, part) = if self.coarse.is_some() { (1.0, 4096.0) } else { (4.0, 512.0) };
                self.window += (segments * self.segment).max(self.window / part);
            }
        }
        if self.window > self.most {
            self.edges.push(self.most - product);
            self.finish_search(round_trip, false);
        }
    }

    /// Lowers the window to one at which nothing is lost, and pauses.
    fn fall_back_to(&mut self, window: f64) {
        self.window = window.max(8.0 * self.segment);
        self.climb = Climb::Rest(REST_ROUNDS);
        self.level = 0;
    }

    /// Returns the rate at which a busy port delivers: the upper quartile of those seen.
    fn carried_rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        // The lower ones are from windows that were a little too small.
        rates.get(rates.len() * 3 / 4).copied().unwrap_or(self.best)
    }

    fn edges_agree(&self) -> bool {
        let [least, most] = self.edge_range();
        most - least <= MAX_EDGE_DIFFERENCE * most
    }

    /// Returns the smallest and the largest result; of many, without the outermost ones.
    fn edge_range(&self) -> [f64; 2] {
        let mut edges = self.edges.clone();
        edges.sort_by(f64::total_cmp);
        let inner = if edges.len() == MAX_EDGE_COUNT { &edges[1..MAX_EDGE_COUNT - 1] } else { &edges[..] };
        [inner.first(), inner.last()].map(|edge| edge.map_or(0.0, |bytes| bytes.max(0.0)))
    }

    fn finish_search(&mut self, round_trip: Duration, lost: bool) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a buffer")]
        let [buffer, largest_buffer] = self.edge_range().map(|bytes| bytes as u64);
        self.found = Some(LinkCapacity { rate: self.carried_rate(), round_trip, buffer, largest_buffer, lost });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a port of this rate (bytes per second) and buffer, at the end of a path of this round trip: bytes in
    /// flight come back after the round trip and the queue; bytes that do not fit the buffer are lost.
    fn climb(rate: f64, round_trip: f64, buffer: f64) -> LinkCapacity {
        climb_with_losses(rate, round_trip, buffer, &[])
    }

    /// As [`climb`], with losses that the port did not cause at these windows of the climb in short steps.
    fn climb_with_losses(rate: f64, round_trip: f64, buffer: f64, windows: &[f64]) -> LinkCapacity {
        let mut other_losses = windows.iter().copied().peekable();
        let mut search = Search::new(1448, 1 << 30);
        search.record_round_trip(Duration::from_secs_f64(round_trip));
        let mut now = 0.0;
        for _ in 0..100_000 {
            let window = search.window_bytes() as f64;
            let product = rate * round_trip;
            let queue = (window - product).max(0.0);
            let cycle = round_trip.max(window / rate);
            if queue > buffer {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
                search.count_lost((queue - buffer) as u64);
            }
            if search.climb == Climb::Slow
                && search.coarse.is_some()
                && other_losses.peek().is_some_and(|at| window > *at)
            {
                other_losses.next();
                search.count_lost(1448);
            }
            now += cycle;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
            search.count_received(window as u64, Duration::from_secs_f64(now));
            if let Some(found) = search.found_capacity() {
                return found;
            }
        }
        panic!("it does not come to an end: {search:?}")
    }

    #[test]
    fn a_port_is_found_as_it_is() {
        for (rate, round_trip, buffer) in [
            (1.2e8, 2e-4, 3.4e5),
            (1.2e8, 2e-3, 3.4e5),
            (1.2e8, 0.1, 3.4e5),
            (1.2e9, 2e-4, 3.4e6),
            (1.2e10, 2e-3, 3.4e7),
        ] {
            let found = climb(rate, round_trip, buffer);
            assert!(found.lost);
            assert!((found.rate / rate - 1.0).abs() < 0.03, "{found:?}, not {rate}");
            let error = found.buffer as f64 - buffer;
            assert!(error.abs() < 0.15 * buffer + 0.03 * rate * round_trip, "{found:?}, not {buffer}");
        }
    }

    #[test]
    fn a_loss_that_the_port_did_not_cause_makes_no_small_buffer() {
        let found = climb_with_losses(1.2e8, 2e-4, 3.4e5, &[1e5]);
        assert!(found.buffer > 300_000 && found.largest_buffer < 400_000, "{found:?}");
        // Losses on every climb leave no result that can be trusted, and the range shows it.
        let found = climb_with_losses(1.2e8, 2e-4, 3.4e5, &[1e5, 3e5, 1e5, 3e5]);
        assert!((found.buffer as f64) < 0.9 * found.largest_buffer as f64, "{found:?}");
    }

    #[test]
    fn a_port_that_never_loses_is_found_to_hold_what_it_held() {
        let found = climb(1.2e8, 1e-3, 1e12);
        assert!(!found.lost);
        assert!(found.buffer > 900 << 20, "{found:?}");
    }
}
