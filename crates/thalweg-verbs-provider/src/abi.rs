//! Layouts and numbers of libibverbs (`infiniband/verbs.h`, and `infiniband/driver.h` of its sources), as far as a provider
//! needs them. A test compares them with the headers.

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

/// Function whose type does not matter here.
pub(crate) type Op = *const c_void;

/// Length in bytes of `struct ibv_context`.
pub(crate) const CONTEXT_BYTES: usize = size_of::<IbvContext>();

#[repr(C)]
pub(crate) struct IbvContext {
    pub(crate) device: *mut c_void,
    pub(crate) ops: [Op; 32],
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

/// `struct verbs_device_ops`.
#[repr(C)]
pub(crate) struct VerbsDeviceOps {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const c_void,
    pub(crate) static_providers: *const c_void,
    pub(crate) match_device: unsafe extern "C" fn(*mut VerbsSysfsDev) -> bool,
    pub(crate) alloc_context: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> *mut c_void,
    pub(crate) import_context: *const c_void,
    pub(crate) alloc_device: unsafe extern "C" fn(*mut VerbsSysfsDev) -> *mut c_void,
    pub(crate) uninit_device: unsafe extern "C" fn(*mut c_void),
}

/// Beginning of `struct verbs_sysfs_dev`.
#[repr(C)]
pub(crate) struct VerbsSysfsDev {
    entry: [*mut c_void; 2],
    provider_data: *mut c_void,
    match_entry: *const c_void,
    flags: c_uint,
    sysfs_name: [c_char; 64],
    sysfs_cdev: u64,
    pub(crate) ibdev_name: [c_char; 64],
}

/// Length in bytes that suffices for `struct verbs_device`.
pub(crate) const DEVICE_BYTES: usize = 1024;

#[repr(C)]
pub(crate) struct IbvPd {
    pub(crate) context: *mut IbvContext,
    pub(crate) handle: u32,
}

#[repr(C)]
pub(crate) struct IbvMr {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
pub(crate) struct VerbsMr {
    pub(crate) mr: IbvMr,
    pub(crate) mr_type: c_int,
    pub(crate) access: c_int,
}

#[repr(C)]
pub(crate) struct IbvMw {
    pub(crate) context: *mut IbvContext,
    pub(crate) pd: *mut IbvPd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvMwBindInfo {
    pub(crate) mr: *mut IbvMr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: c_uint,
}

#[repr(C)]
pub(crate) struct IbvMwBind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: c_uint,
    pub(crate) bind_info: IbvMwBindInfo,
}

#[repr(C)]
pub(crate) struct IbvCompChannel {
    pub(crate) context: *mut IbvContext,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

#[repr(C)]
pub(crate) struct IbvCq {
    pub(crate) context: *mut IbvContext,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

#[repr(C)]
pub(crate) struct IbvCqEx {
    pub(crate) cq: IbvCq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_int,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Op,
    pub(crate) next_poll: Op,
    pub(crate) end_poll: Op,
    pub(crate) read_opcode: Op,
    pub(crate) read_vendor_err: Op,
    pub(crate) read_byte_len: Op,
    pub(crate) read_imm_data: Op,
    pub(crate) read_qp_num: Op,
    pub(crate) read_src_qp: Op,
    pub(crate) read_wc_flags: Op,
    pub(crate) read_slid: Op,
    pub(crate) read_sl: Op,
    pub(crate) read_dlid_path_bits: Op,
    pub(crate) read_completion_ts: Op,
    pub(crate) read_cvlan: Op,
    pub(crate) read_flow_tag: Op,
    pub(crate) read_tm_info: Op,
    pub(crate) read_completion_wallclock_ns: Op,
}

#[repr(C)]
pub(crate) struct IbvCqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut IbvPd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvWc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) opcode: c_int,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate in network order, or the STag that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// Flags of a completion.
pub(crate) const WC_WITH_IMM: c_uint = 1 << 1;
pub(crate) const WC_WITH_INV: c_uint = 1 << 3;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
pub(crate) struct IbvRecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvRecvWr,
    pub(crate) sg_list: *const IbvSge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
pub(crate) struct IbvSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut IbvSendWr,
    pub(crate) sg_list: *const IbvSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_int,
    pub(crate) send_flags: c_uint,
    /// Immediate in network order, or the STag to invalidate.
    pub(crate) imm_data: u32,
    pub(crate) wr: WrTarget,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: WrBind,
}

/// Union `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union WrTarget {
    pub(crate) rdma: WrRdma,
    pub(crate) atomic: WrAtomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrRdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrAtomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// Longest member of the last union of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct WrBind {
    pub(crate) mw: *mut IbvMw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: IbvMwBindInfo,
}

/// Operations of a send request (`ibv_wr_opcode`).
pub(crate) mod opcode {
    use libc::c_int;
    pub(crate) const WRITE: c_int = 0;
    pub(crate) const WRITE_WITH_IMM: c_int = 1;
    pub(crate) const SEND: c_int = 2;
    pub(crate) const SEND_WITH_IMM: c_int = 3;
    pub(crate) const READ: c_int = 4;
    pub(crate) const CMP_AND_SWP: c_int = 5;
    pub(crate) const FETCH_AND_ADD: c_int = 6;
    pub(crate) const LOCAL_INV: c_int = 7;
    pub(crate) const BIND_MW: c_int = 8;
    pub(crate) const SEND_WITH_INV: c_int = 9;
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IbvQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct IbvQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
pub(crate) struct IbvQpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// Bits of `ibv_qp_init_attr_ex.comp_mask`.
pub(crate) const QP_INIT_PD: u32 = 1;
pub(crate) const QP_INIT_SEND_OPS: u32 = 1 << 6;

/// Reliable connected queue pairs.
pub(crate) const QPT_RC: c_int = 2;

#[repr(C)]
pub(crate) struct IbvQp {
    pub(crate) context: *mut IbvContext,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_int,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp_ex`.
#[repr(C)]
pub(crate) struct IbvQpEx {
    pub(crate) qp: IbvQp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) wr_atomic_cmp_swp: Op,
    pub(crate) wr_atomic_fetch_add: Op,
    pub(crate) wr_bind_mw: Op,
    pub(crate) wr_local_inv: Op,
    pub(crate) wr_rdma_read: Op,
    pub(crate) wr_rdma_write: Op,
    pub(crate) wr_rdma_write_imm: Op,
    pub(crate) wr_send: Op,
    pub(crate) wr_send_imm: Op,
    pub(crate) wr_send_inv: Op,
    pub(crate) wr_send_tso: Op,
    pub(crate) wr_set_ud_addr: Op,
    pub(crate) wr_set_xrc_srqn: Op,
    pub(crate) wr_set_inline_data: Op,
    pub(crate) wr_set_inline_data_list: Op,
    pub(crate) wr_set_sge: Op,
    pub(crate) wr_set_sge_list: Op,
    pub(crate) wr_start: Op,
    pub(crate) wr_complete: Op,
    pub(crate) wr_abort: Op,
    pub(crate) wr_atomic_write: Op,
    /// Later libraries have more.
    pub(crate) wr_later: [Op; 4],
}

/// `struct verbs_qp` of ABI 34.
#[repr(C)]
pub(crate) struct VerbsQp {
    pub(crate) ex: IbvQpEx,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDataBuf {
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvAhAttr {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpAttr {
    pub(crate) qp_state: c_int,
    pub(crate) cur_qp_state: c_int,
    pub(crate) path_mtu: c_int,
    pub(crate) path_mig_state: c_int,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: IbvQpCap,
    pub(crate) ah_attr: IbvAhAttr,
    pub(crate) alt_ah_attr: IbvAhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// Bits of `ibv_qp_attr_mask`.
pub(crate) mod attr_mask {
    use libc::c_int;
    pub(crate) const STATE: c_int = 1;
    pub(crate) const CUR_STATE: c_int = 1 << 1;
    pub(crate) const EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const QKEY: c_int = 1 << 6;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

/// States of a queue pair (`ibv_qp_state`).
pub(crate) mod qp_state {
    use libc::c_int;
    pub(crate) const RESET: c_int = 0;
    pub(crate) const INIT: c_int = 1;
    pub(crate) const RTR: c_int = 2;
    pub(crate) const RTS: c_int = 3;
    pub(crate) const SQD: c_int = 4;
    pub(crate) const SQE: c_int = 5;
    pub(crate) const ERR: c_int = 6;
}

#[repr(C)]
pub(crate) struct IbvSrq {
    pub(crate) context: *mut IbvContext,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut IbvPd,
    pub(crate) handle: u32,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct verbs_srq`.
#[repr(C)]
pub(crate) struct VerbsSrq {
    pub(crate) srq: IbvSrq,
    pub(crate) srq_type: c_int,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut IbvCq,
    pub(crate) srq_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C)]
pub(crate) struct IbvSrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
}

#[repr(C)]
pub(crate) struct IbvSrqInitAttrEx {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: c_int,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut IbvCq,
    pub(crate) tm_cap: [u32; 2],
}

#[repr(C)]
pub(crate) struct IbvDeviceAttr {
    pub(crate) fw_ver: [u8; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

#[repr(C)]
pub(crate) struct IbvDeviceAttrEx {
    pub(crate) orig_attr: IbvDeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_general_caps: u64,
    pub(crate) odp_transport_caps: [u32; 3],
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: [u64; 4],
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 5],
    pub(crate) cq_mod_caps: [u16; 2],
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

#[repr(C)]
pub(crate) struct IbvPortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
}

/// `struct ib_uverbs_async_event_desc`: message of an asynchronous event, as the kernel would send it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncEventMessage {
    pub(crate) element: u64,
    pub(crate) event_type: u32,
    pub(crate) reserved: u32,
}

/// Types of asynchronous events (`ibv_event_type`).
pub(crate) mod event_type {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const SRQ_ERR: u32 = 14;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    /// Header of libibverbs (package libibverbs-dev).
    const HEADER: &str = "/usr/include/infiniband/verbs.h";

    /// Expressions of C and what they are here: lengths of structs, and offsets of members.
    fn expectations() -> Vec<(String, usize)> {
        let mut all = Vec::new();
        macro_rules! layout {
            ($($kind:ident = $name:literal { $($member:ident = $path:literal),* };)*) => {
                $(
                    all.push((format!("sizeof(struct {})", $name), size_of::<$kind>()));
                    $(all.push((format!("offsetof(struct {}, {})", $name, $path), offset_of!($kind, $member)));)*
                )*
            };
        }
        layout! {
            IbvContext = "ibv_context" { cmd_fd = "cmd_fd", async_fd = "async_fd", mutex = "mutex", abi_compat = "abi_compat" };
            IbvPd = "ibv_pd" { handle = "handle" };
            IbvMr = "ibv_mr" { addr = "addr", length = "length", lkey = "lkey", rkey = "rkey" };
            IbvMw = "ibv_mw" { rkey = "rkey", mw_type = "type" };
            IbvMwBind = "ibv_mw_bind" { send_flags = "send_flags", bind_info = "bind_info" };
            IbvMwBindInfo = "ibv_mw_bind_info" { mw_access_flags = "mw_access_flags" };
            IbvCompChannel = "ibv_comp_channel" { fd = "fd", refcnt = "refcnt" };
            IbvCq = "ibv_cq" { cqe = "cqe", mutex = "mutex", cond = "cond", async_events_completed = "async_events_completed" };
            IbvCqEx = "ibv_cq_ex" {
                status = "status", wr_id = "wr_id", start_poll = "start_poll", read_qp_num = "read_qp_num",
                read_completion_wallclock_ns = "read_completion_wallclock_ns"
            };
            IbvCqInitAttrEx = "ibv_cq_init_attr_ex" {
                channel = "channel", wc_flags = "wc_flags", comp_mask = "comp_mask", parent_domain = "parent_domain"
            };
            IbvWc = "ibv_wc" { byte_len = "byte_len", imm_data = "imm_data", qp_num = "qp_num", wc_flags = "wc_flags", sl = "sl" };
            IbvSge = "ibv_sge" { length = "length", lkey = "lkey" };
            IbvRecvWr = "ibv_recv_wr" { sg_list = "sg_list", num_sge = "num_sge" };
            IbvSendWr = "ibv_send_wr" { send_flags = "send_flags", imm_data = "imm_data", wr = "wr", bind_mw = "bind_mw" };
            IbvQpCap = "ibv_qp_cap" { max_inline_data = "max_inline_data" };
            IbvQpInitAttr = "ibv_qp_init_attr" { cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all" };
            IbvQpInitAttrEx = "ibv_qp_init_attr_ex" {
                cap = "cap", comp_mask = "comp_mask", pd = "pd", create_flags = "create_flags", rwq_ind_tbl = "rwq_ind_tbl",
                source_qpn = "source_qpn", send_ops_flags = "send_ops_flags"
            };
            IbvQp = "ibv_qp" { qp_num = "qp_num", state = "state", mutex = "mutex", events_completed = "events_completed" };
            IbvDataBuf = "ibv_data_buf" { length = "length" };
            IbvAhAttr = "ibv_ah_attr" { sgid_index = "grh.sgid_index", dlid = "dlid", port_num = "port_num" };
            IbvQpAttr = "ibv_qp_attr" {
                dest_qp_num = "dest_qp_num", cap = "cap", ah_attr = "ah_attr", pkey_index = "pkey_index",
                max_rd_atomic = "max_rd_atomic", timeout = "timeout", rnr_retry = "rnr_retry", rate_limit = "rate_limit"
            };
            IbvSrq = "ibv_srq" { handle = "handle", mutex = "mutex", events_completed = "events_completed" };
            IbvSrqAttr = "ibv_srq_attr" { srq_limit = "srq_limit" };
            IbvSrqInitAttr = "ibv_srq_init_attr" { attr = "attr" };
            IbvSrqInitAttrEx = "ibv_srq_init_attr_ex" { comp_mask = "comp_mask", srq_type = "srq_type", pd = "pd", tm_cap = "tm_cap" };
            IbvDeviceAttr = "ibv_device_attr" { max_qp = "max_qp", max_mw = "max_mw", max_srq = "max_srq", phys_port_cnt = "phys_port_cnt" };
            IbvDeviceAttrEx = "ibv_device_attr_ex" {
                odp_general_caps = "odp_caps", rss_caps = "rss_caps", tm_caps = "tm_caps", max_dm_size = "max_dm_size",
                phys_port_cnt_ex = "phys_port_cnt_ex"
            };
            IbvPortAttr = "ibv_port_attr" { pkey_tbl_len = "pkey_tbl_len", link_layer = "link_layer", port_cap_flags2 = "port_cap_flags2" };
        }
        // Members that the first library has; later ones have more before the word that follows.
        all.push(("offsetof(struct ibv_qp_ex, wr_complete)".into(), offset_of!(IbvQpEx, wr_complete)));
        all.push(("sizeof(struct ibv_qp_ex) >= offsetof(struct ibv_qp_ex, wr_atomic_write) + 8".into(), 1));
        all.push(("offsetof(struct ibv_qp_ex, wr_atomic_write)".into(), offset_of!(IbvQpEx, wr_atomic_write)));
        all.push(("offsetof(struct verbs_context, context)".into(), crate::table::CONTEXT_OFFSET));
        all.push(("offsetof(struct ibv_device, name)".into(), 24));
        all
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        if !Path::new(HEADER).exists() {
            return thalweg_testing::skip::skipped(format!("{HEADER}: not here (libibverbs-dev)"));
        }
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layouts.c"), folder.path().join("layouts"));
        let expected = expectations();
        let lines: String =
            expected.iter().map(|(text, _)| format!("printf(\"%zu\\n\", (size_t)({text}));\n")).collect();
        let text = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{\n{lines}return 0;\n}}\n"
        );
        std::fs::write(&source, text).unwrap();
        let compiled = match Command::new("cc").arg("-o").arg(&program).arg(&source).output() {
            Ok(compiled) => compiled,
            Err(error) => return thalweg_testing::skip::skipped(format!("cc: {error}")),
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = Command::new(&program).output().unwrap().stdout;
        let numbers: Vec<usize> =
            String::from_utf8(printed).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers.len(), expected.len());
        for ((text, here), in_c) in expected.iter().zip(numbers) {
            assert_eq!(*here, in_c, "{text}");
        }
    }
}
