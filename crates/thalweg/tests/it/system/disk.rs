//! Disks that are full, and disks that are slow.

use crate::common::disk::Disk;
use crate::common::*;
use serde_json::Value;
use std::process::Command;
use thalweg_testing::skip::skipped;

/// Writes until the disk is full.
fn fill(system: &System) {
    let builder = system.builder();
    let sources = system.sources([0, 1, 2]);
    let report = builder.finish().report(1);
    all_succeed(sources);
    assert_eq!(report["state"], "INCOMPLETE");
    assert!(reasons(&report).contains("No space left on device"), "{report:#}");
    check_books(&report);
    let of_each = |bucket: &str| ["1.0", "1.1", "1.2"].map(|source| entry(&report, source)[bucket].as_u64().unwrap());
    assert!(of_each("recorded").into_iter().sum::<u64>() > 0, "{report:#}");
    assert!(of_each("lost").into_iter().sum::<u64>() > 0, "what did not fit is lost, and said to be: {report:#}");
    for source in ["1.0", "1.1", "1.2"] {
        assert_eq!(entry(&report, source)["final_counters"], true, "{report:#}");
    }
    let verified = check_intact(&system.run_directory());
    assert!(matches!(&verified.verdict, thalweg_store::Verdict::Incomplete { reasons }
        if reasons.concat().contains("No space left on device")));
    // On disk is what the final counters say, whether its event could still be closed there or not.
    let on_disk: Vec<u64> = verified.sources.iter().map(|source| source.recorded).collect();
    assert_eq!(on_disk, of_each("recorded"));
    assert!(check_samples(&system.run_directory()).fragments <= on_disk.iter().sum());
}

#[test]
fn a_disk_that_is_full_ends_the_run_and_every_fragment_is_accounted_for() {
    for link in LINKS {
        let system = System::new(&Plan { link, ..PLAN });
        // Several windows: an event is closed in a block behind those that are being filled.
        match Disk::in_memory(&system.path("runs"), 32) {
            Ok(_disk) => fill(&system),
            Err(reason) => skipped(format_args!("a full disk in memory: {reason}")),
        }
        let system = System::new(&Plan { link, ..PLAN });
        match Disk::in_file(&system.path("disk"), &system.path("runs"), 64) {
            Ok(_disk) => fill(&system),
            Err(reason) => skipped(format_args!("a full disk: {reason}")),
        }
    }
}

#[test]
fn a_limit_on_the_size_of_files_ends_the_run_and_not_the_process() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let topology = folder.path().join("limit.toml");
    let text = format!(
        "[run]\ndirectory = \"runs\"\nevents = 2000\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"shm:{}\"]\nblocks = 4\n\
         block = \"1MiB\"\n\n[[source]]\nname = \"adc\"\nid = \"1.0\"\nlink = \"shm\"\ndevice = {{ kind = \"model-adc\", size = \"64KiB\" }}\n",
        folder.path().join("b.sock").display()
    );
    std::fs::write(&topology, text).unwrap();
    // 16 MiB, or half of that: shells count in kibibytes or in sectors. Memory that is shared counts, too.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 16384; exec \"$0\" --json run \"$1\""]).arg(thalweg().get_program()).arg(&topology);
    command.current_dir(folder.path());
    let report = Node::start("run", command).finish().report(1);
    assert_eq!(report["state"], "INCOMPLETE");
    assert!(reasons(&report).contains("File too large"), "{report:#}");
    check_books(&report);
    check_intact(&folder.path().join("runs/run-000001"));
}

/// How far a node that is supervised is.
fn progress(line: &str) -> Option<Value> {
    let word: Value = serde_json::from_str(line).ok()?;
    word.get("progress").cloned()
}

fn count(progress: &Value, what: &str) -> u64 {
    progress[what].as_u64().unwrap()
}

/// A run on a disk that stands still for a while in its midst. Returns the builder's report and the sources'.
fn slow_disk(link: Link, source: &str) -> Option<(Value, Vec<Value>)> {
    let builder = format!("{PATIENT}\nblocks = 4");
    let system = System::new(&Plan { link, sources: 2, builder: &builder, source, ..PLAN });
    let mut disk = match Disk::in_file(&system.path("disk"), &system.path("runs"), 1024) {
        Ok(disk) => disk,
        Err(reason) => {
            skipped(format_args!("a slow disk: {reason}"));
            return None;
        }
    };
    let mut builder = system.supervised("builder0");
    builder.wait_for("listening");
    let mut sources = [system.supervised("source0"), system.supervised("source1")];
    builder.wait_next("events", |line| progress(line).filter(|now| count(now, "events") > 100));

    disk.freeze();
    let stalls = |line: &str| progress(line).filter(|now| count(now, "stalls") > 0);
    let mut held = builder.wait_next("a stall", stalls);
    // Nothing moves: until then blocks may come back that were written before.
    builder.wait_next("a stand-still", |line| {
        let now = progress(line)?;
        let still = now["fragments"] == held["fragments"] && count(&now, "stalls") > 0;
        held = now;
        still.then_some(())
    });
    if source.contains("drop") {
        // Far more than all slots hold.
        for source in &mut sources {
            let before = source.wait_next("progress", progress);
            let enough = count(&before, "fragments") + 1500;
            source.wait_next("drops", |line| progress(line).filter(|now| count(now, "fragments") > enough));
        }
    }
    disk.thaw();

    let enough = count(&held, "fragments") + 2000;
    builder.wait_next("recovery", |line| progress(line).filter(|now| count(now, "fragments") > enough));
    builder.tell("stop");
    let said = |ended: node::Ended, what: &str| -> Value {
        ended.succeeded();
        serde_json::from_str::<Value>(ended.stdout.lines().last().unwrap()).unwrap()[what].clone()
    };
    let report = said(builder.finish(), "builder");
    let sources = sources.into_iter().map(|source| said(source.finish(), "source")).collect();
    check_books(&report);
    assert!(number(&report, "/stalls") > 0);
    check_intact(&system.run_directory());
    check_samples(&system.run_directory());
    Some((report, sources))
}

#[test]
fn a_slow_disk_holds_sources_back_and_nothing_is_lost() {
    for link in LINKS {
        let Some((report, _)) = slow_disk(link, "rate = 2000.0") else { return };
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_recorded(&report, "1.0");
        check_recorded(&report, "1.1");
        assert_eq!(entry(&report, "1.0")["recorded"], entry(&report, "1.1")["recorded"], "{report:#}");
    }
}

#[test]
fn what_is_dropped_for_a_slow_disk_is_counted_to_the_fragment() {
    for link in LINKS {
        for (policy, bucket) in [("drop-newest", "dropped_newest"), ("drop-oldest", "dropped_oldest")] {
            let source = format!("rate = 2000.0\npolicy = \"{policy}\"");
            let Some((report, sources)) = slow_disk(link, &source) else { return };
            assert_eq!(report["state"], "INCOMPLETE", "{report:#}");
            assert!(reasons(&report).contains("dropped at the source"), "{report:#}");
            for (said, id) in sources.iter().zip(["1.0", "1.1"]) {
                let entry = entry(&report, id);
                let (dropped, beyond) = (number(entry, &format!("/{bucket}")), number(entry, "/beyond_end"));
                let accepted = number(entry, "/accepted");
                assert!(dropped > 0, "{entry:#}");
                // What a source drops that is ahead of the others when the run ends is beyond its end.
                let said_dropped = number(said, &format!("/{bucket}"));
                assert!((dropped..=dropped + beyond).contains(&said_dropped), "the source: {said_dropped}; {entry:#}");
                assert_eq!(entry["accepted"], said["accepted"]);
                assert_eq!(entry["recorded"], accepted - dropped - beyond, "nothing else is missing: {entry:#}");
            }
        }
    }
}
