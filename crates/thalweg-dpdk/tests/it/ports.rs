//! Frames between ports of virtual devices. DPDK is started once in a process, so each test has a process of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::tempdir;
use thalweg_arena::{Arena, Piece, Span};
use thalweg_dpdk::{DpdkPort, Options, available_version};
use thalweg_frames::FrameIo;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// Variable with the name of the test that a process runs.
const ROLE: &str = "THALWEG_DPDK_ROLE";
/// Variable with the path on which the other process of a test listens.
const SOCKET: &str = "THALWEG_DPDK_SOCKET";
/// Time that a test waits for expected frames. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lengths of frames, around the lengths of buffers.
const LENGTHS: [usize; 12] = [64, 65, 128, 1500, 1514, 2047, 2048, 2049, 4096, 8999, 9000, 9014];
/// Length of an Ethernet header, with ethertype 0x88b5 (IEEE 802, local experimental), and of a number.
const HEAD: usize = 14 + 4;

fn options() -> Options {
    // Huge pages are left to the tests that are about them.
    Options { mtu: Some(9000), link: Duration::ZERO, huge_pages: false, ..Options::default() }
}

fn open(device: &str) -> DpdkPort {
    DpdkPort::open_device(device, &options()).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a test in a process of its own, with the command `before` as a prefix.
fn alone(test: &str, before: &[&str], body: impl FnOnce()) {
    if let Err(reason) = available_version() {
        skipped(reason);
    } else if std::env::var_os(ROLE).is_some_and(|role| role == test) {
        body();
    } else {
        finished(test, &process(test, before).spawn().unwrap().wait_with_output().unwrap());
    }
}

fn process(test: &str, before: &[&str]) -> Command {
    let us = std::env::current_exe().unwrap();
    let words: Vec<_> = before.iter().map(Into::into).chain([us.into_os_string()]).collect();
    let mut command = Command::new(&words[0]);
    let test_there = format!("ports::{test}");
    command.args(&words[1..]).args(["--exact", &test_there, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, test).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Checks that a process has succeeded, and that DPDK has printed nothing.
fn finished(test: &str, output: &Output) {
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test}: {}\n{said}\n{complained}", output.status);
    assert!(said.contains("1 passed"), "there is no {test}\n{said}");
    assert_eq!(complained, "", "{test}");
    assert!(!said.contains("EAL"), "{said}");
}

/// Runs in a network namespace of its own, which is gone with the last process in it. Without a user namespace: in one,
/// no process may lock as much memory as rings of AF_PACKET have.
const NAMESPACE: [&str; 2] = ["unshare", "--net"];

fn alone_in_a_namespace(test: &str, body: impl FnOnce()) {
    let works = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let probe = "ip link add probe0 type veth peer name probe1 && test -w /dev/net/tun";
    if !works(Command::new(NAMESPACE[0]).args(&NAMESPACE[1..]).args(["sh", "-c", probe])) {
        return skipped("a network namespace with a veth pair and /dev/net/tun: that needs root");
    }
    alone(test, &NAMESPACE, body);
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An arena with bytes that are the same in every process, and the view of it.
struct Bytes {
    span: Span,
    imported: Arc<Arena>,
    lengths: &'static [usize],
}

impl Bytes {
    fn new() -> Self {
        let mut span = Arena::create("frames", 1 << 20).unwrap();
        let mut state = 1_u64;
        for word in span.as_chunks_mut::<8>().0 {
            *word = random(&mut state).to_ne_bytes();
        }
        let imported = Arena::import(span.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        Self { span, imported, lengths: &LENGTHS }
    }

    fn length(&self, number: usize) -> usize {
        self.lengths[number % self.lengths.len()]
    }

    fn arena(&self) -> &Arc<Arena> {
        self.span.arena()
    }

    /// Returns the total length of the first pieces that fit after their heads: a driver that copies frames gets these
    /// in one part.
    fn short(&self, count: usize) -> u64 {
        (0..count).map(|number| self.length(number)).filter(|length| *length <= 256).map(|it| (it - HEAD) as u64).sum()
    }

    /// Returns the offset of the piece of a frame: anywhere in the arena.
    fn place(number: usize) -> usize {
        number * 4099 % ((1 << 20) - 9014)
    }

    fn piece(&self, number: usize) -> Piece<'_> {
        self.imported.piece_of_range(Self::place(number) as u64, self.length(number) - HEAD).unwrap()
    }

    /// Sends frames as fast as they are taken, and calls `between` after each part of them.
    fn send(&self, port: &mut DpdkPort, numbers: std::ops::Range<usize>, mut between: impl FnMut(&mut DpdkPort)) {
        let begun = Instant::now();
        for number in numbers {
            while !port.queue_frame(&head(number), Some(self.piece(number))) {
                port.flush_burst().unwrap();
                between(port);
                assert!(begun.elapsed() < PATIENCE, "frame {number} is not taken");
            }
        }
        while !port.flush_burst().unwrap() {
            between(port);
            assert!(begun.elapsed() < PATIENCE, "the last frames do not go");
        }
        between(port);
    }

    /// Checks a frame, if it belongs to this test, and returns its number.
    fn check(&self, bytes: &[u8]) -> Option<usize> {
        if bytes.len() < HEAD || bytes[12..14] != [0x88, 0xb5] {
            return None;
        }
        let number = u32::from_be_bytes(bytes[14..18].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), self.length(number), "frame {number}");
        assert_eq!(bytes[..HEAD], head(number));
        let place = Self::place(number);
        assert!(bytes[HEAD..] == self.span[place..][..bytes.len() - HEAD], "frame {number}");
        Some(number)
    }

    /// Receives waiting frames, and appends their numbers.
    fn receive(&self, port: &mut DpdkPort, numbers: &mut Vec<usize>) {
        while port.receive_frames(&mut |bytes| numbers.extend(self.check(bytes))).unwrap() {}
    }

    /// Receives until there are `count` frames.
    fn receive_all(&self, port: &mut DpdkPort, numbers: &mut Vec<usize>, count: usize) {
        let begun = Instant::now();
        while numbers.len() < count {
            self.receive(port, numbers);
            assert!(begun.elapsed() < PATIENCE, "{} of {count} frames came", numbers.len());
        }
    }
}

fn head(number: usize) -> [u8; HEAD] {
    let mut head = [0xff; HEAD];
    head[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    head[14..].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
    head
}

/// Random numbers by xorshift64 (Marsaglia, Xorshift RNGs, 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn all(count: usize) -> Vec<usize> {
    (0..count).collect()
}

/// Sends from one port to the other, receiving in between, until all frames have come.
fn across(bytes: &Bytes, from: &mut DpdkPort, to: &mut DpdkPort, count: usize) {
    from.register_memory(bytes.arena()).unwrap();
    let (mut numbers, before) = (Vec::new(), from.port_counters());
    // No more than the shortest queue on the way has room for.
    for start in (0..count).step_by(256) {
        let end = (start + 256).min(count);
        bytes.send(from, start..end, |_| bytes.receive(to, &mut numbers));
        bytes.receive_all(to, &mut numbers, end);
    }
    assert_eq!(numbers, all(count));
    let after = from.port_counters();
    assert_eq!(after.sent - before.sent, count as u64);
    if from.gathers_pieces() {
        assert_eq!(after.copied - before.copied, bytes.short(count));
    }
}

#[test]
fn a_ring_gives_back_what_the_arena_held() {
    alone("a_ring_gives_back_what_the_arena_held", &[], || {
        let bytes = Bytes::new();
        let mut port = open("net_ring0");
        port.register_memory(bytes.arena()).unwrap();
        port.register_memory(&bytes.imported).unwrap();
        assert_eq!(bytes.arena().registration_names(), ["DPDK"], "it is one memory, through whichever mapping");
        assert_eq!(port.max_frame_bytes(), 9014);
        let mut numbers = Vec::new();
        bytes.send(&mut port, 0..3000, |port| bytes.receive(port, &mut numbers));
        bytes.receive_all(&mut port, &mut numbers, 3000);
        assert_eq!(numbers, all(3000));
        let counters = port.port_counters();
        assert_eq!((counters.sent, counters.received, counters.copied), (3000, 3000, 0));
        assert_eq!(port.joined_frames(), 3000, "the ring hands over head and piece as they were given");
        drop(port);
        assert!(bytes.arena().registration_names().is_empty());
    });
}

#[test]
fn frames_without_a_piece_and_long_heads_go_too() {
    alone("frames_without_a_piece_and_long_heads_go_too", &[], || {
        let mut port = open("net_ring0");
        let long: Vec<u8> = (0..9014).map(|at| at as u8).collect();
        for length in [14, 60, 256, 257, 1514, 9014] {
            assert!(port.queue_frame(&long[..length], None));
            assert!(port.flush_burst().unwrap());
            let mut came = Vec::new();
            port.receive_frames(&mut |bytes| came.push(bytes.to_vec())).unwrap();
            assert_eq!(came, [&long[..length]]);
        }
        assert_eq!(port.joined_frames(), 0);
        std::panic::set_hook(Box::new(|_| {}));
        let too_long = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| port.queue_frame(&[0; 9015], None)));
        assert!(too_long.is_err());
    });
}

#[test]
fn a_full_port_takes_no_more_until_it_is_flushed() {
    alone("a_full_port_takes_no_more_until_it_is_flushed", &[], || {
        let bytes = Bytes::new();
        let mut port = open("net_ring0");
        port.register_memory(bytes.arena()).unwrap();
        let mut taken = 0;
        while port.queue_frame(&head(taken), Some(bytes.piece(taken))) {
            taken += 1;
        }
        while port.flush_burst().unwrap() {
            while port.queue_frame(&head(taken), Some(bytes.piece(taken))) {
                taken += 1;
            }
        }
        let sent = port.port_counters().sent;
        assert!(sent < taken as u64, "{taken} taken, {sent} sent: the ring is full");
        // Frames that were not sent go when there is room, in order.
        let mut numbers = Vec::new();
        bytes.receive(&mut port, &mut numbers);
        assert!(port.flush_burst().unwrap());
        bytes.receive_all(&mut port, &mut numbers, taken);
        assert_eq!(numbers, all(taken));
    });
}

#[test]
fn two_ports_of_one_process_speak_over_shared_memory() {
    alone("two_ports_of_one_process_speak_over_shared_memory", &[], || {
        let bytes = Bytes::new();
        let directory = tempdir().unwrap();
        let socket = directory.path().join("memif");
        let mut server = open(&format!("net_memif0,role=server,socket={}", socket.display()));
        let mut client = open(&format!("net_memif1,role=client,socket={}", socket.display()));
        assert!(server.wait_for_link(PATIENCE) && client.wait_for_link(PATIENCE));
        assert_ne!(server.mac_address(), client.mac_address());
        across(&bytes, &mut server, &mut client, 2000);
        across(&bytes, &mut client, &mut server, 2000);
        assert_eq!(bytes.arena().registration_names(), ["DPDK", "DPDK"]);
        assert_eq!((server.joined_frames(), client.joined_frames()), (0, 0));
        drop((server, client));
        assert!(bytes.arena().registration_names().is_empty());
        assert!(!socket.exists());
    });
}

#[test]
fn two_processes_speak_over_shared_memory() {
    alone("two_processes_speak_over_shared_memory", &[], || {
        let bytes = Bytes::new();
        let directory = tempdir().unwrap();
        let socket = directory.path().join("memif");
        let mut port = open(&format!("net_memif0,role=server,socket={}", socket.display()));
        let peer = process("the_other_process", &[]).env(SOCKET, &socket).spawn().unwrap();
        assert!(port.wait_for_link(PATIENCE));
        port.register_memory(bytes.arena()).unwrap();
        let mut numbers = Vec::new();
        bytes.send(&mut port, 0..5000, |port| bytes.receive(port, &mut numbers));
        bytes.receive_all(&mut port, &mut numbers, 5000);
        assert_eq!(numbers, all(5000));
        assert_eq!(port.port_counters().copied, bytes.short(5000));
        drop(port);
        finished("the other process", &peer.wait_with_output().unwrap());
    });
}

/// The peer of the test before: returns each frame that it receives.
#[test]
fn the_other_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let bytes = Bytes::new();
    let mut port = open(&format!("net_memif0,role=client,socket={}", Path::new(&socket).display()));
    assert!(port.wait_for_link(PATIENCE));
    port.register_memory(&bytes.imported).unwrap();
    let (mut numbers, mut returned, begun) = (Vec::new(), 0, Instant::now());
    while returned < 5000 {
        bytes.receive(&mut port, &mut numbers);
        while returned < numbers.len()
            && port.queue_frame(&head(numbers[returned]), Some(bytes.piece(numbers[returned])))
        {
            returned += 1;
        }
        port.flush_burst().unwrap();
        assert!(begun.elapsed() < PATIENCE, "{returned} of 5000 frames came");
    }
    while !port.flush_burst().unwrap() {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(numbers, all(5000));
    assert_eq!(port.port_counters().copied, bytes.short(5000));
    // The last frames are in memory of this process until the other one has received them.
    await_farewell(&port);
}

/// Waits until the peer has gone, and touches nothing: the port's driver removes the queues in another thread, without
/// checking whether they are in use.
fn await_farewell(port: &DpdkPort) {
    let begun = Instant::now();
    while port.has_link() {
        std::thread::sleep(Duration::from_millis(1));
        assert!(begun.elapsed() < PATIENCE);
    }
    std::thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_peer_that_is_killed_takes_nothing_with_it() {
    alone("a_peer_that_is_killed_takes_nothing_with_it", &[], || {
        let bytes = Bytes::new();
        let directory = tempdir().unwrap();
        let socket = directory.path().join("memif");
        let mut port = open(&format!("net_memif0,role=server,socket={}", socket.display()));
        port.register_memory(bytes.arena()).unwrap();
        for _ in 0..2 {
            let mut peer: Child = process("the_other_process", &[]).env(SOCKET, &socket).spawn().unwrap();
            assert!(port.wait_for_link(PATIENCE));
            // It has begun to send back.
            let (mut numbers, mut next, begun) = (Vec::new(), 0, Instant::now());
            while numbers.len() < 100 {
                while next < 2000 && port.queue_frame(&head(next), Some(bytes.piece(next))) {
                    next += 1;
                }
                port.flush_burst().unwrap();
                bytes.receive(&mut port, &mut numbers);
                assert!(begun.elapsed() < PATIENCE);
            }
            peer.kill().unwrap();
            peer.wait().unwrap();
            await_farewell(&port);
            while port.queue_frame(&head(0), Some(bytes.piece(0))) {}
            assert!(!port.flush_burst().unwrap(), "nobody is there to take it");
            // The next peer receives frames that waited, and then numbers that it does not expect: it is killed, too.
        }
        drop(port);
        assert!(bytes.arena().registration_names().is_empty());
    });
}

#[test]
fn a_port_is_closed_while_frames_are_under_way() {
    alone("a_port_is_closed_while_frames_are_under_way", &[], || {
        let bytes = Bytes::new();
        for _ in 0..3 {
            let mut port = open("net_ring0");
            port.register_memory(bytes.arena()).unwrap();
            // Some in the ring, some not yet sent, and a burst that was never finished with `done`.
            (0..40).for_each(|number| assert!(port.queue_frame(&head(number), Some(bytes.piece(number)))));
            port.flush_burst().unwrap();
            let panicked =
                std::panic::AssertUnwindSafe(|| port.receive_frames(&mut |_| std::panic::resume_unwind(Box::new(()))));
            assert!(std::panic::catch_unwind(panicked).is_err());
            (0..40).for_each(|number| assert!(port.queue_frame(&head(number), Some(bytes.piece(number)))));
            port.flush_burst().unwrap();
            (0..40).for_each(|number| assert!(port.queue_frame(&head(number), Some(bytes.piece(number)))));
            drop(port);
            assert!(bytes.arena().registration_names().is_empty());
        }
    });
}

#[test]
fn a_port_moves_from_thread_to_thread() {
    alone("a_port_moves_from_thread_to_thread", &[], || {
        let bytes = Arc::new(Bytes::new());
        let mut port = open("net_ring0");
        port.register_memory(bytes.arena()).unwrap();
        // More threads than DPDK can register at a time (128), one after the other.
        for _ in 0..150 {
            let bytes = Arc::clone(&bytes);
            port = std::thread::spawn(move || {
                let mut numbers = Vec::new();
                bytes.send(&mut port, 0..20, |port| bytes.receive(port, &mut numbers));
                bytes.receive_all(&mut port, &mut numbers, 20);
                port
            })
            .join()
            .unwrap();
        }
    });
}

#[test]
fn an_interface_of_the_kernels_carries_frames() {
    alone_in_a_namespace("an_interface_of_the_kernels_carries_frames", || {
        ip("link add here type veth peer name there");
        for interface in ["here", "there"] {
            ip(&format!("link set {interface} mtu 9000 up"));
        }
        let bytes = Bytes::new();
        let mut here = open("net_af_packet0,iface=here");
        let mut there = open("net_af_packet1,iface=there");
        across(&bytes, &mut here, &mut there, 1000);
        across(&bytes, &mut there, &mut here, 1000);
        drop(here);
        ip("link set here mtu 1500");
        let error = DpdkPort::open_device("net_af_packet0,iface=here", &options()).unwrap_err().to_string();
        assert_eq!(error, "here has an MTU of 1500, not 9000: ip link set here mtu 9000");
        let here = DpdkPort::open_device("net_af_packet0,iface=here", &Options { mtu: None, ..options() }).unwrap();
        assert_eq!(here.max_frame_bytes(), 1514);
    });
}

#[test]
fn an_interface_that_it_makes_carries_frames() {
    alone_in_a_namespace("an_interface_that_it_makes_carries_frames", || {
        let ordinary = Options { mtu: Some(1500), ..options() };
        let too_long = DpdkPort::open_device("net_tap0,iface=made", &options()).unwrap_err().to_string();
        assert!(too_long.contains("configuring it: Invalid argument"), "its driver knows no long frames: {too_long}");
        let bytes = Bytes { lengths: &LENGTHS[..5], ..Bytes::new() };
        let mut tap = DpdkPort::open_device("net_tap0,iface=made", &ordinary).unwrap();
        ip("link set made up");
        // The kernel's end of the same interface.
        let mut kernel = DpdkPort::open_device("net_af_packet0,iface=made", &ordinary).unwrap();
        across(&bytes, &mut tap, &mut kernel, 500);
        across(&bytes, &mut kernel, &mut tap, 500);
        drop((tap, kernel));
        assert!(!Path::new("/sys/class/net/made").exists());
    });
}

#[test]
fn what_is_sent_to_nowhere_is_copied_and_counted() {
    alone("what_is_sent_to_nowhere_is_copied_and_counted", &[], || {
        let bytes = Bytes::new();
        let mut port = open("net_null0");
        port.register_memory(bytes.arena()).unwrap();
        bytes.send(&mut port, 0..1000, |_| {});
        let counters = port.port_counters();
        assert_eq!(counters.sent, 1000);
        let pieces: usize = (0..1000).map(|number| bytes.length(number) - HEAD).sum();
        // The driver does not report that it takes a frame in pieces.
        assert!(!port.gathers_pieces());
        assert_eq!(counters.copied, pieces as u64);
        let mut lengths = BTreeSet::new();
        assert!(port.receive_frames(&mut |bytes| _ = lengths.insert(bytes.len())).unwrap(), "more is always there");
        assert_eq!(lengths, [64].into());
    });
}

#[test]
fn a_file_keeps_what_is_sent() {
    alone("a_file_keeps_what_is_sent", &[], || {
        let bytes = Bytes::new();
        let directory = tempdir().unwrap();
        let (file, none) = (directory.path().join("frames.pcap"), directory.path().join("none.pcap"));
        fs::write(&none, pcap(&[])).unwrap();
        let (file, none) = (file.display(), none.display());
        let mut writer = open(&format!("net_pcap0,rx_pcap={none},tx_pcap={file}"));
        writer.register_memory(bytes.arena()).unwrap();
        bytes.send(&mut writer, 0..1000, |_| {});
        drop(writer);
        let mut reader = open(&format!("net_pcap0,rx_pcap={file},tx_pcap={none}"));
        let mut numbers = Vec::new();
        bytes.receive_all(&mut reader, &mut numbers, 1000);
        assert_eq!(numbers, all(1000));
    });
}

#[test]
fn frames_of_any_length_and_content_are_handed_over_as_they_are() {
    alone("frames_of_any_length_and_content_are_handed_over_as_they_are", &[], || {
        let directory = tempdir().unwrap();
        let (file, none) = (directory.path().join("frames.pcap"), directory.path().join("none.pcap"));
        fs::write(&none, pcap(&[])).unwrap();
        let mut state = 7;
        for round in 0..20 {
            let mut frames: Vec<Vec<u8>> = Vec::new();
            for _ in 0..100 {
                // As long as a capture's frames can be, short ones more often.
                let length =
                    random(&mut state) as usize % [20, 100, 2000, 9100, 65_536][random(&mut state) as usize % 5];
                frames.push((0..length).map(|_| random(&mut state) as u8).collect());
            }
            fs::write(&file, pcap(&frames)).unwrap();
            let (file, none) = (file.display(), none.display());
            let mut port = open(&format!("net_pcap0,rx_pcap={file},tx_pcap={none}"));
            let mut came = Vec::new();
            while port.receive_frames(&mut |bytes| came.push(bytes.to_vec())).unwrap() {}
            assert!(came == frames, "round {round}: {} of {} frames", came.len(), frames.len());
            assert!(port.joined_frames() > 0, "round {round}");
        }
    });
}

/// A capture file (draft-ietf-opsawg-pcap): microseconds, Ethernet.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_ne_bytes());
    }
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        for word in [0, 0, length, length] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    file
}

#[test]
fn what_cannot_be_opened_is_told_and_leaves_the_process_as_it_was() {
    alone("what_cannot_be_opened_is_told_and_leaves_the_process_as_it_was", &[], || {
        let state = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let kept = |line: &&str| ["Sig", "Cpus_allowed:", "Name:"].iter().any(|name| line.starts_with(name));
            let kept: Vec<String> = status.lines().filter(kept).map(Into::into).collect();
            kept
        };
        let before = state();
        let error = |device: &str| DpdkPort::open_device(device, &options()).unwrap_err().to_string();
        let missing = error("net_nothing0");
        assert!(missing.starts_with("opening net_nothing0: finding its driver: "), "{missing}");
        let absent = error("0000:00:1f.7");
        assert!(absent.starts_with("opening 0000:00:1f.7: finding its driver: "), "{absent}");
        let wrong = error("net_memif0,role=neither");
        assert!(wrong.starts_with("opening net_memif0: "), "{wrong}");
        let first = open("net_ring0");
        let again = error("net_ring0");
        assert!(again.starts_with("opening net_ring0: finding it: Device or resource busy"), "{again}");
        drop(first);
        let _second = open("net_ring0");
        assert_eq!(state(), before);
    });
}

#[test]
fn a_process_that_is_killed_leaves_no_file() {
    alone("a_process_that_is_killed_leaves_no_file", &[], || {
        let prefix = |child: &Child| format!("thalweg-{}", child.id());
        let directory = tempdir().unwrap();
        let sign = directory.path().join("open");
        let mut child = process("a_port_in_huge_pages", &[]).env(SOCKET, &sign).spawn().unwrap();
        wait_until("the port", || sign.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        for directory in ["/var/run/dpdk", "/run/dpdk", "/dev/hugepages", "/dev/shm", "/tmp"] {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                assert!(!name.contains(&prefix(&child)), "{directory}/{name}");
            }
        }
    });
}

/// The process that the test before kills.
#[test]
fn a_port_in_huge_pages() {
    let Some(sign) = std::env::var_os(SOCKET) else { return };
    let bytes = Bytes::new();
    let mut port = DpdkPort::open_device("net_ring0", &Options { huge_pages: true, ..options() }).unwrap();
    port.register_memory(bytes.arena()).unwrap();
    fs::write(sign, "").unwrap();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let mut numbers = Vec::new();
        bytes.send(&mut port, 0..100, |port| bytes.receive(port, &mut numbers));
    }
}
