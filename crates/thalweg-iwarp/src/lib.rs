#![forbid(unsafe_code)]
//! RDMAP and DDP (RFC 5040, 5041, 7306), and MPA (RFC 5044, 6581), without IO.
//!
//! A [`Stream`] is the protocol half of a queue pair. Its owner, a software RNIC, has the other half: rings, tables of
//! registered memory, completion queues, and a lower layer that carries segments. The owner calls:
//!
//! | when | call |
//! | --- | --- |
//! | a program posted to the send queue | [`Stream::post`] |
//! | the lower layer has room | [`Stream::next_segment`], until there is none |
//! | the lower layer needs the bytes of segments no more (copied, or acknowledged) | [`Stream::accept_segments`] |
//! | a segment arrived, in any order | [`Stream::receive_segment`]; its bytes are placed at once |
//! | all segments up to one have arrived | [`Stream::deliver_segments`]; messages end, in order |
//! | after any of these | [`Stream::next_event`], until there is none |
//! | the lower layer reports an error, an end, a loss | [`Stream::terminate`], [`Stream::close_by_peer`], [`Stream::lose_connection`] |
//!
//! The stream asks for memory, receives and local operations through a [`Memory`], which the owner passes with the call.
//! No payload is copied here: a segment to send is its first bytes and the places of the others.
//!
//! Over TCP, [`mpa`] comes in between: [`mpa::Initiator`] and [`mpa::Responder`] agree on a [`mpa::Connection`];
//! [`mpa::FpduEncoder`] and [`mpa::FpduDecoder`] make FPDUs of segments, and segments of bytes.

mod fault;
pub mod header;
mod memory;
pub mod mpa;
pub mod plain;
mod settings;
mod stream;
mod terminate;
mod work;

pub use fault::Fault;
pub use memory::{Access, AccessError, Memory, MemoryRange, Stag};
pub use settings::{FirstMessage, MIN_SEGMENT_LIMIT_BYTES, PostError, SettingsError, StreamSettings};
pub use stream::{OutgoingSegment, ReceiveOutcome, Stream};
pub use terminate::{ErrorCode, MAX_TERMINATE_BYTES, Terminate, TerminatedSegment};
pub use work::{
    AtomicOperation, Completion, Event, Failure, Operation, OperationKind, Payload, ReceiveBuffer, Received,
    ReceivedKind, RemoteAddress, WorkRequest,
};
