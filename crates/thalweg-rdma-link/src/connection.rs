//! Connection to one peer: its queue pair, and what was posted.

use crate::channel::{BUFFER_BYTES, Channel, RECEIVES};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::slice;
use std::time::Duration;
use thalweg_link::LinkError;
use thalweg_rdma::{
    Access, Buffer, CompletedOperation, Completion, CompletionQueue, ConnectError, Connection, ConnectionParameters,
    ConnectionRequest, Data, Device, PendingConnection, ProtectionDomain, QueueAttributes, QueueLengths, QueuePair,
    QueuePairOptions, QueueState, RemoteAddress, SendRequest, Sge, Side, Status, Transport, Work,
};

/// First bytes of the private data of a connection's set-up (`TWRD`), and the version of what follows on it.
const GREETING: [u8; 8] = *b"TWRD\x01\0\0\0";

/// Returns whether private data are the greeting. InfiniBand and RoCE append zeros (IBA 12.6.5: the field has one length).
fn is_greeting(private_data: &[u8]) -> bool {
    private_data.strip_prefix(&GREETING).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// Buffers that are sent and have not completed, at most.
const MAX_SENDS: u32 = 16;

/// RDMA reads that are posted and have not completed, at most.
const MAX_READS: u32 = 112;

/// RDMA reads that are under way between the RNICs, at most (IRD, ORD).
const READS_UNDER_WAY: u32 = 32;

/// Time after which a peer that does not answer is considered gone, as over the other links.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Files that each end has open for a connection: three rings twice, buffers, events twice, a socket.
pub(crate) const FILES_PER_CONNECTION: u64 = 10;

/// Action that an error names.
const SETTING_UP: &str = "setting up a queue pair";

/// Id of all sends; those of reads are smaller.
const SEND_ID: u64 = u64::MAX;

/// An RDMA read to post.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    /// Id by which [`Arrival::Read`] names it.
    pub(crate) id: u64,
    pub(crate) into: Sge,
    pub(crate) from: RemoteAddress,
}

/// Arrival on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A buffer with messages, which is in the channel now.
    Messages,
    /// A read has completed: its bytes are here.
    Read {
        /// Id of the read.
        id: u64,
    },
}

/// A connection to a peer. Its queue pair is dropped first: the RNIC accesses no memory for it afterwards.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    queue: QueuePair,
    completions: CompletionQueue,
    /// Receives, and behind them sends.
    buffers: Buffer,
    /// Buffer on its way between the channel and those.
    copied_buffer: Box<[u8; BUFFER_BYTES]>,
    pub(crate) channel: Channel,
    stage: Stage,
    /// Name of the peer, for errors.
    peer: String,
    next_send: u32,
    pending_sends: u32,
    pending_reads: u32,
    /// Completions that were taken from the queue, and are to be handled.
    waiting: VecDeque<Completion>,
    /// Bytes that the peer had read when that was last looked at.
    read_by_peer: u64,
}

#[derive(Debug)]
enum Stage {
    /// The connection is being made.
    Pending(PendingConnection),
    /// It is up.
    Up(Connection),
    /// It has ended, for a reason that is not reported yet.
    Failed(LinkError),
    /// It has ended, and the reason was reported.
    Ended,
}

impl PeerConnection {
    /// Begins to connect to a builder.
    pub(crate) fn connect(
        device: &Device,
        domain: &ProtectionDomain,
        transport: Transport,
        address: SocketAddr,
        peer: String,
    ) -> Result<Self, LinkError> {
        let prepared = Prepared::new(device, domain, Access::REMOTE_READ)?;
        let pending = prepared
            .queue
            .begin_connect(transport, address, parameters())
            .map_err(rnic_error(format!("connecting to {peer}")))?;
        Ok(prepared.into_connection(pending, peer))
    }

    /// Begins to accept a source; `None` if it is no source of this version: then it is rejected.
    pub(crate) fn accept(
        device: &Device,
        domain: &ProtectionDomain,
        request: ConnectionRequest,
        peer: String,
    ) -> Result<Option<Self>, LinkError> {
        if !is_greeting(&request.peer_parameters().private_data) {
            // An attempt only: the peer may be gone.
            let _ = request.reject(GREETING.to_vec());
            return Ok(None);
        }
        let prepared = Prepared::new(device, domain, Access::empty())?;
        let accepting = request.begin_accept(&prepared.queue, parameters());
        let pending = accepting.map_err(rnic_error(format!("accepting {peer}")))?;
        Ok(Some(prepared.into_connection(pending, peer)))
    }

    /// Goes on with a connection that is being made, and takes completions from their queue. Returns whether something can
    /// be received.
    pub(crate) fn collect_arrivals(&mut self) -> bool {
        if matches!(self.stage, Stage::Pending(_)) {
            self.continue_connecting();
        }
        loop {
            match self.completions.take_ready() {
                Ok(None) => break,
                Ok(Some(done)) if done.is_success() && done.request_id() == SEND_ID => self.pending_sends -= 1,
                Ok(Some(done)) => self.waiting.push_back(done),
                Err(error) => {
                    self.fail_once(LinkError::Io { doing: self.name(), error: io::Error::other(error) });
                    break;
                }
            }
        }
        self.has_arrivals()
    }

    /// Returns whether something was collected that can be received.
    pub(crate) fn has_arrivals(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.stage, Stage::Failed(_))
    }

    fn continue_connecting(&mut self) {
        let Stage::Pending(pending) = std::mem::replace(&mut self.stage, Stage::Ended) else { return };
        self.stage = match pending.try_establish(&self.queue) {
            Ok(Err(pending)) => Stage::Pending(pending),
            Ok(Ok(connection)) if is_greeting(&connection.peer_parameters().private_data) => Stage::Up(connection),
            Ok(Ok(_)) => Stage::Failed(self.other_protocol_error()),
            Err(ConnectError::Rejected { private_data }) if !private_data.is_empty() => {
                Stage::Failed(self.other_protocol_error())
            }
            Err(error) => {
                let doing = format!("connecting to {}", self.peer);
                Stage::Failed(LinkError::Io { doing, error: io::Error::other(error) })
            }
        };
    }

    fn other_protocol_error(&self) -> LinkError {
        LinkError::Protocol(format!("{} is no builder over RDMA, or of another version", self.peer))
    }

    /// Returns the next arrival.
    ///
    /// # Errors
    /// The connection has ended; all that arrived before was returned.
    pub(crate) fn next_arrival(&mut self) -> Result<Option<Arrival>, LinkError> {
        let Some(done) = self.waiting.pop_front() else {
            return match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Failed(error) => Err(error),
                stage => {
                    self.stage = stage;
                    Ok(None)
                }
            };
        };
        if !done.is_success() {
            self.note_reads_by_peer();
            let error = self.end_of_connection(done);
            self.stage = Stage::Ended;
            return Err(error);
        }
        match done.operation() {
            CompletedOperation::Receive => self.take_buffer(&done).map(|()| Some(Arrival::Messages)),
            _ => {
                self.pending_reads -= 1;
                Ok(Some(Arrival::Read { id: done.request_id() }))
            }
        }
    }

    /// Copies a received buffer to the channel, and posts its receive again.
    fn take_buffer(&mut self, done: &Completion) -> Result<(), LinkError> {
        let (number, bytes) = (done.request_id(), BUFFER_BYTES.min(done.transferred_bytes() as usize));
        let at = number as usize * BUFFER_BYTES;
        self.buffers.shared_memory().load_bytes(at, &mut self.copied_buffer[..bytes]);
        self.channel.take_buffer(&self.copied_buffer[..bytes])?;
        let posted = self.queue.post_receive(number, &[self.buffers.sge(at as u64, BUFFER_BYTES as u32)]);
        posted.map_err(|error| LinkError::Io { doing: self.name(), error: io::Error::other(error) })
    }

    /// Returns why the connection has ended: `done` is the first request that failed.
    fn end_of_connection(&mut self, done: Completion) -> LinkError {
        let failed = std::iter::once(done).chain(self.waiting.drain(..));
        let culprit = failed.into_iter().find(|done| !done.is_success() && done.status() != Status::Flushed);
        if let Some(done) = culprit {
            if done.status() == Status::RetryExceeded {
                // A device has given up a peer that does not answer.
                tracing::info!("{} has ended: {done}", self.name());
                return LinkError::Closed;
            }
            return match done.fault().map(|fault| fault.side) {
                Some(Side::Remote) => LinkError::Protocol(format!("{}: {done}", self.name())),
                _ => LinkError::Io { doing: self.name(), error: io::Error::other(done.to_string()) },
            };
        }
        if let Stage::Up(connection) = &self.stage
            && let Ok(Some(reason)) = connection.wait_for_end(Duration::ZERO)
        {
            tracing::info!("{} has ended: {reason}", self.name());
        }
        LinkError::Closed
    }

    fn name(&self) -> String {
        format!("RDMA connection to {}", self.peer)
    }

    fn fail_once(&mut self, error: LinkError) {
        if !matches!(self.stage, Stage::Failed(_) | Stage::Ended) {
            self.stage = Stage::Failed(error);
        }
    }

    /// Returns the number of reads that can be posted now.
    pub(crate) fn room_for_reads(&self) -> u32 {
        if matches!(self.stage, Stage::Up(_)) { MAX_READS - self.pending_reads } else { 0 }
    }

    /// Posts messages, as far as the peer has receives for them, and reads, for which there must be
    /// [room](Self::room_for_reads).
    pub(crate) fn post_requests(&mut self, reads: &[Read]) -> Result<(), LinkError> {
        if !matches!(self.stage, Stage::Up(_)) {
            return Ok(());
        }
        let mut sends = Vec::new();
        while self.pending_sends < MAX_SENDS
            && let Some(bytes) = self.channel.fill_next_buffer(&mut self.copied_buffer)
        {
            let at = (RECEIVES + self.next_send) as usize * BUFFER_BYTES;
            self.buffers.shared_memory().store_bytes(at, &self.copied_buffer[..bytes]);
            sends.push(self.buffers.sge(at as u64, bytes as u32));
            self.next_send = (self.next_send + 1) % MAX_SENDS;
            self.pending_sends += 1;
        }
        if sends.is_empty() && reads.is_empty() {
            return Ok(());
        }
        self.pending_reads += reads.len() as u32;
        let sends = sends.iter().map(|sge| {
            let data = Data::Memory(slice::from_ref(sge));
            SendRequest::signaled(SEND_ID, Work::Send { data, immediate: None })
        });
        let reads = reads.iter().map(|read| {
            SendRequest::signaled(read.id, Work::Read { into: slice::from_ref(&read.into), from: read.from })
        });
        // Messages first: they are short, and a read may wait for its turn.
        let requests: Vec<SendRequest<'_>> = sends.chain(reads).collect();
        let posted = self.queue.post_sends(&requests);
        posted.map_err(|(_, error)| LinkError::Io { doing: self.name(), error: io::Error::other(error) })
    }

    /// Returns whether messages have not left for the peer.
    pub(crate) fn has_unsent(&self) -> bool {
        let is_alive = matches!(self.stage, Stage::Pending(_) | Stage::Up(_));
        let has_failed = self.waiting.iter().any(|done| !done.is_success());
        is_alive && !has_failed && (self.channel.unsent_bytes() > 0 || self.pending_sends > 0)
    }

    /// Returns the bytes that the peer has read so far.
    pub(crate) fn bytes_read_by_peer(&self) -> u64 {
        self.queue.bytes_read_by_peer().unwrap_or(0).max(self.read_by_peer)
    }

    /// Keeps the number of bytes that the peer has read, before the RNIC forgets it.
    fn note_reads_by_peer(&mut self) {
        self.read_by_peer = self.bytes_read_by_peer();
    }

    /// Ends the connection, with what was sent still on its way.
    pub(crate) fn disconnect(&mut self) {
        if matches!(self.stage, Stage::Up(_)) {
            // An attempt only: it may have ended by itself.
            let _ = self.queue.disconnect();
            self.stage = Stage::Ended;
        }
    }
}

/// A queue pair that is ready to be connected.
struct Prepared {
    queue: QueuePair,
    completions: CompletionQueue,
    buffers: Buffer,
}

impl Prepared {
    /// Prepares one. `access`: rights that the peer has to memory that is registered for peers.
    fn new(device: &Device, domain: &ProtectionDomain, access: Access) -> Result<Self, LinkError> {
        let lengths = QueueLengths {
            send_requests: MAX_SENDS + MAX_READS,
            receives: RECEIVES,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        };
        let completions = device
            .create_completion_queue(lengths.send_requests + lengths.receives, None)
            .map_err(rnic_error(SETTING_UP))?;
        let options = QueuePairOptions { lengths, ..QueuePairOptions::new(&completions) };
        let queue = domain.create_queue_pair(&options).map_err(rnic_error(SETTING_UP))?;
        let attributes = QueueAttributes { access, ..QueueAttributes::default() };
        queue.modify_state(QueueState::Init, Some(attributes)).map_err(rnic_error(SETTING_UP))?;
        let buffer_count = (RECEIVES + MAX_SENDS) as usize;
        let buffers =
            domain.create_buffer(buffer_count * BUFFER_BYTES, Access::LOCAL_WRITE).map_err(rnic_error(SETTING_UP))?;
        for number in 0..u64::from(RECEIVES) {
            let into = buffers.sge(number * BUFFER_BYTES as u64, BUFFER_BYTES as u32);
            queue
                .post_receive(number, &[into])
                .map_err(|error| LinkError::Io { doing: "posting a receive".into(), error: io::Error::other(error) })?;
        }
        Ok(Self { queue, completions, buffers })
    }

    fn into_connection(self, pending: PendingConnection, peer: String) -> PeerConnection {
        let Self { queue, completions, buffers } = self;
        PeerConnection {
            queue,
            completions,
            buffers,
            copied_buffer: Box::new([0; BUFFER_BYTES]),
            channel: Channel::default(),
            stage: Stage::Pending(pending),
            peer,
            next_send: 0,
            pending_sends: 0,
            pending_reads: 0,
            waiting: VecDeque::new(),
            read_by_peer: 0,
        }
    }
}

/// Returns the parameters of a connection's set-up, the same on both sides.
fn parameters() -> ConnectionParameters {
    ConnectionParameters {
        private_data: GREETING.to_vec(),
        inbound_reads: READS_UNDER_WAY,
        outbound_reads: READS_UNDER_WAY,
        peer_timeout: PEER_TIMEOUT,
        ..ConnectionParameters::default()
    }
}

/// Returns a function for `map_err` on a call of the RNIC.
pub(crate) fn rnic_error(doing: impl Into<String>) -> impl FnOnce(thalweg_rdma::VerbsError) -> LinkError {
    move |error| LinkError::Io { doing: doing.into(), error: io::Error::other(error) }
}
