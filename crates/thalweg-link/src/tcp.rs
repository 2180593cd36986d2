//! The three verbs over TCP.
//!
//! The payload leaves the source by `sendfile` from the arena's memfd: the pages themselves go into the socket, so the
//! source's processor never touches them, and since a slot is reused only after its release, they do not change while
//! the kernel may still have to retransmit them. The builder receives straight into the place in the block. One `readv`
//! takes the rest of a payload and the messages after it, so that a large fragment costs few system calls.

mod builder;
mod source;
mod stash;

use crate::buffer::Buffer;
use crate::kind::{Abilities, Locator, Transport};
use crate::names::listen_at_first;
use crate::peer::interpret_accept;
use crate::sockets::{Listener, Sockets};
use crate::{Adapter, Address, BuilderEndpoint, Eager, LinkError, Origin, Peer, SourceEndpoint, SourceGreeting, Watch};
use builder::TcpBuilder;
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use source::TcpSource;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Congestion control of the sending side if none is requested (RFC 9438). The builder's window bounds the bytes in
/// flight already, so a control that paces, such as bbr, spends timers on a burst that cannot happen (`make bench`
/// compares).
const DEFAULT_CONGESTION: &str = "cubic";
/// Time after which a peer that does not answer is considered gone (`TCP_USER_TIMEOUT`, RFC 5482, and keep-alive).
const USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Congestion control whose window is the bytes in the socket: everything that may be asked for has to fit there.
const FOLLOWS_CREDIT: &str = "thalweg";
/// Maximum number of connections that the kernel keeps until they are accepted; fewer if `net.core.somaxconn` is less.
/// Over TCP, a peer that finds no room waits a second or more before it tries again.
const LISTEN_BACKLOG: i32 = 4096;

/// Kernel TCP.
#[derive(Debug)]
pub(crate) struct Tcp;

impl Transport for Tcp {
    fn abilities(&self) -> &'static Abilities {
        &Abilities {
            name: "tcp",
            title: "TCP",
            form: "tcp:HOST:PORT",
            locator: Locator::HostPort,
            maps: false,
            pieces: true,
            eager: true,
            one_sided: false,
            frames: false,
            // IPv4 (20) and TCP with timestamps (32).
            headers: 52,
            congestion: true,
            files: 1,
            interface: false,
            adapter: false,
            rdma_device: false,
        }
    }

    fn open_source_endpoint(
        &self,
        _to: &Address,
        _by: Option<&Adapter>,
        watch: Watch,
    ) -> Result<Box<dyn SourceEndpoint>, LinkError> {
        Ok(Box::new(Sockets::<TcpSource>::new(watch)))
    }

    fn open_builder_endpoint(
        &self,
        at: &Address,
        _by: Option<&Adapter>,
        eager: Eager,
        watch: Watch,
    ) -> Result<Box<dyn BuilderEndpoint>, LinkError> {
        let socket = listen_at_first(at, |address| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SockAddr::from(address))?;
            socket.listen(LISTEN_BACKLOG)?;
            Ok(socket)
        })?;
        Ok(Box::new(Sockets::with_listener(TcpListener { socket, eager }, watch)?))
    }
}

#[derive(Debug)]
struct TcpListener {
    socket: Socket,
    eager: Eager,
}

impl Listener for TcpListener {
    type Link = TcpBuilder;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn listening_place(&self) -> String {
        let local = self.socket.local_addr().ok().and_then(|address| address.as_socket());
        local.map(|address| address.to_string()).unwrap_or_default()
    }

    /// Prepares sockets that are accepted from now on.
    ///
    /// - Buffers for all bytes from the beginning: for data, and for the fetches, which are few bytes each, but for the
    ///   kernel a packet each.
    /// - The congestion control `thalweg` (`docs/congestion.md`) for the messages of this end. Fetches are few bytes in
    ///   many packets, of which other controls send only ten at first, and then wait a round trip.
    fn prepare_credit(&mut self, bytes: u64) -> Result<(), &'static str> {
        let room = Buffer::Receive.reserve_bytes(&self.socket, bytes) & Buffer::Send.reserve_bytes(&self.socket, bytes);
        let follows = rustix::net::sockopt::set_tcp_congestion(&self.socket, FOLLOWS_CREDIT).is_ok();
        match (room, follows) {
            (false, _) => Err(
                "socket buffers only grow with use, because net.core.rmem_max or net.core.wmem_max is smaller than \
                 the window",
            ),
            (_, false) => {
                Err("fetches use the system's congestion control; `thalweg cc load thalweg` loads a better one")
            }
            (true, true) => Ok(()),
        }
    }

    fn accept_link(&mut self) -> Result<Option<(TcpBuilder, Peer)>, LinkError> {
        let Some((socket, address)) = interpret_accept(self.socket.accept())? else { return Ok(None) };
        let address = address.as_socket();
        let name = address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        let peer = Peer::new(name, Origin::Host(address.map(|address| address.ip())));
        set_socket_options(&socket)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(LinkError::from_system_call("setting up a connection"))?;
        Ok(Some((TcpBuilder::new(socket, self.eager), peer)))
    }
}

/// Begins to connect. The greeting is sent as soon as the connection is established.
fn connect_to_builder(host: &str, congestion: Option<&str>, greeting: &SourceGreeting) -> Result<TcpSource, LinkError> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    // The first address that is not refused at once: some have no route, and on this host some have no listener.
    for address in host.to_socket_addrs().map_err(LinkError::from_unusable(format!("resolving '{host}'")))? {
        match connect_to_address(address, host, congestion, greeting)? {
            Ok(socket) => return Ok(TcpSource::new(socket, host, greeting)),
            Err(error) => failed = error,
        }
    }
    Err(LinkError::from_system_call(format!("connecting to tcp:{host}"))(failed))
}

/// Begins to connect to one address. The inner error is the kernel's refusal of that address.
fn connect_to_address(
    address: SocketAddr,
    host: &str,
    congestion: Option<&str>,
    greeting: &SourceGreeting,
) -> Result<io::Result<Socket>, LinkError> {
    let connecting = format!("connecting to tcp:{host}");
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)
        .map_err(LinkError::from_system_call(&*connecting))?;
    set_socket_options(&socket).map_err(LinkError::from_system_call(connecting))?;
    match congestion {
        Some("system") => {}
        Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(LinkError::from_unusable(format!(
            "selecting congestion control '{name}' (available: {})",
            congestion_controls()
        )))?,
        None => {
            if let Err(error) = socket.set_tcp_congestion(DEFAULT_CONGESTION.as_bytes()) {
                tracing::warn!(
                    "congestion control {DEFAULT_CONGESTION} is not available ({error}): using the system's; \
                     `thalweg doctor` has the command that allows it"
                );
            }
        }
    }
    let slots = u64::from(greeting.hello.slots) * u64::from(greeting.hello.slot_bytes);
    if congestion == Some(FOLLOWS_CREDIT) && !Buffer::Send.reserve_bytes(&socket, slots) {
        tracing::warn!("send buffers only grow with use, because net.core.wmem_max is smaller than all slots together");
    }
    match socket.connect(&SockAddr::from(address)) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Ok(Err(error)),
        _ => Ok(Ok(socket)),
    }
}

/// Returns the congestion controls that the kernel offers, for an error message.
fn congestion_controls() -> String {
    let list = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    list.map_or_else(|_| "unknown".to_owned(), |list| list.trim().replace(' ', ", "))
}

/// Makes the kernel send what it was given. As long as anything of this socket waits in a network device, even an
/// acknowledgement, Linux keeps a small packet back to make it longer ("autocorking", tcp_should_autocork() in
/// net/ipv4/tcp.c): fetches would wait for the answers to other fetches. Setting this option sends what waits, even if
/// it was set before (tcp(7)).
fn send_without_delay(socket: &Socket) -> Result<(), LinkError> {
    match socket.set_tcp_nodelay(true) {
        Err(error) if is_peer_gone(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)) => Ok(()),
        set => set.map_err(LinkError::from_system_call("sending to a source")),
    }
}

fn set_socket_options(socket: &Socket) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_keepalive(true)?;
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new().with_time(USER_TIMEOUT / 2).with_interval(USER_TIMEOUT / 5).with_retries(3),
    )
}

/// True if an error of a socket means that the other end is gone.
fn is_peer_gone(error: Errno) -> bool {
    matches!(error, Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT)
}
