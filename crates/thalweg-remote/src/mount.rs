//! A data server as a directory of this machine: any program reads its runs as files (FUSE, read-only).
//!
//! What the server has is a [tree](tree) of nodes, what is read one byte after the other is [fetched ahead](ahead), and
//! [`files`] says both to the kernel. The rule on which everything stands: **a node is one content**. A file that
//! became another one becomes another node, and who holds the old one open gets `ESTALE`; so the kernel may keep every
//! page it has of a node, and no reader ever gets bytes of two files mixed. Only segments of runs that are being
//! recorded change beneath their node, and these only grow.

mod ahead;
mod files;
mod tree;

use crate::{RemoteError, Server};
use files::Files;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// A directory that shows what a server has, as long as this lives.
pub struct Mounted {
    /// Nothing once it is not mounted any more.
    session: Option<BackgroundSession>,
    directory: PathBuf,
    counters: Arc<Counters>,
    end: Sender<End>,
    ended: Receiver<End>,
}

/// Ends [`Mounted::wait`], from any thread.
#[derive(Debug, Clone)]
pub struct Stop(Sender<End>);

/// What a mounted directory was used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Used {
    /// Files that were opened.
    pub opened: u64,
    /// Reads of them that the kernel asked for: what its page cache has is not among them.
    pub reads: u64,
    /// Bytes that these were answered with.
    pub read_bytes: u64,
    /// Bytes of files that came from the server.
    pub fetched_bytes: u64,
    /// Questions of programs that were answered with an error, other than that there is no such file.
    pub errors: u64,
}

/// Why a directory could not be mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The server has no such directory, or does not show it.
    #[error(transparent)]
    Server(#[from] RemoteError),
    /// There is nothing to mount on.
    #[error("{}: {error}", .path.display())]
    Directory {
        /// What was to be mounted on.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: io::Error,
    },
    /// What a program left that was killed.
    #[error(
        "{0} is still mounted by a program that died: `fusermount3 -u {0}`, or as root `umount {0}`, takes it away"
    )]
    LeftBehind(String),
    /// This kernel or this container has no FUSE.
    #[error(
        "/dev/fuse cannot be opened ({0}): `modprobe fuse` loads it; a container has to be given it (--device /dev/fuse)"
    )]
    NoFuse(io::Error),
    /// Only root may mount without help.
    #[error("only root can mount without fusermount3, which is not here: install the package fuse3")]
    NoHelper,
    /// The kernel, or fusermount3, refused.
    #[error("{} cannot be mounted: {said}", .path.display())]
    Refused {
        /// What was to be mounted on.
        path: PathBuf,
        /// Their words.
        said: String,
    },
    /// The operating system refused something else.
    #[error("starting threads: {0}")]
    Threads(io::Error),
}

impl MountError {
    /// Whether it was asked for wrongly.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Server(error) => error.is_usage() || error.is_not_found(),
            Self::Directory { .. } | Self::LeftBehind(_) => true,
            _ => false,
        }
    }
}

/// Shows what `server` has at `directory`, with so many ranges under way at once; to every user of this machine where
/// `everybody`, which takes root or `user_allow_other` in `/etc/fuse.conf`.
///
/// # Errors
/// Where the server does not list it, `directory` is none or is mounted already by a program that died, or there is no
/// FUSE for this user. Nothing is mounted then.
pub fn mount(server: &Server, directory: &Path, streams: usize, everybody: bool) -> Result<Mounted, MountError> {
    // First of all: a server that is not there should not be found out by the first program that reads.
    server.list("")?;
    let wrong = |error| MountError::Directory { path: directory.to_owned(), error };
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(wrong(Errno::NOTDIR.into())),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            return Err(MountError::LeftBehind(directory.display().to_string()));
        }
        Err(error) => return Err(wrong(error)),
    }
    File::options().read(true).write(true).open("/dev/fuse").map_err(MountError::NoFuse)?;

    let mut config = Config::default();
    config.mount_options = vec![
        // A comma would begin another option.
        MountOption::FSName(server.url("").replace(',', "%2C")),
        MountOption::Subtype("thalweg".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.acl = if everybody { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);

    let directory = directory.canonicalize().map_err(wrong)?;
    let counters = Arc::new(Counters::default());
    let (end, ended) = channel();
    let files = Files::new(server, streams, Arc::clone(&counters), OnEnd(Mutex::new(end.clone())));
    let files = files.map_err(MountError::Threads)?;
    let session = Session::new(files, &directory, &config).map_err(|error| refused(&directory, &error))?;
    let session = Some(session.spawn().map_err(MountError::Threads)?);
    Ok(Mounted { session, directory, counters, end, ended })
}

fn refused(path: &Path, error: &io::Error) -> MountError {
    if error.kind() == io::ErrorKind::NotFound {
        return MountError::NoHelper;
    }
    let said = error.to_string().trim().trim_start_matches("fusermount3: ").to_owned();
    MountError::Refused { path: path.to_owned(), said }
}

impl Mounted {
    /// What ends [`wait`](Self::wait).
    pub fn stop(&self) -> Stop {
        Stop(self.end.clone())
    }

    /// Waits until the directory is unmounted, or unmounts it when it is told to [`Stop`]: also where it is in use,
    /// whose users get errors from then on.
    pub fn wait(mut self) -> Used {
        if self.ended.recv() == Ok(End::Unmounted) {
            // Left alone, or it would unmount whatever is mounted there by now.
            std::mem::forget(self.session.take());
        }
        self.counters.used()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        match rustix::mount::unmount(&self.directory, UnmountFlags::DETACH) {
            // The setuid helper, which the session calls, may.
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
    /// Once is enough; more do no harm.
    pub fn stop(&self) {
        // Where nobody waits any more it has ended already.
        let _ = self.0.send(End::Asked);
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Why a mounted directory ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is not mounted any more.
    Unmounted,
    /// Somebody wants it to.
    Asked,
}

/// Says that the kernel has let go of it.
#[derive(Debug)]
struct OnEnd(Mutex<Sender<End>>);

impl OnEnd {
    fn unmounted(&self) {
        // Nobody may be there to hear it.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(End::Unmounted);
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
    fn used(&self) -> Used {
        Used {
            opened: self.opened.load(Relaxed),
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }
}

/// Questions of programs that are answered at once: each waits in a thread of its own for what it asks the server.
const THREADS: usize = 16;
