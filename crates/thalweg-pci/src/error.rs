//! Errors of a PCI device.

use crate::Location;
use std::io;
use thalweg_arena::PageListError;
use thiserror::Error;

/// Error of driving a device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PciError {
    /// The text is not the address of a PCI device.
    #[error("'{0}' is not a PCI address: write one such as 0000:00:10.0, as shown by `lspci -D`")]
    Location(String),
    /// The device is not there.
    #[error("{0}: there is no such PCI device (`lspci -D` lists them)")]
    NotFound(String),
    /// The device is bound to another driver, or to none.
    #[error("{device} is not bound to vfio-pci ({present}): dpdk-devbind.py --bind=vfio-pci {device}")]
    NotBound {
        /// Address of the device.
        device: String,
        /// Driver that it is bound to, as a sentence.
        present: String,
    },
    /// A system call failed.
    #[error("{device}: {doing}: {error}")]
    Os {
        /// Address of the device.
        device: String,
        /// Operation that failed.
        doing: &'static str,
        /// Error that the kernel returned.
        error: io::Error,
    },
    /// The device is of another kind, or has failed.
    #[error("{device}: {problem}")]
    Device {
        /// Address of the device.
        device: String,
        /// Description of the problem.
        problem: String,
    },
    /// The pages of an arena cannot be kept in place.
    #[error("pinning the pages of an arena: {0}")]
    Hold(io::Error),
    /// The kernel does not show the physical addresses of the pages.
    #[error(transparent)]
    Pages(#[from] PageListError),
}

impl PciError {
    /// Returns the error for a device that is of another kind, or has failed.
    pub(crate) fn from_problem(location: Location, problem: impl Into<String>) -> Self {
        Self::Device { device: location.to_string(), problem: problem.into() }
    }

    /// Returns a function for `map_err` on a system call.
    pub(crate) fn from_system_call<E: Into<io::Error>>(
        location: Location,
        doing: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::Os { device: location.to_string(), doing, error: error.into() }
    }
}
