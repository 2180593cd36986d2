//! Search for PCI functions: the driver of each, and the IOMMU between it and memory.

use crate::Location;
use std::fs;

/// A PCI function of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFunction {
    /// Address of the function.
    pub location: Location,
    /// Kind of device, by its class.
    pub class: &'static str,
    /// Vendor and device, as four hexadecimal digits each: `1b36:0010`.
    pub id: String,
    /// Name of its driver, if it has one.
    pub driver: Option<String>,
    /// Number of its IOMMU group, if there is an IOMMU.
    pub group: Option<u32>,
    /// The `kind` of device that takes data from it, if there is one.
    pub kind: Option<&'static str>,
}

/// Returns all functions but bridges, sorted by address.
pub fn find_functions() -> Vec<PciFunction> {
    let entries = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let locations = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<Location>().ok());
    let mut all: Vec<PciFunction> = locations.filter_map(inspect_function).collect();
    all.sort_by_key(|found| found.location.to_string());
    all
}

fn inspect_function(location: Location) -> Option<PciFunction> {
    let class = location.class_code()?;
    let id = format!("{}:{}", read_number(location, "vendor"), read_number(location, "device"));
    let kind = match (class >> 8, id.as_str()) {
        (0x0108, _) => Some("nvme"),
        (_, "1234:11e8") => Some("edu"),
        _ => None,
    };
    let class = class_name(class)?;
    Some(PciFunction {
        location,
        class,
        id,
        driver: link_name(location, "driver"),
        group: link_name(location, "iommu_group").and_then(|name| name.parse().ok()),
        kind,
    })
}

/// Returns the hexadecimal digits in a file of a function; none if the file cannot be read.
fn read_number(location: Location, name: &str) -> String {
    let text = fs::read_to_string(location.sysfs_path(name)).unwrap_or_default();
    text.trim().trim_start_matches("0x").to_owned()
}

/// Returns the name of the file that a link of a function leads to.
fn link_name(location: Location, name: &str) -> Option<String> {
    let path = fs::read_link(location.sysfs_path(name)).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Returns the name of a class (PCI Code and ID Assignment Specification, section 1); `None` for bridges.
fn class_name(class: u32) -> Option<&'static str> {
    Some(match (class >> 16, class >> 8 & 0xff) {
        (0x01, 0x08) => "NVMe disk",
        (0x01, _) => "storage",
        (0x02, 0x07) => "InfiniBand",
        (0x02, _) => "network",
        (0x03, _) => "display",
        (0x04, _) => "multimedia",
        (0x06, _) => return None,
        (0x0c, 0x03) => "USB",
        (0x11, _) => "data acquisition",
        (0x12, _) => "accelerator",
        _ => "device",
    })
}
