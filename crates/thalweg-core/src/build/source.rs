//! State of one source at the builder: its tickets, the fragments that will not come, its ledger entry.

use crate::build::LedgerEntry;
use crate::build::events::{Answer, OpenEvents, Reason};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{Announcement, Disposition, FinalCounters, FragmentHeader, IntervalMap, Status};

/// Connection state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Connected, or not yet connected in a run that has not begun.
    Here,
    /// Disconnected since this time; it may come back.
    Gone(Duration),
    /// Given up for this run.
    GivenUp,
}

/// An offer with data that is not completed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) offer: Announcement,
    /// Index (event number / builders) of its first event.
    pub(crate) first: u64,
    /// Number of its events that lie before the end of the run.
    pub(crate) count: u32,
    /// Bytes of it requested so far.
    pub(crate) asked: u32,
    /// Number of its events that level 2 has yet to decide on, while the ticket waits for that.
    pub(crate) undecided: u32,
}

impl Ticket {
    /// Returns the index after its last event.
    pub(crate) fn end_index(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    pub(crate) fn event_indices(&self) -> Range<u64> {
        self.first..self.end_index()
    }

    /// Cuts off its events from index `stop` on, and returns their indices.
    fn cut_before(&mut self, stop: u64) -> Range<u64> {
        let end = self.end_index();
        let from = stop.clamp(self.first, end);
        #[expect(clippy::cast_possible_truncation, reason = "no more than there were")]
        let count = (from - self.first) as u32;
        self.count = count;
        from..end
    }

    /// Returns the requested bytes that count against the window: those of an eager offer come without a fetch.
    pub(crate) fn counted_bytes(&self) -> u64 {
        if self.offer.disposition == Disposition::Eager { 0 } else { u64::from(self.asked) }
    }
}

/// Reason why fragments that a source mentioned will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownMissing {
    DroppedNewest,
    DroppedOldest,
    LostInDevice,
    Lost,
}

impl KnownMissing {
    fn missing_reason(self) -> Reason {
        match self {
            Self::DroppedNewest | Self::DroppedOldest => Reason::Dropped(Status::DROPPED),
            Self::LostInDevice => Reason::Dropped(Status::LOST_IN_DEVICE),
            Self::Lost => Reason::Spoilt(Status::empty()),
        }
    }
}

/// A range of events of which `count` fragments will not come.
#[derive(Debug)]
struct Gap {
    events: Range<u64>,
    count: u64,
    cause: KnownMissing,
}

/// A fragment that is spread over several tickets.
#[derive(Debug)]
pub(crate) struct Pieces {
    arrived: IntervalMap,
    /// Length in bytes, once a piece with it has arrived.
    total: Option<u32>,
    /// True if the fragment is in a bucket of the ledger; further pieces of it are not counted again.
    decided: bool,
}

impl Pieces {
    pub(crate) fn is_decided(&self) -> bool {
        self.decided
    }
}

/// Effect of a piece on its fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The piece has new bytes.
    New,
    /// The piece has the last bytes that were missing.
    Last,
    /// The piece has bytes that arrived before.
    Repeated,
    /// The piece disagrees with an earlier one about the fragment's length.
    Contradicts,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) presence: Presence,
    /// Offered tickets whose events lie beyond those that may be open. These five queues are in the order of tickets.
    pub(crate) parked: VecDeque<Ticket>,
    /// Tickets whose events are open, and on which level 2 has not decided.
    pub(crate) undecided: VecDeque<Ticket>,
    /// Tickets whose events are open, and that may be fetched.
    pub(crate) ready: VecDeque<Ticket>,
    /// Tickets that are being fetched.
    pub(crate) fetching: VecDeque<Ticket>,
    /// Tickets whose bytes are in place, and kept until their events are closed.
    pub(crate) held: VecDeque<Ticket>,
    /// The ticket of which a part was requested.
    pub(crate) begun: Option<u64>,
    /// The next ticket number in order.
    pub(crate) next: u64,
    /// Maximum number of open offers.
    pub(crate) most: u64,
    /// Ticket number below which all tickets were returned by `release` already.
    pub(crate) last_release: u64,
    /// Index after the last event mentioned by an offer in order.
    pub(crate) offered_until: u64,
    /// Event index below which the source has only what it offered with tickets below the second number; those offers
    /// may be still to come.
    pub(crate) passed: (u64, u64),
    /// Event index below which all events have been answered, or have a ticket that may be fetched.
    pub(crate) admitted: u64,
    /// Fragments mentioned and not to come, sorted: those of events that have not been admitted, or that may yet be at
    /// or beyond the end of the run.
    known_missing: VecDeque<Gap>,
    /// Index after the last event whose fragment was lost.
    pub(crate) lost_until: u64,
    /// Number of fragments of the last offer.
    pub(crate) last_count: u32,
    /// Index of the last mentioned event at the time when pieces were last checked.
    last_settled: u64,
    /// Index of the last event whose fragment has arrived.
    last_built: Option<u64>,
    /// Event indices of fragments that count as rejected though they share a slot with others that may be wanted.
    rejected: BTreeSet<u64>,
    /// Fragments spread over several tickets, by event index; only while more of them may come.
    pub(crate) pieces: BTreeMap<u64, Pieces>,
    /// Time of its last offer that was next in order, or of its last statement of events without fragments.
    pub(crate) spoke: Duration,
    pub(crate) final_counters: Option<FinalCounters>,
    pub(crate) ledger: LedgerEntry,
    /// Number of fragments built.
    pub(crate) built: u64,
    /// Number of built fragments that were rejected later.
    pub(crate) unbuilt: u64,
    /// Bytes of offers that were never fetched because their events were rejected.
    pub(crate) unasked: u64,
    /// Number of fragments mentioned.
    pub(crate) offered: u64,
}

/// Wake-up conditions of a source. Kept apart from the sources, so that the search for work touches few cache lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Index of the first event of the ticket to be fetched next; `NO_EVENT` if there is none.
    pub(crate) next: u64,
    /// Index that the oldest open event must have for the source's next offer to be admitted.
    pub(crate) base: u64,
    /// Event index from which on the source is known to be silent, which matters once these events are opened.
    pub(crate) end: u64,
    /// Time at which the source was disconnected; `None` if it is connected, settled or given up. It is given up a
    /// deadline later.
    pub(crate) disconnected_since: Option<Duration>,
}

/// Limit of the gaps between the arrived pieces of a fragment; a fragment with more is taken as damaged.
const MAX_GAPS: usize = 1024;

/// An index that no event has.
pub(crate) const NO_EVENT: u64 = u64::MAX;

impl Source {
    /// Limit of the ranges of drops that are kept apart. Beyond it, gaps between ranges count as parts of them.
    const MAX_KNOWN_MISSING: usize = 1024;

    pub(crate) fn new(id: String, name: String, first: u64) -> Self {
        Self {
            presence: Presence::Here,
            parked: VecDeque::new(),
            undecided: VecDeque::new(),
            ready: VecDeque::new(),
            fetching: VecDeque::new(),
            held: VecDeque::new(),
            begun: None,
            next: 0,
            most: u64::MAX,
            last_release: 0,
            offered_until: first,
            passed: (first, 0),
            admitted: first,
            known_missing: VecDeque::new(),
            lost_until: 0,
            last_count: 0,
            last_settled: first,
            last_built: None,
            rejected: BTreeSet::new(),
            pieces: BTreeMap::new(),
            spoke: Duration::ZERO,
            final_counters: None,
            ledger: LedgerEntry { source: id, name, ..LedgerEntry::default() },
            built: 0,
            unbuilt: 0,
            unasked: 0,
            offered: 0,
        }
    }

    /// Returns the ticket number below which all tickets are completed.
    pub(crate) fn released_until(&self) -> u64 {
        let fronts = self.queues().into_iter().filter_map(VecDeque::front);
        fronts.map(|ticket| ticket.offer.ticket).min().unwrap_or(self.next)
    }

    /// Returns the ticket number below which all tickets are completed; `None` if that was returned before.
    pub(crate) fn next_release(&mut self) -> Option<u64> {
        let released = self.released_until();
        if !self.rejected.is_empty() {
            let oldest = self.queues().into_iter().filter_map(VecDeque::front).map(|ticket| ticket.first).min();
            // More pieces of the last fragment mentioned may come.
            let oldest = oldest.unwrap_or(NO_EVENT).min(self.offered_until.saturating_sub(1));
            self.rejected = self.rejected.split_off(&oldest);
        }
        (std::mem::replace(&mut self.last_release, released) != released).then_some(released)
    }

    /// Returns the ticket to be fetched from next: the one that was requested in part, or else the oldest that may be
    /// fetched.
    pub(crate) fn front_ticket(&self) -> Option<&Ticket> {
        let begun = self.begun.and_then(|number| ticket_position(&self.fetching, number));
        begun.map_or(self.ready.front(), |at| self.fetching.get(at))
    }

    pub(crate) fn front_ticket_mut(&mut self) -> Option<&mut Ticket> {
        let begun = self.begun.and_then(|number| ticket_position(&self.fetching, number));
        match begun {
            Some(at) => self.fetching.get_mut(at),
            None => self.ready.front_mut(),
        }
    }

    /// Applies the source's statement of missing events, once all that it offered before has been received.
    pub(crate) fn apply_passed(&mut self) {
        let (until, tickets) = self.passed;
        if self.next >= tickets {
            self.offered_until = self.offered_until.max(until);
        }
    }

    /// Returns the number of open offers.
    pub(crate) fn open_offers(&self) -> u64 {
        self.queues().into_iter().map(VecDeque::len).sum::<usize>() as u64
    }

    /// Returns the queues of open tickets.
    fn queues(&self) -> [&VecDeque<Ticket>; 5] {
        [&self.parked, &self.undecided, &self.ready, &self.fetching, &self.held]
    }

    /// Returns the queues of open tickets that have not arrived.
    fn queues_on_the_way(&self) -> [&VecDeque<Ticket>; 4] {
        [&self.parked, &self.undecided, &self.ready, &self.fetching]
    }

    /// Returns whether its final counters have been received and nothing of it is under way, or it was given up.
    pub(crate) fn is_settled(&self) -> bool {
        self.presence == Presence::GivenUp || self.final_counters.is_some() && self.released_until() == self.next
    }

    /// Returns whether the source will not mention any other event.
    fn is_absent(&self) -> bool {
        self.presence == Presence::GivenUp || self.final_counters.is_some()
    }

    /// Returns the event index below which no fragments will come from the source other than those of admitted offers.
    pub(crate) fn known_until(&self) -> u64 {
        match self.parked.front() {
            Some(ticket) => ticket.first,
            None if self.is_absent() => NO_EVENT,
            None => self.offered_until,
        }
    }

    /// Returns the index of the first event that must be opened for the source and that has not been admitted. Dropped
    /// fragments open no event.
    pub(crate) fn first_mention(&self) -> Option<u64> {
        let lost = self.first_lost_range().map(|events| events.start);
        let parked = self.parked.front().map(|ticket| ticket.first);
        lost.into_iter().chain(parked).min()
    }

    /// Returns the index of the first event that the source may yet mention or deliver.
    pub(crate) fn next_mention(&self) -> u64 {
        let silent = if self.is_absent() { NO_EVENT } else { self.offered_until };
        self.first_mention().unwrap_or(silent)
    }

    pub(crate) fn wake_conditions(&self, open_events: u64) -> Due {
        let here = self.presence == Presence::Here;
        let known = self.known_until();
        let parked = self.parked.front().map(|ticket| ticket.end_index().saturating_sub(open_events));
        let lost = self.first_lost_range().filter(|events| events.start < known);
        let lost = lost.map(|events| (events.start + 1).saturating_sub(open_events));
        Due {
            next: self.front_ticket().filter(|_| here).map_or(NO_EVENT, |ticket| ticket.first),
            base: parked.into_iter().chain(lost).min().unwrap_or(NO_EVENT),
            end: if known > self.admitted { self.admitted } else { NO_EVENT },
            disconnected_since: match self.presence {
                Presence::Gone(since) if !self.is_settled() => Some(since),
                _ => None,
            },
        }
    }

    /// Returns the first range of events that have not been admitted and whose fragments were lost.
    pub(crate) fn first_lost_range(&self) -> Option<Range<u64>> {
        if self.lost_until <= self.admitted {
            return None;
        }
        let lost =
            self.known_missing.iter().find(|gap| gap.cause == KnownMissing::Lost && gap.events.end > self.admitted);
        lost.map(|gap| gap.events.start.max(self.admitted)..gap.events.end)
    }

    /// Answers the open events below `until` for which no offer of the source has been admitted: nothing will come.
    pub(crate) fn answer_silent_events(&mut self, events: &mut OpenEvents, until: u64, source: usize) {
        let from = self.admitted.max(events.first_open_index());
        self.admitted = self.admitted.max(until);
        if from < until {
            let mut at = self.known_missing.partition_point(|gap| gap.events.end <= from);
            for index in from..until {
                while self.known_missing.get(at).is_some_and(|gap| gap.events.end <= index) {
                    at += 1;
                }
                let reason = match self.known_missing.get(at).filter(|gap| gap.events.start <= index) {
                    Some(gap) => gap.cause.missing_reason(),
                    None if index < self.offered_until => Reason::Skipped,
                    None => Reason::Silent(Status::empty()),
                };
                events.mark_missing(index, source, reason);
            }
        }
        let settled = self.admitted.min(events.closed_until());
        while self.known_missing.front().is_some_and(|gap| gap.events.end <= settled) {
            self.known_missing.pop_front();
        }
    }

    /// Marks mentioned fragments as not to come. Events that have been admitted are answered now, the others when they
    /// are admitted.
    pub(crate) fn mark_missing(
        &mut self,
        events: &mut OpenEvents,
        range: Range<u64>,
        cause: KnownMissing,
        source: usize,
    ) {
        if range.is_empty() {
            return;
        }
        let count = self.mark_decided(range.clone());
        let bucket = self.ledger_bucket(cause);
        *bucket = bucket.saturating_add(count);
        for index in range.start.max(events.first_open_index())..range.end.min(self.admitted).min(events.end_index()) {
            events.mark_missing(index, source, cause.missing_reason());
        }
        if cause == KnownMissing::Lost {
            self.lost_until = self.lost_until.max(range.end.min(events.stop_index()));
        }
        self.insert_gap(Gap { events: range, count, cause });
    }

    fn ledger_bucket(&mut self, cause: KnownMissing) -> &mut u64 {
        match cause {
            KnownMissing::DroppedNewest => &mut self.ledger.dropped_newest,
            KnownMissing::DroppedOldest => &mut self.ledger.dropped_oldest,
            KnownMissing::LostInDevice => &mut self.ledger.lost_in_device,
            KnownMissing::Lost => &mut self.ledger.lost,
        }
    }

    /// Stores a range of fragments that will not come.
    fn insert_gap(&mut self, gap: Gap) {
        let full = self.known_missing.len() >= Self::MAX_KNOWN_MISSING;
        let at = self.known_missing.partition_point(|other| other.events.start < gap.events.start);
        if let Some(before) = at.checked_sub(1).and_then(|before| self.known_missing.get_mut(before)) {
            let is_next = before.events.end >= gap.events.start && before.cause == gap.cause;
            // If there are very many drops, those that follow each other are merged.
            if is_next || full && before.cause != KnownMissing::Lost && gap.cause != KnownMissing::Lost {
                before.events.end = before.events.end.max(gap.events.end);
                before.count = before.count.saturating_add(gap.count);
                return;
            }
        }
        self.known_missing.insert(at, gap);
    }

    /// Ends the run before event `stop`: fragments mentioned from there on count as beyond the end, whatever became of
    /// them.
    pub(crate) fn end_before(&mut self, stop: u64) {
        let mut beyond = 0;
        for ticket in &mut self.held {
            ticket.cut_before(stop);
        }
        let on_the_way = [&mut self.parked, &mut self.undecided, &mut self.ready, &mut self.fetching];
        let mut queues = on_the_way.map(std::mem::take);
        for ticket in queues.iter_mut().flatten() {
            beyond += self.mark_decided(ticket.cut_before(stop));
        }
        [self.parked, self.undecided, self.ready, self.fetching] = queues;
        // Tickets that are being fetched are fetched to their end. Other tickets without events are released at once.
        for queue in [&mut self.parked, &mut self.undecided, &mut self.ready, &mut self.held] {
            queue.retain(|ticket| ticket.count > 0);
        }

        let pieces = self.pieces.split_off(&stop);
        beyond += pieces.values().filter(|pieces| !pieces.decided).count() as u64;
        self.ledger.beyond_end = self.ledger.beyond_end.saturating_add(beyond);
        self.mark_beyond_end(stop);
        // Tickets that wait for a decision are admitted anew.
        while let Some(ticket) = self.undecided.pop_back() {
            self.parked.push_front(Ticket { undecided: 0, ..ticket });
        }
    }

    /// Moves fragments that will not come, of events from `stop` on, to the bucket of those beyond the end.
    fn mark_beyond_end(&mut self, stop: u64) {
        let mut gaps = std::mem::take(&mut self.known_missing);
        for gap in gaps.iter_mut().filter(|gap| gap.events.end > stop) {
            let count = gap.count.min(gap.events.end - gap.events.start.max(stop));
            gap.events.end = stop.max(gap.events.start);
            gap.count -= count;
            let bucket = self.ledger_bucket(gap.cause);
            *bucket = bucket.saturating_sub(count);
            self.ledger.beyond_end = self.ledger.beyond_end.saturating_add(count);
        }
        gaps.retain(|gap| !gap.events.is_empty());
        self.known_missing = gaps;
        self.lost_until = self.lost_until.min(stop);
    }

    /// Marks these fragments as being in a bucket; returns the number of those that were not in one before.
    pub(crate) fn mark_decided(&mut self, range: Range<u64>) -> u64 {
        let mut undecided = range.end - range.start;
        if !self.rejected.is_empty() {
            undecided -= self.rejected.range(range.clone()).count() as u64;
        }
        if !self.pieces.is_empty() {
            for (index, pieces) in self.pieces.range_mut(range) {
                undecided -= u64::from(pieces.decided && !self.rejected.contains(index));
                pieces.decided = true;
            }
        }
        undecided
    }

    /// Returns whether the fragment is in a bucket though more of it comes.
    pub(crate) fn is_decided(&self, index: u64) -> bool {
        !self.pieces.is_empty() && self.pieces.get(&index).is_some_and(|pieces| pieces.decided)
    }

    /// Returns whether several tickets are known to hold this fragment.
    pub(crate) fn is_in_pieces(&self, index: u64) -> bool {
        !self.pieces.is_empty() && self.pieces.contains_key(&index)
    }

    /// Notes that a further ticket was offered for a fragment.
    pub(crate) fn begin_pieces(&mut self, index: u64) {
        let decided = !self.is_on_the_way(index) || self.rejected.contains(&index);
        self.pieces.entry(index).or_insert_with(|| Pieces { arrived: IntervalMap::new(), total: None, decided });
    }

    /// Takes one of several pieces of a fragment that is not in a bucket.
    pub(crate) fn accept_piece(&mut self, index: u64, header: &FragmentHeader) -> Piece {
        let pieces = self.pieces.entry(index).or_insert_with(|| Pieces {
            arrived: IntervalMap::new(),
            total: None,
            decided: false,
        });
        let total = *pieces.total.get_or_insert(header.total_length);
        if total != header.total_length {
            return Piece::Contradicts;
        }
        let range = u64::from(header.offset)..u64::from(header.offset) + u64::from(header.piece_length);
        if pieces.arrived.ranges().len() >= MAX_GAPS {
            return Piece::Contradicts;
        }
        if range.is_empty() || pieces.arrived.overlaps(&range) {
            return Piece::Repeated;
        }
        pieces.arrived.insert(range);
        if pieces.arrived.covered_count() < u64::from(total) {
            return Piece::New;
        }
        pieces.decided = true;
        Piece::Last
    }

    /// Marks fragments in this range as damaged if pieces are missing and no more will come. Fragments of events below
    /// `expired` are not waited for if the source has gone silent.
    pub(crate) fn settle_pieces(&mut self, events: &mut OpenEvents, range: Range<u64>, expired: u64, source: usize) {
        if self.pieces.is_empty() || range.is_empty() {
            return;
        }
        let settled: Vec<u64> = self.pieces.range(range).map(|(index, _)| *index).collect();
        for index in settled {
            let more_may_come = index + 1 == self.offered_until && !self.is_absent();
            if self.is_on_the_way(index) || more_may_come && index >= expired {
                continue;
            }
            let Some(pieces) = self.pieces.get_mut(&index) else { continue };
            if !std::mem::replace(&mut pieces.decided, true) {
                let (bucket, status) = match more_may_come {
                    true => (&mut self.ledger.late, Status::TIMED_OUT),
                    false => (&mut self.ledger.corrupt, Status::CORRUPT),
                };
                *bucket += 1;
                events.mark_missing(index, source, Reason::Spoilt(status));
            }
            if !more_may_come {
                self.pieces.remove(&index);
            }
        }
    }

    /// Settles the fragment that was mentioned last, and the one that was last at the previous call: all others only
    /// change as their pieces arrive.
    pub(crate) fn settle_last_piece(&mut self, events: &mut OpenEvents, expired: u64, source: usize) {
        let last = self.offered_until.saturating_sub(1);
        let before = std::mem::replace(&mut self.last_settled, last);
        self.settle_pieces(events, before..before + 1, expired, source);
        if last != before {
            self.settle_pieces(events, last..self.offered_until, expired, source);
        }
    }

    /// Returns whether a ticket that has not arrived covers this event. Tickets are in the order of their events, and
    /// arrive in that order, except for repeated fetches.
    fn is_on_the_way(&self, index: u64) -> bool {
        self.queues_on_the_way().into_iter().any(|queue| {
            let end = queue.partition_point(|ticket| ticket.first <= index);
            let mut covering =
                queue.range(..end).rev().take_while(|ticket| ticket.first == index || ticket.end_index() > index);
            covering.any(|ticket| ticket.event_indices().contains(&index))
        })
    }

    /// Counts the fragments of a ticket that no event waits for any longer, and that is not worth a fetch.
    pub(crate) fn release_unfetched(&mut self, events: &mut OpenEvents, ticket: &Ticket, source: usize) {
        let before = self.ledger.rejected;
        for index in ticket.event_indices() {
            self.count_unwanted(events, index, source);
        }
        if self.ledger.rejected > before || self.rejected.range(ticket.event_indices()).next().is_some() {
            self.unasked += u64::from(ticket.offer.bytes);
        }
    }

    /// Counts a fragment as rejected though others in its slot may not be. Its event does not wait for the slot: the
    /// slot's fate depends on later events, which may be waiting for this one.
    pub(crate) fn reject_ahead(&mut self, events: &mut OpenEvents, index: u64, source: usize) {
        if events.answer_of(index, source) == Answer::Rejected {
            self.count_unwanted(events, index, source);
            self.rejected.insert(index);
        }
    }

    /// Counts a fragment that its event does not wait for: it came too late, or its event was rejected.
    #[cold]
    pub(crate) fn count_unwanted(&mut self, events: &mut OpenEvents, index: u64, source: usize) {
        let count = self.mark_decided(index..index + 1);
        if events.answer_of(index, source) == Answer::Rejected {
            self.ledger.rejected += count;
            events.mark_missing(index, source, Reason::Spoilt(Status::empty()));
        } else {
            self.ledger.late += count;
        }
    }

    /// Returns whether a whole fragment of this event had arrived before, as far as is known.
    pub(crate) fn has_built(&self, index: u64) -> bool {
        self.last_built == Some(index)
    }

    /// Counts a fragment that has arrived.
    pub(crate) fn count_built(&mut self, index: u64, header: &FragmentHeader) {
        self.mark_decided(index..index + 1);
        self.last_built = Some(index);
        self.built += 1;
        self.ledger.bytes = self.ledger.bytes.saturating_add(u64::from(header.total_length));
        self.ledger.empty += u64::from(header.status.contains(Status::EMPTY));
        self.ledger.damaged += u64::from(header.status.intersects(Status::CORRUPT | Status::TRUNCATED));
        self.ledger.uncertain += u64::from(header.status.contains(Status::UNCERTAIN));
    }

    /// Counts a built fragment as rejected.
    pub(crate) fn count_rejected(&mut self) {
        self.unbuilt += 1;
        self.ledger.rejected += 1;
    }

    /// Counts a built fragment as beyond the end of the run.
    pub(crate) fn count_beyond_end(&mut self) {
        self.unbuilt += 1;
        self.ledger.beyond_end += 1;
    }

    /// Counts a built fragment as lost: its event will not be closed.
    pub(crate) fn count_lost(&mut self) {
        self.unbuilt += 1;
        self.ledger.lost += 1;
    }

    /// Counts a record that cannot be used.
    pub(crate) fn count_damaged(&mut self, events: &mut OpenEvents, index: u64, source: usize) {
        if events.answer_of(index, source) == Answer::Present {
            self.ledger.duplicates += 1;
            return;
        }
        self.ledger.corrupt += self.mark_decided(index..index + 1);
        events.mark_missing(index, source, Reason::Spoilt(Status::CORRUPT));
    }

    /// Returns the open ticket with this number.
    pub(crate) fn open_ticket_mut(&mut self, number: u64) -> Option<&mut Ticket> {
        let queues = [&mut self.held, &mut self.fetching, &mut self.ready, &mut self.undecided, &mut self.parked];
        queues.into_iter().find_map(|queue| ticket_position(queue, number).map(|at| &mut queue[at]))
    }

    /// Removes a ticket that has not arrived. Returns it, and true if it was being fetched.
    pub(crate) fn withdraw_ticket(&mut self, number: u64) -> Option<(Ticket, bool)> {
        if let Some(at) = ticket_position(&self.fetching, number) {
            self.begun = self.begun.filter(|begun| *begun != number);
            return self.fetching.remove(at).map(|ticket| (ticket, true));
        }
        let queues = [&mut self.ready, &mut self.undecided, &mut self.parked];
        queues
            .into_iter()
            .find_map(|queue| ticket_position(queue, number).and_then(|at| queue.remove(at)))
            .map(|ticket| (ticket, false))
    }
}

/// Returns the position in a queue of the ticket with this number.
pub(crate) fn ticket_position(queue: &VecDeque<Ticket>, number: u64) -> Option<usize> {
    queue.binary_search_by_key(&number, |ticket| ticket.offer.ticket).ok()
}

/// Inserts a ticket at the position of its number.
pub(crate) fn insert_ticket(queue: &mut VecDeque<Ticket>, ticket: Ticket) {
    let at = queue.partition_point(|other| other.offer.ticket < ticket.offer.ticket);
    queue.insert(at, ticket);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_come_is_kept_in_few_words() {
        let (mut source, mut events) = (Source::new("1.0".into(), "s".into(), 0), OpenEvents::new(0, 8, 1, &[]));
        source.offered_until = NO_EVENT;
        for first in 0..1000 {
            source.mark_missing(&mut events, 10 * first..10 * first + 10, KnownMissing::DroppedNewest, 0);
        }
        assert_eq!(source.known_missing.len(), 1);
        // With gaps between them, which have another meaning, as long as there are not very many.
        for first in 1001..5000 {
            source.mark_missing(&mut events, 10 * first..10 * first + 9, KnownMissing::DroppedOldest, 0);
        }
        assert_eq!(source.known_missing.len(), Source::MAX_KNOWN_MISSING);
        assert_eq!(source.known_missing.back().map(|gap| gap.events.end), Some(49_999));
        assert_eq!(source.first_mention(), None, "no event is opened for what was dropped");
        // A run that ends among ranges that are kept apart counts them exactly.
        source.end_before(10_015);
        let books = &source.ledger;
        assert_eq!((books.dropped_newest, books.dropped_oldest, books.beyond_end), (10_000, 5, 4 + 9 * 3998));
    }
}
