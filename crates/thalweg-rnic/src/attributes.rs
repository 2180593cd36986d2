//! Names and numbers that a program and its RNIC share: rights, states, operations, results, limits.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

bitflags::bitflags! {
    /// Rights to memory, as numbered in `ibv_access_flags`. Reading by its owner needs no right.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The owner's own requests may write there: receives, sinks of reads, results of atomics.
        const LOCAL_WRITE = 1;
        /// Peers may write there.
        const REMOTE_WRITE = 2;
        /// Peers may read there.
        const REMOTE_READ = 4;
        /// Peers may change 64-bit words there.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const WINDOW_BIND = 16;
    }
}

impl Access {
    /// Rights that write, for which the memory is mapped writable.
    pub const WRITING: Self = Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);

    /// Rights of a peer.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);
}

/// Writes the rights as words.
impl fmt::Display for Access {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return to.write_str("local read only");
        }
        for (at, (name, _)) in self.iter_names().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(to, "{comma}{}", name.to_lowercase().replace('_', " "))?;
        }
        Ok(())
    }
}

impl Serialize for Access {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.bits())
    }
}

impl<'de> Deserialize<'de> for Access {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(from)?;
        Self::from_bits(bits).ok_or_else(|| serde::de::Error::custom(format!("no access rights: {bits:#x}")))
    }
}

/// State of a queue pair (`ibv_qp_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QueueState {
    /// The first state: nothing is accepted or carried out.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: messages of the peer are accepted.
    ReadyToReceive,
    /// Ready to send: work requests are carried out.
    ReadyToSend,
    /// The send queue is drained: no further request is begun; the event [`AsyncEvent::SendQueueDrained`] follows when
    /// those begun have completed.
    SendDrained,
    /// The send queue had an error, and the receive queue goes on. A connected queue pair never enters this state (an
    /// error ends its stream); it is named for programs that ask.
    SendError,
    /// All requests are flushed.
    Error,
}

impl QueueState {
    /// Returns whether a program may bring a queue pair from this state to `next`.
    pub fn may_become(self, next: Self) -> bool {
        use QueueState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendDrained, SendError};
        match next {
            Reset | Error => true,
            Init => matches!(self, Reset | Init),
            ReadyToReceive => matches!(self, Init),
            ReadyToSend => matches!(self, ReadyToReceive | ReadyToSend | SendDrained | SendError),
            SendDrained => matches!(self, ReadyToSend | SendDrained),
            SendError => false,
        }
    }

    /// Returns whether messages of the peer are accepted.
    pub fn accepts_messages(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::SendDrained | Self::SendError)
    }
}

/// Writes the usual abbreviation.
impl fmt::Display for QueueState {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendDrained => "SQD",
            Self::SendError => "SQE",
            Self::Error => "ERR",
        })
    }
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal $words:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant = $number,)* }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the one with this number in a descriptor.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str(match self { $(Self::$variant => $words,)* })
            }
        }
    };
}

numbered! {
    /// Operation of a work request (`ibv_wr_opcode`, same numbers).
    Operation {
        /// RDMA write.
        Write = 0 "RDMA write",
        /// RDMA write, after which a receive of the peer completes with an immediate.
        WriteWithImmediate = 1 "RDMA write with immediate",
        /// Send without an immediate.
        Send = 2 "send",
        /// Send with an immediate.
        SendWithImmediate = 3 "send with immediate",
        /// RDMA read.
        Read = 4 "RDMA read",
        /// Atomic compare-and-swap of 64 bits.
        CompareSwap = 5 "atomic compare-and-swap",
        /// Atomic fetch-and-add of 64 bits.
        FetchAdd = 6 "atomic fetch-and-add",
        /// Invalidation of an own memory window.
        LocalInvalidate = 7 "local invalidate",
        /// Binding of a memory window.
        BindWindow = 8 "bind memory window",
        /// Send that invalidates a memory window of the peer.
        SendWithInvalidate = 9 "send with invalidate",
    }
}

impl Operation {
    /// Returns whether the operation reads from the peer, and is counted against the limits of reads (ORD and IRD).
    pub fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the operation consumes a receive of the peer.
    pub fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImmediate | Self::SendWithInvalidate | Self::WriteWithImmediate)
    }

    /// Returns the operation as its completion names it.
    pub fn completed_operation(self) -> CompletedOperation {
        match self {
            Self::Write | Self::WriteWithImmediate => CompletedOperation::Write,
            Self::Send | Self::SendWithImmediate | Self::SendWithInvalidate => CompletedOperation::Send,
            Self::Read => CompletedOperation::Read,
            Self::CompareSwap => CompletedOperation::CompareSwap,
            Self::FetchAdd => CompletedOperation::FetchAdd,
            Self::LocalInvalidate => CompletedOperation::LocalInvalidate,
            Self::BindWindow => CompletedOperation::BindWindow,
        }
    }
}

numbered! {
    /// Operation of a completion (`ibv_wc_opcode`).
    CompletedOperation {
        /// Send of any kind.
        Send = 0 "send",
        /// RDMA write.
        Write = 1 "RDMA write",
        /// RDMA read.
        Read = 2 "RDMA read",
        /// Atomic compare-and-swap.
        CompareSwap = 3 "atomic compare-and-swap",
        /// Atomic fetch-and-add.
        FetchAdd = 4 "atomic fetch-and-add",
        /// Binding of a memory window.
        BindWindow = 5 "bind memory window",
        /// Local invalidation.
        LocalInvalidate = 6 "local invalidate",
        /// Receive of a message.
        Receive = 128 "receive",
        /// Receive that an RDMA write with immediate consumed.
        ReceiveWriteWithImmediate = 129 "receive of an RDMA write with immediate",
    }
}

numbered! {
    /// Result of a work request (`ibv_wc_status`, same numbers).
    Status {
        /// The request succeeded.
        Success = 0 "success",
        /// The message is longer than the receive, or than a message may be.
        LocalLengthError = 1 "local length error",
        /// The request itself is wrong.
        LocalOperationError = 2 "local queue pair operation error",
        /// The request's own memory cannot be accessed.
        LocalProtectionError = 4 "local protection error",
        /// An earlier request failed, or the stream was over.
        Flushed = 5 "flushed",
        /// The memory window could not be bound.
        WindowBindError = 6 "memory window bind error",
        /// The peer's request was refused by this side.
        LocalAccessError = 8 "local access error",
        /// The peer refused the request as wrong.
        RemoteInvalidRequest = 9 "remote invalid request error",
        /// The peer's memory cannot be accessed so.
        RemoteAccessError = 10 "remote access error",
        /// The peer could not carry out its part.
        RemoteOperationError = 11 "remote operation error",
        /// The peer is gone, or does not answer.
        RetryExceeded = 12 "transport retry counter exceeded",
        /// The peer had no receive posted.
        ReceiverNotReady = 13 "receiver not ready",
        /// The RNIC failed.
        Fatal = 19 "fatal error",
        /// The queue pair's stream failed.
        General = 21 "general error",
    }
}

numbered! {
    /// Side at which a fault was found.
    Side {
        /// The side whose completion this is.
        Local = 0 "local",
        /// The peer's.
        Remote = 1 "remote",
    }
}

numbered! {
    /// Reason of a fault. Comments name the numbers of [`Fault::limit`] and [`Fault::value`].
    FaultKind {
        /// No fault.
        None = 0 "no fault",
        /// No memory has this STag.
        StagUnknown = 1 "no memory is registered with this STag",
        /// The STag's key is not the present one: value is the key, limit the present one.
        StagStale = 2 "the STag was invalidated or bound anew",
        /// The memory is of another protection domain.
        OtherDomain = 3 "the memory belongs to another protection domain",
        /// The window is bound to another queue pair.
        OtherQueue = 4 "the memory window is bound to another queue pair",
        /// The memory lacks a right: value is the right, limit those that it has.
        MissingRight = 5 "the memory was registered without the right",
        /// The queue pair lacks a right: value is the right, limit those that it has.
        QueueMissingRight = 6 "the queue pair was set up without the right",
        /// The range exceeds the memory: value is the first byte after it, limit that of the memory.
        OutOfBounds = 7 "the range exceeds the registered memory",
        /// Address and length exceed 64 bits: value is the address, limit the length.
        Wrapped = 8 "address and length exceed 64 bits",
        /// The address of an atomic, the value, is not a multiple of the limit.
        Misaligned = 9 "the address of the atomic is not aligned",
        /// The message has value bytes, the receive or the longest message limit bytes.
        TooLong = 10 "the message is too long",
        /// No receive was posted: value is the number of retries made, limit of those allowed.
        NoReceive = 11 "no receive is posted",
        /// Reads and atomics are not allowed: limit is the number that may be outstanding.
        ReadLimit = 12 "reads and atomics are not allowed on this connection",
        /// The STag is not one of a bound memory window of the second type.
        NotInvalidatable = 13 "the STag is not that of a memory window of type 2 bound to this queue pair",
        /// A window cannot be bound so.
        WindowKind = 14 "the STag is not that of a memory window that may be bound so",
        /// A descriptor has a value above the limit, or an unknown operation.
        Descriptor = 15 "the descriptor is malformed",
        /// The queue pair is in a state, the value, in which it sends nothing.
        QueueState = 16 "the queue pair is not ready to send",
        /// The peer's queue pair is gone, or in error, or connected to another.
        PeerGone = 17 "the peer's queue pair is gone",
        /// The peer's queue pair was not ready within limit milliseconds.
        PeerNotReady = 18 "the peer's queue pair did not become ready to receive",
        /// An earlier request failed, or the stream was over.
        Flushed = 19 "an earlier request failed, or the stream was over",
        /// The completion queue was full: limit is its number of entries.
        CompletionOverrun = 20 "the completion queue overran",
        /// The program's ring is broken: value is the impossible index.
        Ring = 21 "the program has damaged its ring",
        /// The peer terminated the stream: value is layer, type and code (RFC 5040 section 4.8).
        Terminated = 22 "the peer terminated the stream",
        /// The connection below was closed or lost.
        ConnectionLost = 23 "the connection was closed or lost",
        /// A message of the peer breaks a rule of the protocol.
        Protocol = 24 "a message of the peer breaks a rule of the protocol",
        /// The operation does not exist on this kind of connection.
        Unsupported = 25 "the operation does not exist on this connection",
        /// Memory of the peer's receive cannot be accessed.
        ReceiveMemory = 26 "the memory of the receive cannot be accessed",
        /// The device has reported the result alone: value is its own code of the error.
        Device = 27 "the device gives no further reason",
        /// The device's library refused the request: value is the error number.
        Library = 28 "the device's library refused the request",
    }
}

/// Cause of an unsuccessful completion: what was wrong, on which side, and by which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Side at which it was found.
    pub side: Side,
    /// Reason of the fault.
    pub kind: FaultKind,
    /// STag concerned, 0 if none.
    pub stag: u32,
    /// Limit that was exceeded.
    pub limit: u64,
    /// Value that exceeded it.
    pub value: u64,
}

impl Fault {
    /// No fault.
    pub const NONE: Self = Self { side: Side::Local, kind: FaultKind::None, stag: 0, limit: 0, value: 0 };

    /// Makes a fault of this side.
    pub fn new(kind: FaultKind, stag: u32, value: u64, limit: u64) -> Self {
        Self { side: Side::Local, kind, stag, limit, value }
    }

    /// Returns the same fault as the other side sees it.
    pub fn seen_by_peer(self) -> Self {
        let side = if self.side == Side::Local { Side::Remote } else { Side::Local };
        Self { side, ..self }
    }

    /// Returns layer, type and code of the Terminate message by which an RNIC would tell its peer of this fault (RFC
    /// 5040 section 4.8, RFC 5041 section 7.2). `tagged` if a tagged segment, that of an RDMA write, was at fault; a read
    /// request or an atomic otherwise. `None` where a stream ends without one.
    pub fn terminate_code(&self, tagged: bool) -> Option<(u8, u8, u8)> {
        Some(match (self.kind, tagged) {
            (FaultKind::StagUnknown | FaultKind::StagStale, true) => (1, 1, 0x00),
            (FaultKind::StagUnknown | FaultKind::StagStale, false) => (0, 1, 0x00),
            (FaultKind::OutOfBounds, true) => (1, 1, 0x01),
            (FaultKind::OutOfBounds, false) => (0, 1, 0x01),
            (FaultKind::OtherDomain | FaultKind::OtherQueue, true) => (1, 1, 0x02),
            (FaultKind::OtherDomain | FaultKind::OtherQueue, false) => (0, 1, 0x03),
            (FaultKind::Wrapped, true) => (1, 1, 0x03),
            (FaultKind::Wrapped, false) => (0, 1, 0x04),
            (FaultKind::MissingRight | FaultKind::QueueMissingRight, _) => (0, 1, 0x02),
            (FaultKind::NotInvalidatable, _) => (0, 1, 0x09),
            (FaultKind::Misaligned, _) => (0, 2, 0x07),
            (FaultKind::NoReceive, _) => (1, 2, 0x02),
            (FaultKind::ReadLimit, _) => (1, 2, 0x03),
            (FaultKind::TooLong, _) => (1, 2, 0x05),
            (FaultKind::ReceiveMemory | FaultKind::Ring, _) => (0, 0, 0x00),
            (FaultKind::Terminated, _) => ((self.value >> 16) as u8, (self.value >> 8) as u8, self.value as u8),
            _ => return None,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, kind, stag, limit, value } = self;
        write!(to, "{side} side: {kind}")?;
        if *stag != 0 {
            write!(to, " (STag {stag:#010x})")?;
        }
        match kind {
            FaultKind::StagStale => write!(to, ": its key is {limit:#04x}, the request has {value:#04x}"),
            FaultKind::MissingRight | FaultKind::QueueMissingRight => {
                let (needs, has) =
                    (Access::from_bits_truncate(*value as u32), Access::from_bits_truncate(*limit as u32));
                write!(to, ": it needs {needs}, it has {has}")
            }
            FaultKind::OutOfBounds => write!(to, ": it ends at {limit:#x}, the request at {value:#x}"),
            FaultKind::Wrapped => write!(to, ": {limit} bytes at {value:#x}"),
            FaultKind::Misaligned => write!(to, ": {value:#x} is not a multiple of {limit}"),
            FaultKind::TooLong => write!(to, ": {value} bytes, the limit is {limit}"),
            FaultKind::NoReceive => write!(to, ": {value} retries were made of {limit} allowed (rnr_retry)"),
            FaultKind::ReadLimit => {
                write!(to, ": {limit} may be outstanding (IRD of the responder, ORD of the requester)")
            }
            FaultKind::Descriptor => write!(to, ": value {value}, the limit is {limit}"),
            FaultKind::PeerNotReady => write!(to, " within {limit} ms"),
            FaultKind::CompletionOverrun => write!(to, ": it has {limit} entries; poll more often or make it longer"),
            FaultKind::Ring => write!(to, ": its index is {value}"),
            FaultKind::Device => write!(to, " (vendor error {value:#x})"),
            FaultKind::Library => write!(to, " (error number {value})"),
            FaultKind::Terminated => {
                let (layer, kind, code) = ((value >> 16) & 0xff, (value >> 8) & 0xff, value & 0xff);
                write!(to, ": layer {layer}, type {kind}, code {code:#04x} (RFC 5040 section 4.8)")
            }
            _ => Ok(()),
        }
    }
}

/// Kind of a memory window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WindowKind {
    /// Type 1: open to all queue pairs of its protection domain.
    Domain,
    /// Type 2: open to the queue pair that bound it, which may invalidate it, and its peer, too.
    Queue,
}

/// Attributes of a software RNIC: its limits (`ibv_device_attr`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Programs that use the RNIC.
    pub max_clients: u32,
    /// Queue pairs of a program.
    pub max_queue_pairs: u32,
    /// Completion queues of a program.
    pub max_completion_queues: u32,
    /// Shared receive queues of a program.
    pub max_shared_queues: u32,
    /// Protection domains of a program.
    pub max_domains: u32,
    /// Memory regions of a program.
    pub max_regions: u32,
    /// Memory windows of a program.
    pub max_windows: u32,
    /// Listeners, connections that wait for an answer, and completion channels of a program, each.
    pub max_listeners: u32,
    /// Work requests of a queue.
    pub max_work_requests: u32,
    /// Entries of a completion queue.
    pub max_completions: u32,
    /// Scatter-gather elements of a work request.
    pub max_sges: u32,
    /// Bytes of a work request's own data.
    pub max_inline_bytes: u32,
    /// Bytes of a message.
    pub max_message_bytes: u32,
    /// Reads and atomics outstanding at a queue pair, each way (IRD and ORD).
    pub max_reads: u32,
    /// Bytes of a file that memory is registered of.
    pub max_file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_clients: 256,
            max_queue_pairs: 4096,
            max_completion_queues: 4096,
            max_shared_queues: 1024,
            max_domains: 1024,
            max_regions: 1 << 16,
            max_windows: 1 << 16,
            max_listeners: 256,
            max_work_requests: 1 << 14,
            max_completions: 1 << 18,
            max_sges: crate::descriptor::MAX_SGES as u32,
            max_inline_bytes: crate::descriptor::MAX_INLINE_BYTES as u32,
            max_message_bytes: 1 << 30,
            max_reads: 128,
            max_file_bytes: 1 << 40,
        }
    }
}

/// Lengths of a queue pair's queues (`ibv_qp_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLengths {
    /// Send requests outstanding.
    pub send_requests: u32,
    /// Receives outstanding.
    pub receives: u32,
    /// Scatter-gather elements of a send request.
    pub send_sges: u32,
    /// Scatter-gather elements of a receive.
    pub receive_sges: u32,
    /// Bytes of a send request's own data.
    pub inline_bytes: u32,
}

impl Default for QueueLengths {
    fn default() -> Self {
        Self { send_requests: 128, receives: 128, send_sges: 4, receive_sges: 4, inline_bytes: 64 }
    }
}

/// Attributes of a queue pair that may change with its state (`ibv_qp_attr`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueAttributes {
    /// Rights of the peer: remote ones.
    pub access: Access,
    /// Number of the peer's queue pair, for programs that exchange numbers by themselves.
    pub peer_queue: Option<u32>,
    /// Address of the peer's RNIC, which has given the queue pair its number ([`Command::NumberQueuePair`]); `None`: the peer
    /// is a queue pair of this RNIC, by its handle.
    ///
    /// [`Command::NumberQueuePair`]: crate::Command::NumberQueuePair
    pub peer_address: Option<IpAddr>,
    /// Reads and atomics that the peer may have outstanding here (`max_dest_rd_atomic`, IRD).
    pub inbound_reads: u32,
    /// Reads and atomics outstanding at the peer (`max_rd_atomic`, ORD).
    pub outbound_reads: u32,
    /// Number of times that a message is sent again which found no receive posted; 7: without end.
    pub receiver_retries: u8,
    /// Time between those.
    pub receiver_retry_interval: Duration,
    /// Time in which the peer's queue pair is to become ready to receive.
    pub peer_timeout: Duration,
}

/// [`QueueAttributes::receiver_retries`] without end.
pub const ENDLESS_RETRIES: u8 = 7;

impl Default for QueueAttributes {
    fn default() -> Self {
        Self {
            access: Access::REMOTE,
            peer_queue: None,
            peer_address: None,
            inbound_reads: 16,
            outbound_reads: 16,
            receiver_retries: 0,
            receiver_retry_interval: Duration::from_millis(1),
            peer_timeout: Duration::from_secs(1),
        }
    }
}

/// Event that belongs to no completion (`ibv_async_event`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AsyncEvent {
    /// A completion queue was full when a completion was to be put in: it is lost, and all its queue pairs are in error.
    CompletionOverrun {
        /// Completion queue.
        queue: u32,
        /// Number of its entries.
        entries: u32,
    },
    /// A request of the peer was refused, and the queue pair is in error.
    QueueAccessError {
        /// Queue pair.
        queue: u32,
        /// Cause, in words.
        cause: String,
    },
    /// The queue pair is in error for another reason.
    QueueFatal {
        /// Queue pair.
        queue: u32,
        /// Cause, in words.
        cause: String,
    },
    /// All requests that were begun have completed (state SQD).
    SendQueueDrained {
        /// Queue pair.
        queue: u32,
    },
    /// Fewer receives are posted to a shared receive queue than its limit.
    SharedQueueLimit {
        /// Shared receive queue.
        queue: u32,
        /// Limit that was set.
        limit: u32,
    },
    /// A shared receive queue was damaged by its program.
    SharedQueueError {
        /// Shared receive queue.
        queue: u32,
    },
    /// Events were lost, since the program does not read them.
    EventsLost {
        /// Number of events.
        number: u64,
    },
}
