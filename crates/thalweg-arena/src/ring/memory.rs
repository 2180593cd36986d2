//! The memory of a ring: a sealed memfd.
//!
//! ```text
//!    0  magic u64, cells u32
//!  128  sender's index            written by the sender
//!  256  receiver's index          written by the receiver
//!  384  receiver waits            set by the receiver, cleared by the sender
//!  512  sender waits              set by the sender, cleared by the receiver
//! 4096  cells, 64 bytes each
//! ```
//!
//! Each word has 128 bytes to itself: x86 fetches lines in pairs (Intel 64 and IA-32 Architectures Optimization
//! Reference Manual, "Spatial prefetcher"), and some arm64 cores have lines of that length. The flags are separate from
//! the indices, so that reading a flag that rarely changes hits the cache.

use super::{CELL_BYTES, MAX_CELLS, RingSetupError};
use crate::PAGE_BYTES;
use crate::arena::errno_from_io;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of a ring: `TWRING` and the version of the layout.
const RING_MAGIC: u64 = u64::from_le_bytes(*b"TWRING\x00\x01");

#[repr(C)]
struct Header {
    identity: Line<Identity>,
    tail: Line<AtomicU32>,
    head: Line<AtomicU32>,
    receiver_waits: Line<AtomicU32>,
    sender_waits: Line<AtomicU32>,
}

#[repr(C)]
struct Identity {
    magic: AtomicU64,
    cells: AtomicU32,
}

#[repr(C, align(128))]
struct Line<T>(T);

const _: () = assert!(size_of::<Header>() <= PAGE_BYTES && size_of::<Cell>() == CELL_BYTES);

/// The mapped ring. All bytes of the mapping are only ever reached as atomics: the other process may write them at any
/// time.
pub(super) struct Memory {
    fd: OwnedFd,
    memory: MmapRaw,
    /// Private copy of the count: a power of two, at most `MAX_CELLS`, and the mapping holds that many.
    cells: u32,
}

impl Memory {
    pub(super) fn create(name: &str, cells: u32) -> Result<Self, RingSetupError> {
        check_cell_count(cells)?;
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system_error("memfd_create"))?;
        rustix::fs::ftruncate(&fd, ring_bytes(cells) as u64).map_err(system_error("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(system_error("sealing"))?;
        let memory = Self::map_memory(fd, cells)?;
        memory.shared_header().identity.0.magic.store(RING_MAGIC, Ordering::Relaxed);
        memory.shared_header().identity.0.cells.store(cells, Ordering::Relaxed);
        Ok(memory)
    }

    pub(super) fn import(fd: OwnedFd) -> Result<Self, RingSetupError> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| RingSetupError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RingSetupError::NotSealed);
        }
        let size = rustix::fs::fstat(&fd).map_err(system_error("fstat"))?.st_size;
        let bytes = u64::try_from(size).unwrap_or(0);
        // The count follows from the size, which is sealed and therefore reliable; the header must agree with it. The
        // memory of a ring is never of huge pages, since no valid size is a multiple of theirs; a page that the peer
        // removes is therefore replaced, full of zeros, when it is next accessed.
        let cells = bytes.saturating_sub(PAGE_BYTES as u64) / CELL_BYTES as u64;
        let cells = u32::try_from(cells).map_err(|_| RingSetupError::NotARing { bytes, cells: 0 })?;
        if check_cell_count(cells).is_err() || ring_bytes(cells) as u64 != bytes {
            return Err(RingSetupError::NotARing { bytes, cells: 0 });
        }
        let memory = Self::map_memory(fd, cells)?;
        let identity = &memory.shared_header().identity.0;
        let claimed = identity.cells.load(Ordering::Relaxed);
        if identity.magic.load(Ordering::Relaxed) != RING_MAGIC || claimed != cells {
            return Err(RingSetupError::NotARing { bytes, cells: claimed });
        }
        match memory.head().load(Ordering::Relaxed) {
            0 => {}
            head => return Err(RingSetupError::Used { head }),
        }
        Ok(memory)
    }

    fn map_memory(fd: OwnedFd, cells: u32) -> Result<Self, RingSetupError> {
        let memory = MmapOptions::new()
            .len(ring_bytes(cells))
            .map_raw(&fd)
            .map_err(|error| system_error("mmap")(errno_from_io(&error)))?;
        // Populating changes no content; it reports a lack of memory here instead of by SIGBUS later.
        memory
            .advise(Advice::PopulateWrite)
            .map_err(|error| system_error("allocating memory")(errno_from_io(&error)))?;
        Ok(Self { fd, memory, cells })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn cells(&self) -> u32 {
        self.cells
    }

    pub(super) fn tail(&self) -> &AtomicU32 {
        &self.shared_header().tail.0
    }

    pub(super) fn head(&self) -> &AtomicU32 {
        &self.shared_header().head.0
    }

    pub(super) fn receiver_waits(&self) -> &AtomicU32 {
        &self.shared_header().receiver_waits.0
    }

    pub(super) fn sender_waits(&self) -> &AtomicU32 {
        &self.shared_header().sender_waits.0
    }

    /// Returns the cell for the free-running `index`.
    #[inline]
    pub(super) fn cell(&self, index: u32) -> &Cell {
        let at = PAGE_BYTES + (index & (self.cells - 1)) as usize * CELL_BYTES;
        // SAFETY: masked with a power of two less one, the index is below `cells`, and the mapping holds that many
        // after its first page.
        let cell = unsafe { self.memory.as_ptr().add(at) };
        // SAFETY: inside the mapping, which cannot shrink (sealed) and lives as long as `self`; aligned to 64, since
        // the mapping is page-aligned; a cell is made of atomics, for which every content is valid.
        unsafe { &*cell.cast() }
    }

    #[inline]
    fn shared_header(&self) -> &Header {
        // SAFETY: the first page of the mapping, which cannot shrink (sealed) and lives as long as `self`;
        // page-aligned; made of atomics, for which every content is valid.
        unsafe { &*self.memory.as_ptr().cast() }
    }
}

/// A cell of 64 bytes that the other process may write while it is read. The indices provide the ordering.
#[repr(C, align(64))]
pub(super) struct Cell([AtomicU64; CELL_BYTES / 8]);

impl Cell {
    #[inline]
    pub(super) fn write(&self, bytes: &[u8; CELL_BYTES]) {
        for (word, bytes) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn read(&self) -> [u8; CELL_BYTES] {
        let mut cell = [0; CELL_BYTES];
        for (word, bytes) in self.0.iter().zip(cell.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        cell
    }
}

fn check_cell_count(cells: u32) -> Result<(), RingSetupError> {
    if cells.is_power_of_two() && cells <= MAX_CELLS { Ok(()) } else { Err(RingSetupError::Cells(cells)) }
}

fn ring_bytes(cells: u32) -> usize {
    PAGE_BYTES + cells as usize * CELL_BYTES
}

fn system_error(doing: &'static str) -> impl Fn(rustix::io::Errno) -> RingSetupError {
    move |error| RingSetupError::Os { doing, error }
}
