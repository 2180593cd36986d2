//! The data server: a directory of runs on the network, by HTTP/1.1.
//!
//! What it answers is told in `docs/data-server.md`. The head of a request is read by `httparse`; how bytes move is
//! [`thalweg_transfer`]'s; what is between them is here: what a path means, which bytes are meant, who may have them, and files
//! that come in.
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
