//! Runs on disk: a builder's blocks go in, events come out, and a third party can check that both agree.
//!
//! Writing: fill a [`BlockWriter`], [`Recorder::submit`] it, take it back from [`Recorder::reap`]. Reading: [`Run::open`],
//! then [`Run::events`], [`Run::event`] or, while it is being written, [`Run::follow`]; [`Run::open_at`], where its files are
//! not in a directory of this machine. [`verify`] reads everything and
//! says what does not agree; [`salvage`] writes what is whole of a damaged run into a new one. The bytes are described for other languages in `docs/run-format.md`, and for this one in
//! [`mod@format`].

mod block;
mod digest;
mod engine;
mod error;
mod event;
mod files;
mod follow;
pub mod format;
mod info;
mod list;
mod mapping;
mod recorder;
mod run;
mod salvage;
mod segment;
mod stored;
mod verify;
mod walk;

pub use block::BlockWriter;
pub use digest::{Extent, segment_digest};
pub use error::{StoreError, WriteError};
pub use event::{Event, EventIds, Events, Fragment, ReadBlock};
pub use files::RunFiles;
pub use follow::{End, Follow, Followed};
pub use format::EventStatus;
pub use info::{
    EventCounts, RecorderInfo, RunInfo, RunState, SourceInfo, Totals, WriterInfo, WriterLife, run_directory_name,
    writer_life,
};
pub use list::{Listed, list};
pub use mapping::Mapping;
pub use recorder::{
    EngineChoice, EngineKind, Finished, FinishedRun, Recorder, RecorderConfig, RecorderMethod, RunBegin, RunEnd,
};
pub use run::{Recovery, Run};
pub use salvage::{SalvageError, Salvaged, salvage};
pub use stored::StoredBlock;
pub use verify::{Problem, ProblemKind, SourceCount, Verdict, VerifyReport, verify};
