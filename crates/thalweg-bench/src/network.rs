//! Network between client and server: this host's loopback, or a virtual cable with a network of its own at each end.

use crate::BenchError;
use crate::options::NetworkPath;
use crate::peers::loopback::find_free_ports;
use std::net::{Ipv4Addr, SocketAddr};

/// Network that is ready for use.
#[derive(Debug)]
pub(crate) enum Network {
    Loopback,
    Veth(thalweg_sys::netns::Network),
}

/// End of the network.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Server,
    Client,
}

impl Network {
    pub(crate) fn new(on: NetworkPath) -> Result<Self, BenchError> {
        match on {
            NetworkPath::Loopback => Ok(Self::Loopback),
            NetworkPath::Veth => {
                Ok(Self::Veth(thalweg_sys::netns::Network::new(2, 1500).map_err(BenchError::network_error)?))
            }
        }
    }

    /// Moves the calling thread, and what it starts from now on, to one of the ends: for threads made for this.
    pub(crate) fn enter_end(&self, end: End) -> Result<(), BenchError> {
        match self {
            Self::Loopback => Ok(()),
            Self::Veth(network) => network.enter_host(end as u16).map_err(BenchError::network_error),
        }
    }

    /// Returns an address on which a server can listen.
    pub(crate) fn server_address(&self) -> Result<SocketAddr, BenchError> {
        match self {
            Self::Loopback => Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), find_free_ports()?[0])),
            Self::Veth(_) => {
                let server = thalweg_sys::netns::Network::host_address(End::Server as u16);
                Ok(SocketAddr::new(server.into(), 8042))
            }
        }
    }
}
