//! Streams over EFE in UDP datagrams: ports, connections, packets.
//!
//! A listener has a port of its own, and so has each queue pair that connects. A segment of a stream is a packet; segments
//! that overtake each other are placed as they come and delivered in order. A message for which no receive is posted waits:
//! its packet is refused until there is one.
//!
//! The private data of EFE's set-up are the limits of reads, IRD and ORD of the sender as 16-bit numbers in network order,
//! and then the program's.

use crate::command::{CommandError, ConnectionEvent, ConnectionParameters, Reply};
use crate::connection::{Request, RequestOrigin};
use crate::engine::{Engine, encode_event, insert_object};
use crate::handshake::{address_error, watch_datagrams};
use crate::numbers::PortNumbers;
use crate::queue_pair::Path;
use crate::stream::{Carrier, OwnedPlace, StreamPath};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use thalweg_efe::{Class, ConnectionError, ConnectionId, Event, Options, Port, WINDOW_PACKETS};
use thalweg_frames::{DatagramIo, UdpPort};
use thalweg_iwarp::{FirstMessage, ReceiveOutcome, StreamSettings};

/// Class of all packets of streams.
const CLASS: Class = Class::Posted;

/// Bytes that a port asks the kernel to hold for it.
const RECEIVE_BUFFER_BYTES: u64 = 4 << 20;

/// Bursts of datagrams that a port takes before others have their turn.
const MAX_BURSTS: usize = 16;

/// Time after which a packet is sent again that found no receive posted.
const RECEIVE_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Length in bytes of the limits of reads before the program's private data.
const DEPTHS_BYTES: usize = 4;

/// A UDP port with connections of EFE.
#[derive(Debug)]
pub(crate) struct EfePort {
    io: UdpPort,
    pub(crate) port: Port<SocketAddr, Vec<u8>>,
    /// Listener whose port it is, as long as that exists.
    listener: Option<u32>,
    pub(crate) users: HashMap<ConnectionId, User>,
    /// Numbers of queue pairs that peers find at this port.
    pub(crate) numbers: Option<PortNumbers>,
    /// Connections that are not over.
    open_connections: usize,
    frame: Vec<u8>,
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
    /// Number below which all segments were received.
    received_below: u64,
    /// Number below which the peer has accepted all segments.
    accepted_below: u64,
    /// Whether requests complete once the peer's RNIC has them, rather than once their bytes were copied here.
    pub(crate) completes_when_placed: bool,
}

impl EfePort {
    /// Returns whether it is a listener's port at `address` that the listener has given up.
    fn is_left_at(&self, address: SocketAddr) -> bool {
        self.listener.is_none() && self.numbers.is_none() && self.io.local_address() == address
    }

    /// Notes that a connection was begun.
    pub(crate) fn note_begin(&mut self) {
        self.open_connections += 1;
    }

    /// Notes that a connection is over.
    pub(crate) fn note_end(&mut self) {
        self.open_connections = self.open_connections.saturating_sub(1);
    }
}

impl EfeCarrier {
    fn new(port: u32, connection: ConnectionId) -> Self {
        Self { port, connection, received_below: 0, accepted_below: 0, completes_when_placed: false }
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
    /// Opens a port of EFE and returns its handle and address.
    pub(crate) fn open_efe_port(&mut self, at: SocketAddr) -> Result<(u32, SocketAddr), CommandError> {
        let failed = address_error(at);
        let mut io = UdpPort::bind(at).map_err(&failed)?;
        let max_credit_bytes = io.reserve_receive_bytes(RECEIVE_BUFFER_BYTES);
        // Numbers that a stranger cannot guess: a keyed hash, its key from the kernel.
        let (state, mut drawn) = (RandomState::new(), 0u64);
        let port = Port::new(Options { max_credit_bytes, ..Options::default() }, move || {
            drawn += 1;
            state.hash_one(drawn)
        });
        let (address, frame) = (io.local_address(), vec![0; port.max_frame_bytes()]);
        let (users, open_connections) = (HashMap::new(), 0);
        let poll = self.socket_poll().map_err(&failed)?;
        if let Some(descriptor) = io.descriptor() {
            watch_datagrams(&poll, descriptor).map_err(&failed)?;
        }
        let port = EfePort { io, port, listener: None, users, numbers: None, open_connections, frame };
        match insert_object(&mut self.efe_ports, port, "ports of EFE")? {
            Reply::Handle(handle) => Ok((handle, address)),
            other => Err(CommandError::Unknown(format!("{other:?}"))),
        }
    }

    /// Opens the port of a listener. One that connections of an earlier listener keep open gets the new one.
    pub(crate) fn listen_efe(&mut self, address: SocketAddr) -> Result<(u32, SocketAddr), CommandError> {
        let left = self.efe_ports.iter().find(|(_, port)| port.is_left_at(address)).map(|(handle, _)| handle);
        if let Some(handle) = left {
            return Ok((handle, address));
        }
        self.open_efe_port(address)
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
        address: SocketAddr,
        parameters: ConnectionParameters,
    ) -> Result<(), CommandError> {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let (handle, _) = self.open_efe_port(SocketAddr::new(any, 0))?;
        let now = self.last_socket_time();
        let Some(port) = self.efe_ports.get_mut(handle) else { return Ok(()) };
        let connection = port.port.connect(address, &encode_private(&parameters), now);
        let connection = connection.map_err(|error| CommandError::Argument(error.to_string()))?;
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
        let Carrier::Efe(EfeCarrier { port: handle, connection, .. }) = path.carrier else { return false };
        let Some(mut port) = self.efe_ports.take(handle) else { return false };
        let any = self.with_memory(queue, path, |stream, memory, segment, carrier| {
            let mut any = false;
            let is_over_when_copied = !matches!(carrier, Carrier::Efe(efe) if efe.completes_when_placed);
            while port.port.send_room(connection, CLASS).packets > 0 && stream.next_segment(memory, segment) {
                let head_bytes = segment.head.len();
                let mut packet = vec![0; head_bytes + segment.payload_bytes];
                packet[..head_bytes].copy_from_slice(&segment.head);
                OwnedPlace::copy_all(&segment.places, &mut packet[head_bytes..]);
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

    fn receive_packets(&mut self, port: &mut EfePort, now: Duration) -> bool {
        let EfePort { io, port, users, .. } = port;
        let mut any = false;
        for _ in 0..MAX_BURSTS {
            let more = io.receive_datagrams(&mut |from, arrival| {
                let thalweg_frames::Arrival::Datagram(bytes) = arrival else { return };
                any = true;
                let Some(arrival) = port.receive(from, bytes, now) else { return };
                let user = users.get(&arrival.connection);
                let queue = if let Some(User::Stream { queue }) = user { Some(*queue) } else { None };
                self.take_packet(port, queue, &arrival);
            });
            // Without a port there is nothing to take; its connections fail by their time.
            if !more.unwrap_or(false) {
                break;
            }
        }
        any
    }

    /// Gives a packet to its stream.
    fn take_packet(
        &mut self,
        port: &mut Port<SocketAddr, Vec<u8>>,
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

    fn handle_efe_event(&mut self, handle: u32, port: &mut EfePort, event: Event<Vec<u8>>) {
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
                        let carrier = EfeCarrier::new(handle, connection);
                        return self.start_numbered_stream(queue, carrier, max_packet_bytes, &theirs);
                    }
                    _ => return,
                };
                port.users.insert(connection, User::Stream { queue });
                let mut carrier = EfeCarrier::new(handle, connection);
                carrier.completes_when_placed = self.queues.get(queue).is_some_and(|pair| pair.numbered.is_some());
                self.start_efe_stream(queue, carrier, max_packet_bytes, &own, theirs);
            }
            Event::Acknowledged { connection, sequence, .. } => {
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
        let origin = RequestOrigin::Efe { place: (handle, connection), theirs };
        match insert_object(&mut self.requests, Request { listener, origin }, "connection requests") {
            Ok(Reply::Handle(request)) => {
                port.users.insert(connection, User::Waiting);
                let event = ConnectionEvent::Request { request, peer: None, parameters: seen };
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
        segment_limit_bytes: usize,
        own: &ConnectionParameters,
        theirs: ConnectionParameters,
    ) {
        // Either side's ORD is at most the other's IRD.
        let parameters = ConnectionParameters {
            private_data: Vec::new(),
            inbound_reads: own.inbound_reads.min(theirs.outbound_reads.max(1)),
            outbound_reads: own.outbound_reads.min(theirs.inbound_reads),
            receiver_retries: own.receiver_retries,
        };
        let settings = StreamSettings {
            segment_limit_bytes,
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
            let Some(EfePort { io, port, frame, listener, numbers, open_connections, .. }) =
                self.efe_ports.get_mut(handle)
            else {
                continue;
            };
            while io.has_send_room()
                && let Some(outgoing) = port.next_frame(now, frame)
            {
                io.queue_datagram(outgoing.to, &frame[..outgoing.bytes], None);
            }
            // What the kernel does not take is sent again by EFE.
            let _ = io.flush_burst();
            let has_numbers = numbers.as_ref().is_some_and(|numbers| numbers.used > 0);
            if listener.is_none() && *open_connections == 0 && !has_numbers {
                self.efe_ports.remove(handle);
            }
        }
    }

    /// Returns the time at which a port of EFE has something to do.
    pub(crate) fn efe_deadline(&self) -> Option<Duration> {
        self.efe_ports.iter().filter_map(|(_, port)| port.port.next_deadline()).min()
    }
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
        receiver_retries: 0,
    })
}
