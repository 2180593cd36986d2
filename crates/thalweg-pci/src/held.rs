//! Pages that stay where they are, and their physical addresses: for a device that no IOMMU translates for.

use crate::PciError;
use io_uring::IoUring;
use std::fmt;
use std::sync::Arc;
use thalweg_arena::{Arena, PAGE};

/// The most that one registered buffer holds (`io_buffer_validate`, io_uring/rsrc.c).
const MOST: usize = 1 << 30;

/// An arena whose pages the kernel leaves where they are, until this is dropped.
///
/// Locked pages may still be moved, so they are registered with a ring of io_uring's, which holds a long-term reference
/// to each (`FOLL_LONGTERM`, Documentation/core-api/pin_user_pages.rst).
pub struct Held {
    /// Lets go of the pages first.
    _ring: IoUring,
    addresses: Box<[u64]>,
    arena: Arc<Arena>,
}

impl Held {
    /// Keeps all pages of an arena in place.
    ///
    /// # Errors
    /// The kernel does not hold so many (`RLIMIT_MEMLOCK`), or does not tell where they are (`CAP_SYS_ADMIN`).
    pub fn new(arena: &Arc<Arena>) -> Result<Self, PciError> {
        let ring = IoUring::new(1).map_err(PciError::Hold)?;
        let (start, size) = (arena.mapping().cast::<u8>().cast_mut(), arena.size());
        let vectors: Vec<libc::iovec> = (0..size)
            .step_by(MOST)
            .map(|at| libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len: MOST.min(size - at) })
            .collect();
        // SAFETY: parts of the arena's mapping, which stays as long as this does. The ring is never given an operation:
        // nothing is read or written through it.
        unsafe { ring.submitter().register_buffers(&vectors) }.map_err(PciError::Hold)?;
        let list = arena.page_list()?;
        if list.page_bytes() != PAGE {
            let problem = format!("pages have {} bytes here, and {PAGE} are needed", list.page_bytes());
            return Err(PciError::Hold(std::io::Error::other(problem)));
        }
        let addresses = list.frames().iter().map(|frame| frame * PAGE as u64).collect();
        Ok(Self { _ring: ring, addresses, arena: Arc::clone(arena) })
    }

    /// The physical address of each page of 4 KiB.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The physical address of a range that is in one piece there.
    pub fn address(&self, offset: usize, length: usize) -> Option<u64> {
        let (first, last) = (offset / PAGE, (offset + length.max(1) - 1) / PAGE);
        let pages = self.addresses.get(first..=last)?;
        let joined = pages.windows(2).all(|two| two[0] + PAGE as u64 == two[1]);
        joined.then(|| pages[0] + (offset % PAGE) as u64)
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
    use thalweg_skip::skipped;

    #[test]
    fn held_pages_are_where_the_kernel_says() {
        let span = Arena::create("held", 4 << 20).unwrap();
        let held = match Held::new(span.arena()) {
            Err(error @ (PciError::Hold(_) | PciError::Pages(_))) => return skipped(error),
            held => held.unwrap(),
        };
        let addresses = held.addresses();
        assert_eq!(addresses.len(), span.len() / PAGE);
        assert_eq!(held.address(PAGE + 100, 50), Some(addresses[1] + 100));
        assert_eq!(held.address(span.len() - 1, 1), addresses.last().map(|last| last + PAGE as u64 - 1));
        assert_eq!(held.address(span.len(), 1), None);
        let neighbours = addresses[0] + PAGE as u64 == addresses[1];
        assert_eq!(held.address(PAGE - 8, 16).is_some(), neighbours);
    }
}
