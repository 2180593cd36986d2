//! A port of DPDK: an adapter, or a virtual device.

use crate::DpdkError;
use crate::device::{Device, ETHERNET_HEADER_BYTES, Options};
use crate::environment::{Environment, clear_errors, kept_errors, lock_ports, register_thread};
use crate::memory::Admitted;
use crate::shim::{self, COPIED, Facts, Frame, Places, Shim, Statistics, TAKEN};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Piece};
use thalweg_frames::{Counters, FramesError, RawIo};
use thalweg_pci::{has_iommu, share_container};

/// Number of frames in a burst (`BURST` in `shim/shim.h`).
const BURST_FRAMES: u32 = 64;

/// A port of DPDK: an adapter, or a virtual device.
///
/// Releases the device when it is dropped. Frames that it has taken and not yet sent are lost then.
pub struct DpdkPort {
    shim: &'static Shim,
    /// The shim's port, open until this is dropped.
    port: NonNull<shim::Port>,
    device: String,
    facts: Facts,
    memories: Vec<Admitted>,
    /// Counters of frames and bytes passed to the shim; the device's own counters are in its statistics.
    counters: Counters,
    /// Number of frames that the shim has taken and not yet sent.
    taken: u64,
    joined: u64,
    /// True once a thread has begun to drive the port.
    driven: bool,
}

// SAFETY: the shim's port is owned by this value alone and may be used from any thread, one at a time. `&self` reaches
// only functions that read the device's counters.
unsafe impl Send for DpdkPort {}

impl DpdkPort {
    /// Opens a device: a PCI address, or a virtual device with its arguments. DPDK is started with the first one.
    ///
    /// # Errors
    /// There is no DPDK, it does not start, or the device cannot be opened.
    pub fn open_device(device: &str, options: &Options) -> Result<Self, DpdkError> {
        let name = device.split(',').next().unwrap_or_default();
        let wanted = Device::new(device, options)?;
        let environment =
            Environment::enter_started(options.huge_pages, &wanted.settings, has_iommu(name) == Some(false))?;
        let shim = environment.shim;
        let mut facts = Facts::default();
        let (mut doing, mut error): (_, c_int) = (ptr::null(), 0);
        clear_errors();
        // SAFETY: the environment is started, and locked by this thread for now.
        let port = unsafe {
            (shim.open)(
                wanted.text.as_ptr(),
                &raw const wanted.settings,
                &raw mut facts,
                &raw mut doing,
                &raw mut error,
            )
        };
        let Some(port) = NonNull::new(port) else {
            // SAFETY: the pointer is that of a constant string.
            let doing = unsafe { CStr::from_ptr(doing) }.to_string_lossy().into_owned();
            let error = io::Error::from_raw_os_error(error);
            return Err(DpdkError::Open { device: name.into(), doing, error, log: kept_errors() });
        };
        if let Some(has_iommu) = has_iommu(name) {
            // SAFETY: the environment is started.
            share_vfio_container(unsafe { (shim.container)() }, has_iommu);
        }
        drop(environment);
        let port = Self {
            shim,
            port,
            device: name.into(),
            facts,
            memories: Vec::new(),
            counters: Counters::default(),
            taken: 0,
            joined: 0,
            driven: false,
        };
        tracing::info!("{name}: {port}");
        if options.promiscuous && port.facts.all == 0 {
            tracing::warn!("{name} only receives packets for itself or for all: its driver has no promiscuous mode");
        }
        if !options.link.is_zero() && !port.wait_for_link(options.link) {
            tracing::warn!("{name} has no link yet: packets sent in the meantime are lost");
        }
        Ok(port)
    }

    /// Returns true if there is a link: a cable with a partner at the other end, a peer that has connected.
    pub fn has_link(&self) -> bool {
        // SAFETY: the port is open.
        unsafe { (self.shim.link)(self.port.as_ptr()) != 0 }
    }

    /// Waits until there is a link. Returns false if there was none within `longest`.
    pub fn wait_for_link(&self, longest: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if self.has_link() {
                return true;
            }
            if begun.elapsed() >= longest {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Logs which thread drives the port, and warns if it is far from the device.
    fn log_placement(&self) {
        let Ok((processor, node)) = current_processor() else { return };
        // SAFETY: the environment is started, since there is a port.
        let lcore = unsafe { (self.shim.lcore)() };
        tracing::info!("{}: driven from processor {processor}, NUMA node {node}, lcore {lcore}", self.device);
        if let Some(its) = self.numa_node()
            && its != node
        {
            tracing::warn!(
                "{} is at NUMA node {its}, and is driven from node {node}: `cpu` binds the thread to a processor of its \
                 node",
                self.device
            );
        }
    }

    /// Returns the NUMA node of the device; `None` if it belongs to none in particular.
    pub fn numa_node(&self) -> Option<u32> {
        u32::try_from(self.facts.node).ok()
    }

    /// Returns true if frames are sent in pieces, from where these lie; otherwise pieces are copied.
    pub fn gathers_pieces(&self) -> bool {
        self.facts.gathers != 0
    }

    /// Returns the number of frames that came in several pieces, and were copied into one.
    pub fn joined_frames(&self) -> u64 {
        self.joined
    }
}

impl RawIo for DpdkPort {
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        if self.memories.iter_mut().any(|known| known.is_arena(memory)) {
            return Ok(());
        }
        if let (Some(node), Ok(its)) = (self.numa_node(), numa_node_of(memory))
            && node != its
        {
            tracing::warn!("{} is at NUMA node {node}, and sends from memory of node {its}", self.device);
        }
        let _alone = lock_ports();
        // SAFETY: the port is open, and this thread has the lock.
        let admitted = unsafe { Admitted::new(self.shim, self.port, memory, self.facts.physical != 0) };
        // A device that cannot read it is most likely behind an IOMMU, with a mapping that cannot be written.
        self.memories.push(admitted.map_err(|error| FramesError {
            doing: format!(
                "registering {memory:?} with {} (for an arena of this process, register the whole arena)",
                self.device
            ),
            error,
        })?);
        Ok(())
    }

    fn mac_address(&self) -> [u8; 6] {
        self.facts.mac
    }

    fn max_frame_bytes(&self) -> usize {
        (self.facts.mtu + ETHERNET_HEADER_BYTES) as usize
    }

    /// # Panics
    /// The frame is longer than [`max_frame_bytes`](RawIo::max_frame_bytes), or its piece lies in an arena that was not
    /// registered.
    fn queue_frame(&mut self, head: &[u8], piece: Option<Piece<'_>>) -> bool {
        let piece = piece.filter(|piece| !piece.is_empty());
        let length = piece.map_or(0, Piece::len);
        let whole = head.len() + length;
        assert!(
            whole <= self.max_frame_bytes(),
            "a frame of {whole} bytes, longer than the limit of {}",
            self.max_frame_bytes()
        );
        let (memory, at) = match piece {
            None => (ptr::null_mut(), 0),
            Some(view) => {
                let memory = self.memories.iter_mut().find_map(|known| known.is_arena(view.arena()).then_some(known));
                let (memory, at) =
                    memory.expect("a piece lies in an arena that was registered").memory_and_offset(view);
                (memory.as_ptr(), at)
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "not longer than the longest frame")]
        let (head_length, length) = (head.len() as u32, length as u32);
        let mut places = tracing::enabled!(tracing::Level::TRACE).then(Places::default);
        let wanted = places.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the port is open; the head is copied before the call returns; the piece lies within the memory, which
        // stays until the device has read it. A concurrent write there changes the content of the frame, and nothing
        // else.
        let answer =
            unsafe { (self.shim.take)(self.port.as_ptr(), head.as_ptr(), head_length, memory, at, length, wanted) };
        for (address, length) in places.iter().flat_map(Places::addresses_and_lengths) {
            tracing::trace!("{}: {length} bytes are sent from {address:#x}", self.device);
        }
        if answer == COPIED {
            self.counters.copied += u64::from(length);
        }
        let taken = answer == TAKEN || answer == COPIED;
        self.taken += u64::from(taken);
        taken
    }

    fn has_send_room(&mut self) -> bool {
        self.taken < u64::from(BURST_FRAMES)
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        (u64::from(!self.gathers_pieces()), 0)
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        register_thread(self.shim);
        // SAFETY: the port is open.
        let left = u64::from(unsafe { (self.shim.flush)(self.port.as_ptr()) });
        self.counters.sent += self.taken - left;
        self.taken = left;
        Ok(left == 0)
    }

    fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
        register_thread(self.shim);
        if !std::mem::replace(&mut self.driven, true) {
            self.log_placement();
        }
        let mut frames: *const Frame = ptr::null();
        // SAFETY: the port is open.
        let count = unsafe { (self.shim.receive)(self.port.as_ptr(), &raw mut frames) };
        for at in 0..count {
            // SAFETY: there are `count` frames, valid until `done` is called.
            let frame = unsafe { frames.add(at as usize) };
            // SAFETY: as above.
            let frame = unsafe { *frame };
            let bytes = if frame.pieces == 1 {
                frame.bytes
            } else {
                self.joined += 1;
                // SAFETY: `at` is the index of one of the received frames.
                unsafe { (self.shim.join)(self.port.as_ptr(), at) }
            };
            if bytes.is_null() {
                self.counters.foreign += 1;
                continue;
            }
            self.counters.received += 1;
            // SAFETY: `length` bytes, in a buffer that is ours until `done` is called, or in the one for joined frames
            // until the next is joined.
            each(unsafe { std::slice::from_raw_parts(bytes, frame.length as usize) });
        }
        // SAFETY: the port is open, and no slice of a frame is left. If `each` panics, this is done with the next
        // burst, or at the end.
        unsafe { (self.shim.done)(self.port.as_ptr()) };
        Ok(count == BURST_FRAMES)
    }

    fn receive_room_frames(&self) -> usize {
        self.facts.receive.into()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn prepare_wait(&mut self) -> bool {
        true
    }

    fn port_counters(&self) -> Counters {
        let mut device = Statistics::default();
        // SAFETY: the port is open.
        unsafe { (self.shim.count)(self.port.as_ptr(), &raw mut device) };
        Counters { dropped: device.dropped, foreign: self.counters.foreign + device.damaged, ..self.counters }
    }
}

/// Describes the port for people: driver, addresses, NUMA node.
impl fmt::Display for DpdkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { mac, mtu, node, driver, gathers, physical, .. } = &self.facts;
        let driver = CStr::from_bytes_until_nul(driver).map(CStr::to_string_lossy).unwrap_or_default();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let node = u32::try_from(*node).map_or("any NUMA node".into(), |node| format!("NUMA node {node}"));
        let addresses = if *physical != 0 { "physical addresses (IOVA mode PA)" } else { "IOVA mode VA" };
        let pieces = if *gathers != 0 { "sends pieces from the arena" } else { "copies pieces" };
        write!(f, "DPDK, {driver}, {mac}, MTU {mtu}, {node}, {addresses}, {pieces}")
    }
}

impl fmt::Debug for DpdkPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DpdkPort({}, {:?})", self.device, self.facts)
    }
}

impl Drop for DpdkPort {
    fn drop(&mut self) {
        register_thread(self.shim);
        let _alone = lock_ports();
        // SAFETY: the port is open, is not used after this, and this thread has the lock.
        unsafe { (self.shim.close)(self.port.as_ptr()) }
    }
}

/// Returns the processor that this thread runs on, and its NUMA node.
fn current_processor() -> io::Result<(u32, u32)> {
    let (mut processor, mut node): (u32, u32) = (0, 0);
    // SAFETY: getcpu(2) writes two numbers.
    let answer = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut node, ptr::null_mut::<u8>()) };
    if answer == 0 { Ok((processor, node)) } else { Err(io::Error::last_os_error()) }
}

/// Lets other devices of this process join DPDK's container.
fn share_vfio_container(container: c_int, has_iommu: bool) {
    if container < 0 {
        return;
    }
    // SAFETY: DPDK keeps the descriptor open as long as the process lives.
    let container = unsafe { BorrowedFd::borrow_raw(container) };
    if let Err(error) = share_container(container, has_iommu) {
        tracing::warn!("other devices do not share DPDK's VFIO container: {error}");
    }
}

/// Flags of get_mempolicy(2) (linux/mempolicy.h) for the node of the page at an address.
const MPOL_F_NODE: c_int = 1;
const MPOL_F_ADDR: c_int = 2;

/// Returns the NUMA node of an arena's first page.
fn numa_node_of(arena: &Arena) -> io::Result<u32> {
    let mut node: c_int = 0;
    let no_mask = ptr::null_mut::<libc::c_ulong>();
    let start = arena.mapped_range().cast::<u8>();
    let flags = MPOL_F_NODE | MPOL_F_ADDR;
    // SAFETY: get_mempolicy(2) writes one number, and inspects a page that is mapped.
    let answer = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_mask, 0, start, flags) };
    if answer == 0 { Ok(node.cast_unsigned()) } else { Err(io::Error::last_os_error()) }
}
