//! Stalls of a builder: times in which it cannot fetch, so that no source counts as late.

use super::time_use::Awaited;
use std::time::Duration;

/// Reasons for which this builder keeps its sources from going on, and the time that the disk was the reason.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// True if no block was free when one was last needed.
    has_no_block: bool,
    /// Time since which the disk has the blocks that are needed.
    disk_behind_since: Option<Duration>,
    /// True if the event filter has no room: no source counts as late while the filter is slow.
    filter_is_full: bool,
    /// True if run control wants sources to accept nothing.
    sources_are_held: bool,
    /// Number of times that fetching stopped because the disk was behind; `nanos` is their total duration.
    count: u64,
    nanos: u64,
}

impl Stall {
    /// Records that no block is free. Whatever the reason, a source whose slots are full for lack of fetches must not
    /// count as silent. While places are only waiting to be filled, the pipeline is merely full; it is back-pressure if
    /// the disk has the blocks.
    pub(super) fn begin_stall(&mut self, disk_has_blocks: bool, now: Duration) {
        self.has_no_block = true;
        if disk_has_blocks && self.disk_behind_since.is_none() {
            self.disk_behind_since = Some(now);
            self.count += 1;
        }
    }

    /// Ends a stall, once there is room. Returns true if there was one.
    pub(super) fn end_stall(&mut self, now: Duration) -> bool {
        if let Some(since) = self.disk_behind_since.take() {
            self.nanos += u64::try_from((now - since).as_nanos()).unwrap_or(0);
        }
        std::mem::take(&mut self.has_no_block)
    }

    /// Sets whether the event filter has no room. Returns true if that has changed.
    pub(super) fn set_filter_full(&mut self, is_full: bool) -> bool {
        std::mem::replace(&mut self.filter_is_full, is_full) != is_full
    }

    /// Sets whether run control wants sources to accept nothing.
    pub(super) fn set_sources_held(&mut self, are_held: bool) {
        self.sources_are_held = are_held;
    }

    /// Returns whether no block is free.
    pub(super) fn has_no_block(&self) -> bool {
        self.has_no_block
    }

    /// Returns the stage that this builder waits for, if it has no room.
    pub(super) fn stalled_stage(&self) -> Option<Awaited> {
        match self {
            Self { disk_behind_since: Some(_), .. } => Some(Awaited::Disk),
            Self { filter_is_full: true, .. } => Some(Awaited::Filter),
            _ => None,
        }
    }

    /// Returns whether deadlines of sources stand still.
    pub(super) fn stops_deadlines(&self) -> bool {
        self.has_no_block || self.filter_is_full || self.sources_are_held
    }

    /// Begins the counts of the next run.
    pub(super) fn begin_next_run(&mut self, now: Duration) {
        (self.count, self.nanos) = (0, 0);
        self.disk_behind_since = self.disk_behind_since.map(|_| now);
    }

    /// Returns the number of times that the disk was behind, and their total duration in nanoseconds.
    pub(super) fn stall_totals(&self) -> (u64, u64) {
        (self.count, self.nanos)
    }
}
