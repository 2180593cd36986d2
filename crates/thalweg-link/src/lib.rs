//! The three verbs, *offer*, *fetch* and *release*, over every medium that connects a source to a builder.
//!
//! A link has two ends, a [`SourceLink`] and a [`BuilderLink`], which consist of the verbs only. Links belong to
//! [endpoints](Endpoint). An endpoint is a port of its host, and drives the I/O of all peers that are reached through
//! it. A node [polls](Endpoint::poll_peers) its endpoints, [receives](Endpoint::receive_messages) messages, calls verbs, and
//! [flushes](Endpoint::flush_messages). The link provides reliability where the medium does not; the node decides what a lost
//! connection means.
//!
//! # The links
//!
//! | | shm | tcp | rdma, rdma-efe, rdma-device (`thalweg-rdma-link`) | udp, af-xdp, dpdk, [`memory`] for tests |
//! | --- | --- | --- | --- | --- |
//! | address | `shm:/path/to/socket` | `tcp:host:port` | `rdma:host:port`, `rdma-efe:host:port`, `rdma-device:host:port` | `udp:host:port`, `af-xdp:host:port`, `dpdk:host:port` (`thalweg-dpdk`), `memory:NAME` |
//! | how a fetch moves bytes | none are moved: the source's arena is mapped | `sendfile` from the source's memfd, received into the block | the builder's RNIC reads from the source's arena into the block, by segments over TCP or EFE | datagrams out of the arena, which may be lost; copied to their place |
//! | copies: source, builder | 0, 0 (1 when taken into a block to be recorded) | 0, 1 | as its RNIC and the kernel copy (`thalweg_rnic::Transport::copies_per_byte`) | udp: 1, 2; af-xdp: 0, 1, and 1 each where the kernel copies; dpdk: 0, 1 |
//! | eager offers | become held ones: reading in place is faster than sending | sent without a fetch, within the credit | become held ones | become held ones |
//! | last messages of a peer that dies | received | received, as far as they had arrived | rdma, rdma-device: received, as far as they had arrived; rdma-efe: may be lost | may be lost |
//! | a process that dies is detected | at once | at once | rdma: at once; rdma-efe: as its RNIC finds out, after 10 s; rdma-device: as the device finds out | udp: when something is sent to it; otherwise after 10 s |
//! | a host or a cable that dies is detected | | after some 10 s | after some 10 s | after 10 s |
//!
//! # Guarantees of every link
//!
//! - Messages of one end are received by the other once and in order: offers in the order of their tickets, `End` after
//!   the offers it counts.
//! - A fetch arrives whole, in its own place and with the requested length, unless its offer is dropped or the link
//!   ends. The CRC in each fragment's header verifies that the bytes are the right ones.
//! - Over a stream, a ring and RDMA, fetches are answered in the order they were made in; over frames, fetches that had
//!   to be repeated may arrive later.
//! - A place that went into a fetch is returned with the bytes that arrived. Otherwise it is [dropped](Span), and so
//!   returns automatically: when the fetch is [called off](BuilderLink::cancel_fetch), as soon as no adapter writes to it
//!   any more, or with the link.
//! - A slot's bytes are read until its ticket is released and no longer, and an offer that was fetched cannot be
//!   [withdrawn](SourceLink::withdraw_offer).
//! - A source that reconnects over a new link repeats the offers that were not released. The builder may fetch them
//!   before it has received the repeated offers.
//!
//! # Powers of a peer
//!
//! A peer that breaks the rules ends its link with an error that [reports a violation](LinkError::is_violation) and
//! names the action. It cannot make the other end panic, and can make it store no more than this: a description of 16
//! KiB, the eager credit, four fetches for each slot and one for each 4 KiB of it, and 16 MiB (or 256 bytes for each
//! slot) of messages that were sent to the peer and that it does not read.
//!
//! Over shm and RDMA a builder can read all of the source's arena. Over shm a peer can do one thing more: change bytes while they are read. That changes their values, not the
//! addresses that are read or written. Permission to connect is decided by the permissions of the socket (shm) and by
//! the network (the others): nothing here is encrypted. Over frames, a host that cannot see a connection's number
//! cannot send on its behalf. A builder keeps nothing of a greeting before its sender has shown that it receives what
//! is sent to its address; then the sender has one of 4096 places until it is accepted or given up.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `kind` | The kinds of links, and one table of what each can do, which the whole program consults |
//! | `address` | The address at which a builder listens: the name of a kind of link, and a place |
//! | `names` | The addresses that a builder's name stands for: resolved before the run, and again on a separate thread |
//! | `endpoint` | Endpoints: the ports through which a node communicates with its peers |
//! | `sockets` | Endpoints of links that have one descriptor each: one socket per peer |
//! | `poller` | Waiting: one epoll for sockets, doorbells, timers and the recorder's ring |
//! | `peer` | The peer at the other end of a connection |
//! | `offered` | The offers that a source has made over one connection, and the builder's fetches of them |
//! | `grants` | Fetches that wait for the source's grant, where builders read the source's memory themselves |
//! | `outstanding` | A source's book of tickets: the offers to one builder that are not released yet |
//! | `rules` | Rules for a source's messages that a builder checks over every link |
//! | `tcp` | The three verbs over TCP |
//! | `shm` | The three verbs over shared memory, between two processes of one host |
//! | `frames` | Endpoints of links of frames: one port, and a reliable connection over it for each peer |
//! | `udp` | The three verbs over UDP: frames through a socket |
//! | `memory` | A link inside one process, for tests: datagrams that are lost, damaged, duplicated, delayed and reordered, over paths that shrink, under a clock that the test advances |
//! | `buffer` | The buffers of a TCP socket, sized from the beginning for everything that may be in flight |
//! | `copy` | Copies, counted where they are made |
//! | `error` | Errors that end a link |
//!
//! The requirements on every link are tests in `thalweg-link-conformance`.
#![forbid(unsafe_code)]

mod address;
mod buffer;
mod copy;
mod endpoint;
mod error;
mod frames;
mod grants;
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

pub use address::Address;
pub use endpoint::{Arrivals, BuilderEndpoint, Endpoint, Endpoints, SourceEndpoint};
pub use error::LinkError;
pub use kind::{Abilities, LinkKind, Locator, Transport};
pub use outstanding::Outstanding;
pub use peer::{Origin, Peer};

pub mod parts {
    //! Building blocks of kinds of links, here and in other crates.
    pub use crate::error::{MAX_UNREAD_BYTES, check_unread_bytes, encode_refusal};
    pub use crate::frames::{builder_endpoint_over, source_endpoint_over};
    pub use crate::grants::Grants;
    pub use crate::offered::{FetchRequest, Novelty, Offered};
    pub use crate::rules::{check_hello, check_offer};
    pub use crate::sockets::{Connect, Listener, SocketLink, Sockets};
    pub use crate::udp::DATAGRAMS;
}
pub use poller::{Interest, Poller, Watch};

use std::fmt::Debug;
use std::sync::Arc;
use thalweg_arena::{Arena, Span, View};
pub use thalweg_frames::{Adapter, OwnAddress};
use thalweg_wire::{Announcement, Hello, Losses, Message, RecordBytes, Refusal};

/// The source's end of a link.
pub trait SourceLink: Debug + Send {
    /// Announces fragments that can be fetched, or that were dropped. Their bytes stay unchanged until released.
    /// Tickets are counted without gaps, from the first that is offered over this link; a ticket that was offered
    /// before may be offered again when it has been dropped. Sent with the next [`flush_messages`](Endpoint::flush_messages).
    fn announce_offer(&mut self, offer: &Announcement);

    /// Takes an offer back. Returns false if the builder has fetched it already: then it must be served.
    fn withdraw_offer(&mut self, ticket: u64) -> bool;

    /// Sends any other message, with the next [`flush_messages`](Endpoint::flush_messages).
    fn send_message(&mut self, message: &Message);

    /// Returns the number of payload bytes copied on the way out so far, by this process or by the kernel on its
    /// behalf.
    fn copied_bytes(&self) -> u64;
}

/// The builder's end of a link to one source.
pub trait BuilderLink: Debug + Send {
    /// True if the link can show the bytes of an offer in the source's memory, so that a fetch needs no place of its
    /// own.
    fn maps_source_memory(&self) -> bool;

    /// Fetches all bytes of `offer`, as [`begin_fetch`](Self::begin_fetch) does.
    ///
    /// # Errors
    /// The same as for [`begin_fetch`](Self::begin_fetch).
    fn fetch_offer(&mut self, offer: &Announcement, into: Option<Span>) -> Result<Option<Bytes>, LinkError> {
        self.begin_fetch(offer, into, offer.bytes)
    }

    /// Fetches the first `upto` bytes of `offer`, with the next [`flush_messages`](Endpoint::flush_messages). `into` has room for all of
    /// them; only a link that [maps](Self::maps_source_memory) needs no place. When all bytes have been requested and have come, they
    /// are returned with [`Received::Arrived`]; if they are here already, by this call.
    ///
    /// # Errors
    /// The source cannot have made this offer. The link is over.
    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError>;

    /// Extends a fetch in progress to the first `upto` bytes of its ticket, with the next [`flush_messages`](Endpoint::flush_messages). A
    /// link that [maps](Self::maps_source_memory) has them already.
    fn extend_fetch(&mut self, ticket: u64, upto: u32);

    /// Returns the number of requested bytes that have come since the link was made, including those of offers that are
    /// incomplete. Bytes of eager offers, which come without a request, and bytes that a link [maps](Self::maps_source_memory) do not
    /// count.
    fn received_bytes(&self) -> u64;

    /// Returns the known losses on the way here.
    fn known_losses(&self) -> Losses;

    /// Calls a fetch off, because the source has withdrawn the offer, and drops its place.
    fn cancel_fetch(&mut self, ticket: u64);

    /// Permits the source to reuse the slots of all tickets below `below`. Sent with the next
    /// [`flush_messages`](Endpoint::flush_messages).
    fn release_tickets(&mut self, below: u64);

    /// Sends any other message, with the next [`flush_messages`](Endpoint::flush_messages).
    fn send_message(&mut self, message: &Message);

    /// Sends the reason why the connection ends, if the peer still reads: [`close_link`](Endpoint::close_link) follows.
    fn refuse_source(&mut self, reason: Refusal, text: &str);

    /// Returns the number of payload bytes copied so far, by the kernel into this process or by this process.
    fn copied_bytes(&self) -> u64;
}

/// A message or answer that a builder receives from a source.
#[derive(Debug)]
pub enum Received {
    /// Identity and capabilities of the source, with its description (JSON).
    Hello(Hello, String),
    /// A fetch has been answered in full.
    Arrived {
        /// Ticket of the offer.
        ticket: u64,
        /// Bytes of the offer.
        bytes: Bytes,
    },
    /// Any other message.
    Message(Message),
}

/// The bytes of an offer, readable by the builder.
#[derive(Debug)]
pub enum Bytes {
    /// Bytes in the place that was set aside for them.
    Place(Span),
    /// Bytes in the source's own memory, until released.
    View(View),
}

impl RecordBytes for Bytes {
    fn byte_count(&self) -> usize {
        match self {
            Self::Place(span) => span.len(),
            Self::View(view) => view.len(),
        }
    }

    #[inline]
    fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        match self {
            Self::Place(span) => span[..].copy_bytes_to(at, out),
            Self::View(view) => view.copy_bytes_to(at, out),
        }
    }
}

/// Self-description of a source, for both ends, when it connects.
#[derive(Debug, Clone)]
pub struct SourceGreeting {
    /// Identity and capabilities of the source.
    pub hello: Hello,
    /// Description of the source: JSON.
    pub description: String,
    /// Arena that holds its slots.
    pub arena: Arc<Arena>,
}

/// Bounds for eager offers, set by a builder.
#[derive(Debug, Clone, Copy)]
pub struct Eager {
    /// Maximum number of bytes that a source may have sent eagerly and unreleased.
    pub credit: u32,
    /// Maximum length of a slot that it may send eagerly, in bytes.
    pub limit: u32,
}
