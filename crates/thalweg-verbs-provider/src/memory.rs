//! Protection domains, memory regions, memory windows.

use crate::abi::{IbvContext, IbvMr, IbvMw, IbvMwBind, IbvPd, IbvQp, VerbsMr};
use crate::table::context_state;
use crate::{error_number, fail_null, posting, set_errno};
use libc::{c_int, c_uint, c_void};
use std::sync::Arc;
use thalweg_arena::SharedMemory;
use thalweg_rdma::{Access, MemoryRange, MemoryRegion, MemoryWindow, ProtectionDomain, WindowKind, next_window_stag};

/// A protection domain. A parent domain is a second one with the same content.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) base: IbvPd,
    pub(crate) domain: ProtectionDomain,
    /// Whether it is a parent domain: that it is in use cannot be told from the use of its content.
    is_parent: bool,
}

/// A memory region.
#[repr(C)]
struct Region {
    base: VerbsMr,
    region: MemoryRegion,
}

/// A memory window.
#[repr(C)]
struct Window {
    base: IbvMw,
    _window: MemoryWindow,
}

/// Rights, and what is asked for beside them: to be ignored, or refused.
const ACCESS_ZERO_BASED: c_uint = 1 << 5;
const ACCESS_ON_DEMAND: c_uint = 1 << 6;
/// First and last optional flag: hints, which a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const ACCESS_OPTIONAL: c_uint = 0x3ff0_0000;
/// Memory of huge pages: a hint.
const ACCESS_HUGETLB: c_uint = 1 << 7;

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    // SAFETY: see the crate's documentation.
    let state = unsafe { context_state(context) };
    match state.rnic.device.allocate_domain() {
        Ok(domain) => new_domain(context, domain, false),
        Err(error) => fail_null(error_number(&error)),
    }
}

fn new_domain(context: *mut IbvContext, domain: ProtectionDomain, is_parent: bool) -> *mut IbvPd {
    let base = IbvPd { context, handle: 0 };
    Box::into_raw(Box::new(Domain { base, domain, is_parent })).cast()
}

/// Returns a protection domain.
///
/// # Safety
/// `pd` was returned by this library and not given back.
pub(crate) unsafe fn domain_of<'a>(pd: *mut IbvPd) -> &'a ProtectionDomain {
    // SAFETY: as the caller's.
    unsafe { &(*pd.cast::<Domain>()).domain }
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut IbvPd) -> c_int {
    let domain = pd.cast::<Domain>();
    // SAFETY: see the crate's documentation.
    let found = unsafe { &*domain };
    if !found.is_parent && found.domain.user_count() > 0 {
        return libc::EBUSY;
    }
    // SAFETY: `new_domain` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(domain) });
    0
}

/// A thread domain: a promise of the program, of which no use is made.
#[repr(C)]
struct ThreadDomain {
    context: *mut IbvContext,
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut IbvContext, attributes: *const u32) -> *mut c_void {
    // SAFETY: see the crate's documentation. The attributes are a mask of which nothing is defined.
    if unsafe { *attributes } != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    Box::into_raw(Box::new(ThreadDomain { context })).cast()
}

pub(crate) unsafe extern "C" fn dealloc_td(domain: *mut c_void) -> c_int {
    // SAFETY: `alloc_td` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(domain.cast::<ThreadDomain>()) });
    0
}

/// Beginning of `struct ibv_parent_domain_init_attr`.
#[repr(C)]
pub(crate) struct ParentDomainAttributes {
    pd: *mut IbvPd,
    td: *mut c_void,
    comp_mask: u32,
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut IbvContext,
    attributes: *const ParentDomainAttributes,
) -> *mut IbvPd {
    // SAFETY: see the crate's documentation.
    let attributes = unsafe { &*attributes };
    if attributes.pd.is_null() {
        return fail_null(libc::EINVAL);
    }
    // Allocators of the program's own have nothing to allocate here.
    if attributes.comp_mask != 0 {
        return fail_null(libc::EOPNOTSUPP);
    }
    // SAFETY: as above.
    let content = unsafe { domain_of(attributes.pd) };
    new_domain(context, content.clone(), true)
}

/// Registers memory: pages are populated, not pinned, since the RNIC reaches them by the page tables of this process.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut IbvPd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: see the crate's documentation.
    match unsafe { register(pd, address, length, iova, access) } {
        Ok(region) => {
            let stag = region.stag();
            // SAFETY: as above.
            let context = unsafe { (*pd).context };
            let mr = IbvMr { context, pd, addr: address, length, handle: stag, lkey: stag, rkey: stag };
            Box::into_raw(Box::new(Region { base: VerbsMr { mr, mr_type: 0, access }, region })).cast()
        }
        Err(error) => fail_null(error),
    }
}

/// Checks rights as the kernel does: those of peers to change memory need that of its owner.
fn checked_access(access: c_int) -> Result<Access, c_int> {
    let flags = access.cast_unsigned() & !ACCESS_OPTIONAL & !ACCESS_HUGETLB & !ACCESS_ZERO_BASED;
    if flags & ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let access = Access::from_bits(flags).ok_or(libc::EINVAL)?;
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
        return Err(libc::EINVAL);
    }
    Ok(access)
}

/// # Safety
/// As for all calls; the program keeps the memory mapped until it gives the region back, as verbs demand.
unsafe fn register(
    pd: *mut IbvPd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Result<MemoryRegion, c_int> {
    let rights = checked_access(access)?;
    // SAFETY: as the caller's.
    let (memory, range) = unsafe { take_memory(address, length, iova, access) }?;
    // SAFETY: as the caller's.
    let domain = unsafe { domain_of(pd) };
    domain.register_mapped(memory, range, rights).map_err(|error| error_number(&error))
}

/// Takes memory of the program.
///
/// # Safety
/// As for [`register`].
unsafe fn take_memory(
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Result<(Arc<SharedMemory>, MemoryRange), c_int> {
    let writes = Access::from_bits_truncate(access.cast_unsigned()).intersects(Access::WRITING);
    // SAFETY: the memory is the program's, which is no Rust, and stays mapped.
    let taken = unsafe { SharedMemory::from_process_memory(address.expose_provenance(), length, writes) };
    let (memory, at) = taken.map_err(|error| match error {
        // Pages that are not mapped.
        thalweg_arena::ArenaError::Os { error, .. } if error == rustix::io::Errno::NOMEM => libc::EFAULT,
        thalweg_arena::ArenaError::Os { error, .. } => error.raw_os_error(),
        _ => libc::EINVAL,
    })?;
    // With addresses from zero on, the first byte's is its offset in the page, as of memory that is registered page by page.
    let base = if access.cast_unsigned() & ACCESS_ZERO_BASED != 0 { iova & 0xfff } else { iova };
    Ok((Arc::new(memory), MemoryRange { offset: at as u64, length: length as u64, base }))
}

pub(crate) unsafe extern "C" fn dereg_mr(region: *mut VerbsMr) -> c_int {
    let found = region.cast::<Region>();
    // SAFETY: see the crate's documentation.
    if let Err(error) = unsafe { &mut (*found).region }.deregister() {
        return error_number(&error);
    }
    // SAFETY: `reg_mr` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(found) });
    0
}

/// What of a region is to change (`ibv_rereg_mr_flags`).
const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 1 << 1;
const REREG_ACCESS: c_int = 1 << 2;

/// Registers a region anew, under the same keys.
pub(crate) unsafe extern "C" fn rereg_mr(
    region: *mut VerbsMr,
    flags: c_int,
    pd: *mut IbvPd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: see the crate's documentation.
    let found = unsafe { &mut *region.cast::<Region>() };
    let mr = &found.base.mr;
    let (address, length) = if flags & REREG_TRANSLATION != 0 { (address, length) } else { (mr.addr, mr.length) };
    let iova =
        if flags & REREG_TRANSLATION != 0 { address.addr() as u64 } else { found.region.registered_range().base };
    let pd = if flags & REREG_PD != 0 { pd } else { mr.pd };
    let access = if flags & REREG_ACCESS != 0 { access } else { found.base.access };
    let registered = checked_access(access).and_then(|rights| {
        // SAFETY: as above.
        let (memory, range) = unsafe { take_memory(address, length, iova, access) }?;
        // SAFETY: as above.
        let domain = unsafe { domain_of(pd) };
        found.region.register_again(domain, memory, range, rights).map_err(|error| error_number(&error))
    });
    if let Err(error) = registered {
        set_errno(error);
        return error;
    }
    found.base.access = access;
    0
}

/// Types of memory windows (`ibv_mw_type`).
const WINDOW_TYPE_1: c_int = 1;
const WINDOW_TYPE_2: c_int = 2;

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut IbvPd, mw_type: c_int) -> *mut IbvMw {
    let kind = match mw_type {
        WINDOW_TYPE_1 => WindowKind::Domain,
        WINDOW_TYPE_2 => WindowKind::Queue,
        _ => return fail_null(libc::EINVAL),
    };
    // SAFETY: see the crate's documentation.
    let (domain, context) = unsafe { (domain_of(pd), (*pd).context) };
    match domain.allocate_window(kind) {
        Ok(window) => {
            let stag = window.first_stag();
            let base = IbvMw { context, pd, rkey: stag, handle: stag, mw_type };
            Box::into_raw(Box::new(Window { base, _window: window })).cast()
        }
        Err(error) => fail_null(error_number(&error)),
    }
}

pub(crate) unsafe extern "C" fn dealloc_mw(window: *mut IbvMw) -> c_int {
    // SAFETY: `alloc_mw` has made it; the program does not use it any more.
    drop(unsafe { Box::from_raw(window.cast::<Window>()) });
    0
}

/// Binds a window of type 1: the request is posted, and the window has its next key.
pub(crate) unsafe extern "C" fn bind_mw(pair: *mut IbvQp, window: *mut IbvMw, bind: *const IbvMwBind) -> c_int {
    // SAFETY: see the crate's documentation.
    let (window, bind) = unsafe { (&mut *window, &*bind) };
    if window.mw_type != WINDOW_TYPE_1 {
        return libc::EINVAL;
    }
    let new_stag = next_window_stag(window.rkey);
    // SAFETY: as above.
    let error = unsafe { posting::post_bind(pair, bind.wr_id, bind.send_flags, new_stag, &bind.bind_info) };
    if error == 0 {
        window.rkey = new_stag;
    }
    error
}
