//! Requests and completions by the calls of `struct ibv_qp_ex` and `struct ibv_cq_ex`, which programs call one by one instead of
//! passing structs.

use crate::abi::{IbvCqEx, IbvDataBuf, IbvMw, IbvMwBindInfo, IbvQpEx, IbvSge};
use crate::completion::{Queue, completion_flags, immediate_word, vendor_error};
use crate::posting::{Elements, MAX_INLINE_BYTES, bind_work, copy_program_bytes, post_error_number, send_flags};
use crate::queue_pair::Pair;
use libc::{c_int, c_uint, c_void};
use thalweg_rdma::{Completion, Data, RemoteAddress, SendFlags, SendRequest, Sge, Work};

/// Bit of `verbs_qp.comp_mask`: the queue pair has these calls.
const QP_EX: usize = 2;

/// Requests that are being put together.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    requests: Vec<Pending>,
    error: c_int,
}

/// A request that is being put together: its data comes after its operation.
#[derive(Debug)]
struct Pending {
    id: u64,
    flags: SendFlags,
    operation: Operation,
    data: PendingData,
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Write(RemoteAddress, Option<u32>),
    Send(Option<u32>),
    SendWithInvalidate(u32),
    Read(RemoteAddress),
    FetchAdd(RemoteAddress, u64),
    CompareSwap(RemoteAddress, u64, u64),
    LocalInvalidate(u32),
    Bind(Work<'static>),
}

#[derive(Debug)]
enum PendingData {
    Memory(Vec<Sge>),
    Inline(Vec<u8>),
}

impl From<Elements> for PendingData {
    fn from(elements: Elements) -> Self {
        Self::Memory(elements.as_slice().to_vec())
    }
}

impl Pending {
    fn memory(&self) -> Result<&[Sge], c_int> {
        if let PendingData::Memory(elements) = &self.data { Ok(elements) } else { Err(libc::EINVAL) }
    }

    fn single(&self) -> Result<Sge, c_int> {
        if let [element] = self.memory()? { Ok(*element) } else { Err(libc::EINVAL) }
    }

    fn to_request(&self) -> Result<SendRequest<'_>, c_int> {
        let data = match &self.data {
            PendingData::Memory(elements) => Data::Memory(elements),
            PendingData::Inline(bytes) => Data::Inline(bytes),
        };
        let work = match self.operation {
            Operation::Write(to, immediate) => Work::Write { data, to, immediate },
            Operation::Send(immediate) => Work::Send { data, immediate },
            Operation::SendWithInvalidate(stag) => Work::SendWithInvalidate { data, stag },
            Operation::Read(from) => Work::Read { into: self.memory()?, from },
            Operation::FetchAdd(at, add) => Work::FetchAdd { into: self.single()?, at, add },
            Operation::CompareSwap(at, compare, swap) => Work::CompareSwap { into: self.single()?, at, compare, swap },
            Operation::LocalInvalidate(stag) => Work::LocalInvalidate { stag },
            Operation::Bind(work) => work,
        };
        Ok(SendRequest { id: self.id, flags: self.flags, work })
    }
}

/// Returns the queue pair that contains a `struct ibv_qp_ex`.
///
/// # Safety
/// It was made by this library.
unsafe fn extended_pair<'a>(qp: *mut IbvQpEx) -> &'a Pair {
    // SAFETY: as the caller's; the struct is the first member.
    unsafe { &*qp.cast::<Pair>() }
}

/// Puts the calls into a queue pair.
pub(crate) fn set_request_calls(qp: &mut IbvQpEx) {
    qp.wr_atomic_cmp_swp = wr_atomic_cmp_swp as *const c_void;
    qp.wr_atomic_fetch_add = wr_atomic_fetch_add as *const c_void;
    qp.wr_bind_mw = wr_bind_mw as *const c_void;
    qp.wr_local_inv = wr_local_inv as *const c_void;
    qp.wr_rdma_read = wr_rdma_read as *const c_void;
    qp.wr_rdma_write = wr_rdma_write as *const c_void;
    qp.wr_rdma_write_imm = wr_rdma_write_imm as *const c_void;
    qp.wr_send = wr_send as *const c_void;
    qp.wr_send_imm = wr_send_imm as *const c_void;
    qp.wr_send_inv = wr_send_inv as *const c_void;
    qp.wr_set_inline_data = wr_set_inline_data as *const c_void;
    qp.wr_set_inline_data_list = wr_set_inline_data_list as *const c_void;
    qp.wr_set_sge = wr_set_sge as *const c_void;
    qp.wr_set_sge_list = wr_set_sge_list as *const c_void;
    qp.wr_start = wr_start as *const c_void;
    qp.wr_complete = wr_complete as *const c_void;
    qp.wr_abort = wr_abort as *const c_void;
    // The word after the last call is `verbs_qp.comp_mask`. rdma-core 44 has one call less than 56.
    qp.wr_later = [QP_EX, QP_EX, 0, 0].map(std::ptr::without_provenance);
}

/// Begins a request.
///
/// # Safety
/// As for [`extended_pair`].
unsafe fn begin(qp: *mut IbvQpEx, operation: Operation) {
    // SAFETY: as the caller's.
    let pair = unsafe { extended_pair(qp) };
    let (id, flags) = (pair.base.ex.wr_id, send_flags(pair.base.ex.wr_flags));
    pair.batch.lock().requests.push(Pending { id, flags, operation, data: PendingData::Memory(Vec::new()) });
}

/// Sets the data of the last request.
///
/// # Safety
/// As for [`extended_pair`].
unsafe fn set_data(qp: *mut IbvQpEx, data: Result<PendingData, c_int>) {
    // SAFETY: as the caller's.
    let mut batch = unsafe { extended_pair(qp) }.batch.lock();
    let batch = &mut *batch;
    match (data, batch.requests.last_mut()) {
        (Ok(data), Some(last)) => last.data = data,
        (Err(error), _) => batch.error = error,
        (Ok(_), None) => batch.error = libc::EINVAL,
    }
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $kind:ty),*) => $operation:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut IbvQpEx $(, $argument: $kind)*) {
            // SAFETY: see the crate's documentation.
            unsafe { begin(qp, $operation) };
        })*
    };
}

calls! {
    wr_rdma_write(stag: u32, address: u64) => Operation::Write(RemoteAddress { address, stag }, None);
    wr_rdma_write_imm(stag: u32, address: u64, immediate: u32) =>
        Operation::Write(RemoteAddress { address, stag }, Some(u32::from_be(immediate)));
    wr_rdma_read(stag: u32, address: u64) => Operation::Read(RemoteAddress { address, stag });
    wr_send() => Operation::Send(None);
    wr_send_imm(immediate: u32) => Operation::Send(Some(u32::from_be(immediate)));
    wr_send_inv(stag: u32) => Operation::SendWithInvalidate(stag);
    wr_local_inv(stag: u32) => Operation::LocalInvalidate(stag);
    wr_atomic_fetch_add(stag: u32, address: u64, add: u64) =>
        Operation::FetchAdd(RemoteAddress { address, stag }, add);
    wr_atomic_cmp_swp(stag: u32, address: u64, compare: u64, swap: u64) =>
        Operation::CompareSwap(RemoteAddress { address, stag }, compare, swap);
}

unsafe extern "C" fn wr_bind_mw(qp: *mut IbvQpEx, window: *mut IbvMw, new_stag: u32, bind: *const IbvMwBindInfo) {
    // SAFETY: see the crate's documentation.
    unsafe {
        begin(qp, Operation::Bind(bind_work(new_stag, &*bind)));
        (*window).rkey = new_stag;
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, stag: u32, address: u64, length: u32) {
    let element = IbvSge { addr: address, length, lkey: stag };
    // SAFETY: see the crate's documentation.
    unsafe { set_data(qp, Elements::copy_list(&raw const element, 1).map(PendingData::from)) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, count: usize, list: *const IbvSge) {
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: see the crate's documentation.
    unsafe { set_data(qp, Elements::copy_list(list, count).map(PendingData::from)) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, address: *const c_void, length: usize) {
    let buffer = IbvDataBuf { addr: address, length };
    // SAFETY: see the crate's documentation.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut IbvQpEx, count: usize, list: *const IbvDataBuf) {
    let mut bytes = Vec::new();
    let mut data = Ok(());
    for at in 0..count {
        // SAFETY: see the crate's documentation.
        let buffer = unsafe { list.add(at).read() };
        let (filled, length) = (bytes.len(), buffer.length);
        if length > MAX_INLINE_BYTES - filled {
            data = Err(libc::EINVAL);
            break;
        }
        bytes.resize(filled + length, 0);
        // SAFETY: as above.
        unsafe { copy_program_bytes(buffer.addr.expose_provenance() as u64, &mut bytes[filled..]) };
    }
    // SAFETY: as above.
    unsafe { set_data(qp, data.map(|()| PendingData::Inline(bytes))) };
}

unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: see the crate's documentation.
    let mut batch = unsafe { extended_pair(qp) }.batch.lock();
    batch.requests.clear();
    batch.error = 0;
}

unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: see the crate's documentation.
    let pair = unsafe { extended_pair(qp) };
    let mut batch = pair.batch.lock();
    if batch.error != 0 {
        return batch.error;
    }
    let requests: Result<Vec<SendRequest<'_>>, c_int> = batch.requests.iter().map(Pending::to_request).collect();
    let result = match requests {
        Ok(requests) => pair.queue.post_sends(&requests).map_err(|(_, error)| post_error_number(&error)),
        Err(error) => Err(error),
    };
    batch.requests.clear();
    result.err().unwrap_or(0)
}

unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: see the crate's documentation.
    unsafe { wr_start(qp) };
}

/// Puts the calls into a completion queue.
pub(crate) fn set_completion_calls(cq: &mut IbvCqEx) {
    cq.start_poll = start_poll as *const c_void;
    cq.next_poll = next_poll as *const c_void;
    cq.end_poll = end_poll as *const c_void;
    cq.read_opcode = read_opcode as *const c_void;
    cq.read_vendor_err = read_vendor_err as *const c_void;
    cq.read_byte_len = read_byte_len as *const c_void;
    cq.read_imm_data = read_imm_data as *const c_void;
    cq.read_qp_num = read_qp_num as *const c_void;
    cq.read_wc_flags = read_wc_flags as *const c_void;
    cq.read_src_qp = read_zero as *const c_void;
    cq.read_slid = read_zero as *const c_void;
    cq.read_sl = read_zero as *const c_void;
    cq.read_dlid_path_bits = read_zero as *const c_void;
}

/// # Safety
/// The queue was made by this library.
unsafe fn extended_queue<'a>(cq: *mut IbvCqEx) -> &'a Queue {
    // SAFETY: as the caller's; the struct is the first member.
    unsafe { &*cq.cast::<Queue>() }
}

unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, _attributes: *const c_void) -> c_int {
    // SAFETY: see the crate's documentation.
    let queue = unsafe { extended_queue(cq) };
    let found = queue.poll_one();
    // SAFETY: as above.
    unsafe { show_completion(cq, queue, found) }
}

unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: see the crate's documentation.
    let queue = unsafe { extended_queue(cq) };
    let found = queue.queue.take_ready().map_err(|_| ());
    // SAFETY: as above.
    unsafe { show_completion(cq, queue, found) }
}

/// Shows the program a completion: two of its members in the struct, the others by calls.
///
/// # Safety
/// As for all calls; one thread at a time polls a queue by these calls.
unsafe fn show_completion(cq: *mut IbvCqEx, queue: &Queue, found: Result<Option<Completion>, ()>) -> c_int {
    match found {
        Ok(Some(completion)) => {
            // SAFETY: as the caller's. Nothing else here reads or writes these members.
            unsafe {
                (&raw mut (*cq).wr_id).write(completion.request_id());
                (&raw mut (*cq).status).write(c_int::from(completion.status() as u8));
            }
            *queue.polled.lock() = Some(completion);
            0
        }
        Ok(None) => libc::ENOENT,
        Err(()) => libc::EIO,
    }
}

unsafe extern "C" fn end_poll(_cq: *mut IbvCqEx) {}

macro_rules! readers {
    ($($name:ident -> $kind:ty = $read:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $kind {
            // SAFETY: see the crate's documentation.
            let queue = unsafe { extended_queue(cq) };
            let read: fn(&Queue, &Completion) -> $kind = $read;
            queue.polled.lock().as_ref().map_or(0, |completion| read(queue, completion))
        })*
    };
}

readers! {
    read_opcode -> c_int = |_, completion| c_int::from(completion.operation() as u8);
    read_vendor_err -> u32 = |_, completion| vendor_error(completion);
    read_byte_len -> u32 = |_, completion| completion.transferred_bytes();
    read_imm_data -> u32 = |_, completion| immediate_word(completion);
    read_qp_num -> u32 = |queue, completion| queue.number_of(completion.queue_number());
    read_wc_flags -> c_uint = |_, completion| completion_flags(completion);
    read_zero -> u32 = |_, _| 0;
}
