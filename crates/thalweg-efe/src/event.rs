//! Events of a port's connections, and errors of calls.

use crate::Class;
use std::time::Duration;

/// Name of a connection at a port. The name of a connection that is over is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Change of a connection, from [`Port::next_event`](crate::Port::next_event).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<P> {
    /// A peer wants to connect, and has shown that it receives at its address. To be answered by
    /// [`Port::accept_connection`](crate::Port::accept_connection) or
    /// [`Port::reject_connection`](crate::Port::reject_connection).
    Incoming {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the peer.
        private: Box<[u8]>,
    },
    /// The connection is open at both ends.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the peer; empty at the end that accepted.
        private: Box<[u8]>,
        /// Maximum length of a packet, in bytes.
        max_packet_bytes: usize,
    },
    /// The peer's upper layer has accepted a packet and all earlier ones of its class. Reported once for each packet,
    /// in the order of sending.
    Acknowledged {
        /// The connection.
        connection: ConnectionId,
        /// Class of the packet.
        class: Class,
        /// Sequence number of the packet.
        sequence: u32,
        /// The packet, which is not needed any more.
        packet: P,
    },
    /// The peer has closed its half: it sends no more packets, and all it has sent were accepted here.
    PeerFinished {
        /// The connection.
        connection: ConnectionId,
    },
    /// Both halves are closed, and the connection is over.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection is over, and packets may have been lost.
    Failed {
        /// The connection.
        connection: ConnectionId,
        /// Reason of the end.
        error: ConnectionError,
    },
}

/// Reason for the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer has rejected the connection.
    #[error("the peer rejected the connection: see its log, or the private data ({} bytes) it sent", private.len())]
    Rejected {
        /// Private data of the peer.
        private: Box<[u8]>,
    },
    /// The connection could not be opened.
    #[error(
        "the peer did not complete the connection within {waited:?}: check its address, that it listens, that both ends have one \
         version, and that the network carries frames of {max_frame_bytes} bytes"
    )]
    NotOpened {
        /// Time since the connection was begun.
        waited: Duration,
        /// Length of the frames that the network must carry, in bytes.
        max_frame_bytes: usize,
    },
    /// The peer does not answer.
    #[error(
        "nothing was received from the peer for {waited:?} (time-out {timeout:?}): its host, its process or the network is down"
    )]
    Silent {
        /// Time since the last frame of the peer.
        waited: Duration,
        /// Time-out of the connection ([`Options::peer_timeout`](crate::Options::peer_timeout),
        /// [`Port::set_peer_timeout`](crate::Port::set_peer_timeout)).
        timeout: Duration,
    },
    /// The path to the peer does not carry the connection's frames any more.
    #[error(
        "the path to the peer carries frames of {path_bytes} bytes, and the connection has frames of up to {frame_bytes}: \
         connect again"
    )]
    PathTooNarrow {
        /// Maximum length on the path, in bytes.
        path_bytes: usize,
        /// Maximum length on the connection, in bytes.
        frame_bytes: usize,
    },
    /// The peer was restarted.
    #[error("the peer was restarted: its new instance knows nothing of this connection; connect again")]
    Restarted,
    /// The peer has no such connection.
    #[error("the peer has no such connection any more: it was restarted, or gave the connection up; connect again")]
    Forgotten,
    /// The peer has ended the connection.
    #[error("the peer ended the connection with code {code}")]
    Aborted {
        /// Code of the peer's upper layer.
        code: u32,
        /// Private data of the peer.
        private: Box<[u8]>,
    },
}

/// Reason for which a connection was not begun or answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The private data is too long.
    #[error("{0} bytes of private data; at most {max} are possible", max = crate::MAX_PRIVATE_BYTES)]
    PrivateTooLong(usize),
    /// There are too many connections.
    #[error("the port has {0} connections, as many as `max_connections` allows")]
    TooMany(usize),
    /// The connection does not wait for an answer: it is over, or was answered before.
    #[error("the connection does not wait to be accepted or rejected: it was answered already, or is over")]
    NotWaiting,
}

/// Reason for which a packet was not taken, and the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendError<P> {
    /// The packet.
    pub packet: P,
    /// Reason for which it was not taken.
    pub reason: SendRefusal,
}

/// Reason for which a packet was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendRefusal {
    /// As many packets of the class as the window holds are not acknowledged: send again after the next
    /// [`Event::Acknowledged`].
    #[error("{} packets of this class wait for acknowledgements, as many as the window holds", crate::WINDOW_PACKETS)]
    WindowFull,
    /// The packet is too long.
    #[error("a packet of {bytes} bytes; frames to this peer hold {max}")]
    TooLong {
        /// Length of the packet, in bytes.
        bytes: usize,
        /// Maximum length, in bytes.
        max: usize,
    },
    /// The connection is not open.
    #[error("the connection is not open: it waits for its peer, its half was closed, or it is over")]
    NotOpen,
}
