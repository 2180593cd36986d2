//! Trigger levels: what is kept is on disk, what is not is accounted for.

use crate::common::*;
use std::collections::BTreeSet;
use thalweg_core::filter::{Decide, Simulated};
use thalweg_store::Run;
use thalweg_wire::EventId;

const EVENTS: u64 = 600;
/// Source 0 is asked first. A fifth of the events is accepted, and a half of those.
const TRIGGER: &str = "block = \"1MiB\"\nflush = \"20ms\"\ndeadline = \"60s\"\n\
     level2 = { sources = [\"source0\"], accept = 0.2, seed = 5 }\nfilter = { accept = 0.5, seed = 6 }";

/// The events that both levels accept, and those that level 2 does.
fn accepted() -> (BTreeSet<u64>, u64) {
    let accepts = |mut level: Simulated, event| level.accept_event(EventId(event), &mut std::iter::empty());
    let level2: Vec<u64> = (0..EVENTS).filter(|event| accepts(Simulated::new(0.2, 5), *event)).collect();
    let kept = level2.iter().copied().filter(|event| accepts(Simulated::new(0.5, 6), *event));
    (kept.collect(), level2.len() as u64)
}

#[test]
fn only_what_both_levels_accept_is_on_disk_and_the_rest_is_accounted_for() {
    let (kept, level2) = accepted();
    // One fragment in each slot, then as many as fit.
    for (link, source) in [(Link::Tcp, "slot = \"20KiB\""), (Link::Tcp, ""), (Link::Shm, "slot = \"20KiB\"")] {
        let run = format!("number = 1\nevents = {EVENTS}");
        let system = System::new(&Plan { link, builders: 2, run: &run, builder: TRIGGER, source, ..PLAN });
        let report = system.run().finish().report(0);

        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        for source in ["1.0", "1.1", "1.2"] {
            let entry = entry(&report, source);
            assert_eq!(entry["recorded"], kept.len() as u64);
            assert_eq!(entry["rejected"], EVENTS - kept.len() as u64);
        }
        let trigger = &report["trigger"];
        assert_eq!(trigger["simulated"], true, "what is drawn by lot is labelled");
        assert_eq!(trigger["level1"], EVENTS);
        assert_eq!(trigger["level2_accepted"], level2);
        assert_eq!(trigger["filter_accepted"], kept.len() as u64);
        if !source.is_empty() {
            assert_eq!(trigger["unasked_bytes"], 2 * (EVENTS - level2) * (64 + (16 << 10)));
        }

        let mut found = BTreeSet::new();
        for builder in 0..2 {
            let directory = system.path(&format!("runs/run-000001-b{builder}"));
            check_intact(&directory);
            let run = Run::open(&directory).unwrap();
            assert_eq!(run.run_info().trigger["simulated"], true);
            found.extend(run.events().map(|event| event.unwrap().id.0));
            assert_eq!(check_samples(&directory).incomplete, 0);
        }
        assert_eq!(found, kept);
    }
}

#[test]
fn a_source_that_dies_leaves_decisions_that_are_made_without_it_and_books_that_balance() {
    let builder = TRIGGER.replace("60s", "3s");
    at_once([0, 1], |dies| {
        let system = System::new(&Plan { builder: &builder, source: "rate = 2000.0", ..PLAN });
        let mut builder = system.builder();
        let mut sources = system.sources([0, 1, 2]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 20);
        sources.remove(dies).kill();
        follow_until(&system.run_directory(), |_, event| event.status == thalweg_store::EventStatus::Incomplete);
        builder.interrupt();
        let report = builder.finish().report(1);
        assert_eq!(report["state"], "INCOMPLETE");
        check_books(&report);
        check_intact(&system.run_directory());
        let built = number(&report, "/events/built");
        assert_eq!(check_samples(&system.run_directory()).events, built);
        assert_eq!(number(&report, "/trigger/filter_accepted"), built);
        assert!(number(&report, "/trigger/level1") > built);
        all_succeed(sources);
    });
}

#[test]
fn without_recording_what_is_accepted_is_let_go() {
    let (kept, _) = accepted();
    for link in LINKS {
        let run = format!("record = false\nevents = {EVENTS}");
        let system = System::new(&Plan { link, run: &run, builder: TRIGGER, ..PLAN });
        let report = system.run().finish().report(0);
        check_books(&report);
        assert_eq!(entry(&report, "1.1")["discarded"], kept.len() as u64);
    }
}

#[test]
fn levels_that_cannot_be_are_refused() {
    for (builder, complaint) in [
        ("level2 = { sources = [\"nobody\"], accept = 0.1 }", "the topology has no source 'nobody'"),
        ("level2 = { sources = [\"source0\", \"source0\"], accept = 0.1 }", "named twice"),
        ("level2 = { sources = [], accept = 0.1 }", "name at least one"),
        ("filter = { accept = 1.5 }", "from 0 to 1"),
        ("filter = { accept = nan }", "from 0 to 1"),
    ] {
        let system = System::new(&Plan { builder, ..PLAN });
        let said = thalweg().arg("check").arg(system.path("topology.toml")).output().unwrap();
        assert_eq!(said.status.code(), Some(2));
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(complaint), "{said}");
    }
}
