//! An RDMA adapter (RNIC) in software: it moves bytes between the memories of programs that do not trust each other, by
//! requests that they put into rings, without a system call while it is awake.
//!
//! [`Engine`] is the adapter. It runs in a thread or a process of its own that serves several programs ([`Service`]), or
//! within a program, whose calls then drive it. The tables are those of the ExpEther paper's RNIC:
//!
//! | table of the paper | content | here |
//! | --- | --- | --- |
//! | RNIC registers | set-up of the adapter | [`Limits`], commands ([`Command`]) |
//! | PBL management table | lists of the pages of registered memory | one mapping of each registered file: the processor's page tables are the list |
//! | STag management table | by STag: page list, range, rights, protection domain | `stag` |
//! | queue pair registers | state and rings of each queue pair; the doorbell is mapped into its program | `queue_pair`; doorbell and need-wakeup word are words of the rings ([`thalweg_arena::Ring`]) |
//! | completion management table | completion queues, which lie in the program's memory | `completion` |
//!
//! # Peers
//!
//! Queue pairs of one RNIC move bytes from memory to memory, in one copy, checked by the same tables as those of a peer
//! elsewhere. To other RNICs there are two ways ([`Transport`]): iWARP, which is MPA over TCP, and EFE, in UDP datagrams or
//! Ethernet frames. The
//! protocol above both is [`thalweg_iwarp::Stream`], which gets to the tables through [`thalweg_iwarp::Memory`].
//!
//! # Programs that do not trust each other
//!
//! - A program reaches objects of its own by handles, and memory of others only by STags that they gave it. STags are
//!   sparse and drawn at random; protection domain, rights and bounds are checked for each part of a message.
//! - Rings lie in shared memory that their program may scribble over at any time. Each descriptor is copied out once and
//!   then checked; indices are compared with private copies, and masked. A damaged ring brings its own queue pairs into
//!   the error state.
//! - What a program does not read or poll (events, completions) is bounded; completions that find no room are an overrun,
//!   which is reported.
//! - Memory must be sealed against shrinking, and rings have exactly the size of their queue: no access can raise SIGBUS.
//!   Pages of a file that are first touched by the RNIC count as its own: programs should populate their memory.
//! - A program that ends, in any way, gives back all that it had; its peers' queue pairs enter the error state, and all
//!   their requests are flushed.
//!
//! # Files, from the program's request to the peer
//!
//! | file | what is in it |
//! | --- | --- |
//! | `attributes` | Rights, states, operations, results, faults, limits |
//! | `command` | Commands of a program, before data move |
//! | `descriptor` | Requests and completions as they lie in rings |
//! | `engine` | The RNIC: its tables, commands, turns, sleep |
//! | `transfer` | Carrying out requests between queue pairs of this RNIC; failure and flush |
//! | `stag` | Table of registered memory and windows |
//! | `queue_pair` | Table of queue pairs |
//! | `completion` | Table of completion queues |
//! | `stream` | Queue pairs with a peer at another RNIC |
//! | `tcp` | Way there: MPA over TCP |
//! | `efe` | Way there: EFE in UDP datagrams or Ethernet frames |
//! | `numbers` | Queue pairs that their programs connect by numbers |
//! | `connection` | Connection management |
//! | `handshake` | Set-up of TCP connections |
//! | `service` | The RNIC as a thread or a process |
//! | `events` | Events to programs |
//! | `slots` | Tables by handles |

#![forbid(unsafe_code)]

mod attributes;
mod command;
mod completion;
mod connection;
mod descriptor;
mod efe;
mod engine;
mod events;
mod handshake;
mod numbers;
mod queue_pair;
mod service;
mod slots;
mod stag;
mod stream;
mod tcp;
mod transfer;

pub use attributes::{
    Access, AsyncEvent, CompletedOperation, ENDLESS_RETRIES, Fault, FaultKind, Limits, Operation, QueueAttributes,
    QueueLengths, QueueState, Side, Status, WindowKind,
};
pub use command::{
    CONNECT_TIMEOUT, Command, CommandError, ConnectionEvent, ConnectionParameters, MAX_COMMAND_FDS, MAX_MESSAGE_BYTES,
    MAX_PRIVATE_BYTES, Reply, Transport,
};
pub use descriptor::{
    Cell, CompletionCell, CompletionEntry, MAX_INLINE_BYTES, MAX_SGES, ReceiveDescriptor, SendDescriptor, SendFlags,
    Sge, SgeList, TakeError, receive_cells, receive_ring_cells, send_ring_cells, take_receive, take_send,
};
pub use engine::{ClientId, Clock, Engine};
pub use events::EventSocket;
pub use service::{Service, ServiceError};
