//! TCP connections that are being set up: connecting, and the frames of MPA (RFC 5044 section 7, RFC 6581).

use crate::command::{CONNECT_TIMEOUT, CommandError, ConnectionEvent, ConnectionParameters};
use crate::connection::{ListenerSocket, Request, RequestOrigin};
use crate::engine::{Engine, encode_event, insert_object};
use crate::queue_pair::Path;
use crate::stream::Carrier;
use crate::tcp::tcp_stream;
use rustix::event::{Timespec, epoll};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_iwarp::ErrorCode;
use thalweg_iwarp::mpa::{self, EnhancedOffer, Initiator, ReadDepths, Reply, Responder, StartupOffer};

/// Events of sockets taken from the kernel at once.
const MAX_SOCKET_EVENTS: usize = 64;

/// TCP connections that are taken in at once by a listener.
const MAX_ACCEPTED: usize = 16;

/// Time for which the socket of a listener that has ended stays open: its program may listen there again, and a peer may come
/// in between. (perftest does so for its second connection.)
const SUCCESSOR_TIME: Duration = Duration::from_secs(1);

/// Length in bytes of the longest frame of MPA's set-up: key, flags and length, private data (RFC 5044 section 7.1).
const MAX_FRAME_BYTES: usize = 20 + 512;

/// A TCP connection that is no stream yet.
#[derive(Debug)]
pub(crate) struct Handshake {
    socket: TcpStream,
    step: Step,
    ready: bool,
}

#[derive(Debug)]
enum Step {
    /// This side connects: TCP first.
    Connecting(Box<Attempt>),
    /// This side has sent its request, but for these bytes of it.
    Initiating { attempt: Box<Attempt>, unsent: Vec<u8> },
    /// The peer is to send its request.
    Responding { listener: u32, peer: Option<SocketAddr>, responder: Box<Responder> },
}

/// Socket of a listener that has ended. Connections wait in it for the next listener of the program at the same address.
#[derive(Debug)]
pub(crate) struct EndedListener {
    client: u32,
    /// Handle that the listener had.
    handle: u32,
    address: SocketAddr,
    socket: TcpListener,
    deadline: Option<Instant>,
}

/// Attempt of a queue pair to connect.
#[derive(Debug)]
struct Attempt {
    queue: u32,
    address: SocketAddr,
    parameters: ConnectionParameters,
    initiator: Initiator,
}

/// Sockets of the RNIC: all are watched by one epoll.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    poll: Option<Arc<OwnedFd>>,
    /// Whether sockets of TCP have been among them: those of EFE are looked at without asking epoll.
    has_streams: bool,
    /// Beginning of the time that the set-up and EFE count in, and the last time that was looked at.
    epoch: Option<Instant>,
    last: Duration,
}

/// Kinds of sockets, in the upper half of an event's number; a handle is in the lower.
const KIND_SHIFT: u32 = 32;
const QUEUE_KIND: u64 = 0;
const HANDSHAKE_KIND: u64 = 1;
const LISTENER_KIND: u64 = 2;
const DATAGRAM_KIND: u64 = 3;

fn event_token(kind: u64, handle: u32) -> epoll::EventData {
    epoll::EventData::new_u64(kind << KIND_SHIFT | u64::from(handle))
}

/// Watches the socket of a port of EFE.
pub(crate) fn watch_datagrams(poll: &OwnedFd, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
    Ok(epoll::add(poll, descriptor, event_token(DATAGRAM_KIND, 0), epoll::EventFlags::IN)?)
}

fn watched_events() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
}

impl Engine {
    /// Returns the descriptor that is readable when a socket needs the RNIC's attention; `None` as long as it has none.
    pub fn poll_descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.sockets.poll.clone()
    }

    pub(crate) fn socket_poll(&mut self) -> std::io::Result<Arc<OwnedFd>> {
        if let Some(poll) = &self.sockets.poll {
            return Ok(Arc::clone(poll));
        }
        let poll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        self.sockets.poll = Some(Arc::clone(&poll));
        Ok(poll)
    }

    /// Listens with TCP, too: with the socket of a listener of the program that has just ended there, if there is one. Also
    /// returned is the handle that it had.
    pub(crate) fn listen_tcp(
        &mut self,
        client: u32,
        address: SocketAddr,
    ) -> Result<(TcpListener, Option<u32>), CommandError> {
        let at = self.ended_listeners.iter().position(|ended| ended.client == client && ended.address == address);
        if let Some(EndedListener { socket, handle, .. }) = at.map(|at| self.ended_listeners.swap_remove(at)) {
            return Ok((socket, Some(handle)));
        }
        // They would be in the way at the port.
        self.ended_listeners.retain(|ended| ended.address.port() != address.port());
        let failed = address_error(address);
        let listener = TcpListener::bind(address).map_err(&failed)?;
        listener.set_nonblocking(true).map_err(&failed)?;
        self.socket_poll().map_err(&failed)?;
        Ok((listener, None))
    }

    /// Keeps the socket of a listener that has ended.
    pub(crate) fn keep_listening(&mut self, (client, handle): (u32, u32), address: SocketAddr, socket: TcpListener) {
        if let Some(poll) = &self.sockets.poll {
            let _ = epoll::delete(poll, &socket);
        }
        self.ended_listeners.push(EndedListener { client, handle, address, socket, deadline: None });
    }

    /// Closes the sockets of a program's listeners that have ended.
    pub(crate) fn close_ended_listeners(&mut self, client: u32) {
        self.ended_listeners.retain(|ended| ended.client != client);
    }

    /// Hands connections that are being set up with a listener that has ended to its successor.
    pub(crate) fn hand_over_handshakes(&mut self, ended: u32, successor: u32) {
        for (_, handshake) in self.handshakes.iter_mut() {
            if let Step::Responding { listener, .. } = &mut handshake.step
                && *listener == ended
            {
                (*listener, handshake.ready) = (successor, true);
            }
        }
    }

    /// Closes the sockets of listeners that got no successor in time, and what was being set up with them.
    fn close_overdue_listeners(&mut self, now: Instant) {
        let mut overdue = Vec::new();
        self.ended_listeners.retain_mut(|ended| {
            let waits = now < *ended.deadline.get_or_insert(now + SUCCESSOR_TIME);
            overdue.extend((!waits).then_some(ended.handle));
            waits
        });
        for listener in overdue {
            let of_listener = self.handshakes.iter().filter(|(_, handshake)| handshake.is_for(listener));
            let of_listener: Vec<u32> = of_listener.map(|(handle, _)| handle).collect();
            of_listener.into_iter().for_each(|handle| drop(self.handshakes.remove(handle)));
        }
    }

    /// Watches a listener for connections.
    pub(crate) fn watch_listener(&mut self, handle: u32) {
        let Some(listener) = self.listeners.get(handle) else { return };
        let (Some(poll), ListenerSocket::Tcp(socket)) = (&self.sockets.poll, &listener.socket) else { return };
        let _ = epoll::add(poll, socket, event_token(LISTENER_KIND, handle), epoll::EventFlags::IN);
        self.sockets.has_streams = true;
    }

    /// Begins to connect a queue pair by TCP.
    pub(crate) fn connect_tcp(
        &mut self,
        queue: u32,
        address: SocketAddr,
        parameters: ConnectionParameters,
    ) -> Result<(), CommandError> {
        let initiator = Initiator::new(startup_offer(&parameters), self.last_socket_time());
        let initiator = initiator.map_err(|error| CommandError::Argument(error.to_string()))?;
        self.begin_attempt(Box::new(Attempt { queue, address, parameters, initiator }))
    }

    fn begin_attempt(&mut self, attempt: Box<Attempt>) -> Result<(), CommandError> {
        let address = attempt.address;
        let failed = address_error(address);
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
        self.add_handshake(TcpStream::from(socket), Step::Connecting(attempt)).map_err(&failed)
    }

    fn add_handshake(&mut self, socket: TcpStream, step: Step) -> std::io::Result<()> {
        let poll = self.socket_poll()?;
        self.sockets.has_streams = true;
        let reply = insert_object(&mut self.handshakes, Handshake { socket, step, ready: true }, "connections");
        if let Ok(crate::command::Reply::Handle(handle)) = reply
            && let Some(handshake) = self.handshakes.get(handle)
        {
            epoll::add(&poll, &handshake.socket, event_token(HANDSHAKE_KIND, handle), watched_events())?;
        }
        Ok(())
    }

    /// Takes note of sockets that are ready, and goes on with connections that are being set up. Returns whether anything
    /// was done.
    pub(crate) fn serve_sockets(&mut self, now: Instant) -> bool {
        if self.sockets.poll.is_none() {
            return false;
        }
        self.update_time(now);
        let mut any = self.sockets.has_streams && self.take_socket_events(now);
        any |= self.serve_efe_ports(self.sockets.last);
        for index in 0..self.handshakes.place_count() {
            if let Some(handle) = self.handshakes.handle_at(index) {
                self.continue_handshake(handle, now);
            }
        }
        if !self.lingering.is_empty() {
            self.serve_lingering_sockets(now);
        }
        if !self.ended_listeners.is_empty() {
            self.close_overdue_listeners(now);
        }
        any
    }

    /// Takes note of the sockets of TCP that the kernel reports. Returns whether there were any.
    fn take_socket_events(&mut self, now: Instant) -> bool {
        let Some(poll) = &self.sockets.poll else { return false };
        let mut events = Vec::with_capacity(MAX_SOCKET_EVENTS);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(poll, rustix::buffer::spare_capacity(&mut events), Some(&zero));
        let any = !events.is_empty();
        for event in events {
            let (flags, kind, handle) = (event.flags, event.data.u64() >> KIND_SHIFT, event.data.u64() as u32);
            match kind {
                QUEUE_KIND => {
                    let path = self.queues.get_mut(handle).and_then(|pair| pair.stream.as_mut());
                    if let Some(Carrier::Tcp(tcp)) = path.map(|path| &mut path.carrier) {
                        tcp.note_events(flags);
                    }
                }
                HANDSHAKE_KIND => {
                    if let Some(handshake) = self.handshakes.get_mut(handle) {
                        handshake.ready = true;
                    }
                }
                LISTENER_KIND => self.accept_connections(handle, now),
                // Datagrams: all ports look for some.
                _ => {}
            }
        }
        any
    }

    /// Returns when a connection that is being set up, or a socket of an ended stream, is to be looked at again.
    pub(crate) fn socket_deadline(&self) -> Option<Instant> {
        let epoch = self.sockets.epoch;
        let handshakes = self.handshakes.iter().filter_map(|(_, handshake)| match &handshake.step {
            Step::Connecting(attempt) | Step::Initiating { attempt, .. } => {
                epoch.map(|epoch| epoch + attempt.initiator.deadline())
            }
            Step::Responding { responder, .. } => epoch.map(|epoch| epoch + responder.deadline()),
        });
        let packets = self.efe_deadline().and_then(|deadline| Some(epoch? + deadline));
        let lingering = self.lingering.iter().filter_map(|socket| socket.linger_deadline());
        let ended = self.ended_listeners.iter().filter_map(|ended| ended.deadline);
        handshakes.chain(packets).chain(lingering).chain(ended).min()
    }

    /// Returns the last time that was looked at.
    pub(crate) fn last_socket_time(&self) -> Duration {
        self.sockets.last
    }

    /// Sets the time from which waits count that the next command begins. An RNIC that nothing drives for long does not
    /// know it.
    pub fn update_time(&mut self, now: Instant) {
        self.sockets.epoch.get_or_insert(now);
        self.sockets.last = self.since_epoch(now);
    }

    fn since_epoch(&self, now: Instant) -> Duration {
        self.sockets.epoch.map_or(Duration::ZERO, |epoch| now.saturating_duration_since(epoch))
    }

    fn accept_connections(&mut self, listener: u32, now: Instant) {
        for _ in 0..MAX_ACCEPTED {
            let Some(found) = self.listeners.get(listener) else { return };
            let ListenerSocket::Tcp(socket) = &found.socket else { return };
            let Ok((socket, peer)) = socket.accept() else { return };
            // Beyond the backlog, a peer finds its connection closed.
            let waiting = self.handshakes.iter().filter(|(_, other)| other.is_for(listener)).count();
            if waiting >= found.backlog as usize || socket.set_nonblocking(true).is_err() {
                continue;
            }
            let responder = Box::new(Responder::new(CONNECT_TIMEOUT, self.since_epoch(now)));
            // Without a descriptor or memory for it, the peer finds its connection closed.
            let _ = self.add_handshake(socket, Step::Responding { listener, peer: Some(peer), responder });
        }
    }

    fn continue_handshake(&mut self, handle: u32, now: Instant) {
        let since = self.since_epoch(now);
        let Some(handshake) = self.handshakes.get_mut(handle) else { return };
        if self.ended_listeners.iter().any(|ended| handshake.is_for(ended.handle)) {
            // It waits for the next listener.
            handshake.ready = false;
            return;
        }
        let late = match &handshake.step {
            Step::Connecting(attempt) => attempt
                .initiator
                .check_deadline(since)
                .err()
                .map(|_| format!("{} has not answered the TCP connection in time", attempt.address)),
            Step::Initiating { attempt, .. } => {
                attempt.initiator.check_deadline(since).err().map(|error| error.to_string())
            }
            Step::Responding { responder, .. } => responder.check_deadline(since).err().map(|error| error.to_string()),
        };
        if !std::mem::take(&mut handshake.ready) && late.is_none() {
            return;
        }
        let Some(Handshake { socket, step, .. }) = self.handshakes.take(handle) else { return };
        let queue = step.connecting_queue();
        let next = match (late, step) {
            (Some(reason), _) => Err(reason),
            (None, Step::Connecting(attempt)) => finish_connecting(&socket, attempt),
            (None, Step::Initiating { attempt, unsent }) => self.continue_initiating(&socket, attempt, unsent),
            (None, Step::Responding { listener, peer, responder }) => {
                self.continue_responding(&socket, listener, peer, responder)
            }
        };
        match next {
            Ok(Progress::Step(step, ready)) => {
                return self.handshakes.put_back(handle, Handshake { socket, step, ready });
            }
            Ok(Progress::Stream { queue, terms, own, private_data }) => {
                self.start_stream(queue, socket, &terms, &own, private_data, Vec::new());
            }
            Ok(Progress::Request { listener, peer, request }) => {
                self.announce_tcp_request(listener, peer, socket, *request)
            }
            Ok(Progress::Rejected { queue, private_data }) => {
                self.end_attempt(queue, &ConnectionEvent::Rejected { private_data });
            }
            Ok(Progress::FallBack(attempt)) => {
                let queue = attempt.queue;
                if let Err(error) = self.begin_attempt(attempt) {
                    self.end_attempt(queue, &ConnectionEvent::Failed { reason: error.to_string() });
                }
            }
            Err(reason) => {
                if let Some(queue) = queue {
                    self.end_attempt(queue, &ConnectionEvent::Failed { reason });
                }
            }
        }
        self.handshakes.give_up(handle);
    }

    /// Sends what is left of the request, and takes the reply.
    fn continue_initiating(
        &mut self,
        mut socket: &TcpStream,
        mut attempt: Box<Attempt>,
        mut unsent: Vec<u8>,
    ) -> Result<Progress, String> {
        if !send_frame(socket, &mut unsent)? {
            return Ok(Progress::Step(Step::Initiating { attempt, unsent }, false));
        }
        // One byte after the other would be allowed; the reply ends where it says, and FPDUs follow only after this side
        // has sent one (RFC 5044 section 7.1.2 rule 4).
        let mut bytes = [0; MAX_FRAME_BYTES];
        let received = match read_some(&mut socket, &mut bytes)? {
            None => return Ok(Progress::Step(Step::Initiating { attempt, unsent }, false)),
            Some(0) => return fall_back(attempt, self.last_socket_time()),
            Some(received) => received,
        };
        let (taken, reply) = attempt.initiator.receive(&bytes[..received]).map_err(|error| error.to_string())?;
        if taken < received {
            return Err(
                "the peer sent more than its reply before this side's first message (RFC 5044 section 7.1.2)".into()
            );
        }
        let queue = attempt.queue;
        match reply {
            None => Ok(Progress::Step(Step::Initiating { attempt, unsent }, true)),
            Some(Reply::Accepted { connection, private_data }) => {
                Ok(Progress::Stream { queue, terms: connection, own: attempt.parameters, private_data })
            }
            Some(Reply::Rejected { private_data, .. }) => Ok(Progress::Rejected { queue, private_data }),
            // RFC 6581 section 9: a Terminate message says why.
            Some(Reply::Unusable { connection, error }) => {
                self.refuse_terms(queue, socket, &connection, error);
                Err(format!("the peer accepted on terms that this side cannot fulfil: {error}"))
            }
        }
    }

    /// Takes the request of a peer.
    fn continue_responding(
        &mut self,
        mut socket: &TcpStream,
        listener: u32,
        peer: Option<SocketAddr>,
        mut responder: Box<Responder>,
    ) -> Result<Progress, String> {
        let mut bytes = [0; MAX_FRAME_BYTES];
        let received = match read_some(&mut socket, &mut bytes)? {
            None => return Ok(Progress::Step(Step::Responding { listener, peer, responder }, false)),
            Some(0) => return Err("closed".into()),
            Some(received) => received,
        };
        let (taken, request) = responder.receive(&bytes[..received]).map_err(|error| error.to_string())?;
        match request {
            None => Ok(Progress::Step(Step::Responding { listener, peer, responder }, true)),
            // The initiator sends nothing before it has the reply.
            Some(_) if taken < received => Err("bytes behind the request".into()),
            Some(request) => Ok(Progress::Request { listener, peer, request: Box::new(request) }),
        }
    }

    /// Makes a queue pair's stream of a connection that is set up: it is in state RTS then. `first` goes out before all
    /// else.
    pub(crate) fn start_stream(
        &mut self,
        queue: u32,
        socket: TcpStream,
        terms: &mpa::Connection,
        own: &ConnectionParameters,
        private_data: Vec<u8>,
        first: Vec<u8>,
    ) {
        let path = match tcp_stream(socket, terms, first, own.peer_timeout) {
            Ok(path) => path,
            Err(error) => return self.end_attempt(queue, &ConnectionEvent::Failed { reason: error.to_string() }),
        };
        if let (Some(poll), Carrier::Tcp(tcp)) = (&self.sockets.poll, &path.carrier) {
            // It may be watched as a connection that is being set up, or not at all any more.
            let _ = epoll::delete(poll, tcp.tcp_socket());
            if epoll::add(poll, tcp.tcp_socket(), event_token(QUEUE_KIND, queue), watched_events()).is_err() {
                let reason = "the kernel watches no more sockets".into();
                return self.end_attempt(queue, &ConnectionEvent::Failed { reason });
            }
        }
        let Some(pair) = self.queues.get_mut(queue) else { return };
        pair.stream = Some(Box::new(path));
        let parameters = ConnectionParameters {
            private_data: Vec::new(),
            inbound_reads: u32::from(terms.inbound_requests),
            outbound_reads: u32::from(terms.outbound_requests),
            receiver_retries: own.receiver_retries,
            peer_timeout: own.peer_timeout,
            needs_crc: terms.crc,
        };
        self.establish_connection(queue, Path::Stream, &parameters, private_data);
        self.take_stream_turn(queue);
    }

    /// Returns whether a connection that is being set up can go on at once.
    pub(crate) fn has_ready_handshake(&self) -> bool {
        self.handshakes.iter().any(|(_, handshake)| handshake.ready)
    }

    /// Tells a peer that its terms cannot be fulfilled.
    fn refuse_terms(&mut self, queue: u32, socket: &TcpStream, terms: &mpa::Connection, error: ErrorCode) {
        let Ok(socket) = socket.try_clone() else { return };
        let Ok(mut path) = tcp_stream(socket, terms, Vec::new(), CONNECT_TIMEOUT) else { return };
        path.stream.terminate(error);
        self.close_stream_path(queue, Box::new(path));
    }

    /// Informs a listener's program of a peer that wants to connect.
    fn announce_tcp_request(
        &mut self,
        listener: u32,
        peer: Option<SocketAddr>,
        socket: TcpStream,
        request: mpa::Request,
    ) {
        let waiting = self.requests.iter().filter(|(_, request)| request.listener == listener).count();
        let Some(found) = self.listeners.get_mut(listener).filter(|found| waiting < found.backlog as usize) else {
            return;
        };
        let depths = request.depths().unwrap_or_default();
        // Not negotiated, or more than this RNIC has: its own limit.
        let max_reads = self.limits.max_reads;
        let parameters = ConnectionParameters {
            private_data: request.private_data().to_vec(),
            inbound_reads: depths.outbound.map_or(max_reads, u32::from).min(max_reads),
            outbound_reads: depths.inbound.map_or(max_reads, u32::from).min(max_reads),
            ..ConnectionParameters::default()
        };
        if let Some(poll) = &self.sockets.poll {
            let _ = epoll::delete(poll, &socket);
        }
        let origin = RequestOrigin::Tcp { socket, request: Box::new(request) };
        let Ok(crate::command::Reply::Handle(handle)) =
            insert_object(&mut self.requests, Request { listener, origin }, "connection requests")
        else {
            return;
        };
        let event = ConnectionEvent::Request { request: handle, peer, parameters };
        self.events_wait |= found.events.send_event(encode_event(&event));
    }

    /// Ends the set-up of a queue pair's connection.
    pub(crate) fn abandon_handshakes_of(&mut self, queue: u32) {
        let of_queue = self.handshakes.iter().filter(|(_, handshake)| handshake.step.connecting_queue() == Some(queue));
        let of_queue: Vec<u32> = of_queue.map(|(handle, _)| handle).collect();
        of_queue.into_iter().for_each(|handle| drop(self.handshakes.remove(handle)));
    }
}

impl Handshake {
    fn is_for(&self, listener: u32) -> bool {
        matches!(self.step, Step::Responding { listener: other, .. } if other == listener)
    }
}

impl Step {
    /// Returns the queue pair of this RNIC that connects.
    fn connecting_queue(&self) -> Option<u32> {
        match self {
            Self::Connecting(attempt) | Self::Initiating { attempt, .. } => Some(attempt.queue),
            Self::Responding { .. } => None,
        }
    }
}

/// State of a set-up after something came.
enum Progress {
    /// The set-up goes on, at once if the flag is set.
    Step(Step, bool),
    /// This side's queue pair is connected.
    Stream { queue: u32, terms: mpa::Connection, own: ConnectionParameters, private_data: Vec<u8> },
    /// A peer wants to connect.
    Request { listener: u32, peer: Option<SocketAddr>, request: Box<mpa::Request> },
    /// The peer does not want to.
    Rejected { queue: u32, private_data: Vec<u8> },
    /// The peer may know revision 1 alone: a new TCP connection is to be made for it.
    FallBack(Box<Attempt>),
}

/// Sends the request once TCP is connected.
fn finish_connecting(socket: &TcpStream, attempt: Box<Attempt>) -> Result<Progress, String> {
    match socket.take_error() {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return Err(format!("connecting to {}: {error}", attempt.address)),
    }
    if socket.peer_addr().is_err() {
        return Ok(Progress::Step(Step::Connecting(attempt), false));
    }
    let unsent = attempt.initiator.request_frame().to_vec();
    Ok(Progress::Step(Step::Initiating { attempt, unsent }, true))
}

/// Returns what this side asks of a peer.
fn startup_offer(parameters: &ConnectionParameters) -> StartupOffer {
    let inbound = Some(read_depth(parameters.inbound_reads));
    let depths = ReadDepths { inbound, outbound: Some(read_depth(parameters.outbound_reads)) };
    StartupOffer {
        crc: parameters.needs_crc,
        private_data: parameters.private_data.clone(),
        // Verbs negotiate the depths, and let either side send first: both need RFC 6581.
        enhanced: Some(EnhancedOffer { depths, peer_to_peer: true }),
        timeout: CONNECT_TIMEOUT,
        ..StartupOffer::default()
    }
}

/// Goes on after the peer has closed the connection instead of a reply: once more, in revision 1 (RFC 6581 section 10).
fn fall_back(mut attempt: Box<Attempt>, since: Duration) -> Result<Progress, String> {
    attempt.initiator = attempt.initiator.fall_back(since).ok_or(
        "the peer closed the connection instead of a reply, to a request of revision 1 as to one of revision 2 (RFC 5044 \
         section 7.1.2): is it an RNIC's port?",
    )?;
    Ok(Progress::FallBack(attempt))
}

/// Returns a function for `map_err` on a system call for an address.
pub(crate) fn address_error(address: SocketAddr) -> impl Fn(std::io::Error) -> CommandError {
    move |error| CommandError::Address { address, reason: error.to_string() }
}

/// Returns a number of reads as MPA states it. The RNIC's limit is far below MPA's.
fn read_depth(reads: u32) -> u16 {
    reads.min(u32::from(mpa::MAX_READ_DEPTH)) as u16
}

/// Sends the rest of a frame. Returns whether all is sent.
fn send_frame(mut socket: &TcpStream, unsent: &mut Vec<u8>) -> Result<bool, String> {
    while !unsent.is_empty() {
        match socket.write(unsent) {
            Ok(bytes) => drop(unsent.drain(..bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("sending the request: {error}")),
        }
    }
    Ok(true)
}

/// Reads what there is: no bytes if the peer has closed the connection, `None` if there is nothing yet.
fn read_some(socket: &mut &TcpStream, bytes: &mut [u8]) -> Result<Option<usize>, String> {
    match socket.read(bytes) {
        Ok(received) => Ok(Some(received)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        // Closed with bytes of this side unread.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Some(0)),
        Err(error) => Err(format!("the TCP connection was lost: {error}")),
    }
}
