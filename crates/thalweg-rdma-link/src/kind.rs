//! The two kinds of link, and how their endpoints are opened.

use crate::builder::RdmaBuilder;
use crate::connection::FILES_PER_CONNECTION;
use crate::endpoint::RdmaEndpoint;
use crate::source::RdmaSource;
use thalweg_link::{
    Abilities, Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind, Locator, SourceEndpoint, Watch,
};
use thalweg_rdma::Transport;

/// Kinds of link of this crate.
#[derive(Debug, Clone, Copy)]
pub struct RdmaLinks {
    /// RDMA by iWARP over TCP (`rdma:HOST:PORT`).
    pub iwarp: LinkKind,
    /// RDMA by EFE over UDP (`rdma-efe:HOST:PORT`).
    pub efe: LinkKind,
}

/// Registers `rdma:HOST:PORT` and `rdma-efe:HOST:PORT` as kinds of addresses in this process.
pub fn register_links() -> RdmaLinks {
    RdmaLinks { iwarp: LinkKind::register_transport(&IWARP), efe: LinkKind::register_transport(&EFE) }
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
        Ok(Box::new(RdmaEndpoint::<RdmaBuilder>::listen(self.transport, at, watch)?))
    }
}
