//! Why datagrams cannot be sent or received.

use std::io;
use thiserror::Error;

/// What ends a port.
#[derive(Debug, Error)]
#[error("{doing}: {error}")]
pub struct FramesError {
    /// What was being done.
    pub doing: String,
    /// The kernel's answer.
    pub error: io::Error,
}

impl FramesError {
    /// For `map_err` on a system call.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self { doing: doing.into(), error: error.into() }
    }
}
