//! One RDMAP stream.

use crate::fault::Fault;
use crate::memory::Memory;
use crate::settings::{PostError, SettingsError, StreamSettings};
use crate::terminate::ErrorCode;
use crate::work::{Event, WorkRequest};

/// A DDP segment to send: the buffers of one call of [`Stream::next_segment`], to be used again for the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingSegment<P> {
    /// Number of the segment on its stream: 0, 1, 2, …
    pub sequence: u64,
    /// First bytes: DDP header, RDMAP header, data that was posted inline.
    pub head: Vec<u8>,
    /// Places of the bytes that follow.
    pub places: Vec<P>,
    /// Length in bytes of all places.
    pub payload_bytes: usize,
}

impl<P> Default for OutgoingSegment<P> {
    fn default() -> Self {
        Self { sequence: 0, head: Vec::new(), places: Vec::new(), payload_bytes: 0 }
    }
}

/// Outcome of a received segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub enum ReceiveOutcome {
    /// The segment was taken: its bytes are placed, or dropped because the stream is over.
    Taken,
    /// No receive is posted for it, and nothing was changed. The same segment is to be presented again, after one was
    /// posted; until then the lower layer holds it, and does not acknowledge it.
    NoReceive,
}

/// The protocol half of a queue pair.
#[derive(Debug)]
pub struct Stream {
    _settings: StreamSettings,
}

#[expect(unused_variables, clippy::unimplemented, reason = "a sketch")]
impl Stream {
    /// Returns a stream over a lower layer whose start-up is over.
    ///
    /// # Errors
    ///
    /// The settings contradict each other.
    pub fn new(settings: StreamSettings) -> Result<Self, SettingsError> {
        unimplemented!()
    }

    /// Queues a work request. On a stream that has failed it completes at once, flushed.
    ///
    /// # Errors
    ///
    /// The request cannot be carried out on this stream, whatever its state; it is not queued.
    pub fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        unimplemented!()
    }

    /// Fills in the next segment to send, and returns whether there is one. Its places are valid at the time of the
    /// call: the caller reads their bytes, or takes hold of their memory, before it calls anything that invalidates
    /// memory.
    pub fn next_segment<M: Memory>(&mut self, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> bool {
        unimplemented!()
    }

    /// Reports that the lower layer will deliver, or has delivered, all segments below a sequence number, and needs
    /// their places no more (RFC 5041 §5.4). Their Writes and Sends complete.
    pub fn accept_segments(&mut self, below: u64) {
        unimplemented!()
    }

    /// Takes in a segment, in any order, and places its bytes. Sequence numbers order the segments as the peer sent
    /// them, and need not be consecutive. A segment that was taken before is dropped.
    pub fn receive_segment<M: Memory>(&mut self, sequence: u64, segment: &[u8], memory: &mut M) -> ReceiveOutcome {
        unimplemented!()
    }

    /// Reports that all segments below a sequence number were received. What they are part of is delivered.
    pub fn deliver_segments<M: Memory>(&mut self, below: u64, memory: &mut M) {
        unimplemented!()
    }

    /// Takes in the next segment of a lower layer that keeps the order, and delivers.
    pub fn receive_next<M: Memory>(&mut self, segment: &[u8], memory: &mut M) -> ReceiveOutcome {
        unimplemented!()
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        unimplemented!()
    }

    /// Ends the stream by an error of the lower layer (a CRC, a marker), or by one of the owner's (a completion queue
    /// that overran, a program that was killed). The Terminate message is the next segment.
    pub fn terminate(&mut self, error: ErrorCode) {
        unimplemented!()
    }

    /// Closes the sending half: what was posted still goes out, nothing more can be posted.
    pub fn close(&mut self) {
        unimplemented!()
    }

    /// Reports that the peer closed its sending half (FIN). All of its segments must have been received.
    pub fn close_by_peer(&mut self) {
        unimplemented!()
    }

    /// Reports that the lower layer is lost, both ways. All that is posted is flushed.
    pub fn lose_connection(&mut self) {
        unimplemented!()
    }

    /// Changes the longest segment from the next on (RFC 5041 §3 rule 1).
    ///
    /// # Errors
    ///
    /// No segment can be that short, or long.
    pub fn set_segment_limit(&mut self, bytes: usize) -> Result<(), SettingsError> {
        unimplemented!()
    }

    /// Whether nothing will be sent any more: the Terminate message went out, or all that was posted before
    /// [`close`](Self::close). The lower layer's sending half is to be closed.
    pub fn is_send_closed(&self) -> bool {
        unimplemented!()
    }

    /// Whether the stream is over, by an error of either side or by both halves having closed.
    pub fn is_over(&self) -> bool {
        unimplemented!()
    }

    /// Fault that ended the stream on this side.
    pub fn fault(&self) -> Option<&Fault> {
        unimplemented!()
    }
}
