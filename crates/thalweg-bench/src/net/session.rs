//! Session of jobs: the asking end's side, and the serving end's.

use super::control::{
    Answer, BENCH_PROTOCOL_VERSION, Control, Done, Greeting, Job, Work, connection_error, read_boot_id,
};
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
use thalweg_frames::{DatagramIo, EthernetPort, Subnet, UdpPort};
use thalweg_sys::netns::Network;

/// Other end, as seen by the asking end.
#[derive(Debug)]
pub(crate) struct Other {
    control: Control,
    host: Host,
    same_host: bool,
    process: u32,
    /// Process that serves, if this end has started it.
    child: Option<super::listen::Child>,
}

impl Other {
    /// Connects to `thalweg bench listen` at `peer`, or starts a process of this program that serves.
    pub(crate) fn connect_or_start(peer: Option<&str>) -> Result<Self, BenchError> {
        let (control, child) = match peer {
            Some(peer) => (super::listen::connect_to_peer(peer)?, None),
            None => super::listen::start_serving_process().map(|(control, child)| (control, Some(child)))?,
        };
        Self::from_greeting(control, child)
    }

    /// Receives the greeting over a new control connection and checks its version.
    pub(super) fn from_greeting(mut control: Control, child: Option<super::listen::Child>) -> Result<Self, BenchError> {
        let greeting = match control.receive_answer()? {
            Answer::Greeting(greeting) if greeting.thalweg_bench == BENCH_PROTOCOL_VERSION => greeting,
            Answer::Greeting(greeting) => {
                let theirs = greeting.thalweg_bench;
                return Err(control.peer_error(format_args!(
                    "it speaks version {theirs}, this program version {BENCH_PROTOCOL_VERSION}"
                )));
            }
            _ => return Err(control.peer_error("it does not greet")),
        };
        let same_host = greeting.boot == read_boot_id();
        Ok(Self { control, host: greeting.host, same_host, process: greeting.process, child })
    }

    /// Requests a job; returns the exchange of its messages.
    pub(crate) fn begin_exchange(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
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
        let (port, _) = self.request_job(job)?;
        let address = SocketAddr::new(self.control.data_address(false)?, port);
        match job.link {
            Link::Tcp => {
                let socket = open_tcp_socket(&address, job)?;
                let reached = socket.connect_timeout(&SockAddr::from(address), PEER_TIMEOUT);
                reached.map_err(|error| self.control.peer_error(format_args!("its port {port} for data: {error}")))?;
                let stream = TcpStream::from(socket);
                match job.method {
                    Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                    _ => Ok(Box::new(Stream::new(stream, job)?)),
                }
            }
            Link::Udp if job.method == Method::Frames => {
                let port = bind_udp_port(SocketAddr::new(self.control.data_address(true)?, 0))?;
                Ok(Box::new(Frames::new(port, Some(address), job)?))
            }
            Link::AfXdp => {
                Ok(Box::new(Frames::new(af_xdp_port(self.control.data_address(true)?)?, Some(address), job)?))
            }
            Link::Udp => {
                let socket = bind_udp_socket(&SocketAddr::new(self.control.data_address(true)?, 0), job)?;
                socket.connect(address).map_err(BenchError::os_error("connecting a UDP socket"))?;
                datagram_exchange(socket, job)
            }
            Link::Shm => Ok(Box::new(shm::set_up_asking_end(&self.control, job)?)),
            Link::Dpdk => Err(connection_error("a dpdk job was not set up as one")),
            Link::Rdma | Link::RdmaEfe => Err(connection_error("an rdma job has only the method verbs")),
        }
    }

    /// Begins a conversation of one byte over shared memory, in which the other end waits for the first message.
    pub(super) fn begin_shared_memory(&mut self) -> Result<shm::Shared, BenchError> {
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
        self.request_job(&job)?;
        shm::set_up_asking_end(&self.control, &job)
    }

    /// Sets the addresses of the two ends, the first of which is this one's.
    pub(super) fn with_addresses(mut self, ends: [IpAddr; 2]) -> Self {
        self.control.between = Some(ends);
        self
    }

    fn request_job(&mut self, job: &Job) -> Result<(u16, Option<String>), BenchError> {
        self.control.send_line(&Job { between: self.control.between, ..job.clone() })?;
        match self.control.receive_answer()? {
            Answer::Ready { port, listens } => Ok((port, listens)),
            _ => Err(self.control.peer_error("it neither is ready nor has failed")),
        }
    }

    fn begin_verbs(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        let directory = socket_directory(job.link, &self.control)?;
        let listening_end =
            ListeningEnd::open_listener(job.link, self.control.data_address(true)?, directory.path(), "asking")?;
        let job = Job { listens: Some(listening_end.listen_address()), ..job.clone() };
        match self.request_job(&job)?.1 {
            Some(theirs) => Ok(Box::new(listening_end.connect_and_accept(&theirs, &job)?)),
            None => Err(self.control.peer_error("it does not announce the address at which it listens")),
        }
    }

    fn begin_dpdk(&mut self, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
        let directory = socket_directory(job.link, &self.control)?;
        let socket = directory.path().join("memif").display().to_string();
        let job = Job { listens: Some(socket.clone()), ..job.clone() };
        let (port, _) = self.request_job(&job)?;
        let port = SocketAddr::new(Network::host_address(SERVER_HOST).into(), port);
        Ok(Box::new(Frames::new(open_dpdk_port("client", CLIENT_HOST, &socket, &job)?, Some(port), &job)?))
    }

    /// Requests that a stream's other end begin counting, and waits until it does. Over UDP a mark may be lost: it is
    /// repeated until it is answered.
    pub(crate) fn request_mark(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<(), BenchError> {
        self.announce_phase(exchange, job, Phase::Mark)?;
        match self.control.receive_answer()? {
            Answer::Marked => Ok(()),
            _ => Err(self.control.peer_error("it did not begin to count")),
        }
    }

    /// Announces to a stream's other end that all messages were sent; returns its counters.
    pub(crate) fn end_stream(&mut self, exchange: &mut dyn Exchange, job: &Job) -> Result<Done, BenchError> {
        self.announce_phase(exchange, job, Phase::End)?;
        self.receive_counters()
    }

    fn announce_phase(&mut self, exchange: &mut dyn Exchange, job: &Job, phase: Phase) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            let sent = exchange.send_message(phase).and_then(|()| exchange.flush_pending());
            // The message may be lost; and once the other end has received it, later messages meet a closed socket.
            if job.link.may_lose_messages() && self.control.wait_until_readable(Duration::from_millis(20))? {
                break;
            }
            sent?;
            if !job.link.may_lose_messages() || begun.elapsed() > PEER_TIMEOUT {
                break;
            }
        }
        exchange.wait_for_delivery()
    }

    /// Receives the counters of the other end.
    pub(crate) fn receive_counters(&mut self) -> Result<Done, BenchError> {
        match self.control.receive_answer()? {
            Answer::Done(done) if done.seconds.is_finite() && done.seconds >= 0.0 => Ok(done),
            _ => Err(self.control.peer_error("it does not report its counters")),
        }
    }

    /// Returns the error that the other end has reported, if it has; otherwise this end's.
    pub(crate) fn reported_error_or(&mut self, ours: BenchError) -> BenchError {
        match self.control.wait_until_readable(Duration::from_millis(50)) {
            Ok(true) => match self.control.receive_answer() {
                Err(theirs) => theirs,
                Ok(_) => ours,
            },
            _ => ours,
        }
    }

    /// Returns the number of the other end's process, if it is on this host and this end did not start it.
    pub(crate) fn outside_process(&self) -> Option<u32> {
        (self.same_host && self.child.is_none() && self.process > 0).then_some(self.process)
    }

    /// Returns whether both ends run on one kernel.
    pub(crate) fn is_same_host(&self) -> bool {
        self.same_host
    }

    /// Returns the other end's description of its host, if that is not this one.
    pub(crate) fn other_host(&self) -> Option<Host> {
        (!self.same_host).then(|| self.host.clone())
    }
}

/// Serves one asking end until it disconnects; `greeted` is called after the greeting was sent.
pub(super) fn serve_jobs(
    mut control: Control,
    idle: Option<Duration>,
    greeted: impl FnOnce(),
) -> Result<(), BenchError> {
    let greeting = Greeting {
        thalweg_bench: BENCH_PROTOCOL_VERSION,
        boot: read_boot_id(),
        process: std::process::id(),
        host: Host::probe_this_machine(None),
    };
    control.send_line(&Answer::Greeting(Box::new(greeting)))?;
    greeted();
    loop {
        control.set_read_timeout(idle);
        let Some(job) = control.receive_line::<Job>()? else { return Ok(()) };
        control.set_read_timeout(Some(PEER_TIMEOUT));
        // A thread of its own: processor binding ends with it.
        let served = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                bind_to_processor(job.cpu)?;
                perform_job(&job, &mut control)
            });
            thread
                .join()
                .unwrap_or_else(|_| Err(BenchError::Peer { peer: "this end".into(), why: "it panicked".into() }))
        });
        if let Err(error) = served {
            control.send_line(&Answer::Failed { why: error.to_string() })?;
        }
    }
}

/// Does a job: answers or receives until the end message, and reports its counters.
fn perform_job(job: &Job, control: &mut Control) -> Result<(), BenchError> {
    let mut exchange = accept_exchange(job, control)?;
    let clock = Clock::new();
    let mut begun = None;
    loop {
        let phase = exchange.receive_message()?;
        let mark = phase == Phase::Mark && begun.is_none();
        // Read before the answer, so that the first message that counts is not delayed by it.
        let usage = mark.then(|| (Usage::read_counters(), clock.read_counter()));
        match job.work {
            Work::Answer => {
                if let Some(number) = exchange.last_number_received() {
                    exchange.set_next_number(number);
                }
                exchange.send_message(phase)?;
            }
            Work::Receive if mark => control.send_line(&Answer::Marked)?,
            Work::Receive => {}
        }
        if let Some((usage, first)) = usage {
            begun = Some((usage, first, exchange.counters()));
        }
        if phase == Phase::End {
            exchange.flush_pending()?;
            let last = clock.read_counter();
            exchange.wait_for_delivery()?;
            let (usage, first, before) = begun.ok_or_else(|| connection_error("the end came before the beginning"))?;
            let seconds = clock.elapsed_nanos(first, last) as f64 * 1e-9;
            let done = Done { seconds, tally: exchange.counters() - before, used: usage.used_since() };
            control.send_line(&Answer::Done(done))?;
            // DPDK memory is not taken away while the other end may read it.
            if job.link == Link::Dpdk {
                control.wait_until_readable(PEER_TIMEOUT)?;
            }
            return Ok(());
        }
    }
}

/// Accepts the data connection of a job at the serving end.
fn accept_exchange(job: &Job, control: &mut Control) -> Result<Box<dyn Exchange>, BenchError> {
    if !(1..=MAX_MESSAGE_BYTES).contains(&(job.size as u64)) || !job.link.supported_methods().contains(&job.method) {
        return Err(connection_error("this job cannot be measured: no such size, or no such method of this link"));
    }
    control.between = job.between.map(|[asking, serving]| [serving, asking]);
    let here = SocketAddr::new(control.data_address(true)?, 0);
    let there = control.data_address(false)?;
    if let (Method::Verbs, Some(theirs)) = (job.method, &job.listens) {
        let directory = socket_directory(job.link, control)?;
        let listening_end = ListeningEnd::open_listener(job.link, here.ip(), directory.path(), "serving")?;
        control.send_line(&Answer::Ready { port: 0, listens: Some(listening_end.listen_address()) })?;
        return Ok(Box::new(listening_end.connect_and_accept(theirs, job)?));
    }
    match job.link {
        Link::Tcp => {
            let socket = open_tcp_socket(&here, job)?;
            socket.bind(&SockAddr::from(here)).map_err(BenchError::os_error("binding a TCP port"))?;
            socket.listen(1).map_err(BenchError::os_error("listening"))?;
            let listener = TcpListener::from(socket);
            control.send_line(&Answer::Ready { port: local_port(listener.local_addr())?, listens: None })?;
            let stream = accept_from(&listener, there)?;
            match job.method {
                Method::IoUring => Ok(Box::new(Uring::new(stream.into(), job, true)?)),
                _ => Ok(Box::new(Stream::new(stream, job)?)),
            }
        }
        Link::Udp if job.method == Method::Frames => {
            let frames = Frames::new(bind_udp_port(here)?, None, job)?;
            control.send_line(&Answer::Ready { port: frames.local_port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::AfXdp => {
            let frames = Frames::new(af_xdp_port(here.ip())?, None, job)?;
            control.send_line(&Answer::Ready { port: frames.local_port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::Udp => {
            let socket = bind_udp_socket(&here, job)?;
            control.send_line(&Answer::Ready { port: local_port(socket.local_addr())?, listens: None })?;
            // The first sender at the asking end's address is answered; its datagram stays in the queue.
            socket.set_read_timeout(Some(PEER_TIMEOUT)).map_err(BenchError::os_error("setting up a UDP socket"))?;
            loop {
                let (_, from) =
                    socket.peek_from(&mut [0]).map_err(BenchError::os_error("waiting for a first datagram"))?;
                if from.ip() == there {
                    socket.connect(from).map_err(BenchError::os_error("connecting a UDP socket"))?;
                    break;
                }
                let _ = socket.recv_from(&mut [0]);
            }
            datagram_exchange(socket, job)
        }
        Link::Dpdk => {
            control.unix_stream()?;
            let socket = job
                .listens
                .as_deref()
                .ok_or_else(|| connection_error("the job names no socket of the shared memory"))?;
            let frames = Frames::new(open_dpdk_port("server", SERVER_HOST, socket, job)?, None, job)?;
            control.send_line(&Answer::Ready { port: frames.local_port(), listens: None })?;
            Ok(Box::new(frames))
        }
        Link::Shm => {
            control.unix_stream()?;
            control.send_line(&Answer::Ready { port: 0, listens: None })?;
            shm::set_up_serving_end(control, job)
        }
        Link::Rdma | Link::RdmaEfe => Err(connection_error("an rdma job names no address of the other end")),
    }
}

fn local_port(address: io::Result<SocketAddr>) -> Result<u16, BenchError> {
    address.map(|address| address.port()).map_err(BenchError::os_error("binding a port"))
}

/// Makes a directory of this end's own for the socket of a shm link.
fn socket_directory(link: Link, control: &Control) -> Result<tempfile::TempDir, BenchError> {
    if link.is_shared_memory() {
        control.unix_stream()?;
    }
    tempfile::Builder::new()
        .prefix("thalweg-bench-")
        .tempdir()
        .map_err(BenchError::os_error("making a temporary directory"))
}

fn accept_from(listener: &TcpListener, who: IpAddr) -> Result<TcpStream, BenchError> {
    use rustix::event::{PollFd, PollFlags, poll};
    let timeout = rustix::time::Timespec { tv_sec: PEER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
        if ready.map_err(BenchError::os_error("waiting for a connection"))? == 0 {
            return Err(connection_error(
                "no connection to the port for data arrived; is a firewall between the two hosts?",
            ));
        }
        let (stream, from) = listener.accept().map_err(BenchError::os_error("accepting a connection"))?;
        if from.ip() == who {
            return Ok(stream);
        }
    }
}

fn datagram_exchange(socket: UdpSocket, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
    match job.method {
        Method::IoUring => Ok(Box::new(Uring::new(OwnedFd::from(socket), job, false)?)),
        _ => Ok(Box::new(Datagrams::new(socket, job)?)),
    }
}

fn open_tcp_socket(address: &SocketAddr, job: &Job) -> Result<Socket, BenchError> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM.cloexec(), None)
        .map_err(BenchError::os_error("making a TCP socket"))?;
    set_socket_buffers(&SockRef::from(&socket), job)?;
    if let Some(name) = &job.congestion {
        set_congestion_control(&SockRef::from(&socket), name)?;
    }
    Ok(socket)
}

/// Sets the congestion control of a TCP socket.
pub(crate) fn set_congestion_control(socket: &SockRef, name: &str) -> Result<(), BenchError> {
    socket.set_tcp_congestion(name.as_bytes()).map_err(BenchError::os_error(format!(
        "TCP congestion control '{name}' (/proc/sys/net/ipv4/tcp_available_congestion_control lists those there are)"
    )))
}

fn bind_udp_port(here: SocketAddr) -> Result<Box<dyn DatagramIo>, BenchError> {
    Ok(Box::new(UdpPort::bind(here).map_err(BenchError::os_error("binding a UDP port"))?))
}

#[cfg(feature = "af-xdp")]
fn af_xdp_port(here: IpAddr) -> Result<Box<dyn DatagramIo>, BenchError> {
    let port = thalweg_frames::AfXdpPort::open_at_address(SocketAddr::new(here, 0));
    Ok(Box::new(port.map_err(|error| BenchError::os_error(error.doing)(error.error))?))
}

#[cfg(not(feature = "af-xdp"))]
fn af_xdp_port(_here: IpAddr) -> Result<Box<dyn DatagramIo>, BenchError> {
    let why = "this program was built without the feature `af-xdp`".to_owned();
    Err(BenchError::Unavailable { what: "AF_XDP".to_owned(), why })
}

/// Numbers of the two hosts of a network on which there are no others.
const CLIENT_HOST: u16 = 0;
const SERVER_HOST: u16 = 1;

/// Opens a DPDK port over memory shared with the other end, connected at `socket`: the server's, which comes first, or
/// the client's.
fn open_dpdk_port(role: &str, host: u16, socket: &str, job: &Job) -> Result<Box<dyn DatagramIo>, BenchError> {
    let mtu = u16::try_from(job.size + IP_UDP_HEADER_BYTES).unwrap_or(u16::MAX).max(1500);
    let link = if role == "server" { Duration::ZERO } else { PEER_TIMEOUT };
    let options = Options { mtu: Some(mtu), link, ..Options::default() };
    let port = DpdkPort::open_device(&format!("net_memif0,role={role},socket={socket}"), &options)
        .map_err(|error| BenchError::Unavailable { what: "a port of DPDK's".to_owned(), why: error.to_string() })?;
    let subnet = Subnet { prefix: Network::PREFIX_BITS, gateway: None, answers: true };
    Ok(Box::new(EthernetPort::new(port, SocketAddrV4::new(Network::host_address(host), DPDK_UDP_PORT), subnet)))
}

/// Length of the headers of IPv4 and UDP, in bytes.
const IP_UDP_HEADER_BYTES: usize = 28;
/// Port number; any would do: on such a network all are free.
const DPDK_UDP_PORT: u16 = 5255;

fn bind_udp_socket(address: &SocketAddr, job: &Job) -> Result<UdpSocket, BenchError> {
    let socket = Socket::new(Domain::for_address(*address), Type::DGRAM.cloexec(), None)
        .map_err(BenchError::os_error("making a UDP socket"))?;
    set_socket_buffers(&SockRef::from(&socket), job)?;
    socket.bind(&SockAddr::from(*address)).map_err(BenchError::os_error("binding a UDP port"))?;
    Ok(socket.into())
}

/// Sets the socket's buffers. The kernel doubles the requested size (socket(7)), and grants at most `net.core.wmem_max`
/// and `rmem_max`; less than requested is an error here.
fn set_socket_buffers(socket: &SockRef<'_>, job: &Job) -> Result<(), BenchError> {
    let Some(bytes) = job.socket_buffer else { return Ok(()) };
    let granted = request_buffers(socket, bytes as usize)
        .map_err(BenchError::os_error(format!("asking for socket buffers of {bytes} bytes")))?;
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
pub(crate) fn bind_to_processor(cpu: Option<u32>) -> Result<(), BenchError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let Some(cpu) = cpu else { return Ok(()) };
    let doing = format!("binding to processor {cpu}");
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(BenchError::os_error(doing)(rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set)
        .map_err(BenchError::os_error(format!("{doing} (see 'Cpus_allowed_list' in /proc/self/status)")))
}
