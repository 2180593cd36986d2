//! `thalweg ctl`: commands to a service, for people and scripts.

use crate::client::{ChangeRequest, Client};
use crate::processes::ProcessAction;
use crate::records::RunRecord;
use crate::state::{CommandName, ExperimentState};
use crate::status::{Status, TroubleLevel};
use clap::Subcommand;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use thalweg::terminal::{Failure, Output};
use thalweg_text::{format_count, format_rate, format_seconds, replace_controls};

/// Options that say which service is meant.
#[derive(Debug, clap::Args)]
pub struct ServiceOptions {
    /// Address of the service: http://HOST:PORT. That of the environment variable THALWEG_CONTROL_URL, or else of this
    /// user's last one, if it is left out
    #[arg(long, global = true)]
    pub url: Option<String>,
}

/// Options of `thalweg ctl`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    service: ServiceOptions,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the state, what is wrong, and what can be done
    Status {
        /// Show it again and again
        #[arg(long, conflicts_with = "until")]
        watch: bool,
        /// Wait for a state, and fail if it has not come within --timeout
        #[arg(long, value_name = "STATE", value_parser = parse_state)]
        until: Option<ExperimentState>,
        /// Longest wait for that state
        #[arg(long, default_value = "60s", value_parser = thalweg_text::parse_duration)]
        timeout: Duration,
    },
    /// Read the topology, start nodes that are missing, and send it to all
    Configure {
        /// Leave this source out of the runs, until the experiment is configured anew
        #[arg(long, value_name = "SOURCE")]
        without: Vec<String>,
    },
    /// Examine each host, and wait until all sources are connected
    Arm,
    /// Begin a run
    Start {
        /// Kind of the run
        #[arg(long, default_value = "physics", value_parser = ["physics", "test"])]
        kind: String,
        /// Comment on the run
        #[arg(long, default_value = "")]
        note: String,
    },
    /// End the run at one event for all sources
    Stop,
    /// Make all sources accept nothing for now
    Pause,
    /// Make all sources accept events again
    Resume,
    /// End the run now; events that are not closed are lost
    Abort,
    /// Begin another run without a gap
    Next {
        /// Kind of the run
        #[arg(long, default_value = "physics", value_parser = ["physics", "test"])]
        kind: String,
        /// Comment on the run
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Mark a step of a scan between two events
    Step {
        /// Label of the step
        label: String,
        /// Facts about the step, as JSON
        #[arg(long, value_name = "JSON", value_parser = parse_json)]
        data: Option<Value>,
    },
    /// List the runs, the newest first
    Runs {
        /// Number of runs
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Add a note to a run
    Note {
        /// Number of the run
        run: u32,
        /// The text
        text: String,
    },
    /// Judge a run
    Flag {
        /// Number of the run
        run: u32,
        /// The judgement
        #[arg(value_parser = ["good", "bad", "unknown"])]
        flag: String,
        /// Reason for it
        #[arg(long, default_value = "")]
        why: String,
    },
    /// Acknowledge an alarm
    Acknowledge {
        /// Name of the alarm, as `status` shows it
        alarm: String,
        /// Reason for it
        #[arg(long, default_value = "")]
        why: String,
    },
    /// Start, end or restart the process of a node
    Process {
        /// Action on the process: start, stop or restart
        action: ProcessAction,
        /// Name of the node
        node: String,
    },
    /// Show the last lines of the log of a node's process
    Log {
        /// Name of the node
        node: String,
        /// Number of lines
        #[arg(long, default_value_t = 20)]
        lines: u32,
    },
}

fn parse_state(text: &str) -> Result<ExperimentState, String> {
    let names = ExperimentState::ALL.map(ExperimentState::name).join(", ");
    let found = ExperimentState::ALL.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| format!("there is no such state; the states are {names}"))
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Runs `thalweg ctl`.
///
/// # Errors
/// The service cannot be reached, or refuses the request.
pub fn run_ctl(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let client = Client::new(options.service.url.clone())?;
    let mut output = Output::new();
    match &options.action {
        Action::Status { watch: true, .. } => return watch_status(&client, &mut output, json),
        Action::Status { until: Some(state), timeout, .. } => wait_for_state(&client, *state, *timeout)?,
        Action::Status { .. } => {
            let status: Status = client.get("/api/v1/status")?;
            print_status(&mut output, &status, json)?;
        }
        Action::Runs { limit } => {
            let list: Value = client.get(&format!("/api/v1/runs?limit={limit}"))?;
            let runs: Vec<RunRecord> = serde_json::from_value(list["runs"].clone()).map_err(Failure::broken)?;
            if json {
                output.json(&list)?;
            } else {
                output.text(&runs_text(&runs))?;
            }
        }
        Action::Log { node, lines } => {
            let lines = client.process_log(node, *lines)?;
            if json {
                output.json(&json!({ "lines": lines }))?;
            } else {
                lines.iter().try_for_each(|line| output.text(&format!("{line}\n")))?;
            }
        }
        action => {
            let Some(ChangeRequest { path, body }) = change_request(action) else { return Ok(ExitCode::SUCCESS) };
            let answer: Value = client.post(&path, &body)?;
            if json {
                output.json(&answer)?;
            } else if let Ok(status) = serde_json::from_value::<Status>(answer["status"].clone()) {
                output.text(&format!("{}: {}\n", status.state, replace_controls(&status.sentence)))?;
            }
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the request that changes something; `None` for an action that only reads.
fn change_request(action: &Action) -> Option<ChangeRequest> {
    match action {
        Action::Configure { without } => {
            Some(ChangeRequest::command(CommandName::Configure, json!({ "without": without })))
        }
        Action::Arm => Some(ChangeRequest::command(CommandName::Arm, json!({}))),
        Action::Start { kind, note } => {
            Some(ChangeRequest::command(CommandName::Start, json!({ "kind": kind, "note": note })))
        }
        Action::Next { kind, note } => {
            Some(ChangeRequest::command(CommandName::Next, json!({ "kind": kind, "note": note })))
        }
        Action::Step { label, data } => {
            Some(ChangeRequest::command(CommandName::Step, json!({ "label": label, "data": data })))
        }
        Action::Stop => Some(ChangeRequest::command(CommandName::Stop, json!({}))),
        Action::Pause => Some(ChangeRequest::command(CommandName::Pause, json!({}))),
        Action::Resume => Some(ChangeRequest::command(CommandName::Resume, json!({}))),
        Action::Abort => Some(ChangeRequest::command(CommandName::Abort, json!({}))),
        Action::Note { run, text } => {
            Some(ChangeRequest { path: format!("/api/v1/runs/{run}/note"), body: json!({ "text": text }) })
        }
        Action::Flag { run, flag, why } => {
            let body = json!({ "flag": flag, "why": why });
            Some(ChangeRequest { path: format!("/api/v1/runs/{run}/flag"), body })
        }
        Action::Acknowledge { alarm, why } => Some(ChangeRequest::acknowledge(alarm, why)),
        Action::Process { action, node } => Some(ChangeRequest::process(node, *action)),
        Action::Status { .. } | Action::Runs { .. } | Action::Log { .. } => None,
    }
}

fn watch_status(client: &Client, output: &mut Output, json: bool) -> Result<ExitCode, Failure> {
    let mut shown = None;
    let mut statuses = client.follow_status()?;
    while output.is_read() {
        let status = statuses.next_status()?;
        let line = status_line(&status);
        if json {
            output.json(&status)?;
        } else if shown.as_ref() != Some(&line) {
            output.text(&format!("{line}\n"))?;
            shown = Some(line);
        }
        output.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wait_for_state(client: &Client, state: ExperimentState, timeout: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut statuses = client.follow_status()?;
    loop {
        let status = statuses.next_status()?;
        if status.state == state {
            return Ok(());
        }
        if begun.elapsed() > timeout {
            let time = humantime::format_duration(timeout);
            return Err(Failure::Broken(format!(
                "the experiment is {} and not {state} after {time}: {}",
                status.state, status.sentence
            )));
        }
    }
}

fn status_line(status: &Status) -> String {
    let totals = &status.totals;
    let mut line = format!("{}: {}", status.state, status.sentence);
    if status.state.has_run() {
        line += &format!(
            "; {} events, {} incomplete, {}",
            format_count(totals.events),
            format_count(totals.incomplete),
            format_rate(totals.bytes_per_second)
        );
    }
    let alarms = status.alarms.iter().filter(|alarm| alarm.is_active && !alarm.is_acknowledged).count();
    if alarms > 0 {
        line += &format!("; {alarms} {}", if alarms == 1 { "alarm" } else { "alarms" });
    }
    if status.silenced_alarms > 0 {
        line += &format!("; {} silenced", status.silenced_alarms);
    }
    replace_controls(&line).to_string()
}

fn print_status(output: &mut Output, status: &Status, json: bool) -> Result<(), Failure> {
    if json {
        return output.json(status);
    }
    output.text(&status_text(status))
}

/// Returns a status for a terminal.
pub fn status_text(status: &Status) -> String {
    let mut lines = vec![format!("{}  {}", status.experiment, status_line(status))];
    lines.extend(status.reasons.iter().map(|reason| format!("  reason: {reason}")));
    if let Some(run) = &status.run {
        let note = if run.note.is_empty() { String::new() } else { format!(": {}", run.note) };
        lines.push(format!("run {} ({}), {}{note}", run.number, run.kind, format_seconds(run.seconds)));
    } else if let Some(next) = status.next_number {
        let directory = if status.directory.is_empty() { "nothing is recorded" } else { &status.directory };
        lines.push(format!("the next run gets number {next}; {directory}"));
    }
    if let Some(draining) = status.draining {
        lines.push(format!(
            "draining: {} of {} events are left",
            format_count(draining.left),
            format_count(draining.of)
        ));
    }
    if !status.left_out.is_empty() {
        lines.push(format!("left out: {}", status.left_out.join(", ")));
    }
    for source in &status.sources {
        let mark = match source.severity {
            TroubleLevel::Ok => ' ',
            TroubleLevel::Minor => '!',
            TroubleLevel::Major => 'X',
        };
        let rate = format_rate(source.bytes_per_second);
        lines.push(format!("{mark} {:<16} {:>12}  {}", source.name, rate, source.trouble));
    }
    for event in status.incomplete_events.iter().take(3) {
        let missing: Vec<String> =
            event.missing.iter().map(|missing| format!("{} on {}", missing.source, missing.host)).collect();
        lines.push(format!("event {} is incomplete without {}", event.event, missing.join(", ")));
    }
    for alarm in status.alarms.iter().filter(|alarm| alarm.is_active) {
        let silenced = if alarm.is_acknowledged { " (acknowledged)" } else { "" };
        lines.push(format!("alarm {}: {}{silenced}", alarm.id, alarm.text));
    }
    let legal: Vec<&str> =
        status.commands.iter().filter(|(_, legality)| legality.legal).map(|(command, _)| command.name()).collect();
    lines.push(format!("legal now: {}", if legal.is_empty() { "nothing".to_owned() } else { legal.join(", ") }));
    lines.iter().map(|line| format!("{}\n", replace_controls(line))).collect()
}

fn runs_text(runs: &[RunRecord]) -> String {
    if runs.is_empty() {
        return "no runs\n".into();
    }
    runs.iter().map(run_line).collect()
}

fn run_line(run: &RunRecord) -> String {
    let state = serde_json::to_value(run.state).unwrap_or_default();
    let flag = run.flag.as_ref().map(|flag| serde_json::to_value(flag.flag).unwrap_or_default());
    let flag = flag.as_ref().and_then(Value::as_str).unwrap_or("-");
    let text = format!(
        "{:>8}  {:<10} {:<8} {:>12} events  {:<8} {}",
        run.number,
        state.as_str().unwrap_or_default(),
        run.kind,
        format_count(run.events),
        flag,
        run.note
    );
    format!("{}\n", replace_controls(text.trim_end()))
}
