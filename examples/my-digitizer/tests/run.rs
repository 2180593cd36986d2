//! The laboratory's own program: its kind of device is in all commands, and a run of two such devices is complete.

use std::path::Path;
use std::process::{Command, Output};

fn my_digitizer(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_my-digitizer")).args(arguments).current_dir(directory).output().unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_run_of_the_laboratorys_own_devices_is_complete() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/lab.toml"), folder.path().join("lab.toml")).unwrap();
    let devices = json(&my_digitizer(folder.path(), &["devices", "--json", "lab.toml"]));
    let kinds = devices["devices"].as_array().unwrap().iter().filter(|it| it["kind"] == "my-digitizer");
    assert!(kinds.count() > 0, "{devices:#}");
    let checked = my_digitizer(folder.path(), &["check", "lab.toml"]);
    assert!(
        checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("my-digitizer"),
        "{checked:?}"
    );
    let run = json(&my_digitizer(folder.path(), &["run", "--json", "lab.toml"]));
    assert_eq!(run["state"], "COMPLETE", "{run:#}");
    let verified = my_digitizer(folder.path(), &["verify", "runs/run-000001"]);
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn a_program_without_the_kind_says_which_ones_it_has() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/lab.toml")).unwrap();
    std::fs::write(folder.path().join("lab.toml"), text.replacen("my-digitizer\"", "your-digitizer\"", 1)).unwrap();
    let refused = my_digitizer(folder.path(), &["check", "lab.toml"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(said.contains("unknown kind `your-digitizer`") && said.contains("`my-digitizer`"), "{said}");
    // A builder's host need not have it: the source runs elsewhere.
    let builder = my_digitizer(folder.path(), &["check", "--node", "builder0", "lab.toml"]);
    assert!(builder.status.success(), "{builder:?}");
}
