//! Congestion controls on this machine's kernel, and the laboratory's record of the kernel's own.

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use serde_json::Value;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;
use thalweg_lab::kernel::{Kernel, Machine, boot_machine};
use thalweg_testing::skip::skipped;
use thalweg_text::ByteSize;

/// More than the socket buffers of both ends hold, so that acknowledgements come while there is more to send.
const BYTES: usize = 24 << 20;

#[test]
fn each_control_is_loaded_carries_data_and_is_taken_out_again() {
    if !rustix::process::geteuid().is_root() {
        return skipped("loading into the kernel needs root");
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return skipped("this kernel has no type information (no /sys/kernel/btf/vmlinux)");
    }

    let absent: Vec<String> =
        controls().into_iter().filter(|(_, standing)| standing == "absent").map(|(name, _)| name).collect();
    if absent.is_empty() {
        return skipped("everything that could be loaded is there already");
    }
    let loaded = Loaded(absent);
    assert_eq!(thalweg("load", &loaded.0).0, Some(0));
    let there = controls();
    for name in &loaded.0 {
        assert!(there.contains(&(name.clone(), "thalweg".to_owned())), "{name} in {there:?}");
        carries(name);
    }
    // A second time is no error, and what is unloaded is gone.
    assert_eq!(thalweg("load", &loaded.0).0, Some(0));
    assert_eq!(thalweg("unload", &loaded.0).0, Some(0));
    let there = controls();
    assert!(loaded.0.iter().all(|name| there.contains(&(name.clone(), "absent".to_owned()))), "{there:?}");
    let (code, said) = thalweg("unload", &loaded.0[..1]);
    assert_eq!((code, &said["controls"][0]["done"]), (Some(1), &Value::from(false)));
}

#[test]
fn a_control_that_does_not_exist_is_a_mistake_that_says_what_there_is() {
    let (code, said) = thalweg("load", &["pigeon".to_owned()]);
    assert_eq!(code, Some(2));
    assert!(
        said["error"].as_str().is_some_and(|error| error.contains("pigeon") && error.contains("westwood")),
        "{said}"
    );
}

/// The same check as thalweg-lab's own of the tapes in the repository, with tapes made now.
#[test]
fn tapes_of_the_laboratorys_kernel_play_the_same_windows() {
    let Some(kernel) = Kernel::find_cached() else {
        return skipped("the laboratory has no kernel yet (thalweg lab build)");
    };
    for tool in ["python3", "tc", "bash"] {
        if Command::new(tool).arg("--version").output().is_err() && Command::new(tool).arg("-V").output().is_err() {
            return skipped(format_args!("{tool} is not installed"));
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    let replay = directory.path().join("replay");
    let status = Command::new("cc").args(["-O1", "-o"]).arg(&replay).arg(root.join("bpf/replay.c")).status().unwrap();
    assert!(status.success());

    let names = controls().into_iter().map(|(name, _)| name);
    let names: Vec<_> = names.filter(|name| !["reno", "cubic", "bbr", "dctcp"].contains(&name.as_str())).collect();
    let script = root.join("crates/thalweg-lab/tests/tape.sh").canonicalize().unwrap();
    let path = ["10mbit".into(), "60".into()];
    let args: Vec<OsString> = [script.into()].into_iter().chain(path).chain(names.iter().map(Into::into)).collect();
    let outcome = boot_machine(&Machine {
        kernel: &kernel,
        memory: ByteSize(512 << 20),
        program: Path::new("bash"),
        args: &args,
        directory: directory.path(),
        wall_limit: Duration::from_mins(5),
        stop: &AtomicBool::new(false),
    })
    .unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.console);

    for name in &names {
        let tape = directory.path().join(format!("{name}.tape"));
        let output = Command::new(&replay).stdin(std::fs::File::open(&tape).unwrap()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        keep(&tape);
    }
}

/// Packs a tape into the directory that THALWEG_TAPES names, if it names one.
fn keep(tape: &Path) {
    let Some(to) = std::env::var_os("THALWEG_TAPES") else { return };
    let packed = Command::new("gzip").args(["-9nc"]).arg(tape).output().unwrap();
    assert!(packed.status.success());
    let name = format!("{}.gz", tape.file_name().unwrap().to_str().unwrap());
    std::fs::write(PathBuf::from(to).join(name), packed.stdout).unwrap();
}

/// What the test loaded: taken out again however the test ends.
struct Loaded(Vec<String>);

impl Drop for Loaded {
    fn drop(&mut self) {
        thalweg("unload", &self.0);
    }
}

/// Sends over a connection of this control, and checks that it is the one in use and that every byte arrives.
fn carries(name: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_tcp_congestion(&sender, name).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let received = thread::spawn(move || {
        let mut bytes = Vec::with_capacity(BYTES);
        receiver.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let sent: Vec<u8> = (0..BYTES).map(|at| (at / 1000 % 251) as u8).collect();
    sender.write_all(&sent).unwrap();
    assert_eq!(tcp_congestion(&sender).unwrap(), name);
    drop(sender);
    assert!(received.join().unwrap() == sent, "{name}: what arrived is not what was sent");
}

/// Every name with its standing.
fn controls() -> Vec<(String, String)> {
    let (code, list) = thalweg("list", &[]);
    assert_eq!(code, Some(0), "{list}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    list["controls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|control| (text(&control["name"]), text(&control["standing"])))
        .collect()
}

fn thalweg(command: &str, names: &[String]) -> (Option<i32>, Value) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_thalweg")).args(["cc", command, "--json"]).args(names).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_default())
}
