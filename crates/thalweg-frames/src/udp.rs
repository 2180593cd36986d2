//! A UDP socket: many datagrams in one call, segmented and joined by the kernel (GSO, GRO: udp(7)).
//!
//! Datagrams of one length to one address are passed to the kernel as one message, which it cuts into segments as late
//! as possible, most often in the adapter (`UDP_SEGMENT`, Linux 4.18). On reception it joins datagrams that belong
//! together (`UDP_GRO`, Linux 5.0), so that on one host a whole burst passes as one. Several such messages are sent
//! with one system call (sendmmsg(2), recvmmsg(2)). If an adapter cannot segment, datagrams are sent one by one.
//!
//! Datagrams are never fragmented (`IP_PMTUDISC_DO`): one that is too long is an error, and reported.

use crate::control::{self, Room};
use crate::io::WriteDatagram;
use crate::{Arrival, Counters, DatagramIo, FramesError};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use thalweg_arena::{KeptPiece, Piece};

/// Bytes of IP and UDP headers before a datagram: RFC 791, RFC 8200, RFC 768.
const HEADERS_V4: usize = 20 + 8;
const HEADERS_V6: usize = 40 + 8;
/// Maximum payload of a UDP datagram over IPv4, in bytes: 65,535 less its headers. Over IPv6 it could be 20 more.
const MAX_PAYLOAD_BYTES: usize = 65_535 - HEADERS_V4;
/// Maximum number of datagrams in a burst, and the length of their heads from which on there is no room for another: what
/// fits the processor's cache.
const MAX_BURST_DATAGRAMS: usize = 512;
const MAX_BURST_HEAD_BYTES: usize = 512 << 10;
/// Maximum number of segments of one message: as many as every kernel with GSO takes (`UDP_MAX_SEGMENTS`).
const MAX_SEGMENTS: usize = 64;
/// Maximum number of messages in one call.
const MAX_SENT_MESSAGES: usize = 32;
/// Number of messages in a row that the kernel refuses to cut before it is not asked to any more.
const MAX_REFUSED_MESSAGES: u32 = 16;
/// Maximum number of messages received in one call. Each may be a whole burst of a peer.
const MAX_RECEIVED_MESSAGES: usize = 8;
/// Maximum number of calls in one [`UdpPort::receive_messages`] before others have their turn.
const MAX_RECEIVE_CALLS: usize = 4;
/// Number of receptions in a row without a datagram from which on reports of the kernel are looked for, too, although no
/// call has failed.
const RECEPTIONS_PER_REPORT: u32 = 16;
/// Room for one received message, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Bytes of kernel memory per byte of a datagram. The kernel counts the memory that a datagram takes, not its content:
/// for short ones as much again, and for those from an adapter up to three times as much.
pub(crate) const MEMORY_PER_BYTE: u64 = 3;

/// A port that is a UDP socket.
#[derive(Debug)]
pub struct UdpPort {
    socket: Socket,
    local: SocketAddr,
    /// Heads to be sent, one after the other (of the buffer, `heads_bytes` are used), and (`burst`) for each datagram its
    /// part of them.
    heads: Vec<u8>,
    heads_bytes: usize,
    burst: Vec<Datagram>,
    /// Number of datagrams of the burst that were sent already.
    gone: usize,
    /// True if the kernel cuts a message into datagrams.
    segments: bool,
    /// Index in the burst before which datagrams are sent one by one, and (`refused`) the number of messages in a row
    /// that the kernel refused to cut.
    singly: usize,
    refused: u32,
    rooms: Box<[u8]>,
    counters: Counters,
    /// Number of datagrams that the kernel had dropped at the last message, modulo 2³².
    overflowed: u32,
    /// True if a call has failed, so that the kernel may have a report, and the number of receptions in a row without a
    /// datagram.
    expects_report: bool,
    empty_receptions: u32,
    /// True if messages come faster than they are received, so that several are asked for at once.
    is_busy: bool,
}

#[derive(Debug)]
struct Datagram {
    to: SocketAddr,
    head: (usize, usize),
    piece: Option<KeptPiece>,
}

impl Datagram {
    fn length_bytes(&self) -> usize {
        self.head.1 + self.borrowed_piece().map_or(0, Piece::len)
    }

    fn borrowed_piece(&self) -> Option<Piece<'_>> {
        self.piece.as_ref().map(KeptPiece::borrowed_piece)
    }
}

impl UdpPort {
    /// Opens a port of this host; with port 0, one that the system chooses.
    ///
    /// # Errors
    /// The address is not an address of this host, or the port is in use.
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        if at.is_ipv6() {
            set_socket_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            set_socket_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            // The socket can reach IPv4, too: by mapped addresses (RFC 4291, section 2.5.5.2).
            set_socket_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
        }
        set_socket_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set_socket_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        set_socket_option(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        // Joined or not, the received datagrams are the same.
        if let Err(error) = set_socket_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1) {
            tracing::info!("the kernel does not merge datagrams: {error}");
        }
        socket.bind(&at.into())?;
        join_multicast_group(&socket, at)?;
        let local = socket.local_addr()?.as_socket().unwrap_or(at);
        Ok(Self {
            socket,
            local,
            heads: vec![0; MAX_BURST_DATAGRAMS * 128],
            heads_bytes: 0,
            burst: Vec::with_capacity(MAX_BURST_DATAGRAMS),
            gone: 0,
            segments: true,
            singly: 0,
            refused: 0,
            rooms: vec![0; MAX_RECEIVED_MESSAGES * RECEIVE_BUFFER_BYTES].into(),
            counters: Counters::default(),
            overflowed: 0,
            expects_report: true,
            empty_receptions: 0,
            is_busy: false,
        })
    }

    /// Opens a port that the system chooses, for IPv4 and IPv6 if this host has both.
    ///
    /// # Errors
    /// The system has no port left.
    pub fn bind_anywhere() -> io::Result<Self> {
        Self::bind((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| Self::bind((Ipv4Addr::UNSPECIFIED, 0).into()))
    }

    /// Returns room for a head of this length after the others.
    fn head_room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.heads_bytes + bytes;
        if self.heads.len() < end {
            self.heads.resize(end, 0);
        }
        &mut self.heads[self.heads_bytes..end]
    }

    /// Sends messages, one for each of `ends`, of which there are at most `MAX`: the datagrams from the previous end up to that one. Returns the number
    /// of datagrams sent.
    fn send_messages<const MAX: usize>(&mut self, ends: &[usize]) -> io::Result<usize> {
        // SAFETY: integers and null pointers, for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; MAX] = unsafe { zeroed() };
        let mut names = [const { None::<SockAddr> }; MAX];
        let mut rooms = [Room::EMPTY; MAX];
        let mut pieces = Vec::with_capacity(2 * (ends.last().copied().unwrap_or(0) - self.gone));
        let mut begins = [0; MAX];
        let mut start = self.gone;
        for (at, end) in ends.iter().enumerate() {
            begins[at] = pieces.len();
            for datagram in &self.burst[start..*end] {
                let (from, length) = datagram.head;
                let head = &self.heads[from..from + length];
                pieces.push(libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: length });
                if let Some(piece) = datagram.borrowed_piece() {
                    pieces.push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
                }
            }
            start = *end;
        }
        start = self.gone;
        for (at, end) in ends.iter().enumerate() {
            let count =
                begins.get(at + 1).filter(|_| at + 1 < ends.len()).copied().unwrap_or(pieces.len()) - begins[at];
            let header = &mut messages[at].msg_hdr;
            let name = names[at].insert(self.mapped_address(self.burst[start].to).into());
            header.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_namelen = name.len();
            header.msg_iov = pieces[begins[at]..].as_mut_ptr();
            header.msg_iovlen = count;
            if end - start > 1 {
                #[expect(clippy::cast_possible_truncation, reason = "a datagram has less than 64 KiB")]
                let segment = self.burst[start].length_bytes() as u16;
                header.msg_controllen =
                    control::write_u16_message(&mut rooms[at], libc::SOL_UDP, libc::UDP_SEGMENT, segment);
                header.msg_control = rooms[at].0.as_mut_ptr().cast();
            }
            start = *end;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX")]
        let count = ends.len() as u32;
        // SAFETY: each of the `count` headers points to a name, a list of pieces and a control message that live until
        // the call is over. The pieces are heads, which are not changed meanwhile, and parts of arenas, which stay
        // mapped; the kernel only reads them, and concurrent writes there do not matter to it.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(sent.checked_sub(1).map_or(0, |last| ends[last] - self.gone))
    }

    /// Returns the ends of messages and their number: each consists of datagrams of one length to one address, except
    /// that the last may be shorter.
    fn message_ends(&self) -> ([usize; MAX_SENT_MESSAGES], usize) {
        let (mut ends, mut count) = ([0; MAX_SENT_MESSAGES], 0);
        let mut start = self.gone;
        while start < self.burst.len() && count < MAX_SENT_MESSAGES {
            let first = &self.burst[start];
            let (length, mut bytes, mut end) = (first.length_bytes(), first.length_bytes(), start + 1);
            while self.segments
                && start >= self.singly
                && end - start < MAX_SEGMENTS
                && let Some(next) = self.burst.get(end)
                && next.to == first.to
                && next.length_bytes() <= length
                && bytes + next.length_bytes() <= MAX_PAYLOAD_BYTES
            {
                bytes += next.length_bytes();
                end += 1;
                if self.burst[end - 1].length_bytes() < length {
                    break;
                }
            }
            ends[count] = end;
            count += 1;
            start = end;
        }
        (ends, count)
    }

    /// Returns an address in the form that this socket uses.
    fn mapped_address(&self, to: SocketAddr) -> SocketAddr {
        match (self.local, to.ip()) {
            (SocketAddr::V6(_), IpAddr::V4(ip)) => (ip.to_ipv6_mapped(), to.port()).into(),
            _ => to,
        }
    }

    fn forget_sent(&mut self, count: usize) {
        for datagram in &self.burst[self.gone..self.gone + count] {
            self.counters.sent += 1;
            self.counters.copied += datagram.borrowed_piece().map_or(0, Piece::len) as u64;
        }
        self.gone += count;
        if self.gone == self.burst.len() {
            self.singly = 0;
            self.burst.clear();
            self.heads_bytes = 0;
            self.gone = 0;
        }
    }

    /// Receives messages, at most `MAX`. Returns the number received.
    fn receive_messages<const MAX: usize>(
        &mut self,
        each: &mut dyn FnMut(SocketAddr, Arrival<'_>),
    ) -> io::Result<usize> {
        // SAFETY: integers and null pointers, for which all zeros is a valid value.
        let mut messages: [libc::mmsghdr; MAX] = unsafe { zeroed() };
        let mut names: [SockAddrStorage; MAX] = std::array::from_fn(|_| SockAddrStorage::zeroed());
        let mut controls = [Room::EMPTY; MAX];
        let mut pieces: [libc::iovec; MAX] = std::array::from_fn(|at| libc::iovec {
            iov_base: self.rooms[at * RECEIVE_BUFFER_BYTES..].as_mut_ptr().cast(),
            iov_len: RECEIVE_BUFFER_BYTES,
        });
        for (at, message) in messages.iter_mut().enumerate() {
            let header = &mut message.msg_hdr;
            header.msg_name = ptr::from_mut(&mut names[at]).cast();
            header.msg_namelen = names[at].size_of();
            header.msg_iov = &raw mut pieces[at];
            header.msg_iovlen = 1;
            header.msg_control = controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Room>();
        }
        // SAFETY: each header points to a name, a room of RECEIVE_BUFFER_BYTES and a room for control messages, which
        // are used by nothing else until the call is over.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                MAX as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (at, message) in messages.iter().take(received).enumerate() {
            let length = (message.msg_len as usize).min(RECEIVE_BUFFER_BYTES);
            let mut segment = length;
            control::for_each_message(&controls[at], message.msg_hdr.msg_controllen, |level, kind, content| {
                match (level, kind, control::read_number(content)) {
                    (libc::SOL_UDP, libc::UDP_GRO, Some(bytes)) => segment = bytes as usize,
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, Some(dropped)) => {
                        self.counters.dropped += u64::from(dropped.wrapping_sub(self.overflowed));
                        self.overflowed = dropped;
                    }
                    _ => {}
                }
            });
            // SAFETY: the kernel has written an address of `msg_namelen` bytes.
            let from = unsafe {
                SockAddr::new(std::mem::replace(&mut names[at], SockAddrStorage::zeroed()), message.msg_hdr.msg_namelen)
            };
            let Some(from) = from.as_socket().map(canonical_address) else { continue };
            for datagram in
                self.rooms[at * RECEIVE_BUFFER_BYTES..at * RECEIVE_BUFFER_BYTES + length].chunks(segment.max(1))
            {
                self.counters.received += 1;
                each(from, Arrival::Datagram(datagram));
            }
        }
        Ok(received)
    }

    /// Takes the kernel's reports of datagrams that were not delivered. Returns the number of reports.
    fn take_error_reports(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> usize {
        let mut taken = 0;
        loop {
            let mut name = SockAddrStorage::zeroed();
            let mut control = Room::EMPTY;
            // SAFETY: integers and null pointers, for which all zeros is a valid value.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_name = ptr::from_mut(&mut name).cast();
            header.msg_namelen = name.size_of();
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Room>();
            // SAFETY: the header points to a name and a room for control messages, which are used by nothing else;
            // there is no room for the datagram itself, which is cut off.
            let length = unsafe {
                libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
            };
            if length < 0 {
                return taken;
            }
            taken += 1;
            // SAFETY: the kernel has written an address of `msg_namelen` bytes: the destination of the datagram
            // (ip(7)).
            let to = unsafe { SockAddr::new(name, header.msg_namelen) };
            let Some(to) = to.as_socket().map(canonical_address) else { continue };
            control::for_each_message(&control, header.msg_controllen, |level, kind, content| {
                let is_report = matches!(
                    (level, kind),
                    (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                );
                match control::read_number(content).filter(|_| is_report).map(|errno| errno.cast_signed()) {
                    Some(libc::ECONNREFUSED) => each(to, Arrival::Unreachable),
                    Some(libc::EMSGSIZE) => each(to, Arrival::TooLong),
                    // No route at the moment, or the like: such datagrams count as lost on the way.
                    _ => {}
                }
            });
        }
    }
}

impl DatagramIo for UdpPort {
    fn local_address(&self) -> SocketAddr {
        self.local
    }

    fn max_datagram_bytes(&mut self, to: SocketAddr) -> Result<usize, FramesError> {
        let doing = format!("finding the route to {to}");
        // The MTU of a path can be read from a connected socket.
        let probe = Socket::new(Domain::for_address(to), Type::DGRAM.cloexec(), Some(Protocol::UDP))
            .map_err(FramesError::from_system_call(&*doing))?;
        probe.connect(&to.into()).map_err(FramesError::from_system_call(&*doing))?;
        let (level, option, headers) = match to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU, HEADERS_V6),
        };
        let mtu = get_socket_option(&probe, level, option).map_err(FramesError::from_system_call(&*doing))?;
        Ok(usize::try_from(mtu).unwrap_or(0).saturating_sub(headers).min(MAX_PAYLOAD_BYTES))
    }

    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        reserve_receive_buffer(&self.socket, bytes) / MEMORY_PER_BYTE
    }

    fn has_send_room(&mut self) -> bool {
        self.burst.len() < MAX_BURST_DATAGRAMS && self.heads_bytes < MAX_BURST_HEAD_BYTES
    }

    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        if self.has_send_room() {
            let from = self.heads_bytes;
            self.head_room(head.len()).copy_from_slice(head);
            self.heads_bytes += head.len();
            self.burst.push(Datagram { to, head: (from, head.len()), piece: piece.map(Piece::keep_arena) });
        }
    }

    fn queue_in_place(&mut self, max_bytes: usize, write: WriteDatagram<'_>) -> bool {
        if !self.has_send_room() {
            return false;
        }
        let Some((to, bytes)) = write(self.head_room(max_bytes)) else { return false };
        let bytes = bytes.min(max_bytes);
        self.burst.push(Datagram { to, head: (self.heads_bytes, bytes), piece: None });
        self.heads_bytes += bytes;
        true
    }

    /// Returns one copy in each direction: the kernel copies datagrams into its own memory, and out of it
    /// (`MSG_ZEROCOPY` does so too if a datagram stays on this host).
    fn copies_per_byte(&self) -> (u64, u64) {
        (1, 1)
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        // The last error of this kind, and its position in the burst.
        let mut failed = None;
        while self.gone < self.burst.len() {
            let (ends, count) = self.message_ends();
            let outcome = match count {
                1 => self.send_messages::<1>(&ends[..1]),
                _ => self.send_messages::<MAX_SENT_MESSAGES>(&ends[..count]),
            };
            self.expects_report |= outcome.is_err();
            match outcome {
                Ok(sent) => {
                    if ends[0] - self.gone > 1 {
                        self.refused = 0;
                    }
                    self.forget_sent(sent);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS) => return Ok(false),
                    Some(libc::EINTR) => {}
                    // Segments that are longer than the MTU, which may have shrunk. Only for datagrams that are sent
                    // one by one is that in the error queue. Older kernels return EINVAL, as they do for other reasons.
                    Some(number @ (libc::EMSGSIZE | libc::EINVAL))
                        if ends[0] - self.gone > 1 && self.refused < MAX_REFUSED_MESSAGES =>
                    {
                        self.refused += u32::from(number == libc::EINVAL);
                        self.singly = ends[0];
                    }
                    // The adapter does not segment, and the kernel does not do it instead (udp(7)).
                    Some(libc::EIO | libc::EINVAL) if self.segments => {
                        tracing::info!("datagrams are sent one by one: the kernel cannot segment them ({error})");
                        self.segments = false;
                    }
                    // An error of an earlier datagram, to any address: the error queue has the details, and nothing was
                    // sent. If it is reported again, it concerns this datagram, which is lost, as on the way.
                    Some(number) if failed != Some((number, self.gone)) => failed = Some((number, self.gone)),
                    Some(_) => self.forget_sent(ends[0] - self.gone),
                    None => return Err(FramesError::from_system_call("sending datagrams")(error)),
                },
            }
        }
        Ok(true)
    }

    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        for _ in 0..MAX_RECEIVE_CALLS {
            // One message alone costs less than the first of several.
            let was_busy = self.is_busy;
            let received = match was_busy {
                true => self.receive_messages::<MAX_RECEIVED_MESSAGES>(each),
                false => self.receive_messages::<1>(each),
            };
            self.is_busy = received.as_ref().is_ok_and(|received| *received > usize::from(was_busy));
            match received {
                Ok(_) if !was_busy => return Ok(true),
                Ok(MAX_RECEIVED_MESSAGES) => {}
                // If there are errors, the socket stays readable for them.
                Ok(_) => return Ok(false),
                Err(error) => match error.raw_os_error() {
                    // A socket with an error queue is readable if the queue has an entry, too.
                    Some(libc::EAGAIN) => {
                        self.empty_receptions += 1;
                        if !self.expects_report && self.empty_receptions < RECEPTIONS_PER_REPORT {
                            return Ok(false);
                        }
                        (self.expects_report, self.empty_receptions) = (false, 0);
                        return Ok(self.take_error_reports(each) > 0);
                    }
                    Some(libc::EINTR) => {}
                    // An error of a datagram that was sent: the error queue has the details.
                    Some(_) => drop(self.take_error_reports(each)),
                    None => return Err(FramesError::from_system_call("receiving datagrams")(error)),
                },
            }
        }
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn port_counters(&self) -> Counters {
        self.counters
    }
}

/// Joins a multicast group (RFC 1112) if the address is one: on the interface that its scope names (`[ff02::1%eth1]`),
/// or on each that this host has.
pub(crate) fn join_multicast_group(socket: &Socket, at: SocketAddr) -> io::Result<()> {
    if !at.ip().is_multicast() {
        return Ok(());
    }
    let scope = if let SocketAddr::V6(at) = at { at.scope_id() } else { 0 };
    let mut interfaces: Vec<u32> = match scope {
        0 => if_addrs::get_if_addrs()?.into_iter().filter_map(|interface| interface.index).collect(),
        scope => vec![scope],
    };
    interfaces.sort_unstable();
    interfaces.dedup();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "this host has no network to join the group on");
    let mut joined = false;
    for interface in interfaces {
        let outcome = match at.ip() {
            IpAddr::V4(group) => socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface)),
            IpAddr::V6(group) => socket.join_multicast_v6(&group, interface),
        };
        // Some interfaces take part in no group of this family.
        match outcome {
            Ok(()) => joined = true,
            Err(error) => failed = error,
        }
    }
    if joined { Ok(()) } else { Err(failed) }
}

/// Requests a receive buffer for `bytes` of datagrams, and returns the memory that the kernel provides, in bytes.
pub(crate) fn reserve_receive_buffer(socket: &Socket, bytes: u64) -> u64 {
    use rustix::net::sockopt::set_socket_recv_buffer_size_force;
    let wanted = usize::try_from(bytes.saturating_mul(MEMORY_PER_BYTE)).unwrap_or(usize::MAX).min(MAX_BUFFER_BYTES);
    // The kernel doubles the requested size. Without CAP_NET_ADMIN it provides no more than `net.core.rmem_max`.
    let wanted = wanted.div_ceil(2);
    let forced = set_socket_recv_buffer_size_force(socket, wanted).is_ok();
    if !forced && let Err(error) = socket.set_recv_buffer_size(wanted) {
        tracing::warn!("the size of the receive buffer cannot be set: {error}");
    }
    socket.recv_buffer_size().map_or(0, |size| size as u64)
}

/// Returns an IPv4 address that came over IPv6 as an IPv4 address.
pub(crate) fn canonical_address(from: SocketAddr) -> SocketAddr {
    match from.ip().to_canonical() {
        ip @ IpAddr::V4(_) => (ip, from.port()).into(),
        IpAddr::V6(_) => from,
    }
}

/// Maximum size of a buffer, in bytes: a number that the kernel doubles.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize;

pub(crate) fn set_socket_option(socket: &Socket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value lives until the call is over, and its length is passed with it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_socket_option(socket: &Socket, level: i32, option: i32) -> io::Result<i32> {
    let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most the `length` bytes that are passed with the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, ptr::from_mut(&mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_too_long_do_not_end_segmentation() {
        if let Err(error) = thalweg_sys::netns::enter_private_network() {
            return thalweg_testing::skip::skipped(error.to_string());
        }
        let done = std::process::Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).status().unwrap();
        assert!(done.success());
        let bind = || UdpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (mut port, sink) = (bind(), bind());
        let mut send = |bytes: usize| {
            (0..2).for_each(|_| port.queue_datagram(sink.local_address(), &vec![0; bytes], None));
            assert!(port.flush_burst().unwrap());
            let mut too_long = 0;
            port.receive_datagrams(&mut |_, arrival| too_long += u32::from(matches!(arrival, Arrival::TooLong)))
                .unwrap();
            (too_long > 0, port.segments, port.refused < 2)
        };
        assert_eq!(send(3000), (true, true, true));
        assert_eq!(send(1000), (false, true, true));
    }
}
