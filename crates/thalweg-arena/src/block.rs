//! Blocks: where events are built, and what goes to disk in one write.

use crate::{Arena, ArenaError, PAGE, Pages, Span};
use std::ops::Range;
use std::sync::Arc;

/// A page-aligned buffer that hands out its bytes from the front, in spans that come back once they are filled.
///
/// Its own bytes are reached only when no span is out, so a write to disk can never race with a receive.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    range: Range<usize>,
    used: usize,
    /// Bytes, not spans, that are out: a span may have been split by whoever filled it.
    out: usize,
    index: u32,
}

impl Block {
    /// Its number in the pool: also its number among registered buffers.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.range.len()
    }

    /// Bytes handed out so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether spans are still out.
    pub fn is_busy(&self) -> bool {
        self.out > 0
    }

    /// Hands out the next `len` bytes, or nothing where they do not fit.
    pub fn carve(&mut self, len: usize) -> Option<Span> {
        let end = self.used.checked_add(len).filter(|end| *end <= self.capacity())?;
        let start = self.range.start + self.used;
        self.used = end;
        self.out += len;
        // SAFETY: the block owns its range; `used` only grows until `reset`, which requires that every span is back, so
        // no two spans overlap, and `bytes`/`bytes_mut` refuse while any is out.
        Some(unsafe { Span::new(Arc::clone(&self.arena), start..start + len) })
    }

    /// Where in this block a span lies.
    pub fn position(&self, span: &Span) -> usize {
        assert!(self.owns(span), "span of another block");
        span.offset() - self.range.start
    }

    /// Takes back a span that was carved from this block.
    pub fn give_back(&mut self, span: Span) {
        assert!(self.owns(&span), "span of another block");
        self.out -= span.len();
    }

    /// Whether `span` was carved from this block.
    pub fn owns(&self, span: &Span) -> bool {
        let end = span.offset() + span.len();
        Arc::ptr_eq(span.arena(), &self.arena) && self.range.start <= span.offset() && end <= self.range.end
    }

    /// All bytes of the block. Panics while spans are out.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.out, 0, "block read while parts of it are being filled");
        // SAFETY: no span is out, so the block's own range is unshared; the temporary span is forgotten with the borrow.
        let mut whole = unsafe { Span::new(Arc::clone(&self.arena), self.range.clone()) };
        let slice: *mut [u8] = &mut whole[..];
        // SAFETY: the bytes live as long as `self.arena`, which outlives the returned borrow of `self`, and `&mut self`
        // keeps `carve` from handing out spans meanwhile.
        unsafe { &mut *slice }
    }

    /// Empties the block for new use. Panics while spans are out.
    pub fn reset(&mut self) {
        assert_eq!(self.out, 0, "block reused while parts of it are being filled");
        self.used = 0;
    }
}

/// The blocks of a builder, reused hottest first.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<Block>,
    count: u32,
    block_bytes: usize,
    pages: Pages,
}

impl BlockPool {
    /// Makes an arena with `count` blocks of `block_bytes`, rounded up to whole pages.
    pub fn new(name: &str, count: u32, block_bytes: usize) -> Result<Self, ArenaError> {
        let block_bytes = block_bytes.checked_next_multiple_of(PAGE).ok_or(ArenaError::Size(block_bytes))?;
        let total = block_bytes.checked_mul(count as usize).ok_or(ArenaError::Size(usize::MAX))?;
        let mut rest = Arena::create_local(name, total)?;
        let pages = rest.arena().pages();
        let mut free: Vec<Block> = (0..count)
            .map(|index| {
                let span = rest.take_front(block_bytes);
                let start = span.offset();
                Block { arena: Arc::clone(span.arena()), range: start..start + block_bytes, used: 0, out: 0, index }
            })
            .collect();
        free.reverse();
        Ok(Self { free, count, block_bytes, pages })
    }

    /// An empty block: the one given back last.
    pub fn take(&mut self) -> Option<Block> {
        self.free.pop()
    }

    /// Makes a block free again.
    pub fn give_back(&mut self, mut block: Block) {
        block.reset();
        self.free.push(block);
    }

    /// The free blocks; all of them before the first `take`. For registering them with the kernel.
    pub fn free_blocks_mut(&mut self) -> &mut [Block] {
        &mut self.free
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What pages they are made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Bytes in each.
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
        block.give_back(b);
        assert!(block.is_busy());
        block.give_back(a);
        assert!(block.bytes_mut()[..100].iter().all(|byte| *byte == 1));
        assert!(block.bytes_mut()[100..].iter().all(|byte| *byte == 2));
        pool.give_back(block);
        assert_eq!(pool.take().unwrap().used(), 0);
    }

    #[test]
    fn a_block_waits_for_every_piece_of_a_span_that_was_split() {
        let mut pool = BlockPool::new("test", 1, 4096).unwrap();
        let mut block = pool.take().unwrap();
        let mut rest = block.carve(100).unwrap();
        let front = rest.take_front(40);
        block.give_back(front);
        assert!(block.is_busy());
        block.give_back(rest);
        assert!(!block.is_busy());
        let whole = block.carve(3996).unwrap();
        let nothing = block.carve(0).unwrap();
        block.give_back(whole);
        block.give_back(nothing);
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
