//! Why a port cannot be opened.

use std::io;
use thiserror::Error;

/// What DPDK comes from.
pub(crate) const REMEDY: &str = "apt-get install dpdk librte-meta-net librte-meta-mempool";

/// Why a port cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// Where the program was compiled there was no DPDK.
    #[error("this program was built without DPDK: install libdpdk-dev (22.11 or later) and build it again")]
    NotBuilt,
    /// Here there is none, or not the one that the program was compiled for.
    #[error("DPDK cannot be loaded ({why}): {REMEDY}")]
    NotInstalled {
        /// What the loader said.
        why: String,
    },
    /// The shim cannot be loaded from memory.
    #[error("{doing}, which DPDK's functions are called from: {error}")]
    Load {
        /// What was being done.
        doing: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// DPDK's environment (EAL) cannot be started. It is not tried again in this process.
    #[error("starting DPDK: {why}")]
    Start {
        /// What DPDK said.
        why: String,
    },
    /// The device's name is not one.
    #[error("{device:?} is no device of DPDK's: {why}")]
    Name {
        /// The name.
        device: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The frames would be longer than the interface behind the device takes.
    #[error("{interface} has an MTU of {present}, not {wanted}: ip link set {interface} mtu {wanted}")]
    Mtu {
        /// The kernel's interface.
        interface: String,
        /// Its MTU.
        present: u16,
        /// What was asked for.
        wanted: u16,
    },
    /// The kernel knows nothing of the interface behind the device.
    #[error("asking for the MTU of {interface}: {error}")]
    Interface {
        /// The kernel's interface.
        interface: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The device cannot be opened.
    #[error("opening {device}: {doing}: {error}{said}")]
    Open {
        /// The device.
        device: String,
        /// What was being done.
        doing: String,
        /// DPDK's answer.
        error: io::Error,
        /// What DPDK has logged meanwhile, with a colon in front.
        said: String,
    },
}
