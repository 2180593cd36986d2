//! A data server seen from a client: its files and runs, fetched, sent, and kept the same.
//!
//! [`Server`] asks: [`list`](Server::list), [`head`](Server::head), [`read`](Server::read), [`reader`](Server::reader). On
//! it stand [`pull`] and [`push`], which move files and runs, [`open_run`], which reads a run event by event, and
//! [`mount`], which shows everything as files to any program. What a server is asked, and what it answers, is described
//! in `docs/data-server.md`. A server may be anybody's: nothing it says is believed before it is checked.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `address` | What a URL is made of: a server, a place on it, and names beneath, each as the other side understands it |
//! | `server` | Asks a data server, and asks again where it is worth it |
//! | `listing` | What a directory or a run on a server holds |
//! | `reader` | A range of a file on a server as a stream that survives broken connections |
//! | `part` | A file that is being fetched: `.NAME.part`, and beside it a journal of what is there, so that it goes on after anything |
//! | `digest` | The CRC32C of a whole file, put together from those of its parts |
//! | `pull` | Fetches files, runs and whole directories: several ranges at once, resumed, verified, and named only when whole |
//! | `push` | Sends files and runs: verified by the server, resumed where it broke off, and there under their names only when whole |
//! | `run` | Runs on a data server, read as if they were here |
//! | `follow` | Fetches a run while it is being recorded, so that readers here can follow it as if it were recorded here |
//! | `mount` | A data server as a directory of this machine: any program reads its runs as files (FUSE, read-only) |
//! | `moved` | What was moved, counted while it is |
//! | `progress` | How far it is, for whoever watches |
//! | `error` | What can go wrong between a client and a data server |
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
