//! Page-aligned memory for reading past the page cache.

use memmap2::MmapMut;
use std::io;
use thalweg_sys::uring::{Memory, Ring, divide_into_slots};

/// Returns fresh memory that begins at a page.
pub(crate) fn map_aligned_buffer(bytes: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(bytes)?;
    // Fewer faults and shorter page lists. Only advice.
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// A slot of [`ring_with_slots`].
pub(crate) type Slot = thalweg_sys::uring::Slot<MmapMut>;

/// Returns a ring, and `COUNT` slots of `bytes` bytes each that are registered with it.
pub(crate) fn ring_with_slots<const COUNT: usize>(bytes: usize) -> io::Result<(Ring<Slot>, [Option<Slot>; COUNT])> {
    let mut ring = Ring::new(COUNT as u32)?;
    let mut slots = divide_into_slots(map_aligned_buffer(COUNT * bytes)?, bytes);
    ring.register_memory(&mut slots.iter_mut().map(Memory::as_mut_bytes).collect::<Vec<_>>())?;
    let mut each = slots.into_iter();
    Ok((ring, std::array::from_fn(|_| each.next())))
}
