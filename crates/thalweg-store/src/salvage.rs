//! Copies the intact parts of a damaged run into a new one.

use crate::event::{Assembler, Located};
use crate::format::{Closing, MAX_BLOCK_LEN};
use crate::info::is_possible_shape;
use crate::part::{RangeIndex, find_foreign_event};
use crate::verify::verify_part;
use crate::{
    BlockWriter, EventCounts, EventStatus, Finished, Fragment, Part, Problem, Recorder, RecorderConfig, RunBegin,
    RunEnd, RunInfo, RunState, StoreError, VerifyReport, WriterLife,
};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_arena::BlockPool;
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, RunNumber, SourceId, Status, TaiNanos, record_bytes};
use thiserror::Error;

/// Result of [`salvage_run`]: what was written, and what was left behind.
#[derive(Debug, Clone, Serialize)]
pub struct Salvaged {
    /// Directory of the new run.
    pub path: PathBuf,
    /// Number of events in the new run.
    pub events: u64,
    /// Number of these events without some of the fragments that they had: records with status `missing` stand for
    /// them.
    pub torn_events: u64,
    /// Number of these events with all their fragments whose closing is lost, or was never written: readers of the
    /// damaged run do not get them.
    pub unclosed_events: u64,
    /// Number of events of the damaged run that are not in the new one, as far as they are known to have existed.
    pub lost_events: u64,
    /// Number of fragments in the new run, those with status `missing` not counted.
    pub fragments: u64,
    /// Number of fragments of the damaged run that are not in the new one; `None` for a run that was not ended, which
    /// does not record how many there were.
    pub lost_fragments: Option<u64>,
    /// Number of blocks of the damaged run that are missing or cannot be read.
    pub lost_blocks: u64,
    /// Problems of the damaged run, the first thousand of them.
    pub left_behind: Vec<Problem>,
    /// Number of its problems in all.
    pub problem_count: u64,
}

/// Error of salvaging a run.
#[derive(Debug, Error)]
pub enum SalvageError {
    /// A path for the new run that exists already.
    #[error("{} already exists and is not overwritten: name another directory with --to", .0.display())]
    Exists(PathBuf),
    /// A run that is not damaged but still being written.
    #[error("{} is being written: wait until it has ended", .0.display())]
    BeingWritten(PathBuf),
    /// A new run that contradicts itself.
    #[error("the remains of {} are contradictory, so that nothing was kept: {problem}", .path.display())]
    Unsound {
        /// Path of the damaged run.
        path: PathBuf,
        /// Description of the contradiction.
        problem: String,
    },
    /// A run that could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes the intact parts of the run in `from` into a new run in the directory `to`, and leaves `from` unchanged;
/// returns `None`, and writes nothing, if that run has ended and is intact.
///
/// Every whole record is kept. If an event lacks records of some sources, records with status `missing` stand for them;
/// an event without any whole record is left behind. The new run is INCOMPLETE, lists in its reasons what was left
/// behind, and is [verified](crate::verify_run) before it gets its name.
///
/// # Errors
/// If `to` already exists, `from` is being written or cannot be read, the new run cannot be written, or the remains of
/// the run contradict themselves. In these cases there is no new run.
pub fn salvage_run(from: &Path, to: &Path) -> Result<Option<Salvaged>, SalvageError> {
    if to.symlink_metadata().is_ok() {
        return Err(SalvageError::Exists(to.to_owned()));
    }
    let run = Part::open_intact_pieces(from)?;
    if run.writer_life() == Some(WriterLife::Writing) {
        return Err(SalvageError::BeingWritten(run.run_path().to_owned()));
    }
    let report = verify_part(&run, &mut |_| {});
    if report.consistent && run.run_info().state != RunState::Open {
        return Ok(None);
    }
    let hidden = HiddenDirectory::create_beside(to)?;
    let mut new = NewRun::begin_copy(&run, &hidden.0)?;
    new.copy_closed_events()?;
    new.copy_unclosed_events()?;
    let (path, mut salvaged) = new.finish_run(report)?;
    let made = verify_part(&Part::open(&path)?, &mut |_| {});
    if let Some(problem) = made.problems.first() {
        return Err(SalvageError::Unsound { path: run.run_path().to_owned(), problem: problem.to_string() });
    }
    publish_run(&path, to)?;
    salvaged.path = to.to_owned();
    Ok(Some(salvaged))
}

/// Gives the new run its name, if the name is free.
fn publish_run(path: &Path, to: &Path) -> Result<(), SalvageError> {
    let renamed = match rustix::fs::renameat_with(CWD, path, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that does not support `NOREPLACE`. It would replace only an empty directory.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(path, to),
        renamed => renamed,
    };
    renamed.map_err(|error| match error {
        Errno::EXIST | Errno::NOTEMPTY => SalvageError::Exists(to.to_owned()),
        error => StoreError::errno_error("naming", to)(error).into(),
    })
}

/// A hidden directory beside the new run, in which the run is written; removed at the end.
struct HiddenDirectory(PathBuf);

impl HiddenDirectory {
    fn create_beside(to: &Path) -> Result<Self, StoreError> {
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(StoreError::io_error("creating", parent))?;
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let path = parent.join(format!(".{name}.salvage-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(StoreError::io_error("creating", &path))?;
        Ok(Self(path))
    }
}

impl Drop for HiddenDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A new run that is filled from a damaged one.
struct NewRun<'a> {
    run: &'a Part,
    recorder: Recorder,
    pool: BlockPool,
    block: Option<BlockWriter>,
    assembler: Assembler,
    /// Closings of the readable blocks.
    closings: Vec<Closing>,
    /// Time at which the block being copied was sealed.
    written: TaiNanos,
    recorded: BTreeMap<SourceId, u64>,
    events: EventCounts,
    torn_events: u64,
    unclosed_events: u64,
}

impl<'a> NewRun<'a> {
    fn begin_copy(run: &'a Part, directory: &Path) -> Result<Self, StoreError> {
        let info = corrected_info(run);
        // The contents of any block fit a block that is longer by the space for the tables.
        let longest = run.data_blocks().iter().filter_map(|block| block.read_checked(run.run_info()).ok());
        let longest = longest.map(|block| block.header().length as usize).max().unwrap_or(0);
        let block_bytes = (longest + EXTRA_TABLE_BYTES).clamp(MIN_BLOCK_BYTES, MAX_BLOCK_LEN);
        let mut pool = BlockPool::new("salvage", BLOCK_COUNT, block_bytes)?;
        let config = RecorderConfig {
            directory: directory.to_owned(),
            run: Some(RunNumber(info.run)),
            builder: info.builder,
            builders: info.builders,
            assignment: info.assignment,
            segment_bytes: info
                .recorder
                .segment_size
                .clamp(block_bytes as u64, RecorderConfig::default().segment_bytes),
            begin: RunBegin {
                began: TaiNanos(info.began),
                tai_utc_offset: info.tai_utc_offset,
                program: "thalweg salvage".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                sources: info.sources,
                asked: info.times.asked.map(TaiNanos),
                kind: info.kind,
                comment: info.comment,
                metadata: info.metadata,
                configuration: info.configuration,
            },
            ..RecorderConfig::default()
        };
        Ok(Self {
            run,
            recorder: Recorder::create_run(config, &mut pool)?,
            pool,
            block: None,
            assembler: Assembler::default(),
            closings: Vec::new(),
            written: TaiNanos(info.began),
            recorded: BTreeMap::new(),
            events: EventCounts::default(),
            torn_events: 0,
            unclosed_events: 0,
        })
    }

    /// Copies the events that are closed by readable blocks.
    fn copy_closed_events(&mut self) -> Result<(), StoreError> {
        for (place, block) in self.run.data_blocks().iter().enumerate() {
            self.run.prefetch_block(place, true);
            // The report describes what is wrong with a block that cannot be read.
            let Ok(block) = block.read_checked(self.run.run_info()) else { continue };
            let block = Arc::new(block);
            self.written = self.written.max(block.header.written);
            self.assembler.add_block(&block);
            for closing in block.closing_entries().flatten() {
                for event in self.assembler.events_of_closing(&closing) {
                    self.copy_event(event)?;
                }
                if !self.closings.last_mut().is_some_and(|last| last.merge_next(&closing)) {
                    self.closings.push(closing);
                }
            }
        }
        Ok(())
    }

    /// Copies the events whose closing is lost, or was never written.
    fn copy_unclosed_events(&mut self) -> Result<(), StoreError> {
        let closed = RangeIndex::new(self.closings.iter().map(|closing| (closing.first, closing.last_event())));
        let mut open: Vec<EventId> = self.assembler.unclosed_events().map(|(event, _)| event).collect();
        open.sort_unstable();
        for event in open {
            // Records after the closing of their event do not belong to it.
            if !closed.ranges_reaching(event).any(|place| self.closings[place].contains_event(event)) {
                self.copy_event(event)?;
            }
        }
        Ok(())
    }

    /// Copies the whole records of an event.
    fn copy_event(&mut self, event: EventId) -> Result<(), StoreError> {
        let located = self.assembler.take_fragments(event);
        let kept: Vec<Option<Fragment>> =
            self.run.source_ids().iter().map(|source| find_whole_fragment(&located, *source)).collect();
        if kept.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut status = EventStatus::Complete;
        for (source, fragment) in self.run.source_ids().iter().zip(&kept) {
            let run = self.recorder.run_number();
            let absent = FragmentHeader { run, event, source: *source, status: Status::MISSING, ..Default::default() };
            let (header, payload) =
                fragment.as_ref().map_or((absent, &[][..]), |found| (found.header, found.payload()));
            self.copy_record(&header, payload)?;
            if header.status.contains(Status::MISSING) {
                status = EventStatus::Incomplete;
            } else {
                *self.recorded.entry(*source).or_default() += 1;
            }
        }
        let stride = self.recorder.run_info().event_stride().into();
        while !self.current_block()?.close_event(event, stride, status) {
            self.submit_current_block();
        }
        self.events.built += 1;
        self.events.incomplete += u64::from(status == EventStatus::Incomplete);
        let is_torn = kept.iter().any(Option::is_none);
        self.torn_events += u64::from(is_torn);
        self.unclosed_events += u64::from(!is_torn && self.run.event_status(event).is_none());
        Ok(())
    }

    fn copy_record(&mut self, header: &FragmentHeader, payload: &[u8]) -> Result<(), StoreError> {
        if header.status.contains(Status::MISSING) {
            while !self.current_block()?.add_header_record(header) {
                self.submit_current_block();
            }
            return Ok(());
        }
        let mut span = loop {
            let block = self.current_block()?;
            match block.reserve_span(record_bytes(payload.len()), 1) {
                Some(span) => break span,
                None if block.is_empty() => return Err(StoreError::BlockSize(payload.len())),
                None => self.submit_current_block(),
            }
        };
        let (head, body) = span.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header.encode());
        body[..payload.len()].copy_from_slice(payload);
        body[payload.len()..].fill(0);
        let block = self.current_block()?;
        let offset = block.span_offset(&span);
        drop(span);
        block.enter_record(header.event, header.source, offset);
        Ok(())
    }

    /// Returns the block that is being filled.
    fn current_block(&mut self) -> Result<&mut BlockWriter, StoreError> {
        while self.block.is_none() {
            match self.pool.take_block() {
                Some(block) => self.block = Some(BlockWriter::new(block)),
                None => self.take_back_block()?,
            }
        }
        self.block.as_mut().ok_or(StoreError::BlockSize(0))
    }

    fn submit_current_block(&mut self) {
        if let Some(block) = self.block.take() {
            self.recorder.submit_block(block, self.written);
        }
    }

    fn take_back_block(&mut self) -> Result<(), StoreError> {
        if let Some(Finished { block, result }) = self.recorder.wait_for_block()? {
            self.pool.return_block(block.into_block());
            result?;
        }
        Ok(())
    }

    /// Ends the new run; returns its path, and what was kept.
    fn finish_run(mut self, report: VerifyReport) -> Result<(PathBuf, Salvaged), StoreError> {
        self.submit_current_block();
        while self.recorder.blocks_in_flight() > 0 {
            self.take_back_block()?;
        }
        let Self { run, recorder, recorded, events, torn_events, unclosed_events, written, .. } = self;
        let info = run.run_info();
        let fragments = recorded.values().sum();
        let had_ended = info.state != RunState::Open;
        let known =
            report.events.saturating_add(report.lost_events).max(if had_ended { info.totals.events } else { 0 });
        let lines: Vec<Value> = recorder
            .run_info()
            .sources
            .iter()
            .map(|source| {
                ledger_line(info, &source.id.to_string(), &source.name, recorded.get(&source.id).copied().unwrap_or(0))
            })
            .collect();
        let stated = lines.iter().filter_map(|line| line["lost"].as_u64()).sum::<u64>();
        let before = info.ledger.as_array().into_iter().flatten().filter_map(|line| line["lost"].as_u64()).sum();
        let salvaged = Salvaged {
            path: recorder.run_path().to_owned(),
            events: events.built,
            torn_events,
            unclosed_events,
            lost_events: known.saturating_sub(events.built),
            fragments,
            lost_fragments: had_ended.then(|| stated.saturating_sub(before)),
            lost_blocks: report.lost_blocks,
            left_behind: report.problems,
            problem_count: report.problem_count,
        };
        let end = RunEnd {
            ended: TaiNanos(info.ended.unwrap_or(written.0.max(info.began))),
            seconds: info.totals.seconds,
            state: RunState::Incomplete,
            reasons: incomplete_reasons(info, run.run_path(), &salvaged),
            times: info.times,
            steps: info.steps.clone(),
            events: EventCounts { built: events.built.max(info.events.built), ..events },
            trigger: info.trigger.clone(),
            left_out: info.left_out.clone(),
            time_use: info.time_use.clone(),
            ledger: lines.into(),
        };
        Ok((recorder.finish_run(end)?.path, salvaged))
    }
}

/// Returns the only record of a source in an event, if it is whole.
fn find_whole_fragment(located: &[Located], source: SourceId) -> Option<Fragment> {
    let mut of_source = located.iter().filter(|located| located.entry.source == source);
    let (only, None) = (of_source.next()?, of_source.next()) else { return None };
    let fragment = only.read_fragment().ok()?;
    (fragment.header.is_whole_fragment() && fragment.is_payload_intact()).then_some(fragment)
}

/// Returns the contents of `run.json`, with impossible values corrected.
fn corrected_info(run: &Part) -> RunInfo {
    let mut info = run.run_info().clone();
    info.builders = info.builders.max(info.builder.saturating_add(1));
    if info.builder == 0 && find_foreign_event(run.event_closings(), &info).is_some() {
        info.builders = 1;
    }
    info.sources.sort_by_key(|source| source.id);
    info.sources.dedup_by_key(|source| source.id);
    for source in &mut info.sources {
        source.name = source.name.replace(char::is_control, "\u{fffd}");
        for key in ["channels", "width", "height"] {
            if let Some(number) =
                source.description.get_mut(key).filter(|number| number.as_u64().is_none_or(|n| n == 0))
            {
                *number = Value::Null;
            }
        }
        if let Some(shape) = source.description.get_mut("shape").filter(|shape| !is_possible_shape(shape)) {
            *shape = Value::Null;
        }
    }
    info
}

/// Returns a source's line of the new ledger: fragments that were recorded and are not in the new run are lost. A run
/// that was not ended has no lines, and a line that does not add up is not trusted: in these cases only the fragments
/// in the new run are known.
fn ledger_line(info: &RunInfo, source: &str, name: &str, recorded: u64) -> Value {
    let known = info.ledger.as_array().into_iter().flatten().find(|line| line["source"] == source);
    if let Some(mut line) = known.filter(|line| is_line_balanced(line, recorded)).cloned() {
        let lost = number_or_zero(&line, "recorded").saturating_sub_unsigned(recorded);
        line["lost"] = number_or_zero(&line, "lost").saturating_add(lost).into();
        line["recorded"] = recorded.into();
        return line;
    }
    json!({
        "source": source, "name": name, "accepted": recorded, "recorded": recorded, "discarded": 0, "rejected": 0,
        "dropped_newest": 0, "dropped_oldest": 0, "lost_in_device": 0, "late": 0, "corrupt": 0, "lost": 0, "unaccounted": 0,
        "empty": 0, "duplicates": 0, "skipped": 0, "bytes": 0, "final_counters": false,
    })
}

/// Returns whether a line of a ledger adds up, and has at least the number of fragments that are `recorded`.
fn is_line_balanced(line: &Value, recorded: u64) -> bool {
    let buckets = crate::verify::BUCKETS.iter().map(|bucket| number_or_zero(line, bucket));
    let explained = buckets.fold(number_or_zero(line, "unaccounted"), i64::saturating_add);
    let accepted = line["accepted"].as_i64().unwrap_or(explained);
    accepted == explained && line["recorded"].as_u64().is_some_and(|stated| stated >= recorded)
}

fn number_or_zero(line: &Value, key: &str) -> i64 {
    line[key].as_i64().unwrap_or(0)
}

/// Returns the reasons why the new run is incomplete.
fn incomplete_reasons(info: &RunInfo, path: &Path, salvaged: &Salvaged) -> Vec<String> {
    let mut reasons = info.reasons.clone();
    reasons.push(match info.state {
        RunState::Open => format!("salvaged from {}, whose writer did not close it", path.display()),
        _ => format!("salvaged from {}, which was damaged", path.display()),
    });
    let Salvaged { torn_events, unclosed_events, lost_events, left_behind, problem_count, .. } = salvaged;
    if *lost_events > 0 {
        reasons.push(format!("events lost, of which no fragment was intact: {lost_events}"));
    }
    if *torn_events > 0 {
        reasons.push(format!("events that lost fragments: {torn_events}"));
    }
    if *unclosed_events > 0 {
        reasons.push(format!("events with all their fragments that may not have been closed: {unclosed_events}"));
    }
    reasons.extend(left_behind.iter().take(MAX_PROBLEM_REASONS).map(|problem| format!("lost: {problem}")));
    let more = problem_count.saturating_sub(left_behind.len().min(MAX_PROBLEM_REASONS) as u64);
    if more > 0 {
        reasons.push(format!("lost: {more} more; `thalweg verify` of the damaged run lists them"));
    }
    reasons
}

/// Number of blocks to write from: one is filled while others are under way.
const BLOCK_COUNT: u32 = 4;
/// Minimum number of bytes in a block: larger than the longest record of a run without long ones.
const MIN_BLOCK_BYTES: usize = 1 << 20;
/// Number of bytes for tables that a block needs in addition to those of the block it is copied from.
const EXTRA_TABLE_BYTES: usize = 64 << 10;
/// Maximum number of problems listed in the new run's reasons.
const MAX_PROBLEM_REASONS: usize = 16;
