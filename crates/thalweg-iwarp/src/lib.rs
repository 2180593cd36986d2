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
//! | the next segment arrived, over a lower layer that keeps the order | [`Stream::receive_next`], for both |
//! | the lower layer reports an error, an end, a loss | [`Stream::terminate`], [`Stream::close_by_peer`], [`Stream::lose_connection`] |
//! | after any of these | [`Stream::next_event`], until there is none; then [`Stream::next_segment`] |
//!
//! **Memory.** The stream asks for memory, receives and local operations through a [`Memory`], which the owner passes
//! with the call and makes for the stream's protection domain. No payload is copied here: a segment to send is its first
//! bytes and the places of the others ([`OutgoingSegment`]); a received one is written by [`Memory::place`] from where
//! the lower layer has it. Each access is checked when it happens, so that a tag may be invalidated at any time between
//! two calls.
//!
//! **Placement and delivery.** Over EFE, segments overtake each other. The stream places each as it comes, and delivers
//! messages in the order of the peer: so the program sees the same as over TCP, but nothing waits in a buffer for a
//! segment that is late.
//!
//! **Requests and completions.** Each posted request completes once, in order. A Write or a Send completes when the
//! lower layer has taken it over, which does not mean that the peer has it (RFC 5040 §5.5 rule 9); a Read or an atomic
//! when its response was delivered. After a failure all others are flushed.
//!
//! **Errors.** A fault of the peer ends the stream with a Terminate message, once ([`Event::TerminatedHere`]): the owner
//! sends the one more segment there is, and closes the lower layer. The peer's Terminate message ends it, too
//! ([`Event::TerminatedByPeer`]). A [`Fault`] says in words what was found, with its numbers and limits; its
//! [`ErrorCode`], like that of the peer's message, says layer, type, code and the section that defines them.
//!
//! **Over TCP**, [`mpa`] comes in between: [`mpa::Initiator`] and [`mpa::Responder`] agree on a [`mpa::Connection`];
//! [`mpa::FpduEncoder`] and [`mpa::FpduDecoder`] make FPDUs of segments, and segments of bytes. Its terms go into the
//! [`StreamSettings`], and its errors into [`Stream::terminate`].
//!
//! # Example
//!
//! A Write and a Send, from one side to the other, in one FPDU each:
//!
//! ```
//! use thalweg_iwarp::mpa::{FpduDecoder, FpduEncoder};
//! use thalweg_iwarp::plain::PlainMemory;
//! use thalweg_iwarp::*;
//!
//! let (table, inbox) = (Stag(0x1234_5600), Stag(0x89ab_cd00));
//! let mut sender = (Stream::new(StreamSettings::default())?, PlainMemory::default());
//! let mut receiver = (Stream::new(StreamSettings::default())?, PlainMemory::default());
//! receiver.1.register(table, 4096, vec![0; 64], &[Access::RemoteWrite]);
//! receiver.1.register(inbox, 0, vec![0; 64], &[Access::LocalWrite]);
//! let into = vec![MemoryRange { stag: inbox, offset: 0, length: 64 }];
//! receiver.1.receives.push_back(ReceiveBuffer { id: 7, into });
//!
//! // A program posts.
//! let remote = RemoteAddress { stag: table, offset: 4096 };
//! let write = Operation::Write { remote, data: Payload::Inline(b"event".to_vec()), immediate: None };
//! let send = Operation::Send { data: Payload::Inline(b"done".to_vec()), invalidate: None };
//! for (id, operation) in [(1, write), (2, send)] {
//!     sender.0.post(WorkRequest { id, operation, fence: false, solicited: false })?;
//! }
//!
//! // The socket of the sender has room: here, a vector.
//! let (mut encoder, mut socket, mut segment) = (FpduEncoder::new(true, false), Vec::new(), OutgoingSegment::default());
//! while sender.0.next_segment(&mut sender.1, &mut segment) {
//!     let payload: Vec<&[u8]> = segment.places.iter().filter_map(|place| sender.1.bytes(*place)).collect();
//!     encoder.append(&segment.head, &payload, &mut socket);
//!     sender.0.accept_segments(segment.sequence + 1);
//! }
//! let done = std::iter::from_fn(|| sender.0.next_event());
//! assert_eq!(done.filter(|event| matches!(event, Event::Completed(done) if done.result.is_ok())).count(), 2);
//!
//! // The socket of the receiver has bytes, in whatever pieces.
//! let mut decoder = FpduDecoder::new(true, false);
//! for mut piece in socket.chunks(10) {
//!     loop {
//!         match decoder.next_ulpdu(&mut piece) {
//!             Ok(Some(segment)) => assert_eq!(receiver.0.receive_next(segment, &mut receiver.1), ReceiveOutcome::Taken),
//!             Ok(None) => break,
//!             Err(error) => break receiver.0.terminate(error.error_code()),
//!         }
//!     }
//! }
//! assert_eq!(receiver.1.bytes(MemoryRange { stag: table, offset: 4096, length: 5 }), Some(&b"event"[..]));
//! let result = Ok(Received { kind: ReceivedKind::Send, bytes: 4, solicited: false });
//! assert_eq!(receiver.0.next_event(), Some(Event::Received { id: 7, result }));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is not here
//!
//! Requests of the RFCs that only the owner of the tables can fulfil: unpredictable and sparse STags, completion queues
//! shared only by programs that trust each other, fair shares of a receive queue (RFC 5040 §8.1, RFC 5042).
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `work` | Work requests, completions and other events |
//! | `memory` | The interface to registered memory |
//! | `plain` | Registered memory in vectors, for tests and examples |
//! | `settings` | Settings of a stream; errors of its calls |
//! | `stream` | A stream: its calls, and its end |
//! | `stream/send_queue` | Requests that are posted and not over |
//! | `stream/transmit` | Segments to send: requests and responses in turn |
//! | `stream/outstanding` | Own Reads and atomics that wait for their responses |
//! | `stream/placement` | Received segments, in any order: checks, placement |
//! | `stream/delivery` | Received messages, in order |
//! | `stream/inbound` | Reads and atomics of the peer that wait to be answered |
//! | `header` | Layouts of DDP's and RDMAP's headers |
//! | `fault` | Broken rules, their codes and words |
//! | `terminate` | Terminate messages |
//! | `mpa` | MPA: set-up of a TCP connection (`mpa/startup`), and its frames (`mpa/fpdu`) |

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
