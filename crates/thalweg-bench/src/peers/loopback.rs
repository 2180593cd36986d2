//! The loopback that peers are measured over.
//!
//! Some peers listen on all addresses and cannot be told otherwise. In a network of our own there is nothing but
//! loopback and all ports are free. What is measured beside a peer is measured in there too.

use crate::BenchError;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Two different ports of loopback that nobody uses.
pub(crate) fn free_ports() -> Result<[u16; 2], BenchError> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::os("looking for a free port"));
    let port = |listener: &TcpListener| listener.local_addr().map(|address| address.port());
    let both = [listen()?, listen()?];
    let ports = || io::Result::Ok([port(&both[0])?, port(&both[1])?]);
    ports().map_err(BenchError::os("getsockname"))
}

/// The congestion control that connections get here which do not ask for one.
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
