//! What ends a link.

use crate::Address;
use std::io;
use thalweg_wire::{Message, MessageError, Refusal};
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
    /// What was asked for is not to be had here: an address, a congestion control. Trying again does not help.
    #[error("{doing}: {error}")]
    Unusable {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// An address that cannot be listened on.
    #[error("listening on {address}: {error}; {advice}")]
    Listening {
        /// The address.
        address: Address,
        /// The kernel's answer, or the resolver's.
        error: io::Error,
        /// What to do.
        advice: &'static str,
    },
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
    /// For `map_err` on a system call that does what the configuration asks for.
    pub(crate) fn unusable(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Unusable { doing: doing.into(), error }
    }

    /// For `map_err` on a system call.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { doing: doing.into(), error: error.into() }
    }

    /// Whether the peer broke the rules, as against just being gone.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Message(_) | Self::Protocol(_))
    }
}

/// Most bytes of messages that wait for a peer to take them. Who listens leaves some kilobytes.
pub(crate) const MOST_UNHEARD: usize = 16 << 20;

/// An error where more than `most` bytes wait for the peer. One that talks and never listens would fill our memory.
pub(crate) fn check_unheard(bytes: usize, most: usize) -> Result<(), LinkError> {
    if bytes <= most {
        return Ok(());
    }
    Err(LinkError::Protocol(format!("the peer does not take what it is told: {bytes} bytes wait for it")))
}

/// The last message of a conversation, with as much of `text` as a peer accepts.
pub(crate) fn refusal(reason: Refusal, text: &str) -> Vec<u8> {
    const CHARACTERS: usize = Message::MAX_REFUSAL_TEXT as usize / 4;
    let text: String = text.chars().take(CHARACTERS).collect();
    #[expect(clippy::cast_possible_truncation, reason = "a character has at most 4 bytes")]
    let message = Message::Refuse { reason, text: text.len() as u32 };
    [&message.encode()[..], text.as_bytes()].concat()
}
