//! UDP device: a port, and the datagrams that arrive through it.

use crate::instrument::UdpConfig;
use crate::instrument::assembler::{Assembler, Taken};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, TaiClock};
use thalweg_frames::{Arrival, Counters, DirectSocket, FrameIo, FramesError, Place, UdpPort};
use thalweg_link::Adapter;
use thalweg_wire::TaiNanos;

/// Maximum number of datagrams received in one call.
const BURST_DATAGRAMS: usize = 64;
/// Maximum number of buffers that the device takes: all that there are.
const MAX_BUFFER_COUNT: u32 = 1 << 16;
/// Maximum number of bursts received before others have their turn.
const BURSTS_PER_POLL: usize = 16;
/// Time between two reads of a port that has no file descriptor to wait on.
const PORT_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Time between two reads of such a port while no run is taken: a peer may request its address (ARP).
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time after the last poll during which datagrams are still wanted: a run that is about to stop pauses for a moment.
const IDLE_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of datagrams discarded when the run begins: those that arrived before.
const MAX_STALE_DATAGRAMS: usize = 1 << 20;

/// A device that receives UDP datagrams.
#[derive(Debug)]
pub struct Listener {
    description: Description,
    port: Port,
    from: Option<Sender>,
    /// True if the options choose one of several threads or streams.
    is_stream_chosen: bool,
    assembler: Assembler,
    /// Datagrams that arrived and found no buffer.
    waiting: VecDeque<Box<[u8]>>,
    /// Time at which the port was last read.
    last_read: Duration,
    /// Time at which the port was last found empty.
    empty_at: Duration,
    /// True if the port may hold more datagrams than were received.
    may_have_more: bool,
    /// Counters of the port at the beginning of the run.
    counters_at_start: Counters,
    /// Number of datagrams that the port had dropped when it was last read.
    dropped: u64,
    fronts: Vec<u8>,
    buffers: Vec<Buffer>,
}

/// Port through which datagrams arrive.
#[derive(Debug)]
enum Port {
    /// A socket that receives datagrams in place.
    Direct(DirectSocket),
    /// A port whose datagrams are copied.
    Frames(Box<dyn FrameIo>),
}

/// Outcome of reading the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiveOutcome {
    /// At least one datagram arrived.
    Received,
    /// No datagram arrived.
    Empty,
    /// The port was not read: there is no buffer for a datagram that may be there.
    NoBuffer,
}

/// Sender whose datagrams are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Host(IpAddr),
    Port(SocketAddr),
}

impl Sender {
    fn matches_address(&self, from: SocketAddr) -> bool {
        match self {
            Self::Host(host) => *host == from.ip(),
            Self::Port(port) => *port == from,
        }
    }
}

/// Checks the options that do not depend on a format.
pub(crate) fn check_options(config: &UdpConfig) -> Result<(), DeviceError> {
    parse_sender(config)?;
    parse_listen_address(&config.listen).map(drop)
}

fn parse_sender(config: &UdpConfig) -> Result<Option<Sender>, DeviceError> {
    let Some(text) = &config.from else { return Ok(None) };
    let host = text.parse().map(Sender::Host);
    let sender = host.or_else(|_| text.parse().map(Sender::Port)).map_err(|_| DeviceError::Option {
        option: "from",
        problem: format!("'{text}' is not an address: write one such as 10.0.0.5, or with a port, 10.0.0.5:4000"),
    })?;
    Ok(Some(sender))
}

/// Kind of a port, as `listen` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortKind {
    Udp,
    AfXdp,
    Dpdk,
}

fn parse_listen_address(listen: &str) -> Result<(PortKind, &str), DeviceError> {
    let (kind, place) = listen.split_once(':').unwrap_or((listen, ""));
    let kind = match kind {
        "udp" => Some(PortKind::Udp),
        "af-xdp" => Some(PortKind::AfXdp),
        "dpdk" => Some(PortKind::Dpdk),
        _ => None,
    };
    kind.filter(|_| place.contains(':')).map(|kind| (kind, place)).ok_or_else(|| DeviceError::Option {
        option: "listen",
        problem: format!(
            "'{listen}' is not an address to listen on: write udp:HOST:PORT, af-xdp:HOST:PORT or dpdk:HOST:PORT"
        ),
    })
}

/// Opens a port at the first of a name's addresses that this host has.
fn bind_first_available<T>(found: &[SocketAddr], port: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut failed = None;
    for at in found {
        match port(*at) {
            Ok(port) => return Ok(port),
            // The first error shows the cause.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

impl Listener {
    /// Opens a port, and keeps the datagrams that arrive there from now on.
    ///
    /// # Errors
    /// Fails if an option makes no sense, or if the port cannot be opened.
    pub fn open(config: &UdpConfig, adapter: Option<&Adapter>) -> Result<Self, DeviceError> {
        let assembler = Assembler::new(config)?;
        let (kind, place) = parse_listen_address(&config.listen)?;
        let mut port = Port::open_port(config, adapter, kind, place, assembler.in_place_front_bytes().is_some())?;
        let holds = match &mut port {
            Port::Direct(socket) => socket.reserve_receive_bytes(config.buffer.0),
            Port::Frames(port) => port.reserve_receive_bytes(config.buffer.0),
        };
        if holds < config.buffer.0 {
            let (listen, wanted) = (&config.listen, config.buffer);
            let why = buffer_size_remedy(kind, wanted.0);
            tracing::warn!("{listen}: the receive buffer has {holds} bytes instead of {wanted}: {why}");
        }
        let mut description = Description {
            kind: format!("udp-{}", config.format.name()),
            payload_type: assembler.payload_type().type_name().to_owned(),
            record_bytes: Some(config.size.0),
            shape: assembler.fragment_shape().map(<[u64]>::to_vec),
            thread: config.thread,
            ..Description::default()
        };
        description.fragment_rate = config.rate.map(|rate| rate.hertz());
        Ok(Self {
            description,
            port,
            from: parse_sender(config)?,
            is_stream_chosen: config.thread.is_some() || config.stream.is_some(),
            fronts: vec![0; assembler.in_place_front_bytes().unwrap_or(0) * BURST_DATAGRAMS],
            assembler,
            waiting: VecDeque::new(),
            last_read: Duration::ZERO,
            empty_at: Duration::ZERO,
            may_have_more: false,
            counters_at_start: Counters::default(),
            dropped: 0,
            buffers: Vec::with_capacity(BURST_DATAGRAMS),
        })
    }

    /// Returns the address that the instrument is to send to.
    pub fn local_address(&self) -> SocketAddr {
        match &self.port {
            Port::Direct(socket) => socket.local_address(),
            Port::Frames(port) => port.local_address(),
        }
    }

    /// Receives the datagrams that have arrived, as far as there are buffers.
    fn receive_datagrams(&mut self, now: Duration) -> Result<ReceiveOutcome, DeviceError> {
        if self.assembler.needs_date() {
            self.assembler.set_date(TaiClock.now());
        }
        match &self.port {
            Port::Direct(_) => self.receive_in_place(now),
            Port::Frames(_) => {
                let outcome = self.receive_and_copy(now);
                if self.assembler.needs_port_drops() {
                    self.report_port_drops();
                }
                outcome
            }
        }
    }

    /// Reports to the assembler the number of datagrams that the port has dropped.
    fn report_port_drops(&mut self) {
        let dropped = self.port_counters().dropped;
        self.assembler.record_port_drops(dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped)));
    }

    fn receive_in_place(&mut self, now: Duration) -> Result<ReceiveOutcome, DeviceError> {
        let Self { port: Port::Direct(socket), assembler, fronts, buffers, from, dropped: before, .. } = self else {
            return Ok(ReceiveOutcome::Empty);
        };
        assembler.take_buffers(BURST_DATAGRAMS, buffers);
        if buffers.is_empty() {
            return Ok(ReceiveOutcome::NoBuffer);
        }
        let (front, longest) = (assembler.in_place_front_bytes().unwrap_or(0), assembler.longest_fragment_bytes());
        let mut rest = &mut fronts[..];
        let mut places: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let (first, others) = std::mem::take(&mut rest).split_at_mut(front);
                rest = others;
                Place::new(first, &mut buffer.payload_mut()[..longest])
            })
            .collect();
        let received = socket.receive_datagrams(&mut places).map_err(network_error)?;
        let dropped = socket.port_counters().dropped;
        assembler.record_port_drops(dropped.saturating_sub(std::mem::replace(before, dropped)));
        let came: Vec<_> = places.iter().take(received).map(|place| (place.length, place.from)).collect();
        drop(places);
        for (at, buffer) in buffers.drain(..).enumerate() {
            match came.get(at) {
                None => assembler.return_unused_buffer(buffer),
                Some((_, sender))
                    if from.is_some_and(|from| sender.is_none_or(|sender| !from.matches_address(sender))) =>
                {
                    assembler.count_stranger();
                    assembler.return_unused_buffer(buffer);
                }
                Some((length, _)) => {
                    assembler.accept_in_place(&fronts[at * front..(at + 1) * front], buffer, *length, now);
                }
            }
        }
        Ok(if received > 0 { ReceiveOutcome::Received } else { ReceiveOutcome::Empty })
    }

    fn receive_and_copy(&mut self, now: Duration) -> Result<ReceiveOutcome, DeviceError> {
        let Self { port: Port::Frames(port), assembler, waiting, from, .. } = self else {
            return Ok(ReceiveOutcome::Empty);
        };
        if !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|bytes| assembler.accept_datagram(bytes, now) == Taken::NoBuffer);
            return Ok(if waiting.len() < before { ReceiveOutcome::Received } else { ReceiveOutcome::NoBuffer });
        }
        let mut came = false;
        // A port that must be informed before a wait may have received something by then.
        for is_first in [true, false] {
            if came || !is_first && port.prepare_wait() {
                break;
            }
            port.receive_datagrams(&mut |sender, arrival| {
                let Arrival::Datagram(bytes) = arrival else { return };
                came = true;
                if from.is_some_and(|from| !from.matches_address(sender)) {
                    assembler.count_stranger();
                } else if assembler.accept_datagram(bytes, now) == Taken::NoBuffer {
                    waiting.push_back(bytes.into());
                }
            })
            .map_err(network_error)?;
        }
        Ok(if came { ReceiveOutcome::Received } else { ReceiveOutcome::Empty })
    }

    fn port_counters(&self) -> Counters {
        match &self.port {
            Port::Direct(socket) => socket.port_counters(),
            Port::Frames(port) => port.port_counters(),
        }
    }
}

impl Port {
    /// Opens a port. `in_place`: datagrams can be received in place.
    fn open_port(
        config: &UdpConfig,
        adapter: Option<&Adapter>,
        kind: PortKind,
        place: &str,
        in_place: bool,
    ) -> Result<Self, DeviceError> {
        let found: Vec<SocketAddr> = place.to_socket_addrs().map_err(|error| port_error(config, error))?.collect();
        let at = *found.first().ok_or_else(|| port_error(config, io::ErrorKind::NotFound.into()))?;
        match kind {
            PortKind::Udp if in_place => bind_first_available(&found, DirectSocket::bind).map(Self::Direct),
            PortKind::Udp => bind_first_available(&found, UdpPort::bind).map(|port| Self::Frames(Box::new(port))),
            PortKind::Dpdk => {
                let (Some(adapter), SocketAddr::V4(at)) = (adapter, at) else {
                    let listen = &config.listen;
                    let problem = format!("{listen} is received by an adapter, over IPv4: set the source's `adapter`");
                    return Err(DeviceError::Option { option: "listen", problem });
                };
                let port = thalweg_dpdk::open_datagram_port(adapter, at).map_err(io::Error::other);
                port.map(|port| Self::Frames(Box::new(port)))
            }
            #[cfg(feature = "af-xdp")]
            PortKind::AfXdp => {
                Ok(Self::Frames(Box::new(thalweg_frames::AfXdpPort::open_at_address(at).map_err(network_error)?)))
            }
            #[cfg(not(feature = "af-xdp"))]
            PortKind::AfXdp => Err(io::Error::new(io::ErrorKind::Unsupported, "this thalweg was built without AF_XDP")),
        }
        .map_err(|error| port_error(config, error))
    }

    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Direct(socket) => Some(socket.as_fd()),
            Self::Frames(port) => port.descriptor(),
        }
    }

    /// Discards one burst of waiting datagrams, and returns their number.
    fn discard_waiting(&mut self) -> Result<usize, FramesError> {
        match self {
            Self::Direct(socket) => {
                let mut places: Vec<_> = (0..BURST_DATAGRAMS).map(|_| Place::new(&mut [], &mut [])).collect();
                socket.receive_datagrams(&mut places)
            }
            Self::Frames(port) => {
                let mut count = 0;
                port.receive_datagrams(&mut |_, _| count += 1)?;
                Ok(count)
            }
        }
    }
}

/// Returns the reason why the port keeps fewer bytes than requested, and the remedy.
fn buffer_size_remedy(kind: PortKind, wanted: u64) -> String {
    match kind {
        // Each byte takes two: the kernel also counts its own bookkeeping (socket(7), `SO_RCVBUF`).
        PortKind::Udp => format!("set net.core.rmem_max to at least {wanted}"),
        PortKind::AfXdp => "the interface's rings hold no more: set a smaller `buffer`".into(),
        PortKind::Dpdk => "the adapter has no more descriptors: set a smaller `buffer`".into(),
    }
}

fn port_error(config: &UdpConfig, error: io::Error) -> DeviceError {
    DeviceError::Network { doing: format!("listening on {}", config.listen), error }
}

fn network_error(FramesError { doing, error }: FramesError) -> DeviceError {
    DeviceError::Network { doing, error }
}

impl Acquisition for Listener {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.assembler.longest_fragment_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        MAX_BUFFER_COUNT
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.assembler.post_buffer(buffer);
    }

    /// Starts the run. Datagrams that arrived before are not part of it.
    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let mut stale = 0;
        while stale < MAX_STALE_DATAGRAMS {
            match self.port.discard_waiting().map_err(network_error)? {
                0 => break,
                some => stale += some,
            }
        }
        if stale > 0 {
            tracing::info!(stale, "datagrams arrived before the run began");
        }
        self.counters_at_start = self.port_counters();
        self.dropped = self.counters_at_start.dropped;
        self.assembler.start_delivery();
        tracing::info!("{}: data are recorded from now on", self.local_address());
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        self.last_read = now;
        for _ in 0..BURSTS_PER_POLL {
            if let Some(acquired) = self.assembler.next_acquired(self.empty_at) {
                return Ok(acquired);
            }
            let found = self.receive_datagrams(now)?;
            self.may_have_more = found == ReceiveOutcome::Received;
            if found == ReceiveOutcome::Empty {
                self.empty_at = now;
            }
            if !self.may_have_more {
                // A datagram that found no buffer may leave no choice but to give up the next fragment.
                return Ok(self.assembler.next_acquired(self.empty_at).unwrap_or(Acquired::NotYet));
            }
        }
        Ok(Acquired::NotYet)
    }

    fn poll_idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        if self.port.poll_descriptor().is_some() {
            return Ok(None);
        }
        if now < self.last_read + IDLE_DELAY {
            return Ok(Some(self.last_read + IDLE_DELAY));
        }
        self.port.discard_waiting().map_err(network_error)?;
        Ok(Some(now + IDLE_POLL_INTERVAL))
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.poll_descriptor()
    }

    /// Returns false while datagrams wait for a buffer, so that the caller is not woken for them.
    fn has_room(&self) -> bool {
        self.assembler.has_room() && self.waiting.is_empty()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        if self.may_have_more {
            return Some(Duration::ZERO);
        }
        // Datagrams that wait at the port may be the missing ones: no fragment is given up while the port is not read,
        // unless it cannot be read.
        let due = self.assembler.next_deadline().filter(|due| due.is_zero() || self.has_room());
        // A port that is polled does not report arrivals.
        let poll = self.port.poll_descriptor().is_none().then(|| self.last_read + PORT_POLL_INTERVAL);
        due.into_iter().chain(poll).min()
    }

    fn confirm_numbers(&mut self, first: u64) {
        self.assembler.numbers_agree(first);
    }

    /// Returns the number of datagrams that belong to no event. Datagrams that anyone may have sent count only if
    /// `from` is set, so that all of them are the instrument's; those of another thread or stream count only if none
    /// was chosen.
    fn stray_frame_count(&self) -> u64 {
        let counts = self.assembler.counts();
        let broken = counts.malformed + counts.truncated + counts.oversize;
        let others = if self.is_stream_chosen { 0 } else { counts.other_stream };
        counts.stray + counts.unnumbered + others + if self.from.is_some() { broken } else { 0 }
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let port = self.port_counters();
        let edge = [
            ("dropped_by_kernel", port.dropped.saturating_sub(self.counters_at_start.dropped)),
            ("foreign", port.foreign.saturating_sub(self.counters_at_start.foreign)),
        ];
        self.assembler.counts().named_counts().into_iter().chain(edge).collect()
    }
}
