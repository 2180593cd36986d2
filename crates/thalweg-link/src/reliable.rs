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
//! - **Everything else** (`Welcome`, `Start`, `Pause`, `Paused`, `StopAt`, `Told`, `End`, `Bye`) is said again, one
//!   after the other, until the peer echoes it. A number behind each tells one that came twice, which does nothing,
//!   from one that was said again because it is meant again: a second `Pause`, or the `StopAt` behind it.
//! - `Hello` is repeated until `Welcome`. Its description goes in parts: `offset: u32` in front of each.
//!
//! `Paused` may overtake offers; `End` is held back until all tickets it counts have been offered.

mod builder;
mod source;

pub(crate) use builder::{Delivered, ReliableBuilder};
pub(crate) use source::{ReliableSource, Transmit};

use crate::LinkError;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{MESSAGE_LEN, Message, RECORD_ALIGN};

/// Bytes in the longest datagram: fits an Ethernet frame with room for what tunnels add.
pub(crate) const DATAGRAM: usize = 1400;
/// Payload bytes in a datagram: whole cache lines.
const PIECE: u32 = ((DATAGRAM - MESSAGE_LEN) / RECORD_ALIGN * RECORD_ALIGN) as u32;
/// Bytes of description in a datagram.
const PART: usize = DATAGRAM - MESSAGE_LEN - 4;
/// Waiting for an answer: at first, and at most.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));
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
        Self { at: now + TIMEOUT.0, wait: TIMEOUT.0 }
    }

    fn is_due(&self, now: Duration) -> bool {
        now >= self.at
    }

    fn later(&mut self, now: Duration) {
        self.wait = (self.wait * 2).min(TIMEOUT.1);
        self.at = now + self.wait;
    }
}

/// What is said until it is echoed, the first of it now.
#[derive(Debug, Default)]
struct Standing {
    messages: VecDeque<Message>,
    /// The number of the first.
    number: u32,
}

impl Standing {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn front(&self) -> Option<&Message> {
        self.messages.front()
    }

    /// True where it is to be said now.
    fn push(&mut self, message: &Message) -> bool {
        self.messages.push_back(*message);
        self.messages.len() == 1
    }

    fn datagram(&self) -> Option<Vec<u8>> {
        self.messages.front().map(|message| numbered(message, self.number))
    }

    /// The peer echoes a number. True where it is the time for the next.
    fn echoed(&mut self, number: u32) -> bool {
        let is_first = !self.is_empty() && number == self.number;
        if is_first {
            self.messages.pop_front();
            self.number = self.number.wrapping_add(1);
        }
        is_first
    }
}

/// What a peer has heard of what stands.
#[derive(Debug, Default)]
struct Numbered {
    /// The number that is to be heard next.
    next: u32,
}

impl Numbered {
    /// Whether what has this number is new.
    fn is_new(&mut self, number: u32) -> bool {
        let is_new = number == self.next;
        self.next = self.next.wrapping_add(u32::from(is_new));
        is_new
    }
}

fn numbered(message: &Message, number: u32) -> Vec<u8> {
    [&message.encode()[..], &number.to_le_bytes()].concat()
}

/// The number behind a message that has one: [`split`] has seen to its length.
fn number(body: &[u8]) -> u32 {
    body.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn split(datagram: &[u8]) -> Result<(Message, &[u8]), LinkError> {
    let (cell, body) = datagram
        .split_first_chunk()
        .ok_or_else(|| LinkError::Protocol(format!("a datagram of {} bytes is no message", datagram.len())))?;
    let message = Message::decode(cell)?;
    let expected = match message {
        Message::Hello(_) => body.len(),
        Message::Welcome(_)
        | Message::Start { .. }
        | Message::Pause
        | Message::Paused { .. }
        | Message::StopAt { .. }
        | Message::Told { .. }
        | Message::End(_)
        | Message::Assign(_)
        | Message::Room(_)
        | Message::Heard(_)
        | Message::LeaveOut { .. }
        | Message::Left(_)
        | Message::Passed { .. }
        | Message::Bye => size_of::<u32>(),
        _ => message.body_len(),
    };
    if body.len() != expected {
        return Err(LinkError::Protocol(format!("{} bytes came with {message:?}", body.len())));
    }
    Ok((message, body))
}

#[cfg(test)]
mod tests {
    //! What the tests of both halves begin with: a source that comes back, and goes on with ticket 7.
    use thalweg_wire::{Capabilities, Hello, RunNumber, SourceId, Welcome};

    pub(super) const HELLO: Hello = Hello {
        session: 1,
        source: SourceId::new(1, 0),
        builder: 0,
        builders: 1,
        slots: 4,
        slot_bytes: 64,
        max_payload: 0,
        capabilities: Capabilities::empty(),
        description: 0,
    };
    pub(super) const WELCOME: Welcome = Welcome {
        run: RunNumber(1),
        eager_credit: 0,
        eager_limit: 0,
        most_records: 1,
        running: true,
        released_below: 7,
        capabilities: Capabilities::empty(),
    };
}
