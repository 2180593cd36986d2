//! Endpoints of links that have one descriptor each: one socket per peer.

use crate::{
    Address, BuilderEndpoint, BuilderLink, Endpoint, Interest, LinkError, Peer, Received, SourceEndpoint,
    SourceGreeting, SourceLink, Watch,
};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use thalweg_wire::Message;

/// Number of the descriptor at which peers connect.
const LISTENER_NUMBER: u32 = u32::MAX;

/// A link with a descriptor of its own.
pub trait SocketLink: Debug + Send {
    /// A message or answer received over the link.
    type Received;

    /// Returns the descriptor to wait on.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the events to wait for.
    fn wait_interest(&self) -> Interest;

    /// Prepares a wait, as [`Endpoint::prepare_wait`] does.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// True if polling sees every arrival, as for [`Endpoint::is_cheap_to_poll`].
    fn is_cheap_to_poll(&self) -> bool {
        false
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn flush_messages(&mut self) -> Result<(), LinkError>;

    /// Receives what has arrived, as [`Endpoint::receive_messages`] does.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn receive_messages(&mut self, received: &mut Vec<Self::Received>) -> Result<bool, LinkError>;

    /// Sends what is pending, as [`Endpoint::close_link`] does; the link is dropped after that.
    fn close_link(&mut self) {
        // An attempt only: the peer may be gone already.
        let _ = self.flush_messages();
    }
}

/// A source's link that can be established.
pub trait Connect: SocketLink<Received = Message> + SourceLink + Sized + 'static {
    /// Begins to connect, as [`SourceEndpoint::connect_to_builder`] does.
    ///
    /// # Errors
    /// The address, or the congestion control, cannot be used here; or no peer listens there.
    fn connect_to_builder(to: &Address, congestion: Option<&str>, greeting: &SourceGreeting)
    -> Result<Self, LinkError>;
}

/// The listener of a builder, at which sources connect.
pub trait Listener: Debug + Send {
    /// The link to each source.
    type Link: SocketLink<Received = Received> + BuilderLink + 'static;

    /// Returns the descriptor to wait on until a source connects.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the place of the listener, as [`BuilderEndpoint::listening_place`] does.
    fn listening_place(&self) -> String;

    /// Accepts the next waiting peer, as [`BuilderEndpoint::accept_peer`] does.
    ///
    /// # Errors
    /// A peer is waiting and cannot be accepted.
    fn accept_link(&mut self) -> Result<Option<(Self::Link, Peer)>, LinkError>;

    /// Prepares for credits, as [`BuilderEndpoint::prepare_credit`] does.
    ///
    /// # Errors
    /// A description of what is unavailable, and of the consequence.
    fn prepare_credit(&mut self, bytes: u64) -> Result<(), &'static str> {
        let _ = bytes;
        Ok(())
    }
}

/// An endpoint of links with a descriptor each, with a listener if it is a builder's.
#[derive(Debug)]
pub struct Sockets<L, D = ()> {
    watch: Watch,
    listener: D,
    /// True if a peer waits to be accepted.
    has_waiting: bool,
    peers: Vec<Option<Socket<L>>>,
    /// True if the links were prepared for a wait and have not been polled since.
    waits: bool,
}

#[derive(Debug)]
struct Socket<L> {
    link: L,
    interest: Interest,
    /// True if there is something to receive, as far as is known.
    ready: bool,
    /// True if the link has ended and that was reported.
    broken: bool,
}

impl<L: SocketLink> Sockets<L> {
    /// Creates a source's endpoint.
    pub fn new(watch: Watch) -> Self {
        Self { watch, listener: (), has_waiting: false, peers: Vec::new(), waits: false }
    }
}

impl<D: Listener> Sockets<D::Link, D> {
    /// Creates a builder's endpoint.
    ///
    /// # Errors
    /// The poller accepts no more descriptors.
    pub fn with_listener(listener: D, watch: Watch) -> Result<Self, LinkError> {
        watch.add_descriptor(listener.descriptor(), LISTENER_NUMBER, Interest::READ)?;
        Ok(Self { watch, listener, has_waiting: false, peers: Vec::new(), waits: false })
    }
}

impl<L: SocketLink, D> Sockets<L, D> {
    fn add_link(&mut self, peer: usize, link: L) -> Result<(), LinkError> {
        let interest = link.wait_interest();
        self.watch.add_descriptor(link.descriptor(), descriptor_number(peer), interest)?;
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, || None);
        }
        self.peers[peer] = Some(Socket { link, interest, ready: false, broken: false });
        Ok(())
    }

    fn socket_of_peer(&self, peer: usize) -> Option<&Socket<L>> {
        self.peers.get(peer)?.as_ref()
    }

    fn socket_of_peer_mut(&mut self, peer: usize) -> Option<&mut Socket<L>> {
        self.peers.get_mut(peer)?.as_mut()
    }
}

/// Converts a peer's number. Peers are few: their numbers fit.
#[expect(clippy::cast_possible_truncation, reason = "a descriptor for each")]
fn descriptor_number(peer: usize) -> u32 {
    peer as u32
}

impl<L: SocketLink> Socket<L> {
    /// Updates the events that are waited for, which may have changed.
    fn update_interest(&mut self, peer: usize, watch: &Watch) -> Result<(), LinkError> {
        let interest = self.link.wait_interest();
        if interest != self.interest {
            watch.change_interest(self.link.descriptor(), descriptor_number(peer), interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

impl<L: SocketLink, D: Debug + Send> Endpoint for Sockets<L, D> {
    type Received = L::Received;

    fn poll_peers(&mut self, _now: Duration, woken: &[u32], ready: &mut Vec<usize>) {
        for number in woken {
            self.has_waiting |= *number == LISTENER_NUMBER;
            if let Some(socket) = self.socket_of_peer_mut(*number as usize) {
                socket.ready = true;
            }
        }
        let looks = !std::mem::take(&mut self.waits);
        for (peer, socket) in self.peers.iter_mut().enumerate() {
            let Some(socket) = socket else { continue };
            if std::mem::take(&mut socket.ready) || looks && socket.link.is_cheap_to_poll() {
                ready.push(peer);
            }
        }
    }

    fn receive_messages(&mut self, peer: usize, received: &mut Vec<L::Received>) -> Result<bool, LinkError> {
        let Some(socket) = self.socket_of_peer_mut(peer) else { return Ok(false) };
        let more = socket.link.receive_messages(received)?;
        socket.ready |= more;
        Ok(more)
    }

    fn flush_messages(&mut self, _now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        for (peer, socket) in self.peers.iter_mut().enumerate() {
            let Some(socket) = socket.as_mut().filter(|socket| !socket.broken) else { continue };
            // The events to wait for are set before a wait. If another thread is waiting already, they are set here;
            // and so they are where room to send was waited for, since room that is no longer needed would be reported
            // in every turn.
            let mut outcome = socket.link.flush_messages();
            if outcome.is_ok() && (self.waits || socket.interest.write) {
                outcome = socket.update_interest(peer, &self.watch);
            }
            if let Err(error) = outcome {
                socket.broken = true;
                broken.push((peer, error));
            }
        }
    }

    fn prepare_wait(&mut self) -> bool {
        self.waits = true;
        let mut waits = true;
        for (peer, socket) in self.peers.iter_mut().enumerate() {
            let Some(socket) = socket else { continue };
            // If the poller does not accept the change now, it is tried again: arrivals would not be reported
            // otherwise.
            let prepared =
                !socket.ready && socket.link.prepare_wait() && socket.update_interest(peer, &self.watch).is_ok();
            socket.ready = !prepared;
            waits &= !socket.ready;
        }
        waits
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.peers.iter().flatten().all(|socket| socket.link.is_cheap_to_poll())
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }

    fn close_link(&mut self, peer: usize) {
        if let Some(mut socket) = self.peers.get_mut(peer).and_then(Option::take) {
            if !socket.broken {
                socket.link.close_link();
            }
            self.watch.remove_descriptor(socket.link.descriptor());
        }
    }
}

impl<L: Connect> SourceEndpoint for Sockets<L> {
    fn connect_to_builder(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        self.add_link(peer, L::connect_to_builder(to, congestion, greeting)?)
    }

    fn source_link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.socket_of_peer(peer)?.link)
    }

    fn source_link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.socket_of_peer_mut(peer)?.link)
    }
}

impl<D: Listener> BuilderEndpoint for Sockets<D::Link, D> {
    fn listening_place(&self) -> String {
        self.listener.listening_place()
    }

    fn prepare_credit(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.listener.prepare_credit(bytes)
    }

    fn accept_peer(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        if !self.has_waiting {
            return Ok(None);
        }
        let Some((link, name)) = self.listener.accept_link()? else {
            self.has_waiting = false;
            return Ok(None);
        };
        self.add_link(peer, link)?;
        Ok(Some(name))
    }

    fn set_listening(&mut self, listens: bool) -> Result<(), LinkError> {
        self.has_waiting = false;
        match listens {
            true => self.watch.add_descriptor(self.listener.descriptor(), LISTENER_NUMBER, Interest::READ),
            false => {
                self.watch.remove_descriptor(self.listener.descriptor());
                Ok(())
            }
        }
    }

    fn builder_link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.socket_of_peer(peer)?.link)
    }

    fn builder_link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.socket_of_peer_mut(peer)?.link)
    }
}
