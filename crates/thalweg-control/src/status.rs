//! The status of an experiment, as the API, the page and the terminal show it.

use crate::alarms::AlarmView;
use crate::notices::DestinationView;
use crate::processes::ProcessAction;
use crate::records::RunRecord;
use crate::state::{CommandName, ExperimentState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_node::service::Severity;
use utoipa::ToSchema;

/// Status of an experiment. Times are Unix times in seconds, durations seconds. Counts that may exceed 2⁵³ are there a
/// second time, as text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Number of the status: each is higher than those before it.
    pub id: u64,
    /// Name of the experiment.
    pub experiment: String,
    /// Path of the topology.
    pub topology: String,
    /// The service.
    pub service: ServiceView,
    /// State of the experiment.
    pub state: ExperimentState,
    /// Sentence about the state, for people.
    pub sentence: String,
    /// Names of the sources that the state waits for.
    pub waits_for: Vec<String>,
    /// Reasons of the state `error`, or of the last refusal to configure, arm or start.
    pub reasons: Vec<String>,
    /// Run under way, or being started.
    pub run: Option<RunView>,
    /// Record of the last run that is over.
    pub last_run: Option<RunRecord>,
    /// Number that the next run gets, unless another service takes it.
    pub next_number: Option<u32>,
    /// Reason why no run can be given a number; empty if one can.
    pub number_problem: String,
    /// Services of the experiment that are up, as far as etcd knows them.
    pub services: Vec<ServiceView>,
    /// Directory in which runs are recorded; empty if they are not.
    pub directory: String,
    /// Disk of that directory; of several hosts, that which is full first.
    pub disk: DiskView,
    /// Whether each command is legal now.
    pub commands: BTreeMap<CommandName, Legality>,
    /// Counts of the run under way, or of the last one.
    pub totals: Totals,
    /// Buckets of all fragments together.
    pub ledger: LedgerView,
    /// Sources, in the order of the topology.
    pub sources: Vec<SourceView>,
    /// Names of the sources that are left out.
    pub left_out: Vec<String>,
    /// Builders, in the order of the topology.
    pub builders: Vec<BuilderView>,
    /// Latest events that were closed incomplete, the newest first.
    pub incomplete_events: Vec<IncompleteView>,
    /// Events that are to be closed before the run is over; `None` unless it is being brought to its end.
    pub draining: Option<Draining>,
    /// Clocks of the hosts.
    pub clocks: Vec<ClockView>,
    /// Alarms: active ones that are not acknowledged first.
    pub alarms: Vec<AlarmView>,
    /// Number of alarms that are active, and acknowledged.
    pub silenced_alarms: usize,
    /// Destinations of notices: webhook, log book, e-mail.
    #[serde(default)]
    pub destinations: Vec<DestinationView>,
    /// Latest messages, the newest last.
    pub messages: Vec<MessageView>,
    /// Processes of the nodes.
    pub processes: Vec<ProcessView>,
}

/// A service of the experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServiceView {
    /// Host of the service.
    pub host: String,
    /// Version of its program.
    pub version: String,
    /// Time at which it began.
    pub since_at: f64,
    /// Address at which nodes reach it.
    pub url: String,
}

/// Run under way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Number of the run.
    pub number: u32,
    /// `physics` or `test`.
    pub kind: String,
    /// Comment that was given at its start.
    pub note: String,
    /// Time at which it was asked for.
    pub asked_at: Option<f64>,
    /// Time at which it began.
    pub began_at: Option<f64>,
    /// Time since its beginning.
    pub seconds: f64,
}

/// Disk on which runs are recorded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    /// Free bytes; `None` if that is not known.
    pub free_bytes: Option<u64>,
    /// Time after which it is full at the present rate.
    pub seconds_left: Option<f64>,
}

/// Whether a command is legal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Legality {
    /// True if it is.
    pub legal: bool,
    /// Reason why it is not; empty if it is.
    pub reason: String,
}

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Totals {
    /// Events closed.
    pub events: u64,
    /// The same as text.
    pub events_text: String,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// Payload bytes built.
    pub bytes: u64,
    /// The same as text.
    pub bytes_text: String,
    /// Fragments built.
    pub fragments: u64,
    /// Events closed per second.
    pub events_per_second: f64,
    /// Payload bytes built per second.
    pub bytes_per_second: f64,
    /// Number of times that a builder was held up by its disk.
    pub stalls: u64,
    /// Share of the time in which a builder was held up by its disk, in per cent.
    pub stalled_percent: f64,
}

/// Buckets of fragments: each that was accepted is in exactly one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerView {
    /// Fragments that sources have offered.
    pub accepted: u64,
    /// Fragments built.
    pub built: u64,
    /// Fragments of events that a trigger level rejected.
    pub rejected: u64,
    /// Fragments dropped at the source.
    pub dropped: u64,
    /// Fragments lost in the source's device.
    pub lost_in_device: u64,
    /// Fragments that came after their event was closed.
    pub late: u64,
    /// Fragments that arrived damaged.
    pub corrupt: u64,
    /// Fragments that were not delivered.
    pub lost: u64,
    /// Fragments of events at or beyond the end of the run.
    pub beyond_end: u64,
    /// Fragments that are on their way.
    pub on_the_way: u64,
}

/// A source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SourceView {
    /// Name of the source.
    pub name: String,
    /// Id of the source: subsystem and element.
    pub id: String,
    /// Host of its node, or of the last process of that; empty if there was none.
    pub host: String,
    /// Address of its node, as the service sees it.
    pub address: Option<String>,
    /// Kind of its link.
    pub link: String,
    /// True if the first builder is connected with it.
    pub is_linked: bool,
    /// True if its node is connected with this service. False for a source of another program.
    pub is_node_connected: bool,
    /// True if it has sent its final counters.
    pub has_ended: bool,
    /// True if it was given up for this run.
    pub is_given_up: bool,
    /// Payload bytes built per second.
    pub bytes_per_second: f64,
    /// Fragments built per second.
    pub events_per_second: f64,
    /// Open offers.
    pub backlog: u64,
    /// Bytes requested and not yet received.
    pub credit_bytes: u64,
    /// Time for which it has owed bytes.
    pub owes_seconds: f64,
    /// Share of the time in which it took nothing from its device though it should have, in per cent.
    pub dead_percent: Option<f64>,
    /// Bytes sent again because they were lost.
    pub sent_again_bytes: u64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments of this source, by bucket.
    #[serde(flatten)]
    pub ledger: LedgerView,
    /// Time since which it has sent nothing while another source has; `None` while it does not.
    pub silent_since_at: Option<f64>,
    /// Events that were closed without a fragment of it while it was silent.
    pub absent_events: u64,
    /// Severity of its trouble: `ok`, `minor` or `major`.
    pub severity: TroubleLevel,
    /// Trouble in a sentence; empty if there is none.
    pub trouble: String,
}

/// Severity of a trouble.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TroubleLevel {
    /// No trouble.
    #[default]
    Ok,
    /// Trouble that has cost something, and does not go on.
    Minor,
    /// Trouble that costs data now.
    Major,
}

/// A builder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BuilderView {
    /// Name of the builder.
    pub name: String,
    /// Host of its node; empty while it is not connected.
    pub host: String,
    /// True if its node is connected with this service.
    pub is_node_connected: bool,
    /// State that it reports.
    pub state: ExperimentState,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// Payload bytes built per second.
    pub bytes_per_second: f64,
    /// Share of the time in which it was held up by its disk, in per cent.
    pub stalled_percent: f64,
    /// Disk on which it records.
    pub disk: DiskView,
}

/// Event that was closed incomplete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct IncompleteView {
    /// Number of the event.
    pub event: u64,
    /// The same as text.
    pub event_text: String,
    /// Builder that closed it.
    pub builder: String,
    /// Sources without a fragment.
    pub missing: Vec<MissingView>,
}

/// Source without a fragment in an event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MissingView {
    /// Name of the source.
    pub source: String,
    /// Host of its node.
    pub host: String,
    /// Address of its node.
    pub address: Option<String>,
}

/// Events that are to be closed before the run is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Draining {
    /// Events that are left.
    pub left: u64,
    /// Events that were left when that began.
    pub of: u64,
}

/// Clock of a node's host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClockView {
    /// Name of the node.
    pub node: String,
    /// Host of the node.
    pub host: String,
    /// Difference to the service's clock; it includes the message's way, some milliseconds.
    pub offset_seconds: Option<f64>,
    /// True if the kernel's clock is marked as synchronised.
    pub is_synchronized: Option<bool>,
}

/// Message of a node or of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessageView {
    /// Number of the message: each is higher than those before it.
    pub id: u64,
    /// Time of the message: Unix time in seconds.
    pub at: f64,
    /// Severity: `info`, `warning` or `error`.
    #[schema(value_type = String)]
    pub severity: Severity,
    /// Node that it is from; `None` if it is from the service.
    pub node: Option<String>,
    /// Run under way at that time.
    pub run: Option<u32>,
    /// The text.
    pub text: String,
}

/// Process of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    /// Name of the node.
    pub node: String,
    /// `source` or `builder`.
    pub kind: String,
    /// Host of the node, or of its last process; empty if there was none.
    pub host: String,
    /// Number of the process; `None` while the node is not connected.
    pub pid: Option<u32>,
    /// `up`, `down`, `starting` or `failed`.
    pub state: String,
    /// Time since which it is in this state.
    pub since_at: f64,
    /// Way in which it is started: `child`, `ssh`, `systemd`, `slurm` or `none`.
    pub manager: String,
    /// Last line of its log, as far as the service knows it.
    pub last_line: String,
    /// Whether each action on it is legal now.
    pub actions: BTreeMap<ProcessAction, Legality>,
}
