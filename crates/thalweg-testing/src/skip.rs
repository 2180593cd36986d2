//! Reporting of tests that cannot run on this machine.
//!
//! The test runner shows nothing of what a passing test has printed, so a test that returns early looks like one that
//! did its work. [`skipped`] bypasses the runner's output capture: it writes to standard error directly, and into the
//! file that `make test` names in `THALWEG_SKIPPED` and prints at its end.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::thread;

/// Environment variable with the path of the file that lists skipped tests, a line each: the test, a tab, the reason.
/// Python's tests write to it too.
pub const FILE: &str = "THALWEG_SKIPPED";

/// Reports that the calling test, or a part of it, cannot run on this machine, and why.
///
/// # Panics
///
/// The line cannot be written to the file that `THALWEG_SKIPPED` names.
#[track_caller]
pub fn skipped(reason: impl Display) {
    let line = line(&test(Location::caller()), &reason.to_string());
    // Not `eprintln!`, whose output the test runner captures. If standard error is closed, there is still the file.
    let _ = io::stderr().write_all(format!("skipped: {}", line.replacen('\t', ": ", 1)).as_bytes());
    if let Some(file) = std::env::var_os(FILE) {
        let file = Path::new(&file);
        if let Err(error) = append(file, &line) {
            panic!("keeping what was skipped in {}, which {FILE} names: {error}", file.display());
        }
    }
}

/// Returns the test's name. The runner names each test's thread after it; in a thread that a test has started, and
/// where tests run one by one in the main thread, the place in the source stands for it.
fn test(place: &Location) -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    match thread::current().name() {
        Some(name) if name != "main" => format!("{package} {name}"),
        _ => format!("{package} {}:{}", place.file(), place.line()),
    }
}

fn line(test: &str, reason: &str) -> String {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{test}\t{reason}\n")
}

/// Appends a line in one write, so that the lines of tests that skip at the same time stay whole.
fn append(file: &Path, line: &str) -> io::Result<()> {
    File::options().append(true).create(true).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Variable that makes [`the_other_test`] skip.
    const ASKED: &str = "THALWEG_SKIP_ASKED";

    #[test]
    fn the_runner_swallows_neither_the_reason_nor_the_test() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("skipped");
        let mut runner = Command::new(std::env::current_exe().unwrap());
        runner.args(["--exact", "skip::tests::the_other_test"]).env(ASKED, "").env(FILE, &file);
        let output = runner.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let (package, said) = (env!("CARGO_PKG_NAME"), String::from_utf8(output.stderr).unwrap());
        assert_eq!(said, format!("skipped: {package} skip::tests::the_other_test: no such device\n"));
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            format!("{package} skip::tests::the_other_test\tno such device\n")
        );
    }

    #[test]
    fn the_other_test() {
        if std::env::var_os(ASKED).is_some() {
            skipped("no\nsuch device");
        }
    }

    #[test]
    fn a_thread_without_a_name_is_known_by_its_place() {
        let place = Location::caller();
        let name = thread::spawn(|| test(place)).join().unwrap();
        assert!(name.contains("src/skip.rs:"), "{name}");
    }
}
