//! The end of a run, and the handling of sources that keep it from ending.
//!
//! Sources produce at rates of their own, and an event is complete when all of them have it. Asked for their positions,
//! they report different ones. All go on to the furthest of them, so that nothing that was accepted is cut off. Sources
//! that are behind are checked after a [`LAP_TIME`]: if a source cannot reach the end in time at its present rate, the
//! run ends at its position instead; what others have beyond that belongs to no complete event. If events beyond that
//! are closed already, only this source ends there. No source is waited for longer than the timeout, and no source
//! decides by mere claims: its report counts as far as it has offered events and its slots can hold more.

use crate::control::control::{Facts, Phase, RunControl, Source};
use crate::control::{Cause, Config, Order, SourceCommand};
use std::time::Duration;
use thalweg_wire::EventId;

/// Time for which sources go on at the end before those behind are checked.
const LAP_TIME: Duration = Duration::from_secs(1);
/// Event number above all possible ones.
const FOREVER: EventId = EventId(u64::MAX);
/// Time within which sources have to report their positions.
const TIME_TO_ANSWER: Duration = Duration::from_secs(2);

impl Config {
    pub(crate) fn time_to_answer(&self) -> Duration {
        TIME_TO_ANSWER.min(self.timeout / 4)
    }
}

impl RunControl {
    /// Waits for sources to report their positions, and then decides where the run ends.
    pub(crate) fn await_positions(&mut self, waited: Duration, facts: &impl Facts) {
        if let Some(end) = self.agreed_end() {
            self.end_as_relayed(end);
        } else if self.config.leads {
            // A source that is disconnected gets the message when it reconnects.
            if waited >= self.config.time_to_answer() || self.awaited_sources().next().is_none() {
                self.end_before(self.furthest_position(facts), false);
                self.begin_lap(facts);
            }
        } else if waited >= self.config.timeout / 2 {
            // The leading builder does not end the run, or its sources do not relay that. The sources end in their own
            // time, within the timeout.
            self.phase = Phase::Ending { last: true, lap: Duration::ZERO };
        }
    }

    /// Returns the first event that no source has accepted.
    pub(crate) fn furthest_position(&self, facts: &impl Facts) -> EventId {
        let sources = self.sources.iter().enumerate().filter(|(_, source)| !source.out);
        sources
            .map(|(index, _)| self.believed_position(index, facts))
            .max()
            .unwrap_or_default()
            .max(facts.closed_until())
    }

    /// Returns whether the run may end at a source's position: false for a source that is disconnected, or that has not
    /// answered and so may be hung.
    fn counts_for_end(source: &Source) -> bool {
        source.present && source.may_accept_events() && source.next.is_some()
    }

    /// Returns the first event that a source has not accepted, as far as it can be believed.
    fn believed_position(&self, index: usize, facts: &impl Facts) -> EventId {
        let (source, offered) = (&self.sources[index], facts.offered_until(index));
        let by_room = EventId(offered.0.saturating_add(source.room));
        let limit = facts.assigned_until().map_or(by_room, |until| until.max(offered));
        source.next.filter(|_| !source.ended).map_or(offered, |next| next.clamp(offered, limit))
    }

    /// Ends the run before this event, or at its earlier end if one is known.
    pub(crate) fn end_before(&mut self, end: EventId, last: bool) {
        let end = self.end.map_or(end, |known| known.min(end));
        self.end = Some(end);
        self.phase = Phase::Ending { last, lap: Duration::ZERO };
        self.orders.push_back(Order::EndAt(end));
        if self.config.leads {
            // A source that has ended relays the message all the same.
            for index in 0..self.sources.len() {
                if self.sources[index].present && !self.sources[index].out {
                    self.orders.push_back(Order::SourceCommand(index, self.stop_request_for(index, end)));
                }
            }
        }
    }

    /// Ends the run before the event set by the leading builder; if that is the first event, the run was to end at
    /// once.
    pub(crate) fn end_as_relayed(&mut self, end: EventId) {
        self.cause = Some(if end <= self.config.first { Cause::AbortElsewhere } else { Cause::OtherBuilder });
        self.end_before(end, true);
    }

    /// Returns the request to send to a source: never an end that the source is past already. With several builders all
    /// get the same end, since they relay it.
    pub(crate) fn stop_request_for(&self, source: usize, end: EventId) -> SourceCommand {
        let source = &self.sources[source];
        let end = match source.next {
            Some(next) if self.config.builders == 1 => next.max(end),
            _ => end,
        };
        SourceCommand::StopAt { end, end_here: source.ends_here }
    }

    /// Waits for the final counters of all sources and for the fragments they hold.
    pub(crate) fn wait_for_end(&mut self, free: Duration, facts: &impl Facts) {
        if let Some(end) = self.agreed_end() {
            self.end_as_relayed(end);
        } else if self.is_patient()
            && let Some(cause) = self.reason_to_end()
        {
            return self.stop_run(cause);
        }
        // If half of the sources that were paused have gone on, the others are hung, or lie.
        let (held, resumed) = self.sources.iter().fold((0, 0), |(held, resumed), source| {
            (held + usize::from(source.next.is_some()), resumed + usize::from(source.resumed))
        });
        let end = self.end.unwrap_or(FOREVER);
        for index in 0..self.sources.len() {
            // Events beyond the end are no progress towards it.
            let (offered, patient) = (facts.offered_until(index).min(end), self.is_patient());
            let source = &mut self.sources[index];
            // The source is on its way to an end that was known from the beginning, as fast as it has events.
            if std::mem::replace(&mut source.reached, offered) < offered && patient {
                source.waited = Duration::ZERO;
            }
            let delays = !source.out && !facts.is_settled(index) && (!source.ended || facts.owes_bytes(index));
            // The leading builder has paused the run; this builder has all the source's events already.
            let is_held = !self.config.leads && patient && source.present && source.next.is_some() && resumed < held;
            if !delays || is_held && !source.ended {
                continue;
            }
            source.waited += free;
            if source.waited >= self.config.timeout {
                source.out = true;
                let failure = match source.ended {
                    true => "did not deliver the fragments that it held",
                    false => "did not end and send its final counters",
                };
                let reason =
                    format!("it {failure} within {:?} of the end of the run (run.timeout)", self.config.timeout);
                self.orders.push_back(Order::Expel(index, reason));
            }
        }
        if let Phase::Ending { last: false, lap } = &mut self.phase {
            *lap += free;
            if *lap >= LAP_TIME.min(self.config.timeout / 4) {
                let lap = *lap;
                self.end_lap(lap, facts);
            }
        }
    }

    /// Returns whether the run takes as long as its events do: it ends by their number, and for no other cause so far.
    pub(crate) fn is_patient(&self) -> bool {
        self.cause == Some(Cause::Events) && matches!(self.phase, Phase::Ending { .. })
    }

    fn begin_lap(&mut self, facts: &impl Facts) {
        for index in 0..self.sources.len() {
            self.sources[index].lap_began = facts.offered_until(index);
        }
    }

    /// Checks whether all sources that are behind will reach the end in time; if one will not, the run ends at its
    /// position.
    fn end_lap(&mut self, lap: Duration, facts: &impl Facts) {
        let end = self.end.unwrap_or(FOREVER);
        let half = self.config.timeout / 2;
        let behind: Vec<usize> = (0..self.sources.len())
            .filter(|index| Self::counts_for_end(&self.sources[*index]) && facts.offered_until(*index) < end)
            .collect();
        self.phase = Phase::Ending { last: false, lap: Duration::ZERO };
        let mut too_slow = behind.clone();
        too_slow.retain(|index| {
            let (source, now) = (&self.sources[*index], facts.offered_until(*index).0);
            let (done, left) = (now.saturating_sub(source.lap_began.0) as f64, (end.0 - now) as f64);
            left * lap.as_secs_f64() > done * half.saturating_sub(source.waited).as_secs_f64()
        });
        if !too_slow.is_empty() {
            let lowest = behind.iter().map(|index| facts.offered_until(*index)).min().unwrap_or(end);
            let end = lowest.max(facts.closed_until());
            // The events that it lacks are closed without it: it need not reach them.
            for index in too_slow {
                self.sources[index].ends_here = facts.offered_until(index) < end;
            }
            self.end_before(end, true);
        }
        self.begin_lap(facts);
    }

    /// Returns the end set by the leading builder, as relayed by most sources, if it is earlier than the known one. One
    /// source cannot end a run.
    pub(crate) fn agreed_end(&self) -> Option<EventId> {
        if self.config.leads {
            return None;
        }
        let known = self.end.unwrap_or(FOREVER);
        // A source that has ended and whose connection was closed does not get an end that was moved since, nor relay
        // it.
        let voters = self
            .sources
            .iter()
            .filter(|source| !source.out && (!source.ended || source.end_elsewhere.is_some_and(|end| end < known)));
        let votes: Vec<EventId> = voters.clone().filter_map(|source| source.end_elsewhere).collect();
        let needed = voters.count() / 2 + 1;
        let agreed = votes.iter().copied().find(|end| votes.iter().filter(|vote| *vote == end).count() >= needed);
        agreed.filter(|end| *end < known)
    }

    /// Returns whether a source was given an earlier end than this builder knows: others will relay it too, and until
    /// then fragments that the source does not have are not missing.
    pub fn has_earlier_end(&self, source: usize) -> bool {
        let known = self.end.unwrap_or(FOREVER);
        !self.config.leads && self.sources[source].end_elsewhere.is_some_and(|end| end < known)
    }

    /// Returns whether most sources relay that the leading builder has begun the run.
    pub(crate) fn is_started_elsewhere(&self) -> bool {
        let running = self.sources.iter().filter(|source| source.runs_elsewhere).count();
        !self.config.leads && 2 * running > self.sources.len()
    }

    /// Returns whether `received` holds for most sources: another builder has sent them that message.
    pub(crate) fn most_received(&self, received: impl Fn(&Source) -> bool) -> bool {
        let voters = self.sources.iter().filter(|source| source.present && source.may_accept_events());
        let (count, all) = voters.fold((0, 0), |(count, all), source| (count + usize::from(received(source)), all + 1));
        self.config.builders > 1 && 2 * count > all
    }
}
