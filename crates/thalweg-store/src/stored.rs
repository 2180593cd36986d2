//! A data block of a run, read on demand: mapped, or fetched.

use crate::event::ReadBlock;
use crate::files::SegmentFile;
use crate::format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FooterEntry, FormatError, MAX_BLOCK_LEN};
use crate::walk::Expected;
use crate::{Mapping, RunInfo, StoreError};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use thalweg_wire::EventId;

/// A data block of a run. Its bytes are mapped or fetched when they are used.
#[derive(Debug)]
pub struct StoredBlock {
    number: u64,
    bytes: Bytes,
    offset: u64,
    first: EventId,
    last: EventId,
    /// True once its body was compared with its CRC.
    checked: AtomicBool,
    /// True once the disk was asked to read it ahead; for a block elsewhere, while it is being fetched ahead.
    prefetched: AtomicBool,
}

#[derive(Debug)]
enum Bytes {
    Here(Arc<Mapping>),
    Elsewhere {
        file: Arc<SegmentFile>,
        /// Offset of the next block in the file, in bytes.
        end: u64,
        /// Bytes that were fetched of the block, as long as they are in use. Locked during the fetch.
        fetched: Mutex<Weak<Mapping>>,
    },
}

impl StoredBlock {
    /// Returns a block of a mapped file, as its footer lists it.
    pub(crate) fn new_mapped(mapping: Arc<Mapping>, entry: &FooterEntry) -> Self {
        Self::with_bytes(Bytes::Here(mapping), entry, false)
    }

    /// As [`new_mapped`](Self::new_mapped), for a block that was read and checked already.
    pub(crate) fn new_checked(mapping: Arc<Mapping>, entry: &FooterEntry) -> Self {
        Self::with_bytes(Bytes::Here(mapping), entry, true)
    }

    /// Returns a block of a file that is elsewhere; the block ends at byte `end`.
    pub(crate) fn new_remote(file: &Arc<SegmentFile>, entry: &FooterEntry, end: u64) -> Self {
        Self::with_bytes(Bytes::Elsewhere { file: Arc::clone(file), end, fetched: Mutex::default() }, entry, false)
    }

    fn with_bytes(bytes: Bytes, entry: &FooterEntry, is_read: bool) -> Self {
        Self {
            number: entry.block,
            bytes,
            offset: entry.offset,
            first: entry.first,
            last: entry.last,
            checked: AtomicBool::new(is_read),
            prefetched: AtomicBool::new(is_read),
        }
    }

    /// Returns the number of the block.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the path of the file that contains the block.
    pub fn file_path(&self) -> &Path {
        match &self.bytes {
            Bytes::Here(mapping) => mapping.file_path(),
            Bytes::Elsewhere { file, .. } => file.file_path(),
        }
    }

    /// Returns the offset of the block in the file, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.offset
    }

    /// Returns the lowest and highest event of the block according to the segment's footer.
    pub(crate) fn event_range(&self) -> (EventId, EventId) {
        (self.first, self.last)
    }

    /// Returns whether the caller should begin to fetch the block ahead of its use; if so, the caller calls
    /// [`end_fetch_ahead`](Self::end_fetch_ahead) afterwards.
    pub(crate) fn begin_fetch_ahead(&self) -> bool {
        matches!(self.bytes, Bytes::Elsewhere { .. }) && !self.prefetched.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_fetch_ahead(&self) {
        self.prefetched.store(false, Ordering::Relaxed);
    }

    /// Returns the block after checking header and body against their CRCs; the body only the first time, or whenever
    /// it was fetched.
    ///
    /// # Errors
    /// [`StoreError::Format`] if the block is damaged, or is another block than expected; others if it cannot be
    /// fetched.
    pub fn read_checked(&self, info: &RunInfo) -> Result<ReadBlock, StoreError> {
        let mapping = self.load_mapping()?;
        match self.check_bytes(&mapping, info) {
            Ok(header) => Ok(ReadBlock { mapping, offset: self.offset, header }),
            Err(error) => Err(StoreError::Format { path: self.file_path().to_owned(), offset: self.offset, error }),
        }
    }

    fn load_mapping(&self) -> Result<Arc<Mapping>, StoreError> {
        let (file, end, fetched) = match &self.bytes {
            Bytes::Here(mapping) => return Ok(Arc::clone(mapping)),
            Bytes::Elsewhere { file, end, fetched } => (file, end, fetched),
        };
        let mut fetched = fetched.lock();
        if let Some(mapping) = fetched.upgrade() {
            return Ok(mapping);
        }
        let length = usize::try_from(end.saturating_sub(self.offset)).unwrap_or(usize::MAX).min(MAX_BLOCK_LEN);
        let mut bytes = vec![0; length];
        let filled =
            file.read_up_to(&mut bytes, self.offset).map_err(StoreError::io_error("reading", file.file_path()))?;
        bytes.truncate(filled);
        let mapping = Mapping::from_fetched_bytes(Arc::clone(file.file_path()), self.offset, bytes);
        // No user of the bytes fetched earlier is left: the new bytes may differ.
        self.forget_check();
        *fetched = Arc::downgrade(&mapping);
        Ok(mapping)
    }

    fn check_bytes(&self, mapping: &Mapping, info: &RunInfo) -> Result<BlockHeader, FormatError> {
        let available = mapping.confirmed_end().saturating_sub(self.offset);
        let header_end = self.offset + BLOCK_HEADER_LEN as u64;
        let header = BlockHeader::decode(mapping.bytes_in_range(self.offset..header_end).unwrap_or_default())?;
        Expected { run: info.run, builder: info.builder, block: self.number }.check_header(&header)?;
        if header.kind != BlockKind::Data {
            return Err(FormatError::Kind(2));
        }
        let range = self.offset..self.offset + u64::from(header.length);
        let bytes = mapping.bytes_in_range(range).ok_or(FormatError::CutOff { length: header.length, available })?;
        if !self.checked.load(Ordering::Relaxed) {
            header.check_body_crc(bytes)?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(header)
    }

    /// Lets the disk begin to read the block, if it is local and was not read yet.
    pub(crate) fn prefetch_bytes(&self, length: u64) {
        if let (Bytes::Here(mapping), false) = (&self.bytes, self.prefetched.swap(true, Ordering::Relaxed)) {
            mapping.prefetch_range(self.offset..self.offset.saturating_add(length));
        }
    }

    /// Makes the next [`read_checked`](Self::read_checked) compare the body with its CRC again.
    pub(crate) fn forget_check(&self) {
        self.checked.store(false, Ordering::Relaxed);
    }
}
