//! Instruments that send UDP datagrams of their own, received straight into slots.
//!
//! A [`Listener`] is the [`Acquisition`] of a `device = { kind = "udp", … }`. It reads each datagram's header, finds the
//! fragment that the datagram is or belongs to, and hands fragments on in the order of the instrument's own count. A
//! number that does not come is said to be lost.
//!
//! | format | a fragment is | its number is | it is received |
//! | --- | --- | --- | --- |
//! | `vdif` | a data frame with its header | second and frame number, or the sequence number in front (VTP) | in its place |
//! | `spead` | the payload of a heap | the heap's | and copied once |
//! | `vita49` | a signal data packet with its header | the packet count, of 4 bits; with `rate`, the time stamp too | in its place |
//! | `fixed` | the payload behind a header, of one datagram or several | a counter in the header | in its place, or of several and copied once |
//!
//! *In its place*: a kernel's socket writes the payload into the slot itself ([`DirectSocket`]). What comes through
//! another port is copied once, since that has memory of its own.
//!
//! Every datagram is from a stranger. What is malformed, cut short, too long, from somebody else, late or there already
//! is counted and dropped. A number far from all before it is believed only when others follow it and nothing else
//! comes.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `options` | Options of an instrument: its `device = { kind = "udp", … }` table |
//! | `listener` | The device: a port, and what comes through it |
//! | `format` | What all formats have in common: from a datagram to its place in a fragment |
//! | `vdif` | VDIF data frames, with or without VTP's sequence number |
//! | `spead` | Packets of SPEAD heaps |
//! | `vita49` | VITA-49 signal data packets |
//! | `fixed` | A payload behind a header that the topology declares |
//! | `clock` | The instrument's own time, in each of its datagrams or fragments |
//! | `assembler` | From datagrams to fragments in order, and what is lost. Without IO |
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

pub use assembler::{Assembler, Counts, Taken};
pub use listener::Listener;
pub use options::{DatagramFormat, Epoch, Partial, TimeField, UdpConfig};

#[cfg(doc)]
use thalweg_device::Acquisition;
#[cfg(doc)]
use thalweg_frames::DirectSocket;

/// Registers the kind `udp` in this process.
pub fn register() {
    thalweg_device::register::<UdpConfig>();
}
