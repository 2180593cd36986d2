//! The memory that holds frames (UMEM): chunks of the sockets' own, followed by the arenas, in one range of addresses,
//! since the kernel takes one range only (`XDP_UMEM_REG`).
//!
//! # Why this is sound
//!
//! The range is reserved as a whole and belongs to this value alone. Its first part is private memory, divided into
//! chunks. A chunk is reached through a slice only while it belongs to this process: a chunk for sending between being
//! taken from the free ones and being written to the ring for sending, a chunk for receiving between being read from
//! the ring for receiving and being written to the ring of free ones. The sockets keep account of the chunks and pass
//! on the right to one by `&mut` (see `socket.rs`).
//!
//! After the chunks the arenas are mapped a second time. No slice of that part is ever made: the kernel reads the
//! places that descriptors name, and writes nothing there, since no address there is ever given to it to fill.

use crate::FramesError;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use thalweg_arena::{Arena, Piece, Registration};

/// Size of a chunk, in bytes: a page, the most that every kernel takes (`xdp_umem_reg` in net/xdp/xdp_umem.c). A
/// descriptor must not reach from one into the next.
pub(super) const CHUNK_BYTES: usize = 4096;
/// Maximum number of arenas that are remembered.
const MAX_KNOWN_ARENAS: usize = 256;
/// Size of a huge page, in bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A range of memory for frames.
#[derive(Debug)]
pub(super) struct Umem {
    /// Reserved memory, and (`start`) the part in it that is used, aligned to huge pages.
    reserved: (NonNull<c_void>, usize),
    start: NonNull<u8>,
    chunks: u32,
    bytes: usize,
    pieces: Vec<Mapped>,
    /// Positions of the arenas that were looked up before; `None` for those that are not in the range.
    known: Vec<(Weak<Arena>, Option<usize>)>,
}

/// An arena in the range.
#[derive(Debug)]
struct Mapped {
    arena: Arc<Arena>,
    /// Offset of its beginning from the start of the range.
    at: usize,
    _noted: Registration,
}

// SAFETY: the range belongs to this value alone and is the same for every thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Reserves a range with `chunks` chunks, and these arenas.
    pub(super) fn new(chunks: u32, arenas: &[Arc<Arena>]) -> Result<Self, FramesError> {
        let doing = "reserving memory for frames";
        // Arenas are whole huge pages; so each begins at the start of one.
        let private = (chunks as usize * CHUNK_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        let bytes =
            private + arenas.iter().map(|arena| arena.size_bytes().next_multiple_of(HUGE_PAGE_BYTES)).sum::<usize>();
        // SAFETY: a new mapping somewhere, which touches no other.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes + HUGE_PAGE_BYTES,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(FramesError::from_system_call(doing))?;
        let reserved =
            NonNull::new(reserved).ok_or_else(|| FramesError { doing: doing.into(), error: Errno::NOMEM.into() })?;
        let padding = reserved.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: less than a huge page further, and that much was reserved beyond the used part.
        let start = unsafe { reserved.byte_add(padding) }.cast::<u8>();
        // From here on the range is unmapped again if something fails.
        let mut umem = Self {
            reserved: (reserved, bytes + HUGE_PAGE_BYTES),
            start,
            chunks,
            bytes,
            pieces: Vec::new(),
            known: Vec::new(),
        };
        // SAFETY: the private part of the range, of which there are no slices yet.
        unsafe { mprotect(start.as_ptr().cast(), private, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(FramesError::from_system_call(doing))?;
        let mut at = private;
        for arena in arenas {
            // SAFETY: inside the range: it is as long as its private part and all arenas.
            let place = unsafe { start.add(at) };
            // SAFETY: a part of the range that is used for nothing else, as long as the arena. Nothing is written
            // there, see above.
            let mapped = unsafe { arena.map_again(place.as_ptr()) };
            mapped.map_err(FramesError::from_system_call("mapping an arena into the memory for frames"))?;
            umem.pieces.push(Mapped { arena: Arc::clone(arena), at, _noted: arena.record_registration("AF_XDP") });
            at += arena.size_bytes().next_multiple_of(HUGE_PAGE_BYTES);
        }
        Ok(umem)
    }

    /// Returns the description of the range for the kernel.
    pub(super) fn kernel_description(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.start.as_ptr() as u64,
            len: self.bytes as u64,
            chunk_size: CHUNK_BYTES as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Returns the bytes of a chunk that belongs to this process at the moment.
    ///
    /// # Safety
    /// The kernel has no descriptor of the chunk, and there is no other slice of it.
    pub(super) unsafe fn chunk_bytes(&mut self, number: u32) -> &mut [u8] {
        assert!(number < self.chunks, "chunk {number} of {}", self.chunks);
        // SAFETY: inside the private part, see above.
        let start = unsafe { self.start.add(number as usize * CHUNK_BYTES) };
        // SAFETY: private memory is initialised (zeros), and the caller guarantees that nothing else touches this
        // chunk.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), CHUNK_BYTES) }
    }

    /// Returns the offset of a piece in the range, or `None` if its arena is not in it.
    pub(super) fn piece_offset(&mut self, piece: Piece<'_>) -> Option<usize> {
        let arena = piece.arena();
        let known = self.known.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(arena)));
        let at = match known {
            Some((_, at)) => *at,
            None => self.learn_arena_offset(arena),
        };
        Some(at? + piece.arena_offset())
    }

    /// Looks up an arena that is not known yet: it may be the memory of one in the range, mapped once more. Two system
    /// calls find out.
    fn learn_arena_offset(&mut self, arena: &Arc<Arena>) -> Option<usize> {
        let at = self.pieces.iter().find(|mapped| mapped.arena.is_same_memory(arena)).map(|mapped| mapped.at);
        self.known.retain(|(known, _)| known.strong_count() > 0);
        if self.known.len() < MAX_KNOWN_ARENAS {
            self.known.push((Arc::downgrade(arena), at));
        }
        at
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        let (start, bytes) = self.reserved;
        // SAFETY: the memory that was reserved in `new`, of which no slice is left. The kernel keeps the pages as long
        // as it needs them.
        let unmapped = unsafe { munmap(start.as_ptr(), bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
