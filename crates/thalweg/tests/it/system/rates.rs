//! Sources that are not equally fast: where the run ends, the fast ones are far ahead, and what they sent of later
//! events is on disk and does not count.

use crate::common::disk::Disk;
use crate::common::*;
use rustix::process::Signal;
use thalweg_store::Verdict;
use thalweg_testing::skip::skipped;

/// As fast as it can.
const FREE: &str = "";

/// A system whose sources have these rates.
fn unequal(plan: &Plan, rates: &[&str]) -> System {
    let system = System::new(&Plan { sources: rates.len().try_into().unwrap(), source: "#rate", ..plan.clone() });
    let mut topology = std::fs::read_to_string(system.path("topology.toml")).unwrap();
    for rate in rates {
        topology = topology.replacen("#rate", rate, 1);
    }
    system.file("topology.toml", topology);
    system
}

/// Runs to an end of each kind.
fn ends_well(size: &str, rates: &[&str], duration: &str, events: u64) {
    for link in LINKS {
        for run in [format!("duration = \"{duration}\""), format!("events = {events}"), String::new()] {
            let system = unequal(&Plan { link, size, run: &run, builder: PATIENT, ..PLAN }, rates);
            let mut node = system.run();
            if run.is_empty() {
                node.wait_for("recording");
                await_events(&system.run_directory(), events);
                node.interrupt();
            }
            let report = node.finish().report(0);
            assert_eq!(report["state"], "COMPLETE", "{link:?}, {run}: {report:#}");
            check_books(&report);
            let built = number(&report, "/events/built");
            assert!(!run.starts_with("events") || built == events, "{report:#}");
            let verified = check_intact(&system.run_directory());
            assert_eq!((verified.verdict, verified.events), (Verdict::Complete, built));
            for source in verified.sources {
                let entry = entry(&report, &source.source);
                assert_eq!((source.recorded, entry["recorded"].as_u64()), (built, Some(built)), "{entry:#}");
            }
            let fragments = built * rates.len() as u64;
            let expected = Contents { events: built, incomplete: 0, fragments, first: 0, last: built - 1 };
            assert_eq!(check_samples(&system.run_directory()), expected);
        }
    }
}

#[test]
fn one_that_is_very_slow_beside_one_that_is_not_held_back() {
    ends_well("256B", &["rate = 5.0", FREE], "1s", 4);
}

#[test]
fn each_twice_as_fast_as_the_one_before() {
    ends_well("1KiB", &["rate = 200.0", "rate = 400.0", "rate = 800.0", "rate = 1600.0"], "500ms", 50);
}

#[test]
fn the_smallest_fragments_there_are() {
    ends_well("1B", &["rate = 2000.0", FREE], "300ms", 200);
}

#[test]
fn what_was_ahead_of_one_that_hangs_is_lost_when_the_run_is_ended_at_once() {
    for link in LINKS {
        let plan = Plan { link, size: "256B", run: "timeout = \"30s\"", builder: PATIENT, ..PLAN };
        let system = unequal(&plan, &["rate = 50.0", FREE]);
        let mut builder = system.supervised("builder0");
        builder.wait_for("listening");
        let sources = system.sources([0, 1]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 10);
        sources[0].signal(Signal::STOP);
        builder.tell("stop");
        builder.wait_for("\"state\":\"stopping\"");
        builder.tell("stop");
        let said = builder.finish().report(0);
        sources[0].signal(Signal::CONT);
        for source in sources {
            source.finish().failed_saying("aborted");
        }
        let report = &said["builder"];
        check_books(report);
        assert!(entry(report, "1.1")["lost"].as_u64().unwrap() > 0, "{report:#}");
        let built = number(report, "/events");
        let verified = check_intact(&system.run_directory());
        assert!(matches!(verified.verdict, Verdict::Incomplete { .. }) && verified.unfinished_events > 0);
        assert_eq!(verified.sources.iter().map(|source| source.recorded).collect::<Vec<_>>(), [built; 2]);
        assert_eq!(check_samples(&system.run_directory()).events, built);
    }
}

#[test]
fn a_disk_that_is_full_at_one_of_two_builders_ends_the_run_everywhere() {
    for link in LINKS {
        let plan = Plan { link, builders: 2, run: "number = 1", builder: PATIENT, ..PLAN };
        let system = unequal(&plan, &["rate = 400.0", FREE]);
        let _disk = match Disk::in_memory(&system.path("small"), 8) {
            Ok(disk) => disk,
            Err(reason) => return skipped(format_args!("a full disk in memory: {reason}")),
        };
        let topology = std::fs::read_to_string(system.path("topology.toml")).unwrap();
        let elsewhere = system.file("small.toml", topology.replace("directory = \"runs\"", "directory = \"small\""));
        let mut command = thalweg();
        command.args(["--json", "-v", "node", "builder1"]).arg(elsewhere);
        let mut builders = [system.builder(), Node::start("builder1", command)];
        builders[1].wait_for("listening on");
        let sources = system.sources([0, 1]);
        let [first, second] = builders.map(Node::finish);
        all_succeed(sources);
        let (first, second) = (first.report(0), second.report(1));
        assert!(reasons(&second).contains("No space left on device"), "{second:#}");
        for (report, directory) in [(&first, "runs/run-000001-b0"), (&second, "small/run-000001-b1")] {
            check_books(report);
            let verified = check_intact(&system.path(directory));
            for source in &verified.sources {
                assert_eq!(entry(report, &source.source)["recorded"], source.recorded, "{report:#}");
                assert!(source.recorded > 0, "{report:#}");
            }
            let fragments: u64 = verified.sources.iter().map(|source| source.recorded).sum();
            assert_eq!(check_samples(&system.path(directory)).fragments, fragments, "what counts can be read");
        }
    }
}
