//! A model of a builder, which fills blocks with events of known content.

use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thalweg_arena::BlockPool;
use thalweg_store::{
    BlockWriter, EventCounts, EventStatus, FinishedRun, Recorder, RecorderConfig, RunBegin, RunEnd, RunKind, RunState,
    SourceInfo,
};
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, SourceId, Status, TaiNanos, crc32c, record_bytes};

/// Number of elements of subsystem 1 that send fragments.
pub(crate) const SOURCES: u16 = 3;

/// Returns a directory on the disk of the build, where O_DIRECT is available.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Returns a directory in memory if there is one, for tests that write the same small files again and again.
pub(crate) fn memory_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| directory())
}

pub(crate) fn config(directory: &Path) -> RecorderConfig {
    let sources = (0..SOURCES)
        .map(|element| SourceInfo {
            id: SourceId::new(1, element),
            name: format!("adc{element}"),
            description: json!({"payload": "samples-i16"}),
        })
        .collect();
    let begin = RunBegin {
        began: TaiNanos(1_000_000_000),
        tai_utc_offset: 37,
        program: "test".into(),
        version: "0".into(),
        sources,
        asked: None,
        kind: RunKind::Physics,
        comment: "a comment".into(),
        metadata: json!({"sample": "LaB6", "counts": i64::MAX}).as_object().cloned().unwrap_or_default(),
        configuration: json!({"topology": "none"}),
    };
    RecorderConfig { directory: directory.join("runs"), begin, ..Default::default() }
}

/// Returns the payload of a source for an event.
pub(crate) fn payload(event: u64, source: SourceId, length: usize) -> Vec<u8> {
    let mut state = event.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(source.0);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Builder that fills blocks, one at a time, and counts the results.
pub(crate) struct Builder {
    pub(crate) recorder: Recorder,
    pub(crate) pool: BlockPool,
    block: Option<BlockWriter>,
    now: u64,
    /// Sources that sent a fragment, for each event not known to be written or lost.
    sent: BTreeMap<EventId, Vec<SourceId>>,
    recorded: BTreeMap<SourceId, u64>,
    pub(crate) lost: BTreeMap<SourceId, u64>,
    events: EventCounts,
}

impl Builder {
    pub(crate) fn new(config: RecorderConfig, blocks: u32, block_bytes: usize) -> Self {
        let mut pool = BlockPool::new("test", blocks, block_bytes).unwrap();
        let recorder = Recorder::create_run(config, &mut pool).unwrap();
        let none = EventCounts::default();
        let (sent, recorded, lost) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { recorder, pool, block: None, now: 1_000_000_000, sent, recorded, lost, events: none }
    }

    /// Builds a complete event with payloads of `length` bytes.
    pub(crate) fn event(&mut self, event: u64, length: usize) {
        for element in 0..SOURCES {
            self.fragment(event, SourceId::new(1, element), length);
        }
        self.close(event, EventStatus::Complete);
    }

    /// Builds an event that lacks its last source.
    pub(crate) fn incomplete_event(&mut self, event: u64, length: usize) {
        for element in 0..SOURCES - 1 {
            self.fragment(event, SourceId::new(1, element), length);
        }
        self.missing(event, SourceId::new(1, SOURCES - 1));
        self.close(event, EventStatus::Incomplete);
    }

    pub(crate) fn missing(&mut self, event: u64, source: SourceId) {
        let run = self.recorder.run_number();
        let header =
            FragmentHeader { run, event: EventId(event), source, status: Status::MISSING, ..Default::default() };
        while !self.block().add_header_record(&header) {
            self.flush();
        }
    }

    /// Builds a complete event whose sources computed no checksums.
    pub(crate) fn event_without_checksums(&mut self, event: u64, length: usize) {
        for element in 0..SOURCES {
            self.fragment_with(event, SourceId::new(1, element), length, Status::NO_PAYLOAD_CRC);
        }
        self.close(event, EventStatus::Complete);
    }

    pub(crate) fn fragment(&mut self, event: u64, source: SourceId, length: usize) {
        self.fragment_with(event, source, length, Status::default());
    }

    fn fragment_with(&mut self, event: u64, source: SourceId, length: usize, status: Status) {
        let payload = payload(event, source, length);
        let without = status.contains(Status::NO_PAYLOAD_CRC);
        let header = FragmentHeader {
            run: self.recorder.run_number(),
            event: EventId(event),
            source,
            timestamp: TaiNanos(self.now),
            total_length: length as u32,
            piece_length: length as u32,
            payload_crc: if without { 0 } else { crc32c(&payload) },
            status,
            ..Default::default()
        };
        let mut span = loop {
            if let Some(span) = self.block().reserve_span(record_bytes(length), 1) {
                break span;
            }
            self.flush();
        };
        span[..HEADER_LEN].copy_from_slice(&header.encode());
        span[HEADER_LEN..HEADER_LEN + length].copy_from_slice(&payload);
        let block = self.block();
        let offset = block.span_offset(&span);
        drop(span);
        block.enter_record(header.event, source, offset);
        self.sent.entry(header.event).or_default().push(source);
    }

    pub(crate) fn close(&mut self, event: u64, status: EventStatus) {
        while !self.block().close_event(EventId(event), 1, status) {
            self.flush();
        }
    }

    fn block(&mut self) -> &mut BlockWriter {
        while self.block.is_none() {
            match self.pool.take_block() {
                Some(block) => self.block = Some(BlockWriter::new(block)),
                None => self.wait(),
            }
        }
        self.block.as_mut().unwrap()
    }

    /// Submits the block being filled.
    pub(crate) fn flush(&mut self) {
        if let Some(block) = self.block.take() {
            self.now += 1000;
            self.recorder.submit_block(block, TaiNanos(self.now));
        }
    }

    fn wait(&mut self) {
        if let Some(finished) = self.recorder.wait_for_block().unwrap() {
            let into = if finished.result.is_ok() { &mut self.recorded } else { &mut self.lost };
            // An event's fragments are on disk with the block that closes it.
            let closed = finished.block.joined_closings().iter().flat_map(|closing| {
                (0..u64::from(closing.count)).map(|step| EventId(closing.first.0 + step * closing.stride))
            });
            for source in closed.filter_map(|event| self.sent.remove(&event)).flatten() {
                *into.entry(source).or_default() += 1;
            }
            for closing in finished.block.joined_closings() {
                self.events.built += u64::from(closing.count);
                self.events.incomplete +=
                    if closing.status == EventStatus::Incomplete { closing.count.into() } else { 0 };
            }
            self.pool.return_block(finished.block.into_block());
        }
    }

    /// Submits the current block and waits until all blocks are written.
    pub(crate) fn settle(&mut self) {
        self.flush();
        while self.recorder.blocks_in_flight() > 0 {
            self.wait();
        }
    }

    /// Returns the number of events closed, on disk or lost with it.
    pub(crate) fn closed(&self) -> u64 {
        self.events.built
    }

    pub(crate) fn finish(mut self) -> FinishedRun {
        self.settle();
        let of = |books: &BTreeMap<SourceId, u64>, id| books.get(&id).copied().unwrap_or(0);
        let ledger: Vec<_> = (0..SOURCES)
            .map(|element| SourceId::new(1, element))
            .map(|id| json!({"source": id.to_string(), "recorded": of(&self.recorded, id), "lost": of(&self.lost, id)}))
            .collect();
        let state = if self.events.incomplete == 0 { RunState::Complete } else { RunState::Incomplete };
        let reasons = if self.events.incomplete == 0 { vec![] } else { vec!["a source was missing".into()] };
        let end = RunEnd {
            ended: TaiNanos(self.now),
            seconds: 0.0,
            state,
            reasons,
            events: self.events,
            times: Default::default(),
            steps: Vec::new(),
            trigger: serde_json::Value::Null,
            left_out: serde_json::Value::Null,
            time_use: serde_json::Value::Null,
            ledger: ledger.into(),
        };
        self.recorder.finish_run(end).unwrap()
    }

    /// Ends like a killed process: nothing is closed.
    pub(crate) fn die(mut self) -> PathBuf {
        self.settle();
        self.recorder.run_path().to_owned()
    }
}
