//! Faults: what a side finds wrong with what it receives, and the error codes that it answers with.

use crate::header::Opcode;
use crate::memory::{AccessError, MemoryRange, Stag};
use crate::terminate::ErrorCode;
use thiserror::Error;

/// A broken rule of RDMAP, DDP or the lower layer, found on this side. [`error_code`](Self::error_code) is what the
/// peer is informed with.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// A segment too short for its header.
    #[error("a segment of {bytes} bytes is too short for its header")]
    Truncated {
        /// Length in bytes.
        bytes: usize,
    },
    /// Another version of DDP than 1 (RFC 5041 §4.1).
    #[error("DDP version {version} instead of 1")]
    DdpVersion {
        /// Version found.
        version: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// Another version of RDMAP than 0 and 1 (RFC 5040 §4.1).
    #[error("RDMAP version {version}; 0 and 1 are valid")]
    RdmapVersion {
        /// Version found.
        version: u8,
    },
    /// An operation that no RFC defines (RFC 5040 §4.1, RFC 7306 §4.1).
    #[error("operation code {code:#06b}, which no RFC defines")]
    UnknownOpcode {
        /// Code found.
        code: u8,
    },
    /// A message that has no place where it came: on another queue or kind of buffer than its own, within another
    /// message, or an answer to no request.
    #[error("{opcode:?} is not expected {place}")]
    UnexpectedMessage {
        /// Operation of the message.
        opcode: Opcode,
        /// Place, as the rest of a sentence.
        place: &'static str,
    },
    /// A queue that is not one of the four (RFC 7306 §10.2).
    #[error("queue number {queue}; there are 0 to 3")]
    UnknownQueue {
        /// Number found.
        queue: u32,
    },
    /// A message with a number that is not its turn, or too far ahead (RFC 5041 §7.1 check 5).
    #[error("message {number} of queue {queue}, where {expected} is next")]
    MessageNumber {
        /// Queue number.
        queue: u32,
        /// Message sequence number found.
        number: u32,
        /// Number of the next message.
        expected: u32,
    },
    /// A segment that does not continue its message (RFC 5041 §7.1 check 3).
    #[error("byte {offset} of message {number}, where {expected} is next")]
    MessageOffset {
        /// Message sequence number.
        number: u32,
        /// Message offset found.
        offset: u32,
        /// Offset expected, or the length of the buffer where that is exceeded.
        expected: u32,
    },
    /// No receive is posted for a message (RFC 5041 §7.1 check 2).
    #[error("no receive is posted for message {number}: post receives before the peer sends")]
    NoReceive {
        /// Message sequence number.
        number: u32,
    },
    /// More Read and Atomic Requests at a time than agreed (RFC 5040 §6.1).
    #[error("more than {limit} Reads and atomics at a time, the IRD of this side")]
    TooManyRequests {
        /// Limit: the inbound read queue depth.
        limit: u16,
    },
    /// A message longer than its buffer (RFC 5041 §7.1 check 4).
    #[error("message {number} has {bytes} bytes or more, its buffer {limit}")]
    TooLong {
        /// Message sequence number.
        number: u32,
        /// Length in bytes up to the end of the segment.
        bytes: u64,
        /// Length of the buffer in bytes.
        limit: u64,
    },
    /// Memory that an RDMA Write or a Read Response must not write (RFC 5041 §7.1).
    #[error("{opcode:?} to STag {} offset {:#x} length {}: {reason}", range.stag, range.offset, range.length)]
    TaggedAccess {
        /// Operation of the message.
        opcode: Opcode,
        /// Memory of the access.
        range: MemoryRange,
        /// Reason of the refusal.
        reason: AccessError,
    },
    /// Memory that a Read Request or an Atomic Request must not access (RFC 5040 §7.2, RFC 7306 §8.2).
    #[error("{opcode:?} of STag {} offset {:#x} length {}: {reason}", range.stag, range.offset, range.length)]
    RequestAccess {
        /// Operation of the message.
        opcode: Opcode,
        /// Memory of the access.
        range: MemoryRange,
        /// Reason of the refusal.
        reason: AccessError,
    },
    /// A tag that a Send with Invalidate must not invalidate (RFC 5040 §5.3).
    #[error("STag {stag} is not to be invalidated by the peer: {reason}")]
    Invalidation {
        /// Tag to invalidate.
        stag: Stag,
        /// Reason of the refusal.
        reason: AccessError,
    },
    /// A message whose length is not the one of its operation (RFC 5040 §4.4, RFC 7306 §6.3).
    #[error("{opcode:?} of {bytes} bytes or more instead of {expected} in one segment")]
    WrongLength {
        /// Operation of the message.
        opcode: Opcode,
        /// Length in bytes.
        bytes: usize,
        /// Length in bytes of such a message.
        expected: usize,
    },
    /// A response that ends before all is there that was requested, or that names another request.
    #[error("{opcode:?} does not answer the request: {found} instead of {expected}")]
    ResponseMismatch {
        /// Operation of the message.
        opcode: Opcode,
        /// Bytes, or number, found.
        found: u64,
        /// Bytes, or number, of the request.
        expected: u64,
    },
    /// An atomic operation that RFC 7306 §10.1 leaves unassigned.
    #[error("an atomic operation that no RFC defines")]
    UnknownAtomic,
    /// Own memory that cannot be accessed: of a posted request, or of a receive.
    #[error("own memory, STag {} offset {:#x} length {}: {reason}", range.stag, range.offset, range.length)]
    LocalAccess {
        /// Memory of the access.
        range: MemoryRange,
        /// Reason of the refusal.
        reason: AccessError,
    },
    /// A local operation that was refused.
    #[error("local operation: {0}")]
    Local(AccessError),
    /// A segment arrived further ahead of the oldest missing one than the lower layer may be.
    #[error("more than {limit} segments arrived ahead of one that is missing")]
    TooFarAhead {
        /// Limit in segments.
        limit: usize,
    },
    /// The lower layer lost its connection, or received a closing within a message (RFC 5044 §8 code 1).
    #[error("the peer closed its half of the connection {place}")]
    Closed {
        /// Place, as the rest of a sentence.
        place: &'static str,
    },
    /// An error of the lower layer, or one that the owner of the stream reports.
    #[error("{0}")]
    Reported(ErrorCode),
}

impl Fault {
    /// Layer, type and code that the RFCs have for the fault.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Self::DdpVersion { tagged: true, .. } => ErrorCode::DDP_TAGGED_VERSION,
            Self::DdpVersion { tagged: false, .. } => ErrorCode::DDP_UNTAGGED_VERSION,
            Self::RdmapVersion { .. } => ErrorCode::RDMAP_VERSION,
            // RFC 7306 §5.2.1 rule 4 and §1: a code of an atomic that is not there is reported like an opcode.
            Self::UnknownOpcode { .. } | Self::UnexpectedMessage { .. } | Self::UnknownAtomic => {
                ErrorCode::RDMAP_OPCODE
            }
            Self::UnknownQueue { .. } => ErrorCode::DDP_QUEUE,
            Self::MessageNumber { .. } => ErrorCode::DDP_MESSAGE_NUMBER,
            Self::MessageOffset { .. } => ErrorCode::DDP_MESSAGE_OFFSET,
            // Queue 1 has as many buffers as the IRD (RFC 5040 §5.2.2), so one request more finds none.
            Self::NoReceive { .. } | Self::TooManyRequests { .. } => ErrorCode::DDP_NO_BUFFER,
            Self::TooLong { .. } => ErrorCode::DDP_TOO_LONG,
            Self::TaggedAccess { reason, .. } => tagged_code(*reason),
            Self::RequestAccess { reason, .. } => request_code(*reason),
            Self::Invalidation { .. } => ErrorCode::RDMAP_CANNOT_INVALIDATE,
            Self::Truncated { .. } | Self::WrongLength { .. } | Self::ResponseMismatch { .. } => {
                ErrorCode::RDMAP_OPERATION_UNSPECIFIED
            }
            Self::LocalAccess { .. } | Self::Local(_) | Self::TooFarAhead { .. } => ErrorCode::RDMAP_LOCAL_CATASTROPHIC,
            Self::Closed { .. } => ErrorCode::MPA_CLOSED,
            Self::Reported(code) => *code,
        }
    }
}

fn tagged_code(reason: AccessError) -> ErrorCode {
    match reason {
        AccessError::UnknownStag => ErrorCode::DDP_INVALID_STAG,
        AccessError::NotAssociated => ErrorCode::DDP_NOT_ASSOCIATED,
        AccessError::OutOfBounds => ErrorCode::DDP_BOUNDS,
        AccessError::Wrapped => ErrorCode::DDP_WRAP,
        // DDP has no code for rights (RFC 5041 §7.2); RDMAP, whose rights they are (RFC 5040 §3.2), has.
        AccessError::MissingRight | AccessError::Misaligned => ErrorCode::RDMAP_ACCESS_RIGHTS,
    }
}

fn request_code(reason: AccessError) -> ErrorCode {
    match reason {
        AccessError::UnknownStag => ErrorCode::RDMAP_INVALID_STAG,
        AccessError::NotAssociated => ErrorCode::RDMAP_NOT_ASSOCIATED,
        AccessError::OutOfBounds => ErrorCode::RDMAP_BOUNDS,
        AccessError::Wrapped => ErrorCode::RDMAP_WRAP,
        AccessError::MissingRight => ErrorCode::RDMAP_ACCESS_RIGHTS,
        // RFC 7306 §8.2: "Catastrophic error, localized to RDMAP Stream".
        AccessError::Misaligned => ErrorCode::RDMAP_STREAM_CATASTROPHIC,
    }
}
