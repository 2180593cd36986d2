//! Slots: the buffers a device writes into, reused hottest first.

use crate::{Arena, ArenaError, PAGE, Span};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes in front of a slot's first fragment header, for the headers of the protocols below.
pub const HEADROOM: usize = PAGE - 64;

/// One buffer. It begins 64 bytes in front of a page boundary, so that the payload behind the first fragment header is
/// page-aligned for a device that writes by DMA.
#[derive(Debug)]
pub struct Slot {
    index: u32,
    span: Span,
}

impl Slot {
    /// Its number in the pool.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The arena that it lies in.
    pub fn arena(&self) -> &Arc<Arena> {
        self.span.arena()
    }

    /// Where its first byte lies in the arena.
    pub fn offset(&self) -> usize {
        self.span.offset()
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

/// All slots of a source.
#[derive(Debug)]
pub struct SlotPool {
    arena: Arc<Arena>,
    free: Vec<Slot>,
    count: u32,
    slot_bytes: usize,
}

impl SlotPool {
    /// Makes an arena with `count` slots of `slot_bytes` each.
    ///
    /// # Errors
    /// As [`Arena::create`], for all slots together.
    pub fn new(name: &str, count: u32, slot_bytes: usize) -> Result<Self, ArenaError> {
        let stride = slot_bytes.checked_add(HEADROOM).and_then(|n| n.checked_next_multiple_of(PAGE));
        let total = stride.and_then(|stride| stride.checked_mul(count as usize)).ok_or(ArenaError::Size(usize::MAX))?;
        let mut rest = Arena::create(name, total)?;
        let arena = Arc::clone(rest.arena());
        let stride = total / (count as usize).max(1);
        let mut free: Vec<Slot> = (0..count)
            .map(|index| {
                let mut whole = rest.take_front(stride);
                let _headroom = whole.take_front(HEADROOM);
                Slot { index, span: whole.take_front(slot_bytes) }
            })
            .collect();
        free.reverse();
        Ok(Self { arena, free, count, slot_bytes })
    }

    /// A free slot: the one given back last, whose lines are still in the cache.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// A free slot for which `wanted` is true, or else the one given back last.
    pub fn take_preferred(&mut self, wanted: impl Fn(u32) -> bool) -> Option<Slot> {
        match self.free.iter().rposition(|slot| wanted(slot.index)) {
            Some(at) => Some(self.free.remove(at)),
            None => self.free.pop(),
        }
    }

    /// Makes a slot free again.
    pub fn give_back(&mut self, slot: Slot) {
        debug_assert!(Arc::ptr_eq(slot.span.arena(), &self.arena), "slot of another pool");
        self.free.push(slot);
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes in each.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The arena they lie in.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_slot_comes_first() {
        let mut pool = SlotPool::new("test", 3, 1000).unwrap();
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((a.index(), b.index()), (0, 1));
        pool.give_back(b);
        pool.give_back(a);
        assert_eq!(pool.take().unwrap().index(), 0);
        assert_eq!(pool.take_preferred(|index| index == 2).unwrap().index(), 2);
        assert_eq!(pool.take_preferred(|index| index == 2).unwrap().index(), 1);
        assert!(pool.take().is_none());
    }

    #[test]
    fn payloads_are_page_aligned_and_slots_apart() {
        let mut pool = SlotPool::new("test", 4, 5000).unwrap();
        let mut slots: Vec<Slot> = std::iter::from_fn(|| pool.take()).collect();
        for slot in &mut slots {
            assert_eq!((slot.offset() + 64) % PAGE, 0);
            assert!(slot.offset() % PAGE >= 128);
            let mark = slot.index() as u8;
            slot.fill(mark);
        }
        assert!(slots.iter().all(|slot| slot.iter().all(|byte| u32::from(*byte) == slot.index())));
    }
}
