//! The machine laboratory as a user meets it. Each boot takes ten seconds or more: a story is told in one.

mod boards;
mod cards;
mod nodes;
mod video;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thalweg_machine::Prepared;
use thalweg_skip::skipped;

/// With more time than a test takes on a busy machine, if nothing else is said.
fn thalweg(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(["lab", "machine"]).stdin(Stdio::null());
    if !words.contains(&"--timeout") {
        command.args(["--timeout", "20min"]);
    }
    command.args(words);
    command
}

/// A shell's script in a machine, with what it leaves in /out.
fn run(options: &[&str], script: &str) -> (Output, TempDir) {
    let out = directory();
    let words = [options, &["--out", out.path().to_str().unwrap(), "--", "sh", "-c", script]].concat();
    (thalweg(&words).output().unwrap(), out)
}

/// Not in /tmp, which may be anything: below the target directory, the guest sees it.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Whether there is something to boot from. To set it up takes minutes, which is not for a test to begin.
fn is_set_up() -> bool {
    let found = Prepared::cached().is_some();
    if !found {
        skipped("no machine in the cache; `thalweg lab machine` sets it up");
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// Runs a device's topology in the machine: `prepare` makes the device be there, and `meanwhile` is done when the run has
/// begun. What the run reported, and its log.
fn record(out: &Path, run: &str, device: &str, prepare: &str, meanwhile: &str) -> (Value, String) {
    let topology = format!(
        "[run]\n{run}\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"shm:/tmp/builder0\"]\n\
         block = \"4MiB\"\ndeadline = \"20s\"\nflush = \"100ms\"\n\n[[source]]\nname = \"source0\"\nid = \"1.0\"\n\
         link = \"shm\"\ndevice = {{ {device} }}\n"
    );
    fs::write(out.join("run.toml"), topology).unwrap();
    let program = env!("CARGO_BIN_EXE_thalweg");
    let script = format!(
        "set -e\ncd /out\n{prepare}\n{program} devices --json >devices.json\n\
         {program} --json -v run run.toml >report.json 2>log & run=$!\n\
         until grep -q 'recording' log; do kill -0 $run || {{ cat log; exit 1; }}; sleep 0.1; done\n\
         {meanwhile}\nwait $run || true"
    );
    let output = thalweg(&["--out", out.to_str().unwrap(), "--", "sh", "-c", &script]).output().unwrap();
    let log = fs::read_to_string(out.join("log")).unwrap_or_default();
    if !output.status.success() {
        eprintln!("{log}");
    }
    assert_success(&output);
    let report = fs::read_to_string(out.join("report.json")).unwrap();
    (serde_json::from_str(report.lines().last().unwrap_or(&log)).unwrap(), log)
}

/// The driver of edu.c.
fn edu(directory: &Path) -> PathBuf {
    let program = directory.join("edu");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/machine/edu.c");
    let built = Command::new("cc").args(["-O1", "-Wall", "-Werror", source, "-o"]).arg(&program).output().unwrap();
    assert_success(&built);
    program
}

/// DPDK's two ports send each other what they get, after the first packets, until both have got more than a hundred.
const FORWARD: &str = r"
    dpdk-testpmd -l 0,1 --in-memory -m 128 -a 0000:00:11.0 -a 0000:00:12.0 -- --total-num-mbufs=4096 \
        --forward-mode=io --tx-first --stats-period=1 </dev/null >/out/testpmd 2>&1 &
    until [ $(tail -n 20 /out/testpmd | grep -c 'RX-packets: [1-9][0-9][0-9]') = 2 ]; do
        kill -0 $!
        sleep 1
    done
    kill -INT $!
    wait $!";

/// What each port has received.
fn received(out: &Path) -> Vec<u64> {
    let said = fs::read_to_string(out.join("testpmd")).unwrap();
    let ports = said.split("Forward statistics for port").skip(1);
    let number = |port: &str| port.split("RX-packets:").nth(1)?.split_whitespace().next()?.parse().ok();
    let received: Vec<u64> = ports.filter_map(number).collect();
    assert_eq!(received.len(), 2, "{said}");
    received
}

#[test]
fn a_machine_that_cannot_be_is_refused() {
    for (words, reason) in [
        (&["--nic", "rtl8139"][..], "'rtl8139' is not a NIC"),
        (&["--nic", "virtio@x"], "'x' is not the number of a wire"),
        (&["--memory", "much"], "'much' is not a size"),
    ] {
        let output = thalweg(&[words, &["--", "true"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
    if !is_set_up() {
        return;
    }
    for (words, reason) in [
        (&["--processors", "0"][..], "at least one processor"),
        (&["--memory", "1MiB"], "at least 256 MiB"),
        (&["--nic", "virtio"].repeat(8), "8 NICs: a machine has room for 7"),
    ] {
        let output = thalweg(&[words, &["--", "true"]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

#[test]
fn exit_code_output_and_files_come_back_and_nothing_else() {
    if !is_set_up() {
        return;
    }
    let here = directory();
    let script = "echo to output; echo to errors >&2; echo again >/dev/stdout
        cat; id -u; pwd; cat note; echo written >note && cat note
        grep -c . /proc/cpuinfo >/dev/null && nproc; huge 3 && cat /proc/sys/vm/nr_hugepages
        echo kept >/out/file; sleep 1000 & exit 7";
    let out = here.path().join("made/for/it");
    fs::write(here.path().join("note"), "of the host\n").unwrap();
    let words = ["--processors", "3", "--out", out.to_str().unwrap(), "--", "sh", "-c", script];
    let output = thalweg(&words).current_dir(here.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let expected = format!("to output\nagain\n0\n{}\nof the host\nwritten\n3\n3\n", here.path().display());
    assert_eq!((text(&output.stdout), text(&output.stderr)), (expected, "to errors\n".into()));
    assert_eq!(fs::read_to_string(here.path().join("note")).unwrap(), "of the host\n");
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "kept\n");
    assert!(fs::read_to_string(out.join("dmesg.txt")).unwrap().contains("Linux version"));
}

#[test]
fn devices_behind_an_iommu_reach_what_is_mapped_and_nothing_else() {
    if !is_set_up() {
        return;
    }
    let built = directory();
    let edu = edu(built.path());
    let options = ["--edu", "--nic", "virtio", "--nic", "virtio", "--nvme", "16MiB", "--huge-pages", "256"];
    let script = format!(
        "set -e
        bindto nvme 0000:00:18.0; lspci -s 0000:00:18.0 -k | grep 'in use: nvme'
        bindto vfio-pci 0000:00:10.0 0000:00:11.0 0000:00:12.0
        {} iommu 0000:00:10.0
        {FORWARD}",
        edu.display()
    );
    let (output, out) = run(&options, &script);
    assert_success(&output);
    assert!(text(&output.stdout).contains("holds: DMA does not reach memory by an address that is not mapped"));
    let log = fs::read_to_string(out.path().join("dmesg.txt")).unwrap();
    assert!(log.contains("DMAR: [DMA Write NO_PASID] Request device [00:10.0] fault addr 0x300000000"), "{log}");
    assert!(received(out.path()).iter().all(|&packets| packets > 100), "{:?}", received(out.path()));
}

#[test]
fn without_an_iommu_devices_reach_all_memory_by_vfio() {
    if !is_set_up() {
        return;
    }
    let built = directory();
    let edu = edu(built.path());
    let options = ["--no-iommu", "--edu", "--nic", "virtio", "--nic", "virtio", "--huge-pages", "256"];
    let script = format!(
        "set -e
        bindto vfio-pci 0000:00:10.0 0000:00:11.0 0000:00:12.0
        {} noiommu 0000:00:10.0
        {FORWARD}",
        edu.display()
    );
    let (output, out) = run(&options, &script);
    assert_success(&output);
    assert!(text(&output.stdout).contains("holds: DMA lands in a huge page, by its physical address"));
    assert!(received(out.path()).iter().all(|&packets| packets > 100), "{:?}", received(out.path()));
}

#[test]
fn a_command_that_hangs_is_ended_and_a_killed_caller_takes_its_machine_along() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let hang = "echo here; exec sleep 1000";
    let words = ["--out", out.path().to_str().unwrap(), "--timeout", "20min", "--", "sh", "-c", hang];
    let mut caller = thalweg(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(caller.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), machines(out.path())), ("here\n", 1));
    caller.kill().unwrap();
    caller.wait().unwrap();
    assert_no_machine(out.path());
    let left = left_behind();
    assert!(!left.is_empty());

    let (output, out) = run(&["--timeout", "3s"], hang);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(text(&output.stderr).contains("did not end within 3s and was killed"), "{output:?}");
    assert_no_machine(out.path());

    let out = directory();
    let mut caller = thalweg(&["--out", out.path().to_str().unwrap(), "--", "sh", "-c", hang]).spawn().unwrap();
    until("a machine", || machines(out.path()) == 1);
    interrupt(&caller);
    assert_eq!(caller.wait().unwrap().code(), Some(130));
    assert_no_machine(out.path());
    assert!(!left.iter().any(|path| path.exists()), "a later run removes what a killed one left");
}

/// Directories of runs that nobody claims.
fn left_behind() -> Vec<PathBuf> {
    let shelf = Prepared::cached().unwrap().directory().parent().unwrap().to_owned();
    let all = fs::read_dir(shelf).unwrap().map(|entry| entry.unwrap().path());
    let runs = all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-")));
    runs.filter(|path| fs::File::open(path).is_ok_and(|directory| directory.try_lock().is_ok())).collect()
}

fn interrupt(process: &Child) {
    rustix::process::kill_process(rustix::process::Pid::from_child(process), rustix::process::Signal::INT).unwrap();
}

#[track_caller]
fn assert_no_machine(out: &Path) {
    until("the machine's end", || machines(out) == 0);
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// How many QEMUs have this directory as theirs.
fn machines(out: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let lines = processes.filter_map(|path| fs::read(path).ok()).map(|line| text(&line));
    lines.filter(|line| line.starts_with("qemu") && line.contains(&*out.to_string_lossy())).count()
}
