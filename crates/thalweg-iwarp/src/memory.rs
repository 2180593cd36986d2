//! The memory of one stream: what a stream asks of the tables of its owner.

use crate::work::{AtomicOperation, ReceiveBuffer};
use std::fmt;
use thiserror::Error;

/// A steering tag: the name of registered memory (RFC 5041 §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:#010x}", self.0)
    }
}

/// Consecutive bytes of registered memory: a scatter–gather element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemoryRange {
    /// Tag of the memory.
    pub stag: Stag,
    /// Tagged offset of the first byte (RFC 5041 §4.2). For memory registered by address, that address.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// Right that an access needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The owner's own data is read: the source of a Write or a Send.
    LocalRead,
    /// The owner's memory is written by its own leave: a posted receive, the sink of a Read, the result of an atomic.
    ///
    /// RFC 5040 would have the sink of a Read be open to the peer's Writes, too. Only responses to Reads are placed
    /// there here, each within the sink of its own Read, so the right to write locally suffices.
    LocalWrite,
    /// The peer reads.
    RemoteRead,
    /// The peer writes.
    RemoteWrite,
    /// The peer updates 64 bits atomically.
    RemoteAtomic,
}

/// Reason why memory cannot be accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum AccessError {
    /// No memory has this tag: never registered, or invalidated.
    #[error("no memory is registered with this STag; it was never valid, or is not any more")]
    UnknownStag,
    /// The memory has another protection domain, or is bound to another stream.
    #[error("the STag belongs to another protection domain or stream")]
    NotAssociated,
    /// The range does not lie within the memory.
    #[error("the range is not within the registered memory")]
    OutOfBounds,
    /// The sum of offset and length exceeds 64 bits.
    #[error("offset and length exceed 64 bits")]
    Wrapped,
    /// The memory was not registered for such an access.
    #[error("the memory was registered without the right to this access")]
    MissingRight,
    /// An atomic does not target an address that 8 divides.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
}

/// Registered memory, the receive queue and the local operations of one stream.
///
/// The owner of the tables makes one for each call, out of its tables and of the stream's protection domain: all checks
/// of STag, domain, bounds, rights are its own. A stream has checked before that offset and length do not wrap, and
/// never asks for a range of no bytes (RFC 5041 §5.2: the STag of no bytes is not checked).
pub trait Memory {
    /// Where checked bytes lie, in the caller's terms: an element for `writev`, say, with a reference to its region.
    type Place;

    /// Returns where a range lies that is to be sent. Its bytes are read by the caller, not by the stream.
    ///
    /// # Errors
    ///
    /// The access is not allowed.
    fn locate(&mut self, range: MemoryRange, access: Access) -> Result<Self::Place, AccessError>;

    /// Checks a range that is to be read or written later, piece by piece; each piece is checked again then.
    ///
    /// # Errors
    ///
    /// The access is not allowed.
    fn check(&mut self, range: MemoryRange, access: Access) -> Result<(), AccessError>;

    /// Writes bytes at an offset of a tag's memory.
    ///
    /// # Errors
    ///
    /// The access is not allowed. Then nothing is written.
    fn place(&mut self, stag: Stag, offset: u64, bytes: &[u8], access: Access) -> Result<(), AccessError>;

    /// Replaces 64 bits, in this machine's byte order, by [`AtomicOperation::apply`] of them, and returns the original.
    /// No atomic of another stream of the same adapter comes in between (RFC 7306 §5.3).
    ///
    /// # Errors
    ///
    /// The access is not allowed, or the address is not a multiple of 8. Then nothing is written.
    fn update(&mut self, stag: Stag, offset: u64, operation: AtomicOperation) -> Result<u64, AccessError>;

    /// Invalidates a tag, since the peer asked for it. Memory that other streams share must not be (RFC 5040 §8.1.1).
    ///
    /// # Errors
    ///
    /// The tag is unknown, not the stream's, or shared.
    fn invalidate(&mut self, stag: Stag) -> Result<(), AccessError>;

    /// Takes the oldest posted receive from the queue of the stream, or the one it shares with others.
    fn take_receive(&mut self) -> Option<ReceiveBuffer>;

    /// Does the local operation (bind a window, invalidate) that was posted with this id, in its turn.
    ///
    /// # Errors
    ///
    /// The operation is not allowed.
    fn run_local(&mut self, request: u64) -> Result<(), AccessError>;
}
