//! A port for datagrams that lie directly in Ethernet frames of one type, without IP and UDP.
//!
//! An Ethernet address is written as the IPv6 address that is made of it (RFC 4291, appendix A): `fe80::`, the address
//! with bit 1 of its first byte inverted, and `ff:fe` in its middle; the scope names the interface by its index. So
//! `02:00:00:00:00:01` on interface 3 is `[fe80::ff:fe00:1%3]`. Ports are not part of it: an interface has one port for
//! each type of frames.

use crate::io::WriteDatagram;
use crate::{Arrival, Counters, DatagramIo, FrameIo, FramesError, Mac, PacketPort};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{BorrowedFd, OwnedFd};
use thalweg_arena::Piece;

/// Length of an Ethernet header, in bytes: receiver, sender, type.
const HEADER_BYTES: usize = 14;

/// A port for datagrams in Ethernet frames of one type.
#[derive(Debug)]
pub struct FramePort<R> {
    raw: R,
    ether_type: u16,
    local: SocketAddr,
    /// Frame that is being written.
    scratch: Vec<u8>,
    /// Number of received frames that were for other stations.
    foreign: u64,
    /// Name that keeps other programs from the same frames.
    _reserved: OwnedFd,
}

impl FramePort<PacketPort> {
    /// Opens the port for frames of `ether_type` on the interface that the scope of an address names: of the port
    /// itself, or of a peer.
    ///
    /// # Errors
    /// The address names no interface, this process has no permission (`CAP_NET_RAW`), or another program has the port.
    pub fn open_at_scope(address: SocketAddr, ether_type: u16) -> Result<Self, FramesError> {
        let SocketAddr::V6(scoped) = address else { return Err(no_ethernet_address(address)) };
        let raw = PacketPort::open_index(scoped.scope_id(), ether_type)?;
        let doing = format!(
            "reserving the frames of type {ether_type:#06x} on interface {} (a program has all of them: others share it, \
             or use UDP)",
            scoped.scope_id()
        );
        let reserved = reserve_type(scoped.scope_id(), ether_type).map_err(FramesError::from_system_call(doing))?;
        let local = address_of_mac(raw.mac_address(), scoped.scope_id());
        Ok(Self { raw, ether_type, local, scratch: Vec::new(), foreign: 0, _reserved: reserved })
    }
}

impl<R: FrameIo> FramePort<R> {
    fn queue_frame(&mut self, to: SocketAddr, content: &[u8], piece: Option<Piece<'_>>) {
        // A datagram to what is no Ethernet address is lost, as one to a host that does not exist.
        let Some(to) = mac_of_address(to) else { return };
        let mut header = [0; HEADER_BYTES];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&self.raw.mac_address());
        header[12..].copy_from_slice(&self.ether_type.to_be_bytes());
        self.raw.queue_frame_with_headers(&header, content, piece);
    }
}

impl<R: FrameIo> DatagramIo for FramePort<R> {
    fn local_address(&self) -> SocketAddr {
        self.local
    }

    fn max_datagram_bytes(&mut self, to: SocketAddr) -> Result<usize, FramesError> {
        mac_of_address(to).ok_or_else(|| no_ethernet_address(to))?;
        Ok(self.raw.max_frame_bytes() - HEADER_BYTES)
    }

    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        let room = self.raw.receive_room_frames() as u64 * (self.raw.max_frame_bytes() - HEADER_BYTES) as u64;
        bytes.min(room)
    }

    fn has_send_room(&mut self) -> bool {
        self.raw.has_send_room()
    }

    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        self.queue_frame(to, head, piece);
    }

    fn queue_in_place(&mut self, max_bytes: usize, write: WriteDatagram<'_>) -> bool {
        if !self.raw.has_send_room() {
            return false;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.len() < max_bytes {
            scratch.resize(max_bytes, 0);
        }
        let written = write(&mut scratch[..max_bytes]);
        if let Some((to, bytes)) = written {
            self.queue_frame(to, &scratch[..bytes.min(max_bytes)], None);
        }
        self.scratch = scratch;
        written.is_some()
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        self.raw.copies_per_byte()
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        self.raw.flush_burst()
    }

    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        let Self { raw, local, foreign, .. } = self;
        let (own, scope) = (raw.mac_address(), if let SocketAddr::V6(local) = local { local.scope_id() } else { 0 });
        raw.receive_frames(&mut |frame| match frame.split_first_chunk::<HEADER_BYTES>() {
            Some(([a, b, c, d, e, f, header @ ..], content)) if [*a, *b, *c, *d, *e, *f] == own => {
                let [a, b, c, d, e, f, ..] = *header;
                each(address_of_mac([a, b, c, d, e, f], scope), Arrival::Datagram(content));
            }
            // Seen because the interface takes all frames.
            _ => *foreign += 1,
        })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.raw.descriptor()
    }

    fn prepare_wait(&mut self) -> bool {
        self.raw.prepare_wait()
    }

    fn is_cheap_to_poll(&self) -> bool {
        self.raw.is_cheap_to_poll()
    }

    fn port_counters(&self) -> Counters {
        let counters = self.raw.port_counters();
        Counters { foreign: counters.foreign + self.foreign, ..counters }
    }
}

/// Returns the address that stands for an Ethernet address at an interface.
fn address_of_mac(mac: Mac, interface: u32) -> SocketAddr {
    let [a, b, c, d, e, f] = mac;
    let ip = Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    SocketAddrV6::new(ip, 0, 0, interface).into()
}

/// Returns the Ethernet address that an address stands for; `None` if it stands for none.
fn mac_of_address(address: SocketAddr) -> Option<Mac> {
    let SocketAddr::V6(address) = address else { return None };
    match address.ip().octets() {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    }
}

fn no_ethernet_address(address: SocketAddr) -> FramesError {
    let text = "it stands for no Ethernet address: write fe80:: and its modified EUI-64 with the index of the interface, \
                such as [fe80::ff:fe00:1%3]:0 for 02:00:00:00:00:01";
    FramesError {
        doing: format!("looking for the station {address}"),
        error: io::Error::new(io::ErrorKind::InvalidInput, text),
    }
}

/// Reserves a type of frames on an interface, in this process's network: by a name that one program has at a time.
fn reserve_type(interface: u32, ether_type: u16) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let name = format!("thalweg-frames-{interface}-{ether_type:04x}");
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use thalweg_sys::netns::Network;

    const ETHER_TYPE: u16 = 0x88b5;

    #[test]
    fn an_ethernet_address_is_written_as_the_rfc_makes_one_of_it() {
        // RFC 4291, appendix A: 34-56-78-9A-BC-DE.
        let address = address_of_mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde], 3);
        assert_eq!(address, "[fe80::3656:78ff:fe9a:bcde%3]:0".parse().unwrap());
        assert_eq!(mac_of_address(address), Some([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]));
        for none in ["[fe80::1%3]:0", "[fe80:0:0:1:3656:78ff:fe9a:bcde%3]:0", "10.0.0.1:7"] {
            assert_eq!(mac_of_address(none.parse().unwrap()), None);
        }
    }

    #[test]
    fn datagrams_go_from_station_to_station_and_a_type_has_one_port() {
        let network = match Network::new(2, 1500) {
            Ok(network) => network,
            Err(why) => return thalweg_testing::skip::skipped(format!("no networks of its own: {why}")),
        };
        let found = |host| network.run_on_host(host, || interface_index(Network::INTERFACE)).unwrap();
        let scoped = |host| SocketAddr::from(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, found(host)));
        let open = |host| network.run_on_host(host, || FramePort::open_at_scope(scoped(host), ETHER_TYPE)).unwrap();
        let (mut near, mut far) = match (open(0), open(1)) {
            (Ok(near), Ok(far)) => (near, far),
            (Err(why), _) | (_, Err(why)) => return thalweg_testing::skip::skipped(why),
        };
        let taken = open(0).unwrap_err().to_string();
        assert!(taken.contains("0x88b5") && taken.contains("use UDP"), "{taken}");
        let to = with_scope(far.local_address(), found(0));
        assert_eq!(near.max_datagram_bytes(to).unwrap(), 1500);
        near.queue_datagram(to, b"head", None);
        let mut contents = [b"first".to_vec(), vec![7; 1500]].into_iter();
        let mut write = |place: &mut [u8]| {
            let content = contents.next()?;
            place[..content.len()].copy_from_slice(&content);
            Some((to, content.len()))
        };
        while near.queue_in_place(1500, &mut write) {}
        assert!(near.flush_burst().unwrap());
        let mut received = Vec::new();
        while received.len() < 3 {
            let wait = Timespec { tv_sec: 30, tv_nsec: 0 };
            poll(&mut [PollFd::new(&far.descriptor().unwrap(), PollFlags::IN)], Some(&wait)).unwrap();
            let before = received.len();
            far.receive_datagrams(&mut |from, arrival| {
                let Arrival::Datagram(bytes) = arrival else { panic!("{arrival:?}") };
                received.push((from, bytes.to_vec()));
            })
            .unwrap();
            assert!(received.len() > before, "no datagram");
        }
        let from = with_scope(near.local_address(), found(1));
        assert_eq!(received, [(from, b"head".to_vec()), (from, b"first".to_vec()), (from, vec![7; 1500])]);
        let error = near.max_datagram_bytes("10.0.0.1:7".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("10.0.0.1:7") && error.contains("fe80::"), "{error}");
    }

    fn interface_index(name: &str) -> u32 {
        crate::kernel::Kernel::open_connection().unwrap().interface_by_name(name).unwrap().index
    }

    /// An address as another host sees it.
    fn with_scope(address: SocketAddr, scope: u32) -> SocketAddr {
        let SocketAddr::V6(address) = address else { panic!("{address}") };
        SocketAddrV6::new(*address.ip(), 0, 0, scope).into()
    }
}
