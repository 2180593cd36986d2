//! Ports, with real datagrams.

#[cfg(feature = "af-xdp")]
mod af_xdp;
mod udp;
