//! Ports past the kernel's network stack on virtual Ethernet cards, whose other ends are ordinary sockets of the
//! kernel, or such ports too.
//!
//! Each test makes two private network namespaces, with a pair of cards between them.

use rustix::event::epoll;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use rustix::time::Timespec;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Piece, Span};
use thalweg_frames::{AfXdpPort, Arrival, FrameIo, FramesError, Options};
use thalweg_testing::skip::skipped;

/// Addresses from the network reserved for measurements (RFC 2544, section C.2.2).
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PORT: u16 = 4000;
/// Maximum time for anything here.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn ten_thousand_datagrams_arrive_from_and_at_an_ordinary_socket() {
    in_a_network("", |network| {
        for options in [Options::default(), Options { generic: true, ..Options::default() }] {
            let mut port = network.near(&options);
            let socket = network.at_far(|| UdpSocket::bind((FAR, PORT)).unwrap());
            assert_eq!(port.operation_mode().native, !options.generic);
            let (to, lengths) = (socket.local_addr().unwrap(), lengths(1472));
            let sent: Vec<_> = (0..).zip(&lengths).map(|(number, len)| datagram(number, *len)).collect();

            let mut out = OneByOne::new(&sent);
            out.go(|burst| send(&mut port, to, burst), || receive_socket(&socket));
            let counters = port.port_counters();
            assert_eq!((counters.foreign, counters.copied), (0, 0));
            assert!(counters.sent >= 10_000, "{counters:?}");

            let here = port.local_address();
            let mut back = OneByOne::new(&sent);
            back.go(
                |burst| burst.iter().for_each(|bytes| send_socket(&socket, here, bytes)),
                || receive(&mut port, to),
            );
            assert!(port.port_counters().received >= 10_000, "{:?}", port.port_counters());
        }
    });
}

#[test]
fn ten_thousand_datagrams_arrive_at_another_such_port() {
    in_a_network("", |network| {
        let mut near = network.near(&Options::default());
        let mut far = network.at_far(|| AfXdpPort::open_at_address((FAR, PORT).into()).unwrap());
        let (here, there) = (near.local_address(), far.local_address());
        let sent: Vec<_> = (0..).zip(lengths(1472)).map(|(number, len)| datagram(number, len)).collect();
        OneByOne::new(&sent).go(|burst| send(&mut near, there, burst), || receive(&mut far, here));
        OneByOne::new(&sent).go(|burst| send(&mut far, here, burst), || receive(&mut near, there));
        let (near, far) = (near.port_counters(), far.port_counters());
        assert_eq!((near.foreign, far.foreign, near.copied, far.copied), (0, 0, 0, 0));
    });
}

#[test]
fn jumbo_frames_arrive_and_pieces_are_sent_from_where_they_lie() {
    in_a_network("mtu 9000", |network| {
        let mut near = network.near(&Options::default());
        let mut far = network.at_far(|| AfXdpPort::open_at_address((FAR, PORT).into()).unwrap());
        if !near.operation_mode().several_parts {
            return skipped("frames in several parts take Linux 6.6");
        }
        let (here, there) = (near.local_address(), far.local_address());
        assert_eq!(near.max_datagram_bytes(there).unwrap(), 8972);
        let whole: Vec<_> = (0..).zip(lengths(8972)).take(2000).map(|(number, len)| datagram(number, len)).collect();
        OneByOne::new(&whole).go(|burst| send(&mut near, there, burst), || receive(&mut far, here));

        let (mut own, theirs) = arena(1 << 21);
        (0..own.len()).for_each(|at| own[at] = (at * 7 + at / 251) as u8);
        for registered in [false, true] {
            if registered {
                near.register_memory(own.arena()).unwrap();
                near.register_memory(&theirs).unwrap();
            }
            let before = near.port_counters().copied;
            // Bytes that are copied here, in addition to the kernel's own copy of each.
            let (mut bytes, mut here) = (0, 0);
            for (number, len) in (0_usize..200).map(|number| (number, 1 + number * 8900 / 200)) {
                let at = number * 9973 % (own.len() - len);
                let expected = [&(number as u64).to_ne_bytes(), &own[at..at + len]].concat();
                let piece = theirs.piece_of_range(at as u64, len).unwrap();
                let sent = len as u64 * exchange(&mut near, &mut far, &number.to_ne_bytes(), piece, &expected);
                bytes += sent;
                here += if registered && 42 + 8 + len > 4096 { 0 } else { sent };
            }
            assert!(here > 0 && (registered == (here < bytes)));
            assert_eq!(near.port_counters().copied - before, bytes + here);
        }
        assert_eq!(own.arena().registration_names(), ["AF_XDP"]);
        drop(near);
        assert!(own.arena().registration_names().is_empty());
    });
}

#[test]
fn what_is_not_for_the_port_goes_on_to_the_kernel() {
    in_a_network("", |network| {
        let mut port = network.near(&Options::default());
        // ARP and ICMP.
        network.at_far(|| ping(NEAR));
        // TCP.
        let listener = TcpListener::bind((NEAR, PORT)).unwrap();
        let mut stream = network.at_far(|| TcpStream::connect((NEAR, PORT)).unwrap());
        stream.write_all(b"by TCP").unwrap();
        drop(stream);
        let mut said = String::new();
        listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
        assert_eq!(said, "by TCP");
        // Another port.
        let other = UdpSocket::bind((NEAR, PORT + 1)).unwrap();
        other.set_read_timeout(Some(SOON)).unwrap();
        let socket = network.at_far(|| UdpSocket::bind((FAR, 0)).unwrap());
        send_socket(&socket, (NEAR, PORT + 1).into(), b"for another port");
        assert_eq!(other.recv(&mut [0; 100]).unwrap(), 16);
        assert_eq!(receive_any(&mut port), []);
        assert_eq!(port.port_counters().received, 0);
    });
}

#[test]
fn hostile_frames_are_counted_and_do_no_harm() {
    in_a_network("", |network| {
        let mut port = network.near(&Options::default());
        let socket = network.at_far(|| UdpSocket::bind((FAR, PORT)).unwrap());
        let (here, there) = (port.local_address(), socket.local_addr().unwrap());
        let raw = network.at_far(|| RawSocket::open("far"));
        // A good frame, as a pattern.
        let mac = |name: &str, enter: bool| {
            let read = || thalweg_mac(name);
            if enter { network.at_far(read) } else { read() }
        };
        let good = frame(mac("near", false), mac("far", true), there, here, b"hello");
        raw.send(&good);
        let got = until(|| Some(receive_any(&mut port)).filter(|got| !got.is_empty()));
        assert_eq!(got, [(there, b"hello".to_vec())]);
        // Each has an error that the program in the kernel does not check, but this port does.
        let changed: [(usize, u8); 5] = [(0, 0x02), (16, 0xff), (24, 0xff), (38, 0xff), (40, 0x55)];
        for (at, with) in changed {
            let mut bad = good.clone();
            bad[at] ^= with;
            raw.send(&bad);
        }
        for len in [14, 20, 34, 42, 43, 46] {
            raw.send(&good[..len]);
        }
        let mut noise = 1_u64;
        for _ in 0..2000 {
            let mut bad = good.clone();
            for _ in 0..3 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bad[(noise >> 33) as usize % good.len()] ^= (noise >> 56) as u8;
            }
            raw.send(&bad);
            receive_any(&mut port);
        }
        raw.send(&good);
        until(|| receive_any(&mut port).contains(&(there, b"hello".to_vec())).then_some(()));
        assert!(port.port_counters().foreign >= 5, "{:?}", port.port_counters());
        OneByOne::new(&[datagram(1, 1000)]).go(|burst| send(&mut port, there, burst), || receive_socket(&socket));
    });
}

#[test]
fn nobody_else_gets_the_interface_and_a_killed_process_leaves_nothing() {
    in_a_network("", |network| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "af_xdp::a_process_to_be_killed", "--nocapture"])
            .env(ASKED, "near")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains(READY))), "it did not open its port");
        assert!(has_program("near"));
        let refused = AfXdpPort::open_on_interface("near", PORT + 1, &Options::default()).unwrap_err();
        assert!(refused.to_string().contains("already has an XDP program (ip link show dev near)"), "{refused}");
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        until(|| (!has_program("near")).then_some(()));
        drop(network.near(&Options::default()));
        until(|| (!has_program("near")).then_some(()));
    });
}

const ASKED: &str = "THALWEG_AF_XDP_ASKED";
const READY: &str = "the port is open";

#[test]
fn a_process_to_be_killed() {
    if let Ok(interface) = std::env::var(ASKED) {
        let _port = AfXdpPort::open_on_interface(&interface, PORT, &Options::default()).unwrap();
        println!("{READY}");
        thread::sleep(SOON);
    }
}

#[test]
fn several_queues_are_one_port() {
    in_a_network("numrxqueues 2 numtxqueues 2", |network| {
        let channels = Command::new("ethtool").args(["-L", "near", "rx", "2", "tx", "2"]).output();
        if !channels.is_ok_and(|said| said.status.success()) {
            skipped("ethtool is not there to give a card two queues: only one was tested");
        }
        let mut port = network.near(&Options::default());
        let socket = network.at_far(|| UdpSocket::bind((FAR, PORT)).unwrap());
        let (here, there) = (port.local_address(), socket.local_addr().unwrap());
        let sent: Vec<_> = (0..2000).map(|number| datagram(number, 100)).collect();
        OneByOne::new(&sent).go(|burst| send(&mut port, there, burst), || receive_socket(&socket));
        OneByOne::new(&sent).go(
            |burst| burst.iter().for_each(|bytes| send_socket(&socket, here, bytes)),
            || {
                if port.prepare_wait() {
                    wait(&port, Duration::from_secs(1));
                }
                receive(&mut port, there)
            },
        );
    });
}

#[test]
fn who_waits_is_woken_and_a_port_is_found_by_where_it_leads() {
    in_a_network("", |network| {
        let mut port = until(|| AfXdpPort::open_towards((FAR, PORT).into()).ok());
        let socket = network.at_far(|| UdpSocket::bind((FAR, PORT)).unwrap());
        let (here, there) = (port.local_address(), socket.local_addr().unwrap());
        assert_eq!(here.ip(), NEAR);
        assert_ne!(here.port(), 0);
        assert!(port.prepare_wait());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                send_socket(&socket, here, b"wake up");
            });
            wait(&port, SOON);
        });
        assert!(!port.prepare_wait(), "something has come");
        assert_eq!(receive_any(&mut port), [(there, b"wake up".to_vec())]);
        // A waiter from before the port had more memory is woken, too.
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&waits, port.descriptor().unwrap(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        let (own, _) = arena(1 << 20);
        port.register_memory(own.arena()).unwrap();
        assert!(port.prepare_wait());
        send_socket(&socket, here, b"again");
        let mut told = Vec::with_capacity(1);
        epoll::wait(&waits, rustix::buffer::spare_capacity(&mut told), Some(&Timespec::try_from(SOON).unwrap()))
            .unwrap();
        assert_eq!(told.len(), 1);
        assert_eq!(receive_any(&mut port), [(there, b"again".to_vec())]);
        assert!(AfXdpPort::open_at_address((Ipv4Addr::new(192, 0, 2, 1), 1).into()).is_err());
        let busy = Options { busy_poll: Some(Duration::from_micros(20)), ..Options::default() };
        drop(port);
        let mut port = network.near(&busy);
        assert!(!port.is_cheap_to_poll());
        send_socket(&socket, port.local_address(), b"busy");
        assert_eq!(until(|| Some(receive_any(&mut port)).filter(|got| !got.is_empty())).len(), 1);
    });
}

#[test]
fn that_nobody_is_there_and_that_the_way_is_narrow_is_told() {
    in_a_network("", |network| {
        let mut port = network.near(&Options::default());
        let there = SocketAddr::from((FAR, PORT));
        let mut refused = false;
        until(|| {
            send(&mut port, there, &[b"anybody?"]);
            let mut told =
                |from, arrival: Arrival<'_>| refused |= from == there && matches!(arrival, Arrival::Unreachable);
            port.receive_datagrams(&mut told).unwrap();
            refused.then_some(())
        });
        assert_eq!(port.max_datagram_bytes(there).unwrap(), 1472);
        ip("route replace 198.18.0.2/32 dev near mtu 1000".split(' ')).unwrap();
        assert_eq!(port.max_datagram_bytes(there).unwrap(), 972);
        assert!(port.max_datagram_bytes((Ipv4Addr::new(192, 0, 2, 1), 1).into()).is_err(), "no route");
    });
}

#[test]
fn who_may_not_is_told_what_it_takes() {
    in_a_network("", |_| {
        // The capabilities of this thread, which ends with the test.
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        let refused = open("near", PORT, &Options::default()).unwrap_err().to_string();
        assert!(refused.contains("CAP_BPF") && refused.contains("setcap cap_net_raw"), "{refused}");
        let unknown = AfXdpPort::open_on_interface("no-such", PORT, &Options::default()).unwrap_err().to_string();
        assert!(unknown.starts_with("looking at interface no-such: "), "{unknown}");
    });
}

/// Two ends of a cable.
struct Network {
    far: File,
}

impl Network {
    /// The port under test.
    fn near(&self, options: &Options) -> AfXdpPort {
        open("near", PORT, options).unwrap()
    }

    /// Calls `what` at the other end.
    fn at_far<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                move_into_link_name_space(self.far.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                what()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Opens a port. A program that another test starts inherits that test's open files for a moment: so a port that was
/// closed just before may still be in use.
fn open(interface: &str, port: u16, options: &Options) -> Result<AfXdpPort, FramesError> {
    until(|| match AfXdpPort::open_on_interface(interface, port, options) {
        Err(FramesError { error, .. }) if error.kind() == io::ErrorKind::AddrInUse => None,
        Err(FramesError { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy => None,
        opened => Some(opened),
    })
}

/// Runs a test at the near end of a pair of cards, or reports why it cannot be run.
fn in_a_network(cards: &str, test: impl FnOnce(&Network) + Send) {
    let made = thread::scope(|scope| {
        // A thread cannot return from a namespace: hence a thread of its own.
        let inside = scope.spawn(|| -> Result<(), String> {
            let far = own_network()?;
            own_network()?;
            let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_raw_fd());
            let more = cards.split_whitespace();
            ip(["link", "add", "near"]
                .into_iter()
                .chain(more.clone())
                .chain(["type", "veth", "peer", "name", "far"])
                .chain(more)
                .chain(["netns", &there]))?;
            let network = Network { far };
            let up = |name: &str, address: Ipv4Addr| {
                ip(["address", "add", &format!("{address}/30"), "dev", name].into_iter())?;
                ip(["link", "set", "lo", "up"].into_iter())?;
                ip(["link", "set", name, "up"].into_iter())
            };
            up("near", NEAR)?;
            network.at_far(|| up("far", FAR))?;
            match open("near", PORT, &Options::default()) {
                Ok(_) => {}
                Err(error) if privileged() && Path::new("/proc/net/xdp").exists() => panic!("{error}"),
                Err(error) => return Err(error.to_string()),
            }
            test(&network);
            Ok(())
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Err(reason) = made {
        skipped(reason);
    }
}

fn privileged() -> bool {
    rustix::process::geteuid().is_root()
}

fn own_network() -> Result<File, String> {
    // SAFETY: unshare(2) with CLONE_NEWNET alone leaves this thread's files, memory and file system as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| format!("a network of its own: {error}"))?;
    File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
}

fn ip<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let said = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if said.status.success() { Ok(()) } else { Err(format!("ip: {}", String::from_utf8_lossy(&said.stderr))) }
}

fn has_program(interface: &str) -> bool {
    let said = Command::new("ip").args(["link", "show", "dev", interface]).output().unwrap();
    String::from_utf8_lossy(&said.stdout).contains("prog/xdp")
}

fn thalweg_mac(interface: &str) -> [u8; 6] {
    let said = Command::new("ip").args(["-o", "link", "show", "dev", interface]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let mac = said.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Sends an echo request, and waits for the reply: RFC 792.
fn ping(whom: Ipv4Addr) {
    use socket2::{Domain, Protocol, Socket, Type};
    let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    // Type, code, checksum, identifier, sequence.
    let echo = [8, 0, 0xf7, 0xfe, 0, 0, 0, 1];
    socket.send_to(&echo, &SocketAddr::from((whom, 0)).into()).unwrap();
    let mut answer = [0; 100];
    let len = socket.read(&mut answer).unwrap();
    // The message follows an IP header.
    assert_eq!(answer[20..len], [0, 0, 0xff, 0xfe, 0, 0, 0, 1]);
}

/// Lengths of frames of 64 to 1500 bytes and the like, without their headers.
fn lengths(longest: usize) -> Vec<usize> {
    (0..10_000).map(|number| 22 + number * 7919 % (longest - 21)).collect()
}

/// A datagram that contains its number, and is checked byte for byte.
fn datagram(number: u64, len: usize) -> Vec<u8> {
    let rest = (8..len).map(|at| (at as u64 * 31 + number) as u8);
    number.to_ne_bytes().into_iter().chain(rest).collect()
}

/// Sends datagrams until each has arrived unchanged: they may be lost, and are sent again then.
struct OneByOne<'a> {
    all: &'a [Vec<u8>],
    missing: HashSet<&'a [u8]>,
}

impl<'a> OneByOne<'a> {
    fn new(all: &'a [Vec<u8>]) -> Self {
        Self { all, missing: all.iter().map(Vec::as_slice).collect() }
    }

    fn go(&mut self, mut send: impl FnMut(&[&[u8]]), mut receive: impl FnMut() -> Vec<Vec<u8>>) {
        let began = Instant::now();
        let (mut sent, mut seen) = (0, 0);
        while !self.missing.is_empty() {
            assert!(began.elapsed() < SOON, "{} are missing", self.missing.len());
            for burst in self.all.chunks(64) {
                let burst: Vec<&[u8]> =
                    burst.iter().map(Vec::as_slice).filter(|bytes| self.missing.contains(bytes)).collect();
                send(&burst);
                sent += burst.len();
                let patience = Instant::now();
                while burst.iter().any(|bytes| self.missing.contains(bytes))
                    && patience.elapsed() < Duration::from_secs(1)
                {
                    for bytes in receive() {
                        seen += 1;
                        let twice = || self.all.contains(&bytes);
                        assert!(self.missing.remove(bytes.as_slice()) || twice(), "{} bytes nobody sent", bytes.len());
                    }
                }
            }
        }
        assert!(sent <= 2 * self.all.len(), "{sent} sent, {seen} seen, of {}", self.all.len());
    }
}

fn send(port: &mut AfXdpPort, to: SocketAddr, burst: &[&[u8]]) {
    for bytes in burst {
        until(|| {
            let room = port.has_send_room();
            if !room {
                port.flush_burst().unwrap();
            }
            room.then_some(())
        });
        port.queue_datagram(to, bytes, None);
    }
    until(|| port.flush_burst().unwrap().then_some(()));
}

fn receive(port: &mut AfXdpPort, from: SocketAddr) -> Vec<Vec<u8>> {
    let got = receive_any(port);
    port.flush_burst().unwrap();
    got.into_iter()
        .map(|(who, bytes)| {
            assert_eq!(who, from);
            bytes
        })
        .collect()
}

fn receive_any(port: &mut AfXdpPort) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut got = Vec::new();
    port.receive_datagrams(&mut |from, arrival| match arrival {
        Arrival::Datagram(bytes) => got.push((from, bytes.to_vec())),
        other => panic!("{other:?}"),
    })
    .unwrap();
    got
}

/// Sends a datagram with a piece until it has arrived as `expected`. Returns the number of times it was sent.
fn exchange(near: &mut AfXdpPort, far: &mut AfXdpPort, head: &[u8], piece: Piece<'_>, expected: &[u8]) -> u64 {
    let there = far.local_address();
    for sent in 1..20 {
        near.queue_datagram(there, head, Some(piece));
        until(|| near.flush_burst().unwrap().then_some(()));
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            if let [(_, bytes), ..] = receive_any(far).as_slice() {
                assert!(bytes == expected, "{} bytes instead of {}", bytes.len(), expected.len());
                return sent;
            }
            near.flush_burst().unwrap();
        }
    }
    panic!("{} bytes do not arrive", expected.len());
}

fn send_socket(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
    assert_eq!(socket.send_to(bytes, to).unwrap(), bytes.len());
}

fn receive_socket(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_nonblocking(true).unwrap();
    let (mut got, mut room) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match socket.recv(&mut room) {
            Ok(len) => got.push(room[..len].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return got,
            Err(error) => panic!("{error}"),
        }
    }
}

fn wait(port: &AfXdpPort, at_most: Duration) {
    use rustix::event::{PollFd, PollFlags, poll};
    let fd = port.descriptor().unwrap();
    let limit = Timespec::try_from(at_most).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
}

/// Tries until there is a result.
fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = what() {
            return done;
        }
        assert!(began.elapsed() < SOON, "it does not happen");
        thread::yield_now();
    }
}

/// Returns a private arena, and the same memory in the form that views need.
fn arena(len: usize) -> (Span, Arc<Arena>) {
    let own = Arena::create("af_xdp", len).unwrap();
    let theirs = Arena::import(own.arena().fd().try_clone_to_owned().unwrap()).unwrap();
    (own, theirs)
}

/// A socket that sends frames unchanged: packet(7).
struct RawSocket(File, i32);

impl RawSocket {
    fn open(interface: &str) -> Self {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        let index = netdevice::name_to_index(&fd, interface).unwrap();
        Self(fd.into(), index as i32)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: integers, for which all zeros is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = self.1;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: bytes and a whole address of the lengths that are passed.
        let sent = unsafe {
            libc::sendto(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const address).cast(), len)
        };
        assert!(sent == frame.len() as isize, "{}", io::Error::last_os_error());
    }
}

/// Returns a datagram in a frame, without a UDP checksum.
fn frame(to_mac: [u8; 6], from_mac: [u8; 6], from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    let length = |headers: usize| ((headers + payload.len()) as u16).to_be_bytes();
    let mut ip =
        [&[0x45, 0][..], &length(28), &[0, 0, 0x40, 0, 64, 17, 0, 0], &from.ip().octets(), &to.ip().octets()].concat();
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [from.port().to_be_bytes(), to.port().to_be_bytes(), length(8), [0, 0]].concat();
    [&to_mac[..], &from_mac, &[0x08, 0x00], &ip, &udp, payload].concat()
}
