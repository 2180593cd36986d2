//! The three verbs over shared memory, between two processes of one host.
//!
//! The source hands its arena over by file descriptor, with two rings of 64-byte cells for the messages and a doorbell
//! (eventfd) for each side. The builder reads fragments where the device wrote them. The Unix socket stays open: when a
//! process dies the other sees it closed.
//!
//! A source that may withdraw what it offered (policy `drop-oldest`) must be asked before its bytes are read: then a fetch
//! is a message and the grant comes back as `Data`, as on any other link. From other sources an offer is enough.

use crate::copy::copy_counted;
use crate::{BuilderLink, Bytes, Interest, LinkError, Outstanding, Poller, Said, SourceGreeting, SourceLink};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use thalweg_arena::{Arena, Doorbell, PushError, Ring, RingReceiver, RingSender, Span, View, recv_fds, send_fds};
use thalweg_wire::{Announcement, Disposition, Hello, MESSAGE_LEN, Message, Refusal};

/// Arena, ring to the builder, ring to the source, the builder's doorbell, the source's doorbell.
const HANDED_OVER: usize = 5;
/// Messages taken from one link before others have their turn.
const FAIR_SHARE: usize = 1024;

const SOCKET: u64 = 0;
const DOORBELL: u64 = 1;

/// Messages in both directions, and the socket that tells when the peer is gone.
#[derive(Debug)]
struct Wires {
    socket: UnixStream,
    sender: RingSender,
    receiver: RingReceiver,
    mine: Doorbell,
    theirs: Doorbell,
    /// Messages for which the ring had no room.
    backlog: VecDeque<Message>,
    unpublished: bool,
}

impl Wires {
    /// `poller` waits on the socket already.
    fn new(
        poller: &Poller,
        socket: UnixStream,
        sender: RingSender,
        receiver: RingReceiver,
        mine: Doorbell,
        theirs: Doorbell,
    ) -> Result<Self, LinkError> {
        poller.add(mine.as_fd(), DOORBELL, Interest::READ)?;
        Ok(Self { socket, sender, receiver, mine, theirs, backlog: VecDeque::new(), unpublished: false })
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

    /// Whether the peer is still there. It says nothing over the socket but, at most, why it leaves.
    fn peer_is_there(&mut self) -> Result<(), LinkError> {
        let mut bytes = [0; MESSAGE_LEN + Message::MAX_REFUSAL_TEXT as usize];
        match self.socket.read(&mut bytes) {
            Ok(n) if n >= MESSAGE_LEN => {
                let (cell, text) = bytes[..n].split_first_chunk::<MESSAGE_LEN>().unwrap_or((&[0; MESSAGE_LEN], &[]));
                match Message::decode(cell)? {
                    Message::Refuse { reason, .. } => {
                        Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() })
                    }
                    other => Err(LinkError::Protocol(format!("unexpected over the socket: {other:?}"))),
                }
            }
            Ok(_) => Err(LinkError::Closed),
            Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(LinkError::Closed),
            Err(error) => Err(LinkError::io("reading the hand-over socket")(error)),
        }
    }
}

fn waiting_on(socket: &UnixStream) -> Result<Poller, LinkError> {
    let poller = Poller::new()?;
    poller.add(socket.as_fd(), SOCKET, Interest::READ)?;
    Ok(poller)
}

/// Connects to a builder on this host and hands the arena over.
pub(crate) fn connect(path: &Path, greeting: &SourceGreeting) -> Result<Box<dyn SourceLink>, LinkError> {
    let doing = || format!("connecting to shm:{}", path.display());
    let socket = UnixStream::connect(path).map_err(LinkError::io(doing()))?;
    // Room for every ticket that can be open, and for the few messages beside them.
    let cells = (4 * greeting.hello.slots + 64).next_power_of_two();
    let ring = |name| Ring::create(name, cells).map_err(|error| LinkError::Protocol(error.to_string()));
    let bell = || Doorbell::new().map_err(|error| LinkError::Protocol(error.to_string()));
    let (to_builder, to_source, builders, mine) = (ring("to-builder")?, ring("to-source")?, bell()?, bell()?);

    let mut bytes = Message::Hello(greeting.hello).encode().to_vec();
    bytes.extend_from_slice(greeting.description.as_bytes());
    let fds = [greeting.arena.fd(), to_builder.fd(), to_source.fd(), builders.as_fd(), mine.as_fd()];
    let sent = send_fds(&socket, &bytes, &fds).map_err(|error| LinkError::Protocol(format!("{}: {error}", doing())))?;
    (&socket).write_all(&bytes[sent..]).map_err(LinkError::io(doing()))?;
    socket.set_nonblocking(true).map_err(LinkError::io(doing()))?;
    let poller = waiting_on(&socket)?;
    let wires = Wires::new(&poller, socket, to_builder.into_sender(), to_source.into_receiver(), mine, builders)?;
    Ok(Box::new(ShmSource { poller, wires, first_ticket: None, book: Outstanding::default() }))
}

#[derive(Debug)]
struct ShmSource {
    poller: Poller,
    wires: Wires,
    first_ticket: Option<u64>,
    /// Offers over this connection: whether they have been granted.
    book: Outstanding<bool>,
}

impl SourceLink for ShmSource {
    fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::READ
    }

    fn offer(&mut self, offer: &Announcement) {
        let first = *self.first_ticket.get_or_insert(offer.ticket);
        // Nothing is faster than reading in place, so nothing is ever sent ahead.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        let numbered = Announcement { ticket: offer.ticket - first, ..offer };
        if numbered.ticket == self.book.next_ticket() {
            self.book.push(numbered, false);
        } else if let Some((known, _)) = self.book.get_mut(numbered.ticket) {
            *known = numbered;
        }
        self.wires.say(&Message::Offer(offer));
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        let number = self.first_ticket.and_then(|first| ticket.checked_sub(first));
        match number.and_then(|number| self.book.get(number)) {
            Some((_, granted)) => !granted,
            None => true,
        }
    }

    fn say(&mut self, message: &Message) {
        self.wires.say(message);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.wires.flush()
    }

    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        let Self { wires, first_ticket, book, .. } = self;
        let mut granted = Vec::new();
        let heard = wires.hear(|message| {
            match message {
                Message::Fetch { ticket, offset, length } => {
                    let number = first_ticket.and_then(|first| ticket.checked_sub(first));
                    // Withdrawn, or released: the builder knows, or will in a moment.
                    if let Some((offer, is_granted)) = number.and_then(|number| book.get_mut(number))
                        && !offer.disposition.is_dropped()
                    {
                        *is_granted = true;
                        granted.push(Message::Data { ticket, offset, length });
                    }
                }
                Message::Release { below } => {
                    if let Some(number) = first_ticket.and_then(|first| below.checked_sub(first)) {
                        book.release(number).for_each(drop);
                    }
                    said.push(message);
                }
                _ => said.push(message),
            }
            Ok(())
        });
        for grant in &granted {
            wires.say(grant);
        }
        heard?;
        self.wires.flush()?;
        self.wires.peer_is_there()
    }

    fn copied(&self) -> u64 {
        0
    }
}

/// Takes over a connection that a source made over the Unix socket.
pub(crate) fn accepted(socket: UnixStream) -> Result<Box<dyn BuilderLink>, LinkError> {
    socket.set_nonblocking(true).map_err(LinkError::io("setting up a connection"))?;
    let poller = waiting_on(&socket)?;
    let greeting = Greeting { socket, bytes: Vec::new(), fds: Vec::new() };
    Ok(Box::new(ShmBuilder { poller, state: State::Greeting(Some(greeting)), copied: 0 }))
}

#[derive(Debug)]
struct ShmBuilder {
    poller: Poller,
    state: State,
    copied: u64,
}

#[derive(Debug)]
enum State {
    /// The hello and the descriptors are on their way; nothing here once they did not make a link.
    Greeting(Option<Greeting>),
    /// Everything is handed over.
    Open(Box<Open>),
}

#[derive(Debug)]
struct Greeting {
    socket: UnixStream,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Open {
    wires: Wires,
    arena: Arc<Arena>,
    withdraws: bool,
    pending: VecDeque<(Announcement, Option<Span>)>,
}

impl Open {
    /// The bytes of an offer: copied into `into`, or as they lie.
    fn bytes(&self, offer: &Announcement, into: Option<Span>, copied: &mut u64) -> Result<Bytes, LinkError> {
        let view = self.view(offer)?;
        Ok(match into {
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

impl ShmBuilder {
    fn greet(&mut self, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let State::Greeting(greeting) = &mut self.state else { return Ok(()) };
        let Some(Greeting { socket, bytes, fds, .. }) = greeting else { return Err(LinkError::Closed) };
        let mut buffer = [0; MESSAGE_LEN + Message::MAX_DESCRIPTION as usize];
        match recv_fds(socket, &mut buffer, HANDED_OVER) {
            Ok((0, _)) => return Err(LinkError::Closed),
            Ok((n, more)) => {
                bytes.extend_from_slice(&buffer[..n]);
                fds.extend(more);
            }
            Err(error) if error.is_would_block() => return Ok(()),
            Err(error) => return Err(LinkError::Protocol(error.to_string())),
        }
        let Some((cell, text)) = bytes.split_first_chunk::<MESSAGE_LEN>() else { return Ok(()) };
        let hello = match Message::decode(cell)? {
            Message::Hello(hello) => hello,
            other => return Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}"))),
        };
        if text.len() < hello.description as usize {
            return Ok(());
        }
        let text = String::from_utf8(text[..hello.description as usize].to_vec())
            .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
        if let Some(greeting) = greeting.take() {
            self.state = State::Open(Box::new(open(&self.poller, greeting, hello)?));
        }
        said.push(Said::Hello(hello, text));
        Ok(())
    }
}

fn open(poller: &Poller, greeting: Greeting, hello: Hello) -> Result<Open, LinkError> {
    let Greeting { socket, fds, .. } = greeting;
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
    let wires = Wires::new(poller, socket, sender, receiver, mine, theirs)?;
    Ok(Open { wires, arena, withdraws: hello.withdraws, pending: VecDeque::new() })
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
        if open.withdraws {
            open.wires.say(&Message::Fetch { ticket: offer.ticket, offset: 0, length: offer.bytes });
            open.pending.push_back((*offer, into));
            return Ok(None);
        }
        open.bytes(offer, into, &mut self.copied).map(Some)
    }

    fn cancel(&mut self, ticket: u64) -> Option<Span> {
        let State::Open(open) = &mut self.state else { return None };
        let at = open.pending.iter().position(|(offer, _)| offer.ticket == ticket)?;
        open.pending.remove(at)?.1
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
        let socket = match &mut self.state {
            State::Greeting(Some(greeting)) => &mut greeting.socket,
            State::Greeting(None) => return,
            State::Open(open) => &mut open.wires.socket,
        };
        // The peer may be gone, or may not listen: it was worth trying.
        let _ = socket.write_all(&bytes);
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        match &mut self.state {
            State::Greeting(_) => Ok(()),
            State::Open(open) => open.wires.flush(),
        }
    }

    fn ready(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError> {
        self.greet(said)?;
        let State::Open(open) = &mut self.state else { return Ok(false) };
        let copied = &mut self.copied;
        let Open { wires, .. } = &mut **open;
        let mut grants = Vec::new();
        let more = wires.hear(|message| {
            match message {
                Message::Offer(_) | Message::Paused { .. } | Message::End(_) => said.push(Said::Message(message)),
                Message::Data { ticket, .. } => grants.push(ticket),
                _ => return Err(LinkError::Protocol(format!("the source sent a builder's message: {message:?}"))),
            }
            Ok(())
        })?;
        for ticket in grants {
            // A grant that crossed with a cancellation finds nothing.
            if let Some(at) = open.pending.iter().position(|(offer, _)| offer.ticket == ticket)
                && let Some((offer, into)) = open.pending.remove(at)
            {
                let bytes = open.bytes(&offer, into, copied)?;
                said.push(Said::Arrived { ticket, bytes });
            }
        }
        open.wires.flush()?;
        // What the source said before it left has been heard.
        if !more {
            open.wires.peer_is_there()?;
        }
        Ok(more)
    }

    fn abandon(&mut self) -> Vec<(u64, Span)> {
        let State::Open(open) = &mut self.state else { return Vec::new() };
        open.pending.drain(..).filter_map(|(offer, place)| Some((offer.ticket, place?))).collect()
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}
