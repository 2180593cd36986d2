//! The topology that a scenario's nodes run: sources and builders with Thalweg's own defaults wherever the scenario
//! does not say otherwise.

use crate::network::Host;
use crate::scenario::Scenario;
use serde::Serialize;
use std::time::Duration;

/// The port builders listen on.
const PORT: u16 = 7400;
/// The smallest memory of a builder, in bytes.
const LEAST_BUILDER: u64 = 8 << 20;
const BLOCK: u64 = 1 << 20;
/// What a block needs beside the largest slot: its index and closings.
const BESIDE: u64 = 256 << 10;

/// A topology as a file.
pub(crate) fn topology(scenario: &Scenario, senders: &[Host], receivers: &[Host]) -> Result<String, toml::ser::Error> {
    let Scenario { network, traffic, .. } = scenario;
    let time = |time: Duration| humantime::format_duration(time).to_string();
    let memory = Memory::of(scenario);
    let (from, to) = scenario.sizes();
    let calibrate = scenario.measure.calibrate;
    let link = (traffic.control.credit && !calibrate).then(|| Link {
        rate: network.rate.to_string(),
        // Hosts take time too where the network takes none.
        round_trip: time(scenario.round_trip().max(Duration::from_micros(50))),
        buffer: network.buffer.0,
        mtu: network.mtu,
    });
    let builder = |host: &Host| Builder {
        name: host.name.clone(),
        listen: [format!("tcp:{}:{PORT}", host.address)],
        block: memory.block,
        blocks: memory.blocks,
        // Without credits everything is asked for as soon as it is offered: what the window has to say is switched off.
        window: (link.is_none() && !calibrate).then_some(64 << 30),
        link: link.clone(),
        open_events: memory.open,
        // Longer than TCP takes to find out about a lost packet many times over: no event is given up.
        deadline: "1h".into(),
        check: "header",
    };
    let source = |(number, host): (usize, &Host)| Source {
        name: host.name.clone(),
        id: format!("1.{number}"),
        congestion: traffic.control.congestion,
        rate: traffic.interval.map(|interval| 1.0 / interval.as_secs_f64()),
        slots: memory.slots,
        slot: memory.slot,
        device: Device {
            kind: "model-adc",
            size: to,
            size_from: (from < to).then_some(from),
            // One waveform is made once: what the bytes are does not matter here.
            period: u64::from(from == to),
        },
    };
    toml::to_string(&Topology {
        run: Run {
            record: false,
            warm_up: time(scenario.warm_up()),
            // What is found out ends it.
            duration: (!calibrate).then(|| time(scenario.warm_up() + scenario.measured())),
            calibrate,
            timeout: "5m".into(),
        },
        builder: receivers.iter().map(builder).collect(),
        source: senders.iter().enumerate().map(source).collect(),
    })
}

/// How much memory the nodes get: so much that the network limits and not they, and no more, since fast sources run
/// ahead of a slow one, and a run goes on at its end, as far as it reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    slot: u64,
    slots: u64,
    block: u64,
    blocks: u64,
    /// Events whose fragments share a slot that is full.
    together: u64,
    /// Events that are open at a time.
    open: u64,
}

impl Memory {
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let (senders, receivers) = (u64::from(scenario.network.senders), u64::from(scenario.network.receivers));
        let way = scenario.bandwidth_delay() + scenario.network.buffer.0;
        let (from, largest) = scenario.sizes();
        let record = 64 + largest.div_ceil(64) * 64;
        let together = if scenario.traffic.barrier { 1 } else { (SLOT / record).max(1) };
        let open = match scenario.traffic.barrier {
            true => 1,
            // A fragment is on its way for two round trips (offer, fetch, data, release) and the wait in the switch. A
            // few more, since fragments are not all alike, nor are sources.
            false => ((4 * way).div_ceil(senders * (from + largest) / 2) + 4 * together).min(1 << 24),
        };
        let slot = record * together;
        let block = (slot + BESIDE).max(BLOCK).next_multiple_of(4096);
        // Fragments longer than half a block have one each.
        let blocks = match 2 * slot > block {
            true => open * senders,
            false => (2 * way).max(LEAST_BUILDER).div_ceil(block) + TURNS,
        };
        let slots = (open.div_ceil(together) + 2) * receivers;
        Self { together, open, slot, slots: slots.min(65_536), block, blocks: blocks.clamp(4, 4096) }
    }

    /// Events that share a slot, and slots of each source that a builder may be at, at a time.
    pub(crate) fn open_slots(self, scenario: &Scenario) -> (u64, u64) {
        // Where events come one by one, a slot is offered as soon as nothing else is under way.
        let together = if scenario.traffic.interval.is_some() { 1 } else { self.together };
        let own = self.slots / u64::from(scenario.network.receivers);
        (together, self.open.div_ceil(together).min(own))
    }

    /// Bytes of all nodes together.
    pub(crate) fn total(self, scenario: &Scenario) -> u64 {
        let network = &scenario.network;
        self.slot * self.slots * u64::from(network.senders) + self.block * self.blocks * u64::from(network.receivers)
    }
}

/// How many slots a builder asks for in turns.
const TURNS: u64 = 4;
/// Slots hold several fragments up to this size.
const SLOT: u64 = 64 << 10;

#[derive(Debug, Serialize)]
struct Topology {
    run: Run,
    builder: Vec<Builder>,
    source: Vec<Source>,
}

#[derive(Debug, Serialize)]
struct Run {
    record: bool,
    warm_up: String,
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
    congestion: &'static str,
    rate: Option<f64>,
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
