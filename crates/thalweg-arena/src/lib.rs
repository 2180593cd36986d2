//! Memory that a device, a NIC and a disk can share.
//!
//! An [`Arena`] is a sealed memfd, mapped once. It is handed out in pieces that own their bytes: a [`Span`] is the
//! exclusive right to a range, a [`Slot`] is a span with headroom in front that a device fills, a [`Block`] is a span
//! that is filled piece by piece and written to disk as one. Another process gets the arena by file descriptor
//! ([`Arena::import`]) and reads it through [`View`]s.

mod arena;
mod block;
mod slots;

pub use arena::{Arena, ArenaError, Pages, Span, View};
pub use block::{Block, BlockPool};
pub use slots::{HEADROOM, Slot, SlotPool};

/// Bytes in an ordinary page.
pub const PAGE: usize = 4096;
