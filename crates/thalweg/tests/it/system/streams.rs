//! What a program writes into a pipe: from there to the run on disk.

use crate::common::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thalweg_store::Run;
use thalweg_wire::PayloadType;

/// A topology with one source, `pipe`, and a builder that listens here.
fn topology(folder: &Path, builder: &str, source: &str) -> (PathBuf, String) {
    let address = format!("shm:{}", folder.join("b.sock").display());
    let text = format!(
        "[run]\ndirectory = \"runs\"\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"{address}\"]\n{builder}\n\n\
         [[source]]\nname = \"pipe\"\nid = \"2.0\"\nlink = \"shm\"\n{source}\n"
    );
    let path = folder.join("pipe.toml");
    std::fs::write(&path, text).unwrap();
    (path, address)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn payloads(run: &Path) -> Vec<Vec<u8>> {
    let run = Run::open(run).unwrap();
    run.events().map(|event| event.unwrap().fragments[0].payload().to_vec()).collect()
}

#[test]
fn what_a_program_writes_into_a_pipe_is_on_disk_and_what_is_cut_off_is_in_the_ledger() {
    let folder = folder();
    let (topology, address) = topology(folder.path(), PATIENT, "");
    let mut command = thalweg();
    command.args(["--json", "-v", "node", "builder0"]).arg(topology);
    let mut builder = Node::start("builder0", command);
    builder.wait_for("listening on");
    let mut command = thalweg();
    let words = ["--json", "source", &address, "--id", "2.0", "--stdin", "--type", "i16_be", "--shape", "500,2"];
    let mut source = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = source.stdin.take().unwrap();
    for record in 0..3000_u16 {
        let numbers: Vec<u8> = (0..1000).flat_map(|at| (record ^ at).to_be_bytes()).collect();
        pipe.write_all(&numbers).unwrap();
    }
    pipe.write_all(b"not all of one").unwrap();
    drop(pipe);
    let said = source.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&said["device"]["bytes"], &said["device"]["cut_off_bytes"]),
        (&6_000_014.into(), &14.into()),
        "{said:#}"
    );
    let report = builder.finish().report(1);
    check_books(&report);
    let entry = &report["ledger"]["sources"][0];
    assert_eq!((&entry["recorded"], &entry["lost_in_device"]), (&3000.into(), &1.into()), "{report:#}");

    let run = Run::open(folder.path().join("runs/run-000001")).unwrap();
    let mut count = 0;
    for (event, record) in run.events().zip(0_u16..) {
        let fragment = &event.unwrap().fragments[0];
        let numbers: Vec<u8> = (0..1000).flat_map(|at| (record ^ at).to_le_bytes()).collect();
        assert!(fragment.payload() == numbers, "record {record}");
        assert_eq!(fragment.header.payload_type, PayloadType::SAMPLES_I16);
        count += 1;
    }
    assert_eq!(count, 3000);
}

#[test]
fn records_of_any_length_come_out_of_a_named_pipe() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let device = "device = { kind = \"stream\", file = \"fifo\", size = \"10KiB\", length = { bytes = 4 } }";
    let (topology, _) = topology(folder.path(), PATIENT, device);
    let mut command = thalweg();
    command.args(["--json", "-v", "run"]).arg(&topology);
    let mut run = Node::start("run", command);
    run.wait_for("recording");
    let written: Vec<Vec<u8>> =
        (0..2000_u32).map(|number| vec![number as u8; (number * 7919 % 10_241) as usize]).collect();
    let mut pipe = File::options().write(true).open(&fifo).unwrap();
    for record in &written {
        pipe.write_all(&(record.len() as u32).to_be_bytes()).unwrap();
        pipe.write_all(record).unwrap();
    }
    drop(pipe);
    let report = run.finish().report(0);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
    assert!(payloads(&folder.path().join("runs/run-000001")) == written);
    check_intact(&folder.path().join("runs/run-000001"));
}

#[test]
fn a_pipe_that_is_not_what_was_said_ends_its_source_with_the_place() {
    let folder = folder();
    let (topology, address) = topology(folder.path(), QUICK, "");
    let mut command = thalweg();
    command.args(["--json", "node", "builder0"]).arg(topology);
    let mut builder = Node::start("builder0", command);
    builder.wait_for("listening on");
    let mut shell = Command::new("sh");
    let script = format!(
        "printf '\\000\\003abc\\377\\377' | {} source {address} --id 2.0 --stdin --length 2 --size 1KiB",
        env!("CARGO_BIN_EXE_thalweg")
    );
    let output = shell.args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("standard input at byte 5: a record of 65535 bytes is announced, but size is 1024"),
        "{said}"
    );
    let ended = builder.finish();
    let report = ended.report(1);
    assert!(reasons(&report).contains("died"), "{report:#}");

    let mut command = thalweg();
    let refused = command.args(["source", &address, "--id", "2.0", "--record", "100"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "neither --stdin nor --file: {refused:?}");
}
