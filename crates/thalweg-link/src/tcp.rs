//! The three verbs over TCP.
//!
//! The payload leaves the source by `sendfile` from the arena's memfd: the pages themselves go into the socket, so the
//! source's processor never touches them, and since a slot is reused only after its release, they do not change while
//! the kernel may still have to retransmit them. The builder receives straight into the place in the block. One
//! `readv` takes the rest of a payload and the messages behind it, so that a large fragment costs few system calls.

use crate::buffer::Buffer;
use crate::copy::copy_counted;
use crate::error::{MOST_UNHEARD, check_unheard, refusal};
use crate::offered::{Asked, Novelty, Offered};
use crate::rules::{check_hello, check_offer, check_order};
use crate::tcp_info::sent_again;
use crate::{BuilderLink, Bytes, Eager, Interest, LinkError, Said, SourceGreeting, SourceLink};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::{Arena, Span};
use thalweg_wire::{Announcement, Capabilities, Disposition, Losses, MESSAGE_LEN, Message, Refusal};

/// Congestion control of the sending side where nothing else is asked for (RFC 9438). The builder's window bounds what is
/// in flight already, so a control that paces, as bbr does, spends timers on a burst that cannot happen (`make bench`
/// compares).
const DEFAULT_CONGESTION: &str = "cubic";
/// A peer that does not answer for so long is gone (`TCP_USER_TIMEOUT`, RFC 5482, and keep-alive).
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes received from one link before others have their turn.
const FAIR_SHARE: usize = 4 << 20;
/// Room for messages behind a payload.
const STASH: usize = 512;
/// Room for messages from a builder: more than the longest, a refusal with its text.
const INBOX: usize = 4096;
/// Times the inbox is emptied before others have their turn.
const INBOXES: usize = 16;
/// Bytes after which a source looks for losses. It says what it finds, so that the builder asks for less at a time.
const LOOK_FOR_LOSSES: u64 = 64 << 10;
/// Bytes sent at a time where they have to be copied.
const COPIED_AT_ONCE: usize = 64 << 10;
/// The congestion control whose window is what is in the socket: all that may be asked for has to fit.
pub(crate) const FOLLOWS_CREDIT: &str = "thalweg";

/// Begins to connect; the greeting goes out as soon as the connection stands.
pub(crate) fn connect(
    host: &str,
    congestion: Option<&str>,
    greeting: &SourceGreeting,
) -> Result<Box<dyn SourceLink>, LinkError> {
    let address = resolve(host).map_err(LinkError::unusable(format!("resolving '{host}'")))?;
    let doing = || format!("connecting to tcp:{host}");
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)
        .map_err(LinkError::io(doing()))?;
    settle(&socket).map_err(LinkError::io(doing()))?;
    match congestion {
        Some("system") => {}
        Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(LinkError::unusable(format!(
            "selecting congestion control '{name}' (there are: {})",
            congestion_controls()
        )))?,
        None => {
            if let Err(error) = socket.set_tcp_congestion(DEFAULT_CONGESTION.as_bytes()) {
                tracing::warn!(
                    "congestion control {DEFAULT_CONGESTION} is not to be had ({error}): the system's is used"
                );
            }
        }
    }
    let slots = u64::from(greeting.hello.slots) * u64::from(greeting.hello.slot_bytes);
    if congestion == Some(FOLLOWS_CREDIT) && !Buffer::Send.hold(&socket, slots) {
        tracing::warn!("send buffers grow only as they are used: net.core.wmem_max is less than all slots together");
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
        offered: Offered::new(greeting.hello.slots, greeting.hello.slot_bytes),
        out: VecDeque::new(),
        unheard: 0,
        inbox: Vec::with_capacity(INBOX),
        connected: false,
        gone: false,
        copying: None,
        copied: 0,
        losses: Losses::default(),
        looked: 0,
    };
    link.say(&Message::Hello(greeting.hello));
    link.queue(greeting.description.as_bytes());
    Ok(Box::new(link))
}

/// What the kernel offers, for people who asked for something else.
fn congestion_controls() -> String {
    let list = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    list.map_or_else(|_| "unknown".to_owned(), |list| list.trim().replace(' ', ", "))
}

/// The first address a host and port resolve to.
pub(crate) fn resolve(host: &str) -> io::Result<SocketAddr> {
    host.to_socket_addrs()?.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

/// Has the kernel send what it was given. As long as anything of this socket waits in a network device, and be it an
/// acknowledgement, Linux keeps a small packet back to make it longer ("autocorking", tcp_should_autocork() in
/// net/ipv4/tcp.c): fetches would wait for the answers to other fetches. Setting this option sends what waits, also where it
/// was set before (tcp(7)).
fn send_now(socket: &Socket) -> Result<(), LinkError> {
    match socket.set_tcp_nodelay(true) {
        Err(error) if is_gone(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)) => Ok(()),
        set => set.map_err(LinkError::io("sending to a source")),
    }
}

fn settle(socket: &Socket) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_keepalive(true)?;
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(USER_TIMEOUT / 2).with_interval(USER_TIMEOUT / 5).with_retries(3),
    )
}

/// Whether an error of a socket says that nobody is at the other end any more.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT)
}

#[derive(Debug)]
struct TcpSource {
    socket: Socket,
    peer: String,
    arena: Arc<Arena>,
    offered: Offered,
    out: VecDeque<Out>,
    /// Bytes of messages in `out`.
    unheard: usize,
    inbox: Vec<u8>,
    connected: bool,
    /// Sending found nobody. What the peer said before it left can still be heard: it may say why.
    gone: bool,
    /// Room for a copy, where the kernel does not send the arena's pages as they are.
    copying: Option<Vec<u8>>,
    copied: u64,
    /// What is known of losses, and what had been sent when they were last looked for.
    losses: Losses,
    looked: u64,
}

#[derive(Debug)]
enum Out {
    Bytes { bytes: Vec<u8>, sent: usize },
    Slot { offset: u64, left: usize },
}

impl TcpSource {
    fn queue(&mut self, more: &[u8]) {
        self.unheard += more.len();
        match self.out.back_mut() {
            Some(Out::Bytes { bytes, .. }) => bytes.extend_from_slice(more),
            _ => self.out.push_back(Out::Bytes { bytes: more.to_vec(), sent: 0 }),
        }
    }

    fn queue_slot(&mut self, offer: &Announcement, asked: Asked) {
        let Asked { ticket, offset, length } = asked;
        self.say(&Message::Data { ticket, offset, length });
        self.out.push_back(Out::Slot { offset: offer.arena_offset + u64::from(offset), left: length as usize });
    }

    fn serve(&mut self, asked: Asked) -> Result<(), LinkError> {
        if let Some((offer, _)) = self.offered.ask(asked)? {
            self.queue_slot(&offer, asked);
            // Each answer is a message and a slot.
            self.offered.check_queue(self.out.len() / 2)?;
        }
        Ok(())
    }

    /// Works through the inbox.
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
                Message::Fetch { ticket, offset, length } => self.serve(Asked { ticket, offset, length })?,
                Message::Release { below } => {
                    self.offered.release(below);
                    said.push(message);
                }
                Message::Hello(_)
                | Message::Data { .. }
                | Message::Offer(_)
                | Message::Paused { .. }
                | Message::End(_)
                | Message::Losses(_)
                | Message::Told { .. } => {
                    return Err(LinkError::Protocol(format!("the builder sent a source's message: {message:?}")));
                }
                Message::Ignored { .. } => {}
                _ => said.push(message),
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }

    /// Sends what the socket takes of the piece in front. True when all of it went.
    fn send_front(&mut self) -> Result<bool, Errno> {
        let more = if self.out.len() > 1 { SendFlags::MORE } else { SendFlags::empty() };
        let flags = more | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match self.out.front_mut() {
            None => Ok(true),
            Some(Out::Bytes { bytes, sent }) => {
                let n = rustix::net::send(&self.socket, &bytes[*sent..], flags)?;
                *sent += n;
                self.unheard -= n;
                self.losses.sent += n as u64;
                Ok(*sent == bytes.len())
            }
            Some(Out::Slot { offset, left }) => {
                let n = if let Some(copy) = &mut self.copying {
                    // The last rung. The arena is ours, and ours to read only slot by slot: so read it as a file.
                    copy.resize((*left).min(COPIED_AT_ONCE), 0);
                    let read = rustix::io::pread(self.arena.fd(), &mut copy[..], *offset)?;
                    let n = rustix::net::send(&self.socket, &copy[..read], flags)?;
                    self.copied += 2 * n as u64;
                    n
                } else {
                    let mut at = *offset;
                    match rustix::fs::sendfile(&self.socket, self.arena.fd(), Some(&mut at), *left) {
                        Err(Errno::INVAL | Errno::NOSYS) => {
                            tracing::warn!("sendfile is not possible from this arena: payloads are copied by send()");
                            self.copying = Some(Vec::new());
                            return Ok(false);
                        }
                        sent => sent?,
                    }
                };
                if n == 0 {
                    // The arena ends before what was offered of it.
                    return Err(Errno::FAULT);
                }
                *offset += n as u64;
                *left -= n;
                self.losses.sent += n as u64;
                Ok(*left == 0)
            }
        }
    }
}

impl TcpSource {
    /// Says what was lost, if that is anything new.
    fn look_for_losses(&mut self) {
        self.looked = self.losses.sent;
        let Some(again) = sent_again(&self.socket) else { return };
        if again != self.losses.again {
            self.losses.again = again;
            self.say(&Message::Losses(self.losses));
        }
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
        let novelty = self.offered.offer(offer);
        if novelty != Novelty::Released {
            self.say(&Message::Offer(*offer));
        }
        if novelty == Novelty::New && offer.disposition == Disposition::Eager {
            self.queue_slot(offer, Asked { ticket: offer.ticket, offset: 0, length: offer.bytes });
        }
    }

    fn withdraw(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
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
        for asked in self.offered.early() {
            self.serve(asked)?;
        }
        while !self.gone && !self.out.is_empty() {
            match self.send_front() {
                Ok(true) => {
                    self.out.pop_front();
                    if self.losses.sent - self.looked >= LOOK_FOR_LOSSES {
                        self.look_for_losses();
                    }
                }
                Ok(false) => {}
                Err(Errno::AGAIN) => return self.offered.check_unheard(self.unheard),
                Err(Errno::INTR) => {}
                Err(error) if is_gone(error) => self.gone = true,
                Err(error) => return Err(LinkError::io(format!("sending to tcp:{}", self.peer))(error)),
            }
        }
        // Only left behind by a peer that is gone.
        self.out.clear();
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Message>) -> Result<(), LinkError> {
        self.flush()?;
        if !self.connected {
            return Ok(());
        }
        for _ in 0..INBOXES {
            match rustix::net::recv(&self.socket, rustix::buffer::spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT)
            {
                Ok((_, 0)) => return Err(LinkError::Closed),
                Ok(_) => {}
                Err(Errno::AGAIN) if self.gone => return Err(LinkError::Closed),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(error) if is_gone(error) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io(format!("receiving from tcp:{}", self.peer))(error)),
            }
            let full = self.inbox.len() == self.inbox.capacity();
            self.hear(said)?;
            if !full {
                break;
            }
        }
        // Not flushed: what the caller has to say next rides in the last packet of the answers.
        Ok(())
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
        greeted: false,
        withdraws: false,
        pending: VecDeque::new(),
        asked: VecDeque::new(),
        ahead: BTreeMap::new(),
        unasked: 0,
        following: None,
        phase: Phase::Message,
        stash: Stash::default(),
        unsaid: Vec::new(),
        out: Vec::new(),
        gone: false,
        copied: 0,
        received: 0,
        losses: Losses::default(),
    }))
}

#[derive(Debug)]
struct TcpBuilder {
    socket: Socket,
    eager: Eager,
    greeted: bool,
    withdraws: bool,
    /// Fetches that were made and not answered in full.
    pending: VecDeque<Pending>,
    /// Tickets of which more is asked for than was said.
    unsaid: Vec<u64>,
    /// What was said and not answered: data come in this order.
    asked: VecDeque<Asked>,
    /// Eager offers that are not released, by ticket.
    ahead: BTreeMap<u64, Ahead>,
    /// Bytes of these.
    unasked: u64,
    /// An eager offer was the last thing heard: ticket and length of the bytes that must follow.
    following: Option<(u64, u32)>,
    phase: Phase,
    stash: Stash,
    out: Vec<u8>,
    /// Sending found nobody. What the source said before it left is still to be heard.
    gone: bool,
    copied: u64,
    received: u64,
    losses: Losses,
}

#[derive(Debug)]
struct Pending {
    ticket: u64,
    place: Span,
    /// Bytes of it that have come, that were asked for, and that the source was told of.
    at: usize,
    upto: u32,
    said: u32,
    /// Its bytes come unasked.
    eager: bool,
}

#[derive(Debug)]
struct Ahead {
    length: u32,
    /// Bytes that came before there was a place for them.
    landed: Option<Vec<u8>>,
}

/// What the next bytes of the stream are.
#[derive(Debug)]
enum Phase {
    Message,
    Hello {
        message: Message,
        text: Vec<u8>,
    },
    /// Bytes of an offer, of which the last that come now end at `end`. While some are missing the stash is empty.
    Payload {
        place: Place,
        end: usize,
    },
}

#[derive(Debug)]
enum Place {
    /// One that was set aside.
    Set(Pending),
    /// Of an eager offer that there was no place for yet: its ticket, its bytes, and how many have come.
    Landing(u64, Vec<u8>, usize),
}

impl Place {
    /// Where the next bytes go, up to `end`.
    fn rest(&mut self, end: usize) -> &mut [u8] {
        match self {
            Self::Set(Pending { place, at, .. }) => &mut place[*at..end],
            Self::Landing(_, bytes, at) => &mut bytes[*at..end],
        }
    }

    /// So many have come.
    fn came(&mut self, bytes: usize) {
        match self {
            Self::Set(Pending { at, .. }) | Self::Landing(_, _, at) => *at += bytes,
        }
    }

    fn at(&self) -> usize {
        match self {
            Self::Set(Pending { at, .. }) | Self::Landing(_, _, at) => *at,
        }
    }

    /// The ticket, where there was no place for it yet.
    fn lands(&self) -> Option<u64> {
        match self {
            Self::Set(_) => None,
            Self::Landing(ticket, ..) => Some(*ticket),
        }
    }

    /// Whether its bytes were asked for.
    fn was_asked(&self) -> bool {
        matches!(self, Self::Set(Pending { eager: false, .. }))
    }
}

impl Pending {
    fn new(offer: &Announcement, place: Span, upto: u32) -> Self {
        let eager = offer.disposition == Disposition::Eager;
        Self { ticket: offer.ticket, place, at: 0, upto, said: 0, eager }
    }
}

/// Bytes that were received and not looked at: `bytes[from..to]`.
#[derive(Debug)]
struct Stash {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Default for Stash {
    fn default() -> Self {
        Self { bytes: vec![0; STASH], from: 0, to: 0 }
    }
}

impl Stash {
    /// Where more can be received. What is left from before, part of a message, moves to the front.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        &mut self.bytes[self.to..]
    }

    fn message(&mut self) -> Option<[u8; MESSAGE_LEN]> {
        let cell = *self.bytes[self.from..self.to].first_chunk()?;
        self.from += MESSAGE_LEN;
        Some(cell)
    }

    /// At most `most` bytes.
    fn take(&mut self, most: usize) -> &[u8] {
        let from = self.from;
        self.from = self.to.min(from + most);
        &self.bytes[from..self.from]
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }
}

impl TcpBuilder {
    /// Works through what is in the stash. Stops behind an eager offer, true then: the caller now has the chance to fetch
    /// it, so that its bytes need not land elsewhere first.
    fn parse(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError> {
        while !self.stash.is_empty() {
            match &mut self.phase {
                Phase::Message => {
                    let Some(cell) = self.stash.message() else { break };
                    self.hear(Message::decode(&cell)?, said)?;
                    if self.following.is_some() {
                        return Ok(true);
                    }
                }
                Phase::Hello { message, text } => {
                    text.extend_from_slice(self.stash.take(message.body_len() - text.len()));
                }
                Phase::Payload { place, end } => {
                    let asked = place.was_asked();
                    let rest = place.rest(*end);
                    let bytes = self.stash.take(rest.len());
                    self.copied += copy_counted(&mut rest[..bytes.len()], bytes);
                    self.received += if asked { bytes.len() as u64 } else { 0 };
                    place.came(bytes.len());
                }
            }
            self.finish_phase(said)?;
        }
        Ok(false)
    }

    fn hear(&mut self, message: Message, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let protocol = |text: String| Err(LinkError::Protocol(text));
        if let Some((ticket, _)) = self.following
            && !matches!(message, Message::Data { .. })
        {
            return protocol(format!("the bytes of ticket {ticket} must follow its eager offer, not {message:?}"));
        }
        match message {
            Message::Hello(hello) if !self.greeted => {
                check_hello(&hello)?;
                self.greeted = true;
                self.withdraws = hello.capabilities.contains(Capabilities::WITHDRAWS);
                self.phase = Phase::Hello { message, text: Vec::new() };
            }
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: "the source ended the conversation".into() });
            }
            _ if !self.greeted => return protocol(format!("the first message must be a hello, not {message:?}")),
            Message::Hello(_) => return protocol("the source said hello twice".into()),
            Message::Ignored { .. } => {}
            Message::Offer(offer) => {
                check_offer(&offer, self.withdraws)?;
                if offer.disposition == Disposition::Eager {
                    self.expect(&offer)?;
                } else if offer.disposition.is_dropped() {
                    // Nothing of it may arrive any more: the fetch is about to be called off.
                    self.asked.retain(|asked| asked.ticket != offer.ticket);
                }
                said.push(Said::Message(message));
            }
            Message::Data { ticket, offset, length } => self.begin_payload(ticket, offset, length)?,
            Message::Losses(losses) => self.losses = losses,
            Message::Paused { .. } | Message::Told { .. } | Message::End(_) => said.push(Said::Message(message)),
            _ => return protocol(format!("the source sent a builder's message: {message:?}")),
        }
        Ok(())
    }

    /// An eager offer: its bytes follow at once, if it is within the bounds.
    fn expect(&mut self, offer: &Announcement) -> Result<(), LinkError> {
        let total = self.unasked + u64::from(offer.bytes);
        if offer.bytes > self.eager.limit || total > self.eager.credit.into() {
            return Err(LinkError::Protocol(format!(
                "{} bytes sent unasked, {total} in all; the limits are {} and {}",
                offer.bytes, self.eager.limit, self.eager.credit
            )));
        }
        if self.ahead.insert(offer.ticket, Ahead { length: offer.bytes, landed: None }).is_some() {
            return Err(LinkError::Protocol(format!("ticket {} was offered eagerly twice", offer.ticket)));
        }
        self.unasked = total;
        self.following = Some((offer.ticket, offer.bytes));
        Ok(())
    }

    fn begin_payload(&mut self, ticket: u64, offset: u32, length: u32) -> Result<(), LinkError> {
        let sent = Asked { ticket, offset, length };
        let unasked = || LinkError::Protocol(format!("bytes of ticket {ticket} were sent without being asked for"));
        let eager = self.following.take();
        match eager {
            Some((expected, bytes)) if (Asked { ticket: expected, offset: 0, length: bytes }) != sent => {
                return Err(LinkError::Protocol(format!(
                    "bytes {offset}+{length} of ticket {ticket} were sent behind the eager offer of ticket {expected}, \
                     {bytes} bytes"
                )));
            }
            // Where it was asked for as well, that is answered.
            Some(_) => self.asked.retain(|asked| asked.ticket != ticket),
            None => {
                let asked = self.asked.pop_front().ok_or_else(unasked)?;
                check_order(sent, asked)?;
            }
        }
        let pending = self.pending.iter().position(|pending| pending.ticket == ticket);
        let place = match pending.and_then(|at| self.pending.remove(at)) {
            Some(pending) if pending.at == offset as usize && pending.at + length as usize <= pending.place.len() => {
                Place::Set(pending)
            }
            // Within the limit for eager offers.
            None if eager.is_some() => Place::Landing(ticket, vec![0; length as usize], 0),
            _ => return Err(unasked()),
        };
        self.phase = Phase::Payload { place, end: offset as usize + length as usize };
        Ok(())
    }

    /// Reports what is complete and turns to the next message.
    fn finish_phase(&mut self, said: &mut Vec<Said>) -> Result<(), LinkError> {
        let complete = match &mut self.phase {
            Phase::Message => false,
            Phase::Hello { message, text } => text.len() == message.body_len(),
            Phase::Payload { place, end } => place.at() == *end,
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
            Phase::Payload { place: Place::Set(pending), .. } if pending.at < pending.place.len() => {
                self.pending.push_front(pending);
            }
            Phase::Payload { place: Place::Set(Pending { ticket, place, .. }), .. } => {
                said.push(Said::Arrived { ticket, bytes: Bytes::Place(place) });
            }
            Phase::Payload { place: Place::Landing(ticket, bytes, _), .. } => {
                // Released while it was on the way: nobody wants it.
                if let Some(ahead) = self.ahead.get_mut(&ticket) {
                    ahead.landed = Some(bytes);
                }
            }
            Phase::Message | Phase::Hello { .. } => {}
        }
        Ok(())
    }
}

impl TcpBuilder {
    /// Puts what was asked for into words: one message for each offer, however many pieces of it were asked for since.
    fn say_fetches(&mut self) {
        let Self { unsaid, pending, phase, asked, out, .. } = self;
        let mut arriving = match phase {
            Phase::Payload { place: Place::Set(pending), .. } => Some(pending),
            _ => None,
        };
        for ticket in unsaid.drain(..) {
            let fetch = pending.iter_mut().chain(arriving.as_deref_mut()).find(|pending| pending.ticket == ticket);
            // Called off since, otherwise.
            if let Some(Pending { said, upto, .. }) = fetch.filter(|pending| pending.upto > pending.said) {
                let (offset, length) = (*said, *upto - *said);
                out.extend_from_slice(&Message::Fetch { ticket, offset, length }.encode());
                asked.push_back(Asked { ticket, offset, length });
                *said = *upto;
            }
        }
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

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let into = into.unwrap_or_else(|| unreachable!("a TCP link maps nothing: a fetch needs a place"));
        let mut pending = Pending::new(offer, into, upto);
        let ticket = pending.ticket;
        let Some(ahead) = self.ahead.get_mut(&ticket) else {
            self.pending.push_back(pending);
            self.unsaid.push(ticket);
            return Ok(None);
        };
        pending.eager = true;
        if ahead.length as usize != pending.place.len() {
            let (bytes, known) = (offer.bytes, ahead.length);
            let error = format!("ticket {ticket} was offered with {bytes} bytes, and then with {known}");
            return Err(LinkError::Protocol(error));
        }
        if let Some(bytes) = ahead.landed.take() {
            self.copied += copy_counted(&mut pending.place, &bytes);
            return Ok(Some(Bytes::Place(pending.place)));
        }
        match &mut self.phase {
            Phase::Payload { place, .. } if place.lands() == Some(ticket) => {
                // Half of it is here: the rest goes straight to its place.
                if let Place::Landing(_, bytes, at) = place {
                    self.copied += copy_counted(&mut pending.place[..*at], &bytes[..*at]);
                    pending.at = *at;
                }
                *place = Place::Set(pending);
            }
            _ => self.pending.push_back(pending),
        }
        Ok(None)
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        let arriving = match &mut self.phase {
            Phase::Payload { place: Place::Set(pending), .. } => Some(pending),
            _ => None,
        };
        let Some(pending) = self.pending.iter_mut().chain(arriving).find(|pending| pending.ticket == ticket) else {
            return;
        };
        if pending.said == pending.upto {
            self.unsaid.push(ticket);
        }
        pending.upto = pending.upto.max(upto);
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn losses(&self) -> Losses {
        self.losses
    }

    fn cancel(&mut self, ticket: u64) {
        self.pending.retain(|pending| pending.ticket != ticket);
    }

    fn release(&mut self, below: u64) {
        while let Some(first) = self.ahead.first_entry()
            && *first.key() < below
        {
            self.unasked -= u64::from(first.remove().length);
        }
        self.say(&Message::Release { below });
    }

    fn say(&mut self, message: &Message) {
        self.out.extend_from_slice(&message.encode());
    }

    fn refuse(&mut self, reason: Refusal, text: &str) {
        self.out.extend_from_slice(&refusal(reason, text));
        // The peer may be gone, or may not listen: it was worth trying.
        let _ = self.flush();
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.say_fetches();
        while !self.gone && !self.out.is_empty() {
            match rustix::net::send(&self.socket, &self.out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => {
                    self.out.drain(..n);
                    send_now(&self.socket)?;
                }
                Err(Errno::AGAIN) => return check_unheard(self.out.len(), MOST_UNHEARD),
                Err(Errno::INTR) => {}
                Err(error) if is_gone(error) => self.gone = true,
                Err(error) => return Err(LinkError::io("sending to a source")(error)),
            }
        }
        // Only left behind by a peer that is gone.
        self.out.clear();
        Ok(())
    }

    fn ready(&mut self, said: &mut Vec<Said>) -> Result<bool, LinkError> {
        self.flush()?;
        if self.parse(said)? {
            return Ok(true);
        }
        let mut share = FAIR_SHARE;
        loop {
            let (received, direct, wanted) = match &mut self.phase {
                Phase::Payload { place, end } => {
                    debug_assert!(self.stash.is_empty(), "the stash would belong in front of what is received now");
                    let place = place.rest(*end);
                    let room = self.stash.room();
                    let (direct, wanted) = (place.len(), place.len() + room.len());
                    let mut parts = [IoSliceMut::new(place), IoSliceMut::new(room)];
                    (rustix::io::readv(&self.socket, &mut parts), direct, wanted)
                }
                _ => {
                    let room = self.stash.room();
                    let wanted = room.len();
                    (rustix::io::read(&self.socket, room), 0, wanted)
                }
            };
            let received = match received {
                Ok(0) => return Err(LinkError::Closed),
                Ok(received) => received,
                Err(Errno::AGAIN) if self.gone => return Err(LinkError::Closed),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) if is_gone(error) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::io("receiving from a source")(error)),
            };
            let placed = received.min(direct);
            if let Phase::Payload { place, .. } = &mut self.phase {
                place.came(placed);
                self.copied += placed as u64;
                self.received += if place.was_asked() { placed as u64 } else { 0 };
            }
            self.stash.to += received - placed;
            self.finish_phase(said)?;
            if self.parse(said)? {
                return Ok(true);
            }
            if received < wanted && !self.gone {
                // Everything that was there: asking again would only be told so.
                return Ok(false);
            }
            share = share.saturating_sub(received);
            if share == 0 {
                return Ok(true);
            }
        }
    }

    fn copied(&self) -> u64 {
        self.copied
    }
}
