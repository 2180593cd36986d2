//! Asks a data server, and asks again where it is worth it.

use crate::address::Address;
use crate::part::seconds;
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

/// A data server, or what is beneath a URL of one. All paths are relative to that URL.
///
/// Its methods block. A clone is cheap, and shares the connections that are kept open: threads may each have one, or
/// all use the same. What fails for a reason that may go away by itself is tried again, as long as [`Options::timeout`]
/// says; redirections are not followed.
#[derive(Debug, Clone)]
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
}

/// How a server is asked.
#[derive(Debug, Clone)]
pub struct Options {
    /// The token that says who asks (`Authorization: Bearer`).
    pub token: Option<String>,
    /// Certificates (PEM) that vouch for the server, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How long to try again while the server cannot be reached, breaks off or says that it cannot now, since it did
    /// something last. A server that says nothing for so long counts as one that breaks off: after 2 s at least, and 30
    /// s at most.
    pub timeout: Duration,
}

/// What a server says of a file without sending it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its length in bytes.
    pub length: u64,
    /// What tells this content from any other that the file has had, with its quotes. None where the server gives no
    /// strong one.
    pub etag: Option<String>,
    /// When it was changed last, to the second.
    pub modified: Option<SystemTime>,
    /// The checksum of the whole, where the server knows it.
    pub crc32c: Option<u32>,
}

#[derive(Debug)]
struct Shared {
    agent: Agent,
    authorization: Option<String>,
    timeout: Duration,
}

impl Server {
    /// The server, or the place on it, that `url` names. Nothing is asked yet.
    ///
    /// # Errors
    /// Where `url` names nothing on any server, the token is not one line of printable text, or the file of
    /// certificates cannot be used.
    pub fn new(url: &str, options: &Options) -> Result<Self, RemoteError> {
        let address = Address::parse(url)?;
        let authorization = options.token.as_ref().map(|token| format!("Bearer {token}"));
        if authorization.as_ref().is_some_and(|value| header::HeaderValue::from_str(value).is_err()) {
            return Err(RemoteError::Url { url: url.to_owned(), why: "the token must be one line of printable text" });
        }
        if authorization.is_some() && address.is_overheard() {
            tracing::warn!(
                "{url}: the token and the data go over the network for everybody to read; https:// hides them"
            );
        }
        let agent = Agent::config_builder()
            .user_agent(concat!("thalweg/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls(options)?)
            // A token goes to nobody but the server it was given for, and what is read is what was named.
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_resolve(Some(no_longer(CONNECT, options.timeout)))
            .timeout_connect(Some(no_longer(CONNECT, options.timeout)))
            .timeout_per_read(Some(no_longer(QUIET, options.timeout)))
            .timeout_per_write(Some(no_longer(QUIET, options.timeout)))
            .input_buffer_size(BUFFER)
            .output_buffer_size(BUFFER)
            .max_idle_connections(MOST_IDLE)
            .max_idle_connections_per_host(MOST_IDLE)
            .build()
            .new_agent();
        Ok(Self { address, shared: Arc::new(Shared { agent, authorization, timeout: options.timeout }) })
    }

    /// The same server, beneath a path of this one.
    #[must_use]
    pub fn beneath(&self, path: &str) -> Self {
        Self { address: self.address.beneath(path), shared: Arc::clone(&self.shared) }
    }

    /// The same server, at what lies beside its URL under another name.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self { address: self.address.beside(name), shared: Arc::clone(&self.shared) }
    }

    /// The same server, over the same connections, tried again for another time. How long it may say nothing stays.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        let Shared { agent, authorization, .. } = &*self.shared;
        let shared = Shared { agent: agent.clone(), authorization: authorization.clone(), timeout };
        Self { address: self.address.clone(), shared: Arc::new(shared) }
    }

    /// The last name in its URL; none where that names a whole server.
    pub fn name(&self) -> Option<String> {
        self.address.name()
    }

    /// The URL of something on it.
    pub fn url<'a>(&self, resource: impl Into<Resource<'a>>) -> String {
        self.address.url(resource.into())
    }

    /// What a directory or a run holds.
    ///
    /// # Errors
    /// Where there is no such directory, the server cannot be reached for [`Options::timeout`], or it refuses or
    /// answers something else.
    pub fn list(&self, path: &str) -> Result<Listing, RemoteError> {
        let directory = format!("{}/", path.trim_end_matches('/'));
        let question = Question::new(self.url(&directory)).with(header::ACCEPT, "application/json");
        self.patiently(|| {
            let response = self.get(&question)?;
            if response.status() != StatusCode::OK {
                return Err(refused(&question.url, response));
            }
            let text = whole(&question.url, response, MOST_JSON)?;
            serde_json::from_slice(&text).map_err(|error| RemoteError::Json { url: question.url.clone(), error })
        })
    }

    /// What the server says of a file.
    ///
    /// # Errors
    /// [`RemoteError::Directory`] where there is a directory instead; otherwise as [`list`](Self::list).
    pub fn head<'a>(&self, resource: impl Into<Resource<'a>>) -> Result<Head, RemoteError> {
        let question = Question::new(self.url(resource));
        self.patiently(|| {
            let response = self.send_head(&question)?;
            match response.status() {
                StatusCode::OK if !question.url.ends_with('/') => Head::of(&response)
                    .ok_or(RemoteError::Answer { url: question.url.clone(), what: "a file of no known length" }),
                StatusCode::OK => Err(RemoteError::Directory(question.url.clone())),
                StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT
                    if leads_to_directory(&question.url, &response) =>
                {
                    Err(RemoteError::Directory(question.url.clone()))
                }
                _ => Err(refused(&question.url, response)),
            }
        })
    }

    /// A range of a file: less than asked for where the file is shorter. Where it has to be of the content that `same`
    /// was said of, [`RemoteError::Changed`] tells that the file is another one now; without, only what does not change
    /// (blocks of a run) can be put together from several reads.
    ///
    /// # Errors
    /// [`RemoteError::Changed`] as above; otherwise as [`head`](Self::head).
    pub fn read<'a>(
        &self,
        resource: impl Into<Resource<'a>>,
        range: impl RangeBounds<u64>,
        same: Option<&Head>,
    ) -> Result<Vec<u8>, RemoteError> {
        let mut reader = self.reader(resource, range, same)?;
        // What a server says it will send is no reason to set so much memory aside.
        let mut bytes = Vec::with_capacity(usize::try_from(reader.remaining()).unwrap_or(0).min(8 << 20));
        reader.read_to_end(&mut bytes).map_err(|error| reader.error(error))?;
        Ok(bytes)
    }

    /// The same as a stream. Where it breaks off, it goes on from there by itself.
    ///
    /// # Errors
    /// As [`read`](Self::read), as far as the beginning of the answer tells. The rest is an error of the stream.
    pub fn reader<'a>(
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
        Reader::open(self.clone(), self.url(resource), start..end.max(start), same)
    }

    /// Asks once. Any status is an answer.
    pub(crate) fn get(&self, question: &Question) -> Result<Response<Body>, RemoteError> {
        let request = question.fields(self, self.shared.agent.get(&question.url));
        request.call().map_err(|error| transport(&question.url, error))
    }

    pub(crate) fn send_head(&self, question: &Question) -> Result<Response<Body>, RemoteError> {
        let request = question.fields(self, self.shared.agent.head(&question.url));
        request.call().map_err(|error| transport(&question.url, error))
    }

    /// Sends `length` bytes of `body` once. The answer comes when they are on the server's disk, which may take long.
    pub(crate) fn put(
        &self,
        question: &Question,
        length: u64,
        body: &mut dyn Read,
    ) -> Result<Response<Body>, RemoteError> {
        let request = question.fields(self, self.shared.agent.put(&question.url));
        let request = request.header(header::CONTENT_LENGTH, length);
        let request = request.config().timeout_per_read(Some(DISK)).build();
        request.send(SendBody::from_reader(body)).map_err(|error| transport(&question.url, error))
    }

    pub(crate) fn delete(&self, question: &Question) -> Result<(), RemoteError> {
        let request = question.fields(self, self.shared.agent.delete(&question.url));
        let response = request.call().map_err(|error| transport(&question.url, error))?;
        if response.status().is_success() { Ok(()) } else { Err(refused(&question.url, response)) }
    }

    /// Does it again, at growing intervals, while it fails for a reason that may go away.
    pub(crate) fn patiently<T>(&self, mut act: impl FnMut() -> Result<T, RemoteError>) -> Result<T, RemoteError> {
        let mut timeout = self.timeout();
        loop {
            match act() {
                Err(error) => timeout.wait(error)?,
                done => return done,
            }
        }
    }

    pub(crate) fn timeout(&self) -> Retries {
        Retries { limit: self.shared.timeout, since: None, pause: FIRST_PAUSE }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { token: None, ca_file: None, timeout: Duration::from_secs(30) }
    }
}

impl Head {
    /// What an answer says, whose length is that of the whole file.
    pub(crate) fn of(response: &Response<Body>) -> Option<Self> {
        let length = field(response, header::CONTENT_LENGTH)?.parse().ok()?;
        Some(Self::with_length(response, length))
    }

    /// Whether both cannot be of the same content: something that both say differs.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
            one.is_some() && other.is_some() && one != other
        }
        self.length != other.length
            || differ(self.etag.as_ref(), other.etag.as_ref())
            || differ(self.modified.map(seconds), other.modified.map(seconds))
            || differ(self.crc32c, other.crc32c)
    }

    pub(crate) fn with_length(response: &Response<Body>, length: u64) -> Self {
        Self {
            length,
            etag: field(response, header::ETAG).filter(|etag| etag.starts_with('"')).map(str::to_owned),
            modified: field(response, header::LAST_MODIFIED).and_then(|date| httpdate::parse_http_date(date).ok()),
            crc32c: field(response, "repr-digest").and_then(|digest| parse_repr_digest(digest).ok()?),
        }
    }
}

/// What is asked, as it goes over the wire.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) url: String,
    fields: Vec<(header::HeaderName, String)>,
}

impl Question {
    pub(crate) fn new(url: String) -> Self {
        Self { url, fields: Vec::new() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: header::HeaderName, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    fn fields<B>(&self, server: &Server, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        let authorization = server.shared.authorization.iter().map(|value| (&header::AUTHORIZATION, value));
        let fields = self.fields.iter().map(|(name, value)| (name, value));
        authorization.chain(fields).fold(request, |request, (name, value)| request.header(name, value))
    }
}

/// How long something is still tried: exponential backoff since it last got anywhere.
#[derive(Debug)]
pub(crate) struct Retries {
    limit: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Retries {
    /// Waits before the next try; gives the error back where there is to be none.
    pub(crate) fn wait(&mut self, error: RemoteError) -> Result<(), RemoteError> {
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
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Something was achieved.
    pub(crate) fn renew(&mut self) {
        self.since = None;
        self.pause = FIRST_PAUSE;
    }
}

/// A field of an answer, where it is text.
pub(crate) fn field(response: &Response<Body>, name: impl header::AsHeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok().map(str::trim)
}

/// The error that an answer stands for.
pub(crate) fn refused(url: &str, response: Response<Body>) -> RemoteError {
    let status = response.status().as_u16();
    let mut said = Vec::new();
    // Why is a help to people only: where it cannot be read, the status says enough.
    let _ = response.into_body().into_reader().take(1024).read_to_end(&mut said);
    let says = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().chars().take(200).collect();
    RemoteError::Status { url: url.to_owned(), status, says }
}

/// The whole content of an answer, up to `most` bytes.
fn whole(url: &str, response: Response<Body>, most: u64) -> Result<Vec<u8>, RemoteError> {
    let mut text = Vec::new();
    let broke_off = |error| RemoteError::BrokeOff { url: url.to_owned(), error };
    response.into_body().into_reader().take(most + 1).read_to_end(&mut text).map_err(broke_off)?;
    if text.len() as u64 > most {
        return Err(RemoteError::Answer { url: url.to_owned(), what: "a listing of more than 256 MiB" });
    }
    Ok(text)
}

/// Whether an answer sends us to the same place with a slash behind it.
fn leads_to_directory(url: &str, response: &Response<Body>) -> bool {
    let path = url.splitn(4, '/').nth(3).unwrap_or_default();
    let target = field(response, header::LOCATION).unwrap_or_default();
    // Servers may write the same name with other characters encoded.
    let plain = |path: &str| percent_encoding::percent_decode_str(path).collect::<Vec<u8>>();
    plain(target).ends_with(&plain(&format!("/{path}/")))
}

pub(crate) fn transport(url: &str, error: ureq::Error) -> RemoteError {
    RemoteError::Transport { url: url.to_owned(), error: Box::new(error) }
}

fn tls(options: &Options) -> Result<TlsConfig, RemoteError> {
    let roots = match &options.ca_file {
        None => RootCerts::PlatformVerifier,
        Some(path) => {
            let pem = std::fs::read(path).map_err(RemoteError::io("reading", path))?;
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

/// A limit of time for whoever has no more timeout than that. None at all means that nothing is tried again, not haste.
fn no_longer(limit: Duration, timeout: Duration) -> Duration {
    if timeout.is_zero() { limit } else { limit.min(timeout.max(SHORTEST_QUIET)) }
}

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may say nothing, or take nothing, before the connection counts as broken.
const QUIET: Duration = Duration::from_secs(30);
/// The same for who has little timeout: a disk that has to spin up, or a packet that was lost, is no break.
const SHORTEST_QUIET: Duration = Duration::from_secs(2);
/// How long it may say nothing while it brings an upload to its disk.
const DISK: Duration = Duration::from_secs(300);
/// Between the first two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Between any two.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// What is read from or written to a socket at once: enough to make system calls a minor cost, little enough to stay
/// in the processor's cache.
const BUFFER: usize = 256 << 10;
/// Connections kept open between requests: one for each stream there may be.
const MOST_IDLE: usize = 64;
/// Bytes in a listing: a million entries.
const MOST_JSON: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_say_nothing_no_longer_than_the_timeout() {
        for (timeout, connect, quiet) in [(0, 10, 30), (1, 2, 2), (5, 5, 5), (20, 10, 20), (600, 10, 30)] {
            let timeout = Duration::from_secs(timeout);
            let limits = [CONNECT, QUIET].map(|limit| no_longer(limit, timeout).as_secs());
            assert_eq!(limits, [connect, quiet], "{timeout:?}");
        }
    }
}
