//! Transfer methods and counters, shared by the loops and threads of a server.

use std::sync::atomic::AtomicU64;
use thalweg_transfer::{ReceiveMethod, SendMethod};

/// Methods by which bytes are moved.
#[derive(Debug, Clone, Copy)]
pub struct TransferMethods {
    /// Method for bytes in the page cache.
    pub cached: SendMethod,
    /// Method for bytes that are not in the page cache.
    pub uncached: SendMethod,
    /// Method for bytes of uploads.
    pub inward: ReceiveMethod,
}

/// Counters of the work done so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of clients that connected.
    pub connections: AtomicU64,
    /// Number of requests answered, refused ones included.
    pub requests: AtomicU64,
    /// Number of bytes of files sent.
    pub sent: AtomicU64,
    /// Number of bytes of files received.
    pub received: AtomicU64,
}
