//! State of the screen: the newest status, what is selected, the dialog that is open; and what keys do. Sans-IO.

use crate::client::ChangeRequest;
use crate::processes::ProcessAction;
use crate::state::CommandName;
use crate::status::{ProcessView, Status};
use crate::top::trouble::find_troubles;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;
use thalweg_node::RunKind;

/// Longest text that can be typed, in bytes: that of a note, and that of a step's label.
const MAX_NOTE_BYTES: usize = 4096;
const MAX_LABEL_BYTES: usize = 256;

/// Commands in the order in which they are shown, with their keys: letters of their names.
pub const COMMAND_KEYS: [(CommandName, char); 9] = [
    (CommandName::Configure, 'c'),
    (CommandName::Arm, 'a'),
    (CommandName::Start, 's'),
    (CommandName::Pause, 'p'),
    (CommandName::Resume, 'r'),
    (CommandName::Next, 'n'),
    (CommandName::Step, 'e'),
    (CommandName::Stop, 'o'),
    (CommandName::Abort, 'b'),
];

/// Actions on processes in the order in which they are shown, with their keys.
pub const PROCESS_KEYS: [(ProcessAction, char); 3] =
    [(ProcessAction::Start, 's'), (ProcessAction::Stop, 'o'), (ProcessAction::Restart, 'r')];

/// State of the screen.
#[derive(Debug, Clone, Default)]
pub struct Screen {
    /// Address of the service.
    pub url: String,
    /// Newest status; `None` as long as none has come.
    pub status: Option<Box<Status>>,
    /// Contact with the service.
    pub contact: Contact,
    /// Part that is shown.
    pub tab: Tab,
    /// Dialog that is open.
    pub dialog: Option<Dialog>,
    /// Answer to the last key or request.
    pub notice: Option<Notice>,
    /// Requests under way, by what they ask for.
    pub pending: Vec<String>,
    /// Number of rows by which the sources, or the processes, are scrolled.
    pub scroll: usize,
    /// Process that is selected: its row.
    pub selected: usize,
}

/// Contact with the service.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Contact {
    /// The first status has not come.
    #[default]
    Connecting,
    /// Statuses come.
    Live,
    /// No status comes.
    Lost {
        /// Time since which: Unix time in seconds.
        since: f64,
        /// The reason.
        problem: String,
    },
}

/// Part of the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tab {
    /// State, troubles, sources, builders, ledger, messages.
    #[default]
    Run,
    /// Processes of the nodes.
    Processes,
}

/// Answer to a key or a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// True if something was refused, or failed.
    pub is_refusal: bool,
    /// The text.
    pub text: String,
}

/// Dialog, which takes all keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Dialog {
    /// List of the keys.
    Help,
    /// Question that is answered with yes or no.
    Confirm {
        /// The question.
        question: String,
        /// What happens on yes.
        order: Order,
    },
    /// Text that is asked for.
    Text {
        /// What it is for.
        purpose: Purpose,
        /// The text so far.
        text: String,
    },
    /// Last lines of a log.
    Log {
        /// Name of the node.
        node: String,
        /// The lines; `None` until they have come.
        lines: Option<Vec<String>>,
    },
}

/// Purpose of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Purpose {
    /// Note of the run that `start` or `next` begins, and its kind.
    Run(CommandName, RunKind),
    /// Label of a step.
    Step,
    /// Reason with which this alarm is acknowledged.
    Acknowledge {
        /// Name of the alarm.
        id: String,
        /// The alarm in a sentence.
        alarm: String,
    },
}

impl Purpose {
    fn max_bytes(&self) -> usize {
        if *self == Self::Step { MAX_LABEL_BYTES } else { MAX_NOTE_BYTES }
    }
}

/// Request to the service, with a name for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// Name: `start`, `restart adc-0`.
    pub name: String,
    /// The request.
    pub request: ChangeRequest,
}

/// Consequence of an event for the program.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The request is to be sent.
    Send(Order),
    /// The log of this node is to be read.
    ReadLog(String),
    /// The program is to be put into the background of its shell.
    Suspend,
    /// The program ends.
    Quit,
}

impl Screen {
    /// Creates the screen of the service at `url`.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), ..Self::default() }
    }

    /// Takes a status, which is newer than the one before.
    pub fn take_status(&mut self, status: Box<Status>) {
        self.selected = self.selected.min(status.processes.len().saturating_sub(1));
        self.status = Some(status);
        self.contact = Contact::Live;
    }

    /// Notes that statuses do not come any more.
    pub fn lose_contact(&mut self, problem: String, unix: f64) {
        let since = match self.contact {
            Contact::Lost { since, .. } => since,
            Contact::Connecting | Contact::Live => unix,
        };
        self.contact = Contact::Lost { since, problem };
    }

    /// Takes the answer to a request: the reason, if it was refused or failed.
    pub fn take_answer(&mut self, order: &str, result: Result<(), String>) {
        if let Some(index) = self.pending.iter().position(|pending| pending == order) {
            self.pending.remove(index);
        }
        self.notice = Some(match result {
            Ok(()) => Notice { is_refusal: false, text: format!("{order}: done") },
            Err(reason) => Notice { is_refusal: true, text: reason },
        });
    }

    /// Takes the lines of a log that was asked for.
    pub fn take_log(&mut self, node: &str, result: Result<Vec<String>, String>) {
        if let Some(Dialog::Log { node: shown, lines }) = &mut self.dialog
            && shown == node
        {
            *lines = Some(result.unwrap_or_else(|reason| vec![reason]));
        }
    }

    /// Returns the reason why a command cannot be given now.
    ///
    /// # Errors
    /// That is the reason.
    pub fn check_command(&self, command: CommandName) -> Result<(), String> {
        let status = self.check_contact()?;
        let legality = status.commands.get(&command).ok_or_else(|| format!("the service has no command {command}"))?;
        if !legality.legal {
            return Err(legality.reason.clone());
        }
        match self.pending.first() {
            // A run can be aborted whatever else is under way.
            Some(pending) if command != CommandName::Abort => {
                Err(format!("{pending} is under way: wait for its answer"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the reason why an action on the selected process is not possible now.
    ///
    /// # Errors
    /// That is the reason.
    pub fn check_process_action(&self, action: ProcessAction) -> Result<&ProcessView, String> {
        let status = self.check_contact()?;
        let process = status.processes.get(self.selected).ok_or("the topology has no nodes that are started")?;
        match process.actions.get(&action) {
            Some(legality) if legality.legal => Ok(process),
            Some(legality) => Err(legality.reason.clone()),
            None => Err(format!("the service has no action {action}")),
        }
    }

    fn check_contact(&self) -> Result<&Status, String> {
        let status = self.status.as_deref().filter(|_| self.contact == Contact::Live);
        status.ok_or_else(|| "there is no contact with the service".to_owned())
    }

    /// Takes an event of the terminal. Returns its consequence.
    pub fn handle_event(&mut self, event: &Event) -> Option<Effect> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.handle_key(key),
            Event::Paste(pasted) => {
                if let Some(Dialog::Text { purpose, text }) = &mut self.dialog {
                    pasted.chars().for_each(|char| push_char(text, char, purpose.max_bytes()));
                }
                None
            }
            _ => None,
        }
    }

    fn handle_key(&mut self, key: &KeyEvent) -> Option<Effect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Some(Effect::Quit),
                KeyCode::Char('z') => return Some(Effect::Suspend),
                KeyCode::Char('u' | 'w') | KeyCode::Backspace => {}
                _ => return None,
            }
        }
        match self.dialog.take() {
            None => self.handle_plain_key(key),
            Some(Dialog::Text { purpose, text }) => self.handle_text_key(key, purpose, text),
            Some(Dialog::Confirm { question, order }) => match key.code {
                KeyCode::Char('y' | 'Y') => self.send_order(order),
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => None,
                _ => {
                    self.dialog = Some(Dialog::Confirm { question, order });
                    None
                }
            },
            Some(Dialog::Help | Dialog::Log { .. }) => None,
        }
    }

    fn handle_plain_key(&mut self, key: &KeyEvent) -> Option<Effect> {
        self.notice = None;
        match key.code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Tab | KeyCode::BackTab => self.set_tab(match self.tab {
                Tab::Run => Tab::Processes,
                Tab::Processes => Tab::Run,
            }),
            KeyCode::Char('1') => self.set_tab(Tab::Run),
            KeyCode::Char('2') => self.set_tab(Tab::Processes),
            KeyCode::Up => self.move_rows(-1),
            KeyCode::Down => self.move_rows(1),
            KeyCode::PageUp => self.move_rows(-10),
            KeyCode::PageDown => self.move_rows(10),
            KeyCode::Char('k') => self.ask_acknowledgement(),
            KeyCode::Char(char) if self.tab == Tab::Processes => return self.handle_process_key(char),
            KeyCode::Char(char) => {
                let (command, _) = COMMAND_KEYS.into_iter().find(|(_, key)| *key == char)?;
                return self.give_command(command);
            }
            _ => {}
        }
        None
    }

    fn set_tab(&mut self, tab: Tab) {
        (self.tab, self.scroll) = (tab, 0);
    }

    fn move_rows(&mut self, rows: isize) {
        let Some(status) = &self.status else { return };
        match self.tab {
            Tab::Run => {
                let last = status.sources.len().saturating_sub(1);
                self.scroll = self.scroll.saturating_add_signed(rows).min(last);
            }
            Tab::Processes => {
                let last = status.processes.len().saturating_sub(1);
                self.selected = self.selected.saturating_add_signed(rows).min(last);
            }
        }
    }

    fn show_refusal(&mut self, reason: String) -> Option<Effect> {
        self.notice = Some(Notice { is_refusal: true, text: reason });
        None
    }

    /// Gives a command, after a question where it has one.
    fn give_command(&mut self, command: CommandName) -> Option<Effect> {
        if let Err(reason) = self.check_command(command) {
            return self.show_refusal(reason);
        }
        let run = self.status.as_ref().and_then(|status| status.run.as_ref());
        let run = run.map_or_else(|| "the run".to_owned(), |run| format!("run {}", run.number));
        let order = Order { name: command.name().into(), request: ChangeRequest::command(command, json!({})) };
        let question = match command {
            CommandName::Start | CommandName::Next => {
                let purpose = Purpose::Run(command, RunKind::Physics);
                self.dialog = Some(Dialog::Text { purpose, text: String::new() });
                return None;
            }
            CommandName::Step => {
                self.dialog = Some(Dialog::Text { purpose: Purpose::Step, text: String::new() });
                return None;
            }
            CommandName::Stop => format!("Stop {run}?"),
            CommandName::Abort => format!("Abort {run}? Events that are not closed are lost."),
            _ => return self.send_order(order),
        };
        self.dialog = Some(Dialog::Confirm { question, order });
        None
    }

    fn handle_process_key(&mut self, key: char) -> Option<Effect> {
        if key == 'l' {
            let node = self.status.as_ref()?.processes.get(self.selected)?.node.clone();
            self.dialog = Some(Dialog::Log { node: node.clone(), lines: None });
            return Some(Effect::ReadLog(node));
        }
        let (action, _) = PROCESS_KEYS.into_iter().find(|(_, other)| *other == key)?;
        let node = match self.check_process_action(action) {
            Ok(process) => process.node.clone(),
            Err(reason) => return self.show_refusal(reason),
        };
        let order = Order { name: format!("{action} {node}"), request: ChangeRequest::process(&node, action) };
        if action == ProcessAction::Start {
            return self.send_order(order);
        }
        let has_run = self.status.as_ref().is_some_and(|status| status.run.is_some());
        let warning = if has_run && action == ProcessAction::Stop { " A run is under way." } else { "" };
        let verb = if action == ProcessAction::Stop { "Stop" } else { "Restart" };
        self.dialog = Some(Dialog::Confirm { question: format!("{verb} the process of {node}?{warning}"), order });
        None
    }

    /// Asks for the reason of the acknowledgement of the first alarm that is not acknowledged.
    fn ask_acknowledgement(&mut self) {
        let alarms = self.status.iter().flat_map(|status| find_troubles(status)).flat_map(|trouble| trouble.alarms);
        let alarm = alarms.into_iter().find(|alarm| !alarm.is_acknowledged);
        match (self.check_contact().err(), alarm) {
            (Some(reason), _) => _ = self.show_refusal(reason),
            (None, None) => _ = self.show_refusal("there is no alarm that is not acknowledged".into()),
            (None, Some(alarm)) => {
                let purpose = Purpose::Acknowledge { id: alarm.id, alarm: alarm.text };
                self.dialog = Some(Dialog::Text { purpose, text: String::new() });
            }
        }
    }

    fn handle_text_key(&mut self, key: &KeyEvent, mut purpose: Purpose, mut text: String) -> Option<Effect> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return None,
            KeyCode::Enter if is_complete(&purpose, &text) => return self.send_order(text_order(purpose, text.trim())),
            KeyCode::Tab | KeyCode::BackTab => {
                if let Purpose::Run(_, kind) = &mut purpose {
                    *kind = if *kind == RunKind::Physics { RunKind::Test } else { RunKind::Physics };
                }
            }
            KeyCode::Char('u') if is_control => text.clear(),
            KeyCode::Char('w') if is_control => {
                let end = text.trim_end().rfind(' ').map_or(0, |space| space + 1);
                text.truncate(end);
            }
            KeyCode::Backspace => _ = text.pop(),
            KeyCode::Char(char) if !is_control => push_char(&mut text, char, purpose.max_bytes()),
            _ => {}
        }
        self.dialog = Some(Dialog::Text { purpose, text });
        None
    }

    fn send_order(&mut self, order: Order) -> Option<Effect> {
        if self.pending.contains(&order.name) {
            return self.show_refusal(format!("{} is under way: wait for its answer", order.name));
        }
        self.pending.push(order.name.clone());
        Some(Effect::Send(order))
    }
}

/// Adds a character to a text; control characters, and what is too much, are left out.
fn push_char(text: &mut String, char: char, max_bytes: usize) {
    if !char.is_control() && text.len() + char.len_utf8() <= max_bytes {
        text.push(char);
    }
}

/// Returns whether a text suffices for its purpose: a run may be without a note.
fn is_complete(purpose: &Purpose, text: &str) -> bool {
    matches!(purpose, Purpose::Run(..)) || !text.trim().is_empty()
}

fn text_order(purpose: Purpose, text: &str) -> Order {
    match purpose {
        Purpose::Run(command, kind) => {
            let request = ChangeRequest::command(command, json!({ "kind": kind.name(), "note": text }));
            Order { name: command.name().into(), request }
        }
        Purpose::Step => {
            let request = ChangeRequest::command(CommandName::Step, json!({ "label": text }));
            Order { name: CommandName::Step.name().into(), request }
        }
        Purpose::Acknowledge { id, .. } => {
            Order { name: format!("acknowledge {id}"), request: ChangeRequest::acknowledge(&id, text) }
        }
    }
}
