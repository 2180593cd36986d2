//! All packets of an interface, as the kernel sees them: a ring that the kernel writes copies into (packet(7),
//! `TPACKET_V3`: Documentation/networking/packet_mmap.rst). Nothing is taken away from anybody.

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

/// Bytes that the kernel fills before it hands them over, or fewer once this time is over.
const BLOCK: usize = 1 << 20;
/// Blocks in a ring.
const MOST: usize = 4096;
/// What the kernel takes blocks to be made of. Packets lie one behind the other nevertheless.
const FRAME: usize = 1 << 11;
/// How long a packet waits for others, in milliseconds.
const RETIRE: u32 = 20;

/// The packets of an interface.
pub struct PacketRing {
    socket: OwnedFd,
    /// `blocks` of `BLOCK` bytes, mapped until this is dropped.
    ring: NonNull<u8>,
    blocks: usize,
    at: usize,
    /// The interface's number, and whether it was down when it was looked at last.
    index: u32,
    is_down: bool,
    received: u64,
    dropped: u64,
}

// SAFETY: the mapping belongs to this value, and is used by one thread at a time.
unsafe impl Send for PacketRing {}

/// A packet that was seen.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// When, in nanoseconds since 1970 (UTC).
    pub nanos: u64,
    /// Bytes that it had on the wire.
    pub length: usize,
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// A VLAN tag that the adapter or the kernel has taken out from behind the two addresses (IEEE 802.1Q).
    pub tag: Option<[u8; 4]>,
}

impl PacketRing {
    /// Bytes in the largest ring.
    pub const LARGEST: usize = MOST * BLOCK;

    /// Sees all packets of an interface from now on, up to `snap` bytes of each, in a ring of so many bytes.
    ///
    /// # Errors
    /// There is no such interface, or this process may not (`CAP_NET_RAW`).
    pub fn open(interface: &str, snap: u32, bytes: usize, promiscuous: bool) -> Result<Self, FramesError> {
        let found = Kernel::open()?.interface(interface)?;
        let opened = || Self::open_at(found.index, snap, bytes, promiscuous);
        opened().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => FramesError {
                doing: format!(
                    "seeing the packets of {interface}, which takes the capability CAP_NET_RAW: run it as root, or \
                     sudo setcap cap_net_raw+ep \"$(command -v thalweg)\""
                ),
                error,
            },
            _ => FramesError { doing: format!("seeing the packets of {interface}"), error },
        })
    }

    fn open_at(index: u32, snap: u32, bytes: usize, promiscuous: bool) -> io::Result<Self> {
        // Until it is bound it sees nothing: protocol 0.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let blocks = bytes.div_ceil(BLOCK).clamp(2, MOST);
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: (blocks * BLOCK / FRAME) as u32,
            tp_retire_blk_tov: RETIRE,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // BPF_RET | BPF_K: so many bytes of each packet.
        let mut program = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: snap };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &libc::sock_fprog { len: 1, filter: &raw mut program })?;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let ring = unsafe {
            mmap(ptr::null_mut(), blocks * BLOCK, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &socket, 0)
        }?;
        let ring = NonNull::new(ring.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Self { socket, ring, blocks, at: 0, index, is_down: false, received: 0, dropped: 0 };
        let everything = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: integers, of which all zeros is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = everything;
        address.sll_ifindex = index.cast_signed();
        // SAFETY: an address of the length that is said, which outlives the call.
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
            set(&ring.socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &all)?;
        }
        Ok(ring)
    }

    /// Waits for packets, at most so long. A signal ends it, too. Where the interface is down, it may come up again.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn wait(&mut self, longest: Duration) -> Result<(), FramesError> {
        let failed = |error| FramesError { doing: "waiting for packets".into(), error };
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
                    tracing::warn!("the interface is down: nothing comes until it is up again");
                }
            }
            Some(error) => return Err(failed(error)),
            None => {}
        }
        // That it is gone is not said of one that was down before.
        if self.is_down && !self.is_there() {
            return Err(failed(io::Error::from_raw_os_error(libc::ENODEV)));
        }
        Ok(())
    }

    fn is_there(&self) -> bool {
        rustix::net::netdevice::index_to_name(&self.socket, self.index).is_ok()
    }

    /// Hands packets that the kernel has handed over to `each`, until that says that it is enough: those behind are
    /// lost to it. True where there may be more.
    pub fn receive(&mut self, each: &mut dyn FnMut(Packet<'_>) -> bool) -> bool {
        let offset = offset_of!(libc::tpacket_block_desc, hdr);
        // SAFETY: the start of a block inside of the mapping.
        let block = unsafe { self.ring.add(self.at * BLOCK) };
        // SAFETY: a block begins with a description, which has the status at the beginning of its header.
        let status = unsafe { block.add(offset) }.cast::<u32>();
        // SAFETY: at a multiple of 4 bytes, inside of the mapping. The kernel and we take turns at it.
        let status = unsafe { AtomicU32::from_ptr(status.as_ptr()) };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the kernel has filled the block and left it to us: nobody writes there until it is given back below.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), BLOCK) };
        let head = bytes[offset..].as_ptr().cast::<libc::tpacket_hdr_v1>();
        // SAFETY: behind the status, inside of the block; integers, of any bits.
        let head = unsafe { head.read_unaligned() };
        let mut at = head.offset_to_first_pkt as usize;
        let mut wanted = true;
        // What leaves the loopback interface comes back by it, and would be seen twice.
        let is_loopback = self.index == 1;
        for _ in 0..head.num_pkts {
            let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= size_of::<libc::tpacket3_hdr>()) else {
                break;
            };
            // SAFETY: as many bytes as a header has; integers, of any bits.
            let packet = unsafe { rest.as_ptr().cast::<libc::tpacket3_hdr>().read_unaligned() };
            let begin = usize::from(packet.tp_mac);
            let Some(content) = rest.get(begin..begin + packet.tp_snaplen as usize) else { break };
            // Behind the header there is an address (sockaddr_ll), aligned to 16 bytes, whose byte 10 says which way.
            let way = rest.get(size_of::<libc::tpacket3_hdr>().next_multiple_of(16) + 10);
            let again = is_loopback && way == Some(&libc::PACKET_OUTGOING);
            if wanted && !again {
                self.received += 1;
                wanted = each(Packet {
                    nanos: u64::from(packet.tp_sec) * 1_000_000_000 + u64::from(packet.tp_nsec),
                    length: packet.tp_len as usize,
                    bytes: content,
                    tag: tag(&packet),
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

    /// Packets that it was given, and that the kernel had no room for.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn counters(&mut self) -> Result<(u64, u64), FramesError> {
        let mut statistics = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut length = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
        // SAFETY: the kernel writes no more than the `length` bytes it is told of.
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
            return Err(FramesError::io("asking how many packets were dropped")(io::Error::last_os_error()));
        }
        // The kernel counts from the last question on.
        self.dropped += u64::from(statistics.tp_drops);
        Ok((self.received, self.dropped))
    }
}

/// The tag, as it was behind the addresses.
fn tag(packet: &libc::tpacket3_hdr) -> Option<[u8; 4]> {
    let valid = |flag| packet.tp_status & flag != 0;
    let kind = if valid(libc::TP_STATUS_VLAN_TPID_VALID) { packet.hv1.tp_vlan_tpid } else { 0x8100 };
    let [a, b] = kind.to_be_bytes();
    let [c, d] = (packet.hv1.tp_vlan_tci as u16).to_be_bytes();
    valid(libc::TP_STATUS_VLAN_VALID).then_some([a, b, c, d])
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
        let _ = unsafe { munmap(self.ring.as_ptr().cast(), self.blocks * BLOCK) };
    }
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the value lives until the call is over, and its length is told.
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
