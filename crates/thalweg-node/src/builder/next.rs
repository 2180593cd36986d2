//! The next run, without a gap: prepared beside the run under way, which is closed while the next one is built.
//!
//! `NextRun` has all of a run that was asked for and has not begun here. From the moment at which its first event is
//! agreed on, sources send their counters of the run under way as they get there, and what they offer after that is
//! taken by the next run's event builder. It requests nothing before everything of the run under way is built: so the
//! window and the blocks belong to one run at a time. `ClosingRun` is the run before, on its way to the disk.

use super::BuilderNode;
use super::assembly::Moment;
use super::ending::write_run_end;
use super::run::EventFacts;
use crate::blocks::{BlocksOutcome, DISK_TIME};
use crate::{BuilderReport, CommandRefusal, Handle, NodeError, RunOrder, StepOrder, log_context};
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig, Ledger, LedgerEntry};
use thalweg_core::control::{Boundary, SourceCommand};
use thalweg_link::LinkError;
use thalweg_store::{Milestones, Recorder, Step};
use thalweg_wire::{EventId, FinalCounters, Message, RunCounters, RunNumber, TaiNanos};

/// Longest label of a step, in bytes.
const MAX_LABEL_BYTES: usize = 256;
/// Longest data of a step, in bytes of JSON.
const MAX_STEP_DATA_BYTES: usize = 4 << 10;
/// Limit of the bytes of all steps of a run: they are in memory until it ends, and in its `run.json`.
const MAX_STEPS_BYTES: usize = 16 << 20;

/// Longest time for which messages of the next run are kept until this builder has learned of it from most sources.
const HELD_TIME: Duration = Duration::from_secs(2);
/// Maximum number of such messages of a source.
const MAX_HELD_MESSAGES: usize = 1 << 16;

/// Messages of a source that is in the next run already, of which this builder has not learned from most sources.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldMessages {
    messages: VecDeque<Message>,
    since: Duration,
    /// True if that run did not begin here: what the source sends is of no use.
    is_left: bool,
}

impl HeldMessages {
    /// Forgets the messages of a source, which sends them again when it reconnects.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
    }
}

/// Run that was asked for and has not begun at this builder.
#[derive(Debug)]
pub(super) struct NextRun {
    number: RunNumber,
    /// Dates at which it was asked for, and prepared.
    asked: TaiNanos,
    began: TaiNanos,
    recorder: Option<Recorder>,
    /// Event builder of the run; `None` before its first event is agreed on.
    opened: Option<Opened>,
}

/// Event builder of a run whose first event is agreed on.
#[derive(Debug)]
struct Opened {
    builder: Builder,
    since: Duration,
    /// By source, the first ticket of this run; `None` while the source is in the run under way.
    first_tickets: Vec<Option<u64>>,
}

/// Run of which everything is built, and that another one has followed: its blocks are on their way to the disk.
#[derive(Debug)]
pub(super) struct ClosingRun {
    report: BuilderReport,
    builder: Builder,
    /// Reasons why the run is incomplete, those before the disk's and those after.
    reasons: (Vec<String>, Vec<String>),
    is_aborted: bool,
    unknown_sources: u64,
    times: Milestones,
    steps: Vec<Step>,
    began_at: Duration,
    /// Time at which everything was built.
    since: Duration,
}

impl NextRun {
    /// Returns its event builder, once its first event is agreed on.
    pub(super) fn builder_mut(&mut self) -> Option<&mut Builder> {
        self.opened.as_mut().map(|opened| &mut opened.builder)
    }

    /// Returns its event builder, if it takes what a source sends now.
    pub(super) fn builder_of(&self, source: usize) -> Option<&Builder> {
        self.opened.as_ref().filter(|opened| opened.first_tickets[source].is_some()).map(|opened| &opened.builder)
    }

    /// Returns its event builder, if it takes what a source sends now, except for tickets before `ticket`.
    fn builder_of_mut(&mut self, source: usize, ticket: u64) -> Option<&mut Builder> {
        let opened = self.opened.as_mut()?;
        opened.first_tickets[source].filter(|first| ticket >= *first).map(|_| &mut opened.builder)
    }
}

impl BuilderNode {
    /// Begins the next run at an event that all sources agree on.
    ///
    /// # Errors
    /// The reason why that is not possible now; nothing has changed.
    pub(super) fn ask_for_next_run(&mut self, order: &RunOrder) -> Result<(), CommandRefusal> {
        self.check_boundary(Boundary::NextRun)?;
        self.check_next_run_possible().map_err(CommandRefusal)?;
        let began = self.clock.date();
        let prepared = self.prepare_next_run(order, began);
        let (number, recorder) = prepared.map_err(|error| CommandRefusal(error.to_string()))?;
        self.next_run = Some(NextRun { number, asked: began, began, recorder, opened: None });
        self.run.set_next_number(number);
        self.request_boundary(Boundary::NextRun)
    }

    /// Marks the beginning of a step at an event that all sources agree on.
    ///
    /// # Errors
    /// The reason why that is not possible now.
    pub(super) fn ask_for_step(&mut self, order: &StepOrder) -> Result<(), CommandRefusal> {
        let StepOrder { label, data } = order.clone();
        self.check_boundary(Boundary::Step)?;
        let data_bytes = if data.is_null() { 0 } else { data.to_string().len() };
        for (what, bytes, limit) in [("label", label.len(), MAX_LABEL_BYTES), ("data", data_bytes, MAX_STEP_DATA_BYTES)]
        {
            if bytes > limit {
                let text = format!("the step's {what} has {bytes} bytes, more than the limit of {limit}: shorten it");
                return Err(CommandRefusal(text));
            }
        }
        if !self.run.has_room_for_step(label.len() + data_bytes, MAX_STEPS_BYTES) {
            let text = format!("the run has {MAX_STEPS_BYTES} bytes of steps, which is the limit: begin another run");
            return Err(CommandRefusal(text));
        }
        self.run.add_next_step(Step { event: 0, at: self.clock.date().0, label, data });
        self.request_boundary(Boundary::Step)
    }

    fn check_boundary(&self, boundary: Boundary) -> Result<(), CommandRefusal> {
        self.control.check_boundary(boundary).map_err(|refused| CommandRefusal(refused.to_string()))
    }

    fn request_boundary(&mut self, boundary: Boundary) -> Result<(), CommandRefusal> {
        let facts = EventFacts {
            builder: &self.builder,
            peers: &self.peers,
            assigning: &self.assigning,
            others_are_done: false,
        };
        self.control.request_boundary(boundary, &facts).map_err(|refused| CommandRefusal(refused.to_string()))
    }

    /// Checks for what a run without a gap is not made for.
    fn check_next_run_possible(&self) -> Result<(), String> {
        let cannot = "cannot begin the next run without a gap";
        if let Some(closing) = &self.closing_run {
            return Err(format!("{cannot}: run {} is still being written to disk", closing.report.run));
        }
        let run = self.run.run_number();
        if self.run.previous_number().is_some() && !self.control.is_begun_elsewhere(run) {
            return Err(format!("{cannot}: run {} has not begun at all builders yet", run.0));
        }
        if self.assigning.is_by_room() {
            return Err(format!("{cannot} where events are assigned by room; stop it, and start the next one"));
        }
        if self.setup.run.calibrate {
            return Err(format!("{cannot}: this is a calibration"));
        }
        let unable = (0..self.setup.ids.len()).filter(|source| {
            self.control.may_accept_events(*source) && !self.peers.source_greeting(*source).enters_next_run
        });
        let unable: Vec<String> = unable.map(|source| self.setup.source_label(source)).collect();
        if !unable.is_empty() {
            let names = unable.join(", ");
            return Err(format!("{cannot}: these sources have programs of an older version: {names}; update them"));
        }
        Ok(())
    }

    /// Creates the run's directory, if runs are recorded.
    fn prepare_next_run(
        &mut self,
        order: &RunOrder,
        asked: TaiNanos,
    ) -> Result<(RunNumber, Option<Recorder>), NodeError> {
        let following = RunNumber(self.run.run_number().0.saturating_add(1));
        // All builders of a run take the number of the one that leads.
        let number = order.number.map(RunNumber).or((self.setup.count > 1).then_some(following));
        if number == Some(self.run.run_number()) {
            return Err(NodeError::Config(format!("the run under way has the number {}", self.run.run_number().0)));
        }
        if !self.setup.run.record {
            return Ok((number.unwrap_or(following), None));
        }
        let config = self.recorder_config(number, order, Some(asked));
        let recorder = self.assembly.create_recorder(config, self.peers.poller())?;
        Ok((recorder.run_number(), Some(recorder)))
    }

    /// Prepares the next run, which the leading builder has set.
    ///
    /// # Errors
    /// It cannot be recorded here.
    pub(super) fn prepare_relayed_run(&mut self, number: RunNumber) -> Result<(), NodeError> {
        let began = self.clock.date();
        let order = RunOrder { number: Some(number.0), ..RunOrder::default() };
        let (number, recorder) = self.prepare_next_run(&order, began)?;
        self.next_run = Some(NextRun { number, asked: began, began, recorder, opened: None });
        self.run.set_next_number(number);
        Ok(())
    }

    /// Handles a source's relay of the next run that builder 0 has set; at builder 0, that all others have begun it.
    pub(super) fn take_relayed_next_run(&mut self, source: usize, first: EventId, run: RunNumber) {
        if self.setup.index == 0 {
            self.control.handle_begun_elsewhere(source, run);
        } else if run != self.run.run_number() && self.next_run.as_ref().is_none_or(|next| next.number != run) {
            self.control.handle_relayed_next_run(source, first, run);
        }
    }

    /// Keeps a message of the next run that comes before this builder has learned of that from most sources. Returns
    /// true if it is kept.
    ///
    /// # Errors
    /// There are more of them than a source can have sent in that time.
    pub(super) fn holds_message(&mut self, source: usize, message: &Message) -> Result<bool, LinkError> {
        let is_of_run = matches!(message, Message::RunEnded(_) | Message::Offer(_) | Message::End(_));
        if self.setup.index == 0 || !is_of_run {
            return Ok(false);
        }
        let is_open = self.next_run.as_ref().is_some_and(|next| next.opened.is_some());
        let begins = match message {
            Message::RunEnded(counters) => counters.run == self.run.run_number() && !is_open,
            _ => false,
        };
        let held = &mut self.held_messages[source];
        if held.is_left || held.messages.is_empty() && !begins {
            return Ok(held.is_left);
        }
        if held.messages.len() >= MAX_HELD_MESSAGES {
            return Err(LinkError::Protocol("it went on to another run that no other source reports".into()));
        }
        held.since = if held.messages.is_empty() { self.clock.now() } else { held.since };
        held.messages.push_back(*message);
        Ok(true)
    }

    /// Handles the messages that were kept, once the next run is known. Where it does not become known in time, that run
    /// does not begin here: the source ends with the run under way.
    pub(super) fn handle_held_messages(&mut self, now: Duration) {
        let is_open = self.next_run.as_ref().is_some_and(|next| next.opened.is_some());
        for source in 0..self.held_messages.len() {
            let held = &mut self.held_messages[source];
            if held.messages.is_empty() || !is_open && now < held.since + HELD_TIME {
                continue;
            }
            let messages = std::mem::take(&mut held.messages);
            if !is_open {
                held.is_left = true;
                self.end_left_source(source, &messages);
                continue;
            }
            for message in messages {
                let Some(index) = self.peers.connection_number(source) else { break };
                if let Err(error) = self.handle_message(index, source, message) {
                    self.close_connection(index, &error);
                }
            }
        }
    }

    /// Ends a source that went on to a run which does not begin here, with its counters of the run under way.
    fn end_left_source(&mut self, source: usize, messages: &VecDeque<Message>) {
        let Some(Message::RunEnded(counters)) = messages.front() else { return };
        let label = self.setup.source_label(source);
        self.reporting.add_reason(format!("source {label} went on to another run, which did not begin here"));
        let ended = self.end_source(source, final_counters(counters));
        if let (Err(error), Some(index)) = (ended, self.peers.connection_number(source)) {
            self.close_connection(index, &error);
        }
    }

    /// Returns when messages have been kept for too long.
    pub(super) fn next_held_time(&self) -> Option<Duration> {
        let held = self.held_messages.iter().filter(|held| !held.messages.is_empty());
        held.map(|held| held.since + HELD_TIME).min()
    }

    /// Ends the run under way before this event, at which the next one begins.
    pub(super) fn switch_at(&mut self, event: EventId) {
        let now = self.clock.now();
        self.builder.end_before(event, now);
        self.assembly.end_before_event(event);
        let Some(next) = &mut self.next_run else { return };
        let config = BuilderConfig { run: next.number, first: event, ..self.builder.config().clone() };
        let mut builder = Builder::new(config);
        // Nothing is requested yet, so no source is late.
        builder.set_stalled(true, now);
        let sources = self.setup.ids.len();
        for source in 0..sources {
            match self.peers.connection_number(source) {
                Some(_) => {
                    let (slots, maps) = (self.peers.source_greeting(source).slots, self.peers.source_link_maps(source));
                    builder.source_connected(source, slots, maps);
                }
                None => builder.source_disconnected(source, now),
            }
        }
        next.opened = Some(Opened { builder, since: now, first_tickets: vec![None; sources] });
        tracing::info!(builder = self.setup.config.name, run = next.number.0, first = event.0, "next run");
    }

    /// Handles a source's counters of the run under way: what it sends from now on is of the next run. Those of an
    /// earlier run are repeated after a reconnection.
    pub(super) fn take_run_counters(&mut self, source: usize, counters: RunCounters) -> Result<(), LinkError> {
        if Some(counters.run) == self.run.previous_number() {
            return Ok(());
        }
        let opened = self.next_run.as_mut().and_then(|next| next.opened.as_mut());
        let Some(opened) = opened.filter(|_| counters.run == self.run.run_number() && !self.builder.has_ended(source))
        else {
            let is_known = self.builder_of(source).next_ticket(source) >= counters.tickets;
            return match is_known && counters.run == self.run.run_number() && self.next_run.is_some() {
                // It was received before.
                true => Ok(()),
                false => Err(LinkError::Protocol(format!("unexpected counters of run {}", counters.run.0))),
            };
        };
        let tickets = counters.tickets;
        let ended = self.builder.source_ended(source, final_counters(&counters));
        ended.map_err(|violation| LinkError::Protocol(violation.to_string()))?;
        if self.builder.is_given_up(source) {
            return Ok(());
        }
        opened.builder.continue_source(source, tickets, self.builder.offered_until(source));
        opened.first_tickets[source] = Some(tickets);
        self.control.source_crossed(source);
        Ok(())
    }

    /// Returns the event builder that takes what a source sends now.
    pub(super) fn builder_of(&self, source: usize) -> &Builder {
        self.next_run.as_ref().and_then(|next| next.builder_of(source)).unwrap_or(&self.builder)
    }

    /// Returns the event builder that takes what a source sends now, except for tickets of the run under way.
    pub(super) fn builder_for_ticket(&mut self, source: usize, ticket: u64) -> &mut Builder {
        match self.next_run.as_mut().and_then(|next| next.builder_of_mut(source, ticket)) {
            Some(builder) => builder,
            None => &mut self.builder,
        }
    }

    /// Returns whether everything of the run under way is built and the run before is closed, so that the next one can
    /// begin. Builder 0 asks for no further run while its own disk is busy with the run before; the disks of the others
    /// may be slower.
    pub(super) fn is_built_for_next_run(&mut self) -> bool {
        if self.closing_run.is_some() || !self.builder.is_finished() {
            return false;
        }
        let moment = Moment { now: self.clock.now(), date: self.clock.date() };
        self.assembly.send_rest(moment)
    }

    /// Closes the run under way, of which everything is built, and builds the next one from now on.
    pub(super) fn begin_next_run(&mut self) {
        let Some(NextRun { number, asked, began, recorder, opened: Some(opened) }) = self.next_run.take() else {
            return;
        };
        let Opened { builder: mut next, since, first_tickets } = opened;
        let now = self.clock.now();
        self.peers.release_slots(&mut self.builder, false);
        for (source, first) in first_tickets.iter().enumerate() {
            if first.is_none() {
                self.settle_left_source(source, &mut next);
            }
        }
        next.set_stalled(false, now);
        self.run.note_stop_asked(asked);
        let report = self.counts_report(now);
        self.closing_run = Some(ClosingRun {
            reasons: (self.reporting.take_reasons(), self.final_reasons(&report)),
            report,
            builder: std::mem::replace(&mut self.builder, next),
            is_aborted: self.run.is_abandoned(),
            unknown_sources: self.reporting.unknown_sources(),
            times: self.milestones(),
            steps: self.run.take_steps(),
            began_at: self.run.began_at(),
            since: now,
        });
        if let Some(recorder) = &recorder {
            self.reporting.set_recorder_method(recorder.recorder_method().to_string());
        }
        log_context::set_run(number.0);
        self.assembly.begin_next_run(recorder, now);
        self.reporting.begin_next_run(self.setup.ids.len(), self.clock.processor_time(), &self.peers);
        self.time_meter = Default::default();
        self.run.begin_next_run(number, asked, began, since);
        for refused in self.control.next_run_opened() {
            tracing::warn!("{refused}");
        }
        // Sources report to builder 0 that all others have begun it.
        self.peers.send_to_all(&self.run.control_message(SourceCommand::Start));
    }

    /// Enters into the next run a source that takes no part in it: it has ended, or was given up.
    fn settle_left_source(&mut self, source: usize, next: &mut Builder) {
        let tickets = self.builder.next_ticket(source);
        next.continue_source(source, tickets, self.builder.offered_until(source));
        let has_ended = self.builder.has_ended(source);
        let ended = FinalCounters { tickets, ..FinalCounters::default() };
        if !has_ended || next.source_ended(source, ended).is_err() {
            next.give_up_source(source, self.clock.now());
            // What it has is of a run that is over here.
            self.peers.exclude_source(source);
        }
    }

    /// Discards a next run that was prepared, and that the run under way ended before.
    pub(super) fn discard_next_run(&mut self) {
        if self.next_run.is_none() || self.control.is_next_run_due() {
            return;
        }
        if let Some(NextRun { number, recorder, .. }) = self.next_run.take() {
            tracing::warn!("run {} does not begin: the run under way ends, or had all its events", number.0);
            recorder.into_iter().for_each(Recorder::discard_run);
        }
    }

    /// Closes the run before, once everything of it is on disk.
    ///
    /// # Errors
    /// The disk does not answer, or its `run.json` cannot be written.
    pub(super) fn close_previous_run(&mut self, handle: &Handle) -> Result<(), NodeError> {
        let Some(closing) = &self.closing_run else { return Ok(()) };
        let (now, run) = (self.clock.now(), closing.report.run);
        let Some(outcome) = self.assembly.take_retired_outcome() else {
            if now <= closing.since + DISK_TIME {
                return Ok(());
            }
            self.assembly.give_up_retired();
            let time = humantime::format_duration(DISK_TIME);
            return Err(NodeError::Disk(format!("the disk did not complete the files of run {run} within {time}")));
        };
        if let Some(closing) = self.closing_run.take() {
            handle.publish_report(closing.complete_report(outcome, self.clock.date(), now)?);
        }
        Ok(())
    }

    /// Returns when the disk will have taken too long to close the run before.
    pub(super) fn next_close_time(&self) -> Option<Duration> {
        self.closing_run.as_ref().map(|closing| closing.since + DISK_TIME + Duration::from_millis(1))
    }
}

impl ClosingRun {
    /// Writes the end of the run, and returns its report.
    fn complete_report(
        self,
        outcome: BlocksOutcome,
        ended: TaiNanos,
        now: Duration,
    ) -> Result<BuilderReport, NodeError> {
        let Self { mut report, builder, reasons, is_aborted, unknown_sources, times, steps, began_at, .. } = self;
        let BlocksOutcome { recorder, unwritten, failure } = outcome;
        report.ledger = builder.final_ledger(recorder.is_some(), &unwritten, unknown_sources);
        if report.trigger.is_some() {
            report.fragments = report.ledger.sources.iter().map(|entry| entry.recorded + entry.discarded).sum();
        }
        report.reasons = reasons.0;
        report.reasons.extend(failure);
        report.reasons.extend(report.ledger.incomplete_reasons(is_aborted));
        report.reasons.extend(between_runs_reasons(&report.ledger));
        report.reasons.extend(reasons.1);
        write_run_end(&mut report, recorder, ended, (now - began_at).as_secs_f64(), times, steps)?;
        Ok(report)
    }
}

/// Returns a reason for each source that accepted fragments for a run beyond its end: another run followed, and they are
/// in neither.
fn between_runs_reasons(ledger: &Ledger) -> Vec<String> {
    let mut reasons = Vec::new();
    for LedgerEntry { source, name, beyond_end, .. } in &ledger.sources {
        if *beyond_end > 0 {
            let fragments = if *beyond_end == 1 { "fragment" } else { "fragments" };
            reasons.push(format!(
                "source {source} ({name}): {beyond_end} {fragments} in neither this run nor the next: it had not \
                 answered when the end was set"
            ));
        }
    }
    reasons
}

/// Returns the counters with which a source ends a run that another one follows.
fn final_counters(counters: &RunCounters) -> FinalCounters {
    let RunCounters { accepted, dropped_newest, dropped_oldest, tickets, cpu_nanos, copied_bytes, .. } = *counters;
    FinalCounters { accepted, dropped_newest, dropped_oldest, tickets, cpu_nanos, copied_bytes, next_sequence: 0 }
}
