//! `thalweg node --stay`: a node that takes part in one run after another, as it is told to on standard input.

use crate::node::{self, Done, Kind};
use crate::{Failure, outlet, print};
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use thalweg_node::{Command, Handle, RunReport, State, Topology};

/// How long after a run that failed the next is prepared.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the state is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The node of the present run, for those who tell it something.
#[derive(Debug, Clone)]
struct Present(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    handle: Handle,
    /// There is to be no further run.
    leaves: bool,
    left: Sender<()>,
}

impl Present {
    fn new() -> Result<(Self, Receiver<()>), Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        let (left, leaving) = channel();
        Ok((Self(Arc::new(Mutex::new(Inner { handle, leaves: false, left }))), leaving))
    }

    /// A handle for the next run; nothing where there is to be none.
    fn next(&self) -> Result<Option<Handle>, Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        Ok(self.with(|inner| {
            inner.handle = handle.clone();
            (!inner.leaves).then_some(handle)
        }))
    }

    /// Ends the present run, and has no other follow. Returns how often that was asked for.
    fn leave(&self) -> u32 {
        self.with(|inner| {
            inner.leaves = true;
            let _ = inner.left.send(());
            inner.handle.press()
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        // Nothing in it can be left half changed.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Takes part in one run after another until it is told to quit.
pub(crate) fn stay(mut topology: Topology, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let (present, leaving) = Present::new()?;
    heed_signals(present.clone())?;
    thread::spawn({
        let present = present.clone();
        move || std::io::stdin().lock().lines().map_while(Result::ok).for_each(|line| obey(&present, line.trim()))
    });
    tell_states(present.clone(), name.to_owned(), json);
    while let Some(handle) = present.next()? {
        let mut listens = None;
        let done = node::run(&topology, name, &handle, Kind::Waiting, |addresses| {
            node::say_listening(name, addresses);
            listens = Some(addresses.to_vec());
        });
        // The ports that the system chose stay.
        let builder = topology.builders.iter_mut().find(|builder| builder.name == name);
        if let (Some(builder), Some(addresses)) = (builder, listens) {
            builder.listen = addresses;
        }
        match done {
            Ok(Done::Builder(report)) => {
                print::run(&RunReport::new(&[*report]), json);
                topology.run.number = topology.run.number.map(|number| number.saturating_add(1));
            }
            Ok(Done::Source(report)) => print::source(&report, json),
            Err(failure @ Failure::Usage(_)) => return Err(failure),
            Err(failure) => {
                tracing::info!("{name}: {failure}");
                if leaving.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One line of standard input.
fn obey(present: &Present, line: &str) {
    let send = |command| present.with(|inner| inner.handle.send(command));
    match line {
        "" => {}
        "start" => send(Command::Start),
        "pause" => send(Command::Pause),
        "resume" => send(Command::Resume),
        "stop" => send(Command::Stop),
        "abort" => send(Command::Abort),
        "quit" => _ = present.leave(),
        "status" => {
            let snapshot = present.with(|inner| inner.handle.snapshot());
            outlet::stdout().put(print::json_line(&*snapshot).unwrap_or_default());
        }
        other => outlet::stderr().put(format!(
            "there is no command '{}'; there are start, pause, resume, stop, abort, status and quit\n",
            thalweg_text::plain(other)
        )),
    }
}

fn heed_signals(present: Present) -> Result<(), Failure> {
    let mut signals = crate::signals::ends()?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if present.leave() > 2 {
                std::process::exit(1);
            }
        }
    });
    Ok(())
}

/// Says whenever the state of the run has changed.
fn tell_states(present: Present, name: String, json: bool) {
    thread::spawn(move || {
        let mut told = State::Idle;
        loop {
            let snapshot = present.with(|inner| inner.handle.snapshot());
            if snapshot.state != told {
                told = snapshot.state;
                if json {
                    let line = print::json_line(&serde_json::json!({ "node": name, "state": told }));
                    outlet::stdout().put(line.unwrap_or_default());
                } else {
                    outlet::stderr().put(format!("{name}: {told}\n"));
                }
            }
            thread::sleep(LOOK);
        }
    });
}
