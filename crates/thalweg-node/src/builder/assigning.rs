//! Assignment of events by room: reports this builder's room, and, if it leads, assigns events to builders.

use super::BuilderNode;
use crate::LeftOutReport;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::build::Ledger;
use thalweg_core::control::{AssignConfig, Assigner, HEARTBEAT_INTERVAL, Share};
use thalweg_link::LinkError;
use thalweg_wire::{Assign, EventId, Heard, Hello, Left, MAX_RECORDS, Message, Room, record_len};

/// Longest wait at a run's end for the sources' counts of builders that were left out.
const LEFT_TIME: Duration = Duration::from_secs(2);

/// State of the assignment of events by room.
#[derive(Debug)]
pub(super) struct Assigning {
    /// Assigner, if this builder leads.
    assigner: Option<Assigner>,
    /// Room that was announced last, and when.
    said: Option<(Room, Duration)>,
    /// Counts of fragments that sources had for builders that were left out, by source and builder.
    left: BTreeMap<(usize, u32), Left>,
    /// Time since which the run waits only for these counts.
    left_awaited: Option<Duration>,
    /// True if these counts are not waited for any more.
    left_given_up: bool,
}

impl Assigning {
    pub(super) fn new(leads: Option<&AssignConfig>) -> Self {
        let assigner = leads.map(Assigner::new);
        Self { assigner, said: None, left: BTreeMap::new(), left_awaited: None, left_given_up: false }
    }

    /// Returns the assigner, which knows the positions of sources for run control, if this builder leads.
    pub(super) fn assigner(&self) -> Option<&Assigner> {
        self.assigner.as_ref()
    }

    /// Distance between event numbers of this builder: 1, since it may get any event.
    pub(super) const STRIDE: u32 = 1;
}

impl BuilderNode {
    fn assigner_mut(&mut self) -> Option<&mut Assigner> {
        self.assigning.as_mut().and_then(|assigning| assigning.assigner.as_mut())
    }

    /// Records that a source is connected.
    pub(super) fn assign_to(&mut self, source: usize, hello: &Hello) {
        let most = self.config.open_events.min(MAX_RECORDS);
        let longest = record_len(hello.max_payload as usize);
        let records = u32::try_from(hello.slot_bytes as usize / longest).unwrap_or(u32::MAX).clamp(1, most.max(1));
        let begun = self.has_begun();
        if let Some(assigner) = self.assigner_mut() {
            assigner.greeted(source, hello.slots, records, !begun);
        }
    }

    /// Records that a connection is down.
    pub(super) fn assign_without(&mut self, source: usize) {
        self.assigner_mut().into_iter().for_each(|assigner| assigner.left(source));
    }

    /// Records that a source accepts nothing more.
    pub(super) fn assign_no_more_to(&mut self, source: usize) {
        self.assigner_mut().into_iter().for_each(|assigner| assigner.ended(source));
    }

    /// Ends the assignment before the event `end`.
    pub(super) fn assign_until(&mut self, end: EventId) {
        self.assigner_mut().into_iter().for_each(|assigner| assigner.end_at(end));
    }

    /// Handles a message of a builder that a source relays.
    pub(super) fn heard(&mut self, source: usize, heard: &Heard) -> Result<(), LinkError> {
        let Some(assigner) = self.assigner_mut() else { return Err(unexpected(&Message::Heard(*heard))) };
        assigner.heard(source, heard).map_err(|error| LinkError::Protocol(error.to_string()))
    }

    /// Handles a source's counts of fragments for a builder that was left out.
    pub(super) fn heard_left(&mut self, source: usize, left: Left) -> Result<(), LinkError> {
        let Some(Assigning { assigner: Some(assigner), left: known, .. }) = &mut self.assigning else {
            return Err(unexpected(&Message::Left(left)));
        };
        if !assigner.left_out().iter().any(|out| out.builder == left.builder) {
            return Err(LinkError::Protocol(format!("builder {} was not left out", left.builder)));
        }
        known.insert((source, left.builder), left);
        Ok(())
    }

    /// Handles a source's message that it has nothing more for events below `below`.
    pub(super) fn passed(&mut self, source: usize, below: EventId, tickets: u64) -> Result<(), LinkError> {
        let Some(assigning) = &self.assigning else { return Err(unexpected(&Message::Passed { below, tickets })) };
        if let Some(until) = assigning.assigner().map(Assigner::until).filter(|until| below > *until) {
            let (below, until) = (below.0, until.0);
            return Err(LinkError::Protocol(format!(
                "passed event {below}, and those from {until} on are not assigned"
            )));
        }
        self.builder.passed(source, below, tickets, self.clock.now());
        Ok(())
    }

    /// Returns when the next announcement or assignment is due without an event.
    pub(super) fn next_word(&self) -> Option<Duration> {
        let assigning = self.assigning.as_ref().filter(|_| self.has_begun())?;
        let beat = assigning.said.map(|(_, at)| at + HEARTBEAT_INTERVAL);
        beat.into_iter().chain(assigning.assigner().map(Assigner::next_time)).min()
    }

    /// Announces this builder's room, if it has changed enough or is due; and assigns events, if this builder leads.
    pub(super) fn assign(&mut self) {
        if self.assigning.is_none() || !self.has_begun() {
            return;
        }
        let now = self.clock.now();
        let room = self.room();
        let moves = self.moves(&room, now);
        if let Some(assigning) = self.assigning.as_mut().filter(|_| moves) {
            assigning.said = Some((room, now));
            (0..self.sources.len()).for_each(|source| self.say_room(source));
        }
        let Some(mut assigner) = self.assigning.as_mut().and_then(|assigning| assigning.assigner.take()) else {
            return;
        };
        assigner.time(now);
        for source in 0..self.sources.len() {
            while let Some(share) = assigner.next_share(source) {
                let message = match share {
                    Share::Assign(assign) => Message::Assign(assign),
                    Share::LeaveOut(builder) => Message::LeaveOut { builder },
                };
                if let Some(link) = self.sources[source].connection.and_then(|at| self.endpoints.link_mut(at)) {
                    link.send(&message);
                }
            }
        }
        if let Some(assigning) = &mut self.assigning {
            assigning.assigner = Some(assigner);
        }
    }

    /// Sends a source the room that was announced last.
    pub(super) fn say_room(&mut self, source: usize) {
        let Some((room, _)) = self.assigning.as_ref().and_then(|assigning| assigning.said) else { return };
        if let Some(link) = self.sources[source].connection.and_then(|at| self.endpoints.link_mut(at)) {
            link.send(&Message::Room(room));
        }
    }

    /// Returns this builder's room: as many events as its free blocks hold. Blocks that the disk has not taken are not
    /// free.
    fn room(&self) -> Room {
        let (events, _) = self.builder.counts();
        let (bytes, _) = self.builder.progress_counts();
        // Before any event is built, the sum of one slot of each source counts as the size of an event.
        let longest = || self.sources.iter().map(|source| u64::from(source.slot_bytes)).sum();
        let each = bytes.checked_div(events).unwrap_or_else(longest).max(1);
        let free = self.blocks.free_bytes();
        let fitting = (free / each).max(u64::from(free > 0));
        let closed_below = self.builder.oldest_event();
        let until = self.assigning.as_ref().and_then(Assigning::assigner).map(Assigner::until);
        Room {
            builder: self.index,
            closed_below: until.map_or(closed_below, |until| until.min(closed_below)),
            room: fitting.min(self.config.open_events.into()),
            closed: events,
        }
    }

    /// Returns whether the room differs enough from the one announced last (an eighth of the open events was closed, or
    /// there is at least twice or at most half the room), or is due to be announced again.
    fn moves(&self, room: &Room, now: Duration) -> bool {
        let Some((said, at)) = self.assigning.as_ref().and_then(|assigning| assigning.said) else { return true };
        let closed = room.closed_below.0.saturating_sub(said.closed_below.0);
        let (more, less) = (room.room.max(said.room), room.room.min(said.room));
        closed > 0 && closed >= self.builder.open_events() / 8
            || more > 0 && more / 2 >= less
            || now >= at + HEARTBEAT_INTERVAL
    }

    /// Returns whether all other builders are done with all connected sources, or are left out.
    pub(super) fn others_are_done(&self) -> bool {
        let Some(assigner) = self.assigning.as_ref().and_then(Assigning::assigner) else { return true };
        self.sources.iter().enumerate().all(|(source, state)| {
            let is_done = state.connection.is_none() || assigner.is_done(source);
            state.dismissed || is_done && self.knows_left(source)
        })
    }

    /// Returns whether the other builders are done with a source: until then this builder tells it who was left out,
    /// and it answers.
    pub(super) fn is_done_elsewhere(&self, source: usize) -> bool {
        let Some(assigner) = self.assigning.as_ref().and_then(Assigning::assigner) else { return true };
        assigner.is_done(source) && self.knows_left(source)
    }

    /// Returns whether a source's counts for the builders that were left out are known, or will not come any more.
    fn knows_left(&self, source: usize) -> bool {
        let Some(Assigning { assigner: Some(assigner), left, left_given_up, .. }) = &self.assigning else {
            return true;
        };
        let mut left_out = assigner.left_out().iter();
        *left_given_up
            || self.builder.is_given_up(source)
            || left_out.all(|out| left.contains_key(&(source, out.builder)))
    }

    /// Stops waiting for the sources' counts for builders that were left out.
    pub(super) fn give_up_left(&mut self) {
        self.assigning.iter_mut().for_each(|assigning| assigning.left_given_up = true);
    }

    /// Stops waiting for these counts, if the run has waited for nothing else for too long.
    pub(super) fn await_left(&mut self, now: Duration) {
        if self.assigning.as_ref().and_then(Assigning::assigner).is_none_or(|assigner| assigner.left_out().is_empty())
            || !self.builder.is_finished()
        {
            return;
        }
        let is_silent = |source: &usize| !self.sources[*source].dismissed && !self.knows_left(*source);
        let silent: Vec<&str> =
            (0..self.sources.len()).filter(is_silent).map(|source| self.ids[source].1.as_str()).collect();
        let silent = silent.join(", ");
        let Some(assigning) = self.assigning.as_mut().filter(|_| !silent.is_empty()) else { return };
        if now >= *assigning.left_awaited.get_or_insert(now) + LEFT_TIME {
            self.give_up_left();
            let time = humantime::format_duration(LEFT_TIME);
            self.tally.reasons.push(format!(
                "these sources did not report within {time} what they had for builders that were left out: {silent}"
            ));
        }
    }
}

/// Enters into the final counters what was not delivered to builders that were left out, and returns a report of each.
pub(super) fn account_for_left_out(assigning: Option<&Assigning>, mut ledger: Ledger) -> (Ledger, Vec<LeftOutReport>) {
    let Some(Assigning { assigner: Some(assigner), left, .. }) = assigning else { return (ledger, Vec::new()) };
    let mut reports = Vec::new();
    for out in assigner.left_out() {
        let (mut delivered, mut lost) = (0u64, 0u64);
        for (source, entry) in ledger.sources.iter_mut().enumerate() {
            let Some(said) = left.get(&(source, out.builder)) else { continue };
            // At most the events assigned to it can have been for it.
            let mut rest = said.accepted.min(out.assigned);
            let mut take = |count: u64| {
                let count = count.min(rest);
                rest -= count;
                count
            };
            let buckets = [
                (&mut entry.dropped_newest, take(said.dropped_newest)),
                (&mut entry.dropped_oldest, take(said.dropped_oldest)),
                (&mut entry.lost_in_device, take(said.lost_in_device)),
                (&mut entry.lost, take(said.lost)),
            ];
            lost = lost.saturating_add(buckets[3].1);
            for (bucket, count) in buckets {
                *bucket = bucket.saturating_add(count);
                entry.accepted = entry.accepted.saturating_add(count);
            }
            delivered = delivered.saturating_add(rest);
        }
        reports.push(LeftOutReport {
            builder: out.builder,
            at_event: out.at.0,
            events: out.open.iter().map(|Assign { first, count, .. }| (first.0, *count)).collect(),
            closed: out.closed,
            delivered,
            lost,
        });
    }
    (ledger.balanced(), reports)
}

fn unexpected(message: &Message) -> LinkError {
    LinkError::Protocol(format!("unexpected: {message:?}"))
}

/// Returns the reasons why a run in which builders were left out is incomplete.
pub(super) fn why_left_out(left_out: &[LeftOutReport]) -> impl Iterator<Item = String> {
    left_out.iter().map(|left| {
        let LeftOutReport { builder, at_event, closed, delivered, lost, .. } = left;
        let open: u64 = left.events.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        format!(
            "builder {builder} died, hung or was cut off, and got no events from {at_event} on: of those it had been \
             given it had closed {closed} and not {open}; {delivered} fragments were delivered to it, {lost} are lost"
        )
    })
}
