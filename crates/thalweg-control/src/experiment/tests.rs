//! The experiment among nodes that die, connections that break and services that are started anew: sequences drawn from
//! seeds. The nodes are a model; `tests/it` takes real ones.

use super::*;
use std::collections::BTreeSet;
use thalweg_node::NodeCommand;
use thalweg_node::Snapshot;

/// Number of sequences; `THALWEG_SEQUENCES` sets another.
const SEQUENCES: u64 = 1000;
/// Number of steps of each, and of those after it in which nothing bad happens.
const STEPS: u32 = 120;
const CALM_STEPS: u32 = 400;
/// Time of a step.
const STEP: Duration = Duration::from_millis(250);

const LAB: &str = r#"
[run]
directory = "/tmp/runs"
[[builder]]
name = "b0"
listen = ["tcp:127.0.0.1:7401"]
[[source]]
name = "adc"
id = "1.0"
device = { kind = "model-adc", size = "1KiB" }
"#;

/// A second builder, with which runs do not follow one another.
const SECOND_BUILDER: &str = "[[builder]]\nname = \"b1\"\nlisten = [\"tcp:127.0.0.1:7402\"]\n";

/// Model of a node's process.
#[derive(Debug)]
struct NodeModel {
    session: u64,
    status: NodeStatus,
    order: Option<u32>,
    /// Run that follows the present one.
    next: Option<u32>,
    /// True if it is the only builder.
    is_alone: bool,
    /// Messages on the way to it, and from it. They are lost with the connection.
    inbox: VecDeque<ToNode>,
    replies: VecDeque<(u64, Option<String>)>,
    is_connected: bool,
}

impl NodeModel {
    fn new(session: u64, is_alone: bool) -> Self {
        let status = NodeStatus::default();
        Self {
            session,
            status,
            order: None,
            next: None,
            is_alone,
            inbox: VecDeque::new(),
            replies: VecDeque::new(),
            is_connected: false,
        }
    }

    fn prepare(&mut self) {
        self.status.runs += 1;
        self.status.is_prepared = true;
        self.status.snapshot = Snapshot { state: State::Configured, ..Snapshot::default() };
    }

    fn handle_message(&mut self, message: ToNode, all_are_prepared: bool) {
        let has_run = self.status.is_prepared && self.status.snapshot.state.has_begun();
        let busy = "the run goes on: end it first";
        match message {
            ToNode::Configure { id, topology } => {
                let error = has_run.then(|| busy.to_owned());
                if error.is_none() {
                    self.status.topology = topology_digest(&topology);
                    self.status.is_armed = false;
                    self.prepare();
                }
                self.replies.push_back((id, error));
            }
            ToNode::Arm { id } => {
                let error = has_run.then(|| busy.to_owned());
                if error.is_none() {
                    self.prepare();
                    self.status.is_armed = true;
                }
                self.replies.push_back((id, error));
            }
            ToNode::Command { id, command } => {
                let state = self.status.snapshot.state;
                let error = match (command, state) {
                    _ if !self.status.is_prepared => Some(busy.to_owned()),
                    (NodeCommand::Prepare(order), State::Configured | State::Armed) => {
                        self.order = order.number;
                        None
                    }
                    (NodeCommand::Control(thalweg_node::Command::Start), State::Armed) if all_are_prepared => {
                        self.status.snapshot.state = State::Starting;
                        None
                    }
                    (NodeCommand::Control(thalweg_node::Command::Pause), State::Running) => {
                        self.status.snapshot.state = State::Pausing;
                        None
                    }
                    (NodeCommand::Control(thalweg_node::Command::Resume), State::Pausing | State::Paused) => {
                        self.status.snapshot.state = State::Running;
                        None
                    }
                    (NodeCommand::Next(order), State::Running) if self.is_alone => {
                        self.next = order.number;
                        self.status.snapshot.state = State::Switching;
                        None
                    }
                    (NodeCommand::Step(_), State::Running | State::Paused) => None,
                    (
                        NodeCommand::Control(thalweg_node::Command::Stop | thalweg_node::Command::Abort),
                        State::Running | State::Pausing | State::Paused | State::Switching | State::Stopping,
                    ) => {
                        self.status.snapshot.state = State::Stopping;
                        None
                    }
                    _ => Some(format!("the run is {state}")),
                };
                self.replies.push_back((id, error));
            }
            ToNode::Latest { .. } | ToNode::Quit => {}
        }
    }
}

/// Service, nodes, and all that is kept on disk.
struct Laboratory {
    random: fastrand::Rng,
    now: Now,
    service: Experiment,
    nodes: BTreeMap<String, Option<NodeModel>>,
    /// The file of numbers.
    last_number: u32,
    reserved: BTreeSet<u32>,
    /// The file of records.
    records: BTreeMap<u32, RunRecord>,
    /// Runs that builder 0 has begun.
    begun: Vec<u32>,
    asked: BTreeSet<u64>,
    last_ticket: u64,
    sessions: u64,
    is_calm: bool,
}

impl Laboratory {
    fn new(seed: u64) -> Self {
        let second = if seed.is_multiple_of(2) { SECOND_BUILDER } else { "" };
        let topology: Topology = toml::from_str(&format!("{LAB}{second}")).unwrap();
        let service = Experiment::new(topology, BTreeMap::new(), Now::default());
        let nodes = service.expected_nodes().map(|name| (name.to_owned(), None)).collect();
        Self {
            random: fastrand::Rng::with_seed(seed),
            now: Now::default(),
            service,
            nodes,
            last_number: 0,
            reserved: BTreeSet::new(),
            records: BTreeMap::new(),
            begun: Vec::new(),
            asked: BTreeSet::new(),
            last_ticket: 0,
            sessions: 0,
            is_calm: false,
        }
    }

    fn step(&mut self) {
        self.now.monotonic += STEP;
        self.now.unix += STEP.as_secs_f64();
        self.service.advance_time(self.now);
        match self.random.u32(0..100) {
            _ if self.is_calm => {}
            0..=24 => self.ask(),
            25..=28 => self.kill_node(),
            29..=31 => self.break_connection(),
            32 => self.restart_service(),
            _ => {}
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            if self.is_calm || self.random.u32(0..4) > 0 {
                self.advance_node(&name);
            }
        }
        self.carry_out_actions();
        self.check_state();
    }

    fn ask(&mut self) {
        use thalweg_node::Command;
        let request = match self.random.u32(0..11) {
            8 => Request::Next { kind: RunKind::Physics, note: String::new() },
            9 => Request::Step(thalweg_node::StepOrder::default()),
            0 => Request::Configure(Box::new(self.service.topology().clone())),
            1 | 2 => Request::Arm,
            3 | 4 => Request::Start { kind: RunKind::Test, note: String::new() },
            5 => Request::Control(Command::Pause),
            6 => Request::Control(Command::Resume),
            7 => Request::Control(Command::Abort),
            _ => Request::Control(Command::Stop),
        };
        self.last_ticket += 1;
        self.asked.insert(self.last_ticket);
        let legal = self.service.check_command(request.command_name());
        self.service.execute_request(self.last_ticket, request, "someone");
        if legal.is_err() {
            let refused = matches!(self.service.actions.back(), Some(Action::Answer(_, Err(Rejection::NotLegal(reason)))) if legal == Err(reason.clone()));
            assert!(refused, "what is shown as illegal is refused with that reason");
        }
    }

    fn kill_node(&mut self) {
        let name = self.random_node();
        if let Some(Some(node)) = self.nodes.insert(name.clone(), None)
            && node.is_connected
        {
            self.service.node_disconnected(&name, node.session);
        }
    }

    fn break_connection(&mut self) {
        let name = self.random_node();
        if let Some(Some(node)) = self.nodes.get_mut(&name)
            && std::mem::take(&mut node.is_connected)
        {
            node.inbox.clear();
            node.replies.clear();
            self.service.node_disconnected(&name, node.session);
        }
    }

    /// The service dies, with whatever it was about to answer, and another one reads what it left on disk.
    fn restart_service(&mut self) {
        self.carry_out_actions();
        self.asked.clear();
        let topology = self.service.topology().clone();
        self.service = Experiment::new(topology, self.records.clone(), self.now);
        for node in self.nodes.values_mut().flatten() {
            node.is_connected = false;
            node.inbox.clear();
            node.replies.clear();
        }
    }

    fn random_node(&mut self) -> String {
        let at = self.random.usize(0..self.nodes.len());
        self.nodes.keys().nth(at).cloned().unwrap_or_default()
    }

    fn advance_node(&mut self, name: &str) {
        let all_are_prepared =
            self.nodes.values().all(|node| node.as_ref().is_some_and(|node| node.status.is_prepared));
        let Some(Some(node)) = self.nodes.get_mut(name) else { return };
        if !node.is_connected {
            let hello = NodeHello {
                protocol: 1,
                node: name.to_owned(),
                host: "host".into(),
                pid: 1,
                version: String::new(),
                session: node.session,
            };
            node.is_connected = self.service.node_connected(hello).is_ok();
        }
        if let Some(message) = node.inbox.pop_front() {
            node.handle_message(message, all_are_prepared);
        }
        let status = &mut node.status;
        match status.snapshot.state {
            State::Configured if name == "b0" && all_are_prepared => status.snapshot.state = State::Armed,
            State::Armed if !all_are_prepared => status.snapshot.state = State::Configured,
            State::Starting => {
                let run = node.order.take().expect("a run is prepared before it is started");
                (status.snapshot.state, status.snapshot.run) = (State::Running, run);
                self.begun.push(run);
            }
            State::Switching => {
                let report = NodeReport { run: status.snapshot.run, state: "COMPLETE".into(), ..NodeReport::default() };
                status.last_reports.push(report);
                let run = node.next.take().expect("a run that follows has a number");
                (status.snapshot.state, status.snapshot.run) = (State::Running, run);
                self.begun.push(run);
            }
            State::Pausing => status.snapshot.state = State::Paused,
            State::Stopping => status.snapshot.state = State::Closing,
            State::Closing => {
                let report = NodeReport { run: status.snapshot.run, state: "COMPLETE".into(), ..NodeReport::default() };
                status.last_reports.push(report);
                (status.snapshot.state, status.is_prepared) = (State::Idle, false);
            }
            State::Idle if !status.topology.is_empty() => node.prepare(),
            _ => {}
        }
        if node.is_connected {
            while let Some((id, error)) = node.replies.pop_front() {
                self.service.node_answered(name, id, error);
            }
            self.service.node_reported(name, node.status.clone());
        }
        if name == "b0" {
            self.follow_leader();
        }
    }

    /// The other builder takes part in what builder 0 does.
    fn follow_leader(&mut self) {
        let leader = self.nodes["b0"].as_ref().map(|node| (node.status.snapshot.state, node.status.snapshot.run));
        let Some(Some(other)) = self.nodes.get_mut("b1") else { return };
        let status = &mut other.status;
        match leader {
            Some((state, run)) if state.has_begun() && status.snapshot.state == State::Configured => {
                (status.snapshot.state, status.snapshot.run) = (State::Running, run);
            }
            Some((State::Stopping | State::Closing | State::Idle | State::Configured | State::Armed, _)) | None
                if status.snapshot.state == State::Running =>
            {
                status.snapshot.state = State::Stopping;
            }
            _ => {}
        }
    }

    fn carry_out_actions(&mut self) {
        while let Some(action) = self.service.next_action() {
            match action {
                Action::Send { node, message } => {
                    if let Some(Some(node)) = self.nodes.get_mut(&node)
                        && node.is_connected
                    {
                        node.inbox.push_back(message);
                    }
                }
                Action::StartNodes(names) => {
                    let is_alone = !self.nodes.contains_key("b1");
                    for name in names {
                        self.sessions += 1;
                        let node = self.nodes.get_mut(&name).expect("a node of the topology");
                        node.get_or_insert_with(|| NodeModel::new(self.sessions, is_alone));
                    }
                }
                Action::ReserveNumber(least) => {
                    self.last_number = (self.last_number + 1).max(least);
                    assert!(self.reserved.insert(self.last_number), "a number is given out once");
                    self.service.number_reserved(Ok(self.last_number));
                }
                Action::Record(record) => _ = self.records.insert(record.number, *record),
                Action::Answer(ticket, _) => assert!(self.asked.remove(&ticket), "a request is answered once"),
            }
        }
    }

    /// No state is shown that no node is in.
    fn check_state(&self) {
        let state = self.service.state();
        let leader = self.service.leading_builder().expect("builder 0");
        if state.has_run() {
            assert!(leader.hello.is_some() && ExperimentState::from(leader.status.snapshot.state) == state);
            let run = self.service.current_run().expect("a run has a record");
            assert_eq!(run.number, leader.status.snapshot.run);
        }
    }

    fn check_end(&self) {
        assert!(self.asked.is_empty(), "each request is answered: {:?}", self.asked);
        let begun: BTreeSet<u32> = self.begun.iter().copied().collect();
        assert_eq!(begun.len(), self.begun.len(), "no number is used twice: {:?}", self.begun);
        assert!(begun.is_subset(&self.reserved));
        for number in &self.reserved {
            let record = self.records.get(number).unwrap_or_else(|| panic!("the number {number} is lost"));
            // Without builder 0, nothing is known of it.
            let is_known = self.service.leading_builder().is_some_and(|leader| leader.hello.is_some());
            let is_present = self.service.current_run().is_some_and(|run| run.number == *number) || !is_known;
            assert!(record.state.is_over() || is_present, "{record:?}");
            if begun.contains(number) && !is_present {
                assert_ne!(record.state, RunState::Failed, "it has begun: {record:?}");
            }
        }
        use ExperimentState as S;
        let state = self.service.state();
        let rests = [S::Idle, S::Configured, S::Armed, S::Running, S::Paused, S::Error];
        assert!(rests.contains(&state), "{state} does not pass");
        if state == S::Error {
            assert!(!self.service.state_reasons().is_empty());
        }
    }
}

#[test]
fn whatever_dies_no_number_is_lost_and_no_state_is_shown_that_no_node_is_in() {
    let sequences = std::env::var("THALWEG_SEQUENCES").ok().and_then(|text| text.parse().ok()).unwrap_or(SEQUENCES);
    for seed in 0..sequences {
        let mut laboratory = Laboratory::new(seed);
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..STEPS).for_each(|_| laboratory.step());
            laboratory.is_calm = true;
            (0..CALM_STEPS).for_each(|_| laboratory.step());
            laboratory.check_end();
        }));
        if let Err(panic) = run {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Connects the nodes of the laboratory, which are armed.
fn armed_experiment() -> (Experiment, NodeStatus) {
    let topology: Topology = toml::from_str(&format!("{LAB}{SECOND_BUILDER}")).unwrap();
    let status = NodeStatus {
        topology: topology_digest(&topology),
        is_prepared: true,
        is_armed: true,
        snapshot: Snapshot { state: State::Armed, ..Snapshot::default() },
        ..NodeStatus::default()
    };
    let mut experiment = Experiment::new(topology, BTreeMap::new(), Now::default());
    for node in ["b0", "b1", "adc"] {
        let hello = NodeHello {
            protocol: 1,
            node: node.into(),
            host: "host".into(),
            pid: 1,
            version: String::new(),
            session: 1,
        };
        experiment.node_connected(hello).unwrap();
        experiment.node_reported(node, status.clone());
    }
    assert_eq!(experiment.state(), ExperimentState::Armed);
    (experiment, status)
}

/// Removes the actions so far, and returns the ids of the commands to nodes among them.
fn take_requests(experiment: &mut Experiment) -> Vec<(String, u64)> {
    let actions = std::iter::from_fn(|| experiment.next_action());
    let sent = actions.filter_map(|action| match action {
        Action::Send { node, message: ToNode::Command { id, .. } } => Some((node, id)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn a_run_that_begins_after_its_start_was_given_up_is_recorded_as_a_run() {
    let (mut experiment, mut status) = armed_experiment();
    experiment.execute_request(1, Request::Start { kind: RunKind::Physics, note: String::new() }, "anna");
    experiment.number_reserved(Ok(1));
    for (node, id) in take_requests(&mut experiment) {
        experiment.node_answered(&node, id, None);
    }
    for (node, id) in take_requests(&mut experiment) {
        experiment.node_answered(&node, id, None);
    }
    experiment.advance_time(Now { monotonic: Duration::from_secs(60), unix: 60.0 });
    assert_eq!(experiment.newest_runs().next().unwrap().state, RunState::Failed);
    (status.snapshot.state, status.snapshot.run) = (State::Running, 1);
    experiment.node_reported("b0", status.clone());
    let record = experiment.current_run().unwrap();
    assert_eq!((record.state, record.ended_at), (RunState::Running, None));
    status.last_reports.push(NodeReport { run: 1, state: "COMPLETE".into(), events: 9, ..NodeReport::default() });
    (status.snapshot.state, status.is_prepared) = (State::Idle, false);
    experiment.node_reported("b1", status.clone());
    experiment.node_reported("b0", status);
    let record = experiment.newest_runs().next().unwrap();
    assert_eq!((record.state, record.events, record.reasons.as_slice()), (RunState::Complete, 18, &[][..]));
}

#[test]
fn a_node_answers_for_no_other_one() {
    let (mut experiment, _) = armed_experiment();
    experiment.execute_request(1, Request::Start { kind: RunKind::Physics, note: String::new() }, "anna");
    experiment.number_reserved(Ok(1));
    let requests = take_requests(&mut experiment);
    for (_, id) in &requests {
        experiment.node_answered("adc", *id, Some("no".into()));
    }
    assert_eq!((requests.len(), experiment.state()), (2, ExperimentState::Starting));
    assert!(experiment.next_action().is_none(), "the command waits for the nodes that were asked");
}

#[test]
fn a_node_is_restarted_unless_it_has_a_part_in_what_goes_on() {
    let (mut experiment, mut status) = armed_experiment();
    assert_eq!(experiment.check_restart("adc"), Ok(()));
    experiment.execute_request(1, Request::Arm, "anna");
    let refused = experiment.check_restart("adc").unwrap_err();
    assert_eq!(refused, "cannot restart node 'adc': arm is under way: wait until that is done");
    experiment.advance_time(Now { monotonic: Duration::from_secs(60), unix: 60.0 });
    (status.snapshot.state, status.snapshot.run) = (State::Running, 7);
    experiment.node_reported("b0", status.clone());
    let refused = experiment.check_restart("adc").unwrap_err();
    assert_eq!(refused, "cannot restart node 'adc': it takes part in run 7: stop the run first");
    experiment.node_disconnected("adc", 1);
    assert_eq!(experiment.check_restart("adc"), Ok(()), "it is gone already");
    let hello =
        NodeHello { node: "adc".into(), session: 2, ..experiment.find_member("b0").unwrap().hello.clone().unwrap() };
    experiment.node_connected(hello).unwrap();
    assert!(experiment.check_restart("adc").is_err(), "whether it has a part in the run is not known yet");
    experiment.node_reported("adc", NodeStatus { unix_nanos: 1, ..NodeStatus::default() });
    assert_eq!(experiment.check_restart("adc"), Ok(()), "this process has come since");
}
