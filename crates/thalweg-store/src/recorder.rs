//! Writes a run: sealed blocks go to segment files, several writes under way at once, while the caller fills the next
//! block.

use crate::block::BlockWriter;
use crate::engine::{Done, Engine, Job};
use crate::error::{StoreError, WriteError};
use crate::format::{BLOCK_ALIGN, EventStatus, FOOTER_ENTRY_LEN, MAX_BLOCK_LEN};
use crate::info::{
    EventCounts, FILE_NAME, FIRST_NAME, LAST_NAME, RecorderInfo, RunFile, RunInfo, RunState, SourceInfo, Totals,
    WriterInfo, run_directory_name,
};
use crate::list::parse_directory_name;
use crate::segment::{Segment, segment_name};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_arena::{Block, BlockPool, Registration};
use thalweg_uring::Operation;
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
    /// Bytes after which a segment is closed and the next begun.
    pub segment_bytes: u64,
    /// Whether to write past the page cache where the file system allows it.
    pub direct: bool,
    /// What carries the writes.
    pub engine: EngineChoice,
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
            segment_bytes: 4 << 30,
            direct: true,
            engine: EngineChoice::Best,
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
    /// [`RunState::Complete`] or [`RunState::Incomplete`]. A recorder that could not write everything makes it incomplete.
    pub state: RunState,
    /// Why it is incomplete, in sentences. The recorder adds its own.
    pub reasons: Vec<String>,
    /// How many events were closed.
    pub events: EventCounts,
    /// What the trigger levels did; null where there are none.
    pub trigger: serde_json::Value,
    /// What became of every fragment: an array with one object per source.
    pub ledger: serde_json::Value,
}

/// Which method the recorder uses, of those that can fall back on another. It shows in the log, in `run.json` and in metrics.
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

/// A block that is not needed by the recorder any more. Blocks come back in the order in which they were submitted.
#[derive(Debug)]
pub struct Finished {
    /// The block; it still knows its fragments and closings.
    pub block: BlockWriter,
    /// Whether all of it is in the file. Where it is not, none of its fragments can be read back: they are lost, and so are
    /// those of all blocks behind it.
    pub result: Result<(), WriteError>,
}

/// A run that is on disk.
#[derive(Debug)]
pub struct FinishedRun {
    /// Where.
    pub path: PathBuf,
    /// What its `run.json` says.
    pub info: RunInfo,
    /// Blocks that were still under way when the run was finished, in order.
    pub blocks: Vec<Finished>,
}

/// Writes one run.
///
/// Its file descriptor ([`AsFd`]) is readable when [`reap`](Self::reap) has something to do, except where io_uring has begun to
/// refuse operations in the middle of a run: reap now and then besides. With io_uring, waits of the thread
/// that submits may be interrupted (`EINTR`) by a completion: wait again. A recorder that is dropped instead of
/// [finished](Self::finish) leaves a run that is open, as if its writer had died.
#[derive(Debug)]
pub struct Recorder {
    engine: Engine,
    /// The engine knows the blocks.
    _registration: Option<Registration>,
    method: RecorderMethod,
    path: PathBuf,
    info: RunInfo,
    next_info: RunFile,
    segment_bytes: u64,
    /// How much space is set aside for each segment: room for its footer is part of it, so that a disk that is full
    /// later does not keep it from being closed.
    segment_space: u64,
    /// The segment being filled is the last; those before it are being closed.
    segments: VecDeque<Segment>,
    /// Set once no more blocks come.
    ending: bool,
    in_flight: VecDeque<InFlight>,
    /// Blocks submitted so far, hence the number of the next.
    submitted: u64,
    failure: Option<Failure>,
    /// What went wrong beside blocks that could not be written.
    complaints: Vec<StoreError>,
    /// Held (`flock`) as long as the run is being written.
    _lock: File,
}

/// A block that was submitted.
#[derive(Debug)]
struct InFlight {
    number: u64,
    segment: u32,
    offset: u64,
    length: u32,
    /// Bytes of it known to be in the file.
    done: u32,
    sealed: TaiNanos,
    state: WriteState,
}

#[derive(Debug)]
enum WriteState {
    /// The engine has the block.
    UnderWay,
    Written(BlockWriter),
    Failed(BlockWriter, Errno),
}

/// The first block that could not be written.
#[derive(Debug)]
struct Failure {
    segment: u32,
    offset: u64,
    error: WriteError,
}

impl Recorder {
    /// Makes the run's directory, its `run.json` and its first segment. Registers the blocks of `pool`, which have to be all
    /// free.
    ///
    /// # Errors
    /// Where there is a run of this number, blocks of this size cannot be recorded, some are not free, or the system
    /// refuses. No directory of a run is left behind then.
    pub fn create(config: RecorderConfig, pool: &mut BlockPool) -> Result<Self, StoreError> {
        let RecorderConfig { directory, run, builder, builders, segment_bytes, direct, engine, begin } = config;
        let block_bytes = pool.block_bytes();
        if !(2 * BLOCK_ALIGN..=MAX_BLOCK_LEN).contains(&block_bytes) {
            return Err(StoreError::BlockSize(block_bytes));
        }
        if builder >= builders.max(1) {
            return Err(StoreError::Builder { builder, builders });
        }
        let mut notes = Vec::new();
        let (mut engine, kind) = start_engine(engine, &mut notes)?;
        let registration = match kind {
            EngineKind::IoUring => register(&mut engine, pool, &mut notes)?,
            EngineKind::Threads => None,
        };
        let registered = registration.is_some();

        let (path, run) = make_directory(&directory, run, builder, builders)?;
        let unfinished = NewDirectory(&path);
        let lock = File::open(&path).map_err(StoreError::io("opening", &path))?;
        lock_alone(&lock, &path)?;
        let mut sources = begin.sources;
        sources.sort_by_key(|source| source.id);
        let next_info = RunFile::set_aside(&path, &sources, begin.configuration.to_string().len())?;
        let segment_bytes = segment_bytes.max(block_bytes as u64).next_multiple_of(BLOCK_ALIGN as u64);
        let segment_space = segment_bytes + footer_room(segment_bytes, block_bytes as u64);
        let (segment, direct, allocated_ahead) = first_segment(&path, direct, segment_space, &mut notes)?;
        let method = RecorderMethod { engine: kind, direct, registered, allocated_ahead, notes };

        let info = RunInfo {
            format: RunInfo::FORMAT.into(),
            version: RunInfo::VERSION,
            run: run.0,
            builder,
            builders: builders.max(1),
            state: RunState::Open,
            reasons: Vec::new(),
            began: begin.began.0,
            ended: None,
            tai_utc_offset: begin.tai_utc_offset,
            writer: writer_info(begin.program, begin.version),
            recorder: RecorderInfo {
                engine: kind.to_string(),
                direct,
                registered,
                allocated_ahead,
                block_size: block_bytes as u64,
                segment_size: segment_bytes,
                notes: method.notes.clone(),
            },
            sources,
            configuration: begin.configuration,
            events: EventCounts::default(),
            trigger: serde_json::Value::Null,
            ledger: serde_json::Value::Array(Vec::new()),
            totals: Totals { segments: 1, ..Totals::default() },
        };
        info.write_first(&path)?;
        sync_directory(&directory)?;
        std::mem::forget(unfinished);
        tracing::info!(run = run.0, path = %path.display(), recorder = %method, "recording");
        Ok(Self {
            engine,
            _registration: registration,
            method,
            path,
            info,
            next_info,
            segment_bytes,
            segment_space,
            segments: VecDeque::from([segment]),
            ending: false,
            in_flight: VecDeque::new(),
            submitted: 0,
            failure: None,
            complaints: Vec::new(),
            _lock: lock,
        })
    }

    /// Seals `block` and begins to write it; returns at once. It comes back from [`reap`](Self::reap), written or not.
    /// An empty block comes back without being written.
    ///
    /// # Panics
    /// Where reserved spans of it are out.
    pub fn submit(&mut self, mut block: BlockWriter, now: TaiNanos) {
        if self.failure.is_some() || block.is_empty() {
            self.hand_back(block, now);
            return;
        }
        let number = self.submitted;
        let length = block.seal(RunNumber(self.info.run), self.info.builder, number, now);
        if let Err(error) = self.make_room(length) {
            let errno = match &error {
                StoreError::Io { error, .. } => Errno::from_io_error(error).unwrap_or(Errno::IO),
                _ => Errno::IO,
            };
            self.complain(error);
            self.push(length, now, WriteState::Failed(block, errno));
            self.wake();
            return;
        }
        self.push(length, now, WriteState::UnderWay);
        self.start_write(self.in_flight.len() - 1, block);
        if let Some(segment) = self.segments.back_mut()
            && let Some(operation) = segment.allocate_next(self.segment_space)
        {
            self.engine.start(operation);
        }
    }

    /// Takes note of what the disk has finished, and returns the next block that is, in the order of submission. Does not
    /// wait. Call it until it returns nothing whenever the file descriptor is readable.
    pub fn reap(&mut self) -> Option<Finished> {
        if let Some(finished) = self.take_finished() {
            return Some(finished);
        }
        while let Some(done) = self.engine.finished() {
            self.note(done);
        }
        let finished = self.take_finished();
        self.close_segments();
        finished
    }

    /// As [`reap`](Self::reap), but waits until a block is finished; nothing is returned where none is under way.
    ///
    /// # Errors
    /// Where the kernel cannot be waited for. That a block was not written, [`Finished`] says.
    pub fn wait(&mut self) -> Result<Option<Finished>, StoreError> {
        loop {
            if let Some(finished) = self.reap() {
                return Ok(Some(finished));
            }
            if self.in_flight.is_empty() {
                return Ok(None);
            }
            self.engine.wait().map_err(StoreError::io("waiting for writes to", &self.path))?;
        }
    }

    /// Ends the run: waits for all writes, closes the last segment, and replaces `run.json`. Blocks that were not reaped before
    /// come back with the result, so a caller whose ledger depends on them reaps first.
    ///
    /// # Errors
    /// Where the kernel cannot be waited for, or the last `run.json` cannot be written: readers then see a run whose
    /// writer died. Blocks that could not be written are no error here, but a reason in `run.json`.
    pub fn finish(mut self, end: RunEnd) -> Result<FinishedRun, StoreError> {
        let mut blocks = Vec::new();
        while let Some(finished) = self.wait()? {
            blocks.push(finished);
        }
        self.ending = true;
        loop {
            self.close_segments();
            if self.segments.is_empty() {
                break;
            }
            match self.engine.finished() {
                Some(done) => self.note(done),
                None => self.engine.wait().map_err(StoreError::io("waiting for writes to", &self.path))?,
            }
        }
        let mut info = self.info.clone();
        info.state = end.state;
        info.reasons = end.reasons;
        if let Some(failure) = &self.failure {
            let sentence = failure.error.to_string();
            if !info.reasons.contains(&sentence) {
                info.reasons.push(sentence);
            }
        }
        // A footer that had no room on a disk that was full anyway is not another reason.
        let full = self.failure().is_some_and(WriteError::is_full);
        let complaints = self.complaints.iter().filter(|complaint| !(full && complaint.is_full()));
        info.reasons.extend(complaints.map(ToString::to_string));
        if info.state != RunState::Complete || !info.reasons.is_empty() {
            info.state = RunState::Incomplete;
        }
        info.ended = Some(end.ended.0);
        info.events = end.events;
        info.trigger = end.trigger;
        info.ledger = end.ledger;
        info.totals.seconds = end.ended.0.saturating_sub(info.began) as f64 * 1e-9;
        self.next_info.replace(&info)?;
        tracing::info!(run = info.run, state = ?info.state, blocks = info.totals.blocks, "run finished");
        Ok(FinishedRun { path: self.path.clone(), info, blocks })
    }

    /// The run's number.
    pub fn run(&self) -> RunNumber {
        RunNumber(self.info.run)
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What `run.json` says so far, totals up to date.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// Which method it uses.
    pub fn method(&self) -> &RecorderMethod {
        &self.method
    }

    /// Blocks submitted and not handed back yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The write that failed first; after it nothing more is written.
    pub fn failure(&self) -> Option<&WriteError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    /// Sees to it that the last segment can take `length` more bytes.
    fn make_room(&mut self, length: u32) -> Result<(), StoreError> {
        let Some(last) = self.segments.back() else { return Ok(()) };
        if last.end == 0 || last.end + u64::from(length) <= self.segment_bytes {
            return Ok(());
        }
        let mut next = Segment::create(&self.path, last.number + 1, self.submitted, self.method.direct)?;
        if self.method.allocated_ahead && next.allocate_first(self.segment_space).is_err() {
            self.method.allocated_ahead = false;
        }
        self.segments.push_back(next);
        self.info.totals.segments += 1;
        Ok(())
    }

    fn push(&mut self, length: u32, sealed: TaiNanos, state: WriteState) {
        let Some(segment) = self.segments.back_mut() else { return };
        let (offset, number) = (segment.end, self.submitted);
        segment.end += u64::from(length);
        segment.outstanding += 1;
        let segment = segment.number;
        self.in_flight.push_back(InFlight { number, segment, offset, length, done: 0, sealed, state });
        self.submitted += 1;
    }

    /// Queues a block that is not written, behind those that are.
    fn hand_back(&mut self, block: BlockWriter, now: TaiNanos) {
        let state = match &self.failure {
            Some(failure) => WriteState::Failed(block, Errno::from_raw_os_error(failure.error.errno)),
            None => WriteState::Written(block),
        };
        let number = u64::MAX;
        let entry = InFlight { number, segment: u32::MAX, offset: 0, length: 0, done: 0, sealed: now, state };
        self.in_flight.push_back(entry);
        self.wake();
    }

    /// Makes the file descriptor readable.
    fn wake(&mut self) {
        self.engine.start(Operation::nothing(Job::Wake));
    }

    /// Begins to write what is not written yet of the block at `place` in the queue.
    fn start_write(&mut self, place: usize, block: BlockWriter) {
        let entry = &mut self.in_flight[place];
        let Some(segment) = self.segments.iter().find(|segment| segment.number == entry.segment) else { return };
        let job = Job::Block { number: entry.number, block, registered: self.method.registered };
        let (range, offset) = (entry.done as usize..entry.length as usize, entry.offset + u64::from(entry.done));
        self.engine.start(Operation::write(segment.file(), job, range, offset));
    }

    /// Takes note of an operation that is over, or that could not be begun.
    fn note(&mut self, done: Done) {
        let (limit, result) = (self.segment_space, done.result);
        let outcome = match done.job {
            Job::Wake => Ok(()),
            Job::Block { number, block, .. } => {
                self.note_block(number, block, result);
                Ok(())
            }
            Job::Allocate { segment } => {
                if let Some(segment) = self.segment_mut(segment) {
                    segment.allocated(result, limit);
                }
                Ok(())
            }
            Job::Footer { segment, .. } => match self.segments.iter_mut().find(|other| other.number == segment) {
                Some(segment) => segment.footer_written(result, &mut self.engine),
                None => Ok(()),
            },
            Job::Sync { segment } => self.segment_mut(segment).map_or(Ok(()), |segment| segment.synced(result)),
        };
        if let Err(error) = outcome {
            self.complain(error);
        }
    }

    /// Notes that a segment could not be closed; all its blocks can be read nevertheless.
    fn complain(&mut self, error: StoreError) {
        tracing::error!(%error, "closing a segment");
        self.complaints.push(error);
    }

    fn segment_mut(&mut self, number: u32) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.number == number)
    }

    fn note_block(&mut self, number: u64, block: BlockWriter, result: Result<u32, Errno>) {
        let Some(place) = self.in_flight.iter().position(|entry| entry.number == number) else { return };
        let entry = &mut self.in_flight[place];
        let remaining = entry.length - entry.done;
        match result {
            Ok(written) if written >= remaining => entry.state = WriteState::Written(block),
            // A short write. O_DIRECT goes on at a multiple of its alignment; nothing gained means nothing fits.
            Ok(written) => {
                let gained = written - written % BLOCK_ALIGN as u32;
                if gained == 0 {
                    entry.state = WriteState::Failed(block, Errno::NOSPC);
                } else {
                    entry.done += gained;
                    self.start_write(place, block);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => self.start_write(place, block),
            Err(errno) => entry.state = WriteState::Failed(block, errno),
        }
    }

    /// Hands back the oldest block where it is finished.
    fn take_finished(&mut self) -> Option<Finished> {
        self.in_flight.front().filter(|entry| !matches!(entry.state, WriteState::UnderWay))?;
        let entry = self.in_flight.pop_front()?;
        let (block, errno) = match entry.state {
            WriteState::UnderWay => return None,
            WriteState::Written(block) => (block, None),
            WriteState::Failed(block, errno) => (block, Some(errno)),
        };
        let Some(at) = self.segments.iter().position(|segment| segment.number == entry.segment) else {
            // It was never given to a segment: empty, or submitted after a failure.
            let result = match &self.failure {
                Some(failure) if !block.is_empty() => Err(failure.error.clone()),
                _ => Ok(()),
            };
            return Some(Finished { block, result });
        };
        let segment = &mut self.segments[at];
        segment.outstanding -= 1;
        if let (Some(errno), None) = (errno, &self.failure) {
            let (offset, length, errno) = (entry.offset, entry.length, errno.raw_os_error());
            let error = WriteError { path: segment.path.clone(), offset, length, errno };
            tracing::error!(%error, "recording stops here");
            self.failure = Some(Failure { segment: entry.segment, offset, error });
        }
        if let Some(failure) = &self.failure {
            // Even a block that was written: a reader stops at the gap in front of it.
            return Some(Finished { block, result: Err(failure.error.clone()) });
        }
        segment.add(entry.offset, entry.number, entry.sealed, block.fragments(), block.closings());
        let totals = &mut self.info.totals;
        totals.bytes += u64::from(entry.length);
        totals.blocks += 1;
        totals.fragments += block.fragments().len() as u64;
        for closing in block.closings() {
            totals.events += u64::from(closing.count);
            if closing.status == EventStatus::Incomplete {
                totals.incomplete_events += u64::from(closing.count);
            }
        }
        Some(Finished { block, result: Ok(()) })
    }

    /// Moves segments that get no more blocks towards being closed, and lets go of those that are.
    fn close_segments(&mut self) {
        loop {
            let is_current = self.segments.len() == 1 && !self.ending && self.failure.is_none();
            let Some(front) = self.segments.front_mut().filter(|front| !is_current && front.is_idle()) else { return };
            if front.is_closed() {
                self.segments.pop_front();
                continue;
            }
            if let Some(failure) = &self.failure {
                if front.number > failure.segment {
                    // Nothing in it can be reached by a reader.
                    let _ = std::fs::remove_file(&*front.path);
                    self.info.totals.segments = failure.segment + 1;
                    self.segments.pop_front();
                    continue;
                }
                if front.number == failure.segment {
                    front.end = failure.offset;
                }
            }
            let (run, builder) = (RunNumber(self.info.run), self.info.builder);
            if let Err(error) = front.begin_close(run, builder, &mut self.engine) {
                front.abandon();
                self.complain(error);
            }
        }
    }
}

impl AsFd for Recorder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }
}

fn start_engine(choice: EngineChoice, notes: &mut Vec<String>) -> Result<(Engine, EngineKind), StoreError> {
    if choice == EngineChoice::Best {
        match Engine::ring() {
            Ok(ring) => return Ok((ring, EngineKind::IoUring)),
            Err(error) => notes.push(format!(
                "io_uring is not available ({error}): a container's seccomp profile or kernel.io_uring_disabled forbids it"
            )),
        }
    }
    let threads = Engine::threads().map_err(StoreError::io("starting threads for", Path::new("the recorder")))?;
    Ok((threads, EngineKind::Threads))
}

/// Registers the pool's blocks under their own numbers, where that is allowed.
fn register(
    engine: &mut Engine,
    pool: &mut BlockPool,
    notes: &mut Vec<String>,
) -> Result<Option<Registration>, StoreError> {
    let (free, count, total) = (pool.free(), pool.count(), pool.count() as usize * pool.block_bytes());
    if free != count as usize {
        return Err(StoreError::PoolInUse { free, count });
    }
    let mut blocks: Vec<&mut Block> = pool.free_blocks_mut().iter_mut().collect();
    blocks.sort_by_key(|block| block.index());
    let mut buffers: Vec<&mut [u8]> = blocks.into_iter().map(Block::bytes_mut).collect();
    let Err(error) = engine.register(&mut buffers) else { return Ok(Some(pool.arena().registered("io_uring"))) };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    notes.push(format!(
        "the pool's {} KiB could not be registered with io_uring ({error}): RLIMIT_MEMLOCK is {limit}, raise it with \
         'ulimit -l' or LimitMEMLOCK=",
        total >> 10
    ));
    Ok(None)
}

/// Makes the run's directory: the one asked for, or the next free one. Whoever makes it owns the number.
fn make_directory(
    parent: &Path,
    run: Option<RunNumber>,
    builder: u32,
    builders: u32,
) -> Result<(PathBuf, RunNumber), StoreError> {
    std::fs::create_dir_all(parent).map_err(StoreError::io("creating", parent))?;
    let mut number = match run {
        Some(run) => run,
        None => next_number(parent)?,
    };
    loop {
        let path = parent.join(run_directory_name(number, builder, builders));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok((path, number)),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io("creating", &path)(error));
            }
            Err(_) if run.is_some() => return Err(StoreError::Exists(path)),
            // Somebody was faster: the next one is ours, perhaps.
            Err(_) => {
                let next = number.0.checked_add(1).ok_or_else(|| StoreError::NoNumber(parent.to_owned()))?;
                number = RunNumber(next);
            }
        }
    }
}

/// Takes the lock that tells readers that the run is being written. A reader that looks for it holds it for an instant, so it is
/// tried again for a while; somebody who keeps it must not keep the run from beginning for ever.
fn lock_alone(directory: &File, path: &Path) -> Result<(), StoreError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked(path.to_owned())),
            // A file system without locks leaves readers unsure whether the writer lives; nothing else depends on it.
            _ => return Ok(()),
        }
    }
}

/// A run's directory until everything that makes it a run is in it; removed where that fails.
struct NewDirectory<'a>(&'a Path);

impl Drop for NewDirectory<'_> {
    fn drop(&mut self) {
        for name in [segment_name(0).as_str(), LAST_NAME, FIRST_NAME, FILE_NAME] {
            let _ = std::fs::remove_file(self.0.join(name));
        }
        let _ = std::fs::remove_dir(self.0);
    }
}

/// One more than the highest number in use.
fn next_number(parent: &Path) -> Result<RunNumber, StoreError> {
    let entries = std::fs::read_dir(parent).map_err(StoreError::io("reading", parent))?;
    let taken = entries.flatten().filter_map(|entry| parse_directory_name(entry.file_name().to_str()?));
    match taken.map(|(run, _)| run.0).max() {
        None => Ok(RunNumber(1)),
        Some(highest) => highest.checked_add(1).map(RunNumber).ok_or_else(|| StoreError::NoNumber(parent.to_owned())),
    }
}

/// Opens segment 0, and finds out what the file system allows: O_DIRECT, and space set aside.
fn first_segment(
    path: &Path,
    direct: bool,
    space: u64,
    notes: &mut Vec<String>,
) -> Result<(Segment, bool, bool), StoreError> {
    let mut uses_direct = direct;
    let mut segment = match Segment::create(path, 0, 0, direct) {
        Err(StoreError::Io { error, .. }) if direct && error.raw_os_error() == Some(libc::EINVAL) => {
            notes.push("the file system refuses O_DIRECT: blocks go through the page cache".into());
            uses_direct = false;
            Segment::create(path, 0, 0, false)?
        }
        other => other?,
    };
    let allocated = segment.allocate_first(space);
    if let Err(error) = allocated {
        notes.push(format!("the file system cannot set space aside ({error}): files grow with each block"));
    }
    Ok((segment, uses_direct, allocated.is_ok()))
}

/// Bytes that the footer of a segment full of full blocks takes, and as much again.
fn footer_room(segment_bytes: u64, block_bytes: u64) -> u64 {
    let blocks = segment_bytes / block_bytes + 64;
    (2 * blocks * FOOTER_ENTRY_LEN as u64).next_multiple_of(BLOCK_ALIGN as u64)
}

fn writer_info(program: String, version: String) -> WriterInfo {
    let system = rustix::system::uname();
    WriterInfo {
        program,
        version,
        host: system.nodename().to_string_lossy().into_owned(),
        kernel: system.release().to_string_lossy().into_owned(),
        pid: std::process::id(),
    }
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(StoreError::io("syncing", path))
}

/// How long a run may wait for its lock before it begins.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_keeps_a_runs_lock_does_not_keep_it_from_beginning_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::open(directory.path()).unwrap();
        let reader = open();
        rustix::fs::flock(&reader, FlockOperation::LockShared).unwrap();
        let refused = lock_alone(&open(), directory.path()).unwrap_err();
        assert!(refused.to_string().contains("is locked by another process"), "{refused}");
        // One that looks, and gives it back meanwhile.
        std::thread::scope(|scope| {
            let recorder = scope.spawn(|| {
                let lock = open();
                lock_alone(&lock, directory.path()).map(|()| lock)
            });
            drop(reader);
            recorder.join().unwrap().unwrap();
        });
    }
}
