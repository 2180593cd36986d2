//! Endpoint: one RNIC, its listener, and the connections to all peers.

use crate::builder::RdmaBuilder;
use crate::connection::{Arrival, PeerConnection, rnic_error};
use crate::memory::{MemoryUse, RegisteredArenas};
use crate::source::RdmaSource;
use parking_lot::Mutex;
use std::fmt::Debug;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_link::{
    Address, BuilderEndpoint, BuilderLink, Endpoint, Interest, LinkError, Origin, Peer, SourceEndpoint, SourceGreeting,
    SourceLink, Watch,
};
use thalweg_rdma::{Device, Limits, Listener, Transport};

/// Number of the descriptor at which peers connect, and of the one of the RNIC's sockets.
const LISTENER_NUMBER: u32 = u32::MAX;
const RNIC_NUMBER: u32 = u32::MAX - 1;

/// Number of times that the RNIC is driven, as long as it makes progress, before the node has its turn.
const MAX_RNIC_TURNS: usize = 16;

/// Connections that may wait to be accepted.
const LISTEN_BACKLOG: u32 = 256;

/// Advice for an address that cannot be listened on.
const PORT_ADVICE: &str = "stop the program that listens there, or set `listen` to another port of at least 1024, at an \
                           address that `ip address` shows";

/// One end of a link, over a connection.
pub(crate) trait RdmaLink: Debug + Send {
    /// A message or answer received over the link.
    type Received;

    /// Use of the endpoint's arenas.
    const MEMORY_USE: MemoryUse;

    fn connection(&self) -> &PeerConnection;

    fn connection_mut(&mut self) -> &mut PeerConnection;

    /// Processes an arrival.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn handle_arrival(&mut self, arrival: Arrival, received: &mut Vec<Self::Received>) -> Result<(), LinkError>;

    /// Posts what can be posted now.
    ///
    /// # Errors
    /// As [`handle_arrival`](Self::handle_arrival).
    fn flush(&mut self) -> Result<(), LinkError>;
}

/// An endpoint. Connections are dropped before the memory, and that before the RNIC.
#[derive(Debug)]
pub(crate) struct RdmaEndpoint<L> {
    peers: Vec<Option<PeerSlot<L>>>,
    listener: Option<Listener>,
    /// True if a peer may wait to be accepted.
    has_waiting: bool,
    arenas: Arc<Mutex<RegisteredArenas>>,
    device: Device,
    transport: Transport,
    watch: Watch,
    /// True if the RNIC's sockets are in the node's poller.
    is_watched: bool,
    /// Beginning of the node's clock.
    epoch: Option<Instant>,
    /// Time at which the RNIC needs attention.
    deadline: Option<Instant>,
    /// True if the RNIC has done something since the deadline was looked at.
    is_deadline_stale: bool,
    /// True if the RNIC got a command since it was driven.
    has_command: bool,
    is_leaving: bool,
}

#[derive(Debug)]
struct PeerSlot<L> {
    link: L,
    /// True if the link has ended and that was reported.
    is_broken: bool,
}

impl<L: RdmaLink> RdmaEndpoint<L> {
    /// Opens an endpoint with an RNIC of its own in software.
    pub(crate) fn open(transport: Transport, watch: Watch) -> Result<Self, LinkError> {
        let device = Device::open_embedded(Limits::default()).map_err(rnic_error("opening an RNIC"))?;
        Self::over_device(device, transport, watch)
    }

    /// Opens an endpoint over an RNIC.
    pub(crate) fn over_device(device: Device, transport: Transport, watch: Watch) -> Result<Self, LinkError> {
        let domain = device.allocate_domain().map_err(rnic_error("opening an RNIC"))?;
        Ok(Self {
            peers: Vec::new(),
            listener: None,
            has_waiting: false,
            arenas: Arc::new(Mutex::new(RegisteredArenas::new(domain, L::MEMORY_USE))),
            device,
            transport,
            watch,
            is_watched: false,
            epoch: None,
            deadline: None,
            is_deadline_stale: true,
            has_command: false,
            is_leaving: false,
        })
    }

    /// Has the endpoint listen.
    pub(crate) fn listening(mut self, at: &Address) -> Result<Self, LinkError> {
        let endpoint = &mut self;
        let transport = endpoint.transport;
        let found = at
            .resolve_addresses()
            .map_err(|error| listening_error(at, error, "correct the name in `listen`, or write a numeric address"))?;
        let mut outcome = Err(listening_error(at, io::ErrorKind::NotFound.into(), PORT_ADVICE));
        for address in found {
            outcome = endpoint
                .device
                .listen_over(transport, address, LISTEN_BACKLOG)
                .map_err(|error| listening_error(at, io::Error::other(error), PORT_ADVICE));
            if outcome.is_ok() {
                break;
            }
        }
        let listener = outcome?;
        endpoint.watch.add_descriptor(listener.as_fd(), LISTENER_NUMBER, Interest::READ)?;
        endpoint.listener = Some(listener);
        endpoint.watch_rnic()?;
        Ok(self)
    }

    /// Returns the number of times that a byte is copied on its way out, and on its way in: by the RNIC in software and the
    /// kernel. Those of a device are its own.
    fn copies_per_byte(&self) -> (u64, u64) {
        if self.device.device_name().is_some() { (0, 0) } else { self.transport.copies_per_byte() }
    }

    /// Adds the RNIC's sockets to the node's poller, once there are any.
    fn watch_rnic(&mut self) -> Result<(), LinkError> {
        if !self.is_watched
            && let Some(sockets) = self.device.poll_descriptor()
        {
            self.watch.add_descriptor(sockets.as_fd(), RNIC_NUMBER, Interest::READ)?;
            self.is_watched = true;
        }
        Ok(())
    }

    fn add_link(&mut self, peer: usize, link: L) {
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, || None);
        }
        self.peers[peer] = Some(PeerSlot { link, is_broken: false });
        self.has_command = true;
    }

    fn slot_of_peer(&self, peer: usize) -> Option<&PeerSlot<L>> {
        self.peers.get(peer)?.as_ref()
    }

    fn slot_of_peer_mut(&mut self, peer: usize) -> Option<&mut PeerSlot<L>> {
        self.peers.get_mut(peer)?.as_mut()
    }

    /// Has the RNIC do what it can, and collects what has arrived.
    fn drive_rnic(&mut self) {
        for _ in 0..MAX_RNIC_TURNS {
            if !self.device.make_progress() {
                break;
            }
        }
        (self.is_deadline_stale, self.has_command) = (true, false);
        for slot in self.peers.iter_mut().flatten() {
            slot.link.connection_mut().collect_arrivals();
        }
    }

    /// Returns whether the RNIC has work now, or at a time that has come.
    fn is_rnic_due(&mut self) -> bool {
        self.refresh_deadline();
        self.has_command || self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    fn refresh_deadline(&mut self) {
        if std::mem::take(&mut self.is_deadline_stale) {
            self.deadline = self.device.next_deadline(Instant::now());
        }
    }
}

impl<L: RdmaLink> Endpoint for RdmaEndpoint<L> {
    type Received = L::Received;

    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), LinkError> {
        self.arenas.lock().stag_of_arena(memory).map(drop)
    }

    fn poll_peers(&mut self, now: Duration, woken: &[u32], ready: &mut Vec<usize>) {
        // The node's time may be slightly old: then the RNIC is looked at slightly early.
        self.epoch.get_or_insert_with(|| Instant::now() - now);
        self.has_waiting |= woken.contains(&LISTENER_NUMBER);
        if woken.contains(&RNIC_NUMBER) || self.is_rnic_due() {
            self.drive_rnic();
        }
        for (peer, slot) in self.peers.iter().enumerate() {
            if slot.as_ref().is_some_and(|slot| slot.link.connection().has_arrivals()) {
                ready.push(peer);
            }
        }
    }

    fn receive_messages(&mut self, peer: usize, received: &mut Vec<L::Received>) -> Result<bool, LinkError> {
        if self.slot_of_peer(peer).is_some_and(|slot| !slot.link.connection().has_arrivals()) {
            // A caller that does not ask its poller.
            self.drive_rnic();
        }
        let Some(slot) = self.slot_of_peer_mut(peer) else { return Ok(false) };
        while let Some(arrival) = slot.link.connection_mut().next_arrival()? {
            slot.link.handle_arrival(arrival, received)?;
        }
        Ok(false)
    }

    fn flush_messages(&mut self, _now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        for (peer, slot) in self.peers.iter_mut().enumerate() {
            let Some(slot) = slot.as_mut().filter(|slot| !slot.is_broken) else { continue };
            if let Err(error) = slot.link.flush() {
                slot.is_broken = true;
                broken.push((peer, error));
            }
            if self.is_leaving && !slot.link.connection().has_unsent() {
                slot.link.connection_mut().disconnect();
            }
            // What was posted may have completed at once.
            slot.link.connection_mut().collect_arrivals();
        }
        self.is_deadline_stale = true;
        self.refresh_deadline();
    }

    fn prepare_wait(&mut self) -> bool {
        let is_idle = self.peers.iter().flatten().all(|slot| !slot.link.connection().has_arrivals());
        is_idle && !self.is_rnic_due()
    }

    fn is_cheap_to_poll(&self) -> bool {
        false
    }

    fn next_timeout(&self) -> Option<Duration> {
        Some(self.deadline?.saturating_duration_since(self.epoch?))
    }

    fn close_link(&mut self, peer: usize) {
        let Some(mut slot) = self.peers.get_mut(peer).and_then(Option::take) else { return };
        if !slot.is_broken {
            // An attempt only: the peer may be gone already.
            let _ = slot.link.flush();
            slot.link.connection_mut().disconnect();
        }
        self.has_command = true;
        // What the RNIC reports of queue pairs that have ended in an error; not read, it would be sent again and again.
        while let Ok(Some(event)) = self.device.wait_for_async_event(Duration::ZERO) {
            tracing::debug!("the RNIC reports: {event:?}");
        }
    }

    fn prepare_to_leave(&mut self) {
        self.is_leaving = true;
    }

    fn has_left(&self) -> bool {
        !self.is_leaving
            || !self.device.has_unsent() && self.peers.iter().flatten().all(|slot| !slot.link.connection().has_unsent())
    }
}

impl SourceEndpoint for RdmaEndpoint<RdmaSource> {
    fn connect_to_builder(
        &mut self,
        peer: usize,
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        let resolved = to
            .resolve_addresses()
            .map_err(|error| LinkError::Unusable { doing: format!("resolving '{}'", to.place()), error })?;
        let Some(address) = resolved.first().copied() else { return Ok(()) };
        let mut arenas = self.arenas.lock();
        let region = arenas.region_of_arena(&greeting.arena)?;
        let region = (region.peer_address(0), region.stag());
        let domain = arenas.protection_domain();
        let connection = PeerConnection::connect(&self.device, domain, self.transport, address, to.to_string())?;
        drop(arenas);
        let (copies_per_byte, _) = self.copies_per_byte();
        self.add_link(peer, RdmaSource::new(connection, greeting, region, copies_per_byte));
        self.watch_rnic()
    }

    fn source_link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.slot_of_peer(peer)?.link)
    }

    fn source_link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.slot_of_peer_mut(peer)?.link)
    }
}

impl BuilderEndpoint for RdmaEndpoint<RdmaBuilder> {
    fn listening_place(&self) -> String {
        self.listener.as_ref().map(|listener| listener.local_address().to_string()).unwrap_or_default()
    }

    fn accept_peer(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        while self.has_waiting
            && let Some(listener) = &self.listener
        {
            let waiting = listener.wait_for_request(Duration::ZERO).map_err(rnic_error("accepting a connection"))?;
            let Some(request) = waiting else { break };
            let address = request.peer_address();
            let name = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
            let arenas = Arc::clone(&self.arenas);
            let domain = arenas.lock().protection_domain().clone();
            if let Some(connection) = PeerConnection::accept(&self.device, &domain, request, name.clone())? {
                let (_, copies_per_byte) = self.copies_per_byte();
                self.add_link(peer, RdmaBuilder::new(connection, arenas, copies_per_byte));
                return Ok(Some(Peer::new(name, Origin::Host(address.map(|address| address.ip())))));
            }
        }
        self.has_waiting = false;
        Ok(None)
    }

    fn set_listening(&mut self, listens: bool) -> Result<(), LinkError> {
        self.has_waiting = false;
        let Some(listener) = &self.listener else { return Ok(()) };
        if listens {
            return self.watch.add_descriptor(listener.as_fd(), LISTENER_NUMBER, Interest::READ);
        }
        self.watch.remove_descriptor(listener.as_fd());
        Ok(())
    }

    fn builder_link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.slot_of_peer(peer)?.link)
    }

    fn builder_link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.slot_of_peer_mut(peer)?.link)
    }
}

fn listening_error(at: &Address, error: io::Error, advice: &'static str) -> LinkError {
    LinkError::Listening { address: at.clone(), error, advice }
}
