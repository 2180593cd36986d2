//! Errors of runs on disk.

use crate::format::FormatError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Error of writing or reading a run.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An operation that the operating system refused.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// File or directory of the operation.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// A run of this number that exists already; runs are never overwritten.
    #[error(
        "{} already exists: choose another run number; a run of one builder without a number takes the next free one",
        .0.display()
    )]
    Exists(PathBuf),
    /// A directory in which no run number is left.
    #[error("{} already contains run 4294967295, the largest run number", .0.display())]
    NoNumber(PathBuf),
    /// A path at which there is no run.
    #[error("{} is not a run: it has no run.json", .0.display())]
    NotARun(PathBuf),
    /// Directories of several builders that do not belong to one run.
    #[error("{}: its directories do not belong to one run: {difference}", .path.display())]
    Parts {
        /// Path of the run.
        path: PathBuf,
        /// Description of the difference.
        difference: String,
    },
    /// A `run.json` that cannot be parsed.
    #[error("{}: {error}", .path.display())]
    Json {
        /// Path of the `run.json`.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        error: serde_json::Error,
    },
    /// A `run.json` of another format, or another version of it.
    #[error("{} has format '{format}' version {version}; this program reads 'thalweg-run' version 1", .path.display())]
    Version {
        /// Path of the `run.json`.
        path: PathBuf,
        /// Value of its `format`.
        format: String,
        /// Value of its `version`.
        version: u32,
    },
    /// Invalid bytes in a segment.
    #[error("{} at byte {offset}: {error}", .path.display())]
    Format {
        /// Path of the segment.
        path: PathBuf,
        /// Offset of the block, in bytes.
        offset: u64,
        /// Error in the block.
        #[source]
        error: FormatError,
    },
    /// An index entry that leads to something other than the record it names.
    #[error("{} at byte {offset}: no record of the event and source in the index", .path.display())]
    Record {
        /// Path of the segment.
        path: PathBuf,
        /// Offset at which the record should be, in bytes.
        offset: u64,
    },
    /// An event without exactly one record of each source.
    #[error(
        "{}: event {event} has {found} of the {expected} records it should have, one of each source: the block with \
         the others is lost, or the writer was faulty; `thalweg verify` shows which",
        .path.display()
    )]
    Event {
        /// Path of the run.
        path: PathBuf,
        /// Number of the event.
        event: u64,
        /// Number of records found.
        found: usize,
        /// Number of sources in the run.
        expected: usize,
    },
    /// Blocks that are missing at the end of a finished run.
    #[error(
        "{}: {blocks} blocks that its run.json states are missing at its end; `thalweg verify` shows more",
        .path.display()
    )]
    Missing {
        /// Path of the run.
        path: PathBuf,
        /// Number of missing blocks.
        blocks: u64,
    },
    /// The name of a file, taken by something else: a directory, a pipe.
    #[error("{} is not a file: move it away", .0.display())]
    NotAFile(PathBuf),
    /// A run whose lock, which shows readers that it is being written, is held by another process.
    #[error("{} is locked by another process, so that readers cannot see that it is being written: stop that process", .0.display())]
    Locked(PathBuf),
    /// Blocks of a size that cannot be recorded.
    #[error("blocks of {0} bytes cannot be recorded: they must have 8 KiB to 1 GiB")]
    BlockSize(usize),
    /// A builder number that is not below the number of builders.
    #[error("builder {builder} of {builders} does not exist: builders count from 0")]
    Builder {
        /// Number of the builder.
        builder: u32,
        /// Number of builders in the run.
        builders: u32,
    },
    /// A failed allocation of memory for the recorder itself.
    #[error("memory for a segment's footer: {0}")]
    Arena(#[from] thalweg_arena::ArenaError),
    /// A failed write of blocks.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl StoreError {
    /// Returns whether the disk, or the user's quota, is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { error, .. } => error.raw_os_error().is_some_and(is_full_errno),
            Self::Write(error) => error.is_disk_full(),
            _ => false,
        }
    }

    /// Returns whether the bytes read are invalid, so that reading them again does not help, and neighbouring data can
    /// still be read.
    pub fn is_data_damage(&self) -> bool {
        matches!(self, Self::Format { .. } | Self::Record { .. } | Self::Event { .. } | Self::Missing { .. })
    }

    pub(crate) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error }
    }

    pub(crate) fn errno_error(doing: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error: error.into() }
    }
}

/// Error of the first write that failed. Nothing more of the run is written after it.
#[derive(Debug, Clone, Error)]
#[error("writing {length} bytes at byte {offset} of {}: {}", .path.display(), explain_errno(*.errno))]
pub struct WriteError {
    /// Path of the segment.
    pub path: Arc<Path>,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Number of bytes to be written there.
    pub length: u32,
    /// Error number of the operating system.
    pub errno: i32,
}

impl WriteError {
    /// Returns whether the disk, or the user's quota, is full.
    pub fn is_disk_full(&self) -> bool {
        is_full_errno(self.errno)
    }
}

fn is_full_errno(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT].contains(&errno)
}

fn explain_errno(errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    match errno {
        libc::ENOSPC => format!("{error}; free some space, or record elsewhere"),
        libc::EIO => format!("{error}; the disk itself failed, see the kernel log"),
        _ => error.to_string(),
    }
}
