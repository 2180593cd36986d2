//! `run.json`: what a run is, who wrote it, and how it ended.

use crate::StoreError;
use crate::disk::Disk;
use crate::files::open_regular_file;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thalweg_core::build::{Ledger, TimeUse, Verdict};
use thalweg_wire::{RunNumber, SourceId};

/// Contents of `run.json`. Numbers that are times are TAI nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Name of the format, `thalweg-run`.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Number of the run.
    pub run: u32,
    /// Number of the builder that wrote this directory.
    pub builder: u32,
    /// Number of builders in the run, with one directory each.
    pub builders: u32,
    /// Assignment of events to builders. With `modulo`, builder *b* has the events whose number modulo `builders` is
    /// *b*; with any other value, such as `by-room`, the number does not determine the builder.
    #[serde(default = "modulo", skip_serializing_if = "is_modulo")]
    pub assignment: String,
    /// State of the run: being written, or how it ended.
    pub state: RunState,
    /// Reasons why the run is incomplete, in sentences.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Time at which the run began.
    pub began: u64,
    /// Time at which the run ended; `None` while it is open.
    pub ended: Option<u64>,
    /// TAI minus UTC when it began, in seconds.
    #[serde(default)]
    pub tai_utc_offset: i32,
    /// Times of its course, beside its beginning and its end.
    #[serde(default)]
    pub times: Milestones,
    /// Purpose of the run.
    #[serde(default)]
    pub kind: RunKind,
    /// Comment on the run by those who took it; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Steps of a scan, in ascending order of their events; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Facts about the run that the laboratory keeps with it; empty if there are none.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Program and host that wrote the run.
    pub writer: WriterInfo,
    /// Method with which its blocks were written.
    pub recorder: RecorderInfo,
    /// Sources of the run, in ascending order.
    #[serde(default)]
    pub sources: Vec<SourceInfo>,
    /// Topology, as given.
    #[serde(default)]
    pub configuration: serde_json::Value,
    /// Number of events that were closed.
    #[serde(default)]
    pub events: EventCounts,
    /// Results of the trigger levels, if there are any: `simulated`, `level1`, …
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub trigger: serde_json::Value,
    /// Builders that were left out while the run continued, in the run of the builder that assigned the events:
    /// `builder`, `at_event`, `events`, …
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub left_out: serde_json::Value,
    /// Time of each builder's thread by what it did or waited for, in seconds: an array of one object per builder with
    /// `builder`, `link`, `directory`, `working`, `disk`, `filter`, `data`, `offers`.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub time_use: serde_json::Value,
    /// Ledger of all fragments, an array with one object per source.
    #[serde(default)]
    pub ledger: serde_json::Value,
    /// Amount of data that was written.
    #[serde(default)]
    pub totals: Totals,
}

/// State of a run: being written, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RunState {
    /// Being written, or its writer died.
    Open,
    /// Every fragment is accounted for, and every event is complete or states why not.
    Complete,
    /// Data is missing; [`RunInfo::reasons`] gives the reasons.
    Incomplete,
}

/// Times of a run's course, in TAI nanoseconds since 1970; `None` for what did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Milestones {
    /// Time at which the run was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<u64>,
    /// Time at which the first event was closed that has a fragment of each source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_event: Option<u64>,
    /// Time at which the end of the run was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_asked: Option<u64>,
    /// Time at which the last event was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event: Option<u64>,
    /// Time at which all events were on disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_disk: Option<u64>,
}

/// Purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// Data to be analysed.
    #[default]
    Physics,
    /// Test of the apparatus.
    Test,
}

impl RunKind {
    /// Returns its name, as used in `run.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Physics => "physics",
            Self::Test => "test",
        }
    }
}

impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A step of a scan: a label between two events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// First event of the step: all of its fragments, and those of later events, were accepted after the step was asked
    /// for.
    pub event: u64,
    /// Time at which the step was asked for, in TAI nanoseconds since 1970.
    pub at: u64,
    /// Label of the step.
    #[serde(default)]
    pub label: String,
    /// Facts about the step, as the program gave them.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

/// Program and host that wrote a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WriterInfo {
    /// Name of the program.
    pub program: String,
    /// Version of the program.
    pub version: String,
    /// Name of the host.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Number of the process.
    pub pid: u32,
}

/// Method with which the blocks of a run were written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RecorderInfo {
    /// Engine that carried out the writes: `io_uring` or `threads`.
    pub engine: String,
    /// True if writes bypassed the page cache (O_DIRECT), false if they went through it.
    pub direct: bool,
    /// True if blocks were written from buffers registered with the kernel.
    pub registered: bool,
    /// True if space was allocated ahead of the writes.
    pub allocated_ahead: bool,
    /// Number of bytes in the largest block.
    pub block_size: u64,
    /// Number of bytes in the largest segment, its footer not counted.
    pub segment_size: u64,
    /// Reasons why a better method was not used, in sentences.
    pub notes: Vec<String>,
}

/// A source as it described itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Number of the source, written `3.17` in the file.
    #[serde(with = "source_id")]
    pub id: SourceId,
    /// Name of the source in the topology.
    #[serde(default)]
    pub name: String,
    /// Description of its device: payload type, shape, rate, simulated, replayed.
    #[serde(default)]
    pub description: serde_json::Value,
}

/// Numbers of closed events, on disk or not: a disk that fails loses events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EventCounts {
    /// Number of all closed events.
    pub built: u64,
    /// Number of events with at least one source missing.
    pub incomplete: u64,
}

/// Amount of data that was written.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of bytes in data blocks.
    pub bytes: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Number of data blocks.
    pub blocks: u64,
    /// Number of fragments in them.
    pub fragments: u64,
    /// Number of records in them that stand for a source that has no fragment in an event.
    pub missing: u64,
    /// Number of events that they close.
    pub events: u64,
    /// Number of these events with a source missing.
    pub incomplete_events: u64,
    /// Number of segment files.
    pub segments: u32,
}

/// Status of the writer of a run that is [`RunState::Open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterLife {
    /// A process holds the run's lock.
    Writing,
    /// No process on this host holds the run's lock.
    Gone,
    /// The file system cannot report locks.
    Unknown,
}

impl WriterLife {
    /// Returns the status of the writers of a run of several builders; `None` if all of them have ended.
    pub(crate) fn combined_status(lives: impl Iterator<Item = Self>) -> Option<Self> {
        lives.min_by_key(|life| match life {
            Self::Writing => 0,
            Self::Unknown => 1,
            Self::Gone => 2,
        })
    }
}

/// Returns the default of [`RunInfo::assignment`].
pub(crate) fn modulo() -> String {
    "modulo".into()
}

fn is_modulo(assignment: &str) -> bool {
    assignment == "modulo"
}

/// Returns the name of a run's directory: `run-000042`, or `run-000042-b1` for builder 1 of several.
pub fn run_directory_name(run: RunNumber, builder: u32, builders: u32) -> String {
    match builders {
        0 | 1 => format!("run-{:06}", run.0),
        _ => format!("run-{:06}-b{builder}", run.0),
    }
}

impl RunInfo {
    /// Value of [`format`](Self::format).
    pub const FORMAT: &'static str = "thalweg-run";
    /// Value of [`version`](Self::version).
    pub const FORMAT_VERSION: u32 = 1;

    /// Returns what distinguishes the run from every other run: its number, its builder, and when it began.
    pub fn run_identity(&self) -> (u32, u32, u64) {
        (self.run, self.builder, self.began)
    }

    /// Returns the step from one event of this builder to its next one; 1 if the numbers do not determine it.
    pub(crate) fn event_stride(&self) -> u32 {
        if is_modulo(&self.assignment) { self.builders } else { 1 }
    }

    /// Returns the sources of which each event has one record, in ascending order.
    pub(crate) fn source_ids(&self) -> Vec<SourceId> {
        let mut ids: Vec<SourceId> = self.sources.iter().map(|source| source.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the ledger of all fragments. A run that is open has none.
    ///
    /// # Errors
    /// It is not as this version writes it.
    pub fn read_ledger(&self) -> Result<Ledger, serde_json::Error> {
        let mut ledger = Ledger::default();
        if !self.ledger.is_null() {
            // Sources are added one by one, so that their sum is computed here.
            let sources = Vec::deserialize(&self.ledger)?;
            ledger.merge_ledger(&Ledger { sources, ..Ledger::default() });
        }
        Ok(ledger)
    }

    /// Returns the rates that were offered and carried, and the stage that limited the run; `None` if it has not ended,
    /// if not all of its builders are here, or if their times were not measured.
    pub fn find_verdict(&self) -> Option<Verdict> {
        let times = Vec::<TimeUse>::deserialize(&self.time_use).ok()?;
        if self.ended.is_none() || times.len() as u64 != u64::from(self.builders.max(1)) {
            return None;
        }
        let ledger = self.read_ledger().ok()?;
        let bytes = ledger.sources.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add);
        Verdict::from_measurements(&ledger, self.totals.seconds, bytes, &times)
    }

    /// Reads `run.json` in a run's directory.
    ///
    /// # Errors
    /// [`StoreError::NotARun`] if there is none; others if it cannot be read, or is not of this version of the format.
    pub fn read_run_json(directory: &Path) -> Result<Self, StoreError> {
        let text = match open_regular_file(&directory.join(FILE_NAME)) {
            Ok(mut file) => {
                let mut text = Vec::new();
                file.read_to_end(&mut text).map(|_| text)
            }
            Err(StoreError::Io { error, .. }) => Err(error),
            Err(other) => return Err(other),
        };
        Self::decode_run_json(directory, text)
    }

    /// Returns the contradictions in it, independent of the segments, in sentences (`docs/run-format.md`,
    /// "`run.json`").
    pub fn find_contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        match (self.builder, self.builders) {
            (_, 0) => found.push("'builders' is 0, but a run has at least one".to_owned()),
            (builder, builders) if builder >= builders => {
                found.push(format!("'builder' is {builder}, but the builders are 0 to {}", builders - 1));
            }
            _ => {}
        }
        match (self.state, self.ended) {
            (RunState::Open, Some(_)) => found.push("'state' is OPEN, but 'ended' has the time of its end".to_owned()),
            (RunState::Complete | RunState::Incomplete, None) => {
                found.push("'ended' is null, but according to 'state' the run has ended".to_owned());
            }
            _ => {}
        }
        if self.state == RunState::Complete && !self.reasons.is_empty() {
            found.push("'state' is COMPLETE, but 'reasons' is not empty".to_owned());
        }
        for pair in self.sources.windows(2) {
            match pair[0].id.cmp(&pair[1].id) {
                Ordering::Less => {}
                Ordering::Equal => found.push(format!("source {} appears twice in 'sources'", pair[0].id)),
                Ordering::Greater => found.push(format!("source {} comes after {}", pair[1].id, pair[0].id)),
            }
        }
        if let Some(pair) = self.steps.windows(2).find(|pair| pair[0].event > pair[1].event) {
            found.push(format!("the step at event {} comes after that at {}", pair[1].event, pair[0].event));
        }
        for SourceInfo { id, name, description } in &self.sources {
            if name.contains(char::is_control) {
                found.push(format!("the name of source {id} has control characters, {name:?}"));
            }
            for key in ["channels", "width", "height"] {
                let number = description.get(key).and_then(serde_json::Value::as_f64);
                if let Some(number) = number.filter(|number| *number < 1.0 || number.fract() != 0.0) {
                    found.push(format!("'{key}' of source {id} is {number}, which is impossible"));
                }
            }
            if let Some(shape) = description.get("shape").filter(|shape| !is_possible_shape(shape)) {
                let shown: String = shape.to_string().chars().take(60).collect();
                found.push(format!("'shape' of source {id} is {shown}, which is impossible"));
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

    /// Decodes `text`, read from the `run.json` of the run at `directory`.
    pub(crate) fn decode_run_json(directory: &Path, text: io::Result<Vec<u8>>) -> Result<Self, StoreError> {
        let path = directory.join(FILE_NAME);
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::NotARun(directory.to_owned()),
            _ => StoreError::io_error("reading", &path)(error),
        })?;
        #[derive(Deserialize)]
        struct Version {
            #[serde(default)]
            format: String,
            #[serde(default)]
            version: u32,
        }
        let Version { format, version } = parse_json_text(&path, &text)?;
        if (format.as_str(), version) != (Self::FORMAT, Self::FORMAT_VERSION) {
            return Err(StoreError::Version { path, format, version });
        }
        parse_json_text(&path, &text)
    }

    /// Writes `run.json` for the first time.
    pub(crate) fn write_first_run_json(&self, disk: &Disk, directory: &Path) -> Result<(), StoreError> {
        RunFile::create_next(disk, directory, FIRST_NAME, 0)?.replace_run_json(self)
    }
}

fn parse_json_text<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(text).map_err(|error| StoreError::Json { path: path.to_owned(), error })
}

/// Returns whether a process still writes the run in `directory`: its writer holds a lock (`flock`) on the directory.
/// If other machines share the directory, a missing lock on this machine proves nothing.
pub fn check_writer_life(directory: &Path) -> WriterLife {
    let Ok(file) = File::open(directory) else { return WriterLife::Unknown };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) if is_shared_file_system(&file) => WriterLife::Unknown,
        Ok(()) => WriterLife::Gone,
        Err(Errno::WOULDBLOCK) => WriterLife::Writing,
        Err(_) => WriterLife::Unknown,
    }
}

/// Returns whether the file system is one that other machines may write to, or a program such as `thalweg mount`.
fn is_shared_file_system(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|about| SHARED_FILE_SYSTEMS.contains(&(about.f_type as u32)))
}

/// Magic numbers of shared file systems: FUSE, NFS, SMB (two of them), 9P, Ceph, AFS (`include/uapi/linux/magic.h`).
const SHARED_FILE_SYSTEMS: [u32; 7] =
    [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x5346_414f];

/// The next `run.json`: a separate file with preallocated space that replaces the current one in one step.
#[derive(Debug)]
pub(crate) struct RunFile {
    directory: PathBuf,
    next: PathBuf,
    file: OwnedFd,
    disk: Disk,
}

impl RunFile {
    /// Allocates space for the final `run.json` of a run with `sources` sources and a configuration whose text, with
    /// comment and metadata, has `configuration` bytes.
    pub(crate) fn reserve_space(
        disk: &Disk,
        directory: &Path,
        sources: &[SourceInfo],
        configuration: usize,
    ) -> Result<Self, StoreError> {
        let described: usize = sources.iter().map(|source| source.description.to_string().len()).sum();
        // Indentation may double it. The end of the run adds a line of the ledger per source, and reasons.
        let reserve = 2 * (configuration + described) + sources.len() * (4 << 10) + (64 << 10);
        Self::create_next(disk, directory, LAST_NAME, reserve as u64)
    }

    fn create_next(disk: &Disk, directory: &Path, name: &str, reserve: u64) -> Result<Self, StoreError> {
        let next = directory.join(name);
        let file = disk.create_file(&next, false).map_err(StoreError::errno_error("creating", &next))?;
        if reserve > 0 {
            let filled = match disk.allocate_space(&file, reserve) {
                Err(Errno::OPNOTSUPP) => disk.write_at_start(&file, &vec![b' '; usize::try_from(reserve).unwrap_or(0)]),
                allocated => allocated,
            };
            let filled = filled.and_then(|()| disk.sync_file(&file));
            filled.map_err(StoreError::errno_error("reserving disk space in", &next))?;
        }
        Ok(Self { directory: directory.to_owned(), next, file, disk: disk.clone() })
    }

    /// Makes `info` the content of `run.json`, synced to disk. This also works on a full disk: if the text is longer
    /// than the allocated space, the reasons are cut.
    pub(crate) fn replace_run_json(&mut self, info: &RunInfo) -> Result<(), StoreError> {
        match self.write_and_rename(info) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && info.reasons.len() > MAX_KEPT_REASONS => {
                let mut reasons = info.reasons[..MAX_KEPT_REASONS].to_vec();
                reasons
                    .push(format!("{} more, for which the disk had no space", info.reasons.len() - MAX_KEPT_REASONS));
                self.write_and_rename(&RunInfo { reasons, ..info.clone() })
            }
            // Steps have no space reserved for them.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && !info.steps.is_empty() => {
                let lost = format!("{} steps are lost, for which the disk had no space", info.steps.len());
                let reasons = info.reasons.iter().cloned().chain([lost]).collect();
                let (steps, state) = (Vec::new(), RunState::Incomplete);
                self.write_and_rename(&RunInfo { reasons, steps, state, ..info.clone() })
            }
            result => result,
        }
        .map_err(StoreError::io_error("writing", &self.next))
    }

    fn write_and_rename(&mut self, info: &RunInfo) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(info).map_err(io::Error::other)?;
        text.push(b'\n');
        self.disk.write_at_start(&self.file, &text)?;
        self.disk.truncate_file(&self.file, text.len() as u64)?;
        self.disk.sync_file(&self.file)?;
        self.disk.rename_file(&self.next, &self.directory.join(FILE_NAME))?;
        Ok(self.disk.sync_directory(&self.directory)?)
    }
}

/// Name of the file that makes a directory a run.
pub(crate) const FILE_NAME: &str = "run.json";
/// Name of the file whose space is reserved for the final `run.json` while the run is open.
pub(crate) const LAST_NAME: &str = ".run.json";
/// Name of the file to which the first `run.json` is written before it is renamed.
pub(crate) const FIRST_NAME: &str = ".run.json.first";
/// Number of reasons that are kept if there is no space for all.
const MAX_KEPT_REASONS: usize = 16;

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

/// Returns whether a payload's axes can have these lengths: 1 to 8 of them (`docs/wire.md`). A value that is not an
/// array has a meaning of the source's own.
pub(crate) fn is_possible_shape(shape: &serde_json::Value) -> bool {
    shape.as_array().is_none_or(|axes| {
        (1..=8).contains(&axes.len()) && axes.iter().all(|length| length.as_u64().is_some_and(|length| length > 0))
    })
}
