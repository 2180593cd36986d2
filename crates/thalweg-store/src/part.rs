//! Reads what one builder wrote of a run: finds its blocks, and the events in them.

use crate::event::{Fragment, PartIds, ReadBlock, has_each_source_once};
use crate::files::{Files, RunFiles, SegmentFile};
use crate::format::{
    Closing, EventStatus, Footer, FooterEntry, FormatError, FragmentEntry, MAX_BLOCK_LEN, TRAILER_LEN, Trailer,
};
use crate::info::FILE_NAME;
use crate::places::EventPositions;
use crate::segment::segment_file_name;
use crate::stored::StoredBlock;
use crate::walk::{Depth, Expected, Step, Walk};
use crate::{Event, Mapping, Problem, ProblemKind, RunInfo, RunState, StoreError, WriterLife};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use thalweg_wire::{EventId, SourceId};

/// The part of a run that one builder wrote, open for reading: the whole run if there is one builder. It shows the
/// state of the run when it was opened.
#[derive(Debug)]
pub struct Part {
    files: Files,
    writer: Option<WriterLife>,
    opened: Arc<Opened>,
    sources: Vec<SourceId>,
    by_event: RangeIndex,
    closings: Arc<[Closing]>,
    by_closing: RangeIndex,
    places: OnceLock<EventPositions>,
    segments: u32,
    bytes: u64,
    recovery: Option<Recovery>,
    problems: Vec<Problem>,
    lost_blocks: u64,
}

/// Blocks of a run, shared with the threads that read ahead.
#[derive(Debug)]
struct Opened {
    info: RunInfo,
    blocks: Vec<StoredBlock>,
    tables: Mutex<Tables>,
}

/// Position at which reading had to stop, in a run that was not ended.
#[derive(Debug, Clone, Serialize)]
pub struct Recovery {
    /// Number of data blocks before that position; all of them can be read.
    pub blocks: u64,
    /// File name of the segment.
    pub segment: String,
    /// Number of bytes of the segment that can be read.
    pub offset: u64,
    /// Description of what was found instead of a block.
    pub found: String,
    /// True if the data simply ends there, as after a writer that died, without any trace of damage.
    pub is_end: bool,
}

impl Part {
    /// Opens the part by its directory, or by any path inside it. Each segment that was closed is opened by its footer;
    /// one that was not is read and checked block by block. In a run that was ended, damaged or missing data affects
    /// nothing else, and [`problems`](Self::problems) lists it; an open run counts up to the first block that is not
    /// whole.
    ///
    /// # Errors
    /// If there is no run, or its `run.json` or a segment cannot be read. Damage in a segment is not an error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_files(Files::in_directory(path.as_ref()))
    }

    /// Opens a part whose files are elsewhere. From a segment that was closed, only the footer is fetched, from one
    /// that was not, the blocks' headers and tables. A block is fetched, and checked, when it is used; while events are
    /// read in order, the next block is fetched ahead. The last 128 MiB of blocks are kept.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_remote(files: Arc<dyn RunFiles>) -> Result<Self, StoreError> {
        Self::open_files(Files::Elsewhere(files))
    }

    /// Opens the part with everything intact in it, also if the run was not ended: including the data after a position
    /// without a valid block, on which no other reader may rely.
    pub(crate) fn open_intact_pieces(path: &Path) -> Result<Self, StoreError> {
        Self::open_files_as(Files::in_directory(path), RunState::Incomplete)
    }

    fn open_files(files: Files) -> Result<Self, StoreError> {
        Self::open_files_as(files, RunState::Open)
    }

    /// Reads a run; an open run is read as if it were in state `open`.
    fn open_files_as(files: Files, open: RunState) -> Result<Self, StoreError> {
        // The state is read first: a run that ends while its segments are read is read as an open one.
        let info = files.read_run_info()?;
        let writer = (info.state == RunState::Open).then(|| files.writer_life());
        let state = if info.state == RunState::Open { open } else { info.state };
        let segments = files.list_segments()?;
        let mut found = SegmentScan::new(&info, state);
        let mut opened =
            segments.iter().map(|(number, length)| (*number, files.open_segment(*number, *length))).peekable();
        while let Some((number, file)) = opened.next() {
            let next = opened.peek().and_then(|(_, file)| file.as_ref().ok());
            let goes_on = match file {
                Ok(file) => found.read_segment(&Arc::new(file), number, next)?,
                Err(StoreError::NotAFile(_)) => found.note_not_a_file(number, "this is not a file"),
                Err(error) => return Err(error),
            };
            if !goes_on {
                break;
            }
        }
        let SegmentScan { blocks, mut closings, bytes, recovery, problems, lost_blocks, .. } = found.finish_scan();
        closings.sort_by_key(|closing| closing.first);
        let by_event = RangeIndex::new(blocks.iter().map(StoredBlock::event_range));
        let by_closing = RangeIndex::new(closings.iter().map(|closing| (closing.first, closing.last_event())));
        let segments = u32::try_from(segments.len()).unwrap_or(u32::MAX);
        let closings = closings.into();
        let sources = info.source_ids();
        let opened = Arc::new(Opened { info, blocks, tables: Mutex::default() });
        Ok(Self {
            files,
            writer,
            opened,
            sources,
            by_event,
            closings,
            by_closing,
            places: OnceLock::new(),
            segments,
            bytes,
            recovery,
            problems,
            lost_blocks,
        })
    }

    /// Returns the run's directory; for a run that is elsewhere, its name in messages.
    pub fn run_path(&self) -> &Path {
        self.files.run_path()
    }

    /// Returns the name of the run's directory, which messages about a whole run put before its file names.
    pub(crate) fn directory_name(&self) -> String {
        self.run_path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the contents of its `run.json`.
    pub fn run_info(&self) -> &RunInfo {
        &self.opened.info
    }

    /// Returns whether the run was being written when it was opened; `None` for a run that had ended.
    pub fn writer_life(&self) -> Option<WriterLife> {
        self.writer
    }

    /// Returns where reading had to stop in a run that was not ended; `None` if the last segment ends with its footer.
    pub fn recovery_point(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Returns the problems found on opening the run: missing blocks, segments and footers, and contradictions in its
    /// `run.json`. Problems inside a block are found by reading it, and by [`verify`](crate::verify).
    pub fn found_problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of blocks known to be missing.
    pub fn lost_blocks(&self) -> u64 {
        self.lost_blocks
    }

    /// Returns the sources of which each event has a record, in ascending order.
    pub(crate) fn source_ids(&self) -> &[SourceId] {
        &self.sources
    }

    /// Returns the number of events, complete or not.
    pub fn len(&self) -> u64 {
        self.closings.iter().fold(0, |sum, closing| sum.saturating_add(closing.count.into()))
    }

    /// Returns whether all events and blocks are present that `run.json` declares as written; true for a run that has
    /// not ended, whose `run.json` does not declare them.
    pub fn has_declared_data(&self) -> bool {
        let RunInfo { state, totals, .. } = self.run_info();
        let is_here = totals.events <= self.len() && totals.blocks <= self.data_blocks().len() as u64;
        *state == RunState::Open || is_here
    }

    /// Returns whether the run has no event.
    pub fn is_empty(&self) -> bool {
        self.closings.is_empty()
    }

    /// Returns the number of its segment files.
    pub fn segment_count(&self) -> u32 {
        self.segments
    }

    /// Returns the number of bytes in its data blocks.
    pub fn data_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns its data blocks, in the order of the files.
    pub fn data_blocks(&self) -> &[StoredBlock] {
        &self.opened.blocks
    }

    /// Returns its closings, in ascending order of their first events.
    pub fn event_closings(&self) -> &[Closing] {
        &self.closings
    }

    /// Returns the numbers of its events, in ascending order, from event `first` on, whether or not an event of this
    /// number exists.
    pub(crate) fn event_ids_from(&self, first: EventId) -> PartIds {
        PartIds::new(Arc::clone(&self.closings), first)
    }

    /// Returns the number of the event at position `place`, counted from 0 in ascending order; `None` if there are
    /// fewer events.
    pub fn nth_event(&self, place: u64) -> Option<EventId> {
        self.event_positions().nth_event(&self.closings, place)
    }

    /// Returns the number of events whose numbers are below `id`, whether or not an event of this number exists.
    pub fn events_before(&self, id: EventId) -> u64 {
        id.0.checked_sub(1).map_or(0, |last| self.event_positions().count_through(&self.closings, EventId(last)))
    }

    fn event_positions(&self) -> &EventPositions {
        self.places.get_or_init(|| EventPositions::new(&self.closings))
    }

    /// Returns the status with which an event was closed; `None` if it was not closed.
    pub fn event_status(&self, id: EventId) -> Option<EventStatus> {
        let mut candidates = self.by_closing.ranges_reaching(id).map(|place| &self.closings[place]);
        candidates.find(|closing| closing.contains_event(id)).map(|closing| closing.status)
    }

    /// Returns the fragments of an event that is known to be closed. When a block is first accessed, its CRC is
    /// checked.
    ///
    /// # Errors
    /// If the event does not have exactly one record of each source in the readable blocks.
    pub fn read_event(&self, id: EventId, status: EventStatus) -> Result<Event, StoreError> {
        let mut fragments = Vec::with_capacity(self.run_info().sources.len());
        let mut damaged = None;
        for place in self.by_event.ranges_reaching(id) {
            if self.data_blocks()[place].event_range().1 < id {
                continue;
            }
            let Table { block, entries } = match self.opened.block_table(place) {
                Ok(table) => table,
                // The block may contain nothing of the event: that the event is in its range does not prove more.
                Err(error @ StoreError::Format { .. }) => {
                    damaged = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let from = entries.partition_point(|entry| entry.event < id);
            for entry in entries[from..].iter().take_while(|entry| entry.event == id) {
                fragments.push(Fragment::find_in_block(&block, entry)?);
            }
        }
        fragments.sort_by_key(|fragment| fragment.header.source);
        check_one_of_each(&fragments, &self.sources, id, self.run_path()).map_err(|error| damaged.unwrap_or(error))?;
        Ok(Event { id, status, fragments })
    }

    /// Returns its files, wherever they are.
    pub(crate) fn run_files(&self) -> &Files {
        &self.files
    }

    /// Lets the disk begin to read a block that was not read yet, and the following blocks as well if the whole run is
    /// read in order.
    pub(crate) fn prefetch_block(&self, place: usize, in_order: bool) {
        self.opened.prefetch_blocks(place, in_order);
    }
}

/// Returns an error if an event does not have exactly one record of each source. `fragments` are in ascending order of
/// sources, and so are `sources`.
pub(crate) fn check_one_of_each(
    fragments: &[Fragment],
    sources: &[SourceId],
    event: EventId,
    path: &Path,
) -> Result<(), StoreError> {
    if has_each_source_once(fragments.iter().map(|fragment| fragment.header.source), sources) {
        return Ok(());
    }
    let (found, expected) = (fragments.len(), sources.len());
    Err(StoreError::Event { path: path.to_owned(), event: event.0, found, expected })
}

impl Opened {
    /// Returns a block, and its fragment table in ascending order of events.
    fn block_table(self: &Arc<Self>, place: usize) -> Result<Table, StoreError> {
        let mut tables = self.tables.lock();
        let is_first_touch = tables.last.replace(place) != Some(place);
        let known = tables.known.get(&place).cloned();
        if let (Some(table), false) = (&known, is_first_touch) {
            return Ok(table.clone());
        }
        let in_order = place == 0 || tables.known.contains_key(&(place - 1));
        let is_next_known = tables.known.contains_key(&(place + 1));
        drop(tables);
        if in_order && !is_next_known {
            self.fetch_ahead(place + 1);
        }
        if let Some(table) = known {
            return Ok(table);
        }
        self.prefetch_blocks(place, in_order);
        self.read_table(place)
    }

    fn read_table(&self, place: usize) -> Result<Table, StoreError> {
        let block = self.blocks[place].read_checked(&self.info)?;
        let mut entries: Vec<FragmentEntry> = block.header.fragment_entries(block.block_bytes()).collect();
        entries.sort_unstable();
        let table = Table { block: Arc::new(block), entries: entries.into() };
        self.tables.lock().insert_table(place, &table);
        Ok(table)
    }

    /// Lets the disk begin to read a block of a local file, and the next ones if `in_order` is set.
    fn prefetch_blocks(&self, place: usize, in_order: bool) {
        let ahead = if in_order { PREFETCH_BLOCK_COUNT } else { 0 };
        let end = (place + ahead).min(self.blocks.len() - 1);
        for block in &self.blocks[place..=end] {
            block.prefetch_bytes(self.info.recorder.block_size);
        }
    }

    /// Begins to fetch a block that is elsewhere. A request for the block in the meantime waits for the fetch under
    /// way.
    fn fetch_ahead(self: &Arc<Self>, place: usize) {
        if self.blocks.get(place).is_some_and(StoredBlock::begin_fetch_ahead) {
            let opened = Arc::clone(self);
            let _ = thread::Builder::new().name("read ahead".to_owned()).spawn(move || {
                // If this fails, the block is fetched again on request, which reports the error.
                let _ = opened.read_table(place);
                opened.blocks[place].end_fetch_ahead();
            });
        }
    }
}

/// Findings in the segments read so far.
#[derive(Debug)]
struct SegmentScan<'a> {
    info: &'a RunInfo,
    /// State that the run is read in: if it is not open, the data after a position without a block counts.
    state: RunState,
    /// Number of the next expected block.
    next_block: u64,
    /// Number of the next expected segment.
    next_segment: u32,
    blocks: Vec<StoredBlock>,
    closings: Vec<Closing>,
    bytes: u64,
    recovery: Option<Recovery>,
    problems: Vec<Problem>,
    lost_blocks: u64,
    /// Anything found since the last block that was not a block; the number of the next block shows which are missing
    /// there.
    gap: Option<Gap>,
}

/// Data found in place of the expected block.
#[derive(Debug)]
struct Gap {
    file: String,
    /// Offset in the file, in bytes; `None` if the file itself cannot be read.
    offset: Option<u64>,
    found: String,
    /// True if the data simply ends there.
    is_end: bool,
}

impl<'a> SegmentScan<'a> {
    fn new(info: &'a RunInfo, state: RunState) -> Self {
        let mut found = Self {
            info,
            state,
            next_block: 0,
            next_segment: 0,
            blocks: Vec::new(),
            closings: Vec::new(),
            bytes: 0,
            recovery: None,
            problems: Vec::new(),
            lost_blocks: 0,
            gap: None,
        };
        for text in info.find_contradictions() {
            found.note_contradiction(text);
        }
        found
    }

    fn expected_block(&self) -> Expected {
        Expected { run: self.info.run, builder: self.info.builder, block: self.next_block }
    }

    /// Adds a segment; returns false if later segments do not count.
    fn read_segment(
        &mut self,
        file: &Arc<SegmentFile>,
        number: u32,
        next: Option<&SegmentFile>,
    ) -> Result<bool, StoreError> {
        let info = self.info;
        self.begin_segment(number);
        // The end of a remote file that is being written is only found by reading it; and it has no footer yet.
        let is_growing = next.is_none() && info.state == RunState::Open && file.local_file().is_none();
        if !is_growing && self.read_by_footer(file).map_err(StoreError::io_error("reading", file.file_path()))? {
            return Ok(true);
        }
        let (first, first_closing) = (self.blocks.len(), self.closings.len());
        let mut walk = Walk::open_segment(Arc::clone(file), info, Depth::Tables)?;
        // A writer may be faster than the reader: data added meanwhile is not waited for.
        let length = file.length_bytes().map_err(StoreError::io_error("reading", file.file_path()))?;
        let end = if self.state == RunState::Open { length } else { u64::MAX };
        loop {
            let at = walk.next_offset();
            let step = if at < end { walk.next_block(self.expected_block())? } else { Step::Stop(FormatError::Blank) };
            match step {
                Step::Block(block) => self.add_block(file, block, walk.next_offset()),
                Step::Footer(footer) => {
                    self.note_next_block(self.next_block);
                    // The footer also has the closings of missing blocks.
                    if footer.blocks.len() > self.blocks.len() - first {
                        self.closings.truncate(first_closing);
                        self.closings.extend_from_slice(&footer.closings);
                    }
                    let left = file
                        .length_bytes()
                        .map_err(StoreError::io_error("reading", file.file_path()))?
                        .saturating_sub(walk.next_offset());
                    let found = match left {
                        0 if self.agrees_with_footer(&footer, first) => return Ok(true),
                        0 => "its tables list other blocks than the segment contains".to_owned(),
                        left => format!("it is followed by {left} bytes that do not belong there"),
                    };
                    self.note_gap(segment_file_name(number), Some(at), format!("a footer, and {found}"), false);
                    return Ok(true);
                }
                Step::Stop(error) => {
                    let is_end = matches!(error, FormatError::Blank | FormatError::Short(0));
                    let name = segment_file_name(number);
                    if self.state == RunState::Open {
                        let goes_on = self
                            .continues_in_segment(next, is_end)
                            .map_err(StoreError::io_error("reading", file.file_path()))?;
                        if !goes_on {
                            self.note_stop(name, at, error.to_string(), is_end);
                        }
                        return Ok(goes_on);
                    }
                    self.note_gap(name, Some(at), error.to_string(), is_end);
                    match walk.skip_to_next_block(self.expected_block())? {
                        Some(number) => self.note_next_block(number),
                        None => return Ok(true),
                    }
                }
            }
        }
    }

    /// Adds a data block, which ends at byte `end` of its file.
    fn add_block(&mut self, file: &Arc<SegmentFile>, block: ReadBlock, end: u64) {
        self.note_next_block(self.next_block);
        // An invalid closing in a block whose CRC is right is the writer's fault, which `verify` reports.
        self.closings.extend(block.closing_entries().flatten());
        let entry = FooterEntry::new(block.offset, self.next_block, block.header.fragment_entries(block.block_bytes()));
        self.bytes += u64::from(block.header.length);
        self.blocks.push(match file.local_file() {
            Some(_) => StoredBlock::new_checked(block.mapping, &entry),
            None => StoredBlock::new_remote(file, &entry, end),
        });
        self.next_block += 1;
    }

    /// Returns whether the blocks of an open run continue in the next segment: a writer that began it before it could
    /// close this one left no gap, whatever is found here. `is_end` is true if the data simply ends here.
    fn continues_in_segment(&self, next: Option<&SegmentFile>, is_end: bool) -> io::Result<bool> {
        match next {
            Some(next) => Ok(is_end || next.begins_with_block(self.expected_block())?),
            None => Ok(false),
        }
    }

    /// Notes that something other than a file has the name of a segment; returns false if later segments do not
    /// count.
    fn note_not_a_file(&mut self, number: u32, found: &str) -> bool {
        self.begin_segment(number);
        if self.state == RunState::Open {
            self.note_stop(segment_file_name(number), 0, found.to_owned(), false);
            return false;
        }
        self.note_gap(segment_file_name(number), None, found.to_owned(), false);
        true
    }

    /// Begins a segment: segments before it that were not found are missing.
    fn begin_segment(&mut self, number: u32) {
        if number > self.next_segment {
            self.note_absent_segments(number);
        }
        self.next_segment = number.saturating_add(1);
    }

    /// Notes that the next expected segments, up to `end`, do not exist.
    fn note_absent_segments(&mut self, end: u32) {
        if self.state == RunState::Open {
            return;
        }
        let (first, last) = (self.next_segment, end - 1);
        let found = match first == last {
            true => "no such file".to_owned(),
            false => format!("it is missing, as are all up to {}", segment_file_name(last)),
        };
        self.note_gap(segment_file_name(first), None, found, false);
    }

    /// Notes where an open run ends.
    fn note_stop(&mut self, segment: String, offset: u64, found: String, is_end: bool) {
        self.recovery = Some(Recovery { blocks: self.blocks.len() as u64, segment, offset, found, is_end });
    }

    /// Notes data that is not the expected block.
    fn note_gap(&mut self, file: String, offset: Option<u64>, found: String, is_end: bool) {
        self.note_next_block(self.next_block);
        self.gap = Some(Gap { file, offset, found, is_end });
    }

    /// Notes that block `number` comes next: expected blocks before it are missing, if anything else was found.
    fn note_next_block(&mut self, number: u64) {
        let (first, blocks) = (self.next_block, number.saturating_sub(self.next_block));
        self.next_block = number.max(self.next_block);
        let Some(Gap { file, offset, found, is_end }) = self.gap.take() else { return };
        let kind = match (blocks, offset) {
            // No block is lost with it. A footer is missing if its writer died, or could not write it.
            (0, Some(_)) if self.state == RunState::Open || is_end && self.state != RunState::Complete => return,
            (0, Some(_)) => ProblemKind::Segment { found },
            (0, None) => ProblemKind::File { found },
            (blocks, _) => ProblemKind::Missing { first, blocks, found },
        };
        self.lost_blocks = self.lost_blocks.saturating_add(blocks);
        self.problems.push(Problem::new(file, offset, kind));
    }

    fn note_contradiction(&mut self, found: String) {
        let kind = ProblemKind::RunJson { found };
        self.problems.push(Problem::new(FILE_NAME.to_owned(), None, kind));
    }

    /// Notes what is still missing at the end.
    fn finish_scan(mut self) -> Self {
        let RunInfo { state, totals, builder, builders, .. } = self.info;
        if *state != RunState::Open {
            if totals.segments > self.next_segment {
                self.note_absent_segments(totals.segments);
            }
            if totals.blocks > self.next_block && self.gap.is_none() {
                let found = "the segment was closed before them".to_owned();
                let last = segment_file_name(self.next_segment.saturating_sub(1));
                self.note_gap(last, None, found, false);
            }
            self.note_next_block(totals.blocks);
        } else {
            self.note_next_block(self.next_block);
            if self.state == RunState::Open && self.recovery.is_none() && self.next_segment == 0 {
                self.note_stop(segment_file_name(0), 0, "no segment file".to_owned(), true);
            }
        }
        if let Some(event) = find_foreign_event(&self.closings, self.info) {
            let number = event % u64::from(*builders);
            self.note_contradiction(format!(
                "'builder' is {builder} of 'builders' {builders}, but event {event} belongs to builder {number}"
            ));
        }
        self
    }

    /// Returns whether a footer names the blocks that were found, starting with block `first` of this list.
    fn agrees_with_footer(&self, footer: &Footer, first: usize) -> bool {
        let found = self.blocks[first..].iter().map(|block| (block.number(), block.file_offset(), block.event_range()));
        footer.blocks.iter().map(|entry| (entry.block, entry.offset, (entry.first, entry.last))).eq(found)
    }

    /// Adds a segment by its footer; returns false if it has no valid one.
    fn read_by_footer(&mut self, file: &Arc<SegmentFile>) -> io::Result<bool> {
        let Some((first, footer)) = read_trusted_footer(file, self.info)? else { return Ok(false) };
        let is_due = first == self.next_block || first > self.next_block && self.state != RunState::Open;
        if !is_due {
            return Ok(false);
        }
        if first > self.next_block && self.gap.is_none() {
            let name = file.file_path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let found = format!("the segment begins with block {first}");
            self.note_gap(name, Some(0), found, false);
        }
        self.note_next_block(first);
        self.next_block = footer.next_block;
        match file.local_file() {
            Some(here) => {
                let mapping = Mapping::new(here, Arc::clone(file.file_path()), footer.offset, 0)?;
                self.blocks
                    .extend(footer.blocks.iter().map(|entry| StoredBlock::new_mapped(Arc::clone(&mapping), entry)));
            }
            None => {
                let ends = footer.blocks.iter().skip(1).map(|next| next.offset).chain([footer.offset]);
                let blocks =
                    footer.blocks.iter().zip(ends).map(|(entry, end)| StoredBlock::new_remote(file, entry, end));
                self.blocks.extend(blocks);
            }
        }
        self.closings.extend(footer.closings);
        self.bytes += footer.offset;
        Ok(true)
    }
}

/// Returns the footer at the end of a segment of this run, and the number of the segment's first block; `None` if it
/// has no valid footer.
pub(crate) fn read_trusted_footer(file: &SegmentFile, info: &RunInfo) -> io::Result<Option<(u64, Footer)>> {
    let size = file.length_bytes()?;
    // Usually the tail contains the footer: one request if the file is elsewhere.
    let tail_begins = size.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(size - tail_begins).unwrap_or(0)];
    let filled = file.read_up_to(&mut tail, tail_begins)?;
    let Some((_, trailer)) = tail.split_last_chunk::<TRAILER_LEN>().filter(|_| filled == tail.len()) else {
        return Ok(None);
    };
    let Ok(Trailer { offset, length }) = Trailer::decode(trailer) else { return Ok(None) };
    if offset.checked_add(length.into()) != Some(size) || length as usize > MAX_BLOCK_LEN {
        return Ok(None);
    }
    let block = match tail.len().checked_sub(length as usize) {
        Some(begins) => tail.split_off(begins),
        None => {
            let mut block = vec![0; length as usize];
            let filled = file.read_up_to(&mut block, offset)?;
            block.truncate(filled);
            block
        }
    };
    let Ok(footer) = Footer::decode(offset, &block) else { return Ok(None) };
    let Some(first) = footer.next_block.checked_sub(footer.blocks.len() as u64) else { return Ok(None) };
    let ours = (footer.run.0, footer.builder) == (info.run, info.builder);
    let in_sequence = footer.blocks.iter().zip(first..).all(|(entry, number)| entry.block == number);
    let apart = footer.blocks.is_sorted_by(|a, b| a.offset < b.offset);
    let inside = footer.blocks.iter().all(|entry| entry.offset < offset);
    Ok((ours && in_sequence && apart && inside).then_some((first, footer)))
}

/// Returns an event that another builder builds: event `e` belongs to builder `e` modulo their number, unless events
/// were assigned.
pub(crate) fn find_foreign_event(closings: &[Closing], info: &RunInfo) -> Option<u64> {
    let RunInfo { builder, builders, .. } = *info;
    // Invalid builder numbers prove nothing about the events. If the events were assigned, any may be ours.
    if builder >= builders || info.event_stride() != builders {
        return None;
    }
    let events = closings.iter().flat_map(|closing| closing.event_numbers().take(2));
    events.map(|event| event.0).find(|event| event % u64::from(builders) != u64::from(builder))
}

/// Index that finds, among many ranges of events, those that may contain a given event.
#[derive(Debug)]
pub(crate) struct RangeIndex {
    /// First event and index of each range, in ascending order.
    first: Vec<(EventId, u32)>,
    /// Highest last event of all ranges up to this one.
    highest: Vec<EventId>,
}

impl RangeIndex {
    pub(crate) fn new(ranges: impl Iterator<Item = (EventId, EventId)>) -> Self {
        let mut sorted: Vec<(EventId, EventId, u32)> =
            ranges.zip(0..).filter(|((first, last), _)| first <= last).map(|((a, b), place)| (a, b, place)).collect();
        sorted.sort_unstable();
        let highest = sorted.iter().scan(EventId(0), |highest, (_, last, _)| {
            *highest = (*highest).max(*last);
            Some(*highest)
        });
        let highest = highest.collect();
        Self { first: sorted.into_iter().map(|(first, _, place)| (first, place)).collect(), highest }
    }

    /// Returns the indices of the ranges that begin at or before `id` and may reach it.
    pub(crate) fn ranges_reaching(&self, id: EventId) -> impl Iterator<Item = usize> + '_ {
        let end = self.first.partition_point(|(first, _)| *first <= id);
        (0..end).rev().take_while(move |at| self.highest[*at] >= id).map(|at| self.first[at].1 as usize)
    }
}

/// A block that was accessed, and its fragment table in ascending order of events.
#[derive(Debug, Clone)]
struct Table {
    block: Arc<ReadBlock>,
    entries: Arc<[FragmentEntry]>,
}

/// Recently accessed blocks: their tables, and their bytes if these were fetched.
#[derive(Debug, Default)]
struct Tables {
    known: HashMap<usize, Table>,
    order: VecDeque<usize>,
    entries: usize,
    fetched: usize,
    /// Index of the block that was accessed last.
    last: Option<usize>,
}

impl Tables {
    fn insert_table(&mut self, place: usize, table: &Table) {
        // Another thread may have read it at the same time.
        if self.known.contains_key(&place) {
            return;
        }
        let fetched = table.block.mapping.owned_bytes();
        while self.entries > MAX_TABLE_ENTRIES || self.fetched + fetched > MAX_FETCHED {
            let Some(removed) = self.order.pop_front().and_then(|oldest| self.known.remove(&oldest)) else { break };
            self.entries -= removed.entries.len() + 1;
            self.fetched -= removed.block.mapping.owned_bytes();
        }
        self.entries += table.entries.len() + 1;
        self.fetched += fetched;
        self.order.push_back(place);
        self.known.insert(place, table.clone());
    }
}

/// Number of blocks that are read ahead of the one in use when a run is read in order.
const PREFETCH_BLOCK_COUNT: usize = 8;
/// Maximum number of fragment table entries kept in memory: 64 MiB of them.
const MAX_TABLE_ENTRIES: usize = 4 << 20;
/// Maximum number of bytes of fetched blocks kept in memory.
const MAX_FETCHED: usize = 128 << 20;
/// Number of bytes read at once at the end of a segment: the footer of 2000 blocks, which are 8 GB.
const TAIL_BYTES: u64 = 64 << 10;
