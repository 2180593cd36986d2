//! The three verbs, *offer*, *fetch* and *release*, over whatever connects a source to a builder.
//!
//! A link has two ends, a [`SourceLink`] and a [`BuilderLink`]. They are verbs only: they lie in [endpoints](Endpoint),
//! each of which is a port of its host and does all that is to be done for the peers that are spoken to through it. A
//! node [polls](Endpoint::poll) its endpoints, [receives](Endpoint::receive) what was said, calls verbs, and
//! [flushes](Endpoint::flush). Reliability, where a medium has none, is the link's affair; what a lost connection means
//! is the node's.
//!
//! # The links
//!
//! | | shm | tcp | udp, af-xdp, dpdk, [`memory`] for tests |
//! | --- | --- | --- | --- |
//! | address | `shm:/path/to/socket` | `tcp:host:port` | `udp:host:port`, `af-xdp:host:port`, `dpdk:host:port` (`thalweg-dpdk`), `memory:NAME` |
//! | how a fetch moves bytes | it does not: the source's arena is mapped | `sendfile` from the source's memfd, received into the block | datagrams out of the arena, which may be lost; copied to their place |
//! | copies: source, builder | 0, 0 (1 when taken into a block to be recorded) | 0, 1 | udp: 1, 2; af-xdp: 0, 1, and 1 each where the kernel copies; dpdk: 0, 1 |
//! | eager offers | become held ones: seeing is faster than sending | sent unasked, within the credit | become held ones |
//! | last words of a peer that dies | heard | heard, as far as they had arrived | may be lost |
//! | a process that dies is noticed | at once | at once | udp: when something is sent to it; otherwise after 10 s |
//! | a host or a cable that dies is noticed | | after some 10 s | after 10 s |
//!
//! # What each of them promises
//!
//! - What one end says the other hears once and in that order: offers by their tickets, `End` behind the offers it
//!   counts.
//! - A fetch arrives whole, in its own place and with the length that was asked for, unless its offer is dropped or the
//!   link ends. That the bytes are the right ones is for the CRC in each fragment's header to say.
//! - Over a stream and over a ring fetches are answered in the order they were made in; over frames some may come later,
//!   which were asked for again.
//! - A place that went into a fetch comes back with what arrived. Otherwise it is [dropped](Span), and so returns by
//!   itself: when the fetch is [called off](BuilderLink::cancel), or with the link.
//! - A slot's bytes are read until its ticket is released and no longer, and an offer that was asked for cannot be
//!   [withdrawn](SourceLink::withdraw).
//! - A source that comes back over a new link offers again what was not released. The builder may ask for it before it
//!   has heard that.
//!
//! # What a peer can do
//!
//! A peer that breaks the rules ends its link with an error that [says so](LinkError::is_violation) and names what it
//! did. It cannot make the other end panic, and can make it keep no more than this: a description of 16 KiB, the eager
//! credit, four fetches for each slot and one for each 4 KiB of it, and 16 MiB (or 256 bytes for each slot) of messages
//! that it was told and does not take.
//!
//! Over shm it can do one thing more: change bytes while they are read, that is what they say, not where anything is read
//! or written. Who may connect at all is decided by the permissions of the socket
//! (shm) and by the network (the others): nothing here is encrypted. Over frames, who cannot see a connection's number
//! cannot speak for it. A builder keeps nothing of a greeting before its sender has shown that it receives what is sent to
//! its address; then it has one of 4096 places until it is let in or given up.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `kind` | The kinds of links: one table of what each can do, that the whole program asks |
//! | `adapter` | A network adapter that an end drives by itself, past the kernel |
//! | `address` | Where a builder listens: the name of a kind of link, and a place |
//! | `names` | The addresses that a builder's name stands for: looked up before the run, and again on a thread of their own |
//! | `endpoint` | Endpoints: what a node speaks to its peers through |
//! | `sockets` | Endpoints of links that have a descriptor each: one socket for a peer |
//! | `poller` | Waiting: one epoll for sockets, doorbells, timers and the recorder's ring |
//! | `peer` | Who connects |
//! | `offered` | What a source has offered over one connection, and what the builder has asked for of it |
//! | `outstanding` | A source's book of tickets: what it has offered to one builder and may not forget yet |
//! | `rules` | What a builder checks of a source's words over every link |
//! | `tcp` | The three verbs over TCP |
//! | `shm` | The three verbs over shared memory, between two processes of one host |
//! | `frames` | Endpoints of links of frames: a port for all peers, and for each peer a connection that is reliable though the port is not |
//! | `udp` | The three verbs over UDP: frames through a socket |
//! | `memory` | A link inside one process, for tests: datagrams that get lost or damaged, come twice, late and out of order, over paths that shrink, under a clock that only moves when told to |
//! | `buffer` | A TCP socket's buffers, for all that may be on its way from the beginning |
//! | `copy` | Copies are counted where they are made |
//! | `error` | What ends a link |
//!
//! What every link must do is told in `thalweg-link-conformance`, as tests.
#![forbid(unsafe_code)]

mod adapter;
mod address;
mod buffer;
mod copy;
mod endpoint;
mod error;
mod frames;
mod kind;
mod names;

pub mod memory;
mod offered;
mod outstanding;
mod peer;
mod poller;
mod rules;
mod shm;
mod sockets;
mod tcp;
mod udp;

pub use adapter::{Adapter, OwnAddress};
pub use address::Address;
pub use endpoint::{Arrivals, BuilderEndpoint, Endpoint, Endpoints, SourceEndpoint};
pub use error::LinkError;
pub use kind::{Abilities, LinkKind, Locator, Transport};
pub use outstanding::Outstanding;
pub use peer::{Origin, Peer};

pub mod parts {
    //! What kinds of links are made of, here and in other crates.
    pub use crate::frames::{builder_over, source_over};
    pub use crate::offered::{Asked, Novelty, Offered};
    pub use crate::sockets::{Connects, Door, SocketLink, Sockets};
    pub use crate::udp::DATAGRAMS;
}
pub use poller::{Interest, Poller, Watch};

use std::fmt::Debug;
use std::sync::Arc;
use thalweg_arena::{Arena, Span, View};
use thalweg_wire::{Announcement, Hello, Losses, Message, RecordBytes, Refusal};

/// The source's end of a link: the verbs.
pub trait SourceLink: Debug + Send {
    /// Says that fragments are to be had, or were dropped. Their bytes stay as they are until released. Tickets are
    /// counted without gaps, from the first that is offered over this link; a ticket that was offered before may be
    /// offered again when it has been dropped. Goes out with the next [`flush`](Endpoint::flush).
    fn offer(&mut self, offer: &Announcement);

    /// Takes an offer back. False where the builder has asked for it already: then it must be served.
    fn withdraw(&mut self, ticket: u64) -> bool;

    /// Says anything else. Goes out with the next [`flush`](Endpoint::flush).
    fn send(&mut self, message: &Message);

    /// Payload bytes copied on the way out so far, by this process or by the kernel on its behalf.
    fn copied(&self) -> u64;
}

/// The builder's end of a link to one source: the verbs.
pub trait BuilderLink: Debug + Send {
    /// Whether it can show the bytes of an offer where they lie, so that a fetch needs no place of its own.
    fn maps(&self) -> bool;

    /// Asks for all bytes of `offer`, as [`begin_fetch`](Self::begin_fetch) does.
    ///
    /// # Errors
    /// As [`begin_fetch`](Self::begin_fetch).
    fn fetch(&mut self, offer: &Announcement, into: Option<Span>) -> Result<Option<Bytes>, LinkError> {
        self.begin_fetch(offer, into, offer.bytes)
    }

    /// Asks for the first `upto` bytes of `offer`, with the next [`flush`](Endpoint::flush). `into` has room for all of
    /// them; only a link that [maps](Self::maps) does without. When all have come, and all have been asked for, they
    /// come back with [`Received::Arrived`]; at once where they are here already.
    ///
    /// # Errors
    /// The offer is none that this source can have made. The link is over.
    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError>;

    /// Asks for the bytes of a ticket that is being fetched up to `upto`, with the next [`flush`](Endpoint::flush). A
    /// link that [maps](Self::maps) has them already.
    fn extend_fetch(&mut self, ticket: u64, upto: u32);

    /// Bytes that were asked for and have come, since the link was made, whether or not the rest of their offer has.
    /// Those of eager offers, which come unasked, and those that a link [maps](Self::maps) do not count.
    fn received(&self) -> u64;

    /// What is known of losses on the way here.
    fn losses(&self) -> Losses;

    /// Calls a fetch off, because the source has withdrawn the offer, and drops its place.
    fn cancel(&mut self, ticket: u64);

    /// Lets the source reuse the slots of all tickets below `below`. Goes out with the next [`flush`](Endpoint::flush).
    fn release(&mut self, below: u64);

    /// Says anything else. Goes out with the next [`flush`](Endpoint::flush).
    fn send(&mut self, message: &Message);

    /// Says why the conversation ends, as far as the peer still listens: [`close`](Endpoint::close) follows.
    fn refuse(&mut self, reason: Refusal, text: &str);

    /// Payload bytes copied so far, by the kernel into this process or by this process.
    fn copied(&self) -> u64;
}

/// What a builder hears from a source.
#[derive(Debug)]
pub enum Received {
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

impl RecordBytes for Bytes {
    fn bytes(&self) -> usize {
        match self {
            Self::Place(span) => span.len(),
            Self::View(view) => view.len(),
        }
    }

    #[inline]
    fn copy_to(&self, at: usize, out: &mut [u8]) {
        match self {
            Self::Place(span) => span[..].copy_to(at, out),
            Self::View(view) => view.copy_to(at, out),
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
