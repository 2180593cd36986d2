//! The three verbs over UDP: frames through a socket. Credits keep frames from being lost on their way, and bytes that
//! the socket cannot hold are not asked for.

use crate::frames::{builder_endpoint_over, source_endpoint_over};
use crate::kind::{Abilities, Locator, Transport};
use crate::names::listen_at_first;
#[cfg(feature = "af-xdp")]
use crate::names::resolve_listening_addresses;
use crate::{Adapter, Address, BuilderEndpoint, Eager, LinkError, SourceEndpoint, Watch};
use thalweg_frames::UdpPort;
#[cfg(feature = "af-xdp")]
use thalweg_frames::{AfXdpPort, FramesError};
use thalweg_wire::HEAD_LEN;

/// Abilities of frames in UDP datagrams, for every kind of link that sends them; each such kind has its own names.
pub const DATAGRAMS: Abilities = Abilities {
    name: "udp",
    title: "UDP",
    form: "udp:HOST:PORT",
    locator: Locator::HostPort,
    maps: false,
    pieces: true,
    eager: false,
    one_sided: false,
    frames: true,
    // IPv4 (20), UDP (8) and the head of a frame.
    headers: 28 + HEAD_LEN as u32,
    congestion: false,
    files: 0,
    interface: false,
    adapter: false,
    rdma_device: false,
};

/// UDP, over the kernel's sockets.
#[derive(Debug)]
pub(crate) struct Udp;

impl Transport for Udp {
    fn abilities(&self) -> &'static Abilities {
        &DATAGRAMS
    }

    fn open_source_endpoint(
        &self,
        _to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        let port = UdpPort::bind_anywhere().map_err(LinkError::from_system_call("opening a UDP socket"))?;
        source_endpoint_over(port, watch)
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let port = listen_at_first(at, UdpPort::bind)?;
        builder_endpoint_over(port, watch)
    }
}

/// The datagrams of UDP past the kernel's network stack: AF_XDP. Either end may be of this kind and the other an
/// ordinary socket.
#[cfg(feature = "af-xdp")]
#[derive(Debug)]
pub(crate) struct AfXdp;

#[cfg(feature = "af-xdp")]
impl Transport for AfXdp {
    fn abilities(&self) -> &'static Abilities {
        &Abilities { name: "af-xdp", title: "AF_XDP", form: "af-xdp:HOST:PORT", interface: true, ..DATAGRAMS }
    }

    fn open_source_endpoint(
        &self,
        to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        let found = to.resolve_addresses().map_err(LinkError::from_unusable(format!("resolving '{}'", to.place())))?;
        let port = AfXdpPort::open_towards(found[0])
            .map_err(|FramesError { doing, error }| LinkError::Unusable { doing, error })?;
        source_endpoint_over(port, watch)
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let port = resolve_listening_addresses(at)?;
        let port = AfXdpPort::open_at_address(port[0])
            .map_err(|FramesError { doing, error }| LinkError::Unusable { doing, error })?;
        builder_endpoint_over(port, watch)
    }
}
