//! The libraries and their functions.

use crate::abi::{
    IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvMr, IbvPd, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq,
    IbvSrqAttr, IbvSrqInitAttr, LibraryAsyncEvent, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel,
};
use libc::{c_char, c_int, c_void, sockaddr};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use thiserror::Error;

/// Reason why a call of the libraries failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IbverbsError {
    /// A library cannot be loaded.
    #[error("{library} cannot be loaded ({reason}): install rdma-core's libraries (Debian: {package})")]
    NoLibrary {
        /// Name of the library's file.
        library: &'static str,
        /// Reason given by the loader.
        reason: String,
        /// Debian's package of it.
        package: &'static str,
    },
    /// The library lacks a function.
    #[error("{library} has no function {function}: it is older than that of rdma-core 33; install a newer one")]
    NoFunction {
        /// Name of the library's file.
        library: &'static str,
        /// Name of the function.
        function: &'static str,
    },
    /// No device has the name.
    #[error("there is no RDMA device {name:?}; {}", describe_devices(.found))]
    NoDevice {
        /// Name that was looked for.
        name: String,
        /// Names of the devices that exist.
        found: Vec<String>,
    },
    /// The kernel has no RDMA.
    #[error("{call}: this kernel has no RDMA devices, or its modules are not loaded (`modprobe ib_uverbs rdma_ucm`)")]
    NoSupport {
        /// Name of the function that found out.
        call: &'static str,
    },
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// Error that it has set.
        error: Errno,
    },
    /// Memory could not be pinned.
    #[error("{call}: {length} bytes cannot be pinned: raise the limit of locked memory (`ulimit -l`)")]
    Pinning {
        /// Name of the function.
        call: &'static str,
        /// Length in bytes.
        length: u64,
    },
    /// An address is not within what is registered.
    #[error("{length} bytes at offset {offset} are not within memory of {limit} bytes that may be used so")]
    Range {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of the memory in bytes.
        limit: u64,
    },
}

fn describe_devices(found: &[String]) -> String {
    match found {
        [] => "libibverbs finds none on this machine (see `rdma link`)".into(),
        _ => format!("this machine has {}", found.join(", ")),
    }
}

/// Names of the libraries' files, and Debian's packages of them.
const VERBS: (&str, &CStr, &str) = ("libibverbs.so.1", c"libibverbs.so.1", "libibverbs1 and ibverbs-providers");
const MANAGER: (&str, &CStr, &str) = ("librdmacm.so.1", c"librdmacm.so.1", "librdmacm1");

macro_rules! functions {
    ($table:ident { $($name:ident($($kind:ty),*) $(-> $result:ty)?;)* }) => {
        pub(crate) struct $table { $(pub(crate) $name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)* }

        impl $table {
            fn load((library, file, package): (&'static str, &'static CStr, &'static str)) -> Result<Self, IbverbsError> {
                // Its functions are looked up among all of the program's: a library that is preloaded may come before it, as
                // that of `thalweg rdma run` does.
                // SAFETY: the name is a string of C; the libraries' constructors may run at any time.
                if unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null() {
                    return Err(IbverbsError::NoLibrary { library, reason: loader_error(), package });
                }
                Ok(Self {
                    $($name: {
                        const NAME: &str = concat!(stringify!($name), "\0");
                        // SAFETY: the name ends with a NUL character.
                        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr().cast()) };
                        if found.is_null() {
                            return Err(IbverbsError::NoFunction { library, function: stringify!($name) });
                        }
                        // SAFETY: this is the type of the function of this name in the library's header.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    VerbsFunctions {
        ibv_get_device_list(*mut c_int) -> *mut *mut IbvDevice;
        ibv_free_device_list(*mut *mut IbvDevice);
        ibv_open_device(*mut IbvDevice) -> *mut IbvContext;
        ibv_close_device(*mut IbvContext) -> c_int;
        ibv_query_device(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        ibv_get_async_event(*mut IbvContext, *mut LibraryAsyncEvent) -> c_int;
        ibv_ack_async_event(*mut LibraryAsyncEvent);
        ibv_alloc_pd(*mut IbvContext) -> *mut IbvPd;
        ibv_dealloc_pd(*mut IbvPd) -> c_int;
        ibv_reg_mr(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
        ibv_reg_dmabuf_mr(*mut IbvPd, u64, usize, u64, c_int, c_int) -> *mut IbvMr;
        ibv_dereg_mr(*mut IbvMr) -> c_int;
        ibv_create_comp_channel(*mut IbvContext) -> *mut IbvCompChannel;
        ibv_destroy_comp_channel(*mut IbvCompChannel) -> c_int;
        ibv_get_cq_event(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut IbvCq, libc::c_uint);
        ibv_create_cq(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        ibv_destroy_cq(*mut IbvCq) -> c_int;
        ibv_create_qp(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
        ibv_modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        ibv_destroy_qp(*mut IbvQp) -> c_int;
        ibv_create_srq(*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
        ibv_modify_srq(*mut IbvSrq, *mut IbvSrqAttr, c_int) -> c_int;
        ibv_destroy_srq(*mut IbvSrq) -> c_int;
    }
}

functions! {
    ManagerFunctions {
        rdma_create_event_channel() -> *mut RdmaEventChannel;
        rdma_destroy_event_channel(*mut RdmaEventChannel);
        rdma_create_id(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_int) -> c_int;
        rdma_destroy_id(*mut RdmaCmId) -> c_int;
        rdma_bind_addr(*mut RdmaCmId, *mut sockaddr) -> c_int;
        rdma_resolve_addr(*mut RdmaCmId, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut RdmaCmId, c_int) -> c_int;
        rdma_connect(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_listen(*mut RdmaCmId, c_int) -> c_int;
        rdma_accept(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_reject(*mut RdmaCmId, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut RdmaCmId) -> c_int;
        rdma_get_cm_event(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event(*mut RdmaCmEvent) -> c_int;
        rdma_init_qp_attr(*mut RdmaCmId, *mut IbvQpAttr, *mut c_int) -> c_int;
        rdma_get_src_port(*mut RdmaCmId) -> u16;
    }
}

/// Both libraries, which stay loaded.
pub(crate) struct Library {
    pub(crate) verbs: VerbsFunctions,
    pub(crate) manager: ManagerFunctions,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

/// Returns the libraries. An attempt that failed is made again by the next call: they may have been installed meanwhile.
pub(crate) fn loaded_library() -> Result<&'static Library, IbverbsError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = Library { verbs: VerbsFunctions::load(VERBS)?, manager: ManagerFunctions::load(MANAGER)? };
    Ok(LIBRARY.get_or_init(|| library))
}

fn loader_error() -> String {
    // SAFETY: the returned pointer is null, or that of a string that stays until this thread's next call.
    let text: *mut c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the error of the call that this thread has just made.
pub(crate) fn last_error(call: &'static str) -> IbverbsError {
    let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    IbverbsError::Call { call, error }
}

/// Returns the error of a call that is the first to ask the kernel.
pub(crate) fn first_error(call: &'static str) -> IbverbsError {
    match last_error(call) {
        IbverbsError::Call { error: Errno::NOSYS | Errno::NODEV | Errno::NOENT, .. } => {
            IbverbsError::NoSupport { call }
        }
        other => other,
    }
}

/// Checks the result of a call that returns 0, an error number, or −1 with `errno`.
pub(crate) fn check_result(call: &'static str, result: c_int) -> Result<(), IbverbsError> {
    match result {
        0 => Ok(()),
        1.. => Err(IbverbsError::Call { call, error: Errno::from_raw_os_error(result) }),
        _ => Err(last_error(call)),
    }
}

/// Sets a descriptor of a library not to block.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), IbverbsError> {
    let set =
        rustix::fs::fcntl_getfl(fd).and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK));
    set.map_err(|error| IbverbsError::Call { call: "fcntl", error })
}

/// Returns whether an error means that nothing waits.
pub(crate) fn is_empty(error: &IbverbsError) -> bool {
    matches!(error, IbverbsError::Call { error: Errno::AGAIN | Errno::INTR, .. })
}
