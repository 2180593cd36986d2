//! What a node says when it is done.

use crate::{LinkConfig, Wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_build::{Ledger, Triggered};
use thalweg_filter::Undecided;
use thalweg_link::Arrivals;
use thalweg_store::reasons_together;

/// What a source did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// Its id.
    pub source: String,
    /// How long it ran.
    pub seconds: f64,
    /// Payload bytes taken from the device.
    pub bytes: u64,
    /// Fragments taken from the device.
    pub accepted: u64,
    /// Of these, dropped because no slot was free.
    pub dropped_newest: u64,
    /// Of these, dropped to make room.
    pub dropped_oldest: u64,
    /// Of these, lost in the device before it was asked for them.
    #[serde(default)]
    pub lost_in_device: u64,
    /// What a device that works by itself has counted, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub device: BTreeMap<String, u64>,
    /// Fragments that the device was to give at its rate, and that were not taken, because it waits where all slots are
    /// full (policy `block`).
    #[serde(default)]
    pub not_taken: u64,
    /// For how long it waited so.
    #[serde(default)]
    pub dead_seconds: f64,
    /// Frames that came from the device and belong to no event.
    #[serde(default)]
    pub of_no_event: u64,
    /// How often the device had to wait.
    pub blocked: u64,
    /// Bytes copied by the device's code, and on the way out.
    pub copied_bytes: u64,
    /// Processor time of the process, user and system.
    pub cpu_seconds: f64,
    /// Datagrams that came to its ports, where its links are of frames.
    #[serde(default, skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// What its arena is made of, and what it is registered with.
    pub pages: String,
    /// How its hot thread waited.
    pub wait: Wait,
}

/// What a builder did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuilderReport {
    /// Its name.
    pub name: String,
    /// The run; 0 where nothing was recorded and no number was given.
    pub run: u32,
    /// Its number among the builders of the run, from 0 on.
    pub builder: u32,
    /// How many builders the run has.
    pub builders: u32,
    /// `COMPLETE` or `INCOMPLETE`.
    pub state: String,
    /// Why it is incomplete.
    pub reasons: Vec<String>,
    /// Where the run is, if it was recorded.
    pub directory: Option<String>,
    /// From the start of the run to its end.
    pub seconds: f64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments of the events that were built; not those that a trigger level rejected, though they are among the
    /// bytes.
    pub fragments: u64,
    /// Events closed.
    pub events: u64,
    /// Of these, incomplete.
    pub incomplete: u64,
    /// How often fetching stopped for lack of a free block, and for how many seconds in all.
    pub stalls: u64,
    /// See `stalls`.
    pub stalled_seconds: f64,
    /// Payload bytes copied here, by the kernel into this process or by the process itself.
    pub copied_bytes: u64,
    /// Processor time of this process, user and system.
    pub cpu_seconds: f64,
    /// Processor time of the sources, as their final counters say.
    pub source_cpu_seconds: f64,
    /// Payload bytes the sources copied, as their final counters say.
    pub source_copied_bytes: u64,
    /// Datagrams that came to its ports, where its links are of frames.
    #[serde(default, skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// How blocks were written.
    pub recorder: Option<String>,
    /// What the blocks' arena is made of, and what it is registered with.
    pub pages: String,
    /// How the hot thread waited: a builder that polls has used a processor whether or not data came.
    pub wait: Wait,
    /// The run between its warm-up and its end.
    pub steady: Steady,
    /// The file of `thalweg calibrate` that the credit window follows from.
    pub calibrated: Option<String>,
    /// What the credit window was at the end; nothing where the window is constant.
    pub credit: Option<CreditReport>,
    /// What the link was found to carry, where that was to be found out.
    pub calibration: Option<Calibration>,
    /// What the trigger levels did; nothing where there are none.
    #[serde(default)]
    pub trigger: Option<TriggerReport>,
    /// Where this builder assigned the events: the others that were left out while the run went on.
    #[serde(default)]
    pub left_out: Vec<LeftOutReport>,
    /// The final counters.
    pub ledger: Ledger,
}

/// A builder that was left out: it died, hung or was cut off.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LeftOutReport {
    /// Its number.
    pub builder: u32,
    /// No event from here on went to it.
    pub at_event: u64,
    /// Events assigned to it that it had not said to be closed: the first one, and how many.
    pub events: Vec<(u64, u64)>,
    /// Events it had closed, as it said last.
    pub closed: u64,
    /// Fragments delivered to it, as the sources say: what is on its disk is among them.
    pub delivered: u64,
    /// Fragments that it had not taken. They count as lost in the ledger.
    pub lost: u64,
}

/// A run between its warm-up and the moment it was told to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// How long.
    pub seconds: f64,
    /// Events closed.
    pub events: u64,
    /// Payload bytes built.
    pub payload_bytes: u64,
    /// How long events were open: from the first offer of one of its fragments to its last byte.
    pub completion: Completion,
}

/// How long it took, in microseconds, to two digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Half were quicker.
    pub p50_us: f64,
    /// One in a hundred took longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// A credit window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CreditReport {
    /// Bytes that may be asked for and not received.
    pub window_bytes: u64,
    /// Bytes in a piece.
    pub piece_bytes: u64,
    /// The shortest time from a fetch to its first data, in microseconds.
    pub round_trip_us: f64,
    /// Bytes that sources sent, and sent again because they were lost, as they say.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub sent_again_bytes: u64,
}

/// What the trigger levels did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TriggerReport {
    /// Events that the sources brought: what level 1 let through.
    pub level1: u64,
    /// Of these, accepted by level 2; all of them where there is none.
    pub level2_accepted: u64,
    /// Of these, accepted by the event filter; all of them where there is none.
    pub filter_accepted: u64,
    /// The same per second of the run.
    pub rates: TriggerRates,
    /// Bytes, headers included, that were never asked for because level 2 had rejected their events.
    pub unasked_bytes: u64,
    /// Decisions were drawn, not made on what the fragments hold.
    pub simulated: bool,
    /// Events that could not be decided on.
    pub undecided: Undecided,
    /// Whether there is a level 2, and an event filter.
    pub levels: Levels,
}

/// Which trigger levels there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// Level 2.
    pub level2: bool,
    /// The event filter.
    pub filter: bool,
}

/// Events per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TriggerRates {
    /// See [`TriggerReport::level1`].
    pub level1: f64,
    /// See [`TriggerReport::level2_accepted`].
    pub level2_accepted: f64,
    /// See [`TriggerReport::filter_accepted`].
    pub filter_accepted: f64,
}

impl TriggerReport {
    /// Of a run that took so long.
    pub fn new(counts: Triggered, seconds: f64, levels: Levels) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let rate = |events: u64| if seconds > 0.0 { events as f64 / seconds } else { 0.0 };
        let Triggered { level1, level2, filter, unasked_bytes } = counts;
        Self {
            level1,
            level2_accepted: level2,
            filter_accepted: filter,
            rates: TriggerRates { level1: rate(level1), level2_accepted: rate(level2), filter_accepted: rate(filter) },
            unasked_bytes,
            simulated: true,
            undecided: Undecided::default(),
            levels,
        }
    }

    /// Of all builders together.
    fn sum(builders: &[BuilderReport]) -> Option<Self> {
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
            undecided: one.undecided.and(other.undecided),
            levels: one.levels,
        })
    }
}

/// What a builder's link was found to carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The builder.
    pub builder: String,
    /// As a topology says it.
    pub link: LinkConfig,
    /// Whether anything was lost; otherwise the buffer holds at least this.
    pub lost: bool,
    /// The window that follows from it, in bytes.
    pub window_bytes: u64,
    /// Where it is kept.
    pub file: String,
}

/// What a whole run was: all builders together. Its JSON is what `thalweg run --json` and `thalweg demo --json` print.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// The run.
    pub run: u32,
    /// Where it tells of one builder of several: its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builder: Option<u32>,
    /// How many builders the run has.
    pub builders: u32,
    /// `COMPLETE` or `INCOMPLETE`.
    pub state: String,
    /// Why it is incomplete.
    pub reasons: Vec<String>,
    /// Where the run is; several where there are several builders.
    pub directory: Option<String>,
    /// All directories of the run.
    pub directories: Vec<String>,
    /// From the start of the run to its end.
    pub seconds: f64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments built.
    pub fragments: u64,
    /// Events.
    pub events: Events,
    /// Fragments built per second.
    pub fragments_per_second: f64,
    /// Payload bits built per second.
    pub goodput_bits_per_second: f64,
    /// How often a payload byte was copied.
    pub copies_per_byte: Ends,
    /// Processor seconds, user and system, for 10⁹ payload bytes.
    pub cpu_seconds_per_gigabyte: Ends,
    /// Datagrams that came to the builders' ports, where links are of frames.
    #[serde(skip_serializing_if = "Arrivals::is_none")]
    pub datagrams: Arrivals,
    /// How often, and for how long, fetching stopped because the disk was behind.
    pub back_pressure: BackPressure,
    /// How blocks were written.
    pub recorder: Option<String>,
    /// What the builders' blocks are made of, and what they were registered with.
    pub pages: Option<String>,
    /// How each builder's hot thread waited.
    pub wait: Vec<Wait>,
    /// The run between its warm-up and its end; completion times are those of the slowest builder.
    pub steady: Steady,
    /// The files of `thalweg calibrate` that credit windows follow from.
    pub calibrated: Vec<String>,
    /// Each builder's credit window at the end.
    pub credit: Vec<CreditReport>,
    /// What the builders' links were found to carry, where that was to be found out.
    pub calibration: Vec<Calibration>,
    /// What the trigger levels did; nothing where there are none.
    pub trigger: Option<TriggerReport>,
    /// Builders that were left out while the run went on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutReport>,
    /// The final counters.
    pub ledger: Ledger,
    /// What devices that work by themselves have counted, by name, of each source that has one and was heard to its end.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Closed.
    pub built: u64,
    /// Of these, incomplete.
    pub incomplete: u64,
}

/// A figure for each end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ends {
    /// All sources together.
    pub source: f64,
    /// All builders together.
    pub builder: f64,
}

/// How often and how long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BackPressure {
    /// How often.
    pub stalls: u64,
    /// How long in all.
    pub seconds: f64,
}

impl RunReport {
    /// Adds the builders' reports up.
    pub fn new(builders: &[BuilderReport]) -> Self {
        let sum = |get: fn(&BuilderReport) -> u64| builders.iter().map(get).sum::<u64>();
        let most = |get: fn(&BuilderReport) -> f64| builders.iter().map(get).fold(0.0, f64::max);
        let total = |get: fn(&BuilderReport) -> f64| builders.iter().map(get).sum::<f64>();
        let mut ledger = Ledger::default();
        for builder in builders {
            ledger.merge(&builder.ledger);
        }
        let seconds = most(|b| b.seconds);
        let bytes = sum(|b| b.bytes);
        let fragments = sum(|b| b.fragments);
        let complete = !builders.is_empty() && builders.iter().all(|b| b.state == "COMPLETE");
        let directories: Vec<String> = builders.iter().filter_map(|b| b.directory.clone()).collect();
        let per = |value: f64, by: f64| if by > 0.0 { value / by } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let (bytes_f, fragments_f) = (bytes as f64, fragments as f64);
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let copied = |get: fn(&BuilderReport) -> u64| per(sum(get) as f64, bytes_f);
        Self {
            run: builders.first().map_or(0, |b| b.run),
            builder: if let [one] = builders { Some(one.builder).filter(|_| one.builders > 1) } else { None },
            builders: builders.first().map_or(1, |b| b.builders.max(1)),
            state: if complete { "COMPLETE" } else { "INCOMPLETE" }.into(),
            reasons: reasons_together(builders.iter().map(|b| (b.builder, &b.reasons[..]))),
            directory: directories.first().cloned(),
            directories,
            seconds,
            bytes,
            fragments,
            events: Events { built: sum(|b| b.events), incomplete: sum(|b| b.incomplete) },
            fragments_per_second: per(fragments_f, seconds),
            goodput_bits_per_second: per(8.0 * bytes_f, seconds),
            copies_per_byte: Ends { source: copied(|b| b.source_copied_bytes), builder: copied(|b| b.copied_bytes) },
            cpu_seconds_per_gigabyte: Ends {
                // Every builder is told the same by the same processes.
                source: per(most(|b| b.source_cpu_seconds), bytes_f / 1e9),
                builder: per(total(|b| b.cpu_seconds), bytes_f / 1e9),
            },
            datagrams: builders.iter().fold(Arrivals::default(), |sum, builder| sum.and(builder.datagrams)),
            back_pressure: BackPressure { stalls: sum(|b| b.stalls), seconds: total(|b| b.stalled_seconds) },
            recorder: builders.iter().find_map(|b| b.recorder.clone()),
            pages: builders.first().map(|b| b.pages.clone()),
            wait: builders.iter().map(|b| b.wait).collect(),
            steady: Steady {
                seconds: most(|b| b.steady.seconds),
                events: sum(|b| b.steady.events),
                payload_bytes: sum(|b| b.steady.payload_bytes),
                completion: Completion {
                    p50_us: most(|b| b.steady.completion.p50_us),
                    p99_us: most(|b| b.steady.completion.p99_us),
                    max_us: most(|b| b.steady.completion.max_us),
                },
            },
            calibrated: builders.iter().filter_map(|b| b.calibrated.clone()).collect(),
            credit: builders.iter().filter_map(|b| b.credit).collect(),
            calibration: builders.iter().filter_map(|b| b.calibration.clone()).collect(),
            trigger: TriggerReport::sum(builders),
            left_out: builders.iter().flat_map(|b| b.left_out.clone()).collect(),
            ledger,
            devices: BTreeMap::new(),
        }
    }
}
