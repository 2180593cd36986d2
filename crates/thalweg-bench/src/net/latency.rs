//! Ping-pong: a message there, one as long back, and half the time that took.

use super::control::{Done, Job, Work};
use super::exchange::Tally;
use super::session::{Other, bind};
use super::steered::Steered;
use super::{Ends, Exchange, Link, Method, Path, Phase, Place, Way, points};
use crate::cpu::{Cpu, Used};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::point::{Figures, Key, Latency, Loss};
use crate::{BenchError, Clock, Host, Sizes, Usage};
use hdrhistogram::Histogram;
use std::time::Duration;
use thalweg_netns::Network;

/// The options.
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

impl Options {
    pub(crate) fn instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Ok(Box::new(PingPong { net: Net::new(&self.path, &self.ends, &self.sizes)? }))
    }
}

/// Bytes of an Ethernet frame's header.
const ETHERNET: u32 = 14;

/// What the instruments of the network have in common: their points, and the other end.
pub(super) struct Net {
    points: Vec<(Key, Way)>,
    /// Bytes of a point's size that are no message's.
    headers: u64,
    path: Path,
    peer: Option<String>,
    /// The other end, while it waits for a job, and where it is.
    pub(super) other: Option<(Place, Other)>,
    pub(super) host: Option<Host>,
    pub(super) clock: Clock,
    /// A network of our own, as it was last asked for.
    own: Option<Own>,
}

/// A network of our own, with both ends in it.
enum Own {
    Steered(Steered),
    Cable(Network),
}

impl Own {
    /// None where the ends are where this program is.
    fn at(place: Place, mtu: u32) -> Result<Option<Self>, BenchError> {
        match place {
            Place::Here => Ok(None),
            Place::Steered(cpu) => Ok(Some(Self::Steered(Steered::to(cpu)?))),
            Place::Cable => Ok(Some(Self::Cable(Network::new(2, mtu).map_err(BenchError::network)?))),
        }
    }

    /// Puts the calling thread at the asking end.
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
            && points.iter().all(|(_, way)| way.link.is_shared())
        {
            let what = "is for two processes of one host: leave out --peer";
            return Err(BenchError::Usage(format!("--link {} {what}", first.link.name())));
        }
        // Over the network what cannot be is left out, unless it was all that was asked for.
        let points = points.into_iter().filter(|(_, way)| ends.peer.is_none() || !way.link.is_shared()).collect();
        // One that is not there is said once, before anything is measured.
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

    /// Sizes are those of frames, with so many bytes of headers.
    pub(super) fn in_frames(self, headers: u64) -> Self {
        Self { headers, ..self }
    }

    /// Of a cable of our own: what frames need, and what Ethernet has otherwise.
    fn mtu(&self) -> u32 {
        let longest = self.points.iter().map(|(key, _)| key.size).max().filter(|_| self.headers > 0);
        longest.map_or(1500, |longest| u32::try_from(longest).unwrap_or(u32::MAX).saturating_sub(ETHERNET).max(1500))
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.points.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Measures once: `measure` has an exchange with the other end, on a thread that is bound as the point wants it.
    /// After an error the other end is reached anew, since nobody knows what it waits for.
    pub(super) fn measure<T: Send>(
        &mut self,
        key: &Key,
        work: Work,
        measure: impl FnOnce(&mut Other, &mut dyn Exchange, &Job, &Clock) -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        let way = self.points.iter().find(|(one, _)| same_way(one, key)).map(|(_, way)| way);
        let way = way.ok_or_else(|| BenchError::Usage("no such point".to_owned()))?;
        let job = Job {
            link: way.link,
            method: way.method,
            work,
            size: usize::try_from(key.size.saturating_sub(self.headers)).unwrap_or(usize::MAX),
            wait: way.wait,
            socket_buffer: way.socket_buffer,
            congestion: self.path.congestion.clone().filter(|_| way.link == Link::Tcp),
            cpu: way.cpu.and_then(|cpu| cpu.serving),
            check_data: self.path.check_data,
            listens: None,
            between: None,
        };
        let asking = way.cpu.and_then(|cpu| cpu.asking);
        let place = way.place;
        let kept = self.other.take().filter(|(at, _)| *at == place).map(|(_, other)| other);
        if kept.is_none() {
            self.own = Own::at(place, self.mtu())?;
        }
        let (own, peer, clock) = (self.own.as_ref(), self.peer.as_deref(), &self.clock);
        let (measured, other) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                own.map_or(Ok(()), Own::enter)?;
                let reach = || own.map_or_else(|| Other::reach(peer), Own::reach);
                let mut other = kept.map_or_else(reach, Ok)?;
                let measured = (|| {
                    bind(asking)?;
                    let mut exchange = other.begin(&job)?;
                    let measured = measure(&mut other, &mut *exchange, &job, clock);
                    // The other end may know better what went wrong: it saw it first.
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

/// Points of one way may differ in settings that an instrument adds.
fn same_way(way: &Key, point: &Key) -> bool {
    (&way.link, &way.method, way.size) == (&point.link, &point.method, point.size)
        && way.settings.iter().all(|(name, value)| point.settings.get(name) == Some(value))
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
            // The message that says that this is the end was carried too.
            let bytes = 2 * (histogram.len() + 1) * key.size;
            let mut figures = figures(job, ours, done, other.same_host(), bytes);
            figures.latency_us = Some(Latency::of(&histogram, 2.0));
            // As the papers compute it: the message, in the time it took one way.
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

/// Nanoseconds, up to a minute, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are in range")
}

/// Says that what comes now counts, once the other end has answered.
pub(super) fn mark(exchange: &mut dyn Exchange) -> Result<(Usage, Tally), BenchError> {
    exchange.send(Phase::Mark)?;
    exchange.receive()?;
    Ok((Usage::now(), exchange.tally()))
}

/// Goes to and fro for so long, and writes down each time in nanoseconds.
fn converse(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    lasting: Duration,
    stop: &Stop,
    into: &mut Option<(&mut Histogram<u64>, &mut u64)>,
) -> Result<(), BenchError> {
    let lasting = u64::try_from(lasting.as_nanos()).unwrap_or(u64::MAX);
    let begun = clock.raw();
    loop {
        let sent = clock.raw();
        exchange.send(Phase::Ordinary)?;
        exchange.receive()?;
        let back = clock.raw();
        if let Some((histogram, _)) = into {
            histogram.saturating_record(clock.nanos(sent, back));
        }
        if clock.nanos(begun, back) >= lasting || stop.pressed() {
            return Ok(());
        }
    }
}

/// What both ends counted, put together.
pub(super) fn figures(job: &Job, ours: (Tally, Used), done: Done, same_host: bool, bytes: u64) -> Figures {
    let (tally, asking) = ours;
    let used = asking.with(done.used, same_host);
    let percent = |end: Used| (end.wall > 0.0).then(|| 100.0 * end.process / end.wall);
    let per_byte = |count: u64| (bytes > 0).then(|| count as f64 / bytes as f64);
    Figures {
        copies_per_byte: per_byte(tally.copied + done.tally.copied),
        // Thalweg's links do not count theirs.
        system_calls_per_megabyte: per_byte(tally.calls + done.tally.calls)
            .map(|calls| calls * 1e6)
            .filter(|_| job.method != Method::Verbs),
        cpu: Some(Cpu { sender_percent: percent(asking), receiver_percent: percent(done.used), ..used.cpu(bytes) }),
        seconds: used.wall,
        steal_percent: if used.wall > 0.0 { 100.0 * used.steal / used.wall } else { 0.0 },
        ..Figures::default()
    }
}
