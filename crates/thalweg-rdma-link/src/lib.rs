//! The three verbs over RDMA: the kinds of link `rdma` (iWARP over TCP) and `rdma-efe` (EFE over UDP).
//!
//! A source registers its arena with its RNIC before the run, and announces the region once for each connection
//! ([`Message::Region`](thalweg_wire::Message::Region)): an offer's place in the arena is then all that a builder needs to
//! read it. A fetch is one or more RDMA reads straight into the place in the builder's block. The source's node takes no
//! part: its RNIC answers. A builder's memory is not open to anybody: only its own reads write there.
//!
//! (The other way would be to grant the source a place, and have it write. Then every builder's blocks would be open to
//! every source, for as long as a place is granted, and each fetch would cost the source's node a request of its own.)
//!
//! A source that may withdraw its offers is asked before its bytes are read, and grants them, as over shared memory.
//!
//! Messages go by RDMA sends on the same queue pair, packed into buffers of 4 KiB with flow control ([`Channel`]), since a
//! message that finds no receive posted ends the connection (RFC 5041 section 7.1).
//!
//! The RNIC ([`thalweg_rdma`]) is embedded: each endpoint has one, which the node's own turns drive. So the node waits in
//! one epoll, in which that of the RNIC's sockets is.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `kind` | The two kinds of link, and how their endpoints are opened |
//! | `endpoint` | Endpoint: one RNIC, its listener, and the connections to all peers |
//! | `memory` | Arenas that are registered with the RNIC |
//! | `connection` | Connection to one peer: its queue pair, and what was posted |
//! | `channel` | Messages of a connection in buffers, with flow control; sans-IO |
//! | `source` | The source's end: offers, grants |
//! | `builder` | The builder's end: fetches by RDMA reads |

mod builder;
mod channel;
mod connection;
mod endpoint;
mod kind;
mod memory;
mod source;

pub use channel::{BUFFER_BYTES, Channel, RECEIVES};
pub use kind::{RdmaLinks, register_links};
