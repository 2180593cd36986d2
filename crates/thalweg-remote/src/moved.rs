//! Result of a transfer, counted while it runs.

use parking_lot::Mutex;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Result of fetching or sending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Destination: a local directory or file, or a URL on a server.
    pub to: String,
    /// Runs in it, with their local paths.
    pub runs: Vec<PathBuf>,
    /// Runs among these that had not ended: the server may have more of them by now.
    pub unended: Vec<PathBuf>,
    /// Runs among these whose recorder died before they had ended: they are as complete as they will ever be.
    pub abandoned: Vec<PathBuf>,
    /// Number of files fetched or sent.
    pub files: u64,
    /// Number of files that were there already and are the same.
    pub same_files: u64,
    /// Number of bytes fetched or sent.
    pub bytes: u64,
    /// Number of bytes that were there from an earlier attempt.
    pub resumed_bytes: u64,
}

impl Moved {
    /// Adds the result of another transfer to the same destination.
    #[must_use]
    pub fn combined_with(mut self, other: Self) -> Self {
        self.runs.extend(other.runs);
        self.unended.extend(other.unended);
        self.abandoned.extend(other.abandoned);
        self.files += other.files;
        self.same_files += other.same_files;
        self.bytes += other.bytes;
        self.resumed_bytes += other.resumed_bytes;
        self
    }
}

/// Counters of a transfer in progress, shared by all streams.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    files: AtomicU64,
    same_files: AtomicU64,
    bytes: AtomicU64,
    resumed_bytes: AtomicU64,
    unended: Mutex<Vec<PathBuf>>,
    abandoned: Mutex<Vec<PathBuf>>,
}

impl Tally {
    /// Counts a file that was fetched or sent.
    pub(crate) fn count_file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_same_file(&self) {
        self.same_files.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn count_resumed_bytes(&self, bytes: u64) {
        self.resumed_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn note_unended_run(&self, run: &Path) {
        self.unended.lock().push(run.to_owned());
    }

    pub(crate) fn note_abandoned_run(&self, run: &Path) {
        self.abandoned.lock().push(run.to_owned());
    }

    /// Returns the result so far.
    pub(crate) fn result_so_far(&self, to: String, runs: Vec<PathBuf>) -> Moved {
        Moved {
            to,
            runs,
            unended: self.unended.lock().clone(),
            abandoned: self.abandoned.lock().clone(),
            files: self.files.load(Relaxed),
            same_files: self.same_files.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            resumed_bytes: self.resumed_bytes.load(Relaxed),
        }
    }
}
