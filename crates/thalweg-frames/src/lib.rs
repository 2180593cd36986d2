//! Bursts of datagrams through one port, over the fastest interface that this host offers.
//!
//! A [`FrameIo`] is one port of one host. It sends and receives UDP datagrams, many at a time, without any guarantee:
//! datagrams may be lost, duplicated, delayed and reordered. Interpreting the contents and recovering from losses is
//! left to the layers above.
//!
//! A datagram is given in two parts. Its *head* is copied. Its *piece* lies in an arena and is sent from there: a
//! socket has the kernel read it, an adapter reads it itself. So a piece is read for a while after it was given;
//! rewriting the arena meanwhile changes the bytes that are sent, and nothing else.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `io` | A port: the interface to everything that carries datagrams |
//! | `udp` | A UDP socket: many datagrams in one call, segmented and joined by the kernel (GSO, GRO) |
//! | `direct` | A UDP socket whose datagrams are received directly in their final places |
//! | `raw` | A port that sends and receives whole Ethernet frames, past the kernel's network stack |
//! | `ethernet` | A port for datagrams over a port for frames: Ethernet II, IPv4 and UDP at fixed places |
//! | `neighbours` | Ethernet addresses of neighbours: known ones, ones to ask for, and datagrams that wait for them |
//! | `kernel` | The kernel's knowledge of the network that a port shares with it, by rtnetlink |
//! | `af_xdp` | A port past the kernel's network stack: frames go between an adapter and this process's memory |
//! | `af_xdp/steer` | The program in the kernel that redirects a port's datagrams to its sockets |
//! | `af_xdp/umem` | The memory that holds frames: chunks of the sockets' own, and the arenas |
//! | `af_xdp/socket` | One queue's socket: its rings, its chunks, and the operations on them |
//! | `af_xdp/ring` | The rings that a program and the kernel share |
//! | `capture` | All packets of an interface, as the kernel sees them |
//! | `control` | Control messages of sendmsg(2) and recvmsg(2) |
//! | `adapter` | A network adapter that a node drives itself, bypassing the kernel: its settings |
//! | `error` | The error that ends a port |

mod adapter;
#[cfg(feature = "af-xdp")]
mod af_xdp;
mod capture;
mod control;
mod direct;
mod error;
mod ethernet;
mod io;
#[cfg_attr(not(feature = "af-xdp"), allow(dead_code, reason = "ports beside the kernel come with a feature"))]
mod kernel;
mod neighbours;
mod raw;
mod udp;

pub use adapter::{Adapter, OwnAddress};
#[cfg(feature = "af-xdp")]
pub use af_xdp::{AfXdp, AfXdpPort, Mode, Options};
pub use capture::{Packet, PacketRing};
pub use direct::{DirectSocket, Place};
pub use error::FramesError;
pub use ethernet::{Arp, EthernetPort, Own, Seen, Subnet, parse_frame};
pub use io::{Arrival, Counters, FrameIo};
pub use neighbours::Mac;
pub use raw::RawIo;
pub use udp::UdpPort;
