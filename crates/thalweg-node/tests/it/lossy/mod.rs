//! Whole systems over links that lose, double, delay and reorder what they carry: one to three builders and their
//! sources, under schedules of commands, deaths, cut connections and disks that stall or fail. The event builder, run
//! control and links are the real ones; only the time, the network below the links, the devices and the disks are made
//! up. Every run ends within its bounds, with everything accounted for.

mod builder;
mod source;

use builder::Node;
use proptest::prelude::*;
use source::{Nature, Source, SourcePlan};
use std::time::Duration;
use thalweg_control::{Command, State};
use thalweg_link::memory::{Impairments, Network};
use thalweg_link::{Address, Eager, LinkError};
use thalweg_node::Policy;
use thalweg_wire::{RunNumber, SourceId};

const RUN: RunNumber = RunNumber(42);
const DEADLINE: Duration = Duration::from_secs(2);
/// `run.timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The world does not move in smaller steps.
const GRAIN: Duration = Duration::from_millis(2);
/// Whatever happened, the builder that leads is told to stop then.
const LAST_WORD: Duration = Duration::from_secs(8);
/// A run that was told to end is over after this: to answer, to go on, to be cut off (and once more where a source comes
/// back from a hang), to be given up, and the steps in which time is counted meanwhile.
const BOUND: Duration = Duration::from_millis(2000 + 10_000 + 2 * 2000 + 2000 + 500);

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_run_ends_within_its_bounds_and_every_fragment_is_accounted_for(plan in plan()) {
        World::new(&plan).take_its_course(&plan);
    }
}

/// `THALWEG_SCHEDULES` says how many schedules are tried, where it is set.
fn cases() -> u32 {
    std::env::var("THALWEG_SCHEDULES").map_or(100, |cases| cases.parse().expect("THALWEG_SCHEDULES is a number"))
}

fn id(source: usize) -> SourceId {
    SourceId::new(1, source as u16)
}

#[derive(Debug, Clone)]
struct Plan {
    builders: usize,
    starts_alone: bool,
    events: Option<u64>,
    duration: Option<Duration>,
    sources: Vec<SourcePlan>,
    impairments: Impairments,
    seed: u64,
    eager: Eager,
    /// Whether builders ask by credit.
    credit: bool,
    /// Whether the last word is said to all builders.
    tells_all: bool,
    happenings: Vec<(Duration, Happening)>,
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    Command(usize, Command),
    DiskFails(usize),
    /// The disk of a builder is behind for so long.
    Stalls(usize, Duration),
    /// The connection of a source to a builder is cut, by the builder or by the source.
    Cut(usize, usize, bool),
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn plan() -> impl Strategy<Value = Plan> {
    let impairments = (0u32..200, 0u32..200, 0u64..10_000, 0u64..40_000).prop_map(|(lost, doubled, delay, jitter)| {
        Impairments { lost, doubled, delay: Duration::from_micros(5000 + delay), jitter: Duration::from_micros(jitter) }
    });
    let eager = prop_oneof![Just(0), Just(4096)].prop_map(|credit| Eager { credit, limit: credit / 4 });
    let happenings = prop_oneof![
        1 => Just(Vec::new()),
        5 => proptest::collection::vec((millis(0..8000), happening()), 0..8),
    ];
    let run = (prop::bool::weighted(0.8), proptest::option::of(1u64..3000), proptest::option::of(millis(0..8000)));
    (
        1usize..4,
        proptest::collection::vec(source(), 1..5),
        run,
        impairments,
        any::<u64>(),
        eager,
        any::<[bool; 2]>(),
        happenings,
    )
        .prop_map(|(builders, mut sources, run, impairments, seed, eager, [credit, tells_all], happenings)| {
            // At its slowest, each builder hears of each source once a second.
            let slowest = Duration::from_secs(1) / builders as u32;
            sources.iter_mut().for_each(|source| source.interval = source.interval.map(|i| i.min(slowest)));
            let (starts_alone, events, duration) = run;
            Plan {
                builders,
                starts_alone,
                events,
                duration,
                sources,
                impairments,
                seed,
                eager,
                credit,
                tells_all,
                happenings,
            }
        })
}

fn source() -> impl Strategy<Value = SourcePlan> {
    let interval = (0.0f64..3.0).prop_map(|power| Duration::from_secs_f64(10f64.powf(-power)));
    let interval = prop_oneof![1 => Just(None), 3 => interval.prop_map(Some)];
    let events = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..1000];
    let nature = prop_oneof![
        8 => Just(Nature::Honest),
        1 => (millis(0..10_000), millis(0..20_000)).prop_map(|(from, time)| Nature::Hangs(from, from + time)),
        1 => millis(0..10_000).prop_map(Nature::Dies),
    ];
    let policy = prop_oneof![3 => Just(Policy::Block), 1 => Just(Policy::DropNewest), 1 => Just(Policy::DropOldest)];
    (interval, events, nature, policy, 4u32..9, 1u32..9, 0usize..900).prop_map(
        |(interval, events, nature, policy, slots, records, longest)| SourcePlan {
            interval,
            events,
            slots,
            records,
            longest,
            // A device that never waits would drop without end.
            policy: if interval.is_some() { policy } else { Policy::Block },
            nature,
        },
    )
}

fn happening() -> impl Strategy<Value = Happening> {
    let command = prop::sample::select(vec![
        Command::Start,
        Command::Start,
        Command::Pause,
        Command::Pause,
        Command::Resume,
        Command::Resume,
        Command::Stop,
        Command::Abort,
    ]);
    prop_oneof![
        6 => (0usize..3, command).prop_map(|(builder, command)| Happening::Command(builder, command)),
        1 => (0usize..3).prop_map(Happening::DiskFails),
        1 => (0usize..3, millis(0..3000)).prop_map(|(builder, time)| Happening::Stalls(builder, time)),
        3 => (0usize..5, 0usize..3, any::<bool>()).prop_map(|(source, builder, by)| Happening::Cut(source, builder, by)),
    ]
}

struct World {
    network: Network,
    sources: Vec<Source>,
    nodes: Vec<Node>,
    stalls: Duration,
}

impl World {
    fn new(plan: &Plan) -> Self {
        let network = Network::new(plan.impairments, plan.seed);
        let kind = network.kind();
        let addresses: Vec<Address> =
            (0..plan.builders).map(|index| Address::new(kind, &format!("b{index}")).unwrap()).collect();
        let source = |(index, source): (usize, &SourcePlan)| Source::new(index, source, &addresses);
        let node = |(index, address): (usize, &Address)| Node::new(index, address, plan);
        Self {
            sources: plan.sources.iter().enumerate().map(source).collect(),
            nodes: addresses.iter().enumerate().map(node).collect(),
            network,
            stalls: Duration::ZERO,
        }
    }

    fn take_its_course(&mut self, plan: &Plan) {
        let mut happenings = plan.happenings.clone();
        happenings.sort_by_key(|(at, _)| *at);
        let mut happenings = happenings.into_iter().peekable();
        let mut last_word = Some(LAST_WORD);
        while self.nodes.iter().any(|node| !node.over) {
            let now = self.network.now();
            while let Some((_, happening)) = happenings.next_if(|(at, _)| *at <= now) {
                self.happens(happening, now);
            }
            if last_word.take_if(|at| *at <= now).is_some() {
                self.say_the_last_word(plan.tells_all, now);
            }
            self.turn();
            let next = happenings.peek().map(|(at, _)| *at).into_iter().chain(last_word);
            let next = next.chain(self.sources.iter().filter_map(|source| source.next_time(now)));
            let next = next.chain(self.nodes.iter().filter_map(|node| node.next_time(now)));
            self.network.advance_to(next.min().unwrap_or(now).max(now + GRAIN));
            self.bound();
        }
        self.judge(plan);
    }

    fn turn(&mut self) {
        let now = self.network.now();
        self.sources.iter_mut().for_each(|source| source.turn(now));
        self.nodes.iter_mut().for_each(|node| node.turn(now));
    }

    fn happens(&mut self, happening: Happening, now: Duration) {
        let (builders, sources) = (self.nodes.len(), self.sources.len());
        match happening {
            Happening::Command(node, command) => self.nodes[node % builders].command(command, now),
            Happening::DiskFails(node) => self.nodes[node % builders].disk_fails(now),
            Happening::Stalls(node, time) => {
                self.stalls += time;
                self.nodes[node % builders].disk_stalls(now + time);
            }
            Happening::Cut(source, node, by_builder) => {
                let (source, node) = (source % sources, node % builders);
                if by_builder {
                    if let Some(connection) = self.nodes[node].sources[source].connection {
                        self.nodes[node].close(connection, &LinkError::Closed, now);
                    }
                } else if self.sources[source].is_connected(node) {
                    self.sources[source].lost(node, &LinkError::Closed, now);
                }
            }
        }
    }

    fn say_the_last_word(&mut self, to_all: bool, now: Duration) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let ends = node.over || matches!(node.control.state(), State::Stopping | State::Closing);
            if !ends && (to_all || index == 0) {
                node.command(Command::Stop, now);
            }
        }
    }

    /// Nobody takes longer to end than it may.
    fn bound(&self) {
        let now = self.network.now();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.over) {
            // One that does not lead waits for the one that does, and then as long again.
            let bound = self.stalls + if index == 0 { BOUND } else { 2 * BOUND };
            let told = node.told.unwrap_or(LAST_WORD + BOUND);
            assert!(
                now <= told + bound,
                "builder {index} was told to end at {told:?}, and it is {now:?}: {:?}",
                node.control
            );
        }
    }

    fn judge(&self, plan: &Plan) {
        for (index, node) in self.nodes.iter().enumerate() {
            for pair in node.states.windows(2) {
                assert!(follows(pair[0], pair[1]), "builder {index}: {:?}", node.states);
            }
            assert_eq!(node.control.state(), State::Idle, "builder {index}: {:?}", node.states);
            let last = node.closed.last().copied();
            assert!(
                last.is_none_or(|last| last < node.end),
                "builder {index} closed {last:?}, and ended at {}",
                node.end
            );
            let ledger = node.ledger();
            for (source, entry) in ledger.sources.iter().enumerate() {
                let who = || format!("source {source} at builder {index}: {entry:#?}");
                assert_eq!(entry.unaccounted, 0, "{}", who());
                assert_eq!(entry.corrupt, 0, "{}", who());
                let books = &self.sources[source].builders[index].accounts;
                assert!(!entry.final_counters || entry.accepted == books.accepted, "{books:?} {}", who());
            }
        }
        let honest = |source: &Source| source.plan.nature == Nature::Honest;
        // Who is cut off by one builder, or waits for one that is gone, may be late at the others.
        let undisturbed = plan.happenings.iter().all(|(_, happening)| {
            matches!(
                happening,
                Happening::Command(_, Command::Start | Command::Pause | Command::Resume | Command::Stop)
            )
        });
        let begun = self.nodes.iter().all(|node| !node.left && !node.aborted);
        if undisturbed && begun {
            for source in self.sources.iter().filter(|source| honest(source)) {
                let expelled = self.nodes.iter().flat_map(|node| &node.expelled).find(|(at, _)| *at == source.index);
                assert!(expelled.is_none(), "{expelled:?} {source:?}");
            }
        }
        if undisturbed && begun && self.sources.iter().all(honest) {
            for node in &self.nodes {
                let ledger = node.ledger();
                assert!(ledger.sources.iter().all(|entry| entry.lost == 0 && entry.final_counters), "{ledger:#?}");
            }
            // One whose device has no more does not hear where the run ends. And where the run ends at the slowest
            // source, that one's final counters may reach a builder before most sources have told it so: meanwhile it
            // closes events behind that.
            let ends: Vec<u64> = self.nodes.iter().map(|node| node.end).collect();
            let is_level = self.nodes[0].ledger().sources.iter().all(|entry| entry.beyond_end == 0);
            let relayed = is_level && plan.sources.iter().all(|source| source.events == u64::MAX);
            assert!(!relayed || ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
        }
    }
}

/// Whether a run may go from one state to the other.
fn follows(from: State, to: State) -> bool {
    use State::{Armed, Closing, Configured, Error, Idle, Paused, Pausing, Running, Starting, Stopping};
    match from {
        Idle => to == Configured,
        Configured => matches!(to, Armed | Starting | Running | Idle),
        Armed => matches!(to, Configured | Starting | Running | Idle),
        Starting => matches!(to, Running | Idle),
        Running => matches!(to, Pausing | Paused | Stopping | Closing | Idle),
        Pausing => matches!(to, Running | Paused | Stopping | Closing | Idle),
        Paused => matches!(to, Running | Pausing | Stopping | Closing | Idle),
        Stopping => matches!(to, Closing | Idle),
        Closing => to == Idle,
        Error => false,
    }
}

/// A builder whose disk was behind lets deadlines pass again once it waits for no block, be it that who was to be asked
/// is gone: here the only source that has more leaves with the other builder.
#[test]
fn a_builder_that_was_short_of_blocks_does_not_wait_for_a_source_that_is_gone() {
    let source = |slots, longest| SourcePlan {
        interval: None,
        events: u64::MAX,
        slots,
        records: 2,
        longest,
        policy: Policy::Block,
        nature: Nature::Honest,
    };
    let (delay, jitter) = (Duration::from_micros(8745), Duration::from_micros(13491));
    let plan = Plan {
        builders: 2,
        starts_alone: true,
        events: Some(309),
        duration: None,
        sources: vec![source(5, 283), source(7, 796)],
        impairments: Impairments { lost: 15, doubled: 5, delay, jitter },
        seed: 54_237_133_304_747_423,
        eager: Eager { credit: 0, limit: 0 },
        credit: false,
        tells_all: false,
        happenings: vec![
            (Duration::ZERO, Happening::Stalls(0, Duration::from_millis(2451))),
            (Duration::from_millis(1480), Happening::Command(1, Command::Abort)),
        ],
    };
    World::new(&plan).take_its_course(&plan);
}
