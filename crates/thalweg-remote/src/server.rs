//! Requests to a data server, repeated where that is useful.

use crate::address::Address;
use crate::part::unix_seconds;
use crate::{Listing, Reader, RemoteError, Resource};
use std::io::Read;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use thalweg_wire::parse_repr_digest;
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, SendBody};

/// A data server, or the part of one beneath a URL. All paths are relative to that URL.
///
/// Its methods block. A clone is cheap and shares the open connections: threads may each have one, or all use the same.
/// Requests that fail for a reason that may go away are repeated for up to [`Options::timeout`]; redirections are not
/// followed.
#[derive(Debug, Clone)]
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
}

/// Options for requests to a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Token that identifies the client (`Authorization: Bearer`).
    pub token: Option<String>,
    /// CA certificates (PEM) to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Time during which requests are repeated while the server cannot be reached, breaks off or reports that it is
    /// temporarily unavailable, counted since it last made progress. A server that sends nothing for this time counts
    /// as one that breaks off: after 2 s at least, and 30 s at most.
    pub timeout: Duration,
}

/// Properties of a file that a server reports without sending it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Length of the file in bytes.
    pub length: u64,
    /// Tag that distinguishes this content from any other that the file has had, with its quotes. `None` if the server
    /// sends no strong one.
    pub etag: Option<String>,
    /// Time of the last change, to the second.
    pub modified: Option<SystemTime>,
    /// Checksum of the whole file, if the server knows it.
    pub crc32c: Option<u32>,
}

#[derive(Debug)]
struct Shared {
    agent: Agent,
    authorization: Option<String>,
    timeout: Duration,
}

impl Server {
    /// Returns the server, or the part of it, that `url` names. Sends no request yet.
    ///
    /// # Errors
    /// Fails if `url` names nothing on any server, the token is not one line of printable text, or the file of
    /// certificates cannot be used.
    pub fn new(url: &str, options: &Options) -> Result<Self, RemoteError> {
        let address = Address::parse(url)?;
        let authorization = options.token.as_ref().map(|token| format!("Bearer {token}"));
        if authorization.as_ref().is_some_and(|value| header::HeaderValue::from_str(value).is_err()) {
            return Err(RemoteError::Url { url: url.to_owned(), why: "the token must be one line of printable text" });
        }
        if authorization.is_some() && address.can_be_intercepted() {
            tracing::warn!("{url}: the token and the data are sent unencrypted; https:// encrypts them");
        }
        let agent = Agent::config_builder()
            .user_agent(concat!("thalweg/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls_config(options)?)
            // A token is sent only to the server it was given for, and only the named URL is read.
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_resolve(Some(limit_timeout(CONNECT_TIMEOUT, options.timeout)))
            .timeout_connect(Some(limit_timeout(CONNECT_TIMEOUT, options.timeout)))
            .timeout_per_read(Some(limit_timeout(QUIET_TIMEOUT, options.timeout)))
            .timeout_per_write(Some(limit_timeout(QUIET_TIMEOUT, options.timeout)))
            .input_buffer_size(IO_BUFFER_BYTES)
            .output_buffer_size(IO_BUFFER_BYTES)
            .max_idle_connections(MAX_IDLE_CONNECTIONS)
            .max_idle_connections_per_host(MAX_IDLE_CONNECTIONS)
            .build()
            .new_agent();
        Ok(Self { address, shared: Arc::new(Shared { agent, authorization, timeout: options.timeout }) })
    }

    /// Returns the same server, beneath a path of this one.
    #[must_use]
    pub fn beneath_path(&self, path: &str) -> Self {
        Self { address: self.address.beneath_path(path), shared: Arc::clone(&self.shared) }
    }

    /// Returns the same server, at another name beside its URL.
    pub(crate) fn beside_name(&self, name: &str) -> Self {
        Self { address: self.address.beside_name(name), shared: Arc::clone(&self.shared) }
    }

    #[cfg(feature = "mount")]
    /// Returns the same server over the same connections, with another time for repetitions. The limit for silence
    /// stays.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        let Shared { agent, authorization, .. } = &*self.shared;
        let shared = Shared { agent: agent.clone(), authorization: authorization.clone(), timeout };
        Self { address: self.address.clone(), shared: Arc::new(shared) }
    }

    /// Returns the last name in the URL, or `None` if it names a whole server.
    pub fn last_name(&self) -> Option<String> {
        self.address.last_name()
    }

    /// Returns the URL of a resource on the server.
    pub fn url_of_resource<'a>(&self, resource: impl Into<Resource<'a>>) -> String {
        self.address.url_of_resource(resource.into())
    }

    /// Lists a directory or a run.
    ///
    /// # Errors
    /// Fails if there is no such directory, the server cannot be reached for [`Options::timeout`], or it refuses or
    /// sends an answer of another kind.
    pub fn list_directory(&self, path: &str) -> Result<Listing, RemoteError> {
        let directory = format!("{}/", path.trim_end_matches('/'));
        let prepared =
            PreparedRequest::new(self.url_of_resource(&directory)).with_field(header::ACCEPT, "application/json");
        self.retry_transient(|| {
            let response = self.send_get(&prepared)?;
            if response.status() != StatusCode::OK {
                return Err(refusal_error(&prepared.url, response));
            }
            let text = read_whole_body(&prepared.url, response, MAX_LISTING_BYTES)?;
            serde_json::from_slice(&text).map_err(|error| RemoteError::Json { url: prepared.url.clone(), error })
        })
    }

    /// Returns the properties of a file.
    ///
    /// # Errors
    /// [`RemoteError::Directory`] if the resource is a directory; otherwise as
    /// [`list_directory`](Self::list_directory).
    pub fn fetch_head<'a>(&self, resource: impl Into<Resource<'a>>) -> Result<Head, RemoteError> {
        let prepared = PreparedRequest::new(self.url_of_resource(resource));
        self.retry_transient(|| {
            let response = self.send_head(&prepared)?;
            match response.status() {
                StatusCode::OK if !prepared.url.ends_with('/') => Head::from_response(&response)
                    .ok_or(RemoteError::Answer { url: prepared.url.clone(), what: "a file of unknown length" }),
                StatusCode::OK => Err(RemoteError::Directory(prepared.url.clone())),
                StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT
                    if leads_to_directory(&prepared.url, &response) =>
                {
                    Err(RemoteError::Directory(prepared.url.clone()))
                }
                _ => Err(refusal_error(&prepared.url, response)),
            }
        })
    }

    /// Reads a range of a file; returns fewer bytes than asked for if the file is shorter. With `same`, the content has
    /// to be the one that `same` describes, and [`RemoteError::Changed`] reports that the file is another one now;
    /// without it, only content that does not change (blocks of a run) can be put together from several reads.
    ///
    /// # Errors
    /// [`RemoteError::Changed`] as above; otherwise as [`fetch_head`](Self::fetch_head).
    pub fn read_range<'a>(
        &self,
        resource: impl Into<Resource<'a>>,
        range: impl RangeBounds<u64>,
        same: Option<&Head>,
    ) -> Result<Vec<u8>, RemoteError> {
        let mut reader = self.open_reader(resource, range, same)?;
        // The announced length must not decide how much memory is allocated.
        let mut bytes = Vec::with_capacity(usize::try_from(reader.remaining_bytes()).unwrap_or(0).min(8 << 20));
        reader.read_to_end(&mut bytes).map_err(|error| reader.original_error(error))?;
        Ok(bytes)
    }

    /// Returns the same range as a stream, which resumes by itself after a broken connection.
    ///
    /// # Errors
    /// As [`read_range`](Self::read_range), as far as the beginning of the answer shows. Later errors are errors of the
    /// stream.
    pub fn open_reader<'a>(
        &self,
        resource: impl Into<Resource<'a>>,
        range: impl RangeBounds<u64>,
        same: Option<&Head>,
    ) -> Result<Reader, RemoteError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Reader::open_stream(self.clone(), self.url_of_resource(resource), start..end.max(start), same)
    }

    /// Sends a GET request once. Returns the answer whatever its status.
    pub(crate) fn send_get(&self, prepared: &PreparedRequest) -> Result<Response<Body>, RemoteError> {
        let request = prepared.apply_fields(self, self.shared.agent.get(&prepared.url));
        request.call().map_err(|error| transport_error(&prepared.url, error))
    }

    pub(crate) fn send_head(&self, prepared: &PreparedRequest) -> Result<Response<Body>, RemoteError> {
        let request = prepared.apply_fields(self, self.shared.agent.head(&prepared.url));
        request.call().map_err(|error| transport_error(&prepared.url, error))
    }

    /// Sends `length` bytes of `body` once. The answer arrives when they are on the server's disk, which may take long.
    pub(crate) fn send_put(
        &self,
        prepared: &PreparedRequest,
        length: u64,
        body: &mut dyn Read,
    ) -> Result<Response<Body>, RemoteError> {
        let request = prepared.apply_fields(self, self.shared.agent.put(&prepared.url));
        let request = request.header(header::CONTENT_LENGTH, length);
        let request = request.config().timeout_per_read(Some(DISK_TIMEOUT)).build();
        request.send(SendBody::from_reader(body)).map_err(|error| transport_error(&prepared.url, error))
    }

    pub(crate) fn send_delete(&self, prepared: &PreparedRequest) -> Result<(), RemoteError> {
        let request = prepared.apply_fields(self, self.shared.agent.delete(&prepared.url));
        let response = request.call().map_err(|error| transport_error(&prepared.url, error))?;
        if response.status().is_success() { Ok(()) } else { Err(refusal_error(&prepared.url, response)) }
    }

    /// Repeats `act`, at growing intervals, while it fails for a reason that may go away.
    pub(crate) fn retry_transient<T>(&self, mut act: impl FnMut() -> Result<T, RemoteError>) -> Result<T, RemoteError> {
        let mut timeout = self.new_retries();
        loop {
            match act() {
                Err(error) => timeout.wait_or_fail(error)?,
                done => return done,
            }
        }
    }

    pub(crate) fn new_retries(&self) -> Retries {
        Retries { limit: self.shared.timeout, since: None, pause: MIN_RETRY_PAUSE }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { token: None, ca_file: None, timeout: Duration::from_secs(30) }
    }
}

impl Head {
    /// Returns the properties in an answer whose length is that of the whole file.
    pub(crate) fn from_response(response: &Response<Body>) -> Option<Self> {
        let length = header_field(response, header::CONTENT_LENGTH)?.parse().ok()?;
        Some(Self::from_response_with_length(response, length))
    }

    /// Returns whether both cannot describe the same content: a property that both have differs.
    pub(crate) fn contradicts_head(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
            one.is_some() && other.is_some() && one != other
        }
        self.length != other.length
            || differ(self.etag.as_ref(), other.etag.as_ref())
            || differ(self.modified.map(unix_seconds), other.modified.map(unix_seconds))
            || differ(self.crc32c, other.crc32c)
    }

    pub(crate) fn from_response_with_length(response: &Response<Body>, length: u64) -> Self {
        Self {
            length,
            etag: header_field(response, header::ETAG).filter(|etag| etag.starts_with('"')).map(str::to_owned),
            modified: header_field(response, header::LAST_MODIFIED)
                .and_then(|date| httpdate::parse_http_date(date).ok()),
            crc32c: header_field(response, "repr-digest").and_then(|digest| parse_repr_digest(digest).ok()?),
        }
    }
}

/// A request as it is sent.
#[derive(Debug, Clone)]
pub(crate) struct PreparedRequest {
    pub(crate) url: String,
    fields: Vec<(header::HeaderName, String)>,
}

impl PreparedRequest {
    pub(crate) fn new(url: String) -> Self {
        Self { url, fields: Vec::new() }
    }

    #[must_use]
    pub(crate) fn with_field(mut self, name: header::HeaderName, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    fn apply_fields<B>(&self, server: &Server, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        let authorization = server.shared.authorization.iter().map(|value| (&header::AUTHORIZATION, value));
        let fields = self.fields.iter().map(|(name, value)| (name, value));
        authorization.chain(fields).fold(request, |request, (name, value)| request.header(name, value))
    }
}

/// Limit for repetitions: exponential backoff since the last progress.
#[derive(Debug)]
pub(crate) struct Retries {
    limit: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Retries {
    /// Waits before the next attempt; returns the error if there is to be none.
    pub(crate) fn wait_or_fail(&mut self, error: RemoteError) -> Result<(), RemoteError> {
        if !error.is_transient() {
            return Err(error);
        }
        if self.limit.is_zero() {
            return Err(error);
        }
        let since = *self.since.get_or_insert_with(|| {
            tracing::warn!("{error}; trying again for {:?}", self.limit);
            Instant::now()
        });
        let left = self.limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(error);
        }
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(MAX_RETRY_PAUSE);
        Ok(())
    }

    /// Restarts the time limit after progress.
    pub(crate) fn reset_after_progress(&mut self) {
        self.since = None;
        self.pause = MIN_RETRY_PAUSE;
    }
}

/// Returns a field of an answer, if it is text.
pub(crate) fn header_field(response: &Response<Body>, name: impl header::AsHeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok().map(str::trim)
}

/// Returns the error for an unsuccessful answer.
pub(crate) fn refusal_error(url: &str, response: Response<Body>) -> RemoteError {
    let status = response.status().as_u16();
    let mut text = Vec::new();
    // The explanation only helps people: if it cannot be read, the status is enough.
    let _ = response.into_body().into_reader().take(1024).read_to_end(&mut text);
    let says = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().chars().take(200).collect();
    RemoteError::Status { url: url.to_owned(), status, says }
}

/// Returns the whole content of an answer, up to `most` bytes.
fn read_whole_body(url: &str, response: Response<Body>, most: u64) -> Result<Vec<u8>, RemoteError> {
    let mut text = Vec::new();
    let read = response.into_body().into_reader().take(most + 1).read_to_end(&mut text);
    read.map_err(|error| RemoteError::BrokeOff { url: url.to_owned(), error })?;
    if text.len() as u64 > most {
        return Err(RemoteError::Answer { url: url.to_owned(), what: "a listing of more than 256 MiB" });
    }
    Ok(text)
}

/// Returns whether an answer redirects to the same path with a slash after it.
fn leads_to_directory(url: &str, response: &Response<Body>) -> bool {
    let path = url.splitn(4, '/').nth(3).unwrap_or_default();
    let target = header_field(response, header::LOCATION).unwrap_or_default();
    // Servers may encode other characters of the same name.
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(target).collect();
    decoded.ends_with(&percent_encoding::percent_decode_str(&format!("/{path}/")).collect::<Vec<u8>>())
}

pub(crate) fn transport_error(url: &str, error: ureq::Error) -> RemoteError {
    RemoteError::Transport { url: url.to_owned(), error: Box::new(error) }
}

fn tls_config(options: &Options) -> Result<TlsConfig, RemoteError> {
    let roots = match &options.ca_file {
        None => RootCerts::PlatformVerifier,
        Some(path) => {
            let pem = std::fs::read(path).map_err(RemoteError::io_error("reading", path))?;
            let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(RemoteError::NoCertificate(path.clone()));
            }
            certificates.into_iter().into()
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(roots)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Returns a time limit, reduced for a client with a shorter timeout. A timeout of zero means no repetitions, not
/// haste.
fn limit_timeout(limit: Duration, timeout: Duration) -> Duration {
    if timeout.is_zero() { limit } else { limit.min(timeout.max(MIN_QUIET_TIMEOUT)) }
}

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a connection counts as broken if the server sends and accepts nothing.
const QUIET_TIMEOUT: Duration = Duration::from_secs(30);
/// Lower bound of that time for a short timeout: a disk that spins up, or a lost packet, is not a broken connection.
const MIN_QUIET_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a server may stay silent while it writes an upload to disk.
const DISK_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause before the first repetition.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Number of bytes read from or written to a socket at once: enough to make system calls a minor cost, few enough to
/// stay in the processor's cache.
const IO_BUFFER_BYTES: usize = 256 << 10;
/// Number of connections kept open between requests: one for each possible stream.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Maximum size of a listing in bytes: a million entries.
const MAX_LISTING_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_say_nothing_no_longer_than_the_timeout() {
        for (timeout, connect, quiet) in [(0, 10, 30), (1, 2, 2), (5, 5, 5), (20, 10, 20), (600, 10, 30)] {
            let timeout = Duration::from_secs(timeout);
            let limits = [CONNECT_TIMEOUT, QUIET_TIMEOUT].map(|limit| limit_timeout(limit, timeout).as_secs());
            assert_eq!(limits, [connect, quiet], "{timeout:?}");
        }
    }
}
