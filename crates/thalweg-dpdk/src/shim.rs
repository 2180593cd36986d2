//! The shim: its functions, and how it is loaded into the process.

use crate::DpdkError;
use rustix::fs::MemfdFlags;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Shared object compiled from `shim/shim.c`; empty if there was no DPDK.
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.so"));

/// Returns the shim, which is loaded for as long as the process lives.
pub(crate) fn loaded_shim() -> Result<&'static Shim, DpdkError> {
    // An attempt that failed costs little, and may succeed when DPDK has been installed meanwhile.
    static LOADED: OnceLock<&'static Shim> = OnceLock::new();
    match LOADED.get() {
        Some(shim) => Ok(shim),
        None => load_shim().map(|shim| *LOADED.get_or_init(|| shim)),
    }
}

fn load_shim() -> Result<&'static Shim, DpdkError> {
    if BYTES.is_empty() {
        return Err(DpdkError::NotBuilt);
    }
    let doing = "putting the shared object into memory";
    let file = rustix::fs::memfd_create("thalweg-dpdk", MemfdFlags::CLOEXEC)
        .map_err(|error| DpdkError::Load { doing, error: error.into() })?;
    let mut file = std::fs::File::from(file);
    file.write_all(BYTES).map_err(|error| DpdkError::Load { doing, error })?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL character in it");
    // SAFETY: the shared object is our own and runs no code when it is loaded; DPDK's libraries, which it needs,
    // register their drivers and log types in lists of their own.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if object.is_null() {
        return Err(DpdkError::NotInstalled { why: loader_error() });
    }
    // SAFETY: the object is open, and the name is a string.
    let table = unsafe { libc::dlsym(object, c"thalweg_dpdk".as_ptr()) };
    if table.is_null() {
        return Err(DpdkError::NotInstalled { why: loader_error() });
    }
    // SAFETY: the object was compiled together with this file, from a header that declares the same as `Shim`, and is
    // never unloaded.
    Ok(unsafe { &*table.cast::<Shim>() })
}

fn loader_error() -> String {
    // SAFETY: the returned pointer is null, or that of a string that stays until this thread's next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A port of the shim.
#[repr(C)]
pub(crate) struct Port {
    opaque: [u8; 0],
}

/// Memory that a port of the shim may read.
#[repr(C)]
pub(crate) struct Memory {
    opaque: [u8; 0],
}

/// Settings for opening a port.
#[repr(C)]
pub(crate) struct Settings {
    /// Largest frame without its Ethernet header, in bytes; 0: the device's default.
    pub(crate) mtu: u32,
    /// Number of bytes that the driver needs in a receive buffer, if more than a frame has.
    pub(crate) room: u32,
    /// True (not 0) if the driver carries frames of any length, despite the limit that it reports.
    pub(crate) lax: u32,
    /// True (not 0) if frames for other addresses are to be received, too, provided that the driver supports it.
    pub(crate) all: u32,
    /// Number of descriptors for received frames, and for sent ones.
    pub(crate) receive: u16,
    pub(crate) transmit: u16,
}

/// Properties of an open port.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) mac: [u8; 6],
    pub(crate) receive: u16,
    pub(crate) mtu: u32,
    /// NUMA node; -1: none in particular.
    pub(crate) node: i32,
    /// True (not 0) if the device takes a frame in pieces.
    pub(crate) gathers: i32,
    /// True (not 0) if the device reads memory by physical addresses.
    pub(crate) physical: i32,
    /// True (not 0) if the device receives frames for other addresses, too.
    pub(crate) all: i32,
    pub(crate) driver: [u8; 32],
}

/// A frame that was received.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) bytes: *const u8,
    pub(crate) length: u32,
    pub(crate) pieces: u32,
}

/// Addresses on the bus at which a device reads the first parts of a piece.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Places {
    count: u32,
    lengths: [u32; 8],
    addresses: [u64; 8],
}

impl Places {
    /// Returns addresses and lengths of the parts.
    pub(crate) fn addresses_and_lengths(&self) -> impl Iterator<Item = (u64, u32)> {
        self.addresses.into_iter().zip(self.lengths).take(self.count as usize)
    }
}

/// Counters of a device.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) dropped: u64,
    pub(crate) damaged: u64,
}

/// Results of `take`: taken, or taken and copied; any other means no room.
pub(crate) const TAKEN: c_int = 0;
pub(crate) const COPIED: c_int = 1;

/// Functions of the shim (`shim/shim.h`). A port is used by one thread at a time; `start`, `open`, `close` and `admit`
/// are called one at a time.
#[repr(C)]
pub(crate) struct Shim {
    pub(crate) version: unsafe extern "C" fn() -> *const c_char,
    pub(crate) start:
        unsafe extern "C" fn(c_int, *mut *mut c_char, extern "C" fn(c_int, *const c_char, usize)) -> c_int,
    pub(crate) enter: unsafe extern "C" fn() -> c_int,
    pub(crate) leave: unsafe extern "C" fn(),
    pub(crate) lcore: unsafe extern "C" fn() -> u32,
    pub(crate) container: unsafe extern "C" fn() -> c_int,
    pub(crate) learn: unsafe extern "C" fn(*mut c_void, usize, usize, *mut u64) -> c_int,
    pub(crate) forget: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
    pub(crate) port_bytes: unsafe extern "C" fn(*const Settings) -> u64,
    pub(crate) open:
        unsafe extern "C" fn(*const c_char, *const Settings, *mut Facts, *mut *const c_char, *mut c_int) -> *mut Port,
    pub(crate) close: unsafe extern "C" fn(*mut Port),
    pub(crate) link: unsafe extern "C" fn(*mut Port) -> c_int,
    pub(crate) admit: unsafe extern "C" fn(
        *mut Port,
        *mut c_void,
        usize,
        usize,
        *const u64,
        *mut c_void,
        extern "C" fn(*mut c_void),
        *mut c_int,
    ) -> *mut Memory,
    pub(crate) take: unsafe extern "C" fn(*mut Port, *const u8, u32, *mut Memory, usize, u32, *mut Places) -> c_int,
    pub(crate) flush: unsafe extern "C" fn(*mut Port) -> u32,
    pub(crate) receive: unsafe extern "C" fn(*mut Port, *mut *const Frame) -> u32,
    pub(crate) join: unsafe extern "C" fn(*mut Port, u32) -> *const u8,
    pub(crate) done: unsafe extern "C" fn(*mut Port),
    pub(crate) count: unsafe extern "C" fn(*mut Port, *mut Statistics),
}
