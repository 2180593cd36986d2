//! The tests of [`thalweg_link_conformance`] over DPDK: between two ports of this process, over shared memory
//! (net_memif).
//!
//! A port over memif that is closed may crash its peer (see the crate's documentation), so ports outlive their tests
//! and are used again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use thalweg_arena::{Arena, Piece};
use thalweg_dpdk::{DpdkPort, Options, available_version};
use thalweg_frames::{Counters, EthernetPort, FrameIo, FramesError, Subnet};
use thalweg_link::parts::{DATAGRAMS, builder_endpoint_over, source_endpoint_over};
use thalweg_link::{
    Abilities, Adapter, Address, BuilderEndpoint, Eager, LinkError, LinkKind, SourceEndpoint, Transport, Watch,
};
use thalweg_link_conformance::{Foul, Medium, link_conformance};
use thalweg_testing::skip::skipped;

/// Ports in pairs, by the pair's number: those that are not in use.
static IDLE: Mutex<BTreeMap<u8, [Option<DpdkPort>; 2]>> = Mutex::new(BTreeMap::new());
static SOCKETS: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
const PORT: u16 = 7400;

fn idle() -> MutexGuard<'static, BTreeMap<u8, [Option<DpdkPort>; 2]>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends of a pair: the builder's, and the source's.
const BUILDER: usize = 0;
const SOURCE: usize = 1;

fn pair() -> [DpdkPort; 2] {
    static OPENED: Mutex<u32> = Mutex::new(0);
    let mut number = OPENED.lock().unwrap();
    let socket = SOCKETS.path().join(format!("{number}"));
    let options = Options { link: Duration::ZERO, huge_pages: false, ..Options::default() };
    let mut open = |role: &str| {
        let device = format!("net_memif{number},role={role},socket={}", socket.display());
        *number += 1;
        DpdkPort::open_device(&device, &options).unwrap_or_else(|error| panic!("{error}"))
    };
    let ports = [open("server"), open("client")];
    assert!(ports.iter().all(|port| port.wait_for_link(Duration::from_secs(60))));
    ports
}

/// A port that is returned when it is dropped.
#[derive(Debug)]
struct Lent {
    port: Option<DpdkPort>,
    pair: u8,
    end: usize,
}

impl Lent {
    fn new(pair: u8, end: usize) -> Self {
        let port = idle().get_mut(&pair).and_then(|ends| ends[end].take());
        let mut lent = Self { port, pair, end };
        // Frames that were sent to the port's last user.
        while lent.port_mut().receive_frames(&mut |_| ()).unwrap() {}
        lent
    }

    fn port(&self) -> &DpdkPort {
        self.port.as_ref().expect("a builder and a source to each pair")
    }

    fn port_mut(&mut self) -> &mut DpdkPort {
        self.port.as_mut().expect("a builder and a source to each pair")
    }

    fn over(self) -> EthernetPort<Self> {
        let at = SocketAddrV4::new(address(self.pair, self.end), PORT);
        EthernetPort::new(self, at, Subnet { prefix: 24, gateway: None, answers: true })
    }
}

fn address(pair: u8, end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, pair, 1 + end as u8)
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(ends) = idle().get_mut(&self.pair) {
            ends[self.end] = self.port.take();
        }
    }
}

impl FrameIo for Lent {
    fn register_memory(&mut self, memory: &Arc<Arena>) -> Result<(), FramesError> {
        self.port_mut().register_memory(memory)
    }
    fn mac_address(&self) -> [u8; 6] {
        self.port().mac_address()
    }
    fn max_frame_bytes(&self) -> usize {
        self.port().max_frame_bytes()
    }
    fn has_send_room(&mut self) -> bool {
        self.port_mut().has_send_room()
    }
    fn queue_frame(&mut self, head: &[u8], piece: Option<Piece>) -> bool {
        self.port_mut().queue_frame(head, piece)
    }
    fn flush_burst(&mut self) -> Result<bool, FramesError> {
        self.port_mut().flush_burst()
    }
    fn receive_frames(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<bool, FramesError> {
        self.port_mut().receive_frames(each)
    }
    fn receive_room_frames(&self) -> usize {
        self.port().receive_room_frames()
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port().descriptor()
    }
    fn prepare_wait(&mut self) -> bool {
        self.port_mut().prepare_wait()
    }
    fn copies_per_byte(&self) -> (u64, u64) {
        self.port().copies_per_byte()
    }
    fn port_counters(&self) -> Counters {
        self.port().port_counters()
    }
}

/// DPDK's kind of link through such ports, or through a [`Foul`] port over each.
#[derive(Debug)]
struct Pairs {
    foul: bool,
}

const SEED: u64 = 0x6470_646b;

impl Transport for Pairs {
    fn abilities(&self) -> &'static Abilities {
        match self.foul {
            true => &Abilities { name: "foul-dpdk", title: "DPDK, and foul", interface: true, ..DATAGRAMS },
            false => &Abilities { name: "dpdk-pairs", title: "DPDK", interface: true, ..DATAGRAMS },
        }
    }

    fn open_source_endpoint(
        &self,
        to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        let SocketAddr::V4(to) = to.place().parse().unwrap() else { panic!("{to}") };
        let port = Lent::new(to.ip().octets()[2], SOURCE).over();
        if self.foul { source_endpoint_over(Foul::new(port, SEED), watch) } else { source_endpoint_over(port, watch) }
    }

    fn open_builder_endpoint(
        &self,
        _at: &Address,
        _by: Option<&Adapter>,
        _eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let whole = |ends: &[Option<DpdkPort>; 2]| ends.iter().all(Option::is_some);
        let mut all = idle();
        let found = all.iter().find(|(_, ends)| whole(ends)).map(|(number, _)| *number);
        let number = found.unwrap_or_else(|| {
            let number = u8::try_from(all.len()).unwrap();
            all.insert(number, pair().map(Some));
            number
        });
        let port = all.get_mut(&number).and_then(|ends| ends[BUILDER].take());
        drop(all);
        let mut lent = Lent { port, pair: number, end: BUILDER };
        while lent.port_mut().receive_frames(&mut |_| ()).unwrap() {}
        let port = lent.over();
        if self.foul {
            builder_endpoint_over(Foul::new(port, !SEED), watch)
        } else {
            builder_endpoint_over(port, watch)
        }
    }
}

struct Memif(&'static Pairs);

impl Medium for Memif {
    fn is_faithful(&self) -> bool {
        false
    }

    fn gathers_pieces(&self) -> bool {
        true
    }

    fn link_kind(&self) -> LinkKind {
        LinkKind::register_transport(self.0)
    }

    fn listen_directory(&self) -> &Path {
        Path::new("/")
    }
}

macro_rules! with_dpdk {
    ($pairs:expr => $($story:ident)*) => {
        $(#[test]
        fn $story() {
            match available_version() {
                Ok(_) => thalweg_link_conformance::$story(Memif($pairs)),
                Err(reason) => skipped(reason),
            }
        })*
    };
}

macro_rules! pairs {
    ($($story:ident)*) => { with_dpdk! { &Pairs { foul: false } => $($story)* } };
}

macro_rules! foul_pairs {
    ($($story:ident)*) => { with_dpdk! { &Pairs { foul: true } => $($story)* } };
}

link_conformance! { mod memif; pairs }
link_conformance! { mod foul_memif; foul_pairs }
