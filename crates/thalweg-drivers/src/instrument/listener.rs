//! UDP device: a port, and the datagrams that arrive through it.

use crate::instrument::UdpConfig;
use crate::instrument::assembler::{Assembler, Taken};
use std::cell::Cell;
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
const BURST: usize = 64;
/// Maximum number of buffers that the device takes: all that there are.
const DEPTH: u32 = 1 << 16;
/// Maximum number of bursts received before others have their turn.
const TURNS: usize = 16;
/// Time between two looks at a port that has no file descriptor to wait on.
const LOOK: Duration = Duration::from_micros(50);
/// Time between two looks at such a port while no run is taken: a peer may ask for its address (ARP).
const GLANCE: Duration = Duration::from_millis(1);
/// Time after the last poll during which datagrams are still wanted: a run that is about to stop pauses for a moment.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of datagrams discarded when the run begins: those that arrived before.
const STALE: usize = 1 << 20;

/// A device that receives UDP datagrams.
#[derive(Debug)]
pub struct Listener {
    description: Description,
    port: Port,
    from: Option<Sender>,
    /// True if the options choose one of several threads or streams.
    chosen: bool,
    assembler: Assembler,
    /// Datagrams that arrived and found no buffer.
    waiting: VecDeque<Box<[u8]>>,
    /// Time of the last look at the port, and time at which it was last found empty.
    looked: Duration,
    empty: Duration,
    /// True if the port may hold more datagrams than were received.
    more: bool,
    /// Counters of the port at the beginning of the run.
    before: Counters,
    /// Number of datagrams that the port had dropped at the last look.
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

/// Outcome of a look at the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// At least one datagram arrived.
    Came,
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
    fn is(&self, from: SocketAddr) -> bool {
        match self {
            Self::Host(host) => *host == from.ip(),
            Self::Port(port) => *port == from,
        }
    }
}

/// Checks the options that do not depend on a format.
pub(crate) fn check(config: &UdpConfig) -> Result<(), DeviceError> {
    sender(config)?;
    address(&config.listen).map(drop)
}

fn sender(config: &UdpConfig) -> Result<Option<Sender>, DeviceError> {
    let Some(text) = &config.from else { return Ok(None) };
    let host = text.parse().map(Sender::Host);
    let sender = host.or_else(|_| text.parse().map(Sender::Port)).map_err(|_| DeviceError::Option {
        option: "from",
        problem: format!("'{text}' is no address: write one, such as 10.0.0.5, or one with a port, 10.0.0.5:4000"),
    })?;
    Ok(Some(sender))
}

/// Ways by which datagrams arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Udp,
    AfXdp,
    Dpdk,
}

fn address(listen: &str) -> Result<(Way, &str), DeviceError> {
    let (way, place) = listen.split_once(':').unwrap_or((listen, ""));
    let way = match way {
        "udp" => Some(Way::Udp),
        "af-xdp" => Some(Way::AfXdp),
        "dpdk" => Some(Way::Dpdk),
        _ => None,
    };
    way.filter(|_| place.contains(':')).map(|way| (way, place)).ok_or_else(|| DeviceError::Option {
        option: "listen",
        problem: format!(
            "'{listen}' is no place to listen at: write udp:HOST:PORT, af-xdp:HOST:PORT or dpdk:HOST:PORT"
        ),
    })
}

/// Opens a port at the first of a name's addresses that this host has.
fn bind<T>(found: &[SocketAddr], port: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
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
        let doing = || format!("listening on {}", config.listen);
        let network = |error| DeviceError::Network { doing: doing(), error };
        let (way, place) = address(&config.listen)?;
        let found: Vec<SocketAddr> = place.to_socket_addrs().map_err(network)?.collect();
        let at = *found.first().ok_or_else(|| network(io::ErrorKind::NotFound.into()))?;
        let mut port = match (way, assembler.in_place()) {
            (Way::Udp, Some(_)) => Port::Direct(bind(&found, DirectSocket::bind).map_err(network)?),
            (Way::Udp, None) => Port::Frames(Box::new(bind(&found, UdpPort::bind).map_err(network)?)),
            (Way::Dpdk, _) => {
                let missing = || DeviceError::Option {
                    option: "listen",
                    problem: format!(
                        "{} comes by an adapter, in IPv4: name one as the source's `adapter`",
                        config.listen
                    ),
                };
                let (Some(adapter), SocketAddr::V4(at)) = (adapter, at) else { return Err(missing()) };
                let port = thalweg_dpdk::datagrams(adapter, at).map_err(io::Error::other).map_err(network)?;
                Port::Frames(Box::new(port))
            }
            #[cfg(feature = "af-xdp")]
            (Way::AfXdp, _) => {
                let port = thalweg_frames::AfXdpPort::at(at);
                Port::Frames(Box::new(
                    port.map_err(|FramesError { doing, error }| DeviceError::Network { doing, error })?,
                ))
            }
            #[cfg(not(feature = "af-xdp"))]
            (Way::AfXdp, _) => {
                let error = io::Error::new(io::ErrorKind::Unsupported, "this thalweg was built without AF_XDP");
                return Err(network(error));
            }
        };
        let holds = match &mut port {
            Port::Direct(socket) => socket.hold(config.buffer.0),
            Port::Frames(port) => port.hold(config.buffer.0),
        };
        if holds < config.buffer.0 {
            let (listen, wanted) = (&config.listen, config.buffer);
            let why = too_small(way, wanted.0);
            tracing::warn!("{listen}: {holds} bytes are kept until they are received, not {wanted}: {why}");
        }
        let mut description = Description {
            kind: format!("udp-{}", config.format.name()),
            payload_type: assembler.payload_type().name().to_owned(),
            record_bytes: Some(config.size.0),
            shape: assembler.shape().map(<[u64]>::to_vec),
            thread: config.thread,
            ..Description::default()
        };
        description.fragment_rate = config.rate.map(|rate| rate.hertz());
        Ok(Self {
            description,
            port,
            from: sender(config)?,
            chosen: config.thread.is_some() || config.stream.is_some(),
            fronts: vec![0; assembler.in_place().unwrap_or(0) * BURST],
            assembler,
            waiting: VecDeque::new(),
            looked: Duration::ZERO,
            empty: Duration::ZERO,
            more: false,
            before: Counters::default(),
            dropped: 0,
            buffers: Vec::with_capacity(BURST),
        })
    }

    /// Returns the address that the instrument is to send to.
    pub fn local(&self) -> SocketAddr {
        match &self.port {
            Port::Direct(socket) => socket.local(),
            Port::Frames(port) => port.local(),
        }
    }

    /// Receives the datagrams that have arrived, as far as there are buffers.
    fn receive(&mut self, now: Duration) -> Result<Look, DeviceError> {
        if self.assembler.needs_date() {
            self.assembler.set_date(TaiClock.now());
        }
        match &self.port {
            Port::Direct(_) => self.receive_in_place(now),
            Port::Frames(_) => {
                let look = self.receive_and_copy(now);
                if self.assembler.needs_drops() {
                    self.note_drops();
                }
                look
            }
        }
    }

    /// Reports to the assembler the number of datagrams that the port has dropped.
    fn note_drops(&mut self) {
        let dropped = self.port_counters().dropped;
        self.assembler.dropped(dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped)));
    }

    fn receive_in_place(&mut self, now: Duration) -> Result<Look, DeviceError> {
        let Self { port: Port::Direct(socket), assembler, fronts, buffers, from, dropped: before, .. } = self else {
            return Ok(Look::Empty);
        };
        assembler.take_buffers(BURST, buffers);
        if buffers.is_empty() {
            return Ok(Look::NoBuffer);
        }
        let (front, longest) = (assembler.in_place().unwrap_or(0), assembler.longest());
        let mut rest = &mut fronts[..];
        let mut places: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let (first, others) = std::mem::take(&mut rest).split_at_mut(front);
                rest = others;
                Place::new(first, &mut buffer.payload()[..longest])
            })
            .collect();
        let received = socket.receive(&mut places).map_err(network)?;
        let dropped = socket.counters().dropped;
        assembler.dropped(dropped.saturating_sub(std::mem::replace(before, dropped)));
        let came: Vec<_> = places.iter().take(received).map(|place| (place.length, place.from)).collect();
        drop(places);
        for (at, buffer) in buffers.drain(..).enumerate() {
            match came.get(at) {
                None => assembler.unused(buffer),
                Some((_, sender)) if from.is_some_and(|from| sender.is_none_or(|sender| !from.is(sender))) => {
                    assembler.stranger();
                    assembler.unused(buffer);
                }
                Some((length, _)) => {
                    assembler.received(&fronts[at * front..(at + 1) * front], buffer, *length, now);
                }
            }
        }
        Ok(if received > 0 { Look::Came } else { Look::Empty })
    }

    fn receive_and_copy(&mut self, now: Duration) -> Result<Look, DeviceError> {
        let Self { port: Port::Frames(port), assembler, waiting, from, .. } = self else { return Ok(Look::Empty) };
        if !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|bytes| assembler.datagram(bytes, now) == Taken::NoBuffer);
            return Ok(if waiting.len() < before { Look::Came } else { Look::NoBuffer });
        }
        let came = Cell::new(false);
        let mut each = |sender, arrival: Arrival<'_>| {
            let Arrival::Datagram(bytes) = arrival else { return };
            came.set(true);
            if from.is_some_and(|from| !from.is(sender)) {
                assembler.stranger();
            } else if assembler.datagram(bytes, now) == Taken::NoBuffer {
                waiting.push_back(bytes.into());
            }
        };
        port.receive(&mut each).map_err(network)?;
        // A port that must be informed before a wait may have received something by then.
        if !came.get() && !port.prepare_wait() {
            port.receive(&mut each).map_err(network)?;
        }
        Ok(if came.get() { Look::Came } else { Look::Empty })
    }

    fn port_counters(&self) -> Counters {
        match &self.port {
            Port::Direct(socket) => socket.counters(),
            Port::Frames(port) => port.counters(),
        }
    }
}

impl Port {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Direct(socket) => Some(socket.as_fd()),
            Self::Frames(port) => port.fd(),
        }
    }

    /// Discards one burst of waiting datagrams, and returns their number.
    fn discard(&mut self) -> Result<usize, FramesError> {
        match self {
            Self::Direct(socket) => {
                let mut places: Vec<_> = (0..BURST).map(|_| Place::new(&mut [], &mut [])).collect();
                socket.receive(&mut places)
            }
            Self::Frames(port) => {
                let mut count = 0;
                port.receive(&mut |_, _| count += 1)?;
                Ok(count)
            }
        }
    }
}

/// Returns the reason why the port keeps less than was asked for, and the remedy.
fn too_small(way: Way, wanted: u64) -> String {
    match way {
        // Each byte takes two: the kernel also counts its own bookkeeping (socket(7), `SO_RCVBUF`).
        Way::Udp => format!("set net.core.rmem_max to {wanted} at least"),
        Way::AfXdp => "the interface's rings hold no more. Ask for a smaller `buffer`".into(),
        Way::Dpdk => "the adapter has no more descriptors. Ask for a smaller `buffer`".into(),
    }
}

fn network(FramesError { doing, error }: FramesError) -> DeviceError {
    DeviceError::Network { doing, error }
}

impl Acquisition for Listener {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload(&self) -> usize {
        self.assembler.longest()
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn post(&mut self, buffer: Buffer) {
        self.assembler.post(buffer);
    }

    /// Starts the run. Datagrams that arrived before are not part of it.
    fn start(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let mut stale = 0;
        while stale < STALE {
            match self.port.discard().map_err(network)? {
                0 => break,
                some => stale += some,
            }
        }
        if stale > 0 {
            tracing::info!(stale, "datagrams came before the run began");
        }
        self.before = self.port_counters();
        self.dropped = self.before.dropped;
        self.assembler.start();
        tracing::info!("{}: what comes from now on counts", self.local());
        Ok(())
    }

    fn poll(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        self.looked = now;
        for _ in 0..TURNS {
            if let Some(acquired) = self.assembler.next(self.empty) {
                return Ok(acquired);
            }
            let found = self.receive(now)?;
            self.more = found == Look::Came;
            if found == Look::Empty {
                self.empty = now;
            }
            if !self.more {
                // A datagram that found no buffer may have left no way but to give up the next fragment.
                return Ok(self.assembler.next(self.empty).unwrap_or(Acquired::NotYet));
            }
        }
        Ok(Acquired::NotYet)
    }

    fn idle(&mut self, now: Duration) -> Result<Option<Duration>, DeviceError> {
        if self.port.fd().is_some() {
            return Ok(None);
        }
        if now < self.looked + PAUSE {
            return Ok(Some(self.looked + PAUSE));
        }
        self.port.discard().map_err(network)?;
        Ok(Some(now + GLANCE))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    /// Returns false while datagrams wait for a buffer, so that the caller is not woken for them.
    fn has_room(&self) -> bool {
        self.assembler.has_room() && self.waiting.is_empty()
    }

    fn next_time(&self) -> Option<Duration> {
        if self.more {
            return Some(Duration::ZERO);
        }
        // Datagrams that wait at the port may be the missing ones: no fragment is given up while the port is not read,
        // unless it cannot be read.
        let due = self.assembler.next_time().filter(|due| due.is_zero() || self.has_room());
        // A port that is polled does not report arrivals.
        let look = self.port.fd().is_none().then(|| self.looked + LOOK);
        due.into_iter().chain(look).min()
    }

    fn numbers_agree(&mut self, first: u64) {
        self.assembler.numbers_agree(first);
    }

    /// Returns the number of datagrams that belong to no event. Datagrams that anyone may have sent count only if
    /// `from` is set, so that all of them are the instrument's; those of another thread or stream count only if none
    /// was chosen.
    fn of_no_event(&self) -> u64 {
        let counts = self.assembler.counts();
        let broken = counts.malformed + counts.truncated + counts.oversize;
        let others = if self.chosen { 0 } else { counts.other_stream };
        counts.stray + counts.unnumbered + others + if self.from.is_some() { broken } else { 0 }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let port = self.port_counters();
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let edge = [
            ("dropped_by_kernel", since(port.dropped, self.before.dropped)),
            ("foreign", since(port.foreign, self.before.foreign)),
        ];
        self.assembler.counts().list().into_iter().chain(edge).collect()
    }
}
