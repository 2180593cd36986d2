//! The three verbs, *offer*, *fetch* and *release*, over whatever connects a source to a builder.
//!
//! A link has two ends: a [`SourceLink`] and a [`BuilderLink`]. Both are non-blocking and driven by readiness: the node
//! waits on [`SourceLink::fd`] or [`BuilderLink::fd`] in its [`Poller`] and calls `ready`, which does all the work that can
//! be done now and reports what was said. Reliability, where a medium has none, is the link's affair; what a lost
//! connection means is the node's.
//!
//! | link | address | how a fetch moves bytes | copies: source, builder |
//! | --- | --- | --- | --- |
//! | shm | `shm:/path/to/socket` | it does not: the source's arena is mapped | 0, 0 (1 when taken into a block to be recorded) |
//! | tcp | `tcp:host:port` | `sendfile` from the source's memfd, received into the block | 0, 1 |
#![forbid(unsafe_code)]

mod address;
mod copy;
mod error;
mod listen;
pub mod memory;
mod offered;
mod outstanding;
mod poller;
mod reliable;
mod shm;
mod tcp;

pub use address::Address;
pub use error::LinkError;
pub use listen::{Accepted, Listener, Peer, connect};
pub use outstanding::Outstanding;
pub use poller::{Interest, Poller};
pub use tcp::TcpOptions;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use thalweg_arena::{Arena, Span, View};
use thalweg_wire::{Announcement, Hello, Message, Refusal};

/// The source's end of a link.
pub trait SourceLink: Debug + Send {
    /// What to wait on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What to wait for.
    fn interest(&self) -> Interest;

    /// Says that fragments are to be had, or were dropped. Their bytes stay as they are until released. Goes out with the next [`flush`](Self::flush).
    fn offer(&mut self, offer: &Announcement);

    /// Takes an offer back. False where the builder has asked for it already: then it must be served.
    fn withdraw(&mut self, ticket: u64) -> bool;

    /// Says anything else. Goes out with the next [`flush`](Self::flush).
    fn say(&mut self, message: &Message);

    /// Sends what can be sent now.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Receives and answers what has come; fetches are served by the link itself.
    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError>;

    /// Payload bytes copied on the way out so far, by this process or by the kernel on its behalf.
    fn copied(&self) -> u64;
}

/// The builder's end of a link to one source.
pub trait BuilderLink: Debug + Send {
    /// What to wait on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What to wait for.
    fn interest(&self) -> Interest;

    /// Whether it can show the bytes of an offer where they lie, so that a fetch needs no place of its own.
    fn maps(&self) -> bool;

    /// Asks for all bytes of `offer`. `into` is as long as they are; only a link that [maps](Self::maps) does without.
    /// Where they are here already they come back at once, and otherwise with [`Said::Arrived`].
    fn fetch(&mut self, offer: &Announcement, into: Option<Span>) -> Result<Option<Bytes>, LinkError>;

    /// Calls a fetch off, because the source has withdrawn the offer. Its place comes back.
    fn cancel(&mut self, ticket: u64) -> Option<Span>;

    /// Lets the source reuse the slots of all tickets below `below`. Goes out with the next [`flush`](Self::flush).
    fn release(&mut self, below: u64);

    /// Says anything else. Goes out with the next [`flush`](Self::flush).
    fn say(&mut self, message: &Message);

    /// Ends the conversation with a reason, as far as the peer still listens.
    fn refuse(&mut self, reason: Refusal, text: &str);

    /// Sends what can be sent now.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Receives what has come, up to a fair share, and says what it was. True where more is waiting.
    fn ready(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError>;

    /// The places of all fetches that were not answered, with their tickets. The link is at its end.
    fn abandon(&mut self) -> Vec<(u64, Span)>;

    /// Payload bytes copied so far, by the kernel into this process or by this process.
    fn copied(&self) -> u64;
}

/// What a builder hears from a source.
#[derive(Debug)]
pub enum Said {
    /// Who it is, with its description (JSON).
    Hello(Hello, String),
    /// A fetch has been answered in full.
    Arrived {
        /// Which.
        ticket: u64,
        /// Where they are.
        bytes: Bytes,
    },
    /// Anything else.
    Message(Message),
}

/// The bytes of an offer, where the builder can read them.
#[derive(Debug)]
pub enum Bytes {
    /// In the place that was set aside for them.
    Place(Span),
    /// In the source's own memory, until released.
    View(View),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Place(span) => span,
            Self::View(view) => view,
        }
    }
}

/// What a source says of itself to both ends on when a source connects.
#[derive(Debug, Clone)]
pub struct SourceGreeting {
    /// Who it is.
    pub hello: Hello,
    /// What it has to say of itself: JSON.
    pub description: String,
    /// Where its slots lie.
    pub arena: Arc<Arena>,
}

/// Bounds that a builder sets.
#[derive(Debug, Clone, Copy)]
pub struct Eager {
    /// Bytes a source may have sent unasked and unreleased.
    pub credit: u32,
    /// The longest slot it may send so.
    pub limit: u32,
}
