//! Writes a run: sealed blocks go to segment files while the caller fills the next block.
//!
//! Several writes are under way at once.

mod begin;
mod config;

pub use config::{EngineChoice, EngineKind, RecorderConfig, RecorderMethod, RunBegin, RunEnd};

use crate::block::BlockWriter;
use crate::disk::Disk;
use crate::engine::{Done, Engine, Job};
use crate::error::{StoreError, WriteError};
use crate::format::{BLOCK_ALIGN, EventStatus};
use crate::info::{Milestones, RunFile, RunInfo, RunState};
use crate::segment::{Segment, segment_file_name};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_arena::Registration;
use thalweg_sys::uring::{File, Operation};
use thalweg_wire::{RunNumber, TaiNanos};

/// A block that the recorder no longer needs. Blocks come back in the order in which they were submitted.
#[derive(Debug)]
pub struct Finished {
    /// Block, with its fragments and closings.
    pub block: BlockWriter,
    /// Result of the write: `Ok` if the whole block is in the file. Otherwise none of its fragments can be read back:
    /// they are lost, and so are those of all later blocks.
    pub result: Result<(), WriteError>,
}

/// A run that is on disk.
#[derive(Debug)]
pub struct FinishedRun {
    /// Directory of the run.
    pub path: PathBuf,
    /// Contents of its `run.json`.
    pub info: RunInfo,
    /// Blocks that were still under way when the run was finished, in order.
    pub blocks: Vec<Finished>,
}

/// Writes one run.
///
/// Its file descriptor ([`AsFd`]) is readable when [`reap_block`](Self::reap_block) has something to do, except if
/// io_uring has begun to refuse operations in the middle of a run: call `reap` now and then as well. With io_uring,
/// waits of the submitting thread may be interrupted (`EINTR`) by a completion: wait again. A recorder that is dropped
/// without being [finished](Self::finish_run) leaves an open run, as if its writer had died.
#[derive(Debug)]
pub struct Recorder {
    engine: Engine,
    disk: Disk,
    /// Registration of the blocks with the engine.
    _registration: Option<Registration>,
    method: RecorderMethod,
    path: PathBuf,
    info: RunInfo,
    next_info: RunFile,
    segment_bytes: u64,
    /// Number of bytes allocated for each segment, space for its footer included, so that a disk that becomes full
    /// later does not prevent the segment from being closed.
    segment_space: u64,
    /// Segment being filled, last, after the segments that are being closed.
    segments: VecDeque<Segment>,
    /// Set once no more blocks will be submitted.
    ending: bool,
    in_flight: VecDeque<InFlight>,
    /// Number of blocks submitted so far, which is the number of the next block.
    submitted: u64,
    failure: Option<Failure>,
    /// Errors other than blocks that could not be written.
    complaints: Vec<StoreError>,
    /// Number of bytes of the segment being filled that are written but may be lost in a power failure.
    unsynced: u64,
    /// Number of sync operations under way, other than those that close a segment.
    syncing: u32,
    /// Directory of the run. It is locked (`flock`) as long as the run is being written.
    directory: Arc<OwnedFd>,
}

/// A block that was submitted.
#[derive(Debug)]
struct InFlight {
    number: u64,
    segment: u32,
    offset: u64,
    length: u32,
    /// Number of bytes of the block known to be in the file.
    done: u32,
    sealed: TaiNanos,
    state: WriteState,
}

#[derive(Debug)]
enum WriteState {
    /// Block that waits for its segment to be created.
    Waiting(BlockWriter),
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

/// Maximum number of segments open at a time: the segment being filled, and those being closed. Blocks of other
/// segments wait: a disk that closes files more slowly than they are filled is a slow disk.
const MAX_OPEN_SEGMENTS: usize = 8;

impl Recorder {
    /// Seals `block` and begins to write it; returns at once. The block comes back from
    /// [`reap_block`](Self::reap_block), written or not. An empty block comes back without being written.
    ///
    /// # Panics
    /// If reserved spans of the block are in use.
    pub fn submit_block(&mut self, mut block: BlockWriter, now: TaiNanos) {
        if self.failure.is_some() || block.is_empty() {
            self.queue_unwritten(block, now);
            return;
        }
        let number = self.submitted;
        let length = block.seal_block(RunNumber(self.info.run), self.info.builder, number, now);
        self.prepare_segment(length);
        self.push_in_flight(length, now, WriteState::UnderWay);
        self.start_write(self.in_flight.len() - 1, block);
        if let Some(segment) = self.segments.back_mut()
            && let Some(operation) = segment.next_allocate_operation(self.segment_space)
        {
            self.engine.start_operation(operation);
        }
    }

    /// Processes the operations that the disk has completed, and returns the next finished block, in the order of
    /// submission. Does not wait. Call it until it returns `None` whenever the file descriptor is readable.
    pub fn reap_block(&mut self) -> Option<Finished> {
        if let Some(finished) = self.take_finished_block() {
            return Some(finished);
        }
        while let Some(done) = self.engine.take_finished() {
            self.note_completion(done);
        }
        let finished = self.take_finished_block();
        self.close_segments();
        finished
    }

    /// As [`reap_block`](Self::reap_block), but waits until a block is finished; returns `None` if no block is under
    /// way.
    ///
    /// # Errors
    /// If waiting for the kernel fails. A failed write is reported in [`Finished`] instead.
    pub fn wait_for_block(&mut self) -> Result<Option<Finished>, StoreError> {
        loop {
            if let Some(finished) = self.reap_block() {
                return Ok(Some(finished));
            }
            if self.in_flight.is_empty() {
                return Ok(None);
            }
            self.engine.wait_for_completion().map_err(StoreError::io_error("waiting for writes to", &self.path))?;
        }
    }

    /// Declares that no more blocks will be submitted: the last segment is closed once all blocks are written. Calls of
    /// [`reap_block`](Self::reap_block) continue with that.
    pub fn end_submission(&mut self) {
        self.ending = true;
        self.close_segments();
    }

    /// Returns whether [`end_submission`](Self::end_submission) was called and nothing is under way any more, so that
    /// [`finish_run`](Self::finish_run) will not wait.
    pub fn has_ended(&self) -> bool {
        self.ending && self.in_flight.is_empty() && self.segments.is_empty() && self.syncing == 0
    }

    /// Returns the number of bytes of the segment being filled that are written but would be lost in a power failure; 0
    /// while they are being synced.
    pub fn unsynced_bytes(&self) -> u64 {
        if self.syncing > 0 { 0 } else { self.unsynced }
    }

    /// Begins to sync to disk what is written; returns at once. The file descriptor becomes readable when the sync is
    /// done. Each segment is also synced when it is closed.
    pub fn begin_sync(&mut self) {
        if self.unsynced_bytes() == 0 {
            return;
        }
        let Some(segment) = self.segments.back().filter(|segment| segment.is_ready_for_blocks()) else { return };
        self.engine
            .start_operation(Operation::sync_file(segment.operation_file(), Job::Keep { segment: segment.number }));
        (self.unsynced, self.syncing) = (0, self.syncing + 1);
    }

    /// Ends the run: waits for all writes, closes the last segment, and replaces `run.json`. Blocks that were not
    /// reaped before come back with the result, so a caller whose ledger depends on them reaps first.
    ///
    /// # Errors
    /// If waiting for the kernel fails, or the final `run.json` cannot be written: readers then see a run whose writer
    /// died. Blocks that could not be written are not an error here, but a reason in `run.json`.
    pub fn finish_run(mut self, end: RunEnd) -> Result<FinishedRun, StoreError> {
        let mut blocks = Vec::new();
        while let Some(finished) = self.wait_for_block()? {
            blocks.push(finished);
        }
        self.ending = true;
        loop {
            self.close_segments();
            if self.segments.is_empty() && self.syncing == 0 {
                break;
            }
            match self.engine.take_finished() {
                Some(done) => self.note_completion(done),
                None => self
                    .engine
                    .wait_for_completion()
                    .map_err(StoreError::io_error("waiting for writes to", &self.path))?,
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
        // A footer that had no space on a disk that was full anyway is not another reason.
        let full = self.first_write_error().is_some_and(WriteError::is_disk_full);
        let complaints = self.complaints.iter().filter(|complaint| !(full && complaint.is_disk_full()));
        info.reasons.extend(complaints.map(ToString::to_string));
        if info.state != RunState::Complete || !info.reasons.is_empty() {
            info.state = RunState::Incomplete;
        }
        info.ended = Some(end.ended.0);
        info.times = Milestones { asked: info.times.asked, on_disk: Some(end.ended.0), ..end.times };
        info.steps = end.steps;
        info.events = end.events;
        info.trigger = end.trigger;
        info.left_out = end.left_out;
        info.time_use = end.time_use;
        info.ledger = end.ledger;
        info.totals.seconds = end.seconds;
        self.next_info.replace_run_json(&info)?;
        tracing::info!(run = info.run, state = ?info.state, blocks = info.totals.blocks, "run finished");
        Ok(FinishedRun { path: self.path.clone(), info, blocks })
    }

    /// Returns the run's number.
    pub fn run_number(&self) -> RunNumber {
        RunNumber(self.info.run)
    }

    /// Returns the run's directory.
    pub fn run_path(&self) -> &Path {
        &self.path
    }

    /// Returns the contents of `run.json` so far, with up-to-date totals.
    pub fn run_info(&self) -> &RunInfo {
        &self.info
    }

    /// Returns the method of writing in use.
    pub fn recorder_method(&self) -> &RecorderMethod {
        &self.method
    }

    /// Returns the number of blocks submitted and not handed back yet.
    pub fn blocks_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the error of the first write that failed; nothing is written after it.
    pub fn first_write_error(&self) -> Option<&WriteError> {
        self.failure.as_ref().map(|failure| &failure.error)
    }

    /// Makes sure that the last segment can take `length` more bytes: if a new segment is needed, its file begins to be
    /// created, and its blocks wait for that.
    fn prepare_segment(&mut self, length: u32) {
        let Some(last) = self.segments.back() else { return };
        if last.end == 0 || last.end + u64::from(length) <= self.segment_bytes {
            return;
        }
        let segment = last.number + 1;
        self.segments.push_back(Segment::new_pending(&self.disk, &self.path, segment, self.submitted));
        // The previous segment is synced when it is closed.
        self.unsynced = 0;
        self.create_segment_files();
    }

    /// Begins to create the files of segments that have none yet, up to the maximum number of open segments.
    fn create_segment_files(&mut self) {
        for place in 0..self.segments.len().min(MAX_OPEN_SEGMENTS) {
            let segment = &mut self.segments[place];
            if std::mem::replace(&mut segment.is_begun, true) {
                continue;
            }
            let segment = segment.number;
            let job = Job::Create { segment, file: None };
            self.engine.start_operation(Operation::create_file(
                self.directory_file(),
                job,
                segment_c_name(segment),
                self.method.direct,
            ));
        }
    }

    /// Handles the result of creating a segment's file.
    fn note_segment_created(&mut self, number: u32, made: Result<Option<OwnedFd>, Errno>) -> Result<(), StoreError> {
        let space = self.method.allocated_ahead.then_some(self.segment_space);
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) else { return Ok(()) };
        let outcome = segment.note_created(made, self.method.direct, space, &mut self.engine);
        if outcome.is_ok() {
            self.info.totals.segments = self.info.totals.segments.max(number + 1);
            self.engine.start_operation(Operation::sync_file(self.directory_file(), Job::Names));
            self.syncing += 1;
        }
        outcome
    }

    /// Begins the writes that have waited for a segment; if the segment could not be created, they fail.
    fn begin_waiting_writes(&mut self, number: u32) {
        for place in 0..self.in_flight.len() {
            let entry = &mut self.in_flight[place];
            if entry.segment != number || !matches!(entry.state, WriteState::Waiting(_)) {
                continue;
            }
            if let WriteState::Waiting(block) = std::mem::replace(&mut entry.state, WriteState::UnderWay) {
                self.start_write(place, block);
            }
        }
    }

    fn directory_file(&self) -> File {
        File::Open(Arc::clone(&self.directory))
    }

    fn push_in_flight(&mut self, length: u32, sealed: TaiNanos, state: WriteState) {
        let Some(segment) = self.segments.back_mut() else { return };
        let (offset, number) = (segment.end, self.submitted);
        segment.end += u64::from(length);
        segment.outstanding += 1;
        let segment = segment.number;
        self.in_flight.push_back(InFlight { number, segment, offset, length, done: 0, sealed, state });
        self.submitted += 1;
    }

    /// Queues a block that is not written, after those that are.
    fn queue_unwritten(&mut self, block: BlockWriter, now: TaiNanos) {
        let state = match &self.failure {
            Some(failure) => WriteState::Failed(block, Errno::from_raw_os_error(failure.error.errno)),
            None => WriteState::Written(block),
        };
        let number = u64::MAX;
        let entry = InFlight { number, segment: u32::MAX, offset: 0, length: 0, done: 0, sealed: now, state };
        self.in_flight.push_back(entry);
        self.make_descriptor_readable();
    }

    /// Makes the file descriptor readable.
    fn make_descriptor_readable(&mut self) {
        self.engine.start_operation(Operation::no_operation(Job::Wake));
    }

    /// Begins to write the unwritten part of the block at `place` in the queue, or makes it wait for its segment.
    fn start_write(&mut self, place: usize, block: BlockWriter) {
        let entry = &mut self.in_flight[place];
        let Some(segment) = self.segments.iter().find(|segment| segment.number == entry.segment) else { return };
        if !segment.is_ready_for_blocks() {
            entry.state = match segment.creation_error() {
                Some(error) => WriteState::Failed(block, error),
                None => WriteState::Waiting(block),
            };
            return;
        }
        let job = Job::Block { number: entry.number, block, registered: self.method.registered };
        let (range, offset) = (entry.done as usize..entry.length as usize, entry.offset + u64::from(entry.done));
        self.engine.start_operation(Operation::write_range(segment.operation_file(), job, range, offset));
    }

    /// Processes a completed operation, also one that could not be begun.
    fn note_completion(&mut self, done: Done) {
        let (limit, result) = (self.segment_space, done.result);
        let outcome = match done.job {
            Job::Wake => Ok(()),
            Job::Block { number, block, .. } => {
                self.note_block_written(number, block, result);
                Ok(())
            }
            Job::Create { segment, file } => {
                let outcome = self.note_segment_created(segment, result.map(|_| file));
                self.begin_waiting_writes(segment);
                outcome
            }
            Job::Allocate { segment } => {
                if let Some(segment) = self.segments.iter_mut().find(|other| other.number == segment) {
                    segment.note_allocated(result, limit);
                    if result.is_err_and(|error| error != Errno::NOSPC) && !segment.is_ready_for_blocks() {
                        self.method.allocated_ahead = false;
                    }
                    segment.note_prepared(&mut self.engine);
                }
                self.begin_waiting_writes(segment);
                Ok(())
            }
            Job::Truncate { segment } => {
                let found = self.segments.iter_mut().find(|other| other.number == segment);
                let outcome = found.map_or(Ok(()), |segment| segment.note_truncated(result, &mut self.engine));
                self.begin_waiting_writes(segment);
                outcome
            }
            Job::Remove { segment } => {
                self.syncing -= 1;
                if result == Err(Errno::INVAL) {
                    // A kernel that cannot remove files through io_uring.
                    let _ = self.disk.remove_file(&self.path.join(segment_file_name(segment)));
                }
                Ok(())
            }
            Job::Footer { segment, .. } => match self.segments.iter_mut().find(|other| other.number == segment) {
                Some(segment) => segment.note_footer_written(result, &mut self.engine),
                None => Ok(()),
            },
            Job::Sync { segment } => self.segment_mut(segment).map_or(Ok(()), |segment| segment.note_synced(result)),
            Job::Keep { segment } => {
                self.syncing -= 1;
                let path = self.path.join(segment_file_name(segment));
                result.map(drop).map_err(StoreError::errno_error("syncing", &path))
            }
            Job::Names => {
                self.syncing -= 1;
                result.map(drop).map_err(StoreError::errno_error("syncing the directory", &self.path))
            }
        };
        if let Err(error) = outcome {
            self.note_closing_error(error);
        }
    }

    /// Notes that a segment could not be closed; all its blocks can be read nevertheless.
    fn note_closing_error(&mut self, error: StoreError) {
        tracing::error!(%error, "closing a segment");
        self.complaints.push(error);
    }

    fn segment_mut(&mut self, number: u32) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.number == number)
    }

    fn note_block_written(&mut self, number: u64, block: BlockWriter, result: Result<u32, Errno>) {
        let Some(place) = self.in_flight.iter().position(|entry| entry.number == number) else { return };
        let entry = &mut self.in_flight[place];
        let remaining = entry.length - entry.done;
        match result {
            Ok(written) if written >= remaining => entry.state = WriteState::Written(block),
            // A short write. O_DIRECT continues at a multiple of its alignment; no progress means that nothing fits.
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

    /// Hands back the oldest block if it is finished.
    fn take_finished_block(&mut self) -> Option<Finished> {
        if matches!(self.in_flight.front()?.state, WriteState::UnderWay | WriteState::Waiting(_)) {
            return None;
        }
        let entry = self.in_flight.pop_front()?;
        let (block, errno) = match entry.state {
            WriteState::UnderWay | WriteState::Waiting(_) => return None,
            WriteState::Written(block) => (block, None),
            WriteState::Failed(block, errno) => (block, Some(errno)),
        };
        let Some(at) = self.segments.iter().position(|segment| segment.number == entry.segment) else {
            // The block was never assigned to a segment: empty, or submitted after a failure.
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
            // Also a block that was written: a reader stops at the gap before it.
            return Some(Finished { block, result: Err(failure.error.clone()) });
        }
        segment.add_block(entry.offset, entry.number, entry.sealed, block.fragment_entries(), block.joined_closings());
        if at + 1 == self.segments.len() {
            self.unsynced += u64::from(entry.length);
        }
        let totals = &mut self.info.totals;
        totals.bytes += u64::from(entry.length);
        totals.blocks += 1;
        totals.fragments += block.fragment_entries().len() as u64 - block.missing_count();
        totals.missing += block.missing_count();
        for closing in block.joined_closings() {
            totals.events += u64::from(closing.count);
            if closing.status == EventStatus::Incomplete {
                totals.incomplete_events += u64::from(closing.count);
            }
        }
        Some(Finished { block, result: Ok(()) })
    }

    /// Advances the closing of segments that get no more blocks, and drops closed segments.
    fn close_segments(&mut self) {
        loop {
            let is_current = self.segments.len() == 1 && !self.ending && self.failure.is_none();
            let Some(front) = self.segments.front_mut().filter(|front| !is_current && front.is_idle()) else { break };
            if front.is_closed() {
                self.segments.pop_front();
                continue;
            }
            if let Some(failure) = &self.failure {
                if front.number > failure.segment || front.creation_error().is_some() {
                    // A reader can reach nothing in it.
                    let segment = front.number;
                    if front.creation_error().is_none() {
                        let job = Job::Remove { segment };
                        self.engine.start_operation(Operation::remove_file(
                            File::Open(Arc::clone(&self.directory)),
                            job,
                            segment_c_name(segment),
                        ));
                        self.syncing += 1;
                    }
                    let totals = &mut self.info.totals;
                    totals.segments = totals.segments.min(segment);
                    self.segments.pop_front();
                    continue;
                }
                if front.number == failure.segment {
                    front.end = failure.offset;
                }
            }
            let (run, builder) = (RunNumber(self.info.run), self.info.builder);
            front.begin_closing(run, builder, &mut self.engine);
        }
        self.create_segment_files();
    }
}

/// Returns the name of a segment's file, for the kernel.
fn segment_c_name(segment: u32) -> CString {
    CString::new(segment_file_name(segment)).unwrap_or_else(|_| unreachable!("digits and letters"))
}

impl AsFd for Recorder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }
}
