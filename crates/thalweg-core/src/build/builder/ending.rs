//! The end of a run, and the handling of events from there on.

use super::{Builder, share_index};
use std::time::Duration;
use thalweg_wire::EventId;

impl Builder {
    /// Ends the run before event `end`, whatever was offered: events from there on are not built, and their fragments
    /// count as `beyond_end`. A further call can only lower the end, and never below
    /// [`closed_until`](Self::closed_until). Returns the end of the run that is now valid.
    pub fn end_before(&mut self, end: EventId, now: Duration) -> EventId {
        self.advance_clock(now);
        let end = end.max(self.closed_until());
        if end >= self.end {
            return self.end;
        }
        self.end = end;
        let stop = share_index(end, &self.config);
        let Self { events, sources, .. } = self;
        events.end_before(stop, |source| sources[source].count_beyond_end());
        for entry in sources {
            entry.end_before(stop);
        }
        for source in 0..self.sources.len() {
            self.admit_offers(source);
        }
        self.admit_all_offers();
        end
    }

    /// Returns the number after the highest event that was closed, or that a trigger level has decided on; the first
    /// event of the run if there is none. The run cannot end before this event.
    pub fn closed_until(&self) -> EventId {
        match self.events.closed_until() {
            until if until <= share_index(self.config.first, &self.config) => self.config.first,
            until => EventId(self.event_of_index(until - 1).0.saturating_add(1)),
        }
    }

    /// Returns the first event of this builder's share that a source has not mentioned.
    pub fn offered_until(&self, source: usize) -> EventId {
        self.event_of_index(self.sources[source].offered_until)
    }

    /// Ends the run at once. No further event is closed; fragments of open events, offered or delivered, are lost, and
    /// every source is given up. Closed events are still to be taken; then the run [is finished](Self::is_finished).
    pub fn abandon_run(&mut self, now: Duration) {
        self.abandoned = true;
        let Self { events, sources, .. } = self;
        let stop = events.first_open_index();
        events.end_before(stop, |source| sources[source].count_lost());
        for entry in sources {
            entry.lost_until = entry.lost_until.min(stop);
        }
        for source in 0..self.sources.len() {
            self.lose_offers(source, now);
        }
        for source in 0..self.sources.len() {
            self.admit_offers(source);
        }
        self.admit_all_offers();
    }
}
