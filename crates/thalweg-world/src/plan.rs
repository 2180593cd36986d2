//! A generated system, with the faults that happen to it.

use crate::random::Random;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use thalweg_core::control::Command;
use thalweg_link::memory::Impairments;
use thalweg_node::Policy;
use thalweg_store::DiskFault;

/// Transport of fragments from sources to builders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Datagrams, each of which may be lost.
    Frames,
    /// Shared memory.
    Memory,
    /// TCP, through the kernel's loopback.
    Stream,
}

/// A system with its faults, generated from a seed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Seed from which the plan, and the behaviour of devices, network and disks, is generated.
    pub seed: u64,
    /// Number of builders.
    pub builders: usize,
    /// Sources of the system.
    pub sources: Vec<SourcePlan>,
    /// Transport of their fragments.
    pub medium: Medium,
    /// True if events are assigned to builders that have room, instead of by number.
    pub by_room: bool,
    /// True if runs are recorded.
    pub record: bool,
    /// Number of events after which the run ends.
    pub events: Option<u64>,
    /// Time after which the run ends.
    pub duration: Option<Duration>,
    /// Share of events that level 2 and the event filter accept.
    pub levels: [Option<f64>; 2],
    /// Number of bytes that a builder asks for at a time; `None` to derive it from the capacity of the link.
    pub window: Option<u64>,
    /// Number of bytes that a source may send eagerly.
    pub eager: u64,
    /// Number of blocks of a builder, and size of each in bytes.
    pub blocks: (u32, u64),
    /// Size of a segment of the run's files in bytes.
    pub segment: u64,
    /// Impairments of the network from the beginning.
    pub network: Impairments,
    /// Index of the source that is replaced by a peer that breaks the protocol.
    pub hostile: Option<usize>,
    /// True if that peer offers more than it has slots for.
    pub floods: bool,
    /// Shortest time that a step takes.
    pub step: Duration,
    /// Time of the command to stop that all builders get in any case.
    pub last_word: Duration,
    /// Time between triggers, if all sources are instruments that are numbered by time.
    pub period: Option<Duration>,
    /// Faults and commands, with their times.
    pub faults: Vec<(Duration, Fault)>,
}

/// A source of the plan.
#[derive(Debug, Clone)]
pub struct SourcePlan {
    /// Number of events per second; as fast as they are taken if `None`.
    pub rate: Option<f64>,
    /// Number of events of its device.
    pub events: u64,
    /// Number of slots, and size of each in bytes.
    pub slots: (u32, u64),
    /// Size of the longest payload in bytes.
    pub longest: usize,
    /// Policy when all slots are full.
    pub policy: Policy,
    /// True if its device is self-driven: it is given slots, and counts the events that it loses without one.
    pub acquires: bool,
    /// Instrument that takes the place of the device, and sends datagrams numbered by its counter or its times.
    pub instrument: Option<InstrumentPlan>,
}

/// Layout of an instrument's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramKind {
    /// A count, a time, and a payload.
    Fixed,
    /// SPEAD heaps of one packet.
    Spead,
    /// VDIF frames, numbered by their time.
    Vdif,
    /// VDIF frames after a sequence number.
    VdifSequence,
    /// VITA-49 packets, with a counter of 4 bits.
    Vita49,
    /// VITA-49 packets with a known number per second.
    Vita49Rate,
}

impl DatagramKind {
    /// All layouts.
    pub const ALL: [Self; 6] =
        [Self::Fixed, Self::Spead, Self::Vdif, Self::VdifSequence, Self::Vita49, Self::Vita49Rate];

    /// Returns the number of bits of its counter, if the format fixes it.
    fn fixed_counter_bits(self) -> Option<u32> {
        match self {
            Self::Fixed => None,
            Self::Spead => Some(40),
            Self::Vdif | Self::VdifSequence => Some(64),
            Self::Vita49 | Self::Vita49Rate => Some(4),
        }
    }

    /// Returns whether numbers follow from times, at an integer rate.
    pub(crate) fn is_absolute(self) -> bool {
        matches!(self, Self::Vdif | Self::Vita49Rate)
    }
}

/// An instrument that sends datagrams, with the faults of its cable.
#[derive(Debug, Clone)]
pub struct InstrumentPlan {
    /// Layout of its datagrams.
    pub kind: DatagramKind,
    /// Number of bits of its counter.
    pub bits: u32,
    /// Increment of its counter per trigger.
    pub step: u64,
    /// Counter value of the first trigger.
    pub first: u64,
    /// True if its source knows that value.
    pub first_is_stated: bool,
    /// Number of lost datagrams in a thousand.
    pub lost: u64,
    /// Largest number of consecutive losses.
    pub longest_loss: u64,
    /// Number of duplicated datagrams in a thousand.
    pub doubled: u64,
    /// Number of datagrams in a thousand that are overtaken by up to three others.
    pub overtaken: u64,
    /// Number of datagrams in a thousand that come with an additional forged one of another count.
    pub forged: u64,
    /// Number of datagrams that the source's port holds.
    pub port: usize,
    /// Clock, if all instruments share its triggers; they are numbered by time unless `irregular` is set.
    pub clock: Option<ClockPlan>,
    /// True if triggers are spaced unevenly, and numbered by count.
    pub irregular: bool,
}

/// The clock of an instrument.
#[derive(Debug, Clone, Copy)]
pub struct ClockPlan {
    /// Offset in nanoseconds.
    pub off: i64,
    /// Drift in parts per million; positive if it is fast.
    pub drift_ppm: i64,
    /// Largest delay of a time, in nanoseconds.
    pub jitter: u64,
    /// Number of meaningless times in a thousand.
    pub wild: u64,
}

/// A node of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeName {
    /// A builder, by its index.
    Builder(usize),
    /// A source, by its index.
    Source(usize),
}

/// A fault or a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A builder receives a command.
    Command(usize, Command),
    /// The next run is asked for at a builder.
    NextRun(usize),
    /// A step is marked at a builder.
    Step(usize),
    /// The network has these impairments from now on.
    Network(Impairments),
    /// A node is stopped for this time (SIGSTOP, SIGCONT).
    Stopped(NodeName, Duration),
    /// A node is killed (SIGKILL).
    Killed(NodeName),
    /// A source is killed, and started anew after this time.
    Restarted(usize, Duration),
    /// The power of a builder's host fails: the builder is gone, and its disk keeps only synced data.
    Unpowered(usize),
    /// The network between a source and a builder is interrupted for this time.
    Parted(usize, usize, Duration),
    /// The disk of a builder has this fault from now on, or works again.
    Disk(usize, Option<DiskFault>),
    /// The disk of a builder is stuck for this time.
    DiskStuck(usize, Duration),
    /// The device of a source, which is self-driven, is unplugged for this time.
    Unplugged(usize, Duration),
    /// The instrument of a source is switched off for this time, and counts anew afterwards.
    CountsAnew(usize, Duration),
    /// The clock of a source's instrument is changed, by this number of nanoseconds.
    ClockSet(usize, i64),
    /// The date of a node's host is set, to this offset in milliseconds from the true one.
    Date(NodeName, i64),
}

/// Time of the command to stop that all builders get in any case.
const LAST_WORD: Duration = Duration::from_secs(8);
/// Time by which a run has begun at all builders, without faults.
const MAX_START_TIME: Duration = Duration::from_secs(2);
/// Seeds below this one generate the first kind of plans, so that seeds that are kept keep their meaning.
const FIRST_SEEDS: u64 = 1 << 20;
/// Seeds below this one, and from [`FIRST_SEEDS`] on, generate the second kind.
const SECOND_SEEDS: u64 = 30_128_000_000_000_000;
/// Seeds below this one generate plans without instruments.
const THIRD_SEEDS: u64 = 30_129_600_000_000_000;
/// Seeds below this one generate plans in which instruments do not share triggers.
const FOURTH_SEEDS: u64 = 30_170_000_000_000_000;
/// Seeds below this one generate plans in which the leading builder dies only by chance.
const FIFTH_SEEDS: u64 = 60_261_000_000_000_000;
/// Seeds below this one generate plans in which no run follows another.
const SIXTH_SEEDS: u64 = 60_262_470_000_000_000;
/// `deadline` of all builders.
pub(crate) const BUILDER_DEADLINE: Duration = Duration::from_secs(2);
/// Largest number of lost datagrams in a thousand with which a run still has to be complete.
const MOST_LOST: u32 = 100;
/// `open_events` of all builders.
const MOST_OPEN: u64 = 64;
/// `run.timeout` of all plans.
pub(crate) const RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns whether a run has to be complete over a network with these impairments.
fn is_bearable(network: &Impairments) -> bool {
    network.lost + network.damaged_ppm / 1000 <= MOST_LOST
}

impl Plan {
    /// Generates the plan of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let builders = if random.once_in(2) { 1 } else { random.draw_logarithmic(1..9) as usize };
        let most = if random.once_in(20) { 51 } else { 7 };
        let count = random.draw_logarithmic(1..most);
        let medium = if random.once_in(3) { Medium::Memory } else { Medium::Frames };
        let events = (!random.once_in(4)).then(|| random.draw_logarithmic(1..3000));
        let sources = (0..count).map(|_| SourcePlan::draw_source(&mut random, builders)).collect::<Vec<_>>();
        let levels = [(); 2].map(|()| random.once_in(6).then(|| random.pick_one(&[0.0, 0.1, 0.5, 0.9, 1.0])));
        let network = if random.once_in(3) { gentle_network(&mut random) } else { foul_network(&mut random) };
        let longest = sources.iter().map(|source| source.slots.1).max().unwrap_or(0);
        let block = (longest + (256 << 10)).next_multiple_of(4096) + 4096 * random.draw_from(0..16);
        let mut plan = Self {
            seed,
            builders,
            medium,
            by_room: builders > 1 && random.once_in(3),
            record: !random.once_in(8),
            events,
            duration: random.once_in(4).then(|| random.draw_milliseconds(0..8000)),
            levels,
            window: random.once_in(2).then(|| random.draw_logarithmic(4096..1 << 20)),
            eager: random.pick_one(&[0, 4096, 65536]),
            blocks: (u32::try_from(random.draw_from(3..12)).unwrap_or(3), block),
            segment: random.draw_logarithmic(block..block * 64),
            network,
            hostile: None,
            floods: false,
            step: random.pick_one(&[100, 500, 2000].map(Duration::from_micros)),
            last_word: LAST_WORD,
            period: None,
            faults: Vec::new(),
            sources,
        };
        let count = if random.once_in(4) { 0 } else { random.draw_logarithmic(1..10) };
        for _ in 0..count {
            let at = Duration::from_millis(random.draw_logarithmic(20..8000));
            let fault = plan.draw_fault(&mut random);
            plan.faults.push((at, fault));
        }
        if seed >= FIRST_SEEDS {
            plan.add_first_extras(&mut random);
        }
        if seed >= SECOND_SEEDS {
            plan.add_rare_ends(&mut random);
        }
        if seed >= THIRD_SEEDS && random.once_in(3) {
            plan.add_instruments(&mut random);
            if seed >= FOURTH_SEEDS && plan.period.is_none() && random.once_in(2) {
                plan.share_triggers(&mut random);
            }
        }
        if seed >= FIFTH_SEEDS && random.once_in(8) {
            plan.lose_leader(&mut random);
        }
        if seed >= SIXTH_SEEDS && plan.builders == 1 && random.once_in(2) {
            plan.add_next_runs(&mut random);
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Draws the additions for seeds from [`FIRST_SEEDS`] on.
    fn add_first_extras(&mut self, random: &mut Random) {
        if random.once_in(4) {
            self.medium = Medium::Stream;
        }
        if self.medium == Medium::Frames && random.once_in(3) {
            self.network.damaged_ppm = random.draw_logarithmic(1..50_000) as u32;
        }
        if random.once_in(6) {
            self.hostile = Some(random.draw_from(0..self.sources.len() as u64) as usize);
        }
        for at in 0..self.sources.len() {
            let source = &mut self.sources[at];
            // A self-driven device has a rate of its own, and slots for one fragment each.
            source.acquires = source.rate.is_some() && random.once_in(4);
            let when = Duration::from_millis(random.draw_logarithmic(20..8000));
            if source.acquires && random.once_in(2) {
                self.faults.push((when, Fault::Unplugged(at, random.draw_milliseconds(0..4000))));
            } else if random.once_in(20) {
                self.faults.push((when, Fault::Restarted(at, random.draw_milliseconds(0..4000))));
            }
        }
    }

    /// Draws ends that are rare by chance: a run that is aborted while all is well, and a builder that dies while
    /// another one assigns events to it.
    fn add_rare_ends(&mut self, random: &mut Random) {
        self.floods = self.hostile.is_some() && random.once_in(2);
        if self.builders == 1 {
            return;
        }
        let builders = self.builders as u64;
        if random.once_in(8) {
            (self.hostile, self.events, self.duration) = (None, None, None);
            self.last_word = 3 * LAST_WORD;
            let builder = random.draw_from(0..builders) as usize;
            self.faults = vec![(random.draw_milliseconds(2000..7000), Fault::Command(builder, Command::Abort))];
        } else if self.by_room && random.once_in(2) {
            let builder = random.draw_from(1..builders) as usize;
            self.faults.push((random.draw_milliseconds(1000..6000), Fault::Killed(NodeName::Builder(builder))));
        }
    }

    /// Replaces all faults by the death of the leading builder, in a run of several builders that nothing else ends before
    /// its sources have given that one up.
    fn lose_leader(&mut self, random: &mut Random) {
        if self.builders == 1 || self.sources.iter().any(|source| source.instrument.is_some()) {
            return;
        }
        (self.hostile, self.events, self.duration) = (None, None, None);
        self.sources.iter_mut().for_each(|source| source.events = u64::MAX);
        self.last_word = 3 * LAST_WORD;
        self.faults = vec![(random.draw_milliseconds(2000..6000), Fault::Killed(NodeName::Builder(0)))];
    }

    /// Draws runs that follow one another without a gap, and steps.
    fn add_next_runs(&mut self, random: &mut Random) {
        for _ in 0..random.draw_logarithmic(1..8) {
            let at = Duration::from_millis(random.draw_logarithmic(20..8000));
            self.faults.push((at, if random.once_in(4) { Fault::Step(0) } else { Fault::NextRun(0) }));
        }
    }

    /// Returns the number of runs that are asked for to follow others.
    pub fn next_run_count(&self) -> u64 {
        self.faults.iter().filter(|(_, fault)| matches!(fault, Fault::NextRun(_))).count() as u64
    }

    /// Returns the number of events of all runs together, if that is limited.
    fn total_events(&self) -> Option<u64> {
        self.events.map(|events| events.saturating_mul(1 + self.next_run_count()))
    }

    /// Returns whether nothing else than the death of the leading builder ends the run.
    pub fn only_loses_leader(&self) -> bool {
        let unlimited = self.events.is_none()
            && self.duration.is_none()
            && self.hostile.is_none()
            && self.sources.iter().all(|source| source.events == u64::MAX && source.instrument.is_none());
        unlimited && matches!(self.faults[..], [(_, Fault::Killed(NodeName::Builder(0)))]) && self.last_word > LAST_WORD
    }

    /// Draws instruments in place of devices: some, or all, which are then numbered by time.
    fn add_instruments(&mut self, random: &mut Random) {
        if self.hostile.is_none() && random.once_in(3) {
            self.period = Some(random.draw_milliseconds(2..100));
        }
        for at in 0..self.sources.len() {
            if self.period.is_none() && random.once_in(2) {
                continue;
            }
            let source = &mut self.sources[at];
            let mut instrument = InstrumentPlan::draw_instrument(random, None, self.period);
            let own = source.rate.unwrap_or_else(|| random.draw_logarithmic(10..2000) as f64);
            // A whole number of datagrams per second, as their format requires.
            let own = if instrument.kind == DatagramKind::Fixed { own } else { own.ceil() };
            let rate = self.period.map_or(own, |period| period.as_secs_f64().recip());
            // A source whose instrument is silent for long delays the end of a run.
            instrument.longest_loss = instrument.longest_loss.min(1 + rate as u64);
            source.replace_by_instrument(instrument, rate);
            if !random.once_in(3) {
                continue;
            }
            let when = Duration::from_millis(random.draw_logarithmic(20..8000));
            self.faults.push((
                when,
                match self.period {
                    Some(period) => Fault::ClockSet(at, draw_clock_change(random, period)),
                    None => Fault::CountsAnew(at, random.draw_milliseconds(100..3000)),
                },
            ));
        }
    }

    fn draw_fault(&self, random: &mut Random) -> Fault {
        let (builders, sources) = (self.builders as u64, self.sources.len() as u64);
        let builder = random.draw_from(0..builders) as usize;
        let node = match random.once_in(2) {
            true => NodeName::Builder(builder),
            false => NodeName::Source(random.draw_from(0..sources) as usize),
        };
        match random.draw_from(0..24) {
            0..=7 => {
                let commands = [Command::Start, Command::Pause, Command::Resume, Command::Pause, Command::Resume];
                let last = if random.once_in(4) { Command::Abort } else { Command::Stop };
                let command = if random.once_in(4) { last } else { random.pick_one(&commands) };
                Fault::Command(if random.once_in(3) { builder } else { 0 }, command)
            }
            8..=9 => Fault::Network(foul_network(random)),
            10..=12 => Fault::Stopped(node, random.draw_milliseconds(0..6000)),
            13 => Fault::Killed(node),
            14 => Fault::Disk(builder, Some(DiskFault::Fails(random.pick_one(&[libc::EIO, libc::EROFS])))),
            15 => Fault::Disk(builder, Some(DiskFault::Full)),
            16 => Fault::Disk(builder, None),
            17..=18 => Fault::DiskStuck(builder, random.draw_milliseconds(0..4000)),
            19..=20 => Fault::Parted(random.draw_from(0..sources) as usize, builder, random.draw_milliseconds(0..4000)),
            21 => Fault::Unpowered(builder),
            _ => Fault::Date(node, random.draw_from(0..7_200_000) as i64 - 3_600_000),
        }
    }

    /// Returns the same plan without some of its faults.
    #[must_use]
    pub fn without_faults(&self, left_out: &[usize]) -> Self {
        let faults = self.faults.iter().enumerate().filter(|(at, _)| !left_out.contains(at));
        Self { faults: faults.map(|(_, fault)| fault.clone()).collect(), ..self.clone() }
    }

    /// Returns whether no fault keeps a run from being complete.
    pub fn is_harmless(&self) -> bool {
        // A device with fewer events than others leaves their last events incomplete.
        let end = self.total_events().unwrap_or(u64::MAX);
        let aborts = self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Command(_, Command::Abort)));
        let mut sources = self.sources.iter();
        self.is_orderly()
            && !aborts
            && sources.all(|source| source.policy == Policy::Block && source.events >= end && !source.acquires)
    }

    /// Returns whether no fault keeps a source from ending with its final counters, at builders that get no command
    /// to abort.
    pub fn is_orderly(&self) -> bool {
        // A lost datagram of an instrument may be detected when more arrive, or never.
        if self.sources.iter().any(|source| source.instrument.is_some()) {
            return false;
        }
        // A source that is too slow for the number of events is not waited for when the run is to end.
        let mut rates = self.sources.iter().filter_map(|source| source.rate);
        let in_time = rates.all(|rate| self.total_events().is_none_or(|events| events as f64 / rate < 6.0));
        if self.hostile.is_some() || !in_time {
            return false;
        }
        let takes_turns = self.builders > 1 && !self.by_room;
        let are_orderly = self.faults.iter().all(|(_, fault)| match fault {
            Fault::Network(network) => is_bearable(network),
            // Its sources have no slots for the other builders, and are silent there.
            Fault::DiskStuck(_, time) if takes_turns => *time < BUILDER_DEADLINE / 2,
            fault => fault.is_orderly(),
        });
        are_orderly && is_bearable(&self.network) && self.is_stopped_gently()
    }

    /// Returns whether a builder gets the command to abort its run.
    pub fn is_aborted(&self, builder: usize) -> bool {
        self.faults.iter().any(|(_, fault)| *fault == Fault::Command(builder, Command::Abort))
    }

    /// Returns whether the only faults are commands and changes of the date, on a bearable network.
    pub fn has_only_commands(&self) -> bool {
        is_bearable(&self.network)
            && self
                .faults
                .iter()
                .all(|(_, fault)| matches!(fault, Fault::Command(..) | Fault::Date(..) | Fault::Step(_)))
    }

    /// Returns whether a builder, or its disk, is stopped for a time, or for good.
    pub fn stops_builder(&self, builder: usize) -> bool {
        self.faults.iter().any(|(_, fault)| match fault {
            Fault::Stopped(NodeName::Builder(at), _) | Fault::Killed(NodeName::Builder(at)) => *at == builder,
            Fault::Disk(at, _) | Fault::DiskStuck(at, _) => *at == builder,
            _ => false,
        })
    }

    /// Returns whether a source is gone for a time, or for good.
    pub fn is_gone(&self, source: usize) -> bool {
        self.faults.iter().any(|(_, fault)| match fault {
            Fault::Killed(NodeName::Source(at)) | Fault::Restarted(at, _) => *at == source,
            _ => false,
        })
    }

    /// Returns whether the device of a source is unplugged for a time.
    pub fn is_unplugged(&self, source: usize) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Unplugged(at, _) if *at == source))
    }

    /// Returns whether no builder gets a command to end before the run has begun there, or to stop twice.
    fn is_stopped_gently(&self) -> bool {
        let mut stopped = BTreeSet::new();
        self.faults.iter().all(|(at, fault)| match fault {
            Fault::Command(builder, Command::Stop) => *at >= MAX_START_TIME && stopped.insert(*builder),
            Fault::Command(_, Command::Abort) => *at >= MAX_START_TIME,
            _ => true,
        })
    }

    /// Returns the topology as the text of a file. Its addresses are placeholders for those of the world.
    pub(crate) fn topology_text(&self) -> String {
        let mut text = format!("[run]\nrecord = {}\nnumber = 42\ntimeout = \"10s\"\n", self.record);
        if self.by_room {
            text += "assignment = \"by-room\"\n";
        }
        if let Some(events) = self.events {
            text += &format!("events = {events}\n");
        }
        if let Some(duration) = self.duration {
            text += &format!("duration = \"{}ms\"\n", duration.as_millis());
        }
        for builder in 0..self.builders {
            let (blocks, block) = self.blocks;
            text += &format!(
                "[[builder]]\nname = \"b{builder}\"\nlisten = [\"tcp:127.0.0.1:0\"]\ndeadline = \"2s\"\n\
                 blocks = {blocks}\nblock = {block}\nopen_events = {MOST_OPEN}\nsegment = {}\neager_credit = {}\neager_limit = {}\n",
                self.segment,
                self.eager,
                self.eager / 4,
            );
            text += &match self.window {
                Some(window) => format!("window = {window}\n"),
                None => "link = { rate = \"100 Mbit/s\", round_trip = \"20ms\", buffer = \"256 KiB\" }\n".into(),
            };
            for (level, name) in self.levels.iter().zip(["level2", "filter"]) {
                let Some(accept) = level else { continue };
                let sources = if name == "level2" { "sources = [\"s0\"], " } else { "" };
                text += &format!("{name} = {{ {sources}accept = {accept:?} }}\n");
            }
        }
        for source in 0..self.sources.len() {
            text += &format!("[[source]]\nname = \"s{source}\"\nid = \"1.{source}\"\n");
        }
        text
    }
}

impl SourcePlan {
    fn draw_source(random: &mut Random, builders: usize) -> Self {
        let longest = random.draw_logarithmic(1..3000) as usize;
        let record = (longest + 64).next_multiple_of(64);
        // At the slowest rate, each builder gets an event of each source once a second.
        let slowest = builders as f64;
        let rate = (!random.once_in(3)).then(|| (slowest * 1.1).max(random.draw_logarithmic(1..2000) as f64));
        let policy =
            random.pick_one(&[Policy::Block, Policy::Block, Policy::Block, Policy::DropNewest, Policy::DropOldest]);
        Self {
            rate,
            events: if random.once_in(5) { random.draw_from(0..1000) } else { u64::MAX },
            slots: (
                u32::try_from(random.draw_from(4..12) as usize * builders.min(3)).unwrap_or(4),
                record as u64 * random.draw_from(1..9),
            ),
            longest,
            // A device that never waits would drop without end.
            policy: if rate.is_some() { policy } else { Policy::Block },
            acquires: false,
            instrument: None,
        }
    }

    /// Replaces the source's device by this instrument.
    fn replace_by_instrument(&mut self, instrument: InstrumentPlan, rate: f64) {
        (self.instrument, self.rate, self.acquires) = (Some(instrument), Some(rate), true);
        self.slots.1 = self.slots.1.max((self.longest as u64 + 128).next_multiple_of(64));
    }
}

impl Plan {
    /// Makes all instruments count and date the same triggers, which are spaced unevenly; some begin to count anew.
    fn share_triggers(&mut self, random: &mut Random) {
        let rate = random.draw_logarithmic(50..500) as f64;
        (self.events, self.duration, self.last_word) = (None, None, 2 * LAST_WORD);
        if random.once_in(2) {
            self.faults.clear();
        }
        for at in 0..self.sources.len() {
            if self.hostile == Some(at) {
                continue;
            }
            let bits = random.pick_one(&[16, 32, 64]);
            let step = if bits == 16 { 1 } else { random.pick_one(&[1, 1, 2, 256]) };
            let drawn = InstrumentPlan::draw_instrument(random, Some(DatagramKind::Fixed), None);
            let instrument = InstrumentPlan {
                bits,
                step,
                first: random.next_u64() >> (64 - bits),
                // Sources do not begin at the same moment.
                first_is_stated: true,
                longest_loss: drawn.longest_loss.min(1 + rate as u64),
                forged: 0,
                clock: Some(ClockPlan {
                    off: random.draw_from(0..1 << 40).cast_signed(),
                    drift_ppm: random.draw_from(0..200).cast_signed() - 100,
                    jitter: random.draw_logarithmic(1..20_000),
                    wild: if random.once_in(2) { 0 } else { random.draw_from(0..20) },
                }),
                irregular: true,
                ..drawn
            };
            self.sources[at].replace_by_instrument(instrument, rate);
            let (when, time) = (random.draw_milliseconds(2500..8000), random.draw_milliseconds(100..3000));
            match random.draw_from(0..4) {
                0 => self.faults.push((when, Fault::CountsAnew(at, time))),
                1 => self.faults.push((when, Fault::Unplugged(at, time))),
                _ => {}
            }
        }
    }
}

impl InstrumentPlan {
    /// Returns whether datagrams are numbered by time.
    pub(crate) fn is_by_time(&self) -> bool {
        self.clock.is_some() && !self.irregular
    }

    /// Draws an instrument, of the given kind if there is one.
    pub(crate) fn draw_instrument(random: &mut Random, kind: Option<DatagramKind>, period: Option<Duration>) -> Self {
        let kind =
            if period.is_some() { DatagramKind::Fixed } else { kind.unwrap_or(random.pick_one(&DatagramKind::ALL)) };
        // Without numbering by time, counters would number the events; here they only distinguish losses from missing
        // triggers.
        let bits = if period.is_some() { 64 } else { random.pick_one(&[8, 16, 32, 64]) };
        let bits = kind.fixed_counter_bits().unwrap_or(bits);
        let step = match kind {
            DatagramKind::Fixed | DatagramKind::Spead => {
                random.pick_one(if bits == 8 { &[1, 1, 2, 4] } else { &[1, 1, 2, 256] })
            }
            _ => 1,
        };
        let counts = (1 << bits.min(32)) / step;
        let quarter = period.map_or(0, |period| i64::try_from(period.as_nanos() / 16).unwrap_or(0));
        let clock = period.map(|_| ClockPlan {
            off: random.draw_from(0..quarter.cast_unsigned()).cast_signed(),
            drift_ppm: random.draw_from(0..200).cast_signed() - 100,
            jitter: random.draw_logarithmic(1..quarter.cast_unsigned().max(2)),
            wild: draw_rate(random, 20),
        });
        let can_be_stated = clock.is_none() && bits > 4 && !kind.is_absolute();
        Self {
            kind,
            bits,
            step,
            first: random.next_u64() >> (64 - bits) >> random.pick_one(&[0, 1, bits - 1]),
            first_is_stated: can_be_stated && random.once_in(2),
            lost: draw_rate(random, 100),
            longest_loss: random.draw_logarithmic(1..(counts / 8).clamp(2, 2000)),
            doubled: draw_rate(random, 100),
            // With a counter of four bits, a datagram may be overtaken by four, of which some may be lost.
            overtaken: if bits == 4 { 0 } else { draw_rate(random, 100) },
            // With a narrow counter, any forged count is near the right one.
            forged: if bits < 32 || clock.is_some() { 0 } else { draw_rate(random, 50) },
            port: random.draw_logarithmic(8..512) as usize,
            clock,
            irregular: false,
        }
    }
}

/// Returns 0 in half of all cases, otherwise a number below `most`.
fn draw_rate(random: &mut Random, most: u64) -> u64 {
    if random.once_in(2) { 0 } else { random.draw_from(0..most) }
}

/// Returns a change of a clock that is detectable: by more than a second, or by a part of a period.
fn draw_clock_change(random: &mut Random, period: Duration) -> i64 {
    let period = i64::try_from(period.as_nanos()).unwrap_or(1);
    let way = if random.once_in(2) { 1 } else { -1 };
    let beats = random.draw_logarithmic(1..10_000).cast_signed();
    let by = match random.once_in(2) {
        true => period * beats + period / 2,
        false => 1_500_000_000 + random.draw_from(0..3_600_000_000_000).cast_signed(),
    };
    way * by
}

fn gentle_network(random: &mut Random) -> Impairments {
    Impairments { delay: Duration::from_micros(random.draw_from(1..2000)), ..Impairments::PERFECT }
}

fn foul_network(random: &mut Random) -> Impairments {
    Impairments {
        lost: random.draw_from(0..200) as u32,
        doubled: random.draw_from(0..200) as u32,
        delay: Duration::from_micros(random.draw_from(5000..15_000)),
        jitter: Duration::from_micros(random.draw_from(0..40_000)),
        damaged_ppm: 0,
    }
}

impl Fault {
    /// Returns whether sources still end with their final counters.
    fn is_orderly(&self) -> bool {
        match self {
            Self::Command(..) | Self::NextRun(_) | Self::Step(_) | Self::Network(_) | Self::Date(..) => true,
            // A run waits for its disk for that long.
            Self::DiskStuck(..) => true,
            Self::Stopped(_, time) => *time < Duration::from_millis(500),
            Self::Parted(_, _, time) | Self::Unplugged(_, time) => *time < Duration::from_millis(800),
            Self::Killed(_) | Self::Restarted(..) | Self::Unpowered(_) => false,
            Self::CountsAnew(..) | Self::ClockSet(..) => false,
            Self::Disk(_, fault) => fault.is_none(),
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builder(number) => write!(f, "b{number}"),
            Self::Source(number) => write!(f, "s{number}"),
        }
    }
}
