//! The experiment: its nodes as they report themselves, the state that follows from that, and the commands, one at a
//! time.
//!
//! Sans-IO. The service reports what nodes, clients and the clock do, and carries out the actions that follow
//! ([`Experiment::next_action`]). The nodes' own reports decide: a service that was started anew shows the same state.

mod procedure;

use crate::records::{Flag, MAX_RUNS, Note, NoteError, RunRecord, RunState};
use crate::state::{CommandName, ExperimentState};
use procedure::{Procedure, START_TIME};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_node::service::{NodeHello, NodeReport, NodeStatus, ToNode, topology_digest};
use thalweg_node::{RunKind, Snapshot, State, StepOrder, Topology};
use thiserror::Error;

/// Number of statuses by which the clock of a host is judged.
const MAX_CLOCK_OFFSETS: usize = 4;
/// Time without a status after which a node counts as lost.
pub const SILENT_TIME: Duration = Duration::from_secs(5);

/// The present time: monotonic, and Unix time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Now {
    /// Monotonic time.
    pub monotonic: Duration,
    /// Unix time in seconds.
    pub unix: f64,
}

/// Request of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Takes this topology, which was read from the file.
    Configure(Box<Topology>),
    /// Examines each host, and waits until all sources are connected.
    Arm,
    /// Begins a run of this kind, with this comment.
    Start {
        /// Kind of the run.
        kind: RunKind,
        /// Comment on the run.
        note: String,
    },
    /// Begins another run of this kind, with this comment, without a gap.
    Next {
        /// Kind of the run.
        kind: RunKind,
        /// Comment on the run.
        note: String,
    },
    /// Marks a step of a scan.
    Step(StepOrder),
    /// One of the commands that builder 0 carries out: stop, pause, resume, abort.
    Control(thalweg_node::Command),
}

impl Request {
    /// Returns the name of the command.
    pub fn command_name(&self) -> CommandName {
        use thalweg_node::Command;
        match self {
            Self::Configure(_) => CommandName::Configure,
            Self::Arm => CommandName::Arm,
            Self::Start { .. } | Self::Control(Command::Start) => CommandName::Start,
            Self::Next { .. } => CommandName::Next,
            Self::Step(_) => CommandName::Step,
            Self::Control(Command::Stop) => CommandName::Stop,
            Self::Control(Command::Pause) => CommandName::Pause,
            Self::Control(Command::Resume) => CommandName::Resume,
            Self::Control(Command::Abort) => CommandName::Abort,
        }
    }
}

/// Reason why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// Request that is not legal in the present state.
    #[error("{0}")]
    NotLegal(String),
    /// Request that a node or a host refused, or did not answer in time.
    #[error("{0}")]
    Failed(String),
}

/// Action that the service carries out.
#[derive(Debug)]
pub enum Action {
    /// Sends a message to a node.
    Send {
        /// Name of the node.
        node: String,
        /// The message.
        message: ToNode,
    },
    /// Starts the processes of nodes that are not connected.
    StartNodes(Vec<String>),
    /// Reserves a number for the run of this ticket's request, at least that of the record, and writes the record; the
    /// service then calls [`Experiment::number_reserved`].
    Reserve(u64, Box<RunRecord>),
    /// Writes a record of a run.
    Record(Box<RunRecord>),
    /// Answers the request of this ticket.
    Answer(u64, Result<(), Rejection>),
}

/// A node of the topology, as far as the service knows it.
#[derive(Debug, Clone, Default)]
pub struct Member {
    /// Introduction of its process; `None` while it is not connected.
    pub hello: Option<NodeHello>,
    /// Host of its process, or of the last one; empty if there was none.
    pub host: String,
    /// Last status that it sent.
    pub status: NodeStatus,
    /// Last snapshot of a run that it sent.
    last_run: Snapshot,
    /// Time of its last status, or of its connection.
    pub seen: Duration,
    /// Time since which it is connected, or is not: Unix time in seconds.
    pub since: f64,
    /// Difference of its host's clock to the service's.
    pub clock: ClockOffset,
}

/// Difference of a host's clock to the service's, by the times in the last few statuses. A status that took long makes the
/// difference too low, and none makes it too high.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClockOffset {
    offsets: VecDeque<f64>,
}

impl ClockOffset {
    /// Adds the difference that a status shows, in seconds.
    fn add_offset(&mut self, seconds: f64) {
        self.offsets.truncate(MAX_CLOCK_OFFSETS - 1);
        self.offsets.push_front(seconds);
    }

    /// Returns the difference in seconds; `None` before the first status.
    pub fn seconds(&self) -> Option<f64> {
        self.offsets.iter().copied().reduce(f64::max)
    }
}

impl Member {
    /// Returns the snapshot with the counts of the run under way, or of the last one. From the moment at which a run is
    /// being started, counts begin at 0.
    pub fn counted_snapshot(&self, state: ExperimentState) -> &Snapshot {
        let is_between = self.status.snapshot.run == 0 && state != ExperimentState::Starting;
        if is_between { &self.last_run } else { &self.status.snapshot }
    }

    /// Returns the name of its process, which no other process has; empty if it is not connected.
    fn process_name(&self) -> String {
        self.hello.as_ref().map(|hello| format!("{:016x}", hello.session)).unwrap_or_default()
    }
}

/// Experiment of one topology.
#[derive(Debug)]
pub struct Experiment {
    topology: Topology,
    members: BTreeMap<String, Member>,
    procedure: Option<Procedure>,
    /// Number of the last request to a node.
    last_request: u64,
    /// Number of the run under way, or being started.
    run: Option<u32>,
    records: BTreeMap<u32, RunRecord>,
    /// Reasons of the last refusal to configure, to arm or to start.
    reasons: Vec<String>,
    actions: VecDeque<Action>,
    now: Now,
}

impl Experiment {
    /// Creates the experiment of a topology, with the records of earlier runs.
    pub fn new(topology: Topology, records: BTreeMap<u32, RunRecord>, now: Now) -> Self {
        let mut experiment = Self {
            topology: Topology::default(),
            members: BTreeMap::new(),
            procedure: None,
            last_request: 0,
            // What became of it, builder 0 will tell.
            run: records.values().rev().find(|run| run.state == RunState::Running).map(|run| run.number),
            records,
            reasons: Vec::new(),
            actions: VecDeque::new(),
            now,
        };
        experiment.set_topology(topology);
        experiment
    }

    fn set_topology(&mut self, topology: Topology) {
        self.topology = topology;
        let names: Vec<String> = self.expected_nodes().map(str::to_owned).collect();
        self.members.retain(|name, member| names.contains(name) || member.hello.is_some());
        for name in names {
            self.members.entry(name).or_insert_with(|| Member { since: self.now.unix, ..Member::default() });
        }
    }

    /// Returns the topology, as it was read last.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the names of the nodes of the topology, builders first. A source without a device belongs to another
    /// program, and a fit to the node of its images.
    pub fn expected_nodes(&self) -> impl Iterator<Item = &str> {
        let sources = self.topology.sources.iter();
        let sources = sources.filter(|source| source.device.is_some() && source.fitted_source().is_none());
        self.topology.builders.iter().map(|builder| builder.name.as_str()).chain(sources.map(|s| s.name.as_str()))
    }

    /// Returns a node.
    pub fn find_member(&self, node: &str) -> Option<&Member> {
        self.members.get(node)
    }

    /// Returns the first builder, which leads runs.
    pub fn leading_builder(&self) -> Option<&Member> {
        self.members.get(&self.topology.builders.first()?.name)
    }

    /// Returns the record of the run under way, or being started.
    pub fn current_run(&self) -> Option<&RunRecord> {
        // While this service is starting a run, another one may have been quicker.
        let leader = self.leading_builder().filter(|leader| leader.hello.is_some() && leader.status.is_prepared);
        let reported = leader.map(|leader| &leader.status.snapshot).filter(|snapshot| snapshot.state.has_begun());
        self.records.get(&reported.map(|snapshot| snapshot.run).or(self.run)?)
    }

    /// Returns the records of runs, the newest first.
    pub fn newest_runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.records.values().rev()
    }

    /// Returns the reasons of the state `error`, or those of the last refusal.
    pub fn state_reasons(&self) -> Vec<String> {
        match self.find_troubles() {
            troubles if troubles.is_empty() => self.reasons.clone(),
            troubles => troubles,
        }
    }

    /// Returns the state of the experiment.
    pub fn state(&self) -> ExperimentState {
        let leader = self.leading_builder().filter(|leader| leader.hello.is_some());
        let reported = leader.filter(|leader| leader.status.is_prepared).map(|leader| leader.status.snapshot.state);
        match reported {
            Some(state) if state.has_begun() => return state.into(),
            Some(State::Starting) => return ExperimentState::Starting,
            _ => {}
        }
        if let Some(procedure) = &self.procedure
            && let Some(state) = procedure.transitional_state()
        {
            return state;
        }
        if !self.find_troubles().is_empty() {
            return ExperimentState::Error;
        }
        let nodes: Vec<&Member> = self.expected_nodes().filter_map(|name| self.members.get(name)).collect();
        if nodes.iter().all(|node| node.status.topology.is_empty()) {
            return ExperimentState::Idle;
        }
        // A node that was started anew is sent the topology when it first reports.
        if nodes.iter().any(|node| node.hello.is_some() && node.status.topology.is_empty()) {
            return ExperimentState::Configuring;
        }
        let is_armed = reported == Some(State::Armed) && nodes.iter().all(|node| node.status.is_armed);
        if is_armed { ExperimentState::Armed } else { ExperimentState::Configured }
    }

    /// Returns what keeps the experiment from going on: nodes that are missing though the others have a topology, that
    /// cannot be prepared, or that have different topologies.
    fn find_troubles(&self) -> Vec<String> {
        let nodes: Vec<(&str, &Member)> =
            self.expected_nodes().filter_map(|name| Some((name, self.members.get(name)?))).collect();
        let mut digests = nodes.iter().filter(|(_, node)| node.hello.is_some()).map(|(_, node)| &node.status.topology);
        let Some(digest) = digests.find(|digest| !digest.is_empty()).cloned() else {
            return match self.run {
                Some(run) => vec![format!("run {run} was under way, and no node that knows of it is connected")],
                None => Vec::new(),
            };
        };
        let mut troubles = Vec::new();
        for (name, node) in nodes {
            let host = node.hello.as_ref().map(|hello| format!(" on {}", hello.host)).unwrap_or_default();
            if node.hello.is_none() {
                troubles.push(format!("node {name} is not connected to this service"));
            } else if !node.status.failure.is_empty() {
                troubles.push(format!("{name}{host}: {}", node.status.failure));
            } else if node.status.topology.is_empty() {
                if topology_digest(&self.topology) != digest {
                    troubles.push(format!("{name}{host} has no topology: configure the experiment anew"));
                }
            } else if node.status.topology != digest {
                troubles
                    .push(format!("{name}{host} has another topology than the others: configure the experiment anew"));
            }
        }
        troubles
    }

    /// Returns a sentence for people about the state.
    pub fn state_sentence(&self) -> String {
        let state = self.state();
        let waits = self.leading_builder().map(|leader| leader.status.snapshot.waits.as_str()).unwrap_or_default();
        let run = self.current_run().map_or_else(|| "the run".into(), |run| format!("run {}", run.number));
        let waits = if waits.is_empty() { String::new() } else { format!(", and {waits}") };
        match state {
            ExperimentState::Idle => "no node has a topology: configure the experiment".into(),
            ExperimentState::Configuring => match self.missing_nodes().as_slice() {
                [] => "nodes are being prepared".into(),
                missing => format!("waits for the nodes {}", missing.join(", ")),
            },
            ExperimentState::Configured => format!("all nodes have the topology{waits}"),
            ExperimentState::Arming => format!("each host is examined{waits}"),
            ExperimentState::Armed => "all hosts are fit, and all sources are connected: a run can start".into(),
            ExperimentState::Starting => format!("{run} is being opened"),
            ExperimentState::Running => format!("{run} is under way"),
            ExperimentState::Pausing => format!("{run} is being paused{waits}"),
            ExperimentState::Paused => format!("{run} is paused: sources accept nothing"),
            ExperimentState::Switching => format!("{run} goes over to the next one{waits}"),
            ExperimentState::Stopping => format!("{run} is being brought to its end{waits}"),
            ExperimentState::Closing => format!("{run} is being written to disk"),
            ExperimentState::Error => self.find_troubles().join("; "),
        }
    }

    /// Returns the names of the expected nodes that are not connected.
    pub fn missing_nodes(&self) -> Vec<&str> {
        self.expected_nodes().filter(|name| self.members.get(*name).is_none_or(|node| node.hello.is_none())).collect()
    }

    /// Sets the time, and ends what takes too long.
    pub fn advance_time(&mut self, now: Now) {
        self.now = now;
        self.continue_procedure();
    }

    /// Notes that a node has connected.
    ///
    /// # Errors
    /// The topology has no such node, or a process of that name is connected already.
    pub fn node_connected(&mut self, hello: NodeHello) -> Result<(), String> {
        if !self.expected_nodes().any(|name| name == hello.node) {
            let names: Vec<&str> = self.expected_nodes().collect();
            return Err(format!("the topology has no node '{}'; it has {}", hello.node, names.join(", ")));
        }
        let since = self.now.unix;
        let member = self.members.entry(hello.node.clone()).or_default();
        if let Some(other) = &member.hello
            && other.session != hello.session
        {
            return Err(format!(
                "node '{}' is connected already: process {} on {}; end that one, or give this one another name",
                hello.node, other.pid, other.host
            ));
        }
        // Of another process, the former status means nothing.
        let host = hello.host.clone();
        *member = Member { hello: Some(hello), host, seen: self.now.monotonic, since, ..Member::default() };
        Ok(())
    }

    /// Notes that the connection of a node is down.
    pub fn node_disconnected(&mut self, node: &str, session: u64) {
        let since = self.now.unix;
        if let Some(member) = self.members.get_mut(node)
            && member.hello.as_ref().is_some_and(|hello| hello.session == session)
        {
            (member.hello, member.since) = (None, since);
        }
        self.continue_procedure();
    }

    /// Takes the status of a node.
    pub fn node_reported(&mut self, node: &str, status: NodeStatus) {
        let Some(member) = self.members.get_mut(node) else { return };
        member.clock.add_offset(status.unix_nanos as f64 / 1e9 - self.now.unix);
        if status.snapshot.run > 0 {
            member.last_run = status.snapshot.clone();
        }
        (member.status, member.seen) = (status, self.now.monotonic);
        let needs_topology = member.status.topology.is_empty();
        if self.topology.builders.iter().any(|builder| builder.name == node) {
            self.follow_runs(node);
        }
        self.continue_procedure();
        if needs_topology && self.procedure.is_none() {
            self.configure_newcomer(node);
        }
    }

    /// Returns the nodes that are connected and have been silent for too long.
    pub fn silent_nodes(&self) -> Vec<(String, u64)> {
        let limit = self.now.monotonic.saturating_sub(SILENT_TIME);
        let silent = self.members.iter().filter(|(_, member)| member.seen < limit);
        silent.filter_map(|(name, member)| Some((name.clone(), member.hello.as_ref()?.session))).collect()
    }

    /// Sends the topology to a node that was started anew, if the others have it and no run is under way.
    fn configure_newcomer(&mut self, node: &str) {
        let digest = topology_digest(&self.topology);
        let others_have_it = self.members.values().any(|member| member.status.topology == digest);
        if others_have_it && !self.state().has_run() {
            let message = ToNode::Configure { id: self.next_request(), topology: Box::new(self.node_topology()) };
            self.actions.push_back(Action::Send { node: node.to_owned(), message });
        }
    }

    /// Returns the topology as nodes receive it: each run is given its number at its start, and this one stands for it
    /// until then.
    fn node_topology(&self) -> Topology {
        let number = self.records.keys().next_back().map_or(1, |last| last.saturating_add(1));
        let mut topology = self.topology.clone();
        topology.run.number = Some(topology.run.number.unwrap_or(0).max(number));
        topology
    }

    fn next_request(&mut self) -> u64 {
        self.last_request += 1;
        self.last_request
    }

    /// Executes the request of a client; the answer is an action with its ticket.
    pub fn execute_request(&mut self, ticket: u64, request: Request, by: &str) {
        let command = request.command_name();
        if let Err(reason) = self.check_command(command) {
            self.actions.push_back(Action::Answer(ticket, Err(Rejection::NotLegal(reason))));
            return;
        }
        if command == CommandName::Abort
            && let Some(procedure) = self.procedure.take()
        {
            let reason = format!("{} was given up: the run is aborted", procedure.command_name());
            self.actions.push_back(Action::Answer(procedure.ticket(), Err(Rejection::Failed(reason))));
        }
        self.begin_procedure(ticket, request, by);
    }

    /// Checks whether a command is legal now.
    ///
    /// # Errors
    /// It is not legal; the sentence says why.
    pub fn check_command(&self, command: CommandName) -> Result<(), String> {
        match self.procedure.as_ref().map(Procedure::command_name) {
            // A run can be aborted whatever else is under way.
            Some(busy) if command != CommandName::Abort => {
                Err(format!("cannot {command}: {busy} is under way: wait until that is done"))
            }
            _ => command.check_legal(self.state()),
        }
    }

    /// Checks whether the process of a node may be restarted now: always if it is gone.
    ///
    /// # Errors
    /// It takes part in a run, or in a command that is under way; the sentence says which.
    pub fn check_restart(&self, node: &str) -> Result<(), String> {
        let Some(member) = self.members.get(node).filter(|member| member.hello.is_some()) else { return Ok(()) };
        if let Some(procedure) = &self.procedure {
            let command = procedure.command_name();
            return Err(format!("cannot restart node '{node}': {command} is under way: wait until that is done"));
        }
        // A process that came during a run gets its topology after it.
        let has_no_part = member.status.unix_nanos > 0 && member.status.topology.is_empty();
        match self.current_run() {
            Some(run) if !has_no_part => {
                Err(format!("cannot restart node '{node}': it takes part in run {}: stop the run first", run.number))
            }
            _ => Ok(()),
        }
    }

    /// Adds a note to a run. Returns its record.
    ///
    /// # Errors
    /// There is no such run, the note is empty, or the run has too many.
    pub fn add_note(&mut self, run: u32, text: String, by: &str) -> Result<RunRecord, NoteError> {
        self.records.get(&run).ok_or(NoteError::NoRun(run))?.check_note(&text)?;
        let note = Note { text, by: by.to_owned(), at: self.now.unix };
        self.change_record(run, |record| record.notes.push(note)).ok_or(NoteError::NoRun(run))
    }

    /// Judges a run. Returns its record; `None` if there is no such run.
    pub fn set_flag(&mut self, run: u32, flag: Flag) -> Option<RunRecord> {
        self.change_record(run, |record| record.flag = Some(flag))
    }

    /// Returns and removes the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes the record of a run as another service has written it.
    pub fn record_changed(&mut self, record: RunRecord) {
        let merged = self.records.get(&record.number).map(|known| known.merge(&record)).unwrap_or(record);
        self.insert_record(merged);
    }

    fn insert_record(&mut self, record: RunRecord) {
        self.records.insert(record.number, record);
        while self.records.len() > MAX_RUNS {
            self.records.pop_first();
        }
    }

    fn change_record(&mut self, run: u32, change: impl FnOnce(&mut RunRecord)) -> Option<RunRecord> {
        let record = self.records.get_mut(&run)?;
        let before = record.clone();
        change(record);
        if *record != before {
            self.actions.push_back(Action::Record(Box::new(record.clone())));
        }
        Some(record.clone())
    }

    /// Brings the records of runs up to date with what a builder has reported.
    fn follow_runs(&mut self, builder: &str) {
        let is_leader = self.topology.builders.first().is_some_and(|leader| leader.name == builder);
        let Some(member) = self.members.get(builder) else { return };
        let status = &member.status;
        let reported: Vec<u32> = status.last_reports.iter().map(|report| report.run).collect();
        let (run, state) = (status.snapshot.run, status.snapshot.state);
        if is_leader && status.is_prepared && state.has_begun() && !reported.contains(&run) {
            // The service may have been started anew, or another one has begun this run.
            self.run = Some(run);
            self.records.entry(run).or_insert_with(|| RunRecord { number: run, ..RunRecord::default() });
            let unix = self.now.unix;
            let process = member.process_name();
            self.change_record(run, |record| {
                // A start that took too long may have led to a run all the same.
                if !record.state.is_over() || record.state == RunState::Failed {
                    (record.state, record.ended_at) = (RunState::Running, None);
                    record.process = process;
                    record.began_at.get_or_insert(unix);
                }
            });
        }
        for run in reported {
            self.close_record(run);
        }
        if is_leader {
            self.give_up_unknown_runs();
        }
    }

    /// Closes the records of runs of which builder 0 knows nothing: its process was replaced, or the service ended before
    /// they began.
    fn give_up_unknown_runs(&mut self) {
        let is_starting = self
            .procedure
            .as_ref()
            .is_some_and(|procedure| matches!(procedure.command_name(), CommandName::Start | CommandName::Next));
        let Some(leader) = self.leading_builder().filter(|leader| leader.status.is_prepared && !is_starting) else {
            return;
        };
        let state = leader.status.snapshot.state;
        let present = match state {
            State::Configured | State::Armed => None,
            state if state.has_begun() => Some(leader.status.snapshot.run),
            _ => return,
        };
        // While a run is under way, the one before may still be on its way to the disk.
        let process = leader.process_name();
        // Another service may be about to start it.
        let too_old = self.now.unix - START_TIME.as_secs_f64();
        let is_unknown = |record: &&RunRecord| match (record.state, present) {
            (RunState::Reserved, _) => record.asked_at.is_none_or(|asked| asked < too_old),
            (RunState::Running, None) => true,
            (RunState::Running, Some(_)) => record.process != process,
            _ => false,
        };
        let unfinished = self.records.values().filter(is_unknown);
        let unknown: Vec<u32> = unfinished.map(|record| record.number).filter(|run| present != Some(*run)).collect();
        let unix = self.now.unix;
        for run in unknown {
            self.change_record(run, |record| {
                let (state, reason) = match record.state {
                    RunState::Reserved => (RunState::Failed, "the service ended before the run began"),
                    _ => (
                        RunState::Lost,
                        "builder 0 was started anew, and knows nothing of this run: read it with `thalweg verify`",
                    ),
                };
                record.state = state;
                record.reasons.push(reason.to_owned());
                record.ended_at = Some(unix);
            });
            self.run = self.run.filter(|other| *other != run);
        }
    }

    /// Closes the record of a run, once each builder has reported its part, or is gone.
    fn close_record(&mut self, run: u32) {
        if self.records.get(&run).is_none_or(|record| record.state.is_over()) {
            return;
        }
        let mut reports: Vec<NodeReport> = Vec::new();
        let mut reasons = Vec::new();
        for builder in &self.topology.builders {
            let Some(member) = self.members.get(&builder.name) else { continue };
            match member.status.last_reports.iter().find(|report| report.run == run) {
                Some(report) => reports.push(report.clone()),
                None if member.hello.is_some() && member.status.snapshot.run == run => return,
                None => reasons.push(format!("builder '{}' has not reported its part of the run", builder.name)),
            }
        }
        reasons.extend(reports.iter().flat_map(|report| report.reasons.iter().cloned()));
        let is_complete = reasons.is_empty() && reports.iter().all(|report| report.state == "COMPLETE");
        let unix = self.now.unix;
        self.change_record(run, |record| {
            record.state = if is_complete { RunState::Complete } else { RunState::Incomplete };
            record.set_reasons(reasons);
            record.ended_at = Some(unix);
            record.began_at.get_or_insert(unix);
            record.seconds = reports.iter().map(|report| report.seconds).reduce(f64::max);
            record.events = reports.iter().map(|report| report.events).sum();
            record.incomplete = reports.iter().map(|report| report.incomplete).sum();
            record.bytes = reports.iter().map(|report| report.bytes).sum();
            record.directory = reports.iter().find_map(|report| report.directory.clone());
        });
        if self.run == Some(run) {
            self.run = None;
        }
    }
}

#[cfg(test)]
mod tests;
