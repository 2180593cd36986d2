//! IOMMU, which restricts a device to the memory that it was given.

use crate::{Finding, read};

pub(super) fn probe_iommu() -> Finding {
    let groups = read::read_names("/sys/kernel/iommu_groups");
    let evidence = match groups.len() {
        0 => "none in use: no groups in /sys/kernel/iommu_groups".to_owned(),
        count => format!("in use: {count} groups (/sys/kernel/iommu_groups)"),
    };
    Finding::new("IOMMU", evidence)
}
