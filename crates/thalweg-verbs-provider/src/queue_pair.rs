//! Queue pairs: creation, states, attributes.

use crate::abi::{
    IbvAhAttr, IbvContext, IbvPd, IbvQp, IbvQpAttr, IbvQpCap, IbvQpInitAttr, IbvQpInitAttrEx, QP_INIT_CREATE_FLAGS,
    QP_INIT_PD, QP_INIT_SEND_OPS, QPT_RC, VerbsQp, attr_mask, qp_state,
};
use crate::completion::queue_of;
use crate::extended::{Batch, set_request_calls};
use crate::memory::domain_of;
use crate::rnic::Object;
use crate::shared_queue::shared_queue_of;
use crate::table::context_state;
use crate::{error_number, fail_null};
use libc::c_int;
use parking_lot::Mutex;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};
use thalweg_rdma::{Access, QueueAttributes, QueueLengths, QueuePair, QueuePairOptions, QueueState, Transport};

/// A queue pair.
#[repr(C)]
pub(crate) struct Pair {
    pub(crate) base: VerbsQp,
    pub(crate) queue: QueuePair,
    pub(crate) lengths: QueueLengths,
    signals_all: bool,
    attributes: Mutex<IbvQpAttr>,
    /// Requests between the calls `wr_start` and `wr_complete` of `ibv_qp_ex`.
    pub(crate) batch: Mutex<Batch>,
}

/// Least time that requests wait for a peer: programs start one after the other, and share processors.
const LEAST_PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which the RNIC goes on after a queue pair is destroyed: acknowledgements wait a little for an answer.
const FAREWELL_TIME: Duration = Duration::from_micros(500);

/// Bytes of inline data that a queue pair has room for, at least.
const LEAST_INLINE_BYTES: u32 = 64;

pub(crate) unsafe extern "C" fn create_qp(pd: *mut IbvPd, attributes: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: see the crate's documentation.
    let attributes = unsafe { &mut *attributes };
    // SAFETY: as above.
    let created = unsafe { create_pair(pd, attributes) };
    created.map_or_else(fail_null, |pair| pair.cast())
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut IbvContext,
    attributes: *mut IbvQpInitAttrEx,
) -> *mut IbvQp {
    // SAFETY: see the crate's documentation.
    let attributes = unsafe { &mut *attributes };
    // Flags may be named, and none of them set.
    let has_flags = attributes.comp_mask & QP_INIT_CREATE_FLAGS != 0 && attributes.create_flags != 0;
    if has_flags || attributes.comp_mask & !(QP_INIT_PD | QP_INIT_CREATE_FLAGS | QP_INIT_SEND_OPS) != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attributes.comp_mask & QP_INIT_PD == 0 {
        return fail_null(libc::EINVAL);
    }
    let ops = if attributes.comp_mask & QP_INIT_SEND_OPS != 0 { attributes.send_ops_flags } else { 0 };
    // Bits of the operations that there are.
    if ops & !0x3ff != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    let a = &*attributes;
    let mut base = IbvQpInitAttr {
        qp_context: a.qp_context,
        send_cq: a.send_cq,
        recv_cq: a.recv_cq,
        srq: a.srq,
        cap: a.cap,
        qp_type: a.qp_type,
        sq_sig_all: a.sq_sig_all,
    };
    // SAFETY: as above.
    match unsafe { create_pair(a.pd, &mut base) } {
        Ok(pair) => {
            attributes.cap = base.cap;
            if ops != 0 {
                // SAFETY: just made.
                set_request_calls(unsafe { &mut (*pair).base.ex });
            }
            pair.cast()
        }
        Err(error) => fail_null(error),
    }
}

/// # Safety
/// As for all calls.
unsafe fn create_pair(pd: *mut IbvPd, attributes: &mut IbvQpInitAttr) -> Result<*mut Pair, c_int> {
    if attributes.qp_type != QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    if attributes.send_cq.is_null() || attributes.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller's.
    let (domain, state) = unsafe { (domain_of(pd), context_state((*pd).context)) };
    // SAFETY: as the caller's.
    let (send, receive) = unsafe { (queue_of(attributes.send_cq), queue_of(attributes.recv_cq)) };
    // SAFETY: as the caller's.
    let shared_queue = (!attributes.srq.is_null()).then(|| unsafe { shared_queue_of(attributes.srq) });
    let cap = &mut attributes.cap;
    let lengths = QueueLengths {
        send_requests: cap.max_send_wr.max(1),
        receives: if shared_queue.is_some() { 0 } else { cap.max_recv_wr },
        send_sges: cap.max_send_sge.max(1),
        receive_sges: if shared_queue.is_some() { 0 } else { cap.max_recv_sge.max(1) },
        inline_bytes: cap.max_inline_data.max(LEAST_INLINE_BYTES),
    };
    let signals_all = attributes.sq_sig_all != 0;
    let options = QueuePairOptions {
        send_completions: &send.queue,
        receive_completions: &receive.queue,
        shared_queue,
        lengths,
        signal_all: signals_all,
    };
    let queue = domain.create_queue_pair(&options).map_err(|error| error_number(&error))?;
    let handle = queue.queue_number();
    let number = match state.rnic.transport {
        Transport::Efe => queue.assign_number(state.rnic.address).map_err(|error| error_number(&error))?,
        _ => handle,
    };
    send.set_number(handle, Some(number));
    receive.set_number(handle, Some(number));
    *cap = IbvQpCap {
        max_send_wr: lengths.send_requests,
        max_recv_wr: lengths.receives,
        max_send_sge: lengths.send_sges,
        max_recv_sge: lengths.receive_sges,
        max_inline_data: lengths.inline_bytes,
    };
    // SAFETY: all members of the structs of C may be zero; libibverbs sets them.
    let mut base = unsafe { std::mem::zeroed::<VerbsQp>() };
    let qp = &mut base.ex.qp;
    // SAFETY: as the caller's.
    qp.context = unsafe { (*pd).context };
    (qp.pd, qp.send_cq, qp.recv_cq, qp.srq) = (pd, attributes.send_cq, attributes.recv_cq, attributes.srq);
    (qp.qp_context, qp.qp_type) = (attributes.qp_context, attributes.qp_type);
    (qp.handle, qp.qp_num) = (handle, number);
    let attributes = IbvQpAttr { cap: *cap, ..IbvQpAttr::default() };
    let attributes = Mutex::new(attributes);
    let pair = Pair { base, queue, lengths, signals_all, attributes, batch: Mutex::default() };
    let pair = Box::into_raw(Box::new(pair));
    let mut objects = state.rnic.objects.lock();
    // SAFETY: as the caller's.
    let object = Object::new(pair, unsafe { (*pd).context });
    objects.queue_pairs.insert(handle, object);
    objects.numbers.insert(number, object.address);
    Ok(pair)
}

/// Returns a queue pair.
///
/// # Safety
/// `qp` was returned by this library and not given back.
pub(crate) unsafe fn pair_of<'a>(qp: *mut IbvQp) -> &'a Pair {
    // SAFETY: as the caller's.
    unsafe { &*qp.cast::<Pair>() }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: see the crate's documentation.
    let pair = unsafe { Box::from_raw(qp.cast::<Pair>()) };
    let base = &pair.base.ex.qp;
    let handle = base.handle;
    // SAFETY: as above.
    let (state, send, receive) =
        unsafe { (context_state(base.context), queue_of(base.send_cq), queue_of(base.recv_cq)) };
    let mut objects = state.rnic.objects.lock();
    objects.queue_pairs.remove(&handle);
    objects.numbers.remove(&base.qp_num);
    drop(objects);
    drop(pair);
    send.set_number(handle, None);
    receive.set_number(handle, None);
    state.withdraw_events(qp.addr());
    // The peer is informed now, and has what is acknowledged: the program may be about to end. Once in any case, however
    // long this thread has to wait for a processor.
    state.rnic.device.flush_work();
    let end = Instant::now() + FAREWELL_TIME;
    while Instant::now() < end {
        state.rnic.device.make_progress();
    }
    0
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut IbvQp, new: *mut IbvQpAttr, mask: c_int) -> c_int {
    // SAFETY: see the crate's documentation.
    let (pair, new, state) = unsafe { (pair_of(qp), &*new, context_state((*qp).context)) };
    let mut done = modify_pair(pair, state.rnic.transport, new, mask);
    if done.is_err() && mask & attr_mask::STATE == 0 {
        // The present state is meant. A connection that has come up in between has changed it.
        done = modify_pair(pair, state.rnic.transport, new, mask);
    }
    done.err().unwrap_or(0)
}

fn modify_pair(pair: &Pair, transport: Transport, new: &IbvQpAttr, mask: c_int) -> Result<(), c_int> {
    let (present, _) = pair.queue.query_state().map_err(|_| libc::EIO)?;
    let target = match (mask & attr_mask::STATE != 0).then_some(new.qp_state) {
        None => present,
        Some(number) => state_of(number).ok_or(libc::EINVAL)?,
    };
    let enters_receiving = target == QueueState::ReadyToReceive && present == QueueState::Init;
    if enters_receiving {
        // By number; an iWARP adapter connects by its connection manager alone.
        let needed = attr_mask::AV | attr_mask::DEST_QPN;
        if mask & needed != needed || transport != Transport::Efe {
            return Err(libc::EINVAL);
        }
    }
    let mut kept = pair.attributes.lock();
    let mut attributes = *kept;
    merge_attributes(&mut attributes, new, mask);
    if target == QueueState::Reset {
        let cap = attributes.cap;
        attributes = IbvQpAttr { cap, ..IbvQpAttr::default() };
    }
    // An iWARP adapter drains the queue when librdmacm disconnects: after the peer has, there is nothing to drain.
    if target == QueueState::SendDrained && present == QueueState::Error {
        return Ok(());
    }
    let is_no_change = target == present && !matches!(present, QueueState::Init | QueueState::ReadyToSend);
    if !is_no_change {
        let names_peer = enters_receiving || (attributes.dest_qp_num != 0 && target == QueueState::ReadyToSend);
        let queue_attributes = queue_attributes(&attributes, names_peer);
        pair.queue.modify_state(target, Some(queue_attributes)).map_err(|error| error_number(&error))?;
    }
    *kept = attributes;
    Ok(())
}

fn queue_attributes(attributes: &IbvQpAttr, names_peer: bool) -> QueueAttributes {
    QueueAttributes {
        access: Access::from_bits_truncate(attributes.qp_access_flags) & Access::REMOTE,
        peer_queue: names_peer.then_some(attributes.dest_qp_num),
        peer_address: names_peer.then(|| peer_address(&attributes.ah_attr)),
        inbound_reads: u32::from(attributes.max_dest_rd_atomic),
        outbound_reads: u32::from(attributes.max_rd_atomic),
        receiver_retries: attributes.rnr_retry & 7,
        peer_timeout: peer_timeout(attributes.timeout, attributes.retry_cnt),
        ..QueueAttributes::default()
    }
}

/// Returns the address in a GID: an IPv6 address, into which one of IPv4 is mapped.
fn peer_address(path: &IbvAhAttr) -> IpAddr {
    let [high, low] = path.dgid.map(u64::to_ne_bytes);
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&high);
    gid[8..].copy_from_slice(&low);
    let address = Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// Returns the time after which a peer that does not answer is given up: 4.096 µs · 2^timeout for each try; 0: without end.
fn peer_timeout(timeout: u8, retries: u8) -> Duration {
    match timeout & 31 {
        0 => Duration::from_secs(24 * 3600),
        exponent => (Duration::from_nanos(4096 << exponent) * (u32::from(retries & 7) + 1)).max(LEAST_PEER_TIMEOUT),
    }
}

/// Copies the attributes that a mask names.
fn merge_attributes(all: &mut IbvQpAttr, new: &IbvQpAttr, mask: c_int) {
    macro_rules! merge {
        ($($bit:ident: $($member:ident),+;)*) => { $(if mask & attr_mask::$bit != 0 { $(all.$member = new.$member;)+ })* };
    }
    merge! {
        CUR_STATE: cur_qp_state;
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        DEST_QPN: dest_qp_num;
    }
}

fn state_of(number: c_int) -> Option<QueueState> {
    Some(match number {
        qp_state::RESET => QueueState::Reset,
        qp_state::INIT => QueueState::Init,
        qp_state::RTR => QueueState::ReadyToReceive,
        qp_state::RTS => QueueState::ReadyToSend,
        qp_state::SQD => QueueState::SendDrained,
        qp_state::SQE => QueueState::SendError,
        qp_state::ERR => QueueState::Error,
        _ => return None,
    })
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut IbvQp,
    attributes: *mut IbvQpAttr,
    _mask: c_int,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: see the crate's documentation.
    let pair = unsafe { pair_of(qp) };
    let Ok((state, _)) = pair.queue.query_state() else { return libc::EIO };
    let state = c_int::from(state as u8);
    let all = IbvQpAttr { qp_state: state, cur_qp_state: state, ..*pair.attributes.lock() };
    let base = &pair.base.ex.qp;
    let created = IbvQpInitAttr {
        qp_context: base.qp_context,
        send_cq: base.send_cq,
        recv_cq: base.recv_cq,
        srq: base.srq,
        cap: all.cap,
        qp_type: base.qp_type,
        sq_sig_all: c_int::from(pair.signals_all),
    };
    // SAFETY: as above.
    unsafe { attributes.write(all) };
    // SAFETY: as above.
    unsafe { init.write(created) };
    0
}
