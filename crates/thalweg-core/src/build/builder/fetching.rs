//! The choice of the next fetch, and of its source.

use super::Builder;
use crate::build::BuilderConfig;
use crate::build::credit::Credit;
use crate::build::source::{self, NO_EVENT, Ticket};
use std::cell::OnceCell;
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{Announcement, Disposition};

/// Number of events by which a slow source may be fetched from ahead of the others.
const MAX_LEAD_EVENTS: u64 = 2;
/// Number of slots by which sources may be ahead of the source that is furthest behind. Where fragments differ in
/// length, sources with the same number of requested bytes get ahead of each other, and have to wait at this limit.
const MAX_SPREAD_SLOTS: u64 = 4;

/// The source whose turn it is, and the number of bytes left in its turn.
#[derive(Debug)]
pub(super) struct Turn {
    source: usize,
    left: u64,
}

impl Turn {
    /// Returns the first turn; each of the builders begins at another source.
    pub(super) fn first_turn(config: &BuilderConfig) -> Self {
        let ((number, builders), sources) = (config.rank, config.sources.len() as u64);
        let begins = u64::from(number) * sources / u64::from(builders.max(1));
        // The source before it counts as having had its turn.
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sources")]
        let source = ((begins + sources).saturating_sub(1) % sources.max(1)) as usize;
        Self { source, left: 0 }
    }
}

/// Sources that may be fetched from.
struct Candidates<'a> {
    builder: &'a Builder,
    /// True if slots of which nothing was requested yet count too.
    begin: bool,
    /// Result of [`Builder::lead_limit`], once it was needed.
    limit: OnceCell<Option<u64>>,
}

impl Candidates<'_> {
    /// Returns whether a source may be fetched from, by up to `lead` events ahead of the others.
    fn contains_source(&self, source: usize, lead: u64) -> bool {
        let Builder { sources, due, credit, .. } = self.builder;
        let (next, is_begun) = (due[source].next, sources[source].begun.is_some());
        if next == NO_EVENT || !self.begin && !is_begun || credit.holds_back_source(source) {
            return false;
        }
        // A slot that was requested in part is continued.
        is_begun || {
            let limit = self.limit.get_or_init(|| self.builder.lead_limit());
            limit.is_none_or(|limit| next <= limit.saturating_add(lead))
        }
    }
}

/// The next request of a builder: a range of an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the source.
    pub source: usize,
    /// The offer, as the source made it.
    pub offer: Announcement,
    /// Requested range of the offer's bytes. Each fetch of an offer continues where the previous one ended.
    pub range: Range<u32>,
}

impl Builder {
    /// Returns the next fetch; `None` if there is nothing to fetch, or while the window is full.
    ///
    /// Deficit round robin over sources, by bytes, always in the same order; a source's fetches continue across event
    /// boundaries. All builders go around in this order, each starting from another source, so that no two are at the
    /// same source: a barrel shifter (`docs/n-to-m.md`), kept in step by nothing but the arrival of bytes. Sources that
    /// are idle, at their limit, or far ahead of the others are skipped. A source that does not keep up is served
    /// before the others, and a few events ahead of them: it cannot make up for lost time, and they can.
    ///
    /// Where the range begins at 0, the caller must have a place of `offer.bytes` bytes ready. The returned range
    /// counts as requested.
    pub fn next_fetch(&mut self, now: Duration) -> Option<Fetch> {
        self.advance_clock(now);
        self.admit_all_offers();
        self.credit.clear_pacing_time();
        let (source, begins) = self.next_source(true)?;
        self.request_from(source, begins, now)
    }

    /// Returns the next fetch among slots that were already requested in part: for use when there is no place for
    /// another slot.
    pub fn next_piece(&mut self, now: Duration) -> Option<Fetch> {
        self.advance_clock(now);
        let (source, begins) = self.next_source(false)?;
        self.request_from(source, begins, now)
    }

    /// Returns the source to be fetched from next, and whether a turn begins with it. `begin`: slots of which nothing
    /// was requested yet count too.
    fn next_source(&self, begin: bool) -> Option<(usize, bool)> {
        let Self { due, credit, turn, .. } = self;
        let candidates = Candidates { builder: self, begin, limit: OnceCell::new() };
        if credit.has_slow_source() {
            // If there is no place for what others are behind with, there is none for what is ahead of them.
            let lead = if self.short { 0 } else { MAX_LEAD_EVENTS };
            let slow = (0..due.len())
                .filter(|source| credit.is_slow_source(*source) && candidates.contains_source(*source, lead));
            if let Some(source) = slow.min_by_key(|source| (due[*source].next, credit.outstanding_bytes_of(*source))) {
                return Some((source, false));
            }
        }
        if turn.left > 0 && !credit.has_its_share(turn.source) && candidates.contains_source(turn.source, 0) {
            return Some((turn.source, false));
        }
        let mut around = (turn.source + 1..due.len())
            .chain(0..due.len().min(turn.source + 1))
            .filter(|source| !credit.is_slow_source(*source));
        let next =
            around.clone().find(|source| !credit.has_its_share(*source) && candidates.contains_source(*source, 0));
        let source = match next {
            Some(source) => source,
            // If no other source has anything, those that have their share are fetched from further, but not up to the
            // limit.
            None if credit.has_spare_window() => around.find(|source| candidates.contains_source(*source, 0))?,
            None => return None,
        };
        Some((source, true))
    }

    /// Returns the last event for which sources may be fetched from, by the source that is furthest behind; `None` if
    /// there is no limit.
    fn lead_limit(&self) -> Option<u64> {
        let Self { sources, due, credit, config, .. } = self;
        // Average distance, in event numbers, from one event of this builder to the next.
        let apart = u64::from((config.rank.1 / config.builders.max(1)).max(1));
        // All other sources wait for events of the sources that keep up.
        let keeping_up =
            (0..due.len()).filter(|source| !credit.is_slow_source(*source) && !credit.holds_back_source(*source));
        let slow = (0..due.len()).filter(|source| credit.is_slow_source(*source));
        let behind = keeping_up.min_by_key(|source| due[*source].next);
        let behind = behind.or_else(|| slow.min_by_key(|source| due[*source].next))?;
        let count = u64::from(sources[behind].front_ticket()?.offer.count);
        Some(due[behind].next.saturating_add(if self.short { 0 } else { MAX_SPREAD_SLOTS * count * apart }))
    }

    /// Requests as much from a source as the window allows.
    fn request_from(&mut self, source: usize, begins: bool, now: Duration) -> Option<Fetch> {
        let Self { sources, credit, turn, .. } = self;
        let entry = &mut sources[source];
        let fetch = Self::request_ticket(credit, entry.front_ticket_mut()?, source, now)?;
        let requested = u64::from(fetch.range.end - fetch.range.start);
        if begins {
            *turn = Turn { source, left: credit.turn_bytes() };
        }
        if turn.source == source {
            turn.left = turn.left.saturating_sub(requested);
        }
        if fetch.range.start == 0 {
            let ticket = entry.ready.pop_front()?;
            source::insert_ticket(&mut entry.fetching, ticket);
        }
        let ends = fetch.range.end == fetch.offer.bytes;
        entry.begun = (!ends).then_some(fetch.offer.ticket);
        if ends || fetch.range.start == 0 {
            self.renew_due(source);
        }
        Some(fetch)
    }

    /// Requests as much more of a ticket as the window allows.
    fn request_ticket(credit: &mut Credit, ticket: &mut Ticket, source: usize, now: Duration) -> Option<Fetch> {
        let offer = ticket.offer;
        let from = ticket.asked;
        if offer.disposition == Disposition::Eager {
            // Its bytes come without a fetch: the window leaves room for them beforehand.
            credit.count_unrequested(source, u64::from(offer.bytes));
            ticket.asked = offer.bytes;
        } else {
            let room = credit.requestable_bytes(source, u64::from(offer.bytes - from), now);
            if room == 0 {
                return None;
            }
            credit.count_request(source, room, now);
            #[expect(clippy::cast_possible_truncation, reason = "no more than what is left of it")]
            let room = room as u32;
            ticket.asked += room;
        }
        Some(Fetch { source, offer, range: from..ticket.asked })
    }

    /// Takes back a fetch that [`next_fetch`](Self::next_fetch) began and for which there was no place. Until data
    /// arrive, only the source that is furthest behind is fetched from. Returns true if that has not been tried yet.
    pub fn cancel_fetch(&mut self, source: usize, number: u64) -> bool {
        if let Some(ticket) = self.finish_fetch(source, number) {
            self.credit.cancel_request(source, ticket.counted_bytes());
            if ticket.count > 0 {
                source::insert_ticket(&mut self.sources[source].ready, Ticket { asked: 0, ..ticket });
            }
            self.renew_due(source);
        }
        self.turn = Turn { source, left: self.credit.turn_bytes() };
        !std::mem::replace(&mut self.short, true)
    }

    /// Counts requested bytes of a source that have arrived. To be called before the ticket that they complete is
    /// reported with [`arrived`](Self::arrived). Bytes of eager offers do not count, nor those of sources that are
    /// near.
    pub fn count_received(&mut self, source: usize, bytes: u64, now: Duration) {
        self.advance_clock(now);
        self.credit.count_received(source, bytes, now);
    }

    /// Takes a source's report of the number of bytes sent since the last report, `lost` of them being repetitions of
    /// lost ones. Numbers are limited to what the source was to send.
    pub fn report_losses(&mut self, source: usize, sent: u64, lost: u64) {
        self.credit.report_losses(source, sent, lost);
    }

    /// Ends a fetch, and returns its ticket; `None` if there is no such fetch.
    pub(super) fn finish_fetch(&mut self, source: usize, number: u64) -> Option<Ticket> {
        let entry = &mut self.sources[source];
        let at = source::ticket_position(&entry.fetching, number)?;
        let ticket = entry.fetching.remove(at)?;
        entry.begun = entry.begun.filter(|begun| *begun != number);
        Some(ticket)
    }
}
