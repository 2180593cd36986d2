//! The HTTP interface: JSON, with a description that is generated from this code (OpenAPI 3.1).

mod commands;
mod events;
mod guard;
mod node_link;
mod page;
mod refusals;

use crate::access::Role;
use crate::alarms::AlarmView;
use crate::experiment::Rejection;
use crate::history::Columns;
use crate::processes::ProcessAction;
use crate::records::{Flag, NoteError, Quality, RunRecord};
use crate::service::latest::{LatestBytes, LatestForm, LatestView};
use crate::service::{Service, unix_seconds};
use crate::status::{ProcessView, Status};
use axum::Json;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use guard::{Client, Operator, Watcher};
use refusals::{ApiError, BodyRefusals, ErrorBody, ErrorCode, Refusals, TokenScheme};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Longest body of a request, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Time within which a client sends the body of its request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Longest text of a note or a reason, in bytes.
const MAX_TEXT: usize = 4096;

impl From<NoteError> for ApiError {
    fn from(error: NoteError) -> Self {
        match error {
            NoteError::NoRun(_) => Self::not_found(error.to_string()),
            NoteError::Empty => Self::bad_request(error.to_string()),
            NoteError::TooMany(_) => Self::new(StatusCode::CONFLICT, ErrorCode::TooMany, error.to_string()),
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::NotLegal(reason) => Self::not_legal(reason),
            Rejection::Failed(reason) => Self::new(StatusCode::CONFLICT, ErrorCode::Failed, reason),
        }
    }
}

/// Body of a request, as JSON. An empty one, or `null`, is an empty object.
struct Body<T>(T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Service>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: axum::extract::Request, service: &Arc<Service>) -> Result<Self, ApiError> {
        let received = tokio::time::timeout(BODY_TIME, axum::body::Bytes::from_request(request, service)).await;
        let received = received.map_err(|_| {
            let reason = format!("the body of the request has not come within {} s", BODY_TIME.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::BadRequest, reason)
        })?;
        let bytes = received.map_err(|rejection| {
            let status = rejection.status();
            let too_large = status == StatusCode::PAYLOAD_TOO_LARGE;
            let code = if too_large { ErrorCode::TooLarge } else { ErrorCode::BadRequest };
            ApiError::new(status, code, rejection.body_text())
        })?;
        let text = if matches!(bytes.trim_ascii(), b"" | b"null") { &b"{}"[..] } else { &bytes };
        serde_json::from_slice(text).map(Body).map_err(|error| ApiError::bad_request(error.to_string()))
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Thalweg run control",
        description = "Run control of one experiment: its state, commands, records of runs, alarms and processes."
    ),
    components(schemas(commands::PlainCommand, ProcessAction)),
    modifiers(&TokenScheme),
    security(("token" = []))
)]
struct Document;

/// Returns the routes of the service.
pub fn service_routes(service: Arc<Service>) -> axum::Router {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(get_status))
        .routes(routes!(commands::execute_command))
        .routes(routes!(commands::configure))
        .routes(routes!(commands::start_run))
        .routes(routes!(commands::begin_next_run))
        .routes(routes!(commands::mark_step))
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
        .layer(axum::middleware::map_response(refusals::unify_refusal))
        .layer(axum::middleware::map_response(page::add_security_headers))
        .with_state(service)
}

/// The status.
#[utoipa::path(get, path = "/api/v1/status", responses(
    (status = 200, description = "The status", body = Status),
    Refusals,
))]
async fn get_status(_: Watcher, State(service): State<Arc<Service>>) -> Json<Status> {
    Json((*service.latest_status()).clone())
}

/// Returns a number of a query, or `default` if it is left out.
fn checked_number(number: Option<u32>, name: &str, default: u32, most: u32) -> Result<u32, ApiError> {
    match number.unwrap_or(default) {
        number if number <= most => Ok(number),
        number => Err(ApiError::bad_request(format!("{name}: {number} is more than {most}"))),
    }
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
    #[param(maximum = 1000)]
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
    Refusals,
))]
async fn list_runs(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Query(query): Query<ListQuery>,
) -> Result<Json<RunList>, ApiError> {
    let limit = checked_number(query.limit, "limit", 50, 1000)?;
    Ok(Json(RunList { runs: service.list_runs(limit as usize) }))
}

/// Note on a run.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NoteBody {
    /// The text, at most 4096 bytes, and not white space alone.
    #[schema(min_length = 1, pattern = r"\S")]
    text: String,
}

/// Adds a note to a run.
#[utoipa::path(post, path = "/api/v1/runs/{run}/note", params(("run" = u32, Path)), request_body = NoteBody, responses(
    (status = 200, description = "The record of the run", body = RunRecord),
    (status = 404, description = "There is no such run", body = ErrorBody),
    (status = 409, description = "The run has as many notes as it can have", body = ErrorBody),
    Refusals,
    BodyRefusals,
))]
async fn add_note(
    operator: Operator,
    State(service): State<Arc<Service>>,
    Path(run): Path<u32>,
    Body(note): Body<NoteBody>,
) -> Result<Json<RunRecord>, ApiError> {
    let given = serde_json::to_value(&note).unwrap_or_default();
    let text = checked_text(note.text, "text")?;
    let result = service.add_note(run, text, &operator.name);
    let refusal = result.as_ref().err().map(ToString::to_string);
    operator.log_request(&service, given, refusal.as_deref());
    Ok(Json(result?))
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
    (status = 404, description = "There is no such run", body = ErrorBody),
    Refusals,
    BodyRefusals,
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
struct LatestQuery {
    /// Largest number of columns, 1024 if left out.
    #[param(maximum = 4096)]
    width: Option<u32>,
    /// Form of the answer, `json` if left out.
    #[serde(default)]
    #[param(inline)]
    format: LatestForm,
}

/// The latest fragment of a source, decimated; `null` if there is none yet.
#[utoipa::path(get, path = "/api/v1/latest/{source}", params(("source" = String, Path), LatestQuery), responses(
    (status = 200, description = "The fragment, or null", content(
        (Option<LatestView> = "application/json"),
        (LatestBytes = "application/octet-stream"),
    )),
    (status = 404, description = "There is no such source", body = ErrorBody),
    Refusals,
))]
async fn get_latest(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Path(source): Path<String>,
    Query(query): Query<LatestQuery>,
) -> Result<Response, ApiError> {
    if !service.latest_status().sources.iter().any(|other| other.name == source) {
        return Err(ApiError::not_found(format!("the topology has no source '{source}'")));
    }
    let width = checked_number(query.width, "width", 1024, 4096)?;
    let latest = service.latest_fragment(&source, width, query.format).await;
    let body = latest.map_err(|reason| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NoAnswer, reason))?;
    Ok(([(header::CONTENT_TYPE, query.format.content_type())], body).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct HistoryQuery {
    /// Length of the time, 3600 if left out.
    #[param(maximum = 3600)]
    seconds: Option<u32>,
}

/// Figures of the last hour, one value a second.
#[utoipa::path(get, path = "/api/v1/history", params(HistoryQuery), responses(
    (status = 200, description = "The figures", body = Columns),
    Refusals,
))]
async fn get_history(
    _: Watcher,
    State(service): State<Arc<Service>>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<Columns>, ApiError> {
    let seconds = checked_number(query.seconds, "seconds", 3600, 3600)?;
    Ok(Json(service.latest_history(seconds as usize)))
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
    Refusals,
))]
async fn list_processes(_: Watcher, State(service): State<Arc<Service>>) -> Json<ProcessList> {
    Json(ProcessList { processes: service.latest_status().processes.clone() })
}

/// Starts, ends or restarts the process of a node. Answers when that is under way.
#[utoipa::path(post, path = "/api/v1/processes/{node}/{action}",
    params(("node" = String, Path), ("action" = ProcessAction, Path)), responses(
    (status = 200, description = "It is under way", body = ProcessList),
    (status = 404, description = "There is no such node", body = ErrorBody),
    (status = 409, description = "It is not legal now, or the process cannot be started", body = ErrorBody),
    Refusals,
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
    #[param(maximum = 10000)]
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
    (status = 404, description = "The service has no log of it", body = ErrorBody),
    Refusals,
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
    let lines = checked_number(query.lines, "lines", 100, 10_000)?;
    let lines = service.process_log(&node, lines as usize).await;
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
    request_body = Option<AcknowledgeBody>, responses(
    (status = 200, description = "The alarm", body = AlarmView),
    (status = 404, description = "There is no such alarm", body = ErrorBody),
    Refusals,
    BodyRefusals,
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
    Refusals,
))]
async fn get_metrics(_: Watcher, State(service): State<Arc<Service>>) -> impl IntoResponse {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, crate::metrics::metrics_text(&service.latest_status()))
}

/// Returns the value of a header, if it is text.
fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
