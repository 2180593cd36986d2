//! Programs of others that use RDMA verbs, unmodified, on the software RNIC of `thalweg rdma run`.

use crate::common::{TIMEOUT, thalweg};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use thalweg_testing::skip::skipped;

/// A program, its arguments at both ends, and the option by which it takes a port.
struct Pair {
    words: &'static str,
    port_option: &'static str,
    /// Debian's package.
    package: &'static str,
}

const PAIRS: [Pair; 14] = [
    pingpong("ibv_rc_pingpong -g 0 -c"),
    pingpong("ibv_rc_pingpong -g 0 -c -e -s 70000 -n 200"),
    pingpong("ibv_srq_pingpong -g 0"),
    pingpong("ibv_srq_pingpong -g 0 -e"),
    perftest("ib_send_lat -n 200"),
    perftest("ib_send_lat -n 200 -e"),
    perftest("ib_write_lat -n 200"),
    perftest("ib_read_lat -n 200"),
    perftest("ib_atomic_lat -n 200 -A CMP_AND_SWAP"),
    perftest("ib_send_bw -n 200 -s 100000 -q 3"),
    perftest("ib_write_bw -n 200 -b"),
    perftest("ib_read_bw -n 200 -q 2"),
    perftest("ib_send_bw -n 200 --use-srq -q 2"),
    perftest("ib_atomic_bw -n 200 -A FETCH_AND_ADD"),
];

const fn pingpong(words: &'static str) -> Pair {
    Pair { words, port_option: "-p", package: "ibverbs-utils" }
}

const fn perftest(words: &'static str) -> Pair {
    Pair { words, port_option: "-d thalweg0 -x 0 -F -p", package: "perftest" }
}

/// Result of a program.
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

#[test]
fn verbs_programs_run_unmodified() {
    let outcomes = PAIRS.iter().map(|pair| (pair.words, run_pair(pair)));
    check_table(outcomes.collect());
}

#[test]
fn ucx_moves_bytes_by_verbs() {
    let tests = ["am_lat", "put_lat", "put_bw", "am_bw"];
    let words = tests.map(|test| format!("ucx_perftest -d thalweg0:1 -x rc_verbs -n 300 -t {test}"));
    let outcomes = words.iter().map(|words| {
        let pair = (words.as_str(), "-p", "ucx-utils");
        (words.as_str(), run_both_ends(pair.0, pair.1, pair.2))
    });
    check_table(outcomes.collect());
}

/// Modules of pyverbs' tests (rdma-core) that a device without datagrams and device memory has something to do for.
const PYVERBS_MODULES: [&str; 10] = [
    "test_pd",
    "test_mr",
    "test_cq",
    "test_cqex",
    "test_cq_events",
    "test_qp",
    "test_qpex",
    "test_device",
    "test_atomic",
    "test_parent_domain",
];

/// Folder of pyverbs' tests (rdma-core), compressed.
const PYVERBS_TESTS: &str = "/usr/share/doc/rdma-core/tests";

#[test]
fn the_tests_of_pyverbs_pass() {
    let has_pyverbs = Command::new("/usr/bin/python3").args(["-c", "import pyverbs.device"]).output();
    if !Path::new(PYVERBS_TESTS).exists() || !has_pyverbs.is_ok_and(|output| output.status.success()) {
        return skipped("pyverbs: not installed, or not its tests (rdma-core, python3-pyverbs)");
    }
    let folder = tempfile::tempdir().unwrap();
    let unpack = format!("cp {PYVERBS_TESTS}/* . && gunzip -f *.gz && rm -f test_mlx5* test_efa* test_cuda*");
    let unpacked = Command::new("sh").args(["-c", &unpack]).current_dir(folder.path()).status().unwrap();
    assert!(unpacked.success());
    let outcomes = PYVERBS_MODULES.map(|module| {
        let mut command = on_rnic();
        command.args([
            "--",
            "/usr/bin/python3",
            "run_tests.py",
            "-v",
            "--dev",
            "thalweg0",
            "--port",
            "1",
            "--gid",
            "0",
        ]);
        let output = command.arg(module).current_dir(folder.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let outcome = match output.status.success() && printed.contains(" ... ok") {
            true => Outcome::Passed,
            false => Outcome::Failed(printed.clone()),
        };
        // Of those that pass without having run, the reasons.
        for line in printed.lines().filter(|line| line.contains("... skipped") || line.starts_with("Ran ")) {
            println!("{module}: {line}");
        }
        (module, outcome)
    });
    check_table(outcomes.into());
}

#[test]
fn what_cannot_be_run_is_said_and_codes_are_passed_on() {
    let code = |words: &[&str]| {
        let output = on_rnic().args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let installed = verbs_are_installed();
    let (seven, line) = code(&["--", "sh", "-c", "exit 7"]);
    if installed {
        assert_eq!((seven, line.lines().count()), (Some(7), 1), "{line}");
        assert!(line.contains("thalweg0 (RoCE over EFE) at 127.0.0.1"), "{line}");
        assert_eq!(code(&["sh", "-c", "kill -9 $$"]).0, Some(128 + 9));
        assert_eq!(code(&["--", "/no/such/program"]).0, Some(127));
    } else {
        assert!(seven == Some(2) && line.contains("libibverbs1"), "{line}");
    }
    let elsewhere = thalweg().args(["rdma", "run", "--address", "192.0.2.77", "true"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("no interface of this machine has the address"));
}

/// Returns whether the linker finds libibverbs.
fn verbs_are_installed() -> bool {
    let output = Command::new("/sbin/ldconfig").arg("-p").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libibverbs.so.1"))
}

/// `thalweg rdma run`, on the loopback interface.
fn on_rnic() -> Command {
    let mut command = thalweg();
    command.args(["rdma", "run", "--address", "127.0.0.1"]);
    command
}

fn run_pair(pair: &Pair) -> Outcome {
    run_both_ends(pair.words, pair.port_option, pair.package)
}

/// Runs a program as server and as client.
fn run_both_ends(words: &str, port_option: &str, package: &str) -> Outcome {
    let program = words.split(' ').next().unwrap_or_default();
    if !Path::new("/usr/bin").join(program).exists() {
        return Outcome::Skipped(format!("{program}: not installed ({package})"));
    }
    let port = free_port();
    let command = |peer: Option<&str>| {
        let mut command = on_rnic();
        command.arg("--").args(words.split(' ')).args(port_option.split(' ')).arg(port.to_string()).args(peer);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = command(None);
    if !wait_until_listening(port, &mut server) {
        return Outcome::Failed(format!("the server does not listen:\n{}", describe(&finish(server))));
    }
    let client = finish(command(Some("127.0.0.1")));
    if !client.status.success() {
        let _ = server.kill();
    }
    let server = finish(server);
    if client.status.success() && server.status.success() {
        return Outcome::Passed;
    }
    Outcome::Failed(format!("client:\n{}\nserver:\n{}", describe(&client), describe(&server)))
}

/// Returns the output of a program once it has ended, or been killed since it did not.
fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + TIMEOUT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

/// Time between looks at what another process has done.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

fn describe(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{stdout}{stderr}", output.status)
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Waits until a program listens at a port. Returns false if it has ended before.
fn wait_until_listening(port: u16, child: &mut Child) -> bool {
    let deadline = Instant::now() + TIMEOUT;
    let local = format!(":{port:04X} ");
    while Instant::now() < deadline {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
        // State 0A: LISTEN.
        let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A") && line.contains(&local);
        if tables.iter().flat_map(|table| table.lines()).any(listens) {
            return true;
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Prints which programs have passed, been skipped or failed, and fails if any has failed.
fn check_table(outcomes: Vec<(&str, Outcome)>) {
    let (mut table, mut failures, mut reasons) = (String::new(), String::new(), Vec::new());
    for (name, outcome) in outcomes {
        let word = match outcome {
            Outcome::Passed => "passed".into(),
            Outcome::Failed(report) => {
                let _ = writeln!(failures, "{name}: {report}");
                "FAILED".into()
            }
            Outcome::Skipped(reason) => {
                let word = format!("skipped: {reason}");
                reasons.push(reason);
                word
            }
        };
        let _ = writeln!(table, "{name:60} {word}");
    }
    println!("{table}");
    reasons.dedup();
    reasons.iter().for_each(skipped);
    assert!(failures.is_empty(), "{table}\n{failures}");
}
