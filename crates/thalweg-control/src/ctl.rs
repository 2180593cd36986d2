//! `thalweg ctl`: commands to a service, for people and scripts.

use crate::pointer::{Pointer, pointer_path};
use crate::records::RunRecord;
use crate::state::{CommandName, ExperimentState};
use crate::status::{Status, TroubleLevel};
use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use thalweg::terminal::{Failure, Output};
use thalweg_text::{format_count, format_rate, format_seconds, replace_controls};

/// Time until a request is given up: arming examines all hosts.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Time from one request for the status to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Options of `thalweg ctl`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Address of the service: http://HOST:PORT. That of the environment variable THALWEG_CONTROL_URL, or else of this
    /// user's last one, if it is left out
    #[arg(long, global = true)]
    url: Option<String>,
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
    /// Start or end the process of a node
    Process {
        /// Start the process, or end it
        #[arg(value_parser = ["start", "stop"])]
        action: String,
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
    let client = Client::new(options.url.clone())?;
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
            let log: Value = client.get(&format!("/api/v1/processes/{}/log?lines={lines}", encode_name(node)))?;
            if json {
                output.json(&log)?;
            } else {
                for line in log["lines"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    output.text(&format!("{}\n", replace_controls(line)))?;
                }
            }
        }
        action => {
            let (path, body) = change_request(action);
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

/// Returns the path and the body of a request that changes something.
fn change_request(action: &Action) -> (String, Value) {
    match action {
        Action::Configure { without } => (command_path(CommandName::Configure), json!({ "without": without })),
        Action::Arm => (command_path(CommandName::Arm), json!({})),
        Action::Start { kind, note } => (command_path(CommandName::Start), json!({ "kind": kind, "note": note })),
        Action::Next { kind, note } => (command_path(CommandName::Next), json!({ "kind": kind, "note": note })),
        Action::Step { label, data } => (command_path(CommandName::Step), json!({ "label": label, "data": data })),
        Action::Stop => (command_path(CommandName::Stop), json!({})),
        Action::Pause => (command_path(CommandName::Pause), json!({})),
        Action::Resume => (command_path(CommandName::Resume), json!({})),
        Action::Abort => (command_path(CommandName::Abort), json!({})),
        Action::Note { run, text } => (format!("/api/v1/runs/{run}/note"), json!({ "text": text })),
        Action::Flag { run, flag, why } => (format!("/api/v1/runs/{run}/flag"), json!({ "flag": flag, "why": why })),
        Action::Acknowledge { alarm, why } => {
            (format!("/api/v1/alarms/{}/acknowledge", encode_name(alarm)), json!({ "why": why }))
        }
        Action::Process { action, node } => (format!("/api/v1/processes/{}/{action}", encode_name(node)), json!({})),
        Action::Status { .. } | Action::Runs { .. } | Action::Log { .. } => (String::new(), Value::Null),
    }
}

fn command_path(command: CommandName) -> String {
    format!("/api/v1/commands/{command}")
}

fn encode_name(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Client of a service.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
}

impl Client {
    /// Creates a client of the service at `url`, or of this user's last one.
    ///
    /// # Errors
    /// No service is known, or no token.
    pub fn new(url: Option<String>) -> Result<Self, Failure> {
        let pointer = Pointer::read_file();
        let token = std::env::var("THALWEG_CONTROL_TOKEN").ok();
        let known = pointer.as_ref().ok();
        let url = url
            .or_else(|| std::env::var("THALWEG_CONTROL_URL").ok())
            .or_else(|| known.map(|pointer| pointer.url.clone()))
            .ok_or_else(|| {
                let path = pointer_path();
                Failure::Usage(format!(
                    "no service is known ({} is not there): start one with `thalweg control FILE`, or give --url",
                    path.display()
                ))
            })?;
        let token = token.or_else(|| {
            known.filter(|pointer| pointer.url == url.trim_end_matches('/')).map(|pointer| pointer.token.clone())
        });
        let token = token.ok_or_else(|| {
            Failure::Usage(format!("no token for {url}: set THALWEG_CONTROL_TOKEN to one of the service's tokens.toml"))
        })?;
        Ok(Self::with_token(&url, &token))
    }

    /// Creates a client of the service at `url` with the secret of a token.
    pub fn with_token(url: &str, token: &str) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIME)).http_status_as_error(false);
        Self { agent: config.build().into(), url: url.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// Gets a document.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.agent.get(format!("{}{path}", self.url));
        self.read_answer(request.header("authorization", format!("Bearer {}", self.token)).call())
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Failure> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        self.read_answer(request.header("content-type", "application/json").send(body.to_string()))
    }

    fn read_answer<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let mut answer = answer.map_err(|error| {
            Failure::Usage(format!(
                "no answer of a service at {}: {error}; is `thalweg control` running there?",
                self.url
            ))
        })?;
        let text = answer.body_mut().read_to_string().map_err(Failure::broken)?;
        if answer.status().is_success() {
            return serde_json::from_str(if text.is_empty() { "null" } else { &text }).map_err(Failure::broken);
        }
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let reason = body["error"]["reason"].as_str().unwrap_or(&text);
        let reason = replace_controls(reason).to_string();
        Err(match answer.status().as_u16() {
            409 | 503 => Failure::Broken(reason),
            _ => Failure::Usage(reason),
        })
    }
}

fn watch_status(client: &Client, output: &mut Output, json: bool) -> Result<ExitCode, Failure> {
    let mut shown = None;
    while output.is_read() {
        let status: Status = client.get("/api/v1/status")?;
        let line = status_line(&status);
        if json {
            output.json(&status)?;
        } else if shown.as_ref() != Some(&line) {
            output.text(&format!("{line}\n"))?;
            shown = Some(line);
        }
        output.flush()?;
        thread::sleep(POLL_INTERVAL);
    }
    Ok(ExitCode::SUCCESS)
}

fn wait_for_state(client: &Client, state: ExperimentState, timeout: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let status: Status = client.get("/api/v1/status")?;
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
        thread::sleep(POLL_INTERVAL);
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
