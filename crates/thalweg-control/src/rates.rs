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
        let goes_on = |last: &Totals| {
            last.run == totals.run
                && last.at_nanos <= totals.at_nanos
                && last.bytes <= totals.bytes
                && last.events <= totals.events
        };
        if ring.back().is_some_and(|last| !goes_on(last)) {
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

    /// Returns the rates of a node; zero as long as there is only one snapshot of its run.
    pub fn node_rates(&self, node: &str) -> NodeRates {
        let Some(ring) = self.0.get(node) else { return NodeRates::default() };
        let (Some(first), Some(last)) = (ring.front(), ring.back()) else { return NodeRates::default() };
        let nanos = last.at_nanos.saturating_sub(first.at_nanos) as f64;
        if nanos <= 0.0 {
            return NodeRates::default();
        }
        let share = |from: u64, to: u64| (to.saturating_sub(from) as f64 / nanos).min(1.0);
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 * 1e9 / nanos;
        let sources = first.sources.iter().zip(&last.sources);
        NodeRates {
            bytes: rate(first.bytes, last.bytes),
            events: rate(first.events, last.events),
            stalled: share(first.stalled_nanos, last.stalled_nanos),
            dead: share(first.dead_nanos, last.dead_nanos),
            sources: sources.map(|(from, to)| (rate(from.0, to.0), rate(from.1, to.1))).collect(),
        }
    }
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
    }
}
