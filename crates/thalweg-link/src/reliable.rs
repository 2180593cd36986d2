//! Reliability for links that lose, repeat, delay and reorder what they carry. No sockets and no clock: who has those
//! hands in what was heard and what time it is, and sends what comes out.
//!
//! One message to a datagram, with at most [`DATAGRAM`] bytes. What makes it reliable:
//!
//! - **Bytes are fetched again.** The builder keeps an interval map of each fetch and asks again for the gaps, once a
//!   fetch made after it was answered, or nothing came for a while.
//! - **Offers are made again** until the builder echoes one at least as late, or releases them. It reports them in the
//!   order of their tickets and echoes what it has reported, so that knowing one is knowing those before it. A fetch
//!   shows nothing of the kind: after a reconnection the builder asks for tickets it knows from before.
//! - **Releases are cumulative** and said again until echoed. They are the builder's sign of life, too.
//! - **Everything else** (`Welcome`, `Start`, `Pause`, `Paused`, `StopAt`, `End`, `Bye`) is said again, one after the
//!   other, until the peer echoes it. Hearing it twice does nothing.
//! - `Hello` is repeated until `Welcome`. Its description goes in parts: `offset: u32` in front of each.
//!
//! `Paused` may overtake offers; `End` is held back until all tickets it counts have been offered.

mod builder;
mod source;

pub(crate) use builder::{Heard, ReliableBuilder};
pub(crate) use source::{ReliableSource, Transmit};

use crate::LinkError;
use std::time::Duration;
use thalweg_wire::{MESSAGE_LEN, Message, RECORD_ALIGN};

/// Bytes in the longest datagram: fits an Ethernet frame with room for what tunnels add.
pub(crate) const DATAGRAM: usize = 1400;
/// Payload bytes in a datagram: whole cache lines.
const PIECE: u32 = ((DATAGRAM - MESSAGE_LEN) / RECORD_ALIGN * RECORD_ALIGN) as u32;
/// Bytes of description in a datagram.
const PART: usize = DATAGRAM - MESSAGE_LEN - 4;
/// Waiting for an answer: at first, and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));
/// A builder that said nothing for so long gives a sign of life, and by its echo gets one.
const SILENCE: Duration = Duration::from_secs(1);
/// A peer that was not heard for so long is gone.
const GONE: Duration = Duration::from_secs(10);
/// Offers, or gaps of a fetch, that are said again at a time.
const AT_ONCE: usize = 64;

/// When something is to be said again: soon at first, then ever later while nobody answers.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Duration,
    wait: Duration,
}

impl Retry {
    fn from(now: Duration) -> Self {
        Self { at: now + PATIENCE.0, wait: PATIENCE.0 }
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.at
    }

    fn later(&mut self, now: Duration) {
        self.wait = (self.wait * 2).min(PATIENCE.1);
        self.at = now + self.wait;
    }
}

fn split(datagram: &[u8]) -> Result<(Message, &[u8]), LinkError> {
    let (cell, body) = datagram
        .split_first_chunk()
        .ok_or_else(|| LinkError::Protocol(format!("a datagram of {} bytes is no message", datagram.len())))?;
    let message = Message::decode(cell)?;
    let expected = match message {
        Message::Hello(_) => body.len(),
        _ => message.body_len(),
    };
    if body.len() != expected {
        return Err(LinkError::Protocol(format!("{} bytes came with {message:?}", body.len())));
    }
    Ok((message, body))
}
