//! Nodes with trigger levels, in one process: accepted events are on disk, in whatever memory they waited.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use thalweg_core::filter::{Decide, Simulated};
use thalweg_device::{DeviceConfig, model_adc};
use thalweg_link::{Address, LinkKind};
use thalweg_node::{BuilderNode, BuilderReport, Feed, Handle, SourceNode, SourceSettings, Topology, Wait};
use thalweg_store::{Run, verify_run};
use thalweg_wire::EventId;

const EVENTS: u64 = 500;
const LEVELS: &str = "level2 = { sources = [\"s1\"], accept = 0.2, seed = 5 }\nfilter = { accept = 0.5, seed = 6 }";

/// Runs a builder and four sources to the end of a run; `builder` and `source` are further lines of the topology.
fn run(link: LinkKind, builder: &str, source: &str) -> (BuilderReport, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (kind, address) = (link.name, Address::on_this_host(link, folder.path(), "s").unwrap());
    let mut text =
        format!("[run]\nevents = {EVENTS}\n[[builder]]\nname = \"b\"\nlisten = [\"{address}\"]\n{builder}\n");
    for index in 0..4 {
        text += &format!(
            "[[source]]\nname = \"s{index}\"\nid = \"1.{index}\"\nlink = \"{kind}\"\n\
             device = {{ kind = \"model-adc\", size = \"10KB\", size_from = 1 }}\n{source}\n"
        );
    }
    let file = folder.path().join("topology.toml");
    std::fs::write(&file, text).unwrap();
    let topology = Topology::load(&file, None).unwrap();
    let node = BuilderNode::new(&topology, "b").unwrap();
    let builders: Vec<Address> = node.listening_addresses();
    let report = thread::scope(|scope| {
        let builder = scope.spawn(|| node.run(&Handle::new().unwrap()).unwrap());
        for source in &topology.sources {
            let device: DeviceConfig = source.device.clone().unwrap();
            let device = thalweg_device::open_device(&device).unwrap();
            let settings = SourceSettings {
                name: source.name.clone(),
                id: source.source_id(),
                builders: builders.clone(),
                adapter: None,
                congestion: None,
                rate: source.rate,
                burst: 1,
                policy: source.policy,
                slots: source.slots,
                slot_bytes: source.slot_bytes(device.max_payload_bytes()),
                timeout: Duration::from_secs(60),
                wait: Wait::default(),
                cpu: None,
                feed: Feed::Device(device),
            };
            scope.spawn(|| SourceNode::new(settings).unwrap().run(&Handle::new().unwrap()).unwrap());
        }
        builder.join().unwrap()
    });
    (report, folder)
}

/// Checks that the run holds these events and no others, whole.
fn check(report: &BuilderReport, kept: &BTreeSet<u64>) {
    assert_eq!((report.state.as_str(), report.ledger.unaccounted), ("COMPLETE", 0), "{report:#?}");
    for entry in &report.ledger.sources {
        assert_eq!((entry.recorded, entry.rejected), (kept.len() as u64, EVENTS - kept.len() as u64), "{entry:?}");
    }
    let run = Run::open(report.directory.as_ref().unwrap()).unwrap();
    let verified = verify_run(&run);
    assert!(verified.consistent, "{:#?}", verified.problems);
    assert_eq!(run.run_info().trigger["simulated"], true);
    assert_eq!(run.run_info().events.built, kept.len() as u64);
    let mut found = BTreeSet::new();
    for event in run.events() {
        let event = event.unwrap();
        assert_eq!(event.fragments.len(), 4);
        for fragment in &event.fragments {
            let mut expected = vec![0; fragment.payload().len()];
            model_adc(1, fragment.header.source, event.id.0, &mut expected);
            assert!(fragment.payload() == expected, "{:?}", fragment.header);
        }
        found.insert(event.id.0);
    }
    assert_eq!(found, *kept);
}

fn accepts(accept: f64, seed: u64) -> impl Fn(&u64) -> bool {
    move |event| Simulated::new(accept, seed).accept_event(EventId(*event), &mut std::iter::empty())
}

#[test]
fn what_both_levels_accept_is_on_disk() {
    let level2: BTreeSet<u64> = (0..EVENTS).filter(accepts(0.2, 5)).collect();
    let kept: BTreeSet<u64> = level2.iter().copied().filter(accepts(0.5, 6)).collect();
    for link in [LinkKind::TCP, LinkKind::SHM] {
        // One fragment in each slot; then many; then so few places that the oldest event needs those kept for it.
        for (memory, source) in [
            ("", "slot = \"11KB\""),
            ("", ""),
            ("block = \"256KiB\"\nblocks = 2", "slot = \"60KB\"\nslots = 64"),
            (
                "block = \"256KiB\"\nblocks = 2\nlink = { rate = \"1 Gbit/s\", round_trip = \"1ms\", buffer = \"64 KB\" }",
                "slots = 2\nslot = \"100KB\"",
            ),
        ] {
            let (report, _folder) = run(link, &format!("{LEVELS}\n{memory}"), source);
            check(&report, &kept);
            let trigger = report.trigger.unwrap();
            assert_eq!((trigger.level1, trigger.level2_accepted), (EVENTS, level2.len() as u64));
            assert_eq!(trigger.filter_accepted, kept.len() as u64);
        }
    }
}

#[test]
fn each_level_can_be_there_without_the_other() {
    let (level2, filter) = LEVELS.split_once('\n').unwrap();
    for (levels, kept) in [
        (level2, (0..EVENTS).filter(accepts(0.2, 5)).collect()),
        (filter, (0..EVENTS).filter(accepts(0.5, 6)).collect()),
    ] {
        check(&run(LinkKind::TCP, levels, "slot = \"11KB\"").0, &kept);
    }
}

#[test]
fn none_and_all_can_be_accepted() {
    check(&run(LinkKind::TCP, "level2 = { sources = [\"s0\", \"s3\"], accept = 0.0 }", "").0, &BTreeSet::new());
    check(&run(LinkKind::TCP, "filter = { accept = 1.0 }", "").0, &(0..EVENTS).collect());
}
