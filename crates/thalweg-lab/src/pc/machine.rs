//! The machine: processors, memory, devices and their addresses.

use std::str::FromStr;
use std::time::Duration;
use thalweg_text::ByteSize;
use thiserror::Error;

/// A machine to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Number of processors, at least 1.
    pub processors: u32,
    /// Size of the memory. The host provides only the part that is used.
    pub memory: ByteSize,
    /// Presence of an IOMMU between devices and memory.
    pub iommu: Iommu,
    /// True if it has QEMU's [edu](https://www.qemu.org/docs/master/specs/edu.html) device, at [`EDU`]: a DMA engine
    /// with an interrupt, as simple as can be.
    pub edu: bool,
    /// True if it has virtio's entropy device, at [`RNG`].
    pub rng: bool,
    /// NICs, at most [`MOST_NICS`], each at its [`nic_address`].
    pub nics: Vec<Nic>,
    /// Size of each NVMe disk, at most [`MOST_NVMES`] of them, each at its [`nvme_address`]. The disks are empty.
    pub nvmes: Vec<ByteSize>,
    /// Number of huge pages of 2 MiB that are set aside before the command runs.
    pub huge_pages: u32,
    /// Longest time of a whole run, the boot included.
    pub timeout: Duration,
}

/// A machine without devices of its own.
impl Default for Machine {
    fn default() -> Self {
        Self {
            processors: 2,
            memory: ByteSize(2 << 30),
            iommu: Iommu::On,
            edu: false,
            rng: false,
            nics: Vec::new(),
            nvmes: Vec::new(),
            huge_pages: 0,
            timeout: Duration::from_secs(300),
        }
    }
}

/// Presence of an IOMMU (Intel VT-d) between devices and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iommu {
    /// Devices reach memory through the IOMMU, and each is in a group of its own.
    On,
    /// No IOMMU: a device reaches all of memory. VFIO is used in its no-IOMMU mode.
    Off,
}

/// A network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nic {
    /// Model of the card.
    pub model: NicModel,
    /// Number of the wire it is on. Each of a wire's NICs receives from all others, as on a hub.
    pub wire: u32,
}

/// A network card that QEMU emulates and DPDK has a driver for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NicModel {
    /// virtio 1.0. Its link is up at once.
    Virtio,
    /// Intel 82574L. Its link takes some ten seconds to come up.
    E1000e,
    /// VMware's vmxnet3. It takes rings of 512 descriptors and more.
    Vmxnet3,
    /// Intel 82576, which QEMU has from version 8.0 on.
    Igb,
}

impl FromStr for NicModel {
    type Err = UnknownNic;

    fn from_str(text: &str) -> Result<Self, UnknownNic> {
        match text {
            "virtio" => Ok(Self::Virtio),
            "e1000e" => Ok(Self::E1000e),
            "vmxnet3" => Ok(Self::Vmxnet3),
            "igb" => Ok(Self::Igb),
            _ => Err(UnknownNic(text.to_owned())),
        }
    }
}

/// Error for the name of an unknown network card.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{0}' is not a NIC: write virtio, e1000e, vmxnet3 or igb")]
pub struct UnknownNic(String);

/// PCI address of the edu device.
pub const EDU: &str = "0000:00:10.0";
/// PCI address of the entropy device.
pub const RNG: &str = "0000:00:0f.0";
/// Largest number of NICs of a machine.
pub const MOST_NICS: usize = 7;
/// Largest number of NVMe disks of a machine.
pub const MOST_NVMES: usize = 7;

/// Slots of the root bus, fixed so that the order of devices does not change them. The chipset has 0 and 31; the
/// machine's other built-in devices take the first free slots.
pub(crate) const RNG_SLOT: usize = 0x0f;
pub(crate) const EDU_SLOT: usize = 0x10;
pub(crate) const NIC_SLOT: usize = 0x11;
pub(crate) const NVME_SLOT: usize = 0x18;

/// Returns the PCI address of a NIC, counted from 0: the first is at `0000:00:11.0`, the next at `0000:00:12.0`.
pub fn nic_address(index: usize) -> String {
    slot_address(NIC_SLOT + index)
}

/// Returns the PCI address of an NVMe disk, counted from 0: the first is at `0000:00:18.0`, the next at `0000:00:19.0`.
pub fn nvme_address(index: usize) -> String {
    slot_address(NVME_SLOT + index)
}

fn slot_address(slot: usize) -> String {
    format!("0000:00:{slot:02x}.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_slot_of_its_own() {
        assert_eq!([slot_address(RNG_SLOT), slot_address(EDU_SLOT)], [RNG, EDU]);
        assert_eq!([nic_address(0), nic_address(MOST_NICS - 1)], ["0000:00:11.0", "0000:00:17.0"]);
        assert_eq!([nvme_address(0), nvme_address(MOST_NVMES - 1)], ["0000:00:18.0", "0000:00:1e.0"]);
    }
}
