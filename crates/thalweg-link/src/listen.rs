//! Where sources connect, and how they do.

use crate::buffer::Buffer;
use crate::{Address, BuilderLink, Eager, LinkError, SourceGreeting, SourceLink, shm, tcp};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Connections that the kernel keeps until they are accepted, or fewer where `net.core.somaxconn` is less: over TCP, who
/// finds no room waits a second or more before it tries again.
const BACKLOG: i32 = 4096;

/// Begins to connect a source to a builder. `congestion` names the congestion control of a TCP link (those there are are
/// listed in `/proc/sys/net/ipv4/tcp_available_congestion_control`), `system` the system's default; without it, cubic. That there is nobody at the address may be found out only when the link is
/// driven.
pub fn connect(
    address: &Address,
    congestion: Option<&str>,
    greeting: &SourceGreeting,
) -> Result<Box<dyn SourceLink>, LinkError> {
    match address {
        Address::Tcp(host) => tcp::connect(host, congestion, greeting),
        Address::Shm(path) => shm::connect(path, greeting),
    }
}

/// A builder's front door. Non-blocking.
#[derive(Debug)]
pub struct Listener {
    door: Door,
    eager: Eager,
}

#[derive(Debug)]
enum Door {
    Tcp(Socket),
    Shm { listener: UnixListener, path: PathBuf },
}

impl Listener {
    /// Opens it. A Unix socket that a dead process left behind is replaced; one on which somebody listens is not.
    pub fn open(address: &Address, eager: Eager) -> Result<Self, LinkError> {
        let failed = |advice| move |error| LinkError::Listening { address: address.clone(), error, advice };
        let door = match address {
            Address::Tcp(host) => {
                let resolved = tcp::resolve(host).map_err(failed("correct the name in `listen`, or write a number"))?;
                let open = || -> io::Result<Socket> {
                    let socket =
                        Socket::new(Domain::for_address(resolved), Type::STREAM.nonblocking().cloexec(), None)?;
                    socket.set_reuse_address(true)?;
                    socket.bind(&SockAddr::from(resolved))?;
                    socket.listen(BACKLOG)?;
                    Ok(socket)
                };
                Door::Tcp(open().map_err(|error| failed(advice(address, error.kind()))(error))?)
            }
            Address::Shm(path) => {
                let open = || -> io::Result<UnixListener> {
                    // Connecting to any other kind of file is refused in the same way: leave those alone.
                    if is_socket(path)
                        && UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
                    {
                        std::fs::remove_file(path)?;
                    }
                    let listener = UnixListener::bind(path)?;
                    listener.set_nonblocking(true)?;
                    Ok(listener)
                };
                let listener = open().map_err(|error| failed(advice(address, error.kind()))(error))?;
                Door::Shm { listener, path: path.clone() }
            }
        };
        Ok(Self { door, eager })
    }

    /// Prepares the connections that are accepted from now on for credits: up to so many bytes of one source may be on their way
    /// to here at a time. Where one of these cannot be had, says what that means; of two, the first.
    ///
    /// - Buffers for all of it from the beginning: for data, and for the fetches, which are few bytes each, but for the kernel a packet each.
    /// - The congestion control `thalweg` (`docs/congestion.md`) for what we say. Fetches are few bytes in many packets, of
    ///   which others send only ten at first, and then wait a round trip.
    pub fn expect(&self, bytes: u64) -> Result<(), &'static str> {
        let Door::Tcp(socket) = &self.door else { return Ok(()) };
        let room = Buffer::Receive.hold(socket, bytes) & Buffer::Send.hold(socket, bytes);
        let follows = rustix::net::sockopt::set_tcp_congestion(socket, tcp::FOLLOWS_CREDIT).is_ok();
        match (room, follows) {
            (false, _) => Err(
                "buffers grow only as they are used: net.core.rmem_max or net.core.wmem_max is less than the window",
            ),
            (_, false) => {
                Err("fetches go out with the system's congestion control: `thalweg cc load thalweg` has a better one")
            }
            (true, true) => Ok(()),
        }
    }

    /// The address as others must write it: with the port the system chose where port 0 was asked for.
    pub fn address(&self) -> Address {
        match &self.door {
            Door::Tcp(socket) => {
                let local = socket.local_addr().ok().and_then(|address| address.as_socket());
                Address::Tcp(local.map(|address| address.to_string()).unwrap_or_default())
            }
            Door::Shm { path, .. } => Address::Shm(path.clone()),
        }
    }

    /// The next connection, with a name of the peer for the log.
    pub fn accept(&self) -> Result<Option<Accepted>, LinkError> {
        let accepted = match &self.door {
            Door::Tcp(socket) => socket.accept().map(|(socket, address)| {
                let address = address.as_socket();
                let name = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
                let origin = Origin::Host(address.map(|address| address.ip()));
                (tcp::accepted(socket, self.eager), Peer { name, origin })
            }),
            Door::Shm { listener, .. } => listener.accept().map(|(socket, _)| {
                let peer = rustix::net::sockopt::socket_peercred(&socket).ok();
                let name = peer.map_or_else(|| "process unknown".to_owned(), |peer| format!("process {}", peer.pid));
                let origin = Origin::User(peer.map(|peer| peer.uid.as_raw()));
                (shm::accepted(socket), Peer { name, origin })
            }),
        };
        match accepted {
            Ok((link, peer)) => Ok(Some((link?, peer))),
            // The peer was gone before we looked.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(LinkError::io("accepting a connection")(error)),
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// What to do where an address cannot be listened on for that reason.
fn advice(address: &Address, reason: ErrorKind) -> &'static str {
    match (address, reason) {
        (Address::Shm(path), ErrorKind::AddrInUse) if !is_socket(path) => {
            "a file of that name is there, which is no socket: choose another path for `listen`"
        }
        (_, ErrorKind::AddrInUse) => "end what listens there, or choose another address for `listen`",
        (Address::Tcp(_), ErrorKind::AddrNotAvailable) => {
            "it is no address of this host: choose one that `ip address` shows for `listen`"
        }
        (Address::Tcp(_), ErrorKind::PermissionDenied) => "choose a port from 1024 on for `listen`",
        (Address::Shm(_), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            "make the directory, or choose another path for `listen`"
        }
        (Address::Shm(_), _) => "choose a path for `listen` in a directory that can be written to",
        (Address::Tcp(_), _) => "choose another address for `listen`",
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.door {
            Door::Tcp(socket) => socket.as_fd(),
            Door::Shm { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Door::Shm { path, .. } = &self.door {
            let _ = std::fs::remove_file(path);
        }
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
