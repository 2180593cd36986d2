//! Connection management: listen, connect, accept, reject, disconnect.

use crate::device::{Device, DeviceInner, VerbsError, deadline_after, event_sockets, serde_json_event};
use crate::queue_pair::{QueuePair, QueuePairInner};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use thalweg_rnic::{Command, CommandError, ConnectionEvent, ConnectionParameters, QueueState, Reply, Transport};
use thiserror::Error;

/// Reason why a queue pair was not connected.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The peer's program has rejected the connection.
    #[error("the peer rejected the connection ({} bytes of private data)", .private_data.len())]
    Rejected {
        /// Data from the peer's program.
        private_data: Vec<u8>,
    },
    /// The peer cannot be reached, or broke the protocol.
    #[error("connection failed: {0}")]
    Failed(String),
    /// The peer has not answered.
    #[error("the peer has not answered within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The RNIC refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Listens for connections.
#[doc(alias = "rdma_listen")]
#[derive(Debug)]
pub struct Listener {
    device: Arc<DeviceInner>,
    handle: u32,
    address: SocketAddr,
    events: OwnedFd,
}

/// A connection that a peer wants. Dropping it rejects it.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
#[derive(Debug)]
pub struct ConnectionRequest {
    device: Arc<DeviceInner>,
    handle: u32,
    peer: Option<SocketAddr>,
    parameters: ConnectionParameters,
    answered: bool,
}

/// A connection that is being made.
#[derive(Debug)]
pub struct PendingConnection {
    device: Arc<DeviceInner>,
    /// Not kept alive by this.
    queue: Weak<QueuePairInner>,
    events: OwnedFd,
}

/// A connection, whose queue pair is in state RTS until it ends.
#[derive(Debug)]
pub struct Connection {
    device: Arc<DeviceInner>,
    events: OwnedFd,
    parameters: ConnectionParameters,
}

impl Device {
    /// Listens at an address; port 0: any that is free.
    ///
    /// # Errors
    /// The address is in use, or the RNIC has ended.
    pub fn listen(&self, address: SocketAddr, backlog: u32) -> Result<Listener, VerbsError> {
        self.listen_over(Transport::Tcp, address, backlog)
    }

    /// Listens as [`listen`](Self::listen) does, for peers that come by `transport`.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn listen_over(&self, transport: Transport, address: SocketAddr, backlog: u32) -> Result<Listener, VerbsError> {
        let (events, theirs) = event_sockets()?;
        match self.inner.call_rnic(Command::Listen { address, transport, backlog }, vec![theirs])? {
            Reply::Listening { listener, address } => {
                Ok(Listener { device: Arc::clone(&self.inner), handle: listener, address, events })
            }
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }
}

/// The descriptor is readable when a peer wants to connect. With an embedded RNIC, a thread must drive it meanwhile.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Listener {
    /// Returns the address.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a peer that wants to connect. `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// The RNIC has ended.
    pub fn wait_for_request(&self, timeout: Duration) -> Result<Option<ConnectionRequest>, VerbsError> {
        let end = deadline_after(timeout);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(message) = self.device.receive_message(&self.events, left)? else { return Ok(None) };
            if let ConnectionEvent::Request { request, peer, parameters } = serde_json_event(&message)? {
                let device = Arc::clone(&self.device);
                return Ok(Some(ConnectionRequest { device, handle: request, peer, parameters, answered: false }));
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.device.call_rnic(Command::DestroyListener(self.handle), Vec::new());
    }
}

impl ConnectionRequest {
    /// Returns the peer's address; `None` for a peer at the same RNIC.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns the peer's parameters: its private data, and in `inbound_reads` the reads that it wants to have outstanding
    /// here.
    pub fn peer_parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// Accepts the connection with a queue pair in state INIT, whose receives should be posted.
    ///
    /// # Errors
    /// The queue pair is in another state, the peer has gone, or does not go on within `timeout`.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        queue: &QueuePair,
        parameters: ConnectionParameters,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        self.begin_accept(queue, parameters)?.wait_until_established(queue, timeout)
    }

    /// Accepts the connection as [`accept`](Self::accept) does, without waiting. Requests may be posted at once: they wait for
    /// the connection.
    ///
    /// # Errors
    /// The queue pair is in another state, or the peer has gone.
    pub fn begin_accept(
        mut self,
        queue: &QueuePair,
        parameters: ConnectionParameters,
    ) -> Result<PendingConnection, VerbsError> {
        let (events, theirs) = event_sockets()?;
        let command = Command::Accept { request: self.handle, queue: queue.queue_number(), parameters };
        self.device.call_for_done(command, vec![theirs])?;
        self.answered = true;
        queue.note_state(QueueState::ReadyToSend);
        Ok(queue.pending_connection(events))
    }

    /// Rejects the connection.
    ///
    /// # Errors
    /// The private data are too long, or the peer has gone.
    #[doc(alias = "rdma_reject")]
    pub fn reject(mut self, private_data: Vec<u8>) -> Result<(), VerbsError> {
        self.answered = true;
        self.device.call_for_done(Command::Reject { request: self.handle, private_data }, Vec::new())
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if !self.answered {
            let _ =
                self.device.call_rnic(Command::Reject { request: self.handle, private_data: Vec::new() }, Vec::new());
        }
    }
}

impl QueuePair {
    /// Connects the queue pair, which is in state INIT, to a listener. Peers at the same RNIC move bytes from memory to
    /// memory.
    ///
    /// # Errors
    /// See [`ConnectError`]. After a timeout the queue pair is in the error state.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        address: SocketAddr,
        parameters: ConnectionParameters,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        self.connect_over(Transport::Tcp, address, parameters, timeout)
    }

    /// Connects the queue pair as [`connect`](Self::connect) does, to a listener for peers that come by `transport`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_over(
        &self,
        transport: Transport,
        address: SocketAddr,
        parameters: ConnectionParameters,
        timeout: Duration,
    ) -> Result<Connection, ConnectError> {
        self.begin_connect(transport, address, parameters)?.wait_until_established(self, timeout)
    }

    /// Begins to connect the queue pair, as [`connect_over`](Self::connect_over) does.
    ///
    /// # Errors
    /// The queue pair is in another state, or the RNIC refuses.
    pub fn begin_connect(
        &self,
        transport: Transport,
        address: SocketAddr,
        parameters: ConnectionParameters,
    ) -> Result<PendingConnection, VerbsError> {
        let (events, theirs) = event_sockets()?;
        let command = Command::Connect { queue: self.queue_number(), address, transport, parameters };
        self.rnic_device().call_for_done(command, vec![theirs])?;
        Ok(self.pending_connection(events))
    }

    fn pending_connection(&self, events: OwnedFd) -> PendingConnection {
        PendingConnection { device: Arc::clone(self.rnic_device()), queue: Arc::downgrade(&self.inner), events }
    }

    /// Ends the connection: what is posted on both sides is flushed.
    ///
    /// # Errors
    /// The RNIC has ended.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        self.rnic_device().call_for_done(Command::Disconnect(self.queue_number()), Vec::new())
    }
}

impl Connection {
    /// Returns the peer's private data, and the limits of reads that are in force.
    pub fn peer_parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// Waits for the end of the connection and returns its reason. `None` if it does not end within `timeout`.
    ///
    /// # Errors
    /// The RNIC has ended.
    pub fn wait_for_end(&self, timeout: Duration) -> Result<Option<String>, VerbsError> {
        let Some(message) = self.device.receive_message(&self.events, timeout)? else { return Ok(None) };
        match serde_json_event(&message)? {
            ConnectionEvent::Disconnected { reason } | ConnectionEvent::Failed { reason } => Ok(Some(reason)),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }
}

impl PendingConnection {
    /// Returns the next event of making the connection, and of the connection itself; `None` if there is none now. The queue
    /// pair is in state RTS from [`ConnectionEvent::Established`] on.
    ///
    /// # Errors
    /// The RNIC has ended.
    pub fn next_event(&self) -> Result<Option<ConnectionEvent>, VerbsError> {
        let Some(message) = self.device.receive_message(&self.events, Duration::ZERO)? else { return Ok(None) };
        let event = serde_json_event(&message)?;
        if let (ConnectionEvent::Established { .. }, Some(queue)) = (&event, self.queue.upgrade()) {
            queue.note_state(QueueState::ReadyToSend);
        }
        Ok(Some(event))
    }

    /// Waits until the connection is up.
    ///
    /// # Errors
    /// See [`ConnectError`]. After a timeout the queue pair is in the error state.
    pub fn wait_until_established(self, queue: &QueuePair, timeout: Duration) -> Result<Connection, ConnectError> {
        match self.device.receive_message(&self.events, timeout)? {
            Some(message) => self.finish_connecting(queue, &message),
            None => {
                queue.disconnect()?;
                Err(ConnectError::TimedOut(timeout))
            }
        }
    }

    /// Returns the connection if it is up now, and otherwise this, which is to be tried again after the RNIC has made
    /// progress. `queue` is the queue pair that is being connected.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn try_establish(self, queue: &QueuePair) -> Result<Result<Connection, Self>, ConnectError> {
        match self.device.receive_message(&self.events, Duration::ZERO)? {
            Some(message) => self.finish_connecting(queue, &message).map(Ok),
            None => Ok(Err(self)),
        }
    }

    fn finish_connecting(self, queue: &QueuePair, message: &[u8]) -> Result<Connection, ConnectError> {
        match serde_json_event(message)? {
            ConnectionEvent::Established { parameters } => {
                queue.note_state(QueueState::ReadyToSend);
                Ok(Connection { device: self.device, events: self.events, parameters })
            }
            ConnectionEvent::Rejected { private_data } => Err(ConnectError::Rejected { private_data }),
            ConnectionEvent::Failed { reason } | ConnectionEvent::Disconnected { reason } => {
                Err(ConnectError::Failed(reason))
            }
            other => Err(VerbsError::Answer(format!("{other:?}")).into()),
        }
    }
}

/// The descriptor is readable when there is an event.
impl AsFd for PendingConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl From<CommandError> for ConnectError {
    fn from(error: CommandError) -> Self {
        Self::Verbs(error.into())
    }
}
