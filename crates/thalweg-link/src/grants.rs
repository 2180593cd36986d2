//! Fetches that wait for the source's grant: over links by which a builder reads the source's memory itself, a source that
//! may withdraw its offers must be asked before its bytes are read.

use crate::LinkError;
use crate::offered::FetchRequest;
use crate::rules::check_fetch_order;
use std::collections::VecDeque;
use thalweg_wire::{Announcement, Message};

/// Requests of a builder in the order in which they were made, each with what the builder keeps for it.
#[derive(Debug)]
pub struct Grants<T> {
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: u64,
    bytes: u32,
    kept: T,
    /// True if the source has dropped the offer: the fetch is about to be called off.
    is_dropped: bool,
}

impl<T> Default for Grants<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<T> Grants<T> {
    /// Enters a fetch of all bytes of an offer, and returns the message that asks for it.
    pub fn request_offer(&mut self, offer: &Announcement, kept: T) -> Message {
        let Announcement { ticket, bytes, .. } = *offer;
        self.waiting.push_back(Waiting { ticket, bytes, kept, is_dropped: false });
        Message::Fetch { ticket, offset: 0, length: bytes }
    }

    /// Processes a grant ([`Message::Data`]), and returns what was kept for the fetch.
    ///
    /// # Errors
    /// The source grants something else than the oldest fetch that it has not dropped.
    pub fn take_granted(&mut self, granted: FetchRequest) -> Result<T, LinkError> {
        let next = self.waiting.iter().position(|waiting| !waiting.is_dropped);
        let Some(waiting) = next.and_then(|at| self.waiting.remove(at)) else {
            return Err(LinkError::Protocol(format!("ticket {} was granted without a request", granted.ticket)));
        };
        check_fetch_order(granted, FetchRequest { ticket: waiting.ticket, offset: 0, length: waiting.bytes })?;
        Ok(waiting.kept)
    }

    /// Records that the source has dropped an offer: a fetch of it is not granted.
    pub fn note_dropped(&mut self, ticket: u64) {
        let dropped = self.waiting.iter_mut().filter(|waiting| waiting.ticket == ticket);
        dropped.for_each(|waiting| waiting.is_dropped = true);
    }

    /// Removes the fetch of a ticket.
    pub fn cancel_fetch(&mut self, ticket: u64) {
        self.waiting.retain(|waiting| waiting.ticket != ticket);
    }
}
