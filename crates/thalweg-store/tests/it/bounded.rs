//! Damage affects nothing but the damaged data, and every reader of a run reports the same damage, once.

use crate::common::{Builder, SOURCES, config, directory, payload};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_store::format::{BLOCK_HEADER_LEN, BlockHeader, Trailer};
use thalweg_store::{
    EventStatus, Follow, Followed, ProblemKind, RecorderConfig, Run, RunState, SalvageError, StoreError, Verdict,
    VerifyReport, salvage_run, verify_run,
};
use thalweg_testing::wait::wait_until;
use thalweg_wire::{EventId, SourceId, Status, crc32c};

/// Change of a `run.json`.
type Change = fn(&mut Value);
/// Damage to a run's files.
type Damage = fn(&Path);

const EVENTS: u64 = 100;

/// Records a finished run of several segments, with several blocks in each.
fn finished(directory: &Path) -> PathBuf {
    record(directory).finish().path
}

/// Records the same run with a writer that dies when its first segment has its footer.
fn died(directory: &Path) -> PathBuf {
    let mut builder = record(directory);
    builder.settle();
    let first = segment(builder.recorder.run_path(), 0);
    wait_until("the first segment is closed", || {
        assert!(builder.recorder.reap_block().is_none());
        std::fs::read(&first).is_ok_and(|bytes| Trailer::decode(&bytes).is_ok())
    });
    builder.die()
}

fn record(directory: &Path) -> Builder {
    let config = RecorderConfig { segment_bytes: 64 << 10, ..config(directory) };
    let mut builder = Builder::new(config, 4, 32 << 10);
    (0..EVENTS).for_each(|event| builder.event(event, 1000));
    builder
}

fn segment(path: &Path, number: u32) -> PathBuf {
    path.join(format!("{number:05}.seg"))
}

fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Returns the offset of a segment's footer.
fn footer(path: &Path, number: u32) -> u64 {
    Trailer::decode(&std::fs::read(segment(path, number)).unwrap()).unwrap().offset
}

/// Returns the events that can be read, after checking them against what was recorded.
fn readable(run: &Run) -> BTreeSet<u64> {
    run.events().flatten().map(|event| as_recorded(&event)).collect()
}

fn as_recorded(event: &thalweg_store::Event) -> u64 {
    assert_eq!(event.fragments.len(), usize::from(SOURCES));
    for fragment in &event.fragments {
        assert_eq!(fragment.payload(), payload(event.id.0, fragment.header.source, 1000));
    }
    event.id.0
}

/// Returns the events found by following the run to its end, and the number of damage reports.
fn followed(path: &Path) -> (BTreeSet<u64>, usize) {
    let mut follow = Follow::open(path).unwrap();
    let (mut events, mut told) = (BTreeSet::new(), 0);
    loop {
        match follow.next_event(Duration::ZERO) {
            Ok(Followed::Event(event)) => assert!(events.insert(as_recorded(&event))),
            Ok(Followed::End(_)) => return (events, told),
            Ok(Followed::Quiet) => panic!("it has ended"),
            Err(_) => told += 1,
        }
    }
}

/// Checks that a run damaged in one place has one problem, and that all readers agree on the rest. Returns the report
/// and the remaining events.
#[track_caller]
fn one_problem(path: &Path) -> (VerifyReport, BTreeSet<u64>) {
    let run = Run::open(path).unwrap();
    let report = verify_run(&run);
    assert_eq!(report.problem_count, 1, "{report}");
    let left = readable(&run);
    assert_eq!(left.len() as u64, report.events, "{report}");
    assert_eq!(report.events + report.lost_events, EVENTS, "{report}");
    let (events, told) = followed(path);
    assert_eq!(events, left);
    assert!(told > 0);
    (report, left)
}

#[test]
fn a_footer_costs_nothing_but_itself() {
    let directory = directory();
    let path = finished(directory.path());
    let segments = Run::open(&path).unwrap().segment_count();
    assert!(segments > 3);
    for number in [0, 1, segments - 1] {
        let (file, begins) = (segment(&path, number), footer(&path, number));
        let length = std::fs::metadata(&file).unwrap().len();
        // In its header, its table, its trailer.
        for at in [begins + 9, begins + 70, length - 1] {
            flip(&file, at);
            let (report, left) = one_problem(&path);
            assert_eq!((left.len() as u64, report.lost_blocks), (EVENTS, 0));
            let problem = &report.problems[0];
            assert!(matches!(problem.kind, ProblemKind::Segment { .. }), "{report}");
            assert_eq!(
                (problem.file.as_str(), problem.offset),
                (file.file_name().unwrap().to_str().unwrap(), Some(begins))
            );
            flip(&file, at);
        }
    }
    assert!(verify_run(&Run::open(&path).unwrap()).consistent);
}

#[test]
fn what_stands_behind_a_footer_is_named_and_costs_nothing() {
    let directory = directory();
    let path = finished(directory.path());
    for number in [0, 2] {
        let file = segment(&path, number);
        let whole = std::fs::read(&file).unwrap();
        for junk in [vec![0xa5; 100_000], vec![0; 8192], b"x".to_vec(), whole[..32 << 10].to_vec()] {
            std::fs::write(&file, [&whole[..], &junk].concat()).unwrap();
            let run = Run::open(&path).unwrap();
            let report = verify_run(&run);
            assert_eq!((report.problem_count, readable(&run).len() as u64), (1, EVENTS), "{report}");
            assert!(report.problems[0].text.contains(&format!("{} bytes", junk.len())), "{report}");
        }
        std::fs::write(&file, whole).unwrap();
    }
}

#[test]
fn a_segment_that_is_gone_takes_its_blocks_and_no_others() {
    let directory = directory();
    let path = finished(directory.path());
    let whole = Run::open(&path).unwrap();
    let last = whole.segment_count() - 1;
    for number in [0, 1, last] {
        let blocks =
            whole.data_blocks().iter().filter(|block| block.file_path() == segment(&path, number)).count() as u64;
        let kept = std::fs::read(segment(&path, number)).unwrap();
        std::fs::remove_file(segment(&path, number)).unwrap();
        let (report, left) = one_problem(&path);
        let problem = &report.problems[0];
        assert!(matches!(problem.kind, ProblemKind::Missing { blocks: lost, .. } if lost == blocks), "{report}");
        assert_eq!((problem.file.as_str(), problem.offset), (format!("{number:05}.seg").as_str(), None));
        assert_eq!(report.lost_blocks, blocks);
        assert!(!left.is_empty() && Run::open(&path).unwrap().found_problems().len() == 1);
        std::fs::write(segment(&path, number), kept).unwrap();
    }
}

#[test]
fn a_block_costs_itself_with_a_footer_and_without() {
    let directory = directory();
    let path = finished(directory.path());
    let begins = footer(&path, 1);
    let second = Run::open(&path)
        .unwrap()
        .data_blocks()
        .iter()
        .filter(|b| b.file_path() == segment(&path, 1))
        .nth(1)
        .unwrap()
        .file_offset();
    for at in [second + 20, second + 5000] {
        flip(&segment(&path, 1), at);
        let (report, left) = one_problem(&path);
        assert_eq!((report.lost_blocks, report.problems[0].offset), (1, Some(second)));
        assert!(matches!(report.problems[0].kind, ProblemKind::Block { .. }));
        assert!(left.len() as u64 > EVENTS * 3 / 4);
        flip(&segment(&path, 1), at);
    }
    // Damage to the first block of a segment, and to its footer: two problems, and the blocks between them are read.
    for at in [20, 5000] {
        flip(&segment(&path, 1), at);
        flip(&segment(&path, 1), begins + 9);
        let run = Run::open(&path).unwrap();
        let report = verify_run(&run);
        let [block, footer] = &report.problems[..] else { panic!("{report}") };
        assert!(matches!(block.kind, ProblemKind::Missing { blocks: 1, .. }), "{report}");
        assert_eq!((block.offset, footer.offset), (Some(0), Some(begins)));
        assert_eq!((report.lost_blocks, readable(&run).len() as u64), (1, report.events), "{report}");
        assert_eq!(report.events + report.lost_events, EVENTS, "{report}");
        flip(&segment(&path, 1), at);
        flip(&segment(&path, 1), begins + 9);
    }
}

#[test]
fn a_segment_that_is_cut_costs_what_is_cut_off() {
    let directory = directory();
    let path = finished(directory.path());
    let file = std::fs::File::options().write(true).open(segment(&path, 1)).unwrap();
    let second = Run::open(&path)
        .unwrap()
        .data_blocks()
        .iter()
        .filter(|b| b.file_path() == segment(&path, 1))
        .nth(1)
        .unwrap()
        .file_offset();
    file.set_len(second + 100).unwrap();
    let (report, left) = one_problem(&path);
    assert!(matches!(report.problems[0].kind, ProblemKind::Missing { .. }), "{report}");
    assert_eq!(report.problems[0].offset, Some(second));
    assert!(left.contains(&0) && left.contains(&(EVENTS - 1)));
}

#[test]
fn a_run_whose_writer_died_loses_nothing_with_a_footer_and_ends_at_a_gap() {
    let directory = directory();
    let path = finished(directory.path());
    let mut info: Value = serde_json::from_slice(&std::fs::read(path.join("run.json")).unwrap()).unwrap();
    info["state"] = "OPEN".into();
    info["ended"] = Value::Null;
    std::fs::write(path.join("run.json"), info.to_string()).unwrap();
    let begins = footer(&path, 0);
    flip(&segment(&path, 0), begins + 9);
    let run = Run::open(&path).unwrap();
    assert_eq!(readable(&run).len() as u64, EVENTS);
    assert!(verify_run(&run).consistent && run.recovery_point().is_none());
    assert_eq!(followed(&path).0.len() as u64, EVENTS);
    // No data counts after a block that is not whole: blocks are written several at a time.
    let begins = footer(&path, 1);
    flip(&segment(&path, 1), 5000);
    flip(&segment(&path, 1), begins + 9);
    let run = Run::open(&path).unwrap();
    let recovery = run.recovery_point().unwrap();
    assert_eq!((recovery.segment.as_str(), recovery.offset, recovery.is_end), ("00001.seg", 0, false));
    assert_eq!((readable(&run), followed(&path).1), (followed(&path).0, 0));
}

#[test]
fn what_is_no_file_does_not_keep_anybody_waiting() {
    let directory = directory();
    let path = finished(directory.path());
    for kind in [FileType::Fifo, FileType::Directory, FileType::Socket] {
        let name = segment(&path, 1);
        let kept = std::fs::read(&name).unwrap();
        std::fs::remove_file(&name).unwrap();
        match kind {
            FileType::Directory => std::fs::create_dir(&name).unwrap(),
            kind => rustix::fs::mknodat(CWD, &name, kind, Mode::from_bits_retain(0o644), 0).unwrap(),
        }
        let (report, _) = one_problem(&path);
        assert!(report.problems[0].text.contains("not a file"), "{report}");
        if kind == FileType::Directory {
            std::fs::remove_dir(&name).unwrap();
        } else {
            std::fs::remove_file(&name).unwrap();
        }
        std::fs::write(&name, kept).unwrap();
    }
    let json = path.join("run.json");
    std::fs::remove_file(&json).unwrap();
    rustix::fs::mknodat(CWD, &json, FileType::Fifo, Mode::from_bits_retain(0o644), 0).unwrap();
    assert!(matches!(Run::open(&path), Err(StoreError::NotAFile(_))));
}

#[test]
fn a_run_json_that_contradicts_itself_or_the_segments_is_named() {
    let directory = directory();
    let path = finished(directory.path());
    let text = std::fs::read(path.join("run.json")).unwrap();
    let cases: [(&str, Change); 17] = [
        ("'builders' is 0", |info| info["builders"] = 0.into()),
        ("event 1 belongs to builder 1", |info| info["builders"] = 2.into()),
        ("'builder' is 3", |info| info["builder"] = 3.into()),
        ("source 1.0 appears twice", |info| {
            let first = info["sources"][0].clone();
            info["sources"].as_array_mut().unwrap().insert(0, first);
        }),
        ("source 1.0 comes after 1.1", |info| info["sources"].as_array_mut().unwrap().swap(0, 1)),
        ("'ended' is null", |info| info["ended"] = Value::Null),
        ("'ended' has the time", |info| info["state"] = "OPEN".into()),
        ("'channels' of source 1.1 is 0", |info| info["sources"][1]["description"] = json!({ "channels": 0 })),
        ("'width' of source 1.1 is 1.5", |info| info["sources"][1]["description"] = json!({ "width": 1.5 })),
        ("'shape' of source 1.1 is [2,0]", |info| info["sources"][1]["description"] = json!({ "shape": [2, 0] })),
        ("'shape' of source 1.1 is []", |info| info["sources"][1]["description"] = json!({ "shape": [] })),
        ("control characters", |info| info["sources"][1]["name"] = "\u{1b}[2J".into()),
        ("'reasons' is not empty", |info| info["reasons"] = json!(["because"])),
        ("a line for source \"9.9\"", |info| info["ledger"][0]["source"] = "9.9".into()),
        ("two lines for source 1.1", |info| info["ledger"][0]["source"] = "1.1".into()),
        ("block field 'run' is 1, expected 2", |info| info["run"] = 2.into()),
        ("'totals.events' is 101", |info| info["totals"]["events"] = 101.into()),
    ];
    for (problem, change) in cases {
        let mut info: Value = serde_json::from_slice(&text).unwrap();
        change(&mut info);
        std::fs::write(path.join("run.json"), info.to_string()).unwrap();
        let run = Run::open(&path).unwrap();
        let report = verify_run(&run);
        assert!(report.to_string().contains(problem), "{problem}: {report}");
        assert!(!report.to_string().contains('\u{1b}'), "{report}");
    }
}

#[test]
fn two_records_of_a_source_are_not_chosen_between() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 32 << 10);
    builder.event(0, 1000);
    for element in [0, 1, 1, 2] {
        builder.fragment(1, SourceId::new(1, element), 1000);
    }
    builder.close(1, EventStatus::Complete);
    let path = builder.finish().path;
    let run = Run::open(&path).unwrap();
    assert!(matches!(run.find_event(EventId(1)), Err(StoreError::Event { event: 1, found: 4, expected: 3, .. })));
    assert_eq!(readable(&run), [0].into());
    assert!(matches!(verify_run(&run).problems[0].kind, ProblemKind::Event { event: 1, .. }));
}

#[test]
fn a_payload_without_a_checksum_is_held_by_its_block_alone() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 32 << 10);
    builder.event_without_checksums(0, 1000);
    let path = builder.finish().path;
    let run = Run::open(&path).unwrap();
    assert!(verify_run(&run).consistent, "{}", verify_run(&run));
    let event = run.find_event(EventId(0)).unwrap().unwrap();
    assert!(event.fragments.iter().all(|fragment| fragment.header.status.contains(Status::NO_PAYLOAD_CRC)));
    flip(&segment(&path, 0), 200);
    assert!(Run::open(&path).unwrap().find_event(EventId(0)).is_err());
}

/// Salvages a run, and checks that the original is unchanged and that the new run contains what could be read.
fn salvaged(path: &Path) -> (thalweg_store::Salvaged, Run) {
    let files = || {
        let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        names.map(|name| (name.clone(), std::fs::read(name).unwrap())).collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = files();
    let to = path.with_file_name("salvaged").join("run-000001");
    let salvaged = salvage_run(path, &to).unwrap().unwrap();
    assert!(files() == before, "the damaged run was changed");
    assert_eq!(std::fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing else is left there");
    let run = Run::open(&to).unwrap();
    let report = verify_run(&run);
    assert!(report.consistent, "{report}");
    assert_eq!((report.events, run.len()), (salvaged.events, salvaged.events));
    assert!(matches!(report.verdict, Verdict::Incomplete { .. }));
    assert!(run.run_info().reasons[0].contains("salvaged from"), "{:?}", run.run_info().reasons);
    for event in run.events().map(Result::unwrap) {
        for fragment in event.fragments.iter().filter(|fragment| !fragment.header.status.contains(Status::MISSING)) {
            assert_eq!(fragment.payload(), payload(event.id.0, fragment.header.source, 1000));
        }
    }
    assert!(matches!(salvage_run(path, &to), Err(SalvageError::Exists(_))));
    (salvaged, run)
}

#[test]
fn what_is_whole_of_a_damaged_run_becomes_a_run() {
    let damages: [(&str, Damage); 6] = [
        ("a footer", |path| flip(&segment(path, 1), footer(path, 1) + 9)),
        ("a block", |path| flip(&segment(path, 1), 5000)),
        ("a segment", |path| std::fs::remove_file(segment(path, 1)).unwrap()),
        ("the end", |path| {
            let segments = Run::open(path).unwrap().segment_count();
            std::fs::remove_file(segment(path, segments - 1)).unwrap();
        }),
        ("a cut", |path| {
            std::fs::File::options().write(true).open(segment(path, 1)).unwrap().set_len(40_000).unwrap();
        }),
        ("a footer and a block in front of it", |path| {
            flip(&segment(path, 1), footer(path, 1) + 9);
            flip(&segment(path, 1), 20);
        }),
    ];
    for (what, damage) in damages {
        let directory = directory();
        let path = finished(directory.path());
        damage(&path);
        let damaged = Run::open(&path).unwrap();
        let whole = readable(&damaged);
        let report = verify_run(&damaged);
        let (salvaged, run) = salvaged(&path);
        let complete = run.events().map(Result::unwrap).filter(|event| event.status == EventStatus::Complete);
        let complete: BTreeSet<u64> = complete.map(|event| event.id.0).collect();
        assert!(complete.is_superset(&whole), "{what}: {salvaged:?}");
        assert_eq!(salvaged.events - salvaged.torn_events, complete.len() as u64, "{what}");
        assert_eq!(salvaged.events + salvaged.lost_events, EVENTS, "{what}: {salvaged:?}");
        assert_eq!(salvaged.lost_fragments, Some(3 * EVENTS - salvaged.fragments), "{what}");
        assert_eq!(
            (salvaged.lost_blocks, salvaged.problem_count),
            (report.lost_blocks, report.problem_count),
            "{what}"
        );
        assert!(run.run_info().reasons.iter().any(|reason| reason.contains(&report.problems[0].text)), "{what}");
    }
}

#[test]
fn what_a_writer_that_died_left_becomes_a_run() {
    let directory = directory();
    let path = died(directory.path());
    // Reading ends here; the intact data after it is kept nevertheless.
    flip(&segment(&path, 1), 5000);
    let (salvaged, run) = salvaged(&path);
    assert!(salvaged.events > EVENTS * 3 / 4 && salvaged.events < EVENTS + 1, "{salvaged:?}");
    assert_eq!((salvaged.lost_blocks, salvaged.lost_fragments), (1, None));
    assert!(run.find_event(EventId(EVENTS - 1)).unwrap().is_some_and(|event| event.status == EventStatus::Complete));
    assert!(run.run_info().reasons[0].contains("whose writer did not close it"));
}

#[test]
fn what_needs_no_salvage_gets_none() {
    let directory = directory();
    let builder = record(directory.path());
    let to = directory.path().join("new");
    assert!(matches!(salvage_run(builder.recorder.run_path(), &to), Err(SalvageError::BeingWritten(_))));
    let path = builder.finish().path;
    assert!(salvage_run(&path, &to).unwrap().is_none());
    assert!(!to.exists());
    assert_eq!(Run::open(&path).unwrap().run_info().state, RunState::Complete);
    assert!(matches!(salvage_run(&path, &path), Err(SalvageError::Exists(_))));
    assert!(matches!(salvage_run(directory.path(), &to), Err(SalvageError::Store(StoreError::NotARun(_)))));
}

#[test]
fn a_run_json_that_cannot_be_is_mended_where_it_can_be() {
    let directory = directory();
    let path = finished(directory.path());
    let mut info: Value = serde_json::from_slice(&std::fs::read(path.join("run.json")).unwrap()).unwrap();
    let first = info["sources"][0].clone();
    info["sources"].as_array_mut().unwrap().push(first);
    info["sources"][1]["name"] = "\u{1b}[2J".into();
    info["sources"][1]["description"] = json!({ "channels": 0, "shape": [1.5] });
    info["builders"] = 2.into();
    info["began"] = u64::MAX.into();
    info["ledger"][2]["accepted"] = 7.into();
    std::fs::write(path.join("run.json"), info.to_string()).unwrap();
    let (salvaged, run) = salvaged(&path);
    assert_eq!((salvaged.events, salvaged.torn_events, run.run_info().builders), (EVENTS, 0, 1));
}

/// Would take hours if each event that a closing names were looked at.
#[test]
fn a_closing_of_four_thousand_million_events_costs_as_much_as_there_are_records() {
    let directory = directory();
    let path = died(directory.path());
    let file = segment(&path, 0);
    let whole = std::fs::read(&file).unwrap();
    let blocks: Vec<usize> =
        Run::open(&path).unwrap().data_blocks().iter().take(2).map(|block| block.file_offset() as usize).collect();
    let mut bytes = whole.clone();
    for at in blocks {
        let header = BlockHeader::decode(&bytes[at..]).unwrap();
        let closings = at + header.index_offset as usize + 16 * header.fragments as usize;
        for closing in bytes[closings..closings + 32 * header.closings as usize].chunks_exact_mut(32) {
            closing[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        let body_crc = crc32c(&bytes[at + BLOCK_HEADER_LEN..at + header.length as usize]);
        bytes[at..at + BLOCK_HEADER_LEN].copy_from_slice(&BlockHeader { body_crc, ..header }.encode());
    }
    std::fs::write(&file, &bytes).unwrap();
    let report = verify_run(&Run::open(&path).unwrap());
    assert!(report.problem_count > 4_000_000_000, "{}", report.problem_count);
    // The same, with a lost block that may have contained the named events.
    flip(&file, 5000);
    let report = verify_run(&Run::open(&path).unwrap());
    assert!(!report.consistent, "{report:#?}");
    let salvaged = salvage_run(&path, &directory.path().join("salvaged"));
    assert!(matches!(salvaged, Err(SalvageError::Unsound { .. })), "{salvaged:?}");
}
