//! Connections to a builder, and the messages that arrive over them.

use super::{ACCEPT_BACKOFF, BuilderNode, Connection, END_KNOWN_TIME, LEAST_PROGRESS, LET_IN_AT_ONCE};
use crate::{NodeError, Policy};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;
use thalweg_core::build::Violation;
use thalweg_link::{Bytes, LinkError, Peer, Received};
use thalweg_wire::{Accounts, Capabilities, Hello, Losses, MAX_RECORDS, Message, Refusal, Welcome};

impl BuilderNode {
    /// Accepts waiting connections, a few at each address.
    pub(super) fn accept(&mut self) -> Result<(), NodeError> {
        for at in 0..self.addresses.len() {
            for _ in 0..LET_IN_AT_ONCE {
                let index = self.vacant;
                match self.endpoints.accept(at, index) {
                    Ok(Some(peer)) => self.let_in(index, peer),
                    Ok(None) => break,
                    Err(error) => {
                        // The process is probably out of descriptors.
                        tracing::warn!(%error, "a connection could not be accepted");
                        if self.turn_away_an_unidentified() {
                            continue;
                        }
                        // The connection is still waiting, so the next attempt is delayed.
                        self.endpoints.listen(at, false)?;
                        self.accept_backoff.push((at, self.clock.now() + ACCEPT_BACKOFF));
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn let_in(&mut self, index: usize, peer: Peer) {
        self.make_room_for_an_unidentified();
        let now = self.clock.now();
        let maps = self.endpoints.link(index).is_some_and(|link| link.maps());
        let connection = Connection {
            peer,
            maps,
            source: None,
            since: now,
            asked: false,
            fetching: 0,
            delivered: now,
            progress_at: 0,
            received: 0,
            losses: Losses::default(),
        };
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(connection);
        self.vacant = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        // A source sends its hello at once, so it may be here already.
        self.serve(index);
    }

    /// Limits the number of connections without a hello. Expected sources have room for all of them, so that they can
    /// connect at the same time.
    fn make_room_for_an_unidentified(&mut self) {
        let absent = self.sources.iter().filter(|source| source.connection.is_none()).count();
        while self.unidentified().count() >= self.most_unidentified.max(1) + absent {
            self.turn_away_an_unidentified();
        }
    }

    fn unidentified(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let connections = self.connections.iter().enumerate();
        let unidentified = connections.filter_map(|(index, connection)| Some((index, connection.as_ref()?)));
        unidentified.filter(|(_, connection)| connection.source.is_none())
    }

    /// Closes the oldest connection without a hello, among those from the origin that has the most of them: a crowd of
    /// silent connections keeps no source out. A source that is turned away tries again. Returns false if there is no
    /// connection to close.
    fn turn_away_an_unidentified(&mut self) -> bool {
        let mut alike = HashMap::new();
        for (_, peer) in self.unidentified() {
            *alike.entry(peer.peer.origin()).or_insert(0) += 1;
        }
        let key = |peer: &Connection| (Reverse(alike.get(&peer.peer.origin())), peer.since);
        let Some((index, _)) = self.unidentified().min_by_key(|(_, peer)| key(peer)) else { return false };
        // The hello may have arrived by now.
        self.serve(index);
        if self.unidentified().any(|(peer, _)| peer == index) {
            let text = "too many connect at once; try again".into();
            self.close(index, &LinkError::Refused { reason: Refusal::Busy, text });
        }
        true
    }

    /// Receives what a source has sent, up to its first violation. Earlier messages count; later ones are dropped,
    /// which returns the places among them.
    pub(super) fn serve(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut said = Vec::new();
        let result = self.endpoints.receive(index, &mut said);
        self.came |= !said.is_empty();
        let Some(link) = self.endpoints.link(index) else { return };
        if let Some(source) = connection.source {
            let (received, losses) = (link.received(), link.losses());
            if connection.note_progress(received, link.copied(), &said, self.clock.now()) {
                self.sources[source].cuts = 0;
            }
            if received != connection.received {
                self.builder.received(source, received - connection.received, self.clock.now());
                connection.received = received;
            }
            let before = std::mem::replace(&mut connection.losses, losses);
            if losses != before {
                let more = |now: u64, before: u64| now.saturating_sub(before);
                let (sent, again) = (more(losses.sent, before.sent), more(losses.again, before.again));
                self.builder.losses(source, sent, again);
            }
        }
        for said in said {
            if let Err(error) = self.on_message(index, said) {
                self.close(index, &error);
                return;
            }
        }
        if let Err(error) = result {
            self.close(index, &error);
        }
    }

    fn on_message(&mut self, index: usize, said: Received) -> Result<(), LinkError> {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return Ok(()) };
        let Some(source) = connection.source else {
            return match said {
                Received::Hello(hello, description) => self.greet(index, hello, &description),
                other => Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}"))),
            };
        };
        match said {
            Received::Hello(..) => return Err(LinkError::Protocol("a second hello on one connection".into())),
            Received::Arrived { ticket, bytes } => {
                connection.fetching = connection.fetching.saturating_sub(1);
                self.arrived(source, ticket, bytes)?;
            }
            Received::Message(Message::Offer(offer)) => {
                if !self.control.state().has_begun() {
                    return Err(LinkError::Protocol("an offer before the start of the run".into()));
                }
                let slot_bytes = self.sources[source].slot_bytes;
                if offer.bytes > slot_bytes {
                    return Err(LinkError::Protocol(format!(
                        "offered {} bytes in one slot, whose slots have {slot_bytes}",
                        offer.bytes
                    )));
                }
                let cancelled = self.builder.offered(source, offer, self.clock.now()).map_err(violation)?;
                if cancelled {
                    connection.fetching = connection.fetching.saturating_sub(1);
                    if let Some(link) = self.endpoints.link_mut(index) {
                        link.cancel(offer.ticket);
                    }
                }
            }
            Received::Message(Message::Paused { next, asked_by }) => self.control.paused(source, next, asked_by),
            Received::Message(Message::Running) => self.control.runs_elsewhere(source),
            Received::Message(Message::EndsAt { end }) => self.control.ends_elsewhere(source, end),
            Received::Message(Message::NotTaken(what)) => self.builder.not_taken(source, what),
            Received::Message(Message::FirstFrame { time, period_nanos }) => {
                self.first_frame(source, time, period_nanos)?;
            }
            Received::Message(Message::TriggerTimes(report)) => self.trigger_times(source, &report)?,
            Received::Message(Message::End(accounts)) => {
                self.ended(source, accounts)?;
            }
            Received::Message(Message::Heard(heard)) => self.heard(source, &heard)?,
            Received::Message(Message::Left(left)) => self.heard_left(source, left)?,
            Received::Message(Message::Passed { below, tickets }) => self.passed(source, below, tickets)?,
            Received::Message(other) => return Err(LinkError::Protocol(format!("unexpected: {other:?}"))),
        }
        Ok(())
    }

    /// Handles the final counters of a source. If the source was told to end sooner than is known here, they wait: the
    /// events that it does not have are after the end of the run, and not incomplete. Before the run has begun they
    /// wait for its begin, which creates a new event builder.
    fn ended(&mut self, source: usize, accounts: Accounts) -> Result<(), LinkError> {
        if !self.has_begun() || self.control.is_told_sooner(source) {
            let since = self.sources[source].early_end.map_or_else(|| self.clock.now(), |(_, since)| since);
            self.sources[source].early_end = Some((accounts, since));
            return Ok(());
        }
        self.take_end(source, accounts)
    }

    /// Takes final counters that have waited for long enough.
    pub(super) fn take_early_ends(&mut self, now: Duration) {
        if !self.has_begun() {
            return;
        }
        for source in 0..self.sources.len() {
            let Some((accounts, since)) = self.sources[source].early_end else { continue };
            if self.control.is_told_sooner(source) && now < since + END_KNOWN_TIME {
                continue;
            }
            self.sources[source].early_end = None;
            if let (Err(error), Some(connection)) = (self.take_end(source, accounts), self.sources[source].connection) {
                self.close(connection, &error);
            }
        }
    }

    /// Returns when the next of these counters has waited for too long.
    pub(super) fn next_early_end(&self) -> Option<Duration> {
        let sources = self.sources.iter().filter(|_| self.has_begun());
        sources.filter_map(|source| source.early_end.map(|(_, since)| since + END_KNOWN_TIME)).min()
    }

    fn take_end(&mut self, source: usize, accounts: Accounts) -> Result<(), LinkError> {
        self.builder.ended(source, accounts).map_err(violation)?;
        self.control.ended(source);
        self.assign_no_more_to(source);
        Ok(())
    }

    pub(super) fn arrived(&mut self, source: usize, ticket: u64, bytes: Bytes) -> Result<(), LinkError> {
        let id = self.ids[source].0;
        let Self { builder, blocks, trigger, .. } = self;
        let (mut in_pieces, mut result) = (false, Ok(()));
        match (trigger, bytes) {
            (Some(trigger), bytes) => {
                (in_pieces, result) = trigger.arrived(builder, source, ticket, bytes);
            }
            (None, bytes @ Bytes::View(_)) => {
                result = builder.arrived(source, ticket, &bytes, |_, _| {});
            }
            (None, Bytes::Place(span)) => blocks.filled(span, |bytes, enter| {
                result = builder.arrived(source, ticket, bytes, |offset, header| match header.is_whole() {
                    true => enter(header.event, id, offset),
                    false => in_pieces = true,
                });
            }),
        }
        result.map_err(violation)?;
        // A run has one record for each fragment.
        if in_pieces && self.run_config.record {
            return Err(LinkError::Protocol("sent a fragment in pieces, which cannot be recorded".into()));
        }
        Ok(())
    }

    /// Returns the source that sent this hello, if it may take part.
    fn admit(&mut self, hello: &Hello) -> Result<usize, LinkError> {
        let refuse = |reason, text: String| Err(LinkError::Refused { reason, text });
        let Some(source) = self.builder.source_index(hello.source) else {
            self.tally.unknown_sources += 1;
            return refuse(Refusal::UnknownSource, format!("source {} is not in this run's topology", hello.source));
        };
        let (index, count) = (self.index, self.count);
        if (hello.builder, hello.builders) != (index, count) {
            let (builder, builders) = (hello.builder, hello.builders);
            let text =
                format!("this is builder {index} of {count}, not {builder} of {builders}: compare the topology files");
            return refuse(Refusal::Mismatch, text);
        }
        if self.assigning.is_some() && !hello.capabilities.contains(Capabilities::ASSIGNED) {
            let text = "this run assigns events to builders by room, which this source does not know of: run it with \
                        `run.assignment = \"modulo\"`, or give the source a newer program";
            return refuse(Refusal::Mismatch, text.into());
        }
        let (slot, largest) = (hello.slot_bytes, self.config.largest_slot());
        if slot > largest {
            let text = format!(
                "a slot of {slot} bytes does not fit a block, which takes {largest}: give the builder a larger `block`, \
                 or the source a smaller `slot`"
            );
            return refuse(Refusal::Mismatch, text);
        }
        let state = &self.sources[source];
        if let (Some(other), Some(session)) = (state.connection, state.session)
            && session != hello.session
        {
            let peer = self.connections[other].as_ref().map(|c| c.peer.to_string()).unwrap_or_default();
            let text = format!("source {} is already connected, from {peer}", hello.source);
            return refuse(Refusal::AlreadyConnected, text);
        }
        if self.has_begun() && state.session != Some(hello.session) {
            let (run, source) = (self.run.0, hello.source);
            let happened = if state.session.is_some() { "restarted" } else { "cut off" };
            let text =
                format!("run {run} is under way; source {source} was {happened}, and can take part in the next one");
            return refuse(Refusal::Ended, text);
        }
        Ok(source)
    }

    fn greet(&mut self, index: usize, hello: Hello, description: &str) -> Result<(), LinkError> {
        let source = self.admit(&hello)?;
        let Ok(description) = serde_json::from_str::<serde_json::Value>(description) else {
            let text = "the description is not JSON".into();
            return Err(LinkError::Refused { reason: Refusal::Protocol, text });
        };
        let running = self.has_begun();
        if let Some(old) = self.sources[source].connection {
            // The source knows better than the builder that the old connection is dead.
            self.close(old, &LinkError::Closed);
        }
        let near = self.connections[index].as_ref().is_some_and(|connection| connection.maps);
        let released_below = self.builder.connected(source, hello.slots, near);
        let state = &mut self.sources[source];
        state.connection = Some(index);
        if state.session.replace(hello.session) != Some(hello.session) {
            // The source was restarted before the run: counters of the process before it are not its own.
            state.early_end = None;
        }
        state.slots = hello.slots;
        state.slot_bytes = hello.slot_bytes;
        state.by_time = hello.capabilities.contains(Capabilities::BY_TIME);
        state.reports_times = hello.capabilities.contains(Capabilities::TRIGGER_TIMES);
        state.patient = description["policy"] == json!(Policy::Block);
        state.description = description;
        // Number of events that its slots can hold and that it has not offered.
        let records = u64::from(self.config.open_events.min(MAX_RECORDS)) * u64::from(self.count);
        self.control.greeted(source, u64::from(hello.slots).saturating_mul(records));
        self.assign_to(source, &hello);
        let mut known = Capabilities::KNOWN;
        known.set(Capabilities::ASSIGNED, self.assigning.is_some());
        known.set(Capabilities::TRIGGER_TIMES, self.compares_times());
        let (Some(connection), Some(link)) = (&mut self.connections[index], self.endpoints.link_mut(index)) else {
            return Ok(());
        };
        connection.source = Some(source);
        tracing::info!(source = %hello.source, peer = %connection.peer, "connected");
        link.send(&Message::Welcome(Welcome {
            run: self.run,
            eager_credit: self.eager.credit,
            eager_limit: self.eager.limit,
            most_records: self.config.open_events.min(MAX_RECORDS),
            running,
            released_below,
            capabilities: hello.capabilities & known,
        }));
        // Earlier messages may have been lost with the old connection.
        self.instruct(source);
        self.say_room(source);
        self.say_origin(source);
        Ok(())
    }

    /// Gives a source up, and closes its connection, since nothing else would cancel the fetches over it.
    pub(super) fn give_up(&mut self, source: usize, why: &str) {
        self.builder.give_up(source, self.clock.now());
        self.control.given_up(source);
        self.assign_no_more_to(source);
        match self.sources[source].connection {
            Some(index) => {
                let text = format!("source {} was given up: {why}", self.ids[source].0);
                self.close(index, &LinkError::Refused { reason: Refusal::Ended, text });
            }
            None => tracing::warn!(source = self.ids[source].1, "given up: {why}"),
        }
    }

    pub(super) fn close(&mut self, index: usize, error: &LinkError) {
        let Some(connection) = self.connections[index].take() else { return };
        self.vacant = self.vacant.min(index);
        let (peer, source) = (&connection.peer, connection.source.map(|source| self.ids[source].1.clone()));
        let refusal = match error {
            LinkError::Refused { reason, text } => {
                tracing::warn!(%peer, "refused: {text}");
                Some((*reason, text.clone()))
            }
            error if error.is_violation() => {
                tracing::warn!(%peer, source, "cut off: {error}");
                Some((Refusal::Protocol, error.to_string()))
            }
            error => {
                tracing::info!(%peer, source, "connection ended: {error}");
                None
            }
        };
        if let Some(link) = self.endpoints.link_mut(index) {
            if let Some((reason, text)) = refusal {
                link.refuse(reason, &text);
            }
            self.tally.copied_before += link.copied();
        }
        self.endpoints.close(index);
        self.tally.losses_before = super::add(self.tally.losses_before, connection.losses);
        let Some(source) = connection.source else { return };
        self.sources[source].connection = None;
        self.control.left(source);
        self.assign_without(source);
        if self.sources[source].dismissed || !self.has_begun() {
            return;
        }
        if error.is_violation() {
            self.tally.reasons.push(format!("source {} ({}): {error}", self.ids[source].0, self.ids[source].1));
            // The source is not welcome again in this run.
            self.sources[source].session = None;
            self.builder.give_up(source, self.clock.now());
            self.control.given_up(source);
            self.assign_no_more_to(source);
        } else {
            self.builder.gone(source, self.clock.now());
        }
    }
}

fn violation(violation: Violation) -> LinkError {
    LinkError::Protocol(violation.to_string())
}

impl Connection {
    /// Notes what has arrived, however the link moves it. Returns whether the source makes progress: it has answered a
    /// whole fetch, or sent enough.
    fn note_progress(&mut self, received: u64, copied: u64, said: &[Received], now: Duration) -> bool {
        let has_answered = said.iter().any(|said| matches!(said, Received::Arrived { .. }));
        // Eager data are copied, and not counted as received.
        let come = received.max(copied);
        let gets_on = has_answered || come >= self.progress_at + LEAST_PROGRESS;
        if gets_on {
            (self.delivered, self.progress_at) = (now, come);
        }
        gets_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use thalweg_arena::Arena;
    use thalweg_link::{Bytes, Origin, Peer};

    #[test]
    fn a_source_gets_on_that_answers_or_sends_enough_however_its_link_moves_it() {
        let mut connection = Connection {
            peer: Peer::new("peer".into(), Origin::Host(None)),
            maps: false,
            source: None,
            since: Duration::ZERO,
            asked: false,
            fetching: 1,
            delivered: Duration::ZERO,
            progress_at: 0,
            received: 0,
            losses: Losses::default(),
        };
        let at = Duration::from_secs;
        for byte in 1..100 {
            assert!(!connection.note_progress(byte, 0, &[], at(byte)), "a trickle");
        }
        assert!(connection.note_progress(LEAST_PROGRESS, 0, &[], at(200)), "written into its place by the adapter");
        let bytes = Bytes::Place(Arena::create("place", 64).unwrap());
        let answer = [Received::Arrived { ticket: 0, bytes }];
        assert!(connection.note_progress(LEAST_PROGRESS, 0, &answer, at(300)), "read where it lies");
        assert!(connection.note_progress(LEAST_PROGRESS, 2 * LEAST_PROGRESS, &[], at(400)), "sent unasked");
        assert_eq!(connection.delivered, at(400));
    }
}
