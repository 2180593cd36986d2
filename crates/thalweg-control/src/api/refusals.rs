//! Refusals of requests: their form, and what the description says of them.

use axum::Json;
use axum::body::to_bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{IntoResponses, Modify, ToSchema};

/// Longest reason that the library for HTTP gives, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// Error of the interface: `{"error": {"code": …, "reason": …}}`.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: ErrorCode,
    pub(super) reason: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: ErrorCode, reason: impl Into<String>) -> Self {
        Self { status, code, reason: reason.into() }
    }

    pub(super) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, reason)
    }

    pub(super) fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, reason)
    }

    pub(super) fn not_legal(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, ErrorCode::NotLegal, reason)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody { error: ErrorDetail { code: self.code, reason: self.reason } };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Error as it is sent.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ErrorBody {
    /// The error.
    error: ErrorDetail,
}

/// Content of an error.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorDetail {
    /// Kind of the error, for programs.
    code: ErrorCode,
    /// The reason, for people.
    reason: String,
}

/// Kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ErrorCode {
    /// The path, the query or the body is not right.
    BadRequest,
    /// There is no token that allows it, or the request is of a foreign page.
    NoAccess,
    /// There is no such thing.
    NotFound,
    /// It is not legal in the present state.
    NotLegal,
    /// A node refused it, or it was not carried out.
    Failed,
    /// The builder that knows it does not answer.
    NoAnswer,
    /// The body is too long.
    TooLarge,
    /// The run has as many notes as it can have.
    TooMany,
    /// The service has as many clients as it has places.
    TooManyClients,
}

/// Refusals of all requests.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "for the description: its variants are responses")]
pub(super) enum Refusals {
    /// The path, the query or the body is not right
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// No token, or none that is known
    #[response(status = 401)]
    Unknown(ErrorBody),
    /// The role of the token does not suffice, or the request is of a foreign page
    #[response(status = 403)]
    NoAccess(ErrorBody),
    /// The service has too many clients, or what knows the answer does not answer
    #[response(status = 503)]
    Busy(ErrorBody),
}

/// Further refusals of requests that have a body.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "for the description: its variants are responses")]
pub(super) enum BodyRefusals {
    /// The body has not come in time
    #[response(status = 408)]
    Late(ErrorBody),
    /// The body is too long
    #[response(status = 413)]
    TooLarge(ErrorBody),
}

/// Adds to the description how requests show their token.
pub(super) struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("token", scheme);
    }
}

/// Gives refusals of the library for HTTP the form of all others: those of a path, a query, a method.
pub(super) async fn unify_refusal(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_REASON_BYTES).await.unwrap_or_default();
    let reason = match String::from_utf8_lossy(&text) {
        text if text.is_empty() => status.canonical_reason().unwrap_or("refused").to_lowercase(),
        text => thalweg_text::replace_controls(&text).into_owned(),
    };
    let code = if status == StatusCode::NOT_FOUND { ErrorCode::NotFound } else { ErrorCode::BadRequest };
    let unified = ApiError::new(status, code, reason).into_response();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, unified.into_body())
}
