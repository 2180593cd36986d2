//! Ways around the kernel: DPDK, VFIO, RDMA, GPUs. Nothing here is needed for shared memory and TCP, so that what is not
//! there is no fault, but for DPDK where a topology's node drives an adapter by it.

pub(crate) mod dpdk;
mod gpu;
mod iommu;
mod libraries;
mod rdma;
mod udmabuf;
mod vfio;

use crate::Finding;

pub(crate) fn examine() -> Vec<Finding> {
    let mut findings = vec![dpdk::library()];
    findings.extend(dpdk::requirements());
    findings.extend([iommu::probe(), vfio::probe(), udmabuf::probe()]);
    findings.extend([rdma::probe(), rdma::software(), gpu::probe()]);
    findings
}
