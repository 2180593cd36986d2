//! What a topology asks of this machine, and whether a node may go ahead with it.

use crate::builder::Trigger;
use crate::topology::{BuilderNodeConfig, Decision, Policy, SourceNodeConfig, Topology};
use crate::{Feed, NodeError};
use thalweg_arena::{HEADROOM, PAGE};
use thalweg_build::Window;
use thalweg_dev::{Card, Sampler, Stream, Video};
use thalweg_device::{DeviceConfig, DeviceError, OnTime, tap_acquisition, tap_device};
use thalweg_doctor::{Data, Finding, Level, Needs, NodeNeeds};
use thalweg_features::{Fit, Row};
use thalweg_filter::Condition;
use thalweg_link::{Adapter, Address};
use thalweg_pci::{Edu, Nvme};
use thalweg_store::{StoreError, run_directory_name};
use thalweg_wire::{RunNumber, record_len};

/// Files a node has open besides its links: standard streams, memory, poller, wake-ups, ring, run.
const OWN_FILES: u64 = 16;
/// What a block keeps of each record in its index, in bytes.
const INDEX_ENTRY: u64 = 16;

/// Refuses what would end the run, or lose data, once it has begun: processors, addresses, memory, files or a disk that
/// are not there, a run number that is taken; for one node, or for all of them on one machine. What costs only speed is
/// returned, and logged for who asks (`-v`).
///
/// # Errors
/// The first thing that is not there, and what to do about it.
pub fn preflight(topology: &Topology, node: Option<&str>) -> Result<Vec<Finding>, NodeError> {
    let builders =
        topology.builders.iter().zip(0..).filter(|(builder, _)| node.is_none_or(|node| node == builder.name));
    if topology.run.record {
        let count = u32::try_from(topology.builders.len()).unwrap_or(u32::MAX);
        for (_, index) in builders {
            match topology.run.number {
                Some(number) => {
                    let name = run_directory_name(RunNumber(number), index, count);
                    let path = topology.run.directory.join(name);
                    if path.symlink_metadata().is_ok() {
                        return Err(StoreError::Exists(path).into());
                    }
                }
                // All of them on one machine are given one.
                None if node.is_some() => check_number(topology)?,
                None => {}
            }
        }
    }
    for builder in topology.builders.iter().filter(|builder| node.is_none_or(|node| node == builder.name)) {
        check_conditions(topology, builder)?;
    }
    let findings = thalweg_doctor::preflight(&needs(topology, node, Recordings::Unopened));
    for finding in &findings {
        match finding.level {
            Level::Ok => {}
            Level::Degraded => {
                let Finding { name, evidence, cost, remedy, .. } = finding;
                tracing::info!(node, name, evidence, cost, remedy, "preflight: it could be faster");
            }
            Level::Missing => return Err(NodeError::Preflight(Box::new(finding.clone()))),
        }
    }
    Ok(findings)
}

/// Whether conditions speak of features that there are, as far as the topology tells.
fn check_conditions(topology: &Topology, builder: &BuilderNodeConfig) -> Result<(), NodeError> {
    for (level, config) in [("level2", &builder.level2), ("filter", &builder.filter)] {
        let Some(Ok(Decision::Condition(mut condition))) = config.as_ref().map(|level| level.decision(1)) else {
            continue;
        };
        let wrong = |problem| NodeError::Config(format!("builder '{}': {level}.accept: {problem}", builder.name));
        let mut known = true;
        for variable in condition.variables() {
            let named = |source: &&SourceNodeConfig| Condition::variable(&source.name) == variable;
            match topology.sources.iter().find(named).map(|source| (source, &source.device)) {
                Some((source, Some(DeviceConfig::Fit(fit)))) => {
                    let features = Row::of(fit, Err("damaged")).names;
                    condition.bind(variable, source.source_id(), features);
                }
                Some((source, Some(_))) => {
                    return Err(wrong(format!("source '{}' has no features: it is no fit", source.name)));
                }
                // Another program says what it pushes.
                Some((_, None)) | None => known = false,
            }
        }
        if known {
            condition.check().map_err(wrong)?;
        }
    }
    Ok(())
}

/// Several builders that are started one by one cannot choose one number.
pub(crate) fn check_number(topology: &Topology) -> Result<(), NodeError> {
    if topology.builders.len() > 1 && topology.run.record && topology.run.number.is_none() {
        return Err(NodeError::Config(
            "run.number: several builders record one run, so it needs a number that all of them know".into(),
        ));
    }
    Ok(())
}

/// Starts the programs that decide for a builder, waits until each is ready, and ends them.
///
/// # Errors
/// One cannot be started, or is no such program; and which.
pub fn try_programs(builder: &BuilderNodeConfig) -> Result<(), NodeError> {
    Trigger::new(builder, 1, false, crate::now()).map(drop)
}

/// A source's device, ready to be asked.
#[derive(Debug)]
pub struct OpenDevice {
    /// Where fragments come from.
    pub feed: Feed,
    /// Bytes in each of the source's slots.
    pub slot_bytes: usize,
    /// The sources that fit its images, by their places in the topology, with what they are fed by: they run where it
    /// does.
    pub fits: Vec<(usize, OpenDevice)>,
}

/// Opens a source's device, with the fits of its images, and checks that its fragments fit the slots, and the slots every
/// builder's blocks. Nothing where another program pushes, and where it is a fit of another source's images.
///
/// # Errors
/// The device cannot be opened, or its fragments do not fit.
pub fn open_device(topology: &Topology, source: &SourceNodeConfig) -> Result<Option<OpenDevice>, NodeError> {
    let Some(mut config) = source.device.clone() else { return Ok(None) };
    if matches!(config, DeviceConfig::Fit(_)) {
        return Ok(None);
    }
    config.set_source(source.source_id());
    let feed = open_feed(&config, source.adapter.as_ref())?;
    let mut feed = match (feed, source.beat) {
        (Feed::Acquisition(device), Some(beat)) => Feed::Acquisition(Box::new(OnTime::new(device, beat))),
        (feed, _) => feed,
    };
    let mut fits = Vec::new();
    for (index, other) in topology.sources.iter().enumerate() {
        let Some(DeviceConfig::Fit(config)) = &other.device else { continue };
        if config.of != source.name {
            continue;
        }
        let (tapped, copies, reorders) = match feed {
            Feed::Device(device) => {
                let (tapped, copies) = tap_device(device, config.waiting as usize)?;
                (Feed::Device(tapped), copies, 0)
            }
            Feed::Acquisition(device) => {
                let reorders = device.reorders();
                let (tapped, copies) = tap_acquisition(device, config.waiting as usize)?;
                (Feed::Acquisition(tapped), copies, reorders)
            }
            // It has a device.
            Feed::Pushed { .. } => return Ok(None),
        };
        feed = tapped;
        let description = feed.description().cloned().unwrap_or_default();
        let of = |error: NodeError| NodeError::Config(format!("its fit '{}': {error}", other.name));
        let fit = Fit::new(config, &description, reorders, copies).map_err(|error| of(error.into()))?;
        fits.push((index, fitting(topology, other, Feed::Acquisition(Box::new(fit)), Vec::new()).map_err(of)?));
    }
    fitting(topology, source, feed, fits).map(Some)
}

/// A device of which every fragment fits a slot, and every slot a block.
fn fitting(
    topology: &Topology,
    source: &SourceNodeConfig,
    feed: Feed,
    fits: Vec<(usize, OpenDevice)>,
) -> Result<OpenDevice, NodeError> {
    let (longest, least) = (feed.max_payload(), record_len(feed.max_payload()));
    let slot_bytes = source.slot_bytes(longest);
    if least > slot_bytes {
        return Err(NodeError::Config(format!(
            "slot: {slot_bytes} bytes cannot hold a fragment of {longest} bytes and its header; set slot to at least {least}"
        )));
    }
    topology.check_slot(slot_bytes as u64, least).map_err(|problem| NodeError::Config(format!("slot: {problem}")))?;
    Ok(OpenDevice { feed, slot_bytes, fits })
}

/// Opens what a device's table says.
///
/// # Errors
/// It cannot be opened.
pub fn open_feed(config: &DeviceConfig, adapter: Option<&Adapter>) -> Result<Feed, DeviceError> {
    Ok(match config {
        DeviceConfig::Udp(udp) => Feed::Acquisition(thalweg_instrument::open(udp, adapter)?),
        DeviceConfig::Gige(gige) => Feed::Acquisition(thalweg_gige::open(gige)?),
        DeviceConfig::Edu(edu) => Feed::Acquisition(Box::new(Edu::new(edu)?)),
        DeviceConfig::Nvme(nvme) => Feed::Acquisition(Box::new(Nvme::new(nvme)?)),
        DeviceConfig::Stream(stream) => Feed::Acquisition(Box::new(Stream::open(stream)?)),
        DeviceConfig::V4l2(video) => Feed::Acquisition(Box::new(Video::open(video)?)),
        DeviceConfig::Comedi(comedi) => Feed::Acquisition(Box::new(Sampler::open(comedi)?)),
        DeviceConfig::Dma(dma) => Feed::Acquisition(Box::new(Card::open(dma)?)),
        other => Feed::Device(thalweg_device::open(other)?),
    })
}

/// Whether to look how long a recording's fragments are: a long recording takes its time to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recordings {
    /// Each is opened, as its source does.
    Opened,
    /// What can be said without is said.
    Unopened,
}

/// What a topology asks of this machine: all of it, or what one of its nodes asks.
pub fn needs(topology: &Topology, node: Option<&str>, recordings: Recordings) -> Needs {
    let here = |name: &str| node.is_none_or(|node| node == name);
    let flows: Vec<Flow> = topology.sources.iter().map(|source| Flow::of(source, recordings)).collect();
    #[expect(clippy::cast_precision_loss, reason = "builders are few")]
    let builders = topology.builders.len() as f64;
    let rate = flows.iter().map(|flow| flow.bytes_per_second).sum::<Option<f64>>().filter(|_| !flows.is_empty());
    let each = rate.map(|rate| rate / builders);

    let building: Vec<_> = topology.builders.iter().filter(|builder| here(&builder.name)).collect();
    let mut nodes: Vec<NodeNeeds> = building.iter().map(|config| builder_needs(topology, config, each)).collect();
    let sources = topology.sources.iter().zip(&flows);
    // A source without a device is another program's.
    let sources = sources.filter(|(source, _)| here(&source.name) && source.device.is_some());
    nodes.extend(sources.map(|(source, flow)| source_needs(topology, source, flow)));

    let of_event = flows.iter().map(|flow| flow.record).try_fold(0u64, |sum, record| Some(sum.saturating_add(record?)));
    let share = |all: u64| all / topology.builders.len().max(1) as u64 * building.len() as u64;
    Needs {
        directory: topology.run.directory.clone(),
        record: topology.run.record && !building.is_empty(),
        data: Data {
            #[expect(clippy::cast_precision_loss, reason = "builders are few")]
            bytes_per_second: each.map(|each| each * building.len() as f64),
            duration: topology.run.duration,
            bytes: topology.run.events.zip(of_event).map(|(events, bytes)| share(events.saturating_mul(bytes))),
            at_most: flows.iter().any(|flow| !flow.exact),
        },
        measure_disk: false,
        nodes,
    }
}

/// Files that a builder has open when all sources are there.
pub(crate) fn builder_files(topology: &Topology) -> u64 {
    OWN_FILES + topology.sources.iter().map(|source| source.link.files).sum::<u64>()
}

fn builder_needs(topology: &Topology, config: &BuilderNodeConfig, rate: Option<f64>) -> NodeNeeds {
    NodeNeeds {
        name: config.name.clone(),
        cpu: config.cpu,
        blocks: config.block.0.saturating_mul(config.blocks_for(&config.credit(topology.sources.len()).0).into()),
        listen: config.listen.clone(),
        window: window_bytes(config),
        adapter: config.adapter.is_some(),
        bytes_per_second: rate,
        files: builder_files(topology),
        ..NodeNeeds::default()
    }
}

fn source_needs(topology: &Topology, config: &SourceNodeConfig, flow: &Flow) -> NodeNeeds {
    let connect: Vec<Address> =
        topology.builders.iter().filter_map(|builder| topology.address(builder, config.link).cloned()).collect();
    let window = topology.builders.iter().map(window_bytes).max().unwrap_or(0);
    let slot = match (config.slot, flow.payload) {
        (None, None) => None,
        (_, payload) => Some(config.slot_bytes(payload.unwrap_or(0))),
    };
    let stride = slot.map(|slot| slot.saturating_add(HEADROOM).div_ceil(PAGE).saturating_mul(PAGE) as u64);
    // Each slot may be one that a driver is given.
    let dma_bufs = if matches!(config.device, Some(DeviceConfig::V4l2(_))) { config.slots.into() } else { 0 };
    NodeNeeds {
        name: config.name.clone(),
        cpu: config.cpu,
        slots: stride.unwrap_or(0).saturating_mul(config.slots.into()),
        files: OWN_FILES + config.link.files * connect.len() as u64 + dma_bufs,
        connect,
        congestion: config.congestion.clone(),
        window,
        adapter: config.adapter.is_some(),
        bytes_per_second: flow.bytes_per_second,
        ..NodeNeeds::default()
    }
}

/// What a builder may ask for at a time, in bytes.
fn window_bytes(config: &BuilderNodeConfig) -> u64 {
    match config.credit(1).0 {
        Window::Constant(bytes) | Window::Search { most: bytes, .. } => bytes,
        Window::Credit(path) => path.widest(),
    }
}

/// What comes out of a source.
struct Flow {
    /// Bytes in its longest payload.
    payload: Option<usize>,
    /// Bytes that a fragment takes on disk.
    record: Option<u64>,
    bytes_per_second: Option<f64>,
    /// Every fragment is as long as the longest, none is dropped, and they do not come to an end.
    exact: bool,
}

impl Flow {
    fn of(source: &SourceNodeConfig, recordings: Recordings) -> Self {
        let size = |bytes: u64| usize::try_from(bytes).ok();
        let stated = source.device.as_ref().and_then(DeviceConfig::longest).and_then(size);
        let payload = stated.or_else(|| match &source.device {
            Some(recording) if recordings == Recordings::Opened && !recording.works_by_itself() => {
                // Why it cannot be opened is its node's to say.
                thalweg_device::open(recording).ok().map(|device| device.max_payload())
            }
            _ => None,
        });
        let exact = match &source.device {
            Some(DeviceConfig::ModelAdc(model)) => model.size_from.is_none(),
            Some(DeviceConfig::Raw(raw)) => raw.looped,
            Some(DeviceConfig::Edu(_)) => true,
            _ => false,
        };
        // Where the disk is behind, such a source drops what it has no room for.
        let exact = exact && source.policy == Policy::Block;
        // No payload is longer than a slot can be; what is, is its device's to refuse.
        let payload = payload.filter(|payload| *payload <= 1 << 30);
        let record = payload.map(|payload| record_len(payload) as u64 + INDEX_ENTRY);
        #[expect(clippy::cast_precision_loss, reason = "at most 1 GiB")]
        let bytes_per_second = source.rate.zip(record).map(|(rate, record)| rate.hertz() * record as f64);
        Self { payload, record, bytes_per_second, exact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn topology(text: &str) -> Topology {
        toml::from_str(text).unwrap()
    }

    const LAB: &str = r#"
        [run]
        directory = "/tmp"
        number = 987654321
        duration = "10s"

        [[builder]]
        name = "even"
        listen = ["tcp:127.0.0.1:0", "shm:/tmp/even.sock"]
        cpu = 1
        [[builder]]
        name = "odd"
        listen = ["tcp:127.0.0.1:0", "shm:/tmp/odd.sock"]

        [[source]]
        name = "adc"
        id = "1.0"
        device = { kind = "model-adc", size = "1MiB" }
        rate = 100.0
        congestion = "reno"
        [[source]]
        name = "camera"
        id = "1.1"
        link = "shm"
        device = { kind = "model-adc", size = "4MiB" }
        rate = 100.0
        slots = 4
        "#;

    #[test]
    fn a_topology_asks_for_what_all_its_nodes_ask_for() {
        let all = needs(&topology(LAB), None, Recordings::Opened);
        assert_eq!(
            all.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
            ["even", "odd", "adc", "camera"]
        );
        let rate = all.data.bytes_per_second.unwrap();
        assert!((5.2e8..5.3e8).contains(&rate), "{rate}: 100 events of 5 MiB each second");
        assert_eq!(all.data.volume(), Some((rate * 10.0) as u64));
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
        let lab = topology(LAB);
        let all = needs(&lab, None, Recordings::Opened);
        let even = needs(&lab, Some("even"), Recordings::Opened);
        assert_eq!(even.nodes, all.nodes[..1]);
        assert_eq!(even.data.bytes_per_second.map(|rate| rate * 2.0), all.data.bytes_per_second);
        let adc = needs(&lab, Some("adc"), Recordings::Opened);
        assert_eq!((adc.nodes.len(), adc.record), (1, false), "a source writes nothing");
    }

    #[test]
    fn events_make_a_volume_and_recordings_only_a_bound() {
        let counted = LAB.replace("duration = \"10s\"", "events = 7").replace("rate = 100.0", "");
        let all = needs(&topology(&counted), None, Recordings::Opened);
        let fragment = |payload: usize| record_len(payload) as u64 + INDEX_ENTRY;
        assert_eq!(all.data.bytes, Some(7 * (fragment(1 << 20) + fragment(4 << 20)) / 2 * 2));
        assert_eq!(all.data.bytes_per_second, None, "as fast as they are taken");
        let raw = counted.replace("model-adc\", size = \"4MiB\"", "raw\", file = \"x\", record = \"4MiB\"");
        assert!(needs(&topology(&raw), None, Recordings::Unopened).data.at_most, "it may end before");
        let pushed = counted.replace("device = { kind = \"model-adc\", size = \"4MiB\" }", "");
        let pushed = needs(&topology(&pushed), None, Recordings::Opened);
        assert_eq!((pushed.data.volume(), pushed.nodes.len()), (None, 3), "nobody knows what a program pushes");
    }

    #[test]
    fn a_run_too_large_for_the_disk_is_refused_with_one_sentence() {
        // Whatever processors there are here.
        let mut lab = topology(&LAB.replace("cpu = 1", ""));
        assert!(preflight(&lab, Some("adc")).is_ok(), "a source has no disk");
        lab.run.duration = Some(Duration::from_secs(1 << 40));
        let refused = preflight(&lab, Some("even")).unwrap_err();
        assert!(refused.is_usage());
        let text = refused.to_string();
        assert!(text.starts_with("disk space: the run writes ") && !text.contains('\n'), "{text}");
        assert!(text.contains("the disk is full after "), "{text}");
        lab.run.record = false;
        assert!(preflight(&lab, Some("even")).is_ok());
    }

    #[test]
    fn what_a_node_could_not_have_is_refused_before_it_begins() {
        let lab = LAB.replace("cpu = 1", "");
        let refused = |from: &str, to: &str, node: &str| {
            let error = preflight(&topology(&lab.replacen(from, to, 1)), Some(node)).unwrap_err();
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        assert!(refused("\"reno\"", "\"reno\"\ncpu = 9999", "adc").contains("adc to 9999"));
        assert!(refused("\"reno\"", "\"nosuch\"", "adc").contains("nosuch"));
        assert!(refused("127.0.0.1:0", "192.0.2.1:7400", "even").contains("no address of this machine"));
        assert!(refused("\"/tmp\"", "\"/dev/null/x\"", "even").starts_with("record directory: "));
        assert!(refused("number = 987654321", "", "even").starts_with("run.number: "));
        let runs = tempfile::tempdir().unwrap();
        let numbered = topology(&lab.replace("/tmp\"", &format!("{}\"", runs.path().display())));
        assert!(preflight(&numbered, None).is_ok());
        std::fs::create_dir(runs.path().join(run_directory_name(RunNumber(987_654_321), 1, 2))).unwrap();
        assert!(preflight(&numbered, None).unwrap_err().to_string().contains("exists already"));
        assert!(preflight(&numbered, Some("even")).is_ok(), "it is the other's");
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let lab = topology(&LAB.replace("cpu = 1", "block = \"1GiB\"\nblocks = 4096"));
        let text = preflight(&lab, Some("even")).unwrap_err().to_string();
        assert!(text.starts_with("memory: 0 B for slots, 4.40 TB for blocks; "), "{text}");
        assert!(preflight(&lab, Some("odd")).is_ok());
    }
}
