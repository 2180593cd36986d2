//! A link inside one process, for tests: datagrams that get lost, come twice, late and out of order, under a clock that
//! only moves when told to. The same seed gives the same impairments.
//!
//! It stands for every link that is not a stream, with the same reliability on top.

use crate::error::refusal;
use crate::kind::{Abilities, Locator, Transport};
use crate::reliable::{DATAGRAM, Delivered, ReliableBuilder, ReliableSource, Transmit};
use crate::{
    Address, BuilderEndpoint, BuilderLink, Bytes, Eager, Endpoint, LinkError, LinkKind, Origin, Peer, Received,
    SourceEndpoint, SourceGreeting, SourceLink, Watch,
};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_arena::{Arena, Span};
use thalweg_wire::{Announcement, GAMMA, Losses, Message, Refusal, mix};

/// Datagrams heard at one end before others have their turn.
const FAIR_SHARE: usize = 4096;

/// What happens to datagrams on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impairments {
    /// Of a thousand datagrams, how many are lost.
    pub lost: u32,
    /// Of a thousand datagrams, how many come twice.
    pub doubled: u32,
    /// How long they take, at least.
    pub delay: Duration,
    /// How much longer they take at most, each for itself: those that take longer are overtaken.
    pub jitter: Duration,
}

impl Impairments {
    /// Everything arrives at once, in order, once.
    pub const PERFECT: Self = Self { lost: 0, doubled: 0, delay: Duration::ZERO, jitter: Duration::ZERO };
    /// One in ten is lost, one in twenty comes twice, and they overtake each other freely.
    pub const FOUL: Self =
        Self { lost: 100, doubled: 50, delay: Duration::from_micros(50), jitter: Duration::from_millis(2) };
}

/// A network with its own time, which is that of all endpoints on it. Clones are the same network.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    impairments: Impairments,
    random: u64,
    now: Duration,
    datagrams: u64,
    ends: Vec<End>,
    /// Where builders are found, and who waits there: the ends of sources.
    doors: BTreeMap<String, VecDeque<usize>>,
}

/// What is on its way to one end of a link. The other end is the next where this is a source's, or the one before.
#[derive(Debug)]
struct End {
    coming: BTreeMap<(Duration, u64), Vec<u8>>,
    /// Whether the other end is still there.
    peer: bool,
}

impl Network {
    /// A network without links. The clock stands at zero.
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        let inner = Inner {
            impairments,
            random: seed,
            now: Duration::ZERO,
            datagrams: 0,
            ends: Vec::new(),
            doors: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The kind of link that leads over this network. Each call keeps a little memory for ever, as kinds of links do.
    pub fn kind(&self) -> LinkKind {
        LinkKind::of(Box::leak(Box::new(self.clone())))
    }

    /// What time it is.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// Lets time pass until then.
    pub fn advance_to(&self, at: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.max(at);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Network {
    fn abilities(&self) -> &'static Abilities {
        &Abilities {
            name: "memory",
            title: "memory of one process",
            form: "memory:NAME",
            locator: Locator::Path,
            maps: false,
            pieces: true,
            eager: true,
            one_sided: false,
            frames: Some(DATAGRAM as u32),
            congestion: false,
            files: 0,
        }
    }

    fn source(&self, _watch: Watch) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        Ok(Box::new(Ends::<MemorySource> { network: self.clone(), peers: Vec::new(), listening: None }))
    }

    fn builder(&self, at: &Address, eager: Eager, _watch: Watch) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let place = at.place().to_owned();
        self.lock().doors.insert(place.clone(), VecDeque::new());
        let listening = Some(Listening { place, eager });
        Ok(Box::new(Ends::<MemoryBuilder> { network: self.clone(), peers: Vec::new(), listening }))
    }
}

impl Inner {
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(GAMMA);
        mix(self.random)
    }

    fn send(&mut self, to: usize, datagram: Vec<u8>) {
        debug_assert!(datagram.len() <= DATAGRAM, "a datagram of {} bytes", datagram.len());
        let Impairments { lost, doubled, delay, jitter } = self.impairments;
        if self.next_random() % 1000 < u64::from(lost) {
            return;
        }
        let copies = 1 + u32::from(self.next_random() % 1000 < u64::from(doubled));
        for _ in 0..copies {
            self.datagrams += 1;
            #[expect(clippy::cast_possible_truncation, reason = "jitter is far less than 500 years")]
            let late = self.next_random() % (jitter.as_nanos() as u64 + 1);
            let at = self.now + delay + Duration::from_nanos(late);
            self.ends[to].coming.insert((at, self.datagrams), datagram.clone());
        }
    }
}

/// One end's hold on the network.
#[derive(Debug)]
struct Wire {
    network: Network,
    end: usize,
}

impl Wire {
    /// The number of the other end: they are made in pairs.
    fn peer(&self) -> usize {
        self.end ^ 1
    }

    fn send(&self, datagram: Vec<u8>) {
        let mut inner = self.network.lock();
        if inner.ends[self.end].peer {
            inner.send(self.peer(), datagram);
        }
    }

    /// The next datagram that is due. [`LinkError::Closed`] once the other end is gone and everything was heard.
    fn receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut inner = self.network.lock();
        let now = inner.now;
        let end = &mut inner.ends[self.end];
        match end.coming.first_entry() {
            Some(first) if first.key().0 <= now => Ok(Some(first.remove())),
            None if !end.peer => Err(LinkError::Closed),
            _ => Ok(None),
        }
    }

    /// When there is something to receive: the next datagram, or that nobody is there any more.
    fn next(&self) -> Option<Duration> {
        let inner = self.network.lock();
        let end = &inner.ends[self.end];
        let gone = (!end.peer).then_some(Duration::ZERO);
        end.coming.first_key_value().map(|((at, _), _)| *at).or(gone)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let peer = self.peer();
        let mut inner = self.network.lock();
        inner.ends[self.end].coming.clear();
        inner.ends[peer].peer = false;
    }
}

/// One end of a link: its state, without the network.
trait State: Debug + Send {
    type Received: Debug + Send;

    fn on_datagram(
        &mut self,
        datagram: &[u8],
        now: Duration,
        received: &mut Vec<Self::Received>,
    ) -> Result<(), LinkError>;

    fn time(&mut self, now: Duration) -> Result<(), LinkError>;

    fn deadline(&self) -> Duration;

    /// The next datagram to be sent.
    fn next_datagram(&mut self, now: Duration) -> Result<Option<Vec<u8>>, LinkError>;
}

/// An endpoint: the ends of one node.
#[derive(Debug)]
struct Ends<S: State> {
    network: Network,
    peers: Vec<Option<Peered<S>>>,
    /// Where it is a builder's.
    listening: Option<Listening>,
}

#[derive(Debug)]
struct Listening {
    place: String,
    eager: Eager,
}

#[derive(Debug)]
struct Peered<S: State> {
    wire: Wire,
    state: S,
    /// What has come since it was asked for.
    received: Vec<S::Received>,
    /// Why the link is over.
    over: Option<LinkError>,
}

impl<S: State> Peered<S> {
    fn next(&self) -> Duration {
        self.wire.next().map_or(self.state.deadline(), |at| at.min(self.state.deadline()))
    }

    fn hear(&mut self, now: Duration) -> Result<(), LinkError> {
        for _ in 0..FAIR_SHARE {
            let Some(datagram) = self.wire.receive()? else { break };
            self.state.on_datagram(&datagram, now, &mut self.received)?;
        }
        self.state.time(now)
    }

    fn flush(&mut self, now: Duration) -> Result<(), LinkError> {
        while let Some(datagram) = self.state.next_datagram(now)? {
            self.wire.send(datagram);
        }
        Ok(())
    }
}

impl<S: State> Ends<S> {
    fn put(&mut self, peer: usize, end: usize, state: S) {
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, || None);
        }
        let wire = Wire { network: self.network.clone(), end };
        self.peers[peer] = Some(Peered { wire, state, received: Vec::new(), over: None });
    }
}

impl<S: State> Endpoint for Ends<S> {
    type Received = S::Received;

    /// Time is the network's, whatever the caller's clock says.
    fn poll(&mut self, _now: Duration, _woken: &[u32], ready: &mut Vec<usize>) {
        let now = self.network.now();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.over.is_none() && peer.next() <= now {
                peer.over = peer.hear(now).err();
            }
            if peer.over.is_some() || !peer.received.is_empty() {
                ready.push(index);
            }
        }
    }

    fn receive(&mut self, peer: usize, received: &mut Vec<S::Received>) -> Result<bool, LinkError> {
        let Some(Some(peer)) = self.peers.get_mut(peer) else { return Ok(false) };
        received.append(&mut peer.received);
        peer.over.take().map_or(Ok(false), Err)
    }

    fn flush(&mut self, _now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        let now = self.network.now();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let result = peer.as_mut().map_or(Ok(()), |peer| peer.flush(now));
            broken.extend(result.err().map(|error| (index, error)));
        }
    }

    fn prepare_wait(&mut self) -> bool {
        self.next_timeout().is_none_or(|at| at > self.network.now())
    }

    fn sees(&self) -> bool {
        true
    }

    fn next_timeout(&self) -> Option<Duration> {
        let peers = self.peers.iter().flatten().map(Peered::next);
        let waits = self.listening.as_ref().is_some_and(|listening| {
            self.network.lock().doors.get(&listening.place).is_some_and(|waiting| !waiting.is_empty())
        });
        peers.chain(waits.then_some(Duration::ZERO)).min()
    }

    fn close(&mut self, peer: usize) {
        let now = self.network.now();
        if let Some(mut peer) = self.peers.get_mut(peer).and_then(Option::take) {
            // Nobody may listen any more.
            let _ = peer.flush(now);
        }
    }
}

impl<S: State> Drop for Ends<S> {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            let mut inner = self.network.lock();
            for end in inner.doors.remove(&listening.place).unwrap_or_default() {
                inner.ends[end ^ 1].peer = false;
            }
        }
    }
}

impl SourceEndpoint for Ends<MemorySource> {
    fn connect(
        &mut self,
        peer: usize,
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let mut inner = self.network.lock();
        let (now, end) = (inner.now, inner.ends.len());
        let Some(waiting) = inner.doors.get_mut(to.place()) else { return Err(LinkError::Closed) };
        waiting.push_back(end + 1);
        for _ in 0..2 {
            inner.ends.push(End { coming: BTreeMap::new(), peer: true });
        }
        drop(inner);
        let state = MemorySource {
            network: self.network.clone(),
            state: ReliableSource::new(greeting.hello, greeting.description.clone(), now),
            arena: Arc::clone(&greeting.arena),
            copied: 0,
        };
        self.put(peer, end, state);
        Ok(())
    }

    fn link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.peers.get(peer)?.as_ref()?.state)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.peers.get_mut(peer)?.as_mut()?.state)
    }
}

impl BuilderEndpoint for Ends<MemoryBuilder> {
    fn place(&self) -> String {
        self.listening.as_ref().map(|listening| listening.place.clone()).unwrap_or_default()
    }

    fn accept(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        let Some(Listening { place, eager }) = &self.listening else { return Ok(None) };
        let mut inner = self.network.lock();
        let now = inner.now;
        let Some(end) = inner.doors.get_mut(place).and_then(VecDeque::pop_front) else { return Ok(None) };
        drop(inner);
        let state = MemoryBuilder { network: self.network.clone(), state: ReliableBuilder::new(*eager, now) };
        self.put(peer, end, state);
        Ok(Some(Peer::new(format!("end {end}"), Origin::Host(None))))
    }

    fn listen(&mut self, _listens: bool) -> Result<(), LinkError> {
        Ok(())
    }

    fn link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.peers.get(peer)?.as_ref()?.state)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.peers.get_mut(peer)?.as_mut()?.state)
    }
}

#[derive(Debug)]
struct MemorySource {
    network: Network,
    state: ReliableSource,
    arena: Arc<Arena>,
    copied: u64,
}

impl SourceLink for MemorySource {
    fn offer(&mut self, offer: &Announcement) {
        self.state.offer(offer, self.network.now());
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        self.state.may_withdraw(ticket)
    }

    fn send(&mut self, message: &Message) {
        self.state.send(message, self.network.now());
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}

impl State for MemorySource {
    type Received = Message;

    fn on_datagram(&mut self, datagram: &[u8], now: Duration, received: &mut Vec<Message>) -> Result<(), LinkError> {
        self.state.on_datagram(datagram, now, received)
    }

    fn time(&mut self, now: Duration) -> Result<(), LinkError> {
        self.state.time(now)
    }

    fn deadline(&self) -> Duration {
        self.state.deadline()
    }

    fn next_datagram(&mut self, _now: Duration) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(transmit) = self.state.next_transmit() else { return Ok(None) };
        Ok(Some(match transmit {
            Transmit::Control(bytes) => bytes,
            Transmit::Piece { message, arena_offset, length } => {
                let mut bytes = message.encode().to_vec();
                let head = bytes.len();
                bytes.resize(head + length as usize, 0);
                let read = rustix::io::pread(self.arena.fd(), &mut bytes[head..], arena_offset)
                    .map_err(LinkError::io("reading the arena"))?;
                if read != length as usize {
                    return Err(LinkError::Protocol("the arena ends before what was offered of it".into()));
                }
                self.copied += read as u64;
                bytes
            }
        }))
    }
}

#[derive(Debug)]
struct MemoryBuilder {
    network: Network,
    state: ReliableBuilder,
}

impl State for MemoryBuilder {
    type Received = Received;

    fn on_datagram(&mut self, datagram: &[u8], now: Duration, received: &mut Vec<Received>) -> Result<(), LinkError> {
        let mut delivered = Vec::new();
        let outcome = self.state.on_datagram(datagram, now, &mut delivered);
        received.extend(delivered.into_iter().map(|delivered| match delivered {
            Delivered::Hello(hello, text) => Received::Hello(hello, text),
            Delivered::Arrived(ticket, place) => Received::Arrived { ticket, bytes: Bytes::Place(place) },
            Delivered::Message(message) => Received::Message(message),
        }));
        outcome
    }

    fn time(&mut self, now: Duration) -> Result<(), LinkError> {
        self.state.time(now)
    }

    fn deadline(&self) -> Duration {
        self.state.deadline()
    }

    fn next_datagram(&mut self, now: Duration) -> Result<Option<Vec<u8>>, LinkError> {
        Ok(self.state.next_transmit(now))
    }
}

impl BuilderLink for MemoryBuilder {
    fn maps(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let into = into.unwrap_or_else(|| unreachable!("a link of datagrams maps nothing: a fetch needs a place"));
        let here = self.state.begin_fetch(offer, into, upto, self.network.now())?;
        Ok(here.map(Bytes::Place))
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        self.state.extend_fetch(ticket, upto, self.network.now());
    }

    fn received(&self) -> u64 {
        self.state.received()
    }

    fn losses(&self) -> Losses {
        self.state.losses()
    }

    fn cancel(&mut self, ticket: u64) {
        self.state.cancel(ticket);
    }

    fn release(&mut self, below: u64) {
        self.state.release(below, self.network.now());
    }

    fn send(&mut self, message: &Message) {
        self.state.send(message, self.network.now());
    }

    fn refuse(&mut self, reason: Refusal, text: &str) {
        self.state.refuse(refusal(reason, text));
    }

    fn copied(&self) -> u64 {
        self.state.copied()
    }
}
