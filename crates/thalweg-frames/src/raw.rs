//! A port that sends and receives whole Ethernet frames: what goes past the kernel's network.

use crate::{Counters, FramesError};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use thalweg_arena::{Arena, Piece};

/// Sends and receives Ethernet frames in bursts, without their checksum (FCS), which the adapter adds and checks.
/// Non-blocking.
pub trait RawIo: Debug + Send {
    /// Registers memory that pieces will lie in. Before any of them is sent.
    ///
    /// # Errors
    /// The medium does not take it.
    fn register(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError>;

    /// The port's address (MAC).
    fn mac(&self) -> [u8; 6];

    /// Most bytes of a frame, from the first address on.
    fn longest(&self) -> usize;

    /// Whether [`send`](Self::send) takes a frame of any length before the next [`flush`](Self::flush).
    fn has_room(&mut self) -> bool;

    /// Takes a frame into the burst that is sent with the next [`flush`](Self::flush): `head` is copied, `piece` is read
    /// where it lies if the medium can do that. False where there is no room until then.
    fn send(&mut self, head: &[u8], piece: Option<Piece<'_>>) -> bool;

    /// As [`send`](Self::send), with headers in front of the head. Who copies the head anyway copies both at once.
    fn send_behind(&mut self, headers: &[u8], head: &[u8], piece: Option<Piece<'_>>) -> bool {
        self.send(&[headers, head].concat(), piece)
    }

    /// Sends what was taken. False where not all of it went.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn flush(&mut self) -> Result<bool, FramesError>;

    /// Hands the frames that have come to `each`: a burst, at most. True where more may be waiting.
    ///
    /// # Errors
    /// Nothing can be received any more.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError>;

    /// Frames that may wait here to be received.
    fn room(&self) -> usize;

    /// What to wait on, where there is a descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// To be called before waiting: from now on the descriptor tells of what comes. False where something has come
    /// already.
    fn prepare_wait(&mut self) -> bool;

    /// Whether [`receive`](Self::receive) finds what has come without a system call, so that it costs little to look.
    fn sees(&self) -> bool {
        true
    }

    /// How often a byte of a piece is copied on its way out, and a byte of a frame before [`receive`](Self::receive) shows
    /// it, as far as is known.
    fn copies(&self) -> (u64, u64);

    /// What it has counted.
    fn counters(&self) -> Counters;
}
