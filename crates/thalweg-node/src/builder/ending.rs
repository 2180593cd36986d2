//! End of a run: writes to disk what is built, closes the ledger, and makes the report.

use super::BuilderNode;
use super::assembly::Moment;
use super::assigning::left_out_reasons;
use super::run::ENDED_AT_ONCE;
use super::setup::Setup;
use crate::blocks::{BlocksOutcome, DISK_TIME};
use crate::wait::Idle;
use crate::{
    BuilderNodeConfig, BuilderReport, Calibration, CommandRefusal, CreditReport, Handle, NodeCommand, NodeError,
    Snapshot, calibration,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::build::{LinkCapacity, TimeUse, Window};
use thalweg_core::control::{Cause, Command};
use thalweg_link::{Interest, Poller};
use thalweg_store::{EventCounts, Milestones, Recorder, RunEnd, RunState as StoredState, Step};
use thalweg_text::ByteSize;
use thalweg_wire::TaiNanos;

/// Last phase of a run: everything is built, and on its way to the disk.
#[derive(Debug)]
pub(super) struct Ending {
    /// Poller without sources and without connections that are still to come.
    poller: Arc<Poller>,
    /// Time at which everything was built.
    ended_at: Duration,
    /// Time since which only the run's files remain to be closed.
    closing_since: Option<Duration>,
}

impl Ending {
    /// Begins the phase with a poller of its own.
    fn new(poller: Poller, now: Duration) -> Self {
        Self { poller: Arc::new(poller), ended_at: now, closing_since: None }
    }

    /// Returns the poller to wait on.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Returns the time since which only the run's files remain to be closed; the first call sets it.
    fn files_closing_since(&mut self, now: Duration) -> Duration {
        *self.closing_since.get_or_insert(now)
    }

    /// Returns when the disk will have taken too long to close the run's files, if that has begun.
    fn next_due_time(&self, now: Duration) -> Option<Duration> {
        self.closing_since.map(|since| (since + DISK_TIME).max(now + Duration::from_millis(1)))
    }
}

impl BuilderNode {
    /// Begins the last phase: everything is built, and only has to be brought to the disk. Sources that are still
    /// connected are not listened to any more.
    pub(super) fn begin_ending(&mut self, handle: &Handle) -> Result<(), NodeError> {
        let poller = Poller::new()?;
        poller.add_descriptor(handle.as_fd(), super::HANDLE_TOKEN, Interest::READ)?;
        self.assembly.watch_descriptors(&poller)?;
        self.ending = Some(Ending::new(poller, self.clock.now()));
        Ok(())
    }

    /// Continues the last phase. Returns the report once everything is on disk, the ledger is closed and the run's
    /// files are.
    pub(super) fn continue_ending(&mut self, handle: &Handle) -> Result<Option<BuilderReport>, NodeError> {
        handle.clear_doorbell();
        while let Some(request) = handle.next_request() {
            let result = match &request.command {
                NodeCommand::Control(command) => self.execute_closing_command(*command),
                command => Err(format!("cannot {command}: the run is being closed")),
            };
            request.answer(result.map_err(CommandRefusal));
        }
        self.assembly.check_disk(self.clock.now());
        self.close_previous_run(handle)?;
        handle.publish_snapshot(|| self.take_snapshot());
        let moment = Moment { now: self.clock.now(), date: self.clock.date() };
        if !self.assembly.write_out_rest(&mut self.builder, &self.setup, moment)? || self.closing_run.is_some() {
            return Ok(None);
        }
        let now = self.clock.now();
        let Some(ending) = &mut self.ending else { return Ok(None) };
        let (ended_at, since) = (ending.ended_at, ending.files_closing_since(now));
        if !self.assembly.close_files(since, now)? {
            return Ok(None);
        }
        let report = self.finish_run(ended_at)?;
        handle.publish_final_snapshot(Snapshot { reasons: report.reasons.clone(), ..self.take_snapshot() });
        Ok(Some(report))
    }

    fn execute_closing_command(&mut self, command: Command) -> Result<(), String> {
        self.control.execute_command(command).map_err(|refused| refused.to_string())?;
        self.note_command(command);
        Ok(())
    }

    /// Returns how to wait in the last phase; `None` if it has not begun.
    pub(super) fn idle_at_end(&self, now: Duration) -> Option<Idle> {
        let ending = self.ending.as_ref()?;
        let closed = ending.next_due_time(now).into_iter().chain(self.next_close_time()).min();
        let waits =
            closed.is_some() || self.assembly.disk_has_blocks() || self.assembly.next_program_check_time().is_some();
        if !waits {
            return Some(Idle::Ask(Some(Duration::ZERO)));
        }
        let next = closed.into_iter().chain(self.assembly.next_check_time(now)).min();
        Some(Idle::Ask(next.map(|at| at.saturating_sub(now))))
    }

    /// Closes the ledger and the run, and returns the report.
    fn finish_run(&mut self, ended_at: Duration) -> Result<BuilderReport, NodeError> {
        let mut report = self.counts_report(ended_at);
        self.compare_with_calibration(&report);
        let BlocksOutcome { recorder, unwritten, failure } = self.assembly.take_outcome();
        let ledger = self.builder.final_ledger(recorder.is_some(), &unwritten, self.reporting.unknown_sources());
        (report.ledger, report.left_out) = self.assigning.account_for_left_out(ledger);
        if report.trigger.is_some() {
            // Fragments that a level rejected were fetched, and are not part of any event.
            report.fragments = report.ledger.sources.iter().map(|entry| entry.recorded + entry.discarded).sum();
        }
        report.reasons = self.incomplete_reasons(&report, failure);
        if let Some(found) = self.builder.found_capacity() {
            report.calibration = Some(self.keep_calibration(&found, &report)?);
        }
        let seconds = self.run.seconds_until(self.clock.now());
        let (times, steps) = (self.milestones(), self.run.take_steps());
        write_run_end(&mut report, recorder, self.clock.date(), seconds, times, steps)?;
        self.control.run_closed();
        Ok(report)
    }

    /// Returns the reasons why the run is incomplete. `failure`: first error of the disk.
    fn incomplete_reasons(&mut self, report: &BuilderReport, failure: Option<String>) -> Vec<String> {
        left_out_reasons(&report.left_out).for_each(|reason| self.reporting.add_reason(reason));
        let shifts = self.shifts.finish_search();
        self.act_on_shifts(shifts);
        let mut reasons = self.reporting.take_reasons();
        // By room, the leading builder accounts for the others.
        let is_led = self.assigning.is_by_room() && self.setup.index != 0;
        let is_accounted =
            |builder| is_led && builder != 0 || report.left_out.iter().any(|left| left.builder == builder);
        reasons.extend(self.reporting.lost_builder_reasons(&self.setup, is_accounted));
        // A run may end before its first event without having been aborted.
        let accepted_any = report.ledger.sources.iter().any(|entry| entry.accepted > entry.beyond_end);
        if accepted_any && self.control.end_cause() == Some(&Cause::AbortElsewhere) {
            reasons.push(ENDED_AT_ONCE.into());
        }
        reasons.extend(failure);
        reasons.extend(report.ledger.incomplete_reasons(self.control.is_aborted()));
        reasons.extend(self.final_reasons(report));
        reasons
    }

    /// Returns the reasons why a run is incomplete that come last.
    pub(super) fn final_reasons(&self, report: &BuilderReport) -> Vec<String> {
        let incomplete = (report.incomplete > 0)
            .then(|| format!("{} of {} events are incomplete", report.incomplete, report.events));
        self.assembly.undecided_reason().into_iter().chain(incomplete).collect()
    }

    /// Returns the times of the run's course.
    pub(super) fn milestones(&self) -> Milestones {
        let [asked, stop_asked] = self.run.asked_dates();
        let [first_event, last_event] = self.assembly.event_dates();
        let [asked, first_event, stop_asked, last_event] =
            [asked, first_event, stop_asked, last_event].map(|date| date.map(|date| date.0));
        Milestones { asked, first_event, stop_asked, last_event, on_disk: None }
    }

    /// Warns if the run carried more than the kept measurement of the link says that it can.
    fn compare_with_calibration(&self, report: &BuilderReport) {
        let Some(kept) = &self.setup.calibrated else { return };
        let bytes_per_second = report.bytes as f64 / report.seconds.max(1.0);
        if let Some(contradiction) = kept.contradiction(bytes_per_second, self.setup.config.carried_link_kind()) {
            tracing::warn!("{contradiction}");
        }
    }

    /// Keeps the measured capacity of the link unless the run is incomplete, and returns it.
    fn keep_calibration(&self, found: &LinkCapacity, report: &BuilderReport) -> Result<Calibration, NodeError> {
        let config = &self.setup.config;
        let link = calibration::link_from_measurement(
            found,
            config.link.map_or(1500, |link| link.mtu),
            config.carried_link_kind(),
        );
        let waited = self.setup.wait_at_beginning.and_then(|before| {
            let waited = thalweg_sys::processor::thread_wait_time()?.saturating_sub(before);
            Some(waited.as_secs_f64() / report.seconds.max(1e-3))
        });
        let mut warnings = calibration::measurement_warnings(found, waited);
        let mut file = None;
        if report.reasons.is_empty() {
            warnings.extend(config.stored_calibration().and_then(|before| before.change_warning(&link)));
            let sources = self.setup.ids.iter().map(|(_, name)| name.clone()).collect();
            let kept = calibration::keep_calibration(&config.listen, &link, sources, &warnings)?;
            file = Some(kept.display().to_string());
        }
        let largest_buffer = ByteSize(found.largest_buffer);
        let config = BuilderNodeConfig { window: None, link: Some(link), ..config.clone() };
        let window_bytes = match config.window_and_eager_bytes(self.setup.ids.len()).0 {
            Window::Credit(path) => path.widest_window_bytes(),
            Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        };
        let (builder, lost) = (config.name, found.lost);
        Ok(Calibration { builder, link, lost, largest_buffer, window_bytes, file, warnings })
    }

    /// Returns the time of this thread in the run, with the names of what it waited for.
    fn named_time_use(&self) -> TimeUse {
        let Setup { config, run, .. } = &self.setup;
        TimeUse {
            builder: config.name.clone(),
            link: self.peers.listening_addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            directory: if run.record { run.directory.display().to_string() } else { String::new() },
            ..self.time_meter.time_use()
        }
    }

    /// Returns the values that are known before the last block is on disk.
    pub(super) fn counts_report(&self, ended_at: Duration) -> BuilderReport {
        let Self { setup, builder, peers, assembly, reporting, .. } = self;
        let links = reporting.link_counts(peers);
        let losses = links.losses;
        let credit = builder.credit_state().map(|credit| CreditReport {
            window_bytes: credit.window,
            piece_bytes: credit.piece,
            round_trip_us: credit.round_trip.as_secs_f64() * 1e6,
            sent_bytes: losses.sent,
            sent_again_bytes: losses.again,
        });
        let (events, incomplete) = builder.event_counts();
        let (bytes, fragments) = builder.progress_counts();
        let (source_cpu, source_copied) = builder.source_costs();
        let (stalls, stalled_nanos) = assembly.stall_totals();
        let seconds = self.run.seconds_until(ended_at);
        BuilderReport {
            name: setup.config.name.clone(),
            calibrated: setup.calibrated.as_ref().map(|link| link.file.display().to_string()),
            run: self.run.run_number().0,
            builder: setup.index,
            builders: setup.count,
            seconds,
            bytes,
            fragments,
            events,
            incomplete,
            stalls,
            stalled_seconds: Duration::from_nanos(stalled_nanos).as_secs_f64(),
            copied_bytes: links.copied_bytes + assembly.copied_bytes(),
            cpu_seconds: reporting.cpu_seconds(self.clock.processor_time()),
            source_cpu_seconds: Duration::from_nanos(source_cpu).as_secs_f64(),
            source_copied_bytes: source_copied,
            datagrams: links.datagrams,
            recorder: reporting.recorder_method(),
            pages: assembly.memory_description(),
            wait: setup.config.wait,
            steady: reporting.steady_figures(builder, self.clock.now()),
            credit,
            time_use: self.named_time_use(),
            trigger: assembly.trigger_report(setup, builder, seconds),
            ..BuilderReport::default()
        }
    }
}

/// Writes the end of a run whose files are closed, and completes its report.
///
/// # Errors
/// Its `run.json` cannot be written.
pub(super) fn write_run_end(
    report: &mut BuilderReport,
    recorder: Option<Recorder>,
    ended: TaiNanos,
    seconds: f64,
    times: Milestones,
    steps: Vec<Step>,
) -> Result<(), NodeError> {
    let mut state = if report.reasons.is_empty() { StoredState::Complete } else { StoredState::Incomplete };
    if let Some(recorder) = recorder {
        let end = RunEnd {
            ended,
            seconds,
            state,
            reasons: std::mem::take(&mut report.reasons),
            times,
            steps,
            events: EventCounts { built: report.events, incomplete: report.incomplete },
            trigger: report
                .trigger
                .map(|trigger| serde_json::to_value(trigger).unwrap_or_default())
                .unwrap_or_default(),
            left_out: match report.left_out.is_empty() {
                true => serde_json::Value::Null,
                false => serde_json::to_value(&report.left_out).unwrap_or_default(),
            },
            time_use: serde_json::to_value([&report.time_use]).unwrap_or_default(),
            ledger: serde_json::to_value(&report.ledger.sources).unwrap_or_default(),
        };
        let finished = recorder.finish_run(end)?;
        state = finished.info.state;
        report.reasons = finished.info.reasons;
        report.directory = Some(finished.path.display().to_string());
        // With recording, the run has ended when its files are closed.
        report.seconds = finished.info.totals.seconds;
    }
    report.state = if state == StoredState::Complete { "COMPLETE" } else { "INCOMPLETE" }.into();
    Ok(())
}
