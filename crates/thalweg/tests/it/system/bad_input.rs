//! What people get wrong: exit code 2, and a message that names the file, line or field and what to do.

use crate::common::disk::Disk;
use crate::common::*;
use insta::assert_snapshot;
use std::net::TcpListener;
use std::path::Path;
use tempfile::TempDir;
use thalweg_testing::skip::skipped;

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

/// What `thalweg run` says to the good topology with these settings.
#[track_caller]
fn set(settings: &[&str]) -> String {
    let lab = lab();
    std::fs::write(lab.path().join("lab.toml"), GOOD).unwrap();
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    refused(lab.path(), &["run", "lab.toml"].into_iter().chain(set).collect::<Vec<_>>())
}

#[test]
fn a_setting_is_refused_as_the_file_would_be_and_named() {
    assert_snapshot!(set(&["run.evnts=1"]), @"thalweg: --set run.evnts=1: unknown field `evnts`, expected one of `directory`, `number`, `comment`, `assignment`, `record`, `duration`, `events`, `timeout`, `find_shifts`, `calibrate`, `warm_up`, `steady`, `metadata`");
    assert_snapshot!(set(&["run.timeout=0s"]), @"thalweg: --set run.timeout=0s: run.timeout: it must be above 0, since nodes wait for each other that long: write 10s");
    assert_snapshot!(set(&["run.duration=1s", "source.source0.slots=0"]), @"thalweg: --set source.source0.slots=0: source 'source0': slots: 0: it must be 1 to 65536");
    assert_snapshot!(set(&["source.adc.rate=1"]), @"thalweg: --set source.adc.rate=1: there is no source 'adc': name one of source0, or its place, 0 to 0");
    assert_snapshot!(set(&["run.metadata.x=nan"]), @"thalweg: --set run.metadata.x=nan: metadata has nan or inf, which JSON does not: write it in quotation marks");
}

#[test]
fn keys_that_do_not_exist_are_shown_where_they_stand() {
    assert_snapshot!(changed("events = 1", "evnts = 1"), @r"
    thalweg: lab.toml: TOML parse error at line 3, column 1
      |
    3 | evnts = 1
      | ^^^^^
    unknown field `evnts`, expected one of `directory`, `number`, `comment`, `assignment`, `record`, `duration`, `events`, `timeout`, `find_shifts`, `calibrate`, `warm_up`, `steady`, `metadata`
    ");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\ncolour = \"red\""), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 1
       |
    12 | colour = "red"
       | ^^^^^^
    unknown field `colour`, expected one of `name`, `id`, `device`, `beat`, `link`, `adapter`, `congestion`, `rate`, `burst`, `policy`, `slots`, `slot`, `wait`, `cpu`
    "#);
    assert_snapshot!(changed("\"model-adc\"", "\"tape\""), @r#"
    thalweg: lab.toml: source 'source0': device: unknown kind `tape`, expected one of `model-adc`, `sigmf`, `vdif`, `pgm`, `tiff`, `npy`, `raw`, `udp`, `stream`, `v4l2`, `comedi`, `dma`, `fit`, `gige`, `edu`, `nvme`
    "#);
    assert_snapshot!(changed("size = \"16KiB\"", "size = \"16KiB\", sede = 3"), @r#"
    thalweg: lab.toml: TOML parse error at line 12, column 10
       |
    12 | device = { kind = "model-adc", size = "16KiB", sede = 3 }
       |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    unknown field `sede`, expected one of `size`, `size_from`, `seed`, `source`, `period`
    "#);
    assert_snapshot!(
        changed(GOOD, "[run]\n"),
        @"thalweg: lab.toml: builder: missing: add a [[builder]] with `name` and `listen`"
    );
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
    '16 parsecs' is not a size: write 65536, 64K or 64KiB (powers of 1024), or 64kB (powers of 1000)
    "#);
    assert_snapshot!(changed("16KiB", "0"), @r"thalweg: source0: device option size = 0: it must be from 1 byte to 1 GiB");
    assert_snapshot!(changed("16KiB", "2GiB"), @r"thalweg: source0: device option size = 2147483648: it must be from 1 byte to 1 GiB");
    assert_snapshot!(changed("listen =", "block = \"1KiB\"\nlisten ="), @r"thalweg: lab.toml: builder 'builder0': block: 1024 bytes: it must be 256 KiB to 1 GiB");
    assert_snapshot!(changed("listen =", "blocks = 1\nlisten ="), @r"thalweg: lab.toml: builder 'builder0': blocks: 1: it must be 2 to 4096");
    assert_snapshot!(changed("listen =", "deadline = \"soon\"\nlisten ="), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 12
      |
    7 | deadline = "soon"
      |            ^^^^^^
    'soon' is not a time: write 10s, 1.5s, 500ms, 100us, 2m or 1h 30m
    "#);
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nslots = 0"), @r"thalweg: lab.toml: source 'source0': slots: 0: it must be 1 to 65536");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nslot = \"1KiB\""), @r"thalweg: source0: slot: 1024 bytes cannot hold a fragment of 16384 bytes and its header; set slot to at least 16448");
    for rate in ["-1.0", "0", "1e-30", "1e10", "inf", "nan"] {
        let said = changed("id = \"1.0\"", &format!("id = \"1.0\"\nrate = {rate}"));
        assert!(said.contains(&format!("12 | rate = {rate}")), "{said}");
        assert!(said.ends_with("is not a rate: write a number of events per second, from 1e-6 to 1e9"), "{said}");
    }
    assert_snapshot!(changed("id = \"1.0\"", "id = \"first\""), @r"thalweg: lab.toml: source 'source0': id: 'first' is not a source id: write SUBSYSTEM.ELEMENT, each 0 to 65535, for example 1.0");
    assert_snapshot!(changed("events = 1", "events = 1\ntimeout = \"0s\""), @r"thalweg: lab.toml: run.timeout: it must be above 0, since nodes wait for each other that long: write 10s");
    assert_snapshot!(changed("name = \"source0\"", "name = \"source\\u00000\""), @r#"thalweg: lab.toml: name: "source\00": a name has no control characters"#);
    assert_snapshot!(changed("\"runs\"", "\"runs\\u0000\""), @r#"thalweg: lab.toml: run.directory: "runs\0": a path cannot contain NUL"#);
    assert_snapshot!(changed("events = 1", "events = 0"), @r"thalweg: lab.toml: run.events: it must be at least 1; remove it to run until stopped");
}

#[test]
fn what_does_not_go_together_is_named() {
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\npolicy = \"drop-newest\""), @r#"thalweg: lab.toml: source 'source0': policy: a device without a `rate` waits until it is asked, so that nothing is ever dropped: set a rate, or policy = "block""#);
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nburst = 8"), @"thalweg: lab.toml: source 'source0': burst: without a `rate` the device always has more data: set a rate, whose events then come together");
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nlink = \"shm\""), @r"thalweg: lab.toml: source 'source0': link: builder 'builder0' listens on no shm address");
    assert_snapshot!(changed("name = \"source0\"", "name = \"builder0\""), @r"thalweg: lab.toml: name: 'builder0' is used twice: every node needs a name of its own");
    let twin =
        "[[source]]\nname = \"twin\"\nid = \"1.0\"\ndevice = { kind = \"model-adc\", size = \"1KiB\" }\n\n[[source]]";
    assert_snapshot!(changed("[[source]]", twin), @r"thalweg: lab.toml: source 'source0': id: 1.0 is used by another source");
    // A slot that nobody stated, and one that was.
    assert_snapshot!(changed("16KiB", "16MiB"), @r#"thalweg: source0: slot: 16777280 bytes do not fit a block of builder 'builder0', which takes 4120512: give the builder a `block` of at least "16.25 MiB""#);
    assert_snapshot!(changed("listen =", "block = \"256KiB\"\nlisten ="), @r#"thalweg: source0: slot: 509888 bytes do not fit a block of builder 'builder0', which takes 188352: give the builder a `block` of at least "768 KiB", or the source a `slot` of 16448 to 188352 bytes"#);
    assert_snapshot!(changed("id = \"1.0\"", "id = \"1.0\"\nslot = \"5MiB\""), @r#"thalweg: lab.toml: source 'source0': slot: 5242880 bytes do not fit a block of builder 'builder0', which takes 4120512: give the builder a `block` of at least "5.25 MiB", or the source a `slot` of 64 to 4120512 bytes"#);
    let builders = "[[builder]]\nname = \"twin\"\nlisten = [\"tcp:127.0.0.1:7400\"]\n\n[[builder]]";
    let twins = GOOD.replace("[[builder]]", builders).replace("tcp:127.0.0.1:0", "tcp:127.0.0.1:7400");
    assert_snapshot!(changed(GOOD, &twins), @r"thalweg: lab.toml: builder 'builder0': listen: tcp:127.0.0.1:7400 is listened on twice: each needs its own");
}

#[test]
fn addresses_that_cannot_be_listened_on_are_named() {
    assert_snapshot!(changed("tcp:127.0.0.1:0", "ib:127.0.0.1:0"), @r#"
    thalweg: lab.toml: TOML parse error at line 7, column 10
      |
    7 | listen = ["ib:127.0.0.1:0"]
      |          ^^^^^^^^^^^^^^^^^^
    'ib:127.0.0.1:0' is not an address: write tcp:HOST:PORT or udp:HOST:PORT or af-xdp:HOST:PORT or shm:PATH or dpdk:HOST:PORT or rdma:HOST:PORT or rdma-efe:HOST:PORT or rdma-device:HOST:PORT
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
    'tcp:127.0.0.1' is not an address: write tcp:HOST:PORT or udp:HOST:PORT or af-xdp:HOST:PORT or shm:PATH or dpdk:HOST:PORT or rdma:HOST:PORT or rdma-efe:HOST:PORT or rdma-device:HOST:PORT
    "#);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = changed("127.0.0.1:0", &format!("127.0.0.1:{port}")).replace(&port, "[port]");
    assert_snapshot!(said, @r"thalweg: listening on tcp:127.0.0.1:[port]: a socket cannot be bound to 127.0.0.1:[port]: Address already in use (os error 98): another program listens there: stop it, or choose another port (ss -lntp 'sport = :[port]')");
    assert_snapshot!(changed("tcp:127.0.0.1:0", "tcp:192.0.2.1:7400"), @r"thalweg: listening on tcp:192.0.2.1:7400: a socket cannot be bound to 192.0.2.1:7400: Cannot assign requested address (os error 99): it is not an address of this machine: examine each host with --node (ip -brief address)");
    let link = ("tcp:127.0.0.1:0\"]", "tcp:127.0.0.1:0\", \"shm:/nosuchdir/x.sock\"]");
    assert_snapshot!(changed(link.0, link.1), @r"thalweg: listening on shm:/nosuchdir/x.sock: /nosuchdir is not writable: No such file or directory (os error 2): a builder cannot listen there: create the directory, or choose another path");
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
    assert_snapshot!(refused(lab.path(), &["node", "builder7", "lab.toml"]), @r"thalweg: the topology has no node 'builder7'; it has builder0, source0");
    assert_snapshot!(refused(lab.path(), &["node", "builder0", "lab.toml"]), @"thalweg: builder 'builder0': listen \
        tcp:127.0.0.1:0: port 0 lets the system choose a port, which source 'source0' in another process cannot know: \
        set a port (only `thalweg run`, which starts all nodes, can pass it on)");
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
    assert_snapshot!(replayed("x.bin", raw, &[0; 1000]), @r"thalweg: source0: x.bin has 1000 bytes of data: 3 records of 300 bytes and 100 bytes left over; the recording is truncated, its records have a different size, or a header precedes them (option skip of raw files)");
    let image = "{ kind = \"pgm\", files = [\"x.pgm\"] }";
    assert_snapshot!(replayed("x.pgm", image, b"P5\n100 100\n255\nthree"), @r"thalweg: source0: x.pgm: the image at byte 15 needs 10000 bytes, but only 5 are left: the recording is truncated; the file is intact up to byte 15");
    let frames = "{ kind = \"vdif\", file = \"x.vdif\" }";
    assert_snapshot!(replayed("x.vdif", frames, &[0; 10]), @r"thalweg: source0: x.vdif: the frame header at byte 0 needs 16 bytes, but only 10 are left: the recording is truncated; the file is intact up to byte 0");
    let samples = "{ kind = \"sigmf\", file = \"x\" }";
    let meta = br#"{"global":{"core:datatype":"ri16_le","core:version":"1.0.0","core:num_channels":2},"captures":[],"annotations":[]}"#;
    std::fs::write(lab.path().join("x.sigmf-meta"), meta).unwrap();
    assert_snapshot!(replayed("x.sigmf-data", samples, &[0; 1001]), @r"thalweg: source0: x.sigmf-data has 1001 bytes of data: 250 records of 4 bytes and 1 bytes left over; the recording is truncated, its records have a different size, or a header precedes them (option skip of raw files)");
}

#[test]
fn directories_that_cannot_be_written_are_named() {
    let said = changed("directory = \"runs\"", "directory = \"lab.toml/runs\"");
    assert!(said.starts_with("thalweg: record directory: lab.toml/runs (to be created in lab.toml): "), "{said}");
    let (_, why) = said.split_once("not writable: ").unwrap();
    assert_snapshot!(why, @"Not a directory: no run can be recorded: choose another `directory`");

    // Root may write everywhere but on a disk that takes no writes.
    let lab = lab();
    let at = lab.path().join("runs");
    match Disk::read_only(&at) {
        Ok(_disk) => {
            std::fs::write(lab.path().join("lab.toml"), GOOD).unwrap();
            let said = refused(lab.path(), &["run", "lab.toml"]);
            assert!(said.contains("record directory: runs: ") && said.contains("Read-only file system"), "{said}");
        }
        Err(reason) => skipped(format_args!("a read-only disk: {reason}")),
    }
}

#[test]
fn a_run_that_exists_is_not_overwritten() {
    let lab = lab();
    std::fs::write(lab.path().join("lab.toml"), GOOD.replace("events = 1", "events = 1\nnumber = 4")).unwrap();
    let first = thalweg().args(["run", "lab.toml"]).current_dir(lab.path()).output().unwrap();
    assert!(first.status.success(), "{first:?}");
    assert_snapshot!(refused(lab.path(), &["run", "lab.toml"]), @r"thalweg: runs/run-000004 already exists: choose another run number; a run of one builder without a number takes the next free one");
    assert_eq!(check_samples(&lab.path().join("runs/run-000004")).events, 1);
}

/// What `check` says, after its file's name, is what `run` says.
#[test]
fn a_check_finds_what_a_run_would_refuse() {
    let lab = lab();
    let at = |name: &str| lab.path().join(name);
    std::fs::create_dir_all(at("runs/run-000004")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let source = |key: &str| ("id = \"1.0\"".to_owned(), format!("id = \"1.0\"\n{key}"));
    let builder = |key: &str| ("listen =".to_owned(), format!("{key}\nlisten ="));
    let run = |key: &str| ("events = 1".to_owned(), key.to_owned());
    let large = GOOD.replace("listen =", "block = \"1GiB\"\nlisten =");
    let large = large.replace("\"1.0\"", "\"1.0\"\nslots = 65536\nslot = \"1000MiB\"");
    for ((from, to), named) in [
        (source("cpu = 9999"), "source0 to 9999"),
        (builder("cpu = 9999"), "builder0 to 9999"),
        (source("congestion = \"nosuch\""), "congestion control nosuch"),
        ((GOOD.to_owned(), large), "memory: "),
        (run("events = 1000000000000"), "disk space: "),
        (run("number = 4"), "run-000004 already exists"),
        (("\"runs\"".to_owned(), "\"lab.toml/runs\"".to_owned()), "lab.toml/runs"),
        (("127.0.0.1:0".to_owned(), format!("127.0.0.1:{port}")), "another program listens there"),
        (("127.0.0.1:0".to_owned(), "nobody.invalid:7400".to_owned()), "correct the name"),
    ] {
        std::fs::write(at("lab.toml"), GOOD.replacen(&from, &to, 1)).unwrap();
        let ran = refused(lab.path(), &["run", "lab.toml"]);
        let checked = refused(lab.path(), &["check", "lab.toml"]);
        assert!(checked.contains(named), "{to}: {checked}");
        // How much memory and disk there is changes meanwhile.
        let words = |said: &str| -> Vec<String> {
            said.split_whitespace().filter(|word| !word.contains(char::is_numeric)).map(str::to_owned).collect()
        };
        assert_eq!(words(&checked), words(&ran.replacen("thalweg:", "thalweg: lab.toml:", 1)), "{to}");
    }
    drop(taken);

    // What is on another host is not looked for here.
    let elsewhere = GOOD.replace("127.0.0.1:0", "192.0.2.1:7400").replace("\"runs\"", "\"lab.toml/runs\"");
    std::fs::write(at("lab.toml"), elsewhere).unwrap();
    for (arguments, code) in [
        (&["lab.toml"][..], 2),
        (&["lab.toml", "--node", "builder0"], 2),
        (&["lab.toml", "--node", "source0"], 0),
        (&["lab.toml", "--node", "nobody"], 2),
        (&["lab.toml", "--file-only"], 0),
    ] {
        let output = thalweg().arg("check").args(arguments).current_dir(lab.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    }
    let left = std::fs::read_dir(lab.path()).unwrap().flatten().map(|entry| entry.file_name());
    assert_eq!(left.collect::<std::collections::BTreeSet<_>>(), ["lab.toml".into(), "runs".into()].into());
}

#[test]
fn paths_that_nobody_could_be_told_of_are_named() {
    use std::os::unix::ffi::OsStrExt;
    let lab = lab();
    let odd = lab.path().join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(odd.join("lab.toml"), GOOD).unwrap();
    for command in ["run", "check"] {
        let output = thalweg().arg(command).arg(odd.join("lab.toml")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("run.directory: ") && said.contains(r"odd\xFF/runs") && said.contains("UTF-8"), "{said}");
    }
    let output = thalweg().args(["demo", "--duration", "1ms", "--out"]).arg(&odd).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn rates_that_no_clock_could_keep_are_named() {
    let lab = lab();
    for rate in ["1e-20", "0", "-1", "1e30", "fast"] {
        let said = refused(lab.path(), &["demo", &format!("--rate={rate}")]);
        assert!(said.contains("'--rate <HZ>'") && said.contains("from 1e-6 to 1e9"), "{said}");
    }
}

#[test]
fn an_address_that_is_taken_is_not_served_on() {
    let lab = lab();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = refused(lab.path(), &["serve", ".", "--path", "read", "--listen", &address]);
    assert!(said.contains(&format!("cannot listen on {address}: Address already in use")), "{said}");
}

#[test]
fn a_printed_topology_means_the_same_wherever_it_is_saved() {
    let lab = lab();
    std::fs::create_dir(lab.path().join("deep")).unwrap();
    std::fs::write(lab.path().join("a.pgm"), b"P5 2 1 255 ab").unwrap();
    let print = ["demo", "--input", "a.pgm", "--duration", "100ms", "--rate", "100", "--print-topology"];
    let printed = thalweg().args(print).current_dir(lab.path()).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    std::fs::write(lab.path().join("deep/saved.toml"), printed.stdout).unwrap();
    let ran = thalweg().args(["run", "deep/saved.toml"]).current_dir(lab.path()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert!(lab.path().join("runs/run-000001").is_dir());
}

#[test]
fn programs_get_the_error_as_json() {
    let lab = lab();
    let output = thalweg().args(["--json", "run", "nowhere.toml"]).current_dir(lab.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_snapshot!(said["error"].as_str().unwrap(), @r"nowhere.toml: No such file or directory (os error 2)");
}

/// What a topology over DPDK is refused for. Nothing of DPDK's is needed for that.
#[test]
fn an_adapter_that_cannot_be_is_refused_with_its_key() {
    const OVER: &str = "[[builder]]\nname = \"b\"\nlisten = [\"dpdk:10.0.0.1:7400\"]\nadapter = { device = \"0000:00:11.0\" }\n\
        [[source]]\nname = \"s\"\nid = \"1.0\"\nlink = \"dpdk\"\n\
        adapter = { device = \"0000:00:12.0\", address = \"10.0.0.2/24\" }\n\
        device = { kind = \"model-adc\", size = \"16KiB\" }\n";
    let changed = |from: &str, to: &str| {
        let lab = lab();
        assert!(OVER.contains(from));
        std::fs::write(lab.path().join("lab.toml"), OVER.replacen(from, to, 1)).unwrap();
        refused(lab.path(), &["check", "--file-only", "lab.toml"])
    };
    let builders = "adapter = { device = \"0000:00:11.0\" }";
    for (from, to, said) in [
        (builders, "", "builder 'b': adapter: with dpdk a node drives a network adapter by itself"),
        (builders, "adapter = { device = \"\" }", "builder 'b': adapter.device: \"\" is not the name"),
        (builders, "adapter = { device = \"x\", address = \"10.0.0.3/24\" }", "the builder listens at 10.0.0.1"),
        ("dpdk:10.0.0.1:7400", "tcp:127.0.0.1:7400", "builder 'b': adapter: no link of this node drives"),
        (
            "dpdk:10.0.0.1:7400",
            "dpdk:nobody:7400",
            "builder 'b': listen: dpdk:nobody:7400: write the numeric address of the adapter",
        ),
        ("dpdk:10.0.0.1:7400", "dpdk:224.0.0.1:7400", "builder 'b': listen: 224.0.0.1 is not the address of a host"),
        ("7400\"]", "7400\", \"dpdk:10.0.0.1:7401\"]", "builder 'b': listen: a node drives one adapter"),
        (", address = \"10.0.0.2/24\"", "", "source 's': adapter.address: the kernel has no address for it"),
        ("10.0.0.2/24", "10.0.0.2/33", "'10.0.0.2/33' is not the address of an adapter"),
        ("10.0.0.2/24", "10.0.0.1/24", "source 's': adapter.address: 10.0.0.1 is also the address of another node"),
        ("/24\"", "/24\", gateway = \"10.0.1.1\"", "source 's': adapter.gateway: 10.0.1.1 is not on the same network"),
        ("/24\"", "/24\", mtu = 100", "source 's': adapter.mtu: 100: it must be 576 to 65535"),
        ("/24\"", "/24\", colour = 1", "unknown field `colour`"),
        ("kind = \"model-adc\"", "kind = \"edu\", address = \"0000:00:10.0\"", "it must be 1 to 4032 bytes"),
    ] {
        let refusal = changed(from, to);
        assert!(refusal.contains(said), "{to}: {refusal}");
    }
}

#[test]
fn a_beat_that_nothing_can_keep_is_refused_with_its_key() {
    const MODEL: &str = "device = { kind = \"model-adc\", size = \"16KiB\" }";
    let beat = |device: &str, beat: &str| changed(MODEL, &format!("device = {{ {device} }}\nbeat = {{ {beat} }}"));
    const STREAM: &str = "kind = \"stream\", file = \"fifo\", record = 100";
    const CAMERA: &str = "kind = \"v4l2\", file = \"/dev/video0\"";
    const FIXED: &str = "kind = \"udp\", listen = \"udp:127.0.0.1:1\", format = \"fixed\", size = 10, header = 8, \
                         counter = { at = 0, bytes = 8 }";
    const FIFTY: &str = "period = \"20ms\", tolerance = \"5ms\"";
    for (refusal, said) in [
        (
            beat("kind = \"model-adc\", size = 100", FIFTY),
            "beat: it numbers the frames of a device that acquires by itself",
        ),
        (beat(STREAM, FIFTY), "beat: it needs timestamps, which the frames of this device do not have"),
        (beat(FIXED, FIFTY), "beat: it needs timestamps, which the frames of this device do not have"),
        (beat(CAMERA, "period = \"20ms\", tolerance = \"11ms\""), "beat.tolerance: 11ms: it must be above 0"),
        (beat(CAMERA, "period = \"0s\", tolerance = \"1ms\""), "beat.period"),
        (beat(CAMERA, "period = \"20ms\""), "missing field `tolerance`"),
    ] {
        assert!(refusal.contains(said), "{refusal}");
    }
}
