//! Topology: one TOML file that lists the nodes and describes how they are connected.

mod check;
mod metadata;
mod settings;
mod written;

use crate::{KeptLink, Wait, calibration};
pub use metadata::Metadata;
use serde::{Deserialize, Serialize};
pub use settings::Setting;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_core::build::{Path as CreditPath, Window};
use thalweg_core::filter::{Condition, ProgramConfig, Simulated};
use thalweg_device::{Beat, DeviceConfig, ModelAdcConfig};
use thalweg_link::{Adapter, Address, LinkKind};
use thalweg_text::{BitRate, ByteSize, duration};
use thalweg_wire::{Capabilities, MAX_RECORDS, SourceId, record_bytes};
use thiserror::Error;

/// A whole system: one run configuration, its builders, its sources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Settings of the run as a whole.
    #[serde(default)]
    pub run: RunConfig,
    /// Event builders. Event `e` is built by the builder with number `e` modulo their count, unless
    /// [`RunConfig::assignment`] selects otherwise.
    #[serde(rename = "builder", default, deserialize_with = "written::tables")]
    pub builders: Vec<BuilderNodeConfig>,
    /// Sources of the events' fragments.
    #[serde(rename = "source", default, deserialize_with = "written::tables")]
    pub sources: Vec<SourceNodeConfig>,
    /// Table `[control]`, which the control service reads.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub control: serde_json::Map<String, serde_json::Value>,
}

/// Table `[run]`: the configuration of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Directory in which run directories are created.
    pub directory: PathBuf,
    /// Number of the run; the next free one in the directory when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Comment on the run, for `run.json`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Rule by which events are assigned to builders.
    #[serde(skip_serializing_if = "is_default")]
    pub assignment: Assignment,
    /// True if events are written. Otherwise they are built, counted and discarded.
    pub record: bool,
    /// Duration after which the run ends.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub duration: Option<Duration>,
    /// Number of events after which the run ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<u64>,
    /// Longest wait, at the beginning for nodes to find each other, and at the end for a source to send its final
    /// counters.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// True if the times of sources are compared, to find sources whose event numbers are shifted.
    #[serde(skip_serializing_if = "is_true")]
    pub find_shifts: bool,
    /// True to calibrate instead of taking a run: builders measure what their links carry and keep the result.
    pub calibrate: bool,
    /// Time from the start of the run to the beginning of the steady state, which is reported separately.
    #[serde(with = "duration")]
    pub warm_up: Duration,
    /// Length of the steady state, after the warm-up; until the end of the run when absent.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub steady: Option<Duration>,
    /// Facts about the run that the laboratory wants to keep with it, for `run.json`.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
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
            comment: String::new(),
            assignment: Assignment::default(),
            record: true,
            duration: None,
            events: None,
            timeout: Duration::from_secs(10),
            find_shifts: true,
            calibrate: false,
            warm_up: Duration::ZERO,
            steady: None,
            metadata: Metadata::default(),
        }
    }
}

/// Rule by which events are assigned to builders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignment {
    /// Event `e` goes to the builder with number `e` modulo their count.
    #[default]
    Modulo,
    /// The first builder assigns events to the builders that have room: a slow one gets fewer.
    ByRoom,
}

impl Assignment {
    /// Returns the name used in topologies and in `run.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Modulo => "modulo",
            Self::ByRoom => "by-room",
        }
    }
}

/// Table `[[builder]]`: the configuration of a builder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuilderNodeConfig {
    /// Name of the builder.
    pub name: String,
    /// Addresses to listen on. Sources use the first address of their link's kind.
    #[serde(deserialize_with = "written::addresses")]
    pub listen: Vec<Address>,
    /// Network adapter that the builder drives itself, for links that do that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Bytes in a block, which is the unit of writing to disk; a slot must fit into one.
    #[serde(default = "defaults::block")]
    pub block: ByteSize,
    /// Number of blocks: the builder's memory is this times the block size.
    #[serde(default = "defaults::blocks")]
    pub blocks: u32,
    /// Window, if it is a constant: bytes requested and not yet received, over all sources. 4 MiB if neither this nor
    /// `link` is given and the link was not calibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<ByteSize>,
    /// Switch port that leads to the builder. The window follows from its rate and from half of its buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkConfig>,
    /// Longest time an event waits for a source that does not mention it, and a disconnected source is waited for.
    #[serde(default = "defaults::deadline", with = "duration")]
    pub deadline: Duration,
    /// Maximum number of events open at a time.
    #[serde(default = "defaults::open_events")]
    pub open_events: u32,
    /// Checks made on each fragment before it counts as built.
    #[serde(default)]
    pub check: CheckConfig,
    /// Level 2: a few sources are fetched first, and the others only if the event is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level2: Option<LevelConfig>,
    /// The event filter: decides on the whole event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<LevelConfig>,
    /// Bytes that each source may send eagerly. 0 switches eager sending off.
    #[serde(default = "defaults::eager_credit")]
    pub eager_credit: ByteSize,
    /// Longest slot that is sent eagerly, in bytes.
    #[serde(default = "defaults::eager_limit")]
    pub eager_limit: ByteSize,
    /// Longest time that a block which is not full waits before it goes to disk.
    #[serde(default = "defaults::flush", with = "duration")]
    pub flush: Duration,
    /// Bytes after which a new segment file is begun.
    #[serde(default = "defaults::segment")]
    pub segment: ByteSize,
    /// Way in which the hot thread waits for work.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait: Wait,
    /// Processor to which the hot thread is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
}

impl BuilderNodeConfig {
    /// Creates a configuration with the default for everything else.
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

    /// Returns the link as `thalweg calibrate` measured it; `None` if it was not measured, or if `window` or `link` is
    /// given and takes precedence.
    pub fn known_calibration(&self) -> Option<KeptLink> {
        if self.window.is_some() || self.link.is_some() { None } else { self.stored_calibration() }
    }

    /// Returns the kept measurement for the addresses at which the builder listens.
    pub(crate) fn stored_calibration(&self) -> Option<KeptLink> {
        calibration::read_calibration(&self.listen)
    }

    /// Returns the window for this number of sources, and the bytes that each may send eagerly.
    pub fn window_and_eager_bytes(&self, sources: usize) -> (Window, u64) {
        // Data sent eagerly cannot be left unfetched, so nothing is eager with level 2.
        let eager_credit = if self.level2.is_some() { 0 } else { self.eager_credit.0 };
        let Some(link) = self.link.or_else(|| Some(self.known_calibration()?.link)) else {
            return (Window::Constant(self.window.map_or(WINDOW, |window| window.0)), eager_credit);
        };
        // An eighth of the buffer for eager data; none if that would not hold a small slot from each source.
        let share = link.buffer.0 / 8 / sources.max(1) as u64;
        let eager = if share < LEAST_EAGER { 0 } else { share.min(eager_credit) };
        let path = CreditPath {
            rate: link.payload_bytes_per_second(self.carried_link_kind()),
            round_trip: link.round_trip,
            buffer: link.buffer.0,
            segment: link.packet_payload_bytes(self.carried_link_kind()),
            unasked: eager * sources as u64,
        };
        (Window::Credit(path), eager)
    }

    /// Returns the window of a search for what the link carries.
    pub(crate) fn calibration_window(&self) -> Window {
        let mtu = self.link.map_or_else(defaults::mtu, |link| link.mtu);
        Window::Search {
            segment: self.carried_link_kind().payload_bytes_per_packet(mtu),
            most: self.window.map_or(MAX_CALIBRATION_WINDOW_BYTES, |window| window.0),
        }
    }

    /// Returns the kind of link that the builder's port carries.
    pub(crate) fn carried_link_kind(&self) -> LinkKind {
        let kinds = self.listen.iter().map(Address::link_kind);
        kinds.into_iter().find(|kind| !kind.maps).unwrap_or_default()
    }

    /// Returns the number of blocks needed to have a place for everything that may be requested, beside the blocks
    /// being filled and written.
    pub fn block_count_for(&self, window: &Window) -> u32 {
        let bytes = match *window {
            Window::Constant(_) => 0.0,
            Window::Search { most, .. } => most as f64,
            Window::Credit(path) => path.rate * path.round_trip.as_secs_f64() * 1.5 + path.buffer as f64,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        let needed = (bytes / self.block.0 as f64).ceil() as u32 + 4;
        self.blocks.max(needed.min(4096))
    }

    /// Returns whether events are decided on, so that fragments wait outside of blocks until they are.
    pub fn has_trigger(&self) -> bool {
        self.level2.is_some() || self.filter.is_some()
    }

    /// Returns the conditions of its trigger levels, each with the level's name.
    pub fn level_conditions(&self) -> impl Iterator<Item = (&'static str, Condition)> {
        let levels = [("level2", &self.level2), ("filter", &self.filter)];
        levels.into_iter().filter_map(|(name, level)| match level.as_ref()?.level_decision(1) {
            Ok(Decision::Condition(condition)) => Some((name, condition)),
            _ => None,
        })
    }

    /// Returns the length in bytes of the longest slot that fits a block together with the index of its records.
    pub fn largest_slot(&self) -> u32 {
        u32::try_from(self.block.0.saturating_sub(BESIDE_SLOT)).unwrap_or(u32::MAX)
    }
}

/// Link of a builder: the port of the last switch, where the data of all sources meet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Line rate of the port.
    pub rate: BitRate,
    /// Time from a fetch to its first data on an idle path. During a run, the shortest time measured replaces it.
    #[serde(with = "duration")]
    pub round_trip: Duration,
    /// Bytes that the port queues before it drops any.
    pub buffer: ByteSize,
    /// Bytes in the longest IP packet.
    #[serde(default = "defaults::mtu")]
    pub mtu: u32,
}

impl LinkConfig {
    /// Bytes per packet on an Ethernet line beside the IP packet: header (14), checksum (4), preamble (8), gap (12).
    const FRAMING_BYTES: u32 = 38;

    /// Returns the payload bytes in a packet (TCP's MSS).
    pub fn packet_payload_bytes(&self, kind: LinkKind) -> u32 {
        kind.payload_bytes_per_packet(self.mtu)
    }

    /// Returns the payload bytes that the port carries in a second.
    pub fn payload_bytes_per_second(&self, kind: LinkKind) -> f64 {
        self.rate.bytes_per_second() * f64::from(self.packet_payload_bytes(kind))
            / f64::from(self.mtu + Self::FRAMING_BYTES)
    }
}

/// Trigger level, which decides whether an event is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LevelConfig {
    /// Names of the sources that are fetched first (level 2 only).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Events to accept; absent if a [`program`](Self::program) decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept: Option<Accept>,
    /// Seed that selects the events of a fraction; 1 for level 2 and 2 for the event filter when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Program that decides, and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
    /// Time that the program has for an event; 100 ms when absent.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub deadline: Option<Duration>,
    /// Decision on an event for which a condition is neither true nor false, or for which a program gives no answer;
    /// accepted when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Otherwise>,
    /// Directory in which the program is started; the directory of the topology file when absent.
    #[serde(skip_serializing_if = "is_here")]
    pub directory: PathBuf,
}

fn is_here(directory: &Path) -> bool {
    directory.as_os_str().is_empty()
}

/// Rule that selects the events to accept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a fraction of the events, from 0 to 1, or a condition, such as \"beam.x < 300.0\"")]
pub enum Accept {
    /// Fraction of the events, drawn from their numbers: simulated.
    Fraction(f64),
    /// Expression that is true for the events to accept ([`Condition`]).
    Condition(String),
}

/// Decision on an event that could not be decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Otherwise {
    /// The event is kept.
    #[default]
    Accept,
    /// The event is rejected.
    Reject,
}

/// Decider of a level, as far as it is known before the sources connect.
#[derive(Debug)]
pub(crate) enum Decision {
    Simulated(Simulated),
    Condition(Condition),
    Program(ProgramConfig),
}

impl LevelConfig {
    /// Default time that a program has for an event.
    const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// Returns the decider of the level, or the key that is wrong and a description of the problem.
    pub(crate) fn level_decision(&self, usual_seed: u64) -> Result<Decision, (&'static str, String)> {
        let Self { accept, seed, program, deadline, otherwise, directory, .. } = self;
        let accepts = otherwise.unwrap_or_default() == Otherwise::Accept;
        if seed.is_some() && !matches!(accept, Some(Accept::Fraction(_))) {
            return Err(("seed", "it does not draw random numbers: a seed needs a fraction".into()));
        }
        if program.is_empty() {
            if deadline.is_some() {
                return Err(("deadline", "it does not wait: a deadline needs a program".into()));
            }
            if !is_here(directory) {
                return Err(("directory", "it starts nothing: this needs a program".into()));
            }
        }
        match accept {
            Some(_) if !program.is_empty() => {
                Err(("program", "`accept` already decides: set only one of the two".into()))
            }
            None if program.is_empty() => Err(("accept", "set `accept` or `program`".into())),
            None => Ok(Decision::Program(ProgramConfig {
                command: program.clone(),
                directory: if is_here(directory) { ".".into() } else { directory.clone() },
                deadline: deadline.unwrap_or(Self::DEFAULT_DEADLINE),
                otherwise: accepts,
            })),
            Some(Accept::Fraction(_)) if otherwise.is_some() => {
                Err(("otherwise", "a fraction leaves no event undecided: this needs a condition".into()))
            }
            Some(Accept::Fraction(accept)) if (0.0..=1.0).contains(accept) => {
                Ok(Decision::Simulated(Simulated::new(*accept, seed.unwrap_or(usual_seed))))
            }
            Some(Accept::Fraction(accept)) => {
                Err(("accept", format!("{accept}: it must be a fraction of the events, from 0 to 1")))
            }
            Some(Accept::Condition(text)) => {
                Condition::parse(text, accepts).map(Decision::Condition).map_err(|problem| ("accept", problem))
            }
        }
    }
}

/// Checks made on each fragment.
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
            _ => Err(format!("'{text}': write 'header' or 'payload'")),
        }
    }
}

/// Table `[[source]]`: the configuration of a source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceNodeConfig {
    /// Name of the source.
    pub name: String,
    /// Id of the source, `"subsystem.element"`.
    #[serde(deserialize_with = "written::id")]
    pub id: String,
    /// Device that fragments come from. If absent, another program pushes them ([`crate::PushSource`], in Python
    /// `thalweg.Source`), and chooses everything below itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceConfig>,
    /// Times of the events, for a device that works by itself and whose frames are numbered by their time stamps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beat: Option<Beat>,
    /// Kind of link, which selects one of a builder's addresses.
    #[serde(default)]
    pub link: LinkKind,
    /// Network adapter that the source drives itself, if its link does that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// TCP congestion control of its links, or `system` for the system's default; cubic when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Number of events per second; as fast as they are taken when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<EventRate>,
    /// Number of events that come at once, at the same mean rate; used with a `rate`.
    #[serde(default = "defaults::burst", skip_serializing_if = "defaults::is_one")]
    pub burst: u32,
    /// Behaviour while all slots are full.
    #[serde(default)]
    pub policy: Policy,
    /// Number of slots.
    #[serde(default = "defaults::slots")]
    pub slots: u32,
    /// Bytes in a slot; when absent, one fragment or as many as fit 512 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<ByteSize>,
    /// Way in which the hot thread waits for work.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait: Wait,
    /// Processor to which the hot thread is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
}

impl SourceNodeConfig {
    /// Returns the id. The topology must have been checked.
    pub fn source_id(&self) -> SourceId {
        self.id.parse().unwrap_or_default()
    }

    /// Returns the name of the source whose images this one fits, and to which it belongs.
    pub fn fitted_source(&self) -> Option<&str> {
        Some(self.device.as_ref()?.observed_source()?.source)
    }

    /// Returns the bytes in each slot, for a device whose longest payload has `max_payload` bytes.
    pub fn slot_bytes(&self, max_payload: usize) -> usize {
        match self.slot {
            Some(ByteSize(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            // A device that works by itself puts one fragment into each slot.
            None if self.device.as_ref().is_some_and(|device| device.is_acquisition()) => record_bytes(max_payload),
            None => default_slot_bytes(max_payload),
        }
    }
}

/// Rate in events per second, from 10⁻⁶ to 10⁹: the interval between two is from a nanosecond to some days.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(into = "f64")]
pub struct EventRate(f64);

/// Error for a number that is not a rate of events.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("'{0}' is not a rate: write a number of events per second, from 1e-6 to 1e9")]
pub struct EventRateError(String);

impl EventRate {
    /// Returns the rate in events per second.
    pub fn events_per_second(self) -> f64 {
        self.0
    }

    /// Returns the time from one event to the next.
    pub fn event_interval(self) -> Duration {
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

/// Returns the default number of bytes in each slot, for a longest payload of `max_payload` bytes: one fragment or
/// several.
pub fn default_slot_bytes(max_payload: usize) -> usize {
    let record = record_bytes(max_payload);
    record * (DEFAULT_SLOT / record).max(1)
}

/// Files that a node has open besides its links: standard streams, memory, poller, wake-ups, ring, run.
const OWN_FILES: u64 = 16;

/// Bytes of a block that are not available to a slot: 16 of index for each record, the block's header, its closings,
/// and the rounding to whole pages.
const BESIDE_SLOT: u64 = 16 * MAX_RECORDS as u64 + 64 + 128 * 32 + 4096;
/// Widest window in bytes that is tried in a calibration if no `window` is given.
const MAX_CALIBRATION_WINDOW_BYTES: u64 = 64 << 20;
/// Default window: bytes requested and not yet received, if nothing is known of the link.
pub const WINDOW: u64 = 4 << 20;
/// Minimum number of bytes per source that is worth sending eagerly.
const LEAST_EAGER: u64 = 1 << 10;

/// Bytes up to which slots hold several fragments: large enough that requests cost little, small enough for the cache.
pub const DEFAULT_SLOT: usize = 512 << 10;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Behaviour of a source while all its slots are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The device waits.
    #[default]
    Block,
    /// The new fragment is dropped, counted and announced.
    DropNewest,
    /// The oldest slot that has not been fetched is dropped, counted and announced, and the new fragment takes its
    /// place.
    DropOldest,
}

impl Policy {
    /// Returns the capabilities that a source with this policy announces in its hello.
    pub fn announced_capabilities(self) -> Capabilities {
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

/// Problem with a topology.
#[derive(Debug, Error)]
pub enum TopologyError {
    /// The file could not be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The file is not TOML, or not of this shape. The text names line and column.
    #[error("{}: {error}{advice}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Line, column and reason.
        error: Box<toml::de::Error>,
        /// Suggested correction, or an empty string.
        advice: &'static str,
    },
    /// A value that was given beside the file is not possible.
    #[error("{given_as}: {problem}")]
    Setting {
        /// Words by which it was given, such as `--set run.duration=5s`.
        given_as: String,
        /// Description of the problem.
        problem: String,
    },
    /// A value is not possible.
    #[error("{}: {field}: {problem}", path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Name of the field, as written in the file.
        field: String,
        /// Description of the problem, and what to do.
        problem: String,
    },
}

impl TopologyError {
    /// Returns the description of the problem without the place in the file.
    fn problem_text(&self) -> String {
        match self {
            Self::Parse { error, advice, .. } => {
                let advice = if advice.is_empty() { String::new() } else { format!(": {}", advice.trim_end()) };
                format!("{}{advice}", error.message())
            }
            Self::Value { field, problem, .. } => format!("{field}: {problem}"),
            Self::Setting { problem, .. } => problem.clone(),
            Self::Read { error, .. } => error.to_string(),
        }
    }

    fn read_error(path: &Path, error: std::io::Error) -> Self {
        let error = match error.kind() {
            std::io::ErrorKind::InvalidData => {
                std::io::Error::new(error.kind(), "it is not UTF-8 text, which TOML requires: save it as UTF-8")
            }
            std::io::ErrorKind::IsADirectory => {
                std::io::Error::new(error.kind(), "it is a directory: name a topology, which is a TOML file")
            }
            _ => error,
        };
        Self::Read { path: path.to_owned(), error }
    }

    fn parse_error(path: &Path, text: &str, error: toml::de::Error) -> Self {
        let at = error.span().and_then(|span| text.get(span)).unwrap_or("");
        let advice = match (error.message(), at.trim_matches(['[', ']'])) {
            ("duplicate key", "source") => "there may be several sources: write [[source]]\n",
            ("duplicate key", "builder") => "there may be several builders: write [[builder]]\n",
            (message, _) => quoted_number_advice(message),
        };
        Self::Parse { path: path.to_owned(), error: Box::new(error), advice }
    }
}

/// Returns the advice for a number that is written as a text; empty for any other problem.
fn quoted_number_advice(message: &str) -> &'static str {
    let expected = message.strip_prefix("invalid type: string").and_then(|rest| rest.rsplit_once("expected "));
    match expected.map(|(_, expected)| expected) {
        Some("u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize") => {
            "write a whole number without quotation marks\n"
        }
        Some("f32" | "f64") => "write a number without quotation marks\n",
        _ => "",
    }
}

impl Topology {
    /// Returns the same nodes set up to measure what the builders' links carry: every source is always full, nothing is
    /// recorded.
    pub fn into_calibration(mut self) -> Self {
        self.run = RunConfig { calibrate: true, record: false, duration: None, events: None, number: None, ..self.run };
        for builder in &mut self.builders {
            (builder.level2, builder.filter) = (None, None);
        }
        let sources = self.sources.len().max(1) as u64;
        let widest = self
            .builders
            .iter()
            .map(|builder| builder.window.map_or(MAX_CALIBRATION_WINDOW_BYTES, |window| window.0))
            .max();
        for source in &mut self.sources {
            // One waveform: filling a slot costs nothing once it has been filled.
            let model = ModelAdcConfig { size: ByteSize(64 << 10), size_from: None, seed: 1, source: None, period: 1 };
            source.device = Some(model.into());
            source.policy = Policy::Block;
            source.rate = None;
            source.burst = 1;
            source.slot = Some(ByteSize(record_bytes(64 << 10) as u64));
            // All of the window may be requested from each in turn.
            source.slots = u32::try_from(widest.unwrap_or(MAX_CALIBRATION_WINDOW_BYTES) / sources / (64 << 10))
                .unwrap_or(u32::MAX)
                .clamp(32, 8192);
            // The congestion window must grow until something is lost; algorithms that react to delay stop earlier.
            source.congestion.get_or_insert_with(|| "reno".into());
        }
        self
    }

    /// Reads and checks a file, for all of its nodes or only for the node with the name `node`: another program may
    /// have further kinds of devices. Paths in the file are relative to it.
    ///
    /// # Errors
    /// The file cannot be read, is not a topology, or has a field with an impossible value.
    pub fn load(path: &Path, node: Option<&str>) -> Result<Self, TopologyError> {
        Self::load_with_settings(path, node, &[])
    }

    /// Does the same as [`load`](Self::load), with settings beside the file, which count as if they were written there.
    ///
    /// # Errors
    /// Those of [`load`](Self::load). An error that a setting causes names it.
    pub fn load_with_settings(path: &Path, node: Option<&str>, settings: &[Setting]) -> Result<Self, TopologyError> {
        let text = std::fs::read_to_string(path).map_err(|error| TopologyError::read_error(path, error))?;
        if settings.is_empty() {
            let read = toml::from_str(&text).map_err(|error| TopologyError::parse_error(path, &text, error))?;
            return Self::check_loaded(read, path, node);
        }
        settings::read_with_settings(path, &text, settings, |table| {
            let read = table.try_into().map_err(|error| TopologyError::parse_error(path, "", error))?;
            Self::check_loaded(read, path, node)
        })
    }

    /// Resolves the paths of a topology that was read, and checks its values.
    fn check_loaded(mut topology: Self, path: &Path, node: Option<&str>) -> Result<Self, TopologyError> {
        topology.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        for source in &mut topology.sources {
            let id = source.source_id();
            if let Some(device) = &mut source.device {
                device.set_default_source(id);
            }
        }
        let checked = topology.check_values().and_then(|()| topology.check_unknown_devices(node));
        checked.map_err(|(field, problem)| TopologyError::Value { path: path.to_owned(), field, problem })?;
        Ok(topology)
    }

    /// Checks that no source has a device whose kind is not known here: the one of this name, or all.
    fn check_unknown_devices(&self, node: Option<&str>) -> Result<(), (String, String)> {
        for source in self.sources.iter().filter(|source| node.is_none_or(|node| node == source.name)) {
            if let Some(device) = source.device.as_ref().filter(|device| !device.is_registered()) {
                device
                    .check_options()
                    .map_err(|error| (format!("source '{}': device", source.name), error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Resolves relative paths against `base`.
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

    /// Returns the number of files that a builder has open when all sources are connected.
    pub fn builder_open_files(&self) -> u64 {
        OWN_FILES + self.sources.iter().map(|source| source.link.files).sum::<u64>()
    }

    /// Returns the number of files that a source has open when all builders are connected, without those of its device.
    pub fn source_open_files(&self, source: &SourceNodeConfig) -> u64 {
        let reached =
            self.builders.iter().filter(|builder| self.builder_address(builder, source.link).is_some()).count();
        OWN_FILES + source.link.files * reached as u64
    }

    /// Returns the address at which sources with this kind of link reach a builder.
    pub fn builder_address<'a>(&self, builder: &'a BuilderNodeConfig, link: LinkKind) -> Option<&'a Address> {
        builder.listen.iter().find(|address| address.link_kind() == link)
    }

    /// Returns the names of all nodes, builders first.
    pub fn node_names(&self) -> Vec<&str> {
        let builders = self.builders.iter().map(|builder| builder.name.as_str());
        builders.chain(self.sources.iter().map(|source| source.name.as_str())).collect()
    }
}
