//! `thalweg bench` and `thalweg reproduce` as people and programs meet them. The figures are not looked at: only that
//! they come, in which form, and what happens where something is wrong.

use crate::common;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use thalweg_testing::skip::skipped;

/// A measurement that is over soon: two points of one repeat each.
const SOON: [&str; 10] =
    ["latency", "--link", "tcp", "--sizes", "1,64KiB", "--min-time", "20ms", "--warmup", "1ms", "--repeat=1"];

fn thalweg(arguments: &[&str], directory: &Path) -> Command {
    let mut command = common::thalweg();
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

/// As a program asks for it.
fn bench(arguments: &[&str], directory: &Path) -> Output {
    thalweg(&[&["--json", "bench"], arguments].concat(), directory).output().unwrap()
}

/// What was printed, a value for each line.
fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The same in a terminal of 80 columns; none where there is no program to make one.
fn in_a_terminal(arguments: &str, directory: &Path) -> Option<(Option<i32>, String)> {
    let program = env!("CARGO_BIN_EXE_thalweg");
    let output = Command::new("script")
        .args(["-qec", &format!("stty cols 80; exec {program} {arguments}"), "/dev/null"])
        .current_dir(directory)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        skipped("there is no script(1) here to make a terminal");
        return None;
    };
    // What the progress bar drew is over where its line begins anew, or is wiped.
    let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
    let shown = text
        .lines()
        .map(|line| line.rsplit(['\r']).next().unwrap_or_default().replace("\u{1b}[2K", "").replace("\u{1b}[K", ""));
    Some((output.status.code(), shown.collect::<Vec<_>>().join("\n")))
}

#[test]
fn a_program_gets_a_line_for_each_point_and_one_for_the_report() {
    let directory = directory();
    let output = bench(&SOON, directory.path());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let told = lines(&output);
    let types: Vec<_> = told.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["point", "point", "report"]);
    let report = &told[2];
    assert_eq!((&report["format"], &report["instrument"]), (&json!("thalweg-bench/1"), &json!("latency")));
    for (point, size) in told.iter().zip([1, 65536]) {
        assert_eq!((&point["link"], &point["method"], &point["size"]), (&json!("tcp"), &json!("write"), &json!(size)));
        assert!(point["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{point}");
    }
    assert_eq!(report["points"].as_array().unwrap().len(), 2);
    assert!(report["host"]["kernel"].is_string() && report["command_line"][2] == "bench");

    // A pipe is no reason to print something else than a terminal has.
    let output = thalweg(&[&["bench"], &SOON[..]].concat(), directory.path()).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("tcp write") && table.lines().all(|line| line.chars().count() <= 80), "{table}");
}

#[test]
fn a_person_gets_a_table_and_files() {
    let directory = directory();
    let files = "--out a.json --out a.md --out a.svg --out a.html --out a.csv";
    let Some((code, text)) = in_a_terminal(&format!("bench {} {files}", SOON.join(" ")), directory.path()) else {
        return;
    };
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for wanted in ["p99.9", "tcp write", "1 B", "64 KiB", "written to a.html"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&read("a.json")).unwrap();
    assert_eq!(report["format"], "thalweg-bench/1");
    assert!(read("a.md").starts_with("# thalweg bench latency\n"));
    assert!(read("a.svg").starts_with("<svg"));
    assert!(read("a.html").starts_with("<!DOCTYPE html>"));
    assert!(read("a.csv").starts_with("# bench latency, ") && read("a.csv").contains("latency_us.p50"));
    for picture in ["a.svg", "a.html"] {
        for origin in ["Linux ", "Thalweg ", " UTC.", "Command: "] {
            assert!(read(picture).contains(origin), "{picture}: {origin}");
        }
    }
}

#[test]
fn endings_and_times_that_mean_nothing_are_refused() {
    let directory = directory();
    for (arguments, wanted) in [
        (&["latency", "--out", "figure.png"][..], "use .svg (picture), .html (page), .json or .csv (data)"),
        (&["bandwidth", "-t", "0"], "too short to measure"),
        (&["latency", "--link", "shm", "-A", "0/0", "--sizes", "1", "-t", "1ms"], "both are bound to processor 0"),
    ] {
        let output = bench(arguments, directory.path());
        assert!(!output.status.success(), "{arguments:?}");
        let text = errors(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(wanted), "{arguments:?}: {text}");
    }
}

/// Process that computes until it is dropped.
struct Neighbour(std::process::Child);

impl Neighbour {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_neighbour_is_reported_at_every_point() {
    let directory = directory();
    let _neighbour = Neighbour::start();
    let sizes = "1..20:+1";
    let output = bench(
        &["latency", "--link", "tcp", "--sizes", sizes, "-t", "150ms", "-O", "1ms", "--repeat", "1"],
        directory.path(),
    );
    let report = lines(&output).pop().unwrap();
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 20);
    for point in points {
        let kinds: Vec<&Value> = point["warnings"].as_array().into_iter().flatten().map(|one| &one["kind"]).collect();
        assert!(kinds.contains(&&json!("other-processes")), "{point}");
    }
    assert!(report["warnings"][0].as_str().unwrap().contains("20 of 20 points"), "{}", report["warnings"]);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let directory = directory();
    fs::write(directory.path().join("kept.md"), "kept").unwrap();
    let long = ["latency", "--min-time", "1h", "--out", "made.json", "--out", "kept.md"];
    let output = bench(&[&long[..], &["--out", "/nonexistent/x.html"]].concat(), directory.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("/nonexistent/x.html: No such file"), "{}", errors(&output));
    assert!(lines(&output)[0]["error"].is_string());
    assert!(!directory.path().join("made.json").exists(), "what was made for nothing goes again");
    assert_eq!(fs::read_to_string(directory.path().join("kept.md")).unwrap(), "kept");
}

#[test]
fn a_full_disk_does_not_cost_what_was_measured() {
    let directory = directory();
    let output =
        bench(&[&SOON[..], &["--json-file", "/dev/full", "--markdown-file", "a.md"]].concat(), directory.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("writing /dev/full: No space left on device"), "{}", errors(&output));
    let told = lines(&output);
    assert!(told.iter().any(|line| line["type"] == "report"), "it was shown before it was written");
    assert!(fs::read_to_string(directory.path().join("a.md")).unwrap().contains("tcp write"));

    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = thalweg(&[&["bench", "--json"], &SOON[..], &["--json-file", "b.json"]].concat(), directory.path())
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("writing to standard output: No space left"), "{}", errors(&output));
    assert!(directory.path().join("b.json").metadata().unwrap().len() > 0);
}

#[test]
fn nonsense_is_named_and_is_no_measurement() {
    let directory = directory();
    for (arguments, named) in [
        (&["latency", "--sizes", "8..1"][..], "'8..1' is an empty range"),
        (&["latency", "--sizes", "many"], "'many' is no size"),
        (&["latency", "--repeat", "0"], "0 is not in 1..=1000"),
        (&["latency", "--min-time", "soon"], "soon"),
        (&["velocity"], "velocity"),
        (&["compare", "a.json"], "B.json"),
    ] {
        let output = bench(arguments, directory.path());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(errors(&output).contains(named), "{arguments:?}: {}", errors(&output));
    }
}

#[test]
fn who_leaves_early_is_not_told_the_rest() {
    let directory = directory();
    let many =
        ["bench", "--json", "latency", "--link", "tcp", "--sizes", "1..512", "--min-time", "20ms", "--warmup", "1ms"];
    let mut child = thalweg(&many, directory.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with(r#"{"type":"point""#), "{first}");
    // Standard output is closed here, and the measurement ends with it.
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_is_done_when_it_is_interrupted_is_kept() {
    let directory = directory();
    let long = [
        "--json",
        "bench",
        "latency",
        "--link",
        "tcp",
        "--sizes",
        "1..512KiB:x2",
        "-t",
        "100ms",
        "--json-file",
        "a.json",
    ];
    let mut child = thalweg(&long, directory.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let told: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    let kept: Value = serde_json::from_slice(&fs::read(directory.path().join("a.json")).unwrap()).unwrap();
    for report in [told, kept] {
        let points = report["points"].as_array().unwrap().len();
        assert!((1..20).contains(&points), "{points}");
        let stopped = format!("stopped after {points} of 20 points");
        assert!(report["warnings"].as_array().unwrap().contains(&json!(stopped)), "{}", report["warnings"]);
    }
}

#[test]
fn before_and_after_are_compared() {
    let directory = directory();
    let output = bench(&[&SOON[..], &["--json-file", "a.json"]].concat(), directory.path());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let path = |name: &str| directory.path().join(name);
    fs::write(path("printed.json"), &output.stdout).unwrap();
    let mut slower: Value = serde_json::from_slice(&fs::read(path("a.json")).unwrap()).unwrap();
    slower["host"]["kernel"] = json!("another");
    let point = &mut slower["points"][0];
    let p50 = point["latency_us"]["p50"].as_f64().unwrap();
    point["latency_us"]["p50"] = json!(p50 * 1.5);
    point["repeats"][0]["latency_us"]["p50"] = json!(p50 * 1.5);
    fs::write(path("b.json"), slower.to_string()).unwrap();

    let same = bench(&["compare", "a.json", "printed.json", "--fail-above", "0"], directory.path());
    assert_eq!(same.status.code(), Some(0), "{}", errors(&same));
    let same = &lines(&same)[0];
    assert_eq!((&same["type"], &same["differences"]), (&json!("comparison"), &json!([])));
    assert!(same["pairs"].as_array().unwrap().iter().all(|pair| pair["verdict"] == "same" && pair["ratio"] == 1.0));

    let markdown = ["--markdown-file", "c.md"];
    let worse =
        bench(&[&["compare", "a.json", "b.json", "--fail-above", "49"][..], &markdown].concat(), directory.path());
    assert_eq!(worse.status.code(), Some(1), "{}", errors(&worse));
    let worse = &lines(&worse)[0];
    assert_eq!((&worse["differences"][0]["what"], &worse["pairs"][0]["verdict"]), (&json!("kernel"), &json!("worse")));
    assert!(fs::read_to_string(path("c.md")).unwrap().contains("Differs: kernel"));
    let bearable = bench(&["compare", "a.json", "b.json", "--fail-above", "51"], directory.path());
    assert_eq!(bearable.status.code(), Some(0));

    fs::write(path("garbage.json"), [b'{'; 1000]).unwrap();
    for (b, why) in [("garbage.json", "no report of"), ("nowhere.json", "No such file"), (".", "directory")] {
        let output = bench(&["compare", "a.json", b], directory.path());
        assert_eq!(output.status.code(), Some(2));
        assert!(errors(&output).contains(why), "{b}: {}", errors(&output));
    }
}

#[test]
fn a_paper_is_measured_again() {
    let directory = directory();
    let listed = thalweg(&["reproduce", "--json"], directory.path()).output().unwrap();
    let names = &lines(&listed)[0]["experiments"];
    assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("fc-myrinet"), &json!("expether")));
    let unknown = thalweg(&["reproduce", "n-rays"], directory.path()).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(errors(&unknown).contains("there are fc-myrinet, expether"), "{}", errors(&unknown));

    let output = thalweg(&["--json", "reproduce", "expether", "--quick", "--json-file", "raw.json"], directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let told = lines(&output);
    let last = told.last().unwrap();
    assert_eq!(last["type"], "reproduction");
    let verdicts = ["holds here", "does not hold here", "cannot be tested here"];
    for finding in last["findings"].as_array().unwrap() {
        assert!(verdicts.contains(&finding["verdict"].as_str().unwrap()), "{finding}");
        assert!(!finding["measured"].as_str().unwrap().is_empty(), "{finding}");
    }
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let raw: Value = serde_json::from_str(&read("raw.json")).unwrap();
    assert_eq!(raw["format"], "thalweg-reproduction/1");
    let markdown = read("reproduce-expether/report.md");
    for picture in markdown.lines().filter_map(|line| line.strip_prefix("![")?.split_once("](")?.1.strip_suffix(')')) {
        assert!(read(&format!("reproduce-expether/{picture}")).starts_with("<svg"), "{picture}");
    }
    assert!(read("reproduce-expether/report.html").contains("55.3"));
}

#[test]
fn the_data_server_is_measured_beside_nginx_and_what_is_missing_is_said() {
    let directory = directory();
    let words = "serve --work cached,upload --file-size 256KiB -t 1ms -O 1ms --repeat 2";
    let output = bench(&words.split(' ').collect::<Vec<_>>(), directory.path());
    let told = lines(&output);
    let report = told.last().unwrap();
    assert_eq!((&report["type"], &report["instrument"]), (&json!("report"), &json!("serve")), "{}", errors(&output));
    let points = report["points"].as_array().unwrap();
    for (work, server) in [("cached", "sendfile"), ("cached", "nginx"), ("upload", "recv"), ("upload", "fio direct")] {
        let is = |point: &&Value| point["method"] == work && point["settings"]["server"] == server;
        let point = points.iter().find(is).unwrap();
        match point["error"].as_str() {
            // The server is this program, and needs nothing else.
            Some(error) => {
                assert!(["nginx", "fio direct"].contains(&server), "{point}");
                skipped(error);
            }
            None => {
                assert!(point["goodput_bits_per_second"].as_f64().unwrap() > 0.0, "{point}");
                assert_eq!(point["repeats"].as_array().unwrap().len(), 2, "{point}");
            }
        }
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_file_that_is_there_is_read_and_stays_as_it_was() {
    let directory = directory();
    let file = directory.path().join("data");
    fs::write(&file, vec![7; 256 << 10]).unwrap();
    let words =
        "file --read-only data --sizes 64KiB --method buffered --pattern sequential,random -t 1ms -O 1ms --repeat 1";
    let output = bench(&words.split(' ').collect::<Vec<_>>(), directory.path());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let told = lines(&output);
    let access: Vec<_> = told[..2].iter().map(|point| point["settings"]["access"].as_str().unwrap()).collect();
    assert_eq!(access, ["sequential read", "random read"], "nothing is written");
    assert_eq!(fs::read(&file).unwrap(), vec![7; 256 << 10]);

    let output = bench(&["file", "--read-only", ".", "--sizes", "4KiB"], directory.path());
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let output = bench(&["file", "--read-only", "data", "--sizes", "1MiB"], directory.path());
    assert!(errors(&output).contains("ask for a larger file or smaller --sizes"), "{}", errors(&output));
}

#[test]
fn packets_go_over_a_cable_of_their_own_and_over_memory() {
    let directory = directory();
    let links = match thalweg_dpdk::available_version() {
        Ok(_) => "udp,af-xdp,dpdk",
        Err(reason) => {
            skipped(reason);
            "udp,af-xdp"
        }
    };
    let ends = ["packets", "--link", links, "--on", "veth", "--sizes", "64,9000", "--rate", "2000"];
    let soon = ["--check-data", "--min-time", "50ms", "--warmup", "1ms", "--repeat=1"];
    let output = bench(&[&ends[..], &soon[..]].concat(), directory.path());
    if errors(&output).contains("a network of its own not available here") {
        return skipped(errors(&output).trim());
    }
    assert!(output.status.success(), "{}", errors(&output));
    let told = lines(&output);
    let points: Vec<_> = told.iter().filter(|line| line["type"] == "point").collect();
    assert_eq!(points.len(), 2 * links.split(',').count(), "{told:#?}");
    for point in points {
        let on = (point["link"] != "dpdk").then_some("veth");
        assert_eq!(point["settings"]["on"].as_str(), on);
        assert!(point["loss"]["received"].as_u64().unwrap() > 0, "{point:#}");
    }
}

#[test]
fn af_xdp_is_not_to_be_had_over_loopback() {
    let directory = directory();
    let output = bench(&["packets", "--link", "af-xdp", "--on", "loopback"], directory.path());
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("--on veth"), "{}", errors(&output));
}
