//! Reports that nodes return at their end.

use crate::{LinkConfig, Wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_core::build::{COMPLETION_QUANTILES, Ledger, TimeUse, TriggerCounts, Verdict};
use thalweg_core::filter::Undecided;
use thalweg_link::Arrivals;
use thalweg_store::combine_reasons;
use thalweg_text::ByteSize;

/// Report of a source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Name of the source.
    pub name: String,
    /// Id of the source.
    pub source: String,
    /// Time that the source ran, in seconds.
    pub seconds: f64,
    /// Payload bytes taken from the device.
    pub bytes: u64,
    /// Fragments taken from the device.
    pub accepted: u64,
    /// Accepted fragments that were dropped because no slot was free.
    pub dropped_newest: u64,
    /// Accepted fragments that were dropped to make room.
    pub dropped_oldest: u64,
    /// Accepted fragments that the device lost before it was asked for them.
    #[serde(default)]
    pub lost_in_device: u64,
    /// Counters of a device that works by itself, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub device: BTreeMap<String, u64>,
    /// Fragments that the device was due to give at its rate, and that were not taken because all slots were full and
    /// the policy is `block`.
    #[serde(default)]
    pub not_taken: u64,
    /// Time for which the device waited in that way, in seconds.
    #[serde(default)]
    pub dead_seconds: f64,
    /// Frames that came from the device and belong to no event.
    #[serde(default)]
    pub of_no_event: u64,
    /// Number of times that the device had to wait.
    pub blocked: u64,
    /// Bytes copied by the device's code, and while sending.
    pub copied_bytes: u64,
    /// Processor time of the process, user and system.
    pub cpu_seconds: f64,
    /// Datagrams that arrived at the source's ports, if its links are of frames.
    #[serde(default, skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// Description of the source's arena: what it is made of, and what it is registered with.
    pub pages: String,
    /// Way in which the hot thread waited.
    pub wait: Wait,
}

/// Report of a builder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuilderReport {
    /// Name of the builder.
    pub name: String,
    /// Number of the run; 0 if nothing was recorded and no number was given.
    pub run: u32,
    /// Number of the builder among those of the run, from 0 on.
    pub builder: u32,
    /// Number of builders in the run.
    pub builders: u32,
    /// `COMPLETE` or `INCOMPLETE`.
    pub state: String,
    /// Reasons why the run is incomplete.
    pub reasons: Vec<String>,
    /// Directory of the run, if it was recorded.
    pub directory: Option<String>,
    /// Time from the start of the run to its end, in seconds.
    pub seconds: f64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments of the events that were built. Those that a trigger level rejected are not included, though they are
    /// counted in `bytes`.
    pub fragments: u64,
    /// Events closed.
    pub events: u64,
    /// Closed events that are incomplete.
    pub incomplete: u64,
    /// Number of times that fetching stopped for lack of a free block.
    pub stalls: u64,
    /// Total duration of these `stalls`, in seconds.
    pub stalled_seconds: f64,
    /// Payload bytes copied at the builder, by the kernel into this process or by the process itself.
    pub copied_bytes: u64,
    /// Processor time of this process, user and system.
    pub cpu_seconds: f64,
    /// Processor time of the sources, from their final counters.
    pub source_cpu_seconds: f64,
    /// Payload bytes that the sources copied, from their final counters.
    pub source_copied_bytes: u64,
    /// Datagrams that arrived at the builder's ports, if its links are of frames.
    #[serde(default, skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// Method by which blocks were written.
    pub recorder: Option<String>,
    /// Description of the blocks' arena: what it is made of, and what it is registered with.
    pub pages: String,
    /// Way in which the hot thread waited: a builder that polls has used a processor whether or not data came.
    pub wait: Wait,
    /// Figures of the run between its warm-up and its end.
    pub steady: Steady,
    /// File of `thalweg calibrate` from which the credit window was derived.
    pub calibrated: Option<String>,
    /// Credit window at the end; `None` if the window is constant.
    pub credit: Option<CreditReport>,
    /// Result of a calibration, if this was one.
    pub calibration: Option<Calibration>,
    /// Counts of the trigger levels; `None` if there are none.
    #[serde(default)]
    pub trigger: Option<TriggerReport>,
    /// Other builders that were left out while the run went on, if this builder assigned the events.
    #[serde(default)]
    pub left_out: Vec<LeftOutReport>,
    /// Time of the builder's thread during the run, by what it did or waited for.
    #[serde(default)]
    pub time_use: TimeUse,
    /// Final counters.
    pub ledger: Ledger,
}

/// Report of a builder that was left out because it died, hung or was cut off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftOutReport {
    /// Number of the builder.
    pub builder: u32,
    /// Number of the event from which on it received none.
    pub at_event: u64,
    /// Ranges of events assigned to it that it had not reported as closed: the first event, and their number.
    pub events: Vec<(u64, u64)>,
    /// Events that it had closed, by its last message.
    pub closed: u64,
    /// Fragments delivered to it, by the sources' counters; this includes what is on its disk.
    pub delivered: u64,
    /// Fragments that it had not taken. They count as lost in the ledger.
    pub lost: u64,
}

/// Figures of a run between its warm-up and the moment its end was ordered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// Duration in seconds.
    pub seconds: f64,
    /// Events closed.
    pub events: u64,
    /// Payload bytes built.
    pub payload_bytes: u64,
    /// Distribution of the time that events were open: from the first offer of one of their fragments to their last
    /// byte.
    pub completion: Completion,
}

/// Distribution of completion times in microseconds, to two digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Median of the times.
    pub p50_us: f64,
    /// 99th percentile: one in a hundred took longer.
    pub p99_us: f64,
    /// Longest time.
    pub max_us: f64,
    /// Fractions of the events, and the time within which these were complete.
    #[serde(default)]
    pub distribution: [(f64, f64); COMPLETION_QUANTILES.len()],
}

impl Completion {
    /// Returns the longer of the times of two builders, at each fraction.
    #[must_use]
    pub fn slower_of(self, other: Self) -> Self {
        let mut distribution = self.distribution;
        for (longest, (fraction, time)) in distribution.iter_mut().zip(other.distribution) {
            *longest = (fraction.max(longest.0), time.max(longest.1));
        }
        Self {
            p50_us: self.p50_us.max(other.p50_us),
            p99_us: self.p99_us.max(other.p99_us),
            max_us: self.max_us.max(other.max_us),
            distribution,
        }
    }
}

/// State of a credit window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CreditReport {
    /// Window: bytes that may be requested and not yet received.
    pub window_bytes: u64,
    /// Bytes in a piece.
    pub piece_bytes: u64,
    /// Shortest time from a fetch to its first data, in microseconds.
    pub round_trip_us: f64,
    /// Bytes that the sources sent, by their own count.
    pub sent_bytes: u64,
    /// Part of `sent_bytes` that was sent again because it was lost.
    pub sent_again_bytes: u64,
}

/// Counts of the trigger levels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TriggerReport {
    /// Events that the sources had fragments of: those that level 1 accepted.
    pub level1: u64,
    /// Events of `level1` that level 2 accepted; all of them if there is no level 2.
    pub level2_accepted: u64,
    /// Events of `level2_accepted` that the event filter accepted; all of them if there is no event filter.
    pub filter_accepted: u64,
    /// These counts per second of the run.
    pub rates: TriggerRates,
    /// Bytes, headers included, that were never fetched because level 2 had rejected their events.
    pub unasked_bytes: u64,
    /// True if decisions were drawn at random, not made on the content of fragments.
    pub simulated: bool,
    /// Events that could not be decided.
    pub undecided: Undecided,
    /// Trigger levels that exist.
    pub levels: Levels,
}

/// Trigger levels that exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// True if there is a level 2.
    pub level2: bool,
    /// True if there is an event filter.
    pub filter: bool,
}

/// Trigger rates in events per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TriggerRates {
    /// Rate of [`TriggerReport::level1`].
    pub level1: f64,
    /// Rate of [`TriggerReport::level2_accepted`].
    pub level2_accepted: f64,
    /// Rate of [`TriggerReport::filter_accepted`].
    pub filter_accepted: f64,
}

impl TriggerReport {
    /// Creates the report of a run of `seconds` from its counts.
    pub fn new(counts: TriggerCounts, seconds: f64, levels: Levels) -> Self {
        let [rate1, rate2, rate_filter] =
            [counts.level1, counts.level2, counts.filter].map(|events| divide_or_zero(events as f64, seconds));
        let TriggerCounts { level1, level2, filter, unasked_bytes } = counts;
        Self {
            level1,
            level2_accepted: level2,
            filter_accepted: filter,
            rates: TriggerRates { level1: rate1, level2_accepted: rate2, filter_accepted: rate_filter },
            unasked_bytes,
            simulated: true,
            undecided: Undecided::default(),
            levels,
        }
    }

    /// Returns the sum over all builders; `None` if none has trigger levels.
    fn sum_reports(builders: &[BuilderReport]) -> Option<Self> {
        builders.iter().filter_map(|builder| builder.trigger).reduce(|one, other| Self {
            level1: one.level1 + other.level1,
            level2_accepted: one.level2_accepted + other.level2_accepted,
            filter_accepted: one.filter_accepted + other.filter_accepted,
            rates: TriggerRates {
                level1: one.rates.level1 + other.rates.level1,
                level2_accepted: one.rates.level2_accepted + other.rates.level2_accepted,
                filter_accepted: one.rates.filter_accepted + other.rates.filter_accepted,
            },
            unasked_bytes: one.unasked_bytes + other.unasked_bytes,
            simulated: one.simulated || other.simulated,
            undecided: one.undecided.merged_with(other.undecided),
            levels: one.levels,
        })
    }
}

/// Measured capacity of a builder's link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Name of the builder.
    pub builder: String,
    /// Link in the form of a topology's `link` table.
    pub link: LinkConfig,
    /// True if anything was lost; otherwise the buffer holds at least the value given.
    pub lost: bool,
    /// Largest of the measurements of the buffer, of which the smallest counts.
    pub largest_buffer: ByteSize,
    /// Window that follows from it, in bytes.
    pub window_bytes: u64,
    /// File in which the result is kept; `None` if it is not, as the run was incomplete.
    pub file: Option<String>,
    /// Conditions that make the result less certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Report of a whole run, over all its builders. Its JSON is printed by `thalweg run --json` and `thalweg demo --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// Number of the run.
    pub run: u32,
    /// Number of the builder, if the report covers only one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builder: Option<u32>,
    /// Number of builders in the run.
    pub builders: u32,
    /// `COMPLETE` or `INCOMPLETE`.
    pub state: String,
    /// Reasons why the run is incomplete.
    pub reasons: Vec<String>,
    /// Rates that were offered and carried, and the stage that limited the run; `None` if the report covers only one of
    /// several builders, or no time was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Directory of the run; the first one if there are several builders.
    pub directory: Option<String>,
    /// All directories of the run.
    pub directories: Vec<String>,
    /// Time from the start of the run to its end, in seconds.
    pub seconds: f64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments built.
    pub fragments: u64,
    /// Counts of events.
    pub events: Events,
    /// Fragments built per second.
    pub fragments_per_second: f64,
    /// Payload bits built per second.
    pub goodput_bits_per_second: f64,
    /// Number of times that a payload byte was copied, on average.
    pub copies_per_byte: Ends,
    /// Processor seconds, user and system, for 10⁹ payload bytes.
    pub cpu_seconds_per_gigabyte: Ends,
    /// Datagrams that arrived at the builders' ports, if links are of frames.
    #[serde(skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// Number and duration of the interruptions of fetching while the disk was behind.
    pub back_pressure: BackPressure,
    /// Method by which blocks were written.
    pub recorder: Option<String>,
    /// Description of the builders' blocks: what they are made of, and what they are registered with.
    pub pages: Option<String>,
    /// Way in which each builder's hot thread waited.
    pub wait: Vec<Wait>,
    /// Figures of the run between its warm-up and its end; completion times are those of the slowest builder.
    pub steady: Steady,
    /// Files of `thalweg calibrate` from which credit windows were derived.
    pub calibrated: Vec<String>,
    /// Credit window of each builder at the end.
    pub credit: Vec<CreditReport>,
    /// Results of a calibration, if this was one.
    pub calibration: Vec<Calibration>,
    /// Counts of the trigger levels; `None` if there are none.
    pub trigger: Option<TriggerReport>,
    /// Builders that were left out while the run went on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutReport>,
    /// Final counters.
    pub ledger: Ledger,
    /// Counters of devices that work by themselves, by source and by name, for each source that reported until its end.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Counts of the events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Events closed.
    pub built: u64,
    /// Closed events that are incomplete.
    pub incomplete: u64,
}

/// Figure for each end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ends {
    /// Value for all sources together; `None` if one of them sent no final counters.
    pub source: Option<f64>,
    /// Value for all builders together.
    pub builder: f64,
}

/// Number and duration of interruptions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BackPressure {
    /// Number of interruptions.
    pub stalls: u64,
    /// Total duration in seconds.
    pub seconds: f64,
}

impl RunReport {
    /// Combines the builders' reports into one.
    pub fn new(builders: &[BuilderReport]) -> Self {
        let sum = |get: fn(&BuilderReport) -> u64| builders.iter().map(get).sum::<u64>();
        let most = |get: fn(&BuilderReport) -> f64| builders.iter().map(get).fold(0.0, f64::max);
        let total = |get: fn(&BuilderReport) -> f64| builders.iter().map(get).sum::<f64>();
        let mut ledger = Ledger::default();
        for builder in builders {
            ledger.merge_ledger(&builder.ledger);
        }
        let seconds = most(|b| b.seconds);
        let all_ended = ledger.sources.iter().all(|entry| entry.final_counters);
        let bytes = sum(|b| b.bytes);
        let fragments = sum(|b| b.fragments);
        let complete = !builders.is_empty() && builders.iter().all(|b| b.state == "COMPLETE");
        let directories: Vec<String> = builders.iter().filter_map(|b| b.directory.clone()).collect();
        let is_whole = !matches!(builders, [one] if one.builders > 1);
        let times: Vec<TimeUse> = builders.iter().map(|b| b.time_use.clone()).collect();
        let verdict = is_whole.then(|| Verdict::from_measurements(&ledger, seconds, bytes, &times)).flatten();
        let (bytes_f, fragments_f) = (bytes as f64, fragments as f64);
        let source_copied = sum(|b| b.source_copied_bytes) as f64;
        let builder_copied = sum(|b| b.copied_bytes) as f64;
        Self {
            run: builders.first().map_or(0, |b| b.run),
            builder: if let [one] = builders { Some(one.builder).filter(|_| one.builders > 1) } else { None },
            builders: builders.first().map_or(1, |b| b.builders.max(1)),
            state: if complete { "COMPLETE" } else { "INCOMPLETE" }.into(),
            reasons: combine_reasons(builders.iter().map(|b| (b.builder, &b.reasons[..]))),
            verdict,
            directory: directories.first().cloned(),
            directories,
            seconds,
            bytes,
            fragments,
            events: Events { built: sum(|b| b.events), incomplete: sum(|b| b.incomplete) },
            fragments_per_second: divide_or_zero(fragments_f, seconds),
            goodput_bits_per_second: divide_or_zero(8.0 * bytes_f, seconds),
            copies_per_byte: Ends {
                source: all_ended.then(|| divide_or_zero(source_copied, bytes_f)),
                builder: divide_or_zero(builder_copied, bytes_f),
            },
            cpu_seconds_per_gigabyte: Ends {
                // Every builder receives the same value from the same processes.
                source: all_ended.then(|| divide_or_zero(most(|b| b.source_cpu_seconds), bytes_f / 1e9)),
                builder: divide_or_zero(total(|b| b.cpu_seconds), bytes_f / 1e9),
            },
            datagrams: builders.iter().fold(Arrivals::default(), |sum, builder| sum.combined_with(builder.datagrams)),
            back_pressure: BackPressure { stalls: sum(|b| b.stalls), seconds: total(|b| b.stalled_seconds) },
            recorder: builders.iter().find_map(|b| b.recorder.clone()),
            pages: builders.first().map(|b| b.pages.clone()),
            wait: builders.iter().map(|b| b.wait).collect(),
            steady: Steady {
                seconds: most(|b| b.steady.seconds),
                events: sum(|b| b.steady.events),
                payload_bytes: sum(|b| b.steady.payload_bytes),
                completion: builders
                    .iter()
                    .map(|builder| builder.steady.completion)
                    .fold(Completion::default(), Completion::slower_of),
            },
            calibrated: builders.iter().filter_map(|b| b.calibrated.clone()).collect(),
            credit: builders.iter().filter_map(|b| b.credit).collect(),
            calibration: builders.iter().filter_map(|b| b.calibration.clone()).collect(),
            trigger: TriggerReport::sum_reports(builders),
            left_out: builders.iter().flat_map(|b| b.left_out.clone()).collect(),
            ledger,
            devices: BTreeMap::new(),
        }
    }
}

/// Returns `value` for each of `by`; 0 if there is none.
fn divide_or_zero(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}
