//! Client of a data server: fetches, sends, reads and mounts its files and runs.
//!
//! [`Server`] sends the requests: [`list_directory`](Server::list_directory), [`fetch_head`](Server::fetch_head), [`read_range`](Server::read_range),
//! [`open_reader`](Server::open_reader). [`pull`] and [`push`], which move files and runs, [`open_remote_run`], which reads a run event
//! by event, and [`mount`], which shows everything as files to any program, are built on it. `docs/data-server.md`
//! describes the requests and the answers. A server is not trusted: every answer is checked before it is used.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `address` | Parts of a URL: the server, a path on it, and names beneath, encoded as each side expects |
//! | `server` | Requests to a data server, repeated where that is useful |
//! | `listing` | Listings of directories and runs on a server |
//! | `reader` | A range of a file on a server as a stream that survives broken connections |
//! | `part` | A partly fetched file: `.NAME.part`, with a journal that makes it resumable |
//! | `digest` | The CRC32C of a whole file, combined from those of its parts |
//! | `pull` | Fetches files, runs and directories in parallel: resumed, verified, named only when complete |
//! | `push` | Sends files and runs: resumed, verified by the server, visible only when complete |
//! | `run` | Runs on a data server, read as if they were local |
//! | `follow` | Fetches a run while it is being recorded, so that local readers can follow it |
//! | `mount` | A data server mounted as a local directory (FUSE, read-only) |
//! | `moved` | Result of a transfer, counted while it runs |
//! | `progress` | Progress of a transfer, for display |
//! | `error` | Errors between a client and a data server |
#![forbid(unsafe_code)]

mod address;
mod digest;
mod error;
mod follow;
mod listing;
#[cfg(feature = "mount")]
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
pub use follow::pull_while_recorded;
pub use listing::{Entry, Kind, Listing};
#[cfg(feature = "mount")]
pub use mount::{MountError, Mounted, Stop, Used, mount_server};
pub use moved::Moved;
pub use progress::Progress;
pub use pull::pull_entry;
pub use push::{push_path, push_while_recorded};
pub use reader::Reader;
pub use run::{is_run_url, open_remote_run};
pub use server::{Head, Options, Server};
