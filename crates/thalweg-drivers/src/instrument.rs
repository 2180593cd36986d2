//! Instruments that send UDP datagrams of their own, received straight into slots.
//!
//! A [`Listener`] is the [`Acquisition`] of a `device = { kind = "udp", … }`. It reads each datagram's header, finds
//! the fragment that the datagram is or belongs to, and hands fragments on in the order of the instrument's own count.
//! A number that does not arrive is reported as lost.
//!
//! | format | a fragment is | its number is | the payload is received |
//! | --- | --- | --- | --- |
//! | `vdif` | a data frame with its header | second and frame number, or preceding sequence number (VTP) | in place |
//! | `spead` | the payload of a heap | the number of the heap | elsewhere and copied once |
//! | `vita49` | a signal data packet with its header | packet count (4 bits); with `rate` also time stamp | in place |
//! | `fixed` | payload after a header, of 1 or more datagrams | counter in the header | in place; if several, copied |
//!
//! *In place*: a kernel's socket writes the payload into the slot itself ([`DirectSocket`]). A payload that arrives
//! through another port is copied once, since such a port has its own memory.
//!
//! No datagram is trusted. One that is malformed, cut short, too long, from another sender, late or a duplicate is
//! counted and dropped. A number far from all earlier ones is accepted only after others follow it and nothing else
//! arrives.
//!
//! # Files, in the order of the data path
//!
//! | file | what is in it |
//! | --- | --- |
//! | `options` | Options of an instrument: its `device = { kind = "udp", … }` table |
//! | `listener` | UDP device: a port, and the datagrams that arrive through it |
//! | `format` | Common interface of all formats: the place of a datagram in a fragment |
//! | `vdif` | VDIF data frames, with or without VTP's sequence number |
//! | `spead` | Packets of SPEAD heaps |
//! | `vita49` | VITA-49 signal data packets |
//! | `fixed` | A payload after a header that the topology declares |
//! | `clock` | The instrument's own time, in each of its datagrams or fragments |
//! | `assembler` | Assembly of datagrams into ordered fragments, and detection of losses. Without IO |
#![forbid(unsafe_code)]

mod assembler;
mod clock;
mod fixed;
mod format;
mod listener;
mod options;
mod spead;
mod vdif;
mod vita49;

pub use assembler::{Assembler, Counts, DatagramOutcome};
pub use listener::Listener;
pub use options::{DatagramFormat, Epoch, Partial, TimeField, UdpConfig};

#[cfg(doc)]
use thalweg_device::Acquisition;
#[cfg(doc)]
use thalweg_frames::DirectSocket;

/// Registers the kind `udp` in this process.
pub fn register_kind() {
    thalweg_device::register_kind::<UdpConfig>();
}
