//! What can go wrong between a client and a data server.

use std::io;
use std::path::{Path, PathBuf};
use thalweg_store::StoreError;
use thiserror::Error;

/// Why something could not be fetched or sent.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// A URL that names nothing on any server.
    #[error("{url}: {why}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The server could not be reached, or the connection broke, again and again.
    #[error("{url}: {}", explain_transport(.error))]
    Transport {
        /// What was asked for.
        url: String,
        /// The last that happened.
        #[source]
        error: Box<ureq::Error>,
    },
    /// The connection broke off in the middle of an answer, again and again.
    #[error("{url}: the answer broke off: {error}")]
    BrokeOff {
        /// What was asked for.
        url: String,
        /// The last that happened.
        #[source]
        error: io::Error,
    },
    /// The server does not do it.
    #[error("{url}: {}", explain(*.status, .says))]
    Status {
        /// What was asked for.
        url: String,
        /// The HTTP status code.
        status: u16,
        /// The first line of what it says about it.
        says: String,
    },
    /// There is a directory where a file was asked for.
    #[error("{0} is a directory")]
    Directory(String),
    /// The file is another one than it was.
    #[error("{0} has changed on the server meanwhile")]
    Changed(String),
    /// An answer that does not belong to what was asked.
    #[error("{url}: the server's answer makes no sense: {what}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A listing, or a `run.json`, that cannot be read.
    #[error("{url}: what the server sends cannot be read: {error}")]
    Json {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        #[source]
        error: serde_json::Error,
    },
    /// What arrived is not what the server has.
    #[error(
        "{name}: what came has CRC32C {found:08x}, the server says {expected:08x}: bits were lost on its disk (`thalweg verify` there tells), or on the way"
    )]
    Digest {
        /// The file.
        name: String,
        /// Of what is here.
        found: u32,
        /// Of what is there.
        expected: u32,
    },
    /// A file on the server that is not this one, which is not overwritten.
    #[error("{0} is there already, and is another one: give it another name, or remove it on the server")]
    Exists(String),
    /// A file here that is not the server's, which is not overwritten.
    #[error("{} is there already, and is not the one on the server: move it away", .0.display())]
    Here(PathBuf),
    /// Some of what was asked for, where all else was fetched.
    #[error("{first}; {}all else was fetched", others(.more))]
    Partly {
        /// Why one of them was not.
        first: Box<RemoteError>,
        /// How many more were not.
        more: usize,
    },
    /// A run that has ended, of which some is missing.
    #[error(
        "{name} has {events} of the {of_events} events and {blocks} of the {of_blocks} blocks that its run.json tells of: `thalweg verify` says more"
    )]
    NotWhole {
        /// Its URL, or its directory.
        name: String,
        /// Closed events that there are.
        events: u64,
        /// Those that were written.
        of_events: u64,
        /// Data blocks that there are.
        blocks: u64,
        /// Those that were written.
        of_blocks: u64,
    },
    /// The directory is not a run.
    #[error("{0} is no run: it has no run.json")]
    NotARun(String),
    /// Bytes of a file here are not those that its checksum was taken of.
    #[error("{}: {error}; if it is a segment, `thalweg verify` says what is wrong with it", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What the server said.
        #[source]
        error: Box<RemoteError>,
    },
    /// A run that is sent as if it had ended.
    #[error("{} is being recorded: --follow sends it meanwhile", .0.display())]
    BeingWritten(PathBuf),
    /// A file that no server would take.
    #[error("{} has no name that could be one on a server: it is hidden, or not UTF-8", .0.display())]
    NoName(PathBuf),
    /// Another process writes the same copy.
    #[error("{} is being written by another process", .0.display())]
    InUse(PathBuf),
    /// A file of certificates without one.
    #[error("{} holds no certificate (PEM)", .0.display())]
    NoCertificate(PathBuf),
    /// The operating system refused.
    #[error("{doing} {}: {error}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The answer.
        #[source]
        error: io::Error,
    },
    /// A run that cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RemoteError {
    /// Whether it was asked for wrongly: no try mends it.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Url { .. } | Self::NoCertificate(_) | Self::NotARun(_) | Self::BeingWritten(_) | Self::NoName(_)
        ) || matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotADirectory)
    }

    /// Whether the server has no more of this, or gives it away to nobody, or not to us, while it may give others.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { status: 403 | 404 | 410, .. } | Self::NotWhole { .. })
    }

    /// Whether the server has no such thing.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404 | 410, .. })
    }

    /// Whether it may go away by itself: trying again makes sense. (RFC 9110, sections 15.5.9 and 15.6; 423 while the
    /// server has not yet noticed that the connection an upload came over is dead.)
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 423 | 429 | 500 | 502..=504),
            Self::Transport { error, .. } => match &**error {
                ureq::Error::Io(error) => !is_distrust(error),
                error => {
                    matches!(error, ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_))
                }
            },
            Self::BrokeOff { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
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

fn others(more: &usize) -> String {
    match more {
        0 => String::new(),
        1 => "and another one; ".to_owned(),
        more => format!("and {more} others; "),
    }
}

fn explain_transport(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) if is_distrust(error) => match &*error.to_string() {
            said if said.contains("CaUsedAsEndEntity") => {
                format!(
                    "{said}: it is one that vouches for others (CA:TRUE); make the server's with CA:FALSE (docs/how-to.md)"
                )
            }
            said if said.contains("InvalidContentType") => {
                format!("{said}: this is no TLS; does its URL begin with http://?")
            }
            said => format!("{said}; --ca-file (ca_file= in Python) names certificates that vouch for the server"),
        },
        ureq::Error::Protocol(error) if error.to_string().contains("http parse fail") => {
            format!("{error}: this is no HTTP; does its URL begin with https://?")
        }
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("{error}: does `thalweg serve` run there, on this port?")
        }
        error => error.to_string(),
    }
}

/// Whether TLS failed: the certificate is not trusted, or the other side does not speak it.
fn is_distrust(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

fn explain(status: u16, says: &str) -> String {
    let meaning = match status {
        400 => "the server does not accept it",
        401 => "the server wants a token that it knows (--token-file, THALWEG_TOKEN; token= in Python)",
        403 => "the server may not read or write it, or not for this token",
        404 | 410 => "there is no such thing on the server",
        405 => "the server does not do that; uploads need `thalweg serve --write`",
        409 => "what is there is in the way",
        412 => "it has changed on the server",
        423 => "another client writes it",
        503 => "the server is busy",
        507 => "the server's disk is full",
        _ => "the server refuses",
    };
    let says = if says.is_empty() { String::new() } else { format!(", it says: {says}") };
    format!("{meaning} ({status}{says})")
}
