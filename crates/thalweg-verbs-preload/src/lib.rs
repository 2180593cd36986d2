//! Library that `thalweg rdma run` preloads into verbs programs: for what no provider of libibverbs is asked for.
//!
//! - `/dev/infiniband/…`: the files exist for the program, and are `/dev/null`, whose number the folder that stands for
//!   sysfs names. So neither root nor a mount namespace is needed.
//! - `ibv_create_comp_channel`: libibverbs would ask the kernel.
//! - `/dev/infiniband/rdma_cm`: commands that librdmacm writes there go to the provider.
//! - `socket(AF_NETLINK, …, NETLINK_RDMA)`: refused, so that libibverbs looks at sysfs and not at the kernel.
//!
//! The provider brings its functions when libibverbs loads it ([`thalweg_set_hooks`]); until then, and for all else, the
//! functions of the C library are called.
//!
//! # Safety
//!
//! Each function here has the name and the arguments of one of the C library, libibverbs or librdmacm, and is called in its
//! place; what it does not handle itself it passes on to the next library, with the arguments that it was given. That is the
//! argument of each `unsafe` block here which gives no other. Functions with a variable number of arguments are defined with
//! all that they can have: by the calling conventions of the supported processors those that a caller leaves out are registers
//! with any content, which is passed on and not used.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one argument holds for all calls of the next library; a block has no other"
)]
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use libc::{c_char, c_int, c_void, mode_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Functions of the provider.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Hooks {
    /// Length in bytes of this struct, as the provider has it.
    pub bytes: size_t,
    /// Returns whether a context is one of the provider.
    pub owns_context: unsafe extern "C" fn(*mut c_void) -> bool,
    /// Makes a completion channel.
    pub create_comp_channel: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    /// Takes note that the descriptor of a completion channel is closed.
    pub forget_comp_channel: unsafe extern "C" fn(c_int),
    /// Prepares a descriptor of the connection manager for waiting.
    pub open_manager: unsafe extern "C" fn(c_int),
    /// Carries out a command that was written to a descriptor of the connection manager.
    pub write_manager: unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t,
    /// Takes note that such a descriptor is closed.
    pub close_manager: unsafe extern "C" fn(c_int),
}

/// Hooks of the provider, which live as long as the process; null before it is loaded.
static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(std::ptr::null_mut());

/// Takes the functions of the provider.
///
/// # Safety
/// They are never freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_hooks(hooks: *mut Hooks) {
    // SAFETY: as the caller's.
    if unsafe { (*hooks).bytes } == size_of::<Hooks>() {
        HOOKS.store(hooks, Ordering::Release);
    }
}

fn hooks() -> Option<&'static Hooks> {
    let hooks = HOOKS.load(Ordering::Acquire);
    // SAFETY: null, or what the provider gave, which is never freed.
    unsafe { hooks.as_ref() }
}

/// Returns the function of this name of the next library, which is looked up once.
fn next_function(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a string of C.
    let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    for library in [c"libibverbs.so.1", c"librdmacm.so.1"] {
        if found.is_null() {
            // Not among the libraries that the program was started with, but loaded by one of its modules.
            // SAFETY: the names are strings of C; the library is looked up, not loaded.
            found = unsafe {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
                if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) }
            };
        }
    }
    place.store(found, Ordering::Relaxed);
    found
}

/// Calls the function of the same name of the next library.
macro_rules! call_next {
    ($name:literal, ($($kind:ty),*) -> $result:ty, ($($argument:expr),*), $without:expr) => {{
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let next = next_function(&NEXT, $name);
        if next.is_null() {
            $without
        } else {
            // SAFETY: the function of this name has this type.
            unsafe {
                let next = std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(next);
                next($($argument),*)
            }
        }
    }};
}

fn fail(error: c_int) -> c_int {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Device files of verbs, of which there are none here.
const DEVICES: &[u8] = b"/dev/infiniband/";
const MANAGER: &[u8] = b"/dev/infiniband/rdma_cm";

/// Returns `/dev/null` for a device file of verbs.
///
/// # Safety
/// `path` is null or a string of C.
unsafe fn redirected_path(path: *const c_char) -> *const c_char {
    // SAFETY: as the caller's.
    if unsafe { begins_with(path, DEVICES) } { c"/dev/null".as_ptr() } else { path }
}

/// # Safety
/// As for [`redirected_path`].
unsafe fn begins_with(path: *const c_char, beginning: &[u8]) -> bool {
    // SAFETY: as the caller's; the comparison ends with the string.
    !path.is_null() && beginning.iter().enumerate().all(|(at, byte)| unsafe { *path.add(at) as u8 == *byte })
}

macro_rules! opening {
    ($($name:ident $text:literal;)*) => {
        $(
            /// Opens a file, as the function of this name of the C library.
            ///
            /// # Safety
            /// See the crate's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
                // SAFETY: see the crate's documentation.
                let target = unsafe { redirected_path(path) };
                let fd = call_next!($text, (*const c_char, c_int, mode_t) -> c_int, (target, flags, mode), fail(libc::ENOSYS));
                // SAFETY: as above.
                if target != path && fd >= 0 && unsafe { begins_with(path, MANAGER) } { note_manager(fd) } else { fd }
            }
        )*
    };
}

opening! {
    open c"open";
    open64 c"open64";
}

macro_rules! opening_at {
    ($($name:ident $text:literal;)*) => {
        $(
            /// Opens a file, as the function of this name of the C library.
            ///
            /// # Safety
            /// See the crate's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
                // SAFETY: see the crate's documentation.
                let target = unsafe { redirected_path(path) };
                let fd = call_next!(
                    $text,
                    (c_int, *const c_char, c_int, mode_t) -> c_int,
                    (directory, target, flags, mode),
                    fail(libc::ENOSYS)
                );
                // SAFETY: as above.
                if target != path && fd >= 0 && unsafe { begins_with(path, MANAGER) } { note_manager(fd) } else { fd }
            }
        )*
    };
}

opening_at! {
    openat c"openat";
    openat64 c"openat64";
}

macro_rules! examining {
    ($($name:ident $text:literal;)*) => {
        $(
            /// Examines a file, as the function of this name of the C library.
            ///
            /// # Safety
            /// See the crate's documentation.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, status: *mut c_void) -> c_int {
                // SAFETY: see the crate's documentation.
                let path = unsafe { redirected_path(path) };
                call_next!($text, (*const c_char, *mut c_void) -> c_int, (path, status), fail(libc::ENOSYS))
            }
        )*
    };
}

examining! {
    stat c"stat";
    stat64 c"stat64";
    lstat c"lstat";
    lstat64 c"lstat64";
}

/// Asks for rights to a file, as the function of this name of the C library.
///
/// # Safety
/// See the crate's documentation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: see the crate's documentation.
    let path = unsafe { redirected_path(path) };
    call_next!(c"access", (*const c_char, c_int) -> c_int, (path, mode), fail(libc::ENOSYS))
}

/// Netlink's protocol for RDMA.
const NETLINK_RDMA: c_int = 20;

/// Makes a socket, as the function of this name of the C library.
#[unsafe(no_mangle)]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    call_next!(c"socket", (c_int, c_int, c_int) -> c_int, (domain, kind, protocol), fail(libc::ENOSYS))
}

/// Descriptors below this number can be those of the connection manager.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// Set of descriptors of the connection manager.
static MANAGERS: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

fn manager_bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MANAGERS.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_manager(fd: c_int) -> bool {
    manager_bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Takes note of a descriptor of the connection manager.
fn note_manager(fd: c_int) -> c_int {
    if let Some((word, bit)) = manager_bit(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    fd
}

/// Writes to a file, as the function of this name of the C library.
///
/// # Safety
/// See the crate's documentation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    if is_manager(fd)
        && let Some(hooks) = hooks()
    {
        // SAFETY: see the crate's documentation.
        return unsafe { (hooks.write_manager)(fd, bytes, length) };
    }
    call_next!(c"write", (c_int, *const c_void, size_t) -> ssize_t, (fd, bytes, length), fail(libc::ENOSYS) as ssize_t)
}

/// Closes a file, as the function of this name of the C library.
#[unsafe(no_mangle)]
pub extern "C" fn close(fd: c_int) -> c_int {
    if is_manager(fd) {
        if let Some((word, bit)) = manager_bit(fd) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        if let Some(hooks) = hooks() {
            // SAFETY: see the crate's documentation.
            unsafe { (hooks.close_manager)(fd) };
        }
    }
    call_next!(c"close", (c_int) -> c_int, (fd), fail(libc::ENOSYS))
}

/// Creates a channel of events of connections, as the function of this name of librdmacm: programs may wait for it at once.
///
/// # Safety
/// See the crate's documentation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut c_int {
    let channel = call_next!(c"rdma_create_event_channel", () -> *mut c_int, (), std::ptr::null_mut());
    if let Some(hooks) = hooks()
        && !channel.is_null()
    {
        // SAFETY: `struct rdma_event_channel` is one descriptor.
        let fd = unsafe { *channel };
        if is_manager(fd) {
            // SAFETY: see the crate's documentation.
            unsafe { (hooks.open_manager)(fd) };
        }
    }
    channel
}

/// Beginning of `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub struct CompletionChannel {
    context: *mut c_void,
    fd: c_int,
    refcnt: c_int,
}

/// Makes a completion channel, as the function of this name of libibverbs.
///
/// # Safety
/// See the crate's documentation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut c_void) -> *mut c_void {
    // SAFETY: see the crate's documentation.
    if let Some(hooks) = hooks().filter(|hooks| unsafe { (hooks.owns_context)(context) }) {
        // SAFETY: as above.
        return unsafe { (hooks.create_comp_channel)(context) };
    }
    call_next!(c"ibv_create_comp_channel", (*mut c_void) -> *mut c_void, (context), std::ptr::null_mut())
}

/// Gives back a completion channel, as the function of this name of libibverbs.
///
/// # Safety
/// See the crate's documentation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompletionChannel) -> c_int {
    // SAFETY: see the crate's documentation.
    let (context, fd) = unsafe { ((*channel).context, (*channel).fd) };
    // SAFETY: as above.
    let hooks = hooks().filter(|hooks| unsafe { (hooks.owns_context)(context) });
    let result = call_next!(c"ibv_destroy_comp_channel", (*mut CompletionChannel) -> c_int, (channel), libc::ENOSYS);
    if let Some(hooks) = hooks.filter(|_| result == 0) {
        // SAFETY: as above.
        unsafe { (hooks.forget_comp_channel)(fd) };
    }
    result
}
