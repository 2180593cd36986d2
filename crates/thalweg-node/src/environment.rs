//! Environment of a node, which a test can replace entirely.

use crate::clock::{Clock, SystemClock};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use thalweg_core::filter::{Programs, SystemPrograms};
use thalweg_store::Disk;

/// Environment of a node, beside its device and its network: a network is the kind of link of an
/// [address](thalweg_link::Address).
#[derive(Debug, Clone)]
pub struct Environment {
    /// Clocks of the node.
    pub clock: Arc<dyn Clock>,
    /// Disk on which it records.
    pub disk: Disk,
    /// Starts the programs of trigger levels.
    pub programs: Arc<dyn Programs>,
    /// Number that no other node has, nor this one after a restart.
    pub session: u64,
}

impl Environment {
    /// Returns the kernel's clocks, files and processes.
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
