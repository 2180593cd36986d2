//! Measures the number of frames sent per second through AF_XDP, of 64 and of 1500 bytes (without their checksum).
//!
//! `cargo run --release -p thalweg-frames --example rate` sends through a pair of virtual cards in network namespaces
//! of its own (as root); `... --example rate INTERFACE ADDRESS:PORT` sends through an interface that is there.
//!
//! The destination's Ethernet address should belong to no host, as that of `dpdk-testpmd --forward-mode=txonly`, so
//! that the kernel at the other end drops the frames at once: otherwise its processing of the frames is measured, too.

use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_frames::{AfXdpPort, DatagramIo, Options};

/// Length of the Ethernet, IPv4 and UDP headers, in bytes.
const HEADERS_BYTES: usize = 42;
/// Length of the head before a piece, as the link above writes it, in bytes.
const HEAD: usize = 64;
/// Number of frames taken between two system calls, by default.
const BURST_FRAMES: usize = 256;
const TIME: Duration = Duration::from_secs(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (interface, to) = match arguments.as_slice() {
        [interface, to] => (interface.as_str(), to.parse().expect("ADDRESS:PORT")),
        [] => own_network(),
        _ => panic!("rate [INTERFACE ADDRESS:PORT]"),
    };
    let options = Options { queues: Some(vec![0]), ..Options::default() };
    let mut port = AfXdpPort::open_on_interface(interface, 0, &options).expect("an AF_XDP port");
    println!("{interface} to {to}: {}", port.operation_mode());

    let own = Arena::create("rate", 64 << 20).expect("memory");
    let fd = own.arena().fd().try_clone_to_owned().expect("a descriptor");
    let theirs = Arena::import(fd).expect("the same memory, to be read");
    for burst in [32, 256] {
        measure(&format!("64 bytes, {burst} in a burst"), &mut port, to, (64, burst), None);
        measure(&format!("1500 bytes, {burst} in a burst"), &mut port, to, (1500, burst), None);
    }
    measure("1500 bytes, with a piece", &mut port, to, (1500, BURST_FRAMES), Some(&theirs));
    port.register_memory(own.arena()).expect("the arena becomes memory for frames");
    measure("1500 bytes, a piece in known memory", &mut port, to, (1500, BURST_FRAMES), Some(&theirs));
}

fn measure(
    what: &str,
    port: &mut AfXdpPort,
    to: SocketAddr,
    (frame, burst): (usize, usize),
    pieces: Option<&Arc<Arena>>,
) {
    let payload = vec![0x5a; frame - HEADERS_BYTES];
    let piece = payload.len().saturating_sub(HEAD);
    let mut at = 0;
    let mut turn = |port: &mut AfXdpPort| {
        for _ in 0..burst {
            if !port.has_send_room() {
                break;
            }
            match pieces {
                None => port.queue_datagram(to, &payload, None),
                Some(arena) => {
                    let view = arena.piece_of_range(at, piece);
                    at = (at + piece as u64) % (arena.size_bytes() as u64 - 4096);
                    port.queue_datagram(to, &payload[..HEAD], view)
                }
            }
        }
        port.flush_burst().expect("an interface that is up");
    };
    let warm = Instant::now();
    while warm.elapsed() < TIME / 10 {
        turn(port);
    }
    let (began, before, cpu) = (Instant::now(), port.port_counters(), cpu_time());
    while began.elapsed() < TIME {
        turn(port);
    }
    let (took, cpu) = (began.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
    let frames = (port.port_counters().sent - before.sent) as f64;
    let copied = (port.port_counters().copied - before.copied) as f64 / (frames * piece.max(1) as f64);
    let (millions, gigabits) = (frames / took / 1e6, frames * frame as f64 * 8.0 / took / 1e9);
    // If other programs use the processor, too, this is more meaningful.
    let each = cpu * 1e9 / frames;
    println!(
        "  {what:<36} {millions:6.3} million frames/s, {gigabits:6.2} Gbit/s, {each:5.0} ns of a processor each, \
         {copied:.1} copies of the piece"
    );
}

/// Returns the processor time that this process has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Creates two cards with a cable between them, in a private network.
fn own_network() -> (&'static str, SocketAddr) {
    // SAFETY: unshare(2) with CLONE_NEWNET alone leaves this process's files, memory and file system as they are.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("a network namespace (as root)");
    for command in [
        "link add near type veth peer name far",
        "address add 198.18.0.1/30 dev near",
        "link set near up",
        "link set far up",
        "neighbour add 198.18.0.2 lladdr 02:00:00:00:00:00 dev near nud permanent",
    ] {
        let done = Command::new("ip").args(command.split(' ')).status().expect("ip (iproute2)");
        assert!(done.success(), "ip {command}");
    }
    ("near", SocketAddr::from(([198, 18, 0, 2], 9)))
}
