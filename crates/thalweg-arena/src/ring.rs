//! Messages between two processes through shared memory: a ring of 64-byte cells, one sender, one receiver, no lock and
//! no system call while both are busy.
//!
//! One side makes the ring ([`Ring::create`]) and hands over its file descriptor ([`crate::send_fds`]); the other
//! imports it ([`Ring::import`]). One becomes the [`RingSender`], the other the [`RingReceiver`].
//!
//! # Neither side trusts the other
//!
//! The peer can write anything into the shared memory at any time. Each side therefore keeps its own index to itself
//! and only publishes copies of it; the other side's index is checked after each read ([`RingError::Corrupt`]), and a
//! cell's place is the index modulo a count that never was in shared memory. Cells are copied in and out, by atomic
//! accesses, so that a peer that writes a cell while it is read spoils its content and nothing else. The content is for
//! the receiver to judge.
//!
//! # Sleeping without losing a wake-up
//!
//! A side that is about to sleep first announces it (`prepare_wait`), and then looks once more; a side that has
//! published something checks for the other's announcement. With a full fence between the two steps on both sides, at
//! least one of them sees the other (Dekker's argument; the same one as in io_uring's `IORING_SQ_NEED_WAKEUP`,
//! io_uring(7)). The caller performs the wake-up itself: by a [`crate::Doorbell`] for each direction, or between
//! processes by a byte [over their socket](crate::wake_over_socket).
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
//! A needless wake-up can happen (one side was about to ring when the other had already noticed); after each wait, look
//! again.
//!
//! A receiver that does not want to be woken for each cell waits for urgent ones (`prepare_wait_urgent`), and the sender
//! publishes others quietly (`publish_quietly`): the solicited events of an RDMA completion queue.

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

/// Length of a cell in bytes: one cache line.
pub const CELL_BYTES: usize = 64;

/// Maximum number of cells in a ring: 64 MiB of them. Limits how much memory a peer can make this process map.
pub const MAX_CELLS: u32 = 1 << 20;

/// The memory of a ring, before this side becomes one of its ends.
pub struct Ring {
    memory: Arc<Memory>,
    /// Initial value of both indices: 0, or close to wrapping in a test.
    start: u32,
}

#[cfg(not(loom))]
impl Ring {
    /// Creates a ring of `cells` cells, a power of two up to [`MAX_CELLS`]. `name` is shown in `/proc/PID/maps`.
    ///
    /// # Errors
    /// `cells` is not such a count, or the kernel refuses.
    pub fn create(name: &str, cells: u32) -> Result<Self, RingSetupError> {
        Ok(Self { memory: Arc::new(Memory::create(name, cells)?), start: 0 })
    }

    /// Imports a ring that another process made. It must be sealed against shrinking, and exactly as large as the count
    /// of cells it claims; compare [`Ring::cells`] with what was agreed.
    ///
    /// # Errors
    /// `fd` is not such a ring, or was used already, or the kernel cannot map it. The descriptor is then closed.
    pub fn import(fd: OwnedFd) -> Result<Self, RingSetupError> {
        Ok(Self { memory: Arc::new(Memory::import(fd)?), start: 0 })
    }

    /// Returns the file descriptor, for handing over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }
}

impl Ring {
    /// Returns the number of cells.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    /// Converts an unused ring into its sending end.
    pub fn into_sender(self) -> RingSender {
        RingSender { memory: self.memory, tail: self.start, published: self.start, head: self.start }
    }

    /// Converts a ring that has not been received from into its receiving end.
    pub fn into_receiver(self) -> RingReceiver {
        RingReceiver { memory: self.memory, head: self.start, tail: self.start }
    }

    /// Returns both ends, for two threads of one process.
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

/// Reason why a ring could not be made or imported.
#[derive(Debug, Error)]
pub enum RingSetupError {
    /// The count of cells is not a power of two, or too large.
    #[error("cannot create a ring of {0} cells: the number must be a power of two up to {MAX_CELLS}")]
    Cells(u32),
    /// The kernel refused.
    #[error("{doing} for a ring: {error}")]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Error returned by the kernel.
        error: rustix::io::Errno,
    },
    /// The other process could shrink the memory while it is in use here.
    #[error("the received ring is not sealed against shrinking: its owner must set F_SEAL_SHRINK")]
    NotSealed,
    /// The memfd is not one of a ring: wrong magic, or size and count do not agree.
    #[error("not a ring: {bytes} bytes, but {cells} cells according to its header (wrong descriptor or version?)")]
    NotARing {
        /// Size of the file in bytes.
        bytes: u64,
        /// Count of cells in the header, 0 if the file's size is not one of a ring.
        cells: u32,
    },
    /// Cells were taken from the ring already, or its head is past its tail.
    #[error("the received ring has its head at {head}: send a new ring, whose head is 0")]
    Used {
        /// Index of the receiver.
        head: u32,
    },
}

/// Error of a ring in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingError {
    /// The other side set its index to an impossible value. It is broken or hostile: stop using the ring.
    #[error("the peer set the index of a shared-memory ring to {theirs}, which is impossible after {ours}")]
    Corrupt {
        /// Index of this side: number of cells sent, or received, modulo 2³².
        ours: u32,
        /// Index claimed by the peer.
        theirs: u32,
    },
}

/// Reason why a cell was not pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PushError {
    /// The ring is full: the receiver is slower. Publish, then wait for room ([`RingSender::prepare_wait`]).
    #[error("the ring is full")]
    Full,
    /// The receiver is broken.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// The sending end of a ring.
pub struct RingSender {
    memory: Arc<Memory>,
    /// Index of the next cell to write.
    tail: u32,
    /// Value of `tail` last published to the receiver.
    published: u32,
    /// Last value seen of the receiver's index.
    head: u32,
}

impl RingSender {
    /// Puts one cell into the ring. The receiver sees it with the next [`RingSender::publish`].
    ///
    /// # Errors
    /// [`PushError::Full`] if there is no room, and [`PushError::Ring`] if the receiver's index is impossible. The cell
    /// is then not in the ring.
    #[inline]
    pub fn push(&mut self, cell: &[u8; CELL_BYTES]) -> Result<(), PushError> {
        if self.is_full() {
            self.refresh_head_index()?;
            if self.is_full() {
                return Err(PushError::Full);
            }
        }
        self.memory.cell(self.tail).write(cell);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Publishes all pushed cells to the receiver, and returns whether the receiver must be woken.
    #[inline]
    #[must_use = "a receiver that is not woken when it must be sleeps on"]
    pub fn publish(&mut self) -> bool {
        self.publish_index() && must_wake(self.memory.receiver_waits(), WAITS_FOR_URGENT)
    }

    /// Publishes all pushed cells to the receiver, none of which is urgent, and returns whether the receiver must be
    /// woken: not if it waits for urgent cells ([`RingReceiver::prepare_wait_urgent`]).
    #[inline]
    #[must_use = "a receiver that is not woken when it must be sleeps on"]
    pub fn publish_quietly(&mut self) -> bool {
        self.publish_index() && must_wake(self.memory.receiver_waits(), WAITS_FOR_ANY)
    }

    /// Publishes the index. Returns false if no cell was pushed since the last time.
    #[inline]
    fn publish_index(&mut self) -> bool {
        let changed = self.published != self.tail;
        if changed {
            self.memory.tail().store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
        changed
    }

    /// Announces that this side will sleep until there is room for a cell, and returns true. Returns false if there is
    /// room already: do not sleep, push. Publish first: cells that were never published are never taken.
    pub fn prepare_wait(&mut self) -> bool {
        debug_assert_eq!(self.tail, self.published, "waiting for room while cells are not published");
        if !self.is_full() {
            return false;
        }
        let head = self.head;
        prepare_wait(self.memory.sender_waits(), WAITS_FOR_ANY, || self.memory.head().load(Ordering::Acquire) == head)
    }

    /// Withdraws the announcement of [`RingSender::prepare_wait`], after waking for another reason. Spares the receiver
    /// a needless wake-up; nothing is lost without it.
    pub fn cancel_wait(&mut self) {
        swap_flag(self.memory.sender_waits(), 0);
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    /// Returns the number of cells that can be pushed now.
    ///
    /// # Errors
    /// The receiver's index is impossible: the receiver is broken or hostile, stop using the ring.
    pub fn free_cells(&mut self) -> Result<u32, RingError> {
        self.refresh_head_index()?;
        Ok(self.memory.cells() - self.tail.wrapping_sub(self.head))
    }

    fn is_full(&self) -> bool {
        self.tail.wrapping_sub(self.head) >= self.memory.cells()
    }

    /// Reads the receiver's index, which may have moved over published cells only.
    fn refresh_head_index(&mut self) -> Result<(), RingError> {
        // Acquire: the receiver has finished reading the cells below its index, before this side writes them again.
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

/// The receiving end of a ring.
pub struct RingReceiver {
    memory: Arc<Memory>,
    /// Index of the next cell to read.
    head: u32,
    /// Last value seen of the sender's index.
    tail: u32,
}

impl RingReceiver {
    /// Returns the next cell; `None` if there is none. A sender that never stops can keep this from ever returning
    /// `None`: limit the number of cells taken in one go.
    ///
    /// # Errors
    /// The sender's index is impossible: the sender is broken or hostile, stop using the ring.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u8; CELL_BYTES]>, RingError> {
        if self.head == self.tail {
            self.refresh_tail_index()?;
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

    /// Returns the number of cells that can be taken now.
    ///
    /// # Errors
    /// As [`RingReceiver::pop`].
    #[inline]
    pub fn ready_cells(&mut self) -> Result<u32, RingError> {
        self.refresh_tail_index()?;
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Returns whether the sender is waiting for room and must be woken. To be called after taking cells, once for all
    /// of them.
    #[inline]
    #[must_use = "a sender that is not woken when it must be sleeps on"]
    pub fn sender_waits(&mut self) -> bool {
        must_wake(self.memory.sender_waits(), WAITS_FOR_URGENT)
    }

    /// Announces that this side will sleep until a cell comes, and returns true. Returns false if one has come already:
    /// do not sleep, pop.
    pub fn prepare_wait(&mut self) -> bool {
        self.announce_wait(WAITS_FOR_ANY)
    }

    /// Announces that this side will sleep until an urgent cell comes, and returns true. Returns false if any cell has
    /// come already, urgent or not: do not sleep, pop.
    pub fn prepare_wait_urgent(&mut self) -> bool {
        self.announce_wait(WAITS_FOR_URGENT)
    }

    /// Asks to be woken once by the next cell that is published from now on, by an urgent one if `urgent`, whatever has come
    /// before: pop after this, before sleeping.
    pub fn request_wakeup(&mut self, urgent: bool) {
        swap_flag(self.memory.receiver_waits(), if urgent { WAITS_FOR_URGENT } else { WAITS_FOR_ANY });
        fence(Ordering::SeqCst);
    }

    fn announce_wait(&mut self, level: u32) -> bool {
        let head = self.head;
        // An impossible index counts as a cell that came: `pop` will report the error.
        self.tail == head
            && prepare_wait(self.memory.receiver_waits(), level, || self.memory.tail().load(Ordering::Acquire) == head)
    }

    /// Withdraws the announcement of [`RingReceiver::prepare_wait`], after waking for another reason. Spares the sender
    /// a needless wake-up; nothing is lost without it.
    pub fn cancel_wait(&mut self) {
        swap_flag(self.memory.receiver_waits(), 0);
    }

    /// Returns the number of cells.
    pub fn cells(&self) -> u32 {
        self.memory.cells()
    }

    /// Reads the sender's index, which may be ahead by at most the number of cells.
    fn refresh_tail_index(&mut self) -> Result<(), RingError> {
        // Acquire: the cells before this index have been written.
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

/// Flag of a side that is to be woken by whatever comes.
const WAITS_FOR_ANY: u32 = 1;

/// Flag of a receiver that is to be woken by urgent cells only.
const WAITS_FOR_URGENT: u32 = 2;

/// Performs the sleeper's half: set the flag, fence, look once more.
fn prepare_wait(flag: &AtomicU32, level: u32, still_nothing: impl FnOnce() -> bool) -> bool {
    swap_flag(flag, level);
    fence(Ordering::SeqCst);
    let sleep = still_nothing();
    if !sleep {
        swap_flag(flag, 0);
    }
    sleep
}

/// Sets the flag by a swap, not a store: then each write of the flag reads the one before it, and sleeper and waker
/// agree on their order. (By C++20 [intro.races] this follows from the waker's swap alone; loom, which keeps that order
/// only as far as it was seen, does not model that.) Sleeping is slow enough for the cost not to matter.
fn swap_flag(flag: &AtomicU32, value: u32) {
    flag.swap(value, Ordering::Relaxed);
}

/// Performs the waker's half: (the index is published,) fence, check whether the other side sleeps and is to be woken
/// by what has come, `WAITS_FOR_URGENT` if that is urgent. Clears the flag, so that each sleep costs one wake-up.
#[inline]
fn must_wake(flag: &AtomicU32, level: u32) -> bool {
    fence(Ordering::SeqCst);
    let waits = flag.load(Ordering::Relaxed);
    // A flag that is none of the two is the work of a broken peer: it is woken.
    let concerned = waits != 0 && (waits != WAITS_FOR_URGENT || level == WAITS_FOR_URGENT);
    concerned && flag.swap(0, Ordering::Relaxed) != 0
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
            sender.push(&[number; CELL_BYTES]).unwrap();
        }
        // Cells that were never published cannot have been taken.
        theirs.head().store(1, Ordering::Relaxed);
        assert_eq!(sender.push(&[4; CELL_BYTES]), Err(PushError::Ring(RingError::Corrupt { ours: 0, theirs: 1 })));
        let _ = sender.publish();
        for head in [5, u32::MAX] {
            theirs.head().store(head, Ordering::Relaxed);
            assert!(!sender.prepare_wait());
            assert_eq!(
                sender.push(&[4; CELL_BYTES]),
                Err(PushError::Ring(RingError::Corrupt { ours: 4, theirs: head }))
            );
        }
        theirs.head().store(1, Ordering::Relaxed);
        assert_eq!(sender.push(&[4; CELL_BYTES]), Ok(()));
        assert_eq!(sender.push(&[5; CELL_BYTES]), Err(PushError::Full));
    }

    #[test]
    fn a_sender_that_takes_cells_back_lets_nobody_sleep_on_them() {
        let (mut sender, mut receiver) = Ring::create("test", 4).unwrap().split();
        sender.push(&[1; CELL_BYTES]).unwrap();
        sender.push(&[2; CELL_BYTES]).unwrap();
        let _ = sender.publish();
        assert_eq!(receiver.pop(), Ok(Some([1; CELL_BYTES])));
        sender.memory.tail().store(1, Ordering::Relaxed);
        assert!(!receiver.prepare_wait());
        assert_eq!(receiver.pop(), Ok(Some([2; CELL_BYTES])));
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
            sender.push(&[number; CELL_BYTES]).unwrap();
            let _ = sender.publish();
            sender.push(&[number + 100; CELL_BYTES]).unwrap();
            assert_eq!(receiver.pop(), Ok(Some([number; CELL_BYTES])));
            assert_eq!(receiver.pop(), Ok(None));
            let _ = sender.publish();
            assert_eq!(receiver.pop(), Ok(Some([number + 100; CELL_BYTES])));
        }
    }
}
