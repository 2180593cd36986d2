//! A UDP socket whose datagrams are received directly in their final places.
//!
//! The kernel writes the first bytes of each datagram in one place and the rest in another (recvmsg(2): scatter), many
//! datagrams in one call (recvmmsg(2)). So a payload after a header of known length reaches its place with the one copy
//! that a socket costs anyway. Datagrams are not joined (`UDP_GRO`): joined ones have one place.

use crate::control::{self, Room};
use crate::udp::{MEMORY_PER_BYTE, canonical_address, join_multicast_group, reserve_receive_buffer, set_socket_option};
use crate::{Counters, FramesError};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// Maximum number of datagrams received in one call.
const MAX_RECEIVED_DATAGRAMS: usize = 64;

/// Receives datagrams into places that the caller chooses. Non-blocking.
#[derive(Debug)]
pub struct DirectSocket {
    socket: Socket,
    local: SocketAddr,
    counters: Counters,
    /// Number of datagrams that the kernel had dropped at the last message, modulo 2³².
    overflowed: u32,
}

/// Destination of one datagram, and the result of its reception.
#[derive(Debug)]
pub struct Place<'a> {
    /// Room for the first bytes of the datagram; it is filled first.
    pub front: &'a mut [u8],
    /// Room for the rest; it is filled next.
    pub rest: &'a mut [u8],
    /// Room for the bytes that fit in neither.
    pub more: &'a mut [u8],
    /// Length of the datagram in bytes, even if there was no room for all of it.
    pub length: usize,
    /// Sender of the datagram; `None` if no datagram came.
    pub from: Option<SocketAddr>,
}

impl<'a> Place<'a> {
    /// Creates a place without a datagram.
    pub fn new(front: &'a mut [u8], rest: &'a mut [u8]) -> Self {
        Self { front, rest, more: &mut [], length: 0, from: None }
    }
}

impl DirectSocket {
    /// Opens a port of this host, or of a multicast group.
    ///
    /// # Errors
    /// The address is not an address of this host, or the port is in use.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        socket.bind(&at.into())?;
        join_multicast_group(&socket, at)?;
        let local = socket.local_addr()?.as_socket().unwrap_or(at);
        Ok(Self { socket, local, counters: Counters::default(), overflowed: 0 })
    }

    /// Returns the address to which others send.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Makes the kernel keep up to `bytes` of datagrams that were not received yet, and returns the number of bytes it
    /// keeps.
    pub fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        reserve_receive_buffer(&self.socket, bytes) / MEMORY_PER_BYTE
    }

    /// Receives the datagrams that are there into these places, in their order. Returns the number received.
    ///
    /// # Errors
    /// Receiving is not possible any more.
    pub fn receive_datagrams(&mut self, places: &mut [Place<'_>]) -> Result<usize, FramesError> {
        let count = places.len().min(MAX_RECEIVED_DATAGRAMS);
        // SAFETY: integers and null pointers, for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; MAX_RECEIVED_DATAGRAMS] = unsafe { zeroed() };
        let mut names: [SockAddrStorage; MAX_RECEIVED_DATAGRAMS] = std::array::from_fn(|_| SockAddrStorage::zeroed());
        let mut controls = [Room::EMPTY; MAX_RECEIVED_DATAGRAMS];
        let nothing = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut parts = [[nothing; 3]; MAX_RECEIVED_DATAGRAMS];
        for (at, place) in places.iter_mut().take(count).enumerate() {
            parts[at] = [&mut *place.front, &mut *place.rest, &mut *place.more]
                .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
            let header = &mut messages[at].msg_hdr;
            header.msg_name = ptr::from_mut(&mut names[at]).cast();
            header.msg_namelen = names[at].size_of();
            header.msg_iov = parts[at].as_mut_ptr();
            header.msg_iovlen = 3;
            header.msg_control = controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Room>();
        }
        let received = loop {
            // SAFETY: each of the `count` headers points to a name, a room for control messages and three parts of a
            // place, which are used by nothing else until the call is over. With MSG_TRUNC the kernel returns the full
            // length of a datagram, and writes no more than there is room for.
            let received = unsafe {
                libc::recvmmsg(
                    self.socket.as_raw_fd(),
                    messages.as_mut_ptr(),
                    count as u32,
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                    ptr::null_mut(),
                )
            };
            match usize::try_from(received) {
                Ok(received) => break received,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(FramesError::from_system_call("receiving datagrams")(error)),
                },
            }
        };
        for (at, place) in places.iter_mut().take(received).enumerate() {
            control::for_each_message(&controls[at], messages[at].msg_hdr.msg_controllen, |level, kind, content| {
                if let (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, Some(dropped)) =
                    (level, kind, control::read_number(content))
                {
                    self.counters.dropped += u64::from(dropped.wrapping_sub(self.overflowed));
                    self.overflowed = dropped;
                }
            });
            place.length = messages[at].msg_len as usize;
            let name = std::mem::replace(&mut names[at], SockAddrStorage::zeroed());
            // SAFETY: the kernel has written an address of `msg_namelen` bytes.
            place.from =
                unsafe { SockAddr::new(name, messages[at].msg_hdr.msg_namelen) }.as_socket().map(canonical_address);
        }
        self.counters.received += received as u64;
        Ok(received)
    }

    /// Returns the counters of the port.
    pub fn port_counters(&self) -> Counters {
        self.counters
    }
}

impl AsFd for DirectSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// The route to all groups leads into one network, and the sender is in the other.
    #[test]
    fn a_group_is_joined_on_every_network_of_a_host() {
        let network = match thalweg_sys::netns::Network::new(2, 1500) {
            Ok(network) => network,
            Err(why) => return thalweg_testing::skip::skipped(format!("no networks of its own: {why}")),
        };
        let group: SocketAddr = "239.77.1.1:7401".parse().unwrap();
        let mut socket = network
            .run_on_host(1, || {
                let other = "link add other type veth peer name far; link set other up; link set far up; address add 10.9.9.9/24 dev other; route add \
                             default dev other";
                for command in other.split("; ") {
                    let done = std::process::Command::new("ip").args(command.split(' ')).status().unwrap();
                    assert!(done.success(), "ip {command}");
                }
                DirectSocket::bind(group).unwrap()
            })
            .unwrap();
        network
            .run_on_host(0, || {
                let sender = UdpSocket::bind((thalweg_sys::netns::Network::host_address(0), 0)).unwrap();
                socket2::SockRef::from(&sender)
                    .set_multicast_if_v4(&thalweg_sys::netns::Network::host_address(0))
                    .unwrap();
                sender.send_to(b"here", group).unwrap();
            })
            .unwrap();
        let mut fds = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&time)).unwrap();
        let mut front = [0; 4];
        let mut place = Place::new(&mut front, &mut []);
        assert_eq!(socket.receive_datagrams(std::slice::from_mut(&mut place)).unwrap(), 1);
        assert_eq!(&front, b"here");
    }

    #[test]
    fn each_datagram_is_laid_where_it_was_asked_for() {
        let mut socket = DirectSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for bytes in [&b"abcdefgh"[..], b"ab", b"", b"abcdefghijklmnop"] {
            sender.send_to(bytes, socket.local_address()).unwrap();
        }
        let mut fronts = [[0; 3]; 5];
        let mut rests = [[0; 6]; 5];
        let mut places: Vec<_> =
            fronts.iter_mut().zip(&mut rests).map(|(front, rest)| Place::new(front, rest)).collect();
        assert_eq!(socket.receive_datagrams(&mut places).unwrap(), 4);
        assert!(places[..4].iter().all(|place| place.from == sender.local_addr().ok()));
        assert!(places[4].from.is_none());
        assert_eq!(places.iter().map(|place| place.length).collect::<Vec<_>>(), [8, 2, 0, 16, 0]);
        assert_eq!((&fronts[0], &rests[0]), (b"abc", b"defgh\0"));
        assert_eq!((&fronts[3], &rests[3]), (b"abc", b"defghi"));
        assert_eq!((&fronts[1], &rests[1]), (b"ab\0", &[0; 6]));
        sender.send_to(b"abcdefgh", socket.local_address()).unwrap();
        let (mut front, mut rest, mut more) = ([0; 3], [0; 2], [0; 9]);
        let mut place = Place { more: &mut more, ..Place::new(&mut front, &mut rest) };
        assert_eq!(socket.receive_datagrams(std::slice::from_mut(&mut place)).unwrap(), 1);
        assert_eq!((&front, &rest, &more[..4]), (b"abc", b"de", &b"fgh\0"[..]));
    }

    #[test]
    fn what_the_kernel_dropped_for_want_of_room_is_counted() {
        let mut socket = DirectSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.reserve_receive_bytes(0);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            sender.send_to(&[7; 1000], socket.local_address()).unwrap();
        }
        let mut received = 0;
        // Drops are reported with a datagram that comes later.
        for _ in 0..2 {
            let (mut rest, mut front) = ([0; 1000], []);
            while socket.receive_datagrams(&mut [Place::new(&mut front, &mut rest)]).unwrap() > 0 {
                received += 1;
            }
            sender.send_to(&[7; 1000], socket.local_address()).unwrap();
        }
        assert_eq!(received + socket.port_counters().dropped, 101, "{:?}", socket.port_counters());
    }
}
