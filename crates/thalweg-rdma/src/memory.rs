//! Protection domains, memory regions, memory windows.

use crate::adapter::Registered;
use crate::device::{Device, DeviceInner, VerbsError};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use thalweg_arena::SharedMemory;
use thalweg_rnic::{Access, Command, Reply, Sge, WindowKind};

/// A protection domain (`allocate_pd`): queue pairs reach memory of their own domain only. Clones are the same.
#[doc(alias = "ibv_pd")]
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<DomainInner>,
}

#[derive(Debug)]
pub(crate) struct DomainInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) handle: u32,
}

impl Drop for DomainInner {
    fn drop(&mut self) {
        let _ = self.device.call_rnic(Command::DeallocateDomain(self.handle), Vec::new());
    }
}

/// Range of a file that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which requests name the first byte: that of its mapping in this program, usually.
    pub base: u64,
}

impl Device {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate_domain(&self) -> Result<ProtectionDomain, VerbsError> {
        let handle = self.inner.call_for_handle(Command::AllocateDomain, Vec::new())?;
        Ok(ProtectionDomain { inner: Arc::new(DomainInner { device: Arc::clone(&self.inner), handle }) })
    }
}

impl ProtectionDomain {
    /// Returns the number of regions, windows, queues and clones of this that exist.
    pub fn user_count(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Registers a range of a memfd: an arena's, or another that is sealed against shrinking (`F_SEAL_SHRINK`). With a
    /// right to write, it must not be sealed against writing; an [`Arena`](thalweg_arena::Arena) is, and can be
    /// registered for reading.
    ///
    /// The memory need not be pinned, since the RNIC has page tables of its own; it should be populated, or the first
    /// access waits for the kernel. (An RDMA device pins it. There, the file may also be a DMA buffer.)
    ///
    /// # Errors
    /// The RNIC refuses: the range is not in the file, the seals are wrong, a limit is exceeded. Or it has ended.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_memory(
        &self,
        fd: BorrowedFd<'_>,
        range: MemoryRange,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let fd = fd.try_clone_to_owned().map_err(|error| VerbsError::Os {
            doing: "duplicating a file descriptor",
            error: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::MFILE),
        })?;
        let registered = self.inner.device.register_file(self.inner.handle, fd, range, access)?;
        Ok(self.new_region(registered, range))
    }

    /// Registers a range of memory that this program has mapped, with an RNIC that is embedded in it.
    ///
    /// # Errors
    /// The RNIC refuses: it is not embedded, the range is not in the memory, a limit is exceeded, or the memory may not be
    /// written and is to be.
    pub fn register_mapped(
        &self,
        memory: Arc<SharedMemory>,
        range: MemoryRange,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let registered = self.inner.device.register_memory((self.inner.handle, None), memory, range, access)?;
        Ok(self.new_region(registered, range))
    }

    fn new_region(&self, Registered { stag, peer_base }: Registered, range: MemoryRange) -> MemoryRegion {
        MemoryRegion { domain: Arc::clone(&self.inner), stag, range, peer_base, registered: true }
    }

    /// Allocates a memory window, which is not bound.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate_window(&self, kind: WindowKind) -> Result<MemoryWindow, VerbsError> {
        let command = Command::AllocateWindow { domain: self.inner.handle, kind };
        let stag = self.inner.device.call_for_handle(command, Vec::new())?;
        Ok(MemoryWindow { domain: Arc::clone(&self.inner), stag, kind })
    }

    /// Creates memory and registers all of it.
    ///
    /// # Errors
    /// The kernel has no memory, or the RNIC refuses.
    pub fn create_buffer(&self, bytes: usize, access: Access) -> Result<Buffer, VerbsError> {
        let (fd, memory) = SharedMemory::create("rdma-buffer", bytes)?;
        let memory = Arc::new(memory);
        let range = MemoryRange { offset: 0, length: bytes as u64, base: memory.base_address() };
        let region = if self.inner.device.takes_mappings() {
            self.register_mapped(Arc::clone(&memory), range, access)?
        } else {
            self.register_memory(std::os::fd::AsFd::as_fd(&fd), range, access)?
        };
        Ok(Buffer { region, memory, fd })
    }
}

/// A memory region (`allocate_mr`). Dropping it gives it back: no access to it is under way afterwards, and later ones are
/// refused.
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<DomainInner>,
    stag: u32,
    range: MemoryRange,
    peer_base: u64,
    registered: bool,
}

impl MemoryRegion {
    /// Returns the STag, by which this program (`lkey`) and peers (`rkey`) name the memory.
    #[doc(alias = "lkey")]
    #[doc(alias = "rkey")]
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Returns the registered range.
    pub fn registered_range(&self) -> MemoryRange {
        self.range
    }

    /// Returns the address by which peers name the byte at `at`: counted from [`MemoryRange::base`], except on an RDMA device,
    /// which has an address of its own for the first byte.
    pub fn peer_address(&self, at: u64) -> u64 {
        self.peer_base.wrapping_add(at)
    }

    /// Returns the element of `bytes` bytes from `at` on.
    pub fn sge(&self, at: u64, bytes: u32) -> Sge {
        Sge { address: self.range.base.wrapping_add(at), bytes, stag: self.stag }
    }

    /// Returns the buffers of the region, offset in the file and length (`get_pbl`). The page list of an RNIC in hardware is
    /// that of the RNIC's page tables here: a region is one buffer.
    ///
    /// # Errors
    /// The RNIC has ended.
    pub fn page_list(&self) -> Result<Vec<(u64, u64)>, VerbsError> {
        match self.domain.device.call_rnic(Command::PageList(self.stag), Vec::new())? {
            Reply::PageList(list) => Ok(list),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Registers other memory of this process, rights or another domain under the STag of this region.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register_mapped`], and if memory windows are bound to the region; it is as before.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn register_again(
        &mut self,
        domain: &ProtectionDomain,
        memory: Arc<SharedMemory>,
        range: MemoryRange,
        access: Access,
    ) -> Result<(), VerbsError> {
        let device = &domain.inner.device;
        let again = device.register_memory((domain.inner.handle, Some(self.stag)), memory, range, access)?;
        (self.domain, self.range, self.peer_base) = (Arc::clone(&domain.inner), range, again.peer_base);
        Ok(())
    }

    /// Gives the region back. Where that fails, dropping the region tries it again.
    ///
    /// # Errors
    /// Memory windows are bound to it: invalidate them first. Or the RNIC has ended.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(&mut self) -> Result<(), VerbsError> {
        if self.registered {
            self.domain.device.call_for_done(Command::Deregister(self.stag), Vec::new())?;
            self.registered = false;
        }
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.deregister();
    }
}

/// A memory window: rights for peers to a part of a region, which are given and taken back by requests.
#[doc(alias = "ibv_mw")]
#[derive(Debug)]
pub struct MemoryWindow {
    domain: Arc<DomainInner>,
    stag: u32,
    kind: WindowKind,
}

impl MemoryWindow {
    /// Returns the STag that it was allocated with. Each binding needs a new one: [`next_window_stag`].
    pub fn first_stag(&self) -> u32 {
        self.stag
    }

    /// Returns the kind.
    pub fn window_kind(&self) -> WindowKind {
        self.kind
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let _ = self.domain.device.call_rnic(Command::Deregister(self.stag), Vec::new());
    }
}

/// Returns the STag with the next key, for the next binding of a window.
#[doc(alias = "ibv_inc_rkey")]
pub fn next_window_stag(stag: u32) -> u32 {
    stag & !0xff | u32::from((stag as u8).wrapping_add(1))
}

/// Memory of this program with its region.
#[derive(Debug)]
pub struct Buffer {
    region: MemoryRegion,
    memory: Arc<SharedMemory>,
    fd: OwnedFd,
}

impl Buffer {
    /// Returns the region.
    pub fn memory_region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the memory.
    pub fn shared_memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the file descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    /// Returns the STag.
    pub fn stag(&self) -> u32 {
        self.region.stag()
    }

    /// Returns the address of the byte at `at`, by which peers name it, too.
    pub fn address_at(&self, at: u64) -> u64 {
        self.region.peer_address(at)
    }

    /// Returns the element of `bytes` bytes from `at` on.
    pub fn sge(&self, at: u64, bytes: u32) -> Sge {
        self.region.sge(at, bytes)
    }
}
