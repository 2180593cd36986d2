//! What the loops and threads of a server share: how bytes move, and what was done so far.

use std::sync::atomic::AtomicU64;
use thalweg_transfer::{Inward, Outward};

/// How bytes move.
#[derive(Debug, Clone, Copy)]
pub struct Ways {
    /// What is in the page cache.
    pub cached: Outward,
    /// What is not.
    pub uncached: Outward,
    /// What comes in.
    pub inward: Inward,
}

/// What was done so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients that connected.
    pub connections: AtomicU64,
    /// Requests answered, refused ones included.
    pub requests: AtomicU64,
    /// Bytes of files sent.
    pub sent: AtomicU64,
    /// Bytes of files received.
    pub received: AtomicU64,
}
