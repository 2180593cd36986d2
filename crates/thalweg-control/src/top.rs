//! `thalweg top`: run control in a terminal.
//!
//! [`screen`] holds what is shown and what keys do, [`draw`] makes a picture of it: both without I/O. This module moves
//! between them, the terminal and the service: one thread follows the status, one reads keys, and each request has one,
//! so that neither a slow service nor a slow terminal holds up the other. Of statuses, the newest alone is kept.

pub mod draw;
pub mod screen;
pub mod terminal;
pub mod trouble;

use crate::client::{ChangeRequest, Client};
use crate::ctl::ServiceOptions;
use crate::service::unix_seconds;
use crate::status::Status;
use draw::Look;
use parking_lot::Mutex;
use ratatui::crossterm::event::{self, Event};
use screen::{Effect, Order, Screen};
use serde_json::Value;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use terminal::Terminal;
use thalweg::terminal::{Failure, progress, signals, start_thread};

/// Time from one attempt to reach the service to the next.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time from one drawing to the next: times go on although nothing happens.
const DRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Number of lines of a log that are shown.
const LOG_LINES: u32 = 200;
/// Exit code of a program that a signal has ended.
const INTERRUPTED: u8 = 130;

/// Options of `thalweg top`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    service: ServiceOptions,
}

/// Something that has happened.
#[derive(Debug)]
enum Update {
    /// The terminal has something; an error where it is gone.
    Terminal(io::Result<Event>),
    /// A status lies ready.
    StatusReady,
    /// Statuses do not come, for this reason.
    ContactLost(String),
    /// A request was answered.
    Answered { order: String, result: Result<(), String> },
    /// The log of a node was read.
    LogRead { node: String, result: Result<Vec<String>, String> },
    /// A signal asks the program to end.
    Interrupted,
    /// A thread has panicked; its message is printed.
    Panicked,
}

/// Runs `thalweg top`.
///
/// # Errors
/// There is no terminal, or the service cannot be reached, or refuses.
pub fn run_top(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    if json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let advice = "for programs there is `thalweg ctl status --watch`, with --json, too";
        return Err(Failure::Usage(format!("thalweg top needs a terminal to draw on; {advice}")));
    }
    let client = Client::new(options.service.url.clone())?;
    // A wrong address or token is reported before the terminal is taken over.
    let status: Status = client.get("/api/v1/status")?;
    let mut screen = Screen::new(client.url());
    screen.take_status(Box::new(status));
    let look = Look { is_coloured: progress::stdout_is_coloured() };
    let (sender, updates) = channel();
    let newest = Arc::new(Mutex::new(None));
    signals::on_interrupt({
        let sender = sender.clone();
        move || _ = sender.send(Update::Interrupted)
    })?;
    let mut terminal = Terminal::open().map_err(no_terminal)?;
    start_watched(&sender, read_terminal)?;
    start_watched(&sender, {
        let (client, newest) = (client.clone(), Arc::clone(&newest));
        move |sender| follow_service(&client, &newest, sender)
    })?;
    Session { client, screen, look, newest, sender, updates }.run(&mut terminal)
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::broken(format!("the terminal cannot be used: {error}"))
}

/// Starts a thread whose panic ends the program.
fn start_watched(sender: &Sender<Update>, work: impl FnOnce(&Sender<Update>) + Send + 'static) -> Result<(), Failure> {
    let watched = Watched(sender.clone());
    start_thread(move || work(&watched.0))
}

/// Sender of a thread. It reports a panic.
struct Watched(Sender<Update>);

impl Drop for Watched {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Update::Panicked);
        }
    }
}

fn read_terminal(sender: &Sender<Update>) {
    loop {
        let event = event::read();
        let is_gone = event.is_err();
        if sender.send(Update::Terminal(event)).is_err() || is_gone {
            return;
        }
    }
}

/// Place of the newest status that was not shown yet.
type Newest = Mutex<Option<Box<Status>>>;

/// Follows the status, and connects again whenever that ends.
fn follow_service(client: &Client, newest: &Newest, sender: &Sender<Update>) {
    loop {
        let problem = follow_connection(client, newest, sender);
        if sender.send(Update::ContactLost(problem)).is_err() {
            return;
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Follows the status on one connection. Returns the reason why it ended.
fn follow_connection(client: &Client, newest: &Newest, sender: &Sender<Update>) -> String {
    let mut statuses = match client.follow_status() {
        Ok(statuses) => statuses,
        Err(failure) => return failure.to_string(),
    };
    loop {
        match statuses.next_status() {
            Ok(status) => {
                // One that was not shown yet is replaced.
                if newest.lock().replace(Box::new(status)).is_none() && sender.send(Update::StatusReady).is_err() {
                    return "the screen is closed".into();
                }
            }
            Err(failure) => return failure.to_string(),
        }
    }
}

/// The program while it has the terminal.
struct Session {
    client: Client,
    screen: Screen,
    look: Look,
    newest: Arc<Newest>,
    sender: Sender<Update>,
    updates: Receiver<Update>,
}

/// Reason to go on, or the end.
type Step = Result<Option<ExitCode>, Failure>;

impl Session {
    fn run(mut self, terminal: &mut Terminal) -> Result<ExitCode, Failure> {
        loop {
            let (screen, look) = (&self.screen, self.look);
            let unix = unix_seconds();
            let drawn = terminal.draw(|frame| draw::draw_screen(screen, look, unix, frame.area(), frame.buffer_mut()));
            drawn.map_err(no_terminal)?;
            let mut update = match self.updates.recv_timeout(DRAW_INTERVAL) {
                Ok(update) => Some(update),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::broken("no thread is left")),
            };
            // All that has come is shown at once.
            while let Some(next) = update {
                if let Some(code) = self.handle_update(next, terminal)? {
                    return Ok(code);
                }
                update = self.updates.try_recv().ok();
            }
        }
    }

    fn handle_update(&mut self, update: Update, terminal: &mut Terminal) -> Step {
        match update {
            Update::Terminal(event) => {
                let effect = self.screen.handle_event(&event.map_err(no_terminal)?);
                return effect.map_or(Ok(None), |effect| self.carry_out(effect, terminal));
            }
            Update::StatusReady => {
                if let Some(status) = self.newest.lock().take() {
                    self.screen.take_status(status);
                }
            }
            Update::ContactLost(problem) => self.screen.lose_contact(problem, unix_seconds()),
            Update::Answered { order, result } => self.screen.take_answer(&order, result),
            Update::LogRead { node, result } => self.screen.take_log(&node, result),
            Update::Interrupted => return Ok(Some(ExitCode::from(INTERRUPTED))),
            Update::Panicked => return Err(Failure::broken("a part of the program has failed: see the message above")),
        }
        Ok(None)
    }

    fn carry_out(&mut self, effect: Effect, terminal: &mut Terminal) -> Step {
        let client = self.client.clone();
        match effect {
            Effect::Send(Order { name, request: ChangeRequest { path, body } }) => start_watched(&self.sender, {
                move |sender| {
                    let result = client.post::<Value>(&path, &body).map(drop).map_err(|failure| failure.to_string());
                    let _ = sender.send(Update::Answered { order: name, result });
                }
            })?,
            Effect::ReadLog(node) => start_watched(&self.sender, {
                move |sender| {
                    let result = client.process_log(&node, LOG_LINES).map_err(|failure| failure.to_string());
                    let _ = sender.send(Update::LogRead { node, result });
                }
            })?,
            Effect::Suspend => {
                let stop = || _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTSTP);
                terminal.lend_terminal(stop).map_err(no_terminal)?;
            }
            Effect::Quit => return Ok(Some(ExitCode::SUCCESS)),
        }
        Ok(None)
    }
}
