//! Links through a port: the three verbs over UDP and IPv4, past the kernel. The datagrams are those of UDP, so that
//! the other end may have an ordinary socket.

use crate::{DpdkPort, Options};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use thalweg_frames::{EthernetPort, Subnet};
use thalweg_link::parts::{DATAGRAMS, builder_endpoint_over, source_endpoint_over};
use thalweg_link::{
    Abilities, Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind, SourceEndpoint, Transport, Watch,
};

/// The kind of link `dpdk:HOST:PORT`.
#[derive(Debug)]
pub struct Dpdk;

/// Registers `dpdk:HOST:PORT` as a kind of address in this process.
pub fn register_link() -> LinkKind {
    LinkKind::register_transport(&Dpdk)
}

/// Ports without permanent listeners (RFC 6335, dynamic ports): for a source's port, and for one that is to be chosen.
const CHOSEN: std::ops::Range<u16> = 49152..65535;

impl Transport for Dpdk {
    fn abilities(&self) -> &'static Abilities {
        &Abilities { name: "dpdk", title: "DPDK", form: "dpdk:HOST:PORT", adapter: true, interface: true, ..DATAGRAMS }
    }

    fn open_source_endpoint(
        &self,
        to: &Address,
        by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        let adapter = required_adapter(by, to)?;
        let own = adapter.address.ok_or_else(|| unusable_address(to, "`adapter` needs its own `address`"))?;
        source_endpoint_over(
            open_port(adapter, SocketAddrV4::new(own.ip, choose_port_number()), Options::default())?,
            watch,
        )
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let adapter = required_adapter(by, at)?;
        let mut own = resolve_ipv4_address(at)?;
        if own.port() == 0 {
            own.set_port(choose_port_number());
        }
        // Datagrams that all sources may send at a time wait here, and the device limits the number to what it
        // supports.
        builder_endpoint_over(open_port(adapter, own, Options { descriptors: 4096, ..Options::default() })?, watch)
    }
}

/// Opens a port for datagrams through an adapter, at one of its addresses; for receivers of datagrams other than a
/// link's.
///
/// # Errors
/// The adapter cannot be driven.
pub fn open_datagram_port(adapter: &Adapter, at: SocketAddrV4) -> Result<EthernetPort<DpdkPort>, LinkError> {
    open_port(adapter, at, Options { descriptors: 4096, ..Options::default() })
}

/// Opens a port for datagrams through an adapter.
fn open_port(adapter: &Adapter, own: SocketAddrV4, options: Options) -> Result<EthernetPort<DpdkPort>, LinkError> {
    let port = DpdkPort::open_device(&adapter.device, &Options { mtu: adapter.mtu, ..options }).map_err(|error| {
        LinkError::Unusable { doing: format!("communicating over {}", adapter.device), error: io::Error::other(error) }
    })?;
    let prefix = adapter.address.and_then(|address| address.prefix).unwrap_or(0);
    Ok(EthernetPort::new(port, own, Subnet { prefix, gateway: adapter.gateway, answers: true }))
}

fn required_adapter<'a>(by: Option<&'a Adapter>, address: &Address) -> Result<&'a Adapter, LinkError> {
    by.ok_or_else(|| unusable_address(address, "the `adapter` to drive is not set"))
}

fn resolve_ipv4_address(at: &Address) -> Result<SocketAddrV4, LinkError> {
    let all = at
        .resolve_addresses()
        .map_err(|error| LinkError::Unusable { doing: format!("resolving '{}'", at.place()), error })?;
    let first = all.into_iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    let found = first.ok_or_else(|| unusable_address(at, "it has no IPv4 address"))?;
    let own = *found.ip() != Ipv4Addr::UNSPECIFIED;
    if own { Ok(found) } else { Err(unusable_address(at, "an adapter listens on one address: write that")) }
}

fn unusable_address(address: &Address, why: &'static str) -> LinkError {
    LinkError::Unusable { doing: address.to_string(), error: io::Error::other(why) }
}

fn choose_port_number() -> u16 {
    let drawn = RandomState::new().hash_one(0) % CHOSEN.len() as u64;
    CHOSEN.start + u16::try_from(drawn).unwrap_or(0)
}
