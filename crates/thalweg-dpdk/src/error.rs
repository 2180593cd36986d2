//! Reasons why a port cannot be opened.

use std::io;
use thiserror::Error;

/// Command that installs DPDK.
pub(crate) const REMEDY: &str = "apt-get install dpdk librte-meta-net librte-meta-mempool";

/// Reason why a port cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// The program was compiled without DPDK.
    #[error("this program was built without DPDK: install libdpdk-dev (22.11 or later) and build it again")]
    NotBuilt,
    /// DPDK is not installed here, or not the version that the program was compiled for.
    #[error("DPDK cannot be loaded ({why}): {REMEDY}")]
    NotInstalled {
        /// Error of the loader.
        why: String,
    },
    /// The shim cannot be loaded from memory.
    #[error("{doing}, which DPDK's functions are called from: {error}")]
    Load {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
    /// DPDK's environment (EAL) cannot be started. It is not tried again in this process.
    #[error("starting DPDK: {why}")]
    Start {
        /// Error of DPDK.
        why: String,
    },
    /// The device's name is not valid.
    #[error("{device:?} is not a DPDK device: {why}")]
    Name {
        /// Name of the device.
        device: String,
        /// Problem with the name.
        why: &'static str,
    },
    /// The frames would be longer than the interface of the device allows.
    #[error("{interface} has an MTU of {present}, not {wanted}: ip link set {interface} mtu {wanted}")]
    Mtu {
        /// Name of the kernel's interface.
        interface: String,
        /// MTU of the interface.
        present: u16,
        /// MTU that was requested.
        wanted: u16,
    },
    /// The kernel cannot report on the interface of the device.
    #[error("reading the MTU of {interface}: {error}")]
    Interface {
        /// Name of the kernel's interface.
        interface: String,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The device cannot be opened.
    #[error("opening {device}: {doing}: {error}{log}")]
    Open {
        /// Name of the device.
        device: String,
        /// Operation that failed.
        doing: String,
        /// Error of DPDK.
        error: io::Error,
        /// Error lines that DPDK has logged meanwhile, after a colon.
        log: String,
    },
}
