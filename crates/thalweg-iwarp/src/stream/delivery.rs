//! Delivery: the ends of messages, once each and in order (RFC 5041 §5.3, §5.4).

use super::inbound::{InboundKind, InboundRequest};
use super::outstanding::{Wanted, split_offset};
use super::placement::{Body, Content, Record, invalidated_stag};
use super::scatter::scatter_bytes;
use super::{Culprit, Stream, terminated_segment};
use crate::fault::Fault;
use crate::header::{AtomicResponse, Opcode, Queue, SegmentHeader};
use crate::memory::{Memory, Stag};
use crate::work::{Event, ReceiveBuffer, Received, ReceivedKind};
use std::collections::VecDeque;

/// A receive that was taken from its queue.
#[derive(Debug)]
pub(super) struct TakenReceive {
    pub(super) buffer: ReceiveBuffer,
    pub(super) total_bytes: u64,
}

/// Message of which segments were delivered, but not the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenMessage {
    opcode: Opcode,
    /// Tag, or number.
    name: u32,
    /// Bytes delivered.
    bytes: u32,
}

/// The half that receives.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    /// All segments below this sequence number were delivered.
    pub(super) delivered: u64,
    /// Segments that were taken and not delivered, by their sequence numbers.
    records: VecDeque<Record>,
    /// Receives of the messages from `next_send` on.
    pub(super) receives: VecDeque<TakenReceive>,
    /// Numbers of the next messages of each queue to deliver (RFC 5041 §4.3).
    pub(super) next_send: u32,
    next_request: u32,
    next_atomic_response: u32,
    open_message: Option<OpenMessage>,
    /// Length of the Write that was delivered last, where no other request was delivered after it.
    last_write: Option<u32>,
}

impl Default for ReceiveHalf {
    fn default() -> Self {
        Self {
            delivered: 0,
            records: VecDeque::new(),
            receives: VecDeque::new(),
            next_send: 1,
            next_request: 1,
            next_atomic_response: 1,
            open_message: None,
            last_write: None,
        }
    }
}

impl ReceiveHalf {
    #[cfg(test)]
    pub(super) fn set_next_numbers(&mut self, number: u32) {
        (self.next_send, self.next_request, self.next_atomic_response) = (number, number, number);
    }

    /// Whether a segment was taken already.
    pub(super) fn has_taken(&self, sequence: u64) -> bool {
        sequence < self.delivered || self.records.binary_search_by_key(&sequence, |record| record.sequence).is_ok()
    }

    /// Number of segments that were taken and not delivered.
    pub(super) fn record_count(&self) -> usize {
        self.records.len()
    }

    pub(super) fn insert_record(&mut self, record: Record) {
        let at = self.records.partition_point(|other| other.sequence < record.sequence);
        self.records.insert(at, record);
    }

    /// Takes the oldest segment, where its number is below a limit.
    pub(super) fn next_record(&mut self, below: u64) -> Option<Record> {
        let is_below = self.records.front()?.sequence < below;
        if is_below { self.records.pop_front() } else { None }
    }

    /// How far a sequence number is ahead of what was delivered.
    pub(super) fn distance_to(&self, sequence: u64) -> u64 {
        sequence.saturating_sub(self.delivered)
    }

    pub(super) fn push_receive(&mut self, buffer: ReceiveBuffer) {
        let total_bytes = buffer.into.iter().map(|range| u64::from(range.length)).sum();
        self.receives.push_back(TakenReceive { buffer, total_bytes });
    }

    /// Takes the ids of all receives that were taken and are not over.
    pub(super) fn drain_receives(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(&mut self.receives).into_iter().map(|receive| receive.buffer.id)
    }

    pub(super) fn is_between_messages(&self) -> bool {
        self.open_message.is_none() && self.records.is_empty()
    }

    /// Checks that a segment is its message's next, and that the message is the next of its queue.
    fn check_turn(&self, opcode: Opcode, header: &SegmentHeader) -> Result<(), Fault> {
        let name = message_name(header);
        let begun = match self.open_message {
            Some(open) if open.opcode == opcode && open.name == name => open.bytes,
            // A Terminate message takes the place of what it breaks off (RFC 5040 §7.1).
            Some(_) if opcode != Opcode::Terminate => {
                return Err(Fault::UnexpectedMessage { opcode, place: "within another message" });
            }
            _ => 0,
        };
        let SegmentHeader::Untagged { queue, message: number, offset, .. } = *header else { return Ok(()) };
        let expected = match opcode.target_queue() {
            Some(Queue::Send) | None => self.next_send,
            Some(Queue::Request) => self.next_request,
            // RFC 5040 §5.4: one Terminate message for a stream.
            Some(Queue::Terminate) => 1,
            Some(Queue::AtomicResponse) => self.next_atomic_response,
        };
        if number != expected {
            return Err(Fault::MessageNumber { queue, number, expected });
        }
        if offset != begun {
            return Err(Fault::MessageOffset { number, offset, expected: begun });
        }
        Ok(())
    }

    /// Adds a segment's bytes to its message and returns the message's length so far.
    fn add_to_message(&mut self, content: &Content, header: &SegmentHeader) -> u32 {
        let begun = self.open_message.take().map_or(0, |open| open.bytes);
        // Placement has refused untagged messages that are longer; the length of a Write is only reported.
        let bytes = begun.saturating_add(content.bytes);
        if !header.control_fields().last {
            self.open_message = Some(OpenMessage { opcode: content.opcode, name: message_name(header), bytes });
        }
        bytes
    }
}

/// Tag or number that all segments of a message have in common.
fn message_name(header: &SegmentHeader) -> u32 {
    match header {
        SegmentHeader::Tagged { stag, .. } => stag.0,
        SegmentHeader::Untagged { message, .. } => *message,
    }
}

impl Stream {
    /// Delivers the segment whose turn it is.
    pub(super) fn deliver_record<M: Memory>(&mut self, record: Record, memory: &mut M) {
        let Record { header, segment_bytes, content, .. } = record;
        let delivered = match (content, header) {
            (Ok(content), Some(header)) => self.deliver_content(content, header, segment_bytes, memory),
            (Err(fault), _) => Err(fault),
            (Ok(_), None) => Ok(()),
        };
        if let Err(fault) = delivered {
            let culprit = header.map_or(Culprit::None, |header| self.find_culprit(&header));
            self.end_by_fault(fault, header.map(|header| terminated_segment(header, segment_bytes)), culprit);
        }
        self.receiver.delivered = self.receiver.delivered.max(record.sequence + 1);
    }

    /// Returns the request or the receive that a segment belongs to.
    fn find_culprit(&self, header: &SegmentHeader) -> Culprit {
        match Opcode::from_code(header.control_fields().code) {
            Some(Opcode::ReadResponse | Opcode::AtomicResponse) => {
                self.outstanding.front_request().map_or(Culprit::None, Culprit::Request)
            }
            _ if message_name(header) == self.receiver.next_send
                && matches!(header, SegmentHeader::Untagged { queue, .. } if *queue == Queue::Send as u32) =>
            {
                Culprit::Receive
            }
            _ => Culprit::None,
        }
    }

    fn deliver_content<M: Memory>(
        &mut self,
        content: Content,
        header: SegmentHeader,
        segment_bytes: usize,
        memory: &mut M,
    ) -> Result<(), Fault> {
        self.receiver.check_turn(content.opcode, &header)?;
        let total_bytes = self.receiver.add_to_message(&content, &header);
        // Responses come in between: the peer's own requests are what counts here.
        let is_response = matches!(content.opcode, Opcode::ReadResponse | Opcode::AtomicResponse);
        let last_write = if is_response { None } else { self.receiver.last_write.take() };
        let last = header.control_fields().last;
        match (content.body, content.opcode) {
            (Body::Placed, Opcode::Write) => {
                // RFC 5040 §5.1: a Write is not delivered to the program.
                self.receiver.last_write = last.then_some(total_bytes);
            }
            (Body::Placed, Opcode::ReadResponse) => self.deliver_response(&header, content.bytes, last)?,
            (Body::Placed, opcode) if last => self.deliver_send(opcode, &header, total_bytes, memory)?,
            (Body::Placed, _) => {}
            (Body::Immediate(data), opcode) => {
                let kind = ReceivedKind::Immediate(data, last_write);
                self.finish_receive(kind, 0, opcode == Opcode::ImmediateSolicited);
            }
            (Body::Read(request), _) => self.queue_inbound(InboundKind::Read(request), &header, segment_bytes)?,
            (Body::Atomic(request), _) => {
                let operation = request.operation.ok_or(Fault::UnknownAtomic)?;
                self.queue_inbound(InboundKind::Atomic(request, operation), &header, segment_bytes)?;
            }
            (Body::AtomicResponse(response), _) => self.deliver_atomic(response, memory)?,
            (Body::Terminate(terminate), _) => self.end_by_peer(terminate),
        }
        Ok(())
    }

    /// Delivers a Send: invalidates, and ends its receive.
    fn deliver_send<M: Memory>(
        &mut self,
        opcode: Opcode,
        header: &SegmentHeader,
        total_bytes: u32,
        memory: &mut M,
    ) -> Result<(), Fault> {
        let SegmentHeader::Untagged { control, reserved, .. } = *header else { return Ok(()) };
        let invalidated: Option<Stag> = invalidated_stag(opcode, reserved);
        if let Some(stag) = invalidated {
            // RFC 5040 §5.3: the tag is verified, then invalidated, when the Send is delivered.
            memory.invalidate(stag).map_err(|reason| Fault::Invalidation { stag, reason })?;
        }
        let (kind, solicited) = match (opcode, invalidated) {
            (Opcode::SendImmediate, _) => {
                (ReceivedKind::SendWithImmediate(reserved.to_be_bytes()), control.solicited_flag)
            }
            (_, Some(stag)) => (ReceivedKind::SendWithInvalidate(stag), opcode == Opcode::SendSolicitedInvalidate),
            _ => (ReceivedKind::Send, opcode == Opcode::SendSolicited),
        };
        self.finish_receive(kind, total_bytes, solicited);
        Ok(())
    }

    fn finish_receive(&mut self, kind: ReceivedKind, bytes: u32, solicited: bool) {
        self.receiver.next_send = self.receiver.next_send.wrapping_add(1);
        if let Some(receive) = self.receiver.receives.pop_front() {
            let result = Ok(Received { kind, bytes, solicited });
            self.events.push_back(Event::Received { id: receive.buffer.id, result });
        }
    }

    /// Queues a request of the peer for its response.
    fn queue_inbound(&mut self, kind: InboundKind, header: &SegmentHeader, segment_bytes: usize) -> Result<(), Fault> {
        let limit = self.settings.inbound_requests;
        if self.inbound.len() >= limit.into() {
            return Err(Fault::TooManyRequests { limit });
        }
        self.receiver.next_request = self.receiver.next_request.wrapping_add(1);
        let segment = terminated_segment(*header, segment_bytes);
        self.inbound.push_back(InboundRequest { kind, segment, sent: 0 });
        Ok(())
    }

    /// Delivers a segment of a Read Response: the next of the oldest Read (RFC 5040 §5.5 rules 11, 20).
    fn deliver_response(&mut self, header: &SegmentHeader, bytes: u32, last: bool) -> Result<(), Fault> {
        let opcode = Opcode::ReadResponse;
        let unexpected = Fault::UnexpectedMessage { opcode, place: "where no Read waits for it" };
        let Some(outstanding) = self.outstanding.front_mut() else { return Err(unexpected) };
        let (message, request) = (outstanding.message, outstanding.request);
        let Wanted::Read { length, delivered, .. } = &mut outstanding.wanted else { return Err(unexpected) };
        if let SegmentHeader::Tagged { offset, .. } = *header
            && bytes > 0
        {
            let (found, from) = split_offset(offset);
            if found != message {
                return Err(Fault::ResponseMismatch { opcode, found: found.into(), expected: message.into() });
            }
            if from != *delivered {
                return Err(Fault::ResponseMismatch { opcode, found: from.into(), expected: (*delivered).into() });
            }
            *delivered += bytes;
        }
        if !last {
            return Ok(());
        }
        if delivered != length {
            let (found, expected) = ((*delivered).into(), (*length).into());
            return Err(Fault::ResponseMismatch { opcode, found, expected });
        }
        self.finish_outstanding(request);
        Ok(())
    }

    /// Delivers an Atomic Response: the original value goes to the requester's memory.
    fn deliver_atomic<M: Memory>(&mut self, response: AtomicResponse, memory: &mut M) -> Result<(), Fault> {
        let opcode = Opcode::AtomicResponse;
        let front = self.outstanding.front_mut().filter(|front| matches!(front.wanted, Wanted::Atomic));
        let Some(front) = front else {
            return Err(Fault::UnexpectedMessage { opcode, place: "where no atomic waits for it" });
        };
        let (request, message) = (front.request, front.message);
        if response.identifier != message {
            let (found, expected) = (response.identifier.into(), message.into());
            return Err(Fault::ResponseMismatch { opcode, found, expected });
        }
        // RFC 7306 §5.1: big-endian on the wire, this machine's order in memory.
        let placed = scatter_bytes(memory, self.queue.sink_ranges(request), 0, &response.original.to_ne_bytes());
        placed.map_err(|(range, reason)| Fault::LocalAccess { range, reason })?;
        self.receiver.next_atomic_response = self.receiver.next_atomic_response.wrapping_add(1);
        self.finish_outstanding(request);
        Ok(())
    }

    fn finish_outstanding(&mut self, request: u64) {
        self.outstanding.pop_outstanding();
        self.queue.finish_request(request);
        self.complete_requests();
    }
}
