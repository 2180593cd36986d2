//! A data server mounted as a local directory (FUSE, read-only).
//!
//! Any program reads the server's runs as files. The server's content is a [tree](tree) of nodes, sequential reads are
//! [fetched ahead](ahead), and [`files`] presents both to the kernel. Everything depends on one rule: **a node is one
//! content**. A file that became another one becomes another node, and a program that holds the old one open gets
//! `ESTALE`; so the kernel may keep every page it has of a node, and no reader ever gets bytes of two files mixed. Only
//! segments of runs that are being recorded change beneath their node, and these only grow.

mod ahead;
mod files;
mod tree;

use crate::{RemoteError, Server};
use files::Files;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use thiserror::Error;

/// A mounted directory that shows the content of a server until it is dropped.
pub struct Mounted {
    /// Session with the kernel; `None` once the directory is unmounted.
    session: Option<BackgroundSession>,
    directory: PathBuf,
    counters: Arc<Counters>,
    end: Sender<End>,
    ended: Receiver<End>,
}

/// Handle that ends [`Mounted::wait_until_unmounted`], from any thread.
#[derive(Debug, Clone)]
pub struct Stop(Sender<End>);

/// Usage of a mounted directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Used {
    /// Number of times that a file was opened.
    pub opened: u64,
    /// Number of reads that the kernel asked for; those from its page cache are not counted.
    pub reads: u64,
    /// Number of bytes returned for these reads.
    pub read_bytes: u64,
    /// Number of bytes of files fetched from the server.
    pub fetched_bytes: u64,
    /// Number of requests answered with an error, other than that a file does not exist.
    pub errors: u64,
}

/// Reason why a directory could not be mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The server has no such directory, or refuses to list it.
    #[error(transparent)]
    Server(#[from] RemoteError),
    /// The mount point cannot be used.
    #[error("{}: {error}", .path.display())]
    Directory {
        /// Path of the mount point.
        path: PathBuf,
        /// Reason why it cannot be used.
        #[source]
        error: io::Error,
    },
    /// A program that was killed left its mount behind.
    #[error(
        "{0} is still mounted by a program that died: unmount it with `fusermount3 -u {0}`, or as root with `umount \
         {0}`"
    )]
    LeftBehind(String),
    /// This kernel or this container has no FUSE.
    #[error(
        "/dev/fuse cannot be opened ({0}): load it with `modprobe fuse`; give it to a container with --device /dev/fuse"
    )]
    NoFuse(io::Error),
    /// Only root may mount without the helper program.
    #[error("without fusermount3 only root can mount: install the package fuse3")]
    NoHelper,
    /// The kernel, or fusermount3, refused.
    #[error("{} cannot be mounted: {message}", .path.display())]
    Refused {
        /// Path of the mount point.
        path: PathBuf,
        /// Error message of the kernel or of fusermount3.
        message: String,
    },
    /// Another operation of the system failed.
    #[error("starting threads: {0}")]
    Threads(io::Error),
}

impl MountError {
    /// Returns whether the caller's request is wrong.
    pub fn is_usage_error(&self) -> bool {
        match self {
            Self::Server(error) => error.is_usage_error() || error.is_not_found(),
            Self::Directory { .. } | Self::LeftBehind(_) => true,
            _ => false,
        }
    }
}

/// Mounts the content of `server` at `directory`, with `streams` concurrent ranges; visible to every user of this
/// machine if `everybody` is set, which requires root or `user_allow_other` in `/etc/fuse.conf`.
///
/// # Errors
/// Fails if the server does not list it, `directory` is not a directory or is still mounted by a program that died, or
/// this user has no FUSE. Nothing is mounted then.
pub fn mount_server(server: &Server, directory: &Path, streams: usize, everybody: bool) -> Result<Mounted, MountError> {
    // Before all else: an unreachable server is reported here, not to the first program that reads.
    server.list_directory("")?;
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(unusable_directory(directory)(Errno::NOTDIR.into())),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            return Err(MountError::LeftBehind(directory.display().to_string()));
        }
        Err(error) => return Err(unusable_directory(directory)(error)),
    }
    File::options().read(true).write(true).open("/dev/fuse").map_err(MountError::NoFuse)?;

    let mut config = Config::default();
    config.mount_options = vec![
        // A comma would begin another option.
        MountOption::FSName(server.url_of_resource("").replace(',', "%2C")),
        MountOption::Subtype("thalweg".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.acl = if everybody { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREAD_COUNT);

    let directory = directory.canonicalize().map_err(unusable_directory(directory))?;
    let counters = Arc::new(Counters::default());
    let (end, ended) = channel();
    let files = Files::new(server, streams, Arc::clone(&counters), OnEnd(Mutex::new(end.clone())));
    let files = files.map_err(MountError::Threads)?;
    let session = Session::new(files, &directory, &config).map_err(|error| mount_refusal(&directory, &error))?;
    let session = Some(session.spawn().map_err(MountError::Threads)?);
    Ok(Mounted { session, directory, counters, end, ended })
}

fn mount_refusal(path: &Path, error: &io::Error) -> MountError {
    if error.kind() == io::ErrorKind::NotFound {
        return MountError::NoHelper;
    }
    let message = error.to_string().trim().trim_start_matches("fusermount3: ").to_owned();
    MountError::Refused { path: path.to_owned(), message }
}

fn unusable_directory(directory: &Path) -> impl FnOnce(io::Error) -> MountError {
    move |error| MountError::Directory { path: directory.to_owned(), error }
}

impl Mounted {
    /// Returns a handle that ends [`wait_until_unmounted`](Self::wait_until_unmounted).
    pub fn stop_handle(&self) -> Stop {
        Stop(self.end.clone())
    }

    /// Waits until the directory is unmounted, or unmounts it on a [`Stop`], even if it is in use: its users get errors
    /// from then on.
    pub fn wait_until_unmounted(mut self) -> Used {
        if self.ended.recv() == Ok(End::Unmounted) {
            // The session must not be dropped: that would unmount whatever is mounted there by now.
            std::mem::forget(self.session.take());
        }
        self.counters.usage_so_far()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        match rustix::mount::unmount(&self.directory, UnmountFlags::DETACH) {
            // The setuid helper, which the session calls, is permitted to.
            Err(Errno::PERM) => drop(session),
            result => {
                if let Err(error) = result {
                    tracing::warn!("unmounting {}: {error}", self.directory.display());
                }
                std::mem::forget(session);
            }
        }
    }
}

impl Stop {
    /// Ends the wait. Further calls have no effect.
    pub fn request_stop(&self) {
        // If no thread waits any more, it has ended already.
        let _ = self.0.send(End::Requested);
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Reason why a mounted directory ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The directory is no longer mounted.
    Unmounted,
    /// The caller requested the end.
    Requested,
}

/// Reports that the kernel has ended the session.
#[derive(Debug)]
struct OnEnd(Mutex<Sender<End>>);

impl OnEnd {
    fn report_unmounted(&self) {
        // The receiver may be gone.
        let _ = self.0.lock().send(End::Unmounted);
    }
}

#[derive(Debug, Default)]
struct Counters {
    opened: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    errors: AtomicU64,
}

impl Counters {
    fn usage_so_far(&self) -> Used {
        Used {
            opened: self.opened.load(Relaxed),
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }
}

/// Number of concurrent requests of programs: each waits in a thread of its own for the server.
const THREAD_COUNT: usize = 16;
