//! The nodes of a scenario: Thalweg itself, one process on each host.

use super::Rig;
use crate::LabError;
use crate::network::{Host, Network};
use crate::report::{self, Completion};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What a builder says at its end, as far as it matters here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Built {
    pub(super) events: BuiltEvents,
    pub(super) steady: Steady,
    pub(super) calibration: Vec<Calibration>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct BuiltEvents {
    pub(super) incomplete: u64,
}

/// What a builder has found out.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Calibration {
    pub(super) link: report::Found,
}

/// After the warm-up.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Steady {
    pub(super) seconds: f64,
    pub(super) events: u64,
    pub(super) payload_bytes: u64,
    completion: Completion,
}

impl Built {
    pub(super) fn goodput(&self) -> f64 {
        let Steady { seconds, payload_bytes, .. } = self.steady;
        if seconds > 0.0 { payload_bytes as f64 * 8.0 / seconds } else { 0.0 }
    }

    pub(super) fn completion(&self) -> Option<Completion> {
        (self.steady.events > 0).then_some(self.steady.completion)
    }
}

/// How long an interrupt may wait to be noticed.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Processes that are killed when this is dropped.
pub(super) struct Nodes(Vec<Node>);

struct Node {
    name: String,
    child: Child,
    handle: OwnedFd,
    status: Option<ExitStatus>,
    said: PathBuf,
    complained: PathBuf,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in self.0.iter_mut().filter(|node| node.status.is_none()) {
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

impl Nodes {
    /// Runs all of them to their end, and returns what the builders said.
    pub(super) fn run(
        rig: &Rig<'_>,
        network: &Network,
        topology: &Path,
        deadline: Instant,
    ) -> Result<Vec<Built>, LabError> {
        let mut nodes = Self(Vec::new());
        // Builders first: sources look for them.
        for host in network.receivers.iter().chain(&network.senders) {
            nodes.0.push(start(host, topology, rig.directory)?);
        }
        while nodes.0.iter().any(|node| node.status.is_none()) {
            nodes.wait(deadline, rig)?;
        }
        nodes.0[..network.receivers.len()].iter().map(Node::built).collect()
    }

    /// Waits until one of them ends, but not for long.
    fn wait(&mut self, deadline: Instant, rig: &Rig<'_>) -> Result<(), LabError> {
        if rig.stop.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.min(TIMEOUT).subsec_nanos().into() };
        let running: Vec<usize> = (0..self.0.len()).filter(|at| self.0[*at].status.is_none()).collect();
        let ended: Vec<usize> = {
            let mut handles: Vec<PollFd<'_>> =
                running.iter().map(|at| PollFd::from_borrowed_fd(self.0[*at].handle.as_fd(), PollFlags::IN)).collect();
            match poll(&mut handles, Some(&timeout)) {
                Ok(0) if left.is_zero() => {
                    let names: Vec<&str> = running.iter().map(|at| self.0[*at].name.as_str()).take(5).collect();
                    return Err(LabError::Limit { what: names.join(", "), limit: rig.limit });
                }
                Err(Errno::INTR) => return Ok(()),
                polled => polled.map_err(LabError::os("waiting for nodes"))?,
            };
            let ended = running.iter().zip(&handles).filter(|(_, handle)| !handle.revents().is_empty());
            ended.map(|(at, _)| *at).collect()
        };
        for at in ended {
            let node = &mut self.0[at];
            node.status = node.child.try_wait().map_err(LabError::os(format!("waiting for {}", node.name)))?;
            if node.status.is_some_and(|status| !status.success()) {
                return Err(node.failed());
            }
        }
        Ok(())
    }
}

impl Node {
    fn built(&self) -> Result<Built, LabError> {
        let text = std::fs::read_to_string(&self.said).map_err(LabError::file(&self.said))?;
        let last = text.lines().next_back().unwrap_or_default();
        serde_json::from_str(last).map_err(|error| LabError::Node {
            name: self.name.clone(),
            said: format!("a report that cannot be read ({error}): {last}"),
        })
    }

    fn failed(&self) -> LabError {
        let text = std::fs::read(&self.complained).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = last[last.len().saturating_sub(3)..].join("; ");
        let status = self.status.map_or_else(String::new, |status| status.to_string());
        let said = if last.is_empty() { status } else { last };
        LabError::Node { name: self.name.clone(), said }
    }
}

fn start(host: &Host, topology: &Path, directory: &Path) -> Result<Node, LabError> {
    let doing = || format!("starting node {}", host.name);
    let program = std::env::current_exe().map_err(LabError::os(doing()))?;
    let (said, complained) =
        (directory.join(format!("{}.out", host.name)), directory.join(format!("{}.err", host.name)));
    let file = |path: &Path| File::create(path).map_err(LabError::file(path));
    let mut command = Command::new(program);
    command.args(["node", &host.name]).arg(topology).arg("--json").env("XDG_STATE_HOME", directory);
    // An interrupt from the terminal is for this process: it ends the nodes.
    command.process_group(0).stdin(Stdio::null()).stdout(file(&said)?).stderr(file(&complained)?);
    let mut child = host.space.enter(|| command.spawn())?.map_err(LabError::os(doing()))?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok(Node { name: host.name.clone(), child, handle, status: None, said, complained }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(LabError::os(doing())(error))
        }
    }
}
