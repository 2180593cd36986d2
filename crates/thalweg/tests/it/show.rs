//! What a user meets after a run: `ls`, `info`, `verify` and `cat` on real runs, whole and damaged.

use crate::common::{Printed, demo_topology, record_events};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use thalweg_testing::wait::wait_until;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.env_remove("COLUMNS").env_remove("THALWEG_LOG");
    command
}

fn thalweg(directory: &TempDir, words: &str) -> Printed {
    Printed::by(command().args(words.split(' ')).current_dir(directory.path()))
}

/// A directory with a run of so many bytes in each fragment: 3 sources, 150 events, in `runs/run-000001`.
fn a_run(size: &str) -> (TempDir, Value) {
    let directory = tempfile::tempdir().unwrap();
    let report = record_events(&directory.path().join("runs"), &["--size", size, "--rate", "500"], 150);
    (directory, report)
}

/// Changes a run's `run.json`, as its writer might have left it.
fn rewrite(directory: &TempDir, run: &str, change: impl FnOnce(&mut Value)) {
    let path = directory.path().join(run).join("run.json");
    let mut info = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut info);
    std::fs::write(path, info.to_string()).unwrap();
}

fn segment(directory: &TempDir) -> PathBuf {
    directory.path().join("runs/run-000001/00000.seg")
}

/// Where the blocks of a segment begin: each says how long it is (docs/run-format.md).
fn blocks(segment: &Path) -> Vec<usize> {
    let bytes = std::fs::read(segment).unwrap();
    let mut blocks = Vec::new();
    let mut at = 0;
    while at < bytes.len() && bytes[at + 6] == 1 {
        blocks.push(at);
        at += u32::from_le_bytes(bytes[at + 24..at + 28].try_into().unwrap()) as usize;
    }
    blocks
}

#[test]
fn a_run_is_listed_described_verified_and_printed() {
    let (directory, report) = a_run("4KiB");
    let events = report["events"]["built"].as_u64().unwrap();
    assert!(events > 0);

    let said = thalweg(&directory, "ls --json");
    let listed = &said.json()["runs"];
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{said:?}");
    assert_eq!(listed[0]["path"], "runs/run-000001");
    assert_eq!((&listed[0]["state"], &listed[0]["events"]), (&json!("COMPLETE"), &json!(events)));
    let said = thalweg(&directory, "ls runs");
    let row: Vec<&str> = said.out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[row.len() - 1]), ("runs/run-000001", "COMPLETE", "MB"), "{said:?}");

    let said = thalweg(&directory, "info runs/run-000001 --json");
    let seen = &said.json()["directories"][0];
    assert_eq!(seen["info"]["ledger"][2]["recorded"], events, "{said:?}");
    assert_eq!(seen["events"], json!({ "built": events, "incomplete": 0 }));
    assert_eq!(seen["recovery"], Value::Null);
    let said = thalweg(&directory, "info runs/run-000001");
    assert!(said.out.starts_with("run 1: COMPLETE\n"), "{said:?}");
    assert!(said.out.contains("  1.0 model-adc-0 to 1.2 model-adc-2, 3 alike: model-adc, "), "{said:?}");

    let said = thalweg(&directory, "verify runs/run-000001");
    assert_eq!((said.code, &said.err[..]), (0, ""), "{said:?}");
    assert!(said.out.starts_with("runs/run-000001: COMPLETE, intact\n"), "{said:?}");
    let said = thalweg(&directory, "verify runs/run-000001/run.json --json");
    assert_eq!((said.code, &said.json()["ok"]), (0, &json!(true)), "{said:?}");
    assert_eq!(said.json()["directories"][0]["fragments"], 3 * events);

    let said = thalweg(&directory, "cat runs/run-000001 --json");
    assert_eq!(said.out.lines().count() as u64, events);
    let first: Value = serde_json::from_str(said.out.lines().next().unwrap()).unwrap();
    assert_eq!((&first["event"], &first["complete"]), (&json!(0), &json!(true)));
    assert_eq!(first["fragments"][2]["status"], json!(["simulated"]));
    assert_eq!(first["fragments"][2]["length"], 4096);
}

#[test]
fn cat_picks_events_sources_and_values() {
    let (directory, _) = a_run("4KiB");
    let said = thalweg(&directory, "cat runs/run-000001 --event 3..5 --source 1.0,1.2 --data 2");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = said.out.lines().map(words).collect();
    assert_eq!(lines.len(), 10, "{said:?}");
    assert_eq!((&lines[0][..], &lines[5][..]), (&words("event 3")[..], &words("event 4")[..]));
    assert_eq!((&lines[1][0][..], &lines[3][0][..]), ("1.0", "1.2"));
    assert_eq!((&lines[1][1][..], &lines[1][3..]), ("#3", &words("TAI 4 KiB samples-i16 simulated")[..]));
    assert_eq!(lines[2][2..], words("... 2,046 samples more"));

    // The payload itself begins with the samples that were printed.
    let raw = command()
        .args(["cat", "runs/run-000001", "--event", "3", "--source", "1.0", "--raw"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(raw.stdout.len(), 4096);
    let sample = |at: usize| i16::from_le_bytes([raw.stdout[at], raw.stdout[at + 1]]).to_string();
    assert_eq!(lines[2][..2], [sample(0), sample(2)]);
}

#[test]
fn one_flipped_bit_is_found_and_named() {
    let (directory, report) = a_run("64KiB");
    let path = segment(&directory);
    let second = blocks(&path)[1];
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[second + 1000] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let said = thalweg(&directory, "verify runs/run-000001 --json");
    let verified = said.json();
    let problem = &verified["directories"][0]["problems"][0];
    assert_eq!((said.code, &verified["ok"]), (1, &json!(false)), "{said:?}");
    assert_eq!((&problem["file"], &problem["offset"]), (&json!("00000.seg"), &json!(second)));
    let said = thalweg(&directory, "verify runs/run-000001");
    assert!(said.out.starts_with("runs/run-000001: DAMAGED, "), "{said:?}");
    assert!(said.out.contains(&format!("00000.seg at byte {second}: block 1: ")), "{said:?}");

    // Everything else can still be read, and what cannot is not passed over in silence.
    let said = thalweg(&directory, "cat runs/run-000001 --json");
    let lines: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let damaged = lines.iter().filter(|line| line["error"].is_string()).count();
    assert_eq!(lines.len(), report["events"]["built"]);
    assert!(damaged > 0 && damaged < lines.len(), "{damaged} of {}", lines.len());
    assert_eq!(said.code, 1);
    // One block is damaged: however many events lie in it, that is one thing to say.
    let unread: Vec<&str> = said.err.lines().filter(|line| line.contains("cannot be read")).collect();
    assert_eq!(unread.len(), 1, "{said:?}");
    assert!(unread[0].starts_with(&format!("thalweg: {damaged} events, ")), "{said:?}");
    let said = thalweg(&directory, "verify runs/run-000001");
    assert!(said.out.contains(", 1 problem;"), "{said:?}");
    let words = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let lost = format!("lost: 1 block, and with them {damaged} events (");
    assert!(words.contains(&lost), "{said:?}");
    // An event may have its fragments in several blocks.
    let kept = verified["directories"][0]["fragments"].as_u64().unwrap();
    let lost = 3 * lines.len() as u64 - kept;
    assert!(words.contains(&format!(") and {lost} fragments")), "{said:?}");
}

#[test]
fn a_run_whose_writer_died_is_recovered_to_its_last_whole_block() {
    let (directory, report) = a_run("64KiB");
    let path = segment(&directory);
    let blocks = blocks(&path);
    let last = blocks[blocks.len() - 1];
    std::fs::File::options().write(true).open(&path).unwrap().set_len(last as u64 + 5000).unwrap();

    // The file was cut off after the run had ended: that is damage.
    let said = thalweg(&directory, "verify runs/run-000001");
    assert_eq!(said.code, 1);
    assert!(said.out.starts_with("runs/run-000001: DAMAGED, "), "{said:?}");
    assert!(said.out.contains(&format!("00000.seg at byte {last}: ")), "{said:?}");

    // Its writer died while it wrote: that is what recovery is for.
    rewrite(&directory, "runs/run-000001", |info| {
        info["state"] = json!("OPEN");
        info["ended"] = Value::Null;
    });
    let said = thalweg(&directory, "verify runs/run-000001");
    let recovered = format!("runs/run-000001: OPEN, its writer died; recovered to block {}\n", blocks.len() - 1);
    assert!(said.out.starts_with(&recovered), "{said:?}");
    assert_eq!(said.code, 1);
    let said = thalweg(&directory, "ls");
    assert!(said.out.contains("OPEN, died"), "{said:?}");
    let said = thalweg(&directory, "info runs/run-000001");
    assert!(said.out.starts_with("run 1: OPEN, its writer died\n"), "{said:?}");

    let built = report["events"]["built"].as_u64().unwrap();
    for words in ["cat runs/run-000001 --json", "cat runs/run-000001 --json --follow"] {
        let said = thalweg(&directory, words);
        let events = said.out.lines().count() as u64;
        assert!(events > 0 && events < built, "{events} of {built}");
        assert!(said.err.contains("its writer died"), "{said:?}");
        assert_eq!(said.code, 0);
    }
}

#[test]
fn intact_is_not_yet_complete() {
    let (directory, _) = a_run("4KiB");
    rewrite(&directory, "runs/run-000001", |info| {
        info["state"] = json!("INCOMPLETE");
        info["reasons"] = json!(["source 1.1 (model-adc-1) sent no final counters: it died, hung or was disconnected"]);
    });
    let said = thalweg(&directory, "verify runs/run-000001");
    assert_eq!(said.code, 1);
    let begin =
        "runs/run-000001: intact, but the run is INCOMPLETE:\n  because: source 1.1 (model-adc-1) sent no final";
    assert!(said.out.starts_with(begin), "{said:?}");
    assert_eq!(thalweg(&directory, "verify runs/run-000001 --json").json()["directories"][0]["consistent"], true);
}

#[test]
fn one_broken_run_does_not_hide_the_others() {
    let (directory, _) = a_run("4KiB");
    let broken = directory.path().join("runs/run-000002");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("run.json"), "{").unwrap();
    let said = thalweg(&directory, "ls");
    assert_eq!(said.code, 0);
    assert!(
        said.out.contains("runs/run-000001  COMPLETE") && said.out.contains("\nBROKEN: runs/run-000002/run.json: "),
        "{said:?}"
    );
    assert!(thalweg(&directory, "ls --json").json()["runs"][1]["error"].is_string());
    let said = thalweg(&directory, "verify runs/run-000002 runs/run-000001");
    assert_eq!(said.code, 1);
    assert!(said.out.contains("runs/run-000002: DAMAGED: "), "{said:?}");
    assert!(said.out.contains("runs/run-000001: COMPLETE, intact\n"), "{said:?}");
    assert_eq!(thalweg(&directory, "info runs/run-000002").code, 1);
}

#[test]
fn builders_of_one_run_are_judged_together() {
    let directory = tempfile::tempdir().unwrap();
    let mut topology = demo_topology(&directory.path().join("runs"), &["--size", "4KiB", "--rate", "500"], 50);
    let builders = topology["builder"].as_array_mut().unwrap();
    let mut second = builders[0].clone();
    second["name"] = "builder-1".into();
    builders.push(second);
    topology["run"].as_table_mut().unwrap().insert("number".into(), 1.into());
    std::fs::write(directory.path().join("two.toml"), topology.to_string()).unwrap();
    let said = thalweg(&directory, "run two.toml --json");
    assert_eq!(said.code, 0, "{said:?}");
    let built = said.json()["events"]["built"].clone();

    let said = thalweg(&directory, "verify runs/run-000001 --json");
    let sum = &said.json()["runs"][0];
    assert_eq!((said.code, &sum["ok"], &sum["present"]), (0, &json!(true), &json!([0, 1])), "{said:?}");
    assert_eq!((&sum["events"]["built"], &sum["ledger"]["sources"][0]["recorded"]), (&built, &built));
    let said = thalweg(&directory, "verify runs/run-000001-b1 runs/run-000001-b0");
    assert!(said.out.contains("\nrun 1, all 2 builders together: COMPLETE, intact\n"), "{said:?}");
    let said = thalweg(&directory, "info runs/run-000001 --json");
    assert_eq!(said.json()["runs"][0]["events"]["built"], built);

    // One builder alone is looked at by itself.
    let said = thalweg(&directory, "info runs/run-000001-b1");
    assert!(said.out.starts_with("run 1, builder 1 of 2: COMPLETE\n"), "{said:?}");
    let said = thalweg(&directory, "cat runs/run-000001-b1 --event 2");
    assert!(said.refused().contains("of builder 1 of 2"), "{said:?}");
    let said = thalweg(&directory, "cat runs/run-000001 --event 4..8");
    let events: Vec<&str> = said.out.lines().filter(|line| line.starts_with("event ")).collect();
    assert_eq!(events, ["event 4", "event 5", "event 6", "event 7"], "{said:?}");
    let said = thalweg(&directory, "ls runs --json").json();
    assert_eq!((said["runs"].as_array().unwrap().len(), &said["runs"][0]["events"]), (1, &built), "{said}");
    assert_eq!((&said["runs"][0]["path"], &said["runs"][0]["builders"]), (&json!("runs/run-000001"), &json!(2)));
    assert!(thalweg(&directory, "salvage runs/run-000001").out.contains("run-000001-b1: intact, and needs no salvage"));

    // A builder whose directory is lost is missed as soon as the whole run is meant.
    std::fs::remove_dir_all(directory.path().join("runs/run-000001-b1")).unwrap();
    assert_eq!(thalweg(&directory, "verify runs/run-000001-b0").code, 0);
    let said = thalweg(&directory, "verify runs/run-000001");
    assert!(said.out.contains("\nrun 1, only builder 0 of 2: INCOMPLETE, intact\n"), "{said:?}");
    assert_eq!(said.code, 1);
    let said = thalweg(&directory, "cat runs/run-000001 --json");
    assert!(said.err.contains("the data of builder 1 of 2 is missing"), "{said:?}");
    let said = thalweg(&directory, "ls runs --json").json();
    assert_eq!(said["runs"][0]["state"], "INCOMPLETE");
    // Its number is not free for a run of another count of builders.
    topology["builder"].as_array_mut().unwrap().pop();
    std::fs::write(directory.path().join("one.toml"), topology.to_string()).unwrap();
    let said = thalweg(&directory, "run one.toml");
    assert!(said.err.contains("runs/run-000001-b0 already exists"), "{said:?}");
}

#[test]
fn following_ends_with_the_run_and_misses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let topology = demo_topology(&directory.path().join("runs"), &["--size", "4KiB", "--rate", "500"], 150);
    std::fs::write(directory.path().join("lab.toml"), topology.to_string()).unwrap();
    let run = ["run", "lab.toml", "--json"];
    let mut run = command().args(run).current_dir(directory.path()).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the run", || directory.path().join("runs/run-000001/run.json").exists());
    let followed = thalweg(&directory, "cat runs/run-000001 --follow --json");
    let mut report = String::new();
    run.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(run.wait().unwrap().success());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((followed.code, &followed.err[..]), (0, ""));
    assert_eq!(followed.out.lines().count(), report["events"]["built"]);
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let (directory, _) = a_run("4KiB");
    let mut cat = command()
        .args(["cat", "runs/run-000001", "--data", "1000"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(cat.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "event 0\n");
    let ended = cat.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr), (Some(0), Vec::new()));
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let (directory, _) = a_run("4KiB");
    let topology = Command::new(env!("CARGO_BIN_EXE_thalweg")).args(["demo", "--print-topology"]).output().unwrap();
    std::fs::write(directory.path().join("demo.toml"), topology.stdout).unwrap();
    for arguments in [
        &["ls"][..],
        &["info", "runs/run-000001"],
        &["demo", "--print-topology"],
        &["check", "--file-only", "demo.toml"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = command().args(arguments).current_dir(directory.path()).stdout(full).output().unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("writing to standard output: No space left"), "{arguments:?}: {text}");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let (directory, _) = a_run("4KiB");
    for words in
        ["info nowhere", "verify nowhere", "cat nowhere", "cat nowhere --follow", "verify runs/run-000001 nowhere"]
    {
        let said = thalweg(&directory, words);
        assert!(said.refused().contains("nowhere: no such directory; `thalweg ls DIR`"), "{said:?}");
    }
    for words in ["info runs", "verify runs", "cat runs"] {
        let said = thalweg(&directory, words);
        assert!(said.refused().contains("`thalweg ls runs` lists them"), "{said:?}");
    }
    for (words, hint) in [
        ("ls nowhere", "nowhere: no such directory"),
        ("ls runs/run-000001", "`thalweg info runs/run-000001` shows it"),
        ("cat runs/run-000001 --event 999999", "it has"),
        ("cat runs/run-000001 --event 5..5", "contains no events"),
        ("cat runs/run-000001 --event five", "is neither an event number such as 7 nor a range"),
        ("cat runs/run-000001 --source 9.9", "has no source 9.9; it has 1.0, 1.1, 1.2"),
        ("cat runs/run-000001 --source nine", "has no source nine; it has 1.0, 1.1, 1.2 (model-adc-0, model-adc-1, "),
        ("cat runs/run-000001 --raw --data 5", "cannot be used with"),
    ] {
        let said = thalweg(&directory, words);
        assert!(said.refused().contains(hint), "{said:?}");
    }
    let said = thalweg(&directory, "info nowhere --json");
    assert!(said.json()["error"].as_str().unwrap().contains("no such directory"), "{said:?}");
    assert_eq!(said.code, 2);
}

#[test]
fn help_says_what_a_command_is_for_and_how_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let help = |command: &str| thalweg(&directory, &format!("{command} --help")).out;
    insta::assert_snapshot!(help("ls"), @"
    List the runs in a directory

    Usage: thalweg ls [OPTIONS] [DIR]

    Arguments:
      [DIR]  Directory that contains the runs [default: runs]

    Options:
      -l, --long          Show the comment and the metadata of each run, too
          --json          Print one JSON object as the last line of standard output,
                          instead of text for people
      -v, --verbose...    Log more on standard error; twice for everything
      -q, --quiet         Print errors only on standard error: no progress, no
                          warnings
          --color <WHEN>  Controls when to use color [default: auto] [possible
                          values: auto, always, never]
      -h, --help          Print help

    An OPEN run is being written (live), or its writer died: the state shows which,
    if the file system can tell. Values that are not known before its end are shown
    as '-', and its bytes include reserved space. The number in brackets after the
    events is that of the incomplete ones. The data of several builders are one run.
    A run that cannot be read is listed as BROKEN, and one whose files do not agree
    with its run.json as DAMAGED, with the reason below; `thalweg verify` examines
    them.

    Exit code: 0; 2 if the directory does not exist.
    ");
    insta::assert_snapshot!(help("info"), @"
    Show a run: its sources, how it ended, and the ledger of all fragments

    Usage: thalweg info [OPTIONS] <RUN>...

    Arguments:
      <RUN>...  A run's directory, such as runs/run-000042

    Options:
          --times <FILE>  Write a page with each source's times against another's:
                          offset, drift, steps. Of one run
          --json          Print one JSON object as the last line of standard output,
                          instead of text for people
      -v, --verbose...    Log more on standard error; twice for everything
      -q, --quiet         Print errors only on standard error: no progress, no
                          warnings
          --color <WHEN>  Controls when to use color [default: auto] [possible
                          values: auto, always, never]
      -h, --help          Print help

    A run of several builders has one directory per builder: run-000042-b0,
    run-000042-b1, and so on. Name several of them, or run-000042 for all, to see
    the sums of their events and ledgers as well.

    Exit code: 0; 1 if a run cannot be read; 2 if a run does not exist.
    ");
    insta::assert_snapshot!(help("verify"), @"
    Read a whole run and check it for damage

    Usage: thalweg verify [OPTIONS] <RUN>...

    Arguments:
      <RUN>...  A run's directory, such as runs/run-000042

    Options:
          --json          Print one JSON object as the last line of standard output,
                          instead of text for people
      -v, --verbose...    Log more on standard error; twice for everything
      -q, --quiet         Print errors only on standard error: no progress, no
                          warnings
          --color <WHEN>  Controls when to use color [default: auto] [possible
                          values: auto, always, never]
      -h, --help          Print help

    Checks the CRC of every block and payload, that each closed event has one record
    for each source, and that run.json agrees with the files.

    A run of several builders has one directory per builder: run-000042-b0,
    run-000042-b1, and so on. Name several of them, or run-000042 for all, to verify
    them together as well.

    Exit code: 0 if everything is intact and the run is COMPLETE; 1 if something is
    damaged or missing, or if the data on disk are intact but the run is INCOMPLETE
    or OPEN; 2 if the run does not exist.
    ");
    insta::assert_snapshot!(help("salvage"), @"
    Copy the intact data of a damaged run into a new run

    Usage: thalweg salvage [OPTIONS] <RUN>

    Arguments:
      <RUN>  A run's directory, such as runs/run-000042

    Options:
          --to <DIR>      Directory of the new run [default:
                          runs/salvaged/run-000042]
          --json          Print one JSON object as the last line of standard output,
                          instead of text for people
      -v, --verbose...    Log more on standard error; twice for everything
      -q, --quiet         Print errors only on standard error: no progress, no
                          warnings
          --color <WHEN>  Controls when to use color [default: auto] [possible
                          values: auto, always, never]
      -h, --help          Print help

    Every intact record is kept: of runs with bad blocks, truncated segments, lost
    footers or missing segment files, and of runs whose writer died. An event that
    lost fragments is kept as INCOMPLETE, with the remaining ones. The new run is
    INCOMPLETE, its reasons state what was lost, and `thalweg verify` finds no
    damage in it. RUN itself is not changed. For a run of several builders, such as
    run-000042, the data of each builder are salvaged separately.

    Exit code: 0, also if RUN is intact and nothing was written; 1 if it cannot be
    read, or the new run cannot be written; 2 if the run does not exist or is being
    written, or if DIR exists.
    ");
    insta::assert_snapshot!(help("cat"), @"
    Print a run's events and fragments

    Usage: thalweg cat [OPTIONS] <RUN>

    Arguments:
      <RUN>  A run's directory, such as runs/run-000042; runs/run-000042-b1 has the
             data of one of several builders

    Options:
          --event <E|A..B>   Only this event, or those from A up to but not
                             including B; A or B can be omitted
          --source <SOURCE>  Only fragments of this source, by name or id such as
                             1.0; separate several by commas
          --data <N>         Also the first N values of each payload: samples,
                             pixels, or bytes in hexadecimal
          --raw              Only the payloads, as raw bytes one after the other
          --follow           Follow a run while it is being written, in the order in
                             which events are closed, until it ends
          --json             Print one JSON object as the last line of standard
                             output, instead of text for people
      -v, --verbose...       Log more on standard error; twice for everything
      -q, --quiet            Print errors only on standard error: no progress, no
                             warnings
          --color <WHEN>     Controls when to use color [default: auto] [possible
                             values: auto, always, never]
      -h, --help             Print help

    Prints one line per event, then one per fragment: source, sequence number,
    timestamp (TAI; 'no time' if the device or recording has none), size and type of
    the payload, and status. With --json, each event is one JSON object on one line.

    Examples:
      thalweg cat runs/run-000042 --event 7 --data 16
      thalweg cat runs/run-000042 --event 7 --source 1.0 --raw > payload.bin
      thalweg cat runs/run-000042 --follow --json | my-monitor

    Exit code: 0, also if the reader of a pipe closes it; 1 if something cannot be
    read; 2 if the run, event or source does not exist.
    ");
}
