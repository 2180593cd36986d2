//! A port: the interface to everything that carries datagrams.

use crate::FramesError;
use std::fmt::Debug;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Piece};

/// One port of one host, which sends and receives datagrams in bursts. Non-blocking.
pub trait DatagramIo: Debug + Send {
    /// Registers memory that will hold pieces, where the medium needs it. To be called before any of them is sent.
    ///
    /// # Errors
    /// The medium does not accept the memory.
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        let _ = memory;
        Ok(())
    }

    /// Returns the address to which others send.
    fn local_address(&self) -> SocketAddr;

    /// Resolves a name and a port, `HOST:PORT`.
    ///
    /// # Errors
    /// The name has no address.
    fn resolve_address(&self, place: &str) -> io::Result<SocketAddr> {
        let mut found = place.to_socket_addrs()?;
        found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    }

    /// Returns the maximum length of a datagram to `to`, in bytes, head and piece together, as far as it is known here:
    /// the limit of the first link, and the limit that a router further on has reported.
    ///
    /// # Errors
    /// There is no route to the address.
    fn max_datagram_bytes(&mut self, to: SocketAddr) -> Result<usize, FramesError>;

    /// Prepares for `bytes` of pieces in flight to this port at a time, and returns the number of bytes that may be in
    /// flight.
    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64;

    /// True if [`queue_datagram`](Self::queue_datagram) takes one more datagram before the next [`flush_burst`](Self::flush_burst).
    fn has_send_room(&mut self) -> bool;

    /// Adds a datagram to the burst that is sent with the next [`flush_burst`](Self::flush_burst). The datagram is lost if there is
    /// no room.
    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>);

    /// Adds a datagram without a piece, which `write` writes where the burst is kept, if the medium can do that: it gets room
    /// for `max_bytes`. Returns true if a datagram was added; without room, `write` is not called.
    fn queue_in_place(&mut self, max_bytes: usize, write: WriteDatagram<'_>) -> bool {
        if !self.has_send_room() {
            return false;
        }
        let mut head = vec![0; max_bytes];
        let Some((to, bytes)) = write(&mut head) else { return false };
        self.queue_datagram(to, &head[..bytes.min(max_bytes)], None);
        true
    }

    /// Returns how many times a byte of a piece is copied on its way out, and a byte of a datagram before
    /// [`receive_datagrams`](Self::receive_datagrams) shows it: by this process, or by the kernel on its behalf.
    fn copies_per_byte(&self) -> (u64, u64);

    /// Sends the burst. Returns false if not all of it was sent: the descriptor reports when there is room.
    ///
    /// # Errors
    /// Sending is not possible any more.
    fn flush_burst(&mut self) -> Result<bool, FramesError>;

    /// Passes received datagrams and reports to `each`: at most a burst. Returns true if more may be waiting.
    ///
    /// # Errors
    /// Receiving is not possible any more.
    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError>;

    /// Returns the descriptor to wait on, or `None` if the port has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Arms the descriptor before a wait: from now on it reports arrivals. Returns false if something has arrived
    /// already.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// True if [`receive_datagrams`](Self::receive_datagrams) detects arrivals without a system call, so that polling is cheap.
    fn is_cheap_to_poll(&self) -> bool {
        false
    }

    /// Returns the counters of the port.
    fn port_counters(&self) -> Counters;

    /// Returns the current time: the caller's, except for a medium with a time of its own.
    fn current_time(&self, now: Duration) -> Duration {
        now
    }

    /// Returns a number that no one can guess, if the medium draws such numbers; a medium for tests does, so that a
    /// test can be repeated.
    fn draw_number(&mut self) -> Option<u64> {
        None
    }

    /// Returns the time of the next arrival, for a medium without a descriptor.
    fn next_arrival(&self) -> Option<Duration> {
        None
    }
}

/// Function that writes a datagram into the room for it, and returns its address and length in bytes; `None` if there is
/// none to be sent.
pub type WriteDatagram<'a> = &'a mut dyn FnMut(&mut [u8]) -> Option<(SocketAddr, usize)>;

/// A datagram or a report that comes in.
#[derive(Debug, Clone, Copy)]
pub enum Arrival<'a> {
    /// A received datagram.
    Datagram(&'a [u8]),
    /// A host reports that there is no receiver at this address (ICMP, RFC 792).
    Unreachable,
    /// A datagram to this address was too long for its path (RFC 1191, RFC 8201): call [`max_datagram_bytes`](DatagramIo::max_datagram_bytes)
    /// again.
    TooLong,
}

/// Counters of a port since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of datagrams sent.
    pub sent: u64,
    /// Number of datagrams received.
    pub received: u64,
    /// Number of datagrams that came and were dropped here because they were not received in time.
    pub dropped: u64,
    /// Number of frames that were not datagrams for this port, or damaged.
    pub foreign: u64,
    /// Number of bytes of pieces copied on the way out, by this process or by the kernel on its behalf.
    pub copied: u64,
}
