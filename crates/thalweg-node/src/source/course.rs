//! Course of the run at a source: how far it is, whether it takes fragments, and where the run ends.

use crate::State;
use thalweg_wire::{EventId, RunNumber, TaiNanos};

/// Phase of a run at a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Running,
    Paused,
    Ending,
}

/// State of a source with respect to taking fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Before,
    Open,
    Paused,
    Over,
}

/// Run at this source: its number and phase, the next event, the end, and the counts of what was taken from the device.
#[derive(Debug)]
pub(super) struct Course {
    phase: Phase,
    /// The leading builder asked for a pause before the other builders had begun.
    begins_paused: bool,
    run: RunNumber,
    /// Time at which the run began, as announced by builder 0.
    began: TaiNanos,
    /// First event of the run.
    first_event: u64,
    next_event: u64,
    /// Number of the next fragment, modulo 2³².
    sequence: u32,
    end_at: Option<u64>,
    /// True if this source does not continue to the end of the run, but ends at its present event.
    ends_here: bool,
    /// First event of the run under way at this source, where it followed another one.
    entered_at: u64,
    /// Next run, and its first event at this source.
    next_run: Option<(RunNumber, u64)>,
    /// True if there was no place for the next fragment.
    is_blocked: bool,
    counts: Counts,
}

/// Counts of what was taken from the device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) bytes: u64,
    pub(super) fragments: u64,
    /// Number of times that the device had to wait.
    pub(super) stalls: u64,
    /// Fragments that the device lost.
    pub(super) lost_in_device: u64,
}

impl Course {
    /// Creates the state before a run.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            begins_paused: false,
            run: RunNumber(0),
            began: TaiNanos(0),
            first_event: 0,
            next_event: 0,
            sequence: 0,
            end_at: None,
            ends_here: false,
            entered_at: 0,
            next_run: None,
            is_blocked: false,
            counts: Counts::default(),
        }
    }

    /// Returns the phase.
    pub(super) fn current_phase(&self) -> Phase {
        self.phase
    }

    /// Returns the phase as shown to users.
    pub(super) fn visible_state(&self) -> State {
        match self.phase {
            Phase::Waiting => State::Configured,
            Phase::Running => State::Running,
            Phase::Paused => State::Paused,
            Phase::Ending => State::Stopping,
        }
    }

    /// Returns whether fragments can be pushed: not before the run has begun, nor while it is about to stop.
    pub(super) fn push_standing(&self) -> Standing {
        match self.phase {
            Phase::Waiting => Standing::Before,
            Phase::Running if !self.is_at_end() => Standing::Open,
            Phase::Paused => Standing::Paused,
            Phase::Running | Phase::Ending => Standing::Over,
        }
    }

    /// Sets the first event of the run and its beginning, as builder 0 has announced them.
    pub(super) fn set_beginning(&mut self, first: EventId, began: TaiNanos) {
        (self.next_event, self.first_event) = (first.0, first.0);
        self.began = began;
    }

    /// Sets the number of the run.
    pub(super) fn set_run(&mut self, run: RunNumber) {
        self.run = run;
    }

    /// Begins to take fragments, or the pause that was requested before.
    pub(super) fn begin_taking(&mut self) {
        self.phase = if self.begins_paused { Phase::Paused } else { Phase::Running };
    }

    /// Pauses. Returns true if fragments were taken until now.
    pub(super) fn begin_pause(&mut self) -> bool {
        self.begins_paused |= self.phase == Phase::Waiting;
        let was_running = self.phase == Phase::Running;
        if was_running {
            self.phase = Phase::Paused;
        }
        was_running
    }

    /// Ends a pause. Returns true if there was one.
    pub(super) fn end_pause(&mut self) -> bool {
        self.is_blocked = false;
        self.begins_paused = false;
        let was_paused = self.phase == Phase::Paused;
        if was_paused {
            self.phase = Phase::Running;
        }
        was_paused
    }

    /// Ends the run before `end`, or with `ends_here` at the present event. Returns true if another end was known.
    pub(super) fn set_end_event(&mut self, end: EventId, ends_here: bool) -> bool {
        self.ends_here = ends_here;
        self.end_at.replace(end.0) != Some(end.0)
    }

    /// Begins the next run at event `first`, or with `here` at the present one, and without an end. Returns false if it
    /// was known already.
    pub(super) fn set_next_run(&mut self, run: RunNumber, first: EventId, here: bool) -> bool {
        if run == self.run || self.next_run.is_some() && !here {
            return false;
        }
        let first = if here { first.0.min(self.next_event) } else { first.0 };
        self.next_run = Some((run, first));
        self.end_at = None;
        self.ends_here = false;
        true
    }

    /// Returns the first event of the next run, if that is known.
    pub(super) fn next_run_event(&self) -> Option<u64> {
        self.next_run.map(|(_, first)| first)
    }

    /// Begins the next run if event `event`, the next one to be accepted, belongs to it. Returns the number of the run
    /// that ends.
    pub(super) fn enter_next_run(&mut self, event: u64) -> Option<RunNumber> {
        let (run, first) = self.next_run.take_if(|(_, first)| event >= *first)?;
        self.entered_at = first;
        Some(std::mem::replace(&mut self.run, run))
    }

    /// Ends this source's part of the run.
    pub(super) fn end_part(&mut self) {
        self.phase = Phase::Ending;
    }

    /// Returns the number of the run.
    pub(super) fn run_number(&self) -> RunNumber {
        self.run
    }

    /// Returns the date at which the run began.
    pub(super) fn began_date(&self) -> TaiNanos {
        self.began
    }

    /// Returns the first event of the run.
    pub(super) fn first_event(&self) -> u64 {
        self.first_event
    }

    /// Returns the first event of the run under way, where it followed another one; 0 otherwise.
    pub(super) fn entered_at(&self) -> u64 {
        self.entered_at
    }

    /// Returns the next event: the first one that is neither accepted nor skipped.
    pub(super) fn next_event(&self) -> u64 {
        self.next_event
    }

    /// Returns the sequence number of the next fragment.
    pub(super) fn next_sequence(&self) -> u32 {
        self.sequence
    }

    /// Returns the event before which the run ends, as far as it is known.
    pub(super) fn end_event(&self) -> Option<u64> {
        self.end_at
    }

    /// Returns whether the run ends before this event, as far as this source is concerned.
    pub(super) fn is_beyond_end(&self, event: u64) -> bool {
        self.ends_here || self.end_at.is_some_and(|end| event >= end)
    }

    /// Returns whether the run ends before the next event.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_beyond_end(self.next_event)
    }

    /// Goes to the next event, after a fragment with a payload of `len` bytes.
    pub(super) fn count_fragment(&mut self, len: usize) {
        self.next_event += 1;
        self.sequence = self.sequence.wrapping_add(1);
        self.counts.bytes += len as u64;
        self.counts.fragments += 1;
    }

    /// Goes to this event. There are no fragments of those in between.
    pub(super) fn go_to_event(&mut self, event: u64) {
        self.next_event = event;
    }

    /// Goes to the event `end`, since the device has lost the fragments of those in between.
    pub(super) fn count_lost_until(&mut self, end: u64) {
        let lost = end.saturating_sub(self.next_event);
        self.next_event += lost;
        self.counts.lost_in_device += lost;
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2³², as it is counted")]
        let skipped = lost as u32;
        self.sequence = self.sequence.wrapping_add(skipped);
    }

    /// Records that there is no place for the next fragment.
    pub(super) fn mark_blocked(&mut self) {
        self.counts.stalls += u64::from(!self.is_blocked);
        self.is_blocked = true;
    }

    /// Records that there may be a place for the next fragment.
    pub(super) fn clear_blocked(&mut self) {
        self.is_blocked = false;
    }

    /// Returns whether there was no place for the next fragment, and nothing has changed since.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Returns the counts of what was taken from the device.
    pub(super) fn taken_counts(&self) -> Counts {
        self.counts
    }

    #[cfg(test)]
    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }
}
