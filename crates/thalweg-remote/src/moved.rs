//! What was moved, counted while it is.

use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// What was fetched, or sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// What it is now: a directory or a file here, a URL on a server.
    pub to: String,
    /// The runs in it, as far as they are here.
    pub runs: Vec<PathBuf>,
    /// Those of them that had not ended: more of them may be on the server by now.
    pub unended: Vec<PathBuf>,
    /// Those whose recorder died before they had ended: this is all there is of them.
    pub abandoned: Vec<PathBuf>,
    /// Files that were fetched or sent.
    pub files: u64,
    /// Files that were there already and are the same.
    pub same_files: u64,
    /// Bytes that were fetched or sent.
    pub bytes: u64,
    /// Bytes that were there from an earlier try.
    pub resumed_bytes: u64,
}

impl Moved {
    /// With what else was moved to the same place.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
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

/// How much it is so far. All streams count in one.
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
    /// Another file was fetched or sent.
    pub(crate) fn file(&self) {
        self.files.fetch_add(1, Relaxed);
    }

    pub(crate) fn same_file(&self) {
        self.same_files.fetch_add(1, Relaxed);
    }

    pub(crate) fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn resumed(&self, bytes: u64) {
        self.resumed_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn unended(&self, run: &Path) {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner).push(run.to_owned());
    }

    pub(crate) fn abandoned(&self, run: &Path) {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(run.to_owned());
    }

    /// What it has come to.
    pub(crate) fn moved(&self, to: String, runs: Vec<PathBuf>) -> Moved {
        Moved {
            to,
            runs,
            unended: self.unended.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            abandoned: self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            files: self.files.load(Relaxed),
            same_files: self.same_files.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            resumed_bytes: self.resumed_bytes.load(Relaxed),
        }
    }
}
