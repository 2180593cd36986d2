//! Messages between two processes through shared memory: a ring of 64-byte cells, one sender, one receiver, no lock and
//! no system call while both are busy.
//!
//! One side makes the ring ([`Ring::create`]) and hands over its file descriptor ([`crate::send_fds`]); the other takes
//! it over ([`Ring::import`]). One becomes the [`RingSender`], the other the [`RingReceiver`].
//!
//! # Neither side trusts the other
//!
//! The peer can write anything into the shared memory at any time. Each side therefore keeps its own index to itself
//! and only publishes copies of it; what it reads of the other's index is checked before use ([`RingError::Corrupt`]),
//! and a cell's place is the index modulo a count that never was in shared memory. Cells are copied in and out, by
//! atomic accesses, so that a peer who writes a cell while it is read spoils its content and nothing else. The content
//! is for the receiver to judge.
//!
//! # Sleeping without losing a wake-up
//!
//! Who wants to sleep first says so (`prepare_wait`), and then looks once more; who published something looks whether
//! the other has said so. With a full fence between the two steps on both sides, at least one of them sees the other
//! (Dekker's argument; the same one as in io_uring's `IORING_SQ_NEED_WAKEUP`, io_uring(7)). The wake-up itself is the
//! caller's: a [`crate::Doorbell`] for each direction, or between processes a byte [over their socket](crate::wake_over).
//!
//! ```text
//! receiver                                   sender
//! loop {                                     push, push, push
//!     while let Some(cell) = pop()? { … }    if publish() { doorbell.ring() }
//!     if sender_waits() { doorbell.ring() }
//!     if prepare_wait() { wait for the doorbell; doorbell.clear() }
//! }
//! ```
//!
//! A wake-up that is not needed can happen (one side was about to ring when the other had already noticed); after each
//! wait, look again.

#[cfg(loom)]
#[path = "ring/heap.rs"]
mod memory;
#[cfg(not(loom))]
mod memory;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use memory::Memory;
use std::fmt;
#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};
use thiserror::Error;

/// Bytes in a cell: one cache line.
pub const CELL: usize = 64;

/// Most cells a ring can have: 64 MiB of them. Bounds what a peer can make us map.
pub const MAX_CELLS: u32 = 1 << 20;

/// The memory of a ring: not yet said which end of it is ours.
pub struct Ring {
    memory: Arc<Memory>,
    /// Both indices at the beginning: 0, or close to wrapping in a test.
    start: u32,
}

#[cfg(not(loom))]
impl Ring {
    /// Makes a ring of `cells` cells, a power of two up to [`MAX_CELLS`]. `name` is what `/proc/PID/maps` will show.
    ///
    /// # Errors
    /// Where `cells` is no such count, or the kernel refuses.
    pub fn create(name: &str, cells: u32) -> Result<Self, RingSetupError> {
        Ok(Self { memory: Arc::new(Memory::create(name, cells)?), start: 0 })
    }

    /// Takes over a ring that another process made. It must be sealed against shrinking, and exactly as large as the
    /// count of cells it claims; compare [`Ring::cells`] with what was agreed.
    ///
    /// # Errors
    /// Where it is no such ring, or was used already, or the kernel cannot map it. The descriptor is closed then.
    pub fn import(fd: OwnedFd) -> Result<Self, RingSetupError> {
        Ok(Self { memory: Arc::new(Memory::import(fd)?), start: 0 })
    }

    /// The file descriptor, for handing over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }
}

impl Ring {
    /// How many cells it has.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    /// Becomes the sending end of a ring that is still unused.
    pub fn into_sender(self) -> RingSender {
        RingSender { memory: self.memory, tail: self.start, published: self.start, head: self.start }
    }

    /// Becomes the receiving end of a ring that has not been received from.
    pub fn into_receiver(self) -> RingReceiver {
        RingReceiver { memory: self.memory, head: self.start, tail: self.start }
    }

    /// Both ends, for two threads of one process.
    pub fn split(self) -> (RingSender, RingReceiver) {
        let other = Self { memory: Arc::clone(&self.memory), start: self.start };
        (self.into_sender(), other.into_receiver())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} cells)", self.cells())
    }
}

/// Why a ring could not be made or taken over.
#[derive(Debug, Error)]
pub enum RingSetupError {
    /// Not a power of two, or too many.
    #[error("a ring of {0} cells cannot be made: the count must be a power of two up to {MAX_CELLS}")]
    Cells(u32),
    /// The kernel refused.
    #[error("{doing} for a ring: {error}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        error: rustix::io::Errno,
    },
    /// The other process could shrink the memory under our feet.
    #[error("the ring that was handed over is not sealed against shrinking; its owner must set F_SEAL_SHRINK")]
    NotSealed,
    /// A memfd, but not one of a ring: wrong magic, or size and count do not agree.
    #[error("what was handed over is not a ring: {bytes} bytes, claiming {cells} cells (wrong descriptor or version?)")]
    NotARing {
        /// Size of the file.
        bytes: u64,
        /// The count of cells in its header, 0 where it is too small to have one.
        cells: u32,
    },
    /// Cells were taken from it already, or its head is past its tail.
    #[error("the ring that was handed over has its head at {head}; hand over a new one, whose head is 0")]
    Used {
        /// The receiver's index.
        head: u32,
    },
}

/// What can be wrong with a ring in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// The other side moved its index to where it cannot be. It is broken or hostile: give up on it.
    #[error("the peer's index of a shared-memory ring is {theirs}, which cannot follow ours at {ours}")]
    Corrupt {
        /// Our index: cells sent, or received, modulo 2³².
        ours: u32,
        /// What the peer claims.
        theirs: u32,
    },
}

/// Why a cell was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PushError {
    /// No room: the receiver is behind. Publish, then wait for room ([`RingSender::prepare_wait`]).
    #[error("the ring is full")]
    Full,
    /// The receiver is broken.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// The end of a ring that cells go into.
pub struct RingSender {
    memory: Arc<Memory>,
    /// The next cell to write.
    tail: u32,
    /// What the receiver has been told of `tail`.
    published: u32,
    /// What we last saw of the receiver's index.
    head: u32,
}

impl RingSender {
    /// Puts one cell into the ring. The receiver sees it with the next [`RingSender::publish`].
    ///
    /// # Errors
    /// [`PushError::Full`] where there is no room, and [`PushError::Ring`] where the receiver's index cannot be. The
    /// cell is not in the ring then.
    #[inline]
    pub fn push(&mut self, cell: &[u8; CELL]) -> Result<(), PushError> {
        if self.is_full() {
            self.look()?;
            if self.is_full() {
                return Err(PushError::Full);
            }
        }
        self.memory.cell(self.tail).write(cell);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows the receiver all that was pushed, and says whether it must be woken.
    #[inline]
    #[must_use = "a receiver that is not woken when it must be sleeps on"]
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.memory.tail().store(self.tail, Ordering::Release);
        self.published = self.tail;
        must_wake(self.memory.receiver_waits())
    }

    /// Says that we will sleep until there is room for a cell. False where there is some already: do not sleep, push.
    /// Publish first: cells that were never shown are never taken.
    pub fn prepare_wait(&mut self) -> bool {
        debug_assert_eq!(self.tail, self.published, "waiting for room while cells are not published");
        if !self.is_full() {
            return false;
        }
        let head = self.head;
        prepare_wait(self.memory.sender_waits(), || self.memory.head().load(Ordering::Acquire) == head)
    }

    /// Takes back what [`RingSender::prepare_wait`] said, after waking for another reason. Spares the receiver a
    /// needless wake-up; nothing is lost without it.
    pub fn cancel_wait(&mut self) {
        set(self.memory.sender_waits(), 0);
    }

    /// How many cells there are.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.head) >= self.memory.cells()
    }

    /// Reads the receiver's index. It may have moved over published cells only.
    fn look(&mut self) -> Result<(), RingError> {
        // Acquire: the receiver has finished reading the cells it left behind before we write them again.
        let head = self.memory.head().load(Ordering::Acquire);
        if self.published.wrapping_sub(head) > self.published.wrapping_sub(self.head) {
            return Err(RingError::Corrupt { ours: self.published, theirs: head });
        }
        self.head = head;
        Ok(())
    }
}

impl fmt::Debug for RingSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingSender({} sent, {} seen taken, {} cells)", self.tail, self.head, self.cells())
    }
}

/// The end of a ring that cells come out of.
pub struct RingReceiver {
    memory: Arc<Memory>,
    /// The next cell to read.
    head: u32,
    /// What we last saw of the sender's index.
    tail: u32,
}

impl RingReceiver {
    /// Takes the next cell, if there is one. A sender that never stops can keep this from ever saying `None`: bound the
    /// cells taken in one go.
    ///
    /// # Errors
    /// Where the sender's index cannot be: the sender is broken or hostile, give up on it.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u8; CELL]>, RingError> {
        if self.head == self.tail {
            self.look()?;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let cell = self.memory.cell(self.head).read();
        self.head = self.head.wrapping_add(1);
        // Release: the cell has been read before the sender can see that it may write it again.
        self.memory.head().store(self.head, Ordering::Release);
        Ok(Some(cell))
    }

    /// Whether the sender is waiting for room and must be woken. Ask after taking cells, once for all of them.
    #[inline]
    #[must_use = "a sender that is not woken when it must be sleeps on"]
    pub fn sender_waits(&mut self) -> bool {
        must_wake(self.memory.sender_waits())
    }

    /// Says that we will sleep until something comes. False where something came already: do not sleep, pop.
    pub fn prepare_wait(&mut self) -> bool {
        let head = self.head;
        // An index that makes no sense counts as something that came: `pop` will say what is wrong.
        self.tail == head
            && prepare_wait(self.memory.receiver_waits(), || self.memory.tail().load(Ordering::Acquire) == head)
    }

    /// Takes back what [`RingReceiver::prepare_wait`] said, after waking for another reason. Spares the sender a
    /// needless wake-up; nothing is lost without it.
    pub fn cancel_wait(&mut self) {
        set(self.memory.receiver_waits(), 0);
    }

    /// How many cells there are.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    /// Reads the sender's index. No more cells can be there than the ring has.
    fn look(&mut self) -> Result<(), RingError> {
        // Acquire: the cells behind this index have been written.
        let tail = self.memory.tail().load(Ordering::Acquire);
        if tail.wrapping_sub(self.head) > self.memory.cells() {
            return Err(RingError::Corrupt { ours: self.head, theirs: tail });
        }
        self.tail = tail;
        Ok(())
    }
}

impl fmt::Debug for RingReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingReceiver({} taken, {} seen sent, {} cells)", self.head, self.tail, self.cells())
    }
}

/// The sleeper's half: say so, fence, look once more.
fn prepare_wait(flag: &AtomicU32, still_nothing: impl FnOnce() -> bool) -> bool {
    set(flag, 1);
    fence(Ordering::SeqCst);
    let sleep = still_nothing();
    if !sleep {
        set(flag, 0);
    }
    sleep
}

/// Swapped in, not stored: then each write of the flag reads the one before it, and sleeper and waker agree on their
/// order. (C++20 [intro.races] has that follow from the waker's swap alone; loom, which keeps that order only as far as
/// it was seen, does not.) Sleeping is slow enough not to notice.
fn set(flag: &AtomicU32, value: u32) {
    flag.swap(value, Ordering::Relaxed);
}

/// The waker's half: (the index is published,) fence, look whether the other sleeps. The flag is taken down, so that
/// each sleep costs one wake-up.
#[inline]
fn must_wake(flag: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_claims_the_impossible_is_found_out() {
        let ring = Ring::create("test", 4).unwrap();
        let theirs = Ring::import(ring.fd().try_clone_to_owned().unwrap()).unwrap().memory;
        let (mut sender, mut receiver) = ring.split();
        for tail in [5, 1000, u32::MAX] {
            theirs.tail().store(tail, Ordering::Relaxed);
            assert!(!receiver.prepare_wait());
            assert_eq!(receiver.pop(), Err(RingError::Corrupt { ours: 0, theirs: tail }));
        }
        theirs.tail().store(0, Ordering::Relaxed);
        for number in 0..4 {
            sender.push(&[number; CELL]).unwrap();
        }
        // Cells that were never shown cannot have been taken.
        theirs.head().store(1, Ordering::Relaxed);
        assert_eq!(sender.push(&[4; CELL]), Err(PushError::Ring(RingError::Corrupt { ours: 0, theirs: 1 })));
        let _ = sender.publish();
        for head in [5, u32::MAX] {
            theirs.head().store(head, Ordering::Relaxed);
            assert!(!sender.prepare_wait());
            assert_eq!(sender.push(&[4; CELL]), Err(PushError::Ring(RingError::Corrupt { ours: 4, theirs: head })));
        }
        theirs.head().store(1, Ordering::Relaxed);
        assert_eq!(sender.push(&[4; CELL]), Ok(()));
        assert_eq!(sender.push(&[5; CELL]), Err(PushError::Full));
    }

    #[test]
    fn a_sender_that_takes_cells_back_lets_nobody_sleep_on_them() {
        let (mut sender, mut receiver) = Ring::create("test", 4).unwrap().split();
        sender.push(&[1; CELL]).unwrap();
        sender.push(&[2; CELL]).unwrap();
        let _ = sender.publish();
        assert_eq!(receiver.pop(), Ok(Some([1; CELL])));
        sender.memory.tail().store(1, Ordering::Relaxed);
        assert!(!receiver.prepare_wait());
        assert_eq!(receiver.pop(), Ok(Some([2; CELL])));
        assert_eq!(receiver.pop(), Err(RingError::Corrupt { ours: 2, theirs: 1 }));
    }

    #[test]
    fn indices_wrap() {
        let mut ring = Ring::create("test", 2).unwrap();
        ring.start = u32::MAX - 2;
        ring.memory.tail().store(ring.start, Ordering::Relaxed);
        ring.memory.head().store(ring.start, Ordering::Relaxed);
        let (mut sender, mut receiver) = ring.split();
        for number in 0..6 {
            sender.push(&[number; CELL]).unwrap();
            let _ = sender.publish();
            sender.push(&[number + 100; CELL]).unwrap();
            assert_eq!(receiver.pop(), Ok(Some([number; CELL])));
            assert_eq!(receiver.pop(), Ok(None));
            let _ = sender.publish();
            assert_eq!(receiver.pop(), Ok(Some([number + 100; CELL])));
        }
    }
}
