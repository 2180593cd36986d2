//! The blocks a builder fills: the one that places are carved from, and those in front of it that wait for their last
//! bytes. They leave in order, to the recorder or straight back to the pool.

use std::collections::VecDeque;
use std::time::Duration;
use thalweg_arena::{BlockPool, Span};
use thalweg_build::{Closed, Missing};
use thalweg_store::{BlockWriter, EventStatus, Finished, Recorder};
use thalweg_wire::{EventId, FragmentHeader, RunNumber, SourceId, TaiNanos};

/// Bytes that are written and not brought to the disk itself, at most, before that is begun.
const MOST_UNSYNCED: u64 = 256 << 20;

/// All of a builder's blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    pool: BlockPool,
    filling: VecDeque<BlockWriter>,
    /// Since when the youngest block has held something.
    since: Option<Duration>,
    /// Since when something is written and not brought to the disk itself.
    unsynced_since: Option<Duration>,
    recorder: Option<Recorder>,
    /// What each block closes, by its number in the pool.
    closes: Vec<Closes>,
    /// Per source, by its index: fragments of closed events that are not on disk.
    unwritten: Vec<u64>,
    /// The first thing that went wrong with the disk.
    pub(crate) failure: Option<String>,
    /// Closings for which there was no block.
    closed: VecDeque<Closing>,
    run: RunNumber,
    builders: u32,
}

/// What became of the blocks of a run.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) recorder: Option<Recorder>,
    /// Per source: fragments of closed events that are not on disk, and what went wrong with the disk.
    pub(crate) unwritten: Vec<u64>,
    pub(crate) failure: Option<String>,
}

/// Closed events that are not written down yet.
#[derive(Debug)]
struct Closing {
    first: EventId,
    count: u32,
    status: EventStatus,
    missing: Vec<Missing>,
    /// How many of them have a header.
    headed: usize,
}

/// The events whose closings are in one block: all their fragments are lost with it, wherever these are.
#[derive(Debug, Clone, Default)]
struct Closes {
    events: u64,
    /// The sources that one of these events is without, an entry for each.
    missing: Vec<usize>,
}

impl Blocks {
    pub(crate) fn new(pool: BlockPool, builders: u32, sources: usize) -> Self {
        Self {
            closes: vec![Closes::default(); pool.count() as usize],
            unwritten: vec![0; sources],
            pool,
            filling: VecDeque::new(),
            since: None,
            unsynced_since: None,
            recorder: None,
            failure: None,
            closed: VecDeque::new(),
            run: RunNumber(0),
            builders,
        }
    }

    pub(crate) fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    pub(crate) fn record_to(&mut self, run: RunNumber, recorder: Option<Recorder>) {
        self.run = run;
        self.recorder = recorder;
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Bytes in the blocks that are free.
    pub(crate) fn free_bytes(&self) -> u64 {
        (self.pool.free() as u64).saturating_mul(self.pool.block_bytes() as u64)
    }

    /// A place for `len` bytes with so many records. Nothing where no block is free.
    pub(crate) fn reserve(&mut self, len: usize, fragments: u32, now: Duration) -> Option<Span> {
        if let Some(span) = self.filling.back_mut().and_then(|block| block.reserve(len, fragments)) {
            self.since.get_or_insert(now);
            return Some(span);
        }
        self.open()?;
        self.since = Some(now);
        self.filling.back_mut().and_then(|block| block.reserve(len, fragments))
    }

    /// Begins a new block.
    fn open(&mut self) -> Option<()> {
        let block = self.pool.take()?;
        self.closes[block.index() as usize] = Closes::default();
        self.filling.push_back(BlockWriter::new(block));
        self.since = None;
        Some(())
    }

    /// A place is filled; `enter` is told where in its block it lies. Returns what `enter` needs to enter records. A
    /// place that nobody fills returns by being dropped.
    pub(crate) fn filled(&mut self, span: Span, enter: impl FnOnce(&[u8], &mut dyn FnMut(EventId, SourceId, u32))) {
        let Some(block) = self.filling.iter_mut().rev().find(|block| block.owns(&span)) else { return };
        let base = block.position(&span);
        enter(&span, &mut |event, source, offset| block.enter(event, source, base + offset));
    }

    /// Events were closed.
    pub(crate) fn close(&mut self, Closed { first, count, missing }: Closed) {
        if self.recorder.is_some() {
            let status = if missing.is_empty() { EventStatus::Complete } else { EventStatus::Incomplete };
            self.closed.push_back(Closing { first, count, status, missing, headed: 0 });
        }
    }

    /// Writes down what was closed, with a header for each missing source, as far as there are blocks for it.
    pub(crate) fn write_closings(&mut self, sources: &[(SourceId, String)], now: TaiNanos, mono: Duration) {
        let stride = u64::from(self.builders);
        while let Some(closing) = self.closed.front_mut() {
            if let Some(block) = self.filling.back_mut() {
                let run = self.run;
                let header = |missing: &Missing| FragmentHeader {
                    status: missing.status,
                    run,
                    event: closing.first,
                    timestamp: now,
                    source: sources[missing.source].0,
                    ..FragmentHeader::default()
                };
                self.since.get_or_insert(mono);
                let mut unheaded = closing.missing[closing.headed..].iter();
                while unheaded.next().is_some_and(|missing| block.add_record(&header(missing))) {
                    closing.headed += 1;
                }
                let closes = &mut self.closes[block.index() as usize];
                while closing.headed == closing.missing.len()
                    && closing.count > 0
                    && block.close_event(closing.first, stride, closing.status)
                {
                    closes.events += 1;
                    closes.missing.extend(closing.missing.iter().map(|missing| missing.source));
                    closing.first.0 += stride;
                    closing.count -= 1;
                }
                if closing.count == 0 {
                    self.closed.pop_front();
                    continue;
                }
            }
            if self.open().is_none() {
                return;
            }
        }
    }

    /// Sends on what is full, and what has waited for `flush`. `all`: everything.
    pub(crate) fn send_on(&mut self, now: TaiNanos, mono: Duration, flush: Duration, all: bool) {
        loop {
            let last = self.filling.len() == 1;
            let old = self.since.is_some_and(|since| mono >= since + flush);
            let Some(block) = self.filling.front() else { return };
            if block.is_busy() || last && !(all || old) {
                return;
            }
            if last {
                self.since = None;
            }
            let Some(mut block) = self.filling.pop_front() else { return };
            match &mut self.recorder {
                Some(recorder) if self.failure.is_none() && !block.is_empty() => recorder.submit(block, now),
                Some(_) => {
                    self.count_unwritten(block.index());
                    self.pool.give_back(block.into_block());
                }
                None => {
                    block.reset();
                    self.pool.give_back(block.into_block());
                }
            }
        }
    }

    /// Takes back what the recorder has written. True where there was something.
    pub(crate) fn reap(&mut self) -> bool {
        let mut any = false;
        while let Some(finished) = self.recorder.as_mut().and_then(Recorder::reap) {
            self.take_back(finished);
            any = true;
        }
        any
    }

    /// Has what is written brought to the disk itself, at most every `every`, or whenever it is much.
    pub(crate) fn keep(&mut self, now: Duration, every: Duration) {
        let Some(recorder) = &mut self.recorder else { return };
        let unsynced = recorder.unsynced();
        if unsynced == 0 {
            self.unsynced_since = None;
            return;
        }
        if now >= *self.unsynced_since.get_or_insert(now) + every || unsynced >= MOST_UNSYNCED {
            recorder.sync();
            self.unsynced_since = None;
        }
    }

    /// When that has something to do.
    pub(crate) fn next_keep(&self, every: Duration) -> Option<Duration> {
        self.unsynced_since.map(|since| since + every)
    }

    /// How many blocks the recorder has.
    pub(crate) fn in_flight(&self) -> usize {
        self.recorder.as_ref().map_or(0, Recorder::in_flight)
    }

    /// No more blocks come: the recorder closes its files.
    pub(crate) fn end(&mut self) {
        self.recorder.iter_mut().for_each(Recorder::end);
    }

    /// Whether it has, after [`end`](Self::end).
    pub(crate) fn is_ended(&self) -> bool {
        self.recorder.as_ref().is_none_or(Recorder::is_ended)
    }

    /// Leaves the recorder with what it has.
    pub(crate) fn leave(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    fn take_back(&mut self, finished: Finished) {
        if let Err(error) = &finished.result {
            self.failure.get_or_insert_with(|| error.to_string());
            self.count_unwritten(finished.block.index());
        }
        self.pool.give_back(finished.block.into_block());
    }

    /// A fragment of this source was built and cannot be written down.
    pub(crate) fn count_lost(&mut self, source: usize) {
        self.unwritten[source] += 1;
    }

    fn count_unwritten(&mut self, block: u32) {
        let Closes { events, missing } = std::mem::take(&mut self.closes[block as usize]);
        self.unwritten.iter_mut().for_each(|count| *count += events);
        missing.into_iter().for_each(|source| self.unwritten[source] -= 1);
    }

    /// When a block must be sent on though it is not full.
    pub(crate) fn next_flush(&self, flush: Duration) -> Option<Duration> {
        // They leave in order: behind one that waits for its bytes there is nothing that time could do.
        let waits = self.filling.len() == 1 && self.filling.front().is_some_and(|block| !block.is_busy());
        self.since.filter(|_| waits).map(|since| since + flush)
    }

    /// Whether closings wait for a block.
    pub(crate) fn has_closings(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether anything has not been sent on.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.filling.is_empty()
    }

    /// What became of everything, once all of it [has](Self::is_ended) come back.
    pub(crate) fn finish(&mut self) -> Sent {
        Sent {
            recorder: self.recorder.take(),
            unwritten: std::mem::take(&mut self.unwritten),
            failure: self.failure.take(),
        }
    }
}
