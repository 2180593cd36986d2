//! Ping-pong: a message and an answer of the same length, and half the time of the round trip.

use super::control::{Done, Job, Work};
use super::exchange::Tally;
use super::session::{Other, bind};
use super::steered::Steered;
use super::{Ends, Exchange, Link, Method, Path, Phase, Place, Route, points};
use crate::cpu::{Cpu, Used};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency, Loss};
use crate::{BenchError, Clock, Host, Sizes, Usage};
use hdrhistogram::Histogram;
use std::time::Duration;
use thalweg_sys::netns::Network;

/// Options of `thalweg bench latency`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) path: Path,
    /// Bytes in a message: 1, 64KiB, 1,1KiB, 1..128KiB:x2, 1KiB..8KiB:+1KiB
    #[arg(
        short = 'l',
        long,
        visible_alias = "size",
        value_name = "BYTES",
        default_value = "1,64,1KiB,8KiB,64KiB,128KiB"
    )]
    pub(crate) sizes: Sizes,
    #[command(flatten)]
    pub(crate) timing: Timing,
    #[command(flatten)]
    pub(crate) ends: Ends,
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Ok(Box::new(PingPong { net: Net::new(&self.path, &self.ends, &self.sizes)? }))
    }

    fn peer(&self) -> Option<&str> {
        self.ends.peer.as_deref()
    }
}

/// Length of an Ethernet header, in bytes.
const ETHERNET_HEADER_BYTES: u32 = 14;

/// Common part of the network instruments: their points, and the other end.
pub(super) struct Net {
    points: Vec<(Key, Route)>,
    /// Bytes of a point's size that are headers, not message.
    headers: u64,
    path: Path,
    peer: Option<String>,
    /// Other end while it waits for a job, with its place.
    pub(super) other: Option<(Place, Other)>,
    pub(super) host: Option<Host>,
    pub(super) clock: Clock,
    /// Network of our own, as last requested.
    own: Option<OwnNetwork>,
}

/// Network of our own that contains both ends.
enum OwnNetwork {
    Steered(Steered),
    Cable(Network),
}

impl OwnNetwork {
    /// Makes the network for a place; `None` if the ends use the network in which this program was started.
    fn at(place: Place, mtu: u32) -> Result<Option<Self>, BenchError> {
        match place {
            Place::Here => Ok(None),
            Place::Steered(cpu) => Ok(Some(Self::Steered(Steered::to(cpu)?))),
            Place::Cable => Ok(Some(Self::Cable(Network::new(2, mtu).map_err(BenchError::network)?))),
        }
    }

    /// Moves the calling thread to the asking end.
    fn enter(&self) -> Result<(), BenchError> {
        match self {
            Self::Steered(steered) => steered.enter(),
            Self::Cable(network) => network.enter(0).map_err(BenchError::network),
        }
    }

    /// Starts a process at the serving end.
    fn reach(&self) -> Result<Other, BenchError> {
        match self {
            Self::Steered(_) => Other::reach(None),
            Self::Cable(network) => {
                let other = network.on(1, || Other::reach(None)).map_err(BenchError::network)??;
                Ok(other.between([0, 1].map(|host| Network::address(host).into())))
            }
        }
    }
}

impl Net {
    pub(super) fn new(path: &Path, ends: &Ends, sizes: &Sizes) -> Result<Self, BenchError> {
        let points = points(path, ends, sizes)?;
        if let (Some(_), Some((_, first))) = (&ends.peer, points.first())
            && points.iter().all(|(_, route)| route.link.is_shared())
        {
            let what = "is for two processes of one host: leave out --peer";
            return Err(BenchError::Usage(format!("--link {} {what}", first.link.name())));
        }
        // Over the network, impossible links are left out, unless only they were requested.
        let points = points.into_iter().filter(|(_, route)| ends.peer.is_none() || !route.link.is_shared()).collect();
        // An unreachable peer is reported once, before anything is measured.
        let other = ends.peer.as_deref().map(|peer| Other::reach(Some(peer))).transpose()?;
        Ok(Self {
            points,
            headers: 0,
            path: path.clone(),
            peer: ends.peer.clone(),
            other: other.map(|other| (Place::Here, other)),
            host: None,
            clock: Clock::new(),
            own: None,
        })
    }

    /// Sets that sizes are those of frames, with `headers` bytes of headers each.
    pub(super) fn in_frames(self, headers: u64) -> Self {
        Self { headers, ..self }
    }

    /// Returns the MTU of a cable of our own: what the frames need, or at least Ethernet's default.
    fn mtu(&self) -> u32 {
        let longest = self.points.iter().map(|(key, _)| key.size).max().filter(|_| self.headers > 0);
        longest.map_or(1500, |longest| {
            u32::try_from(longest).unwrap_or(u32::MAX).saturating_sub(ETHERNET_HEADER_BYTES).max(1500)
        })
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.points.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Measures once: `measure` gets an exchange with the other end, on a thread that is bound as the point requires.
    /// After an error a new connection to the other end is made, since its state is unknown.
    pub(super) fn measure<T: Send>(
        &mut self,
        key: &Key,
        work: Work,
        measure: impl FnOnce(&mut Other, &mut dyn Exchange, &Job, &Clock) -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let route = self.points.iter().find(|(one, _)| belongs_to_route(one, key)).map(|(_, route)| route);
        let route = route.ok_or_else(|| BenchError::Usage("no such point".to_owned()))?;
        let job = Job {
            link: route.link,
            method: route.method,
            work,
            size: usize::try_from(key.size.saturating_sub(self.headers)).unwrap_or(usize::MAX),
            wait: route.wait,
            socket_buffer: route.socket_buffer,
            congestion: self.path.congestion.clone().filter(|_| route.link == Link::Tcp),
            cpu: route.cpu.and_then(|cpu| cpu.serving),
            check_data: self.path.check_data,
            listens: None,
            between: None,
        };
        let asking = route.cpu.and_then(|cpu| cpu.asking);
        let place = route.place;
        let kept = self.other.take().filter(|(at, _)| *at == place).map(|(_, other)| other);
        if kept.is_none() {
            self.own = OwnNetwork::at(place, self.mtu())?;
        }
        let (own, peer, clock) = (self.own.as_ref(), self.peer.as_deref(), &self.clock);
        let (measured, other) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                own.map_or(Ok(()), OwnNetwork::enter)?;
                let mut other = match (kept, own) {
                    (Some(kept), _) => kept,
                    (None, Some(own)) => own.reach()?,
                    (None, None) => Other::reach(peer)?,
                };
                let measured = (|| {
                    bind(asking)?;
                    let mut exchange = other.begin(&job)?;
                    let measured = measure(&mut other, &mut *exchange, &job, clock);
                    // The other end may report the cause: it sees an error of its own first.
                    measured.map_err(|error| other.reason(error))
                })();
                Ok::<_, BenchError>((measured, other))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        self.host = other.host();
        if measured.is_ok() {
            self.other = Some((place, other));
        }
        measured
    }
}

/// Returns whether a point belongs to a route; the point may have more settings, which an instrument adds.
fn belongs_to_route(route: &Key, point: &Key) -> bool {
    (&route.link, &route.method, route.size) == (&point.link, &point.method, point.size)
        && route.settings.iter().all(|(name, value)| point.settings.get(name) == Some(value))
}

pub(super) struct PingPong {
    pub(super) net: Net,
}

impl Instrument for PingPong {
    fn keys(&self) -> Vec<Key> {
        self.net.keys()
    }

    fn measure(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        self.net.measure(key, Work::Answer, |other, exchange, job, clock| {
            let mut histogram = histogram();
            converse(exchange, clock, timing.warmup, stop, &mut None)?;
            let before = mark(exchange)?;
            let mut lost = 0;
            converse(exchange, clock, timing.min_time, stop, &mut Some((&mut histogram, &mut lost)))?;
            exchange.send(Phase::End)?;
            exchange.receive()?;
            exchange.finish()?;
            let ours = (exchange.tally() - before.1, before.0.used());
            let done = other.done()?;
            if histogram.is_empty() {
                return Err(BenchError::Stopped);
            }
            // The end message was carried too.
            let bytes = 2 * (histogram.len() + 1) * key.size;
            let mut figures = figures(job, ours, done, other.same_host(), bytes);
            figures.latency_us = Some(Latency::of(&histogram, 2.0));
            // As in the papers: the message size over the one-route time.
            let seconds = histogram.mean() * 0.5e-9;
            figures.goodput_bits_per_second = Some(key.size as f64 * 8.0 / seconds);
            figures.messages_per_second = Some(1.0 / seconds);
            figures.loss = job.link.loses().then_some(Loss { sent: histogram.len() + lost, received: histogram.len() });
            Ok(figures)
        })
    }

    fn peer(&self) -> Option<Host> {
        self.net.host.clone()
    }
}

/// Returns a histogram of nanoseconds, up to a minute, with three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are in range")
}

/// Announces that the measurement begins, and waits for the other end's answer.
pub(super) fn mark(exchange: &mut dyn Exchange) -> Result<(Usage, Tally), BenchError> {
    exchange.send(Phase::Mark)?;
    exchange.receive()?;
    Ok((Usage::now(), exchange.tally()))
}

/// Exchanges messages for the time `duration`, and records each round trip in nanoseconds.
fn converse(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    duration: Duration,
    stop: &Stop,
    into: &mut Option<(&mut Histogram<u64>, &mut u64)>,
) -> Result<(), BenchError> {
    let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let begun = clock.raw();
    loop {
        let sent = clock.raw();
        exchange.send(Phase::Ordinary)?;
        exchange.receive()?;
        let back = clock.raw();
        if let Some((histogram, _)) = into {
            histogram.saturating_record(clock.nanos(sent, back));
        }
        if clock.nanos(begun, back) >= duration || stop.pressed() {
            return Ok(());
        }
    }
}

/// Combines the counters of both ends.
pub(super) fn figures(job: &Job, ours: (Tally, Used), done: Done, same_host: bool, bytes: u64) -> Figures {
    let (tally, asking) = ours;
    let used = asking.with(done.used, same_host);
    let [sender_percent, receiver_percent] =
        [asking, done.used].map(|end| (end.wall > 0.0).then(|| end.percent_of_wall(end.process)));
    let [copies_per_byte, calls_per_byte] = [tally.copied + done.tally.copied, tally.calls + done.tally.calls]
        .map(|count| (bytes > 0).then(|| count as f64 / bytes as f64));
    Figures {
        copies_per_byte,
        // Thalweg's links do not count their system calls.
        system_calls_per_megabyte: calls_per_byte.map(|calls| calls * 1e6).filter(|_| job.method != Method::Verbs),
        cpu: Some(Cpu { sender_percent, receiver_percent, ..used.cpu(bytes) }),
        seconds: used.wall,
        steal_percent: used.steal_percent(),
        ..Figures::default()
    }
}
