//! The trigger levels: the selection of events to build from those that the sources offer.

use super::Builder;
use crate::build::Missing;
use crate::build::events::Answer;
use crate::build::source;
use thalweg_wire::EventId;

/// Number of events that entered and passed each trigger level, and number of bytes that were never fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TriggerCounts {
    /// Events that the sources offered: those that level 1 accepted.
    pub level1: u64,
    /// Events of these that level 2 accepted; all of them without a level 2.
    pub level2: u64,
    /// Events of these that the event filter accepted; all of them without an event filter.
    pub filter: u64,
    /// Bytes, headers included, of slots that were released without a fetch because level 2 had rejected their events.
    pub unasked_bytes: u64,
}

impl Builder {
    /// Returns the next event for level 2 to decide on with [`decide_event`](Self::decide_event): all sources of level 2 have
    /// answered for it, with a fragment or by having none.
    pub fn next_decision(&mut self) -> Option<EventId> {
        self.events.next_decision().map(|index| self.event_of_index(index))
    }

    /// Applies level 2's decision on an event. If it accepts, the other sources are fetched from. Otherwise nothing
    /// more is fetched, and the event will not be among those [closed](Self::next_closed). A slot that holds fragments
    /// of several events is fetched if one of them is accepted.
    pub fn decide_event(&mut self, event: EventId, accept: bool) {
        let index = event.0 / u64::from(self.config.builders);
        if self.event_of_index(index) != event || !self.events.is_undecided(index) {
            return;
        }
        let Self { events, sources, .. } = self;
        if !accept {
            for (source, entry) in sources.iter_mut().enumerate() {
                if events.answer_of(index, source) == Answer::Present {
                    entry.count_rejected();
                }
            }
        }
        events.decide_event(index, accept);
        for source in 0..self.sources.len() {
            self.apply_decision(source, index);
        }
    }

    /// Applies the decision on an event to the tickets of a source that waited for it.
    fn apply_decision(&mut self, source: usize, index: u64) {
        let Self { events, sources, expired, .. } = self;
        let entry = &mut sources[source];
        let mut at = entry.undecided.partition_point(|ticket| ticket.end_index() <= index);
        let mut changed = false;
        while let Some(ticket) = entry.undecided.get_mut(at).filter(|ticket| ticket.first <= index) {
            ticket.undecided -= 1;
            let ticket = *ticket;
            if events.answer_of(index, source) == Answer::None {
                source::insert_ticket(&mut entry.ready, ticket);
            } else if ticket.undecided == 0 {
                entry.release_unfetched(events, &ticket, source);
            } else {
                entry.reject_ahead(events, index, source);
                at += 1;
                continue;
            }
            entry.undecided.remove(at);
            changed = true;
        }
        if !changed {
            return;
        }
        entry.settle_pieces(events, index..index + 1, *expired, source);
        self.renew_due(source);
    }

    /// Applies the event filter's rejection of an event that was [closed](Self::next_closed), with these sources
    /// missing.
    pub fn reject_closed(&mut self, missing: &[Missing]) {
        self.events.uncount_built(missing.is_empty());
        self.filtered += 1;
        for (source, entry) in self.sources.iter_mut().enumerate() {
            if missing.iter().all(|missing| missing.source != source) {
                entry.count_rejected();
            }
        }
    }

    /// Returns the counters of the trigger levels so far.
    pub fn trigger_counts(&self) -> TriggerCounts {
        let (filter, rejected) = (self.events.built_count(), self.events.rejected_count());
        let level2 = filter + self.filtered;
        let unasked_bytes = self.sources.iter().map(|entry| entry.unasked).sum();
        TriggerCounts { level1: level2 + rejected, level2, filter, unasked_bytes }
    }
}
