//! The control connection: what the asking end wants, and what the serving end has counted.
//!
//! Lines of JSON, one at a time in lock-step. The serving end greets; then for each job:
//!
//! ```text
//!  asking                                     serving
//!    ├── job ──────────────────────────────────▶ │  opens a port (or takes over shared memory)
//!    │ ◀──────────────────────── ready, or failed┤
//!    ├══ messages, a mark ══════════════════════▶│  reads its counters
//!    │ ◀───────────────────────────────── marked ┤  (streams only: a conversation answers the mark itself)
//!    ├══ messages, an end ══════════════════════▶│  reads its counters
//!    │ ◀───────────────────────── done, or failed┤
//! ```

use super::datagram::Datagrams;
use super::stream::Stream;
use super::uring::Uring;
use super::verbs::Door;
use super::{Exchange, LONGEST, Link, Method, PATIENCE, Phase, Tally, Wait, shm};
use crate::cpu::Used;
use crate::{BenchError, Clock, Host, Usage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Version of what is said here.
const VERSION: u32 = 1;

/// The longest line: a greeting describes a host.
const LINE: usize = 64 << 10;

/// What is to be measured once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(super) link: Link,
    pub(super) method: Method,
    pub(super) work: Work,
    /// Bytes in a message.
    pub(super) size: usize,
    pub(super) wait: Wait,
    pub(super) socket_buffer: Option<u32>,
    pub(super) congestion: Option<String>,
    /// The processor that the serving end is bound to.
    pub(super) cpu: Option<u32>,
    pub(super) check_data: bool,
    /// Where the asking end listens, for Thalweg's own links, which the source of a message begins.
    pub(super) listens: Option<String>,
}

/// What the serving end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// Answers each message with one as long.
    Answer,
    /// Receives.
    Receive,
}

/// What the serving end counted between mark and end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(super) tally: Tally,
    /// Seconds between mark and end.
    pub(super) seconds: f64,
    pub(super) used: Used,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Greeting(Box<Greeting>),
    Ready {
        port: u16,
        #[serde(skip_serializing_if = "Option::is_none")]
        listens: Option<String>,
    },
    Marked,
    Done(Done),
    Failed {
        why: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    thalweg_bench: u32,
    /// Tells whether both ends run on one kernel.
    boot: String,
    host: Host,
}

/// The connection, and what is read of a line so far.
#[derive(Debug)]
pub(super) struct Control {
    stream: ControlStream,
    peer: String,
}

#[derive(Debug)]
pub(super) enum ControlStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Control {
    pub(super) fn new(stream: ControlStream, peer: String, patience: Option<Duration>) -> Result<Self, BenchError> {
        match &stream {
            ControlStream::Tcp(tcp) => tcp.set_nodelay(true).and_then(|()| tcp.set_read_timeout(patience)),
            ControlStream::Unix(unix) => unix.set_read_timeout(patience),
        }
        .map_err(BenchError::os("setting up the control connection"))?;
        Ok(Self { stream, peer })
    }

    fn set_patience(&self, patience: Option<Duration>) {
        let _ = match &self.stream {
            ControlStream::Tcp(tcp) => tcp.set_read_timeout(patience),
            ControlStream::Unix(unix) => unix.set_read_timeout(patience),
        };
    }

    /// The other end of it did something it should not have.
    pub(super) fn error(&self, why: impl ToString) -> BenchError {
        BenchError::Peer { peer: self.peer.clone(), why: why.to_string() }
    }

    fn say(&mut self, line: &impl Serialize) -> Result<(), BenchError> {
        let mut text = serde_json::to_vec(line).map_err(|error| self.error(error))?;
        text.push(b'\n');
        let written = match &mut self.stream {
            ControlStream::Tcp(tcp) => tcp.write_all(&text),
            ControlStream::Unix(unix) => unix.write_all(&text),
        };
        written.map_err(|error| self.error(error))
    }

    /// The next line; none where the connection has ended between lines. Ends speak in turn, so that nothing follows it.
    fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BenchError> {
        let mut line = Vec::new();
        let mut some = [0; 4096];
        while line.last() != Some(&b'\n') {
            let read = match &mut self.stream {
                ControlStream::Tcp(tcp) => tcp.read(&mut some),
                ControlStream::Unix(unix) => unix.read(&mut some),
            };
            match read {
                Ok(0) if line.is_empty() => return Ok(None),
                Ok(0) => return Err(self.error("it is gone, in the middle of a word")),
                Ok(count) => line.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(self.error("it says nothing"));
                }
                Err(error) => return Err(self.error(error)),
            }
            if line.len() > LINE {
                return Err(self.error("it says more than is to be said; is this a Thalweg bench?"));
            }
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            self.error(format_args!("it does not speak as a Thalweg bench of version {VERSION} does ({error})"))
        })
    }

    fn answer(&mut self) -> Result<Answer, BenchError> {
        match self.hear()? {
            Some(Answer::Failed { why }) => Err(self.error(why)),
            Some(answer) => Ok(answer),
            None => Err(self.error("it is gone")),
        }
    }

    /// The Unix socket, for handing over memory.
    pub(super) fn unix(&self) -> Result<&UnixStream, BenchError> {
        match &self.stream {
            ControlStream::Unix(unix) => Ok(unix),
            ControlStream::Tcp(_) => {
                Err(BenchError::Usage("--link shm is for two processes of one host: leave out --peer".to_owned()))
            }
        }
    }

    /// The address that the data goes to, at this end or at the other.
    fn address(&self, local: bool) -> Result<IpAddr, BenchError> {
        match &self.stream {
            ControlStream::Unix(_) => Ok(IpAddr::from([127, 0, 0, 1])),
            ControlStream::Tcp(tcp) => {
                let address = if local { tcp.local_addr() } else { tcp.peer_addr() };
                address.map(|address| address.ip()).map_err(|error| self.error(error))
            }
        }
    }
}

/// The other end, as the asking end sees it.
#[derive(Debug)]
pub(crate) struct Other {
    control: Control,
    host: Host,
    same_host: bool,
    /// The process that serves, where this one has started it.
    _child: Option<super::listen::Child>,
}

impl Other {
    /// Connects to `thalweg bench listen` at `peer`, or starts a process of this program that serves.
    pub(crate) fn reach(peer: Option<&str>) -> Result<Self, BenchError> {
        let (control, child) = match peer {
            Some(peer) => (super::listen::connect(peer)?, None),
            None => super::listen::start().map(|(control, child)| (control, Some(child)))?,
        };
        Self::greeted(control, child)
    }

    /// Behind a control connection that was just opened.
    pub(super) fn greeted(mut control: Control, child: Option<super::listen::Child>) -> Result<Self, BenchError> {
        let greeting = match control.answer()? {
            Answer::Greeting(greeting) if greeting.thalweg_bench == VERSION => greeting,
            Answer::Greeting(greeting) => {
                let theirs = greeting.thalweg_bench;
                return Err(control.error(format_args!("it speaks version {theirs}, this program version {VERSION}")));
            }
            _ => return Err(control.error("it does not greet")),
        };
        let same_host = greeting.boot == boot();
        Ok(Self { control, host: greeting.host, same_host, _child: child })
    }

    /// Asks for a job; then messages can be exchanged.
    pub(crate) fn begin(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        if job.link == Link::Udp && job.method == Method::IoUring && job.size > super::datagram::LONGEST {
            return Err(BenchError::Unavailable {
                what: format!("a message of {} bytes over udp by io_uring", job.size),
                why: format!("a datagram holds {}; --method write sends several", super::datagram::LONGEST),
            });
        }
        if job.method == Method::Verbs {
            return self.begin_verbs(job);
        }
        let (port, _) = self.ask(job)?;
        let address = SocketAddr::new(self.control.address(false)?, port);
        match job.link {
            Link::Tcp => {
                let socket = tcp_socket(&address, job)?;
                let reached = socket.connect_timeout(&SockAddr::from(address), PATIENCE);
                reached.map_err(|error| self.control.error(format_args!("its port {port} for data: {error}")))?;
                let stream = TcpStream::from(socket);
                match job.method {
                    Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                    _ => Ok(Box::new(Stream::new(stream, job)?)),
                }
            }
            Link::Udp => {
                let socket = udp_socket(&SocketAddr::new(self.control.address(true)?, 0), job)?;
                socket.connect(address).map_err(BenchError::os("connecting a UDP socket"))?;
                datagrams(socket, job)
            }
            Link::Shm => Ok(Box::new(shm::ask(&self.control, job)?)),
        }
    }

    /// A conversation of one byte over shared memory, at the beginning of which the other end waits.
    pub(super) fn begin_shared(&mut self) -> Result<shm::Shared, BenchError> {
        let job = Job {
            link: Link::Shm,
            method: Method::Copy,
            work: Work::Answer,
            size: 1,
            wait: Wait::Sleep,
            socket_buffer: None,
            congestion: None,
            cpu: None,
            check_data: false,
            listens: None,
        };
        self.ask(&job)?;
        shm::ask(&self.control, &job)
    }

    fn ask(&mut self, job: &Job) -> Result<(u16, Option<String>), BenchError> {
        self.control.say(job)?;
        match self.control.answer()? {
            Answer::Ready { port, listens } => Ok((port, listens)),
            _ => Err(self.control.error("it neither is ready nor has failed")),
        }
    }

    fn begin_verbs(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        let directory = meeting(job.link, &self.control)?;
        let door = Door::open(job.link, self.control.address(true)?, directory.path(), "asking")?;
        let job = Job { listens: Some(door.address()), ..job.clone() };
        match self.ask(&job)?.1 {
            Some(theirs) => Ok(Box::new(door.meet(&theirs, &job)?)),
            None => Err(self.control.error("it does not say where it listens")),
        }
    }

    /// Tells a stream's other end to begin counting, and waits until it does. Over UDP a mark may be lost: it is said
    /// again until it is heard.
    pub(crate) fn mark(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<(), BenchError> {
        self.tell(exchange, job, Phase::Mark)?;
        match self.control.answer()? {
            Answer::Marked => Ok(()),
            _ => Err(self.control.error("it did not begin to count")),
        }
    }

    /// Tells a stream's other end that this was all.
    pub(crate) fn end(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<Done, BenchError> {
        self.tell(exchange, job, Phase::End)?;
        self.done()
    }

    fn tell(&mut self, exchange: &mut dyn Exchange, job: &Job, phase: Phase) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let sent = exchange.send(phase).and_then(|()| exchange.flush());
            // Over UDP it may be lost; and where the other end has heard it, what is sent after meets a closed socket.
            if job.link == Link::Udp && self.control.readable(Duration::from_millis(20))? {
                break;
            }
            sent?;
            if job.link != Link::Udp || begun.elapsed() > PATIENCE {
                break;
            }
        }
        exchange.finish()
    }

    /// What the other end has counted.
    pub(crate) fn done(&mut self) -> Result<Done, BenchError> {
        match self.control.answer()? {
            Answer::Done(done) if done.seconds.is_finite() && done.seconds >= 0.0 => Ok(done),
            _ => Err(self.control.error("it does not say what it has counted")),
        }
    }

    /// What went wrong, as the other end saw it, where it has said so; or else as this end did.
    pub(crate) fn reason(&mut self, ours: BenchError) -> BenchError {
        match self.control.readable(Duration::from_millis(50)) {
            Ok(true) => match self.control.answer() {
                Err(theirs) => theirs,
                Ok(_) => ours,
            },
            _ => ours,
        }
    }

    /// Whether both ends run on one kernel.
    pub(crate) fn same_host(&self) -> bool {
        self.same_host
    }

    /// What the other end says of its host, where that is not this one.
    pub(crate) fn host(&self) -> Option<Host> {
        (!self.same_host).then(|| self.host.clone())
    }
}

impl Control {
    fn readable(&self, patience: Duration) -> Result<bool, BenchError> {
        use rustix::event::{PollFd, PollFlags, poll};
        let fd = match &self.stream {
            ControlStream::Tcp(tcp) => PollFd::new(tcp, PollFlags::IN),
            ControlStream::Unix(unix) => PollFd::new(unix, PollFlags::IN),
        };
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        match poll(&mut [fd], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(self.error(io::Error::from(error))),
        }
    }
}

/// Serves one asking end until it goes.
pub(super) fn serve(mut control: Control, idle: Option<Duration>) -> Result<(), BenchError> {
    let greeting = Greeting { thalweg_bench: VERSION, boot: boot(), host: Host::probe(None) };
    control.say(&Answer::Greeting(Box::new(greeting)))?;
    loop {
        control.set_patience(idle);
        let Some(job) = control.hear::<Job>()? else { return Ok(()) };
        control.set_patience(Some(PATIENCE));
        // A thread of its own: what it is bound to ends with it.
        let served = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind(job.cpu)?;
                work(&job, &mut control)
            });
            thread
                .join()
                .unwrap_or_else(|_| Err(BenchError::Peer { peer: "this end".into(), why: "it panicked".into() }))
        });
        match served {
            Ok(done) => control.say(&Answer::Done(done))?,
            Err(error) => control.say(&Answer::Failed { why: error.to_string() })?,
        }
    }
}

/// Does a job: answers or receives until the end is said.
fn work(job: &Job, control: &mut Control) -> Result<Done, BenchError> {
    let mut exchange = accept(job, control)?;
    let clock = Clock::new();
    let mut begun = None;
    loop {
        let phase = exchange.receive()?;
        let mark = phase == Phase::Mark && begun.is_none();
        // Read before the answer, so that the first message that counts is not held up by it.
        let usage = mark.then(|| (Usage::now(), clock.raw()));
        match job.work {
            Work::Answer => {
                if let Some(number) = exchange.stamped() {
                    exchange.stamp(number);
                }
                exchange.send(phase)?;
            }
            Work::Receive if mark => control.say(&Answer::Marked)?,
            Work::Receive => {}
        }
        if let Some((usage, first)) = usage {
            begun = Some((usage, first, exchange.tally()));
        }
        if phase == Phase::End {
            exchange.flush()?;
            let last = clock.raw();
            exchange.finish()?;
            let (usage, first, before) = begun.ok_or_else(|| gone("the end came before the beginning"))?;
            let seconds = clock.nanos(first, last) as f64 * 1e-9;
            return Ok(Done { seconds, tally: exchange.tally() - before, used: usage.used() });
        }
    }
}

/// The serving end of the connection that a job is about.
fn accept(job: &Job, control: &mut Control) -> Result<Box<dyn Exchange>, BenchError> {
    if !(1..=LONGEST).contains(&(job.size as u64)) || !job.link.methods().contains(&job.method) {
        return Err(gone("that cannot be measured: no such size, or no such method of this link"));
    }
    let here = SocketAddr::new(control.address(true)?, 0);
    let there = control.address(false)?;
    if let (Method::Verbs, Some(theirs)) = (job.method, &job.listens) {
        let directory = meeting(job.link, control)?;
        let door = Door::open(job.link, here.ip(), directory.path(), "serving")?;
        control.say(&Answer::Ready { port: 0, listens: Some(door.address()) })?;
        return Ok(Box::new(door.meet(theirs, job)?));
    }
    let port = |address: io::Result<SocketAddr>| address.map(|a| a.port()).map_err(BenchError::os("binding a port"));
    match job.link {
        Link::Tcp => {
            let socket = tcp_socket(&here, job)?;
            socket.bind(&SockAddr::from(here)).map_err(BenchError::os("binding a TCP port"))?;
            socket.listen(1).map_err(BenchError::os("listening"))?;
            let listener = TcpListener::from(socket);
            control.say(&Answer::Ready { port: port(listener.local_addr())?, listens: None })?;
            let stream = accept_from(&listener, there)?;
            match job.method {
                Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                _ => Ok(Box::new(Stream::new(stream, job)?)),
            }
        }
        Link::Udp => {
            let socket = udp_socket(&here, job)?;
            control.say(&Answer::Ready { port: port(socket.local_addr())?, listens: None })?;
            // Whoever sends first, from the asking end's address, is answered; the datagram itself stays in the queue.
            socket.set_read_timeout(Some(PATIENCE)).map_err(BenchError::os("setting up a UDP socket"))?;
            loop {
                let (_, from) = socket.peek_from(&mut [0]).map_err(BenchError::os("waiting for a first datagram"))?;
                if from.ip() == there {
                    socket.connect(from).map_err(BenchError::os("connecting a UDP socket"))?;
                    break;
                }
                let _ = socket.recv_from(&mut [0]);
            }
            datagrams(socket, job)
        }
        Link::Shm => {
            control.unix()?;
            control.say(&Answer::Ready { port: 0, listens: None })?;
            shm::serve(control, job)
        }
    }
}

/// A directory of this end's own for the socket of a shm link.
fn meeting(link: Link, control: &Control) -> Result<tempfile::TempDir, BenchError> {
    if link == Link::Shm {
        control.unix()?;
    }
    tempfile::Builder::new().prefix("thalweg-bench-").tempdir().map_err(BenchError::os("making a temporary directory"))
}

fn accept_from(listener: &TcpListener, who: IpAddr) -> Result<TcpStream, BenchError> {
    use rustix::event::{PollFd, PollFlags, poll};
    let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
        if ready.map_err(BenchError::os("waiting for a connection"))? == 0 {
            return Err(gone("nobody connected to the port for data; is a firewall between the two hosts?"));
        }
        let (stream, from) = listener.accept().map_err(BenchError::os("accepting a connection"))?;
        if from.ip() == who {
            return Ok(stream);
        }
    }
}

fn datagrams(socket: UdpSocket, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
    match job.method {
        Method::IoUring => Ok(Box::new(Uring::new(OwnedFd::from(socket), job, false)?)),
        _ => Ok(Box::new(Datagrams::new(socket, job)?)),
    }
}

fn tcp_socket(address: &SocketAddr, job: &Job) -> Result<Socket, BenchError> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM.cloexec(), None)
        .map_err(BenchError::os("making a TCP socket"))?;
    set_buffers(&SockRef::from(&socket), job)?;
    if let Some(name) = &job.congestion {
        set_congestion(&SockRef::from(&socket), name)?;
    }
    Ok(socket)
}

/// Has a TCP socket send with this congestion control.
pub(crate) fn set_congestion(socket: &SockRef, name: &str) -> Result<(), BenchError> {
    socket.set_tcp_congestion(name.as_bytes()).map_err(BenchError::os(format!(
        "TCP congestion control '{name}' (/proc/sys/net/ipv4/tcp_available_congestion_control lists those there are)"
    )))
}

fn udp_socket(address: &SocketAddr, job: &Job) -> Result<UdpSocket, BenchError> {
    let socket = Socket::new(Domain::for_address(*address), Type::DGRAM.cloexec(), None)
        .map_err(BenchError::os("making a UDP socket"))?;
    set_buffers(&SockRef::from(&socket), job)?;
    socket.bind(&SockAddr::from(*address)).map_err(BenchError::os("binding a UDP port"))?;
    Ok(socket.into())
}

/// Sets the socket's buffers; the kernel doubles what it is asked for (socket(7)), and grants no more than
/// `net.core.wmem_max` and `rmem_max`, which is an error here.
fn set_buffers(socket: &SockRef<'_>, job: &Job) -> Result<(), BenchError> {
    let Some(bytes) = job.socket_buffer else { return Ok(()) };
    let wanted = bytes as usize;
    let set = || -> io::Result<usize> {
        socket.set_send_buffer_size(wanted)?;
        socket.set_recv_buffer_size(wanted)?;
        Ok(socket.send_buffer_size()?.min(socket.recv_buffer_size()?))
    };
    let got = set().map_err(BenchError::os(format!("asking for socket buffers of {bytes} bytes")))?;
    if got < wanted {
        return Err(BenchError::Unavailable {
            what: format!("socket buffers of {bytes} bytes"),
            why: format!(
                "the kernel grants {got}; sysctl -w net.core.rmem_max={bytes} net.core.wmem_max={bytes} would allow them"
            ),
        });
    }
    Ok(())
}

/// Binds the calling thread to a processor.
pub(crate) fn bind(cpu: Option<u32>) -> Result<(), BenchError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let Some(cpu) = cpu else { return Ok(()) };
    let doing = format!("binding to processor {cpu}");
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(BenchError::os(doing)(rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set)
        .map_err(BenchError::os(format!("{doing} (see 'Cpus_allowed_list' in /proc/self/status)")))
}

/// Whether there is something to receive. A socket at its end, or in error, has that to say.
pub(super) fn waiting(socket: impl std::os::fd::AsFd) -> Result<bool, BenchError> {
    use rustix::net::RecvFlags;
    match rustix::net::recv(socket, &mut [0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        _ => Ok(true),
    }
}

/// For conversations that end when they should not.
pub(super) fn gone(why: &str) -> BenchError {
    BenchError::Peer { peer: "on the measured connection".to_owned(), why: why.to_owned() }
}

/// How long one may look without seeing anything.
#[derive(Debug, Default)]
pub(super) struct Patience {
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Nothing was there, once more. Some 10 µs of looking are for free; then the other end may be waiting for this
    /// processor, and gets it.
    #[inline]
    pub(super) fn look(&mut self, doing: &str) -> Result<(), BenchError> {
        std::hint::spin_loop();
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(1 << 10) {
            std::thread::yield_now();
            if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(BenchError::Silent { doing: doing.to_owned(), patience: PATIENCE });
            }
        }
        Ok(())
    }
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
