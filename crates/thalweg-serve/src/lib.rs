//! The data server: a directory of runs on the network, by HTTP/1.1.
//!
//! What it answers is told in `docs/data-server.md`. The head of a request is read by `httparse`; how bytes move is
//! [`thalweg_transfer`]'s; what is between them is here: what a path means, which bytes are meant, who may have them,
//! and files that come in.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `server` | The listener, the event loops that clients are given to, and a thread for each client that needs one |
//! | `event_loop` | Clients that one thread answers, whichever of them can be read from or written to: those that ask for files that are in the page cache |
//! | `connection` | One client that has a thread of its own: its requests, one after the other |
//! | `socket` | A client's socket, which is waited for until a moment |
//! | `tls` | A certificate and its key |
//! | `kernel_tls` | TLS whose records the kernel makes: what is sent into such a socket, by `sendfile` as well, goes out encrypted, and what is read from it is in the clear (`CONFIG_TLS`, Linux's Documentation/networking/tls.rst) |
//! | `wire` | A connection's bytes, through the socket alone or through TLS in this program |
//! | `head` | The head of a request: its line and its header fields |
//! | `fields` | Header fields that the library has no names for |
//! | `token` | Who may do what: bearer tokens (RFC 6750) for directories |
//! | `site` | What each request is answered with |
//! | `tree` | The directory that is served, and nothing outside it |
//! | `listing` | What there is, for people and for programs |
//! | `range` | Which bytes a `Range` field asks for (RFC 9110, section 14.1.2 and 14.2) |
//! | `condition` | Conditional requests (RFC 9110, section 13): whether the client has what it asks for, or asks for what is there no more |
//! | `coding` | Compression, where a client asks for it (RFC 9110, section 12.5.3) |
//! | `answer` | What is answered: a status, header fields, and bytes from memory or from files |
//! | `outgoing` | An answer on its way: what of it is still to be sent |
//! | `upload` | Files that come in: hidden until they are whole, on the disk, and what they should be |
//! | `events` | Events of a run, as the bytes of their records |
//! | `client` | Those that are connected, and what is done about those that stay and do nothing |
//! | `counters` | What the loops and threads of a server share: how bytes move, and what was done so far |
//! | `limits` | How long clients may take |
//! | `fuzz` | What holds of every request, whatever bytes it is made of: called by the fuzz target `serve_request` |
#![forbid(unsafe_code)]

mod answer;
mod client;
mod coding;
mod condition;
mod connection;
mod counters;
mod event_loop;
mod events;
mod fields;
#[doc(hidden)]
pub mod fuzz;
mod head;
mod kernel_tls;
mod limits;
mod listing;
mod outgoing;
mod range;
mod server;
mod site;
mod socket;
mod tls;
mod token;
mod tree;
mod upload;
mod wire;

pub use counters::{Counters, Ways};
pub use server::{ServeError, Server, Settings};
pub use tls::{Tls, TlsError};
pub use token::{TokenError, Tokens, Verdict};
