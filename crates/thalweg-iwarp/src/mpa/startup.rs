//! Start-up of an MPA connection: request and reply frames (RFC 5044 §7.1, RFC 6581).

use crate::settings::FirstMessage;
use crate::terminate::ErrorCode;
use std::time::Duration;
use thiserror::Error;

/// Most private data of a frame in bytes (RFC 5044 §7.1.1). An enhanced frame has 4 bytes less for the program.
pub const MAX_PRIVATE_DATA_BYTES: usize = 512;
/// Largest number of Reads that can be negotiated (RFC 6581 §9: 14 bits, of which all ones mean something else).
pub const MAX_READ_DEPTH: u16 = 0x3ffe;

/// Numbers of Reads and atomics at a time (RFC 6581 §9.1). None: not negotiated, the program sees to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadDepths {
    /// Of the peer, served here (IRD).
    pub inbound: Option<u16>,
    /// Of this side, on their way (ORD).
    pub outbound: Option<u16>,
}

/// Enhanced set-up that an initiator asks for (RFC 6581).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EnhancedOffer {
    /// Numbers of Reads at a time.
    pub depths: ReadDepths,
    /// Whether either side may be the first to send: the initiator then sends a ready-to-receive message by itself.
    pub peer_to_peer: bool,
}

/// Wishes of a side for its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartupOffer {
    /// Whether CRCs are wanted. They are used unless neither side wants them; by default they must be wanted (RFC 5044
    /// §4.4).
    pub crc: bool,
    /// Whether the peer must send markers. Only tests ask for them.
    pub markers: bool,
    /// Bytes for the peer's program.
    pub private_data: Vec<u8>,
    /// Enhanced set-up; none for revision 1, as RFC 6581 §10 demands where nothing of it is needed.
    pub enhanced: Option<EnhancedOffer>,
    /// Reads at a time in both directions where they are not negotiated.
    pub default_depth: u16,
    /// Time that the peer has for its frame.
    pub timeout: Duration,
}

/// Terms of a connection that both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Whether FPDUs have CRCs.
    pub crc: bool,
    /// Whether this side sends markers.
    pub send_markers: bool,
    /// Whether the peer sends markers.
    pub receive_markers: bool,
    /// Reads and atomics of the peer that are served at a time.
    pub inbound_requests: u16,
    /// Reads and atomics of this side at a time.
    pub outbound_requests: u16,
    /// First message of the stream.
    pub first_message: FirstMessage,
    /// Depths as the peer stated them; none without enhanced set-up.
    pub peer_depths: Option<ReadDepths>,
}
