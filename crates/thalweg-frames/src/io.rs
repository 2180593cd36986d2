//! A port: what everything that carries datagrams can do.

use crate::FramesError;
use std::fmt::Debug;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Piece};

/// One port of one host, which sends and receives datagrams in bursts. Non-blocking.
pub trait FrameIo: Debug + Send {
    /// Registers memory that pieces will lie in, where the medium needs to know it. Before any of them is sent.
    ///
    /// # Errors
    /// The medium does not take it.
    fn register(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        let _ = memory;
        Ok(())
    }

    /// Where others send to.
    fn local(&self) -> SocketAddr;

    /// What a name and a port stand for here: `HOST:PORT`.
    ///
    /// # Errors
    /// Nobody has that name.
    fn resolve(&self, place: &str) -> io::Result<SocketAddr> {
        let mut found = place.to_socket_addrs()?;
        found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    }

    /// Most bytes of a datagram to there, head and piece together, as far as is known here: what the first cable lets
    /// through, and what a router further on has complained of.
    ///
    /// # Errors
    /// Nothing leads there.
    fn longest(&mut self, to: SocketAddr) -> Result<usize, FramesError>;

    /// Takes care that so many bytes of pieces may be on their way to here at a time, and says how many may.
    fn hold(&mut self, bytes: u64) -> u64;

    /// Whether [`send`](Self::send) takes one more datagram before the next [`flush`](Self::flush).
    fn has_room(&mut self) -> bool;

    /// Takes a datagram into the burst that is sent with the next [`flush`](Self::flush). Where there is no room it is
    /// lost.
    fn send(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>);

    /// How often a byte of a piece is copied on its way out, and a byte of a datagram before [`receive`](Self::receive)
    /// shows it: by this process, or by the kernel on its behalf.
    fn copies(&self) -> (u64, u64);

    /// Sends what was taken. False where not all of it went: the descriptor tells when there is room.
    ///
    /// # Errors
    /// Nothing can be sent any more.
    fn flush(&mut self) -> Result<bool, FramesError>;

    /// Hands what has come to `each`: a burst, at most. True where more may be waiting.
    ///
    /// # Errors
    /// Nothing can be received any more.
    fn receive(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError>;

    /// What to wait on, where there is a descriptor.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// To be called before waiting: from now on the descriptor tells of what comes. False where something has come
    /// already.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// Whether [`receive`](Self::receive) finds what has come without a system call, so that it costs little to look.
    fn sees(&self) -> bool {
        false
    }

    /// What it has counted.
    fn counters(&self) -> Counters;

    /// What time it is: the caller's time, but for a medium with a time of its own.
    fn time(&self, now: Duration) -> Duration {
        now
    }

    /// A number that nobody guesses, where the medium draws such numbers: that of a test, so that its course can be
    /// repeated.
    fn draw(&mut self) -> Option<u64> {
        None
    }

    /// When something will have come: of a medium without a descriptor.
    fn next_arrival(&self) -> Option<Duration> {
        None
    }
}

/// What comes in.
#[derive(Debug, Clone, Copy)]
pub enum Arrival<'a> {
    /// A datagram.
    Datagram(&'a [u8]),
    /// A host says that nobody is at this address (ICMP, RFC 792).
    Nobody,
    /// What was sent there was too long for the way (RFC 1191, RFC 8201): ask [`longest`](FrameIo::longest) again.
    TooLong,
}

/// What a port has counted since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams that came and were dropped here, since nobody fetched them in time.
    pub dropped: u64,
    /// Frames that were no datagrams for this port, or damaged.
    pub foreign: u64,
    /// Bytes of pieces copied on the way out, by this process or by the kernel on its behalf.
    pub copied: u64,
}
