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
    fn channel(&mut self) -> &mut Channel;

    /// True if the other end has received all words.
    fn is_quiet(&self) -> bool;

    /// Processes a received frame, and appends messages to `received`.
    fn on_frame(
        &mut self,
        head: &Head,
        content: &[u8],
        now: Duration,
        received: &mut Vec<Self::Received>,
    ) -> Result<(), LinkError>;

    /// Handles timeouts.
    fn time(&mut self, now: Duration) -> Result<(), LinkError>;

    /// Limits datagrams to `longest` bytes: longer ones do not reach the other end.
    fn too_long(&mut self, longest: usize);

    /// Returns the time at which [`time`](Self::time) has something to do.
    fn deadline(&self) -> Duration;

    /// Puts one frame into the port's burst, which has room for it. Returns false if there is nothing to send.
    fn put_frame(&mut self, now: Duration, io: &mut dyn FrameIo, room: &mut Vec<u8>) -> Result<bool, LinkError>;

    /// Stops everything except the delivery of the last words.
    fn close(&mut self);

    /// Redirects frames to `address`, from which the other end answers.
    fn moves_to(&mut self, address: SocketAddr);

    /// Creates an end for a connection that a source begins, at a builder's port that copies received bytes `copies`
    /// times. `None` at a source's port.
    fn begun(connection: u64, from: SocketAddr, copies: u64, now: Duration) -> Option<Self>;
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
        let length = if matches!(message, Message::Data { .. }) { 0 } else { message.body_len() };
        if text.len() < length {
            self.begun = Some((message, text));
            return Ok(None);
        }
        text.truncate(length);
        Ok(Some((message, text)))
    }
}

/// Encodes a message with its text as words.
fn words_of(message: &Message, text: &[u8]) -> impl Iterator<Item = Word> {
    std::iter::once(message.encode()).chain(words(text))
}

/// Splits bytes into words, the last of them padded with zeros.
fn words(bytes: &[u8]) -> impl Iterator<Item = Word> {
    bytes.chunks(MESSAGE_LEN).map(|part| {
        let mut word = [0; MESSAGE_LEN];
        word[..part.len()].copy_from_slice(part);
        word
    })
}

/// Puts the next words into the burst, in a datagram of at most `longest` and at least `padded` bytes.
fn put_words(
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
    let head = channel.head(channel.words(first), room.len() - HEAD_LEN, served, now);
    let (front, words) = room.split_at_mut(HEAD_LEN);
    front.copy_from_slice(&head.encode(words));
    room.resize(room.len().max(padded), 0);
    io.send(to, room, None);
}

/// Puts a frame without words and without a piece into the burst, in a datagram of at least `padded` bytes.
#[expect(clippy::too_many_arguments, reason = "as put_words")]
fn put_bare(
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
    room.extend_from_slice(&channel.head(content, 0, served, now).encode(&[]));
    room.resize(padded.max(HEAD_LEN), 0);
    io.send(to, room, None);
}

impl<I: FrameIo, H: Half> Frames<I, H> {
    fn new(io: I, listener: Option<Listener>, watch: Watch) -> Result<Self, LinkError> {
        if let Some(fd) = io.fd() {
            watch.add(fd, 0, Interest::READ)?;
        }
        let now = io.time(Duration::ZERO);
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
        self.io.fd().is_none() && self.io.sees()
    }

    fn put(&mut self, peer: usize, connection: u64) {
        if self.peers.len() <= peer {
            self.peers.resize(peer + 1, None);
        }
        self.peers[peer] = Some(connection);
    }

    fn of(&self, peer: usize) -> Option<&Connection<H>> {
        self.connections.get(&(*self.peers.get(peer)?)?)
    }

    fn of_mut(&mut self, peer: usize) -> Option<&mut Connection<H>> {
        self.connections.get_mut(&(*self.peers.get(peer)?)?)
    }

    /// Returns a number that no one can guess.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.io.draw().unwrap_or_else(|| self.random.hash_one(self.drawn))
    }

    /// Receives as many bursts as are fair. Returns true if more may be waiting.
    fn hear(&mut self, now: Duration) -> Result<bool, FramesError> {
        let Self { io, connections, listener, past, gone, random, damaged, foreign, other_version, .. } = self;
        let copies = io.copies().1;
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
            more = io.receive(&mut |from, arrival| match arrival {
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
            self.end_gone();
        }
        // One answer for each frame, and no longer than the frame.
        for (to, head) in &answers {
            self.io.send(*to, &head.encode(&[]), None);
        }
        if !answers.is_empty() {
            self.io.flush()?;
        }
        self.limit_lengths(&too_long);
        Ok(more)
    }

    /// Ends the connections to addresses at which there is no peer any more.
    fn end_gone(&mut self) {
        for address in self.gone.drain(..) {
            let there = self.connections.values_mut().filter(|known| known.address == address && !known.over);
            there.for_each(|known| known.ends(Err(LinkError::Closed)));
        }
    }

    /// Limits the datagrams to addresses that longer ones do not reach.
    fn limit_lengths(&mut self, addresses: &[SocketAddr]) {
        for to in addresses {
            let Ok(longest) = self.io.longest(*to) else { continue };
            let there = self.connections.values_mut().filter(|known| known.address == *to);
            there.for_each(|known| known.half.too_long(longest));
        }
    }

    /// Sends as much as possible, in turn. Returns false if there was no room for all of it.
    fn send(&mut self, now: Duration) -> Result<bool, FramesError> {
        let Self { io, connections, turn, order, room, .. } = self;
        loop {
            let mut any = false;
            order.clear();
            order.extend(connections.range(*turn..).chain(connections.range(..*turn)).map(|(at, _)| *at));
            for &number in &*order {
                let Some(connection) = connections.get_mut(&number) else { continue };
                for _ in 0..FAIR_SHARE {
                    if !io.has_room() {
                        io.flush()?;
                        if !io.has_room() {
                            *turn = number;
                            return Ok(false);
                        }
                    }
                    match connection.put_frame(now, io, room) {
                        Ok(true) => any = true,
                        Ok(false) => break,
                        Err(error) => {
                            connection.ends(Err(error));
                            break;
                        }
                    }
                }
            }
            if !any {
                return io.flush();
            }
        }
    }

    /// Warns of datagrams that this host has dropped: they would look like losses of the network otherwise.
    fn warn_of_drops(&mut self, now: Duration) {
        let (before, at) = self.warned;
        if now < at {
            return;
        }
        let all = self.arrivals();
        let [dropped, damaged] = [all.dropped - before.dropped, all.damaged - before.damaged];
        if dropped > 0 {
            tracing::warn!(
                "{dropped} datagrams to {} were dropped by this host, which had no room for them: raise net.core.rmem_max",
                self.io.local()
            );
        }
        if damaged > 0 {
            tracing::warn!("{damaged} datagrams to {} were damaged on their way: check the cables", self.io.local());
        }
        self.warned = (all, now + WARNING_INTERVAL);
    }

    /// Removes connections that were closed here and have delivered everything, or have timed out.
    fn forget(&mut self, now: Duration) {
        let Self { io, connections, past, .. } = self;
        connections.retain(|number, connection| {
            let Some(until) = connection.closing else { return true };
            let stays = !connection.over && !connection.half.channel().is_quiet() && now < until;
            if !stays {
                io.send(connection.address, &channel::over(*number).encode(&[]), None);
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
            Err(error) => return self.on_invalid(from, error),
        };
        match self.connections.get_mut(&head.connection) {
            Some(known) => {
                if !known.over && known.comes_from(from) {
                    let outcome = known.hear(&head, content, self.now);
                    known.ends(outcome);
                }
            }
            None => self.on_unknown(from, &head, content),
        }
    }

    /// Counts a datagram that is not a frame, or a damaged one.
    fn on_invalid(&mut self, from: SocketAddr, error: FrameError) {
        let counter = if error.is_damage() { &mut *self.damaged } else { &mut *self.foreign };
        *counter += 1;
        if let FrameError::Version(_) = error
            && !std::mem::replace(self.other_version, true)
        {
            tracing::warn!("frames from {from} are dropped: {error}");
        }
    }

    /// Processes a frame of a connection that is not known: begins it if the frame is its hello with the right token.
    fn on_unknown(&mut self, from: SocketAddr, head: &Head, content: &[u8]) {
        let (Some(listener), Content::Words { token, .. }, true) =
            (self.listener.as_deref_mut(), head.content, is_hello(head, content))
        else {
            if head.content != Content::Over && head.received > 0 {
                // The sender has received words of this end. Otherwise the frame may have overtaken the hello of a new
                // connection.
                self.answers.push((from, channel::over(head.connection)));
            }
            return;
        };
        let expected = self.random.hash_one((from, head.connection));
        if token != expected {
            // A sender with a false address does not receive this, and so occupies no place here.
            self.answers.push((from, channel::bare(head.connection, Content::Challenge { token: expected })));
        } else if listener.waiting.len() < MAX_WAITING_CONNECTIONS
            && !self.past.contains(&head.connection)
            && let Some(half) = H::begun(head.connection, from, self.copies, self.now)
        {
            let mut new = Connection::new(half, from, None);
            new.is_answered = true;
            let outcome = new.hear(head, content, self.now);
            new.ends(outcome);
            self.connections.insert(head.connection, new);
            listener.waiting.push_back(head.connection);
        }
    }
}

/// True if a frame begins with a hello, as the first of a connection does.
fn is_hello(head: &Head, content: &[u8]) -> bool {
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
    fn comes_from(&mut self, from: SocketAddr) -> bool {
        if self.address != from && self.is_answered {
            return false;
        }
        self.is_answered = true;
        if self.address != from {
            self.address = from;
            self.half.moves_to(from);
        }
        true
    }

    /// Ends the connection if `outcome` is an error.
    fn ends(&mut self, outcome: Result<(), LinkError>) {
        if let Err(error) = outcome {
            self.over = true;
            self.gone |= !error.is_violation();
            self.error = Some(error);
        }
    }

    fn hear(&mut self, head: &Head, content: &[u8], now: Duration) -> Result<(), LinkError> {
        if head.content == Content::Over {
            // Ignored until a word was received: a hello may come twice, and late.
            return if self.half.channel().has_heard() { Err(LinkError::Closed) } else { Ok(()) };
        }
        if self.closing.is_some() {
            // The last words are still to be delivered; requests of the other end are ignored. The slots that it asks
            // for may have been given to others.
            self.half.channel().on_frame(head, content, now, &mut Vec::new());
            return Ok(());
        }
        self.stirred |= matches!(head.content, Content::Piece { .. });
        self.half.on_frame(head, content, now, &mut self.received)
    }

    fn put_frame(&mut self, now: Duration, io: &mut dyn FrameIo, room: &mut Vec<u8>) -> Result<bool, LinkError> {
        if self.over { Ok(false) } else { self.half.put_frame(now, io, room) }
    }

    fn has_news(&self) -> bool {
        self.error.is_some() || self.stirred || !self.received.is_empty()
    }
}

impl<I: FrameIo, H: Half> Endpoint for Frames<I, H> {
    type Received = H::Received;

    fn register(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        if H::SENDS_PIECES { self.io.register(memory).map_err(failed) } else { Ok(()) }
    }

    fn poll(&mut self, now: Duration, woken: &[u32], ready: &mut Vec<usize>) {
        let now = self.io.time(now);
        self.now = now;
        let comes = self.io.next_arrival().is_some_and(|at| at <= now);
        if !woken.is_empty() || self.more || comes || self.io.sees() {
            match self.hear(now) {
                Ok(more) => self.more = more,
                Err(FramesError { doing, error }) => {
                    for connection in self.connections.values_mut() {
                        let error = io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0));
                        connection.ends(Err(LinkError::Io { doing: doing.clone(), error }));
                    }
                }
            }
        }
        for connection in self.connections.values_mut() {
            if !connection.over && connection.half.deadline() <= now {
                let outcome = connection.half.time(now);
                connection.ends(outcome);
            }
            ready.extend(connection.peer.filter(|_| connection.has_news()));
        }
        self.forget(now);
        self.warn_of_drops(now);
    }

    fn receive(&mut self, peer: usize, received: &mut Vec<H::Received>) -> Result<bool, LinkError> {
        let Some(connection) = self.of_mut(peer) else { return Ok(false) };
        connection.stirred = false;
        received.append(&mut connection.received);
        connection.error.take().map_or(Ok(false), Err)
    }

    fn flush(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        let now = self.io.time(now);
        self.now = now;
        let sent = self.send(now);
        for connection in self.connections.values_mut() {
            if let (Some(peer), Ok(_)) = (connection.peer, &sent)
                && let Err(error) = connection.half.channel().check()
            {
                broken.push((peer, error));
            }
        }
        match sent {
            Ok(all) => {
                let interest = Interest { read: true, write: !all };
                if interest != self.interest
                    && let Some(fd) = self.io.fd()
                    && self.watch.change(fd, 0, interest).is_ok()
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
        let comes = self.io.next_arrival().is_some_and(|at| at <= self.io.time(self.now));
        (self.is_polled() || self.io.prepare_wait()) && !self.more && !news && !comes
    }

    fn sees(&self) -> bool {
        self.io.sees()
    }

    fn next_timeout(&self) -> Option<Duration> {
        let waiting = self.listener.as_ref().is_some_and(|listener| listener.listens && !listener.waiting.is_empty());
        let now = (waiting || self.more).then_some(Duration::ZERO);
        let deadlines = self.connections.values().filter(|connection| !connection.over).map(|connection| {
            let deadline = connection.half.deadline();
            connection.closing.map_or(deadline, |until| until.min(deadline))
        });
        let look = self.is_polled().then(|| self.now + POLL_INTERVAL);
        deadlines.chain(now).chain(look).chain(self.io.next_arrival()).min()
    }

    fn arrivals(&self) -> Arrivals {
        let Counters { received, dropped, foreign, .. } = self.io.counters();
        Arrivals { received, dropped, damaged: self.damaged, foreign: foreign + self.foreign }
    }

    fn leave(&mut self) {
        self.left = true;
        self.listener = None;
        self.connections.values_mut().for_each(|connection| connection.half.close());
    }

    fn has_left(&self) -> bool {
        let mut open = self.connections.values().filter(|connection| !connection.over);
        open.all(|connection| connection.half.is_quiet())
    }

    fn close(&mut self, peer: usize) {
        let Some(number) = self.peers.get_mut(peer).and_then(Option::take) else { return };
        let now = self.now;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.peer = None;
            connection.received.clear();
            connection.closing = Some(now + LINGER_TIME);
            // A peer that broke a rule is still there, and is sent the reason.
            connection.over &= connection.gone;
            connection.half.close();
        }
        // An attempt only: the peer may be gone already.
        let _ = self.send(now);
        self.forget(now);
        let _ = self.io.flush();
    }
}

impl<I: FrameIo, H: Half> Frames<I, H> {
    /// Repeats the last words for a moment, if they were not received: after that no one repeats them.
    fn linger(&mut self) {
        self.leave();
        let (begun, then) = (Instant::now(), self.now);
        loop {
            let now = then + begun.elapsed();
            let received = self.hear(now);
            for connection in self.connections.values_mut().filter(|connection| !connection.over) {
                let outcome = connection.half.time(now);
                connection.ends(outcome);
            }
            let sent = self.send(now);
            if received.is_err() || sent.is_err() || self.has_left() || begun.elapsed() >= LAST_WORDS {
                return;
            }
            match self.io.fd() {
                Some(fd) => {
                    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&moment));
                }
                // A port that is polled.
                None if self.io.sees() => std::thread::sleep(POLL_INTERVAL),
                // A port with a time of its own, which does not advance here.
                None => return,
            }
        }
    }
}

impl<I: FrameIo, H: Half> Drop for Frames<I, H> {
    fn drop(&mut self) {
        if !self.left {
            self.linger();
        }
        for (number, connection) in &self.connections {
            self.io.send(connection.address, &channel::over(*number).encode(&[]), None);
        }
        let _ = self.io.flush();
    }
}

/// Creates a source's endpoint over any port for datagrams.
///
/// # Errors
/// The poller accepts no more descriptors.
pub fn source_over(io: impl FrameIo + 'static, watch: Watch) -> Result<Box<dyn SourceEndpoint>, LinkError> {
    Ok(Box::new(Frames::source(io, watch)?))
}

/// Creates a builder's endpoint over any port for datagrams. Its place is the local address of the port.
///
/// # Errors
/// The poller accepts no more descriptors.
pub fn builder_over(io: impl FrameIo + 'static, watch: Watch) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
    let place = io.local().to_string();
    Ok(Box::new(Frames::builder(io, place, watch)?))
}

fn failed(FramesError { doing, error }: FramesError) -> LinkError {
    LinkError::Io { doing, error }
}

impl<I: FrameIo> Frames<I, FrameSource> {
    /// Creates a source's endpoint.
    pub(crate) fn source(io: I, watch: Watch) -> Result<Self, LinkError> {
        Self::new(io, None, watch)
    }
}

impl<I: FrameIo> Frames<I, FrameBuilder> {
    /// Creates a builder's endpoint. `place` is the place at which others reach it.
    pub(crate) fn builder(io: I, place: String, watch: Watch) -> Result<Self, LinkError> {
        Self::new(io, Some(Listener { place, waiting: VecDeque::new(), listens: true }), watch)
    }
}

impl<I: FrameIo> SourceEndpoint for Frames<I, FrameSource> {
    fn connect(
        &mut self,
        peer: usize,
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let address =
            self.io.resolve(to.place()).map_err(LinkError::unusable(format!("resolving '{}'", to.place())))?;
        let longest = self.io.longest(address).map_err(failed)?;
        let number = self.draw();
        let half = FrameSource::new(number, address, (longest, self.io.copies().0), greeting, self.io.time(self.now));
        self.connections.insert(number, Connection::new(half, address, Some(peer)));
        self.put(peer, number);
        self.send(self.io.time(self.now)).map_err(failed)?;
        Ok(())
    }

    fn link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.of(peer)?.half)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.of_mut(peer)?.half)
    }
}

impl<I: FrameIo> BuilderEndpoint for Frames<I, FrameBuilder> {
    fn place(&self) -> String {
        self.listener.as_ref().map(|listener| listener.place.clone()).unwrap_or_default()
    }

    fn holds(&mut self, bytes: u64) -> u64 {
        self.io.hold(bytes)
    }

    fn accept(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        let Some(listener) = &mut self.listener else { return Ok(None) };
        let Some(number) = listener.waiting.pop_front() else { return Ok(None) };
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(None) };
        connection.peer = Some(peer);
        let address = connection.address;
        if let Ok(longest) = self.io.longest(address) {
            connection.half.too_long(longest);
        }
        self.put(peer, number);
        // Messages that it sent before are to be received.
        self.more = true;
        Ok(Some(Peer::new(address.to_string(), Origin::Host(Some(address.ip())))))
    }

    fn listen(&mut self, listens: bool) -> Result<(), LinkError> {
        if let Some(listener) = &mut self.listener {
            listener.listens = listens;
        }
        Ok(())
    }

    fn link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.of(peer)?.half)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.of_mut(peer)?.half)
    }
}
