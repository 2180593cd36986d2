//! Devices driven by a program instead of the kernel.

use crate::kernel::Config;
use crate::{Finding, read};
use std::path::Path;

pub(super) fn probe() -> Finding {
    let there = Path::new("/dev/vfio/vfio").exists();
    let unsafe_mode = match read::text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode").as_deref() {
        Some("Y") => "no-IOMMU mode on",
        Some(_) => "no-IOMMU mode off",
        None => "no-IOMMU mode not there",
    };
    let groups = read::names("/dev/vfio").into_iter().filter(|name| name != "vfio").count();
    let config = Config::read();
    Finding::new(
        "VFIO",
        format!(
            "/dev/vfio/vfio {}, {groups} groups bound, {unsafe_mode}; {}, {}",
            if there { "there" } else { "not there" },
            config.says("CONFIG_VFIO"),
            config.says("CONFIG_VFIO_NOIOMMU")
        ),
    )
}
