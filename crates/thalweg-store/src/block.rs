//! A block being filled: records in its arena memory, the index kept separately until the block is sealed.

use crate::format::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, Closing, EventStatus, FragmentEntry, MAX_BLOCK_LEN, block_layout,
};
use thalweg_arena::{Block, Span};
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, RECORD_ALIGN, RunNumber, SourceId, Status, TaiNanos, crc32c};

/// Number of closings that always fit a block, whatever space its records take. Consecutive events are merged into one
/// closing, so the reserve is reached only if completeness changes from event to event; after that, more are accepted
/// as long as there is room.
const RESERVED_CLOSINGS: usize = 128;

/// A block being filled with records, and the index that will be sealed into it.
///
/// Space is reserved for records together with their index entries, so that everything reserved can always be sealed.
#[derive(Debug)]
pub struct BlockWriter {
    block: Block,
    fragments: Vec<FragmentEntry>,
    closings: Vec<Closing>,
    /// Number of fragment entries whose records stand for a missing source.
    missing: u64,
    /// Number of fragment entries for which space has been reserved.
    promised: usize,
}

impl BlockWriter {
    /// Begins to fill `block`, after the 64 bytes of its header.
    ///
    /// # Panics
    /// If spans of the block are in use.
    pub fn new(block: Block) -> Self {
        let mut writer = Self { block, fragments: Vec::new(), closings: Vec::new(), missing: 0, promised: 0 };
        writer.discard_contents();
        writer
    }

    /// Reserves `len` bytes for records, with index entries for up to `fragments` of them; returns `None` if they no
    /// longer fit. The span begins at a multiple of 64 bytes. When it is dropped, its bytes are part of the block; only
    /// records that were [entered](Self::enter_record) count.
    pub fn reserve_span(&mut self, len: usize, fragments: u32) -> Option<Span> {
        let rounded = len.checked_next_multiple_of(RECORD_ALIGN)?;
        let promised = self.promised.checked_add(fragments as usize)?;
        if !self.fits_capacity(self.block.used_bytes().checked_add(rounded)?, promised, self.closings.len()) {
            return None;
        }
        let span = self.block.carve_span(len)?;
        if rounded > len {
            drop(self.block.carve_span(rounded - len)?);
        }
        self.promised = promised;
        Some(span)
    }

    /// Returns the offset of a span in the block, in bytes: the offset to pass to [`enter_record`](Self::enter_record) for a record
    /// at the beginning of the span.
    ///
    /// # Panics
    /// If the span belongs to another block.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "blocks are at most MAX_BLOCK_LEN bytes here")]
    pub fn span_offset(&self, span: &Span) -> u32 {
        self.block.position_of_span(span) as u32
    }

    /// Returns whether `span` was reserved in this block.
    pub fn owns_span(&self, span: &Span) -> bool {
        self.block.owns_span(span)
    }

    /// Returns whether reserved spans are still in use. A busy block cannot be submitted.
    pub fn has_spans_in_use(&self) -> bool {
        self.block.has_spans_out()
    }

    /// Enters the record whose header begins `offset` bytes into the block. The caller has checked the record; a record
    /// that is not entered is not part of the block.
    ///
    /// # Panics
    /// If more records are entered than were reserved.
    #[inline]
    pub fn enter_record(&mut self, event: EventId, source: SourceId, offset: u32) {
        assert!(self.fragments.len() < self.promised, "more records entered than were reserved");
        self.fragments.push(FragmentEntry { event, source, offset });
    }

    /// Writes and enters a record that consists of a header only, for a source that has nothing for an event; returns
    /// false if the block is full.
    #[must_use]
    pub fn add_header_record(&mut self, header: &FragmentHeader) -> bool {
        let Some(mut span) = self.reserve_span(HEADER_LEN, 1) else { return false };
        span.copy_from_slice(&header.encode());
        let offset = self.span_offset(&span);
        drop(span);
        self.enter_record(header.event, header.source, offset);
        self.missing += u64::from(header.status.contains(Status::MISSING));
        true
    }

    /// Notes that `event` is closed, with `stride` as the number of builders; returns false if the table is full: the
    /// caller then submits this block and closes the event in the next one.
    #[must_use]
    #[inline]
    pub fn close_event(&mut self, event: EventId, stride: u64, status: EventStatus) -> bool {
        let closing = Closing { first: event, stride: stride.max(1), count: 1, status };
        if self.closings.last_mut().is_some_and(|last| last.merge_next(&closing)) {
            return true;
        }
        if !self.fits_capacity(self.block.used_bytes(), self.promised, self.closings.len() + 1) {
            return false;
        }
        self.closings.push(closing);
        true
    }

    /// Returns the number of bytes taken by the header and the records, abandoned ones included.
    pub fn used_bytes(&self) -> usize {
        self.block.used_bytes()
    }

    /// Returns the number of bytes the block can hold in all.
    pub fn capacity_bytes(&self) -> usize {
        self.block.capacity_bytes().min(MAX_BLOCK_LEN)
    }

    /// Returns the records entered.
    pub fn fragment_entries(&self) -> &[FragmentEntry] {
        &self.fragments
    }

    /// Returns the number of [`fragments`](Self::fragments) that stand for a missing source.
    pub fn missing_count(&self) -> u64 {
        self.missing
    }

    /// Returns the closings entered, with consecutive events joined.
    pub fn joined_closings(&self) -> &[Closing] {
        &self.closings
    }

    /// Returns whether there is nothing to write: no record, no closing.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty() && self.closings.is_empty()
    }

    /// Discards all contents, for use without a recorder, or for reuse.
    ///
    /// # Panics
    /// If spans are in use.
    pub fn discard_contents(&mut self) {
        self.block.reset_to_empty();
        self.fragments.clear();
        self.closings.clear();
        self.missing = 0;
        self.promised = 0;
        // A block too small for its header takes no record either: `reserve` finds no space.
        drop(self.block.carve_span(BLOCK_HEADER_LEN));
    }

    /// Returns the bare block, to be given back to its pool.
    ///
    /// # Panics
    /// If spans are in use.
    pub fn into_block(mut self) -> Block {
        self.block.reset_to_empty();
        self.block
    }

    fn fits_capacity(&self, used: usize, promised: usize, closings: usize) -> bool {
        block_layout(used, promised, closings.max(RESERVED_CLOSINGS)).1 <= self.capacity_bytes()
    }

    /// Writes the index and the header, and returns the number of bytes to write to the file.
    #[expect(clippy::cast_possible_truncation, reason = "reserve keeps everything within MAX_BLOCK_LEN")]
    pub(crate) fn seal_block(&mut self, run: RunNumber, builder: u32, block: u64, written: TaiNanos) -> u32 {
        let used = self.block.used_bytes();
        let (index, length) = block_layout(used, self.fragments.len(), self.closings.len());
        let bytes = &mut self.block.bytes_mut()[..length];
        let (records, tables) = bytes.split_at_mut(index);
        records[used..].fill(0);
        let (entries, rest) = tables.split_at_mut(size_of_val(&self.fragments[..]));
        for (to, entry) in entries.as_chunks_mut().0.iter_mut().zip(&self.fragments) {
            *to = entry.encode();
        }
        let mut end = 0;
        for closing in &self.closings {
            let encoded = closing.encode();
            rest[end..end + encoded.len()].copy_from_slice(&encoded);
            end += encoded.len();
        }
        rest[end..].fill(0);
        let header = BlockHeader {
            kind: BlockKind::Data,
            run,
            builder,
            block,
            length: length as u32,
            records_end: used as u32,
            index_offset: index as u32,
            fragments: self.fragments.len() as u32,
            closings: self.closings.len() as u32,
            written,
            body_crc: crc32c(&bytes[BLOCK_HEADER_LEN..]),
        };
        bytes[..BLOCK_HEADER_LEN].copy_from_slice(&header.encode());
        length as u32
    }

    /// Returns the number of the block in its pool.
    pub fn index_in_pool(&self) -> u32 {
        self.block.block_index()
    }

    /// Returns the block's bytes. They keep their address, and nothing else accesses them, while the writer is kept and
    /// not used.
    pub(crate) fn memory_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }
}

const _: () = assert!(size_of::<FragmentEntry>() == crate::format::FRAGMENT_ENTRY_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_arena::BlockPool;
    use thalweg_wire::Status;

    fn writer(bytes: usize) -> BlockWriter {
        BlockWriter::new(BlockPool::new("test", 1, bytes).unwrap().take_block().unwrap())
    }

    #[test]
    fn what_was_reserved_can_always_be_sealed() {
        let mut writer = writer(16 << 10);
        let mut event = 0;
        while let Some(span) = writer.reserve_span(100, 3) {
            let offset = writer.span_offset(&span);
            assert!(offset.is_multiple_of(64) && writer.owns_span(&span) && writer.has_spans_in_use());
            drop(span);
            for _ in 0..3 {
                writer.enter_record(EventId(event), SourceId(1), offset);
            }
            event += 1;
        }
        while writer.add_header_record(&FragmentHeader { status: Status::MISSING, ..Default::default() }) {}
        // Completeness that changes from event to event is the worst case for the closing table.
        let status = |event| if event % 2 == 0 { EventStatus::Complete } else { EventStatus::Incomplete };
        let closed = (0..).take_while(|event| writer.close_event(EventId(*event), 1, status(*event))).count();
        assert!(closed >= RESERVED_CLOSINGS, "{closed} closings");
        let length = writer.seal_block(RunNumber(1), 0, 0, TaiNanos(0));
        let block = &writer.memory_mut()[..length as usize];
        let header = BlockHeader::decode(block).unwrap();
        header.check_body_crc(block).unwrap();
        assert_eq!(header.fragment_entries(block).len(), header.fragments as usize);
        assert_eq!(header.closing_entries(block).map(Result::unwrap).map(|c| c.count as usize).sum::<usize>(), closed);
    }

    #[test]
    fn consecutive_events_take_one_closing() {
        let mut writer = writer(16 << 10);
        assert!(writer.is_empty());
        assert!((0..100_000).all(|n| writer.close_event(EventId(5 + 3 * n), 3, EventStatus::Complete)));
        assert_eq!(writer.joined_closings().len(), 1);
        assert!(!writer.is_empty());
        writer.discard_contents();
        assert!(writer.is_empty() && writer.used_bytes() == 64);
    }

    #[test]
    fn a_block_too_small_for_its_tables_takes_nothing() {
        assert!(writer(4096).reserve_span(64, 1).is_none());
        assert!(writer(16 << 10).reserve_span(usize::MAX, 1).is_none());
        assert!(writer(16 << 10).reserve_span(64, u32::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "more records entered than were reserved")]
    fn records_without_room_in_the_index_are_a_bug_of_the_caller() {
        writer(16 << 10).enter_record(EventId(0), SourceId(0), 64);
    }
}
