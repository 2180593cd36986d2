//! Reads, writes and checks runs on disk: a builder's blocks go in, events come out, and a third party can check that
//! both agree.
//!
//! Writing: fill a [`BlockWriter`], [`Recorder::submit_block`] it, take it back from [`Recorder::reap_block`]. Reading:
//! [`Run::open`], then [`Run::events`], [`Run::find_event`] or, while the run is being written, [`Run::follow_events`];
//! [`Run::open_remote`] if its files are not in a directory of this machine. [`verify`] reads everything and reports every
//! disagreement; [`salvage`] writes the intact parts of a damaged run into a new one. The byte format is described for
//! other languages in `docs/run-format.md`, and for Rust in [`mod@format`].
//!
//! # Files, in the order in which the data passes them
//!
//! | file | what is in it |
//! | --- | --- |
//! | `block` | A block being filled: records in its arena memory, the index kept separately until the block is sealed |
//! | `recorder` | Writes a run: sealed blocks go to segment files while the caller fills the next block |
//! | `disk` | The file system interface of a recorder: the kernel's file system, or a simulated one for tests |
//! | `engine` | Asynchronous disk operations: io_uring where the kernel allows it, otherwise a few threads |
//! | `segment` | One segment file while it is being written |
//! | `format` | Bytes of a segment: block headers, fragment tables, closing tables, footers (`docs/run-format.md`) |
//! | `info` | `run.json`: what a run is, who wrote it, and how it ended |
//! | `digest` | Length of the written part of a segment, and its checksum, computed from the block headers |
//! | `list` | Lists the runs of a directory |
//! | `part` | Reads what one builder wrote of a run: finds its blocks, and the events in them |
//! | `run` | Reads a run: the events of all its builders, in order |
//! | `stored` | A data block of a run, read on demand: mapped, or fetched |
//! | `files` | Access to a run's files: in a directory of this machine, or elsewhere, through range reads |
//! | `mapping` | A segment file in memory, for reading without copying |
//! | `event` | Events as a reader gets them |
//! | `places` | Lookup of events by their position in a run's order, and of positions by event |
//! | `walk` | Walks a segment's blocks without its footer |
//! | `follow` | Reads a run while it is being written |
//! | `verify` | Reads a whole run and reports every disagreement in it |
//! | `shifts` | Looks in a recorded run for sources whose event numbers are shifted against each other |
//! | `salvage` | Copies the intact parts of a damaged run into a new one |
//! | `error` | Errors of runs on disk |

mod block;
mod digest;
mod disk;
mod engine;
mod error;
mod event;
mod files;
mod follow;
pub mod format;
mod info;
mod list;
mod mapping;
mod part;
mod places;
mod recorder;
mod run;
mod salvage;
mod segment;
mod shifts;
mod stored;
mod verify;
mod walk;

pub use block::BlockWriter;
pub use digest::{Extent, closed_segment_crc32c};
pub use disk::{Access, Disk, DiskFault, Exposure, SimulatedDisk};
pub use error::{StoreError, WriteError};
pub use event::{Event, EventIds, Events, Fragment, ReadBlock};
pub use files::RunFiles;
pub use follow::{End, Follow, Followed};
pub use format::EventStatus;
pub use info::{
    EventCounts, Milestones, RecorderInfo, RunInfo, RunKind, RunState, SourceInfo, Step, Totals, WriterInfo,
    WriterLife, check_writer_life, run_directory_name,
};
pub use list::{Listed, builder_directories, combine_builder_directories, list_runs, run_state_text};
pub use mapping::Mapping;
pub use part::{Part, Recovery};
pub use recorder::{
    EngineChoice, EngineKind, Finished, FinishedRun, Recorder, RecorderConfig, RecorderMethod, RunBegin, RunEnd,
};
pub use run::{Run, combine_reasons};
pub use salvage::{SalvageError, Salvaged, salvage_run};
pub use shifts::RunTimes;
pub use stored::StoredBlock;
pub use verify::{Problem, ProblemKind, SourceCount, Verdict, VerifyReport, verify_run, verify_run_watched};
