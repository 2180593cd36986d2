//! An opened device: its asynchronous events, its attributes.

use crate::abi::{AsyncEventMessage, IbvContext, IbvDeviceAttrEx, IbvPortAttr};
use crate::rnic::{Rnic, process_rnic};
use crate::table::{context_state, release_context};
use libc::{c_int, c_void};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use thalweg_rdma::Transport;

/// Completion vectors: numbers that programs may name, with no effect.
pub(crate) const COMPLETION_VECTORS: c_int = 1;

/// State behind `struct ibv_context`.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) rnic: Arc<Rnic>,
    /// This end of the socket out of which libibverbs reads asynchronous events, and a copy of the program's.
    events: OwnedFd,
    unread: OwnedFd,
}

impl Context {
    /// Opens the RNIC of the process for a context, which gets a socket of asynchronous events.
    pub(crate) fn open(context: *mut IbvContext) -> Result<*const Self, c_int> {
        let rnic = process_rnic().map_err(|reason| {
            eprintln!("thalweg: {reason}");
            libc::ENODEV
        })?;
        let (ours, theirs) = event_sockets()?;
        let unread = theirs.try_clone().map_err(|_| libc::EMFILE)?;
        let state = Arc::new(Self { rnic, events: ours, unread });
        // SAFETY: see the crate's documentation. libibverbs closes the descriptor.
        unsafe {
            (*context).async_fd = theirs.into_raw_fd();
            (*context).num_comp_vectors = COMPLETION_VECTORS;
        }
        Ok(Arc::into_raw(state))
    }

    /// Sends an event to the program: one of an object, by the object's address.
    pub(crate) fn send_event(&self, element: usize, event_type: u32) {
        let message = AsyncEventMessage { element: element as u64, event_type, reserved: 0 };
        // A program that reads none of several hundred events gets no more.
        let _ = send(&self.events, &message_bytes(message), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes back events that name an object which is about to be freed.
    pub(crate) fn withdraw_events(&self, element: usize) {
        withdraw_messages(&self.unread, &self.events, |message| {
            message.first_chunk().is_some_and(|first| u64::from_ne_bytes(*first) != element as u64)
        });
    }
}

fn message_bytes(message: AsyncEventMessage) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&message.element.to_ne_bytes());
    bytes[8..12].copy_from_slice(&message.event_type.to_ne_bytes());
    bytes
}

/// Returns two connected sockets that keep the borders of messages.
pub(crate) fn event_sockets() -> Result<(OwnedFd, OwnedFd), c_int> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| error.raw_os_error())
}

/// Takes all messages out of a socket that wait there, and puts those back that are to be kept.
pub(crate) fn withdraw_messages(unread: &OwnedFd, sender: &OwnedFd, keeps: impl Fn(&[u8]) -> bool) {
    let (mut message, mut kept) = ([0; 16], Vec::new());
    while let Ok((_, bytes @ 1..)) = recv(unread, &mut message[..], RecvFlags::DONTWAIT).map(|(bytes, _)| ((), bytes)) {
        if keeps(&message[..bytes]) {
            kept.push(message[..bytes].to_vec());
        }
    }
    for message in kept {
        let _ = send(sender, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Closes a device.
pub(crate) unsafe extern "C" fn free_context(context: *mut IbvContext) {
    // SAFETY: see the crate's documentation.
    let state = unsafe { release_context(context) };
    // SAFETY: `open` has made it of an `Arc`, and the context, which is freed, was its only user.
    let state = unsafe { Arc::from_raw(state) };
    drop(state);
}

/// Attributes of the device. Capabilities: memory windows of both types, receiver-not-ready.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut IbvContext,
    _input: *const c_void,
    attributes: *mut IbvDeviceAttrEx,
    bytes: usize,
) -> c_int {
    // SAFETY: see the crate's documentation. All members may be zero.
    let (state, mut all) = unsafe { (context_state(context), std::mem::zeroed::<IbvDeviceAttrEx>()) };
    let limits = state.rnic.device.rnic_limits();
    let a = &mut all.orig_attr;
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    a.fw_ver[..version.len()].copy_from_slice(version);
    a.node_guid = node_guid(state.rnic.address);
    a.sys_image_guid = a.node_guid;
    a.max_mr_size = u64::MAX >> 1;
    a.page_size_cap = !0xfff;
    // No vendor's.
    a.vendor_id = 0x00ff_ffff;
    a.max_qp = limit_number(limits.max_queue_pairs);
    a.max_qp_wr = limit_number(limits.max_work_requests);
    // Receiver-not-ready, memory windows, extended memory management, windows of type 2B (bound to a queue pair).
    a.device_cap_flags = 1 << 12 | 1 << 17 | 1 << 21 | 1 << 24;
    a.max_sge = limit_number(limits.max_sges);
    a.max_sge_rd = limit_number(limits.max_sges);
    a.max_cq = limit_number(limits.max_completion_queues);
    a.max_cqe = limit_number(limits.max_completions);
    a.max_mr = limit_number(limits.max_regions);
    a.max_pd = limit_number(limits.max_domains);
    a.max_qp_rd_atom = limit_number(limits.max_reads);
    a.max_res_rd_atom = limit_number(limits.max_reads.saturating_mul(limits.max_queue_pairs));
    a.max_qp_init_rd_atom = limit_number(limits.max_reads);
    // IBV_ATOMIC_HCA: atomic among operations of one RNIC.
    a.atomic_cap = 1;
    a.max_mw = limit_number(limits.max_windows);
    a.max_srq = limit_number(limits.max_shared_queues);
    a.max_srq_wr = limit_number(limits.max_work_requests);
    a.max_srq_sge = limit_number(limits.max_sges);
    a.max_pkeys = 1;
    a.phys_port_cnt = 1;
    all.phys_port_cnt_ex = 1;
    let known = bytes.min(size_of::<IbvDeviceAttrEx>());
    // SAFETY: there are `bytes` bytes; those of later members are zero.
    unsafe {
        attributes.cast::<u8>().write_bytes(0, bytes);
        std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attributes.cast(), known);
    }
    0
}

fn limit_number(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// Returns the GUID of the device, in network order: made of its address, as `thalweg rdma run` writes it to sysfs.
pub(crate) fn node_guid(address: std::net::IpAddr) -> u64 {
    let address = match address {
        std::net::IpAddr::V4(address) => u64::from(u32::from(address)),
        std::net::IpAddr::V6(address) => u128::from(address) as u64 & 0xffff_ffff,
    };
    (0x0200_0000_0000_0000 | address).to_be()
}

/// Attributes of the port: an Ethernet port, up.
pub(crate) unsafe extern "C" fn query_port(context: *mut IbvContext, port: u8, attributes: *mut IbvPortAttr) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: see the crate's documentation.
    let (state, a) = unsafe { (context_state(context), &mut *attributes) };
    *a = IbvPortAttr {
        // IBV_PORT_ACTIVE; IBV_MTU_4096 and IBV_MTU_1024.
        state: 4,
        max_mtu: 5,
        active_mtu: 3,
        gid_tbl_len: 1,
        port_cap_flags: if state.rnic.transport == Transport::Efe { 1 << 26 | 1 << 16 } else { 0 },
        max_msg_sz: state.rnic.device.rnic_limits().max_message_bytes,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // 4 lanes of 2.5 Gbit/s, since the rate of the network below is not known; link up; Ethernet.
        active_width: 2,
        active_speed: 1,
        phys_state: 5,
        link_layer: 2,
        flags: 0,
        port_cap_flags2: 0,
    };
    0
}
