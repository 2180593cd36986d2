//! The scenario: a network of senders behind switches, their traffic, and the measurement.
//!
//! A scenario is a TOML file, or the few options of `thalweg lab incast`. Both become a [`Scenario`] that was
//! [checked](Scenario::check_values), which every laboratory (virtual time, this host, ns-3) takes.

mod control;
mod fabric;

pub use control::{CONGESTION_CONTROLS, Control, ControlError};
pub use fabric::{Link, Shared, Stall, Tree, Unlike, UnlikeReceiver};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_text::{BitRate, ByteSize, duration};
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// A network, its traffic, and how it is measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Table `[network]`: hosts, links and switches.
    pub network: Network,
    /// Table `[traffic]`: data of the sources, and control of their sending.
    #[serde(default)]
    pub traffic: Traffic,
    /// Table `[measure]`: duration and kind of the measurement.
    #[serde(default)]
    pub measure: Measure,
}

/// `[network]`: every sender and receiver has a link of its own to a switch; without `shared` or `tree`, to the same
/// one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Number of sources, each on a host of its own.
    pub senders: u32,
    /// Number of builders, each on a host of its own with a switch port of its own.
    #[serde(default = "one")]
    pub receivers: u32,
    /// Rate of every link.
    #[serde(default = "defaults::rate")]
    pub rate: BitRate,
    /// One-way delay from a sender to a receiver, and the same on the way back, without any queue.
    #[serde(default = "defaults::delay", with = "duration")]
    pub delay: Duration,
    /// Fraction of packets that are lost on their way to the switch port of a receiver.
    #[serde(default)]
    pub loss: f64,
    /// Size of the buffer of each receiver's switch port, in bytes.
    #[serde(default = "defaults::buffer")]
    pub buffer: ByteSize,
    /// Length of the longest IP packet, in bytes.
    #[serde(default = "defaults::mtu")]
    pub mtu: u32,
    /// Senders that differ from the others.
    #[serde(default, rename = "sender", skip_serializing_if = "Vec::is_empty")]
    pub unlike: Vec<Unlike>,
    /// Receivers that differ from the others.
    #[serde(default, rename = "receiver", skip_serializing_if = "Vec::is_empty")]
    pub unlike_receivers: Vec<UnlikeReceiver>,
    /// Uplinks that several senders share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// Leaf switches around a core, instead of one switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<Tree>,
}

/// A network of one sender, with the default of every other key.
impl Default for Network {
    fn default() -> Self {
        Self {
            senders: 1,
            receivers: one(),
            rate: defaults::rate(),
            delay: defaults::delay(),
            loss: 0.0,
            buffer: defaults::buffer(),
            mtu: defaults::mtu(),
            unlike: Vec::new(),
            unlike_receivers: Vec::new(),
            shared: None,
            tree: None,
        }
    }
}

/// `[traffic]`: the data of the sources, and the control of their sending.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Mechanism that keeps the senders from overrunning the switch.
    pub control: Control,
    /// Link that carries the traffic.
    #[serde(skip_serializing_if = "Carrier::is_tcp")]
    pub link: Carrier,
    /// Number of payload bytes of each fragment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Smallest and largest payload, instead of `size`; each fragment's size is drawn between them, uniformly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<[ByteSize; 2]>,
    /// Time from one event to the next; absent if sources always have more.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub interval: Option<Duration>,
    /// Number of events that come at once, at the same mean rate; requires `interval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Assignment of events to builders.
    #[serde(skip_serializing_if = "Assignment::is_modulo")]
    pub assignment: Assignment,
    /// True for one event at a time: the next is fetched when the last is complete.
    pub barrier: bool,
    /// Number of other TCP flows (cubic, always full) that share the first receiver's port, all from one more host.
    pub cross: u32,
    /// True for loss recovery as it was before RACK and tail loss probes.
    pub classic_recovery: bool,
}

/// Link that carries the traffic: a topology's `link`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// Linux's TCP.
    #[default]
    Tcp,
    /// Thalweg's frames over UDP, where only credits keep senders from overrunning the switch.
    Udp,
    /// RDMA by iWARP over Linux's TCP, with the system's congestion control.
    Rdma,
    /// RDMA by EFE over UDP.
    RdmaEfe,
}

impl Carrier {
    const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Rdma, Self::RdmaEfe];

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
    fn is_tcp(&self) -> bool {
        *self == Self::Tcp
    }

    /// Returns the name in a topology.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Rdma => "rdma",
            Self::RdmaEfe => "rdma-efe",
        }
    }

    /// Returns the number of bytes of a slot in a full packet of `mtu` bytes.
    fn payload_bytes_per_packet(self, mtu: u32) -> u32 {
        match self {
            Self::Tcp => mtu - TCP_IP,
            // IPv4 (20), UDP (8), the header of a frame (64); pieces are whole cache lines.
            Self::Udp => (mtu - 92) / 64 * 64,
            // Length and CRC of MPA (6), tagged header of DDP (14).
            Self::Rdma => mtu - TCP_IP - 20,
            // IPv4 (20), UDP (8), EFE (56), tagged header of DDP (14).
            Self::RdmaEfe => mtu - 98,
        }
    }
}

impl std::str::FromStr for Carrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| {
            format!("'{text}' is not a link of the laboratory's: use {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Assignment of events to builders: a topology's `assignment`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignment {
    /// Event `e` goes to builder `e` modulo the number of builders.
    #[default]
    Modulo,
    /// Events go to builders that have room.
    ByRoom,
}

impl Assignment {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
    fn is_modulo(&self) -> bool {
        *self == Self::Modulo
    }
}

/// `[measure]`: duration and kind of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measure {
    /// Duration of the measurement, in seconds of the network's time.
    pub seconds: f64,
    /// Time before the measurement, which does not count; absent: see [`Scenario::warm_up_time`].
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub warm_up: Option<Duration>,
    /// Time between two samples of a queue; absent: see [`Scenario::sample_interval`].
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::option")]
    pub sample: Option<Duration>,
    /// True to calibrate instead of measuring: each builder determines its link's capacity, as under `thalweg
    /// calibrate`.
    pub calibrate: bool,
    /// Wall-clock time after which the run is given up.
    #[serde(with = "duration")]
    pub wall_limit: Duration,
}

impl Default for Measure {
    fn default() -> Self {
        Self { seconds: 1.0, warm_up: None, sample: None, calibrate: false, wall_limit: Duration::from_secs(600) }
    }
}

/// Bytes of Ethernet before an IP packet, as far as a Linux queue counts them: two addresses and a type.
pub const ETHERNET_HEADER_BYTES: u32 = 14;
/// Other bytes of a frame on the wire: preamble (8), checksum (4), gap (12). A Linux queue does not count them.
pub const WIRE_OVERHEAD_BYTES: u32 = 24;
/// Bytes of an IPv4 header, a TCP header, and TCP's timestamp option with its padding.
pub const TCP_IP: u32 = 20 + 20 + 12;
/// Bytes of the header before each fragment; records are padded to a multiple of it.
const RECORD_HEADER_BYTES: u64 = 64;

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Fails if it cannot be read; otherwise as [`parse`](Self::parse).
    pub fn load_file(path: &Path) -> Result<Self, ScenarioError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ScenarioError::Read { path: path.to_owned(), error })?;
        Self::parse(&text).map_err(|wrong| ScenarioError::Invalid { path: path.to_owned(), wrong })
    }

    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// Fails if it is not a scenario, or as [`check_values`](Self::check_values); the error names the line.
    pub fn parse(text: &str) -> Result<Self, InvalidLine> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = InvalidLine::at_byte(text, start, error.message().to_owned());
            let problem = number_key_text(&line.text).unwrap_or(line.problem);
            InvalidLine { problem, ..line }
        })?;
        scenario
            .check_values()
            .map_err(|wrong| InvalidLine::at_byte(text, byte_of_key(text, &wrong.key), wrong.to_string()))?;
        Ok(scenario)
    }

    /// Checks the constraints that the types do not express.
    ///
    /// # Errors
    /// Returns the first value that is not possible, and the reason.
    pub fn check_values(&self) -> Result<(), InvalidValue> {
        self.check_network()?;
        check_traffic(&self.traffic)?;
        self.check_measure()?;
        // Last, since stalls and deaths of hosts must be within the measured time.
        self.check_fabric()
    }

    fn check_network(&self) -> Result<(), InvalidValue> {
        let network = &self.network;
        if !(1..=MOST_SENDERS).contains(&network.senders) {
            return invalid_value("network.senders", format!("{}: it must be 1 to {MOST_SENDERS}", network.senders));
        }
        if !(1..=MOST_RECEIVERS).contains(&network.receivers) {
            return invalid_value(
                "network.receivers",
                format!("{}: it must be 1 to {MOST_RECEIVERS}", network.receivers),
            );
        }
        if network.delay > Duration::from_secs(1) {
            return invalid_value("network.delay", "it must be at most 1s".into());
        }
        if !(0.0..=0.5).contains(&network.loss) {
            return invalid_value(
                "network.loss",
                format!("{}: it must be a fraction of all packets, 0 to 0.5", network.loss),
            );
        }
        if !(576..=9216).contains(&network.mtu) {
            return invalid_value("network.mtu", format!("{}: it must be 576 to 9216 bytes", network.mtu));
        }
        self.check_buffer("network.buffer", Some(network.buffer))
    }

    fn check_measure(&self) -> Result<(), InvalidValue> {
        let Self { network, traffic, measure } = self;
        if !(measure.seconds >= 0.001 && measure.seconds <= 3600.0) {
            return invalid_value("measure.seconds", format!("{}: it must be 0.001 to 3600", measure.seconds));
        }
        if measure.warm_up.is_some_and(|time| time > Duration::from_secs(3600)) {
            return invalid_value("measure.warm_up", "it must be at most 1h".into());
        }
        if measure.sample.is_some_and(|time| time < Duration::from_micros(1)) {
            return invalid_value("measure.sample", "it must be at least 1us".into());
        }
        if measure.calibrate && !(traffic.control.credit && network.receivers == 1 && traffic.interval.is_none()) {
            let problem = "it needs control = \"credit\", one receiver, and sources that always have more data".into();
            return invalid_value("measure.calibrate", problem);
        }
        let mut receivers = network.unlike_receivers.iter();
        if measure.calibrate && receivers.any(|receiver| receiver.stall.is_some() || receiver.dies.is_some()) {
            return invalid_value(
                "measure.calibrate",
                "a calibration measures nothing in which a builder could stall or die".into(),
            );
        }
        if measure.wall_limit.is_zero() {
            return invalid_value("measure.wall_limit", "it must be above 0".into());
        }
        Ok(())
    }

    /// Returns the payload bytes of the smallest and the largest fragment, for senders that do not
    /// [differ](Self::payload_range_of).
    pub fn payload_range(&self) -> (u64, u64) {
        match (self.traffic.size, self.traffic.sizes) {
            (_, Some([from, to])) => (from.0, to.0),
            (Some(ByteSize(size)), None) => (size, size),
            (None, None) => (DEFAULT_SIZE, DEFAULT_SIZE),
        }
    }

    /// Returns the number of bytes of a full packet as a queue of Linux counts them.
    pub fn frame_bytes(&self) -> u32 {
        self.network.mtu + ETHERNET_HEADER_BYTES
    }

    /// Returns the rate to set for a queue that counts no more than [`frame_bytes`](Self::frame_bytes) bytes, so that
    /// full frames leave as they do on a real wire of the rate `link`.
    pub fn queue_rate_for(&self, link: BitRate) -> BitRate {
        let (frame, wire) = (u64::from(self.frame_bytes()), u64::from(self.frame_bytes() + WIRE_OVERHEAD_BYTES));
        BitRate((u128::from(link.0) * u128::from(frame) / u128::from(wire)) as u64)
    }

    /// Returns the time to a receiver and back, without any queue.
    pub fn round_trip_time(&self) -> Duration {
        2 * self.network.delay
    }

    /// Returns the number of bytes on the way in one round trip at the fastest receiver's rate.
    pub fn bandwidth_delay_bytes(&self) -> u64 {
        (self.fastest_port().bytes_per_second() * self.round_trip_time().as_secs_f64()) as u64
    }

    /// Returns the time that a full packet takes through the fastest receiver's link.
    pub fn packet_time(&self) -> Duration {
        Duration::from_secs_f64(
            f64::from(self.frame_bytes() + WIRE_OVERHEAD_BYTES) / self.fastest_port().bytes_per_second(),
        )
    }

    /// Returns the time between bursts of events: `interval` times `burst`; `None` if sources always have more.
    pub fn burst_period(&self) -> Option<Duration> {
        self.traffic.interval.map(|interval| interval * self.traffic.burst.unwrap_or(1))
    }

    /// Returns the time before the measurement: by default 20 round trips and at least 50 ms, so that slow start and
    /// its effects are over.
    pub fn warm_up_time(&self) -> Duration {
        self.measure.warm_up.unwrap_or_else(|| (20 * self.round_trip_time()).max(Duration::from_millis(50)))
    }

    /// Returns the duration of the measurement.
    pub fn measured_time(&self) -> Duration {
        Duration::from_secs_f64(self.measure.seconds)
    }

    /// Returns the time between two samples of a queue: by default a little more than the time of four packets (so that
    /// the two do not beat), and no more than 25 000 samples in all.
    pub fn sample_interval(&self) -> Duration {
        let all = self.warm_up_time() + self.measured_time();
        self.measure
            .sample
            .unwrap_or_else(|| self.packet_time().mul_f64(4.3).max(all / 25_000).max(Duration::from_micros(1)))
    }

    /// Returns the number of equal steps of a report's timeline: at least two samples of a queue are in each, and more
    /// than 400 cannot be distinguished on a page.
    pub(crate) fn timeline_step_count(&self) -> u32 {
        let possible = self.measured_time().as_secs_f64() / (2.0 * self.sample_interval().as_secs_f64());
        possible.clamp(1.0, 400.0) as u32
    }

    /// Returns the payload bits that can reach all receivers in a second: the events per second that every
    /// [link](Self::all_links) can carry, with the part of their bytes that passes it, times an event's payload.
    ///
    /// ```text
    /// events = min over all links (rate / bytes of an event on the wire that pass the link)
    /// bytes on the wire = record × (mtu + 38) / payload of a packet
    /// payload of a packet = mtu − 52 over TCP, mtu − 92 in whole 64 bytes over UDP
    /// ```
    ///
    /// An event needs a fragment of every sender, so no sender gets further than the slowest; builders take events in
    /// turn, so each gets an equal part of them. With an `interval`, there is no more than one event in each. Other
    /// flows on the port are not subtracted, nor is what is lost because a builder stalls or dies.
    pub fn ceiling_bits_per_second(&self) -> f64 {
        self.link_ceiling_bits_per_second().min(self.offered_bits_per_second().unwrap_or(f64::INFINITY))
    }

    /// Returns the same without regard to what the sources offer.
    pub fn link_ceiling_bits_per_second(&self) -> f64 {
        let carried = self.all_links().into_iter().filter(|link| link.event_bytes > 0.0);
        let events = carried.map(|link| link.events_per_second()).fold(f64::INFINITY, f64::min);
        events * self.event_payload_bytes() * 8.0
    }
}

/// Largest number of senders of any laboratory; some [take fewer](crate::Laboratory::max_senders).
pub(crate) const MOST_SENDERS: u32 = 1000;
/// Largest number of receivers of any laboratory; some take fewer.
pub(crate) const MOST_RECEIVERS: u32 = 1000;
/// Largest payload of a fragment, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 256 << 20;
/// Largest number of events that come at once: a topology's `burst`.
const MOST_BURST: u32 = 100_000;
/// Payload of a fragment if no size is given, in bytes.
pub const DEFAULT_SIZE: u64 = 64 << 10;

fn one() -> u32 {
    1
}

/// Default values: a port of a gigabit switch, as event builders have met them.
pub mod defaults {
    use super::{BitRate, ByteSize, Duration};

    /// Returns 1 Gbit/s.
    pub fn rate() -> BitRate {
        BitRate(1_000_000_000)
    }
    /// Returns 0.1 ms.
    pub fn delay() -> Duration {
        Duration::from_micros(100)
    }
    /// Returns 340 kB.
    pub fn buffer() -> ByteSize {
        ByteSize(340_000)
    }
    /// Returns Ethernet's 1500 bytes.
    pub fn mtu() -> u32 {
        1500
    }
}

/// Error for a value that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key}: {problem}")]
pub struct InvalidValue {
    /// Path of the key, such as `network.senders`.
    pub key: String,
    /// Problem of the value, and the values that are allowed.
    pub problem: String,
}

/// Error in the text of a scenario, with its line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {problem}{}", quoted(.text))]
pub struct InvalidLine {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    /// Problem of the line, and what is allowed.
    pub problem: String,
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\n  {text}") }
}

impl InvalidLine {
    fn at_byte(text: &str, byte: usize, problem: String) -> Self {
        let before = text.as_bytes().get(..byte).unwrap_or(text.as_bytes());
        let line = before.iter().filter(|byte| **byte == b'\n').count();
        let text = text.lines().nth(line).unwrap_or_default().trim().to_owned();
        Self { line: line + 1, text, problem }
    }
}

/// Returns what is wrong with a line that gives a number for the list of unlike senders or receivers; `None` for other
/// lines.
fn number_key_text(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim().trim_start_matches("network.");
    let is_number = value.trim().starts_with(|first: char| first.is_ascii_digit());
    (["sender", "receiver"].contains(&key) && is_number).then(|| {
        format!("`{key}`: the number is `{key}s`; each [[network.{key}]] describes one that is unlike the others")
    })
}

/// Returns the error for a key's value.
pub(crate) fn invalid_value(key: &str, problem: String) -> Result<(), InvalidValue> {
    Err(InvalidValue { key: key.to_owned(), problem })
}

fn check_traffic(traffic: &Traffic) -> Result<(), InvalidValue> {
    check_sizes("traffic", traffic.size, traffic.sizes)?;
    if traffic.interval.is_some_and(|interval| interval < Duration::from_micros(1)) {
        return invalid_value(
            "traffic.interval",
            "it must be at least 1us; without an interval sources always have more data".into(),
        );
    }
    match (traffic.burst, traffic.interval) {
        (Some(_), None) => {
            return invalid_value(
                "traffic.burst",
                "it needs an `interval`, at which its events then come together".into(),
            );
        }
        (Some(burst), _) if !(1..=MOST_BURST).contains(&burst) => {
            return invalid_value("traffic.burst", format!("{burst}: it must be 1 to {MOST_BURST}"));
        }
        _ => {}
    }
    if traffic.link != Carrier::Tcp && traffic.control != Control::default() {
        let problem =
            format!("'{}' has no congestion control to choose: it needs control = \"credit\"", traffic.link.name());
        return invalid_value("traffic.link", problem);
    }
    if traffic.cross > 64 {
        return invalid_value("traffic.cross", format!("{}: it must be at most 64", traffic.cross));
    }
    Ok(())
}

/// Checks the payload sizes in a table.
fn check_sizes(table: &str, size: Option<ByteSize>, sizes: Option<[ByteSize; 2]>) -> Result<(), InvalidValue> {
    match (size, sizes) {
        (Some(_), Some(_)) => {
            invalid_value(&format!("{table}.sizes"), "`size` is set too: write only one of them".into())
        }
        (Some(ByteSize(size)), None) if !(1..=MAX_PAYLOAD_BYTES).contains(&size) => {
            invalid_value(&format!("{table}.size"), format!("{size} bytes: it must be 1 byte to 256 MiB"))
        }
        (None, Some([from, to])) if from.0 == 0 || from > to || to.0 > MAX_PAYLOAD_BYTES => {
            let problem = format!(
                "{from} to {to}: write the smallest, at least 1 byte, then the largest, at most 256 \
                MiB"
            );
            invalid_value(&format!("{table}.sizes"), problem)
        }
        _ => Ok(()),
    }
}

/// Returns the byte at which a key begins in the text, or else the innermost of the tables around it.
fn byte_of_key(text: &str, key: &str) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 0 };
    let mut found = 0;
    let mut value: Option<&DeValue<'_>> = None;
    for part in key.split('.') {
        let table = match value {
            None => table.get_ref(),
            Some(DeValue::Table(table)) => table,
            Some(DeValue::Array(array)) => {
                let Some(next) = part.parse().ok().and_then(|at: usize| array.get(at)) else { break };
                found = next.span().start;
                value = Some(next.get_ref());
                continue;
            }
            Some(_) => break,
        };
        let Some((name, next)) = table.get_key_value(part) else { break };
        found = name.span().start;
        value = Some(next.get_ref());
    }
    found
}

/// Reason why there is no scenario.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The text is not a scenario, or has a value that is not possible.
    #[error("{}, {wrong}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem and its line.
        wrong: InvalidLine,
    },
}

#[cfg(test)]
mod tests;
