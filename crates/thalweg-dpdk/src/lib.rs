//! A port of DPDK: whole Ethernet frames past the kernel, sent from the memory in which they lie.
//!
//! A [`DpdkPort`] is a network adapter that this process drives by itself, or a virtual device in place of one. It is
//! polled: the thread that owns it polls it often, and nothing wakes that thread. A piece of a frame is sent from the
//! arena in which it lies. The arena is registered with DPDK (External Memory Support, Programmer's Guide), and a
//! buffer without room of its own points there (External Buffer, Mbuf Library). So nothing is copied, unless a driver
//! cannot assemble a frame from pieces; copied bytes are counted.
//!
//! | device | what it is |
//! | --- | --- |
//! | `0000:00:11.0` | A PCI adapter that is bound to `vfio-pci` (`dpdk-devbind.py`), or whose kind needs no binding |
//! | `net_memif0,role=server,socket=NAME` | Shared memory with another process, which has `role=client` |
//! | `net_ring0` | A queue that returns what is sent |
//! | `net_af_packet0,iface=NAME`, `net_af_xdp0,iface=NAME` | An interface of the kernel |
//! | `net_tap0,iface=NAME` | A kernel interface that the driver creates |
//! | `net_pcap0,rx_pcap=FILE,tx_pcap=FILE` | Files of tcpdump |
//! | `net_null0` | Nothing: frames that are sent are lost |
//!
//! Other devices of DPDK work, too ([Network Interface Controller Drivers]). Data that comes over shared memory is
//! trusted: DPDK's own drivers follow any value that a peer writes into the queue. A peer over net_memif that goes away
//! removes its queues even while they are in use (`memif_disconnect` runs in a thread of DPDK without a check): a
//! thread that polls such a port at that moment may crash. It is for processes that are stopped together, as in a test
//! or a measurement.
//!
//! # DPDK in the program
//!
//! DPDK is a C library whose functions are largely macros and inline. A shim (`shim/shim.c`) makes them callable and is
//! compiled where DPDK is installed. Its bytes are in the program, and are loaded when the first port is opened. So the
//! program is one file and starts on machines without DPDK ([`available_version`] reports that). DPDK loads its drivers from
//! its own directory.
//!
//! The process is not changed: no signal is caught, no thread is pinned, nothing is written to standard output or
//! standard error, and no adapter is touched but the one that is named. Nothing is left in the file system, except an
//! empty directory of a process that is killed while DPDK starts (`/run/dpdk/thalweg-*`). One driver makes an
//! exception: `net_tap` catches a real-time signal of its own.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `link` | Links through a port: the three verbs over UDP and IPv4 |
//! | `port` | A port of DPDK: an adapter, or a virtual device |
//! | `device` | Names of devices, and the arguments that their drivers need |
//! | `memory` | Arenas that DPDK may read |
//! | `environment` | DPDK's environment (EAL), of which a process has one |
//! | `shim` | The shim: its functions, and how it is loaded into the process |
//! | `error` | Reasons why a port cannot be opened |
//!
//! [Network Interface Controller Drivers]: https://doc.dpdk.org/guides-22.11/nics/index.html

mod device;
mod environment;
mod error;
mod link;
mod memory;
mod port;
mod shim;

pub use device::Options;
pub use environment::{Version, available_version};
pub use error::DpdkError;
pub use link::{Dpdk, open_datagram_port, register_link};
pub use port::DpdkPort;
