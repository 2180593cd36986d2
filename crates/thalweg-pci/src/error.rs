//! What can be wrong with a device.

use std::io;
use thalweg_arena::PageListError;
use thiserror::Error;

/// Why a device cannot be driven.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PciError {
    /// No address of a PCI device.
    #[error("'{0}' is no PCI address: write one such as 0000:00:10.0, as `lspci -D` does")]
    Location(String),
    /// It is not there.
    #[error("{0}: there is no such PCI device (`lspci -D` lists them)")]
    Nobody(String),
    /// Another driver has it, or none.
    #[error("{device} is not bound to vfio-pci ({present}): dpdk-devbind.py --bind=vfio-pci {device}")]
    NotBound {
        /// Which device.
        device: String,
        /// Whose it is.
        present: String,
    },
    /// The kernel's answer.
    #[error("{device}: {doing}: {error}")]
    Os {
        /// Which device.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// The answer.
        error: io::Error,
    },
    /// It is not what it was taken for.
    #[error("{device}: {problem}")]
    Device {
        /// Which device.
        device: String,
        /// What is wrong.
        problem: String,
    },
    /// Pages cannot be kept in place.
    #[error("keeping an arena's pages in place: {0}")]
    Hold(io::Error),
    /// Where pages are is not told.
    #[error(transparent)]
    Pages(#[from] PageListError),
}
