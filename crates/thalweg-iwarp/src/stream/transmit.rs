//! Sending: messages in the order in which they were posted, cut into segments; responses in between.

use super::inbound::{InboundKind, InboundRequest};
use super::outstanding::{Outstanding, Wanted, sink_offset};
use super::scatter::{RangeError, check_ranges, check_wrap, gather_places};
use super::send_queue::{Posted, Progress};
use super::{Culprit, OutgoingSegment, ReceiveState, Stream};
use crate::fault::Fault;
use crate::header::{
    AtomicRequest, AtomicResponse, Control, Opcode, Queue, ReadRequest, SegmentHeader, TAGGED_HEADER_BYTES,
    UNTAGGED_HEADER_BYTES,
};
use crate::memory::{Access, AccessError, Memory, MemoryRange, Stag};
use crate::terminate::Terminate;
use crate::work::{AtomicOperation, Operation, Payload};

/// State of the half that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendState {
    Open,
    /// What is posted still goes out, nothing more is posted.
    Closing,
    /// A Terminate message is the last that goes out (RFC 5040 §5.4).
    Terminating(Terminate),
    Closed,
}

/// Message that is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// The posted request whose turn it is: bytes of it that were sent.
    Request { sent: u32 },
    /// Immediate Data after the posted Write.
    Immediate,
    /// The response to the oldest of the peer's requests.
    Response,
}

/// Outcome of a step.
enum Step {
    /// A segment was filled in.
    Segment,
    /// Something was done for which there is no segment, or the stream has failed.
    Other,
}

/// The half that sends.
#[derive(Debug)]
pub(super) struct SendHalf {
    pub(super) state: SendState,
    /// Sequence number of the next segment.
    pub(super) next_sequence: u64,
    /// All segments below this number were accepted by the lower layer.
    pub(super) accepted: u64,
    /// Whether nothing is sent before the peer has sent something (RFC 5044 §7.1.2 rule 4).
    awaits_peer: bool,
    sending: Option<Sending>,
    /// Whether the last message sent was a response.
    was_response: bool,
    /// Payload of responses to reads so far.
    pub(super) bytes_read_by_peer: u64,
    /// Numbers of the next messages of each queue; the first is 1 (RFC 5041 §4.3).
    next_send: u32,
    next_request: u32,
    next_atomic_response: u32,
}

impl SendHalf {
    pub(super) fn new(awaits_peer: bool) -> Self {
        Self {
            state: SendState::Open,
            next_sequence: 0,
            accepted: 0,
            awaits_peer,
            sending: None,
            was_response: false,
            bytes_read_by_peer: 0,
            next_send: 1,
            next_request: 1,
            next_atomic_response: 1,
        }
    }

    /// Takes note of a segment of the peer's.
    pub(super) fn note_peer(&mut self) {
        self.awaits_peer = false;
    }

    pub(super) fn is_all_accepted(&self) -> bool {
        self.accepted == self.next_sequence
    }

    pub(super) fn close_half(&mut self) {
        self.state = SendState::Closed;
    }

    /// Makes a Terminate message the last, where one can still be sent.
    pub(super) fn terminate_with(&mut self, terminate: Terminate) {
        // A responder must not send anything before the initiator has (RFC 5044 §7.1.2 rule 4).
        self.state = match self.state {
            SendState::Open | SendState::Closing if !self.awaits_peer => SendState::Terminating(terminate),
            _ => SendState::Closed,
        };
    }

    #[cfg(test)]
    pub(super) fn set_next_numbers(&mut self, number: u32) {
        (self.next_send, self.next_request, self.next_atomic_response) = (number, number, number);
    }

    fn take_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }
}

fn take_number(next: &mut u32) -> u32 {
    let number = *next;
    *next = next.wrapping_add(1);
    number
}

/// Header of a message in one segment to a queue.
fn untagged_header(opcode: Opcode, message: u32) -> SegmentHeader {
    let queue = opcode.target_queue().unwrap_or(Queue::Send) as u32;
    SegmentHeader::Untagged { control: Control::new(opcode, true), reserved: 0, queue, message, offset: 0 }
}

impl Stream {
    pub(super) fn transmit_next<M: Memory>(&mut self, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> bool {
        segment.head.clear();
        segment.places.clear();
        segment.payload_bytes = 0;
        loop {
            match self.sender.state {
                SendState::Terminating(terminate) => {
                    untagged_header(Opcode::Terminate, 1).encode_header(&mut segment.head);
                    terminate.encode_payload(&mut segment.head);
                    self.sender.close_half();
                    break;
                }
                SendState::Closed => return false,
                SendState::Open | SendState::Closing if self.sender.awaits_peer => return false,
                SendState::Open | SendState::Closing => {}
            }
            let step = match self.sender.sending.or_else(|| self.choose_message()) {
                None => return false,
                Some(Sending::Request { sent }) => self.send_request(sent, memory, segment),
                Some(Sending::Immediate) => self.send_immediate_after(segment),
                Some(Sending::Response) => self.send_response(memory, segment),
            };
            if matches!(step, Step::Segment) {
                break;
            }
            // The segment of a message that failed is not sent, and what it has so far not either.
            segment.head.clear();
            segment.places.clear();
            segment.payload_bytes = 0;
        }
        segment.sequence = self.sender.take_sequence();
        true
    }

    pub(super) fn may_transmit(&mut self) -> bool {
        match self.sender.state {
            SendState::Terminating(_) => true,
            SendState::Closed => false,
            SendState::Open | SendState::Closing => {
                !self.sender.awaits_peer
                    && (self.sender.sending.is_some() || !self.inbound.is_empty() || self.is_request_ready())
            }
        }
    }

    /// Chooses the message to send next: posted requests and responses in turn, each in its own order (RFC 5040 §5.5
    /// rules 13, 20).
    fn choose_message(&mut self) -> Option<Sending> {
        let response = !self.inbound.is_empty();
        let request = self.is_request_ready();
        let chosen = match (request, response) {
            (true, true) if self.sender.was_response => Sending::Request { sent: 0 },
            (_, true) => Sending::Response,
            (true, false) => Sending::Request { sent: 0 },
            (false, false) => return None,
        };
        self.sender.was_response = chosen == Sending::Response;
        Some(chosen)
    }

    /// Whether the posted request whose turn it is may begin.
    fn is_request_ready(&mut self) -> bool {
        let (pending, limit) = (self.outstanding.pending_count(), usize::from(self.settings.outbound_requests));
        self.queue.current_request().is_some_and(|(_, posted)| match posted.request.operation {
            _ if posted.request.fence && pending > 0 => false,
            // RFC 5040 §6.1: no more at a time than agreed. RFC 7306 §5.2: atomics count as Reads.
            Operation::Read { .. } | Operation::Atomic { .. } => pending < limit,
            _ => true,
        })
    }

    /// Sends the next segment of the posted request whose turn it is.
    fn send_request<M: Memory>(&mut self, sent: u32, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> Step {
        let Some((number, posted)) = self.queue.current_request() else { return Step::Other };
        if matches!(posted.request.operation, Operation::Read { .. } | Operation::Atomic { .. }) {
            return self.send_remote_request(memory, segment);
        }
        let limit_bytes = self.settings.segment_limit_bytes;
        let made = match &posted.request.operation {
            Operation::Local => {
                let id = posted.request.id;
                match memory.run_local(id) {
                    Ok(()) => {
                        self.queue.advance_past(Progress::Done);
                        self.complete_requests();
                    }
                    Err(reason) => self.end_by_fault(Fault::Local(reason), None, Culprit::Request(number)),
                }
                return Step::Other;
            }
            Operation::Immediate(data) => {
                let data = *data;
                let message = take_number(&mut self.sender.next_send);
                posted.message = Some(message);
                encode_immediate(data, posted.request.solicited, message, &mut segment.head);
                self.queue.advance_past(Progress::Sent(self.sender.next_sequence));
                return Step::Segment;
            }
            Operation::Write { remote, .. } => {
                let offset = remote.offset.wrapping_add(sent.into());
                let tagged = TaggedMessage { opcode: Opcode::Write, stag: remote.stag, offset };
                make_segment(posted, sent, limit_bytes, memory, segment, |last| tagged.segment_header(last))
            }
            _ => {
                let next_send = &mut self.sender.next_send;
                let message = *posted.message.get_or_insert_with(|| take_number(next_send));
                let send = SendMessage::from_posted(posted, message, sent);
                make_segment(posted, sent, limit_bytes, memory, segment, |last| send.segment_header(last))
            }
        };
        match made {
            Ok(bytes) => {
                self.note_sent(sent + bytes);
                Step::Segment
            }
            Err((range, reason)) => {
                self.end_by_fault(Fault::LocalAccess { range, reason }, None, Culprit::Request(number));
                Step::Other
            }
        }
    }

    /// Takes note that these bytes of the current Write or Send are sent with this segment.
    fn note_sent(&mut self, sent: u32) {
        let Some((_, posted)) = self.queue.current_request() else { return };
        self.sender.sending = if sent < posted.total_bytes {
            Some(Sending::Request { sent })
        } else if matches!(posted.request.operation, Operation::Write { immediate: Some(_), .. }) {
            Some(Sending::Immediate)
        } else {
            self.queue.advance_past(Progress::Sent(self.sender.next_sequence));
            None
        };
    }

    /// Sends the Immediate Data that follows a Write.
    fn send_immediate_after<P>(&mut self, segment: &mut OutgoingSegment<P>) -> Step {
        self.sender.sending = None;
        let Some((_, posted)) = self.queue.current_request() else { return Step::Other };
        let Operation::Write { immediate: Some(data), .. } = posted.request.operation else { return Step::Other };
        let message = take_number(&mut self.sender.next_send);
        posted.message = Some(message);
        encode_immediate(data, posted.request.solicited, message, &mut segment.head);
        self.queue.advance_past(Progress::Sent(self.sender.next_sequence));
        Step::Segment
    }

    /// Sends a Read Request or an Atomic Request.
    fn send_remote_request<M: Memory>(&mut self, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> Step {
        let Some((number, posted)) = self.queue.current_request() else { return Step::Other };
        if self.receive_state == ReceiveState::Closed {
            let fault = Fault::Closed { place: "and cannot answer a Read or an atomic" };
            self.end_by_fault(fault, None, Culprit::Request(number));
            return Step::Other;
        }
        if let Err((range, reason)) = check_ranges(memory, posted.sink_ranges(), Access::LocalWrite) {
            self.end_by_fault(Fault::LocalAccess { range, reason }, None, Culprit::Request(number));
            return Step::Other;
        }
        let message = take_number(&mut self.sender.next_request);
        posted.message = Some(message);
        let wanted = encode_remote_request(posted, message, &mut segment.head);
        self.outstanding.push_outstanding(Outstanding { request: number, message, wanted });
        self.queue.advance_past(Progress::Requested);
        Step::Segment
    }

    /// Sends the next segment of the response to the peer's oldest request.
    fn send_response<M: Memory>(&mut self, memory: &mut M, segment: &mut OutgoingSegment<M::Place>) -> Step {
        self.sender.sending = None;
        let Some(inbound) = self.inbound.front_mut() else { return Step::Other };
        let (opcode, made) = match inbound.kind {
            InboundKind::Read(request) => {
                let made = make_read_response(inbound, &request, self.settings.segment_limit_bytes, memory, segment);
                self.sender.bytes_read_by_peer += segment.payload_bytes as u64;
                (Opcode::ReadRequest, made)
            }
            InboundKind::Atomic(request, operation) => {
                let made = execute_atomic(&request, operation, memory).map(|original| {
                    let message = take_number(&mut self.sender.next_atomic_response);
                    untagged_header(Opcode::AtomicResponse, message).encode_header(&mut segment.head);
                    AtomicResponse { identifier: request.identifier, original }.encode_header(&mut segment.head);
                    true
                });
                (Opcode::AtomicRequest, made)
            }
        };
        match made {
            Ok(true) => {
                self.inbound.pop_front();
                Step::Segment
            }
            Ok(false) => {
                self.sender.sending = Some(Sending::Response);
                Step::Segment
            }
            Err((range, reason)) => {
                let terminated = inbound.terminated_segment();
                self.end_by_fault(Fault::RequestAccess { opcode, range, reason }, Some(terminated), Culprit::None);
                Step::Other
            }
        }
    }
}

/// Message into tagged buffers, from an offset on.
struct TaggedMessage {
    opcode: Opcode,
    stag: Stag,
    offset: u64,
}

impl TaggedMessage {
    fn segment_header(&self, last: bool) -> SegmentHeader {
        SegmentHeader::Tagged { control: Control::new(self.opcode, last), stag: self.stag, offset: self.offset }
    }
}

/// Send of any kind, from an offset on.
struct SendMessage {
    opcode: Opcode,
    reserved: u32,
    solicited_flag: bool,
    message: u32,
    offset: u32,
}

impl SendMessage {
    fn from_posted(posted: &Posted, message: u32, offset: u32) -> Self {
        let solicited = posted.request.solicited;
        let (opcode, reserved, solicited_flag) = match &posted.request.operation {
            Operation::SendWithImmediate { immediate, .. } => {
                (Opcode::SendImmediate, u32::from_be_bytes(*immediate), solicited)
            }
            Operation::Send { invalidate: Some(stag), .. } if solicited => {
                (Opcode::SendSolicitedInvalidate, stag.0, false)
            }
            Operation::Send { invalidate: Some(stag), .. } => (Opcode::SendInvalidate, stag.0, false),
            _ if solicited => (Opcode::SendSolicited, 0, false),
            _ => (Opcode::Send, 0, false),
        };
        Self { opcode, reserved, solicited_flag, message, offset }
    }

    fn segment_header(&self, last: bool) -> SegmentHeader {
        let Self { opcode, reserved, solicited_flag, message, offset } = *self;
        let control = Control { solicited_flag, ..Control::new(opcode, last) };
        SegmentHeader::Untagged { control, reserved, queue: Queue::Send as u32, message, offset }
    }
}

/// Fills in the segment of a Write or a Send from byte `sent` on, and returns how many bytes of data it has: as many as
/// fit (RFC 5041 §5.2). Only a message of no bytes has a segment of none.
fn make_segment<M: Memory>(
    posted: &Posted,
    sent: u32,
    limit_bytes: usize,
    memory: &mut M,
    segment: &mut OutgoingSegment<M::Place>,
    header: impl Fn(bool) -> SegmentHeader,
) -> Result<u32, RangeError> {
    let left = posted.total_bytes - sent;
    let room = limit_bytes - header(true).encoded_bytes();
    let length = left.min(u32::try_from(room).unwrap_or(u32::MAX));
    header(length == left).encode_header(&mut segment.head);
    match &posted.request.operation {
        Operation::Write { data, .. } | Operation::Send { data, .. } | Operation::SendWithImmediate { data, .. } => {
            match data {
                Payload::Inline(bytes) => {
                    segment.head.extend(&bytes[sent as usize..][..length as usize]);
                }
                Payload::Gathered(ranges) => {
                    // A message that cannot be sent to its end is not begun.
                    if sent == 0 && length < left {
                        check_ranges(memory, ranges, Access::LocalRead)?;
                    }
                    let bytes = (ranges.as_slice(), sent.into(), length.into());
                    gather_places(memory, bytes, Access::LocalRead, &mut segment.places)?;
                    segment.payload_bytes = length as usize;
                }
            }
        }
        _ => {}
    }
    Ok(length)
}

/// Appends Immediate Data (RFC 7306 §6.3).
fn encode_immediate(data: [u8; 8], solicited: bool, message: u32, to: &mut Vec<u8>) {
    let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
    untagged_header(opcode, message).encode_header(to);
    to.extend(data);
}

/// Appends a Read Request (RFC 5040 §4.4) or an Atomic Request (RFC 7306 §5.2.1), and returns what is then awaited.
fn encode_remote_request(posted: &Posted, message: u32, to: &mut Vec<u8>) -> Wanted {
    match &posted.request.operation {
        Operation::Atomic { remote, operation, .. } => {
            untagged_header(Opcode::AtomicRequest, message).encode_header(to);
            let (stag, offset, operation) = (remote.stag, remote.offset, Some(*operation));
            AtomicRequest { identifier: message, stag, offset, operation }.encode_header(to);
            Wanted::Atomic
        }
        operation => {
            // Nothing else comes here than Reads.
            let (sink_stag, source_stag, source_offset) = match operation {
                Operation::Read { remote, into } => {
                    (into.first().map_or(Stag(0), |range| range.stag), remote.stag, remote.offset)
                }
                _ => (Stag(0), Stag(0), 0),
            };
            let (sink_offset, length) = (sink_offset(message), posted.total_bytes);
            untagged_header(Opcode::ReadRequest, message).encode_header(to);
            ReadRequest { sink_stag, sink_offset, length, source_stag, source_offset }.encode_header(to);
            Wanted::Read { sink_stag, length, delivered: 0 }
        }
    }
}

/// Fills in the next segment of a Read Response, and returns whether it is the last.
fn make_read_response<M: Memory>(
    inbound: &mut InboundRequest,
    request: &ReadRequest,
    limit_bytes: usize,
    memory: &mut M,
    segment: &mut OutgoingSegment<M::Place>,
) -> Result<bool, RangeError> {
    let source = MemoryRange { stag: request.source_stag, offset: request.source_offset, length: request.length };
    // RFC 5040 §5.2.1: the source of a Read of no bytes must not be validated; all others must, as a whole (§7.2).
    if inbound.sent == 0 && request.length > 0 {
        let checked = check_wrap(source).and_then(|()| memory.check(source, Access::RemoteRead));
        checked.map_err(|reason| (source, reason))?;
    }
    let left = request.length - inbound.sent;
    let length = left.min(u32::try_from(limit_bytes - TAGGED_HEADER_BYTES).unwrap_or(u32::MAX));
    let offset = request.sink_offset.wrapping_add(inbound.sent.into());
    let response = TaggedMessage { opcode: Opcode::ReadResponse, stag: request.sink_stag, offset };
    response.segment_header(length == left).encode_header(&mut segment.head);
    let ranges = [source];
    let bytes = (ranges.as_slice(), inbound.sent.into(), length.into());
    gather_places(memory, bytes, Access::RemoteRead, &mut segment.places).map_err(|(_, reason)| (source, reason))?;
    segment.payload_bytes = length as usize;
    inbound.sent += length;
    Ok(length == left)
}

/// Does an atomic and returns the value before it.
fn execute_atomic<M: Memory>(
    request: &AtomicRequest,
    operation: AtomicOperation,
    memory: &mut M,
) -> Result<u64, RangeError> {
    let range = MemoryRange { stag: request.stag, offset: request.offset, length: 8 };
    // RFC 7306 §8.2. Memory whose offsets do not begin at an aligned address checks the address by itself.
    if !request.offset.is_multiple_of(8) {
        return Err((range, AccessError::Misaligned));
    }
    let updated = check_wrap(range).and_then(|()| memory.update(request.stag, request.offset, operation));
    updated.map_err(|reason| (range, reason))
}

/// Room that a segment leaves for headers: every message of this crate that is not cut fits the smallest segment.
const _: () = assert!(UNTAGGED_HEADER_BYTES + crate::header::ATOMIC_REQUEST_BYTES <= crate::MIN_SEGMENT_LIMIT_BYTES);
const _: () = assert!(UNTAGGED_HEADER_BYTES + crate::MAX_TERMINATE_BYTES <= crate::MIN_SEGMENT_LIMIT_BYTES);
