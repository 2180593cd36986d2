//! Functions for the library that `thalweg rdma run` preloads: for what libibverbs asks the kernel, and not its provider.

use crate::abi::{IbvCompChannel, IbvContext};
use crate::completion::{create_comp_channel, forget_comp_channel};
use crate::manager::{close_manager, open_manager, write_manager};
use libc::{c_int, c_void};

/// Functions of this library (`Hooks` of `thalweg-verbs-preload`).
#[repr(C)]
struct Hooks {
    bytes: usize,
    owns_context: unsafe extern "C" fn(*mut IbvContext) -> bool,
    create_comp_channel: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvCompChannel,
    forget_comp_channel: unsafe extern "C" fn(c_int),
    open_manager: unsafe extern "C" fn(c_int),
    write_manager: unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
    close_manager: unsafe extern "C" fn(c_int),
}

static HOOKS: Hooks = Hooks {
    bytes: size_of::<Hooks>(),
    owns_context,
    create_comp_channel,
    forget_comp_channel,
    open_manager,
    write_manager,
    close_manager,
};

/// Gives the preloaded library, if it is there, the functions of this one.
pub(crate) fn register_hooks() {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"thalweg_set_hooks".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: this is the type of the function of this name.
    let set = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const Hooks)>(found) };
    // SAFETY: the hooks are never freed.
    unsafe { set(&raw const HOOKS) };
}

/// Returns whether a context is one of this provider.
unsafe extern "C" fn owns_context(context: *mut IbvContext) -> bool {
    // SAFETY: the context is open; the name of a device is in `struct ibv_device`, after two pointers and two numbers.
    let name = unsafe { (*context).device.cast::<u8>().add(24).cast::<[u8; 7]>().read() };
    &name == b"thalweg"
}
