//! RDMA devices of the kernel (hardware, rxe, siw), by libibverbs and librdmacm of rdma-core, which are loaded at run time.
//!
//! Nothing is linked: a program runs without the libraries, and [`Context::open`] reports where they are missing. The
//! objects here are those of the libraries, each of which keeps those alive that it is made of, so that they are given back
//! in the order that the libraries demand. Memory is registered as [`SharedMemory`](thalweg_arena::SharedMemory): the bytes of
//! it may be changed by a device at any time, which is what that type is for.
//!
//! Calls of the data path are inline functions in C: they are reached through the table of functions of the context
//! (`struct ibv_context_ops`).
//!
//! No call waits: the descriptors of events are set not to block, and are to be waited for in a poller of the caller's.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `abi` | Layouts and numbers of the two libraries; the provider for libibverbs uses them, too |
//! | `library` | The libraries and their functions |
//! | `context` | Devices: names, opening, limits, asynchronous events |
//! | `memory` | Protection domains, memory regions |
//! | `completion` | Completion channels and queues |
//! | `queue_pair` | Queue pairs, shared receive queues, requests |
//! | `manager` | Connections by librdmacm |
//!
//! # Safety
//!
//! Each object has a pointer that the library returned, which is valid until the object is dropped: only then does it call the
//! library's function that frees it, and objects made of it hold it by an [`Arc`](std::sync::Arc). Structs that are passed are those
//! of the headers (a test compares the layouts), and live for the call. The functions may be called by several threads at a
//! time (ibv_open_device(3), rdma_cm(7)). That is the argument of each `unsafe` block here which gives no other.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one argument holds for all operations on what the libraries return; a block has no other"
)]

#[allow(missing_docs, missing_debug_implementations, reason = "names and members are those of the headers")]
pub mod abi;
mod completion;
mod context;
mod library;
mod manager;
mod memory;
mod queue_pair;

pub use completion::{CompletionChannel, CompletionQueue};
pub use context::{AsyncNotice, Context, DeviceLimits, device_names};
pub use library::IbverbsError;
pub use manager::{
    ConnectParameters, EventChannel, EventKind, Id, ManagerEvent, REJECTED_BY_CONSUMER, device_of_address,
    device_towards,
};
pub use memory::{Domain, Region};
pub use queue_pair::{
    Opcode, PostedData, QueuePair, QueuePairSetup, SEND_FENCE, SEND_SIGNALED, SEND_SOLICITED, SendWork, SharedQueue,
    WorkTarget,
};
