//! The listener, the event loops that serve clients, and a thread for each client that needs one.
//!
//! The number of clients is limited; further ones wait in the listen queue.

use crate::client::{Activity, Client, Clients};
use crate::connection::Connection;
use crate::counters::{Counters, TransferMethods};
use crate::event_loop::{EventLoop, LoopContext};
use crate::limits::HEAD_TIME;
use crate::outgoing::Handoff;
use crate::site::Site;
use crate::tls::Tls;
use crate::token::Tokens;
use crate::tree::{RUNS, Tree};
use crate::wire::Wire;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Settings of a server: the directory, the address and the limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory that is served.
    pub directory: PathBuf,
    /// Address to listen on; port 0 for any free port.
    pub address: SocketAddr,
    /// True if clients may upload files.
    pub write: bool,
    /// True if files and events are compressed for clients that ask for it (`Accept-Encoding`).
    pub compress: bool,
    /// Permissions by token; `None` if everyone who can connect may do everything.
    pub tokens: Option<Tokens>,
    /// Certificate and key, for TLS.
    pub tls: Option<Tls>,
    /// Maximum number of clients served at once; at least one.
    pub connections: usize,
    /// Time after which a client that moves no bytes, or next to none, is disconnected.
    pub timeout: Duration,
    /// Methods by which bytes are moved.
    pub ways: TransferMethods,
    /// CPUs to serve on; all of them if empty.
    pub cpus: Vec<usize>,
}

/// Reason why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory does not exist or cannot be opened.
    #[error("cannot serve {}: {error}", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Error that the system reports.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Address that was asked for.
        address: SocketAddr,
        /// Error that the system reports.
        error: io::Error,
    },
    /// Waiting for clients failed.
    #[error("cannot accept clients: {0}")]
    Accept(io::Error),
}

/// A listening data server for one directory.
#[derive(Debug)]
pub struct Server {
    site: Site,
    listener: TcpListener,
    settings: Settings,
    counters: Counters,
    clients: Clients,
    loops: Vec<EventLoop>,
}

impl Server {
    /// Opens the directory and starts listening.
    ///
    /// # Errors
    /// Fails if the directory cannot be read, the address cannot be listened on, or the kernel provides no epoll
    /// instance.
    pub fn bind_listener(settings: Settings) -> Result<Self, ServeError> {
        let tree = Tree::open_directory(&settings.directory)
            .map_err(|error| ServeError::Directory { path: settings.directory.clone(), error })?;
        if settings.directory.join(RUNS).exists() {
            let runs = settings.directory.join(RUNS);
            tracing::warn!(
                "{0} is not served, since /{RUNS} is the list of all runs in {1}: serve it by itself with `thalweg \
                 serve {0}`",
                runs.display(),
                settings.directory.display()
            );
        }
        let address = settings.address;
        let listener = listen_on(address).map_err(|error| ServeError::Listen { address, error })?;
        let site = Site::new(tree, settings.tokens.clone(), settings.write, settings.compress);
        let processors = match settings.cpus.len() {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            chosen => chosen,
        };
        let loops: io::Result<_> = (0..processors).map(|_| EventLoop::new()).collect();
        let loops = loops.map_err(ServeError::Accept)?;
        Ok(Self { site, listener, settings, counters: Counters::default(), clients: Clients::default(), loops })
    }

    /// Returns the address that the server listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.settings.address)
    }

    /// Returns the counters of the work done so far.
    pub fn work_counters(&self) -> &Counters {
        &self.counters
    }

    /// Serves until `stop` is readable. Transfers in progress then have a few seconds to finish.
    ///
    /// # Errors
    /// Fails if a thread cannot be started, waiting for clients fails, or all event loops have ended. No client is served
    /// any more then.
    pub fn run_until_stopped(&self, stop: impl AsFd) -> Result<(), ServeError> {
        std::thread::scope(|scope| {
            thread_named("watch")
                .spawn_scoped(scope, || self.clients.watch_for_stalls(self.settings.timeout))
                .map_err(ServeError::Accept)?;
            let running = self.loops.iter().try_for_each(|one| {
                thread_named("loop").spawn_scoped(scope, move || self.run_event_loop(one, scope)).map(drop)
            });
            let served = match running {
                Ok(()) => self.accept_clients(scope, stop.as_fd()),
                Err(error) => Err(ServeError::Accept(error)),
            };
            self.clients.disconnect_all(GRACE_PERIOD);
            self.loops.iter().for_each(EventLoop::request_stop);
            served
        })
    }

    fn run_event_loop<'scope>(&'scope self, one: &EventLoop, scope: &'scope std::thread::Scope<'scope, '_>) {
        let context = LoopContext {
            site: &self.site,
            counters: &self.counters,
            clients: &self.clients,
            timeout: self.settings.timeout,
            way: self.settings.ways.cached,
            hand_over: &|number, client, begun| self.spawn_client_thread(scope, number, client, begun),
        };
        self.pin_to_cpus();
        if let Err(error) = one.run_until_stopped(&context) {
            tracing::error!("no more clients are served: {error}");
        }
    }

    fn accept_clients<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        stop: std::os::fd::BorrowedFd<'_>,
    ) -> Result<(), ServeError> {
        let mut number = 0;
        loop {
            let mut both = [PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(ServeError::Accept(error.into())),
            }
            if !both[0].revents().is_empty() {
                return Ok(());
            }
            if self.loops.iter().all(EventLoop::has_ended) {
                return Err(ServeError::Accept(io::Error::other("all event loops have ended")));
            }
            if !self.clients.make_room_for_client(self.settings.connections) {
                continue;
            }
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                // The client closed the connection before it was accepted.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // Out of file descriptors or memory: a client has to leave first.
                    tracing::warn!("a client is waiting: {error}");
                    self.clients.wait_for_departure();
                    continue;
                }
            };
            number += 1;
            self.counters.connections.fetch_add(1, Ordering::Relaxed);
            let client = self.clients.add_client(number, socket);
            match self.prepare_socket(&client) {
                Err(error) => self.reject_client(number, &error),
                Ok(()) if self.settings.tls.is_some() => {
                    self.spawn_client_thread(scope, number, client, Handoff::default())
                }
                Ok(()) => self.add_to_loop(number, client, Handoff::default()),
            }
        }
    }

    /// Gives a client to the loop that has the fewest clients.
    fn add_to_loop(&self, number: u64, client: Arc<Client>, begun: Handoff) {
        let running = self.loops.iter().filter(|one| !one.has_ended());
        let taken = match running.min_by_key(|one| one.client_count()) {
            Some(emptiest) => emptiest.add_client(number, client, begun),
            None => Err(io::Error::other("all event loops have ended")),
        };
        if let Err(error) = taken {
            self.reject_client(number, &error);
        }
    }

    fn reject_client(&self, number: u64, why: &io::Error) {
        tracing::warn!("refused a client: {why}");
        self.clients.remove_client(number);
    }

    fn prepare_socket(&self, client: &Client) -> io::Result<()> {
        let timeout = Some(self.settings.timeout);
        client.socket.set_nodelay(true)?;
        client.socket.set_read_timeout(timeout)?;
        client.socket.set_write_timeout(timeout)
    }

    /// Pins this thread to the configured CPUs.
    fn pin_to_cpus(&self) {
        if self.settings.cpus.is_empty() {
            return;
        }
        let mut set = rustix::thread::CpuSet::new();
        self.settings.cpus.iter().for_each(|cpu| set.set(*cpu));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::warn!("clients are served on other processors than {:?}: {error}", self.settings.cpus);
        }
    }

    /// Starts a thread for one client.
    fn spawn_client_thread<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        number: u64,
        client: Arc<Client>,
        begun: Handoff,
    ) {
        let spawned = thread_named("client").spawn_scoped(scope, move || {
            let removal = RemovalGuard { clients: &self.clients, number };
            // A panic caused by one client must not affect the others.
            let served = catch_unwind(AssertUnwindSafe(|| self.serve_client(&client, begun)));
            match served.unwrap_or_else(|_| Err(io::Error::other("a panic"))) {
                Ok(Some(begun)) => {
                    std::mem::forget(removal);
                    self.add_to_loop(number, client, begun);
                }
                Ok(None) => {}
                // The client is informed where that is possible; no one else needs to know.
                Err(error) => tracing::debug!("a client disconnected: {error}"),
            }
        });
        if let Err(error) = spawned {
            self.reject_client(number, &error);
        }
    }

    fn serve_client(&self, client: &Arc<Client>, begun: Handoff) -> io::Result<Option<Handoff>> {
        self.pin_to_cpus();
        let timeout = self.settings.timeout;
        client.socket.set_nonblocking(false)?;
        let wire = match &self.settings.tls {
            Some(tls) if client.tls.get().is_none() => {
                let wire = Wire::with_tls(Arc::clone(client), tls, Instant::now() + HEAD_TIME.min(timeout))?;
                if wire.plain_descriptor().is_some() {
                    // From here on this connection is handled like one without TLS.
                    return Ok(Some(begun));
                }
                wire
            }
            _ => Wire::new_plain(Arc::clone(client)),
        };
        let note: &dyn Fn(Activity) = &|activity| self.clients.record_activity(client, activity);
        let served =
            Connection::new(wire, &self.site, self.settings.ways, &self.counters, timeout, note).serve_requests(begun);
        if served.is_err() {
            // Bytes that the client does not read are not kept for it either: the connection is reset.
            SockRef::from(&client.socket).set_linger(Some(Duration::ZERO))?;
        }
        served
    }
}

/// Guard that removes a client from the list when it is dropped, however its thread ends.
struct RemovalGuard<'a> {
    clients: &'a Clients,
    number: u64,
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.clients.remove_client(self.number);
    }
}

fn thread_named(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Stack size of a client's thread, in bytes. Only the part in use becomes resident: about 30 KiB.
const STACK_BYTES: usize = 256 << 10;
/// Time that transfers in progress get to finish when the server stops.
const GRACE_PERIOD: Duration = Duration::from_secs(5);
