//! Events that are assigned to the builders that have room: a builder that stands still does not stop the others, and a
//! run goes on without one that dies.

use crate::common::*;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use thalweg_store::{Run, RunInfo};

const SOURCES: [&str; 3] = ["1.0", "1.1", "1.2"];
const BY_ROOM: &str = "number = 7\nassignment = \"by-room\"";

fn directory(system: &System, builder: u16) -> PathBuf {
    system.path(&format!("runs/run-000007-b{builder}"))
}

/// The numbers of a run's events.
fn events(directory: &Path) -> BTreeSet<u64> {
    Run::open(directory).unwrap().events().map(|event| event.unwrap().id.0).collect()
}

/// All builders, listening, and all sources.
fn start(system: &System) -> (Vec<Node>, Vec<Node>) {
    let mut builders: Vec<Node> = (0..3).map(|number| system.node(&format!("builder{number}"))).collect();
    builders.iter_mut().for_each(|builder| drop(builder.wait_for("listening on")));
    let sources = system.sources([0, 1, 2]);
    builders.iter_mut().for_each(|builder| drop(builder.wait_for("recording")));
    (builders, sources)
}

#[test]
fn events_are_assigned_to_one_builder_each() {
    for link in LINKS {
        let run = format!("{BY_ROOM}\nevents = 1001");
        let system = System::new(&Plan { link, builders: 3, run: &run, ..PLAN });
        let report = system.run().finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        assert_eq!(number(&report, "/events/built"), 1001);
        check_books(&report);
        for source in SOURCES {
            check_untouched(&report, source);
            assert_eq!(entry(&report, source)["recorded"], 1001, "the shares add up");
            assert_eq!(entry(&report, source)["skipped"], 0, "what others have is nobody's gap");
        }
        let mut all = BTreeSet::new();
        for builder in 0..3 {
            let directory = directory(&system, builder);
            check_intact(&directory);
            assert_eq!(check_samples(&directory).incomplete, 0);
            let info = RunInfo::read_run_json(&directory).unwrap();
            assert_eq!((info.assignment.as_str(), info.builders), ("by-room", 3));
            let share = events(&directory);
            assert!(!share.is_empty(), "builder {builder} has {} events", share.len());
            assert!(share.iter().all(|event| all.insert(*event)), "no event is in two shares");
        }
        assert_eq!(all, (0..1001).collect());
    }
}

#[test]
fn a_builder_that_stands_still_does_not_stop_the_others() {
    for link in LINKS {
        let plan = Plan { link, builders: 3, run: BY_ROOM, builder: PATIENT, source: "rate = 1000.0", ..PLAN };
        let system = System::new(&plan);
        let (mut builders, sources) = start(&system);
        (0..3).for_each(|builder| await_events(&directory(&system, builder), 20));
        let before = [0, 1].map(|builder| events(&directory(&system, builder)).len() as u64);
        builders[2].signal(Signal::STOP);
        // More than slots hold, and soon: some links give a peer up that is silent for 10 s.
        [0, 1].iter().for_each(|at| await_events(&directory(&system, *at as u16), before[*at] + 600));
        let standing = events(&directory(&system, 2)).len() as u64;
        builders[2].signal(Signal::CONT);
        await_events(&directory(&system, 2), standing + 200);

        builders[0].interrupt();
        let mut all = BTreeSet::new();
        let mut recorded = [0; 3];
        for (number, builder) in builders.drain(..).enumerate() {
            let report = builder.finish().report(0);
            assert_eq!(report["state"], "COMPLETE", "{report:#}");
            check_books(&report);
            for (source, recorded) in SOURCES.iter().zip(&mut recorded) {
                check_recorded(&report, source);
                *recorded += entry(&report, source)["recorded"].as_u64().unwrap();
            }
            let directory = directory(&system, number as u16);
            check_intact(&directory);
            assert_eq!(check_samples(&directory).incomplete, 0);
            all.extend(events(&directory));
        }
        assert_eq!(all, (0..all.len() as u64).collect(), "every event is in one of the shares");
        assert_eq!(recorded, [all.len() as u64; 3]);
        all_succeed(sources);
    }
}

#[test]
fn a_run_goes_on_without_a_builder_that_dies() {
    for link in LINKS {
        let plan = Plan { link, builders: 3, run: BY_ROOM, source: "rate = 1000.0", ..PLAN };
        let system = System::new(&plan);
        let (mut builders, sources) = start(&system);
        (0..3).for_each(|builder| await_events(&directory(&system, builder), 50));
        builders.remove(1).kill();
        let before = events(&directory(&system, 0)).len() as u64;
        await_events(&directory(&system, 0), before + 1500);
        builders[0].interrupt();
        let [leads, other] = [builders.remove(0).finish(), builders.remove(0).finish()];
        let (leads, other) = (leads.report(1), other.report(0));

        assert_eq!(leads["state"], "INCOMPLETE");
        assert!(reasons(&leads).contains("builder 1 died, hung or was disconnected"), "{leads:#}");
        assert_eq!(leads["events"]["incomplete"], 0, "{leads:#}");
        assert_eq!(other["state"], "COMPLETE", "{other:#}");
        let left_out = &leads["left_out"][0];
        assert_eq!(left_out["builder"], 1);
        let info = RunInfo::read_run_json(&directory(&system, 0)).unwrap();
        assert_eq!(info.left_out, leads["left_out"], "run.json says the same");

        // What the sources took from their devices is in the ledgers of the two that are left, or was delivered to the
        // one that died.
        let taken: u64 = sources.into_iter().map(|source| number(&source.finish().report(0), "/accepted")).sum();
        let accepted = |report: &serde_json::Value| -> u64 {
            check_books(report);
            SOURCES.iter().map(|source| number(entry(report, source), "/accepted")).sum()
        };
        assert_eq!(taken, accepted(&leads) + accepted(&other) + number(left_out, "/delivered"), "{leads:#}");
        let lost: u64 = SOURCES.iter().map(|source| number(entry(&leads, source), "/lost")).sum();
        assert_eq!(lost, number(left_out, "/lost"));

        let shares: Vec<BTreeSet<u64>> = (0..3).map(|builder| events(&directory(&system, builder))).collect();
        for builder in [0, 2] {
            check_intact(&directory(&system, builder));
            assert_eq!(check_samples(&directory(&system, builder)).incomplete, 0);
        }
        check_samples(&directory(&system, 1));
        assert!(shares[1].len() as u64 >= 50);
        let given = left_out["events"].as_array().unwrap().iter().flat_map(|range| {
            let (first, count) = (range[0].as_u64().unwrap(), range[1].as_u64().unwrap());
            first..first + count
        });
        let built: BTreeSet<u64> = shares[0].union(&shares[2]).copied().collect();
        assert!(built.is_disjoint(&shares[1]) && given.clone().all(|event| !built.contains(&event)));
        let at = number(left_out, "/at_event");
        let end = built.last().unwrap() + 1;
        assert!((at..end).all(|event| built.contains(&event)), "nothing went to it from event {at} on");
    }
}

#[test]
fn thalweg_run_goes_on_without_a_builder_that_dies() {
    let plan = Plan { builders: 3, run: BY_ROOM, builder: PATIENT, source: "rate = 1000.0", ..PLAN };
    let system = System::new(&plan);
    let mut run = system.run();
    run.wait_for("recording");
    await_events(&directory(&system, 2), 50);
    let is_third = |pid: &rustix::process::Pid| {
        let words = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        words.split('\0').any(|word| word == "builder2")
    };
    let third = run.children().into_iter().find(is_third).unwrap();
    rustix::process::kill_process(third, Signal::KILL).unwrap();
    let before = events(&directory(&system, 0)).len() as u64;
    await_events(&directory(&system, 0), before + 1500);
    run.interrupt();
    let report = run.finish().report(1);
    assert!(reasons(&report).contains("builder 2 died, hung or was disconnected"), "{report:#}");
    assert_eq!((&report["events"]["incomplete"], report["left_out"].as_array().unwrap().len()), (&0.into(), 1));
    check_books(&report);
}

#[test]
fn a_source_that_is_slow_is_not_found_silent_while_it_has_events_for_others() {
    // A range, of 124 events for one builder, takes it 6 s: longer than the deadline, which is longer by far than the
    // time between two heartbeats. A builder whose sources have no processor for a while is not left out.
    let (run, builder) = (format!("{BY_ROOM}\nevents = 180"), PATIENT.replace("60s", "5s"));
    let source = "rate = 20.0\nslots = 32";
    let plan = Plan { builders: 2, sources: 2, run: &run, builder: &builder, source, ..PLAN };
    let system = System::new(&plan);
    let mut plan = std::fs::read_to_string(system.path("topology.toml")).unwrap();
    plan = plan.replacen("rate = 20.0", "rate = 1000.0", 1);
    system.file("topology.toml", plan);
    let report = system.run().finish().report(0);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    assert_eq!(number(&report, "/events/built"), 180);
    check_books(&report);
}
