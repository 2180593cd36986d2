//! Devices driven by a program instead of the kernel.

use crate::kernel::Config;
use crate::{Finding, read};
use std::path::Path;

pub(super) fn probe_vfio() -> Finding {
    let there = Path::new("/dev/vfio/vfio").exists();
    let unsafe_mode = match read::read_text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode").as_deref() {
        Some("Y") => "no-IOMMU mode on",
        Some(_) => "no-IOMMU mode off",
        None => "no-IOMMU mode not there",
    };
    let groups = read::read_names("/dev/vfio").into_iter().filter(|name| name != "vfio").count();
    let config = Config::read_running_config();
    let bound = bound_devices();
    let devices = if bound.is_empty() { String::new() } else { format!(", devices: {}", bound.join(", ")) };
    Finding::new(
        "VFIO",
        format!(
            "/dev/vfio/vfio {}, {groups} groups bound, {unsafe_mode}{devices}; {}, {}",
            if there { "there" } else { "not there" },
            config.setting_text("CONFIG_VFIO"),
            config.setting_text("CONFIG_VFIO_NOIOMMU")
        ),
    )
}

/// Returns the devices that a program may drive, each with its IOMMU group.
fn bound_devices() -> Vec<String> {
    let names = read::read_names("/sys/bus/pci/drivers/vfio-pci").into_iter();
    let devices = names.filter_map(|name| {
        let has_iommu = thalweg_pci::has_iommu(&name)?;
        let link = std::fs::read_link(format!("/sys/bus/pci/devices/{name}/iommu_group")).ok()?;
        let group = link.file_name()?.to_string_lossy().into_owned();
        Some(format!("{name} (group {group}{})", if has_iommu { "" } else { ", no IOMMU" }))
    });
    devices.collect()
}
