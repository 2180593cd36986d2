//! A port past the kernel's network stack: frames go between an adapter and this process's memory (AF_XDP:
//! Documentation/networking/af_xdp.rst).
//!
//! A small program in the kernel redirects the datagrams for one port. Everything else goes to the kernel as before:
//! ARP, ssh, other ports. When the process ends, for whatever reason, the program is removed.
//!
//! The performance depends on the driver; the mode is probed and reported ([`Mode`]). At best the adapter reads and
//! writes this process's memory itself (zero-copy); otherwise the kernel copies each frame once, but still bypasses its
//! network stack. The program runs in the driver (native), or after it, once the kernel has made a packet of its own of
//! each frame (generic).
//!
//! A piece that lies in a registered arena is sent from there: the arena is a part of the memory that the kernel knows
//! of. Any other piece is copied after its head; and so is one in a frame of at most 4096 bytes if the kernel copies
//! frames anyway, since that costs less. For each 4 KiB of that memory the kernel needs some 150 bytes of its own
//! (`struct xdp_buff_xsk`).
//!
//! An interface can have one such port, since it can have one program. The port has a socket for each queue of received
//! frames; the adapter chooses the queue.

mod ring;
mod socket;
mod steer;
mod umem;

use crate::kernel::{Beside, Interface, Kernel};
use crate::neighbours::Mac;
use crate::{Counters, EthernetPort, FramesError, RawIo};
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use socket::{Binding, Queue, RECEIVE_HEADROOM};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use steer::Steer;
use thalweg_arena::{Arena, Piece};
use umem::{CHUNK_BYTES, Umem};

/// Action reported in errors of waiting for sockets.
const WAITING: &str = "waiting for the sockets of an interface's queues";

/// Maximum number of frames on their way through a virtual cable: three quarters of the frames it holds for a program
/// (`VETH_RING_SIZE`, drivers/net/veth.c), since not all of them carry bytes that were asked for.
const MAX_CABLE_FRAMES: usize = 192;

/// A port for datagrams past the kernel's network stack.
pub type AfXdpPort = EthernetPort<AfXdp>;

/// Options for opening a port. The defaults are the best that the interface supports.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Address of the port, if the interface has several. By default its first.
    pub address: Option<Ipv4Addr>,
    /// Queues that receive the datagrams, if the adapter was configured to use only some for them. By default all.
    pub queues: Option<Vec<u32>>,
    /// Number of frames that may wait in each queue to be received, rounded up to a power of two. By default 4096.
    pub waiting: Option<u32>,
    /// True to have the kernel copy frames even if the adapter could do without.
    pub copy: bool,
    /// True to run the program after the driver even if the driver could run it.
    pub generic: bool,
    /// Drives the adapter from this process's system calls, for at least this time per call, instead of by interrupts
    /// (`SO_PREFER_BUSY_POLL`, Linux 5.11).
    pub busy_poll: Option<Duration>,
}

impl Options {
    /// Returns the number of chunks for receiving, of each queue.
    fn receive_chunk_count(&self) -> u32 {
        self.waiting.unwrap_or(4096).clamp(64, 1 << 16).next_power_of_two()
    }
}

/// Mode of operation of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// True if the adapter reads and writes this process's memory; otherwise the kernel copies each frame.
    pub zero_copy: bool,
    /// True if the driver runs the program; otherwise the kernel does, after the driver.
    pub native: bool,
    /// True if a frame may consist of several parts (Linux 6.6): it may be longer than 3840 bytes, and a piece is sent
    /// from its place in the arena.
    pub several_parts: bool,
    /// Number of queues that have a socket.
    pub queues: usize,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = if self.zero_copy { "zero-copy" } else { "copied by the kernel" };
        let runs = if self.native { "native" } else { "generic" };
        let parts = if self.several_parts { "several parts" } else { "one part" };
        write!(f, "AF_XDP, {copies}, {runs} XDP, frames of {parts}, {} queues", self.queues)
    }
}

impl EthernetPort<AfXdp> {
    /// Opens a port of this number on an interface; with 0, one that the kernel chooses.
    ///
    /// # Errors
    /// There is no such interface, or it has no IPv4 address; the port or the interface's program is in use; the
    /// process has no permission (the error names the capabilities that are required, and the command that gives them);
    /// or the kernel has no support.
    pub fn open_on_interface(interface: &str, port: u16, options: &Options) -> Result<Self, FramesError> {
        let mut kernel = Kernel::open_connection()?;
        let interface = kernel.interface_by_name(interface)?;
        let address = match options.address {
            Some(address) => address,
            None => {
                let all = kernel.ipv4_addresses()?;
                let own = all.iter().find(|(_, index)| *index == interface.index);
                own.map(|(address, _)| *address).ok_or_else(|| FramesError {
                    doing: format!("looking for an IPv4 address of interface {}", interface.name),
                    error: io::ErrorKind::AddrNotAvailable.into(),
                })?
            }
        };
        let (beside, at) = Beside::reserve_port(kernel, interface.index, SocketAddrV4::new(address, port))?;
        let raw = AfXdp::open_raw_port(interface, at, options)?;
        Ok(Self::beside_kernel(raw, at, beside))
    }

    /// Opens a port on the interface that has this address.
    ///
    /// # Errors
    /// No interface has the address; and the errors of [`open_on_interface`](Self::open_on_interface).
    pub fn open_at_address(address: SocketAddr) -> Result<Self, FramesError> {
        let doing = format!("looking for the interface of {address}");
        let SocketAddr::V4(address) = address else { return Err(ipv4_only_error(doing)) };
        let mut kernel = Kernel::open_connection()?;
        let all = kernel.ipv4_addresses()?;
        let (own, index) = all
            .iter()
            .find(|(own, _)| own == address.ip())
            .ok_or_else(|| FramesError { doing, error: io::ErrorKind::AddrNotAvailable.into() })?;
        let name = kernel.interface_by_index(*index)?.name;
        Self::open_on_interface(&name, address.port(), &Options { address: Some(*own), ..Options::default() })
    }

    /// Opens a port, of a number that the kernel chooses, on the interface by which a destination is reached.
    ///
    /// # Errors
    /// The destination is not reached; and the errors of [`open_on_interface`](Self::open_on_interface).
    pub fn open_towards(to: SocketAddr) -> Result<Self, FramesError> {
        let SocketAddr::V4(to) = to else { return Err(ipv4_only_error(format!("looking for a route to {to}"))) };
        let mut kernel = Kernel::open_connection()?;
        let route = kernel.route_to(*to.ip(), None)?;
        let name = kernel.interface_by_index(route.interface)?.name;
        // This port receives only the messages of builders.
        Self::open_on_interface(
            &name,
            0,
            &Options { address: Some(route.from), waiting: Some(512), ..Options::default() },
        )
    }

    /// Returns the mode of operation of the interface.
    pub fn operation_mode(&self) -> Mode {
        self.raw_port().operation_mode()
    }
}

fn ipv4_only_error(doing: String) -> FramesError {
    FramesError {
        doing,
        error: io::Error::new(
            io::ErrorKind::Unsupported,
            "ports that bypass the kernel support IPv4 \
        only",
        ),
    }
}

/// A port for frames through the sockets of an interface's queues.
#[derive(Debug)]
pub struct AfXdp {
    // The order matters: a field that is dropped first steers no more frames to the next.
    steer: Steer,
    queues: Vec<Queue>,
    umem: Umem,
    /// Arenas in the memory for frames.
    arenas: Vec<Arc<Arena>>,
    /// Descriptor that reports when one of the sockets is ready. It stays when sockets are replaced.
    all: OwnedFd,
    interface: Interface,
    numbers: Vec<u32>,
    binding: Binding,
    options: Options,
    counters: Counters,
    /// True if no queue had room for a frame at the last check: the descriptors are to report when one has.
    lacks_room: bool,
    /// Number of frames dropped by sockets that were replaced.
    dropped_before: u64,
}

impl AfXdp {
    fn open_raw_port(interface: Interface, at: SocketAddrV4, options: &Options) -> Result<Self, FramesError> {
        let count = receive_queue_count(&interface.name)?;
        let numbers = options.queues.clone().unwrap_or_else(|| (0..count).collect());
        let most = numbers.iter().max().ok_or_else(|| FramesError {
            doing: format!("opening {} without a queue", interface.name),
            error: io::ErrorKind::InvalidInput.into(),
        })?;
        let steer = Steer::attach_program(interface.index, &interface.name, at, count.max(most + 1), options.generic)?;
        let (binding, umem, queues) =
            first_working(possible_bindings(&interface, steer.is_native(), options), |binding| {
                open_queues(&interface, &numbers, binding, &[], options)
            })?;
        let mut opened = Self {
            steer,
            queues,
            umem,
            arenas: Vec::new(),
            all: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(FramesError::from_system_call(WAITING))?,
            interface,
            numbers,
            binding,
            options: options.clone(),
            counters: Counters::default(),
            lacks_room: false,
            dropped_before: 0,
        };
        opened.steer_to_sockets()?;
        // The binding has what was requested, and the kernel reports what it does.
        opened.binding.zero_copy = opened.queues[0].is_zero_copy().map_err(FramesError::from_system_call(
            "querying how frames are \
                transferred",
        ))?;
        tracing::info!("{at} on {}: {}", opened.interface.name, opened.operation_mode());
        Ok(opened)
    }

    /// Steers datagrams to the sockets, and registers all of them for waiting. Earlier sockets are closed.
    fn steer_to_sockets(&mut self) -> Result<(), FramesError> {
        for (at, (queue, number)) in self.queues.iter().zip(&self.numbers).enumerate() {
            self.steer.steer_queue(*number, queue.fd())?;
            let data = epoll::EventData::new_u64(at as u64);
            epoll::add(&self.all, queue.fd(), data, epoll::EventFlags::IN)
                .map_err(FramesError::from_system_call(WAITING))?;
        }
        Ok(())
    }

    /// Opens all sockets anew, with these arenas: memory cannot be added to sockets that are bound.
    fn replace_sockets(&mut self, arenas: &[Arc<Arena>]) -> Result<(), FramesError> {
        self.dropped_before += self.dropped_frames();
        self.queues.clear();
        let (umem, queues) = open_queues(&self.interface, &self.numbers, self.binding, arenas, &self.options)?;
        self.queues = queues;
        self.umem = umem;
        self.steer_to_sockets()
    }

    /// Returns the mode of operation of the interface.
    pub fn operation_mode(&self) -> Mode {
        Mode {
            zero_copy: self.binding.zero_copy,
            native: self.steer.is_native(),
            several_parts: self.binding.several,
            queues: self.queues.len(),
        }
    }

    fn dropped_frames(&self) -> u64 {
        // A socket that cannot report its count counts as 0.
        self.queues.iter().map(|queue| queue.dropped_frames().unwrap_or(0)).sum()
    }
}

impl RawIo for AfXdp {
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        if self.arenas.iter().any(|arena| arena.is_same_memory(memory)) {
            return Ok(());
        }
        if !self.binding.several {
            tracing::info!("{}: pieces are copied: a frame has only one part", self.interface.name);
            return Ok(());
        }
        let with: Vec<_> = self.arenas.iter().chain([memory]).cloned().collect();
        match self.replace_sockets(&with) {
            Ok(()) => {
                self.arenas = with;
                Ok(())
            }
            Err(error) => {
                tracing::warn!("{}: pieces of {memory:?} are copied: {error}", self.interface.name);
                let without = self.arenas.clone();
                self.replace_sockets(&without)
            }
        }
    }

    fn mac_address(&self) -> Mac {
        self.interface.mac
    }

    fn max_frame_bytes(&self) -> usize {
        let whole = if self.binding.several { usize::from(u16::MAX) } else { CHUNK_BYTES - RECEIVE_HEADROOM };
        whole.min(self.interface.mtu + ETHERNET_HEADER_BYTES)
    }

    fn queue_frame(&mut self, head: &[u8], piece: Option<Piece<'_>>) -> bool {
        self.queue_frame_with_headers(&[], head, piece)
    }

    fn queue_frame_with_headers(&mut self, headers: &[u8], head: &[u8], piece: Option<Piece<'_>>) -> bool {
        let len = piece.map_or(0, Piece::len);
        let before = headers.len() + head.len();
        assert!(before > 0 && before + len <= self.max_frame_bytes(), "a frame of {before}+{len} bytes");
        let mut queues = self.queues.iter_mut();
        let copied = queues.find_map(|queue| queue.send_frame(&mut self.umem, [headers, head], piece));
        let Some(copied) = copied else { return false };
        let by_kernel = if self.binding.zero_copy { 0 } else { len };
        self.counters.copied += (copied + by_kernel) as u64;
        self.counters.sent += 1;
        true
    }

    fn has_send_room(&mut self) -> bool {
        let chunks = self.max_frame_bytes().div_ceil(CHUNK_BYTES) + 1;
        self.lacks_room = !self.queues.iter_mut().any(|queue| queue.has_room(chunks, chunks + 1));
        !self.lacks_room
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        let Binding { zero_copy, several, .. } = self.binding;
        let by_kernel = u64::from(!zero_copy);
        // Pieces that fit after a head are copied there if the kernel copies anyway: see `Queue::place`.
        let here = !several || !zero_copy && self.max_frame_bytes() <= CHUNK_BYTES;
        // A frame that lies in several chunks is assembled in one place: see `Queue::receive`.
        let joined = self.max_frame_bytes() > CHUNK_BYTES - RECEIVE_HEADROOM;
        (by_kernel + u64::from(here), by_kernel + u64::from(joined))
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        let mut all = true;
        for queue in &mut self.queues {
            all &= queue.flush_ring().map_err(|error| FramesError {
                doing: match error.raw_os_error() {
                    Some(libc::ENETDOWN) => {
                        format!("sending on {0}, which is down: ip link set {0} up", self.interface.name)
                    }
                    _ => format!("sending on {}", self.interface.name),
                },
                error,
            })?;
        }
        Ok(all)
    }

    fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
        let longest = self.max_frame_bytes();
        let mut received = 0;
        let mut more = false;
        for queue in &mut self.queues {
            more |= queue.receive_frames(&mut self.umem, longest, &mut |frame| {
                received += 1;
                each(frame);
            });
        }
        self.counters.received += received;
        Ok(more)
    }

    fn receive_room_frames(&self) -> usize {
        // A frame that does not fit into a chunk takes several. The adapter chooses the queue of frames: all of one
        // sender use the same.
        let each = self.max_frame_bytes().div_ceil(CHUNK_BYTES - RECEIVE_HEADROOM);
        let chunks = self.options.receive_chunk_count() as usize / each;
        if self.interface.is_cable { chunks.min(MAX_CABLE_FRAMES) } else { chunks }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.all.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        let Self { queues, all, lacks_room, .. } = self;
        if queues.iter_mut().any(|queue| !queue.is_empty()) {
            return false;
        }
        // One descriptor for all sockets reports arrivals, and, if requested, room.
        queues.iter_mut().enumerate().all(|(at, queue)| {
            let is_behind = *lacks_room || queue.has_unsent_frames();
            if is_behind == queue.waits_for_room {
                return true;
            }
            let room = if is_behind { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(at as u64);
            queue.waits_for_room = is_behind;
            epoll::modify(all.as_fd(), queue.fd(), data, epoll::EventFlags::IN | room).is_ok()
        })
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.options.busy_poll.is_none()
    }

    fn port_counters(&self) -> Counters {
        Counters {
            dropped: self.dropped_before + self.dropped_frames(),
            foreign: self.queues.iter().map(|queue| queue.nonsense).sum(),
            ..self.counters
        }
    }
}

/// Bytes of an Ethernet header.
const ETHERNET_HEADER_BYTES: usize = 14;

/// Returns the ways to bind that may work here, best first.
fn possible_bindings(interface: &Interface, native: bool, options: &Options) -> Vec<Binding> {
    let fits = interface.mtu + ETHERNET_HEADER_BYTES <= CHUNK_BYTES - RECEIVE_HEADROOM;
    let all = [(true, true), (true, false), (false, true), (false, false)];
    let all = all.map(|(zero_copy, several)| Binding { zero_copy, several });
    // Zero-copy needs the driver. A copy is preferred to frames that are cut short.
    let may_zero_copy = native && !options.copy;
    all.into_iter().filter(|binding| !binding.zero_copy || may_zero_copy && (binding.several || fits)).collect()
}

/// Returns the result of the first way that works. A kernel or a driver that does not support a way returns an error.
fn first_working<T, U>(
    ways: Vec<Binding>,
    mut open: impl FnMut(Binding) -> Result<(T, U), FramesError>,
) -> Result<(Binding, T, U), FramesError> {
    /// Error that drivers return as well: ENOTSUPP, which is not meant for processes (linux/errno.h).
    const KERNEL_ENOTSUPP: i32 = 524;
    let mut last = None;
    for way in ways {
        match open(way) {
            Ok((one, two)) => return Ok((way, one, two)),
            Err(error) => {
                let unknown =
                    matches!(error.error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | KERNEL_ENOTSUPP));
                if !unknown {
                    return Err(error);
                }
                tracing::debug!("{way:?}: {error}");
                last = Some(error);
            }
        }
    }
    Err(last.expect("the kernel copying is always tried"))
}

/// Opens a socket for each queue, and their memory.
fn open_queues(
    interface: &Interface,
    numbers: &[u32],
    binding: Binding,
    arenas: &[Arc<Arena>],
    options: &Options,
) -> Result<(Umem, Vec<Queue>), FramesError> {
    let each = Queue::chunks_per_queue(options);
    let mut umem = Umem::new(each * numbers.len() as u32, arenas)?;
    let mut queues: Vec<Queue> = Vec::new();
    for (at, number) in (0..).zip(numbers) {
        let place = (interface.index, *number);
        let queue = Queue::open_socket(&mut umem, at * each, place, binding, queues.first(), options)?;
        queues.push(queue);
    }
    Ok((umem, queues))
}

/// Returns the number of an interface's queues for reception: `ETHTOOL_GCHANNELS` of linux/ethtool.h. Returns 1 if the
/// driver does not report it.
fn receive_queue_count(interface: &str) -> Result<u32, FramesError> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    /// The kernel's `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        receiving: u32,
        sending: u32,
        other: u32,
        combined: u32,
    }
    let doing = format!("counting the queues of {interface}");
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(FramesError::from_system_call(&*doing))?;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    // SAFETY: a name and a union of integers and pointers, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: the name ends there.
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request names a structure of the kind that the command fills, which lives until the call is over.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    match io::Error::last_os_error() {
        _ if done == 0 => Ok((channels.receiving + channels.combined).max(1)),
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        error => Err(FramesError { doing, error }),
    }
}

/// Returns a function for `map_err` on a system call that needs privilege; the error names the capability and the
/// command that gives it.
fn with_permission_advice<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> FramesError {
    move |error| {
        let (error, doing) = (error.into(), doing.into());
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let program = std::env::current_exe().map_or("PROGRAM".into(), |path| path.display().to_string());
                format!(
                    " (needs CAP_NET_RAW for the sockets, CAP_BPF and CAP_NET_ADMIN for the program: run as root, or \
                     setcap cap_net_raw,cap_bpf,cap_net_admin,cap_ipc_lock+ep {program})"
                )
            }
            Some(libc::ENOBUFS) => {
                " (memory is pinned: this needs CAP_IPC_LOCK, or a higher RLIMIT_MEMLOCK: ulimit -l)".into()
            }
            Some(libc::EAFNOSUPPORT) => " (this kernel has no AF_XDP: CONFIG_XDP_SOCKETS)".into(),
            _ => String::new(),
        };
        FramesError { doing: doing + &remedy, error }
    }
}
