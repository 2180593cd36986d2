//! When event 0 is, where events are numbered by time and begin with a frame.
//!
//! Sources say when their first frames were taken. Event 0 is a second after the last of these, so that all of them hear of it
//! before; what they take until then belongs to no event.

use super::BuilderNode;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_link::LinkError;
use thalweg_wire::{Message, TaiNanos};

/// From the last source's first frame to event 0, at least.
const AHEAD: Duration = Duration::from_secs(1);
/// How long sources whose first frame has not come are waited for, from the first one's on.
const PATIENCE: Duration = Duration::from_secs(5);

/// When event 0 is, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// When the first frame of each source was taken.
    firsts: BTreeMap<usize, TaiNanos>,
    /// The first of them came then.
    since: Option<Duration>,
    period: Duration,
    decided: Option<TaiNanos>,
}

impl Origin {
    fn came(&mut self, source: usize, time: TaiNanos, period: Duration, now: Duration) {
        self.firsts.entry(source).or_insert(time);
        self.since.get_or_insert(now);
        self.period = self.period.max(period);
    }

    /// Decides, where all of `expected` are there or have been waited for. Returns what was decided just now.
    fn decide(&mut self, mut expected: impl Iterator<Item = usize>, now: Duration) -> Option<TaiNanos> {
        let since = self.since.filter(|_| self.decided.is_none())?;
        if now < since + PATIENCE && expected.any(|source| !self.firsts.contains_key(&source)) {
            return None;
        }
        let period = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX).max(1);
        let ahead = u64::try_from(AHEAD.as_nanos()).unwrap_or(u64::MAX).div_ceil(period).saturating_mul(period);
        let last = self.firsts.values().max()?;
        self.decided = Some(TaiNanos(last.0.saturating_add(ahead)));
        self.decided
    }

    /// When it is decided, though a source's first frame has not come.
    pub(super) fn next_time(&self) -> Option<Duration> {
        self.since.filter(|_| self.decided.is_none()).map(|since| since + PATIENCE)
    }
}

impl BuilderNode {
    /// A source says when its first frame was taken.
    pub(super) fn first_frame(&mut self, source: usize, time: TaiNanos, period_nanos: u64) -> Result<(), LinkError> {
        if self.index != 0 || !self.sources[source].by_time || period_nanos == 0 {
            let message = Message::FirstFrame { time, period_nanos };
            return Err(LinkError::Protocol(format!("unexpected: {message:?}")));
        }
        self.origin.came(source, time, Duration::from_nanos(period_nanos), self.clock.now());
        self.say_origin(source);
        Ok(())
    }

    /// Tells all sources when event 0 is, once that is known.
    pub(super) fn decide_origin(&mut self) {
        let Self { origin, sources, .. } = self;
        let there = |(index, state): (usize, &super::SourceState)| {
            (state.by_time && state.connection.is_some()).then_some(index)
        };
        let expected = sources.iter().enumerate().filter_map(there);
        if origin.decide(expected, self.clock.now()).is_some() {
            (0..self.sources.len()).for_each(|source| self.say_origin(source));
        }
    }

    /// Tells a source when event 0 is, where that is known.
    pub(super) fn say_origin(&mut self, source: usize) {
        let Some(time) = self.origin.decided.filter(|_| self.sources[source].by_time) else { return };
        if let Some(link) = self.sources[source].connection.and_then(|at| self.endpoints.link_mut(at)) {
            link.send(&Message::EventsBegin { time });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const PERIOD: Duration = Duration::from_millis(30);

    #[test]
    fn event_0_is_whole_periods_and_a_second_after_the_last_first_frame() {
        let mut origin = Origin::default();
        assert_eq!(origin.decide([0, 1].into_iter(), SECOND), None);
        origin.came(1, TaiNanos(7_000), PERIOD, SECOND);
        assert_eq!((origin.decide([0, 1].into_iter(), SECOND), origin.next_time()), (None, Some(6 * SECOND)));
        origin.came(0, TaiNanos(5_000), PERIOD, 2 * SECOND);
        assert_eq!(origin.decide([0, 1].into_iter(), 2 * SECOND), Some(TaiNanos(7_000 + 1_020_000_000)));
        assert_eq!((origin.decide([0, 1].into_iter(), 2 * SECOND), origin.next_time()), (None, None), "once");
    }

    #[test]
    fn a_source_without_a_frame_is_not_waited_for_for_ever() {
        let mut origin = Origin::default();
        origin.came(0, TaiNanos(0), 2 * SECOND, SECOND);
        assert_eq!(origin.decide([0, 1].into_iter(), 6 * SECOND - PERIOD), None);
        assert_eq!(origin.decide([0, 1].into_iter(), 6 * SECOND), Some(TaiNanos(2_000_000_000)));
    }
}
