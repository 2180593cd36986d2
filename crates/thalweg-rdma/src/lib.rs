//! RDMA verbs: the calls by which a program sets up memory, queues and connections of an RDMA adapter (RNIC), and moves
//! data with it.
//!
//! The names are those of rdma-core in Rust's way of writing; aliases in the documentation find them by their C names
//! (`ibv_reg_mr`). The ExpEther paper names ten calls; they are these:
//!
//! | paper | here | rdma-core |
//! | --- | --- | --- |
//! | `open_rnic` | [`Device::open_embedded`], [`Device::open_thread`], [`Device::open_service`], [`Device::open_device`] | `ibv_open_device` |
//! | `allocate_pd` | [`Device::allocate_domain`] | `ibv_alloc_pd` |
//! | `create_cq` | [`Device::create_completion_queue`] | `ibv_create_cq` |
//! | `create_qp` | [`ProtectionDomain::create_queue_pair`] | `ibv_create_qp` |
//! | `modify_qp` | [`QueuePair::modify_state`] | `ibv_modify_qp` |
//! | `allocate_mr` | [`ProtectionDomain::register_memory`] | `ibv_reg_dmabuf_mr` |
//! | `get_pbl` | [`MemoryRegion::page_list`] | inside `ibv_reg_mr` |
//! | `post_sq` | [`QueuePair::post_send`] | `ibv_post_send` |
//! | `post_rq` | [`QueuePair::post_receive`], [`SharedReceiveQueue::post_receive`] | `ibv_post_recv` |
//! | `poll_cq` | [`CompletionQueue::poll_one`] | `ibv_poll_cq` |
//!
//! # Where the RNIC runs
//!
//! - *Embedded*: in the calls of the program. [`QueuePair::post_send`] and [`CompletionQueue::poll_one`] do its work; there
//!   is no other thread and no system call.
//! - *Thread*: in a thread of the program, which polls while there is work and sleeps otherwise.
//! - *Service*: in a process of its own, which serves several programs that do not trust each other.
//! - *Device*: in an RDMA device of the kernel: hardware, rxe or siw, by libibverbs and librdmacm, which are loaded at run time.
//!
//! # Completions
//!
//! Each posted request completes once, in the order of its queue. A send request has a completion entry if it is signaled
//! ([`SendFlags::SIGNALED`]) or fails; that of a later request completes those before it. After a failed request, all
//! others of both queues are flushed ([`Status::Flushed`]), and the peer's, too: the stream between the two has ended.
//! [`Completion::fault`] says on which side what was wrong, and by which limit.
//!
//! To sleep until there is a completion:
//!
//! ```text
//! loop {
//!     while let Some(completion) = queue.poll_one()? { … }
//!     if queue.request_notification(Notify::Any)? == Armed::MissedCompletions { continue }
//!     channel.wait_for_event(timeout)?
//! }
//! ```
//!
//! A completion between the last look and the arming is reported by [`Armed::MissedCompletions`]; one after it by an event.
//! So none is slept over. A queue that has overrun ends with [`PollError::Overrun`], and an event
//! ([`AsyncEvent::CompletionOverrun`]) names it.

#![forbid(unsafe_code)]

mod adapter;
mod completion;
mod connection;
mod device;
mod driven;
mod memory;
mod queue_pair;

pub use completion::{Armed, Completion, CompletionChannel, CompletionQueue, Notify, PollError};
pub use connection::{ConnectError, Connection, ConnectionRequest, Listener, PendingConnection};
pub use device::{Device, VerbsError};
pub use memory::{Buffer, MemoryRange, MemoryRegion, MemoryWindow, ProtectionDomain, next_window_stag};
pub use queue_pair::{
    Data, PostError, QueuePair, QueuePairOptions, RemoteAddress, SendRequest, SharedReceiveQueue, Work,
};
pub use thalweg_rnic::{
    Access, AsyncEvent, CommandError, CompletedOperation, ConnectionEvent, ConnectionParameters, ENDLESS_RETRIES,
    Fault, FaultKind, Limits, MAX_PRIVATE_BYTES, QueueAttributes, QueueLengths, QueueState, SendFlags, Sge, Side,
    Status, Transport, WindowKind,
};
