//! An open RNIC: where it runs, and how commands and wake-ups reach it.

use crate::adapter::{Adapter, DeviceFacts, Registered};
use crate::driven::{DrivenRnic, Rung};
use crate::memory::MemoryRange;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use thalweg_arena::{Doorbell, DoorbellError, RingSetupError, SharedMemory, recv_fds, send_fds};
use thalweg_rnic::{
    Access, AsyncEvent, ClientId, Command, CommandError, Engine, Limits, MAX_MESSAGE_BYTES, Operation, Reply, Service,
    ServiceError,
};
use thiserror::Error;

/// Time in which an RNIC answers a command.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait: more may exceed what the clock can hold.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reason why a call failed that sets something up.
#[derive(Debug, Error)]
pub enum VerbsError {
    /// The RNIC refused.
    #[error(transparent)]
    Refused(#[from] CommandError),
    /// The RNIC's process or thread has ended.
    #[error("the RNIC has ended: open it again; what was set up is gone")]
    RnicGone,
    /// The RNIC did not answer.
    #[error("the RNIC has not answered a command for {} s: its process is stopped or overloaded", REPLY_TIMEOUT.as_secs())]
    NoAnswer,
    /// The RNIC answered something else.
    #[error("the RNIC answered {0:?}: it is of another version")]
    Answer(String),
    /// The kernel refused.
    #[error("{doing}: {error}")]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Error returned by the kernel.
        error: Errno,
    },
    /// No RDMA device has an address.
    #[error("no RDMA device has the address {address} (devices: {}; see `rdma link`)", list_names(.found))]
    NoDevice {
        /// Address that was looked for.
        address: IpAddr,
        /// Names of the devices that exist.
        found: Vec<String>,
    },
    /// The library of RDMA devices is missing, or refused.
    #[error(transparent)]
    Library(#[from] thalweg_ibverbs::IbverbsError),
    /// The RNIC could not be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingSetupError),
    /// Memory could not be made.
    #[error(transparent)]
    Memory(#[from] thalweg_arena::ArenaError),
    /// A doorbell could not be made.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
}

fn list_names(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// An open RNIC (`open_rnic`). Clones are the same.
#[doc(alias = "ibv_open_device")]
#[doc(alias = "ibv_context")]
#[derive(Debug, Clone)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    back_end: BackEnd,
    limits: Limits,
    /// The program's end of the socket of asynchronous events.
    events: OwnedFd,
}

/// Place where the RNIC runs.
#[derive(Debug)]
enum BackEnd {
    Embedded { shared: Arc<Embedded>, client: Option<ClientId> },
    Served { control: Mutex<UnixStream>, wake: OwnedFd, gone: AtomicBool },
}

/// An RNIC that the program's calls drive, and what they need for it.
#[derive(Debug)]
struct Embedded {
    engine: Mutex<DrivenRnic>,
    /// Properties of the RDMA device; `None` in software.
    device: Option<DeviceFacts>,
    /// Wakes threads that wait for events, so that they drive the RNIC.
    bell: Doorbell,
    driver: Driver,
}

/// State of the thread that drives an embedded RNIC while the program's calls do not ([`Device::drive_until_readable`]). Times are
/// nanoseconds since the RNIC was opened.
#[derive(Debug)]
struct Driver {
    epoch: Instant,
    /// Last time that the program polled a completion queue which had nothing yet, and number of its threads that wait until
    /// it may have.
    last_poll: AtomicU64,
    waiting_polls: AtomicU32,
    /// Time until which the thread sleeps, watching the RNIC's sockets; 0 if it does not.
    sleeps_until: AtomicU64,
}

/// Time after a poll for which the program counts as polling: its polls do the RNIC's work.
const POLLING_TIME: Duration = Duration::from_micros(50);

/// Times between looks at whether the program still polls: the first, and the longest.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_micros(200);

impl Device {
    /// Opens an RNIC within this program, driven by its calls.
    ///
    /// # Errors
    /// The kernel refuses descriptors.
    pub fn open_embedded(limits: Limits) -> Result<Self, VerbsError> {
        Self::open_driven(DrivenRnic::Software(Box::new(Engine::new(limits))), None)
    }

    /// Opens an RDMA device of the kernel by its name (`mlx5_0`, `rxe0`, `siw0`; see `rdma link`), by the libraries of rdma-core,
    /// which are loaded now. Like an embedded RNIC, it has no thread of its own.
    ///
    /// Queue pairs connect by addresses of the device's port ([`QueuePair::connect`](crate::QueuePair::connect)): by iWARP, RoCE or
    /// InfiniBand, as the device does. It has no memory windows here, and queue pairs are not connected by numbers; atomics and
    /// immediates as the device has them. A request that its library refuses completes with an error, as one that the device
    /// refuses does. [`ConnectionParameters::peer_timeout`](crate::ConnectionParameters::peer_timeout) is the device's own, and the
    /// rights of a queue pair are those that librdmacm gives it: the rights of memory regions hold. Reads into memory
    /// of an iWARP adapter in hardware may need [`Access::REMOTE_WRITE`] there, since a read's response is a tagged message
    /// like that of a write (RFC 5040 section 5.3).
    ///
    /// # Errors
    /// The libraries are not installed, there is no device of this name, or the kernel refuses.
    pub fn open_device(name: &str) -> Result<Self, VerbsError> {
        let adapter = Adapter::open(name)?;
        let facts = adapter.device_facts();
        Self::open_driven(DrivenRnic::Device(Box::new(adapter)), Some(facts))
    }

    /// Opens the RDMA device whose port has an address of this machine, as [`open_device`](Self::open_device) does.
    ///
    /// # Errors
    /// As [`open_device`](Self::open_device); no RDMA device has the address.
    pub fn open_device_at(address: IpAddr) -> Result<Self, VerbsError> {
        Self::open_found(thalweg_ibverbs::device_of_address(address)?, address)
    }

    /// Opens the RDMA device by which an address is reached, as [`open_device`](Self::open_device) does.
    ///
    /// # Errors
    /// As [`open_device_at`](Self::open_device_at); there is no route to the address.
    pub fn open_device_towards(to: SocketAddr) -> Result<Self, VerbsError> {
        let (found, own) = thalweg_ibverbs::device_towards(to)?;
        Self::open_found(found, own)
    }

    fn open_found(name: Option<String>, address: IpAddr) -> Result<Self, VerbsError> {
        match name {
            Some(name) => Self::open_device(&name),
            None => Err(VerbsError::NoDevice { address, found: thalweg_ibverbs::device_names()? }),
        }
    }

    /// Returns the name of the RDMA device; `None` for an RNIC in software.
    pub fn device_name(&self) -> Option<&str> {
        match &self.inner.back_end {
            BackEnd::Embedded { shared, .. } => shared.device.as_ref().map(|device| device.name.as_str()),
            BackEnd::Served { .. } => None,
        }
    }

    fn open_driven(engine: DrivenRnic, device: Option<DeviceFacts>) -> Result<Self, VerbsError> {
        let driver = Driver {
            epoch: Instant::now(),
            last_poll: AtomicU64::new(0),
            waiting_polls: AtomicU32::new(0),
            sleeps_until: AtomicU64::new(0),
        };
        Self::open_shared(Arc::new(Embedded { engine: Mutex::new(engine), device, bell: Doorbell::new()?, driver }))
    }

    /// Opens the same embedded RNIC once more, as another program that has its own objects and rights.
    ///
    /// # Errors
    /// As [`open_embedded`](Self::open_embedded), and if the RNIC is not an embedded one: open the service again.
    pub fn open_again(&self) -> Result<Self, VerbsError> {
        match &self.inner.back_end {
            BackEnd::Embedded { shared, .. } if shared.device.is_none() => Self::open_shared(Arc::clone(shared)),
            BackEnd::Embedded { .. } => {
                Err(CommandError::Argument("an RDMA device is opened again by its name".into()).into())
            }
            BackEnd::Served { .. } => Err(CommandError::Argument(
                "only an embedded RNIC is opened again; open the service by its path".into(),
            )
            .into()),
        }
    }

    fn open_shared(shared: Arc<Embedded>) -> Result<Self, VerbsError> {
        let (events, theirs) = event_sockets()?;
        let client = shared.engine.lock().add_client()?;
        let reply = shared.engine.lock().execute_command(client, Command::Open, vec![theirs])?;
        Self::finish_opening(BackEnd::Embedded { shared, client }, reply, events)
    }

    /// Opens an RNIC in a thread of this program. It ends when the device and all that was made of it are dropped.
    ///
    /// # Errors
    /// The kernel refuses descriptors or the thread.
    pub fn open_thread(limits: Limits) -> Result<Self, VerbsError> {
        let (mut service, control) = Service::for_thread(limits)?;
        let run = move || {
            if let Err(error) = service.serve_programs() {
                // The program finds its socket closed, and all its requests failed.
                tracing::error!("the RNIC's thread has ended: {error}");
            }
        };
        std::thread::Builder::new().name("rnic".into()).spawn(run).map_err(|error| VerbsError::Os {
            doing: "starting the RNIC's thread",
            error: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        Self::open_served(control)
    }

    /// Opens the RNIC of a service ([`Service::listen`]) at `path`.
    ///
    /// # Errors
    /// No service listens at `path`, or it refuses another program.
    pub fn open_service(path: &Path) -> Result<Self, VerbsError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(os_error("making a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(os_error("the path of the RNIC's socket"))?;
        rustix::net::connect(&socket, &address)
            .map_err(os_error("connecting to the RNIC's socket (does the service run?)"))?;
        Self::open_served(socket.into())
    }

    fn open_served(control: UnixStream) -> Result<Self, VerbsError> {
        control.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(|error| VerbsError::Os {
            doing: "setting a timeout",
            error: Errno::from_io_error(&error).unwrap_or(Errno::INVAL),
        })?;
        let (events, theirs) = event_sockets()?;
        let (reply, fds) = call_service(&control, &Command::Open, &[theirs.as_fd()])?;
        let wake = fds.into_iter().next().ok_or_else(|| VerbsError::Answer("no eventfd".into()))?;
        let back_end = BackEnd::Served { control: Mutex::new(control), wake, gone: AtomicBool::new(false) };
        Self::finish_opening(back_end, reply, events)
    }

    fn finish_opening(back_end: BackEnd, reply: Reply, events: OwnedFd) -> Result<Self, VerbsError> {
        match reply {
            Reply::Opened { limits } => Ok(Self { inner: Arc::new(DeviceInner { back_end, limits, events }) }),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Returns the RNIC's limits.
    #[doc(alias = "ibv_query_device")]
    pub fn rnic_limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns whether this program's calls drive the RNIC.
    pub fn is_embedded(&self) -> bool {
        matches!(self.inner.back_end, BackEnd::Embedded { .. })
    }

    /// Waits for an asynchronous event. `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// The RNIC has ended.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait_for_async_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, VerbsError> {
        match self.inner.receive_message(&self.inner.events, timeout)? {
            None => Ok(None),
            Some(message) => serde_json_event(&message).map(Some),
        }
    }

    /// Does the work that an embedded RNIC has now, and returns whether there was any; for a program that neither posts
    /// nor polls for long. Does nothing for others.
    pub fn make_progress(&self) -> bool {
        self.inner.make_progress()
    }

    /// Does the work that an embedded RNIC has now, after waiting for another thread that is doing some: what was to be
    /// sent before the call has been sent. Does nothing for others.
    pub fn flush_work(&self) {
        if let BackEnd::Embedded { shared, .. } = &self.inner.back_end {
            shared.engine.lock().make_progress(Instant::now(), &Instant::now);
        }
    }

    /// Returns the descriptor that is readable when a socket of an embedded RNIC needs its attention, for a program that
    /// waits in a poller of its own and then [makes progress](Self::make_progress). `None` before the RNIC listens or
    /// connects, and for other RNICs, which need no attention.
    pub fn poll_descriptor(&self) -> Option<Arc<OwnedFd>> {
        match &self.inner.back_end {
            BackEnd::Embedded { shared, .. } => shared.engine.lock().poll_descriptor(),
            BackEnd::Served { .. } => None,
        }
    }

    /// Returns the time at which an embedded RNIC needs attention though its sockets are silent: `now` if it has work
    /// already. Only requests that this thread posts are awaited: another thread's wake nothing.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let BackEnd::Embedded { shared, .. } = &self.inner.back_end else { return None };
        let mut engine = shared.engine.lock();
        let deadline = engine.prepare_sleep(now);
        engine.cancel_sleep();
        deadline.unwrap_or(Some(now))
    }

    /// Returns whether something was sent that has not left this process, or, over EFE, was not acknowledged by the peer:
    /// it would be lost if this process ended. For an RNIC that is not embedded, no.
    pub fn has_unsent(&self) -> bool {
        match &self.inner.back_end {
            BackEnd::Embedded { shared, .. } => shared.engine.lock().has_unsent(),
            BackEnd::Served { .. } => false,
        }
    }

    /// Does the work of an embedded RNIC until one of `others` is readable: for a thread of a program that may neither post
    /// nor poll for long. It sleeps while there is nothing to do, and keeps out of the way while the program polls. It
    /// returns at once for an RNIC that is not embedded.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn drive_until_readable(&self, others: &[BorrowedFd<'_>]) -> Result<(), VerbsError> {
        let BackEnd::Embedded { shared, .. } = &self.inner.back_end else { return Ok(()) };
        let mut look = FIRST_LOOK;
        loop {
            if shared.driver.is_polled() {
                if wait_for_any(others, None, Some(look))? {
                    return Ok(());
                }
                look = (look * 2).min(LONGEST_LOOK);
                continue;
            }
            look = FIRST_LOOK;
            if shared.drive_or_sleep(others)? {
                return Ok(());
            }
        }
    }

    /// Gives the processor to others until a socket of an embedded RNIC has something, for `limit` at most: for a program that
    /// polls and has found nothing for a while, where more threads spin than there are processors.
    pub fn pause_polling(&self, limit: Duration) {
        let BackEnd::Embedded { shared, .. } = &self.inner.back_end else { return std::thread::yield_now() };
        let sockets = shared.engine.lock().poll_descriptor();
        shared.driver.waiting_polls.fetch_add(1, Ordering::Relaxed);
        let watched: Vec<BorrowedFd<'_>> = sockets.as_ref().map(|sockets| sockets.as_fd()).into_iter().collect();
        let _ = wait_for_any(&watched, None, Some(limit));
        shared.driver.waiting_polls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the descriptor that is readable when there is an asynchronous event.
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.inner.events.as_fd()
    }
}

impl Driver {
    fn time(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Returns whether the program polls: it has done so a moment ago.
    fn is_polled(&self) -> bool {
        let since = self.time(Instant::now()).saturating_sub(self.last_poll.load(Ordering::Relaxed));
        since < POLLING_TIME.as_nanos() as u64 || self.waiting_polls.load(Ordering::Relaxed) > 0
    }
}

impl Embedded {
    /// Does the work there is, unless another thread is doing it. Returns whether there was any.
    #[inline]
    fn make_progress(&self, now: Instant) -> bool {
        self.engine.try_lock().is_some_and(|mut engine| engine.make_progress(now, &Instant::now))
    }

    /// Does the work there is, or sleeps until there may be some. Returns whether one of `others` is readable.
    fn drive_or_sleep(&self, others: &[BorrowedFd<'_>]) -> Result<bool, VerbsError> {
        let _ = self.bell.clear_wakeups()?;
        let now = Instant::now();
        let mut engine = self.engine.lock();
        if engine.make_progress(now, &|| now) {
            MutexGuard::unlock_fair(engine);
            return Ok(false);
        }
        let Some(deadline) = engine.prepare_sleep(now) else {
            engine.cancel_sleep();
            return Ok(false);
        };
        let until = deadline.map_or(u64::MAX, |deadline| self.driver.time(deadline).max(1));
        // Under the lock: whoever changes a deadline after this sees it.
        self.driver.sleeps_until.store(until, Ordering::Relaxed);
        let sockets = engine.poll_descriptor();
        drop(engine);
        let mut watched = Vec::with_capacity(2);
        watched.push(self.bell.as_fd());
        watched.extend(sockets.as_ref().map(|sockets| sockets.as_fd()));
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let readable = wait_for_any(others, Some(&watched), timeout);
        self.driver.sleeps_until.store(0, Ordering::Relaxed);
        readable
    }

    /// Returns whether a thread that sleeps must be woken after a call has done the RNIC's work for a queue pair: unless it is
    /// the driving one, and there is nothing left to do before it wakes by itself.
    fn must_wake_sleeper(&self, engine: &mut DrivenRnic, queue: u32, sleeps: bool) -> bool {
        match self.driver.sleeps_until.load(Ordering::Relaxed) {
            0 => sleeps,
            until => {
                engine.has_work_left(queue)
                    || engine.next_deadline(queue).is_some_and(|deadline| self.driver.time(deadline) < until)
            }
        }
    }
}

/// Waits until a descriptor is readable, and returns whether one of `others` is.
fn wait_for_any(
    others: &[BorrowedFd<'_>],
    watched: Option<&[BorrowedFd<'_>]>,
    timeout: Option<Duration>,
) -> Result<bool, VerbsError> {
    let all = others.iter().chain(watched.unwrap_or_default());
    let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout =
        timeout.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds[..others.len()].iter().any(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(os_error("waiting for work")(error)),
    }
}

impl DeviceInner {
    pub(crate) fn rnic_limits(&self) -> &Limits {
        &self.limits
    }

    /// Carries out a command.
    pub(crate) fn call_rnic(&self, command: Command, fds: Vec<OwnedFd>) -> Result<Reply, VerbsError> {
        match &self.back_end {
            BackEnd::Embedded { shared, client } => {
                let reply = shared.engine.lock().execute_command(*client, command, fds);
                // There may be something to send, or a socket to watch.
                if shared.driver.sleeps_until.load(Ordering::Relaxed) != 0 {
                    let _ = shared.bell.wake_waiter();
                }
                reply
            }
            BackEnd::Served { control, gone, .. } => {
                let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                let reply = call_service(&control.lock(), &command, &borrowed);
                if matches!(reply, Err(VerbsError::RnicGone)) {
                    gone.store(true, Ordering::Relaxed);
                }
                reply.map(|(reply, _)| reply)
            }
        }
    }

    /// Carries out a command whose reply is a handle.
    pub(crate) fn call_for_handle(&self, command: Command, fds: Vec<OwnedFd>) -> Result<u32, VerbsError> {
        match self.call_rnic(command, fds)? {
            Reply::Handle(handle) => Ok(handle),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Carries out a command whose reply is nothing.
    pub(crate) fn call_for_done(&self, command: Command, fds: Vec<OwnedFd>) -> Result<(), VerbsError> {
        match self.call_rnic(command, fds)? {
            Reply::Done => Ok(()),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Returns the bytes that the peer of a queue pair has read, as an embedded RNIC counts them.
    pub(crate) fn bytes_read_by_peer(&self, queue: u32) -> Option<u64> {
        match &self.back_end {
            BackEnd::Embedded { shared, .. } => shared.engine.lock().bytes_read_by_peer(queue),
            BackEnd::Served { .. } => None,
        }
    }

    /// Rings the doorbell of a queue after a request was published: an embedded RNIC does its work here. `sleeps` if the
    /// ring says that the RNIC must be woken.
    #[inline]
    pub(crate) fn ring_doorbell(&self, rung: Rung, sleeps: bool) {
        match &self.back_end {
            BackEnd::Embedded { shared, .. } => {
                let mut engine = shared.engine.lock();
                engine.progress_queue(rung);
                let wakes = match rung {
                    Rung::Send(queue) => shared.must_wake_sleeper(&mut engine, queue, sleeps),
                    Rung::Receive(_) | Rung::SharedReceive(_) => sleeps,
                };
                drop(engine);
                if wakes {
                    let _ = shared.bell.wake_waiter();
                }
            }
            BackEnd::Served { wake, .. } => {
                if sleeps {
                    // A full counter wakes, too; an RNIC that has ended is noticed by the next poll.
                    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
                }
            }
        }
    }

    /// Does the work of an embedded RNIC, unless another thread is doing it.
    #[inline]
    pub(crate) fn make_progress(&self) -> bool {
        let BackEnd::Embedded { shared, .. } = &self.back_end else { return false };
        shared.make_progress(Instant::now())
    }

    /// Does the same for a program that has polled a completion queue which had nothing yet.
    #[inline]
    pub(crate) fn make_progress_by_poll(&self) -> bool {
        let BackEnd::Embedded { shared, .. } = &self.back_end else { return false };
        let now = Instant::now();
        shared.driver.last_poll.store(shared.driver.time(now), Ordering::Relaxed);
        shared.make_progress(now)
    }

    /// Registers a range of a file.
    pub(crate) fn register_file(
        &self,
        domain: u32,
        fd: OwnedFd,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        if let BackEnd::Embedded { shared, client } = &self.back_end {
            return shared.engine.lock().register_file((*client, domain), fd, range, access);
        }
        let MemoryRange { offset, length, base } = range;
        let command = Command::RegisterRegion { domain, offset, length, base, access };
        Ok(Registered { stag: self.call_for_handle(command, vec![fd])?, peer_base: base })
    }

    /// Registers memory of this process, under the STag of a region if there is one.
    pub(crate) fn register_memory(
        &self,
        (domain, stag): (u32, Option<u32>),
        memory: Arc<SharedMemory>,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        let BackEnd::Embedded { shared, client } = &self.back_end else {
            let reason = "memory of a process is registered with an RNIC that is embedded in it; register a memfd";
            return Err(CommandError::Argument(reason.into()).into());
        };
        shared.engine.lock().register_mapped((*client, domain, stag), memory, range, access)
    }

    /// Returns whether memory can be registered as it is mapped.
    pub(crate) fn takes_mappings(&self) -> bool {
        matches!(self.back_end, BackEnd::Embedded { .. })
    }

    /// Returns why the RNIC has no such operation; `None` if it may have.
    pub(crate) fn lacks_operation(&self, operation: Operation) -> Option<&'static str> {
        match &self.back_end {
            BackEnd::Embedded { shared, .. } => shared.device.as_ref()?.lacks_operation(operation),
            BackEnd::Served { .. } => None,
        }
    }

    /// Returns whether the RNIC is known to have ended.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        matches!(&self.back_end, BackEnd::Served { gone, .. } if gone.load(Ordering::Relaxed))
    }

    /// Asks the kernel whether the RNIC has ended.
    pub(crate) fn check_presence(&self) -> bool {
        let BackEnd::Served { control, gone, .. } = &self.back_end else { return true };
        let Some(control) = control.try_lock() else { return true };
        if is_closed(&control) {
            gone.store(true, Ordering::Relaxed);
        }
        !gone.load(Ordering::Relaxed)
    }

    /// Receives a message of the RNIC from one of the program's sockets; drives an embedded RNIC in between. `None` if
    /// there is none within `timeout`.
    pub(crate) fn receive_message(&self, socket: &OwnedFd, timeout: Duration) -> Result<Option<Vec<u8>>, VerbsError> {
        let end = deadline_after(timeout);
        let mut message = vec![0; MAX_MESSAGE_BYTES];
        loop {
            match rustix::net::recv(socket, &mut message[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(VerbsError::RnicGone),
                Ok((bytes, _)) => {
                    message.truncate(bytes);
                    return Ok(Some(message));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(os_error("receiving an event")(error)),
            }
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            self.wait_readable(socket, end, now)?;
        }
    }

    /// Waits until a socket may be readable. Also returns for other reasons.
    fn wait_readable(&self, socket: &OwnedFd, end: Instant, now: Instant) -> Result<(), VerbsError> {
        let mut until = end;
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        let sockets;
        if let BackEnd::Embedded { shared, .. } = &self.back_end {
            let _ = shared.bell.clear_wakeups()?;
            let mut engine = shared.engine.lock();
            if engine.make_progress(now, &|| now) {
                return Ok(());
            }
            match engine.prepare_sleep(now) {
                None => {
                    engine.cancel_sleep();
                    return Ok(());
                }
                Some(deadline) => until = deadline.map_or(end, |deadline| deadline.min(end)),
            }
            sockets = engine.poll_descriptor();
            MutexGuard::unlock_fair(engine);
            fds.extend(sockets.iter().map(|sockets| PollFd::new(&**sockets, PollFlags::IN)));
            fds.push(PollFd::new(&shared.bell, PollFlags::IN));
        }
        let wait = until.saturating_duration_since(now);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(os_error("waiting for an event")(error)),
        }
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if let BackEnd::Embedded { shared, client } = &self.back_end {
            shared.engine.lock().remove_client(*client);
        }
    }
}

/// Returns two connected sockets that keep the borders of messages: this program's end, and the RNIC's.
pub(crate) fn event_sockets() -> Result<(OwnedFd, OwnedFd), VerbsError> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(os_error("making a pair of sockets"))
}

/// Decodes an event of the RNIC.
pub(crate) fn serde_json_event<T: serde::de::DeserializeOwned>(message: &[u8]) -> Result<T, VerbsError> {
    serde_json::from_slice(message).map_err(|error| VerbsError::Answer(error.to_string()))
}

fn call_service(
    control: &UnixStream,
    command: &Command,
    fds: &[BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), VerbsError> {
    let message = serde_json::to_vec(command).map_err(|error| VerbsError::Answer(error.to_string()))?;
    send_fds(control, &message, fds).map_err(|_| VerbsError::RnicGone)?;
    let mut answer = vec![0; MAX_MESSAGE_BYTES];
    match recv_fds(control, &mut answer, 1) {
        Ok((0, _)) => Err(VerbsError::RnicGone),
        Ok((bytes, fds)) => {
            let reply: Result<Reply, CommandError> = serde_json_event(&answer[..bytes])?;
            Ok((reply?, fds))
        }
        Err(error) if error.is_would_block() => Err(VerbsError::NoAnswer),
        Err(_) => Err(VerbsError::RnicGone),
    }
}

/// Returns the end of a wait that begins now; of one for ever, an instant that no program lives to see.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_WAIT)
}

/// Returns whether the other end of a socket is closed.
fn is_closed(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1)) && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

pub(crate) fn os_error(doing: &'static str) -> impl Fn(Errno) -> VerbsError {
    move |error| VerbsError::Os { doing, error }
}
