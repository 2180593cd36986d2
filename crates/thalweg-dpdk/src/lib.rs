//! A port of DPDK's: whole Ethernet frames past the kernel, out of the memory they lie in.
//!
//! A [`DpdkPort`] is a network adapter that this process drives by itself, or a virtual device in place of one. It is
//! polled: a thread that looks at it often owns it, and nothing wakes that thread. A piece of a frame is sent from the
//! arena that it lies in. DPDK is told of the arena (External Memory Support, Programmer's Guide), and a buffer that
//! has no room of its own points there (External Buffer, Mbuf Library). So nothing is copied, but where a driver cannot
//! put a frame together from pieces; what is copied is counted.
//!
//! | device | what it is |
//! | --- | --- |
//! | `0000:00:11.0` | A PCI adapter, which somebody has bound to `vfio-pci` (`dpdk-devbind.py`), or of a kind that needs no binding |
//! | `net_memif0,role=server,socket=NAME` | Shared memory with another process, which has `role=client` |
//! | `net_ring0` | A queue that gives back what is sent |
//! | `net_af_packet0,iface=NAME`, `net_af_xdp0,iface=NAME` | An interface of the kernel's |
//! | `net_tap0,iface=NAME` | An interface that it makes |
//! | `net_pcap0,rx_pcap=FILE,tx_pcap=FILE` | Files of tcpdump's |
//! | `net_null0` | Nothing: what is sent is gone |
//!
//! Others that DPDK knows work, too ([Network Interface Controller Drivers]). What comes over shared memory is trusted:
//! DPDK's own drivers follow whatever a peer writes into the queue. A peer over net_memif that goes takes its queues
//! away while somebody may be at them (`memif_disconnect` runs in a thread of DPDK's and does not look): whoever polls
//! such a port at that moment may crash. It is for processes that are stopped together, as in a test or a measurement.
//!
//! # DPDK in the program
//!
//! DPDK is a C library whose functions are largely macros and inline. A shim (`shim/shim.c`) asks it for what is needed
//! and is compiled where DPDK is installed. Its bytes are in the program, and are loaded when the first port is opened.
//! So the program is one file and starts where there is no DPDK ([`available`] says so). DPDK loads its drivers from
//! its own directory.
//!
//! The process stays what it was: no signal is caught, no thread is pinned, nothing is written to standard output or
//! standard error, and no adapter is looked at but the one that is named. Nothing is left in the file system, but for
//! an empty directory of a process that is killed while DPDK starts (`/run/dpdk/thalweg-*`). One driver makes an
//! exception: `net_tap` catches a real-time signal of its own.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `link` | Links through a port: the three verbs over UDP and IPv4 |
//! | `port` | The port |
//! | `device` | What a device is called, and what its driver has to be told |
//! | `memory` | Arenas that DPDK may read |
//! | `environment` | DPDK's environment (EAL), of which a process has one |
//! | `shim` | The shim: what it can do, and how it gets into the process |
//! | `error` | Why a port cannot be opened |
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
pub use environment::{Version, available};
pub use error::DpdkError;
pub use link::{Dpdk, datagrams, register};
pub use port::DpdkPort;
