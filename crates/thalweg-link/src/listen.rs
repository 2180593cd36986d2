//! Where sources connect, and how they do.

use crate::{Address, BuilderLink, Door, Eager, LinkError, SourceGreeting, SourceLink};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Begins to connect a source to a builder. `congestion` names the congestion control of a TCP link (those there are are
/// listed in `/proc/sys/net/ipv4/tcp_available_congestion_control`), `system` the system's default; without it, cubic.
/// That there is nobody at the address may be found out only when the link is driven.
///
/// # Errors
/// The address, or what was asked for with it, cannot be used here; or nobody is there.
pub fn connect(
    address: &Address,
    congestion: Option<&str>,
    greeting: &SourceGreeting,
) -> Result<Box<dyn SourceLink>, LinkError> {
    address.kind().transport().connect(address, congestion, greeting)
}

/// A builder's front door, of any kind. Non-blocking.
#[derive(Debug)]
pub struct Listener {
    door: Box<dyn Door>,
    address: Address,
}

impl Listener {
    /// Opens it. A Unix socket that a dead process left behind is replaced; one on which somebody listens is not.
    ///
    /// # Errors
    /// It cannot be listened on there: [`LinkError::Listening`] says what to do.
    pub fn open(address: &Address, eager: Eager) -> Result<Self, LinkError> {
        let door = address.kind().transport().listen(address, eager)?;
        let address = Address::new(address.kind(), &door.place()).unwrap_or_else(|_| address.clone());
        Ok(Self { door, address })
    }

    /// Prepares the connections that are accepted from now on for credits: up to so many bytes of one source may be on
    /// their way to here at a time. Of two things that cannot be had, the first is told.
    ///
    /// # Errors
    /// What cannot be had, and what that means.
    pub fn expect(&self, bytes: u64) -> Result<(), &'static str> {
        self.door.expect(bytes)
    }

    /// The address as others must write it: with the port the system chose where port 0 was asked for.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// The next connection, with a name of the peer for the log.
    ///
    /// # Errors
    /// Somebody waits and cannot be let in: out of descriptors, most likely.
    pub fn accept(&self) -> Result<Option<Accepted>, LinkError> {
        self.door.accept()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.fd()
    }
}

/// What `accept` returned: nothing where nobody waits, or the peer was gone before we looked.
pub(crate) fn accepted<S>(result: io::Result<S>) -> Result<Option<S>, LinkError> {
    use ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    match result {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) => Ok(None),
        Err(error) => Err(LinkError::io("accepting a connection")(error)),
    }
}

/// A link to a source that connected, and who that is.
pub type Accepted = (Box<dyn BuilderLink>, Peer);

/// Who is at the other end, as far as the link can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    name: String,
    origin: Origin,
}

/// Where a peer comes from, which it cannot choose for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A host, by its address.
    Host(Option<IpAddr>),
    /// A user of this host, by the number.
    User(Option<u32>),
}

impl Peer {
    /// With a name for the log.
    pub fn new(name: String, origin: Origin) -> Self {
        Self { name, origin }
    }

    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Eager = Eager { credit: 0, limit: 0 };

    #[test]
    fn what_cannot_be_listened_on_is_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("shm:{}", directory.path().join(name).display());
        std::fs::write(directory.path().join("file"), "").unwrap();
        let here = Listener::open(&at("here").parse().unwrap(), NOTHING).unwrap();
        let port = Listener::open(&"tcp:127.0.0.1:0".parse().unwrap(), NOTHING).unwrap();
        for (address, advice) in [
            (at("no/such/directory/x"), "make the directory"),
            (at("file/x"), "make the directory"),
            (at("file"), "which is no socket"),
            (here.address().to_string(), "end what listens there"),
            (port.address().to_string(), "end what listens there"),
            // TEST-NET-1 (RFC 5737): nobody has it. And a name that nobody can have (RFC 6761).
            ("tcp:192.0.2.1:7400".to_owned(), "no address of this host"),
            ("tcp:nobody.invalid:7400".to_owned(), "correct the name"),
        ] {
            let error = Listener::open(&address.parse().unwrap(), NOTHING).unwrap_err().to_string();
            assert!(error.starts_with(&format!("listening on {address}: ")) && error.contains(advice), "{error}");
        }
    }
}
