//! The builder of one share of the events.

mod arrival;
mod ending;
mod fetching;
mod progress;
mod trigger;

pub use arrival::Arrival;
pub use fetching::Fetch;
use fetching::Turn;
pub use progress::SourceProgress;
pub use trigger::TriggerCounts;

use crate::build::config::BuilderConfig;
use crate::build::credit::Credit;
use crate::build::events::{Answer, OpenEvents, Reason};
use crate::build::source::{self, Due, KnownMissing, NO_EVENT, Presence, Source, Ticket};
use crate::build::{Closed, CreditState, Ledger, LinkCapacity, Violation};
use hdrhistogram::Histogram;
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{
    Announcement, Disposition, EventId, FinalCounters, HEADER_LEN, MAX_RECORDS, NotTaken, SourceId, Status,
};

/// Builds events; see the crate's documentation.
///
/// Times are those of any clock that does not go back, counted from anywhere. Sources are named by their index in
/// [`BuilderConfig::sources`].
#[derive(Debug)]
pub struct Builder {
    config: BuilderConfig,
    events: OpenEvents,
    sources: Vec<Source>,
    /// Cached wake-up conditions of each source; recomputed whenever the source changes.
    due: Vec<Due>,
    /// No offer can be admitted before the oldest open event reaches `next_base` or the youngest exceeds `next_end`.
    next_base: u64,
    next_end: u64,
    credit: Credit,
    turn: Turn,
    /// True after a fetch was given back because there was no place for its data; cleared when data arrive.
    short: bool,
    clock: Clock,
    /// Index of the first event that is not past its deadline.
    expired: u64,
    /// Number of events that the event filter has rejected.
    filtered: u64,
    /// Index of the first event whose data are still needed, within this builder's share; set by [`hold_back_from`](Self::hold_back_from).
    held: u64,
    /// Time since when sources that are far ahead wait, with no event open, for silent sources.
    ahead: Option<Duration>,
    /// First event beyond the end of the run, as far as the end is known.
    end: EventId,
    /// True once the run was abandoned: no further event is built.
    abandoned: bool,
}

impl Builder {
    /// Returns a builder at the beginning of a run.
    pub fn new(config: BuilderConfig) -> Self {
        let first = share_index(config.first, &config).min(NO_EVENT - 1);
        let sources: Vec<Source> =
            config.sources.iter().map(|(id, name)| Source::new(id.to_string(), name.clone(), first)).collect();
        let events = OpenEvents::new(first, config.open_events, sources.len(), &config.level2);
        let credit = Credit::new(&config, sources.len());
        Self {
            due: sources.iter().map(|entry| entry.wake_conditions(u64::from(events.max_open_events()))).collect(),
            events,
            sources,
            next_base: NO_EVENT,
            next_end: NO_EVENT,
            credit,
            turn: Turn::first_turn(&config),
            short: false,
            clock: Clock::default(),
            expired: first,
            filtered: 0,
            held: u64::MAX,
            ahead: None,
            end: EventId(u64::MAX),
            abandoned: false,
            config,
        }
    }

    /// Returns the configuration the builder was created with.
    pub fn config(&self) -> &BuilderConfig {
        &self.config
    }

    /// Returns the index of the source with this id; `None` if the source is not expected.
    pub fn source_index(&self, id: SourceId) -> Option<usize> {
        self.config.sources.iter().position(|(source, _)| *source == id)
    }

    /// Notes that a source has connected, for the first time or again, with this number of slots. A source is `near` if
    /// its bytes cross no network; it takes no part of the window. Returns the ticket below which the source may
    /// release every slot.
    pub fn source_connected(&mut self, source: usize, slots: u32, near: bool) -> u64 {
        self.credit.source_connected(source, near);
        let entry = &mut self.sources[source];
        if !self.abandoned {
            entry.presence = Presence::Here;
        }
        // Twice the slots: as many again may be under way that the source has dropped, or believes released. No source
        // has a million slots; a larger number must not make this builder keep as many offers.
        entry.most = 2 * u64::from(slots.min(MAX_SLOTS)) + 2;
        let released = entry.released_until();
        entry.last_release = released;
        self.renew_due(source);
        released
    }

    /// Lets a source go on from an earlier run, with this next ticket; it has offered events below `offered_until`. What
    /// it offers of events before this run comes too late.
    pub fn continue_source(&mut self, source: usize, ticket: u64, offered_until: EventId) {
        let first = share_index(self.config.first, &self.config);
        let entry = &mut self.sources[source];
        (entry.next, entry.last_release) = (ticket, ticket);
        let index = share_index(offered_until, &self.config).min(first);
        (entry.offered_until, entry.admitted, entry.passed) = (index, index, (index, 0));
        self.renew_due(source);
    }

    /// Returns the number of tickets that a source has offered: the number of its next one.
    pub fn next_ticket(&self, source: usize) -> u64 {
        self.sources[source].next
    }

    /// Notes that the connection to a source is down. Its unanswered fetches are repeated when it reconnects; if it
    /// does not reconnect within the deadline, it is given up.
    pub fn source_disconnected(&mut self, source: usize, now: Duration) {
        self.advance_clock(now);
        let entry = &mut self.sources[source];
        if entry.presence != Presence::Here {
            return;
        }
        entry.presence = Presence::Gone(self.clock.active_time());
        entry.begun = None;
        for ticket in std::mem::take(&mut entry.fetching).into_iter().filter(|ticket| ticket.count > 0) {
            source::insert_ticket(&mut entry.ready, Ticket { asked: 0, ..ticket });
        }
        self.credit.forget_requests(source);
        self.renew_due(source);
    }

    /// Gives a source up for the rest of the run, unless it connects again: no event waits for it any longer, and its
    /// undelivered offers are lost.
    pub fn give_up_source(&mut self, source: usize, now: Duration) {
        self.lose_offers(source, now);
        self.admit_offers(source);
        self.admit_all_offers();
    }

    /// Marks what a source has offered and not delivered as lost.
    fn lose_offers(&mut self, source: usize, now: Duration) {
        self.source_disconnected(source, now);
        let Self { events, sources, .. } = self;
        let entry = &mut sources[source];
        entry.presence = Presence::GivenUp;
        entry.held.clear();
        let ready = std::mem::take(&mut entry.ready);
        let undecided = std::mem::take(&mut entry.undecided);
        let parked = std::mem::take(&mut entry.parked);
        for ticket in ready.into_iter().chain(undecided).chain(parked) {
            entry.mark_missing(events, ticket.event_indices(), KnownMissing::Lost, source);
        }
        for (index, pieces) in std::mem::take(&mut entry.pieces) {
            if !pieces.is_decided() {
                entry.mark_missing(events, index..index + 1, KnownMissing::Lost, source);
            }
        }
    }

    /// Returns whether a source has been given up.
    pub fn is_given_up(&self, source: usize) -> bool {
        self.sources[source].presence == Presence::GivenUp
    }

    /// Takes an offer that arrived. Returns true if a fetch of this ticket is under way and must be cancelled because
    /// the source has dropped the ticket.
    ///
    /// # Errors
    /// An offer that breaks the rules of the protocol. It is not taken, and its source cannot be relied on any longer.
    pub fn handle_offer(&mut self, source: usize, offer: Announcement, now: Duration) -> Result<bool, Violation> {
        self.advance_clock(now);
        let entry = &mut self.sources[source];
        if entry.presence == Presence::GivenUp {
            return Ok(false);
        }
        if offer.ticket < entry.released_until() {
            // Its release was lost with a connection, or on a lossy link: repeat it.
            entry.last_release = u64::MAX;
            return Ok(false);
        }
        if offer.ticket < entry.next {
            return self.handle_repeated_offer(source, offer);
        }
        if let Some(FinalCounters { tickets: counted, .. }) = entry.final_counters {
            return Err(Violation::FinalCounters { counted, offered: offer.ticket.saturating_add(1) });
        }
        if offer.ticket > entry.next {
            return Err(Violation::Gap { ticket: offer.ticket, next: entry.next });
        }
        if !offer.disposition.is_dropped() && entry.open_offers() >= entry.most {
            return Err(Violation::TooMany(entry.most));
        }
        self.accept_offer(source, offer)?;
        self.admit_offers(source);
        self.admit_all_offers();
        Ok(false)
    }

    /// Notes that a source has no fragments of events below `below` except those offered with tickets below `tickets`.
    /// The builder then need not wait for the source's next offer, which may be far away where events are assigned.
    pub fn source_passed(&mut self, source: usize, below: EventId, tickets: u64, now: Duration) {
        self.advance_clock(now);
        let until = share_index(below, &self.config).min(NO_EVENT - 1);
        let entry = &mut self.sources[source];
        if entry.presence == Presence::GivenUp || until <= entry.passed.0 {
            return;
        }
        entry.passed = (until, tickets);
        entry.spoke = self.clock.active_time();
        entry.apply_passed();
        self.admit_offers(source);
        self.admit_all_offers();
    }

    fn accept_offer(&mut self, source: usize, offer: Announcement) -> Result<(), Violation> {
        let (first, end) = self.event_indices_of(&offer)?;
        let Self { events, sources, .. } = self;
        let entry = &mut sources[source];
        // A fragment longer than one slot comes in several offers of the same event.
        let passed = entry.next >= entry.passed.1 && first < entry.passed.0;
        let continues = first + 1 == entry.offered_until && entry.offered > 0;
        if passed || first < entry.offered_until && !continues {
            return Err(Violation::Order(offer.first.0));
        }
        if continues && entry.has_built(first) {
            return Err(Violation::Twice(offer.first.0));
        }
        if continues && (offer.count > 1 || entry.last_count > 1) {
            return Err(Violation::Piece(offer.first.0));
        }
        entry.last_count = offer.count;
        let stop = events.stop_index();
        if continues && first < stop {
            entry.begin_pieces(first);
        }
        let mentioned = first.max(entry.offered_until);
        entry.offered += end - mentioned;
        entry.ledger.beyond_end += end - mentioned.max(stop).min(end);
        entry.offered_until = end;
        entry.spoke = self.clock.active_time();
        entry.next += 1;
        entry.apply_passed();
        #[expect(clippy::cast_possible_truncation, reason = "no more than were offered")]
        let count = (end.min(stop) - first.min(stop)) as u32;
        let ticket = Ticket { offer, first, count, asked: 0, undecided: 0 };
        if offer.disposition.is_dropped() {
            Self::mark_dropped(events, entry, &ticket, source);
        } else if count > 0 {
            entry.parked.push_back(ticket);
        }
        Ok(())
    }

    /// Returns the index of the first event of an offer, and the index after its last event.
    fn event_indices_of(&self, offer: &Announcement) -> Result<(u64, u64), Violation> {
        let BuilderConfig { builder, builders, .. } = self.config;
        let Announcement { first: EventId(event), count, bytes, .. } = *offer;
        let (most, stride) = (self.events.max_open_events().min(MAX_RECORDS), u64::from(builders));
        if event % stride != u64::from(builder) {
            return Err(Violation::Share { event, builder, builders });
        }
        let dropped = offer.disposition.is_dropped();
        if count == 0 || !dropped && (count > most || u64::from(count) * HEADER_LEN as u64 > u64::from(bytes)) {
            return Err(Violation::Size { count, bytes, most });
        }
        // The event after the last one must have a number too, and that number is not `NO_EVENT`.
        let end = stride.checked_mul(u64::from(count)).and_then(|span| span.checked_add(event));
        if end.is_none_or(|end| end == NO_EVENT) {
            return Err(Violation::Range { first: event, count });
        }
        let first = event / stride;
        Ok((first, first + u64::from(count)))
    }

    /// Takes a repeated offer of an open ticket: after a reconnection, or because the source had to drop the ticket.
    fn handle_repeated_offer(&mut self, source: usize, offer: Announcement) -> Result<bool, Violation> {
        let Self { events, sources, .. } = self;
        let entry = &mut sources[source];
        let Some(ticket) = entry.open_ticket_mut(offer.ticket) else { return Ok(false) };
        let dropped = offer.disposition.is_dropped();
        let same_events = (ticket.offer.first, ticket.offer.count) == (offer.first, offer.count);
        if !same_events || ticket.offer.bytes != offer.bytes && !dropped {
            return Err(Violation::Changed(offer.ticket));
        }
        if !dropped {
            // The offset in the arena may have changed if the source had to move the slot.
            ticket.offer.arena_offset = offer.arena_offset;
            return Ok(false);
        }
        let Some((mut ticket, fetching)) = entry.withdraw_ticket(offer.ticket) else { return Ok(false) };
        if fetching {
            self.credit.cancel_request(source, ticket.counted_bytes());
        }
        ticket.offer = offer;
        Self::mark_dropped(events, entry, &ticket, source);
        entry.settle_pieces(events, ticket.event_indices(), self.expired, source);
        self.admit_offers(source);
        self.admit_all_offers();
        Ok(fetching)
    }

    fn mark_dropped(events: &mut OpenEvents, entry: &mut Source, ticket: &Ticket, source: usize) {
        let cause = match ticket.offer.disposition {
            Disposition::DroppedNewest => KnownMissing::DroppedNewest,
            Disposition::LostInDevice => KnownMissing::LostInDevice,
            _ => KnownMissing::DroppedOldest,
        };
        entry.mark_missing(events, ticket.event_indices(), cause, source);
    }

    fn advance_clock(&mut self, now: Duration) {
        self.clock.advance_to(now);
        self.events.advance_clock(self.clock.now);
    }

    /// Admits the offers of a source whose events may now be open.
    fn admit_offers(&mut self, source: usize) {
        let now = self.clock.active_time();
        loop {
            self.skip_silent_events();
            let Self { events, sources, .. } = self;
            let entry = &mut sources[source];
            let known = entry.known_until();
            let fits = entry.parked.front().filter(|ticket| ticket.end_index() <= events.open_limit_index()).copied();
            if let Some(ticket) = fits {
                events.open_events_until(ticket.end_index(), now);
            } else if let Some(lost) =
                entry.first_lost_range().filter(|lost| lost.start < known.min(events.open_limit_index()))
            {
                events.open_events_until(lost.end.min(known).min(events.open_limit_index()), now);
            }
            entry.answer_silent_events(events, known.min(events.end_index()), source);
            let Some(mut ticket) = fits else { break };
            entry.parked.pop_front();
            entry.admitted = entry.admitted.max(ticket.end_index());
            let mut wanted = false;
            for index in ticket.event_indices() {
                if entry.is_decided(index) {
                    events.mark_missing(index, source, Reason::Dropped(Status::DROPPED));
                }
                let pending = events.is_fetch_pending(index, source);
                ticket.undecided += u32::from(pending);
                wanted = !pending && events.answer_of(index, source) == Answer::None;
                if wanted {
                    break;
                }
            }
            if wanted {
                source::insert_ticket(&mut entry.ready, ticket);
            } else if ticket.undecided > 0 {
                ticket.event_indices().for_each(|index| entry.reject_ahead(events, index, source));
                source::insert_ticket(&mut entry.undecided, ticket);
            } else {
                entry.release_unfetched(events, &ticket, source);
                entry.settle_pieces(events, ticket.event_indices(), self.expired, source);
            }
        }
        let Self { events, sources, expired, .. } = self;
        sources[source].settle_last_piece(events, *expired, source);
        self.renew_due(source);
    }

    /// If no event is open, skips the events of which no source will deliver anything, however many they are.
    fn skip_silent_events(&mut self) {
        if self.events.is_empty() {
            let next = self.sources.iter().map(Source::next_mention).min().unwrap_or(NO_EVENT);
            if next != NO_EVENT {
                self.events.skip_to_index(next.max(self.events.first_open_index()));
            }
        }
    }

    /// Admits the offers of all sources for which a change of the open events makes a difference.
    fn admit_all_offers(&mut self) {
        while !self.events.is_backed_up() {
            if self.events.first_open_index() >= self.next_base || self.events.end_index() > self.next_end {
                self.next_base = NO_EVENT;
                self.next_end = NO_EVENT;
                for source in 0..self.sources.len() {
                    let due = self.due[source];
                    if self.events.first_open_index() >= due.base || self.events.end_index() > due.end {
                        self.admit_offers(source);
                    } else {
                        self.next_base = self.next_base.min(due.base);
                        self.next_end = self.next_end.min(due.end);
                    }
                }
            } else if !self.skip_unmentioned() {
                break;
            }
        }
    }

    /// If no event is open, and the next event that any source mentions lies beyond those that may be opened, skips the
    /// events between. Returns true if events were skipped.
    fn skip_unmentioned(&mut self) -> bool {
        let is_ahead = self.events.is_empty() && self.next_base != NO_EVENT && self.first_mention().is_some();
        if !is_ahead {
            self.ahead = None;
            return false;
        }
        let next = self.sources.iter().map(Source::next_mention).min().unwrap_or(NO_EVENT);
        if next <= self.events.first_open_index() {
            self.ahead.get_or_insert(self.clock.active_time());
            return false;
        }
        self.ahead = None;
        self.events.skip_to_index(next);
        true
    }

    /// Returns the index of the first event that a source has mentioned and that has not been admitted.
    fn first_mention(&self) -> Option<u64> {
        self.sources.iter().filter_map(Source::first_mention).min()
    }

    /// Recomputes the conditions that a source's offers wait for.
    fn renew_due(&mut self, source: usize) {
        let due = self.sources[source].wake_conditions(u64::from(self.events.max_open_events()));
        self.next_base = self.next_base.min(due.base);
        self.next_end = self.next_end.min(due.end);
        self.due[source] = due;
    }

    /// Takes the final counters with which a source ends the run. Final counters of a source that was given up are
    /// ignored as too late: its offers count instead.
    ///
    /// # Errors
    /// Final counters that report another number of tickets than the source offered. The source has not ended then, and
    /// cannot be relied on any longer.
    pub fn source_ended(&mut self, source: usize, final_counters: FinalCounters) -> Result<(), Violation> {
        let entry = &mut self.sources[source];
        if entry.presence == Presence::GivenUp {
            return Ok(());
        }
        if final_counters.tickets != entry.next {
            return Err(Violation::FinalCounters { counted: final_counters.tickets, offered: entry.next });
        }
        entry.final_counters = Some(final_counters);
        entry.ledger.final_counters = true;
        entry.settle_pieces(&mut self.events, 0..NO_EVENT, self.expired, source);
        self.admit_offers(source);
        self.admit_all_offers();
        Ok(())
    }

    /// Takes a source's counters of what it has not taken from its device so far.
    pub fn count_not_taken(&mut self, source: usize, counts: NotTaken) {
        let ledger = &mut self.sources[source].ledger;
        ledger.not_taken = ledger.not_taken.max(counts.fragments);
        ledger.dead_time_ms = ledger.dead_time_ms.max(counts.dead_nanos / 1_000_000);
        ledger.of_no_event = ledger.of_no_event.max(counts.of_no_event);
        ledger.device_away |= counts.device_away;
    }

    /// Returns whether a source has sent its final counters.
    pub fn has_ended(&self, source: usize) -> bool {
        self.sources[source].final_counters.is_some()
    }

    /// Returns whether a source has nothing more to announce or to deliver, so that the connection can be closed.
    pub fn is_settled(&self, source: usize) -> bool {
        self.sources[source].is_settled()
    }

    /// Advances the time. Events past their deadline no longer wait for sources that have not mentioned them and have
    /// been silent for a deadline. A source that is merely slower than others still counts: its offers come in order,
    /// so as long as they continue it has not missed the event. Sources that have been disconnected for a deadline are
    /// given up. Returns the sources given up by this call.
    ///
    /// Messages that had arrived at `now` have been handled before. A caller whose thread was not scheduled for a
    /// while passes the time of its last look at the connections: what arrived since is not counted as silence.
    pub fn advance_time(&mut self, now: Duration) -> Vec<usize> {
        self.advance_clock(now);
        let active = self.clock.active_time_at(now);
        let given_up: Vec<usize> = (0..self.sources.len())
            .filter(|source| {
                self.due[*source].disconnected_since.is_some_and(|since| self.is_past_deadline(since, active))
            })
            .collect();
        for source in &given_up {
            self.give_up_source(*source, now);
        }
        if self.ahead.is_some_and(|since| self.is_past_deadline(since, active)) && self.events.is_empty() {
            self.ahead = None;
            let next = self.first_mention().unwrap_or(0);
            self.events.skip_to_index(next.max(self.events.first_open_index()));
        }
        self.expire_waits(active);
        self.admit_all_offers();
        given_up
    }

    /// Returns whether a deadline lies between two active times.
    fn is_past_deadline(&self, since: Duration, active: Duration) -> bool {
        since.saturating_add(self.config.deadline) <= active
    }

    /// Ends the wait of events for sources that have not mentioned them by this active time.
    fn expire_waits(&mut self, active: Duration) {
        let before = self.expired;
        let mut index = self.expired.max(self.events.first_open_index());
        while self.events.opening_time(index).is_some_and(|opened| self.is_past_deadline(opened, active)) {
            let mut waits = false;
            for (source, entry) in self.sources.iter().enumerate() {
                if index < entry.offered_until {
                    continue;
                }
                if self.is_past_deadline(entry.spoke, active) {
                    self.events.mark_missing(index, source, Reason::Silent(Status::TIMED_OUT));
                } else {
                    waits |= self.events.waits_for_source(index, source);
                }
            }
            if waits {
                break;
            }
            index = self.events.first_open_index().max(index + 1);
        }
        self.expired = index;
        if index == before {
            return;
        }
        for source in 0..self.sources.len() {
            if !self.sources[source].pieces.is_empty() {
                self.admit_offers(source);
            }
        }
    }

    /// Returns since when event `index` waits for a silent source; the time at which it was opened if it waits for
    /// none.
    fn waiting_since(&self, index: u64) -> Option<Duration> {
        let opened = self.events.opening_time(index)?;
        let silent = self
            .sources
            .iter()
            .enumerate()
            .filter(|(source, entry)| index >= entry.offered_until && self.events.waits_for_source(index, *source));
        Some(silent.map(|(_, entry)| entry.spoke.max(opened)).min().unwrap_or(opened))
    }

    /// Returns the latest time at which [`advance_time`](Self::advance_time) should next be called; `None` if nothing waits for a time.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let stalled = self.clock.total_stalled()?;
        let deadline = self.config.deadline;
        let oldest = self.waiting_since(self.expired.max(self.events.first_open_index()));
        let begun = self.due.iter().filter_map(|due| due.disconnected_since).chain(oldest).chain(self.ahead).min()?;
        Some(begun.saturating_add(deadline).saturating_add(stalled).max(now))
    }

    /// Returns the measured capacity of the path; `None` if it is not searched for or not known yet.
    pub fn found_capacity(&self) -> Option<LinkCapacity> {
        self.credit.found_capacity()
    }

    /// Returns when [`next_fetch`](Self::next_fetch), having returned `None`, should be called again even if nothing
    /// happens: the time at which pacing allows more.
    pub fn next_request_time(&self) -> Option<Duration> {
        self.credit.next_request_time()
    }

    /// Sets whether something downstream of the builder (no free block) keeps it from fetching. No deadline passes
    /// meanwhile.
    pub fn set_stalled(&mut self, stalled: bool, now: Duration) {
        self.advance_clock(now);
        self.clock.set_stalled(stalled, now);
    }

    /// Takes a time from the deadlines: the caller was not scheduled then, and neither were the sources, perhaps.
    pub fn excuse_standstill(&mut self, time: Range<Duration>) {
        self.clock.excuse_standstill(time);
    }

    /// Returns the next closed events, in the order of closing. To be called until it returns `None`: while too many
    /// closed events wait to be taken, no event is opened.
    pub fn next_closed(&mut self) -> Option<Closed> {
        let mut next = self.events.next_closed();
        if next.is_none() {
            self.admit_all_offers();
            next = self.events.next_closed();
        }
        let (first, count, missing) = next?;
        Some(Closed { first: self.event_of_index(first), count, missing })
    }

    /// Holds back the [release](Self::next_release) of data of event `from` and later ones, though these events were
    /// [taken](Self::next_closed), and of data of closed events that were not taken, and later ones. Valid until the
    /// next call.
    pub fn hold_back_from(&mut self, from: Option<EventId>) {
        let taken = from.map_or(u64::MAX, |event| event.0 / u64::from(self.config.builders));
        self.held = taken.min(self.events.oldest_closed());
    }

    /// Returns the ticket of a source below which all tickets are to be released; `None` if that was returned before.
    /// Where slots are held until their events are closed, to be called after these events were taken with
    /// [`next_closed`](Self::next_closed).
    pub fn next_release(&mut self, source: usize) -> Option<u64> {
        let base = self.events.first_open_index().min(self.held);
        let entry = &mut self.sources[source];
        let held = entry.held.len();
        while entry.held.front().is_some_and(|ticket| ticket.end_index() <= base) {
            entry.held.pop_front();
        }
        let (held_on, release) = (entry.held.len(), entry.next_release());
        if held_on < held {
            self.renew_due(source);
        }
        release
    }

    /// Returns whether the [`next_release`](Self::next_release) of a source can be sent together with a later fetch: some of its
    /// offers are still to be fetched, and no more than a quarter of its slots would wait.
    pub fn may_release_later(&self, source: usize) -> bool {
        let entry = &self.sources[source];
        let slots = entry.most / 2 - 1;
        !entry.ready.is_empty()
            && entry.released_until().checked_sub(entry.last_release).is_some_and(|waiting| 4 * waiting <= slots)
    }

    /// Returns whether every source has ended or was given up, and every event is closed and was taken.
    pub fn is_finished(&self) -> bool {
        self.events.is_empty()
            && !self.events.has_closed_events()
            && self.due.iter().all(|due| due.base == NO_EVENT)
            && self.sources.iter().all(Source::is_settled)
    }

    /// Returns the number of events closed so far and not rejected, and the number of incomplete ones among them.
    pub fn event_counts(&self) -> (u64, u64) {
        (self.events.built_count(), self.events.incomplete_count())
    }

    /// Returns the number of events that were closed without a source because it had not mentioned them.
    pub fn absent_count(&self, source: usize) -> u64 {
        self.events.absent_count_of(source)
    }

    /// Returns the distribution of the times for which closed events had been open, in nanoseconds.
    pub fn completion_times(&self) -> &Histogram<u64> {
        self.events.completion_times()
    }

    /// Returns the distribution of the [completion times](Self::completion_times): for each of
    /// [`COMPLETION_QUANTILES`] the fraction of events, and the time in microseconds within which they were complete.
    #[expect(clippy::cast_precision_loss, reason = "the histogram has two digits")]
    pub fn completion_distribution(&self) -> [(f64, f64); COMPLETION_QUANTILES.len()] {
        let times = self.completion_times();
        COMPLETION_QUANTILES.map(|fraction| (fraction, times.value_at_quantile(fraction) as f64 / 1e3))
    }

    /// Clears the distribution of completion times.
    pub fn clear_completion_times(&mut self) {
        self.events.clear_completion_times();
    }

    /// Returns the oldest open event, or the next to be opened. A fetch for it must not wait for later events.
    pub fn oldest_event(&self) -> EventId {
        self.event_of_index(self.events.first_open_index())
    }

    /// Returns the number of open events; never more than [`BuilderConfig::open_events`].
    pub fn open_event_count(&self) -> u64 {
        self.events.end_index() - self.events.first_open_index()
    }

    /// Returns the number of bytes requested and not yet received, over all sources that are not near.
    pub fn bytes_in_flight(&self) -> u64 {
        self.credit.outstanding_bytes()
    }

    /// Returns the number of bytes requested from one source and not yet received.
    pub fn bytes_in_flight_of(&self, source: usize) -> u64 {
        self.credit.outstanding_bytes_of(source)
    }

    /// Returns the number of offers of a source that are being fetched.
    pub fn fetch_count(&self, source: usize) -> usize {
        self.sources[source].fetching.len()
    }

    /// Returns the state of the credit window; `None` if the window is constant.
    pub fn credit_state(&self) -> Option<CreditState> {
        self.credit.credit_state()
    }

    /// Returns the number of bytes received of slots that have not arrived as a whole, over all sources that are not
    /// near. Where sources are fetched from in turn, many slots complete at the same time, and only parts arrive in
    /// between.
    pub fn partial_slot_bytes(&self) -> u64 {
        self.credit.partial_slot_bytes()
    }

    /// Returns the payload bytes and fragments built so far, over all sources, including those of events that were
    /// rejected later.
    pub fn progress_counts(&self) -> (u64, u64) {
        self.sources.iter().fold((0, 0), |(bytes, built), entry| (bytes + entry.ledger.bytes, built + entry.built))
    }

    /// Returns the sources' processor time in nanoseconds and bytes copied, as reported in their final counters.
    pub fn source_costs(&self) -> (u64, u64) {
        let final_counters = self.sources.iter().filter_map(|entry| entry.final_counters);
        final_counters.fold((0, 0), |(cpu, copied), final_counters| {
            (cpu.saturating_add(final_counters.cpu_nanos), copied.saturating_add(final_counters.copied_bytes))
        })
    }

    /// Returns the final counters as they stand. `recorded`: whether the built events are on disk. `unwritten`: per
    /// source, the number of fragments of closed events that could not be written to disk.
    pub fn final_ledger(&self, recorded: bool, unwritten: &[u64], unknown_sources: u64) -> Ledger {
        let sources = self.sources.iter().enumerate().map(|(index, entry)| {
            let mut ledger = entry.ledger.clone();
            let kept = entry.built - entry.unbuilt;
            // Fragments that were built and no longer count, because the run ended before them, may be among the
            // unwritten.
            let unwritten = unwritten.get(index).copied().unwrap_or(0).min(kept);
            ledger.accepted = entry.final_counters.map_or(entry.offered, |final_counters| final_counters.accepted);
            ledger.skipped = self.events.skipped_count_of(index);
            ledger.absent = self.events.absent_count_of(index);
            ledger.cpu_ms = entry.final_counters.map_or(0, |final_counters| final_counters.cpu_nanos / 1_000_000);
            if recorded {
                ledger.recorded = kept - unwritten;
                ledger.lost = ledger.lost.saturating_add(unwritten);
            } else {
                ledger.discarded = kept;
            }
            ledger
        });
        Ledger { unaccounted: 0, sources: sources.collect(), unknown_sources }.into_balanced()
    }

    fn event_of_index(&self, index: u64) -> EventId {
        EventId(index.saturating_mul(u64::from(self.config.builders)).saturating_add(u64::from(self.config.builder)))
    }
}

/// Time as events see it: the clock stands still while the builder itself is stalled by what is downstream.
#[derive(Debug, Default)]
struct Clock {
    /// Latest time it was advanced to.
    now: Duration,
    stalled: Duration,
    since: Option<Duration>,
}

impl Clock {
    fn advance_to(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Returns the current time as events see it.
    fn active_time(&self) -> Duration {
        self.active_time_at(self.now)
    }

    fn active_time_at(&self, now: Duration) -> Duration {
        self.since.map_or(now, |since| now.min(since)).saturating_sub(self.stalled)
    }

    fn set_stalled(&mut self, stalled: bool, now: Duration) {
        match (stalled, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.since = None;
                self.stalled += now.saturating_sub(since);
            }
            _ => {}
        }
    }

    fn excuse_standstill(&mut self, time: Range<Duration>) {
        // The whole of a stall is counted when it ends.
        let end = self.since.map_or(time.end, |since| since.min(time.end));
        self.stalled += end.saturating_sub(time.start);
    }

    /// Returns the total time for which the clock has stood still; `None` while it stands still.
    fn total_stalled(&self) -> Option<Duration> {
        self.since.is_none().then_some(self.stalled)
    }
}

/// Returns the index, within a builder's share, of the first event of the share that is not below `event`.
fn share_index(event: EventId, config: &BuilderConfig) -> u64 {
    event.0.saturating_sub(u64::from(config.builder)).div_ceil(u64::from(config.builders))
}

/// Fractions of the events for which [`Builder::completion_distribution`] has a time.
pub const COMPLETION_QUANTILES: [f64; 20] = [
    0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0,
];

/// Upper limit of the number of slots of a source: more than any source has.
const MAX_SLOTS: u32 = 1 << 20;
