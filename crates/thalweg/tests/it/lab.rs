//! The laboratory as a user meets it: scenarios that cannot be, one that runs, one that never ends.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use thalweg_lab::kernel::Kernel;
use thalweg_testing::skip::skipped;

fn thalweg(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thalweg")).args(words).output().unwrap()
}

fn run_scenario(text: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scenario.toml");
    std::fs::write(&path, text).unwrap();
    thalweg(&["lab", "run", path.to_str().unwrap(), "--json"])
}

/// The last line of standard output.
fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().next_back().unwrap_or_default()).unwrap()
}

/// Whether the virtual machine's kernel is there. To build one takes minutes, which is not for a test to begin.
fn has_kernel() -> bool {
    let found = Kernel::find_cached().is_some();
    if !found {
        skipped("no kernel in the cache; `thalweg lab build` makes one");
    }
    found
}

#[test]
fn a_scenario_that_cannot_be_is_refused_by_its_line() {
    for (text, line, reason) in [
        ("[network]\nsenders = 3\nrate = \"-1 Gbit/s\"\n", "line 3", "'-1 Gbit/s' is not a rate"),
        ("[network]\nsenders = 3\nreceivers = 0\n", "line 3", "it must be 1 to 1000"),
        (
            "[network]\nsenders = 3\n\n[traffic]\ncontrol = \"tahoe\"\n",
            "line 5",
            "write credit, credit+CONTROL or CONTROL",
        ),
        ("[network]\nsendres = 3\n", "line 2", "unknown field `sendres`"),
    ] {
        let output = run_scenario(text);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let error = json(&output)["error"].as_str().unwrap().to_owned();
        assert!(error.contains(line) && error.contains(reason), "{error}");
    }
    for (words, reason) in [
        (&["--senders", "0"][..], "network.senders: 0: it must be 1 to 1000"),
        (&["--calibrate", "--interval", "1ms"], "measure.calibrate: it needs control = \"credit\""),
    ] {
        let output = thalweg(&[&["lab", "incast", "--json"], words].concat());
        assert_eq!(output.status.code(), Some(2));
        let error = json(&output)["error"].as_str().unwrap().to_owned();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn sweeps_have_names_and_others_are_refused() {
    let listed = thalweg(&["lab", "sweep"]);
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && text.contains("judge-1g") && text.contains("tdaq-simulated"), "{text}");
    let refused = thalweg(&["lab", "sweep", "judge-2g", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(json(&refused)["error"].as_str().unwrap().contains("judge-2g"));
}

#[test]
fn three_senders_fill_a_gigabit_under_credit_and_lose_nothing() {
    if !has_kernel() {
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let words = ["lab", "incast", "--senders", "3", "--seconds", "0.1", "--wall-limit", "20m", "--json", "--out"];
    let output = thalweg(&[&words[..], &[out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = json(&output);
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}"));
    // 1448 of 1538 bytes on the wire are payload, and 65536 of 65600 of those are a fragment's.
    assert!((number("/ceiling_bits_per_second") - 940.56e6).abs() < 0.1e6);
    assert!((0.95..1.02).contains(&number("/share_of_ceiling")), "{}", number("/share_of_ceiling"));
    for pointer in ["/retransmissions", "/timeouts", "/drops", "/events/incomplete"] {
        assert_eq!(number(pointer), 0.0, "{pointer}");
    }
    assert!(number("/events/complete") > 40.0);
    assert!((1.0..=340_000.0).contains(&number("/queue/max_bytes")));
    assert_eq!(number("/queue/limit_bytes"), 340_000.0);
    for pointer in
        ["/completion/p50_us", "/completion/p99_us", "/completion/max_us", "/virtual_seconds", "/wall_seconds"]
    {
        assert!(number(pointer) > 0.0, "{pointer}");
    }
    assert_eq!(report["senders"].as_array().unwrap().len(), 3);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("share of the ceiling") && page.contains("<svg"));
    assert!(Path::new(&out.join("report.json")).exists());
}

/// Plain TCP does not know of the trunk that all senders of a leaf share, and overruns it.
#[test]
fn a_trunk_that_is_too_narrow_drops_and_the_timeline_shows_it() {
    if !has_kernel() {
        return;
    }
    let report = run_scenario(
        "[network]\nsenders = 4\nreceivers = 2\nbuffer = \"100 kB\"\n[network.tree]\nleaves = 2\noversubscription = 4\n\
         [traffic]\ncontrol = \"cubic\"\n[measure]\nseconds = 0.05\nwarm_up = \"10ms\"\nwall_limit = \"20m\"\n",
    );
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report = json(&report);
    let list = |pointer: &str| report.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("{pointer}"));
    let ports = list("/ports");
    let names: Vec<&str> = ports.iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["leaf-0 up", "leaf-0 down", "leaf-1 up", "leaf-1 down"]);
    // Most of them at the start, before anything is measured.
    assert!(report["whole_run"]["drops"].as_u64() > Some(0), "{}", report["whole_run"]);
    // Four senders, four ends of trunks, two receivers; a builder for each of these.
    assert_eq!(list("/timeline/links").len(), 10);
    assert_eq!(list("/timeline/credit").len(), 2);
    let busiest = list("/timeline/links").iter().filter(|link| link["kind"] == "trunk").map(|link| {
        let busy: Vec<f64> = link["busy"].as_array().unwrap().iter().map(|busy| busy.as_f64().unwrap()).collect();
        busy.iter().sum::<f64>() / busy.len() as f64
    });
    assert!(busiest.fold(0.0, f64::max) > 0.5, "{}", report["timeline"]["links"]);
}

/// What the model lacks: losses, other flows, plain TCP, builders that die. The model's cases are in the crate.
#[test]
fn the_bottleneck_by_construction_is_named_first() {
    if !has_kernel() {
        return;
    }
    let slow = "rate = \"100 Mbit/s\"\n";
    for (text, kind, name) in [
        (
            "delay = \"5ms\"\nloss = 0.02\n[traffic]\ncontrol = \"cubic\"\n[measure]\nseconds = 0.5\nwarm_up = \"100ms\"\n",
            "loss",
            "",
        ),
        ("[traffic]\ncross = 2\n[measure]\nseconds = 0.3\n", "other_flows", "receiver-0 down"),
        (
            "delay = \"50ms\"\n[traffic]\ncontrol = \"reno\"\n[measure]\nseconds = 0.1\nwarm_up = \"150ms\"\n",
            "congestion_control",
            "reno",
        ),
        (
            "receivers = 2\n[[network.receiver]]\nnumber = 1\ndies = \"50ms\"\n[traffic]\nsize = \"16 KiB\"\n\
             assignment = \"by-room\"\n[measure]\nseconds = 0.2\n",
            "builder",
            "receiver-1",
        ),
    ] {
        let output = run_scenario(&format!("[network]\nsenders = 2\n{slow}{text}wall_limit = \"20m\"\n"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let verdict = &json(&output)["verdict"];
        assert_eq!((&verdict["limit"]["kind"], &verdict["limit"]["name"]), (&kind.into(), &name.into()), "{verdict}");
        assert!(
            verdict["offered_bits_per_second"].is_null() && verdict["sentence"].as_str().unwrap().contains("carried")
        );
    }
}

#[test]
fn what_is_not_carried_is_a_failure_if_it_must_be() {
    let words = ["lab", "incast", "--on", "model", "--seconds", "0.05", "--must-carry", "--json"];
    for (interval, code) in [("1ms", 1), ("4ms", 0)] {
        let output = thalweg(&[&words[..], &["--interval", interval]].concat());
        assert_eq!(output.status.code(), Some(code), "{}", json(&output)["verdict"]);
        assert_eq!(json(&output)["verdict"]["carries_offered"], code == 0);
    }
    let output = thalweg(&words);
    assert_eq!(output.status.code(), Some(2));
    assert!(json(&output)["error"].as_str().unwrap().contains("set `interval`"));
}

#[test]
fn an_ending_gives_the_format_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let files = ["a.svg", "a.html", "a.json", "a.csv", "a.md"].map(path);
    let mut words = vec!["lab", "incast", "--on", "model", "--seconds", "0.05"];
    files.iter().for_each(|file| words.extend(["--out", file]));
    let output = thalweg(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (file, part) in files.iter().zip(["<svg", "<!DOCTYPE html>", "\"verdict\"", "chart,series", "| offered |"]) {
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(part) && text.contains("lab, 3 senders, 1 receiver, 1 Gbit/s"), "{file}: {text}");
    }
    let refused = thalweg(&["lab", "incast", "--on", "model", "--out", &path("a.png")]);
    assert_eq!(refused.status.code(), Some(2));
}

/// Its events are lost, so the run is INCOMPLETE; what the others built is reported all the same.
#[test]
fn where_a_builder_dies_the_others_go_on_and_are_reported() {
    if !has_kernel() {
        return;
    }
    let report = run_scenario(
        "[network]\nsenders = 2\nreceivers = 2\nrate = \"100 Mbit/s\"\n[[network.receiver]]\nnumber = 1\n\
         dies = \"50ms\"\n[traffic]\nsize = \"16 KiB\"\nassignment = \"by-room\"\n[measure]\nseconds = 0.2\n\
         wall_limit = \"20m\"\n",
    );
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report = json(&report);
    let share = report["share_of_ceiling"].as_f64().unwrap();
    assert!(share > 0.45 && share < 0.55, "one of two: {share}");
    assert_eq!((&report["drops"], &report["events"]["incomplete"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn a_builder_finds_out_what_its_link_carries() {
    if !has_kernel() {
        return;
    }
    let output = thalweg(&["lab", "incast", "--senders", "3", "--calibrate", "--wall-limit", "20m", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = &json(&output)["found"];
    let rate: f64 = found["rate"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap();
    let buffer = found["buffer"].as_f64().unwrap();
    assert!(found["rate"].as_str().unwrap().ends_with("Mbit/s") && (980.0..1010.0).contains(&rate), "{found}");
    assert!(found["round_trip"].as_str().unwrap().starts_with("20"), "{found}");
    assert!((300e3..420e3).contains(&buffer), "{found}");
}

#[test]
fn what_takes_too_long_is_ended_and_said() {
    if !has_kernel() {
        return;
    }
    let output = thalweg(&["lab", "incast", "--seconds", "3600", "--wall-limit", "2s", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(json(&output)["error"].as_str().unwrap().contains("did not end within 2s and was killed"));
}

#[test]
fn a_host_says_what_it_lacks() {
    let words = ["lab", "incast", "--on", "host", "--delay", "1ms", "--control", "cubic", "--seconds", "0.1", "--json"];
    let output = thalweg(&words);
    if output.status.success() {
        return skipped("this kernel has netem, and this user may use it");
    }
    assert_eq!(output.status.code(), Some(2));
    assert!(json(&output)["error"].as_str().unwrap().contains("--on virtual"));
    assert_eq!(namespaces(), Vec::<String>::new());
}

/// Those that this test's programs left.
fn namespaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("thalweg-") && name.ends_with("-probe")).collect()
}
