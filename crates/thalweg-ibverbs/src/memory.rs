//! Protection domains, memory regions.

use crate::abi::{IbvMr, IbvPd};
use crate::context::{Context, report_leak};
use crate::library::{IbverbsError, last_error};
use libc::c_int;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use thalweg_arena::SharedMemory;

/// Rights that write: the owner's requests, peers' writes, peers' atomics.
const WRITING: u32 = 1 | 2 | 8;

/// A protection domain (`struct ibv_pd`).
#[derive(Debug)]
pub struct Domain {
    pub(crate) pointer: NonNull<IbvPd>,
    pub(crate) context: Arc<Context>,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    /// The device refuses.
    pub fn allocate(context: &Arc<Context>) -> Result<Arc<Self>, IbverbsError> {
        // SAFETY: see the crate's documentation.
        let domain = unsafe { (context.library.verbs.ibv_alloc_pd)(context.pointer.as_ptr()) };
        let Some(pointer) = NonNull::new(domain) else { return Err(last_error("ibv_alloc_pd")) };
        Ok(Arc::new(Self { pointer, context: Arc::clone(context) }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        report_leak("ibv_dealloc_pd", unsafe { (self.context.library.verbs.ibv_dealloc_pd)(self.pointer.as_ptr()) });
    }
}

/// A memory region (`struct ibv_mr`). The memory stays mapped until it is dropped.
#[derive(Debug)]
pub struct Region {
    pointer: NonNull<IbvMr>,
    domain: Arc<Domain>,
    device_base: u64,
    /// Dropped after the region was given back. `None`: the kernel holds a DMA buffer.
    _memory: Option<Arc<SharedMemory>>,
}

// SAFETY: see the crate's documentation.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers a range of mapped memory (`ibv_reg_mr`), whose pages the kernel pins. `access` is of `ibv_access_flags`.
    ///
    /// # Errors
    /// The range is not within the memory, or is to be written and may not be; the device refuses; or the limit of locked
    /// memory (`ulimit -l`) is reached.
    pub fn register(
        domain: &Arc<Domain>,
        memory: Arc<SharedMemory>,
        (offset, length): (u64, u64),
        access: u32,
    ) -> Result<Self, IbverbsError> {
        let limit = memory.size_bytes() as u64;
        let is_inside = length > 0 && offset.checked_add(length).is_some_and(|end| end <= limit);
        if !is_inside || access & WRITING != 0 && !memory.is_writable() {
            return Err(IbverbsError::Range { offset, length, limit });
        }
        let address = memory.base_address() + offset;
        // SAFETY: see the crate's documentation. The range is mapped as long as `memory` exists, which the region holds, and
        // any program may write to it at any time.
        let region = unsafe {
            (domain.context.library.verbs.ibv_reg_mr)(
                domain.pointer.as_ptr(),
                std::ptr::with_exposed_provenance_mut(address as usize),
                length as usize,
                access.cast_signed(),
            )
        };
        Self::new(domain, region, (address, length), Some(memory), "ibv_reg_mr")
    }

    /// Registers a range of a DMA buffer (`ibv_reg_dmabuf_mr`), whose first byte requests name by `base`.
    ///
    /// # Errors
    /// The descriptor is none of a DMA buffer, or the device refuses.
    pub fn register_dma_buf(
        domain: &Arc<Domain>,
        fd: BorrowedFd<'_>,
        (offset, length): (u64, u64),
        base: u64,
        access: u32,
    ) -> Result<Self, IbverbsError> {
        let range = IbverbsError::Call { call: "ibv_reg_dmabuf_mr", error: Errno::OVERFLOW };
        let bytes = usize::try_from(length).map_err(|_| range)?;
        // SAFETY: see the crate's documentation. The kernel holds the buffer.
        let region = unsafe {
            (domain.context.library.verbs.ibv_reg_dmabuf_mr)(
                domain.pointer.as_ptr(),
                offset,
                bytes,
                base,
                fd.as_raw_fd() as c_int,
                access.cast_signed(),
            )
        };
        Self::new(domain, region, (base, length), None, "ibv_reg_dmabuf_mr")
    }

    fn new(
        domain: &Arc<Domain>,
        region: *mut IbvMr,
        (device_base, length): (u64, u64),
        memory: Option<Arc<SharedMemory>>,
        call: &'static str,
    ) -> Result<Self, IbverbsError> {
        let Some(pointer) = NonNull::new(region) else {
            return Err(match last_error(call) {
                IbverbsError::Call { error: Errno::NOMEM, .. } => IbverbsError::Pinning { call, length },
                other => other,
            });
        };
        Ok(Self { pointer, domain: Arc::clone(domain), device_base, _memory: memory })
    }

    /// Returns the key by which requests of this program name the memory.
    pub fn local_key(&self) -> u32 {
        // SAFETY: see the crate's documentation.
        unsafe { self.pointer.as_ref().lkey }
    }

    /// Returns the key by which peers name the memory.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: see the crate's documentation.
        unsafe { self.pointer.as_ref().rkey }
    }

    /// Returns the address by which the device knows the first byte: that of the mapping, or the one given.
    pub fn device_base(&self) -> u64 {
        self.device_base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: see the crate's documentation.
        let result = unsafe { (self.domain.context.library.verbs.ibv_dereg_mr)(self.pointer.as_ptr()) };
        if result != 0 {
            // The device may still access the memory: it stays mapped.
            std::mem::forget(self._memory.take());
        }
        report_leak("ibv_dereg_mr", result);
    }
}
