//! Messages of builders to a source, what it relays from one builder to another, and the ends of connections.

use super::SourceNode;
use super::builders::Attempt;
use super::course::Phase;
use super::times::TimesReport;
use crate::{Feed, NodeError, log_context};
use std::time::Duration;
use thalweg_link::LinkError;
use thalweg_text::format_utc;
use thalweg_wire::{Assign, Capabilities, Contact, EventId, Message, Refusal, Room, RunNumber, TaiNanos, Welcome};

impl SourceNode {
    /// Receives and handles the messages of a builder.
    pub(super) fn serve_builder(&mut self, index: usize) -> Result<(), NodeError> {
        let Some((messages, result)) = self.builders.receive_messages(index) else { return Ok(()) };
        for message in messages {
            self.handle_message(index, message)?;
        }
        match result {
            Ok(_) => Ok(()),
            Err(error) => self.lose_connection(index, error),
        }
    }

    pub(super) fn handle_message(&mut self, index: usize, message: Message) -> Result<(), NodeError> {
        match message {
            Message::Welcome(welcome) => self.handle_welcome(index, welcome)?,
            Message::Start { run, first, at } => self.start_run(index, run, first, at),
            Message::Release { below } => {
                self.builders.delivery_mut(index).release(below, &mut self.slots);
                self.course.clear_blocked();
            }
            Message::Pause => self.answer_pause(index),
            Message::Resume if index == 0 => {
                self.end_pause();
                if self.course.current_phase() == Phase::Running {
                    self.builders.relay_to_others(&Message::Running);
                }
            }
            Message::StopAt { end, end_here } if index == 0 => {
                self.end_pause();
                self.builders.relay_to_others(&Message::EndsAt { end });
                // A run that was to end there from the beginning waits for the device as before.
                if self.course.set_end_event(end, end_here) {
                    self.end_without_device();
                }
            }
            Message::NextRun { first, run, here } if index == 0 => {
                self.end_pause();
                // The run may not have begun at all builders yet.
                if self.course.current_phase() != Phase::Ending && self.course.set_next_run(run, first, here) {
                    self.relay_next_run()?;
                }
                // A source of which a program pushes fragments may accept none for long.
                if self.course.current_phase() == Phase::Running {
                    self.enter_next_run(self.course.next_event());
                }
            }
            Message::Bye => {
                self.builders.handle_dismissal(index, &mut self.slots);
                self.relay_room(index);
            }
            Message::EventsBegin { time } if index == 0 => {
                if let Feed::Acquisition(device) = &mut self.feed {
                    self.acquiring.begin_events(&mut **device, time);
                }
            }
            Message::ReportTimes { first } if index == 0 => self.times = Some(TimesReport::new(first)),
            Message::NumbersAgree { first } if index == 0 => self.confirm_numbers(first),
            Message::Room(room) => {
                // The builder's number is that of its position here, whatever the message contains.
                let room = Room { builder: self.builders.builder_number(index), ..room };
                self.assignments.note_announced_room(index, room);
            }
            Message::Assign(assign) if index == 0 => self.take_assignment(assign)?,
            Message::LeaveOut { builder } if index == 0 => self.leave_out_builder(builder)?,
            _ => {}
        }
        Ok(())
    }

    fn handle_welcome(&mut self, index: usize, welcome: Welcome) -> Result<(), NodeError> {
        self.check_welcome(index, welcome)?;
        if self.builders.has_started(index) && !welcome.running {
            let text = "the run is over: this builder was started anew since it began the run".into();
            return self.lose_connection(index, LinkError::Refused { reason: Refusal::Ended, text });
        }
        if welcome.capabilities.contains(Capabilities::ASSIGNED) && !self.assignments.is_by_room() {
            self.assignments.assign_by_room();
            self.builders.assign_by_room();
        }
        self.builders.handle_welcome(index, welcome, &mut self.slots);
        self.builders.repeat_losses(index);
        if self.course.current_phase() == Phase::Ending && self.builders.has_started(index) {
            self.send_final_counters(index);
        }
        if index == 0 {
            self.relay_all_rooms();
            self.report_begun_elsewhere();
            self.acquiring.repeat_first_frame();
            self.report_first_frame();
        } else {
            self.relay_standing(index);
            self.relay_room(index);
        }
        self.course.clear_blocked();
        Ok(())
    }

    /// Checks that a builder can do what this source needs, and what the other builders do.
    fn check_welcome(&self, index: usize, welcome: Welcome) -> Result<(), NodeError> {
        let address = self.builders.builder_address(index);
        if !welcome.capabilities.contains(self.setup.policy.announced_capabilities()) {
            return Err(NodeError::Config(format!(
                "the builder at {address} does not support withdrawn offers: choose another `policy` than drop-oldest"
            )));
        }
        if index == 0 && self.feed.is_numbered_by_time() && !welcome.capabilities.contains(Capabilities::BY_TIME) {
            return Err(NodeError::Config(format!(
                "the builder at {address} does not report when events begin, which `beat` without `phase` needs: \
                 update it"
            )));
        }
        let is_by_room = welcome.capabilities.contains(Capabilities::ASSIGNED);
        if self.builders.knows_any() && is_by_room != self.assignments.is_by_room() {
            return Err(NodeError::Config(
                "some builders assign events by room and others by number: compare `run.assignment` in \
                 their topology files"
                    .into(),
            ));
        }
        Ok(())
    }

    fn start_run(&mut self, index: usize, run: RunNumber, first: EventId, at: TaiNanos) {
        self.builders.note_run(index, run);
        self.report_begun_elsewhere();
        if !self.builders.note_started(index, self.clock.now()) {
            // The message was received again after a reconnection.
            return;
        }
        if index == 0 {
            self.course.set_beginning(first, at);
            if self.builders.leader_capabilities().contains(Capabilities::TRIGGER_TIMES) {
                self.times = Some(TimesReport::new(first));
            }
            self.assignments.begin_run(first.0);
        }
        self.course.set_run(run);
        log_context::set_run(run.0);
        if index == 0 {
            // Builders that wait for the leading one learn that it has begun.
            self.builders.relay_to_others(&Message::Running);
        }
        if self.course.current_phase() == Phase::Ending {
            // The run has ended elsewhere before it began here.
            self.send_final_counters(index);
        }
        self.begin_if_all_have_started();
    }

    /// Informs the builders that do not lead of the next run. One of an older version takes no further part.
    fn relay_next_run(&mut self) -> Result<(), NodeError> {
        for index in self.builders.following_numbers() {
            if !self.builders.enters_next_run(index) {
                let text = "its program is of an older version, and cannot go from one run to the next: update it";
                let address = self.builders.builder_address(index);
                let error = NodeError::Config(format!("the builder at {address}: {text}"));
                self.go_on_without(index, error)?;
            }
        }
        if let Some((first, run)) = self.course.last_boundary() {
            self.builders.relay_to_others(&Message::NextRunAt { first, run });
        }
        Ok(())
    }

    /// Reports to builder 0 that all others have begun the last run that followed another one, if they have.
    fn report_begun_elsewhere(&mut self) {
        if let Some((first, run)) = self.course.last_boundary()
            && self.builders.len() > 1
            && self.builders.others_have_begun(run)
        {
            self.builders.send_if_welcome(0, &Message::NextRunAt { first, run });
        }
    }

    /// Sends a builder the end of this source, with its final counters.
    fn send_final_counters(&mut self, index: usize) {
        if index == 0 {
            self.builders.send_to_builder(0, &Message::NotTaken(self.not_taken_counts()));
        }
        let final_counters = self.builders.delivery(index).final_counters();
        self.builders.send_to_builder(index, &Message::End(final_counters));
    }

    /// Begins once all builders that take part have started the run.
    fn begin_if_all_have_started(&mut self) {
        if self.course.current_phase() == Phase::Waiting && self.builders.all_have_started() {
            self.course.begin_taking();
            self.began_at = Some(self.clock.now());
            self.pace.begin_run(self.clock.now());
        }
    }

    /// Accepts fragments again.
    fn end_pause(&mut self) {
        if self.course.end_pause() {
            self.pace.end_pause(self.clock.now());
        }
    }

    /// Answers a builder that asks for this source's position. If the leading builder asks, the source pauses and tells
    /// the other builders. If another builder asks, that one wants the run to end, and the leading builder is informed.
    fn answer_pause(&mut self, index: usize) {
        if index == 0 && self.course.begin_pause() {
            self.pace.begin_pause(self.clock.now());
        }
        // Accepted fragments are offered first: builders can rely on these only.
        for builder in self.builders.all_numbers() {
            self.builders.offer_and_announce(builder);
        }
        let asked_by = self.builders.builder_number(index);
        let paused = Message::Paused { next: EventId(self.course.next_event()), asked_by };
        if index > 0 {
            self.builders.send_to_builder(index, &paused);
            self.builders.send_to_builder(0, &paused);
        } else {
            self.builders.send_to_builder(0, &paused);
            self.builders.relay_to_others(&paused);
        }
    }

    /// Relays to a builder that does not lead what the leading builder has sent so far.
    fn relay_standing(&mut self, index: usize) {
        if self.builders.has_started(0) {
            let message = match self.course.current_phase() {
                Phase::Paused => Message::Paused { next: EventId(self.course.next_event()), asked_by: 0 },
                _ => Message::Running,
            };
            self.builders.send_to_builder(index, &message);
        }
        if let Some((first, run)) = self.course.last_boundary() {
            self.builders.send_to_builder(index, &Message::NextRunAt { first, run });
        }
        if let Some(end) = self.course.end_event() {
            self.builders.send_to_builder(index, &Message::EndsAt { end: EventId(end) });
        }
    }

    /// Tells the device that events from `first` on are those of the other sources, as builder 0 found by their times.
    fn confirm_numbers(&mut self, first: EventId) {
        let number = first.0.checked_sub(self.course.first_event());
        if let (Feed::Acquisition(device), Some(number)) = (&mut self.feed, number) {
            device.confirm_numbers(number);
        }
    }

    /// Handles an assignment by builder 0: fragments that were given up belong to the builders to which their events
    /// are now assigned.
    fn take_assignment(&mut self, assign: Assign) -> Result<(), NodeError> {
        if let Err(problem) = self.assignments.accept_assignment(assign) {
            return self.lose_connection(0, LinkError::Protocol(problem));
        }
        while let Some((index, dropped)) = self.assignments.pop_dropped() {
            self.builders.drop_range(index, dropped.first, dropped.count, 1, dropped.how);
        }
        self.end_passed_ranges();
        self.course.clear_blocked();
        Ok(())
    }

    /// Relays the announcements received in this turn: one for each builder, however many it has sent.
    pub(super) fn relay_news(&mut self) {
        for index in self.assignments.take_news() {
            self.relay_room(index);
            self.report_progress(index);
            if index == 0 {
                // Together with its heartbeat, builder 0 learns of the builders that send none.
                for other in self.builders.following_numbers() {
                    if self.contact_state(other) != Contact::Connected {
                        self.relay_room(other);
                    }
                }
            }
        }
    }

    /// Tells a builder that this source goes on, though its fragments are for others.
    fn report_progress(&mut self, index: usize) {
        if !self.builders.is_welcome(index) || self.course.current_phase() == Phase::Ending {
            return;
        }
        let below = self.assignments.settled_until(self.course.next_event());
        if let Some(message) = self.builders.delivery_mut(index).progress_message(below, self.clock.now()) {
            self.builders.send_to_builder(index, &message);
        }
    }

    /// Sends builder 0 everything it needs after it has welcomed this source.
    fn relay_all_rooms(&mut self) {
        self.builders.all_numbers().for_each(|index| self.relay_room(index));
        self.builders.following_numbers().for_each(|index| self.send_left_counts(index));
    }

    fn contact_state(&self, index: usize) -> Contact {
        self.builders.contact_state(index, self.course.current_phase() == Phase::Ending)
    }

    /// Relays to builder 0 a builder's last announcement, the state of the connection to that builder, and this
    /// source's own position.
    pub(super) fn relay_room(&mut self, index: usize) {
        let (number, contact) = (self.builders.builder_number(index), self.contact_state(index));
        if let Some(room) = self.assignments.relayed_room(index, number, contact, self.course.next_event()) {
            self.builders.send_if_welcome(0, &Message::RoomReport(room));
        }
    }

    /// Leaves a builder out, by order of builder 0: fragments that wait for it are lost, and its slots are free.
    fn leave_out_builder(&mut self, number: u32) -> Result<(), NodeError> {
        let index = number as usize;
        if !self.assignments.is_by_room() || !self.builders.following_numbers().contains(&index) {
            return self.lose_connection(0, LinkError::Protocol(format!("builder {number} cannot be excluded")));
        }
        if !self.builders.delivery(index).is_over() {
            tracing::warn!(builder = %self.builders.builder_address(index), "builder 0 left this builder out: fragments \
                that wait for it are lost");
            self.give_up_builder(index);
        }
        self.builders.mark_left_out(index);
        self.send_left_counts(index);
        self.begin_if_all_have_started();
        Ok(())
    }

    /// Sends builder 0 the counts of the fragments for a builder that was left out.
    pub(super) fn send_left_counts(&mut self, index: usize) {
        if self.builders.owes_counts(index) {
            let counts = self.builders.delivery(index).left_out_counts(self.builders.builder_number(index));
            self.builders.send_to_builder(0, &Message::Left(counts));
        }
    }

    /// Gives a builder up for good, which makes room for fragments of others.
    fn give_up_builder(&mut self, index: usize) {
        self.builders.give_up_builder(index, &mut self.slots);
        self.course.clear_blocked();
    }

    /// Handles the end of the connection to a builder.
    pub(super) fn lose_connection(&mut self, index: usize, error: LinkError) -> Result<(), NodeError> {
        if self.builders.delivery(index).is_over() {
            return Ok(());
        }
        if let Some(error) = self.builders.handle_disconnection(index, error, self.clock.now()) {
            return self.go_on_without(index, error);
        }
        self.relay_room(index);
        Ok(())
    }

    /// Goes on without a builder that takes no further part, if the run has begun somewhere and others remain; fails
    /// otherwise. If it is the leading builder, or one at which the run did not begin, this source's own part of the run
    /// ends.
    fn go_on_without(&mut self, index: usize, error: NodeError) -> Result<(), NodeError> {
        let is_needed = index == 0 || !self.builders.has_started(index);
        let held = self.builders.delivery(index).held_fragments();
        let error = match error {
            NodeError::Absent(text) if held > 0 => NodeError::Absent(format!(
                "{text}; this source had {held} accepted {} for that builder, which are lost",
                if held == 1 { "fragment" } else { "fragments" }
            )),
            error => error,
        };
        self.builders.go_on_without(index, error)?;
        self.give_up_builder(index);
        self.builders.report_loss(index);
        if is_needed && self.course.current_phase() != Phase::Ending {
            self.end_part();
        }
        self.relay_room(index);
        self.begin_if_all_have_started();
        Ok(())
    }

    /// Connects to the builders that are away, where it is time.
    pub(super) fn connect_absent_builders(&mut self) -> Result<(), NodeError> {
        let now = self.clock.now();
        for index in self.builders.all_numbers() {
            // Before the search for it ends.
            self.report_absence(index, now);
            match self.builders.try_connect(index, now)? {
                Attempt::Waits => {}
                Attempt::Failed(error) => self.lose_connection(index, error)?,
                Attempt::Absent(error) => self.go_on_without(index, error)?,
            }
        }
        Ok(())
    }

    /// Reports a builder that is away, once for each absence.
    fn report_absence(&mut self, index: usize, now: Duration) {
        let Some((sentence, until)) = self.builders.next_absence_report(index, now) else { return };
        let name = &self.setup.name;
        let Some(until) = until else {
            tracing::warn!("source {name}: {sentence}; trying again until it answers");
            return;
        };
        let left = until.saturating_sub(now);
        let until = self.clock.date().0.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let until = format_utc(until, self.clock.tai_utc_offset());
        tracing::warn!(
            "source {name}: {sentence}; trying again until {} UTC ({})",
            until.get(11..).unwrap_or(&until),
            humantime::format_duration(self.builders.search_timeout())
        );
    }

    /// Sends what can be sent now, and handles links that broke.
    pub(super) fn flush_messages(&mut self) -> Result<(), NodeError> {
        self.builders.flush_messages(self.clock.now());
        for index in self.builders.all_numbers() {
            if let Some(error) = self.builders.take_broken(index) {
                self.lose_connection(index, error)?;
            }
        }
        Ok(())
    }
}
