//! Configuration of a recorder, and the method that it uses.

use crate::disk::Disk;
use crate::info::{EventCounts, Milestones, RunKind, RunState, SourceInfo, Step};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use thalweg_wire::{RunNumber, TaiNanos};

/// Configuration of a recorder: the run to write, where, and how.
#[derive(Debug, Clone)]
pub struct RecorderConfig {
    /// Directory that holds the runs; created if it does not exist.
    pub directory: PathBuf,
    /// Number of the run; `None` takes the next free one. With several builders it must be given.
    pub run: Option<RunNumber>,
    /// Number of this builder, counted from 0.
    pub builder: u32,
    /// Number of builders in the run.
    pub builders: u32,
    /// Value of [`RunInfo::assignment`](crate::RunInfo::assignment).
    pub assignment: String,
    /// Number of bytes after which a segment is closed and the next one begun.
    pub segment_bytes: u64,
    /// True to bypass the page cache where the file system allows it.
    pub direct: bool,
    /// Engine that carries out the writes.
    pub engine: EngineChoice,
    /// File system of the run.
    pub disk: Disk,
    /// Contents of `run.json` from the beginning.
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

/// Choice of the engine that carries out the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, otherwise threads.
    #[default]
    Best,
    /// Threads, even where io_uring would be allowed.
    Threads,
}

/// Information about a run that is known when it begins.
#[derive(Debug, Clone, Default)]
pub struct RunBegin {
    /// Time at which the run began.
    pub began: TaiNanos,
    /// TAI minus UTC, in seconds.
    pub tai_utc_offset: i32,
    /// Name of the writing program.
    pub program: String,
    /// Version of the writing program.
    pub version: String,
    /// Sources of the run.
    pub sources: Vec<SourceInfo>,
    /// Time at which the run was asked for; `None` if it began by itself.
    pub asked: Option<TaiNanos>,
    /// Purpose of the run.
    pub kind: RunKind,
    /// Comment on the run.
    pub comment: String,
    /// Facts about the run that are kept with it.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Topology, as given.
    pub configuration: serde_json::Value,
}

/// Information about a run that is known when it ends.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Time at which the run ended.
    pub ended: TaiNanos,
    /// Duration of the run in seconds, by a clock that is never set.
    pub seconds: f64,
    /// State of the run: [`RunState::Complete`] or [`RunState::Incomplete`]. A recorder that could not write everything
    /// makes it incomplete.
    pub state: RunState,
    /// Reasons why the run is incomplete, in sentences. The recorder adds its own.
    pub reasons: Vec<String>,
    /// Times of its course; that of the request for it, and that at which its events were on disk, are added.
    pub times: Milestones,
    /// Steps of a scan.
    pub steps: Vec<Step>,
    /// Number of events that were closed.
    pub events: EventCounts,
    /// Results of the trigger levels; null if there are none.
    pub trigger: serde_json::Value,
    /// Builders that were left out; null if there are none.
    pub left_out: serde_json::Value,
    /// Time of the builder's thread by what it did or waited for, as in `run.json`; null if it was not measured.
    pub time_use: serde_json::Value,
    /// Ledger of all fragments: an array with one object per source.
    pub ledger: serde_json::Value,
}

/// Method of writing: for each capability, the variant that the recorder uses. Shown in the log, in `run.json` and in
/// metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecorderMethod {
    /// Engine that carries out the writes.
    pub engine: EngineKind,
    /// True if writes bypass the page cache (O_DIRECT), false if they go through it.
    pub direct: bool,
    /// True for registered buffers, false for memory whose pages the kernel looks up for each write.
    pub registered: bool,
    /// True if space is allocated ahead of the writes, false if the file grows with each write.
    pub allocated_ahead: bool,
    /// Reasons why a better method was not used, in sentences.
    pub notes: Vec<String>,
}

/// Kind of engine that carries out the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Asynchronous writes through io_uring.
    IoUring,
    /// Threads that block in `pwrite`.
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
        let ahead = if self.allocated_ahead { "space reserved ahead" } else { "growing files" };
        write!(f, "{}, {direct}, {registered}, {ahead}", self.engine)
    }
}
