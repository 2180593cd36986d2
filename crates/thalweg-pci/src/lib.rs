//! PCI devices that a program drives by itself (VFIO), and that write into its arenas.
//!
//! A [`Function`] is one function of a PCI device, which must already be bound to `vfio-pci`. [`Function::share_arena`] gives
//! the device access to an arena, and returns the addresses at which the device finds the arena's bytes:
//!
//! | | an address on the bus is | memory that no device of the process was shown |
//! | --- | --- | --- |
//! | behind an IOMMU | the process's own | is not reached: the IOMMU stops the device, and the kernel logs the fault |
//! | without one (VFIO's no-IOMMU mode) | physical; the pages are [held](PinnedArena) in place | is reached. Nothing stops a wrong address |
//!
//! The devices of a process share one VFIO container, and so one table of addresses, where possible: a NIC that DPDK
//! drives is in it, too ([`share_container`]). So a device writes a slot, and the NIC sends it, by the same address.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `options` | Options of the devices that this crate drives: their `device = { kind = "edu", … }` and `"nvme"` tables |
//! | `found` | Search for PCI functions: the driver of each, and the IOMMU between it and memory |
//! | `edu` | QEMU's edu device, as a source's device: the simplest device with DMA |
//! | `nvme` | An NVMe disk, as a source's device |
//! | `function` | A function of a PCI device: its registers, and the memory it may write to |
//! | `container` | VFIO's container: the addresses that its devices reach |
//! | `held` | Pages that stay in place, and their physical addresses: for a device without an IOMMU |
//! | `vfio` | VFIO's system calls |
//! | `error` | Errors of a PCI device |

mod container;
mod edu;
mod error;
mod found;
mod function;
mod held;
mod nvme;
mod options;
mod vfio;

pub use container::{DeviceMemory, share_container};
pub use edu::Edu;
pub use error::PciError;
pub use found::{PciFunction, find_functions};
pub use function::{Function, Interrupt, Location, Registers, has_iommu};
pub use held::PinnedArena;
pub use nvme::{DmaEngine, Nvme, Way};
pub use options::{EduConfig, NvmeConfig};

use thalweg_device::DeviceError;

/// Registers the kinds `edu` and `nvme` in this process.
pub fn register_kinds() {
    thalweg_device::register_kind::<EduConfig>();
    thalweg_device::register_kind::<NvmeConfig>();
}

/// Returns the device that a topology names, if it is there and bound to `vfio-pci`.
fn ready_location(address: &str) -> Result<Location, DeviceError> {
    let location: Location = address.parse().map_err(|error| device_error(address, &error))?;
    location.check_ready().map_err(|error| device_error(&location.to_string(), &error))?;
    Ok(location)
}

/// Converts an error to a device's error, which names the device by itself.
fn device_error(device: &str, error: &PciError) -> DeviceError {
    let problem = error.to_string();
    let problem = problem.strip_prefix(&format!("{device}: ")).map(str::to_owned).unwrap_or(problem);
    hardware_error(device, problem)
}

/// Returns the error for a device that is of another kind, or has failed.
fn hardware_error(device: &str, problem: impl Into<String>) -> DeviceError {
    DeviceError::Hardware { device: device.to_owned(), problem: problem.into() }
}
