//! The error that ends a port.

use std::io;
use thiserror::Error;

/// Error that ends a port.
#[derive(Debug, Error)]
#[error("{doing}: {error}")]
pub struct FramesError {
    /// Action that failed.
    pub doing: String,
    /// Error from the kernel.
    pub error: io::Error,
}

impl FramesError {
    /// Returns a function for `map_err` on a system call.
    pub(crate) fn from_system_call<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self { doing: doing.into(), error: error.into() }
    }
}
