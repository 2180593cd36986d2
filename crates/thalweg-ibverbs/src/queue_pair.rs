//! Queue pairs, shared receive queues, requests.

use crate::abi::{
    IbvMwBindInfo, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, IbvSrqAttr,
    IbvSrqInitAttr, PostRecv, PostSend, PostSrqRecv, QPT_RC, WrAtomic, WrBind, WrRdma, WrTarget, op, opcode,
};
use crate::completion::CompletionQueue;
use crate::context::report_leak;
use crate::library::{IbverbsError, check_result, last_error};
use crate::memory::Domain;
use libc::{c_int, c_uint, c_void};
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;

/// Flags of a send request (`ibv_send_flags`). Inline data have a form of their own ([`PostedData::Inline`]).
pub const SEND_FENCE: u32 = 1;
/// Has a completion also if it succeeds.
pub const SEND_SIGNALED: u32 = 1 << 1;
/// Asks for an event at the peer.
pub const SEND_SOLICITED: u32 = 1 << 2;
const SEND_INLINE: u32 = 1 << 3;

/// `IBV_SRQ_LIMIT`.
const SRQ_LIMIT: c_int = 1 << 1;

/// Set-up of a queue pair (`struct ibv_qp_init_attr`), which is a reliable connected one.
#[derive(Debug, Clone, Copy)]
pub struct QueuePairSetup<'a> {
    /// Completion queue of the send queue.
    pub send_completions: &'a Arc<CompletionQueue>,
    /// Completion queue of the receive queue.
    pub receive_completions: &'a Arc<CompletionQueue>,
    /// Shared receive queue, instead of one of its own.
    pub shared_queue: Option<&'a Arc<SharedQueue>>,
    /// Lengths of the queues.
    pub lengths: IbvQpCap,
    /// Whether each send request has a completion.
    pub signal_all: bool,
}

/// A queue pair (`struct ibv_qp`).
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) pointer: NonNull<IbvQp>,
    domain: Arc<Domain>,
    post_send: PostSend,
    post_receive: PostRecv,
    _completions: [Arc<CompletionQueue>; 2],
    _shared_queue: Option<Arc<SharedQueue>>,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// Operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "names are those of ibv_wr_opcode")]
pub enum Opcode {
    Write,
    WriteWithImmediate,
    Send,
    SendWithImmediate,
    SendWithInvalidate,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Opcode {
    fn number(self) -> c_int {
        match self {
            Self::Write => opcode::WRITE,
            Self::WriteWithImmediate => opcode::WRITE_WITH_IMM,
            Self::Send => opcode::SEND,
            Self::SendWithImmediate => opcode::SEND_WITH_IMM,
            Self::SendWithInvalidate => opcode::SEND_WITH_INV,
            Self::Read => opcode::READ,
            Self::CompareSwap => opcode::CMP_AND_SWP,
            Self::FetchAdd => opcode::FETCH_AND_ADD,
        }
    }
}

/// Data of a send request.
#[derive(Debug, Clone, Copy)]
pub enum PostedData<'a> {
    /// Registered memory. The device checks keys and ranges.
    Memory(&'a [IbvSge]),
    /// Bytes that are copied at once.
    Inline(&'a [u8]),
}

/// Place at the peer that a send request names.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "names are those of struct ibv_send_wr")]
pub enum WorkTarget {
    None,
    Remote { address: u64, key: u32 },
    Atomic { address: u64, key: u32, compare_add: u64, swap: u64 },
}

/// A send request (`struct ibv_send_wr`).
#[derive(Debug, Clone, Copy)]
pub struct SendWork<'a> {
    /// Number by which its completion names it.
    pub id: u64,
    /// Operation of the request.
    pub opcode: Opcode,
    /// [`SEND_FENCE`] and others.
    pub flags: u32,
    /// Immediate in network order, or the key to invalidate.
    pub immediate: u32,
    /// Data of this side.
    pub data: PostedData<'a>,
    /// Place at the peer.
    pub target: WorkTarget,
}

impl QueuePair {
    /// Creates a queue pair (`ibv_create_qp`).
    ///
    /// # Errors
    /// The device refuses, for a limit most likely.
    pub fn create(domain: &Arc<Domain>, setup: &QueuePairSetup<'_>) -> Result<Arc<Self>, IbverbsError> {
        let mut attributes = IbvQpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: setup.send_completions.pointer.as_ptr(),
            recv_cq: setup.receive_completions.pointer.as_ptr(),
            srq: setup.shared_queue.map_or(std::ptr::null_mut(), |queue| queue.pointer.as_ptr()),
            cap: setup.lengths,
            qp_type: QPT_RC,
            sq_sig_all: c_int::from(setup.signal_all),
        };
        // SAFETY: see the crate's documentation.
        let queue =
            unsafe { (domain.context.library.verbs.ibv_create_qp)(domain.pointer.as_ptr(), &raw mut attributes) };
        let Some(pointer) = NonNull::new(queue) else { return Err(last_error("ibv_create_qp")) };
        // SAFETY: the context of a queue pair has the functions of these types in its table.
        let (post_send, post_receive) = unsafe {
            let ops = &(*pointer.as_ref().context).ops;
            (
                std::mem::transmute::<*const c_void, PostSend>(ops[op::POST_SEND]),
                std::mem::transmute::<*const c_void, PostRecv>(ops[op::POST_RECV]),
            )
        };
        Ok(Arc::new(Self {
            pointer,
            domain: Arc::clone(domain),
            post_send,
            post_receive,
            _completions: [Arc::clone(setup.send_completions), Arc::clone(setup.receive_completions)],
            _shared_queue: setup.shared_queue.cloned(),
        }))
    }

    /// Returns the number of the queue pair.
    pub fn queue_number(&self) -> u32 {
        // SAFETY: see the crate's documentation.
        unsafe { self.pointer.as_ref().qp_num }
    }

    /// Returns the value by which events name the queue pair.
    pub fn token(&self) -> usize {
        self.pointer.addr().get()
    }

    /// Changes attributes, those in `mask` of `attr_mask` (`ibv_modify_qp`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn modify(&self, attributes: &IbvQpAttr, mask: c_int) -> Result<(), IbverbsError> {
        let mut attributes = *attributes;
        let modify = self.domain.context.library.verbs.ibv_modify_qp;
        // SAFETY: see the crate's documentation.
        check_result("ibv_modify_qp", unsafe { modify(self.pointer.as_ptr(), &raw mut attributes, mask) })
    }

    /// Posts a send request (`ibv_post_send`).
    ///
    /// # Errors
    /// The queue is full, or the device has no such operation, or not as many elements or bytes.
    pub fn post_send(&self, work: &SendWork<'_>) -> Result<(), Errno> {
        let mut flags: c_uint = work.flags & (SEND_FENCE | SEND_SIGNALED | SEND_SOLICITED);
        let element;
        let elements: &[IbvSge] = match work.data {
            PostedData::Memory(elements) => elements,
            PostedData::Inline(bytes) => {
                flags |= SEND_INLINE;
                // The library copies the bytes during the call; the key is not used.
                element = [IbvSge {
                    addr: bytes.as_ptr().expose_provenance() as u64,
                    length: u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?,
                    lkey: 0,
                }];
                &element
            }
        };
        let wr = match work.target {
            WorkTarget::None => WrTarget { rdma: WrRdma { remote_addr: 0, rkey: 0 } },
            WorkTarget::Remote { address, key } => WrTarget { rdma: WrRdma { remote_addr: address, rkey: key } },
            WorkTarget::Atomic { address, key, compare_add, swap } => {
                WrTarget { atomic: WrAtomic { remote_addr: address, compare_add, swap, rkey: key } }
            }
        };
        let bind_info = IbvMwBindInfo { mr: std::ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
        let mut request = IbvSendWr {
            wr_id: work.id,
            next: std::ptr::null_mut(),
            sg_list: elements.as_ptr(),
            num_sge: c_int::try_from(elements.len()).map_err(|_| Errno::INVAL)?,
            opcode: work.opcode.number(),
            send_flags: flags,
            imm_data: work.immediate,
            wr,
            remote_srqn: 0,
            bind_mw: WrBind { mw: std::ptr::null_mut(), rkey: 0, bind_info },
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: see the crate's documentation. Operations with pointers of their own (windows, segmentation) cannot be named.
        let result = unsafe { (self.post_send)(self.pointer.as_ptr(), &raw mut request, &raw mut refused) };
        post_result(result)
    }

    /// Posts a receive (`ibv_post_recv`).
    ///
    /// # Errors
    /// The queue is full, or not made for as many elements.
    pub fn post_receive(&self, id: u64, elements: &[IbvSge]) -> Result<(), Errno> {
        let mut request = receive_request(id, elements)?;
        let mut refused = std::ptr::null_mut();
        // SAFETY: see the crate's documentation.
        post_result(unsafe { (self.post_receive)(self.pointer.as_ptr(), &raw mut request, &raw mut refused) })
    }
}

fn receive_request(id: u64, elements: &[IbvSge]) -> Result<IbvRecvWr, Errno> {
    let num_sge = c_int::try_from(elements.len()).map_err(|_| Errno::INVAL)?;
    Ok(IbvRecvWr { wr_id: id, next: std::ptr::null_mut(), sg_list: elements.as_ptr(), num_sge })
}

/// Returns the result of posting: 0 or an error number, of either sign with some providers.
fn post_result(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        number => Err(Errno::from_raw_os_error(number.saturating_abs())),
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.domain.context.library.verbs.ibv_destroy_qp)(self.pointer.as_ptr()) };
        report_leak("ibv_destroy_qp", result);
    }
}

/// A shared receive queue (`struct ibv_srq`).
#[derive(Debug)]
pub struct SharedQueue {
    pointer: NonNull<IbvSrq>,
    domain: Arc<Domain>,
    post_receive: PostSrqRecv,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for SharedQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedQueue {}

impl SharedQueue {
    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn create(domain: &Arc<Domain>, receives: u32, sges: u32) -> Result<Arc<Self>, IbverbsError> {
        let attr = IbvSrqAttr { max_wr: receives, max_sge: sges, srq_limit: 0 };
        let mut attributes = IbvSrqInitAttr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: see the crate's documentation.
        let queue =
            unsafe { (domain.context.library.verbs.ibv_create_srq)(domain.pointer.as_ptr(), &raw mut attributes) };
        let Some(pointer) = NonNull::new(queue) else { return Err(last_error("ibv_create_srq")) };
        // SAFETY: the context of a queue has a function of this type in its table.
        let post_receive = unsafe {
            let ops = &(*pointer.as_ref().context).ops;
            std::mem::transmute::<*const c_void, PostSrqRecv>(ops[op::POST_SRQ_RECV])
        };
        Ok(Arc::new(Self { pointer, domain: Arc::clone(domain), post_receive }))
    }

    /// Returns the value by which events name the queue.
    pub fn token(&self) -> usize {
        self.pointer.addr().get()
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// As [`QueuePair::post_receive`].
    pub fn post_receive(&self, id: u64, elements: &[IbvSge]) -> Result<(), Errno> {
        let mut request = receive_request(id, elements)?;
        let mut refused = std::ptr::null_mut();
        // SAFETY: see the crate's documentation.
        post_result(unsafe { (self.post_receive)(self.pointer.as_ptr(), &raw mut request, &raw mut refused) })
    }

    /// Asks for one event when fewer receives are posted (`ibv_modify_srq`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn set_limit(&self, limit: u32) -> Result<(), IbverbsError> {
        let mut attributes = IbvSrqAttr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let modify = self.domain.context.library.verbs.ibv_modify_srq;
        // SAFETY: see the crate's documentation.
        check_result("ibv_modify_srq", unsafe { modify(self.pointer.as_ptr(), &raw mut attributes, SRQ_LIMIT) })
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.domain.context.library.verbs.ibv_destroy_srq)(self.pointer.as_ptr()) };
        report_leak("ibv_destroy_srq", result);
    }
}
