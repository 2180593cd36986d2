//! One RDMAP stream.

mod delivery;
mod inbound;
mod outstanding;
mod placement;
mod scatter;
mod send_queue;
mod transmit;

use crate::fault::Fault;
use crate::header::SegmentHeader;
use crate::memory::Memory;
use crate::settings::{FirstMessage, MIN_SEGMENT_LIMIT_BYTES, PostError, SettingsError, StreamSettings};
use crate::terminate::{ErrorCode, Terminate, TerminatedSegment};
use crate::work::{Event, Failure, WorkRequest};
use delivery::ReceiveHalf;
use inbound::InboundQueue;
use outstanding::OutstandingQueue;
use send_queue::SendQueue;
use std::collections::VecDeque;
use transmit::{SendHalf, SendState};

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

/// State of the half that receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiveState {
    Open,
    /// The peer sends nothing more.
    Closed,
    /// The stream is over: segments are dropped (RFC 5041 §7.1).
    Dropping,
}

/// Request or receive that a failure is put down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Culprit {
    None,
    /// Posted request, by its number.
    Request(u64),
    /// Receive of the message that is being delivered.
    Receive,
}

/// The protocol half of a queue pair.
#[derive(Debug)]
pub struct Stream {
    settings: StreamSettings,
    /// Posted requests that are not over.
    queue: SendQueue,
    /// Reads and atomics of this side that wait for their responses.
    outstanding: OutstandingQueue,
    /// Reads and atomics of the peer that wait for theirs.
    inbound: InboundQueue,
    sender: SendHalf,
    receiver: ReceiveHalf,
    receive_state: ReceiveState,
    fault: Option<Fault>,
    events: VecDeque<Event>,
}

impl Stream {
    /// Returns a stream over a lower layer whose start-up is over.
    ///
    /// # Errors
    ///
    /// The settings contradict each other, or the limit of a segment.
    pub fn new(settings: StreamSettings) -> Result<Self, SettingsError> {
        check_segment_limit(settings.segment_limit_bytes)?;
        let mut queue = SendQueue::default();
        match settings.first_message {
            FirstMessage::Either | FirstMessage::AwaitPeer => {}
            FirstMessage::ReadyByRead if settings.outbound_requests == 0 => return Err(SettingsError::ReadyByRead),
            FirstMessage::ReadyByRead => queue.push_ready_read(),
            FirstMessage::ReadyByWrite => queue.push_ready_write(),
        }
        Ok(Self {
            sender: SendHalf::new(settings.first_message == FirstMessage::AwaitPeer),
            settings,
            queue,
            outstanding: OutstandingQueue::default(),
            inbound: InboundQueue::default(),
            receiver: ReceiveHalf::default(),
            receive_state: ReceiveState::Open,
            fault: None,
            events: VecDeque::new(),
        })
    }

    /// Queues a work request. On a stream that has failed it completes at once, flushed.
    ///
    /// # Errors
    ///
    /// The request cannot be carried out on this stream, whatever its state; it is not queued.
    pub fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        let total_bytes = send_queue::check_request(&request, &self.settings)?;
        if self.receive_state == ReceiveState::Dropping {
            self.events.push_back(Event::Completed(send_queue::failed_completion(&request, Failure::Flushed)));
            return Ok(());
        }
        if self.sender.state != SendState::Open {
            return Err(PostError::Closed);
        }
        self.queue.push_request(request, total_bytes);
        Ok(())
    }

    /// Reports that the lower layer will deliver, or has delivered, all segments below a sequence number, and needs
    /// their places no more (RFC 5041 §5.4). Their Writes and Sends complete.
    pub fn accept_segments(&mut self, below: u64) {
        self.sender.accepted = self.sender.accepted.max(below.min(self.sender.next_sequence));
        self.complete_requests();
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends the stream by an error of the lower layer (a CRC, a marker), or by one of the owner's (a completion queue
    /// that overran, a program that was killed). The Terminate message is the next segment.
    pub fn terminate(&mut self, error: ErrorCode) {
        self.end_by_fault(Fault::Reported(error), None, Culprit::None);
    }

    /// Closes the sending half: what was posted still goes out, nothing more can be posted.
    pub fn close(&mut self) {
        if self.sender.state == SendState::Open {
            self.sender.state = SendState::Closing;
            self.finish_closing();
        }
    }

    /// Reports that the peer closed its sending half (FIN). All of its segments must have been received.
    ///
    /// Writes and Sends go on (RFC 5041 §6.2.1). Within a message, or where Reads wait for their responses, it is the
    /// end of the stream.
    pub fn close_by_peer(&mut self) {
        if self.receive_state != ReceiveState::Open {
            return;
        }
        if !self.receiver.is_between_messages() {
            return self.end_by_fault(Fault::Closed { place: "within a message" }, None, Culprit::Receive);
        }
        if let Some(request) = self.outstanding.front_request() {
            let fault = Fault::Closed { place: "before it answered a Read or an atomic" };
            return self.end_by_fault(fault, None, Culprit::Request(request));
        }
        self.receive_state = ReceiveState::Closed;
        self.events.push_back(Event::ClosedByPeer);
        self.finish_closing();
    }

    /// Reports that the lower layer is lost, both ways. All that is posted is flushed.
    pub fn lose_connection(&mut self) {
        self.receive_state = ReceiveState::Dropping;
        self.sender.close_half();
        self.flush_posted(Culprit::None, &Failure::Flushed);
    }

    /// Changes the longest segment from the next on (RFC 5041 §3 rule 1).
    ///
    /// # Errors
    ///
    /// No segment can be that short, or long.
    pub fn set_segment_limit(&mut self, bytes: usize) -> Result<(), SettingsError> {
        check_segment_limit(bytes)?;
        self.settings.segment_limit_bytes = bytes;
        Ok(())
    }

    /// Number of bytes that the peer has read by RDMA reads so far: those of its responses that were made.
    pub fn bytes_read_by_peer(&self) -> u64 {
        self.sender.bytes_read_by_peer
    }

    /// Whether nothing will be sent any more: the Terminate message went out, or all that was posted before
    /// [`close`](Self::close). The lower layer's sending half is to be closed.
    pub fn is_send_closed(&self) -> bool {
        self.sender.state == SendState::Closed
    }

    /// Whether the stream is over: it failed on either side, or both halves were closed. After a fault of this side
    /// the Terminate message may still have to be sent: see [`is_send_closed`](Self::is_send_closed).
    pub fn is_over(&self) -> bool {
        match self.receive_state {
            ReceiveState::Open => false,
            ReceiveState::Closed => self.is_send_closed(),
            ReceiveState::Dropping => true,
        }
    }

    /// Fault that ended the stream on this side.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Completes the requests at the head of the queue that are over (RFC 5040 §5.5 rule 15).
    fn complete_requests(&mut self) {
        while let Some(completion) = self.queue.pop_over(self.sender.accepted) {
            self.events.extend(completion.map(Event::Completed));
        }
        self.finish_closing();
    }

    /// Ends a closing half once all is sent and accepted, and the peer's Reads are answered.
    fn finish_closing(&mut self) {
        let answered = self.inbound.is_empty() && self.sender.is_all_accepted();
        if self.sender.state == SendState::Closing && self.queue.is_empty() && answered {
            self.sender.close_half();
            self.events.push_back(Event::SendClosed);
        }
    }

    /// Ends the stream by a fault that this side found: once, by the first (RFC 5040 §7.1 rule 4). The Terminate
    /// message goes out next, and nothing after it (§5.4).
    fn end_by_fault(&mut self, fault: Fault, segment: Option<TerminatedSegment>, culprit: Culprit) {
        if self.receive_state == ReceiveState::Dropping {
            return;
        }
        let error = fault.error_code();
        self.receive_state = ReceiveState::Dropping;
        self.sender
            .terminate_with(Terminate { error, segment: segment.and_then(|found| included_segment(error, found)) });
        self.events.push_back(Event::TerminatedHere(fault.clone()));
        self.flush_posted(culprit, &failure_of(&fault));
        self.fault = Some(fault);
    }

    /// Ends the stream by a Terminate message of the peer. Nothing is sent after it (RFC 5040 §5.4).
    fn end_by_peer(&mut self, terminate: Terminate) {
        let culprit = self.queue.find_terminated(&terminate).map_or(Culprit::None, Culprit::Request);
        self.receive_state = ReceiveState::Dropping;
        self.sender.close_half();
        self.events.push_back(Event::TerminatedByPeer(terminate));
        self.flush_posted(culprit, &Failure::Remote(terminate));
    }

    /// Completes all that is posted: the culprit with its failure, the others flushed.
    fn flush_posted(&mut self, culprit: Culprit, failure: &Failure) {
        self.inbound.clear();
        self.outstanding.clear_all();
        for (number, completion) in self.queue.drain_requests() {
            let guilty = culprit == Culprit::Request(number);
            let failure = if guilty { failure.clone() } else { Failure::Flushed };
            self.events.push_back(Event::Completed(send_queue::failed_completion(&completion, failure)));
        }
        for (index, id) in self.receiver.drain_receives().enumerate() {
            let guilty = culprit == Culprit::Receive && index == 0;
            let result = Err(if guilty { failure.clone() } else { Failure::Flushed });
            self.events.push_back(Event::Received { id, result });
        }
    }
}

impl Stream {
    /// Returns whether [`next_segment`](Self::next_segment) may find something to do.
    pub fn has_segment(&mut self) -> bool {
        self.may_transmit()
    }

    /// Fills in the next segment to send, and returns whether there is one. Its places are valid at the time of the
    /// call: the caller reads their bytes, or takes hold of their memory, before it calls anything that invalidates
    /// memory.
    pub fn next_segment<M: Memory>(&mut self, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> bool {
        self.transmit_next(memory, segment)
    }

    /// Takes in a segment, in any order, and places its bytes. Sequence numbers order the segments as the peer sent
    /// them, and need not be consecutive. A segment that was taken before is dropped.
    pub fn receive_segment<M: Memory>(&mut self, sequence: u64, segment: &[u8], memory: &mut M) -> ReceiveOutcome {
        self.place_segment(sequence, segment, memory)
    }

    /// Reports that all segments below a sequence number were received. What they are part of is delivered.
    pub fn deliver_segments<M: Memory>(&mut self, below: u64, memory: &mut M) {
        while self.receive_state == ReceiveState::Open
            && let Some(record) = self.receiver.next_record(below)
        {
            self.deliver_record(record, memory);
        }
        self.receiver.delivered = self.receiver.delivered.max(below);
    }

    /// Takes in the next segment of a lower layer that keeps the order, and delivers.
    pub fn receive_next<M: Memory>(&mut self, segment: &[u8], memory: &mut M) -> ReceiveOutcome {
        let sequence = self.receiver.delivered;
        let outcome = self.receive_segment(sequence, segment, memory);
        if outcome == ReceiveOutcome::Taken {
            self.deliver_segments(sequence + 1, memory);
        }
        outcome
    }
}

fn check_segment_limit(bytes: usize) -> Result<(), SettingsError> {
    if (MIN_SEGMENT_LIMIT_BYTES..=usize::from(u16::MAX)).contains(&bytes) {
        Ok(())
    } else {
        Err(SettingsError::SegmentLimit { bytes })
    }
}

/// Failure of the request or receive that a fault was found in.
fn failure_of(fault: &Fault) -> Failure {
    match fault {
        Fault::LocalAccess { range, reason } => Failure::LocalAccess { range: *range, reason: *reason },
        Fault::Local(reason) => Failure::Local(*reason),
        fault => Failure::Message(fault.clone()),
    }
}

/// Returns the part of a segment that the Terminate message includes (RFC 5040 §4.8 figure 10).
fn included_segment(error: ErrorCode, mut segment: TerminatedSegment) -> Option<TerminatedSegment> {
    match (error.layer, error.error_type) {
        // Local catastrophic errors, and errors of the lower layer: nothing.
        (0, 0) | (2.., _) => None,
        // Remote protection errors of Read Requests: both headers.
        (0, 1) => Some(segment),
        // All others: the DDP header.
        _ => {
            segment.read_request = None;
            Some(segment)
        }
    }
}

/// Returns what a Terminate message has of a segment with a header and a length.
fn terminated_segment(header: SegmentHeader, segment_bytes: usize) -> TerminatedSegment {
    // Lower layers carry at most 65535 bytes.
    let length = u16::try_from(segment_bytes).unwrap_or(u16::MAX);
    TerminatedSegment { length, header, read_request: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, MemoryRange, Stag};
    use crate::plain::PlainMemory;
    use crate::work::{AtomicOperation, Completion, Operation, Payload, ReceiveBuffer, RemoteAddress};

    const MEMORY: Stag = Stag(7);

    /// A side that is about to send, and to receive, the last message of each queue before the numbers begin anew.
    fn side_before_wrap() -> (Stream, PlainMemory) {
        let mut stream = Stream::new(StreamSettings::default()).unwrap();
        stream.sender.set_next_numbers(u32::MAX);
        stream.receiver.set_next_numbers(u32::MAX);
        let mut memory = PlainMemory::default();
        memory.register(MEMORY, 0, vec![0; 64], &[Access::LocalWrite, Access::RemoteRead, Access::RemoteAtomic]);
        (stream, memory)
    }

    /// RFC 5041 §4.3: a message number is followed by the next one modulo 2³².
    #[test]
    fn message_numbers_wrap() {
        let (mut here, mut there) = (side_before_wrap(), side_before_wrap());
        let remote = RemoteAddress { stag: MEMORY, offset: 0 };
        let range = MemoryRange { stag: MEMORY, offset: 8, length: 8 };
        let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
        let operations = [
            Operation::Send { data: Payload::Inline(vec![1; 8]), invalidate: None },
            Operation::Read { remote, into: vec![range] },
            Operation::Atomic { remote, operation: add, into: range },
            Operation::Immediate([0; 8]),
            Operation::Atomic { remote, operation: add, into: range },
            Operation::Read { remote, into: vec![range] },
        ];
        for (id, operation) in (0..).zip(operations) {
            here.0.post(WorkRequest { id, operation, fence: false, solicited: false }).unwrap();
            there.1.receives.push_back(ReceiveBuffer { id, into: vec![range] });
        }
        let mut segment = OutgoingSegment::default();
        for _ in 0..2 {
            while here.0.next_segment(&mut here.1, &mut segment) {
                here.0.accept_segments(segment.sequence + 1);
                let bytes = here.1.segment_bytes(&segment);
                assert_eq!(there.0.receive_next(&bytes, &mut there.1), ReceiveOutcome::Taken);
            }
            std::mem::swap(&mut here, &mut there);
        }
        let done = std::iter::from_fn(|| here.0.next_event());
        let done = done.filter(|event| matches!(event, Event::Completed(Completion { result: Ok(()), .. })));
        assert_eq!((done.count(), here.0.fault(), there.0.fault()), (6, None, None));
        assert_eq!(here.1.bytes(range), Some(&2_u64.to_ne_bytes()[..]), "two atomics before the last Read");
    }
}
