//! Devices: names, opening, limits, asynchronous events.

use crate::abi::{IbvContext, IbvDevice, IbvDeviceAttr, LibraryAsyncEvent, TRANSPORT_IWARP};
use crate::library::{
    IbverbsError, Library, check_result, first_error, is_empty, last_error, loaded_library, set_nonblocking,
};
use libc::c_int;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// An open device (`struct ibv_context`).
#[derive(Debug)]
pub struct Context {
    pub(crate) pointer: NonNull<IbvContext>,
    pub(crate) library: &'static Library,
    name: String,
    is_iwarp: bool,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Limits of a device (`struct ibv_device_attr`), as far as they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "names are those of the header")]
pub struct DeviceLimits {
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    /// Whether there are atomics.
    pub has_atomics: bool,
}

/// An asynchronous event: its type (`ibv_event_type`), and the object that it belongs to, by its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncNotice {
    /// Number of the event's type.
    pub event_type: u32,
    /// [`QueuePair::token`](crate::QueuePair::token) or that of another object.
    pub token: usize,
}

/// List of the devices of this machine, as libibverbs has it.
struct DeviceList {
    pointer: NonNull<*mut IbvDevice>,
    count: usize,
    library: &'static Library,
}

impl DeviceList {
    fn read(library: &'static Library) -> Result<Self, IbverbsError> {
        let mut count: c_int = 0;
        // SAFETY: see the crate's documentation.
        let list = unsafe { (library.verbs.ibv_get_device_list)(&raw mut count) };
        let Some(pointer) = NonNull::new(list) else { return Err(first_error("ibv_get_device_list")) };
        Ok(Self { pointer, count: usize::try_from(count).unwrap_or(0), library })
    }

    fn devices(&self) -> impl Iterator<Item = *mut IbvDevice> {
        // SAFETY: the list has as many entries.
        (0..self.count).map(|at| unsafe { *self.pointer.as_ptr().add(at) })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        unsafe { (self.library.verbs.ibv_free_device_list)(self.pointer.as_ptr()) };
    }
}

/// Returns the name of a device that is in the list, or open.
pub(crate) fn name_of(device: *mut IbvDevice) -> String {
    // SAFETY: see the crate's documentation; the name is a string of C.
    unsafe { CStr::from_ptr((&raw const (*device).name).cast()) }.to_string_lossy().into_owned()
}

/// Returns the names of the RDMA devices of this machine (`ibv_get_device_list`).
///
/// # Errors
/// The libraries are not installed, or cannot look.
pub fn device_names() -> Result<Vec<String>, IbverbsError> {
    let list = DeviceList::read(loaded_library()?)?;
    Ok(list.devices().map(name_of).collect())
}

impl Context {
    /// Opens a device by its name (`ibv_open_device`).
    ///
    /// # Errors
    /// The libraries are not installed, there is no device of this name, or it cannot be opened.
    pub fn open(name: &str) -> Result<Arc<Self>, IbverbsError> {
        let library = loaded_library()?;
        let list = DeviceList::read(library)?;
        let Some(device) = list.devices().find(|device| name_of(*device) == name) else {
            return Err(IbverbsError::NoDevice { name: name.into(), found: list.devices().map(name_of).collect() });
        };
        // SAFETY: the device is in the list, which is there.
        let context = unsafe { (library.verbs.ibv_open_device)(device) };
        let Some(pointer) = NonNull::new(context) else { return Err(last_error("ibv_open_device")) };
        // SAFETY: as above.
        let is_iwarp = unsafe { (*device).transport_type } == TRANSPORT_IWARP;
        let context = Self { pointer, library, name: name.into(), is_iwarp };
        set_nonblocking(context.event_descriptor())?;
        Ok(Arc::new(context))
    }

    /// Returns the name of the device.
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// Returns whether the device speaks iWARP.
    pub fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// Returns the limits of the device (`ibv_query_device`).
    ///
    /// # Errors
    /// The library refuses.
    pub fn query_limits(&self) -> Result<DeviceLimits, IbverbsError> {
        // SAFETY: all members may be zero.
        let mut a = unsafe { std::mem::zeroed::<IbvDeviceAttr>() };
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.library.verbs.ibv_query_device)(self.pointer.as_ptr(), &raw mut a) };
        check_result("ibv_query_device", result)?;
        Ok(DeviceLimits {
            max_qp: limit_number(a.max_qp),
            max_qp_wr: limit_number(a.max_qp_wr),
            max_sge: limit_number(a.max_sge),
            max_cq: limit_number(a.max_cq),
            max_cqe: limit_number(a.max_cqe),
            max_mr: limit_number(a.max_mr),
            max_pd: limit_number(a.max_pd),
            max_qp_rd_atom: limit_number(a.max_qp_rd_atom),
            max_qp_init_rd_atom: limit_number(a.max_qp_init_rd_atom),
            max_srq: limit_number(a.max_srq),
            max_srq_wr: limit_number(a.max_srq_wr),
            has_atomics: a.atomic_cap != 0,
        })
    }

    /// Returns the descriptor that is readable when there is an asynchronous event.
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.pointer.as_ref().async_fd) }
    }

    /// Takes the next asynchronous event (`ibv_get_async_event`); `None` if there is none now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_event(&self) -> Result<Option<AsyncNotice>, IbverbsError> {
        let mut event = LibraryAsyncEvent { element: std::ptr::null_mut(), event_type: 0 };
        // SAFETY: see the crate's documentation.
        if unsafe { (self.library.verbs.ibv_get_async_event)(self.pointer.as_ptr(), &raw mut event) } != 0 {
            let error = last_error("ibv_get_async_event");
            return if is_empty(&error) { Ok(None) } else { Err(error) };
        }
        let notice = AsyncNotice { event_type: event.event_type.cast_unsigned(), token: event.element.addr() };
        // SAFETY: the event was just taken; an object is not freed before its events are acknowledged.
        unsafe { (self.library.verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(notice))
    }
}

fn limit_number(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.library.verbs.ibv_close_device)(self.pointer.as_ptr()) };
        report_leak("ibv_close_device", result);
    }
}

/// Reports that the library has not given an object back. It is kept by the library, which is safe.
pub(crate) fn report_leak(call: &'static str, result: c_int) {
    if let Err(error) = check_result(call, result) {
        tracing::warn!("{error}: the object stays until the program ends");
    }
}
