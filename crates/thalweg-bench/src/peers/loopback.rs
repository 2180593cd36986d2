//! Loopback over which peers are measured.
//!
//! Some peers listen on all addresses and cannot be configured otherwise. A network of our own contains only loopback,
//! and all its ports are free. The programs compared with a peer are measured in the same network.

use crate::BenchError;
use std::net::{Ipv4Addr, TcpListener};

/// Returns two different unused ports of loopback.
pub(crate) fn find_free_ports() -> Result<[u16; 2], BenchError> {
    let ((_first, one), (_second, other)) = (bind_any_port()?, bind_any_port()?);
    Ok([one, other])
}

/// Returns a listener on an unused port, and the port.
fn bind_any_port() -> Result<(TcpListener, u16), BenchError> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::os_error("looking for a free port"))?;
    let port = listener.local_addr().map_err(BenchError::os_error("getsockname"))?.port();
    Ok((listener, port))
}

/// Returns the congestion control of connections that do not choose one.
pub(super) fn default_congestion_control() -> String {
    let control = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    control.map_or_else(|_| "unknown".to_owned(), |control| control.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ports_differ() {
        let [one, other] = find_free_ports().unwrap();
        assert_ne!(one, other);
    }
}
