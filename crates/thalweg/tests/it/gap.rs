//! A recording that lacks a frame: the gap is told from an empty fragment and from a loss.

use crate::common::demo_topology;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const THREADS: u32 = 2;
const FRAMES: u32 = 5;
const PASSES: u32 = 10;

/// A VDIF frame with 64 bytes of samples (VDIF specification 1.1.1, section 5).
fn frame(thread: u32, number: u32) -> Vec<u8> {
    let length = 32 + 64;
    let words = [100, number | 40 << 24, length / 8, thread << 16 | 1 << 26, 0, 0, 0, 0];
    let mut frame: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    frame.resize(length as usize, u8::try_from(16 * thread + number).unwrap());
    frame
}

fn thalweg(arguments: &[&str], directory: &Path) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_thalweg")).args(arguments).current_dir(directory).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default();
    (output.status.code(), json)
}

#[test]
fn a_gap_in_a_recording_makes_the_event_incomplete_and_nothing_is_unaccounted_for() {
    let directory = tempfile::tempdir().unwrap();
    let frames = (0..FRAMES).flat_map(|number| (0..THREADS).map(move |thread| (thread, number)));
    let recorded: Vec<u8> =
        frames.filter(|which| *which != (1, 3)).flat_map(|(thread, number)| frame(thread, number)).collect();
    let input = directory.path().join("gap.vdif");
    std::fs::write(&input, recorded).unwrap();

    let words = ["--input", input.to_str().unwrap()];
    let topology = demo_topology(&directory.path().join("runs"), &words, (FRAMES * PASSES).into());
    std::fs::write(directory.path().join("gap.toml"), topology.to_string()).unwrap();
    let (code, run) = thalweg(&["run", "gap.toml", "--json"], directory.path());
    assert_eq!((code, run["state"].as_str()), (Some(1), Some("INCOMPLETE")), "{run}");
    let (built, incomplete) = (run["events"]["built"].as_u64().unwrap(), run["events"]["incomplete"].as_u64().unwrap());
    // One event of each pass.
    assert_eq!((built, incomplete), ((FRAMES * PASSES).into(), PASSES.into()));
    assert_eq!(run["ledger"]["unaccounted"], 0);
    let sources = &run["ledger"]["sources"];
    assert_eq!((&sources[0]["recorded"], &sources[0]["skipped"]), (&Value::from(built), &Value::from(0)));
    assert_eq!(sources[1]["recorded"], built - incomplete);

    // What is on disk is what happened.
    let (_, found) = thalweg(&["verify", "runs/run-000001", "--json"], directory.path());
    assert_eq!(found["directories"][0]["problems"], Value::Array(Vec::new()), "{found}");
}
