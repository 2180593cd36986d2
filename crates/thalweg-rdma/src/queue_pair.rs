//! Queue pairs and shared receive queues: posting.

use crate::completion::{CompletionQueue, duplicate_fd};
use crate::device::{DeviceInner, VerbsError};
use crate::driven::Rung;
use crate::memory::{DomainInner, ProtectionDomain};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use thalweg_arena::{PushError, Ring, RingSender};
use thalweg_rnic::{
    Access, Command, CommandError, CompletedOperation, CompletionEntry, Operation, QueueAttributes, QueueLengths,
    QueueState, ReceiveDescriptor, Reply, SendDescriptor, SendFlags, Sge, SgeList, receive_cells, receive_ring_cells,
    send_ring_cells,
};
use thiserror::Error;

/// Options of a queue pair.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Debug, Clone, Copy)]
pub struct QueuePairOptions<'a> {
    /// Completion queue of the send queue.
    pub send_completions: &'a CompletionQueue,
    /// Completion queue of the receive queue.
    pub receive_completions: &'a CompletionQueue,
    /// Shared receive queue, instead of one of its own.
    pub shared_queue: Option<&'a SharedReceiveQueue>,
    /// Lengths of both queues.
    pub lengths: QueueLengths,
    /// Whether each send request has a completion, signaled or not (`sq_sig_all`).
    pub signal_all: bool,
}

impl<'a> QueuePairOptions<'a> {
    /// Returns options with one completion queue for both queues.
    pub fn new(completions: &'a CompletionQueue) -> Self {
        Self {
            send_completions: completions,
            receive_completions: completions,
            shared_queue: None,
            lengths: QueueLengths::default(),
            signal_all: false,
        }
    }
}

/// A place in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address, as the peer registered it.
    pub address: u64,
    /// STag (`rkey`).
    pub stag: u32,
}

/// Data of a message.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// Registered memory.
    Memory(&'a [Sge]),
    /// Bytes that are copied when the request is posted.
    Inline(&'a [u8]),
}

/// Work of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Work<'a> {
    /// RDMA write.
    Write {
        /// Data of the message.
        data: Data<'a>,
        /// Destination at the peer.
        to: RemoteAddress,
        /// With an immediate, which consumes a receive of the peer.
        immediate: Option<u32>,
    },
    /// Send, which consumes a receive of the peer.
    Send {
        /// Data of the message.
        data: Data<'a>,
        /// With an immediate.
        immediate: Option<u32>,
    },
    /// Send that invalidates a memory window of type 2 of the peer.
    SendWithInvalidate {
        /// Data of the message.
        data: Data<'a>,
        /// STag of the window.
        stag: u32,
    },
    /// RDMA read.
    Read {
        /// Destination, with the right [`Access::LOCAL_WRITE`].
        into: &'a [Sge],
        /// Source at the peer.
        from: RemoteAddress,
    },
    /// Adds to 64 bits, in the machine's byte order, and returns what they were.
    FetchAdd {
        /// 8 bytes for the former value.
        into: Sge,
        /// The 64 bits.
        at: RemoteAddress,
        /// Number to add.
        add: u64,
    },
    /// Replaces 64 bits, in the machine's byte order, if they have a value, and returns what they were.
    CompareSwap {
        /// 8 bytes for the former value.
        into: Sge,
        /// The 64 bits.
        at: RemoteAddress,
        /// Value that they must have.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Binds a memory window.
    BindWindow {
        /// New STag of the window ([`next_window_stag`](crate::next_window_stag)).
        new_stag: u32,
        /// STag of the region, which has the right [`Access::WINDOW_BIND`].
        region_stag: u32,
        /// Address of the first byte, as the region was registered.
        address: u64,
        /// Length in bytes; 0 unbinds a window of type 1.
        bytes: u64,
        /// Rights of peers.
        access: Access,
    },
    /// Invalidates a memory window of type 2.
    LocalInvalidate {
        /// STag of the window.
        stag: u32,
    },
}

/// A send request.
#[doc(alias = "ibv_send_wr")]
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// Number by which its completion names it.
    pub id: u64,
    /// Flags. [`SendFlags::INLINE`] is set by [`Data::Inline`].
    pub flags: SendFlags,
    /// Work to do.
    pub work: Work<'a>,
}

impl<'a> SendRequest<'a> {
    /// Returns a request that has a completion.
    pub fn signaled(id: u64, work: Work<'a>) -> Self {
        Self { id, flags: SendFlags::SIGNALED, work }
    }

    fn encode_request(&self, lengths: &QueueLengths) -> Result<SendDescriptor, PostError> {
        let mut descriptor = SendDescriptor {
            id: self.id,
            operation: Operation::Send,
            flags: self.flags.difference(SendFlags::INLINE),
            remote_address: 0,
            remote_stag: 0,
            stag: 0,
            immediate: 0,
            swap: 0,
            sges: SgeList::default(),
            inline: Vec::new(),
        };
        let d = &mut descriptor;
        match self.work {
            Work::Write { data, to, immediate } => {
                d.operation = if immediate.is_some() { Operation::WriteWithImmediate } else { Operation::Write };
                (d.remote_address, d.remote_stag) = (to.address, to.stag);
                d.immediate = u64::from(immediate.unwrap_or(0));
                set_data(d, data, lengths)?;
            }
            Work::Send { data, immediate } => {
                d.operation = if immediate.is_some() { Operation::SendWithImmediate } else { Operation::Send };
                d.immediate = u64::from(immediate.unwrap_or(0));
                set_data(d, data, lengths)?;
            }
            Work::SendWithInvalidate { data, stag } => {
                (d.operation, d.stag) = (Operation::SendWithInvalidate, stag);
                set_data(d, data, lengths)?;
            }
            Work::Read { into, from } => {
                d.operation = Operation::Read;
                (d.remote_address, d.remote_stag) = (from.address, from.stag);
                set_data(d, Data::Memory(into), lengths)?;
            }
            Work::FetchAdd { into, at, add } => {
                (d.operation, d.immediate) = (Operation::FetchAdd, add);
                (d.remote_address, d.remote_stag) = (at.address, at.stag);
                d.sges = SgeList::from_element(into);
            }
            Work::CompareSwap { into, at, compare, swap } => {
                (d.operation, d.immediate, d.swap) = (Operation::CompareSwap, compare, swap);
                (d.remote_address, d.remote_stag) = (at.address, at.stag);
                d.sges = SgeList::from_element(into);
            }
            Work::BindWindow { new_stag, region_stag, address, bytes, access } => {
                (d.operation, d.stag, d.remote_stag) = (Operation::BindWindow, new_stag, region_stag);
                (d.remote_address, d.swap, d.immediate) = (address, bytes, u64::from(access.bits()));
            }
            Work::LocalInvalidate { stag } => (d.operation, d.stag) = (Operation::LocalInvalidate, stag),
        }
        Ok(descriptor)
    }
}

fn set_data(descriptor: &mut SendDescriptor, data: Data<'_>, lengths: &QueueLengths) -> Result<(), PostError> {
    match data {
        Data::Memory(elements) => descriptor.sges = checked_elements(elements, lengths.send_sges)?,
        Data::Inline(bytes) => {
            if bytes.len() > lengths.inline_bytes as usize {
                return Err(PostError::InlineTooLong { bytes: bytes.len(), limit: lengths.inline_bytes });
            }
            descriptor.flags |= SendFlags::INLINE;
            descriptor.inline = bytes.to_vec();
        }
    }
    Ok(())
}

fn checked_elements(elements: &[Sge], limit: u32) -> Result<SgeList, PostError> {
    let too_many = PostError::TooManyElements { elements: elements.len(), limit };
    if elements.len() > limit as usize {
        return Err(too_many);
    }
    SgeList::new(elements).ok_or(too_many)
}

/// Reason why a request was not posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// As many requests are outstanding as the queue holds.
    #[error("{limit} requests are outstanding, which is the length of the queue: poll for completions first")]
    QueueFull {
        /// Length of the queue.
        limit: u32,
    },
    /// The request has more elements than the queue was made for.
    #[error("the request has {elements} scatter-gather elements, the queue was created for {limit}")]
    TooManyElements {
        /// Elements of the request.
        elements: usize,
        /// Limit of the queue.
        limit: u32,
    },
    /// The request has more own data than the queue was made for.
    #[error("the request has {bytes} bytes of inline data, the queue was created for {limit}")]
    InlineTooLong {
        /// Bytes of the request.
        bytes: usize,
        /// Limit of the queue.
        limit: u32,
    },
    /// The queue pair accepts no requests of this kind in its state.
    #[error("the queue pair is in state {0}: sends are posted from RTS on, receives from INIT on")]
    State(QueueState),
    /// The queue pair has a shared receive queue.
    #[error("the queue pair has a shared receive queue: post receives there")]
    SharedQueue,
    /// The RDMA device has no such operation.
    #[error("{operation}: not available on this RDMA device: {reason}")]
    Unsupported {
        /// Operation of the request.
        operation: Operation,
        /// Reason, in words.
        reason: &'static str,
    },
    /// The ring's memory was damaged.
    #[error("the queue's ring is damaged: its index is impossible")]
    Damaged,
}

/// A queue pair (`create_qp`). Dropping it destroys it: no access by it is under way afterwards, and its completions are not
/// returned any more.
#[doc(alias = "ibv_qp")]
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) inner: Arc<QueuePairInner>,
}

#[derive(Debug)]
pub(crate) struct QueuePairInner {
    domain: Arc<DomainInner>,
    pub(crate) number: u32,
    lengths: QueueLengths,
    send_completions: CompletionQueue,
    receive_completions: CompletionQueue,
    shared_queue: Option<SharedReceiveQueue>,
    posted: Arc<PostedQueues>,
    /// State as this side knows it; the RNIC may have left it for the error state.
    state: AtomicU8,
}

/// Both queues of a queue pair, with the requests that have not completed.
#[derive(Debug)]
pub(crate) struct PostedQueues {
    send: Mutex<PostedQueue>,
    receive: Option<Mutex<PostedQueue>>,
    send_completions: u32,
    receive_completions: u32,
}

#[derive(Debug)]
struct PostedQueue {
    ring: RingSender,
    limit: u32,
    /// Requests that have not completed, and index of the first of them.
    outstanding: VecDeque<(u64, CompletedOperation)>,
    first: u32,
}

impl PostedQueue {
    fn new(ring: Ring, limit: u32) -> Self {
        let outstanding = VecDeque::with_capacity(limit as usize);
        Self { ring: ring.into_sender(), limit, outstanding, first: 0 }
    }

    fn check_room(&self) -> Result<(), PostError> {
        if self.outstanding.len() < self.limit as usize {
            Ok(())
        } else {
            Err(PostError::QueueFull { limit: self.limit })
        }
    }

    /// Drops all requests up to that with `index`, which has completed.
    #[inline]
    fn retire_through(&mut self, index: u32) {
        let count = (index.wrapping_sub(self.first) as usize).saturating_add(1);
        if count <= self.outstanding.len() {
            for _ in 0..count {
                self.outstanding.pop_front();
            }
            self.first = index.wrapping_add(1);
        }
    }
}

impl PostedQueues {
    /// Notes that a request has completed.
    #[inline]
    pub(crate) fn retire_request(&self, entry: &CompletionEntry) {
        if is_receive(entry.operation) {
            if let Some(receive) = &self.receive {
                receive.lock().retire_through(entry.index);
            }
        } else {
            self.send.lock().retire_through(entry.index);
        }
    }

    /// Takes all requests whose completions go to a completion queue.
    pub(crate) fn take_posted(&self, completions: u32) -> Vec<(u64, CompletedOperation)> {
        let mut posted = Vec::new();
        if self.send_completions == completions {
            posted.extend(self.send.lock().outstanding.drain(..));
        }
        if self.receive_completions == completions
            && let Some(receive) = &self.receive
        {
            posted.extend(receive.lock().outstanding.drain(..));
        }
        posted
    }
}

fn is_receive(operation: CompletedOperation) -> bool {
    matches!(operation, CompletedOperation::Receive | CompletedOperation::ReceiveWriteWithImmediate)
}

impl ProtectionDomain {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_queue_pair(&self, options: &QueuePairOptions<'_>) -> Result<QueuePair, VerbsError> {
        let device = &self.inner.device;
        let lengths = options.lengths;
        check_lengths(device, &lengths)?;
        let send = Ring::create("rdma-send", send_ring_cells(&lengths))?;
        let mut fds = vec![duplicate_fd(send.fd())?];
        let receive = match options.shared_queue {
            Some(_) => None,
            None => {
                let ring = Ring::create("rdma-receive", receive_ring_cells(lengths.receives, lengths.receive_sges))?;
                fds.push(duplicate_fd(ring.fd())?);
                Some(Mutex::new(PostedQueue::new(ring, lengths.receives)))
            }
        };
        let (send_completions, receive_completions) =
            (options.send_completions.inner.handle, options.receive_completions.inner.handle);
        let command = Command::CreateQueuePair {
            domain: self.inner.handle,
            send_completions,
            receive_completions,
            shared_queue: options.shared_queue.map(|shared| shared.inner.handle),
            lengths,
            signal_all: options.signal_all,
        };
        let number = device.call_for_handle(command, fds)?;
        let send = Mutex::new(PostedQueue::new(send, lengths.send_requests));
        let posted = Arc::new(PostedQueues { send, receive, send_completions, receive_completions });
        options.send_completions.add_queue(number, &posted);
        options.receive_completions.add_queue(number, &posted);
        let inner = QueuePairInner {
            domain: Arc::clone(&self.inner),
            number,
            lengths,
            send_completions: options.send_completions.clone(),
            receive_completions: options.receive_completions.clone(),
            shared_queue: options.shared_queue.cloned(),
            posted,
            state: AtomicU8::new(QueueState::Reset as u8),
        };
        Ok(QueuePair { inner: Arc::new(inner) })
    }
}

/// Checks lengths before rings of them are made.
fn check_lengths(device: &DeviceInner, lengths: &QueueLengths) -> Result<(), VerbsError> {
    let limits = device.rnic_limits();
    let checks = [
        ("send requests of a queue pair", lengths.send_requests, limits.max_work_requests),
        ("receives of a queue pair", lengths.receives, limits.max_work_requests),
        ("scatter-gather elements", lengths.send_sges.max(lengths.receive_sges), limits.max_sges),
        ("bytes of a request's own data", lengths.inline_bytes, limits.max_inline_bytes),
    ];
    for (what, requested, limit) in checks {
        if requested > limit {
            let (limit, requested) = (u64::from(limit), u64::from(requested));
            return Err(CommandError::Limit { what: what.into(), limit, requested }.into());
        }
    }
    Ok(())
}

impl QueuePair {
    /// Returns the number by which completions and peers name the queue pair.
    #[doc(alias = "qp_num")]
    pub fn queue_number(&self) -> u32 {
        self.inner.number
    }

    /// Gives the queue pair, in state RESET, a number of 24 bits by which queue pairs of other RNICs find it at `address`, which
    /// is one of this machine. Programs exchange both by themselves, and name those of the peer in
    /// [`QueueAttributes::peer_queue`] and [`QueueAttributes::peer_address`].
    ///
    /// # Errors
    /// The state is another, or no UDP port can be had at the address.
    pub fn assign_number(&self, address: IpAddr) -> Result<u32, VerbsError> {
        let command = Command::NumberQueuePair { queue: self.inner.number, address };
        self.inner.domain.device.call_for_handle(command, Vec::new())
    }

    /// Brings the queue pair into a state; with attributes, sets them.
    ///
    /// ```text
    /// RESET → INIT → RTR → RTS ⇄ SQD      any state → ERR, RESET
    /// ```
    ///
    /// RTR needs [`QueueAttributes::peer_queue`]; connection management ([`connect`](Self::connect),
    /// [`ConnectionRequest::accept`](crate::ConnectionRequest::accept)) goes from INIT to RTS by itself. RESET drops all
    /// posted requests without completions, and completions that were not polled.
    ///
    /// # Errors
    /// The transition does not exist, an attribute exceeds a limit, or the RNIC has ended.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_state(&self, state: QueueState, attributes: Option<QueueAttributes>) -> Result<(), VerbsError> {
        let device = &self.inner.domain.device;
        if state == QueueState::Reset {
            // The RNIC empties both rings: nothing is posted meanwhile.
            let mut send = self.inner.posted.send.lock();
            let mut receive = self.inner.posted.receive.as_ref().map(|receive| receive.lock());
            let command = Command::ModifyQueuePair { queue: self.inner.number, state, attributes };
            device.call_for_done(command, Vec::new())?;
            for queue in [&mut *send].into_iter().chain(receive.as_deref_mut()) {
                queue.outstanding.clear();
                queue.first = 0;
            }
            drop((send, receive));
            self.inner.send_completions.discard_completions_of(self.inner.number);
            self.inner.receive_completions.discard_completions_of(self.inner.number);
        } else {
            let command = Command::ModifyQueuePair { queue: self.inner.number, state, attributes };
            device.call_for_done(command, Vec::new())?;
        }
        if state == QueueState::Init {
            // From INIT, only attributes are set: requests may be posted since a connection was accepted, or came up.
            let (reset, init) = (QueueState::Reset as u8, state as u8);
            let _ = self.inner.state.compare_exchange(reset, init, Ordering::Relaxed, Ordering::Relaxed);
        } else {
            self.note_state(state);
        }
        Ok(())
    }

    /// Returns state and attributes, as the RNIC has them.
    ///
    /// # Errors
    /// The RNIC has ended.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_state(&self) -> Result<(QueueState, QueueAttributes), VerbsError> {
        match self.inner.domain.device.call_rnic(Command::QueryQueuePair(self.inner.number), Vec::new())? {
            Reply::QueuePair { state, attributes } => Ok((state, attributes)),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Posts a send request (`post_sq`): without a system call while the RNIC is awake.
    ///
    /// # Errors
    /// The request was not posted. What is wrong with its memory or its peer shows in its completion.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.post_sends(std::slice::from_ref(request)).map_err(|(_, error)| error)
    }

    /// Posts several send requests, for which the doorbell is rung once.
    ///
    /// # Errors
    /// The index of the first request that was not posted, as `bad_wr`; those before it were.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        let state = self.noted_state();
        if matches!(state, QueueState::Reset | QueueState::Init | QueueState::ReadyToReceive) {
            return Err((0, PostError::State(state)));
        }
        let mut queue = self.inner.posted.send.lock();
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(error) = self.push_send(&mut queue, request) {
                result = Err((index, error));
                break;
            }
        }
        let sleeps = queue.ring.publish();
        drop(queue);
        self.inner.domain.device.ring_doorbell(Rung::Send(self.inner.number), sleeps);
        result
    }

    fn push_send(&self, queue: &mut PostedQueue, request: &SendRequest<'_>) -> Result<(), PostError> {
        queue.check_room()?;
        let descriptor = request.encode_request(&self.inner.lengths)?;
        if let Some(reason) = self.inner.domain.device.lacks_operation(descriptor.operation) {
            return Err(PostError::Unsupported { operation: descriptor.operation, reason });
        }
        descriptor.encode_cells(|cell| queue.ring.push(cell)).map_err(|error| ring_error(error, queue.limit))?;
        queue.outstanding.push_back((request.id, descriptor.operation.completed_operation()));
        Ok(())
    }

    /// Posts a receive (`post_rq`).
    ///
    /// # Errors
    /// The receive was not posted.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(&self, id: u64, into: &[Sge]) -> Result<(), PostError> {
        let state = self.noted_state();
        if state == QueueState::Reset {
            return Err(PostError::State(state));
        }
        let receive = self.inner.posted.receive.as_ref().ok_or(PostError::SharedQueue)?;
        let max_sges = self.inner.lengths.receive_sges;
        let sleeps = push_receive(&mut receive.lock(), id, into, max_sges)?;
        // A message may be waiting for it, or the queue pair may be in error.
        self.inner.domain.device.ring_doorbell(Rung::Receive(self.inner.number), sleeps);
        Ok(())
    }

    /// Returns the bytes that the peer has read by RDMA reads so far, as an embedded RNIC counts them; `None` for others,
    /// and while there is no peer at another RNIC.
    pub fn bytes_read_by_peer(&self) -> Option<u64> {
        self.inner.domain.device.bytes_read_by_peer(self.inner.number)
    }

    /// Returns the shared receive queue.
    pub fn shared_queue(&self) -> Option<&SharedReceiveQueue> {
        self.inner.shared_queue.as_ref()
    }

    pub(crate) fn rnic_device(&self) -> &Arc<DeviceInner> {
        &self.inner.domain.device
    }

    pub(crate) fn note_state(&self, state: QueueState) {
        self.inner.note_state(state);
    }

    fn noted_state(&self) -> QueueState {
        use QueueState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendDrained, SendError};
        let noted = self.inner.state.load(Ordering::Relaxed);
        let all = [Reset, Init, ReadyToReceive, ReadyToSend, SendDrained, SendError];
        all.into_iter().find(|state| *state as u8 == noted).unwrap_or(Error)
    }
}

impl QueuePairInner {
    pub(crate) fn note_state(&self, state: QueueState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        let _ = self.domain.device.call_rnic(Command::DestroyQueuePair(self.number), Vec::new());
        self.send_completions.remove_queue(self.number);
        self.receive_completions.remove_queue(self.number);
    }
}

fn push_receive(queue: &mut PostedQueue, id: u64, into: &[Sge], max_sges: u32) -> Result<bool, PostError> {
    queue.check_room()?;
    let descriptor = ReceiveDescriptor { id, sges: checked_elements(into, max_sges)? };
    descriptor.encode_cells(max_sges, |cell| queue.ring.push(cell)).map_err(|error| ring_error(error, queue.limit))?;
    queue.outstanding.push_back((id, CompletedOperation::Receive));
    Ok(queue.ring.publish())
}

fn ring_error(error: PushError, limit: u32) -> PostError {
    match error {
        PushError::Full => PostError::QueueFull { limit },
        PushError::Ring(_) => PostError::Damaged,
    }
}

/// A shared receive queue: receives for messages to any of its queue pairs. Clones are the same.
#[doc(alias = "ibv_srq")]
#[derive(Debug, Clone)]
pub struct SharedReceiveQueue {
    inner: Arc<SharedQueueInner>,
}

#[derive(Debug)]
struct SharedQueueInner {
    domain: Arc<DomainInner>,
    handle: u32,
    max_sges: u32,
    queue: Mutex<SharedRing>,
}

#[derive(Debug)]
struct SharedRing {
    ring: RingSender,
    cells_per_receive: u32,
    receives: u32,
}

impl Drop for SharedQueueInner {
    fn drop(&mut self) {
        let _ = self.domain.device.call_rnic(Command::DestroySharedQueue(self.handle), Vec::new());
    }
}

impl ProtectionDomain {
    /// Creates a shared receive queue for at least this number of receives of up to `sges` elements.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_shared_queue(&self, receives: u32, sges: u32) -> Result<SharedReceiveQueue, VerbsError> {
        let lengths = QueueLengths { receives, receive_sges: sges, ..QueueLengths::default() };
        check_lengths(&self.inner.device, &lengths)?;
        let ring = Ring::create("rdma-shared-receive", receive_ring_cells(receives, sges))?;
        let fd = duplicate_fd(ring.fd())?;
        let command = Command::CreateSharedQueue { domain: self.inner.handle, receives, sges };
        let handle = self.inner.device.call_for_handle(command, vec![fd])?;
        let queue = SharedRing { ring: ring.into_sender(), cells_per_receive: receive_cells(sges), receives };
        let (domain, queue) = (Arc::clone(&self.inner), Mutex::new(queue));
        Ok(SharedReceiveQueue { inner: Arc::new(SharedQueueInner { domain, handle, max_sges: sges, queue }) })
    }
}

impl SharedReceiveQueue {
    /// Returns the number of queue pairs that take their receives from here, and of clones of this.
    pub fn user_count(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The receive was not posted.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_receive(&self, id: u64, into: &[Sge]) -> Result<(), PostError> {
        let descriptor = ReceiveDescriptor { id, sges: checked_elements(into, self.inner.max_sges)? };
        let mut queue = self.inner.queue.lock();
        let limit = queue.receives;
        // All cells of a receive, or none: the ring's length is a multiple of neither, so look before the first.
        if queue.ring.free_cells().map_err(|_| PostError::Damaged)? < queue.cells_per_receive {
            return Err(PostError::QueueFull { limit });
        }
        descriptor
            .encode_cells(self.inner.max_sges, |cell| queue.ring.push(cell))
            .map_err(|error| ring_error(error, limit))?;
        let sleeps = queue.ring.publish();
        drop(queue);
        self.inner.domain.device.ring_doorbell(Rung::SharedReceive(self.inner.handle), sleeps);
        Ok(())
    }

    /// Asks for one event ([`AsyncEvent::SharedQueueLimit`](crate::AsyncEvent::SharedQueueLimit)) when a message leaves
    /// fewer than `limit` receives posted. 0: none.
    ///
    /// # Errors
    /// The RNIC has ended.
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let command = Command::SetSharedQueueLimit { queue: self.inner.handle, limit };
        self.inner.domain.device.call_for_done(command, Vec::new())
    }

    /// Returns the number by which events name the queue.
    pub fn queue_handle(&self) -> u32 {
        self.inner.handle
    }
}
