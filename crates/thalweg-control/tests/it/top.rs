//! `thalweg top` in a real terminal: a pseudo-terminal whose screen is read by another program's emulator.

use crate::{Experiment, PATIENCE, kill};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_control::access::Role;
use thalweg_control::state::ExperimentState;
use thalweg_control::top::terminal::Terminal;
use thalweg_testing::wait::wait_until;

/// A terminal with a program in it.
struct Emulated {
    keyboard: File,
    /// The program's side: its modes are those that a shell would find afterwards.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    program: Child,
}

impl Emulated {
    /// Starts a program in a terminal of this size.
    fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let slave = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let end = || slave.try_clone().unwrap();
        set_size(&master, columns, rows);
        // The terminal is that of a session of its own.
        let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
        let mut session = Command::new("setsid");
        session.arg("--ctty").args(words).stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color");
        session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        session.env_remove("NO_COLOR").current_dir(command.get_current_dir().unwrap_or(std::path::Path::new(".")));
        let program = session.spawn().unwrap();
        let mut output = master.try_clone().unwrap();
        let parser = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                parser.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self { keyboard: master, slave, screen, program }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows all these texts.
    fn wait_for(&self, texts: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text();
            if texts.iter().all(|wanted| text.contains(wanted)) {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "{texts:?} do not come:\n{text}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal is as it was: what the program has written last is on its way through it.
    fn wait_until_given_back(&self) {
        let begun = Instant::now();
        let is_given_back = || {
            let modes = tcgetattr(&self.slave).unwrap().local_modes;
            let parser = self.screen.lock().unwrap();
            let screen = parser.screen();
            let is_restored = !screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste();
            is_restored && modes.contains(LocalModes::ICANON | LocalModes::ECHO)
        };
        while !is_given_back() {
            assert!(begun.elapsed() < PATIENCE, "the terminal is not given back:\n{}", self.text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of the program. The terminal must be as it was.
    fn wait_for_end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(20));
        };
        self.wait_until_given_back();
        status
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn set_size(terminal: &File, columns: u16, rows: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

fn start_top(experiment: &Experiment) -> Emulated {
    let mut command = experiment.program(env!("CARGO_BIN_EXE_thalweg-control"));
    Emulated::start(command.arg("top"), 80, 24)
}

#[test]
fn a_run_is_taken_by_keys_and_a_service_that_is_away_is_found_again() {
    let mut experiment = Experiment::start(&["adc-0", "adc-1"]);
    let mut top = start_top(&experiment);
    top.wait_for(&[" idle ", "What is wrong", "[c]onfigure (a)rm", "adc-0", "builder"]);
    top.press("s");
    let reason = experiment.status().commands[&thalweg_control::state::CommandName::Start].reason.clone();
    top.wait_for(&[&reason]);
    top.press("c");
    top.wait_for(&[" configured "]);
    top.press("a");
    top.wait_for(&[" armed ", "[s]tart"]);
    top.press("s");
    top.wait_for(&["note: "]);
    top.press("first beam\r");
    top.wait_for(&[" running ", "run 1 (physics), ", "first beam", "[p]ause"]);
    let status = experiment.wait_for("events", |status| status.totals.events > 0);
    assert_eq!(status.run.unwrap().note, "first beam");

    experiment.kill_service();
    top.wait_for(&["no contact", "the values are old", "(p)ause"]);
    let address = experiment.url.trim_start_matches("http://").to_owned();
    experiment.start_service(&address);
    top.wait_for(&[" running ", "[p]ause"]);

    // Another size is followed.
    top.screen.lock().unwrap().screen_mut().set_size(60, 200);
    set_size(&top.keyboard, 200, 60);
    top.wait_for(&["Sent again", " running "]);
    top.press("\t");
    top.wait_for(&["Started as", &experiment.pid("builder").to_string()]);
    top.press("\t");
    top.wait_for(&["st[o]p"]);
    top.press("o");
    top.wait_for(&["Stop run 1?"]);
    top.press("y");
    top.wait_for(&[" armed ", "run 1 is complete"]);
    top.press("q");
    assert!(top.wait_for_end().success());
    experiment.wait_for_state(ExperimentState::Armed);
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let experiment = Experiment::start(&["adc-0"]);
    let mut top = start_top(&experiment);
    top.wait_for(&[" idle "]);
    // Ctrl-Z puts it into the background of its shell, which finds its terminal as it was.
    top.press("\u{1a}");
    top.wait_until_given_back();
    let status = format!("/proc/{}/stat", top.program.id());
    wait_until("its halt", || std::fs::read_to_string(&status).unwrap().contains(") T "));
    let pid = rustix::process::Pid::from_raw(i32::try_from(top.program.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    top.wait_for(&[" idle ", "[c]onfigure"]);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(top.wait_for_end().code(), Some(130));
}

#[test]
fn what_it_cannot_begin_with_is_named_before_the_terminal_is_taken() {
    let experiment = Experiment::start(&["adc-0"]);
    let command = experiment.program(env!("CARGO_BIN_EXE_thalweg-control")).arg("top").output().unwrap();
    let problem = String::from_utf8(command.stderr).unwrap();
    assert_eq!((command.status.code(), problem.contains("ctl status --watch")), (Some(2), true), "{problem}");
    let mut command = experiment.program(env!("CARGO_BIN_EXE_thalweg-control"));
    command.args(["top", "--url", &experiment.url]).env("THALWEG_CONTROL_TOKEN", "guess");
    let mut top = Emulated::start(&mut command, 80, 24);
    assert_eq!(top.wait_for_end().code(), Some(2));
    top.wait_for(&["this service wants a token"]);
}

/// Name of the variable that makes a process of this program the one of [`the_terminal_is_given_back_by_a_panic`].
const PANICS: &str = "THALWEG_TEST_PANICS";

#[test]
fn the_terminal_is_given_back_by_a_panic() {
    if std::env::var_os(PANICS).is_some() {
        let mut terminal = Terminal::open().unwrap();
        terminal.draw(|frame| frame.render_widget("a picture", frame.area())).unwrap();
        panic!("something is wrong");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "top::the_terminal_is_given_back_by_a_panic";
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
    let mut terminal = Emulated::start(&mut command, 80, 24);
    assert!(!terminal.wait_for_end().success());
    let text = terminal.wait_for(&["something is wrong"]);
    assert!(!text.contains("a picture"), "{text}");
}

#[test]
fn a_process_is_restarted_where_no_run_has_it() {
    let experiment = Experiment::start(&["adc-0", "adc-1"]);
    experiment.arm();
    let before = experiment.pid("adc-0");
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0);
    let refused = "cannot restart node 'adc-0': it takes part in run 1: stop the run first";
    let asked = experiment.ctl(&["process", "restart", "adc-0"]);
    assert_eq!(String::from_utf8(asked.stderr).unwrap(), format!("thalweg: {refused}\n"));
    let status = experiment.status();
    let process = status.processes.iter().find(|process| process.node == "adc-0").unwrap();
    assert_eq!(process.actions[&thalweg_control::processes::ProcessAction::Restart].reason, refused);
    let path = "/api/v1/processes/adc-0/restart";
    let answer = experiment.client(Role::Configure).post::<serde_json::Value>(path, &serde_json::json!({}));
    assert_eq!(answer.unwrap_err().to_string(), refused);
    // One that is gone is started, and has no part in this run.
    kill(experiment.pid("adc-1"));
    experiment.wait_for("its end", |status| status.processes.iter().any(|process| process.pid.is_none()));
    experiment.command(&["process", "restart", "adc-1"]);
    experiment.wait_for("its start", |status| status.processes.iter().all(|process| process.pid.is_some()));
    experiment.command(&["stop"]);
    experiment.wait_for("the end of the run", |status| status.last_run.is_some() && !status.state.has_run());
    experiment.command(&["process", "restart", "adc-0"]);
    let is_new = |status: &thalweg_control::status::Status| {
        status.processes.iter().any(|p| p.node == "adc-0" && p.pid.is_some_and(|pid| pid != before))
    };
    experiment.wait_for("another process", is_new);
    experiment.arm();
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    assert_eq!(experiment.run_info(2)["state"], "COMPLETE");
}
