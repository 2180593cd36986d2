//! The builder's door, and everything else from outside that could hold a node up: crowds, bogus peers, pipes that
//! nobody reads, a supervisor that dies.

use crate::common::hostile::{Stranger, hello};
use crate::common::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use thalweg_store::{Run, RunState};
use thalweg_testing::wait::wait_for;
use thalweg_wire::{MESSAGE_LEN, Message, Refusal};

/// A node of which nobody reads what it says, in pipes that hold a page each.
struct Unheard(Child);

impl Unheard {
    fn start(system: &System, arguments: &[&str]) -> Self {
        let mut command = thalweg();
        command.args(arguments).arg(system.path("topology.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        rustix::pipe::fcntl_setpipe_size(child.stdout.as_ref().unwrap(), 4096).unwrap();
        rustix::pipe::fcntl_setpipe_size(child.stderr.as_ref().unwrap(), 4096).unwrap();
        Self(child)
    }

    /// Waits for its end. What the pipes held is its last words.
    fn ends(mut self) -> (Option<i32>, String, String) {
        let code = wait_for("its end, which nobody's reading may hold up", || self.0.try_wait().unwrap()).code();
        let (mut out, mut log) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (code, out, log)
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection to a builder that may not listen yet.
fn knock(system: &System) -> TcpStream {
    wait_for("a builder that listens", || TcpStream::connect(system.tcp()).ok())
}

#[test]
fn a_log_that_nobody_reads_holds_up_neither_the_run_nor_its_end() {
    let system = System::new(&Plan { run: "events = 100\ntimeout = \"60s\"", ..PLAN });
    let builder = Unheard::start(&system, &["--json", "node", "builder0"]);
    for number in 0..733 {
        let mut bogus = knock(&system);
        bogus
            .write_all(
                format!("GET /{number} HTTP/1.1\r\nHost: nobody\r\nAccept: everything there is\r\n\r\n").as_bytes(),
            )
            .unwrap();
    }
    all_succeed(system.sources([0, 1, 2]));
    let (code, report, log) = builder.ends();
    assert_eq!(code, Some(0), "{log}");
    let report = serde_json::from_str(&report).unwrap();
    check_books(&report);
    assert_eq!(check_samples(&system.run_directory()).events, 100);
    assert!(log.contains("does not speak the Thalweg protocol"), "{log}");
}

#[test]
fn a_report_that_nobody_reads_keeps_no_process_alive() {
    // Longer than the pipe. Nobody reads the log either, and all sources are let in.
    let system = System::new(&Plan {
        sources: 250,
        size: "1KiB",
        source: "slots = 2",
        run: "events = 3\ntimeout = \"60s\"",
        ..PLAN
    });
    let run = Unheard::start(&system, &["--json", "run"]);
    let (code, report, log) = run.ends();
    assert_eq!(code, Some(1), "{log}");
    assert_eq!(report.len(), 4096);
    assert!(log.contains("writing to standard output: no program reads it"), "{log}");
    assert_eq!(Run::open(system.run_directory()).unwrap().run_info().state, RunState::Complete);
}

#[test]
fn a_warning_is_not_written_for_each_of_a_thousand_bogus_connections() {
    let system = System::new(&Plan { run: "events = 100\ntimeout = \"60s\"", ..PLAN });
    let builder = system.builder();
    for _ in 0..1000 {
        let mut bogus = knock(&system);
        bogus.write_all(&[0xa5; MESSAGE_LEN]).unwrap();
    }
    all_succeed(system.sources([0, 1, 2]));
    let ended = builder.finish();
    ended.succeeded();
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("disconnected")).collect();
    let more = |line: &&str| line.split_once(" (and ")?.1.split_once(' ')?.0.parse::<usize>().ok();
    let counted: usize = lines.iter().map(|line| 1 + more(line).unwrap_or(0)).sum();
    assert_eq!(counted, 1000, "{ended:?}");
    assert!(lines.len() < 100, "{ended:?}");
}

#[test]
fn many_sources_that_start_at_once_all_take_part() {
    for link in [Link::Shm, Link::Tcp] {
        let run = "events = 20\ntimeout = \"60s\"";
        let system = System::new(&Plan { link, sources: 250, size: "1KiB", source: "slots = 2", run, ..PLAN });
        let report = system.run().finish().report(0);
        assert_eq!(report["state"], "COMPLETE", "{report:#}");
        check_books(&report);
        assert_eq!(check_samples(&system.run_directory()).fragments, 250 * 20);
    }
}

#[test]
fn crowds_of_strangers_keep_no_source_out() {
    let system = System::new(&Plan { run: "events = 100", ..PLAN });
    let builder = system.builder();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut silent = std::collections::VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    silent.extend(TcpStream::connect(system.tcp()));
                    if silent.len() > 100 {
                        silent.pop_front();
                    }
                }
            });
        }
        all_succeed(system.sources([0, 1, 2]));
        over.store(true, Ordering::Relaxed);
    });
    let report = builder.finish().report(0);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
}

#[test]
fn strangers_that_take_every_descriptor_keep_no_source_out() {
    let system = System::new(&Plan { run: "events = 100", ..PLAN });
    // Fewer than the strangers that would be let in otherwise.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 40; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_thalweg")]);
    command.args(["--json", "-v", "node", "builder0"]).arg(system.path("topology.toml"));
    let mut builder = Node::start("builder0", command);
    builder.wait_for("listening on");
    let silent: Vec<TcpStream> = (0..200).map(|_| knock(&system)).collect();
    let sources = system.sources([0, 1, 2]);
    let report = builder.finish().report(0);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
    all_succeed(sources);
    drop(silent);
}

#[test]
fn who_is_turned_away_for_want_of_room_is_told_so() {
    let system = System::new(&PLAN);
    let _builder = system.builder();
    let first = Stranger::connect(system.tcp());
    // One for each source, and 64 more.
    let _others: Vec<Stranger> = (0..67).map(|_| Stranger::connect(system.tcp())).collect();
    let (refusal, words) = first.dismissed();
    assert_eq!(refusal, Refusal::Busy, "{words}");
}

#[test]
fn a_source_that_is_told_to_try_again_does() {
    let system = System::new(&Plan { run: "events = 100", ..PLAN });
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = system.node_via("source0", &[format!("tcp:{}", door.local_addr().unwrap())]);
    let greeted = || {
        let (mut stream, _) = door.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut cell = [0; MESSAGE_LEN];
        stream.read_exact(&mut cell).unwrap();
        let Message::Hello(hello) = Message::decode(&cell).unwrap() else { panic!("no hello") };
        let mut description = vec![0; hello.description as usize];
        stream.read_exact(&mut description).unwrap();
        (stream, hello)
    };
    let (mut stream, first) = greeted();
    assert_eq!(first.source, hello("1.0").source);
    stream.write_all(&Message::Refuse { reason: Refusal::Busy, text: 4 }.encode()).unwrap();
    stream.write_all(b"wait").unwrap();
    let (mut stream, second) = greeted();
    assert_eq!(first, second, "it is the same source");
    stream.write_all(&Message::Refuse { reason: Refusal::Ended, text: 4 }.encode()).unwrap();
    stream.write_all(b"over").unwrap();
    source.finish().failed_saying("over");
}
