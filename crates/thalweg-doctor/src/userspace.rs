//! Ways around the kernel: DPDK, VFIO, RDMA, GPUs. Nothing here is needed for shared memory and TCP, so that nothing
//! here is ever a fault: it says what is there.

mod dpdk;
mod gpu;
mod iommu;
mod libraries;
mod rdma;
mod vfio;

use crate::Finding;

pub(crate) fn examine() -> Vec<Finding> {
    let mut findings = vec![dpdk::library()];
    findings.extend(dpdk::requirements());
    findings.extend([iommu::probe(), vfio::probe(), rdma::probe(), rdma::software(), gpu::probe()]);
    findings
}
