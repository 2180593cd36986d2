//! Memory that a device, a NIC and a disk can share.
//!
//! An [`Arena`] is a sealed memfd, mapped once. It is handed out in parts that own their bytes: a [`Span`] is the
//! exclusive right to a range, and returns itself when it is dropped. A [`Slot`] is a span with headroom before it that
//! a device fills, a [`Block`] is filled span by span and written to disk in one write, a [`PlacePool`] lends places of
//! equal length. Another process gets the arena by file descriptor ([`Arena::import`]) and reads it through [`View`]s.
//! The kernel or an adapter is given a [`Piece`] of it to read, a kernel driver a [`DmaBuf`] to write to.
//!
//! An arena records the kind of its pages ([`Backing`]) and the users that have registered them ([`Registration`]): an
//! io_uring ring, an adapter, an IOMMU. All memory of a run is announced to endpoints and devices before the run begins.
//!
//! The crate also has the means by which two processes communicate about that memory ([`Ring`], [`Doorbell`],
//! [`send_fds`]), and those that a device needs to write to it ([`page_list()`], [`pin_bytes()`]).
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `arena` | The arena itself: one memfd, one mapping, and the parts of it that can be owned |
//! | `slots` | Slots: the buffers a device writes into, reused hottest first |
//! | `block` | Blocks: memory in which events are built, and which goes to disk in one write |
//! | `dma_buf` | Parts of an arena as buffers that kernel drivers write to (DMA buffers), by the kernel's udmabuf |
//! | `places` | Places: equal buffers for data that is received and soon released again |
//! | `huge_pages` | The lock on a host's free huge pages |
//! | `page_list` | Physical addresses of memory, for a device that writes to it directly |
//! | `pin` | Keeping memory from being swapped out or reclaimed, so that the data path never waits for a page |
//! | `handover` | Handing memory to another process: file descriptors over a Unix socket (`SCM_RIGHTS`, unix(7)) |
//! | `doorbell` | Waking a thread: in the same process by an eventfd, in another by a byte over the socket that connects the two. Both can be waited for with `epoll` |
//! | `shared` | Memory of several programs that do not trust each other, which all of them may write: an RDMA adapter's memory regions |
//! | `ring` | Messages between two processes through shared memory: a ring of 64-byte cells, one sender, one receiver, no lock and no system call while both are busy |

mod arena;
mod block;
mod dma_buf;
mod doorbell;
mod handover;
mod huge_pages;
mod page_list;
mod pin;
mod places;
mod ring;
mod shared;
mod slots;

pub use arena::{Arena, ArenaError, Backing, KeptPiece, Piece, Registration, Span, View};
pub use block::{Block, BlockPool};
pub use dma_buf::DmaBuf;
pub use doorbell::{Doorbell, DoorbellError, WAKE_BYTE, wake_over_socket};
pub use handover::{HandoverError, MAX_FDS, recv_fds, send_fds};
pub use huge_pages::HugePagesLock;
pub use page_list::{Extent, PageList, PageListError, page_list};
pub use pin::{PinError, Pinned, pin_arena, pin_bytes};
pub use places::PlacePool;
pub use ring::{CELL_BYTES, MAX_CELLS, PushError, Ring, RingError, RingReceiver, RingSender, RingSetupError};
pub use shared::SharedMemory;
pub use slots::{SLOT_HEADROOM_BYTES, Slot, SlotPool};

/// Length of an ordinary page in bytes.
pub const PAGE_BYTES: usize = 4096;
