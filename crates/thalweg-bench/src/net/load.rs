//! Latency under load: messages are sent when they are due, regardless of those before.
//!
//! A conversation measures only as fast as it is answered: while the link is held up it sends nothing, and the waiting
//! time that further messages would have had is never seen (*coordinated omission*, Gil Tene, "How NOT to Measure
//! Latency", 2013). Here each message has a time at which it is due, and its latency counts from then, even if it was
//! sent late.

use super::control::{Watchdog, Work};
use super::datagram::MAX_UDP_PAYLOAD_BYTES;
use super::exchange::MIN_STAMPED_BYTES;
use super::latency::{Net, combine_counters, mark_measurement_start, round_trip_histogram};
use super::{Ends, Exchange, Path, Phase};
use crate::drive::{Instrument, Stop};
use crate::options::Timing;
use crate::plan::InstrumentOptions;
use crate::point::{Figures, Key, Latency, Loss};
use crate::{BenchError, Clock, Host, Sizes};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// Options of `thalweg bench under-load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) path: Path,
    /// Bytes in a message
    #[arg(short = 'l', long, visible_alias = "size", value_name = "BYTES", default_value = "64")]
    pub(crate) sizes: Sizes,
    /// Offered loads, in percent of the messages per second that a conversation of one message at a time reaches
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "10,25,50,75,90,100,150,200")]
    pub(crate) load: Vec<f64>,
    /// Offered loads in messages per second, in place of --load
    #[arg(long, value_name = "HZ", value_delimiter = ',', conflicts_with = "load")]
    pub(crate) rate: Vec<f64>,
    /// Times at which messages are due: at equal intervals, or at random with the same mean (Poisson)
    #[arg(long, value_enum, default_value = "constant")]
    pub(crate) arrivals: Arrivals,
    #[command(flatten)]
    pub(crate) timing: Timing,
    #[command(flatten)]
    pub(crate) ends: Ends,
}

/// Distribution of messages over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Evenly
    Constant,
    /// Independently of each other
    Poisson,
}

/// Bytes that may be in flight at a time, or one message: fewer than any socket's buffer, so that neither end ever
/// waits in a send for the other to receive. A message that is due while the limit is reached is sent late, which
/// counts.
const MAX_BYTES_IN_FLIGHT: usize = 64 << 10;

/// Longest wait for answers at the end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        let percent: Vec<Load> = self.load.iter().map(|percent| Load::Percent(*percent)).collect();
        let absolute: Vec<Load> = self.rate.iter().map(|rate| Load::Rate(*rate)).collect();
        let loads = if absolute.is_empty() { percent } else { absolute };
        if loads.iter().any(|load| !load.is_valid_load()) {
            return Err(BenchError::Usage(
                "a load is a number above 0, and at most 10⁹ messages per second".to_owned(),
            ));
        }
        let net = Net::new(&self.path, &self.ends, &self.sizes)?;
        let possible_sizes = MIN_STAMPED_BYTES..=MAX_UDP_PAYLOAD_BYTES as u64;
        if let Some(key) = net.point_keys().iter().find(|key| key.link == "udp" && !possible_sizes.contains(&key.size))
        {
            return Err(BenchError::Usage(format!(
                "under load over udp each message needs its number and a datagram: {MIN_STAMPED_BYTES} to {MAX_UDP_PAYLOAD_BYTES} bytes, not {}",
                key.size
            )));
        }
        Ok(Box::new(UnderLoad { net, loads, arrivals: self.arrivals, alone: BTreeMap::new() }))
    }

    fn peer_host(&self) -> Option<&str> {
        self.ends.peer.as_deref()
    }
}

#[derive(Debug, Clone, Copy)]
enum Load {
    Percent(f64),
    Rate(f64),
}

impl Load {
    fn is_valid_load(self) -> bool {
        let (Self::Percent(number) | Self::Rate(number)) = self;
        number > 0.0 && number <= 1e9
    }

    fn setting_name_and_value(self) -> (&'static str, String) {
        match self {
            Self::Percent(percent) => ("load", format!("{percent} %")),
            Self::Rate(rate) => ("rate", format!("{rate} Hz")),
        }
    }
}

struct UnderLoad {
    net: Net,
    loads: Vec<Load>,
    arrivals: Arrivals,
    /// Messages per second of a conversation with one message at a time, of which loads are percentages.
    alone: BTreeMap<Key, f64>,
}

impl Instrument for UnderLoad {
    fn point_keys(&self) -> Vec<Key> {
        self.net
            .point_keys()
            .iter()
            .flat_map(|key| self.loads.iter().map(move |load| self.key_under_load(key, *load)))
            .collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let load = self
            .loads
            .iter()
            .find(|load| key.settings.get(load.setting_name_and_value().0) == Some(&load.setting_name_and_value().1));
        let load = *load.ok_or_else(|| BenchError::Usage("no such load".to_owned()))?;
        let mut route = key.clone();
        route.settings.remove("load");
        let alone = self.alone.get(&route).copied();
        let arrivals = self.arrivals;
        let (figures, alone) = self.net.measure_exchange(key, Work::Answer, |other, exchange, job, clock| {
            let found = measure_rate_alone(exchange, clock, timing.warmup.max(Duration::from_millis(50)), stop)?;
            let alone = alone.unwrap_or(found);
            let rate = match load {
                Load::Percent(percent) => alone * percent / 100.0,
                Load::Rate(rate) => rate,
            };
            let before = mark_measurement_start(exchange)?;
            let schedule = Schedule::new(rate, arrivals);
            let room = (MAX_BYTES_IN_FLIGHT / job.size).clamp(1, 16);
            let observed =
                offer_messages(exchange, clock, schedule, room, timing.min_time, job.link.may_lose_messages(), stop)?;
            exchange.send_message(Phase::End)?;
            exchange.receive_message()?;
            exchange.wait_for_delivery()?;
            let ours = (exchange.counters() - before.1, before.0.used_since());
            let done = other.receive_counters()?;
            let arrived = observed.histogram.len();
            if arrived == 0 {
                return Err(BenchError::Stopped);
            }
            let mut figures = combine_counters(job, ours, done, other.is_same_host(), 2 * (arrived + 1) * key.size);
            figures.latency_us = Some(Latency::from_histogram(&observed.histogram, 2.0));
            figures.offered_per_second = Some(rate);
            figures.messages_per_second = Some(arrived as f64 / observed.seconds);
            figures.goodput_bits_per_second = Some(arrived as f64 * key.size as f64 * 8.0 / observed.seconds);
            figures.loss = job.link.may_lose_messages().then_some(Loss { sent: observed.sent, received: arrived });
            Ok((figures, alone))
        })?;
        self.alone.insert(route, alone);
        Ok(figures)
    }

    fn point_notes(&self, _key: &Key) -> Vec<String> {
        let polls = "the asking end never sleeps: its processor time is that of waiting".to_owned();
        self.net.point_notes().into_iter().chain([polls]).collect()
    }

    fn outside_processes(&self) -> Vec<u32> {
        self.net.outside_processes()
    }

    fn peer_host(&self) -> Option<Host> {
        self.net.host.clone()
    }
}

impl UnderLoad {
    fn key_under_load(&self, point: &Key, load: Load) -> Key {
        let (name, value) = load.setting_name_and_value();
        let key = point.clone().with_setting(name, value);
        if self.arrivals == Arrivals::Poisson { key.with_setting("arrivals", "poisson") } else { key }
    }
}

/// Exchanges one message at a time; returns the messages per second.
fn measure_rate_alone(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    duration: Duration,
    stop: &Stop,
) -> Result<f64, BenchError> {
    let (begun, mut count) = (clock.read_counter(), 0u64);
    loop {
        exchange.send_message(Phase::Ordinary)?;
        exchange.receive_message()?;
        count += 1;
        let seconds = clock.elapsed_nanos(begun, clock.read_counter()) as f64 * 1e-9;
        if seconds >= duration.as_secs_f64() || stop.is_requested() {
            return Ok(count as f64 / seconds);
        }
    }
}

struct Observed {
    histogram: Histogram<u64>,
    sent: u64,
    /// Time from the first due message to the last one that arrived, or to the end.
    seconds: f64,
}

/// Sends messages when they are due and receives answers, until the time is over; then only receives.
fn offer_messages(
    exchange: &mut dyn Exchange,
    clock: &Clock,
    mut schedule: Schedule,
    room: usize,
    duration: Duration,
    may_lose: bool,
    stop: &Stop,
) -> Result<Observed, BenchError> {
    let mut observed = Observed { histogram: round_trip_histogram(), sent: 0, seconds: 0.0 };
    // Number and time of the messages that were sent and not answered, in order.
    let mut in_flight = VecDeque::with_capacity(room);
    let duration = duration.as_nanos() as f64;
    let mut watchdog = Watchdog::default();
    let begun = clock.read_counter();
    let mut due = schedule.next_due_nanos();
    loop {
        let now = clock.elapsed_nanos(begun, clock.read_counter()) as f64;
        if !in_flight.is_empty() && exchange.has_pending_message()? {
            exchange.receive_message()?;
            let now = clock.elapsed_nanos(begun, clock.read_counter()) as f64;
            let number = exchange.last_number_received();
            // Messages sent before the answered one, and not answered, are lost.
            while let Some((sent, at)) = in_flight.pop_front() {
                if number.is_none_or(|number| number == sent) {
                    observed.histogram.saturating_record((now - at) as u64);
                    observed.seconds = now * 1e-9;
                    break;
                }
                if number.is_some_and(|number| number < sent) {
                    in_flight.push_front((sent, at));
                    break;
                }
            }
            watchdog = Watchdog::default();
            continue;
        }
        let over = now >= duration || stop.is_requested();
        if over && (in_flight.is_empty() || now >= duration + ANSWER_TIMEOUT.as_nanos() as f64) {
            observed.seconds = observed.seconds.max(duration.min(now) * 1e-9);
            return Ok(observed);
        }
        if !over && now >= due && in_flight.len() < room {
            exchange.set_next_number(observed.sent);
            exchange.send_message(Phase::Ordinary)?;
            exchange.flush_pending()?;
            in_flight.push_back((observed.sent, due));
            observed.sent += 1;
            due = schedule.next_due_nanos();
            continue;
        }
        // A link that may lose messages does not hold up later ones for ever.
        if may_lose && in_flight.len() == room && in_flight.front().is_some_and(|(_, at)| now - at > duration.max(1e9))
        {
            in_flight.pop_front();
        }
        watchdog.count_empty_poll("waiting for answers under load")?;
    }
}

/// Times at which messages are due, in nanoseconds since the beginning.
struct Schedule {
    at: f64,
    mean: f64,
    random: Option<u64>,
}

impl Schedule {
    fn new(rate: f64, arrivals: Arrivals) -> Self {
        // Any seed will do; the same one makes runs alike.
        Self { at: 0.0, mean: 1e9 / rate, random: (arrivals == Arrivals::Poisson).then_some(0) }
    }

    fn next_due_nanos(&mut self) -> f64 {
        let due = self.at;
        let gap = match &mut self.random {
            None => 1.0,
            Some(state) => {
                // Exponential gaps by inversion.
                *state = state.wrapping_add(GOLDEN_GAMMA);
                let uniform = ((mix_bits(*state) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                -uniform.ln()
            }
        };
        self.at += gap * self.mean;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_have_the_requested_rate() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let mut schedule = Schedule::new(1e6, arrivals);
            let times: Vec<f64> = (0..100_000).map(|_| schedule.next_due_nanos()).collect();
            assert!(times.is_sorted() && times[0] == 0.0);
            let mean = times[99_999] / 99_999.0;
            assert!((mean - 1000.0).abs() < 15.0, "{arrivals:?}: {mean}");
            let even = times.windows(2).all(|pair| (pair[1] - pair[0] - 1000.0).abs() < 1e-3);
            assert_eq!(even, arrivals == Arrivals::Constant);
        }
    }
}
