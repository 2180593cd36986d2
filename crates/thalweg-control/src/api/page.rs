//! The page: files that are built into the program.

use super::refusals::{ApiError, ErrorCode};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

/// Files of the page, as `npm run build` made them.
#[derive(RustEmbed)]
#[folder = "page/dist/"]
struct Files;

/// Serves a file of the page.
pub(super) async fn serve_file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let path = if path.is_empty() { "index.html" } else { path.trim_start_matches("assets/") };
    let Some(file) = Files::get(path) else {
        return ApiError::not_found("there is nothing at this address; the page is at /").into_response();
    };
    if method != Method::GET && method != Method::HEAD {
        let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::BadRequest, "files can only be read");
        // RFC 9110, section 15.5.6.
        return ([(header::ALLOW, "GET, HEAD")], refusal).into_response();
    }
    let tag: String = file.metadata.sha256_hash().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let kind = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let headers =
        [(header::CONTENT_TYPE, kind.to_owned()), (header::ETAG, tag), (header::CACHE_CONTROL, "no-cache".to_owned())];
    (headers, file.data).into_response()
}

/// Adds the headers with which a browser trusts nothing but this service.
pub(super) async fn add_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
