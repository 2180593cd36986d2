//! The three verbs over shared memory, between two processes of one host.
//!
//! The source hands its arena over by file descriptor, with two rings of 64-byte cells for the messages. The builder
//! reads fragments where the device wrote them. The Unix socket stays open: a byte over it wakes a sleeping peer, and
//! when a process dies, its peer sees the socket closed.
//!
//! A source that may withdraw offers (policy `drop-oldest`) must be asked before its bytes are read: a fetch is then a
//! message and the grant is returned as `Data`, as on any other link. From other sources an offer is enough.

use crate::error::{MAX_UNREAD_BYTES, check_unread_bytes, encode_refusal};
use crate::grants::Grants;
use crate::kind::{Abilities, Locator, Transport};
use crate::offered::{FetchRequest, Novelty, Offered};
use crate::rules::{check_hello, check_offer};
use crate::sockets::{Connect, Listener, SocketLink, Sockets};
use crate::{
    Adapter, Address, BuilderEndpoint, BuilderLink, Bytes, Eager, Interest, LinkError, Origin, Peer, Received,
    SourceEndpoint, SourceGreeting, SourceLink, Watch, peer,
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_arena::{
    Arena, HandoverError, MAX_CELLS, PAGE_BYTES, PushError, Ring, RingReceiver, RingSender, Span, WAKE_BYTE, recv_fds,
    send_fds, wake_over_socket,
};
use thalweg_wire::{Announcement, Capabilities, Disposition, Hello, Losses, MESSAGE_LEN, Message, Refusal, Sender};

/// Granularity of arenas, in bytes: they consist of whole huge pages.
const ARENA_ROUNDING: u64 = 2 << 20;
/// Number of descriptors handed over: arena, ring to the builder, ring to the source.
const HANDED_OVER: usize = 3;
/// Maximum number of messages taken from one link before others have their turn.
const FAIR_SHARE: usize = 1024;
/// Number of times that nothing comes, while the node does not wait, before a peer's socket is checked. That is a
/// system call, which takes as long as some ten looks into a ring, so that few of a thousand messages are delayed by
/// one.
const MAX_QUIET_POLLS: u32 = 1 << 14;

/// Maximum number of wake-up bytes read at once: about as many as a socket's buffer holds.
const MAX_WAKES_PER_READ: usize = 1024;

/// Messages in both directions.
#[derive(Debug)]
struct Wires {
    sender: RingSender,
    receiver: RingReceiver,
    /// Messages for which the ring had no room.
    backlog: VecDeque<Message>,
    unpublished: bool,
    /// True if the peer was informed that this end waits, and wakes it.
    waits: bool,
    /// Number of times that nothing has come since the socket was checked.
    quiet: u32,
}

impl Wires {
    fn new(sender: RingSender, receiver: RingReceiver) -> Self {
        Self { sender, receiver, backlog: VecDeque::new(), unpublished: false, waits: false, quiet: MAX_QUIET_POLLS }
    }

    fn queue_message(&mut self, message: &Message) {
        if self.backlog.is_empty() && self.sender.push(&message.encode()).is_ok() {
            self.unpublished = true;
            return;
        }
        // The ring is full, or broken: the next flush pushes again, and reports it.
        self.backlog.push_back(*message);
    }

    /// Sends the messages for which there is room. Returns the number of bytes of messages that wait.
    fn flush_messages(&mut self, socket: &UnixStream) -> Result<usize, LinkError> {
        loop {
            while let Some(message) = self.backlog.front() {
                match self.sender.push(&message.encode()) {
                    Ok(()) => {
                        self.unpublished = true;
                        self.backlog.pop_front();
                    }
                    Err(PushError::Full) => break,
                    Err(PushError::Ring(error)) => return Err(peer_violation(error)),
                }
            }
            if std::mem::take(&mut self.unpublished) && self.sender.publish() {
                wake_peer(socket)?;
            }
            // If another thread waits already, it has to be woken for room from now on.
            if self.backlog.is_empty() || !self.waits || self.sender.prepare_wait() {
                return Ok(self.backlog.len() * MESSAGE_LEN);
            }
        }
    }

    /// Asks the peer to wake this end for messages, and for room if more are to be sent. Returns false if there are
    /// messages or there is room already.
    fn prepare_wait(&mut self) -> bool {
        // An end that waits already is woken already.
        self.waits =
            self.waits || self.receiver.prepare_wait() && (self.backlog.is_empty() || self.sender.prepare_wait());
        self.waits
    }

    /// Ends a wait. Returns true if this end has waited.
    fn end_wait(&mut self) -> bool {
        if !std::mem::take(&mut self.waits) {
            return false;
        }
        self.receiver.cancel_wait();
        self.sender.cancel_wait();
        true
    }

    /// Passes received messages to `take`, up to a fair share. Returns true if there are more.
    fn receive_messages(
        &mut self,
        socket: &UnixStream,
        mut take: impl FnMut(Message) -> Result<(), LinkError>,
    ) -> Result<bool, LinkError> {
        let mut left = FAIR_SHARE;
        while left > 0
            && let Some(cell) = self.receiver.pop().map_err(peer_violation)?
        {
            take(Message::decode(&cell)?)?;
            left -= 1;
        }
        if left < FAIR_SHARE && self.receiver.sender_waits() {
            wake_peer(socket)?;
        }
        Ok(left == 0)
    }

    /// Counts a poll at which nothing has come. Returns true if the presence of the peer is to be checked: now and then
    /// while the node does not wait.
    fn is_peer_check_due(&mut self) -> bool {
        self.quiet += 1;
        self.quiet > MAX_QUIET_POLLS && std::mem::take(&mut self.quiet) > 0
    }
}

/// Returns a function for `map_err` on a failure of this end, for which the peer is not to blame.
fn own_failure<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl FnOnce(E) -> LinkError {
    move |error| LinkError::from_system_call(doing)(std::io::Error::other(error))
}

/// Returns a function for `map_err` if what the peer handed over, or has since made of it, violates the agreement.
fn peer_violation<E: std::error::Error>(error: E) -> LinkError {
    LinkError::Protocol(error.to_string())
}

fn wake_peer(peer: &UnixStream) -> Result<(), LinkError> {
    wake_over_socket(peer).map_err(own_failure("waking the peer"))
}

/// Reads the socket: an error if the peer is gone. The bytes on it are wake-ups and, at most, the reason why the peer
/// leaves.
fn read_wake_bytes(mut socket: &UnixStream) -> Result<(), LinkError> {
    let mut bytes = [0; MAX_WAKES_PER_READ + MESSAGE_LEN + Message::MAX_REFUSAL_TEXT as usize];
    let read = match socket.read(&mut bytes) {
        Ok(0) => return Err(LinkError::Closed),
        Ok(read) => &bytes[..read],
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(LinkError::Closed),
        Err(error) => return Err(LinkError::from_system_call("reading the socket for descriptors")(error)),
    };
    let wakes = read.iter().take_while(|byte| **byte == WAKE_BYTE).count();
    match read[wakes..].split_first_chunk::<MESSAGE_LEN>() {
        Some((cell, text)) => match Message::decode(cell)? {
            Message::Refuse { reason, .. } => {
                Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() })
            }
            other => Err(LinkError::Protocol(format!("unexpected over the socket: {other:?}"))),
        },
        None if wakes == read.len() => Ok(()),
        None => {
            Err(LinkError::Protocol(format!("{} bytes over the socket that are not a message", read.len() - wakes)))
        }
    }
}

/// Passes received messages to `take`. The socket is read after each wait, before the ring is checked, and now and then
/// while nothing comes. If the peer is gone, `left` is set to the reason, and messages that the peer sent before are
/// received as well.
fn receive_all_messages(
    socket: &UnixStream,
    wires: &mut Wires,
    left: &mut Option<LinkError>,
    mut take: impl FnMut(Message) -> Result<(), LinkError>,
) -> Result<bool, LinkError> {
    if wires.end_wait() && left.is_none() {
        *left = read_wake_bytes(socket).err();
    }
    let mut any = false;
    let more = wires.receive_messages(socket, |message| {
        any = true;
        take(message)
    })?;
    if any || left.is_some() || !wires.is_peer_check_due() {
        return Ok(more);
    }
    *left = read_wake_bytes(socket).err();
    if left.is_some() { wires.receive_messages(socket, take) } else { Ok(more) }
}

/// Returns the error that ended the link, once all messages have been received.
fn error_once_drained(more: bool, left: &mut Option<LinkError>) -> Result<bool, LinkError> {
    match left.take_if(|_| !more) {
        Some(error) => Err(error),
        None => Ok(more),
    }
}

fn handover_error(error: HandoverError) -> LinkError {
    match error {
        HandoverError::Io(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            LinkError::Closed
        }
        HandoverError::Io(error) => LinkError::from_system_call("sending an arena")(error),
        error => peer_violation(error),
    }
}

/// Shared memory on one host.
#[derive(Debug)]
pub(crate) struct Shm;

impl Transport for Shm {
    fn abilities(&self) -> &'static Abilities {
        &Abilities {
            name: "shm",
            title: "shared memory",
            form: "shm:PATH",
            locator: Locator::Path,
            maps: true,
            pieces: false,
            eager: false,
            one_sided: true,
            frames: false,
            headers: 0,
            congestion: false,
            // A socket, an arena and two rings.
            files: 4,
            interface: false,
            adapter: false,
            rdma_device: false,
        }
    }

    fn open_source_endpoint(
        &self,
        _to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        Ok(Box::new(Sockets::<ShmSource>::new(watch)))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let path = Path::new(at.place());
        let listener = open_listener(path).map_err(|error| {
            let advice = listening_advice(path, error.kind());
            LinkError::Listening { address: at.clone(), error, advice }
        })?;
        Ok(Box::new(Sockets::with_listener(ShmListener { listener, path: path.to_owned() }, watch)?))
    }
}

/// Opens a listener, in place of a socket that a dead process left.
fn open_listener(path: &Path) -> std::io::Result<UnixListener> {
    // Connecting to any other kind of file is refused in the same way: those are left alone.
    if is_socket(path) && UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// True if a path is that of a socket.
fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Returns what a user can do if a path cannot be listened on for this reason.
fn listening_advice(path: &Path, reason: ErrorKind) -> &'static str {
    match reason {
        ErrorKind::AddrInUse if !is_socket(path) => {
            "a file of that name exists and is not a socket: choose another path for `listen`"
        }
        ErrorKind::AddrInUse => "stop the program that listens there, or choose another address for `listen`",
        ErrorKind::NotFound | ErrorKind::NotADirectory => "create the directory, or choose another path for `listen`",
        _ => "choose a path for `listen` in a writable directory",
    }
}

#[derive(Debug)]
struct ShmListener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener for ShmListener {
    type Link = ShmBuilder;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn listening_place(&self) -> String {
        self.path.display().to_string()
    }

    fn accept_link(&mut self) -> Result<Option<(ShmBuilder, Peer)>, LinkError> {
        let Some((socket, _)) = peer::interpret_accept(self.listener.accept())? else { return Ok(None) };
        let peer = rustix::net::sockopt::socket_peercred(&socket).ok();
        let name = peer.map_or_else(|| "process unknown".to_owned(), |peer| format!("process {}", peer.pid));
        let peer = Peer::new(name, Origin::User(peer.map(|peer| peer.uid.as_raw())));
        Ok(Some((begin_greeting(socket)?, peer)))
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connects to a builder on this host and hands the arena over. Never blocks: a builder that is too busy to accept is
/// an error (`WouldBlock`), to be tried again later.
fn connect_to_builder(path: &Path, greeting: &SourceGreeting) -> Result<ShmSource, LinkError> {
    let connecting = format!("connecting to shm:{}", path.display());
    let socket = open_connection(path).map_err(LinkError::from_system_call(&*connecting))?;
    // Room for every ticket that can be open, and for the few messages besides. More wait in the backlog.
    let cells = greeting.hello.slots.saturating_mul(4).saturating_add(64).min(MAX_CELLS).next_power_of_two();
    let to_builder = Ring::create("to-builder", cells).map_err(own_failure("setting up a link"))?;
    let to_source = Ring::create("to-source", cells).map_err(own_failure("setting up a link"))?;

    let mut bytes = Message::Hello(greeting.hello).encode().to_vec();
    bytes.extend_from_slice(greeting.description.as_bytes());
    let fds = [greeting.arena.fd(), to_builder.fd(), to_source.fd()];
    let sent = send_fds(&socket, &bytes, &fds).map_err(handover_error)?;
    // A fresh socket has room for all of it: at most 16 KiB.
    (&socket).write_all(&bytes[sent..]).map_err(LinkError::from_system_call(connecting))?;
    let wires = Wires::new(to_builder.into_sender(), to_source.into_receiver());
    Ok(ShmSource { socket, wires, offered: Offered::new(greeting.hello.slots, 0), left: None })
}

fn open_connection(path: &Path) -> std::io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(OwnedFd::from(socket).into())
}

#[derive(Debug)]
struct ShmSource {
    socket: UnixStream,
    wires: Wires,
    offered: Offered,
    /// Reason why the builder is gone, while there are messages of it to receive.
    left: Option<LinkError>,
}

impl ShmSource {
    /// Grants a fetch, once: the builder fetches a ticket once.
    fn grant_fetch(&mut self, asked: FetchRequest) -> Result<(), LinkError> {
        if let Some((_, true)) = self.offered.record_fetch(asked)? {
            let FetchRequest { ticket, offset, length } = asked;
            self.wires.queue_message(&Message::Data { ticket, offset, length });
        }
        Ok(())
    }
}

impl Connect for ShmSource {
    fn connect_to_builder(
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<Self, LinkError> {
        connect_to_builder(Path::new(to.place()), greeting)
    }
}

impl SocketLink for ShmSource {
    type Received = Message;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        Interest::READ
    }

    fn prepare_wait(&mut self) -> bool {
        self.left.is_none() && self.wires.prepare_wait()
    }

    fn is_cheap_to_poll(&self) -> bool {
        true
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        for asked in self.offered.take_early_fetches() {
            self.grant_fetch(asked)?;
        }
        self.offered.check_unread_bytes(self.wires.flush_messages(&self.socket)?)
    }

    fn receive_messages(&mut self, received: &mut Vec<Message>) -> Result<bool, LinkError> {
        let Self { socket, wires, offered, left, .. } = self;
        // In order: first the fetches that came before their offers were repeated, then those that come now.
        let mut fetches = offered.take_early_fetches();
        let more = receive_all_messages(socket, wires, left, |message| {
            match message {
                Message::Fetch { ticket, offset, length } => fetches.push(FetchRequest { ticket, offset, length }),
                Message::Release { below } => {
                    offered.release_tickets(below);
                    received.push(message);
                }
                Message::Ignored { .. } => {}
                message if message.sending_end() != Sender::Builder => {
                    return Err(LinkError::Protocol(format!("unexpected from a builder over a ring: {message:?}")));
                }
                _ => received.push(message),
            }
            Ok(())
        })?;
        for asked in fetches {
            self.grant_fetch(asked)?;
        }
        self.flush_messages()?;
        error_once_drained(more, &mut self.left)
    }
}

impl SourceLink for ShmSource {
    fn announce_offer(&mut self, offer: &Announcement) {
        // Reading in place is the fastest way, so nothing is ever sent ahead.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        if self.offered.record_offer(&offer) != Novelty::Released {
            self.wires.queue_message(&Message::Offer(offer));
        }
    }

    fn withdraw_offer(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn send_message(&mut self, message: &Message) {
        self.wires.queue_message(message);
    }

    fn copied_bytes(&self) -> u64 {
        0
    }
}

/// Takes over a connection that a source made over the Unix socket.
fn begin_greeting(socket: UnixStream) -> Result<ShmBuilder, LinkError> {
    socket.set_nonblocking(true).map_err(LinkError::from_system_call("setting up a connection"))?;
    let state = State::Greeting { bytes: Vec::new(), fds: Vec::new() };
    Ok(ShmBuilder { socket, state, left: None })
}

#[derive(Debug)]
struct ShmBuilder {
    socket: UnixStream,
    state: State,
    /// Reason why the source is gone, while there are messages of it to receive.
    left: Option<LinkError>,
}

#[derive(Debug)]
enum State {
    /// The hello and the descriptors are on their way.
    Greeting { bytes: Vec<u8>, fds: Vec<OwnedFd> },
    /// Everything was handed over.
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    wires: Wires,
    /// True if the source must be asked before its bytes are read.
    withdraws: bool,
    fetches: Fetches,
}

/// The source's arena as the builder sees it, and the fetches from it.
#[derive(Debug)]
struct Fetches {
    arena: Arc<Arena>,
    /// Fetches that wait to be granted.
    pending: Grants<Pending>,
    copied: u64,
}

#[derive(Debug)]
struct Pending {
    offer: Announcement,
    place: Option<Span>,
}

impl Fetches {
    /// Returns the bytes of an offer: copied into their place, or without a place as a view of the arena.
    fn bytes_of_offer(&mut self, pending: Pending) -> Result<Bytes, LinkError> {
        let Announcement { arena_offset, bytes, .. } = pending.offer;
        let Some(view) = self.arena.view_range(arena_offset, bytes as usize) else {
            let size = self.arena.size_bytes();
            return Err(LinkError::Protocol(format!(
                "offered bytes {arena_offset}+{bytes} of an arena of {size} bytes"
            )));
        };
        Ok(match pending.place {
            None => Bytes::View(view),
            Some(mut place) => {
                view.copy_bytes_to(0, &mut place);
                self.copied += place.len() as u64;
                Bytes::Place(place)
            }
        })
    }

    /// Processes a grant.
    fn on_grant(&mut self, ticket: u64, offset: u32, length: u32) -> Result<Received, LinkError> {
        let pending = self.pending.take_granted(FetchRequest { ticket, offset, length })?;
        Ok(Received::Arrived { ticket, bytes: self.bytes_of_offer(pending)? })
    }
}

impl ShmBuilder {
    fn receive_greeting(&mut self, received: &mut Vec<Received>) -> Result<(), LinkError> {
        let State::Greeting { bytes, fds } = &mut self.state else { return Ok(()) };
        let mut buffer = [0; MESSAGE_LEN + Message::MAX_DESCRIPTION as usize];
        match recv_fds(&self.socket, &mut buffer, HANDED_OVER) {
            Ok((0, _)) => return Err(LinkError::Closed),
            Ok((n, more)) => {
                bytes.extend_from_slice(&buffer[..n]);
                fds.extend(more);
            }
            Err(error) if error.is_would_block() => return Ok(()),
            Err(error) => return Err(handover_error(error)),
        }
        if fds.len() > HANDED_OVER {
            return Err(LinkError::Protocol(format!("received more than {HANDED_OVER} descriptors")));
        }
        let Some((cell, text)) = bytes.split_first_chunk::<MESSAGE_LEN>() else { return Ok(()) };
        let hello = match Message::decode(cell)? {
            Message::Hello(hello) => hello,
            other => return Err(LinkError::Protocol(format!("the first message must be a hello, not {other:?}"))),
        };
        match text.len().cmp(&(hello.description as usize)) {
            Ordering::Less => return Ok(()),
            Ordering::Equal => {}
            Ordering::Greater => return Err(LinkError::Protocol("received more than a hello over the socket".into())),
        }
        let text = String::from_utf8(text.to_vec())
            .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
        check_hello(&hello)?;
        let open = open_rings(std::mem::take(fds), hello)?;
        self.state = State::Open(Box::new(open));
        received.push(Received::Hello(hello, text));
        Ok(())
    }
}

fn open_rings(fds: Vec<OwnedFd>, hello: Hello) -> Result<Open, LinkError> {
    let [arena, to_builder, to_source] = <[OwnedFd; HANDED_OVER]>::try_from(fds)
        .map_err(|fds| LinkError::Protocol(format!("received {} descriptors instead of {HANDED_OVER}", fds.len())))?;
    let arena = Arena::import(arena).map_err(peer_violation)?;
    // A larger one would let the source make this process touch, and the kernel allocate, memory that holds no slot.
    let slot = u64::from(hello.slot_bytes).next_multiple_of(PAGE_BYTES as u64) + 2 * PAGE_BYTES as u64;
    let most = (u64::from(hello.slots) * slot).next_multiple_of(ARENA_ROUNDING);
    if arena.size_bytes() as u64 > most {
        let text = format!("received an arena of {} bytes; its slots need at most {most}", arena.size_bytes());
        return Err(LinkError::Protocol(text));
    }
    let receiver = Ring::import(to_builder).map_err(peer_violation)?.into_receiver();
    let sender = Ring::import(to_source).map_err(peer_violation)?.into_sender();
    let fetches = Fetches { arena, pending: Grants::default(), copied: 0 };
    Ok(Open {
        wires: Wires::new(sender, receiver),
        withdraws: hello.capabilities.contains(Capabilities::WITHDRAWS),
        fetches,
    })
}

impl SocketLink for ShmBuilder {
    type Received = Received;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        Interest::READ
    }

    fn prepare_wait(&mut self) -> bool {
        match &mut self.state {
            State::Greeting { .. } => true,
            State::Open(open) => self.left.is_none() && open.wires.prepare_wait(),
        }
    }

    fn is_cheap_to_poll(&self) -> bool {
        true
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        match &mut self.state {
            State::Greeting { .. } => Ok(()),
            State::Open(open) => check_unread_bytes(open.wires.flush_messages(&self.socket)?, MAX_UNREAD_BYTES),
        }
    }

    fn receive_messages(&mut self, received: &mut Vec<Received>) -> Result<bool, LinkError> {
        self.receive_greeting(received)?;
        let State::Open(open) = &mut self.state else { return Ok(false) };
        let Open { wires, fetches, withdraws } = &mut **open;
        let more = receive_all_messages(&self.socket, wires, &mut self.left, |message| {
            received.push(match message {
                Message::Data { ticket, offset, length } => fetches.on_grant(ticket, offset, length)?,
                Message::Offer(offer) => {
                    check_offer(&offer, *withdraws)?;
                    if offer.disposition.is_dropped() {
                        fetches.pending.note_dropped(offer.ticket);
                    }
                    Received::Message(message)
                }
                // Memory loses nothing.
                Message::Ignored { .. } | Message::Losses(_) => return Ok(()),
                message if message.sending_end() == Sender::Source && !matches!(message, Message::Hello(_)) => {
                    Received::Message(message)
                }
                _ => return Err(LinkError::Protocol(format!("unexpected from a source over a ring: {message:?}"))),
            });
            Ok(())
        })?;
        self.flush_messages()?;
        error_once_drained(more, &mut self.left)
    }
}

impl BuilderLink for ShmBuilder {
    fn maps_source_memory(&self) -> bool {
        true
    }

    fn begin_fetch(
        &mut self,
        offer: &Announcement,
        into: Option<Span>,
        _upto: u32,
    ) -> Result<Option<Bytes>, LinkError> {
        let State::Open(open) = &mut self.state else {
            return Err(LinkError::Protocol("a fetch before the hello".into()));
        };
        let pending = Pending { offer: *offer, place: into };
        if !open.withdraws {
            return open.fetches.bytes_of_offer(pending).map(Some);
        }
        let request = open.fetches.pending.request_offer(offer, pending);
        open.wires.queue_message(&request);
        Ok(None)
    }

    fn extend_fetch(&mut self, _ticket: u64, _upto: u32) {}

    fn received_bytes(&self) -> u64 {
        0
    }

    fn known_losses(&self) -> Losses {
        Losses::default()
    }

    fn cancel_fetch(&mut self, ticket: u64) {
        if let State::Open(open) = &mut self.state {
            open.fetches.pending.cancel_fetch(ticket);
        }
    }

    fn release_tickets(&mut self, below: u64) {
        self.send_message(&Message::Release { below });
    }

    fn send_message(&mut self, message: &Message) {
        if let State::Open(open) = &mut self.state {
            open.wires.queue_message(message);
        }
    }

    fn refuse_source(&mut self, reason: Refusal, text: &str) {
        // An attempt only: the peer may be gone, or may not read.
        let _ = self.flush_messages();
        let _ = self.socket.write_all(&encode_refusal(reason, text));
    }

    fn copied_bytes(&self) -> u64 {
        match &self.state {
            State::Greeting { .. } => 0,
            State::Open(open) => open.fetches.copied,
        }
    }
}
