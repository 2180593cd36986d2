//! Result of a laboratory: one type for all of them. Its JSON is the output of `thalweg lab --json`.

use crate::scenario::Scenario;
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_bench::Warning;
use thalweg_core::build::COMPLETION_QUANTILES;
use thalweg_text::plot::Provenance;
use thalweg_text::{BitRate, ByteSize};

/// Result of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Offered and carried rate, and the limit. Absent in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Name of the laboratory: `virtual`, `host`, `ns3` or `model`.
    pub laboratory: String,
    /// The scenario that was run.
    pub scenario: Scenario,
    /// Settings of the laboratory, and what it cannot model, in sentences.
    pub notes: Vec<String>,
    /// Payload bits that all receivers built in a second of the measured time.
    pub goodput_bits_per_second: f64,
    /// Highest possible goodput, [`Scenario::ceiling_bits_per_second`].
    pub ceiling_bits_per_second: f64,
    /// Goodput divided by the ceiling.
    pub share_of_ceiling: f64,
    /// Number of TCP segments that the senders retransmitted, in the measured time.
    pub retransmissions: u64,
    /// Number of retransmission timeouts of the senders, in the measured time.
    pub timeouts: u64,
    /// Number of packets dropped by full switch ports, in the measured time.
    pub drops: u64,
    /// The same three numbers from the first packet to the last, which include the cost of the start.
    pub whole_run: Troubles,
    /// The same three numbers before the measured time; absent if the laboratory does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Troubles>,
    /// Queue at the fullest switch port, relative to its limit.
    pub queue: Queue,
    /// Number of events in the measured time.
    pub events: Events,
    /// Time from an event's first mention to its last byte, for events of the measured time; that of the slowest
    /// receiver. Absent if there was no event, or the laboratory does not see events.
    pub completion: Option<Completion>,
    /// Result of a builder's calibration, if the scenario calibrates.
    #[serde(default)]
    pub found: Option<CalibratedLink>,
    /// Cost of the messages between nodes, if the laboratory counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bookkeeping: Option<Bookkeeping>,
    /// Duration of the measurement, in seconds of the network's time.
    pub measured_seconds: f64,
    /// Duration of the whole run, warm-up, start and end included, in seconds of the network's time.
    pub virtual_seconds: f64,
    /// Real time from the command to the result, in seconds.
    pub wall_seconds: f64,
    /// Parts of the run and their durations in the network's time, which on the host is real time. Empty if the
    /// laboratory does not measure them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Conditions on the machine that make the figures doubtful.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Part of the time of the host's processors that was used, by all processes; only of a laboratory in real time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors_busy: Option<f64>,
    /// Origin: scenario, date, version, machine, command.
    #[serde(default)]
    pub provenance: Provenance,
    /// Results of each sender.
    pub senders: Vec<Sender>,
    /// Results of each receiver.
    pub receivers: Vec<Receiver>,
    /// Ports between switches: shared uplinks and trunks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Use of each link in the measured time; of very many senders' links some. Empty if the laboratory does not
    /// measure it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkUse>,
    /// Results of the other flows, if there are any.
    pub cross: Option<Cross>,
    /// Links and credit over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// Cost of coordinating the senders, and of the memory for data that is under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bookkeeping {
    /// Messages of 64 bytes per second, of all nodes together: offers, fetches, headers before data, releases.
    pub messages_per_second: f64,
    /// Number of messages for each event.
    pub messages_per_event: f64,
    /// Bytes of messages divided by bytes of all payloads.
    pub share_of_bytes: f64,
    /// Largest number of bytes that a builder had reserved for requested data.
    pub builder_bytes: u64,
    /// Largest number of bytes that a source held until they were released.
    pub source_bytes: u64,
    /// Largest number of bytes that waited before a sender's link for the turns of others.
    pub card_bytes: u64,
}

/// Capacity of a builder's link as its calibration found it, in the form of a topology's `link`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibratedLink {
    /// Bits per second on the line.
    pub rate: BitRate,
    /// Shortest time from a fetch to its data.
    #[serde(with = "thalweg_text::duration")]
    pub round_trip: Duration,
    /// Number of bytes that wait at the port before any is dropped.
    pub buffer: ByteSize,
}

/// Retransmissions, timeouts and drops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Troubles {
    /// Number of retransmitted TCP segments.
    pub retransmissions: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Number of packets dropped by full switch ports.
    pub drops: u64,
}

/// Lengths of a queue, in bytes as [`Scenario::frame_bytes`] counts them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Greatest sampled length in the measured time.
    pub max_bytes: u64,
    /// Mean length in the measured time.
    pub mean_bytes: u64,
    /// Size of the buffer.
    pub limit_bytes: u64,
    /// Time between two samples, in seconds.
    pub sample_seconds: f64,
    /// Length from the first packet on: at most 1000 pairs of a time (seconds; 0 is the beginning of the measured time)
    /// and the greatest length since the pair before.
    pub over_time: Vec<(f64, u64)>,
}

/// Number of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Number of events with a fragment of every sender.
    pub complete: u64,
    /// Number of events without a fragment of some sender.
    pub incomplete: u64,
}

impl std::iter::Sum for Events {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            complete: sum.complete + one.complete,
            incomplete: sum.incomplete + one.incomplete,
        })
    }
}

/// Quantiles of the time from an event's first mention to its last byte, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Median of the times, in µs.
    pub p50_us: f64,
    /// 99th percentile of the times, in µs.
    pub p99_us: f64,
    /// Longest of the times, in µs.
    pub max_us: f64,
    /// Fractions of the events, and the time in µs within which these were complete. All 0 in reports of earlier
    /// versions.
    #[serde(default)]
    pub distribution: [(f64, f64); COMPLETION_QUANTILES.len()],
}

impl Completion {
    /// Returns the longer one of the times of two receivers, at each quantile.
    pub(crate) fn slower_of(self, other: Self) -> Self {
        let mut distribution = self.distribution;
        for (longest, (fraction, time)) in distribution.iter_mut().zip(other.distribution) {
            *longest = (fraction.max(longest.0), time.max(longest.1));
        }
        Self {
            p50_us: self.p50_us.max(other.p50_us),
            p99_us: self.p99_us.max(other.p99_us),
            max_us: self.max_us.max(other.max_us),
            distribution,
        }
    }
}

/// Part of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Activity: `network`, `connections`, `calibration`, `warm-up`, `measurement`, `end`.
    pub name: String,
    /// Duration, in seconds.
    pub seconds: f64,
}

/// Mean use of a link in the measured time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkUse {
    /// [Name](crate::scenario::Link::name) of the link.
    pub name: String,
    /// Place in the network.
    pub kind: LinkKind,
    /// Rate on the wire, in bits per second.
    pub rate_bits_per_second: u64,
    /// Fraction of the time in which it sent.
    pub busy: f64,
    /// Largest number of bytes that waited before it.
    pub max_waiting_bytes: u64,
}

/// Results of a sender.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sender {
    /// Name of the sender.
    pub name: String,
    /// Rate of its link, in bits per second.
    pub rate_bits_per_second: u64,
    /// Number of retransmitted segments in the measured time.
    pub retransmissions: u64,
    /// Number of retransmission timeouts in the measured time.
    pub timeouts: u64,
    /// Number of tail loss probes in the measured time.
    pub tail_loss_probes: u64,
    /// Number of retransmitted segments from the first packet to the last.
    pub whole_run_retransmissions: u64,
}

/// Results of a receiver.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Receiver {
    /// Name of the receiver.
    pub name: String,
    /// True if its builder was killed, as the scenario specifies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
    /// Payload bits built in a second of the measured time.
    pub goodput_bits_per_second: f64,
    /// Number of events in the measured time.
    pub events: Events,
    /// Time to build an event, for events of the measured time.
    pub completion: Option<Completion>,
    /// Number of packets dropped at its port in the measured time.
    pub drops: u64,
    /// Queue of its port.
    pub queue: Queue,
}

/// A switch's port towards another switch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// [Name](crate::scenario::Link::name) of its link.
    pub name: String,
    /// Number of packets dropped in the measured time.
    pub drops: u64,
    /// Queue of the port.
    pub queue: Queue,
}

impl Port {
    /// Returns the place of its link in the network, by its name.
    pub(crate) fn link_kind(&self) -> LinkKind {
        if self.name.starts_with("rack-") { LinkKind::Shared } else { LinkKind::Trunk }
    }
}

/// Results of the other flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cross {
    /// Number of flows.
    pub flows: u32,
    /// Goodput of all of them together, in the measured time.
    pub goodput_bits_per_second: f64,
    /// Number of TCP segments retransmitted in the measured time.
    pub retransmissions: u64,
}

/// Use of each link and place of the credit, over equal steps of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Time at which the first step begins, in seconds; 0 is the beginning of the measured time.
    pub from_seconds: f64,
    /// Duration of each step, in seconds.
    pub step_seconds: f64,
    /// Links, from senders to receivers; if there are very many, some of each kind.
    pub links: Vec<LinkOverTime>,
    /// Credit of each builder; empty if the laboratory does not see it.
    pub credit: Vec<CreditOverTime>,
    /// Number of segments retransmitted in the measured time, by reason.
    pub again: SentAgain,
}

/// Place of a link in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// Link from a sender to its switch.
    Up,
    /// Link from the switch of some senders to the common switch.
    Shared,
    /// Link between a leaf switch and the core.
    Trunk,
    /// Link from a switch to a receiver.
    Down,
}

/// Use of a link over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkOverTime {
    /// [Name](crate::scenario::Link::name) of the link.
    pub name: String,
    /// Place in the network.
    pub kind: LinkKind,
    /// Rate on the wire, in bits per second.
    pub rate_bits_per_second: u64,
    /// Fraction of each step in which it sent.
    pub busy: Vec<f32>,
    /// Largest number of bytes that waited before it, in each step.
    pub waiting: Vec<u64>,
}

/// Credit of a builder over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CreditOverTime {
    /// Name of the builder.
    pub receiver: String,
    /// Window at the end of each step: bytes that it may request before they are received.
    pub window: Vec<u64>,
    /// Bytes that this builder had requested from each sender and not received, at the end of each step.
    pub at: Vec<Vec<u64>>,
}

/// Number of retransmitted segments, by TCP's reason (counters of `/proc/net/netstat`). A segment can be in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAgain {
    /// Number sent after acknowledgements that showed a gap.
    pub fast: u64,
    /// Number sent to find out whether the last segments arrived.
    pub tail_loss_probes: u64,
    /// Number sent after a timeout.
    pub after_timeout: u64,
    /// Number reported by receivers (DSACK) as already received.
    pub needless: u64,
}
