//! Queue pair registers: state, rings and the request under way of each queue pair.

use crate::attributes::{QueueAttributes, QueueLengths, QueueState};
use crate::command::Reply;
use crate::descriptor::{ReceiveDescriptor, SendDescriptor, SendFlags};
use crate::events::EventSocket;
use crate::numbers::Numbered;
use crate::stream::StreamPath;
use std::time::Instant;
use thalweg_arena::RingReceiver;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) client: u32,
    pub(crate) domain: u32,
    pub(crate) send_completions: u32,
    pub(crate) receive_completions: u32,
    pub(crate) shared_queue: Option<u32>,
    pub(crate) lengths: QueueLengths,
    pub(crate) signal_all: bool,
    pub(crate) state: QueueState,
    pub(crate) attributes: QueueAttributes,
    pub(crate) send: SendRing,
    /// `None` with a shared receive queue.
    pub(crate) receive: Option<ReceiveRing>,
    /// Request that has begun and not completed.
    pub(crate) current: Option<Transfer>,
    pub(crate) path: Path,
    /// Stream to a queue pair of another RNIC.
    pub(crate) stream: Option<Box<StreamPath>>,
    pub(crate) connection: Option<Connection>,
    /// Number by which queue pairs of other RNICs find it.
    pub(crate) numbered: Option<Box<Numbered>>,
    /// Whether [`QueueState::SendDrained`] was entered and its event not sent.
    pub(crate) drain_event_due: bool,
}

impl QueuePair {
    /// Returns state and attributes.
    pub(crate) fn describe_state(&self) -> Reply {
        Reply::QueuePair { state: self.state, attributes: self.attributes.clone() }
    }

    /// Returns whether requests of the queue pair complete in a completion queue.
    pub(crate) fn completes_in(&self, completions: u32) -> bool {
        self.send_completions == completions || self.receive_completions == completions
    }
}

/// Way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    Unconnected,
    /// A queue pair of this RNIC, which must name this one, too.
    Local(u32),
    /// A queue pair of another RNIC.
    Stream,
    /// A queue pair of another RNIC, by its number: there is a stream from the meeting of the two until one leaves.
    Numbered,
}

/// Ring of a send queue.
#[derive(Debug)]
pub(crate) struct SendRing {
    pub(crate) ring: RingReceiver,
    /// Index of the next request.
    pub(crate) next: u32,
    /// Whether its program has damaged it: nothing more is taken out of it until the queue pair is reset.
    pub(crate) broken: bool,
}

/// Ring of a receive queue, shared or not.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    pub(crate) ring: RingReceiver,
    /// Scatter-gather elements of its receives.
    pub(crate) sges: u32,
    /// Index of the next receive.
    pub(crate) next: u32,
    pub(crate) broken: bool,
}

/// A receive that was taken for a message.
#[derive(Debug)]
pub(crate) struct TakenReceive {
    pub(crate) receive: ReceiveDescriptor,
    pub(crate) index: u32,
}

/// A send request under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) request: SendDescriptor,
    pub(crate) index: u32,
    pub(crate) total_bytes: u64,
    pub(crate) done_bytes: u64,
    /// Receive of the peer that it fills.
    pub(crate) receive: Option<TakenReceive>,
    /// End of the present wait for the peer.
    pub(crate) deadline: Option<Instant>,
    pub(crate) retries: u8,
}

impl Transfer {
    pub(crate) fn new(request: SendDescriptor, index: u32) -> Self {
        let total_bytes = request.total_bytes();
        Self { request, index, total_bytes, done_bytes: 0, receive: None, deadline: None, retries: 0 }
    }

    pub(crate) fn is_solicited(&self) -> bool {
        self.request.flags.contains(SendFlags::SOLICITED)
    }
}

/// A connection that was made by the RNIC.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) events: EventSocket,
    pub(crate) established: bool,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(crate) client: u32,
    pub(crate) domain: u32,
    pub(crate) receive: ReceiveRing,
    /// Number of receives below which an event is sent, once; 0: none.
    pub(crate) limit: u32,
}
