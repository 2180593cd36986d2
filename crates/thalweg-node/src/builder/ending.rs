//! End of a run: writes to disk what is built, closes the ledger, and makes the report.

use super::BuilderNode;
use super::assembly::Moment;
use super::assigning::left_out_reasons;
use super::run::ENDED_AT_ONCE;
use crate::blocks::{BlocksOutcome, DISK_TIME};
use crate::wait::Idle;
use crate::{BuilderNodeConfig, BuilderReport, Calibration, CreditReport, Handle, NodeError, calibration};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::build::{Found, Window};
use thalweg_core::control::Cause;
use thalweg_link::{Interest, Poller};
use thalweg_store::{EventCounts, RunEnd, RunState as StoredState};

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
    fn close_files(&mut self, now: Duration) -> Duration {
        *self.closing_since.get_or_insert(now)
    }

    /// Returns when the disk will have taken too long to close the run's files, if that has begun.
    fn next_time(&self, now: Duration) -> Option<Duration> {
        self.closing_since.map(|since| (since + DISK_TIME).max(now + Duration::from_millis(1)))
    }
}

impl BuilderNode {
    /// Begins the last phase: everything is built, and only has to be brought to the disk. Sources that are still
    /// connected are not listened to any more.
    pub(super) fn begin_to_end(&mut self, handle: &Handle) -> Result<(), NodeError> {
        let poller = Poller::new()?;
        poller.add(handle.as_fd(), super::HANDLE_TOKEN, Interest::READ)?;
        self.assembly.watch(&poller)?;
        self.ending = Some(Ending::new(poller, self.clock.now()));
        Ok(())
    }

    /// Continues the last phase. Returns the report once everything is on disk, the ledger is closed and the run's
    /// files are.
    pub(super) fn end(&mut self, handle: &Handle) -> Result<Option<BuilderReport>, NodeError> {
        handle.clear();
        while let Some(command) = handle.next_command() {
            let _ = self.control.command(command);
        }
        handle.show(|| self.snapshot());
        let moment = Moment { now: self.clock.now(), date: self.clock.date() };
        if !self.assembly.write_out(&mut self.builder, &self.setup, moment)? {
            return Ok(None);
        }
        let now = self.clock.now();
        let Some(ending) = &mut self.ending else { return Ok(None) };
        let (ended_at, since) = (ending.ended_at, ending.close_files(now));
        if !self.assembly.close_files(since, now)? {
            return Ok(None);
        }
        self.finish(ended_at).map(Some)
    }

    /// Returns how to wait in the last phase; `None` if it has not begun.
    pub(super) fn idle_at_end(&self, now: Duration) -> Option<Idle> {
        let ending = self.ending.as_ref()?;
        let closed = ending.next_time(now);
        let waits = closed.is_some() || self.assembly.disk_has_blocks() || self.assembly.next_program_check().is_some();
        if !waits {
            return Some(Idle::Ask(Some(Duration::ZERO)));
        }
        let next = closed.into_iter().chain(self.assembly.next_check(now)).min();
        Some(Idle::Ask(next.map(|at| at.saturating_sub(now))))
    }

    /// Closes the ledger and the run, and returns the report.
    fn finish(&mut self, ended_at: Duration) -> Result<BuilderReport, NodeError> {
        let calibration = self.builder.found().map(|found| self.calibration(&found)).transpose()?;
        let mut report = self.report(ended_at);
        report.calibration = calibration;
        let BlocksOutcome { recorder, unwritten, failure } = self.assembly.finish();
        let ledger = self.builder.ledger(recorder.is_some(), &unwritten, self.reporting.unknown_sources());
        (report.ledger, report.left_out) = self.assigning.account_for_left_out(ledger);
        if report.trigger.is_some() {
            // Fragments that a level rejected were fetched, and are not part of any event.
            report.fragments = report.ledger.sources.iter().map(|entry| entry.recorded + entry.discarded).sum();
        }
        report.reasons = self.reasons(&report, failure);
        let mut state = if report.reasons.is_empty() { StoredState::Complete } else { StoredState::Incomplete };
        if let Some(recorder) = recorder {
            let end = RunEnd {
                ended: self.clock.date(),
                seconds: self.run.seconds_until(self.clock.now()),
                state,
                reasons: std::mem::take(&mut report.reasons),
                events: EventCounts { built: report.events, incomplete: report.incomplete },
                trigger: report
                    .trigger
                    .map(|trigger| serde_json::to_value(trigger).unwrap_or_default())
                    .unwrap_or_default(),
                left_out: match report.left_out.is_empty() {
                    true => serde_json::Value::Null,
                    false => serde_json::to_value(&report.left_out).unwrap_or_default(),
                },
                ledger: serde_json::to_value(&report.ledger.sources).unwrap_or_default(),
            };
            let finished = recorder.finish(end)?;
            state = finished.info.state;
            report.reasons = finished.info.reasons;
            report.directory = Some(finished.path.display().to_string());
            // With recording, the run has ended when it is on disk.
            report.seconds = self.run.seconds_until(self.clock.now());
        }
        report.state = if state == StoredState::Complete { "COMPLETE" } else { "INCOMPLETE" }.into();
        self.control.closed();
        Ok(report)
    }

    /// Returns the reasons why the run is incomplete. `failure`: first error of the disk.
    fn reasons(&mut self, report: &BuilderReport, failure: Option<String>) -> Vec<String> {
        left_out_reasons(&report.left_out).for_each(|reason| self.reporting.add_reason(reason));
        let shifts = self.shifts.finish();
        self.act_on_shifts(shifts);
        let mut reasons = self.reporting.take_reasons();
        // A run may end before its first event without having been aborted.
        let accepted_any = report.ledger.sources.iter().any(|entry| entry.accepted > entry.beyond_end);
        if accepted_any && self.control.cause() == Some(&Cause::AbortElsewhere) {
            reasons.push(ENDED_AT_ONCE.into());
        }
        reasons.extend(failure);
        reasons.extend(report.ledger.reasons(self.control.is_aborted()));
        reasons.extend(self.assembly.undecided_reason());
        if report.incomplete > 0 {
            reasons.push(format!("{} of {} events are incomplete", report.incomplete, report.events));
        }
        reasons
    }

    /// Keeps the measured capacity of the link, and returns it.
    fn calibration(&self, found: &Found) -> Result<Calibration, NodeError> {
        let config = &self.setup.config;
        let link = calibration::link(found, config.link.map_or(1500, |link| link.mtu), config.carrier());
        let file = calibration::keep(&config.listen, &link)?.display().to_string();
        let config = BuilderNodeConfig { window: None, link: Some(link), ..config.clone() };
        let window_bytes = match config.credit(self.setup.ids.len()).0 {
            Window::Credit(path) => path.widest(),
            Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        };
        Ok(Calibration { builder: config.name, link, lost: found.lost, window_bytes, file })
    }

    /// Returns the values that are known before the last block is on disk.
    fn report(&self, ended_at: Duration) -> BuilderReport {
        let Self { setup, builder, peers, assembly, reporting, .. } = self;
        let losses = peers.losses();
        let credit = builder.credit().map(|credit| CreditReport {
            window_bytes: credit.window,
            piece_bytes: credit.piece,
            round_trip_us: credit.round_trip.as_secs_f64() * 1e6,
            sent_bytes: losses.sent,
            sent_again_bytes: losses.again,
        });
        let (events, incomplete) = builder.counts();
        let (bytes, fragments) = builder.progress_counts();
        let (source_cpu, source_copied) = builder.source_costs();
        let (stalls, stalled_nanos) = assembly.stalls();
        let seconds = self.run.seconds_until(ended_at);
        BuilderReport {
            name: setup.config.name.clone(),
            calibrated: setup.calibrated.clone(),
            run: self.run.number().0,
            builder: setup.index,
            builders: setup.count,
            seconds,
            bytes,
            fragments,
            events,
            incomplete,
            stalls,
            stalled_seconds: Duration::from_nanos(stalled_nanos).as_secs_f64(),
            copied_bytes: peers.copied_bytes() + assembly.copied_bytes(),
            cpu_seconds: reporting.cpu_seconds(self.clock.cpu()),
            source_cpu_seconds: Duration::from_nanos(source_cpu).as_secs_f64(),
            source_copied_bytes: source_copied,
            datagrams: peers.arrivals(),
            recorder: reporting.recorder_method(),
            pages: assembly.memory_description(),
            wait: setup.config.wait,
            steady: reporting.steady(builder, self.clock.now()),
            credit,
            trigger: assembly.trigger_report(setup, builder, seconds),
            ..BuilderReport::default()
        }
    }
}
