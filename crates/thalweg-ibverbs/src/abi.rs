//! Layouts and numbers of libibverbs (`infiniband/verbs.h`, and `infiniband/driver.h` of its sources) and of librdmacm
//! (`rdma/rdma_cma.h`), as far as programs and a provider need them. A test compares them with the headers.

use libc::{c_char, c_int, c_uint, c_void, pthread_cond_t, pthread_mutex_t};

/// Function whose type does not matter here.
pub type Op = *const c_void;

/// Length in bytes of `struct ibv_context`.
pub const CONTEXT_BYTES: usize = size_of::<IbvContext>();

#[repr(C)]
pub struct IbvContext {
    pub device: *mut c_void,
    pub ops: [Op; 32],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

/// Offset of `struct ibv_context` in `struct verbs_context`.
pub const CONTEXT_OFFSET: usize = 320;

/// Places of functions in `struct ibv_context_ops`.
pub mod op {
    pub const POLL_CQ: usize = 11;
    pub const REQ_NOTIFY_CQ: usize = 12;
    pub const POST_SRQ_RECV: usize = 20;
    pub const POST_SEND: usize = 25;
    pub const POST_RECV: usize = 26;
}

/// Types of those functions.
pub type PollCq = unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int;
pub type ReqNotifyCq = unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int;
pub type PostSrqRecv = unsafe extern "C" fn(*mut IbvSrq, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int;
pub type PostRecv = unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// Beginning of `struct ibv_device`.
#[repr(C)]
pub struct IbvDevice {
    ops: [Op; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [u8; 64],
}

/// `IBV_TRANSPORT_IWARP`.
pub const TRANSPORT_IWARP: c_int = 1;

/// `struct ibv_async_event`.
#[repr(C)]
pub struct LibraryAsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_int,
}

/// `struct verbs_device_ops`.
#[repr(C)]
pub struct VerbsDeviceOps {
    pub name: *const c_char,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const c_void,
    pub static_providers: *const c_void,
    pub match_device: unsafe extern "C" fn(*mut VerbsSysfsDev) -> bool,
    pub alloc_context: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> *mut c_void,
    pub import_context: *const c_void,
    pub alloc_device: unsafe extern "C" fn(*mut VerbsSysfsDev) -> *mut c_void,
    pub uninit_device: unsafe extern "C" fn(*mut c_void),
}

/// Beginning of `struct verbs_sysfs_dev`.
#[repr(C)]
pub struct VerbsSysfsDev {
    entry: [*mut c_void; 2],
    provider_data: *mut c_void,
    match_entry: *const c_void,
    flags: c_uint,
    sysfs_name: [c_char; 64],
    sysfs_cdev: u64,
    pub ibdev_name: [c_char; 64],
}

/// Length in bytes that suffices for `struct verbs_device`.
pub const DEVICE_BYTES: usize = 1024;

#[repr(C)]
pub struct IbvPd {
    pub context: *mut IbvContext,
    pub handle: u32,
}

#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct VerbsMr {
    pub mr: IbvMr,
    pub mr_type: c_int,
    pub access: c_int,
}

#[repr(C)]
pub struct IbvMw {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvMwBindInfo {
    pub mr: *mut IbvMr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
pub struct IbvMwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: IbvMwBindInfo,
}

#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct IbvCqEx {
    pub cq: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Op,
    pub next_poll: Op,
    pub end_poll: Op,
    pub read_opcode: Op,
    pub read_vendor_err: Op,
    pub read_byte_len: Op,
    pub read_imm_data: Op,
    pub read_qp_num: Op,
    pub read_src_qp: Op,
    pub read_wc_flags: Op,
    pub read_slid: Op,
    pub read_sl: Op,
    pub read_dlid_path_bits: Op,
    pub read_completion_ts: Op,
    pub read_cvlan: Op,
    pub read_flow_tag: Op,
    pub read_tm_info: Op,
    pub read_completion_wallclock_ns: Op,
}

#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate in network order, or the STag that was invalidated.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// Flags of a completion.
pub const WC_WITH_IMM: c_uint = 1 << 1;
pub const WC_WITH_INV: c_uint = 1 << 3;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *const IbvSge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *const IbvSge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// Immediate in network order, or the STag to invalidate.
    pub imm_data: u32,
    pub wr: WrTarget,
    pub remote_srqn: u32,
    pub bind_mw: WrBind,
}

/// Union `wr` of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrTarget {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// Longest member of the last union of a send request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrBind {
    pub mw: *mut IbvMw,
    pub rkey: u32,
    pub bind_info: IbvMwBindInfo,
}

/// Operations of a send request (`ibv_wr_opcode`).
pub mod opcode {
    use libc::c_int;
    pub const WRITE: c_int = 0;
    pub const WRITE_WITH_IMM: c_int = 1;
    pub const SEND: c_int = 2;
    pub const SEND_WITH_IMM: c_int = 3;
    pub const READ: c_int = 4;
    pub const CMP_AND_SWP: c_int = 5;
    pub const FETCH_AND_ADD: c_int = 6;
    pub const LOCAL_INV: c_int = 7;
    pub const BIND_MW: c_int = 8;
    pub const SEND_WITH_INV: c_int = 9;
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// Bits of `ibv_qp_init_attr_ex.comp_mask`.
pub const QP_INIT_PD: u32 = 1;
pub const QP_INIT_CREATE_FLAGS: u32 = 1 << 2;
pub const QP_INIT_SEND_OPS: u32 = 1 << 6;

/// Reliable connected queue pairs.
pub const QPT_RC: c_int = 2;

#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_qp_ex`.
#[repr(C)]
pub struct IbvQpEx {
    pub qp: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Op,
    pub wr_atomic_fetch_add: Op,
    pub wr_bind_mw: Op,
    pub wr_local_inv: Op,
    pub wr_rdma_read: Op,
    pub wr_rdma_write: Op,
    pub wr_rdma_write_imm: Op,
    pub wr_send: Op,
    pub wr_send_imm: Op,
    pub wr_send_inv: Op,
    pub wr_send_tso: Op,
    pub wr_set_ud_addr: Op,
    pub wr_set_xrc_srqn: Op,
    pub wr_set_inline_data: Op,
    pub wr_set_inline_data_list: Op,
    pub wr_set_sge: Op,
    pub wr_set_sge_list: Op,
    pub wr_start: Op,
    pub wr_complete: Op,
    pub wr_abort: Op,
    pub wr_atomic_write: Op,
    /// Later libraries have more.
    pub wr_later: [Op; 4],
}

/// `struct verbs_qp` of ABI 34.
#[repr(C)]
pub struct VerbsQp {
    pub ex: IbvQpEx,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDataBuf {
    pub addr: *const c_void,
    pub length: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvAhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Bits of `ibv_qp_attr_mask`.
pub mod attr_mask {
    use libc::c_int;
    pub const STATE: c_int = 1;
    pub const CUR_STATE: c_int = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const QKEY: c_int = 1 << 6;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

/// States of a queue pair (`ibv_qp_state`).
pub mod qp_state {
    use libc::c_int;
    pub const RESET: c_int = 0;
    pub const INIT: c_int = 1;
    pub const RTR: c_int = 2;
    pub const RTS: c_int = 3;
    pub const SQD: c_int = 4;
    pub const SQE: c_int = 5;
    pub const ERR: c_int = 6;
}

#[repr(C)]
pub struct IbvSrq {
    pub context: *mut IbvContext,
    pub srq_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}

/// `struct verbs_srq`.
#[repr(C)]
pub struct VerbsSrq {
    pub srq: IbvSrq,
    pub srq_type: c_int,
    pub xrcd: *mut c_void,
    pub cq: *mut IbvCq,
    pub srq_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}

#[repr(C)]
pub struct IbvSrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
    pub comp_mask: u32,
    pub srq_type: c_int,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub cq: *mut IbvCq,
    pub tm_cap: [u32; 2],
}

#[repr(C)]
pub struct IbvDeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
pub struct IbvDeviceAttrEx {
    pub orig_attr: IbvDeviceAttr,
    pub comp_mask: u32,
    pub odp_general_caps: u64,
    pub odp_transport_caps: [u32; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: [u32; 2],
    pub rss_caps: [u64; 4],
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: [u32; 3],
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
pub struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ib_uverbs_async_event_desc`: message of an asynchronous event, as the kernel would send it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncEventMessage {
    pub element: u64,
    pub event_type: u32,
    pub reserved: u32,
}

/// `RDMA_PS_TCP`: the port space of reliable connections.
pub const RDMA_PS_TCP: c_int = 0x0106;

/// `struct rdma_event_channel`.
#[repr(C)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}

/// Beginning of `struct rdma_cm_id`.
#[repr(C)]
pub struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    /// `route.addr.src_storage` and `route.addr.dst_storage`.
    pub source: libc::sockaddr_storage,
    pub destination: libc::sockaddr_storage,
}

/// `struct rdma_conn_param`.
#[repr(C)]
pub struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// Beginning of `struct rdma_cm_event`, up to the parameters of a connection.
#[repr(C)]
pub struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_int,
    pub status: c_int,
    pub conn: RdmaConnParam,
}

/// Types of asynchronous events (`ibv_event_type`).
pub mod event_type {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const SQ_DRAINED: u32 = 5;
    pub const DEVICE_FATAL: u32 = 8;
    pub const SRQ_ERR: u32 = 14;
    pub const SRQ_LIMIT_REACHED: u32 = 15;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    /// Headers of libibverbs and librdmacm (packages libibverbs-dev and librdmacm-dev).
    const VERBS_HEADER: &str = "infiniband/verbs.h";
    const MANAGER_HEADER: &str = "rdma/rdma_cma.h";

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
        all.push(("offsetof(struct verbs_context, context)".into(), CONTEXT_OFFSET));
        all.push(("offsetof(struct ibv_device, name)".into(), offset_of!(IbvDevice, name)));
        all.push(("offsetof(struct ibv_device, transport_type)".into(), offset_of!(IbvDevice, transport_type)));
        all.push(("sizeof(struct ibv_async_event)".into(), size_of::<LibraryAsyncEvent>()));
        let places = [
            ("poll_cq", op::POLL_CQ),
            ("req_notify_cq", op::REQ_NOTIFY_CQ),
            ("post_srq_recv", op::POST_SRQ_RECV),
            ("post_send", op::POST_SEND),
            ("post_recv", op::POST_RECV),
        ];
        for (name, place) in places {
            all.push((format!("offsetof(struct ibv_context, ops.{name})"), offset_of!(IbvContext, ops) + 8 * place));
        }
        all
    }

    /// The same for librdmacm.
    fn expectations_of_manager() -> Vec<(String, usize)> {
        let members = [
            ("rdma_event_channel", "fd", offset_of!(RdmaEventChannel, fd)),
            ("rdma_cm_id", "verbs", offset_of!(RdmaCmId, verbs)),
            ("rdma_cm_id", "qp", offset_of!(RdmaCmId, qp)),
            ("rdma_cm_id", "route.addr.src_storage", offset_of!(RdmaCmId, source)),
            ("rdma_cm_id", "route.addr.dst_storage", offset_of!(RdmaCmId, destination)),
            ("rdma_conn_param", "rnr_retry_count", offset_of!(RdmaConnParam, rnr_retry_count)),
            ("rdma_conn_param", "qp_num", offset_of!(RdmaConnParam, qp_num)),
            ("rdma_cm_event", "listen_id", offset_of!(RdmaCmEvent, listen_id)),
            ("rdma_cm_event", "status", offset_of!(RdmaCmEvent, status)),
            ("rdma_cm_event", "param.conn", offset_of!(RdmaCmEvent, conn)),
        ];
        let mut all: Vec<(String, usize)> = members
            .into_iter()
            .map(|(kind, member, here)| (format!("offsetof(struct {kind}, {member})"), here))
            .collect();
        all.push(("sizeof(struct rdma_conn_param)".into(), size_of::<RdmaConnParam>()));
        all.push(("RDMA_PS_TCP".into(), RDMA_PS_TCP as usize));
        all
    }

    #[test]
    fn layouts_are_those_of_libibverbs() {
        compare_with_header(VERBS_HEADER, "libibverbs-dev", expectations());
    }

    #[test]
    fn layouts_are_those_of_librdmacm() {
        compare_with_header(MANAGER_HEADER, "librdmacm-dev", expectations_of_manager());
    }

    fn compare_with_header(header: &str, package: &str, expected: Vec<(String, usize)>) {
        if !Path::new("/usr/include").join(header).exists() {
            return thalweg_testing::skip::skipped(format!("/usr/include/{header}: not here ({package})"));
        }
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("layouts.c"), folder.path().join("layouts"));
        let lines: String =
            expected.iter().map(|(text, _)| format!("printf(\"%zu\\n\", (size_t)({text}));\n")).collect();
        let text = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\nint main(void) {{\n{lines}return 0;\n}}\n"
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
