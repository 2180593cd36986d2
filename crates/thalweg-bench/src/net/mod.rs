//! From one process to another: by kernel sockets as ordinary programs use them, and by shared memory as Thalweg does.
//!
//! One end asks and the other serves. The other end is a second process of this program on the same host, or
//! `thalweg bench listen` on another; only the asking end chooses options. Over a control connection it sends a job,
//! one for each repeat of each point; the measured bytes go over a connection of their own.
//!
//! Messages of one size are exchanged (`Exchange`); the first byte of each states whether it counts. Before the first
//! message that counts comes a mark, at which both ends read their counters; the last message is marked too.

pub mod bandwidth;
mod control;
mod datagram;
mod exchange;
mod frames;
pub mod latency;
pub mod listen;
pub mod load;
pub mod packets;
mod session;
mod shm;
mod steered;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod uring;
mod verbs;

pub(crate) use exchange::{Exchange, Phase, Tally};
pub(crate) use session::{bind_to_processor, set_congestion_control};

use crate::options::{Cpus, NetworkPath};
use crate::point::Key;
use crate::{BenchError, Sizes};
use serde::{Deserialize, Serialize};
use session::Other;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use thalweg_text::ByteSize;

/// Longest message, in bytes: it is kept in memory several times at both ends.
const MAX_MESSAGE_BYTES: u64 = 1 << 30;

/// Location of the two ends.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Ends {
    /// The other end: a host where `thalweg bench listen` runs. Without it, a second process on this one
    #[arg(short = 'c', long, value_name = "HOST[:PORT]")]
    pub peer: Option<String>,
    /// Processors that the two ends are bound to; may be given several times, also as 'none', to compare
    #[arg(short = 'A', long, value_name = "N/M")]
    pub cpu: Vec<Cpus>,
    /// Network between the ends; several, to compare. Without it: loopback, or veth where a link needs it. Veth needs
    /// root
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "peer")]
    pub on: Vec<NetworkPath>,
    /// Processor on which the kernel receives packets, over a loopback of its own; several, to compare. Needs root
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with_all = ["peer", "on"])]
    pub interrupts: Vec<u32>,
}

/// Carrier of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Kernel TCP sockets
    Tcp,
    /// Kernel UDP sockets
    Udp,
    /// Datagrams past the kernel's network (AF_XDP). Needs root, or the capabilities that it names
    #[value(name = "af-xdp")]
    #[serde(rename = "af-xdp")]
    AfXdp,
    /// Datagrams over DPDK's shared memory (net_memif); on one host
    Dpdk,
    /// Thalweg's shared-memory rings and arenas; on one host
    Shm,
    /// RDMA by iWARP over TCP, with Thalweg's RNIC in software
    Rdma,
    /// RDMA by EFE over UDP, with Thalweg's RNIC in software
    #[value(name = "rdma-efe")]
    #[serde(rename = "rdma-efe")]
    RdmaEfe,
}

/// Method by which a message is passed to the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// tcp, udp: write(2) and read(2)
    Write,
    /// tcp, udp: sendmsg(2) and recvmsg(2), the message in two pieces
    Sendmsg,
    /// tcp: send(2) with MSG_ZEROCOPY
    Zerocopy,
    /// tcp: sendfile(2) from a memfd, as Thalweg's sources do
    Sendfile,
    /// tcp, udp: send and receive through io_uring
    #[value(name = "io_uring")]
    #[serde(rename = "io_uring")]
    IoUring,
    /// shm: copied into shared memory, and out of it at the other end
    Copy,
    /// shm: read where the device wrote it, as Thalweg's builders do
    Handover,
    /// udp, af-xdp, dpdk: bursts of datagrams, as Thalweg's own links send them
    Frames,
    /// tcp, shm, rdma, rdma-efe: Thalweg's own link: offered, fetched, released
    Verbs,
}

/// Method by which an end waits for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Sleeps until the kernel wakes it: the default of tcp, udp and rdma
    Sleep,
    /// Polls without sleeping: the default of shm, and the only choice of dpdk
    Poll,
}

/// Options that latency, bandwidth and under-load share.
#[derive(Debug, Clone, clap::Args)]
pub struct Path {
    /// Links that carry the messages
    #[arg(long, value_delimiter = ',', default_value = "tcp,udp,shm")]
    pub link: Vec<Link>,
    /// Methods by which messages are passed to the link; by default write for tcp and udp, copy for shm, and verbs for
    /// rdma
    #[arg(long, value_delimiter = ',')]
    pub method: Vec<Method>,
    /// Method by which each end waits
    #[arg(long)]
    pub wait: Option<Wait>,
    /// Socket buffers, sending and receiving; without it, as the kernel chooses
    #[arg(short = 'w', long, value_name = "BYTES", value_delimiter = ',')]
    pub socket_buffer: Vec<ByteSize>,
    /// TCP congestion control; without it, the system's
    #[arg(short = 'C', long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Check every byte that arrives, which costs time
    #[arg(long)]
    pub check_data: bool,
}

impl Link {
    fn display_name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::AfXdp => "af-xdp",
            Self::Dpdk => "dpdk",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::RdmaEfe => "rdma-efe",
        }
    }

    /// Returns the methods that the link supports, the usual one first.
    fn supported_methods(self) -> &'static [Method] {
        use Method::{Copy, Frames, Handover, IoUring, Sendfile, Sendmsg, Verbs, Write, Zerocopy};
        match self {
            Self::Tcp => &[Write, Sendmsg, Zerocopy, Sendfile, IoUring, Verbs],
            Self::Udp => &[Write, Sendmsg, IoUring, Frames],
            Self::AfXdp | Self::Dpdk => &[Frames],
            Self::Shm => &[Copy, Handover, Verbs],
            Self::Rdma | Self::RdmaEfe => &[Verbs],
        }
    }

    /// Returns whether the link may lose messages.
    fn may_lose_messages(self) -> bool {
        matches!(self, Self::Udp | Self::AfXdp | Self::Dpdk)
    }

    /// Returns whether the link is memory that both ends share.
    fn is_shared_memory(self) -> bool {
        matches!(self, Self::Dpdk | Self::Shm)
    }
}

impl Method {
    fn display_name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Sendmsg => "sendmsg",
            Self::Zerocopy => "zerocopy",
            Self::Sendfile => "sendfile",
            Self::IoUring => "io_uring",
            Self::Copy => "copy",
            Self::Handover => "handover",
            Self::Frames => "frames",
            Self::Verbs => "verbs",
        }
    }
}

/// One requested combination of link, method and settings; a point is a route and a size.
#[derive(Debug, Clone)]
struct Route {
    link: Link,
    method: Method,
    wait: Wait,
    socket_buffer: Option<u32>,
    cpu: Option<Cpus>,
    place: Place,
}

/// Location of both ends, on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Environment in which this program was started.
    Here,
    /// Loopback of their own whose packets are received on this processor.
    Steered(u32),
    /// Ends of a cable of their own.
    Cable,
}

/// Returns all points that [`Path`], [`Ends`] and sizes ask for, each with its route.
fn requested_points(path: &Path, ends: &Ends, sizes: &Sizes) -> Result<Vec<(Key, Route)>, BenchError> {
    if let Some(size) = sizes.0.iter().find(|size| !(1..=MAX_MESSAGE_BYTES).contains(*size)) {
        return Err(BenchError::Usage(format!("a message of {size} bytes: from 1 byte to 1 GiB can be sent")));
    }
    let buffers = match &path.socket_buffer[..] {
        [] => vec![None],
        some => some
            .iter()
            .map(|size| u32::try_from(size.0).map(Some))
            .collect::<Result<_, _>>()
            .map_err(|_| BenchError::Usage("socket buffers of 4 GiB and more cannot be requested".to_owned()))?,
    };
    let cpus = match &ends.cpu[..] {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for link in &path.link {
        let known = link.supported_methods();
        let methods: Vec<Method> = match &path.method[..] {
            [] => vec![known[0]],
            some => some.iter().copied().filter(|method| known.contains(method)).collect(),
        };
        if let Some(never) =
            path.method.iter().find(|method| !path.link.iter().any(|link| link.supported_methods().contains(method)))
        {
            let links: Vec<&str> = path.link.iter().map(|link| link.display_name()).collect();
            return Err(BenchError::Usage(format!(
                "--method {} is none of --link {}",
                never.display_name(),
                links.join(",")
            )));
        }
        let wait = match link {
            Link::Dpdk => Wait::Poll,
            Link::Shm => path.wait.unwrap_or(Wait::Poll),
            _ => path.wait.unwrap_or(Wait::Sleep),
        };
        // Only sockets have buffers; a link without sockets is measured once.
        let buffers = if link.is_shared_memory() { &[None][..] } else { &buffers[..] };
        let places = link_places(*link, ends)?;
        for method in methods {
            for socket_buffer in buffers {
                for cpu in &cpus {
                    for place in &places {
                        let (socket_buffer, cpu, place) = (*socket_buffer, *cpu, *place);
                        let route = Route { link: *link, method, wait, socket_buffer, cpu, place };
                        points.extend(sizes.0.iter().map(|size| (route.point_key(*size, path), route.clone())));
                    }
                }
            }
        }
    }
    Ok(points)
}

/// Returns the places of a link's ends. Over the network they stay where they are; shared memory needs no network.
fn link_places(link: Link, ends: &Ends) -> Result<Vec<Place>, BenchError> {
    if link.is_shared_memory() || ends.peer.is_some() {
        return Ok(vec![Place::Here]);
    }
    let alone = match link {
        Link::AfXdp => Place::Cable,
        _ => Place::Here,
    };
    if !ends.interrupts.is_empty() {
        return match alone {
            Place::Cable => {
                Err(BenchError::Usage(format!("--interrupts: loopback has no --link {}", link.display_name())))
            }
            _ => Ok(ends.interrupts.iter().copied().map(Place::Steered).collect()),
        };
    }
    match &ends.on[..] {
        [] => Ok(vec![alone]),
        // Impossible links are left out, unless only they were requested.
        some if alone == Place::Cable && !some.contains(&NetworkPath::Veth) => {
            Err(BenchError::Usage(format!("--link {} does not work over loopback: use --on veth", link.display_name())))
        }
        some => {
            let places = some.iter().map(|on| if *on == NetworkPath::Veth { Place::Cable } else { Place::Here });
            Ok(places.filter(|place| alone != Place::Cable || *place == Place::Cable).collect())
        }
    }
}

impl Route {
    fn point_key(&self, size: u64, path: &Path) -> Key {
        let mut key = Key::new(self.link.display_name(), self.method.display_name(), size);
        if self.wait == Wait::Poll {
            key = key.with_setting("wait", "poll");
        }
        if let Some(bytes) = self.socket_buffer {
            key = key.with_setting("socket_buffer", bytes);
        }
        if let (Some(name), Link::Tcp) = (&path.congestion, self.link) {
            key = key.with_setting("congestion", name);
        }
        if let Some(cpu) = self.cpu {
            key = key.with_setting("cpu", cpu);
        }
        match self.place {
            Place::Here => {}
            Place::Steered(cpu) => key = key.with_setting("interrupts", cpu),
            Place::Cable => key = key.with_setting("on", NetworkPath::Veth.display_name()),
        }
        if path.check_data {
            key = key.with_setting("check_data", "yes");
        }
        key
    }
}

/// Memory of another process of this program, which has it mapped for writing as long as this lives, or until its wait
/// for a message has timed out.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    shared: shm::Shared,
    _other: Other,
}

impl PeerMemory {
    /// Starts a process and maps its memory.
    pub(crate) fn start_process() -> Result<Self, BenchError> {
        Self::from_serving_end(Other::connect_or_start(None)?)
    }

    /// Maps the memory of a serving end on this host.
    pub(crate) fn from_serving_end(mut other: Other) -> Result<Self, BenchError> {
        Ok(Self { shared: other.begin_shared_memory()?, _other: other })
    }

    /// Returns the file of the memory.
    pub(crate) fn memory_fd(&self) -> BorrowedFd<'_> {
        self.shared.other_arena_fd()
    }
}

/// Longest silence, on any connection, before the other end is given up.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
