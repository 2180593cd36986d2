//! Slots: the buffers a device writes into, reused hottest first.

use crate::dma_buf::{DmaBuf, Maker};
use crate::{Arena, ArenaError, PAGE_BYTES, Span};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Space in bytes before a slot's first fragment header, for the headers of lower protocols.
pub const SLOT_HEADROOM_BYTES: usize = PAGE_BYTES - 64;

/// A buffer of a source's arena. It begins 64 bytes before a page boundary, so that the payload after the first
/// fragment header is page-aligned for a device that writes by DMA.
#[derive(Debug)]
pub struct Slot {
    index: u32,
    span: Span,
    dma_buf: Option<DmaBuf>,
}

impl Slot {
    /// Returns the index of the slot in the pool.
    pub fn slot_index(&self) -> u32 {
        self.index
    }

    /// Returns the arena that contains the slot.
    pub fn arena(&self) -> &Arc<Arena> {
        self.span.arena()
    }

    /// Returns the offset of the slot's first byte in the arena.
    pub fn arena_offset(&self) -> usize {
        self.span.arena_offset()
    }

    /// Returns the part after the first fragment header as a buffer for a kernel driver to write to; `None` unless the
    /// pool was made [for drivers](SlotPool::with_dma_bufs).
    pub fn dma_buf(&mut self) -> Option<&mut DmaBuf> {
        self.dma_buf.as_mut()
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.span
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.span
    }
}

/// Pool of all slots of a source.
#[derive(Debug)]
pub struct SlotPool {
    arena: Arc<Arena>,
    free: Vec<Slot>,
    count: u32,
    slot_bytes: usize,
}

impl SlotPool {
    /// Creates an arena with `count` slots of `slot_bytes` each.
    ///
    /// # Errors
    /// As [`Arena::create`], for all slots together.
    pub fn new(name: &str, count: u32, slot_bytes: usize) -> Result<Self, ArenaError> {
        let layout = Layout::for_slots(count, slot_bytes)?;
        Ok(layout.cut_into_slots(Arena::create(name, layout.total)?, (0..count).map(|_| None)))
    }

    /// Like [`new`](Self::new), with a DMA buffer for each slot.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ArenaError::DmaBuf`] if the kernel cannot make them, or none of this length, or this
    /// process has too many open files.
    pub fn with_dma_bufs(name: &str, count: u32, slot_bytes: usize) -> Result<Self, ArenaError> {
        let layout = Layout::for_slots(count, slot_bytes)?;
        let bytes = layout.stride - PAGE_BYTES;
        let (whole, all): (_, Vec<DmaBuf>) = Arena::create_with(name, layout.total, |memory| {
            let made = Maker::open_udmabuf().and_then(|maker| {
                (0..count as usize)
                    .map(|slot| maker.make_dma_buf(memory, slot * layout.stride + PAGE_BYTES, bytes))
                    .collect()
            });
            made.map_err(|error| ArenaError::DmaBuf { bytes, error })
        })?;
        Ok(layout.cut_into_slots(whole, all.into_iter().map(Some)))
    }

    /// Returns a free slot, the one given back last, whose lines are still in the cache; `None` if none is free.
    pub fn take_slot(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Returns a free slot for which `wanted` is true, or else the one given back last; `None` if none is free.
    pub fn take_preferred_slot(&mut self, wanted: impl Fn(u32) -> bool) -> Option<Slot> {
        match self.free.iter().rposition(|slot| wanted(slot.index)) {
            Some(at) => Some(self.free.remove(at)),
            None => self.free.pop(),
        }
    }

    /// Makes a slot free again.
    pub fn return_slot(&mut self, slot: Slot) {
        debug_assert!(Arc::ptr_eq(slot.span.arena(), &self.arena), "slot of another pool");
        self.free.push(slot);
    }

    /// Returns the number of free slots.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of slots.
    pub fn slot_count(&self) -> u32 {
        self.count
    }

    /// Returns the length of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the arena that contains the slots.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

/// Layout of slots in an arena.
#[derive(Debug, Clone, Copy)]
struct Layout {
    count: u32,
    slot_bytes: usize,
    /// Distance from one slot to the next in bytes: whole pages.
    stride: usize,
    total: usize,
}

impl Layout {
    fn for_slots(count: u32, slot_bytes: usize) -> Result<Self, ArenaError> {
        let stride =
            slot_bytes.checked_add(SLOT_HEADROOM_BYTES).and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let sizes = stride.and_then(|stride| Some((stride, stride.checked_mul(count as usize)?)));
        let (stride, total) = sizes.ok_or(ArenaError::Size(usize::MAX))?;
        Ok(Self { count, slot_bytes, stride, total })
    }

    fn cut_into_slots(self, mut rest: Span, dma_bufs: impl Iterator<Item = Option<DmaBuf>>) -> SlotPool {
        let Self { count, slot_bytes, stride, .. } = self;
        let arena = Arc::clone(rest.arena());
        let slots = (0..count).zip(dma_bufs).map(|(index, dma_buf)| {
            let mut whole = rest.take_front(stride);
            let _headroom = whole.take_front(SLOT_HEADROOM_BYTES);
            Slot { index, span: whole.take_front(slot_bytes), dma_buf }
        });
        let mut free: Vec<Slot> = slots.collect();
        free.reverse();
        SlotPool { arena, free, count, slot_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;
    use std::os::fd::AsFd;

    #[test]
    fn the_hottest_slot_comes_first() {
        let mut pool = SlotPool::new("test", 3, 1000).unwrap();
        let (a, b) = (pool.take_slot().unwrap(), pool.take_slot().unwrap());
        assert_eq!((a.slot_index(), b.slot_index()), (0, 1));
        pool.return_slot(b);
        pool.return_slot(a);
        assert_eq!(pool.take_slot().unwrap().slot_index(), 0);
        assert_eq!(pool.take_preferred_slot(|index| index == 2).unwrap().slot_index(), 2);
        assert_eq!(pool.take_preferred_slot(|index| index == 2).unwrap().slot_index(), 1);
        assert!(pool.take_slot().is_none());
    }

    /// If udmabuf is not available, the error reports it; if it is, a driver that has the descriptor has the slot's
    /// pages.
    #[test]
    fn what_drivers_write_to_is_the_slot() {
        let made = SlotPool::with_dma_bufs("test", 3, 5000);
        if let Err(error) = DmaBuf::probe_support() {
            assert!(
                matches!(&made, Err(ArenaError::DmaBuf { error: found, bytes: 8192 }) if *found == error),
                "{made:?}"
            );
            thalweg_testing::skip::skipped(format!("/dev/udmabuf: {error}"));
            return;
        }
        let mut pool = made.unwrap();
        for mark in [1, 2] {
            let mut slot = pool.take_slot().unwrap();
            slot[64..].fill(mark);
            let dma_buf = slot.dma_buf().unwrap();
            let length = dma_buf.length_bytes();
            dma_buf.begin_reading().unwrap();
            let seen = MmapOptions::new().len(length).map_raw_read_only(&dma_buf.as_fd()).unwrap();
            // SAFETY: the mapping is as long, and nothing writes there meanwhile.
            let seen = unsafe { std::slice::from_raw_parts(seen.as_ptr(), 5000 - 64) };
            assert!(seen.iter().all(|byte| *byte == mark));
            dma_buf.end_reading().unwrap();
        }
    }

    #[test]
    fn payloads_are_page_aligned_and_slots_apart() {
        let mut pool = SlotPool::new("test", 4, 5000).unwrap();
        let mut slots: Vec<Slot> = std::iter::from_fn(|| pool.take_slot()).collect();
        for slot in &mut slots {
            assert_eq!((slot.arena_offset() + 64) % PAGE_BYTES, 0);
            assert!(slot.arena_offset() % PAGE_BYTES >= 128);
            let mark = slot.slot_index() as u8;
            slot.fill(mark);
        }
        assert!(slots.iter().all(|slot| slot.iter().all(|byte| u32::from(*byte) == slot.slot_index())));
    }
}
