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
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Relaxed).max(self.moved_bytes())
    }

    /// Returns the number of bytes at their destination, including those that were there before.
    pub fn moved_bytes(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn expect_bytes(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    /// Corrects an expected length.
    pub(crate) fn correct_expected(&self, thought: u64, is: u64) {
        self.total.fetch_add(is.wrapping_sub(thought), Relaxed);
    }

    /// Removes bytes that have to be moved again.
    pub(crate) fn remove_moved(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn add_moved(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }
}
