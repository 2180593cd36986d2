//! Settings of a stream, and the errors of its calls.

use thiserror::Error;

/// Smallest maximum of a segment in bytes (RFC 5044 §4.5: the MULPDU is never below 128).
pub const MIN_SEGMENT_LIMIT_BYTES: usize = 128;

/// First message of a stream, as the start-up of the lower layer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FirstMessage {
    /// Either side may send at once: the start-up is complete on both sides (EFE).
    #[default]
    Either,
    /// This side of an MPA connection is the responder: it sends nothing until it has received a segment (RFC 5044
    /// §7.1.2 rule 4).
    AwaitPeer,
    /// This side first sends a Write of no bytes (RFC 6581 §9.2 flag C). It has no completion.
    ReadyByWrite,
    /// This side first sends a Read of no bytes (RFC 6581 §9.2 flag D). It has no completion.
    ReadyByRead,
}

/// Settings of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSettings {
    /// Longest segment of the lower layer in bytes, headers of DDP included (MULPDU).
    pub segment_limit_bytes: usize,
    /// Reads and atomics of the peer that are served at a time (IRD).
    pub inbound_requests: u16,
    /// Reads and atomics of this side that are on their way at a time (ORD).
    pub outbound_requests: u16,
    /// First message.
    pub first_message: FirstMessage,
    /// Whether a message for which no receive is posted waits in the lower layer
    /// ([`ReceiveOutcome::NoReceive`](crate::ReceiveOutcome::NoReceive)), as RFC 5041 §7.1 allows. If not, it ends the
    /// stream.
    pub wait_for_receives: bool,
    /// Whether Sends may carry 4 bytes beside their data, as InfiniBand's do. No RFC defines it: it takes the
    /// experimental operation code (RFC 6580 §3.4), and both sides must be streams of this crate.
    pub send_with_immediate: bool,
    /// Segments that may arrive ahead of one that is missing. 0 for a lower layer that delivers in order.
    pub segments_ahead: usize,
}

impl Default for StreamSettings {
    /// Settings for MPA over TCP with segments of 1460 bytes.
    fn default() -> Self {
        Self {
            segment_limit_bytes: 1454,
            inbound_requests: 16,
            outbound_requests: 16,
            first_message: FirstMessage::default(),
            wait_for_receives: false,
            send_with_immediate: false,
            segments_ahead: 0,
        }
    }
}

/// Error of settings that no stream can have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// Segments would be too short.
    #[error("segments of {bytes} bytes: a lower layer must carry {MIN_SEGMENT_LIMIT_BYTES} to 65535 (RFC 5044 §4.5)")]
    SegmentLimit {
        /// Limit given.
        bytes: usize,
    },
    /// A first Read would exceed the number of Reads.
    #[error("a Read as ready-to-receive message needs an ORD of 1 or more")]
    ReadyByRead,
}

/// Error of a work request that cannot be posted. It is not queued, and has no completion.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PostError {
    /// The data is too long for one message.
    #[error("{bytes} bytes of data: a message has less than 2^32 (RFC 5041 §5.2)")]
    TooLong {
        /// Length in bytes.
        bytes: u64,
    },
    /// The connection was set up for no Reads.
    #[error("a Read or an atomic on a connection with an ORD of 0: ask for a larger one when connecting")]
    NoOutboundRequests,
    /// The result of an atomic has another length than 8 bytes.
    #[error("the result of an atomic has 8 bytes, its memory {bytes}")]
    AtomicResult {
        /// Length in bytes of the range given.
        bytes: u32,
    },
    /// Sends cannot carry 4 bytes here.
    #[error("Send with Immediate on a stream without it: iWARP has none; post a Send and an Immediate")]
    SendWithImmediate,
    /// The stream was closed.
    #[error("the sending half of the stream was closed")]
    Closed,
}
