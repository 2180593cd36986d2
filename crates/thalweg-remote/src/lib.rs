//! A data server seen from a client: its files and runs, fetched, sent, and kept the same.
//!
//! [`Server`] asks: [`list`](Server::list), [`head`](Server::head), [`read`](Server::read), [`reader`](Server::reader). What
//! it is asked, and what it answers, is described in `docs/data-server.md`. A server may be anybody's: nothing it says
//! is believed before it is checked.
#![forbid(unsafe_code)]

mod address;
mod digest;
mod error;
mod follow;
mod listing;
mod mount;
mod part;
mod progress;
mod pull;
mod push;
mod reader;
mod server;

pub use address::Resource;
pub use digest::Digest;
pub use error::RemoteError;
pub use follow::pull_following;
pub use listing::{Entry, Kind, Listing};
pub use mount::{MountError, Mounted, Stop, Used, mount};
pub use progress::Progress;
pub use pull::{Moved, pull};
pub use push::{push, push_following};
pub use reader::Reader;
pub use server::{Head, Options, Server};
