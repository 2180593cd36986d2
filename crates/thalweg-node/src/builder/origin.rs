//! Time of event 0, for events that are numbered by time and begin with a frame.
//!
//! Sources report when their first frames were taken. Event 0 is a second after the last of these, so that all sources
//! learn of it before; frames taken until then belong to no event.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use thalweg_wire::TaiNanos;

/// Shortest time from the last source's first frame to event 0.
const ORIGIN_LEAD_TIME: Duration = Duration::from_secs(1);
/// Longest wait for sources whose first frame has not come, counted from the first source's frame.
const FIRST_FRAMES_TIME: Duration = Duration::from_secs(5);

/// Maximum difference, in nanoseconds, between a source's clock and the others' at which it still counts for the time
/// of event 0.
const MAX_CLOCK_DIFFERENCE_NANOS: i128 = 10_000_000_000;
/// Periods in nanoseconds that are possible: those that a topology may have.
const POSSIBLE_PERIODS: RangeInclusive<u64> = 1_000..=3_600_000_000_000;

/// Time of event 0, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// Time of each source's first frame, and the time at which the builder received its report.
    firsts: BTreeMap<usize, (TaiNanos, Duration)>,
    /// Time at which the first of these reports arrived.
    since: Option<Duration>,
    /// Time from one event to the next, in nanoseconds.
    period: u64,
    decided: Option<TaiNanos>,
}

impl Origin {
    /// Records a source's first frame. Returns false if its period is not possible.
    pub(super) fn note_first_frame(&mut self, source: usize, time: TaiNanos, period: u64, now: Duration) -> bool {
        if !POSSIBLE_PERIODS.contains(&period) || self.since.is_some() && period != self.period {
            return false;
        }
        self.firsts.entry(source).or_insert((time, now));
        self.since.get_or_insert(now);
        self.period = period;
        true
    }

    /// Decides, once all `expected` sources have reported or have been waited for. Returns the time if it was decided
    /// just now.
    pub(super) fn decide_if_due(
        &mut self,
        mut expected: impl Iterator<Item = usize>,
        now: Duration,
    ) -> Option<TaiNanos> {
        let since = self.since.filter(|_| self.decided.is_none())?;
        if now < since + FIRST_FRAMES_TIME && expected.any(|source| !self.firsts.contains_key(&source)) {
            return None;
        }
        let ahead = u64::try_from(ORIGIN_LEAD_TIME.as_nanos())
            .unwrap_or(u64::MAX)
            .div_ceil(self.period)
            .saturating_mul(self.period);
        // One wrong clock does not move the run: the median of the reported times, relative to when they arrived,
        // counts.
        let mut clocks: Vec<i128> = self.firsts.values().map(clock_difference).collect();
        clocks.sort_unstable();
        let most = *clocks.get((clocks.len() - 1) / 2)?;
        let mut last = None;
        for (source, first) in &self.firsts {
            let apart = clock_difference(first) - most;
            if apart.abs() <= MAX_CLOCK_DIFFERENCE_NANOS {
                last = last.max(Some(first.0));
                continue;
            }
            let seconds = apart / 1_000_000_000;
            tracing::warn!(
                source,
                "its clock differs by {seconds} s from the others': its frames will belong to other events, or to none"
            );
        }
        self.decided = Some(TaiNanos(last?.0.saturating_add(ahead)));
        self.decided
    }

    /// Returns the time of event 0, once it is known.
    pub(super) fn decided_time(&self) -> Option<TaiNanos> {
        self.decided
    }

    /// Returns when the time is decided though a source's first frame has not come.
    pub(super) fn next_due_time(&self) -> Option<Duration> {
        self.since.filter(|_| self.decided.is_none()).map(|since| since + FIRST_FRAMES_TIME)
    }
}

/// Returns the difference between a source's clock and the builder's, in nanoseconds; the two may count from different
/// beginnings.
fn clock_difference((time, reported_at): &(TaiNanos, Duration)) -> i128 {
    i128::from(time.0) - i128::try_from(reported_at.as_nanos()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PERIOD: u64 = 30_000_000;

    #[test]
    fn event_0_is_whole_periods_and_a_second_after_the_last_first_frame() {
        let mut origin = Origin::default();
        assert_eq!(origin.decide_if_due([0, 1].into_iter(), SECOND), None);
        assert!(origin.note_first_frame(1, TaiNanos(7_000), PERIOD, SECOND));
        assert_eq!(
            (origin.decide_if_due([0, 1].into_iter(), SECOND), origin.next_due_time()),
            (None, Some(6 * SECOND))
        );
        assert!(origin.note_first_frame(0, TaiNanos(5_000), PERIOD, 2 * SECOND));
        assert_eq!(origin.decide_if_due([0, 1].into_iter(), 2 * SECOND), Some(TaiNanos(7_000 + 1_020_000_000)));
        assert_eq!(
            (origin.decide_if_due([0, 1].into_iter(), 2 * SECOND), origin.next_due_time()),
            (None, None),
            "once"
        );
    }

    #[test]
    fn a_source_without_a_frame_is_not_waited_for_for_ever() {
        let mut origin = Origin::default();
        assert!(origin.note_first_frame(0, TaiNanos(0), 2_000_000_000, SECOND));
        assert_eq!(origin.decide_if_due([0, 1].into_iter(), 6 * SECOND - Duration::from_nanos(1)), None);
        assert_eq!(origin.decide_if_due([0, 1].into_iter(), 6 * SECOND), Some(TaiNanos(2_000_000_000)));
    }

    #[test]
    fn one_clock_that_is_wrong_does_not_say_when_events_begin() {
        let day = 86_400_000_000_000;
        for wrong in [2 * day, 0, u64::MAX] {
            let mut origin = Origin::default();
            for (source, time) in [(0, day), (1, wrong), (2, day + 500)] {
                assert!(origin.note_first_frame(source, TaiNanos(time), PERIOD, SECOND));
            }
            assert_eq!(origin.decide_if_due(0..3, SECOND), Some(TaiNanos(day + 500 + 1_020_000_000)));
        }
    }

    #[test]
    fn a_period_that_is_none_or_another_one_is_refused() {
        let mut origin = Origin::default();
        assert!([0, 999, u64::MAX].into_iter().all(|period| !origin.note_first_frame(0, TaiNanos(1), period, SECOND)));
        assert!(
            origin.note_first_frame(0, TaiNanos(1), PERIOD, SECOND)
                && !origin.note_first_frame(1, TaiNanos(1), 2 * PERIOD, SECOND)
        );
    }
}
