//! The shim: what it can do, and how it gets into the process.

use crate::DpdkError;
use rustix::fs::MemfdFlags;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// What the compiler made of `shim/shim.c`: nothing, where there was no DPDK.
static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.so"));

/// The shim, loaded for as long as the process lives.
pub(crate) fn shim() -> Result<&'static Shim, DpdkError> {
    // An attempt that failed costs little, and may succeed when DPDK has been installed meanwhile.
    static LOADED: OnceLock<&'static Shim> = OnceLock::new();
    match LOADED.get() {
        Some(shim) => Ok(shim),
        None => load().map(|shim| *LOADED.get_or_init(|| shim)),
    }
}

fn load() -> Result<&'static Shim, DpdkError> {
    if BYTES.is_empty() {
        return Err(DpdkError::NotBuilt);
    }
    let doing = "putting the shared object into memory";
    let file = rustix::fs::memfd_create("thalweg-dpdk", MemfdFlags::CLOEXEC)
        .map_err(|error| DpdkError::Load { doing, error: error.into() })?;
    let mut file = std::fs::File::from(file);
    file.write_all(BYTES).map_err(|error| DpdkError::Load { doing, error })?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero in it");
    // SAFETY: the shared object is our own and runs nothing when it is loaded; DPDK's, which it needs, register their
    // drivers and log types in lists of their own.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if object.is_null() {
        return Err(DpdkError::NotInstalled { why: loader_error() });
    }
    // SAFETY: an open object, and a name.
    let table = unsafe { libc::dlsym(object, c"thalweg_dpdk".as_ptr()) };
    if table.is_null() {
        return Err(DpdkError::NotInstalled { why: loader_error() });
    }
    // SAFETY: the object was compiled together with this file, from a header that says the same as `Shim`, and is never
    // unloaded.
    Ok(unsafe { &*table.cast::<Shim>() })
}

fn loader_error() -> String {
    // SAFETY: the answer is null, or a string that stays until this thread asks again.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A port of the shim's.
#[repr(C)]
pub(crate) struct Port {
    opaque: [u8; 0],
}

/// Memory that a port of the shim's may read.
#[repr(C)]
pub(crate) struct Memory {
    opaque: [u8; 0],
}

/// How a port is to be opened.
#[repr(C)]
pub(crate) struct Settings {
    /// 0: as the device has it.
    pub(crate) mtu: u32,
    /// Bytes that the driver wants to have in a receive buffer, where it is more than a frame.
    pub(crate) room: u32,
    /// Whether the driver carries frames of any length, whatever it says is the longest.
    pub(crate) lax: u32,
    /// Whether frames for others are taken, too, where the driver can.
    pub(crate) all: u32,
    /// Descriptors for frames that come, and for those that go.
    pub(crate) receive: u16,
    pub(crate) transmit: u16,
}

/// What an open port is like.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) mac: [u8; 6],
    pub(crate) receive: u16,
    pub(crate) mtu: u32,
    /// NUMA node; -1: none in particular.
    pub(crate) node: i32,
    /// Whether it takes a frame in pieces.
    pub(crate) gathers: i32,
    /// Whether it reads memory by physical addresses.
    pub(crate) physical: i32,
    /// Whether it takes frames for others, too.
    pub(crate) all: i32,
    pub(crate) driver: [u8; 32],
}

/// A frame that has come.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) bytes: *const u8,
    pub(crate) length: u32,
    pub(crate) pieces: u32,
}

/// Where on the bus a device reads a piece: the first parts of it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Places {
    count: u32,
    lengths: [u32; 8],
    addresses: [u64; 8],
}

impl Places {
    /// Addresses and lengths.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, u32)> {
        self.addresses.into_iter().zip(self.lengths).take(self.count as usize)
    }
}

/// What a device has counted.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) dropped: u64,
    pub(crate) damaged: u64,
}

/// What `take` says: taken, taken and copied, or no room.
pub(crate) const TAKEN: c_int = 0;
pub(crate) const COPIED: c_int = 1;

/// Its functions (`shim/shim.h`). A port is used by one thread at a time; `start`, `open`, `close` and `admit` are
/// called one at a time.
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
