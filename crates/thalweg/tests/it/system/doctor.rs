//! `thalweg doctor`, and what a node refuses to begin with.

use crate::common::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use thalweg_testing::skip::skipped;

/// Runs longer than any disk lasts, at a rate that is stated.
const ENDLESS: Plan<'static> = Plan { run: "duration = \"100000h\"", source: "rate = 1000.0", ..PLAN };

fn doctor(directory: &Path, arguments: &[&str]) -> Output {
    thalweg().args(["doctor", "--json"]).args(arguments).current_dir(directory).output().unwrap()
}

/// What it found, after checking that its exit code says the same as its words.
#[track_caller]
fn found(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let said: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|_| {
        panic!("{text} {}", String::from_utf8_lossy(&output.stderr));
    });
    let code = match said["level"].as_str().unwrap() {
        "ok" => 0,
        "degraded" => 3,
        "missing" => 4,
        other => panic!("{other}"),
    };
    assert_eq!(output.status.code(), Some(code), "{said:#}");
    said
}

/// One finding.
#[track_caller]
fn one<'a>(said: &'a Value, name: &str) -> &'a Value {
    let findings = said["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("no {name} in {said:#}"))
}

#[test]
fn every_finding_says_what_was_seen_and_a_bad_one_what_it_costs() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let said = found(&doctor(lab.path(), &[]));
    let findings = said["findings"].as_array().unwrap();
    let mut sections: Vec<&str> = Vec::new();
    let mut names = std::collections::HashSet::new();
    let mut worst = "ok";
    for finding in findings {
        let field = |name: &str| finding[name].as_str();
        let (section, name) = (field("section").unwrap(), field("name").unwrap());
        if sections.last() != Some(&section) {
            sections.push(section);
        }
        assert!(names.insert((section, name)), "twice: {finding}");
        assert!(!field("evidence").unwrap().is_empty(), "{finding}");
        match field("level").unwrap() {
            "ok" => assert!(finding["cost"].is_null(), "{finding}"),
            "degraded" => {
                worst = "degraded";
                assert!(field("cost").is_some(), "{finding}");
            }
            other => panic!("nothing is asked for, so nothing can be {other}: {finding}"),
        }
    }
    assert_eq!(sections, ["kernel", "memory", "cpu", "network", "userspace", "clock", "disk"]);
    assert_eq!(said["level"], worst);
}

#[test]
fn people_read_it_in_eighty_columns() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = thalweg().args(["doctor", "--all"]).current_dir(lab.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for section in ["kernel", "memory", "cpu", "network", "userspace", "clock", "disk"] {
        assert!(text.contains(&format!("\n\n{section}\n")), "{text}");
    }
    // Commands, and what has no place to break it at, stand as they are.
    let broken = |line: &&str| !line.contains("fix: ") && line.trim_start().contains(' ');
    for line in text.lines().filter(broken) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// What can be set on a machine, of all that is looked at.
fn settings() -> BTreeMap<String, String> {
    const DIRECTORIES: [&str; 6] = [
        "/proc/sys/net/ipv4",
        "/proc/sys/net/core",
        "/proc/sys/vm",
        "/proc/sys/kernel",
        "/sys/kernel/mm/transparent_hugepage",
        "/sys/kernel/mm/hugepages/hugepages-2048kB",
    ];
    // These change by themselves.
    const RESTLESS: [&str; 4] = ["ns_last_pid", "perf_event_max_sample_rate", "hung_task_detect_count", "tainted"];
    let files = DIRECTORIES.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
    let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let files = files.map(|file| file.path()).chain(interfaces.map(|one| one.path().join("mtu")));
    let files = files.filter(|path| path.is_file() && !RESTLESS.iter().any(|name| path.ends_with(name)));
    let mut all: BTreeMap<String, String> =
        files.filter_map(|path| Some((path.display().to_string(), std::fs::read_to_string(&path).ok()?))).collect();
    all.remove("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    all.remove("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages");
    all.insert(
        "modules".into(),
        std::fs::read_to_string("/proc/modules")
            .unwrap_or_default()
            .lines()
            .map(|l| l.split(' ').next().unwrap_or_default().to_owned() + "\n")
            .collect(),
    );
    all
}

#[test]
fn nothing_on_the_machine_is_changed() {
    let system = System::new(&Plan { run: "duration = \"1s\"", source: "rate = 10.0", ..PLAN });
    let before = settings();
    assert!(before.len() > 100, "there is something to compare: {before:?}");
    let topology = system.path("topology.toml");
    found(&doctor(system.path("").as_path(), &["--for", topology.to_str().unwrap(), "--measure-disk"]));
    let after = settings();
    for (name, value) in &before {
        assert_eq!(after.get(name), Some(value), "{name}");
    }
    let left: Vec<_> = std::fs::read_dir(system.path("")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["topology.toml"], "neither the record directory nor what was measured with is left");
}

#[test]
fn a_user_without_privileges_is_told_what_that_costs() {
    // Somebody who may not even read our directory.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let (_directory, program) = thalweg_for_everybody();
    let output = command.arg(program).args(["doctor", "--json"]).current_dir("/").output();
    let output = match output {
        Ok(output) if output.status.code() == Some(126 | 127) || output.stdout.is_empty() => {
            return skipped(format_args!("a user without privileges: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(output) => output,
        Err(error) => return skipped(format_args!("a user without privileges: {error}")),
    };
    let said = found(&output);
    let capabilities = one(&said, "capabilities")["evidence"].as_str().unwrap();
    assert!(capabilities.contains("without CAP_SYS_ADMIN"), "{capabilities}");
    assert!(one(&said, "record directory")["evidence"].as_str().unwrap().contains("not writable"));
    let sockets = one(&said, "AF_XDP sockets");
    assert!(sockets["evidence"].as_str().unwrap().starts_with("none can be created"), "{sockets}");
}

#[test]
fn a_run_that_does_not_fit_the_disk_is_refused_by_everyone() {
    let system = System::new(&ENDLESS);
    let file = system.path("topology.toml");
    let said = found(&doctor(&system.path(""), &["--for", file.to_str().unwrap()]));
    let space = one(&said, "disk space");
    assert_eq!(space["level"], "missing", "{space}");
    assert_eq!(said["level"], "missing");

    let ended = system.run().finish();
    let refused = ended.report(2)["error"].as_str().unwrap().to_owned();
    assert!(refused.starts_with("disk space: the run writes "), "{refused}");
    assert!(refused.contains("the disk is full after "), "{refused}");
    assert!(!system.path("runs").exists(), "it ended before it began");

    // Counted by events it is the same; on a host that only sends it is none of its business.
    let counted = System::new(&Plan { run: "events = 1000000000000", ..PLAN });
    assert_eq!(one(&found(&doctor(&counted.path(""), &["--for", "topology.toml"])), "disk space")["level"], "missing");
    let source = found(&doctor(&counted.path(""), &["--for", "topology.toml", "--node", "source0"]));
    assert_eq!(one(&source, "disk space")["level"], "ok");
    // What is not recorded needs no disk.
    let discarded = System::new(&Plan { run: "record = false\nduration = \"100000h\"", ..ENDLESS });
    assert_eq!(one(&found(&doctor(&discarded.path(""), &["--for", "topology.toml"])), "disk space")["level"], "ok");
}

#[test]
fn what_a_topology_needs_and_is_not_here_is_missing() {
    let missing = |plan: &Plan, name: &str| {
        let system = System::new(plan);
        let said = found(&doctor(&system.path(""), &["--for", "topology.toml"]));
        let finding = one(&said, name).clone();
        assert_eq!(finding["level"], "missing", "{finding}");
        finding["cost"].as_str().unwrap().to_owned()
    };
    let cost = missing(&Plan { source: "cpu = 4000", ..PLAN }, "bound processors");
    assert!(cost.contains("source0 to 4000"), "{cost}");
    missing(&Plan { source: "congestion = \"no-such-control\"", ..PLAN }, "congestion control no-such-control");
    missing(&Plan { builder: "block = \"1GiB\"\nblocks = 64", builders: 64, run: "record = false", ..PLAN }, "memory");

    let system = System::new(&PLAN);
    let taken = TcpListener::bind(system.tcp()).unwrap();
    let said = found(&doctor(&system.path(""), &["--for", "topology.toml"]));
    assert_eq!(one(&said, &format!("listening on tcp:{}", system.tcp()))["level"], "missing");
    drop(taken);
    let said = found(&doctor(&system.path(""), &["--for", "topology.toml"]));
    assert_eq!(one(&said, &format!("listening on tcp:{}", system.tcp()))["level"], "ok");

    for link in LINKS {
        let system = System::new(&Plan { link, run: "events = 10", ..PLAN });
        let said = found(&doctor(&system.path(""), &["--for", "topology.toml"]));
        assert_ne!(said["level"], "missing", "{said:#}");
        assert_eq!(system.run().finish().report(0)["state"], "COMPLETE", "what was examined is as it was");
    }
}

#[test]
fn rates_and_times_can_be_asked_about_without_a_topology() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let space = |arguments: &[&str]| one(&found(&doctor(lab.path(), arguments)), "disk space")["level"].clone();
    assert_eq!(space(&["--rate", "1kB/s", "--for-time", "1s"]), "ok");
    assert_eq!(space(&["--rate", "1GB/s", "--for-time", "100000h"]), "missing");
    let said = found(&doctor(lab.path(), &["--rate", "1000000GB/s", "--for-time", "1ns", "--measure-disk"]));
    // Some file systems have no files without a name; then it says that it did not measure.
    let speed = one(&said, "disk speed");
    let measured = !speed["evidence"].as_str().unwrap().starts_with("not measured");
    assert_eq!(speed["level"] == "missing", measured, "{speed}");
}

#[test]
fn what_cannot_be_asked_is_a_mistake_of_the_caller() {
    let system = System::new(&PLAN);
    for arguments in [
        &["--for", "nowhere.toml"][..],
        &["--for", "topology.toml", "--node", "nobody"],
        &["--node", "builder0"],
        &["--rate", "fast"],
    ] {
        let output = doctor(&system.path(""), arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}
