//! Reads a run: finds its blocks, and the events in them.

use crate::event::{EventIds, Events, Fragment, ReadBlock};
use crate::files::{Files, RunFiles, SegmentFile};
use crate::follow::Follow;
use crate::format::{
    Closing, EventStatus, Footer, FooterEntry, FormatError, FragmentEntry, MAX_BLOCK_LEN, TRAILER_LEN, Trailer,
};
use crate::segment::segment_name;
use crate::stored::StoredBlock;
use crate::walk::{Depth, Expected, Step, Walk};
use crate::{Event, Mapping, RunInfo, RunState, StoreError, WriterLife};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use thalweg_wire::EventId;

/// A run on disk, open for reading. It shows what was there when it was opened; [`follow`](Self::follow) shows what comes.
#[derive(Debug)]
pub struct Run {
    files: Files,
    writer: Option<WriterLife>,
    opened: Arc<Opened>,
    by_event: Reach,
    closings: Arc<[Closing]>,
    by_closing: Reach,
    segments: u32,
    bytes: u64,
    recovery: Option<Recovery>,
    unclosed: Vec<Recovery>,
}

/// A run's blocks, shared with the threads that read ahead.
#[derive(Debug)]
struct Opened {
    info: RunInfo,
    blocks: Vec<StoredBlock>,
    tables: Mutex<Tables>,
}

/// Where reading had to stop, in a run that was not closed cleanly or was damaged since.
#[derive(Debug, Clone, Serialize)]
pub struct Recovery {
    /// Data blocks in front of that place; all of them can be read.
    pub blocks: u64,
    /// The segment, by its file name.
    pub segment: String,
    /// Bytes of it that can be read.
    pub offset: u64,
    /// What is there instead of a block.
    pub found: String,
    /// Whether there is simply no more, as after a writer that died: not a trace of damage.
    pub is_end: bool,
}

impl Run {
    /// Opens a run by its directory, or by any path inside it. Each segment that was closed is opened by its footer; one that
    /// was not is read and checked block by block, up to the first that is not whole.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::read(Files::here(path.as_ref()))
    }

    /// Opens a run whose files are elsewhere. Of a segment that was closed only the footer is fetched, of one that was not the
    /// blocks' headers and tables; a block is fetched, and checked, when it is used, and the one behind it meanwhile where
    /// events are read in order. The last 128 MiB of blocks are kept.
    pub fn open_at(files: Arc<dyn RunFiles>) -> Result<Self, StoreError> {
        Self::read(Files::Elsewhere(files))
    }

    fn read(files: Files) -> Result<Self, StoreError> {
        // The state first: a run that ends while its segments are read is read as one that is open.
        let info = files.info()?;
        let writer = (info.state == RunState::Open).then(|| files.writer());
        let mut found = Found::default();
        let segments = files.segments()?;
        for (place, (number, length)) in segments.iter().enumerate() {
            let is_last = place + 1 == segments.len();
            let file = files.segment(*number, *length)?;
            if !found.read_segment(Arc::new(file), *number, &info, is_last)? {
                break;
            }
        }
        if let (None, true) = (&found.recovery, segments.is_empty()) {
            let found_there = "there is no segment file".to_owned();
            let segment = segment_name(0);
            found.recovery = Some(Recovery { blocks: 0, segment, offset: 0, found: found_there, is_end: true });
        }
        let Found { blocks, mut closings, bytes, recovery, unclosed } = found;
        closings.sort_by_key(|closing| closing.first);
        let by_event = Reach::new(blocks.iter().map(StoredBlock::range));
        let by_closing = Reach::new(closings.iter().map(|closing| (closing.first, closing.last())));
        let segments = u32::try_from(segments.len()).unwrap_or(u32::MAX);
        let closings = closings.into();
        let opened = Arc::new(Opened { info, blocks, tables: Mutex::default() });
        Ok(Self { files, writer, opened, by_event, closings, by_closing, segments, bytes, recovery, unclosed })
    }

    /// The run's directory; what messages call it, where that is elsewhere.
    pub fn path(&self) -> &Path {
        self.files.path()
    }

    /// What its `run.json` says.
    pub fn info(&self) -> &RunInfo {
        &self.opened.info
    }

    /// Whether it was being written when it was opened; nothing for a run that had ended.
    pub fn writer(&self) -> Option<WriterLife> {
        self.writer
    }

    /// Where reading had to stop; nothing where the last segment ends with its footer.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Segments that have no footer, and nevertheless no gap towards the next: nothing is lost with it.
    pub(crate) fn unclosed(&self) -> &[Recovery] {
        &self.unclosed
    }

    /// How many events it has, complete or not.
    pub fn len(&self) -> u64 {
        self.closings.iter().fold(0, |sum, closing| sum.saturating_add(closing.count.into()))
    }

    /// Whether the events and blocks are here that `run.json` says were written, where it says so: of a run that has ended.
    pub fn is_whole(&self) -> bool {
        let RunInfo { state, totals, .. } = self.info();
        let is_here = totals.events <= self.len() && totals.blocks <= self.blocks().len() as u64;
        *state == RunState::Open || is_here
    }

    /// Whether it has no event.
    pub fn is_empty(&self) -> bool {
        self.closings.is_empty()
    }

    /// How many segment files it has.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// Bytes in its data blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its data blocks, in the order of the files.
    pub fn blocks(&self) -> &[StoredBlock] {
        &self.opened.blocks
    }

    /// Its closings, in ascending order of their first events.
    pub fn closings(&self) -> &[Closing] {
        &self.closings
    }

    /// Its events, in ascending order.
    pub fn events(&self) -> Events<'_> {
        Events::new(self)
    }

    /// The numbers of its events, in ascending order; for going through a run that is shared, with
    /// [`read_event`](Self::read_event).
    pub fn event_ids(&self) -> EventIds {
        self.event_ids_from(EventId(0))
    }

    /// The same from event `first` on, whether there is one of this number or not.
    pub fn event_ids_from(&self, first: EventId) -> EventIds {
        EventIds::new(Arc::clone(&self.closings), first)
    }

    /// One event; nothing where the run has no closed event of this number.
    pub fn event(&self, id: EventId) -> Result<Option<Event>, StoreError> {
        match self.status(id) {
            Some(status) => self.read_event(id, status).map(Some),
            None => Ok(None),
        }
    }

    /// How an event was closed; nothing where it was not.
    pub fn status(&self, id: EventId) -> Option<EventStatus> {
        let mut candidates = self.by_closing.around(id).map(|place| &self.closings[place]);
        candidates.find(|closing| closing.contains(id)).map(|closing| closing.status)
    }

    /// The fragments of an event that is known to be closed. The first time that a block is touched, its CRC is checked.
    pub fn read_event(&self, id: EventId, status: EventStatus) -> Result<Event, StoreError> {
        let mut fragments = Vec::with_capacity(self.info().sources.len());
        for place in self.by_event.around(id) {
            if self.blocks()[place].range().1 < id {
                continue;
            }
            let Table { block, entries } = self.opened.table(place)?;
            let from = entries.partition_point(|entry| entry.event < id);
            for entry in entries[from..].iter().take_while(|entry| entry.event == id) {
                fragments.push(Fragment::find(&block, entry)?);
            }
        }
        fragments.sort_by_key(|fragment| fragment.header.source);
        Ok(Event { id, status, fragments })
    }

    /// Follows the run from its first event on, while it is being written and to its end.
    pub fn follow(&self) -> Result<Follow, StoreError> {
        Follow::read(self.files.clone())
    }

    /// Has the disk begin to read a block that was not read yet, and those behind it where the whole run is gone through.
    pub(crate) fn prefetch(&self, place: usize, in_order: bool) {
        self.opened.prefetch(place, in_order);
    }
}

impl Opened {
    /// A block, and its fragment table in ascending order of events.
    fn table(self: &Arc<Self>, place: usize) -> Result<Table, StoreError> {
        let mut tables = self.tables();
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
        self.prefetch(place, in_order);
        self.read_table(place)
    }

    fn read_table(&self, place: usize) -> Result<Table, StoreError> {
        let block = self.blocks[place].read(&self.info)?;
        let mut entries: Vec<FragmentEntry> = block.header.fragment_entries(block.bytes()).collect();
        entries.sort_unstable();
        let table = Table { block: Arc::new(block), entries: entries.into() };
        self.tables().insert(place, &table);
        Ok(table)
    }

    /// Has the disk begin to read a block that is here.
    fn prefetch(&self, place: usize, in_order: bool) {
        let ahead = if in_order { PREFETCH } else { 0 };
        let end = (place + ahead).min(self.blocks.len() - 1);
        for block in &self.blocks[place..=end] {
            block.prefetch(self.info.recorder.block_size);
        }
    }

    /// Begins to fetch a block that is elsewhere. When it is asked for meanwhile, that waits for what is under way.
    fn fetch_ahead(self: &Arc<Self>, place: usize) {
        if self.blocks.get(place).is_some_and(StoredBlock::to_fetch_ahead) {
            let opened = Arc::clone(self);
            let fetch = move || {
                // Where it fails it is fetched again when it is asked for: that tells the error.
                let _ = opened.read_table(place);
                opened.blocks[place].fetched_ahead();
            };
            let _ = thread::Builder::new().name("read ahead".to_owned()).spawn(fetch);
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was found in the segments so far.
#[derive(Debug, Default)]
struct Found {
    blocks: Vec<StoredBlock>,
    closings: Vec<Closing>,
    bytes: u64,
    recovery: Option<Recovery>,
    unclosed: Vec<Recovery>,
}

impl Found {
    /// Adds a segment; false where those behind it cannot be read.
    fn read_segment(
        &mut self,
        file: Arc<SegmentFile>,
        number: u32,
        info: &RunInfo,
        is_last: bool,
    ) -> Result<bool, StoreError> {
        // Of a file elsewhere that is being written, only reading tells where it ends; and it has no footer yet.
        let is_growing = is_last && info.state == RunState::Open && file.here().is_none();
        if !is_growing && self.read_by_footer(&file, info).map_err(StoreError::io("reading", file.path()))? {
            return Ok(true);
        }
        let mut walk = Walk::open(Arc::clone(&file), info, Depth::Tables)?;
        let stop = loop {
            let block = self.blocks.len() as u64;
            let place = match walk.step(Expected { run: info.run, builder: info.builder, block })? {
                Step::Block(place) => place,
                // Its table contradicts the blocks, or it was written since we looked.
                Step::Footer => return Ok(true),
                Step::Stop(error) => break error,
            };
            // A closing that makes no sense passed the block's CRC: the writer's fault, which `verify` reports.
            self.closings.extend(place.closings().flatten());
            let entry = FooterEntry::new(place.offset, block, place.header.fragment_entries(place.bytes()));
            self.blocks.push(match file.here() {
                Some(_) => StoredBlock::checked(place.mapping, &entry),
                None => StoredBlock::elsewhere(&file, &entry, walk.at()),
            });
            self.bytes += u64::from(place.header.length);
        };
        let is_end = matches!(stop, FormatError::Blank | FormatError::Short(0));
        let end = Recovery {
            blocks: self.blocks.len() as u64,
            segment: segment_name(number),
            offset: walk.at(),
            found: stop.to_string(),
            is_end,
        };
        // A writer that began the next segment before it could close this one left no gap: the numbers go on there.
        if is_end && !is_last {
            self.unclosed.push(end);
            return Ok(true);
        }
        self.recovery = Some(end);
        Ok(false)
    }

    /// Adds a segment by its footer; false where it has none that can be trusted.
    fn read_by_footer(&mut self, file: &Arc<SegmentFile>, info: &RunInfo) -> io::Result<bool> {
        let size = file.length()?;
        // As a rule the footer is in it: one request where the file is elsewhere.
        let tail_begins = size.saturating_sub(TAIL);
        let mut tail = vec![0; usize::try_from(size - tail_begins).unwrap_or(0)];
        let there = file.read_up_to(&mut tail, tail_begins)?;
        let Some((_, trailer)) = tail.split_last_chunk::<TRAILER_LEN>().filter(|_| there == tail.len()) else {
            return Ok(false);
        };
        let Ok(Trailer { offset, length }) = Trailer::decode(trailer) else { return Ok(false) };
        if offset.checked_add(length.into()) != Some(size) || length as usize > MAX_BLOCK_LEN {
            return Ok(false);
        }
        let block = match tail.len().checked_sub(length as usize) {
            Some(begins) => tail.split_off(begins),
            None => {
                let mut block = vec![0; length as usize];
                let there = file.read_up_to(&mut block, offset)?;
                block.truncate(there);
                block
            }
        };
        let Ok(footer) = Footer::decode(offset, &block) else { return Ok(false) };
        let first = self.blocks.len() as u64;
        let last = first + footer.blocks.len() as u64;
        let ours = (footer.run.0, footer.builder, footer.next_block) == (info.run, info.builder, last);
        let in_sequence = footer.blocks.iter().zip(first..).all(|(entry, number)| entry.block == number);
        let apart = footer.blocks.is_sorted_by(|a, b| a.offset < b.offset);
        let inside = footer.blocks.iter().all(|entry| entry.offset < offset);
        if !(ours && in_sequence && apart && inside) {
            return Ok(false);
        }
        match file.here() {
            Some(here) => {
                let mapping = Mapping::new(here, Arc::clone(file.path()), size, 0)?;
                self.blocks.extend(footer.blocks.iter().map(|entry| StoredBlock::new(Arc::clone(&mapping), entry)));
            }
            None => {
                let ends = footer.blocks.iter().skip(1).map(|next| next.offset).chain([offset]);
                let blocks =
                    footer.blocks.iter().zip(ends).map(|(entry, end)| StoredBlock::elsewhere(file, entry, end));
                self.blocks.extend(blocks);
            }
        }
        self.closings.extend(footer.closings);
        self.bytes += offset;
        Ok(true)
    }
}

/// Finds those of many ranges of events that may hold one event.
#[derive(Debug)]
struct Reach {
    /// First event and place of each range, in ascending order.
    first: Vec<(EventId, u32)>,
    /// The highest last event of all ranges up to here.
    highest: Vec<EventId>,
}

impl Reach {
    fn new(ranges: impl Iterator<Item = (EventId, EventId)>) -> Self {
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

    /// Places of the ranges that begin at or before `id` and may reach it.
    fn around(&self, id: EventId) -> impl Iterator<Item = usize> + '_ {
        let end = self.first.partition_point(|(first, _)| *first <= id);
        (0..end).rev().take_while(move |at| self.highest[*at] >= id).map(|at| self.first[at].1 as usize)
    }
}

/// A block that was touched, and its fragment table in ascending order of events.
#[derive(Debug, Clone)]
struct Table {
    block: Arc<ReadBlock>,
    entries: Arc<[FragmentEntry]>,
}

/// Blocks that were touched lately: their tables, and those of their bytes that were fetched.
#[derive(Debug, Default)]
struct Tables {
    known: HashMap<usize, Table>,
    order: VecDeque<usize>,
    entries: usize,
    fetched: usize,
    /// The block that was touched last.
    last: Option<usize>,
}

impl Tables {
    fn insert(&mut self, place: usize, table: &Table) {
        // Somebody else may have read it at the same time.
        if self.known.contains_key(&place) {
            return;
        }
        let fetched = table.block.mapping.own_bytes();
        while self.entries > MAX_TABLE_ENTRIES || self.fetched + fetched > MAX_FETCHED {
            let Some(removed) = self.order.pop_front().and_then(|oldest| self.known.remove(&oldest)) else { break };
            self.entries -= removed.entries.len() + 1;
            self.fetched -= removed.block.mapping.own_bytes();
        }
        self.entries += table.entries.len() + 1;
        self.fetched += fetched;
        self.order.push_back(place);
        self.known.insert(place, table.clone());
    }
}

/// Blocks that are read ahead of the one in use when a run is gone through in order.
const PREFETCH: usize = 8;
/// Entries of fragment tables kept in memory: 64 MiB of them.
const MAX_TABLE_ENTRIES: usize = 4 << 20;
/// Bytes of fetched blocks kept in memory.
const MAX_FETCHED: usize = 128 << 20;
/// Bytes at the end of a segment that are read at once: the footer of 2000 blocks, 8 GB of them.
const TAIL: u64 = 64 << 10;
