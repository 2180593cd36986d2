//! The builder of one share of the events.

use crate::events::{Answer, OpenEvents};
use crate::source::{Presence, Source, Ticket, TicketState};
use crate::{Closed, Ledger};
use std::time::Duration;
use thalweg_wire::{
    Accounts, Announcement, Disposition, EventId, FragmentHeader, IntervalMap, Records, RunNumber, SourceId, Status,
};
use thiserror::Error;

/// How closely each record is looked at before it counts as built. Its header is always checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The header with its CRC.
    Headers,
    /// The payload's CRC too.
    Payloads,
}

/// How long a source's slot is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until its bytes have arrived in a place of ours.
    UntilArrived,
    /// Until its events are closed and handed over: the bytes stay where they are.
    UntilClosed,
}

/// What a builder must know before the run.
#[derive(Debug, Clone)]
pub struct BuilderConfig {
    /// The run.
    pub run: RunNumber,
    /// Which builder this is, of `builders`: it builds the events `e` with `e % builders == builder`.
    pub builder: u32,
    /// How many builders share the events.
    pub builders: u32,
    /// The expected sources, and their names.
    pub sources: Vec<(SourceId, String)>,
    /// The first event of the run.
    pub first: EventId,
    /// Bytes that may be asked for and not yet received, over all sources. One fetch is always allowed.
    pub window: u64,
    /// How long an event waits for a source that has not mentioned it.
    pub deadline: Duration,
    /// How many events may be open: no source gets further ahead of the slowest than this.
    pub open_events: u32,
    /// The longest payload of a fragment.
    pub max_payload: u32,
    /// How closely to look.
    pub check: Check,
    /// When to release.
    pub hold: Hold,
}

/// What to ask for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the source.
    pub source: usize,
    /// The offer, as the source made it.
    pub offer: Announcement,
}

/// A source broke the rules of the conversation; nothing it says can be relied on any more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// An event that is not this builder's share.
    #[error("offered event {event}, which is not in the share of builder {builder} of {builders}")]
    Share {
        /// The event.
        event: u64,
        /// This builder.
        builder: u32,
        /// Of how many.
        builders: u32,
    },
    /// Events must be offered in order.
    #[error("offered event {0} after later ones")]
    Order(u64),
    /// An offer that cannot be.
    #[error(
        "offered {count} fragments in {bytes} bytes; this builder takes at most {most} fragments, each of at least 64 bytes, at a time"
    )]
    Size {
        /// Fragments.
        count: u32,
        /// Bytes.
        bytes: u32,
        /// The most it takes.
        most: u32,
    },
    /// More offers without a release than its slots allow.
    #[error("more than {0} offers are open: more than its slots can hold")]
    TooMany(u64),
    /// A ticket was announced a second time with another content.
    #[error("ticket {0} was offered twice with different content")]
    Changed(u64),
    /// Books that contradict what was offered.
    #[error("its books count {books} tickets, but it offered {offered}")]
    Books {
        /// What the books say.
        books: u64,
        /// What was seen.
        offered: u64,
    },
}

/// Builds events; see the crate's documentation.
#[derive(Debug)]
pub struct Builder {
    config: BuilderConfig,
    events: OpenEvents,
    sources: Vec<Source>,
    in_flight: u64,
    clock: Clock,
    /// Offers beyond which a source is out of order, per source: set from its number of slots.
    most_tickets: Vec<u64>,
}

/// Time as events see it: it stands still while the builder itself is held up by what is behind it.
#[derive(Debug, Default)]
struct Clock {
    stalled: Duration,
    since: Option<Duration>,
}

impl Clock {
    fn at(&self, now: Duration) -> Duration {
        now.saturating_sub(self.stalled)
            .min(self.since.map_or(Duration::MAX, |since| since.saturating_sub(self.stalled)))
    }
}

impl Builder {
    /// A builder at the beginning of a run.
    pub fn new(config: BuilderConfig) -> Self {
        let first = share_index(config.first.0, config.builder, config.builders);
        let sources: Vec<Source> =
            config.sources.iter().map(|(id, name)| Source::new(id.to_string(), name.clone(), first)).collect();
        Self {
            events: OpenEvents::new(first, sources.len()),
            most_tickets: vec![u64::MAX; sources.len()],
            sources,
            in_flight: 0,
            clock: Clock::default(),
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &BuilderConfig {
        &self.config
    }

    /// The source with this id, if it is expected.
    pub fn source_index(&self, id: SourceId) -> Option<usize> {
        self.config.sources.iter().position(|(source, _)| *source == id)
    }

    /// A source is connected, for the first time or again, with so many slots. Returns the ticket below which it may
    /// forget everything.
    pub fn connected(&mut self, source: usize, slots: u32) -> u64 {
        let entry = &mut self.sources[source];
        entry.presence = Presence::Here;
        entry.early.clear();
        // Between two tickets with data there can be one run of drops.
        self.most_tickets[source] = 2 * u64::from(slots) + 2;
        entry.told = entry.released;
        entry.released
    }

    /// The connection to a source is down. What was asked of it is asked again when it comes back; when it does not come
    /// back within the deadline, it is given up.
    pub fn gone(&mut self, source: usize, now: Duration) {
        let entry = &mut self.sources[source];
        if entry.presence == Presence::Dead {
            return;
        }
        entry.presence = Presence::Gone(self.clock.at(now));
        entry.cursor = entry.released;
        for ticket in &mut entry.tickets {
            if ticket.state == TicketState::Fetching {
                ticket.state = TicketState::Ready;
                self.in_flight -= u64::from(ticket.offer.bytes);
            }
        }
    }

    /// Gives a source up for the rest of the run, unless it connects again: no event waits for it any more, and what it
    /// had offered is lost.
    pub fn give_up(&mut self, source: usize, now: Duration) {
        self.gone(source, now);
        let entry = &mut self.sources[source];
        entry.presence = Presence::Dead;
        entry.absent = entry.absent.min(self.events.base());
        for ticket in entry.tickets.drain(..) {
            entry.released += 1;
            match (ticket.state, ticket.offer.disposition) {
                (TicketState::Done | TicketState::Arrived, _) => {}
                (_, Disposition::DroppedNewest) => entry.books.dropped_newest += u64::from(ticket.offer.count),
                (_, Disposition::DroppedOldest) => entry.books.dropped_oldest += u64::from(ticket.offer.count),
                _ => entry.books.lost += u64::from(ticket.offer.count),
            }
        }
        entry.cursor = entry.released;
        entry.early.clear();
        entry.looked = entry.looked.max(entry.mentioned);
        self.settle_absent();
    }

    /// Whether a source has been given up.
    pub fn is_given_up(&self, source: usize) -> bool {
        self.sources[source].presence == Presence::Dead
    }

    /// An offer arrived. True where a fetch of this ticket is under way and must be called off: the source has dropped it.
    pub fn offered(&mut self, source: usize, offer: Announcement, now: Duration) -> Result<bool, Violation> {
        let entry = &mut self.sources[source];
        if offer.ticket < entry.released {
            // Its release was lost with a connection, or on a lossy link: say it again.
            entry.told = u64::MAX;
            return Ok(false);
        }
        if offer.ticket < entry.next_ticket() {
            return self.offered_again(source, offer, now);
        }
        if entry.early.len() as u64 + entry.tickets.len() as u64 >= self.most_tickets[source] {
            return Err(Violation::TooMany(self.most_tickets[source]));
        }
        entry.early.insert(offer.ticket, offer);
        while let Some(offer) = self.sources[source].next_in_order() {
            self.take_offer(source, offer)?;
        }
        self.progress(source, self.clock.at(now));
        Ok(false)
    }

    fn take_offer(&mut self, source: usize, offer: Announcement) -> Result<(), Violation> {
        let BuilderConfig { builder, builders, open_events, .. } = self.config;
        let entry = &mut self.sources[source];
        if offer.first.0 % u64::from(builders) != u64::from(builder) {
            return Err(Violation::Share { event: offer.first.0, builder, builders });
        }
        let (count, bytes) = (offer.count, offer.bytes);
        let dropped = offer.disposition.is_dropped();
        if !dropped && (count > open_events || u64::from(count) * 64 > u64::from(bytes)) {
            return Err(Violation::Size { count, bytes, most: open_events });
        }
        let first = offer.first.0 / u64::from(builders);
        // A fragment too long for one slot comes in several offers of the same event.
        if first + 1 < entry.mentioned || first.checked_add(u64::from(count)).is_none() {
            return Err(Violation::Order(offer.first.0));
        }
        entry.offered += u64::from(count);
        entry.mentioned = entry.mentioned.max(first + u64::from(count));
        entry.tickets.push_back(Ticket { offer, first, state: TicketState::Parked });
        Ok(())
    }

    /// A ticket that is open was announced again: after a reconnection, or because the source had to drop it.
    fn offered_again(&mut self, source: usize, offer: Announcement, now: Duration) -> Result<bool, Violation> {
        let entry = &mut self.sources[source];
        let Some(ticket) = entry.ticket(offer.ticket) else { return Ok(false) };
        let dropped_since = offer.disposition.is_dropped() && !ticket.offer.disposition.is_dropped();
        let same_events = (ticket.offer.first, ticket.offer.count) == (offer.first, offer.count);
        if !same_events || ticket.offer.bytes != offer.bytes && !dropped_since {
            return Err(Violation::Changed(offer.ticket));
        }
        if !dropped_since || matches!(ticket.state, TicketState::Arrived | TicketState::Done) {
            // The place in the arena may have changed if the source had to move it.
            ticket.offer.arena_offset = offer.arena_offset;
            return Ok(false);
        }
        let fetching = ticket.state == TicketState::Fetching;
        if fetching {
            self.in_flight -= u64::from(ticket.offer.bytes);
        }
        ticket.offer = offer;
        ticket.state = TicketState::Parked;
        entry.cursor = entry.cursor.min(offer.ticket);
        self.progress(source, self.clock.at(now));
        Ok(fetching)
    }

    /// Looks at the offers of a source whose events may now be open.
    fn progress(&mut self, source: usize, now: Duration) {
        let open_events = u64::from(self.config.open_events);
        let Self { events, sources, .. } = self;
        let entry = &mut sources[source];
        let mut number = entry.cursor;
        while let Some(ticket) = entry.ticket(number) {
            number += 1;
            if ticket.state != TicketState::Parked {
                continue;
            }
            let (first, count, disposition) = (ticket.first, u64::from(ticket.offer.count), ticket.offer.disposition);
            let limit = events.base() + open_events;
            let whole = first + count <= limit;
            if !whole && (!disposition.is_dropped() || first >= limit) {
                break;
            }
            // A run of drops may be longer than the events that may be open: it is taken in as they close.
            let end = (first + count).min(limit);
            events.open_until(end, now);
            for index in entry.looked.max(events.base())..first {
                if events.answer(index, source) == Answer::None {
                    entry.books.skipped += 1;
                    events.missing(index, source, Status::empty());
                }
            }
            entry.looked = entry.looked.max(end);
            let mut wanted = false;
            for index in first.max(events.base())..end {
                if events.answer(index, source) == Answer::None {
                    wanted = true;
                    if disposition.is_dropped() {
                        events.missing(index, source, Status::DROPPED);
                    }
                } else if events.answer(index, source) == Answer::Present {
                    wanted = true;
                }
            }
            if !whole {
                break;
            }
            let state = match disposition {
                Disposition::Held | Disposition::Eager if wanted => TicketState::Ready,
                Disposition::Held | Disposition::Eager => {
                    // Nobody waits for these any more: not worth a fetch.
                    entry.books.late += count;
                    TicketState::Done
                }
                Disposition::DroppedNewest => {
                    entry.books.dropped_newest += count;
                    TicketState::Done
                }
                Disposition::DroppedOldest => {
                    entry.books.dropped_oldest += count;
                    TicketState::Done
                }
            };
            if let Some(ticket) = entry.ticket(number - 1) {
                ticket.state = state;
            }
        }
        entry.advance();
        self.settle_absent();
    }

    /// The next slot to ask for: the one with the oldest event; among equals, starting at a source that rotates with the
    /// event. Nothing while the window is full. The caller must have a place of `offer.bytes` bytes ready: what is
    /// returned counts as asked for.
    pub fn next_fetch(&mut self, now: Duration) -> Option<Fetch> {
        let now = self.clock.at(now);
        let sources = self.sources.len();
        let mut best: Option<(u64, usize, usize)> = None;
        for source in 0..sources {
            if self.sources[source].presence != Presence::Here {
                continue;
            }
            if let Some(first) = self.first_ready(source, now) {
                #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the number of sources")]
                let turn = (source + sources - (first % sources as u64) as usize) % sources;
                if best.is_none_or(|(oldest, least, _)| (first, turn) < (oldest, least)) {
                    best = Some((first, turn, source));
                }
            }
        }
        let (_, _, source) = best?;
        let entry = &mut self.sources[source];
        let ticket = entry.ticket(entry.cursor)?;
        let bytes = u64::from(ticket.offer.bytes);
        if self.in_flight > 0 && self.in_flight + bytes > self.config.window {
            return None;
        }
        ticket.state = TicketState::Fetching;
        let offer = ticket.offer;
        self.in_flight += bytes;
        entry.cursor += 1;
        Some(Fetch { source, offer })
    }

    /// Moves the cursor of a source to its first ticket that can be fetched; the index of that ticket's first event.
    fn first_ready(&mut self, source: usize, now: Duration) -> Option<u64> {
        loop {
            let limit = self.events.base() + u64::from(self.config.open_events);
            let entry = &mut self.sources[source];
            let cursor = entry.cursor;
            let ticket = entry.ticket(cursor)?;
            match ticket.state {
                TicketState::Ready => return Some(ticket.first),
                TicketState::Parked => {
                    let may =
                        ticket.offer.disposition.is_dropped() || ticket.first + u64::from(ticket.offer.count) <= limit;
                    if !may {
                        return None;
                    }
                    self.progress(source, now);
                    let entry = &mut self.sources[source];
                    let cursor = entry.cursor;
                    if entry.ticket(cursor)?.state == TicketState::Parked {
                        return None;
                    }
                }
                _ => entry.cursor += 1,
            }
        }
    }

    /// Gives a fetch back that [`next_fetch`](Self::next_fetch) returned and that could not be made after all.
    pub fn unfetch(&mut self, source: usize, number: u64) {
        let entry = &mut self.sources[source];
        if let Some(ticket) = entry.ticket(number)
            && ticket.state == TicketState::Fetching
        {
            ticket.state = TicketState::Ready;
            self.in_flight -= u64::from(ticket.offer.bytes);
            entry.cursor = entry.cursor.min(number);
        }
    }

    /// The bytes of a ticket are in place. Calls `record` with event and offset in `bytes` for each good record.
    /// Whatever else is in there is counted, and the events do not wait for it.
    pub fn arrived(&mut self, source: usize, number: u64, bytes: &[u8], mut record: impl FnMut(EventId, u32)) {
        let BuilderConfig { builders, check, max_payload, run, .. } = self.config;
        let id = self.config.sources[source].0;
        let Self { events, sources, .. } = self;
        let entry = &mut sources[source];
        let Some(ticket) = entry.ticket(number).filter(|ticket| ticket.state == TicketState::Fetching) else { return };
        self.in_flight -= u64::from(ticket.offer.bytes);
        ticket.state = match self.config.hold {
            Hold::UntilArrived => TicketState::Done,
            Hold::UntilClosed => TicketState::Arrived,
        };
        let (first, count) = (ticket.first, ticket.offer.count);
        let first_event = ticket.offer.first.0;

        let mut seen = 0;
        let stride = u64::from(builders);
        for item in Records::new(bytes).take(count as usize) {
            let Ok((at, header, payload)) = item else { break };
            let index = first + seen;
            let event = EventId(first_event + seen * stride);
            let plausible = header.run == run
                && header.source == id
                && header.event == event
                && header.total_length <= max_payload
                && (check == Check::Headers || header.payload_matches(payload));
            if !plausible {
                // The bytes behind it can still be found, since the header says how long it is.
                Self::damaged(events, entry, index, source);
                seen += 1;
                continue;
            }
            seen += 1;
            entry.sequence.observe(header.sequence);
            match events.answer(index, source) {
                Answer::None => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "offsets lie within a slot, whose length is 32 bits"
                    )]
                    let at = at as u32;
                    if header.is_whole() || Self::piece(entry, index, &header, &mut record, event, at) {
                        entry.built += 1;
                        entry.books.empty += u64::from(header.status.contains(Status::EMPTY));
                        events.present(index, source);
                        if header.is_whole() {
                            record(event, at);
                        }
                    }
                    entry.books.bytes += u64::from(header.piece_length);
                }
                Answer::Present => entry.books.duplicates += 1,
                Answer::Missing | Answer::Forgotten => entry.books.late += 1,
            }
        }
        for index in first + seen..first + u64::from(count) {
            Self::damaged(events, entry, index, source);
        }
        entry.advance();
    }

    fn damaged(events: &mut OpenEvents, entry: &mut Source, index: u64, source: usize) {
        entry.books.corrupt += 1;
        entry.pieces.remove(&index);
        if events.answer(index, source) == Answer::None {
            events.missing(index, source, Status::CORRUPT);
        }
    }

    /// One of several pieces of a fragment. True when it completes the fragment. A piece that overlaps another, or
    /// disagrees about the fragment's length, is a duplicate and is not recorded.
    fn piece(
        entry: &mut Source,
        index: u64,
        header: &FragmentHeader,
        record: &mut impl FnMut(EventId, u32),
        event: EventId,
        at: u32,
    ) -> bool {
        let (arrived, total) = entry.pieces.entry(index).or_insert_with(|| (IntervalMap::new(), header.total_length));
        let range = u64::from(header.offset)..u64::from(header.offset) + u64::from(header.piece_length);
        if *total != header.total_length || arrived.overlaps(&range) || range.is_empty() {
            entry.books.duplicates += 1;
            return false;
        }
        arrived.insert(range);
        let complete = arrived.covered() == u64::from(*total);
        record(event, at);
        if complete {
            entry.pieces.remove(&index);
        }
        complete
    }

    /// A source ended the run with its books.
    pub fn ended(&mut self, source: usize, accounts: Accounts) -> Result<(), Violation> {
        let entry = &mut self.sources[source];
        let offered = entry.next_ticket() + entry.early.len() as u64;
        if accounts.tickets < offered {
            return Err(Violation::Books { books: accounts.tickets, offered });
        }
        entry.accounts = Some(accounts);
        entry.books.closed_books = true;
        self.settle_absent();
        Ok(())
    }

    /// Whether a source has sent its books.
    pub fn has_ended(&self, source: usize) -> bool {
        self.sources[source].accounts.is_some()
    }

    /// Whether a source has nothing more to tell or to deliver: it may be told good-bye.
    pub fn is_settled(&self, source: usize) -> bool {
        self.sources[source].is_settled()
    }

    /// Events no longer wait for sources that have ended or were given up.
    fn settle_absent(&mut self) {
        let Self { events, sources, .. } = self;
        for (source, entry) in sources.iter_mut().enumerate() {
            let ended = entry.accounts.is_some_and(|accounts| {
                entry.next_ticket() >= accounts.tickets
                    && entry.tickets.iter().all(|ticket| ticket.state != TicketState::Parked)
            });
            let dead = entry.presence == Presence::Dead;
            if !ended && !dead {
                entry.absent = events.end();
                continue;
            }
            let from = if dead { entry.absent } else { entry.looked };
            for index in from.max(events.base())..events.end() {
                if events.answer(index, source) == Answer::None {
                    events.missing(index, source, Status::empty());
                }
            }
            entry.absent = events.end();
        }
    }

    /// Time passes: events whose deadline is over no longer wait for sources that have not mentioned them, and sources
    /// that have been away for as long are given up. Returns the sources given up now.
    pub fn time(&mut self, now: Duration) -> Vec<usize> {
        let active = self.clock.at(now);
        let deadline = self.config.deadline;
        let given_up: Vec<usize> = (0..self.sources.len())
            .filter(|source| match self.sources[*source].presence {
                Presence::Gone(since) => active >= since + deadline,
                _ => false,
            })
            .collect();
        for source in &given_up {
            self.give_up(*source, now);
        }
        let mut index = self.events.base();
        while self.events.opened(index).is_some_and(|opened| opened + deadline <= active) {
            for (source, entry) in self.sources.iter().enumerate() {
                if index >= entry.mentioned && self.events.answer(index, source) == Answer::None {
                    self.events.missing(index, source, Status::TIMED_OUT);
                }
            }
            index += 1;
        }
        given_up
    }

    /// When [`time`](Self::time) should next be called, at the latest; nothing where no event waits.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        if self.clock.since.is_some() {
            return None;
        }
        let gone = self.sources.iter().filter_map(|entry| match entry.presence {
            Presence::Gone(since) => Some(since),
            _ => None,
        });
        // An event whose deadline has passed waits for a fetch, not for time.
        let active = self.clock.at(now);
        let oldest = self.events.oldest().filter(|opened| *opened + self.config.deadline > active);
        let begun = gone.chain(oldest).min()?;
        Some(begun + self.config.deadline + self.clock.stalled)
    }

    /// Whether something behind the builder (no free block) keeps it from fetching. Meanwhile no deadline passes.
    pub fn stalled(&mut self, stalled: bool, now: Duration) {
        match (stalled, self.clock.since) {
            (true, None) => self.clock.since = Some(now),
            (false, Some(since)) => {
                self.clock.since = None;
                self.clock.stalled += now.saturating_sub(since);
            }
            _ => {}
        }
    }

    /// The next closed events, oldest closing first.
    pub fn next_closed(&mut self) -> Option<Closed> {
        let (first, count, missing) = self.events.next_closed()?;
        Some(Closed { first: self.event(first), count, missing })
    }

    /// For a source: all tickets below the returned one are to be released; nothing where that was said already.
    pub fn release(&mut self, source: usize) -> Option<u64> {
        let base = self.events.base();
        let entry = &mut self.sources[source];
        if self.config.hold == Hold::UntilClosed {
            for ticket in &mut entry.tickets {
                match ticket.state {
                    TicketState::Arrived if ticket.first + u64::from(ticket.offer.count) <= base => {
                        ticket.state = TicketState::Done;
                    }
                    TicketState::Arrived | TicketState::Done => {}
                    _ => break,
                }
            }
            entry.advance();
        }
        entry.take_release()
    }

    /// One past the highest event that any source has mentioned.
    pub fn highest_mentioned(&self) -> EventId {
        self.event(self.sources.iter().map(|entry| entry.mentioned).max().unwrap_or(0))
    }

    /// Whether every source has ended or was given up, and every event is closed.
    pub fn is_finished(&self) -> bool {
        self.events.is_empty() && self.sources.iter().all(Source::is_settled)
    }

    /// Events closed so far, and how many of them incomplete.
    pub fn counts(&self) -> (u64, u64) {
        (self.events.built(), self.events.incomplete())
    }

    /// Bytes asked for and not yet received.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Payload bytes and fragments built so far, over all sources.
    pub fn progress_counts(&self) -> (u64, u64) {
        self.sources.iter().fold((0, 0), |(bytes, built), entry| (bytes + entry.books.bytes, built + entry.built))
    }

    /// Sources' processor time in nanoseconds and bytes copied, as their books say.
    pub fn source_costs(&self) -> (u64, u64) {
        let books = self.sources.iter().filter_map(|entry| entry.accounts);
        books.fold((0, 0), |(cpu, copied), books| (cpu + books.cpu_nanos, copied + books.copied_bytes))
    }

    /// The books as they stand. `recorded` says whether what was built is on disk; `unwritten` is, per source, how many
    /// fragments of it the disk failed to take.
    pub fn ledger(&self, recorded: bool, unwritten: &[u64], unknown_sources: u64) -> Ledger {
        let sources = self.sources.iter().enumerate().map(|(index, entry)| {
            let mut books = entry.books.clone();
            let unwritten = unwritten.get(index).copied().unwrap_or(0);
            books.accepted = entry.accounts.map_or(entry.offered, |accounts| accounts.accepted);
            if recorded {
                books.recorded = entry.built.saturating_sub(unwritten);
                books.lost += unwritten;
            } else {
                books.discarded = entry.built;
            }
            books
        });
        Ledger { unaccounted: 0, sources: sources.collect(), unknown_sources }.balanced()
    }

    fn event(&self, index: u64) -> EventId {
        EventId(index * u64::from(self.config.builders) + u64::from(self.config.builder))
    }
}

/// The index, within a builder's share, of the first event of the share that is not below `event`.
fn share_index(event: u64, builder: u32, builders: u32) -> u64 {
    let (builder, builders) = (u64::from(builder), u64::from(builders));
    (event + builders - 1).saturating_sub(builder) / builders
}
