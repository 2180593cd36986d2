//! Rates: from the totals that nodes report, over the last two seconds.

use std::collections::{BTreeMap, VecDeque};
use thalweg_node::Snapshot;

/// Length of the window, in nanoseconds.
const WINDOW_NANOS: u64 = 2_000_000_000;

/// Totals of a node at one moment.
#[derive(Debug, Clone, Default)]
struct Totals {
    at_nanos: u64,
    run: u32,
    bytes: u64,
    events: u64,
    stalled_nanos: u64,
    dead_nanos: u64,
    /// Bytes and fragments of each source.
    sources: Vec<(u64, u64)>,
}

impl Totals {
    /// Returns whether these totals are earlier ones of the same run.
    fn precedes(&self, later: &Self) -> bool {
        self.run == later.run
            && self.at_nanos <= later.at_nanos
            && self.bytes <= later.bytes
            && self.events <= later.events
    }
}

/// Rates of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRates {
    /// Payload bytes per second.
    pub bytes: f64,
    /// Events per second.
    pub events: f64,
    /// Share of the time in which the node was held up.
    pub stalled: f64,
    /// Share of the time in which a source took nothing from its device though it should have.
    pub dead: f64,
    /// Bytes and fragments per second of each source, as a builder sees them.
    pub sources: Vec<(f64, f64)>,
}

/// Totals of all nodes in the last seconds.
#[derive(Debug, Default)]
pub struct Rates(BTreeMap<String, VecDeque<Totals>>);

impl Rates {
    /// Takes a snapshot of a node.
    pub fn add_snapshot(&mut self, node: &str, snapshot: &Snapshot) {
        let totals = Totals {
            at_nanos: snapshot.at_nanos,
            run: snapshot.run,
            bytes: snapshot.bytes,
            events: snapshot.events,
            stalled_nanos: snapshot.stalled_nanos,
            dead_nanos: snapshot.dead_nanos,
            sources: snapshot.sources.iter().map(|source| (source.bytes, source.built)).collect(),
        };
        let ring = self.0.entry(node.to_owned()).or_default();
        // Another run, or another process: what was counted before belongs to neither.
        if ring.back().is_some_and(|last| !last.precedes(&totals)) {
            ring.clear();
        }
        if ring.back().is_none_or(|last| last.at_nanos < totals.at_nanos) {
            ring.push_back(totals);
        }
        let latest = ring.back().map_or(0, |last| last.at_nanos);
        while ring.len() > 2 && ring[1].at_nanos + WINDOW_NANOS <= latest {
            ring.pop_front();
        }
    }

    /// Removes the snapshots of a node that is not connected any more: its rates are zero.
    pub fn remove_node(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// Returns the rates of a node; zero as long as there is only one snapshot of its run.
    pub fn node_rates(&self, node: &str) -> NodeRates {
        let Some(ring) = self.0.get(node) else { return NodeRates::default() };
        let (Some(first), Some(last)) = (ring.front(), ring.back()) else { return NodeRates::default() };
        let seconds = last.at_nanos.saturating_sub(first.at_nanos) as f64 / 1e9;
        if seconds <= 0.0 {
            return NodeRates::default();
        }
        let sources = first
            .sources
            .iter()
            .zip(&last.sources)
            .map(|(first, last)| (rate_between(first.0, last.0, seconds), rate_between(first.1, last.1, seconds)));
        NodeRates {
            bytes: rate_between(first.bytes, last.bytes, seconds),
            events: rate_between(first.events, last.events, seconds),
            stalled: (rate_between(first.stalled_nanos, last.stalled_nanos, seconds) / 1e9).min(1.0),
            dead: (rate_between(first.dead_nanos, last.dead_nanos, seconds) / 1e9).min(1.0),
            sources: sources.collect(),
        }
    }
}

/// Returns the rate of a count, per second.
fn rate_between(first: u64, last: u64, seconds: f64) -> f64 {
    last.saturating_sub(first) as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_node::SourceRow;

    #[test]
    fn a_rate_is_that_of_the_last_two_seconds_and_of_one_run() {
        let mut rates = Rates::default();
        let mut add = |seconds: u64, run, bytes| {
            let row = SourceRow { bytes, built: seconds, ..SourceRow::default() };
            let snapshot =
                Snapshot { at_nanos: seconds * 1_000_000_000, run, bytes, sources: vec![row], ..Snapshot::default() };
            rates.add_snapshot("builder", &snapshot);
            rates.node_rates("builder")
        };
        assert_eq!(add(1, 7, 1000).bytes, 0.0);
        assert_eq!(add(2, 7, 3000).bytes, 2000.0);
        (3..10).for_each(|second| _ = add(second, 7, 3000));
        let still = add(10, 7, 3000);
        assert_eq!((still.bytes, still.sources[0]), (0.0, (0.0, 1.0)));
        assert_eq!(add(11, 8, 500).bytes, 0.0, "counts of another run are no rate");
        assert_eq!(add(12, 8, 600).bytes, 100.0);
        rates.remove_node("builder");
        assert_eq!(rates.node_rates("builder"), NodeRates::default());
    }
}
