//! Session of jobs: the asking end's side, and the serving end's.

use super::control::{Answer, BENCH_PROTOCOL_VERSION, Control, Done, Greeting, Job, Work, boot, gone};
use super::datagram::Datagrams;
use super::frames::Frames;
use super::stream::Stream;
use super::uring::Uring;
use super::verbs::ListeningEnd;
use super::{Exchange, Link, MAX_MESSAGE_BYTES, Method, PEER_TIMEOUT, Phase, Wait, shm};
use crate::{BenchError, Clock, Host, Usage};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use thalweg_dpdk::{DpdkPort, Options};
use thalweg_frames::{EthernetPort, FrameIo, Subnet, UdpPort};
use thalweg_sys::netns::Network;

/// Other end, as seen by the asking end.
#[derive(Debug)]
pub(crate) struct Other {
    control: Control,
    host: Host,
    same_host: bool,
    /// Process that serves, if this end has started it.
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

    /// Receives the greeting over a new control connection and checks its version.
    pub(super) fn greeted(mut control: Control, child: Option<super::listen::Child>) -> Result<Self, BenchError> {
        let greeting = match control.answer()? {
            Answer::Greeting(greeting) if greeting.thalweg_bench == BENCH_PROTOCOL_VERSION => greeting,
            Answer::Greeting(greeting) => {
                let theirs = greeting.thalweg_bench;
                return Err(control
                    .error(format_args!("it speaks version {theirs}, this program version {BENCH_PROTOCOL_VERSION}")));
            }
            _ => return Err(control.error("it does not greet")),
        };
        let same_host = greeting.boot == boot();
        Ok(Self { control, host: greeting.host, same_host, _child: child })
    }

    /// Requests a job; returns the exchange of its messages.
    pub(crate) fn begin(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        if job.link == Link::Udp && job.method == Method::IoUring && job.size > super::datagram::MAX_UDP_PAYLOAD_BYTES {
            return Err(BenchError::Unavailable {
                what: format!("a message of {} bytes over udp by io_uring", job.size),
                why: format!(
                    "a datagram holds {}; --method write sends several",
                    super::datagram::MAX_UDP_PAYLOAD_BYTES
                ),
            });
        }
        if job.method == Method::Verbs {
            return self.begin_verbs(job);
        }
        if job.link == Link::Dpdk {
            return self.begin_dpdk(job);
        }
        let (port, _) = self.ask(job)?;
        let address = SocketAddr::new(self.control.address(false)?, port);
        match job.link {
            Link::Tcp => {
                let socket = tcp_socket(&address, job)?;
                let reached = socket.connect_timeout(&SockAddr::from(address), PEER_TIMEOUT);
                reached.map_err(|error| self.control.error(format_args!("its port {port} for data: {error}")))?;
                let stream = TcpStream::from(socket);
                match job.method {
                    Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                    _ => Ok(Box::new(Stream::new(stream, job)?)),
                }
            }
            Link::Udp if job.method == Method::Frames => {
                let port = udp_port(SocketAddr::new(self.control.address(true)?, 0))?;
                Ok(Box::new(Frames::new(port, Some(address), job)?))
            }
            Link::AfXdp => Ok(Box::new(Frames::new(af_xdp_port(self.control.address(true)?)?, Some(address), job)?)),
            Link::Udp => {
                let socket = udp_socket(&SocketAddr::new(self.control.address(true)?, 0), job)?;
                socket.connect(address).map_err(BenchError::os("connecting a UDP socket"))?;
                datagrams(socket, job)
            }
            Link::Shm => Ok(Box::new(shm::ask(&self.control, job)?)),
            Link::Dpdk => Err(gone("a dpdk job was not set up as one")),
        }
    }

    /// Begins a conversation of one byte over shared memory, in which the other end waits for the first message.
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
            between: None,
        };
        self.ask(&job)?;
        shm::ask(&self.control, &job)
    }

    /// Sets the addresses of the two ends, the first of which is this one's.
    pub(super) fn between(mut self, ends: [IpAddr; 2]) -> Self {
        self.control.between = Some(ends);
        self
    }

    fn ask(&mut self, job: &Job) -> Result<(u16, Option<String>), BenchError> {
        self.control.say(&Job { between: self.control.between, ..job.clone() })?;
        match self.control.answer()? {
            Answer::Ready { port, listens } => Ok((port, listens)),
            _ => Err(self.control.error("it neither is ready nor has failed")),
        }
    }

    fn begin_verbs(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        let directory = socket_directory(job.link, &self.control)?;
        let listening_end = ListeningEnd::open(job.link, self.control.address(true)?, directory.path(), "asking")?;
        let job = Job { listens: Some(listening_end.address()), ..job.clone() };
        match self.ask(&job)?.1 {
            Some(theirs) => Ok(Box::new(listening_end.meet(&theirs, &job)?)),
            None => Err(self.control.error("it does not announce the address at which it listens")),
        }
    }

    fn begin_dpdk(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        let directory = socket_directory(job.link, &self.control)?;
        let socket = directory.path().join("memif").display().to_string();
        let job = Job { listens: Some(socket.clone()), ..job.clone() };
        let (port, _) = self.ask(&job)?;
        let port = SocketAddr::new(Network::address(SERVER_HOST).into(), port);
        Ok(Box::new(Frames::new(dpdk_port("client", CLIENT_HOST, &socket, &job)?, Some(port), &job)?))
    }

    /// Requests that a stream's other end begin counting, and waits until it does. Over UDP a mark may be lost: it is
    /// repeated until it is answered.
    pub(crate) fn mark(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<(), BenchError> {
        self.tell(exchange, job, Phase::Mark)?;
        match self.control.answer()? {
            Answer::Marked => Ok(()),
            _ => Err(self.control.error("it did not begin to count")),
        }
    }

    /// Announces to a stream's other end that all messages were sent; returns its counters.
    pub(crate) fn end(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<Done, BenchError> {
        self.tell(exchange, job, Phase::End)?;
        self.done()
    }

    fn tell(&mut self, exchange: &mut dyn Exchange, job: &Job, phase: Phase) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let sent = exchange.send(phase).and_then(|()| exchange.flush());
            // The message may be lost; and once the other end has received it, later messages meet a closed socket.
            if job.link.loses() && self.control.readable(Duration::from_millis(20))? {
                break;
            }
            sent?;
            if !job.link.loses() || begun.elapsed() > PEER_TIMEOUT {
                break;
            }
        }
        exchange.finish()
    }

    /// Receives the counters of the other end.
    pub(crate) fn done(&mut self) -> Result<Done, BenchError> {
        match self.control.answer()? {
            Answer::Done(done) if done.seconds.is_finite() && done.seconds >= 0.0 => Ok(done),
            _ => Err(self.control.error("it does not report its counters")),
        }
    }

    /// Returns the error that the other end has reported, if it has; otherwise this end's.
    pub(crate) fn reason(&mut self, ours: BenchError) -> BenchError {
        match self.control.readable(Duration::from_millis(50)) {
            Ok(true) => match self.control.answer() {
                Err(theirs) => theirs,
                Ok(_) => ours,
            },
            _ => ours,
        }
    }

    /// Returns whether both ends run on one kernel.
    pub(crate) fn same_host(&self) -> bool {
        self.same_host
    }

    /// Returns the other end's description of its host, if that is not this one.
    pub(crate) fn host(&self) -> Option<Host> {
        (!self.same_host).then(|| self.host.clone())
    }
}

/// Serves one asking end until it disconnects; `greeted` is called after the greeting was sent.
pub(super) fn serve(mut control: Control, idle: Option<Duration>, greeted: impl FnOnce()) -> Result<(), BenchError> {
    let greeting = Greeting { thalweg_bench: BENCH_PROTOCOL_VERSION, boot: boot(), host: Host::probe(None) };
    control.say(&Answer::Greeting(Box::new(greeting)))?;
    greeted();
    loop {
        control.set_timeout(idle);
        let Some(job) = control.hear::<Job>()? else { return Ok(()) };
        control.set_timeout(Some(PEER_TIMEOUT));
        // A thread of its own: processor binding ends with it.
        let served = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind(job.cpu)?;
                work(&job, &mut control)
            });
            thread
                .join()
                .unwrap_or_else(|_| Err(BenchError::Peer { peer: "this end".into(), why: "it panicked".into() }))
        });
        if let Err(error) = served {
            control.say(&Answer::Failed { why: error.to_string() })?;
        }
    }
}

/// Does a job: answers or receives until the end message, and reports its counters.
fn work(job: &Job, control: &mut Control) -> Result<(), BenchError> {
    let mut exchange = accept(job, control)?;
    let clock = Clock::new();
    let mut begun = None;
    loop {
        let phase = exchange.receive()?;
        let mark = phase == Phase::Mark && begun.is_none();
        // Read before the answer, so that the first message that counts is not delayed by it.
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
            let done = Done { seconds, tally: exchange.tally() - before, used: usage.used() };
            control.say(&Answer::Done(done))?;
            // DPDK memory is not taken away while the other end may read it.
            if job.link == Link::Dpdk {
                control.readable(PEER_TIMEOUT)?;
            }
            return Ok(());
        }
    }
}

/// Accepts the data connection of a job at the serving end.
fn accept(job: &Job, control: &mut Control) -> Result<Box<dyn Exchange>, BenchError> {
    if !(1..=MAX_MESSAGE_BYTES).contains(&(job.size as u64)) || !job.link.methods().contains(&job.method) {
        return Err(gone("this job cannot be measured: no such size, or no such method of this link"));
    }
    control.between = job.between.map(|[asking, serving]| [serving, asking]);
    let here = SocketAddr::new(control.address(true)?, 0);
    let there = control.address(false)?;
    if let (Method::Verbs, Some(theirs)) = (job.method, &job.listens) {
        let directory = socket_directory(job.link, control)?;
        let listening_end = ListeningEnd::open(job.link, here.ip(), directory.path(), "serving")?;
        control.say(&Answer::Ready { port: 0, listens: Some(listening_end.address()) })?;
        return Ok(Box::new(listening_end.meet(theirs, job)?));
    }
    match job.link {
        Link::Tcp => {
            let socket = tcp_socket(&here, job)?;
            socket.bind(&SockAddr::from(here)).map_err(BenchError::os("binding a TCP port"))?;
            socket.listen(1).map_err(BenchError::os("listening"))?;
            let listener = TcpListener::from(socket);
            control.say(&Answer::Ready { port: local_port(listener.local_addr())?, listens: None })?;
            let stream = accept_from(&listener, there)?;
            match job.method {
                Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                _ => Ok(Box::new(Stream::new(stream, job)?)),
            }
        }
        Link::Udp if job.method == Method::Frames => {
            let frames = Frames::new(udp_port(here)?, None, job)?;
            control.say(&Answer::Ready { port: frames.port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::AfXdp => {
            let frames = Frames::new(af_xdp_port(here.ip())?, None, job)?;
            control.say(&Answer::Ready { port: frames.port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::Udp => {
            let socket = udp_socket(&here, job)?;
            control.say(&Answer::Ready { port: local_port(socket.local_addr())?, listens: None })?;
            // The first sender at the asking end's address is answered; its datagram stays in the queue.
            socket.set_read_timeout(Some(PEER_TIMEOUT)).map_err(BenchError::os("setting up a UDP socket"))?;
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
        Link::Dpdk => {
            control.unix()?;
            let socket = job.listens.as_deref().ok_or_else(|| gone("the job names no socket of the shared memory"))?;
            let frames = Frames::new(dpdk_port("server", SERVER_HOST, socket, job)?, None, job)?;
            control.say(&Answer::Ready { port: frames.port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::Shm => {
            control.unix()?;
            control.say(&Answer::Ready { port: 0, listens: None })?;
            shm::serve(control, job)
        }
    }
}

fn local_port(address: io::Result<SocketAddr>) -> Result<u16, BenchError> {
    address.map(|address| address.port()).map_err(BenchError::os("binding a port"))
}

/// Makes a directory of this end's own for the socket of a shm link.
fn socket_directory(link: Link, control: &Control) -> Result<tempfile::TempDir, BenchError> {
    if link.is_shared() {
        control.unix()?;
    }
    tempfile::Builder::new().prefix("thalweg-bench-").tempdir().map_err(BenchError::os("making a temporary directory"))
}

fn accept_from(listener: &TcpListener, who: IpAddr) -> Result<TcpStream, BenchError> {
    use rustix::event::{PollFd, PollFlags, poll};
    let timeout = rustix::time::Timespec { tv_sec: PEER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
        if ready.map_err(BenchError::os("waiting for a connection"))? == 0 {
            return Err(gone("no connection to the port for data arrived; is a firewall between the two hosts?"));
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

/// Sets the congestion control of a TCP socket.
pub(crate) fn set_congestion(socket: &SockRef, name: &str) -> Result<(), BenchError> {
    socket.set_tcp_congestion(name.as_bytes()).map_err(BenchError::os(format!(
        "TCP congestion control '{name}' (/proc/sys/net/ipv4/tcp_available_congestion_control lists those there are)"
    )))
}

fn udp_port(here: SocketAddr) -> Result<Box<dyn FrameIo>, BenchError> {
    Ok(Box::new(UdpPort::bind(here).map_err(BenchError::os("binding a UDP port"))?))
}

#[cfg(feature = "af-xdp")]
fn af_xdp_port(here: IpAddr) -> Result<Box<dyn FrameIo>, BenchError> {
    let port = thalweg_frames::AfXdpPort::at(SocketAddr::new(here, 0));
    Ok(Box::new(port.map_err(|error| BenchError::os(error.doing)(error.error))?))
}

#[cfg(not(feature = "af-xdp"))]
fn af_xdp_port(_here: IpAddr) -> Result<Box<dyn FrameIo>, BenchError> {
    let why = "this program was built without the feature `af-xdp`".to_owned();
    Err(BenchError::Unavailable { what: "AF_XDP".to_owned(), why })
}

/// Numbers of the two hosts of a network on which there are no others.
const CLIENT_HOST: u16 = 0;
const SERVER_HOST: u16 = 1;

/// Opens a DPDK port over memory shared with the other end, connected at `socket`: the server's, which comes first, or
/// the client's.
fn dpdk_port(role: &str, host: u16, socket: &str, job: &Job) -> Result<Box<dyn FrameIo>, BenchError> {
    let mtu = u16::try_from(job.size + IP_UDP_HEADER_BYTES).unwrap_or(u16::MAX).max(1500);
    let link = if role == "server" { Duration::ZERO } else { PEER_TIMEOUT };
    let options = Options { mtu: Some(mtu), link, ..Options::default() };
    let port = DpdkPort::open(&format!("net_memif0,role={role},socket={socket}"), &options)
        .map_err(|error| BenchError::Unavailable { what: "a port of DPDK's".to_owned(), why: error.to_string() })?;
    let subnet = Subnet { prefix: Network::PREFIX_BITS, gateway: None, answers: true };
    Ok(Box::new(EthernetPort::new(port, SocketAddrV4::new(Network::address(host), DPDK_UDP_PORT), subnet)))
}

/// Length of the headers of IPv4 and UDP, in bytes.
const IP_UDP_HEADER_BYTES: usize = 28;
/// Port number; any would do: on such a network all are free.
const DPDK_UDP_PORT: u16 = 5255;

fn udp_socket(address: &SocketAddr, job: &Job) -> Result<UdpSocket, BenchError> {
    let socket = Socket::new(Domain::for_address(*address), Type::DGRAM.cloexec(), None)
        .map_err(BenchError::os("making a UDP socket"))?;
    set_buffers(&SockRef::from(&socket), job)?;
    socket.bind(&SockAddr::from(*address)).map_err(BenchError::os("binding a UDP port"))?;
    Ok(socket.into())
}

/// Sets the socket's buffers. The kernel doubles the requested size (socket(7)), and grants at most `net.core.wmem_max`
/// and `rmem_max`; less than requested is an error here.
fn set_buffers(socket: &SockRef<'_>, job: &Job) -> Result<(), BenchError> {
    let Some(bytes) = job.socket_buffer else { return Ok(()) };
    let granted = request_buffers(socket, bytes as usize)
        .map_err(BenchError::os(format!("asking for socket buffers of {bytes} bytes")))?;
    if granted < bytes as usize {
        return Err(BenchError::Unavailable {
            what: format!("socket buffers of {bytes} bytes"),
            why: format!(
                "the kernel grants {granted}; sysctl -w net.core.rmem_max={bytes} net.core.wmem_max={bytes} would allow them"
            ),
        });
    }
    Ok(())
}

/// Requests buffers of this size and returns the size of the smaller one, in bytes.
fn request_buffers(socket: &SockRef<'_>, bytes: usize) -> io::Result<usize> {
    socket.set_send_buffer_size(bytes)?;
    socket.set_recv_buffer_size(bytes)?;
    Ok(socket.send_buffer_size()?.min(socket.recv_buffer_size()?))
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
