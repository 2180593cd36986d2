//! Segments as they arrive, in any order: checks, and placement of their bytes (RFC 5041 §7.1, RFC 5040 §7.2).
//!
//! A segment that breaks a rule is kept as its fault, which ends the stream when its turn to be delivered has come: so
//! what the peer sent before is delivered, and the first fault is the one that is reported (RFC 5040 §7.1 rule 4).

use super::outstanding::{Wanted, split_offset};
use super::scatter::{check_wrap, scatter_bytes};
use super::{ReceiveOutcome, ReceiveState, Stream};
use crate::fault::Fault;
use crate::header::{
    ATOMIC_REQUEST_BYTES, ATOMIC_RESPONSE_BYTES, AtomicRequest, AtomicResponse, IMMEDIATE_BYTES, Opcode, Queue,
    READ_REQUEST_BYTES, ReadRequest, SegmentHeader,
};
use crate::memory::{Access, AccessError, Memory, MemoryRange, Stag};
use crate::terminate::Terminate;

/// A segment that was taken, without the bytes that were placed.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) sequence: u64,
    /// Length in bytes of header and payload.
    pub(super) segment_bytes: usize,
    /// None for a segment that is too short for it.
    pub(super) header: Option<SegmentHeader>,
    pub(super) content: Result<Content, Fault>,
}

/// Content of a segment.
#[derive(Debug, Clone)]
pub(super) struct Content {
    pub(super) opcode: Opcode,
    /// Length in bytes of the payload.
    pub(super) bytes: u32,
    pub(super) body: Body,
}

/// Payload that is used at delivery.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// Placed already.
    Placed,
    Immediate([u8; IMMEDIATE_BYTES]),
    Read(ReadRequest),
    Atomic(AtomicRequest),
    AtomicResponse(AtomicResponse),
    Terminate(Terminate),
}

/// Reason why a segment was not placed.
enum Unplaced {
    Fault(Fault),
    NoReceive,
}

impl From<Fault> for Unplaced {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Fields of an untagged segment.
#[derive(Clone, Copy)]
struct Untagged {
    opcode: Opcode,
    last: bool,
    message: u32,
    offset: u32,
}

impl Stream {
    pub(super) fn place_segment<M: Memory>(&mut self, sequence: u64, segment: &[u8], memory: &mut M) -> ReceiveOutcome {
        match self.receive_state {
            ReceiveState::Dropping => return ReceiveOutcome::Taken,
            ReceiveState::Closed => {
                // RFC 5041 §6.2.1: data after the closing is an error.
                self.end_by_fault(Fault::Closed { place: "and then sent a segment" }, None, super::Culprit::None);
                return ReceiveOutcome::Taken;
            }
            ReceiveState::Open => {}
        }
        // RFC 5044 §7.1.2 rule 4: the responder may send once an FPDU has come.
        self.sender.note_peer();
        if self.receiver.has_taken(sequence) {
            return ReceiveOutcome::Taken;
        }
        let limit = self.settings.segments_ahead;
        if self.receiver.record_count() > limit {
            self.end_by_fault(Fault::TooFarAhead { limit }, None, super::Culprit::None);
            return ReceiveOutcome::Taken;
        }
        let parsed = SegmentHeader::parse_segment(segment);
        let content = match parsed {
            None => Err(Unplaced::Fault(Fault::Truncated { bytes: segment.len() })),
            Some((header, payload)) => self.place_content(sequence, header, payload, memory),
        };
        let content = match content {
            Ok(content) => Ok(content),
            Err(Unplaced::Fault(fault)) => Err(fault),
            Err(Unplaced::NoReceive) => return ReceiveOutcome::NoReceive,
        };
        let header = parsed.map(|(header, _)| header);
        self.receiver.insert_record(Record { sequence, segment_bytes: segment.len(), header, content });
        ReceiveOutcome::Taken
    }

    fn place_content<M: Memory>(
        &mut self,
        sequence: u64,
        header: SegmentHeader,
        payload: &[u8],
        memory: &mut M,
    ) -> Result<Content, Unplaced> {
        let opcode = self.check_header(&header)?;
        // No lower layer carries more than 65535 bytes; a longer segment wraps nothing.
        let bytes = u32::try_from(payload.len()).map_err(|_| Fault::Truncated { bytes: payload.len() })?;
        let body = match header {
            SegmentHeader::Tagged { stag, offset, .. } => {
                self.place_tagged(opcode, MemoryRange { stag, offset, length: bytes }, payload, memory)?;
                Body::Placed
            }
            SegmentHeader::Untagged { control, message, offset, .. } => {
                let untagged = Untagged { opcode, last: control.last, message, offset };
                match opcode.target_queue() {
                    Some(Queue::Send) => self.place_send(sequence, untagged, payload, memory)?,
                    _ => parse_body(untagged, payload)?,
                }
            }
        };
        Ok(Content { opcode, bytes, body })
    }

    /// Checks the fields of DDP, then those of RDMAP (RFC 5040 §7.2 checks 1 to 3), and returns the operation.
    fn check_header(&self, header: &SegmentHeader) -> Result<Opcode, Fault> {
        let control = header.control_fields();
        let tagged = matches!(header, SegmentHeader::Tagged { .. });
        if !control.is_ddp_version_valid() {
            return Err(Fault::DdpVersion { version: control.ddp_version, tagged });
        }
        if let SegmentHeader::Untagged { queue, .. } = *header
            && queue > Queue::AtomicResponse as u32
        {
            return Err(Fault::UnknownQueue { queue });
        }
        if !control.is_rdmap_version_valid() {
            return Err(Fault::RdmapVersion { version: control.rdmap_version });
        }
        let opcode = Opcode::from_code(control.code)
            .filter(|opcode| *opcode != Opcode::SendImmediate || self.settings.send_with_immediate)
            .ok_or(Fault::UnknownOpcode { code: control.code })?;
        if !control.is_rdmap_version_valid_for(opcode) {
            return Err(Fault::RdmapVersion { version: control.rdmap_version });
        }
        let place = match (header, opcode.target_queue()) {
            (SegmentHeader::Tagged { .. }, None) => return Ok(opcode),
            (SegmentHeader::Untagged { queue, .. }, Some(own)) if *queue == own as u32 => return Ok(opcode),
            (SegmentHeader::Tagged { .. }, Some(_)) => "in a tagged segment",
            (SegmentHeader::Untagged { .. }, None) => "in an untagged segment",
            (SegmentHeader::Untagged { .. }, Some(_)) => "on this queue",
        };
        Err(Fault::UnexpectedMessage { opcode, place })
    }

    /// Places the bytes of a Write or of a Read Response.
    fn place_tagged<M: Memory>(
        &mut self,
        opcode: Opcode,
        range: MemoryRange,
        payload: &[u8],
        memory: &mut M,
    ) -> Result<(), Fault> {
        // RFC 5041 §5.2: STag and offset of no bytes must not be checked.
        if payload.is_empty() {
            return Ok(());
        }
        check_wrap(range).map_err(|reason| Fault::TaggedAccess { opcode, range, reason })?;
        if opcode == Opcode::ReadResponse {
            return self.place_response(range, payload, memory);
        }
        let placed = memory.place(range.stag, range.offset, payload, Access::RemoteWrite);
        placed.map_err(|reason| Fault::TaggedAccess { opcode, range, reason })
    }

    /// Places the bytes of a Read Response in the sink of its Read, and nowhere else.
    fn place_response<M: Memory>(&mut self, range: MemoryRange, payload: &[u8], memory: &mut M) -> Result<(), Fault> {
        let opcode = Opcode::ReadResponse;
        if self.outstanding.is_empty() {
            return Err(Fault::UnexpectedMessage { opcode, place: "where no Read waits for it" });
        }
        let (message, from) = split_offset(range.offset);
        let found = self.outstanding.find_request(message).and_then(|outstanding| match outstanding.wanted {
            Wanted::Read { sink_stag, length, .. } if sink_stag == range.stag => Some((outstanding.request, length)),
            _ => None,
        });
        let Some((request, length)) = found else {
            return Err(Fault::TaggedAccess { opcode, range, reason: AccessError::UnknownStag });
        };
        if u64::from(from) + payload.len() as u64 > u64::from(length) {
            return Err(Fault::TaggedAccess { opcode, range, reason: AccessError::OutOfBounds });
        }
        let placed = scatter_bytes(memory, self.queue.sink_ranges(request), from.into(), payload);
        placed.map_err(|(range, reason)| Fault::LocalAccess { range, reason })
    }

    /// Places the bytes of a Send in its receive, which is taken from the queue with the first segment. Immediate Data
    /// takes one, too (RFC 7306 §6.3).
    fn place_send<M: Memory>(
        &mut self,
        sequence: u64,
        untagged: Untagged,
        payload: &[u8],
        memory: &mut M,
    ) -> Result<Body, Unplaced> {
        let Untagged { opcode, last, message, offset } = untagged;
        let is_immediate = matches!(opcode, Opcode::Immediate | Opcode::ImmediateSolicited);
        if is_immediate && (!last || payload.len() != IMMEDIATE_BYTES || offset != 0) {
            return Err(wrong_length(untagged, payload, IMMEDIATE_BYTES).into());
        }
        let expected = self.receiver.next_send;
        let ahead = message.wrapping_sub(expected);
        // Each message between has a segment, at least, between what was delivered and this one.
        let limit = self.receiver.distance_to(sequence).min(self.settings.segments_ahead as u64);
        if u64::from(ahead) > limit {
            return Err(Fault::MessageNumber { queue: Queue::Send as u32, number: message, expected }.into());
        }
        while self.receiver.receives.len() <= ahead as usize {
            match memory.take_receive() {
                Some(receive) => self.receiver.push_receive(receive),
                None if self.settings.wait_for_receives => return Err(Unplaced::NoReceive),
                None => return Err(Fault::NoReceive { number: message }.into()),
            }
        }
        if let Some(immediate) = payload.first_chunk().filter(|_| is_immediate) {
            return Ok(Body::Immediate(*immediate));
        }
        let receive = &self.receiver.receives[ahead as usize];
        let (limit, end) = (receive.total_bytes, u64::from(offset) + payload.len() as u64);
        if !payload.is_empty() && u64::from(offset) > limit {
            let expected = u32::try_from(limit).unwrap_or(u32::MAX);
            return Err(Fault::MessageOffset { number: message, offset, expected }.into());
        }
        // A message has less than 2^32 bytes (RFC 5041 §5.2), whatever its receive.
        if end > limit.max(u64::from(offset)) || end > u64::from(u32::MAX) {
            return Err(Fault::TooLong { number: message, bytes: end, limit }.into());
        }
        let placed = scatter_bytes(memory, &receive.buffer.into, offset.into(), payload);
        placed.map_err(|(range, reason)| Fault::LocalAccess { range, reason })?;
        Ok(Body::Placed)
    }
}

/// Parses a message of one segment and of a length of its own: requests, atomic responses, Terminate messages.
fn parse_body(untagged: Untagged, payload: &[u8]) -> Result<Body, Fault> {
    let Untagged { opcode, last, message, offset } = untagged;
    if offset != 0 {
        return Err(Fault::MessageOffset { number: message, offset, expected: 0 });
    }
    let (body, expected) = match opcode {
        Opcode::ReadRequest => (ReadRequest::parse_header(payload).map(Body::Read), READ_REQUEST_BYTES),
        Opcode::AtomicRequest => (AtomicRequest::parse_header(payload).map(Body::Atomic), ATOMIC_REQUEST_BYTES),
        Opcode::AtomicResponse => {
            (AtomicResponse::parse_header(payload).map(Body::AtomicResponse), ATOMIC_RESPONSE_BYTES)
        }
        // The shortest one.
        _ => (Terminate::parse_payload(payload).map(Body::Terminate), 4),
    };
    body.filter(|_| last).ok_or_else(|| wrong_length(untagged, payload, expected))
}

/// Fault of a message that has another length than its operation has, or that goes on where it has one segment. A
/// longer one does not fit its buffer.
fn wrong_length(untagged: Untagged, payload: &[u8], expected: usize) -> Fault {
    let (opcode, number, bytes) = (untagged.opcode, untagged.message, payload.len());
    if opcode.target_queue() == Some(Queue::Request) && bytes > expected {
        return Fault::TooLong { number, bytes: bytes as u64, limit: expected as u64 };
    }
    Fault::WrongLength { opcode, bytes, expected }
}

/// Tag of a Send's invalidation, from the four bytes of its header.
pub(super) fn invalidated_stag(opcode: Opcode, reserved: u32) -> Option<Stag> {
    matches!(opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate).then_some(Stag(reserved))
}
