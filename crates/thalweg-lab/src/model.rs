//! A scenario as a model: Thalweg's own event builder in a network of FIFOs. Credits and the order of fetches are the
//! builder's; there are no sockets, no kernel, no processors.
//!
//! The [`thalweg_core::build::Builder`] is real: the same code that a node runs, with the same inputs. Everything around it
//! is a model: sources that always have more, links that carry frames at their rate, ports that drop what does not fit,
//! and a transport that sends dropped frames again, a round trip later. A run takes a small part of the virtual
//! machine's time, and may have hundreds of hosts.

mod source;
mod wire;

use crate::LabError;
use crate::report::{
    self, Bookkeeping, Completion, CreditOverTime, Events, LinkKind, LinkOverTime, LinkUse, Queue, Receiver, Report,
    Sender, SentAgain, Timeline, Troubles,
};
use crate::rig::timeline::{select_drawn_links, traced_builder_count};
use crate::scenario::{Assignment, Carrier, InvalidValue, Scenario, TCP_IP};
use crate::topology::{Memory, Slots};
use source::{Out, Source};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thalweg_core::build::{Builder, BuilderConfig, Check, Hold, Path, Window};
use thalweg_wire::{Announcement, EventId, FragmentHeader, HEADER_LEN, RecordBytes, RunNumber, SourceId, record_bytes};
use wire::{Calendar, Port, StepRecorder, Time};

/// Number of steps of a queue's length over the whole run.
const HISTORY_STEPS: usize = 1000;

/// Bytes of a message between nodes.
const MESSAGE_BYTES: u64 = 64;

/// Fails if the scenario needs a feature that the model lacks.
pub(crate) fn check_scenario(scenario: &Scenario) -> Result<(), InvalidValue> {
    let Scenario { network, traffic, measure } = scenario;
    let deaths = network.unlike_receivers.iter().any(|receiver| receiver.dies.is_some());
    let lacks = [
        ("traffic.control", !traffic.control.credit, "it has credits only, over a transport without a window"),
        ("traffic.link", traffic.link != Carrier::Tcp, "its packets have the headers of TCP"),
        ("traffic.cross", traffic.cross > 0, "there are no other flows in it"),
        ("traffic.assignment", traffic.assignment != Assignment::Modulo, "event e goes to builder e mod M in it"),
        ("network.loss", network.loss > 0.0, "packets are lost in it only where a buffer is full"),
        ("network.receiver", deaths, "builders do not die in it"),
        ("measure.calibrate", measure.calibrate, "there is no unknown link to calibrate in it"),
    ];
    match lacks.into_iter().find(|(_, needed, _)| *needed) {
        Some((key, _, why)) => Err(InvalidValue { key: key.into(), problem: format!("not in the model: {why}") }),
        None => Ok(()),
    }
}

/// Runs the scenario.
pub(crate) fn run_model(scenario: &Scenario, stop: &AtomicBool) -> Result<Report, LabError> {
    let begun = Instant::now();
    let mut world = World::new(scenario);
    world.run_until_end(stop)?;
    Ok(world.build_report(begun.elapsed()))
}

/// Event of the simulation.
#[derive(Debug)]
enum SimEvent {
    /// A builder's message reaches a source.
    Message { source: usize, builder: usize, message: Message },
    /// A source's link can take its next frame.
    Free { source: usize },
    /// A frame reaches the next port on its way.
    AtPort(Frame),
    /// A frame reaches its builder.
    Arrives(Frame),
    /// A builder's pace allows more fetches.
    Pace { builder: usize },
    /// A source has its next event.
    Next { source: usize },
    /// A builder goes on after a stall.
    Resume { builder: usize },
    /// A step of the timeline ends.
    Sample,
    /// The measurement begins.
    Warm,
    /// The measurement ends.
    End,
}

/// A builder's message to a source.
#[derive(Debug)]
enum Message {
    /// Request for this number of bytes.
    Fetch(u64),
    /// Release of all slots with a ticket below this one.
    Release(u64),
}

#[derive(Debug)]
struct Frame {
    source: usize,
    builder: usize,
    /// Place in the order of the frames from this source to this builder, from 0 on.
    number: u64,
    /// Number of ports of its way that it has passed.
    passed: usize,
    content: Content,
    /// Number of bytes of messages and data, without the headers of the network.
    bytes: u64,
}

/// Content of a frame.
#[derive(Debug)]
enum Content {
    Offer(Announcement),
    /// Number of bytes of a slot.
    Data(u64),
}

/// A builder's host.
struct Host {
    builder: Builder,
    /// Fetches of each source that have not been answered, in order: ticket, bytes, and whether they are the slot's
    /// last.
    pending_fetches: Vec<VecDeque<(u64, u64, bool)>>,
    /// Time at which the builder can have fetches again.
    next_poll: Option<Time>,
    payload: u64,
    /// Bytes of places that are being filled, now and at most.
    holds: u64,
    most_held: u64,
    /// Beginning and end of the builder's stall.
    stall: Option<(Time, Time)>,
    /// Frames that arrived during the stall.
    unread: Vec<Frame>,
    /// Order of the frames of each source.
    arrivals: Vec<Arrivals>,
}

/// Frames of one source, which the builder reads in the order in which they were sent: the transport keeps those that
/// arrive before one that was dropped and is sent again.
#[derive(Debug, Default)]
struct Arrivals {
    /// Number of the frame that is read next.
    next: u64,
    /// Frames that arrived before it, by number.
    early: BTreeMap<u64, Frame>,
}

impl Arrivals {
    /// Adds a frame, and returns those that can be read now, in order.
    fn add_frame(&mut self, frame: Frame) -> Vec<Frame> {
        self.early.insert(frame.number, frame);
        let mut readable = Vec::new();
        while let Some(frame) = self.early.remove(&self.next) {
            self.next += 1;
            readable.push(frame);
        }
        readable
    }
}

impl Host {
    fn new(scenario: &Scenario, number: u32, open_events: u64) -> Self {
        let senders = scenario.network.senders;
        let mut builder = Builder::new(builder_config(scenario, number, open_events));
        for source in 0..senders {
            let slots = Slots::for_sender(scenario, source, open_events).count as u32;
            builder.source_connected(source as usize, slots, false);
        }
        let pending_fetches = vec![VecDeque::new(); senders as usize];
        let begin = scenario.warm_up_time();
        let stall = scenario.network.unlike_receivers.iter().find(|one| one.number == number).and_then(|one| one.stall);
        let stall = stall.map(|stall| {
            let begins = begin + stall.at;
            (begins.as_nanos() as Time, (begins + stall.length).as_nanos() as Time)
        });
        let arrivals = std::iter::repeat_with(Arrivals::default).take(senders as usize).collect();
        Self {
            builder,
            pending_fetches,
            next_poll: None,
            payload: 0,
            holds: 0,
            most_held: 0,
            stall,
            unread: Vec::new(),
            arrivals,
        }
    }

    fn is_stalled(&self, now: Time) -> bool {
        self.stall.is_some_and(|(begins, ends)| (begins..ends).contains(&now))
    }
}

/// Returns the configuration of a builder, as a node of the scenario would have it.
fn builder_config(scenario: &Scenario, number: u32, open_events: u64) -> BuilderConfig {
    let network = &scenario.network;
    let (rate, buffer) = scenario.port_for_credit(number);
    let segment = network.mtu - TCP_IP;
    let path = Path {
        // As in `LinkConfig`: the rate on the line without headers.
        rate: rate.bytes_per_second() * f64::from(segment) / f64::from(network.mtu + 38),
        round_trip: scenario.round_trip_time().max(Duration::from_micros(50)),
        buffer,
        segment,
        // As in a node, with small slots or without.
        unasked: buffer / 8,
    };
    BuilderConfig {
        run: RunNumber(1),
        builder: number,
        builders: network.receivers,
        rank: (number, network.receivers),
        sources: (0..network.senders).map(|n| (SourceId::new(1, n as u16), format!("sender-{n}"))).collect(),
        level2: Vec::new(),
        first: EventId(0),
        window: Window::Credit(path),
        held: u64::MAX,
        deadline: Duration::from_secs(3600),
        open_events: open_events as u32,
        max_payload: u32::MAX,
        check: Check::Headers,
        hold: Hold::UntilArrived,
    }
}

struct World<'a> {
    scenario: &'a Scenario,
    now: Time,
    calendar: Calendar<SimEvent>,
    sources: Vec<Source>,
    hosts: Vec<Host>,
    /// All ports, in the order of [`Scenario::all_links`].
    ports: Vec<Port>,
    /// Index of the first receiver's port.
    downlinks: usize,
    /// Payload bytes of a segment, and the bytes that a frame adds to them on the wire.
    segment: u64,
    overhead: u64,
    delay: Time,
    /// Number of messages in both directions.
    messages: u64,
    /// Credit of the first builders, at the end of each step of the timeline.
    credit: Vec<CreditOverTime>,
    warm: Marks,
    end: Marks,
}

/// Counters at a moment.
#[derive(Debug, Default, Clone)]
struct Marks {
    at: Time,
    payload: Vec<u64>,
    events: Vec<(u64, u64)>,
    drops: Vec<u64>,
    messages: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let network = &scenario.network;
        let (senders, receivers) = (network.senders as usize, network.receivers as usize);
        let memory = Memory::for_scenario(scenario);
        let hosts = (0..network.receivers).map(|number| Host::new(scenario, number, memory.open));
        let burst = u64::from(scenario.traffic.burst.unwrap_or(1));
        let bursts = scenario.burst_period().map(|period| (period.as_nanos() as Time, burst));
        let sources = (0..senders).map(|number| {
            let slots = Slots::for_sender(scenario, number as u32, memory.open);
            let sizes = scenario.payload_range_of(number as u32);
            Source::new(number as u16, receivers, sizes, slots.bytes, slots.count, memory.open as u32, bursts)
        });
        let links = scenario.all_links();
        let warm = scenario.warm_up_time().as_nanos() as Time;
        let length = scenario.measured_time().as_nanos() as Time;
        let ports = links.iter().map(|link| {
            let measured = StepRecorder::new(warm, length, scenario.timeline_step_count() as usize);
            let history = StepRecorder::new(0, warm + length, HISTORY_STEPS);
            let (rate, buffer) = (link.rate.bytes_per_second(), link.buffer.unwrap_or(u64::MAX));
            Port::new(link.name.clone(), rate, buffer, measured, history)
        });
        let credit = (0..traced_builder_count(scenario)).map(|number| CreditOverTime {
            receiver: format!("receiver-{number}"),
            window: Vec::new(),
            at: vec![Vec::new(); senders],
        });
        Self {
            scenario,
            now: 0,
            calendar: Calendar::new(),
            sources: sources.collect(),
            hosts: hosts.collect(),
            ports: ports.collect(),
            downlinks: links.len() - receivers,
            segment: (network.mtu - TCP_IP).into(),
            overhead: u64::from(TCP_IP) + 38,
            delay: network.delay.as_nanos() as Time,
            messages: 0,
            credit: credit.collect(),
            warm: Marks::default(),
            end: Marks::default(),
        }
    }

    fn run_until_end(&mut self, stop: &AtomicBool) -> Result<(), LabError> {
        let warm = self.scenario.warm_up_time().as_nanos() as Time;
        let end = warm + self.scenario.measured_time().as_nanos() as Time;
        self.calendar.schedule_event(warm, SimEvent::Warm);
        let first = &self.ports[0].measured;
        for step in 0..first.busy.len() {
            self.calendar.schedule_event(first.step_end(step).min(end), SimEvent::Sample);
        }
        for (builder, host) in self.hosts.iter().enumerate() {
            if let Some((_, ends)) = host.stall {
                self.calendar.schedule_event(ends, SimEvent::Resume { builder });
            }
        }
        self.calendar.schedule_event(end, SimEvent::End);
        for source in 0..self.sources.len() {
            self.fill_source_slots(source);
        }
        let mut turns = 0_u64;
        while let Some((now, event)) = self.calendar.pop_next_event() {
            self.now = now;
            turns += 1;
            if turns.is_multiple_of(65_536) && stop.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
            match event {
                SimEvent::Message { source, builder, message } => self.handle_message(source, builder, message),
                SimEvent::Free { source } => self.send_next_frame(source),
                SimEvent::AtPort(frame) => self.enqueue_at_port(frame),
                SimEvent::Arrives(frame) if self.hosts[frame.builder].is_stalled(now) => {
                    self.hosts[frame.builder].unread.push(frame);
                }
                SimEvent::Arrives(frame) => self.receive_frame(frame),
                SimEvent::Resume { builder } => {
                    for frame in std::mem::take(&mut self.hosts[builder].unread) {
                        self.receive_frame(frame);
                    }
                    self.request_fetches(builder);
                }
                SimEvent::Sample => self.sample_credit(),
                SimEvent::Pace { builder } => {
                    if self.hosts[builder].next_poll == Some(now) {
                        self.hosts[builder].next_poll = None;
                        self.request_fetches(builder);
                    }
                }
                SimEvent::Next { source } => self.fill_source_slots(source),
                SimEvent::Warm => {
                    self.warm = self.counter_marks();
                    self.hosts.iter_mut().for_each(|host| host.builder.clear_completion_times());
                    self.ports.iter_mut().for_each(|port| port.longest = 0);
                    self.sources.iter_mut().for_each(|source| source.most_waiting = 0);
                }
                SimEvent::End => {
                    self.end = self.counter_marks();
                    break;
                }
            }
        }
        Ok(())
    }

    fn elapsed_time(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn fill_source_slots(&mut self, source: usize) {
        self.sources[source].fill_slots(self.now);
        if let Some(next) = self.sources[source].next_event_time().filter(|next| *next > self.now) {
            self.calendar.schedule_event(next, SimEvent::Next { source });
        }
        self.start_sending(source);
    }

    /// Starts a source sending, if its link is free.
    fn start_sending(&mut self, source: usize) {
        if !self.sources[source].sending {
            self.sources[source].sending = true;
            self.send_next_frame(source);
        }
    }

    fn handle_message(&mut self, source: usize, builder: usize, message: Message) {
        match message {
            Message::Fetch(bytes) => {
                let target = &mut self.sources[source];
                target.queue.push_back((builder, Out::Data { left: bytes, head: MESSAGE_BYTES }));
                target.waiting += bytes;
                target.most_waiting = target.most_waiting.max(target.waiting);
                self.start_sending(source);
            }
            Message::Release(below) => {
                self.sources[source].release_slots(builder, below);
                self.fill_source_slots(source);
            }
        }
    }

    /// Puts the next frame of a source onto its link.
    fn send_next_frame(&mut self, source: usize) {
        let Some((builder, out)) = self.sources[source].queue.front_mut() else {
            self.sources[source].sending = false;
            return;
        };
        let builder = *builder;
        let (content, bytes, done) = match out {
            Out::Offer(offer) => (Content::Offer(*offer), MESSAGE_BYTES, true),
            Out::Data { left, head } => {
                let head = std::mem::take(head);
                let bytes = (*left).min(self.segment - head);
                *left -= bytes;
                (Content::Data(bytes), bytes + head, *left == 0)
            }
        };
        if done {
            self.sources[source].queue.pop_front();
        }
        if let Content::Data(bytes) = &content {
            self.sources[source].waiting -= bytes;
        }
        let wire = bytes + self.overhead;
        if let Some(gone) = self.ports[source].enqueue_frame(self.now, wire, wire) {
            self.calendar.schedule_event(gone, SimEvent::Free { source });
            let sent = &mut self.sources[source].sent_frames[builder];
            let number = *sent;
            *sent += 1;
            self.forward_frame(gone, Frame { source, builder, number, passed: 1, content, bytes });
        }
    }

    /// Sends a frame from a port to the next one. The cable after the last switch has all of the delay.
    fn forward_frame(&mut self, now: Time, frame: Frame) {
        let delay = if frame.passed + 1 == self.ports_on_path(&frame).len() { self.delay } else { 0 };
        self.calendar.schedule_event(now + delay, SimEvent::AtPort(frame));
    }

    /// Returns the ports on a frame's way, the sender's own link first.
    fn ports_on_path(&self, frame: &Frame) -> Vec<usize> {
        let Frame { source, builder, .. } = *frame;
        let senders = self.sources.len();
        let last = self.downlinks + builder;
        let scenario = self.scenario;
        if let Some(rack) = scenario.rack_of_sender(source as u32) {
            return vec![source, senders + rack as usize, last];
        }
        match (scenario.leaf_of_host(source as u32), scenario.leaf_of_host(builder as u32)) {
            (Some(from), Some(to)) if from != to => {
                vec![source, senders + 2 * from as usize, senders + 2 * to as usize + 1, last]
            }
            _ => vec![source, last],
        }
    }

    fn enqueue_at_port(&mut self, mut frame: Frame) {
        let wire = frame.bytes + self.overhead;
        let way = self.ports_on_path(&frame);
        match self.ports[way[frame.passed]].enqueue_frame(self.now, wire - 24, wire) {
            Some(gone) if frame.passed + 1 == way.len() => self.calendar.schedule_event(gone, SimEvent::Arrives(frame)),
            Some(gone) => {
                frame.passed += 1;
                self.forward_frame(gone, frame);
            }
            // The loss is detected, and the frame sent again.
            None => {
                frame.passed = 1;
                self.calendar.schedule_event(self.now + 2 * self.delay + 1000, SimEvent::AtPort(frame));
            }
        }
    }

    /// Delivers a frame that arrived and those that waited for it, if none before it is missing.
    fn receive_frame(&mut self, frame: Frame) {
        for readable in self.hosts[frame.builder].arrivals[frame.source].add_frame(frame) {
            self.deliver_frame(readable);
        }
    }

    fn deliver_frame(&mut self, frame: Frame) {
        let now = self.elapsed_time();
        let Frame { source, builder, content, .. } = frame;
        let host = &mut self.hosts[builder];
        let mut done = false;
        match content {
            Content::Offer(offer) => {
                self.messages += 1;
                if let Err(violation) = host.builder.handle_offer(source, offer, now) {
                    unreachable!("a source of the model broke the rules: {violation}");
                }
            }
            Content::Data(bytes) => {
                host.builder.count_received(source, bytes, now);
                let mut left = bytes;
                while left > 0
                    && let Some((ticket, wanted, last)) = host.pending_fetches[source].front_mut()
                {
                    let came = left.min(*wanted);
                    (*wanted, left) = (*wanted - came, left - came);
                    if *wanted > 0 {
                        break;
                    }
                    let (ticket, last) = (*ticket, *last);
                    host.pending_fetches[source].pop_front();
                    if last {
                        done = true;
                        let sent = &self.sources[source];
                        let first = sent.out[builder].iter().find(|slot| slot.offer.ticket == ticket);
                        let Some(first) = first.map(|slot| slot.offer.first) else { continue };
                        let lengths = sent.fragment_lengths(builder, ticket);
                        let records = Records::new(sent.id, first, self.scenario.network.receivers, lengths);
                        host.holds -= records.bytes as u64;
                        host.payload += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
                        if let Err(violation) = host.builder.arrived(source, ticket, &records).finish() {
                            unreachable!("a source of the model broke the rules: {violation}");
                        }
                    }
                }
            }
        }
        if done && let Some(below) = self.hosts[builder].builder.next_release(source) {
            self.send_message(source, builder, Message::Release(below));
        }
        self.request_fetches(builder);
    }

    /// Sends a builder's message to a source.
    fn send_message(&mut self, source: usize, builder: usize, message: Message) {
        self.messages += 1;
        self.calendar.schedule_event(self.now + self.delay, SimEvent::Message { source, builder, message });
    }

    /// Sends the fetches that a builder wants now, and schedules the next time that it can have some.
    fn request_fetches(&mut self, builder: usize) {
        if self.hosts[builder].is_stalled(self.now) {
            return;
        }
        let now = self.elapsed_time();
        while self.hosts[builder].builder.next_closed().is_some() {}
        while let Some(fetch) = self.hosts[builder].builder.next_fetch(now) {
            let host = &mut self.hosts[builder];
            let bytes = u64::from(fetch.range.end - fetch.range.start);
            let last = fetch.range.end == fetch.offer.bytes;
            host.pending_fetches[fetch.source].push_back((fetch.offer.ticket, bytes, last));
            if fetch.range.start == 0 {
                host.holds += u64::from(fetch.offer.bytes);
                host.most_held = host.most_held.max(host.holds);
            }
            // The header before the data that answers it counts as a message, too.
            self.messages += 1;
            self.send_message(fetch.source, builder, Message::Fetch(bytes));
        }
        let Self { hosts, calendar, .. } = self;
        let host = &mut hosts[builder];
        if let Some(at) = host.builder.next_request_time() {
            let at = (at.as_nanos() as Time).max(self.now + 1);
            if host.next_poll.is_none_or(|known| at < known) {
                host.next_poll = Some(at);
                calendar.schedule_event(at, SimEvent::Pace { builder });
            }
        }
    }

    fn sample_credit(&mut self) {
        for (credit, host) in self.credit.iter_mut().zip(&self.hosts) {
            credit.window.push(host.builder.credit_state().map_or(0, |state| state.window));
            for (source, at) in credit.at.iter_mut().enumerate() {
                at.push(host.builder.bytes_in_flight_of(source));
            }
        }
    }

    fn counter_marks(&self) -> Marks {
        Marks {
            at: self.now,
            payload: self.hosts.iter().map(|host| host.payload + host.builder.partial_slot_bytes()).collect(),
            events: self.hosts.iter().map(|host| host.builder.event_counts()).collect(),
            drops: self.ports.iter().map(|port| port.drops).collect(),
            messages: self.messages,
        }
    }

    fn build_report(&self, wall: Duration) -> Report {
        let seconds = (self.end.at - self.warm.at) as f64 * 1e-9;
        let receivers: Vec<Receiver> = (0..self.hosts.len()).map(|at| self.receiver_result(at, seconds)).collect();
        let goodput: f64 = receivers.iter().map(|receiver| receiver.goodput_bits_per_second).sum();
        let ceiling = self.scenario.ceiling_bits_per_second();
        let drops: u64 = self.end.drops.iter().sum::<u64>() - self.warm.drops.iter().sum::<u64>();
        let whole: u64 = self.end.drops.iter().sum();
        Report {
            laboratory: "model".to_owned(),
            scenario: self.scenario.clone(),
            goodput_bits_per_second: goodput,
            ceiling_bits_per_second: ceiling,
            share_of_ceiling: goodput / ceiling,
            retransmissions: drops,
            drops,
            whole_run: Troubles { retransmissions: whole, timeouts: 0, drops: whole },
            before: Some(Troubles { retransmissions: whole - drops, timeouts: 0, drops: whole - drops }),
            queue: self.fullest_queue(),
            events: receivers.iter().map(|one| one.events).sum(),
            completion: receivers.iter().filter_map(|one| one.completion).reduce(Completion::slower_of),
            measured_seconds: seconds,
            virtual_seconds: self.now as f64 * 1e-9,
            wall_seconds: wall.as_secs_f64(),
            bookkeeping: Some(self.coordination_cost(seconds)),
            ports: self.inner_port_results(),
            links: self.link_results(),
            timeline: Some(self.build_timeline()),
            notes: vec![
                "simulated: Thalweg's own event builder, in a network of queues; processors take no time".to_owned(),
                "frames dropped by a full buffer are sent again a round trip later; there are no acknowledgements"
                    .to_owned(),
            ],
            senders: (0..)
                .zip(&self.ports[..self.sources.len()])
                .map(|(number, port)| Sender {
                    name: port.name.clone(),
                    rate_bits_per_second: self.scenario.sender_rate(number).0,
                    ..Sender::default()
                })
                .collect(),
            receivers,
            ..Report::default()
        }
    }
}

impl World<'_> {
    fn receiver_result(&self, at: usize, seconds: f64) -> Receiver {
        let (times, port) = (self.hosts[at].builder.completion_times(), &self.ports[self.downlinks + at]);
        let [p50_us, p99_us, max_us] = [0.5, 0.99, 1.0].map(|quantile| times.value_at_quantile(quantile) as f64 / 1e3);
        let ((built_before, incomplete_before), (built, incomplete)) = (self.warm.events[at], self.end.events[at]);
        Receiver {
            name: port.name.clone(),
            goodput_bits_per_second: (self.end.payload[at] - self.warm.payload[at]) as f64 * 8.0 / seconds,
            events: Events { complete: built - incomplete - (built_before - incomplete_before), incomplete },
            completion: (!times.is_empty()).then_some(Completion {
                p50_us,
                p99_us,
                max_us,
                distribution: self.hosts[at].builder.completion_distribution(),
            }),
            drops: self.end.drops[self.downlinks + at] - self.warm.drops[self.downlinks + at],
            queue: self.queue_result(port),
            killed: false,
        }
    }

    fn queue_result(&self, port: &Port) -> Queue {
        let from = self.scenario.warm_up_time().as_secs_f64();
        let ends = (0..port.history.waiting.len()).map(|step| port.history.step_end(step) as f64 * 1e-9 - from);
        Queue {
            max_bytes: port.longest,
            mean_bytes: port.measured.mean_waiting_bytes(),
            limit_bytes: port.buffer,
            // Every frame is seen.
            sample_seconds: 0.0,
            over_time: ends.zip(port.history.waiting.iter().copied()).collect(),
        }
    }

    /// Returns the queue of the switch port that was fullest for its size.
    fn fullest_queue(&self) -> Queue {
        let ports = self.ports[self.sources.len()..].iter();
        let fullest = ports.max_by(|one, other| one.fill_fraction().total_cmp(&other.fill_fraction()));
        fullest.map(|port| self.queue_result(port)).unwrap_or_default()
    }

    fn link_results(&self) -> Vec<LinkUse> {
        let links = self.scenario.all_links();
        let uses = links.into_iter().zip(&self.ports).map(|(link, port)| LinkUse {
            name: link.name,
            kind: link.kind,
            rate_bits_per_second: link.rate.0,
            busy: port.measured.busy_fraction(),
            max_waiting_bytes: port.longest,
        });
        uses.collect()
    }

    fn build_timeline(&self) -> Timeline {
        let links = self.scenario.all_links();
        let kinds: Vec<LinkKind> = links.iter().map(|link| link.kind).collect();
        let drawn = links.into_iter().zip(&self.ports).zip(select_drawn_links(&kinds));
        let drawn = drawn.filter(|(_, is_drawn)| *is_drawn).map(|((link, port), _)| LinkOverTime {
            name: link.name,
            kind: link.kind,
            rate_bits_per_second: link.rate.0,
            busy: port.measured.busy_fractions(),
            waiting: port.measured.waiting.clone(),
        });
        let step = self.scenario.measured_time() / self.scenario.timeline_step_count();
        Timeline {
            from_seconds: 0.0,
            step_seconds: step.as_secs_f64(),
            links: drawn.collect(),
            credit: self.credit.clone(),
            again: SentAgain::default(),
        }
    }

    /// Returns the cost of coordinating the senders.
    fn coordination_cost(&self, seconds: f64) -> Bookkeeping {
        let messages = (self.end.messages - self.warm.messages) as f64;
        let payload: u64 = self.end.payload.iter().sum::<u64>() - self.warm.payload.iter().sum::<u64>();
        let event = self.scenario.event_payload_bytes();
        Bookkeeping {
            messages_per_second: messages / seconds,
            messages_per_event: messages * event / (payload as f64).max(1.0),
            share_of_bytes: messages * MESSAGE_BYTES as f64 / (payload as f64).max(1.0),
            builder_bytes: self.hosts.iter().map(|host| host.most_held).max().unwrap_or(0),
            source_bytes: self.sources.iter().map(|source| source.most_held).max().unwrap_or(0),
            card_bytes: self.sources.iter().map(|source| source.most_waiting).max().unwrap_or(0),
        }
    }

    /// Returns the results of the ports between switches.
    fn inner_port_results(&self) -> Vec<report::Port> {
        let ports = (self.sources.len()..self.downlinks).map(|at| report::Port {
            name: self.ports[at].name.clone(),
            drops: self.end.drops[at] - self.warm.drops[at],
            queue: self.queue_result(&self.ports[at]),
        });
        ports.collect()
    }
}

/// Content of a slot, of which only the headers matter.
struct Records {
    headers: Vec<(usize, [u8; HEADER_LEN])>,
    bytes: usize,
}

impl Records {
    fn new(source: SourceId, first: EventId, stride: u32, lengths: &[u32]) -> Self {
        let mut at = 0;
        let headers = lengths.iter().zip(0..).map(|(&length, n)| {
            let header = FragmentHeader {
                run: RunNumber(1),
                source,
                event: EventId(first.0 + n * u64::from(stride)),
                total_length: length,
                piece_length: length,
                ..FragmentHeader::default()
            };
            let begins = at;
            at += record_bytes(length as usize);
            (begins, header.encode())
        });
        let headers = headers.collect();
        Self { headers, bytes: at }
    }
}

impl RecordBytes for Records {
    fn byte_count(&self) -> usize {
        self.bytes
    }

    /// Copies a header, since only headers are read.
    fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        let header =
            self.headers.iter().find(|(begins, _)| *begins == at).map_or([0; HEADER_LEN], |(_, header)| *header);
        let length = out.len();
        out.copy_from_slice(&header[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let scenario = Scenario::parse(text).unwrap();
        check_scenario(&scenario).unwrap();
        run_model(&scenario, &AtomicBool::new(false)).unwrap()
    }

    /// Checks that nothing is dropped, no event is incomplete, and this share of the ceiling is reached.
    fn carries(text: &str, share: f64) -> Report {
        let report = report(text);
        assert_eq!((report.whole_run.drops, report.events.incomplete), (0, 0), "{text}");
        assert!(report.share_of_ceiling >= share, "{}: {text}", report.share_of_ceiling);
        report
    }

    #[test]
    fn builders_that_go_around_the_sources_keep_every_link_busy() {
        for (senders, receivers) in [(4, 4), (8, 8), (16, 16), (16, 4), (4, 16), (24, 24)] {
            for size in ["size = \"16 KiB\"", "size = \"64 KiB\"", "sizes = [\"1 KiB\", \"128 KiB\"]"] {
                let share = if size.contains("sizes") { 0.93 } else { 0.97 };
                let network = format!("[network]\nsenders = {senders}\nreceivers = {receivers}\n");
                carries(&format!("{network}[traffic]\n{size}\n[measure]\nseconds = 0.1\n"), share);
            }
        }
        carries("[network]\nsenders = 8\nreceivers = 8\n[traffic]\nsize = \"1 MiB\"\n[measure]\nseconds = 0.5\n", 0.97);
        let far = "[network]\nsenders = 8\nreceivers = 8\nrate = \"10 Gbit/s\"\ndelay = \"1ms\"\nbuffer = \"3.4 MB\"\n";
        carries(&format!("{far}[measure]\nseconds = 0.03\n"), 0.95);
    }

    #[test]
    fn one_builder_has_what_it_had_before_there_were_others() {
        for senders in [3, 10, 32] {
            carries(&format!("[network]\nsenders = {senders}\n[measure]\nseconds = 0.3\n"), 0.99);
        }
    }

    /// Returns the tables of senders that all have a link of this rate.
    fn senders_of_rate(count: u32, rate: &str) -> String {
        let tables = (0..count).map(|number| format!("[[network.sender]]\nnumber = {number}\nrate = \"{rate}\"\n"));
        format!("[network]\nsenders = {count}\n{}", tables.collect::<String>())
    }

    #[test]
    fn sources_that_are_all_slower_than_the_port_fill_it_together() {
        const MEASURE: &str = "[measure]\nseconds = 1.0\n";
        for (count, rate) in [(8, "100 Mbit/s"), (8, "200 Mbit/s"), (16, "50 Mbit/s")] {
            carries(&format!("{}{MEASURE}", senders_of_rate(count, rate)), 0.95);
        }
        for delay in ["20us", "100us"] {
            let port = "[[network.receiver]]\nnumber = 0\nrate = \"10 Gbit/s\"\n";
            let network = format!("[network]\nsenders = 16\nrate = \"1 Gbit/s\"\ndelay = \"{delay}\"\n{port}");
            carries(&format!("{network}[measure]\nseconds = 0.1\n"), 0.95);
        }
        let interval = "[traffic]\ninterval = \"14ms\"\n";
        let report = carries(&format!("{}{interval}{MEASURE}", senders_of_rate(8, "75 Mbit/s")), 0.0);
        let offered = report.scenario.offered_bits_per_second().unwrap();
        assert!(report.goodput_bits_per_second >= 0.95 * offered, "{}", report.goodput_bits_per_second);
    }

    /// Short pieces are for slow sources only: each costs two messages.
    #[test]
    fn sources_as_fast_as_the_port_are_fetched_from_in_long_pieces() {
        for senders in [3, 10, 32] {
            let report = carries(&format!("[network]\nsenders = {senders}\n[measure]\nseconds = 0.3\n"), 0.99);
            let messages = report.bookkeeping.unwrap().messages_per_event / f64::from(senders);
            assert!(messages < 4.1, "{senders} senders: {messages} messages for each fragment");
        }
    }

    #[test]
    fn a_source_of_nearly_all_bytes_has_what_its_link_carries() {
        for (receivers, others) in [(1, "64 KiB"), (8, "16 KiB")] {
            let network = format!("[network]\nsenders = 8\nreceivers = {receivers}\n");
            let text = "[[network.sender]]\nnumber = 0\nsize = \"1600 KiB\"\n";
            carries(&format!("{network}{text}[traffic]\nsize = \"{others}\"\n[measure]\nseconds = 0.4\n"), 0.9);
        }
    }

    #[test]
    fn nothing_is_dropped_in_front_of_uplinks_and_trunks_that_sources_share() {
        for (hosts, between) in [
            ("senders = 16\nreceivers = 4\n", "[network.shared]\nsenders = 4\n"),
            ("senders = 16\nreceivers = 16\n", "[network.tree]\nleaves = 2\noversubscription = 2\n"),
            ("senders = 16\nreceivers = 16\n", "[network.tree]\nleaves = 4\n"),
            ("senders = 16\nreceivers = 16\n", "[network.tree]\nleaves = 4\noversubscription = 2\n"),
            ("senders = 8\nreceivers = 8\n", "[network.shared]\nsenders = 4\nrate = \"2 Gbit/s\"\n"),
        ] {
            let report = carries(&format!("[network]\n{hosts}{between}[measure]\nseconds = 0.1\n"), 0.95);
            assert!(!report.ports.is_empty());
        }
    }

    /// Number of messages for each fragment: an offer, a release, and for each piece a fetch and the header of its
    /// data.
    #[test]
    fn messages_grow_with_the_fragments_and_memory_with_the_peers() {
        let fabric = |hosts: u32| {
            let network = format!("[network]\nsenders = {hosts}\nreceivers = {hosts}\nrate = \"100 Gbit/s\"\n");
            let rest = "delay = \"5us\"\nbuffer = \"4 MB\"\nmtu = 9000\n[network.tree]\nleaves = 5\n";
            let measure = "[measure]\nseconds = 0.002\nwarm_up = \"2ms\"\n";
            let report = carries(&format!("{network}{rest}{measure}"), 0.95);
            report.bookkeeping.unwrap()
        };
        let (few, many) = (fabric(10), fabric(40));
        for (hosts, found) in [(10.0, few), (40.0, many)] {
            assert!((found.messages_per_event / (4.0 * hosts) - 1.0).abs() < 0.05, "{found:?}");
            assert!(found.share_of_bytes < 0.01, "{found:?}");
        }
        assert!(many.builder_bytes <= 4 * few.builder_bytes, "{few:?} {many:?}");
    }

    /// A later frame must not overtake one that is dropped and sent again.
    #[test]
    fn frames_are_read_in_order_after_drops() {
        for traffic in ["", "[traffic]\ninterval = \"1200us\"\n"] {
            let network = "[network]\nsenders = 2\ndelay = \"50ms\"\nbuffer = \"10 kB\"\n";
            let report = report(&format!("{network}{traffic}[measure]\nseconds = 2\n"));
            assert!(report.whole_run.drops > 0 && report.events.complete > 0, "{:?}", report.whole_run);
        }
    }

    #[test]
    fn what_the_model_lacks_is_refused_by_its_key() {
        for (text, key) in [
            ("[network]\nsenders = 2\nloss = 0.1\n", "network.loss"),
            ("[network]\nsenders = 2\n[traffic]\ncontrol = \"cubic\"\n", "traffic.control"),
            ("[network]\nsenders = 2\n[traffic]\ncross = 1\n", "traffic.cross"),
        ] {
            assert_eq!(check_scenario(&Scenario::parse(text).unwrap()).unwrap_err().key, key);
        }
    }
}
