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
use thalweg_node::{Command, Handle, RunReport, Snapshot, State, Topology};

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
    /// True while a node exists that carries commands out.
    is_ready: bool,
    left: Sender<()>,
}

impl Present {
    fn new() -> Result<(Self, Receiver<()>), Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        let (left, leaving) = channel();
        Ok((Self(Arc::new(Mutex::new(Inner { handle, runs: 0, leaves: false, is_ready: false, left }))), leaving))
    }

    /// Returns a handle for the next run; `None` if there is to be none.
    fn next_handle(&self) -> Result<Option<Handle>, Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        Ok(self.with_inner(|inner| {
            inner.handle = handle.clone();
            inner.runs += 1;
            inner.is_ready = true;
            (!inner.leaves).then_some(handle)
        }))
    }

    /// Notes that the node of the present run has ended. Returns the commands that came too late for it.
    fn end_run(&self) -> Vec<Command> {
        self.with_inner(|inner| {
            inner.is_ready = false;
            inner.handle.take_commands()
        })
    }

    /// Returns whether no further run is to follow.
    fn is_leaving(&self) -> bool {
        self.with_inner(|inner| inner.leaves)
    }

    /// Ends the present run, and prevents further ones. Returns the number of times that this was requested.
    fn leave_after_run(&self) -> u32 {
        self.with_inner(|inner| {
            inner.leaves = true;
            let _ = inner.left.send(());
            inner.handle.request_end()
        })
    }

    /// Sends a command to the node of the present run. Returns false if there is none.
    fn send_command(&self, command: Command) -> bool {
        self.with_inner(|inner| {
            if inner.is_ready {
                inner.handle.send_command(command);
            }
            inner.is_ready
        })
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
        let sources =
            topology.sources.iter().map(|source| (source.id.clone(), source.name.clone())).collect::<Vec<_>>();
        move || read_commands(std::io::stdin().lock(), |line| execute_command(&present, &sources, line))
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
        // Those of `quit` are among them.
        let late = present.end_run();
        if !present.is_leaving() {
            late.into_iter().for_each(report_unready);
        }
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
            // The end of a node that was to end before a run began is no failure.
            Err(_) if present.is_leaving() => break,
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

/// Executes one line of standard input. `sources`: ids and names, in the order of the topology.
fn execute_command(present: &Present, sources: &[(String, String)], line: &str) {
    match line {
        "" => {}
        "start" => execute_run_command(present, Command::Start),
        "pause" => execute_run_command(present, Command::Pause),
        "resume" => execute_run_command(present, Command::Resume),
        "stop" => execute_run_command(present, Command::Stop),
        "abort" => execute_run_command(present, Command::Abort),
        "quit" => _ = present.leave_after_run(),
        "status" => {
            let snapshot = present.with_inner(|inner| inner.handle.latest_snapshot());
            outlet::stdout().put_text(json_line(&status_json(&snapshot, sources)).unwrap_or_default());
        }
        other => outlet::stderr().put_text(format!(
            "unknown command '{}': write start, pause, resume, stop, abort, status or quit\n",
            thalweg_text::replace_controls(other)
        )),
    }
}

/// Sends a command to the node, or reports that there is none at present.
fn execute_run_command(present: &Present, command: Command) {
    if !present.send_command(command) {
        report_unready(command);
    }
}

/// Reports a command that no node carries out: one run has ended, and the next is not prepared.
fn report_unready(command: Command) {
    outlet::stderr().put_text(format!(
        "cannot {command}: the node is not ready for the next run; repeat the command after its next state is shown\n"
    ));
}

/// Returns the status of a node as JSON, with the id and the name of each source in its row. `sources` as in
/// [`execute_command`].
fn status_json(snapshot: &Snapshot, sources: &[(String, String)]) -> serde_json::Value {
    let mut status = serde_json::to_value(snapshot).unwrap_or_default();
    let rows = status["sources"].as_array_mut().into_iter().flatten().filter_map(serde_json::Value::as_object_mut);
    for (row, (id, name)) in rows.zip(sources) {
        row.insert("id".into(), id.as_str().into());
        row.insert("name".into(), name.as_str().into());
    }
    status
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
    use thalweg_node::SourceRow;

    #[test]
    fn a_status_names_each_source() {
        let snapshot =
            Snapshot { sources: vec![SourceRow { built: 7, ..SourceRow::default() }], ..Snapshot::default() };
        let status = status_json(&snapshot, &[("1.0".into(), "adc-0".into())]);
        let row = &status["sources"][0];
        assert_eq!((&row["id"], &row["name"], &row["built"]), (&"1.0".into(), &"adc-0".into(), &7.into()));
    }

    /// A command between two runs was taken by the node of the run before, and lost.
    #[test]
    fn a_command_reaches_the_node_of_the_present_run_or_is_refused() {
        let (present, _leaving) = Present::new().unwrap();
        assert!(!present.send_command(Command::Start), "no node is ready");
        let handle = present.next_handle().unwrap().unwrap();
        assert!(present.send_command(Command::Start));
        assert!(handle.take_commands() == [Command::Start]);
        assert!(present.send_command(Command::Pause));
        assert_eq!(present.end_run(), [Command::Pause], "it came too late for the node");
        assert!(!present.send_command(Command::Start), "the next run is not prepared");
        assert!(!present.is_leaving());
        present.leave_after_run();
        assert!(present.is_leaving() && present.next_handle().unwrap().is_none());
    }

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
