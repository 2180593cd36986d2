//! Messages between a node and the control service of its experiment, over a connection that the node makes: one JSON
//! object each, and binary ones with the latest fragments of sources.

pub mod latest;

use crate::{BuilderReport, NodeCommand, Snapshot, SourceReport, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of these messages. Peers of different versions refuse each other.
pub const SERVICE_PROTOCOL: u32 = 3;

/// Length of the longest message, in bytes: a report or an order with thousands of sources, an image.
pub const MAX_SERVICE_MESSAGE: usize = 64 << 20;

/// Message of a node to the service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromNode {
    /// Introduction: the first message.
    Hello(NodeHello),
    /// State of the node, several times a second, and replies to requests.
    ///
    /// A state that a command has led to is in the message with the reply to that command, or in a later one: so the
    /// service never has a state whose command is still under way.
    Report {
        /// State, if it has changed or is due.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Box<NodeStatus>>,
        /// Replies to requests of the service.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        replies: Vec<NodeReply>,
    },
    /// Lines of the node's log.
    Log(Vec<LogLine>),
}

/// Reply of a node to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReply {
    /// Number of the request.
    pub id: u64,
    /// Reason of the refusal, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Introduction of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    /// Version of the messages: [`SERVICE_PROTOCOL`].
    pub protocol: u32,
    /// Name of the node in the topology.
    pub node: String,
    /// Name of its host.
    pub host: String,
    /// Number of its process.
    pub pid: u32,
    /// Version of its program.
    pub version: String,
    /// Number drawn when the process began: it tells a process from its successor.
    pub session: u64,
}

/// State of a node, as the service needs it to go on after a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Digest of the topology that it has ([`topology_digest`]); empty if it has none.
    pub topology: String,
    /// Number of the run that it takes part in, counted from the beginning of the process; 0 before the first.
    pub runs: u64,
    /// True while a node exists that carries commands out.
    pub is_prepared: bool,
    /// True if the present topology was armed: on a request, this host was found fit for it.
    pub is_armed: bool,
    /// Reason why it cannot be prepared, if it cannot.
    pub failure: String,
    /// Snapshot of its run.
    pub snapshot: Snapshot,
    /// Reports of its last runs that are over, the oldest first.
    pub last_reports: Vec<NodeReport>,
    /// Unix time of the host, in nanoseconds.
    pub unix_nanos: u64,
    /// True if the host's clock is synchronised; `None` if that is not known.
    pub is_clock_synchronised: Option<bool>,
    /// Free bytes on the disk of the directory of runs.
    pub disk_free_bytes: Option<u64>,
}

/// Report of a node at the end of a run, as far as the service needs it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Number of the run of which it is, as in [`NodeStatus::runs`].
    pub runs: u64,
    /// Number of the run; 0 from a source.
    pub run: u32,
    /// `COMPLETE` or `INCOMPLETE`; empty from a source.
    pub state: String,
    /// Reasons why the run is incomplete.
    pub reasons: Vec<String>,
    /// Directory of the run.
    pub directory: Option<String>,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// Payload bytes built or accepted.
    pub bytes: u64,
    /// Counters of the device.
    pub device: BTreeMap<String, u64>,
}

impl NodeReport {
    /// Returns what the service needs of a builder's report.
    pub fn of_builder(report: &BuilderReport, runs: u64) -> Self {
        Self {
            runs,
            run: report.run,
            state: report.state.clone(),
            reasons: report.reasons.clone(),
            directory: report.directory.clone(),
            seconds: report.seconds,
            events: report.events,
            incomplete: report.incomplete,
            bytes: report.bytes,
            device: BTreeMap::new(),
        }
    }

    /// Returns what the service needs of a source's report.
    pub fn of_source(report: &SourceReport, runs: u64) -> Self {
        Self { runs, seconds: report.seconds, bytes: report.bytes, device: report.device.clone(), ..Self::default() }
    }
}

/// Line of a node's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Unix time in nanoseconds.
    pub unix_nanos: u64,
    /// Severity of the line.
    pub severity: Severity,
    /// The text.
    pub text: String,
}

/// Cuts a text off after at most this number of bytes, at the end of a character.
pub fn cut_text(text: &mut String, max_bytes: usize) {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

/// Severity of a message or an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something has happened as it should.
    Info,
    /// Something may cost data.
    Warning,
    /// Something costs data.
    Error,
}

/// Message of the service to a node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToNode {
    /// Takes this topology from now on; the node prepares for its next run. No run may be under way.
    Configure {
        /// Number of the request.
        id: u64,
        /// The topology.
        topology: Box<Topology>,
    },
    /// Prepares for the next run anew, which examines the host: it is refused if the run could not take place there.
    Arm {
        /// Number of the request.
        id: u64,
    },
    /// Command to the node.
    Command {
        /// Number of the request.
        id: u64,
        /// The command.
        command: NodeCommand,
    },
    /// Sends the latest fragment of a source: a [`latest::LatestAnswer`].
    Latest {
        /// Number of the request.
        id: u64,
        /// Place of the source in the topology.
        source: usize,
        /// Largest number of columns of a waveform, and of an image.
        width: u32,
    },
    /// Ends the process: cleanly, or at once if it is sent again.
    Quit,
}

/// Returns a digest of a topology, in hexadecimal: of topologies that differ in the number of the run alone it is the
/// same.
pub fn topology_digest(topology: &Topology) -> String {
    let mut topology = topology.clone();
    topology.run.number = None;
    let text = serde_json::to_string(&topology).unwrap_or_default();
    // FNV-1a, 64 bits: it has to tell apart the versions of one file.
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_off_between_two_characters() {
        for (max_bytes, cut) in [(0, ""), (1, "a"), (2, "a"), (3, "aé"), (9, "aéb")] {
            let mut text = "aéb".to_owned();
            cut_text(&mut text, max_bytes);
            assert_eq!(text, cut);
        }
    }
}
