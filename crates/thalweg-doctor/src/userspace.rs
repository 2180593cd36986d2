//! Ways around the kernel: DPDK, VFIO, RDMA, GPUs. Shared memory and TCP need none of them, so their absence is no
//! fault, except that of DPDK if a node of the topology drives an adapter with it.

pub(crate) mod dpdk;
mod gpu;
mod iommu;
mod libraries;
mod rdma;
mod udmabuf;
mod vfio;

use crate::Finding;

pub(crate) fn examine_userspace() -> Vec<Finding> {
    let mut findings = vec![dpdk::probe_library()];
    findings.extend(dpdk::check_requirements());
    findings.extend([iommu::probe_iommu(), vfio::probe_vfio(), udmabuf::probe_dma_buffers()]);
    findings.extend([rdma::probe_rdma_devices(), rdma::probe_software_rdma(), gpu::probe_gpus()]);
    findings
}
