//! Client of a service: requests, and its status as it changes. `thalweg ctl` and `thalweg top` are made of it.

pub mod event_stream;

use crate::pointer::{Pointer, pointer_path};
use crate::processes::ProcessAction;
use crate::state::CommandName;
use crate::status::Status;
use event_stream::EventParser;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::Read;
use std::time::Duration;
use thalweg::terminal::Failure;
use thalweg_text::replace_controls;

/// Time until a request is given up: arming examines all hosts.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Time until an attempt to follow the status is given up.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Time without a status after which the connection counts as lost: the service sends several in a second.
const SILENCE_TIME: Duration = Duration::from_secs(5);
/// Bytes that are read from the stream of statuses at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Client of a service.
#[derive(Debug, Clone)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
}

/// Request that changes something.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeRequest {
    /// Path of the request.
    pub path: String,
    /// Its body.
    pub body: Value,
}

impl ChangeRequest {
    /// Returns the request for a command with these arguments.
    pub fn command(command: CommandName, arguments: Value) -> Self {
        Self { path: format!("/api/v1/commands/{command}"), body: arguments }
    }

    /// Returns the request for an action on the process of a node.
    pub fn process(node: &str, action: ProcessAction) -> Self {
        Self { path: format!("/api/v1/processes/{}/{action}", encode_name(node)), body: json!({}) }
    }

    /// Returns the request that acknowledges an alarm, with a reason.
    pub fn acknowledge(alarm: &str, why: &str) -> Self {
        Self { path: format!("/api/v1/alarms/{}/acknowledge", encode_name(alarm)), body: json!({ "why": why }) }
    }
}

/// Returns a name as part of a path.
fn encode_name(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
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
        // A connection that the service has closed meanwhile would lose the next command, which may not be sent twice.
        let config = config.max_idle_connections(0);
        Self { agent: config.build().into(), url: url.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// Returns the address of the service.
    pub fn url(&self) -> &str {
        &self.url
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

    /// Returns the last lines of the log of a node's process.
    ///
    /// # Errors
    /// The service cannot be reached, or has no log of it.
    pub fn process_log(&self, node: &str, lines: u32) -> Result<Vec<String>, Failure> {
        let log: Value = self.get(&format!("/api/v1/processes/{}/log?lines={lines}", encode_name(node)))?;
        let lines = log["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(lines.map(|line| replace_controls(line).into_owned()).collect())
    }

    /// Connects to the stream of statuses.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses.
    pub fn follow_status(&self) -> Result<StatusStream, Failure> {
        let request = self.agent.get(format!("{}/api/v1/events", self.url));
        let request = request.header("authorization", format!("Bearer {}", self.token));
        let request = request
            .config()
            .timeout_global(None)
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_recv_response(Some(CONNECT_TIME))
            .timeout_per_read(Some(SILENCE_TIME))
            .build();
        let answer = request.call().map_err(|error| self.no_answer(&error))?;
        if answer.status() != 200 {
            let code = answer.status().as_u16();
            let text = answer.into_body().read_to_string().map_err(Failure::broken)?;
            return Err(refusal_failure(code, &text));
        }
        let reader = Box::new(answer.into_body().into_reader());
        Ok(StatusStream { url: self.url.clone(), reader, parser: EventParser::default() })
    }

    fn no_answer(&self, error: &ureq::Error) -> Failure {
        Failure::Usage(format!("no answer of a service at {}: {error}; is `thalweg control` running there?", self.url))
    }

    fn read_answer<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let mut answer = answer.map_err(|error| self.no_answer(&error))?;
        let text = answer.body_mut().read_to_string().map_err(Failure::broken)?;
        if answer.status() == 200 {
            return serde_json::from_str(&text).map_err(Failure::broken);
        }
        Err(refusal_failure(answer.status().as_u16(), &text))
    }
}

/// Returns the failure of a request that the service has refused with this body.
fn refusal_failure(code: u16, text: &str) -> Failure {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let reason = body["error"]["reason"].as_str().unwrap_or(text);
    let reason = replace_controls(reason).to_string();
    match code {
        409 | 503 => Failure::Broken(reason),
        _ => Failure::Usage(reason),
    }
}

/// Statuses of a service as they change: the newest only, where they come faster than they are taken.
pub struct StatusStream {
    url: String,
    reader: Box<dyn Read + Send>,
    parser: EventParser,
}

impl std::fmt::Debug for StatusStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusStream").field("url", &self.url).finish_non_exhaustive()
    }
}

impl StatusStream {
    /// Waits for the next status.
    ///
    /// # Errors
    /// The connection is down, or silent for too long, or what comes is no status.
    pub fn next_status(&mut self) -> Result<Status, Failure> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = self.reader.read(&mut chunk).map_err(|error| self.lost_contact(&error.to_string()))?;
            if length == 0 {
                return Err(self.lost_contact("it has closed the connection"));
            }
            let events =
                self.parser.push_bytes(&chunk[..length]).map_err(|error| self.lost_contact(&error.to_string()))?;
            if let Some(event) = events.iter().rfind(|event| event.kind == "status") {
                return serde_json::from_str(&event.data)
                    .map_err(|error| self.lost_contact(&format!("its status cannot be read: {error}")));
            }
        }
    }

    fn lost_contact(&self, problem: &str) -> Failure {
        Failure::Broken(format!("the connection to the service at {} is lost: {problem}", self.url))
    }
}
