//! The kinds of links, and one table of what each can do, which the whole program consults.

use crate::{Adapter, Address, BuilderEndpoint, Eager, LinkError, SourceEndpoint, Watch, shm, tcp, udp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};
use thalweg_wire::RECORD_ALIGN;

/// A kind of link: its abilities, and the constructors of its endpoints.
pub trait Transport: Debug + Send + Sync {
    /// Returns the abilities of this kind of link.
    fn abilities(&self) -> &'static Abilities;

    /// Creates an endpoint through which sources connect to builders, one of which is at `to`; with an adapter of its
    /// own, where [it needs one](Abilities::adapter). Its descriptors are registered under `watch`.
    ///
    /// # Errors
    /// This kind of link cannot be used here.
    fn open_source_endpoint(
        &self,
        to: &Address,
        by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError>;

    /// Creates an endpoint to which sources connect, at `at`; with an adapter of its own, where [it needs
    /// one](Abilities::adapter). Its descriptors are registered under `watch`.
    ///
    /// # Errors
    /// The address cannot be listened on, and [`LinkError::Listening`] contains advice.
    fn open_builder_endpoint(
        &self,
        at: &Address,
        by: Option<&Adapter>,
        eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError>;
}

/// Abilities of a kind of link: one row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Prefix of its addresses, and its name in a topology.
    pub name: &'static str,
    /// Name for people to read.
    pub title: &'static str,
    /// Form of its addresses, as shown to users.
    pub form: &'static str,
    /// Type of the part that follows the name in an address.
    pub locator: Locator,
    /// True if the builder reads fragments in the source's own memory, without a copy: see
    /// [`BuilderLink::maps_source_memory`](crate::BuilderLink::maps_source_memory).
    pub maps: bool,
    /// True if a slot is fetched in pieces, so that credit can be finer than a slot.
    pub pieces: bool,
    /// True if a source may send small slots without waiting for a fetch.
    pub eager: bool,
    /// True if one end reads or writes the other's memory without its processor.
    pub one_sided: bool,
    /// True if it sends frames of its own making, any of which may be lost: what has arrived is known to this process,
    /// and no kernel delivers data after the sender's death.
    pub frames: bool,
    /// Bytes of headers in a full IP packet, including the link's own; 0 for a link that sends no packets.
    pub headers: u32,
    /// True if it is a connection of the kernel's TCP, whose congestion control can be chosen.
    pub congestion: bool,
    /// Number of files that each end has open for one connection.
    pub files: u64,
    /// True if a node has an interface of its host to itself, and does not hear the other nodes on its host.
    pub interface: bool,
    /// True if an end drives an [`Adapter`] itself, which has to be specified.
    pub adapter: bool,
    /// True if an end uses the RDMA device of the kernel that has its address.
    pub rdma_device: bool,
}

impl Abilities {
    /// Returns the number of bytes of a slot in a full IP packet of `mtu` bytes.
    pub fn payload_bytes_per_packet(&self, mtu: u32) -> u32 {
        let payload = mtu.saturating_sub(self.headers);
        if self.frames { payload / RECORD_ALIGN as u32 * RECORD_ALIGN as u32 } else { payload }
    }
}

/// Type of the part that follows the name of a kind in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locator {
    /// `HOST:PORT`, over IP.
    HostPort,
    /// The path of a socket on this host.
    Path,
}

/// Kinds that are available without registration.
static BUILT_IN: &[LinkKind] = &[
    LinkKind::TCP,
    LinkKind::UDP,
    #[cfg(feature = "af-xdp")]
    LinkKind::AF_XDP,
    LinkKind::SHM,
];
static REGISTERED: RwLock<Vec<LinkKind>> = RwLock::new(Vec::new());

/// A registered kind of link.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkKind(&'static dyn Transport);

impl LinkKind {
    /// Kernel TCP.
    pub const TCP: Self = Self(&tcp::Tcp);
    /// Datagrams of the kernel's UDP.
    pub const UDP: Self = Self(&udp::Udp);
    /// The datagrams of UDP, sent and received past the kernel's network stack.
    #[cfg(feature = "af-xdp")]
    pub const AF_XDP: Self = Self(&udp::AfXdp);
    /// Shared memory on one host.
    pub const SHM: Self = Self(&shm::Shm);

    /// Registers a kind of link in this process: from now on its addresses can be parsed. A kind of this name that was
    /// registered before stays.
    pub fn register_transport(transport: &'static dyn Transport) -> Self {
        let kind = Self(transport);
        if !Self::all_kinds().contains(&kind) {
            REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(kind);
        }
        kind
    }

    /// Creates a kind that only its caller knows: its addresses cannot be parsed.
    pub(crate) const fn from_transport(transport: &'static dyn Transport) -> Self {
        Self(transport)
    }

    /// Returns all kinds that are built in or registered.
    pub fn all_kinds() -> Vec<Self> {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        BUILT_IN.iter().chain(registered.iter()).copied().collect()
    }

    /// Returns the constructors of its endpoints.
    pub fn transport(self) -> &'static dyn Transport {
        self.0
    }
}

impl Deref for LinkKind {
    type Target = Abilities;

    fn deref(&self) -> &Abilities {
        self.0.abilities()
    }
}

impl Default for LinkKind {
    fn default() -> Self {
        Self::TCP
    }
}

impl Debug for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title)
    }
}

impl PartialEq for LinkKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for LinkKind {}

impl Hash for LinkKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl FromStr for LinkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = Self::all_kinds();
        all.iter().copied().find(|kind| kind.name == text).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|kind| format!("'{}'", kind.name)).collect();
            format!("'{text}' is not a link: use {}", names.join(" or "))
        })
    }
}

impl TryFrom<String> for LinkKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LinkKind> for String {
    fn from(kind: LinkKind) -> Self {
        kind.name.to_owned()
    }
}
