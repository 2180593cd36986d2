//! The HTTP interface: JSON, with a description that is generated from this code (OpenAPI 3.1).

mod events;
mod guard;
mod node_link;
mod page;

use crate::access::Role;
use crate::alarms::AlarmView;
use crate::experiment::{Rejection, Request};
use crate::history::Columns;
use crate::processes::ProcessAction;
use crate::records::{Flag, Quality, RunRecord};
use crate::service::{Service, unix_seconds};
use crate::state::CommandName;
use crate::status::{ProcessView, Status};
use axum::Json;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use guard::{Client, Operator, Watcher};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use thalweg_node::{RunKind, StepOrder};
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Longest body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Time within which a client sends the body of its request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Longest text of a note or a reason, in bytes.
const MAX_TEXT: usize = 4096;

/// Error of the interface: `{"error": {"code": …, "reason": …}}`.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    reason: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, reason: impl Into<String>) -> Self {
        Self { status, code, reason: reason.into() }
    }

    fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", reason)
    }

    fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", reason)
    }

    fn not_legal(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "not-legal", reason)
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotLegal(reason) => Self::not_legal(reason),
            Rejection::Failed(reason) => Self::new(StatusCode::CONFLICT, "failed", reason),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "reason": self.reason } });
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Body of a request, as JSON. An empty one is an empty object.
struct Body<T>(T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Service>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: axum::extract::Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        let received = tokio::time::timeout(BODY_TIME, axum::body::Bytes::from_request(request, service)).await;
        let received = received.map_err(|_| {
            let reason = format!("the body of the request has not come within {} s", BODY_TIME.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "bad-request", reason)
        })?;
        let bytes = received.map_err(|rejection| {
            let status = rejection.status();
            let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "too-large" } else { "bad-request" };
            ApiError::new(status, code, rejection.body_text())
        })?;
        let text = if bytes.trim_ascii().is_empty() { &b"{}"[..] } else { &bytes };
        serde_json::from_slice(text).map(Body).map_err(|error| ApiError::bad_request(error.to_string()))
    }
}

/// Error as it is sent.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorBody {
    /// The error.
    error: ErrorDetail,
}

/// Content of an error.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorDetail {
    /// Kind of the error, for programs: `not-legal`, `failed`, `bad-request`, `no-access`, `not-found`, `too-large`.
    code: String,
    /// The reason, for people.
    reason: String,
}

#[derive(OpenApi)]
#[openapi(info(
    title = "Thalweg run control",
    description = "Run control of one experiment: its state, commands, records of runs, alarms and processes."
))]
struct Document;

/// Returns the routes of the service.
pub fn service_routes(service: Arc<Service>) -> axum::Router {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(get_status))
        .routes(routes!(execute_command))
        .routes(routes!(list_runs))
        .routes(routes!(add_note))
        .routes(routes!(set_flag))
        .routes(routes!(get_latest))
        .routes(routes!(get_history))
        .routes(routes!(list_processes))
        .routes(routes!(control_process))
        .routes(routes!(get_process_log))
        .routes(routes!(acknowledge_alarm))
        .routes(routes!(get_metrics))
        .routes(routes!(events::stream_events))
        .routes(routes!(guard::begin_session))
        .split_for_parts();
    let document = Arc::new(document.to_pretty_json().unwrap_or_default());
    router
        .route("/api/v1/nodes/{node}/link", axum::routing::get(node_link::accept_node))
        .route(
            "/openapi.json",
            axum::routing::get(move || async move {
                ([(header::CONTENT_TYPE, "application/json")], document.as_str().to_owned())
            }),
        )
        .route("/healthz", axum::routing::get(|| async { "ok\n" }))
        .fallback(page::serve_file)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::map_response(page::add_security_headers))
        .with_state(service)
}

/// The status.
#[utoipa::path(get, path = "/api/v1/status", responses(
    (status = 200, description = "The status", body = Status),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
))]
async fn get_status(_: Watcher, State(service): State<Arc<Service>>) -> Json<Status> {
    Json((*service.latest_status()).clone())
}

/// Arguments of a command.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct CommandArguments {
    /// Kind of the run, for `start` and `next`: `physics` (if left out) or `test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    kind: Option<RunKind>,
    /// Comment on the run, for `start` and `next`: at most 4096 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Label, for `step` alone: at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Facts about the step, for `step` alone: at most 4096 bytes of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    data: Option<serde_json::Value>,
}

/// Answer to a command.
#[derive(Debug, Serialize, ToSchema)]
struct CommandAnswer {
    /// The status after it.
    status: Status,
}

/// Executes a command, and answers when it is carried out.
#[utoipa::path(post, path = "/api/v1/commands/{command}", params(("command" = CommandName, Path)),
    request_body = CommandArguments, responses(
    (status = 200, description = "It is carried out", body = CommandAnswer),
    (status = 400, description = "The arguments are not right", body = ErrorBody),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 403, description = "The role of the token does not suffice, or the origin is another", body = ErrorBody),
    (status = 404, description = "There is no such command", body = ErrorBody),
    (status = 409, description = "It is not legal now, or a node refused it", body = ErrorBody),
    (status = 413, description = "The body is too long", body = ErrorBody),
))]
async fn execute_command(
    client: Client,
    State(service): State<Arc<Service>>,
    Path(command): Path<String>,
    Body(arguments): Body<CommandArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    let command: CommandName = command.parse().map_err(ApiError::not_found)?;
    let needed = if command == CommandName::Configure { Role::Configure } else { Role::Operate };
    let by = client.check_role(&service, needed)?;
    let given = serde_json::to_value(&arguments).unwrap_or_default();
    // A task of its own, which ends in the audit log even if the client does not wait for the answer.
    let execution = tokio::spawn(async move {
        let result = match make_request(&service, command, arguments) {
            Ok(request) => service.execute_request(request, &by).await.map_err(ApiError::from),
            Err(error) => Err(error),
        };
        client.log_request(&service, &by, given, result.as_ref().err().map(|error| error.reason.as_str()));
        result.map(|()| Json(CommandAnswer { status: (*service.latest_status()).clone() }))
    });
    execution.await.unwrap_or_else(|error| {
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", format!("the service has failed: {error}")))
    })
}

fn make_request(
    service: &Service,
    command: CommandName,
    CommandArguments { kind, note, label, data }: CommandArguments,
) -> Result<Request, ApiError> {
    use thalweg_node::Command;
    let begins_run = matches!(command, CommandName::Start | CommandName::Next);
    if !begins_run && (kind.is_some() || note.is_some()) {
        return Err(ApiError::bad_request(format!("{command}: `kind` and `note` are arguments of start and next")));
    }
    if command != CommandName::Step && (label.is_some() || data.is_some()) {
        return Err(ApiError::bad_request(format!("{command}: `label` and `data` are arguments of step")));
    }
    Ok(match command {
        CommandName::Configure => Request::Configure(Box::new(service.read_topology()?)),
        CommandName::Arm => Request::Arm,
        CommandName::Start => {
            Request::Start { kind: kind.unwrap_or_default(), note: checked_text(note.unwrap_or_default(), "note")? }
        }
        CommandName::Next => {
            Request::Next { kind: kind.unwrap_or_default(), note: checked_text(note.unwrap_or_default(), "note")? }
        }
        CommandName::Step => {
            let label = label.filter(|label| !label.is_empty());
            let label = label.ok_or_else(|| ApiError::bad_request("step: it has no `label`"))?;
            Request::Step(StepOrder { label, data: data.unwrap_or_default() })
        }
        CommandName::Stop => Request::Control(Command::Stop),
        CommandName::Pause => Request::Control(Command::Pause),
        CommandName::Resume => Request::Control(Command::Resume),
        CommandName::Abort => Request::Control(Command::Abort),
    })
}

fn checked_text(text: String, name: &str) -> Result<String, ApiError> {
    match text.len() {
        0..=MAX_TEXT => Ok(text),
        length => Err(ApiError::bad_request(format!("{name}: {length} bytes, more than {MAX_TEXT}"))),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Largest number of runs, 50 if left out.
    limit: Option<u32>,
}

/// Records of runs.
#[derive(Debug, Serialize, ToSchema)]
struct RunList {
    /// The records, the newest first.
    runs: Vec<RunRecord>,
}

/// Records of runs, the newest first.
#[utoipa::path(get, path = "/api/v1/runs", params(ListQuery), responses(
    (status = 200, description = "The records", body = RunList),
    (status = 400, description = "The query is not right"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
))]
async fn list_runs(_: Watcher, State(service): State<Arc<Service>>, Query(query): Query<ListQuery>) -> Json<RunList> {
    Json(RunList { runs: service.list_runs(query.limit.unwrap_or(50) as usize) })
}

/// Note on a run.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NoteBody {
    /// The text, at most 4096 bytes.
    text: String,
}

/// Adds a note to a run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/note", params(("run" = u32, Path)), request_body = NoteBody, responses(
    (status = 200, description = "The record of the run", body = RunRecord),
    (status = 400, description = "The body is not right", body = ErrorBody),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 403, description = "The role of the token does not suffice, or the origin is another", body = ErrorBody),
    (status = 404, description = "There is no such run", body = ErrorBody),
    (status = 413, description = "The body is too long", body = ErrorBody),
))]
async fn add_note(
    operator: Operator,
    State(service): State<Arc<Service>>,
    Path(run): Path<u32>,
    Body(note): Body<NoteBody>,
) -> Result<Json<RunRecord>, ApiError> {
    let given = serde_json::to_value(&note).unwrap_or_default();
    let text = checked_text(note.text, "text")?;
    let record = service.add_note(run, text, &operator.name);
    operator.log_request(&service, given, record.is_none().then_some("no such run"));
    record.map(Json).ok_or_else(|| ApiError::not_found(format!("there is no record of run {run}")))
}

/// Judgement on a run.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FlagBody {
    /// The judgement.
    flag: Quality,
    /// Reason for it, at most 4096 bytes.
    #[serde(default)]
    why: String,
}

/// Judges a run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/flag", params(("run" = u32, Path)), request_body = FlagBody, responses(
    (status = 200, description = "The record of the run", body = RunRecord),
    (status = 400, description = "The body is not right", body = ErrorBody),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 403, description = "The role of the token does not suffice, or the origin is another", body = ErrorBody),
    (status = 404, description = "There is no such run", body = ErrorBody),
    (status = 413, description = "The body is too long", body = ErrorBody),
))]
async fn set_flag(
    operator: Operator,
    State(service): State<Arc<Service>>,
    Path(run): Path<u32>,
    Body(flag): Body<FlagBody>,
) -> Result<Json<RunRecord>, ApiError> {
    let given = serde_json::to_value(&flag).unwrap_or_default();
    let why = checked_text(flag.why, "why")?;
    let flag = Flag { flag: flag.flag, why, by: operator.name.clone(), at: unix_seconds() };
    let record = service.set_flag(run, flag);
    operator.log_request(&service, given, record.is_none().then_some("no such run"));
    record.map(Json).ok_or_else(|| ApiError::not_found(format!("there is no record of run {run}")))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct WidthQuery {
    /// Largest number of columns, 1024 if left out.
    width: Option<u32>,
}

/// The latest fragment of a source, decimated; `null` if there is none yet.
#[utoipa::path(get, path = "/api/v1/latest/{source}", params(("source" = String, Path), WidthQuery), responses(
    (status = 200, description = "The fragment, or null", body = serde_json::Value),
    (status = 400, description = "The query is not right"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 404, description = "There is no such source", body = ErrorBody),
    (status = 503, description = "The first builder does not answer", body = ErrorBody),
))]
async fn get_latest(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Path(source): Path<String>,
    Query(query): Query<WidthQuery>,
) -> Result<Json<serde_json::Value>, ApiError> {
    if !service.latest_status().sources.iter().any(|other| other.name == source) {
        return Err(ApiError::not_found(format!("the topology has no source '{source}'")));
    }
    let latest = service.latest_fragment(&source, query.width.unwrap_or(1024)).await;
    latest.map(Json).map_err(|reason| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no-answer", reason))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Length of the time, 3600 if left out.
    seconds: Option<u32>,
}

/// Figures of the last hour, one value a second.
#[utoipa::path(get, path = "/api/v1/history", params(HistoryQuery), responses(
    (status = 200, description = "The figures", body = Columns),
    (status = 400, description = "The query is not right"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
))]
async fn get_history(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Query(query): Query<HistoryQuery>,
) -> Json<Columns> {
    Json(service.latest_history(query.seconds.unwrap_or(3600) as usize))
}

/// Processes of the nodes.
#[derive(Debug, Serialize, ToSchema)]
struct ProcessList {
    /// The processes.
    processes: Vec<ProcessView>,
}

/// Processes of the nodes.
#[utoipa::path(get, path = "/api/v1/processes", responses(
    (status = 200, description = "The processes", body = ProcessList),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
))]
async fn list_processes(_: Watcher, State(service): State<Arc<Service>>) -> Json<ProcessList> {
    Json(ProcessList { processes: service.latest_status().processes.clone() })
}

/// Starts, ends or restarts the process of a node. Answers when that is under way.
#[utoipa::path(post, path = "/api/v1/processes/{node}/{action}",
    params(("node" = String, Path), ("action" = ProcessAction, Path)), responses(
    (status = 200, description = "It is under way", body = ProcessList),
    (status = 400, description = "There is no such action"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 403, description = "The role of the token does not suffice, or the origin is another", body = ErrorBody),
    (status = 404, description = "There is no such node", body = ErrorBody),
    (status = 409, description = "It is not legal now, or the process cannot be started", body = ErrorBody),
))]
async fn control_process(
    client: Client,
    State(service): State<Arc<Service>>,
    Path((node, action)): Path<(String, ProcessAction)>,
) -> Result<Json<ProcessList>, ApiError> {
    let by = client.check_role(&service, Role::Configure)?;
    if !service.latest_status().processes.iter().any(|process| process.node == node) {
        return Err(ApiError::not_found(format!("the topology has no node '{node}'")));
    }
    let result = service.control_process(&node, action);
    client.log_request(&service, &by, json!({}), result.as_ref().err().map(String::as_str));
    result.map_err(ApiError::not_legal)?;
    Ok(Json(ProcessList { processes: service.latest_status().processes.clone() }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct LogQuery {
    /// Number of lines, 100 if left out.
    lines: Option<u32>,
}

/// Lines of a log.
#[derive(Debug, Serialize, ToSchema)]
struct LogLines {
    /// The lines, the newest last.
    lines: Vec<String>,
}

/// The last lines of the log of a node's process.
#[utoipa::path(get, path = "/api/v1/processes/{node}/log", params(("node" = String, Path), LogQuery), responses(
    (status = 200, description = "The lines", body = LogLines),
    (status = 400, description = "The query is not right"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 404, description = "The service has no log of it", body = ErrorBody),
))]
async fn get_process_log(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Path(node): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<Json<LogLines>, ApiError> {
    if !service.latest_status().processes.iter().any(|process| process.node == node) {
        return Err(ApiError::not_found(format!("the topology has no node '{node}'")));
    }
    let lines = service.process_log(&node, query.lines.unwrap_or(100) as usize);
    lines.map(|lines| Json(LogLines { lines })).map_err(ApiError::not_found)
}

/// Acknowledgement of an alarm.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct AcknowledgeBody {
    /// Reason, at most 4096 bytes.
    why: String,
}

/// Acknowledges an alarm.
#[utoipa::path(post, path = "/api/v1/alarms/{id}/acknowledge", params(("id" = String, Path)),
    request_body = AcknowledgeBody, responses(
    (status = 200, description = "The alarm", body = AlarmView),
    (status = 400, description = "The body is not right", body = ErrorBody),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
    (status = 403, description = "The role of the token does not suffice, or the origin is another", body = ErrorBody),
    (status = 404, description = "There is no such alarm", body = ErrorBody),
    (status = 413, description = "The body is too long", body = ErrorBody),
))]
async fn acknowledge_alarm(
    operator: Operator,
    State(service): State<Arc<Service>>,
    Path(id): Path<String>,
    Body(body): Body<AcknowledgeBody>,
) -> Result<Json<AlarmView>, ApiError> {
    let given = serde_json::to_value(&body).unwrap_or_default();
    let why = checked_text(body.why, "why")?;
    let alarm = service.acknowledge_alarm(&id, &why, &operator.name);
    operator.log_request(&service, given, alarm.is_none().then_some("no such alarm"));
    alarm.map(Json).ok_or_else(|| ApiError::not_found(format!("there is no alarm '{id}'")))
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "The figures, in the text format of Prometheus", body = String, content_type = "text/plain"),
    (status = 401, description = "No token, or none that is known", body = ErrorBody),
))]
async fn get_metrics(_: Watcher, State(service): State<Arc<Service>>) -> impl IntoResponse {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, crate::metrics::metrics_text(&service.latest_status()))
}

/// Returns the value of a header, if it is text.
fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
