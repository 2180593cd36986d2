//! Waking a thread in another process: an eventfd that goes into its `epoll`.

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, ReadWriteFlags};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use thiserror::Error;

/// Why a doorbell could not be made, taken over or used.
#[derive(Debug, Error)]
pub enum DoorbellError {
    /// The kernel refused.
    #[error("{doing} a doorbell (eventfd): {error}")]
    Os {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        error: Errno,
    },
    /// Another kind of file, or an eventfd that counts down one by one.
    #[error("what was handed over is not a doorbell (an eventfd without EFD_SEMAPHORE)")]
    NotADoorbell,
}

/// One direction of wake-ups. Ringing is remembered until it is cleared, and ringing twice is ringing once.
///
/// The file description is shared with the peer, and with it the flag `O_NONBLOCK`. [`Doorbell::clear`] does not depend
/// on it. [`Doorbell::ring`] does, for lack of a flag of its own in `write`: a peer that takes the flag away and fills
/// the counter can hold up the thread that rings. Who cannot live with that keeps such a peer out (the socket's
/// permissions, `SO_PEERCRED`).
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

    /// Takes over a doorbell that another process made.
    ///
    /// # Errors
    /// [`DoorbellError::NotADoorbell`] where `fd` is another kind of file; others where the kernel does not tell, or
    /// refuses. The descriptor is closed then.
    pub fn import(fd: OwnedFd) -> Result<Self, DoorbellError> {
        // A peer may send any file. Writing 8 bytes to one that is not an eventfd could block, or do harm.
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
            .map_err(|error| os("reading /proc/self/fdinfo for")(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let field = |name| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // Kernels before 6.5 do not print the second field.
        if field("eventfd-count:").is_none() || field("eventfd-semaphore:").is_some_and(|mode| mode != "0") {
            return Err(DoorbellError::NotADoorbell);
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(os("taking over"))?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(os("taking over"))?;
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(os("taking over"))?;
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
        let mut count = [0; 8];
        // Not `read`: RWF_NOWAIT is ours, O_NONBLOCK is shared with the peer. Offset -1 means "as read does", see
        // preadv2(2).
        let mut into = [IoSliceMut::new(&mut count)];
        match rustix::io::preadv2(&self.fd, &mut into, u64::MAX, ReadWriteFlags::NOWAIT) {
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

fn os(doing: &'static str) -> impl Fn(Errno) -> DoorbellError {
    move |error| DoorbellError::Os { doing, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_hear_the_same_bell() {
        let ours = Doorbell::new().unwrap();
        let theirs = Doorbell::import(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(!ours.clear().unwrap());
        theirs.ring().unwrap();
        theirs.ring().unwrap();
        assert!(ours.clear().unwrap());
        assert!(!ours.clear().unwrap() && !theirs.clear().unwrap());
    }

    #[test]
    fn a_bell_that_cannot_ring_any_louder_has_rung() {
        let bell = Doorbell::new().unwrap();
        rustix::io::write(&bell.fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        bell.ring().unwrap();
        assert!(bell.clear().unwrap());
    }

    #[test]
    fn clearing_never_blocks_whatever_the_peer_does_to_the_flags() {
        let bell = Doorbell::new().unwrap();
        rustix::fs::fcntl_setfl(&bell.fd, OFlags::empty()).unwrap();
        assert!(!bell.clear().unwrap());
        let theirs = Doorbell::import(bell.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&theirs).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn other_files_are_not_doorbells() {
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Doorbell::import(file.into()), Err(DoorbellError::NotADoorbell)));
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(matches!(Doorbell::import(pipe), Err(DoorbellError::NotADoorbell)));
    }
}
