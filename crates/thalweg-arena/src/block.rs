//! Blocks: memory in which events are built, and which goes to disk in one write.

use crate::arena::Lender;
use crate::{Arena, ArenaError, PAGE_BYTES, Span};
use std::ops::Range;
use std::sync::Arc;

/// A page-aligned buffer that lends its bytes from the front, in spans that return when they are dropped.
///
/// The block's own bytes are reached only when no span is out, so a write to disk can never race with a receive.
#[derive(Debug)]
pub struct Block {
    lender: Arc<Lender>,
    range: Range<usize>,
    used: usize,
    index: u32,
}

impl Block {
    /// Returns the index of the block in the pool, which is also its index among registered buffers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.range.len()
    }

    /// Returns the number of bytes carved so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns whether spans of the block are out.
    pub fn is_busy(&self) -> bool {
        Arc::strong_count(&self.lender) > 1
    }

    /// Returns a span of the next `len` bytes; `None` if they do not fit.
    pub fn carve(&mut self, len: usize) -> Option<Span> {
        let end = self.used.checked_add(len).filter(|end| *end <= self.capacity())?;
        let start = self.range.start + self.used;
        self.used = end;
        // SAFETY: the block owns its range; `used` only grows until `reset`, which requires that every span is back, so
        // no two spans overlap, and `bytes_mut` refuses while any is out.
        Some(unsafe { Span::new(Arc::clone(&self.lender), start..start + len) })
    }

    /// Returns the offset of a span in this block, in bytes.
    ///
    /// # Panics
    /// `span` is of another block.
    pub fn position(&self, span: &Span) -> usize {
        assert!(self.owns(span), "span of another block");
        span.offset() - self.range.start
    }

    /// Returns whether `span` was carved from this block.
    pub fn owns(&self, span: &Span) -> bool {
        span.is_of(&self.lender)
    }

    /// Returns all bytes of the block.
    ///
    /// # Panics
    /// Spans of the block are out.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.all_back("block read while parts of it are being filled");
        // SAFETY: no span is out, so the block's own range is unshared; the temporary span is forgotten with the
        // borrow.
        let mut whole = unsafe { Span::new(Arc::clone(&self.lender), self.range.clone()) };
        let slice: *mut [u8] = &mut whole[..];
        // SAFETY: the bytes live as long as the arena, which the lender keeps and which outlives the returned borrow of
        // `self`, and `&mut self` keeps `carve` from handing out spans meanwhile.
        unsafe { &mut *slice }
    }

    /// Empties the block for reuse.
    ///
    /// # Panics
    /// Spans of the block are out.
    pub fn reset(&mut self) {
        self.all_back("block reused while parts of it are being filled");
        self.used = 0;
    }

    /// Panics with `otherwise` if spans are out. All accesses through spans that are back happen before this returns.
    fn all_back(&mut self, otherwise: &str) {
        assert!(Arc::get_mut(&mut self.lender).is_some(), "{otherwise}");
    }
}

/// Pool of a builder's blocks, reused hottest first.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<Block>,
    count: u32,
    block_bytes: usize,
    arena: Arc<Arena>,
}

impl BlockPool {
    /// Creates an arena with `count` blocks of `block_bytes`, rounded up to whole pages.
    ///
    /// # Errors
    /// As [`Arena::create_local`], for all blocks together.
    pub fn new(name: &str, count: u32, block_bytes: usize) -> Result<Self, ArenaError> {
        let block_bytes = block_bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(ArenaError::Size(block_bytes))?;
        let total = block_bytes.checked_mul(count as usize).ok_or(ArenaError::Size(usize::MAX))?;
        let mut rest = Arena::create_local(name, total)?;
        let arena = Arc::clone(rest.arena());
        let mut free: Vec<Block> = (0..count)
            .map(|index| {
                let span = rest.take_front(block_bytes);
                let start = span.offset();
                let lender = Lender::new(Arc::clone(span.arena()), None);
                Block { lender, range: start..start + block_bytes, used: 0, index }
            })
            .collect();
        free.reverse();
        Ok(Self { free, count, block_bytes, arena })
    }

    /// Returns an empty block, the one given back last; `None` if none is free.
    pub fn take(&mut self) -> Option<Block> {
        self.free.pop()
    }

    /// Makes a block free again.
    ///
    /// # Panics
    /// Spans of the block are out.
    pub fn give_back(&mut self, mut block: Block) {
        block.reset();
        self.free.push(block);
    }

    /// Returns the free blocks; all of them before the first `take`. For registering them with the kernel.
    pub fn free_blocks_mut(&mut self) -> &mut [Block] {
        &mut self.free
    }

    /// Returns the number of free blocks.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the arena that contains the blocks.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the length of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_overlap_and_come_back() {
        let mut pool = BlockPool::new("test", 2, 8192).unwrap();
        let mut block = pool.take().unwrap();
        let (mut a, mut b) = (block.carve(100).unwrap(), block.carve(8092).unwrap());
        assert!(block.carve(1).is_none());
        a.fill(1);
        b.fill(2);
        assert_eq!((block.position(&a), block.position(&b)), (0, 100));
        drop(b);
        assert!(block.is_busy());
        drop(a);
        assert!(block.bytes_mut()[..100].iter().all(|byte| *byte == 1));
        assert!(block.bytes_mut()[100..].iter().all(|byte| *byte == 2));
        pool.give_back(block);
        assert_eq!(pool.take().unwrap().used(), 0);
    }

    #[test]
    fn a_block_waits_for_every_piece_of_a_span_whoever_drops_it() {
        let mut pool = BlockPool::new("test", 1, 4096).unwrap();
        let mut block = pool.take().unwrap();
        let mut rest = block.carve(100).unwrap();
        let front = rest.take_front(40);
        std::thread::spawn(move || drop(front)).join().unwrap();
        assert!(block.is_busy());
        let error: Result<(), Span> = Err(rest);
        assert!(block.is_busy());
        drop(error);
        assert!(!block.is_busy());
        drop((block.carve(3996).unwrap(), block.carve(0).unwrap()));
        pool.give_back(block);
    }

    #[test]
    fn a_span_is_known_by_its_block() {
        let mut pool = BlockPool::new("test", 2, 4096).unwrap();
        let (mut one, mut other) = (pool.take().unwrap(), pool.take().unwrap());
        let span = one.carve(1).unwrap();
        assert!(one.owns(&span) && !other.owns(&span) && !one.owns(&other.carve(1).unwrap()));
    }

    #[test]
    #[should_panic(expected = "being filled")]
    fn a_block_is_not_read_while_it_is_filled() {
        let mut pool = BlockPool::new("test", 1, 4096).unwrap();
        let mut block = pool.take().unwrap();
        let _span = block.carve(10).unwrap();
        let _ = block.bytes_mut();
    }
}
