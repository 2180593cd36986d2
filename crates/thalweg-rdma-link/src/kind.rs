//! The kinds of link, and how their endpoints are opened.

use crate::builder::RdmaBuilder;
use crate::connection::FILES_PER_CONNECTION;
use crate::endpoint::RdmaEndpoint;
use crate::source::RdmaSource;
use std::io;
use std::net::SocketAddr;
use thalweg_link::{
    Abilities, Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind, Locator, SourceEndpoint, Watch,
};
use thalweg_rdma::{Device, Transport, VerbsError};

/// Kinds of link of this crate.
#[derive(Debug, Clone, Copy)]
pub struct RdmaLinks {
    /// RDMA by iWARP over TCP (`rdma:HOST:PORT`).
    pub iwarp: LinkKind,
    /// RDMA by EFE over UDP (`rdma-efe:HOST:PORT`).
    pub efe: LinkKind,
    /// RDMA by the kernel's RDMA device that has, or reaches, the address (`rdma-device:HOST:PORT`).
    pub device: LinkKind,
}

/// Registers `rdma:HOST:PORT`, `rdma-efe:HOST:PORT` and `rdma-device:HOST:PORT` as kinds of addresses in this process.
pub fn register_links() -> RdmaLinks {
    RdmaLinks {
        iwarp: LinkKind::register_transport(&IWARP),
        efe: LinkKind::register_transport(&EFE),
        device: LinkKind::register_transport(&DEVICE),
    }
}

/// A kind of link: its abilities, and the way between its RNICs.
#[derive(Debug)]
struct Rdma {
    abilities: Abilities,
    transport: Transport,
}

/// Abilities of RDMA over TCP.
const IWARP_ABILITIES: Abilities = Abilities {
    name: "rdma",
    title: "RDMA (iWARP over TCP)",
    form: "rdma:HOST:PORT",
    locator: Locator::HostPort,
    maps: false,
    pieces: true,
    eager: false,
    one_sided: true,
    frames: false,
    // IPv4 (20), TCP with timestamps (32), length and CRC of MPA (6), tagged header of DDP (14).
    headers: 72,
    congestion: false,
    files: FILES_PER_CONNECTION,
    interface: false,
    adapter: false,
    rdma_device: false,
};

static IWARP: Rdma = Rdma { abilities: IWARP_ABILITIES, transport: Transport::Tcp };

static EFE: Rdma = Rdma {
    abilities: Abilities {
        name: "rdma-efe",
        title: "RDMA (EFE over UDP)",
        form: "rdma-efe:HOST:PORT",
        frames: true,
        // IPv4 (20), UDP (8), EFE (56), tagged header of DDP (14).
        headers: 98,
        ..IWARP_ABILITIES
    },
    transport: Transport::Efe,
};

/// RDMA by a device of the kernel.
#[derive(Debug)]
struct RdmaDevice {
    abilities: Abilities,
}

static DEVICE: RdmaDevice = RdmaDevice {
    abilities: Abilities {
        name: "rdma-device",
        title: "RDMA (a device of the kernel)",
        form: "rdma-device:HOST:PORT",
        // RoCE: IPv4 (20), UDP (8), base and RDMA headers (12 + 16), two checksums (4 + 4).
        headers: 64,
        rdma_device: true,
        ..IWARP_ABILITIES
    },
};

impl thalweg_link::Transport for RdmaDevice {
    fn abilities(&self) -> &'static Abilities {
        &DEVICE.abilities
    }

    fn open_source_endpoint(
        &self,
        to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        let device = Device::open_device_towards(resolved_address(to)?).map_err(|error| unusable_device(to, error))?;
        Ok(Box::new(RdmaEndpoint::<RdmaSource>::over_device(device, Transport::Tcp, watch)?))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let device = Device::open_device_at(resolved_address(at)?.ip()).map_err(|error| unusable_device(at, error))?;
        Ok(Box::new(RdmaEndpoint::<RdmaBuilder>::over_device(device, Transport::Tcp, watch)?.listening(at)?))
    }
}

fn unusable_device(address: &Address, error: VerbsError) -> LinkError {
    LinkError::Unusable { doing: format!("opening the RDMA device for '{address}'"), error: io::Error::other(error) }
}

fn resolved_address(address: &Address) -> Result<SocketAddr, LinkError> {
    let found = address.resolve_addresses();
    let first = found.and_then(|found| found.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into()));
    first.map_err(|error| LinkError::Unusable { doing: format!("resolving '{}'", address.place()), error })
}

impl thalweg_link::Transport for Rdma {
    fn abilities(&self) -> &'static Abilities {
        match self.transport {
            Transport::Tcp => &IWARP.abilities,
            Transport::Efe | Transport::EfeXdp | Transport::EfeEthernet => &EFE.abilities,
        }
    }

    fn open_source_endpoint(
        &self,
        _to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        Ok(Box::new(RdmaEndpoint::<RdmaSource>::open(self.transport, watch)?))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        Ok(Box::new(RdmaEndpoint::<RdmaBuilder>::open(self.transport, watch)?.listening(at)?))
    }
}
