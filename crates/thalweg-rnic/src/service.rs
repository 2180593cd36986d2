//! The RNIC as a thread or a process of its own: programs connect to it by a Unix socket.
//!
//! It polls the programs' rings as long as there is work, and for a while after; then it announces in the rings that it
//! sleeps (need-wakeup, as AF_XDP's rings), and programs wake it by an eventfd.

use crate::attributes::Limits;
use crate::command::{Command, CommandError, MAX_COMMAND_FDS, MAX_MESSAGE_BYTES, Reply};
use crate::engine::{ClientId, Engine};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use thalweg_arena::{HandoverError, recv_fds, send_fds};
use thiserror::Error;

/// Time for which the RNIC goes on polling when there is nothing to do.
const SPIN_TIME: Duration = Duration::from_micros(200);

/// Time between looks at the sockets while there is work.
const SOCKET_INTERVAL: Duration = Duration::from_micros(100);

/// Turns without work between looks at the clock.
const TURNS_PER_CLOCK: u32 = 16;

/// Time without work after which other threads are let run: a program that waits for the RNIC may share its processor.
const YIELD_INTERVAL: Duration = Duration::from_micros(20);

/// Events taken from the kernel at once.
const MAX_KERNEL_EVENTS: usize = 64;

/// Programs that may wait to be taken in.
const LISTEN_BACKLOG: i32 = 64;

/// Reason why the RNIC cannot serve.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The kernel refused.
    #[error("RNIC: {doing}: {error}")]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Error returned by the kernel.
        error: Errno,
    },
    /// No program can be added.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// An RNIC with the sockets of its programs.
#[derive(Debug)]
pub struct Service {
    engine: Engine,
    poll: OwnedFd,
    listener: Option<OwnedFd>,
    clients: HashMap<u64, ServedClient>,
    next_token: u64,
    /// Whether the service ends when its last program has gone.
    ends_alone: bool,
    /// Whether the RNIC's sockets are watched.
    watches_sockets: bool,
}

#[derive(Debug)]
struct ServedClient {
    id: ClientId,
    control: UnixStream,
    /// Wakes the RNIC. Never read here: the program may have made it blocking.
    wake: OwnedFd,
    /// Reports the death of a program whose socket another process has inherited.
    _process: Option<OwnedFd>,
}

/// Kernel events of a program: its socket's, or one of the two that only wake.
const TOKEN_STEP: u64 = 4;
const CONTROL_TOKEN: u64 = 0;
const WAKE_TOKEN: u64 = 1;
const PROCESS_TOKEN: u64 = 2;
/// Token of the RNIC's sockets.
const SOCKETS_TOKEN: u64 = u64::MAX - 1;
/// Token of the listener.
const LISTENER_TOKEN: u64 = u64::MAX;

impl Service {
    /// Makes an RNIC that serves programs which connect to a Unix socket at `path`. Whoever may write to the socket may
    /// use the RNIC: give its directory the rights that are wanted.
    ///
    /// # Errors
    /// The kernel refuses the socket; a file of this name exists, most likely.
    pub fn listen(path: &Path, limits: Limits) -> Result<Self, ServiceError> {
        let mut service = Self::new(limits, false)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(system_error("making a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(system_error("the socket's path"))?;
        rustix::net::bind(&socket, &address).map_err(system_error("binding the socket"))?;
        rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(system_error("listening"))?;
        service.watch_fd(&socket, LISTENER_TOKEN, epoll::EventFlags::IN)?;
        service.listener = Some(socket);
        Ok(service)
    }

    /// Makes an RNIC for one program, and returns the program's socket: for a thread that runs the service. It ends with
    /// the program's use of it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn for_thread(limits: Limits) -> Result<(Self, UnixStream), ServiceError> {
        let mut service = Self::new(limits, true)?;
        let (ours, theirs) = socket_pair().map_err(system_error("making a pair of sockets"))?;
        service.add_client(ours, false)?;
        Ok((service, theirs.into()))
    }

    fn new(limits: Limits, ends_alone: bool) -> Result<Self, ServiceError> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system_error("epoll_create"))?;
        let (clients, next_token) = (HashMap::new(), 1);
        Ok(Self {
            engine: Engine::new(limits),
            poll,
            listener: None,
            clients,
            next_token,
            ends_alone,
            watches_sockets: false,
        })
    }

    /// Serves programs. Returns when the program of a thread has gone; otherwise only if the kernel fails.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn serve_programs(&mut self) -> Result<(), ServiceError> {
        let mut last_work = Instant::now();
        let (mut last_look, mut last_yield) = (last_work, last_work);
        let mut idle_turns = 0;
        while !(self.ends_alone && self.clients.is_empty()) {
            let now = Instant::now();
            if self.engine.make_progress(now, &Instant::now) {
                (last_work, idle_turns) = (now, 0);
            } else {
                idle_turns += 1;
                if idle_turns < TURNS_PER_CLOCK {
                    std::hint::spin_loop();
                    continue;
                }
                idle_turns = 0;
            }
            if now - last_look >= SOCKET_INTERVAL {
                last_look = now;
                if self.handle_kernel_events(Some(Duration::ZERO))? {
                    last_work = now;
                }
            }
            if now - last_work >= SPIN_TIME {
                self.sleep_until_work()?;
                last_work = Instant::now();
            } else if now - last_work.max(last_yield) >= YIELD_INTERVAL {
                std::thread::yield_now();
                last_yield = now;
            }
        }
        Ok(())
    }

    /// Sleeps until there may be something to do.
    fn sleep_until_work(&mut self) -> Result<(), ServiceError> {
        if let Some(deadline) = self.engine.prepare_sleep(Instant::now()) {
            let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.handle_kernel_events(timeout)?;
        }
        self.engine.cancel_sleep();
        Ok(())
    }

    /// Waits for events of the kernel and handles them. Returns whether there was any.
    fn handle_kernel_events(&mut self, timeout: Option<Duration>) -> Result<bool, ServiceError> {
        let mut events = Vec::with_capacity(MAX_KERNEL_EVENTS);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system_error("epoll_wait")(error)),
        }
        let any = !events.is_empty();
        for event in events {
            match event.data.u64() {
                // The RNIC's sockets: the next turn looks at them.
                SOCKETS_TOKEN => {}
                LISTENER_TOKEN => self.accept_clients(),
                token => {
                    let client = token / TOKEN_STEP;
                    match token % TOKEN_STEP {
                        CONTROL_TOKEN => self.handle_command(client),
                        PROCESS_TOKEN => self.drop_client(client),
                        // An edge of the eventfd: the program has work, which the next turn finds.
                        _ => {}
                    }
                }
            }
        }
        Ok(any)
    }

    fn accept_clients(&mut self) {
        let Some(listener) = &self.listener else { return };
        // One at a time: others are found in the next turn.
        let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        if let Ok(socket) = accepted
            && let Err(error) = self.add_client(socket, true)
        {
            // The program finds its socket closed.
            tracing::warn!("RNIC: a program was refused: {error}");
        }
    }

    fn add_client(&mut self, control: OwnedFd, foreign: bool) -> Result<(), ServiceError> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(system_error("eventfd"))?;
        // A process that has ended already has closed its socket, too.
        let process = sockopt::socket_peercred(&control).ok().filter(|_| foreign);
        let process = process.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
        let token = self.next_token * TOKEN_STEP;
        self.watch_fd(&control, token + CONTROL_TOKEN, epoll::EventFlags::IN | epoll::EventFlags::RDHUP)?;
        self.watch_fd(&wake, token + WAKE_TOKEN, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        if let Some(process) = &process {
            self.watch_fd(process, token + PROCESS_TOKEN, epoll::EventFlags::IN)?;
        }
        let id = self.engine.add_client()?;
        let client = ServedClient { id, control: UnixStream::from(control), wake, _process: process };
        self.clients.insert(self.next_token, client);
        self.next_token += 1;
        Ok(())
    }

    fn watch_fd(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<(), ServiceError> {
        epoll::add(&self.poll, fd, epoll::EventData::new_u64(token), flags).map_err(system_error("epoll_ctl"))
    }

    /// Carries out one command of a program. A program that breaks the protocol, or does not read replies, is dropped.
    fn handle_command(&mut self, token: u64) {
        let Some(client) = self.clients.get(&token) else { return };
        let mut message = vec![0; MAX_MESSAGE_BYTES];
        let (bytes, fds) = match recv_fds(&client.control, &mut message, MAX_COMMAND_FDS) {
            Ok((0, _)) => return self.drop_client(token),
            Ok(received) => received,
            Err(error) if error.is_would_block() => return,
            Err(HandoverError::TooMany { .. }) => {
                let error = CommandError::Unknown(
                    "more file descriptors than a command has, or than this process may open".into(),
                );
                return self.send_reply(token, &Err(error), false);
            }
            Err(_) => return self.drop_client(token),
        };
        let (reply, opened) = match serde_json::from_slice::<Command>(&message[..bytes]) {
            Ok(command) => {
                let opens = command == Command::Open;
                self.engine.update_time(Instant::now());
                let reply = self.engine.execute_command(client.id, command, fds);
                let opened = opens && reply.is_ok();
                (reply, opened)
            }
            Err(error) => (Err(CommandError::Unknown(error.to_string())), false),
        };
        self.send_reply(token, &reply, opened);
        if !self.watches_sockets
            && let Some(sockets) = self.engine.poll_descriptor()
        {
            self.watches_sockets = self.watch_fd(&sockets, SOCKETS_TOKEN, epoll::EventFlags::IN).is_ok();
        }
    }

    fn send_reply(&mut self, token: u64, reply: &Result<Reply, CommandError>, with_wake: bool) {
        let Some(client) = self.clients.get(&token) else { return };
        let message = serde_json::to_vec(reply).unwrap_or_default();
        let wake: &[BorrowedFd<'_>] = if with_wake { &[client.wake.as_fd()] } else { &[] };
        if send_fds(&client.control, &message, wake).is_err() {
            self.drop_client(token);
        }
    }

    fn drop_client(&mut self, token: u64) {
        if let Some(client) = self.clients.remove(&token) {
            self.engine.remove_client(client.id);
        }
    }
}

/// Returns two connected sockets that keep the borders of messages; the first is non-blocking.
fn socket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The program's end stays blocking: it waits for replies.
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

fn system_error(doing: &'static str) -> impl Fn(Errno) -> ServiceError {
    move |error| ServiceError::Os { doing, error }
}
