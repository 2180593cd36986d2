//! The topology of a scenario's nodes: Thalweg's own defaults unless the scenario overrides them.

use crate::network::Host;
use crate::scenario::{Assignment, Scenario};
use serde::Serialize;
use std::time::Duration;

/// Port that builders listen on.
const BUILDER_PORT: u16 = 7400;
/// Smallest memory of a builder, in bytes.
const LEAST_BUILDER: u64 = 8 << 20;
const MIN_BLOCK_BYTES: u64 = 1 << 20;
/// Bytes of a block in addition to the largest slot: its index and closings.
const BLOCK_OVERHEAD_BYTES: u64 = 256 << 10;

/// Returns the text of a topology file.
pub(crate) fn topology_text(
    scenario: &Scenario,
    senders: &[Host],
    receivers: &[Host],
) -> Result<String, toml::ser::Error> {
    let memory = Memory::for_scenario(scenario);
    let calibrate = scenario.measure.calibrate;
    toml::to_string(&Topology {
        run: Run {
            record: false,
            assignment: scenario.traffic.assignment,
            warm_up: time_text(scenario.warm_up_time()),
            // A calibration ends by itself.
            steady: (!calibrate).then(|| time_text(scenario.measured_time())),
            // Builders begin one after the other, as the start is announced to them, and each measures for the full
            // time.
            duration: (!calibrate)
                .then(|| time_text(scenario.warm_up_time() + scenario.measured_time() + max_start_skew(scenario))),
            calibrate,
            timeout: "5m".into(),
        },
        builder: (0..).zip(receivers).map(|(number, host)| builder_section(scenario, memory, number, host)).collect(),
        source: (0..).zip(senders).map(|(number, host)| source_section(scenario, memory, number, host)).collect(),
    })
}

fn time_text(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn builder_section(scenario: &Scenario, memory: Memory, number: u32, host: &Host) -> Builder {
    let Scenario { traffic, measure, .. } = scenario;
    let credit = traffic.control.credit && !measure.calibrate;
    Builder {
        name: host.name.clone(),
        listen: [format!("{}:{}:{BUILDER_PORT}", traffic.link.name(), host.address)],
        block: memory.block,
        blocks: memory.blocks,
        // Without credits everything is fetched as soon as it is offered: the window is disabled by its size.
        window: (!credit && !measure.calibrate).then_some(64 << 30),
        link: credit.then(|| link_settings(scenario, number)),
        open_events: memory.open,
        // Longer than TCP takes to detect lost packets many times over: no event is given up.
        deadline: "1h".into(),
        check: "header",
    }
}

fn link_settings(scenario: &Scenario, builder: u32) -> Link {
    let (rate, buffer) = scenario.port_for_credit(builder);
    // Hosts take time even if the network has no delay.
    let round_trip = time_text(scenario.round_trip_time().max(Duration::from_micros(50)));
    Link { rate: rate.to_string(), round_trip, buffer, mtu: scenario.network.mtu }
}

fn source_section(scenario: &Scenario, memory: Memory, number: u32, host: &Host) -> Source {
    let traffic = &scenario.traffic;
    let (from, to) = scenario.payload_range_of(number);
    let own = Slots::for_sender(scenario, number, memory.open);
    Source {
        name: host.name.clone(),
        id: format!("1.{number}"),
        link: traffic.link.name(),
        congestion: traffic.control.congestion,
        rate: traffic.interval.map(|interval| 1.0 / interval.as_secs_f64()),
        burst: traffic.burst,
        slots: own.count,
        slot: own.bytes,
        device: Device {
            kind: "model-adc",
            size: to,
            size_from: (from < to).then_some(from),
            // One waveform is made once, as the content does not matter here.
            period: u64::from(from == to),
        },
    }
}

/// Returns the longest time from the start of the first builder to that of the last: it is announced to them by way of
/// sources that send as much as they can.
fn max_start_skew(scenario: &Scenario) -> Duration {
    match scenario.network.receivers {
        1 => Duration::ZERO,
        _ => 10 * scenario.round_trip_time() + Duration::from_millis(10),
    }
}

/// Memory of the nodes: enough that the network is the limit, and no more, since fast sources run ahead of a slow one
/// as far as memory lasts, and a run continues for that much at its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    block: u64,
    blocks: u64,
    /// Number of events that are open at a time.
    pub(crate) open: u64,
}

impl Memory {
    pub(crate) fn for_scenario(scenario: &Scenario) -> Self {
        let way = scenario.bandwidth_delay_bytes() + scenario.buffer_bytes_on_path();
        let together = events_per_slot(scenario);
        let open = match scenario.traffic.barrier {
            true => 1,
            // A fragment is under way for two round trips (offer, fetch, data, release) and the wait in the switches.
            // A few more, since neither fragments nor sources are all alike.
            false => ((4 * way).div_ceil((scenario.event_payload_bytes() as u64).max(1)) + 4 * together).min(1 << 24),
        };
        let senders = 0..scenario.network.senders;
        let slots: Vec<u64> = senders.map(|sender| Slots::for_sender(scenario, sender, open).bytes).collect();
        let block =
            (slots.iter().max().unwrap_or(&0) + BLOCK_OVERHEAD_BYTES).max(MIN_BLOCK_BYTES).next_multiple_of(4096);
        // Fragments longer than half a block have a block each; of others, as many as fit share one.
        let alone = slots.iter().filter(|slot| 2 * **slot > block).count() as u64;
        let shared = match alone < u64::from(scenario.network.senders) {
            true => (2 * way).max(LEAST_BUILDER).div_ceil(block) + ROUND_ROBIN_SLOTS,
            false => 0,
        };
        Self { open, block, blocks: (open * alone + shared).clamp(4, 4096) }
    }

    /// Returns the number of events that share a slot, and the number of slots of each source that a builder may be
    /// working on at a time, for senders that are alike.
    pub(crate) fn open_slots(self, scenario: &Scenario) -> (u64, u64) {
        // Without bursts of events, a slot is offered as soon as no other is under way.
        let full = events_per_slot(scenario);
        let together = if scenario.traffic.interval.is_some() { 1 } else { full };
        let own = Slots::for_sender(scenario, 0, self.open).count / u64::from(scenario.network.receivers);
        (together, self.open.div_ceil(full).min(own))
    }

    /// Returns the number of bytes of all nodes together.
    pub(crate) fn total_bytes(self, scenario: &Scenario) -> u64 {
        let network = &scenario.network;
        let slots = (0..network.senders).map(|sender| Slots::for_sender(scenario, sender, self.open));
        let sources: u64 = slots.map(|slots| slots.bytes * slots.count).sum();
        sources + self.block * self.blocks * u64::from(network.receivers)
    }
}

/// Slots of a source: size and number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

impl Slots {
    pub(crate) fn for_sender(scenario: &Scenario, sender: u32, open: u64) -> Self {
        let together = events_per_slot(scenario);
        let count = (open.div_ceil(together) + 2) * u64::from(scenario.network.receivers);
        Self { bytes: max_record_bytes(scenario, sender) * together, count: count.min(65_536) }
    }
}

/// Returns the number of events whose fragments share a full slot. It is the same at all senders, from the mean length
/// of their records: if one with short records had many in a slot, all others would have to hold as many events.
fn events_per_slot(scenario: &Scenario) -> u64 {
    let senders = scenario.network.senders;
    let records: u64 = (0..senders).map(|sender| max_record_bytes(scenario, sender)).sum();
    if scenario.traffic.barrier { 1 } else { (MAX_SHARED_SLOT_BYTES * u64::from(senders) / records).max(1) }
}

/// Returns the length of this sender's longest record, in bytes.
fn max_record_bytes(scenario: &Scenario, sender: u32) -> u64 {
    64 + scenario.payload_range_of(sender).1.div_ceil(64) * 64
}

/// Number of slots that a builder fetches in turns.
const ROUND_ROBIN_SLOTS: u64 = 4;
/// Largest slot with several fragments, in bytes.
const MAX_SHARED_SLOT_BYTES: u64 = 64 << 10;

#[derive(Debug, Serialize)]
struct Topology {
    run: Run,
    builder: Vec<Builder>,
    source: Vec<Source>,
}

#[derive(Debug, Serialize)]
struct Run {
    record: bool,
    assignment: Assignment,
    warm_up: String,
    steady: Option<String>,
    duration: Option<String>,
    calibrate: bool,
    timeout: String,
}

#[derive(Debug, Serialize)]
struct Builder {
    name: String,
    listen: [String; 1],
    block: u64,
    blocks: u64,
    window: Option<u64>,
    link: Option<Link>,
    open_events: u64,
    deadline: String,
    check: &'static str,
}

#[derive(Debug, Clone, Serialize)]
struct Link {
    rate: String,
    round_trip: String,
    buffer: u64,
    mtu: u32,
}

#[derive(Debug, Serialize)]
struct Source {
    name: String,
    id: String,
    link: &'static str,
    congestion: &'static str,
    rate: Option<f64>,
    burst: Option<u32>,
    slots: u64,
    slot: u64,
    device: Device,
}

#[derive(Debug, Serialize)]
struct Device {
    kind: &'static str,
    size: u64,
    size_from: Option<u64>,
    period: u64,
}
