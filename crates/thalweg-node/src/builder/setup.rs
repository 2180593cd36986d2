//! Setup of a builder: its part of the topology, which does not change while the node exists.

use crate::{BuilderNodeConfig, KeptLink, RunConfig};
use std::time::Duration;
use thalweg_link::Eager;
use thalweg_store::Disk;
use thalweg_wire::{EventId, MAX_RECORDS, SourceId};

/// Number of the first event of a run.
pub(super) const FIRST_EVENT: EventId = EventId(0);
/// Time after which a source that owes bytes and makes no progress is disconnected, unless the deadline is longer.
/// Three losses in a row make TCP wait for nearly as long.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Part of the topology that concerns one builder.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) config: BuilderNodeConfig,
    pub(super) run: RunConfig,
    /// Measurement of `thalweg calibrate` from which the window was derived.
    pub(super) calibrated: Option<KeptLink>,
    /// Time for which this thread had waited for a processor at the beginning.
    pub(super) wait_at_beginning: Option<Duration>,
    /// Topology as JSON, for the run's file.
    pub(super) topology: serde_json::Value,
    /// Number of this builder; `count` is the number of builders.
    pub(super) index: u32,
    pub(super) count: u32,
    /// Ids and names of the sources.
    pub(super) ids: Vec<(SourceId, String)>,
    /// True if the node takes part in several runs, each of which begins with a command.
    pub(super) stays: bool,
    /// Disk on which runs are recorded.
    pub(super) disk: Disk,
    /// Limits of data that sources may send without a fetch.
    pub(super) eager: Eager,
}

impl Setup {
    /// Returns the id and the name of a source, for a message.
    pub(super) fn source_label(&self, source: usize) -> String {
        format!("{} ({})", self.ids[source].0, self.ids[source].1)
    }

    /// Returns the maximum number of records in a slot.
    pub(super) fn max_records(&self) -> u32 {
        self.config.open_events.min(MAX_RECORDS)
    }

    /// Returns how long a source may owe bytes without sending any.
    pub(super) fn answer_time(&self) -> Duration {
        self.config.deadline.max(ANSWER_TIME)
    }

    /// Returns whether sources must report when their events' triggers were.
    pub(super) fn compares_times(&self) -> bool {
        self.index == 0 && self.run.find_shifts && self.ids.len() > 1
    }

    /// Returns the time from the beginning of a run to the end of its steady state, if that is a matter of time.
    pub(super) fn steady_end(&self) -> Option<Duration> {
        self.run.steady.map(|steady| self.run.warm_up + steady).or(self.run.duration)
    }
}
