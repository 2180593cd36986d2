//! What a source has offered over one connection, and what the builder has asked for of it.

use crate::error::{MOST_UNHEARD, check_unheard};
use crate::{LinkError, Outstanding};
use thalweg_wire::{Announcement, Disposition, MESSAGE_LEN};

/// The book of one connection. A source that comes back begins a new one, at the first ticket it offers again.
#[derive(Debug)]
pub struct Offered {
    /// Each offer, and whether it has been asked for. Nothing before the first offer.
    book: Option<Outstanding<bool>>,
    /// Asked for before it was offered: after a reconnection the builder knows tickets that are still to be offered
    /// again.
    early: Vec<Asked>,
    /// Most fetches that may wait for an answer.
    most: usize,
}

/// A fetch, as the builder made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Which.
    pub ticket: u64,
    /// First byte.
    pub offset: u32,
    /// How many.
    pub length: u32,
}

/// What an offer is to this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Novelty {
    /// Not offered before.
    New,
    /// Offered before: what became of it has changed.
    Again,
    /// Released: there is nothing more to say of it.
    Released,
}

/// How many fetches may wait for an answer. An honest builder never has more open than there are slots with data, or
/// pieces of them; one that has many times more only wants to fill our memory.
pub(crate) fn most_fetches(slots: u32, slot_bytes: u32) -> usize {
    (slots as usize).saturating_mul(4 + slot_bytes as usize / 4096).saturating_add(64)
}

impl Offered {
    /// An empty book of a source with so many slots of so many bytes; 0 where they are not asked for in pieces.
    pub fn new(slots: u32, slot_bytes: u32) -> Self {
        Self { book: None, early: Vec::new(), most: most_fetches(slots, slot_bytes) }
    }

    /// Enters an offer.
    ///
    /// # Panics
    /// It leaves a gap behind the one before.
    pub fn offer(&mut self, offer: &Announcement) -> Novelty {
        let book = self.book.get_or_insert_with(|| Outstanding::starting_at(offer.ticket));
        if offer.ticket >= book.next_ticket() {
            // What goes out eagerly has no need to be asked for.
            book.push(*offer, offer.disposition == Disposition::Eager);
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

    /// Whether an offer may be taken back: it has not been asked for.
    pub fn may_withdraw(&self, ticket: u64) -> bool {
        self.book.as_ref().and_then(|book| book.get(ticket)).is_none_or(|(_, asked)| !asked)
    }

    /// Whether the bytes of an offer may still be on their way: it was asked for, and is not released.
    pub fn is_read(&self) -> bool {
        self.book.as_ref().is_some_and(|book| book.iter().any(|(_, asked)| *asked))
    }

    /// Forgets the offers below `below`.
    pub fn release(&mut self, below: u64) {
        if let Some(book) = &mut self.book {
            book.release(below).for_each(drop);
        }
    }

    /// Whether this ticket was offered: then a fetch of it need not wait.
    pub fn has_heard_of(&self, ticket: u64) -> bool {
        self.book.as_ref().is_some_and(|book| ticket < book.next_ticket())
    }

    /// A fetch has come: the offer it is to be served from, and whether it is the first fetch of it. Nothing where the
    /// offer was released, dropped or sent already (the builder knows, or will in a moment), or where it is still to be
    /// made: then the fetch comes back from [`early`](Self::early).
    ///
    /// # Errors
    /// What was asked for is not there, or more was asked for than an honest builder asks.
    pub fn ask(&mut self, asked: Asked) -> Result<Option<(Announcement, bool)>, LinkError> {
        let Asked { ticket, offset, length } = asked;
        let next = self.book.as_ref().map_or(0, Outstanding::next_ticket);
        if ticket >= next {
            if self.early.len() >= self.most {
                return Err(self.too_many());
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
                "the builder asked for bytes {offset}+{length} of ticket {ticket}, which has {}",
                offer.bytes
            )));
        }
        let first = !std::mem::replace(was_asked, true);
        Ok(Some((*offer, first)))
    }

    /// The fetches that came too early, to be [asked](Self::ask) again now that more has been offered.
    pub fn early(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.early)
    }

    /// Whether so many unanswered fetches are more than an honest builder makes.
    ///
    /// # Errors
    /// They are.
    pub fn check_queue(&self, waiting: usize) -> Result<(), LinkError> {
        if waiting > self.most { Err(self.too_many()) } else { Ok(()) }
    }

    /// Whether so many bytes of messages that wait for the builder are more than an honest one leaves.
    ///
    /// # Errors
    /// They are.
    pub fn check_unheard(&self, bytes: usize) -> Result<(), LinkError> {
        // After a reconnection everything is offered again, at once.
        check_unheard(bytes, MOST_UNHEARD.max(self.most.saturating_mul(MESSAGE_LEN)))
    }

    fn too_many(&self) -> LinkError {
        LinkError::Protocol(format!("the builder has more than {} fetches open", self.most))
    }
}
