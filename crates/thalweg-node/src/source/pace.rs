//! Pace of a device that has a rate: when its next event is due, and the time in which nothing could be taken.

use crate::EventRate;
use std::time::Duration;
use thalweg_wire::NotTaken;

/// Times at which events are due, if the device has a rate, and dead time: periods in which nothing could be taken
/// though it was due.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<EventRate>,
    /// Number of events that come at once, at the same mean rate.
    burst: u32,
    /// Time at which the next event is due, if there is a rate and the run has begun.
    due: Option<Duration>,
    dead: NotTaken,
    /// Time up to which dead time has been counted, while it lasts.
    dead_since: Option<Duration>,
}

impl Pace {
    /// Creates the pace of a device whose events come as fast as they are taken, if it has no rate.
    pub(super) fn new(rate: Option<EventRate>, burst: u32) -> Self {
        Self { rate, burst: burst.max(1), due: None, dead: NotTaken::default(), dead_since: None }
    }

    /// Begins the run: the first event is due now.
    pub(super) fn begin_run(&mut self, now: Duration) {
        self.due = self.rate.map(|_| now);
    }

    /// Goes on after a pause. Fragments that were due meanwhile do not come in a burst.
    pub(super) fn end_pause(&mut self, now: Duration) {
        self.due = self.due.map(|due| due.max(now));
    }

    /// Returns whether events are due at certain times.
    pub(super) fn has_due_times(&self) -> bool {
        self.due.is_some()
    }

    /// Returns whether the next event is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    /// Returns when the next event is due: at once without a rate.
    pub(super) fn next_due(&self, now: Duration) -> Duration {
        self.due.unwrap_or(now)
    }

    /// Sets the time at which the event `next` is due, which is the next one now. Bursts begin at multiples of their
    /// length, at all sources alike.
    pub(super) fn go_to_event(&mut self, next: u64) {
        if let (Some(due), Some(rate)) = (&mut self.due, self.rate)
            && next.is_multiple_of(self.burst.into())
        {
            *due += rate.event_interval() * self.burst;
        }
    }

    /// Counts dead time while the device waits. If it has a rate, fragments that were due meanwhile do not come in a
    /// burst afterwards, nor at all: the fragment that waits is the one that was due first.
    pub(super) fn count_dead_time(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.dead_since.replace(now).unwrap_or(now));
        self.dead.dead_nanos += u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let (Some(due), Some(rate)) = (&mut self.due, self.rate) else { return };
        let interval = rate.event_interval().as_nanos().max(1);
        let missed = u64::try_from(now.saturating_sub(*due).as_nanos() / interval).unwrap_or(u64::MAX);
        self.dead.fragments += missed;
        *due += Duration::from_nanos(u64::try_from(interval * u128::from(missed)).unwrap_or(u64::MAX));
    }

    /// Ends the dead time, if there is one under way.
    pub(super) fn end_dead_time(&mut self, now: Duration) {
        if self.dead_since.is_some() {
            self.count_dead_time(now);
            self.dead_since = None;
        }
    }

    /// Counts the dead time up to a pause, in which there is none.
    pub(super) fn begin_pause(&mut self, now: Duration) {
        self.count_dead_time(now);
        self.dead_since = None;
    }

    /// Begins the counts of the next run.
    pub(super) fn begin_next_run(&mut self, now: Duration) {
        self.dead = NotTaken::default();
        self.dead_since = self.dead_since.map(|_| now);
    }

    /// Returns the counts of what was due and not taken.
    pub(super) fn not_taken(&self) -> NotTaken {
        self.dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64, burst: u32) -> Pace {
        Pace::new(Some(EventRate::try_from(rate).unwrap()), burst)
    }

    #[test]
    fn the_events_of_a_burst_are_due_at_once_and_the_next_burst_later_by_as_much() {
        let mut pace = pace(1000.0, 4);
        pace.begin_run(Duration::ZERO);
        let due = (1..10).map(|next| {
            let due = pace.next_due(Duration::MAX).as_millis();
            pace.go_to_event(next);
            due
        });
        assert_eq!(due.collect::<Vec<_>>(), [0, 0, 0, 0, 4, 4, 4, 4, 8]);
    }

    #[test]
    fn what_a_device_was_to_give_while_all_slots_were_full_is_dead_time() {
        let at = Duration::from_millis;
        let mut pace = pace(10.0, 1);
        // It was due 350 ms ago, and three more have been due since.
        pace.begin_run(at(1000));
        pace.count_dead_time(at(1350));
        assert_eq!((pace.not_taken().fragments, pace.next_due(Duration::ZERO)), (3, at(1300)));
        pace.end_dead_time(at(1375));
        assert_eq!(pace.not_taken(), NotTaken { fragments: 3, dead_nanos: 25_000_000, ..NotTaken::default() });
        pace.end_dead_time(at(1399));
        assert_eq!(pace.not_taken().dead_nanos, 25_000_000);
    }
}
