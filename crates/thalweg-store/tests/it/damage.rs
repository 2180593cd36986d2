//! Runs whose writer died, whose disk filled up, or whose bytes were changed afterwards.

use crate::common::{Builder, SOURCES, config, directory, memory_directory};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use thalweg_arena::BlockPool;
use thalweg_store::format::{BlockHeader, Trailer};
use thalweg_store::{
    EventStatus, Follow, ProblemKind, Recorder, RecorderConfig, Run, RunInfo, RunState, Verdict, VerifyReport,
    list_runs, verify_run,
};
use thalweg_testing::skip::skipped;
use thalweg_wire::{EventId, SourceId};

const FIRST: &str = "00000.seg";

/// Records a finished run with one segment of a dozen blocks.
fn finished(directory: &Path) -> PathBuf {
    let mut builder = Builder::new(config(directory), 4, 32 << 10);
    (0..100).for_each(|event| builder.event(event, 1000));
    builder.finish().path
}

/// Records a run whose writer dies.
fn died(directory: &Path) -> PathBuf {
    let mut builder = Builder::new(config(directory), 4, 32 << 10);
    (0..100).for_each(|event| builder.event(event, 1000));
    builder.die()
}

/// Returns the offsets of the blocks of a run, and the end of the data.
fn boundaries(run: &Run) -> Vec<u64> {
    let ends = run
        .data_blocks()
        .last()
        .map(|block| block.file_offset() + u64::from(block.read_checked(run.run_info()).unwrap().header().length));
    run.data_blocks().iter().map(|block| block.file_offset()).chain(ends).collect()
}

fn kinds(report: &VerifyReport) -> Vec<&ProblemKind> {
    report.problems.iter().map(|problem| &problem.kind).collect()
}

#[test]
fn a_run_whose_writer_died_is_recovered_to_its_last_block() {
    let directory = directory();
    let run = Run::open(died(directory.path())).unwrap();
    let report = verify_run(&run);
    assert_eq!(report.verdict, Verdict::Recovered);
    assert!(report.consistent, "{report}");
    assert_eq!(report.events, 100);
    let recovery = run.recovery_point().unwrap();
    assert!(recovery.is_end);
    assert_eq!(recovery.blocks, run.data_blocks().len() as u64);
    assert!(report.to_string().starts_with("OPEN, recovered to block"), "{report}");
    assert!(report.to_string().contains("the writer died"), "{report}");
}

#[test]
fn a_torn_tail_costs_the_torn_block_only() {
    let directory = directory();
    let path = died(directory.path());
    let ends = boundaries(&Run::open(&path).unwrap());
    let segment = std::fs::OpenOptions::new().write(true).open(path.join(FIRST)).unwrap();
    // Backwards, since a file is only ever cut shorter here: within a body, a header, at each boundary.
    for (whole, block) in ends.windows(2).enumerate().rev() {
        for cut in [block[1] - 1, block[1] - 4096, block[0] + 4096, block[0] + 64, block[0] + 63, block[0] + 1] {
            segment.set_len(cut).unwrap();
            let run = Run::open(&path).unwrap();
            assert_eq!(run.data_blocks().len(), whole, "cut at {cut} of {block:?}");
            assert_eq!(run.recovery_point().unwrap().offset, block[0]);
            assert!(!run.recovery_point().unwrap().is_end);
            let report = verify_run(&run);
            assert!(report.consistent, "{report}");
            assert!(run.events().all(|event| event.unwrap().fragments.len() == usize::from(SOURCES)));
            assert_eq!(run.events().count() as u64, report.events);
        }
        segment.set_len(block[0]).unwrap();
        let run = Run::open(&path).unwrap();
        assert_eq!((run.data_blocks().len(), run.recovery_point().unwrap().is_end), (whole, true));
    }
    assert!(Run::open(&path).unwrap().is_empty());
}

#[test]
fn a_finished_run_without_its_footer_is_read_but_not_trusted() {
    let directory = directory();
    let path = finished(directory.path());
    let run = Run::open(&path).unwrap();
    let end = *boundaries(&run).last().unwrap();
    let length = std::fs::metadata(path.join(FIRST)).unwrap().len();
    let segment = std::fs::OpenOptions::new().write(true).open(path.join(FIRST)).unwrap();
    for cut in [length - 1, length - 16, end + 64, end + 1, end] {
        segment.set_len(cut).unwrap();
        let run = Run::open(&path).unwrap();
        let report = verify_run(&run);
        assert!(run.events().all(|event| event.is_ok()) && report.events == 100);
        assert!(matches!(kinds(&report)[..], [ProblemKind::Segment { .. }]), "{report}");
        assert_eq!(report.problems[0].offset, Some(end));
    }
}

#[test]
fn every_changed_bit_that_matters_is_found() {
    let directory = directory();
    let path = finished(directory.path());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path.join(FIRST)).unwrap();
    let length = file.metadata().unwrap().len();
    let mut byte = [0];
    // Every 997th byte meets headers, payloads, padding, tables and the footer.
    for at in (0..length).step_by(997).chain([length - 1, length - 16]) {
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        let run = Run::open(&path).unwrap();
        let report = verify_run(&run);
        assert!(!report.consistent, "a flip at byte {at} of {length} went unseen");
        assert!(
            report.problems.iter().any(|problem| problem.file == FIRST && problem.offset.unwrap() <= at),
            "{report}"
        );
        // Events in other blocks are still read; an event in this block is an error, never wrong data.
        let (good, bad): (Vec<_>, Vec<_>) = run.events().partition(|event| event.is_ok());
        assert!(bad.len() < 40, "{} of {} events", bad.len(), good.len() + bad.len());
        for event in good {
            assert!(event.unwrap().fragments.iter().all(|fragment| fragment.is_payload_intact()));
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(verify_run(&Run::open(&path).unwrap()).consistent);
}

#[test]
fn a_payload_that_was_wrong_before_it_was_sealed_is_found() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 32 << 10);
    builder.event(0, 100);
    // Source 1.1 sends twice, 1.2 not at all, and the event is called complete.
    builder.fragment(1, SourceId::new(1, 0), 10);
    builder.fragment(1, SourceId::new(1, 1), 10);
    builder.fragment(1, SourceId::new(1, 1), 10);
    builder.close(1, EventStatus::Complete);
    builder.missing(2, SourceId::new(1, 0));
    builder.missing(2, SourceId::new(1, 1));
    builder.missing(2, SourceId::new(1, 2));
    builder.close(2, EventStatus::Complete);
    builder.close(0, EventStatus::Complete);
    builder.flush();
    builder.fragment(1, SourceId::new(1, 2), 10);
    builder.fragment(3, SourceId::new(1, 2), 10);
    let run = Run::open(builder.finish().path).unwrap();
    let report = verify_run(&run);
    let expected = [
        ProblemKind::Event { event: 1, found: 3, expected: 3 },
        ProblemKind::EventStatus { event: 2, status: "complete".into(), missing: 3 },
        ProblemKind::Event { event: 0, found: 0, expected: 3 },
        ProblemKind::AfterClosing { event: 1, records: 1 },
    ];
    assert_eq!(kinds(&report), expected.iter().collect::<Vec<_>>(), "{report}");
    assert_eq!(report.unfinished_events, 1);
    let recorded: Vec<u64> = report.sources.iter().map(|source| source.recorded).collect();
    assert_eq!(recorded, [2, 3, 2], "what was never closed, event 3 of source 1.2, is not recorded");
}

#[test]
fn books_that_do_not_agree_with_the_files_are_found() {
    let directory = directory();
    let path = finished(directory.path());
    let text = std::fs::read_to_string(path.join("run.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["ledger"][1]["recorded"] = 101.into();
    json["ledger"][2]["unaccounted"] = 7.into();
    json["ledger"][0]["accepted"] = 103.into();
    json["ledger"][0]["late"] = 1.into();
    json["events"]["built"] = 99.into();
    std::fs::write(path.join("run.json"), json.to_string()).unwrap();
    let report = verify_run(&Run::open(&path).unwrap());
    let expected = [
        ProblemKind::Total { what: "events.built".into(), stated: 99, counted: 100 },
        ProblemKind::Total { what: "recorded of source 1.1".into(), stated: 101, counted: 100 },
        ProblemKind::Balance { source_id: "1.0".into(), accepted: 103, explained: 101 },
        ProblemKind::Unaccounted { source_id: "1.2".into(), fragments: 7 },
    ];
    assert_eq!(kinds(&report), expected.iter().collect::<Vec<_>>(), "{report}");
    assert!(serde_json::to_value(&report).unwrap()["problems"][0]["problem"] == "total");
}

#[test]
fn a_lost_segment_is_found() {
    let directory = directory();
    let config = RecorderConfig { segment_bytes: 64 << 10, ..config(directory.path()) };
    let mut builder = Builder::new(config, 4, 32 << 10);
    (0..100).for_each(|event| builder.event(event, 1000));
    let path = builder.finish().path;
    let whole = Run::open(&path).unwrap();
    assert!(whole.segment_count() > 3);
    std::fs::remove_file(path.join("00002.seg")).unwrap();
    let run = Run::open(&path).unwrap();
    assert!(run.data_blocks().len() < whole.data_blocks().len());
    let report = verify_run(&run);
    assert_eq!((report.problem_count, report.problems[0].file.as_str()), (1, "00002.seg"), "{report}");
    assert_eq!(run.data_blocks().len() as u64 + run.builder_parts()[0].lost_blocks(), whole.data_blocks().len() as u64);
    for number in 3..whole.segment_count() {
        std::fs::remove_file(path.join(format!("{number:05}.seg"))).unwrap();
    }
    let run = Run::open(&path).unwrap();
    let report = verify_run(&run);
    let lost = whole.data_blocks().len() as u64 - report.blocks;
    assert!(matches!(kinds(&report)[..], [ProblemKind::Missing { blocks, .. }] if *blocks == lost), "{report}");
    assert_eq!(run.found_problems().len(), 1);
}

#[test]
fn a_full_disk_ends_the_run_with_its_reason() {
    on_small_disk(c"size=4m", |mount| {
        let mut builder = Builder::new(RecorderConfig { segment_bytes: 1 << 20, ..config(mount) }, 8, 128 << 10);
        (0..2000).for_each(|event| builder.event(event, 1000));
        builder.settle();
        assert_eq!(builder.closed(), 2000);
        let error = builder.recorder.first_write_error().expect("6 MB do not fit 4 MiB").clone();
        assert!(error.is_disk_full(), "{error}");
        let text = error.to_string();
        assert!(text.contains(".seg") && text.contains("at byte") && text.contains("No space left"), "{text}");
        // Every fragment is either recorded or came back as lost.
        let lost = builder.lost.clone();
        let finished = builder.finish();
        assert_eq!(finished.info.state, RunState::Incomplete);
        assert_eq!(finished.info.reasons, [text]);
        let run = Run::open(&finished.path).unwrap();
        let report = verify_run(&run);
        assert!(report.consistent, "{report}");
        for source in &report.sources {
            assert!(source.recorded > 500, "{report}");
            assert_eq!(source.recorded + lost[&source.source.parse().unwrap()], 2000);
        }
        let mut follow = run.follow_events().unwrap();
        let mut events = 0;
        while let thalweg_store::Followed::Event(_) = follow.next_event(Duration::ZERO).unwrap() {
            events += 1;
        }
        assert_eq!(events, report.events);
    });
}

#[test]
fn a_disk_without_room_for_a_run_gets_none() {
    on_small_disk(c"size=64k", |mount| {
        let mut pool = BlockPool::new("test", 1, 64 << 10).unwrap();
        let error = Recorder::create_run(config(mount), &mut pool).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert!(list_runs(&mount.join("runs")).unwrap().is_empty());
        assert_eq!(std::fs::read_dir(mount.join("runs")).unwrap().count(), 0, "nothing is left behind");
    });
    // Space that runs out at any point of creating a run.
    for pages in 16..40 {
        on_small_disk(&std::ffi::CString::new(format!("size={}k", 4 * pages)).unwrap(), |mount| {
            let mut pool = BlockPool::new("test", 1, 64 << 10).unwrap();
            let begun = Recorder::create_run(config(mount), &mut pool).is_ok();
            let left = std::fs::read_dir(mount.join("runs")).unwrap().count();
            assert_eq!(left, usize::from(begun), "with {pages} pages");
        });
    }
}

/// Runs `test` on a separate file system, or reports why it cannot.
fn on_small_disk(options: &std::ffi::CStr, test: impl FnOnce(&Path)) {
    struct Mounted<'a>(&'a Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
    let directory = directory();
    let flags = rustix::mount::MountFlags::empty();
    match rustix::mount::mount("tmpfs", directory.path(), "tmpfs", flags, Some(options)) {
        Err(error) => skipped(format_args!("mounting a tmpfs: {error}")),
        Ok(()) => {
            let _mounted = Mounted(directory.path());
            test(directory.path());
        }
    }
}

#[test]
fn things_that_are_not_runs_are_told_apart() {
    let directory = directory();
    let path = finished(directory.path());
    let error = |text: &str| {
        std::fs::write(path.join("run.json"), text).unwrap();
        Run::open(&path).unwrap_err().to_string()
    };
    assert!(error("{").contains("run.json"));
    assert!(error(r#"{"format": "thalweg-run", "version": 2}"#).contains("version 2"));
    assert!(error(r#"{"format": "thalweg-run", "version": 1}"#).contains("missing field"));
    let listed = list_runs(path.parent().unwrap()).unwrap();
    assert!(listed[0].error.is_some() && listed[0].info.is_none());
    assert!(Run::open(directory.path()).unwrap_err().to_string().contains("is not a run"));
    assert!(
        Run::open("/nowhere").is_err()
            && list_runs(Path::new("/nowhere")).is_err()
            && Follow::open("/nowhere").is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Reading and following any segment ends, with events or with an error, whatever the segment contains.
    #[test]
    fn hostile_segments_are_read_without_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        fields in proptest::collection::vec((0usize..14, any::<u32>()), 0..3),
        which: prop::sample::Index,
        cut: prop::sample::Index,
        open: bool,
    ) {
        let directory = memory_directory();
        let path = directory.path();
        let segment = path.join(FIRST);
        let mut bytes = template(path, open);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        // Headers with false contents and matching checksums, as from a writer that knew the format.
        let starts: Vec<usize> =
            (0..bytes.len()).step_by(4096).filter(|at| BlockHeader::decode(&bytes[*at..]).is_ok()).collect();
        if !starts.is_empty() {
            let at = starts[which.index(starts.len())];
            for (field, value) in fields {
                bytes[at + 4 * field..at + 4 * field + 4].copy_from_slice(&value.to_le_bytes());
            }
            forge(&mut bytes[at..]);
        }
        if !open && Trailer::decode(&bytes).is_err() {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&segment, &bytes).unwrap();
        let run = Run::open(path).unwrap();
        let report = verify_run(&run);
        prop_assert_eq!(report.consistent, report.problems.is_empty());
        let _ = run.find_event(EventId(50));
        // A forged count may name four thousand million events.
        prop_assert!(run.events().take(1000).count() <= 1000);
        let mut follow = run.follow_events().unwrap();
        for _ in 0..1000 {
            if let Ok(thalweg_store::Followed::End(_)) = follow.next_event(Duration::ZERO) {
                break;
            }
        }
    }

    #[test]
    fn hostile_run_json_is_read_without_panic(text in "\\PC{0,200}", at: prop::sample::Index, value: u8) {
        let directory = memory_directory();
        let path = directory.path();
        std::fs::write(path.join(FIRST), template(path, true)).unwrap();
        let file = path.join("run.json");
        let mut bytes = std::fs::read(&file).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = value;
        for hostile in [bytes, text.into_bytes()] {
            std::fs::write(&file, hostile).unwrap();
            let _ = RunInfo::read_run_json(path).map(|_| Run::open(path).map(|run| verify_run(&run)));
        }
    }
}

/// Returns the bytes of a segment, and puts its `run.json` into `path`. The run is written once: writing it takes
/// longer than reading.
fn template(path: &Path, open: bool) -> Vec<u8> {
    static TEMPLATES: OnceLock<[(Vec<u8>, Vec<u8>); 2]> = OnceLock::new();
    let templates = TEMPLATES.get_or_init(|| {
        [finished, died].map(|make| {
            let directory = directory();
            let path = make(directory.path());
            let mut bytes = std::fs::read(path.join(FIRST)).unwrap();
            // Without the allocated space, most of it zeros.
            let end = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
            bytes.truncate(end.next_multiple_of(4096));
            (std::fs::read(path.join("run.json")).unwrap(), bytes)
        })
    });
    let (json, bytes) = &templates[usize::from(open)];
    std::fs::write(path.join("run.json"), json).unwrap();
    bytes.clone()
}

#[test]
fn a_count_of_events_that_have_no_records_is_not_gone_through() {
    let directory = memory_directory();
    let path = directory.path();
    forge_a_count(path);
    let run = Run::open(path).unwrap();
    let report = verify_run(&run);
    assert_eq!(report.events, run.len());
    assert_eq!(report.problem_count, run.len() - 100, "each event without a record");
}

#[test]
fn nor_is_it_in_a_run_without_sources() {
    let directory = memory_directory();
    let path = directory.path();
    forge_a_count(path);
    let file = path.join("run.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    json["sources"] = serde_json::json!([]);
    std::fs::write(&file, json.to_string()).unwrap();
    let run = Run::open(path).unwrap();
    let report = verify_run(&run);
    assert_eq!((report.events, report.problem_count), (run.len(), 100), "{report}");
}

/// Writes a run of 100 events to `path` whose last closing names as many more as its count can.
fn forge_a_count(path: &Path) {
    let mut bytes = template(path, true);
    let at = (0..bytes.len()).step_by(4096).rfind(|at| BlockHeader::decode(&bytes[*at..]).is_ok()).unwrap();
    let header = BlockHeader::decode(&bytes[at..]).unwrap();
    let count = at + header.index_offset as usize + 16 * header.fragments as usize + 16;
    bytes[count..count + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    forge(&mut bytes[at..]);
    std::fs::write(path.join(FIRST), &bytes).unwrap();
}

/// Sets the checksums of the block at the front of `bytes` to match its content.
fn forge(bytes: &mut [u8]) {
    let length = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]) as usize;
    if let Some(body) = bytes.get(64..length) {
        let crc = thalweg_wire::crc32c(body);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = thalweg_wire::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
}
