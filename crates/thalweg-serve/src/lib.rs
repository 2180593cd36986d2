//! The data server: a directory of runs on the network, by HTTP/1.1.
//!
//! `docs/data-server.md` describes the answers. `httparse` parses the head of a request, and [`thalweg_transfer`] moves
//! the bytes; this crate does the rest: it maps paths to files, selects byte ranges, checks permissions, and receives
//! files.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `server` | The listener, the event loops that serve clients, and a thread for each client that needs one |
//! | `event_loop` | An event loop: one thread that serves all clients that ask for files in the page cache |
//! | `connection` | A client with a thread of its own: reads its requests and answers them in order |
//! | `socket` | A client's socket, with a deadline for reads |
//! | `tls` | Certificate and private key of a server |
//! | `kernel_tls` | TLS with records encrypted and decrypted by the kernel (`CONFIG_TLS`) |
//! | `wire` | A connection's bytes, through the socket alone or through TLS in this program |
//! | `head` | The head of a request: request line and header fields |
//! | `fields` | Header field names that the `http` crate lacks |
//! | `token` | Permissions: bearer tokens (RFC 6750) for directories |
//! | `site` | The answer to each request |
//! | `tree` | The directory that is served, and nothing outside it |
//! | `listing` | Listings of directories and runs, for people and for programs |
//! | `run_page` | Page of a run: its outcome, its words, and its ledger, as HTML |
//! | `range` | Byte ranges that a `Range` field asks for (RFC 9110, section 14.1.2 and 14.2) |
//! | `condition` | Conditional requests (RFC 9110, section 13) |
//! | `coding` | Compression, where a client asks for it (RFC 9110, section 12.5.3) |
//! | `answer` | An answer: status, header fields, and bytes from memory or from files |
//! | `outgoing` | An answer that is being sent |
//! | `upload` | Uploads: files that stay hidden until they are complete, on disk and verified |
//! | `events` | Events of a run, as the bytes of their records |
//! | `client` | Connected clients, and the disconnection of those that stay idle or stall |
//! | `counters` | Transfer methods and counters, shared by the loops and threads of a server |
//! | `limits` | Time limits for clients |
//! | `fuzz` | Invariants of every request, checked by the fuzz target `serve_request` |
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
mod run_page;
mod server;
mod site;
mod socket;
mod tls;
mod token;
mod tree;
mod upload;
mod wire;

pub use counters::{Counters, TransferMethods};
pub use server::{ServeError, Server, Settings};
pub use tls::{Tls, TlsError};
pub use token::{TokenError, Tokens, Verdict};
