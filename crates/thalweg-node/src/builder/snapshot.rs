//! Snapshots of a builder node, taken while it runs.

use super::BuilderNode;
use crate::{Snapshot, SourceRow};
use std::time::Duration;
use thalweg_core::build::SourceProgress;

/// Values in snapshots that are counted nowhere else.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Number of times that fetching stopped because the disk was behind; `stalled_nanos` is their total duration.
    pub(super) stalls: u64,
    pub(super) stalled_nanos: u64,
    /// Time of the last snapshot; `bytes` is how many bytes of each source were built by then.
    looked: Option<Duration>,
    bytes: Vec<u64>,
}

impl BuilderNode {
    /// Takes a snapshot of this node.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let now = self.clock.now();
        let seconds = self.shown.looked.replace(now).map_or(0.0, |looked| now.saturating_sub(looked).as_secs_f64());
        self.shown.bytes.resize(self.ids.len(), 0);
        let sources: Vec<SourceRow> = (0..self.ids.len())
            .map(|source| {
                let row = self.row(source, now);
                let before = std::mem::replace(&mut self.shown.bytes[source], row.bytes);
                let bytes = row.bytes.saturating_sub(before) as f64;
                SourceRow { bytes_per_second: if seconds > 0.0 { bytes / seconds } else { 0.0 }, ..row }
            })
            .collect();
        let (bytes, fragments) = self.builder.progress_counts();
        let (events, incomplete) = self.builder.counts();
        Snapshot {
            state: self.control.state(),
            waits: self.waits(),
            bytes,
            fragments,
            events,
            incomplete,
            stalls: self.shown.stalls,
            stalled_nanos: self.shown.stalled_nanos,
            connected: sources.iter().filter(|source| source.connected).count() as u64,
            sources,
        }
    }

    fn row(&self, source: usize, now: Duration) -> SourceRow {
        let SourceProgress { ledger, accepted, built, backlog, ended, given_up } = self.builder.progress_of(source);
        let connection = self.sources[source].connection.and_then(|at| self.connections[at].as_ref());
        let owes = connection.filter(|_| self.owes(source)).map_or(Duration::ZERO, |c| now.saturating_sub(c.delivered));
        SourceRow {
            connected: connection.is_some(),
            given_up,
            ended,
            bytes_per_second: 0.0,
            backlog,
            credit: self.builder.in_flight_of(source),
            owes_nanos: u64::try_from(owes.as_nanos()).unwrap_or(u64::MAX),
            sent_again: connection.map_or(0, |connection| connection.losses.again),
            bytes: ledger.bytes,
            accepted,
            built,
            rejected: ledger.rejected,
            dropped: ledger.dropped_newest.saturating_add(ledger.dropped_oldest),
            lost_in_device: ledger.lost_in_device,
            late: ledger.late,
            corrupt: ledger.corrupt,
            lost: ledger.lost,
            beyond_end: ledger.beyond_end,
        }
    }

    /// Returns a sentence that names what the state waits for; empty if it waits for nothing.
    fn waits(&self) -> String {
        const NAMED: usize = 3;
        let waits = self.control.waits_for();
        let count = waits.clone().count();
        if count == 0 {
            return String::new();
        }
        let names: Vec<&str> = waits.take(NAMED).map(|source| self.ids[source].1.as_str()).collect();
        let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
        format!("waits for {}{more}", names.join(", "))
    }
}
