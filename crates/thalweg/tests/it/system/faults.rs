//! Nodes that die, connections that are cut.

use crate::common::proxy::{Cut, Proxy};
use crate::common::*;
use thalweg_store::{Run, RunState, Verdict, WriterLife};
use thalweg_wire::Message;

/// Slow enough that a run lasts as long as a test wants it to.
const PACED: &str = "rate = 2000.0";

#[test]
fn a_source_that_dies_is_named_and_the_others_lose_nothing() {
    at_once(LINKS, kill_source);
}

#[test]
fn a_builder_that_dies_leaves_a_run_that_can_be_read_to_its_last_whole_block() {
    at_once(LINKS, kill_builder);
}

#[test]
fn nodes_that_die_on_an_rdma_device_are_noticed() {
    if !crate::rdma::verbs_are_installed() {
        return thalweg_testing::skip::skipped("libibverbs1: not installed");
    }
    at_once([kill_source, kill_builder], |kill_node| kill_node(Link::RdmaDevice));
}

fn kill_source(link: Link) {
    let system = System::new(&Plan { link, source: PACED, run: "timeout = \"20s\"", builder: QUICK, ..PLAN });
    let mut builder = system.builder();
    let mut sources = system.sources([0, 1, 2]);
    builder.wait_for("recording");
    await_events(&system.run_directory(), 100);

    let victim = sources.remove(1).kill();
    assert_eq!(victim.code(), None);
    // The run goes on without it, and says of each event that it is missing.
    let mut incomplete = 0;
    follow_until(&system.run_directory(), |_, event| {
        incomplete += u64::from(event.status == thalweg_store::EventStatus::Incomplete);
        incomplete == 50
    });
    // Over EFE, a death is found by silence, which may be longer than the deadline of events.
    builder.wait_for("connection ended");
    // One that is started anew knows nothing of this run.
    system.node("source1").finish().failed_saying("can take part in the next");

    builder.interrupt();
    let report = builder.finish().report(1);
    assert_eq!(report["state"], "INCOMPLETE");
    assert!(reasons(&report).contains("source 1.1 (source1) sent no final counters"), "{report:#}");
    check_books(&report);
    check_recorded(&report, "1.0");
    check_recorded(&report, "1.2");
    all_succeed(sources);
    let verified = check_intact(&system.run_directory());
    assert!(matches!(verified.verdict, Verdict::Incomplete { reasons } if reasons.concat().contains("source1")));
    let contents = check_samples(&system.run_directory());
    assert_eq!(contents.events, number(&report, "/events/built"));
    assert_eq!(contents.incomplete, number(&report, "/events/incomplete"));
    let recorded = ["1.0", "1.1", "1.2"].map(|source| entry(&report, source)["recorded"].as_u64().unwrap());
    assert_eq!(contents.fragments, recorded.iter().sum::<u64>());
}

fn kill_builder(link: Link) {
    // How long sources look for the one that died; it waits for them as long.
    let system = System::new(&Plan { link, source: PACED, run: "timeout = \"5s\"", ..PLAN });
    let mut builder = system.builder();
    let sources = system.sources([0, 1, 2]);
    builder.wait_for("recording");
    await_events(&system.run_directory(), 200);
    builder.kill();
    for source in sources {
        source.finish().failed_saying("no builder at");
    }

    let run = Run::open(system.run_directory()).unwrap();
    assert_eq!(run.run_info().state, RunState::Open);
    assert_eq!(run.writer_life(), Some(WriterLife::Gone));
    assert!(run.recovery_point().is_some_and(|recovery| recovery.is_end), "{:?}", run.recovery_point());
    let contents = check_samples(&system.run_directory());
    assert!(contents.events >= 200, "what a reader saw is still there: {contents:?}");
    let expected = Contents { incomplete: 0, first: 0, last: contents.events - 1, ..contents };
    assert_eq!(contents, expected);
    let verified = check_intact(&system.run_directory());
    assert_eq!(verified.verdict, Verdict::Recovered);
    assert_eq!(verified.events, contents.events);
}

/// Runs 300 events of 64 KiB, with the cuts between source 1 and the builder.
fn cut(cuts: &[Cut]) {
    // Long enough that a source which comes back is never given up on a busy machine.
    let builder = "deadline = \"20s\"";
    let system =
        System::new(&Plan { sources: 2, size: "64KiB", run: "events = 300\ntimeout = \"20s\"", builder, ..PLAN });
    let builder = system.builder();
    let proxy = Proxy::new(system.tcp(), cuts.iter().copied());
    let sources = [system.node("source0"), system.node_via("source1", &[proxy.address()])];
    let report = builder.finish().report(0);
    for source in sources {
        assert_eq!(source.finish().report(0)["accepted"], 300);
    }
    assert_eq!(proxy.connections() as usize, cuts.len() + 1, "it was cut as often as planned");
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
    check_untouched(&report, "1.0");
    check_untouched(&report, "1.1");
    check_intact(&system.run_directory());
    let expected = Contents { events: 300, incomplete: 0, fragments: 600, first: 0, last: 299 };
    assert_eq!(check_samples(&system.run_directory()), expected);
}

#[test]
fn a_connection_that_is_cut_and_made_again_loses_nothing_and_doubles_nothing() {
    // In the middle of payloads, of a message, and of the greeting.
    cut(&[Cut::After(1_000_000), Cut::After(3_333_333)]);
    cut(&[Cut::After(64 + 20), Cut::After(700_001), Cut::AtOnce, Cut::AtOnce, Cut::After(5_000_064)]);
}

#[test]
fn what_a_builder_said_into_a_cut_connection_is_said_again() {
    cut(&[Cut::Before(|message| matches!(message, Message::Welcome(_)))]);
    cut(&[Cut::Before(|message| matches!(message, Message::Start { .. }))]);
    cut(&[Cut::Before(|message| matches!(message, Message::StopAt { .. }))]);
    cut(&[
        Cut::Before(|message| matches!(message, Message::Fetch { .. })),
        Cut::Before(|message| matches!(message, Message::Release { .. })),
    ]);
}

/// The other builder took the ends of its sources for orderly ones, and reported a complete run.
#[test]
fn a_leading_builder_that_dies_leaves_no_run_of_another_that_looks_complete() {
    at_once(["modulo", "by-room"], |assignment| {
        // How long sources look for the one that died.
        let run = format!("number = 7\nassignment = \"{assignment}\"\ntimeout = \"5s\"");
        let system = System::new(&Plan { builders: 2, source: PACED, run: &run, ..PLAN });
        let [mut leading, mut other] = ["builder0", "builder1"].map(|name| system.node(name));
        leading.wait_for("listening on");
        other.wait_for("listening on");
        let sources = system.sources([0, 1, 2]);
        let directories = [0, 1].map(|builder| system.path(&format!("runs/run-000007-b{builder}")));
        leading.wait_for("recording");
        other.wait_for("recording");
        directories.iter().for_each(|directory| await_events(directory, 20));
        leading.kill();

        let report = other.finish().report(1);
        assert_eq!(report["state"], "INCOMPLETE", "{report:#}");
        let reason = "builder 0, which leads the run, died, hung or was disconnected: 3 of 3 sources lost it";
        assert!(reasons(&report).contains(reason), "{report:#}");
        check_books(&report);
        for source in sources {
            source.finish().failed_saying("that builder leads the run, so that this source ends its part of it");
        }
        assert_eq!(Run::open(&directories[1]).unwrap().run_info().state, RunState::Incomplete);
        assert!(matches!(check_intact(&directories[1]).verdict, Verdict::Incomplete { .. }));
        check_samples(&directories[1]);
    });
}
