//! How a run is ended from outside: politely, impatiently, and by accident.

use crate::common::*;
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};
use thalweg_store::{Run, RunState, Verdict};

/// Each a little faster than the other would be noticed in their event numbers.
const PACED: &str = "rate = 2000.0";

/// How long sources go on at the end before the run may end where one of them is (`LAP` in `thalweg-core`).
const LAP: Duration = Duration::from_secs(1);

/// All of so many events of this source are on disk. `took`: how long the end of the run did.
fn check_end(report: &Value, source: &str, events: u64, took: Duration) {
    check_recorded(report, source);
    assert_eq!(entry(report, source)["recorded"], events, "every source stopped at the same event: {report:#}");
    if took < LAP {
        check_untouched(report, source);
    }
}

#[test]
fn an_interrupt_ends_the_run_at_the_same_event_everywhere() {
    for link in LINKS {
        for source in [PACED, "rate = 50.0", ""] {
            let system = System::new(&Plan { link, source, ..PLAN });
            let mut run = system.run();
            run.wait_for("recording");
            await_events(&system.run_directory(), 10);
            let asked = Instant::now();
            run.interrupt();
            let report = run.finish().report(0);
            let took = asked.elapsed();
            assert_eq!(report["state"], "COMPLETE", "{report:#}");
            check_books(&report);
            let events = number(&report, "/events/built");
            for source in ["1.0", "1.1", "1.2"] {
                check_end(&report, source, events, took);
            }
            let contents = check_samples(&system.run_directory());
            let expected = Contents { events, incomplete: 0, fragments: 3 * events, first: 0, last: events - 1 };
            assert_eq!(contents, expected);
            assert_eq!(check_intact(&system.run_directory()).verdict, Verdict::Complete);
        }
    }
}

#[test]
fn a_time_limit_ends_the_run_at_the_same_event_everywhere() {
    for link in LINKS {
        let system = System::new(&Plan { link, source: PACED, run: "duration = \"200ms\"", ..PLAN });
        let report = system.run().finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        let seconds = report["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.2);
        let events = number(&report, "/events/built");
        for source in ["1.0", "1.1", "1.2"] {
            check_end(&report, source, events, Duration::from_secs_f64(seconds - 0.2));
        }
    }
}

#[test]
fn a_terminated_source_ends_its_own_books_and_the_run_goes_on() {
    let system = System::new(&Plan { source: PACED, ..PLAN });
    let mut builder = system.builder();
    let mut sources = system.sources([0, 1, 2]);
    builder.wait_for("recording");
    await_events(&system.run_directory(), 10);
    let left = sources.remove(1);
    left.signal(Signal::TERM);
    left.finish().succeeded();
    let mut without = 0;
    follow_until(&system.run_directory(), |_, event| {
        without += u64::from(event.status == thalweg_store::EventStatus::Incomplete);
        without == 50
    });
    builder.interrupt();
    let report = builder.finish().report(1);
    check_books(&report);
    for source in ["1.0", "1.1", "1.2"] {
        check_recorded(&report, source);
    }
    all_succeed(sources);
}

#[test]
fn asked_twice_a_builder_ends_at_once_and_closes_the_run_as_far_as_it_is() {
    for link in LINKS {
        let system = System::new(&Plan { link, source: PACED, run: "timeout = \"30s\"", ..PLAN });
        let mut builder = system.supervised("builder0");
        builder.wait_for("listening");
        let sources = system.sources([0, 1, 2]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 10);
        // One that hangs keeps a clean end waiting.
        sources[1].signal(Signal::STOP);
        builder.tell("stop");
        builder.wait_for("\"state\":\"stopping\"");
        builder.tell("stop");
        let report = builder.finish().report(0);
        sources[1].signal(Signal::CONT);
        for source in sources {
            source.finish().failed_saying("aborted");
        }
        let run = Run::open(system.run_directory()).unwrap();
        assert_eq!((run.run_info().state, run.run_info().events.incomplete), (RunState::Incomplete, 0));
        assert!(matches!(check_intact(&system.run_directory()).verdict, Verdict::Incomplete { .. }));
        assert!(check_samples(&system.run_directory()).events >= 10, "{report:#}");
    }
}

#[test]
fn interrupted_again_and_again_nothing_stays_behind() {
    for link in LINKS {
        let system = System::new(&Plan { link, source: PACED, run: "timeout = \"30s\"", ..PLAN });
        let mut run = system.run();
        run.wait_for("recording");
        await_events(&system.run_directory(), 10);
        let children = run.children();
        assert_eq!(children.len(), 4, "a builder and three sources");
        // A source that hangs keeps a clean end waiting, and does not hear that it should end at once.
        rustix::process::kill_process(children[2], Signal::STOP).unwrap();
        let ended = run.interrupt_until_gone();
        assert!(ended.code().is_some_and(|code| code != 0), "{ended:?}");
        for child in children {
            assert!(rustix::process::test_kill_process(child).is_err(), "process {child:?} is left behind");
        }
        let info = Run::open(system.run_directory()).unwrap();
        assert_ne!(info.run_info().state, RunState::Complete);
        check_samples(&system.run_directory());
    }
}

#[test]
fn nodes_end_the_run_when_the_one_that_started_them_dies() {
    for link in LINKS {
        let system = System::new(&Plan { link, source: PACED, ..PLAN });
        let mut run = system.run();
        run.wait_for("recording");
        await_events(&system.run_directory(), 10);
        assert_eq!(run.children().len(), 4);
        // Returns when nobody is left who could write to its standard error: its children are gone.
        assert_eq!(run.kill().code(), None);
        // They ended the run as if they had been asked to.
        assert_eq!(Run::open(system.run_directory()).unwrap().run_info().state, RunState::Complete);
        check_intact(&system.run_directory());
        assert_eq!(check_samples(&system.run_directory()).incomplete, 0);
    }
}

#[test]
fn a_node_that_dies_under_a_run_is_named_and_the_run_ends() {
    let system = System::new(&Plan { source: PACED, run: "timeout = \"20s\"", builder: QUICK, ..PLAN });
    let mut run = system.run();
    run.wait_for("recording");
    await_events(&system.run_directory(), 10);
    let source = run.children()[2];
    rustix::process::kill_process(source, Signal::KILL).unwrap();
    follow_until(&system.run_directory(), |_, event| event.status == thalweg_store::EventStatus::Incomplete);
    run.interrupt();
    let ended = run.finish();
    let report: Value = ended.report(1);
    assert!(ended.stderr.contains("source1: the process was killed"), "{ended:?}");
    assert!(reasons(&report).contains("source 1.1 (source1) sent no final counters"), "{report:#}");
    check_books(&report);
    check_recorded(&report, "1.0");
    check_recorded(&report, "1.2");
}

#[test]
fn sources_that_do_not_come_are_named() {
    // Long enough for source 1 to start and to connect.
    at_once(LINKS, |link| {
        let system = System::new(&Plan { link, run: "timeout = \"5s\"", ..PLAN });
        let builder = system.builder();
        let source = system.node("source1");
        builder.finish().failed_saying("these sources did not connect within 5s: 1.0 (source0), 1.2 (source2)");
        source.finish().failed_saying("other sources did not connect");
        assert!(!system.run_directory().exists(), "nothing was recorded");
    });
}
