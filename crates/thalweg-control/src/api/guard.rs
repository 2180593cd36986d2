//! Access to routes: tokens of requests, roles, and the origin of a browser's requests.

use super::refusals::{ApiError, BodyRefusals, ErrorCode, Refusals};
use super::{Body, header_text};
use crate::access::{Denied, Role};
use crate::audit::AuditEntry;
use crate::server::Standing;
use crate::service::{Service, unix_seconds};
use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use utoipa::ToSchema;

/// Name of the cookie in which a browser keeps its token.
const COOKIE: &str = "thalweg_token";

/// Client of a request, whose role is still to be checked.
#[derive(Debug)]
pub(super) struct Client {
    secret: Option<String>,
    address: String,
    request: String,
    standing: Option<Standing>,
}

impl Client {
    /// Returns the name of the client's token, if its role suffices.
    pub(super) fn check_role(&self, service: &Service, needed: Role) -> Result<String, ApiError> {
        let token = service.tokens.check_secret(self.secret.as_deref(), needed);
        let token = token.map_err(|denied| {
            let status = match denied {
                Denied::Unknown => StatusCode::UNAUTHORIZED,
                Denied::Role { .. } => StatusCode::FORBIDDEN,
            };
            ApiError::new(status, ErrorCode::NoAccess, denied.to_string())
        })?;
        match &self.standing {
            Some(standing) if !standing.accept() => Err(ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::TooManyClients,
                "the service has as many clients as it has places: close some of their pages".to_owned(),
            )),
            _ => Ok(token.name.clone()),
        }
    }

    /// Writes the request into the audit log.
    pub(super) fn log_request(&self, service: &Service, by: &str, arguments: serde_json::Value, refusal: Option<&str>) {
        service.audit.add_entry(&AuditEntry {
            at: unix_seconds(),
            by,
            from: self.address.clone(),
            request: &self.request,
            arguments,
            refusal: refusal.unwrap_or_default(),
        });
    }
}

impl FromRequestParts<Arc<Service>> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Service>) -> Result<Self, ApiError> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            check_origin(parts)?;
        }
        let bearer = header_text(&parts.headers, "authorization").and_then(|value| value.strip_prefix("Bearer "));
        let secret = bearer.or_else(|| cookie_secret(parts)).map(str::to_owned);
        let address = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        Ok(Self {
            secret,
            address: address.map(|ConnectInfo(address)| address.to_string()).unwrap_or_default(),
            request: format!("{} {}", parts.method, parts.uri.path()),
            standing: parts.extensions.get::<Standing>().cloned(),
        })
    }
}

fn cookie_secret(parts: &Parts) -> Option<&str> {
    let cookies = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Refuses a request that another site's page has made.
fn check_origin(parts: &Parts) -> Result<(), ApiError> {
    let Some(origin) = header_text(&parts.headers, "origin") else { return Ok(()) };
    let host = header_text(&parts.headers, "host").unwrap_or_default();
    let origin_host = origin.split_once("://").map_or("", |(_, host)| host);
    if origin_host == host && !host.is_empty() {
        return Ok(());
    }
    let origin = thalweg_text::replace_controls(origin);
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        ErrorCode::NoAccess,
        format!("a page of {origin} may not command this service"),
    ))
}

/// Client whose role allows it to see everything.
#[derive(Debug)]
pub(super) struct Watcher;

impl FromRequestParts<Arc<Service>> for Watcher {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        Client::from_request_parts(parts, service).await?.check_role(service, Role::Watch).map(|_| Self)
    }
}

/// Client whose role allows it to command runs.
#[derive(Debug)]
pub(super) struct Operator {
    /// Name of the token.
    pub(super) name: String,
    client: Client,
}

impl Operator {
    pub(super) fn log_request(&self, service: &Service, arguments: serde_json::Value, refusal: Option<&str>) {
        self.client.log_request(service, &self.name, arguments, refusal);
    }
}

impl FromRequestParts<Arc<Service>> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Self, ApiError> {
        let client = Client::from_request_parts(parts, service).await?;
        let name = client.check_role(service, Role::Operate)?;
        Ok(Self { name, client })
    }
}

/// Token of a browser.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionBody {
    /// The secret of the token.
    token: String,
}

/// Begins the session of a browser: its token goes into a cookie that no script can read.
#[utoipa::path(post, path = "/api/v1/session", request_body = SessionBody, responses(
    (status = 204, description = "The cookie is set"),
    Refusals,
    BodyRefusals,
), security(()))]
pub(super) async fn begin_session(
    client: Client,
    State(service): State<Arc<Service>>,
    Body(body): Body<SessionBody>,
) -> Result<Response, ApiError> {
    let client = Client { secret: Some(body.token.clone()), ..client };
    client.check_role(&service, Role::Watch)?;
    let cookie = format!("{COOKIE}={}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000", body.token);
    let cookie = header::HeaderValue::from_str(&cookie).map_err(|_| ApiError::bad_request("the token is no token"))?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}
