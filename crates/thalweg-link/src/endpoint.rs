//! Endpoints: what a node speaks to its peers through.

use crate::names::Names;
use crate::{
    Adapter, Address, BuilderLink, Eager, LinkError, LinkKind, Peer, Poller, SourceGreeting, SourceLink, Watch,
};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_wire::Message;

/// One port of one host: its sockets, rings or queues, its timers, and the links to all peers that are spoken to
/// through it. Non-blocking.
///
/// Each turn of a node is [`poll`](Self::poll), then [`receive`](Self::receive) from each peer that is ready, then
/// verbs on links, then [`flush`](Self::flush). Between two turns it waits on its [`Poller`], behind
/// [`prepare_wait`](Self::prepare_wait) and for at most [`next_timeout`](Self::next_timeout), or it does not wait at
/// all.
///
/// Peers have the numbers that the caller gives them: small ones, each for one peer at a time. Time is any clock's that
/// does not go backwards; what is handed in may be a little old.
pub trait Endpoint: Debug + Send {
    /// What is received from a peer.
    type Received;

    /// Registers memory with the medium, where that needs to know it: [`Arena::registered`] notes so. Before anything
    /// of it is offered, or fetched into it.
    ///
    /// # Errors
    /// The medium does not take it.
    fn register(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        let _ = memory;
        Ok(())
    }

    /// Does what can be done now for all peers together, and appends those that have something to be received to
    /// `ready`: also those of which only some bytes of a slot have come. `woken` are the numbers of its [`Watch`] of which the poller told.
    fn poll(&mut self, now: Duration, woken: &[u32], ready: &mut Vec<usize>);

    /// Receives what has come from a peer, up to a fair share. True where more is waiting: the next
    /// [`poll`](Self::poll) tells of it again. What came before an error is received, too.
    ///
    /// # Errors
    /// The link is over, and why.
    fn receive(&mut self, peer: usize, received: &mut Vec<Self::Received>) -> Result<bool, LinkError>;

    /// Sends what can be sent now. Links that are over are appended to `broken`.
    fn flush(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>);

    /// To be called before waiting: from now on its descriptors tell of what comes. False where something has come
    /// already: do not wait, the next [`poll`](Self::poll) tells of it.
    fn prepare_wait(&mut self) -> bool;

    /// Whether, while nobody waits, [`poll`](Self::poll) sees all that comes, without a system call while nothing does.
    fn sees(&self) -> bool;

    /// When to be polled again, though nothing comes. An endpoint without a descriptor says so here.
    fn next_timeout(&self) -> Option<Duration>;

    /// Ends the link to a peer. What was to be sent is sent as far as that can be done at once, but for the bytes of
    /// slots: those may be others' by then.
    fn close(&mut self, peer: usize);

    /// Returns what a port of frames has counted of the datagrams that came to it: zeros elsewhere.
    fn arrivals(&self) -> Arrivals {
        Arrivals::default()
    }

    /// To be called when nothing more will be sent. From now on the last messages are repeated until they have arrived,
    /// where the medium loses some: go on with [`poll`](Self::poll) and [`flush`](Self::flush) until they
    /// [have](Self::has_left), or for as long as they are worth.
    fn leave(&mut self) {}

    /// Whether the last messages have arrived, as far as this end has to see to it.
    fn has_left(&self) -> bool {
        true
    }
}

/// Datagrams that came to ports of this host. What is missing of those that were sent, and is not among these, was lost
/// on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Taken by the port.
    pub received: u64,
    /// Dropped by this host or its adapter: no room was left for them.
    pub dropped: u64,
    /// Dropped since they were damaged on their way.
    pub damaged: u64,
    /// Dropped since they were no frames of this version, or packets for others.
    pub foreign: u64,
}

impl Arrivals {
    /// Returns what came to both ports.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            dropped: self.dropped + other.dropped,
            damaged: self.damaged + other.damaged,
            foreign: self.foreign + other.foreign,
        }
    }

    /// Whether no datagram came: of a link of another kind, none ever does.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A source's end: it connects to builders.
pub trait SourceEndpoint: Endpoint<Received = Message> {
    /// Begins to connect to a builder. `congestion` names the congestion control of a TCP link (those there are are
    /// listed in `/proc/sys/net/ipv4/tcp_available_congestion_control`), `system` the system's default; without it,
    /// cubic. That there is nobody at the address may be found out only later.
    ///
    /// # Errors
    /// The address, or what was asked for with it, cannot be used here; or nobody is there.
    fn connect(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError>;

    /// The link to a peer, while there is one.
    fn link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)>;

    /// The link to a peer, while there is one.
    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)>;
}

/// A builder's end: sources connect to it.
pub trait BuilderEndpoint: Endpoint<Received = crate::Received> {
    /// Where others find it: with the port the system chose, where it was to choose one.
    fn place(&self) -> String;

    /// Prepares the links of sources that come from now on for credits: up to so many bytes of one source may be on
    /// their way to here at a time. Of two things that cannot be had, the first is told.
    ///
    /// # Errors
    /// What cannot be had, and what that means.
    fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
        let _ = bytes;
        Ok(())
    }

    /// Prepares for so many bytes that are on their way to here at a time, of all sources together, and says how many may
    /// be: more would be lost.
    fn holds(&mut self, bytes: u64) -> u64 {
        bytes
    }

    /// Lets in the next that waits, as number `peer`, with a name of the peer for the log. Nothing where nobody waits.
    ///
    /// # Errors
    /// Somebody waits and cannot be let in: out of descriptors, most likely.
    fn accept(&mut self, peer: usize) -> Result<Option<Peer>, LinkError>;

    /// Whether it is told of those that wait to be let in, as it is from the beginning.
    ///
    /// # Errors
    /// The poller takes no more descriptors.
    fn listen(&mut self, listens: bool) -> Result<(), LinkError>;

    /// The link to a peer, while there is one.
    fn link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)>;

    /// The link to a peer, while there is one.
    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)>;
}

/// All endpoints of a node, under one poller and with one set of numbers for their peers.
#[derive(Debug)]
pub struct Endpoints<E: ?Sized> {
    poller: Arc<Poller>,
    /// The number under which the poller knows the first of them.
    first: usize,
    /// What kinds of links lead through that drive one by themselves.
    adapter: Option<Adapter>,
    endpoints: Vec<Box<E>>,
    /// A source's: the builders' names, by peer.
    names: Vec<Names>,
    /// For each peer, which of them it is at.
    at: Vec<Option<usize>>,
    /// Kept to be used again.
    woken: Vec<u32>,
}

impl<E: Endpoint + ?Sized> Endpoints<E> {
    /// None yet.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> Result<Self, LinkError> {
        Ok(Self::under(Arc::new(Poller::new()?), 0))
    }

    /// None yet, under a poller that others share, for a node with ends of both kinds: tokens of theirs are not
    /// mistaken for tokens of these.
    pub fn beside<O: ?Sized>(others: &Endpoints<O>) -> Self {
        Self::under(Arc::clone(&others.poller), others.first + Self::MOST)
    }

    /// With an adapter, for kinds of links that [drive one by themselves](crate::Abilities::adapter).
    #[must_use]
    pub fn by(self, adapter: Option<Adapter>) -> Self {
        Self { adapter, ..self }
    }

    const MOST: usize = 1 << 16;

    fn under(poller: Arc<Poller>, first: usize) -> Self {
        Self {
            poller,
            first,
            adapter: None,
            endpoints: Vec::new(),
            names: Vec::new(),
            at: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// What to wait on. Tokens from [`Watch::OTHERS`] on are free for other descriptors.
    pub fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// As [`Endpoint::register`], with each.
    ///
    /// # Errors
    /// The medium of one does not take it.
    pub fn register(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        self.endpoints.iter_mut().try_for_each(|endpoint| endpoint.register(memory))
    }

    /// As [`Endpoint::poll`], of all. `tokens` are what the poller told of; those of others are skipped.
    pub fn poll(&mut self, now: Duration, tokens: &[u64], ready: &mut Vec<usize>) {
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            self.woken.clear();
            self.woken.extend(tokens.iter().filter_map(|token| Watch::number_at(self.first + index, *token)));
            endpoint.poll(now, &self.woken, ready);
        }
    }

    /// As [`Endpoint::receive`]. Nothing comes from a peer that was closed.
    ///
    /// # Errors
    /// The link is over, and why.
    pub fn receive(&mut self, peer: usize, received: &mut Vec<E::Received>) -> Result<bool, LinkError> {
        self.of_mut(peer).map_or(Ok(false), |endpoint| endpoint.receive(peer, received))
    }

    /// As [`Endpoint::flush`], of all.
    pub fn flush(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.flush(now, broken));
    }

    /// As [`Endpoint::prepare_wait`], of all.
    pub fn prepare_wait(&mut self) -> bool {
        let mut waits = true;
        for endpoint in &mut self.endpoints {
            waits &= endpoint.prepare_wait();
        }
        waits
    }

    /// Whether each of them [sees](Endpoint::sees) all that comes.
    pub fn sees(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.sees())
    }

    /// The first time at which one of them is to be polled.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.endpoints.iter().filter_map(|endpoint| endpoint.next_timeout()).min()
    }

    /// As [`Endpoint::close`].
    pub fn close(&mut self, peer: usize) {
        if let Some(endpoint) = self.of_mut(peer) {
            endpoint.close(peer);
        }
    }

    /// As [`Endpoint::arrivals`], of all together.
    pub fn arrivals(&self) -> Arrivals {
        self.endpoints.iter().fold(Arrivals::default(), |sum, endpoint| sum.and(endpoint.arrivals()))
    }

    /// As [`Endpoint::leave`], with each.
    pub fn leave(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.leave());
    }

    /// As [`Endpoint::has_left`], of all.
    pub fn has_left(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.has_left())
    }

    fn watch(&self) -> Watch {
        Watch::new(&self.poller, self.first + self.endpoints.len())
    }

    fn of(&self, peer: usize) -> Option<&E> {
        let at = self.at.get(peer).copied().flatten()?;
        self.endpoints.get(at).map(|endpoint| &**endpoint)
    }

    fn of_mut(&mut self, peer: usize) -> Option<&mut E> {
        let at = self.at.get(peer).copied().flatten()?;
        self.endpoints.get_mut(at).map(|endpoint| &mut **endpoint)
    }

    fn put(&mut self, peer: usize, at: usize) {
        if self.at.len() <= peer {
            self.at.resize(peer + 1, None);
        }
        self.at[peer] = Some(at);
    }
}

impl Endpoints<dyn SourceEndpoint> {
    /// With one for each kind of link that leads to these addresses. Peers are connected to by their place among them.
    /// Names are looked up here: this takes as long as the resolver does.
    ///
    /// # Errors
    /// A kind of link cannot be used here, or a name has no address.
    pub fn towards(mut self, addresses: &[Address]) -> Result<Self, LinkError> {
        let mut kinds: Vec<LinkKind> = Vec::new();
        for (peer, address) in addresses.iter().enumerate() {
            let known = kinds.iter().position(|kind| *kind == address.kind());
            let at = known.unwrap_or(kinds.len());
            if known.is_none() {
                self.endpoints.push(address.kind().transport().source(address, self.adapter.as_ref(), self.watch())?);
                kinds.push(address.kind());
            }
            self.names.push(Names::look_up(address)?);
            self.put(peer, at);
        }
        Ok(self)
    }

    /// As [`SourceEndpoint::connect`], to the next of the addresses that the peer's name stands for.
    ///
    /// # Errors
    /// The address, or what was asked for with it, cannot be used here; or nobody is there.
    pub fn connect(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let to = self.names.get_mut(peer).map_or_else(|| to.clone(), Names::next);
        self.of_mut(peer).map_or(Ok(()), |endpoint| endpoint.connect(peer, &to, congestion, greeting))
    }

    /// The link to a peer, while there is one.
    pub fn link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        self.of(peer)?.link(peer)
    }

    /// The link to a peer, while there is one.
    pub fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        self.of_mut(peer)?.link_mut(peer)
    }
}

impl Endpoints<dyn BuilderEndpoint> {
    /// Listens at one more address, and says where others find it. A Unix socket that a dead process left behind is
    /// replaced; one on which somebody listens is not.
    ///
    /// # Errors
    /// It cannot be listened on there: [`LinkError::Listening`] says what to do.
    pub fn add(&mut self, address: &Address, eager: Eager) -> Result<Address, LinkError> {
        let endpoint = address.kind().transport().builder(address, self.adapter.as_ref(), eager, self.watch())?;
        let found = Address::new(address.kind(), &endpoint.place()).unwrap_or_else(|_| address.clone());
        self.endpoints.push(endpoint);
        Ok(found)
    }

    /// As [`BuilderEndpoint::expect`], with each: the first thing that cannot be had is told.
    ///
    /// # Errors
    /// What cannot be had, and what that means.
    pub fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
        let mut told = Ok(());
        for endpoint in &mut self.endpoints {
            told = told.and(endpoint.expect(bytes));
        }
        told
    }

    /// As [`BuilderEndpoint::holds`], of all.
    pub fn holds(&mut self, bytes: u64) -> u64 {
        self.endpoints.iter_mut().map(|endpoint| endpoint.holds(bytes)).min().unwrap_or(bytes)
    }

    /// As [`BuilderEndpoint::accept`], at one of them.
    ///
    /// # Errors
    /// Somebody waits and cannot be let in.
    pub fn accept(&mut self, at: usize, peer: usize) -> Result<Option<Peer>, LinkError> {
        let Some(endpoint) = self.endpoints.get_mut(at) else { return Ok(None) };
        let accepted = endpoint.accept(peer)?;
        if accepted.is_some() {
            self.put(peer, at);
        }
        Ok(accepted)
    }

    /// As [`BuilderEndpoint::listen`], at one of them.
    ///
    /// # Errors
    /// The poller takes no more descriptors.
    pub fn listen(&mut self, at: usize, listens: bool) -> Result<(), LinkError> {
        self.endpoints.get_mut(at).map_or(Ok(()), |endpoint| endpoint.listen(listens))
    }

    /// The link to a peer, while there is one.
    pub fn link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        self.of(peer)?.link(peer)
    }

    /// The link to a peer, while there is one.
    pub fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        self.of_mut(peer)?.link_mut(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Eager = Eager { credit: 0, limit: 0 };

    #[test]
    fn what_cannot_be_listened_on_is_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("shm:{}", directory.path().join(name).display());
        std::fs::write(directory.path().join("file"), "").unwrap();
        let mut doors = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
        let here = doors.add(&at("here").parse().unwrap(), NOTHING).unwrap();
        let port = doors.add(&"tcp:127.0.0.1:0".parse().unwrap(), NOTHING).unwrap();
        for (address, advice) in [
            (at("no/such/directory/x"), "make the directory"),
            (at("file/x"), "make the directory"),
            (at("file"), "which is no socket"),
            (here.to_string(), "end what listens there"),
            (port.to_string(), "end what listens there"),
            // TEST-NET-1 (RFC 5737): nobody has it. And a name that nobody can have (RFC 6761).
            ("tcp:192.0.2.1:7400".to_owned(), "no address of this host"),
            ("tcp:nobody.invalid:7400".to_owned(), "correct the name"),
        ] {
            let error = doors.add(&address.parse().unwrap(), NOTHING).unwrap_err().to_string();
            assert!(error.starts_with(&format!("listening on {address}: ")) && error.contains(advice), "{error}");
        }
    }
}
