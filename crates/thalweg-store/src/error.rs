//! What can go wrong with a run on disk.

use crate::format::FormatError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why a run could not be written or read.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The answer.
        #[source]
        error: io::Error,
    },
    /// A run of this number is there already; runs are never overwritten.
    #[error("{} exists already: choose another run number, or leave it out to take the next free one", .0.display())]
    Exists(PathBuf),
    /// No number is left.
    #[error("{} holds run 4294967295 already, which is the last number there is", .0.display())]
    NoNumber(PathBuf),
    /// There is no run here.
    #[error("{} is not a run: it has no run.json", .0.display())]
    NotARun(PathBuf),
    /// The directories of several builders that are not those of one run.
    #[error("{}: its directories are not of one run: {difference}", .path.display())]
    Parts {
        /// The run.
        path: PathBuf,
        /// How they differ.
        difference: String,
    },
    /// `run.json` is not what it should be.
    #[error("{}: {error}", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: serde_json::Error,
    },
    /// `run.json` is of another format, or another version of it.
    #[error("{} has format '{format}' version {version}; this program reads 'thalweg-run' version 1", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its `format`.
        format: String,
        /// Its `version`.
        version: u32,
    },
    /// Bytes of a segment are not what they should be.
    #[error("{} at byte {offset}: {error}", .path.display())]
    Format {
        /// The segment.
        path: PathBuf,
        /// Where the block begins.
        offset: u64,
        /// What is wrong with it.
        #[source]
        error: FormatError,
    },
    /// An index entry leads to something that is not the record it names.
    #[error("{} at byte {offset}: no record of the event and source that the index names", .path.display())]
    Record {
        /// The segment.
        path: PathBuf,
        /// Where the record should be.
        offset: u64,
    },
    /// An event without exactly one record of each source.
    #[error(
        "{}: event {event} has {found} of the {expected} records it should have, one of each source: the block that held \
         the others is lost, or their writer was wrong; `thalweg verify` says which",
        .path.display()
    )]
    Event {
        /// The run.
        path: PathBuf,
        /// The event.
        event: u64,
        /// Its records.
        found: usize,
        /// The run's sources.
        expected: usize,
    },
    /// Blocks that are missing at the end of a finished run.
    #[error(
        "{}: blocks that its run.json tells of are missing at its end, {blocks} of them; `thalweg verify` says more",
        .path.display()
    )]
    Missing {
        /// The run.
        path: PathBuf,
        /// How many.
        blocks: u64,
    },
    /// A name that belongs to a file, and something else that has it: a directory, a pipe.
    #[error("{} is not a file: move it away", .0.display())]
    NotAFile(PathBuf),
    /// Somebody else holds the lock that tells readers that a run is being written.
    #[error("{} is locked by another process, so that nobody could see that it is being written: end that process", .0.display())]
    Locked(PathBuf),
    /// Blocks that cannot be recorded.
    #[error("blocks of {0} bytes cannot be recorded: they must have 8 KiB to 1 GiB")]
    BlockSize(usize),
    /// A builder number past the number of builders.
    #[error("builder {builder} of {builders} does not exist: builders count from 0")]
    Builder {
        /// Which.
        builder: u32,
        /// Of how many.
        builders: u32,
    },
    /// The pool's blocks have to be all there to be registered.
    #[error("{free} of the pool's {count} blocks are free: give all blocks back before a run is begun")]
    PoolInUse {
        /// Free ones.
        free: usize,
        /// All.
        count: u32,
    },
    /// Memory for the recorder itself.
    #[error("memory for a segment's footer: {0}")]
    Arena(#[from] thalweg_arena::ArenaError),
    /// Blocks could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl StoreError {
    /// Whether the disk, or the user's share of it, is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { error, .. } => error.raw_os_error().is_some_and(is_full),
            Self::Write(error) => error.is_full(),
            _ => false,
        }
    }

    /// Whether bytes that were read are not what they should be, so that reading them again does not help, and what lies
    /// beside them can be read.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Format { .. } | Self::Record { .. } | Self::Event { .. } | Self::Missing { .. })
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error }
    }

    pub(crate) fn os(doing: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error: error.into() }
    }
}

/// The write that failed first. From then on nothing more of the run is written.
#[derive(Debug, Clone, Error)]
#[error("writing {length} bytes at byte {offset} of {}: {}", .path.display(), explain(*.errno))]
pub struct WriteError {
    /// The segment.
    pub path: Arc<Path>,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How much was to be written there.
    pub length: u32,
    /// The system's error number.
    pub errno: i32,
}

impl WriteError {
    /// Whether the disk, or the user's share of it, is full.
    pub fn is_full(&self) -> bool {
        is_full(self.errno)
    }
}

fn is_full(errno: i32) -> bool {
    [libc::ENOSPC, libc::EDQUOT].contains(&errno)
}

fn explain(errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    match errno {
        libc::ENOSPC => format!("{error}; free some, or record somewhere else"),
        libc::EIO => format!("{error}; the disk itself failed, see the kernel log"),
        _ => error.to_string(),
    }
}
