//! Programs of others that use RDMA verbs, unmodified, on the software RNIC of `thalweg rdma run`.

use crate::common::{TIMEOUT, thalweg};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use thalweg_link::LinkKind;
use thalweg_link_conformance::{Medium, link_conformance};
use thalweg_rdma_link::register_links;
use thalweg_testing::skip::skipped;

/// Programs that connect by themselves: arguments at both ends, and the option by which they take a port.
const PAIRS: [(&str, &str); 14] = [
    ("ibv_rc_pingpong -g 0 -c", "-p"),
    ("ibv_rc_pingpong -g 0 -c -e -s 70000 -n 200", "-p"),
    ("ibv_srq_pingpong -g 0", "-p"),
    ("ibv_srq_pingpong -g 0 -e", "-p"),
    ("ib_send_lat -n 200", PERFTEST),
    ("ib_send_lat -n 200 -e", PERFTEST),
    ("ib_write_lat -n 200", PERFTEST),
    ("ib_read_lat -n 200", PERFTEST),
    ("ib_atomic_lat -n 200 -A CMP_AND_SWAP", PERFTEST),
    ("ib_send_bw -n 200 -s 100000 -q 3", PERFTEST),
    ("ib_write_bw -n 200 -b", PERFTEST),
    ("ib_read_bw -n 200 -q 2", PERFTEST),
    ("ib_send_bw -n 200 --use-srq -q 2", PERFTEST),
    ("ib_atomic_bw -n 200 -A FETCH_AND_ADD", PERFTEST),
];

const PERFTEST: &str = "-d thalweg0 -x 0 -F -p";

/// Programs that connect by librdmacm: both ends. They run over both transports.
const MANAGED: [(&str, &str); 9] = [
    ("rping -s -a 127.0.0.1 -C 20 -V -p PORT", "rping -c -a 127.0.0.1 -C 20 -V -p PORT"),
    ("rping -s -a 127.0.0.1 -C 5 -S 60000 -p PORT", "rping -c -a 127.0.0.1 -C 5 -S 60000 -p PORT"),
    ("ucmatose -b 127.0.0.1 -c 3 -p PORT", "ucmatose -s 127.0.0.1 -c 3 -p PORT"),
    ("rstream -b 127.0.0.1 -S 1000 -I 50 -C 5 -p PORT", "rstream -s 127.0.0.1 -S 1000 -I 50 -C 5 -p PORT"),
    (
        "fi_pingpong -p verbs -e msg -I 20 -S 4096 -B PORT",
        "fi_pingpong -p verbs -e msg -I 20 -S 4096 -P PORT 127.0.0.1",
    ),
    ("ib_send_lat -R -n 100 -F -p PORT", "ib_send_lat -R -n 100 -F -p PORT 127.0.0.1"),
    ("ib_write_lat -R -n 100 -F -p PORT", "ib_write_lat -R -n 100 -F -p PORT 127.0.0.1"),
    ("ib_read_bw -R -n 100 -F -p PORT", "ib_read_bw -R -n 100 -F -p PORT 127.0.0.1"),
    ("ib_send_bw -R -n 100 -F -p PORT", "ib_send_bw -R -n 100 -F -p PORT 127.0.0.1"),
];

/// Debian's packages of the programs.
const PACKAGES: [(&str, &str); 7] = [
    ("ibv_", "ibverbs-utils"),
    ("ib_", "perftest"),
    ("rping", "rdmacm-utils"),
    ("ucmatose", "rdmacm-utils"),
    ("rstream", "rdmacm-utils"),
    ("fi_", "libfabric-bin"),
    ("ucx_", "ucx-utils"),
];

/// Result of a program.
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

#[test]
fn verbs_programs_run_unmodified() {
    check_table(PAIRS.iter().map(|(words, option)| run_alike("efe", words, option)).collect());
}

#[test]
fn programs_connect_by_librdmacm_over_iwarp() {
    check_table(MANAGED.iter().map(|(server, client)| run_both_ends("iwarp", server, client)).collect());
}

#[test]
fn programs_connect_by_librdmacm_over_efe() {
    check_table(MANAGED.iter().map(|(server, client)| run_both_ends("efe", server, client)).collect());
}

#[test]
fn ucx_moves_bytes_by_verbs() {
    let tests = ["am_lat", "put_lat", "put_bw", "am_bw"];
    let words = tests.map(|test| format!("ucx_perftest -d thalweg0:1 -x rc_verbs -n 300 -t {test}"));
    check_table(words.iter().map(|words| run_alike("efe", words, "-p")).collect());
}

/// Runs a program that has the same arguments at both ends, but for the server's address.
fn run_alike(transport: &str, words: &str, port_option: &str) -> (String, Outcome) {
    let server = format!("{words} {port_option} PORT");
    run_both_ends(transport, &server, &format!("{server} 127.0.0.1"))
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
        let mut command = on_rnic("efe");
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
        // Reasons of the tests that have not run.
        printed.lines().filter(|line| line.contains("... skipped")).for_each(|line| println!("{module}: {line}"));
        let [ran, left_out] = [" ... ok", " ... skipped"].map(|end| printed.matches(end).count());
        let name = format!("pyverbs {module} (efe): {ran} run, {left_out} skipped by it");
        (name, outcome)
    });
    check_table(outcomes.into());
}

/// A topology of nodes that use the RDMA device which has the loopback address.
const OVER_DEVICE: &str = r#"
[run]
directory = "runs"
events = 200
timeout = "60s"

[[builder]]
name = "builder0"
listen = ["rdma-device:127.0.0.1:0"]
block = "4MiB"
deadline = "60s"

[[source]]
name = "source0"
id = "1.0"
link = "rdma-device"
device = { kind = "model-adc", size = "700KiB" }

[[source]]
name = "source1"
id = "1.1"
link = "rdma-device"
device = { kind = "model-adc", size = "3KiB" }
"#;

#[test]
fn nodes_use_the_rdma_device_that_has_their_address() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), OVER_DEVICE).unwrap();
    let without = thalweg().args(["run", "run.toml"]).current_dir(folder.path()).output().unwrap();
    let reason = String::from_utf8(without.stderr).unwrap();
    assert!(!without.status.success() && reason.contains("listening on rdma-device:127.0.0.1"), "{reason}");
    if !verbs_are_installed() {
        return skipped("libibverbs1: not installed");
    }
    for (number, transport) in [(1, "efe"), (2, "iwarp")] {
        let mut command = on_rnic(transport);
        command.args(["--", env!("CARGO_BIN_EXE_thalweg"), "--json", "run", "run.toml"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap_or_default()).unwrap();
        assert_eq!(report["state"], "COMPLETE", "{transport}: {report:#}\n{}", String::from_utf8_lossy(&output.stderr));
        let run = thalweg_store::Run::open(folder.path().join(format!("runs/run-00000{number}"))).unwrap();
        assert!(thalweg_store::verify_run(&run).consistent);
        assert_eq!(run.events().count(), 200);
    }
}

/// A link over the device of the process.
struct OverDevice;

impl Medium for OverDevice {
    /// By EFE, the last messages of a peer that dies may be lost.
    fn is_faithful(&self) -> bool {
        false
    }

    fn gathers_pieces(&self) -> bool {
        true
    }

    fn copies_received_bytes(&self) -> bool {
        false
    }

    fn link_kind(&self) -> LinkKind {
        register_links().device
    }

    fn listen_directory(&self) -> &Path {
        Path::new("/")
    }
}

/// Story that this test program plays, when it is started by itself.
const STORY: &str = "THALWEG_TEST_STORY";

macro_rules! stories_over_device {
    ($($story:ident)*) => {
        pub(super) const STORIES: &[&str] = &[$(stringify!($story)),*];

        /// The process that has the device: does nothing unless a test starts it.
        #[test]
        fn a_story_over_the_device() {
            match std::env::var(STORY).as_deref() {
                Err(_) => {}
                $(Ok(stringify!($story)) => thalweg_link_conformance::$story(OverDevice),)*
                Ok(other) => panic!("no story is named {other}"),
            }
        }
    };
}

link_conformance! { mod device; stories_over_device }

#[test]
fn links_over_the_rdma_device_conform() {
    if !verbs_are_installed() {
        return skipped("libibverbs1: not installed");
    }
    let play = |transport, story: &&str| {
        let mut command = on_rnic(transport);
        command.arg("--").arg(std::env::current_exe().unwrap()).env(STORY, story);
        let output = command.args(["rdma::device::a_story_over_the_device", "--exact"]).output().unwrap();
        let outcome = match output.status.success() {
            true => Outcome::Passed,
            false => Outcome::Failed(describe(&output)),
        };
        (format!("{story} ({transport})"), outcome)
    };
    let stories = device::STORIES;
    check_table(
        ["efe", "iwarp"].iter().flat_map(|transport| stories.iter().map(move |story| play(transport, story))).collect(),
    );
}

#[test]
fn what_cannot_be_run_is_said_and_codes_are_passed_on() {
    let code = |words: &[&str]| {
        let output = on_rnic("efe").args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let installed = verbs_are_installed();
    let (seven, line) = code(&["--", "sh", "-c", "exit 7"]);
    if installed {
        assert_eq!((seven, line.lines().count()), (Some(7), 1), "{line}");
        assert!(line.contains("thalweg0 (RoCE over EFE) at 127.0.0.1"), "{line}");
        assert_eq!(code(&["sh", "-c", "kill -9 $$"]).0, None, "a signal");
        assert_eq!(code(&["--", "/no/such/program"]).0, Some(127));
    } else {
        assert!(seven == Some(2) && line.contains("libibverbs1"), "{line}");
    }
    let elsewhere = thalweg().args(["rdma", "run", "--address", "192.0.2.77", "true"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("no interface of this machine has the address"));
}

/// Returns whether the linker finds libibverbs.
pub(crate) fn verbs_are_installed() -> bool {
    let output = Command::new("/sbin/ldconfig").arg("-p").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libibverbs.so.1"))
}

/// `thalweg rdma run`, on the loopback interface.
fn on_rnic(transport: &str) -> Command {
    let mut command = thalweg();
    command.args(["rdma", "run", "--address", "127.0.0.1", "--transport", transport]);
    command
}

/// Runs a program as server and as client.
fn run_both_ends(transport: &str, server: &str, client: &str) -> (String, Outcome) {
    let program = server.split(' ').next().unwrap_or_default();
    let name = format!("{} ({transport})", server.replace(" PORT", ""));
    if !Path::new("/usr/bin").join(program).exists() {
        let package =
            PACKAGES.iter().find(|(prefix, _)| program.starts_with(prefix)).map_or("", |(_, package)| package);
        return (name, Outcome::Skipped(format!("{program}: not installed ({package})")));
    }
    let port = free_port();
    let start = |words: &str| {
        let mut command = on_rnic(transport);
        command.arg("--").args(words.replace("PORT", &port.to_string()).split(' '));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = start(server);
    if !wait_until_listening(transport, port, &mut server) {
        return (name, Outcome::Failed(format!("the server does not listen:\n{}", describe(&finish(server)))));
    }
    let client = finish(start(client));
    if !client.status.success() {
        let _ = server.kill();
    }
    let server = finish(server);
    if (client.status.success() || is_end_of_rping(&client)) && server.status.success() {
        return (name, Outcome::Passed);
    }
    (name, Outcome::Failed(format!("client:\n{}\nserver:\n{}", describe(&client), describe(&server))))
}

/// Returns whether rping has failed at its end only, when its main thread closes what its other thread is about to read.
fn is_end_of_rping(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).trim_end().ends_with("\nrdma_get_cm_event: Bad file descriptor")
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

/// Returns a port that is free for TCP and for UDP.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Waits until a program listens at a port of TCP, or, over EFE, has one of UDP. Returns false if it has ended before.
fn wait_until_listening(transport: &str, port: u16, child: &mut Child) -> bool {
    const TCP_LISTENS: &str = "0A";
    const UDP_IS_OPEN: &str = "07";
    let tables = [("tcp", TCP_LISTENS), ("tcp6", TCP_LISTENS), ("udp", UDP_IS_OPEN), ("udp6", UDP_IS_OPEN)];
    let deadline = Instant::now() + TIMEOUT;
    let local = format!(":{port:04X}");
    while Instant::now() < deadline {
        for (table, open) in tables.iter().filter(|(table, _)| transport == "efe" || table.starts_with("tcp")) {
            let sockets = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            for line in sockets.lines() {
                let columns: Vec<&str> = line.split_whitespace().collect();
                if columns.len() > 3 && columns[1].ends_with(&local) && columns[3] == *open {
                    return true;
                }
            }
        }
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Prints which programs have passed, been skipped or failed, and fails if any has failed.
fn check_table(outcomes: Vec<(String, Outcome)>) {
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
