//! Parts of Linux that the standard library lacks.
//!
//! - [`uring`]: reads, writes and other operations of the kernel, several at a time (io_uring).
//! - [`tcp`]: state of the kernel's TCP connections, and their options.
//! - [`netns`]: network namespaces, to which threads and sockets belong.
//! - [`processor`]: use of the processors by threads.

pub mod netns;
pub mod processor;
pub mod tcp;
pub mod uring;
