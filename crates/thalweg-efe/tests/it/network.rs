//! A network in virtual time, made up from a seed: hosts around one switch, whose ports have bounded buffers.
//!
//! Frames leave a host at the rate of its link, may be lost, duplicated and delayed on their way, and wait in front of the
//! port of their receiver. Senders send packets with known content; the receiver checks each, and that each comes once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;
use thalweg_efe::{Class, ConnectionCounters, ConnectionId, Event, Frame, HEADER_BYTES, Kind, Options, Port};
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// Bytes on the wire for each frame beside its own: preamble, Ethernet header, checksum and gap; and the least frame with
/// them.
const WIRE_OVERHEAD_BYTES: u64 = 38;
const MIN_WIRE_BYTES: u64 = 84;
/// Virtual time after which a simulation is given up, in nanoseconds.
const END_NANOS: u64 = 600_000_000_000;

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// Seed of all random numbers.
    pub(crate) seed: u64,
    /// Number of senders. The receiver is one more host.
    pub(crate) senders: usize,
    /// Number of packets of each sender.
    pub(crate) packets: u32,
    /// Least and greatest length of a packet, in bytes.
    pub(crate) packet_bytes: (usize, usize),
    /// Classes that packets are sent in, in turn.
    pub(crate) classes: usize,
    /// Rate of all links, in bytes per second.
    pub(crate) bytes_per_second: u64,
    /// Time on the way from host to switch, and from switch to host.
    pub(crate) link_delay: Duration,
    /// Buffer of a port of the switch, in bytes.
    pub(crate) buffer_bytes: u64,
    /// Frames lost, in millionths.
    pub(crate) lost_ppm: u64,
    /// Time for which all frames are lost, where one is; zero if losses are single.
    pub(crate) burst: Duration,
    /// Frames duplicated, in millionths.
    pub(crate) duplicated_ppm: u64,
    /// Frames delayed, in millionths, and the most by which.
    pub(crate) delayed_ppm: u64,
    pub(crate) max_delay: Duration,
    /// Packets that the receiver's upper layer refuses at first, in millionths.
    pub(crate) refused_ppm: u64,
    /// Times for which the receiver runs and then rests, by turns, as a process does that shares its processor; a rest of
    /// zero: it always runs.
    pub(crate) receiver_run: Duration,
    pub(crate) receiver_rest: Duration,
    /// Settings of all ports.
    pub(crate) options: Options,
}

impl Scenario {
    /// One sender and one receiver at 10 Gbit/s, 10 µs from each other, without impairments.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            senders: 1,
            packets: 20_000,
            packet_bytes: (1400, 1400),
            classes: 1,
            bytes_per_second: 1_250_000_000,
            link_delay: Duration::from_micros(5),
            buffer_bytes: 340_000,
            lost_ppm: 0,
            burst: Duration::ZERO,
            duplicated_ppm: 0,
            delayed_ppm: 0,
            max_delay: Duration::ZERO,
            refused_ppm: 0,
            receiver_run: Duration::ZERO,
            receiver_rest: Duration::ZERO,
            options: Options { max_frame_bytes: 1500, target_delay: Duration::from_micros(200), ..Options::default() },
        }
    }
}

/// Result of a simulation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Time from the first packets queued, once all are connected, to the last one acknowledged.
    pub(crate) elapsed: Duration,
    /// Bytes of packets delivered.
    pub(crate) delivered_bytes: u64,
    /// Number of packets accepted by the receiver.
    pub(crate) accepted: u64,
    /// Part of the last link's rate that arrived as packets.
    pub(crate) goodput: f64,
    /// The same for a link that is never idle: the ceiling.
    pub(crate) ceiling: f64,
    /// Frames that found the buffer of the last port full.
    pub(crate) dropped: u64,
    /// Longest queue in front of the last port, in bytes.
    pub(crate) longest_queue_bytes: u64,
    /// Most bytes of credit used by packets on their way at a time, each packet counted once, without credit that was written
    /// off; and the bound on the credit.
    pub(crate) most_in_flight_bytes: u64,
    pub(crate) credit_bound_bytes: u64,
    /// Sums over all senders, and the receiver's.
    pub(crate) sent: ConnectionCounters,
    pub(crate) received: ConnectionCounters,
    /// Least and greatest time that a sender took.
    pub(crate) sender_times: (Duration, Duration),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Wake { host: usize },
    AtSwitch { from: usize, to: usize, bytes: Vec<u8> },
    Leaves { to: usize, wire_bytes: u64 },
    Arrives { from: usize, to: usize, bytes: Vec<u8> },
}

struct Host {
    port: Port<usize, Vec<u8>>,
    free_at: u64,
    wakes_at: u64,
    connection: Option<ConnectionId>,
    is_connected: bool,
    unsent: u32,
    unacknowledged: u32,
    next_class: usize,
    done_at: u64,
}

/// Port of the switch that leads to a host.
#[derive(Default)]
struct SwitchPort {
    queued_bytes: u64,
    longest_bytes: u64,
    free_at: u64,
    dropped: u64,
}

/// Packets as a receiver has them from one connection.
#[derive(Default)]
struct Received {
    sender: usize,
    arrived: [BTreeMap<u32, u32>; 3],
    below: [u32; 3],
}

struct Network {
    scenario: Scenario,
    random: u64,
    now: u64,
    began_at: Option<u64>,
    steps: BinaryHeap<Reverse<(u64, u64, Step)>>,
    order: u64,
    hosts: Vec<Host>,
    switch: Vec<SwitchPort>,
    received: HashMap<ConnectionId, Received>,
    burst_end: u64,
    /// Copies of each packet on the way to the receiver, and the bytes that they cost.
    on_the_way: HashMap<(usize, Class, u32), (u32, u64)>,
    in_flight_bytes: u64,
    outcome: Outcome,
}

/// Runs a simulation, and checks what has to hold at any time.
pub(crate) fn simulate(scenario: &Scenario) -> Outcome {
    Network::new(scenario.clone()).run()
}

impl Network {
    fn new(scenario: Scenario) -> Self {
        let count = scenario.senders + 1;
        let hosts = (0..count).map(|host| {
            let mut state = scenario.seed ^ mix_bits(host as u64 + 1);
            let random = move || {
                state = state.wrapping_add(GOLDEN_GAMMA);
                mix_bits(state)
            };
            Host {
                port: Port::new(scenario.options.clone(), random),
                free_at: 0,
                wakes_at: u64::MAX,
                connection: None,
                is_connected: false,
                unsent: scenario.packets,
                unacknowledged: scenario.packets,
                next_class: 0,
                done_at: 0,
            }
        });
        Self {
            random: mix_bits(scenario.seed),
            now: 0,
            began_at: None,
            steps: BinaryHeap::new(),
            order: 0,
            hosts: hosts.collect(),
            switch: (0..count).map(|_| SwitchPort::default()).collect(),
            received: HashMap::new(),
            burst_end: 0,
            on_the_way: HashMap::new(),
            in_flight_bytes: 0,
            outcome: Outcome::default(),
            scenario,
        }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.random)
    }

    fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.draw() % 1_000_000 < ppm
    }

    fn schedule(&mut self, at: u64, step: Step) {
        self.order += 1;
        self.steps.push(Reverse((at, self.order, step)));
    }

    fn run(mut self) -> Outcome {
        let receiver = self.scenario.senders;
        for host in 0..receiver {
            let name = u32::try_from(host).unwrap().to_le_bytes();
            self.hosts[host].connection = Some(self.hosts[host].port.connect(receiver, &name, Duration::ZERO).unwrap());
            self.pump(host);
        }
        while self.hosts[..receiver].iter().any(|host| host.unacknowledged > 0) {
            let Reverse((at, _, step)) = self.steps.pop().expect("something is to be done until all is acknowledged");
            assert!(at < END_NANOS, "not done in {END_NANOS} ns: {:?}", self.outcome);
            self.now = at;
            self.take_step(step);
        }
        self.sum_up();
        self.outcome
    }

    /// Returns the time at which a host goes on that rests now.
    fn rests_until(&self, host: usize) -> Option<u64> {
        let rest = self.scenario.receiver_rest.as_nanos() as u64;
        let cycle = self.scenario.receiver_run.as_nanos() as u64 + rest;
        let left = cycle - self.now.checked_rem(cycle)?;
        (host == self.scenario.senders && left <= rest).then(|| self.now + left)
    }

    fn take_step(&mut self, step: Step) {
        if let Step::Wake { host } | Step::Arrives { to: host, .. } = step
            && let Some(until) = self.rests_until(host)
        {
            if matches!(step, Step::Wake { .. }) && self.hosts[host].wakes_at == self.now {
                self.hosts[host].wakes_at = until;
            }
            return self.schedule(until, step);
        }
        match step {
            Step::Wake { host } => {
                if self.hosts[host].wakes_at == self.now {
                    self.hosts[host].wakes_at = u64::MAX;
                }
                self.pump(host);
            }
            Step::AtSwitch { from, to, bytes } => self.enqueue_frame(from, to, bytes),
            Step::Leaves { to, wire_bytes } => self.switch[to].queued_bytes -= wire_bytes,
            Step::Arrives { from, to, bytes } => {
                self.note_gone(from, to, &bytes);
                self.receive(from, to, &bytes);
                self.pump(to);
            }
        }
    }

    fn wire_nanos(&self, wire_bytes: u64) -> u64 {
        wire_bytes * 1_000_000_000 / self.scenario.bytes_per_second
    }

    /// Lets a host handle its events, send what it may, and sets its clock.
    fn pump(&mut self, host: usize) {
        self.handle_events(host);
        self.fill_window(host);
        let now = Duration::from_nanos(self.now);
        if self.hosts[host].free_at <= self.now {
            let mut buffer = vec![0; self.hosts[host].port.max_frame_bytes()];
            if let Some(frame) = self.hosts[host].port.next_frame(now, &mut buffer) {
                buffer.truncate(frame.bytes);
                self.transmit(host, frame.to, buffer);
            }
            self.handle_events(host);
        }
        let (granted, bound) = self.hosts[host].port.granted_credit();
        assert!(granted <= bound, "{granted} bytes of credit granted, more than {bound}");
        let host_state = &self.hosts[host];
        if let Some(deadline) = host_state.port.next_deadline() {
            let at = (deadline.as_nanos() as u64).max(host_state.free_at).max(self.now + 1);
            let is_late = deadline <= now && host_state.free_at <= self.now;
            assert!(!is_late, "host {host} wants to be called at {deadline:?}, which is over, and sent nothing");
            if at < host_state.wakes_at {
                self.hosts[host].wakes_at = at;
                self.schedule(at, Step::Wake { host });
            }
        }
    }

    fn handle_events(&mut self, host: usize) {
        while let Some(event) = self.hosts[host].port.next_event() {
            match event {
                Event::Incoming { connection, private } => {
                    let sender = u32::from_le_bytes(private[..].try_into().unwrap()) as usize;
                    self.received.insert(connection, Received { sender, ..Received::default() });
                    let now = Duration::from_nanos(self.now);
                    self.hosts[host].port.accept_connection(connection, &[], now).unwrap();
                }
                Event::Acknowledged { .. } => {
                    self.hosts[host].unacknowledged -= 1;
                    self.hosts[host].done_at = self.now;
                }
                Event::Connected { .. } => self.begin_when_connected(host),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Begins to send when all senders are connected.
    fn begin_when_connected(&mut self, host: usize) {
        self.hosts[host].is_connected = true;
        let senders = &self.hosts[..self.scenario.senders];
        if host < self.scenario.senders && senders.iter().all(|sender| sender.is_connected) {
            self.began_at = Some(self.now);
            (0..self.scenario.senders).for_each(|sender| self.schedule(self.now, Step::Wake { host: sender }));
        }
    }

    /// Queues as many packets as the windows take.
    fn fill_window(&mut self, host: usize) {
        let (Some(id), Some(_)) = (self.hosts[host].connection, self.began_at) else { return };
        loop {
            let class = Class::ALL[self.hosts[host].next_class % self.scenario.classes];
            if self.hosts[host].unsent == 0 || self.hosts[host].port.send_room(id, class).packets == 0 {
                return;
            }
            let (least, most) = self.scenario.packet_bytes;
            let bytes = least + (self.draw() as usize) % (most - least + 1);
            let content = (self.draw() % 251) as u8;
            self.hosts[host].port.send(id, class, packet(host, class, content, bytes)).unwrap();
            self.hosts[host].next_class += 1;
            self.hosts[host].unsent -= 1;
        }
    }

    /// Sends a frame over a host's link, and through everything that may happen to it.
    fn transmit(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let wire_bytes = wire_bytes(bytes.len());
        self.hosts[from].free_at = self.now + self.wire_nanos(wire_bytes);
        let free_at = self.hosts[from].free_at;
        self.schedule(free_at, Step::Wake { host: from });
        if free_at < self.burst_end {
            return;
        }
        let burst_frames = 1 + self.scenario.burst.as_nanos() as u64 / self.wire_nanos(wire_bytes);
        if self.happens(self.scenario.lost_ppm / burst_frames) {
            self.burst_end = free_at + self.scenario.burst.as_nanos() as u64;
            return;
        }
        let copies = 1 + u64::from(self.happens(self.scenario.duplicated_ppm));
        for _ in 0..copies {
            let mut at = free_at + self.scenario.link_delay.as_nanos() as u64;
            if self.happens(self.scenario.delayed_ppm) {
                at += self.draw() % (self.scenario.max_delay.as_nanos() as u64).max(1);
            }
            self.note_on_the_way(from, to, &bytes);
            self.schedule(at, Step::AtSwitch { from, to, bytes: bytes.clone() });
        }
    }

    fn enqueue_frame(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let wire_bytes = wire_bytes(bytes.len());
        let (now, takes, delay) = (self.now, self.wire_nanos(wire_bytes), self.scenario.link_delay.as_nanos() as u64);
        let port = &mut self.switch[to];
        if port.queued_bytes + wire_bytes > self.scenario.buffer_bytes {
            port.dropped += 1;
            self.note_gone(from, to, &bytes);
            return;
        }
        port.queued_bytes += wire_bytes;
        port.longest_bytes = port.longest_bytes.max(port.queued_bytes);
        port.free_at = port.free_at.max(now) + takes;
        let leaves_at = port.free_at;
        self.schedule(leaves_at, Step::Leaves { to, wire_bytes });
        self.schedule(leaves_at + delay, Step::Arrives { from, to, bytes });
    }

    fn receive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let refuses = self.happens(self.scenario.refused_ppm);
        let now = Duration::from_nanos(self.now);
        let Some(arrival) = self.hosts[to].port.receive(from, bytes, now) else { return };
        if refuses {
            let wait = Duration::from_micros(50);
            return self.hosts[to].port.refuse(arrival.connection, arrival.class, arrival.sequence, wait);
        }
        let received = self.received.get_mut(&arrival.connection).unwrap();
        assert_eq!(received.sender, from);
        check_packet(from, arrival.class, arrival.packet);
        let class = arrival.class as usize;
        let length = u32::try_from(arrival.packet.len()).unwrap();
        assert_eq!(received.arrived[class].insert(arrival.sequence, length), None, "a packet came twice");
        self.note_received((from, arrival.class, arrival.sequence));
        let received = self.received.get_mut(&arrival.connection).unwrap();
        let below = self.hosts[to].port.accept(arrival.connection, arrival.class, arrival.sequence).unwrap();
        while received.below[class] < below {
            let next = received.below[class];
            let length = received.arrived[class].get(&next).expect("delivered in order, without gaps");
            self.outcome.delivered_bytes += u64::from(*length);
            received.below[class] += 1;
        }
        self.outcome.accepted += 1;
    }

    /// Keeps the books of packets on the way to the receiver: of the copies of a packet one counts.
    fn note_on_the_way(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let Some((key, cost)) = self.data_packet(from, to, bytes) else { return };
        if self.received.values().any(|has| has.sender == from && has.arrived[key.1 as usize].contains_key(&key.2)) {
            return;
        }
        let entry = self.on_the_way.entry(key).or_insert((0, cost));
        if entry.0 == 0 {
            self.in_flight_bytes += cost;
        }
        entry.0 += 1;
        // A peer may use credit in the end that was written off since it did not for 20 ms.
        let written_off = self.hosts[self.scenario.senders].port.written_off_credit();
        let counted = self.in_flight_bytes.saturating_sub(written_off);
        self.outcome.most_in_flight_bytes = self.outcome.most_in_flight_bytes.max(counted);
    }

    /// Forgets all copies of a packet that has arrived.
    fn note_received(&mut self, key: (usize, Class, u32)) {
        if let Some((_, cost)) = self.on_the_way.remove(&key) {
            self.in_flight_bytes -= cost;
        }
    }

    fn note_gone(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let Some((key, _)) = self.data_packet(from, to, bytes) else { return };
        let Some(entry) = self.on_the_way.get_mut(&key) else { return };
        entry.0 -= 1;
        if entry.0 == 0 {
            self.in_flight_bytes -= entry.1;
            self.on_the_way.remove(&key);
        }
    }

    fn data_packet(&self, from: usize, to: usize, bytes: &[u8]) -> Option<((usize, Class, u32), u64)> {
        let frame = Frame::parse_bytes(bytes).unwrap();
        let is_data = to == self.scenario.senders && frame.header.kind == Kind::Packet;
        let cost = frame.body.len() as u64 + u64::from(thalweg_efe::PACKET_OVERHEAD_BYTES);
        is_data.then_some(((from, frame.header.class, frame.header.sequence), cost))
    }

    fn sum_up(&mut self) {
        let receiver = self.scenario.senders;
        let began_at = self.began_at.unwrap();
        let times: Vec<_> =
            self.hosts[..receiver].iter().map(|host| Duration::from_nanos(host.done_at - began_at)).collect();
        let outcome = &mut self.outcome;
        outcome.elapsed = Duration::from_nanos(self.now - began_at);
        outcome.sender_times = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        let link_bytes = self.scenario.bytes_per_second as f64 * outcome.elapsed.as_secs_f64();
        outcome.goodput = outcome.delivered_bytes as f64 / link_bytes;
        let mean = outcome.delivered_bytes as f64 / outcome.accepted as f64;
        outcome.ceiling = mean / (mean + HEADER_BYTES as f64 + WIRE_OVERHEAD_BYTES as f64);
        outcome.dropped = self.switch.iter().map(|port| port.dropped).sum();
        outcome.longest_queue_bytes = self.switch[receiver].longest_bytes;
        outcome.credit_bound_bytes = self.hosts[receiver].port.granted_credit().1;
        for host in &self.hosts[..receiver] {
            add_counters(&mut outcome.sent, &host.port.connection_state(host.connection.unwrap()).unwrap().counters);
        }
        for id in self.received.keys() {
            add_counters(&mut outcome.received, &self.hosts[receiver].port.connection_state(*id).unwrap().counters);
        }
        let packets = u64::from(self.scenario.packets) * receiver as u64;
        assert_eq!(outcome.accepted, packets, "every packet once");
        assert_eq!(outcome.received.beyond_credit + outcome.received.beyond_window, 0, "{outcome:?}");
        assert!(outcome.most_in_flight_bytes <= outcome.credit_bound_bytes, "{outcome:?}");
        for received in self.received.values() {
            let delivered: u32 = received.below.iter().sum();
            assert_eq!(delivered, self.scenario.packets, "every packet in order");
        }
    }
}

fn wire_bytes(frame_bytes: usize) -> u64 {
    (frame_bytes as u64 + WIRE_OVERHEAD_BYTES).max(MIN_WIRE_BYTES)
}

fn packet(sender: usize, class: Class, content: u8, bytes: usize) -> Vec<u8> {
    let mut packet = vec![content; bytes];
    let sender = u8::try_from(sender % 251).unwrap();
    for (place, byte) in packet.iter_mut().zip([sender, class as u8]) {
        *place = byte;
    }
    packet
}

fn check_packet(sender: usize, class: Class, packet: &[u8]) {
    let expected = self::packet(sender, class, packet.last().copied().unwrap_or(0), packet.len());
    assert!(packet.len() < 3 || packet == expected, "the content of a packet has changed");
}

fn add_counters(sum: &mut ConnectionCounters, counters: &ConnectionCounters) {
    sum.frames_sent += counters.frames_sent;
    sum.frames_received += counters.frames_received;
    sum.packets_sent += counters.packets_sent;
    sum.sent_again += counters.sent_again;
    sum.sent_in_vain += counters.sent_in_vain;
    sum.sent_by_timer += counters.sent_by_timer;
    sum.refused_by_peer += counters.refused_by_peer;
    sum.probes_sent += counters.probes_sent;
    sum.packets_received += counters.packets_received;
    sum.repeated += counters.repeated;
    sum.beyond_window += counters.beyond_window;
    sum.beyond_credit += counters.beyond_credit;
}
