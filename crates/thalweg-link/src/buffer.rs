//! A TCP socket's buffers, for all that may be on its way from the beginning.
//!
//! Linux gives a connection more room only as it has used what it had, round trip by round trip. Where much is asked of
//! a source suddenly, what does not fit is sent a round trip later, all at once, into a switch port that was not meant
//! to take it.

use socket2::Socket;

/// Bytes of a buffer are no more, doubled, than an `int` tells.
const MOST: usize = (i32::MAX / 2) as usize;

/// Which of a socket's two.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    Receive,
    Send,
}

impl Buffer {
    /// Makes it large enough for so many bytes (the kernel doubles that, for its own bookkeeping) and tells whether it
    /// may: with CAP_NET_ADMIN, or within `net.core.rmem_max` and `net.core.wmem_max`. Otherwise it is left to grow by
    /// itself, since what was once set does not.
    pub(crate) fn hold(self, socket: &Socket, bytes: u64) -> bool {
        use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(MOST);
        let forced = match self {
            Self::Receive => set_socket_recv_buffer_size_force(socket, bytes),
            Self::Send => set_socket_send_buffer_size_force(socket, bytes),
        };
        let set = || match self {
            Self::Receive => socket.set_recv_buffer_size(bytes),
            Self::Send => socket.set_send_buffer_size(bytes),
        };
        forced.is_ok() || self.most().is_some_and(|most| bytes <= most) && set().is_ok()
    }

    /// What everybody may set.
    fn most(self) -> Option<usize> {
        let path = match self {
            Self::Receive => "/proc/sys/net/core/rmem_max",
            Self::Send => "/proc/sys/net/core/wmem_max",
        };
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}
