//! The experiment among nodes that die, connections that break, services that are started anew, and an etcd that is lost
//! and comes back: sequences drawn from seeds. The nodes are a model; `tests/it` takes real ones.

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
    /// Connection to each service.
    links: Vec<LinkModel>,
}

/// Model of a connection: the messages on the way to a node, and from it, are lost with it.
#[derive(Debug, Default)]
struct LinkModel {
    is_connected: bool,
    inbox: VecDeque<ToNode>,
    replies: VecDeque<(u64, Option<String>)>,
}

/// Model of a service, with its files.
struct ServiceModel {
    experiment: Experiment,
    /// The file of records.
    records: BTreeMap<u32, RunRecord>,
    /// Records that etcd has not taken yet.
    unsent: BTreeMap<u32, RunRecord>,
    asked: BTreeSet<u64>,
}

impl NodeModel {
    fn new(session: u64, is_alone: bool, services: usize) -> Self {
        let links = std::iter::repeat_with(LinkModel::default).take(services).collect();
        Self { session, status: NodeStatus::default(), order: None, next: None, is_alone, links }
    }

    fn prepare(&mut self) {
        self.order = None;
        self.status.runs += 1;
        self.status.is_prepared = true;
        let connected = if self.is_alone { 1 } else { 2 };
        self.status.snapshot = Snapshot { state: State::Configured, connected, ..Snapshot::default() };
    }

    /// Returns the reply to a message, if there is one.
    fn handle_message(&mut self, message: ToNode, all_are_prepared: bool) -> Option<(u64, Option<String>)> {
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
                Some((id, error))
            }
            ToNode::Arm { id } => {
                let has_none = self.status.topology.is_empty().then(|| "it has no topology".to_owned());
                let error = has_run.then(|| busy.to_owned()).or(has_none);
                if error.is_none() {
                    self.prepare();
                    self.status.is_armed = true;
                }
                Some((id, error))
            }
            ToNode::Command { id, command } => {
                let state = self.status.snapshot.state;
                let error = match (command, state) {
                    _ if !self.status.is_prepared => Some(busy.to_owned()),
                    (NodeCommand::Prepare(order), State::Configured | State::Armed) => {
                        self.order = order.number;
                        None
                    }
                    (NodeCommand::Begin(run), State::Armed) if all_are_prepared && self.order == Some(run) => {
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
                Some((id, error))
            }
            ToNode::Latest { .. } | ToNode::Quit => None,
        }
    }
}

/// Services, nodes, and all that is kept on disk.
struct Laboratory {
    random: fastrand::Rng,
    now: Now,
    services: Vec<ServiceModel>,
    nodes: BTreeMap<String, Option<NodeModel>>,
    /// The last number, in a file or in etcd.
    last_number: u32,
    reserved: BTreeSet<u32>,
    /// Records in etcd; `None` without it.
    etcd: Option<BTreeMap<u32, RunRecord>>,
    etcd_is_lost: bool,
    /// Reservations that etcd has carried out without an answer.
    unanswered: Vec<RunRecord>,
    /// Runs that builder 0 has begun.
    begun: Vec<u32>,
    last_ticket: u64,
    sessions: u64,
    is_calm: bool,
}

impl Laboratory {
    fn new(seed: u64) -> Self {
        let second = if seed.is_multiple_of(2) { SECOND_BUILDER } else { "" };
        let topology: Topology = toml::from_str(&format!("{LAB}{second}")).unwrap();
        let has_etcd = seed % 4 > 1;
        let service = || ServiceModel {
            experiment: Experiment::new(topology.clone(), BTreeMap::new(), Now::default()),
            records: BTreeMap::new(),
            unsent: BTreeMap::new(),
            asked: BTreeSet::new(),
        };
        let services: Vec<ServiceModel> = (0..if has_etcd { 2 } else { 1 }).map(|_| service()).collect();
        let nodes = services[0].experiment.expected_nodes().map(|name| (name.to_owned(), None)).collect();
        Self {
            random: fastrand::Rng::with_seed(seed),
            now: Now::default(),
            services,
            nodes,
            last_number: 0,
            reserved: BTreeSet::new(),
            etcd: has_etcd.then(BTreeMap::new),
            etcd_is_lost: false,
            unanswered: Vec::new(),
            begun: Vec::new(),
            last_ticket: 0,
            sessions: 0,
            is_calm: false,
        }
    }

    fn step(&mut self) {
        self.now.monotonic += STEP;
        self.now.unix += STEP.as_secs_f64();
        for service in &mut self.services {
            service.experiment.advance_time(self.now);
        }
        let at = self.random.usize(0..self.services.len());
        match self.random.u32(0..100) {
            _ if self.is_calm => self.etcd_is_lost = false,
            0..=24 => self.ask(at),
            25..=28 => self.kill_node(),
            29..=31 => self.break_connection(at),
            32 => self.restart_service(at),
            33 => self.etcd_is_lost = true,
            34..=37 => self.etcd_is_lost = false,
            _ => {}
        }
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in names {
            if self.is_calm || self.random.u32(0..4) > 0 {
                self.advance_node(&name);
            }
        }
        for at in 0..self.services.len() {
            self.carry_out_actions(at);
            if self.is_calm || self.random.u32(0..4) == 0 {
                self.look_at_etcd(at);
            }
            self.check_state(at);
        }
    }

    fn ask(&mut self, at: usize) {
        use thalweg_node::Command;
        let service = &mut self.services[at];
        let request = match self.random.u32(0..11) {
            8 => Request::Next { kind: RunKind::Physics, note: String::new() },
            9 => Request::Step(thalweg_node::StepOrder::default()),
            0 => Request::Configure(Box::new(service.experiment.topology().clone())),
            1 | 2 => Request::Arm,
            3 | 4 => Request::Start { kind: RunKind::Test, note: String::new() },
            5 => Request::Control(Command::Pause),
            6 => Request::Control(Command::Resume),
            7 => Request::Control(Command::Abort),
            _ => Request::Control(Command::Stop),
        };
        self.last_ticket += 1;
        service.asked.insert(self.last_ticket);
        let legal = service.experiment.check_command(request.command_name());
        service.experiment.execute_request(self.last_ticket, request, "someone");
        if legal.is_err() {
            let last = service.experiment.actions.back();
            let refused = matches!(last, Some(Action::Answer(_, Err(Rejection::NotLegal(reason)))) if legal == Err(reason.clone()));
            assert!(refused, "what is shown as illegal is refused with that reason");
        }
    }

    fn kill_node(&mut self) {
        let name = self.random_node();
        if let Some(Some(node)) = self.nodes.insert(name.clone(), None) {
            for (service, link) in self.services.iter_mut().zip(&node.links) {
                if link.is_connected {
                    service.experiment.node_disconnected(&name, node.session);
                }
            }
        }
    }

    fn break_connection(&mut self, at: usize) {
        let name = self.random_node();
        if let Some(Some(node)) = self.nodes.get_mut(&name)
            && std::mem::take(&mut node.links[at]).is_connected
        {
            self.services[at].experiment.node_disconnected(&name, node.session);
        }
    }

    /// A service dies, with whatever it was about to answer, and another one reads what it left on disk.
    fn restart_service(&mut self, at: usize) {
        self.carry_out_actions(at);
        let service = &mut self.services[at];
        service.asked.clear();
        let topology = service.experiment.topology().clone();
        service.experiment = Experiment::new(topology, service.records.clone(), self.now);
        service.unsent = service.records.clone();
        for node in self.nodes.values_mut().flatten() {
            node.links[at] = LinkModel::default();
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
        for (at, service) in self.services.iter_mut().enumerate() {
            if !node.links[at].is_connected {
                let hello = NodeHello {
                    protocol: 1,
                    node: name.to_owned(),
                    host: "host".into(),
                    pid: 1,
                    version: String::new(),
                    session: node.session,
                };
                node.links[at].is_connected = service.experiment.node_connected(hello).is_ok();
            }
            if let Some(message) = node.links[at].inbox.pop_front() {
                let reply = node.handle_message(message, all_are_prepared);
                node.links[at].replies.extend(reply);
            }
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
        for (service, link) in self.services.iter_mut().zip(&mut node.links) {
            if link.is_connected {
                while let Some((id, error)) = link.replies.pop_front() {
                    service.experiment.node_answered(name, id, error);
                }
                service.experiment.node_reported(name, node.status.clone());
            }
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

    fn carry_out_actions(&mut self, at: usize) {
        while let Some(action) = self.services[at].experiment.next_action() {
            match action {
                Action::Send { node, message } => {
                    if let Some(Some(node)) = self.nodes.get_mut(&node)
                        && node.links[at].is_connected
                    {
                        node.links[at].inbox.push_back(message);
                    }
                }
                Action::StartNodes(names) => {
                    let (is_alone, services) = (!self.nodes.contains_key("b1"), self.services.len());
                    for name in names {
                        self.sessions += 1;
                        let node = self.nodes.get_mut(&name).expect("a node of the topology");
                        node.get_or_insert_with(|| NodeModel::new(self.sessions, is_alone, services));
                    }
                }
                Action::Reserve(ticket, draft) => {
                    let reserved = self.reserve_number(at, *draft);
                    self.services[at].experiment.number_reserved(ticket, reserved);
                }
                Action::Record(record) => self.write_record(at, *record),
                Action::Answer(ticket, _) => {
                    assert!(self.services[at].asked.remove(&ticket), "a request is answered once");
                }
            }
        }
    }

    fn reserve_number(&mut self, at: usize, draft: RunRecord) -> Result<RunRecord, String> {
        if self.etcd_is_lost && self.etcd.is_some() {
            return Err("etcd does not answer".into());
        }
        self.last_number = (self.last_number + 1).max(draft.number);
        assert!(self.reserved.insert(self.last_number), "a number is given out once");
        let record = RunRecord { number: self.last_number, ..draft };
        if let Some(records) = &mut self.etcd {
            records.insert(record.number, record.clone());
            if self.random.u32(0..10) == 0 {
                self.unanswered.push(record);
                return Err("etcd does not answer".into());
            }
        }
        self.services[at].records.insert(record.number, record.clone());
        Ok(record)
    }

    fn write_record(&mut self, at: usize, record: RunRecord) {
        let service = &mut self.services[at];
        let merged = service.records.get(&record.number).map_or_else(|| record.clone(), |known| known.merge(&record));
        service.records.insert(record.number, merged.clone());
        if self.etcd.is_some() {
            service.unsent.insert(record.number, merged);
        }
    }

    /// A service sends its records, and takes those of the other one.
    fn look_at_etcd(&mut self, at: usize) {
        let Some(kept) = self.etcd.as_mut().filter(|_| !self.etcd_is_lost) else { return };
        let service = &mut self.services[at];
        let failed = self.unanswered.drain(..).map(|record| record.failed("etcd did not answer"));
        for record in failed.chain(std::mem::take(&mut service.unsent).into_values()) {
            let merged = kept.get(&record.number).map_or_else(|| record.clone(), |known| known.merge(&record));
            kept.insert(record.number, merged);
        }
        for record in kept.values() {
            if service.records.get(&record.number) == Some(record) {
                continue;
            }
            service.records.insert(record.number, record.clone());
            service.experiment.record_changed(record.clone());
        }
    }

    /// No state is shown that no node is in.
    fn check_state(&self, at: usize) {
        let service = &self.services[at].experiment;
        let state = service.state();
        let leader = service.leading_builder().expect("builder 0");
        if state.has_run() {
            assert!(leader.hello.is_some() && ExperimentState::from(leader.status.snapshot.state) == state);
            let run = service.current_run().expect("a run has a record");
            assert_eq!(run.number, leader.status.snapshot.run);
        }
    }

    fn check_end(&self) {
        let begun: BTreeSet<u32> = self.begun.iter().copied().collect();
        assert_eq!(begun.len(), self.begun.len(), "no number is used twice: {:?}", self.begun);
        assert!(begun.is_subset(&self.reserved));
        for ServiceModel { experiment, records, asked, .. } in &self.services {
            assert!(asked.is_empty(), "each request is answered: {asked:?}");
            for number in &self.reserved {
                let record = records.get(number).unwrap_or_else(|| panic!("the number {number} is lost"));
                // Without builder 0, nothing is known of it.
                let is_known = experiment.leading_builder().is_some_and(|leader| leader.hello.is_some());
                let is_present = experiment.current_run().is_some_and(|run| run.number == *number) || !is_known;
                assert!(record.state.is_over() || is_present, "{record:?}");
                if begun.contains(number) && !is_present {
                    assert_ne!(record.state, RunState::Failed, "it has begun: {record:?}");
                }
            }
            if let Some(kept) = &self.etcd {
                assert_eq!(records, kept, "all services have the same records");
            }
            use ExperimentState as S;
            let state = experiment.state();
            let rests = [S::Idle, S::Configured, S::Armed, S::Running, S::Paused, S::Error];
            assert!(rests.contains(&state), "{state} does not pass");
            if state == S::Error {
                assert!(!experiment.state_reasons().is_empty());
            }
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
        snapshot: Snapshot { state: State::Armed, connected: 2, ..Snapshot::default() },
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

/// Removes the actions so far, and returns the ids of the requests to nodes among them.
fn take_requests(experiment: &mut Experiment) -> Vec<(String, u64)> {
    let actions = std::iter::from_fn(|| experiment.next_action());
    let sent = actions.filter_map(|action| match action {
        Action::Send { node, message: ToNode::Command { id, .. } | ToNode::Arm { id } } => Some((node, id)),
        _ => None,
    });
    sent.collect()
}

#[test]
fn builders_are_armed_after_sources_and_all_refusals_are_shown() {
    let (mut experiment, status) = armed_experiment();
    experiment.execute_request(1, Request::Arm, "anna");
    let sources = take_requests(&mut experiment);
    assert_eq!(sources.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["adc"]);
    // Builder 0 still counts the source, which has left it to be prepared anew.
    experiment.node_reported("b0", status.clone());
    assert_eq!(experiment.state(), ExperimentState::Arming);
    experiment.node_answered("adc", sources[0].1, Some("no memory".into()));
    let builders = take_requests(&mut experiment);
    assert_eq!(builders.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["b0", "b1"]);
    experiment.node_answered("b0", builders[0].1, Some("no disk".into()));
    experiment.node_answered("b1", builders[1].1, None);
    let Some(Action::Answer(1, Err(rejection))) = experiment.next_action() else { panic!("an answer to the request") };
    assert_eq!(rejection.to_string(), "cannot arm: adc on host: no memory; b0 on host: no disk");
}

#[test]
fn a_run_that_begins_after_its_start_was_given_up_is_recorded_as_a_run() {
    let (mut experiment, mut status) = armed_experiment();
    experiment.execute_request(1, Request::Start { kind: RunKind::Physics, note: String::new() }, "anna");
    let record = RunRecord { number: 1, ..RunRecord::default() };
    experiment.number_reserved(1, Ok(record));
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
    let record = RunRecord { number: 1, ..RunRecord::default() };
    experiment.number_reserved(1, Ok(record));
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

#[test]
fn a_node_that_was_started_anew_has_the_topology_before_arming_is_legal() {
    let (mut experiment, status) = armed_experiment();
    experiment.node_disconnected("adc", 1);
    assert_eq!(experiment.state(), ExperimentState::Error);
    let hello =
        NodeHello { node: "adc".into(), session: 2, ..experiment.find_member("b0").unwrap().hello.clone().unwrap() };
    experiment.node_connected(hello).unwrap();
    assert_eq!(experiment.state(), ExperimentState::Configuring);
    assert_eq!(
        experiment.check_command(CommandName::Arm).unwrap_err(),
        "cannot arm: the experiment is configuring: wait until that is done"
    );
    experiment.node_reported("adc", NodeStatus { unix_nanos: 1, ..NodeStatus::default() });
    let sent = experiment.next_action();
    assert!(matches!(sent, Some(Action::Send { message: ToNode::Configure { .. }, .. })), "{sent:?}");
    assert_eq!(experiment.state(), ExperimentState::Configuring);
    assert_eq!(experiment.check_command(CommandName::Configure), Ok(()), "should it refuse the topology");
    experiment.node_reported("adc", NodeStatus { is_armed: false, ..status });
    assert_eq!(experiment.state(), ExperimentState::Configured);
}

#[test]
fn a_node_without_a_topology_is_named_where_this_service_has_another_one_than_the_nodes() {
    let (mut experiment, mut status) = armed_experiment();
    for node in ["b0", "b1"] {
        status.topology = "of another file".into();
        experiment.node_reported(node, status.clone());
    }
    experiment.node_reported("adc", NodeStatus { unix_nanos: 1, ..NodeStatus::default() });
    assert_eq!(experiment.state(), ExperimentState::Error);
    assert_eq!(experiment.state_sentence(), "adc on host has no topology: configure the experiment anew");
}

#[test]
fn a_status_that_took_long_does_not_put_a_clock_wrong() {
    let mut clock = ClockOffset::default();
    assert_eq!(clock.seconds(), None);
    [0.01, -0.9, 0.02].into_iter().for_each(|seconds| clock.add_offset(seconds));
    assert_eq!(clock.seconds(), Some(0.02));
    // It is wrong now.
    (0..MAX_CLOCK_OFFSETS).for_each(|_| clock.add_offset(-7.0));
    assert_eq!(clock.seconds(), Some(-7.0));
}
