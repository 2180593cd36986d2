//! How a running node is told to stop, from another thread or a signal handler's thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use thalweg_arena::Doorbell;

/// How urgently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Not at all: go on.
    None,
    /// End the run cleanly: every source stops at the same event, and everything is accounted for.
    Clean,
    /// Now: what is not on disk is lost, and the run says so.
    AtOnce,
}

/// A handle that stops a node. Clones stop the same node.
#[derive(Debug, Clone)]
pub struct Stop {
    level: Arc<AtomicU8>,
    doorbell: Arc<Doorbell>,
}

impl Stop {
    /// A handle for a node to come.
    pub fn new() -> Result<Self, thalweg_arena::DoorbellError> {
        Ok(Self { level: Arc::default(), doorbell: Arc::new(Doorbell::new()?) })
    }

    /// Asks for a clean end; asked again, for an end at once.
    pub fn press(&self) {
        let _ = self.level.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| Some((level + 1).min(2)));
        // The counter of an eventfd is full only after 2^64 rings.
        let _ = self.doorbell.ring();
    }

    /// Ends at once.
    pub fn at_once(&self) {
        self.level.store(2, Ordering::Relaxed);
        let _ = self.doorbell.ring();
    }

    /// Lets the node look around, without asking for anything.
    pub(crate) fn wake(&self) {
        let _ = self.doorbell.ring();
    }

    /// What was asked for so far.
    pub fn urgency(&self) -> Urgency {
        match self.level.load(Ordering::Relaxed) {
            0 => Urgency::None,
            1 => Urgency::Clean,
            _ => Urgency::AtOnce,
        }
    }

    pub(crate) fn clear(&self) {
        let _ = self.doorbell.clear();
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
