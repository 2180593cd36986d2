//! What a node gets from outside, so that a test can make all of it up.

use crate::clock::{Clock, SystemClock};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use thalweg_filter::{Programs, SystemPrograms};
use thalweg_store::Disk;

/// What a node gets from outside, beside its device and its network: a network is the kind of link of an
/// [address](thalweg_link::Address).
#[derive(Debug, Clone)]
pub struct Environment {
    /// Its clocks.
    pub clock: Arc<dyn Clock>,
    /// Where it records.
    pub disk: Disk,
    /// How the programs of trigger levels are started.
    pub programs: Arc<dyn Programs>,
    /// A number that no other node has, nor this one after a restart.
    pub session: u64,
}

impl Environment {
    /// The kernel's clocks, files and processes.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            disk: Disk::System,
            programs: Arc::new(SystemPrograms::new()),
            // The standard library draws such keys for its hash maps from the kernel.
            session: std::collections::hash_map::RandomState::new().build_hasher().finish(),
        }
    }
}
