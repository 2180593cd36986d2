//! A damaged run, as `ls`, `info`, `cat`, `verify` and `salvage` tell of it: each the same, and each damage once.

use crate::common::{Printed, thalweg};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What becomes of a `run.json`.
type Change = fn(&mut Value);

/// A run in several segments, `runs/run-000001`.
struct Recorded {
    directory: TempDir,
    events: u64,
}

impl Recorded {
    fn new() -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let demo = "demo --size 16KiB --rate 500 --out runs --print-topology";
        let mut topology: toml::Table = say(&directory, demo).out.parse().unwrap();
        let run = topology["run"].as_table_mut().unwrap();
        run.remove("duration");
        run.insert("events".into(), 200.into());
        let builder = topology["builder"][0].as_table_mut().unwrap();
        builder.insert("deadline".into(), "60s".into());
        builder.insert("block".into(), "1MiB".into());
        builder.insert("segment".into(), "2MiB".into());
        std::fs::write(directory.path().join("demo.toml"), topology.to_string()).unwrap();
        let report = say(&directory, "run demo.toml --json");
        assert_eq!(report.code, 0, "{report:?}");
        let events = report.json()["events"]["built"].as_u64().unwrap();
        let recorded = Self { directory, events };
        assert!(recorded.segments() > 3, "{} segments", recorded.segments());
        recorded
    }

    fn say(&self, words: &str) -> Printed {
        say(&self.directory, words)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("runs/run-000001").join(name)
    }

    fn segment(&self, number: usize) -> PathBuf {
        self.path(&format!("{number:05}.seg"))
    }

    fn segments(&self) -> usize {
        (0..).take_while(|number| self.segment(*number).exists()).count()
    }

    /// Changes `run.json`, and returns what it was.
    fn rewrite(&self, change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let before = std::fs::read(self.path("run.json")).unwrap();
        let mut info = serde_json::from_slice(&before).unwrap();
        change(&mut info);
        std::fs::write(self.path("run.json"), info.to_string()).unwrap();
        before
    }

    /// That everybody tells of `problems` problems and agrees on what is left. Returns how many events that are.
    #[track_caller]
    fn is_damaged(&self, problems: u64) -> u64 {
        let verified = self.say("verify runs/run-000001 --json");
        let report = &verified.json()["directories"][0];
        assert_eq!((verified.code, &report["problem_count"]), (1, &json!(problems)), "{verified:?}");
        let (events, lost) = (report["events"].as_u64().unwrap(), report["lost_events"].as_u64().unwrap());
        assert_eq!(events + lost, self.events, "{verified:?}");

        for words in ["cat runs/run-000001 --json", "cat runs/run-000001 --json --follow"] {
            let printed = self.say(words);
            let lines = printed.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let whole = lines.filter(|line| line["error"].is_null()).count() as u64;
            assert_eq!((printed.code, whole), (1, events), "{words}: {}", printed.err);
            assert!(printed.err.contains("thalweg verify") || printed.err.contains(".seg"), "{}", printed.err);
        }
        events
    }

    /// That opening it tells of its damage, without reading it.
    #[track_caller]
    fn shows_when_opened(&self) {
        let shown = self.say("info runs/run-000001");
        assert!(shown.code == 0 && shown.out.starts_with("run 1: DAMAGED; run.json says COMPLETE\n"), "{shown:?}");
        let seen = self.say("info runs/run-000001 --json").json();
        assert_eq!(seen["directories"][0]["problems"].as_array().map(Vec::len), Some(1), "{seen}");
    }

    #[track_caller]
    fn is_listed_as_damaged(&self) {
        let listed = self.say("ls runs");
        assert!(listed.code == 0 && listed.out.contains("runs/run-000001  DAMAGED  "), "{listed:?}");
        assert!(listed.out.contains("\nDAMAGED: runs/run-000001: "), "{listed:?}");
        assert!(self.say("ls runs --json").json()["runs"][0]["damage"].is_string());
    }

    /// Salvages it, and checks that the original stays and the new run is one. Returns what was told.
    #[track_caller]
    fn salvaged(&self) -> Value {
        let files = |path: &Path| {
            let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            let content = names.map(|name| (name.clone(), std::fs::read(&name).unwrap_or_default()));
            content.collect::<std::collections::BTreeMap<_, _>>()
        };
        let before = files(&self.path(""));
        let said = self.say("salvage runs/run-000001 --json");
        assert_eq!(said.code, 0, "{said:?}");
        assert!(files(&self.path("")) == before, "the damaged run was changed");
        let salvaged = said.json()["salvaged"].clone();
        assert_eq!(salvaged["path"], "runs/salvaged/run-000001");

        let verified = self.say("verify runs/salvaged/run-000001 --json");
        let report = &verified.json()["directories"][0];
        assert_eq!((&report["consistent"], &report["verdict"]["state"]), (&json!(true), &json!("INCOMPLETE")));
        assert_eq!((verified.code, &report["events"]), (1, &salvaged["events"]), "{verified:?}");
        let printed = self.say("cat runs/salvaged/run-000001 --json");
        assert_eq!((printed.code, printed.out.lines().count() as u64), (0, salvaged["events"].as_u64().unwrap()));
        let listed = self.say("ls runs/salvaged");
        assert!(listed.out.contains("INCOMPLETE") && listed.out.contains("runs/salvaged/run-000001"), "{listed:?}");

        let again = self.say("salvage runs/run-000001");
        assert_eq!((again.code, &again.out[..]), (2, ""), "{again:?}");
        assert!(again.err.contains("runs/salvaged/run-000001 already exists"), "{again:?}");
        std::fs::remove_dir_all(self.directory.path().join("runs/salvaged")).unwrap();
        salvaged
    }
}

fn say(directory: &TempDir, words: &str) -> Printed {
    Printed::by(thalweg().args(words.split(' ')).env_remove("COLUMNS").current_dir(directory.path()))
}

fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Where a segment's footer begins: its last 16 bytes say so (docs/run-format.md).
fn footer(segment: &Path) -> u64 {
    let bytes = std::fs::read(segment).unwrap();
    u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap())
}

#[test]
fn a_bit_in_a_footer_is_one_problem_and_costs_no_event() {
    let run = Recorded::new();
    let begins = footer(&run.segment(1));
    flip(&run.segment(1), begins + 70);
    assert_eq!(run.is_damaged(1), run.events);
    run.shows_when_opened();
    let salvaged = run.salvaged();
    assert_eq!((&salvaged["events"], &salvaged["torn_events"]), (&json!(run.events), &json!(0)));
    assert_eq!(salvaged["left_behind"][0]["offset"], begins);
}

#[test]
fn junk_behind_a_footer_is_one_problem_and_costs_no_event() {
    let run = Recorded::new();
    let whole = std::fs::read(run.segment(0)).unwrap();
    let junk: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(run.segment(0), [whole, junk].concat()).unwrap();
    // Following it ends at each footer: that something stands behind one is said at the end.
    assert_eq!(run.is_damaged(1), run.events);
    run.shows_when_opened();
}

#[test]
fn a_segment_that_is_gone_is_one_problem_wherever_it_was() {
    let run = Recorded::new();
    for number in [0, 1, run.segments() - 1] {
        let kept = std::fs::read(run.segment(number)).unwrap();
        std::fs::remove_file(run.segment(number)).unwrap();
        let left = run.is_damaged(1);
        assert!(left > 0 && left < run.events, "{left} of {}", run.events);
        run.shows_when_opened();
        run.is_listed_as_damaged();
        let salvaged = run.salvaged();
        let number_of = |key: &str| salvaged[key].as_u64().unwrap();
        let (events, not_whole) = (number_of("events"), number_of("torn_events") + number_of("unclosed_events"));
        assert_eq!(
            (events - not_whole, &salvaged["left_behind"][0]["file"]),
            (left, &json!(format!("{number:05}.seg")))
        );
        assert_eq!(events + number_of("lost_events"), run.events);
        std::fs::write(run.segment(number), kept).unwrap();
    }
    assert_eq!(run.say("verify runs/run-000001").code, 0);
}

#[test]
fn a_bad_block_is_one_problem_and_takes_its_own_events() {
    let run = Recorded::new();
    // In a payload, and in the block's own header.
    for at in [1000, 20] {
        flip(&run.segment(1), at);
        let left = run.is_damaged(1);
        assert!(left > run.events / 2 && left < run.events, "{left} of {}", run.events);
        let salvaged = run.salvaged();
        assert_eq!(salvaged["lost_blocks"], 1);
        let of_all = 3 * run.events - salvaged["fragments"].as_u64().unwrap();
        assert_eq!(salvaged["lost_fragments"], of_all, "{salvaged}");
        flip(&run.segment(1), at);
    }
}

#[test]
fn a_cut_segment_and_a_writer_that_died_are_salvaged() {
    let run = Recorded::new();
    let file = std::fs::File::options().write(true).open(run.segment(1)).unwrap();
    file.set_len(5000).unwrap();
    run.is_damaged(1);
    run.shows_when_opened();
    run.salvaged();
    run.rewrite(|info| {
        info["state"] = json!("OPEN");
        info["ended"] = Value::Null;
    });
    // What lies behind the gap counts for nobody but salvage.
    let verified = run.say("verify runs/run-000001 --json").json();
    let salvaged = run.salvaged();
    assert!(salvaged["events"].as_u64() > verified["directories"][0]["events"].as_u64(), "{salvaged}");
    assert_eq!(salvaged["lost_fragments"], Value::Null);
}

#[test]
fn what_needs_no_salvage_is_left_alone() {
    let run = Recorded::new();
    let said = run.say("salvage runs/run-000001");
    assert_eq!((said.code, &said.err[..]), (0, ""));
    assert!(said.out.contains("runs/run-000001: intact, and needs no salvage"), "{said:?}");
    assert!(!run.directory.path().join("runs/salvaged").exists());
    assert_eq!(run.say("salvage runs/run-000001 --json").json()["salvaged"], Value::Null);

    std::fs::remove_file(run.segment(0)).unwrap();
    std::fs::create_dir(run.directory.path().join("there")).unwrap();
    for (words, why) in [
        ("salvage runs/run-000001 --to there", "there already exists"),
        ("salvage runs", "`thalweg ls runs` lists them"),
        ("salvage nowhere", "no such directory"),
    ] {
        let said = run.say(words);
        assert_eq!((said.code, &said.out[..]), (2, ""), "{said:?}");
        assert!(said.err.contains(why), "{said:?}");
    }
    let said = run.say("salvage runs/run-000001/run.json --to new/run");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("lost: ") && said.out.contains("00000.seg: "), "{said:?}");
    assert!(run.directory.path().join("new/run/run.json").exists());
    assert_eq!(std::fs::read_dir(run.directory.path().join("new")).unwrap().count(), 1);
}

#[test]
fn a_pipe_among_the_files_keeps_nobody_waiting() {
    let run = Recorded::new();
    let pipe = |name: &Path| {
        std::fs::remove_file(name).unwrap();
        rustix::fs::mknodat(CWD, name, FileType::Fifo, Mode::from_bits_retain(0o644), 0).unwrap();
    };
    // Whoever waits is killed, with another exit code.
    let patiently = |words: &str| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_thalweg")]).args(words.split(' '));
        Printed::by(command.current_dir(run.directory.path()))
    };
    pipe(&run.segment(1));
    for (words, code) in [
        ("verify runs/run-000001", 1),
        ("info runs/run-000001", 0),
        ("cat runs/run-000001", 1),
        ("cat runs/run-000001 --follow", 1),
        ("ls runs", 0),
        ("salvage runs/run-000001", 0),
    ] {
        let said = patiently(words);
        assert_eq!(said.code, code, "{words}: {}", said.err);
    }
    std::fs::remove_dir_all(run.directory.path().join("runs/salvaged")).unwrap();
    pipe(&run.path("run.json"));
    for words in ["verify runs/run-000001", "info runs/run-000001", "cat runs/run-000001", "salvage runs/run-000001"] {
        let said = patiently(words);
        assert!(said.code == 1 && format!("{}{}", said.out, said.err).contains("is not a file"), "{said:?}");
    }
    assert!(patiently("ls runs").out.contains("BROKEN"));
}

#[test]
fn a_run_json_that_cannot_be_is_named() {
    let run = Recorded::new();
    let cases: [(&str, Change); 5] = [
        ("'builders' is 0", |info| info["builders"] = 0.into()),
        ("belongs to builder 1", |info| info["builders"] = 2.into()),
        ("source 1.1 appears twice", |info| info["sources"][0]["id"] = "1.1".into()),
        ("'channels' of source 1.0 is 0", |info| info["sources"][0]["description"]["channels"] = 0.into()),
        ("control characters", |info| info["sources"][0]["name"] = "\u{1b}[2J".into()),
    ];
    for (problem, change) in cases {
        let before = run.rewrite(change);
        for (words, code) in [("verify runs/run-000001", 1), ("info runs/run-000001", 0)] {
            let said = run.say(words);
            let text = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.code == code && text.contains("DAMAGED") && text.contains(problem), "{problem}: {said:?}");
        }
        assert_eq!(run.say("cat runs/run-000001").code, 1);
        std::fs::write(run.path("run.json"), before).unwrap();
    }
}

#[test]
fn nothing_in_a_run_json_moves_the_cursor() {
    let run = Recorded::new();
    let evil = "\u{1b}[2J\u{9b}31m\u{7}\u{7f}";
    let changes: [fn(&mut Value, &str); 6] = [
        |info, evil| info["sources"][0]["name"] = evil.into(),
        |info, evil| info["reasons"] = json!([evil]),
        |info, evil| info["format"] = evil.into(),
        |info, evil| info["state"] = evil.into(),
        |info, evil| info["ledger"][0]["name"] = evil.into(),
        |info, evil| info["writer"]["host"] = evil.into(),
    ];
    for change in changes {
        let before = run.rewrite(|info| change(info, evil));
        for words in ["ls runs", "info RUN", "verify RUN", "cat RUN --event 0", "cat RUN --source 9.9", "salvage RUN"] {
            for more in ["", " --json"] {
                let said = run.say(&format!("{words}{more}").replace("RUN", "runs/run-000001"));
                let heard = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
                assert!(!heard(&said.out) && !heard(&said.err), "{words}{more}: {said:?}");
            }
        }
        let _ = std::fs::remove_dir_all(run.directory.path().join("runs/salvaged"));
        std::fs::write(run.path("run.json"), before).unwrap();
    }
}

#[test]
fn a_source_is_known_by_its_name_too() {
    let run = Recorded::new();
    let by_id = run.say("cat runs/run-000001 --event 3 --source 1.0,1.2 --json");
    let by_name = run.say("cat runs/run-000001 --event 3 --source model-adc-0,model-adc-2 --json");
    assert_eq!((by_name.code, &by_name.out), (0, &by_id.out));
    assert_eq!(by_name.json()["fragments"].as_array().map(Vec::len), Some(2));
    // A file that is in no run is no run, and neither is its directory.
    let said = run.say("verify demo.toml");
    assert_eq!((said.code, &said.out[..]), (2, ""));
    assert!(said.err.contains("demo.toml is a file in a directory that is not a run"), "{said:?}");
}
