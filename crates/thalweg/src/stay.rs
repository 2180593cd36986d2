//! `thalweg node --stay`: a node that takes part in one run after another, by commands on standard input.

use crate::node::{self, Done, Kind};
use crate::print;
use crate::terminal::{Failure, json_line, outlet, signals, start_thread};
use parking_lot::Mutex;
use std::io::{BufRead, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use thalweg_node::{Command, Handle, RunReport, State, Topology};

/// Time after a failed run until the next one is prepared.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a line of standard input, in bytes.
const LONGEST_LINE: u64 = 4096;
/// Time from one look at the state to the next.
const LOOK: Duration = Duration::from_millis(100);

/// Node of the present run, for the threads that control it.
#[derive(Debug, Clone)]
struct Present(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    handle: Handle,
    /// Number of runs taken part in so far, with the present one.
    runs: u64,
    /// True if no further run is to follow.
    leaves: bool,
    left: Sender<()>,
}

impl Present {
    fn new() -> Result<(Self, Receiver<()>), Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        let (left, leaving) = channel();
        Ok((Self(Arc::new(Mutex::new(Inner { handle, runs: 0, leaves: false, left }))), leaving))
    }

    /// Returns a handle for the next run; `None` if there is to be none.
    fn next_handle(&self) -> Result<Option<Handle>, Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        Ok(self.with_inner(|inner| {
            inner.handle = handle.clone();
            inner.runs += 1;
            (!inner.leaves).then_some(handle)
        }))
    }

    /// Ends the present run, and prevents further ones. Returns the number of times that this was requested.
    fn leave_after_run(&self) -> u32 {
        self.with_inner(|inner| {
            inner.leaves = true;
            let _ = inner.left.send(());
            inner.handle.request_end()
        })
    }

    fn send_command(&self, command: Command) {
        self.with_inner(|inner| inner.handle.send_command(command));
    }

    fn with_inner<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock())
    }
}

/// Takes part in one run after another until the command `quit`.
pub(crate) fn stay_for_runs(mut topology: Topology, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let (present, leaving) = Present::new()?;
    signals::on_interrupt({
        let present = present.clone();
        move || {
            if present.leave_after_run() > 2 {
                std::process::exit(1);
            }
        }
    })?;
    start_thread({
        let present = present.clone();
        move || read_commands(std::io::stdin().lock(), |line| execute_command(&present, line))
    })?;
    print_state_changes(present.clone(), name.to_owned(), json)?;
    // A topology that a run was prepared with is right: later failures come from the machine, such as a device that is
    // unplugged.
    let mut was_prepared = false;
    let mut last_failure = String::new();
    while let Some(handle) = present.next_handle()? {
        let mut listens = None;
        let done = node::run_node(&topology, name, &handle, Kind::Waiting, |addresses| {
            was_prepared = true;
            node::print_listening(name, addresses);
            listens = Some(addresses.to_vec());
        });
        // The ports that the system chose are kept for the next run.
        let builder = topology.builders.iter_mut().find(|builder| builder.name == name);
        if let (Some(builder), Some(addresses)) = (builder, listens) {
            builder.listen = addresses;
        }
        match done {
            Ok(Done::Builder(report)) => {
                print::print_run_report(&RunReport::new(&[*report]), json);
                topology.run.number = topology.run.number.map(|number| number.saturating_add(1));
                last_failure.clear();
            }
            Ok(Done::Source(report)) => {
                print::print_source_report(&report, json);
                was_prepared = true;
                last_failure.clear();
            }
            Err(failure @ Failure::Usage(_)) if !was_prepared => return Err(failure),
            Err(failure) => {
                // The warning is given once, and not once a second for as long as a device is away.
                let text = failure.to_string();
                if text != last_failure {
                    tracing::warn!("{name}: {text}; retrying");
                    last_failure = text;
                }
                if leaving.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes each line of `input` to `obey`, until the input ends. Bytes that are no text become unknown commands, and so
/// does the beginning of a line that is too long; its remainder is skipped.
fn read_commands(mut input: impl BufRead, obey: impl Fn(&str)) {
    let (mut line, mut skips) = (Vec::new(), false);
    loop {
        match (&mut input).take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let is_piece = line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n");
                match is_piece {
                    _ if skips => {}
                    true => obey(&text),
                    false => obey(text.trim()),
                }
                skips = is_piece;
                line.clear();
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}

/// Executes one line of standard input.
fn execute_command(present: &Present, line: &str) {
    match line {
        "" => {}
        "start" => present.send_command(Command::Start),
        "pause" => present.send_command(Command::Pause),
        "resume" => present.send_command(Command::Resume),
        "stop" => present.send_command(Command::Stop),
        "abort" => present.send_command(Command::Abort),
        "quit" => _ = present.leave_after_run(),
        "status" => {
            let snapshot = present.with_inner(|inner| inner.handle.latest_snapshot());
            outlet::stdout().put_text(json_line(&*snapshot).unwrap_or_default());
        }
        other => outlet::stderr().put_text(format!(
            "unknown command '{}': write start, pause, resume, stop, abort, status or quit\n",
            thalweg_text::replace_controls(other)
        )),
    }
}

/// Prints the state of the run whenever it has changed since the last look. The beginning of another run is a change,
/// too: a run may be over between two looks.
fn print_state_changes(present: Present, name: String, json: bool) -> Result<(), Failure> {
    start_thread(move || {
        let (mut printed, mut printed_run) = (State::Idle, 0);
        loop {
            let (snapshot, run) = present.with_inner(|inner| (inner.handle.latest_snapshot(), inner.runs));
            let state = snapshot.state;
            if state != printed || run != printed_run && state != State::Idle {
                (printed, printed_run) = (state, run);
                if json {
                    let line = json_line(&serde_json::json!({ "node": name, "state": state }));
                    outlet::stdout().put_text(line.unwrap_or_default());
                } else {
                    outlet::stderr().put_text(format!("{name}: {state}\n"));
                }
            }
            thread::sleep(LOOK);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_is_no_text_costs_no_other_command() {
        let received = RefCell::new(Vec::new());
        let long = format!("start{}abort", " ".repeat(4091));
        let input = [b"start\n\xff\xfe\n pause \r\n", long.as_bytes(), b"\nstop"].concat();
        read_commands(&input[..], |line| received.borrow_mut().push(line.to_owned()));
        let lines = received.into_inner();
        assert_eq!(lines, ["start", "\u{fffd}\u{fffd}", "pause", &long[..4096], "stop"]);
    }
}
