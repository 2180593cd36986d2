//! VFIO's system calls: linux/vfio.h, Documentation/driver-api/vfio.rst.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `VFIO_TYPE1v2_IOMMU`, `VFIO_NOIOMMU_IOMMU`
pub(crate) const TYPE1V2: libc::c_ulong = 3;
pub(crate) const NO_IOMMU: libc::c_ulong = 8;
/// `VFIO_PCI_CONFIG_REGION_INDEX`
pub(crate) const CONFIGURATION: u32 = 7;
/// `VFIO_PCI_MSIX_IRQ_INDEX`, `VFIO_PCI_MSI_IRQ_INDEX`: interrupts that are messages, the better kind first. A device
/// has only one of the two switched on.
pub(crate) const MESSAGES: [u32; 2] = [2, 1];

/// `_IO(';', 100 + number)`
const fn ioctl_number(number: libc::c_ulong) -> libc::c_ulong {
    (b';' as libc::c_ulong) << 8 | (100 + number)
}

/// `struct vfio_region_info`
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Region {
    argsz: u32,
    pub(crate) flags: u32,
    index: u32,
    capabilities: u32,
    pub(crate) size: u64,
    pub(crate) offset: u64,
}

impl Region {
    /// `VFIO_REGION_INFO_FLAG_MMAP`
    pub(crate) const MAPPABLE: u32 = 1 << 2;
}

/// `struct vfio_iommu_type1_dma_map`
#[repr(C)]
struct Map {
    argsz: u32,
    flags: u32,
    process: u64,
    bus: u64,
    size: u64,
}

/// `struct vfio_iommu_type1_dma_unmap`
#[repr(C)]
struct Unmap {
    argsz: u32,
    flags: u32,
    bus: u64,
    size: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "structures of some bytes")]
const fn size_of_one<T>() -> u32 {
    size_of::<T>() as u32
}

fn check_answer(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// `VFIO_SET_IOMMU`
pub(crate) fn set_iommu(container: BorrowedFd<'_>, kind: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the argument is a number.
    check_answer(unsafe { libc::ioctl(container.as_raw_fd(), ioctl_number(2), kind) }).map(drop)
}

/// `VFIO_GROUP_SET_CONTAINER`
pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let container = container.as_raw_fd();
    // SAFETY: the kernel reads one descriptor.
    check_answer(unsafe { libc::ioctl(group.as_raw_fd(), ioctl_number(4), &raw const container) }).map(drop)
}

/// `VFIO_GROUP_GET_DEVICE_FD`
pub(crate) fn open_device(group: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads a string that ends with a zero.
    let fd = check_answer(unsafe { libc::ioctl(group.as_raw_fd(), ioctl_number(6), name.as_ptr()) })?;
    // SAFETY: the descriptor is new, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `VFIO_DEVICE_GET_REGION_INFO`
pub(crate) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Region> {
    let mut region = Region { argsz: size_of_one::<Region>(), index, ..Region::default() };
    // SAFETY: the kernel reads and writes one structure of this type, of the length that it states.
    check_answer(unsafe { libc::ioctl(device.as_raw_fd(), ioctl_number(8), &raw mut region) })?;
    Ok(region)
}

/// `struct vfio_irq_info`
#[repr(C)]
#[derive(Debug, Default)]
struct Interrupts {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

/// Returns the number of interrupts of this kind that can signal a descriptor (`VFIO_DEVICE_GET_IRQ_INFO`); 0 if the
/// device has none of the kind.
pub(crate) fn interrupt_count(device: BorrowedFd<'_>, index: u32) -> u32 {
    /// `VFIO_IRQ_INFO_EVENTFD`
    const SIGNALS_EVENTFD: u32 = 1;
    let mut interrupts = Interrupts { argsz: size_of_one::<Interrupts>(), index, ..Interrupts::default() };
    // SAFETY: the kernel reads and writes one structure of this type, of the length that it states.
    let answer = check_answer(unsafe { libc::ioctl(device.as_raw_fd(), ioctl_number(9), &raw mut interrupts) });
    if answer.is_ok() && interrupts.flags & SIGNALS_EVENTFD != 0 { interrupts.count } else { 0 }
}

/// Connects the first interrupts of a kind to these descriptors of eventfd(2), and switches the others off
/// (`VFIO_DEVICE_SET_IRQS`).
pub(crate) fn connect_interrupts(device: BorrowedFd<'_>, index: u32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    /// `VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER`
    const TRIGGER_EVENTFD: u32 = 1 << 2 | 1 << 5;
    // `struct vfio_irq_set`: five numbers, followed by the descriptors.
    #[expect(clippy::cast_possible_truncation, reason = "no more than a device has interrupts")]
    let count = fds.len() as u32;
    let mut set = vec![4 * (5 + count), TRIGGER_EVENTFD, index, 0, count];
    set.extend(fds.iter().map(|fd| fd.as_raw_fd().cast_unsigned()));
    // SAFETY: the kernel reads as many bytes as the first number states.
    check_answer(unsafe { libc::ioctl(device.as_raw_fd(), ioctl_number(10), set.as_ptr()) }).map(drop)
}

/// `VFIO_DEVICE_RESET`
pub(crate) fn reset_device(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: nothing is passed.
    check_answer(unsafe { libc::ioctl(device.as_raw_fd(), ioctl_number(11)) }).map(drop)
}

/// Lets devices in the container read and write this memory, by the process's addresses (`VFIO_IOMMU_MAP_DMA`).
///
/// # Safety
/// The memory must stay mapped until [`unmap_memory`], and bytes that devices write must not be used by other code until they
/// are done.
pub(crate) unsafe fn map_memory(container: BorrowedFd<'_>, memory: *const [u8]) -> io::Result<()> {
    /// `VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE`
    const BOTH: u32 = 3;
    let address = memory.cast::<u8>().addr() as u64;
    let map =
        Map { argsz: size_of_one::<Map>(), flags: BOTH, process: address, bus: address, size: memory.len() as u64 };
    // SAFETY: the kernel reads one structure of this type; the caller is responsible for the memory.
    check_answer(unsafe { libc::ioctl(container.as_raw_fd(), ioctl_number(13), &raw const map) }).map(drop)
}

/// `VFIO_IOMMU_UNMAP_DMA`
pub(crate) fn unmap_memory(container: BorrowedFd<'_>, memory: *const [u8]) -> io::Result<()> {
    let bus = memory.cast::<u8>().addr() as u64;
    let mut unmap = Unmap { argsz: size_of_one::<Unmap>(), flags: 0, bus, size: memory.len() as u64 };
    // SAFETY: the kernel reads and writes one structure of this type. Devices lose access to memory by it, the process
    // does not.
    check_answer(unsafe { libc::ioctl(container.as_raw_fd(), ioctl_number(14), &raw mut unmap) }).map(drop)
}
