//! One queue's socket: its rings, its chunks, and the operations on them.
//!
//! # Ownership of chunks
//!
//! Each socket has chunks of its own in the common memory. A chunk for sending is free (its number is in `free`), or on
//! its way (`out`), from when it is written to the ring for sending until the kernel reports in the completion ring
//! that it is done. A chunk for receiving is the kernel's (`lent`), from when it is written to the fill ring until it
//! comes back in the ring for receiving. The kernel shows the received frames before it reports which places of the
//! fill ring are free again (`xsk_flush`, net/xdp/xsk.c): as many as there are chunks may be late. So that ring has two
//! places for each. A number that comes back without having been given away is nonsense, and ignored.

use super::ring::{Places, Reader, Writer};
use super::umem::{CHUNK_BYTES, Umem};
use super::{Options, with_permission_advice};
use crate::FramesError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_arena::Piece;

/// Maximum number of descriptors that wait to be sent, and number of chunks for sending.
pub(super) const SEND_CHUNK_COUNT: u32 = 2048;
/// Size of a cache line, in bytes, and (`COLOUR_COUNT`) number of places in a chunk at which frames begin.
const CACHE_LINE_BYTES: usize = 64;
const COLOUR_COUNT: usize = 32;
/// Maximum number of frames taken in one turn.
const MAX_BURST_FRAMES: u32 = 256;
/// Maximum number of descriptors of one frame in the kernel's own buffers (`MAX_SKB_FRAGS`), the smallest limit that
/// applies.
const MAX_FRAME_DESCRIPTORS: usize = 17;
/// Bytes before a received frame that programs may use (`XDP_PACKET_HEADROOM`, linux/bpf.h).
pub(super) const RECEIVE_HEADROOM: usize = 256;
/// Maximum time that the kernel takes to give up a queue whose socket was closed: it does so in the background
/// (`xp_release_deferred`), after what others do to the network's interfaces.
const QUEUE_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Socket option for the number of frames that one system call may send: linux/if_xdp.h of Linux 6.17. Before, it is
/// 32.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// Size of the send buffer, in bytes. The kernel's limit that only a privileged process may exceed is not meant for
/// rings; this is plenty.
const SEND_BUFFER: c_int = 16 << 20;
/// Maximum number of frames taken in one turn of busy polling.
const BUSY_BUDGET: c_int = 64;

/// Way in which a socket is bound, and its abilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) zero_copy: bool,
    /// True if a frame may have several descriptors (Linux 6.6).
    pub(super) several: bool,
}

impl Binding {
    fn bind_flags(self) -> u16 {
        let copy = if self.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        copy | libc::XDP_USE_NEED_WAKEUP | if self.several { libc::XDP_USE_SG } else { 0 }
    }
}

/// A socket and everything that belongs to it.
#[derive(Debug)]
pub(super) struct Queue {
    fd: OwnedFd,
    binding: Binding,
    busy: bool,
    sending: Writer<libc::xdp_desc>,
    sent: Reader<u64>,
    received: Reader<libc::xdp_desc>,
    fill: Writer<u64>,
    /// Numbers of its chunks: those for sending from `send_from` on, those for receiving in `receive`.
    send_from: u32,
    receive: Range<u32>,
    free: Vec<u32>,
    out: Vec<bool>,
    lent: Vec<bool>,
    /// True if its descriptor is waited on for room, too.
    pub(super) waits_for_room: bool,
    /// Number of descriptors that the kernel has not reported as done.
    under_way: u32,
    /// Beginning of a frame whose end is yet to come, and (`too_long`) true if it is too long to be kept.
    partial: Vec<u8>,
    too_long: bool,
    in_part: bool,
    /// Number of chunks that came back and were never given away.
    pub(super) nonsense: u64,
}

impl Queue {
    /// Returns the number of chunks that one socket has.
    pub(super) fn chunks_per_queue(options: &Options) -> u32 {
        SEND_CHUNK_COUNT + options.receive_chunk_count()
    }

    /// Opens a socket for a queue, with its chunks from `first` on. The first socket registers the memory; the others
    /// share it.
    pub(super) fn open_socket(
        umem: &mut Umem,
        first: u32,
        (interface, queue): (u32, u32),
        binding: Binding,
        shared: Option<&Self>,
        options: &Options,
    ) -> Result<Self, FramesError> {
        let queue_name = format!("AF_XDP on queue {queue} of interface {interface}");
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(with_permission_advice(format!("{queue_name}: creating a socket")))?;
        let receiving = options.receive_chunk_count();
        let places = configure_rings(&fd, shared.is_none().then_some(&*umem), receiving)
            .map_err(with_permission_advice(format!("{queue_name}: registering memory")))?;
        let (sending, sent, received, fill) = map_rings(&fd, &places, receiving)
            .map_err(FramesError::from_system_call(format!("{queue_name}: mapping a ring")))?;
        let mut opened = Self {
            sending,
            sent,
            received,
            fill,
            fd,
            binding,
            busy: false,
            send_from: first,
            receive: first + SEND_CHUNK_COUNT..first + SEND_CHUNK_COUNT + receiving,
            free: (first..first + SEND_CHUNK_COUNT).rev().collect(),
            out: vec![false; SEND_CHUNK_COUNT as usize],
            lent: vec![true; receiving as usize],
            waits_for_room: false,
            under_way: 0,
            partial: Vec::new(),
            too_long: false,
            in_part: false,
            nonsense: 0,
        };
        // The first received frames need chunks.
        for chunk in opened.receive.clone() {
            assert!(opened.fill.free_entries(1) > 0, "a new ring has a place for each chunk");
            opened.fill.write_entry(u64::from(chunk) * CHUNK_BYTES as u64);
        }
        opened.fill.publish_entries();
        bind_to_queue(&opened.fd, (interface, queue), binding, shared).map_err(|error| FramesError {
            doing: match error.raw_os_error() {
                Some(libc::ENETDOWN) => format!("{queue_name}: binding (is the interface up?)"),
                Some(libc::EBUSY) => format!("{queue_name}: binding (another program uses this queue)"),
                _ => format!("{queue_name}: binding"),
            },
            error,
        })?;
        opened.set_options(options).map_err(FramesError::from_system_call(format!("{queue_name}: setting options")))?;
        Ok(opened)
    }

    fn set_options(&mut self, options: &Options) -> io::Result<()> {
        // Frames on their way count as the socket's memory while the kernel copies.
        if set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_err() {
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER)?;
        }
        // One system call sends everything. An older kernel sends 32 at a time, and is called more often.
        if let Err(error) = set_option(&self.fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &SEND_CHUNK_COUNT) {
            tracing::debug!("AF_XDP: 32 frames at a time, since Linux is older than 6.17: {error}");
        }
        if let Some(time) = options.busy_poll {
            let micros = c_int::try_from(time.as_micros()).unwrap_or(c_int::MAX);
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
            set_option(&self.fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &BUSY_BUDGET)?;
            self.busy = true;
        }
        Ok(())
    }

    /// Adds a frame to the ring for sending. Returns the number of bytes of the piece that were copied here, or `None`
    /// if there is no room.
    pub(super) fn send_frame(&mut self, umem: &mut Umem, heads: [&[u8]; 2], piece: Option<Piece<'_>>) -> Option<usize> {
        let len = piece.map_or(0, Piece::len);
        let head: usize = heads.iter().map(|head| head.len()).sum();
        let placed = self.offset_in_arenas(umem, head, piece);
        // Number of descriptors that point into an arena: one for each chunk that the piece touches.
        let pages = placed.map_or(0, |at| (at % CHUNK_BYTES + len).div_ceil(CHUNK_BYTES));
        let copied = if placed.is_some() { 0 } else { len };
        let bytes = head + copied;
        let chunks = bytes.div_ceil(CHUNK_BYTES);
        if !self.has_room(chunks, chunks + pages) {
            return None;
        }
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let here = CHUNK_BYTES.min(bytes - at);
            let last = at + here == bytes && placed.is_none();
            self.fill_chunk(umem, here, last, |chunk| copy_frame_part(heads, piece, at, chunk));
        }
        if let Some(start) = placed {
            let (mut at, end) = (start, start + len);
            while at < end {
                let next = end.min((at / CHUNK_BYTES + 1) * CHUNK_BYTES);
                self.describe_bytes(at, next - at, next == end);
                at = next;
            }
        }
        Some(copied)
    }

    /// Returns the offset in the memory for frames from which a piece is sent, or `None` if it is to be copied after
    /// its head.
    ///
    /// A kernel that copies frames copies a second part into a page of its own, which it has to allocate first
    /// (xsk_build_skb in net/xdp/xsk.c): that costs more than to copy here what fits after the head. On a virtual card
    /// of Linux 6.18 it was 2.0 instead of 1.5 µs for a frame of 1500 bytes.
    fn offset_in_arenas(&self, umem: &mut Umem, head: usize, piece: Option<Piece<'_>>) -> Option<usize> {
        let piece = piece.filter(|piece| self.binding.several && !piece.is_empty())?;
        if !self.binding.zero_copy && head + piece.len() <= CHUNK_BYTES {
            return None;
        }
        let at = umem.piece_offset(piece)?;
        let descriptors = head.div_ceil(CHUNK_BYTES) + (at % CHUNK_BYTES + piece.len()).div_ceil(CHUNK_BYTES);
        (descriptors <= MAX_FRAME_DESCRIPTORS).then_some(at)
    }

    /// Fills a chunk and describes it to the kernel. There must be [room](Self::has_room).
    fn fill_chunk(&mut self, umem: &mut Umem, len: usize, last: bool, fill: impl FnOnce(&mut [u8])) {
        let chunk = self.free.pop().expect("room was looked for");
        // Beginnings of pages all fall into the same few lines of the first cache. If there is room, frames begin at
        // different places.
        let start = (chunk as usize % COLOUR_COUNT * CACHE_LINE_BYTES)
            .min((CHUNK_BYTES - len) / CACHE_LINE_BYTES * CACHE_LINE_BYTES);
        // SAFETY: the chunk was free: the kernel has no descriptor of it, and it is described below, after the end of
        // the slice's lifetime.
        let bytes = unsafe { umem.chunk_bytes(chunk) };
        fill(&mut bytes[start..start + len]);
        self.out[(chunk - self.send_from) as usize] = true;
        self.describe_bytes(chunk as usize * CHUNK_BYTES + start, len, last);
    }

    fn describe_bytes(&mut self, at: usize, len: usize, last: bool) {
        let options = if last { 0 } else { libc::XDP_PKT_CONTD };
        self.sending.write_entry(libc::xdp_desc { addr: at as u64, len: len as u32, options });
        self.under_way += 1;
    }

    pub(super) fn has_room(&mut self, chunks: usize, descriptors: usize) -> bool {
        if self.has_reaped_room(chunks, descriptors) {
            return true;
        }
        self.reclaim_sent_chunks();
        self.has_reaped_room(chunks, descriptors)
    }

    /// True if there is room without the chunks that have been sent since the last
    /// [`reclaim_sent_chunks`](Self::reclaim_sent_chunks).
    fn has_reaped_room(&mut self, chunks: usize, descriptors: usize) -> bool {
        self.free.len() >= chunks
            && (SEND_CHUNK_COUNT - self.under_way) as usize >= descriptors
            && self.sending.free_entries(descriptors as u32) as usize >= descriptors
    }

    /// Takes back the chunks that have been sent.
    fn reclaim_sent_chunks(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        while let Some(at) = self.sent.next_entry() {
            self.under_way = self.under_way.saturating_sub(1);
            // Places in an arena are not chunks, and need not be taken back.
            let chunk = u32::try_from(at / CHUNK_BYTES as u64).unwrap_or(u32::MAX);
            let Some(own) = chunk.checked_sub(self.send_from).filter(|own| *own < SEND_CHUNK_COUNT) else { continue };
            if std::mem::take(&mut self.out[own as usize]) {
                self.free.push(chunk);
            } else {
                self.nonsense += 1;
            }
        }
        self.sent.release_entries();
    }

    /// Sends the frames in the ring. Returns false if not all were sent.
    pub(super) fn flush_ring(&mut self) -> io::Result<bool> {
        self.sending.publish_entries();
        let mut before = self.sending.unread_entries();
        if before == 0 {
            return Ok(true);
        }
        loop {
            if !self.sending.needs_wakeup() {
                // The driver is active and polls the ring itself.
                return Ok(true);
            }
            let called = self.wake_sender();
            self.reclaim_sent_chunks();
            let left = self.sending.unread_entries();
            match called {
                Ok(()) if left == 0 || self.binding.zero_copy => return Ok(true),
                Ok(()) => {}
                // No memory or no room in the device's queue for the moment; or the maximum of one call was sent.
                Err(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) if left == 0 => return Ok(true),
                Err(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                Err(error) => return Err(io::Error::from_raw_os_error(error)),
            }
            if left >= before {
                return Ok(false);
            }
            before = left;
        }
    }

    /// Makes the kernel send the frames in the ring.
    fn wake_sender(&self) -> Result<(), c_int> {
        // SAFETY: no memory is handed over.
        let sent =
            unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
    }

    /// Makes the driver look for frames, if it needs to be woken or is to be polled.
    fn wake_receiver(&self) {
        // The result does not matter: received frames show in the ring.
        // SAFETY: no memory is handed over.
        let _ = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut::<c_void>(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Passes received frames to `each`. Returns true if more may be waiting.
    pub(super) fn receive_frames(&mut self, umem: &mut Umem, longest: usize, each: &mut dyn FnMut(&[u8])) -> bool {
        if self.received.is_empty() {
            if !self.busy {
                return false;
            }
            self.wake_receiver();
            if self.received.is_empty() {
                return false;
            }
        }
        let mut taken = 0;
        while taken < MAX_BURST_FRAMES {
            let Some(descriptor) = self.received.next_entry() else { break };
            taken += 1;
            let Some((chunk, range)) = self.check_descriptor(&descriptor) else {
                self.nonsense += 1;
                continue;
            };
            // SAFETY: the kernel gave the chunk back with this descriptor, and gets it again below, after the end of
            // the slice's lifetime.
            let bytes = &unsafe { umem.chunk_bytes(chunk) }[range];
            let goes_on = descriptor.options & libc::XDP_PKT_CONTD != 0;
            if !goes_on && !self.in_part {
                each(bytes);
            } else {
                self.too_long |= self.partial.len() + bytes.len() > longest;
                if !self.too_long {
                    self.partial.extend_from_slice(bytes);
                }
                self.in_part = goes_on;
                if !goes_on {
                    if !self.too_long {
                        each(&self.partial);
                    }
                    self.partial.clear();
                    self.too_long = false;
                }
            }
            self.lent[(chunk - self.receive.start) as usize] = true;
            assert!(self.fill.free_entries(1) > 0, "there is a place for each chunk");
            self.fill.write_entry(u64::from(chunk) * CHUNK_BYTES as u64);
        }
        self.received.release_entries();
        self.fill.publish_entries();
        if self.fill.needs_wakeup() && self.binding.zero_copy {
            self.wake_receiver();
        }
        taken == MAX_BURST_FRAMES
    }

    /// Returns the chunk of a descriptor, and the range of the frame in it; `None` if the descriptor is impossible.
    fn check_descriptor(&mut self, descriptor: &libc::xdp_desc) -> Option<(u32, Range<usize>)> {
        let chunk = u32::try_from(descriptor.addr / CHUNK_BYTES as u64).ok()?;
        let start = (descriptor.addr % CHUNK_BYTES as u64) as usize;
        let end = start.checked_add(descriptor.len as usize).filter(|end| *end <= CHUNK_BYTES)?;
        let own = chunk.checked_sub(self.receive.start).filter(|_| chunk < self.receive.end)?;
        std::mem::take(&mut self.lent[own as usize]).then_some((chunk, start..end))
    }

    /// True if no frames wait to be received.
    pub(super) fn is_empty(&mut self) -> bool {
        self.received.is_empty()
    }

    /// True if there are frames that the kernel has not taken for sending.
    pub(super) fn has_unsent_frames(&mut self) -> bool {
        self.sending.unread_entries() > 0 && !self.binding.zero_copy
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number of received frames that were dropped: for other errors, and because they were not received in
    /// time.
    pub(super) fn dropped_frames(&self) -> io::Result<u64> {
        let statistics: libc::xdp_statistics = get_option(&self.fd, libc::XDP_STATISTICS)?;
        Ok(statistics.rx_dropped + statistics.rx_ring_full)
    }

    /// True if the adapter reads and writes the chunks itself.
    pub(super) fn is_zero_copy(&self) -> io::Result<bool> {
        let options: libc::xdp_options = get_option(&self.fd, libc::XDP_OPTIONS)?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }
}

/// Requests the rings of a socket, and returns the places of their parts. The first socket registers the memory.
fn configure_rings(fd: &OwnedFd, umem: Option<&Umem>, receiving: u32) -> io::Result<Places4> {
    if let Some(umem) = umem {
        set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem.kernel_description())?;
    }
    // Each descriptor on its way has a place in the completion ring.
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &(2 * receiving))?;
    set_option(fd, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &SEND_CHUNK_COUNT)?;
    set_option(fd, libc::SOL_XDP, libc::XDP_RX_RING, &receiving)?;
    set_option(fd, libc::SOL_XDP, libc::XDP_TX_RING, &SEND_CHUNK_COUNT)?;
    get_option(fd, libc::XDP_MMAP_OFFSETS)
}

/// The rings of a socket: to send, sent, received, and to fill.
type Rings = (Writer<libc::xdp_desc>, Reader<u64>, Reader<libc::xdp_desc>, Writer<u64>);

fn map_rings(fd: &OwnedFd, places: &Places4, receiving: u32) -> io::Result<Rings> {
    Ok((
        Writer::map_ring(fd.as_fd(), libc::XDP_PGOFF_TX_RING as u64, &places.sending, SEND_CHUNK_COUNT)?,
        Reader::map_ring(fd.as_fd(), libc::XDP_UMEM_PGOFF_COMPLETION_RING, &places.sent, SEND_CHUNK_COUNT)?,
        Reader::map_ring(fd.as_fd(), libc::XDP_PGOFF_RX_RING as u64, &places.received, receiving)?,
        Writer::map_ring(fd.as_fd(), libc::XDP_UMEM_PGOFF_FILL_RING, &places.fill, 2 * receiving)?,
    ))
}

/// Copies as much of a frame as there is room for, from byte `at` on.
fn copy_frame_part(heads: [&[u8]; 2], piece: Option<Piece<'_>>, mut at: usize, mut out: &mut [u8]) {
    for head in heads {
        match head.get(at..) {
            Some(rest) => {
                let (first, behind) = out.split_at_mut(rest.len().min(out.len()));
                first.copy_from_slice(&rest[..first.len()]);
                (at, out) = (0, behind);
            }
            None => at -= head.len(),
        }
    }
    if let Some(piece) = piece.filter(|_| !out.is_empty()) {
        piece.copy_bytes_to(at, out);
    }
}

/// Binds a socket to a queue. If a socket of the queue was closed just before, waits until the kernel has released the
/// queue.
fn bind_to_queue(
    fd: &OwnedFd,
    (interface, queue): (u32, u32),
    binding: Binding,
    shared: Option<&Queue>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: if shared.is_some() { libc::XDP_SHARED_UMEM } else { binding.bind_flags() },
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        // A descriptor is never negative.
        sxdp_shared_umem_fd: shared.map_or(0, |first| first.fd.as_raw_fd() as u32),
    };
    let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    let began = Instant::now();
    loop {
        // SAFETY: a whole address of the length that is passed.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || began.elapsed() > QUEUE_RELEASE_TIMEOUT {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Offsets of the four rings in their mappings: `struct xdp_mmap_offsets`, with our names.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Places4 {
    received: Places,
    sending: Places,
    fill: Places,
    sent: Places,
}

/// A type that may be an option's value: any bytes are a valid one.
///
/// # Safety
/// The type is made of integers without padding.
unsafe trait OptionValue: Copy {}

// SAFETY: integers, as the kernel defines them.
unsafe impl OptionValue for u32 {}
// SAFETY: as above.
unsafe impl OptionValue for c_int {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_umem_reg {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_statistics {}
// SAFETY: as above.
unsafe impl OptionValue for libc::xdp_options {}
// SAFETY: as above: four times four integers.
unsafe impl OptionValue for Places4 {}

fn set_option<T: OptionValue>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: a whole value of the length that is passed.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_option<T: OptionValue>(fd: &OwnedFd, option: c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: room for a value of the length that is passed.
    let done =
        unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, value.as_mut_ptr().cast(), &raw mut len) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, all written: by the kernel, or with zero.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_frame_is_copied_from_where_it_is() {
        let heads = [&b"headers"[..], &b"head"[..]];
        for (at, len) in (0..=11).flat_map(|at| (0..=11 - at).map(move |len| (at, len))) {
            let mut out = vec![0; len];
            copy_frame_part(heads, None, at, &mut out);
            assert_eq!(out, b"headershead"[at..at + len], "{at}+{len}");
        }
    }
}
