//! Endpoints of links that have a descriptor each: one socket for a peer.

use crate::{
    Address, BuilderEndpoint, BuilderLink, Endpoint, Interest, LinkError, Peer, Received, SourceEndpoint,
    SourceGreeting, SourceLink, Watch,
};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use thalweg_wire::Message;

/// The number of the descriptor at which peers come in.
const DOOR: u32 = u32::MAX;

/// A link with a descriptor of its own.
pub trait SocketLink: Debug + Send {
    /// What is received.
    type Received;

    /// What to wait on.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What to wait for.
    fn interest(&self) -> Interest;

    /// As [`Endpoint::prepare_wait`].
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// As [`Endpoint::sees`].
    fn sees(&self) -> bool {
        false
    }

    /// Sends what can be sent now.
    ///
    /// # Errors
    /// The link is over, and why.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// As [`Endpoint::receive`].
    ///
    /// # Errors
    /// The link is over, and why.
    fn receive(&mut self, received: &mut Vec<Self::Received>) -> Result<bool, LinkError>;

    /// As [`Endpoint::close`]: the link is dropped after that.
    fn close(&mut self) {
        // Nobody may listen any more: it is worth trying.
        let _ = self.flush();
    }
}

/// A source's link that can be made.
pub trait Connects: SocketLink<Received = Message> + SourceLink + Sized + 'static {
    /// As [`SourceEndpoint::connect`].
    ///
    /// # Errors
    /// The address, or what was asked for with it, cannot be used here; or nobody is there.
    fn connect(to: &Address, congestion: Option<&str>, greeting: &SourceGreeting) -> Result<Self, LinkError>;
}

/// Where sources come in.
pub trait Door: Debug + Send {
    /// What they are connected by.
    type Link: SocketLink<Received = Received> + BuilderLink + 'static;

    /// What to wait on until somebody comes.
    fn fd(&self) -> BorrowedFd<'_>;

    /// As [`BuilderEndpoint::place`].
    fn place(&self) -> String;

    /// As [`BuilderEndpoint::accept`].
    ///
    /// # Errors
    /// Somebody waits and cannot be let in.
    fn accept(&mut self) -> Result<Option<(Self::Link, Peer)>, LinkError>;

    /// As [`BuilderEndpoint::expect`].
    ///
    /// # Errors
    /// What cannot be had, and what that means.
    fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
        let _ = bytes;
        Ok(())
    }
}

/// An endpoint of such links, with a door where it is a builder's.
#[derive(Debug)]
pub struct Sockets<L, D = ()> {
    watch: Watch,
    door: D,
    /// Somebody waits to be let in.
    knocked: bool,
    peers: Vec<Option<Socket<L>>>,
    /// They were prepared for a wait, and nobody has looked at them since.
    waits: bool,
}

#[derive(Debug)]
struct Socket<L> {
    link: L,
    interest: Interest,
    /// It has something to receive, as far as is known.
    ready: bool,
    /// It is over, and that was told.
    broken: bool,
}

impl<L: SocketLink> Sockets<L> {
    /// A source's.
    pub fn new(watch: Watch) -> Self {
        Self { watch, door: (), knocked: false, peers: Vec::new(), waits: false }
    }
}

impl<D: Door> Sockets<D::Link, D> {
    /// A builder's.
    ///
    /// # Errors
    /// The poller takes no more descriptors.
    pub fn behind(door: D, watch: Watch) -> Result<Self, LinkError> {
        watch.add(door.fd(), DOOR, Interest::READ)?;
        Ok(Self { watch, door, knocked: false, peers: Vec::new(), waits: false })
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

/// Peers are few: their numbers fit.
#[expect(clippy::cast_possible_truncation, reason = "a descriptor for each")]
fn number(peer: usize) -> u32 {
    peer as u32
}

impl<L: SocketLink> Socket<L> {
    /// What to wait for may have changed.
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
            self.knocked |= *number == DOOR;
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
            // What is waited for is told before a wait; another thread may be waiting already, and room that nobody needs
            // any more would be told of in every turn.
            let update = |socket: &mut Socket<L>| match self.waits || socket.interest.write {
                true => socket.update(peer, &self.watch),
                false => Ok(()),
            };
            if let Err(error) = socket.link.flush().and_then(|()| update(socket)) {
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
            // Where the poller does not take it now, it is tried again: nobody would tell of what comes.
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

impl<L: Connects> SourceEndpoint for Sockets<L> {
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

impl<D: Door> BuilderEndpoint for Sockets<D::Link, D> {
    fn place(&self) -> String {
        self.door.place()
    }

    fn expect(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.door.expect(bytes)
    }

    fn accept(&mut self, peer: usize) -> Result<Option<Peer>, LinkError> {
        if !self.knocked {
            return Ok(None);
        }
        let Some((link, name)) = self.door.accept()? else {
            self.knocked = false;
            return Ok(None);
        };
        self.put(peer, link)?;
        Ok(Some(name))
    }

    fn listen(&mut self, listens: bool) -> Result<(), LinkError> {
        self.knocked = false;
        match listens {
            true => self.watch.add(self.door.fd(), DOOR, Interest::READ),
            false => {
                self.watch.remove(self.door.fd());
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
