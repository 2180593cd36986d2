//! A port for datagrams over a port for frames: Ethernet II, IPv4 (RFC 791) and UDP (RFC 768) at fixed places.
//!
//! Frames are written without IP options, never fragmented, and without a UDP checksum, which IPv4 allows (RFC 768):
//! the adapter checks each frame, and the layers above have checksums of their own.
//!
//! Received frames are not trusted. A frame that is damaged, cut short, a fragment or for another host is counted
//! ([`Counters::foreign`]) and dropped. It is parsed at fixed places rather than by a library, since that is a few
//! comparisons for each datagram.

use crate::kernel::{Beside, Complaint};
use crate::neighbours::{Mac, Neighbours, Pace};
use crate::{Arrival, Counters, FrameIo, FramesError, RawIo};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, KeptPiece, Piece};

/// Lengths of the headers, in bytes: Ethernet, IPv4 without options, UDP.
const ETHERNET_HEADER_BYTES: usize = 14;
const IPV4_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const HEADERS_BYTES: usize = ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + UDP_HEADER_BYTES;
/// Length of an ARP message about IPv4 over Ethernet, in bytes (RFC 826).
const ARP_MESSAGE_BYTES: usize = 28;
const BROADCAST: Mac = [0xff; 6];

/// Time for which a destination's headers are used before the neighbour is looked up again: a gateway that hands over
/// to another, with a new address, is followed that soon.
const PATH_FRESH: Duration = Duration::from_secs(1);
/// Time between two questions to the kernel for ICMP reports.
const COMPLAINT_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of destinations whose headers are kept ready.
const MAX_PATHS: usize = 4096;
/// Maximum number of answers given, and of complaints passed on, after one burst.
const MAX_REMARKS_PER_BURST: usize = 64;

/// A network that the kernel does not know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// Number of leading bits that the addresses of all neighbours share.
    pub prefix: u8,
    /// Gateway to other networks.
    pub gateway: Option<Ipv4Addr>,
    /// True if requests for the port's address (ARP) are to be answered: unless another does so, such as the kernel.
    pub answers: bool,
}

impl Subnet {
    /// True if `other` is a neighbour of a host with the address `own`.
    pub fn reaches_neighbour(&self, own: Ipv4Addr, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
        (own.to_bits() ^ other.to_bits()) & mask == 0
    }
}

/// A port for datagrams over a port for frames.
#[derive(Debug)]
pub struct EthernetPort<R> {
    raw: R,
    own: Own,
    network: Network,
    neighbours: Neighbours,
    /// Headers by destination, and (`last`) those used last once more.
    paths: HashMap<SocketAddrV4, Path>,
    last: Option<(SocketAddrV4, Path)>,
    began: Instant,
    /// Current time, updated once a burst.
    now: Duration,
    /// Time at which the kernel is asked again for its reports.
    next_report_check: Duration,
    /// Room for a datagram that came through the kernel.
    room: Option<Box<[u8]>>,
    sent: u64,
    received: u64,
    foreign: u64,
}

/// The addresses of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Ethernet address of the adapter.
    pub mac: Mac,
    /// IP address and number of the port.
    pub at: SocketAddrV4,
}

/// Way of finding neighbours.
#[derive(Debug)]
enum Network {
    Alone(Subnet),
    #[cfg_attr(not(feature = "af-xdp"), allow(dead_code, reason = "ports beside the kernel come with a feature"))]
    Beside(Beside),
}

impl<R: RawIo> EthernetPort<R> {
    /// Creates a port with an address of its own, on a network that the kernel has no part in.
    pub fn new(raw: R, at: SocketAddrV4, subnet: Subnet) -> Self {
        Self::over_network(raw, at, Network::Alone(subnet), Pace::ARP)
    }

    /// Creates a port on an interface of the kernel's, which resolves the port's neighbours.
    #[cfg(feature = "af-xdp")]
    pub(crate) fn beside_kernel(raw: R, at: SocketAddrV4, kernel: Beside) -> Self {
        // A question costs a system call, not a broadcast.
        let pace = Pace {
            again: Duration::from_millis(1),
            fresh: Duration::from_secs(1),
            patience: Duration::from_millis(100),
        };
        Self::over_network(raw, at, Network::Beside(kernel), pace)
    }

    fn over_network(raw: R, at: SocketAddrV4, network: Network, pace: Pace) -> Self {
        let own = Own { mac: raw.mac_address(), at };
        Self {
            raw,
            own,
            network,
            neighbours: Neighbours::new(pace),
            paths: HashMap::new(),
            last: None,
            began: Instant::now(),
            now: Duration::ZERO,
            next_report_check: Duration::ZERO,
            room: None,
            sent: 0,
            received: 0,
            foreign: 0,
        }
    }

    /// Returns the port for frames below.
    pub fn raw_port(&self) -> &R {
        &self.raw
    }

    /// Returns the port for frames below, for a caller that needs whole frames.
    pub fn into_raw_port(self) -> R {
        self.raw
    }

    /// Returns the headers for a destination. If its neighbour has yet to be resolved, the error is the neighbour; if
    /// there is no route, the error is `None`.
    fn path_to_destination(&mut self, to: SocketAddrV4) -> Result<Path, Option<Ipv4Addr>> {
        if let Some((last, path)) = self.last
            && last == to
            && self.now < path.until
        {
            return Ok(path);
        }
        if let Some(path) = self.paths.get(&to).filter(|path| self.now < path.until) {
            self.last = Some((to, *path));
            return Ok(*path);
        }
        let hop = self.next_hop(*to.ip()).ok_or(None)?;
        let Some(mac) = self.neighbours.find_mac_address(hop, self.now).or_else(|| self.neighbour_from_kernel(hop))
        else {
            return Err(Some(hop));
        };
        let path = Path::new(self.own, to, mac, self.now + PATH_FRESH);
        if self.paths.len() >= MAX_PATHS {
            self.paths.clear();
        }
        self.paths.insert(to, path);
        self.last = Some((to, path));
        Ok(path)
    }

    /// Returns the neighbour that packets to `to` are passed to.
    fn next_hop(&mut self, to: Ipv4Addr) -> Option<Ipv4Addr> {
        if to.is_broadcast() || to.is_multicast() || to.is_unspecified() {
            return None;
        }
        match &mut self.network {
            Network::Beside(kernel) => kernel.next_hop(to, *self.own.at.ip()),
            Network::Alone(subnet) => {
                if subnet.reaches_neighbour(*self.own.at.ip(), to) {
                    Some(to)
                } else {
                    subnet.gateway
                }
            }
        }
    }

    /// Returns the kernel's address of a neighbour that is needed for the first time.
    fn neighbour_from_kernel(&mut self, host: Ipv4Addr) -> Option<Mac> {
        let Network::Beside(kernel) = &mut self.network else { return None };
        let mac = kernel.neighbour_mac(host)?;
        self.neighbours.record_answer(host, mac, self.now).then_some(mac)
    }

    /// Asks for neighbours that are due, and sends the datagrams that waited for them.
    fn query_neighbours(&mut self) {
        let Self { raw, own, network, neighbours, .. } = self;
        match network {
            Network::Alone(_) => neighbours.for_each_due_query(self.now, |host, mac| {
                raw.queue_frame(&Arp::request_for(*own, host).encode_frame(own.mac, mac.unwrap_or(BROADCAST)), None);
            }),
            Network::Beside(kernel) => {
                let mut found = Vec::new();
                neighbours.for_each_due_query(self.now, |host, _| {
                    found.extend(kernel.neighbour_mac(host).map(|mac| (host, mac)))
                });
                for (host, mac) in found {
                    neighbours.record_answer(host, mac, self.now);
                }
            }
        }
        while let Some((waiting, mac)) = self.neighbours.next_ready_datagram() {
            let path = Path::new(self.own, waiting.to, mac, self.now);
            self.send_on_path(&path, &waiting.head, waiting.piece.as_ref().map(KeptPiece::borrowed_piece));
        }
    }

    /// Passes on the kernel's reports about datagrams from here, and the datagrams that the kernel received itself. The
    /// kernel is asked only now and then, since that is a system call.
    fn receive_from_kernel(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) {
        let Network::Beside(kernel) = &mut self.network else { return };
        if self.now < self.next_report_check {
            return;
        }
        self.next_report_check = self.now + COMPLAINT_INTERVAL;
        for _ in 0..MAX_REMARKS_PER_BURST {
            match kernel.next_icmp_report() {
                Some(Complaint::Unreachable(to)) => each(to.into(), Arrival::Unreachable),
                Some(Complaint::TooLong(to)) => each(to.into(), Arrival::TooLong),
                None => break,
            }
        }
        let room = self.room.get_or_insert_with(|| vec![0; usize::from(u16::MAX)].into());
        for _ in 0..MAX_REMARKS_PER_BURST {
            let Some((from, length)) = kernel.next_datagram(room) else { return };
            self.received += 1;
            each(from.into(), Arrival::Datagram(&room[..length]));
        }
    }

    /// Passes a frame to the port below.
    fn send_on_path(&mut self, path: &Path, head: &[u8], piece: Option<Piece<'_>>) {
        let length = head.len() + piece.map_or(0, Piece::len);
        let taken = self.raw.queue_frame_with_headers(&path.headers_for_payload(length), head, piece);
        self.sent += u64::from(taken);
    }
}

impl<R: RawIo> FrameIo for EthernetPort<R> {
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        self.raw.register_memory(memory)
    }

    fn local_address(&self) -> SocketAddr {
        self.own.at.into()
    }

    fn max_datagram_bytes(&mut self, to: SocketAddr) -> Result<usize, FramesError> {
        let unreachable = FramesError {
            doing: format!("looking for a route from {} to {to}", self.own.at),
            error: io::ErrorKind::HostUnreachable.into(),
        };
        let SocketAddr::V4(address) = to else { return Err(unreachable) };
        let most = self.raw.max_frame_bytes();
        let packet = match &self.network {
            Network::Alone(_) => most - ETHERNET_HEADER_BYTES,
            Network::Beside(kernel) => {
                let mtu = kernel
                    .path_mtu_bytes(address)
                    .map_err(FramesError::from_system_call(format!("looking for a route to {to}")))?;
                mtu.min(most - ETHERNET_HEADER_BYTES)
            }
        };
        self.next_hop(*address.ip()).ok_or(unreachable)?;
        Ok(packet.min(usize::from(u16::MAX)).saturating_sub(IPV4_HEADER_BYTES + UDP_HEADER_BYTES))
    }

    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        let each = self.raw.max_frame_bytes().saturating_sub(HEADERS_BYTES) as u64;
        bytes.min(self.raw.receive_room_frames() as u64 * each)
    }

    fn has_send_room(&mut self) -> bool {
        self.raw.has_send_room()
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        self.raw.copies_per_byte()
    }

    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        // A datagram that cannot reach its destination is lost, as it would be further on.
        let SocketAddr::V4(to) = to else { return };
        let length = HEADERS_BYTES + head.len() + piece.map_or(0, Piece::len);
        if length > self.raw.max_frame_bytes() || length - ETHERNET_HEADER_BYTES > usize::from(u16::MAX) {
            tracing::debug!("{length} bytes are more than a frame of {}", self.raw.max_frame_bytes());
            return;
        }
        match self.path_to_destination(to) {
            Ok(path) => self.send_on_path(&path, head, piece),
            Err(Some(hop)) => self.neighbours.queue_datagram(to, hop, head, piece, self.now),
            Err(None) => {}
        }
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        self.now = self.began.elapsed();
        self.query_neighbours();
        self.raw.flush_burst()
    }

    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        self.now = self.began.elapsed();
        let Self { raw, own, network, neighbours, .. } = self;
        let (mut received, mut foreign) = (0, 0);
        let mut answers: Vec<(Arp, Mac)> = Vec::new();
        let more = raw.receive_frames(&mut |frame| match parse_frame(frame, own) {
            Seen::Datagram { from, payload } => {
                received += 1;
                each(from.into(), Arrival::Datagram(payload));
            }
            Seen::Unreachable(to) => each(to.into(), Arrival::Unreachable),
            Seen::TooLong(to) => each(to.into(), Arrival::TooLong),
            Seen::Arp(arp) => {
                let Network::Alone(subnet) = network else { return };
                neighbours.record_answer(arp.sender, arp.sender_mac, self.now);
                if arp.asks && arp.target == *own.at.ip() && subnet.answers && answers.len() < MAX_REMARKS_PER_BURST {
                    answers.push((Arp::reply_to(*own, arp.sender), arp.sender_mac));
                }
            }
            Seen::Foreign => foreign += 1,
        })?;
        self.received += received;
        self.foreign += foreign;
        self.receive_from_kernel(each);
        for (answer, to) in &answers {
            self.raw.queue_frame(&answer.encode_frame(self.own.mac, *to), None);
        }
        if !answers.is_empty() || self.neighbours.has_waiting_datagrams() {
            self.query_neighbours();
            self.raw.flush_burst()?;
        }
        Ok(more)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.raw.descriptor()
    }

    fn prepare_wait(&mut self) -> bool {
        // The kernel does not report that it has found a neighbour. For the short while that a datagram waits for one,
        // the node does not sleep.
        let asks_kernel = matches!(self.network, Network::Beside(_)) && self.neighbours.has_waiting_datagrams();
        // A port that is polled does not report arrivals.
        self.raw.descriptor().is_some() && self.raw.prepare_wait() && !asks_kernel
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.raw.is_cheap_to_poll()
    }

    fn port_counters(&self) -> Counters {
        let below = self.raw.port_counters();
        Counters { sent: self.sent, received: self.received, foreign: below.foreign + self.foreign, ..below }
    }
}

/// Headers of datagrams to one destination.
#[derive(Debug, Clone, Copy)]
struct Path {
    headers: [u8; HEADERS_BYTES],
    /// Sum of the IP header's words, without the length: RFC 1071.
    sum: u32,
    until: Duration,
}

impl Path {
    fn new(own: Own, to: SocketAddrV4, mac: Mac, until: Duration) -> Self {
        let mut headers = [0; HEADERS_BYTES];
        let (ethernet, rest) = headers.split_at_mut(ETHERNET_HEADER_BYTES);
        let (ip, udp) = rest.split_at_mut(IPV4_HEADER_BYTES);
        ethernet[..6].copy_from_slice(&mac);
        ethernet[6..12].copy_from_slice(&own.mac);
        ethernet[12..].copy_from_slice(&[0x08, 0x00]);
        // Version 4, five words, "don't fragment", so that the identification has no meaning (RFC 6864); 64 hops, UDP.
        ip[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17]);
        ip[12..16].copy_from_slice(&own.at.ip().octets());
        ip[16..].copy_from_slice(&to.ip().octets());
        udp[..2].copy_from_slice(&own.at.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        let sum = sum_words(ip);
        Self { headers, sum, until }
    }

    /// Returns the headers for a payload of `payload` bytes, which must fit.
    fn headers_for_payload(&self, payload: usize) -> [u8; HEADERS_BYTES] {
        let mut headers = self.headers;
        // The caller has checked that it fits in a frame.
        let length = (IPV4_HEADER_BYTES + UDP_HEADER_BYTES + payload) as u16;
        headers[ETHERNET_HEADER_BYTES + 2..ETHERNET_HEADER_BYTES + 4].copy_from_slice(&length.to_be_bytes());
        headers[ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + 4..ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES + 6]
            .copy_from_slice(&(length - IPV4_HEADER_BYTES as u16).to_be_bytes());
        let checksum = !fold_checksum(self.sum + u32::from(length));
        headers[ETHERNET_HEADER_BYTES + 10..ETHERNET_HEADER_BYTES + 12].copy_from_slice(&checksum.to_be_bytes());
        headers
    }
}

/// Content of a frame, as far as it concerns a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A datagram for the port.
    Datagram {
        /// Sender of the datagram.
        from: SocketAddrV4,
        /// Payload of the datagram.
        payload: &'a [u8],
    },
    /// A question or an answer about an Ethernet address.
    Arp(Arp),
    /// The report that there is no receiver at an address this port has sent to (ICMP: RFC 792).
    Unreachable(SocketAddrV4),
    /// The report that a datagram of this port to the address was too long for its path (RFC 1191).
    TooLong(SocketAddrV4),
    /// Any other frame, and any damaged one.
    Foreign,
}

/// Parses a frame, which may consist of any bytes.
pub fn parse_frame<'a>(frame: &'a [u8], own: &Own) -> Seen<'a> {
    try_parse_frame(frame, own).unwrap_or(Seen::Foreign)
}

fn try_parse_frame<'a>(frame: &'a [u8], own: &Own) -> Option<Seen<'a>> {
    let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_HEADER_BYTES>()?;
    let for_us = ethernet[..6] == own.mac;
    match [ethernet[12], ethernet[13]] {
        [0x08, 0x06] if for_us || ethernet[..6] == BROADCAST => Some(Seen::Arp(Arp::parse_message(rest)?)),
        [0x08, 0x00] if for_us => {
            let packet = Packet::parse_packet(rest)?;
            match packet.protocol {
                17 if packet.to == *own.at.ip() => parse_datagram(&packet, own),
                1 if packet.to == *own.at.ip() => parse_icmp_report(packet.payload, own),
                _ => None,
            }
        }
        _ => None,
    }
}

fn parse_datagram<'a>(packet: &Packet<'a>, own: &Own) -> Option<Seen<'a>> {
    let (udp, _) = packet.payload.split_first_chunk::<UDP_HEADER_BYTES>()?;
    let [source, destination, length, checksum] =
        [0, 2, 4, 6].map(|offset| u16::from_be_bytes([udp[offset], udp[offset + 1]]));
    let length = usize::from(length);
    let whole = packet.payload.get(..length).filter(|_| length >= UDP_HEADER_BYTES)?;
    if destination != own.at.port() || !checksum_holds(packet, whole, checksum) {
        return None;
    }
    Some(Seen::Datagram { from: SocketAddrV4::new(packet.from, source), payload: &whole[UDP_HEADER_BYTES..] })
}

/// Checks a UDP checksum (RFC 768): zero means that there is none; otherwise it is the sum over a pseudo header and the
/// datagram.
///
/// Between virtual interfaces of one host (veth, virtio) the kernel leaves the sum to an adapter that is not there: the
/// field then has the sum of the pseudo header alone (`CHECKSUM_PARTIAL`, include/linux/skbuff.h). Such a datagram has
/// not been on any wire, and is taken.
fn checksum_holds(packet: &Packet<'_>, datagram: &[u8], checksum: u16) -> bool {
    let pseudo = sum_words(&packet.from.octets())
        + sum_words(&packet.to.octets())
        + u32::from(packet.protocol)
        + datagram.len() as u32;
    checksum == 0 || checksum == fold_checksum(pseudo) || fold_checksum(pseudo + sum_words(datagram)) == 0xffff
}

/// Parses a report of a host or router about a datagram of ours: ICMP type 3 (RFC 792), with the datagram's first
/// bytes.
fn parse_icmp_report<'a>(icmp: &[u8], own: &Own) -> Option<Seen<'a>> {
    let (head, cause) = icmp.split_first_chunk::<8>()?;
    let (ip, rest) = cause.split_first_chunk::<IPV4_HEADER_BYTES>()?;
    let (udp, _) = rest.split_first_chunk::<4>()?;
    let ours = ip[0] == 0x45 && ip[9] == 17 && ip[12..16] == own.at.ip().octets();
    if fold_checksum(sum_words(icmp)) != 0xffff || head[0] != 3 || !ours || udp[..2] != own.at.port().to_be_bytes() {
        return None;
    }
    let to = SocketAddrV4::new(read_ipv4_address(&ip[16..]), u16::from_be_bytes([udp[2], udp[3]]));
    match head[1] {
        // Protocol and port unreachable.
        2 | 3 => Some(Seen::Unreachable(to)),
        4 => Some(Seen::TooLong(to)),
        // The route may be found again (RFC 1122, section 3.2.2.1).
        _ => None,
    }
}

/// An IPv4 packet that is whole, without options.
struct Packet<'a> {
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    fn parse_packet(bytes: &'a [u8]) -> Option<Self> {
        let (ip, _) = bytes.split_first_chunk::<IPV4_HEADER_BYTES>()?;
        let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        // Padding may follow: a frame has at least 60 bytes.
        let payload = bytes.get(IPV4_HEADER_BYTES..length)?;
        // Fragments have an offset, or the flag that more follow.
        let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
        let from = read_ipv4_address(&ip[12..]);
        let is_no_host = from.is_multicast() || from.is_broadcast() || from.is_unspecified();
        if ip[0] != 0x45 || fragment || is_no_host || fold_checksum(sum_words(ip)) != 0xffff {
            return None;
        }
        Some(Self { from, to: read_ipv4_address(&ip[16..]), protocol: ip[9], payload })
    }
}

/// A question or an answer about an Ethernet address: RFC 826, for IPv4 over Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// True for a question, false for an answer.
    pub asks: bool,
    /// IP address of the sender.
    pub sender: Ipv4Addr,
    /// Ethernet address of the sender.
    pub sender_mac: Mac,
    /// Host that is asked for, or answered.
    pub target: Ipv4Addr,
}

impl Arp {
    /// Header of the messages: hardware is Ethernet (1), protocol is IPv4, addresses have 6 and 4 bytes.
    const ABOUT: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

    fn request_for(own: Own, target: Ipv4Addr) -> Self {
        Self { asks: true, sender: *own.at.ip(), sender_mac: own.mac, target }
    }

    fn reply_to(own: Own, target: Ipv4Addr) -> Self {
        Self { asks: false, ..Self::request_for(own, target) }
    }

    fn parse_message(bytes: &[u8]) -> Option<Self> {
        let (arp, _) = bytes.split_first_chunk::<ARP_MESSAGE_BYTES>()?;
        let asks = match arp[6..8] {
            [0, 1] => true,
            [0, 2] => false,
            _ => return None,
        };
        let mut sender_mac = [0; 6];
        sender_mac.copy_from_slice(&arp[8..14]);
        let known = arp[..6] == Self::ABOUT && sender_mac[0] & 1 == 0;
        known.then(|| Self {
            asks,
            sender: read_ipv4_address(&arp[14..]),
            sender_mac,
            target: read_ipv4_address(&arp[24..]),
        })
    }

    fn encode_frame(&self, from: Mac, to: Mac) -> [u8; ETHERNET_HEADER_BYTES + ARP_MESSAGE_BYTES] {
        let mut frame = [0; ETHERNET_HEADER_BYTES + ARP_MESSAGE_BYTES];
        let (ethernet, arp) = frame.split_at_mut(ETHERNET_HEADER_BYTES);
        ethernet[..6].copy_from_slice(&to);
        ethernet[6..12].copy_from_slice(&from);
        ethernet[12..].copy_from_slice(&[0x08, 0x06]);
        arp[..6].copy_from_slice(&Self::ABOUT);
        arp[7] = if self.asks { 1 } else { 2 };
        arp[8..14].copy_from_slice(&self.sender_mac);
        arp[14..18].copy_from_slice(&self.sender.octets());
        if to != BROADCAST {
            arp[18..24].copy_from_slice(&to);
        }
        arp[24..].copy_from_slice(&self.target.octets());
        frame
    }
}

/// Reads an address from the first four bytes, which must exist.
fn read_ipv4_address(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

/// Returns the sum of 16-bit words for a checksum (RFC 1071), not folded yet. Sufficient for 65,535 bytes.
fn sum_words(bytes: &[u8]) -> u32 {
    let (words, last) = bytes.as_chunks::<2>();
    let odd = last.first().map_or(0, |byte| u32::from(*byte) << 8);
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + odd
}

fn fold_checksum(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const OURS: Own = Own { mac: [2, 0, 0, 0, 0, 1], at: SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 4000) };
    const THEIRS: Own = Own { mac: [2, 0, 0, 0, 0, 2], at: SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 2), 5000) };
    const SUBNET: Subnet = Subnet { prefix: 30, gateway: None, answers: true };

    /// One end of a cable: sent frames stay until they are carried over.
    #[derive(Debug, Default)]
    struct Cable {
        mac: Mac,
        out: VecDeque<Vec<u8>>,
        incoming: VecDeque<Vec<u8>>,
    }

    impl RawIo for Cable {
        fn register_memory(&mut self, _: &Arc<Arena>) -> Result<(), FramesError> {
            Ok(())
        }
        fn mac_address(&self) -> Mac {
            self.mac
        }
        fn max_frame_bytes(&self) -> usize {
            1514
        }
        fn queue_frame(&mut self, head: &[u8], _: Option<Piece<'_>>) -> bool {
            self.out.push_back(head.to_vec());
            true
        }
        fn has_send_room(&mut self) -> bool {
            true
        }
        fn copies_per_byte(&self) -> (u64, u64) {
            (1, 0)
        }
        fn flush_burst(&mut self) -> Result<bool, FramesError> {
            Ok(true)
        }
        fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
            self.incoming.drain(..).for_each(|frame| each(&frame));
            Ok(false)
        }
        fn receive_room_frames(&self) -> usize {
            1000
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn prepare_wait(&mut self) -> bool {
            true
        }
        fn port_counters(&self) -> Counters {
            Counters::default()
        }
    }

    fn port(own: Own, subnet: Subnet) -> EthernetPort<Cable> {
        EthernetPort::new(Cable { mac: own.mac, ..Cable::default() }, own.at, subnet)
    }

    fn carry(from: &mut EthernetPort<Cable>, to: &mut EthernetPort<Cable>) -> Vec<(SocketAddr, Vec<u8>)> {
        from.flush_burst().unwrap();
        to.raw.incoming.extend(from.raw.out.drain(..));
        let mut got = Vec::new();
        to.receive_datagrams(&mut |from, arrival| match arrival {
            Arrival::Datagram(bytes) => got.push((from, bytes.to_vec())),
            other => panic!("{other:?}"),
        })
        .unwrap();
        got
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let path = Path::new(OURS, THEIRS.at, THEIRS.mac, Duration::ZERO);
        [&path.headers_for_payload(payload.len()), payload].concat()
    }

    #[test]
    fn two_ports_find_each_other_and_talk() {
        let (mut ours, mut theirs) = (port(OURS, SUBNET), port(THEIRS, SUBNET));
        ours.queue_datagram(THEIRS.at.into(), b"hello", None);
        assert_eq!(carry(&mut ours, &mut theirs), [], "a question first");
        assert_eq!(carry(&mut theirs, &mut ours), [], "an answer");
        assert_eq!(carry(&mut ours, &mut theirs), [(OURS.at.into(), b"hello".to_vec())]);
        ours.queue_datagram(THEIRS.at.into(), b"again", None);
        assert_eq!(carry(&mut ours, &mut theirs), [(OURS.at.into(), b"again".to_vec())]);
        assert_eq!((ours.port_counters().sent, theirs.port_counters().received), (2, 2));
        assert_eq!(theirs.port_counters().foreign, 0);
    }

    #[test]
    fn who_has_somebody_else_answer_does_not() {
        let (mut ours, mut theirs) = (port(OURS, SUBNET), port(THEIRS, Subnet { answers: false, ..SUBNET }));
        ours.queue_datagram(THEIRS.at.into(), b"hello", None);
        carry(&mut ours, &mut theirs);
        assert!(theirs.raw.out.is_empty());
    }

    #[test]
    fn what_goes_elsewhere_is_given_to_the_gateway() {
        let far = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 7), 9);
        let mut alone = port(OURS, SUBNET);
        assert!(alone.max_datagram_bytes(far.into()).is_err());
        alone.queue_datagram(far.into(), b"lost", None);
        alone.flush_burst().unwrap();
        assert!(alone.raw.out.is_empty());
        let mut ours = port(OURS, Subnet { gateway: Some(*THEIRS.at.ip()), ..SUBNET });
        assert_eq!(ours.max_datagram_bytes(far.into()).unwrap(), 1472);
        ours.queue_datagram(far.into(), b"far", None);
        ours.flush_burst().unwrap();
        let Seen::Arp(question) = parse_frame(&ours.raw.out[0], &THEIRS) else { panic!("{:?}", ours.raw.out) };
        assert_eq!((question.asks, question.target), (true, *THEIRS.at.ip()));
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // The example of RFC 1071, section 3.
        assert_eq!(fold_checksum(sum_words(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
        assert_eq!(sum_words(&[1, 2, 3]), 0x0102 + 0x0300);
        assert_eq!(fold_checksum(u32::MAX), 0xffff);
    }

    #[test]
    fn a_checksum_is_looked_at_where_there_is_one() {
        let mut bytes = frame(b"payload");
        let whole = |bytes: &[u8]| matches!(parse_frame(bytes, &THEIRS), Seen::Datagram { .. });
        let packet = Packet::parse_packet(&bytes[ETHERNET_HEADER_BYTES..]).unwrap();
        let pseudo = sum_words(&packet.from.octets()) + sum_words(&packet.to.octets()) + 17 + 15;
        let (partial, full) = (fold_checksum(pseudo), !fold_checksum(pseudo + sum_words(packet.payload)));
        for (checksum, good) in [(0, true), (partial, true), (full, true), (full ^ 1, false)] {
            bytes[HEADERS_BYTES - 2..HEADERS_BYTES].copy_from_slice(&u16::to_be_bytes(checksum));
            assert_eq!(whole(&bytes), good, "{checksum:#x}");
        }
    }

    #[test]
    fn complaints_are_understood() {
        let sent = frame(b"payload");
        let complain = |code: u8| {
            let mut icmp = [&[3, code, 0, 0, 0, 0, 0, 0][..], &sent[ETHERNET_HEADER_BYTES..HEADERS_BYTES]].concat();
            let checksum = !fold_checksum(sum_words(&icmp));
            icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
            // As if it were a datagram, with the protocol changed.
            let path = Path::new(THEIRS, OURS.at, OURS.mac, Duration::ZERO);
            let mut frame = path.headers_for_payload(icmp.len() - UDP_HEADER_BYTES)
                [..ETHERNET_HEADER_BYTES + IPV4_HEADER_BYTES]
                .to_vec();
            frame[ETHERNET_HEADER_BYTES + 9] = 1;
            frame[ETHERNET_HEADER_BYTES + 10..ETHERNET_HEADER_BYTES + 12].fill(0);
            let checksum = !fold_checksum(sum_words(&frame[ETHERNET_HEADER_BYTES..]));
            frame[ETHERNET_HEADER_BYTES + 10..ETHERNET_HEADER_BYTES + 12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend(icmp);
            frame
        };
        assert_eq!(parse_frame(&complain(3), &OURS), Seen::Unreachable(THEIRS.at));
        assert_eq!(parse_frame(&complain(4), &OURS), Seen::TooLong(THEIRS.at));
        assert_eq!(parse_frame(&complain(1), &OURS), Seen::Foreign);
        let mut damaged = complain(3);
        damaged[HEADERS_BYTES] ^= 1;
        assert_eq!(parse_frame(&damaged, &OURS), Seen::Foreign);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>) {
            parse_frame(&bytes, &OURS);
        }

        #[test]
        fn what_was_written_is_read_as_it_was_with_or_without_padding(
            payload in prop::collection::vec(any::<u8>(), 0..1473),
            padding in 0_usize..64,
        ) {
            let mut bytes = frame(&payload);
            bytes.resize(bytes.len() + padding, 0xa5);
            prop_assert_eq!(parse_frame(&bytes, &THEIRS), Seen::Datagram { from: OURS.at, payload: &payload });
            prop_assert_eq!(parse_frame(&bytes, &OURS), Seen::Foreign, "it is for somebody else");
        }

        #[test]
        fn a_changed_header_never_becomes_another_datagram(
            at in 0_usize..HEADERS_BYTES - 2,
            with in 1_u8..,
            cut in 0_usize..60,
        ) {
            let whole = frame(b"a payload of some bytes");
            let mut bytes = whole.clone();
            bytes[at] ^= with;
            let read = parse_frame(&bytes, &THEIRS);
            // The sender's Ethernet address is not checked; its port, and a shorter length, are taken as they are.
            let is_unchecked = (6..12).contains(&at) || (34..36).contains(&at) || (38..40).contains(&at);
            prop_assert!(is_unchecked || read == Seen::Foreign, "{:?}", read);
            let short = &whole[..whole.len() - 1 - cut.min(whole.len() - 1)];
            prop_assert_eq!(parse_frame(short, &THEIRS), Seen::Foreign, "cut short");
        }

        #[test]
        fn a_port_bears_any_frames_and_answers_no_stranger_without_end(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..50),
            askers in prop::collection::vec(any::<(u32, Mac)>(), 0..200),
        ) {
            let mut ours = port(OURS, SUBNET);
            ours.raw.incoming.extend(frames);
            for (sender, sender_mac) in askers {
                let arp = Arp { asks: true, sender: sender.into(), sender_mac, target: *OURS.at.ip() };
                ours.raw.incoming.push_back(arp.encode_frame(sender_mac, BROADCAST).to_vec());
            }
            ours.receive_datagrams(&mut |_, _| ()).unwrap();
            prop_assert!(ours.raw.out.len() <= MAX_REMARKS_PER_BURST);
            prop_assert!(!ours.neighbours.has_waiting_datagrams());
        }
    }
}
