//! The kinds of links: one table of what each can do, that the whole program asks.

use crate::{Adapter, Address, BuilderEndpoint, Eager, LinkError, SourceEndpoint, Watch, shm, tcp, udp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};
use thalweg_wire::RECORD_ALIGN;

/// A kind of link: what it can do, and how its endpoints come to be.
pub trait Transport: Debug + Send + Sync {
    /// What it can do.
    fn abilities(&self) -> &'static Abilities;

    /// An endpoint that sources connect through, to builders of which one is at `to`: by an adapter of its own, where
    /// [it needs one](Abilities::adapter). Its descriptors are put under `watch`.
    ///
    /// # Errors
    /// This kind of link cannot be used here.
    fn source(&self, to: &Address, by: Option<&Adapter>, watch: Watch) -> Result<Box<dyn SourceEndpoint>, LinkError>;

    /// An endpoint that sources connect to, at `at`: by an adapter of its own, where [it needs one](Abilities::adapter).
    /// Its descriptors are put under `watch`.
    ///
    /// # Errors
    /// It cannot be listened on there, and [`LinkError::Listening`] says what to do.
    fn builder(
        &self,
        at: &Address,
        by: Option<&Adapter>,
        eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError>;
}

/// What a kind of link can do: a row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Abilities {
    /// As addresses begin, and as a topology names it.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What an address of it looks like.
    pub form: &'static str,
    /// What stands behind the name in an address.
    pub locator: Locator,
    /// The builder reads fragments in the source's own memory, without a copy: see
    /// [`BuilderLink::maps`](crate::BuilderLink::maps).
    pub maps: bool,
    /// A slot is fetched in pieces, so that credit can be finer than a slot.
    pub pieces: bool,
    /// A source may send small slots unasked.
    pub eager: bool,
    /// One end reads or writes the other's memory without its processor.
    pub one_sided: bool,
    /// It sends frames of its own making, any of which may be lost: what has arrived of it is known here, and no kernel
    /// delivers it after the sender's death.
    pub frames: bool,
    /// Bytes of headers in a full IP packet, its own among them; 0 where it sends none.
    pub headers: u32,
    /// It is a connection of the kernel's TCP, whose congestion control can be chosen.
    pub congestion: bool,
    /// Files that each end has open for one connection.
    pub files: u64,
    /// A node has an interface of its host to itself, and does not hear the others on its host.
    pub interface: bool,
    /// An end drives an [`Adapter`] by itself, and has to be told which.
    pub adapter: bool,
}

impl Abilities {
    /// Bytes of a slot in a full IP packet of so many bytes.
    pub fn payload(&self, mtu: u32) -> u32 {
        let payload = mtu.saturating_sub(self.headers);
        if self.frames { payload / RECORD_ALIGN as u32 * RECORD_ALIGN as u32 } else { payload }
    }
}

/// What stands behind the name of a kind in an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locator {
    /// `HOST:PORT`, over IP.
    HostPort,
    /// The path of a socket on this host.
    Path,
}

/// Kinds that are there without being asked for.
static BUILT_IN: &[LinkKind] = &[
    LinkKind::TCP,
    LinkKind::UDP,
    #[cfg(feature = "af-xdp")]
    LinkKind::AF_XDP,
    LinkKind::SHM,
];
static REGISTERED: RwLock<Vec<LinkKind>> = RwLock::new(Vec::new());

/// One of the kinds that are registered.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkKind(&'static dyn Transport);

impl LinkKind {
    /// Kernel TCP.
    pub const TCP: Self = Self(&tcp::Tcp);
    /// Datagrams of the kernel's UDP.
    pub const UDP: Self = Self(&udp::Udp);
    /// The same datagrams past the kernel's network.
    #[cfg(feature = "af-xdp")]
    pub const AF_XDP: Self = Self(&udp::AfXdp);
    /// Shared memory on one host.
    pub const SHM: Self = Self(&shm::Shm);

    /// Makes a kind of link known to this process: from now on its addresses can be read. A kind of this name that was
    /// registered before stays.
    pub fn register(transport: &'static dyn Transport) -> Self {
        let kind = Self(transport);
        if !Self::all().contains(&kind) {
            REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push(kind);
        }
        kind
    }

    /// One that is known to its caller alone: its addresses cannot be read from text.
    pub(crate) const fn of(transport: &'static dyn Transport) -> Self {
        Self(transport)
    }

    /// All that are known.
    pub fn all() -> Vec<Self> {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        BUILT_IN.iter().chain(registered.iter()).copied().collect()
    }

    /// How its endpoints come to be.
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
        let all = Self::all();
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
