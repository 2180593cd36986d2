//! The whole way, when nothing goes wrong.

use crate::common::*;
use thalweg_store::{RunState, Verdict};

/// What a program reads when a run is over.
const FIGURES: [&str; 12] = [
    "/run",
    "/seconds",
    "/bytes",
    "/events/built",
    "/events/incomplete",
    "/fragments_per_second",
    "/goodput_bits_per_second",
    "/copies_per_byte/source",
    "/copies_per_byte/builder",
    "/cpu_seconds_per_gigabyte/source",
    "/cpu_seconds_per_gigabyte/builder",
    "/ledger/unaccounted",
];

#[test]
fn every_sample_of_every_source_is_on_disk() {
    for link in LINKS {
        let system = System::new(&Plan { link, size: "100KiB", run: "events = 200", ..PLAN });
        let report = system.run().finish().report(0);

        for figure in FIGURES {
            assert!(report.pointer(figure).is_some_and(serde_json::Value::is_number), "{figure} in {report:#}");
        }
        assert_eq!(report["state"], "COMPLETE");
        assert_eq!(report["directory"].as_str().unwrap(), system.run_directory().to_str().unwrap());
        assert_eq!(number(&report, "/events/built"), 200);
        assert_eq!(number(&report, "/events/incomplete"), 0);
        assert_eq!(number(&report, "/bytes"), 3 * 200 * 100 * 1024);
        let copies = report.pointer("/copies_per_byte/source").unwrap().as_f64().unwrap();
        match link {
            Link::Udp => assert!((1.0..1.01).contains(&copies), "the kernel copies each payload once: {copies}"),
            Link::Rdma | Link::RdmaEfe => assert!(copies >= 1.0, "the RNIC and the kernel copy each payload: {copies}"),
            Link::Tcp | Link::Shm | Link::RdmaDevice => assert_eq!(copies, 0.0, "a source never copies a payload"),
        }
        let datagrams = report.pointer("/datagrams/received").and_then(serde_json::Value::as_u64);
        assert_eq!(datagrams.is_some_and(|datagrams| datagrams > 3 * 200), link == Link::Udp, "{report:#}");
        check_books(&report);
        for source in ["1.0", "1.1", "1.2"] {
            check_untouched(&report, source);
            assert_eq!(entry(&report, source)["recorded"], 200);
        }

        let verified = check_intact(&system.run_directory());
        assert_eq!(verified.verdict, Verdict::Complete);
        assert_eq!((verified.events, verified.fragments), (200, 600));
        let expected = Contents { events: 200, incomplete: 0, fragments: 600, first: 0, last: 199 };
        assert_eq!(check_samples(&system.run_directory()), expected);
        let info = thalweg_store::RunInfo::read_run_json(&system.run_directory()).unwrap();
        assert_eq!(info.state, RunState::Complete);
        assert_eq!(info.ledger, report["ledger"]["sources"], "the run on disk holds the same books");
        assert!(info.sources.iter().all(|source| source.description["simulated"] == true));
    }
}

#[test]
fn nodes_that_poll_build_what_nodes_that_sleep_do() {
    for link in LINKS {
        for wait in ["poll", "100us"] {
            let (builder, source) = (format!("{PATIENT}\nwait = \"{wait}\""), format!("wait = \"{wait}\""));
            let plan = Plan { link, run: "events = 200", builder: &builder, source: &source, ..PLAN };
            let system = System::new(&plan);
            let report = system.run().finish().report(0);
            assert_eq!(report["state"], "COMPLETE", "{report:#}");
            assert_eq!(report["wait"], serde_json::json!([wait]));
            check_books(&report);
            let expected = Contents { events: 200, incomplete: 0, fragments: 600, first: 0, last: 199 };
            assert_eq!(check_samples(&system.run_directory()), expected);
        }
    }
}

#[test]
fn small_fragments_and_odd_sizes_arrive_as_well_as_large_ones() {
    for link in LINKS {
        for size in ["1B", "61B", "1KiB", "700001B"] {
            let system = System::new(&Plan { link, size, run: "events = 50", ..PLAN });
            let report = system.run().finish().report(0);
            assert_eq!(report["state"], "COMPLETE", "{report:#}");
            check_books(&report);
            check_intact(&system.run_directory());
            assert_eq!(check_samples(&system.run_directory()).fragments, 150);
        }
    }
}

#[test]
fn without_recording_events_are_built_and_let_go() {
    for link in LINKS {
        let system = System::new(&Plan { link, run: "record = false\nevents = 3000", ..PLAN });
        let report = system.run().finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        assert_eq!(number(&report, "/events/built"), 3000);
        check_books(&report);
        for source in ["1.0", "1.1", "1.2"] {
            assert_eq!(entry(&report, source)["discarded"], 3000);
        }
        if link == Link::Shm {
            assert_eq!(report.pointer("/copies_per_byte/builder").unwrap(), 0.0, "what is not recorded is not copied");
        }
        assert!(report["directory"].is_null());
        assert!(!system.path("runs/run-000001").exists());
    }
}

#[test]
fn each_node_can_be_started_by_itself_in_any_order() {
    for link in LINKS {
        let system = System::new(&Plan { link, run: "events = 100", ..PLAN });
        let early = system.sources([1]);
        let builder = system.builder();
        let late = system.sources([0, 2]);
        for source in early.into_iter().chain(late) {
            let report = source.finish().report(0);
            assert_eq!(report["accepted"], 100);
        }
        let report = builder.finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        assert_eq!(check_samples(&system.run_directory()).events, 100);
    }
}

#[test]
fn several_builders_share_the_events_by_their_numbers() {
    for link in LINKS {
        let system =
            System::new(&Plan { link, builders: 2, run: "number = 7\nevents = 301", source: "slots = 8", ..PLAN });
        let report = system.run().finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        assert_eq!(number(&report, "/events/built"), 301);
        check_books(&report);
        for source in ["1.0", "1.1", "1.2"] {
            check_untouched(&report, source);
            assert_eq!(entry(&report, source)["recorded"], 301, "the shares add up");
        }
        let shares = [(0, 151, 0, 300), (1, 150, 1, 299)];
        for (builder, events, first, last) in shares {
            let directory = system.path(&format!("runs/run-000007-b{builder}"));
            check_intact(&directory);
            let expected = Contents { events, incomplete: 0, fragments: 3 * events, first, last };
            assert_eq!(check_samples(&directory), expected);
        }
    }
}
