//! Endpoints: the ports through which a node communicates with its peers.

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

/// One port of one host: its sockets, rings or queues, its timers, and the links to all peers that are reached through
/// it. Non-blocking.
///
/// Each turn of a node is [`poll_peers`](Self::poll_peers), then [`receive_messages`](Self::receive_messages) from each
/// peer that is ready, then verbs on links, then [`flush_messages`](Self::flush_messages). Between two turns the node
/// waits on its [`Poller`], after [`prepare_wait`](Self::prepare_wait) and for at most
/// [`next_timeout`](Self::next_timeout), or it does not wait at all.
///
/// Peers have the numbers that the caller assigns: small ones, each for one peer at a time. Time is that of any clock
/// that does not go backwards; the time passed in may be slightly old.
pub trait Endpoint: Debug + Send {
    /// A message or answer received from a peer.
    type Received;

    /// Registers memory with the medium, where the medium needs it: [`Arena::record_registration`] records this. To be
    /// called before anything in the memory is offered, or fetched into it.
    ///
    /// # Errors
    /// The medium does not accept the memory.
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        let _ = memory;
        Ok(())
    }

    /// Drives I/O for all peers, and appends every peer with data to receive to `ready`, including those with partial
    /// slots. `woken` are the numbers under its [`Watch`] that the poller reported.
    fn poll_peers(&mut self, now: Duration, woken: &[u32], ready: &mut Vec<usize>);

    /// Receives what has arrived from a peer, up to a fair share. Returns true if more is waiting: the next
    /// [`poll_peers`](Self::poll_peers) reports it again. Whatever arrived before an error is received as well.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn receive_messages(&mut self, peer: usize, received: &mut Vec<Self::Received>) -> Result<bool, LinkError>;

    /// Sends what can be sent now. Appends links that have ended to `broken`.
    fn flush_messages(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>);

    /// Arms the descriptors before a wait: from now on they report arrivals. Returns false if something has arrived
    /// already: the caller must not wait, and the next [`poll_peers`](Self::poll_peers) reports it.
    fn prepare_wait(&mut self) -> bool;

    /// True if [`poll_peers`](Self::poll_peers) sees every arrival while the node does not wait, without a system call
    /// while there are none.
    fn is_cheap_to_poll(&self) -> bool;

    /// Returns the time at which to poll again even if nothing arrives. An endpoint without a descriptor asks for
    /// polling this way.
    fn next_timeout(&self) -> Option<Duration>;

    /// Ends the link to a peer. Pending messages are sent as far as that is possible at once, but not the bytes of
    /// slots: the slots may have been reused by then.
    fn close_link(&mut self, peer: usize);

    /// Returns the counters of a port of frames for the datagrams that arrived at it; zeros for other links.
    fn arrival_counts(&self) -> Arrivals {
        Arrivals::default()
    }

    /// Prepares to leave, when nothing more will be sent. From now on the last messages are repeated until they have
    /// arrived, where the medium loses some: continue with [`poll_peers`](Self::poll_peers) and
    /// [`flush_messages`](Self::flush_messages) until they [have](Self::has_left), or for as long as they are worth the
    /// wait.
    fn prepare_to_leave(&mut self) {}

    /// True if the last messages have arrived, as far as this end is responsible for that.
    fn has_left(&self) -> bool {
        true
    }
}

/// Counts of datagrams that arrived at ports of this host. Datagrams that were sent and are not counted here were lost
/// on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Datagrams that the port received.
    pub received: u64,
    /// Datagrams dropped by this host or its adapter for lack of room.
    pub dropped: u64,
    /// Datagrams dropped because they were damaged on their way.
    pub damaged: u64,
    /// Datagrams dropped because they were not frames of this version, or packets for other hosts.
    pub foreign: u64,
}

impl Arrivals {
    /// Returns what has arrived since these counts were taken.
    #[must_use]
    pub fn counted_since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            dropped: self.dropped - before.dropped,
            damaged: self.damaged - before.damaged,
            foreign: self.foreign - before.foreign,
        }
    }

    /// Returns the sums of the counts of two ports.
    #[must_use]
    pub fn combined_with(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            dropped: self.dropped + other.dropped,
            damaged: self.damaged + other.damaged,
            foreign: self.foreign + other.foreign,
        }
    }

    /// True if no datagram arrived: always so for links of other kinds.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A source's endpoint, which connects to builders.
pub trait SourceEndpoint: Endpoint<Received = Message> {
    /// Begins to connect to a builder. `congestion` names the congestion control of a TCP link (the available ones are
    /// listed in `/proc/sys/net/ipv4/tcp_available_congestion_control`); `system` is the system's default; without it,
    /// cubic is used. An address at which no peer listens may be detected only later.
    ///
    /// # Errors
    /// The address, or the congestion control, cannot be used here; or no peer listens there.
    fn connect_to_builder(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError>;

    /// Returns the link to a peer, or `None` if there is none.
    fn source_link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)>;

    /// Returns the link to a peer, or `None` if there is none.
    fn source_link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)>;
}

/// A builder's endpoint, to which sources connect.
pub trait BuilderEndpoint: Endpoint<Received = crate::Received> {
    /// Returns the place at which others reach the endpoint, with the port that the system chose, if it was left to the
    /// system.
    fn listening_place(&self) -> String;

    /// Prepares the links of sources that connect from now on for credits: up to `bytes` of one source may be in flight
    /// to this end at a time. If two things are unavailable, only the first is reported.
    ///
    /// # Errors
    /// A description of what is unavailable, and of the consequence.
    fn prepare_credit(&mut self, bytes: u64) -> Result<(), &'static str> {
        let _ = bytes;
        Ok(())
    }

    /// Prepares for `bytes` in flight to this end at a time, over all sources, and returns the number of bytes that may
    /// be in flight: more would be lost.
    fn limit_in_flight_bytes(&mut self, bytes: u64) -> u64 {
        bytes
    }

    /// Accepts the next waiting peer, as number `peer`, and returns it with a name for the log, or `None` if no peer is
    /// waiting.
    ///
    /// # Errors
    /// A peer is waiting and cannot be accepted: most likely, no descriptor is left.
    fn accept_peer(&mut self, peer: usize) -> Result<Option<Peer>, LinkError>;

    /// Turns the reporting of peers that wait to be accepted on or off; it is on from the beginning.
    ///
    /// # Errors
    /// The poller accepts no more descriptors.
    fn set_listening(&mut self, listens: bool) -> Result<(), LinkError>;

    /// Returns the link to a peer, or `None` if there is none.
    fn builder_link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)>;

    /// Returns the link to a peer, or `None` if there is none.
    fn builder_link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)>;
}

/// All endpoints of a node, under one poller and with one numbering of their peers.
#[derive(Debug)]
pub struct Endpoints<E: ?Sized> {
    poller: Arc<Poller>,
    /// Number under which the poller knows the first endpoint.
    first: usize,
    /// Adapter for kinds of links that drive one themselves.
    adapter: Option<Adapter>,
    endpoints: Vec<Box<E>>,
    /// Names of the builders, by peer; only for a source.
    names: Vec<Names>,
    /// For each peer, the index of its endpoint.
    at: Vec<Option<usize>>,
    /// Scratch space of `poll`, kept for reuse.
    woken: Vec<u32>,
}

impl<E: Endpoint + ?Sized> Endpoints<E> {
    /// Creates a set without endpoints.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> Result<Self, LinkError> {
        Ok(Self::with_poller(Arc::new(Poller::new()?), 0))
    }

    /// Creates a set without endpoints under the poller of another set, for a node with ends of both kinds. The tokens
    /// of the two sets are distinct.
    pub fn sharing_poller<O: ?Sized>(others: &Endpoints<O>) -> Self {
        Self::with_poller(Arc::clone(&others.poller), others.first + Self::MAX_ENDPOINTS)
    }

    /// Sets the adapter for kinds of links that [drive one themselves](crate::Abilities::adapter).
    #[must_use]
    pub fn with_adapter(self, adapter: Option<Adapter>) -> Self {
        Self { adapter, ..self }
    }

    const MAX_ENDPOINTS: usize = 1 << 16;

    fn with_poller(poller: Arc<Poller>, first: usize) -> Self {
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

    /// Returns the poller to wait on. Tokens from [`Watch::FIRST_FREE_TOKEN`] on are free for other descriptors.
    pub fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Calls [`Endpoint::register_memory`] on each endpoint.
    ///
    /// # Errors
    /// The medium of one endpoint does not accept the memory.
    pub fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        self.endpoints.iter_mut().try_for_each(|endpoint| endpoint.register_memory(memory))
    }

    /// Calls [`Endpoint::poll_peers`] on each endpoint. `tokens` are those that the poller reported; tokens of others
    /// are skipped.
    pub fn poll_peers(&mut self, now: Duration, tokens: &[u64], ready: &mut Vec<usize>) {
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            self.woken.clear();
            self.woken.extend(tokens.iter().filter_map(|token| Watch::number_from_token(self.first + index, *token)));
            endpoint.poll_peers(now, &self.woken, ready);
        }
    }

    /// Calls [`Endpoint::receive_messages`] on the peer's endpoint. Nothing is received from a peer that was closed.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    pub fn receive_messages(&mut self, peer: usize, received: &mut Vec<E::Received>) -> Result<bool, LinkError> {
        self.endpoint_for_mut(peer).map_or(Ok(false), |endpoint| endpoint.receive_messages(peer, received))
    }

    /// Calls [`Endpoint::flush_messages`] on each endpoint.
    pub fn flush_messages(&mut self, now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.flush_messages(now, broken));
    }

    /// Calls [`Endpoint::prepare_wait`] on each endpoint. Returns true if all are ready to wait.
    pub fn prepare_wait(&mut self) -> bool {
        let mut waits = true;
        for endpoint in &mut self.endpoints {
            waits &= endpoint.prepare_wait();
        }
        waits
    }

    /// True if each endpoint [sees](Endpoint::is_cheap_to_poll) every arrival.
    pub fn is_cheap_to_poll(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.is_cheap_to_poll())
    }

    /// Returns the first time at which an endpoint is to be polled.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.endpoints.iter().filter_map(|endpoint| endpoint.next_timeout()).min()
    }

    /// Calls [`Endpoint::close_link`] on the peer's endpoint.
    pub fn close_link(&mut self, peer: usize) {
        if let Some(endpoint) = self.endpoint_for_mut(peer) {
            endpoint.close_link(peer);
        }
    }

    /// Returns the sum of [`Endpoint::arrival_counts`] over all endpoints.
    pub fn arrival_counts(&self) -> Arrivals {
        self.endpoints.iter().fold(Arrivals::default(), |sum, endpoint| sum.combined_with(endpoint.arrival_counts()))
    }

    /// Calls [`Endpoint::prepare_to_leave`] on each endpoint.
    pub fn prepare_to_leave(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.prepare_to_leave());
    }

    /// True if [`Endpoint::has_left`] is true for all endpoints.
    pub fn has_left(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.has_left())
    }

    fn next_watch(&self) -> Watch {
        Watch::new(&self.poller, self.first + self.endpoints.len())
    }

    fn endpoint_for(&self, peer: usize) -> Option<&E> {
        let at = self.at.get(peer).copied().flatten()?;
        self.endpoints.get(at).map(|endpoint| &**endpoint)
    }

    fn endpoint_for_mut(&mut self, peer: usize) -> Option<&mut E> {
        let at = self.at.get(peer).copied().flatten()?;
        self.endpoints.get_mut(at).map(|endpoint| &mut **endpoint)
    }

    fn assign_endpoint(&mut self, peer: usize, at: usize) {
        if self.at.len() <= peer {
            self.at.resize(peer + 1, None);
        }
        self.at[peer] = Some(at);
    }
}

impl Endpoints<dyn SourceEndpoint> {
    /// Adds one endpoint for each kind of link among these addresses. The number of a peer is the index of its address.
    /// Names are resolved here: the call takes as long as the resolver does.
    ///
    /// # Errors
    /// A kind of link cannot be used here, or a name has no address.
    pub fn with_builders(mut self, addresses: &[Address]) -> Result<Self, LinkError> {
        let mut kinds: Vec<LinkKind> = Vec::new();
        for (peer, address) in addresses.iter().enumerate() {
            let known = kinds.iter().position(|kind| *kind == address.link_kind());
            let at = known.unwrap_or(kinds.len());
            if known.is_none() {
                self.endpoints.push(address.link_kind().transport().open_source_endpoint(
                    address,
                    self.adapter.as_ref(),
                    self.next_watch(),
                )?);
                kinds.push(address.link_kind());
            }
            self.names.push(Names::resolve_name(address)?);
            self.assign_endpoint(peer, at);
        }
        Ok(self)
    }

    /// Calls [`SourceEndpoint::connect_to_builder`], with the next of the addresses that the peer's name stands for.
    ///
    /// # Errors
    /// The address, or the congestion control, cannot be used here; or no peer listens there.
    pub fn connect_to_builder(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let to = self.names.get_mut(peer).map_or_else(|| to.clone(), Names::next_address);
        self.endpoint_for_mut(peer)
            .map_or(Ok(()), |endpoint| endpoint.connect_to_builder(peer, &to, congestion, greeting))
    }

    /// Returns the link to a peer, or `None` if there is none.
    pub fn source_link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        self.endpoint_for(peer)?.source_link(peer)
    }

    /// Returns the link to a peer, or `None` if there is none.
    pub fn source_link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        self.endpoint_for_mut(peer)?.source_link_mut(peer)
    }
}

impl Endpoints<dyn BuilderEndpoint> {
    /// Listens at one more address, and returns the address at which others reach it. A Unix socket that a dead process
    /// left is replaced; one on which a process listens is not.
    ///
    /// # Errors
    /// The address cannot be listened on: [`LinkError::Listening`] contains advice.
    pub fn add_listener(&mut self, address: &Address, eager: Eager) -> Result<Address, LinkError> {
        let endpoint = address.link_kind().transport().open_builder_endpoint(
            address,
            self.adapter.as_ref(),
            eager,
            self.next_watch(),
        )?;
        let found = Address::new(address.link_kind(), &endpoint.listening_place()).unwrap_or_else(|_| address.clone());
        self.endpoints.push(endpoint);
        Ok(found)
    }

    /// Calls [`BuilderEndpoint::prepare_credit`] on each endpoint; only the first unavailable thing is reported.
    ///
    /// # Errors
    /// A description of what is unavailable, and of the consequence.
    pub fn prepare_credit(&mut self, bytes: u64) -> Result<(), &'static str> {
        let mut outcome = Ok(());
        for endpoint in &mut self.endpoints {
            outcome = outcome.and(endpoint.prepare_credit(bytes));
        }
        outcome
    }

    /// Calls [`BuilderEndpoint::limit_in_flight_bytes`] on each endpoint, and returns the smallest result.
    pub fn limit_in_flight_bytes(&mut self, bytes: u64) -> u64 {
        self.endpoints.iter_mut().map(|endpoint| endpoint.limit_in_flight_bytes(bytes)).min().unwrap_or(bytes)
    }

    /// Calls [`BuilderEndpoint::accept_peer`] on the endpoint at index `at`.
    ///
    /// # Errors
    /// A peer is waiting and cannot be accepted.
    pub fn accept_peer(&mut self, at: usize, peer: usize) -> Result<Option<Peer>, LinkError> {
        let Some(endpoint) = self.endpoints.get_mut(at) else { return Ok(None) };
        let accepted = endpoint.accept_peer(peer)?;
        if accepted.is_some() {
            self.assign_endpoint(peer, at);
        }
        Ok(accepted)
    }

    /// Calls [`BuilderEndpoint::set_listening`] on the endpoint at index `at`.
    ///
    /// # Errors
    /// The poller accepts no more descriptors.
    pub fn set_listening(&mut self, at: usize, listens: bool) -> Result<(), LinkError> {
        self.endpoints.get_mut(at).map_or(Ok(()), |endpoint| endpoint.set_listening(listens))
    }

    /// Returns the link to a peer, or `None` if there is none.
    pub fn builder_link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        self.endpoint_for(peer)?.builder_link(peer)
    }

    /// Returns the link to a peer, or `None` if there is none.
    pub fn builder_link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        self.endpoint_for_mut(peer)?.builder_link_mut(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Eager = Eager { credit: 0, limit: 0 };

    #[test]
    fn an_address_that_cannot_be_listened_on_is_reported_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("shm:{}", directory.path().join(name).display());
        std::fs::write(directory.path().join("file"), "").unwrap();
        let mut doors = Endpoints::<dyn BuilderEndpoint>::new().unwrap();
        let here = doors.add_listener(&at("here").parse().unwrap(), NOTHING).unwrap();
        let port = doors.add_listener(&"tcp:127.0.0.1:0".parse().unwrap(), NOTHING).unwrap();
        for (address, advice) in [
            (at("no/such/directory/x"), "create the directory"),
            (at("file/x"), "create the directory"),
            (at("file"), "is not a socket"),
            (here.to_string(), "stop the program that listens there"),
            (port.to_string(), "stop the program that listens there"),
            // TEST-NET-1 (RFC 5737), an address that no host has; and a name that cannot exist (RFC 6761).
            ("tcp:192.0.2.1:7400".to_owned(), "not an address of this host"),
            ("tcp:no-host.invalid:7400".to_owned(), "correct the name"),
        ] {
            let error = doors.add_listener(&address.parse().unwrap(), NOTHING).unwrap_err().to_string();
            assert!(error.starts_with(&format!("listening on {address}: ")) && error.contains(advice), "{error}");
        }
    }
}
