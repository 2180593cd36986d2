//! Time that EFE itself takes, without sockets: `cargo run --release -p thalweg-efe --example engine [FRAME_BYTES]`.
//!
//! Two ports in one thread; the frames of one are passed to the other. Each packet is written into a frame, checked with
//! its CRC32C twice, placed, accepted and acknowledged. The time is the sum of both ends.

use std::time::{Duration, Instant};
use thalweg_efe::{Class, ConnectionId, Event, Options, Packet, Port};

const CLASS: Class = Class::Posted;
const MEASURED_TIME: Duration = Duration::from_secs(1);
/// Number of packets between two acknowledgements.
const BURST_PACKETS: usize = 16;

struct Zeros(usize);

impl Packet for Zeros {
    fn packet_bytes(&self) -> usize {
        self.0
    }

    fn write_packet(&self, into: &mut [u8]) {
        into.fill(0);
    }
}

struct Pair {
    ports: [Port<u8, Zeros>; 2],
    frame: Vec<u8>,
    memory: Vec<u8>,
    began: Instant,
    received_packets: u64,
}

impl Pair {
    /// Passes frames from one end to the other.
    fn carry(&mut self, from: usize) {
        let now = self.began.elapsed();
        let to = 1 - from;
        while let Some(frame) = self.ports[from].next_frame(now, &mut self.frame) {
            let address = if from == 0 { 0 } else { 1 };
            if let Some(arrival) = self.ports[to].receive(address, &self.frame[..frame.bytes], now) {
                self.memory[..arrival.packet.len()].copy_from_slice(arrival.packet);
                self.received_packets += 1;
                self.ports[to].accept(arrival.connection, arrival.class, arrival.sequence);
            }
        }
    }

    fn connect(&mut self) -> Option<ConnectionId> {
        let connection = self.ports[0].connect(1, &[], self.began.elapsed()).ok()?;
        loop {
            self.carry(0);
            self.carry(1);
            while let Some(event) = self.ports[1].next_event() {
                if let Event::Incoming { connection, .. } = event {
                    self.ports[1].accept_connection(connection, &[], self.began.elapsed()).ok()?;
                }
            }
            if let Some(Event::Connected { .. }) = self.ports[0].next_event() {
                return Some(connection);
            }
        }
    }

    /// Returns the mean time for a packet of this length.
    fn measure(&mut self, connection: ConnectionId, bytes: usize) -> Duration {
        self.received_packets = 0;
        let began = Instant::now();
        while began.elapsed() < MEASURED_TIME {
            for _ in 0..BURST_PACKETS {
                let _ = self.ports[0].send(connection, CLASS, Zeros(bytes));
            }
            self.carry(0);
            self.carry(1);
            while self.ports[0].next_event().is_some() {}
        }
        began.elapsed().div_f64(self.received_packets.max(1) as f64)
    }
}

fn main() {
    let frame_bytes = std::env::args().nth(1).and_then(|bytes| bytes.parse().ok()).unwrap_or(1500);
    let options = Options { max_frame_bytes: frame_bytes, ..Options::default() };
    let ports = [1u64, 2].map(|seed| {
        let mut state = seed;
        Port::new(options.clone(), move || {
            state = state.wrapping_add(thalweg_wire::GOLDEN_GAMMA);
            thalweg_wire::mix_bits(state)
        })
    });
    let room = ports[0].max_frame_bytes();
    let began = Instant::now();
    let mut pair = Pair { ports, frame: vec![0; room], memory: vec![0; room], began, received_packets: 0 };
    let Some(connection) = pair.connect() else { return };
    println!("both ends in one thread, an acknowledgement for each {BURST_PACKETS} packets");
    for bytes in [1, 64, 1024, room - thalweg_efe::HEADER_BYTES] {
        let took = pair.measure(connection, bytes);
        let rate = bytes as f64 * 8.0 / took.as_secs_f64() / 1e9;
        println!("{bytes:>6} bytes: {:>7.0} ns for a packet, {rate:>7.2} Gbit/s", took.as_secs_f64() * 1e9);
    }
}
