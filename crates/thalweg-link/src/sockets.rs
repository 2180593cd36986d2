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
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the events to wait for.
    fn interest(&self) -> Interest;

    /// Prepares a wait, as [`Endpoint::prepare_wait`] does.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// True if polling sees every arrival, as for [`Endpoint::sees`].
    fn sees(&self) -> bool {
        false
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Receives what has arrived, as [`Endpoint::receive`] does.
    ///
    /// # Errors
    /// The link has ended; the error is the reason.
    fn receive(&mut self, received: &mut Vec<Self::Received>) -> Result<bool, LinkError>;

    /// Sends what is pending, as [`Endpoint::close`] does; the link is dropped after that.
    fn close(&mut self) {
        // An attempt only: the peer may be gone already.
        let _ = self.flush();
    }
}

/// A source's link that can be established.
pub trait Connect: SocketLink<Received = Message> + SourceLink + Sized + 'static {
    /// Begins to connect, as [`SourceEndpoint::connect`] does.
    ///
    /// # Errors
    /// The address, or the congestion control, cannot be used here; or no peer listens there.
    fn connect(to: &Address, congestion: Option<&str>, greeting: &SourceGreeting) -> Result<Self, LinkError>;
}

/// The listener of a builder, at which sources connect.
pub trait Listener: Debug + Send {
    /// The link to each source.
    type Link: SocketLink<Received = Received> + BuilderLink + 'static;

    /// Returns the descriptor to wait on until a source connects.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the place of the listener, as [`BuilderEndpoint::place`] does.
    fn place(&self) -> String;

    /// Accepts the next waiting peer, as [`BuilderEndpoint::accept`] does.
    ///
    /// # Errors
    /// A peer is waiting and cannot be accepted.
    fn accept(&mut self) -> Result<Option<(Self::Link, Peer)>, LinkError>;

    /// Prepares for credits, as [`BuilderEndpoint::expect`] does.
    ///
    /// # Errors
    /// A description of what is unavailable, and of the consequence.
    fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
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
    pub fn behind(listener: D, watch: Watch) -> Result<Self, LinkError> {
        watch.add(listener.fd(), LISTENER_NUMBER, Interest::READ)?;
        Ok(Self { watch, listener, has_waiting: false, peers: Vec::new(), waits: false })
    }
}

impl<L: SocketLink, D> Sockets<L, D> {
    fn put(&mut self, peer: usize, link: L) -> Result<(), LinkError> {
        let interest = link.interest();
        self.watch.add(link.fd(), number(peer), interest)?;
        if self.peers.len() <= peer {
            self.peers.resize_with(peer + 1, || None);
        }
        self.peers[peer] = Some(Socket { link, interest, ready: false, broken: false });
        Ok(())
    }

    fn socket(&self, peer: usize) -> Option<&Socket<L>> {
        self.peers.get(peer)?.as_ref()
    }

    fn socket_mut(&mut self, peer: usize) -> Option<&mut Socket<L>> {
        self.peers.get_mut(peer)?.as_mut()
    }
}

/// Converts a peer's number. Peers are few: their numbers fit.
#[expect(clippy::cast_possible_truncation, reason = "a descriptor for each")]
fn number(peer: usize) -> u32 {
    peer as u32
}

impl<L: SocketLink> Socket<L> {
    /// Updates the events that are waited for, which may have changed.
    fn update(&mut self, peer: usize, watch: &Watch) -> Result<(), LinkError> {
        let interest = self.link.interest();
        if interest != self.interest {
            watch.change(self.link.fd(), number(peer), interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

impl<L: SocketLink, D: Debug + Send> Endpoint for Sockets<L, D> {
    type Received = L::Received;

    fn poll(&mut self, _now: Duration, woken: &[u32], ready: &mut Vec<usize>) {
        for number in woken {
            self.has_waiting |= *number == LISTENER_NUMBER;
            if let Some(socket) = self.socket_mut(*number as usize) {
                socket.ready = true;
            }
        }
        let looks = !std::mem::take(&mut self.waits);
        for (peer, socket) in self.peers.iter_mut().enumerate() {
            let Some(socket) = socket else { continue };
            if std::mem::take(&mut socket.ready) || looks && socket.link.sees() {
                ready.push(peer);
            }
        }
    }

    fn receive(&mut self, peer: usize, received: &mut Vec<L::Received>) -> Result<bool, LinkError> {
        let Some(socket) = self.socket_mut(peer) else { return Ok(false) };
        let more = socket.link.receive(received)?;
        socket.ready |= more;
        Ok(more)
    }

    fn flush(&mut self, _now: Duration, broken: &mut Vec<(usize, LinkError)>) {
        for (peer, socket) in self.peers.iter_mut().enumerate() {
            let Some(socket) = socket.as_mut().filter(|socket| !socket.broken) else { continue };
            // The events to wait for are set before a wait. If another thread is waiting already, they are set here;
            // and so they are where room to send was waited for, since room that is no longer needed would be reported
            // in every turn.
            let mut outcome = socket.link.flush();
            if outcome.is_ok() && (self.waits || socket.interest.write) {
                outcome = socket.update(peer, &self.watch);
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
            let prepared = !socket.ready && socket.link.prepare_wait() && socket.update(peer, &self.watch).is_ok();
            socket.ready = !prepared;
            waits &= !socket.ready;
        }
        waits
    }

    fn sees(&self) -> bool {
        self.peers.iter().flatten().all(|socket| socket.link.sees())
    }

    fn next_timeout(&self) -> Option<Duration> {
        None
    }

    fn close(&mut self, peer: usize) {
        if let Some(mut socket) = self.peers.get_mut(peer).and_then(Option::take) {
            if !socket.broken {
                socket.link.close();
            }
            self.watch.remove(socket.link.fd());
        }
    }
}

impl<L: Connect> SourceEndpoint for Sockets<L> {
    fn connect(
        &mut self,
        peer: usize,
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<(), LinkError> {
        self.put(peer, L::connect(to, congestion, greeting)?)
    }

    fn link(&self, peer: usize) -> Option<&(dyn SourceLink + 'static)> {
        Some(&self.socket(peer)?.link)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn SourceLink + 'static)> {
        Some(&mut self.socket_mut(peer)?.link)
    }
}

impl<D: Listener> BuilderEndpoint for Sockets<D::Link, D> {
    fn place(&self) -> String {
        self.listener.place()
    }

    fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.listener.expect(bytes)
    }

    fn accept(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        if !self.has_waiting {
            return Ok(None);
        }
        let Some((link, name)) = self.listener.accept()? else {
            self.has_waiting = false;
            return Ok(None);
        };
        self.put(peer, link)?;
        Ok(Some(name))
    }

    fn listen(&mut self, listens: bool) -> Result<(), LinkError> {
        self.has_waiting = false;
        match listens {
            true => self.watch.add(self.listener.fd(), LISTENER_NUMBER, Interest::READ),
            false => {
                self.watch.remove(self.listener.fd());
                Ok(())
            }
        }
    }

    fn link(&self, peer: usize) -> Option<&(dyn BuilderLink + 'static)> {
        Some(&self.socket(peer)?.link)
    }

    fn link_mut(&mut self, peer: usize) -> Option<&mut (dyn BuilderLink + 'static)> {
        Some(&mut self.socket_mut(peer)?.link)
    }
}
