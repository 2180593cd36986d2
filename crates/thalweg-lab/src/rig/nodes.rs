//! The nodes of a scenario, one Thalweg process on each host, and the signals that stall or kill them.

use super::watch::Watch;
use super::{Rig, timeline};
use crate::LabError;
use crate::network::{Host, Network};
use crate::report::{self, Completion};
use crate::scenario::Scenario;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The parts of a builder's final report that are used here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BuilderReport {
    pub(super) events: ReportedEvents,
    pub(super) steady: Steady,
    pub(super) calibration: Vec<Calibration>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct ReportedEvents {
    pub(super) incomplete: u64,
}

/// Result of a builder's calibration.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Calibration {
    pub(super) link: report::CalibratedLink,
}

/// Numbers of the time after the warm-up.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Steady {
    pub(super) seconds: f64,
    pub(super) events: u64,
    pub(super) payload_bytes: u64,
    completion: Completion,
}

impl BuilderReport {
    pub(super) fn goodput_bits_per_second(&self) -> f64 {
        let Steady { seconds, payload_bytes, .. } = self.steady;
        if seconds > 0.0 { payload_bytes as f64 * 8.0 / seconds } else { 0.0 }
    }

    pub(super) fn steady_completion(&self) -> Option<Completion> {
        (self.steady.events > 0).then_some(self.steady.completion)
    }
}

/// Longest time until an interrupt is noticed.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time until the beginning of the measured time is noticed, from which the exact times of signals count.
const SHORT_TIMEOUT: Duration = Duration::from_micros(200);

/// Processes that are killed when this is dropped.
pub(super) struct Nodes {
    nodes: Vec<Node>,
    /// Signals that are still to be sent, the next one last.
    signals: Vec<TimedSignal>,
    dead: Vec<String>,
}

/// A signal to a node at a time.
#[derive(Debug, Clone, Copy)]
struct TimedSignal {
    /// Time since the beginning of the measured time.
    at: Duration,
    node: usize,
    signal: Signal,
}

struct Node {
    name: String,
    child: Child,
    handle: OwnedFd,
    status: Option<ExitStatus>,
    /// True if it was killed, as the scenario specifies.
    killed: bool,
    output: PathBuf,
    errors: PathBuf,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.status.is_none()) {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

impl Nodes {
    /// Runs all nodes to their end, and returns the results of the builders; `None` for those that were killed.
    pub(super) fn run_all(
        rig: &Rig<'_>,
        scenario: &Scenario,
        network: &Network,
        topology: &Path,
        watch: &Watch,
        deadline: Instant,
    ) -> Result<Vec<Option<BuilderReport>>, LabError> {
        let mut nodes = Self { nodes: Vec::new(), signals: planned_signals(scenario), dead: Vec::new() };
        let traced = timeline::traced_builder_count(scenario);
        let every = humantime::format_duration(timeline::Steps::for_scenario(scenario).step).to_string();
        // Builders first, as sources look for them.
        for (at, host) in network.receivers.iter().chain(&network.senders).enumerate() {
            let trace = (at < traced).then_some(every.as_str());
            nodes.nodes.push(start_node(host, topology, rig.directory, trace)?);
        }
        let ran = nodes.wait_for_all_nodes(deadline, rig, watch);
        match ran {
            Err(then) if !nodes.dead.is_empty() && !matches!(then, LabError::Interrupted) => {
                Err(LabError::Death { dead: std::mem::take(&mut nodes.dead), then: Box::new(then) })
            }
            ran => ran.and_then(|()| nodes.nodes[..network.receivers.len()].iter().map(Node::builder_report).collect()),
        }
    }

    fn wait_for_all_nodes(&mut self, deadline: Instant, rig: &Rig<'_>, watch: &Watch) -> Result<(), LabError> {
        while self.nodes.iter().any(|node| node.status.is_none()) {
            let begins = watch.measurement_start();
            self.send_due_signals(begins)?;
            let timeout = match (begins, self.signals.last()) {
                (_, None) => STOP_CHECK_INTERVAL,
                (None, Some(_)) => SHORT_TIMEOUT,
                (Some(begins), Some(next)) => {
                    (begins + next.at).saturating_duration_since(Instant::now()).min(STOP_CHECK_INTERVAL)
                }
            };
            self.wait_for_node_end(deadline, rig, timeout)?;
        }
        Ok(())
    }

    /// Sends the signals that are due.
    fn send_due_signals(&mut self, begins: Option<Instant>) -> Result<(), LabError> {
        let Some(begins) = begins else { return Ok(()) };
        while let Some(TimedSignal { node, signal, .. }) =
            self.signals.pop_if(|next| begins + next.at <= Instant::now())
        {
            let node = &mut self.nodes[node];
            match pidfd_send_signal(&node.handle, signal) {
                // The node has ended before.
                Err(Errno::SRCH) => continue,
                sent => sent.map_err(LabError::system_error(format!("sending a signal to {}", node.name)))?,
            }
            if signal == Signal::KILL {
                node.killed = true;
                self.dead.push(node.name.clone());
            }
        }
        Ok(())
    }

    /// Waits until a node ends, at most for `timeout`.
    fn wait_for_node_end(&mut self, deadline: Instant, rig: &Rig<'_>, timeout: Duration) -> Result<(), LabError> {
        if rig.stop.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.min(timeout).subsec_nanos().into() };
        let running: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].status.is_none()).collect();
        let ended: Vec<usize> = {
            let handles = running.iter().map(|at| self.nodes[*at].handle.as_fd());
            let mut handles: Vec<PollFd<'_>> = handles.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut handles, Some(&timeout)) {
                Ok(0) if left.is_zero() => {
                    let names: Vec<&str> = running.iter().map(|at| self.nodes[*at].name.as_str()).take(5).collect();
                    return Err(LabError::Limit { what: names.join(", "), limit: rig.limit });
                }
                Err(Errno::INTR) => return Ok(()),
                polled => polled.map_err(LabError::system_error("waiting for nodes"))?,
            };
            let ended = running.iter().zip(&handles).filter(|(_, handle)| !handle.revents().is_empty());
            ended.map(|(at, _)| *at).collect()
        };
        for at in ended {
            let node = &mut self.nodes[at];
            node.status =
                node.child.try_wait().map_err(LabError::system_error(format!("waiting for {}", node.name)))?;
            let failed = !node.killed && node.status.is_some_and(|status| !status.success());
            // If a builder was killed, the run that the others bring to its end is INCOMPLETE.
            if failed && (self.dead.is_empty() || node.builder_report().is_err()) {
                return Err(node.failure_error());
            }
        }
        Ok(())
    }
}

/// Returns the signals that the scenario specifies for its builders, the last one first.
fn planned_signals(scenario: &Scenario) -> Vec<TimedSignal> {
    let mut signals = Vec::new();
    for receiver in &scenario.network.unlike_receivers {
        let node = receiver.number as usize;
        if let Some(stall) = receiver.stall {
            signals.push(TimedSignal { at: stall.at, node, signal: Signal::STOP });
            signals.push(TimedSignal { at: stall.at + stall.length, node, signal: Signal::CONT });
        }
        signals.extend(receiver.dies.map(|at| TimedSignal { at, node, signal: Signal::KILL }));
    }
    signals.sort_by_key(|signal| std::cmp::Reverse(signal.at));
    signals
}

impl Node {
    fn builder_report(&self) -> Result<Option<BuilderReport>, LabError> {
        if self.killed {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&self.output).map_err(LabError::file_error(&self.output))?;
        let last = text.lines().next_back().unwrap_or_default();
        serde_json::from_str(last).map(Some).map_err(|error| LabError::Node {
            name: self.name.clone(),
            output: format!("an unreadable report ({error}): {last}"),
        })
    }

    fn failure_error(&self) -> LabError {
        let text = std::fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = last[last.len().saturating_sub(3)..].join("; ");
        let status = self.status.map_or_else(String::new, |status| status.to_string());
        let output = if last.is_empty() { status } else { last };
        LabError::Node { name: self.name.clone(), output }
    }
}

/// Returns the file to which a builder writes the trace of its credit.
pub(super) fn trace_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.trace"))
}

fn start_node(host: &Host, topology: &Path, directory: &Path, trace_every: Option<&str>) -> Result<Node, LabError> {
    let doing = format!("starting node {}", host.name);
    let program = thalweg_bench::readout_program().map_err(LabError::system_error(&doing))?;
    let (output, errors) = (directory.join(format!("{}.out", host.name)), directory.join(format!("{}.err", host.name)));
    let mut command = Command::new(program);
    command.args(["node", &host.name]).arg(topology).arg("--json").env("XDG_STATE_HOME", directory);
    if let Some(every) = trace_every {
        command.arg("--trace").arg(trace_path(directory, &host.name)).args(["--trace-every", every]);
    }
    // An interrupt from the terminal is for this process, which ends the nodes.
    command.process_group(0).stdin(Stdio::null()).stdout(create_file(&output)?).stderr(create_file(&errors)?);
    let mut child = host.space.run_inside(|| command.spawn())?.map_err(LabError::system_error(&doing))?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok(Node { name: host.name.clone(), child, handle, status: None, killed: false, output, errors }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(LabError::system_error(&doing)(error))
        }
    }
}

fn create_file(path: &Path) -> Result<File, LabError> {
    File::create(path).map_err(LabError::file_error(path))
}
