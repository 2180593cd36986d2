//! Whole runs under schedules of commands, deaths, reconnections, disk failures and clocks that jump, with sources from
//! 1 Hz to free-running, some of which lie: every run ends within its bounds, wherever it was ordered to, and no honest
//! source is expelled.

use proptest::prelude::*;
use std::time::Duration;
use thalweg_core::control::{Boundary, Cause, Command, Config, Facts, Order, RunControl, SourceCommand, State};
use thalweg_wire::EventId;

/// Time of one step of the simulation.
const STEP: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(2);
/// Number of events by which a source can be ahead of the slowest.
const AHEAD: f64 = 10_000.0;
/// Number of events that a source's slots hold.
const ROOM: u64 = 1000;
/// Time after which a run that was ordered to end is over: to answer, to go on, to be cut, to be given up.
const BOUND: Duration = Duration::from_secs(2 + 10 + 2 + 2);

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_run_ends_within_its_bounds(plan in plan()) {
        World::new(&plan).take_its_course(&plan);
    }
}

/// Plays a plan with one builder and sources that run free.
fn play(natures: &[Nature], happenings: &[(usize, Happening)]) {
    let source = |nature: &Nature| SourcePlan { rate: 1e6, events: u64::MAX, nature: *nature };
    let sources = natures.iter().map(source).collect();
    let (builders, happenings) = (1, happenings.to_vec());
    let plan = Plan { builders, starts_alone: true, events: None, duration: None, sources, happenings };
    World::new(&plan).take_its_course(&plan);
}

/// A source that offers more and more of the next run, and delivers nothing of this one, makes no progress.
#[test]
fn a_source_that_withholds_data_at_a_boundary_is_given_up_although_it_goes_on() {
    let next_run = Happening::Boundary(0, Boundary::NextRun);
    play(&[Nature::Withholds, Nature::Hangs(24)], &[(1, next_run), (23, Happening::DiskFails(0))]);
}

/// The source that was furthest at the first boundary is gone at the second.
#[test]
fn boundaries_do_not_go_back() {
    let (step, next_run) = (Happening::Boundary(0, Boundary::Step), Happening::Boundary(0, Boundary::NextRun));
    play(&[Nature::Dies(25), Nature::Hangs(0)], &[(1, step), (27, step)]);
    play(&[Nature::Dies(75)], &[(1, next_run), (96, next_run)]);
}

#[derive(Debug, Clone)]
struct Plan {
    builders: usize,
    starts_alone: bool,
    events: Option<u64>,
    duration: Option<Duration>,
    sources: Vec<SourcePlan>,
    /// Steps, and what happens at each.
    happenings: Vec<(usize, Happening)>,
}

#[derive(Debug, Clone)]
struct SourcePlan {
    /// Events per second.
    rate: f64,
    /// Number of events of its device.
    events: u64,
    nature: Nature,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    Honest,
    /// Connects, and sends nothing any more from this step on.
    Hangs(usize),
    /// Is gone from this step on.
    Dies(usize),
    /// Is disconnected from one step to the other, and then goes on.
    Away(usize, usize),
    /// Claims to have reached this event, and to have been ordered to end there.
    Claims(u64),
    /// Offers events far ahead.
    Announces(u64),
    /// Owes data and never delivers.
    Withholds,
}

#[derive(Debug, Clone, Copy)]
enum Happening {
    Command(usize, Command),
    /// A step, or the next run, is asked for at a builder.
    Boundary(usize, Boundary),
    DiskFails(usize),
    /// The disk of a builder takes nothing for this number of steps.
    Stalls(usize, usize),
    /// The clock of a builder jumps by this number of seconds.
    Jumps(usize, i64),
}

fn plan() -> impl Strategy<Value = Plan> {
    let builders = 1usize..4;
    let sources = proptest::collection::vec(source(), 1..6);
    let happenings = proptest::collection::vec((0usize..120, happening()), 0..8);
    let events = proptest::option::of(1u64..20_000);
    let duration = proptest::option::of((0u64..10_000).prop_map(Duration::from_millis));
    (builders, any::<bool>(), events, duration, sources, happenings).prop_map(
        |(builders, starts_alone, events, duration, sources, happenings)| Plan {
            builders,
            starts_alone,
            events,
            duration,
            sources,
            happenings,
        },
    )
}

fn source() -> impl Strategy<Value = SourcePlan> {
    let rate = prop_oneof![Just(1e6), (0.0f64..6.0).prop_map(|power| 10f64.powf(power))];
    let events = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..1000];
    let strange = prop_oneof![Just(0), Just(1 << 32), Just(1 << 40), Just(1 << 63), Just(u64::MAX)];
    let nature = prop_oneof![
        8 => Just(Nature::Honest),
        1 => (0usize..120).prop_map(Nature::Hangs),
        1 => (0usize..120).prop_map(Nature::Dies),
        1 => (0usize..120, 1usize..15).prop_map(|(from, steps)| Nature::Away(from, from + steps)),
        1 => strange.clone().prop_map(Nature::Claims),
        1 => strange.prop_map(Nature::Announces),
        1 => Just(Nature::Withholds),
    ];
    (rate, events, nature).prop_map(|(rate, events, nature)| SourcePlan { rate, events, nature })
}

fn happening() -> impl Strategy<Value = Happening> {
    let command = prop::sample::select(vec![
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
        3 => (0usize..2, prop::sample::select(vec![Boundary::Step, Boundary::NextRun, Boundary::NextRun]))
            .prop_map(|(builder, boundary)| Happening::Boundary(builder, boundary)),
        1 => (0usize..3).prop_map(Happening::DiskFails),
        1 => (0usize..3, 1usize..30).prop_map(|(builder, steps)| Happening::Stalls(builder, steps)),
        1 => (0usize..3, -4000i64..4000).prop_map(|(builder, seconds)| Happening::Jumps(builder, seconds)),
    ]
}

/// State of a source, as far as builders see it.
#[derive(Debug, Clone)]
struct Source {
    plan: SourcePlan,
    next: f64,
    /// Builders that have announced the beginning of the run.
    started: Vec<bool>,
    paused: bool,
    end: u64,
    /// First event of the next run, while the source is on the way to it.
    crosses_at: Option<u64>,
    over: bool,
    connected: bool,
    /// True if a builder has refused it for good.
    refused: bool,
    gone_since: usize,
    /// True for each builder that has given it up.
    out: Vec<bool>,
}

impl Source {
    fn is_honest(&self) -> bool {
        self.plan.nature == Nature::Honest
    }

    fn next(&self) -> u64 {
        self.next as u64
    }

    fn answers(&self, step: usize) -> bool {
        self.connected && !matches!(self.plan.nature, Nature::Hangs(from) if step >= from)
    }
}

#[derive(Debug)]
struct Node {
    control: RunControl,
    /// Offset of its clock, in seconds.
    offset: i64,
    end: u64,
    offered: Vec<u64>,
    /// Number of steps for which each source was silent, without those in which all were to be.
    silent: Vec<u32>,
    ended: Vec<bool>,
    /// First event of the next run, while there is one to come, and the sources that are in it.
    boundary: Option<u64>,
    crossed: Vec<bool>,
    /// Beginnings of the runs so far, and the steps.
    runs: Vec<u64>,
    steps: Vec<u64>,
    abandoned: bool,
    stalled_until: usize,
    /// Step at which it was ordered to end.
    told: Option<usize>,
    /// True if that was on the way to the next run, which has to begin before it can end.
    told_on_the_way: bool,
    disk_failed: bool,
    states: Vec<State>,
    over: bool,
}

impl Node {
    fn note_told(&mut self, step: usize) {
        self.told_on_the_way |= self.told.is_none() && self.control.run_state() == State::Switching;
        self.told.get_or_insert(step);
    }
}

struct Seen<'a> {
    node: (&'a [u64], &'a [bool], u64, bool),
    boundary: Option<u64>,
    crossed: &'a [bool],
    sources: &'a [Source],
    builder: usize,
    silent: &'a [u32],
}

impl Facts for Seen<'_> {
    fn offered_until(&self, source: usize) -> EventId {
        EventId(self.node.0[source])
    }

    fn closed_until(&self) -> EventId {
        let silent = |index: usize| STEP * self.silent[index] > DEADLINE;
        let waits = |index: &usize| !self.sources[*index].out[self.builder] && !self.node.1[*index] && !silent(*index);
        let known = (0..self.sources.len()).filter(waits).map(|index| self.node.0[index]).min();
        let all = self
            .sources
            .iter()
            .zip(self.node.0)
            .filter(|(s, _)| !s.out[self.builder])
            .map(|(_, offered)| *offered)
            .max();
        EventId(known.or(all).unwrap_or(0).min(self.node.2).min(self.boundary.unwrap_or(u64::MAX)))
    }

    fn is_settled(&self, source: usize) -> bool {
        let has_left = self.node.1[source] || self.boundary.is_some() && self.crossed[source];
        self.sources[source].out[self.builder] || has_left && !self.owes_bytes(source)
    }

    fn owes_bytes(&self, source: usize) -> bool {
        self.sources[source].plan.nature == Nature::Withholds && self.node.0[source] > 0
    }

    fn is_finished(&self) -> bool {
        self.node.3 || (0..self.sources.len()).all(|source| self.is_settled(source))
    }
}

struct World {
    step: usize,
    sources: Vec<Source>,
    nodes: Vec<Node>,
}

impl World {
    fn new(plan: &Plan) -> Self {
        let source = |source: &SourcePlan| Source {
            plan: source.clone(),
            next: 0.0,
            started: vec![false; plan.builders],
            paused: false,
            end: u64::MAX,
            crosses_at: None,
            over: false,
            connected: true,
            refused: false,
            gone_since: 0,
            out: vec![false; plan.builders],
        };
        let count = plan.sources.len();
        let node = |index: usize| {
            let config = Config {
                sources: count,
                builders: plan.builders as u32,
                leads: index == 0,
                // Only the leading builder is commanded to start.
                starts_alone: plan.starts_alone || index > 0,
                first: EventId(0),
                end: plan.events.map(EventId),
                duration: plan.duration,
                timeout: TIMEOUT,
            };
            let mut control = RunControl::new(config);
            control.handle_configured();
            (0..count).for_each(|source| control.source_connected(source, ROOM));
            Node {
                control,
                offset: 10_000,
                end: plan.events.unwrap_or(u64::MAX),
                offered: vec![0; count],
                silent: vec![0; count],
                ended: vec![false; count],
                boundary: None,
                crossed: vec![false; count],
                runs: vec![0],
                steps: Vec::new(),
                abandoned: false,
                stalled_until: 0,
                told: None,
                told_on_the_way: false,
                disk_failed: false,
                states: Vec::new(),
                over: false,
            }
        };
        Self {
            step: 0,
            sources: plan.sources.iter().map(source).collect(),
            nodes: (0..plan.builders).map(node).collect(),
        }
    }

    fn take_its_course(&mut self, plan: &Plan) {
        // Whatever happened, after these steps the leader is commanded to stop, and all builders come to an end.
        let last_word = 150;
        let limit = last_word + 3 * (BOUND.as_millis() / STEP.as_millis()) as usize + 60;
        while self.nodes.iter().any(|node| !node.over) {
            assert!(
                self.step < limit,
                "never ends: {:?}",
                self.nodes.iter().map(|n| n.control.run_state()).collect::<Vec<_>>()
            );
            let now = self.step;
            for (_, happening) in plan.happenings.iter().filter(|(step, _)| *step == now) {
                self.happens(*happening);
            }
            if self.step == last_word {
                self.command(0, Command::Stop);
                // Builders whose leader never began, or is gone, are commanded by their own users.
                (1..self.nodes.len()).for_each(|node| self.command(node, Command::Stop));
            }
            self.produce();
            for node in 0..self.nodes.len() {
                self.turn(node);
            }
            self.step += 1;
        }
        self.judge(plan);
    }

    fn happens(&mut self, happening: Happening) {
        let count = self.nodes.len();
        match happening {
            Happening::Command(node, command) => self.command(node % count, command),
            Happening::Boundary(node, boundary) if node % count == 0 && count == 1 || boundary == Boundary::Step => {
                let node = node % count;
                let Self { nodes, sources, .. } = self;
                let Node { control, offered, ended, boundary: next, crossed, end, abandoned, silent, .. } =
                    &mut nodes[node];
                let facts = Seen {
                    node: (offered, ended, *end, *abandoned),
                    boundary: *next,
                    crossed,
                    sources,
                    builder: node,
                    silent,
                };
                let _ = control.request_boundary(boundary, &facts);
            }
            // With several builders the node refuses it.
            Happening::Boundary(..) => {}
            Happening::DiskFails(node) => {
                let at = self.step;
                let node = &mut self.nodes[node % count];
                if node.control.run_state().has_begun() {
                    node.note_told(at);
                    node.disk_failed = true;
                }
            }
            Happening::Stalls(node, steps) => {
                let until = self.step + steps;
                self.nodes[node % count].stalled_until = until;
            }
            Happening::Jumps(node, seconds) => self.nodes[node % count].offset += seconds,
        }
    }

    fn command(&mut self, node: usize, command: Command) {
        let (step, node) = (self.step, &mut self.nodes[node]);
        let begun = node.control.run_state().has_begun();
        let on_the_way = node.control.run_state() == State::Switching;
        if node.control.execute_command(command).is_ok() && begun && matches!(command, Command::Stop | Command::Abort) {
            node.told_on_the_way |= node.told.is_none() && on_the_way;
            node.told.get_or_insert(step);
        }
    }

    /// Sources accept events, and offer them.
    fn produce(&mut self) {
        let slowest = self
            .sources
            .iter()
            .filter(|s| !s.over && !s.out[0] && s.answers(self.step))
            .map(|s| s.next)
            .fold(f64::MAX, f64::min);
        let step = self.step;
        for source in 0..self.sources.len() {
            self.come_and_go(source);
            let it = &mut self.sources[source];
            if !it.answers(step) || it.paused || it.over || !it.started.iter().all(|started| *started) {
                continue;
            }
            let limit = (it.end.min(it.plan.events)) as f64;
            it.next = (it.next + it.plan.rate * STEP.as_secs_f64()).min(slowest + AHEAD).min(limit).max(it.next);
            let next = match it.plan.nature {
                Nature::Announces(far) => far.max(it.next()),
                _ => it.next(),
            };
            let ends = it.next() >= it.end.min(it.plan.events);
            it.over = ends;
            let crosses = it.crosses_at.take_if(|first| it.next as u64 >= *first && !ends).is_some();
            for (index, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| !node.over) {
                if self.sources[source].out[index] {
                    continue;
                }
                if next > node.offered[source] {
                    if node.offered.iter().all(|offered| *offered == 0) {
                        // The first event is opened now.
                        node.silent.fill(0);
                    }
                    node.offered[source] = next;
                    node.silent[source] = 0;
                }
                if crosses {
                    node.crossed[source] = true;
                    node.control.source_crossed(source);
                }
                if ends && !node.ended[source] {
                    node.ended[source] = true;
                    node.control.source_ended(source);
                }
            }
        }
    }

    fn come_and_go(&mut self, source: usize) {
        let connected = match self.sources[source].plan.nature {
            Nature::Dies(from) => self.step < from,
            Nature::Away(from, until) => !(from..until).contains(&self.step),
            _ => true,
        };
        let connected = connected && !self.sources[source].refused;
        if connected == self.sources[source].connected {
            return;
        }
        self.sources[source].connected = connected;
        self.sources[source].gone_since = self.step;
        for index in 0..self.nodes.len() {
            if self.nodes[index].over || self.sources[source].out[index] {
                continue;
            }
            if connected {
                self.nodes[index].control.source_connected(source, ROOM);
                for tell in self.nodes[index].control.messages_for(source) {
                    self.tell(index, source, tell);
                }
            } else {
                self.nodes[index].control.source_disconnected(source);
            }
        }
    }

    fn turn(&mut self, index: usize) {
        if self.nodes[index].over {
            return;
        }
        self.give_up(index);
        let node = &mut self.nodes[index];
        if node.disk_failed {
            node.control.stop_run(Cause::Failure("the disk is full".into()));
        }
        let stalled = self.step < node.stalled_until;
        node.control.set_held_up(stalled);
        if !stalled && !node.control.holds_sources() {
            node.silent.iter_mut().for_each(|steps| *steps += 1);
        }
        let seconds = u64::try_from(node.offset.max(0)).unwrap_or(0);
        let now = STEP * self.step as u32 + Duration::from_secs(seconds);
        let facts = Seen {
            node: (&node.offered, &node.ended, node.end, node.abandoned),
            boundary: node.boundary,
            crossed: &node.crossed,
            sources: &self.sources,
            builder: index,
            silent: &node.silent,
        };
        node.control.advance_time(now, &facts);
        while let Some(order) = self.nodes[index].control.next_order() {
            self.obey(index, order, now);
        }
        let state = self.nodes[index].control.run_state();
        let before = self.nodes[index].states.last().copied();
        if before != Some(state) {
            self.nodes[index].states.push(state);
        }
        self.bound(index);
    }

    /// Gives up sources that are gone for longer than the deadline, as the event builder does.
    fn give_up(&mut self, index: usize) {
        for source in 0..self.sources.len() {
            let it = &mut self.sources[source];
            let gone = !it.connected && STEP * (self.step - it.gone_since) as u32 > DEADLINE;
            if gone && self.nodes[index].control.run_state().has_begun() && !it.out[index] {
                it.out[index] = true;
                self.nodes[index].control.source_given_up(source);
            }
        }
    }

    fn obey(&mut self, index: usize, order: Order, now: Duration) {
        let step = self.step;
        let node = &mut self.nodes[index];
        match order {
            Order::Begin => {
                node.silent.fill(0);
                let _ = node.control.run_opened(now);
            }
            Order::SourceCommand(source, tell) => self.tell(index, source, tell),
            Order::EndAt(end) => {
                node.end = node.end.min(end.0);
                let honest = self.sources.iter().filter(|source| source.is_honest());
                let furthest = honest.map(|source| source.next() + ROOM + AHEAD as u64).max();
                let claimed = self.sources.iter().any(|source| matches!(source.plan.nature, Nature::Announces(_)));
                if let Some(furthest) = furthest.filter(|_| !claimed) {
                    assert!(end.0 <= furthest.max(self.nodes[index].end), "{end:?} is beyond what anyone can have");
                }
            }
            Order::Expel(source, why) => {
                // The builders that do not lead learn of pauses and ends from the sources that are still connected. Most
                // of those must be sound: honest ones that have ended relay nothing any more, others may.
                let voters = self.sources.iter().filter(|it| it.connected && !(it.is_honest() && it.over));
                let (sound, all) =
                    voters.fold((0, 0), |(sound, all), it| (sound + usize::from(it.is_honest()), all + 1));
                let is_led = index == 0 || 2 * sound > all;
                let it = &mut self.sources[source];
                let produces = it.is_honest() && !it.refused && it.started.iter().all(|started| *started);
                assert!(!(produces && is_led), "{source} was turned out by {index} at {step}: {why}: {it:?} {node:?}");
                it.out[index] = true;
                node.control.source_given_up(source);
            }
            Order::MarkStep(event) => {
                let past = self.sources.iter().filter(|it| it.is_honest() && it.answers(step) && it.connected);
                let furthest = past.map(Source::next).max().unwrap_or(0);
                assert!(event.0 >= furthest, "a step at {event:?} holds what was accepted before, up to {furthest}");
                assert!(node.steps.last().is_none_or(|last| *last <= event.0), "steps go back");
                node.steps.push(event.0);
            }
            Order::PrepareNext(run) => unreachable!("run {} is not this test's subject", run.0),
            Order::SwitchAt(event) => {
                assert!(event.0 >= *node.runs.last().unwrap(), "a run begins before the one before it");
                node.boundary = Some(event.0);
                node.crossed.fill(false);
                node.end = u64::MAX;
            }
            Order::BeginNext => {
                node.runs.extend(node.boundary.take());
                node.abandoned = false;
                let _ = node.control.next_run_opened();
            }
            Order::Abandon => node.abandoned = true,
            Order::Close => {
                node.control.run_closed();
                node.over = true;
            }
            Order::Leave(_) => {
                node.over = true;
                self.sources.iter_mut().for_each(|source| source.refused = true);
            }
        }
    }

    fn tell(&mut self, from: usize, source: usize, tell: SourceCommand) {
        let it = &mut self.sources[source];
        if !it.answers(self.step) {
            return;
        }
        let claim = match it.plan.nature {
            Nature::Claims(event) => Some(EventId(event)),
            _ => None,
        };
        match tell {
            SourceCommand::Start => it.started[from] = true,
            SourceCommand::Pause => {
                // Only the leading builder makes sources wait.
                it.paused |= from == 0;
                let next = claim.unwrap_or(EventId(it.next()));
                // All builders are informed when the leader asks, and the leader when another does.
                for (index, node) in self.nodes.iter_mut().enumerate() {
                    if index == from || index == 0 || from == 0 {
                        node.control.source_paused(source, next, from as u32);
                    }
                }
            }
            SourceCommand::Resume => {
                it.paused = false;
                self.nodes[1..].iter_mut().for_each(|node| node.control.handle_relayed_run(source));
            }
            SourceCommand::NextRun { first, here } => {
                it.paused = false;
                it.end = u64::MAX;
                if !self.nodes[from].crossed[source] {
                    it.crosses_at = Some(if here { it.next() } else { first.0 });
                }
            }
            SourceCommand::StopAt { end, end_here } => {
                it.paused = false;
                it.end = if end_here { it.next() } else { end.0 };
                for node in &mut self.nodes[1..] {
                    node.control.handle_relayed_end(source, claim.unwrap_or(end));
                }
            }
        }
    }

    /// Checks that no builder takes longer to end than it may, unless its own disk holds it up.
    fn bound(&mut self, index: usize) {
        let step = self.step;
        let told = self.nodes[index].told;
        if let Some(told) = told.filter(|_| !self.nodes[index].over) {
            let stalls = self.nodes[index].stalled_until.saturating_sub(told);
            let lasted = STEP * u32::try_from(step - told - stalls.min(step - told)).unwrap_or(u32::MAX);
            // A builder that does not lead waits for the one that does, and then as long again.
            let bound = if index == 0 && !self.nodes[index].told_on_the_way { BOUND } else { 2 * BOUND };
            assert!(lasted <= bound, "builder {index} was told to end {lasted:?} ago: {:?}", self.nodes[index].control);
        }
    }

    fn judge(&self, plan: &Plan) {
        for node in &self.nodes {
            for pair in node.states.windows(2) {
                assert!(follows(pair[0], pair[1]), "{:?}", node.states);
            }
            assert!(matches!(node.control.run_state(), State::Idle), "{:?}", node.states);
        }
        // If nothing goes wrong, all builders end at the same event.
        let quiet = plan.sources.iter().all(|source| source.nature == Nature::Honest) && plan.happenings.is_empty();
        if quiet && plan.starts_alone {
            let ends: Vec<u64> = self.nodes.iter().map(|node| node.end).collect();
            let relayed = plan.sources.iter().all(|source| source.events == u64::MAX);
            assert!(!relayed || ends.windows(2).all(|pair| pair[0] == pair[1]), "{ends:?}");
        }
    }
}

/// Returns whether a run may go from one state to the other, as drawn in `docs/run-control.md`.
fn follows(from: State, to: State) -> bool {
    use State::{Armed, Closing, Configured, Idle, Paused, Pausing, Running, Starting, Stopping, Switching};
    match from {
        Idle => to == Configured,
        // Commands given while the run is being opened are executed at once when it is open.
        Configured => matches!(to, Armed | Starting | Running | Pausing | Stopping | Closing | Idle),
        Armed => matches!(to, Configured | Starting | Running | Pausing | Stopping | Closing | Idle),
        Starting => matches!(to, Running | Pausing | Stopping | Closing | Idle),
        Running => matches!(to, Pausing | Paused | Switching | Stopping | Closing | Idle),
        // Commands given until the next run has begun are executed at once then.
        Switching => matches!(to, Running | Pausing | Paused | Stopping | Closing | Idle),
        Pausing => matches!(to, Running | Paused | Switching | Stopping | Closing | Idle),
        Paused => matches!(to, Running | Pausing | Switching | Stopping | Closing | Idle),
        Stopping => matches!(to, Closing | Idle),
        Closing => to == Idle,
        State::Error => false,
    }
}
