//! Assignment of events to builders: by their numbers, or as builder 0 assigns them.

use super::{Phase, SourceNode};
use crate::{NodeError, Policy};
use std::collections::VecDeque;
use thalweg_core::control::HEARTBEAT_INTERVAL;
use thalweg_link::LinkError;
use thalweg_wire::{Assign, Contact, Disposition, EventId, Heard, Left, Message, Room};

/// Maximum number of ranges that a builder assigns ahead; a source's slots are used up long before.
const MOST_RANGES: usize = 1 << 20;

/// Events assigned by builder 0, and the builders' announcements of their room.
#[derive(Debug)]
pub(super) struct Assignments {
    /// Assigned ranges that this source has not passed, in order and without gaps.
    ranges: VecDeque<Assign>,
    /// First event that is not assigned.
    until: u64,
    /// Fragments given up before their builder was known: the first event, their number, and the reason.
    unassigned: VecDeque<(u64, u64, Disposition)>,
    /// Last event with a fragment for which there is no builder yet, or the event after it.
    wanted: u64,
    /// True if builder 0 was told about `wanted`.
    asked: bool,
    /// Last announcement of each builder, if it has made any.
    rooms: Vec<Option<Room>>,
    /// Builders whose announcements are to be relayed to builder 0.
    news: Vec<usize>,
}

impl Assignments {
    pub(super) fn new(builders: usize) -> Self {
        Self {
            ranges: VecDeque::new(),
            until: 0,
            unassigned: VecDeque::new(),
            wanted: 0,
            asked: false,
            rooms: vec![None; builders],
            news: Vec::new(),
        }
    }

    /// Begins the run with the event `first`.
    pub(super) fn begin(&mut self, first: u64) {
        self.until = self.until.max(first);
    }

    /// Returns the range that an event is in, if it is known.
    fn range_of(&self, event: u64) -> Option<Assign> {
        let at = self.ranges.partition_point(|range| range.end().0 <= event);
        self.ranges.get(at).copied().filter(|range| range.first.0 <= event)
    }

    /// Takes an assignment; a part that is known already changes nothing. Returns false if events before it are
    /// missing, or there are too many ranges.
    fn take(&mut self, assign: Assign) -> bool {
        if assign.first.0 > self.until || self.ranges.len() >= MOST_RANGES {
            return false;
        }
        self.asked = false;
        let end = assign.end().0;
        if end > self.until {
            let (first, count) = (EventId(self.until), end - self.until);
            self.until = end;
            match self.ranges.back_mut() {
                Some(last) if last.builder == assign.builder => last.count += count,
                _ => self.ranges.push_back(Assign { first, count, ..assign }),
            }
        }
        true
    }

    /// Removes and returns the next range of which no event is left from `next` on.
    fn over(&mut self, next: u64) -> Option<Assign> {
        let over = self.ranges.front().is_some_and(|range| range.end().0 <= next);
        if over { self.ranges.pop_front() } else { None }
    }

    fn give_up(&mut self, first: u64, count: u64, how: Disposition) {
        match self.unassigned.back_mut() {
            Some((from, known, before)) if *before == how && from.saturating_add(*known) == first => *known += count,
            _ => self.unassigned.push_back((first, count, how)),
        }
    }
}

impl SourceNode {
    /// Returns the distance from one event of a builder to its next one.
    pub(super) fn stride(&self) -> u64 {
        if self.assignments.is_some() { 1 } else { self.builders.len() as u64 }
    }

    /// Returns the builder of an event; `None` if it is not assigned yet.
    pub(super) fn builder_of(&self, event: u64) -> Option<usize> {
        match &self.assignments {
            None => usize::try_from(event % self.builders.len() as u64).ok(),
            Some(assignments) => assignments.range_of(event).and_then(|range| usize::try_from(range.builder).ok()),
        }
    }

    /// Handles the case that the next event has no builder yet. Returns true if its fragment must be dropped: it cannot
    /// wait, and it is unknown whose slot to take instead.
    pub(super) fn wants_builder(&mut self) -> bool {
        let (next, drops) = (self.next_event, self.settings.policy != Policy::Block);
        let Some(assignments) = &mut self.assignments else { return false };
        if drops {
            assignments.give_up(next, 1, Disposition::DroppedNewest);
        }
        self.ask(next + u64::from(drops));
        drops
    }

    /// Tells builder 0 that this source is past the assigned events, once until there is an answer.
    pub(super) fn ask(&mut self, wanted: u64) {
        let Some(assignments) = &mut self.assignments else { return };
        assignments.wanted = wanted;
        if wanted > assignments.until && !std::mem::replace(&mut assignments.asked, true) {
            self.pass_on_room(0);
        }
    }

    /// Records that the fragments of the events from `first` to `end` are dropped or lost, whichever builders they are
    /// for. Must be followed by [`went_on`](Self::went_on).
    pub(super) fn leave_out_all(&mut self, first: u64, end: u64, how: Disposition) {
        let mut from = first;
        while from < end {
            let range = self.assignments.as_ref().and_then(|assignments| assignments.range_of(from));
            let Some(range) = range else {
                if let Some(assignments) = &mut self.assignments {
                    assignments.give_up(from, end - from, how);
                }
                return self.ask(end);
            };
            let count = range.end().0.min(end) - from;
            self.leave_out_many(range.builder as usize, from, count, how);
            from += count;
        }
    }

    /// Does the same as [`leave_out`](Self::leave_out), for any number of events of an assigned range.
    fn leave_out_many(&mut self, index: usize, first: u64, count: u64, how: Disposition) {
        let (mut from, end) = (first, first + count);
        while from < end {
            let run = u32::try_from(end - from).unwrap_or(u32::MAX);
            self.leave_out(index, EventId(from), run, how);
            from += u64::from(run);
        }
    }

    /// Handles the step to the next event: fragments for ranges that are now complete are offered.
    pub(super) fn went_on(&mut self) {
        while let Some(range) = self.assignments.as_mut().and_then(|assignments| assignments.over(self.next_event)) {
            let index = range.builder as usize;
            if self.builders[index].left {
                continue;
            }
            self.offer(index);
            self.announce_drops(index);
            let below = range.end();
            let builder = &mut self.builders[index];
            if builder.mentioned < below.0 {
                // This source has nothing for these events, and may have nothing for this builder for a long time.
                builder.mentioned = below.0;
                builder.passed = below.0;
                let tickets = builder.book.next_ticket();
                if builder.welcome.is_some() {
                    self.send_to(index, &Message::Passed { below, tickets });
                }
            }
        }
    }

    /// Handles an assignment by builder 0.
    pub(super) fn assign(&mut self, assign: Assign) -> Result<(), NodeError> {
        let is_known = (assign.builder as usize) < self.builders.len();
        let Some(assignments) = self.assignments.as_mut().filter(|_| is_known) else {
            let what = format!("events were assigned to builder {}, of which nothing is known", assign.builder);
            return self.lost(0, LinkError::Protocol(what));
        };
        if !assignments.take(assign) {
            let (first, until) = (assign.first.0, assignments.until);
            let what = format!("events from {first} on were assigned, and not those from {until} on");
            return self.lost(0, LinkError::Protocol(what));
        }
        self.settle_given_up();
        self.went_on();
        self.blocked = false;
        Ok(())
    }

    /// Attributes fragments that were given up to the builders to which their events are now assigned.
    fn settle_given_up(&mut self) {
        while let Some(assignments) = &mut self.assignments
            && let Some(&(first, count, how)) = assignments.unassigned.front()
            && let Some(range) = assignments.range_of(first)
        {
            assignments.unassigned.pop_front();
            let known = count.min(range.end().0 - first);
            if known < count {
                assignments.unassigned.push_front((first + known, count - known, how));
            }
            self.leave_out_many(range.builder as usize, first, known, how);
        }
    }

    /// Attributes fragments that remain without a builder at the end of the run to builder 0.
    pub(super) fn settle_unassigned(&mut self) {
        let rest = self.assignments.as_mut().map(|assignments| std::mem::take(&mut assignments.unassigned));
        for (first, count, how) in rest.into_iter().flatten() {
            self.leave_out_many(0, first, count, how);
        }
    }

    /// Handles a builder's announcement of its room.
    pub(super) fn heard_room(&mut self, index: usize, room: Room) {
        let Some(assignments) = &mut self.assignments else { return };
        // The builder's number is that of its position here, whatever the message contains.
        assignments.rooms[index] = Some(Room { builder: self.builders[index].greeting.hello.builder, ..room });
        assignments.asked = false;
        if !assignments.news.contains(&index) {
            assignments.news.push(index);
        }
    }

    /// Relays the announcements received in this turn: one for each builder, however many it has sent.
    pub(super) fn pass_on_news(&mut self) {
        let news = self.assignments.as_mut().map(|assignments| std::mem::take(&mut assignments.news));
        for index in news.into_iter().flatten() {
            self.pass_on_room(index);
            self.say_passed(index);
            if index == 0 {
                // Together with its heartbeat, builder 0 learns of the builders that send none.
                for other in 1..self.builders.len() {
                    if self.contact(other) != Contact::Connected {
                        self.pass_on_room(other);
                    }
                }
            }
        }
    }

    /// Tells a builder that this source goes on, though its fragments are for others: it is then neither silent, nor
    /// has it missed what the builder waits for. If it does not go on, nothing is sent.
    fn say_passed(&mut self, index: usize) {
        let (next, builder) = (self.next_event, &self.builders[index]);
        let Some(assignments) = self.assignments.as_ref().filter(|_| builder.welcome.is_some()) else { return };
        let now = self.clock.now();
        if now < builder.passed_at + HEARTBEAT_INTERVAL / 2 || self.phase == Phase::Ending {
            return;
        }
        // Events that it has not offered yet do not count as passed.
        let filling = builder.filling.as_ref().map(|filling| filling.first.0);
        let left_out = builder.left_out.map(|(first, ..)| first);
        let unassigned = assignments.unassigned.front().map(|(first, ..)| *first);
        let held = filling.into_iter().chain(left_out).chain(unassigned).min();
        let below = next.min(assignments.until).min(held.unwrap_or(u64::MAX));
        if below > builder.mentioned {
            let builder = &mut self.builders[index];
            builder.passed_at = now;
            (builder.mentioned, builder.passed) = (below, below);
            let tickets = builder.book.next_ticket();
            self.send_to(index, &Message::Passed { below: EventId(below), tickets });
        }
    }

    /// Sends builder 0 everything it needs after it has welcomed this source.
    pub(super) fn tell_all_rooms(&mut self) {
        (0..self.builders.len()).for_each(|index| self.pass_on_room(index));
        (1..self.builders.len()).for_each(|index| self.tell_left(index));
    }

    fn contact(&self, index: usize) -> Contact {
        match &self.builders[index] {
            builder if builder.left && !builder.left_out_by_leader && self.phase != Phase::Ending => Contact::Away,
            builder if builder.done => Contact::Done,
            builder if builder.welcome.is_some() => Contact::Connected,
            _ => Contact::Away,
        }
    }

    /// Relays to builder 0 a builder's last announcement, the state of the connection to that builder, and this
    /// source's own position.
    pub(super) fn pass_on_room(&mut self, index: usize) {
        let contact = self.contact(index);
        let Some(assignments) = &self.assignments else { return };
        let (next, assigned) = (EventId(self.next_event.max(assignments.wanted)), EventId(assignments.until));
        let builder = self.builders[index].greeting.hello.builder;
        let room = assignments.rooms[index].unwrap_or(Room { builder, ..Room::default() });
        // A connected builder that has not announced its room has not begun, and there is nothing to relay.
        let is_said = assignments.rooms[index].is_some() || contact != Contact::Connected;
        let heard = Heard { room, contact, next, assigned };
        if is_said && self.builders[0].welcome.is_some() {
            self.send_to(0, &Message::Heard(heard));
        }
    }

    /// Leaves a builder out, by order of builder 0: fragments that wait for it are lost, and its slots are free.
    pub(super) fn leave_out_builder(&mut self, number: u32) -> Result<(), NodeError> {
        let index = number as usize;
        if self.assignments.is_none() || index == 0 || index >= self.builders.len() {
            return self.lost(0, LinkError::Protocol(format!("builder {number} cannot be left out")));
        }
        if !self.builders[index].left {
            tracing::warn!(builder = %self.builders[index].address, "left out: what waits for it is lost");
            self.forget_builder(index);
        }
        self.builders[index].left_out_by_leader = true;
        self.tell_left(index);
        self.start_if_all_have();
        Ok(())
    }

    /// Gives a builder up for good: fragments that wait for it are lost, and its slots are free.
    pub(super) fn forget_builder(&mut self, index: usize) {
        let Self { builders, pool, endpoints, .. } = self;
        let builder = &mut builders[index];
        endpoints.close(index);
        (builder.welcome, builder.away, builder.broken) = (None, None, None);
        (builder.left, builder.done) = (true, true);
        if let Some(filling) = builder.filling.take() {
            builder.lost += u64::from(filling.count);
            pool.give_back(filling.slot);
        }
        builder.left_out = None;
        for (offer, slot) in builder.book.release(u64::MAX) {
            builder.lost += if offer.disposition.is_dropped() { 0 } else { u64::from(offer.count) };
            slot.into_iter().for_each(|slot| pool.give_back(slot));
        }
        self.blocked = false;
    }

    /// Sends builder 0 the counts of the fragments for a builder that was left out.
    pub(super) fn tell_left(&mut self, index: usize) {
        let builder = &self.builders[index];
        if !builder.left_out_by_leader || self.builders[0].welcome.is_none() {
            return;
        }
        let left = Left {
            builder: builder.greeting.hello.builder,
            accepted: builder.accounts.accepted,
            dropped_newest: builder.accounts.dropped_newest,
            dropped_oldest: builder.accounts.dropped_oldest,
            lost_in_device: builder.lost_in_device,
            lost: builder.lost,
        };
        self.send_to(0, &Message::Left(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(first: u64, count: u64, builder: u32) -> Assign {
        Assign { first: EventId(first), count, builder }
    }

    #[test]
    fn what_is_assigned_is_known_once_and_without_gaps() {
        let mut known = Assignments::new(3);
        known.begin(0);
        assert!(known.take(assign(0, 10, 1)) && known.take(assign(0, 10, 1)) && known.take(assign(5, 10, 2)));
        assert!(!known.take(assign(16, 1, 0)), "event 15 is nobody's");
        assert!(known.take(assign(15, u64::MAX - 15, 2)));
        assert_eq!(known.ranges, [assign(0, 10, 1), assign(10, u64::MAX - 10, 2)]);
        assert_eq!(known.range_of(9), Some(assign(0, 10, 1)));
        assert_eq!((known.over(9), known.over(10)), (None, Some(assign(0, 10, 1))));
        assert_eq!(known.range_of(9), None);
        assert_eq!(known.range_of(1 << 60).map(|range| range.builder), Some(2));
    }
}
