//! Who connects to a builder, and what they say.

use super::{BuilderNode, Connection, DEAF, MOST_STRANGERS, Phase};
use crate::{NodeError, now};
use std::os::fd::AsFd;
use thalweg_arena::Span;
use thalweg_build::Violation;
use thalweg_link::{Accepted, Bytes, LinkError, Said};
use thalweg_wire::{Accounts, Hello, Losses, MAX_RECORDS, Message, Refusal, Welcome};

impl BuilderNode {
    pub(super) fn accept(&mut self, at: usize) -> Result<(), NodeError> {
        loop {
            let Some(listener) = self.listeners.get(at) else { return Ok(()) };
            let (link, peer): Accepted = match listener.accept() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return Ok(()),
                Err(error) => {
                    // Out of descriptors, most likely. It is still waiting there: do not ask again at once.
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.poller.remove(listener.as_fd());
                    self.deaf.push((at, now() + DEAF));
                    return Ok(());
                }
            };
            self.make_room_for_a_stranger();
            let free = self.connections.iter().position(Option::is_none);
            let index = free.unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let (interest, now) = (link.interest(), now());
            self.poller.add(link.fd(), index as u64, interest)?;
            self.connections[index] = Some(Connection {
                link,
                interest,
                peer: peer.to_string(),
                source: None,
                since: now,
                heard: now,
                fetching: 0,
                delivered: now,
                copied: 0,
                received: 0,
                losses: Losses::default(),
                more: false,
            });
        }
    }

    /// Where too many connections have not said who they are, the one that has had the most time for it has to go: a
    /// source says it at once, so a crowd of silent ones keeps none out.
    fn make_room_for_a_stranger(&mut self) {
        let strangers = self.connections.iter().enumerate().filter_map(|(index, connection)| {
            let stranger = connection.as_ref().filter(|connection| connection.source.is_none())?;
            Some((stranger.since, index))
        });
        if strangers.clone().count() >= MOST_STRANGERS
            && let Some((_, oldest)) = strangers.min()
        {
            self.close(oldest, &LinkError::Protocol("it did not say who it is, and others wait to".into()));
        }
    }

    /// Hears what a source has to say.
    pub(super) fn serve(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut said = Vec::new();
        let result = connection.link.ready(&mut said);
        connection.more = *result.as_ref().unwrap_or(&false);
        if !said.is_empty() {
            connection.heard = now();
        }
        let copied = connection.link.copied();
        if copied != connection.copied {
            connection.copied = copied;
            connection.delivered = now();
        }
        if let Some(source) = connection.source {
            let (received, losses) = (connection.link.received(), connection.link.losses());
            if received != connection.received {
                self.builder.received(source, received - connection.received, now());
                connection.received = received;
            }
            let before = std::mem::replace(&mut connection.losses, losses);
            if losses != before {
                let more = |now: u64, before: u64| now.saturating_sub(before);
                let (sent, again) = (more(losses.sent, before.sent), more(losses.again, before.again));
                self.builder.losses(sent, again);
            }
        }
        for said in said {
            if let Err(error) = self.hear(index, said) {
                self.close(index, &error);
                return;
            }
        }
        if let Err(error) = result {
            self.close(index, &error);
        }
    }

    fn hear(&mut self, index: usize, said: Said) -> Result<(), LinkError> {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return Ok(()) };
        let Some(source) = connection.source else {
            return match said {
                Said::Hello(hello, description) => self.greet(index, hello, &description),
                other => Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}"))),
            };
        };
        match said {
            Said::Hello(..) => return Err(LinkError::Protocol("a second hello on one connection".into())),
            Said::Arrived { ticket, bytes } => {
                connection.fetching = connection.fetching.saturating_sub(1);
                self.arrived(source, ticket, bytes)?;
            }
            Said::Message(Message::Offer(offer)) => {
                if matches!(self.phase, Phase::Gathering { .. }) {
                    return Err(LinkError::Protocol("an offer before the start of the run".into()));
                }
                let slot_bytes = self.sources[source].slot_bytes;
                if offer.bytes > slot_bytes {
                    return Err(LinkError::Protocol(format!(
                        "offered {} bytes in one slot, whose slots have {slot_bytes}",
                        offer.bytes
                    )));
                }
                let cancelled = self.builder.offered(source, offer, now()).map_err(violation)?;
                if cancelled {
                    connection.fetching = connection.fetching.saturating_sub(1);
                    if let Some(place) = connection.link.cancel(offer.ticket) {
                        self.unused(source, offer.ticket, place);
                    }
                }
            }
            Said::Message(Message::Paused { next }) => {
                self.sources[source].paused_at = Some(next);
            }
            Said::Message(Message::End(accounts)) => {
                self.ended(source, accounts)?;
            }
            Said::Message(other) => return Err(LinkError::Protocol(format!("unexpected: {other:?}"))),
        }
        Ok(())
    }

    fn ended(&mut self, source: usize, accounts: Accounts) -> Result<(), LinkError> {
        self.builder.ended(source, accounts).map_err(violation)
    }

    pub(super) fn arrived(&mut self, source: usize, ticket: u64, bytes: Bytes) -> Result<(), LinkError> {
        let id = self.ids[source].0;
        let Self { builder, blocks, trigger, .. } = self;
        let mut in_pieces = false;
        match (trigger, bytes) {
            (Some(trigger), bytes) => in_pieces = trigger.arrived(builder, source, ticket, bytes),
            (None, Bytes::View(view)) => builder.arrived(source, ticket, &view, |_, _| {}),
            (None, Bytes::Place(span)) => blocks.filled(span, |bytes, enter| {
                builder.arrived(source, ticket, bytes, |event, offset| match is_whole(bytes, offset) {
                    true => enter(event, id, offset),
                    false => in_pieces = true,
                });
            }),
        }
        // A run has one record for each fragment.
        if in_pieces && self.run_config.record {
            return Err(LinkError::Protocol("sent a fragment in pieces, which cannot be recorded".into()));
        }
        Ok(())
    }

    /// A place that was set aside for a ticket comes back unused.
    fn unused(&mut self, source: usize, ticket: u64, place: Span) {
        match &mut self.trigger {
            Some(trigger) => trigger.unused(source, ticket, place),
            None => self.blocks.unused(place),
        }
    }

    fn greet(&mut self, index: usize, hello: Hello, description: &str) -> Result<(), LinkError> {
        let refuse = |reason, text: String| Err(LinkError::Refused { reason, text });
        let Some(source) = self.builder.source_index(hello.source) else {
            self.unknown_sources += 1;
            return refuse(Refusal::UnknownSource, format!("source {} is not in this run's topology", hello.source));
        };
        if (hello.builder, hello.builders) != (self.index, self.count) {
            let (builder, builders) = (hello.builder, hello.builders);
            return refuse(
                Refusal::Mismatch,
                format!(
                    "this is builder {} of {}, not {builder} of {builders}: compare the topology files",
                    self.index, self.count
                ),
            );
        }
        let largest = self.config.largest_slot();
        if hello.slot_bytes > largest {
            return refuse(
                Refusal::Mismatch,
                format!(
                    "a slot of {} bytes does not fit a block, which takes {largest}: give the builder a larger `block`, or the source a smaller `slot`",
                    hello.slot_bytes
                ),
            );
        }
        let state = &self.sources[source];
        if let (Some(other), Some(session)) = (state.connection, state.session)
            && session != hello.session
        {
            let peer = self.connections[other].as_ref().map_or("", |c| c.peer.as_str());
            return refuse(
                Refusal::AlreadyConnected,
                format!("source {} is already connected, from {peer}", hello.source),
            );
        }
        let running = !matches!(self.phase, Phase::Gathering { .. });
        if running && state.session != Some(hello.session) {
            let (run, source) = (self.run.0, hello.source);
            let happened = if state.session.is_some() { "restarted" } else { "cut off" };
            let text =
                format!("run {run} is under way; source {source} was {happened}, and can take part in the next one");
            return refuse(Refusal::Ended, text);
        }
        let Ok(description) = serde_json::from_str::<serde_json::Value>(description) else {
            return refuse(Refusal::Protocol, "the description is not JSON".into());
        };
        if let Some(old) = state.connection {
            // The source knows better than we do that the old connection is dead.
            self.close(old, &LinkError::Closed);
        }
        let near = self.connections[index].as_ref().is_some_and(|connection| connection.link.maps());
        let released_below = self.builder.connected(source, hello.slots, near);
        let state = &mut self.sources[source];
        state.connection = Some(index);
        state.session = Some(hello.session);
        state.slots = hello.slots;
        state.slot_bytes = hello.slot_bytes;
        state.description = description;
        let Some(connection) = &mut self.connections[index] else { return Ok(()) };
        connection.source = Some(source);
        tracing::info!(source = %hello.source, peer = connection.peer, "connected");
        connection.link.say(&Message::Welcome(Welcome {
            run: self.run,
            eager_credit: self.eager.credit,
            eager_limit: self.eager.limit,
            most_records: self.config.open_events.min(MAX_RECORDS),
            running,
            released_below,
        }));
        // What was said before may have been lost with the old connection.
        self.instruct(source);
        Ok(())
    }

    pub(super) fn close(&mut self, index: usize, error: &LinkError) {
        let Some(mut connection) = self.connections[index].take() else { return };
        let (peer, source) = (&connection.peer, connection.source.map(|source| self.ids[source].1.clone()));
        match error {
            LinkError::Refused { reason, text } => {
                tracing::warn!(peer, "refused: {text}");
                connection.link.refuse(*reason, text);
            }
            error if error.is_violation() => {
                tracing::warn!(peer, source, "cut off: {error}");
                connection.link.refuse(Refusal::Protocol, &error.to_string());
            }
            error => tracing::info!(peer, source, "connection ended: {error}"),
        }
        self.poller.remove(connection.link.fd());
        let abandoned = connection.link.abandon();
        for (ticket, place) in abandoned {
            // Only who has said who it is was asked for anything.
            if let Some(source) = connection.source {
                self.unused(source, ticket, place);
            }
        }
        self.copied_before += connection.link.copied();
        self.losses_before = super::add(self.losses_before, connection.losses);
        let Some(source) = connection.source else { return };
        self.sources[source].connection = None;
        if self.sources[source].dismissed || matches!(self.phase, Phase::Gathering { .. }) {
            return;
        }
        if error.is_violation() {
            self.reasons.push(format!("source {} ({}): {error}", self.ids[source].0, self.ids[source].1));
            // It is not welcome again in this run.
            self.sources[source].session = None;
            self.builder.give_up(source, now());
        } else {
            self.builder.gone(source, now());
        }
    }
}

/// Whether the record at `offset` is a whole fragment. It was checked: only the fields *total length* (byte 40) and
/// *piece length* (byte 48) of its header are looked at here.
pub(super) fn is_whole(bytes: &[u8], offset: u32) -> bool {
    let field = |at: usize| bytes.get(offset as usize + at..offset as usize + at + 4);
    field(40) == field(48)
}

fn violation(violation: Violation) -> LinkError {
    LinkError::Protocol(violation.to_string())
}
