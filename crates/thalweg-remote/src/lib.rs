//! A data server seen from a client: its files and runs, fetched, sent, and kept the same.
//!
//! [`Server`] asks: [`list`](Server::list), [`head`](Server::head), [`read`](Server::read), [`reader`](Server::reader). On
//! it stand [`pull`] and [`push`], which move files and runs, [`open_run`], which reads a run event by event, and [`mount`],
//! which shows everything as files to any program. What a server is asked, and what it answers, is described in
//! `docs/data-server.md`. A server may be anybody's: nothing it says is believed before it is checked.
#![forbid(unsafe_code)]

mod address;
mod digest;
mod error;
mod follow;
mod listing;
mod mount;
mod moved;
mod part;
mod progress;
mod pull;
mod push;
mod reader;
mod run;
mod server;

pub use address::Resource;
pub use digest::Digest;
pub use error::RemoteError;
pub use follow::pull_following;
pub use listing::{Entry, Kind, Listing};
pub use mount::{MountError, Mounted, Stop, Used, mount};
pub use moved::Moved;
pub use progress::Progress;
pub use pull::pull;
pub use push::{push, push_following};
pub use reader::Reader;
pub use run::{is_url, open_run};
pub use server::{Head, Options, Server};
