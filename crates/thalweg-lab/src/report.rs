//! What a laboratory found: one shape for all of them. Its JSON is what `thalweg lab --json` prints.

use crate::scenario::{self, Scenario};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_text::{BitRate, ByteSize};

/// What became of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `virtual`, `host` or `ns3`.
    pub laboratory: String,
    /// What was asked for.
    pub scenario: Scenario,
    /// What the laboratory has set or cannot model, in sentences, so that nobody has to guess.
    pub notes: Vec<String>,
    /// Payload bits that all receivers built in a second of the measured time.
    pub goodput_bits_per_second: f64,
    /// [`Scenario::ceiling`].
    pub ceiling_bits_per_second: f64,
    /// Goodput over ceiling.
    pub share_of_ceiling: f64,
    /// TCP segments that the senders sent again, in the measured time.
    pub retransmissions: u64,
    /// Retransmission timeouts of the senders, in the measured time.
    pub timeouts: u64,
    /// Packets that found no room at a switch's port, in the measured time.
    pub drops: u64,
    /// The same three from the first packet to the last: what the start costs is in them.
    pub whole_run: Troubles,
    /// The queue at a switch's port: that of the fullest, measured by the room it has.
    pub queue: Queue,
    /// Events in the measured time.
    pub events: Events,
    /// From an event's first mention to its last byte, for events of the measured time; the slowest receiver's. Absent
    /// where there was none, or the laboratory does not see events.
    pub completion: Option<Completion>,
    /// What the builder found out of its link, where it was to.
    #[serde(default)]
    pub found: Option<Found>,
    /// What the conversation costs, where the laboratory counts that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bookkeeping: Option<Bookkeeping>,
    /// How long was measured, in seconds of the network's time.
    pub measured_seconds: f64,
    /// How long the network ran, warm-up, start and end included, in seconds of its own time.
    pub virtual_seconds: f64,
    /// How long it took here, from the command to the result.
    pub wall_seconds: f64,
    /// Each sender.
    pub senders: Vec<Sender>,
    /// Each receiver.
    pub receivers: Vec<Receiver>,
    /// Ports between switches: shared uplinks and trunks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// The other flows, where there are any.
    pub cross: Option<Cross>,
    /// What happened over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// What it takes to say who sends what, and to hold what is on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bookkeeping {
    /// Messages of 64 bytes of all nodes together: offers, fetches, what is in front of data, releases.
    pub messages_per_second: f64,
    /// For each event.
    pub messages_per_event: f64,
    /// Their bytes over those of all payloads.
    pub share_of_bytes: f64,
    /// The most that a builder had set aside for what it had asked for.
    pub builder_bytes: u64,
    /// The most that a source held until it was released.
    pub source_bytes: u64,
    /// The most that waited in front of a sender's link, for others' turns.
    pub card_bytes: u64,
}

/// What a builder found its link to carry, as a topology's `link` says it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Bits on the line in a second.
    pub rate: BitRate,
    /// The shortest time from a fetch to its data.
    #[serde(with = "scenario::time")]
    pub round_trip: Duration,
    /// Bytes that wait in front of the port before any is dropped.
    pub buffer: ByteSize,
}

/// What went wrong on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Troubles {
    /// TCP segments sent again.
    pub retransmissions: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Packets that found no room at a switch's port.
    pub drops: u64,
}

/// A queue, in bytes as [`Scenario::frame`] counts them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The longest it was seen, in the measured time.
    pub max_bytes: u64,
    /// The mean, in the measured time.
    pub mean_bytes: u64,
    /// The most there is room for.
    pub limit_bytes: u64,
    /// From one look to the next, in seconds.
    pub sample_seconds: f64,
    /// Its length from the first packet on: at most 1000 pairs of a time (seconds; 0 is when the measured time begins)
    /// and the longest seen since the pair before.
    pub over_time: Vec<(f64, u64)>,
}

/// Events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// With a fragment of every sender.
    pub complete: u64,
    /// Without.
    pub incomplete: u64,
}

/// How long events took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Half of them were faster.
    pub p50_us: f64,
    /// 99 of 100 were faster.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// What a sender did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sender {
    /// Its name.
    pub name: String,
    /// The rate of its link.
    pub rate_bits_per_second: u64,
    /// In the measured time.
    pub retransmissions: u64,
    /// In the measured time.
    pub timeouts: u64,
    /// Tail loss probes, in the measured time.
    pub tail_loss_probes: u64,
    /// From the first packet to the last.
    pub whole_run_retransmissions: u64,
}

/// What a receiver did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// Payload bits built in a second of the measured time.
    pub goodput_bits_per_second: f64,
    /// In the measured time.
    pub events: Events,
    /// In the measured time.
    pub completion: Option<Completion>,
    /// In the measured time.
    pub drops: u64,
    /// The queue of its port.
    pub queue: Queue,
}

/// A switch's port towards another switch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its link's [name](crate::scenario::Link::name).
    pub name: String,
    /// In the measured time.
    pub drops: u64,
    /// Its queue.
    pub queue: Queue,
}

/// What the other flows did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cross {
    /// How many.
    pub flows: u32,
    /// What they got, all together, in the measured time.
    pub goodput_bits_per_second: f64,
    /// TCP segments sent again, in the measured time.
    pub retransmissions: u64,
}

/// What happened on each link and where credit was, over time: equal steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// When the first step begins, in seconds; 0 is when the measured time begins.
    pub from_seconds: f64,
    /// How long each step is.
    pub step_seconds: f64,
    /// Links, from senders to receivers; where there are very many, some of each kind.
    pub links: Vec<LinkOverTime>,
    /// Each builder's credit; nothing where the laboratory does not see it.
    pub credit: Vec<CreditOverTime>,
    /// What was sent again, in the measured time.
    pub again: SentAgain,
}

/// Where in the network a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// From a sender to its switch.
    Up,
    /// From the switch of some senders to that of all.
    Shared,
    /// Between a leaf switch and the core.
    Trunk,
    /// From a switch to a receiver.
    Down,
}

/// What happened on a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkOverTime {
    /// Its [name](crate::scenario::Link::name).
    pub name: String,
    /// Where it is.
    pub kind: LinkKind,
    /// What it carries.
    pub rate_bits_per_second: u64,
    /// The share of each step in which it sent.
    pub busy: Vec<f32>,
    /// Bytes in front of it, the most in each step.
    pub waiting: Vec<u64>,
}

/// Where a builder's credit was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CreditOverTime {
    /// The builder.
    pub receiver: String,
    /// Its window at the end of each step: bytes that it might have asked for and not received.
    pub window: Vec<u64>,
    /// For each sender: bytes this builder had asked of it and not received, at the end of each step.
    pub at: Vec<Vec<u64>>,
}

/// What was sent again, and why TCP thought so (counters of `/proc/net/netstat`). A segment can be in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAgain {
    /// After acknowledgements that showed a gap.
    pub fast: u64,
    /// To find out whether the last segments arrived.
    pub tail_loss_probes: u64,
    /// After a timeout.
    pub after_timeout: u64,
    /// Receivers said (DSACK) that they had it already.
    pub needless: u64,
}
