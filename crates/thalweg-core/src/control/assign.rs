//! Assignment of events to builders by the room they have (`run.assignment = "by-room"`).
//!
//! The leading builder has one [`Assigner`]. It hands out ranges of events in order, ahead of the sources: a range to
//! each builder in turn that has room for one. A slow builder has room less often, and gets fewer. If no builder has
//! room, nothing is assigned, and the sources wait, which is back-pressure.
//!
//! Builders' reports are relayed by the sources. A report is believed if more than half of the responding sources have
//! received it from the builder; so a single false report has no effect. A builder's report of itself is limited by
//! the capacity of the sources' slots: however much room it claims, it keeps no more than its share of them.

use crate::control::time::Pace;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_wire::{Assign, Contact, EventId, Heard, Room};

/// Longest interval between a builder's reports of its room.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which a silent builder gets no more events, and a silent source has no vote, until it reports again.
const QUIET_TIMEOUT: Duration = HEARTBEAT_INTERVAL.saturating_mul(2);
/// Interval at which silent builders and sources are looked for.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of ranges that are kept for a source that was disconnected. One that reconnects and lacks older ones
/// cannot go on.
const MAX_RANGES: usize = 1 << 16;
/// Number of ranges that the share of a builder is handed out in, so that it has the next one before it is done with
/// the last.
const PARTS_PER_SHARE: u64 = 4;

/// Configuration of an assigner, fixed before the run.
#[derive(Debug, Clone)]
pub struct AssignConfig {
    /// Number of expected sources.
    pub sources: usize,
    /// Number of builders; at least 1. Number 0 is the one that assigns.
    pub builders: u32,
    /// First event of the run.
    pub first: EventId,
    /// Event before which the run ends; `None` if none is configured.
    pub end: Option<EventId>,
    /// Time after which a builder that is connected and silent is left out.
    pub silence: Duration,
}

/// A builder that was left out: no event goes to it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of the builder.
    pub builder: u32,
    /// First event that was not assigned when the builder was left out.
    pub at: EventId,
    /// Events assigned to the builder that it had not reported as closed.
    pub open: Vec<Assign>,
    /// Number of events it had closed, by its last report.
    pub closed: u64,
    /// Number of events that were ever assigned to it.
    pub assigned: u64,
}

/// A message on the assignment, to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Assignment of these events.
    Assign(Assign),
    /// Exclusion of this builder: no event goes to it any more.
    LeaveOut(u32),
}

/// A relayed report of a builder that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it reported the free room of builder {builder}, but there are only {builders} builders")]
pub struct NoSuchBuilder {
    builder: u32,
    builders: usize,
}

/// Assigns events to builders; see the module's documentation.
///
/// Times are those of any clock. Sources are named by their index.
#[derive(Debug)]
pub struct Assigner {
    silence: Duration,
    pace: Pace,
    builders: Vec<Builder>,
    sources: Vec<Source>,
    /// Latest assignments, in order and without gaps.
    ranges: VecDeque<Assign>,
    /// First event that is not assigned.
    until: u64,
    /// First event that will not be assigned.
    end: u64,
    /// Number of the builder whose turn it is.
    turn: usize,
    left_out: Vec<LeftOut>,
    /// Time at which all builders were last checked.
    last_check: Duration,
    /// True if the state of a source has changed since then.
    has_changed: bool,
    /// Builders whose reports are to be evaluated again.
    due: Vec<usize>,
    /// True if a source is past all that is assigned.
    is_passed: bool,
    /// Sources that have a vote.
    voters: Vec<usize>,
    /// Votes on one number of a builder. Kept to reuse the memory.
    votes: Vec<Option<u64>>,
    /// Number of votes counted so far.
    #[cfg(test)]
    counted: u64,
}

#[derive(Debug, Clone, Default)]
struct Builder {
    /// Believed report of the builder; `None` before most sources have received one.
    report: Option<Room>,
    /// Events assigned to it and not closed.
    open: VecDeque<Assign>,
    /// Number of events that were ever assigned to it.
    assigned: u64,
    is_left_out: bool,
    /// True if it was silent for a while: it gets nothing until it reports again.
    quiet: bool,
    /// Votes of the responding sources on its believed report: its `closed_below`, `room` and `closed`.
    beliefs: [Belief; 3],
}

/// The highest number that more than half of the responding sources report at least; `None` if fewer report any.
#[derive(Debug, Clone, Copy, Default)]
struct Belief {
    value: Option<u64>,
    /// Number of sources that report more, and of those that report less.
    above: usize,
    below: usize,
}

impl Belief {
    /// Adds the vote of a source that responds again.
    fn add_vote(&mut self, number: Option<u64>) {
        self.above += usize::from(number > self.value);
        self.below += usize::from(number < self.value);
    }

    /// Changes a source's vote.
    fn change_vote(&mut self, from: Option<u64>, to: Option<u64>) {
        self.above -= usize::from(from > self.value);
        self.below -= usize::from(from < self.value);
        self.add_vote(to);
    }

    /// Returns whether the value must be computed again, with this number of responding sources.
    fn must_recompute(&self, voters: usize) -> bool {
        self.above > voters / 2 || 2 * self.below >= voters.max(1)
    }
}

impl Builder {
    fn outstanding_events(&self) -> u64 {
        self.open.iter().map(|range| range.count).sum()
    }

    /// Removes events below this number from its open ones.
    fn close_below(&mut self, below: u64) {
        while let Some(range) = self.open.front_mut() {
            if range.first.0 >= below {
                break;
            }
            if range.end_event().0 <= below {
                self.open.pop_front();
                continue;
            }
            range.count = range.end_event().0 - below;
            range.first = EventId(below);
        }
    }
}

#[derive(Debug, Clone)]
struct Source {
    present: bool,
    /// True if it may yet accept events.
    live: bool,
    /// Number of its slots, and number of records in one of them.
    slots: u64,
    records: u64,
    /// Time at which its last message was received.
    last_message: Option<Duration>,
    /// True if its reports are counted in the votes on the builders.
    has_vote: bool,
    /// Relayed reports of each builder.
    reports: Vec<Report>,
    /// First event that it has not accepted.
    next: u64,
    /// End of the assignments that it was sent over this connection, and number of left-out builders that it was sent.
    sent_until: Option<u64>,
    sent_left_out: usize,
}

/// A builder's report, as relayed by a source.
#[derive(Debug, Clone, Copy, Default)]
struct Report {
    room: Option<Room>,
    at: Duration,
    contact: Contact,
}

impl Report {
    /// Returns the report's `closed_below`, `room` and `closed`.
    fn reported_numbers(&self) -> [Option<u64>; 3] {
        [self.room.map(|room| room.closed_below.0), self.room.map(|room| room.room), self.room.map(|room| room.closed)]
    }
}

impl Assigner {
    /// Returns an assigner with nothing assigned.
    pub fn new(config: &AssignConfig) -> Self {
        let AssignConfig { sources, builders, first, end, silence } = *config;
        let builders = vec![Builder::default(); builders.max(1) as usize];
        let source = Source {
            present: false,
            live: true,
            slots: 1,
            records: 1,
            last_message: None,
            has_vote: false,
            reports: vec![Report::default(); builders.len()],
            next: first.0,
            sent_until: None,
            sent_left_out: 0,
        };
        Self {
            silence: silence.max(QUIET_TIMEOUT),
            pace: Pace::default(),
            builders,
            sources: vec![source; sources],
            ranges: VecDeque::new(),
            until: first.0,
            end: end.map_or(u64::MAX, |end| end.0),
            turn: 0,
            left_out: Vec::new(),
            last_check: Duration::ZERO,
            has_changed: true,
            due: Vec::new(),
            is_passed: false,
            voters: Vec::new(),
            votes: Vec::new(),
            #[cfg(test)]
            counted: 0,
        }
    }

    /// Notes that a source has connected, with this number of slots of this number of records each. `knows_none`: the
    /// source has just begun, and was sent no assignment yet; otherwise it reports how far it knows the assignments.
    pub fn source_connected(&mut self, source: usize, slots: u32, records: u32, knows_none: bool) {
        let until = self.ranges.front().map_or(self.until, |range| range.first.0);
        let source = &mut self.sources[source];
        source.present = true;
        source.live = true;
        (source.slots, source.records) = (slots.max(1).into(), records.max(1).into());
        (source.sent_until, source.sent_left_out) = (knows_none.then_some(until), 0);
        source.last_message = None;
        self.has_changed = true;
    }

    /// Notes that the connection of a source is down.
    pub fn source_disconnected(&mut self, source: usize) {
        self.sources[source].present = false;
        self.has_changed = true;
    }

    /// Notes that a source accepts nothing more: it has ended, or was given up.
    pub fn source_ended(&mut self, source: usize) {
        self.sources[source].live = false;
        self.has_changed = true;
    }

    /// Takes a builder's report that a source relays, and the source's own position.
    ///
    /// # Errors
    /// The builder does not exist.
    pub fn handle_report(&mut self, index: usize, relayed: &Heard) -> Result<(), NoSuchBuilder> {
        let builders = self.builders.len();
        let Heard { room, contact, next, assigned } = *relayed;
        let (now, until) = (self.pace.elapsed(), self.until);
        let source = &mut self.sources[index];
        let builder = usize::try_from(room.builder).unwrap_or(usize::MAX);
        let Some(report) = source.reports.get_mut(builder) else {
            return Err(NoSuchBuilder { builder: room.builder, builders });
        };
        source.last_message = Some(now);
        source.next = source.next.max(next.0);
        source.sent_until.get_or_insert(assigned.0.min(until));
        report.contact = contact;
        // A report of closed events that were never assigned is ignored.
        let before = report.reported_numbers();
        if contact != Contact::Away && room.closed_below.0 <= until {
            (report.room, report.at) = (Some(room), now);
        }
        let numbers = report.reported_numbers();
        self.is_passed |= next.0 > until;
        if !source.has_vote {
            self.give_vote(index);
        } else if numbers != before {
            let beliefs = &mut self.builders[builder].beliefs;
            for (belief, (from, to)) in beliefs.iter_mut().zip(before.into_iter().zip(numbers)) {
                belief.change_vote(from, to);
            }
            if beliefs.iter().any(|belief| belief.must_recompute(self.voters.len())) {
                self.due.push(builder);
            }
        }
        Ok(())
    }

    /// Gives a vote to a source that responds again.
    fn give_vote(&mut self, source: usize) {
        self.sources[source].has_vote = true;
        self.voters.push(source);
        for (builder, report) in self.sources[source].reports.iter().enumerate() {
            let beliefs = &mut self.builders[builder].beliefs;
            beliefs.iter_mut().zip(report.reported_numbers()).for_each(|(belief, number)| belief.add_vote(number));
            if beliefs.iter().any(|belief| belief.must_recompute(self.voters.len())) {
                self.due.push(builder);
            }
        }
    }

    /// Ends the run before this event.
    pub fn end_before(&mut self, end: EventId) {
        self.end = self.end.min(end.0);
        self.has_changed = true;
    }

    /// Returns the first event that is not assigned.
    pub fn assigned_until(&self) -> EventId {
        EventId(self.until)
    }

    /// Returns the first event that a source has not accepted, as it reports, limited to the assigned events.
    pub fn source_position(&self, source: usize) -> EventId {
        EventId(self.sources[source].next.min(self.until))
    }

    /// Returns the builders that were left out, in the order in which that happened.
    pub fn left_out_builders(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Returns whether the other builders are done with a source, or left out; also true for a source that does not
    /// respond.
    pub fn is_source_done(&self, source: usize) -> bool {
        let source = &self.sources[source];
        let mut others = source.reports.iter().zip(&self.builders).skip(1);
        !self.is_responding(source)
            || others.all(|(report, builder)| report.contact == Contact::Done || builder.is_left_out)
    }

    /// Advances the time, and assigns all events that can be assigned. A builder is evaluated when the reports of most
    /// sources on it have changed, and all are ten times a second: so a report costs a few steps, and not one for each
    /// source.
    pub fn advance_time(&mut self, now: Duration) {
        self.pace.advance_to(now);
        if std::mem::take(&mut self.has_changed) || self.pace.elapsed() - self.last_check >= SILENCE_CHECK_INTERVAL {
            self.last_check = self.pace.elapsed();
            self.check_all_builders();
        } else if self.due.is_empty() && !self.is_passed {
            return;
        }
        while let Some(builder) = self.due.pop() {
            self.update_belief(builder);
        }
        self.is_passed = false;
        self.assign_events();
    }

    fn check_all_builders(&mut self) {
        let mut is_changed = false;
        for source in 0..self.sources.len() {
            let answers = self.is_responding(&self.sources[source]);
            is_changed |= std::mem::replace(&mut self.sources[source].has_vote, answers) != answers;
        }
        if is_changed {
            self.voters.clear();
            self.voters.extend((0..self.sources.len()).filter(|source| self.sources[*source].has_vote));
            self.due = (0..self.builders.len()).collect();
        }
        while let Some(builder) = self.due.pop() {
            self.update_belief(builder);
        }
        (0..self.builders.len()).for_each(|builder| self.check_builder(builder));
    }

    /// Returns when [`advance_time`](Self::advance_time) is to be called again even if nothing happens.
    pub fn next_check_time(&self) -> Duration {
        self.pace.last_reading() + SILENCE_CHECK_INTERVAL
    }

    /// Returns the next message on the assignment to a source; `None` if it is up to date, or disconnected.
    pub fn next_share(&mut self, source: usize) -> Option<Share> {
        let source = &mut self.sources[source];
        let sent_until = source.sent_until.filter(|_| source.present)?;
        if let Some(left_out) = self.left_out.get(source.sent_left_out) {
            source.sent_left_out += 1;
            return Some(Share::LeaveOut(left_out.builder));
        }
        let at = self.ranges.partition_point(|range| range.end_event().0 <= sent_until);
        let range = *self.ranges.get(at)?;
        source.sent_until = Some(range.end_event().0);
        Some(Share::Assign(range))
    }

    /// Returns whether a source is connected and sent a message not long ago: only such sources have a vote.
    fn is_responding(&self, source: &Source) -> bool {
        let now = self.pace.elapsed();
        source.present && source.last_message.is_some_and(|last| now - last < QUIET_TIMEOUT)
    }

    /// Returns the highest number that more than half of the responding sources report at least of a builder.
    fn majority_belief(&mut self, builder: usize, number: impl Fn(&Report) -> Option<u64>) -> Belief {
        let Self { voters, votes, sources, .. } = self;
        votes.clear();
        votes.extend(voters.iter().map(|source| number(&sources[*source].reports[builder])));
        #[cfg(test)]
        {
            self.counted += voters.len() as u64;
        }
        let value = if votes.is_empty() {
            None
        } else {
            *votes.select_nth_unstable_by(voters.len() / 2, |one, other| other.cmp(one)).1
        };
        let above = votes.iter().filter(|vote| **vote > value).count();
        let below = votes.iter().filter(|vote| **vote < value).count();
        Belief { value, above, below }
    }

    /// Returns whether `holds` is true of the reports on a builder that more than half of the responding sources relay.
    fn is_agreed_on(&self, builder: usize, holds: impl Fn(&Report) -> bool) -> bool {
        let agreeing = self.voters.iter().filter(|source| holds(&self.sources[**source].reports[builder])).count();
        2 * agreeing > self.voters.len()
    }

    /// Updates the believed report of a builder from the votes.
    fn update_belief(&mut self, builder: usize) {
        let beliefs =
            std::array::from_fn(|number| self.majority_belief(builder, |report| report.reported_numbers()[number]));
        let entry = &mut self.builders[builder];
        entry.beliefs = beliefs;
        let [Some(closed_below), Some(room), Some(closed)] = beliefs.map(|belief: Belief| belief.value) else { return };
        if !entry.is_left_out {
            entry.close_below(closed_below);
            let builder = u32::try_from(builder).unwrap_or(u32::MAX);
            entry.report = Some(Room { builder, closed_below: EventId(closed_below), room, closed });
        }
    }

    /// Leaves a builder out if most sources no longer receive anything from it.
    fn check_builder(&mut self, builder: usize) {
        // The builder that assigns is present; one that never reported has not begun, and the sources wait for it.
        let entry = &self.builders[builder];
        if builder == 0 || entry.is_left_out || entry.report.is_none() {
            return;
        }
        let done = self.is_agreed_on(builder, |report| report.contact == Contact::Done);
        let Some(quiet) = self.builder_silence(builder).filter(|_| !done) else { return };
        self.builders[builder].quiet = quiet >= QUIET_TIMEOUT;
        if quiet >= self.silence
            || quiet >= QUIET_TIMEOUT && self.is_agreed_on(builder, |report| report.contact == Contact::Away)
        {
            self.leave_builder_out(builder);
        }
    }

    /// Returns for how long most sources have received nothing from a builder; `None` if no source responds.
    fn builder_silence(&mut self, builder: usize) -> Option<Duration> {
        let last = self.majority_belief(builder, |report| {
            Some(report.room.map_or(0, |_| u64::try_from(report.at.as_nanos()).unwrap_or(u64::MAX)))
        });
        Some(self.pace.elapsed().saturating_sub(Duration::from_nanos(last.value?)))
    }

    fn leave_builder_out(&mut self, builder: usize) {
        let entry = &mut self.builders[builder];
        entry.is_left_out = true;
        self.left_out.push(LeftOut {
            builder: u32::try_from(builder).unwrap_or(u32::MAX),
            at: EventId(self.until),
            open: std::mem::take(&mut entry.open).into(),
            closed: entry.report.map_or(0, |report| report.closed),
            assigned: entry.assigned,
        });
    }

    fn assign_events(&mut self) {
        self.assign_passed_events();
        let (share, part) = self.share_and_part();
        let mut idle = 0;
        while self.until < self.end && idle < self.builders.len() {
            let builder = self.turn;
            self.turn = (self.turn + 1) % self.builders.len();
            let count = self.fitting_events(builder, share, part).min(self.end - self.until);
            if count == 0 {
                idle += 1;
                continue;
            }
            idle = 0;
            let range = self.assign_range(builder, count);
            self.builders[builder].open.push_back(range);
        }
    }

    /// Assigns the events that all sources have passed already: they skipped them, or had to drop their fragments
    /// for want of a builder. These take no room.
    fn assign_passed_events(&mut self) {
        let live = self.sources.iter().filter(|source| source.live);
        let passed = live.map(|source| source.next).min().unwrap_or(self.until).min(self.end);
        if passed > self.until {
            self.assign_range(0, passed - self.until);
        }
    }

    /// Returns how many of the next events go to a builder whose turn it is. `share`: the events it may have in the
    /// sources' slots; `part`: the number of events handed out at a time.
    fn fitting_events(&self, builder: usize, share: u64, part: u64) -> u64 {
        let entry = &self.builders[builder];
        let Some(report) = entry.report.filter(|_| !entry.is_left_out && !entry.quiet) else { return 0 };
        let (room, outstanding) = (report.room.min(share), entry.outstanding_events());
        let free = room.saturating_sub(outstanding);
        // Not in small ranges, each of which would take a slot for itself.
        if free >= part || outstanding == 0 { free.min(part) } else { 0 }
    }

    /// Returns the number of events of one builder that the sources' slots may hold, so that the other builders' events
    /// have slots too whatever it does; and the number of events handed out at a time: as many as fill whole slots,
    /// where that is possible.
    fn share_and_part(&self) -> (u64, u64) {
        let builders = self.builders.len() as u64;
        let capacities =
            self.sources.iter().map(|source| (source.slots / builders).max(1).saturating_mul(source.records));
        let share = capacities.min().unwrap_or(1);
        let part = (share / PARTS_PER_SHARE).max(1);
        let records = self.sources.iter().map(|source| source.records).max().unwrap_or(1);
        (share, if part > records { part - part % records } else { part })
    }

    fn assign_range(&mut self, builder: usize, count: u64) -> Assign {
        let range = Assign { first: EventId(self.until), count, builder: u32::try_from(builder).unwrap_or(u32::MAX) };
        self.until += count;
        self.builders[builder].assigned = self.builders[builder].assigned.saturating_add(count);
        if self.ranges.len() >= MAX_RANGES {
            self.ranges.pop_front();
        }
        self.ranges.push_back(range);
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    #[test]
    fn what_is_heard_costs_a_few_steps_for_each_message_however_many_pass_it_on() {
        const MANY: u32 = 400;
        let mut assigner = Assigner::new(&AssignConfig {
            sources: MANY as usize,
            builders: MANY,
            first: EventId(0),
            end: None,
            silence: Duration::from_secs(2),
        });
        let mut now = Duration::ZERO;
        for source in 0..MANY as usize {
            assigner.source_connected(source, 1600, 64, true);
        }
        let mut messages = 0;
        // Three heartbeats, in which each message comes separately.
        for beat in 0..3u64 {
            for builder in 0..MANY {
                for source in 0..MANY as usize {
                    let room = Room { builder, closed_below: EventId(0), room: 64 + beat, closed: 0 };
                    let contact = Contact::Connected;
                    let (next, assigned) = (EventId(0), EventId(0));
                    assigner.handle_report(source, &Heard { room, contact, next, assigned }).unwrap();
                    messages += 1;
                    now += HEARTBEAT_INTERVAL / (MANY * MANY);
                    assigner.advance_time(now);
                }
            }
        }
        assert_eq!(messages, 480_000);
        assert!(assigner.counted < 12 * messages, "{} votes", assigner.counted);
        assert!(assigner.assigned_until().0 > u64::from(MANY), "every builder has events");
    }

    proptest! {
        /// Reports by any source on any builder, at any time and in any order.
        #[test]
        fn what_is_believed_is_what_more_than_half_report(
            words in vec((0..5usize, 0..3u32, 0..8u64, 0..8u64, 0..60u64, any::<bool>()), 1..200),
        ) {
            const SOURCES: usize = 5;
            let config =
                AssignConfig { sources: SOURCES, builders: 3, first: EventId(0), end: None, silence: QUIET_TIMEOUT };
            let mut assigner = Assigner::new(&config);
            (0..SOURCES).for_each(|source| assigner.source_connected(source, 64, 1, true));
            assigner.advance_time(Duration::ZERO);
            let mut now = Duration::ZERO;
            for (source, builder, room, closed, later_ms, has_ended) in words {
                if assigner.sources[source].present {
                    let room = Room { builder, closed_below: EventId(0), room, closed };
                    let position = EventId(0);
                    let contact = Contact::Connected;
                    assigner.handle_report(source, &Heard { room, contact, next: position, assigned: position }).unwrap();
                }
                if has_ended && later_ms == 0 {
                    assigner.source_disconnected(source);
                }
                now += Duration::from_millis(later_ms);
                assigner.advance_time(now);
                for builder in 0..3 {
                    let voters: Vec<usize> = (0..SOURCES).filter(|source| assigner.sources[*source].has_vote).collect();
                    let beliefs = assigner.builders[builder].beliefs.map(|belief| belief.value);
                    for (number, belief) in beliefs.into_iter().enumerate() {
                        let mut votes: Vec<_> =
                            voters.iter().map(|source| assigner.sources[*source].reports[builder].reported_numbers()[number]).collect();
                        votes.sort_unstable();
                        votes.reverse();
                        prop_assert_eq!(belief, votes.get(votes.len() / 2).copied().flatten());
                    }
                }
            }
        }
    }
}
