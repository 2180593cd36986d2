//! Registration with libibverbs, and the table of functions.

use crate::abi::{CONTEXT_BYTES, CONTEXT_OFFSET, DEVICE_BYTES, IbvContext, Op, VerbsDeviceOps, VerbsSysfsDev};
use crate::{completion, context, memory, posting, queue_pair, shared_queue};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Functions of libibverbs that a provider calls. They exist only in the library that has loaded it.
#[derive(Debug)]
pub(crate) struct Library {
    init_context: unsafe extern "C" fn(*mut c_void, c_int, usize, *mut c_void, u32) -> *mut c_void,
    set_ops: unsafe extern "C" fn(*mut c_void, *const c_void),
    uninit_context: unsafe extern "C" fn(*mut c_void),
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Number of functions of a table. That of ABI 34 has 73 to 76; what follows is not read.
const TABLE_OPS: usize = 96;

#[repr(C)]
struct Table([Op; TABLE_OPS]);

// SAFETY: the pointers are to functions, and never change.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

static TABLE: OnceLock<Table> = OnceLock::new();

struct DeviceOps(VerbsDeviceOps);

// SAFETY: the pointers are to functions and to constants.
unsafe impl Sync for DeviceOps {}

static DEVICE_OPS: DeviceOps = DeviceOps(VerbsDeviceOps {
    name: c"thalweg".as_ptr(),
    match_min_abi_version: 0,
    match_max_abi_version: 1000,
    match_table: std::ptr::null(),
    static_providers: std::ptr::null(),
    match_device,
    alloc_context,
    import_context: std::ptr::null(),
    alloc_device,
    uninit_device,
});

/// Names of the versions of the private ABI that this library knows: the symbol by which a provider is registered has it.
/// Their layouts are the same.
const REGISTRATIONS: [&CStr; 2] = [c"verbs_register_driver_34", c"verbs_register_driver_57"];

/// Registers the provider with the libibverbs that loads it.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = {
    extern "C" fn register() {
        // SAFETY: the name is a string of C; the library is looked up, not loaded.
        let handle = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return;
        }
        let registration = REGISTRATIONS.iter().map(|name| find_function(handle, name)).find(|found| !found.is_null());
        let names = [c"_verbs_init_and_alloc_context", c"verbs_set_ops", c"verbs_uninit_context"];
        let [init_context, set_ops, uninit_context] = names.map(|name| find_function(handle, name));
        let is_complete = [init_context, set_ops, uninit_context].iter().all(|function| !function.is_null());
        let Some(register) = registration.filter(|_| is_complete) else {
            eprintln!(
                "thalweg: this libibverbs has another interface for providers than those of rdma-core 44 to 58: the \
                 device is left out"
            );
            return;
        };
        // SAFETY: these are the types of the functions of this name in libibverbs/driver.h.
        let library = unsafe {
            Library {
                init_context: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, c_int, usize, *mut c_void, u32) -> *mut c_void,
                >(init_context),
                set_ops: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *const c_void)>(set_ops),
                uninit_context: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(uninit_context),
            }
        };
        let _ = LIBRARY.set(library);
        crate::hooks::register_hooks();
        // SAFETY: as above.
        let register =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const VerbsDeviceOps)>(register) };
        // SAFETY: the operations are never freed.
        unsafe { register(&raw const DEVICE_OPS.0) };
    }
    register
};

/// Returns a function of a library; null if it has none of this name.
fn find_function(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded, the name a string of C.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Names of the functions in `struct verbs_context_ops`, in their order.
const OPS: &str = "advise_mr alloc_dm alloc_mw alloc_null_mr alloc_parent_domain alloc_pd alloc_td async_event \
    attach_counters_point_flow attach_mcast bind_mw close_xrcd cq_event create_ah create_counters create_cq create_cq_ex \
    create_flow create_flow_action_esp create_qp create_qp_ex create_rwq_ind_table create_srq create_srq_ex create_wq \
    dealloc_mw dealloc_pd dealloc_td dereg_mr destroy_ah destroy_counters destroy_cq destroy_flow destroy_flow_action \
    destroy_qp destroy_rwq_ind_table destroy_srq destroy_wq detach_mcast free_context free_dm get_srq_num import_dm \
    import_mr import_pd modify_cq modify_flow_action_esp modify_qp modify_qp_rate_limit modify_srq modify_wq open_qp \
    open_xrcd poll_cq post_recv post_send post_srq_ops post_srq_recv query_device_ex query_ece query_port query_qp \
    query_qp_data_in_order query_rt_values query_srq read_counters reg_dm_mr reg_dmabuf_mr reg_mr req_notify_cq rereg_mr \
    resize_cq set_ece unimport_dm unimport_mr unimport_pd";

/// Functions of this provider. libibverbs answers all others with EOPNOTSUPP.
fn table() -> &'static Table {
    let functions: &[(&str, Op)] = &[
        ("alloc_mw", memory::alloc_mw as *const c_void),
        ("alloc_parent_domain", memory::alloc_parent_domain as *const c_void),
        ("alloc_pd", memory::alloc_pd as *const c_void),
        ("alloc_td", memory::alloc_td as *const c_void),
        ("bind_mw", memory::bind_mw as *const c_void),
        ("create_cq", completion::create_cq as *const c_void),
        ("create_cq_ex", completion::create_cq_ex as *const c_void),
        ("create_qp", queue_pair::create_qp as *const c_void),
        ("create_qp_ex", queue_pair::create_qp_ex as *const c_void),
        ("create_srq", shared_queue::create_srq as *const c_void),
        ("create_srq_ex", shared_queue::create_srq_ex as *const c_void),
        ("dealloc_mw", memory::dealloc_mw as *const c_void),
        ("dealloc_pd", memory::dealloc_pd as *const c_void),
        ("dealloc_td", memory::dealloc_td as *const c_void),
        ("dereg_mr", memory::dereg_mr as *const c_void),
        ("destroy_cq", completion::destroy_cq as *const c_void),
        ("destroy_qp", queue_pair::destroy_qp as *const c_void),
        ("destroy_srq", shared_queue::destroy_srq as *const c_void),
        ("free_context", context::free_context as *const c_void),
        ("modify_qp", queue_pair::modify_qp as *const c_void),
        ("modify_srq", shared_queue::modify_srq as *const c_void),
        ("poll_cq", completion::poll_cq as *const c_void),
        ("post_recv", posting::post_recv as *const c_void),
        ("post_send", posting::post_send as *const c_void),
        ("post_srq_recv", posting::post_srq_recv as *const c_void),
        ("query_device_ex", context::query_device_ex as *const c_void),
        ("query_port", context::query_port as *const c_void),
        ("query_qp", queue_pair::query_qp as *const c_void),
        ("query_srq", shared_queue::query_srq as *const c_void),
        ("reg_mr", memory::reg_mr as *const c_void),
        ("req_notify_cq", completion::req_notify_cq as *const c_void),
        ("rereg_mr", memory::rereg_mr as *const c_void),
        ("resize_cq", completion::resize_cq as *const c_void),
    ];
    TABLE.get_or_init(|| {
        let mut table = [std::ptr::null(); TABLE_OPS];
        for (place, name) in table.iter_mut().zip(OPS.split_whitespace()) {
            if let Some((_, function)) = functions.iter().find(|(other, _)| *other == name) {
                *place = *function;
            }
        }
        Table(table)
    })
}

/// Returns whether a device is one of `thalweg rdma run`.
unsafe extern "C" fn match_device(device: *mut VerbsSysfsDev) -> bool {
    // SAFETY: see the crate's documentation.
    let name: &[c_char] = unsafe { &(*device).ibdev_name };
    name.iter().zip(b"thalweg").all(|(found, wanted)| *found as u8 == *wanted)
}

unsafe extern "C" fn alloc_device(_device: *mut VerbsSysfsDev) -> *mut c_void {
    // SAFETY: plain allocation; libibverbs fills it in.
    unsafe { libc::calloc(1, DEVICE_BYTES) }
}

unsafe extern "C" fn uninit_device(device: *mut c_void) {
    // SAFETY: it was allocated by `alloc_device`.
    unsafe { libc::free(device) }
}

/// Bytes before `struct verbs_context` in what is allocated for one: a pointer to this library's state.
const STATE_BYTES: usize = 64;

/// Room for `struct verbs_context`.
const VERBS_CONTEXT_BYTES: usize = 4096;

/// Opens the device.
unsafe extern "C" fn alloc_context(device: *mut c_void, cmd_fd: c_int, _private: *mut c_void) -> *mut c_void {
    let Some(library) = LIBRARY.get() else { return crate::fail_null(libc::ENOSYS) };
    // SAFETY: the types are those of libibverbs; the context is at the offset given.
    let all = unsafe {
        (library.init_context)(
            device,
            cmd_fd,
            STATE_BYTES + VERBS_CONTEXT_BYTES,
            std::ptr::without_provenance_mut(STATE_BYTES),
            0,
        )
    };
    if all.is_null() {
        return all;
    }
    let verbs = all.wrapping_byte_add(STATE_BYTES);
    let context = verbs.wrapping_byte_add(CONTEXT_OFFSET).cast::<IbvContext>();
    // SAFETY: `size_t sz`, the member before the context, is inside what was allocated. It is the length of all.
    let bytes = unsafe { context.cast::<usize>().wrapping_sub(1).read() };
    let opened = if bytes == CONTEXT_OFFSET + CONTEXT_BYTES {
        context::Context::open(context)
    } else {
        eprintln!("thalweg: libibverbs has contexts of {bytes} bytes, not {}", CONTEXT_OFFSET + CONTEXT_BYTES);
        Err(libc::ENOSYS)
    };
    match opened {
        Ok(state) => {
            // SAFETY: the first bytes of what was allocated are this library's.
            unsafe { all.cast::<*const context::Context>().write(state) };
            // SAFETY: the table is never freed.
            unsafe { (library.set_ops)(verbs, std::ptr::from_ref(table()).cast()) };
            verbs
        }
        Err(error) => {
            // SAFETY: the context was initialized, and is not used any more.
            unsafe { (library.uninit_context)(verbs) };
            // SAFETY: it was allocated by libibverbs with the allocator of C.
            unsafe { libc::free(all) };
            crate::fail_null(error)
        }
    }
}

/// Returns the state of an open device.
///
/// # Safety
/// `context` was returned by [`alloc_context`], and not freed.
pub(crate) unsafe fn context_state<'a>(context: *mut IbvContext) -> &'a context::Context {
    let all = context.wrapping_byte_sub(CONTEXT_OFFSET + STATE_BYTES).cast::<*const context::Context>();
    // SAFETY: `alloc_context` has put it there.
    unsafe { &**all }
}

/// Frees a context, and returns its state.
///
/// # Safety
/// As for [`context_state`]; the context is not used afterwards.
pub(crate) unsafe fn release_context(context: *mut IbvContext) -> *const context::Context {
    let verbs = context.wrapping_byte_sub(CONTEXT_OFFSET).cast::<c_void>();
    let all = verbs.wrapping_byte_sub(STATE_BYTES);
    // SAFETY: `alloc_context` has put it there.
    let state = unsafe { all.cast::<*const context::Context>().read() };
    if let Some(library) = LIBRARY.get() {
        // SAFETY: as the caller's.
        unsafe { (library.uninit_context)(verbs.cast()) };
    }
    // SAFETY: it was allocated by libibverbs with the allocator of C.
    unsafe { libc::free(all) };
    state
}
