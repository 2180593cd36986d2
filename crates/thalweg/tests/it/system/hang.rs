//! Sources that stand still: for a while, and for ever.

use crate::common::*;
use rustix::process::Signal;
use thalweg_store::EventStatus;
use thalweg_wire::SourceId;

const PACED: &str = "rate = 1000.0";
const HUNG: SourceId = SourceId::new(1, 1);

/// Follows the run until so many events lack the source that hangs, and only that.
fn await_gaps(system: &System, gaps: u64) {
    let mut found = 0;
    follow_until(&system.run_directory(), |_, event| {
        if event.status == EventStatus::Incomplete {
            let missing = event.fragments.iter().filter(|fragment| fragment.payload().is_empty());
            let missing: Vec<SourceId> = missing.map(|fragment| fragment.header.source).collect();
            assert_eq!(missing, [HUNG], "event {} names the one that is missing", event.id.0);
            found += 1;
        }
        found == gaps
    });
}

#[test]
fn a_source_that_hangs_and_comes_to_life_again_takes_part_again() {
    at_once(LINKS, |link| {
        let system = System::new(&Plan { link, source: PACED, builder: QUICK, ..PLAN });
        let mut builder = system.builder();
        let sources = system.sources([0, 1, 2]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 50);
        sources[1].signal(Signal::STOP);
        await_gaps(&system, 50);
        sources[1].signal(Signal::CONT);
        let mut gap = false;
        let mut again = 0;
        follow_until(&system.run_directory(), |_, event| {
            gap |= event.status == EventStatus::Incomplete;
            again += u64::from(gap && event.status == EventStatus::Complete);
            again == 50
        });

        builder.interrupt();
        let report = builder.finish().report(1);
        assert_eq!(report["state"], "INCOMPLETE");
        check_books(&report);
        check_recorded(&report, "1.0");
        check_recorded(&report, "1.2");
        let hung = entry(&report, "1.1");
        assert_eq!(hung["final_counters"], true, "{hung:#}");
        assert!(hung["recorded"].as_u64().unwrap() > 0 && hung["accepted"] != hung["recorded"], "{hung:#}");
        all_succeed(sources);
        check_intact(&system.run_directory());
        let contents = check_samples(&system.run_directory());
        assert_eq!(contents.incomplete, number(&report, "/events/incomplete"));
    });
}

#[test]
fn a_source_that_hangs_for_ever_does_not_keep_the_run_from_ending() {
    // It is waited for as long at the end as at the beginning.
    at_once(LINKS, |link| {
        let system = System::new(&Plan { link, source: PACED, run: "timeout = \"5s\"", builder: QUICK, ..PLAN });
        let mut builder = system.builder();
        let mut sources = system.sources([0, 1, 2]);
        builder.wait_for("recording");
        await_events(&system.run_directory(), 50);
        let hung = sources.remove(1);
        hung.signal(Signal::STOP);
        await_gaps(&system, 50);
        builder.interrupt();
        let report = builder.finish().report(1);
        assert!(reasons(&report).contains("source 1.1 (source1) sent no final counters"), "{report:#}");
        check_books(&report);
        check_recorded(&report, "1.0");
        check_recorded(&report, "1.2");
        all_succeed(sources);
        hung.kill();
        check_intact(&system.run_directory());
        check_samples(&system.run_directory());
    });
}
