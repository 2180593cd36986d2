//! VFIO's container: the addresses that its devices reach.

use crate::{Held, PciError, vfio};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_arena::{Arena, Registration};

/// The container that the devices of this process share.
static SHARED: Mutex<Option<Arc<Container>>> = Mutex::new(None);

/// Devices that reach the same memory by the same addresses.
#[derive(Debug)]
pub(crate) struct Container {
    fd: OwnedFd,
    pub(crate) has_iommu: bool,
}

/// Notes that another part of this process has opened a container, and has a device in it: devices that are opened from
/// now on join it.
///
/// # Errors
/// Fails if the process has no descriptor left.
pub fn share_container(fd: BorrowedFd<'_>, has_iommu: bool) -> io::Result<()> {
    let fd = fd.try_clone_to_owned()?;
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Container { fd, has_iommu }));
    Ok(())
}

impl Container {
    /// Puts a group into the process's container, which is opened for the first group. If the group cannot be in one
    /// container with the others, it gets a container of its own.
    pub(crate) fn join_container(group: BorrowedFd<'_>, has_iommu: bool) -> io::Result<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(container) = shared.as_ref().filter(|container| container.has_iommu == has_iommu) {
            match vfio::set_container(group, container.fd.as_fd()) {
                Ok(()) => {
                    tracing::debug!("adding a device to the process's container");
                    // A container whose last group has left has no IOMMU any more (`vfio_group_detach_container`,
                    // drivers/vfio/container.c). If it still has one, the call fails with EINVAL.
                    match vfio::set_iommu(container.fd.as_fd(), container.iommu_type()) {
                        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
                        _ => return Ok(Arc::clone(container)),
                    }
                }
                Err(error) => tracing::warn!("a device has its own container, with the same addresses: {error}"),
            }
        }
        let fd = OwnedFd::from(File::options().read(true).write(true).open("/dev/vfio/vfio")?);
        vfio::set_container(group, fd.as_fd())?;
        let container = Arc::new(Self { fd, has_iommu });
        vfio::set_iommu(container.fd.as_fd(), container.iommu_type())?;
        shared.get_or_insert_with(|| Arc::clone(&container));
        Ok(container)
    }

    fn iommu_type(&self) -> libc::c_ulong {
        if self.has_iommu { vfio::TYPE1V2 } else { vfio::NO_IOMMU }
    }
}

/// An arena that a device reads and writes, and the addresses of its bytes on the bus. The device must be stopped
/// before this is dropped: without an IOMMU, or if DPDK has mapped the arena too, nothing else keeps the device away.
#[derive(Debug)]
pub struct DeviceMemory {
    mapping: Mapping,
    arena: Arc<Arena>,
    _registration: Registration,
}

#[derive(Debug)]
enum Mapping {
    /// Mapping by the process's addresses. It is removed with this value, unless DPDK had mapped the arena before. The
    /// group keeps the container's IOMMU until then.
    Mapped { container: Arc<Container>, ours: bool, _group: Arc<OwnedFd> },
    /// Pages at physical addresses.
    Physical(Box<Held>),
}

impl DeviceMemory {
    pub(crate) fn new(
        container: &Arc<Container>,
        group: &Arc<OwnedFd>,
        arena: &Arc<Arena>,
        device: &str,
    ) -> Result<Self, PciError> {
        let mapping = if container.has_iommu {
            // SAFETY: the mapping stays as long as the arena does, which this value keeps. Devices write where a driver
            // of this crate has them write.
            let ours = match unsafe { vfio::map_memory(container.fd.as_fd(), arena.mapped_range()) } {
                Ok(()) => true,
                // DPDK has mapped it, at the same addresses, for a NIC in the same container. Any other overlap is an
                // error: the pages behind it are unknown.
                Err(error)
                    if error.raw_os_error() == Some(libc::EEXIST) && arena.registration_names().contains(&"DPDK") =>
                {
                    false
                }
                Err(error) => {
                    let doing = "mapping an arena for it (VFIO_IOMMU_MAP_DMA)";
                    return Err(PciError::Os { device: device.into(), doing, error });
                }
            };
            Mapping::Mapped { container: Arc::clone(container), ours, _group: Arc::clone(group) }
        } else {
            Mapping::Physical(Box::new(Held::new(arena)?))
        };
        Ok(Self { mapping, arena: Arc::clone(arena), _registration: arena.record_registration("VFIO") })
    }

    /// Returns true for this arena, through this mapping.
    pub(crate) fn is_for_arena(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Returns the bus address of a range of the arena; `None` if it is not contiguous there, or exceeds the arena.
    pub fn bus_address(&self, offset: usize, length: usize) -> Option<u64> {
        offset.checked_add(length).filter(|end| *end <= self.arena.size_bytes())?;
        match &self.mapping {
            Mapping::Mapped { .. } => Some((self.arena.mapped_range().cast::<u8>().addr() + offset) as u64),
            Mapping::Physical(held) => held.physical_address(offset, length),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Mapping::Mapped { container, ours: true, .. } = &self.mapping
            && let Err(error) = vfio::unmap_memory(container.fd.as_fd(), self.arena.mapped_range())
        {
            tracing::warn!("an arena stays mapped for a device: {error}");
        }
    }
}
