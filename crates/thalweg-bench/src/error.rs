//! What can go wrong while something is measured.

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_netns::NetnsError;
use thiserror::Error;

/// Why a measurement, or one point of it, cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// What was asked for makes no sense, or does not go together.
    #[error("{0}")]
    Usage(String),
    /// What is needed is not here: a permission, a kernel feature, a program.
    #[error("{what} cannot be had here: {why}")]
    Unavailable {
        /// What.
        what: String,
        /// Why, and what would mend it.
        why: String,
    },
    /// A system call failed.
    #[error("{doing}: {error}")]
    Os {
        /// What was being done, to what.
        doing: String,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
    /// A file could not be used.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The other end could not be reached, or spoke nonsense, or is gone.
    #[error("the other end ({peer}): {why}")]
    Peer {
        /// Its address.
        peer: String,
        /// What it did.
        why: String,
    },
    /// Nothing came for too long.
    #[error("{doing}: nothing came for {:.1} s", timeout.as_secs_f64())]
    Silent {
        /// What was waited for.
        doing: String,
        /// How long.
        timeout: Duration,
    },
    /// Bytes arrived that are not those that were sent.
    #[error("byte {at} of message {message} arrived wrong")]
    Corrupt {
        /// Which message, counted from 0.
        message: u64,
        /// Which byte of it.
        at: usize,
    },
    /// Another program ended with an error.
    #[error("{program}: {why}")]
    Program {
        /// Which.
        program: String,
        /// Its last words.
        why: String,
    },
    /// It was stopped before anything was measured.
    #[error("stopped")]
    Stopped,
}

impl BenchError {
    /// For `map_err`: what was being done.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |error| Self::Os { doing, error: error.into() }
    }

    /// For `map_err`: there is no network of one's own.
    pub(crate) fn network(error: NetnsError) -> Self {
        Self::Unavailable { what: "a network of its own".to_owned(), why: error.to_string() }
    }

    /// Whether what was asked for is at fault, not what became of it.
    pub fn is_usage(&self) -> bool {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable, NotADirectory, NotFound, PermissionDenied};
        match self {
            Self::Usage(_) => true,
            Self::Os { error, .. } | Self::File { error, .. } => {
                matches!(error.kind(), NotFound | NotADirectory | PermissionDenied | AddrInUse | AddrNotAvailable)
            }
            _ => false,
        }
    }
}
