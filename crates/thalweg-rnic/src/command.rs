//! Commands of a program to its RNIC: what is set up before data move, and is checked once.
//!
//! Between processes they are JSON messages over a Unix socket that keeps their borders (`SOCK_SEQPACKET`), one at a time,
//! with file descriptors of memory, rings and sockets.

use crate::attributes::{Access, Limits, QueueAttributes, QueueLengths, QueueState, WindowKind};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use thiserror::Error;

/// Longest message of either side in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// Most file descriptors of a message.
pub const MAX_COMMAND_FDS: usize = 3;

/// Longest private data of a connection's set-up in bytes: 512 (RFC 5044 section 7.1), less 4 for the limits of reads (RFC
/// 6581 section 6).
pub const MAX_PRIVATE_BYTES: usize = 508;

/// A command. Comments name the file descriptors that go with it, and the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Opens the RNIC: first and once. The program's end of the socket of asynchronous events. [`Reply::Opened`].
    Open,
    /// Allocates a protection domain. [`Reply::Handle`].
    AllocateDomain,
    /// Gives back a protection domain without regions, windows and queues. [`Reply::Done`].
    DeallocateDomain(u32),
    /// Registers memory. Its memfd. [`Reply::Handle`] with the STag.
    RegisterRegion {
        /// Protection domain.
        domain: u32,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Address by which requests name the first byte (`iova`).
        base: u64,
        /// Rights of requests and peers.
        access: Access,
    },
    /// Gives back a region or a window: no access to it is under way after the reply. [`Reply::Done`].
    Deregister(u32),
    /// Returns the buffers of a region. [`Reply::PageList`].
    PageList(u32),
    /// Allocates a memory window. [`Reply::Handle`] with its first STag.
    AllocateWindow {
        /// Protection domain.
        domain: u32,
        /// Kind of window.
        kind: WindowKind,
    },
    /// Makes a completion channel. The RNIC's end of its socket. [`Reply::Handle`].
    CreateChannel,
    /// Gives back a channel. [`Reply::Done`].
    DestroyChannel(u32),
    /// Makes a completion queue. Its ring. [`Reply::Handle`].
    CreateCompletionQueue {
        /// Entries: the number of cells of the ring.
        entries: u32,
        /// Completion channel.
        channel: Option<u32>,
        /// Number in its events, of 64 bits; `None`: its handle.
        event_number: Option<u64>,
    },
    /// Gives back a completion queue of no queue pair. [`Reply::Done`].
    DestroyCompletionQueue(u32),
    /// Makes a shared receive queue. Its ring. [`Reply::Handle`].
    CreateSharedQueue {
        /// Protection domain.
        domain: u32,
        /// Number of receives.
        receives: u32,
        /// Scatter-gather elements of a receive.
        sges: u32,
    },
    /// Sets the limit of a shared receive queue: one event follows when fewer receives are posted. [`Reply::Done`].
    SetSharedQueueLimit {
        /// Shared receive queue.
        queue: u32,
        /// Number of receives; 0: no event.
        limit: u32,
    },
    /// Gives back a shared receive queue of no queue pair. [`Reply::Done`].
    DestroySharedQueue(u32),
    /// Makes a queue pair. The rings of its send queue and, without a shared one, of its receive queue.
    /// [`Reply::Handle`] with its number.
    CreateQueuePair {
        /// Protection domain.
        domain: u32,
        /// Completion queue of its send queue.
        send_completions: u32,
        /// Completion queue of its receive queue.
        receive_completions: u32,
        /// Shared receive queue.
        shared_queue: Option<u32>,
        /// Lengths of its queues.
        lengths: QueueLengths,
        /// Whether each send request has a completion, signaled or not.
        signal_all: bool,
    },
    /// Gives a queue pair in state RESET a number by which queue pairs of other RNICs find it at an address of this machine.
    /// [`Reply::Handle`] with the number, of 24 bits.
    NumberQueuePair {
        /// Queue pair.
        queue: u32,
        /// Address that its peers are to name.
        address: IpAddr,
    },
    /// Brings a queue pair into a state. [`Reply::Done`].
    ModifyQueuePair {
        /// Queue pair.
        queue: u32,
        /// State of the queue pair.
        state: QueueState,
        /// Attributes, if they change.
        attributes: Option<QueueAttributes>,
    },
    /// Returns state and attributes of a queue pair. [`Reply::QueuePair`].
    QueryQueuePair(u32),
    /// Gives back a queue pair: no access by it is under way after the reply. [`Reply::Done`].
    DestroyQueuePair(u32),
    /// Listens for connections. The RNIC's end of the socket of [`ConnectionEvent`]s. [`Reply::Listening`].
    Listen {
        /// Address and port; port 0: any.
        address: SocketAddr,
        /// Way to peers of other RNICs.
        transport: Transport,
        /// Connections that may wait for an answer.
        backlog: u32,
    },
    /// Ends a listener. [`Reply::Done`].
    DestroyListener(u32),
    /// Connects a queue pair in state INIT. The RNIC's end of the socket of [`ConnectionEvent`]s. [`Reply::Done`]; an event
    /// follows.
    Connect {
        /// Queue pair.
        queue: u32,
        /// Address of the listener.
        address: SocketAddr,
        /// Way to a peer of another RNIC.
        transport: Transport,
        /// Parameters of this side.
        parameters: ConnectionParameters,
    },
    /// Accepts a connection with a queue pair in state INIT. The RNIC's end of the socket of [`ConnectionEvent`]s.
    /// [`Reply::Done`]; an event follows.
    Accept {
        /// Connection request.
        request: u32,
        /// Queue pair.
        queue: u32,
        /// Parameters of this side.
        parameters: ConnectionParameters,
    },
    /// Rejects a connection. [`Reply::Done`].
    Reject {
        /// Connection request.
        request: u32,
        /// Data for the peer.
        private_data: Vec<u8>,
    },
    /// Ends a connection: both queue pairs flush. [`Reply::Done`].
    Disconnect(u32),
}

/// Way to a peer of another RNIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Transport {
    /// iWARP: MPA over TCP (RFC 5044), which other RNICs speak, too.
    #[default]
    Tcp,
    /// EFE in UDP datagrams, between RNICs of this kind. A message for which no receive is posted waits for it.
    Efe,
    /// EFE in UDP datagrams past the kernel's network stack (AF_XDP), by the interface that has the address of this side.
    /// An interface has one such port, which connections share with at most one listener.
    EfeXdp,
    /// EFE in Ethernet frames, without IP. Addresses are those that stand for Ethernet addresses, with the interface:
    /// `[fe80::ff:fe00:1%3]:0` is station 02:00:00:00:00:01 by interface 3 ([`thalweg_frames::FramePort`]). An interface
    /// has one such port, which connections share with at most one listener.
    EfeEthernet,
}

impl Transport {
    /// Returns the number of times that a payload byte is copied between registered memory and the network's device, by
    /// this process and by the kernel: on its way out, and on its way in.
    pub fn copies_per_byte(self) -> (u64, u64) {
        match self {
            // Out: to the FPDU, to the socket. In: from the socket, to its place.
            Self::Tcp => (2, 2),
            // Out: to the packet, to the frame, to the socket. In: from the socket, to its place.
            Self::Efe | Self::EfeEthernet => (3, 2),
            // The frame lies where the adapter, or the kernel in its place, reads it.
            Self::EfeXdp => (2, 1),
        }
    }
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionParameters {
    /// Data for the peer's program, up to [`MAX_PRIVATE_BYTES`].
    pub private_data: Vec<u8>,
    /// Reads and atomics that the peer may have outstanding here (IRD, `responder_resources`).
    pub inbound_reads: u32,
    /// Reads and atomics outstanding at the peer (ORD, `initiator_depth`).
    pub outbound_reads: u32,
    /// Number of times that a message is sent again which found no receive (`rnr_retry_count`); 7: without end. Over TCP,
    /// such a message always ends the stream (RFC 5041 section 7.1).
    pub receiver_retries: u8,
    /// Time after which the connection has failed if the peer's RNIC is silent or acknowledges nothing: an RNIC at rest is
    /// asked for a sign of life in time. At least 100 ms, at most an hour.
    pub peer_timeout: Duration,
    /// Whether FPDUs over TCP have a CRC whatever the peer needs (RFC 5044 section 4.4). Without it at both ends, TCP's
    /// checksum alone protects the data. Packets of EFE always have one. In [`ConnectionEvent::Established`]: whether
    /// there is one.
    pub needs_crc: bool,
}

impl Default for ConnectionParameters {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            inbound_reads: 16,
            outbound_reads: 16,
            receiver_retries: 0,
            peer_timeout: Duration::from_secs(5),
            needs_crc: true,
        }
    }
}

/// Least and greatest [`ConnectionParameters::peer_timeout`].
pub(crate) const MIN_PEER_TIMEOUT: Duration = Duration::from_millis(100);
pub(crate) const MAX_PEER_TIMEOUT: Duration = Duration::from_secs(3600);

/// Reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The command is done.
    Done,
    /// Handle, STag or number of a new object.
    Handle(u32),
    /// The RNIC is open. Between processes, an eventfd that wakes it goes with this.
    Opened {
        /// Limits of the RNIC.
        limits: Limits,
    },
    /// Buffers of a region: offset in the file, and length, in bytes.
    PageList(Vec<(u64, u64)>),
    /// State of a queue pair.
    QueuePair {
        /// State of the queue pair.
        state: QueueState,
        /// Attributes of the queue pair.
        attributes: QueueAttributes,
    },
    /// A listener.
    Listening {
        /// Handle of the listener.
        listener: u32,
        /// Address of the listener.
        address: SocketAddr,
    },
}

/// Event of a listener or a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionEvent {
    /// A peer wants to connect: accept or reject it.
    Request {
        /// Handle of the request.
        request: u32,
        /// Address of the peer; `None` at the same RNIC.
        peer: Option<SocketAddr>,
        /// Parameters of the peer, seen from here: `inbound_reads` are those that it wants to have outstanding here.
        parameters: ConnectionParameters,
    },
    /// The connection is up, and the queue pair in state RTS.
    Established {
        /// Parameters of the peer, seen from here: the limits in force.
        parameters: ConnectionParameters,
    },
    /// The peer has rejected the connection.
    Rejected {
        /// Data from the peer.
        private_data: Vec<u8>,
    },
    /// The connection could not be made.
    Failed {
        /// Reason, in words.
        reason: String,
    },
    /// The connection has ended.
    Disconnected {
        /// Reason, in words.
        reason: String,
    },
    /// Events were lost, since the program does not read them.
    EventsLost {
        /// Number of events.
        number: u64,
    },
}

/// Reason why a command was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum CommandError {
    /// The program has no such object.
    #[error("there is no {what} {handle:#x} of this program")]
    NoSuch {
        /// Kind of object.
        what: String,
        /// Handle of the object.
        handle: u32,
    },
    /// A limit of the RNIC.
    #[error("{what}: {requested} requested, the RNIC's limit is {limit}")]
    Limit {
        /// Limited number.
        what: String,
        /// Limit of the RNIC.
        limit: u64,
        /// Requested value.
        requested: u64,
    },
    /// The object is in use.
    #[error("the {what} is in use by {users} {by}: give those back first")]
    Busy {
        /// Kind of object.
        what: String,
        /// Number of users.
        users: u32,
        /// Kind of users.
        by: String,
    },
    /// A queue pair cannot change so.
    #[error("a queue pair in state {from} cannot enter state {to}")]
    State {
        /// Present state.
        from: QueueState,
        /// Requested state.
        to: QueueState,
    },
    /// A queue pair is not in the state that the command needs.
    #[error("the queue pair is in state {is}, the command needs {needs}")]
    WrongState {
        /// Present state.
        is: QueueState,
        /// Needed state.
        needs: QueueState,
    },
    /// A range that is not in the file, or empty, or beyond the last address.
    #[error("{length} bytes at offset {offset} cannot be registered: the file has {limit} bytes")]
    Range {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of the file in bytes.
        limit: u64,
    },
    /// Memory or a ring could not be used.
    #[error("{0}")]
    Memory(String),
    /// Objects that belong to different protection domains, or an argument that makes no sense.
    #[error("{0}")]
    Argument(String),
    /// No listener has the address.
    #[error("connection to {0} refused: no program listens there")]
    Refused(SocketAddr),
    /// The address is in use.
    #[error("cannot listen at {address}: {reason}")]
    Address {
        /// Address of the listener.
        address: SocketAddr,
        /// Reason, in words.
        reason: String,
    },
    /// The message is not a command.
    #[error("the RNIC did not understand the command: {0} (is it of another version?)")]
    Unknown(String),
}

/// Time after which a connection that is being set up is given up.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
