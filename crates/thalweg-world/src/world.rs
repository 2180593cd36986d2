//! The nodes, and the time that passes between their turns.

use crate::clock::HostClock;
use crate::device::{Plug, Truth, WorldAcquisition, WorldDevice};
use crate::hostile::Hostile;
use crate::instrument::{Instrument, Receiver};
use crate::plan::{BUILDER_DEADLINE, Fault, Medium, NodeName, Plan, RUN_TIMEOUT};
use crate::random::Random;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thalweg_core::control::Command;
use thalweg_device::{Acquisition, Beat, OnTime};
use thalweg_link::memory::Network;
use thalweg_link::{Address, LinkKind, Poller};
use thalweg_node::{
    BuilderNode, BuilderReport, Clock, Environment, EventRate, Feed, Handle, Idle, Node, NodeCommand, NodeError,
    RunOrder, SourceNode, SourceReport, SourceSettings, StepOrder, Topology, Wait,
};
use thalweg_store::{Access, Disk, DiskFault, Exposure, SimulatedDisk};
use thalweg_wire::{GOLDEN_GAMMA, SourceId, mix_bits};

/// Time after which a run is over once its end was requested: to answer, to continue, to be cut off (twice for a source that
/// returns from a hang), to be given up, and the steps in which time advances meanwhile.
const RUN_END_TIMEOUT: Duration = Duration::from_millis(2000 + 10_000 + 2 * 2000 + 2000 + 500);

/// Number of events that an instrument must have numbered before its clock is set.
const CLOCKS_AGREED: u64 = 10;

/// A simulation in progress.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    clock: HostClock,
    network: Network,
    random: Random,
    builders: Vec<Member<BuilderNode>>,
    sources: Vec<Member<AnySource>>,
    disks: Vec<SimulatedDisk>,
    truths: Vec<Truth>,
    /// Plugs of the sources' devices.
    plugs: Vec<Plug>,
    instruments: Vec<Option<Instrument>>,
    runs: PathBuf,
    /// Addresses of the builders.
    addresses: Vec<Address>,
    /// Total time for which nodes and disks were stopped.
    held_up: Duration,
    /// Builders that were asked to stop.
    stop_requested: Vec<usize>,
    /// Network addresses of the nodes, if the medium is the network.
    ports: BTreeMap<NodeName, SocketAddr>,
    /// Builders whose power failed, and the directories with the content of their disks.
    unpowered: Vec<(usize, PathBuf)>,
    died: Vec<Death>,
    /// Largest number of open offers of the hostile source at a builder.
    open_offers: u64,
    /// Worst-case loss of these builders at a power failure.
    exposed: Vec<(usize, Exposure)>,
    trace: u64,
}

/// A node with its state in the simulation.
#[derive(Debug)]
struct Member<N: Node> {
    node: Option<N>,
    clock: HostClock,
    handle: Handle,
    stopped_until: Duration,
    ended: Option<Result<N::Report, String>>,
    tokens: Vec<u64>,
    next: Option<Duration>,
}

fn source_id(index: usize) -> SourceId {
    SourceId::new(1, u16::try_from(index).unwrap_or(u16::MAX))
}

/// The node of a source, or the hostile peer in its place.
#[derive(Debug)]
enum AnySource {
    Node(Box<SourceNode>),
    Hostile(Box<Hostile>),
}

impl Node for AnySource {
    type Report = SourceReport;

    fn begin(&self, handle: &Handle) -> Result<(), NodeError> {
        match self {
            Self::Node(node) => node.begin(handle),
            Self::Hostile(peer) => peer.begin(handle),
        }
    }

    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<SourceReport>, NodeError> {
        match self {
            Self::Node(node) => node.turn(woken, handle),
            Self::Hostile(peer) => peer.turn(woken, handle),
        }
    }

    fn idle(&mut self) -> Idle {
        match self {
            Self::Node(node) => node.idle(),
            Self::Hostile(peer) => peer.idle(),
        }
    }

    fn poller(&self) -> &Arc<Poller> {
        match self {
            Self::Node(node) => node.poller(),
            Self::Hostile(peer) => peer.poller(),
        }
    }
}

/// Death of a builder.
#[derive(Debug, Clone)]
pub struct Death {
    /// Index of the builder.
    pub builder: usize,
    /// First event that each source had not yet taken from its device at that time.
    pub next_events: Vec<u64>,
}

/// Result of a simulation.
#[derive(Debug)]
pub struct Course {
    /// Final reports of the builders, or their errors; `None` for those that were killed.
    pub builders: Vec<Option<Result<BuilderReport, String>>>,
    /// Reports of each builder on runs that others have followed, the oldest first.
    pub earlier: Vec<Vec<BuilderReport>>,
    /// Final reports of the sources, or their errors; `None` for those that were killed.
    pub sources: Vec<Option<Result<SourceReport, String>>>,
    /// Fragments of their devices.
    pub truths: Vec<Truth>,
    /// Directory of the runs.
    pub runs: PathBuf,
    /// Builders whose power failed, and the directories with the content of their disks.
    pub unpowered: Vec<(usize, PathBuf)>,
    /// Builders that died.
    pub died: Vec<Death>,
    /// Largest number of open offers of the hostile source at a builder.
    pub open_offers: u64,
    /// Worst-case loss of each builder at a power failure: until it failed, or until the end.
    pub exposed: Vec<Exposure>,
    /// Duration of the simulation, in simulated time.
    pub took: Duration,
    /// Nodes that had not ended in time.
    pub late: Vec<NodeName>,
    /// Hash of all that happened, in order.
    pub trace: u64,
}

impl World {
    /// Creates all nodes, with the clock at one second.
    ///
    /// # Panics
    /// Panics if the plan cannot be run: the host is out of memory or file descriptors.
    pub fn new(plan: &Plan, directory: &Path) -> Self {
        let clock = HostClock::default();
        clock.advance_to(Duration::from_secs(1));
        let network = Network::new(plan.network, plan.seed);
        network.advance_to(clock.now());
        let runs = directory.join("runs");
        let mut topology: Topology = toml::from_str(&plan.topology_text()).expect("the topology of a plan");
        topology.run.directory.clone_from(&runs);
        for (index, builder) in topology.builders.iter_mut().enumerate() {
            builder.listen = vec![
                match plan.medium {
                    Medium::Frames => Address::new(network.link_kind(), &format!("b{index}")),
                    Medium::Memory => Address::on_this_host(LinkKind::SHM, directory, &format!("b{index}")),
                    Medium::Stream => Address::new(LinkKind::TCP, "127.0.0.1:0"),
                }
                .expect("an address"),
            ];
        }
        let access = Access {
            latency: Duration::from_micros(200),
            jitter: Duration::from_millis(3),
            per_mebibyte: Duration::from_millis(2),
        };
        let disks: Vec<SimulatedDisk> =
            (0..plan.builders).map(|index| SimulatedDisk::new(access, mix_bits(plan.seed ^ index as u64))).collect();
        disks.iter().for_each(|disk| disk.advance_time_to(clock.now()));
        let truths: Vec<Truth> = plan.sources.iter().map(|_| Truth::default()).collect();
        let mut world = Self {
            random: Random::new(plan.seed.wrapping_add(GOLDEN_GAMMA)),
            builders: Vec::new(),
            sources: Vec::new(),
            plan: plan.clone(),
            clock,
            network,
            disks,
            truths,
            plugs: plan.sources.iter().map(|_| Plug::default()).collect(),
            instruments: vec![None; plan.sources.len()],
            runs,
            addresses: Vec::new(),
            held_up: Duration::ZERO,
            stop_requested: Vec::new(),
            ports: BTreeMap::new(),
            unpowered: Vec::new(),
            died: Vec::new(),
            open_offers: 0,
            exposed: Vec::new(),
            trace: plan.seed,
        };
        for (index, config) in topology.builders.iter().enumerate() {
            let (clock, environment) = world.host_environment(Some(index));
            let node = BuilderNode::with_environment(&topology, &config.name, false, environment).expect("a builder");
            world.addresses.extend(node.listening_addresses());
            world.remember_port(NodeName::Builder(index));
            world.builders.push(Member::new(node, clock));
        }
        let shared = Arc::default();
        for (index, source) in plan.sources.iter().enumerate() {
            world.instruments[index] =
                source.instrument.as_ref().zip(source.rate).map(|(instrument, rate)| {
                    Instrument::new(instrument, plan.seed, index, (source.longest, source.events), rate)
                        .with_surroundings(world.truths[index].clone(), world.plugs[index].clone(), Arc::clone(&shared))
                });
            let member = world.start_source(index);
            world.sources.push(member);
        }
        world
    }

    fn start_source(&mut self, index: usize) -> Member<AnySource> {
        let (clock, environment) = self.host_environment(None);
        let node = match self.plan.hostile == Some(index) {
            true => self.hostile_source(index, environment.clock),
            false => {
                let settings = self.source_settings(index);
                AnySource::Node(Box::new(SourceNode::with_environment(settings, environment).expect("a source")))
            }
        };
        self.remember_port(NodeName::Source(index));
        Member::new(node, clock)
    }

    /// Records the port that was opened last as that of the node that was just created.
    fn remember_port(&mut self, name: NodeName) {
        if self.plan.medium == Medium::Frames {
            self.ports.insert(name, self.network.last_port());
        }
    }

    fn host_environment(&mut self, builder: Option<usize>) -> (HostClock, Environment) {
        let clock = self.clock.for_another_host();
        let environment = Environment {
            clock: Arc::new(clock.clone()),
            disk: builder.map_or(Disk::System, |index| Disk::Simulated(self.disks[index].clone())),
            session: self.random.next_u64(),
            ..Environment::system()
        };
        (clock, environment)
    }

    fn hostile_source(&mut self, index: usize, clock: Arc<dyn Clock>) -> AnySource {
        let until = clock.now() + self.plan.last_word + RUN_TIMEOUT;
        let (id, random) = (source_id(index), Random::new(self.random.next_u64()));
        let peer = Hostile::new(id, &self.addresses, random, clock, until, self.plan.floods);
        AnySource::Hostile(Box::new(peer.expect("memory and descriptors")))
    }

    fn source_settings(&self, index: usize) -> SourceSettings {
        let source = &self.plan.sources[index];
        let truth = self.truths[index].clone();
        let device = WorldDevice::new(self.plan.seed, index, source.longest, source.events, truth);
        SourceSettings {
            name: format!("s{index}"),
            id: source_id(index),
            feed: match (&self.instruments[index], source.rate.filter(|_| source.acquires)) {
                (Some(instrument), _) => Feed::Acquisition(self.instrument_receiver(instrument.clone())),
                (None, Some(rate)) => {
                    Feed::Acquisition(Box::new(WorldAcquisition::new(device, rate, self.plugs[index].clone())))
                }
                (None, None) => Feed::Device(Box::new(device)),
            },
            builders: self.addresses.clone(),
            adapter: None,
            congestion: None,
            rate: source.rate.filter(|_| !source.acquires).map(|rate| EventRate::try_from(rate).expect("a rate")),
            burst: 1,
            policy: source.policy,
            slots: source.slots.0,
            slot_bytes: usize::try_from(source.slots.1).unwrap_or(usize::MAX),
            timeout: RUN_TIMEOUT,
            wait: Wait::default(),
            cpu: None,
        }
    }

    fn instrument_receiver(&self, instrument: Instrument) -> Box<dyn Acquisition> {
        let receiver = Box::new(Receiver::new(instrument));
        match self.plan.period {
            Some(period) => Box::new(OnTime::new(receiver, Beat { period, phase: None, tolerance: period / 4 })),
            None => receiver,
        }
    }

    /// Runs the simulation to its end.
    pub fn run_to_end(mut self) -> Course {
        let begun = self.clock.now();
        let mut faults = self.plan.faults.clone().into_iter().peekable();
        let mut last_word = Some(begun + self.plan.last_word);
        let mut late = Vec::new();
        while !self.is_over() {
            let now = self.clock.now();
            while let Some((_, fault)) = faults.next_if(|(at, _)| begun + *at <= now) {
                self.apply_fault(fault);
            }
            if last_word.take_if(|at| *at <= now).is_some() {
                self.stop_remaining_builders();
            }
            self.turn_all_nodes(now);
            self.count_open_offers();
            let next = faults.peek().map(|(at, _)| begun + *at).into_iter().chain(last_word);
            let next = next.chain(self.next_time(now)).min().unwrap_or(now + BUILDER_DEADLINE);
            let next = next.max(now + self.plan.step);
            self.advance_to(next);
            late = self.overdue_nodes(begun);
            if !late.is_empty() {
                break;
            }
        }
        let exposed = self.exposures();
        Course {
            took: self.clock.now() - begun,
            earlier: self.builders.iter().map(|member| member.handle.take_reports()).collect(),
            builders: self.builders.into_iter().map(|member| member.ended).collect(),
            sources: self.sources.into_iter().map(|member| member.ended).collect(),
            truths: self.truths,
            runs: self.runs,
            exposed,
            died: self.died,
            open_offers: self.open_offers,
            unpowered: self.unpowered,
            late,
            trace: self.trace,
        }
    }

    fn is_over(&self) -> bool {
        self.builders.iter().all(|member| member.node.is_none())
            && self.sources.iter().all(|member| member.node.is_none())
    }

    fn advance_to(&mut self, at: Duration) {
        self.clock.advance_to(at);
        self.network.advance_to(at);
        self.disks.iter().for_each(|disk| disk.advance_time_to(at));
    }

    /// Gives every node a turn, in a random order.
    fn turn_all_nodes(&mut self, now: Duration) {
        let count = self.builders.len() + self.sources.len();
        let first = usize::try_from(self.random.draw_from(0..count as u64)).unwrap_or(0);
        for index in (first..count).chain(0..first) {
            let result = match index.checked_sub(self.builders.len()) {
                None => self.builders[index].take_turn(now),
                Some(source) => self.sources[source].take_turn(now),
            };
            self.trace = mix_bits(self.trace ^ result.wrapping_add(index as u64).wrapping_mul(GOLDEN_GAMMA));
        }
    }

    fn count_open_offers(&mut self) {
        let Some(source) = self.plan.hostile else { return };
        for member in self.builders.iter().filter(|member| member.node.is_some()) {
            let open = member.handle.latest_snapshot().sources.get(source).map_or(0, |row| row.backlog);
            self.open_offers = self.open_offers.max(open);
        }
    }

    fn next_time(&self, now: Duration) -> Option<Duration> {
        let disks = self.disks.iter().filter_map(SimulatedDisk::next_completion_time);
        let nodes = self.builders.iter().filter_map(|member| member.next_time(now));
        disks.chain(nodes).chain(self.sources.iter().filter_map(|member| member.next_time(now))).min()
    }

    fn send_command(&self, builder: usize, command: NodeCommand) {
        // A builder that has ended takes none.
        self.builders[builder].handle.send_command(command);
    }

    fn apply_fault(&mut self, fault: Fault) {
        let now = self.clock.now();
        match fault {
            Fault::Command(builder, command) => {
                if matches!(command, Command::Stop | Command::Abort) {
                    self.stop_requested.push(builder);
                }
                self.send_command(builder, command.into());
            }
            Fault::NextRun(builder) => self.send_command(builder, NodeCommand::Next(RunOrder::default())),
            Fault::Step(builder) => {
                let step = StepOrder { label: "step".into(), ..StepOrder::default() };
                self.send_command(builder, NodeCommand::Step(step));
            }
            Fault::Network(impairments) => self.network.set_impairments(impairments),
            Fault::Stopped(node, time) => {
                self.held_up += time;
                let until = now + time;
                match node {
                    NodeName::Builder(at) => self.builders[at].stopped_until = until,
                    NodeName::Source(at) => self.sources[at].stopped_until = until,
                }
            }
            Fault::Killed(NodeName::Builder(at)) => drop(self.kill_builder(at)),
            Fault::Unpowered(at) => self.fail_power(at),
            Fault::Parted(source, builder, time) => {
                self.held_up += time;
                if let (Some(source), Some(builder)) =
                    (self.ports.get(&NodeName::Source(source)), self.ports.get(&NodeName::Builder(builder)))
                {
                    self.network.separate_ports(*source, *builder, now + time);
                }
            }
            Fault::Restarted(source, time) => {
                self.held_up += time;
                if self.sources[source].node.is_some() {
                    self.sources[source].node = None;
                    self.sources[source] = self.start_source(source);
                    self.sources[source].stopped_until = now + time;
                }
            }
            Fault::Unplugged(source, time) => {
                self.held_up += time;
                self.plugs[source].unplug_until(now + time);
            }
            Fault::CountsAnew(source, time) => {
                self.held_up += time;
                self.instruments[source].iter().for_each(|instrument| instrument.switch_off(now, time));
            }
            // Clocks that differ before events begin would number the events accordingly.
            Fault::ClockSet(source, _) if self.events_numbered_of(source) < CLOCKS_AGREED => {}
            Fault::ClockSet(source, by) => {
                self.instruments[source].iter().for_each(|instrument| instrument.set_clock(now, by));
            }
            Fault::Killed(NodeName::Source(at)) => self.sources[at].node = None,
            Fault::Disk(builder, fault) => self.disks[builder].set_fault(fault),
            Fault::DiskStuck(builder, time) => {
                self.held_up += time;
                self.disks[builder].set_fault(Some(DiskFault::Stuck(now + time)));
            }
            Fault::Date(node, millis) => {
                let clock = match node {
                    NodeName::Builder(at) => &self.builders[at].clock,
                    NodeName::Source(at) => &self.sources[at].clock,
                };
                clock.shift_date(millis * 1_000_000);
            }
        }
    }

    /// Returns the number of a source's events that builder 0 knows of.
    fn events_numbered_of(&self, source: usize) -> u64 {
        self.builders[0].handle.latest_snapshot().sources.get(source).map_or(0, |row| row.accepted)
    }

    fn kill_builder(&mut self, builder: usize) -> Option<BuilderNode> {
        let node = self.builders[builder].node.take()?;
        let truths = self.truths.iter();
        let next_events = truths.map(|truth| truth.fragments().keys().next_back().map_or(0, |last| last + 1)).collect();
        self.died.push(Death { builder, next_events });
        Some(node)
    }

    fn fail_power(&mut self, builder: usize) {
        if self.kill_builder(builder).is_some() {
            let to = self.runs.with_file_name(format!("unpowered-b{builder}"));
            let disk = &self.disks[builder];
            disk.write_after_power_failure(&self.runs, &to, self.random.next_u64()).expect("a directory to write to");
            self.exposed.push((builder, disk.longest_exposure()));
            self.unpowered.push((builder, to));
        }
    }

    fn exposures(&self) -> Vec<Exposure> {
        let exposures = self.disks.iter().enumerate().map(|(builder, disk)| {
            let at_failure = self.exposed.iter().find(|(unpowered, _)| *unpowered == builder);
            at_failure.map_or_else(|| disk.longest_exposure(), |(_, exposure)| *exposure)
        });
        exposures.collect()
    }

    /// Sends a command to stop to the builders that have none yet: a second one would end them at once.
    fn stop_remaining_builders(&self) {
        for (builder, member) in self.builders.iter().enumerate() {
            if !self.stop_requested.contains(&builder) {
                member.handle.send_command(Command::Stop);
            }
        }
    }

    /// Returns the nodes that should have ended by now.
    fn overdue_nodes(&self, begun: Duration) -> Vec<NodeName> {
        let bound = begun + self.plan.last_word + self.held_up + 2 * RUN_END_TIMEOUT;
        let now = self.clock.now();
        let builders = self.builders.iter().enumerate().filter(|(_, member)| member.node.is_some() && now > bound);
        let sources = self
            .sources
            .iter()
            .enumerate()
            .filter(|(_, member)| member.node.is_some() && now > bound + RUN_TIMEOUT + BUILDER_DEADLINE);
        let builders = builders.map(|(at, _)| NodeName::Builder(at));
        builders.chain(sources.map(|(at, _)| NodeName::Source(at))).collect()
    }
}

impl<N: Node> Member<N> {
    fn new(node: N, clock: HostClock) -> Self {
        let handle = Handle::new().expect("a handle");
        node.begin(&handle).expect("a poller");
        Self {
            node: Some(node),
            clock,
            handle,
            stopped_until: Duration::ZERO,
            ended: None,
            tokens: Vec::new(),
            next: None,
        }
    }

    /// Gives the node a turn, unless it is stopped or gone. Returns a number that represents its actions.
    fn take_turn(&mut self, now: Duration) -> u64 {
        let Some(node) = self.node.as_mut().filter(|_| now >= self.stopped_until) else { return 0 };
        let result = match Idle::Ask(Some(Duration::ZERO)).wait_for_work(node.poller(), &mut self.tokens) {
            Ok(()) => node.turn(&self.tokens, &self.handle),
            Err(error) => Err(NodeError::Wait(error)),
        };
        match result {
            Ok(None) => {
                self.next = match node.idle() {
                    Idle::Spin => Some(now),
                    Idle::Ask(timeout) => timeout.map(|timeout| now + timeout),
                };
                return 1 + self.tokens.len() as u64;
            }
            Ok(Some(report)) => self.ended = Some(Ok(report)),
            Err(error) => self.ended = Some(Err(error.to_string())),
        }
        self.node = None;
        u64::MAX
    }

    fn next_time(&self, now: Duration) -> Option<Duration> {
        self.node.as_ref()?;
        if now < self.stopped_until { Some(self.stopped_until) } else { self.next }
    }
}
