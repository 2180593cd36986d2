//! Estimates from round trips: how long an answer takes, and how late a packet may be without being lost.

/// Time to wait for an answer while no round trip is known, in nanoseconds.
const FIRST_TIMEOUT_NANOS: u64 = 20_000_000;
/// Least and most time to wait for an answer, in nanoseconds. A host that is busy with something else is late by about a
/// millisecond.
const MIN_TIMEOUT_NANOS: u64 = 1_000_000;
const MAX_TIMEOUT_NANOS: u64 = 640_000_000;
/// Least time by which a packet may be later than one sent after it, in nanoseconds.
const MIN_REORDER_NANOS: u64 = 2_000;
/// Time for which an observed reordering is remembered, at least, in nanoseconds.
const REORDER_MEMORY_NANOS: u64 = 1_000_000_000;

/// Estimates from the round trips of one connection.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Smoothed round trip and its variation, in nanoseconds (RFC 6298, section 2).
    estimate: Option<(u64, u64)>,
    reordering: Extremes,
}

impl RoundTrip {
    pub(crate) fn new() -> Self {
        Self { estimate: None, reordering: Extremes::new(REORDER_MEMORY_NANOS) }
    }

    /// Records a measured round trip.
    pub(crate) fn record_round_trip(&mut self, took: u64) {
        self.estimate = Some(match self.estimate {
            None => (took, took / 2),
            Some((smoothed, variation)) => ((smoothed * 7 + took) / 8, (variation * 3 + smoothed.abs_diff(took)) / 4),
        });
    }

    /// Records that a packet arrived although others, sent after it, had arrived this long before.
    pub(crate) fn record_reordering(&mut self, late: u64, now: u64) {
        self.reordering.record_value(late, now);
    }

    /// Returns the smoothed round trip in nanoseconds, if one was measured.
    pub(crate) fn smoothed_nanos(&self) -> Option<u64> {
        self.estimate.map(|(smoothed, _)| smoothed)
    }

    /// Returns the variation of the round trip in nanoseconds; 0 if none was measured.
    pub(crate) fn variation_nanos(&self) -> u64 {
        self.estimate.map_or(0, |(_, variation)| variation)
    }

    /// Returns the time to wait for an answer, in nanoseconds (RFC 6298, section 2, with a lower minimum).
    pub(crate) fn answer_timeout(&self) -> u64 {
        let estimate = self.estimate.map(|(smoothed, variation)| smoothed + variation * 4);
        estimate.unwrap_or(FIRST_TIMEOUT_NANOS).clamp(MIN_TIMEOUT_NANOS, MAX_TIMEOUT_NANOS)
    }

    /// Returns the time after which a packet that others have overtaken counts as lost, in nanoseconds: a quarter of the
    /// round trip, as in RACK (RFC 8985, section 6.2, step 4), or half as much again as the largest reordering seen in
    /// the last seconds.
    pub(crate) fn reorder_tolerance(&self, now: u64) -> u64 {
        let Some((smoothed, _)) = self.estimate else { return FIRST_TIMEOUT_NANOS };
        let seen = self.reordering.greatest_value(now);
        (smoothed / 4).max(seen + seen / 2).clamp(MIN_REORDER_NANOS, MAX_TIMEOUT_NANOS)
    }
}

/// Least and greatest of the values of the last one to two spans of time.
#[derive(Debug)]
pub(crate) struct Extremes {
    span: u64,
    began: u64,
    current: Option<(u64, u64)>,
    previous: Option<(u64, u64)>,
}

impl Extremes {
    pub(crate) fn new(span: u64) -> Self {
        Self { span, began: 0, current: None, previous: None }
    }

    pub(crate) fn record_value(&mut self, value: u64, now: u64) {
        let age = now.saturating_sub(self.began);
        if age >= self.span {
            self.previous = self.current.take().filter(|_| age < self.span * 2);
            self.began = now;
        }
        let (least, greatest) = self.current.unwrap_or((value, value));
        self.current = Some((least.min(value), greatest.max(value)));
    }

    /// Returns the least value, if there is one.
    pub(crate) fn least_value(&self) -> Option<u64> {
        self.current.into_iter().chain(self.previous).map(|(least, _)| least).min()
    }

    /// Returns the greatest value; 0 if there is none, since none was recorded for long.
    pub(crate) fn greatest_value(&self, now: u64) -> u64 {
        let age = now.saturating_sub(self.began);
        let previous = self.previous.filter(|_| age < self.span);
        let current = self.current.filter(|_| age < self.span * 2);
        current.into_iter().chain(previous).map(|(_, greatest)| greatest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_bounds_the_wait_and_reordering_stretches_the_tolerance() {
        let mut round_trip = RoundTrip::new();
        assert_eq!(round_trip.answer_timeout(), FIRST_TIMEOUT_NANOS);
        for _ in 0..100 {
            round_trip.record_round_trip(40_000);
        }
        assert_eq!(round_trip.smoothed_nanos(), Some(40_000));
        assert_eq!(round_trip.answer_timeout(), MIN_TIMEOUT_NANOS);
        assert_eq!(round_trip.reorder_tolerance(0), 10_000);
        round_trip.record_reordering(100_000, 0);
        assert_eq!(round_trip.reorder_tolerance(REORDER_MEMORY_NANOS), 150_000);
        assert_eq!(round_trip.reorder_tolerance(2 * REORDER_MEMORY_NANOS), 10_000, "forgotten without another one");
        for now in 1..3 {
            round_trip.record_reordering(10, now * REORDER_MEMORY_NANOS);
        }
        assert_eq!(round_trip.reorder_tolerance(2 * REORDER_MEMORY_NANOS), 10_000, "forgotten after two seconds");
    }
}
