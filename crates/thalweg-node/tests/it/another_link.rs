//! A kind of link that the program does not know builds events once it is registered.

#[path = "../../../thalweg-link/tests/it/packets.rs"]
mod packets;

use std::time::Duration;
use thalweg_link::LinkKind;
use thalweg_node::{BuilderNode, Feed, Handle, SourceNode, SourceSettings, Topology};
use thalweg_store::{Run, verify_run};

#[test]
fn a_kind_of_link_that_was_registered_is_used_as_the_others_are() {
    let kind = LinkKind::register_transport(&packets::PACKETS);
    let folder = tempfile::tempdir().unwrap();
    let (runs, socket) = (folder.path().join("runs"), folder.path().join("b"));
    std::fs::create_dir(&runs).unwrap();
    let mut text = format!(
        "[run]\nevents = 300\ndirectory = {runs:?}\n[[builder]]\nname = \"b\"\nlisten = [\"packets:{}\"]\n",
        socket.display()
    );
    for index in 0..3 {
        text += &format!(
            "[[source]]\nname = \"s{index}\"\nid = \"1.{index}\"\nlink = \"packets\"\n\
             device = {{ kind = \"model-adc\", size = \"100KB\", size_from = 1 }}\n"
        );
    }
    let file = folder.path().join("topology.toml");
    std::fs::write(&file, text).unwrap();
    let topology = Topology::load(&file, None).unwrap();
    assert!(topology.sources.iter().all(|source| source.link == kind));
    let node = BuilderNode::new(&topology, "b").unwrap();
    let report = std::thread::scope(|scope| {
        for source in &topology.sources {
            let device = thalweg_device::open_device(source.device.as_ref().unwrap()).unwrap();
            let settings = SourceSettings {
                name: source.name.clone(),
                id: source.source_id(),
                builders: node.listening_addresses(),
                adapter: None,
                congestion: None,
                rate: None,
                burst: 1,
                policy: source.policy,
                slots: source.slots,
                slot_bytes: source.slot_bytes(device.max_payload_bytes()),
                timeout: Duration::from_secs(60),
                wait: source.wait,
                cpu: None,
                feed: Feed::Device(device),
            };
            scope.spawn(|| SourceNode::new(settings).unwrap().run(&Handle::new().unwrap()).unwrap());
        }
        node.run(&Handle::new().unwrap()).unwrap()
    });
    assert_eq!((&*report.state, report.events, report.fragments), ("COMPLETE", 300, 900), "{report:#?}");
    let verified = verify_run(&Run::open(report.directory.as_ref().unwrap()).unwrap());
    assert!(verified.consistent, "{:#?}", verified.problems);
    assert_eq!((verified.events, verified.fragments), (300, 900));
}
