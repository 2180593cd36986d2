//! The topology: one TOML file that says which nodes there are and how they are connected.

mod check;
mod written;

use crate::{Wait, calibration};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_build::{Path as CreditPath, Window};
use thalweg_device::{Beat, DeviceConfig, ModelAdcConfig, duration};
use thalweg_filter::{Condition, ProgramConfig, Simulated};
use thalweg_link::{Adapter, Address, LinkKind};
use thalweg_text::{BitRate, ByteSize};
use thalweg_wire::{Capabilities, MAX_RECORDS, SourceId, record_len};
use thiserror::Error;

/// A whole system: one run configuration, its builders, its sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// What holds for the run as a whole.
    #[serde(default)]
    pub run: RunConfig,
    /// Event builders. Event `e` is built by number `e` modulo their count, where [`RunConfig::assignment`] says nothing
    /// else.
    #[serde(rename = "builder", default, deserialize_with = "written::tables")]
    pub builders: Vec<BuilderNodeConfig>,
    /// Sources.
    #[serde(rename = "source", default, deserialize_with = "written::tables")]
    pub sources: Vec<SourceNodeConfig>,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// The directory that run directories are made in.
    pub directory: PathBuf,
    /// The run's number; the next free one in the directory when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Which builder gets which event.
    #[serde(skip_serializing_if = "is_default")]
    pub assignment: Assignment,
    /// Whether events are written. Otherwise they are built, counted and let go.
    pub record: bool,
    /// Ends the run after so long.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub duration: Option<Duration>,
    /// Ends the run after so many events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// How long to wait, at the beginning for nodes to find each other, and at the end for a source to send its final
    /// counters.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Whether sources' times are compared, so that one whose numbers are shifted is found.
    #[serde(skip_serializing_if = "is_true")]
    pub find_shifts: bool,
    /// No run: builders find out what their links carry, and keep it for the runs that follow.
    pub calibrate: bool,
    /// What a run is reported to do in the steady state begins after so long.
    #[serde(with = "duration")]
    pub warm_up: Duration,
    /// And ends after so long; with the run where absent.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub steady: Option<Duration>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_true(value: &bool) -> bool {
    *value
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            directory: "runs".into(),
            number: None,
            assignment: Assignment::default(),
            record: true,
            duration: None,
            events: None,
            timeout: Duration::from_secs(10),
            find_shifts: true,
            calibrate: false,
            warm_up: Duration::ZERO,
            steady: None,
        }
    }
}

/// Which builder gets which event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignment {
    /// Event `e` goes to number `e` modulo their count.
    #[default]
    Modulo,
    /// The first builder assigns events to those that have room: a slow one gets fewer.
    ByRoom,
}

impl Assignment {
    /// As topologies and `run.json` have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Modulo => "modulo",
            Self::ByRoom => "by-room",
        }
    }
}

/// `[[builder]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuilderNodeConfig {
    /// Its name.
    pub name: String,
    /// Where it listens. Sources use the first address of the kind they ask for.
    #[serde(deserialize_with = "written::addresses")]
    pub listen: Vec<Address>,
    /// The network adapter that it drives by itself, where a link does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Bytes in a block: what goes to disk in one write, and what a slot must fit into.
    #[serde(default = "defaults::block")]
    pub block: ByteSize,
    /// How many blocks: the builder's memory is this times the block size.
    #[serde(default = "defaults::blocks")]
    pub blocks: u32,
    /// Bytes asked for and not yet received, over all sources, where it is a constant. 4 MiB where neither this nor
    /// `link` is given and the link was not calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<ByteSize>,
    /// The switch port in front of it: what is asked for is what it carries and half of what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkConfig>,
    /// How long an event waits for a source that does not mention it, and a source that is cut off is waited for.
    #[serde(default = "defaults::deadline", with = "duration")]
    pub deadline: Duration,
    /// How many events may be open at a time.
    #[serde(default = "defaults::open_events")]
    pub open_events: u32,
    /// What is checked of each fragment before it counts as built.
    #[serde(default)]
    pub check: CheckConfig,
    /// Level 2: a few sources are asked first, and the others only where an event is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level2: Option<LevelConfig>,
    /// The event filter: decides on the whole event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<LevelConfig>,
    /// Bytes each source may send unasked. 0 switches that off.
    #[serde(default = "defaults::eager_credit")]
    pub eager_credit: ByteSize,
    /// The longest slot that is sent unasked.
    #[serde(default = "defaults::eager_limit")]
    pub eager_limit: ByteSize,
    /// A block that is not full goes to disk after this time.
    #[serde(default = "defaults::flush", with = "duration")]
    pub flush: Duration,
    /// Bytes after which a new segment file is begun.
    #[serde(default = "defaults::segment")]
    pub segment: ByteSize,
    /// How its hot thread waits for something to do.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait: Wait,
    /// The processor its hot thread is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
}

impl BuilderNodeConfig {
    /// A builder with everything at its default.
    pub fn new(name: &str, listen: Vec<Address>) -> Self {
        Self {
            name: name.to_owned(),
            listen,
            adapter: None,
            block: defaults::block(),
            blocks: defaults::blocks(),
            window: None,
            link: None,
            deadline: defaults::deadline(),
            open_events: defaults::open_events(),
            check: CheckConfig::default(),
            level2: None,
            filter: None,
            eager_credit: defaults::eager_credit(),
            eager_limit: defaults::eager_limit(),
            flush: defaults::flush(),
            segment: defaults::segment(),
            wait: Wait::default(),
            cpu: None,
        }
    }

    /// The link as `thalweg calibrate` found it, and the file that says so, where it counts: neither `window` nor `link`
    /// is given.
    pub fn calibrated(&self) -> Option<(LinkConfig, PathBuf)> {
        if self.window.is_some() || self.link.is_some() { None } else { calibration::known(&self.listen) }
    }

    /// How many bytes may be asked for, with so many sources: the window, and how many each may send unasked.
    pub fn credit(&self, sources: usize) -> (Window, u64) {
        // What comes unasked cannot be left unasked: behind level 2 nothing does.
        let eager_credit = if self.level2.is_some() { 0 } else { self.eager_credit.0 };
        let Some(link) = self.link.or_else(|| Some(self.calibrated()?.0)) else {
            return (Window::Constant(self.window.map_or(WINDOW, |window| window.0)), eager_credit);
        };
        // An eighth of the buffer for what comes unasked; nothing where that would not hold a small slot from each.
        let share = link.buffer.0 / 8 / sources.max(1) as u64;
        let eager = if share < LEAST_EAGER { 0 } else { share.min(eager_credit) };
        let path = CreditPath {
            rate: link.payload_rate(self.carrier()),
            round_trip: link.round_trip,
            buffer: link.buffer.0,
            segment: link.segment(self.carrier()),
            unasked: eager * sources as u64,
        };
        (Window::Credit(path), eager)
    }

    /// The window of a search for what the link carries.
    pub(crate) fn search(&self) -> Window {
        let mtu = self.link.map_or_else(defaults::mtu, |link| link.mtu);
        Window::Search { segment: self.carrier().payload(mtu), most: self.window.map_or(WIDEST, |window| window.0) }
    }

    /// The kind of link that its port carries.
    pub(crate) fn carrier(&self) -> LinkKind {
        let kinds = self.listen.iter().map(Address::kind);
        kinds.into_iter().find(|kind| !kind.maps).unwrap_or_default()
    }

    /// How many blocks it needs to have a place for all that may be asked for, beside those it fills and writes.
    pub fn blocks_for(&self, window: &Window) -> u32 {
        let bytes = match *window {
            Window::Constant(_) => 0.0,
            Window::Search { most, .. } => most as f64,
            Window::Credit(path) => path.rate * path.round_trip.as_secs_f64() * 1.5 + path.buffer as f64,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        let needed = (bytes / self.block.0 as f64).ceil() as u32 + 4;
        self.blocks.max(needed.min(4096))
    }

    /// Whether events are decided on, so that fragments wait outside of blocks until they are.
    pub fn has_trigger(&self) -> bool {
        self.level2.is_some() || self.filter.is_some()
    }

    /// Returns the conditions of its trigger levels, each with the level's name.
    pub fn conditions(&self) -> impl Iterator<Item = (&'static str, Condition)> {
        let levels = [("level2", &self.level2), ("filter", &self.filter)];
        levels.into_iter().filter_map(|(name, level)| match level.as_ref()?.decision(1) {
            Ok(Decision::Condition(condition)) => Some((name, condition)),
            _ => None,
        })
    }

    /// The longest slot that fits a block with the index of its records.
    pub fn largest_slot(&self) -> u32 {
        u32::try_from(self.block.0.saturating_sub(BESIDE_SLOT)).unwrap_or(u32::MAX)
    }
}

/// A builder's link: the port of the last switch, where what all sources send meets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Its line rate.
    pub rate: BitRate,
    /// From a fetch to its first data when nothing is in the way. While a run goes on the shortest that is seen counts.
    #[serde(with = "duration")]
    pub round_trip: Duration,
    /// Bytes that wait in front of the port before any is dropped.
    pub buffer: ByteSize,
    /// Bytes in the longest IP packet.
    #[serde(default = "defaults::mtu")]
    pub mtu: u32,
}

impl LinkConfig {
    /// Ethernet: header (14), checksum (4), preamble (8), gap (12).
    const FRAMING: u32 = 38;

    /// Payload bytes in a packet (TCP's MSS).
    pub fn segment(&self, kind: LinkKind) -> u32 {
        kind.payload(self.mtu)
    }

    /// Payload bytes that the port carries in a second.
    pub fn payload_rate(&self, kind: LinkKind) -> f64 {
        self.rate.bytes_per_second() * f64::from(self.segment(kind)) / f64::from(self.mtu + Self::FRAMING)
    }
}

/// A trigger level: what decides whether an event is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LevelConfig {
    /// Of level 2: the names of the sources that are asked first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Which events are accepted; or [`program`](Self::program) says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<Accept>,
    /// Which events a fraction is; 1 for level 2 and 2 for the event filter when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// A program that is asked, and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// How long the program has for an event; 100 ms when absent.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub deadline: Option<Duration>,
    /// What becomes of an event for which a condition is neither true nor false, or of which a program says nothing;
    /// accepted when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Otherwise>,
    /// Where the program is started; where the topology's file is when absent.
    #[serde(skip_serializing_if = "is_here")]
    pub directory: PathBuf,
}

fn is_here(directory: &Path) -> bool {
    directory.as_os_str().is_empty()
}

/// Which events are accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a fraction of the events, from 0 to 1, or a condition, such as \"beam.x < 300.0\"")]
pub enum Accept {
    /// A fraction of them, drawn from their numbers: simulated.
    Fraction(f64),
    /// Those for which this is true ([`Condition`]).
    Condition(String),
}

/// What becomes of an event that could not be decided on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// It is kept.
    #[default]
    Accept,
    /// It is not.
    Reject,
}

/// What decides, as far as it is known before the sources are there.
#[derive(Debug)]
pub(crate) enum Decision {
    Simulated(Simulated),
    Condition(Condition),
    Program(ProgramConfig),
}

impl LevelConfig {
    /// How long a program has where nothing is said.
    const DEADLINE: Duration = Duration::from_millis(100);

    /// What decides; or which key is wrong, and how.
    pub(crate) fn decision(&self, usual_seed: u64) -> Result<Decision, (&'static str, String)> {
        let Self { accept, seed, program, deadline, otherwise, directory, .. } = self;
        let accepts = otherwise.unwrap_or_default() == Otherwise::Accept;
        if seed.is_some() && !matches!(accept, Some(Accept::Fraction(_))) {
            return Err(("seed", "it draws no lots: a seed goes with a fraction".into()));
        }
        if program.is_empty() {
            if deadline.is_some() {
                return Err(("deadline", "it needs no time: a deadline goes with a program".into()));
            }
            if !is_here(directory) {
                return Err(("directory", "nothing is started there: it goes with a program".into()));
            }
        }
        match accept {
            Some(_) if !program.is_empty() => Err(("program", "`accept` decides: state one of the two".into())),
            None if program.is_empty() => Err(("accept", "state which events are accepted, or a `program`".into())),
            None => Ok(Decision::Program(ProgramConfig {
                command: program.clone(),
                directory: if is_here(directory) { ".".into() } else { directory.clone() },
                deadline: deadline.unwrap_or(Self::DEADLINE),
                otherwise: accepts,
            })),
            Some(Accept::Fraction(_)) if otherwise.is_some() => {
                Err(("otherwise", "a fraction leaves no event undecided: it goes with a condition".into()))
            }
            Some(Accept::Fraction(accept)) if (0.0..=1.0).contains(accept) => {
                Ok(Decision::Simulated(Simulated::new(*accept, seed.unwrap_or(usual_seed))))
            }
            Some(Accept::Fraction(accept)) => {
                Err(("accept", format!("{accept}; it is a fraction of the events, from 0 to 1")))
            }
            Some(Accept::Condition(text)) => {
                Condition::parse(text, accepts).map(Decision::Condition).map_err(|problem| ("accept", problem))
            }
        }
    }
}

/// What is checked of each fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckConfig {
    /// The header and its CRC.
    Header,
    /// The payload's CRC too.
    #[default]
    Payload,
}

impl std::str::FromStr for CheckConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "header" => Ok(Self::Header),
            "payload" => Ok(Self::Payload),
            _ => Err(format!("'{text}': what can be checked is 'header' or 'payload'")),
        }
    }
}

/// `[[source]]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceNodeConfig {
    /// Its name.
    pub name: String,
    /// Its id, `"subsystem.element"`.
    #[serde(deserialize_with = "written::id")]
    pub id: String,
    /// Where its fragments come from. Where there is none, another program pushes them ([`crate::PushSource`], in
    /// Python `thalweg.Source`), and decides itself on everything below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceConfig>,
    /// When its events are, where its device works by itself and frames are numbered by their time stamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beat: Option<Beat>,
    /// Which of a builder's addresses it uses.
    #[serde(default)]
    pub link: LinkKind,
    /// The network adapter that it drives by itself, where its link does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// TCP congestion control of its links, or `system` for the system's default; cubic when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// How many events there are in a second; as fast as they are taken when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<EventRate>,
    /// With a `rate`: so many events come at once, at the same mean rate.
    #[serde(default = "defaults::burst", skip_serializing_if = "defaults::is_one")]
    pub burst: u32,
    /// What happens when all slots are full.
    #[serde(default)]
    pub policy: Policy,
    /// How many slots.
    #[serde(default = "defaults::slots")]
    pub slots: u32,
    /// Bytes in a slot; when absent, one fragment or as many as fit 512 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<ByteSize>,
    /// How its hot thread waits for something to do.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait: Wait,
    /// The processor its hot thread is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
}

impl SourceNodeConfig {
    /// Its id. The topology was checked.
    pub fn source_id(&self) -> SourceId {
        self.id.parse().unwrap_or_default()
    }

    /// The source whose images it fits, of which it is a part.
    pub fn fits(&self) -> Option<&str> {
        Some(self.device.as_ref()?.observed()?.source)
    }

    /// Bytes in each slot, for a device whose longest payload is so long.
    pub fn slot_bytes(&self, max_payload: usize) -> usize {
        match self.slot {
            Some(ByteSize(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            // A device that works by itself lays one fragment in a slot.
            None if self.device.as_ref().is_some_and(|device| device.is_acquisition()) => record_len(max_payload),
            None => default_slot_bytes(max_payload),
        }
    }
}

/// Events per second, of which there are from 10⁻⁶ to 10⁹: the time between two is from a nanosecond to some days.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(into = "f64")]
pub struct EventRate(f64);

/// Why a number is not a rate of events.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("'{0}' is not a rate: write a number of events per second, from 1e-6 to 1e9")]
pub struct EventRateError(String);

impl EventRate {
    /// Events per second.
    pub fn hertz(self) -> f64 {
        self.0
    }

    /// From one event to the next.
    pub fn interval(self) -> Duration {
        Duration::from_secs_f64(1.0 / self.0)
    }
}

impl TryFrom<f64> for EventRate {
    type Error = EventRateError;

    fn try_from(hertz: f64) -> Result<Self, EventRateError> {
        (1e-6..=1e9).contains(&hertz).then_some(Self(hertz)).ok_or_else(|| EventRateError(hertz.to_string()))
    }
}

impl<'de> Deserialize<'de> for EventRate {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_f64(written::Rate)
    }
}

impl From<EventRate> for f64 {
    fn from(rate: EventRate) -> Self {
        rate.0
    }
}

impl std::str::FromStr for EventRate {
    type Err = EventRateError;

    fn from_str(text: &str) -> Result<Self, EventRateError> {
        text.parse().map_err(|_| EventRateError(text.to_owned())).and_then(|hertz: f64| Self::try_from(hertz))
    }
}

/// Bytes in each slot where nobody said, for a longest payload of so many bytes: one fragment or several.
pub fn default_slot_bytes(max_payload: usize) -> usize {
    let record = record_len(max_payload);
    record * (DEFAULT_SLOT / record).max(1)
}

/// Files a node has open besides its links: standard streams, memory, poller, wake-ups, ring, run.
const OWN_FILES: u64 = 16;

/// Bytes of a block that a slot leaves room for: 16 of index for each record, the block's header, its closings, and the
/// rounding to whole pages.
const BESIDE_SLOT: u64 = 16 * MAX_RECORDS as u64 + 64 + 128 * 32 + 4096;
/// The widest window that is tried where a link is calibrated and no `window` says otherwise.
const WIDEST: u64 = 64 << 20;
/// Bytes asked for and not yet received, where nothing is known of the link.
pub const WINDOW: u64 = 4 << 20;
/// Less than this is not worth sending unasked.
const LEAST_EAGER: u64 = 1 << 10;

/// Slots hold several fragments up to this size: large enough that requests cost little, small enough for the cache.
pub const DEFAULT_SLOT: usize = 512 << 10;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a source does when all its slots are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The device waits.
    #[default]
    Block,
    /// The new fragment is dropped, counted and announced.
    DropNewest,
    /// The oldest slot that nobody has asked for is dropped, counted and announced, and the new fragment takes its
    /// place.
    DropOldest,
}

impl Policy {
    /// What a source with this policy says in its greeting.
    pub fn capabilities(self) -> Capabilities {
        match self {
            Self::Block | Self::DropNewest => Capabilities::empty(),
            Self::DropOldest => Capabilities::WITHDRAWS,
        }
    }
}

mod defaults {
    use super::*;

    pub(super) fn block() -> ByteSize {
        ByteSize(4 << 20)
    }
    pub(super) fn blocks() -> u32 {
        8
    }
    pub(super) fn mtu() -> u32 {
        1500
    }
    pub(super) fn burst() -> u32 {
        1
    }
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape serde asks for")]
    pub(super) fn is_one(burst: &u32) -> bool {
        *burst == 1
    }
    pub(super) fn deadline() -> Duration {
        Duration::from_secs(2)
    }
    pub(super) fn open_events() -> u32 {
        65_536
    }
    pub(super) fn eager_credit() -> ByteSize {
        ByteSize(128 << 10)
    }
    pub(super) fn eager_limit() -> ByteSize {
        ByteSize(16 << 10)
    }
    pub(super) fn flush() -> Duration {
        Duration::from_secs(1)
    }
    pub(super) fn segment() -> ByteSize {
        ByteSize(4 << 30)
    }
    pub(super) fn slots() -> u32 {
        16
    }
}

/// What is wrong with a topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is not TOML, or not of this shape. The text names line and column.
    #[error("{}: {error}{advice}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        error: Box<toml::de::Error>,
        /// What to write instead, where that is known.
        advice: &'static str,
    },
    /// A value that cannot be.
    #[error("{}: {field}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The field, as written in the file.
        field: String,
        /// What is wrong, and what to do.
        problem: String,
    },
}

impl TopologyError {
    fn read(path: &Path, error: std::io::Error) -> Self {
        let error = match error.kind() {
            std::io::ErrorKind::InvalidData => {
                std::io::Error::new(error.kind(), "it is not text in UTF-8, as TOML has to be: save it so")
            }
            std::io::ErrorKind::IsADirectory => {
                std::io::Error::new(error.kind(), "it is a directory; name a topology, which is a file in TOML")
            }
            _ => error,
        };
        Self::Read { path: path.to_owned(), error }
    }

    fn parse(path: &Path, text: &str, error: toml::de::Error) -> Self {
        let at = error.span().and_then(|span| text.get(span)).unwrap_or("");
        let advice = match (error.message(), at.trim_matches(['[', ']'])) {
            ("duplicate key", "source") => "there may be several sources: write [[source]]\n",
            ("duplicate key", "builder") => "there may be several builders: write [[builder]]\n",
            _ => "",
        };
        Self::Parse { path: path.to_owned(), error: Box::new(error), advice }
    }
}

impl Topology {
    /// The same nodes, to find out what the builders' links carry: every source is always full, nothing is recorded.
    pub fn calibrating(mut self) -> Self {
        self.run = RunConfig { calibrate: true, record: false, duration: None, events: None, number: None, ..self.run };
        for builder in &mut self.builders {
            (builder.level2, builder.filter) = (None, None);
        }
        let sources = self.sources.len().max(1) as u64;
        let widest = self.builders.iter().map(|builder| builder.window.map_or(WIDEST, |window| window.0)).max();
        for source in &mut self.sources {
            // One waveform: filling a slot costs nothing once it was filled.
            let model = ModelAdcConfig { size: ByteSize(64 << 10), size_from: None, seed: 1, source: None, period: 1 };
            source.device = Some(model.into());
            source.policy = Policy::Block;
            source.rate = None;
            source.burst = 1;
            source.slot = Some(ByteSize(record_len(64 << 10) as u64));
            // All of the window may be asked of each in turn.
            source.slots =
                u32::try_from(widest.unwrap_or(WIDEST) / sources / (64 << 10)).unwrap_or(u32::MAX).clamp(32, 8192);
            // It goes on growing until something is lost; those that heed delay stop before.
            source.congestion.get_or_insert_with(|| "reno".into());
        }
        self
    }

    /// Reads and checks a file, for all of its nodes, or for the only one that this program runs: another program may
    /// have further kinds of devices. Paths in the file are relative to it.
    ///
    /// # Errors
    /// It cannot be read, is no topology, or has a field that cannot be what it is.
    pub fn load(path: &Path, node: Option<&str>) -> Result<Self, TopologyError> {
        let text = std::fs::read_to_string(path).map_err(|error| TopologyError::read(path, error))?;
        let mut topology: Self = toml::from_str(&text).map_err(|error| TopologyError::parse(path, &text, error))?;
        topology.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        for source in &mut topology.sources {
            let id = source.source_id();
            if let Some(device) = &mut source.device {
                device.set_source(id);
            }
        }
        let wrong = |(field, problem)| TopologyError::Value { path: path.to_owned(), field, problem };
        topology.check().map_err(wrong)?;
        for source in topology.sources.iter().filter(|source| node.is_none_or(|node| node == source.name)) {
            if let Some(Err(error)) = source.device.as_ref().filter(|device| !device.is_known()).map(|it| it.check()) {
                return Err(wrong((format!("source '{}': device", source.name), error.to_string())));
            }
        }
        Ok(topology)
    }

    /// Takes relative paths as relative to `base`.
    pub fn resolve_paths(&mut self, base: &Path) {
        for device in self.sources.iter_mut().filter_map(|source| source.device.as_mut()) {
            device.resolve_paths(base);
        }
        for builder in &mut self.builders {
            let levels = builder.level2.iter_mut().chain(&mut builder.filter);
            let programs = levels.filter(|level| !level.program.is_empty());
            programs.for_each(|level| level.directory = base.join(&level.directory));
        }
        self.run.directory = base.join(&self.run.directory);
    }

    /// Returns how many files a builder has open when all sources are there.
    pub fn builder_files(&self) -> u64 {
        OWN_FILES + self.sources.iter().map(|source| source.link.files).sum::<u64>()
    }

    /// Returns how many files a source has open when all builders are there, without those of its device.
    pub fn source_files(&self, source: &SourceNodeConfig) -> u64 {
        let reached = self.builders.iter().filter(|builder| self.address(builder, source.link).is_some()).count();
        OWN_FILES + source.link.files * reached as u64
    }

    /// The address at which sources of this kind reach a builder.
    pub fn address<'a>(&self, builder: &'a BuilderNodeConfig, link: LinkKind) -> Option<&'a Address> {
        builder.listen.iter().find(|address| address.kind() == link)
    }

    /// The names of all nodes, builders first.
    pub fn names(&self) -> Vec<&str> {
        let builders = self.builders.iter().map(|builder| builder.name.as_str());
        builders.chain(self.sources.iter().map(|source| source.name.as_str())).collect()
    }
}
