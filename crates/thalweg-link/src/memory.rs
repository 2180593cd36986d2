//! A link inside one process, for tests: datagrams that get lost, come twice, late and out of order, under a clock that
//! only moves when told to. The same seed gives the same impairments.
//!
//! It stands for every link that is not a stream, with the same reliability on top.

use crate::error::refusal;
use crate::reliable::{DATAGRAM, Delivered, ReliableBuilder, ReliableSource, Transmit};
use crate::{BuilderLink, Bytes, Eager, Interest, LinkError, Received, SourceGreeting, SourceLink};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_arena::{Arena, Doorbell, Span};
use thalweg_wire::{Announcement, Losses, Message, Refusal};

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

/// Both ends of a link.
pub type Ends = (Box<dyn SourceLink>, Box<dyn BuilderLink>);

/// A network with its own time. Clones are the same network.
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
}

/// What is on its way to one end of a link.
#[derive(Debug)]
struct End {
    bell: Doorbell,
    coming: BTreeMap<(Duration, u64), Vec<u8>>,
    /// When it wants to be woken.
    deadline: Duration,
    /// Whether the other end is still there.
    peer: bool,
}

impl Network {
    /// A network without links. The clock stands at zero.
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        let inner = Inner { impairments, random: seed, now: Duration::ZERO, datagrams: 0, ends: Vec::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Connects a source to a builder.
    pub fn connect(&self, greeting: &SourceGreeting, eager: Eager) -> Result<Ends, LinkError> {
        let bell = || Doorbell::new().map_err(|error| LinkError::Protocol(error.to_string()));
        let mut inner = self.lock();
        let now = inner.now;
        let to_source = inner.ends.len();
        for _ in 0..2 {
            inner.ends.push(End { bell: bell()?, coming: BTreeMap::new(), deadline: now, peer: true });
        }
        let wire = |end: usize, peer: usize| -> Result<Wire, LinkError> {
            let fd = inner.ends[end].bell.as_fd().try_clone_to_owned();
            let fd = fd.map_err(LinkError::io("duplicating a doorbell"))?;
            let bell = Doorbell::import(fd).map_err(|error| LinkError::Protocol(error.to_string()))?;
            bell.ring().map_err(|error| LinkError::Protocol(error.to_string()))?;
            Ok(Wire { network: self.clone(), end, peer, bell })
        };
        let source = MemorySource {
            wire: wire(to_source, to_source + 1)?,
            state: ReliableSource::new(greeting.hello, greeting.description.clone(), now),
            arena: Arc::clone(&greeting.arena),
            copied: 0,
        };
        let builder = MemoryBuilder { wire: wire(to_source + 1, to_source)?, state: ReliableBuilder::new(eager, now) };
        Ok((Box::new(source), Box::new(builder)))
    }

    /// What time it is.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// When something happens next, as far as that is known.
    pub fn next(&self) -> Option<Duration> {
        let inner = self.lock();
        let due = inner.ends.iter().filter(|end| end.peer || !end.coming.is_empty());
        due.filter_map(|end| end.coming.keys().map(|(at, _)| *at).next().into_iter().chain([end.deadline]).min()).min()
    }

    /// Lets time pass until something happens.
    pub fn advance_to_next(&self) {
        self.advance_to(self.next().unwrap_or_default());
    }

    /// Lets time pass until then.
    pub fn advance_to(&self, at: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.max(at);
        inner.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
        let now = self.now;
        self.ends[to].wake(now);
    }

    fn wake(&self) {
        self.ends.iter().for_each(|end| end.wake(self.now));
    }
}

impl End {
    fn wake(&self, now: Duration) {
        let due = self.coming.first_key_value().is_some_and(|((at, _), _)| *at <= now);
        if due || self.deadline <= now || !self.peer {
            // An eventfd of our own does not fail.
            let _ = self.bell.ring();
        }
    }
}

/// One end's hold on the network.
#[derive(Debug)]
struct Wire {
    network: Network,
    end: usize,
    peer: usize,
    bell: Doorbell,
}

impl Wire {
    fn send(&self, datagram: Vec<u8>) {
        let mut inner = self.network.lock();
        if inner.ends[self.end].peer {
            inner.send(self.peer, datagram);
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

    fn wake_at(&self, deadline: Duration) {
        let mut inner = self.network.lock();
        let now = inner.now;
        let end = &mut inner.ends[self.end];
        end.deadline = deadline;
        end.wake(now);
    }

    fn clear(&self) -> Result<(), LinkError> {
        self.bell.clear().map(drop).map_err(|error| LinkError::Protocol(error.to_string()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let mut inner = self.network.lock();
        inner.ends[self.end].coming.clear();
        inner.ends[self.end].deadline = Duration::MAX;
        inner.ends[self.peer].peer = false;
        inner.wake();
    }
}

#[derive(Debug)]
struct MemorySource {
    wire: Wire,
    state: ReliableSource,
    arena: Arc<Arena>,
    copied: u64,
}

impl SourceLink for MemorySource {
    fn fd(&self) -> BorrowedFd<'_> {
        self.wire.bell.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::READ
    }

    fn offer(&mut self, offer: &Announcement) {
        self.state.offer(offer, self.wire.network.now());
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        self.state.may_withdraw(ticket)
    }

    fn send(&mut self, message: &Message) {
        self.state.send(message, self.wire.network.now());
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        while let Some(transmit) = self.state.next_transmit() {
            let datagram = match transmit {
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
            };
            self.wire.send(datagram);
        }
        self.wire.wake_at(self.state.deadline());
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        self.wire.clear()?;
        let now = self.wire.network.now();
        for _ in 0..FAIR_SHARE {
            let Some(datagram) = self.wire.receive()? else { break };
            self.state.on_datagram(&datagram, now, said)?;
        }
        self.state.time(now)?;
        self.flush()
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}

#[derive(Debug)]
struct MemoryBuilder {
    wire: Wire,
    state: ReliableBuilder,
}

impl BuilderLink for MemoryBuilder {
    fn fd(&self) -> BorrowedFd<'_> {
        self.wire.bell.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::READ
    }

    fn maps(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let into = into.unwrap_or_else(|| unreachable!("a link of datagrams maps nothing: a fetch needs a place"));
        let here = self.state.begin_fetch(offer, into, upto, self.wire.network.now())?;
        Ok(here.map(Bytes::Place))
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        self.state.extend_fetch(ticket, upto, self.wire.network.now());
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
        self.state.release(below, self.wire.network.now());
    }

    fn send(&mut self, message: &Message) {
        self.state.send(message, self.wire.network.now());
    }

    fn refuse(&mut self, reason: Refusal, text: &str) {
        self.state.refuse(refusal(reason, text));
        let _ = self.flush();
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let now = self.wire.network.now();
        while let Some(datagram) = self.state.next_transmit(now) {
            self.wire.send(datagram);
        }
        self.wire.wake_at(self.state.deadline());
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Received>) -> Result<bool, LinkError> {
        self.wire.clear()?;
        let now = self.wire.network.now();
        let mut heard = Vec::new();
        let outcome = self.listen(now, &mut heard);
        said.extend(heard.into_iter().map(|heard| match heard {
            Delivered::Hello(hello, text) => Received::Hello(hello, text),
            Delivered::Arrived(ticket, place) => Received::Arrived { ticket, bytes: Bytes::Place(place) },
            Delivered::Message(message) => Received::Message(message),
        }));
        let more = outcome?;
        self.state.time(now)?;
        self.flush()?;
        Ok(more)
    }

    fn copied(&self) -> u64 {
        self.state.copied()
    }
}

impl MemoryBuilder {
    /// Hears what is due. True where there may be more.
    fn listen(&mut self, now: Duration, heard: &mut Vec<Delivered>) -> Result<bool, LinkError> {
        for _ in 0..FAIR_SHARE {
            let Some(datagram) = self.wire.receive()? else { return Ok(false) };
            self.state.on_datagram(&datagram, now, heard)?;
        }
        Ok(true)
    }
}
