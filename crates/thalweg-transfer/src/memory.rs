//! Page-aligned memory for reading past the page cache.

use memmap2::MmapMut;
use std::io;

/// Memory in slots of equal size, each beginning at a page.
#[derive(Debug)]
pub(crate) struct Slots {
    memory: MmapMut,
    slot: usize,
}

impl Slots {
    pub(crate) fn new(count: usize, slot: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(count * slot)?;
        // Fewer faults and shorter page lists. Only advice.
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(Self { memory, slot })
    }

    pub(crate) fn count(&self) -> usize {
        self.memory.len() / self.slot
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot
    }

    pub(crate) fn slot(&mut self, number: usize) -> &mut [u8] {
        &mut self.memory[number * self.slot..][..self.slot]
    }

    pub(crate) fn vectors(&mut self) -> Vec<libc::iovec> {
        let each = self.memory.chunks_mut(self.slot);
        each.map(|slot| libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() }).collect()
    }
}
