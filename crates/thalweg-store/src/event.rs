//! Events as a reader gets them.

use crate::format::{BLOCK_HEADER_LEN, BlockHeader, Closing, EventStatus, FormatError, FragmentEntry};
use crate::{Mapping, Run, StoreError};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;
use std::sync::Arc;
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, RECORD_ALIGN, SourceId};

/// A closed event with all its fragments.
#[derive(Debug, Clone)]
pub struct Event {
    /// Number of the event.
    pub id: EventId,
    /// Status of the event: complete if every source answered.
    pub status: EventStatus,
    /// Fragments, one for each source of the run, in ascending order of sources.
    pub fragments: Vec<Fragment>,
}

impl Event {
    /// Returns the fragment of one source.
    pub fn fragment_of_source(&self, source: SourceId) -> Option<&Fragment> {
        self.fragments.iter().find(|fragment| fragment.header.source == source)
    }
}

/// A fragment on disk. It keeps the file's mapping, or the fetched block, alive, so it may outlive the [`Run`] that it
/// was read from; cloning it copies no payload.
#[derive(Debug, Clone)]
pub struct Fragment {
    /// Header of the fragment, whose own CRC was checked.
    pub header: FragmentHeader,
    mapping: Arc<Mapping>,
    payload: u64,
}

impl Fragment {
    /// Returns the payload: `piece_length` bytes.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.mapping
            .bytes_in_range(self.payload..self.payload + u64::from(self.header.piece_length))
            .unwrap_or_default()
    }

    /// Returns whether the payload matches its CRC; true if the source computed none.
    pub fn is_payload_intact(&self) -> bool {
        self.header.payload_matches(self.payload())
    }

    /// Returns the file that contains the payload, and the offset of its first byte there.
    pub fn file_position(&self) -> (&Arc<Mapping>, u64) {
        (&self.mapping, self.payload)
    }

    /// Returns a stand-alone fragment from a copy of its record: the header, directly followed by the payload. `None`
    /// if `record` is anything else.
    pub fn from_record(record: Vec<u8>) -> Option<Self> {
        let header = FragmentHeader::decode(&record).ok()?;
        let payload = record.len().checked_sub(HEADER_LEN)?;
        let is_whole = payload as u64 == u64::from(header.piece_length);
        let mapping = Mapping::from_fetched_bytes(Path::new("a copy").into(), 0, record);
        is_whole.then_some(Self { header, mapping, payload: HEADER_LEN as u64 })
    }

    /// Finds the record that `entry` names in a block.
    pub(crate) fn find_in_block(block: &ReadBlock, entry: &FragmentEntry) -> Result<Self, StoreError> {
        Self::find_named_record(block, entry).ok_or_else(|| StoreError::Record {
            path: block.mapping.file_path().to_owned(),
            offset: block.offset + u64::from(entry.offset),
        })
    }

    fn find_named_record(block: &ReadBlock, entry: &FragmentEntry) -> Option<Self> {
        let ReadBlock { mapping, offset: block, header: block_header } = block;
        let offset = entry.offset as usize;
        if offset < BLOCK_HEADER_LEN || !offset.is_multiple_of(RECORD_ALIGN) {
            return None;
        }
        let record = block + u64::from(entry.offset);
        let payload = record + HEADER_LEN as u64;
        let records_end = block + u64::from(block_header.records_end);
        let bytes = mapping.bytes_in_range(record..payload).filter(|_| payload <= records_end)?;
        let header = FragmentHeader::decode(bytes).ok()?;
        let payload_end = payload + u64::from(header.piece_length);
        let is_named = (header.event, header.source, header.run) == (entry.event, entry.source, block_header.run);
        let is_inside = payload_end <= records_end && mapping.bytes_in_range(payload..payload_end).is_some();
        (is_named && is_inside).then(|| Self { header, mapping: Arc::clone(mapping), payload })
    }
}

/// Iterator over the events of a run, in ascending order. An event that cannot be read is an error; later events
/// follow.
#[derive(Debug)]
pub struct Events<'a> {
    run: &'a Run,
    ids: EventIds,
}

impl<'a> Events<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run, ids: run.event_ids() }
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Event, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (id, status) = self.ids.next()?;
        Some(self.run.read_event(id, status))
    }
}

/// Iterator over the numbers of a run's closed events, in ascending order, and their statuses. Borrows nothing.
#[derive(Debug, Clone)]
pub struct EventIds {
    parts: Vec<PartIds>,
    /// Next event of each part that has one, with the index of the part.
    next: BinaryHeap<Reverse<(EventId, usize, EventStatus)>>,
    last: Option<EventId>,
}

impl EventIds {
    pub(crate) fn new(mut parts: Vec<PartIds>) -> Self {
        let mut next = BinaryHeap::new();
        for (place, part) in parts.iter_mut().enumerate() {
            next.extend(part.next().map(|(id, status)| Reverse((id, place, status))));
        }
        Self { parts, next, last: None }
    }
}

impl Iterator for EventIds {
    type Item = (EventId, EventStatus);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut next = self.next.peek_mut()?;
            let Reverse((event, place, status)) = *next;
            match self.parts[place].next() {
                Some((id, status)) => *next = Reverse((id, place, status)),
                None => drop(PeekMut::pop(next)),
            }
            // An event that two builders closed, which occurs only in a damaged run, is returned once.
            if self.last != Some(event) {
                self.last = Some(event);
                return Some((event, status));
            }
        }
    }
}

/// Iterator over the numbers of the closed events that one builder wrote, in ascending order, and their statuses.
#[derive(Debug, Clone)]
pub(crate) struct PartIds {
    /// Closings in ascending order of their first events.
    closings: Arc<[Closing]>,
    /// Lowest event to return; earlier events are skipped.
    from: EventId,
    /// Index of the first of `closings` that was not begun yet.
    ahead: usize,
    /// Next event of each closing that was begun, with the closing's index and the number of steps taken.
    begun: BinaryHeap<Reverse<(EventId, usize, u32)>>,
    last: Option<EventId>,
}

impl PartIds {
    pub(crate) fn new(closings: Arc<[Closing]>, from: EventId) -> Self {
        Self { closings, from, ahead: 0, begun: BinaryHeap::new(), last: None }
    }
}

impl Iterator for PartIds {
    type Item = (EventId, EventStatus);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(next) = self.closings.get(self.ahead) {
                if self.begun.peek().is_some_and(|Reverse((event, ..))| *event < next.first) {
                    break;
                }
                // The first of its events that is not before `from`.
                let step = self.from.0.saturating_sub(next.first.0).div_ceil(next.stride);
                if let Some(step) = u32::try_from(step).ok().filter(|step| *step < next.count) {
                    let event = EventId(next.first.0 + next.stride * u64::from(step));
                    self.begun.push(Reverse((event, self.ahead, step)));
                }
                self.ahead += 1;
            }
            let Reverse((event, place, step)) = self.begun.pop()?;
            let closing = &self.closings[place];
            if step + 1 < closing.count {
                self.begun.push(Reverse((EventId(event.0 + closing.stride), place, step + 1)));
            }
            // An event that was closed twice, which occurs only in a damaged run, is returned once.
            if self.last != Some(event) {
                self.last = Some(event);
                return Some((event, closing.status));
            }
        }
    }
}

/// Returns whether a closed event is whole: `found` are the sources of its records in the readable blocks, in ascending
/// order, and `sources` those of the run.
///
/// An event is closed if a readable block, or the footer of its segment, contains its closing. An event whose closing
/// is lost is lost to every reader of the run, whatever is left of its records; only salvage keeps these.
pub(crate) fn has_each_source_once(found: impl Iterator<Item = SourceId>, sources: &[SourceId]) -> bool {
    found.eq(sources.iter().copied())
}

/// Collects fragments until their events are closed, block by block in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    open: HashMap<EventId, Vec<Located>>,
}

/// Position of a fragment.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) block: Arc<ReadBlock>,
    pub(crate) entry: FragmentEntry,
}

impl Located {
    pub(crate) fn read_fragment(&self) -> Result<Fragment, StoreError> {
        Fragment::find_in_block(&self.block, &self.entry)
    }
}

/// A data block in memory. It keeps the file's mapping, or the fetched bytes, alive.
#[derive(Debug)]
pub struct ReadBlock {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: u64,
    pub(crate) header: BlockHeader,
}

impl ReadBlock {
    /// Returns the block's header.
    pub fn header(&self) -> &BlockHeader {
        &self.header
    }

    /// Returns the bytes of the whole block.
    pub fn block_bytes(&self) -> &[u8] {
        self.mapping.bytes_in_range(self.offset..self.offset + u64::from(self.header.length)).unwrap_or_default()
    }

    pub(crate) fn closing_entries(&self) -> impl Iterator<Item = Result<Closing, FormatError>> {
        self.header.closing_entries(self.block_bytes())
    }

    pub(crate) fn format_error(&self, error: FormatError) -> StoreError {
        StoreError::Format { path: self.mapping.file_path().to_owned(), offset: self.offset, error }
    }
}

impl Assembler {
    pub(crate) fn add_block(&mut self, block: &Arc<ReadBlock>) {
        for entry in block.header.fragment_entries(block.block_bytes()) {
            self.open.entry(entry.event).or_default().push(Located { block: Arc::clone(block), entry });
        }
    }

    /// Returns the known fragments of an event, in ascending order of sources, and forgets the event.
    pub(crate) fn take_fragments(&mut self, event: EventId) -> Vec<Located> {
        let mut fragments = self.open.remove(&event).unwrap_or_default();
        fragments.sort_by_key(|located| located.entry.source);
        fragments
    }

    /// Returns the events of a closing that have fragments here, in ascending order. A damaged count may name four
    /// thousand million others.
    pub(crate) fn events_of_closing(&self, closing: &Closing) -> Vec<EventId> {
        let mut events: Vec<EventId> = match closing.count as usize > self.open.len() {
            true => self.open.keys().copied().filter(|event| closing.contains_event(*event)).collect(),
            false => closing.event_numbers().filter(|event| self.open.contains_key(event)).collect(),
        };
        events.sort_unstable();
        events
    }

    /// Returns the events that are not closed, with their fragments.
    pub(crate) fn unclosed_events(&self) -> impl Iterator<Item = (EventId, &[Located])> {
        self.open.iter().map(|(event, located)| (*event, &located[..]))
    }
}
