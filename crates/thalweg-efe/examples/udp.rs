//! EFE over UDP between two threads: `cargo run --release -p thalweg-efe --example udp [loopback|veth] [poll|wait] [FRAME_BYTES]`.
//!
//! Prints round trips of packets of 1 byte, and the goodput of packets of maximum length, which are copied out of memory
//! at the sender and into memory at the receiver. `veth`: each thread has a network namespace of its own (it takes root,
//! or user namespaces). `poll`: both threads ask their sockets without a pause, and so need a processor each; `wait`: they
//! sleep until a frame comes or a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_efe::{Class, ConnectionId, Event, Options, Packet, Port};
use thalweg_frames::{Arrival, DatagramIo, UdpPort};
use thalweg_sys::netns::Network;

const CLASS: Class = Class::Posted;
const UDP_PORT: u16 = thalweg_efe::UDP_PORT;
const ROUND_TRIPS: usize = 20_000;
const TRANSFER_TIME: Duration = Duration::from_secs(3);
const MEMORY_BYTES: usize = 8 << 20;

/// A range of memory that is copied into the frame when it is sent.
struct MemoryRange {
    memory: Arc<[u8]>,
    bytes: usize,
}

impl Packet for MemoryRange {
    fn packet_bytes(&self) -> usize {
        self.bytes
    }

    fn write_packet(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.memory[..into.len()]);
    }
}

/// A port of EFE over a port of datagrams.
struct Endpoint {
    io: UdpPort,
    port: Port<SocketAddr, MemoryRange>,
    frame: Vec<u8>,
    began: Instant,
    is_polling: bool,
    /// Memory that received packets are copied into.
    memory: Vec<u8>,
    received_packets: u64,
    received_bytes: u64,
    echoes: bool,
    to_echo: Vec<ConnectionId>,
    source: Arc<[u8]>,
}

impl Endpoint {
    fn open(at: SocketAddr, frame_bytes: usize, is_polling: bool, echoes: bool) -> Result<Self, Box<dyn Error>> {
        let mut io = UdpPort::bind(at)?;
        let max_credit_bytes = io.reserve_receive_bytes(4 << 20);
        let state = std::hash::RandomState::new();
        let mut drawn = 0u64;
        let random = move || {
            drawn += 1;
            std::hash::BuildHasher::hash_one(&state, drawn)
        };
        let port = Port::new(Options { max_frame_bytes: frame_bytes, max_credit_bytes, ..Options::default() }, random);
        Ok(Self {
            frame: vec![0; port.max_frame_bytes()],
            io,
            port,
            began: Instant::now(),
            is_polling,
            memory: vec![0; MEMORY_BYTES],
            received_packets: 0,
            received_bytes: 0,
            echoes,
            to_echo: Vec::new(),
            source: vec![7; frame_bytes].into(),
        })
    }

    /// Receives a burst, and queues the answers. What is due leaves with [`flush`](Self::flush): after the caller has queued
    /// what it has to send, so that acknowledgements go with it.
    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let now = self.began.elapsed();
        let Self { io, port, memory, received_packets, received_bytes, to_echo, echoes, .. } = self;
        io.receive_datagrams(&mut |from, arrival| {
            let Arrival::Datagram(bytes) = arrival else { return };
            let Some(arrival) = port.receive(from, bytes, now) else { return };
            let place = *received_bytes as usize % (MEMORY_BYTES - arrival.packet.len());
            memory[place..place + arrival.packet.len()].copy_from_slice(arrival.packet);
            *received_packets += 1;
            *received_bytes += arrival.packet.len() as u64;
            port.accept(arrival.connection, arrival.class, arrival.sequence);
            if *echoes && arrival.packet.len() == 1 {
                to_echo.push(arrival.connection);
            }
        })?;
        for connection in to_echo.drain(..) {
            let packet = MemoryRange { memory: Arc::clone(&self.source), bytes: 1 };
            let _ = port.send(connection, CLASS, packet);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Box<dyn Error>> {
        let now = self.began.elapsed();
        while self.io.has_send_room()
            && let Some(frame) = self.port.next_frame(now, &mut self.frame)
        {
            self.io.queue_datagram(frame.to, &self.frame[..frame.bytes], None);
        }
        self.io.flush_burst()?;
        Ok(())
    }

    /// Sleeps until a frame comes or a deadline, unless the port is polled.
    fn wait(&self) -> Result<(), Box<dyn Error>> {
        let Some(descriptor) = self.io.descriptor().filter(|_| !self.is_polling) else { return Ok(()) };
        let until = self.port.next_deadline().unwrap_or(Duration::MAX);
        let left = until.saturating_sub(self.began.elapsed()).min(Duration::from_millis(100));
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left))?;
        Ok(())
    }

    fn send(&mut self, connection: ConnectionId, bytes: usize) -> bool {
        let memory = Arc::clone(&self.source);
        self.port.send(connection, CLASS, MemoryRange { memory, bytes }).is_ok()
    }
}

fn serve(at: SocketAddr, frame_bytes: usize, is_polling: bool, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut end = Endpoint::open(at, frame_bytes, is_polling, true)?;
    while !stop.load(Ordering::Relaxed) {
        end.receive()?;
        while let Some(event) = end.port.next_event() {
            if let Event::Incoming { connection, .. } = event {
                end.port.accept_connection(connection, &[], end.began.elapsed())?;
            }
        }
        end.flush()?;
        end.wait()?;
    }
    Ok(())
}

fn measure(from: SocketAddr, to: SocketAddr, frame_bytes: usize, is_polling: bool) -> Result<(), Box<dyn Error>> {
    let mut end = Endpoint::open(from, frame_bytes, is_polling, false)?;
    let connection = end.port.connect(to, &[], end.began.elapsed())?;
    let max_packet_bytes = loop {
        end.flush()?;
        end.receive()?;
        match end.port.next_event() {
            Some(Event::Connected { max_packet_bytes, .. }) => break max_packet_bytes,
            Some(event) => return Err(format!("not connected: {:?}", kind_of(&event)).into()),
            None => end.wait()?,
        }
    };
    let mut took = Vec::with_capacity(ROUND_TRIPS);
    for round in 0..ROUND_TRIPS as u64 {
        let began = Instant::now();
        end.send(connection, 1);
        while end.received_packets <= round {
            end.flush()?;
            end.wait()?;
            end.receive()?;
        }
        took.push(began.elapsed());
        while end.port.next_event().is_some() {}
    }
    took.sort_unstable();
    let micros = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!("round trip of 1 byte: median {:.1} µs, p99 {:.1} µs, {ROUND_TRIPS} times", micros(0.5), micros(0.99));
    let (mut bytes, began) = (0, Instant::now());
    while began.elapsed() < TRANSFER_TIME {
        while end.send(connection, max_packet_bytes) {}
        end.flush()?;
        end.wait()?;
        end.receive()?;
        while let Some(event) = end.port.next_event() {
            match event {
                Event::Acknowledged { packet, .. } => bytes += packet.bytes as u64,
                Event::Failed { error, .. } => return Err(error.into()),
                _ => {}
            }
        }
    }
    let rate = bytes as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9;
    println!("packets of {max_packet_bytes} bytes: {rate:.2} Gbit/s acknowledged");
    let state = end.port.connection_state(connection).ok_or("the connection is over")?;
    let counters = state.counters;
    println!(
        "window {} bytes, round trip under load {:.1} µs; of {} packets {} sent again, {} in vain, {} by timer; {} probes",
        state.window_bytes,
        state.round_trip.unwrap_or_default().as_secs_f64() * 1e6,
        counters.packets_sent,
        counters.sent_again,
        counters.sent_in_vain,
        counters.sent_by_timer,
        counters.probes_sent
    );
    Ok(())
}

fn kind_of(event: &Event<MemoryRange>) -> &'static str {
    match event {
        Event::Failed { .. } => "the connection failed",
        _ => "another event",
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let frame_bytes = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1472);
    let (is_polling, in_veth) = (!has("wait"), has("veth"));
    let network = if in_veth { Some(Network::new(2, u32::try_from(frame_bytes)? + 28)?) } else { None };
    let addresses = match network {
        Some(_) => [0, 1].map(|host| SocketAddr::from((Network::host_address(host), UDP_PORT))),
        None => [1, 2].map(|host| SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), UDP_PORT))),
    };
    println!(
        "two threads, {}, UDP sockets over {}, frames of at most {frame_bytes} bytes",
        if is_polling { "polling" } else { "waiting" },
        if in_veth { "veth" } else { "loopback" }
    );
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (network, stop) = (network.as_ref(), &stop);
        let server = scope.spawn(move || -> Result<(), String> {
            let serve = || serve(addresses[1], frame_bytes, is_polling, stop).map_err(|error| error.to_string());
            match network {
                Some(network) => network.run_on_host(1, serve).map_err(|error| error.to_string())?,
                None => serve(),
            }
        });
        let run = || measure(addresses[0], addresses[1], frame_bytes, is_polling).map_err(|error| error.to_string());
        let measured = match network {
            Some(network) => network.run_on_host(0, run).map_err(|error| error.to_string()).and_then(|result| result),
            None => run(),
        };
        stop.store(true, Ordering::Relaxed);
        let served = server.join().unwrap_or_else(|_| Err("the server panicked".to_owned()));
        measured.and(served).map_err(Into::into)
    })
}
