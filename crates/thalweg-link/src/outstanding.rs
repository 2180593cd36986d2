//! A source's book of tickets: the offers to one builder that are not released yet.

use std::collections::VecDeque;
use thalweg_wire::Announcement;

/// Offers that are not released, in the order of their tickets, each with what the source keeps for it (its slot).
#[derive(Debug)]
pub struct Outstanding<T> {
    first: u64,
    offers: VecDeque<(Announcement, T)>,
}

impl<T> Default for Outstanding<T> {
    fn default() -> Self {
        Self { first: 0, offers: VecDeque::new() }
    }
}

impl<T> Outstanding<T> {
    /// Creates an empty book whose first offer will have ticket `first`.
    pub fn starting_at_ticket(first: u64) -> Self {
        Self { first, offers: VecDeque::new() }
    }

    /// Returns the ticket of the first offer that is not released.
    pub fn first_ticket(&self) -> u64 {
        self.first
    }

    /// Returns the ticket that the next offer will have.
    pub fn next_ticket(&self) -> u64 {
        self.first + self.offers.len() as u64
    }

    /// Adds an offer.
    ///
    /// # Panics
    /// The ticket of the offer is not [`next_ticket`](Self::next_ticket).
    pub fn push_offer(&mut self, offer: Announcement, kept: T) {
        assert_eq!(offer.ticket, self.next_ticket(), "tickets are counted without gaps");
        self.offers.push_back((offer, kept));
    }

    /// Returns the offer with this ticket, or `None` if it was released or never made.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut (Announcement, T)> {
        let at = usize::try_from(ticket.checked_sub(self.first)?).ok()?;
        self.offers.get_mut(at)
    }

    /// Returns the offer for reading, as [`get_mut`](Self::get_mut) does.
    pub fn get(&self, ticket: u64) -> Option<&(Announcement, T)> {
        let at = usize::try_from(ticket.checked_sub(self.first)?).ok()?;
        self.offers.get(at)
    }

    /// Removes the offers below `below`, and returns them with what was kept for each. A repeated release returns
    /// nothing. A builder cannot release what was never offered.
    pub fn release_tickets(&mut self, below: u64) -> impl Iterator<Item = (Announcement, T)> {
        let count = below.saturating_sub(self.first).min(self.offers.len() as u64);
        self.first += count;
        self.offers.drain(..usize::try_from(count).unwrap_or(0))
    }

    /// Returns all offers, oldest first: those that are offered again after a reconnection.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &(Announcement, T)> {
        self.offers.iter()
    }

    /// Returns all offers for modification, as [`iter`](Self::iter) does.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut (Announcement, T)> {
        self.offers.iter_mut()
    }

    /// Returns the number of offers.
    pub fn len(&self) -> usize {
        self.offers.len()
    }

    /// True if there is no offer.
    pub fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{Disposition, EventId};

    #[test]
    fn releases_are_cumulative_and_harmless_when_repeated() {
        let mut book = Outstanding::default();
        for ticket in 0..5 {
            let offer = Announcement {
                ticket,
                first: EventId(ticket),
                arena_offset: 0,
                count: 1,
                bytes: 64,
                disposition: Disposition::Held,
            };
            book.push_offer(offer, ticket * 10);
        }
        assert_eq!(book.release_tickets(3).map(|(_, kept)| kept).collect::<Vec<_>>(), [0, 10, 20]);
        assert_eq!(book.release_tickets(3).count(), 0);
        assert_eq!(book.release_tickets(1).count(), 0);
        assert!(book.get(2).is_none());
        assert_eq!(book.get(3).unwrap().1, 30);
        assert_eq!(book.release_tickets(u64::MAX).count(), 2);
        assert_eq!(book.next_ticket(), 5);
    }
}
