//! Places: equal buffers for data that is received and soon released again.

use crate::arena::Lender;
use crate::{Arena, ArenaError, PAGE_BYTES, Span};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pool of places of equal length. Each is lent as a [`Span`], and is free again when that span, and whatever was split
/// off it, has been dropped: it need not be given back.
#[derive(Debug)]
pub struct PlacePool {
    arena: Arc<Arena>,
    /// Offsets of free places; the one that came back last is used next.
    free: Arc<Mutex<Vec<usize>>>,
    place_bytes: usize,
}

impl PlacePool {
    /// Creates an arena with `count` places of `place_bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// As [`Arena::create_local`], for all places together.
    pub fn new(name: &str, count: u32, place_bytes: usize) -> Result<Self, ArenaError> {
        Self::with_created_arena(count, place_bytes, |total| Arena::create_local(name, total))
    }

    /// Like [`new`](Self::new), in memory that another process can [import](Arena::import).
    ///
    /// # Errors
    /// As [`Arena::create`], for all places together.
    pub fn new_shareable(name: &str, count: u32, place_bytes: usize) -> Result<Self, ArenaError> {
        Self::with_created_arena(count, place_bytes, |total| Arena::create(name, total))
    }

    fn with_created_arena(
        count: u32,
        place_bytes: usize,
        create: impl FnOnce(usize) -> Result<Span, ArenaError>,
    ) -> Result<Self, ArenaError> {
        let place_bytes = place_bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(ArenaError::Size(place_bytes))?;
        let total = place_bytes.checked_mul(count as usize).ok_or(ArenaError::Size(usize::MAX))?;
        let arena = Arc::clone(create(total)?.arena());
        let free = (0..count as usize).rev().map(|index| index * place_bytes).collect();
        Ok(Self { arena, free: Arc::new(Mutex::new(free)), place_bytes })
    }

    /// Returns the first `len` bytes of a free place; `None` if no place is free, or `len` is more than a place holds.
    pub fn take_place(&mut self, len: usize) -> Option<Span> {
        if len > self.place_bytes {
            return None;
        }
        let start = self.lock_free_places().pop()?;
        let lender = Lender::new(Arc::clone(&self.arena), Some((Arc::clone(&self.free), start)));
        // SAFETY: the arena's own span is gone, so its bytes belong to the pool, and places do not overlap. This one is
        // out of the list until its lender returns it there, which is when no span of it is left.
        Some(unsafe { Span::new(lender, start..start + len) })
    }

    /// Returns the number of free places.
    pub fn free_count(&self) -> usize {
        self.lock_free_places().len()
    }

    /// Returns the arena that contains the places.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn lock_free_places(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_the_last_of_its_spans_is_dropped() {
        let mut pool = PlacePool::new("test", 2, 5000).unwrap();
        let (mut a, mut b) = (pool.take_place(5000).unwrap(), pool.take_place(8192).unwrap());
        assert!(pool.take_place(1).is_none());
        a[..].fill(1);
        b[..].fill(2);
        let front = a.take_front(10);
        drop(a);
        assert_eq!(pool.free_count(), 0);
        assert!(front.iter().all(|byte| *byte == 1) && b.iter().all(|byte| *byte == 2));
        let at = front.arena_offset();
        std::thread::spawn(move || drop(front)).join().unwrap();
        assert_eq!(pool.free_count(), 1);
        assert_eq!(pool.take_place(64).unwrap().arena_offset(), at);
        assert!(pool.take_place(8193).is_none());
        assert_eq!(pool.free_count(), 1);
    }

    #[test]
    fn a_place_outlives_its_pool() {
        let mut pool = PlacePool::new("test", 1, 1).unwrap();
        let mut place = pool.take_place(1).unwrap();
        drop(pool);
        place[0] = 7;
        assert_eq!(place[..], [7]);
    }
}
