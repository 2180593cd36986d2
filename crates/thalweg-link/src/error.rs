//! What ends a link.

use std::io;
use thalweg_wire::{MessageError, Refusal};
use thiserror::Error;

/// Why a link is at its end.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer closed it, or died.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer ended it and said why.
    #[error("refused: {text} ({reason:?})")]
    Refused {
        /// The class of reason.
        reason: Refusal,
        /// The peer's words.
        text: String,
    },
    /// The peer sent what is no message.
    #[error("protocol error: {0}")]
    Message(#[from] MessageError),
    /// The peer broke a rule of the conversation.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The kernel's answer while something was being done.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: String,
        /// The answer.
        error: io::Error,
    },
}

impl LinkError {
    /// For `map_err` on a system call.
    pub fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { doing: doing.into(), error: error.into() }
    }

    /// Whether the peer broke the rules, as against just being gone.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Message(_) | Self::Protocol(_))
    }
}
