//! Shared receive queues.

use crate::abi::{IbvContext, IbvPd, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx, VerbsSrq};
use crate::memory::domain_of;
use crate::rnic::Object;
use crate::table::context_state;
use crate::{error_number, fail_null};
use libc::c_int;
use thalweg_rdma::SharedReceiveQueue;

/// A shared receive queue.
#[repr(C)]
struct Shared {
    base: VerbsSrq,
    queue: SharedReceiveQueue,
    attributes: IbvSrqAttr,
}

/// Bits of `ibv_srq_init_attr_ex.comp_mask`, and the type of those here.
const SRQ_INIT_TYPE: u32 = 1;
const SRQ_INIT_PD: u32 = 2;
const SRQT_BASIC: c_int = 0;

/// Bits of the mask of `ibv_modify_srq`.
const SRQ_MAX_WR: c_int = 1;
const SRQ_LIMIT: c_int = 2;

pub(crate) unsafe extern "C" fn create_srq(pd: *mut IbvPd, attributes: *mut IbvSrqInitAttr) -> *mut IbvSrq {
    // SAFETY: see the crate's documentation.
    unsafe { create_shared(pd, &mut (*attributes).attr) }.unwrap_or_else(fail_null)
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut IbvContext,
    attributes: *mut IbvSrqInitAttrEx,
) -> *mut IbvSrq {
    // SAFETY: see the crate's documentation.
    let attributes = unsafe { &mut *attributes };
    let has_type = attributes.comp_mask & SRQ_INIT_TYPE != 0;
    if attributes.comp_mask & !(SRQ_INIT_TYPE | SRQ_INIT_PD) != 0 || (has_type && attributes.srq_type != SRQT_BASIC) {
        return fail_null(libc::EOPNOTSUPP);
    }
    if attributes.comp_mask & SRQ_INIT_PD == 0 {
        return fail_null(libc::EINVAL);
    }
    // SAFETY: as above.
    let queue = unsafe { create_shared(attributes.pd, &mut attributes.attr) };
    queue
        .inspect(|queue| {
            // SAFETY: just made. (libibverbs does this for `ibv_create_srq` alone.)
            let srq = unsafe { &mut **queue };
            (srq.srq_context, srq.pd) = (attributes.srq_context, attributes.pd);
        })
        .unwrap_or_else(fail_null)
}

/// # Safety
/// As for all calls.
unsafe fn create_shared(pd: *mut IbvPd, attributes: &mut IbvSrqAttr) -> Result<*mut IbvSrq, c_int> {
    // SAFETY: as the caller's.
    let (domain, state) = unsafe { (domain_of(pd), context_state((*pd).context)) };
    let max_sge = attributes.max_sge.max(1);
    let created = domain.create_shared_queue(attributes.max_wr, max_sge);
    let queue = created.map_err(|error| error_number(&error))?;
    let handle = queue.queue_handle();
    *attributes = IbvSrqAttr { max_sge, ..*attributes };
    // SAFETY: all members of the structs of C may be zero; libibverbs sets them.
    let mut base = unsafe { std::mem::zeroed::<VerbsSrq>() };
    base.srq_num = handle;
    base.srq.handle = handle;
    // SAFETY: as the caller's.
    let base_context = unsafe { (*pd).context };
    base.srq.context = base_context;
    base.srq.pd = pd;
    // SAFETY: plain initialization of what is zero.
    unsafe {
        libc::pthread_mutex_init(&raw mut base.srq.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut base.srq.cond, std::ptr::null());
    }
    let shared =
        Box::into_raw(Box::new(Shared { base, queue, attributes: IbvSrqAttr { srq_limit: 0, ..*attributes } }));
    state.rnic.objects.lock().shared_queues.insert(handle, Object::new(shared, base_context));
    Ok(shared.cast())
}

/// Returns a shared receive queue.
///
/// # Safety
/// `srq` was returned by this library and not given back.
pub(crate) unsafe fn shared_queue_of<'a>(srq: *mut IbvSrq) -> &'a SharedReceiveQueue {
    // SAFETY: as the caller's.
    unsafe { &(*srq.cast::<Shared>()).queue }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut IbvSrq) -> c_int {
    let shared = srq.cast::<Shared>();
    // SAFETY: see the crate's documentation.
    let (queue, state) = unsafe { (&(*shared).queue, context_state((*srq).context)) };
    if queue.user_count() > 0 {
        return libc::EBUSY;
    }
    state.rnic.objects.lock().shared_queues.remove(&queue.queue_handle());
    // SAFETY: `create_shared` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(shared) });
    state.withdraw_events(srq.addr());
    0
}

/// Sets the limit; the length cannot be changed.
pub(crate) unsafe extern "C" fn modify_srq(srq: *mut IbvSrq, attributes: *const IbvSrqAttr, mask: c_int) -> c_int {
    // SAFETY: see the crate's documentation.
    let (shared, new) = unsafe { (&mut *srq.cast::<Shared>(), &*attributes) };
    if mask & SRQ_MAX_WR != 0 {
        return libc::EOPNOTSUPP;
    }
    if mask & SRQ_LIMIT != 0 {
        if new.srq_limit > shared.attributes.max_wr {
            return libc::EINVAL;
        }
        if let Err(error) = shared.queue.set_limit(new.srq_limit) {
            return error_number(&error);
        }
        shared.attributes.srq_limit = new.srq_limit;
    }
    0
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut IbvSrq, attributes: *mut IbvSrqAttr) -> c_int {
    // SAFETY: see the crate's documentation.
    let shared = unsafe { &*srq.cast::<Shared>() };
    // SAFETY: as above.
    unsafe { attributes.write(shared.attributes) };
    0
}
