//! Connection management: listeners, connection requests, and queue pairs that are connected by them.

use crate::attributes::{QueueAttributes, QueueState};
use crate::command::{
    CommandError, ConnectionEvent, ConnectionParameters, MAX_PEER_TIMEOUT, MAX_PRIVATE_BYTES, MIN_PEER_TIMEOUT, Reply,
    Transport,
};
use crate::engine::{Engine, check_limit, check_owner, check_reads, encode_event, insert_object, missing_descriptor};
use crate::events::EventSocket;
use crate::queue_pair::{Connection, Path};
use crate::stream::Ending;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use thalweg_efe::ConnectionId;
use thalweg_iwarp::mpa::{self, Acceptance, ReadDepths};

/// A listener of a program.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) client: u32,
    pub(crate) address: SocketAddr,
    transport: Transport,
    pub(crate) backlog: u32,
    pub(crate) events: EventSocket,
    pub(crate) socket: ListenerSocket,
}

/// Way by which peers of other RNICs come to a listener.
#[derive(Debug)]
pub(crate) enum ListenerSocket {
    Tcp(TcpListener),
    /// Port of EFE, by its handle.
    Efe(u32),
}

/// A connection that waits for an answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) listener: u32,
    pub(crate) origin: RequestOrigin,
}

/// Peer of a connection that waits for an answer.
#[derive(Debug)]
pub(crate) enum RequestOrigin {
    /// A queue pair of this RNIC.
    Local { queue: u32, parameters: ConnectionParameters },
    /// A peer over TCP.
    Tcp { socket: TcpStream, request: Box<mpa::Request> },
    /// A peer over EFE: port and connection, and the peer's parameters.
    Efe { place: (u32, ConnectionId), theirs: ConnectionParameters },
}

impl Engine {
    pub(crate) fn add_listener(
        &mut self,
        client: u32,
        (mut address, transport): (SocketAddr, Transport),
        backlog: u32,
        socket: Option<OwnedFd>,
    ) -> Result<Reply, CommandError> {
        let events = EventSocket::for_connection(socket.ok_or_else(missing_descriptor)?);
        let count = self.listeners.iter().filter(|(_, listener)| listener.client == client).count();
        check_limit("listeners", self.limits.max_listeners, count)?;
        // One port for peers at this RNIC and elsewhere.
        let mut predecessor = None;
        let socket = match transport {
            Transport::Tcp => {
                let (listener, ended) = self.listen_tcp(client, address)?;
                predecessor = ended;
                address = listener.local_addr().unwrap_or(address);
                ListenerSocket::Tcp(listener)
            }
            Transport::Efe | Transport::EfeXdp | Transport::EfeEthernet => {
                let (port, bound) = self.listen_efe(transport, address)?;
                address = bound;
                ListenerSocket::Efe(port)
            }
        };
        let backlog = backlog.clamp(1, self.limits.max_listeners);
        let port = if let ListenerSocket::Efe(port) = socket { Some(port) } else { None };
        let listener = Listener { client, address, transport, backlog, events, socket };
        match insert_object(&mut self.listeners, listener, "listeners")? {
            Reply::Handle(listener) => {
                self.watch_listener(listener);
                if let Some(ended) = predecessor {
                    self.hand_over_handshakes(ended, listener);
                }
                if let Some(port) = port {
                    self.set_efe_listener(port, Some(listener));
                }
                Ok(Reply::Listening { listener, address })
            }
            other => Ok(other),
        }
    }

    pub(crate) fn destroy_listener(&mut self, client: u32, listener: u32) -> Result<(), CommandError> {
        check_owner(&self.listeners, client, listener, "listener", |listener| listener.client)?;
        self.remove_listener(listener);
        Ok(())
    }

    /// Removes a listener and rejects those that wait for its answer.
    pub(crate) fn remove_listener(&mut self, listener: u32) {
        match self.listeners.remove(listener) {
            Some(Listener { socket: ListenerSocket::Efe(port), .. }) => self.set_efe_listener(port, None),
            Some(Listener { socket: ListenerSocket::Tcp(socket), client, address, .. }) => {
                self.keep_listening((client, listener), address, socket);
            }
            None => {}
        }
        let waiting: Vec<u32> =
            self.requests.iter().filter(|(_, request)| request.listener == listener).map(|(at, _)| at).collect();
        for request in waiting {
            if let Some(request) = self.requests.remove(request) {
                self.answer_rejected(request, Vec::new());
            }
        }
    }

    /// Tells a peer that it is rejected.
    fn answer_rejected(&mut self, request: Request, private_data: Vec<u8>) {
        match request.origin {
            RequestOrigin::Local { queue, .. } => self.end_attempt(queue, &ConnectionEvent::Rejected { private_data }),
            RequestOrigin::Tcp { mut socket, request } => {
                // The first bytes on a connection: there is room for them. Nothing follows.
                if let Ok(frame) = request.reject(&private_data, ReadDepths::default()) {
                    let _ = socket.write_all(&frame);
                }
            }
            RequestOrigin::Efe { place, .. } => self.reject_efe(place, &private_data),
        }
    }

    pub(crate) fn connect_queue(
        &mut self,
        client: u32,
        queue: u32,
        (address, transport): (SocketAddr, Transport),
        parameters: ConnectionParameters,
        socket: Option<OwnedFd>,
    ) -> Result<(), CommandError> {
        let events = EventSocket::for_connection(socket.ok_or_else(missing_descriptor)?);
        self.check_parameters(&parameters)?;
        self.check_unconnected(client, queue)?;
        let listener =
            self.listeners.iter().find(|(_, listener)| listener.listens_at(address, transport)).map(|(at, _)| at);
        match listener {
            Some(listener) => self.request_locally(listener, queue, parameters)?,
            None if transport == Transport::Tcp => self.connect_tcp(queue, address, parameters)?,
            None => self.connect_efe(queue, transport, address, parameters)?,
        }
        if let Some(pair) = self.queues.get_mut(queue) {
            pair.connection = Some(Connection { events, established: false });
        }
        Ok(())
    }

    /// Asks a listener of this RNIC for a connection.
    fn request_locally(
        &mut self,
        listener: u32,
        queue: u32,
        parameters: ConnectionParameters,
    ) -> Result<(), CommandError> {
        let waiting = self.requests.iter().filter(|(_, request)| request.listener == listener).count();
        let Some(found) = self.listeners.get_mut(listener) else { return Ok(()) };
        check_limit("connections that wait for the listener's answer", found.backlog, waiting)?;
        // Seen from the listener: the connecting side's ORD is what its IRD has to serve.
        let seen = ConnectionParameters {
            inbound_reads: parameters.outbound_reads,
            outbound_reads: parameters.inbound_reads,
            ..parameters.clone()
        };
        let request = Request { listener, origin: RequestOrigin::Local { queue, parameters } };
        if let Reply::Handle(request) = insert_object(&mut self.requests, request, "connection requests")? {
            let event = ConnectionEvent::Request { request, peer: None, parameters: seen };
            self.events_wait |= found.events.send_event(encode_event(&event));
        }
        Ok(())
    }

    pub(crate) fn accept_request(
        &mut self,
        client: u32,
        request: u32,
        queue: u32,
        parameters: ConnectionParameters,
        socket: Option<OwnedFd>,
    ) -> Result<(), CommandError> {
        let events = EventSocket::for_connection(socket.ok_or_else(missing_descriptor)?);
        self.check_parameters(&parameters)?;
        self.check_request(client, request)?;
        self.check_unconnected(client, queue)?;
        if let Some(Request { origin: RequestOrigin::Local { queue: initiator, .. }, .. }) = self.requests.get(request)
            && *initiator == queue
        {
            return Err(CommandError::Argument("a queue pair cannot be connected to itself".into()));
        }
        if let Some(pair) = self.queues.get_mut(queue) {
            pair.connection = Some(Connection { events, established: false });
        }
        match self.requests.remove(request).map(|request| request.origin) {
            None => {}
            Some(RequestOrigin::Local { queue: initiator, parameters: theirs }) => {
                self.accept_locally(initiator, theirs, queue, parameters);
            }
            Some(RequestOrigin::Tcp { socket, request }) => self.accept_tcp(socket, &request, queue, parameters),
            Some(RequestOrigin::Efe { place, theirs }) => self.accept_efe(place, theirs, queue, parameters),
        }
        Ok(())
    }

    fn accept_locally(
        &mut self,
        initiator: u32,
        theirs: ConnectionParameters,
        queue: u32,
        parameters: ConnectionParameters,
    ) {
        // RFC 6581 section 9: either side's ORD is at most the other's IRD.
        let to_responder = theirs.outbound_reads.min(parameters.inbound_reads);
        let to_initiator = parameters.outbound_reads.min(theirs.inbound_reads);
        let of_initiator = ConnectionParameters { inbound_reads: to_initiator, outbound_reads: to_responder, ..theirs };
        let of_responder =
            ConnectionParameters { inbound_reads: to_responder, outbound_reads: to_initiator, ..parameters };
        self.establish_connection(initiator, Path::Local(queue), &of_initiator, of_responder.private_data.clone());
        self.establish_connection(queue, Path::Local(initiator), &of_responder, of_initiator.private_data);
    }

    fn accept_tcp(&mut self, socket: TcpStream, request: &mpa::Request, queue: u32, parameters: ConnectionParameters) {
        // At most the RNIC's limit, which was checked.
        let acceptance = Acceptance {
            crc: parameters.needs_crc,
            private_data: parameters.private_data.clone(),
            inbound_requests: parameters.inbound_reads as u16,
            outbound_requests: parameters.outbound_reads as u16,
            ..Acceptance::default()
        };
        match request.accept(&acceptance) {
            Ok((reply, terms)) => {
                let private_data = request.private_data().to_vec();
                self.start_stream(queue, socket, &terms, &parameters, private_data, reply);
            }
            Err(error) => self.end_attempt(queue, &ConnectionEvent::Failed { reason: error.to_string() }),
        }
    }

    pub(crate) fn reject_request(
        &mut self,
        client: u32,
        request: u32,
        private_data: Vec<u8>,
    ) -> Result<(), CommandError> {
        check_private_data(&private_data)?;
        self.check_request(client, request)?;
        if let Some(request) = self.requests.remove(request) {
            self.answer_rejected(request, private_data);
        }
        Ok(())
    }

    pub(crate) fn disconnect_queue(&mut self, client: u32, queue: u32) -> Result<(), CommandError> {
        if let Some(path) = &mut self.own_queue(client, queue)?.stream {
            path.ending = Ending::Disconnect;
        }
        self.abandon_requests_of(queue);
        self.fail_queue(queue, "disconnected");
        Ok(())
    }

    /// Withdraws the connection request of a queue pair.
    pub(crate) fn abandon_requests_of(&mut self, queue: u32) {
        let of_queue: Vec<u32> =
            self.requests.iter().filter(|(_, request)| request.origin.is_of(queue)).map(|(at, _)| at).collect();
        of_queue.into_iter().for_each(|request| drop(self.requests.remove(request)));
        self.abandon_handshakes_of(queue);
        self.abandon_efe_connections_of(queue);
    }

    /// Brings a queue pair into the state RTS with its peer.
    pub(crate) fn establish_connection(
        &mut self,
        queue: u32,
        path: Path,
        own: &ConnectionParameters,
        peer_data: Vec<u8>,
    ) {
        let Some(pair) = self.queues.get_mut(queue) else { return };
        pair.path = path;
        pair.state = QueueState::ReadyToSend;
        pair.attributes = QueueAttributes {
            inbound_reads: own.inbound_reads,
            outbound_reads: own.outbound_reads,
            receiver_retries: own.receiver_retries,
            peer_queue: if let Path::Local(peer) = path { Some(peer) } else { None },
            access: pair.attributes.access,
            ..QueueAttributes::default()
        };
        let Some(connection) = &mut pair.connection else { return };
        connection.established = true;
        let parameters = ConnectionParameters { private_data: peer_data, ..own.clone() };
        self.events_wait |= connection.events.send_event(encode_event(&ConnectionEvent::Established { parameters }));
    }

    /// Reports to a queue pair's program that its connection has ended, if there was one.
    pub(crate) fn report_disconnected(&mut self, queue: u32, cause: &str) {
        let connection = self.queues.get_mut(queue).and_then(|pair| pair.connection.as_mut());
        if let Some(connection) = connection.filter(|connection| connection.established) {
            connection.established = false;
            let event = ConnectionEvent::Disconnected { reason: cause.into() };
            self.events_wait |= connection.events.send_event(encode_event(&event));
        }
    }

    /// Reports to a queue pair's program that it was not connected. The queue pair stays in state INIT.
    pub(crate) fn end_attempt(&mut self, queue: u32, event: &ConnectionEvent) {
        if let Some(mut connection) = self.queues.get_mut(queue).and_then(|pair| pair.connection.take()) {
            connection.events.send_event(encode_event(event));
        }
    }

    fn check_parameters(&self, parameters: &ConnectionParameters) -> Result<(), CommandError> {
        check_reads(
            "reads outstanding",
            self.limits.max_reads,
            parameters.inbound_reads.max(parameters.outbound_reads),
        )?;
        let timeout = parameters.peer_timeout;
        if !(MIN_PEER_TIMEOUT..=MAX_PEER_TIMEOUT).contains(&timeout) {
            let message =
                format!("peer_timeout is {timeout:?}: it must be {MIN_PEER_TIMEOUT:?} to {MAX_PEER_TIMEOUT:?}");
            return Err(CommandError::Argument(message));
        }
        check_private_data(&parameters.private_data)
    }

    fn check_unconnected(&mut self, client: u32, queue: u32) -> Result<(), CommandError> {
        let pair = self.own_queue(client, queue)?;
        if pair.state != QueueState::Init {
            return Err(CommandError::WrongState { is: pair.state, needs: QueueState::Init });
        }
        if pair.connection.is_some() {
            return Err(CommandError::Argument("the queue pair is being connected already".into()));
        }
        Ok(())
    }

    fn check_request(&self, client: u32, request: u32) -> Result<(), CommandError> {
        let listener = self.requests.get(request).and_then(|request| self.listeners.get(request.listener));
        match listener {
            Some(listener) if listener.client == client => Ok(()),
            _ => Err(CommandError::NoSuch { what: "connection request".into(), handle: request }),
        }
    }
}

impl Listener {
    /// Returns whether a peer at this RNIC that connects to `target` finds this listener.
    fn listens_at(&self, target: SocketAddr, transport: Transport) -> bool {
        if self.transport != transport {
            return false;
        }
        let ip = self.address.ip();
        self.address.port() == target.port()
            && (ip == target.ip() || (ip.is_unspecified() && target.ip().is_loopback()))
    }
}

impl RequestOrigin {
    fn is_of(&self, queue: u32) -> bool {
        matches!(self, Self::Local { queue: other, .. } if *other == queue)
    }
}

fn check_private_data(data: &[u8]) -> Result<(), CommandError> {
    if data.len() <= MAX_PRIVATE_BYTES {
        return Ok(());
    }
    let (limit, requested) = (MAX_PRIVATE_BYTES as u64, data.len() as u64);
    Err(CommandError::Limit { what: "bytes of private data (RFC 5044, RFC 6581)".into(), limit, requested })
}
