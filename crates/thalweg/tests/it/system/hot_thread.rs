//! The thread that moves the data waits in one place, for whatever comes first: while a run is under way it makes no
//! other call that waits for a disk, a peer or another thread.

use crate::common::*;
use std::process::Command;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// Bytes of the trace that is looked at: some thousand calls. Several segments are begun and closed meanwhile, and
/// flushed.
const TRACE: u64 = 100 << 10;

/// Whether a call, as strace prints it, may wait for a disk, a peer or another thread. A descriptor's number is followed by
/// its file, as in `read(5<anon_inode:[eventfd]>`.
fn waits(call: &str) -> bool {
    let (name, arguments) = call.split_once('(').unwrap_or((call, ""));
    let of = |kinds: &[&str]| kinds.iter().any(|kind| arguments.split(',').next().unwrap_or_default().contains(kind));
    let is_allowed = match name {
        // The place.
        "epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "restart_syscall" => true,
        // Its third argument is how many completions it waits for.
        "io_uring_enter" => arguments.split(", ").nth(2) == Some("0"),
        // Sockets wait for nobody: they are set so, or the call is. (A new one asks now and then for the MTU of a path.)
        "socket" => arguments.contains("SOCK_DGRAM") || arguments.contains("SOCK_NONBLOCK"),
        "connect" => true,
        "recvfrom" | "recvmsg" | "recvmmsg" | "sendto" | "sendmsg" | "sendmmsg" | "setsockopt" | "getsockopt" => true,
        "readv" | "writev" | "sendfile" => of(&["socket:[", "TCP", "UNIX"]),
        "read" | "write" => of(&["anon_inode:[eventfd]", "anon_inode:[timerfd]", "socket:[", "TCP", "UNIX"]),
        // Memory; and the last of a file that the disk has already.
        "memfd_create" | "mmap" | "munmap" | "madvise" | "mremap" | "brk" | "mprotect" | "close" | "fcntl" => true,
        "ftruncate" => of(&["/memfd:"]),
        "futex" => arguments.contains("FUTEX_WAKE"),
        "epoll_ctl" | "getrandom" | "sched_yield" | "clock_gettime" | "gettid" | "getpid" => true,
        _ => name.starts_with("---") || name.starts_with("+++"),
    };
    !is_allowed
}

/// The calls of a node's thread, from now on.
fn calls(node: &Node, system: &System) -> Vec<String> {
    let file = system.path(&format!("{}.calls", node.pid().as_raw_nonzero()));
    let mut command = Command::new("strace");
    command.args(["-y", "-s", "0", "-o"]).arg(&file).args(["-p", &node.pid().as_raw_nonzero().to_string()]);
    let mut strace = Node::start("strace", command);
    strace.wait_for("attached");
    wait_until("its calls", || std::fs::metadata(&file).unwrap().len() >= TRACE);
    strace.interrupt();
    strace.finish();
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_hot_thread_waits_in_one_place() {
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("strace: not installed");
    }
    at_once(LINKS, |link| {
        let plan = Plan { link, source: "rate = 500.0", builder: &format!("{PATIENT}\nsegment = \"1MiB\""), ..PLAN };
        let system = System::new(&plan);
        let builder = system.builder();
        let sources = system.sources([0, 1, 2]);
        await_events(&system.run_directory(), 100);
        for node in [&builder, &sources[0]] {
            let calls = calls(node, &system);
            let waiting: Vec<&String> = calls.iter().filter(|call| waits(call)).collect();
            assert!(waiting.is_empty(), "{link:?}: {waiting:#?}");
        }
        builder.interrupt();
        let report = builder.finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_intact(&system.run_directory());
        let segments = std::fs::read_dir(system.run_directory()).unwrap().count();
        assert!(segments > 10, "{segments}");
    });
}
