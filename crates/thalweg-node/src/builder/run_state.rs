//! State of a run: its number and beginning, final counters that came too early, and how it is over.

use super::setup::FIRST_EVENT;
use crate::handle::Request;
use crate::{NodeError, RunOrder};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_core::control::{SourceCommand, State};
use thalweg_store::Step;
use thalweg_wire::{EventId, FinalCounters, Message, RunNumber, TaiNanos};

/// Longest time that a source's final counters wait until it is known where the run ends.
const END_KNOWN_TIME: Duration = Duration::from_secs(2);

/// State of a run beside its control: number, beginning, final counters that wait, and its end.
#[derive(Debug)]
pub(super) struct RunState {
    number: RunNumber,
    /// Date of the beginning, and its time.
    began: TaiNanos,
    began_at: Duration,
    /// Number of the run that this one has followed without a gap, and of the one that is to follow it so.
    previous: Option<RunNumber>,
    next: RunNumber,
    /// Order for the run, given before it began.
    order: RunOrder,
    /// Dates at which the run and its end were asked for.
    asked: Option<TaiNanos>,
    stop_asked: Option<TaiNanos>,
    /// Steps of a scan, with their bytes, and those of which the event is not agreed on yet: several only in a pause.
    steps: Vec<Step>,
    steps_bytes: usize,
    next_steps: VecDeque<NextStep>,
    /// True if events that were not built are lost, since the run was to end at once.
    is_abandoned: bool,
    /// State at the last check, to detect changes.
    state: State,
    /// Final counters by source, and the time since which they wait for the run to begin, or until it is known where it
    /// ends.
    early_ends: Vec<Option<(FinalCounters, Duration)>>,
    /// True once everything is built and only has to be written to disk.
    is_over: bool,
    /// Reason why the run did not begin, if it did not.
    error: Option<NodeError>,
}

/// Step of which the event is not agreed on yet, with the request for it, which is answered then.
#[derive(Debug)]
pub(super) struct NextStep {
    pub(super) step: Step,
    pub(super) request: Option<Request>,
}

impl RunState {
    /// Creates the state before a run.
    pub(super) fn new(state: State, sources: usize, now: Duration) -> Self {
        Self {
            number: RunNumber(0),
            began: TaiNanos(0),
            began_at: now,
            previous: None,
            next: RunNumber(0),
            order: RunOrder::default(),
            asked: None,
            stop_asked: None,
            steps: Vec::new(),
            steps_bytes: 0,
            next_steps: VecDeque::new(),
            is_abandoned: false,
            state,
            early_ends: vec![None; sources],
            is_over: false,
            error: None,
        }
    }

    /// Sets the number and the date of the beginning.
    pub(super) fn set_run(&mut self, number: RunNumber, date: TaiNanos) {
        (self.number, self.began) = (number, date);
    }

    /// Begins the run, which is open.
    pub(super) fn begin_run(&mut self, now: Duration) {
        self.began_at = now;
    }

    /// Begins the next run, which was asked for and prepared at these dates, and has lasted since `now`.
    pub(super) fn begin_next_run(&mut self, number: RunNumber, asked: TaiNanos, began: TaiNanos, now: Duration) {
        let (previous, early_ends) = (Some(self.number), std::mem::take(&mut self.early_ends));
        *self = Self { number, previous, early_ends, asked: Some(asked), began, ..Self::new(self.state, 0, now) };
    }

    /// Sets the number of the run that is to follow this one without a gap.
    pub(super) fn set_next_number(&mut self, number: RunNumber) {
        self.next = number;
    }

    /// Returns the number of the run that this one has followed without a gap; `None` if it has followed none.
    pub(super) fn previous_number(&self) -> Option<RunNumber> {
        self.previous
    }

    /// Sets the order for the run, which has not begun.
    pub(super) fn set_order(&mut self, order: RunOrder) {
        self.order = order;
    }

    /// Returns the number of the order for the run.
    pub(super) fn prepared_number(&self) -> Option<u32> {
        self.order.number
    }

    /// Removes and returns the order for the run.
    pub(super) fn take_order(&mut self) -> RunOrder {
        std::mem::take(&mut self.order)
    }

    /// Notes when the run was asked for.
    pub(super) fn note_asked(&mut self, date: TaiNanos) {
        self.asked.get_or_insert(date);
    }

    /// Notes when the end of the run was asked for.
    pub(super) fn note_stop_asked(&mut self, date: TaiNanos) {
        self.stop_asked.get_or_insert(date);
    }

    /// Returns when the run was asked for, and its end.
    pub(super) fn asked_dates(&self) -> [Option<TaiNanos>; 2] {
        [self.asked, self.stop_asked]
    }

    /// Notes that events that are not built are lost, since the run is to end at once.
    pub(super) fn note_abandoned(&mut self) {
        self.is_abandoned = true;
    }

    /// Returns whether events that were not built are lost, since the run was to end at once.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Returns whether the steps of the run stay within `limit` bytes with one of these bytes more.
    pub(super) fn has_room_for_step(&self, bytes: usize, limit: usize) -> bool {
        // Each takes some bytes more in the run's file.
        self.steps_bytes + self.steps.len() * 128 + bytes <= limit
    }

    /// Keeps a step until its event is agreed on.
    pub(super) fn add_next_step(&mut self, step: Step) {
        self.next_steps.push_back(NextStep { step, request: None });
    }

    /// Keeps the request for the last of these steps.
    pub(super) fn hold_step_request(&mut self, request: Request) {
        if let Some(next) = self.next_steps.back_mut() {
            next.request = Some(request);
        }
    }

    /// Marks the first step that was to be agreed on at this event. Returns it, and the request for it.
    pub(super) fn mark_step(&mut self, event: EventId) -> Option<(&Step, Option<Request>)> {
        let NextStep { step, request } = self.next_steps.pop_front()?;
        let step = Step { event: event.0, ..step };
        self.steps_bytes += step.label.len() + step.data.to_string().len();
        self.steps.push(step);
        Some((self.steps.last()?, request))
    }

    /// Removes and returns the first step that is to be agreed on.
    pub(super) fn take_next_step(&mut self) -> Option<NextStep> {
        self.next_steps.pop_front()
    }

    /// Removes and returns the steps of the run.
    pub(super) fn take_steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// Returns the number of the run; 0 before it is known.
    pub(super) fn run_number(&self) -> RunNumber {
        self.number
    }

    /// Returns the time at which the run began.
    pub(super) fn began_at(&self) -> Duration {
        self.began_at
    }

    /// Returns the seconds from the beginning to this time.
    pub(super) fn seconds_until(&self, at: Duration) -> f64 {
        (at - self.began_at).as_secs_f64()
    }

    /// Returns the message that tells a source something about the run.
    pub(super) fn control_message(&self, tell: SourceCommand) -> Message {
        match tell {
            SourceCommand::Start => Message::Start { run: self.number, first: FIRST_EVENT, at: self.began },
            SourceCommand::Pause => Message::Pause,
            SourceCommand::Resume => Message::Resume,
            SourceCommand::StopAt { end, end_here } => Message::StopAt { end, end_here },
            SourceCommand::NextRun { first, here } => Message::NextRun { first, run: self.next, here },
        }
    }

    /// Notes the present state. Returns true if it is another one than before.
    pub(super) fn note_state(&mut self, state: State) -> bool {
        std::mem::replace(&mut self.state, state) != state
    }

    /// Keeps the final counters of a source until it is known where the run ends, since they came before that.
    pub(super) fn keep_early_end(&mut self, source: usize, final_counters: FinalCounters, now: Duration) {
        let since = self.early_ends[source].map_or(now, |(_, since)| since);
        self.early_ends[source] = Some((final_counters, since));
    }

    /// Removes and returns the final counters of a source that have waited for long enough. `is_told_sooner`: another
    /// builder knows where the run ends, and this one does not.
    pub(super) fn take_early_end(
        &mut self,
        source: usize,
        is_told_sooner: bool,
        now: Duration,
    ) -> Option<FinalCounters> {
        let end = self.early_ends[source].take_if(|(_, since)| !is_told_sooner || now >= *since + END_KNOWN_TIME);
        end.map(|(final_counters, _)| final_counters)
    }

    /// Forgets final counters of a source whose process was restarted: they are not its own.
    pub(super) fn forget_early_end(&mut self, source: usize) {
        self.early_ends[source] = None;
    }

    /// Returns when the next of these counters has waited for too long.
    pub(super) fn next_early_end(&self) -> Option<Duration> {
        self.early_ends.iter().flatten().map(|(_, since)| *since + END_KNOWN_TIME).min()
    }

    /// Ends the building of events. `error`: reason why the run did not begin, if it did not.
    pub(super) fn end_building(&mut self, error: Option<NodeError>) {
        (self.is_over, self.error) = (true, error);
    }

    /// Returns whether everything is built, and only has to be written to disk.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the reason why the run did not begin, if it did not.
    pub(super) fn take_error(&mut self) -> Option<NodeError> {
        self.error.take()
    }
}
