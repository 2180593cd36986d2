//! What a person sees at 80 × 24: colours, lines that fit, and one line at a time from all who share the terminal.

use crate::common::record_events;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use thalweg_testing::skip::skipped;

const PROGRAM: &str = env!("CARGO_BIN_EXE_thalweg");

/// What a terminal of 80 columns shows at the end of a shell's commands, and whether a line of it was wrapped; none
/// where there is no program to make one. `thalweg` is the program.
fn screen(commands: &str, directory: &Path) -> Option<vt100::Parser> {
    let commands = format!("stty cols 80 rows 200\nthalweg() {{ {PROGRAM} \"$@\"; }}\n{commands}");
    std::fs::write(directory.join("commands"), commands).unwrap();
    let output = Command::new("script")
        .args(["-qec", "bash commands", "/dev/null"])
        .current_dir(directory)
        .env_remove("NO_COLOR")
        .env_remove("THALWEG_LOG")
        .env("TERM", "xterm-256color")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        skipped("there is no script(1) here to make a terminal");
        return None;
    };
    let mut terminal = vt100::Parser::new(200, 80, 0);
    terminal.process(&output.stdout);
    let wrapped = (0..200).find(|row| terminal.screen().row_wrapped(*row));
    assert_eq!(wrapped, None, "{}", terminal.screen().contents());
    Some(terminal)
}

/// Which colour a word is shown in.
fn colour(terminal: &vt100::Parser, word: &str) -> vt100::Color {
    let rows: Vec<String> = terminal.screen().rows(0, 80).collect();
    let (row, column) = (0..).zip(&rows).find_map(|(row, text)| Some((row, text.find(word)?))).unwrap_or_else(|| {
        panic!("there is no {word}: {}", rows.join("\n"));
    });
    terminal.screen().cell(row, u16::try_from(column).unwrap()).unwrap().fgcolor()
}

fn run(words: &str, directory: &Path) -> String {
    let output = Command::new(PROGRAM).args(words.split(' ')).current_dir(directory).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// One run that is whole, one that lacks something, one that is damaged.
fn three_runs() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        record_events(&directory.path().join("runs"), &["--size", "16KiB", "--rate", "200"], 20);
    }
    let at = |name: &str| directory.path().join("runs").join(name);
    let info = std::fs::read_to_string(at("run-000002/run.json")).unwrap();
    let info = info.replace("\"COMPLETE\"", "\"INCOMPLETE\"");
    let info = info.replacen("\"reasons\": []", "\"reasons\": [\"source 1.0 (adc-0): 5 fragments lost\"]", 1);
    std::fs::write(at("run-000002/run.json"), info).unwrap();
    let segment = std::fs::OpenOptions::new().write(true).open(at("run-000003/00000.seg")).unwrap();
    segment.set_len(4096).unwrap();
    directory
}

#[test]
fn verdicts_differ_in_colour_and_no_line_is_wrapped() {
    let directory = three_runs();
    let Some(terminal) = screen("thalweg ls; thalweg verify runs/run-000002", directory.path()) else { return };
    let colours = ["COMPLETE", "INCOMPLETE", "DAMAGED"].map(|word| colour(&terminal, word));
    assert_eq!(colours, [vt100::Color::Idx(2), vt100::Color::Idx(3), vt100::Color::Idx(1)]);
}

#[test]
fn there_is_no_colour_in_a_pipe_or_where_it_is_not_wanted_and_it_can_be_had() {
    let directory = three_runs();
    let ls = |words: &str| run(&format!("ls{words}"), directory.path()).contains('\u{1b}');
    assert_eq!([ls(""), ls(" --color never"), ls(" --color always")], [false, false, true]);
    let Some(plain) = screen("NO_COLOR=1 thalweg ls", directory.path()) else { return };
    assert_eq!(colour(&plain, "COMPLETE"), vt100::Color::Default);
}

const SHARED: &str = r#"
cat > shared.toml <<'TOML'
[run]
duration = "900ms"
[[builder]]
name = "builder"
listen = ["shm:shared.sock"]
deadline = "60s"
[[source]]
name = "adc-0"
id = "1.0"
link = "shm"
rate = 100.0
device = { kind = "model-adc", size = "4KiB" }
[[source]]
name = "adc-1"
id = "1.1"
link = "shm"
rate = 100.0
device = { kind = "model-adc", size = "4KiB" }
TOML
thalweg QUIET node builder shared.toml &
# A source that finds no builder for a while warns of it.
until [ -S shared.sock ]; do kill -0 $! || break; sleep 0.05; done
thalweg QUIET node adc-0 shared.toml & thalweg QUIET node adc-1 shared.toml &
wait
"#;

#[test]
fn nodes_that_share_a_terminal_do_not_tear_each_others_lines() {
    let directory = tempfile::tempdir().unwrap();
    let Some(terminal) = screen(&SHARED.replace("QUIET", ""), directory.path()) else { return };
    // At the end nothing is left of the lines that went on, and every other line is whole.
    let text = terminal.screen().contents();
    let is_whole = |line: &str| {
        let begins = ["  ", "builder: listening on shm:", "source 1.", "run 1: COMPLETE"];
        line.is_empty() || begins.iter().any(|begin| line.starts_with(begin))
    };
    assert!(text.lines().all(is_whole), "{text}");
    for wanted in ["source 1.0 (adc-0)", "source 1.1 (adc-1)", "run 1: COMPLETE", "unaccounted"] {
        assert!(text.lines().any(|line| line.trim_end().ends_with(wanted)), "{wanted}: {text}");
    }
}

#[test]
fn quiet_is_quiet_and_tells_the_result() {
    let directory = tempfile::tempdir().unwrap();
    // Of one source: it cannot be late for an event.
    let words = "demo --quiet --sources 1 --size 16KiB --rate 200 --duration 300ms";
    let output = Command::new(PROGRAM).args(words.split(' ')).current_dir(directory.path()).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with("run 1: COMPLETE\n") && output.stderr.is_empty(), "{told}");
}

#[test]
fn an_error_fits_a_terminal_and_is_one_line_in_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["pull", "127.0.0.1:8042/2026/a-directory-with-a-long-name/runs/1"];
    let output = Command::new(PROGRAM).args(words).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(error.contains("must begin with http://"), "{error}");
    // `screen` looks whether anything was wrapped.
    screen(&format!("thalweg {}", words.join(" ")), directory.path());
}

#[test]
fn the_log_is_coloured_as_the_option_says() {
    let directory = tempfile::tempdir().unwrap();
    let topology = "[run]\n[[builder]]\nname = \"b\"\nlisten = [\"shm:b.sock\"]\n[[source]]\nname = \"s\"\n\
                    id = \"1.0\"\nlink = \"shm\"\ndevice = { kind = \"model-adc\", size = \"1KiB\" }\n";
    std::fs::write(directory.path().join("lab.toml"), topology).unwrap();
    for (choice, coloured) in [("always", true), ("never", false)] {
        let mut node = Command::new(PROGRAM)
            .args(["--color", choice, "-v", "node", "b", "lab.toml"])
            .current_dir(&directory)
            .env_remove("THALWEG_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(node.stderr.take().unwrap()).read_line(&mut line).unwrap();
        node.kill().unwrap();
        node.wait().unwrap();
        assert!(line.contains("INFO") && line.contains('\u{1b}') == coloured, "{choice}: {line:?}");
    }
}
