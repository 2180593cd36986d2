//! The three verbs over TCP.
//!
//! The payload leaves the source by `sendfile` from the arena's memfd: the pages themselves go into the socket, so the
//! source's processor never touches them, and since a slot is reused only after its release, they do not change while
//! the kernel may still have to retransmit them. The builder receives straight into the place in the block. One
//! `recvmsg` takes the rest of a payload and the messages behind it, so that a large fragment costs few system calls.

use crate::copy::copy_counted;
use crate::{BuilderLink, Bytes, Eager, Interest, LinkError, Outstanding, Said, SourceGreeting, SourceLink};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Span};
use thalweg_wire::{Announcement, Disposition, MESSAGE_LEN, Message, Refusal};

/// How a TCP link is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpOptions {
    /// Congestion control of the sending side (`/proc/sys/net/ipv4/tcp_available_congestion_control`); the system's when
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
}

/// A peer that does not answer for so long is gone (`TCP_USER_TIMEOUT`, RFC 5482, and keep-alive).
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes received from one link before others have their turn.
const FAIR_SHARE: usize = 4 << 20;
/// Room for messages behind a payload.
const STASH: usize = 2048;

/// Begins to connect; the greeting goes out as soon as the connection stands.
pub(crate) fn connect(
    host: &str,
    options: &TcpOptions,
    greeting: &SourceGreeting,
) -> Result<Box<dyn SourceLink>, LinkError> {
    let address = resolve(host)?;
    let doing = || format!("connecting to tcp:{host}");
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)
        .map_err(LinkError::io(doing()))?;
    settle(&socket).map_err(LinkError::io(doing()))?;
    if let Some(name) = &options.congestion {
        socket
            .set_tcp_congestion(name.as_bytes())
            .map_err(LinkError::io(format!("selecting congestion control '{name}'")))?;
    }
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(LinkError::io(doing())(error)),
    }
    let mut link = TcpSource {
        socket,
        peer: host.to_owned(),
        arena: Arc::clone(&greeting.arena),
        book: Outstanding::default(),
        first_ticket: None,
        out: VecDeque::new(),
        inbox: Vec::with_capacity(4096),
        connected: false,
        copies: false,
        copied: 0,
    };
    link.say(&Message::Hello(greeting.hello));
    link.queue(greeting.description.as_bytes());
    Ok(Box::new(link))
}

/// The first address a host and port resolve to.
pub(crate) fn resolve(host: &str) -> Result<SocketAddr, LinkError> {
    let mut addresses = host.to_socket_addrs().map_err(LinkError::io(format!("resolving '{host}'")))?;
    addresses.next().ok_or_else(|| LinkError::Protocol(format!("'{host}' has no address")))
}

fn settle(socket: &Socket) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_keepalive(true)?;
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(USER_TIMEOUT / 2).with_interval(USER_TIMEOUT / 5).with_retries(3),
    )
}

#[derive(Debug)]
struct TcpSource {
    socket: Socket,
    peer: String,
    arena: Arc<Arena>,
    /// What was offered over this connection: whether it has been asked for.
    book: Outstanding<bool>,
    /// Ticket of the first offer over this connection: the book counts from there.
    first_ticket: Option<u64>,
    out: VecDeque<Out>,
    inbox: Vec<u8>,
    connected: bool,
    copies: bool,
    copied: u64,
}

#[derive(Debug)]
enum Out {
    Bytes { bytes: Vec<u8>, sent: usize },
    Slot { offset: u64, left: usize },
}

impl TcpSource {
    fn queue(&mut self, more: &[u8]) {
        match self.out.back_mut() {
            Some(Out::Bytes { bytes, .. }) => bytes.extend_from_slice(more),
            _ => self.out.push_back(Out::Bytes { bytes: more.to_vec(), sent: 0 }),
        }
    }

    fn number(&self, ticket: u64) -> Option<u64> {
        ticket.checked_sub(self.first_ticket?)
    }

    fn queue_slot(&mut self, ticket: u64, arena_offset: u64, offset: u32, length: u32) {
        self.say(&Message::Data { ticket, offset, length });
        self.out.push_back(Out::Slot { offset: arena_offset + u64::from(offset), left: length as usize });
    }

    fn serve(&mut self, ticket: u64, offset: u32, length: u32) -> Result<(), LinkError> {
        let Some((offer, asked)) = self.number(ticket).and_then(|number| self.book.get_mut(number)) else {
            // Released, or withdrawn and announced as such: the builder knows, or will in a moment.
            return Ok(());
        };
        if offer.disposition.is_dropped() {
            return Ok(());
        }
        if offset.checked_add(length).is_none_or(|end| end > offer.bytes) {
            return Err(LinkError::Protocol(format!(
                "the builder asked for bytes {offset}+{length} of ticket {ticket}, which has {}",
                offer.bytes
            )));
        }
        *asked = true;
        let arena_offset = offer.arena_offset;
        self.queue_slot(ticket, arena_offset, offset, length);
        Ok(())
    }

    fn hear(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        let mut at = 0;
        while let Some(cell) = self.inbox[at..].first_chunk::<MESSAGE_LEN>() {
            let message = Message::decode(cell)?;
            if let Message::Refuse { reason, text } = message {
                let text = self.inbox[at + MESSAGE_LEN..].get(..text as usize);
                let Some(text) = text else { break };
                return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() });
            }
            at += MESSAGE_LEN;
            match message {
                Message::Fetch { ticket, offset, length } => self.serve(ticket, offset, length)?,
                Message::Release { below } => {
                    if let Some(number) = self.number(below) {
                        self.book.release(number).for_each(drop);
                    }
                    said.push(message);
                }
                Message::Hello(_)
                | Message::Data { .. }
                | Message::Offer(_)
                | Message::Paused { .. }
                | Message::End(_) => {
                    return Err(LinkError::Protocol(format!("the builder sent a source's message: {message:?}")));
                }
                _ => said.push(message),
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }
}

impl SourceLink for TcpSource {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest { read: true, write: !self.out.is_empty() }
    }

    fn offer(&mut self, offer: &Announcement) {
        let first = *self.first_ticket.get_or_insert(offer.ticket);
        let numbered = Announcement { ticket: offer.ticket - first, ..*offer };
        if numbered.ticket == self.book.next_ticket() {
            self.book.push(numbered, offer.disposition == Disposition::Eager);
        } else if let Some((known, _)) = self.book.get_mut(numbered.ticket) {
            *known = numbered;
        }
        self.say(&Message::Offer(*offer));
        if offer.disposition == Disposition::Eager {
            self.queue_slot(offer.ticket, offer.arena_offset, 0, offer.bytes);
        }
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        let number = self.number(ticket);
        match number.and_then(|number| self.book.get_mut(number)) {
            Some((_, asked)) => !*asked,
            None => true,
        }
    }

    fn say(&mut self, message: &Message) {
        self.queue(&message.encode());
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if !self.connected {
            if let Some(error) = self.socket.take_error().map_err(LinkError::io("connecting"))? {
                return Err(LinkError::io(format!("connecting to tcp:{}", self.peer))(error));
            }
            if self.socket.peer_addr().is_err() {
                return Ok(());
            }
            self.connected = true;
        }
        loop {
            let more = if self.out.len() > 1 { SendFlags::MORE } else { SendFlags::empty() };
            let Some(front) = self.out.front_mut() else { break };
            let sent = match front {
                Out::Bytes { bytes, sent } => {
                    let rest = &bytes[*sent..];
                    rustix::net::send(&self.socket, rest, more | SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|n| {
                        *sent += n;
                        *sent == bytes.len()
                    })
                }
                Out::Slot { offset, left } if self.copies => {
                    // The last rung: this file system's pages cannot be sent as they are.
                    let view = self.arena.view(*offset, *left);
                    let bytes: &[u8] = view.as_deref().unwrap_or_default();
                    match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                        Ok(n) => {
                            self.copied += n as u64;
                            *offset += n as u64;
                            *left -= n;
                            Ok(*left == 0)
                        }
                        Err(error) => Err(error),
                    }
                }
                Out::Slot { offset, left } => {
                    let mut at = *offset;
                    match rustix::fs::sendfile(&self.socket, self.arena.fd(), Some(&mut at), *left) {
                        Ok(n) => {
                            *offset += n as u64;
                            *left -= n;
                            Ok(*left == 0)
                        }
                        Err(Errno::INVAL | Errno::NOSYS) => {
                            tracing::warn!("sendfile is not possible from this arena: payloads are copied by send()");
                            self.copies = true;
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            match sent {
                Ok(true) => drop(self.out.pop_front()),
                Ok(false) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io(format!("sending to tcp:{}", self.peer))(error)),
            }
        }
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        self.flush()?;
        if !self.connected {
            return Ok(());
        }
        loop {
            match rustix::net::recv(&self.socket, rustix::buffer::spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT)
            {
                Ok((_, 0)) => return Err(LinkError::Closed),
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET | Errno::TIMEDOUT) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io(format!("receiving from tcp:{}", self.peer))(error)),
            }
            let full = self.inbox.len() == self.inbox.capacity();
            self.hear(said)?;
            if !full {
                break;
            }
        }
        self.flush()
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}

/// Takes over a connection that a source made.
pub(crate) fn accepted(socket: Socket, eager: Eager) -> Result<Box<dyn BuilderLink>, LinkError> {
    settle(&socket).and_then(|()| socket.set_nonblocking(true)).map_err(LinkError::io("setting up a connection"))?;
    Ok(Box::new(TcpBuilder {
        socket,
        eager,
        pending: VecDeque::new(),
        expected: HashMap::new(),
        landed: HashMap::new(),
        unasked: 0,
        phase: Phase::Message,
        stash: Vec::with_capacity(STASH),
        out: Vec::new(),
        copied: 0,
    }))
}

#[derive(Debug)]
struct TcpBuilder {
    socket: Socket,
    eager: Eager,
    /// Fetches that were made, in order.
    pending: VecDeque<(u64, Span)>,
    /// Eager offers whose bytes are on the way: ticket and length.
    expected: HashMap<u64, u32>,
    /// Eager bytes that came before there was a place for them.
    landed: HashMap<u64, Vec<u8>>,
    /// Bytes of both.
    unasked: u32,
    phase: Phase,
    stash: Vec<u8>,
    out: Vec<u8>,
    copied: u64,
}

/// What the next bytes of the stream are.
#[derive(Debug)]
enum Phase {
    Message,
    Hello { message: Message, text: Vec<u8> },
    Payload { ticket: u64, place: Place, at: usize },
}

#[derive(Debug)]
enum Place {
    Span(Span),
    Landing(Vec<u8>),
}

impl Place {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Span(span) => span,
            Self::Landing(bytes) => bytes,
        }
    }
}

impl TcpBuilder {
    /// Works through what is in the stash.
    fn parse(&mut self, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let mut stash = std::mem::take(&mut self.stash);
        let mut at = 0;
        while at < stash.len() {
            let rest = &stash[at..];
            match &mut self.phase {
                Phase::Message => {
                    let Some(cell) = rest.first_chunk::<MESSAGE_LEN>() else { break };
                    at += MESSAGE_LEN;
                    let message = Message::decode(cell)?;
                    self.hear(message, said)?;
                }
                Phase::Hello { message, text } => {
                    let take = rest.len().min(message.body_len() - text.len());
                    text.extend_from_slice(&rest[..take]);
                    at += take;
                }
                Phase::Payload { place, at: filled, .. } => {
                    let place = &mut place.bytes()[*filled..];
                    let take = rest.len().min(place.len());
                    self.copied += copy_counted(&mut place[..take], &rest[..take]);
                    *filled += take;
                    at += take;
                }
            }
            self.finish_phase(said)?;
        }
        stash.drain(..at);
        self.stash = stash;
        Ok(())
    }

    fn hear(&mut self, message: Message, said: &mut Vec<Said>) -> Result<(), LinkError> {
        match message {
            Message::Hello(_) => self.phase = Phase::Hello { message, text: Vec::new() },
            Message::Offer(offer) => {
                if offer.disposition == Disposition::Eager {
                    self.unasked = self.unasked.saturating_add(offer.bytes);
                    if offer.bytes > self.eager.limit || self.unasked > self.eager.credit {
                        return Err(LinkError::Protocol(format!(
                            "{} bytes sent unasked, {} in all; the limits are {} and {}",
                            offer.bytes, self.unasked, self.eager.limit, self.eager.credit
                        )));
                    }
                    self.expected.insert(offer.ticket, offer.bytes);
                } else if offer.disposition.is_dropped()
                    && let Some(at) = self.pending.iter().position(|(ticket, _)| *ticket == offer.ticket)
                {
                    // The node will call the fetch off; until then nothing may arrive in its place.
                    tracing::debug!(ticket = offer.ticket, at, "offer withdrawn while a fetch was under way");
                }
                said.push(Said::Message(message));
            }
            Message::Data { ticket, offset, length } => {
                let unasked = self.expected.get(&ticket).copied();
                let asked = self.pending.iter().position(|(pending, _)| *pending == ticket);
                let place = match (asked, unasked) {
                    (Some(at), _) => {
                        let (_, span) = self.pending.remove(at).unwrap_or_else(|| unreachable!("position was found"));
                        Place::Span(span)
                    }
                    (None, Some(bytes)) => Place::Landing(vec![0; bytes as usize]),
                    (None, None) => {
                        return Err(LinkError::Protocol(format!(
                            "data of ticket {ticket} was sent without being asked for"
                        )));
                    }
                };
                self.phase = Phase::Payload { ticket, place, at: 0 };
                if let Phase::Payload { place, .. } = &mut self.phase
                    && (offset != 0 || length as usize != place.bytes().len())
                {
                    return Err(LinkError::Protocol(format!(
                        "bytes {offset}+{length} of ticket {ticket} were sent, {} were asked for",
                        place.bytes().len()
                    )));
                }
            }
            Message::Paused { .. } | Message::End(_) => said.push(Said::Message(message)),
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: "the source ended the conversation".into() });
            }
            _ => return Err(LinkError::Protocol(format!("the source sent a builder's message: {message:?}"))),
        }
        Ok(())
    }

    /// Reports what is complete and turns to the next message.
    fn finish_phase(&mut self, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let complete = match &mut self.phase {
            Phase::Message => false,
            Phase::Hello { message, text } => text.len() == message.body_len(),
            Phase::Payload { place, at, .. } => *at == place.bytes().len(),
        };
        if !complete {
            return Ok(());
        }
        match std::mem::replace(&mut self.phase, Phase::Message) {
            Phase::Hello { message: Message::Hello(hello), text } => {
                let text = String::from_utf8(text)
                    .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
                said.push(Said::Hello(hello, text));
            }
            Phase::Payload { ticket, place: Place::Span(place), .. } => {
                said.push(Said::Arrived { ticket, bytes: Bytes::Place(place) });
            }
            Phase::Payload { ticket, place: Place::Landing(bytes), .. } => {
                self.landed.insert(ticket, bytes);
            }
            Phase::Message | Phase::Hello { .. } => {}
        }
        Ok(())
    }
}

impl BuilderLink for TcpBuilder {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest { read: true, write: !self.out.is_empty() }
    }

    fn maps(&self) -> bool {
        false
    }

    fn fetch(&mut self, offer: &Announcement, into: Option<Span>) -> Result<Option<Bytes>, LinkError> {
        let mut into = into.unwrap_or_else(|| unreachable!("a TCP link maps nothing: a fetch needs a place"));
        if let Some(bytes) = self.landed.remove(&offer.ticket) {
            self.copied += copy_counted(&mut into, &bytes);
            return Ok(Some(Bytes::Place(into)));
        }
        let arriving = match &mut self.phase {
            Phase::Payload { ticket, place: place @ Place::Landing(_), at } if *ticket == offer.ticket => {
                // Half of it is here: the rest goes straight to its place.
                self.copied += copy_counted(&mut into[..*at], &place.bytes()[..*at]);
                Some(place)
            }
            _ => None,
        };
        if let Some(place) = arriving {
            *place = Place::Span(into);
            return Ok(None);
        }
        if !self.expected.contains_key(&offer.ticket) {
            let length = offer.bytes;
            self.say(&Message::Fetch { ticket: offer.ticket, offset: 0, length });
        }
        self.pending.push_back((offer.ticket, into));
        Ok(None)
    }

    fn cancel(&mut self, ticket: u64) -> Option<Span> {
        let at = self.pending.iter().position(|(pending, _)| *pending == ticket)?;
        self.pending.remove(at).map(|(_, span)| span)
    }

    fn release(&mut self, below: u64) {
        let Self { expected, landed, unasked, .. } = self;
        expected.retain(|ticket, bytes| {
            let keep = *ticket >= below;
            if !keep {
                *unasked -= *bytes;
                landed.remove(ticket);
            }
            keep
        });
        self.say(&Message::Release { below });
    }

    fn say(&mut self, message: &Message) {
        self.out.extend_from_slice(&message.encode());
    }

    fn refuse(&mut self, reason: Refusal, text: &str) {
        let text: String = text.chars().take(250).collect();
        #[expect(clippy::cast_possible_truncation, reason = "at most 250 characters of at most 4 bytes")]
        self.say(&Message::Refuse { reason, text: text.len() as u32 });
        self.out.extend_from_slice(text.as_bytes());
        // The peer may be gone, or may not listen: it was worth trying.
        let _ = self.flush();
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        while !self.out.is_empty() {
            match rustix::net::send(&self.socket, &self.out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io("sending to a source")(error)),
            }
        }
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError> {
        self.flush()?;
        let mut share = FAIR_SHARE;
        loop {
            let mut behind = [0; STASH];
            let (received, wanted, direct) = match &mut self.phase {
                Phase::Payload { place, at, .. } => {
                    let place = &mut place.bytes()[*at..];
                    let direct = place.len();
                    let room = STASH - self.stash.len();
                    let mut parts = [IoSliceMut::new(place), IoSliceMut::new(&mut behind[..room])];
                    (rustix::io::readv(&self.socket, &mut parts), direct + room, direct)
                }
                _ => {
                    let room = STASH - self.stash.len();
                    (rustix::io::read(&self.socket, &mut behind[..room]), room, 0)
                }
            };
            let received = match received {
                Ok(0) => return Err(LinkError::Closed),
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET | Errno::TIMEDOUT) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io("receiving from a source")(error)),
            };
            let placed = received.min(direct);
            if let Phase::Payload { at, .. } = &mut self.phase {
                *at += placed;
                self.copied += placed as u64;
            }
            self.stash.extend_from_slice(&behind[..received - placed]);
            self.finish_phase(said)?;
            self.parse(said)?;
            if received < wanted {
                // Everything that was there: asking again would only be told so.
                return Ok(false);
            }
            share = share.saturating_sub(received);
            if share == 0 {
                return Ok(true);
            }
        }
    }

    fn abandon(&mut self) -> Vec<(u64, Span)> {
        let mut places: Vec<(u64, Span)> = self.pending.drain(..).collect();
        if let Phase::Payload { ticket, place: Place::Span(span), .. } =
            std::mem::replace(&mut self.phase, Phase::Message)
        {
            places.push((ticket, span));
        }
        places
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}
