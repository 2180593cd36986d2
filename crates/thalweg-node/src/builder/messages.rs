//! Messages to a builder: connections are accepted, and what arrives over them goes to the part that it concerns.

use super::BuilderNode;
use super::next::NextRun;
use super::peers::{Greeting, Sender, Silence};
use crate::{NodeError, Policy};
use serde_json::json;
use std::time::Duration;
use thalweg_link::{LinkError, Received};
use thalweg_wire::{Announcement, Capabilities, EventId, FinalCounters, Hello, Message, Refusal, TaiNanos, Welcome};

/// Connections accepted at an address before others have their turn.
const MAX_ACCEPTED_IN_TURN: usize = 32;
/// Number of disconnections without progress in between after which a source is given up.
const MAX_CUTS: u32 = 3;

impl BuilderNode {
    /// Accepts waiting connections, a few at each address.
    pub(super) fn accept_connections(&mut self) -> Result<(), NodeError> {
        for address in 0..self.peers.listening_addresses().len() {
            for _ in 0..MAX_ACCEPTED_IN_TURN {
                match self.peers.accept_waiting(address) {
                    Ok(Some(newcomer)) => {
                        while self.peers.is_crowded() {
                            self.turn_away_oldest_unidentified();
                        }
                        let index = self.peers.keep_connection(newcomer, self.clock.now());
                        // A source sends its hello at once, so it may be here already.
                        self.serve_connection(index);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // The process is probably out of descriptors.
                        tracing::warn!(%error, "cannot accept a connection");
                        if !self.turn_away_oldest_unidentified() {
                            self.peers.delay_accepting(address, self.clock.now())?;
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Closes a connection without a hello, to make room. A source that is turned away tries again. Returns false if
    /// there is no connection to close.
    fn turn_away_oldest_unidentified(&mut self) -> bool {
        let Some(index) = self.peers.oldest_unidentified() else { return false };
        // The hello may have arrived by now.
        self.serve_connection(index);
        if matches!(self.peers.message_sender(index), Sender::Unidentified) {
            let text = "too many connections at once; try again".into();
            self.close_connection(index, &LinkError::Refused { reason: Refusal::Busy, text });
        }
        true
    }

    /// Receives what a peer has sent, up to its first violation. Earlier messages count; later ones are dropped, which
    /// returns the places among them.
    pub(super) fn serve_connection(&mut self, index: usize) {
        let Some((messages, result)) = self.peers.receive(index) else { return };
        let now = self.clock.now();
        if let Some(traffic) = self.peers.count_traffic(index, &messages, now) {
            if traffic.received > 0 {
                self.builder.count_received(traffic.source, traffic.received, now);
            }
            if let Some((sent, again)) = traffic.losses {
                self.builder.report_losses(traffic.source, sent, again);
            }
        }
        for message in messages {
            if let Err(error) = self.handle_received(index, message) {
                self.close_connection(index, &error);
                return;
            }
        }
        if let Err(error) = result {
            self.close_connection(index, &error);
        }
    }

    fn handle_received(&mut self, index: usize, received: Received) -> Result<(), LinkError> {
        match (self.peers.message_sender(index), received) {
            (Sender::Closed, _) => Ok(()),
            (Sender::Unidentified, Received::Hello(hello, description)) => {
                self.greet_source(index, hello, &description)
            }
            (Sender::Unidentified, other) => {
                Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}")))
            }
            (Sender::Source(_), Received::Hello(..)) => {
                Err(LinkError::Protocol("a second hello on one connection".into()))
            }
            (Sender::Source(source), Received::Arrived { ticket, bytes }) => {
                self.assembly.take_slot(&mut self.builder, source, ticket, bytes)
            }
            (Sender::Source(source), Received::Message(message)) => self.handle_message(index, source, message),
        }
    }

    fn handle_message(&mut self, index: usize, source: usize, message: Message) -> Result<(), LinkError> {
        match message {
            Message::Offer(offer) => self.take_offer(index, source, offer)?,
            Message::Paused { next, asked_by } => self.control.source_paused(source, next, asked_by),
            Message::Running => self.control.handle_relayed_run(source),
            Message::EndsAt { end } => self.control.handle_relayed_end(source, end),
            Message::NotTaken(counts) => self.builder_for_ticket(source, u64::MAX).count_not_taken(source, counts),
            Message::RunEnded(counters) => self.take_run_counters(source, counters)?,
            Message::FirstFrame { time, period_nanos } => self.take_first_frame(source, time, period_nanos)?,
            Message::TriggerTimes(report) if self.compares_times_with(source) => {
                self.shifts.take_report(source, &report, self.clock.now());
            }
            Message::TriggerTimes(report) => return Err(LinkError::Protocol(format!("unexpected: {report:?}"))),
            Message::End(final_counters) => self.take_final_counters(source, final_counters)?,
            Message::RoomReport(relayed) => self.assigning.handle_relayed_room(source, &relayed)?,
            Message::Left(counts) => self.assigning.handle_left_out_counts(source, counts)?,
            Message::Passed { below, tickets } => self.take_passed(source, below, tickets)?,
            Message::BuilderLost { builder, refusal } => self.take_lost_builder(source, builder, refusal)?,
            other => return Err(LinkError::Protocol(format!("unexpected: {other:?}"))),
        }
        Ok(())
    }

    fn take_offer(&mut self, index: usize, source: usize, offer: Announcement) -> Result<(), LinkError> {
        if !self.has_begun() {
            return Err(self.refuse_earlier_run());
        }
        let slot_bytes = self.peers.source_greeting(source).slot_bytes;
        if offer.bytes > slot_bytes {
            return Err(LinkError::Protocol(format!("offered {} bytes in one slot of {slot_bytes}", offer.bytes)));
        }
        let now = self.clock.now();
        let is_cancelled = self.builder_for_ticket(source, offer.ticket).handle_offer(source, offer, now);
        if is_cancelled.map_err(|violation| LinkError::Protocol(violation.to_string()))? {
            self.peers.cancel_fetch(index, offer.ticket);
        }
        Ok(())
    }

    /// Handles a source's report of when its first frame was taken.
    fn take_first_frame(&mut self, source: usize, time: TaiNanos, period_nanos: u64) -> Result<(), LinkError> {
        let is_expected = self.setup.index == 0 && self.peers.source_greeting(source).is_by_time;
        if !is_expected || !self.origin.note_first_frame(source, time, period_nanos, self.clock.now()) {
            let message = Message::FirstFrame { time, period_nanos };
            return Err(LinkError::Protocol(format!("unexpected: {message:?}")));
        }
        self.send_origin(source);
        Ok(())
    }

    /// Sends the time of event 0 to a source that numbers its events by time, if it is known.
    pub(super) fn send_origin(&mut self, source: usize) {
        if let Some(time) = self.origin.decided_time().filter(|_| self.peers.source_greeting(source).is_by_time) {
            self.peers.send_to_source(source, &Message::EventsBegin { time });
        }
    }

    /// Returns whether a source is to report when its events' triggers were.
    pub(super) fn compares_times_with(&self, source: usize) -> bool {
        self.setup.compares_times() && self.peers.source_greeting(source).reports_times
    }

    /// Handles a source's message that it has nothing more for events below `below`.
    fn take_passed(&mut self, source: usize, below: EventId, tickets: u64) -> Result<(), LinkError> {
        self.assigning.check_passed_events(below, tickets)?;
        self.builder.source_passed(source, below, tickets, self.clock.now());
        Ok(())
    }

    /// Handles a source's message that it goes on without another builder.
    fn take_lost_builder(&mut self, source: usize, builder: u32, refusal: Option<Refusal>) -> Result<(), LinkError> {
        if builder >= self.setup.count || builder == self.setup.index {
            let message = Message::BuilderLost { builder, refusal };
            return Err(LinkError::Protocol(format!("unexpected: {message:?}")));
        }
        if self.reporting.note_lost_builder(source, builder, refusal) {
            let (name, leads) = (&self.setup.ids[source].1, if builder == 0 { ", which leads the run," } else { "" });
            tracing::warn!(source = name, "builder {builder}{leads} takes no further part: a source lost it");
        }
        Ok(())
    }

    /// Handles the final counters of a source. If another builder had the source end sooner than is known here, they
    /// wait: the events that it does not have are after the end of the run, and not incomplete. Before the run has
    /// begun they wait for its begin, which creates a new event builder.
    fn take_final_counters(&mut self, source: usize, final_counters: FinalCounters) -> Result<(), LinkError> {
        if !self.has_begun() || self.control.has_earlier_end(source) {
            self.run.keep_early_end(source, final_counters, self.clock.now());
            return Ok(());
        }
        self.end_source(source, final_counters)
    }

    /// Takes final counters that have waited for long enough.
    pub(super) fn take_early_ends(&mut self, now: Duration) {
        if !self.has_begun() {
            return;
        }
        for source in 0..self.setup.ids.len() {
            let is_told_sooner = self.control.has_earlier_end(source);
            let Some(final_counters) = self.run.take_early_end(source, is_told_sooner, now) else { continue };
            if let (Err(error), Some(index)) =
                (self.end_source(source, final_counters), self.peers.connection_number(source))
            {
                self.close_connection(index, &error);
            }
        }
    }

    fn end_source(&mut self, source: usize, final_counters: FinalCounters) -> Result<(), LinkError> {
        let ended = self.builder_for_ticket(source, u64::MAX).source_ended(source, final_counters);
        ended.map_err(|violation| LinkError::Protocol(violation.to_string()))?;
        self.control.source_ended(source);
        self.assigning.end_source(source);
        Ok(())
    }

    /// Returns the source that sent this hello, if it may take part.
    fn admit_source(&mut self, hello: &Hello) -> Result<usize, LinkError> {
        let Some(source) = self.builder.source_index(hello.source) else {
            self.reporting.count_unknown_source();
            let text = format!("source {} is not in this run's topology: compare the topology files", hello.source);
            return Err(LinkError::Refused { reason: Refusal::UnknownSource, text });
        };
        if let Some(text) = self.configuration_mismatch(hello) {
            return Err(LinkError::Refused { reason: Refusal::Mismatch, text });
        }
        if !self.has_begun() && hello.capabilities.contains(Capabilities::RETURNS) {
            // It must not count as connected: the run would begin with sources that leave at once.
            return Err(self.refuse_earlier_run());
        }
        let (session, peer) = self.peers.session_and_peer(source);
        if let (Some(peer), Some(session)) = (peer, session)
            && session != hello.session
        {
            let text = format!("source {} is already connected, from {peer}", hello.source);
            return Err(LinkError::Refused { reason: Refusal::AlreadyConnected, text });
        }
        if self.has_begun() && session != Some(hello.session) {
            let (run, source) = (self.run.run_number().0, hello.source);
            let happened = if session.is_some() { "restarted" } else { "disconnected" };
            let text =
                format!("run {run} is in progress; source {source} was {happened}, and can take part in the next run");
            return Err(LinkError::Refused { reason: Refusal::Ended, text });
        }
        Ok(source)
    }

    /// Returns the refusal of a source that is in a run which this builder has not begun.
    fn refuse_earlier_run(&self) -> LinkError {
        let text = format!(
            "your run is over: builder '{}' was started anew since; the source can take part in the next run",
            self.setup.config.name
        );
        LinkError::Refused { reason: Refusal::Ended, text }
    }

    /// Returns how a source's configuration differs from this builder's, if it does.
    fn configuration_mismatch(&self, hello: &Hello) -> Option<String> {
        let (index, count) = (self.setup.index, self.setup.count);
        if (hello.builder, hello.builders) != (index, count) {
            let (builder, builders) = (hello.builder, hello.builders);
            return Some(format!(
                "this is builder {index} of {count}, not {builder} of {builders}: compare the topology files"
            ));
        }
        if self.assigning.is_by_room() && !hello.capabilities.contains(Capabilities::ASSIGNED) {
            let text = "this run assigns events to builders by room, which this source does not support: use \
                        `run.assignment = \"modulo\"`, or update the program of the source";
            return Some(text.into());
        }
        let (slot, largest) = (hello.slot_bytes, self.setup.config.largest_slot());
        (slot > largest).then(|| {
            format!(
                "a slot of {slot} bytes does not fit a block, which takes {largest}: give the builder a larger `block`, \
                 or the source a smaller `slot`"
            )
        })
    }

    /// Connects the source that has sent this hello, and brings it up to date.
    fn greet_source(&mut self, index: usize, hello: Hello, description: &str) -> Result<(), LinkError> {
        let source = self.admit_source(&hello)?;
        let Ok(description) = serde_json::from_str::<serde_json::Value>(description) else {
            let text = "the description is not JSON".into();
            return Err(LinkError::Refused { reason: Refusal::Protocol, text });
        };
        let running = self.has_begun();
        if let Some(old) = self.peers.connection_number(source) {
            // The source knows better than the builder that the old connection is dead.
            self.close_connection(old, &LinkError::Closed);
        }
        let maps = self.peers.connection_link_maps(index);
        // Tickets of the run under way are released before any of the next one are.
        let released_below = self.builder.source_connected(source, hello.slots, maps);
        if let Some(next) = self.next_run.as_mut().and_then(NextRun::builder_mut) {
            next.source_connected(source, hello.slots, maps);
        }
        let greeting = Greeting {
            slots: hello.slots,
            slot_bytes: hello.slot_bytes,
            is_patient: description["policy"] == json!(Policy::Block),
            description,
            is_by_time: hello.capabilities.contains(Capabilities::BY_TIME),
            enters_next_run: hello.capabilities.contains(Capabilities::NEXT_RUN),
            reports_times: hello.capabilities.contains(Capabilities::TRIGGER_TIMES),
        };
        if self.peers.identify_source(index, source, hello.session, greeting) {
            // The source was restarted before the run: counters of the process before it are not its own.
            self.run.forget_early_end(source);
        }
        let max_records = self.setup.max_records();
        // Number of events that its slots can hold and that it has not offered.
        let events_per_slot = u64::from(max_records) * u64::from(self.setup.count);
        self.control.source_connected(source, u64::from(hello.slots).saturating_mul(events_per_slot));
        self.assigning.connect_source(source, &hello, max_records, !running);
        let mut known = Capabilities::KNOWN;
        known.set(Capabilities::ASSIGNED, self.assigning.is_by_room());
        known.set(Capabilities::TRIGGER_TIMES, self.setup.compares_times());
        if let Some(peer) = self.peers.connected_peer(index) {
            tracing::info!(source = %hello.source, %peer, "connected");
        }
        let welcome = Welcome {
            run: self.run.run_number(),
            eager_credit: self.setup.eager.credit,
            eager_limit: self.setup.eager.limit,
            most_records: max_records,
            running,
            released_below,
            capabilities: hello.capabilities & known,
        };
        self.peers.send_to_source(source, &Message::Welcome(welcome));
        // Earlier messages may have been lost with the old connection.
        for tell in self.control.messages_for(source) {
            self.peers.send_to_source(source, &self.run.control_message(tell));
        }
        if let Some(room) = self.assigning.announced_room() {
            self.peers.send_to_source(source, &Message::Room(room));
        }
        self.send_origin(source);
        Ok(())
    }

    /// Closes connections without a hello, and those of sources that owe data and send none.
    pub(super) fn close_silent_connections(&mut self, now: Duration) {
        let answer_time = self.setup.answer_time();
        for index in self.peers.connection_numbers() {
            match self.peers.check_silence(index, &self.builder, answer_time, now) {
                None => {}
                Some(Silence::NoHello) => {
                    self.close_connection(index, &LinkError::Protocol("it did not identify itself".into()));
                }
                Some(Silence::OwesData { source, cuts }) => {
                    if let Some(peer) = self.peers.connected_peer(index) {
                        let name = &self.setup.ids[source].1;
                        tracing::warn!(source = name, %peer, "connection closed: the source owes data and makes no \
                            progress");
                    }
                    // A hung source may recover: that is not a breach of the rules.
                    self.close_connection(index, &LinkError::Closed);
                    if cuts >= MAX_CUTS {
                        let time = humantime::format_duration(answer_time);
                        self.expel_source(
                            source,
                            &format!("{MAX_CUTS} times it owed data and made no progress for {time}"),
                        );
                    }
                }
            }
        }
    }

    /// Excludes a source from this run: it is not welcome again.
    pub(super) fn expel_source(&mut self, source: usize, why: &str) {
        self.reporting.add_reason(format!("source {}: {why}", self.setup.source_label(source)));
        self.peers.exclude_source(source);
        self.give_up_source(source, why);
    }

    /// Gives a source up, and closes its connection, since nothing else would cancel the fetches over it.
    pub(super) fn give_up_source(&mut self, source: usize, why: &str) {
        self.stop_waiting_for_source(source);
        match self.peers.connection_number(source) {
            Some(index) => {
                let text = format!("source {} was abandoned: {why}", self.setup.ids[source].0);
                self.close_connection(index, &LinkError::Refused { reason: Refusal::Ended, text });
            }
            None => tracing::warn!(source = self.setup.ids[source].1, "abandoned: {why}"),
        }
    }

    fn stop_waiting_for_source(&mut self, source: usize) {
        let now = self.clock.now();
        self.builder.give_up_source(source, now);
        if let Some(next) = self.next_run.as_mut().and_then(NextRun::builder_mut) {
            next.give_up_source(source, now);
        }
        self.control.source_given_up(source);
        self.assigning.end_source(source);
    }

    /// Closes a connection, for the reason `error`. A source that has broken the rules takes no further part.
    pub(super) fn close_connection(&mut self, index: usize, error: &LinkError) {
        let Some(source) = self.peers.close_connection(index, error, &self.setup.ids) else { return };
        self.control.source_disconnected(source);
        self.assigning.disconnect_source(source);
        if self.peers.is_dismissed(source) || !self.has_begun() {
            return;
        }
        if error.is_violation() {
            self.reporting.add_reason(format!("source {}: {error}", self.setup.source_label(source)));
            self.peers.exclude_source(source);
            self.stop_waiting_for_source(source);
        } else {
            let now = self.clock.now();
            self.builder.source_disconnected(source, now);
            if let Some(next) = self.next_run.as_mut().and_then(NextRun::builder_mut) {
                next.source_disconnected(source, now);
            }
        }
    }
}
