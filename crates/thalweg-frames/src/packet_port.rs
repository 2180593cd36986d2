//! A port for Ethernet frames of one type, through the kernel: a packet socket (packet(7)). For protocols without IP, on
//! any interface and without a program in the kernel; each burst is one system call.

use crate::kernel::{Interface, Kernel};
use crate::{Counters, FrameIo, FramesError};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use thalweg_arena::{Arena, Piece};

/// Maximum number of frames sent or received in one call.
const MAX_BURST_FRAMES: usize = 64;
/// Length of an Ethernet header, in bytes.
const ETHERNET_HEADER_BYTES: usize = 14;
/// Memory for received frames that is requested of the kernel, in bytes. The kernel doubles it, and a frame takes about
/// twice its length of it.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// A packet socket for frames of one type on one interface.
#[derive(Debug)]
pub struct PacketPort {
    socket: OwnedFd,
    mac: [u8; 6],
    max_frame_bytes: usize,
    /// Frames to be sent, one after the other, and the end of each; (`gone`) the number of those sent.
    frames: Vec<u8>,
    ends: Vec<usize>,
    gone: usize,
    /// Room for received frames, `max_frame_bytes` for each.
    rooms: Box<[u8]>,
    counters: Counters,
}

impl PacketPort {
    /// Opens a port for frames of `ether_type` on an interface.
    ///
    /// # Errors
    /// There is no such interface, or this process has no permission (`CAP_NET_RAW`).
    pub fn open_interface(interface: &str, ether_type: u16) -> Result<Self, FramesError> {
        Self::open_found(&Kernel::open_connection()?.interface_by_name(interface)?, ether_type)
    }

    /// Opens a port for frames of `ether_type` on the interface with this index.
    ///
    /// # Errors
    /// The same as for [`open_interface`](Self::open_interface).
    pub fn open_index(index: u32, ether_type: u16) -> Result<Self, FramesError> {
        Self::open_found(&Kernel::open_connection()?.interface_by_index(index)?, ether_type)
    }

    fn open_found(found: &Interface, ether_type: u16) -> Result<Self, FramesError> {
        let doing =
            format!("opening a socket for frames of type {ether_type:#06x} on {} (it needs CAP_NET_RAW)", found.name);
        let max_frame_bytes = found.mtu + ETHERNET_HEADER_BYTES;
        let socket = bind_socket(found.index, ether_type).map_err(FramesError::from_system_call(doing))?;
        Ok(Self {
            socket,
            mac: found.mac,
            max_frame_bytes,
            frames: Vec::with_capacity(MAX_BURST_FRAMES * max_frame_bytes),
            ends: Vec::with_capacity(MAX_BURST_FRAMES),
            gone: 0,
            rooms: vec![0; MAX_BURST_FRAMES * max_frame_bytes].into(),
            counters: Counters::default(),
        })
    }

    fn queue_parts(&mut self, parts: [&[u8]; 2], piece: Option<Piece<'_>>) -> bool {
        let piece_bytes = piece.map_or(0, Piece::len);
        let frame_bytes = parts.iter().map(|part| part.len()).sum::<usize>() + piece_bytes;
        if !self.has_send_room() || frame_bytes > self.max_frame_bytes {
            return false;
        }
        parts.iter().for_each(|part| self.frames.extend_from_slice(part));
        if let Some(piece) = piece {
            let begin = self.frames.len();
            self.frames.resize(begin + piece_bytes, 0);
            piece.copy_bytes_to(0, &mut self.frames[begin..]);
            self.counters.copied += piece_bytes as u64;
        }
        self.ends.push(self.frames.len());
        true
    }

    /// Sends what is queued in one call, and returns the number of frames sent.
    fn send_burst(&mut self) -> io::Result<usize> {
        // SAFETY: integers and null pointers, for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; MAX_BURST_FRAMES] = unsafe { zeroed() };
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_BURST_FRAMES];
        let mut begin = if self.gone == 0 { 0 } else { self.ends[self.gone - 1] };
        let unsent = &self.ends[self.gone..];
        for ((message, part), end) in messages.iter_mut().zip(&mut parts).zip(unsent) {
            let frame = &self.frames[begin..*end];
            *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (ptr::from_mut(part), 1);
            begin = *end;
        }
        // SAFETY: each of the messages points to one part, which is a frame of this port; the kernel only reads them, and
        // nothing else uses them until the call is over.
        let sent = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), unsent.len() as u32, libc::MSG_DONTWAIT)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives a burst into the rooms. Returns the lengths of the frames, and their number.
    fn receive_burst(&mut self) -> io::Result<([usize; MAX_BURST_FRAMES], usize)> {
        // SAFETY: integers and null pointers, for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; MAX_BURST_FRAMES] = unsafe { zeroed() };
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MAX_BURST_FRAMES];
        let rooms = self.rooms.chunks_exact_mut(self.max_frame_bytes);
        for ((message, part), room) in messages.iter_mut().zip(&mut parts).zip(rooms) {
            *part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (ptr::from_mut(part), 1);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each of the messages points to one part, which is a room of its own that nothing else uses until the call
        // is over. With MSG_TRUNC the kernel returns the full length of a frame, and writes no more than there is room for.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                MAX_BURST_FRAMES as u32,
                flags,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok((messages.map(|message| message.msg_len as usize), received))
    }
}

impl FrameIo for PacketPort {
    fn register_memory(&mut self, _memory: &Arc<Arena>) -> Result<(), FramesError> {
        Ok(())
    }

    fn mac_address(&self) -> [u8; 6] {
        self.mac
    }

    fn max_frame_bytes(&self) -> usize {
        self.max_frame_bytes
    }

    fn has_send_room(&mut self) -> bool {
        self.ends.len() < MAX_BURST_FRAMES
    }

    fn queue_frame(&mut self, head: &[u8], piece: Option<Piece<'_>>) -> bool {
        self.queue_parts([&[], head], piece)
    }

    fn queue_frame_with_headers(&mut self, headers: &[u8], head: &[u8], piece: Option<Piece<'_>>) -> bool {
        self.queue_parts([headers, head], piece)
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        while self.gone < self.ends.len() {
            match self.send_burst() {
                Ok(sent) => {
                    self.gone += sent;
                    self.counters.sent += sent as u64;
                }
                // The interface has no room, which is no reason to end the port.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Frames of an interface that is down are lost.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => self.gone = self.ends.len(),
                Err(error) => return Err(FramesError::from_system_call("sending frames")(error)),
            }
        }
        self.frames.clear();
        self.ends.clear();
        self.gone = 0;
        Ok(true)
    }

    fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
        let (lengths, received) = match self.receive_burst() {
            Ok(burst) => burst,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(false);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => return Ok(false),
            Err(error) => return Err(FramesError::from_system_call("receiving frames")(error)),
        };
        let rooms = self.rooms.chunks_exact(self.max_frame_bytes);
        for (room, length) in rooms.zip(&lengths[..received]) {
            match room.get(..*length) {
                Some(frame) => {
                    self.counters.received += 1;
                    each(frame);
                }
                None => self.counters.foreign += 1,
            }
        }
        Ok(received == MAX_BURST_FRAMES)
    }

    fn receive_room_frames(&self) -> usize {
        // Of the socket's buffer, by what a frame takes of it (about twice its length).
        let bytes = rustix::net::sockopt::socket_recv_buffer_size(&self.socket).unwrap_or(0);
        bytes / (2 * self.max_frame_bytes)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn prepare_wait(&mut self) -> bool {
        true
    }

    fn is_cheap_to_poll(&self) -> bool {
        false
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        (2, 1)
    }

    fn port_counters(&self) -> Counters {
        self.counters
    }
}

/// Returns a socket that receives frames of one type, and sends frames, on an interface.
fn bind_socket(index: u32, ether_type: u16) -> io::Result<OwnedFd> {
    // The socket receives nothing until it is bound: protocol 0.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    // Without CAP_NET_ADMIN, the kernel gives no more than `net.core.rmem_max`.
    let forced = set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
    forced.or_else(|_| set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES))?;
    // SAFETY: integers, for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ether_type.to_be();
    address.sll_ifindex = index.cast_signed();
    // SAFETY: an address of the length that is passed, which outlives the call.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    };
    if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_sys::netns::Network;

    const ETHER_TYPE: u16 = 0x88b5;

    fn frame(to: [u8; 6], from: [u8; 6], ether_type: u16, content: &[u8]) -> Vec<u8> {
        [&to[..], &from, &ether_type.to_be_bytes(), content].concat()
    }

    #[test]
    fn frames_of_the_type_arrive_and_others_do_not() {
        let network = match Network::new(2, 1500) {
            Ok(network) => network,
            Err(why) => return thalweg_testing::skip::skipped(format!("no networks of its own: {why}")),
        };
        let open =
            |host| network.run_on_host(host, || PacketPort::open_interface(Network::INTERFACE, ETHER_TYPE)).unwrap();
        let (mut near, mut far) = match (open(0), open(1)) {
            (Ok(near), Ok(far)) => (near, far),
            (Err(why), _) | (_, Err(why)) => return thalweg_testing::skip::skipped(why),
        };
        assert_eq!(near.max_frame_bytes(), 1514);
        let (to, from) = (far.mac_address(), near.mac_address());
        assert!(!near.queue_frame(&[0; 1515], None), "longer than the interface takes");
        for content in 0..100u8 {
            let ether_type = if content % 10 == 9 { 0x88b6 } else { ETHER_TYPE };
            assert!(near.queue_frame_with_headers(&frame(to, from, ether_type, &[]), &[content; 100], None));
            if !near.has_send_room() {
                assert!(near.flush_burst().unwrap());
            }
        }
        assert!(near.flush_burst().unwrap());
        let mut received = Vec::new();
        while received.len() < 90 {
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(&far.socket, rustix::event::PollFlags::IN)],
                Some(&rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 }),
            )
            .unwrap();
            let before = received.len();
            while far.receive_frames(&mut |frame| received.push(frame.to_vec())).unwrap() {}
            assert!(received.len() > before, "no more frames after {before}");
        }
        let expected: Vec<_> = (0..100u8)
            .filter(|content| content % 10 != 9)
            .map(|content| frame(to, from, ETHER_TYPE, &[content; 100]))
            .collect();
        assert_eq!(received, expected);
        assert_eq!((near.port_counters().sent, far.port_counters().received), (100, 90));
        let error = PacketPort::open_interface("no-such", ETHER_TYPE).unwrap_err().to_string();
        assert!(error.contains("no-such"), "{error}");
    }
}
