//! Reads a run: finds its blocks, and the events in them.

use crate::event::{EventIds, Events, Fragment};
use crate::follow::Follow;
use crate::format::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, Closing, EventStatus, Footer, FormatError, FragmentEntry, MAX_BLOCK_LEN,
    TRAILER_LEN, Trailer,
};
use crate::info::writer_life;
use crate::segment::segment_name;
use crate::{Event, Mapping, RunInfo, RunState, StoreError, WriterLife};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_wire::EventId;

/// A run on disk, open for reading. It shows what was there when it was opened; [`follow`](Self::follow) shows what comes.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    info: RunInfo,
    writer: Option<WriterLife>,
    blocks: Vec<StoredBlock>,
    by_event: Reach,
    closings: Arc<[Closing]>,
    by_closing: Reach,
    segments: u32,
    bytes: u64,
    recovery: Option<Recovery>,
    unclosed: Vec<Recovery>,
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

/// A data block of a run.
#[derive(Debug)]
pub struct StoredBlock {
    number: u64,
    mapping: Arc<Mapping>,
    offset: u64,
    first: EventId,
    last: EventId,
    /// Whether its body was compared with its CRC.
    checked: AtomicBool,
    /// Whether the disk was told to read it.
    prefetched: AtomicBool,
}

impl Run {
    /// Opens a run by its directory, or by any path inside it. Each segment that was closed is opened by its footer; one that
    /// was not is read and checked block by block, up to the first that is not whole.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = directory_of(path.as_ref());
        // The state first: a run that ends while its segments are read is read as one that is open.
        let info = RunInfo::read(&path)?;
        let writer = (info.state == RunState::Open).then(|| writer_life(&path));
        let mut found = Found::default();
        let segments = segment_numbers(&path)?;
        for (place, number) in segments.iter().enumerate() {
            let is_last = place + 1 == segments.len();
            if !found.read_segment(&path, *number, &info, is_last)? {
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
        let by_event = Reach::new(blocks.iter().map(|block| (block.first, block.last)));
        let by_closing = Reach::new(closings.iter().map(|closing| (closing.first, closing.last())));
        let segments = u32::try_from(segments.len()).unwrap_or(u32::MAX);
        let closings = closings.into();
        let tables = Mutex::default();
        Ok(Self {
            path,
            info,
            writer,
            blocks,
            by_event,
            closings,
            by_closing,
            segments,
            bytes,
            recovery,
            unclosed,
            tables,
        })
    }

    /// The run's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its `run.json` says.
    pub fn info(&self) -> &RunInfo {
        &self.info
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
        &self.blocks
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
        EventIds::new(Arc::clone(&self.closings))
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
        let mut fragments = Vec::with_capacity(self.info.sources.len());
        for place in self.by_event.around(id) {
            let block = &self.blocks[place];
            if block.last < id {
                continue;
            }
            let (header, entries) = self.table(place)?;
            let from = entries.partition_point(|entry| entry.event < id);
            for entry in entries[from..].iter().take_while(|entry| entry.event == id) {
                fragments.push(Fragment::find(&block.mapping, block.offset, &header, entry)?);
            }
        }
        fragments.sort_by_key(|fragment| fragment.header.source);
        Ok(Event { id, status, fragments })
    }

    /// Follows the run from its first event on, while it is being written and to its end.
    pub fn follow(&self) -> Result<Follow, StoreError> {
        Follow::open(&self.path)
    }

    /// Has the disk begin to read a block that was not read yet, and those behind it where the whole run is gone through.
    pub(crate) fn prefetch(&self, place: usize, in_order: bool) {
        let ahead = if in_order { PREFETCH } else { 0 };
        let end = (place + ahead).min(self.blocks.len() - 1);
        for block in place..=end {
            let block = &self.blocks[block];
            if !block.prefetched.swap(true, Ordering::Relaxed) {
                block.mapping.prefetch(block.offset..block.offset + self.info.recorder.block_size);
            }
        }
    }

    /// A block's header, and its fragment table in ascending order of events.
    fn table(&self, place: usize) -> Result<(BlockHeader, Arc<[FragmentEntry]>), StoreError> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.known.get(&place) {
            return Ok(table.clone());
        }
        let in_order = place == 0 || tables.known.contains_key(&(place - 1));
        self.prefetch(place, in_order);
        let (header, bytes) = self.blocks[place].read(&self.info)?;
        let mut entries: Vec<FragmentEntry> = header.fragment_entries(bytes).collect();
        entries.sort_unstable();
        let table = (header, Arc::from(entries));
        tables.insert(place, &table);
        Ok(table)
    }
}

impl StoredBlock {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file it is in.
    pub fn path(&self) -> &Path {
        self.mapping.path()
    }

    /// Where in the file it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its header and all its bytes, both checked against their CRCs; the body only the first time.
    pub fn read(&self, info: &RunInfo) -> Result<(BlockHeader, &[u8]), StoreError> {
        self.check(info).map_err(|error| StoreError::Format {
            path: self.path().to_owned(),
            offset: self.offset,
            error,
        })
    }

    fn check(&self, info: &RunInfo) -> Result<(BlockHeader, &[u8]), FormatError> {
        let available = self.mapping.len().saturating_sub(self.offset);
        let header_end = self.offset + BLOCK_HEADER_LEN as u64;
        let header = BlockHeader::decode(self.mapping.bytes(self.offset..header_end).unwrap_or_default())?;
        Expected { run: info.run, builder: info.builder, block: self.number }.check(&header)?;
        if header.kind != BlockKind::Data {
            return Err(FormatError::Kind(2));
        }
        let range = self.offset..self.offset + u64::from(header.length);
        let bytes = self.mapping.bytes(range).ok_or(FormatError::CutOff { length: header.length, available })?;
        if !self.checked.load(Ordering::Relaxed) {
            header.check_body(bytes)?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok((header, bytes))
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The lowest and highest event that the segment's footer says it has.
    pub(crate) fn range(&self) -> (EventId, EventId) {
        (self.first, self.last)
    }

    /// Has the body compared with its CRC again at the next [`read`](Self::read).
    pub(crate) fn forget_check(&self) {
        self.checked.store(false, Ordering::Relaxed);
    }
}

/// The directory that `path` is, or lies in.
pub(crate) fn directory_of(path: &Path) -> PathBuf {
    let inside = path.is_file().then(|| path.parent()).flatten();
    match inside {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

/// What the next block has to say of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) run: u32,
    pub(crate) builder: u32,
    pub(crate) block: u64,
}

impl Expected {
    pub(crate) fn check(&self, header: &BlockHeader) -> Result<(), FormatError> {
        let fields = [
            ("run", u64::from(header.run.0), u64::from(self.run)),
            ("builder", header.builder.into(), self.builder.into()),
            ("block", header.block, self.block),
        ];
        match fields.into_iter().find(|(_, found, expected)| found != expected) {
            Some((field, found, expected)) => Err(FormatError::Foreign { field, found, expected }),
            None => Ok(()),
        }
    }
}

/// Walks a segment's blocks without its footer, from the front, while it may still grow.
///
/// Blocks are read with `pread` and only then reached through the mapping: space that a writer set aside, and gives back
/// when it closes the segment, is never touched in the mapping.
#[derive(Debug)]
pub(crate) struct Walk {
    file: File,
    mapping: Arc<Mapping>,
    at: u64,
    reserve: u64,
    buffer: Vec<u8>,
}

/// What a walk found.
#[derive(Debug)]
pub(crate) enum Step {
    /// A whole data block, which begins here.
    Block(u64, BlockHeader),
    /// The footer: the segment is closed.
    Footer,
    /// Nothing yet, or nothing whole.
    Stop(FormatError),
}

impl Walk {
    pub(crate) fn open(path: &Path, info: &RunInfo) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io("opening", path))?;
        // A hostile run.json must not make us map the address space.
        let reserve = info.recorder.segment_size.min(MAX_RESERVE);
        let mapping = Mapping::new(&file, Arc::from(path), 0, reserve).map_err(StoreError::io("mapping", path))?;
        Ok(Self { file, mapping, at: 0, reserve, buffer: Vec::new() })
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn step(&mut self, expected: Expected) -> Result<Step, StoreError> {
        match self.try_step(expected) {
            Ok(step) => Ok(step),
            Err(error) => Err(StoreError::io("reading", self.mapping.path())(error)),
        }
    }

    fn try_step(&mut self, expected: Expected) -> io::Result<Step> {
        let mut head = [0; BLOCK_HEADER_LEN];
        let there = read_up_to(&self.file, &mut head, self.at)?;
        let header = match BlockHeader::decode(&head[..there]) {
            Ok(header) => header,
            Err(error) => return Ok(Step::Stop(error)),
        };
        if let Err(error) = expected.check(&header) {
            return Ok(Step::Stop(error));
        }
        let available = self.file.metadata()?.len().saturating_sub(self.at);
        let length = header.length;
        if u64::from(length) > available {
            return Ok(Step::Stop(FormatError::CutOff { length, available }));
        }
        self.buffer.resize(length as usize, 0);
        let there = read_up_to(&self.file, &mut self.buffer, self.at)?;
        // The header again, from the same read as the body.
        let block = &self.buffer[..there];
        if block.get(..BLOCK_HEADER_LEN) != Some(&head) {
            return Ok(Step::Stop(FormatError::CutOff { length, available: there as u64 }));
        }
        if let Err(error) = header.check_body(block) {
            return Ok(Step::Stop(error));
        }
        if header.kind == BlockKind::Footer {
            return Ok(match Footer::decode(self.at, block) {
                Ok(_) => Step::Footer,
                Err(error) => Step::Stop(error),
            });
        }
        let (begin, end) = (self.at, self.at + u64::from(length));
        if !self.mapping.confirm(end) {
            let path = Arc::clone(self.mapping.shared_path());
            self.mapping = Mapping::new(&self.file, path, end, end + self.reserve)?;
        }
        self.at = end;
        Ok(Step::Block(begin, header))
    }
}

/// Reads as much of `into` as the file has from `offset` on.
fn read_up_to(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut there = 0;
    while there < into.len() {
        match file.read_at(&mut into[there..], offset + there as u64) {
            Ok(0) => break,
            Ok(read) => there += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
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
        directory: &Path,
        number: u32,
        info: &RunInfo,
        is_last: bool,
    ) -> Result<bool, StoreError> {
        let path = directory.join(segment_name(number));
        if self.read_by_footer(&path, info).map_err(StoreError::io("reading", &path))? {
            return Ok(true);
        }
        let mut walk = Walk::open(&path, info)?;
        let stop = loop {
            let block = self.blocks.len() as u64;
            let (offset, header) = match walk.step(Expected { run: info.run, builder: info.builder, block })? {
                Step::Block(offset, header) => (offset, header),
                // Its table contradicts the blocks, or it was written since we looked.
                Step::Footer => return Ok(true),
                Step::Stop(error) => break error,
            };
            let range = offset..offset + u64::from(header.length);
            let bytes = walk.mapping().bytes(range).unwrap_or_default();
            // A closing that makes no sense passed the block's CRC: the writer's fault, which `verify` reports.
            self.closings.extend(header.closing_entries(bytes).flatten());
            let extent = crate::format::FooterEntry::new(offset, block, header.fragment_entries(bytes));
            self.add(walk.mapping(), extent, true);
            self.bytes += u64::from(header.length);
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
    fn read_by_footer(&mut self, path: &Path, info: &RunInfo) -> io::Result<bool> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut trailer = [0; TRAILER_LEN];
        let Some(at) = size.checked_sub(TRAILER_LEN as u64) else { return Ok(false) };
        if read_up_to(&file, &mut trailer, at)? < TRAILER_LEN {
            return Ok(false);
        }
        let Ok(Trailer { offset, length }) = Trailer::decode(&trailer) else { return Ok(false) };
        if offset.checked_add(length.into()) != Some(size) || length as usize > MAX_BLOCK_LEN {
            return Ok(false);
        }
        let mut block = vec![0; length as usize];
        let there = read_up_to(&file, &mut block, offset)?;
        let Ok(footer) = Footer::decode(offset, &block[..there]) else { return Ok(false) };
        let first = self.blocks.len() as u64;
        let last = first + footer.blocks.len() as u64;
        let ours = (footer.run.0, footer.builder, footer.next_block) == (info.run, info.builder, last);
        let in_sequence = footer.blocks.iter().zip(first..).all(|(entry, number)| entry.block == number);
        let apart = footer.blocks.is_sorted_by(|a, b| a.offset < b.offset);
        let inside = footer.blocks.iter().all(|entry| entry.offset < offset);
        if !(ours && in_sequence && apart && inside) {
            return Ok(false);
        }
        let mapping = Mapping::new(&file, Arc::from(path), size, 0)?;
        for entry in footer.blocks {
            self.add(&mapping, entry, false);
        }
        self.closings.extend(footer.closings);
        self.bytes += offset;
        Ok(true)
    }

    fn add(&mut self, mapping: &Arc<Mapping>, entry: crate::format::FooterEntry, checked: bool) {
        self.blocks.push(StoredBlock {
            number: entry.block,
            mapping: Arc::clone(mapping),
            offset: entry.offset,
            first: entry.first,
            last: entry.last,
            checked: AtomicBool::new(checked),
            prefetched: AtomicBool::new(checked),
        });
    }
}

fn segment_numbers(directory: &Path) -> Result<Vec<u32>, StoreError> {
    let entries = std::fs::read_dir(directory).map_err(StoreError::io("reading", directory))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(StoreError::io("reading", directory))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".seg")).and_then(|stem| stem.parse().ok());
        numbers.extend(number.filter(|number| name.to_str() == Some(&segment_name(*number))));
    }
    numbers.sort_unstable();
    Ok(numbers)
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

/// Fragment tables of blocks that were touched lately, sorted.
#[derive(Debug, Default)]
struct Tables {
    known: HashMap<usize, (BlockHeader, Arc<[FragmentEntry]>)>,
    order: VecDeque<usize>,
    entries: usize,
}

impl Tables {
    fn insert(&mut self, place: usize, table: &(BlockHeader, Arc<[FragmentEntry]>)) {
        while self.entries > MAX_TABLE_ENTRIES {
            let Some(oldest) = self.order.pop_front() else { break };
            let removed = self.known.remove(&oldest);
            self.entries -= removed.map_or(0, |(_, entries)| entries.len() + 1);
        }
        self.entries += table.1.len() + 1;
        self.order.push_back(place);
        self.known.insert(place, table.clone());
    }
}

/// Blocks that are read ahead of the one in use when a run is gone through in order.
const PREFETCH: usize = 8;
/// Entries of fragment tables kept in memory: 64 MiB of them.
const MAX_TABLE_ENTRIES: usize = 4 << 20;
/// Address space set aside for a segment to grow into.
const MAX_RESERVE: u64 = 64 << 30;
