//! Runs on disk: a builder's blocks go in, events come out, and a third party can check that both agree.
//!
//! Writing: fill a [`BlockWriter`], [`Recorder::submit`] it, take it back from [`Recorder::reap`]. Reading:
//! [`Run::open`], then [`Run::events`], [`Run::event`] or, while it is being written, [`Run::follow`];
//! [`Run::open_at`], where its files are not in a directory of this machine. [`verify`] reads everything and says what
//! does not agree; [`salvage`] writes what is whole of a damaged run into a new one. The bytes are described for other
//! languages in `docs/run-format.md`, and for this one in [`mod@format`].
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `block` | A block while it is being filled: records in its arena memory, the index beside it until it is sealed |
//! | `recorder` | Writes a run: sealed blocks go to segment files, several writes under way at once, while the caller fills the next block |
//! | `disk` | What a recorder asks of the file system: the kernel's, or one that a test makes up |
//! | `engine` | How bytes get to the disk without the hot thread waiting for them: io_uring where the kernel allows it, or else a few threads that wait in its place |
//! | `segment` | One segment file while it is being written |
//! | `format` | The bytes of a segment: block headers, fragment tables, closing tables, footers (`docs/run-format.md`) |
//! | `info` | `run.json`: what a run is, who wrote it, and how it ended |
//! | `digest` | How much of a segment is written, and the checksum of all of it, without reading it |
//! | `list` | What runs there are |
//! | `part` | Reads what one builder wrote of a run: finds its blocks, and the events in them |
//! | `run` | Reads a run: the events of all its builders, in order |
//! | `stored` | A data block of a run, until it is used and then: mapped, or fetched |
//! | `files` | Where a run's files are: in a directory of this machine, or elsewhere, behind whatever reads ranges of them |
//! | `mapping` | A segment file in memory, for reading without copying |
//! | `event` | Events as a reader gets them |
//! | `places` | Which event stands at which place in a run's order |
//! | `walk` | Walks a segment's blocks without its footer |
//! | `follow` | Reads a run while it is being written |
//! | `verify` | Reads a whole run and says what in it does not agree |
//! | `shifts` | Looks in a recorded run for sources whose event numbers are shifted against each other |
//! | `salvage` | Takes what is whole of a damaged run into a new one |
//! | `error` | What can go wrong with a run on disk |

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
pub use digest::{Extent, segment_digest};
pub use disk::{Access, Disk, DiskFault, Exposure, SimulatedDisk};
pub use error::{StoreError, WriteError};
pub use event::{Event, EventIds, Events, Fragment, ReadBlock};
pub use files::RunFiles;
pub use follow::{End, Follow, Followed};
pub use format::EventStatus;
pub use info::{
    EventCounts, RecorderInfo, RunInfo, RunState, SourceInfo, Totals, WriterInfo, WriterLife, run_directory_name,
    writer_life,
};
pub use list::{Listed, list, parts_of, state_word, whole_runs};
pub use mapping::Mapping;
pub use part::{Part, Recovery};
pub use recorder::{
    EngineChoice, EngineKind, Finished, FinishedRun, Recorder, RecorderConfig, RecorderMethod, RunBegin, RunEnd,
};
pub use run::{Run, reasons_together};
pub use salvage::{SalvageError, Salvaged, salvage};
pub use shifts::RunTimes;
pub use stored::StoredBlock;
pub use verify::{Problem, ProblemKind, SourceCount, Verdict, VerifyReport, verify, verify_watched};
