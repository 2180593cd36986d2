//! Carrying out requests: turns of a queue pair, and messages between queue pairs of one RNIC.
//!
//! Bytes of a message go from the memory of one program to that of the other in one copy, in parts, so that long messages
//! do not keep others waiting. Each part is checked against the tables when it is copied: memory that is given back, or
//! invalidated, in between is not accessed any more.

use crate::attributes::{
    Access, AsyncEvent, CompletedOperation, ENDLESS_RETRIES, Fault, FaultKind, Operation, QueueState, Status,
};
use crate::completion::ReceiveResult;
use crate::descriptor::{SendFlags, Sge, TakeError, receive_cells, take_receive, take_send};
use crate::engine::{Clock, Engine};
use crate::queue_pair::{Path, TakenReceive, Transfer};
use crate::stag::{Accessor, StagTable};

/// Length in bytes of the operand of an atomic.
const ATOMIC_BYTES: u64 = 8;

/// State of a request after a turn.
enum Outcome {
    /// The request is done.
    Done,
    /// The request goes on in the next turn.
    Continues,
    /// The request waits for the peer.
    Waits,
    /// The request failed: result and fault, seen from the requester.
    Failed(Status, Fault),
}

/// One side of a copy: elements, or own data of a request.
#[derive(Clone, Copy)]
struct CopyEnd<'a> {
    bytes: CopyBytes<'a>,
    by: Accessor,
    needs: Access,
}

#[derive(Clone, Copy)]
enum CopyBytes<'a> {
    Elements(&'a [Sge]),
    Inline(&'a [u8]),
}

/// Fault of a copy, by its side.
enum CopyFault {
    From(Fault),
    To(Fault),
}

impl Engine {
    /// Does the next thing that a queue pair has to do. Returns whether there was any.
    pub(crate) fn take_turn(&mut self, queue: u32, clock: Clock<'_>, budget: &mut u64) -> bool {
        let Some(pair) = self.queues.get_mut(queue) else { return false };
        match pair.state {
            QueueState::ReadyToSend | QueueState::ReadyToReceive if pair.stream.is_some() => {
                return self.take_stream_turn(queue);
            }
            QueueState::ReadyToSend if pair.path == Path::Numbered => return self.wait_for_meeting(queue, clock),
            QueueState::SendDrained if pair.stream.as_ref().is_some_and(|path| path.has_posted()) => {
                return self.take_stream_turn(queue);
            }
            QueueState::ReadyToSend => {}
            QueueState::SendDrained if pair.current.is_some() => {}
            QueueState::SendDrained => {
                if std::mem::take(&mut pair.drain_event_due) {
                    let client = pair.client;
                    self.send_async_event(client, &AsyncEvent::SendQueueDrained { queue });
                }
                return self.take_stream_turn(queue);
            }
            QueueState::Error => return self.flush_one(queue),
            _ => return false,
        }
        let mut transfer = match pair.current.take() {
            Some(transfer) => transfer,
            None => match self.begin_request(queue) {
                Some(transfer) => transfer,
                None => return false,
            },
        };
        if *budget == 0 {
            self.keep_current(queue, transfer);
            return false;
        }
        match self.step_request(queue, &mut transfer, clock, budget) {
            Outcome::Done => self.complete_send(queue, &transfer, Status::Success, Fault::NONE),
            Outcome::Continues => self.keep_current(queue, transfer),
            Outcome::Waits => {
                self.keep_current(queue, transfer);
                return false;
            }
            Outcome::Failed(status, fault) => {
                self.complete_send(queue, &transfer, status, fault);
                self.release_peer_receive(queue, transfer);
                self.fail_queue(queue, &fault.to_string());
            }
        }
        true
    }

    fn keep_current(&mut self, queue: u32, transfer: Transfer) {
        if let Some(pair) = self.queues.get_mut(queue) {
            pair.current = Some(transfer);
        }
    }

    /// Takes the next request of a queue pair; `None` if there is none, or it is malformed: the queue pair is then in
    /// error.
    pub(crate) fn begin_request(&mut self, queue: u32) -> Option<Transfer> {
        let pair = self.queues.get_mut(queue).filter(|pair| !pair.send.broken)?;
        let index = pair.send.next;
        match take_send(&mut pair.send.ring, &pair.lengths) {
            Ok(request) => {
                let request = request?;
                pair.send.next = index.wrapping_add(1);
                Some(Transfer::new(request, index))
            }
            Err(error) => {
                // Where the next descriptor begins is not known any more.
                pair.send.broken = true;
                self.fail_queue_by_fault(queue, error.into_fault());
                None
            }
        }
    }

    /// Brings a queue pair into the error state; its peer, too, since their stream has ended. Requests under way are
    /// flushed now, the others in the turns that follow.
    pub(crate) fn fail_queue(&mut self, queue: u32, cause: &str) {
        let Some(pair) = self.queues.get_mut(queue) else { return };
        if matches!(pair.state, QueueState::Error | QueueState::Reset) {
            return;
        }
        pair.state = QueueState::Error;
        let (current, path, stream) = (pair.current.take(), pair.path, pair.stream.take());
        self.report_disconnected(queue, cause);
        let flushed = Fault::new(FaultKind::Flushed, 0, 0, 0);
        if let Some(transfer) = current {
            self.complete_send(queue, &transfer, Status::Flushed, flushed);
            self.release_peer_receive(queue, transfer);
        }
        if let Some(stream) = stream {
            self.close_stream_path(queue, stream);
        }
        self.end_meeting(queue);
        let Path::Local(peer) = path else { return };
        let Some(peer_pair) = self.queues.get_mut(peer) else { return };
        if peer_pair.path == Path::Local(queue) && peer_pair.state.accepts_messages() {
            // A message of the peer's that was filling a receive of this queue pair.
            if let Some(taken) = peer_pair.current.as_mut().and_then(|transfer| transfer.receive.take()) {
                self.complete_receive(queue, &taken, ReceiveResult::failed_receive(Status::Flushed, flushed));
            }
            self.fail_queue(peer, cause);
        }
    }

    /// Completes the receive of the peer that a failed request had taken.
    fn release_peer_receive(&mut self, queue: u32, transfer: Transfer) {
        let Some(taken) = transfer.receive else { return };
        if let Some(Path::Local(peer)) = self.queues.get(queue).map(|pair| pair.path) {
            let fault = Fault::new(FaultKind::Flushed, 0, 0, 0);
            self.complete_receive(peer, &taken, ReceiveResult::failed_receive(Status::Flushed, fault));
        }
    }

    /// Flushes one request of a queue pair in error. Returns whether there was one.
    fn flush_one(&mut self, queue: u32) -> bool {
        let flushed = Fault::new(FaultKind::Flushed, 0, 0, 0);
        if let Some(transfer) = self.begin_request(queue) {
            self.complete_send(queue, &transfer, Status::Flushed, flushed);
            return true;
        }
        let Some(receive) = self.queues.get_mut(queue).and_then(|pair| pair.receive.as_mut()) else { return false };
        if receive.broken {
            return false;
        }
        let index = receive.next;
        match take_receive(&mut receive.ring, receive.sges) {
            Ok(None) => false,
            Ok(Some(taken)) => {
                receive.next = index.wrapping_add(1);
                let taken = TakenReceive { receive: taken, index };
                self.complete_receive(queue, &taken, ReceiveResult::failed_receive(Status::Flushed, flushed));
                true
            }
            Err(_) => {
                receive.broken = true;
                false
            }
        }
    }

    /// Carries out a part of a request.
    fn step_request(&mut self, queue: u32, transfer: &mut Transfer, clock: Clock<'_>, budget: &mut u64) -> Outcome {
        let operation = transfer.request.operation;
        if matches!(operation, Operation::BindWindow | Operation::LocalInvalidate) {
            return self.run_local(queue, transfer);
        }
        let limit = u64::from(self.limits.max_message_bytes);
        if transfer.total_bytes > limit {
            let fault = Fault::new(FaultKind::TooLong, 0, transfer.total_bytes, limit);
            return Outcome::Failed(Status::LocalLengthError, fault);
        }
        let peer = match self.find_peer(queue, transfer, clock) {
            Ok(peer) => peer,
            Err(outcome) => return outcome,
        };
        match operation {
            Operation::Write | Operation::WriteWithImmediate => self.step_write(queue, peer, transfer, clock, budget),
            Operation::Read => self.step_read(queue, peer, transfer, budget),
            Operation::CompareSwap | Operation::FetchAdd => self.step_atomic(queue, peer, transfer),
            _ => self.step_send(queue, peer, transfer, clock, budget),
        }
    }

    /// Binds or invalidates a window of the queue pair's own program.
    fn run_local(&mut self, queue: u32, transfer: &Transfer) -> Outcome {
        let Some(pair) = self.queues.get(queue) else { return Outcome::Waits };
        let request = &transfer.request;
        if request.operation == Operation::LocalInvalidate {
            return match self.stags.invalidate_window(request.stag, queue) {
                Ok(()) => Outcome::Done,
                Err(fault) => Outcome::Failed(Status::LocalProtectionError, fault),
            };
        }
        let access = Access::from_bits_truncate(request.immediate as u32);
        let range = (request.remote_address, request.swap);
        match self.stags.bind_window(request.stag, request.remote_stag, range, access, (pair.domain, queue)) {
            Ok(()) => Outcome::Done,
            Err(fault) => Outcome::Failed(Status::WindowBindError, fault),
        }
    }

    /// Returns the peer's queue pair, once it is ready for messages of this one.
    fn find_peer(&mut self, queue: u32, transfer: &mut Transfer, clock: Clock<'_>) -> Result<u32, Outcome> {
        let Some(pair) = self.queues.get(queue) else { return Err(Outcome::Waits) };
        let gone = Outcome::Failed(Status::RetryExceeded, Fault::new(FaultKind::PeerGone, 0, 0, 0).seen_by_peer());
        let Path::Local(peer) = pair.path else { return Err(gone) };
        let Some(peer_pair) = self.queues.get(peer) else { return Err(gone) };
        if peer_pair.state.accepts_messages() && peer_pair.path == Path::Local(queue) {
            // The peer was not ready: the wait for a receive is another.
            return Ok(peer);
        }
        let may_become_ready = matches!(peer_pair.state, QueueState::Reset | QueueState::Init)
            && (peer_pair.path == Path::Unconnected || peer_pair.path == Path::Local(queue));
        if !may_become_ready {
            return Err(gone);
        }
        let timeout = pair.attributes.peer_timeout;
        let deadline = *transfer.deadline.get_or_insert_with(|| clock() + timeout);
        if clock() < deadline {
            return Err(Outcome::Waits);
        }
        let fault = Fault::new(FaultKind::PeerNotReady, 0, 0, timeout.as_millis() as u64);
        Err(Outcome::Failed(Status::RetryExceeded, fault.seen_by_peer()))
    }

    /// Takes a receive of the peer for a message. Where there is none, the message waits as often as its queue pair may
    /// try again.
    fn take_peer_receive(
        &mut self,
        queue: u32,
        peer: u32,
        transfer: &mut Transfer,
        clock: Clock<'_>,
    ) -> Result<(), Outcome> {
        let shared = self.queues.get(peer).and_then(|pair| pair.shared_queue);
        let Some(receive) = self.receive_ring(peer) else { return Err(Outcome::Waits) };
        let taken = if receive.broken { Ok(None) } else { take_receive(&mut receive.ring, receive.sges) };
        match taken {
            Ok(Some(taken)) => {
                let index = receive.next;
                receive.next = index.wrapping_add(1);
                transfer.receive = Some(TakenReceive { receive: taken, index });
                transfer.deadline = None;
                if let Some(shared) = shared {
                    self.watch_shared_limit(shared);
                }
                Ok(())
            }
            Ok(None) => Err(self.wait_for_receive(queue, peer, transfer, clock)),
            Err(error) => {
                receive.broken = true;
                let fault = error.into_fault();
                if let TakeError::Malformed(id, _) = error {
                    let index = receive.next;
                    receive.next = index.wrapping_add(1);
                    let receive = crate::descriptor::ReceiveDescriptor { id, sges: Default::default() };
                    let result = ReceiveResult::failed_receive(Status::LocalOperationError, fault);
                    self.complete_receive(peer, &TakenReceive { receive, index }, result);
                }
                if let Some(queue) = shared {
                    self.report_broken_shared_queue(queue);
                }
                self.fail_queue_by_fault(peer, fault);
                Err(Outcome::Failed(Status::RemoteOperationError, fault.seen_by_peer()))
            }
        }
    }

    fn wait_for_receive(&mut self, queue: u32, peer: u32, transfer: &mut Transfer, clock: Clock<'_>) -> Outcome {
        let Some(attributes) = self.queues.get(queue).map(|pair| &pair.attributes) else { return Outcome::Waits };
        if attributes.receiver_retries >= ENDLESS_RETRIES {
            return Outcome::Waits;
        }
        let deadline = *transfer.deadline.get_or_insert_with(|| clock() + attributes.receiver_retry_interval);
        if transfer.retries < attributes.receiver_retries {
            let now = clock();
            if now >= deadline {
                transfer.retries += 1;
                transfer.deadline = Some(now + attributes.receiver_retry_interval);
            }
            return Outcome::Waits;
        }
        let (made, allowed) = (u64::from(transfer.retries), u64::from(attributes.receiver_retries));
        let fault = Fault::new(FaultKind::NoReceive, 0, made, allowed);
        self.report_refused(peer, fault);
        Outcome::Failed(Status::ReceiverNotReady, fault.seen_by_peer())
    }

    /// Sends the event of a shared receive queue whose limit has been reached, once.
    pub(crate) fn watch_shared_limit(&mut self, queue: u32) {
        let Some(shared) = self.shared_queues.get_mut(queue) else { return };
        let limit = shared.limit;
        let posted = shared.receive.ring.ready_cells().map_or(0, |cells| cells / receive_cells(shared.receive.sges));
        if limit > 0 && posted < limit {
            shared.limit = 0;
            let client = shared.client;
            self.send_async_event(client, &AsyncEvent::SharedQueueLimit { queue, limit });
        }
    }

    fn report_broken_shared_queue(&mut self, queue: u32) {
        if let Some(client) = self.shared_queues.get(queue).map(|shared| shared.client) {
            self.send_async_event(client, &AsyncEvent::SharedQueueError { queue });
        }
    }

    /// Reports to the peer's program that a request was refused on its side.
    fn report_refused(&mut self, peer: u32, fault: Fault) {
        if let Some(client) = self.queues.get(peer).map(|pair| pair.client) {
            self.send_async_event(client, &AsyncEvent::QueueAccessError { queue: peer, cause: fault.to_string() });
        }
    }

    fn step_write(
        &mut self,
        queue: u32,
        peer: u32,
        transfer: &mut Transfer,
        clock: Clock<'_>,
        budget: &mut u64,
    ) -> Outcome {
        if transfer.done_bytes < transfer.total_bytes {
            if let Err(fault) = self.check_queue_access(peer, Access::REMOTE_WRITE) {
                return self.refuse_request(peer, Status::RemoteAccessError, fault);
            }
            let (own, their) = (self.accessor_of(queue, None), self.accessor_of(peer, Some(peer)));
            let remote = [remote_element(transfer)];
            let from = CopyEnd { bytes: own_bytes(transfer), by: own, needs: Access::empty() };
            let to = CopyEnd { bytes: CopyBytes::Elements(&remote), by: their, needs: Access::REMOTE_WRITE };
            match copy_part(&self.stags, from, to, transfer, budget) {
                Err(CopyFault::From(fault)) => return Outcome::Failed(Status::LocalProtectionError, fault),
                Err(CopyFault::To(fault)) => return self.refuse_request(peer, Status::RemoteAccessError, fault),
                Ok(copied) => transfer.done_bytes += copied,
            }
            if transfer.done_bytes < transfer.total_bytes {
                return Outcome::Continues;
            }
        }
        if transfer.request.operation == Operation::WriteWithImmediate {
            if transfer.receive.is_none()
                && let Err(outcome) = self.take_peer_receive(queue, peer, transfer, clock)
            {
                return outcome;
            }
            self.deliver_message(peer, transfer, CompletedOperation::ReceiveWriteWithImmediate);
        }
        Outcome::Done
    }

    fn step_send(
        &mut self,
        queue: u32,
        peer: u32,
        transfer: &mut Transfer,
        clock: Clock<'_>,
        budget: &mut u64,
    ) -> Outcome {
        if transfer.receive.is_none()
            && let Err(outcome) = self.take_peer_receive(queue, peer, transfer, clock)
        {
            return outcome;
        }
        let Some(receive) = transfer.receive.as_ref().map(|taken| &taken.receive) else { return Outcome::Waits };
        let room = receive.sges.total_bytes();
        if transfer.total_bytes > room {
            let fault = Fault::new(FaultKind::TooLong, 0, transfer.total_bytes, room);
            return self.refuse_message(
                peer,
                transfer,
                (Status::LocalLengthError, Status::RemoteInvalidRequest),
                fault,
            );
        }
        if transfer.done_bytes < transfer.total_bytes {
            let (own, their) = (self.accessor_of(queue, None), self.accessor_of(peer, None));
            let from = CopyEnd { bytes: own_bytes(transfer), by: own, needs: Access::empty() };
            let to = CopyEnd { bytes: CopyBytes::Elements(&receive.sges), by: their, needs: Access::LOCAL_WRITE };
            match copy_part(&self.stags, from, to, transfer, budget) {
                Err(CopyFault::From(fault)) => return Outcome::Failed(Status::LocalProtectionError, fault),
                Err(CopyFault::To(fault)) => {
                    let results = (Status::LocalProtectionError, Status::RemoteOperationError);
                    return self.refuse_message(peer, transfer, results, fault);
                }
                Ok(copied) => transfer.done_bytes += copied,
            }
            if transfer.done_bytes < transfer.total_bytes {
                return Outcome::Continues;
            }
        }
        if transfer.request.operation == Operation::SendWithInvalidate
            && let Err(fault) = self.stags.invalidate_window(transfer.request.stag, peer)
        {
            return self.refuse_message(peer, transfer, (Status::LocalAccessError, Status::RemoteAccessError), fault);
        }
        self.deliver_message(peer, transfer, CompletedOperation::Receive);
        Outcome::Done
    }

    fn step_read(&mut self, queue: u32, peer: u32, transfer: &mut Transfer, budget: &mut u64) -> Outcome {
        if let Err(outcome) = self.check_read_limits(queue, peer) {
            return outcome;
        }
        // A read of no bytes is answered without a look at its STag (RFC 5040 section 5.2.1).
        if transfer.total_bytes == 0 {
            return Outcome::Done;
        }
        if let Err(fault) = self.check_queue_access(peer, Access::REMOTE_READ) {
            return self.refuse_request(peer, Status::RemoteAccessError, fault);
        }
        let (own, their) = (self.accessor_of(queue, None), self.accessor_of(peer, Some(peer)));
        let remote = [remote_element(transfer)];
        let from = CopyEnd { bytes: CopyBytes::Elements(&remote), by: their, needs: Access::REMOTE_READ };
        let sink = CopyBytes::Elements(&transfer.request.sges);
        let to = CopyEnd { bytes: sink, by: own, needs: Access::LOCAL_WRITE };
        match copy_part(&self.stags, from, to, transfer, budget) {
            Err(CopyFault::From(fault)) => self.refuse_request(peer, Status::RemoteAccessError, fault),
            Err(CopyFault::To(fault)) => Outcome::Failed(Status::LocalProtectionError, fault),
            Ok(copied) => {
                transfer.done_bytes += copied;
                if transfer.done_bytes < transfer.total_bytes { Outcome::Continues } else { Outcome::Done }
            }
        }
    }

    /// Carries out an atomic (RFC 7306 section 5): on memory of one RNIC, whose turns order them; against accesses by
    /// processors as one of theirs.
    fn step_atomic(&mut self, queue: u32, peer: u32, transfer: &mut Transfer) -> Outcome {
        if let Err(outcome) = self.check_read_limits(queue, peer) {
            return outcome;
        }
        let request = &transfer.request;
        if transfer.total_bytes != ATOMIC_BYTES {
            let fault = Fault::new(FaultKind::Descriptor, 0, transfer.total_bytes, ATOMIC_BYTES);
            return Outcome::Failed(Status::LocalLengthError, fault);
        }
        let address = request.remote_address;
        if !address.is_multiple_of(ATOMIC_BYTES) {
            let fault = Fault::new(FaultKind::Misaligned, request.remote_stag, address, ATOMIC_BYTES);
            return self.refuse_request(peer, Status::RemoteInvalidRequest, fault);
        }
        if let Err(fault) = self.check_queue_access(peer, Access::REMOTE_ATOMIC) {
            return self.refuse_request(peer, Status::RemoteAccessError, fault);
        }
        let (own, their) = (self.accessor_of(queue, None), self.accessor_of(peer, Some(peer)));
        // The sink is checked first: an atomic whose result cannot be kept must not be carried out.
        for element in request.sges.iter().filter(|element| element.bytes > 0) {
            let bytes = u64::from(element.bytes);
            if let Err(fault) =
                self.stags.resolve_access(element.stag, element.address, bytes, Access::LOCAL_WRITE, own)
            {
                return Outcome::Failed(Status::LocalProtectionError, fault);
            }
        }
        let word = self.stags.resolve_access(request.remote_stag, address, ATOMIC_BYTES, Access::REMOTE_ATOMIC, their);
        let was = match word {
            Err(fault) => return self.refuse_request(peer, Status::RemoteAccessError, fault),
            // The address is aligned, its place in the mapping need not be.
            Ok(place) if !place.at.is_multiple_of(ATOMIC_BYTES as usize) => {
                let fault = Fault::new(FaultKind::Misaligned, request.remote_stag, place.at as u64, ATOMIC_BYTES);
                return self.refuse_request(peer, Status::RemoteInvalidRequest, fault);
            }
            Ok(place) if request.operation == Operation::FetchAdd => {
                place.memory.fetch_add(place.at, request.immediate)
            }
            Ok(place) => place.memory.compare_swap(place.at, request.immediate, request.swap),
        };
        let bytes = was.to_ne_bytes();
        let from = CopyEnd { bytes: CopyBytes::Inline(&bytes), by: own, needs: Access::empty() };
        let sink = CopyBytes::Elements(&request.sges);
        let to = CopyEnd { bytes: sink, by: own, needs: Access::LOCAL_WRITE };
        match copy_part(&self.stags, from, to, transfer, &mut { ATOMIC_BYTES }) {
            Ok(_) => Outcome::Done,
            Err(CopyFault::From(fault) | CopyFault::To(fault)) => Outcome::Failed(Status::LocalProtectionError, fault),
        }
    }

    /// Checks that reads and atomics are allowed by both sides. Here, one is outstanding at a time.
    fn check_read_limits(&mut self, queue: u32, peer: u32) -> Result<(), Outcome> {
        let outbound = self.queues.get(queue).map_or(0, |pair| pair.attributes.outbound_reads);
        let inbound = self.queues.get(peer).map_or(0, |pair| pair.attributes.inbound_reads);
        if outbound == 0 {
            return Err(Outcome::Failed(Status::LocalOperationError, Fault::new(FaultKind::ReadLimit, 0, 1, 0)));
        }
        if inbound == 0 {
            let fault = Fault::new(FaultKind::ReadLimit, 0, 1, 0);
            return Err(self.refuse_request(peer, Status::RemoteInvalidRequest, fault));
        }
        Ok(())
    }

    fn check_queue_access(&self, queue: u32, needs: Access) -> Result<(), Fault> {
        let has = self.queues.get(queue).map_or(Access::empty(), |pair| pair.attributes.access);
        if has.contains(needs) {
            return Ok(());
        }
        Err(Fault::new(FaultKind::QueueMissingRight, 0, u64::from(needs.bits()), u64::from(has.bits())))
    }

    fn accessor_of(&self, queue: u32, remote_through: Option<u32>) -> Accessor {
        // Handle 0 is no domain: nothing is reached by it.
        Accessor { domain: self.queues.get(queue).map_or(0, |pair| pair.domain), remote_through }
    }

    /// Completes the receive that a message has filled.
    fn deliver_message(&mut self, peer: u32, transfer: &mut Transfer, operation: CompletedOperation) {
        let Some(taken) = transfer.receive.take() else { return };
        let request = &transfer.request;
        let with_immediate = matches!(request.operation, Operation::SendWithImmediate | Operation::WriteWithImmediate);
        let result = ReceiveResult {
            status: Status::Success,
            operation,
            bytes: transfer.total_bytes as u32,
            immediate: with_immediate.then_some(request.immediate),
            invalidated: (request.operation == Operation::SendWithInvalidate).then_some(request.stag),
            fault: Fault::NONE,
            solicited: transfer.is_solicited(),
        };
        self.complete_receive(peer, &taken, result);
    }

    /// Refuses a request at the peer, whose program gets an event.
    fn refuse_request(&mut self, peer: u32, status: Status, fault: Fault) -> Outcome {
        self.report_refused(peer, fault);
        Outcome::Failed(status, fault.seen_by_peer())
    }

    /// Refuses a message at the peer, whose receive completes with the first of both results.
    fn refuse_message(
        &mut self,
        peer: u32,
        transfer: &mut Transfer,
        results: (Status, Status),
        fault: Fault,
    ) -> Outcome {
        if let Some(taken) = transfer.receive.take() {
            self.complete_receive(peer, &taken, ReceiveResult::failed_receive(results.0, fault));
        }
        self.refuse_request(peer, results.1, fault)
    }
}

fn remote_element(transfer: &Transfer) -> Sge {
    let request = &transfer.request;
    // At most as long as a message may be, which was checked before.
    Sge { address: request.remote_address, bytes: transfer.total_bytes as u32, stag: request.remote_stag }
}

fn own_bytes(transfer: &Transfer) -> CopyBytes<'_> {
    let request = &transfer.request;
    if request.flags.contains(SendFlags::INLINE) {
        CopyBytes::Inline(&request.inline)
    } else {
        CopyBytes::Elements(&request.sges)
    }
}

/// Copies the next part of a message, as much as `budget` allows, which it reduces. Both ends are checked as a whole before
/// the first byte of a message of several parts or elements.
fn copy_part(
    stags: &StagTable,
    from: CopyEnd<'_>,
    to: CopyEnd<'_>,
    transfer: &Transfer,
    budget: &mut u64,
) -> Result<u64, CopyFault> {
    let (done, total) = (transfer.done_bytes, transfer.total_bytes);
    if done == 0 && (total > *budget || from.has_several() || to.has_several()) {
        from.check_elements(stags, total).map_err(CopyFault::From)?;
        to.check_elements(stags, total).map_err(CopyFault::To)?;
    }
    let mut copied = 0;
    while done + copied < total && *budget > 0 {
        let Some((from_at, from_bytes)) = from.bytes.position_of(done + copied) else { break };
        let Some((to_at, to_bytes)) = to.bytes.position_of(done + copied) else { break };
        let bytes = from_bytes.min(to_bytes).min(total - done - copied).min(*budget);
        let CopyBytes::Elements(sinks) = to.bytes else { break };
        let sink = sinks[to_at.0];
        let place = stags
            .resolve_access(sink.stag, sink.address.wrapping_add(to_at.1), bytes, to.needs, to.by)
            .map_err(CopyFault::To)?;
        match from.bytes {
            CopyBytes::Inline(data) => {
                let start = from_at.1 as usize;
                place.memory.store_bytes(place.at, &data[start..start + bytes as usize]);
            }
            CopyBytes::Elements(sources) => {
                let source = sources[from_at.0];
                let address = source.address.wrapping_add(from_at.1);
                let source =
                    stags.resolve_access(source.stag, address, bytes, from.needs, from.by).map_err(CopyFault::From)?;
                source.memory.copy_bytes_to(source.at, place.memory, place.at, bytes as usize);
            }
        }
        copied += bytes;
        *budget -= bytes;
    }
    Ok(copied)
}

impl CopyEnd<'_> {
    fn has_several(&self) -> bool {
        matches!(self.bytes, CopyBytes::Elements(elements) if elements.len() > 1)
    }

    /// Checks the elements that `total` bytes take.
    fn check_elements(&self, stags: &StagTable, mut total: u64) -> Result<(), Fault> {
        let CopyBytes::Elements(elements) = self.bytes else { return Ok(()) };
        for element in elements {
            let bytes = u64::from(element.bytes).min(total);
            if bytes > 0 {
                stags.resolve_access(element.stag, element.address, bytes, self.needs, self.by)?;
            }
            total -= bytes;
        }
        Ok(())
    }
}

impl CopyBytes<'_> {
    /// Returns the element that contains a byte of the message, the byte's offset in the element, and the number of bytes
    /// from there to the element's end.
    fn position_of(&self, mut at: u64) -> Option<((usize, u64), u64)> {
        match self {
            Self::Inline(data) => (at < data.len() as u64).then(|| ((0, at), data.len() as u64 - at)),
            Self::Elements(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let bytes = u64::from(element.bytes);
                    if at < bytes {
                        return Some(((index, at), bytes - at));
                    }
                    at -= bytes;
                }
                None
            }
        }
    }
}
