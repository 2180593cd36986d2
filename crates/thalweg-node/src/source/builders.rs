//! Builders of a source: the connections to them, and what is delivered to each.

use super::delivery::{Connected, Delivery, sum_counters};
use crate::drive::Leaving;
use crate::slots::Slots;
use crate::wait::{Idle, Waiter};
use crate::{NodeError, SourceSettings};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thalweg_link::{Address, Arrivals, Endpoints, LinkError, Poller, SourceEndpoint, SourceGreeting};
use thalweg_wire::{
    Capabilities, Contact, Disposition, EventId, FinalCounters, Hello, MAX_RECORDS, Message, NotTaken, Refusal,
    RunNumber, Welcome,
};

/// Time from a failed attempt to connect to a builder to the next one.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// Time for which a builder is away before that is reported: a builder that just starts is there by then.
const ABSENCE_REPORT_TIME: Duration = Duration::from_millis(500);

/// All builders of a source, with the endpoints through which it reaches them: who is connected, and what each gets.
#[derive(Debug)]
pub(super) struct Builders {
    builders: Vec<Builder>,
    /// Connections to the builders; peers have the numbers of the builders.
    endpoints: Endpoints<dyn SourceEndpoint>,
    /// Congestion control of TCP links: see [`SourceEndpoint::connect_to_builder`].
    congestion: Option<String>,
    /// Time after which the search for a builder is given up.
    timeout: Duration,
    /// True if that time counts only from the beginning of a run on.
    waits_for_run: bool,
    /// Time at which a first builder began the run.
    run_began_at: Option<Duration>,
    /// Buffer that is kept for reuse.
    ready: Vec<usize>,
    waiter: Waiter,
    /// True if something arrived in this turn.
    has_received: bool,
    /// Delivery of the last messages.
    leaving: Leaving,
    /// Reason why a builder that had begun the run takes no further part.
    failure: Option<NodeError>,
}

/// One builder, as this source sees it.
#[derive(Debug)]
struct Builder {
    address: Address,
    greeting: SourceGreeting,
    welcome: Option<Welcome>,
    has_started: bool,
    /// Number of the run that it has begun last.
    run: RunNumber,
    /// True if its address led to it at least once.
    was_found: bool,
    is_done: bool,
    /// Time since which there is no connection, and time of the next attempt.
    away: Option<(Duration, Duration)>,
    /// True if a connection was tried since then.
    was_tried: bool,
    last_error: Option<LinkError>,
    /// True if its absence was reported since it was last connected.
    absence_reported: bool,
    /// Error that broke the link during sending, which only the thread that takes turns deals with.
    broken: Option<LinkError>,
    /// Limit of the records in a slot, as in its last welcome.
    max_records: u32,
    /// True if the leading builder left it out.
    is_left_out: bool,
    /// Loss of the builder as reported to the others, if it takes no further part and has not dismissed this source.
    lost: Option<Message>,
    delivery: Delivery,
}

/// Result of an attempt to connect to a builder that is away.
#[derive(Debug)]
pub(super) enum Attempt {
    /// A connection is under way, or it is not time for another attempt.
    Waits,
    /// The attempt failed, and is repeated later.
    Failed(LinkError),
    /// The builder was not found in time.
    Absent(NodeError),
}

impl Builders {
    /// Creates the builders at the addresses of `settings`, which are to be connected to from `now` on. `hello` is that
    /// for the first one.
    pub(super) fn new(
        settings: &SourceSettings,
        endpoints: Endpoints<dyn SourceEndpoint>,
        (hello, description): (Hello, &str),
        slots: &Slots,
        now: Duration,
    ) -> Self {
        let stride = settings.builders.len() as u64;
        let builders = settings.builders.iter().zip(0..).map(|(address, builder)| {
            let (hello, description, arena) =
                (Hello { builder, ..hello }, description.to_owned(), Arc::clone(slots.slot_arena()));
            let greeting = SourceGreeting { hello, description, arena };
            Builder::new(address.clone(), greeting, Delivery::new(stride, now), now)
        });
        Self {
            builders: builders.collect(),
            endpoints,
            congestion: settings.congestion.clone(),
            timeout: settings.timeout,
            waits_for_run: false,
            run_began_at: None,
            ready: Vec::new(),
            waiter: Waiter::new(settings.wait),
            has_received: false,
            leaving: Leaving::default(),
            failure: None,
        }
    }

    /// Returns the time after which the search for a builder is given up.
    pub(super) fn search_timeout(&self) -> Duration {
        self.timeout
    }

    /// Lets the time after which the search for a builder is given up count only from the beginning of a run on.
    pub(super) fn search_without_limit(&mut self) {
        self.waits_for_run = true;
    }

    /// Returns whether that time counts only from the beginning of a run on.
    pub(super) fn waits_for_run(&self) -> bool {
        self.waits_for_run
    }

    /// Returns the time at which the search for a builder that is away `since` then is given up, if it ever is.
    fn search_end(&self, since: Duration) -> Option<Duration> {
        match (self.waits_for_run, self.run_began_at) {
            (false, _) => Some(since + self.timeout),
            (true, began_at) => Some(began_at?.max(since) + self.timeout),
        }
    }

    /// Returns the number of builders.
    pub(super) fn len(&self) -> usize {
        self.builders.len()
    }

    /// Returns the numbers of all builders.
    pub(super) fn all_numbers(&self) -> Range<usize> {
        0..self.builders.len()
    }

    /// Returns the numbers of the builders that do not lead.
    pub(super) fn following_numbers(&self) -> Range<usize> {
        1..self.builders.len()
    }

    /// Returns the poller to wait on.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        self.endpoints.poller()
    }

    /// Drives all connections, and returns those that have something to receive. The buffer comes back by
    /// [`reuse`](Self::reuse).
    pub(super) fn poll(&mut self, woken: &[u64], now: Duration) -> Vec<usize> {
        let mut ready = std::mem::take(&mut self.ready);
        self.endpoints.poll_peers(now, woken, &mut ready);
        ready
    }

    /// Keeps the buffer of [`poll`](Self::poll) for the next turn.
    pub(super) fn reuse(&mut self, mut ready: Vec<usize>) {
        ready.clear();
        self.ready = ready;
    }

    /// Receives the messages of a builder, unless it takes no further part.
    pub(super) fn receive_messages(&mut self, index: usize) -> Option<(Vec<Message>, Result<bool, LinkError>)> {
        if self.builders[index].delivery.is_over() {
            return None;
        }
        let mut messages = Vec::new();
        let result = self.endpoints.receive_messages(index, &mut messages);
        self.has_received |= !messages.is_empty();
        Some((messages, result))
    }

    /// Records that something has come from the device.
    pub(super) fn note_arrival(&mut self) {
        self.has_received = true;
    }

    /// Returns the address of a builder.
    pub(super) fn builder_address(&self, index: usize) -> &Address {
        &self.builders[index].address
    }

    /// Returns the number by which a builder is known to the others.
    pub(super) fn builder_number(&self, index: usize) -> u32 {
        self.builders[index].greeting.hello.builder
    }

    /// Returns the capabilities of builder 0 that this source has too; none before its welcome.
    pub(super) fn leader_capabilities(&self) -> Capabilities {
        self.builders[0].welcome.map_or(Capabilities::empty(), |welcome| welcome.capabilities)
    }

    /// Returns whether any builder has welcomed this source or has started the run.
    pub(super) fn knows_any(&self) -> bool {
        self.builders.iter().any(|builder| builder.welcome.is_some() || builder.has_started)
    }

    /// Makes the events of each builder consecutive ones, as they are if builder 0 assigns them.
    pub(super) fn assign_by_room(&mut self) {
        self.builders.iter_mut().for_each(|builder| builder.delivery.assign_by_room());
    }

    /// Handles the welcome of a builder: what it has not released is offered again.
    pub(super) fn handle_welcome(&mut self, index: usize, welcome: Welcome, slots: &mut Slots) {
        let builder = &mut self.builders[index];
        builder.away = None;
        builder.absence_reported = false;
        builder.was_found = true;
        builder.max_records = welcome.most_records;
        builder.welcome = Some(welcome);
        builder.delivery.release(welcome.released_below, slots);
        if let Some(link) = self.endpoints.source_link_mut(index) {
            builder.delivery.repeat_offers(link);
        }
    }

    /// Returns whether a builder has welcomed this source over its present connection.
    pub(super) fn is_welcome(&self, index: usize) -> bool {
        self.builders[index].welcome.is_some()
    }

    /// Returns the number of builders that have welcomed this source over their present connections.
    pub(super) fn welcome_count(&self) -> usize {
        self.builders.iter().filter(|builder| builder.welcome.is_some()).count()
    }

    /// Notes that a builder has started the run. Returns true if it had not before.
    pub(super) fn note_started(&mut self, index: usize, now: Duration) -> bool {
        self.run_began_at.get_or_insert(now);
        self.builders[index].greeting.hello.capabilities |= Capabilities::RETURNS;
        !std::mem::replace(&mut self.builders[index].has_started, true)
    }

    /// Notes the run that a builder has begun last.
    pub(super) fn note_run(&mut self, index: usize, run: RunNumber) {
        self.builders[index].run = run;
    }

    /// Returns whether all builders but builder 0 have begun this run, or take no further part.
    pub(super) fn others_have_begun(&self, run: RunNumber) -> bool {
        self.builders[1..].iter().all(|builder| builder.run == run || builder.delivery.is_over())
    }

    /// Returns whether a builder can go from one run to the next. One that is away can, as far as is known.
    pub(super) fn enters_next_run(&self, index: usize) -> bool {
        self.builders[index].welcome.is_none_or(|welcome| welcome.capabilities.contains(Capabilities::NEXT_RUN))
    }

    /// Returns whether a builder has started the run.
    pub(super) fn has_started(&self, index: usize) -> bool {
        self.builders[index].has_started
    }

    /// Returns whether all builders that take part have started the run.
    pub(super) fn all_have_started(&self) -> bool {
        self.builders.iter().all(|builder| builder.has_started || builder.delivery.is_over())
    }

    /// Handles the dismissal by a builder, which needs nothing more.
    pub(super) fn handle_dismissal(&mut self, index: usize, slots: &mut Slots) {
        self.builders[index].is_done = true;
        self.endpoints.close_link(index);
        self.builders[index].delivery.release(u64::MAX, slots);
    }

    /// Returns whether all builders are done with this source.
    pub(super) fn all_are_done(&self) -> bool {
        self.builders.iter().all(|builder| builder.is_done)
    }

    /// Returns the state of the connection to a builder. `is_ending`: this source's part of the run has ended.
    pub(super) fn contact_state(&self, index: usize, is_ending: bool) -> Contact {
        match &self.builders[index] {
            builder if builder.delivery.is_over() && !builder.is_left_out && !is_ending => Contact::Away,
            builder if builder.is_done => Contact::Done,
            builder if builder.welcome.is_some() => Contact::Connected,
            _ => Contact::Away,
        }
    }

    /// Sends a message to a builder, if it is connected.
    pub(super) fn send_to_builder(&mut self, index: usize, message: &Message) {
        if let Some(link) = self.endpoints.source_link_mut(index) {
            link.send_message(message);
        }
    }

    /// Sends a message to a builder that has welcomed this source.
    pub(super) fn send_if_welcome(&mut self, index: usize, message: &Message) {
        if self.is_welcome(index) {
            self.send_to_builder(index, message);
        }
    }

    /// Relays a message of the leading builder to the others.
    pub(super) fn relay_to_others(&mut self, message: &Message) {
        self.following_numbers().for_each(|index| self.send_if_welcome(index, message));
    }

    /// Returns what is delivered to a builder.
    pub(super) fn delivery(&self, index: usize) -> &Delivery {
        &self.builders[index].delivery
    }

    /// Returns what is delivered to a builder, to be continued.
    pub(super) fn delivery_mut(&mut self, index: usize) -> &mut Delivery {
        &mut self.builders[index].delivery
    }

    /// Returns what is delivered to a builder, and its connection if it has welcomed this source.
    fn delivery_and_connection(&mut self, index: usize) -> (&mut Delivery, Option<Connected<'_>>) {
        let Builder { welcome, delivery, .. } = &mut self.builders[index];
        let link = self.endpoints.source_link_mut(index);
        let connected = welcome.zip(link).map(|(welcome, link)| Connected { welcome, link });
        (delivery, connected)
    }

    /// Returns the number of records that may share a slot: the number that every builder accepts. For a builder that
    /// is away, the number in its last welcome counts.
    pub(super) fn max_records(&self) -> u32 {
        self.builders.iter().map(|builder| builder.max_records).min().unwrap_or(MAX_RECORDS).max(1)
    }

    /// Offers a builder the content of the slot that is being filled for it.
    pub(super) fn offer(&mut self, index: usize) {
        if self.builders[index].delivery.is_filling() {
            let (delivery, connected) = self.delivery_and_connection(index);
            delivery.offer(connected);
        }
    }

    /// Offers a builder everything that was accepted for it, and announces what will not come.
    pub(super) fn offer_and_announce(&mut self, index: usize) {
        self.offer(index);
        let (delivery, mut connected) = self.delivery_and_connection(index);
        delivery.announce_drops(connected.as_mut());
    }

    /// Offers all partly filled slots. A slot holds consecutive events, and the next one leaves some out.
    pub(super) fn offer_all(&mut self) {
        self.all_numbers().for_each(|index| self.offer(index));
    }

    /// Offers partly filled slots where little is under way: those need not wait for more fragments.
    pub(super) fn offer_partial(&mut self) {
        for index in self.all_numbers() {
            if self.builders[index].delivery.open_tickets() < 2 {
                self.offer(index);
                let (delivery, mut connected) = self.delivery_and_connection(index);
                if delivery.open_tickets() == 0 {
                    delivery.announce_drops(connected.as_mut());
                }
            }
        }
    }

    /// Records that `count` fragments for a builder are dropped or lost, from `event` on.
    pub(super) fn drop_fragments(&mut self, index: usize, event: EventId, count: u32, how: Disposition) {
        let (delivery, mut connected) = self.delivery_and_connection(index);
        delivery.drop_fragments(event, count, how, connected.as_mut());
    }

    /// Does the same as [`drop_fragments`](Self::drop_fragments), for any number of consecutive events of a builder.
    /// `apart`: distance from one event to the next.
    pub(super) fn drop_range(&mut self, index: usize, first: u64, count: u64, apart: u64, how: Disposition) {
        let (mut from, mut left) = (first, count);
        while left > 0 {
            let run = u32::try_from(left).unwrap_or(u32::MAX);
            self.drop_fragments(index, EventId(from), run, how);
            from += u64::from(run) * apart;
            left -= u64::from(run);
        }
    }

    /// Drops the oldest slot for a builder that it has not asked for, and returns it.
    pub(super) fn drop_oldest(&mut self, index: usize) -> Option<thalweg_arena::Slot> {
        let (delivery, connected) = self.delivery_and_connection(index);
        delivery.drop_oldest(connected)
    }

    /// Closes the final counters of a builder, and sends them if it is connected.
    pub(super) fn send_final_counters(&mut self, index: usize, sequence: u32, cpu_nanos: u64) {
        let copied = self.endpoints.source_link(index).map_or(0, |link| link.copied_bytes());
        let delivery = &mut self.builders[index].delivery;
        delivery.close_accounts(copied, sequence, cpu_nanos);
        let final_counters = delivery.final_counters();
        self.send_if_welcome(index, &Message::End(final_counters));
    }

    /// Ends the run for a builder, to which everything accepted in it was offered. `not_taken`: counts for builder 0.
    pub(super) fn end_run(
        &mut self,
        index: usize,
        run: RunNumber,
        not_taken: NotTaken,
        (sequence, cpu_nanos): (u32, u64),
    ) {
        let copied = self.endpoints.source_link(index).map_or(0, |link| link.copied_bytes());
        let (delivery, connected) = self.delivery_and_connection(index);
        let not_taken = (index == 0).then_some(not_taken);
        delivery.end_run(run, not_taken, (copied, sequence, cpu_nanos), connected);
    }

    /// Returns the sum of the counters of all builders.
    pub(super) fn total_accounts(&self) -> FinalCounters {
        let counters = self.builders.iter().map(|builder| builder.delivery.total_counters());
        counters.fold(FinalCounters::default(), sum_counters)
    }

    /// Returns whether a builder that another one has left out is still waited for by builder 0, which is connected: the
    /// counts of its fragments are to be sent.
    pub(super) fn owes_counts(&self, index: usize) -> bool {
        self.builders[index].is_left_out && self.is_welcome(0)
    }

    /// Handles the end of the connection to a builder, and returns the error if that is for good. Otherwise it is
    /// connected again later.
    pub(super) fn handle_disconnection(&mut self, index: usize, error: LinkError, now: Duration) -> Option<NodeError> {
        let builder = &mut self.builders[index];
        let peer = builder.address.to_string();
        builder.delivery.handle_disconnection(self.endpoints.source_link_mut(index), builder.address.link_kind().maps);
        self.endpoints.close_link(index);
        builder.welcome = None;
        builder.broken = None;
        let is_before_run = self.waits_for_run && self.run_began_at.is_none();
        let is_for_good = match &error {
            LinkError::Refused { reason: Refusal::Busy, .. } => false,
            // The builder is still busy with the run before.
            LinkError::Refused { reason: Refusal::Ended, .. } => !is_before_run,
            LinkError::Refused { .. } => true,
            error => error.is_violation(),
        };
        if is_for_good {
            return Some(NodeError::Link { who: peer, error });
        }
        builder.was_tried &= builder.away.is_some();
        let since = builder.away.map_or(now, |(since, _)| since);
        builder.away = Some((since, now + RETRY_TIME));
        tracing::debug!(builder = peer, %error, "no connection");
        builder.last_error = Some(error);
        None
    }

    /// Goes on without a builder that takes no further part, if the run has begun somewhere and other builders remain.
    ///
    /// # Errors
    /// It has not, or none remains. The error is the first for which a builder has left.
    pub(super) fn go_on_without(&mut self, index: usize, error: NodeError) -> Result<(), NodeError> {
        let others = self.builders.iter().enumerate().any(|(other, builder)| other != index && !builder.is_done);
        let began_anywhere = self.builders.iter().any(|builder| builder.has_started);
        if !began_anywhere || !others {
            return Err(self.failure.take().unwrap_or(error));
        }
        let consequence = match (index, self.builders[index].has_started) {
            (0, _) => "that builder leads the run, so that this source ends its part of it",
            (_, true) => "the run goes on without that builder",
            (_, false) => "the run did not begin there, so that this source ends its part of it",
        };
        tracing::warn!("{error}; {consequence}");
        let refusal = match &error {
            NodeError::Link { error: LinkError::Refused { reason, .. }, .. } => Some(*reason),
            NodeError::Link { .. } => Some(Refusal::Protocol),
            _ => None,
        };
        self.builders[index].lost = Some(Message::BuilderLost { builder: self.builder_number(index), refusal });
        self.failure.get_or_insert(error);
        Ok(())
    }

    /// Informs all other builders of the loss of one.
    pub(super) fn report_loss(&mut self, lost: usize) {
        let Some(message) = self.builders[lost].lost else { return };
        self.all_numbers().for_each(|index| self.send_if_welcome(index, &message));
    }

    /// Informs a builder, which has just welcomed this source, of the loss of others.
    pub(super) fn repeat_losses(&mut self, index: usize) {
        let lost: Vec<Message> = self.builders.iter().filter_map(|builder| builder.lost).collect();
        lost.iter().for_each(|message| self.send_to_builder(index, message));
    }

    /// Gives a builder up for good: fragments that wait for it are lost, and its slots are free.
    pub(super) fn give_up_builder(&mut self, index: usize, slots: &mut Slots) {
        let builder = &mut self.builders[index];
        self.endpoints.close_link(index);
        (builder.welcome, builder.away, builder.broken) = (None, None, None);
        builder.is_done = true;
        builder.delivery.give_up_builder(slots);
    }

    /// Notes that the leading builder has left a builder out.
    pub(super) fn mark_left_out(&mut self, index: usize) {
        self.builders[index].is_left_out = true;
    }

    /// Connects to a builder that is away, if it is time.
    ///
    /// # Errors
    /// A mistake in the configuration, which is not cured by trying again.
    pub(super) fn try_connect(&mut self, index: usize, now: Duration) -> Result<Attempt, NodeError> {
        let Some((since, _)) = self.builders[index].away.filter(|(_, at)| *at <= now) else {
            return Ok(Attempt::Waits);
        };
        let is_over = self.search_end(since).is_some_and(|end| now > end);
        let is_connected = self.endpoints.source_link(index).is_some();
        let builder = &mut self.builders[index];
        // A source that was not scheduled until then may not have tried yet.
        if is_over && builder.was_tried {
            let error = builder.last_error.take().unwrap_or(LinkError::Closed);
            let (peer, time) = (&builder.address, humantime::format_duration(self.timeout));
            return Ok(Attempt::Absent(NodeError::Absent(format!("no builder at {peer} for {time}: {error}"))));
        }
        builder.was_tried = true;
        if !is_connected {
            let congestion = self.congestion.as_deref();
            match self.endpoints.connect_to_builder(index, &builder.address, congestion, &builder.greeting) {
                Ok(()) => {}
                // An address that was right before is no mistake.
                Err(error @ LinkError::Unusable { .. }) if !builder.was_found => return Err(NodeError::Wait(error)),
                Err(error) => return Ok(Attempt::Failed(error)),
            }
        }
        // A builder that is connected, and has not sent its welcome, has until the timeout.
        builder.away = Some((since, now + self.timeout));
        Ok(Attempt::Waits)
    }

    /// Returns a sentence about a builder that has been away for a moment, and the time until which it is tried again,
    /// if there is a limit; once for each absence.
    pub(super) fn next_absence_report(&mut self, index: usize, now: Duration) -> Option<(String, Option<Duration>)> {
        let (since, _) = self.builders[index].away.filter(|(since, _)| now >= *since + ABSENCE_REPORT_TIME)?;
        let until = self.search_end(since);
        let builder = &mut self.builders[index];
        if std::mem::replace(&mut builder.absence_reported, true) {
            return None;
        }
        let address = &builder.address;
        let sentence = match &builder.last_error {
            None | Some(LinkError::Closed) => format!("{address} has not answered so far"),
            Some(LinkError::Io { error, .. }) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                format!("{address} refused the connection: no builder listens there")
            }
            Some(LinkError::Io { error, .. }) => format!("{address} cannot be reached: {error}"),
            Some(error) => format!("{address} is not connected: {error}"),
        };
        Some((sentence, until))
    }

    /// Sends what can be sent now. A broken link is left for the next turn, since only the thread that takes turns can
    /// wait for the time to connect again.
    pub(super) fn flush_messages(&mut self, now: Duration) {
        let mut broken = Vec::new();
        self.endpoints.flush_messages(now, &mut broken);
        for (index, error) in broken {
            self.builders[index].broken.get_or_insert(error);
        }
    }

    /// Removes and returns the error that broke the link to a builder during sending.
    pub(super) fn take_broken(&mut self, index: usize) -> Option<LinkError> {
        self.builders[index].broken.take()
    }

    /// Returns whether there is work, until `sleeps_until`, that only the thread that takes turns can do.
    pub(super) fn needs_turn(&self, sleeps_until: Option<Duration>) -> bool {
        let timeout = self.endpoints.next_timeout();
        self.builders.iter().any(|builder| builder.broken.is_some())
            || timeout.is_some_and(|at| sleeps_until.is_none_or(|until| at < until))
    }

    /// Returns when there is something to do even if nothing arrives.
    pub(super) fn next_due_time(&self) -> Option<Duration> {
        let retry = self.builders.iter().filter_map(|builder| builder.away.map(|(_, at)| at));
        let reports = self.builders.iter().filter(|builder| !builder.absence_reported);
        let reports = reports.filter_map(|builder| builder.away.map(|(since, _)| since + ABSENCE_REPORT_TIME));
        retry.chain(reports).chain(self.endpoints.next_timeout()).min()
    }

    /// Returns how to wait for the next turn, for at most `timeout`.
    pub(super) fn next_idle(&mut self, timeout: Option<Duration>, now: Duration) -> Idle {
        let has_received = std::mem::take(&mut self.has_received);
        self.waiter.next_idle(&mut self.endpoints, has_received, false, timeout, now)
    }

    /// Returns whether the delivery of the last messages has begun.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.has_begun()
    }

    /// Delivers the last messages. Returns true once there is nothing left to repeat.
    pub(super) fn deliver_last_messages(&mut self, woken: &[u64], now: Duration) -> bool {
        self.leaving.turn(&mut self.endpoints, woken, now)
    }

    /// Returns the time without work unless something arrives, while the last messages are delivered; `None` before.
    pub(super) fn leaving_timeout(&self, now: Duration) -> Option<Duration> {
        self.leaving.time_to_next_turn(&self.endpoints, now)
    }

    /// Returns the reason why a builder that had begun the run took no further part.
    pub(super) fn take_failure(&mut self) -> Option<NodeError> {
        self.failure.take()
    }

    /// Returns the counts of datagrams that arrived.
    pub(super) fn datagram_arrivals(&self) -> Arrivals {
        self.endpoints.arrival_counts()
    }

    #[cfg(test)]
    pub(super) fn is_linked(&self, index: usize) -> bool {
        self.endpoints.source_link(index).is_some()
    }

    #[cfg(test)]
    pub(super) fn is_done(&self, index: usize) -> bool {
        self.builders[index].is_done
    }

    #[cfg(test)]
    pub(super) fn set_max_records(&mut self, max_records: u32) {
        self.builders.iter_mut().for_each(|builder| builder.max_records = max_records);
    }
}

impl Builder {
    /// Creates a builder that is to be connected to, from `now` on.
    fn new(address: Address, greeting: SourceGreeting, delivery: Delivery, now: Duration) -> Self {
        Self {
            address,
            greeting,
            welcome: None,
            has_started: false,
            run: RunNumber(0),
            was_found: false,
            is_done: false,
            away: Some((now, now)),
            was_tried: false,
            last_error: None,
            absence_reported: false,
            broken: None,
            max_records: MAX_RECORDS,
            is_left_out: false,
            lost: None,
            delivery,
        }
    }
}
