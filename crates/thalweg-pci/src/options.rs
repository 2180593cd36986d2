//! Options of the devices that this crate drives: their `device = { kind = "edu", … }` and `"nvme"` tables.

use crate::{Edu, Nvme};
use serde::{Deserialize, Serialize};
use thalweg_device::{Adapter, DeviceError, DeviceKind, DeviceOptions, OpenDevice};
use thalweg_text::ByteSize;

/// QEMU's edu device, bound to `vfio-pci`: see
/// [a machine with devices](https://www.qemu.org/docs/master/specs/edu.html).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EduConfig {
    /// PCI address of the device, `0000:00:10.0`.
    pub address: String,
    /// Bytes in each fragment's payload.
    #[serde(default = "longest_edu")]
    pub size: ByteSize,
    /// True to have the device, before the run, write to memory that was not registered with it: an IOMMU prevents it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stray: bool,
}

/// Default size in bytes: with its header, a record then has the size of a page.
fn longest_edu() -> ByteSize {
    ByteSize(4032)
}

/// An NVMe disk, bound to `vfio-pci`. It is read from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConfig {
    /// PCI address of the disk, `0000:00:18.0`.
    pub address: String,
    /// Bytes in each fragment's payload: a multiple of the disk's blocks.
    pub size: ByteSize,
}

impl DeviceOptions for EduConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Edu::new(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        let possible = (1..=longest_edu().0).contains(&self.size.0);
        let expected = "1 to 4032 bytes, the size of its buffer";
        if possible { Ok(()) } else { Err(DeviceError::Setting { option: "size", value: self.size.0, expected }) }
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn has_timestamps(&self) -> bool {
        false
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(self.size.0)
    }

    fn is_steady_stream(&self) -> bool {
        true
    }

    fn address_place(&self) -> String {
        self.address.clone()
    }

    fn is_found_by_search(&self) -> bool {
        true
    }
}

impl DeviceKind for EduConfig {
    const NAME: &'static str = "edu";
    const ADDRESS: Option<&'static str> = Some("edu:ADDRESS");

    fn from_address_place(place: &str) -> Option<Self> {
        Some(Self { address: place.to_owned(), size: longest_edu(), stray: false })
    }
}

impl DeviceOptions for NvmeConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Nvme::new(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        let possible = (512..=2 << 20).contains(&self.size.0) && self.size.0.is_multiple_of(512);
        let expected = "a multiple of 512 bytes, at most 2 MiB";
        if possible { Ok(()) } else { Err(DeviceError::Setting { option: "size", value: self.size.0, expected }) }
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn has_timestamps(&self) -> bool {
        false
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(self.size.0)
    }

    fn address_place(&self) -> String {
        self.address.clone()
    }

    fn is_found_by_search(&self) -> bool {
        true
    }
}

impl DeviceKind for NvmeConfig {
    const NAME: &'static str = "nvme";
    const ADDRESS: Option<&'static str> = Some("nvme:ADDRESS");

    fn from_address_place(place: &str) -> Option<Self> {
        Some(Self { address: place.to_owned(), size: ByteSize(64 << 10) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod edu {
        use super::*;
        thalweg_device::device_conformance!(EduConfig, ["address = \"0000:00:10.0\"\nsize = 64\nstray = true"]);
    }

    mod nvme {
        use super::*;
        thalweg_device::device_conformance!(NvmeConfig, ["address = \"0000:00:18.0\"\nsize = \"128KiB\""]);
    }
}
