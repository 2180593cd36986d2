//! Commands to the experiment. Each answers when it is carried out.

use super::guard::Client;
use super::refusals::{ApiError, BodyRefusals, ErrorBody, ErrorCode, Refusals};
use super::{Body, checked_text};
use crate::access::Role;
use crate::experiment::Request;
use crate::service::Service;
use crate::state::CommandName;
use crate::status::Status;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thalweg_node::{Command, RunKind, StepOrder};
use utoipa::{IntoResponses, ToSchema};

/// Command without arguments.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum PlainCommand {
    /// Examines each host, and waits until all sources are connected.
    Arm,
    /// Ends the run at one event for all sources, with everything accounted for.
    Stop,
    /// Makes all sources accept nothing for now.
    Pause,
    /// Makes all sources accept events again.
    Resume,
    /// Ends the run now; events that are not closed are lost.
    Abort,
}

/// Body of a command without arguments: an empty object, or nothing.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NoArguments {}

/// Arguments of a configuration.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigureArguments {
    /// Names of the sources that are left out of the runs, until the experiment is configured anew.
    without: Vec<String>,
}

/// Run that is to begin.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RunArguments {
    /// Kind of the run.
    #[schema(value_type = KindName)]
    kind: RunKind,
    /// Comment on the run: at most 4096 bytes.
    note: String,
}

/// Kind of a run.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "for the description of thalweg_node's type")]
pub(super) enum KindName {
    /// Data to be analysed.
    Physics,
    /// Data of a test.
    Test,
}

/// Step of a scan.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StepArguments {
    /// Label: at most 256 bytes.
    #[schema(min_length = 1)]
    label: String,
    /// Facts about the step, of any type: at most 4096 bytes of JSON.
    #[serde(default)]
    #[schema(value_type = Value)]
    data: serde_json::Value,
}

/// Answer to a command.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CommandAnswer {
    /// The status after it.
    status: Status,
}

/// Answers to commands.
#[derive(IntoResponses)]
#[expect(dead_code, clippy::large_enum_variant, reason = "for the description: its variants are responses")]
enum CommandAnswers {
    /// It is carried out
    #[response(status = 200)]
    Done(CommandAnswer),
    /// It is not legal now, or a node refused it
    #[response(status = 409)]
    Refused(ErrorBody),
}

/// Executes a command without arguments.
#[utoipa::path(post, path = "/api/v1/commands/{command}", params(("command" = PlainCommand, Path)),
    request_body = Option<NoArguments>, responses(
    CommandAnswers,
    (status = 404, description = "There is no such command", body = ErrorBody),
    Refusals,
    BodyRefusals,
))]
pub(super) async fn execute_command(
    client: Client,
    State(service): State<Arc<Service>>,
    Path(command): Path<String>,
    Body(arguments): Body<NoArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    let name: CommandName = command.parse().map_err(ApiError::not_found)?;
    let command = serde_json::from_value(serde_json::Value::String(command));
    let command: PlainCommand = command.map_err(|error| ApiError::not_found(error.to_string()))?;
    let request = match command {
        PlainCommand::Arm => Request::Arm,
        PlainCommand::Stop => Request::Control(Command::Stop),
        PlainCommand::Pause => Request::Control(Command::Pause),
        PlainCommand::Resume => Request::Control(Command::Resume),
        PlainCommand::Abort => Request::Control(Command::Abort),
    };
    execute_request(client, service, name, &arguments, move |_| Ok(request)).await
}

/// Reads the topology file, starts nodes that are missing, and sends the topology to all.
#[utoipa::path(post, path = "/api/v1/commands/configure", request_body = Option<ConfigureArguments>,
    responses(CommandAnswers, Refusals, BodyRefusals))]
pub(super) async fn configure(
    client: Client,
    State(service): State<Arc<Service>>,
    Body(arguments): Body<ConfigureArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    let left_out = arguments.without.clone();
    execute_request(client, service, CommandName::Configure, &arguments, move |service| {
        Ok(Request::Configure(Box::new(service.read_topology(left_out)?)))
    })
    .await
}

/// Begins a run.
#[utoipa::path(post, path = "/api/v1/commands/start", request_body = Option<RunArguments>,
    responses(CommandAnswers, Refusals, BodyRefusals))]
pub(super) async fn start_run(
    client: Client,
    State(service): State<Arc<Service>>,
    Body(arguments): Body<RunArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    let note = checked_text(arguments.note.clone(), "note")?;
    let request = Request::Start { kind: arguments.kind, note };
    execute_request(client, service, CommandName::Start, &arguments, move |_| Ok(request)).await
}

/// Begins another run at an event that all sources agree on, without a gap.
#[utoipa::path(post, path = "/api/v1/commands/next", request_body = Option<RunArguments>,
    responses(CommandAnswers, Refusals, BodyRefusals))]
pub(super) async fn begin_next_run(
    client: Client,
    State(service): State<Arc<Service>>,
    Body(arguments): Body<RunArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    let note = checked_text(arguments.note.clone(), "note")?;
    let request = Request::Next { kind: arguments.kind, note };
    execute_request(client, service, CommandName::Next, &arguments, move |_| Ok(request)).await
}

/// Marks the beginning of a step of a scan, at an event that all sources agree on.
#[utoipa::path(post, path = "/api/v1/commands/step", request_body = StepArguments,
    responses(CommandAnswers, Refusals, BodyRefusals))]
pub(super) async fn mark_step(
    client: Client,
    State(service): State<Arc<Service>>,
    Body(arguments): Body<StepArguments>,
) -> Result<Json<CommandAnswer>, ApiError> {
    if arguments.label.is_empty() {
        return Err(ApiError::bad_request("label: it is empty"));
    }
    let request = Request::Step(StepOrder { label: arguments.label.clone(), data: arguments.data.clone() });
    execute_request(client, service, CommandName::Step, &arguments, move |_| Ok(request)).await
}

async fn execute_request(
    client: Client,
    service: Arc<Service>,
    command: CommandName,
    arguments: &impl Serialize,
    make_request: impl FnOnce(&Service) -> Result<Request, ApiError> + Send + 'static,
) -> Result<Json<CommandAnswer>, ApiError> {
    let needed = if command == CommandName::Configure { Role::Configure } else { Role::Operate };
    let by = client.check_role(&service, needed)?;
    let given = serde_json::to_value(arguments).unwrap_or_default();
    // A task of its own, which ends in the audit log even if the client does not wait for the answer.
    let execution = tokio::spawn(async move {
        let result = match make_request(&service) {
            Ok(request) => service.execute_request(request, &by).await.map_err(ApiError::from),
            Err(error) => Err(error),
        };
        client.log_request(&service, &by, given, result.as_ref().err().map(|error| error.reason.as_str()));
        result.map(|()| Json(CommandAnswer { status: (*service.latest_status()).clone() }))
    });
    execution.await.unwrap_or_else(|error| {
        let reason = format!("the service has failed: {error}");
        Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Failed, reason))
    })
}
