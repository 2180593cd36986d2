//! Ways around the kernel: DPDK, VFIO, RDMA, GPUs. Shared memory and TCP need none of them, so their absence is no
//! fault, except that of DPDK if a node of the topology drives an adapter by it.

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
