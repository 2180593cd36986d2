//! Comparison of each control with the kernel's own module: built for user space and given the calls of a laboratory's
//! run, it leaves the same window, the same fraction of it and the same threshold after every single call, to the
//! packet.
//!
//! The tapes in `tests/tapes` are from Linux 6.1. This command records them again, in the laboratory's kernel (`thalweg
//! lab build`):
//!
//! ```text
//! THALWEG_TAPES=$PWD/crates/thalweg-lab/tests/tapes cargo test -p thalweg --test it cc::tapes
//! ```

use flate2::read::GzDecoder;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use thalweg_lab::congestion::CONTROLS;

#[test]
fn each_control_gives_the_modules_window_after_every_call() {
    let replay = Replay::build();
    for control in &CONTROLS {
        let (agrees, said) = replay.run(&tape(control.name));
        assert!(agrees, "{said}");
        // "NAME: N calls, 0 differ"
        let calls = said.strip_prefix(&format!("{}: ", control.name)).and_then(|rest| rest.split(' ').next());
        assert!(calls.is_some_and(|calls| calls.parse::<u32>().is_ok_and(|calls| calls > 1000)), "{said}");
    }
}

#[test]
fn a_window_that_is_off_by_one_packet_is_found() {
    let tape = tape("bic");
    let lines: Vec<&str> = tape.lines().collect();
    let last = lines.len() - 1;
    let (before, after) = lines[last].split_once(" > ").expect("a call, and what came of it");
    let (window, rest) = after.split_once(' ').expect("a window first");
    let wrong = format!("{before} > {} {rest}", window.parse::<u32>().expect("a number") + 1);
    let tape = format!("{}\n{wrong}\n", lines[..last].join("\n"));

    let (agrees, said) = Replay::build().run(&tape);
    assert!(!agrees);
    assert!(said.contains(&format!("line {}: bic", last + 1)) && said.contains("calls, 1 differ"), "{said}");
}

/// Checks the promises of `thalweg` on its own tape: the module is the same source, so a replay would not find an
/// error.
#[test]
fn thalwegs_window_covers_the_credit_and_after_a_timeout_grows_by_what_is_delivered() {
    let tape = tape("thalweg");
    let (mut covered, mut restarting, mut restarts) = (0, None, 0);
    for line in tape.lines().skip(1) {
        let word: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| word[at].parse::<u32>().expect("the columns of bpf/tape.h");
        let (call, before, delivered, after) = (word[2], number(10), number(17), number(26));
        let credit = 10 + number(15) + number(22).wrapping_sub(number(21)).div_ceil(number(19));
        match call {
            "set_state" if number(3) == 4 => restarting = Some(delivered),
            "cong_control" | "min_tso_segs" => match restarting {
                None => {
                    assert_eq!(after, credit, "{line}");
                    covered += 1;
                }
                Some(since) => {
                    let grown = before + (delivered - since);
                    assert_eq!(after, grown.min(credit), "{line}");
                    restarting = (grown < credit).then_some(delivered);
                    restarts += u32::from(restarting.is_none());
                }
            },
            _ => {}
        }
    }
    assert!(covered > 1000 && restarts > 1, "{covered} covered, {restarts} restarts");
}

#[test]
fn every_kind_of_call_was_heard() {
    let all: String = CONTROLS.iter().map(|control| tape(control.name)).collect();
    for call in [
        "init",
        "ssthresh",
        "cong_avoid",
        "set_state",
        "cwnd_event",
        "in_ack_event",
        "pkts_acked",
        "min_tso_segs",
        "cong_control",
        "undo_cwnd",
    ] {
        assert!(all.lines().any(|line| line.split(' ').nth(2) == Some(call)), "{call}");
    }
}

fn tape(name: &str) -> String {
    let path = root().join(format!("crates/thalweg-lab/tests/tapes/{name}.tape.gz"));
    let mut text = String::new();
    GzDecoder::new(File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
        .read_to_string(&mut text)
        .expect("a tape is text");
    text
}

/// The controls built for user space: `bpf/replay.c`.
struct Replay(TempDir);

impl Replay {
    fn build() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // The sanitizer stops at an undefined operation and at a value that overflows.
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover", "-o"])
            .arg(directory.path().join("replay"))
            .arg(root().join("bpf/replay.c"))
            .status()
            .expect("cc, which cargo links with, is there");
        assert!(status.success());
        Self(directory)
    }

    /// Returns true if nothing differs, and the output.
    fn run(&self, tape: &str) -> (bool, String) {
        let file = self.0.path().join("tape");
        fs::File::create(&file).and_then(|mut file| file.write_all(tape.as_bytes())).expect("a temporary file");
        let output = Command::new(self.0.path().join("replay"))
            .stdin(File::open(&file).expect("just written"))
            .stderr(Stdio::inherit())
            .output()
            .expect("it was built");
        (output.status.code() == Some(0), String::from_utf8(output.stdout).expect("text"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
