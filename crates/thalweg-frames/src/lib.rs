//! UDP datagrams in bursts, through a UDP socket, AF_XDP, or any port that carries Ethernet frames.
//!
//! A [`DatagramIo`] is one UDP port of one host. It sends and receives datagrams, many at a time, without any guarantee:
//! datagrams may be lost, duplicated, delayed and reordered. Interpreting the contents and recovering from losses is
//! left to the layers above. A [`FrameIo`] is the layer below: whole Ethernet frames, from which an [`EthernetPort`]
//! makes a [`DatagramIo`].
//!
//! A datagram is queued in two parts. Its *head* is copied. Its *piece* is a range of an arena and is sent from there,
//! without a copy by this crate: the kernel (for a socket) or the adapter reads it, at any time until it is sent. If
//! the arena is overwritten before that, the new bytes are sent; nothing else is affected.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `io` | A port: the interface to everything that carries datagrams |
//! | `udp` | A UDP socket: many datagrams in one call, segmented and joined by the kernel (GSO, GRO) |
//! | `direct` | A UDP socket whose datagrams are received directly in their final places |
//! | `raw` | A port that sends and receives whole Ethernet frames, bypassing the kernel's network stack |
//! | `ethernet` | A port for datagrams over a port for frames: Ethernet II, IPv4 and UDP at fixed places |
//! | `neighbours` | Ethernet addresses of neighbours (ARP): resolved ones, pending ones, and datagrams that wait for them |
//! | `kernel` | The kernel's knowledge of the network that a port shares with it, by rtnetlink |
//! | `af_xdp` | AF_XDP port, bypassing the kernel's network stack: frames go between an adapter and this process's memory |
//! | `af_xdp/steer` | The program in the kernel that redirects a port's datagrams to its sockets |
//! | `af_xdp/umem` | The memory that holds frames: chunks of the sockets' own, and the arenas |
//! | `af_xdp/socket` | One queue's socket: its rings, its chunks, and the operations on them |
//! | `af_xdp/ring` | The rings that a program and the kernel share |
//! | `packet_port` | A port for Ethernet frames of one type, through the kernel (packet(7)) |
//! | `frame_port` | A port for datagrams that lie directly in Ethernet frames of one type |
//! | `capture` | Capture of all packets of an interface (packet(7)) |
//! | `control` | Control messages of sendmsg(2) and recvmsg(2) |
//! | `adapter` | A network adapter that a node drives itself, bypassing the kernel: its settings |
//! | `error` | Error of a port, which cannot be used any more |

mod adapter;
#[cfg(feature = "af-xdp")]
mod af_xdp;
mod capture;
mod control;
mod direct;
mod error;
mod ethernet;
mod frame_port;
mod io;
#[cfg_attr(not(feature = "af-xdp"), allow(dead_code, reason = "only ports that bypass the kernel use it"))]
mod kernel;
mod neighbours;
mod packet_port;
mod raw;
mod udp;

pub use adapter::{Adapter, OwnAddress};
#[cfg(feature = "af-xdp")]
pub use af_xdp::{AfXdp, AfXdpPort, Mode, Options};
pub use capture::{Packet, PacketRing};
pub use direct::{DirectSocket, Place};
pub use error::FramesError;
pub use ethernet::{Arp, EthernetPort, ParsedFrame, PortAddresses, Subnet, parse_frame};
pub use frame_port::FramePort;
pub use io::{Arrival, Counters, DatagramIo, WriteDatagram};
pub use neighbours::Mac;
pub use packet_port::PacketPort;
pub use raw::FrameIo;
pub use udp::UdpPort;
