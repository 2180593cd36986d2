//! The parts written by several builders are one run.

use crate::common::{Builder, config, directory, memory_directory, payload};
use proptest::prelude::*;
use std::path::Path;
use std::time::Duration;
use thalweg_store::{
    End, EventStatus, Follow, Followed, RecorderConfig, Run, RunState, StoreError, Verdict,
    combine_builder_directories, list_runs, verify_run,
};
use thalweg_wire::{EventId, RunNumber};

fn part_config(directory: &Path, builder: u32, builders: u32, assignment: &str) -> RecorderConfig {
    let run = Some(RunNumber(42));
    RecorderConfig { run, builder, builders, assignment: assignment.into(), ..config(directory) }
}

/// Records events 0, 1, 2, …, each by the builder at its position in `assigned`, in a run of `builders` builders. Every
/// fifth event lacks a source.
fn record(directory: &Path, builders: u32, assigned: &[u32]) {
    for builder in 0..builders {
        let mut part = Builder::new(part_config(directory, builder, builders, "by-room"), 4, 64 << 10);
        for (event, _) in (0..).zip(assigned).filter(|(_, to)| **to == builder) {
            match event % 5 {
                4 => part.incomplete_event(event, 300),
                _ => part.event(event, 300),
            }
        }
        part.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn their_events_are_in_order_wherever_they_are(
        builders in 2..5u32,
        draws in proptest::collection::vec(any::<u32>(), 1..120),
    ) {
        let directory = memory_directory();
        let assigned: Vec<u32> = draws.iter().map(|draw| draw % builders).collect();
        record(directory.path(), builders, &assigned);
        let path = directory.path().join("runs/run-000042");
        let run = Run::open(&path).unwrap();
        let count = assigned.len() as u64;
        prop_assert_eq!((run.run_path(), run.builder_parts().len(), run.len()), (&*path, builders as usize, count));
        prop_assert!(run.has_declared_data() && run.found_problems().is_empty());
        for (number, event) in (0..).zip(run.events()) {
            let event = event.unwrap();
            prop_assert_eq!(event.id, EventId(number));
            let expected = if number % 5 == 4 { EventStatus::Incomplete } else { EventStatus::Complete };
            prop_assert_eq!(event.status, expected);
            for fragment in &event.fragments[..2] {
                prop_assert_eq!(fragment.payload(), payload(number, fragment.header.source, 300));
            }
            prop_assert_eq!(run.nth_event(number), Some(event.id));
            prop_assert_eq!(run.events_before(event.id), number);
            prop_assert_eq!(run.find_event(event.id).unwrap().unwrap().fragments.len(), event.fragments.len());
        }
        prop_assert_eq!(run.event_ids_from(EventId(count / 2)).count() as u64, count - count / 2);
        prop_assert_eq!((run.nth_event(count), run.event_status(EventId(count))), (None, None));

        let report = verify_run(&run);
        prop_assert!(report.consistent, "{:?}", report.problems);
        let incomplete = count / 5;
        prop_assert_eq!((report.events, report.incomplete_events, report.missing), (count, incomplete, incomplete));
        let state = if incomplete > 0 { RunState::Incomplete } else { RunState::Complete };
        let info = run.run_info();
        prop_assert_eq!((info.state, info.totals.events, info.events.built), (state, count, count));
        prop_assert_eq!(info.ledger[0]["recorded"].as_u64(), Some(count));
        let lacks = |builder: &u32| (0..).zip(&assigned).any(|(event, to)| to == builder && event % 5 == 4);
        let lacking: Vec<u32> = (0..builders).filter(lacks).collect();
        let reasons: Vec<String> = match lacking.len() == builders as usize {
            true => vec!["each builder: a source was missing".to_owned()],
            false => lacking.iter().map(|builder| format!("builder {builder}: a source was missing")).collect(),
        };
        prop_assert_eq!(&info.reasons, &reasons);
        let recorded = report.sources.iter().map(|source| source.recorded).sum::<u64>();
        prop_assert_eq!(recorded, info.totals.fragments);
    }
}

#[test]
fn a_builder_whose_part_is_not_here_is_missed() {
    let directory = directory();
    record(directory.path(), 3, &[0, 1, 2, 0]);
    let runs = directory.path().join("runs");
    std::fs::remove_dir_all(runs.join("run-000042-b1")).unwrap();
    let run = Run::open(runs.join("run-000042")).unwrap();
    let missed = "the data of builder 1 of 3 is missing";
    assert_eq!((run.run_info().state, run.len()), (RunState::Incomplete, 3));
    assert_eq!(run.run_info().reasons, [missed]);
    assert_eq!(run.found_problems()[0].text, missed);
    let report = verify_run(&run);
    assert_eq!(report.verdict, Verdict::Incomplete { reasons: vec![missed.to_owned()] });
    assert_eq!((report.consistent, report.problem_count), (false, 1));
    // A part that is named itself is read alone.
    assert!(verify_run(&Run::open(runs.join("run-000042-b0")).unwrap()).consistent);
    let listed = combine_builder_directories(list_runs(&runs).unwrap());
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].path.as_path(), listed[0].state_text()), (&*runs.join("run-000042"), "INCOMPLETE"));
}

#[test]
fn a_copy_of_a_part_is_listed_by_itself() {
    let directory = directory();
    record(directory.path(), 2, &[0, 1]);
    let runs = directory.path().join("runs");
    std::fs::create_dir(runs.join("copy")).unwrap();
    for file in std::fs::read_dir(runs.join("run-000042-b0")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), runs.join("copy").join(file.file_name())).unwrap();
    }
    let listed = combine_builder_directories(list_runs(&runs).unwrap());
    let found: Vec<_> = listed.iter().map(|run| (run.path.clone(), run.state_text())).collect();
    assert_eq!(found, [(runs.join("run-000042"), "COMPLETE"), (runs.join("copy"), "COMPLETE")]);
}

#[test]
fn damage_is_named_with_the_part_that_it_is_in() {
    let directory = directory();
    record(directory.path(), 2, &[0, 1, 0, 1]);
    let runs = directory.path().join("runs");
    std::fs::remove_file(runs.join("run-000042-b1/00000.seg")).unwrap();
    let run = Run::open(runs.join("run-000042")).unwrap();
    assert_eq!((run.len(), run.has_declared_data()), (2, false));
    assert_eq!(run.found_problems()[0].file, "run-000042-b1/00000.seg");
    let report = verify_run(&run);
    assert!(report.problems.iter().all(|problem| problem.file.starts_with("run-000042-b1/")), "{report}");
    assert_eq!((report.events, report.lost_events), (2, 2));
}

#[test]
fn a_number_is_of_one_run_however_many_builders_it_has() {
    let directory = directory();
    let taken = |builder, builders| {
        let mut pool = thalweg_arena::BlockPool::new("test", 2, 64 << 10).unwrap();
        let config = part_config(directory.path(), builder, builders, "by-room");
        let made = thalweg_store::Recorder::create_run(config, &mut pool);
        matches!(made, Err(StoreError::Exists(_)))
    };
    record(directory.path(), 2, &[0, 1]);
    assert!(taken(0, 1) && taken(0, 2) && taken(2, 3));
    std::fs::remove_dir_all(directory.path().join("runs")).unwrap();
    assert!(!taken(0, 1));
    assert!(taken(0, 1) && taken(0, 2) && taken(1, 2));
}

#[test]
fn parts_of_different_runs_are_no_run() {
    let directory = directory();
    record(directory.path(), 2, &[0, 1]);
    let runs = directory.path().join("runs");
    let path = runs.join("run-000042-b1/run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, says) in [
        ("\"builders\": 2", "\"builders\": 3", "builder 0 was one of 2, but builder 1 one of 3"),
        ("\"builder\": 1", "\"builder\": 0", "two of them are of builder 0"),
        ("\"1.2\"", "\"1.3\"", "builders 0 and 1 had different sources"),
    ] {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = Run::open(runs.join("run-000042")).unwrap_err().to_string();
        assert!(error.ends_with(says), "{error}");
    }
}

/// One of the builders begins later than the reader, and another dies.
#[test]
fn a_follower_gets_what_each_builder_closes_until_all_have_ended() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let directory = directory();
    let part = |builder| Builder::new(part_config(directory.path(), builder, 3, "modulo"), 4, 64 << 10);
    let mut parts = vec![part(0), part(1)];
    let mut follow = Follow::open(directory.path().join("runs/run-000042")).unwrap();
    let mut next = |timeout| match follow.next_event(timeout).unwrap() {
        Followed::Event(event) => Some(event.id.0),
        Followed::Quiet => None,
        Followed::End(end) => panic!("it ended: {end:?}"),
    };
    assert_eq!(next(Duration::ZERO), None);
    for event in [0, 1] {
        parts[event as usize].event(event, 100);
        parts[event as usize].settle();
        assert_eq!(next(TIMEOUT), Some(event));
    }
    parts.push(part(2));
    parts[2].event(2, 100);
    parts[2].settle();
    assert_eq!(next(TIMEOUT), Some(2));
    parts.pop().unwrap().die();
    parts.pop().unwrap().finish();
    assert_eq!(next(Duration::ZERO), None);
    parts[0].event(3, 100);
    parts.pop().unwrap().finish();
    assert_eq!(next(TIMEOUT), Some(3));
    // A part that was left open keeps the run open, whatever the state of the others.
    assert!(matches!(follow.next_event(TIMEOUT), Ok(Followed::End(End::WriterGone))));
    assert_eq!(follow.run_info().state, RunState::Open);
}
