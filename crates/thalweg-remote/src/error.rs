//! Errors between a client and a data server.

use std::io;
use std::path::{Path, PathBuf};
use thalweg_store::StoreError;
use thiserror::Error;

/// Reason why something could not be fetched or sent.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// The URL names nothing on any server.
    #[error("{url}: {why}")]
    Url {
        /// URL as it was given.
        url: String,
        /// Reason why it is invalid.
        why: &'static str,
    },
    /// The server could not be reached, or the connection broke, repeatedly.
    #[error("{url}: {}", explain_transport(.error))]
    Transport {
        /// Requested URL.
        url: String,
        /// Last error.
        #[source]
        error: Box<ureq::Error>,
    },
    /// The connection broke off in the middle of an answer, repeatedly.
    #[error("{url}: the response ended early: {error}")]
    BrokeOff {
        /// Requested URL.
        url: String,
        /// Last error.
        #[source]
        error: io::Error,
    },
    /// The server refuses the request.
    #[error("{url}: {}", explain_status(*.status, .says))]
    Status {
        /// Requested URL.
        url: String,
        /// The HTTP status code.
        status: u16,
        /// First line of the server's explanation.
        says: String,
    },
    /// The URL of a file names a directory.
    #[error("{0} is a directory")]
    Directory(String),
    /// The file is not the one that it was before.
    #[error("{0} changed on the server in the meantime")]
    Changed(String),
    /// The answer does not match the request.
    #[error("{url}: the server sent an invalid answer: {what}")]
    Answer {
        /// Requested URL.
        url: String,
        /// Description of the mismatch.
        what: &'static str,
    },
    /// A listing, or a `run.json`, cannot be parsed.
    #[error("{url}: the server's response cannot be read: {error}")]
    Json {
        /// Requested URL.
        url: String,
        /// Error of the parser.
        #[source]
        error: serde_json::Error,
    },
    /// The content that arrived does not match the server's checksum.
    #[error(
        "{name}: the received bytes have CRC32C {found:08x}, but the server reports {expected:08x}: bits changed on \
         its disk (`thalweg verify` there shows it) or in transit"
    )]
    Digest {
        /// Name of the file.
        name: String,
        /// Checksum of the local content.
        found: u32,
        /// Checksum that the server reports.
        expected: u32,
    },
    /// The server has another file of this name, which is not overwritten.
    #[error("the server already has a different {0}: rename it, or remove it on the server")]
    Exists(String),
    /// There is another local file of this name, which is not overwritten.
    #[error("{} exists and differs from the one on the server: move it away", .0.display())]
    Here(PathBuf),
    /// Parts of the fetch were refused; all else was fetched.
    #[error("{first}; {}everything else was fetched", others_text(.more))]
    Partly {
        /// Error of the first part.
        first: Box<RemoteError>,
        /// Number of further parts that were refused.
        more: usize,
    },
    /// A run that has ended is incomplete.
    #[error(
        "{name} has {events} of the {of_events} events and {blocks} of the {of_blocks} blocks that its run.json \
         states: `thalweg verify` shows more"
    )]
    NotWhole {
        /// URL or directory of the run.
        name: String,
        /// Number of closed events present.
        events: u64,
        /// Number of closed events that were written.
        of_events: u64,
        /// Number of data blocks present.
        blocks: u64,
        /// Number of data blocks that were written.
        of_blocks: u64,
    },
    /// The directory is not a run.
    #[error("{0} is not a run: it has no run.json")]
    NotARun(String),
    /// The bytes of a local file do not match the checksum that was recorded for them.
    #[error("{}: {error}; if it is a segment, `thalweg verify` shows what is wrong with it", .path.display())]
    Refused {
        /// Path of the file.
        path: PathBuf,
        /// Answer of the server.
        #[source]
        error: Box<RemoteError>,
    },
    /// A run to be sent as a finished one is still being recorded.
    #[error("{} is being recorded: --follow sends it during the recording", .0.display())]
    BeingWritten(PathBuf),
    /// The file has a name that no server accepts.
    #[error("{} cannot be sent under this name: it is hidden, or not UTF-8", .0.display())]
    NoName(PathBuf),
    /// Another process writes the same copy.
    #[error("{} is being written by another process", .0.display())]
    InUse(PathBuf),
    /// The file of certificates contains none.
    #[error("{} holds no certificate (PEM)", .0.display())]
    NoCertificate(PathBuf),
    /// The operating system reported an error.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// Path that it was applied to.
        path: PathBuf,
        /// Error that the system reports.
        #[source]
        error: io::Error,
    },
    /// The run cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RemoteError {
    /// Returns whether the request itself is wrong, so that repeating it is of no use.
    pub fn is_usage_error(&self) -> bool {
        matches!(
            self,
            Self::Url { .. } | Self::NoCertificate(_) | Self::NotARun(_) | Self::BeingWritten(_) | Self::NoName(_)
        ) || matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotADirectory)
    }

    /// Returns whether the server lacks or refuses this entry, while it may send others.
    pub(crate) fn is_server_refusal(&self) -> bool {
        matches!(self, Self::Status { status: 403 | 404 | 410, .. } | Self::NotWhole { .. })
    }

    /// Returns whether the server has no such entry.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404 | 410, .. })
    }

    /// Returns whether the error may go away by itself, so that repeating the request makes sense. (RFC 9110, sections
    /// 15.5.9 and 15.6; 423 while the server has not yet noticed that the connection of an upload is dead.)
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 423 | 429 | 500 | 502..=504),
            Self::Transport { error, .. } => match &**error {
                ureq::Error::Io(error) => !is_tls_error(error),
                error => {
                    matches!(error, ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_))
                }
            },
            Self::BrokeOff { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, path: path.to_owned(), error }
    }
}

impl From<RemoteError> for io::Error {
    fn from(error: RemoteError) -> Self {
        let kind = match &error {
            RemoteError::Status { status: 404 | 410, .. } => io::ErrorKind::NotFound,
            RemoteError::Status { status: 401 | 403, .. } => io::ErrorKind::PermissionDenied,
            RemoteError::Directory(_) => io::ErrorKind::IsADirectory,
            RemoteError::Transport { .. } | RemoteError::BrokeOff { .. } => io::ErrorKind::NotConnected,
            RemoteError::Io { error, .. } => error.kind(),
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

fn others_text(more: &usize) -> String {
    match more {
        0 => String::new(),
        1 => "and one other; ".to_owned(),
        more => format!("and {more} others; "),
    }
}

fn explain_transport(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if is_tls_error(error) => match &*error.to_string() {
            text if text.contains("CaUsedAsEndEntity") => {
                format!(
                    "{text}: it is a certificate authority (CA:TRUE); create the server's certificate with CA:FALSE \
                     (docs/how-to.md)"
                )
            }
            text if text.contains("InvalidContentType") => {
                format!("{text}: the server does not use TLS; use a URL that begins with http://")
            }
            text => format!("{text}; trust the server's certificate with --ca-file (ca_file= in Python)"),
        },
        ureq::Error::Protocol(error) if error.to_string().contains("http parse fail") => {
            format!("{error}: the server does not use plain HTTP; use a URL that begins with https://")
        }
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("{error}: check that `thalweg serve` runs there on this port")
        }
        error => error.to_string(),
    }
}

/// Returns whether TLS failed: the certificate is not trusted, or the peer does not use TLS.
fn is_tls_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

fn explain_status(status: u16, says: &str) -> String {
    let meaning = match status {
        400 => "the server rejected the request",
        401 => "the server requires a valid token (--token-file, THALWEG_TOKEN; token= in Python)",
        403 => "the server refused access, or refuses it for this token",
        404 | 410 => "not found on the server",
        405 => "the server does not allow it; uploads need `thalweg serve --write`",
        409 => "the server already has a different file of this name",
        412 => "it changed on the server",
        423 => "another client is writing it",
        503 => "the server is busy",
        507 => "the server's disk is full",
        _ => "the server refused",
    };
    let says = if says.is_empty() { String::new() } else { format!(": {says}") };
    format!("{meaning} ({status}{says})")
}
