//! A link inside one process, for tests: datagrams that are lost, damaged, duplicated, delayed and reordered, over
//! paths that shrink, under a clock that the test advances. The same seed gives the same impairments.
//!
//! The link stands for every medium of frames, under the same connections.

use crate::frames::Frames;
use crate::kind::{Abilities, Locator, Transport};
use crate::{Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind, SourceEndpoint, Watch};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_arena::Piece;
use thalweg_frames::{Arrival, Counters, DatagramIo, FramesError};
use thalweg_wire::{Content, GOLDEN_GAMMA, HEAD_LEN, Head, mix_bits};

/// Length of the longest datagram, in bytes: fits an Ethernet frame with room for the headers that tunnels add.
const MAX_DATAGRAM_BYTES: usize = 1408;
/// Maximum number of datagrams received at one end before others have their turn.
const FAIR_SHARE: usize = 512;

/// Impairments of datagrams on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impairments {
    /// Number of datagrams out of a thousand that are lost.
    pub lost: u32,
    /// Number of datagrams out of a thousand that come twice.
    pub doubled: u32,
    /// Minimum delay of a datagram.
    pub delay: Duration,
    /// Maximum additional delay, drawn for each datagram: slower ones are overtaken.
    pub jitter: Duration,
    /// Number of datagrams out of a million in which a bit flips: in the head, or in words. The content of pieces stays
    /// intact: it is protected by the checksums of the records in it, not by the link.
    pub damaged_ppm: u32,
}

impl Impairments {
    /// Everything arrives at once, in order, once.
    pub const PERFECT: Self =
        Self { lost: 0, doubled: 0, delay: Duration::ZERO, jitter: Duration::ZERO, damaged_ppm: 0 };
    /// One in ten is lost, one in twenty comes twice, and they overtake each other freely.
    pub const FOUL: Self = Self {
        lost: 100,
        doubled: 50,
        delay: Duration::from_micros(50),
        jitter: Duration::from_millis(2),
        damaged_ppm: 0,
    };
}

/// A network with its own time, which is that of all endpoints on it. Clones are the same network.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    impairments: Impairments,
    random: u64,
    now: Duration,
    datagrams: u64,
    /// Maximum length of a datagram that arrives, in bytes.
    mtu: usize,
    /// Number of ports opened so far: each has an address of its own.
    ports: u32,
    coming: BTreeMap<SocketAddr, Coming>,
    /// Addresses of builders, by name.
    builders: BTreeMap<String, SocketAddr>,
    /// Pairs of ports between which nothing passes, with the time at which that ends.
    parted: BTreeMap<(SocketAddr, SocketAddr), Duration>,
}

/// Datagrams on their way to a port, by arrival time: the sender and a datagram, or `None` for the report that no one
/// is there.
type Coming = BTreeMap<(Duration, u64), (SocketAddr, Option<Vec<u8>>)>;

impl Network {
    /// Creates a network without links. The clock starts at zero.
    pub fn new(impairments: Impairments, seed: u64) -> Self {
        let inner = Inner {
            impairments,
            random: seed,
            now: Duration::ZERO,
            datagrams: 0,
            mtu: MAX_DATAGRAM_BYTES,
            ports: 0,
            coming: BTreeMap::new(),
            builders: BTreeMap::new(),
            parted: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Returns a kind of link over this network. Each call leaks a little memory, as kinds of links do.
    pub fn link_kind(&self) -> LinkKind {
        LinkKind::from_transport(Box::leak(Box::new(self.clone())))
    }

    /// Returns the time of the network.
    pub fn current_time(&self) -> Duration {
        self.lock_network().now
    }

    /// Applies these impairments to datagrams sent from now on.
    pub fn set_impairments(&self, impairments: Impairments) {
        self.lock_network().impairments = impairments;
    }

    /// Limits datagrams to `bytes` from now on: longer ones are lost, without a report to the ports.
    pub fn set_mtu(&self, bytes: usize) {
        self.lock_network().mtu = bytes;
    }

    /// Returns the number of datagrams transported so far: those that were lost do not count, those that were doubled
    /// count twice.
    pub fn transported_datagrams(&self) -> u64 {
        self.lock_network().datagrams
    }

    /// Returns the address of the port that was opened last.
    ///
    /// # Panics
    /// No port was opened.
    pub fn last_port(&self) -> SocketAddr {
        let ports = self.lock_network().ports;
        assert!(ports > 0, "no port was opened");
        port_address(ports)
    }

    /// Separates two ports, in both directions, until that time.
    pub fn separate_ports(&self, one: SocketAddr, other: SocketAddr, until: Duration) {
        let mut inner = self.lock_network();
        let known = inner.parted.entry((one.min(other), one.max(other))).or_default();
        *known = until.max(*known);
    }

    /// Advances the clock to that time.
    pub fn advance_to(&self, at: Duration) {
        let mut inner = self.lock_network();
        inner.now = inner.now.max(at);
    }

    fn open_port(&self) -> MemoryPort {
        let mut inner = self.lock_network();
        inner.ports += 1;
        let address = port_address(inner.ports);
        inner.coming.insert(address, BTreeMap::new());
        drop(inner);
        MemoryPort { network: self.clone(), address, counters: Counters::default() }
    }

    fn lock_network(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn port_address(number: u32) -> SocketAddr {
    (Ipv4Addr::from_bits(0x0a00_0000 + number), 1).into()
}

impl Transport for Network {
    fn abilities(&self) -> &'static Abilities {
        &Abilities {
            name: "memory",
            title: "memory of one process",
            form: "memory:NAME",
            locator: Locator::Path,
            maps: false,
            pieces: true,
            eager: false,
            one_sided: false,
            frames: true,
            headers: HEAD_LEN as u32,
            congestion: false,
            files: 0,
            interface: false,
            adapter: false,
            rdma_device: false,
        }
    }

    fn open_source_endpoint(
        &self,
        _to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        Ok(Box::new(Frames::source_endpoint(self.open_port(), watch)?))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let port = self.open_port();
        self.lock_network().builders.insert(at.place().to_owned(), port.address);
        Ok(Box::new(Frames::builder_endpoint(port, at.place().to_owned(), watch)?))
    }
}

impl Inner {
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.random)
    }

    fn send_datagram(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        debug_assert!(datagram.len() <= MAX_DATAGRAM_BYTES, "a datagram of {} bytes", datagram.len());
        if self.parted.get(&(from.min(to), from.max(to))).is_some_and(|until| self.now < *until) {
            return;
        }
        let Impairments { lost, doubled, delay, jitter, damaged_ppm } = self.impairments;
        if self.next_random() % 1000 < u64::from(lost) || datagram.len() > self.mtu {
            return;
        }
        let copies = 1 + u32::from(self.next_random() % 1000 < u64::from(doubled));
        for _ in 0..copies {
            self.datagrams += 1;
            #[expect(clippy::cast_possible_truncation, reason = "jitter is far less than 500 years")]
            let late = self.next_random() % (jitter.as_nanos() as u64 + 1);
            let at = (self.now + delay + Duration::from_nanos(late), self.datagrams);
            let mut datagram = datagram.to_vec();
            if damaged_ppm > 0 && self.next_random() % 1_000_000 < u64::from(damaged_ppm) {
                self.flip_random_bit(&mut datagram);
            }
            // A host without a receiver reports that (ICMP).
            let (to, coming) = match self.coming.contains_key(&to) {
                true => (to, (from, Some(datagram))),
                false => (from, (to, None)),
            };
            self.coming.entry(to).or_default().insert(at, coming);
        }
    }
}

impl Inner {
    fn flip_random_bit(&mut self, datagram: &mut [u8]) {
        let is_piece = Head::decode(datagram).is_ok_and(|(head, _)| matches!(head.content, Content::Piece { .. }));
        let bytes = if is_piece { HEAD_LEN } else { datagram.len() };
        #[expect(clippy::cast_possible_truncation, reason = "less than the length of a datagram")]
        let bit = (self.next_random() % (bytes as u64 * 8).max(1)) as usize;
        if let Some(byte) = datagram.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// A port of the network.
#[derive(Debug)]
struct MemoryPort {
    network: Network,
    address: SocketAddr,
    counters: Counters,
}

impl DatagramIo for MemoryPort {
    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn resolve_address(&self, place: &str) -> io::Result<SocketAddr> {
        let found = self.network.lock_network().builders.get(place).copied();
        found.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no builder listens there"))
    }

    fn max_datagram_bytes(&mut self, _to: SocketAddr) -> Result<usize, FramesError> {
        Ok(MAX_DATAGRAM_BYTES)
    }

    fn reserve_receive_bytes(&mut self, bytes: u64) -> u64 {
        bytes
    }

    fn has_send_room(&mut self) -> bool {
        true
    }

    fn queue_datagram(&mut self, to: SocketAddr, head: &[u8], piece: Option<Piece<'_>>) {
        let mut datagram = head.to_vec();
        if let Some(piece) = piece {
            datagram.resize(head.len() + piece.len(), 0);
            piece.copy_bytes_to(0, &mut datagram[head.len()..]);
        }
        self.counters.sent += 1;
        self.network.lock_network().send_datagram(self.address, to, &datagram);
    }

    fn copies_per_byte(&self) -> (u64, u64) {
        (1, 0)
    }

    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        Ok(true)
    }

    fn receive_datagrams(&mut self, each: &mut dyn FnMut(SocketAddr, Arrival<'_>)) -> Result<bool, FramesError> {
        for _ in 0..FAIR_SHARE {
            let mut inner = self.network.lock_network();
            let now = inner.now;
            let Some(coming) = inner.coming.get_mut(&self.address) else { return Ok(false) };
            let Some(first) = coming.first_entry().filter(|first| first.key().0 <= now) else { return Ok(false) };
            let (from, datagram) = first.remove();
            drop(inner);
            self.counters.received += 1;
            each(from, datagram.as_deref().map_or(Arrival::Unreachable, Arrival::Datagram));
        }
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn port_counters(&self) -> Counters {
        self.counters
    }

    /// Returns the time of the network, independent of the caller's clock.
    fn current_time(&self, _now: Duration) -> Duration {
        self.network.current_time()
    }

    fn draw_number(&mut self) -> Option<u64> {
        Some(self.network.lock_network().next_random())
    }

    fn next_arrival(&self) -> Option<Duration> {
        self.network.lock_network().coming.get(&self.address)?.first_key_value().map(|((at, _), _)| *at)
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.network.lock_network().coming.remove(&self.address);
    }
}
