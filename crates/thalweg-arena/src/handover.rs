//! Handing memory to another process: file descriptors over a Unix socket (`SCM_RIGHTS`, unix(7)).

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use thiserror::Error;

/// Maximum number of descriptors that the kernel takes in one message (`SCM_MAX_FD`, unix(7)).
pub const MAX_FDS: usize = 253;

/// Reason why descriptors could not be sent or received.
#[derive(Debug, Error)]
pub enum HandoverError {
    /// The socket's own error. `WouldBlock` on a non-blocking socket is one of them: nothing has happened, try again
    /// later.
    #[error("sending file descriptors: {0}")]
    Io(#[from] io::Error),
    /// Descriptors travel with bytes, and there were none.
    #[error("file descriptors can only be sent together with at least one byte of data")]
    NoBytes,
    /// The descriptors are more than the kernel takes in one message.
    #[error("cannot send {0} file descriptors at once: the limit is {MAX_FDS}")]
    TooManyToSend(usize),
    /// The peer sent more descriptors than was agreed, or this process may open no more files. All of them have been
    /// closed.
    #[error("received more file descriptors than the {expected} expected, or than RLIMIT_NOFILE allows this process")]
    TooMany {
        /// Maximum number of descriptors that was expected.
        expected: usize,
    },
}

impl HandoverError {
    /// Returns whether the socket was merely not ready.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Sends `bytes` and, with the first of them, `fds`. Returns the number of bytes sent: at least one, and then the
/// descriptors are sent too; send the rest of the bytes without them. Never raises SIGPIPE.
///
/// # Errors
/// `bytes` is empty, `fds` are more than [`MAX_FDS`], or the socket fails. Nothing was sent.
pub fn send_fds(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, HandoverError> {
    if bytes.is_empty() {
        return Err(HandoverError::NoBytes);
    }
    if fds.len() > MAX_FDS {
        return Err(HandoverError::TooManyToSend(fds.len()));
    }
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(HandoverError::TooManyToSend(fds.len()));
    }
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(HandoverError::Io(error.into())),
            Ok(sent) => return Ok(sent),
        }
    }
}

/// Receives bytes into `buf` and at most `max` descriptors that came with them, which will be closed on `exec`. Returns
/// the number of bytes received, 0 at the end of the stream, and the descriptors.
///
/// # Errors
/// [`HandoverError::TooMany`] if more descriptors come: all are closed, and the bytes that came with them are lost.
/// Otherwise the socket's error: nothing was received.
pub fn recv_fds(socket: &UnixStream, buf: &mut [u8], max: usize) -> Result<(usize, Vec<OwnedFd>), HandoverError> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(max.min(MAX_FDS)))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(HandoverError::Io(error.into())),
            Ok(received) => break received,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // The buffer's padding may have room for one more than asked for, without truncation: check the count as well.
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > max {
        return Err(HandoverError::TooMany { expected: max });
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;
    use rustix::io::FdFlags;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn arenas_change_hands() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut span = Arena::create("handover", 1).unwrap();
        span[7] = 42;
        let other = Arena::create("other", 1).unwrap();
        assert_eq!(send_fds(&ours, b"hello", &[span.arena().fd(), other.arena().fd()]).unwrap(), 5);
        let mut buf = [0; 100];
        let (n, fds) = recv_fds(&theirs, &mut buf, 2).unwrap();
        assert_eq!(&buf[..n], b"hello");
        assert!(fds.iter().all(|fd| rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)));
        let [memory, their_other] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let mut byte = [0];
        Arena::import(memory).unwrap().view_range(7, 1).unwrap().copy_bytes_to(0, &mut byte);
        assert_eq!(byte, [42]);
        assert_eq!(Arena::import(their_other).unwrap().size_bytes(), other.len());
    }

    #[test]
    fn more_than_expected_is_refused_and_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // A pipe shows when the last copy of its writing end is closed.
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        for (sent, expected) in [(1, 0), (2, 1), (3, 2), (3, 1), (MAX_FDS, 4)] {
            send_fds(&ours, b"x", &vec![writes.as_fd(); sent]).unwrap();
            let refused = recv_fds(&theirs, &mut [0; 10], expected);
            assert!(matches!(refused, Err(HandoverError::TooMany { expected: e }) if e == expected), "{sent}");
        }
        drop(writes);
        assert_eq!(rustix::io::read(&reads, &mut [0; 1]), Ok(0));
    }

    #[test]
    fn plain_bytes_come_without_descriptors_and_the_end_is_told() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut buf = [0; 10];
        assert!(recv_fds(&theirs, &mut buf, 1).unwrap_err().is_would_block());
        ours.write_all(b"abc").unwrap();
        assert!(matches!(recv_fds(&theirs, &mut buf, 1), Ok((3, fds)) if fds.is_empty()));
        send_fds(&ours, b"d", &[]).unwrap();
        assert!(matches!(recv_fds(&theirs, &mut buf, 0), Ok((1, _))));
        drop(ours);
        assert!(matches!(recv_fds(&theirs, &mut buf, 1), Ok((0, _))));
        assert!(
            matches!(send_fds(&theirs, b"e", &[]), Err(HandoverError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe)
        );
    }

    #[test]
    fn a_full_socket_is_not_an_error_of_ours() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (_reads, writes) = rustix::pipe::pipe().unwrap();
        let refused = (0..10_000).find_map(|_| send_fds(&ours, &[0; 4096], &[writes.as_fd()]).err());
        // ETOOMANYREFS, where the limit of descriptors in flight (RLIMIT_NOFILE) is reached before the socket's buffer
        // is full.
        assert!(
            refused.is_some_and(|error| error.is_would_block() || error.to_string().contains("Too many references"))
        );
    }

    #[test]
    fn what_cannot_be_sent_is_said_beforehand() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let fd = ours.as_fd();
        assert!(matches!(send_fds(&ours, &[], &[fd]), Err(HandoverError::NoBytes)));
        assert!(matches!(send_fds(&ours, b"x", &[fd; MAX_FDS + 1]), Err(HandoverError::TooManyToSend(254))));
    }
}
