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
    pub fn block_index(&self) -> u32 {
        self.index
    }

    /// Returns the capacity in bytes.
    pub fn capacity_bytes(&self) -> usize {
        self.range.len()
    }

    /// Returns the number of bytes carved so far.
    pub fn used_bytes(&self) -> usize {
        self.used
    }

    /// Returns whether spans of the block are out.
    pub fn has_spans_out(&self) -> bool {
        Arc::strong_count(&self.lender) > 1
    }

    /// Returns a span of the next `len` bytes; `None` if they do not fit.
    pub fn carve_span(&mut self, len: usize) -> Option<Span> {
        let end = self.used.checked_add(len).filter(|end| *end <= self.capacity_bytes())?;
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
    pub fn position_of_span(&self, span: &Span) -> usize {
        assert!(self.owns_span(span), "span of another block");
        span.arena_offset() - self.range.start
    }

    /// Returns whether `span` was carved from this block.
    pub fn owns_span(&self, span: &Span) -> bool {
        span.is_lent_by(&self.lender)
    }

    /// Returns all bytes of the block.
    ///
    /// # Panics
    /// Spans of the block are out.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.assert_spans_returned("block read while parts of it are being filled");
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
    pub fn reset_to_empty(&mut self) {
        self.assert_spans_returned("block reused while parts of it are being filled");
        self.used = 0;
    }

    /// Panics with `otherwise` if spans are out. All accesses through spans that are back happen before this returns.
    fn assert_spans_returned(&mut self, otherwise: &str) {
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
                let start = span.arena_offset();
                let lender = Lender::new(Arc::clone(span.arena()), None);
                Block { lender, range: start..start + block_bytes, used: 0, index }
            })
            .collect();
        free.reverse();
        Ok(Self { free, count, block_bytes, arena })
    }

    /// Returns an empty block, the one given back last; `None` if none is free.
    pub fn take_block(&mut self) -> Option<Block> {
        self.free.pop()
    }

    /// Makes a block free again.
    ///
    /// # Panics
    /// Spans of the block are out.
    pub fn return_block(&mut self, mut block: Block) {
        block.reset_to_empty();
        self.free.push(block);
    }

    /// Returns the free blocks; all of them before the first `take`. For registering them with the kernel.
    pub fn free_blocks_mut(&mut self) -> &mut [Block] {
        &mut self.free
    }

    /// Returns the number of free blocks.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of blocks.
    pub fn block_count(&self) -> u32 {
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
        let mut block = pool.take_block().unwrap();
        let (mut a, mut b) = (block.carve_span(100).unwrap(), block.carve_span(8092).unwrap());
        assert!(block.carve_span(1).is_none());
        a.fill(1);
        b.fill(2);
        assert_eq!((block.position_of_span(&a), block.position_of_span(&b)), (0, 100));
        drop(b);
        assert!(block.has_spans_out());
        drop(a);
        assert!(block.bytes_mut()[..100].iter().all(|byte| *byte == 1));
        assert!(block.bytes_mut()[100..].iter().all(|byte| *byte == 2));
        pool.return_block(block);
        assert_eq!(pool.take_block().unwrap().used_bytes(), 0);
    }

    #[test]
    fn a_block_waits_for_every_piece_of_a_span_whoever_drops_it() {
        let mut pool = BlockPool::new("test", 1, 4096).unwrap();
        let mut block = pool.take_block().unwrap();
        let mut rest = block.carve_span(100).unwrap();
        let front = rest.take_front(40);
        std::thread::spawn(move || drop(front)).join().unwrap();
        assert!(block.has_spans_out());
        let error: Result<(), Span> = Err(rest);
        assert!(block.has_spans_out());
        drop(error);
        assert!(!block.has_spans_out());
        drop((block.carve_span(3996).unwrap(), block.carve_span(0).unwrap()));
        pool.return_block(block);
    }

    #[test]
    fn a_span_is_known_by_its_block() {
        let mut pool = BlockPool::new("test", 2, 4096).unwrap();
        let (mut one, mut other) = (pool.take_block().unwrap(), pool.take_block().unwrap());
        let span = one.carve_span(1).unwrap();
        assert!(one.owns_span(&span) && !other.owns_span(&span) && !one.owns_span(&other.carve_span(1).unwrap()));
    }

    #[test]
    #[should_panic(expected = "being filled")]
    fn a_block_is_not_read_while_it_is_filled() {
        let mut pool = BlockPool::new("test", 1, 4096).unwrap();
        let mut block = pool.take_block().unwrap();
        let _span = block.carve_span(10).unwrap();
        let _ = block.bytes_mut();
    }
}
