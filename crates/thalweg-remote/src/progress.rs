//! How far it is, for whoever watches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How much there is to move, and how much of it is where it should be. Threads count it up while another shows it.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Bytes there are, as far as is known.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed).max(self.done())
    }

    /// Bytes that are where they should be, those that were there before included.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    /// What was thought to be so long is so long.
    pub(crate) fn expect_instead(&self, thought: u64, is: u64) {
        self.total.fetch_add(is.wrapping_sub(thought), Relaxed);
    }

    /// What counted as done has to be done again.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}
