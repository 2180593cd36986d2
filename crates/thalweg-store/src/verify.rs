//! Reads a whole run and reports every disagreement in it.

use crate::event::ReadBlock;
use crate::event::{Assembler, Fragment, Located, has_each_source_once};
use crate::format::{BLOCK_HEADER_LEN, BlockHeader, Closing, EventStatus, FormatError, FragmentEntry};
use crate::info::FILE_NAME;
use crate::part::{Part, Recovery};
use crate::{Run, RunInfo, RunState, RunTimes, StoreError, StoredBlock, WriterLife};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use thalweg_wire::{EventId, EventRange, FragmentHeader, HEADER_LEN, RECORD_ALIGN, SourceId, Status, record_bytes};
use thiserror::Error;

/// Result of [`verify_run`].
#[derive(Debug, Clone, Serialize)]
pub struct VerifyReport {
    /// Number of the run.
    pub run: u32,
    /// Number of the builder whose directory it is; with several, the first.
    pub builder: u32,
    /// State of the run.
    pub verdict: Verdict,
    /// True if no problem was found. An incomplete run that states why it is incomplete is consistent.
    pub consistent: bool,
    /// Number of segment files.
    pub segments: u32,
    /// Number of data blocks.
    pub blocks: u64,
    /// Number of bytes in the data blocks.
    pub bytes: u64,
    /// Number of fragments.
    pub fragments: u64,
    /// Number of records that stand for a source that has no fragment in an event.
    pub missing: u64,
    /// Number of closed events, without those that are lost.
    pub events: u64,
    /// Number of closed events with a source missing.
    pub incomplete_events: u64,
    /// Number of events with records that were never closed. No reader presents them, and they count for no source.
    pub unfinished_events: u64,
    /// Number of blocks that are missing or cannot be read.
    pub lost_blocks: u64,
    /// Number of closed events that are lost with these blocks, in whole or in part.
    pub lost_events: u64,
    /// Ranges of these events, as far as they are known: ranges `A..B` of events with records or closings in lost
    /// blocks.
    pub lost_ranges: Vec<String>,
    /// Number of fragments that are lost with these blocks; `None` if the run does not record how many it had.
    pub lost_fragments: Option<u64>,
    /// Counts of each source, in ascending order.
    pub sources: Vec<SourceCount>,
    /// Sources whose event numbers are shifted against those of the others, with one sentence for each shift.
    pub shifts: Vec<String>,
    /// Times by which shifts are found.
    #[serde(skip)]
    pub times: RunTimes,
    /// Position at which reading had to stop, in a run that was not ended.
    pub recovery: Option<Recovery>,
    /// Problems found: the first thousand of them.
    pub problems: Vec<Problem>,
    /// Number of problems in all.
    pub problem_count: u64,
}

/// State of a run, as verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Complete, according to its writer.
    Complete,
    /// Incomplete, according to its writer.
    Incomplete {
        /// Reasons, in the writer's sentences.
        reasons: Vec<String>,
    },
    /// Being written, or of unknown state.
    Open {
        /// Status of the writer.
        writer: WriterLife,
    },
    /// Open, and its writer died; everything up to the last whole block can be read.
    Recovered,
}

impl Verdict {
    /// Returns the rank of a verdict: a run of several builders has the highest of its parts.
    fn severity_rank(&self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Incomplete { .. } => 1,
            Self::Recovered => 2,
            Self::Open { .. } => 3,
        }
    }
}

/// Counts of one source.
#[derive(Debug, Clone, Serialize)]
pub struct SourceCount {
    /// Number of the source, written `3.17`.
    pub source: String,
    /// Name of the source in the topology.
    pub name: String,
    /// Number of records that came from it, in closed events.
    pub recorded: u64,
    /// Number of records that stand for missing fragments.
    pub missing: u64,
    /// Number of payload bytes in the recorded fragments.
    pub bytes: u64,
}

impl SourceCount {
    fn new(id: SourceId, name: &str) -> Self {
        Self { source: id.to_string(), name: name.to_owned(), recorded: 0, missing: 0, bytes: 0 }
    }
}

/// A disagreement found in a run.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Name of the file in the run.
    pub file: String,
    /// Offset in the file, in bytes, if there is one.
    pub offset: Option<u64>,
    /// Kind of problem.
    #[serde(flatten)]
    pub kind: ProblemKind,
    /// Description of the problem for display.
    pub text: String,
}

/// Kind of a disagreement in a run.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum ProblemKind {
    /// A block that cannot be read.
    #[error("block {block}: {found}")]
    Block {
        /// Number of the block.
        block: u64,
        /// Description of the error.
        found: String,
    },
    /// A segment that ends, is cut or continues where a finished run has a footer, and that lacks no block.
    #[error("the segment does not end with its footer: {found}")]
    Segment {
        /// Description of what was found instead.
        found: String,
    },
    /// A segment without a readable file, none of whose blocks are missing.
    #[error("the segment cannot be read: {found}")]
    File {
        /// Description of what was found instead.
        found: String,
    },
    /// Blocks that are absent, or not whole.
    #[error("{}: {found}", missing_blocks_text(*.first, *.blocks))]
    Missing {
        /// Number of the first missing block.
        first: u64,
        /// Number of missing blocks.
        blocks: u64,
        /// Description of what was found instead of the first.
        found: String,
    },
    /// A `run.json` that contradicts itself, or the segments.
    #[error("{found}")]
    RunJson {
        /// Description of the contradiction.
        found: String,
    },
    /// A footer that describes a block otherwise than the block itself.
    #[error("block {block}: the footer lists other events than the block contains")]
    Footer {
        /// Number of the block.
        block: u64,
    },
    /// An index entry without its record.
    #[error("event {event}, source {source_id}: the index points to no such record")]
    Record {
        /// Number of the event.
        event: u64,
        /// Number of the source.
        source_id: String,
    },
    /// A payload that does not match its CRC.
    #[error("event {event}, source {source_id}: the payload does not match its CRC32C")]
    Payload {
        /// Number of the event.
        event: u64,
        /// Number of the source.
        source_id: String,
    },
    /// Overlapping records.
    #[error("event {event}, source {source_id}: the record overlaps the one before it")]
    Overlap {
        /// Number of the event.
        event: u64,
        /// Number of the source.
        source_id: String,
    },
    /// A closed event without exactly one record for each source.
    #[error("event {event}: closed with {found} records for {expected} sources")]
    Event {
        /// Number of the event.
        event: u64,
        /// Number of records found.
        found: usize,
        /// Number of sources.
        expected: usize,
    },
    /// An event closed as complete that lacks a source, or the other way round.
    #[error("event {event}: closed as {status}, but {missing} of its sources are missing")]
    EventStatus {
        /// Number of the event.
        event: u64,
        /// Status in its closing.
        status: String,
        /// Number of records that stand for a missing source.
        missing: usize,
    },
    /// Records after the block that closed their event.
    #[error("event {event}: {records} records after the block that closed it")]
    AfterClosing {
        /// Number of the event.
        event: u64,
        /// Number of records.
        records: usize,
    },
    /// A number in `run.json` that does not match the files.
    #[error("'{what}' is {stated}, but the files contain {counted}")]
    Total {
        /// Name of the number.
        what: String,
        /// Value in `run.json`.
        stated: u64,
        /// Value counted in the files.
        counted: u64,
    },
    /// Fragments that are unaccounted for in a run that is declared complete.
    #[error("source {source_id}: {fragments} fragments are unaccounted for in a run marked COMPLETE")]
    Unaccounted {
        /// Number of the source.
        source_id: String,
        /// Number of fragments; negative if the ledger explains more than were accepted.
        fragments: i64,
    },
    /// A line of the ledger whose buckets do not add up.
    #[error(
        "source {source_id}: the ledger's buckets and 'unaccounted' add up to {explained} instead of the {accepted} \
         accepted"
    )]
    Balance {
        /// Number of the source.
        source_id: String,
        /// Number of fragments that the source accepted.
        accepted: i64,
        /// Number of fragments that the line explains.
        explained: i64,
    },
}

fn missing_blocks_text(first: u64, blocks: u64) -> String {
    match blocks {
        1 => format!("block {first} is missing"),
        blocks => format!("{blocks} blocks from {first} on are missing"),
    }
}

impl Problem {
    /// Returns whether the problem is that a whole file cannot be read.
    fn is_unreadable_file(&self) -> bool {
        matches!(self.kind, ProblemKind::File { .. })
    }

    /// Returns the same problem with its file named from outside the directory `name`.
    pub(crate) fn in_directory(&self, name: &str) -> Self {
        Self { file: format!("{name}/{}", self.file), ..self.clone() }
    }

    pub(crate) fn new(file: String, offset: Option<u64>, kind: ProblemKind) -> Self {
        let text = kind.to_string();
        Self { file, offset, kind, text }
    }
}

/// Reads everything in a run: each block's CRC, each record's header and payload, each closed event, each total.
pub fn verify_run(run: &Run) -> VerifyReport {
    verify_run_watched(run, |_| {})
}

/// As [`verify_run`]; calls `watch` after each block, with the number of bytes read.
pub fn verify_run_watched(run: &Run, mut watch: impl FnMut(u64)) -> VerifyReport {
    // A run has at least one part.
    let mut sum = verify_part(&run.builder_parts()[0], &mut watch);
    if run.run_path() == run.builder_parts()[0].run_path() {
        return sum;
    }
    sum.problems =
        sum.problems.iter().map(|problem| problem.in_directory(&run.builder_parts()[0].directory_name())).collect();
    for part in &run.builder_parts()[1..] {
        let mut report = verify_part(part, &mut watch);
        report.problems = report.problems.iter().map(|problem| problem.in_directory(&part.directory_name())).collect();
        sum.add_part_report(report);
    }
    // Problems that no part knows of: that another part is missing.
    let of_run = run.found_problems().iter().filter(|problem| problem.file == FILE_NAME);
    sum.problem_count += of_run.clone().count() as u64;
    sum.problems.extend(of_run.cloned());
    sum.consistent = sum.problem_count == 0;
    if let (Verdict::Complete | Verdict::Incomplete { .. }, RunInfo { state: RunState::Incomplete, reasons, .. }) =
        (&sum.verdict, run.run_info())
    {
        sum.verdict = Verdict::Incomplete { reasons: reasons.clone() };
    }
    sum.judge_shifts();
    sum
}

/// As [`verify_run`], for the part that one builder wrote.
pub(crate) fn verify_part(part: &Part, watch: &mut impl FnMut(u64)) -> VerifyReport {
    let mut verifier = Verifier::new(part);
    for (place, block) in part.data_blocks().iter().enumerate() {
        part.prefetch_block(place, true);
        let before = verifier.report.bytes;
        verifier.verify_block(block);
        watch(verifier.report.bytes - before);
    }
    verifier.finish_report()
}

impl VerifyReport {
    /// Adds the findings in another builder's part.
    fn add_part_report(&mut self, part: Self) {
        self.problems.extend(part.problems);
        self.problems.truncate(usize::try_from(MAX_LISTED_PROBLEMS).unwrap_or(usize::MAX));
        if part.verdict.severity_rank() > self.verdict.severity_rank() {
            self.verdict = part.verdict;
        }
        self.segments = self.segments.saturating_add(part.segments);
        for (ours, theirs) in [
            (&mut self.blocks, part.blocks),
            (&mut self.bytes, part.bytes),
            (&mut self.fragments, part.fragments),
            (&mut self.missing, part.missing),
            (&mut self.events, part.events),
            (&mut self.incomplete_events, part.incomplete_events),
            (&mut self.unfinished_events, part.unfinished_events),
            (&mut self.lost_blocks, part.lost_blocks),
            (&mut self.lost_events, part.lost_events),
            (&mut self.problem_count, part.problem_count),
        ] {
            *ours = ours.saturating_add(theirs);
        }
        self.lost_ranges.extend(part.lost_ranges);
        self.times.merge_times(part.times);
        let lost = self.lost_fragments.into_iter().chain(part.lost_fragments);
        self.lost_fragments = lost.reduce(u64::saturating_add);
        self.recovery = self.recovery.take().or(part.recovery);
        // The parts of a run have the same sources, in the same order.
        for (ours, theirs) in self.sources.iter_mut().zip(part.sources) {
            ours.recorded = ours.recorded.saturating_add(theirs.recorded);
            ours.missing = ours.missing.saturating_add(theirs.missing);
            ours.bytes = ours.bytes.saturating_add(theirs.bytes);
        }
    }

    /// Looks for shifts: a run that has one is not complete.
    fn judge_shifts(&mut self) {
        self.shifts = self.times.find_shifts(&self.sources);
        let reasons = match &mut self.verdict {
            _ if self.shifts.is_empty() => return,
            Verdict::Complete => &mut Vec::new(),
            Verdict::Incomplete { reasons } => reasons,
            Verdict::Open { .. } | Verdict::Recovered => return,
        };
        let mut reasons = std::mem::take(reasons);
        for shift in &self.shifts {
            if !reasons.contains(shift) {
                reasons.push(shift.clone());
            }
        }
        self.verdict = Verdict::Incomplete { reasons };
    }

    /// Returns the state in one sentence.
    pub fn summary_line(&self) -> String {
        self.to_string().lines().next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.verdict {
            Verdict::Complete => write!(f, "COMPLETE")?,
            Verdict::Incomplete { reasons } => write!(f, "INCOMPLETE: {}", reasons.join("; "))?,
            Verdict::Open { writer: WriterLife::Unknown } => write!(f, "OPEN: being written, or its writer died")?,
            Verdict::Open { .. } => write!(f, "OPEN: being written")?,
            Verdict::Recovered => match &self.recovery {
                Some(at) => write!(
                    f,
                    "OPEN, recovered to block {} of segment {}, offset {}; the writer died",
                    at.blocks, at.segment, at.offset
                )?,
                None => write!(f, "OPEN, everything recovered; the writer died")?,
            },
        }
        let Self { events, incomplete_events, unfinished_events, fragments, blocks, bytes, .. } = self;
        write!(f, "\n{events} events, {incomplete_events} incomplete, {unfinished_events} unfinished; ")?;
        write!(f, "{fragments} fragments in {blocks} blocks, {bytes} bytes")?;
        if self.lost_blocks > 0 {
            write!(f, "; lost: {} blocks, and {} events in whole or in part", self.lost_blocks, self.lost_events)?;
        }
        if matches!(self.verdict, Verdict::Open { .. } | Verdict::Recovered) {
            self.shifts.iter().try_for_each(|shift| write!(f, "\n{shift}"))?;
        }
        for problem in &self.problems {
            write!(f, "\n{problem}")?;
        }
        match self.problem_count - self.problems.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{} at byte {offset}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

struct Verifier<'a> {
    run: &'a Part,
    report: VerifyReport,
    counts: BTreeMap<SourceId, SourceCount>,
    expected: Vec<SourceId>,
    /// True unless the run's configuration disables the comparison of times.
    looks_for_shifts: bool,
    assembler: Assembler,
    /// Number of records that stand for a missing source, by event, until the event is closed.
    missing: BTreeMap<EventId, usize>,
    /// Events that had records or closings in lost blocks.
    lost: Vec<EventRange>,
}

impl<'a> Verifier<'a> {
    fn new(run: &'a Part) -> Self {
        let info = run.run_info();
        let counts: BTreeMap<_, _> =
            info.sources.iter().map(|source| (source.id, SourceCount::new(source.id, &source.name))).collect();
        let report = VerifyReport {
            run: info.run,
            builder: info.builder,
            verdict: verdict_of_part(run),
            consistent: false,
            segments: run.segment_count(),
            blocks: 0,
            bytes: 0,
            fragments: 0,
            missing: 0,
            events: 0,
            incomplete_events: 0,
            unfinished_events: 0,
            lost_blocks: run.lost_blocks(),
            lost_events: 0,
            lost_ranges: Vec::new(),
            lost_fragments: None,
            sources: Vec::new(),
            shifts: Vec::new(),
            times: RunTimes::default(),
            recovery: run.recovery_point().cloned(),
            problems: run.found_problems().to_vec(),
            problem_count: run.found_problems().len() as u64,
        };
        let expected = run.source_ids().to_vec();
        let looks_for_shifts = run.run_info().configuration["run"]["find_shifts"] != false;
        Self {
            run,
            report,
            counts,
            expected,
            looks_for_shifts,
            assembler: Assembler::default(),
            missing: BTreeMap::new(),
            lost: Vec::new(),
        }
    }

    fn verify_block(&mut self, block: &StoredBlock) {
        block.forget_check();
        let place = match block.read_checked(self.run.run_info()) {
            Ok(read) => Arc::new(read),
            Err(error) => {
                let found = match error {
                    StoreError::Format { error, .. } => error.to_string(),
                    other => other.to_string(),
                };
                self.report.lost_blocks += 1;
                self.note_lost_events(block.event_range());
                let kind = ProblemKind::Block { block: block.number(), found };
                return self.report_problem(block.file_path(), Some(block.file_offset()), kind);
            }
        };
        let (header, bytes) = (place.header, place.block_bytes());
        self.report.blocks += 1;
        self.report.bytes += u64::from(header.length);
        let mut entries: Vec<_> = header.fragment_entries(bytes).collect();
        let extent = crate::format::FooterEntry::new(0, 0, entries.iter().copied());
        if (extent.first, extent.last) != block.event_range() {
            self.report_problem(
                block.file_path(),
                Some(block.file_offset()),
                ProblemKind::Footer { block: block.number() },
            );
        }
        self.assembler.add_block(&place);
        entries.sort_by_key(|entry| entry.offset);
        self.verify_records(block, &header, bytes, &entries);
        self.verify_closings(block, &place);
    }

    /// Compares the records of a block, in the order of their offsets, with its index.
    fn verify_records(&mut self, block: &StoredBlock, header: &BlockHeader, bytes: &[u8], entries: &[FragmentEntry]) {
        let mut free = BLOCK_HEADER_LEN;
        for entry in entries {
            let offset = entry.offset as usize;
            let found = parse_record_at(&bytes[..header.records_end as usize], offset).filter(|(record, _)| {
                let is_named = (record.event, record.source, record.run) == (entry.event, entry.source, header.run);
                is_named && record.is_whole_fragment()
            });
            let Some((record, payload)) = found else {
                self.report_record_problem(block, entry, |event, source_id| ProblemKind::Record { event, source_id });
                continue;
            };
            if !record.payload_matches(payload) {
                self.report_record_problem(block, entry, |event, source_id| ProblemKind::Payload { event, source_id });
            }
            if offset < free {
                self.report_record_problem(block, entry, |event, source_id| ProblemKind::Overlap { event, source_id });
            }
            free = offset + record_bytes(payload.len());
            self.count_record(&record);
        }
    }

    /// Reports a problem of one record; `kind` gets the numbers of its event and source.
    fn report_record_problem(
        &mut self,
        block: &StoredBlock,
        entry: &FragmentEntry,
        kind: impl FnOnce(u64, String) -> ProblemKind,
    ) {
        let offset = block.file_offset() + u64::from(entry.offset);
        self.report_problem(block.file_path(), Some(offset), kind(entry.event.0, entry.source.to_string()));
    }

    fn verify_closings(&mut self, block: &StoredBlock, place: &ReadBlock) {
        for closing in place.closing_entries() {
            match closing {
                Ok(closing) => {
                    let present = self.assembler.events_of_closing(&closing);
                    present.iter().for_each(|event| self.close_event(block, *event, closing.status));
                    self.close_absent_events(block, &closing, &present);
                }
                Err(error) => self.report_bad_closing(block, error),
            }
        }
    }

    /// Closes the events of a closing that have no records: a damaged count may name four thousand million of them.
    fn close_absent_events(&mut self, block: &StoredBlock, closing: &Closing, present: &[EventId]) {
        let absent = u64::from(closing.count) - present.len() as u64;
        let expected = self.expected.len();
        // The records may have been in a lost block, which is reported already.
        if absent == 0 || self.report.lost_blocks > 0 && expected > 0 {
            return;
        }
        let is_incomplete = closing.status == EventStatus::Incomplete;
        self.report.events += absent;
        self.report.incomplete_events += if is_incomplete { absent } else { 0 };
        let at = Some(block.file_offset());
        let mut listed = 0;
        for EventId(event) in closing.event_numbers().filter(|event| present.binary_search(event).is_err()) {
            if self.report.problem_count >= MAX_LISTED_PROBLEMS || expected == 0 && !is_incomplete {
                break;
            }
            if expected > 0 {
                self.report_problem(block.file_path(), at, ProblemKind::Event { event, found: 0, expected });
            }
            if is_incomplete {
                let kind = ProblemKind::EventStatus { event, status: "incomplete".into(), missing: 0 };
                self.report_problem(block.file_path(), at, kind);
            }
            listed += 1;
        }
        let each = u64::from(expected > 0) + u64::from(is_incomplete);
        self.report.problem_count = self.report.problem_count.saturating_add((absent - listed).saturating_mul(each));
    }

    fn report_bad_closing(&mut self, block: &StoredBlock, error: FormatError) {
        let kind = ProblemKind::Block { block: block.number(), found: error.to_string() };
        self.report_problem(block.file_path(), Some(block.file_offset()), kind);
    }

    fn count_record(&mut self, record: &FragmentHeader) {
        let count = self.counts.entry(record.source).or_insert_with(|| SourceCount::new(record.source, ""));
        count.bytes += u64::from(record.piece_length);
        if record.status.contains(Status::MISSING) {
            count.missing += 1;
            self.report.missing += 1;
            *self.missing.entry(record.event).or_default() += 1;
        } else {
            count.recorded += 1;
            self.report.fragments += 1;
            if self.looks_for_shifts && self.expected.binary_search(&record.source).is_ok() {
                self.report.times.note_record(record);
            }
        }
    }

    /// Subtracts a counted record that belongs to an event that was never closed.
    fn uncount_record(&mut self, located: &Located) {
        let Some(count) = self.counts.get_mut(&located.entry.source) else { return };
        // A record that cannot be read was not counted.
        let Ok(Fragment { header, .. }) = located.read_fragment() else { return };
        if !header.is_whole_fragment() {
            return;
        }
        let is_missing = header.status.contains(Status::MISSING);
        let records = if is_missing { &mut count.missing } else { &mut count.recorded };
        *records = records.saturating_sub(1);
        count.bytes = count.bytes.saturating_sub(header.piece_length.into());
    }

    fn close_event(&mut self, block: &StoredBlock, id: EventId, status: EventStatus) {
        let fragments = self.assembler.take_fragments(id);
        let missing = self.missing.remove(&id).unwrap_or(0);
        if self.may_lack_lost_records(&fragments) {
            return;
        }
        self.report.events += 1;
        let (event, found, expected) = (id.0, fragments.len(), self.expected.len());
        if !self.has_one_of_each(&fragments) {
            self.report_problem(
                block.file_path(),
                Some(block.file_offset()),
                ProblemKind::Event { event, found, expected },
            );
        }
        let is_incomplete = status == EventStatus::Incomplete;
        self.report.incomplete_events += u64::from(is_incomplete);
        if is_incomplete != (missing > 0) {
            let status = if is_incomplete { "incomplete" } else { "complete" }.to_owned();
            let kind = ProblemKind::EventStatus { event, status, missing };
            self.report_problem(block.file_path(), Some(block.file_offset()), kind);
        }
    }

    fn has_one_of_each(&self, fragments: &[Located]) -> bool {
        has_each_source_once(fragments.iter().map(|located| located.entry.source), &self.expected)
    }

    /// Returns whether an event lacks records that may have been in a lost block, which is reported already.
    fn may_lack_lost_records(&self, fragments: &[Located]) -> bool {
        let once = fragments.windows(2).all(|pair| pair[0].entry.source < pair[1].entry.source);
        let known = fragments.iter().all(|located| self.expected.binary_search(&located.entry.source).is_ok());
        self.report.lost_blocks > 0 && fragments.len() < self.expected.len() && once && known
    }

    fn finish_report(mut self) -> VerifyReport {
        let mut open: Vec<EventId> = self.assembler.unclosed_events().map(|(event, _)| event).collect();
        open.sort_unstable();
        for id in open {
            let Some(status) = self.run.event_status(id) else {
                // Its closing may be lost as well.
                let is_lost = self.report.lost_blocks > 0 && self.run.run_info().state != RunState::Open;
                self.report.unfinished_events += u64::from(!is_lost);
                self.assembler.take_fragments(id).iter().for_each(|located| self.uncount_record(located));
                continue;
            };
            let fragments = self.assembler.take_fragments(id);
            let Some(place) = fragments.first().map(|located| Arc::clone(&located.block)) else { continue };
            if self.report.lost_blocks > 0 && self.has_one_of_each(&fragments) {
                // The footer has the closing of the block that closed it.
                self.report.events += 1;
                self.report.incomplete_events += u64::from(status == EventStatus::Incomplete);
            } else if !self.may_lack_lost_records(&fragments) {
                let kind = ProblemKind::AfterClosing { event: id.0, records: fragments.len() };
                self.report_problem(place.mapping.file_path(), Some(place.offset), kind);
            }
        }
        let RunInfo { state, totals, .. } = self.run.run_info();
        if self.report.lost_blocks > 0 {
            let stated = if *state == RunState::Open { 0 } else { totals.events };
            self.report.lost_events = self.run.len().max(stated).saturating_sub(self.report.events);
            self.report.lost_ranges = self.lost.iter().map(ToString::to_string).collect();
            self.report.lost_fragments =
                (*state != RunState::Open).then(|| totals.fragments.saturating_sub(self.report.fragments));
        }
        if *state != RunState::Open {
            self.verify_totals();
        }
        self.report.sources = self.counts.into_values().collect();
        self.report.consistent = self.report.problem_count == 0;
        self.report.judge_shifts();
        self.report
    }

    /// Compares the totals and the ledger of a finished run with what was counted.
    fn verify_totals(&mut self) {
        let info = self.run.run_info();
        let blocks = self.report.blocks.saturating_add(self.report.lost_blocks);
        let mut numbers = vec![
            ("totals.events".to_owned(), info.totals.events, self.report.events),
            ("totals.incomplete_events".to_owned(), info.totals.incomplete_events, self.report.incomplete_events),
            ("totals.blocks".to_owned(), info.totals.blocks, blocks),
            ("totals.bytes".to_owned(), info.totals.bytes, self.report.bytes),
            ("totals.fragments".to_owned(), info.totals.fragments, self.report.fragments),
            ("totals.missing".to_owned(), info.totals.missing, self.report.missing),
            ("totals.segments".to_owned(), info.totals.segments.into(), self.report.segments.into()),
        ];
        if info.state == RunState::Complete {
            numbers.push(("events.built".to_owned(), info.events.built, self.report.events));
            numbers.push(("events.incomplete".to_owned(), info.events.incomplete, self.report.incomplete_events));
        }
        let mut unbalanced = Vec::new();
        let ledger = info.ledger.as_array().map(Vec::as_slice).unwrap_or_default();
        for source in &self.expected {
            let source_id = source.to_string();
            let line = ledger.iter().find(|line| line["source"].as_str() == Some(&source_id)).unwrap_or(&Value::Null);
            let counted = self.counts.get(source).map_or(0, |count| count.recorded);
            let recorded = line["recorded"].as_i64().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            numbers.push((format!("recorded of source {source_id}"), recorded, counted));
            let unaccounted = line["unaccounted"].as_i64().unwrap_or(0);
            if unaccounted != 0 && info.state == RunState::Complete {
                unbalanced.push(ProblemKind::Unaccounted { source_id: source_id.clone(), fragments: unaccounted });
            }
            let buckets = BUCKETS.iter().filter_map(|bucket| line[*bucket].as_i64());
            let explained = buckets.fold(unaccounted, i64::saturating_add);
            if let Some(accepted) = line["accepted"].as_i64().filter(|accepted| *accepted != explained) {
                unbalanced.push(ProblemKind::Balance { source_id, accepted, explained });
            }
        }
        let path = self.run.run_path().join(crate::info::FILE_NAME);
        // Lost data is reported where it is lost.
        let is_less = self.report.lost_blocks > 0 || self.run.found_problems().iter().any(Problem::is_unreadable_file);
        for (what, stated, counted) in numbers {
            if counted > stated || counted < stated && !is_less {
                self.report_problem(&path, None, ProblemKind::Total { what, stated, counted });
            }
        }
        for kind in unbalanced {
            self.report_problem(&path, None, kind);
        }
    }

    /// Notes which events had something in a lost block.
    fn note_lost_events(&mut self, (first, last): (EventId, EventId)) {
        let there_is_room = (self.lost.len() as u64) < MAX_LISTED_PROBLEMS;
        match self.lost.last_mut() {
            Some(before) if first.0 <= before.last.saturating_add(1) && first.0 >= before.first => {
                before.last = before.last.max(last.0);
            }
            _ if there_is_room && first <= last => {
                self.lost.push(EventRange { first: first.0, last: last.0 });
            }
            _ => {}
        }
    }

    fn report_problem(&mut self, path: &Path, offset: Option<u64>, kind: ProblemKind) {
        self.report.problem_count += 1;
        if self.report.problem_count <= MAX_LISTED_PROBLEMS {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.report.problems.push(Problem::new(file, offset, kind));
        }
    }
}

fn verdict_of_part(run: &Part) -> Verdict {
    match (run.run_info().state, run.writer_life()) {
        (RunState::Complete, _) => Verdict::Complete,
        (RunState::Incomplete, _) => Verdict::Incomplete { reasons: run.run_info().reasons.clone() },
        (RunState::Open, Some(WriterLife::Gone)) => Verdict::Recovered,
        (RunState::Open, writer) => Verdict::Open { writer: writer.unwrap_or(WriterLife::Unknown) },
    }
}

/// Returns the record whose header begins at `offset` of a block's records.
fn parse_record_at(records: &[u8], offset: usize) -> Option<(FragmentHeader, &[u8])> {
    if offset < BLOCK_HEADER_LEN || !offset.is_multiple_of(RECORD_ALIGN) {
        return None;
    }
    let header = FragmentHeader::decode(records.get(offset..)?).ok()?;
    let payload = records.get(offset + HEADER_LEN..)?.get(..header.piece_length as usize)?;
    Some((header, payload))
}

/// Names of the buckets for the fragments that a source accepted (`docs/ledger.md`).
pub(crate) const BUCKETS: [&str; 10] = [
    "recorded",
    "discarded",
    "rejected",
    "dropped_newest",
    "dropped_oldest",
    "lost_in_device",
    "late",
    "corrupt",
    "lost",
    "beyond_end",
];
/// Maximum number of problems that are listed one by one.
const MAX_LISTED_PROBLEMS: u64 = 1000;
