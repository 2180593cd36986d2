//! What the builder knows of one source: its tickets in order, and its line in the books.

use crate::LedgerEntry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_wire::{Accounts, Announcement, IntervalMap, SequenceTracker};

/// Where a source stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Connected, or not yet connected in a run that has not begun.
    Here,
    /// Its connection is down since then; it may come back.
    Gone(Duration),
    /// Given up for this run.
    Dead,
}

/// A ticket that was offered and is not released.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) offer: Announcement,
    /// Index (event number / builders) of its first event.
    pub(crate) first: u64,
    pub(crate) state: TicketState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TicketState {
    /// Not looked at yet: its events lie beyond those open.
    Parked,
    /// Its events are open; it may be fetched.
    Ready,
    /// Asked for.
    Fetching,
    /// In place; held back until its events are closed.
    Arrived,
    /// To be released.
    Done,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) presence: Presence,
    /// Tickets from `released` on, in order. Contiguous: `tickets[i]` has number `released + i`.
    pub(crate) tickets: VecDeque<Ticket>,
    /// Tickets below this one are done with.
    pub(crate) released: u64,
    /// Offers that came ahead of one that is still missing (lossy links).
    pub(crate) early: BTreeMap<u64, Announcement>,
    /// One past the index of the last event mentioned by an offer in order.
    pub(crate) mentioned: u64,
    /// One past the index of the last event whose offer has been looked at: below it, silence means *skipped*.
    pub(crate) looked: u64,
    /// Events below this index have been settled for a source that is dead or has ended.
    pub(crate) absent: u64,
    /// Tickets handed to `releases` already.
    pub(crate) told: u64,
    pub(crate) accounts: Option<Accounts>,
    pub(crate) sequence: SequenceTracker,
    pub(crate) books: LedgerEntry,
    pub(crate) built: u64,
    pub(crate) offered: u64,
    /// Pieces of fragments that came in several, by event index: what has arrived, of how many bytes.
    pub(crate) pieces: BTreeMap<u64, (IntervalMap, u32)>,
    /// First ticket that may still have to be looked at (parked or ready).
    pub(crate) cursor: u64,
}

impl Source {
    pub(crate) fn new(id: String, name: String, first: u64) -> Self {
        Self {
            presence: Presence::Here,
            tickets: VecDeque::new(),
            released: 0,
            early: BTreeMap::new(),
            mentioned: first,
            looked: first,
            absent: first,
            told: 0,
            accounts: None,
            sequence: SequenceTracker::default(),
            books: LedgerEntry { source: id, name, ..LedgerEntry::default() },
            built: 0,
            offered: 0,
            pieces: BTreeMap::new(),
            cursor: 0,
        }
    }

    /// One past the last ticket that came in order.
    pub(crate) fn next_ticket(&self) -> u64 {
        self.released + self.tickets.len() as u64
    }

    /// The offer that comes next in order, if it is here.
    pub(crate) fn next_in_order(&mut self) -> Option<Announcement> {
        let next = self.next_ticket();
        self.early.remove(&next)
    }

    pub(crate) fn ticket(&mut self, number: u64) -> Option<&mut Ticket> {
        let at = usize::try_from(number.checked_sub(self.released)?).ok()?;
        self.tickets.get_mut(at)
    }

    /// Moves past the tickets at the front that are done.
    pub(crate) fn advance(&mut self) {
        while self.tickets.front().is_some_and(|ticket| ticket.state == TicketState::Done) {
            self.tickets.pop_front();
            self.released += 1;
        }
        self.cursor = self.cursor.max(self.released);
    }

    /// All tickets below the returned one are done with; nothing where that is known already.
    pub(crate) fn take_release(&mut self) -> Option<u64> {
        let news = self.told != self.released;
        self.told = self.released;
        news.then_some(self.released)
    }

    /// Whether its books are here and nothing of it is on the way.
    pub(crate) fn is_settled(&self) -> bool {
        self.presence == Presence::Dead
            || self.accounts.is_some_and(|accounts| self.tickets.is_empty() && self.next_ticket() >= accounts.tickets)
    }
}
