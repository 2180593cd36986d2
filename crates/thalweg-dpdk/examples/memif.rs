//! Throughput of frames over net_memif from one process to another, compared with DPDK's own `dpdk-testpmd`.
//!
//! `cargo run --release -p thalweg-dpdk --example memif [SECONDS [REPEATS]]`; testpmd is in Debian's package dpdk-dev.
//!
//! The sender has processor 0 and the receiver processor 1. Our sender sends a head of 42 bytes, which is copied, and a
//! piece from where it lies. testpmd sends buffers of its own (txonly) and inspects none (rxonly): first with a frame
//! in one buffer, and then in two, as ours is. They take turns.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_dpdk::{DpdkPort, Options};
use thalweg_frames::FrameIo;

/// Length of the Ethernet, IPv4 and UDP headers.
const HEAD: usize = 42;
const BURST: &str = "64";
const MTU: u16 = 9000;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["send", socket, length, head] => send(socket, length.parse()?, head.parse()?),
        ["receive", socket, seconds] => receive(socket, seconds.parse()?),
        ["testpmd", mode, socket, parts] => testpmd(mode, socket, parts).spawn()?.wait().map(drop)?,
        [] => compare(2, 5)?,
        [seconds] => compare(seconds.parse()?, 5)?,
        [seconds, repeats] => compare(seconds.parse()?, repeats.parse()?)?,
        _ => return Err("usage: memif [SECONDS [REPEATS]]".into()),
    }
    Ok(())
}

fn compare(seconds: u64, repeats: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "{:>22} {:>12} {:>8}   {:>12} {:>7}   {:>12} {:>7}",
        "", "frames/s", "Gbit/s", "testpmd", "", "in two", ""
    );
    for (length, head) in [(64, HEAD), (64, 64), (1500, HEAD), (9000, HEAD)] {
        let two = format!("{HEAD},{}", length - HEAD);
        let (mut ours, mut theirs, mut theirs_in_two) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repeats {
            ours.push(our_rate(length, head, seconds)?);
            theirs.push(their_rate(&length.to_string(), seconds)?);
            theirs_in_two.push(their_rate(&two, seconds)?);
        }
        let (ours, theirs, theirs_in_two) = (median(ours), median(theirs), median(theirs_in_two));
        let what = format!("{length} bytes, head {head}");
        let gigabits = ours * length as f64 * 8.0 / 1e9;
        let (share, share_in_two) = (100.0 * ours / theirs, 100.0 * ours / theirs_in_two);
        println!(
            "{what:>22} {ours:>12.0} {gigabits:>8.2}   {theirs:>12.0} {share:>6.1}%   {theirs_in_two:>12.0} {share_in_two:>6.1}%"
        );
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn our_rate(length: usize, head: usize, seconds: u64) -> Result<f64, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("memif").display().to_string();
    let us = std::env::current_exe()?;
    let receiver = Command::new(&us).args(["receive", &socket, &seconds.to_string()]).stdout(Stdio::piped()).spawn()?;
    let mut sender = Command::new(&us).args(["send", &socket, &length.to_string(), &head.to_string()]).spawn()?;
    let said = receiver.wait_with_output()?;
    stop(&mut sender)?;
    Ok(String::from_utf8(said.stdout)?.trim().parse()?)
}

fn their_rate(parts: &str, seconds: u64) -> Result<f64, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("memif").display().to_string();
    let mut receiver = testpmd("rxonly", &socket, parts).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    // The server has to be started before its client.
    std::thread::sleep(Duration::from_secs(2));
    let mut sender = testpmd("txonly", &socket, parts).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let said = BufReader::new(receiver.stdout.take().expect("piped")).lines();
    let mut rates = Vec::new();
    for line in said {
        let rate =
            line?.split_once("Rx-pps:").and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
        rates.extend(rate.filter(|rate| *rate > 0.0));
        // The first second is not a whole one.
        if rates.len() as u64 > seconds + 1 {
            break;
        }
    }
    stop(&mut sender)?;
    stop(&mut receiver)?;
    let whole = &rates[2.min(rates.len())..];
    Ok(whole.iter().sum::<f64>() / whole.len() as f64)
}

fn stop(child: &mut Child) -> Result<(), Box<dyn Error>> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Runs testpmd. `parts`: the bytes of each buffer of a frame.
fn testpmd(mode: &str, socket: &str, parts: &str) -> Command {
    // One thread that works, and one that waits for commands.
    let (role, lcores) = if mode == "rxonly" { ("server", "0@0,1@1") } else { ("client", "0@1,1@0") };
    let device = format!("net_memif0,role={role},socket={socket},bsize=9024,rsize=10");
    let mut command = Command::new("dpdk-testpmd");
    command.args(["--no-huge", "-m", "1024", "--no-shconf", "--no-pci", "--no-telemetry", "--iova-mode=va"]);
    command.args(["--lcores", lcores, "--vdev", &device, "--", "--auto-start", "--forward-mode", mode]);
    command.args(["--burst", BURST, "--rxd=1024", "--txd=1024", "--stats-period=1", "--no-mlockall"]);
    command.args(["--mbuf-size=9216", "--total-num-mbufs=4096", "--txpkts", parts]);
    command.stdin(Stdio::null());
    command
}

/// Time that one process waits for the other.
const LONGEST: Duration = Duration::from_secs(20);

fn open(role: &str, socket: &str, processor: usize) -> DpdkPort {
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).expect("this processor");
    // The server has to be ready before its client starts, which does not retry.
    let (longest, link) = if role == "client" { (LONGEST, LONGEST / 100) } else { (Duration::ZERO, LONGEST) };
    let options = Options { mtu: Some(MTU), link, huge_pages: false, ..Options::default() };
    let begun = Instant::now();
    loop {
        match DpdkPort::open_device(&format!("net_memif0,role={role},socket={socket}"), &options) {
            Ok(port) if port.has_link() => return port,
            Ok(_) | Err(_) if begun.elapsed() < longest => std::thread::sleep(Duration::from_millis(100)),
            Ok(_) => panic!("nobody is at the other end"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn send(socket: &str, length: usize, head: usize) {
    let mut port = open("client", socket, 0);
    let mut span = Arena::create("rate", 64 << 20).expect("memory");
    span.fill(0x5a);
    let arena = Arena::import(span.arena().fd().try_clone_to_owned().expect("a descriptor")).expect("a mapping");
    port.register_memory(span.arena()).expect("memory that DPDK may read");
    let bytes = [0x55; 64];
    let (piece, mut at) = (length - head, 0);
    // As many pieces as a burst has frames, so that they stay in the cache, as the buffers of testpmd do.
    let slots = 64 * piece.max(64).next_multiple_of(64);
    loop {
        let view = arena.piece_of_range(at as u64, piece).expect("inside");
        while !port.queue_frame(&bytes[..head], (piece > 0).then_some(view)) {
            port.flush_burst().expect("a port that sends");
        }
        at = (at + piece.next_multiple_of(64)) % slots;
    }
}

fn receive(socket: &str, seconds: u64) {
    let mut port = open("server", socket, 1);
    let begun = Instant::now();
    let mut bytes = 0;
    let mut until = |port: &mut DpdkPort, end: Duration| {
        while begun.elapsed() < end {
            port.receive_frames(&mut |frame| bytes += frame.len()).expect("a port that receives");
        }
        (port.port_counters().received, begun.elapsed())
    };
    // The sender is there.
    while until(&mut port, begun.elapsed() + Duration::from_millis(1)).0 == 0 && begun.elapsed() < LONGEST {}
    let warm = begun.elapsed() + Duration::from_millis(500);
    let (first, start) = until(&mut port, warm);
    let (last, end) = until(&mut port, warm + Duration::from_secs(seconds));
    println!("{}", (last - first) as f64 / (end - start).as_secs_f64());
}
