//! Assignment of events to builders: by their numbers, or as builder 0 assigns them.

use std::collections::VecDeque;
use thalweg_wire::{Assign, Contact, Disposition, EventId, Heard, Room};

/// Maximum number of ranges that a builder assigns ahead; a source's slots are used up long before.
const MAX_RANGES: usize = 1 << 20;

/// Builders of events: by the events' numbers, or as builder 0 has assigned them; and the builders' announcements of
/// their room, which it is to be sent.
#[derive(Debug)]
pub(super) struct Assignments {
    /// True if builder 0 assigns events; otherwise their numbers determine their builders.
    by_room: bool,
    /// Assigned ranges that this source has not passed, in order and without gaps.
    ranges: VecDeque<Assign>,
    /// First event that is not assigned.
    until: u64,
    /// Fragments given up before their builder was known.
    unassigned: VecDeque<Dropped>,
    /// Last event with a fragment for which there is no builder yet, or the event after it.
    wanted: u64,
    /// True if builder 0 has received a request for `wanted`, and has not answered.
    is_requested: bool,
    /// Last announcement of each builder, if it has made any.
    rooms: Vec<Option<Room>>,
    /// Builders whose announcements are to be relayed to builder 0.
    news: Vec<usize>,
}

/// Fragments of consecutive events that will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) how: Disposition,
}

impl Assignments {
    /// Creates the assignment by number to this number of builders.
    pub(super) fn new(builders: usize) -> Self {
        Self {
            by_room: false,
            ranges: VecDeque::new(),
            until: 0,
            unassigned: VecDeque::new(),
            wanted: 0,
            is_requested: false,
            rooms: vec![None; builders],
            news: Vec::new(),
        }
    }

    /// Has builder 0 assign the events.
    pub(super) fn assign_by_room(&mut self) {
        self.by_room = true;
    }

    /// Returns whether builder 0 assigns the events.
    pub(super) fn is_by_room(&self) -> bool {
        self.by_room
    }

    /// Begins the run with the event `first`.
    pub(super) fn begin_run(&mut self, first: u64) {
        self.until = self.until.max(first);
    }

    /// Returns the builder of an event; `None` if it is not assigned yet.
    pub(super) fn builder_for_event(&self, event: u64) -> Option<usize> {
        if self.by_room {
            return self.range_containing(event).and_then(|range| usize::try_from(range.builder).ok());
        }
        usize::try_from(event % self.rooms.len() as u64).ok()
    }

    /// Returns the range that an event is in, if it is known.
    fn range_containing(&self, event: u64) -> Option<Assign> {
        let at = self.ranges.partition_point(|range| range.end_event().0 <= event);
        self.ranges.get(at).copied().filter(|range| range.first.0 <= event)
    }

    /// Takes an assignment; a part that is known already changes nothing.
    ///
    /// # Errors
    /// Events before it are missing, or there are too many ranges; or builder 0 does not assign events, or not to such
    /// a builder. The error says so.
    pub(super) fn accept_assignment(&mut self, assign: Assign) -> Result<(), String> {
        if !self.by_room || assign.builder as usize >= self.rooms.len() {
            return Err(format!("events were assigned to the unknown builder {}", assign.builder));
        }
        if assign.first.0 > self.until || self.ranges.len() >= MAX_RANGES {
            let (first, until) = (assign.first.0, self.until);
            return Err(format!("events from {first} on were assigned instead of those from {until} on"));
        }
        self.is_requested = false;
        let end = assign.end_event().0;
        if end > self.until {
            let (first, count) = (EventId(self.until), end - self.until);
            self.until = end;
            match self.ranges.back_mut() {
                Some(last) if last.builder == assign.builder => last.count += count,
                _ => self.ranges.push_back(Assign { first, count, ..assign }),
            }
        }
        Ok(())
    }

    /// Removes and returns the next range of which no event is left from `next` on.
    pub(super) fn pop_passed_range(&mut self, next: u64) -> Option<Assign> {
        let is_passed = self.ranges.front().is_some_and(|range| range.end_event().0 <= next);
        if is_passed { self.ranges.pop_front() } else { None }
    }

    /// Returns the end of the events that are assigned and have no fragment that was given up before, up to `next`.
    pub(super) fn settled_until(&self, next: u64) -> u64 {
        let unassigned = self.unassigned.front().map_or(u64::MAX, |dropped| dropped.first);
        next.min(self.until).min(unassigned)
    }

    /// Keeps in mind that fragments were given up, whose builder is not known yet.
    pub(super) fn keep_dropped(&mut self, dropped: Dropped) {
        let Dropped { first, count, how } = dropped;
        match self.unassigned.back_mut() {
            Some(last) if last.how == how && last.first.saturating_add(last.count) == first => last.count += count,
            _ => self.unassigned.push_back(dropped),
        }
    }

    /// Returns the part of these fragments that are for one builder, with that builder; `None` if it is not known yet.
    pub(super) fn split_dropped(&self, dropped: Dropped) -> Option<(usize, Dropped)> {
        let range = self.range_containing(dropped.first)?;
        let count = dropped.count.min(range.end_event().0 - dropped.first);
        Some((range.builder as usize, Dropped { count, ..dropped }))
    }

    /// Removes and returns fragments that were given up and whose builder is known by now, with that builder.
    pub(super) fn pop_dropped(&mut self) -> Option<(usize, Dropped)> {
        let (builder, known) = self.split_dropped(*self.unassigned.front()?)?;
        let front = self.unassigned.front_mut()?;
        front.first += known.count;
        front.count -= known.count;
        if front.count == 0 {
            self.unassigned.pop_front();
        }
        Some((builder, known))
    }

    /// Removes and returns the fragments whose builder remains unknown.
    pub(super) fn take_unassigned(&mut self) -> VecDeque<Dropped> {
        std::mem::take(&mut self.unassigned)
    }

    /// Notes that events below `wanted` are needed. Returns true if builder 0 is to learn that this source is past the
    /// assigned events: once until there is an answer.
    pub(super) fn want_events(&mut self, wanted: u64) -> bool {
        if !self.by_room {
            return false;
        }
        self.wanted = wanted;
        wanted > self.until && !std::mem::replace(&mut self.is_requested, true)
    }

    /// Takes a builder's announcement of its room.
    pub(super) fn note_announced_room(&mut self, index: usize, room: Room) {
        if !self.by_room {
            return;
        }
        self.rooms[index] = Some(room);
        self.is_requested = false;
        if !self.news.contains(&index) {
            self.news.push(index);
        }
    }

    /// Removes and returns the builders whose announcements came in this turn.
    pub(super) fn take_news(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.news)
    }

    /// Returns the report to builder 0 about a builder with this number and contact: its last announcement, and this
    /// source's position. `None` if there is nothing to relay: events are not assigned, or a connected builder has not
    /// announced its room, since it has not begun.
    pub(super) fn relayed_room(&self, index: usize, number: u32, contact: Contact, next: u64) -> Option<Heard> {
        let room = self.rooms[index];
        if !self.by_room || room.is_none() && contact == Contact::Connected {
            return None;
        }
        let room = room.unwrap_or(Room { builder: number, ..Room::default() });
        Some(Heard { room, contact, next: EventId(next.max(self.wanted)), assigned: EventId(self.until) })
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
        known.assign_by_room();
        known.begin_run(0);
        let mut accept = |assign| known.accept_assignment(assign).is_ok();
        assert!(accept(assign(0, 10, 1)) && accept(assign(0, 10, 1)) && accept(assign(5, 10, 2)));
        assert!(!accept(assign(16, 1, 0)), "event 15 is not assigned");
        assert!(!accept(assign(15, 1, 3)), "there is no such builder");
        assert!(accept(assign(15, u64::MAX - 15, 2)));
        assert_eq!(known.ranges, [assign(0, 10, 1), assign(10, u64::MAX - 10, 2)]);
        assert_eq!(known.range_containing(9), Some(assign(0, 10, 1)));
        assert_eq!((known.pop_passed_range(9), known.pop_passed_range(10)), (None, Some(assign(0, 10, 1))));
        assert_eq!(known.range_containing(9), None);
        assert_eq!(known.range_containing(1 << 60).map(|range| range.builder), Some(2));
    }
}
