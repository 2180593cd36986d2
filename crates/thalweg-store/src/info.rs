//! `run.json`: what a run is, who wrote it, and how it ended.

use crate::StoreError;
use crate::disk::Disk;
use crate::files::open_file;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thalweg_wire::{RunNumber, SourceId};

/// The content of `run.json`. Numbers that are times are TAI nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// `thalweg-run`.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// The run.
    pub run: u32,
    /// The builder that wrote this directory.
    pub builder: u32,
    /// How many builders the run has, with one directory each.
    pub builders: u32,
    /// Which builder has which events: `modulo`, where builder *b* has those whose number leaves *b* when it is divided
    /// by `builders`; anything else, as `by-room`, says that numbers tell nothing of that.
    #[serde(default = "modulo", skip_serializing_if = "is_modulo")]
    pub assignment: String,
    /// Whether it is being written, or how it ended.
    pub state: RunState,
    /// Why it is incomplete, in sentences.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// When it began.
    pub began: u64,
    /// When it ended; nothing while it is open.
    pub ended: Option<u64>,
    /// TAI minus UTC when it began, in seconds.
    #[serde(default)]
    pub tai_utc_offset: i32,
    /// Who wrote it.
    pub writer: WriterInfo,
    /// How its blocks were written.
    pub recorder: RecorderInfo,
    /// Its sources, in ascending order.
    #[serde(default)]
    pub sources: Vec<SourceInfo>,
    /// The topology, as given.
    #[serde(default)]
    pub configuration: serde_json::Value,
    /// How many events were closed.
    #[serde(default)]
    pub events: EventCounts,
    /// What the trigger levels did with the events, where there are any: `simulated`, `level1`, …
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub trigger: serde_json::Value,
    /// Builders that were left out while the run went on, in the run of the builder that assigned the events: `builder`,
    /// `at_event`, `events`, …
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub left_out: serde_json::Value,
    /// What became of every fragment, an array with one object per source.
    #[serde(default)]
    pub ledger: serde_json::Value,
    /// How much was written.
    #[serde(default)]
    pub totals: Totals,
}

/// Whether a run is being written, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RunState {
    /// Being written, or its writer died.
    Open,
    /// Every fragment is accounted for, and every event is complete or says why not.
    Complete,
    /// Something is missing; [`RunInfo::reasons`] says what.
    Incomplete,
}

/// Who wrote a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WriterInfo {
    /// The program.
    pub program: String,
    /// Its version.
    pub version: String,
    /// The host's name.
    pub host: String,
    /// The kernel's release.
    pub kernel: String,
    /// The process.
    pub pid: u32,
}

/// How blocks were written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecorderInfo {
    /// `io_uring` or `threads`.
    pub engine: String,
    /// Past the page cache (O_DIRECT), or through it.
    pub direct: bool,
    /// From buffers that were registered with the kernel.
    pub registered: bool,
    /// Into space that was set aside ahead of the writes.
    pub allocated_ahead: bool,
    /// Bytes in the largest block.
    pub block_size: u64,
    /// Bytes in the largest segment, its footer not counted.
    pub segment_size: u64,
    /// Why a better way was not taken, in sentences.
    pub notes: Vec<String>,
}

/// A source as it introduced itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Its number, written `3.17` in the file.
    #[serde(with = "source_id")]
    pub id: SourceId,
    /// Its name in the topology.
    #[serde(default)]
    pub name: String,
    /// What it says of its device: payload type, shape, rate, simulated, replayed.
    #[serde(default)]
    pub description: serde_json::Value,
}

/// How many events were closed, on disk or not: a disk that fails takes events with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EventCounts {
    /// All of them.
    pub built: u64,
    /// Those with at least one source missing.
    pub incomplete: u64,
}

/// How much was written.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Bytes in data blocks.
    pub bytes: u64,
    /// From beginning to end.
    pub seconds: f64,
    /// Data blocks.
    pub blocks: u64,
    /// Fragments in them.
    pub fragments: u64,
    /// Records in them that stand for a source that has no fragment in an event.
    pub missing: u64,
    /// Events that they close.
    pub events: u64,
    /// Of these, events with a source missing.
    pub incomplete_events: u64,
    /// Segment files.
    pub segments: u32,
}

/// Whether anybody still writes a run that is [`RunState::Open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterLife {
    /// A process holds the run's lock.
    Writing,
    /// No process on this host does.
    Gone,
    /// The file system cannot tell.
    Unknown,
}

impl WriterLife {
    /// Whether anybody still writes a run of several builders; nothing where all of them have ended.
    pub(crate) fn of_several(lives: impl Iterator<Item = Self>) -> Option<Self> {
        lives.min_by_key(|life| match life {
            Self::Writing => 0,
            Self::Unknown => 1,
            Self::Gone => 2,
        })
    }
}

/// What [`RunInfo::assignment`] says where it says nothing else.
pub(crate) fn modulo() -> String {
    "modulo".into()
}

fn is_modulo(assignment: &str) -> bool {
    assignment == "modulo"
}

/// The name of a run's directory: `run-000042`, or `run-000042-b1` for builder 1 of several.
pub fn run_directory_name(run: RunNumber, builder: u32, builders: u32) -> String {
    match builders {
        0 | 1 => format!("run-{:06}", run.0),
        _ => format!("run-{:06}-b{builder}", run.0),
    }
}

impl RunInfo {
    /// The value of [`format`](Self::format).
    pub const FORMAT: &'static str = "thalweg-run";
    /// The value of [`version`](Self::version).
    pub const VERSION: u32 = 1;

    /// What tells it from every other run: its number, its builder, and when it began.
    pub fn identity(&self) -> (u32, u32, u64) {
        (self.run, self.builder, self.began)
    }

    /// From one event of this builder to its next one; 1 where their numbers do not tell.
    pub(crate) fn stride(&self) -> u32 {
        if is_modulo(&self.assignment) { self.builders } else { 1 }
    }

    /// The sources that each event has one record of, in ascending order.
    pub(crate) fn source_ids(&self) -> Vec<SourceId> {
        let mut ids: Vec<SourceId> = self.sources.iter().map(|source| source.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Reads `run.json` in a run's directory.
    ///
    /// # Errors
    /// [`StoreError::NotARun`] where there is none; others where it cannot be read, or is not of this version of the
    /// format.
    pub fn read(directory: &Path) -> Result<Self, StoreError> {
        let text = match open_file(&directory.join(FILE_NAME)) {
            Ok(mut file) => {
                let mut text = Vec::new();
                file.read_to_end(&mut text).map(|_| text)
            }
            Err(StoreError::Io { error, .. }) => Err(error),
            Err(other) => return Err(other),
        };
        Self::decode(directory, text)
    }

    /// What in it cannot be, whatever is in the segments, in sentences (`docs/run-format.md`, "`run.json`").
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        match (self.builder, self.builders) {
            (_, 0) => found.push("'builders' is 0, and a run has one at least".to_owned()),
            (builder, builders) if builder >= builders => {
                found.push(format!("'builder' is {builder}, and builders 0 to {} are all there are", builders - 1));
            }
            _ => {}
        }
        match (self.state, self.ended) {
            (RunState::Open, Some(_)) => found.push("'state' is OPEN, and 'ended' says when it ended".to_owned()),
            (RunState::Complete | RunState::Incomplete, None) => {
                found.push("'ended' is null, and 'state' says that it has ended".to_owned());
            }
            _ => {}
        }
        if self.state == RunState::Complete && !self.reasons.is_empty() {
            found.push("'state' is COMPLETE, and 'reasons' say why it is not".to_owned());
        }
        for pair in self.sources.windows(2) {
            match pair[0].id.cmp(&pair[1].id) {
                Ordering::Less => {}
                Ordering::Equal => found.push(format!("source {} stands twice in 'sources'", pair[0].id)),
                Ordering::Greater => found.push(format!("source {} stands behind {}", pair[1].id, pair[0].id)),
            }
        }
        for SourceInfo { id, name, description } in &self.sources {
            if name.contains(char::is_control) {
                found.push(format!("the name of source {id} has control characters, {name:?}"));
            }
            for key in ["channels", "width", "height"] {
                let number = description.get(key).and_then(serde_json::Value::as_f64);
                if let Some(number) = number.filter(|number| *number < 1.0 || number.fract() != 0.0) {
                    found.push(format!("'{key}' of source {id} is {number}, and no payload has that shape"));
                }
            }
            if let Some(shape) = description.get("shape").filter(|shape| !is_possible_shape(shape)) {
                let shown: String = shape.to_string().chars().take(60).collect();
                found.push(format!("'shape' of source {id} is {shown}, and no payload has that shape"));
            }
        }
        let ledger = self.ledger.as_array().map(Vec::as_slice).unwrap_or_default();
        let known: HashSet<String> = self.sources.iter().map(|source| source.id.to_string()).collect();
        let mut named = HashSet::new();
        for name in ledger.iter().filter_map(|line| line["source"].as_str()) {
            if !known.contains(name) {
                found.push(format!("the ledger has a line for source {name:?}, which is not among 'sources'"));
            } else if !named.insert(name) {
                found.push(format!("the ledger has two lines for source {name}"));
            }
        }
        found
    }

    /// What was read as the `run.json` of the run at `directory`.
    pub(crate) fn decode(directory: &Path, text: io::Result<Vec<u8>>) -> Result<Self, StoreError> {
        let path = directory.join(FILE_NAME);
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotARun(directory.to_owned()),
            _ => StoreError::io("reading", &path)(error),
        })?;
        #[derive(Deserialize)]
        struct Version {
            #[serde(default)]
            format: String,
            #[serde(default)]
            version: u32,
        }
        let json = |error| StoreError::Json { path: path.clone(), error };
        let Version { format, version } = serde_json::from_slice(&text).map_err(json)?;
        if (format.as_str(), version) != (Self::FORMAT, Self::VERSION) {
            return Err(StoreError::Version { path, format, version });
        }
        serde_json::from_slice(&text).map_err(json)
    }

    /// Writes `run.json` for the first time.
    pub(crate) fn write_first(&self, disk: &Disk, directory: &Path) -> Result<(), StoreError> {
        RunFile::create(disk, directory, FIRST_NAME, 0)?.replace(self)
    }
}

/// Whether somebody still writes the run in `directory`: its writer holds a lock (`flock`) on the directory. Of a
/// directory that other machines have too, that nobody has locked it here says nothing.
pub fn writer_life(directory: &Path) -> WriterLife {
    let Ok(file) = File::open(directory) else { return WriterLife::Unknown };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) if is_shared(&file) => WriterLife::Unknown,
        Ok(()) => WriterLife::Gone,
        Err(Errno::WOULDBLOCK) => WriterLife::Writing,
        Err(_) => WriterLife::Unknown,
    }
}

/// Whether the file system is one that other machines may write to, or a program such as `thalweg mount`.
fn is_shared(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|about| SHARED.contains(&(about.f_type as u32)))
}

/// FUSE, NFS, SMB (two of them), 9P, Ceph, AFS (`include/uapi/linux/magic.h`).
const SHARED: [u32; 7] = [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

/// The next `run.json`: a file beside it whose space is set aside, and that takes its place in one step.
#[derive(Debug)]
pub(crate) struct RunFile {
    directory: PathBuf,
    next: PathBuf,
    file: OwnedFd,
    disk: Disk,
}

impl RunFile {
    /// Sets space aside for the last `run.json` of a run with `sources` sources and a configuration whose text has
    /// `configuration` bytes.
    pub(crate) fn set_aside(
        disk: &Disk,
        directory: &Path,
        sources: &[SourceInfo],
        configuration: usize,
    ) -> Result<Self, StoreError> {
        let described: usize = sources.iter().map(|source| source.description.to_string().len()).sum();
        // Indentation may double it. What the end adds: a line of the ledger per source, and reasons.
        let reserve = 2 * (configuration + described) + sources.len() * (4 << 10) + (64 << 10);
        Self::create(disk, directory, LAST_NAME, reserve as u64)
    }

    fn create(disk: &Disk, directory: &Path, name: &str, reserve: u64) -> Result<Self, StoreError> {
        let next = directory.join(name);
        let file = disk.create(&next, false).map_err(StoreError::os("creating", &next))?;
        if reserve > 0 {
            let filled = match disk.allocate(&file, reserve) {
                Err(Errno::OPNOTSUPP) => disk.write(&file, &vec![b' '; usize::try_from(reserve).unwrap_or(0)]),
                allocated => allocated,
            };
            let filled = filled.and_then(|()| disk.sync(&file));
            filled.map_err(StoreError::os("setting space aside in", &next))?;
        }
        Ok(Self { directory: directory.to_owned(), next, file, disk: disk.clone() })
    }

    /// Makes `info` the content of `run.json`, on the disk itself. It works on a full disk too: where the text is
    /// longer than the space set aside, the reasons are cut.
    pub(crate) fn replace(&mut self, info: &RunInfo) -> Result<(), StoreError> {
        match self.write(info) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && info.reasons.len() > FEW_REASONS => {
                let mut reasons = info.reasons[..FEW_REASONS].to_vec();
                reasons.push(format!("{} more; the disk had no room for them", info.reasons.len() - FEW_REASONS));
                self.write(&RunInfo { reasons, ..info.clone() })
            }
            result => result,
        }
        .map_err(StoreError::io("writing", &self.next))
    }

    fn write(&mut self, info: &RunInfo) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(info).map_err(io::Error::other)?;
        text.push(b'\n');
        self.disk.write(&self.file, &text)?;
        self.disk.truncate(&self.file, text.len() as u64)?;
        self.disk.sync(&self.file)?;
        self.disk.rename(&self.next, &self.directory.join(FILE_NAME))?;
        Ok(self.disk.sync_directory(&self.directory)?)
    }
}

/// The file that makes a directory a run.
pub(crate) const FILE_NAME: &str = "run.json";
/// Where space for the last one is set aside, as long as the run is open.
pub(crate) const LAST_NAME: &str = ".run.json";
/// Where the first one is written before it takes its name.
pub(crate) const FIRST_NAME: &str = ".run.json.first";
/// Reasons that are kept when there is no room for all.
const FEW_REASONS: usize = 16;

mod source_id {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use thalweg_wire::SourceId;

    pub(super) fn serialize<S: Serializer>(id: &SourceId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SourceId, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Whether a payload's axes can have these lengths: 1 to 8 of them (`docs/wire.md`). What is no array is a source's own
/// word for something else.
pub(crate) fn is_possible_shape(shape: &serde_json::Value) -> bool {
    shape.as_array().is_none_or(|axes| {
        (1..=8).contains(&axes.len()) && axes.iter().all(|length| length.as_u64().is_some_and(|length| length > 0))
    })
}
