//! Programs that push, and the builder they push to, in one process.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use thalweg_link::Address;
use thalweg_node::{
    BuilderNode, BuilderReport, Command, Feed, Handle, NodeError, Policy, PushSource, PushedFragment, SourceSettings,
    Topology, Wait,
};
use thalweg_wire::{EventId, PayloadType, Status};

const LONG: Duration = Duration::from_secs(60);

type Running = JoinHandle<Result<BuilderReport, NodeError>>;

#[test]
fn every_push_of_two_threads_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _, running) = builder(folder.path(), "");
    let pushing = ["1.0", "1.1"].map(|id| {
        let source = source(&address, id);
        thread::spawn(move || {
            assert!(source.wait_for_start(LONG).unwrap() && source.is_running());
            for event in 0..5000 {
                let payload = vec![7; event % 1001];
                assert_eq!(source.push(None, &fragment(&payload), LONG).unwrap(), Some(EventId(event as u64)));
            }
            source.finish().unwrap()
        })
    });
    for source in pushing {
        assert_eq!(source.join().unwrap().accepted, 5000);
    }
    let report = running.join().unwrap().unwrap();
    assert_eq!((report.state.as_str(), report.events, report.fragments), ("COMPLETE", 5000, 10_000));
    // One push in 1001 had an empty payload.
    assert!(report.ledger.sources.iter().all(|entry| entry.discarded == 5000 && entry.empty == 5));
}

#[test]
fn who_finishes_before_the_run_begins_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let (address, handle, running) = builder(folder.path(), "");
    let first = source(&address, "1.0");
    // The other source is not connected.
    assert!(!first.wait_for_start(Duration::from_millis(1)).unwrap());
    assert_eq!(first.push(None, &fragment(b"x"), Duration::ZERO).unwrap(), None);
    assert!(matches!(first.finish(), Err(NodeError::Ended(error)) if matches!(*error, NodeError::Stopped)));
    handle.send_command(Command::Abort);
    assert!(matches!(running.join().unwrap(), Err(NodeError::Stopped)));
}

#[test]
fn the_last_event_of_a_run_ends_it_without_being_told() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _, running) = builder(folder.path(), "events = 10");
    let sources = [source(&address, "1.0"), source(&address, "1.1")];
    for source in &sources {
        for _ in 0..10 {
            assert!(source.push(None, &fragment(b"x"), LONG).unwrap().is_some());
        }
        assert!(!source.is_running());
        assert!(matches!(source.push(None, &fragment(b"x"), LONG), Err(NodeError::Over)));
    }
    assert_eq!(running.join().unwrap().unwrap().state, "COMPLETE");
    for source in &sources {
        assert_eq!(source.close(LONG).unwrap().unwrap().accepted, 10);
        assert!(matches!(source.push(None, &fragment(b"x"), LONG), Err(NodeError::Over)));
    }
}

#[test]
fn a_builder_that_stops_at_once_is_told_to_everyone_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (address, handle, running) = builder(folder.path(), "");
    let sources = [source(&address, "1.0"), source(&address, "1.1")];
    assert!(sources[0].wait_for_start(LONG).unwrap());
    handle.send_command(Command::Abort);
    assert_eq!(running.join().unwrap().unwrap().state, "INCOMPLETE");
    let until_it_fails = || loop {
        if let Err(error) = sources[0].push(None, &fragment(&[1; 1000]), LONG) {
            return error.to_string();
        }
    };
    let said =
        thread::scope(|scope| [(); 2].map(|()| scope.spawn(until_it_fails)).map(|thread| thread.join().unwrap()));
    assert!(said[0].contains("the run was aborted") && said[0] == said[1], "{said:?}");
    assert_eq!(sources[0].close(LONG).unwrap_err().to_string(), said[0]);
}

/// Starts a builder that waits for sources 1.0 and 1.1, and returns its address.
fn builder(folder: &Path, run: &str) -> (Address, Handle, Running) {
    let file = folder.join("topology.toml");
    let sources: String = (0..2).map(|n| format!("[[source]]\nname = \"s{n}\"\nid = \"1.{n}\"\n")).collect();
    let run = format!("[run]\nrecord = false\ntimeout = \"60s\"\n{run}\n");
    let builder = "[[builder]]\nname = \"b\"\nlisten = [\"tcp:127.0.0.1:0\"]\ndeadline = \"60s\"\n";
    std::fs::write(&file, run + builder + &sources).unwrap();
    let node = BuilderNode::new(&Topology::load(&file, None).unwrap(), "b").unwrap();
    let address = node.listening_addresses().remove(0);
    let handle = Handle::new().unwrap();
    let running = thread::spawn({
        let handle = handle.clone();
        move || node.run(&handle)
    });
    (address, handle, running)
}

fn source(address: &Address, id: &str) -> PushSource {
    PushSource::start(SourceSettings {
        name: id.to_owned(),
        id: id.parse().unwrap(),
        feed: Feed::Pushed { max_payload: 1000, description: serde_json::json!({ "kind": "test" }) },
        builders: vec![address.clone()],
        adapter: None,
        congestion: None,
        rate: None,
        burst: 1,
        policy: Policy::Block,
        // Few and small slots, so that a push has to wait.
        slots: 2,
        slot_bytes: 1088,
        timeout: LONG,
        wait: Wait::default(),
        cpu: None,
    })
    .unwrap()
}

fn fragment(payload: &[u8]) -> PushedFragment<'_> {
    PushedFragment { payload, payload_type: PayloadType::RAW, status: Status::SIMULATED, timestamp: None, window: 0 }
}
