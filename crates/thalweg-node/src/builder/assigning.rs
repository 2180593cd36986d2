//! Assignment of events by room: reports this builder's room, and, if it leads, assigns events to builders.

use super::peers::Peers;
use super::setup::Setup;
use crate::LeftOutReport;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::build::{Builder, Ledger};
use thalweg_core::control::{AssignConfig, Assigner, HEARTBEAT_INTERVAL, Share};
use thalweg_link::LinkError;
use thalweg_wire::{Assign, EventId, Heard, Hello, Left, Message, Room, record_bytes};

/// Longest wait at a run's end for the sources' counts of builders that were left out.
const LEFT_OUT_COUNTS_TIME: Duration = Duration::from_secs(2);

/// Assignment of events by room, if the run uses it: the room that this builder announced, and, if it leads, the events
/// that each builder was given and the counts of those that were left out.
#[derive(Debug)]
pub(super) struct Assigning {
    /// True if events are assigned by room; nothing is done otherwise.
    is_on: bool,
    /// Assigner, if this builder leads.
    assigner: Option<Assigner>,
    /// Room that was announced last, and when.
    announced: Option<(Room, Duration)>,
    /// Counts of fragments that sources had for builders that were left out, by source and builder.
    counts: BTreeMap<(usize, u32), Left>,
    /// Time since which the run waits only for these counts.
    counts_awaited: Option<Duration>,
    /// True if these counts are not waited for any more.
    counts_given_up: bool,
}

impl Assigning {
    /// Distance between event numbers of this builder: 1, since it may get any event.
    pub(super) const EVENT_STRIDE: u32 = 1;

    /// Creates the state before a run. `leads`: configuration of the assigner, if this builder leads.
    pub(super) fn new(is_on: bool, leads: Option<&AssignConfig>) -> Self {
        Self {
            is_on,
            assigner: leads.filter(|_| is_on).map(Assigner::new),
            announced: None,
            counts: BTreeMap::new(),
            counts_awaited: None,
            counts_given_up: false,
        }
    }

    /// Returns whether events are assigned by room.
    pub(super) fn is_by_room(&self) -> bool {
        self.is_on
    }

    /// Returns the position of a source: the first event that it has not offered or reported as passed.
    pub(super) fn source_position(&self, source: usize, builder: &Builder) -> EventId {
        let offered = builder.offered_until(source);
        // A builder's share alone does not determine how far the source is.
        self.assigner.as_ref().map_or(offered, |assigner| assigner.source_position(source).max(offered))
    }

    /// Returns the first event that is not assigned, if this builder assigns events.
    pub(super) fn assigned_until(&self) -> Option<EventId> {
        self.assigner.as_ref().map(Assigner::assigned_until)
    }

    /// Records that a source is connected. `knows_none`: the run has not begun.
    pub(super) fn connect_source(&mut self, source: usize, hello: &Hello, max_records: u32, knows_none: bool) {
        let Some(assigner) = &mut self.assigner else { return };
        let longest = record_bytes(hello.max_payload as usize);
        let records = u32::try_from(hello.slot_bytes as usize / longest).unwrap_or(u32::MAX);
        assigner.source_connected(source, hello.slots, records.clamp(1, max_records.max(1)), knows_none);
    }

    /// Records that a connection is down.
    pub(super) fn disconnect_source(&mut self, source: usize) {
        self.assigner.iter_mut().for_each(|assigner| assigner.source_disconnected(source));
    }

    /// Records that a source accepts nothing more.
    pub(super) fn end_source(&mut self, source: usize) {
        self.assigner.iter_mut().for_each(|assigner| assigner.source_ended(source));
    }

    /// Ends the assignment before the event `end`.
    pub(super) fn end_before_event(&mut self, end: EventId) {
        self.assigner.iter_mut().for_each(|assigner| assigner.end_before(end));
    }

    /// Handles a message of a builder that a source relays.
    pub(super) fn handle_relayed_room(&mut self, source: usize, relayed: &Heard) -> Result<(), LinkError> {
        let Some(assigner) = &mut self.assigner else { return Err(unexpected_message(&Message::Heard(*relayed))) };
        assigner.handle_report(source, relayed).map_err(|error| LinkError::Protocol(error.to_string()))
    }

    /// Handles a source's counts of fragments for a builder that was left out.
    pub(super) fn handle_left_out_counts(&mut self, source: usize, left: Left) -> Result<(), LinkError> {
        let Some(assigner) = &self.assigner else { return Err(unexpected_message(&Message::Left(left))) };
        if !assigner.left_out_builders().iter().any(|out| out.builder == left.builder) {
            return Err(LinkError::Protocol(format!("builder {} was not excluded", left.builder)));
        }
        self.counts.insert((source, left.builder), left);
        Ok(())
    }

    /// Checks a source's message that it has nothing more for events below `below`.
    pub(super) fn check_passed_events(&self, below: EventId, tickets: u64) -> Result<(), LinkError> {
        if !self.is_on {
            return Err(unexpected_message(&Message::Passed { below, tickets }));
        }
        if let Some(until) = self.assigned_until().filter(|until| below > *until) {
            let (below, until) = (below.0, until.0);
            return Err(LinkError::Protocol(format!(
                "reported progress past event {below}, but events from {until} on are not yet assigned"
            )));
        }
        Ok(())
    }

    /// Returns when the next announcement or assignment is due without an event, while a run is under way.
    pub(super) fn next_due_time(&self) -> Option<Duration> {
        let beat = self.announced.map(|(_, at)| at + HEARTBEAT_INTERVAL);
        beat.into_iter().chain(self.assigner.as_ref().map(Assigner::next_check_time)).min()
    }

    /// Returns the room of this builder, which is to be announced to all sources, if it has changed enough or is due.
    /// `free_bytes`: bytes in the free blocks.
    pub(super) fn announce_room(
        &mut self,
        setup: &Setup,
        builder: &Builder,
        peers: &Peers,
        free_bytes: u64,
        now: Duration,
    ) -> Option<Room> {
        let room = self.current_room(setup, builder, peers, free_bytes);
        if !self.is_worth_announcing(&room, builder, now) {
            return None;
        }
        self.announced = Some((room, now));
        Some(room)
    }

    /// Returns the room that was announced last, for a source that has connected since.
    pub(super) fn announced_room(&self) -> Option<Room> {
        self.announced.map(|(room, _)| room)
    }

    /// Returns this builder's room: as many events as its free blocks hold. Blocks that the disk has not taken are not
    /// free.
    fn current_room(&self, setup: &Setup, builder: &Builder, peers: &Peers, free_bytes: u64) -> Room {
        let (events, _) = builder.event_counts();
        let (bytes, _) = builder.progress_counts();
        // Before any event is built, the sum of one slot of each source counts as the size of an event.
        let event_bytes = bytes
            .checked_div(events)
            .unwrap_or_else(|| peers.source_greetings().map(|greeting| u64::from(greeting.slot_bytes)).sum())
            .max(1);
        let fitting = (free_bytes / event_bytes).max(u64::from(free_bytes > 0));
        let closed_below = builder.oldest_event();
        Room {
            builder: setup.index,
            closed_below: self.assigned_until().map_or(closed_below, |until| until.min(closed_below)),
            room: fitting.min(setup.config.open_events.into()),
            closed: events,
        }
    }

    /// Returns whether the room differs enough from the one announced last (an eighth of the open events was closed, or
    /// there is at least twice or at most half the room), or is due to be announced again.
    fn is_worth_announcing(&self, room: &Room, builder: &Builder, now: Duration) -> bool {
        let Some((announced, at)) = self.announced else { return true };
        let closed = room.closed_below.0.saturating_sub(announced.closed_below.0);
        let (more, less) = (room.room.max(announced.room), room.room.min(announced.room));
        closed > 0 && closed >= builder.open_event_count() / 8
            || more > 0 && more / 2 >= less
            || now >= at + HEARTBEAT_INTERVAL
    }

    /// Advances the time: assigns events, and leaves builders out that are silent.
    pub(super) fn advance_time(&mut self, now: Duration) {
        self.assigner.iter_mut().for_each(|assigner| assigner.advance_time(now));
    }

    /// Returns the next message about assignments that a source has not been sent.
    pub(super) fn next_assignment_message(&mut self, source: usize) -> Option<Message> {
        Some(match self.assigner.as_mut()?.next_share(source)? {
            Share::Assign(assign) => Message::Assign(assign),
            Share::LeaveOut(builder) => Message::LeaveOut { builder },
        })
    }

    /// Returns whether all other builders are done with all connected sources, or are left out.
    pub(super) fn others_are_done(&self, builder: &Builder, peers: &Peers) -> bool {
        let Some(assigner) = &self.assigner else { return true };
        (0..builder.config().sources.len()).all(|source| {
            let is_done = peers.connection_number(source).is_none() || assigner.is_source_done(source);
            peers.is_dismissed(source) || is_done && self.knows_left_out_counts(source, builder)
        })
    }

    /// Returns whether the other builders are done with a source: until then this builder tells it who was left out,
    /// and it answers.
    pub(super) fn is_done_elsewhere(&self, source: usize, builder: &Builder) -> bool {
        self.assigner.as_ref().is_none_or(|assigner| assigner.is_source_done(source))
            && self.knows_left_out_counts(source, builder)
    }

    /// Returns whether a source's counts for the builders that were left out are known, or will not come any more.
    fn knows_left_out_counts(&self, source: usize, builder: &Builder) -> bool {
        let Some(assigner) = &self.assigner else { return true };
        self.counts_given_up
            || builder.is_given_up(source)
            || assigner.left_out_builders().iter().all(|out| self.counts.contains_key(&(source, out.builder)))
    }

    /// Stops waiting for the sources' counts for builders that were left out.
    pub(super) fn give_up_left_out_counts(&mut self) {
        self.counts_given_up = true;
    }

    /// Stops waiting for these counts, if the run has waited for nothing else for too long. Returns the reason why the
    /// run is incomplete, if so.
    pub(super) fn await_left_out_counts(
        &mut self,
        setup: &Setup,
        builder: &Builder,
        peers: &Peers,
        now: Duration,
    ) -> Option<String> {
        if self.assigner.as_ref()?.left_out_builders().is_empty() || !builder.is_finished() {
            return None;
        }
        let silent = setup
            .ids
            .iter()
            .enumerate()
            .filter(|(source, _)| !peers.is_dismissed(*source) && !self.knows_left_out_counts(*source, builder));
        let silent: Vec<&str> = silent.map(|(_, (_, name))| name.as_str()).collect();
        if silent.is_empty() || now < *self.counts_awaited.get_or_insert(now) + LEFT_OUT_COUNTS_TIME {
            return None;
        }
        self.give_up_left_out_counts();
        let (time, silent) = (humantime::format_duration(LEFT_OUT_COUNTS_TIME), silent.join(", "));
        Some(format!("these sources did not report within {time} their fragments for excluded builders: {silent}"))
    }

    /// Enters into the final counters what was not delivered to builders that were left out, and returns a report of
    /// each.
    pub(super) fn account_for_left_out(&self, mut ledger: Ledger) -> (Ledger, Vec<LeftOutReport>) {
        let Some(assigner) = &self.assigner else { return (ledger, Vec::new()) };
        let mut reports = Vec::new();
        for out in assigner.left_out_builders() {
            let (mut delivered, mut lost) = (0u64, 0u64);
            for (source, entry) in ledger.sources.iter_mut().enumerate() {
                let Some(counts) = self.counts.get(&(source, out.builder)) else { continue };
                // At most the events assigned to it can have been for it.
                let mut rest = counts.accepted.min(out.assigned);
                let buckets = [
                    (&mut entry.dropped_newest, counts.dropped_newest),
                    (&mut entry.dropped_oldest, counts.dropped_oldest),
                    (&mut entry.lost_in_device, counts.lost_in_device),
                ];
                for (bucket, count) in buckets {
                    let count = count.min(rest);
                    rest -= count;
                    *bucket = bucket.saturating_add(count);
                    entry.accepted = entry.accepted.saturating_add(count);
                }
                let lost_here = counts.lost.min(rest);
                entry.lost = entry.lost.saturating_add(lost_here);
                entry.accepted = entry.accepted.saturating_add(lost_here);
                lost = lost.saturating_add(lost_here);
                delivered = delivered.saturating_add(rest - lost_here);
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
        (ledger.into_balanced(), reports)
    }
}

fn unexpected_message(message: &Message) -> LinkError {
    LinkError::Protocol(format!("unexpected: {message:?}"))
}

/// Returns the reasons why a run in which builders were left out is incomplete.
pub(super) fn left_out_reasons(left_out: &[LeftOutReport]) -> impl Iterator<Item = String> {
    left_out.iter().map(|left| {
        let LeftOutReport { builder, at_event, closed, delivered, lost, .. } = left;
        let open: u64 = left.events.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        format!(
            "builder {builder} died, hung or was disconnected, and got no events from {at_event} on: of its events \
             {closed} were closed and {open} were not; {delivered} fragments were delivered to it, {lost} are lost"
        )
    })
}
