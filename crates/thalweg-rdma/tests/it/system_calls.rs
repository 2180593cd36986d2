//! Posting and polling are memory operations: the kernel has no part in them while the RNIC is busy.

use crate::setup::*;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::Command;
use thalweg_rdma::*;
use thalweg_testing::skip::skipped;

/// Place of the RNIC, for this test program as it is started under `strace`.
const PLACE: &str = "THALWEG_RDMA_TEST_BUSY";

/// Writes that are posted and polled.
const WRITES: u64 = 1_000_000;

/// Writes that are posted before the first of them completes.
const OUTSTANDING: u64 = 64;

/// System call that nothing else here makes: before the first write and after the last one.
const MARK: &str = " getppid(";

/// The program that is traced: does nothing unless a test starts it.
#[test]
fn a_million_writes() {
    let Ok(place) = std::env::var(PLACE) else { return };
    let (near, far) = pair(if place == "thread" { Arrangement::Thread } else { Arrangement::Embedded });
    let (data, to) = ([near.buffer.sge(0, 1)], far.at(0));
    let _ = parent_id();
    let (mut posted, mut completed) = (0, 0);
    while completed < WRITES {
        while posted < WRITES && posted - completed < OUTSTANDING {
            near.send(posted, Work::Write { data: Data::Memory(&data), to, immediate: None });
            posted += 1;
        }
        while let Some(completion) = near.completions.poll_one().unwrap() {
            assert!(completion.is_success(), "{completion}");
            completed += 1;
        }
    }
    let _ = parent_id();
}

/// Returns the system calls of a million writes: of the thread that posts and polls.
fn trace_writes(place: &str, directory: &Path) -> Vec<String> {
    let log = directory.join(place);
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&log).arg(std::env::current_exe().unwrap());
    command.args(["system_calls::a_million_writes", "--exact"]).env(PLACE, place);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = std::fs::read_to_string(log).unwrap();
    let marked = |line: &&str| line.contains(MARK);
    assert_eq!(log.lines().filter(marked).count(), 2, "{log}");
    let thread = log.lines().find(marked).unwrap().split(' ').next().unwrap();
    let own = log.lines().filter(|line| line.split(' ').next() == Some(thread));
    // A call during which another thread makes one has two lines.
    let own = own.filter(|line| !line.contains(" resumed>"));
    let between = own.skip_while(|line| !marked(line)).skip(1).take_while(|line| !marked(line));
    between.map(str::to_owned).collect()
}

#[test]
fn a_million_writes_are_posted_and_polled_without_a_system_call() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("strace: not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let embedded = trace_writes("embedded", directory.path());
    println!("embedded: {} system calls in {WRITES} writes", embedded.len());
    assert!(embedded.is_empty(), "{embedded:#?}");

    // With an RNIC in a thread of its own, a program that polls in vain for long gives its processor away and asks whether
    // the RNIC is still there; and it wakes one that sleeps.
    let calls = trace_writes("thread", directory.path());
    println!("thread: {} system calls in {WRITES} writes, while there was no completion", calls.len());
    let allowed = [" sched_yield(", " ppoll(", " write("];
    let of_waiting = |call: &&String| allowed.iter().any(|name| call.contains(name));
    let others: Vec<&String> = calls.iter().filter(|call| !of_waiting(call)).collect();
    assert!(others.is_empty(), "{others:#?}");
}
