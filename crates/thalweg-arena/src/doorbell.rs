//! Waking a thread: of one's own process by an eventfd, of another by a byte over the socket that connects the two.
//! Both go into its `epoll`.

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use thiserror::Error;

/// Why a doorbell could not be made or used.
#[derive(Debug, Error)]
pub enum DoorbellError {
    /// The kernel refused.
    #[error("{doing} a doorbell: {error}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        error: Errno,
    },
}

/// Wake-ups between threads of one process. Ringing is remembered until it is cleared, and ringing twice is ringing once.
///
/// Two processes that do not trust each other share none: a descriptor's flags are shared with it, and a peer that takes
/// `O_NONBLOCK` away and fills the counter would hold up the thread that rings. They [`wake_over`] a socket.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// Makes a doorbell that has not been rung.
    ///
    /// # Errors
    /// Where the kernel makes none: for lack of descriptors, most likely.
    pub fn new() -> Result<Self, DoorbellError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(os("making"))?;
        Ok(Self { fd })
    }

    /// Wakes whoever waits for it.
    ///
    /// # Errors
    /// Where the kernel refuses: nobody was woken then.
    pub fn ring(&self) -> Result<(), DoorbellError> {
        match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
            // The counter is full: it has been rung, 2⁶⁴ times.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(os("ringing")(error)),
        }
    }

    /// Makes it silent again, and says whether it had been rung. Do this before looking for what the ringing was about,
    /// or a ring in between is lost. (In an `epoll` with `EPOLLET` it need not be cleared at all.)
    ///
    /// # Errors
    /// Where the kernel refuses. That it has not been rung is no error.
    pub fn clear(&self) -> Result<bool, DoorbellError> {
        match rustix::io::read(&self.fd, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(os("clearing")(error)),
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The byte that wakes the process at the other end of a socket.
pub const WAKE: u8 = 0;

/// Wakes the process at the other end of a connection by one byte, [`WAKE`], which it reads before it looks for what
/// there is. Never waits, whatever the peer does to its end: where it does not read, earlier bytes wake it. Never raises
/// SIGPIPE: a peer that is gone has nothing to be woken for, and the socket's end tells of it.
///
/// # Errors
/// Where the kernel refuses: the peer was not woken then.
pub fn wake_over(socket: &UnixStream) -> Result<(), DoorbellError> {
    match send(socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(os("ringing")(error)),
    }
}

fn os(doing: &'static str) -> impl Fn(Errno) -> DoorbellError {
    move |error| DoorbellError::Os { doing, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_bell_rings_until_it_is_cleared() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.clear().unwrap());
        bell.ring().unwrap();
        bell.ring().unwrap();
        assert!(bell.clear().unwrap());
        assert!(!bell.clear().unwrap());
    }

    #[test]
    fn a_bell_that_cannot_ring_any_louder_has_rung() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.clear().unwrap());
    }

    /// Both sockets block: it is the call that does not wait.
    #[test]
    fn a_peer_that_never_reads_is_woken_and_holds_nobody_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        (0..100_000).for_each(|_| wake_over(&ours).unwrap());
        let mut bytes = vec![1; 200_000];
        let read = theirs.read(&mut bytes).unwrap();
        assert!((1..100_000).contains(&read) && bytes[..read].iter().all(|byte| *byte == WAKE));
        drop(theirs);
        wake_over(&ours).unwrap();
    }
}
