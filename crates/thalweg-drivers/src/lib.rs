//! Drivers of devices that need no library of their own: each a kind that a topology's `device` table names.
//!
//! - [`local`]: devices that are files: pipes and serial ports, cameras, boards and cards that the kernel has a driver for.
//! - [`instrument`]: instruments that send UDP datagrams.
//! - [`features`]: fits of another source's images.

pub mod features;
pub mod instrument;
pub mod local;

/// Registers the kinds of devices of this crate in this process.
pub fn register_kinds() {
    instrument::register_kind();
    local::register_kinds();
    features::register_kind();
}
