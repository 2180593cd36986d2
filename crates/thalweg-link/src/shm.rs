//! The three verbs over shared memory, between two processes of one host.
//!
//! The source hands its arena over by file descriptor, with two rings of 64-byte cells for the messages and a doorbell
//! (eventfd) for each side. The builder reads fragments where the device wrote them. The Unix socket stays open: when a
//! process dies the other sees it closed.
//!
//! A source that may withdraw what it offered (policy `drop-oldest`) must be asked before its bytes are read: then a fetch
//! is a message and the grant comes back as `Data`, as on any other link. From other sources an offer is enough.

use crate::copy::copy_counted;
use crate::offered::{Asked, Novelty, Offered};
use crate::{BuilderLink, Bytes, Interest, LinkError, Poller, Said, SourceGreeting, SourceLink};
use socket2::{Domain, SockAddr, Socket, Type};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use thalweg_arena::{
    Arena, Doorbell, MAX_CELLS, PushError, Ring, RingReceiver, RingSender, Span, View, recv_fds, send_fds,
};
use thalweg_wire::{Announcement, Disposition, Hello, MESSAGE_LEN, Message, Refusal};

/// Arena, ring to the builder, ring to the source, the builder's doorbell, the source's doorbell.
const HANDED_OVER: usize = 5;
/// Messages taken from one link before others have their turn.
const FAIR_SHARE: usize = 1024;

const SOCKET: u64 = 0;
const DOORBELL: u64 = 1;

/// Messages in both directions.
#[derive(Debug)]
struct Wires {
    sender: RingSender,
    receiver: RingReceiver,
    mine: Doorbell,
    theirs: Doorbell,
    /// Messages for which the ring had no room.
    backlog: VecDeque<Message>,
    unpublished: bool,
}

impl Wires {
    fn new(sender: RingSender, receiver: RingReceiver, mine: Doorbell, theirs: Doorbell) -> Self {
        Self { sender, receiver, mine, theirs, backlog: VecDeque::new(), unpublished: false }
    }

    fn say(&mut self, message: &Message) {
        if self.backlog.is_empty() {
            match self.sender.push(&message.encode()) {
                Ok(()) => {
                    self.unpublished = true;
                    return;
                }
                Err(PushError::Full) => {}
                // Reported by the next flush, which pushes again.
                Err(PushError::Ring(_)) => {}
            }
        }
        self.backlog.push_back(*message);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        loop {
            while let Some(message) = self.backlog.front() {
                match self.sender.push(&message.encode()) {
                    Ok(()) => {
                        self.unpublished = true;
                        self.backlog.pop_front();
                    }
                    Err(PushError::Full) => break,
                    Err(PushError::Ring(error)) => return Err(LinkError::Protocol(error.to_string())),
                }
            }
            if std::mem::take(&mut self.unpublished) && self.sender.publish() {
                self.wake()?;
            }
            // Full: sleep until the peer has taken some, unless it just did.
            if self.backlog.is_empty() || self.sender.prepare_wait() {
                return Ok(());
            }
        }
    }

    fn wake(&self) -> Result<(), LinkError> {
        self.theirs.ring().map_err(|error| LinkError::Protocol(error.to_string()))
    }

    /// Takes what has come, up to a fair share. True where there is more.
    fn hear(&mut self, mut take: impl FnMut(Message) -> Result<(), LinkError>) -> Result<bool, LinkError> {
        self.mine.clear().map_err(|error| LinkError::Protocol(error.to_string()))?;
        for _ in 0..FAIR_SHARE {
            match self.receiver.pop().map_err(|error| LinkError::Protocol(error.to_string()))? {
                Some(cell) => take(Message::decode(&cell)?)?,
                None => {
                    if self.receiver.sender_waits() {
                        self.wake()?;
                    }
                    if self.receiver.prepare_wait() {
                        return Ok(false);
                    }
                }
            }
        }
        if self.receiver.sender_waits() {
            self.wake()?;
        }
        // More is there: nothing will ring for it, so ring oneself.
        self.mine.ring().map_err(|error| LinkError::Protocol(error.to_string()))?;
        Ok(true)
    }
}

/// Whether the peer is still there. It says nothing over the socket but, at most, why it leaves.
fn peer_is_there(mut socket: &UnixStream) -> Result<(), LinkError> {
    let mut bytes = [0; MESSAGE_LEN + Message::MAX_REFUSAL_TEXT as usize];
    match socket.read(&mut bytes) {
        Ok(0) => Err(LinkError::Closed),
        Ok(n) => match bytes[..n].split_first_chunk::<MESSAGE_LEN>() {
            Some((cell, text)) => match Message::decode(cell)? {
                Message::Refuse { reason, .. } => {
                    Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() })
                }
                other => Err(LinkError::Protocol(format!("unexpected over the socket: {other:?}"))),
            },
            None => Err(LinkError::Protocol(format!("{n} bytes over the socket that are no message"))),
        },
        Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => Ok(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(LinkError::Closed),
        Err(error) => Err(LinkError::io("reading the hand-over socket")(error)),
    }
}

fn waiting_on(socket: &UnixStream) -> Result<Poller, LinkError> {
    let poller = Poller::new()?;
    poller.add(socket.as_fd(), SOCKET, Interest::READ)?;
    Ok(poller)
}

/// Connects to a builder on this host and hands the arena over. Nothing here waits: a builder that is too busy to accept is
/// an error (`WouldBlock`), to be tried again later.
pub(crate) fn connect(path: &Path, greeting: &SourceGreeting) -> Result<Box<dyn SourceLink>, LinkError> {
    let doing = || format!("connecting to shm:{}", path.display());
    let open = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    let socket: UnixStream = open().map_err(LinkError::io::<std::io::Error>(doing()))?;
    // Room for every ticket that can be open, and for the few messages beside them. More waits in the backlog.
    let cells = greeting.hello.slots.saturating_mul(4).saturating_add(64).min(MAX_CELLS).next_power_of_two();
    let ring = |name| Ring::create(name, cells).map_err(|error| LinkError::Protocol(error.to_string()));
    let bell = || Doorbell::new().map_err(|error| LinkError::Protocol(error.to_string()));
    let (to_builder, to_source, builders, mine) = (ring("to-builder")?, ring("to-source")?, bell()?, bell()?);

    let mut bytes = Message::Hello(greeting.hello).encode().to_vec();
    bytes.extend_from_slice(greeting.description.as_bytes());
    let fds = [greeting.arena.fd(), to_builder.fd(), to_source.fd(), builders.as_fd(), mine.as_fd()];
    let sent = send_fds(&socket, &bytes, &fds).map_err(|error| LinkError::Protocol(format!("{}: {error}", doing())))?;
    // A fresh socket has room for all of it: at most 16 KiB.
    (&socket).write_all(&bytes[sent..]).map_err(LinkError::io(doing()))?;
    let poller = waiting_on(&socket)?;
    poller.add(mine.as_fd(), DOORBELL, Interest::READ)?;
    // Nobody has said yet that it sleeps, so nobody would be woken: the first look is our own.
    mine.ring().map_err(|error| LinkError::Protocol(error.to_string()))?;
    let wires = Wires::new(to_builder.into_sender(), to_source.into_receiver(), mine, builders);
    Ok(Box::new(ShmSource { poller, socket, wires, offered: Offered::new(greeting.hello.slots), left: None }))
}

#[derive(Debug)]
struct ShmSource {
    poller: Poller,
    socket: UnixStream,
    wires: Wires,
    offered: Offered,
    /// Why the builder is gone, while there is something left to hear of it.
    left: Option<LinkError>,
}

impl ShmSource {
    /// Grants what was asked for, once: the builder asks for a ticket once.
    fn grant(&mut self, asked: Asked) -> Result<(), LinkError> {
        if let Some((_, true)) = self.offered.ask(asked)? {
            let Asked { ticket, offset, length } = asked;
            self.wires.say(&Message::Data { ticket, offset, length });
        }
        Ok(())
    }
}

impl SourceLink for ShmSource {
    fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::READ
    }

    fn offer(&mut self, offer: &Announcement) {
        // Nothing is faster than reading in place, so nothing is ever sent ahead.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        if self.offered.offer(&offer) != Novelty::Released {
            self.wires.say(&Message::Offer(offer));
        }
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn say(&mut self, message: &Message) {
        self.wires.say(message);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        for asked in self.offered.early() {
            self.grant(asked)?;
        }
        self.wires.flush()
    }

    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        // Looked at first: what the builder said before it left is in the ring by now.
        self.left = self.left.take().or_else(|| peer_is_there(&self.socket).err());
        let mut fetches = Vec::new();
        let Self { wires, offered, .. } = self;
        let more = wires.hear(|message| {
            match message {
                Message::Fetch { ticket, offset, length } => fetches.push(Asked { ticket, offset, length }),
                Message::Release { below } => {
                    offered.release(below);
                    said.push(message);
                }
                Message::Hello(_)
                | Message::Data { .. }
                | Message::Offer(_)
                | Message::Paused { .. }
                | Message::End(_)
                | Message::Refuse { .. } => {
                    return Err(LinkError::Protocol(format!("unexpected from a builder over a ring: {message:?}")));
                }
                _ => said.push(message),
            }
            Ok(())
        })?;
        for asked in fetches {
            self.grant(asked)?;
        }
        self.flush()?;
        match self.left.take() {
            Some(error) if !more => Err(error),
            left => {
                self.left = left;
                Ok(())
            }
        }
    }

    fn copied(&self) -> u64 {
        0
    }
}

/// Takes over a connection that a source made over the Unix socket.
pub(crate) fn accepted(socket: UnixStream) -> Result<Box<dyn BuilderLink>, LinkError> {
    socket.set_nonblocking(true).map_err(LinkError::io("setting up a connection"))?;
    let poller = waiting_on(&socket)?;
    let state = State::Greeting { bytes: Vec::new(), fds: Vec::new() };
    Ok(Box::new(ShmBuilder { poller, socket, state, left: None, copied: 0 }))
}

#[derive(Debug)]
struct ShmBuilder {
    poller: Poller,
    socket: UnixStream,
    state: State,
    /// Why the source is gone, while there is something left to hear of it.
    left: Option<LinkError>,
    copied: u64,
}

#[derive(Debug)]
enum State {
    /// The hello and the descriptors are on their way.
    Greeting { bytes: Vec<u8>, fds: Vec<OwnedFd> },
    /// Everything is handed over.
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    wires: Wires,
    window: Window,
    withdraws: bool,
    pending: VecDeque<Pending>,
}

/// A fetch that waits to be granted.
#[derive(Debug)]
struct Pending {
    offer: Announcement,
    place: Option<Span>,
    /// The source has dropped it: the fetch is about to be called off.
    dropped: bool,
}

/// The source's arena, as the builder sees it.
#[derive(Debug)]
struct Window {
    arena: Arc<Arena>,
}

impl Window {
    /// The bytes of an offer: copied into `place`, which is taken then, or as they lie.
    fn bytes(&self, offer: &Announcement, place: &mut Option<Span>, copied: &mut u64) -> Result<Bytes, LinkError> {
        let view = self.view(offer)?;
        if place.as_ref().is_some_and(|place| place.len() != view.len()) {
            return Err(LinkError::Protocol(format!("ticket {} was offered with different lengths", offer.ticket)));
        }
        Ok(match place.take() {
            None => Bytes::View(view),
            Some(mut place) => {
                *copied += copy_counted(&mut place, &view);
                Bytes::Place(place)
            }
        })
    }

    fn view(&self, offer: &Announcement) -> Result<View, LinkError> {
        self.arena.view(offer.arena_offset, offer.bytes as usize).ok_or_else(|| {
            LinkError::Protocol(format!(
                "offered bytes {}+{} of an arena of {}",
                offer.arena_offset,
                offer.bytes,
                self.arena.size()
            ))
        })
    }
}

impl Open {
    /// A grant has come.
    fn granted(&mut self, ticket: u64, copied: &mut u64) -> Result<Said, LinkError> {
        let at = self.pending.iter().position(|pending| pending.offer.ticket == ticket && !pending.dropped);
        let Some(mut pending) = at.and_then(|at| self.pending.remove(at)) else {
            return Err(LinkError::Protocol(format!("ticket {ticket} was granted without being asked for")));
        };
        match self.window.bytes(&pending.offer, &mut pending.place, copied) {
            Ok(bytes) => Ok(Said::Arrived { ticket, bytes }),
            Err(error) => {
                // The place is not lost: it comes back from `abandon`.
                self.pending.push_back(pending);
                Err(error)
            }
        }
    }
}

impl ShmBuilder {
    fn greet(&mut self, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let State::Greeting { bytes, fds } = &mut self.state else { return Ok(()) };
        let mut buffer = [0; MESSAGE_LEN + Message::MAX_DESCRIPTION as usize];
        match recv_fds(&self.socket, &mut buffer, HANDED_OVER) {
            Ok((0, _)) => return Err(LinkError::Closed),
            Ok((n, more)) => {
                bytes.extend_from_slice(&buffer[..n]);
                fds.extend(more);
            }
            Err(error) if error.is_would_block() => return Ok(()),
            Err(error) => return Err(LinkError::Protocol(error.to_string())),
        }
        if fds.len() > HANDED_OVER {
            return Err(LinkError::Protocol(format!("more than {HANDED_OVER} descriptors were handed over")));
        }
        let Some((cell, text)) = bytes.split_first_chunk::<MESSAGE_LEN>() else { return Ok(()) };
        let hello = match Message::decode(cell)? {
            Message::Hello(hello) => hello,
            other => return Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}"))),
        };
        match text.len().cmp(&(hello.description as usize)) {
            Ordering::Less => return Ok(()),
            Ordering::Equal => {}
            Ordering::Greater => return Err(LinkError::Protocol("more came over the socket than a hello".into())),
        }
        let text = String::from_utf8(text.to_vec())
            .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
        let open = open(&self.poller, std::mem::take(fds), hello)?;
        self.state = State::Open(Box::new(open));
        said.push(Said::Hello(hello, text));
        Ok(())
    }
}

fn open(poller: &Poller, fds: Vec<OwnedFd>, hello: Hello) -> Result<Open, LinkError> {
    let protocol = |error: String| LinkError::Protocol(error);
    let handed: [OwnedFd; HANDED_OVER] = fds
        .try_into()
        .map_err(|fds: Vec<_>| protocol(format!("{} descriptors were handed over, not {HANDED_OVER}", fds.len())))?;
    let [arena, to_builder, to_source, mine, theirs] = handed;
    let arena = Arena::import(arena).map_err(|error| protocol(error.to_string()))?;
    let receiver = Ring::import(to_builder).map_err(|error| protocol(error.to_string()))?.into_receiver();
    let sender = Ring::import(to_source).map_err(|error| protocol(error.to_string()))?.into_sender();
    let mine = Doorbell::import(mine).map_err(|error| protocol(error.to_string()))?;
    let theirs = Doorbell::import(theirs).map_err(|error| protocol(error.to_string()))?;
    poller.add(mine.as_fd(), DOORBELL, Interest::READ)?;
    Ok(Open {
        wires: Wires::new(sender, receiver, mine, theirs),
        window: Window { arena },
        withdraws: hello.withdraws,
        pending: VecDeque::new(),
    })
}

impl BuilderLink for ShmBuilder {
    fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::READ
    }

    fn maps(&self) -> bool {
        true
    }

    fn fetch(&mut self, offer: &Announcement, into: Option<Span>) -> Result<Option<Bytes>, LinkError> {
        let State::Open(open) = &mut self.state else {
            return Err(LinkError::Protocol("a fetch before the hello".into()));
        };
        let mut pending = Pending { offer: *offer, place: into, dropped: false };
        if open.withdraws {
            open.wires.say(&Message::Fetch { ticket: offer.ticket, offset: 0, length: offer.bytes });
            open.pending.push_back(pending);
            return Ok(None);
        }
        let bytes = open.window.bytes(offer, &mut pending.place, &mut self.copied);
        if bytes.is_err() {
            open.pending.push_back(pending);
        }
        bytes.map(Some)
    }

    fn cancel(&mut self, ticket: u64) -> Option<Span> {
        let State::Open(open) = &mut self.state else { return None };
        let at = open.pending.iter().position(|pending| pending.offer.ticket == ticket)?;
        open.pending.remove(at)?.place
    }

    fn release(&mut self, below: u64) {
        self.say(&Message::Release { below });
    }

    fn say(&mut self, message: &Message) {
        if let State::Open(open) = &mut self.state {
            open.wires.say(message);
        }
    }

    fn refuse(&mut self, reason: Refusal, text: &str) {
        let text: String = text.chars().take(250).collect();
        #[expect(clippy::cast_possible_truncation, reason = "at most 250 characters of at most 4 bytes")]
        let mut bytes = Message::Refuse { reason, text: text.len() as u32 }.encode().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        let _ = self.flush();
        // The peer may be gone, or may not listen: it was worth trying.
        let _ = self.socket.write_all(&bytes);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        match &mut self.state {
            State::Greeting { .. } => Ok(()),
            State::Open(open) => open.wires.flush(),
        }
    }

    fn ready(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError> {
        self.greet(said)?;
        let State::Open(open) = &mut self.state else { return Ok(false) };
        // Looked at first: what the source said before it left is in the ring by now.
        self.left = self.left.take().or_else(|| peer_is_there(&self.socket).err());
        let mut heard = Vec::new();
        let listened = open.wires.hear(|message| {
            heard.push(message);
            Ok(())
        });
        for message in heard {
            match message {
                Message::Offer(Announcement { ticket, disposition, .. }) => {
                    if disposition.is_dropped() {
                        for pending in open.pending.iter_mut().filter(|pending| pending.offer.ticket == ticket) {
                            pending.dropped = true;
                        }
                    }
                    said.push(Said::Message(message));
                }
                Message::Paused { .. } | Message::End(_) => said.push(Said::Message(message)),
                Message::Data { ticket, .. } => said.push(open.granted(ticket, &mut self.copied)?),
                _ => return Err(LinkError::Protocol(format!("unexpected from a source over a ring: {message:?}"))),
            }
        }
        let more = listened?;
        open.wires.flush()?;
        match self.left.take() {
            Some(error) if !more => Err(error),
            left => {
                self.left = left;
                Ok(more)
            }
        }
    }

    fn abandon(&mut self) -> Vec<(u64, Span)> {
        let State::Open(open) = &mut self.state else { return Vec::new() };
        open.pending.drain(..).filter_map(|pending| Some((pending.offer.ticket, pending.place?))).collect()
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}
