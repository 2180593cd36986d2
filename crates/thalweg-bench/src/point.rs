//! What a measurement says: points with their figures, and the machine they were taken on.

use crate::cpu::Cpu;
use crate::host::Host;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything one command measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// What kind of file this is: [`Report::FORMAT`].
    pub format: String,
    /// The instrument: `latency`, `bandwidth`, …
    pub instrument: String,
    /// The command as it was given.
    pub command_line: Vec<String>,
    /// When it began, UTC (RFC 3339).
    pub began: String,
    /// The asking end.
    pub host: Host,
    /// The other end, where it is another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<Host>,
    /// In the order they were taken.
    pub points: Vec<Point>,
    /// What makes the figures less certain: steal, throttling, spread above 10 %.
    pub warnings: Vec<String>,
}

impl Report {
    /// What [`Report::format`] says.
    pub const FORMAT: &str = "thalweg-bench/1";
}

/// What tells a point from the others of its report, and what it is compared by.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// What carries the bytes: `tcp`, `udp`, `shm`, `memory`, `file`, `loopback`, `veth`.
    pub link: String,
    /// By which call or in which way: `write`, `sendfile`, `mlock`, …
    pub method: String,
    /// Bytes in a message, a block, a range.
    pub size: u64,
    /// What else sets it apart: `socket_buffer`, `pages`, `rate`, …
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub settings: BTreeMap<String, String>,
}

impl Key {
    /// A point without further settings.
    pub fn new(link: &str, method: &str, size: u64) -> Self {
        Self { link: link.to_owned(), method: method.to_owned(), size, settings: BTreeMap::new() }
    }

    /// One more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.insert(name.to_owned(), value.to_string());
        self
    }
}

/// One point.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// Which.
    #[serde(flatten)]
    pub key: Key,
    /// The medians over the repeats.
    #[serde(flatten)]
    pub figures: Figures,
    /// From the least to the greatest principal figure (latency p50, or else goodput), in percent of the median.
    pub spread_percent: f64,
    /// The figures of each repeat.
    pub repeats: Vec<Figures>,
    /// What is to be known of this point: a method that was not to be had, what stands in for what.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Why there are no figures, or not of all repeats.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// What was measured. What an instrument does not measure is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Time of one operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// Payload bits per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_bits_per_second: Option<f64>,
    /// Messages per second that were to be sent, where that was fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_per_second: Option<f64>,
    /// Messages, fragments or operations per second that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_second: Option<f64>,
    /// Goodput in percent of what the link can carry, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent_of_line_rate: Option<f64>,
    /// Times each payload byte was copied, both ends together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_per_byte: Option<f64>,
    /// System calls for 10⁶ payload bytes, both ends together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_megabyte: Option<f64>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The most of the file that was measured that was in the page cache when it was looked, in bytes; where it should
    /// not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_bytes: Option<f64>,
    /// What did not arrive, counted end to end, where a link may lose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// Time that the hypervisor took away meanwhile, in percent of one processor.
    pub steal_percent: f64,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them took no longer.
    pub p50: f64,
    /// 90 of 100.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// How many there were.
    pub count: u64,
}

impl Latency {
    /// For nanoseconds up to an hour (longer ones count as an hour), made before anything is measured.
    pub(crate) fn histogram() -> Histogram<u64> {
        Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are in range")
    }

    /// From a histogram of nanoseconds, each divided by `divisor`: 2 makes half a round trip of a whole one.
    pub fn of(histogram: &Histogram<u64>, divisor: f64) -> Self {
        let scale = 1e-3 / divisor;
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 * scale;
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 * scale,
            mean: histogram.mean() * scale,
            count: histogram.len(),
        }
    }
}

/// Messages that were sent and did not arrive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Sent.
    pub sent: u64,
    /// Arrived, duplicates not counted.
    pub received: u64,
}

impl Loss {
    /// In percent of what was sent.
    pub fn percent(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 100.0 * self.sent.saturating_sub(self.received) as f64 / self.sent as f64 }
    }
}

impl Figures {
    /// What a point is judged by: the median latency, or else the goodput, or else the rate.
    pub fn principal(&self) -> Option<f64> {
        self.latency_us.map(|latency| latency.p50).or(self.goodput_bits_per_second).or(self.messages_per_second)
    }

    /// The median of each figure, over repeats that may lack some.
    pub fn median(repeats: &[Self]) -> Self {
        let of = |get: &dyn Fn(&Self) -> Option<f64>| median(repeats.iter().filter_map(get).collect());
        let latency = |get: fn(&Latency) -> f64| of(&|one| one.latency_us.as_ref().map(get)).unwrap_or(0.0);
        let cpu = |get: fn(&Cpu) -> Option<f64>| of(&|one| one.cpu.as_ref().and_then(get));
        let sum = |get: fn(&Loss) -> u64| repeats.iter().filter_map(|one| one.loss.as_ref()).map(get).sum();
        Self {
            latency_us: repeats.iter().any(|one| one.latency_us.is_some()).then(|| Latency {
                p50: latency(|l| l.p50),
                p90: latency(|l| l.p90),
                p99: latency(|l| l.p99),
                p999: latency(|l| l.p999),
                max: latency(|l| l.max),
                mean: latency(|l| l.mean),
                count: repeats.iter().filter_map(|one| one.latency_us).map(|l| l.count).sum(),
            }),
            goodput_bits_per_second: of(&|one| one.goodput_bits_per_second),
            offered_per_second: of(&|one| one.offered_per_second),
            messages_per_second: of(&|one| one.messages_per_second),
            percent_of_line_rate: of(&|one| one.percent_of_line_rate),
            copies_per_byte: of(&|one| one.copies_per_byte),
            system_calls_per_megabyte: of(&|one| one.system_calls_per_megabyte),
            cpu: repeats.iter().any(|one| one.cpu.is_some()).then(|| Cpu {
                process_percent: cpu(|c| Some(c.process_percent)).unwrap_or(0.0),
                system_percent: cpu(|c| Some(c.system_percent)).unwrap_or(0.0),
                seconds_per_gigabyte: cpu(|c| c.seconds_per_gigabyte),
                sender_percent: cpu(|c| c.sender_percent),
                receiver_percent: cpu(|c| c.receiver_percent),
            }),
            page_cache_bytes: of(&|one| one.page_cache_bytes),
            loss: repeats
                .iter()
                .any(|one| one.loss.is_some())
                .then(|| Loss { sent: sum(|loss| loss.sent), received: sum(|loss| loss.received) }),
            seconds: of(&|one| Some(one.seconds)).unwrap_or(0.0),
            steal_percent: of(&|one| Some(one.steal_percent)).unwrap_or(0.0),
        }
    }
}

impl Point {
    /// A point of these repeats.
    pub fn new(key: Key, repeats: Vec<Figures>, notes: Vec<String>, error: Option<String>) -> Self {
        let principal: Vec<f64> = repeats.iter().filter_map(Figures::principal).collect();
        Self {
            key,
            figures: Figures::median(&repeats),
            spread_percent: spread_percent(&principal),
            repeats,
            notes,
            error,
        }
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// From the least to the greatest, in percent of the median; 0 for fewer than two.
pub(crate) fn spread_percent(values: &[f64]) -> f64 {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match median(values.to_vec()) {
        Some(median) if values.len() > 1 && median > 0.0 => 100.0 * (greatest - least) / median,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_median_of_its_repeats_and_says_how_far_apart_they_lie() {
        let repeat = |gbps: f64| Figures { goodput_bits_per_second: Some(gbps * 1e9), ..Figures::default() };
        let point =
            Point::new(Key::new("tcp", "write", 1), vec![repeat(9.0), repeat(12.0), repeat(10.0)], vec![], None);
        assert_eq!(point.figures.goodput_bits_per_second, Some(10e9));
        assert!((point.spread_percent - 30.0).abs() < 1e-9);
        assert_eq!(point.figures.latency_us, None);
    }

    #[test]
    fn latencies_come_in_microseconds_and_halves_of_round_trips() {
        let mut histogram = Histogram::new(3).unwrap();
        (1..=1000).for_each(|n| histogram.record(n * 1000).unwrap());
        let latency = Latency::of(&histogram, 2.0);
        assert!((latency.p50 - 250.0).abs() < 1.0 && (latency.max - 500.0).abs() < 1.0, "{latency:?}");
        assert_eq!(latency.count, 1000);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let key = Key::new("shm", "copy", 64).with("wait", "poll");
        let point = Point::new(key, vec![Figures::default()], vec![], Some("it failed".into()));
        let text = serde_json::to_string(&point).unwrap();
        let back: Point = serde_json::from_str(&text).unwrap();
        assert_eq!((back.key, back.error), (point.key, point.error));
        assert!(text.starts_with(r#"{"link":"shm","method":"copy","size":64,"settings":{"wait":"poll"}"#), "{text}");
    }
}
