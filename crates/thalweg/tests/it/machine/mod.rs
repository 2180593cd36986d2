//! The machine laboratory as a user meets it. A boot takes longer than most of what is done in it: things that need the
//! same machine are done in one, one after the other.

mod boards;
mod cards;
mod nodes;
mod verbs;
mod video;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use thalweg_lab::pc::Prepared;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

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

/// Not in /tmp, which may be anything: below the target directory, the guest sees it.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Whether there is something to boot from. To set it up takes minutes, which is not for a test to begin.
fn is_set_up() -> bool {
    let found = Prepared::find_cached().is_some();
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

/// One of the things that are done in a machine, and what must have come of it.
struct Step {
    name: &'static str,
    /// A shell's. The working directory is the step's own, in /out.
    script: String,
    /// Looks at what the script left in its directory.
    check: Box<dyn Fn(&Path)>,
}

impl Step {
    fn new(name: &'static str, script: String, check: impl Fn(&Path) + 'static) -> Self {
        Self { name, script, check: Box::new(check) }
    }

    /// Runs a topology of one builder and a source: `prepare` makes the device be there, and `meanwhile` is done when
    /// the run has begun. There `more N` waits until N more events are on disk (if they do not come, stuck.log has what
    /// every thread waits for), and `finish` ends the run. `check` is given the run's report and its log, too.
    fn of_device(
        name: &'static str,
        run: &str,
        device: &str,
        [prepare, meanwhile]: [&str; 2],
        check: impl Fn(&Path, &Value, &str) + 'static,
    ) -> Self {
        let program = env!("CARGO_BIN_EXE_thalweg");
        let script = format!(
            "count() {{ wc -l <events; }}\n\
             more() {{ before=$(count); left=1000; until [ $(count) -ge $((before + $1)) ]; do\n\
             kill -0 $run; left=$((left - 1)); [ $left -gt 0 ] || {{ stuck; exit 1; }}; sleep 0.1; done; }}\n\
             stuck() {{ ps -eLo pid,tid,stat,psr,wchan:32,args >stuck.log; cat /proc/[0-9]*/task/*/stack >>stuck.log; }}\n\
             finish() {{ kill -INT $run; wait $run || true; }}\n\
             cat >run.toml <<'END'\n[run]\n{run}\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder0\"\n\
             listen = [\"shm:/tmp/builder0\"]\nblock = \"4MiB\"\ndeadline = \"20s\"\nflush = \"100ms\"\n\n[[source]]\n\
             name = \"source0\"\nid = \"1.0\"\nlink = \"shm\"\ndevice = {{ {device} }}\nEND\n\
             {prepare}\n{program} devices --json >devices.json\n\
             {program} --json -v run run.toml >report.json 2>log & run=$!\n\
             until grep -q recording log; do kill -0 $run; sleep 0.1; done\n\
             : >events; {program} cat runs/run-000001 --follow --json >>events &\n\
             {meanwhile}\nwait $run || true"
        );
        Self::new(name, script, move |out| check(out, &last_line(&out.join("report.json")), &read(&out.join("log"))))
    }
}

/// Does the steps in one machine, all of them, whichever fails.
#[track_caller]
fn in_one_machine(options: &[&str], steps: &[Step]) {
    let out = directory();
    let mut script = String::new();
    for Step { name, script: own, .. } in steps {
        fs::create_dir(out.path().join(name)).unwrap();
        fs::write(out.path().join(name).join("script"), own).unwrap();
        // What one that failed has left would be in the way of the others.
        script += &format!(
            "cd /out/{name}; pkill -KILL thalweg; timeout 10m sh -e ./script >stdout 2>stderr; echo $? >code\n"
        );
    }
    let at = ["--out", out.path().to_str().unwrap(), "--", "sh", "-c", &script];
    assert_success(&thalweg(&[options, &at].concat()).output().unwrap());
    let failed = |step: &&Step| {
        let own = out.path().join(step.name);
        let judge = || {
            assert_eq!(read(&own.join("code")), "0\n", "the script's exit code");
            (step.check)(&own);
        };
        let is_failed = panic::catch_unwind(AssertUnwindSafe(judge)).is_err();
        if is_failed {
            for entry in fs::read_dir(&own).unwrap().map(Result::unwrap) {
                let is_text = ["stdout", "stderr", "code", "log"]
                    .iter()
                    .any(|end| entry.file_name().to_string_lossy().ends_with(end));
                if is_text {
                    eprintln!("-- {}: {}\n{}", step.name, entry.file_name().display(), read(&entry.path()));
                }
            }
        }
        is_failed
    };
    let failed: Vec<_> = steps.iter().filter(failed).map(|step| step.name).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// A file's text; empty if there is none.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The JSON in a file's last line.
fn last_line(path: &Path) -> Value {
    let text = read(path);
    let last = text.lines().last().unwrap_or_else(|| panic!("{} is empty", path.display()));
    serde_json::from_str(last).unwrap()
}

/// The kernel's log, for a step's directory.
fn kernel_log(own: &Path) -> String {
    read(&own.with_file_name("dmesg.txt"))
}

/// The driver of edu.c.
fn edu(directory: &Path) -> PathBuf {
    let program = directory.join("edu");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/machine/edu.c");
    let built = Command::new("cc").args(["-O1", "-Wall", "-Werror", source, "-o"]).arg(&program).output().unwrap();
    assert_success(&built);
    program
}

/// A driver in C shows what a device reaches, and DPDK's two ports send each other what they get, after the first
/// packets, until both have got more than a hundred.
fn edu_and_ports(mode: &str, check: impl Fn(&Path) + 'static) -> Step {
    let built = directory();
    let script = format!(
        "bindto nvme 0000:00:18.0; lspci -s 0000:00:18.0 -k | grep 'in use: nvme'
        bindto vfio-pci 0000:00:10.0 0000:00:11.0 0000:00:12.0
        {} {mode} 0000:00:10.0
        dpdk-testpmd -l 0,1 --in-memory -m 128 -a 0000:00:11.0 -a 0000:00:12.0 -- --total-num-mbufs=4096 \
            --forward-mode=io --tx-first --stats-period=1 </dev/null >testpmd 2>&1 &
        until [ $(tail -n 20 testpmd | grep -c 'RX-packets: [1-9][0-9][0-9]') = 2 ]; do
            kill -0 $!
            sleep 1
        done
        kill -INT $!
        wait $!",
        edu(built.path()).display()
    );
    Step::new("edu", script, move |own| {
        let _until_now = &built;
        check(own);
        let said = read(&own.join("testpmd"));
        let ports = said.split("Forward statistics for port").skip(1);
        let number = |port: &str| port.split("RX-packets:").nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
        let received: Vec<u64> = ports.filter_map(number).collect();
        assert!(received.len() == 2 && received.iter().all(|&packets| packets > 100), "{said}");
    })
}

#[test]
fn a_machine_that_cannot_be_is_refused() {
    for (words, reason) in [
        (&["--nic", "rtl8139"][..], "'rtl8139' is not a NIC"),
        (&["--nic", "virtio@x"], "'x' is not the number of a cable"),
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

/// Devices for programs that drive them by themselves.
const DEVICES: [&str; 10] =
    ["--edu", "--rng", "--nic", "virtio", "--nic", "virtio", "--nvme", "2MiB", "--huge-pages", "256"];

#[test]
fn behind_an_iommu_devices_reach_what_is_mapped_and_nothing_else() {
    if !is_set_up() {
        return;
    }
    let edu = edu_and_ports("iommu", |own| {
        let said = read(&own.join("stdout"));
        assert!(said.contains("holds: DMA does not reach memory by an address that is not mapped"), "{said}");
        let log = kernel_log(own);
        assert!(log.contains("DMAR: [DMA Write NO_PASID] Request device [00:10.0] fault addr 0x300000000"), "{log}");
    });
    let steps = [
        edu,
        nodes::one_buffer("IOVA mode VA", true),
        nodes::a_disk_and_a_nic(),
        nodes::a_disk_alone(),
        nodes::dma_of_a_disk(),
        nodes::a_driver_of_one_page(),
    ];
    in_one_machine(&DEVICES, &steps);
}

#[test]
fn without_an_iommu_devices_reach_all_memory_by_vfio() {
    if !is_set_up() {
        return;
    }
    let edu = edu_and_ports("noiommu", |own| {
        let said = read(&own.join("stdout"));
        assert!(said.contains("holds: DMA lands in a huge page, by its physical address"), "{said}");
    });
    let steps =
        [edu, nodes::one_buffer("IOVA mode PA", false), nodes::a_disk_and_a_nic(), nodes::a_driver_of_one_page()];
    in_one_machine(&[&["--no-iommu"][..], &DEVICES].concat(), &steps);
}

#[test]
fn devices_of_the_kernels_drivers_write_into_slots_and_what_they_lose_is_counted() {
    if !is_set_up() {
        return;
    }
    let steps = [boards::steps(), cards::steps(), video::steps()].into_iter().flatten().collect::<Vec<_>>();
    in_one_machine(&[], &steps);
}

#[test]
fn a_command_that_hangs_is_ended_and_a_killed_caller_takes_its_machine_along() {
    if !is_set_up() {
        return;
    }
    // A cache of its own: other tests' machines would remove from the common one what a killed run leaves.
    let cache = directory();
    let shelf = cache.path().join("thalweg/machine");
    fs::create_dir_all(&shelf).unwrap();
    let prepared = Prepared::find_cached().unwrap();
    symlink(prepared.directory(), shelf.join(prepared.directory().file_name().unwrap())).unwrap();
    let thalweg = |words: &[&str]| {
        let mut command = thalweg(words);
        command.env("XDG_CACHE_HOME", cache.path());
        command
    };
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
    let left = left_behind(&shelf);
    assert!(!left.is_empty());

    let out = directory();
    let words = ["--timeout", "3s", "--out", out.path().to_str().unwrap(), "--", "sh", "-c", hang];
    let output = thalweg(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(text(&output.stderr).contains("did not end within 3s and was killed"), "{output:?}");
    assert_no_machine(out.path());

    let out = directory();
    let mut caller = thalweg(&["--out", out.path().to_str().unwrap(), "--", "sh", "-c", hang]).spawn().unwrap();
    wait_until("a machine", || machines(out.path()) == 1);
    interrupt(&caller);
    assert_eq!(caller.wait().unwrap().code(), Some(130));
    assert_no_machine(out.path());
    assert!(!left.iter().any(|path| path.exists()), "a later run removes what a killed one left");
}

/// Returns the directories of runs that no process claims.
fn left_behind(shelf: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(shelf).unwrap().map(|entry| entry.unwrap().path());
    let runs = all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("run-")));
    runs.filter(|path| fs::File::open(path).is_ok_and(|directory| directory.try_lock().is_ok())).collect()
}

fn interrupt(process: &Child) {
    rustix::process::kill_process(rustix::process::Pid::from_child(process), rustix::process::Signal::INT).unwrap();
}

#[track_caller]
fn assert_no_machine(out: &Path) {
    wait_until("the machine's end", || machines(out) == 0);
}

/// How many QEMUs have this directory as theirs.
fn machines(out: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("cmdline"));
    let lines = processes.filter_map(|path| fs::read(path).ok()).map(|line| text(&line));
    lines.filter(|line| line.starts_with("qemu") && line.contains(&*out.to_string_lossy())).count()
}
