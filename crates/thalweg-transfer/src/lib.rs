//! Transfers of bytes from a file to a socket, and from a socket to a file: the available methods, and a measurement of
//! the cheapest.
//!
//! | from file to socket ([`SendMethod`]) | copies by the CPU | leaves the page cache as it was | disk and network at once |
//! |---|---|---|---|
//! | `read`: `pread` and `send` | 2 | no | read-ahead |
//! | `sendfile` | 0 | no | read-ahead |
//! | `splice`: through a pipe | 0 | no | read-ahead |
//! | `ahead`: `sendfile`, with `POSIX_FADV_WILLNEED` before and `DONTNEED` after | 0 | yes | yes |
//! | `direct`: `splice` from a descriptor with `O_DIRECT` | 0 | yes | no |
//! | `dontcache`: `preadv2` with `RWF_DONTCACHE`, and `send` | 2 | yes | read-ahead |
//! | `uring`: io_uring, `O_DIRECT` into registered slots, `SEND_ZC` from them | 0, 1 over loopback and veth | yes | yes |
//!
//! Copies are those into and out of the sender's memory; the device's DMA does not count.
//!
//! | from socket to file ([`ReceiveMethod`]) | copies by the CPU | leaves the page cache as it was |
//! |---|---|---|
//! | `recv`: `recv` and `pwrite` | 2 | no |
//! | `splice`: through a pipe | 1 | no |
//! | `dontcache`: `recv`, and `pwritev2` with `RWF_DONTCACHE` | 2 | yes |
//! | `uring`: `recv` into registered slots, `O_DIRECT` writes by io_uring | 1 | yes |
//!
//! A [`Sender`] and a [`Receiver`] belong to one connection and keep what the method needs (pipe, buffer, ring) from
//! one transfer to the next. They wait in blocking system calls: a socket's own timeouts (`SO_SNDTIMEO`, `SO_RCVTIMEO`)
//! bound them. For an event loop, which waits for many sockets at once, there is [`Sender::send_some`].
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `stored` | A file that bytes are sent from |
//! | `cached` | State of a file in the page cache |
//! | `method` | The methods of sending and receiving, and their names |
//! | `choose` | Measurement of the cheapest method: each is tried on a file of the directory, over loopback |
//! | `send` | Transfers from a file to a socket |
//! | `pipe` | A pipe that pages are spliced through |
//! | `ring` | Reads past the page cache with io_uring, several under way, and sends from the same memory |
//! | `receive` | Transfers from a socket to a file |
//! | `progress` | Sending to a slow peer |
//! | `memory` | Page-aligned memory for reading past the page cache |

mod cached;
mod choose;
mod memory;
mod method;
mod pipe;
mod progress;
mod receive;
mod ring;
mod send;
mod stored;

pub use cached::{cached_bytes, seems_cached};
pub use choose::{Cost, Measured, Trial, measure_methods};
pub use method::{ReceiveMethod, SendMethod, UnknownMethod};
pub use progress::retry_while_moving;
pub use receive::{Incoming, Receiver, TransferError, Written};
pub use send::{Sender, send_all};
pub use stored::{Stored, read_in_parts};

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is a list of ranges, too")]
mod tests;
