//! Commands that take several steps: each is under way alone, and ends within its time.

use super::{Action, Experiment, Now, Rejection, Request};
use crate::records::{RunRecord, RunState};
use crate::service::left_out_of;
use crate::state::{CommandName, ExperimentState};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_node::service::{ToNode, topology_digest};
use thalweg_node::{Command, NodeCommand, RunOrder, State};

/// Longest time of a configuration: processes are started, hosts examined.
const CONFIGURE_TIME: Duration = Duration::from_secs(40);
/// Longest time until all hosts are examined and all sources connected.
const ARM_TIME: Duration = Duration::from_secs(40);
/// Longest time until a run is open.
pub(super) const START_TIME: Duration = Duration::from_secs(20);
/// Longest time until a node answers.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Command under way.
#[derive(Debug)]
pub(super) struct Procedure {
    ticket: u64,
    command: CommandName,
    step: Step,
    /// Time at which it is given up.
    until: Duration,
    /// Nodes that have not answered, by the number of the request to them.
    unanswered: BTreeMap<u64, String>,
    /// Refusals of nodes.
    refusals: Vec<String>,
}

/// Step of a command.
#[derive(Debug)]
enum Step {
    /// Waits for all nodes to connect, and sends each the topology once.
    Configure { sent: Vec<String> },
    /// Waits for the answers of the sources, then for those of the builders, and then for sources to connect to
    /// builder 0. A node leaves its connections when it is prepared anew: if builders were not the last, builder 0 could
    /// count a source that is about to leave it.
    Arm { builders_asked: bool },
    /// Waits for the number of the run.
    Number,
    /// Waits for builders to take the order for the run.
    Prepare { run: u32 },
    /// Waits for the answer of builder 0, and then for the beginning of the run.
    Begin { run: u32 },
    /// Waits for the answer of builder 0.
    Mark,
    /// Waits for the answer of builder 0, and until it reports a state that the command has led to.
    Control(Command),
}

impl Procedure {
    pub(super) fn ticket(&self) -> u64 {
        self.ticket
    }

    pub(super) fn command_name(&self) -> CommandName {
        self.command
    }

    /// Returns the state in which the experiment is meanwhile, if it is one of its own.
    pub(super) fn transitional_state(&self) -> Option<ExperimentState> {
        match self.step {
            Step::Configure { .. } => Some(ExperimentState::Configuring),
            Step::Arm { .. } => Some(ExperimentState::Arming),
            // Of a run that follows another one, builder 0 reports the state.
            _ if self.command == CommandName::Next => None,
            Step::Number | Step::Prepare { .. } | Step::Begin { .. } => Some(ExperimentState::Starting),
            Step::Control(_) | Step::Mark => None,
        }
    }
}

impl Experiment {
    /// Begins a command, which is legal.
    pub(super) fn begin_procedure(&mut self, ticket: u64, request: Request, by: &str) {
        let command = request.command_name();
        let mut mark = None;
        let (step, time) = match request {
            Request::Configure(topology) => {
                self.set_topology(*topology);
                (Step::Configure { sent: Vec::new() }, CONFIGURE_TIME)
            }
            Request::Arm => (Step::Arm { builders_asked: false }, ARM_TIME),
            Request::Start { kind, note } | Request::Next { kind, note } => {
                let least = self.records.keys().next_back().map_or(1, |last| last.saturating_add(1));
                let draft = RunRecord {
                    number: least.max(self.topology.run.number.unwrap_or(0)),
                    kind,
                    note,
                    asked_by: by.to_owned(),
                    asked_at: Some(self.now.unix),
                    left_out: left_out_of(&self.topology),
                    ..RunRecord::default()
                };
                self.actions.push_back(Action::Reserve(ticket, Box::new(draft)));
                (Step::Number, START_TIME)
            }
            Request::Step(ref order) => {
                mark = Some(order.clone());
                (Step::Mark, ANSWER_TIME)
            }
            Request::Control(command) => (Step::Control(command), ANSWER_TIME),
        };
        self.procedure = Some(Procedure {
            ticket,
            command,
            step,
            until: self.now.monotonic + time,
            unanswered: BTreeMap::new(),
            refusals: Vec::new(),
        });
        self.reasons.clear();
        match request_command(command) {
            Some(command) => self.send_to_leader(command),
            None if command == CommandName::Arm => {
                let builders = self.builder_names();
                let sources: Vec<String> = self.expected_nodes().map(str::to_owned).collect();
                let sources = sources.iter().filter(|node| !builders.contains(node));
                sources.for_each(|node| self.send_request(node, |id| ToNode::Arm { id }));
            }
            None if command == CommandName::Configure => {
                let missing: Vec<String> = self.missing_nodes().into_iter().map(str::to_owned).collect();
                if !missing.is_empty() {
                    self.actions.push_back(Action::StartNodes(missing));
                }
            }
            None => {}
        }
        if let Some(order) = mark {
            self.send_order_to_leader(NodeCommand::Step(order));
        }
        self.continue_procedure();
    }

    fn send_to_leader(&mut self, command: Command) {
        let unix = self.now.unix;
        if matches!(command, Command::Stop | Command::Abort)
            && let Some(run) = self.run
        {
            self.change_record(run, |record| _ = record.stop_asked_at.get_or_insert(unix));
        }
        self.send_order_to_leader(NodeCommand::Control(command));
    }

    fn send_order_to_leader(&mut self, command: NodeCommand) {
        if let Some(leader) = self.topology.builders.first().map(|builder| builder.name.clone()) {
            self.send_request(&leader, |id| ToNode::Command { id, command });
        }
    }

    /// Sends a request to a node, whose answer the command waits for.
    fn send_request(&mut self, node: &str, message: impl FnOnce(u64) -> ToNode) {
        let id = self.next_request();
        self.actions.push_back(Action::Send { node: node.to_owned(), message: message(id) });
        if let Some(procedure) = &mut self.procedure {
            procedure.unanswered.insert(id, node.to_owned());
        }
    }

    /// Takes the answer of a node to a request: the reason of its refusal, if it refused.
    pub fn node_answered(&mut self, node: &str, id: u64, error: Option<String>) {
        let Some(procedure) = &mut self.procedure else { return };
        if procedure.unanswered.get(&id).is_none_or(|asked| asked != node) {
            return;
        }
        procedure.unanswered.remove(&id);
        if let Some(error) = error {
            let host = self.members.get(node).and_then(|member| member.hello.as_ref());
            let host = host.map(|hello| format!(" on {}", hello.host)).unwrap_or_default();
            procedure.refusals.push(format!("{node}{host}: {error}"));
        }
        self.continue_procedure();
    }

    /// Takes the record with the number that was reserved for the run of this ticket's request.
    pub fn number_reserved(&mut self, ticket: u64, reserved: Result<RunRecord, String>) {
        let procedure = self.procedure.as_ref().filter(|procedure| procedure.ticket == ticket);
        let command =
            procedure.filter(|procedure| matches!(procedure.step, Step::Number)).map(|waiting| waiting.command);
        let (record, command) = match (reserved, command) {
            (Ok(record), Some(command)) => (record, command),
            (Err(error), Some(_)) => return self.end_procedure(Err(error)),
            (Ok(record), None) => {
                let record = record.failed("its number was reserved after the start was given up");
                self.actions.push_back(Action::Record(Box::new(record.clone())));
                return self.insert_record(record);
            }
            (Err(_), None) => return,
        };
        let RunRecord { number: run, kind, note, .. } = record.clone();
        self.insert_record(record);
        let comment = Some(note).filter(|note| !note.is_empty());
        let order = RunOrder { number: Some(run), kind, comment };
        if command == CommandName::Next {
            // The run before it goes on until builder 0 reports the new one.
            if let Some(procedure) = &mut self.procedure {
                procedure.step = Step::Begin { run };
            }
            self.send_order_to_leader(NodeCommand::Next(order));
            return self.continue_procedure();
        }
        self.run = Some(run);
        if let Some(procedure) = &mut self.procedure {
            procedure.step = Step::Prepare { run };
        }
        for builder in self.builder_names() {
            let command = NodeCommand::Prepare(order.clone());
            self.send_request(&builder, |id| ToNode::Command { id, command });
        }
        self.continue_procedure();
    }

    /// Goes on with the command under way, as far as what has come allows.
    pub(super) fn continue_procedure(&mut self) {
        let Now { monotonic, .. } = self.now;
        if let Some(procedure) = &mut self.procedure
            && let Step::Arm { builders_asked: builders_asked @ false } = &mut procedure.step
            && procedure.unanswered.is_empty()
        {
            // Those of refused sources are asked as well: all reasons are shown at once.
            *builders_asked = true;
            for builder in self.builder_names() {
                self.send_request(&builder, |id| ToNode::Arm { id });
            }
        }
        let Some(procedure) = &self.procedure else { return };
        if !procedure.refusals.is_empty() && (procedure.unanswered.is_empty() || monotonic >= procedure.until) {
            let refusals = procedure.refusals.join("; ");
            return self.end_procedure(Err(refusals));
        }
        // A node that is gone does not answer.
        let gone = procedure.unanswered.values().find(|node| self.is_missing(node)).cloned();
        if let Some(node) = gone {
            return self.end_procedure(Err(format!("node {node} ended, or lost its connection to this service")));
        }
        match &procedure.step {
            Step::Configure { .. } => self.continue_configuration(),
            Step::Arm { builders_asked: true } if procedure.unanswered.is_empty() => self.continue_arming(),
            Step::Prepare { run } if procedure.unanswered.is_empty() => {
                let run = *run;
                if let Some(procedure) = &mut self.procedure {
                    procedure.step = Step::Begin { run };
                }
                self.send_order_to_leader(NodeCommand::Begin(run));
            }
            Step::Begin { run } if procedure.unanswered.is_empty() => {
                let run = *run;
                let failure = self.leading_builder().map(|leader| leader.status.failure.clone()).unwrap_or_default();
                if self.has_begun(run) {
                    self.end_procedure(Ok(()));
                } else if !failure.is_empty() {
                    self.end_procedure(Err(failure));
                }
            }
            Step::Mark if procedure.unanswered.is_empty() && self.leader_state() != Some(State::Pausing) => {
                self.end_procedure(Ok(()));
            }
            Step::Control(command)
                if procedure.unanswered.is_empty() && has_followed(*command, self.leader_state()) =>
            {
                self.end_procedure(Ok(()));
            }
            _ => {}
        }
        if let Some(procedure) = &self.procedure
            && monotonic >= procedure.until
        {
            let waits = self.awaited_text();
            self.end_procedure(Err(format!("it took too long{waits}")));
        }
    }

    fn builder_names(&self) -> Vec<String> {
        self.topology.builders.iter().map(|builder| builder.name.clone()).collect()
    }

    fn is_missing(&self, node: &str) -> bool {
        self.members.get(node).is_none_or(|member| member.hello.is_none())
    }

    /// Sends the topology to each node once it is connected, and ends when all have it and are prepared.
    fn continue_configuration(&mut self) {
        let digest = topology_digest(&self.topology);
        let nodes: Vec<String> = self.expected_nodes().map(str::to_owned).collect();
        let Some(Procedure { step: Step::Configure { sent }, .. }) = &self.procedure else { return };
        let unsent: Vec<String> =
            nodes.iter().filter(|node| !sent.contains(node) && !self.is_missing(node)).cloned().collect();
        for node in unsent {
            let topology = Box::new(self.node_topology());
            self.send_request(&node, |id| ToNode::Configure { id, topology });
            if let Some(Procedure { step: Step::Configure { sent }, .. }) = &mut self.procedure {
                sent.push(node);
            }
        }
        let Some(Procedure { step: Step::Configure { sent }, unanswered, .. }) = &self.procedure else { return };
        let mut statuses = nodes.iter().filter_map(|node| Some(&self.members.get(node)?.status));
        let are_ready = statuses.all(|status| status.topology == digest && status.is_prepared);
        if sent.len() == nodes.len() && unanswered.is_empty() && are_ready {
            self.end_procedure(Ok(()));
        }
    }

    /// Ends when builder 0 has all sources, each node is armed, and each source is connected.
    fn continue_arming(&mut self) {
        let all_armed = self.expected_nodes().all(|node| self.is_armed(node));
        if all_armed && self.leader_state() == Some(State::Armed) {
            self.end_procedure(Ok(()));
        }
    }

    fn is_armed(&self, node: &str) -> bool {
        let Some(status) = self.members.get(node).map(|member| &member.status) else { return false };
        let builders = &self.topology.builders;
        let is_builder = builders.iter().any(|builder| builder.name == node);
        // Builder 0 counts its own connections only.
        status.is_armed && (is_builder || status.snapshot.connected >= builders.len() as u64)
    }

    fn leader_state(&self) -> Option<State> {
        let leader = self.leading_builder().filter(|leader| leader.hello.is_some() && leader.status.is_prepared)?;
        Some(leader.status.snapshot.state)
    }

    /// Returns whether this run has begun; it may be over already.
    fn has_begun(&self, run: u32) -> bool {
        let is_over = self.records.get(&run).is_some_and(|record| record.state.is_over());
        let is_under_way = self.leader_state().is_some_and(State::has_begun)
            && self.leading_builder().is_some_and(|leader| leader.status.snapshot.run == run);
        is_over || is_under_way
    }

    /// Returns what the command under way waits for, to be added to a sentence; empty if that is not known.
    fn awaited_text(&self) -> String {
        let Some(procedure) = &self.procedure else { return String::new() };
        let mut awaited: Vec<String> = procedure.unanswered.values().cloned().collect();
        if matches!(procedure.step, Step::Configure { .. }) {
            awaited.extend(self.missing_nodes().into_iter().map(str::to_owned));
        }
        awaited.dedup();
        let waits = self.leading_builder().map(|leader| leader.status.snapshot.waits.clone()).unwrap_or_default();
        match awaited.as_slice() {
            [] if waits.is_empty() => String::new(),
            [] => format!(": builder 0 {waits}"),
            nodes => format!(": no answer from {}", nodes.join(", ")),
        }
    }

    /// Ends the command under way, and answers its request.
    fn end_procedure(&mut self, result: Result<(), String>) {
        let Some(procedure) = self.procedure.take() else { return };
        let unix = self.now.unix;
        if let Err(reason) = &result {
            self.reasons = vec![format!("{}: {reason}", procedure.command)];
            if let Step::Prepare { run } | Step::Begin { run } = procedure.step {
                self.change_record(run, |record| {
                    record.state = RunState::Failed;
                    record.reasons.push(reason.clone());
                    record.ended_at = Some(unix);
                });
                self.run = self.run.filter(|other| *other != run);
            }
        }
        let command = procedure.command;
        let result = result.map_err(|reason| Rejection::Failed(format!("cannot {command}: {reason}")));
        self.actions.push_back(Action::Answer(procedure.ticket, result));
    }
}

/// Returns whether a state is one that a command has led to. `None`: builder 0 is between two runs, or is gone.
fn has_followed(command: Command, state: Option<State>) -> bool {
    let Some(state) = state else { return true };
    match command {
        Command::Pause => state != State::Running,
        Command::Resume => !matches!(state, State::Pausing | State::Paused),
        Command::Stop => !matches!(state, State::Running | State::Pausing | State::Paused | State::Switching),
        Command::Abort => matches!(state, State::Closing) || !state.has_begun(),
        Command::Start => state.has_begun(),
    }
}

/// Returns the command that builder 0 carries out; `None` where there is more to it.
fn request_command(command: CommandName) -> Option<Command> {
    match command {
        CommandName::Stop => Some(Command::Stop),
        CommandName::Pause => Some(Command::Pause),
        CommandName::Resume => Some(Command::Resume),
        CommandName::Abort => Some(Command::Abort),
        _ => None,
    }
}
