//! A kind of link that exists only for tests: packets over a Unix socket (`SOCK_SEQPACKET`, unix(7)). All of it is in
//! this file; `LinkKind::register(&PACKETS)` registers it.

use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_arena::{Arena, Span};
use thalweg_link::parts::{Connect, FetchRequest, Listener, Novelty, Offered, SocketLink, Sockets};
use thalweg_link::{
    Abilities, Adapter, Address, BuilderEndpoint, BuilderLink, Bytes, Eager, Interest, LinkError, Locator, Origin,
    Peer, Received, SourceEndpoint, SourceGreeting, SourceLink, Transport, Watch,
};
use thalweg_wire::{Announcement, Disposition, Losses, MESSAGE_LEN, Message, Refusal};

pub(crate) static PACKETS: Packets = Packets;

/// Payload of a packet, in bytes.
const PIECE: u32 = 32 << 10;

#[derive(Debug)]
pub(crate) struct Packets;

impl Transport for Packets {
    fn abilities(&self) -> &'static Abilities {
        &Abilities {
            name: "packets",
            title: "Unix packets",
            form: "packets:PATH",
            locator: Locator::Path,
            maps: false,
            pieces: true,
            eager: false,
            one_sided: false,
            frames: true,
            headers: 0,
            congestion: false,
            files: 1,
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
        Ok(Box::new(Sockets::<Source>::new(watch)))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let open = || {
            let socket = socket()?;
            socket.bind(&SockAddr::unix(at.place())?)?;
            socket.listen(64)?;
            Ok(socket)
        };
        let advice = "choose another path for `listen`";
        let socket = open().map_err(|error| LinkError::Listening { address: at.clone(), error, advice })?;
        Ok(Box::new(Sockets::with_listener(Listening { socket, path: at.place().into() }, watch)?))
    }
}

fn socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)
}

fn failed(doing: &str) -> impl FnOnce(io::Error) -> LinkError {
    let doing = doing.to_owned();
    move |error| LinkError::Io { doing, error }
}

#[derive(Debug)]
struct Listening {
    socket: Socket,
    path: PathBuf,
}

impl Listener for Listening {
    type Link = Builder;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn listening_place(&self) -> String {
        self.path.display().to_string()
    }

    fn accept_link(&mut self) -> Result<Option<(Builder, Peer)>, LinkError> {
        let socket = match self.socket.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(failed("accepting a connection")(error)),
        };
        socket.set_nonblocking(true).map_err(failed("setting up a connection"))?;
        let wire = Wire { socket, out: VecDeque::new(), gone: false };
        let builder = Builder { wire, fetches: BTreeMap::new(), received: 0, copied: 0 };
        Ok(Some((builder, Peer::new("somebody".into(), Origin::User(None)))))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An entry of the queue of things to send.
#[derive(Debug)]
enum Out {
    Bytes(Vec<u8>),
    /// Bytes of the arena.
    Piece {
        ticket: u64,
        offset: u32,
        length: u32,
        arena_offset: u64,
    },
}

/// A socket, and the queue of things to send over it.
#[derive(Debug)]
struct Wire {
    socket: Socket,
    out: VecDeque<Out>,
    /// True if there is no peer at the other end any more. Messages that it sent before can still be received.
    gone: bool,
}

impl Wire {
    fn send(&mut self, message: &Message) {
        self.out.push_back(Out::Bytes(message.encode().to_vec()));
    }

    fn interest(&self) -> Interest {
        Interest { read: true, write: !self.out.is_empty() }
    }

    /// Sends what the socket accepts; `packet` makes a packet of an entry.
    fn flush(&mut self, mut packet: impl FnMut(&Out) -> Result<Vec<u8>, LinkError>) -> Result<(), LinkError> {
        while !self.gone
            && let Some(out) = self.out.front()
        {
            match self.socket.write(&packet(out)?) {
                Ok(_) => drop(self.out.pop_front()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    self.gone = true;
                }
                Err(error) => return Err(failed("sending")(error)),
            }
        }
        Ok(())
    }

    /// Returns the next packet, or `None` if none has come.
    fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> Result<Option<(Message, &'a [u8])>, LinkError> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(length) => {
                    let (cell, body) = buffer[..length]
                        .split_first_chunk::<MESSAGE_LEN>()
                        .ok_or_else(|| LinkError::Protocol(format!("{length} bytes are no message")))?;
                    return Ok(Some((Message::decode(cell)?, body)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.gone => return Err(LinkError::Closed),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                // Reported once; packets that were sent before are still there.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => self.gone = true,
                Err(error) => return Err(failed("receiving")(error)),
            }
        }
    }
}

#[derive(Debug)]
struct Source {
    wire: Wire,
    arena: Arc<Arena>,
    offered: Offered,
    copied: u64,
}

impl Source {
    fn serve(&mut self, asked: FetchRequest) -> Result<(), LinkError> {
        let Some((offer, _)) = self.offered.record_fetch(asked)? else { return Ok(()) };
        let FetchRequest { ticket, offset, length } = asked;
        for offset in (offset..offset + length).step_by(PIECE as usize) {
            let length = PIECE.min(asked.offset + asked.length - offset);
            let arena_offset = offer.arena_offset + u64::from(offset);
            self.wire.out.push_back(Out::Piece { ticket, offset, length, arena_offset });
        }
        self.offered.check_pending_fetches(self.wire.out.len())
    }
}

impl Connect for Source {
    fn connect_to_builder(
        to: &Address,
        _congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<Self, LinkError> {
        let socket = socket().map_err(failed("making a socket"))?;
        socket.connect(&SockAddr::unix(to.place()).unwrap()).map_err(failed("connecting"))?;
        let hello = [&Message::Hello(greeting.hello).encode()[..], greeting.description.as_bytes()].concat();
        Ok(Self {
            wire: Wire { socket, out: VecDeque::from([Out::Bytes(hello)]), gone: false },
            arena: Arc::clone(&greeting.arena),
            offered: Offered::new(greeting.hello.slots, greeting.hello.slot_bytes),
            copied: 0,
        })
    }
}

impl SocketLink for Source {
    type Received = Message;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        self.wire.interest()
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        for asked in self.offered.take_early_fetches() {
            self.serve(asked)?;
        }
        let Self { wire, arena, copied, .. } = self;
        wire.flush(|out| match out {
            Out::Bytes(bytes) => Ok(bytes.clone()),
            Out::Piece { ticket, offset, length, arena_offset } => {
                let data = Message::Data { ticket: *ticket, offset: *offset, length: *length };
                let mut packet = data.encode().to_vec();
                packet.resize(MESSAGE_LEN + *length as usize, 0);
                let read = rustix::io::pread(arena.fd(), &mut packet[MESSAGE_LEN..], *arena_offset);
                *copied += read.map_err(|error| failed("reading the arena")(error.into()))? as u64;
                Ok(packet)
            }
        })
    }

    fn receive_messages(&mut self, said: &mut Vec<Message>) -> Result<bool, LinkError> {
        self.flush_messages()?;
        let mut buffer = [0; MESSAGE_LEN + Message::MAX_REFUSAL_TEXT as usize];
        while let Some((message, body)) = self.wire.receive(&mut buffer)? {
            match message {
                Message::Refuse { reason, .. } => {
                    let text = String::from_utf8_lossy(body).into_owned();
                    return Err(LinkError::Refused { reason, text });
                }
                Message::Fetch { ticket, offset, length } => self.serve(FetchRequest { ticket, offset, length })?,
                Message::Release { below } => {
                    self.offered.release_tickets(below);
                    said.push(message);
                }
                _ => said.push(message),
            }
        }
        self.flush_messages().map(|()| false)
    }
}

impl SourceLink for Source {
    fn announce_offer(&mut self, offer: &Announcement) {
        // Packets are never sent without a fetch.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        if self.offered.record_offer(&offer) != Novelty::Released {
            self.wire.send(&Message::Offer(offer));
        }
    }

    fn withdraw_offer(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn send_message(&mut self, message: &Message) {
        self.wire.send(message);
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }
}

/// A fetch: its place, the number of bytes that have come, and the number requested.
#[derive(Debug)]
struct Fetch {
    place: Span,
    at: usize,
    upto: u32,
}

#[derive(Debug)]
struct Builder {
    wire: Wire,
    fetches: BTreeMap<u64, Fetch>,
    received: u64,
    copied: u64,
}

impl Builder {
    fn came(&mut self, ticket: u64, offset: u32, bytes: &[u8]) -> Result<Option<Received>, LinkError> {
        // Otherwise it was called off.
        let Some(fetch) = self.fetches.get_mut(&ticket) else { return Ok(None) };
        let end = fetch.at + bytes.len();
        if offset as usize != fetch.at || end > fetch.upto as usize {
            return Err(LinkError::Protocol(format!(
                "bytes {offset}+{} of ticket {ticket} were not asked for",
                bytes.len()
            )));
        }
        fetch.place[fetch.at..end].copy_from_slice(bytes);
        fetch.at = end;
        self.received += bytes.len() as u64;
        self.copied += bytes.len() as u64;
        if end < fetch.place.len() {
            return Ok(None);
        }
        let place = self.fetches.remove(&ticket).map(|fetch| fetch.place);
        Ok(place.map(|place| Received::Arrived { ticket, bytes: Bytes::Place(place) }))
    }
}

impl SocketLink for Builder {
    type Received = Received;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.wire.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        self.wire.interest()
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        self.wire.flush(|out| match out {
            Out::Bytes(bytes) => Ok(bytes.clone()),
            Out::Piece { .. } => unreachable!("a builder sends no pieces"),
        })
    }

    fn receive_messages(&mut self, said: &mut Vec<Received>) -> Result<bool, LinkError> {
        self.flush_messages()?;
        let mut buffer = [0; MESSAGE_LEN + PIECE as usize];
        while let Some((message, body)) = self.wire.receive(&mut buffer)? {
            match message {
                Message::Hello(hello) => {
                    said.push(Received::Hello(hello, String::from_utf8_lossy(body).into_owned()));
                }
                Message::Data { ticket, offset, .. } => said.extend(self.came(ticket, offset, body)?),
                _ => said.push(Received::Message(message)),
            }
        }
        Ok(false)
    }
}

impl BuilderLink for Builder {
    fn maps_source_memory(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let place = into.expect("packets map nothing: a fetch needs a place");
        self.fetches.insert(offer.ticket, Fetch { place, at: 0, upto });
        self.wire.send(&Message::Fetch { ticket: offer.ticket, offset: 0, length: upto });
        Ok(None)
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        if let Some(fetch) = self.fetches.get_mut(&ticket).filter(|fetch| upto > fetch.upto) {
            let (offset, length) = (fetch.upto, upto - fetch.upto);
            fetch.upto = upto;
            self.wire.send(&Message::Fetch { ticket, offset, length });
        }
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn known_losses(&self) -> Losses {
        Losses::default()
    }

    fn cancel_fetch(&mut self, ticket: u64) {
        self.fetches.remove(&ticket);
    }

    fn release_tickets(&mut self, below: u64) {
        self.wire.send(&Message::Release { below });
    }

    fn send_message(&mut self, message: &Message) {
        self.wire.send(message);
    }

    fn refuse_source(&mut self, reason: Refusal, text: &str) {
        let refuse = Message::Refuse { reason, text: text.len() as u32 };
        self.wire.out.push_back(Out::Bytes([&refuse.encode()[..], text.as_bytes()].concat()));
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }
}
