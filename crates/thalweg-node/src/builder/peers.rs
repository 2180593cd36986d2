//! Peers of a builder: the connections to it, with or without a hello, and the sources behind them.

use super::HANDLE_TOKEN;
use crate::Handle;
use crate::drive::Leaving;
use crate::wait::{Idle, Wait, Waiter};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Span};
use thalweg_core::build::{Builder, Fetch};
use thalweg_link::{Address, Arrivals, BuilderEndpoint, Bytes, Endpoints, Interest, LinkError, Peer, Poller, Received};
use thalweg_wire::{Losses, Message, Refusal, SourceId};

/// Time after which a connection without a hello is closed.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Interval between checks for connections without a hello.
const GREETING_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes that count as progress of a source; so does the answer to a whole fetch.
const LEAST_PROGRESS_BYTES: u64 = 16 << 10;
/// Time for which no connection is accepted after a failure to do so: a small part of the time for which a source
/// tries.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Connections of a builder: the endpoints and addresses at which it accepts them, the peers that are connected, and
/// the state of each source's connection.
#[derive(Debug)]
pub(super) struct Peers {
    addresses: Vec<Address>,
    /// Endpoints, one for each address. Peers have the numbers of their connections.
    endpoints: Endpoints<dyn BuilderEndpoint>,
    /// Endpoints at which no connection is accepted, and until when.
    accept_backoff: Vec<(usize, Duration)>,
    connections: Vec<Option<Connection>>,
    /// First number that no connection has.
    vacant: usize,
    /// Limit of connections without a hello, beside one for each source that is not connected.
    max_unidentified: usize,
    sources: Vec<SourceState>,
    /// Buffer that is kept for reuse.
    ready: Vec<usize>,
    waiter: Waiter,
    /// True if something arrived in this turn.
    has_received: bool,
    /// Delivery of the last messages to sources.
    leaving: Leaving,
    /// Bytes copied and losses reported over connections that are closed.
    copied_before: u64,
    losses_before: Losses,
}

/// Connection that was accepted, and for which there must be room.
#[derive(Debug)]
pub(super) struct Newcomer {
    index: usize,
    peer: Peer,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    /// True if the link [maps](thalweg_link::BuilderLink::maps_source_memory).
    maps: bool,
    source: Option<usize>,
    since: Duration,
    /// True if something was requested in this turn.
    was_asked: bool,
    /// Time of the source's last progress, and the bytes received by then.
    progress_at: Duration,
    progress_bytes: u64,
    /// Bytes received and losses known at the last check.
    received: u64,
    losses: Losses,
}

/// State of a source's connection.
#[derive(Debug, Default)]
struct SourceState {
    connection: Option<usize>,
    /// Session of its process; `None` before it connects, and after it was excluded from the run.
    session: Option<u64>,
    greeting: Greeting,
    dismissed: bool,
    /// Number of disconnections since its last progress.
    cuts: u32,
}

/// Properties of a source, as its last hello stated them.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
    pub(super) description: serde_json::Value,
    /// True if the device waits for a slot: nothing is lost if it learns a little later that one is free.
    pub(super) is_patient: bool,
    /// True if events are numbered by time, and the source must learn when event 0 is.
    pub(super) is_by_time: bool,
    /// True if the source can go from one run to the next without disconnecting.
    pub(super) enters_next_run: bool,
    /// True if the source reports when its events' triggers were.
    pub(super) reports_times: bool,
}

/// Sender of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sender {
    /// Connection that is closed by now.
    Closed,
    /// Connection without a hello.
    Unidentified,
    /// Source with this index.
    Source(usize),
}

/// Bytes of a source, and losses that it reported, since the last look at its link.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) source: usize,
    pub(super) received: u64,
    /// Bytes sent, and bytes sent again, if the source reported any.
    pub(super) losses: Option<(u64, u64)>,
}

/// Connection that has been silent for too long.
#[derive(Debug)]
pub(super) enum Silence {
    /// No hello has come.
    NoHello,
    /// The source owes data, and makes no progress.
    OwesData {
        source: usize,
        /// Number of disconnections for this reason since its last progress, including this one.
        cuts: u32,
    },
}

impl Peers {
    /// Creates the peers of a builder with this number of sources, none of which is connected. At most
    /// `max_unidentified` connections without a hello are kept, beside one for each source that is not connected.
    pub(super) fn new(
        endpoints: Endpoints<dyn BuilderEndpoint>,
        addresses: Vec<Address>,
        sources: usize,
        max_unidentified: usize,
        wait: Wait,
    ) -> Self {
        Self {
            addresses,
            endpoints,
            accept_backoff: Vec::new(),
            connections: Vec::new(),
            vacant: 0,
            max_unidentified: max_unidentified.max(1),
            sources: (0..sources).map(|_| SourceState::default()).collect(),
            ready: Vec::new(),
            waiter: Waiter::new(wait),
            has_received: false,
            leaving: Leaving::default(),
            copied_before: 0,
            losses_before: Losses::default(),
        }
    }

    /// Returns the addresses that are listened on.
    pub(super) fn listening_addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the poller of the connections.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        self.endpoints.poller()
    }

    /// Adds `handle` to the poller.
    pub(super) fn watch_handle(&self, handle: &Handle) -> Result<(), LinkError> {
        self.poller().add_descriptor(handle.as_fd(), HANDLE_TOKEN, Interest::READ)
    }

    /// Registers memory into which sources write.
    pub(super) fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        self.endpoints.register_memory(memory)
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

    /// Accepts a connection that waits at an address; `None` if none does.
    ///
    /// # Errors
    /// A connection waits and cannot be accepted: the process is probably out of descriptors.
    pub(super) fn accept_waiting(&mut self, address: usize) -> Result<Option<Newcomer>, LinkError> {
        let index = self.vacant;
        Ok(self.endpoints.accept_peer(address, index)?.map(|peer| Newcomer { index, peer }))
    }

    /// Stops accepting connections at an address for a while. The connection there is still waiting.
    pub(super) fn delay_accepting(&mut self, address: usize, now: Duration) -> Result<(), LinkError> {
        self.endpoints.set_listening(address, false)?;
        self.accept_backoff.push((address, now + ACCEPT_BACKOFF));
        Ok(())
    }

    /// Accepts connections again where the time for which none was accepted is over.
    pub(super) fn resume_accepting(&mut self, now: Duration) -> Result<(), LinkError> {
        while let Some(position) = self.accept_backoff.iter().position(|(_, until)| *until <= now) {
            let (address, _) = self.accept_backoff.swap_remove(position);
            self.endpoints.set_listening(address, true)?;
        }
        Ok(())
    }

    /// Keeps a connection that was accepted, and returns its number.
    pub(super) fn keep_connection(&mut self, newcomer: Newcomer, now: Duration) -> usize {
        let Newcomer { index, peer } = newcomer;
        let maps = self.endpoints.builder_link(index).is_some_and(|link| link.maps_source_memory());
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(Connection::new(peer, maps, now));
        self.vacant = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        index
    }

    /// Returns whether there are too many connections without a hello for one more. Expected sources have room for all
    /// of them, so that they can connect at the same time.
    pub(super) fn is_crowded(&self) -> bool {
        let absent = self.sources.iter().filter(|source| source.connection.is_none()).count();
        self.unidentified_connections().count() >= self.max_unidentified + absent
    }

    fn unidentified_connections(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let connections = self.connections.iter().enumerate();
        let connections = connections.filter_map(|(index, connection)| Some((index, connection.as_ref()?)));
        connections.filter(|(_, connection)| connection.source.is_none())
    }

    /// Returns the oldest connection without a hello, among those from the origin that has the most of them: a crowd of
    /// silent connections keeps no source out.
    pub(super) fn oldest_unidentified(&self) -> Option<usize> {
        let mut alike = HashMap::new();
        for (_, connection) in self.unidentified_connections() {
            *alike.entry(connection.peer.origin()).or_insert(0) += 1;
        }
        let oldest = self
            .unidentified_connections()
            .min_by_key(|(_, connection)| (Reverse(alike.get(&connection.peer.origin())), connection.since));
        oldest.map(|(index, _)| index)
    }

    /// Receives what was sent over a connection, up to the first violation. Returns `None` if there is no connection.
    pub(super) fn receive(&mut self, index: usize) -> Option<(Vec<Received>, Result<bool, LinkError>)> {
        self.connections.get(index)?.as_ref()?;
        let mut messages = Vec::new();
        let result = self.endpoints.receive_messages(index, &mut messages);
        self.has_received |= !messages.is_empty();
        self.endpoints.builder_link(index)?;
        Some((messages, result))
    }

    /// Counts what has arrived over a connection, which includes `messages`. Returns `None` if it is no source's.
    pub(super) fn count_traffic(&mut self, index: usize, messages: &[Received], now: Duration) -> Option<Traffic> {
        let connection = self.connections[index].as_mut()?;
        let (link, source) = (self.endpoints.builder_link(index)?, connection.source?);
        let received = link.received_bytes();
        if connection.note_progress(received, link.copied_bytes(), messages, now) {
            self.sources[source].cuts = 0;
        }
        let received = received - std::mem::replace(&mut connection.received, received);
        let losses = link.known_losses();
        let before = std::mem::replace(&mut connection.losses, losses);
        let difference = (losses.sent.saturating_sub(before.sent), losses.again.saturating_sub(before.again));
        Some(Traffic { source, received, losses: (losses != before).then_some(difference) })
    }

    /// Returns the sender of what arrives over a connection.
    pub(super) fn message_sender(&self, index: usize) -> Sender {
        match self.connections.get(index) {
            Some(Some(Connection { source: Some(source), .. })) => Sender::Source(*source),
            Some(Some(_)) => Sender::Unidentified,
            _ => Sender::Closed,
        }
    }

    /// Returns the number of the connections, of which some may be closed.
    pub(super) fn connection_numbers(&self) -> Range<usize> {
        0..self.connections.len()
    }

    /// Connects a source, which has sent its hello over this connection. Returns whether its process is another one
    /// than before.
    pub(super) fn identify_source(&mut self, index: usize, source: usize, session: u64, greeting: Greeting) -> bool {
        let state = &mut self.sources[source];
        state.connection = Some(index);
        state.greeting = greeting;
        if let Some(connection) = &mut self.connections[index] {
            connection.source = Some(source);
        }
        state.session.replace(session) != Some(session)
    }

    /// Returns the session in which a source takes part, if it does; and the name of the peer, if it is connected.
    pub(super) fn session_and_peer(&self, source: usize) -> (Option<u64>, Option<&Peer>) {
        (self.sources[source].session, self.source_connection(source).map(|connection| &connection.peer))
    }

    /// Excludes a source from this run: it is not welcome again.
    pub(super) fn exclude_source(&mut self, source: usize) {
        self.sources[source].session = None;
    }

    /// Returns the peer at the other end of a connection.
    pub(super) fn connected_peer(&self, index: usize) -> Option<&Peer> {
        self.connections[index].as_ref().map(|connection| &connection.peer)
    }

    /// Returns the properties of a source.
    pub(super) fn source_greeting(&self, source: usize) -> &Greeting {
        &self.sources[source].greeting
    }

    /// Returns the properties of all sources.
    pub(super) fn source_greetings(&self) -> impl Iterator<Item = &Greeting> {
        self.sources.iter().map(|source| &source.greeting)
    }

    /// Returns the connection of a source, if it is connected.
    pub(super) fn connection_number(&self, source: usize) -> Option<usize> {
        self.sources[source].connection
    }

    fn source_connection(&self, source: usize) -> Option<&Connection> {
        self.sources[source].connection.and_then(|index| self.connections[index].as_ref())
    }

    /// Returns whether a source shares this host's memory: its link
    /// [maps](thalweg_link::BuilderLink::maps_source_memory).
    pub(super) fn source_link_maps(&self, source: usize) -> bool {
        self.source_connection(source).is_some_and(|connection| connection.maps)
    }

    /// Returns whether the link of a connection [maps](thalweg_link::BuilderLink::maps_source_memory).
    pub(super) fn connection_link_maps(&self, index: usize) -> bool {
        self.connections[index].as_ref().is_some_and(|connection| connection.maps)
    }

    /// Sends a message to a source, if it is connected.
    pub(super) fn send_to_source(&mut self, source: usize, message: &Message) {
        if let Some(link) = self.sources[source].connection.and_then(|index| self.endpoints.builder_link_mut(index)) {
            link.send_message(message);
        }
    }

    /// Sends a message to all sources that are connected.
    pub(super) fn send_to_all(&mut self, message: &Message) {
        (0..self.sources.len()).for_each(|source| self.send_to_source(source, message));
    }

    /// Refuses all peers, whose connections end with that.
    pub(super) fn refuse_all(&mut self, reason: Refusal, text: &str) {
        for index in 0..self.connections.len() {
            if let Some(link) = self.endpoints.builder_link_mut(index) {
                link.refuse_source(reason, text);
            }
        }
    }

    /// Begins to fetch a slot into `place`, or where the source has it. Returns its bytes if they are there at once.
    /// `begins_to_owe`: nothing else is requested of the source.
    ///
    /// # Errors
    /// Those of [`begin_fetch`](thalweg_link::BuilderLink::begin_fetch), after which the connection is to be closed.
    pub(super) fn begin_fetch(
        &mut self,
        fetch: &Fetch,
        place: Option<Span>,
        begins_to_owe: bool,
        now: Duration,
    ) -> Result<Option<Bytes>, LinkError> {
        let Some((connection, link)) = self.source_link_mut(fetch.source) else { return Ok(None) };
        connection.progress_at = if begins_to_owe { now } else { connection.progress_at };
        connection.was_asked = true;
        link.begin_fetch(&fetch.offer, place, fetch.range.end)
    }

    /// Requests more of a slot that is being fetched.
    pub(super) fn extend_fetch(&mut self, fetch: &Fetch, begins_to_owe: bool, now: Duration) {
        let Some((connection, link)) = self.source_link_mut(fetch.source) else { return };
        link.extend_fetch(fetch.offer.ticket, fetch.range.end);
        connection.was_asked = true;
        connection.progress_at = if begins_to_owe { now } else { connection.progress_at };
    }

    fn source_link_mut(
        &mut self,
        source: usize,
    ) -> Option<(&mut Connection, &mut (dyn thalweg_link::BuilderLink + 'static))> {
        let index = self.sources[source].connection?;
        Some((self.connections[index].as_mut()?, self.endpoints.builder_link_mut(index)?))
    }

    /// Cancels a fetch over a connection.
    pub(super) fn cancel_fetch(&mut self, index: usize, ticket: u64) {
        if let Some(link) = self.endpoints.builder_link_mut(index) {
            link.cancel_fetch(ticket);
        }
    }

    /// Returns whether a source was asked for data that have not arrived.
    pub(super) fn owes_data(&self, source: usize, builder: &Builder) -> bool {
        let connection = self.source_connection(source);
        builder.fetch_count(source) > 0 && connection.is_some_and(|c| c.maps || builder.bytes_in_flight_of(source) > 0)
    }

    /// Returns how long a source has owed data without progress; zero if it owes none.
    pub(super) fn owing_duration(&self, source: usize, builder: &Builder, now: Duration) -> Duration {
        let connection = self.source_connection(source).filter(|_| self.owes_data(source, builder));
        connection.map_or(Duration::ZERO, |connection| now.saturating_sub(connection.progress_at))
    }

    /// Returns why a connection is to be closed, if it has been silent for too long: a source may owe data for
    /// `answer_time` without sending any.
    pub(super) fn check_silence(
        &mut self,
        index: usize,
        builder: &Builder,
        answer_time: Duration,
        now: Duration,
    ) -> Option<Silence> {
        let connection = self.connections[index].as_ref()?;
        let Some(source) = connection.source else {
            return (now > connection.since + GREETING_TIME).then_some(Silence::NoHello);
        };
        if !self.owes_data(source, builder) || now <= connection.progress_at + answer_time {
            return None;
        }
        let cuts = &mut self.sources[source].cuts;
        *cuts += 1;
        Some(Silence::OwesData { source, cuts: *cuts })
    }

    /// Takes time in which the builder stood still from that in which sources make no progress.
    pub(super) fn excuse_standstill(&mut self, time: Duration) {
        self.connections.iter_mut().flatten().for_each(|connection| connection.progress_at += time);
    }

    /// Releases the slots of all sources that are not needed any more. `may_wait`: a release may be sent later,
    /// together with a fetch.
    pub(super) fn release_slots(&mut self, builder: &mut Builder, may_wait: bool) {
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection else { continue };
            let (Some(source), Some(link)) = (connection.source, self.endpoints.builder_link_mut(index)) else {
                continue;
            };
            let was_asked = std::mem::take(&mut connection.was_asked);
            // Over a socket each separate message costs a packet, a wake-up of the source, and as much again for the
            // offer that it answers with. With hundreds of sources each is fetched from rarely, so it receives both
            // together.
            let waits = may_wait && !was_asked && !connection.maps && self.sources[source].greeting.is_patient;
            if !(waits && builder.may_release_later(source))
                && let Some(below) = builder.next_release(source)
            {
                link.release_tickets(below);
            }
        }
    }

    /// Sends a connected source its dismissal: it is not needed any more.
    pub(super) fn dismiss_source(&mut self, source: usize) {
        self.sources[source].dismissed = true;
        self.send_to_source(source, &Message::Bye);
    }

    /// Returns whether a source was dismissed.
    pub(super) fn is_dismissed(&self, source: usize) -> bool {
        self.sources[source].dismissed
    }

    /// Sends what can be sent now. Returns the connections that broke.
    pub(super) fn flush_messages(&mut self, now: Duration) -> Vec<(usize, LinkError)> {
        let mut broken = Vec::new();
        self.endpoints.flush_messages(now, &mut broken);
        broken
    }

    /// Closes a connection, and tells the peer why if it did something wrong. Returns the source that was connected.
    pub(super) fn close_connection(
        &mut self,
        index: usize,
        error: &LinkError,
        ids: &[(SourceId, String)],
    ) -> Option<usize> {
        let connection = self.connections[index].take()?;
        self.vacant = self.vacant.min(index);
        let (peer, source) = (&connection.peer, connection.source.map(|source| ids[source].1.as_str()));
        let refusal = match error {
            LinkError::Refused { reason, text } => {
                tracing::warn!(%peer, "refused: {text}");
                Some((*reason, text.clone()))
            }
            error if error.is_violation() => {
                tracing::warn!(%peer, source, "disconnected: {error}");
                Some((Refusal::Protocol, error.to_string()))
            }
            error => {
                tracing::info!(%peer, source, "connection ended: {error}");
                None
            }
        };
        if let Some(link) = self.endpoints.builder_link_mut(index) {
            if let Some((reason, text)) = refusal {
                link.refuse_source(reason, &text);
            }
            self.copied_before += link.copied_bytes();
        }
        self.endpoints.close_link(index);
        self.losses_before = sum_losses(self.losses_before, connection.losses);
        let source = connection.source?;
        self.sources[source].connection = None;
        Some(source)
    }

    /// Delivers the last messages to all peers. Returns true once there is nothing left to repeat.
    pub(super) fn deliver_last_messages(&mut self, woken: &[u64], now: Duration) -> bool {
        self.leaving.turn(&mut self.endpoints, woken, now)
    }

    /// Returns the time without work unless something arrives, while the last messages are delivered; `None` before.
    pub(super) fn leaving_timeout(&self, now: Duration) -> Option<Duration> {
        self.leaving.time_to_next_turn(&self.endpoints, now)
    }

    /// Returns when there is something to do even if nothing arrives.
    pub(super) fn next_due_time(&self, now: Duration) -> Option<Duration> {
        let greeting = self.unidentified_connections().next().map(|_| now + GREETING_CHECK_INTERVAL);
        let backoff = self.accept_backoff.iter().map(|(_, until)| *until);
        backoff.chain(greeting).chain(self.endpoints.next_timeout()).min()
    }

    /// Returns how to wait for the next turn, for at most `timeout`. `hurries`: there is something urgent that only the
    /// Returns whether something arrived in this turn.
    pub(super) fn has_received(&self) -> bool {
        self.has_received
    }

    /// kernel knows of.
    pub(super) fn next_idle(&mut self, hurries: bool, timeout: Option<Duration>, now: Duration) -> Idle {
        let has_received = std::mem::take(&mut self.has_received);
        self.waiter.next_idle(&mut self.endpoints, has_received, hurries, timeout, now)
    }

    /// Returns the losses reported over a source's connection; `None` if it is not connected.
    pub(super) fn source_losses(&self, source: usize) -> Option<Losses> {
        self.source_connection(source).map(|connection| connection.losses)
    }

    /// Returns the losses that sources reported, over all connections that there were.
    pub(super) fn total_losses(&self) -> Losses {
        self.connections.iter().flatten().fold(self.losses_before, |sum, c| sum_losses(sum, c.losses))
    }

    /// Returns the bytes that links copied, over all connections that there were.
    pub(super) fn copied_bytes(&self) -> u64 {
        let links = (0..self.connections.len()).filter_map(|index| self.endpoints.builder_link(index));
        self.copied_before + links.map(|link| link.copied_bytes()).sum::<u64>()
    }

    /// Returns the counts of datagrams that arrived.
    pub(super) fn datagram_arrivals(&self) -> Arrivals {
        self.endpoints.arrival_counts()
    }
}

impl Connection {
    fn new(peer: Peer, maps: bool, now: Duration) -> Self {
        Self {
            peer,
            maps,
            source: None,
            since: now,
            was_asked: false,
            progress_at: now,
            progress_bytes: 0,
            received: 0,
            losses: Losses::default(),
        }
    }

    /// Notes what has arrived, however the link moves it. Returns whether the source makes progress: it has answered a
    /// whole fetch, or sent enough.
    fn note_progress(&mut self, received: u64, copied: u64, messages: &[Received], now: Duration) -> bool {
        let has_answered = messages.iter().any(|message| matches!(message, Received::Arrived { .. }));
        // Eager data are copied, and not counted as received.
        let bytes = received.max(copied);
        let makes_progress = has_answered || bytes >= self.progress_bytes + LEAST_PROGRESS_BYTES;
        if makes_progress {
            (self.progress_at, self.progress_bytes) = (now, bytes);
        }
        makes_progress
    }
}

/// Returns the sum of the losses of two connections.
fn sum_losses(one: Losses, other: Losses) -> Losses {
    Losses { sent: one.sent.saturating_add(other.sent), again: one.again.saturating_add(other.again) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_link::Origin;

    #[test]
    fn a_source_gets_on_that_answers_or_sends_enough_however_its_link_moves_it() {
        let peer = Peer::new("peer".into(), Origin::Host(None));
        let mut connection = Connection::new(peer, false, Duration::ZERO);
        let at = Duration::from_secs;
        for byte in 1..100 {
            assert!(!connection.note_progress(byte, 0, &[], at(byte)), "a trickle");
        }
        assert!(
            connection.note_progress(LEAST_PROGRESS_BYTES, 0, &[], at(200)),
            "written into its place by the adapter"
        );
        let bytes = Bytes::Place(Arena::create("place", 64).unwrap());
        let answer = [Received::Arrived { ticket: 0, bytes }];
        assert!(connection.note_progress(LEAST_PROGRESS_BYTES, 0, &answer, at(300)), "read where it lies");
        assert!(connection.note_progress(LEAST_PROGRESS_BYTES, 2 * LEAST_PROGRESS_BYTES, &[], at(400)), "sent unasked");
        assert_eq!(connection.progress_at, at(400));
    }
}
