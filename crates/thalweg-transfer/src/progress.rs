//! How far a connection is, seen from outside the thread that moves its bytes (`TCP_INFO`, tcp(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// What the kernel knows of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the other end has acknowledged, and bytes that came from it.
    pub moved: u64,
    /// Bytes wait for the other end to take them.
    pub owes: bool,
    /// Bytes that wait for this end to read them.
    pub holds: u64,
}

/// How far a connection is; nothing for a socket that is not TCP, or has gone.
pub fn progress(socket: BorrowedFd<'_>) -> Option<Progress> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is valid for writes of `length` bytes, which the kernel is told; the descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: integers of which every bit pattern is one; what the kernel did not write is zero.
    let info = unsafe { info.assume_init() };
    Some(Progress {
        moved: info.tcpi_bytes_acked + info.tcpi_bytes_received,
        owes: info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0,
        holds: rustix::io::ioctl_fionread(socket).unwrap_or(0),
    })
}

/// Sends again when the socket's `SO_SNDTIMEO` is over, as long as the other end has taken something meanwhile. The kernel lets who waits
/// go on when a third of the send buffer is free (`sk_stream_write_space`), and that may be megabytes.
///
/// # Errors
/// As `send`; `WouldBlock` where a time-out passed in which the other end took nothing, or the socket is not TCP.
pub fn while_it_moves<T>(to: BorrowedFd<'_>, mut send: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut moved = 0;
    loop {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match progress(to).filter(|progress| progress.moved > moved) {
                    Some(progress) => moved = progress.moved,
                    None => return Err(error),
                }
            }
            sent => return sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn what_moved_and_who_waits_for_whom_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let before = progress(here.as_fd()).unwrap();
        assert_eq!((before.owes, before.holds), (false, 0));
        there.write_all(b"12345").unwrap();
        // It is here when it can be read.
        here.peek(&mut [0; 5]).unwrap();
        let after = progress(here.as_fd()).unwrap();
        assert_eq!((after.moved - before.moved, after.holds), (5, 5));
        here.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(progress(here.as_fd()).unwrap().holds, 0);
        // More than the two sockets take: the rest waits here.
        here.set_nonblocking(true).unwrap();
        while here.write(&[0; 65536]).is_ok() {}
        assert!(progress(here.as_fd()).unwrap().owes);
        assert_eq!(progress(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }
}
