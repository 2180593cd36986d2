//! Results of a measurement: points with their figures, and the machine on which they were taken.

use crate::cpu::Cpu;
use crate::doubt::{self, Conditions, Warning};
use crate::host::Host;
use crate::principal::Principal;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_text::plot::Provenance;

/// Everything that one command measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// File format: [`Report::FORMAT`].
    pub format: String,
    /// Instrument: `latency`, `bandwidth`, …
    pub instrument: String,
    /// Command line as it was given.
    pub command_line: Vec<String>,
    /// Time at which the measurement began, UTC (RFC 3339).
    pub began: String,
    /// Host of the asking end.
    pub host: Host,
    /// Host of the other end, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Host>,
    /// Points, in the order in which they were taken.
    pub points: Vec<Point>,
    /// Conditions that make the figures less certain, over all points: other processes, steal, throttling, spread.
    pub warnings: Vec<String>,
}

impl Report {
    /// Value of [`Report::format`].
    pub const FORMAT: &str = "thalweg-bench/1";

    /// Returns the origin of its figures.
    pub fn provenance(&self) -> Provenance {
        self.host.provenance(&format!("bench {}", self.instrument), &self.began, &self.command_line)
    }
}

/// Identity of a point within its report; points of two reports are compared by it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Carrier of the bytes: `tcp`, `udp`, `shm`, `memory`, `file`, `loopback`, `veth`.
    pub link: String,
    /// System call or method: `write`, `sendfile`, `mlock`, …
    pub method: String,
    /// Number of bytes in a message, a block, a range.
    pub size: u64,
    /// Further settings that distinguish the point: `socket_buffer`, `pages`, `rate`, …
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub settings: BTreeMap<String, String>,
}

impl Key {
    /// Returns the key of a point without further settings.
    pub fn new(link: &str, method: &str, size: u64) -> Self {
        Self { link: link.to_owned(), method: method.to_owned(), size, settings: BTreeMap::new() }
    }

    /// Adds one setting.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.insert(name.to_owned(), value.to_string());
        self
    }
}

/// One measured point.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// Identity of the point.
    #[serde(flatten)]
    pub key: Key,
    /// Medians over the repeats.
    #[serde(flatten)]
    pub figures: Figures,
    /// Distance from the least to the greatest principal figure of the instrument, in percent of the median.
    pub spread_percent: f64,
    /// Figures of each repeat.
    pub repeats: Vec<Figures>,
    /// Conditions that make the figures less certain, the worst of each kind over the repeats.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<Warning>,
    /// Remarks on this point: a method that was not available, a substitute that was measured in its place.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Reason why there are no figures, or not of all repeats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// Measured figures. A figure that an instrument does not measure is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Time of one operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// Payload bits per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bits_per_second: Option<f64>,
    /// Messages per second that were to be sent, if that was fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_second: Option<f64>,
    /// Messages, fragments or operations per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_second: Option<f64>,
    /// Goodput in percent of the capacity of the link, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_line_rate: Option<f64>,
    /// Number of times each payload byte was copied, both ends together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_per_byte: Option<f64>,
    /// System calls for 10⁶ payload bytes, both ends together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_megabyte: Option<f64>,
    /// Processor time used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Largest part of the measured file that was found in the page cache, in bytes; present for measurements during
    /// which the file should not be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_bytes: Option<f64>,
    /// Messages that did not arrive, counted end to end, on a link that may lose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Duration of the measurement, in seconds.
    pub seconds: f64,
    /// Time that the hypervisor took away during the measurement, in percent of one processor.
    pub steal_percent: f64,
    /// Time of other processes on this host during the measurement, in percent of one processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_processes_percent: Option<f64>,
    /// As `other_processes_percent`, on the host of the other end, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_other_processes_percent: Option<f64>,
    /// Time in which an end that polls was ready to run and did not, in percent, the worse of both ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starved_percent: Option<f64>,
}

/// Percentiles of a time, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median time.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Longest time.
    pub max: f64,
    /// Mean time.
    pub mean: f64,
    /// Number of samples.
    pub count: u64,
}

impl Latency {
    /// Returns a histogram for nanoseconds up to an hour (longer times count as an hour). To be made before measuring.
    pub(crate) fn new_histogram() -> Histogram<u64> {
        Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are in range")
    }

    /// Returns the percentiles of a histogram of nanoseconds, each divided by `divisor`: 2 turns a round trip into half
    /// of one.
    pub fn from_histogram(histogram: &Histogram<u64>, divisor: f64) -> Self {
        let scale = 1e-3 / divisor;
        let [p50, p90, p99, p999] =
            [0.5, 0.9, 0.99, 0.999].map(|quantile| histogram.value_at_quantile(quantile) as f64 * scale);
        Self {
            p50,
            p90,
            p99,
            p999,
            max: histogram.max() as f64 * scale,
            mean: histogram.mean() * scale,
            count: histogram.len(),
        }
    }

    /// Returns the median of each percentile, and the sum of the counts; `None` if there are no repeats.
    fn median_latency(repeats: &[Self]) -> Option<Self> {
        Some(Self {
            p50: median_by_figure(repeats, |one| Some(one.p50))?,
            p90: median_by_figure(repeats, |one| Some(one.p90))?,
            p99: median_by_figure(repeats, |one| Some(one.p99))?,
            p999: median_by_figure(repeats, |one| Some(one.p999))?,
            max: median_by_figure(repeats, |one| Some(one.max))?,
            mean: median_by_figure(repeats, |one| Some(one.mean))?,
            count: repeats.iter().map(|one| one.count).sum(),
        })
    }
}

/// Numbers of messages sent and received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Number of messages sent.
    pub sent: u64,
    /// Number of messages that arrived, duplicates not counted.
    pub received: u64,
}

impl Loss {
    /// Returns the loss in percent of the messages sent.
    pub fn lost_percent(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 100.0 * self.sent.saturating_sub(self.received) as f64 / self.sent as f64 }
    }

    fn sum_with(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, received: self.received + other.received }
    }
}

impl Figures {
    /// Returns the figure by which a point of this instrument is judged.
    pub fn principal_figure(&self, instrument: &str) -> Option<f64> {
        Principal::order_for(instrument).into_iter().find_map(|principal| principal.value_of(self))
    }

    /// Returns the median of each figure, over repeats that may lack some.
    pub fn median_figures(repeats: &[Self]) -> Self {
        let latencies: Vec<Latency> = repeats.iter().filter_map(|one| one.latency_us).collect();
        let cpus: Vec<Cpu> = repeats.iter().filter_map(|one| one.cpu).collect();
        Self {
            latency_us: Latency::median_latency(&latencies),
            goodput_bits_per_second: median_by_figure(repeats, |one| one.goodput_bits_per_second),
            offered_per_second: median_by_figure(repeats, |one| one.offered_per_second),
            messages_per_second: median_by_figure(repeats, |one| one.messages_per_second),
            percent_of_line_rate: median_by_figure(repeats, |one| one.percent_of_line_rate),
            copies_per_byte: median_by_figure(repeats, |one| one.copies_per_byte),
            system_calls_per_megabyte: median_by_figure(repeats, |one| one.system_calls_per_megabyte),
            cpu: Cpu::median_figures(&cpus),
            page_cache_bytes: median_by_figure(repeats, |one| one.page_cache_bytes),
            loss: repeats.iter().filter_map(|one| one.loss).reduce(Loss::sum_with),
            seconds: median_by_figure(repeats, |one| Some(one.seconds)).unwrap_or(0.0),
            steal_percent: median_by_figure(repeats, |one| Some(one.steal_percent)).unwrap_or(0.0),
            other_processes_percent: median_by_figure(repeats, |one| one.other_processes_percent),
            peer_other_processes_percent: median_by_figure(repeats, |one| one.peer_other_processes_percent),
            starved_percent: median_by_figure(repeats, |one| one.starved_percent),
        }
    }
}

impl Point {
    /// Adds the conditions during its repeats, and what its figures themselves say against them.
    pub(crate) fn with_conditions(mut self, conditions: &[Conditions]) -> Self {
        let repeats = self.repeats.iter().flat_map(|one| {
            let steal = doubt::steal_warning(one.steal_percent);
            let starved = one.starved_percent.and_then(doubt::starved_warning);
            let peer = one.peer_other_processes_percent.and_then(doubt::peer_host_warning);
            // In a short time only the processor time is uncertain.
            let short = one.cpu.and_then(|_| doubt::short_time_warning(one.seconds));
            [steal, starved, peer, short].into_iter().flatten()
        });
        let machine = conditions.iter().flat_map(Conditions::warnings);
        let spread = doubt::spread_warning(self.spread_percent);
        self.warnings = doubt::worst_warnings(repeats.chain(machine).chain(spread));
        self
    }

    /// Makes a point of an instrument from its repeats.
    pub fn new(instrument: &str, key: Key, repeats: Vec<Figures>, notes: Vec<String>, error: Option<String>) -> Self {
        let principal: Vec<f64> = repeats.iter().filter_map(|one| one.principal_figure(instrument)).collect();
        Self {
            key,
            figures: Figures::median_figures(&repeats),
            spread_percent: spread_percent(&principal),
            repeats,
            warnings: Vec::new(),
            notes,
            error,
        }
    }
}

/// Returns the median of one figure over the repeats that have it.
pub(crate) fn median_by_figure<T>(repeats: &[T], get: impl FnMut(&T) -> Option<f64>) -> Option<f64> {
    median_value(repeats.iter().filter_map(get).collect())
}

/// Returns the middle value, or the mean of the two in the middle; `None` for no values.
pub(crate) fn median_value(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Returns the distance from the least to the greatest value, in percent of the median; 0 for fewer than two values.
pub(crate) fn spread_percent(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match median_value(values.to_vec()) {
        Some(median) if values.len() > 1 && median > 0.0 => 100.0 * (greatest - least) / median,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_median_of_its_repeats_with_their_spread() {
        let repeat = |gbps: f64| Figures { goodput_bits_per_second: Some(gbps * 1e9), ..Figures::default() };
        let point = Point::new(
            "bandwidth",
            Key::new("tcp", "write", 1),
            vec![repeat(9.0), repeat(12.0), repeat(10.0)],
            vec![],
            None,
        );
        assert_eq!(point.figures.goodput_bits_per_second, Some(10e9));
        assert!((point.spread_percent - 30.0).abs() < 1e-9);
        assert_eq!(point.figures.latency_us, None);
    }

    #[test]
    fn latencies_come_in_microseconds_and_halves_of_round_trips() {
        let mut histogram = Histogram::new(3).unwrap();
        (1..=1000).for_each(|n| histogram.record(n * 1000).unwrap());
        let latency = Latency::from_histogram(&histogram, 2.0);
        assert!((latency.p50 - 250.0).abs() < 1.0 && (latency.max - 500.0).abs() < 1.0, "{latency:?}");
        assert_eq!(latency.count, 1000);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let key = Key::new("shm", "copy", 64).with_setting("wait", "poll");
        let point = Point::new("latency", key, vec![Figures::default()], vec![], Some("it failed".into()));
        let text = serde_json::to_string(&point).unwrap();
        let back: Point = serde_json::from_str(&text).unwrap();
        assert_eq!((back.key, back.error), (point.key, point.error));
        assert!(text.starts_with(r#"{"link":"shm","method":"copy","size":64,"settings":{"wait":"poll"}"#), "{text}");
    }
}
