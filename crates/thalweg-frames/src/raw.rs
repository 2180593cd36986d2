//! A port that sends and receives whole Ethernet frames, past the kernel's network stack.

use crate::{Counters, FramesError};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use thalweg_arena::{Arena, Piece};

/// Sends and receives Ethernet frames in bursts, without their checksum (FCS), which the adapter adds and checks.
/// Non-blocking.
pub trait FrameIo: Debug + Send {
    /// Registers memory that will hold pieces. To be called before any of them is sent.
    ///
    /// # Errors
    /// The medium does not accept the memory.
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError>;

    /// Returns the Ethernet (MAC) address of the port.
    fn mac_address(&self) -> [u8; 6];

    /// Returns the maximum length of a frame, in bytes, from the first address on.
    fn max_frame_bytes(&self) -> usize;

    /// True if [`queue_frame`](Self::queue_frame) takes a frame of any length before the next [`flush_burst`](Self::flush_burst).
    fn has_send_room(&mut self) -> bool;

    /// Adds a frame to the burst that is sent with the next [`flush_burst`](Self::flush_burst): `head` is copied, `piece` is read
    /// in place if the medium can do that. Returns false if there is no room until then.
    fn queue_frame(&mut self, head: &[u8], piece: Option<Piece<'_>>) -> bool;

    /// Does the same as [`queue_frame`](Self::queue_frame), with headers before the head. A medium that copies the head anyway copies
    /// both at once.
    fn queue_frame_with_headers(&mut self, headers: &[u8], head: &[u8], piece: Option<Piece<'_>>) -> bool {
        self.queue_frame(&[headers, head].concat(), piece)
    }

    /// Sends the burst. Returns false if not all of it was sent.
    ///
    /// # Errors
    /// Sending is not possible any more.
    fn flush_burst(&mut self) -> Result<bool, FramesError>;

    /// Passes received frames to `each`: at most a burst. Returns true if more may be waiting.
    ///
    /// # Errors
    /// Receiving is not possible any more.
    fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError>;

    /// Returns the number of frames that may wait here to be received.
    fn receive_room_frames(&self) -> usize;

    /// Returns the descriptor to wait on, or `None` if the port has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Arms the descriptor before a wait: from now on it reports arrivals. Returns false if something has arrived
    /// already.
    fn prepare_wait(&mut self) -> bool;

    /// True if [`receive_frames`](Self::receive_frames) detects arrivals without a system call, so that polling is cheap.
    fn is_cheap_to_poll(&self) -> bool {
        true
    }

    /// Returns how many times a byte of a piece is copied on its way out, and a byte of a frame before
    /// [`receive_frames`](Self::receive_frames) shows it, as far as is known.
    fn copies_per_byte(&self) -> (u64, u64);

    /// Returns the counters of the port.
    fn port_counters(&self) -> Counters;
}
