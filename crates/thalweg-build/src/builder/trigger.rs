//! The trigger levels: what is built of what the sources brought.

use super::Builder;
use crate::Missing;
use crate::events::Answer;
use crate::source::{self, Source};
use thalweg_wire::EventId;

/// How many events each trigger level was given and let through, and what was never asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Triggered {
    /// Events that the sources brought: what level 1 let through.
    pub level1: u64,
    /// Of these, accepted by level 2; all of them where there is none.
    pub level2: u64,
    /// Of these, accepted by the event filter; all of them where there is none.
    pub filter: u64,
    /// Bytes, headers included, of slots that were released without a fetch because level 2 had rejected their events.
    pub unasked_bytes: u64,
}

impl Builder {
    /// The next event that level 2 is to decide on, with [`decide`](Self::decide): all of its sources have answered,
    /// with a fragment or by having none.
    pub fn next_decision(&mut self) -> Option<EventId> {
        self.events.next_decision().map(|index| self.event(index))
    }

    /// Level 2 accepts an event, and the other sources are asked; or it does not, nothing more is asked, and the event
    /// will not be among those [closed](Self::next_closed). A slot that holds fragments of several events is fetched
    /// where one of them is accepted.
    pub fn decide(&mut self, event: EventId, accept: bool) {
        let index = event.0 / u64::from(self.config.builders);
        if self.event(index) != event || !self.events.is_undecided(index) {
            return;
        }
        let Self { events, sources, .. } = self;
        if !accept {
            let here = |(source, _): &(usize, &mut Source)| events.answer(index, *source) == Answer::Present;
            sources.iter_mut().enumerate().filter(here).for_each(|(_, entry)| entry.unbuild());
        }
        events.decide(index, accept);
        for source in 0..self.sources.len() {
            self.apply_decision(source, index);
        }
    }

    /// Looks at what of a source waited for the decision on an event.
    fn apply_decision(&mut self, source: usize, index: u64) {
        let Self { events, sources, expired, .. } = self;
        let entry = &mut sources[source];
        let mut at = entry.undecided.partition_point(|ticket| ticket.end() <= index);
        let mut news = false;
        while let Some(ticket) = entry.undecided.get_mut(at).filter(|ticket| ticket.first <= index) {
            ticket.undecided -= 1;
            let ticket = *ticket;
            if events.answer(index, source) == Answer::None {
                source::insert(&mut entry.ready, ticket);
            } else if ticket.undecided == 0 {
                entry.let_go(events, &ticket, source);
            } else {
                entry.reject_ahead(events, index, source);
                at += 1;
                continue;
            }
            entry.undecided.remove(at);
            news = true;
        }
        if !news {
            return;
        }
        entry.settle_pieces(events, index..index + 1, *expired, source);
        self.renew(source);
    }

    /// The event filter rejects an event that was [closed](Self::next_closed), with these sources missing.
    pub fn reject(&mut self, missing: &[Missing]) {
        self.events.unbuild(missing.is_empty());
        self.filtered += 1;
        for (source, entry) in self.sources.iter_mut().enumerate() {
            if missing.iter().all(|missing| missing.source != source) {
                entry.unbuild();
            }
        }
    }

    /// What the trigger levels did so far.
    pub fn triggered(&self) -> Triggered {
        let (filter, rejected) = (self.events.built(), self.events.rejected());
        let level2 = filter + self.filtered;
        let unasked_bytes = self.sources.iter().map(|entry| entry.unasked).sum();
        Triggered { level1: level2 + rejected, level2, filter, unasked_bytes }
    }
}
