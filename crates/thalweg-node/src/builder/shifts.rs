//! Looks, while a run is taken, for sources whose event numbers are shifted against each other.

use super::BuilderNode;
use std::time::Duration;
use thalweg_wire::{EventId, EventTimes, FragmentHeader, Shift};

/// How long after one window was compared the next begins.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The search for shifts of one run. One window of events at a time is looked at, and one source is compared in a turn:
/// an event builder's thread has no more time for it.
#[derive(Debug)]
pub(super) struct ShiftSearch {
    /// Each source's times in the window.
    window: Vec<EventTimes>,
    stage: Stage,
    /// Each source's last known shift against most others.
    known: Vec<i32>,
    /// Sources that were found to be shifted at some time.
    reported: Vec<bool>,
}

#[derive(Debug)]
enum Stage {
    /// There is nothing to compare.
    Off,
    /// The next window begins at this time.
    Waiting(Duration),
    /// Times of the window's events come in.
    Collecting,
    /// The sources so far are compared with a reference.
    Comparing { reference: usize, shifts: Vec<Option<i32>> },
}

/// A shift that was not there before.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) shift: Shift,
    /// The first event for which it holds, as far as is known.
    pub(super) event: u64,
    /// This source was not shifted before in this run.
    pub(super) is_first: bool,
}

impl ShiftSearch {
    /// Before a run has begun.
    pub(super) fn off() -> Self {
        Self::new(0, 1, EventId(0))
    }

    /// For a run that begins with the event `first`. One of `builders` sees every so many'th event only: where there
    /// are several, no one looks.
    pub(super) fn new(sources: usize, builders: u32, first: EventId) -> Self {
        let stage = if sources < 2 || builders > 1 { Stage::Off } else { Stage::Collecting };
        Self {
            window: vec![EventTimes::new(first.0); sources],
            stage,
            known: vec![0; sources],
            reported: vec![false; sources],
        }
    }

    /// Takes note of a fragment that arrived.
    #[inline]
    pub(super) fn note(&mut self, source: usize, header: &FragmentHeader) {
        if matches!(self.stage, Stage::Collecting) {
            self.window[source].note(header);
        }
    }

    /// Does a little of the work. All events below `closed` are built; of none from `next` on has anything come.
    pub(super) fn turn(&mut self, now: Duration, closed: EventId, next: impl FnOnce() -> EventId) -> Vec<Found> {
        match &mut self.stage {
            Stage::Waiting(until) if now >= *until => {
                let first = next().0;
                self.window.iter_mut().for_each(|times| times.begin_at(first));
                self.stage = Stage::Collecting;
            }
            Stage::Collecting if closed.0 >= self.window[0].end() => {
                self.stage = match EventTimes::reference(&self.window) {
                    Some(reference) => Stage::Comparing { reference, shifts: Vec::new() },
                    None => Stage::Waiting(now + LOOK_AGAIN),
                };
            }
            Stage::Comparing { reference, shifts } if shifts.len() < self.known.len() => {
                shifts.push(self.window[shifts.len()].behind(&self.window[*reference]));
            }
            Stage::Comparing { shifts, .. } => {
                let shifts = std::mem::take(shifts);
                self.stage = Stage::Waiting(now + LOOK_AGAIN);
                return self.conclude(&shifts);
            }
            _ => {}
        }
        Vec::new()
    }

    /// The run is over: compares what has come of the last window.
    pub(super) fn finish(&mut self) -> Vec<Found> {
        let stage = std::mem::replace(&mut self.stage, Stage::Off);
        if !matches!(stage, Stage::Collecting | Stage::Comparing { .. }) {
            return Vec::new();
        }
        let Some(reference) = EventTimes::reference(&self.window) else { return Vec::new() };
        let shifts: Vec<_> = self.window.iter().map(|times| times.behind(&self.window[reference])).collect();
        self.conclude(&shifts)
    }

    fn conclude(&mut self, shifts: &[Option<i32>]) -> Vec<Found> {
        let found = Shift::against_most(shifts);
        let mut new = Vec::new();
        for (source, shift) in shifts.iter().enumerate() {
            let found = found.iter().find(|found| found.source == source);
            let behind = found.map_or(0, |found| found.behind);
            // Where the times do not tell, what was known stays so.
            if shift.is_none() || std::mem::replace(&mut self.known[source], behind) == behind {
                continue;
            }
            if let Some(shift) = found {
                let is_first = !std::mem::replace(&mut self.reported[source], true);
                new.push(Found { shift: *shift, event: self.window[source].first(), is_first });
            }
        }
        new
    }
}

impl BuilderNode {
    pub(super) fn search_for_shifts(&mut self) {
        if matches!(self.shifts.stage, Stage::Off) {
            return;
        }
        let Self { builder, shifts, sources, .. } = self;
        let next = || (0..sources.len()).map(|source| builder.offered_until(source)).max().unwrap_or_default();
        let found = shifts.turn(self.clock.now(), builder.closed_until(), next);
        self.report_shifts(found);
    }

    pub(super) fn report_shifts(&mut self, found: Vec<Found>) {
        for Found { shift, event, is_first } in found {
            let name = |source: usize| format!("{} ({})", self.ids[source].0, self.ids[source].1);
            let text = shift.describe(&name(shift.source), &name(shift.other), event);
            tracing::warn!("{text}");
            if is_first {
                self.tally.reasons.push(text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{SHIFT_WINDOW, TaiNanos, mix};

    /// Triggers that are not spaced evenly.
    fn time(trigger: u64) -> TaiNanos {
        TaiNanos((0..trigger).fold(1 << 60, |time, trigger| time + 1_000_000 + mix(trigger) % 1_000_000))
    }

    /// Two sources have a window's events, the second behind by so many triggers. Returns what is found.
    fn window(search: &mut ShiftSearch, now: Duration, behind: u64) -> Vec<(i32, u64, bool)> {
        let first = search.window[0].first();
        for event in first..first + SHIFT_WINDOW {
            for source in 0..2 {
                let trigger = event + behind * source;
                let header =
                    FragmentHeader { event: EventId(event), timestamp: time(trigger), ..FragmentHeader::default() };
                search.note(usize::try_from(source).unwrap(), &header);
            }
        }
        let closed = EventId(first + SHIFT_WINDOW);
        let found = (0..10).flat_map(|_| search.turn(now, closed, || closed));
        found.map(|found| (found.shift.behind, found.event, found.is_first)).collect()
    }

    #[test]
    fn each_shift_is_found_once_and_a_source_is_reported_once() {
        let mut search = ShiftSearch::new(2, 1, EventId(0));
        assert_eq!(window(&mut search, Duration::ZERO, 0), []);
        let at = |looks: u32| LOOK_AGAIN * looks;
        let begin = |search: &mut ShiftSearch, now| search.turn(now, EventId(0), || EventId(1000)).is_empty();
        assert!(begin(&mut search, at(1)));
        assert_eq!(window(&mut search, at(1), 3), [(3, 1000, true)]);
        for (looks, behind, expected) in [(2, 3, vec![]), (3, 0, vec![]), (4, 2, vec![(2, 1000, false)])] {
            assert!(begin(&mut search, at(looks)));
            assert_eq!(window(&mut search, at(looks), behind), expected, "look {looks}");
        }
        assert!(search.finish().is_empty());
    }

    #[test]
    fn where_several_builders_build_or_a_source_is_alone_none_are_looked_for() {
        for mut search in [ShiftSearch::new(2, 2, EventId(0)), ShiftSearch::new(1, 1, EventId(0)), ShiftSearch::off()] {
            assert!(matches!(search.stage, Stage::Off));
            assert!(search.turn(Duration::MAX, EventId(u64::MAX), || EventId(0)).is_empty());
            assert!(search.finish().is_empty());
        }
    }
}
