//! A data block of a run, until it is used and then: mapped, or fetched.

use crate::event::ReadBlock;
use crate::files::SegmentFile;
use crate::format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FooterEntry, FormatError, MAX_BLOCK_LEN};
use crate::walk::Expected;
use crate::{Mapping, RunInfo, StoreError};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use thalweg_wire::EventId;

/// A data block of a run.
#[derive(Debug)]
pub struct StoredBlock {
    number: u64,
    bytes: Bytes,
    offset: u64,
    first: EventId,
    last: EventId,
    /// Whether its body was compared with its CRC.
    checked: AtomicBool,
    /// Whether the disk was told to read it; of a block elsewhere, whether it is being fetched ahead.
    prefetched: AtomicBool,
}

#[derive(Debug)]
enum Bytes {
    Here(Arc<Mapping>),
    Elsewhere {
        file: Arc<SegmentFile>,
        /// Where in the file the next block begins.
        end: u64,
        /// What was fetched of it, for as long as anybody uses it. Locked while it is fetched.
        fetched: Mutex<Weak<Mapping>>,
    },
}

impl StoredBlock {
    /// A block of a file that is mapped, as its footer lists it.
    pub(crate) fn new(mapping: Arc<Mapping>, entry: &FooterEntry) -> Self {
        Self::of(Bytes::Here(mapping), entry, false)
    }

    /// The same, where it was read and checked already.
    pub(crate) fn checked(mapping: Arc<Mapping>, entry: &FooterEntry) -> Self {
        Self::of(Bytes::Here(mapping), entry, true)
    }

    /// A block of a file that is elsewhere, which ends at byte `end`.
    pub(crate) fn elsewhere(file: &Arc<SegmentFile>, entry: &FooterEntry, end: u64) -> Self {
        Self::of(Bytes::Elsewhere { file: Arc::clone(file), end, fetched: Mutex::default() }, entry, false)
    }

    fn of(bytes: Bytes, entry: &FooterEntry, is_read: bool) -> Self {
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

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file it is in.
    pub fn path(&self) -> &Path {
        match &self.bytes {
            Bytes::Here(mapping) => mapping.path(),
            Bytes::Elsewhere { file, .. } => file.path(),
        }
    }

    /// Where in the file it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The lowest and highest event that the segment's footer says it has.
    pub(crate) fn range(&self) -> (EventId, EventId) {
        (self.first, self.last)
    }

    /// Whether somebody should begin to fetch it ahead of its use; then [`fetched_ahead`](Self::fetched_ahead) is
    /// called afterwards.
    pub(crate) fn to_fetch_ahead(&self) -> bool {
        matches!(self.bytes, Bytes::Elsewhere { .. }) && !self.prefetched.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn fetched_ahead(&self) {
        self.prefetched.store(false, Ordering::Relaxed);
    }

    /// The block, header and body checked against their CRCs; the body only the first time, or whenever it was fetched.
    ///
    /// # Errors
    /// [`StoreError::Format`] where it is damaged, or is another block than it should be; others where it cannot be
    /// fetched.
    pub fn read(&self, info: &RunInfo) -> Result<ReadBlock, StoreError> {
        let mapping = self.mapping()?;
        match self.check(&mapping, info) {
            Ok(header) => Ok(ReadBlock { mapping, offset: self.offset, header }),
            Err(error) => Err(StoreError::Format { path: self.path().to_owned(), offset: self.offset, error }),
        }
    }

    fn mapping(&self) -> Result<Arc<Mapping>, StoreError> {
        let (file, end, fetched) = match &self.bytes {
            Bytes::Here(mapping) => return Ok(Arc::clone(mapping)),
            Bytes::Elsewhere { file, end, fetched } => (file, end, fetched),
        };
        let mut fetched = fetched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = fetched.upgrade() {
            return Ok(mapping);
        }
        let length = usize::try_from(end.saturating_sub(self.offset)).unwrap_or(usize::MAX).min(MAX_BLOCK_LEN);
        let mut bytes = vec![0; length];
        let there = file.read_up_to(&mut bytes, self.offset).map_err(StoreError::io("reading", file.path()))?;
        bytes.truncate(there);
        let mapping = Mapping::fetched(Arc::clone(file.path()), self.offset, bytes);
        // Nobody holds what was fetched before: other bytes came now.
        self.forget_check();
        *fetched = Arc::downgrade(&mapping);
        Ok(mapping)
    }

    fn check(&self, mapping: &Mapping, info: &RunInfo) -> Result<BlockHeader, FormatError> {
        let available = mapping.end().saturating_sub(self.offset);
        let header_end = self.offset + BLOCK_HEADER_LEN as u64;
        let header = BlockHeader::decode(mapping.bytes(self.offset..header_end).unwrap_or_default())?;
        Expected { run: info.run, builder: info.builder, block: self.number }.check(&header)?;
        if header.kind != BlockKind::Data {
            return Err(FormatError::Kind(2));
        }
        let range = self.offset..self.offset + u64::from(header.length);
        let bytes = mapping.bytes(range).ok_or(FormatError::CutOff { length: header.length, available })?;
        if !self.checked.load(Ordering::Relaxed) {
            header.check_body(bytes)?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(header)
    }

    /// Has the disk begin to read it, where it is here and was not read yet.
    pub(crate) fn prefetch(&self, length: u64) {
        if let (Bytes::Here(mapping), false) = (&self.bytes, self.prefetched.swap(true, Ordering::Relaxed)) {
            mapping.prefetch(self.offset..self.offset.saturating_add(length));
        }
    }

    /// Has the body compared with its CRC again at the next [`read`](Self::read).
    pub(crate) fn forget_check(&self) {
        self.checked.store(false, Ordering::Relaxed);
    }
}
