//! All packets of an interface, as the kernel sees them: a ring that the kernel writes copies into (packet(7),
//! `TPACKET_V3`: Documentation/networking/packet_mmap.rst). No packet is taken away from its receiver.

use crate::FramesError;
use crate::kernel::Kernel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Size of a block, in bytes. The kernel hands it over when it is full, or once `RETIRE_MILLIS` is over.
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum number of blocks in a ring.
const MAX_BLOCKS: usize = 4096;
/// Size of a frame, in bytes, of which the kernel takes blocks to consist. Packets are adjacent nevertheless.
const FRAME_BYTES: usize = 1 << 11;
/// Time that a packet waits for others, in milliseconds.
const RETIRE_MILLIS: u32 = 20;

/// A ring with the packets of an interface.
pub struct PacketRing {
    socket: OwnedFd,
    /// `blocks` of `BLOCK_BYTES` bytes, mapped until this is dropped.
    ring: NonNull<u8>,
    blocks: usize,
    at: usize,
    /// Number of the interface, and (`is_down`) true if it was down when it was last checked.
    index: u32,
    is_down: bool,
    received: u64,
    dropped: u64,
}

// SAFETY: the mapping belongs to this value, and is used by one thread at a time.
unsafe impl Send for PacketRing {}

/// A captured packet.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Time at which the packet was seen, in nanoseconds since 1970 (UTC).
    pub nanos: u64,
    /// Length of the packet on the wire, in bytes.
    pub length: usize,
    /// First bytes of the packet.
    pub bytes: &'a [u8],
    /// VLAN tag that the adapter or the kernel has removed from its place after the two addresses (IEEE 802.1Q).
    pub tag: Option<[u8; 4]>,
}

impl PacketRing {
    /// Size of the largest ring, in bytes.
    pub const MAX_BYTES: usize = MAX_BLOCKS * BLOCK_BYTES;

    /// Captures all packets of an interface from now on, up to `snap` bytes of each, in a ring of `bytes` bytes.
    ///
    /// # Errors
    /// There is no such interface, or this process has no permission (`CAP_NET_RAW`).
    pub fn open_interface(interface: &str, snap: u32, bytes: usize, promiscuous: bool) -> Result<Self, FramesError> {
        let found = Kernel::open_connection()?.interface_by_name(interface)?;
        Self::open_interface_index(found.index, snap, bytes, promiscuous).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => FramesError {
                doing: format!(
                    "capturing the packets of {interface} needs the capability CAP_NET_RAW: run as root, or sudo \
                     setcap cap_net_raw+ep \"$(command -v thalweg)\""
                ),
                error,
            },
            _ => FramesError { doing: format!("capturing the packets of {interface}"), error },
        })
    }

    fn open_interface_index(index: u32, snap: u32, bytes: usize, promiscuous: bool) -> io::Result<Self> {
        // The socket sees nothing until it is bound: protocol 0.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let blocks = bytes.div_ceil(BLOCK_BYTES).clamp(2, MAX_BLOCKS);
        set_socket_option(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V3 as i32),
        )?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (blocks * BLOCK_BYTES / FRAME_BYTES) as u32,
            tp_retire_blk_tov: RETIRE_MILLIS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_socket_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // BPF_RET | BPF_K: returns `snap` bytes of each packet.
        let mut program = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: snap };
        set_socket_option(
            &socket,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            &libc::sock_fprog { len: 1, filter: &raw mut program },
        )?;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let ring = unsafe {
            mmap(
                ptr::null_mut(),
                blocks * BLOCK_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &socket,
                0,
            )
        }?;
        let ring = NonNull::new(ring.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Self { socket, ring, blocks, at: 0, index, is_down: false, received: 0, dropped: 0 };
        let everything = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: integers, for which all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = everything;
        address.sll_ifindex = index.cast_signed();
        // SAFETY: an address of the length that is passed, which outlives the call.
        let bound = unsafe {
            libc::bind(ring.socket.as_raw_fd(), ptr::from_ref(&address).cast(), size_of::<libc::sockaddr_ll>() as u32)
        };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        if promiscuous {
            let all = libc::packet_mreq {
                mr_ifindex: index.cast_signed(),
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            set_socket_option(&ring.socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
        }
        Ok(ring)
    }

    /// Waits for packets, at most for `longest`. A signal ends the wait, too. An interface that is down may come up
    /// again.
    ///
    /// # Errors
    /// The interface does not exist any more.
    pub fn wait_for_packets(&mut self, longest: Duration) -> Result<(), FramesError> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::ERR)];
        let longest = Timespec { tv_sec: longest.as_secs().cast_signed(), tv_nsec: longest.subsec_nanos().into() };
        let error = match poll(&mut fds, Some(&longest)) {
            Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
                let error = rustix::net::sockopt::socket_error(&self.socket);
                error.map_err(io::Error::from).and_then(|error| error.map_err(io::Error::from)).err()
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => None,
            Err(error) => Some(error.into()),
        };
        match error {
            Some(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                let was_down = std::mem::replace(&mut self.is_down, true);
                if !was_down {
                    tracing::warn!("the interface is down: no packets arrive until it is up again");
                }
            }
            Some(error) => return Err(FramesError::from_system_call("waiting for packets")(error)),
            None => {}
        }
        // The kernel does not report the removal of an interface that was down before.
        if self.is_down && !self.interface_exists() {
            return Err(FramesError::from_system_call("waiting for packets")(io::Error::from_raw_os_error(
                libc::ENODEV,
            )));
        }
        Ok(())
    }

    fn interface_exists(&self) -> bool {
        rustix::net::netdevice::index_to_name(&self.socket, self.index).is_ok()
    }

    /// Passes packets that the kernel has handed over to `each`, until `each` returns false: the remaining packets of
    /// the block are lost to it. Returns true if there may be more.
    pub fn receive_packets(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> bool {
        let offset = offset_of!(libc::tpacket_block_desc, hdr);
        // SAFETY: the start of a block inside of the mapping.
        let block = unsafe { self.ring.add(self.at * BLOCK_BYTES) };
        // SAFETY: a block begins with a description, which has the status at the beginning of its header.
        let status = unsafe { block.add(offset) }.cast::<u32>();
        // SAFETY: at a multiple of 4 bytes, inside of the mapping. The kernel and we take turns at it.
        let status = unsafe { AtomicU32::from_ptr(status.as_ptr()) };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the kernel has filled the block and left it to us: nothing writes there until it is given back below.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), BLOCK_BYTES) };
        let head = bytes[offset..].as_ptr().cast::<libc::tpacket_hdr_v1>();
        // SAFETY: after the status, inside the block; integers, for which any bits are valid.
        let head = unsafe { head.read_unaligned() };
        let mut at = head.offset_to_first_pkt as usize;
        let mut wanted = true;
        // A packet that leaves by the loopback interface returns by it, and would be seen twice.
        let is_loopback = self.index == 1;
        for _ in 0..head.num_pkts {
            let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= size_of::<libc::tpacket3_hdr>()) else {
                break;
            };
            // SAFETY: as many bytes as a header has; integers, for which any bits are valid.
            let packet = unsafe { rest.as_ptr().cast::<libc::tpacket3_hdr>().read_unaligned() };
            let begin = usize::from(packet.tp_mac);
            let Some(content) = rest.get(begin..begin + packet.tp_snaplen as usize) else { break };
            // The header is followed by an address (sockaddr_ll), aligned to 16 bytes, whose byte 10 is the direction.
            let way = rest.get(size_of::<libc::tpacket3_hdr>().next_multiple_of(16) + 10);
            let again = is_loopback && way == Some(&libc::PACKET_OUTGOING);
            if wanted && !again {
                self.received += 1;
                wanted = each(Packet {
                    nanos: u64::from(packet.tp_sec) * 1_000_000_000 + u64::from(packet.tp_nsec),
                    length: packet.tp_len as usize,
                    bytes: content,
                    tag: vlan_tag(&packet),
                });
            }
            at += packet.tp_next_offset as usize;
            if packet.tp_next_offset == 0 {
                break;
            }
        }
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.at = (self.at + 1) % self.blocks;
        true
    }

    /// Returns the number of packets passed on, and of packets for which the kernel had no room.
    ///
    /// # Errors
    /// The kernel does not provide the counter.
    pub fn packet_counters(&mut self) -> Result<(u64, u64), FramesError> {
        let mut statistics = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut length = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
        // SAFETY: the kernel writes at most the `length` bytes that are passed with the call.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                ptr::from_mut(&mut statistics).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(FramesError::from_system_call("reading the number of dropped packets")(
                io::Error::last_os_error(),
            ));
        }
        // The kernel counts from the last call on.
        self.dropped += u64::from(statistics.tp_drops);
        Ok((self.received, self.dropped))
    }
}

/// Returns the VLAN tag, as it was after the addresses.
fn vlan_tag(packet: &libc::tpacket3_hdr) -> Option<[u8; 4]> {
    let status = packet.tp_status;
    let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { packet.hv1.tp_vlan_tpid } else { 0x8100 };
    let [a, b] = kind.to_be_bytes();
    let [c, d] = (packet.hv1.tp_vlan_tci as u16).to_be_bytes();
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d])
}

impl AsFd for PacketRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for PacketRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketRing({:?}, {} blocks, {} received)", self.socket, self.blocks, self.received)
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made in `open`; nothing refers to it any more.
        let _ = unsafe { munmap(self.ring.as_ptr().cast(), self.blocks * BLOCK_BYTES) };
    }
}

fn set_socket_option<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value lives until the call is over, and its length is passed with it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
