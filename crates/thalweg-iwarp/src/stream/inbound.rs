//! Reads and atomics of the peer that wait for their responses: the inbound read queue (IRD).

use crate::header::{AtomicRequest, ReadRequest};
use crate::terminate::TerminatedSegment;
use crate::work::AtomicOperation;
use std::collections::VecDeque;

/// Request of the peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum InboundKind {
    Read(ReadRequest),
    Atomic(AtomicRequest, AtomicOperation),
}

/// A request of the peer, with the segment it came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct InboundRequest {
    pub(super) kind: InboundKind,
    pub(super) segment: TerminatedSegment,
    /// Bytes of the response that were sent.
    pub(super) sent: u32,
}

pub(super) type InboundQueue = VecDeque<InboundRequest>;

impl InboundRequest {
    /// Returns the segment for a Terminate message: its Read Request is moved on to the first byte that was not sent
    /// (RFC 5040 §4.8).
    pub(super) fn terminated_segment(&self) -> TerminatedSegment {
        let mut segment = self.segment;
        if let InboundKind::Read(request) = self.kind {
            segment.read_request = Some(ReadRequest {
                sink_offset: request.sink_offset.wrapping_add(self.sent.into()),
                length: request.length - self.sent,
                source_offset: request.source_offset.wrapping_add(self.sent.into()),
                ..request
            });
        }
        segment
    }
}
