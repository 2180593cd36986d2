//! What to ask for next, and of whom.

use super::Builder;
use crate::BuilderConfig;
use crate::credit::Credit;
use crate::source::{self, NEVER, Ticket};
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{Announcement, Disposition};

/// How many events a slow source is asked ahead of the others.
const LEAD: u64 = 2;
/// How many slots ahead of the source that is furthest behind others may be. Where fragments are of different lengths,
/// sources that are asked for as many bytes as each other get ahead of each other, and have to wait at this bound.
const SPREAD: u64 = 4;

/// Whose turn it is to be asked, and for how many bytes more.
#[derive(Debug)]
pub(super) struct Turn {
    source: usize,
    left: u64,
}

impl Turn {
    /// Each of the builders begins at another source.
    pub(super) fn first(config: &BuilderConfig) -> Self {
        let ((number, builders), sources) = (config.rank, config.sources.len() as u64);
        let begins = u64::from(number) * sources / u64::from(builders.max(1));
        // The one in front of it has had its turn.
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sources")]
        let source = ((begins + sources).saturating_sub(1) % sources.max(1)) as usize;
        Self { source, left: 0 }
    }
}

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
    /// What to ask for next, and of whom. Sources have turns, always in the same order, each for as many bytes: what of
    /// each is asked for goes on where it stopped, whatever events that is of. All builders go around in this order,
    /// each from another source on, so that none is where another is: a barrel shifter (`docs/n-to-m.md`), which
    /// nothing but the arrival of bytes keeps in step. Who has nothing to be asked for, or enough to do, or is far
    /// ahead of the others is passed over. A source that does not keep up is asked before the others, and a few events
    /// ahead of them: time that it loses it cannot make up for, and they can. Nothing while the window is full. Where
    /// the range begins at 0 the caller must have a place of `offer.bytes` bytes ready. What is returned counts as asked
    /// for.
    pub fn next_fetch(&mut self, now: Duration) -> Option<Fetch> {
        self.advance(now);
        self.admit_all_offers();
        self.credit.look_again();
        let (source, begins) = self.whose_turn(true)?;
        self.ask_of(source, begins, now)
    }

    /// What to ask for next of slots of which a part was asked for already: where there is no place for another one.
    pub fn next_piece(&mut self, now: Duration) -> Option<Fetch> {
        self.advance(now);
        let (source, begins) = self.whose_turn(false)?;
        self.ask_of(source, begins, now)
    }

    /// The source to be asked next, and whether a turn begins with that; `begin`: also for a slot of which nothing was
    /// asked for yet.
    fn whose_turn(&mut self, begin: bool) -> Option<(usize, bool)> {
        let Self { sources, due, credit, turn, config, .. } = self;
        // Numbers that are passed by from one event of ours to the next, on the average.
        let apart = u64::from((config.rank.1 / config.builders.max(1)).max(1));
        // Events of these sources are waited for by all others.
        let keeps_up = |source: &usize| !credit.is_slow(*source) && !credit.holds_back(*source);
        let mut furthest = None;
        let mut furthest = || {
            *furthest.get_or_insert_with(|| {
                let behind = (0..due.len()).filter(keeps_up).min_by_key(|source| due[*source].next)?;
                let count = u64::from(sources[behind].front()?.offer.count);
                Some(due[behind].next.saturating_add(if self.short { 0 } else { SPREAD * count * apart }))
            })
        };
        let mut may = |source: usize, lead: u64| {
            let next = due[source].next;
            let can = next != NEVER && (begin || sources[source].begun.is_some()) && !credit.holds_back(source);
            // What was begun is gone on with.
            can && (sources[source].begun.is_some()
                || furthest().is_none_or(|furthest| next <= furthest.saturating_add(lead)))
        };
        if credit.has_slow() {
            // Without a place for what others are behind with, none is for what is ahead of them.
            let lead = if self.short { 0 } else { LEAD };
            let slow = (0..due.len()).filter(|source| credit.is_slow(*source) && may(*source, lead));
            if let Some(source) = slow.min_by_key(|source| due[*source].next) {
                return Some((source, false));
            }
        }
        let mut may_now = |source: usize| !credit.has_its_share(source) && may(source, 0);
        if turn.left > 0 && may_now(turn.source) {
            return Some((turn.source, false));
        }
        let around = || (turn.source + 1..due.len()).chain(0..due.len().min(turn.source + 1));
        let keeps_up = |source: &usize| !credit.is_slow(*source);
        let next = around().filter(keeps_up).find(|source| may_now(*source));
        // Where nobody else has anything, those that have their share are asked for more, but not for all there is.
        let mut more = || around().filter(keeps_up).find(|source| may(*source, 0));
        let source = next.or_else(|| if credit.has_spare() { more() } else { None })?;
        Some((source, true))
    }

    /// Asks a source for as much as there is room for.
    fn ask_of(&mut self, source: usize, begins: bool, now: Duration) -> Option<Fetch> {
        let Self { sources, credit, turn, .. } = self;
        let entry = &mut sources[source];
        let fetch = Self::ask(credit, entry.front_mut()?, source, now)?;
        let asked = u64::from(fetch.range.end - fetch.range.start);
        if begins {
            *turn = Turn { source, left: credit.turn() };
        }
        if turn.source == source {
            turn.left = turn.left.saturating_sub(asked);
        }
        if fetch.range.start == 0 {
            let ticket = entry.ready.pop_front()?;
            source::insert(&mut entry.taken, ticket);
        }
        let ends = fetch.range.end == fetch.offer.bytes;
        entry.begun = (!ends).then_some(fetch.offer.ticket);
        if ends || fetch.range.start == 0 {
            self.renew(source);
        }
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

    /// Gives back a fetch that [`next_fetch`](Self::next_fetch) began and for which there was no place. Until something
    /// arrives only what is furthest behind is asked for. True where that has not been tried yet.
    pub fn unfetch(&mut self, source: usize, number: u64) -> bool {
        if let Some(ticket) = self.fetched(source, number) {
            self.credit.called_off(source, ticket.counted());
            if ticket.count > 0 {
                source::insert(&mut self.sources[source].ready, Ticket { asked: 0, ..ticket });
            }
            self.renew(source);
        }
        self.turn = Turn { source, left: self.credit.turn() };
        !std::mem::replace(&mut self.short, true)
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
        entry.begun = entry.begun.filter(|begun| *begun != number);
        Some(ticket)
    }
}
