//! What a node needs is what it was given at the beginning.

use crate::common::*;
use serde_json::Value;

/// Number of fragments after which a node has touched all that it needs: each slot and each open event was used.
const WARM_FRAGMENTS: u64 = 20_000;
/// Memory for packets that EFE keeps until they are acknowledged, in KiB.
const MAX_KEPT_PACKETS: u64 = 4096;
/// What the allocator may do as it likes, in KiB: 42 bytes for each fragment that passes through.
const TOLERANCE: u64 = 2048;

fn progress(line: &str) -> Option<u64> {
    let word: Value = serde_json::from_str(line).ok()?;
    word.pointer("/progress/fragments")?.as_u64().filter(|fragments| *fragments > 0)
}

#[test]
fn a_run_ends_with_the_memory_it_began_with() {
    for link in LINKS {
        // Stopped long before so many, on any machine: only a disk is kept from being filled.
        for run in ["record = false", "events = 2000000"] {
            // The fewer events may be open, the sooner as many are as there ever will be.
            let builder = format!("{PATIENT}\nopen_events = 4000");
            let system = System::new(&Plan { link, size: "1KiB", run, builder: &builder, ..PLAN });
            let mut nodes = vec![system.supervised("builder0")];
            nodes[0].wait_for("listening");
            nodes.extend((0..3).map(|number| system.supervised(&format!("source{number}"))));
            let mut sizes = Vec::new();
            for node in &mut nodes {
                let is_warm = |fragments: &u64| *fragments > WARM_FRAGMENTS;
                let fragments = node.wait_next("progress", |line| progress(line).filter(is_warm));
                sizes.push((node.memory(), fragments));
            }
            for (node, (before, fragments)) in nodes.iter_mut().zip(sizes) {
                let enough = fragments + 50_000;
                node.wait_next("progress", |line| progress(line).filter(|now| *now > enough));
                let after = node.memory();
                // How many packets wait for their acknowledgement at a time, and are kept until then, is a matter of chance.
                let kept = if matches!(link, Link::RdmaEfe) { MAX_KEPT_PACKETS } else { 0 };
                assert!(after <= before + kept + TOLERANCE, "{link:?}: {before} KiB became {after} KiB: {node:?}");
            }
            nodes[0].tell("stop");
            all_succeed(nodes);
        }
    }
}

#[test]
fn no_source_runs_ahead_of_the_slowest_further_than_events_may_be_open() {
    const OPEN: u64 = 1000;
    // Slots of 256 KiB in which records of 1088 bytes lie, 16 of them.
    const IN_SLOTS: u64 = 16 * (256 << 10) / 1088;
    for link in LINKS {
        let builder = format!("{PATIENT}\nopen_events = {OPEN}");
        let plan = Plan { link, size: "1KiB", builder: &builder, run: "record = false", ..PLAN };
        let system = System::new(&plan);
        let text = std::fs::read_to_string(system.path("topology.toml")).unwrap();
        // The first is a hundred times slower than it could be.
        system.file("topology.toml", text.replacen("id = \"1.0\"", "id = \"1.0\"\nrate = 3000.0", 1));
        let mut builder = system.supervised("builder0");
        builder.wait_for("listening");
        let mut sources: Vec<Node> = (0..3).map(|number| system.supervised(&format!("source{number}"))).collect();
        let mut before = None;
        for _ in 0..3 {
            let fast = sources[1].wait_next("progress", progress).max(sources[2].wait_next("progress", progress));
            let slow =
                sources[0].wait_next("progress", |line| progress(line).filter(|now| *now + OPEN + IN_SLOTS >= fast));
            assert!(slow > 0);
            before.get_or_insert_with(|| builder.memory());
        }
        assert!(builder.memory() <= before.unwrap() + TOLERANCE);
        builder.tell("stop");
        builder.finish().succeeded();
        all_succeed(sources);
    }
}
