//! Errors that end a link.

use crate::Address;
use std::io;
use thalweg_wire::{Message, MessageError, Refusal};
use thiserror::Error;

/// Reason why a link has ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer closed the connection, died, or does not answer.
    #[error("the peer closed the connection, died, or does not answer")]
    Closed,
    /// The peer ended the connection and sent a reason.
    #[error("refused: {text}")]
    Refused {
        /// Class of the reason.
        reason: Refusal,
        /// Text from the peer.
        text: String,
    },
    /// The peer sent bytes that are not a message.
    #[error("protocol error: {0}")]
    Message(#[from] MessageError),
    /// The peer broke a rule of the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// A resource is not available here: an address, a congestion control. Trying again does not help.
    #[error("{doing}: {error}")]
    Unusable {
        /// Action that failed.
        doing: String,
        /// Error from the kernel.
        error: io::Error,
    },
    /// An address that cannot be listened on.
    #[error("listening on {address}: {error}; {advice}")]
    Listening {
        /// Address that was to be listened on.
        address: Address,
        /// Error from the kernel or from the resolver.
        error: io::Error,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// A system call failed.
    #[error("{doing}: {error}")]
    Io {
        /// Action that failed.
        doing: String,
        /// Error from the kernel.
        error: io::Error,
    },
}

impl LinkError {
    /// Returns a function for `map_err` on a system call that does what the configuration asks for.
    pub(crate) fn from_unusable(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Unusable { doing: doing.into(), error }
    }

    /// Returns a function for `map_err` on a system call.
    pub(crate) fn from_system_call<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { doing: doing.into(), error: error.into() }
    }

    /// True if the peer broke the rules, as opposed to merely being gone.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Message(_) | Self::Protocol(_))
    }
}

/// Returns the error for a peer that broke a rule of the protocol.
pub(crate) fn protocol_error<T>(text: String) -> Result<T, LinkError> {
    Err(LinkError::Protocol(text))
}

/// Maximum number of bytes of messages that wait for a peer to read them. A peer that reads leaves some kilobytes.
pub const MAX_UNREAD_BYTES: usize = 16 << 20;

/// Returns an error if more than `most` bytes wait for the peer. A peer that sends and never reads would exhaust our
/// memory.
///
/// # Errors
/// More bytes wait.
pub fn check_unread_bytes(bytes: usize, most: usize) -> Result<(), LinkError> {
    if bytes <= most {
        return Ok(());
    }
    Err(LinkError::Protocol(format!("the peer does not read: {bytes} bytes are waiting to be sent to it")))
}

/// Encodes the last message of a connection, with as much of `text` as a peer accepts.
pub fn encode_refusal(reason: Refusal, text: &str) -> Vec<u8> {
    const MAX_TEXT_CHARACTERS: usize = Message::MAX_REFUSAL_TEXT as usize / 4;
    let text: String = text.chars().take(MAX_TEXT_CHARACTERS).collect();
    #[expect(clippy::cast_possible_truncation, reason = "a character has at most 4 bytes")]
    let message = Message::Refuse { reason, text: text.len() as u32 };
    [&message.encode()[..], text.as_bytes()].concat()
}
