//! The peer at the other end of a connection.

use crate::LinkError;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;

/// Interprets the result of `accept`: `None` if no peer is waiting, or if the peer was gone before the call.
pub(crate) fn interpret_accept<S>(result: io::Result<S>) -> Result<Option<S>, LinkError> {
    use ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match result {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) => Ok(None),
        Err(error) => Err(LinkError::from_system_call("accepting a connection")(error)),
    }
}

/// Returns what a user can do if an address cannot be listened on for this reason.
pub(crate) fn listening_advice(reason: ErrorKind) -> &'static str {
    match reason {
        ErrorKind::AddrInUse => "stop the program that listens there, or choose another address for `listen`",
        ErrorKind::AddrNotAvailable => "it is not an address of this host: set `listen` to one that `ip address` shows",
        ErrorKind::PermissionDenied => "choose a port of at least 1024 for `listen`",
        _ => "choose another address for `listen`",
    }
}

/// The peer at the other end, as far as the link can identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    name: String,
    origin: Origin,
}

/// Origin of a peer, which the peer cannot choose for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A host, by its IP address.
    Host(Option<IpAddr>),
    /// A user of this host, by user number.
    User(Option<u32>),
}

impl Peer {
    /// Creates a peer with a name for the log.
    pub fn new(name: String, origin: Origin) -> Self {
        Self { name, origin }
    }

    /// Returns the origin of the peer.
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
