//! Run control of a builder: passes in the facts that it needs, and carries out its orders.

use super::BuilderNode;
use super::assigning::Assigning;
use super::peers::Peers;
use super::reporting::waits_text;
use super::run_state::NextStep;
use super::setup::FIRST_EVENT;
use super::shifts::{Outcome, ShiftSearch};
use crate::{CommandRefusal, Handle, NodeCommand, NodeError, RunOrder, log_context};
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig};
use thalweg_core::control::{Cause, Command, Facts, Order, Refused, State};
use thalweg_link::LinkError;
use thalweg_store::{RecorderConfig, RunBegin, SourceInfo};
use thalweg_wire::{EventId, Message, Refusal, RunNumber, TaiNanos};

/// Reason why a run that was aborted is incomplete.
pub(super) const ENDED_AT_ONCE: &str = "the run was aborted: events that were not yet built are lost";

/// Facts about events that run control asks for.
pub(super) struct EventFacts<'a> {
    pub(super) builder: &'a Builder,
    pub(super) peers: &'a Peers,
    pub(super) assigning: &'a Assigning,
    /// True if nothing else is waited for once everything here is built: the other builders are known to be done with
    /// their events, and a run that another one follows is with the disk.
    pub(super) others_are_done: bool,
}

impl Facts for EventFacts<'_> {
    fn offered_until(&self, source: usize) -> EventId {
        self.assigning.source_position(source, self.builder)
    }

    fn assigned_until(&self) -> Option<EventId> {
        self.assigning.assigned_until()
    }

    fn closed_until(&self) -> EventId {
        self.builder.closed_until()
    }

    fn oldest_event(&self) -> EventId {
        self.builder.oldest_event()
    }

    fn is_settled(&self, source: usize) -> bool {
        self.builder.is_settled(source)
    }

    fn owes_bytes(&self, source: usize) -> bool {
        self.peers.owes_data(source, self.builder)
    }

    fn is_finished(&self) -> bool {
        self.builder.is_finished() && self.others_are_done
    }
}

impl BuilderNode {
    /// Carries out commands from outside.
    pub(super) fn obey_commands(&mut self, handle: &Handle) {
        handle.clear_doorbell();
        while let Some(request) = handle.next_request() {
            let result = match &request.command {
                NodeCommand::Control(command) => self.execute_command(*command, handle.was_end_requested()),
                NodeCommand::Prepare(order) => self.prepare_run(order),
                NodeCommand::Begin(run) => self.begin_prepared_run(*run, handle.was_end_requested()),
                NodeCommand::Next(order) => self.ask_for_next_run(order),
                NodeCommand::Step(order) => match self.ask_for_step(order) {
                    // Answered when its event is agreed on.
                    Ok(()) => {
                        self.run.hold_step_request(request);
                        continue;
                    }
                    refused => refused,
                },
            };
            let is_abort = request.command == NodeCommand::Control(Command::Abort);
            match request.answer(result) {
                // There is nothing left to end.
                Some(refusal) if is_abort => tracing::info!("{refusal}"),
                Some(refusal) => tracing::warn!("{refusal}"),
                None => {}
            }
        }
    }

    /// Notes when a command that was accepted was given.
    pub(super) fn note_command(&mut self, command: Command) {
        let date = self.clock.date();
        match command {
            Command::Start => self.run.note_asked(date),
            Command::Stop | Command::Abort => self.run.note_stop_asked(date),
            Command::Pause | Command::Resume => {}
        }
    }

    fn execute_command(&mut self, command: Command, end_was_requested: bool) -> Result<(), CommandRefusal> {
        let state = self.control.run_state();
        let ends_run = matches!(command, Command::Stop | Command::Abort);
        let is_before_run = matches!(state, State::Configured | State::Armed);
        if self.setup.stays && ends_run && is_before_run && !end_was_requested {
            // The node stays for the next run: there is none to end.
            return Err(CommandRefusal(format!("{}; write quit to end the node", Refused { command, state })));
        }
        let waits = waits_text(&self.control, &self.setup.ids);
        self.control.execute_command(command).map_err(|refused| match waits.as_str() {
            "" => CommandRefusal(refused.to_string()),
            _ => CommandRefusal(format!("{refused}, and {waits}")),
        })?;
        self.note_command(command);
        Ok(())
    }

    /// Sets what the next run is to be.
    fn prepare_run(&mut self, order: &RunOrder) -> Result<(), CommandRefusal> {
        let state = self.control.run_state();
        if !matches!(state, State::Configured | State::Armed) {
            return Err(CommandRefusal(format!("cannot prepare the run: the run is {state}")));
        }
        self.setup.run.number = order.number.or(self.setup.run.number);
        self.run.set_order(order.clone());
        Ok(())
    }

    /// Begins the run that was prepared with this number: another service may have prepared another one since.
    fn begin_prepared_run(&mut self, run: u32, end_was_requested: bool) -> Result<(), CommandRefusal> {
        match self.run.prepared_number() {
            Some(prepared) if prepared == run => self.execute_command(Command::Start, end_was_requested),
            Some(other) => Err(CommandRefusal(format!(
                "cannot begin run {run}: another service has prepared run {other}; start it there, or once more here"
            ))),
            None => Err(CommandRefusal(format!("cannot begin run {run}: it is not prepared here"))),
        }
    }

    /// Passes the current facts to run control, and carries out its orders.
    pub(super) fn keep_in_control(&mut self, now: Duration) -> Result<(), NodeError> {
        if self.builder.found_capacity().is_some() {
            self.control.stop_run(Cause::Found);
        }
        if let Some(failure) = self.assembly.disk_failure() {
            self.control.stop_run(Cause::Failure(failure.to_owned()));
        }
        if let Some(reason) = self.assigning.await_left_out_counts(&self.setup, &self.builder, &self.peers, now) {
            self.reporting.add_reason(reason);
        }
        let others_are_done = match self.control.is_next_run_due() {
            true => self.is_built_for_next_run(),
            false => self.assigning.others_are_done(&self.builder, &self.peers),
        };
        let (builder, peers, assigning) = (&self.builder, &self.peers, &self.assigning);
        self.control.advance_time(now, &EventFacts { builder, peers, assigning, others_are_done });
        while let Some(order) = self.control.next_order() {
            self.obey_order(order)?;
        }
        self.discard_next_run();
        while !self.control.is_step_due()
            && let Some(NextStep { step, request }) = self.run.take_next_step()
        {
            let refusal = format!("step '{}' is not marked: the run ends", thalweg_text::replace_controls(&step.label));
            tracing::warn!("{refusal}");
            if let Some(request) = request {
                request.answer(Err(CommandRefusal(refusal)));
            }
        }
        // The time in which sources accept nothing is only a part of a state, and begins with a command, not with the
        // next look.
        self.assembly.hold_sources(self.control.holds_sources(), &mut self.builder, now);
        self.control.set_held_up(self.assembly.holds_sources_up());
        let state = self.control.run_state();
        if self.run.note_state(state) {
            tracing::info!(builder = self.setup.config.name, "{state}");
            if matches!(state, State::Stopping | State::Closing) {
                self.reporting.end_steady(&self.builder, self.clock.now());
            }
        }
        Ok(())
    }

    fn obey_order(&mut self, order: Order) -> Result<(), NodeError> {
        match order {
            Order::Begin => self.begin_run(),
            Order::SourceCommand(source, tell) => self.peers.send_to_source(source, &self.run.control_message(tell)),
            Order::EndAt(end) => {
                let end = self.builder.end_before(end, self.clock.now());
                self.assembly.end_before_event(end);
                self.assigning.end_before_event(end);
            }
            Order::MarkStep(event) => {
                if let Some((step, request)) = self.run.mark_step(event) {
                    let label = thalweg_text::replace_controls(&step.label);
                    tracing::info!(builder = self.setup.config.name, event = event.0, "step '{label}'");
                    if let Some(request) = request {
                        request.answer(Ok(()));
                    }
                }
            }
            Order::PrepareNext(number) => self.prepare_relayed_run(number)?,
            Order::SwitchAt(event) => self.switch_at(event),
            Order::BeginNext => self.begin_next_run(),
            Order::Expel(source, why) => self.expel_source(source, &why),
            Order::Abandon => self.abandon_run(),
            Order::Close => self.run.end_building(None),
            Order::Leave(cause) => {
                let (text, error) = self.reason_to_leave(&cause);
                self.peers.refuse_all(Refusal::Ended, &text);
                self.run.end_building(Some(error));
            }
        }
        Ok(())
    }

    /// Stops building. Connections end, and with them what is under way: places return to their blocks.
    fn abandon_run(&mut self) {
        self.reporting.add_reason(ENDED_AT_ONCE.into());
        self.run.note_abandoned();
        self.builder.abandon_run(self.clock.now());
        self.assigning.give_up_left_out_counts();
        for index in self.peers.connection_numbers() {
            let text = "the run was aborted".into();
            self.close_connection(index, &LinkError::Refused { reason: Refusal::Ended, text });
        }
    }

    /// Returns the text for the sources, and the error of this builder, when no run begins.
    fn reason_to_leave(&self, cause: &Cause) -> (String, NodeError) {
        let (missing, left, timeout) = match cause {
            Cause::Absent { missing, left, timeout } => (missing, left, humantime::format_duration(*timeout)),
            Cause::NotLed(time) => {
                let time = humantime::format_duration(*time);
                let text = format!("builder 0, which leads the run, did not begin it within {time}");
                return (text.clone(), NodeError::Absent(format!("{text}; read what builder 0 reports")));
            }
            _ => return ("the builder was stopped".into(), NodeError::Stopped),
        };
        let names = |sources: &[usize]| {
            sources.iter().map(|source| self.setup.source_label(*source)).collect::<Vec<_>>().join(", ")
        };
        let mut parts = Vec::new();
        if !missing.is_empty() {
            parts.push(format!("sources did not connect within {timeout}: {}", names(missing)));
        }
        if !left.is_empty() {
            parts.push(format!("sources connected, and left before the run began: {}", names(left)));
        }
        let all = parts.iter().map(|part| format!("these {part}")).collect::<Vec<_>>().join("; ");
        let error = NodeError::Absent(format!(
            "{all}; start them within this time, or set a longer run.timeout than {timeout}"
        ));
        (parts.iter().map(|part| format!("other {part}")).collect::<Vec<_>>().join("; "), error)
    }

    /// Opens the run, once all sources are connected, and has them begin.
    fn begin_run(&mut self) {
        let prepared = self.assembly.prepare_trigger(&self.setup, &mut self.peers);
        if let Err(error) = prepared.and_then(|()| self.open_run()) {
            self.control.run_failed();
            self.peers.refuse_all(Refusal::Ended, &format!("cannot open the run: {error}"));
            self.run.end_building(Some(error));
            return;
        }
        self.builder = Builder::new(BuilderConfig { run: self.run.run_number(), ..self.builder.config().clone() });
        let now = self.clock.now();
        self.run.begin_run(now);
        let sources = self.setup.ids.len();
        self.shifts = ShiftSearch::new(if self.setup.compares_times() { sources } else { 0 }, FIRST_EVENT, now);
        for source in 0..sources {
            match self.peers.connection_number(source) {
                Some(_) => {
                    let (slots, maps) = (self.peers.source_greeting(source).slots, self.peers.source_link_maps(source));
                    self.builder.source_connected(source, slots, maps);
                }
                None => self.builder.source_disconnected(source, now),
            }
        }
        for refused in self.control.run_opened(now) {
            tracing::warn!("{refused}");
        }
    }

    /// Creates the run's directory, if it is recorded.
    fn open_run(&mut self) -> Result<(), NodeError> {
        let began = self.clock.date();
        let number = self.setup.run.number.map(RunNumber);
        if !self.setup.run.record {
            self.run.set_run(number.unwrap_or(RunNumber(0)), began);
            log_context::set_run(self.run.run_number().0);
            return Ok(());
        }
        let [asked, _] = self.run.asked_dates();
        let order = self.run.take_order();
        let config = self.recorder_config(number, &order, asked);
        let recorder = self.assembly.create_recorder(config, self.peers.poller())?;
        self.run.set_run(recorder.run_number(), began);
        log_context::set_run(recorder.run_number().0);
        self.reporting.set_recorder_method(recorder.recorder_method().to_string());
        tracing::info!(run = recorder.run_number().0, path = %recorder.run_path().display(), "recording by {}", recorder.recorder_method());
        self.assembly.start_recording(recorder);
        Ok(())
    }

    /// Returns the configuration of the recorder for a run that begins now, or that was asked for at `asked`.
    pub(super) fn recorder_config(
        &self,
        number: Option<RunNumber>,
        order: &RunOrder,
        asked: Option<TaiNanos>,
    ) -> RecorderConfig {
        let Self { setup, clock, .. } = self;
        let sources = setup.ids.iter().zip(self.peers.source_greetings()).map(|((id, name), greeting)| SourceInfo {
            id: *id,
            name: name.clone(),
            description: greeting.description.clone(),
        });
        let begin = RunBegin {
            began: clock.date(),
            tai_utc_offset: clock.tai_utc_offset(),
            program: "thalweg".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            sources: sources.collect(),
            asked,
            kind: order.kind,
            comment: order.comment.clone().unwrap_or_else(|| setup.run.comment.clone()),
            metadata: setup.run.metadata.as_json().clone(),
            configuration: setup.topology.clone(),
        };
        RecorderConfig {
            directory: setup.run.directory.clone(),
            run: number,
            builder: setup.index,
            builders: setup.count,
            assignment: setup.run.assignment.name().into(),
            segment_bytes: setup.config.segment.0,
            disk: setup.disk.clone(),
            begin,
            ..RecorderConfig::default()
        }
    }

    /// Announces this builder's room, if it has changed enough or is due; and assigns events, if this builder leads.
    pub(super) fn assign_events(&mut self) {
        if !self.assigning.is_by_room() || !self.has_begun() {
            return;
        }
        let (now, free_bytes) = (self.clock.now(), self.assembly.free_block_bytes());
        if let Some(room) = self.assigning.announce_room(&self.setup, &self.builder, &self.peers, free_bytes, now) {
            self.peers.send_to_all(&Message::Room(room));
        }
        self.assigning.advance_time(now);
        for source in 0..self.setup.ids.len() {
            while let Some(message) = self.assigning.next_assignment_message(source) {
                self.peers.send_to_source(source, &message);
            }
        }
    }

    /// Sends the time of event 0 to all sources, once it is known.
    pub(super) fn decide_origin(&mut self) {
        let peers = &self.peers;
        let sources = 0..self.setup.ids.len();
        let expected = sources
            .clone()
            .filter(|source| peers.source_greeting(*source).is_by_time && peers.connection_number(*source).is_some());
        if self.origin.decide_if_due(expected, self.clock.now()).is_some() {
            sources.for_each(|source| self.send_origin(source));
        }
    }

    /// Continues the search for sources whose event numbers are shifted against each other.
    pub(super) fn search_for_shifts(&mut self) {
        if !self.shifts.is_searching() {
            return;
        }
        let Self { builder, shifts, peers, control, assigning, setup, .. } = self;
        let reports = |source: usize| {
            peers.source_greeting(source).reports_times
                && peers.connection_number(source).is_some()
                && control.may_accept_events(source)
        };
        // A source that is far ahead of all others has nothing to be compared with: the middle one counts.
        let outcomes = shifts.take_turn(self.clock.now(), reports, || {
            let reporting = (0..setup.ids.len()).filter(|source| reports(*source));
            let mut positions: Vec<_> = reporting.map(|source| assigning.source_position(source, builder)).collect();
            positions.sort_unstable();
            positions.get(positions.len().saturating_sub(1) / 2).copied().unwrap_or_default()
        });
        self.act_on_shifts(outcomes);
    }

    /// Reports what the search has found, and tells the sources.
    pub(super) fn act_on_shifts(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match outcome {
                Outcome::Ask { first } => {
                    for source in 0..self.setup.ids.len() {
                        self.send_to_reporting(source, &Message::ReportTimes { first });
                    }
                }
                Outcome::Found { shift, event, is_first } => {
                    let (source, other) = (self.setup.source_label(shift.source), self.setup.source_label(shift.other));
                    let text = shift.describe_shift(&source, &other, event);
                    tracing::warn!("{text}");
                    if is_first {
                        self.reporting.add_reason(text);
                    }
                }
                Outcome::Agrees { source, first, is_first } => {
                    let event = first.0;
                    if is_first {
                        tracing::info!(
                            "source {}: according to their times, its events from {event} on are those of the others",
                            self.setup.source_label(source)
                        );
                    }
                    self.send_to_reporting(source, &Message::NumbersAgree { first });
                }
            }
        }
    }

    /// Sends a message to a source, if it reports when its events' triggers were.
    fn send_to_reporting(&mut self, source: usize, message: &Message) {
        if self.peers.source_greeting(source).reports_times {
            self.peers.send_to_source(source, message);
        }
    }
}
