//! Queue pairs with a peer at another RNIC: the protocol's stream, and what it asks of the RNIC's tables.

use crate::attributes::{Access, AsyncEvent, CompletedOperation, Fault, FaultKind, Operation, QueueState, Status};
use crate::completion::ReceiveResult;
use crate::descriptor::{SendDescriptor, SendFlags, Sge, take_receive};
use crate::efe::EfeCarrier;
use crate::engine::Engine;
use crate::queue_pair::{QueuePair, ReceiveRing, SharedQueue, TakenReceive, Transfer};
use crate::slots::Slots;
use crate::stag::{Accessor, StagTable};
use crate::tcp::TcpCarrier;
use std::collections::VecDeque;
use std::sync::Arc;
use thalweg_arena::SharedMemory;
use thalweg_iwarp::{
    AccessError, AtomicOperation, ErrorCode, Event, Failure, MemoryRange, OutgoingSegment, Payload, ReceiveBuffer,
    Received, ReceivedKind, RemoteAddress, SettingsError, Stag, Stream, StreamSettings, WorkRequest,
};

/// Memory of a segment to send.
#[derive(Debug, Clone)]
pub(crate) struct OwnedPlace {
    memory: Arc<SharedMemory>,
    at: usize,
    bytes: usize,
}

/// Bytes of places, one after another, copied in parts: out of shared memory first, since what a checksum is computed of
/// must be what is sent, whatever its program does meanwhile.
pub(crate) struct PlaceReader<'a> {
    places: &'a [OwnedPlace],
    /// Bytes of the first place that were read.
    read_bytes: usize,
}

impl<'a> PlaceReader<'a> {
    pub(crate) fn new(places: &'a [OwnedPlace]) -> Self {
        Self { places, read_bytes: 0 }
    }

    /// Fills a part with the next bytes, of which there must be as many.
    pub(crate) fn read_bytes(&mut self, mut to: &mut [u8]) {
        while !to.is_empty()
            && let Some(place) = self.places.first()
        {
            let (now, later) = to.split_at_mut(to.len().min(place.bytes - self.read_bytes));
            place.memory.load_bytes(place.at + self.read_bytes, now);
            self.read_bytes += now.len();
            to = later;
            if self.read_bytes == place.bytes {
                (self.places, self.read_bytes) = (&self.places[1..], 0);
            }
        }
    }
}

/// Way in which this side ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The queue pair is in error.
    Error,
    /// The queue pair's program is gone.
    ProgramGone,
    /// The queue pair's program disconnects: without a Terminate message.
    Disconnect,
}

/// The protocol half of a queue pair, and what carries its segments.
#[derive(Debug)]
pub(crate) struct StreamPath {
    pub(crate) stream: Stream,
    pub(crate) segment: OutgoingSegment<OwnedPlace>,
    pub(crate) carrier: Carrier,
    /// Reason why what carries the segments is lost.
    pub(crate) lost: Option<String>,
    /// Requests that the stream has and that have not completed.
    posted: VecDeque<Transfer>,
    /// Request that the stream does not take: it fails when those before it have completed.
    refused: Option<(Transfer, Status, Fault)>,
    /// Receives that were taken for messages.
    taken: VecDeque<TakenReceive>,
    /// Fault that the tables found last: what a completion says of a refused access.
    last_fault: Fault,
    pub(crate) ending: Ending,
    /// Whether the peer has terminated the stream for a fault.
    pub(crate) is_terminated_by_peer: bool,
    /// Whether the peer has left, and requests wait for their acknowledgements.
    is_closed_by_peer: bool,
}

/// Cause of the end of a stream that the peer has closed.
const CLOSED_BY_PEER: &str = "the peer has closed the connection";

/// What carries the segments of a stream.
#[derive(Debug)]
pub(crate) enum Carrier {
    Tcp(Box<TcpCarrier>),
    Efe(EfeCarrier),
}

impl StreamPath {
    pub(crate) fn new(settings: StreamSettings, carrier: Carrier) -> Result<Self, SettingsError> {
        // Where requests complete when the peer has them, as over RoCE, a queue pair leaves without a Terminate message, also
        // if its program destroys it: those that it has received complete.
        let leaves_quietly = matches!(&carrier, Carrier::Efe(efe) if efe.completes_when_placed);
        Ok(Self {
            stream: Stream::new(settings)?,
            segment: OutgoingSegment::default(),
            carrier,
            lost: None,
            posted: VecDeque::new(),
            refused: None,
            taken: VecDeque::new(),
            last_fault: Fault::NONE,
            ending: if leaves_quietly { Ending::Disconnect } else { Ending::Error },
            is_terminated_by_peer: false,
            is_closed_by_peer: false,
        })
    }

    /// Takes the first request that has begun and not completed.
    pub(crate) fn take_first_posted(&mut self) -> Option<Transfer> {
        self.posted.pop_front().or_else(|| self.refused.take().map(|(transfer, ..)| transfer))
    }

    /// Reports that what carries the segments is lost: the next turn ends the stream.
    pub(crate) fn lose_carrier(&mut self, reason: String) {
        self.lost.get_or_insert(reason);
    }

    /// Returns whether requests have begun and not completed.
    pub(crate) fn has_posted(&self) -> bool {
        !self.posted.is_empty() || self.refused.is_some()
    }

    /// Returns whether the kernel has not taken all that was to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        matches!(&self.carrier, Carrier::Tcp(tcp) if tcp.has_unsent())
    }

    /// Returns whether there is something for a turn.
    pub(crate) fn has_work(&self) -> bool {
        matches!(&self.carrier, Carrier::Tcp(tcp) if tcp.has_work())
    }
}

/// Memory of one queue pair, as its stream sees it.
pub(crate) struct TableMemory<'a> {
    stags: &'a mut StagTable,
    receives: Option<&'a mut ReceiveRing>,
    queue: u32,
    domain: u32,
    access: Access,
    posted: &'a VecDeque<Transfer>,
    taken: &'a mut VecDeque<TakenReceive>,
    last_fault: &'a mut Fault,
}

impl<'a> TableMemory<'a> {
    fn new(
        queue: u32,
        stags: &'a mut StagTable,
        queues: &'a mut Slots<QueuePair>,
        shared: &'a mut Slots<SharedQueue>,
        (posted, taken, last_fault): (&'a VecDeque<Transfer>, &'a mut VecDeque<TakenReceive>, &'a mut Fault),
    ) -> Option<Self> {
        let pair = queues.get_mut(queue)?;
        let (domain, access) = (pair.domain, pair.attributes.access);
        let receives = match pair.shared_queue {
            None => pair.receive.as_mut(),
            Some(shared_queue) => shared.get_mut(shared_queue).map(|shared| &mut shared.receive),
        };
        Some(Self { stags, receives, queue, domain, access, posted, taken, last_fault })
    }

    fn resolve_range(&mut self, range: MemoryRange, access: thalweg_iwarp::Access) -> Result<OwnedPlace, AccessError> {
        let (needs, is_remote) = match access {
            thalweg_iwarp::Access::LocalRead => (Access::empty(), false),
            thalweg_iwarp::Access::LocalWrite => (Access::LOCAL_WRITE, false),
            thalweg_iwarp::Access::RemoteRead => (Access::REMOTE_READ, true),
            thalweg_iwarp::Access::RemoteWrite => (Access::REMOTE_WRITE, true),
            thalweg_iwarp::Access::RemoteAtomic => (Access::REMOTE_ATOMIC, true),
        };
        let accessor = Accessor { domain: self.domain, remote_through: is_remote.then_some(self.queue) };
        let (stag, bytes) = (range.stag.0, u64::from(range.length));
        let found = if is_remote && !self.access.contains(needs) {
            let (needs, has) = (u64::from(needs.bits()), u64::from(self.access.bits()));
            Err(Fault::new(FaultKind::QueueMissingRight, stag, needs, has))
        } else {
            self.stags.resolve_access(stag, range.offset, bytes, needs, accessor)
        };
        match found {
            Ok(place) => {
                Ok(OwnedPlace { memory: Arc::clone(place.memory), at: place.at, bytes: range.length as usize })
            }
            Err(fault) => {
                *self.last_fault = fault;
                Err(access_error(fault.kind))
            }
        }
    }
}

fn access_error(kind: FaultKind) -> AccessError {
    match kind {
        FaultKind::OtherDomain | FaultKind::OtherQueue => AccessError::NotAssociated,
        FaultKind::OutOfBounds => AccessError::OutOfBounds,
        FaultKind::Wrapped => AccessError::Wrapped,
        FaultKind::MissingRight | FaultKind::QueueMissingRight => AccessError::MissingRight,
        FaultKind::Misaligned => AccessError::Misaligned,
        _ => AccessError::UnknownStag,
    }
}

impl thalweg_iwarp::Memory for TableMemory<'_> {
    type Place = OwnedPlace;

    fn locate(&mut self, range: MemoryRange, access: thalweg_iwarp::Access) -> Result<OwnedPlace, AccessError> {
        self.resolve_range(range, access)
    }

    fn check(&mut self, range: MemoryRange, access: thalweg_iwarp::Access) -> Result<(), AccessError> {
        self.resolve_range(range, access).map(drop)
    }

    fn place(
        &mut self,
        stag: Stag,
        offset: u64,
        bytes: &[u8],
        access: thalweg_iwarp::Access,
    ) -> Result<(), AccessError> {
        // A segment is shorter than 64 KiB (RFC 5044 section 4.1).
        let place = self.resolve_range(MemoryRange { stag, offset, length: bytes.len() as u32 }, access)?;
        place.memory.store_bytes(place.at, bytes);
        Ok(())
    }

    fn update(&mut self, stag: Stag, offset: u64, operation: AtomicOperation) -> Result<u64, AccessError> {
        let place = self.resolve_range(MemoryRange { stag, offset, length: 8 }, thalweg_iwarp::Access::RemoteAtomic)?;
        if !offset.is_multiple_of(8) || !place.at.is_multiple_of(8) {
            *self.last_fault = Fault::new(FaultKind::Misaligned, stag.0, offset, 8);
            return Err(AccessError::Misaligned);
        }
        let mut was = place.memory.fetch_add(place.at, 0);
        loop {
            let seen = place.memory.compare_swap(place.at, was, operation.apply(was));
            if seen == was {
                return Ok(was);
            }
            was = seen;
        }
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), AccessError> {
        self.stags.invalidate_window(stag.0, self.queue).map_err(|fault| {
            *self.last_fault = fault;
            access_error(fault.kind)
        })
    }

    fn take_receive(&mut self) -> Option<ReceiveBuffer> {
        let receives = self.receives.as_deref_mut().filter(|receives| !receives.broken)?;
        match take_receive(&mut receives.ring, receives.sges) {
            Ok(receive) => {
                let receive = receive?;
                let index = receives.next;
                receives.next = index.wrapping_add(1);
                let into = receive.sges.iter().map(memory_range).collect();
                self.taken.push_back(TakenReceive { receive, index });
                Some(ReceiveBuffer { id: u64::from(index), into })
            }
            // Damaged by its program: as if there were none.
            Err(_) => {
                receives.broken = true;
                None
            }
        }
    }

    fn run_local(&mut self, request: u64) -> Result<(), AccessError> {
        let found = self.posted.iter().find(|transfer| u64::from(transfer.index) == request);
        let Some(transfer) = found else { return Err(AccessError::UnknownStag) };
        let request = &transfer.request;
        let done = if request.operation == Operation::LocalInvalidate {
            self.stags.invalidate_window(request.stag, self.queue)
        } else {
            let access = Access::from_bits_truncate(request.immediate as u32);
            let range = (request.remote_address, request.swap);
            self.stags.bind_window(request.stag, request.remote_stag, range, access, (self.domain, self.queue))
        };
        done.map_err(|fault| {
            *self.last_fault = fault;
            access_error(fault.kind)
        })
    }
}

fn memory_range(element: &Sge) -> MemoryRange {
    MemoryRange { stag: Stag(element.stag), offset: element.address, length: element.bytes }
}

impl Engine {
    /// Does what a queue pair with a peer elsewhere has to do. Returns whether there was anything.
    pub(crate) fn take_stream_turn(&mut self, queue: u32) -> bool {
        let Some(mut path) = self.queues.get_mut(queue).and_then(|pair| pair.stream.take()) else { return false };
        let posted = self.hand_over_requests(queue, &mut path);
        let received = self.receive_bytes(queue, &mut path);
        let sent = self.transmit_segments(queue, &mut path);
        let end = self.handle_stream_events(queue, &mut path);
        let has_parted = end.as_ref().is_some_and(|cause| self.part_from_peer(queue, &mut path, cause));
        if has_parted {
            self.close_stream_path(queue, path);
            return true;
        }
        if let Some(pair) = self.queues.get_mut(queue) {
            pair.stream = Some(path);
        }
        match end {
            None => posted || received || sent,
            Some(cause) => {
                self.fail_queue(queue, &cause);
                true
            }
        }
    }

    /// Gives the stream the requests that were posted.
    fn hand_over_requests(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        let mut any = false;
        while path.refused.is_none() && !path.is_closed_by_peer {
            let Some(pair) = self.queues.get(queue).filter(|pair| pair.state == QueueState::ReadyToSend) else { break };
            if path.posted.len() >= pair.lengths.send_requests as usize {
                break;
            }
            // One may have begun before there was a stream.
            let current = self.queues.get_mut(queue).and_then(|pair| pair.current.take());
            let Some(transfer) = current.or_else(|| self.begin_request(queue)) else { break };
            any = true;
            let limit = u64::from(self.limits.max_message_bytes);
            if transfer.total_bytes > limit {
                let fault = Fault::new(FaultKind::TooLong, 0, transfer.total_bytes, limit);
                path.refused = Some((transfer, Status::LocalLengthError, fault));
                break;
            }
            match path.stream.post(work_request(&transfer)) {
                Ok(()) => path.posted.push_back(transfer),
                Err(error) => {
                    let (status, fault) = post_fault(&error);
                    path.refused = Some((transfer, status, fault));
                }
            }
        }
        any
    }

    /// Calls `act` with a stream and its memory.
    pub(crate) fn with_memory<T>(
        &mut self,
        queue: u32,
        path: &mut StreamPath,
        act: impl FnOnce(&mut Stream, &mut TableMemory<'_>, &mut OutgoingSegment<OwnedPlace>, &mut Carrier) -> T,
    ) -> Option<T> {
        let StreamPath { stream, segment, carrier, posted, taken, last_fault, .. } = path;
        let lists = (&*posted, taken, last_fault);
        let memory = TableMemory::new(queue, &mut self.stags, &mut self.queues, &mut self.shared_queues, lists);
        let done = act(stream, &mut memory?, segment, carrier);
        if let Some(shared) = self.queues.get(queue).and_then(|pair| pair.shared_queue) {
            self.watch_shared_limit(shared);
        }
        Some(done)
    }

    /// Completes what the stream reports. Returns the cause if the stream has ended.
    fn handle_stream_events(&mut self, queue: u32, path: &mut StreamPath) -> Option<String> {
        let mut end = None;
        while let Some(event) = path.stream.next_event() {
            match event {
                Event::Completed(completion) => {
                    let Some(transfer) = path.posted.pop_front() else { continue };
                    let (status, fault) = match completion.result {
                        Ok(()) => (Status::Success, Fault::NONE),
                        Err(failure) => send_failure(&failure, transfer.request.operation, path.last_fault),
                    };
                    self.complete_send(queue, &transfer, status, fault);
                }
                Event::Received { result, .. } => {
                    let Some(taken) = path.taken.pop_front() else { continue };
                    let result = match result {
                        Ok(received) => received_message(&received),
                        Err(failure) => {
                            let (status, fault) = receive_failure(&failure, path.last_fault);
                            ReceiveResult::failed_receive(status, fault)
                        }
                    };
                    self.complete_receive(queue, &taken, result);
                }
                Event::TerminatedByPeer(terminate) => {
                    path.is_terminated_by_peer = true;
                    end.get_or_insert_with(|| format!("the peer terminated the stream: {terminate}"));
                }
                Event::TerminatedHere(fault) => {
                    let cause = format!("{fault}; terminated with: {}", fault.error_code());
                    self.report_stream_fault(queue, cause.clone());
                    end.get_or_insert(cause);
                }
                Event::ClosedByPeer if self.is_numbered(queue) => path.is_closed_by_peer = true,
                Event::ClosedByPeer => _ = end.get_or_insert_with(|| CLOSED_BY_PEER.into()),
                Event::SendClosed => {}
            }
        }
        if path.posted.is_empty()
            && let Some((transfer, status, fault)) = path.refused.take()
        {
            self.complete_send(queue, &transfer, status, fault);
            end.get_or_insert_with(|| fault.to_string());
        }
        if path.is_closed_by_peer && !path.has_posted() {
            // The peer has acknowledged all before it left, or will.
            end.get_or_insert_with(|| CLOSED_BY_PEER.into());
        }
        end.or_else(|| path.lost.clone())
    }

    fn report_stream_fault(&mut self, queue: u32, cause: String) {
        if let Some(client) = self.queues.get(queue).map(|pair| pair.client) {
            self.send_async_event(client, &AsyncEvent::QueueAccessError { queue, cause });
        }
    }

    /// Ends the stream of a queue pair that has entered the error state: what it has is flushed, the peer is informed.
    pub(crate) fn close_stream_path(&mut self, queue: u32, mut path: Box<StreamPath>) {
        match path.ending {
            _ if path.lost.is_some() => path.stream.lose_connection(),
            // A Terminate message that is due goes out.
            Ending::Disconnect if path.stream.fault().is_some() => {}
            Ending::Disconnect => path.stream.lose_connection(),
            Ending::Error => path.stream.terminate(ErrorCode::RDMAP_LOCAL_CATASTROPHIC),
            Ending::ProgramGone => path.stream.terminate(ErrorCode::RDMAP_GLOBAL_CATASTROPHIC),
        }
        self.transmit_segments(queue, &mut path);
        // The end is known.
        let _ = self.handle_stream_events(queue, &mut path);
        if let Some((transfer, ..)) = path.refused.take() {
            self.complete_send(queue, &transfer, Status::Flushed, Fault::new(FaultKind::Flushed, 0, 0, 0));
        }
        match path.carrier {
            Carrier::Tcp(tcp) if path.lost.is_none() => self.lingering.push(tcp.into_lingering_socket()),
            Carrier::Tcp(_) => {}
            Carrier::Efe(efe) => self.finish_efe_connection(efe),
        }
    }

    /// Gives what carries a stream the segments that it has. Returns whether there were any.
    pub(crate) fn transmit_segments(&mut self, queue: u32, path: &mut StreamPath) -> bool {
        match path.carrier {
            Carrier::Tcp(_) => self.transmit_bytes(queue, path),
            Carrier::Efe(_) => self.transmit_packets(queue, path),
        }
    }
}

/// Returns a request as the stream takes it. Its id is the index in the send queue.
fn work_request(transfer: &Transfer) -> WorkRequest {
    let request = &transfer.request;
    let remote = RemoteAddress { stag: Stag(request.remote_stag), offset: request.remote_address };
    // Verbs have 4 bytes of immediate data, RFC 7306 section 6 has 8: the 4 are their last, in network order.
    let operation = match request.operation {
        Operation::Write => thalweg_iwarp::Operation::Write { remote, data: payload(request), immediate: None },
        Operation::WriteWithImmediate => {
            let immediate = Some(request.immediate.to_be_bytes());
            thalweg_iwarp::Operation::Write { remote, data: payload(request), immediate }
        }
        Operation::Send => thalweg_iwarp::Operation::Send { data: payload(request), invalidate: None },
        Operation::SendWithInvalidate => {
            thalweg_iwarp::Operation::Send { data: payload(request), invalidate: Some(Stag(request.stag)) }
        }
        Operation::SendWithImmediate => {
            let immediate = (request.immediate as u32).to_be_bytes();
            thalweg_iwarp::Operation::SendWithImmediate { data: payload(request), immediate }
        }
        Operation::Read => thalweg_iwarp::Operation::Read { remote, into: memory_ranges(request) },
        Operation::FetchAdd | Operation::CompareSwap => {
            let operation = if request.operation == Operation::FetchAdd {
                AtomicOperation::FetchAdd { add: request.immediate, mask: 0 }
            } else {
                AtomicOperation::CompareSwap {
                    compare: request.immediate,
                    compare_mask: u64::MAX,
                    swap: request.swap,
                    swap_mask: u64::MAX,
                }
            };
            let into = request.sges.first().map(memory_range).unwrap_or_default();
            thalweg_iwarp::Operation::Atomic { remote, operation, into }
        }
        Operation::BindWindow | Operation::LocalInvalidate => thalweg_iwarp::Operation::Local,
    };
    WorkRequest {
        id: u64::from(transfer.index),
        operation,
        fence: request.flags.contains(SendFlags::FENCE),
        solicited: request.flags.contains(SendFlags::SOLICITED),
    }
}

/// Returns the data of a request as the stream takes it.
fn payload(request: &SendDescriptor) -> Payload {
    if request.flags.contains(SendFlags::INLINE) {
        Payload::Inline(request.inline.clone())
    } else {
        Payload::Gathered(memory_ranges(request))
    }
}

fn memory_ranges(request: &SendDescriptor) -> Vec<MemoryRange> {
    request.sges.iter().map(memory_range).collect()
}

/// Result of a request that the stream does not take.
fn post_fault(error: &thalweg_iwarp::PostError) -> (Status, Fault) {
    match *error {
        thalweg_iwarp::PostError::TooLong { bytes } => {
            (Status::LocalLengthError, Fault::new(FaultKind::TooLong, 0, bytes, u64::from(u32::MAX)))
        }
        thalweg_iwarp::PostError::NoOutboundRequests => {
            (Status::LocalOperationError, Fault::new(FaultKind::ReadLimit, 0, 1, 0))
        }
        thalweg_iwarp::PostError::AtomicResult { bytes } => {
            (Status::LocalLengthError, Fault::new(FaultKind::Descriptor, 0, u64::from(bytes), 8))
        }
        thalweg_iwarp::PostError::SendWithImmediate => {
            (Status::LocalOperationError, Fault::new(FaultKind::Unsupported, 0, 0, 0))
        }
        thalweg_iwarp::PostError::Closed => (Status::Flushed, Fault::new(FaultKind::Flushed, 0, 0, 0)),
    }
}

fn flushed_result() -> (Status, Fault) {
    (Status::Flushed, Fault::new(FaultKind::Flushed, 0, 0, 0))
}

fn fault_kind(reason: AccessError) -> FaultKind {
    match reason {
        AccessError::UnknownStag => FaultKind::StagUnknown,
        AccessError::NotAssociated => FaultKind::OtherDomain,
        AccessError::OutOfBounds => FaultKind::OutOfBounds,
        AccessError::Wrapped => FaultKind::Wrapped,
        AccessError::MissingRight => FaultKind::MissingRight,
        AccessError::Misaligned => FaultKind::Misaligned,
    }
}

/// Returns the fault of an access, with its limit and value where the tables found it; the stream finds a wrap by itself.
fn access_fault(range: MemoryRange, reason: AccessError, last: Fault) -> Fault {
    if last.stag == range.stag.0 && last.kind != FaultKind::None && reason != AccessError::Wrapped {
        return last;
    }
    Fault::new(fault_kind(reason), range.stag.0, range.offset, u64::from(range.length))
}

fn send_failure(failure: &Failure, operation: Operation, last: Fault) -> (Status, Fault) {
    match failure {
        Failure::Flushed => flushed_result(),
        Failure::LocalAccess { range, reason } => (Status::LocalProtectionError, access_fault(*range, *reason, last)),
        Failure::Local(_) if operation == Operation::BindWindow => (Status::WindowBindError, last),
        Failure::Local(_) => (Status::LocalProtectionError, last),
        Failure::Remote(terminate) => {
            let ErrorCode { layer, error_type, code } = terminate.error;
            let status = match (layer, error_type, code) {
                (1, 2, 0x02) => Status::ReceiverNotReady,
                (0 | 1, 1, _) => Status::RemoteAccessError,
                (1, 2, _) | (0, 2, 0x05..=0x07) => Status::RemoteInvalidRequest,
                _ => Status::RemoteOperationError,
            };
            let value = u64::from(layer) << 16 | u64::from(error_type) << 8 | u64::from(code);
            (status, Fault::new(FaultKind::Terminated, 0, value, 0).seen_by_peer())
        }
        Failure::Message(_) => (Status::General, Fault::new(FaultKind::Protocol, 0, 0, 0)),
    }
}

fn receive_failure(failure: &Failure, last: Fault) -> (Status, Fault) {
    match failure {
        Failure::Flushed | Failure::Remote(_) | Failure::Local(_) => flushed_result(),
        Failure::LocalAccess { range, reason } => (Status::LocalProtectionError, access_fault(*range, *reason, last)),
        Failure::Message(thalweg_iwarp::Fault::TooLong { bytes, limit, .. }) => {
            (Status::LocalLengthError, Fault::new(FaultKind::TooLong, 0, *bytes, *limit))
        }
        Failure::Message(thalweg_iwarp::Fault::Invalidation { .. }) => (Status::LocalAccessError, last),
        Failure::Message(_) => (Status::General, Fault::new(FaultKind::Protocol, 0, 0, 0)),
    }
}

fn received_message(received: &Received) -> ReceiveResult {
    let (mut operation, mut bytes) = (CompletedOperation::Receive, received.bytes);
    let (mut immediate, mut invalidated) = (None, None);
    match received.kind {
        ReceivedKind::Send => {}
        ReceivedKind::SendWithImmediate(data) => immediate = Some(u64::from(u32::from_be_bytes(data))),
        ReceivedKind::SendWithInvalidate(stag) => invalidated = Some(stag.0),
        ReceivedKind::Immediate(data, written) => {
            immediate = Some(u64::from_be_bytes(data));
            if let Some(written) = written {
                (operation, bytes) = (CompletedOperation::ReceiveWriteWithImmediate, written);
            }
        }
    }
    let solicited = received.solicited;
    ReceiveResult { status: Status::Success, operation, bytes, immediate, invalidated, fault: Fault::NONE, solicited }
}
