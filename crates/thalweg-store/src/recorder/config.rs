//! What a recorder is told, and how it says what it does.

use crate::disk::Disk;
use crate::info::{EventCounts, RunState, SourceInfo};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use thalweg_wire::{RunNumber, TaiNanos};

/// What a recorder is to write, and where.
#[derive(Debug, Clone)]
pub struct RecorderConfig {
    /// The directory that holds the runs; made if it is not there.
    pub directory: PathBuf,
    /// The run's number; the next free one where there is none. With several builders it has to be given.
    pub run: Option<RunNumber>,
    /// Which builder this is, counted from 0.
    pub builder: u32,
    /// How many builders the run has.
    pub builders: u32,
    /// What [`RunInfo::assignment`](crate::RunInfo::assignment) says.
    pub assignment: String,
    /// Bytes after which a segment is closed and the next begun.
    pub segment_bytes: u64,
    /// Whether to write past the page cache where the file system allows it.
    pub direct: bool,
    /// What carries the writes.
    pub engine: EngineChoice,
    /// The file system that it is on.
    pub disk: Disk,
    /// What `run.json` says from the beginning.
    pub begin: RunBegin,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            directory: "runs".into(),
            run: None,
            builder: 0,
            builders: 1,
            assignment: crate::info::modulo(),
            segment_bytes: 4 << 30,
            direct: true,
            engine: EngineChoice::Best,
            disk: Disk::System,
            begin: RunBegin::default(),
        }
    }
}

/// What carries the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, or else threads.
    #[default]
    Best,
    /// Threads, even where io_uring would be allowed.
    Threads,
}

/// What is known of a run when it begins.
#[derive(Debug, Clone, Default)]
pub struct RunBegin {
    /// When.
    pub began: TaiNanos,
    /// TAI minus UTC, in seconds.
    pub tai_utc_offset: i32,
    /// The writing program's name.
    pub program: String,
    /// Its version.
    pub version: String,
    /// The sources.
    pub sources: Vec<SourceInfo>,
    /// The topology, as given.
    pub configuration: serde_json::Value,
}

/// What is known of a run when it ends.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// When.
    pub ended: TaiNanos,
    /// How long the run lasted, by a clock that is never set.
    pub seconds: f64,
    /// [`RunState::Complete`] or [`RunState::Incomplete`]. A recorder that could not write everything makes it incomplete.
    pub state: RunState,
    /// Why it is incomplete, in sentences. The recorder adds its own.
    pub reasons: Vec<String>,
    /// How many events were closed.
    pub events: EventCounts,
    /// What the trigger levels did; null where there are none.
    pub trigger: serde_json::Value,
    /// Builders that were left out; null where there are none.
    pub left_out: serde_json::Value,
    /// What became of every fragment: an array with one object per source.
    pub ledger: serde_json::Value,
}

/// Which method the recorder uses, of those that can fall back on another. It shows in the log, in `run.json` and in
/// metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecorderMethod {
    /// What carries the writes.
    pub engine: EngineKind,
    /// Past the page cache (O_DIRECT), or through it.
    pub direct: bool,
    /// From registered buffers, or from memory whose pages the kernel looks up for each write.
    pub registered: bool,
    /// Into space set aside ahead of the writes, or growing the file with each.
    pub allocated_ahead: bool,
    /// Why a better method was not used, in sentences.
    pub notes: Vec<String>,
}

/// What carries the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// io_uring.
    IoUring,
    /// Threads that wait in `pwrite`.
    Threads,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
        })
    }
}

impl fmt::Display for RecorderMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct = if self.direct { "O_DIRECT" } else { "buffered" };
        let registered = if self.registered { "registered buffers" } else { "ordinary buffers" };
        let ahead = if self.allocated_ahead { "space set aside ahead" } else { "growing files" };
        write!(f, "{}, {direct}, {registered}, {ahead}", self.engine)
    }
}
