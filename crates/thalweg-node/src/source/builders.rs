//! Connections of a source to its builders, and the messages on them.

use super::assignments::Assignments;
use super::times::TimesReport;
use super::{Phase, SourceNode, waits_for_events};
use crate::NodeError;
use crate::slots::Filling;
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_arena::Slot;
use thalweg_link::{Address, LinkError, Outstanding, SourceGreeting};
use thalweg_wire::{
    Accounts, Capabilities, Disposition, EventId, MAX_RECORDS, Message, Refusal, RunNumber, TaiNanos, Welcome,
};

/// Time from a failed attempt to connect to a builder to the next one.
const RETRY: Duration = Duration::from_millis(100);

/// One builder, as this source sees it.
#[derive(Debug)]
pub(super) struct Builder {
    pub(super) address: Address,
    pub(super) greeting: SourceGreeting,
    pub(super) welcome: Option<Welcome>,
    pub(super) started: bool,
    /// True if its address led to it at least once.
    pub(super) was_found: bool,
    pub(super) done: bool,
    /// Time since which there is no connection, and time of the next attempt.
    pub(super) away: Option<(Duration, Duration)>,
    pub(super) last_error: Option<LinkError>,
    /// Error that broke the link during sending: [`SourceNode::flush`] deals with it.
    pub(super) broken: Option<LinkError>,
    pub(super) book: Outstanding<Option<Slot>>,
    /// All slots of tickets below this one are dropped, or were fetched over this connection.
    pub(super) kept_from: u64,
    pub(super) filling: Option<Filling>,
    /// Fragments that will not come and are not yet announced: the first event, their number, and the reason.
    pub(super) left_out: Option<(u64, u32, Disposition)>,
    pub(super) accounts: Accounts,
    /// Bytes copied by its device, and by connections that are closed.
    pub(super) copied: u64,
    /// Tickets fetched over shared memory that is no longer connected. The builder may still read them where they lie,
    /// so they are not withdrawn.
    pub(super) granted: BTreeSet<u64>,
    /// Bytes sent eagerly over this connection, and not released.
    pub(super) eager: u32,
    pub(super) most_records: u32,
    /// One past the last event for which it received an offer or a message that there is nothing, if events are
    /// assigned; `passed` is one past the last event of such a message.
    pub(super) mentioned: u64,
    pub(super) passed: u64,
    /// Time at which it was last told that this source goes on.
    pub(super) passed_at: Duration,
    /// True if it takes no further part; `left_out_by_leader` is true if the leading builder left it out, and `lost`
    /// counts the fragments that it had not taken.
    pub(super) left: bool,
    pub(super) left_out_by_leader: bool,
    pub(super) lost: u64,
    /// Fragments for it that the device lost.
    pub(super) lost_in_device: u64,
}

impl Builder {
    /// Creates a builder that is to be connected to, from `now` on.
    pub(super) fn new(address: &Address, greeting: SourceGreeting, now: Duration) -> Self {
        Self {
            address: address.clone(),
            greeting,
            welcome: None,
            started: false,
            was_found: false,
            done: false,
            away: Some((now, now)),
            last_error: None,
            broken: None,
            book: Outstanding::default(),
            kept_from: 0,
            filling: None,
            left_out: None,
            accounts: Accounts::default(),
            copied: 0,
            granted: BTreeSet::new(),
            eager: 0,
            most_records: MAX_RECORDS,
            mentioned: 0,
            passed: 0,
            passed_at: now,
            left: false,
            left_out_by_leader: false,
            lost: 0,
            lost_in_device: 0,
        }
    }
}

impl SourceNode {
    /// Receives and handles the messages of a builder.
    pub(super) fn serve(&mut self, index: usize) -> Result<(), NodeError> {
        if self.builders[index].left {
            return Ok(());
        }
        let mut said = Vec::new();
        let result = self.endpoints.receive(index, &mut said);
        self.came |= !said.is_empty();
        for message in said {
            self.on_message(index, message)?;
        }
        match result {
            Ok(_) => Ok(()),
            Err(error) => self.lost(index, error),
        }
    }

    pub(super) fn on_message(&mut self, index: usize, message: Message) -> Result<(), NodeError> {
        let builder = &mut self.builders[index];
        match message {
            Message::Welcome(welcome) => self.welcomed(index, welcome)?,
            Message::Start { run, first, at } => self.start(index, run, first, at),
            Message::Release { below } => {
                self.release(index, below);
                self.blocked = false;
            }
            Message::Pause => self.pause(index),
            Message::Resume if index == 0 => {
                self.resume();
                if self.phase == Phase::Running {
                    self.pass_on(&Message::Running);
                }
            }
            Message::StopAt { end, end_here } if index == 0 => {
                self.resume();
                self.ends_here = end_here;
                self.pass_on(&Message::EndsAt { end });
                // A run that was to end there from the beginning waits for the device as before.
                if self.end_at.replace(end.0) != Some(end.0) {
                    self.end_without_device();
                }
            }
            Message::Bye => {
                builder.done = true;
                self.endpoints.close(index);
                self.release(index, u64::MAX);
                self.pass_on_room(index);
            }
            Message::EventsBegin { time } if index == 0 => self.begin_events(time),
            Message::ReportTimes { first } if index == 0 => self.times = Some(TimesReport::new(first)),
            Message::NumbersAgree { first } if index == 0 => self.numbers_agree(first),
            Message::Room(room) => self.heard_room(index, room),
            Message::Assign(assign) if index == 0 => self.assign(assign)?,
            Message::LeaveOut { builder } if index == 0 => self.leave_out_builder(builder)?,
            _ => {}
        }
        Ok(())
    }

    fn welcomed(&mut self, index: usize, welcome: Welcome) -> Result<(), NodeError> {
        let builder = &mut self.builders[index];
        if !welcome.capabilities.contains(self.settings.policy.capabilities()) {
            return Err(NodeError::Config(format!(
                "the builder at {} does not let a source withdraw what it offered: choose another `policy` than \
                 drop-oldest",
                builder.address
            )));
        }
        if index == 0 && waits_for_events(&self.settings) && !welcome.capabilities.contains(Capabilities::BY_TIME) {
            return Err(NodeError::Config(format!(
                "the builder at {} does not say when events begin, as `beat` without `phase` wants: it is of an older version",
                builder.address
            )));
        }
        let is_assigned = welcome.capabilities.contains(Capabilities::ASSIGNED);
        let knows_another = self.builders.iter().any(|builder| builder.welcome.is_some() || builder.started);
        if knows_another && is_assigned != self.assignments.is_some() {
            return Err(NodeError::Config(
                "of the builders, some assign events by room and others by their numbers: compare `run.assignment` in \
                 their topology files"
                    .into(),
            ));
        }
        if is_assigned && self.assignments.is_none() {
            self.assignments = Some(Assignments::new(self.builders.len()));
        }
        let builder = &mut self.builders[index];
        builder.away = None;
        builder.was_found = true;
        builder.most_records = welcome.most_records;
        builder.welcome = Some(welcome);
        self.release(index, welcome.released_below);
        let builder = &mut self.builders[index];
        if let Some(link) = self.endpoints.link_mut(index) {
            // After a reconnection, everything that has not been released is offered again, under the same tickets.
            builder.book.iter().for_each(|(offer, _)| link.offer(offer));
            if builder.passed > 0 {
                let (below, tickets) = (EventId(builder.passed), builder.book.next_ticket());
                link.send(&Message::Passed { below, tickets });
            }
        }
        if self.phase == Phase::Ending && self.builders[index].started {
            self.send_final_counters(index);
        }
        if index > 0 {
            self.pass_on_standing(index);
        }
        if index == 0 {
            self.tell_all_rooms();
            self.say_first_frame_again();
        } else {
            self.pass_on_room(index);
        }
        self.blocked = false;
        Ok(())
    }

    fn start(&mut self, index: usize, run: RunNumber, first: EventId, at: TaiNanos) {
        if std::mem::replace(&mut self.builders[index].started, true) {
            // The message was received again after a reconnection.
            return;
        }
        if index == 0 {
            (self.next_event, self.first_event) = (first.0, first.0);
            self.begin_reporting(first);
            self.run_began = at;
            self.assignments.iter_mut().for_each(|assignments| assignments.begin(first.0));
        }
        self.run = run;
        if index == 0 {
            // Builders that wait for the leading one learn that it has begun.
            self.pass_on(&Message::Running);
        }
        if self.phase == Phase::Ending {
            // The run has ended elsewhere before it began here.
            self.send_final_counters(index);
        }
        self.start_if_all_have();
    }

    /// Sends a builder the end of this source, with its final counters.
    fn send_final_counters(&mut self, index: usize) {
        if index == 0 {
            self.send_to(0, &Message::NotTaken(self.not_taken()));
        }
        self.send_to(index, &Message::End(self.builders[index].accounts));
    }

    /// Begins once all builders that take part have started the run.
    pub(super) fn start_if_all_have(&mut self) {
        if self.phase == Phase::Waiting && self.builders.iter().all(|builder| builder.started || builder.left) {
            self.phase = if self.begins_paused { Phase::Paused } else { Phase::Running };
            self.due = self.settings.rate.map(|_| self.clock.now());
        }
    }

    /// Accepts fragments again. Fragments that were due meanwhile do not come in a burst.
    fn resume(&mut self) {
        self.blocked = false;
        self.begins_paused = false;
        if self.phase == Phase::Paused {
            self.phase = Phase::Running;
            self.due = self.due.map(|due| due.max(self.clock.now()));
        }
    }

    /// Relays to a builder that does not lead what the leading builder has sent so far.
    fn pass_on_standing(&mut self, index: usize) {
        if self.builders[0].started {
            match self.phase {
                Phase::Paused => self.send_to(index, &Message::Paused { next: EventId(self.next_event), asked_by: 0 }),
                _ => self.send_to(index, &Message::Running),
            }
        }
        if let Some(end) = self.end_at {
            self.send_to(index, &Message::EndsAt { end: EventId(end) });
        }
    }

    /// Answers a builder that asks for this source's position. If the leading builder asks, the source pauses and tells
    /// the other builders. If another builder asks, that one wants the run to end, and the leading builder is told.
    pub(super) fn pause(&mut self, index: usize) {
        if index == 0 && self.phase == Phase::Running {
            self.count_dead_time();
            self.dead.since = None;
            self.phase = Phase::Paused;
        }
        self.begins_paused |= index == 0 && self.phase == Phase::Waiting;
        // Accepted fragments are offered first: builders can rely on these only.
        for builder in 0..self.builders.len() {
            self.offer(builder);
            self.announce_drops(builder);
        }
        let asked_by = self.builders[index].greeting.hello.builder;
        let paused = Message::Paused { next: EventId(self.next_event), asked_by };
        if index > 0 {
            self.send_to(index, &paused);
            self.send_to(0, &paused);
        } else {
            self.send_to(0, &paused);
            self.pass_on(&paused);
        }
    }

    /// Relays a message of the leading builder to the others.
    pub(super) fn pass_on(&mut self, message: &Message) {
        for index in 1..self.builders.len() {
            if self.builders[index].welcome.is_some() {
                self.send_to(index, message);
            }
        }
    }

    pub(super) fn send_to(&mut self, index: usize, message: &Message) {
        if let Some(link) = self.endpoints.link_mut(index) {
            link.send(message);
        }
    }

    pub(super) fn release(&mut self, index: usize, below: u64) {
        let Self { builders, pool, .. } = self;
        let builder = &mut builders[index];
        builder.granted = builder.granted.split_off(&below);
        for (offer, slot) in builder.book.release(below) {
            if offer.disposition == Disposition::Eager {
                builder.eager -= offer.bytes;
            }
            if let Some(slot) = slot {
                pool.give_back(slot);
            }
        }
    }

    /// Handles the end of a connection.
    pub(super) fn lost(&mut self, index: usize, error: LinkError) -> Result<(), NodeError> {
        let builder = &mut self.builders[index];
        if builder.left {
            return Ok(());
        }
        let who = builder.address.to_string();
        if let Some(link) = self.endpoints.link_mut(index) {
            if builder.address.kind().maps {
                let offered = builder.book.iter().map(|(offer, _)| offer.ticket);
                builder.granted.extend(offered.filter(|ticket| !link.withdraw(*ticket)));
            }
            builder.copied += link.copied();
        }
        self.endpoints.close(index);
        builder.welcome = None;
        builder.broken = None;
        builder.kept_from = 0;
        // Nothing has been sent eagerly over the next connection yet: what is offered again waits to be fetched.
        builder.eager = 0;
        for (offer, _) in builder.book.iter_mut().filter(|(offer, _)| offer.disposition == Disposition::Eager) {
            offer.disposition = Disposition::Held;
        }
        let for_good = match &error {
            LinkError::Refused { reason, .. } => *reason != Refusal::Busy,
            error => error.is_violation(),
        };
        if for_good {
            return self.left_by(index, NodeError::Link { who, error });
        }
        let now = self.clock.now();
        let since = builder.away.map_or(now, |(since, _)| since);
        builder.away = Some((since, now + RETRY));
        tracing::debug!(builder = who, %error, "no connection");
        builder.last_error = Some(error);
        self.pass_on_room(index);
        Ok(())
    }

    /// Goes on without a builder that takes no further part, if the run has begun there and others remain; fails
    /// otherwise. If it is the leading builder, this source's own part of the run ends.
    fn left_by(&mut self, index: usize, error: NodeError) -> Result<(), NodeError> {
        let others = self.builders.iter().enumerate().any(|(at, builder)| at != index && !builder.done);
        if !self.builders[index].started || !others {
            return Err(self.failure.take().unwrap_or(error));
        }
        tracing::warn!("{error}; the run goes on without that builder");
        self.failure.get_or_insert(error);
        self.forget_builder(index);
        if index == 0 && self.phase != Phase::Ending {
            self.end();
        }
        self.pass_on_room(index);
        self.start_if_all_have();
        Ok(())
    }

    pub(super) fn reconnect(&mut self) -> Result<(), NodeError> {
        let now = self.clock.now();
        for index in 0..self.builders.len() {
            let builder = &mut self.builders[index];
            let Some((since, at)) = builder.away else { continue };
            if at > now {
                continue;
            }
            if now > since + self.settings.timeout {
                let who = builder.address.to_string();
                let error = builder.last_error.take().unwrap_or(LinkError::Closed);
                let time = humantime::format_duration(self.settings.timeout);
                self.left_by(index, NodeError::Absent(format!("no builder at {who} for {time}: {error}")))?;
                continue;
            }
            if self.endpoints.link(index).is_some() {
                // The builder is connected, but has not sent its welcome: it has until the timeout.
                builder.away = Some((since, now + self.settings.timeout));
                continue;
            }
            let congestion = self.settings.congestion.as_deref();
            match self.endpoints.connect(index, &builder.address, congestion, &builder.greeting) {
                Ok(()) => builder.away = Some((since, now + self.settings.timeout)),
                // A mistake in the configuration is not cured by trying again. An address that was right before is no
                // mistake.
                Err(error @ LinkError::Unusable { .. }) if !builder.was_found => return Err(NodeError::Wait(error)),
                Err(error) => self.lost(index, error)?,
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), NodeError> {
        self.send();
        for index in 0..self.builders.len() {
            if let Some(error) = self.builders[index].broken.take() {
                self.lost(index, error)?;
            }
        }
        Ok(())
    }

    /// Sends what can be sent now. A broken link is left for the next turn, since only the thread that takes turns can
    /// wait for the time to connect again.
    pub(super) fn send(&mut self) {
        let mut broken = Vec::new();
        self.endpoints.flush(self.clock.now(), &mut broken);
        for (index, error) in broken {
            self.builders[index].broken.get_or_insert(error);
        }
    }
}
