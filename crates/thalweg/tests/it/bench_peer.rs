//! Two ends: `thalweg bench listen` on one side, a measurement on the other, as on two hosts; and what happens when one
//! of them is not there, not willing, or killed.

use crate::common;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use thalweg_testing::skip::skipped;

fn thalweg(arguments: &str) -> Command {
    let mut command = common::thalweg();
    command.arg("--json").args(arguments.split_whitespace());
    command
}

fn run(arguments: &str) -> Output {
    thalweg(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The points of a measurement that told a program.
fn points(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == "point").collect()
}

const SHORT: &str = "-t 5ms -O 1ms --repeat 2";

/// `thalweg bench listen`, killed when dropped.
struct Serving {
    child: Child,
    said: BufReader<ChildStderr>,
    address: String,
}

impl Serving {
    fn start(options: &str) -> Self {
        let command = format!("bench listen 127.0.0.1:0 {options}");
        let mut child = thalweg(&command).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(',').next());
        Self { address: address.unwrap_or_else(|| panic!("{line}")).to_owned(), child, said }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn another_end_serves_one_measurement_after_the_other() {
    let mut serving = Serving::start("");
    let peer = serving.address.clone();
    let methods = "write,sendmsg,zerocopy,sendfile,io_uring,verbs";
    for (instrument, points_of) in [("latency", 2 * 9), ("bandwidth", 2 * 9)] {
        let output = run(&format!("bench {instrument} --peer {peer} --sizes 64,4KiB --method {methods} {SHORT}"));
        assert!(output.status.success(), "{}", errors(&output));
        let points = points(&output);
        assert_eq!(points.len(), points_of);
        for point in &points {
            assert!(point["goodput_bits_per_second"].as_f64().unwrap() > 0.0, "{point}");
            assert_eq!(point["repeats"].as_array().unwrap().len(), 2);
            assert!(point["cpu"]["process_percent"].is_f64() && point["copies_per_byte"].is_f64(), "{point}");
        }
        assert!(serving.says().contains("measures"));
        assert!(serving.says().contains("has gone"));
    }
    let output = run(&format!("bench under-load --link tcp,udp --peer {peer} --rate 1000,5000 {SHORT}"));
    assert!(output.status.success(), "{}", errors(&output));
    let points = points(&output);
    assert_eq!(points.len(), 4);
    assert!(points.iter().all(|point| point["offered_per_second"].as_f64().unwrap() >= 1000.0));
}

#[test]
fn shared_memory_does_not_reach_another_host() {
    let serving = Serving::start("--one-off");
    let output = run(&format!("bench latency --link shm --peer {}", serving.address));
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("--link shm is for two processes of one host"), "{}", errors(&output));
}

#[test]
fn nobody_there_is_said_once_and_nothing_is_measured() {
    let (_port, address) = common::reserve_port();
    let output = run(&format!("bench latency --link tcp,udp --sizes 1 --peer {address} {SHORT}"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(points(&output).len(), 0);
    let error = errors(&output);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("refused") && error.contains("thalweg bench listen"), "{error}");
}

#[test]
fn two_at_a_time_would_measure_each_other() {
    let mut serving = Serving::start("");
    let peer = serving.address.clone();
    let mut first = thalweg(&format!("bench latency --link tcp --sizes 1 -t 1h --peer {peer}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(serving.says().contains("measures"));
    let output = run(&format!("bench latency --link tcp --sizes 1 --peer {peer} {SHORT}"));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("another end measures now"));
    // The first was killed in the middle: the serving end notices, and serves the next.
    assert!(!serving.says().is_empty());
    let output = run(&format!("bench latency --link tcp --sizes 1 --peer {peer} {SHORT}"));
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn an_end_that_is_killed_in_the_middle_is_this_points_error() {
    for link in ["tcp", "udp"] {
        let mut serving = Serving::start("");
        let command =
            format!("bench bandwidth --link {link} --sizes 64KiB -t 1h --repeat 1 --peer {}", serving.address);
        let measuring = thalweg(&command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(serving.says().contains("measures"));
        drop(serving);
        let output = measuring.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let points = points(&output);
        let error = points[0]["error"].as_str().unwrap();
        assert!(error.contains("the other end") || error.contains("over TCP"), "{error}");
    }
}

#[test]
fn whoever_connects_and_talks_nonsense_is_hung_up_on() {
    let mut serving = Serving::start("");
    let mut stream = std::net::TcpStream::connect(&serving.address).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.contains("thalweg_bench"));
    assert!(serving.says().contains("measures"));
    assert!(serving.says().contains("does not speak as a Thalweg bench"));
    let output = run(&format!("bench latency --link tcp --sizes 1 --peer {} {SHORT}", serving.address));
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn a_port_that_is_taken_or_an_address_that_is_not_ours_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let output = run(&format!("bench listen {address}"));
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains(&format!("listening on {address}")), "{}", errors(&output));
    let output = run("bench listen 192.0.2.1:5255");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn without_any_privilege_the_network_is_measured_all_the_same() {
    let own = rustix::process::getuid();
    if !own.is_root() {
        return skipped("this test runs as an ordinary user already");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_thalweg"));
    let line = format!("bench --json latency --sizes 1 {SHORT}");
    // Its directory may be closed to others: copies where everybody may read them.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = directory.path().join("thalweg");
    std::fs::copy(program, &copy).unwrap();
    std::fs::copy(program.with_file_name("thalweg-lab"), copy.with_file_name("thalweg-lab")).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(line.split_whitespace())
        .output();
    let Ok(output) = output else { return skipped("there is no setpriv (util-linux) here") };
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(points(&output).len(), 3);
}
