//! Connections of queue pairs of a device, by librdmacm.

use super::no_such;
use super::queues::Pair;
use crate::device::VerbsError;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use thalweg_ibverbs::{
    ConnectParameters, Context, EventChannel, EventKind, IbverbsError, Id, ManagerEvent, REJECTED_BY_CONSUMER,
};
use thalweg_rnic::{CONNECT_TIMEOUT, CommandError, ConnectionEvent, ConnectionParameters, EventSocket};

/// Listeners, connections that peers want, and connections, by the tokens of their ids or by their handles.
#[derive(Debug, Default)]
pub(super) struct Connections {
    listeners: HashMap<u32, Listener>,
    requests: HashMap<u32, Request>,
    /// By the tokens of their ids.
    connections: HashMap<usize, Connection>,
}

#[derive(Debug)]
struct Listener {
    id: Id,
    /// Connections that may wait for an answer.
    backlog: u32,
    events: EventSocket,
}

#[derive(Debug)]
struct Request {
    id: Id,
    /// Token of the listener's id.
    listener: usize,
    parameters: ConnectParameters,
}

#[derive(Debug)]
struct Connection {
    id: Id,
    queue: u32,
    events: EventSocket,
    /// Parameters of this side.
    parameters: ConnectionParameters,
    /// Parameters of the peer, where its request had them: the event of the establishment has none then.
    requested: Option<ConnectParameters>,
    /// Time at which it is given up; `None` once it is up.
    deadline: Option<Instant>,
}

/// Outcome of an event for a connection.
enum Outcome {
    /// The connection is being made.
    Continues,
    /// It is up.
    Established,
    /// It has ended, or was not made, for the reason that the event names.
    Ended(ConnectionEvent),
}

impl Outcome {
    fn failed(reason: String) -> Self {
        Self::Ended(ConnectionEvent::Failed { reason })
    }
}

impl Connections {
    pub(super) fn has_queue(&self, queue: u32) -> bool {
        self.connections.values().any(|connection| connection.queue == queue)
    }

    /// Returns whether connections are being made, so that events are to be looked at often.
    pub(super) fn is_busy(&self) -> bool {
        self.connections.values().any(|connection| connection.deadline.is_some())
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(|connection| connection.deadline).min()
    }

    pub(super) fn listen(
        &mut self,
        channel: &Arc<EventChannel>,
        handle: u32,
        (address, backlog): (SocketAddr, u32),
        events: EventSocket,
    ) -> Result<SocketAddr, VerbsError> {
        let id = Id::create(channel)?;
        let bound = id
            .listen(address, backlog)
            .map_err(|error| CommandError::Address { address, reason: error.to_string() })?;
        self.listeners.insert(handle, Listener { id, backlog, events });
        Ok(bound)
    }

    /// Ends a listener. Its requests that were not answered are the program's still.
    pub(super) fn remove_listener(&mut self, listener: u32) {
        self.listeners.remove(&listener);
    }

    /// Begins to connect a queue pair.
    pub(super) fn begin_connect(
        &mut self,
        channel: &Arc<EventChannel>,
        queue: u32,
        (address, parameters): (SocketAddr, ConnectionParameters),
        events: EventSocket,
    ) -> Result<(), VerbsError> {
        let id = Id::create(channel)?;
        id.resolve_address(address, CONNECT_TIMEOUT)?;
        self.add_connection(id, queue, (parameters, None), events);
        Ok(())
    }

    /// Adds a connection with the parameters of this side and, if they are known, of the peer.
    fn add_connection(
        &mut self,
        id: Id,
        queue: u32,
        (parameters, requested): (ConnectionParameters, Option<ConnectParameters>),
        events: EventSocket,
    ) {
        let deadline = Some(Instant::now() + CONNECT_TIMEOUT);
        self.connections.insert(id.token(), Connection { id, queue, events, parameters, requested, deadline });
    }

    /// Accepts a connection.
    pub(super) fn accept(
        &mut self,
        context: &Context,
        request: u32,
        (queue, pair): (u32, &mut Pair),
        parameters: ConnectionParameters,
        events: EventSocket,
    ) -> Result<(), VerbsError> {
        let Request { mut id, parameters: wanted, .. } =
            self.requests.remove(&request).ok_or_else(|| no_such("connection request", request))?;
        check_device(&id, context)?;
        id.set_queue(pair.device_queue(), pair.access().bits())?;
        let mut all = device_parameters(&parameters);
        // No more reads than the peer has outstanding, or serves.
        all.responder_resources = all.responder_resources.min(wanted.responder_resources);
        all.initiator_depth = all.initiator_depth.min(wanted.initiator_depth);
        id.accept(&all)?;
        pair.note_accepting();
        self.add_connection(id, queue, (parameters, Some(wanted)), events);
        Ok(())
    }

    pub(super) fn reject(&mut self, request: u32, private_data: &[u8]) -> Result<(), VerbsError> {
        let request = self.requests.remove(&request).ok_or_else(|| no_such("connection request", request))?;
        Ok(request.id.reject(private_data)?)
    }

    /// Ends the connection of a queue pair. The event of its end follows.
    pub(super) fn disconnect(&mut self, queue: u32) {
        for connection in self.connections.values().filter(|connection| connection.queue == queue) {
            // It may have ended by itself.
            let _ = connection.id.disconnect();
        }
    }

    /// Ends the connection of a queue pair, without an event.
    pub(super) fn remove_queue(&mut self, queue: u32) {
        self.disconnect(queue);
        self.connections.retain(|_, connection| connection.queue != queue);
    }

    /// Processes an event. A connection that a peer wants gets `handle`. Returns the queue pair whose requests are to be looked
    /// at: it is connected now, or in error.
    pub(super) fn process_event(
        &mut self,
        context: &Context,
        handle: u32,
        event: ManagerEvent,
        pairs: &mut HashMap<u32, Pair>,
    ) -> Option<u32> {
        if event.kind == EventKind::ConnectRequest {
            self.add_request(handle, event);
            return None;
        }
        let connection = self.connections.get_mut(&event.token)?;
        let pair = pairs.get_mut(&connection.queue)?;
        let queue = connection.queue;
        match connection.continue_connecting(context, &event, pair) {
            Outcome::Continues => return None,
            Outcome::Established => {
                connection.deadline = None;
                let theirs = connection.requested.as_ref().unwrap_or(&event.parameters);
                let parameters = own_view(theirs, &connection.parameters);
                pair.note_connected(parameters.outbound_reads.min(connection.parameters.outbound_reads));
                connection.events.send_connection_event(&ConnectionEvent::Established { parameters });
            }
            Outcome::Ended(reason) => {
                pair.enter_error();
                self.end_connection(event.token, &reason);
            }
        }
        Some(queue)
    }

    fn add_request(&mut self, handle: u32, event: ManagerEvent) {
        let token = event.token;
        let waiting = self.requests.values().filter(|request| request.listener == token).count();
        let listener = self.listeners.values_mut().find(|listener| listener.id.token() == token);
        // Dropping the id rejects the connection: the listener has ended, or its backlog is full.
        let (Some(listener), Some(id)) = (listener, event.request) else { return };
        if waiting >= listener.backlog.max(1) as usize {
            return;
        }
        let peer = id.peer_address();
        let parameters = own_view(&event.parameters, &ConnectionParameters::default());
        self.requests.insert(handle, Request { id, listener: token, parameters: event.parameters });
        listener.events.send_connection_event(&ConnectionEvent::Request { request: handle, peer, parameters });
    }

    fn end_connection(&mut self, token: usize, reason: &ConnectionEvent) {
        if let Some(mut connection) = self.connections.remove(&token) {
            connection.events.send_connection_event(reason);
        }
    }

    /// Gives up connections that are not made in time. Returns their queue pairs.
    pub(super) fn end_overdue(&mut self, now: Instant, pairs: &mut HashMap<u32, Pair>) -> Vec<u32> {
        let overdue = self.connections.values().filter(|connection| connection.is_overdue(now));
        let overdue: Vec<(usize, u32)> = overdue.map(|one| (one.id.token(), one.queue)).collect();
        for (token, queue) in &overdue {
            pairs.get_mut(queue).into_iter().for_each(Pair::enter_error);
            let reason = format!("the peer has not answered within {} s", CONNECT_TIMEOUT.as_secs());
            self.end_connection(*token, &ConnectionEvent::Failed { reason });
        }
        overdue.into_iter().map(|(_, queue)| queue).collect()
    }

    /// Sends events that wait for programs which did not read theirs.
    pub(super) fn flush_events(&mut self) {
        let of_listeners = self.listeners.values_mut().map(|listener| &mut listener.events);
        for events in of_listeners.chain(self.connections.values_mut().map(|connection| &mut connection.events)) {
            events.flush_backlog();
        }
    }
}

impl Connection {
    fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Takes the next step after an event.
    fn continue_connecting(&mut self, context: &Context, event: &ManagerEvent, pair: &mut Pair) -> Outcome {
        let is_up = self.deadline.is_none();
        match event.kind {
            EventKind::AddressResolved => match check_device(&self.id, context) {
                Ok(()) => continue_after(self.id.resolve_route(CONNECT_TIMEOUT)),
                Err(error) => Outcome::failed(error.to_string()),
            },
            EventKind::RouteResolved => {
                let queue = pair.device_queue();
                let prepared = self.id.set_queue(queue, pair.access().bits());
                continue_after(prepared.and_then(|()| self.id.connect(&device_parameters(&self.parameters))))
            }
            EventKind::Established => Outcome::Established,
            EventKind::Rejected if context.is_iwarp() || event.status == REJECTED_BY_CONSUMER => {
                Outcome::Ended(ConnectionEvent::Rejected { private_data: event.parameters.private_data.clone() })
            }
            EventKind::Disconnected => {
                // This end's part; the queue pair flushes.
                let _ = self.id.disconnect();
                Outcome::Ended(ConnectionEvent::Disconnected { reason: "the peer has ended the connection".into() })
            }
            EventKind::DeviceRemoval if is_up => {
                let reason = format!("the RDMA device {} was removed", context.device_name());
                Outcome::Ended(ConnectionEvent::Disconnected { reason })
            }
            EventKind::ConnectRequest | EventKind::Other => Outcome::Continues,
            kind => Outcome::failed(describe_failure(kind, event.status)),
        }
    }
}

fn continue_after(step: Result<(), IbverbsError>) -> Outcome {
    match step {
        Ok(()) => Outcome::Continues,
        Err(error) => Outcome::failed(error.to_string()),
    }
}

/// Returns why a connection was not made, in words.
fn describe_failure(kind: EventKind, status: i32) -> String {
    let what = match kind {
        EventKind::AddressError => "no RDMA device reaches the address",
        EventKind::RouteError => "there is no way to the address",
        EventKind::Unreachable => "the peer does not answer",
        EventKind::Rejected => "the peer refused the connection; does a program listen there?",
        EventKind::DeviceRemoval => "the RDMA device was removed",
        _ => "the connection could not be made",
    };
    match status {
        0 => what.into(),
        ..0 => format!("{what}: {}", std::io::Error::from_raw_os_error(status.saturating_neg())),
        _ => format!("{what} (status {status})"),
    }
}

/// Checks that a connection's address is reached by the device.
fn check_device(id: &Id, context: &Context) -> Result<(), VerbsError> {
    if id.is_of_device(context) {
        return Ok(());
    }
    let reason = format!("the address is not reached by the RDMA device {}, but by another one", context.device_name());
    Err(CommandError::Argument(reason).into())
}

fn read_depth(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

fn device_parameters(parameters: &ConnectionParameters) -> ConnectParameters {
    ConnectParameters {
        private_data: parameters.private_data.clone(),
        responder_resources: read_depth(parameters.inbound_reads),
        initiator_depth: read_depth(parameters.outbound_reads),
        receiver_retries: parameters.receiver_retries & 7,
    }
}

/// Returns the parameters of the peer, as an event reports them from this side: reads that it may have outstanding here, and
/// that it serves.
fn own_view(theirs: &ConnectParameters, own: &ConnectionParameters) -> ConnectionParameters {
    ConnectionParameters {
        private_data: theirs.private_data.clone(),
        inbound_reads: u32::from(theirs.responder_resources),
        outbound_reads: u32::from(theirs.initiator_depth),
        receiver_retries: theirs.receiver_retries,
        peer_timeout: own.peer_timeout,
        needs_crc: own.needs_crc,
    }
}
