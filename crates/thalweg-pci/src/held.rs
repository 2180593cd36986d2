//! Pages that stay in place, and their physical addresses: for a device without an IOMMU.

use crate::PciError;
use io_uring::IoUring;
use std::fmt;
use std::sync::Arc;
use thalweg_arena::{Arena, PAGE_BYTES};

/// Maximum length of one registered buffer, in bytes (`io_buffer_validate`, io_uring/rsrc.c).
const MOST: usize = 1 << 30;

/// An arena whose pages the kernel keeps in place until this is dropped.
///
/// Locked pages may still be moved, so they are registered with an io_uring, which holds a long-term reference to each
/// (`FOLL_LONGTERM`, Documentation/core-api/pin_user_pages.rst).
pub struct Held {
    /// Ring that holds the pages; dropped before the arena.
    _ring: IoUring,
    addresses: Box<[u64]>,
    arena: Arc<Arena>,
}

impl Held {
    /// Keeps all pages of an arena in place.
    ///
    /// # Errors
    /// Fails if the kernel does not hold that many pages (`RLIMIT_MEMLOCK`), or does not show their addresses
    /// (`CAP_SYS_ADMIN`).
    pub fn new(arena: &Arc<Arena>) -> Result<Self, PciError> {
        let ring = IoUring::new(1).map_err(PciError::Hold)?;
        let (start, size) = (arena.mapped_range().cast::<u8>().cast_mut(), arena.size_bytes());
        let vectors: Vec<libc::iovec> = (0..size)
            .step_by(MOST)
            .map(|at| libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len: MOST.min(size - at) })
            .collect();
        // SAFETY: the buffers are parts of the arena's mapping, which stays as long as this value does. The ring is
        // never given an operation: nothing is read or written through it.
        unsafe { ring.submitter().register_buffers(&vectors) }.map_err(PciError::Hold)?;
        let list = arena.page_list()?;
        if list.page_bytes() != PAGE_BYTES {
            let problem = format!("the page size is {} bytes, but must be {PAGE_BYTES}", list.page_bytes());
            return Err(PciError::Hold(std::io::Error::other(problem)));
        }
        let addresses = list.page_frames().iter().map(|frame| frame * PAGE_BYTES as u64).collect();
        Ok(Self { _ring: ring, addresses, arena: Arc::clone(arena) })
    }

    /// Returns the physical address of each page of 4 KiB.
    pub fn page_addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Returns the physical address of a range; `None` if it is not contiguous in physical memory.
    pub fn physical_address(&self, offset: usize, length: usize) -> Option<u64> {
        let (first, last) = (offset / PAGE_BYTES, (offset + length.max(1) - 1) / PAGE_BYTES);
        let pages = self.addresses.get(first..=last)?;
        let joined = pages.windows(2).all(|two| two[0] + PAGE_BYTES as u64 == two[1]);
        joined.then(|| pages[0] + (offset % PAGE_BYTES) as u64)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?})", self.arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_testing::skip::skipped;

    #[test]
    fn held_pages_are_where_the_kernel_says() {
        let span = Arena::create("held", 4 << 20).unwrap();
        let held = match Held::new(span.arena()) {
            Err(error @ (PciError::Hold(_) | PciError::Pages(_))) => return skipped(error),
            held => held.unwrap(),
        };
        let addresses = held.page_addresses();
        assert_eq!(addresses.len(), span.len() / PAGE_BYTES);
        assert_eq!(held.physical_address(PAGE_BYTES + 100, 50), Some(addresses[1] + 100));
        assert_eq!(held.physical_address(span.len() - 1, 1), addresses.last().map(|last| last + PAGE_BYTES as u64 - 1));
        assert_eq!(held.physical_address(span.len(), 1), None);
        let neighbours = addresses[0] + PAGE_BYTES as u64 == addresses[1];
        assert_eq!(held.physical_address(PAGE_BYTES - 8, 16).is_some(), neighbours);
    }
}
