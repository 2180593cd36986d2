//! What people get wrong: exit code 2, and a message that names the file, line or field and what to do.

use crate::common::disk::{Disk, skipped};
use crate::common::*;
use insta::assert_snapshot;
use std::net::TcpListener;
use std::path::Path;
use tempfile::TempDir;

/// A topology in which everything is right.
const GOOD: &str = r#"[run]
directory = "runs"
events = 1

[[builder]]
name = "builder0"
listen = ["tcp:127.0.0.1:0"]

[[source]]
name = "source0"
id = "1.0"
device = { kind = "model-adc", size = "16KiB" }
"#;

/// A directory that stays after what was said in it has been read.
fn lab() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What the program says to these arguments in this directory, and to nobody's harm: it ends with exit code 2.
#[track_caller]
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = thalweg().args(arguments).current_dir(directory).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty(), "an error is not a result");
    let said = said.replace(directory.to_str().unwrap(), "[lab]");
    // Logs have the time in them.
    let lines = said.lines().filter(|line| !line.contains(" WARN ") && !line.contains(" ERROR "));
    lines.map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// What `thalweg run` says to the good topology with one thing changed.
#[track_caller]
fn changed(from: &str, to: &str) -> String {
    let lab = lab();
    assert!(GOOD.contains(from));
    std::fs::write(lab.path().join("lab.toml"), GOOD.replacen(from, to, 1)).unwrap();
    refused(lab.path(), &["run", "lab.toml"])
}

#[test]
fn keys_that_do_not_exist_are_shown_where_they_stand() {
    assert_snapshot!(changed("events = 1", "evnts = 1"), @r"
    thalweg: lab.toml: TOML parse error at line 3, column 1
      |
    3 | evnts = 1
      | ^^^^^
    unknown field `evnts`, expected one of `directory`, `number`, `record`, `duration`, `events`, `patience`, `calibrate`, `warm_up`
    ");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\ncolour = \"red\""), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 1
       |
    12 | colour = "red"
       | ^^^^^^
    unknown field `colour`, expected one of `name`, `id`, `device`, `link`, `congestion`, `rate`, `policy`, `slots`, `slot`, `cpu`
    "#);
    assert_snapshot!(changed("\"model-adc\"", "\"tape\""), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 19
       |
    12 | device = { kind = "tape", size = "16KiB" }
       |                   ^^^^^^
    unknown variant `tape`, expected one of `model-adc`, `sigmf`, `vdif`, `pgm`, `raw`
    "#);
    assert_snapshot!(changed("size = \"16KiB\"", "size = \"16KiB\", sede = 3"), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 10
       |
    12 | device = { kind = "model-adc", size = "16KiB", sede = 3 }
       |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    unknown field `sede`, expected one of `size`, `size_from`, `seed`, `source`, `period`
    "#);
    assert_snapshot!(changed(GOOD, "[run]\n"), @r"
    thalweg: lab.toml: TOML parse error at line 1, column 1
      |
    1 | [run]
      | ^
    missing field `builder`
    ");
    assert_snapshot!(changed("[run]", "[run"), @r"
    thalweg: lab.toml: TOML parse error at line 1, column 5
      |
    1 | [run
      |     ^
    unclosed table, expected `]`
    ");
}

#[test]
fn values_that_cannot_be_are_named_with_what_can() {
    assert_snapshot!(changed("16KiB", "16 parsecs"), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 10
       |
    12 | device = { kind = "model-adc", size = "16 parsecs" }
       |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    '16 parsecs' is not a size: write a number of bytes, or one with a unit (B, KiB, MiB, GiB, kB, MB, GB), such as 64KiB
    "#);
    assert_snapshot!(changed("16KiB", "0"), @r"thalweg: source0: device option size = 0: it must be from 1 byte to 1 GiB");
    assert_snapshot!(changed("16KiB", "2GiB"), @r"thalweg: source0: device option size = 2147483648: it must be from 1 byte to 1 GiB");
    assert_snapshot!(changed("listen =", "block = \"1KiB\"\nlisten ="), @r"thalweg: lab.toml: builder 'builder0': block: 1024 bytes; a block has 256 KiB to 1 GiB");
    assert_snapshot!(changed("listen =", "blocks = 1\nlisten ="), @r"thalweg: lab.toml: builder 'builder0': blocks: 1; 2 to 4096 are possible");
    assert_snapshot!(changed("listen =", "deadline = \"soon\"\nlisten ="), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 12
      |
    7 | deadline = "soon"
      |            ^^^^^^
    'soon' is not a duration (expected number at 0): write 10s or 500ms
    "#);
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nslots = 0"), @r"thalweg: lab.toml: source 'source0': slots: 0; 1 to 65536 are possible");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nslot = \"1KiB\""), @r"thalweg: source0: source 'source0': a slot of 1024 bytes cannot hold a fragment of 16384 bytes and its header; set slot to at least 16448");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nrate = -1.0"), @r"thalweg: lab.toml: source 'source0': rate: -1; it is a number of events per second, above 0");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"first\""), @r"thalweg: lab.toml: source 'source0': id: 'first' is not a source id: write SUBSYSTEM.ELEMENT, each 0 to 65535, for example 1.0");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\ncpu = 4000"), @r"thalweg: source0: cpu = 4000: this process may not run on processor 4000");
    assert_snapshot!(changed("events = 1", "events = 0"), @r"thalweg: lab.toml: run.events: 0 events make no run: leave it out to run until stopped");
}

#[test]
fn what_does_not_go_together_is_named() {
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\npolicy = \"drop-newest\""), @r#"thalweg: lab.toml: source 'source0': policy: a device without a `rate` waits until it is asked, so nothing is ever dropped: give it a rate, or use policy = "block""#);
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nlink = \"shm\""), @r"thalweg: lab.toml: source 'source0': link: builder 'builder0' listens on no shm address");
    assert_snapshot!(changed("name = \"source0\"", "name = \"builder0\""), @r"thalweg: lab.toml: name: 'builder0' is used twice or empty: every node needs a name of its own");
    let twin =
        "[[source]]\nname = \"twin\"\nid = \"1.0\"\ndevice = { kind = \"model-adc\", size = \"1KiB\" }\n\n[[source]]";
    assert_snapshot!(changed("[[source]]", twin), @r"thalweg: lab.toml: source 'source0': id: 1.0 is used by another source");
    let said = changed("16KiB", "16MiB");
    let (_, said) = said.split_once("refused: ").unwrap();
    assert_snapshot!(said, @r"a slot of 16777280 bytes does not fit a block, which takes 4120512: give the builder a larger `block`, or the source a smaller `slot` (Mismatch)");
}

#[test]
fn addresses_that_cannot_be_listened_on_are_named() {
    assert_snapshot!(changed("tcp:127.0.0.1:0", "udp:127.0.0.1:0"), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 10
      |
    7 | listen = ["udp:127.0.0.1:0"]
      |          ^^^^^^^^^^^^^^^^^^^
    'udp:127.0.0.1:0' is not an address: write tcp:HOST:PORT or shm:PATH
    "#);
    assert_snapshot!(changed("tcp:127.0.0.1:0", "tcp:127.0.0.1:99999"), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 10
      |
    7 | listen = ["tcp:127.0.0.1:99999"]
      |          ^^^^^^^^^^^^^^^^^^^^^^^
    'tcp:127.0.0.1:99999': '99999' is not a port, 0 to 65535
    "#);
    assert_snapshot!(changed("tcp:127.0.0.1:0", "tcp:127.0.0.1"), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 10
      |
    7 | listen = ["tcp:127.0.0.1"]
      |          ^^^^^^^^^^^^^^^^^
    'tcp:127.0.0.1' is not an address: write tcp:HOST:PORT or shm:PATH
    "#);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = changed("127.0.0.1:0", &format!("127.0.0.1:{port}")).replace(&port, "[port]");
    assert_snapshot!(said, @r"thalweg: builder0: listening on tcp:127.0.0.1:[port]: Address already in use (os error 98); end what listens there, or choose another address for `listen`");
}

#[test]
fn files_that_are_not_there_are_named() {
    let lab = lab();
    assert_snapshot!(refused(lab.path(), &["run", "nowhere.toml"]), @r"thalweg: nowhere.toml: No such file or directory (os error 2)");
    assert_snapshot!(refused(lab.path(), &["check", "nowhere.toml"]), @r"thalweg: nowhere.toml: No such file or directory (os error 2)");
    assert_snapshot!(refused(lab.path(), &["node", "builder0", "nowhere.toml"]), @r"thalweg: nowhere.toml: No such file or directory (os error 2)");
    assert_snapshot!(refused(lab.path(), &["demo", "--input", "nowhere.vdif"]), @r"thalweg: opening nowhere.vdif: No such file or directory (os error 2)");
    assert_snapshot!(changed("kind = \"model-adc\", size = \"16KiB\"", "kind = \"raw\", file = \"x.bin\", record = \"1KiB\""), @r"thalweg: source0: opening x.bin: No such file or directory (os error 2)");
    std::fs::write(lab.path().join("lab.toml"), GOOD).unwrap();
    assert_snapshot!(refused(lab.path(), &["node", "builder7", "lab.toml"]), @r"thalweg: there is no node 'builder7' in the topology; it has builder0, source0");
}

#[test]
fn recordings_that_were_cut_off_are_named_with_the_place() {
    let lab = lab();
    let replayed = |name: &str, device: &str, content: &[u8]| {
        std::fs::write(lab.path().join(name), content).unwrap();
        let text = GOOD.replace("{ kind = \"model-adc\", size = \"16KiB\" }", device);
        std::fs::write(lab.path().join("lab.toml"), text).unwrap();
        refused(lab.path(), &["run", "lab.toml"])
    };
    let raw = "{ kind = \"raw\", file = \"x.bin\", record = \"300B\" }";
    assert_snapshot!(replayed("x.bin", raw, &[0; 1000]), @r"thalweg: source0: x.bin is 1000 bytes long: 3 records of 300 bytes and 100 bytes left over; the recording was cut off, or its records have another size");
    let image = "{ kind = \"pgm\", files = [\"x.pgm\"] }";
    assert_snapshot!(replayed("x.pgm", image, b"P5\n100 100\n255\nthree"), @r"thalweg: source0: x.pgm: the image at byte 15 needs 10000 bytes, and 5 are left: the recording was cut off; the file is whole up to byte 15");
    let frames = "{ kind = \"vdif\", file = \"x.vdif\" }";
    assert_snapshot!(replayed("x.vdif", frames, &[0; 10]), @r"thalweg: source0: x.vdif: the frame header at byte 0 needs 16 bytes, and 10 are left: the recording was cut off; the file is whole up to byte 0");
    let samples = "{ kind = \"sigmf\", file = \"x\" }";
    let meta = br#"{"global":{"core:datatype":"ri16_le","core:version":"1.0.0","core:num_channels":2},"captures":[],"annotations":[]}"#;
    std::fs::write(lab.path().join("x.sigmf-meta"), meta).unwrap();
    assert_snapshot!(replayed("x.sigmf-data", samples, &[0; 1001]), @r"thalweg: source0: x.sigmf-data is 1001 bytes long: 250 records of 4 bytes and 1 bytes left over; the recording was cut off, or its records have another size");
}

#[test]
fn directories_that_cannot_be_written_are_named() {
    assert_snapshot!(changed("directory = \"runs\"", "directory = \"lab.toml/runs\""), @r"thalweg: builder0: run.directory: runs cannot be written to lab.toml/runs: Not a directory (os error 20); choose another");

    // Root may write everywhere but on a disk that takes no writes.
    let lab = lab();
    let at = lab.path().join("runs");
    match Disk::read_only(&at) {
        Ok(_disk) => {
            std::fs::write(lab.path().join("lab.toml"), GOOD).unwrap();
            assert_snapshot!(refused(lab.path(), &["run", "lab.toml"]), @r"thalweg: builder0: run.directory: runs cannot be written to runs: Read-only file system (os error 30); choose another");
        }
        Err(reason) => skipped("a read-only disk", &reason),
    }
}

#[test]
fn a_run_that_exists_is_not_overwritten() {
    let lab = lab();
    std::fs::write(lab.path().join("lab.toml"), GOOD.replace("events = 1", "events = 1\nnumber = 4")).unwrap();
    let first = thalweg().args(["run", "lab.toml"]).current_dir(lab.path()).output().unwrap();
    assert!(first.status.success(), "{first:?}");
    assert_snapshot!(refused(lab.path(), &["run", "lab.toml"]), @r"thalweg: builder0: runs/run-000004 exists already: choose another run number, or leave it out to take the next free one");
    assert_eq!(check_samples(&lab.path().join("runs/run-000004")).events, 1);
}

#[test]
fn programs_get_the_error_as_json() {
    let lab = lab();
    let output = thalweg().args(["--json", "run", "nowhere.toml"]).current_dir(lab.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_snapshot!(said["error"].as_str().unwrap(), @r"nowhere.toml: No such file or directory (os error 2)");
}
