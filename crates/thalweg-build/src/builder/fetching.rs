//! What to ask for next, and of whom.

use super::Builder;
use crate::credit::Credit;
use crate::source::{self, NEVER, Ticket};
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{Announcement, Disposition};

/// How many events a slow source is asked ahead of the others.
const LEAD: u64 = 2;
/// How many slots ahead of the source that is furthest behind others may be.
const SPREAD: u64 = 2;
/// How many slots are asked for in turn.
const TURNS: usize = 4;

/// What to ask for next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the source.
    pub source: usize,
    /// The offer, as the source made it.
    pub offer: Announcement,
    /// Which of its bytes. Each fetch of an offer goes on where the one before ended.
    pub range: Range<u32>,
}

impl Builder {
    /// What to ask for next: slots of the oldest event first, starting at a source that rotates with the event. Where
    /// they are asked for in pieces, a few slots take turns, so that a slow source hides behind others. A source that
    /// does not keep up is asked a few events ahead of the others: time that it loses it cannot make up for, and they
    /// can. Nothing while the window is full. Where the range begins at 0 the caller must have a place of `offer.bytes`
    /// bytes ready. What is returned counts as asked for.
    pub fn next_fetch(&mut self, now: Duration) -> Option<Fetch> {
        self.advance(now);
        self.admit_all_offers();
        self.credit.look_again();
        self.next_piece_of(true, now).or_else(|| self.begin_fetch(now)).or_else(|| self.next_piece_of(false, now))
    }

    /// What to ask for next of slots of which a part was asked for already: where there is no place for another one.
    pub fn next_piece(&mut self, now: Duration) -> Option<Fetch> {
        self.advance(now);
        self.next_piece_of(true, now).or_else(|| self.next_piece_of(false, now))
    }

    fn next_piece_of(&mut self, slow: bool, now: Duration) -> Option<Fetch> {
        for _ in 0..self.begun.len() {
            let (source, number) = self.begun.pop_front()?;
            if self.credit.is_slow(source) != slow {
                self.begun.push_back((source, number));
                continue;
            }
            let taken = &mut self.sources[source].taken;
            let Some(at) = source::position(taken, number) else { continue };
            let fetch = Self::ask(&mut self.credit, &mut taken[at], source, now);
            if taken[at].asked < taken[at].offer.bytes {
                self.begun.push_back((source, number));
            }
            if fetch.is_some() {
                return fetch;
            }
        }
        None
    }

    /// Begins with a slot that nothing was asked of yet. A source has one turn at a time; those that are
    /// slow, or have as much as they can use, do not take it from others.
    fn begin_fetch(&mut self, now: Duration) -> Option<Fetch> {
        let Self { sources, due, credit, begun, .. } = self;
        let turns = begun.iter().filter(|(source, _)| !credit.is_slow(*source) && !credit.holds_back(*source)).count();
        let rank = |source: usize| due[source].ready.saturating_sub(if credit.is_slow(source) { LEAD } else { 0 });
        let has_turn = |source: usize| {
            let free = credit.is_slow(source) || turns < TURNS;
            free && !credit.holds_back(source) && begun.iter().all(|(begun, _)| *begun != source)
        };
        // Who is behind goes first, and whoever is far ahead of it waits: otherwise all others would run ahead to the
        // last event that may be open, and then wait for it together.
        let keeps_up = |source: &usize| !credit.is_slow(*source) && !credit.holds_back(*source);
        let behind = (0..due.len()).filter(keeps_up).min_by_key(|source| due[*source].ready);
        let furthest = behind.and_then(|source| {
            let events = u64::from(sources[source].ready.front()?.offer.count);
            Some(due[source].ready.saturating_add(SPREAD * events))
        });
        let near = |source: usize| furthest.is_none_or(|furthest| due[source].ready <= furthest);
        let may = |source: usize| due[source].ready != NEVER && near(source) && has_turn(source);
        let first = (0..due.len()).filter(|source| may(*source)).map(rank).min()?;
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the number of sources")]
        let turn = (first % due.len() as u64) as usize;
        let source = (turn..due.len()).chain(0..turn).find(|source| rank(*source) == first && may(*source))?;

        let entry = &mut sources[source];
        let fetch = Self::ask(credit, entry.ready.front_mut()?, source, now)?;
        let ticket = entry.ready.pop_front()?;
        source::insert(&mut entry.taken, ticket);
        if ticket.asked < ticket.offer.bytes {
            begun.push_back((source, ticket.offer.ticket));
        }
        self.renew(source);
        Some(fetch)
    }

    /// Asks for as much more of a ticket as there is room for.
    fn ask(credit: &mut Credit, ticket: &mut Ticket, source: usize, now: Duration) -> Option<Fetch> {
        let offer = ticket.offer;
        let from = ticket.asked;
        if offer.disposition == Disposition::Eager {
            // Its bytes come unasked: the window leaves room for them beforehand.
            credit.unasked(source, u64::from(offer.bytes));
            ticket.asked = offer.bytes;
        } else {
            let room = credit.room(source, u64::from(offer.bytes - from), now);
            if room == 0 {
                return None;
            }
            credit.asked(source, room, now);
            #[expect(clippy::cast_possible_truncation, reason = "no more than what is left of it")]
            let room = room as u32;
            ticket.asked += room;
        }
        Some(Fetch { source, offer, range: from..ticket.asked })
    }

    /// Gives back a fetch that [`next_fetch`](Self::next_fetch) began and that could not be made after all.
    pub fn unfetch(&mut self, source: usize, number: u64) {
        if let Some(ticket) = self.fetched(source, number) {
            self.credit.called_off(source, ticket.counted());
            if ticket.count > 0 {
                source::insert(&mut self.sources[source].ready, Ticket { asked: 0, ..ticket });
            }
            self.renew(source);
        }
    }

    /// So many bytes of what was asked of a source have come. To be told before what they complete has
    /// [arrived](Self::arrived). Those of eager offers do not count, nor those of sources that are near.
    pub fn received(&mut self, source: usize, bytes: u64, now: Duration) {
        self.advance(now);
        self.credit.received(source, bytes, now);
    }

    /// A source says that it has sent so many bytes more, `lost` of them again because they had been lost. No more of
    /// it is believed than it was to send.
    pub fn losses(&mut self, source: usize, sent: u64, lost: u64) {
        self.credit.losses(source, sent, lost);
    }

    /// Ends a fetch.
    pub(super) fn fetched(&mut self, source: usize, number: u64) -> Option<Ticket> {
        let entry = &mut self.sources[source];
        let at = source::position(&entry.taken, number).filter(|at| !entry.taken[*at].arrived)?;
        let ticket = entry.taken.remove(at)?;
        if ticket.asked < ticket.offer.bytes {
            self.begun.retain(|begun| *begun != (source, number));
        }
        Some(ticket)
    }
}
