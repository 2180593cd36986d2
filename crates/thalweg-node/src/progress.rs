//! What another thread may see of a running node.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that the hot thread stores and others load. Each is right by itself; together they may be a moment apart.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    phase: AtomicU64,
    bytes: AtomicU64,
    fragments: AtomicU64,
    events: AtomicU64,
    incomplete: AtomicU64,
    stalls: AtomicU64,
    stalled_nanos: AtomicU64,
    sources: AtomicU64,
}

/// One look at a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// 0 waiting for peers, 1 running, 2 ending.
    pub phase: u64,
    /// Payload bytes built or accepted.
    pub bytes: u64,
    /// Fragments built or accepted.
    pub fragments: u64,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// How often the node was held up by what is behind it.
    pub stalls: u64,
    /// For how long in all, in nanoseconds.
    pub stalled_nanos: u64,
    /// Sources connected.
    pub sources: u64,
}

impl Progress {
    /// What it shows now.
    pub fn snapshot(&self) -> Snapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.0;
        Snapshot {
            phase: load(&c.phase),
            bytes: load(&c.bytes),
            fragments: load(&c.fragments),
            events: load(&c.events),
            incomplete: load(&c.incomplete),
            stalls: load(&c.stalls),
            stalled_nanos: load(&c.stalled_nanos),
            sources: load(&c.sources),
        }
    }

    pub(crate) fn show(&self, snapshot: &Snapshot) {
        let c = &self.0;
        c.phase.store(snapshot.phase, Ordering::Relaxed);
        c.bytes.store(snapshot.bytes, Ordering::Relaxed);
        c.fragments.store(snapshot.fragments, Ordering::Relaxed);
        c.events.store(snapshot.events, Ordering::Relaxed);
        c.incomplete.store(snapshot.incomplete, Ordering::Relaxed);
        c.stalls.store(snapshot.stalls, Ordering::Relaxed);
        c.stalled_nanos.store(snapshot.stalled_nanos, Ordering::Relaxed);
        c.sources.store(snapshot.sources, Ordering::Relaxed);
    }
}
