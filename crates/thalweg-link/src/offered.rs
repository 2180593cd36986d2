//! The offers that a source has made over one connection, and the builder's fetches of them.

use crate::error::{MAX_UNREAD_BYTES, check_unread_bytes};
use crate::{LinkError, Outstanding};
use thalweg_wire::{Announcement, Disposition, MESSAGE_LEN};

/// The book of one connection. A source that reconnects begins a new one, at the first ticket it offers again.
#[derive(Debug)]
pub struct Offered {
    /// Each offer, and true if it has been fetched. `None` before the first offer.
    book: Option<Outstanding<bool>>,
    /// Fetches that came before their offer: after a reconnection the builder knows tickets that are still to be
    /// offered again.
    early: Vec<FetchRequest>,
    /// Maximum number of fetches that may wait for an answer.
    most: usize,
}

/// A fetch, as the builder made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchRequest {
    /// Ticket of the offer.
    pub ticket: u64,
    /// Offset of the first byte in the offer.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
}

/// Relation of an offer to the earlier ones of this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Novelty {
    /// The ticket was not offered before.
    New,
    /// The ticket was offered before: its disposition has changed.
    Again,
    /// The ticket was released: nothing more needs to be sent about it.
    Released,
}

/// Returns the maximum number of fetches that may wait for an answer. An honest builder never has more open than there
/// are slots with data, or pieces of them; one that has many times more only tries to exhaust our memory.
pub(crate) fn max_pending_fetches(slots: u32, slot_bytes: u32) -> usize {
    (slots as usize).saturating_mul(4 + slot_bytes as usize / 4096).saturating_add(64)
}

impl Offered {
    /// Creates an empty book for a source with `slots` slots of `slot_bytes` bytes each; `slot_bytes` is 0 if they are
    /// not fetched in pieces.
    pub fn new(slots: u32, slot_bytes: u32) -> Self {
        Self { book: None, early: Vec::new(), most: max_pending_fetches(slots, slot_bytes) }
    }

    /// Enters an offer, and returns its relation to the earlier ones.
    ///
    /// # Panics
    /// The ticket leaves a gap after the previous one.
    pub fn record_offer(&mut self, offer: &Announcement) -> Novelty {
        let book = self.book.get_or_insert_with(|| Outstanding::starting_at_ticket(offer.ticket));
        if offer.ticket >= book.next_ticket() {
            // Eager offers are sent without a fetch.
            book.push_offer(*offer, offer.disposition == Disposition::Eager);
            return Novelty::New;
        }
        match book.get_mut(offer.ticket) {
            Some((known, _)) => {
                *known = *offer;
                Novelty::Again
            }
            None => Novelty::Released,
        }
    }

    /// True if an offer may be taken back: it has not been fetched.
    pub fn may_withdraw(&self, ticket: u64) -> bool {
        self.book.as_ref().and_then(|book| book.get(ticket)).is_none_or(|(_, asked)| !asked)
    }

    /// True if the bytes of an offer may still be on their way: it was fetched, and is not released.
    pub fn has_fetched_offers(&self) -> bool {
        self.book.as_ref().is_some_and(|book| book.iter().any(|(_, asked)| *asked))
    }

    /// Removes the offers below `below`.
    pub fn release_tickets(&mut self, below: u64) {
        if let Some(book) = &mut self.book {
            book.release_tickets(below).for_each(drop);
        }
    }

    /// True if this ticket was offered: a fetch of it need not wait then.
    pub fn was_offered(&self, ticket: u64) -> bool {
        self.book.as_ref().is_some_and(|book| ticket < book.next_ticket())
    }

    /// Enters a fetch. Returns the offer to serve it from, and true if it is the first fetch of that offer. Returns
    /// `None` if the offer was released, dropped or sent already (the builder knows, or will in a moment), or is still
    /// to be made: then [`early`](Self::early) returns the fetch later.
    ///
    /// # Errors
    /// The bytes of the fetch do not exist, or there are more fetches than an honest builder makes.
    pub fn record_fetch(&mut self, asked: FetchRequest) -> Result<Option<(Announcement, bool)>, LinkError> {
        let FetchRequest { ticket, offset, length } = asked;
        let next = self.book.as_ref().map_or(0, Outstanding::next_ticket);
        if ticket >= next {
            if self.early.len() >= self.most {
                return Err(self.too_many_fetches_error());
            }
            self.early.push(asked);
            return Ok(None);
        }
        let Some((offer, was_asked)) = self.book.as_mut().and_then(|book| book.get_mut(ticket)) else {
            return Ok(None);
        };
        if matches!(offer.disposition, Disposition::Eager) || offer.disposition.is_dropped() {
            return Ok(None);
        }
        if offset.checked_add(length).is_none_or(|end| end > offer.bytes) {
            return Err(LinkError::Protocol(format!(
                "the builder requested bytes {offset}+{length} of ticket {ticket}, which has {}",
                offer.bytes
            )));
        }
        let first = !std::mem::replace(was_asked, true);
        Ok(Some((*offer, first)))
    }

    /// Returns the fetches that came too early, to be [entered](Self::record_fetch) again now that more has been
    /// offered.
    pub fn take_early_fetches(&mut self) -> Vec<FetchRequest> {
        std::mem::take(&mut self.early)
    }

    /// Checks that the number of unanswered fetches is not more than an honest builder makes.
    ///
    /// # Errors
    /// There are more.
    pub fn check_pending_fetches(&self, waiting: usize) -> Result<(), LinkError> {
        if waiting > self.most { Err(self.too_many_fetches_error()) } else { Ok(()) }
    }

    /// Checks that the messages that wait for the builder, in bytes, are not more than an honest builder leaves unread.
    ///
    /// # Errors
    /// There are more.
    pub fn check_unread_bytes(&self, bytes: usize) -> Result<(), LinkError> {
        // After a reconnection everything is offered again, at once.
        check_unread_bytes(bytes, MAX_UNREAD_BYTES.max(self.most.saturating_mul(MESSAGE_LEN)))
    }

    fn too_many_fetches_error(&self) -> LinkError {
        LinkError::Protocol(format!("the builder has more than {} fetches open", self.most))
    }
}
