//! Where a run ends, and what becomes of the events from there on.

use super::{Builder, share_index};
use std::time::Duration;
use thalweg_wire::EventId;

impl Builder {
    /// The run ends in front of event `end`, whatever was offered: events from there on are not built, and their
    /// fragments count as `beyond_end`. Said again it may only lower the end, and never below
    /// [`closed_until`](Self::closed_until). Returns where the run ends now.
    pub fn end_at(&mut self, end: EventId, now: Duration) -> EventId {
        self.advance(now);
        let end = end.max(self.closed_until());
        if end >= self.end {
            return self.end;
        }
        self.end = end;
        let stop = share_index(end, &self.config);
        let Self { events, sources, .. } = self;
        events.end_at(stop, |source| sources[source].unbuild_beyond());
        for entry in sources {
            entry.end_at(stop);
        }
        for source in 0..self.sources.len() {
            self.admit_offers(source);
        }
        self.admit_all_offers();
        end
    }

    /// One past the highest event that was closed, or that a trigger level has decided on; the first of the run where
    /// there is none. No end may lie in front of it.
    pub fn closed_until(&self) -> EventId {
        match self.events.closed_until() {
            until if until <= share_index(self.config.first, &self.config) => self.config.first,
            until => EventId(self.event(until - 1).0.saturating_add(1)),
        }
    }

    /// The first event of this builder's share that a source has not mentioned.
    pub fn offered_until(&self, source: usize) -> EventId {
        self.event(self.sources[source].offered_until)
    }

    /// Everything ends now. No further event is closed; what sources had offered or sent of those that are open is
    /// lost, and every source is given up. What was closed is still to be taken; then the run [is
    /// finished](Self::is_finished).
    pub fn abandon(&mut self, now: Duration) {
        self.abandoned = true;
        let Self { events, sources, .. } = self;
        let stop = events.base();
        events.end_at(stop, |source| sources[source].unbuild_lost());
        for entry in sources {
            entry.lost_until = entry.lost_until.min(stop);
        }
        for source in 0..self.sources.len() {
            self.lose(source, now);
        }
        for source in 0..self.sources.len() {
            self.admit_offers(source);
        }
        self.admit_all_offers();
    }
}
