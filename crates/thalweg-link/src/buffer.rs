//! The buffers of a TCP socket, sized from the beginning for everything that may be in flight.
//!
//! Linux gives a connection more room only after it has used what it had, round trip by round trip. If a source is
//! suddenly asked for much, whatever does not fit is sent a round trip later, all at once, into a switch port that was
//! not meant to take it.

use socket2::Socket;

/// Maximum size of a buffer, in bytes: its double must fit in an `int`.
const MAX_BUFFER_BYTES: usize = (i32::MAX / 2) as usize;

/// One of a socket's two buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    Receive,
    Send,
}

impl Buffer {
    /// Makes the buffer large enough for `bytes` (the kernel doubles that, for its own bookkeeping) and returns true if
    /// that is permitted: with CAP_NET_ADMIN, or within `net.core.rmem_max` and `net.core.wmem_max`. Otherwise the
    /// buffer is left to grow automatically, since a buffer whose size was once set does not grow.
    pub(crate) fn reserve_bytes(self, socket: &Socket, bytes: u64) -> bool {
        use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_BUFFER_BYTES);
        let forced = match self {
            Self::Receive => set_socket_recv_buffer_size_force(socket, bytes),
            Self::Send => set_socket_send_buffer_size_force(socket, bytes),
        };
        if forced.is_ok() {
            return true;
        }
        if self.max_unprivileged_bytes().is_none_or(|most| bytes > most) {
            return false;
        }
        match self {
            Self::Receive => socket.set_recv_buffer_size(bytes).is_ok(),
            Self::Send => socket.set_send_buffer_size(bytes).is_ok(),
        }
    }

    /// Returns the size that every process may set, in bytes.
    fn max_unprivileged_bytes(self) -> Option<usize> {
        let path = match self {
            Self::Receive => "/proc/sys/net/core/rmem_max",
            Self::Send => "/proc/sys/net/core/wmem_max",
        };
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}
