//! Boundaries between two events, on which all sources agree while a run goes on: a step of a scan, or the beginning of
//! the next run.
//!
//! The agreement is that of the end of a run. Sources pause and report their positions, and the boundary is the furthest
//! of these: no fragment that was accepted before belongs to an event beyond it. At a step the sources then go on, and
//! the number of the event is noted. At the beginning of the next run each source goes on up to the boundary in the run
//! under way, sends its counters of that run, and goes on in the next one without a pause. The next run begins at this
//! builder once everything before the boundary is built.
//!
//! A source that makes no progress towards the boundary for half of the timeout goes over where it is; one that does not
//! do that either within the timeout is given up.

use crate::control::control::{Facts, Phase, RunControl, Source};
use crate::control::{Command, Order, Refused, SourceCommand, State};
use std::time::Duration;
use thalweg_wire::{EventId, RunNumber};
use thiserror::Error;

/// Purpose of a boundary between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A step of a scan begins there, in the same run.
    Step,
    /// The next run begins there.
    NextRun,
}

/// Reason why no boundary is set now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BoundaryRefused {
    /// A step can be marked only in a run whose sources agree on nothing else.
    #[error("cannot mark a step: the run is {0}")]
    Step(State),
    /// The next run can begin only while a run is under way, and not before the one before it.
    #[error("cannot begin the next run: the run is {0}")]
    NextRun(State),
    /// Another builder leads the run.
    #[error("builder 0 leads the run: give the command to it")]
    NotLeading,
}

impl RunControl {
    /// Returns an error if no boundary for this purpose can be set now.
    ///
    /// # Errors
    /// The reason.
    pub fn check_boundary(&self, boundary: Boundary) -> Result<(), BoundaryRefused> {
        if !self.config.leads {
            return Err(BoundaryRefused::NotLeading);
        }
        match (boundary, self.phase) {
            (_, Phase::Running) | (Boundary::Step, Phase::Paused) => Ok(()),
            (Boundary::Step, _) => Err(BoundaryRefused::Step(self.run_state())),
            (Boundary::NextRun, _) => Err(BoundaryRefused::NextRun(self.run_state())),
        }
    }

    /// Begins the agreement on a boundary. While the run is paused, the positions of the sources are known.
    ///
    /// # Errors
    /// Those of [`check_boundary`](Self::check_boundary).
    pub fn request_boundary(&mut self, boundary: Boundary, facts: &impl Facts) -> Result<(), BoundaryRefused> {
        self.check_boundary(boundary)?;
        if self.phase == Phase::Paused {
            self.mark_step(facts);
            return Ok(());
        }
        // Reports received while the run was being resumed are not answers to this request.
        self.sources.iter_mut().for_each(|source| source.next = None);
        self.phase = Phase::Agreeing { waited: Duration::ZERO, boundary };
        self.send_to_live(|_| SourceCommand::Pause);
        Ok(())
    }

    /// Returns whether the next run is agreed on, or is about to be, and has not begun.
    pub fn is_next_run_due(&self) -> bool {
        matches!(self.phase, Phase::Agreeing { boundary: Boundary::NextRun, .. } | Phase::Switching { .. })
    }

    /// Returns whether sources are being asked where the next step begins.
    pub fn is_step_due(&self) -> bool {
        matches!(self.phase, Phase::Agreeing { boundary: Boundary::Step, .. })
    }

    /// Waits for sources to report their positions, and then sets the boundary.
    pub(crate) fn await_boundary(&mut self, waited: Duration, boundary: Boundary, facts: &impl Facts) {
        if waited < self.config.time_to_answer() && self.awaited_sources().next().is_some() {
            return;
        }
        match boundary {
            Boundary::Step => {
                self.mark_step(facts);
                self.resume_sources();
            }
            Boundary::NextRun => {
                let event = self.next_boundary(facts);
                match self.end {
                    // The run has all its events: it ends there by itself.
                    Some(end) if event >= end => self.resume_sources(),
                    _ => self.switch_at(event),
                }
            }
        }
    }

    fn mark_step(&mut self, facts: &impl Facts) {
        self.last_boundary = self.next_boundary(facts);
        self.orders.push_back(Order::MarkStep(self.last_boundary));
    }

    /// Returns the first event that no source has accepted, or the boundary before where that is further: the source that
    /// was there may have been given up since.
    fn next_boundary(&self, facts: &impl Facts) -> EventId {
        self.furthest_position(facts).max(self.last_boundary)
    }

    /// Takes a source's relay that the leading builder begins the next run at this event; the source goes on.
    pub fn handle_relayed_next_run(&mut self, source: usize, first: EventId, run: RunNumber) {
        self.handle_relayed_run(source);
        let source = &mut self.sources[source];
        source.next_elsewhere = Some((first, run));
        // An end that was set before was that of the run under way.
        source.end_elsewhere = None;
    }

    /// Takes a source's report that all other builders have begun this run.
    pub fn handle_begun_elsewhere(&mut self, source: usize, run: RunNumber) {
        self.sources[source].begun_elsewhere = run;
    }

    /// Returns whether all builders have begun this run, which followed another one, as most sources report.
    pub fn is_begun_elsewhere(&self, run: RunNumber) -> bool {
        self.config.builders == 1 || self.most_received(|source| source.begun_elsewhere == run)
    }

    /// Returns the first event and the number of the next run that the leading builder has set, as relayed by most
    /// sources. One source cannot end a run.
    pub(crate) fn agreed_next_run(&self) -> Option<(EventId, RunNumber)> {
        if self.config.leads {
            return None;
        }
        let voters = self.sources.iter().filter(|source| source.may_accept_events());
        let votes: Vec<_> = voters.clone().filter_map(|source| source.next_elsewhere).collect();
        let needed = voters.count() / 2 + 1;
        votes.iter().copied().find(|next| votes.iter().filter(|vote| *vote == next).count() >= needed)
    }

    /// Ends the run under way where the leading builder does, and begins the next one there.
    pub(crate) fn follow_to_next_run(&mut self, first: EventId, run: RunNumber, facts: &impl Facts) {
        self.orders.push_back(Order::PrepareNext(run));
        self.switch_at(first.max(facts.closed_until()).max(self.last_boundary));
    }

    /// Lets the run under way end, and the next one begin, at this event.
    fn switch_at(&mut self, event: EventId) {
        (self.boundary, self.last_boundary) = (Some(event), event);
        self.next_began = self.pace.elapsed();
        self.must_end_next = false;
        let events = self.config.end.map(|end| end.0 - self.config.first.0);
        self.end = events.map(|events| EventId(event.0.saturating_add(events)));
        self.config.end = self.end;
        self.phase = Phase::Switching { is_due: false };
        self.orders.push_back(Order::SwitchAt(event));
        for index in 0..self.sources.len() {
            let source = &mut self.sources[index];
            (source.waited, source.has_crossed, source.crosses_here) = (Duration::ZERO, false, false);
            source.next_elsewhere = None;
            if self.config.leads && source.present && source.may_accept_events() {
                let messages = self.boundary_messages_for(index);
                self.orders.extend(messages.into_iter().map(|message| Order::SourceCommand(index, message)));
            }
        }
    }

    /// Returns the messages that inform a source of the next run, while that is agreed on and has not begun.
    pub(crate) fn boundary_messages_for(&self, source: usize) -> Vec<SourceCommand> {
        let Some(first) = self.boundary.filter(|_| self.config.leads) else { return Vec::new() };
        let next_run = SourceCommand::NextRun { first, here: self.sources[source].crosses_here };
        let end = self.end.map(|end| SourceCommand::StopAt { end, end_here: false });
        [Some(next_run), end].into_iter().flatten().collect()
    }

    /// Notes that a source has sent its counters of the run under way, and that all it sends is of the next one.
    pub fn source_crossed(&mut self, source: usize) {
        self.sources[source].has_crossed = true;
    }

    /// Waits for the counters of all sources, and for the fragments they hold of events before the boundary.
    pub(crate) fn wait_for_crossing(&mut self, free: Duration, facts: &impl Facts) {
        // A command, or a failure, that waits for the next run does not wait for a slow source.
        let is_patient = self.kept_commands.is_empty() && !self.must_end_next;
        let boundary = self.boundary.unwrap_or_default();
        for index in 0..self.sources.len() {
            // Events beyond the boundary are no progress towards it.
            let (offered, timeout) = (facts.offered_until(index).min(boundary), self.config.timeout);
            let source = &mut self.sources[index];
            if std::mem::replace(&mut source.reached, offered) < offered && is_patient {
                source.waited = Duration::ZERO;
            }
            let is_over = source.has_crossed || source.ended;
            let delays = !source.out && !facts.is_settled(index) && (!is_over || facts.owes_bytes(index));
            if !delays {
                continue;
            }
            source.waited += free;
            if source.waited >= timeout {
                source.out = true;
                let failure =
                    if is_over { "did not deliver the fragments that it held" } else { "did not go on to it" };
                let reason = format!("it {failure} within {timeout:?} of the beginning of the next run (run.timeout)");
                self.orders.push_back(Order::Expel(index, reason));
            } else if !is_over && source.waited >= timeout / 2 && !source.crosses_here {
                source.crosses_here = true;
                let message = self.boundary_messages_for(index).into_iter().next();
                self.orders.extend(message.map(|message| Order::SourceCommand(index, message)));
            }
        }
    }

    /// Notes that everything before the boundary is built, and the next run is open: [`Order::BeginNext`] was carried
    /// out. Returns the commands received meanwhile that now have no meaning.
    pub fn next_run_opened(&mut self) -> Vec<Refused> {
        let Some(first) = self.boundary.take() else { return Vec::new() };
        self.config.first = first;
        self.phase = Phase::Running;
        self.began = self.next_began;
        self.cause = None;
        self.stop_requested = false;
        self.orders.extend(self.end.map(Order::EndAt));
        for source in &mut self.sources {
            let Source { present, known, out, ended, room, runs_elsewhere, begun_elsewhere, .. } = *source;
            // What the source has relayed on the way is of the next run.
            let Source { next, resumed, end_requested, end_elsewhere, next_elsewhere, .. } = *source;
            let relayed = Source { next, resumed, end_requested, end_elsewhere, next_elsewhere, ..Source::default() };
            let relayed = if self.config.leads { Source { end_requested, ..Source::default() } } else { relayed };
            *source = Source { present, known, out, ended, room, runs_elsewhere, begun_elsewhere, ..relayed };
        }
        let kept = std::mem::take(&mut self.kept_commands);
        kept.into_iter().filter_map(|command| self.execute_command(command).err()).collect()
    }

    /// Keeps a command until the next run has begun. A second request to end, or one to end at once, ends both runs at
    /// once.
    pub(crate) fn keep_command(&mut self, command: Command) {
        let is_repeated = command == Command::Stop && self.kept_commands.contains(&Command::Stop);
        if !is_repeated && command != Command::Abort {
            self.kept_commands.push(command);
        } else if !self.kept_commands.contains(&Command::Abort) {
            self.kept_commands = vec![Command::Abort];
            self.orders.push_back(Order::Abandon);
        }
    }

    /// Lets sources accept events again.
    pub(crate) fn resume_sources(&mut self) {
        self.phase = Phase::Running;
        self.sources.iter_mut().for_each(|source| source.next = None);
        self.send_to_live(|_| SourceCommand::Resume);
    }
}
