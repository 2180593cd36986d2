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
