//! EFE between two threads: `cargo run --release -p thalweg-efe --example carriers [loopback|veth|packet] [poll|wait] [FRAME_BYTES]`.
//!
//! Prints round trips of packets of 1 byte, and the goodput of packets of maximum length, which are copied out of memory
//! at the sender and into memory at the receiver. `loopback` and `veth`: UDP sockets; `packet`: Ethernet frames of type
//! 0x88b5 through packet sockets, over veth. With veth each thread has a network namespace of its own (it takes root, or
//! user namespaces). `poll`: both threads ask their sockets without a pause, and so need a processor each; `wait`: they
//! sleep until a frame comes or a deadline.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_efe::{Class, ConnectionId, ETHER_TYPE, Event, Options, Packet, Port, secret_numbers};
use thalweg_frames::{Arrival, DatagramIo, FrameIo, PacketPort, UdpPort};
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

/// Port that carries EFE's frames.
trait Carrier {
    type Address: Copy + Eq;

    fn receive(&mut self, each: &mut dyn FnMut(Self::Address, &[u8])) -> Result<(), Box<dyn Error>>;
    fn has_room(&mut self) -> bool;
    fn queue(&mut self, to: Self::Address, frame: &[u8]);
    fn flush(&mut self) -> Result<(), Box<dyn Error>>;
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    /// Returns the bytes that may be on their way to the port.
    fn reserve(&mut self, bytes: u64) -> u64;
}

impl Carrier for UdpPort {
    type Address = SocketAddr;

    fn receive(&mut self, each: &mut dyn FnMut(SocketAddr, &[u8])) -> Result<(), Box<dyn Error>> {
        self.receive_datagrams(&mut |from, arrival| {
            if let Arrival::Datagram(bytes) = arrival {
                each(from, bytes);
            }
        })?;
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.has_send_room()
    }

    fn queue(&mut self, to: SocketAddr, frame: &[u8]) {
        self.queue_datagram(to, frame, None);
    }

    fn flush(&mut self) -> Result<(), Box<dyn Error>> {
        self.flush_burst()?;
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        DatagramIo::descriptor(self)
    }

    fn reserve(&mut self, bytes: u64) -> u64 {
        self.reserve_receive_bytes(bytes)
    }
}

impl Carrier for PacketPort {
    type Address = [u8; 6];

    fn receive(&mut self, each: &mut dyn FnMut([u8; 6], &[u8])) -> Result<(), Box<dyn Error>> {
        self.receive_frames(&mut |frame| {
            if let Some((header, rest)) = frame.split_first_chunk::<14>()
                && let Some(from) = header[6..12].first_chunk()
            {
                each(*from, rest);
            }
        })?;
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.has_send_room()
    }

    fn queue(&mut self, to: [u8; 6], frame: &[u8]) {
        let mut header = [0; 14];
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&self.mac_address());
        header[12..].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        self.queue_frame_with_headers(&header, frame, None);
    }

    fn flush(&mut self) -> Result<(), Box<dyn Error>> {
        self.flush_burst()?;
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        FrameIo::descriptor(self)
    }

    fn reserve(&mut self, bytes: u64) -> u64 {
        bytes.min(self.receive_room_frames() as u64 * self.max_frame_bytes() as u64)
    }
}

/// A port of EFE over a carrier.
struct Endpoint<C: Carrier> {
    io: C,
    port: Port<C::Address, MemoryRange>,
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

impl<C: Carrier> Endpoint<C> {
    fn open(mut io: C, frame_bytes: usize, is_polling: bool, echoes: bool) -> Self {
        let max_credit_bytes = io.reserve(4 << 20);
        let options = Options { max_frame_bytes: frame_bytes, max_credit_bytes, ..Options::default() };
        let port = Port::new(options, secret_numbers());
        Self {
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
        }
    }

    /// Receives a burst, and queues the answers. What is due leaves with [`flush`](Self::flush): after the caller has queued
    /// what it has to send, so that acknowledgements go with it.
    fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        let now = self.began.elapsed();
        let Self { io, port, memory, received_packets, received_bytes, to_echo, echoes, .. } = self;
        io.receive(&mut |from, bytes| {
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
        while self.io.has_room()
            && let Some(frame) = self.port.next_frame(now, &mut self.frame)
        {
            self.io.queue(frame.to, &self.frame[..frame.bytes]);
        }
        self.io.flush()
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

fn serve<C: Carrier>(io: C, frame_bytes: usize, is_polling: bool, stop: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut end = Endpoint::open(io, frame_bytes, is_polling, true);
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

fn measure<C: Carrier>(io: C, to: C::Address, frame_bytes: usize, is_polling: bool) -> Result<(), Box<dyn Error>> {
    let mut end = Endpoint::open(io, frame_bytes, is_polling, false);
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

/// Runs both ends over ports that `open` opens for a host, and of which `address` is known.
fn run_pair<C: Carrier + Send>(
    network: Option<&Network>,
    open: impl Fn(u16) -> Result<C, String> + Sync,
    address: impl Fn(&C) -> C::Address,
    frame_bytes: usize,
    is_polling: bool,
) -> Result<(), String>
where
    C::Address: Send,
{
    let open_on = |host| match network {
        Some(network) => network.run_on_host(host, || open(host)).map_err(|error| error.to_string())?,
        None => open(host),
    };
    let (near, far) = (open_on(0)?, open_on(1)?);
    let to = address(&far);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        let server = scope.spawn(move || serve(far, frame_bytes, is_polling, stop).map_err(|error| error.to_string()));
        let measured = measure(near, to, frame_bytes, is_polling).map_err(|error| error.to_string());
        stop.store(true, Ordering::Relaxed);
        measured.and(server.join().unwrap_or_else(|_| Err("the server panicked".to_owned())))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let frame_bytes = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1472);
    let (is_polling, is_packet) = (!arguments.contains(&"wait".into()), arguments.contains(&"packet".into()));
    let in_veth = arguments.contains(&"veth".into()) || is_packet;
    let mtu = u32::try_from(frame_bytes)? + 28;
    let network = if in_veth { Some(Network::new(2, mtu)?) } else { None };
    println!(
        "two threads, {}, {} over {}, frames of at most {frame_bytes} bytes",
        if is_polling { "polling" } else { "waiting" },
        if is_packet { "packet sockets" } else { "UDP sockets" },
        if in_veth { "veth" } else { "loopback" }
    );
    if is_packet {
        let open = |_| PacketPort::open_interface(Network::INTERFACE, ETHER_TYPE).map_err(|error| error.to_string());
        run_pair(network.as_ref(), open, PacketPort::mac_address, frame_bytes, is_polling)?;
    } else {
        let open = |host: u16| {
            let ip = if in_veth { Network::host_address(host) } else { Ipv4Addr::new(127, 0, 0, 1 + host as u8) };
            UdpPort::bind((ip, UDP_PORT).into()).map_err(|error| error.to_string())
        };
        run_pair(network.as_ref(), open, UdpPort::local_address, frame_bytes, is_polling)?;
    }
    Ok(())
}
