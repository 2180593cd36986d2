//! A function of a PCI device: its registers, and the memory it may write to.

use crate::container::{Container, DeviceMemory};
use crate::{PciError, vfio};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::str::FromStr;
use std::sync::Arc;
use thalweg_arena::Arena;

/// Address of a function: domain, bus, device and function, `0000:00:10.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for Location {
    type Err = PciError;

    fn from_str(text: &str) -> Result<Self, PciError> {
        parse_location(text).ok_or_else(|| PciError::Location(text.into()))
    }
}

fn parse_location(text: &str) -> Option<Location> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let location = Location {
        domain: parse_hex(domain, 4..=8)?,
        bus: parse_hex(bus, 2..=2)?.try_into().ok()?,
        device: parse_hex(device, 2..=2)?.try_into().ok()?,
        function: parse_hex(function, 1..=1)?.try_into().ok()?,
    };
    (location.device < 32 && location.function < 8).then_some(location)
}

/// Parses a hexadecimal number whose length, in digits, is within a range.
fn parse_hex(digits: &str, lengths: RangeInclusive<usize>) -> Option<u32> {
    let is_plain = lengths.contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl Location {
    /// Returns the class, subclass and interface that the function states (PCI Code and ID Assignment Specification).
    pub(crate) fn class_code(self) -> Option<u32> {
        let text = fs::read_to_string(self.sysfs_path("class")).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    pub(crate) fn sysfs_path(self, name: &str) -> PathBuf {
        format!("/sys/bus/pci/devices/{self}/{name}").into()
    }

    /// Checks that the function is there, and bound to `vfio-pci`.
    ///
    /// # Errors
    /// Fails if it is not; the error names the remedy.
    pub fn check_ready(self) -> Result<(), PciError> {
        if !self.sysfs_path("").exists() {
            return Err(PciError::NotFound(self.to_string()));
        }
        let driver = fs::read_link(self.sysfs_path("driver")).ok();
        let driver = driver.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
        match driver {
            Some(name) if name == "vfio-pci" => Ok(()),
            other => {
                let present = other.map_or("it has no driver".into(), |name| format!("{name} has it"));
                Err(PciError::NotBound { device: self.to_string(), present })
            }
        }
    }

    /// Returns the function's group of devices that cannot be isolated from each other, and true if an IOMMU isolates
    /// the group.
    fn iommu_group(self) -> io::Result<(String, bool)> {
        let group = fs::read_link(self.sysfs_path("iommu_group"))?;
        let number = group.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // Without an IOMMU the kernel makes groups itself, with this name (vfio_noiommu_group_alloc,
        // drivers/vfio/group.c).
        let name = fs::read_to_string(self.sysfs_path("iommu_group/name")).unwrap_or_default();
        Ok((number, name.trim() != "vfio-noiommu"))
    }
}

/// Returns true if an IOMMU stands between a device and memory; `None` if the name is not that of a PCI device that is
/// bound to `vfio-pci`.
pub fn has_iommu(device: &str) -> Option<bool> {
    let location: Location = device.parse().ok()?;
    location.check_ready().ok()?;
    location.iommu_group().ok().map(|(_, has_iommu)| has_iommu)
}

/// A function that this process drives. When this is dropped, the function no longer writes to memory.
#[derive(Debug)]
pub struct Function {
    location: Location,
    registers: Registers,
    device: File,
    configuration: u64,
    container: Arc<Container>,
    group: Arc<OwnedFd>,
}

/// Offset of the command register (PCI Local Bus Specification 3.0, 6.2.2), and two of its bits.
const COMMAND: u64 = 4;
/// Offset of the byte that holds the offset of the first capability (6.7).
const CAPABILITIES: u8 = 0x34;
const MEMORY: u16 = 1 << 1;
const MASTER: u16 = 1 << 2;

impl Function {
    /// Opens a function, with the registers of its base address `bar`. It reaches no memory before
    /// [`enable_memory_access`](Self::enable_memory_access) is called.
    ///
    /// # Errors
    /// Fails if the function is not there or not bound to `vfio-pci`, or if the kernel does not give it to this
    /// process.
    pub fn open(location: Location, bar: u32) -> Result<Self, PciError> {
        location.check_ready()?;
        let (number, has_iommu) =
            location.iommu_group().map_err(PciError::from_system_call(location, "looking for its IOMMU group"))?;
        let path = format!("/dev/vfio/{}{number}", if has_iommu { "" } else { "noiommu-" });
        let group = File::options().read(true).write(true).open(&path);
        let group = Arc::new(OwnedFd::from(
            group.map_err(PciError::from_system_call(location, "opening its group in /dev/vfio"))?,
        ));
        let container = Container::join_container(group.as_fd(), has_iommu)
            .map_err(PciError::from_system_call(location, "putting it into a VFIO container"))?;
        let name = CString::new(location.to_string()).unwrap_or_default();
        let device =
            vfio::open_device(group.as_fd(), &name).map_err(PciError::from_system_call(location, "opening it"))?;
        let [registers, configuration] =
            [vfio::region_info(device.as_fd(), bar), vfio::region_info(device.as_fd(), vfio::CONFIGURATION)];
        let registers = registers.map_err(PciError::from_system_call(location, "querying its registers"))?;
        let configuration =
            configuration.map_err(PciError::from_system_call(location, "querying its registers"))?.offset;
        let registers = Registers::map_region(&device, &registers)
            .map_err(PciError::from_system_call(location, "mapping its registers"))?;
        let function = Self { location, registers, device: device.into(), configuration, container, group };
        function
            .change_command(|before| (before | MEMORY) & !MASTER)
            .map_err(PciError::from_system_call(location, "accessing its registers"))?;
        Ok(function)
    }

    /// Lets the function read and write memory from now on. The caller must first make sure that operations of an
    /// earlier user have ended.
    ///
    /// # Errors
    /// Fails if the kernel does not write to the function's configuration.
    pub fn enable_memory_access(&self) -> Result<(), PciError> {
        self.change_command(|before| before | MASTER)
            .map_err(PciError::from_system_call(self.location, "enabling its writes to memory"))
    }

    /// Returns the registers of the function.
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Returns the capabilities with this number, in the order of the function's list: each as its first 20 bytes (PCI
    /// Local Bus Specification 3.0, 6.7). Number 9 is the vendor-specific capability.
    ///
    /// # Errors
    /// Fails if the kernel does not read the function's configuration.
    pub fn find_capabilities(&self, number: u8) -> Result<Vec<[u8; 20]>, PciError> {
        let (mut found, mut at) = (Vec::new(), [0]);
        self.read_configuration(CAPABILITIES, &mut at)?;
        // No more than there is room for: a circular list has no end.
        for _ in 0..48 {
            let mut capability = [0; 20];
            if at[0] < 0x40 {
                break;
            }
            let begin = at[0] & 0xfc;
            // The configuration of a device that is not PCI Express ends there.
            let there = capability.len().min(256 - usize::from(begin));
            self.read_configuration(begin, &mut capability[..there])?;
            if capability[0] == number {
                found.push(capability);
            }
            at[0] = capability[1];
        }
        Ok(found)
    }

    fn read_configuration(&self, offset: u8, bytes: &mut [u8]) -> Result<(), PciError> {
        let read = self.device.read_exact_at(bytes, self.configuration + u64::from(offset));
        read.map_err(PciError::from_system_call(self.location, "reading its configuration"))
    }

    /// Switches on the first `count` interrupts: messages (MSI-X, else MSI). To be called once, before the device is
    /// set to use them. They are off again when the function is dropped.
    ///
    /// # Errors
    /// Fails if the function has fewer, or only a line (INTx), which is shared with other devices: such a function must
    /// be polled.
    pub fn enable_interrupts(&self, count: u32) -> Result<Vec<Interrupt>, PciError> {
        let device = self.device.as_fd();
        let Some(index) = vfio::MESSAGES.into_iter().find(|index| vfio::interrupt_count(device, *index) >= count)
        else {
            let most = vfio::MESSAGES.map(|index| vfio::interrupt_count(device, index)).into_iter().max().unwrap_or(0);
            let problem = format!("{count} message-signalled interrupts were requested, but it has only {most}");
            return Err(PciError::from_problem(self.location, problem));
        };
        let doing = "switching on interrupts";
        let mut interrupts = Vec::new();
        for _ in 0..count {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            interrupts.push(Interrupt { fd: fd.map_err(PciError::from_system_call(self.location, doing))? });
        }
        let fds: Vec<_> = interrupts.iter().map(Interrupt::fd).collect();
        vfio::connect_interrupts(device, index, &fds).map_err(PciError::from_system_call(self.location, doing))?;
        Ok(interrupts)
    }

    /// Returns true if an IOMMU restricts the function to the memory that it was shown.
    pub fn has_iommu(&self) -> bool {
        self.container.has_iommu
    }

    /// Lets the function read and write an arena.
    ///
    /// # Errors
    /// Fails if the IOMMU does not take the arena, or if without an IOMMU its pages cannot be held.
    pub fn share_arena(&self, arena: &Arc<Arena>) -> Result<DeviceMemory, PciError> {
        DeviceMemory::new(&self.container, &self.group, arena, &self.location.to_string())
    }

    fn change_command(&self, change: impl FnOnce(u16) -> u16) -> io::Result<()> {
        let mut bytes = [0; 2];
        self.device.read_exact_at(&mut bytes, self.configuration + COMMAND)?;
        let command = change(u16::from_le_bytes(bytes));
        self.device.write_all_at(&command.to_le_bytes(), self.configuration + COMMAND)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        // Operations that are under way no longer reach memory, which may have another owner next.
        if let Err(error) = self.change_command(|before| before & !MASTER) {
            tracing::warn!("{} may still write to memory: {error}", self.location);
        }
        // Some devices cannot be reset.
        let _ = vfio::reset_device(self.device.as_fd());
    }
}

/// An interrupt of a device.
#[derive(Debug)]
pub struct Interrupt {
    fd: OwnedFd,
}

impl Interrupt {
    /// Returns the descriptor, which is readable from the interrupt until it is [taken](Self::take_pending).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns true if the interrupt has come since it was last taken. Call it before looking for what the device has
    /// done: a later interrupt makes the descriptor readable again.
    pub fn take_pending(&self) -> bool {
        rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }
}

/// Mapped registers of a function.
pub struct Registers {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone; registers are read and written whole.
unsafe impl Send for Registers {}
// SAFETY: as for `Send`.
unsafe impl Sync for Registers {}

impl Registers {
    fn map_region(device: &OwnedFd, region: &vfio::Region) -> io::Result<Self> {
        let size = usize::try_from(region.size).unwrap_or(usize::MAX);
        if region.flags & vfio::Region::MAPPABLE == 0 || size == 0 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "they cannot be mapped"));
        }
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), size, both, MapFlags::SHARED, device, region.offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, size })
    }

    /// Returns the size of the registers in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size
    }

    fn register_pointer<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>());
        let fits = end.is_some_and(|end| end <= self.size) && offset.is_multiple_of(size_of::<T>());
        assert!(fits, "a register at {offset:#x} of {:#x} bytes", self.size);
        self.start.as_ptr().wrapping_add(offset).cast()
    }

    /// Reads a register of 8 bits.
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub fn read_u8(&self, offset: usize) -> u8 {
        // SAFETY: within the mapping.
        unsafe { self.register_pointer::<u8>(offset).read_volatile() }
    }

    /// Reads a register of 16 bits.
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub fn read_u16(&self, offset: usize) -> u16 {
        // SAFETY: within the mapping, and aligned.
        unsafe { self.register_pointer::<u16>(offset).read_volatile() }
    }

    /// Reads a register of 32 bits.
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub fn read_u32(&self, offset: usize) -> u32 {
        // SAFETY: within the mapping, and aligned.
        unsafe { self.register_pointer::<u32>(offset).read_volatile() }
    }

    /// Reads a register of 64 bits.
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub fn read_u64(&self, offset: usize) -> u64 {
        // SAFETY: within the mapping, and aligned.
        unsafe { self.register_pointer::<u64>(offset).read_volatile() }
    }

    /// Writes a register of 8 bits.
    ///
    /// # Safety
    /// The same as for [`write_u64`](Self::write_u64).
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub unsafe fn write_u8(&self, offset: usize, value: u8) {
        // SAFETY: within the mapping. The caller is responsible for the device.
        unsafe { self.register_pointer::<u8>(offset).write_volatile(value) }
    }

    /// Writes a register of 16 bits.
    ///
    /// # Safety
    /// The same as for [`write_u64`](Self::write_u64).
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub unsafe fn write_u16(&self, offset: usize, value: u16) {
        // SAFETY: within the mapping, and aligned. The caller is responsible for the device.
        unsafe { self.register_pointer::<u16>(offset).write_volatile(value) }
    }

    /// Writes a register of 32 bits.
    ///
    /// # Safety
    /// The same as for [`write_u64`](Self::write_u64).
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub unsafe fn write_u32(&self, offset: usize, value: u32) {
        // SAFETY: within the mapping, and aligned. The caller is responsible for the device.
        unsafe { self.register_pointer::<u32>(offset).write_volatile(value) }
    }

    /// Writes a register of 64 bits.
    ///
    /// # Safety
    /// The write must not make the device write to memory that other code reads or writes.
    ///
    /// # Panics
    /// Panics if the register is out of bounds, or not aligned.
    pub unsafe fn write_u64(&self, offset: usize, value: u64) {
        // SAFETY: within the mapping, and aligned. The caller is responsible for the device.
        unsafe { self.register_pointer::<u64>(offset).write_volatile(value) }
    }
}

impl fmt::Debug for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registers({:#x} bytes)", self.size)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the mapping is the one that was made, and no one uses it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_and_nothing_else() {
        for text in ["0000:00:10.0", "0000:ff:1f.7", "10000:e1:00.0"] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
        for text in ["", "00:10.0", "0000:00:20.0", "0000:00:10.8", "0000:00:10", "../../x:00:10.0", "+000:00:10.0"] {
            assert!(text.parse::<Location>().unwrap_err().to_string().contains("lspci -D"), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_or_not_ours_is_told() {
        let error = Function::open("ffff:ff:1f.7".parse().unwrap(), 0).unwrap_err().to_string();
        assert!(error.contains("ffff:ff:1f.7: there is no such PCI device"), "{error}");
        assert_eq!((has_iommu("ffff:ff:1f.7"), has_iommu("net_memif0,role=server")), (None, None));
    }
}
