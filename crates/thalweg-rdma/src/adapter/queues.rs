//! Queue pairs, shared receive queues and completion queues of a device: from the rings of the program to the device and back.

use super::{RegisteredRegion, device_element};
use crate::device::VerbsError;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{RingReceiver, RingSender};
use thalweg_ibverbs::abi::{IbvQpAttr, IbvSge, IbvWc, WC_WITH_IMM, WC_WITH_INV, attr_mask, qp_state};
use thalweg_ibverbs::{CompletionQueue, Opcode, PostedData, QueuePair, SharedQueue, WorkTarget};
use thalweg_rnic::{
    Access, CommandError, CompletedOperation, CompletionCell, CompletionEntry, EventSocket, Fault, FaultKind, MAX_SGES,
    Operation, QueueAttributes, QueueLengths, QueueState, Reply, SendDescriptor, SendFlags, Side, Status, TakeError,
    take_receive, take_send,
};

/// Bits of the number by which the device's completions name a request: a receive, and one of a shared queue. The others are
/// the index of the request in its queue.
const RECEIVE_BIT: u64 = 1 << 63;
const SHARED_BIT: u64 = 1 << 62;

/// Completions that are taken from the device at a time.
const POLL_BATCH: usize = 32;

/// `IBV_WC_RECV_RDMA_WITH_IMM`.
const RECEIVE_WRITE_WITH_IMMEDIATE: i32 = 129;

/// Time in which a device flushes the requests of a queue pair in error. What it was given at the moment of the error may be
/// left: siw flushes once, and completes nothing that is posted afterwards (`siw_sq_flush_wr`).
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A queue pair: its rings, and the requests that the device has not completed.
#[derive(Debug)]
pub(super) struct Pair {
    queue: Arc<QueuePair>,
    state: QueueState,
    attributes: QueueAttributes,
    /// True from the establishment of the connection on: requests wait for it in their ring.
    is_connected: bool,
    lengths: QueueLengths,
    /// Completion queues of sends and of receives.
    completion_queues: [u32; 2],
    shared_queue: Option<u32>,
    send_ring: RingReceiver,
    receive_ring: Option<RingReceiver>,
    sent: VecDeque<Sent>,
    first_sent: u32,
    /// Reads and atomics among those, and how many there may be: more would stop the device's queue. The next one waits here.
    reads: u32,
    max_reads: u32,
    waiting: Option<SendDescriptor>,
    received: VecDeque<Received>,
    first_received: u32,
    /// Time at which the queue pair entered the error state.
    failed_at: Option<Instant>,
}

/// A send request that has not completed.
#[derive(Debug)]
struct Sent {
    id: u64,
    operation: CompletedOperation,
    /// True of reads and atomics.
    is_read: bool,
    /// Bytes that a read or an atomic returns.
    bytes: u32,
    /// Result, if the device has not got the request.
    refused: Option<(Status, Fault)>,
}

/// A receive that has not completed.
#[derive(Debug)]
struct Received {
    id: u64,
    /// True if the device has not got it, since the queue pair was in error: it is flushed.
    is_flushed: bool,
}

impl Pair {
    pub(super) fn new(
        queue: Arc<QueuePair>,
        (send_ring, receive_ring): (RingReceiver, Option<RingReceiver>),
        lengths: QueueLengths,
        (completion_queues, shared_queue): ([u32; 2], Option<u32>),
    ) -> Self {
        Self {
            queue,
            state: QueueState::Reset,
            attributes: QueueAttributes::default(),
            is_connected: false,
            lengths,
            completion_queues,
            shared_queue,
            send_ring,
            receive_ring,
            sent: VecDeque::new(),
            first_sent: 0,
            reads: 0,
            max_reads: 0,
            waiting: None,
            received: VecDeque::new(),
            first_received: 0,
            failed_at: None,
        }
    }

    pub(super) fn device_queue(&self) -> &Arc<QueuePair> {
        &self.queue
    }

    pub(super) fn token(&self) -> usize {
        self.queue.token()
    }

    pub(super) fn state(&self) -> QueueState {
        self.state
    }

    /// Returns the completion queues of sends and of receives.
    pub(super) fn completion_queues(&self) -> [u32; 2] {
        self.completion_queues
    }

    pub(super) fn access(&self) -> Access {
        self.attributes.access
    }

    pub(super) fn describe_state(&self) -> Reply {
        Reply::QueuePair { state: self.state, attributes: self.attributes.clone() }
    }

    /// Takes note that the connection is up, over which so many reads and atomics may be outstanding. One fewer is used, if
    /// there are more: siw reports a read before its place is free, and may never go on once all are taken (Linux 6.1).
    pub(super) fn note_connected(&mut self, max_reads: u32) {
        (self.is_connected, self.state) = (true, QueueState::ReadyToSend);
        self.max_reads = max_reads.saturating_sub(1).max(1);
    }

    /// Takes note that the connection is being accepted: librdmacm has brought the queue pair to RTS.
    pub(super) fn note_accepting(&mut self) {
        self.state = QueueState::ReadyToSend;
    }

    /// Returns whether requests have not completed.
    pub(super) fn has_unsent(&self) -> bool {
        self.state != QueueState::Error && (!self.sent.is_empty() || self.waiting.is_some())
    }

    /// Brings the queue pair into the error state, in which all requests are flushed.
    pub(super) fn enter_error(&mut self) {
        if !matches!(self.state, QueueState::Error | QueueState::Reset) {
            // It may be there already.
            let _ = self.set_device_state(qp_state::ERR, 0, 0);
            self.state = QueueState::Error;
            self.failed_at = Some(Instant::now());
        }
    }

    /// Returns the time at which requests that the device has not flushed are flushed here; `None` if there are none.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        let waits = self.sent.front().is_some_and(|sent| sent.refused.is_none())
            || self.received.front().is_some_and(|received| !received.is_flushed);
        self.failed_at.filter(|_| waits).map(|at| at + FLUSH_TIMEOUT)
    }

    /// Flushes what the device has not flushed in time. In the error state it does nothing more for these requests.
    pub(super) fn flush_requests(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.refused = sent.refused.or(Some(FLUSHED)));
        self.received.iter_mut().for_each(|received| received.is_flushed = true);
    }

    fn set_device_state(&self, state: i32, access: u32, mask: i32) -> Result<(), VerbsError> {
        let attributes = IbvQpAttr { qp_state: state, qp_access_flags: access, port_num: 1, ..IbvQpAttr::default() };
        Ok(self.queue.modify(&attributes, mask | attr_mask::STATE)?)
    }

    pub(super) fn modify_state(
        &mut self,
        state: QueueState,
        attributes: Option<QueueAttributes>,
    ) -> Result<(), VerbsError> {
        if !self.state.may_become(state) {
            return Err(CommandError::State { from: self.state, to: state }.into());
        }
        if let Some(attributes) = attributes {
            self.attributes = attributes;
        }
        match state {
            QueueState::Reset => {
                self.set_device_state(qp_state::RESET, 0, 0)?;
                discard_cells(&mut self.send_ring);
                self.receive_ring.iter_mut().for_each(discard_cells);
                self.sent.clear();
                self.received.clear();
                (self.first_sent, self.first_received, self.is_connected) = (0, 0, false);
                (self.reads, self.waiting) = (0, None);
                self.failed_at = None;
            }
            QueueState::Init => {
                // Port 1; connecting sets that of the connection.
                let mask = attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
                self.set_device_state(qp_state::INIT, self.attributes.access.bits(), mask)?;
            }
            QueueState::Error => {
                self.enter_error();
                return Ok(());
            }
            QueueState::SendDrained => self.set_device_state(qp_state::SQD, 0, 0)?,
            QueueState::ReadyToSend => self.set_device_state(qp_state::RTS, 0, 0)?,
            QueueState::ReadyToReceive | QueueState::SendError => {}
        }
        self.state = state;
        Ok(())
    }

    /// Posts to the device what the send ring has.
    pub(super) fn post_sends(&mut self, regions: &HashMap<u32, RegisteredRegion>) {
        if !self.is_connected && self.state != QueueState::Error {
            return;
        }
        loop {
            let next = match self.waiting.take() {
                Some(waiting) => Ok(Some(waiting)),
                None => take_send(&mut self.send_ring, &self.lengths),
            };
            match next {
                Ok(None) => return,
                Ok(Some(request)) if self.must_wait(&request) => {
                    self.waiting = Some(request);
                    return;
                }
                Ok(Some(request)) => self.post_send(&request, regions),
                Err(TakeError::Malformed(id, fault)) => {
                    self.refuse(id, CompletedOperation::Send, (Status::LocalOperationError, fault));
                }
                Err(TakeError::Ring(error)) => {
                    tracing::warn!("queue pair {:#x}: {error}", self.queue.queue_number());
                    return self.enter_error();
                }
            }
        }
    }

    /// Returns whether a request must wait until others have completed. One that cannot begin at all fails at the device.
    fn must_wait(&self, request: &SendDescriptor) -> bool {
        let is_full = request.operation.is_read_or_atomic() && self.reads >= self.max_reads;
        is_full && self.reads > 0 && self.state != QueueState::Error
    }

    /// Returns whether a request has waited for what has completed now.
    pub(super) fn can_continue(&self) -> bool {
        self.waiting.as_ref().is_some_and(|request| !self.must_wait(request))
    }

    fn post_send(&mut self, request: &SendDescriptor, regions: &HashMap<u32, RegisteredRegion>) {
        let operation = request.operation.completed_operation();
        // In the error state they are flushed here: the device may have flushed what it had before it gets this.
        if self.state == QueueState::Error {
            return self.refuse(request.id, operation, FLUSHED);
        }
        let index = self.first_sent.wrapping_add(self.sent.len() as u32);
        if let Err(error) = post_descriptor(&self.queue, index, request, regions) {
            let fault = Fault::new(FaultKind::Library, 0, error.raw_os_error().unsigned_abs().into(), 0);
            return self.refuse(request.id, operation, (Status::LocalOperationError, fault));
        }
        let is_read = request.operation.is_read_or_atomic();
        self.reads += u32::from(is_read);
        let bytes = if is_read { request.total_bytes() as u32 } else { 0 };
        self.sent.push_back(Sent { id: request.id, operation, is_read, bytes, refused: None });
    }

    /// Lets a request fail that the device has not got, and with it all others.
    fn refuse(&mut self, id: u64, operation: CompletedOperation, result: (Status, Fault)) {
        self.sent.push_back(Sent { id, operation, is_read: false, bytes: 0, refused: Some(result) });
        self.enter_error();
    }

    /// Returns whether there are requests that the device has not got, and that have not completed.
    pub(super) fn has_refused(&self) -> bool {
        self.sent.back().is_some_and(|sent| sent.refused.is_some())
            || self.received.back().is_some_and(|received| received.is_flushed)
    }

    /// Returns the completion of the first receive, if the device has not got it: all before it have completed.
    pub(super) fn next_refused_receive(&mut self, queue: u32) -> Option<CompletionEntry> {
        let &Received { id, is_flushed: true } = self.received.front()? else { return None };
        self.received.pop_front();
        let index = self.first_received;
        self.first_received = index.wrapping_add(1);
        let (status, fault) = FLUSHED;
        let operation = CompletedOperation::Receive;
        Some(CompletionEntry {
            id,
            status,
            operation,
            queue,
            bytes: 0,
            index,
            immediate: None,
            invalidated: None,
            fault,
        })
    }

    /// Returns the completion of the first send request, if the device has not got it: all before it have completed.
    pub(super) fn next_refused_send(&mut self, queue: u32) -> Option<CompletionEntry> {
        let &Sent { id, operation, refused: Some((status, fault)), .. } = self.sent.front()? else { return None };
        self.sent.pop_front();
        let index = self.first_sent;
        self.first_sent = index.wrapping_add(1);
        Some(CompletionEntry {
            id,
            status,
            operation,
            queue,
            bytes: 0,
            index,
            immediate: None,
            invalidated: None,
            fault,
        })
    }

    /// Posts to the device what the receive ring has.
    pub(super) fn post_receives(&mut self, regions: &HashMap<u32, RegisteredRegion>) {
        while let Some(ring) = &mut self.receive_ring
            && let Ok(Some(receive)) = take_receive(ring, self.lengths.receive_sges)
        {
            let index = self.first_received.wrapping_add(self.received.len() as u32);
            let elements = Elements::of(&receive.sges, regions);
            let mut is_flushed = self.state == QueueState::Error;
            if !is_flushed
                && let Err(error) = self.queue.post_receive(RECEIVE_BIT | u64::from(index), elements.as_slice())
            {
                tracing::warn!("queue pair {:#x}: ibv_post_recv: {error}", self.queue.queue_number());
                is_flushed = true;
            }
            self.received.push_back(Received { id: receive.id, is_flushed });
            if is_flushed {
                self.enter_error();
            }
        }
    }

    /// Returns the completion of a request, as the program is to see it; `None` where it is to see none.
    fn complete_request(&mut self, done: &IbvWc, shared: Option<&mut SharedReceives>) -> Option<CompletionEntry> {
        let status = u8::try_from(done.status).ok().and_then(Status::from_number).unwrap_or(Status::General);
        let is_success = status == Status::Success;
        let fault = if is_success { Fault::NONE } else { device_fault(status, done.vendor_err) };
        if !is_success {
            self.enter_error();
        }
        let index = done.wr_id as u32;
        let mut entry = CompletionEntry {
            id: 0,
            status,
            operation: CompletedOperation::Receive,
            queue: done.qp_num,
            bytes: 0,
            index,
            immediate: None,
            invalidated: None,
            fault,
        };
        if done.wr_id & RECEIVE_BIT == 0 {
            let sent = self.retire_sends(index)?;
            (entry.id, entry.operation) = (sent.id, sent.operation);
            entry.bytes = if is_success { sent.bytes } else { 0 };
            return Some(entry);
        }
        entry.id = if done.wr_id & SHARED_BIT == 0 { self.retire_receives(index)? } else { shared?.retire(index)? };
        if is_success {
            entry.bytes = done.byte_len;
            entry.immediate = (done.wc_flags & WC_WITH_IMM != 0).then(|| u64::from(u32::from_be(done.imm_data)));
            entry.invalidated = (done.wc_flags & WC_WITH_INV != 0).then_some(done.imm_data);
            if done.opcode == RECEIVE_WRITE_WITH_IMMEDIATE {
                entry.operation = CompletedOperation::ReceiveWriteWithImmediate;
            }
        }
        Some(entry)
    }

    /// Drops all send requests up to the one with `index`, and returns it.
    fn retire_sends(&mut self, index: u32) -> Option<Sent> {
        let place = index.wrapping_sub(self.first_sent) as usize;
        if place >= self.sent.len() {
            return None;
        }
        self.first_sent = index.wrapping_add(1);
        let done = self.sent.drain(..=place);
        done.inspect(|sent| self.reads -= u32::from(sent.is_read)).last()
    }

    fn retire_receives(&mut self, index: u32) -> Option<u64> {
        let place = index.wrapping_sub(self.first_received) as usize;
        if place >= self.received.len() {
            return None;
        }
        self.first_received = index.wrapping_add(1);
        self.received.drain(..=place).next_back().map(|received| received.id)
    }
}

/// Result of a request that was not begun.
const FLUSHED: (Status, Fault) =
    (Status::Flushed, Fault { side: Side::Local, kind: FaultKind::Flushed, stag: 0, limit: 0, value: 0 });

/// Posts a send request to the device.
fn post_descriptor(
    queue: &QueuePair,
    index: u32,
    request: &SendDescriptor,
    regions: &HashMap<u32, RegisteredRegion>,
) -> Result<(), Errno> {
    let (address, key) = (request.remote_address, request.remote_stag);
    let remote = WorkTarget::Remote { address, key };
    let atomic = WorkTarget::Atomic { address, key, compare_add: request.immediate, swap: request.swap };
    let (opcode, target) = match request.operation {
        Operation::Write => (Opcode::Write, remote),
        Operation::WriteWithImmediate => (Opcode::WriteWithImmediate, remote),
        Operation::Send => (Opcode::Send, WorkTarget::None),
        Operation::SendWithImmediate => (Opcode::SendWithImmediate, WorkTarget::None),
        Operation::SendWithInvalidate => (Opcode::SendWithInvalidate, WorkTarget::None),
        Operation::Read => (Opcode::Read, remote),
        Operation::FetchAdd => (Opcode::FetchAdd, atomic),
        Operation::CompareSwap => (Opcode::CompareSwap, atomic),
        // They are refused when they are posted.
        Operation::BindWindow | Operation::LocalInvalidate => return Err(Errno::OPNOTSUPP),
    };
    let elements = Elements::of(&request.sges, regions);
    let is_inline = request.flags.contains(SendFlags::INLINE);
    queue.post_send(&thalweg_ibverbs::SendWork {
        id: u64::from(index),
        opcode,
        flags: u32::from(request.flags.bits()),
        immediate: match request.operation {
            Operation::SendWithInvalidate => request.stag,
            _ => (request.immediate as u32).to_be(),
        },
        data: if is_inline { PostedData::Inline(&request.inline) } else { PostedData::Memory(elements.as_slice()) },
        target,
    })
}

/// Elements of a request, as the device names them.
struct Elements {
    all: [IbvSge; MAX_SGES],
    count: usize,
}

impl Elements {
    fn of(sges: &[thalweg_rnic::Sge], regions: &HashMap<u32, RegisteredRegion>) -> Self {
        let mut elements = Self { all: [IbvSge { addr: 0, length: 0, lkey: 0 }; MAX_SGES], count: 0 };
        for (place, sge) in elements.all.iter_mut().zip(sges) {
            *place = device_element(regions, sge);
            elements.count += 1;
        }
        elements
    }

    fn as_slice(&self) -> &[IbvSge] {
        &self.all[..self.count]
    }
}

/// Returns the cause of a failure, as far as a device reports it: the side, and its own code.
fn device_fault(status: Status, vendor_error: u32) -> Fault {
    let side = match status {
        Status::RemoteInvalidRequest
        | Status::RemoteAccessError
        | Status::RemoteOperationError
        | Status::ReceiverNotReady
        | Status::RetryExceeded => Side::Remote,
        _ => Side::Local,
    };
    let kind = if status == Status::Flushed { FaultKind::Flushed } else { FaultKind::Device };
    Fault { side, kind, stag: 0, limit: 0, value: u64::from(vendor_error) }
}

/// A shared receive queue: its ring, and the ids of what is posted.
#[derive(Debug)]
pub(super) struct SharedReceives {
    queue: Arc<SharedQueue>,
    ring: RingReceiver,
    sges: u32,
    /// Ids by the indices of the requests; they complete in any order.
    posted: HashMap<u32, u64>,
    next: u32,
    limit: u32,
}

impl SharedReceives {
    pub(super) fn new(queue: Arc<SharedQueue>, ring: RingReceiver, sges: u32) -> Self {
        Self { queue, ring, sges, posted: HashMap::new(), next: 0, limit: 0 }
    }

    pub(super) fn device_queue(&self) -> &Arc<SharedQueue> {
        &self.queue
    }

    pub(super) fn token(&self) -> usize {
        self.queue.token()
    }

    pub(super) fn set_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        self.queue.set_limit(limit)?;
        self.limit = limit;
        Ok(())
    }

    /// Returns the limit whose event has come: there is one event.
    pub(super) fn take_limit(&mut self) -> u32 {
        std::mem::take(&mut self.limit)
    }

    pub(super) fn post_receives(&mut self, regions: &HashMap<u32, RegisteredRegion>) {
        while let Ok(Some(receive)) = take_receive(&mut self.ring, self.sges) {
            let index = self.next;
            self.next = index.wrapping_add(1);
            let elements = Elements::of(&receive.sges, regions);
            let id = RECEIVE_BIT | SHARED_BIT | u64::from(index);
            match self.queue.post_receive(id, elements.as_slice()) {
                Ok(()) => drop(self.posted.insert(index, receive.id)),
                Err(error) => tracing::warn!("ibv_post_srq_recv: {error}: a receive is lost"),
            }
        }
    }

    fn retire(&mut self, index: u32) -> Option<u64> {
        self.posted.remove(&index)
    }
}

/// A completion queue: the device's, and the program's ring.
#[derive(Debug)]
pub(super) struct Completions {
    queue: Arc<CompletionQueue>,
    ring: RingSender,
    channel: Option<u32>,
    event_number: u64,
    /// True until the event that was asked for has come.
    is_armed: bool,
    is_urgent: bool,
    has_failed: bool,
}

impl Completions {
    pub(super) fn new(queue: Arc<CompletionQueue>, ring: RingSender, channel: Option<u32>, event_number: u64) -> Self {
        Self { queue, ring, channel, event_number, is_armed: false, is_urgent: false, has_failed: false }
    }

    pub(super) fn device_queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    pub(super) fn token(&self) -> usize {
        self.queue.token()
    }

    /// Takes note that the event has come.
    pub(super) fn note_event(&mut self) {
        self.is_armed = false;
    }

    /// Asks for an event with the next completion. Returns false if the device refuses.
    pub(super) fn arm(&mut self) -> bool {
        if !self.is_armed {
            self.is_armed = self.queue.request_notification().is_ok();
        }
        self.is_armed
    }

    /// Puts the notice of an overrun into the ring, and returns the number of entries.
    pub(super) fn note_overrun(&mut self) -> u32 {
        let entries = self.ring.cells();
        self.has_failed = true;
        self.is_urgent = true;
        // A full ring is polled until it is empty; its program learns of the overrun by the asynchronous event.
        let _ = self.ring.push(&CompletionCell::Overrun(entries).encode_cell());
        entries
    }

    /// Puts entries of requests that failed into the ring, as long as `next` has some and there is room.
    pub(super) fn push_failures(&mut self, mut next: impl FnMut() -> Option<CompletionEntry>) {
        while !self.has_failed
            && self.ring.free_cells().is_ok_and(|cells| cells > 0)
            && let Some(entry) = next()
        {
            let _ = self.ring.push(&CompletionCell::Entry(entry).encode_cell());
            self.is_urgent = true;
        }
    }

    /// Moves completions from the device to the ring, as many as have room there. Returns whether there were any.
    pub(super) fn collect(
        &mut self,
        pairs: &mut HashMap<u32, Pair>,
        shared_queues: &mut HashMap<u32, SharedReceives>,
    ) -> bool {
        let mut worked = false;
        let mut done = [EMPTY_COMPLETION; POLL_BATCH];
        while !self.has_failed {
            let room = (self.ring.free_cells().unwrap_or(0) as usize).min(POLL_BATCH);
            let Ok(count @ 1..) = self.queue.poll(&mut done[..room]) else { break };
            worked = true;
            for done in &done[..count] {
                let Some(pair) = pairs.get_mut(&done.qp_num) else { continue };
                let shared = pair.shared_queue.and_then(|queue| shared_queues.get_mut(&queue));
                if let Some(entry) = pair.complete_request(done, shared) {
                    // The device does not report whether the sender has asked for an event.
                    self.is_urgent |= entry.status != Status::Success || done.wr_id & RECEIVE_BIT != 0;
                    let _ = self.ring.push(&CompletionCell::Entry(entry).encode_cell());
                }
            }
            if count < room {
                break;
            }
        }
        worked
    }

    /// Shows the program what was put into the ring, and wakes it if it waits.
    pub(super) fn publish(&mut self, channels: &mut HashMap<u32, EventSocket>) {
        let urgent = std::mem::take(&mut self.is_urgent);
        let wakes = if urgent { self.ring.publish() } else { self.ring.publish_quietly() };
        if wakes && let Some(channel) = self.channel.and_then(|channel| channels.get_mut(&channel)) {
            channel.send_event(self.event_number.to_ne_bytes().to_vec());
        }
    }
}

const EMPTY_COMPLETION: IbvWc = IbvWc {
    wr_id: 0,
    status: 0,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    imm_data: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// Takes all cells out of a ring that are in it now.
fn discard_cells(ring: &mut RingReceiver) {
    for _ in 0..ring.cells() {
        if !matches!(ring.pop(), Ok(Some(_))) {
            break;
        }
    }
}
