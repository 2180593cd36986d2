//! Progress of a transfer, for display.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of bytes to move, and number of those that have been moved. Several threads count while another displays.
#[derive(Debug, Default)]
pub struct Progress {
    total: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Returns the number of bytes in all, as far as known.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed).max(self.done())
    }

    /// Returns the number of bytes at their destination, including those that were there before.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    /// Corrects an expected length.
    pub(crate) fn expect_instead(&self, thought: u64, is: u64) {
        self.total.fetch_add(is.wrapping_sub(thought), Relaxed);
    }

    /// Removes bytes that have to be moved again.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}
