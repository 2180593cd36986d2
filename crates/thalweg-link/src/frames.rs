//! Endpoints of links of frames: one port, and a reliable connection over it for each peer.
//!
//! Messages are sent as *words*, which are delivered once and in order (`channel`). The content of slots is sent as
//! *pieces*, straight from the arena; a builder that misses a piece asks for it again (`builder`). So nothing waits for
//! what was lost, and nothing is kept for retransmission but the slot itself, which is kept anyway. `docs/wire.md`
//! specifies the bytes.
//!
//! A builder identifies a connection by the number that the source has drawn for it (64 bits) and by the address it
//! comes from; frames with the number of another connection are dropped. A damaged frame is dropped as well, and so
//! repeated as if it had been lost. The longest datagram that a path takes is found by probes (`path`).

mod builder;
mod channel;
mod path;
mod source;

use crate::{
    Address, Arrivals, BuilderEndpoint, BuilderLink, Endpoint, Interest, LinkError, Origin, Peer, SourceEndpoint,
    SourceGreeting, SourceLink, Watch,
};
use builder::FrameBuilder;
use channel::{Channel, Word};
use rustix::event::{PollFd, PollFlags, poll};
use source::FrameSource;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_frames::{Arrival, Counters, FrameIo, FramesError};
use thalweg_wire::{Content, FrameError, HEAD_LEN, Head, MESSAGE_LEN, Message};

/// Maximum number of frames sent to one peer before others have their turn.
const FAIR_SHARE: usize = 64;
/// Maximum number of bursts received before others have their turn.
const MAX_BURSTS_PER_TURN: usize = 8;
/// Maximum time between questions to a source about its progress.
const LONGEST_PROBE: Duration = Duration::from_millis(640);
/// Polling interval of a port that cannot wake its node, while the node sleeps.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum number of connections that wait to be accepted.
const MAX_WAITING_CONNECTIONS: usize = 1024;
/// Maximum number of ended connections that are remembered, since frames of theirs may still be on their way.
const MAX_PAST_CONNECTIONS: usize = 4096;
/// Time for which the last words are repeated after a connection was closed, and (`LAST_WORDS`) after the port was.
const LINGER_TIME: Duration = Duration::from_secs(2);
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Time between two looks at what the port has dropped.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// A port, and the connections through it.
#[derive(Debug)]
pub(crate) struct Frames<I: FrameIo, H: Half> {
    io: I,
    watch: Watch,
    interest: Interest,
    connections: BTreeMap<u64, Connection<H>>,
    /// Number of the connection to each peer.
    peers: Vec<Option<u64>>,
    /// Connections that wait to be accepted; only at a builder's port.
    listener: Option<Listener>,
    /// Connections that were closed here, the oldest first: late frames of theirs do not begin new connections.
    past: VecDeque<u64>,
    /// Addresses at which there is no peer any more, while there may be more to receive from them.
    gone: Vec<SocketAddr>,
    /// True if more may have come than was received.
    more: bool,
    /// Number of the connection whose turn it is, if there was no room to send for all.
    turn: u64,
    /// Connections in the order of their turns, kept for reuse.
    order: Vec<u64>,
    now: Duration,
    random: RandomState,
    drawn: u64,
    /// Number of frames that were damaged on their way, and so are lost.
    damaged: u64,
    /// Number of datagrams that were not frames.
    foreign: u64,
    /// Arrivals at the last warning, and the time at which they are checked again.
    warned: (Arrivals, Duration),
    /// True if a frame of another version has come, and a warning was logged.
    other_version: bool,
    room: Vec<u8>,
    /// True if the last messages were repeated already.
    left: bool,
}

#[derive(Debug)]
struct Listener {
    place: String,
    waiting: VecDeque<u64>,
    listens: bool,
}

#[derive(Debug)]
struct Connection<H: Half> {
    peer: Option<usize>,
    address: SocketAddr,
    /// True if the other end has answered, from that address.
    is_answered: bool,
    half: H,
    received: Vec<H::Received>,
    /// True if the connection is over; `error` is the reason, until it was reported.
    over: bool,
    error: Option<LinkError>,
    /// True if there is no peer at the other end any more.
    gone: bool,
    /// True if bytes of slots have come since the last call of `receive`.
    stirred: bool,
    /// Time until which the last words are repeated, if the connection was closed here.
    closing: Option<Duration>,
}

/// One end of a connection, without its port.
pub(crate) trait Half: Debug + Send + Sized {
    /// A message or answer received from the other end.
    type Received: Debug + Send;
    /// True if it sends from registered memory: the port needs to know the memory then.
    const SENDS_PIECES: bool;

    /// Returns the channel for words.
    fn word_channel(&mut self) -> &mut Channel;

    /// True if the other end has received all words.
    fn is_fully_acknowledged(&self) -> bool;

    /// Processes a received frame, and appends messages to `received`.
    fn on_frame(
        &mut self,
        head: &Head,
        content: &[u8],
        now: Duration,
        received: &mut Vec<Self::Received>,
    ) -> Result<(), LinkError>;

    /// Handles timeouts.
    fn handle_timeouts(&mut self, now: Duration) -> Result<(), LinkError>;

    /// Limits datagrams to `longest` bytes: longer ones do not reach the other end.
    fn limit_datagrams(&mut self, longest: usize);

    /// Returns the time at which [`handle_timeouts`](Self::handle_timeouts) has something to do.
    fn next_deadline(&self) -> Duration;

    /// Puts one frame into the port's burst, which has room for it. Returns false if there is nothing to send.
    fn send_next_frame(&mut self, now: Duration, io: &mut dyn FrameIo, room: &mut Vec<u8>) -> Result<bool, LinkError>;

    /// Stops everything except the delivery of the last words.
    fn stop_transfers(&mut self);

    /// Redirects frames to `address`, from which the other end answers.
    fn redirect_to(&mut self, address: SocketAddr);

    /// Creates an end for a connection that a source begins, at a builder's port that copies received bytes `copies`
    /// times. `None` at a source's port.
    fn for_new_connection(connection: u64, from: SocketAddr, copies: u64, now: Duration) -> Option<Self>;
}

/// A message whose text has not arrived completely.
#[derive(Debug, Default)]
struct Texts {
    begun: Option<(Message, Vec<u8>)>,
}

impl Texts {
    /// Processes a received word. Returns a message with its text when the word completes one.
    fn on_word(&mut self, word: &Word) -> Result<Option<(Message, Vec<u8>)>, LinkError> {
        let (message, mut text) = match self.begun.take() {
            Some((message, mut text)) => {
                text.extend_from_slice(word);
                (message, text)
            }
            None => (Message::decode(word)?, Vec::new()),
        };
        // The length of `Data` counts bytes of a piece, not text: here its receiver rejects the message.
        let length = if matches!(message, Message::Data { .. }) { 0 } else { message.body_bytes() };
        if text.len() < length {
            self.begun = Some((message, text));
            return Ok(None);
        }
        text.truncate(length);
        Ok(Some((message, text)))
    }
}

/// Encodes a message with its text as words.
fn message_words(message: &Message, text: &[u8]) -> impl Iterator<Item = Word> {
    std::iter::once(message.encode()).chain(split_into_words(text))
}

/// Splits bytes into words, the last of them padded with zeros.
fn split_into_words(bytes: &[u8]) -> impl Iterator<Item = Word> {
    bytes.chunks(MESSAGE_LEN).map(|part| {
        let mut word = [0; MESSAGE_LEN];
        word[..part.len()].copy_from_slice(part);
        word
    })
}

/// Puts the next words into the burst, in a datagram of at most `longest` and at least `padded` bytes.
fn send_words(
    channel: &mut Channel,
    served: u32,
    to: SocketAddr,
    (longest, padded): (usize, usize),
    now: Duration,
    io: &mut dyn FrameIo,
    room: &mut Vec<u8>,
) {
    room.clear();
    room.resize(HEAD_LEN, 0);
    let most = (longest.saturating_sub(HEAD_LEN) / MESSAGE_LEN).max(1);
    let first = channel.next_words(most, now, room);
    let head = channel.build_head(channel.words_content(first), room.len() - HEAD_LEN, served, now);
    let (front, words) = room.split_at_mut(HEAD_LEN);
    front.copy_from_slice(&head.encode(words));
    room.resize(room.len().max(padded), 0);
    io.queue_datagram(to, room, None);
}

/// Puts a frame without words and without a piece into the burst, in a datagram of at least `padded` bytes.
#[expect(clippy::too_many_arguments, reason = "as put_words")]
fn send_bare_frame(
    channel: &mut Channel,
    content: Content,
    served: u32,
    to: SocketAddr,
    padded: usize,
    now: Duration,
    io: &mut dyn FrameIo,
    room: &mut Vec<u8>,
) {
    room.clear();
    room.extend_from_slice(&channel.build_head(content, 0, served, now).encode(&[]));
    room.resize(padded.max(HEAD_LEN), 0);
    io.queue_datagram(to, room, None);
}

impl<I: FrameIo, H: Half> Frames<I, H> {
    fn new(io: I, listener: Option<Listener>, watch: Watch) -> Result<Self, LinkError> {
        if let Some(fd) = io.descriptor() {
            watch.add_descriptor(fd, 0, Interest::READ)?;
        }
        let now = io.current_time(Duration::ZERO);
        Ok(Self {
            io,
            watch,
            interest: Interest::READ,
            connections: BTreeMap::new(),
            peers: Vec::new(),
            listener,
            past: VecDeque::new(),
            gone: Vec::new(),
            more: false,
            turn: 0,
            order: Vec::new(),
            now,
            random: RandomState::new(),
            drawn: 0,
            damaged: 0,
            foreign: 0,
            warned: (Arrivals::default(), Duration::ZERO),
            other_version: false,
            room: Vec::new(),
            left: false,
        })
    }

    /// True if the port cannot wake the node, and is polled instead.
    fn is_polled(&self) -> bool {
        self.io.descriptor().is_none() && self.io.is_cheap_to_poll()
    }

    fn assign_connection(&mut self, peer: usize, connection: u64) {
        if self.peers.len() <= peer {
            self.peers.resize(peer + 1, None);
        }
        self.peers[peer] = Some(connection);
    }

    fn connection_for(&self, peer: usize) -> Option<&Connection<H>> {
        self.connections.get(&(*self.peers.get(peer)?)?)
    }

    fn connection_for_mut(&mut self, peer: usize) -> Option<&mut Connection<H>> {
        self.connections.get_mut(&(*self.peers.get(peer)?)?)
    }

    /// Returns a number that no one can guess.
    fn draw_connection_number(&mut self) -> u64 {
        self.drawn += 1;
        self.io.draw_number().unwrap_or_else(|| self.random.hash_one(self.drawn))
    }

    /// Receives as many bursts as are fair. Returns true if more may be waiting.
    fn receive_bursts(&mut self, now: Duration) -> Result<bool, FramesError> {
        let Self { io, connections, listener, past, gone, random, damaged, foreign, other_version, .. } = self;
        let copies = io.copies_per_byte().1;
        let mut too_long = Vec::new();
        let mut receiver = FrameReceiver {
            connections,
            listener: listener.as_mut(),
            past,
            random,
            damaged,
            foreign,
            other_version,
            answers: Vec::new(),
            copies,
            now,
        };
        let mut more = true;
        for _ in 0..MAX_BURSTS_PER_TURN {
            more = io.receive_datagrams(&mut |from, arrival| match arrival {
                Arrival::Datagram(datagram) => receiver.on_datagram(from, datagram),
                Arrival::Unreachable => gone.push(from),
                Arrival::TooLong => too_long.push(from),
            })?;
            if !more {
                break;
            }
        }
        let answers = receiver.answers;
        // Messages that a peer sent before it went may still be waiting.
        if !more {
            self.end_gone_connections();
        }
        // One answer for each frame, and no longer than the frame.
        for (to, head) in &answers {
            self.io.queue_datagram(*to, &head.encode(&[]), None);
        }
        if !answers.is_empty() {
            self.io.flush_burst()?;
        }
        self.limit_datagram_lengths(&too_long);
        Ok(more)
    }

    /// Ends the connections to addresses at which there is no peer any more.
    fn end_gone_connections(&mut self) {
        for address in self.gone.drain(..) {
            let there = self.connections.values_mut().filter(|known| known.address == address && !known.over);
            there.for_each(|known| known.end_on_error(Err(LinkError::Closed)));
        }
    }

    /// Limits the datagrams to addresses that longer ones do not reach.
    fn limit_datagram_lengths(&mut self, addresses: &[SocketAddr]) {
        for to in addresses {
            let Ok(longest) = self.io.max_datagram_bytes(*to) else { continue };
            let there = self.connections.values_mut().filter(|known| known.address == *to);
            there.for_each(|known| known.half.limit_datagrams(longest));
        }
    }

    /// Sends as much as possible, in turn. Returns false if there was no room for all of it.
    fn send_in_turn(&mut self, now: Duration) -> Result<bool, FramesError> {
        let Self { io, connections, turn, order, room, .. } = self;
        loop {
            let mut any = false;
            order.clear();
            order.extend(connections.range(*turn..).chain(connections.range(..*turn)).map(|(at, _)| *at));
            for &number in &*order {
                let Some(connection) = connections.get_mut(&number) else { continue };
                for _ in 0..FAIR_SHARE {
                    if !io.has_send_room() {
                        io.flush_burst()?;
                        if !io.has_send_room() {
                            *turn = number;
                            return Ok(false);
                        }
                    }
                    match connection.send_next_frame(now, io, room) {
                        Ok(true) => any = true,
                        Ok(false) => break,
                        Err(error) => {
                            connection.end_on_error(Err(error));
                            break;
                        }
                    }
                }
            }
            if !any {
                return io.flush_burst();
            }
        }
    }

    /// Warns of datagrams that this host has dropped: they would look like losses of the network otherwise.
    fn warn_of_dropped_datagrams(&mut self, now: Duration) {
        let (before, at) = self.warned;
        if now < at {
            return;
        }
        let all = self.arrival_counts();
        let [dropped, damaged] = [all.dropped - before.dropped, all.damaged - before.damaged];
        if dropped > 0 {
            tracing::warn!(
                "{dropped} datagrams to {} were dropped by this host because its receive buffer was full: raise \
                 net.core.rmem_max",
                self.io.local_address()
            );
        }
        if damaged > 0 {
            tracing::warn!(
                "{damaged} datagrams to {} were damaged in transit: check the cables",
                self.io.local_address()
            );
        }
        self.warned = (all, now + WARNING_INTERVAL);
    }

    /// Removes connections that were closed here and have delivered everything, or have timed out.
    fn remove_closed_connections(&mut self, now: Duration) {
        let Self { io, connections, past, .. } = self;
        connections.retain(|number, connection| {
            let Some(until) = connection.closing else { return true };
            let stays = !connection.over && !connection.half.word_channel().is_fully_acknowledged() && now < until;
            if !stays {
                io.queue_datagram(connection.address, &channel::connection_over_head(*number).encode(&[]), None);
                past.push_back(*number);
            }
            stays
        });
        past.drain(..past.len().saturating_sub(MAX_PAST_CONNECTIONS));
    }
}

/// Assigns received frames to connections: the parts of [`Frames`] that this needs while the port is borrowed.
struct FrameReceiver<'a, H: Half> {
    connections: &'a mut BTreeMap<u64, Connection<H>>,
    listener: Option<&'a mut Listener>,
    past: &'a VecDeque<u64>,
    random: &'a RandomState,
    damaged: &'a mut u64,
    foreign: &'a mut u64,
    other_version: &'a mut bool,
    /// Frames to send in answer to frames of no connection.
    answers: Vec<(SocketAddr, Head)>,
    /// Number of times that the port copies received bytes.
    copies: u64,
    now: Duration,
}

impl<H: Half> FrameReceiver<'_, H> {
    fn on_datagram(&mut self, from: SocketAddr, datagram: &[u8]) {
        let (head, content) = match Head::decode(datagram) {
            Ok(frame) => frame,
            Err(error) => return self.on_invalid_datagram(from, error),
        };
        match self.connections.get_mut(&head.connection) {
            Some(known) => {
                if !known.over && known.accepts_sender(from) {
                    let outcome = known.on_frame(&head, content, self.now);
                    known.end_on_error(outcome);
                }
            }
            None => self.on_unknown_connection(from, &head, content),
        }
    }

    /// Counts a datagram that is not a frame, or a damaged one.
    fn on_invalid_datagram(&mut self, from: SocketAddr, error: FrameError) {
        let counter = if error.is_damage() { &mut *self.damaged } else { &mut *self.foreign };
        *counter += 1;
        if let FrameError::Version(_) = error
            && !std::mem::replace(self.other_version, true)
        {
            tracing::warn!("frames from {from} are dropped: {error}");
        }
    }

    /// Processes a frame of a connection that is not known: begins it if the frame is its hello with the right token.
    fn on_unknown_connection(&mut self, from: SocketAddr, head: &Head, content: &[u8]) {
        let (Some(listener), Content::Words { token, .. }, true) =
            (self.listener.as_deref_mut(), head.content, is_hello_frame(head, content))
        else {
            if head.content != Content::Over && head.received > 0 {
                // The sender has received words of this end. Otherwise the frame may have overtaken the hello of a new
                // connection.
                self.answers.push((from, channel::connection_over_head(head.connection)));
            }
            return;
        };
        let expected = self.random.hash_one((from, head.connection));
        if token != expected {
            // A sender with a false address does not receive this, and so occupies no place here.
            self.answers
                .push((from, channel::head_without_channel(head.connection, Content::Challenge { token: expected })));
        } else if listener.waiting.len() < MAX_WAITING_CONNECTIONS
            && !self.past.contains(&head.connection)
            && let Some(half) = H::for_new_connection(head.connection, from, self.copies, self.now)
        {
            let mut new = Connection::new(half, from, None);
            new.is_answered = true;
            let outcome = new.on_frame(head, content, self.now);
            new.end_on_error(outcome);
            self.connections.insert(head.connection, new);
            listener.waiting.push_back(head.connection);
        }
    }
}

/// True if a frame begins with a hello, as the first of a connection does.
fn is_hello_frame(head: &Head, content: &[u8]) -> bool {
    let first = content.first_chunk::<MESSAGE_LEN>();
    matches!(head.content, Content::Words { first: 0, .. })
        && head.received == 0
        && first.is_some_and(|word| matches!(Message::decode(word), Ok(Message::Hello(_))))
}

impl<H: Half> Connection<H> {
    fn new(half: H, address: SocketAddr, peer: Option<usize>) -> Self {
        Self {
            peer,
            address,
            is_answered: false,
            half,
            received: Vec::new(),
            over: false,
            error: None,
            gone: false,
            stirred: false,
            closing: None,
        }
    }

    /// True if a frame may come from the other end. A builder with several addresses may answer from another than the
    /// one called: no other host knows the number of the connection.
    fn accepts_sender(&mut self, from: SocketAddr) -> bool {
        if self.address != from && self.is_answered {
            return false;
        }
        self.is_answered = true;
        if self.address != from {
            self.address = from;
            self.half.redirect_to(from);
        }
        true
    }

    /// Ends the connection if `outcome` is an error.
    fn end_on_error(&mut self, outcome: Result<(), LinkError>) {
        if let Err(error) = outcome {
            self.over = true;
            self.gone |= !error.is_violation();
            self.error = Some(error);
        }
    }

    fn on_frame(&mut self, head: &Head, content: &[u8], now: Duration) -> Result<(), LinkError> {
        if head.content == Content::Over {
            // Ignored until a word was received: a hello may come twice, and late.
            return if self.half.word_channel().has_received_word() { Err(LinkError::Closed) } else { Ok(()) };
        }
        if self.closing.is_some() {
            // The last words are still to be delivered; requests of the other end are ignored. The slots that it asks
            // for may have been given to others.
            self.half.word_channel().on_frame(head, content, now, &mut Vec::new());
            return Ok(());
        }
        self.stirred |= matches!(head.content, Content::Piece { .. });
        self.half.on_frame(head, content, now, &mut self.received)
    }

    fn send_next_frame(&mut self, now: Duration, io: &mut dyn FrameIo, room: &mut Vec<u8>) -> Result<bool, LinkError> {
        if self.over { Ok(false) } else { self.half.send_next_frame(now, io, room) }
    }

    fn has_news(&self) -> bool {
        self.error.is_some() || self.stirred || !self.received.is_empty()
    }
}

impl<I: FrameIo, H: Half> Endpoint for Frames<I, H> {
    type Received = H::Received;

    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        if H::SENDS_PIECES { self.io.register_memory(memory).map_err(link_error) } else { Ok(()) }
    }

    fn poll_peers(&mut self, now: Duration, woken: &[u32], ready: &mut Vec<usize>) {
        let now = self.io.current_time(now);
        self.now = now;
        let comes = self.io.next_arrival().is_some_and(|at| at <= now);
        if !woken.is_empty() || self.more || comes || self.io.is_cheap_to_poll() {
            match self.receive_bursts(now) {
                Ok(more) => self.more = more,
                Err(FramesError { doing, error }) => {
                    for connection in self.connections.values_mut() {
                        let error = io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0));
                        connection.end_on_error(Err(LinkError::Io { doing: doing.clone(), error }));
                    }
                }
            }
        }
        for connection in self.connections.values_mut() {
            if !connection.over && connection.half.next_deadline() <= now {
                let outcome = connection.half.handle_timeouts(now);
                connection.end_on_error(outcome);
            }
            ready.extend(connection.peer.filter(|_| connection.has_news()));
        }
        self.remove_closed_connections(now);
        self.warn_of_dropped_datagrams(now);
    }

    fn receive_messages(&mut self, peer: usize, received: &mut Vec<H::Received>) -> Result<bool, LinkError> {
        let Some(connection) = self.connection_for_mut(peer) else { return Ok(false) };
        connection.stirred = false;
        received.append(&mut connection.received);
        connection.error.take().map_or(Ok(false), Err)
    }

    fn flush_messages(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        let now = self.io.current_time(now);
        self.now = now;
        let sent = self.send_in_turn(now);
        for connection in self.connections.values_mut() {
            if let (Some(peer), Ok(_)) = (connection.peer, &sent)
                && let Err(error) = connection.half.word_channel().check_backlog()
            {
                broken.push((peer, error));
            }
        }
        match sent {
            Ok(all) => {
                let interest = Interest { read: true, write: !all };
                if interest != self.interest
                    && let Some(fd) = self.io.descriptor()
                    && self.watch.change_interest(fd, 0, interest).is_ok()
                {
                    self.interest = interest;
                }
            }
            Err(FramesError { doing, error }) => {
                for peer in self.connections.values().filter_map(|connection| connection.peer) {
                    let error = io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0));
                    broken.push((peer, LinkError::Io { doing: doing.clone(), error }));
                }
            }
        }
    }

    fn prepare_wait(&mut self) -> bool {
        let news = self.connections.values().any(|connection| connection.peer.is_some() && connection.has_news());
        let comes = self.io.next_arrival().is_some_and(|at| at <= self.io.current_time(self.now));
        (self.is_polled() || self.io.prepare_wait()) && !self.more && !news && !comes
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.io.is_cheap_to_poll()
    }

    fn next_timeout(&self) -> Option<Duration> {
        let waiting = self.listener.as_ref().is_some_and(|listener| listener.listens && !listener.waiting.is_empty());
        let now = (waiting || self.more).then_some(Duration::ZERO);
        let deadlines = self.connections.values().filter(|connection| !connection.over).map(|connection| {
            let deadline = connection.half.next_deadline();
            connection.closing.map_or(deadline, |until| until.min(deadline))
        });
        let look = self.is_polled().then(|| self.now + POLL_INTERVAL);
        deadlines.chain(now).chain(look).chain(self.io.next_arrival()).min()
    }

    fn arrival_counts(&self) -> Arrivals {
        let Counters { received, dropped, foreign, .. } = self.io.port_counters();
        Arrivals { received, dropped, damaged: self.damaged, foreign: foreign + self.foreign }
    }

    fn prepare_to_leave(&mut self) {
        self.left = true;
        self.listener = None;
        self.connections.values_mut().for_each(|connection| connection.half.stop_transfers());
    }

    fn has_left(&self) -> bool {
        let mut open = self.connections.values().filter(|connection| !connection.over);
        open.all(|connection| connection.half.is_fully_acknowledged())
    }

    fn close_link(&mut self, peer: usize) {
        let Some(number) = self.peers.get_mut(peer).and_then(Option::take) else { return };
        let now = self.now;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.peer = None;
            connection.received.clear();
            connection.closing = Some(now + LINGER_TIME);
            // A peer that broke a rule is still there, and is sent the reason.
            connection.over &= connection.gone;
            connection.half.stop_transfers();
        }
        // An attempt only: the peer may be gone already.
        let _ = self.send_in_turn(now);
        self.remove_closed_connections(now);
        let _ = self.io.flush_burst();
    }
}

impl<I: FrameIo, H: Half> Frames<I, H> {
    /// Repeats the last words for a moment, if they were not received: after that no one repeats them.
    fn repeat_last_words(&mut self) {
        self.prepare_to_leave();
        let (begun, then) = (Instant::now(), self.now);
        loop {
            let now = then + begun.elapsed();
            let received = self.receive_bursts(now);
            for connection in self.connections.values_mut().filter(|connection| !connection.over) {
                let outcome = connection.half.handle_timeouts(now);
                connection.end_on_error(outcome);
            }
            let sent = self.send_in_turn(now);
            if received.is_err() || sent.is_err() || self.has_left() || begun.elapsed() >= LAST_WORDS {
                return;
            }
            match self.io.descriptor() {
                Some(fd) => {
                    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&moment));
                }
                // A port that is polled.
                None if self.io.is_cheap_to_poll() => std::thread::sleep(POLL_INTERVAL),
                // A port with a time of its own, which does not advance here.
                None => return,
            }
        }
    }
}

impl<I: FrameIo, H: Half> Drop for Frames<I, H> {
    fn drop(&mut self) {
        if !self.left {
            self.repeat_last_words();
        }
        for (number, connection) in &self.connections {
            self.io.queue_datagram(connection.address, &channel::connection_over_head(*number).encode(&[]), None);
        }
        let _ = self.io.flush_burst();
    }
}

/// Creates a source's endpoint over any port for datagrams.
///
/// # Errors
/// The poller accepts no more descriptors.
pub fn source_endpoint_over(io: impl FrameIo + 'static, watch: Watch) -> Result<Box<dyn SourceEndpoint>, LinkError> {
    Ok(Box::new(Frames::source_endpoint(io, watch)?))
}

/// Creates a builder's endpoint over any port for datagrams. Its place is the local address of the port.
///
/// # Errors
/// The poller accepts no more descriptors.
pub fn builder_endpoint_over(io: impl FrameIo + 'static, watch: Watch) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
    let place = io.local_address().to_string();
    Ok(Box::new(Frames::builder_endpoint(io, place, watch)?))
}

fn link_error(FramesError { doing, error }: FramesError) -> LinkError {
    LinkError::Io { doing, error }
}

impl<I: FrameIo> Frames<I, FrameSource> {
    /// Creates a source's endpoint.
    pub(crate) fn source_endpoint(io: I, watch: Watch) -> Result<Self, LinkError> {
        Self::new(io, None, watch)
    }
}

impl<I: FrameIo> Frames<I, FrameBuilder> {
    /// Creates a builder's endpoint. `place` is the place at which others reach it.
    pub(crate) fn builder_endpoint(io: I, place: String, watch: Watch) -> Result<Self, LinkError> {
        Self::new(io, Some(Listener { place, waiting: VecDeque::new(), listens: true }), watch)
    }
}

impl<I: FrameIo> SourceEndpoint for Frames<I, FrameSource> {
    fn connect_to_builder(
        &mut self,
        peer: usize,
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let address = self
            .io
            .resolve_address(to.place())
            .map_err(LinkError::from_unusable(format!("resolving '{}'", to.place())))?;
        let longest = self.io.max_datagram_bytes(address).map_err(link_error)?;
        let number = self.draw_connection_number();
        let half = FrameSource::new(
            number,
            address,
            (longest, self.io.copies_per_byte().0),
            greeting,
            self.io.current_time(self.now),
        );
        self.connections.insert(number, Connection::new(half, address, Some(peer)));
        self.assign_connection(peer, number);
        self.send_in_turn(self.io.current_time(self.now)).map_err(link_error)?;
        Ok(())
    }

    fn source_link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.connection_for(peer)?.half)
    }

    fn source_link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.connection_for_mut(peer)?.half)
    }
}

impl<I: FrameIo> BuilderEndpoint for Frames<I, FrameBuilder> {
    fn listening_place(&self) -> String {
        self.listener.as_ref().map(|listener| listener.place.clone()).unwrap_or_default()
    }

    fn limit_in_flight_bytes(&mut self, bytes: u64) -> u64 {
        self.io.reserve_receive_bytes(bytes)
    }

    fn accept_peer(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        let Some(listener) = &mut self.listener else { return Ok(None) };
        let Some(number) = listener.waiting.pop_front() else { return Ok(None) };
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(None) };
        connection.peer = Some(peer);
        let address = connection.address;
        if let Ok(longest) = self.io.max_datagram_bytes(address) {
            connection.half.limit_datagrams(longest);
        }
        self.assign_connection(peer, number);
        // Messages that it sent before are to be received.
        self.more = true;
        Ok(Some(Peer::new(address.to_string(), Origin::Host(Some(address.ip())))))
    }

    fn set_listening(&mut self, listens: bool) -> Result<(), LinkError> {
        if let Some(listener) = &mut self.listener {
            listener.listens = listens;
        }
        Ok(())
    }

    fn builder_link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.connection_for(peer)?.half)
    }

    fn builder_link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.connection_for_mut(peer)?.half)
    }
}
