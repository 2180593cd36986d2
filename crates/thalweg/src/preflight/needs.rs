//! Requirements of a topology on this machine.

use thalweg_arena::{PAGE_BYTES, SLOT_HEADROOM_BYTES};
use thalweg_core::build::Window;
use thalweg_doctor::{Data, Needs, NodeNeeds};
use thalweg_link::Address;
use thalweg_node::{BuilderNodeConfig, Policy, SourceNodeConfig, Topology};
use thalweg_wire::record_bytes;

/// Size of a block's index entry for each record, in bytes.
const INDEX_ENTRY: u64 = 16;

/// Treatment of recordings, whose fragment lengths need the recording to be opened, which takes time for a long one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recordings {
    /// Each recording is opened, as its source does.
    Opened,
    /// No recording is opened: lengths that would need it are left out.
    Unopened,
}

/// Returns the requirements of a topology on this machine: of all its nodes, or of one.
pub fn topology_needs(topology: &Topology, node: Option<&str>, recordings: Recordings) -> Needs {
    let flows: Vec<Flow> = topology.sources.iter().map(|source| Flow::from_source(source, recordings)).collect();
    #[expect(clippy::cast_precision_loss, reason = "builders are few")]
    let builders = topology.builders.len() as f64;
    let rate = flows.iter().map(|flow| flow.bytes_per_second).sum::<Option<f64>>().filter(|_| !flows.is_empty());
    let each = rate.map(|rate| rate / builders);

    let building: Vec<_> = topology.builders.iter().filter(|builder| is_examined_here(node, &builder.name)).collect();
    let mut nodes: Vec<NodeNeeds> = building.iter().map(|config| builder_needs(topology, config, each)).collect();
    let sources = topology.sources.iter().zip(&flows);
    // A source without a device belongs to another program.
    let sources = sources.filter(|(source, _)| is_examined_here(node, &source.name) && source.device.is_some());
    nodes.extend(sources.map(|(source, flow)| source_needs(topology, source, flow)));

    let of_event = flows.iter().map(|flow| flow.record).try_fold(0u64, |sum, record| Some(sum.saturating_add(record?)));
    let run_bytes = topology.run.events.zip(of_event).map(|(events, bytes)| events.saturating_mul(bytes));
    Needs {
        directory: topology.run.directory.clone(),
        record: topology.run.record && !building.is_empty(),
        data: Data {
            #[expect(clippy::cast_precision_loss, reason = "builders are few")]
            bytes_per_second: each.map(|each| each * building.len() as f64),
            duration: topology.run.duration,
            bytes: run_bytes.map(|all| all / topology.builders.len().max(1) as u64 * building.len() as u64),
            at_most: flows.iter().any(|flow| !flow.exact),
        },
        measure_disk: false,
        nodes,
    }
}

/// True if this node is examined: it is the named one, or none is named.
fn is_examined_here(node: Option<&str>, name: &str) -> bool {
    node.is_none_or(|node| node == name)
}

fn builder_needs(topology: &Topology, config: &BuilderNodeConfig, rate: Option<f64>) -> NodeNeeds {
    NodeNeeds {
        name: config.name.clone(),
        cpu: config.cpu,
        blocks: config
            .block
            .0
            .saturating_mul(config.block_count_for(&config.window_and_eager_bytes(topology.sources.len()).0).into()),
        listen: config.listen.clone(),
        window: window_bytes(config),
        adapter: config.adapter.is_some(),
        bytes_per_second: rate,
        files: topology.builder_open_files(),
        ..NodeNeeds::default()
    }
}

fn source_needs(topology: &Topology, config: &SourceNodeConfig, flow: &Flow) -> NodeNeeds {
    let connect: Vec<Address> = topology
        .builders
        .iter()
        .filter_map(|builder| topology.builder_address(builder, config.link).cloned())
        .collect();
    let window = topology.builders.iter().map(window_bytes).max().unwrap_or(0);
    let slot = match (config.slot, flow.payload) {
        (None, None) => None,
        (_, payload) => Some(config.slot_bytes(payload.unwrap_or(0))),
    };
    let stride = slot
        .map(|slot| slot.saturating_add(SLOT_HEADROOM_BYTES).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES) as u64);
    // Each slot may be given to a driver, and then has a file.
    let dma_bufs = config.device.as_ref().map_or(0, |device| device.files_per_slot() * u64::from(config.slots));
    NodeNeeds {
        name: config.name.clone(),
        cpu: config.cpu,
        slots: stride.unwrap_or(0).saturating_mul(config.slots.into()),
        files: topology.source_open_files(config) + dma_bufs,
        connect,
        congestion: config.congestion.clone(),
        window,
        adapter: config.adapter.is_some(),
        bytes_per_second: flow.bytes_per_second,
        ..NodeNeeds::default()
    }
}

/// Returns the number of bytes that a builder may request at a time.
fn window_bytes(config: &BuilderNodeConfig) -> u64 {
    match config.window_and_eager_bytes(1).0 {
        Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        Window::Credit(path) => path.widest_window_bytes(),
    }
}

/// Data that a source produces.
struct Flow {
    /// Length of its longest payload in bytes.
    payload: Option<usize>,
    /// Number of bytes that a fragment takes on disk.
    record: Option<u64>,
    bytes_per_second: Option<f64>,
    /// True if every fragment is as long as the longest, none is dropped, and they do not come to an end.
    exact: bool,
}

impl Flow {
    fn from_source(source: &SourceNodeConfig, recordings: Recordings) -> Self {
        let stated = source.device.as_ref().and_then(|device| device.longest_payload_bytes());
        let stated = stated.and_then(|bytes| usize::try_from(bytes).ok());
        let payload = stated.or_else(|| match &source.device {
            Some(recording) if recordings == Recordings::Opened && !recording.is_acquisition() => {
                // A recording that cannot be opened is reported by its node.
                thalweg_device::open_device(recording).ok().map(|device| device.max_payload_bytes())
            }
            _ => None,
        });
        let exact = source.device.as_ref().is_some_and(|device| device.is_steady_stream());
        // If the disk is too slow, such a source drops fragments for which it has no room.
        let exact = exact && source.policy == Policy::Block;
        // No payload is longer than a slot can be; a longer one is refused by its device.
        let payload = payload.filter(|payload| *payload <= 1 << 30);
        let record = payload.map(|payload| record_bytes(payload) as u64 + INDEX_ENTRY);
        #[expect(clippy::cast_precision_loss, reason = "at most 1 GiB")]
        let bytes_per_second = source.rate.zip(record).map(|(rate, record)| rate.events_per_second() * record as f64);
        Self { payload, record, bytes_per_second, exact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::fixture::{LAB, parse_topology};

    #[test]
    fn a_topology_asks_for_what_all_its_nodes_ask_for() {
        let all = topology_needs(&parse_topology(LAB), None, Recordings::Opened);
        assert_eq!(
            all.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
            ["even", "odd", "adc", "camera"]
        );
        let rate = all.data.bytes_per_second.unwrap();
        assert!((5.2e8..5.3e8).contains(&rate), "{rate}: 100 events of 5 MiB each second");
        assert_eq!(all.data.total_bytes(), Some((rate * 10.0) as u64));
        assert!(all.record && !all.data.at_most);
        let [even, _, adc, camera] = &all.nodes[..] else { panic!() };
        assert_eq!((even.cpu, even.blocks, even.slots), (Some(1), 32 << 20, 0));
        assert_eq!((even.bytes_per_second, even.listen.len()), (Some(rate / 2.0), 2));
        assert_eq!((adc.congestion.as_deref(), adc.connect.len()), (Some("reno"), 2));
        assert!((16 << 20..17 << 20).contains(&camera.slots), "{}", camera.slots);
        assert_eq!(camera.connect[0], "shm:/tmp/even.sock".parse().unwrap());
    }

    #[test]
    fn one_node_asks_for_its_part() {
        let lab = parse_topology(LAB);
        let all = topology_needs(&lab, None, Recordings::Opened);
        let even = topology_needs(&lab, Some("even"), Recordings::Opened);
        assert_eq!(even.nodes, all.nodes[..1]);
        assert_eq!(even.data.bytes_per_second.map(|rate| rate * 2.0), all.data.bytes_per_second);
        let adc = topology_needs(&lab, Some("adc"), Recordings::Opened);
        assert_eq!((adc.nodes.len(), adc.record), (1, false), "a source writes nothing");
    }

    #[test]
    fn events_make_a_volume_and_recordings_only_a_bound() {
        let counted = LAB.replace("duration = \"10s\"", "events = 7").replace("rate = 100.0", "");
        let all = topology_needs(&parse_topology(&counted), None, Recordings::Opened);
        let fragment = |payload: usize| record_bytes(payload) as u64 + INDEX_ENTRY;
        assert_eq!(all.data.bytes, Some(7 * (fragment(1 << 20) + fragment(4 << 20)) / 2 * 2));
        assert_eq!(all.data.bytes_per_second, None, "as fast as they are taken");
        let raw = counted.replace("model-adc\", size = \"4MiB\"", "raw\", file = \"x\", record = \"4MiB\"");
        assert!(topology_needs(&parse_topology(&raw), None, Recordings::Unopened).data.at_most, "it may end before");
        let pushed = counted.replace("device = { kind = \"model-adc\", size = \"4MiB\" }", "");
        let pushed = topology_needs(&parse_topology(&pushed), None, Recordings::Opened);
        assert_eq!(
            (pushed.data.total_bytes(), pushed.nodes.len()),
            (None, 3),
            "the data of a program that pushes are unknown"
        );
    }
}
