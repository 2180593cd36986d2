//! What the kernel knows of a TCP connection (`TCP_INFO`, tcp(7)).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// As far as we want to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TcpInfo {
    /// Bytes sent again.
    pub(crate) again: u64,
    /// Bytes that have arrived behind a gap.
    pub(crate) held: u64,
}

/// Asks the kernel. Nothing where it does not say, for a socket that is not TCP.
pub(crate) fn tcp_info(socket: impl AsFd) -> Option<TcpInfo> {
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
    // SAFETY: integers of which every bit pattern is one; what the kernel did not write is zero.
    let info = unsafe { info.assume_init() };
    let segment = u64::from(info.tcpi_snd_mss);
    (result == 0).then(|| TcpInfo {
        again: u64::from(info.tcpi_total_retrans) * segment,
        held: u64::from(info.tcpi_sacked) * segment,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_lost_nothing_says_so_and_a_file_says_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_info(&socket), Some(TcpInfo::default()));
        assert_eq!(tcp_info(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
