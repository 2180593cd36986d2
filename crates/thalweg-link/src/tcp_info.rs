//! What the kernel knows of a TCP connection (`TCP_INFO`, tcp(7)).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that a connection has sent again. Nothing where the kernel does not say, for a socket that is not TCP.
pub(crate) fn sent_again(socket: impl AsFd) -> Option<u64> {
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
    (result == 0).then(|| u64::from(info.tcpi_total_retrans) * u64::from(info.tcpi_snd_mss))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_lost_nothing_says_so_and_a_file_says_nothing() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(sent_again(&socket), Some(0));
        assert_eq!(sent_again(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
