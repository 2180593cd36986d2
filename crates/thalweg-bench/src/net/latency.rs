//! Ping-pong: a message and an answer of the same length, and half the time of the round trip.

use super::control::{Done, Job, Work};
use super::exchange::Tally;
use super::session::{Other, bind_to_processor};
use super::steered::Steered;
use super::{Ends, Exchange, Link, Method, Path, Phase, Place, Route, Wait, requested_points};
use crate::cpu::{Cpu, Used};
use crate::drive::{Instrument, Stop};
use crate::options::{Cpus, Timing};
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency, Loss};
use crate::{BenchError, Clock, Host, Sizes, Usage};
use hdrhistogram::Histogram;
use rustix::thread::CpuSet;
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

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Ok(Box::new(PingPong { net: Net::new(&self.path, &self.ends, &self.sizes)? }))
    }

    fn peer_host(&self) -> Option<&str> {
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
    /// Process of the other end, if it is on this host and this one did not start it.
    outside: Option<u32>,
    /// Processors of the ends of the last point, if they were not requested.
    placed: Option<Cpus>,
}

/// Network of our own that contains both ends.
enum OwnNetwork {
    Steered(Steered),
    Cable(Network),
}

impl OwnNetwork {
    /// Makes the network for a place; `None` if the ends use the network in which this program was started.
    fn for_place(place: Place, mtu: u32) -> Result<Option<Self>, BenchError> {
        match place {
            Place::Here => Ok(None),
            Place::Steered(cpu) => Ok(Some(Self::Steered(Steered::on_processor(cpu)?))),
            Place::Cable => Ok(Some(Self::Cable(Network::new(2, mtu).map_err(BenchError::network_error)?))),
        }
    }

    /// Moves the calling thread to the asking end.
    fn enter_asking_end(&self) -> Result<(), BenchError> {
        match self {
            Self::Steered(steered) => steered.enter_namespace(),
            Self::Cable(network) => network.enter_host(0).map_err(BenchError::network_error),
        }
    }

    /// Starts a process at the serving end.
    fn start_serving_end(&self) -> Result<Other, BenchError> {
        match self {
            Self::Steered(_) => Other::connect_or_start(None),
            Self::Cable(network) => {
                let other =
                    network.run_on_host(1, || Other::connect_or_start(None)).map_err(BenchError::network_error)??;
                Ok(other.with_addresses([0, 1].map(|host| Network::host_address(host).into())))
            }
        }
    }
}

impl Net {
    pub(super) fn new(path: &Path, ends: &Ends, sizes: &Sizes) -> Result<Self, BenchError> {
        let points = requested_points(path, ends, sizes)?;
        if let (Some(_), Some((_, first))) = (&ends.peer, points.first())
            && points.iter().all(|(_, route)| route.link.is_shared_memory())
        {
            let what = "is for two processes of one host: leave out --peer";
            return Err(BenchError::Usage(format!("--link {} {what}", first.link.display_name())));
        }
        // Over the network, impossible links are left out, unless only they were requested.
        let points =
            points.into_iter().filter(|(_, route)| ends.peer.is_none() || !route.link.is_shared_memory()).collect();
        // An unreachable peer is reported once, before anything is measured.
        let other = ends.peer.as_deref().map(|peer| Other::connect_or_start(Some(peer))).transpose()?;
        Ok(Self {
            points,
            headers: 0,
            path: path.clone(),
            peer: ends.peer.clone(),
            other: other.map(|other| (Place::Here, other)),
            host: None,
            clock: Clock::new(),
            own: None,
            outside: None,
            placed: None,
        })
    }

    /// Sets that sizes are those of frames, with `headers` bytes of headers each.
    pub(super) fn with_frame_headers(self, headers: u64) -> Self {
        Self { headers, ..self }
    }

    /// Returns the MTU of a cable of our own: what the frames need, or at least Ethernet's default.
    fn cable_mtu_bytes(&self) -> u32 {
        let longest = self.points.iter().map(|(key, _)| key.size).max().filter(|_| self.headers > 0);
        longest.map_or(1500, |longest| {
            u32::try_from(longest).unwrap_or(u32::MAX).saturating_sub(ETHERNET_HEADER_BYTES).max(1500)
        })
    }

    pub(super) fn point_keys(&self) -> Vec<Key> {
        self.points.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Returns remarks on the last point.
    pub(super) fn point_notes(&self) -> Vec<String> {
        let Some(Cpus { asking: Some(asking), serving: Some(serving) }) = self.placed else { return Vec::new() };
        vec![format!("both ends poll, and have a processor each: {asking} and {serving} (-A chooses others)")]
    }

    /// Returns processes of this host that belong to the measurement although this one did not start them.
    pub(super) fn outside_processes(&self) -> Vec<u32> {
        self.outside.into_iter().collect()
    }

    /// Measures once: `measure` gets an exchange with the other end, on a thread that is bound as the point requires.
    /// After an error a new connection to the other end is made, since its state is unknown.
    pub(super) fn measure_exchange<T: Send>(
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
        let (requested, place) = (route.cpu.unwrap_or_default(), route.place);
        let kept = self.other.take().filter(|(at, _)| *at == place).map(|(_, other)| other);
        if kept.is_none() {
            self.own = OwnNetwork::for_place(place, self.cable_mtu_bytes())?;
        }
        let (own, peer, clock) = (self.own.as_ref(), self.peer.as_deref(), &self.clock);
        let (measured, other, placed) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                own.map_or(Ok(()), OwnNetwork::enter_asking_end)?;
                let mut other = match (kept, own) {
                    (Some(kept), _) => kept,
                    (None, Some(own)) => own.start_serving_end()?,
                    (None, None) => Other::connect_or_start(peer)?,
                };
                let mut placed = requested;
                let measured = (|| {
                    placed = place_ends(&job, requested, other.is_same_host())?;
                    bind_to_processor(placed.asking)?;
                    let job = Job { cpu: placed.serving, ..job };
                    let mut exchange = other.begin_exchange(&job)?;
                    let measured = measure(&mut other, &mut *exchange, &job, clock);
                    // The other end may report the cause: it sees an error of its own first.
                    measured.map_err(|error| other.reported_error_or(error))
                })();
                Ok::<_, BenchError>((measured, other, placed))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        self.host = other.other_host();
        self.outside = other.outside_process();
        self.placed = Some(placed).filter(|placed| *placed != requested);
        if measured.is_ok() {
            self.other = Some((place, other));
        }
        measured
    }
}

/// Returns the processors of both ends. Ends that poll on one host get a processor each: on one processor, a round trip
/// would take as long as the scheduler's turns.
fn place_ends(job: &Job, requested: Cpus, same_host: bool) -> Result<Cpus, BenchError> {
    if job.wait != Wait::Poll || !same_host {
        return Ok(requested);
    }
    let refuse = |why: String| {
        let why = format!("{why}; give each end its own (-A 0/1), or let them sleep (--wait sleep)");
        Err(BenchError::Unavailable { what: "a processor for each of two ends that poll".to_owned(), why })
    };
    let allowed = rustix::thread::sched_getaffinity(None).map_err(BenchError::os_error("reading the processors"))?;
    let allowed: Vec<u32> = (0..CpuSet::MAX_CPU as u32).filter(|cpu| allowed.is_set(*cpu as usize)).collect();
    let free = |taken: Option<u32>| allowed.iter().copied().find(|cpu| Some(*cpu) != taken);
    let asking = requested.asking.or_else(|| free(requested.serving));
    let serving = requested.serving.or_else(|| free(asking));
    match (asking, serving) {
        (Some(asking), Some(serving)) if asking == serving => refuse(format!("both are bound to processor {asking}")),
        (Some(_), Some(_)) => Ok(Cpus { asking, serving }),
        _ => refuse(format!("this process may use processor {} only", allowed.first().copied().unwrap_or_default())),
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
    fn point_keys(&self) -> Vec<Key> {
        self.net.point_keys()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        self.net.measure_exchange(key, Work::Answer, |other, exchange, job, clock| {
            let mut histogram = round_trip_histogram();
            exchange_messages(exchange, clock, timing.warmup, stop, &mut None)?;
            let before = mark_measurement_start(exchange)?;
            let mut lost = 0;
            exchange_messages(exchange, clock, timing.min_time, stop, &mut Some((&mut histogram, &mut lost)))?;
            exchange.send_message(Phase::End)?;
            exchange.receive_message()?;
            exchange.wait_for_delivery()?;
            let ours = (exchange.counters() - before.1, before.0.used_since());
            let done = other.receive_counters()?;
            if histogram.is_empty() {
                return Err(BenchError::Stopped);
            }
            // The end message was carried too.
            let bytes = 2 * (histogram.len() + 1) * key.size;
            let mut figures = combine_counters(job, ours, done, other.is_same_host(), bytes);
            figures.latency_us = Some(Latency::from_histogram(&histogram, 2.0));
            // As in the papers: the message size over the one-route time.
            let seconds = histogram.mean() * 0.5e-9;
            figures.goodput_bits_per_second = Some(key.size as f64 * 8.0 / seconds);
            figures.messages_per_second = Some(1.0 / seconds);
            figures.loss = job
                .link
                .may_lose_messages()
                .then_some(Loss { sent: histogram.len() + lost, received: histogram.len() });
            Ok(figures)
        })
    }

    fn point_notes(&self, _key: &Key) -> Vec<String> {
        self.net.point_notes()
    }

    fn outside_processes(&self) -> Vec<u32> {
        self.net.outside_processes()
    }

    fn peer_host(&self) -> Option<Host> {
        self.net.host.clone()
    }
}

/// Returns a histogram of nanoseconds, up to a minute, with three digits.
pub(super) fn round_trip_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are in range")
}

/// Announces that the measurement begins, and waits for the other end's answer.
pub(super) fn mark_measurement_start(exchange: &mut dyn Exchange) -> Result<(Usage, Tally), BenchError> {
    exchange.send_message(Phase::Mark)?;
    exchange.receive_message()?;
    Ok((Usage::read_counters(), exchange.counters()))
}

/// Exchanges messages for the time `duration`, and records each round trip in nanoseconds.
fn exchange_messages(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    duration: Duration,
    stop: &Stop,
    into: &mut Option<(&mut Histogram<u64>, &mut u64)>,
) -> Result<(), BenchError> {
    let duration = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let begun = clock.read_counter();
    loop {
        let sent = clock.read_counter();
        exchange.send_message(Phase::Ordinary)?;
        exchange.receive_message()?;
        let back = clock.read_counter();
        if let Some((histogram, _)) = into {
            histogram.saturating_record(clock.elapsed_nanos(sent, back));
        }
        if clock.elapsed_nanos(begun, back) >= duration || stop.is_requested() {
            return Ok(());
        }
    }
}

/// Combines the counters of both ends.
pub(super) fn combine_counters(job: &Job, ours: (Tally, Used), done: Done, same_host: bool, bytes: u64) -> Figures {
    let (tally, asking) = ours;
    let used = asking.combined_with(done.used, same_host);
    let [sender_percent, receiver_percent] =
        [asking, done.used].map(|end| (end.wall > 0.0).then(|| end.percent_of_wall(end.process)));
    let [copies_per_byte, calls_per_byte] = [tally.copied + done.tally.copied, tally.calls + done.tally.calls]
        .map(|count| (bytes > 0).then(|| count as f64 / bytes as f64));
    Figures {
        copies_per_byte,
        // Thalweg's links do not count their system calls.
        system_calls_per_megabyte: calls_per_byte.map(|calls| calls * 1e6).filter(|_| job.method != Method::Verbs),
        cpu: Some(Cpu { sender_percent, receiver_percent, ..used.processor_figures(bytes) }),
        seconds: used.wall,
        steal_percent: used.steal_percent(),
        starved_percent: (job.wait == Wait::Poll)
            .then(|| asking.percent_of_wall(asking.waited).max(done.used.percent_of_wall(done.used.waited))),
        peer_other_processes_percent: (!same_host).then(|| {
            let Used { system, steal, process, .. } = done.used;
            done.used.percent_of_wall((system - steal - process).max(0.0))
        }),
        ..Figures::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Job whose ends both poll.
    fn polling_job() -> Job {
        Job {
            link: Link::Shm,
            method: Method::Copy,
            work: Work::Answer,
            size: 1,
            wait: Wait::Poll,
            socket_buffer: None,
            congestion: None,
            cpu: None,
            check_data: false,
            listens: None,
            between: None,
        }
    }

    #[test]
    fn two_ends_that_poll_get_a_processor_each_or_are_refused_with_a_remedy() {
        let bound = |asking, serving| Cpus { asking, serving };
        let sleeping = Job { wait: Wait::Sleep, ..polling_job() };
        assert_eq!(place_ends(&sleeping, Cpus::default(), true).unwrap(), Cpus::default());
        assert_eq!(place_ends(&polling_job(), Cpus::default(), false).unwrap(), Cpus::default());
        let error = place_ends(&polling_job(), bound(Some(0), Some(0)), true).unwrap_err().to_string();
        assert!(error.contains("both are bound to processor 0") && error.contains("-A 0/1"), "{error}");
        // Processor binding belongs to a thread.
        std::thread::spawn(move || {
            bind_to_processor(Some(0)).unwrap();
            let error = place_ends(&polling_job(), Cpus::default(), true).unwrap_err().to_string();
            assert!(error.contains("may use processor 0 only"), "{error}");
            let placed = place_ends(&polling_job(), bound(Some(1), None), true).unwrap();
            assert_eq!(placed, bound(Some(1), Some(0)));
        })
        .join()
        .unwrap();
    }
}
