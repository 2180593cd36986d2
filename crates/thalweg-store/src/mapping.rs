//! A segment file in memory, for reading without copying.

use memmap2::{Advice, Mmap, MmapOptions};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A segment file, mapped for reading; or a fetched part of one that is elsewhere. It is shared by everything that was
/// read from it, and released with the last user.
///
/// Only bytes up to the end of the whole blocks seen in the file are handed out. If the file is cut off afterwards, a
/// process that reads it dies of SIGBUS: runs are append-only, and Thalweg itself never shortens a file below the end
/// of its last block.
pub struct Mapping {
    memory: Memory,
    /// Offset in the file at which the memory begins.
    start: u64,
    path: Arc<Path>,
    /// Offset in the file up to which there are bytes to read; a mapping may be longer than the file.
    confirmed: AtomicU64,
}

enum Memory {
    Mapped(Mmap),
    Fetched(Vec<u8>),
}

impl Mapping {
    /// Maps a file of which `confirmed` bytes are known to exist, with room for it to grow to `reserve` bytes.
    pub(crate) fn new(file: &File, path: Arc<Path>, confirmed: u64, reserve: u64) -> io::Result<Arc<Self>> {
        let length = usize::try_from(confirmed.max(reserve).max(1)).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: the mapping is read-only. Only bytes below `confirmed` are read, which the file has; the type's
        // documentation describes what happens to a reader whose file is cut off. A process that writes to the file
        // meanwhile can change the bytes that are read, never their position: every length is checked in the copy that
        // is then used.
        let map = unsafe { MmapOptions::new().len(length).map(file) }?;
        Ok(Arc::new(Self { memory: Memory::Mapped(map), start: 0, path, confirmed: AtomicU64::new(confirmed) }))
    }

    /// Wraps bytes of a file that is elsewhere, fetched from offset `start` on.
    pub(crate) fn from_fetched_bytes(path: Arc<Path>, start: u64, bytes: Vec<u8>) -> Arc<Self> {
        let confirmed = AtomicU64::new(start.saturating_add(bytes.len() as u64));
        Arc::new(Self { memory: Memory::Fetched(bytes), start, path, confirmed })
    }

    /// Returns the path of the file.
    pub fn file_path(&self) -> &Path {
        &self.path
    }

    /// Returns these bytes of the file; `None` if it does not have them.
    #[inline]
    pub fn bytes_in_range(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.end > self.confirmed.load(Ordering::Acquire) {
            return None;
        }
        let from = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        match &self.memory {
            Memory::Mapped(map) => map.get(from..to),
            Memory::Fetched(bytes) => bytes.get(from..to),
        }
    }

    /// Lets the disk begin to read these bytes, all at once instead of page by page as they are accessed.
    pub(crate) fn prefetch_range(&self, range: Range<u64>) {
        let Memory::Mapped(map) = &self.memory else { return };
        let end = range.end.min(self.confirmed_end());
        if let (Ok(start), Ok(length)) =
            (usize::try_from(range.start), usize::try_from(end.saturating_sub(range.start)))
        {
            // Advice only: reading works without it.
            let _ = map.advise_range(Advice::WillNeed, start, length);
        }
    }

    /// Returns the offset in the file up to which there are bytes to read.
    pub(crate) fn confirmed_end(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Returns the number of bytes of memory of its own: a mapping uses only the page cache.
    pub(crate) fn owned_bytes(&self) -> usize {
        match &self.memory {
            Memory::Mapped(_) => 0,
            Memory::Fetched(bytes) => bytes.len(),
        }
    }

    /// Notes that the file has grown to `size` bytes; returns false if the mapping does not reach that far.
    pub(crate) fn confirm_length(&self, size: u64) -> bool {
        let fits = matches!(&self.memory, Memory::Mapped(map) if size <= map.len() as u64);
        if fits {
            self.confirmed.fetch_max(size, Ordering::AcqRel);
        }
        fits
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping(bytes {} to {} of {})", self.start, self.confirmed_end(), self.path.display())
    }
}
