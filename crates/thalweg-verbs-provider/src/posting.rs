//! Work requests: lists of C become requests of the RNIC.

use crate::abi::{IbvMwBindInfo, IbvQp, IbvRecvWr, IbvSendWr, IbvSge, IbvSrq, opcode};
use crate::queue_pair::{Pair, pair_of};
use crate::shared_queue::shared_queue_of;
use libc::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use thalweg_rdma::{Access, Data, PostError, RemoteAddress, SendFlags, SendRequest, Sge, Work};

/// Most elements of a request, and most bytes of inline data: those of the RNIC.
pub(crate) const MAX_SGES: usize = 16;
pub(crate) const MAX_INLINE_BYTES: usize = 256;

/// Flag of inline data.
const SEND_INLINE: c_uint = 1 << 3;

/// Returns the error number by which C names a request that was not posted. Where that says too little, a message does.
pub(crate) fn post_error_number(error: &PostError) -> c_int {
    if matches!(error, PostError::QueueFull { .. }) {
        return libc::ENOMEM;
    }
    if POST_ERRORS.fetch_add(1, Ordering::Relaxed) < MAX_POST_MESSAGES {
        eprintln!("thalweg: a work request was not posted: {error}");
    }
    libc::EINVAL
}

/// Requests that were refused, and messages about them.
static POST_ERRORS: AtomicU32 = AtomicU32::new(0);
const MAX_POST_MESSAGES: u32 = 8;

/// Elements of a request, copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements {
    list: [Sge; MAX_SGES],
    count: usize,
}

impl Elements {
    const EMPTY: Self = Self { list: [Sge { address: 0, bytes: 0, stag: 0 }; MAX_SGES], count: 0 };

    /// Copies a list of C.
    ///
    /// # Safety
    /// `list` has `count` elements.
    pub(crate) unsafe fn copy_list(list: *const IbvSge, count: c_int) -> Result<Self, c_int> {
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_SGES).ok_or(libc::EINVAL)?;
        let mut copy = Self { count, ..Self::EMPTY };
        for (at, element) in copy.list[..count].iter_mut().enumerate() {
            // SAFETY: as the caller's.
            let IbvSge { addr, length, lkey } = unsafe { list.add(at).read() };
            *element = Sge { address: addr, bytes: length, stag: lkey };
        }
        Ok(copy)
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        &self.list[..self.count]
    }

    fn single(&self) -> Result<Sge, c_int> {
        if let [element] = self.as_slice() { Ok(*element) } else { Err(libc::EINVAL) }
    }

    /// Copies what the elements lead to: data that is sent with the request. Their keys do not count.
    ///
    /// # Safety
    /// The elements lead to memory of the program.
    unsafe fn copy_inline<'b>(&self, buffer: &'b mut [u8; MAX_INLINE_BYTES]) -> Result<&'b [u8], c_int> {
        let mut filled = 0;
        for element in self.as_slice() {
            let bytes = element.bytes as usize;
            let place = buffer.get_mut(filled..).and_then(|rest| rest.get_mut(..bytes)).ok_or(libc::EINVAL)?;
            // SAFETY: as the caller's.
            unsafe { copy_program_bytes(element.address, place) };
            filled += bytes;
        }
        Ok(&buffer[..filled])
    }
}

/// Copies bytes of the program.
///
/// # Safety
/// There are `to.len()` bytes at `address`.
pub(crate) unsafe fn copy_program_bytes(address: u64, to: &mut [u8]) {
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: as the caller's; the program's memory is none of this library's.
    unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut IbvQp,
    mut request: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: see the crate's documentation.
    let pair = unsafe { pair_of(qp) };
    while !request.is_null() {
        // SAFETY: as above.
        let found = unsafe { &*request };
        // SAFETY: as above.
        if let Err(error) = unsafe { post_one(pair, found) } {
            // SAFETY: as above.
            unsafe { bad.write(request) };
            return error;
        }
        request = found.next;
    }
    0
}

/// # Safety
/// As for all calls.
unsafe fn post_one(pair: &Pair, request: &IbvSendWr) -> Result<(), c_int> {
    // SAFETY: as the caller's.
    let elements = unsafe { Elements::copy_list(request.sg_list, request.num_sge) }?;
    let mut buffer = [0; MAX_INLINE_BYTES];
    let data = if request.send_flags & SEND_INLINE == 0 {
        Data::Memory(elements.as_slice())
    } else {
        // SAFETY: as the caller's.
        Data::Inline(unsafe { elements.copy_inline(&mut buffer) }?)
    };
    // In network order, as C has it.
    let immediate = u32::from_be(request.imm_data);
    // SAFETY: any bytes are numbers; which of them count is the operation's.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let remote = RemoteAddress { address: rdma.remote_addr, stag: rdma.rkey };
    let word = RemoteAddress { address: atomic.remote_addr, stag: atomic.rkey };
    let work = match request.opcode {
        opcode::WRITE => Work::Write { data, to: remote, immediate: None },
        opcode::WRITE_WITH_IMM => Work::Write { data, to: remote, immediate: Some(immediate) },
        opcode::SEND => Work::Send { data, immediate: None },
        opcode::SEND_WITH_IMM => Work::Send { data, immediate: Some(immediate) },
        opcode::SEND_WITH_INV => Work::SendWithInvalidate { data, stag: request.imm_data },
        opcode::READ => Work::Read { into: elements.as_slice(), from: remote },
        opcode::FETCH_AND_ADD => Work::FetchAdd { into: elements.single()?, at: word, add: atomic.compare_add },
        opcode::CMP_AND_SWP => {
            let (compare, swap) = (atomic.compare_add, atomic.swap);
            Work::CompareSwap { into: elements.single()?, at: word, compare, swap }
        }
        opcode::LOCAL_INV => Work::LocalInvalidate { stag: request.imm_data },
        opcode::BIND_MW => {
            let bind = &request.bind_mw;
            // SAFETY: as the caller's.
            let work = unsafe { bind_work(bind.rkey, &bind.bind_info) };
            post_work(pair, request.wr_id, request.send_flags, work)?;
            // SAFETY: as the caller's.
            unsafe { (*bind.mw).rkey = bind.rkey };
            return Ok(());
        }
        _ => return Err(libc::EINVAL),
    };
    post_work(pair, request.wr_id, request.send_flags, work)
}

fn post_work(pair: &Pair, id: u64, flags: c_uint, work: Work<'_>) -> Result<(), c_int> {
    let request = SendRequest { id, flags: send_flags(flags), work };
    pair.queue.post_send(&request).map_err(|error| post_error_number(&error))
}

/// Returns the flags that mean something here.
pub(crate) fn send_flags(flags: c_uint) -> SendFlags {
    SendFlags::from_bits_truncate(flags as u8) - SendFlags::INLINE
}

/// # Safety
/// As for all calls.
pub(crate) unsafe fn bind_work<'a>(new_stag: u32, bind: &IbvMwBindInfo) -> Work<'a> {
    // SAFETY: as the caller's. Without a region, the window is unbound.
    let region_stag = if bind.mr.is_null() { 0 } else { unsafe { (*bind.mr).lkey } };
    let access = Access::from_bits_truncate(bind.mw_access_flags);
    Work::BindWindow { new_stag, region_stag, address: bind.addr, bytes: bind.length, access }
}

/// Posts the binding of a window. Returns an error number.
///
/// # Safety
/// As for all calls.
pub(crate) unsafe fn post_bind(qp: *mut IbvQp, id: u64, flags: c_uint, new_stag: u32, bind: &IbvMwBindInfo) -> c_int {
    // SAFETY: as the caller's.
    let (pair, work) = unsafe { (pair_of(qp), bind_work(new_stag, bind)) };
    post_work(pair, id, flags, work).err().unwrap_or(0)
}

pub(crate) unsafe extern "C" fn post_recv(qp: *mut IbvQp, request: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: see the crate's documentation.
    let pair = unsafe { pair_of(qp) };
    // SAFETY: as above.
    unsafe { post_receives(request, bad, |id, elements| pair.queue.post_receive(id, elements)) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut IbvSrq,
    request: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: see the crate's documentation.
    let queue = unsafe { shared_queue_of(srq) };
    // SAFETY: as above.
    unsafe { post_receives(request, bad, |id, elements| queue.post_receive(id, elements)) }
}

/// # Safety
/// As for all calls.
unsafe fn post_receives(
    mut request: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
    post: impl Fn(u64, &[Sge]) -> Result<(), PostError>,
) -> c_int {
    while !request.is_null() {
        // SAFETY: as the caller's.
        let found = unsafe { &*request };
        // SAFETY: as the caller's.
        let elements = unsafe { Elements::copy_list(found.sg_list, found.num_sge) };
        let posted = elements
            .and_then(|elements| post(found.wr_id, elements.as_slice()).map_err(|error| post_error_number(&error)));
        if let Err(error) = posted {
            // SAFETY: as the caller's.
            unsafe { bad.write(request) };
            return error;
        }
        request = found.next;
    }
    0
}
