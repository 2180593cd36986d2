//! Options of one run, and the words that are kept with it: from the command line to what reads runs.

use crate::common::*;
use serde_json::Value;

const TWO_SOURCES: &str = r#"
[run]
comment = "as in the file"
metadata = { sample = "none", at = 2026-11-29T03:04:05Z }

[[builder]]
name = "builder0"
listen = ["tcp:127.0.0.1:0"]
deadline = "60s"

[[source]]
name = "adc-0"
id = "1.0"
device = { kind = "model-adc", size = "1KiB" }

[[source]]
name = "adc-1"
id = "1.1"
device = { kind = "model-adc", size = "1KiB" }
"#;

/// Output of the program in a directory, after it has succeeded.
#[track_caller]
fn printed(directory: &tempfile::TempDir, arguments: &[&str]) -> String {
    let output = thalweg().args(arguments).current_dir(directory.path()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_is_changed_by_options_and_keeps_its_words() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(lab.path().join("two.toml"), TWO_SOURCES).unwrap();
    let options = ["--events", "40", "--number", "7", "--out", "elsewhere", "--comment", "dark <frames>"];
    let settings = [
        "source.adc-0.slots=8",
        "source.1.device.size=2KiB",
        "run.metadata.sample=LaB6",
        "run.metadata.counts=9223372036854775807",
        "run.metadata.\"beam line\".open=true",
    ];
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let words: Vec<&str> = ["--json", "run", "two.toml"].into_iter().chain(options).chain(set).collect();
    let report: Value = serde_json::from_str(&printed(&lab, &words)).unwrap();
    assert_eq!((&report["run"], &report["events"]["built"]), (&7.into(), &40.into()), "{report:#}");
    let verdict = &report["verdict"];
    // A wait at the end of the run, which a busy machine makes long, lowers only the goodput.
    let rate = |of: &Value, name: &str| of[name].as_f64().unwrap();
    assert!(rate(verdict, "carried_bits_per_second") >= rate(&report, "goodput_bits_per_second"), "{report:#}");
    assert!(verdict["limit"]["kind"].is_string() && verdict["sentence"].as_str().unwrap().contains("carried "));

    let run = std::fs::read_to_string(lab.path().join("elsewhere/run-000007/run.json")).unwrap();
    let run: Value = serde_json::from_str(&run).unwrap();
    assert_eq!(run["comment"], "dark <frames>");
    let metadata = serde_json::json!({
        "sample": "LaB6", "at": "2026-11-29T03:04:05Z", "counts": i64::MAX, "beam line": { "open": true },
    });
    assert_eq!(run["metadata"], metadata);
    let topology = &run["configuration"];
    assert_eq!((&topology["source"][0]["slots"], &topology["source"][1]["slots"]), (&8.into(), &16.into()));
    assert_eq!(topology["source"][1]["device"]["size"], 2048);
    let time = &run["time_use"][0];
    assert_eq!(time["builder"], "builder0");
    assert!(time["working"].as_f64().unwrap() > 0.0, "{time:#}");

    for arguments in [&["info", "elsewhere/run-000007"][..], &["ls", "-l", "elsewhere"]] {
        let text = printed(&lab, arguments);
        for words in ["dark <frames>", "sample = LaB6", "counts = 9223372036854775807", "beam line = {\"open\":true}"] {
            assert!(text.contains(words), "{arguments:?}: {text}");
        }
    }
    assert!(!printed(&lab, &["ls", "elsewhere"]).contains("LaB6"));
    // What the demo takes, too.
    printed(&lab, &["demo", "--sources", "1", "--size", "1KiB", "--duration", "100ms", "--comment", "a demo"]);
    assert!(printed(&lab, &["ls", "-l"]).contains("a demo"));
}

#[test]
fn builders_that_record_one_run_keep_the_same_words() {
    let plan = Plan { builders: 2, run: "events = 20\ncomment = \"of two\"\nmetadata.sample = \"LaB6\"", ..PLAN };
    let system = System::new(&plan);
    assert_eq!(system.run().finish().report(0)["state"], "COMPLETE");
    let info = thalweg().args(["info", "--json", "runs/run-000001"]).current_dir(system.path("")).output().unwrap();
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    for directory in info["directories"].as_array().unwrap() {
        assert_eq!(
            (&directory["info"]["comment"], &directory["info"]["metadata"]["sample"]),
            (&"of two".into(), &"LaB6".into())
        );
    }
    assert!(info["runs"][0]["verdict"]["sentence"].is_string(), "{info:#}");
}

#[test]
fn what_is_given_to_a_node_that_it_has_no_effect_on_is_refused() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(lab.path().join("two.toml"), TWO_SOURCES.replace(":0\"", ":7400\"")).unwrap();
    for (option, word) in [("--duration", "5s"), ("--out", "here"), ("--comment", "words")] {
        let arguments = ["node", "adc-0", "two.toml", option, word];
        let output = thalweg().args(arguments).current_dir(lab.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.starts_with(&format!("thalweg: {option}: ")), "{text}");
    }
}

#[test]
fn words_on_a_run_that_is_not_recorded_are_refused() {
    let lab = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(lab.path().join("two.toml"), TWO_SOURCES).unwrap();
    for (option, words) in
        [("--comment", &["--comment", "dark frames"]), ("--set", &["--set", "run.metadata.sample=none"])]
    {
        for command in [&["run", "two.toml", "--no-record"][..], &["run", "two.toml", "--set", "run.record=false"]] {
            let output = thalweg().args(command).args(words).current_dir(lab.path()).output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && text.starts_with(&format!("thalweg: {option}")), "{text}");
            assert!(text.contains("the run is not recorded: leave it out"), "{text}");
        }
    }
    let demo = thalweg().args(["demo", "--no-record", "--comment", "dark frames"]).output().unwrap();
    assert_eq!(demo.status.code(), Some(2), "{demo:?}");
}

#[test]
fn a_source_without_a_builder_reports_at_once_what_is_in_its_way() {
    // The builder's port is reserved, and nothing listens on it.
    let system = System::new(&Plan { run: "timeout = \"2s\"", ..PLAN });
    let address = system.tcp();
    let output = thalweg().args(["node", "source0"]).arg(system.path("topology.toml")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains(" WARN ")).collect();
    let expected =
        format!("WARN source source0: tcp:{address} refused the connection: no builder listens there; trying");
    assert!(warnings.len() == 1 && warnings[0].contains(&expected) && warnings[0].ends_with(" UTC (2s)"), "{text}");
    assert!(text.contains(&format!("no builder at tcp:{address} for 2s")), "{text}");
}
