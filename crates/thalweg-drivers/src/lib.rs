//! Drivers of devices that need no vendor library. Each is a kind of device, by whose name a topology's `device` table
//! selects it.
//!
//! - [`local`]: devices that are files on this host: pipes, serial ports, and cameras, boards and cards with a kernel
//!   driver.
//! - [`instrument`]: instruments that send UDP datagrams.
//! - [`features`]: fits of another source's images.

pub mod features;
pub mod instrument;
pub mod local;

/// Registers this crate's kinds of devices in this process. Repeated calls have no effect.
pub fn register_kinds() {
    instrument::register_kind();
    local::register_kinds();
    features::register_kind();
}
