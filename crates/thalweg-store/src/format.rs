//! Bytes of a segment: block headers, fragment tables, closing tables, footers (`docs/run-format.md`).
//!
//! Pure data: each decoder takes bytes from an untrusted writer, and compares every length with the bytes available
//! before it uses it.

use thalweg_wire::{EventId, HEADER_LEN, RunNumber, SourceId, TaiNanos, crc32c};
use thiserror::Error;

/// Number of bytes in a block header.
pub const BLOCK_HEADER_LEN: usize = 64;
/// Magic number at the start of a block: `TWBK` in a little-endian dump.
pub const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"TWBK");
/// Magic number in the last four bytes of a segment that was closed cleanly: `TWFT` in a little-endian dump.
pub const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"TWFT");
/// Version of the format that this crate writes, and the only one it reads.
pub const FORMAT_VERSION: u16 = 1;
/// Alignment of blocks in bytes: blocks begin and end at multiples of it, as O_DIRECT requires on every common disk.
pub const BLOCK_ALIGN: usize = 4096;
/// Maximum number of bytes in a block, so that a damaged length never makes a reader map or allocate the address space.
pub const MAX_BLOCK_LEN: usize = 1 << 30;
/// Number of bytes in one entry of a fragment table.
pub const FRAGMENT_ENTRY_LEN: usize = 16;
/// Number of bytes in one entry of a closing table.
pub const CLOSING_LEN: usize = 32;
/// Number of bytes in one entry of a footer's block table.
pub const FOOTER_ENTRY_LEN: usize = 32;
/// Number of bytes at the very end of a footer that lead back to its beginning.
pub const TRAILER_LEN: usize = 16;

/// Kind of a block, by its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Records, and the tables that index them.
    Data,
    /// Tables of a whole segment; the segment's last block, and the mark of a clean close.
    Footer,
}

/// The first 64 bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Kind of the block.
    pub kind: BlockKind,
    /// Number of the run.
    pub run: RunNumber,
    /// Number of the builder that wrote the block.
    pub builder: u32,
    /// Number of the block: data blocks count 0, 1, 2, … through the run. A footer has the number of the next data
    /// block.
    pub block: u64,
    /// Number of bytes in the whole block.
    pub length: u32,
    /// Offset of the first byte after the last record.
    pub records_end: u32,
    /// Offset of the fragment table (data) or block table (footer).
    pub index_offset: u32,
    /// Number of entries in the fragment table (data) or block table (footer).
    pub fragments: u32,
    /// Number of entries in the closing table.
    pub closings: u32,
    /// Time at which the block was sealed; in a footer, that of the last data block before it.
    pub written: TaiNanos,
    /// CRC32C of everything after the header.
    pub body_crc: u32,
}

/// Reason why bytes are not valid in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Fewer bytes than a header has.
    #[error("{0} bytes left where a 64-byte block header should be")]
    Short(usize),
    /// Zeros only: space that was allocated and not written yet.
    #[error("no block was written here")]
    Blank,
    /// Another value in the magic number field.
    #[error("block magic is {0:#010x}, expected 0x4b425754 (\"TWBK\")")]
    Magic(u32),
    /// A block written by another version of the format.
    #[error("block version {0} is not known to this program, which reads version 1")]
    Version(u16),
    /// A block that is neither data nor footer.
    #[error("block kind {0} is not known to this program")]
    Kind(u16),
    /// A header whose own checksum does not match.
    #[error("block header CRC32C is {found:#010x}, computed {computed:#010x}")]
    HeaderCrc {
        /// Checksum in the header.
        found: u32,
        /// Checksum computed from the header's bytes.
        computed: u32,
    },
    /// A body whose checksum does not match.
    #[error("block body CRC32C is {found:#010x}, computed {computed:#010x}")]
    BodyCrc {
        /// Checksum in the header.
        found: u32,
        /// Checksum computed from the body's bytes.
        computed: u32,
    },
    /// A field that contradicts the others.
    #[error("block field '{0}' has an impossible value")]
    Field(&'static str),
    /// A closing that names no events, or events beyond the highest number.
    #[error("closing {count} events from {first} on in steps of {stride} is impossible")]
    Closing {
        /// Number of the first event.
        first: u64,
        /// Step from one event to the next.
        stride: u64,
        /// Number of events.
        count: u32,
    },
    /// A closing with a status that this version does not know.
    #[error("closing status {0} is not known to this program")]
    ClosingStatus(u32),
    /// A trailer that does not lead to its footer.
    #[error("the segment's last 16 bytes do not point to its footer")]
    Trailer,
    /// A block that is longer than the rest of the file.
    #[error("the block has {length} bytes, but only {available} bytes follow in the file")]
    CutOff {
        /// Number of bytes in the block according to its header.
        length: u32,
        /// Number of bytes up to the end of the file.
        available: u64,
    },
    /// A block of another run, of another builder, or out of sequence.
    #[error("block field '{field}' is {found}, expected {expected}")]
    Foreign {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        found: u64,
        /// Value that belongs here.
        expected: u64,
    },
}

impl BlockHeader {
    /// Returns the 64 bytes of this header, with its CRC filled in.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_LEN] {
        let mut b = [0; BLOCK_HEADER_LEN];
        let kind: u16 = match self.kind {
            BlockKind::Data => 1,
            BlockKind::Footer => 2,
        };
        b[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        b[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        b[6..8].copy_from_slice(&kind.to_le_bytes());
        b[8..12].copy_from_slice(&self.run.0.to_le_bytes());
        b[12..16].copy_from_slice(&self.builder.to_le_bytes());
        b[16..24].copy_from_slice(&self.block.to_le_bytes());
        b[24..28].copy_from_slice(&self.length.to_le_bytes());
        b[28..32].copy_from_slice(&self.records_end.to_le_bytes());
        b[32..36].copy_from_slice(&self.index_offset.to_le_bytes());
        b[36..40].copy_from_slice(&self.fragments.to_le_bytes());
        b[40..44].copy_from_slice(&self.closings.to_le_bytes());
        b[48..56].copy_from_slice(&self.written.0.to_le_bytes());
        b[56..60].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c(&b[..60]);
        b[60..64].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes the header at the front of `bytes`. Every table it describes lies inside the length it states;
    /// [`check_body_crc`](Self::check_body_crc) checks that the body is present and matches its CRC.
    ///
    /// # Errors
    /// If there is no header of this version, or it is damaged or contradicts itself; [`FormatError::Blank`] if nothing
    /// was written there.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let Some(b) = bytes.first_chunk::<BLOCK_HEADER_LEN>() else {
            return Err(FormatError::Short(bytes.len()));
        };
        if b.iter().all(|byte| *byte == 0) {
            return Err(FormatError::Blank);
        }
        if u32_at(b, 0) != BLOCK_MAGIC {
            return Err(FormatError::Magic(u32_at(b, 0)));
        }
        if u16_at(b, 4) != FORMAT_VERSION {
            return Err(FormatError::Version(u16_at(b, 4)));
        }
        let (found, computed) = (u32_at(b, 60), crc32c(&b[..60]));
        if found != computed {
            return Err(FormatError::HeaderCrc { found, computed });
        }
        let kind = match u16_at(b, 6) {
            1 => BlockKind::Data,
            2 => BlockKind::Footer,
            kind => return Err(FormatError::Kind(kind)),
        };
        let header = Self {
            kind,
            run: RunNumber(u32_at(b, 8)),
            builder: u32_at(b, 12),
            block: u64_at(b, 16),
            length: u32_at(b, 24),
            records_end: u32_at(b, 28),
            index_offset: u32_at(b, 32),
            fragments: u32_at(b, 36),
            closings: u32_at(b, 40),
            written: TaiNanos(u64_at(b, 48)),
            body_crc: u32_at(b, 56),
        };
        header.check_fields()?;
        Ok(header)
    }

    fn check_fields(&self) -> Result<(), FormatError> {
        let length = self.length as usize;
        if length == 0 || !length.is_multiple_of(BLOCK_ALIGN) || length > MAX_BLOCK_LEN {
            return Err(FormatError::Field("length"));
        }
        let (records_end, index_offset) = (self.records_end as usize, self.index_offset as usize);
        if records_end < BLOCK_HEADER_LEN || records_end > index_offset {
            return Err(FormatError::Field("records end"));
        }
        if !index_offset.is_multiple_of(64) || index_offset > length {
            return Err(FormatError::Field("index offset"));
        }
        if self.tables_end() > length as u64 {
            return Err(FormatError::Field("fragments"));
        }
        Ok(())
    }

    /// Returns the offset of the end of the last table (and, in a footer, of the trailer).
    fn tables_end(&self) -> u64 {
        let (entry, trailer) = match self.kind {
            BlockKind::Data => (FRAGMENT_ENTRY_LEN, 0),
            BlockKind::Footer => (FOOTER_ENTRY_LEN, TRAILER_LEN),
        };
        u64::from(self.index_offset)
            + u64::from(self.fragments) * entry as u64
            + u64::from(self.closings) * CLOSING_LEN as u64
            + trailer as u64
    }

    /// Checks the body against its CRC. `block` is the whole block, header included.
    ///
    /// # Errors
    /// If the block is cut off, or its body has another CRC.
    pub fn check_body_crc(&self, block: &[u8]) -> Result<(), FormatError> {
        let Some(body) = block.get(BLOCK_HEADER_LEN..self.length as usize) else {
            return Err(FormatError::CutOff { length: self.length, available: block.len() as u64 });
        };
        let computed = crc32c(body);
        if computed != self.body_crc {
            return Err(FormatError::BodyCrc { found: self.body_crc, computed });
        }
        Ok(())
    }

    /// Returns the fragment table of a data block; empty for a footer or if `block` is cut off. `block` is the whole
    /// block.
    pub fn fragment_entries<'a>(&self, block: &'a [u8]) -> impl ExactSizeIterator<Item = FragmentEntry> + use<'a> {
        let count = if self.kind == BlockKind::Data { self.fragments as usize } else { 0 };
        let start = self.index_offset as usize;
        let table = block.get(start..start + count * FRAGMENT_ENTRY_LEN).unwrap_or_default();
        table.as_chunks::<FRAGMENT_ENTRY_LEN>().0.iter().map(FragmentEntry::decode)
    }

    /// Returns the closing table. `block` is the whole block.
    pub fn closing_entries<'a>(
        &self,
        block: &'a [u8],
    ) -> impl ExactSizeIterator<Item = Result<Closing, FormatError>> + use<'a> {
        let entry = if self.kind == BlockKind::Data { FRAGMENT_ENTRY_LEN } else { FOOTER_ENTRY_LEN };
        let start = self.index_offset as usize + self.fragments as usize * entry;
        let table = block.get(start..start + self.closings as usize * CLOSING_LEN).unwrap_or_default();
        table.as_chunks::<CLOSING_LEN>().0.iter().map(Closing::decode)
    }

    /// Returns the block table of a footer; empty for a data block. `block` is the whole block.
    pub fn footer_entries<'a>(&self, block: &'a [u8]) -> impl ExactSizeIterator<Item = FooterEntry> + use<'a> {
        let count = if self.kind == BlockKind::Footer { self.fragments as usize } else { 0 };
        let start = self.index_offset as usize;
        let table = block.get(start..start + count * FOOTER_ENTRY_LEN).unwrap_or_default();
        table.as_chunks::<FOOTER_ENTRY_LEN>().0.iter().map(FooterEntry::decode)
    }
}

/// Index entry of one record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FragmentEntry {
    /// Event of the record.
    pub event: EventId,
    /// Source of the record.
    pub source: SourceId,
    /// Offset of the record's header in the block, in bytes.
    pub offset: u32,
}

impl FragmentEntry {
    /// Returns the 16 bytes of this entry.
    pub fn encode(&self) -> [u8; FRAGMENT_ENTRY_LEN] {
        let mut b = [0; FRAGMENT_ENTRY_LEN];
        b[0..8].copy_from_slice(&self.event.0.to_le_bytes());
        b[8..12].copy_from_slice(&self.source.0.to_le_bytes());
        b[12..16].copy_from_slice(&self.offset.to_le_bytes());
        b
    }

    /// Decodes an entry. The caller checks that the record is there.
    pub fn decode(b: &[u8; FRAGMENT_ENTRY_LEN]) -> Self {
        Self { event: EventId(u64_at(b, 0)), source: SourceId(u32_at(b, 8)), offset: u32_at(b, 12) }
    }
}

/// Completeness of an event when it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventStatus {
    /// Every source answered.
    Complete,
    /// At least one source has a record with status `missing`.
    Incomplete,
}

/// Closing of `count` events, `first`, `first + stride`, …: no further fragment of them will follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// Number of the first event.
    pub first: EventId,
    /// Step from one event to the next; at least 1.
    pub stride: u64,
    /// Number of events; at least 1.
    pub count: u32,
    /// Status with which the events were closed.
    pub status: EventStatus,
}

impl Closing {
    /// Returns the 32 bytes of this entry.
    pub fn encode(&self) -> [u8; CLOSING_LEN] {
        let status: u32 = match self.status {
            EventStatus::Complete => 0,
            EventStatus::Incomplete => 1,
        };
        let mut b = [0; CLOSING_LEN];
        b[0..8].copy_from_slice(&self.first.0.to_le_bytes());
        b[8..16].copy_from_slice(&self.stride.to_le_bytes());
        b[16..20].copy_from_slice(&self.count.to_le_bytes());
        b[20..24].copy_from_slice(&status.to_le_bytes());
        b
    }

    /// Decodes an entry; fails if it names events that cannot exist.
    pub(crate) fn decode(b: &[u8; CLOSING_LEN]) -> Result<Self, FormatError> {
        let (first, stride, count) = (u64_at(b, 0), u64_at(b, 8), u32_at(b, 16));
        let steps = u64::from(count).checked_sub(1);
        let last = steps.and_then(|steps| steps.checked_mul(stride)).and_then(|span| first.checked_add(span));
        if last.is_none() || stride == 0 {
            return Err(FormatError::Closing { first, stride, count });
        }
        let status = match u32_at(b, 20) {
            0 => EventStatus::Complete,
            1 => EventStatus::Incomplete,
            status => return Err(FormatError::ClosingStatus(status)),
        };
        Ok(Self { first: EventId(first), stride, count, status })
    }

    /// Returns the last event.
    pub fn last_event(&self) -> EventId {
        EventId(self.first.0 + self.stride * (u64::from(self.count) - 1))
    }

    /// Returns whether `event` is one of the events.
    pub fn contains_event(&self, event: EventId) -> bool {
        let within = self.first <= event && event <= self.last_event();
        within && (event.0 - self.first.0).is_multiple_of(self.stride)
    }

    /// Returns the events, in ascending order.
    pub fn event_numbers(self) -> impl Iterator<Item = EventId> {
        (0..u64::from(self.count)).map(move |step| EventId(self.first.0 + self.stride * step))
    }

    /// Merges `next` into this closing and returns true, if `next` continues its sequence of events.
    #[inline]
    pub fn merge_next(&mut self, next: &Self) -> bool {
        let expected = self.stride.checked_mul(u64::from(self.count)).and_then(|span| self.first.0.checked_add(span));
        let continues = self.status == next.status && self.stride == next.stride && expected == Some(next.first.0);
        match self.count.checked_add(next.count) {
            Some(count) if continues => {
                self.count = count;
                true
            }
            _ => false,
        }
    }
}

/// Entry of one data block of a segment in the segment's footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FooterEntry {
    /// Offset of the block in the file, in bytes.
    pub offset: u64,
    /// Number of the block.
    pub block: u64,
    /// Lowest event in the block's fragment table; higher than `last` if the table is empty.
    pub first: EventId,
    /// Highest event in the block's fragment table.
    pub last: EventId,
}

impl FooterEntry {
    /// Returns the entry of a block with the given fragments.
    pub fn new(offset: u64, block: u64, fragments: impl IntoIterator<Item = FragmentEntry>) -> Self {
        let (mut first, mut last) = (EventId(u64::MAX), EventId(0));
        for FragmentEntry { event, .. } in fragments {
            (first, last) = (first.min(event), last.max(event));
        }
        Self { offset, block, first, last }
    }

    /// Returns the 32 bytes of this entry.
    pub fn encode(&self) -> [u8; FOOTER_ENTRY_LEN] {
        let mut b = [0; FOOTER_ENTRY_LEN];
        b[0..8].copy_from_slice(&self.offset.to_le_bytes());
        b[8..16].copy_from_slice(&self.block.to_le_bytes());
        b[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.last.0.to_le_bytes());
        b
    }

    /// Decodes an entry.
    pub fn decode(b: &[u8; FOOTER_ENTRY_LEN]) -> Self {
        Self { offset: u64_at(b, 0), block: u64_at(b, 8), first: EventId(u64_at(b, 16)), last: EventId(u64_at(b, 24)) }
    }
}

/// Contents of a footer block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// Number of the run.
    pub run: RunNumber,
    /// Number of the builder.
    pub builder: u32,
    /// Number of the next data block, which is in the next segment.
    pub next_block: u64,
    /// Offset of the footer in the file, where the data ends, in bytes.
    pub offset: u64,
    /// Time at which the last data block of the segment was sealed; 0 if there is none.
    pub written: TaiNanos,
    /// Entries of the data blocks, in the order of the file.
    pub blocks: Vec<FooterEntry>,
    /// Closings of the data blocks, with those that continue each other joined.
    pub closings: Vec<Closing>,
}

impl Footer {
    /// Returns the number of bytes in the footer block; `None` if it would be longer than a block may be.
    pub fn encoded_bytes(&self) -> Option<usize> {
        let tables = self.blocks.len() * FOOTER_ENTRY_LEN + self.closings.len() * CLOSING_LEN;
        let length = (BLOCK_HEADER_LEN + tables + TRAILER_LEN).next_multiple_of(BLOCK_ALIGN);
        (length <= MAX_BLOCK_LEN).then_some(length)
    }

    /// Writes the footer block into `into`, which has [`encoded_bytes`](Self::encoded_bytes) bytes.
    #[expect(clippy::cast_possible_truncation, reason = "encoded_len keeps everything below MAX_BLOCK_LEN")]
    pub fn encode_into(&self, into: &mut [u8]) {
        let length = into.len();
        into.fill(0);
        let tables = into[BLOCK_HEADER_LEN..].as_chunks_mut::<FOOTER_ENTRY_LEN>().0;
        let blocks = self.blocks.iter().map(FooterEntry::encode);
        for (to, entry) in tables.iter_mut().zip(blocks.chain(self.closings.iter().map(Closing::encode))) {
            *to = entry;
        }
        let trailer = &mut into[length - TRAILER_LEN..];
        trailer[0..8].copy_from_slice(&self.offset.to_le_bytes());
        trailer[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        trailer[12..16].copy_from_slice(&TRAILER_MAGIC.to_le_bytes());
        let header = BlockHeader {
            kind: BlockKind::Footer,
            run: self.run,
            builder: self.builder,
            block: self.next_block,
            length: length as u32,
            records_end: BLOCK_HEADER_LEN as u32,
            index_offset: BLOCK_HEADER_LEN as u32,
            fragments: self.blocks.len() as u32,
            closings: self.closings.len() as u32,
            written: self.written,
            body_crc: crc32c(&into[BLOCK_HEADER_LEN..]),
        };
        into[..BLOCK_HEADER_LEN].copy_from_slice(&header.encode());
    }

    /// Decodes a footer block that begins at `offset` of its file: header, body CRC, tables, trailer.
    pub(crate) fn decode(offset: u64, block: &[u8]) -> Result<Self, FormatError> {
        let header = BlockHeader::decode(block)?;
        if header.kind != BlockKind::Footer {
            return Err(FormatError::Kind(1));
        }
        header.check_body_crc(block)?;
        let trailer = Trailer::decode(&block[..header.length as usize])?;
        if trailer != (Trailer { offset, length: header.length }) {
            return Err(FormatError::Trailer);
        }
        Ok(Self {
            run: header.run,
            builder: header.builder,
            next_block: header.block,
            offset,
            written: header.written,
            blocks: header.footer_entries(block).collect(),
            closings: header.closing_entries(block).collect::<Result<_, _>>()?,
        })
    }
}

/// Last 16 bytes of a segment that was closed cleanly: the position of its footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Offset of the footer in the file, in bytes.
    pub offset: u64,
    /// Number of bytes in the footer.
    pub length: u32,
}

impl Trailer {
    /// Decodes the trailer at the end of `bytes`.
    ///
    /// # Errors
    /// If `bytes` does not end with a trailer.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let b = bytes.last_chunk::<TRAILER_LEN>().ok_or(FormatError::Trailer)?;
        if u32_at(b, 12) != TRAILER_MAGIC {
            return Err(FormatError::Trailer);
        }
        Ok(Self { offset: u64_at(b, 0), length: u32_at(b, 8) })
    }
}

/// Returns the offset of the index, and the total length in bytes, of a block with `used` bytes and tables of these
/// sizes.
pub(crate) fn block_layout(used: usize, fragments: usize, closings: usize) -> (usize, usize) {
    let index = used.next_multiple_of(64);
    (index, (index + fragments * FRAGMENT_ENTRY_LEN + closings * CLOSING_LEN).next_multiple_of(BLOCK_ALIGN))
}

const _: () = assert!(BLOCK_HEADER_LEN == HEADER_LEN, "the first record follows the block header without a gap");

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn example() -> BlockHeader {
        BlockHeader {
            kind: BlockKind::Data,
            run: RunNumber(42),
            builder: 1,
            block: 0x0102_0304_0506_0708,
            length: 8192,
            records_end: 4160,
            index_offset: 4160,
            fragments: 3,
            closings: 2,
            written: TaiNanos(1_795_289_737_000_000_000),
            body_crc: 0x1234_5678,
        }
    }

    /// The bytes are the contract with readers in other languages: version 1 keeps them.
    #[test]
    fn golden_bytes() {
        let header = example().encode();
        let expected = "5457424b010001002a00000001000000080706050403020100200000401000004010000003000000\
                        0200000000000000001aca028126ea1878563412";
        let written = hex(&1_795_289_737_000_000_000u64.to_le_bytes());
        assert_eq!(hex(&header[48..60]), format!("{written}78563412"));
        assert_eq!(hex(&header[..60]), expected.replace(' ', ""));
        assert_eq!(header[60..], crc32c(&header[..60]).to_le_bytes());
        assert_eq!(BlockHeader::decode(&header), Ok(example()));

        let entry = FragmentEntry { event: EventId(0x0102), source: SourceId::new(3, 17), offset: 64 };
        assert_eq!(hex(&entry.encode()), "02010000000000001100030040000000");
        let closing = Closing { first: EventId(7), stride: 2, count: 5, status: EventStatus::Incomplete };
        assert_eq!(hex(&closing.encode()), "0700000000000000020000000000000005000000010000000000000000000000");
        let block = FooterEntry { offset: 4096, block: 1, first: EventId(2), last: EventId(3) };
        assert_eq!(hex(&block.encode()), "0010000000000000010000000000000002000000000000000300000000000000");
    }

    #[test]
    fn a_footer_is_found_from_the_end_and_read_back() {
        let footer = Footer {
            run: RunNumber(1),
            builder: 0,
            next_block: 200,
            offset: 1 << 40,
            written: TaiNanos(5),
            blocks: (0..200).map(|n| FooterEntry::new(n * 4096, n, [])).collect(),
            closings: vec![Closing { first: EventId(0), stride: 1, count: 9, status: EventStatus::Complete }],
        };
        let mut bytes = vec![0xff; footer.encoded_bytes().unwrap()];
        footer.encode_into(&mut bytes);
        assert_eq!(bytes.len(), 8192);
        assert_eq!(hex(&bytes[8176..]), "00000000000100000020000054574654");
        assert_eq!(Trailer::decode(&bytes), Ok(Trailer { offset: 1 << 40, length: 8192 }));
        assert_eq!(Footer::decode(1 << 40, &bytes), Ok(footer));
        assert_eq!(Footer::decode(0, &bytes), Err(FormatError::Trailer));
        bytes[100] ^= 1;
        assert!(matches!(Footer::decode(1 << 40, &bytes), Err(FormatError::BodyCrc { .. })));
    }

    #[test]
    fn set_aside_space_is_told_from_damage() {
        assert_eq!(BlockHeader::decode(&[0; 4096]), Err(FormatError::Blank));
        assert_eq!(BlockHeader::decode(&[0; 63]), Err(FormatError::Short(63)));
        let mut bytes = example().encode();
        bytes[30] ^= 4;
        assert!(matches!(BlockHeader::decode(&bytes), Err(FormatError::HeaderCrc { .. })));
        let impossible = BlockHeader { fragments: 1000, ..example() };
        assert_eq!(BlockHeader::decode(&impossible.encode()), Err(FormatError::Field("fragments")));
    }

    proptest! {
        #[test]
        fn any_header_is_decoded_or_refused(mut bytes: [u8; 32], tail: [u8; 32], valid: bool) {
            let mut header = [0; BLOCK_HEADER_LEN];
            if valid {
                bytes[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
                let kind = 1 + (bytes[6] & 1);
                bytes[4..8].copy_from_slice(&[1, 0, kind, 0]);
            }
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&tail);
            if valid {
                let crc = crc32c(&header[..60]);
                header[60..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(decoded) = BlockHeader::decode(&header) {
                prop_assert_eq!(BlockHeader::decode(&decoded.encode()), Ok(decoded));
                // Tables are looked up in a block that is shorter than its header states.
                prop_assert_eq!(decoded.fragment_entries(&header).len() + decoded.closing_entries(&header).len(), 0);
            }
        }

        #[test]
        fn any_closing_is_decoded_or_refused(bytes: [u8; CLOSING_LEN], event: u64) {
            if let Ok(closing) = Closing::decode(&bytes) {
                prop_assert!(closing.contains_event(closing.first) && closing.contains_event(closing.last_event()));
                let _ = closing.contains_event(EventId(event));
                prop_assert_eq!(Closing::decode(&closing.encode()), Ok(closing));
            }
        }

        #[test]
        fn joined_closings_name_the_same_events(pieces in proptest::collection::vec((0u64..30, 1u64..3, 1u32..5), 1..20)) {
            let pieces: Vec<Closing> = pieces
                .into_iter()
                .map(|(first, stride, count)| Closing { first: EventId(first), stride, count, status: EventStatus::Complete })
                .collect();
            let mut joined: Vec<Closing> = Vec::new();
            for piece in &pieces {
                if !joined.last_mut().is_some_and(|last| last.merge_next(piece)) {
                    joined.push(*piece);
                }
            }
            let list = |closings: Vec<Closing>| closings.into_iter().flat_map(Closing::event_numbers).collect::<Vec<_>>();
            prop_assert_eq!(list(joined), list(pieces));
        }
    }
}
