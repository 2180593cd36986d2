//! The kernel's knowledge of the network that a port shares with it: interfaces, addresses, routes and neighbours, by
//! rtnetlink(7).

use crate::FramesError;
use crate::neighbours::Mac;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage};
use netlink_packet_route::{AddressFamily as Family, RouteNetlinkMessage};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Room for an answer, in bytes: of a dump the kernel sends at most 32 KiB at a time (`NLMSG_GOODSIZE`, netlink_dump in
/// net/netlink/af_netlink.c).
const ANSWER_BUFFER_BYTES: usize = 64 << 10;
/// Port of datagrams whose only purpose is to have a neighbour resolved: no one answers there (RFC 863).
const DISCARD_PORT: u16 = 9;

/// An interface of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Mac,
    /// Maximum length of an IP packet, in bytes.
    pub(crate) mtu: usize,
    /// True if it is an end of a virtual cable (veth(4)).
    pub(crate) is_cable: bool,
}

/// First step of packets on their way to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// Index of the interface by which they leave.
    pub(crate) interface: u32,
    /// Neighbour that they are passed to: the destination, or a gateway.
    pub(crate) hop: Ipv4Addr,
    /// Source address of the packets, an address of this host, unless another is set.
    pub(crate) from: Ipv4Addr,
}

/// A connection to the kernel for questions.
#[derive(Debug)]
pub(crate) struct Kernel {
    netlink: OwnedFd,
    sequence: u32,
    answer: Vec<u8>,
}

impl Kernel {
    /// Opens a connection for the network namespace of the calling thread.
    pub(crate) fn open_connection() -> Result<Self, FramesError> {
        let netlink = open_netlink().map_err(FramesError::from_system_call("opening rtnetlink"))?;
        Ok(Self { netlink, sequence: 0, answer: vec![0; ANSWER_BUFFER_BYTES] })
    }

    /// Returns the interface of this name.
    pub(crate) fn interface_by_name(&mut self, name: &str) -> Result<Interface, FramesError> {
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.query_interface(question, name)
    }

    /// Returns the interface of this number.
    pub(crate) fn interface_by_index(&mut self, index: u32) -> Result<Interface, FramesError> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        self.query_interface(question, &format!("number {index}"))
    }

    fn query_interface(&mut self, question: LinkMessage, label: &str) -> Result<Interface, FramesError> {
        let doing = format!("looking at interface {label}");
        let answers = self
            .query_netlink(RouteNetlinkMessage::GetLink(question), 0)
            .map_err(FramesError::from_system_call(&*doing))?;
        let link = answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        let Some(link) = link else {
            return Err(FramesError { doing, error: io::ErrorKind::NotFound.into() });
        };
        let (mut name, mut mac, mut mtu, mut is_cable) = (String::new(), None, 0, false);
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(value) => name.clone_from(value),
                LinkAttribute::Address(value) => mac = Mac::try_from(value.as_slice()).ok(),
                LinkAttribute::Mtu(value) => mtu = *value as usize,
                LinkAttribute::LinkInfo(infos) => is_cable = infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
                _ => {}
            }
        }
        let mac =
            mac.ok_or_else(|| FramesError { doing, error: io::Error::other("it is not an Ethernet interface") })?;
        Ok(Interface { index: link.header.index, name, mac, mtu, is_cable })
    }

    /// Returns this host's IPv4 addresses, and the interface of each.
    pub(crate) fn ipv4_addresses(&mut self) -> Result<Vec<(Ipv4Addr, u32)>, FramesError> {
        let mut question = AddressMessage::default();
        question.header.family = Family::Inet;
        let answers = self
            .query_netlink(RouteNetlinkMessage::GetAddress(question), NLM_F_DUMP)
            .map_err(FramesError::from_system_call("listing this host's addresses"))?;
        let all = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(message) => Some((own_address(message)?, message.header.index)),
            _ => None,
        });
        Ok(all.collect())
    }

    /// Returns the route of packets to a destination, from an address of this host if one is given.
    pub(crate) fn route_to(&mut self, to: Ipv4Addr, from: Option<Ipv4Addr>) -> Result<Route, FramesError> {
        let doing = format!("looking for a route to {to}");
        let mut question = RouteMessage::default();
        question.header.address_family = Family::Inet;
        question.header.destination_prefix_length = 32;
        question.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(to)));
        if let Some(from) = from {
            question.header.source_prefix_length = 32;
            question.attributes.push(RouteAttribute::Source(RouteAddress::Inet(from)));
        }
        let answers = self
            .query_netlink(RouteNetlinkMessage::GetRoute(question), 0)
            .map_err(FramesError::from_system_call(&*doing))?;
        let route = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => Some(route),
            _ => None,
        });
        let (mut interface, mut hop, mut source) = (None, to, from);
        for attribute in route.iter().flat_map(|route| &route.attributes) {
            match attribute {
                RouteAttribute::Oif(index) => interface = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => hop = *gateway,
                RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = source.or(Some(*address)),
                _ => {}
            }
        }
        match (interface, source) {
            (Some(interface), Some(from)) => Ok(Route { interface, hop, from }),
            _ => Err(FramesError { doing, error: io::ErrorKind::HostUnreachable.into() }),
        }
    }

    /// Returns a neighbour's address, and true if the kernel is resolving it at the moment.
    fn neighbour_mac(&mut self, interface: u32, host: Ipv4Addr) -> io::Result<(Option<Mac>, bool)> {
        let mut question = NeighbourMessage::default();
        question.header.family = Family::Inet;
        question.header.ifindex = interface;
        question.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(host)));
        let answers = match self.query_netlink(RouteNetlinkMessage::GetNeighbour(question), 0) {
            // The neighbour was never asked for.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, false)),
            answers => answers?,
        };
        let neighbour = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
            _ => None,
        });
        let Some(neighbour) = neighbour else { return Ok((None, false)) };
        let mac = neighbour.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(mac) => Mac::try_from(mac.as_slice()).ok(),
            _ => None,
        });
        Ok(match neighbour.header.state {
            NeighbourState::Incomplete => (None, true),
            NeighbourState::Failed | NeighbourState::None => (None, false),
            _ => (mac, false),
        })
    }

    /// Asks one question. Returns all messages that belong to the answer.
    fn query_netlink(&mut self, question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.netlink, &bytes, SendFlags::empty())?;
        let mut answers = Vec::new();
        loop {
            let (read, _) = recv(&self.netlink, &mut self.answer[..], RecvFlags::empty())?;
            let mut rest = &self.answer[..read];
            while !rest.is_empty() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages begin at multiples of four (netlink(7)).
                let len = (answer.header.length as usize).next_multiple_of(4).max(4).min(rest.len());
                rest = &rest[len..];
                // The answer to a question that was abandoned.
                if answer.header.sequence_number != self.sequence {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    _ => {}
                }
                if flags & NLM_F_DUMP == 0 {
                    return Ok(answers);
                }
            }
        }
    }
}

fn open_netlink() -> rustix::io::Result<OwnedFd> {
    // Protocol 0 of this family is rtnetlink.
    let netlink = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&netlink, &netlink::SocketAddrNetlink::new(0, 0))?;
    // A missing answer is an error, not a reason to wait for ever.
    sockopt::set_socket_timeout(&netlink, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
    Ok(netlink)
}

/// Returns the host's own address: if there is a peer's address (ip-address(8)), the attribute called the address is
/// the peer's.
fn own_address(message: &AddressMessage) -> Option<Ipv4Addr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
        _ => None,
    })
}

/// The kernel's neighbours and routes, for a port on one of the kernel's own interfaces.
#[derive(Debug)]
pub(crate) struct Beside {
    kernel: Kernel,
    interface: u32,
    /// Socket that reserves the port's address in the kernel, and receives the datagrams that go to the kernel
    /// nevertheless.
    socket: UdpSocket,
    /// True if a datagram has come through the kernel, and a warning was logged.
    warned: bool,
}

impl Beside {
    /// Reserves the port; 0 for one that the kernel chooses.
    pub(crate) fn reserve_port(
        kernel: Kernel,
        interface: u32,
        at: SocketAddrV4,
    ) -> Result<(Self, SocketAddrV4), FramesError> {
        let (socket, local) = bind_port(at).map_err(FramesError::from_system_call(format!("reserving port {at}")))?;
        Ok((Self { kernel, interface, socket, warned: false }, local))
    }

    /// Returns the neighbour that packets to `to` are passed to. `None` if they would leave by another interface, or
    /// not at all.
    pub(crate) fn next_hop(&mut self, to: Ipv4Addr, from: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.kernel.route_to(to, Some(from)) {
            Ok(route) if route.interface == self.interface => Some(route.hop),
            Ok(route) => {
                tracing::debug!("{to} is reached over interface {}, not {}", route.interface, self.interface);
                None
            }
            Err(error) => {
                tracing::debug!("{error}");
                None
            }
        }
    }

    /// Returns a neighbour's address. If the kernel does not know it, one datagram makes the kernel resolve it.
    pub(crate) fn neighbour_mac(&mut self, host: Ipv4Addr) -> Option<Mac> {
        match self.kernel.neighbour_mac(self.interface, host) {
            Ok((Some(mac), _)) => Some(mac),
            Ok((None, true)) => None,
            Ok((None, false)) => {
                let discard = SocketAddrV4::new(host, DISCARD_PORT);
                // The first error may be a complaint about an earlier datagram.
                let sent = self.socket.send_to(&[], discard).or_else(|_| self.socket.send_to(&[], discard));
                if let Err(error) = sent {
                    tracing::debug!("resolving the neighbour {host}: {error}");
                }
                // If the kernel needs no answer (NOARP, permanent), it knows the address at once.
                self.kernel.neighbour_mac(self.interface, host).ok()?.0
            }
            Err(error) => {
                tracing::debug!("asking the kernel for neighbour {host}: {error}");
                None
            }
        }
    }

    /// Returns the next complaint of a host or router about a datagram that was sent from the port, by any sender.
    pub(crate) fn next_icmp_report(&self) -> Option<Complaint> {
        loop {
            let (to, error) = read_icmp_report(&self.socket).ok()?;
            // Datagrams that were only sent to resolve a neighbour had no receiver.
            match error {
                libc::ECONNREFUSED if to.port() != DISCARD_PORT => return Some(Complaint::Unreachable(to)),
                libc::EMSGSIZE => return Some(Complaint::TooLong(to)),
                _ => {}
            }
        }
    }

    /// Returns the next datagram that came through the kernel, in `room`: its source, and its length in bytes. The
    /// program in the kernel steers no fragments, and nothing with a VLAN's tag or IP options.
    pub(crate) fn next_datagram(&mut self, room: &mut [u8]) -> Option<(SocketAddrV4, usize)> {
        loop {
            match self.socket.recv_from(room) {
                Ok((length, SocketAddr::V4(from))) => {
                    if !std::mem::replace(&mut self.warned, true) {
                        tracing::warn!(
                            "datagrams from {from} take the slow path through the kernel: they are fragmented, have a \
                             VLAN tag or IP options, or arrive on a queue without a socket"
                        );
                    }
                    return Some((from, length));
                }
                Ok(_) => {}
                // A complaint may be reported here, too: it stays in the error queue.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns the maximum length of an IP packet to this address, in bytes, as far as the kernel knows.
    pub(crate) fn path_mtu_bytes(&self, to: SocketAddrV4) -> io::Result<usize> {
        let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        probe.connect(to)?;
        Ok(sockopt::ip_mtu(&probe)? as usize)
    }
}

/// Binds a socket that keeps ICMP reports, and returns it with its address.
fn bind_port(at: SocketAddrV4) -> io::Result<(UdpSocket, SocketAddrV4)> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    keep_icmp_reports(&socket)?;
    match socket.local_addr()? {
        SocketAddr::V4(local) => Ok((socket, local)),
        SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

/// Report of a host or router about a datagram to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complaint {
    Unreachable(SocketAddrV4),
    TooLong(SocketAddrV4),
}

/// Makes the kernel keep ICMP reports about datagrams from a socket's port: ip(7), `IP_RECVERR`. The kernel compares
/// the ports only, so that datagrams which bypassed it are reported, too (`__udp4_lib_err` in net/ipv4/udp.c).
fn keep_icmp_reports(socket: &UdpSocket) -> io::Result<()> {
    let on: c_int = 1;
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: an integer of the length that is passed.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, (&raw const on).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the destination of a datagram that a report is about, and the error that it amounts to.
fn read_icmp_report(socket: &UdpSocket) -> io::Result<(SocketAddrV4, c_int)> {
    /// Room for control messages: more than the kernel has for this socket, aligned as required.
    type Room = [u64; 16];
    // SAFETY: integers and null pointers, for which all zeros is a valid value.
    let (mut to, mut message): (libc::sockaddr_in, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut room: Room = [0; 16];
    message.msg_name = (&raw mut to).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Room>() as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: an address and room of the lengths that are passed, which outlive the call.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let at = SocketAddrV4::new(Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr)), u16::from_be(to.sin_port));
    // SAFETY: the kernel has filled the message in.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: a header inside the room.
        let header = unsafe { next.read() };
        if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IP, libc::IP_RECVERR) {
            // SAFETY: such a header is followed by data.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<libc::sock_extended_err>();
            // SAFETY: the data is of this type; any bytes are a valid value of it.
            let report = unsafe { data.read_unaligned() };
            return Ok((at, report.ee_errno.cast_signed()));
        }
        // SAFETY: a header of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found_by_name_address_and_destination() {
        let mut kernel = Kernel::open_connection().unwrap();
        let lo = kernel.interface_by_name("lo").unwrap();
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", [0; 6]));
        assert_eq!(kernel.interface_by_index(lo.index).unwrap(), lo);
        let addresses = kernel.ipv4_addresses().unwrap();
        assert!(addresses.contains(&(Ipv4Addr::LOCALHOST, lo.index)), "{addresses:?}");
        let route = kernel.route_to(Ipv4Addr::LOCALHOST, None).unwrap();
        assert_eq!(route, Route { interface: lo.index, hop: Ipv4Addr::LOCALHOST, from: Ipv4Addr::LOCALHOST });
        let error = kernel.interface_by_name("no-such").unwrap_err().to_string();
        assert!(error.starts_with("looking at interface no-such: "), "{error}");
        assert!(kernel.interface_by_name("lo").is_ok(), "it goes on after an error");
    }

    #[test]
    fn what_comes_by_the_kernel_is_read() {
        let lo = Kernel::open_connection().unwrap().interface_by_name("lo").unwrap().index;
        let (mut port, at) =
            Beside::reserve_port(Kernel::open_connection().unwrap(), lo, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
                .unwrap();
        let mut room = [0; 100];
        assert_eq!(port.next_datagram(&mut room), None);
        let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..20 {
            other.send_to(b"hello", at).unwrap();
        }
        for _ in 0..20 {
            let (from, length) = port.next_datagram(&mut room).unwrap();
            assert_eq!((SocketAddr::V4(from), &room[..length]), (other.local_addr().unwrap(), &b"hello"[..]));
        }
    }

    #[test]
    fn a_port_that_somebody_has_is_not_taken() {
        let lo = Kernel::open_connection().unwrap().interface_by_name("lo").unwrap().index;
        let take = |at| Beside::reserve_port(Kernel::open_connection().unwrap(), lo, at);
        let (_held, at) = take(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert_ne!(at.port(), 0);
        assert!(take(at).unwrap_err().to_string().contains(&at.to_string()));
    }
}
