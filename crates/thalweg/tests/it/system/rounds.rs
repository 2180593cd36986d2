//! Rounds against hostile sources that belong to the topology: whatever they do, and in whatever order, the other
//! sources are recorded to the last event, and the run ends when it should.
//!
//! What happens in a round is decided by its seed. `THALWEG_ROUNDS=100` plays more of them, `THALWEG_SEED=17` begins at
//! another; a round that fails says its seed and what was done in it.

use crate::common::hostile::{Lot, Mischief, Villain};
use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const GOOD: [&str; 3] = ["1.0", "1.1", "1.2"];
const HOSTILE: [&str; 2] = ["1.3", "1.4"];
/// What the good sources send in a run that a number of events ends.
const EVENTS: u64 = 1000;
/// A builder of 16 blocks of 1 MiB needs a fraction of it.
const MOST_MEMORY: u64 = 256 << 20;
/// Ten times what the good sources send; space is set aside for a segment at a time.
const MOST_DISK: u64 = 64 << 20;

/// How a run is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Events,
    Duration,
    Interrupt,
}

#[test]
fn hostile_sources_change_neither_the_data_of_the_others_nor_the_event_at_which_a_run_ends() {
    play(End::Events);
}

#[test]
fn hostile_sources_change_neither_the_data_of_the_others_nor_the_time_at_which_a_run_ends() {
    play(End::Duration);
}

#[test]
fn hostile_sources_change_neither_the_data_of_the_others_nor_that_an_interrupt_ends_a_run() {
    play(End::Interrupt);
}

fn play(end: End) {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect(name));
    let (rounds, first): (u64, u64) = (number("THALWEG_ROUNDS", 12), number("THALWEG_SEED", 1));
    let failed = Mutex::new(Vec::new());
    // A third of the rounds for each end.
    let seeds: Vec<u64> = (first..first + rounds.div_ceil(3)).collect();
    // Some at a time: most of a round is waiting for those who are silent.
    for some in seeds.chunks(4) {
        at_once(some, |seed| {
            let mut lot = Lot(seed << 8 | end as u64);
            let mischief = HOSTILE.map(|_| Mischief::draw(&mut lot));
            if catch_unwind(AssertUnwindSafe(|| round(end, &mischief))).is_err() {
                failed.lock().unwrap().push(format!("THALWEG_SEED={seed}, {end:?}: {mischief:#?}"));
            }
        });
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {rounds} rounds failed:\n{}", failed.len(), failed.join("\n"));
}

fn round(end: End, mischief: &[Mischief; 2]) {
    let events = format!("events = {EVENTS}\n");
    let run = match end {
        End::Events => events.as_str(),
        End::Duration => "duration = \"1s\"\n",
        End::Interrupt => "",
    };
    // Long enough for a good source that has to wait for a processor.
    let run = format!("{run}timeout = \"5s\"");
    let builder = "block = \"1MiB\"\nsegment = \"8MiB\"\nflush = \"20ms\"\ndeadline = \"4s\"";
    let source = "rate = 1000.0";
    let system = System::new(&Plan { sources: 5, size: "1KiB", run: &run, builder, source, ..PLAN });
    let mut builder = system.builder();
    let (pid, directory) = (builder.pid(), system.run_directory());
    let over = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        for (source, mischief) in HOSTILE.into_iter().zip(mischief) {
            let villain = Villain::connect(system.tcp(), source);
            scope.spawn(|| villain.play(mischief, &over));
        }
        let used = scope.spawn(|| watch(pid, &directory));
        let sources = system.sources([0, 1, 2]);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            builder.wait_for("recording");
            if end == End::Interrupt {
                await_events(&system.run_directory(), 100);
                builder.interrupt();
            }
            builder.finish()
        }));
        over.store(true, Ordering::Relaxed);
        let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let used = used.join().unwrap();
        assert!(used.memory <= MOST_MEMORY, "{used:?}: {ended:?}");
        assert!(used.disk <= MOST_DISK, "{used:?}: {ended:?}");
        all_succeed(sources);
        ended
    });

    let report = ended.report(1);
    assert_eq!(report["state"], "INCOMPLETE", "{report:#}");
    for source in GOOD {
        check_recorded(&report, source);
        let (all, of_this) = (&entry(&report, GOOD[0])["recorded"], &entry(&report, source)["recorded"]);
        assert_eq!(all, of_this, "the good sources stopped at the same event: {report:#}");
        if end == End::Events {
            assert_eq!(*of_this, EVENTS, "{report:#}");
        }
    }
    for source in HOSTILE {
        assert!(reasons(&report).contains(&format!("source {source} ")), "{report:#}");
    }
    check_intact(&system.run_directory());
    let recorded = number(entry(&report, GOOD[0]), "/recorded");
    let fragments = check_samples_of(&system.run_directory(), &GOOD.map(|id| id.parse().unwrap())).fragments;
    assert_eq!(fragments, 3 * recorded, "what the books say is on disk");
}

/// What a builder used.
#[derive(Debug, Default)]
struct Used {
    /// The most memory at a time, in bytes (`VmHWM`, proc_pid_status(5)).
    memory: u64,
    disk: u64,
}

/// Looks at a builder until it ends, and ends it before it harms the machine that the test runs on.
fn watch(pid: Pid, directory: &Path) -> Used {
    let mut used = Used::default();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
        let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) else { return used };
        used.memory = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        used.disk = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        if used.memory > MOST_MEMORY || used.disk > MOST_DISK {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
