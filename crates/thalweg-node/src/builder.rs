//! Builder node: accepts sources, fetches what they offer, builds events and hands them to the recorder.
//!
//! The node consists of parts, each of which owns its state. The files that are no parts' (`messages`, `run`,
//! `ending`) pass what arrives, orders of run control and the end of a run on to the parts that they concern.

mod assembly;
mod assigning;
mod ending;
mod messages;
mod next;
mod opening;
mod origin;
mod peers;
mod reporting;
mod run;
mod run_state;
mod setup;
mod shifts;
mod silence;
mod stall;
mod time_use;
mod trace;
mod trigger;

use crate::drive::{Node, drive_node};
use crate::thread::run_as_node;
use crate::wait::Idle;
use crate::{BuilderReport, Clock, Handle, NodeError, Snapshot, SourceRow};
use assembly::{Assembly, Moment};
use assigning::Assigning;
use ending::Ending;
use next::{ClosingRun, HeldMessages, NextRun};
use origin::Origin;
use peers::{Peers, Sender};
use reporting::Reporting;
use run_state::RunState;
use setup::Setup;
use shifts::ShiftSearch;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::build::Builder;
use thalweg_core::control::{LONGEST_STEP, RunControl, State};
use thalweg_link::{Address, Poller, Watch};
use time_use::{Awaited, TimeMeter};
use trace::Trace;
pub use trigger::try_programs;

/// Token of the node's handle.
const HANDLE_TOKEN: u64 = Watch::FIRST_FREE_TOKEN;
/// Token of the recorder.
const RECORDER_TOKEN: u64 = Watch::FIRST_FREE_TOKEN + 1;
/// Token of a program that decides.
const PROGRAM_TOKEN: u64 = Watch::FIRST_FREE_TOKEN + 2;

/// Builder node that is ready to accept sources.
#[derive(Debug)]
pub struct BuilderNode {
    setup: Setup,
    clock: Arc<dyn Clock>,
    /// Time before the last look at the connections. What had arrived then is handled by the turn behind it, unless it is
    /// more than one look takes; later silence may be the builder's own, whose thread was not scheduled.
    looked_at: Duration,
    /// Beginning of the last turn.
    turn_began: Duration,
    peers: Peers,
    /// Event builder; a new one for each run when it begins.
    builder: Builder,
    /// Run that is to follow without a gap, and the one before, until it is on disk.
    next_run: Option<NextRun>,
    /// By source, messages of the next run that came before this builder learned of that.
    held_messages: Vec<HeldMessages>,
    closing_run: Option<ClosingRun>,
    assembly: Assembly,
    control: RunControl,
    run: RunState,
    assigning: Assigning,
    origin: Origin,
    shifts: ShiftSearch,
    reporting: Reporting,
    time_meter: TimeMeter,
    /// End of the run: everything is built, and on its way to the disk.
    ending: Option<Ending>,
}

impl Node for BuilderNode {
    type Report = BuilderReport;

    fn begin(&self, handle: &Handle) -> Result<(), NodeError> {
        Ok(self.peers.watch_handle(handle)?)
    }

    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<BuilderReport>, NodeError> {
        if self.ending.is_some() {
            return self.continue_ending(handle);
        }
        if woken.contains(&HANDLE_TOKEN) {
            self.obey_commands(handle);
        }
        if !self.run.is_over() {
            self.time_meter.begin_turn(self.clock.now());
            self.take_turn(woken, handle)?;
            let is_running = self.running_since().is_some();
            let (has_worked, awaited) = (self.peers.has_received(), self.awaited_stage());
            self.time_meter.end_turn(self.clock.now(), has_worked, awaited, is_running);
        }
        if !self.run.is_over() || !self.peers.deliver_last_messages(woken, self.clock.now()) {
            return Ok(None);
        }
        self.reporting.close_trace()?;
        if let Some(error) = self.run.take_error() {
            return Err(error);
        }
        self.begin_ending(handle)?;
        self.continue_ending(handle)
    }

    fn idle(&mut self) -> Idle {
        let now = self.clock.now();
        self.excuse_standstill(self.turn_began, now);
        (self.looked_at, self.turn_began) = (now, now);
        if let Some(idle) = self.idle_at_end(now) {
            return idle;
        }
        let hurries = self.assembly.disk_has_blocks() || !self.has_begun();
        let timeout = self.time_to_next_turn(now);
        self.peers.next_idle(hurries, timeout, now)
    }

    fn poller(&self) -> &Arc<Poller> {
        self.ending.as_ref().map_or(self.peers.poller(), Ending::poller)
    }
}

impl BuilderNode {
    /// Returns the addresses it listens on, with the ports the system chose.
    pub fn listening_addresses(&self) -> Vec<Address> {
        self.peers.listening_addresses().to_vec()
    }

    /// Writes the state of its credit to `file`, once every `every` while it runs. Each line is a JSON object: `at`,
    /// nanoseconds of `CLOCK_MONOTONIC`; `window`, bytes that may be requested and not yet received, or `null` if the
    /// window is constant; `asked`, bytes requested of each source, in the topology's order, and not yet received.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn trace(&mut self, file: &Path, every: Duration) -> Result<(), NodeError> {
        self.reporting.start_trace(Trace::open(file, every)?);
        Ok(())
    }

    /// Runs the node until the run is over and on disk.
    ///
    /// # Errors
    /// No run began, or something essential failed.
    pub fn run(mut self, handle: &Handle) -> Result<BuilderReport, NodeError> {
        let name = self.setup.config.name.clone();
        run_as_node(&name, self.setup.config.cpu, || drive_node(&mut self, handle))
    }

    fn take_turn(&mut self, woken: &[u64], handle: &Handle) -> Result<(), NodeError> {
        let now = self.clock.now();
        self.excuse_standstill(self.looked_at, now);
        self.turn_began = now;
        let mut ready = self.peers.poll(woken, now);
        ready.drain(..).for_each(|index| self.serve_connection(index));
        self.peers.reuse(ready);
        self.accept_connections()?;
        self.close_previous_run(handle)?;
        self.pass_time()?;
        self.build_events();
        self.assign_events();
        self.decide_origin();
        self.search_for_shifts();
        self.flush_messages();
        self.reporting.write_trace(&self.builder, self.clock.now())?;
        handle.publish_snapshot(|| self.take_snapshot());
        let Self { assembly, peers, .. } = self;
        assembly.samples_mut().exchange_samples(handle, |source| peers.source_greeting(source).description.clone());
        Ok(())
    }

    /// Takes time in which this thread was not scheduled from the silence of sources: those on the same machine stood
    /// still, too, and have not yet had the time to go on.
    fn excuse_standstill(&mut self, before: Duration, now: Duration) {
        let begun = before + LONGEST_STEP;
        if self.has_begun() && begun < now {
            self.builder.excuse_standstill(begun..now);
            self.peers.excuse_standstill(now - begun);
        }
    }

    /// Does what is due at this time: deadlines, silence, answers of the disk and of programs, and run control.
    fn pass_time(&mut self) -> Result<(), NodeError> {
        let now = self.clock.now();
        self.assembly.check_programs(now);
        self.peers.resume_accepting(now)?;
        self.close_silent_connections(self.looked_at);
        let running_since = self.running_since();
        self.reporting.advance_time(&mut self.builder, &self.setup, running_since, now);
        for source in self.builder.advance_time(self.looked_at) {
            let why = match self.peers.connection_number(source) {
                Some(_) => "its final counters include tickets that it did not offer",
                None => "it did not reconnect",
            };
            self.give_up_source(source, why);
        }
        self.reporting.report_silent_sources(&self.builder, &self.setup, &self.peers);
        self.assembly.check_disk(now);
        self.keep_in_control(now)?;
        self.handle_held_messages(self.looked_at);
        self.take_early_ends(self.looked_at);
        Ok(())
    }

    /// Fetches as much as there is room for, writes closed events down, and sends full blocks on.
    fn build_events(&mut self) {
        if !self.has_begun() {
            return;
        }
        let moment = Moment { now: self.clock.now(), date: self.clock.date() };
        while let Some((index, error)) = self.assembly.build(&mut self.builder, &mut self.peers, &self.setup, moment) {
            self.close_connection(index, &error);
        }
        self.control.set_held_up(self.assembly.holds_sources_up());
    }

    /// Releases slots, dismisses sources that are not needed any more, and sends all messages.
    fn flush_messages(&mut self) {
        self.assembly.hold_slots(&mut self.builder);
        self.peers.release_slots(&mut self.builder, self.assembly.may_release_later());
        for index in self.peers.connection_numbers() {
            let Sender::Source(source) = self.peers.message_sender(index) else { continue };
            let builder = self.builder_of(source);
            // A source that is in the next run already may hold fragments of the run under way.
            let is_done = self.has_begun()
                && builder.has_ended(source)
                && builder.is_settled(source)
                && self.builder.is_settled(source)
                && self.assigning.is_done_elsewhere(source, &self.builder);
            if is_done && !self.peers.is_dismissed(source) {
                self.peers.dismiss_source(source);
            }
        }
        for (index, error) in self.peers.flush_messages(self.clock.now()) {
            self.close_connection(index, &error);
        }
    }

    /// Returns the stage that the next turn waits for.
    fn awaited_stage(&self) -> Awaited {
        match self.assembly.stalled_stage() {
            Some(stage) => stage,
            None if self.builder.bytes_in_flight() > 0 => Awaited::Data,
            None => Awaited::Offers,
        }
    }

    /// Returns whether the run has begun for the sources, too.
    fn has_begun(&self) -> bool {
        self.control.run_state().has_begun()
    }

    /// Returns the beginning of the run, while it goes on.
    fn running_since(&self) -> Option<Duration> {
        (self.control.run_state() == State::Running).then(|| self.run.began_at())
    }

    fn time_to_next_turn(&self, now: Duration) -> Option<Duration> {
        if let Some(timeout) = self.peers.leaving_timeout(now) {
            return Some(timeout);
        }
        let has_begun = self.has_begun();
        // Silence depends on time alone.
        let silence = now + self.setup.answer_time() / 4;
        let next = [
            self.builder.next_deadline(now),
            self.builder.next_request_time(),
            self.assembly.next_due_time(now),
            self.reporting.next_due_time(&self.setup, self.running_since()),
            self.peers.next_due_time(now),
            self.control.next_check_time(),
            self.origin.next_due_time(),
            Some(silence).filter(|_| has_begun),
            self.next_close_time(),
            self.next_held_time(),
            self.run.next_early_end().filter(|_| has_begun),
            self.assigning.next_due_time().filter(|_| has_begun),
        ];
        next.into_iter().flatten().min().map(|at| at.saturating_sub(now))
    }

    /// Takes a snapshot of this node.
    fn take_snapshot(&self) -> Snapshot {
        let now = self.clock.now();
        let rows = 0..self.setup.ids.len();
        let sources: Vec<SourceRow> =
            rows.map(|source| reporting::source_row(source, &self.builder, &self.peers, now)).collect();
        let (bytes, fragments) = self.builder.progress_counts();
        let (events, incomplete) = self.builder.event_counts();
        let (stalls, stalled_nanos) = self.assembly.stall_totals();
        Snapshot {
            state: self.control.run_state(),
            run: self.run.run_number().0,
            at_nanos: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            reasons: self.reporting.reasons().to_vec(),
            waits: reporting::waits_text(&self.control, &self.setup.ids),
            bytes,
            fragments,
            events,
            incomplete,
            stalls,
            stalled_nanos,
            dead_nanos: 0,
            oldest_event: self.builder.oldest_event().0,
            end_event: self.control.known_end().map(|end| end.0),
            incomplete_events: self.assembly.incomplete_events(),
            connected: sources.iter().filter(|source| source.connected).count() as u64,
            sources,
        }
    }
}
