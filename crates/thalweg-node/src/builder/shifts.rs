//! Search, during a run, for sources whose event numbers are shifted against each other.

use std::time::Duration;
use thalweg_wire::{EventId, EventTimes, Shift, TriggerTimes};

/// Time from the comparison of one window to the beginning of the next.
const WINDOW_INTERVAL: Duration = Duration::from_secs(2);
/// Longest wait for further sources after the last report of one.
const REPORTS_TIME: Duration = Duration::from_secs(5);

/// Search for shifts in one run, by the builder that leads: sources report when the triggers of a window of events
/// were. One source is compared in a turn, since an event builder's thread has no more time for it.
#[derive(Debug)]
pub(super) struct ShiftSearch {
    window: Vec<Reported>,
    stage: Stage,
    /// Position of the sources when a window was last requested.
    position: u64,
    /// Last known shift of each source against most others.
    known: Vec<i32>,
    /// Sources that were found to be shifted at some time.
    reported: Vec<bool>,
    /// Sources whose guesses were found to be right at some time.
    agreed: Vec<bool>,
}

/// Report of a source for the window.
#[derive(Debug)]
struct Reported {
    times: EventTimes,
    /// Event below which all times have been reported.
    until: u64,
    /// True if the source takes some of its numbers for a guess.
    uncertain: bool,
}

#[derive(Debug)]
enum Stage {
    /// There is nothing to compare.
    Off,
    /// The next window is requested at this time.
    Waiting(Duration),
    /// Reports of the window are waited for, until this time.
    Collecting(Duration),
    /// The sources so far are compared with a reference.
    Comparing { reference: usize, shifts: Vec<Option<i32>> },
}

/// Result of the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Sources must report the times of a window's events.
    Ask {
        /// First event of the window.
        first: EventId,
    },
    /// A shift that was not there before.
    Found {
        shift: Shift,
        /// First event for which it holds, as far as is known.
        event: u64,
        /// True if this source was not shifted before in this run.
        is_first: bool,
    },
    /// A source takes its numbers for a guess, and they are right from an event on.
    Agrees {
        source: usize,
        first: EventId,
        /// True if this was not found before in this run.
        is_first: bool,
    },
}

impl ShiftSearch {
    /// Creates a search that does nothing, for the time before a run and for a builder that does not lead.
    pub(super) fn switched_off() -> Self {
        Self::new(0, EventId(0), Duration::ZERO)
    }

    /// Creates the search for a run that begins with the event `first`. Sources report the first window without being
    /// asked.
    pub(super) fn new(sources: usize, first: EventId, now: Duration) -> Self {
        Self {
            window: (0..sources)
                .map(|_| Reported { times: EventTimes::new(first.0), until: first.0, uncertain: false })
                .collect(),
            stage: if sources < 2 { Stage::Off } else { Stage::Collecting(now.saturating_add(REPORTS_TIME)) },
            position: first.0,
            known: vec![0; sources],
            reported: vec![false; sources],
            agreed: vec![false; sources],
        }
    }

    /// Returns whether reports are of use.
    pub(super) fn is_searching(&self) -> bool {
        !matches!(self.stage, Stage::Off)
    }

    /// Takes a report of a source.
    pub(super) fn take_report(&mut self, source: usize, report: &TriggerTimes, now: Duration) {
        let (Stage::Collecting(until), Some(reported)) = (&mut self.stage, self.window.get_mut(source)) else { return };
        let (first, end) = (reported.times.first_event(), reported.times.end_event());
        let behind = report.first.0.saturating_add(TriggerTimes::EVENTS_PER_MESSAGE);
        if report.first.0 < first || report.first.0 >= end {
            return;
        }
        for (place, time) in (0..).zip(report.times) {
            reported.times.record_time(EventId(report.first.0.wrapping_add(place)), time);
        }
        reported.uncertain |= report.uncertain;
        // A source that repeats a report does not extend the wait.
        if behind > reported.until {
            reported.until = behind;
            *until = (*until).max(now.saturating_add(REPORTS_TIME));
        }
    }

    /// Does a small part of the work and returns its results. `reports`: returns whether more may come from a source;
    /// `position`: returns where sources are.
    pub(super) fn take_turn(
        &mut self,
        now: Duration,
        reports: impl Fn(usize) -> bool,
        position: impl FnOnce() -> EventId,
    ) -> Vec<Outcome> {
        match &mut self.stage {
            Stage::Waiting(until) if now >= *until => {
                let position = position().0;
                // This is half a second from now, at the present rate of events: sources report what they have not
                // accepted yet.
                let ahead = position.saturating_sub(self.position) / 4;
                let first = position.saturating_add(ahead);
                self.position = position;
                for reported in &mut self.window {
                    reported.times.restart_at_event(first);
                    (reported.until, reported.uncertain) = (first, false);
                }
                self.stage = Stage::Collecting(now + REPORTS_TIME);
                return vec![Outcome::Ask { first: EventId(first) }];
            }
            Stage::Collecting(until) => {
                let end = self.window.first().map_or(0, |reported| reported.times.end_event());
                let mut all = self.window.iter().enumerate();
                let is_late = now >= *until;
                if is_late || all.all(|(source, reported)| reported.until >= end || !reports(source)) {
                    self.stage = match EventTimes::best_reference(self.window.iter().map(|reported| &reported.times)) {
                        Some(reference) => Stage::Comparing { reference, shifts: Vec::new() },
                        // Triggers are rare, or have paused.
                        None if is_late && position().0 < end => Stage::Collecting(now + REPORTS_TIME),
                        None => Stage::Waiting(now + WINDOW_INTERVAL),
                    };
                }
            }
            Stage::Comparing { reference, shifts } if shifts.len() < self.known.len() => {
                let reference = &self.window[*reference].times;
                shifts.push(self.window[shifts.len()].times.triggers_behind(reference));
            }
            Stage::Comparing { reference, shifts } => {
                let (reference, shifts) = (*reference, std::mem::take(shifts));
                self.stage = Stage::Waiting(now + WINDOW_INTERVAL);
                let mut outcomes = self.find_new_shifts(&shifts);
                outcomes.extend(self.find_new_agreements(reference, &shifts));
                return outcomes;
            }
            _ => {}
        }
        Vec::new()
    }

    /// Compares the reports received for the last window, at the end of the run.
    pub(super) fn finish_search(&mut self) -> Vec<Outcome> {
        let stage = std::mem::replace(&mut self.stage, Stage::Off);
        if !matches!(stage, Stage::Collecting(_) | Stage::Comparing { .. }) {
            return Vec::new();
        }
        let times = || self.window.iter().map(|reported| &reported.times);
        let Some(reference) = EventTimes::best_reference(times()) else { return Vec::new() };
        let shifts: Vec<_> = times().map(|times| times.triggers_behind(&self.window[reference].times)).collect();
        self.find_new_shifts(&shifts)
    }

    fn find_new_shifts(&mut self, shifts: &[Option<i32>]) -> Vec<Outcome> {
        let found = Shift::against_majority(shifts);
        let mut new = Vec::new();
        for (source, shift) in shifts.iter().enumerate() {
            let found = found.iter().find(|found| found.source == source);
            let behind = found.map_or(0, |found| found.behind);
            // If the times do not determine a shift, the previous one stays known.
            if shift.is_none() || std::mem::replace(&mut self.known[source], behind) == behind {
                continue;
            }
            if let Some(shift) = found {
                let is_first = !std::mem::replace(&mut self.reported[source], true);
                new.push(Outcome::Found { shift: *shift, event: self.window[source].times.first_event(), is_first });
            }
        }
        new
    }

    /// Returns the sources that take their numbers for a guess and have the same numbers as all that are sure of
    /// theirs.
    fn find_new_agreements(&mut self, reference: usize, shifts: &[Option<i32>]) -> Vec<Outcome> {
        let mut sure = self.window.iter().zip(shifts).filter(|(reported, _)| !reported.uncertain);
        let mut sure = sure.by_ref().filter_map(|(_, shift)| *shift);
        let is_any_uncertain = self.window.iter().any(|reported| reported.uncertain);
        let (Some(right), true) = (sure.next(), is_any_uncertain) else { return Vec::new() };
        let reference = &self.window[reference].times;
        if sure.any(|shift| shift != right) || reference.may_repeat_pattern() {
            return Vec::new();
        }
        let mut agreements = Vec::new();
        for (source, reported) in self.window.iter().enumerate() {
            if reported.uncertain
                && shifts[source] == Some(right)
                && reported.times.last_intervals_agree(reference, right)
            {
                let is_first = !std::mem::replace(&mut self.agreed[source], true);
                agreements.push(Outcome::Agrees { source, first: EventId(reported.times.first_event()), is_first });
            }
        }
        agreements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{SHIFT_WINDOW, TaiNanos, mix_bits};

    /// Time of a trigger; triggers are not spaced evenly.
    fn time(trigger: u64) -> TaiNanos {
        TaiNanos((0..trigger).fold(1 << 60, |time, trigger| time + 1_000_000 + mix_bits(trigger) % 1_000_000))
    }

    /// Reports a window's events for all sources, each behind by a number of triggers and sure of it or not. Returns
    /// the outcomes.
    fn window(search: &mut ShiftSearch, now: Duration, sources: &[(u64, bool)]) -> Vec<Outcome> {
        let first = search.window[0].times.first_event();
        for (source, (behind, uncertain)) in sources.iter().enumerate() {
            for event in (first..first + SHIFT_WINDOW).step_by(5) {
                let times = [0, 1, 2, 3, 4].map(|place| time(event + place + behind));
                let report = TriggerTimes { first: EventId(event), times, uncertain: *uncertain };
                search.take_report(source, &report, now);
            }
        }
        (0..10).flat_map(|_| search.take_turn(now, |_| true, || EventId(first + SHIFT_WINDOW))).collect()
    }

    fn ask(search: &mut ShiftSearch, now: Duration, position: u64) -> Vec<Outcome> {
        search.take_turn(now, |_| true, || EventId(position))
    }

    #[test]
    fn each_shift_is_found_once_and_a_source_is_reported_once() {
        let mut search = ShiftSearch::new(2, EventId(0), Duration::ZERO);
        assert_eq!(window(&mut search, Duration::ZERO, &[(0, false), (0, false)]), []);
        let found = |behind, event, is_first| {
            let shift = Shift { source: 1, behind, other: 0 };
            vec![Outcome::Found { shift, event, is_first }]
        };
        let expected = [found(3, 100, true), vec![], vec![], found(2, 100, false)];
        for ((looks, behind), expected) in (1..).zip([3, 3, 0, 2]).zip(expected) {
            search.position = 100;
            let now = WINDOW_INTERVAL * looks;
            assert_eq!(ask(&mut search, now, 100), [Outcome::Ask { first: EventId(100) }]);
            assert_eq!(window(&mut search, now, &[(0, false), (behind, false)]), expected, "look {looks}");
        }
        assert_eq!(search.finish_search(), []);
    }

    #[test]
    fn a_window_begins_ahead_of_what_sources_have() {
        let mut search = ShiftSearch::new(2, EventId(1000), Duration::ZERO);
        window(&mut search, Duration::ZERO, &[(0, false), (0, false)]);
        assert_eq!(ask(&mut search, WINDOW_INTERVAL, 5000), [Outcome::Ask { first: EventId(6000) }]);
    }

    #[test]
    fn a_guess_that_agrees_with_what_others_are_sure_of_is_right() {
        let agrees = |sources: &[(u64, bool)]| {
            let mut search = ShiftSearch::new(sources.len(), EventId(50), Duration::ZERO);
            let outcomes = window(&mut search, Duration::ZERO, sources);
            let agree = outcomes.into_iter().filter_map(|outcome| match outcome {
                Outcome::Agrees { source, first: EventId(50), is_first: true } => Some(source),
                _ => None,
            });
            Vec::<usize>::from_iter(agree)
        };
        assert_eq!(agrees(&[(0, false), (0, true), (2, true)]), [1]);
        assert_eq!(agrees(&[(7, true), (7, false)]), [0]);
        assert!(agrees(&[(0, true), (0, true)]).is_empty(), "no source is sure");
        assert!(agrees(&[(0, false), (0, true), (1, false)]).is_empty(), "those that are sure differ");
    }

    #[test]
    fn triggers_that_come_in_a_pattern_confirm_no_guess() {
        let mut search = ShiftSearch::new(2, EventId(0), Duration::ZERO);
        for source in 0..2 {
            for event in (0..SHIFT_WINDOW).step_by(5) {
                let times = [0, 1, 2, 3, 4].map(|place| {
                    let event = event + place;
                    TaiNanos(time(event % 30).0 + event / 30 * 1_000_000_000)
                });
                let report = TriggerTimes { first: EventId(event), times, uncertain: source == 1 };
                search.take_report(source, &report, Duration::ZERO);
            }
        }
        let outcomes = (0..10).flat_map(|_| search.take_turn(Duration::ZERO, |_| true, || EventId(0)));
        assert_eq!(outcomes.collect::<Vec<_>>(), []);
    }

    #[test]
    fn a_source_that_does_not_report_is_waited_for_for_some_seconds() {
        let mut search = ShiftSearch::new(3, EventId(0), Duration::ZERO);
        let sources = [(0, false), (4, false)];
        assert_eq!(window(&mut search, Duration::ZERO, &sources), []);
        let found = |search: &mut ShiftSearch, now| {
            (0..10).flat_map(|_| search.take_turn(now, |_| true, || EventId(0))).count()
        };
        assert_eq!(found(&mut search, REPORTS_TIME - Duration::from_millis(1)), 0);
        assert_eq!(found(&mut search, REPORTS_TIME), 1);
        // A source that is gone is not waited for.
        let mut search = ShiftSearch::new(3, EventId(0), Duration::ZERO);
        window(&mut search, Duration::ZERO, &sources);
        let outcomes = (0..10).flat_map(|_| search.take_turn(Duration::ZERO, |source| source < 2, || EventId(0)));
        assert_eq!(outcomes.count(), 1);
    }

    #[test]
    fn a_source_that_reports_the_same_again_holds_nothing_up() {
        let mut search = ShiftSearch::new(2, EventId(0), Duration::ZERO);
        let report = TriggerTimes { first: EventId(0), times: [TaiNanos(1); 5], uncertain: false };
        (0..100).for_each(|second| search.take_report(0, &report, Duration::from_secs(second)));
        search.take_turn(REPORTS_TIME, |_| true, || EventId(1000));
        assert!(matches!(search.stage, Stage::Waiting(_)));
    }

    #[test]
    fn rare_triggers_are_waited_for() {
        let mut search = ShiftSearch::new(2, EventId(0), Duration::ZERO);
        for looks in 1..100 {
            search.take_turn(REPORTS_TIME * looks, |_| true, || EventId(looks.into()));
            assert!(matches!(search.stage, Stage::Collecting(_)), "{looks}");
        }
        assert_eq!(window(&mut search, REPORTS_TIME * 100, &[(0, false), (2, false)]).len(), 1);
    }

    #[test]
    fn a_source_alone_has_nothing_to_be_compared_with() {
        for mut search in [ShiftSearch::new(1, EventId(0), Duration::ZERO), ShiftSearch::switched_off()] {
            assert!(!search.is_searching());
            assert!(search.take_turn(Duration::MAX, |_| true, || EventId(0)).is_empty());
            assert!(search.finish_search().is_empty());
        }
    }

    #[test]
    fn a_window_may_be_at_the_end_of_the_numbers() {
        let mut search = ShiftSearch::new(2, EventId(u64::MAX - 3), Duration::ZERO);
        let report = TriggerTimes { first: EventId(u64::MAX - 1), times: [TaiNanos(1); 5], uncertain: false };
        search.take_report(0, &report, Duration::ZERO);
        assert_eq!(search.window[0].until, u64::MAX);
        assert_eq!(search.finish_search(), []);
    }

    #[test]
    fn reports_of_other_events_are_passed_over() {
        let mut search = ShiftSearch::new(2, EventId(1000), Duration::ZERO);
        for first in [0, 999, 1000 + SHIFT_WINDOW, u64::MAX] {
            let report = TriggerTimes { first: EventId(first), times: [TaiNanos(1); 5], uncertain: true };
            search.take_report(0, &report, Duration::ZERO);
            search.take_report(7, &report, Duration::ZERO);
        }
        assert!(!search.window[0].uncertain && search.window[0].until == 1000);
    }
}
