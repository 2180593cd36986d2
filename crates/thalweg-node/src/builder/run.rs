//! Run control of a builder: passes in the facts that it needs, and carries out its orders.

use super::assigning::Assigning;
use super::shifts::ShiftSearch;
use super::{BuilderNode, Connection, RECORDER, SourceState};
use crate::{Handle, NodeError};
use std::os::fd::AsFd;
use std::time::Duration;
use thalweg_core::build::{Builder, BuilderConfig};
use thalweg_core::control::{Assigner, Cause, Command, Facts, Order, Refused, State, Tell};
use thalweg_link::{Interest, LinkError};
use thalweg_store::{Recorder, RecorderConfig, RunBegin, SourceInfo};
use thalweg_wire::{EventId, Message, Refusal, RunNumber};

/// Facts about events that run control asks for.
struct Seen<'a> {
    builder: &'a Builder,
    sources: &'a [SourceState],
    connections: &'a [Option<Connection>],
    assigner: Option<&'a Assigner>,
    /// True if the other builders are known to be done with their events, where this one must wait for that.
    others_are_done: bool,
}

impl Facts for Seen<'_> {
    fn offered_until(&self, source: usize) -> EventId {
        let offered = self.builder.offered_until(source);
        // A builder's share alone does not determine how far the source is.
        self.assigner.map_or(offered, |assigner| assigner.position(source).max(offered))
    }

    fn assigned_until(&self) -> Option<EventId> {
        self.assigner.map(Assigner::until)
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

    fn owes(&self, source: usize) -> bool {
        owes(self.builder, self.sources, self.connections, source)
    }

    fn is_finished(&self) -> bool {
        self.builder.is_finished() && self.others_are_done
    }
}

/// Returns whether a source was asked for something that has not arrived.
pub(super) fn owes(
    builder: &Builder,
    sources: &[SourceState],
    connections: &[Option<Connection>],
    source: usize,
) -> bool {
    let connection = sources[source].connection.and_then(|at| connections[at].as_ref());
    connection.is_some_and(|c| c.fetching > 0 && (c.maps || builder.in_flight_of(source) > 0))
}

/// Reason why a run that was aborted is incomplete.
pub(super) const AT_ONCE: &str = "the run was ended at once: what was not built by then is lost";

fn say_refused(refused: Refused) {
    match refused.command {
        // There is nothing left to end.
        Command::Abort => tracing::info!("{refused}"),
        _ => tracing::warn!("{refused}"),
    }
}

impl BuilderNode {
    /// Carries out commands from outside.
    pub(super) fn obey_commands(&mut self, handle: &Handle) {
        handle.clear();
        while let Some(command) = handle.next_command() {
            if let Err(refused) = self.control.command(command) {
                say_refused(refused);
            }
        }
    }

    /// Passes the current facts to run control, and carries out its orders.
    pub(super) fn keep_in_control(&mut self, now: Duration) -> Result<(), NodeError> {
        if self.builder.found().is_some() {
            self.control.stop(Cause::Found);
        }
        if let Some(failure) = &self.blocks.failure {
            self.control.stop(Cause::Failure(failure.clone()));
        }
        self.await_left(now);
        let seen = Seen {
            builder: &self.builder,
            sources: &self.sources,
            connections: &self.connections,
            assigner: self.assigning.as_ref().and_then(Assigning::assigner),
            others_are_done: self.others_are_done(),
        };
        self.control.time(now, &seen);
        while let Some(order) = self.control.next_order() {
            self.obey(order)?;
        }
        // The time in which sources accept nothing is only a part of a state, and begins with a command, not with the
        // next look.
        self.hold_clock(now);
        let state = self.control.state();
        if std::mem::replace(&mut self.state, state) != state {
            tracing::info!(builder = self.config.name, "{state}");
            if matches!(state, State::Stopping | State::Closing) && self.tally.steady.is_none() {
                self.tally.steady = Some(self.steady());
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Order) -> Result<(), NodeError> {
        match order {
            Order::Begin => self.begin()?,
            Order::Tell(source, tell) => self.tell(source, tell),
            Order::EndAt(end) => {
                let end = self.builder.end_at(end, self.clock.now());
                if let Some(trigger) = &mut self.trigger {
                    trigger.end_at(end);
                }
                self.assign_until(end);
            }
            Order::Expel(source, why) => self.expel(source, &why),
            Order::Abandon => self.abandon(),
            Order::Close => self.over = true,
            Order::Leave(cause) => {
                let (text, error) = self.reason_to_leave(&cause);
                self.refuse_all(Refusal::Ended, &text);
                self.over = true;
                self.left = Some(error);
            }
        }
        Ok(())
    }

    /// Stops building. Connections end, and with them what is under way: places return to their blocks.
    fn abandon(&mut self) {
        const WHY: &str = "the run was ended at once";
        self.tally.reasons.push(AT_ONCE.into());
        self.builder.abandon(self.clock.now());
        self.give_up_left();
        for index in 0..self.connections.len() {
            self.close(index, &LinkError::Refused { reason: Refusal::Ended, text: WHY.into() });
        }
    }

    fn reason_to_leave(&self, cause: &Cause) -> (String, NodeError) {
        let Cause::Absent(absent, timeout) = cause else {
            return ("the builder was stopped".into(), NodeError::Stopped);
        };
        let absent: Vec<String> =
            absent.iter().map(|source| format!("{} ({})", self.ids[*source].0, self.ids[*source].1)).collect();
        let error = NodeError::Absent(format!(
            "these sources did not connect within {}: {}",
            humantime::format_duration(*timeout),
            absent.join(", ")
        ));
        ("other sources did not come".into(), error)
    }

    fn refuse_all(&mut self, reason: Refusal, text: &str) {
        for index in 0..self.connections.len() {
            if let Some(link) = self.endpoints.link_mut(index) {
                link.refuse(reason, text);
            }
        }
    }

    fn tell(&mut self, source: usize, tell: Tell) {
        let message = match tell {
            Tell::Start => Message::Start { run: self.run, first: self.first, at: self.began },
            Tell::Pause => Message::Pause,
            Tell::Resume => Message::Resume,
            Tell::StopAt { end, end_here } => Message::StopAt { end, end_here },
        };
        if let Some(link) = self.sources[source].connection.and_then(|at| self.endpoints.link_mut(at)) {
            link.send(&message);
        }
    }

    /// Sends a source everything it needs to know of the run so far.
    pub(super) fn instruct(&mut self, source: usize) {
        for tell in self.control.told(source) {
            self.tell(source, tell);
        }
    }

    /// Excludes a source from this run: it is not welcome again.
    pub(super) fn expel(&mut self, source: usize, why: &str) {
        self.tally.reasons.push(format!("source {} ({}): {why}", self.ids[source].0, self.ids[source].1));
        self.sources[source].session = None;
        self.give_up(source, why);
    }

    /// Opens the run, once all sources are connected, and has them begin.
    fn begin(&mut self) -> Result<(), NodeError> {
        self.began = self.clock.date();
        if let Err(error) = self.prepare_trigger().and_then(|()| self.open_run()) {
            self.control.failed();
            self.refuse_all(Refusal::Ended, &format!("the run could not be opened: {error}"));
            self.over = true;
            self.left = Some(error);
            return Ok(());
        }
        let config = BuilderConfig { run: self.run, ..self.builder.config().clone() };
        self.builder = Builder::new(config);
        self.began_at = self.clock.now();
        let compared = if self.compares_times() { self.sources.len() } else { 0 };
        self.shifts = ShiftSearch::new(compared, self.first, self.began_at);
        for source in 0..self.sources.len() {
            if self.sources[source].connection.is_some() {
                self.builder.connected(source, self.sources[source].slots, self.is_near(source));
            }
        }
        self.control.begun(self.began_at).into_iter().for_each(say_refused);
        Ok(())
    }

    /// Creates what the trigger levels need, before there is a run on disk.
    fn prepare_trigger(&mut self) -> Result<(), NodeError> {
        let Self { trigger: Some(trigger), config, ids, sources, endpoints, .. } = self else { return Ok(()) };
        trigger.decide_by(config, ids, sources)?;
        trigger.set_aside(config, sources)?;
        Ok(trigger.memory().map_or(Ok(()), |places| endpoints.register(places))?)
    }

    fn open_run(&mut self) -> Result<(), NodeError> {
        self.run = RunNumber(self.run_config.number.unwrap_or(0));
        if !self.run_config.record {
            return Ok(());
        }
        let sources = self.ids.iter().zip(&self.sources).map(|((id, name), state)| SourceInfo {
            id: *id,
            name: name.clone(),
            description: state.description.clone(),
        });
        let begin = RunBegin {
            began: self.began,
            tai_utc_offset: self.clock.tai_utc_offset(),
            program: "thalweg".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            sources: sources.collect(),
            configuration: self.configuration.clone(),
        };
        let config = RecorderConfig {
            directory: self.run_config.directory.clone(),
            run: self.run_config.number.map(RunNumber),
            builder: self.index,
            builders: self.count,
            assignment: self.run_config.assignment.name().into(),
            segment_bytes: self.config.segment.0,
            disk: self.files.clone(),
            begin,
            ..RecorderConfig::default()
        };
        let recorder = Recorder::create(config, self.blocks.pool_mut())?;
        self.endpoints.poller().add(recorder.as_fd(), RECORDER, Interest::READ)?;
        self.run = recorder.run();
        self.tally.recorder_method = Some(recorder.method().to_string());
        tracing::info!(run = self.run.0, path = %recorder.path().display(), "recording by {}", recorder.method());
        self.blocks.record_to(recorder.run(), Some(recorder));
        Ok(())
    }
}
