//! Work requests that are posted and not over.

use crate::header::{Queue, SegmentHeader};
use crate::memory::{MemoryRange, Stag};
use crate::settings::{PostError, StreamSettings};
use crate::terminate::Terminate;
use crate::work::{
    AtomicOperation, Completion, Failure, Operation, OperationKind, Payload, RemoteAddress, WorkRequest,
};
use std::collections::VecDeque;

/// Length in bytes of an atomic's result.
const ATOMIC_RESULT_BYTES: u32 = 8;

/// Progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not begun, or not sent to its end.
    Waiting,
    /// Sent, up to the segment with this sequence number.
    Sent(u64),
    /// A Read or an atomic that is on its way.
    Requested,
    /// Over: it completes once all before it have.
    Done,
}

/// A posted request.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) request: WorkRequest,
    /// Length in bytes of its data, or of what it reads.
    pub(super) total_bytes: u32,
    /// Whether the stream made it by itself; then it has no completion.
    internal: bool,
    pub(super) progress: Progress,
    /// Message sequence number of its Send, Read or Atomic Request, once it has one.
    pub(super) message: Option<u32>,
}

/// Requests in the order in which they were posted. Each has a number: how many were posted before it.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    posted: VecDeque<Posted>,
    /// Number of the first one.
    first: u64,
    /// How many of them were sent to their ends, or requested, or are over.
    begun: usize,
}

/// Checks a request and returns the length of its data in bytes.
pub(super) fn check_request(request: &WorkRequest, settings: &StreamSettings) -> Result<u32, PostError> {
    let bytes = match &request.operation {
        Operation::Write { data, .. } | Operation::Send { data, .. } => data.total_bytes(),
        Operation::SendWithImmediate { data, .. } if settings.send_with_immediate => data.total_bytes(),
        Operation::SendWithImmediate { .. } => return Err(PostError::SendWithImmediate),
        Operation::Read { .. } | Operation::Atomic { .. } if settings.outbound_requests == 0 => {
            return Err(PostError::NoOutboundRequests);
        }
        Operation::Read { into, .. } => into.iter().map(|range| u64::from(range.length)).sum(),
        Operation::Atomic { into, .. } if into.length != ATOMIC_RESULT_BYTES => {
            return Err(PostError::AtomicResult { bytes: into.length });
        }
        Operation::Atomic { .. } => ATOMIC_RESULT_BYTES.into(),
        Operation::Immediate(_) | Operation::Local => 0,
    };
    u32::try_from(bytes).map_err(|_| PostError::TooLong { bytes })
}

fn kind_of(operation: &Operation) -> OperationKind {
    match operation {
        Operation::Write { .. } => OperationKind::Write,
        Operation::Read { .. } => OperationKind::Read,
        Operation::Send { .. } | Operation::SendWithImmediate { .. } => OperationKind::Send,
        Operation::Immediate(_) => OperationKind::Immediate,
        Operation::Atomic { operation: AtomicOperation::FetchAdd { .. }, .. } => OperationKind::FetchAdd,
        Operation::Atomic { operation: AtomicOperation::CompareSwap { .. }, .. } => OperationKind::CompareSwap,
        Operation::Local => OperationKind::Local,
    }
}

/// Completion of a request that was not carried out.
pub(super) fn failed_completion(request: &WorkRequest, failure: Failure) -> Completion {
    Completion { id: request.id, kind: kind_of(&request.operation), bytes: 0, result: Err(failure) }
}

/// Place in no memory, for a message of no bytes. siw expects these numbers of a ready-to-receive Write.
const NO_MEMORY: RemoteAddress = RemoteAddress { stag: Stag(1), offset: 0 };

impl SendQueue {
    pub(super) fn push_request(&mut self, request: WorkRequest, total_bytes: u32) {
        let progress = Progress::Waiting;
        self.posted.push_back(Posted { request, total_bytes, internal: false, progress, message: None });
    }

    /// Queues a Write of no bytes, without a completion.
    pub(super) fn push_ready_write(&mut self) {
        let data = Payload::Inline(Vec::new());
        self.push_internal(Operation::Write { remote: NO_MEMORY, data, immediate: None });
    }

    /// Queues a Read of no bytes, without a completion.
    pub(super) fn push_ready_read(&mut self) {
        self.push_internal(Operation::Read { remote: NO_MEMORY, into: Vec::new() });
    }

    fn push_internal(&mut self, operation: Operation) {
        let request = WorkRequest { id: 0, operation, fence: false, solicited: false };
        let progress = Progress::Waiting;
        self.posted.push_back(Posted { request, total_bytes: 0, internal: true, progress, message: None });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Returns the request whose turn it is, with its number.
    pub(super) fn current_request(&mut self) -> Option<(u64, &mut Posted)> {
        let number = self.first + self.begun as u64;
        self.posted.get_mut(self.begun).map(|posted| (number, posted))
    }

    /// Goes on to the next request; this one has made the progress.
    pub(super) fn advance_past(&mut self, progress: Progress) {
        if let Some(posted) = self.posted.get_mut(self.begun) {
            posted.progress = progress;
            self.begun += 1;
        }
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok())
    }

    /// Memory that the response to a request is placed in.
    pub(super) fn sink_ranges(&self, number: u64) -> &[MemoryRange] {
        self.index_of(number).and_then(|index| self.posted.get(index)).map_or(&[], Posted::sink_ranges)
    }

    /// Marks a Read or an atomic as over.
    pub(super) fn finish_request(&mut self, number: u64) {
        let index = self.index_of(number);
        if let Some(posted) = index.and_then(|index| self.posted.get_mut(index)) {
            posted.progress = Progress::Done;
        }
    }

    /// Takes the first request where it is over, given that all segments below a number are accepted. The inner option
    /// is none for a request without a completion.
    pub(super) fn pop_over(&mut self, accepted: u64) -> Option<Option<Completion>> {
        let over = match self.posted.front()?.progress {
            Progress::Waiting | Progress::Requested => false,
            Progress::Sent(last) => last < accepted,
            Progress::Done => true,
        };
        if !over {
            return None;
        }
        let posted = self.posted.pop_front()?;
        self.first += 1;
        self.begun -= 1;
        let (id, kind) = (posted.request.id, kind_of(&posted.request.operation));
        let completion = Completion { id, kind, bytes: posted.total_bytes, result: Ok(()) };
        Some((!posted.internal).then_some(completion))
    }

    /// Takes all requests that have completions, with their numbers.
    pub(super) fn drain_requests(&mut self) -> impl Iterator<Item = (u64, WorkRequest)> + use<> {
        let (first, posted) = (self.first, std::mem::take(&mut self.posted));
        self.first += posted.len() as u64;
        self.begun = 0;
        let numbered = (first..).zip(posted);
        numbered.filter_map(|(number, posted)| (!posted.internal).then_some((number, posted.request)))
    }

    /// Returns the number of the request that the peer's Terminate message is about, where it is not over.
    pub(super) fn find_terminated(&self, terminate: &Terminate) -> Option<u64> {
        let header = terminate.segment?.header;
        let sent = self.posted.iter().take(self.begun + 1).zip(self.first..);
        sent.into_iter().find(|(posted, _)| posted.is_meant(&header)).map(|(_, number)| number)
    }
}

impl Posted {
    /// Memory that the response is placed in.
    pub(super) fn sink_ranges(&self) -> &[MemoryRange] {
        match &self.request.operation {
            Operation::Read { into, .. } => into,
            Operation::Atomic { into, .. } => std::slice::from_ref(into),
            _ => &[],
        }
    }

    /// Whether a segment with this header was one of the request's.
    fn is_meant(&self, header: &SegmentHeader) -> bool {
        match (header, &self.request.operation) {
            (SegmentHeader::Untagged { queue, message, .. }, operation) => {
                let own_queue = match operation {
                    Operation::Read { .. } | Operation::Atomic { .. } => Queue::Request,
                    _ => Queue::Send,
                };
                *queue == own_queue as u32 && self.message == Some(*message)
            }
            (SegmentHeader::Tagged { stag, offset, .. }, Operation::Write { remote, .. }) => {
                *stag == remote.stag && offset.wrapping_sub(remote.offset) < u64::from(self.total_bytes)
            }
            _ => false,
        }
    }
}
