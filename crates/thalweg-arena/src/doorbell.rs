//! Waking a thread: in the same process by an eventfd, in another by a byte over the socket that connects the two. Both
//! can be waited for with `epoll`.

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use thiserror::Error;

/// Reason why a doorbell could not be made or used.
#[derive(Debug, Error)]
pub enum DoorbellError {
    /// The kernel refused.
    #[error("{doing} a doorbell: {error}")]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Error returned by the kernel.
        error: Errno,
    },
}

/// Wake-ups between threads of one process. A ring stays pending until it is cleared, and ringing twice has the effect
/// of ringing once.
///
/// Two processes that do not trust each other must not share a doorbell: a descriptor's flags are shared with it, and a
/// peer that removes `O_NONBLOCK` and fills the counter would block the thread that rings. They [`wake_over_socket`] a socket.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// Creates a doorbell that has not been rung.
    ///
    /// # Errors
    /// The kernel cannot make one, most likely for lack of descriptors.
    pub fn new() -> Result<Self, DoorbellError> {
        let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(system_error("making"))?;
        Ok(Self { fd })
    }

    /// Wakes the thread that waits for it.
    ///
    /// # Errors
    /// The kernel refuses: no thread was woken.
    pub fn wake_waiter(&self) -> Result<(), DoorbellError> {
        match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
            // The counter is full: the doorbell has been rung 2⁶⁴ times.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(system_error("ringing")(error)),
        }
    }

    /// Clears the doorbell and returns whether it had been rung. Call this before looking for the reason of the
    /// ringing, or a ring in between is lost. (In an `epoll` with `EPOLLET` it need not be cleared at all.)
    ///
    /// # Errors
    /// The kernel refuses. A doorbell that has not been rung is not an error.
    pub fn clear_wakeups(&self) -> Result<bool, DoorbellError> {
        match rustix::io::read(&self.fd, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(system_error("clearing")(error)),
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Byte that wakes the process at the other end of a socket.
pub const WAKE_BYTE: u8 = 0;

/// Wakes the process at the other end of a connection by one byte, [`WAKE_BYTE`], which it reads before it looks for
/// work. Never blocks, whatever the peer does to its end: if the peer does not read, earlier bytes wake it. Never
/// raises SIGPIPE: a peer that is gone has nothing to be woken for, and the end of the stream reports its absence.
///
/// # Errors
/// The kernel refuses: the peer was not woken.
pub fn wake_over_socket(socket: &UnixStream) -> Result<(), DoorbellError> {
    match send(socket, &[WAKE_BYTE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) | Err(Errno::AGAIN | Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(system_error("ringing")(error)),
    }
}

fn system_error(doing: &'static str) -> impl Fn(Errno) -> DoorbellError {
    move |error| DoorbellError::Os { doing, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_bell_rings_until_it_is_cleared() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.clear_wakeups().unwrap());
        bell.wake_waiter().unwrap();
        bell.wake_waiter().unwrap();
        assert!(bell.clear_wakeups().unwrap());
        assert!(!bell.clear_wakeups().unwrap());
    }

    #[test]
    fn a_bell_that_cannot_ring_any_louder_has_rung() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.wake_waiter().unwrap();
        assert!(bell.clear_wakeups().unwrap());
    }

    /// Both sockets are blocking: the call itself does not wait.
    #[test]
    fn a_peer_that_never_reads_is_woken_and_holds_nobody_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        (0..100_000).for_each(|_| wake_over_socket(&ours).unwrap());
        let mut bytes = vec![1; 200_000];
        let read = theirs.read(&mut bytes).unwrap();
        assert!((1..100_000).contains(&read) && bytes[..read].iter().all(|byte| *byte == WAKE_BYTE));
        drop(theirs);
        wake_over_socket(&ours).unwrap();
    }
}
