//! Streams over EFE, in UDP datagrams or Ethernet frames: ports, connections, packets.
//!
//! Over UDP, a listener has a port of its own, and so has each queue pair that connects; an interface has one port for
//! frames past the kernel's network stack, which all of them share. A segment of a stream is a packet; segments
//! that overtake each other are placed as they come and delivered in order. A message for which no receive is posted waits:
//! its packet is refused until there is one.
//!
//! The private data of EFE's set-up are the limits of reads, IRD and ORD of the sender as 16-bit numbers in network order,
//! and then the program's.

use crate::command::{CONNECT_TIMEOUT, CommandError, ConnectionEvent, ConnectionParameters, Reply, Transport};
use crate::connection::{Request, RequestOrigin};
use crate::engine::{Engine, encode_event, insert_object};
use crate::handshake::{address_error, watch_datagrams};
use crate::numbers::PortNumbers;
use crate::queue_pair::Path;
use crate::stream::{Carrier, PlaceReader, StreamPath};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use thalweg_efe::{Class, ConnectionError, ConnectionId, ETHER_TYPE, Event, Options, Packet, Port, WINDOW_PACKETS};
use thalweg_frames::{DatagramIo, FramePort, FramesError, UdpPort};
use thalweg_iwarp::{FirstMessage, ReceiveOutcome, StreamSettings};

/// Class of all packets of streams.
const CLASS: Class = Class::Posted;

/// Bytes that a port asks the kernel to hold for it.
const RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

/// Number of frames of the longest length, at least, that are to fit what the kernel holds for a port.
const MIN_BUFFERED_FRAMES: u64 = 16;

/// Bytes that an idle connection may send without waiting for a grant.
const STANDING_CREDIT_BYTES: u64 = 256 << 10;

/// Time for which an acknowledgement waits for a program's answer, to go with it.
const STATUS_DELAY: Duration = Duration::from_micros(20);

/// Bytes of a queue pair's segments that EFE has, from which on it is given no more.
const MAX_QUEUED_BYTES: u64 = 4 << 20;

/// Buffers of acknowledged packets that a port keeps.
const MAX_SPARE_BUFFERS: usize = WINDOW_PACKETS as usize;

/// Time after which a port is tried again whose burst the kernel did not take.
const UNSENT_INTERVAL: Duration = Duration::from_micros(100);

/// Time after which a packet is sent again that found no receive posted.
const RECEIVE_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Length in bytes of the limits of reads before the program's private data.
const DEPTHS_BYTES: usize = 4;

/// A port with connections of EFE.
#[derive(Debug)]
pub(crate) struct EfePort {
    io: Box<dyn DatagramIo>,
    transport: Transport,
    pub(crate) port: Port<SocketAddr, PacketBuffer>,
    /// Listener whose port it is, as long as that exists.
    listener: Option<u32>,
    pub(crate) users: BTreeMap<ConnectionId, User>,
    /// Numbers of queue pairs that peers find at this port.
    pub(crate) numbers: Option<PortNumbers>,
    /// Connections that are not over.
    open_connections: usize,
    spare: Vec<PacketBuffer>,
    /// Time at which the burst is offered again that the kernel did not take.
    retry_at: Option<Duration>,
}

/// A segment that EFE keeps until it is acknowledged: the first bytes of a buffer that is used again.
#[derive(Debug, Default)]
pub(crate) struct PacketBuffer {
    buffer: Vec<u8>,
    bytes: usize,
}

impl PacketBuffer {
    /// Makes it a packet of this length, and returns the place of its bytes.
    fn place_of(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        self.bytes = bytes;
        &mut self.buffer[..bytes]
    }
}

impl Packet for PacketBuffer {
    fn packet_bytes(&self) -> usize {
        self.bytes
    }

    fn write_packet(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.buffer[..self.bytes]);
    }
}

/// User of a connection.
#[derive(Debug)]
pub(crate) enum User {
    /// A queue pair that connects.
    Connecting { queue: u32, parameters: ConnectionParameters },
    /// A request that waits for its program's answer.
    Waiting,
    /// A request that has come between two listeners of the port, with its private data.
    Early(Box<[u8]>),
    /// A queue pair that has accepted, with its parameters and the peer's.
    Accepted { queue: u32, parameters: ConnectionParameters, theirs: ConnectionParameters },
    /// A queue pair that calls its peer by number, or has accepted its call; then with the peer's parameters.
    Meeting { queue: u32, theirs: Option<ConnectionParameters> },
    /// A queue pair's stream.
    Stream { queue: u32 },
}

impl User {
    /// Returns whether it is a queue pair that is not connected yet.
    fn is_attempt(&self) -> bool {
        matches!(self, Self::Connecting { .. } | Self::Accepted { .. } | Self::Meeting { .. })
    }

    /// Returns whether it is this queue pair, not connected yet.
    fn is_attempt_of(&self, queue: u32) -> bool {
        match self {
            Self::Connecting { queue: other, .. }
            | Self::Accepted { queue: other, .. }
            | Self::Meeting { queue: other, .. } => *other == queue,
            Self::Waiting | Self::Early(_) | Self::Stream { .. } => false,
        }
    }
}

/// A connection of EFE that carries a stream.
#[derive(Debug)]
pub(crate) struct EfeCarrier {
    port: u32,
    connection: ConnectionId,
    pub(crate) segment_limit_bytes: usize,
    /// Number below which all segments were received.
    received_below: u64,
    /// Number below which the peer has accepted all segments.
    accepted_below: u64,
    /// Whether requests complete once the peer's RNIC has them, rather than once their bytes were copied here.
    pub(crate) completes_when_placed: bool,
}

impl EfePort {
    /// Returns whether it is a listener's port at `address` that the listener has given up.
    fn is_left_at(&self, transport: Transport, address: SocketAddr) -> bool {
        let is_left = self.listener.is_none() && self.numbers.is_none();
        is_left && self.transport == transport && self.io.local_address() == address
    }

    /// Bounds the frames of a connection that is being made by what the path to its peer carries.
    pub(crate) fn limit_to_path(&mut self, connection: ConnectionId) {
        let peer = self.port.peer_address(connection);
        if let Some(Ok(bytes)) = peer.map(|peer| path_bytes(&mut *self.io, peer)) {
            self.port.limit_frame_bytes(connection, bytes);
        }
    }

    /// Notes that a connection was begun.
    pub(crate) fn note_begin(&mut self) {
        self.open_connections += 1;
    }

    /// Returns the time at which the port has something to do: at once if there is an event, such as the end of a
    /// connection, after which there may be no other time.
    fn next_deadline(&self) -> Option<Duration> {
        if self.port.has_events() { Some(Duration::ZERO) } else { self.retry_at.or_else(|| self.port.next_deadline()) }
    }

    /// Returns whether a peer has not acknowledged all that was sent to it.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.port.has_unacknowledged()
    }

    /// Returns whether it is the port that an interface has once, of the interface that an address names.
    fn is_port_of(&self, transport: Transport, at: SocketAddr) -> bool {
        if self.transport != transport {
            return false;
        }
        match (self.io.local_address(), at) {
            (SocketAddr::V4(own), SocketAddr::V4(at)) => transport == Transport::EfeXdp && own.ip() == at.ip(),
            (SocketAddr::V6(own), SocketAddr::V6(at)) => {
                transport == Transport::EfeEthernet && own.scope_id() == at.scope_id()
            }
            _ => false,
        }
    }

    /// Notes that a connection is over.
    pub(crate) fn note_end(&mut self) {
        self.open_connections = self.open_connections.saturating_sub(1);
    }

    /// Returns whether EFE takes another segment of a connection whose segments have at most this length.
    fn has_queue_room(&self, connection: ConnectionId, segment_limit_bytes: usize) -> bool {
        let free = self.port.send_room(connection, CLASS).packets;
        free > 0 && u64::from(WINDOW_PACKETS - free) * (segment_limit_bytes as u64) < MAX_QUEUED_BYTES
    }

    fn keep_buffer(&mut self, buffer: PacketBuffer) {
        if self.spare.len() < MAX_SPARE_BUFFERS {
            self.spare.push(buffer);
        }
    }
}

impl EfeCarrier {
    fn new(port: u32, connection: ConnectionId, segment_limit_bytes: usize) -> Self {
        Self {
            port,
            connection,
            segment_limit_bytes,
            received_below: 0,
            accepted_below: 0,
            completes_when_placed: false,
        }
    }

    /// Returns a sequence number of EFE, which wraps, as one of the stream.
    fn extend_sequence(&self, sequence: u32) -> u64 {
        extend_number(sequence, self.received_below)
    }

    /// Takes note of a segment that the peer has accepted. Returns the number below which it has accepted all, if requests
    /// complete by that.
    fn accept_sent(&mut self, sequence: u32) -> Option<u64> {
        self.accepted_below = extend_number(sequence, self.accepted_below) + 1;
        self.completes_when_placed.then_some(self.accepted_below)
    }
}

impl Engine {
    /// Opens a port of EFE, and returns its handle and address. A port that an interface has once may be open already.
    pub(crate) fn open_efe_port(
        &mut self,
        transport: Transport,
        at: SocketAddr,
    ) -> Result<(u32, SocketAddr), CommandError> {
        let failed = address_error(at);
        let shared = self.efe_ports.iter().find(|(_, port)| port.is_port_of(transport, at));
        if let Some((handle, port)) = shared {
            return Ok((handle, port.io.local_address()));
        }
        let mut io = open_carrier(transport, at)?;
        let max_credit_bytes = io.reserve_receive_bytes(RECEIVE_BUFFER_BYTES);
        let buffered_bytes = usize::try_from(max_credit_bytes / MIN_BUFFERED_FRAMES).unwrap_or(usize::MAX);
        let options = Options {
            // Of each connection, as much as its path carries.
            max_frame_bytes: buffered_bytes,
            max_credit_bytes,
            standing_credit_bytes: STANDING_CREDIT_BYTES,
            peer_timeout: CONNECT_TIMEOUT,
            status_delay: STATUS_DELAY,
            ..Options::default()
        };
        // Numbers that a stranger cannot guess: a keyed hash, its key from the kernel.
        let (state, mut drawn) = (RandomState::new(), 0u64);
        let port = Port::new(options, move || {
            drawn += 1;
            state.hash_one(drawn)
        });
        let address = io.local_address();
        let poll = self.socket_poll().map_err(&failed)?;
        if let Some(descriptor) = io.descriptor() {
            watch_datagrams(&poll, descriptor).map_err(&failed)?;
        }
        let port = EfePort {
            io,
            transport,
            port,
            listener: None,
            users: BTreeMap::new(),
            numbers: None,
            open_connections: 0,
            spare: Vec::new(),
            retry_at: None,
        };
        match insert_object(&mut self.efe_ports, Box::new(port), "ports of EFE")? {
            Reply::Handle(handle) => Ok((handle, address)),
            other => Err(CommandError::Unknown(format!("{other:?}"))),
        }
    }

    /// Opens the port of a listener. One that connections of an earlier listener keep open gets the new one.
    pub(crate) fn listen_efe(
        &mut self,
        transport: Transport,
        address: SocketAddr,
    ) -> Result<(u32, SocketAddr), CommandError> {
        let left =
            self.efe_ports.iter().find(|(_, port)| port.is_left_at(transport, address)).map(|(handle, _)| handle);
        if let Some(handle) = left {
            return Ok((handle, address));
        }
        let (handle, bound) = self.open_efe_port(transport, address)?;
        if self.efe_ports.get(handle).is_some_and(|port| port.listener.is_some()) {
            let reason = "the interface has a listener already: it has one for all its peers".into();
            return Err(CommandError::Address { address, reason });
        }
        Ok((handle, bound))
    }

    /// Gives a port to a listener, or takes it away: connections that are up stay so.
    pub(crate) fn set_efe_listener(&mut self, port: u32, listener: Option<u32>) {
        let Some(mut found) = self.efe_ports.take(port) else { return };
        found.listener = listener;
        let early: Vec<ConnectionId> =
            found.users.iter().filter(|(_, user)| matches!(user, User::Early(_))).map(|(at, _)| *at).collect();
        for connection in early.into_iter().filter(|_| listener.is_some()) {
            if let Some(User::Early(private)) = found.users.remove(&connection) {
                found.note_end();
                self.announce_efe_request(port, &mut found, connection, &private);
            }
        }
        self.efe_ports.put_back(port, found);
    }

    /// Begins to connect a queue pair.
    pub(crate) fn connect_efe(
        &mut self,
        queue: u32,
        transport: Transport,
        address: SocketAddr,
        parameters: ConnectionParameters,
    ) -> Result<(), CommandError> {
        let own = own_address(transport, address).map_err(address_error(address))?;
        let (handle, _) = self.open_efe_port(transport, own)?;
        let now = self.last_socket_time();
        let Some(port) = self.efe_ports.get_mut(handle) else { return Ok(()) };
        let path_bytes = path_bytes(&mut *port.io, address)?;
        let connection = port.port.connect(address, &encode_private(&parameters), now);
        let connection = connection.map_err(|error| CommandError::Argument(error.to_string()))?;
        port.port.limit_frame_bytes(connection, path_bytes);
        port.open_connections += 1;
        port.users.insert(connection, User::Connecting { queue, parameters });
        Ok(())
    }

    /// Accepts a connection. The queue pair's program gets an event when it is up.
    pub(crate) fn accept_efe(
        &mut self,
        (port, connection): (u32, ConnectionId),
        theirs: ConnectionParameters,
        queue: u32,
        parameters: ConnectionParameters,
    ) {
        let now = self.last_socket_time();
        let accepted = self.efe_ports.get_mut(port).map(|port| {
            let done = port.port.accept_connection(connection, &encode_private(&parameters), now);
            if done.is_ok() {
                port.users.insert(connection, User::Accepted { queue, parameters, theirs });
            }
            done.map_err(|error| error.to_string())
        });
        if let Err(reason) = accepted.unwrap_or(Err("the listener's port is closed".into())) {
            self.end_attempt(queue, &ConnectionEvent::Failed { reason });
        }
    }

    pub(crate) fn reject_efe(&mut self, (port, connection): (u32, ConnectionId), private_data: &[u8]) {
        let Some(port) = self.efe_ports.get_mut(port) else { return };
        // It may have ended meanwhile.
        let _ = port.port.reject_connection(connection, private_data);
        if port.users.remove(&connection).is_some() {
            port.note_end();
        }
    }

    /// Ends the attempts of a queue pair to connect.
    pub(crate) fn abandon_efe_connections_of(&mut self, queue: u32) {
        for (_, port) in self.efe_ports.iter_mut() {
            let found: Vec<ConnectionId> = port
                .users
                .iter()
                .filter(|(_, user)| user.is_attempt_of(queue))
                .map(|(connection, _)| *connection)
                .collect();
            for connection in found {
                port.users.remove(&connection);
                port.port.abort(connection, 0, &[]);
                port.note_end();
            }
        }
    }

    /// Closes this side's half of a connection once the peer has all that was sent: a Terminate message, too.
    pub(crate) fn finish_efe_connection(&mut self, carrier: EfeCarrier) {
        if let Some(port) = self.efe_ports.get_mut(carrier.port) {
            port.users.remove(&carrier.connection);
            port.port.finish_sending(carrier.connection);
        }
    }

    /// Gives EFE the segments that a stream has to send, as many as its window holds. Returns whether there were any.
    pub(crate) fn transmit_packets(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let Carrier::Efe(EfeCarrier { port: handle, connection, segment_limit_bytes, .. }) = path.carrier else {
            return false;
        };
        if !path.stream.has_segment() {
            return false;
        }
        let Some(mut port) = self.efe_ports.take(handle) else { return false };
        let any = self.with_memory(queue, path, |stream, memory, segment, carrier| {
            let mut any = false;
            let is_over_when_copied = !matches!(carrier, Carrier::Efe(efe) if efe.completes_when_placed);
            while port.has_queue_room(connection, segment_limit_bytes) && stream.next_segment(memory, segment) {
                let mut packet = port.spare.pop().unwrap_or_default();
                let place = packet.place_of(segment.head.len() + segment.payload_bytes);
                let (head, payload) = place.split_at_mut(segment.head.len());
                head.copy_from_slice(&segment.head);
                PlaceReader::new(&segment.places).read_bytes(payload);
                segment.places.clear();
                if port.port.send(connection, CLASS, packet).is_err() {
                    // Not open any more: an event says why.
                    break;
                }
                if is_over_when_copied {
                    // Its requests are over before a later one can fail.
                    stream.accept_segments(segment.sequence + 1);
                }
                any = true;
            }
            any
        });
        self.efe_ports.put_back(handle, port);
        any.unwrap_or(false)
    }

    /// Takes in what ports of EFE have received. Returns whether there was anything.
    pub(crate) fn serve_efe_ports(&mut self, now: Duration) -> bool {
        let mut any = false;
        for index in 0..self.efe_ports.place_count() {
            let Some(handle) = self.efe_ports.handle_at(index) else { continue };
            let Some(mut port) = self.efe_ports.take(handle) else { continue };
            any |= self.receive_packets(&mut port, now);
            while let Some(event) = port.port.next_event() {
                self.handle_efe_event(handle, &mut port, event);
                any = true;
            }
            self.efe_ports.put_back(handle, port);
        }
        any
    }

    /// Takes a burst in: acknowledgements follow before the next. Returns whether there was anything.
    fn receive_packets(&mut self, port: &mut EfePort, now: Duration) -> bool {
        let EfePort { io, port, users, .. } = port;
        let (mut any, mut shrunk) = (false, Vec::new());
        // A port that fails has nothing to take; its connections fail by their time.
        let _ = io.receive_datagrams(&mut |from, arrival| {
            any = true;
            let bytes = match arrival {
                thalweg_frames::Arrival::Datagram(bytes) => bytes,
                thalweg_frames::Arrival::TooLong => return shrunk.push(from),
                // Of a peer that is restarted, most likely: its time-out counts.
                thalweg_frames::Arrival::Unreachable => return,
            };
            let Some(arrival) = port.receive(from, bytes, now) else { return };
            match users.get(&arrival.connection) {
                Some(User::Stream { queue }) => self.take_packet(port, Some(*queue), &arrival),
                Some(user) if user.is_attempt() => {
                    // It has come with the frame that opens the connection, whose event is still to be handled.
                    port.refuse(arrival.connection, arrival.class, arrival.sequence, RECEIVE_RETRY_INTERVAL);
                }
                _ => self.take_packet(port, None, &arrival),
            }
        });
        for address in shrunk {
            if let Ok(bytes) = path_bytes(&mut **io, address) {
                port.note_path(address, bytes);
            }
        }
        any
    }

    /// Gives a packet to its stream.
    fn take_packet(
        &mut self,
        port: &mut Port<SocketAddr, PacketBuffer>,
        queue: Option<u32>,
        arrival: &thalweg_efe::Arrival<'_>,
    ) {
        let (connection, sequence) = (arrival.connection, arrival.sequence);
        let found = queue.and_then(|queue| Some((queue, self.queues.get_mut(queue)?.stream.take()?)));
        let Some((queue, mut path)) = found else {
            // Of a stream that has ended: dropped (RFC 5041 section 7.1).
            port.accept(connection, arrival.class, sequence);
            return;
        };
        self.with_memory(queue, &mut path, |stream, memory, _, carrier| {
            let Carrier::Efe(efe) = carrier else { return };
            match stream.receive_segment(efe.extend_sequence(sequence), arrival.packet, memory) {
                ReceiveOutcome::NoReceive => port.refuse(connection, arrival.class, sequence, RECEIVE_RETRY_INTERVAL),
                ReceiveOutcome::Taken => {
                    if let Some(below) = port.accept(connection, arrival.class, sequence) {
                        efe.received_below = efe.extend_sequence(below);
                        stream.deliver_segments(efe.received_below, memory);
                    }
                }
            }
        });
        if let Some(pair) = self.queues.get_mut(queue) {
            pair.stream = Some(path);
        }
    }

    fn handle_efe_event(&mut self, handle: u32, port: &mut EfePort, event: Event<PacketBuffer>) {
        match event {
            Event::Incoming { connection, private } if port.numbers.is_some() => {
                let now = self.last_socket_time();
                self.take_call(handle, port, connection, &private, now);
            }
            Event::Incoming { connection, private } => self.announce_efe_request(handle, port, connection, &private),
            Event::Connected { connection, private, max_packet_bytes } => {
                let (queue, own, theirs) = match port.users.remove(&connection) {
                    Some(User::Connecting { queue, parameters }) => match decode_private(&private) {
                        Some(theirs) => (queue, parameters, theirs),
                        None => return self.fail_efe_attempt(port, connection, queue),
                    },
                    Some(User::Accepted { queue, parameters, theirs }) => (queue, parameters, theirs),
                    Some(User::Meeting { queue, theirs }) => {
                        let theirs = theirs.or_else(|| decode_private(&private)).unwrap_or_default();
                        port.users.insert(connection, User::Stream { queue });
                        let carrier = EfeCarrier::new(handle, connection, max_packet_bytes);
                        return self.start_numbered_stream(queue, carrier, &theirs);
                    }
                    _ => return,
                };
                port.users.insert(connection, User::Stream { queue });
                port.port.set_peer_timeout(connection, own.peer_timeout);
                let mut carrier = EfeCarrier::new(handle, connection, max_packet_bytes);
                carrier.completes_when_placed = self.queues.get(queue).is_some_and(|pair| pair.numbered.is_some());
                self.start_efe_stream(queue, carrier, &own, theirs);
            }
            Event::Acknowledged { connection, sequence, packet, .. } => {
                port.keep_buffer(packet);
                if let Some(path) = self.stream_of(port, connection)
                    && let Carrier::Efe(efe) = &mut path.carrier
                    && let Some(below) = efe.accept_sent(sequence)
                {
                    path.stream.accept_segments(below);
                }
            }
            Event::PeerFinished { connection } => {
                if let Some(path) = self.stream_of(port, connection) {
                    path.stream.close_by_peer();
                }
            }
            Event::Closed { .. } => port.note_end(),
            Event::Failed { connection, error } => {
                port.note_end();
                match port.users.remove(&connection) {
                    Some(User::Stream { queue }) => {
                        if let Some(path) = self.queues.get_mut(queue).and_then(|pair| pair.stream.as_mut()) {
                            path.lose_carrier(error.to_string());
                        }
                    }
                    Some(User::Connecting { queue, .. } | User::Accepted { queue, .. }) => {
                        let event = match error {
                            ConnectionError::Rejected { private } => {
                                ConnectionEvent::Rejected { private_data: private.into() }
                            }
                            error => ConnectionEvent::Failed { reason: error.to_string() },
                        };
                        self.end_attempt(queue, &event);
                    }
                    Some(User::Meeting { queue, .. }) => self.end_call(queue, &error),
                    Some(User::Waiting | User::Early(_)) | None => {}
                }
            }
        }
    }

    /// Ends an attempt whose peer answered with private data that are none of an RNIC.
    fn fail_efe_attempt(&mut self, port: &mut EfePort, connection: ConnectionId, queue: u32) {
        port.port.abort(connection, 0, &[]);
        port.note_end();
        let reason = "the peer accepted without limits of reads: it is no RNIC, or of another version".into();
        self.end_attempt(queue, &ConnectionEvent::Failed { reason });
    }

    fn stream_of(&mut self, port: &EfePort, connection: ConnectionId) -> Option<&mut Box<StreamPath>> {
        let Some(User::Stream { queue }) = port.users.get(&connection) else { return None };
        self.queues.get_mut(*queue)?.stream.as_mut()
    }

    /// Informs a listener's program of a peer that wants to connect.
    fn announce_efe_request(&mut self, handle: u32, port: &mut EfePort, connection: ConnectionId, private: &[u8]) {
        port.open_connections += 1;
        let listener = port.listener;
        if listener.is_none() {
            // The port is kept by connections of a listener that has ended. Another may be about to take its place.
            port.users.insert(connection, User::Early(private.into()));
            return;
        }
        let waiting = self.requests.iter().filter(|(_, request)| Some(request.listener) == listener).count();
        let found = listener.and_then(|listener| Some((listener, self.listeners.get_mut(listener)?)));
        let found = found.filter(|(_, found)| waiting < found.backlog as usize).zip(decode_private(private));
        let Some(((listener, found), theirs)) = found else {
            let _ = port.port.reject_connection(connection, &[]);
            port.note_end();
            return;
        };
        // Seen from here: the peer's ORD is what the IRD has to serve.
        let max_reads = self.limits.max_reads;
        let seen = ConnectionParameters {
            inbound_reads: theirs.outbound_reads.min(max_reads),
            outbound_reads: theirs.inbound_reads.min(max_reads),
            ..theirs.clone()
        };
        let peer = port.port.peer_address(connection);
        port.limit_to_path(connection);
        let origin = RequestOrigin::Efe { place: (handle, connection), theirs };
        match insert_object(&mut self.requests, Request { listener, origin }, "connection requests") {
            Ok(Reply::Handle(request)) => {
                port.users.insert(connection, User::Waiting);
                let event = ConnectionEvent::Request { request, peer, parameters: seen };
                self.events_wait |= found.events.send_event(encode_event(&event));
            }
            _ => {
                let _ = port.port.reject_connection(connection, &[]);
                port.note_end();
            }
        }
    }

    fn start_efe_stream(
        &mut self,
        queue: u32,
        carrier: EfeCarrier,
        own: &ConnectionParameters,
        theirs: ConnectionParameters,
    ) {
        // Either side's ORD is at most the other's IRD.
        let parameters = ConnectionParameters {
            private_data: Vec::new(),
            inbound_reads: own.inbound_reads.min(theirs.outbound_reads.max(1)),
            outbound_reads: own.outbound_reads.min(theirs.inbound_reads),
            receiver_retries: own.receiver_retries,
            peer_timeout: own.peer_timeout,
            needs_crc: true,
        };
        let settings = StreamSettings {
            segment_limit_bytes: carrier.segment_limit_bytes,
            // At most the RNIC's limit.
            inbound_requests: parameters.inbound_reads as u16,
            outbound_requests: parameters.outbound_reads as u16,
            first_message: FirstMessage::Either,
            wait_for_receives: true,
            send_with_immediate: true,
            segments_ahead: WINDOW_PACKETS as usize,
        };
        match StreamPath::new(settings, Carrier::Efe(carrier)) {
            Ok(path) => {
                if let Some(pair) = self.queues.get_mut(queue) {
                    pair.stream = Some(Box::new(path));
                }
                self.establish_connection(queue, Path::Stream, &parameters, theirs.private_data);
            }
            Err(error) => self.end_attempt(queue, &ConnectionEvent::Failed { reason: error.to_string() }),
        }
    }

    /// Sends what ports of EFE have to send, and closes those that have no use any more.
    pub(crate) fn flush_efe_ports(&mut self, now: Duration) {
        for index in 0..self.efe_ports.place_count() {
            let Some(handle) = self.efe_ports.handle_at(index) else { continue };
            let Some(found) = self.efe_ports.get_mut(handle) else { continue };
            let EfePort { io, port, listener, numbers, open_connections, retry_at, .. } = &mut **found;
            if retry_at.is_some() || port.is_due(now) {
                let max_frame_bytes = port.max_frame_bytes();
                while io.queue_in_place(max_frame_bytes, &mut |place| {
                    port.next_frame(now, place).map(|frame| (frame.to, frame.bytes))
                }) {}
                // What the kernel does not take is offered again; what a port that fails has is lost.
                *retry_at = (!io.flush_burst().unwrap_or(true)).then_some(now + UNSENT_INTERVAL);
            }
            let has_numbers = numbers.as_ref().is_some_and(|numbers| numbers.used > 0);
            if listener.is_none() && *open_connections == 0 && !has_numbers {
                self.efe_ports.remove(handle);
            }
        }
    }

    /// Arms the descriptors of ports of EFE. Returns false if something has arrived already.
    pub(crate) fn arm_efe_ports(&mut self) -> bool {
        self.efe_ports.iter_mut().all(|(_, port)| port.io.prepare_wait())
    }

    /// Returns the time at which a port of EFE has something to do.
    pub(crate) fn efe_deadline(&self) -> Option<Duration> {
        self.efe_ports.iter().filter_map(|(_, port)| port.next_deadline()).min()
    }
}

/// Opens what carries the frames of a port.
fn open_carrier(transport: Transport, at: SocketAddr) -> Result<Box<dyn DatagramIo>, CommandError> {
    Ok(match transport {
        Transport::EfeEthernet => Box::new(FramePort::open_at_scope(at, ETHER_TYPE).map_err(frames_error(at))?),
        #[cfg(feature = "af-xdp")]
        Transport::EfeXdp => Box::new(thalweg_frames::AfXdpPort::open_at_address(at).map_err(frames_error(at))?),
        #[cfg(not(feature = "af-xdp"))]
        Transport::EfeXdp => {
            let reason = "this program was built without AF_XDP: take EFE over UDP".into();
            return Err(CommandError::Address { address: at, reason });
        }
        Transport::Tcp | Transport::Efe => Box::new(UdpPort::bind(at).map_err(address_error(at))?),
    })
}

/// Returns the address of this side for a peer's.
fn own_address(transport: Transport, peer: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    match transport {
        // The scope names the interface.
        Transport::EfeEthernet => Ok(peer),
        Transport::EfeXdp => {
            // The kernel's choice, which a connected socket has.
            let socket = std::net::UdpSocket::bind(SocketAddr::new(any, 0))?;
            socket.connect(peer)?;
            Ok(SocketAddr::new(socket.local_addr()?.ip(), 0))
        }
        Transport::Tcp | Transport::Efe => Ok(SocketAddr::new(any, 0)),
    }
}

/// Returns the longest frame that the path to an address carries, in bytes.
fn path_bytes(io: &mut dyn DatagramIo, to: SocketAddr) -> Result<usize, CommandError> {
    io.max_datagram_bytes(to).map_err(frames_error(to))
}

/// Returns a function for `map_err` on a call of a port for an address.
fn frames_error(address: SocketAddr) -> impl Fn(FramesError) -> CommandError {
    move |error| CommandError::Address { address, reason: error.to_string() }
}

/// Returns a number of 32 bits, which wraps, as the one of 64 bits that is nearest to `near`.
fn extend_number(number: u32, near: u64) -> u64 {
    let ahead = number.wrapping_sub(near as u32).cast_signed();
    near.wrapping_add_signed(i64::from(ahead))
}

pub(crate) fn encode_private(parameters: &ConnectionParameters) -> Vec<u8> {
    let mut private = Vec::with_capacity(DEPTHS_BYTES + parameters.private_data.len());
    // At most the RNIC's limit, which was checked.
    private.extend((parameters.inbound_reads as u16).to_be_bytes());
    private.extend((parameters.outbound_reads as u16).to_be_bytes());
    private.extend(&parameters.private_data);
    private
}

pub(crate) fn decode_private(private: &[u8]) -> Option<ConnectionParameters> {
    let (depths, private_data) = private.split_first_chunk::<DEPTHS_BYTES>()?;
    let [inbound_high, inbound_low, outbound_high, outbound_low] = *depths;
    Some(ConnectionParameters {
        private_data: private_data.to_vec(),
        inbound_reads: u32::from(u16::from_be_bytes([inbound_high, inbound_low])),
        outbound_reads: u32::from(u16::from_be_bytes([outbound_high, outbound_low])),
        ..ConnectionParameters::default()
    })
}
