//! End of a run: writes to disk what is built, closes the ledger, and makes the report.

use super::assigning::{account_for_left_out, why_left_out};
use super::run::AT_ONCE;
use super::trigger::Trigger;
use super::{BELL, BuilderNode, PROGRAM, RECORDER, add};
use crate::blocks::Sent;
use crate::wait::Idle;
use crate::{
    BuilderNodeConfig, BuilderReport, Calibration, Completion, CreditReport, Handle, Levels, NodeError, Steady,
    TriggerReport, calibration,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::build::{Found, Window};
use thalweg_core::control::Cause;
use thalweg_core::filter::Undecided;
use thalweg_link::{Interest, Poller};
use thalweg_store::{EventCounts, RunEnd, RunState};

/// Time after which a disk that does not answer has failed.
const DISK_TIME: Duration = Duration::from_secs(60);

/// State of the disk's answers.
#[derive(Debug, Default)]
pub(super) struct DiskAnswers {
    /// Time since which the disk owes an answer.
    since: Option<Duration>,
}

impl DiskAnswers {
    /// Updates the state: the disk has `in_flight` blocks, and some have come back since the last call if `answered`.
    /// Returns true if the disk has owed an answer for too long.
    fn look(&mut self, in_flight: usize, answered: bool, now: Duration) -> bool {
        self.since = match self.since {
            _ if in_flight == 0 => None,
            Some(since) if !answered => Some(since),
            _ => Some(now),
        };
        self.since.is_some_and(|since| now > since + DISK_TIME)
    }

    /// Returns when the disk will have owed an answer for too long.
    pub(super) fn next_look(&self, now: Duration) -> Option<Duration> {
        self.since.map(|since| (since + DISK_TIME).max(now + Duration::from_millis(1)))
    }
}

/// Last phase of a run: everything is built, and on its way to the disk.
#[derive(Debug)]
pub(super) struct Ending {
    /// Poller without sources and without connections that are still to come.
    poller: Arc<Poller>,
    /// Time at which everything was built.
    ended_at: Duration,
    /// Time since which only the run's files remain to be closed.
    closes: Option<Duration>,
}

impl Ending {
    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }
}

/// Counts of what was built so far, including the bytes received of fragments that are not built yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Built {
    at: Duration,
    events: u64,
    bytes: u64,
}

impl BuilderNode {
    pub(super) fn built(&self, at: Duration) -> Built {
        let bytes = self.builder.progress_counts().0 + self.builder.in_parts();
        Built { at, events: self.builder.counts().0, bytes }
    }

    /// Returns the figures since the warm-up.
    pub(super) fn steady(&self) -> Steady {
        let Some(warm) = self.tally.warm else { return Steady::default() };
        let built = self.built(self.clock.now());
        let completion = self.builder.completion();
        let micros = |nanos: u64| nanos as f64 / 1e3;
        Steady {
            seconds: (built.at - warm.at).as_secs_f64(),
            // The event filter may have rejected some of the events that were counted at the end of the warm-up.
            events: built.events.saturating_sub(warm.events),
            payload_bytes: built.bytes.saturating_sub(warm.bytes),
            completion: Completion {
                p50_us: micros(completion.value_at_quantile(0.5)),
                p99_us: micros(completion.value_at_quantile(0.99)),
                max_us: micros(completion.max()),
            },
        }
    }

    /// Takes back blocks that the disk has written. A disk that has not answered for long has failed, and is given
    /// nothing more.
    pub(super) fn look_at_disk(&mut self, now: Duration) {
        let answered = self.blocks.reap();
        self.blocks.keep(now, self.config.flush);
        if self.answers.look(self.blocks.in_flight(), answered, now) {
            let (blocks, time) = (self.blocks.in_flight(), humantime::format_duration(DISK_TIME));
            self.blocks.failure.get_or_insert_with(|| format!("the disk has not taken {blocks} blocks within {time}"));
        }
    }

    /// Begins the last phase: everything is built, and only has to be brought to the disk. Sources that are still
    /// connected are not listened to any more.
    pub(super) fn begin_to_end(&mut self, handle: &Handle) -> Result<(), NodeError> {
        let poller = Poller::new()?;
        poller.add(handle.as_fd(), BELL, Interest::READ)?;
        if let Some(recorder) = self.blocks.recorder() {
            poller.add(recorder.as_fd(), RECORDER, Interest::READ)?;
        }
        if let Some(trigger) = &self.trigger {
            trigger.descriptors().try_for_each(|program| poller.add(program, PROGRAM, Interest::READ))?;
        }
        self.ending = Some(Ending { poller: Arc::new(poller), ended_at: self.clock.now(), closes: None });
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
        if !self.write_out()? {
            return Ok(None);
        }
        let now = self.clock.now();
        let Some(ending) = &mut self.ending else { return Ok(None) };
        let (ended_at, since) = (ending.ended_at, *ending.closes.get_or_insert(now));
        self.blocks.end();
        self.blocks.reap();
        if !self.blocks.is_ended() {
            if now > since + DISK_TIME {
                let time = humantime::format_duration(DISK_TIME);
                return Err(self.leave_disk(format!("the disk has not closed the run's files within {time}")));
            }
            return Ok(None);
        }
        self.finish(ended_at).map(Some)
    }

    /// Returns how to wait in the last phase; `None` if it has not begun.
    pub(super) fn idle_at_end(&self, now: Duration) -> Option<Idle> {
        let ending = self.ending.as_ref()?;
        let look = self.trigger.as_ref().and_then(Trigger::next_look);
        let disk = ending.closes.map(|since| (since + DISK_TIME).max(now + Duration::from_millis(1)));
        let waits = ending.closes.is_some() || self.blocks.in_flight() > 0 || look.is_some();
        let next = disk.or(self.answers.next_look(now)).into_iter().chain(look).min();
        Some(Idle::Ask(if waits { next.map(|at| at.saturating_sub(now)) } else { Some(Duration::ZERO) }))
    }

    /// Closes the ledger and the run, and returns the report.
    fn finish(&mut self, ended_at: Duration) -> Result<BuilderReport, NodeError> {
        let calibration = self.builder.found().map(|found| self.calibration(&found)).transpose()?;
        let mut report = self.report(ended_at);
        report.calibration = calibration;
        let Sent { recorder, unwritten, failure } = self.blocks.finish();
        let ledger = self.builder.ledger(recorder.is_some(), &unwritten, self.tally.unknown_sources);
        (report.ledger, report.left_out) = account_for_left_out(self.assigning.as_ref(), ledger);
        if report.trigger.is_some() {
            // Fragments that a level rejected were fetched, and are not part of any event.
            report.fragments = report.ledger.sources.iter().map(|entry| entry.recorded + entry.discarded).sum();
        }
        self.tally.reasons.extend(why_left_out(&report.left_out));
        let shifts = self.shifts.finish();
        self.act_on_shifts(shifts);
        let mut reasons = std::mem::take(&mut self.tally.reasons);
        // A run may end before its first event without having been aborted.
        let took = report.ledger.sources.iter().any(|entry| entry.accepted > entry.beyond_end);
        if took && self.control.cause() == Some(&Cause::AbortElsewhere) {
            reasons.push(AT_ONCE.into());
        }
        reasons.extend(failure);
        reasons.extend(report.ledger.reasons(self.control.is_aborted()));
        reasons.extend(self.trigger.as_ref().and_then(|trigger| why_undecided(trigger.undecided_by_programs())));
        if report.incomplete > 0 {
            reasons.push(format!("{} of {} events are incomplete", report.incomplete, report.events));
        }
        report.reasons = reasons;
        let mut state = if report.reasons.is_empty() { RunState::Complete } else { RunState::Incomplete };
        if let Some(recorder) = recorder {
            let end = RunEnd {
                ended: self.clock.date(),
                seconds: (self.clock.now() - self.began_at).as_secs_f64(),
                state,
                reasons: report.reasons,
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
            report.seconds = (self.clock.now() - self.began_at).as_secs_f64();
        }
        report.state = if state == RunState::Complete { "COMPLETE" } else { "INCOMPLETE" }.into();
        self.control.closed();
        Ok(report)
    }

    /// Sends on what is built. Returns true once all of it is on disk, or known not to be.
    fn write_out(&mut self) -> Result<bool, NodeError> {
        let (tai, mono) = (self.clock.date(), self.clock.now());
        self.look_at_disk(mono);
        if let Some(trigger) = &mut self.trigger {
            trigger.look(mono);
        }
        self.write_down(tai, mono);
        self.blocks.send_on(tai, mono, Duration::ZERO, true);
        let idle = self.trigger.as_ref().is_none_or(|trigger| trigger.is_idle());
        if idle && !self.blocks.has_closings() && !self.blocks.has_unsent() && self.blocks.in_flight() == 0 {
            return Ok(true);
        }
        match self.blocks.failure.take_if(|_| self.answers.since.is_some_and(|at| mono > at + DISK_TIME)) {
            Some(failure) => Err(self.leave_disk(failure)),
            None => Ok(false),
        }
    }

    /// Gives up a disk that does not answer, and returns the error. The memory of its blocks is the kernel's until the
    /// kernel lets go of it, and this process must not wait for that.
    fn leave_disk(&mut self, failure: String) -> NodeError {
        std::mem::forget(self.blocks.leave());
        NodeError::Disk(failure)
    }

    /// Keeps the measured capacity of the link, and returns it.
    fn calibration(&self, found: &Found) -> Result<Calibration, NodeError> {
        let link = calibration::link(found, self.config.link.map_or(1500, |link| link.mtu), self.config.carrier());
        let config = BuilderNodeConfig { window: None, link: Some(link), ..self.config.clone() };
        let window_bytes = match config.credit(self.ids.len()).0 {
            Window::Credit(path) => path.widest(),
            Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        };
        let file = calibration::keep(&self.config.listen, &link)?.display().to_string();
        Ok(Calibration { builder: self.config.name.clone(), link, lost: found.lost, window_bytes, file })
    }

    /// Returns the values that are known before the last block is on disk.
    fn report(&self, ended_at: Duration) -> BuilderReport {
        let losses = self.connections.iter().flatten().fold(self.tally.losses_before, |sum, c| add(sum, c.losses));
        let credit = self.builder.credit().map(|credit| CreditReport {
            window_bytes: credit.window,
            piece_bytes: credit.piece,
            round_trip_us: credit.round_trip.as_secs_f64() * 1e6,
            sent_bytes: losses.sent,
            sent_again_bytes: losses.again,
        });
        let (events, incomplete) = self.builder.counts();
        let (bytes, fragments) = self.builder.progress_counts();
        let (source_cpu, source_copied) = self.builder.source_costs();
        let links = (0..self.connections.len()).filter_map(|index| self.endpoints.link(index));
        let copied: u64 = links.map(|link| link.copied()).sum();
        let copied_here = self.trigger.as_ref().map_or(0, |trigger| trigger.copied());
        let seconds = (ended_at - self.began_at).as_secs_f64();
        let trigger = self.trigger.as_ref().map(|trigger| {
            let (undecided, simulated) = (trigger.undecided(), trigger.is_simulated());
            let levels = Levels { level2: self.config.level2.is_some(), filter: self.config.filter.is_some() };
            TriggerReport { undecided, simulated, ..TriggerReport::new(self.builder.triggered(), seconds, levels) }
        });
        BuilderReport {
            name: self.config.name.clone(),
            calibrated: self.calibrated.clone(),
            run: self.run.0,
            builder: self.index,
            builders: self.count,
            seconds,
            bytes,
            fragments,
            events,
            incomplete,
            stalls: self.shown.stalls,
            stalled_seconds: Duration::from_nanos(self.shown.stalled_nanos).as_secs_f64(),
            copied_bytes: self.tally.copied_before + copied + copied_here,
            cpu_seconds: (self.clock.cpu() - self.cpu_before).as_secs_f64(),
            source_cpu_seconds: Duration::from_nanos(source_cpu).as_secs_f64(),
            source_copied_bytes: source_copied,
            datagrams: self.endpoints.arrivals(),
            recorder: self.tally.recorder_method.clone(),
            pages: self.memory.to_string(),
            wait: self.config.wait,
            steady: self.tally.steady.unwrap_or_else(|| self.steady()),
            credit,
            trigger,
            ..BuilderReport::default()
        }
    }
}

/// Returns a reason about events that the programs of trigger levels did not decide on; `None` if there are none.
fn why_undecided(undecided: Undecided) -> Option<String> {
    let Undecided { unsure, late, gone, .. } = undecided;
    let parts =
        [(unsure, "could not be decided on"), (late, "were decided on too late"), (gone, "had nobody to decide")];
    let parts: Vec<String> =
        parts.iter().filter(|(events, _)| *events > 0).map(|(events, what)| format!("{events} {what}")).collect();
    (!parts.is_empty()).then(|| format!("of the events that a program was to decide on, {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_failed_that_does_not_answer_and_not_one_that_is_always_busy() {
        let mut disk = DiskAnswers::default();
        let second = Duration::from_secs(1);
        for at in 0..1000 {
            assert!(!disk.look(16, true, at * second), "it answers");
        }
        let last = 999 * second;
        assert!(!disk.look(16, false, last + DISK_TIME));
        assert!(disk.look(16, false, last + DISK_TIME + second));
        assert!(!disk.look(0, true, last + 2 * DISK_TIME), "it owes nothing");
        assert!(!disk.look(1, false, last + 3 * DISK_TIME), "what it was given now it owes from now on");
    }
}
