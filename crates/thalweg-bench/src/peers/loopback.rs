//! Loopback over which peers are measured.
//!
//! Some peers listen on all addresses and cannot be configured otherwise. A network of our own contains only loopback,
//! and all its ports are free. The programs compared with a peer are measured in the same network.

use crate::BenchError;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Returns two different unused ports of loopback.
pub(crate) fn free_ports() -> Result<[u16; 2], BenchError> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::os("looking for a free port"));
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    let both = [listen()?, listen()?];
    let ports = || io::Result::Ok([port(&both[0])?, port(&both[1])?]);
    ports().map_err(BenchError::os("getsockname"))
}

/// Returns the congestion control of connections that do not choose one.
pub(super) fn congestion_control() -> String {
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    control.map_or_else(|_| "unknown".to_owned(), |control| control.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ports_differ() {
        let [one, other] = free_ports().unwrap();
        assert_ne!(one, other);
    }
}
