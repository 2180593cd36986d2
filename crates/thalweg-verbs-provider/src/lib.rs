//! A provider for libibverbs: programs that use RDMA verbs run unmodified on Thalweg's software RNIC, which is embedded in
//! each of them. `thalweg rdma run` starts them so.
//!
//! libibverbs loads this library (`RDMAV_DRIVERS`), and finds the device in a folder that stands for sysfs (`SYSFS_PATH`). Its
//! calls arrive in the functions of one table ([`table`]); the objects that they return begin with the structs of C
//! ([`thalweg_ibverbs::abi`]), behind which lie those of [`thalweg_rdma`].
//!
//! | file | what is in it |
//! | --- | --- |
//! | `table` | Registration, and the table of functions |
//! | `context` | An opened device, its asynchronous events, its attributes |
//! | `rnic` | The RNIC of the process, and the thread that drives it |
//! | `memory` | Protection domains, memory regions, memory windows |
//! | `completion` | Completion channels and queues |
//! | `queue_pair` | Queue pairs: creation, states |
//! | `posting` | Work requests |
//! | `extended` | Work requests and completions by the calls of `ibv_qp_ex` and `ibv_cq_ex` |
//! | `shared_queue` | Shared receive queues |
//! | `hooks` | Functions for the preloaded library |
//! | `manager` | The connection manager of the kernel, as librdmacm uses it |
//! | `manager_abi` | Its commands and answers |
//!
//! # Two personalities
//!
//! `THALWEG_RDMA_TRANSPORT` is `efe` or `iwarp`. With EFE the device looks like a RoCE adapter: programs exchange queue pair
//! numbers and GIDs and connect by themselves. With iWARP it looks like an iWARP adapter, and connects by `rdma_cm` alone.
//! `THALWEG_RDMA_ADDRESS` is the device's IP address; `THALWEG_RDMA_CRC` is `off` if connections over TCP need no CRC,
//! otherwise `on`.
//!
//! # Safety
//!
//! All functions of the table are called by libibverbs, or by programs through its inline functions, with pointers to objects
//! that this library has made, or to structs of the type that their documentation names, valid for the call. What a
//! program's pointers lead to is only copied. That is the argument of each `unsafe` block here which gives no other.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one argument holds for all operations on what C passes in; a block has no other"
)]

mod completion;
mod context;
mod extended;
mod hooks;
mod manager;
mod manager_abi;
mod memory;
mod posting;
mod queue_pair;
mod rnic;
mod shared_queue;
mod table;

pub use manager_abi::check_command;
pub(crate) use thalweg_ibverbs::abi;

use libc::c_int;
use thalweg_rdma::{CommandError, VerbsError};

/// Sets `errno` and returns null.
pub(crate) fn fail_null<T>(error: c_int) -> *mut T {
    set_errno(error);
    std::ptr::null_mut()
}

pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error };
}

/// Returns the error number by which C names an error.
pub(crate) fn error_number(error: &VerbsError) -> c_int {
    match error {
        VerbsError::Refused(CommandError::Busy { .. }) => libc::EBUSY,
        VerbsError::Refused(CommandError::Limit { .. }) => libc::EINVAL,
        VerbsError::Refused(CommandError::Memory(_)) => libc::ENOMEM,
        VerbsError::Refused(CommandError::Address { .. }) => libc::EADDRINUSE,
        VerbsError::Refused(_) => libc::EINVAL,
        VerbsError::Os { error, .. } => error.raw_os_error(),
        VerbsError::NoDevice { .. } | VerbsError::Library(_) => libc::ENODEV,
        VerbsError::Ring(_) | VerbsError::Memory(_) | VerbsError::Doorbell(_) => libc::ENOMEM,
        VerbsError::RnicGone | VerbsError::NoAnswer | VerbsError::Answer(_) | VerbsError::Service(_) => libc::EIO,
    }
}
