//! Errors of measurements.

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_sys::netns::NetnsError;
use thiserror::Error;

/// Reason why a measurement, or one point of it, failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Request that makes no sense, or whose parts do not go together.
    #[error("{0}")]
    Usage(String),
    /// Missing prerequisite: a permission, a kernel feature, a program.
    #[error("{what} not available here: {why}")]
    Unavailable {
        /// Name of what is missing.
        what: String,
        /// Reason, and the remedy.
        why: String,
    },
    /// Failed system call.
    #[error("{doing}: {error}")]
    Os {
        /// Operation and its object.
        doing: String,
        /// Error that the kernel returned.
        #[source]
        error: io::Error,
    },
    /// File that could not be used.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of opening, reading or writing it.
        #[source]
        error: io::Error,
    },
    /// Failure of the other end: it could not be reached, violated the protocol, or is gone.
    #[error("the other end ({peer}): {why}")]
    Peer {
        /// Address of the other end.
        peer: String,
        /// Description of the failure.
        why: String,
    },
    /// Timeout: no data arrived.
    #[error("{doing}: nothing came for {:.1} s", timeout.as_secs_f64())]
    Silent {
        /// Operation that waited.
        doing: String,
        /// Length of the timeout.
        timeout: Duration,
    },
    /// Bytes that arrived differ from those that were sent.
    #[error("byte {at} of message {message} arrived wrong")]
    Corrupt {
        /// Number of the message, counted from 0.
        message: u64,
        /// Offset of the byte in the message.
        at: usize,
    },
    /// Failure of another program.
    #[error("{program}: {why}")]
    Program {
        /// Name of the program.
        program: String,
        /// Last lines that the program printed, or another reason.
        why: String,
    },
    /// Time of measurement that was too short for anything to arrive.
    #[error("nothing arrived within {}: measure for a longer time (--min-time)", humantime::format_duration(*.0))]
    NothingMeasured(Duration),
    /// Stop before anything was measured.
    #[error("stopped")]
    Stopped,
}

impl BenchError {
    /// Makes a [`BenchError::Os`] in `map_err`; `doing` names the failed operation.
    pub(crate) fn os_error<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |error| Self::Os { doing, error: error.into() }
    }

    /// Makes a [`BenchError::File`] in `map_err`.
    pub(crate) fn file_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    /// Makes the error for a missing network namespace, in `map_err`.
    pub(crate) fn network_error(error: NetnsError) -> Self {
        Self::Unavailable { what: "a network of its own".to_owned(), why: error.to_string() }
    }

    /// Returns whether the request is at fault, not its execution.
    pub fn is_usage_error(&self) -> bool {
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
