//! Work requests, completions, and the other events of a stream.

use crate::fault::Fault;
use crate::memory::{AccessError, MemoryRange, Stag};
use crate::terminate::Terminate;
use thiserror::Error;

/// A place in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Tag of the memory, as the peer announced it.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

/// Data of a Write or a Send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Ranges of the owner's memory, sent one after another from where they lie.
    Gathered(Vec<MemoryRange>),
    /// Bytes that were copied when the request was posted.
    Inline(Vec<u8>),
}

impl Payload {
    /// Length in bytes of all parts.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Gathered(ranges) => ranges.iter().map(|range| u64::from(range.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// A 64-bit atomic operation (RFC 7306 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds, in fields: each bit that is set in the mask is the highest of a field, out of which nothing is carried.
    FetchAdd {
        /// Number to add.
        add: u64,
        /// Highest bits of the fields; 0 for one field of 64 bits.
        mask: u64,
    },
    /// Replaces the bits of `swap_mask` by those of `swap` where the bits of `compare_mask` equal those of `compare`.
    CompareSwap {
        /// Bits to compare with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits to write.
        swap: u64,
        /// Bits that are written.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// Returns the value after the operation.
    pub fn apply(&self, original: u64) -> u64 {
        match *self {
            // RFC 7306 §5.1.1: the sum without the highest bits of the fields carries within each field only. The
            // highest bits are then added without carry.
            Self::FetchAdd { add, mask } => ((original & !mask).wrapping_add(add & !mask)) ^ ((original ^ add) & mask),
            // RFC 7306 §5.1.2, the pseudocode.
            Self::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (compare ^ original) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }
}

/// Operation of a work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// RDMA Write (RFC 5040 §5.1). With `immediate`, Immediate Data follows it (RFC 7306 §6) and consumes a receive of
    /// the peer's; the two complete as one.
    Write {
        /// Place that is written.
        remote: RemoteAddress,
        /// Bytes to send.
        data: Payload,
        /// The 8 bytes of Immediate Data to follow.
        immediate: Option<[u8; 8]>,
    },
    /// RDMA Read (RFC 5040 §5.2) into ranges of the owner's memory, one after another.
    Read {
        /// Place that is read.
        remote: RemoteAddress,
        /// Memory for the data.
        into: Vec<MemoryRange>,
    },
    /// Send, or Send with Invalidate (RFC 5040 §5.3).
    Send {
        /// Bytes to send.
        data: Payload,
        /// Tag that the peer invalidates when the Send is delivered.
        invalidate: Option<Stag>,
    },
    /// Send that carries 4 bytes beside its data. No RFC has it: see
    /// [`StreamSettings::send_with_immediate`](crate::StreamSettings::send_with_immediate).
    SendWithImmediate {
        /// Bytes to send.
        data: Payload,
        /// The 4 bytes.
        immediate: [u8; 4],
    },
    /// Immediate Data (RFC 7306 §6).
    Immediate([u8; 8]),
    /// Atomic operation (RFC 7306 §5).
    Atomic {
        /// Place of the 64 bits.
        remote: RemoteAddress,
        /// Operation on them.
        operation: AtomicOperation,
        /// The 8 bytes of the owner's memory that receive the original value, in this machine's byte order.
        into: MemoryRange,
    },
    /// Something that [`Memory::run_local`](crate::Memory::run_local) does when its turn comes.
    Local,
}

/// A work request for the send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRequest {
    /// Number by which its completion names it. Not interpreted.
    pub id: u64,
    /// Operation to carry out.
    pub operation: Operation,
    /// Whether it waits until all Reads and atomics posted before are over (RFC 5040 §5.5 rule 12).
    pub fence: bool,
    /// Whether the peer is asked for an event: Sends and Immediate Data with Solicited Event.
    pub solicited: bool,
}

/// A receive that was taken from its queue for an incoming message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Number by which its completion names it. Not interpreted.
    pub id: u64,
    /// Memory for the message, filled one range after another.
    pub into: Vec<MemoryRange>,
}

/// Reason why a work request, or a receive, was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// An earlier one failed, or the stream was over.
    #[error("flushed: the stream had failed or was closed before this request was over")]
    Flushed,
    /// The owner's own memory cannot be accessed as the request says.
    #[error("own memory, STag {} offset {:#x} length {}: {reason}", range.stag, range.offset, range.length)]
    LocalAccess {
        /// Memory of the access.
        range: MemoryRange,
        /// Reason of the refusal.
        reason: AccessError,
    },
    /// A local operation was refused.
    #[error("local operation: {0}")]
    Local(AccessError),
    /// The peer terminated the stream because of this request.
    #[error("the peer terminated the stream: {0}")]
    Remote(Terminate),
    /// The message received for this request breaks a rule.
    #[error("message of the peer: {0}")]
    Message(Fault),
}

/// Kind of a completed work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// RDMA Write, with Immediate Data or without.
    Write,
    /// RDMA Read.
    Read,
    /// Send of any kind.
    Send,
    /// Immediate Data by itself.
    Immediate,
    /// Atomic fetch-and-add.
    FetchAdd,
    /// Atomic compare-and-swap.
    CompareSwap,
    /// Local operation.
    Local,
}

/// The end of a posted work request. Completions come in the order in which the requests were posted (RFC 5040 §5.5
/// rule 15), one for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Number that was posted.
    pub id: u64,
    /// Kind of operation.
    pub kind: OperationKind,
    /// Bytes transferred. 0 where it failed.
    pub bytes: u32,
    /// Success, or the reason of its failure.
    pub result: Result<(), Failure>,
}

/// Kind of a message that consumed a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceivedKind {
    /// A Send.
    Send,
    /// A Send with 4 bytes beside its data.
    SendWithImmediate([u8; 4]),
    /// A Send that invalidated a tag.
    SendWithInvalidate(Stag),
    /// Immediate Data. Where the peer's request before it was an RDMA Write, its length in bytes.
    Immediate([u8; 8], Option<u32>),
}

/// A message that was delivered into a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Kind of message.
    pub kind: ReceivedKind,
    /// Length in bytes. Immediate Data has none.
    pub bytes: u32,
    /// Whether the peer asks for an event.
    pub solicited: bool,
}

/// Something that the owner of a stream is informed of, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A posted work request is over.
    Completed(Completion),
    /// A receive that was taken is over.
    Received {
        /// Number of the receive.
        id: u64,
        /// Message, or the reason why there is none.
        result: Result<Received, Failure>,
    },
    /// The peer terminated the stream. Nothing more is sent or accepted; the lower layer is to be closed.
    TerminatedByPeer(Terminate),
    /// This side found a fault and terminates the stream. Once the Terminate message has been sent, that is
    /// [`is_send_closed`](crate::Stream::is_send_closed), the lower layer is to be closed.
    TerminatedHere(Fault),
    /// The peer sends nothing more; what is posted here still goes out.
    ClosedByPeer,
    /// After [`close`](crate::Stream::close): everything was sent and accepted. The sending half of the lower layer is
    /// to be closed.
    SendClosed,
}
