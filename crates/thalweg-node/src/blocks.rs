//! Blocks that a builder fills: the newest, and older ones that wait for their last bytes. Places are carved from the
//! newest. Blocks leave in order, to the recorder or straight back to the pool.

use std::collections::VecDeque;
use std::time::Duration;
use thalweg_arena::{BlockPool, Span};
use thalweg_core::build::{Closed, Missing};
use thalweg_store::{BlockWriter, EventStatus, Finished, Recorder};
use thalweg_wire::{EventId, FragmentHeader, RunNumber, SourceId, TaiNanos};

/// Maximum number of bytes that are written but not synced to disk before a sync is started.
const MAX_UNSYNCED_BYTES: u64 = 256 << 20;
/// Time after which a disk that does not answer has failed.
pub(crate) const DISK_TIME: Duration = Duration::from_secs(60);

/// All blocks of a builder.
#[derive(Debug)]
pub(crate) struct Blocks {
    pool: BlockPool,
    filling: VecDeque<BlockWriter>,
    /// Time since which the youngest block has held something.
    since: Option<Duration>,
    /// Time since which something is written and not synced to disk.
    unsynced_since: Option<Duration>,
    recorder: Option<Recorder>,
    /// Blocks of the run before, until they are on disk.
    retiring: Option<Retiring>,
    /// Closings in each block, by the block's number in the pool.
    closings_in_blocks: Vec<BlockClosings>,
    /// Number of fragments of closed events that are not on disk, by the source's index.
    unwritten: Vec<u64>,
    /// First error of the disk.
    failure: Option<String>,
    answers: DiskAnswers,
    /// Closings for which there was no block.
    waiting_closings: VecDeque<Closing>,
    run: RunNumber,
    builders: u32,
}

/// Blocks of a run that another one has followed: all are at the disk.
#[derive(Debug)]
struct Retiring {
    recorder: Option<Recorder>,
    unwritten: Vec<u64>,
    failure: Option<String>,
}

/// Outcome of the blocks of a run.
#[derive(Debug)]
pub(crate) struct BlocksOutcome {
    pub(crate) recorder: Option<Recorder>,
    /// Number of fragments of closed events that are not on disk, by the source's index; `failure` is the disk's first
    /// error.
    pub(crate) unwritten: Vec<u64>,
    pub(crate) failure: Option<String>,
}

/// Place whose records can be entered in its block.
#[derive(Debug)]
pub(crate) struct FilledPlace<'a> {
    block: &'a mut BlockWriter,
    /// Position of the place in the block.
    base: u32,
}

/// State of the disk's answers.
#[derive(Debug, Default)]
struct DiskAnswers {
    /// Time since which the disk owes an answer.
    since: Option<Duration>,
}

/// Closed events that are not written down yet.
#[derive(Debug)]
struct Closing {
    first: EventId,
    count: u32,
    status: EventStatus,
    missing: Vec<Missing>,
    /// Number of missing sources that already have a header.
    headed: usize,
}

/// Events whose closings are in one block: all their fragments are lost with it, wherever these are.
#[derive(Debug, Clone, Default)]
struct BlockClosings {
    events: u64,
    /// Sources missing from these events, with an entry for each event.
    missing: Vec<usize>,
}

impl Blocks {
    pub(crate) fn new(pool: BlockPool, builders: u32, sources: usize) -> Self {
        Self {
            closings_in_blocks: vec![BlockClosings::default(); pool.block_count() as usize],
            unwritten: vec![0; sources],
            pool,
            filling: VecDeque::new(),
            since: None,
            unsynced_since: None,
            recorder: None,
            retiring: None,
            failure: None,
            answers: DiskAnswers::default(),
            waiting_closings: VecDeque::new(),
            run: RunNumber(0),
            builders,
        }
    }

    pub(crate) fn block_pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Records into the run of a recorder, and returns it.
    pub(crate) fn start_recording(&mut self, recorder: Recorder) -> &Recorder {
        self.run = recorder.run_number();
        self.recorder.insert(recorder)
    }

    /// Returns the recorders that have blocks, or may get some.
    pub(crate) fn recorders(&self) -> impl Iterator<Item = &Recorder> {
        self.recorder.iter().chain(self.retiring.iter().filter_map(|retiring| retiring.recorder.as_ref()))
    }

    /// Lets the recorder bring the blocks that it has to disk, and records into the run of `next` from now on. Nothing
    /// must be left that was not sent on, and no run before this one be under way to the disk.
    pub(crate) fn begin_next_run(&mut self, next: Option<Recorder>) {
        let unwritten = vec![0; self.unwritten.len()];
        self.retiring = Some(Retiring {
            recorder: self.recorder.take(),
            unwritten: std::mem::replace(&mut self.unwritten, unwritten),
            failure: self.failure.take(),
        });
        self.unsynced_since = None;
        if let Some(next) = next {
            self.start_recording(next);
        }
    }

    /// Returns the outcome of the blocks of the run before, once all of them are on disk, or known not to be, and its
    /// files are closed.
    pub(crate) fn take_retired_outcome(&mut self) -> Option<BlocksOutcome> {
        self.take_back_retired_blocks();
        let retiring = self.retiring.as_mut()?;
        if let Some(recorder) = &mut retiring.recorder {
            if recorder.blocks_in_flight() > 0 {
                return None;
            }
            recorder.end_submission();
            // Closing files is a matter of the recorder's turns.
            let _ = recorder.reap_block();
            if !recorder.has_ended() {
                return None;
            }
        }
        let Retiring { recorder, unwritten, failure } = self.retiring.take()?;
        Some(BlocksOutcome { recorder, unwritten, failure })
    }

    /// Gives up the disk of the run before, which does not answer: the memory of its blocks is the kernel's until the
    /// kernel lets go of it. Returns the fragments known not to be on disk.
    pub(crate) fn give_up_retired(&mut self) -> Vec<u64> {
        let Some(Retiring { recorder, unwritten, .. }) = self.retiring.take() else { return Vec::new() };
        std::mem::forget(recorder);
        unwritten
    }

    fn take_back_retired_blocks(&mut self) -> bool {
        let Self { retiring: Some(retiring), pool, closings_in_blocks, .. } = self else { return false };
        let mut any = false;
        while let Some(finished) = retiring.recorder.as_mut().and_then(Recorder::reap_block) {
            if let Err(error) = &finished.result {
                retiring.failure.get_or_insert_with(|| error.to_string());
                let closings = &mut closings_in_blocks[finished.block.index_in_pool() as usize];
                std::mem::take(closings).count_unwritten(&mut retiring.unwritten);
            }
            pool.return_block(finished.block.into_block());
            any = true;
        }
        any
    }

    /// Returns the bytes in the free blocks.
    pub(crate) fn free_block_bytes(&self) -> u64 {
        (self.pool.free_count() as u64).saturating_mul(self.pool.block_bytes() as u64)
    }

    /// Reserves a place for `len` bytes with `fragments` records. Returns `None` if no block is free.
    pub(crate) fn reserve(&mut self, len: usize, fragments: u32, now: Duration) -> Option<Span> {
        if let Some(span) = self.filling.back_mut().and_then(|block| block.reserve_span(len, fragments)) {
            self.since.get_or_insert(now);
            return Some(span);
        }
        self.open_block()?;
        self.since = Some(now);
        self.filling.back_mut().and_then(|block| block.reserve_span(len, fragments))
    }

    /// Begins a new block. Returns `None` if none is free.
    fn open_block(&mut self) -> Option<()> {
        let block = self.pool.take_block()?;
        self.closings_in_blocks[block.block_index() as usize] = BlockClosings::default();
        self.filling.push_back(BlockWriter::new(block));
        self.since = None;
        Some(())
    }

    /// Returns a filled place, whose records can then be entered. A place that is never filled returns by being
    /// dropped.
    pub(crate) fn filled_place_for(&mut self, span: &Span) -> Option<FilledPlace<'_>> {
        let block = self.filling.iter_mut().rev().find(|block| block.owns_span(span))?;
        let base = block.span_offset(span);
        Some(FilledPlace { block, base })
    }

    /// Queues the closings of events, if they are recorded.
    pub(crate) fn queue_closings(&mut self, Closed { first, count, missing }: Closed) {
        if self.recorder.is_some() {
            let status = if missing.is_empty() { EventStatus::Complete } else { EventStatus::Incomplete };
            self.waiting_closings.push_back(Closing { first, count, status, missing, headed: 0 });
        }
    }

    /// Writes closings down, with a header for each missing source, as far as there are blocks for them.
    pub(crate) fn write_closings(&mut self, sources: &[(SourceId, String)], now: TaiNanos, mono: Duration) {
        let stride = u64::from(self.builders);
        while let Some(closing) = self.waiting_closings.front_mut() {
            if let Some(block) = self.filling.back_mut() {
                self.since.get_or_insert(mono);
                while let Some(missing) = closing.missing.get(closing.headed) {
                    let header = FragmentHeader {
                        status: missing.status,
                        run: self.run,
                        event: closing.first,
                        timestamp: now,
                        source: sources[missing.source].0,
                        ..FragmentHeader::default()
                    };
                    if !block.add_header_record(&header) {
                        break;
                    }
                    closing.headed += 1;
                }
                let closings = &mut self.closings_in_blocks[block.index_in_pool() as usize];
                while closing.headed == closing.missing.len()
                    && closing.count > 0
                    && block.close_event(closing.first, stride, closing.status)
                {
                    closings.events += 1;
                    closings.missing.extend(closing.missing.iter().map(|missing| missing.source));
                    closing.first.0 += stride;
                    closing.count -= 1;
                }
                if closing.count == 0 {
                    self.waiting_closings.pop_front();
                    continue;
                }
            }
            if self.open_block().is_none() {
                return;
            }
        }
    }

    /// Sends on full blocks, and the last one after `flush`. `all`: sends on everything.
    pub(crate) fn send_on(&mut self, now: TaiNanos, mono: Duration, flush: Duration, all: bool) {
        loop {
            let last = self.filling.len() == 1;
            let old = self.since.is_some_and(|since| mono >= since + flush);
            let Some(block) = self.filling.front() else { return };
            if block.has_spans_in_use() || last && !(all || old) {
                return;
            }
            if last {
                self.since = None;
            }
            let Some(mut block) = self.filling.pop_front() else { return };
            match &mut self.recorder {
                Some(recorder) if self.failure.is_none() && !block.is_empty() => recorder.submit_block(block, now),
                Some(_) => {
                    self.count_unwritten_block(block.index_in_pool());
                    self.pool.return_block(block.into_block());
                }
                None => {
                    block.discard_contents();
                    self.pool.return_block(block.into_block());
                }
            }
        }
    }

    /// Takes back blocks that the recorder has written. Returns true if there were any.
    pub(crate) fn reap_written_blocks(&mut self) -> bool {
        let mut any = self.take_back_retired_blocks();
        while let Some(finished) = self.recorder.as_mut().and_then(Recorder::reap_block) {
            self.take_back_block(finished);
            any = true;
        }
        any
    }

    /// Takes back blocks that the disk has written, and starts a sync of written data at most every `flush`. A disk
    /// that has not answered for long has failed, and is given nothing more.
    pub(crate) fn check_disk(&mut self, now: Duration, flush: Duration) {
        let has_answered = self.reap_written_blocks();
        self.sync_written_data(now, flush);
        if self.answers.update_owed_answer(self.blocks_in_flight(), has_answered, now) {
            let (blocks, time) = (self.blocks_in_flight(), humantime::format_duration(DISK_TIME));
            self.failure.get_or_insert_with(|| format!("the disk did not write {blocks} blocks within {time}"));
        }
    }

    /// Returns the first error of the disk.
    pub(crate) fn disk_failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the first error of a disk that has owed an answer for too long, and forgets it.
    pub(crate) fn take_error_of_silent_disk(&mut self, now: Duration) -> Option<String> {
        let answers = &self.answers;
        self.failure.take_if(|_| answers.since.is_some_and(|since| now > since + DISK_TIME))
    }

    /// Returns when the disk must be checked even if nothing happens: it has owed an answer for too long.
    pub(crate) fn next_disk_check_time(&self, now: Duration) -> Option<Duration> {
        self.answers.next_check_time(now)
    }

    /// Starts a sync of written data, at most every `every`, or as soon as there is much of it.
    fn sync_written_data(&mut self, now: Duration, every: Duration) {
        let Some(recorder) = &mut self.recorder else { return };
        let unsynced = recorder.unsynced_bytes();
        if unsynced == 0 {
            self.unsynced_since = None;
            return;
        }
        if now >= *self.unsynced_since.get_or_insert(now) + every || unsynced >= MAX_UNSYNCED_BYTES {
            recorder.begin_sync();
            self.unsynced_since = None;
        }
    }

    /// Returns when written data are to be synced.
    pub(crate) fn next_sync_time(&self, every: Duration) -> Option<Duration> {
        self.unsynced_since.map(|since| since + every)
    }

    /// Returns the number of blocks that recorders have.
    pub(crate) fn blocks_in_flight(&self) -> usize {
        self.recorders().map(Recorder::blocks_in_flight).sum()
    }

    /// Returns whether recorders have blocks, for which others may have to wait.
    pub(crate) fn disk_has_blocks(&self) -> bool {
        self.blocks_in_flight() > 0
    }

    /// Ends recording: no more blocks come, and the recorder closes its files.
    pub(crate) fn end(&mut self) {
        self.recorder.iter_mut().for_each(Recorder::end_submission);
    }

    /// Returns whether the recorder has closed its files, after [`end`](Self::end).
    pub(crate) fn is_ended(&self) -> bool {
        self.recorder.as_ref().is_none_or(Recorder::has_ended)
    }

    /// Returns the recorder with the blocks it has, and forgets it.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    fn take_back_block(&mut self, finished: Finished) {
        if let Err(error) = &finished.result {
            self.failure.get_or_insert_with(|| error.to_string());
            self.count_unwritten_block(finished.block.index_in_pool());
        }
        self.pool.return_block(finished.block.into_block());
    }

    /// Counts a fragment of this source that was built and cannot be written down.
    pub(crate) fn count_lost_fragment(&mut self, source: usize) {
        self.unwritten[source] += 1;
    }

    fn count_unwritten_block(&mut self, block: u32) {
        std::mem::take(&mut self.closings_in_blocks[block as usize]).count_unwritten(&mut self.unwritten);
    }

    /// Returns when a block must be sent on though it is not full.
    pub(crate) fn next_flush_time(&self, flush: Duration) -> Option<Duration> {
        // Blocks leave in order: after one that waits for its bytes, the passing of time has no effect.
        let waits = self.filling.len() == 1 && self.filling.front().is_some_and(|block| !block.has_spans_in_use());
        self.since.filter(|_| waits).map(|since| since + flush)
    }

    /// Returns whether closings wait for a block.
    pub(crate) fn has_waiting_closings(&self) -> bool {
        !self.waiting_closings.is_empty()
    }

    /// Returns whether anything has not been sent on.
    pub(crate) fn has_unsent_blocks(&self) -> bool {
        !self.filling.is_empty()
    }

    /// Returns the outcome of all blocks, once the recorder [has ended](Self::is_ended).
    pub(crate) fn take_outcome(&mut self) -> BlocksOutcome {
        BlocksOutcome {
            recorder: self.recorder.take(),
            unwritten: std::mem::take(&mut self.unwritten),
            failure: self.failure.take(),
        }
    }
}

impl BlockClosings {
    /// Adds the fragments of these events, which are not on disk, to the numbers of the sources.
    fn count_unwritten(self, unwritten: &mut [u64]) {
        unwritten.iter_mut().for_each(|count| *count += self.events);
        self.missing.into_iter().for_each(|source| unwritten[source] -= 1);
    }
}

impl FilledPlace<'_> {
    /// Enters the record at this offset in the place.
    pub(crate) fn enter_record(&mut self, event: EventId, source: SourceId, offset: u32) {
        self.block.enter_record(event, source, self.base + offset);
    }
}

impl DiskAnswers {
    /// Updates the state: the disk has `in_flight` blocks, and some have come back since the last call if `answered`.
    /// Returns true if the disk has owed an answer for too long.
    fn update_owed_answer(&mut self, in_flight: usize, answered: bool, now: Duration) -> bool {
        self.since = match self.since {
            _ if in_flight == 0 => None,
            Some(since) if !answered => Some(since),
            _ => Some(now),
        };
        self.since.is_some_and(|since| now > since + DISK_TIME)
    }

    /// Returns when the disk will have owed an answer for too long.
    fn next_check_time(&self, now: Duration) -> Option<Duration> {
        self.since.map(|since| (since + DISK_TIME).max(now + Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_failed_that_does_not_answer_and_not_one_that_is_always_busy() {
        let mut disk = DiskAnswers::default();
        let second = Duration::from_secs(1);
        for at in 0..1000 {
            assert!(!disk.update_owed_answer(16, true, at * second), "it answers");
        }
        let last = 999 * second;
        assert!(!disk.update_owed_answer(16, false, last + DISK_TIME));
        assert!(disk.update_owed_answer(16, false, last + DISK_TIME + second));
        assert!(!disk.update_owed_answer(0, true, last + 2 * DISK_TIME), "it owes nothing");
        assert!(!disk.update_owed_answer(1, false, last + 3 * DISK_TIME), "what it was given now it owes from now on");
    }
}
