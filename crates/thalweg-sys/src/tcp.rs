//! State of a TCP connection, as the kernel reports it (`TCP_INFO`, tcp(7)). No other crate wraps this system call for
//! structures of every age: the kernel fills in the fields of the structure that it knows.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// State of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes that the other end has acknowledged, plus number of bytes received from it.
    pub moved: u64,
    /// True if bytes wait for the other end to take them.
    pub owes: bool,
    /// Number of bytes that wait for this end to read them.
    pub holds: u64,
}

/// Returns the state of a connection; `None` for a socket that is not TCP, or is gone.
pub fn connection_progress(socket: impl AsFd) -> Option<Progress> {
    let info = read_tcp_info(&socket)?;
    Some(Progress {
        moved: info.tcpi_bytes_acked + info.tcpi_bytes_received,
        owes: info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0,
        holds: rustix::io::ioctl_fionread(socket).unwrap_or(0),
    })
}

/// Returns the number of bytes that a connection has retransmitted; `None` for a socket that is not TCP, or is gone.
pub fn retransmitted_bytes(socket: impl AsFd) -> Option<u64> {
    let info = read_tcp_info(socket)?;
    Some(u64::from(info.tcpi_total_retrans) * u64::from(info.tcpi_snd_mss))
}

fn read_tcp_info(socket: impl AsFd) -> Option<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is valid for writes of `length` bytes, which is passed to the kernel; the descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    // SAFETY: integers for which every bit pattern is valid; the bytes that the kernel did not write are zero.
    (result == 0).then(|| unsafe { info.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    #[test]
    fn what_moved_and_who_waits_for_whom_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let before = connection_progress(&here).unwrap();
        assert_eq!((before.owes, before.holds), (false, 0));
        there.write_all(b"12345").unwrap();
        // The bytes have arrived when they can be read.
        here.peek(&mut [0; 5]).unwrap();
        let after = connection_progress(&here).unwrap();
        assert_eq!((after.moved - before.moved, after.holds), (5, 5));
        here.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(connection_progress(&here).unwrap().holds, 0);
        // More than the two sockets take: the rest waits at this end.
        here.set_nonblocking(true).unwrap();
        while here.write(&[0; 65536]).is_ok() {}
        assert!(connection_progress(&here).unwrap().owes);
        assert_eq!(connection_progress(File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn a_connection_that_lost_nothing_says_so_and_a_file_says_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(retransmitted_bytes(&socket), Some(0));
        assert_eq!(retransmitted_bytes(File::open("/dev/null").unwrap()), None);
    }
}
