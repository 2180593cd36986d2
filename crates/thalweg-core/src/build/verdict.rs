//! The verdict on a run: the rate that the sources offered, the rate that was carried, and the stage that limited it.
//!
//! It follows from measurements alone: from the sources' dead time and drops, and from the time of each builder's thread
//! by what it did or waited for. A stage that limits a run is never idle, so the stages before it wait for it.

use super::{Ledger, LedgerEntry};
use serde::{Deserialize, Serialize};
use thalweg_text::format_bit_rate;

/// Time of a builder's thread during the run, by what it did or waited for, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeUse {
    /// Name of the builder.
    pub builder: String,
    /// Address that most of its sources connect to.
    pub link: String,
    /// Directory that it records in; empty if it does not record.
    pub directory: String,
    /// Turns in which something arrived or was done.
    pub working: f64,
    /// Waits for a free block, while the disk had the blocks.
    pub disk: f64,
    /// Waits for the event filter.
    pub filter: f64,
    /// Waits for data that were requested.
    pub data: f64,
    /// Waits for offers, while no data were requested.
    pub offers: f64,
    /// All of these until something arrived for the last time; 0 in runs of versions that did not measure it.
    pub active: f64,
}

impl TimeUse {
    /// Returns the sum of all times.
    fn total_seconds(&self) -> f64 {
        self.working + self.disk + self.filter + self.data + self.offers
    }

    /// Returns the part of the time for which it waited for offers.
    fn idle_part(&self) -> f64 {
        self.part_of_total(self.offers)
    }

    /// Returns a time as a part of all times, as text.
    fn percent_text(&self, seconds: f64) -> String {
        format!("{:.0} % of the time", 100.0 * self.part_of_total(seconds))
    }

    /// Returns a time as a part of all times.
    fn part_of_total(&self, seconds: f64) -> f64 {
        let total = self.total_seconds();
        if total > 0.0 { seconds / total } else { 0.0 }
    }
}

/// Rates of a run, and the stage that limited it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Payload bits per second that the sources' devices had; `None` if a device gives as much as is taken, or if a
    /// trigger level leaves data unfetched.
    pub offered_bits_per_second: Option<f64>,
    /// Payload bits per second that were built.
    pub carried_bits_per_second: f64,
    /// Stage that limited the run.
    pub limit: Limit,
    /// The same as one sentence.
    pub sentence: String,
}

/// Stage that limits a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Kind of the stage.
    pub kind: LimitKind,
    /// Name of the source, node, link or directory; empty where all sources are meant.
    pub name: String,
}

/// Kind of a stage that limits a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// No source was held back: they offered no more.
    Sources,
    /// One source, for whose events the others waited, or whose device lost fragments.
    Source,
    /// The processor of a node.
    Node,
    /// The link to a builder.
    Link,
    /// The disk of a builder.
    Disk,
    /// The event filter.
    Filter,
    /// Fragments were lost for the reasons that the run states.
    Loss,
}

/// Part of the run for which a source must have been held back to count as such, and part of its fragments.
const HELD_BACK: f64 = 0.02;
/// Part of the time for which a thread at work limits the run.
const BUSY: f64 = 0.7;
/// Part of the time for which a source's process uses a processor, if that limits the run.
const BUSY_PROCESS: f64 = 0.85;
/// Part of a run below which the time until something arrived for the last time is taken for its duration.
const MIN_ACTIVE: f64 = 0.9;
/// Part of the fragments that must be lost to be the limit.
const MUCH_LOST: f64 = 0.01;

impl Verdict {
    /// Returns the verdict on a run of `seconds`, in which `bytes` of payload were built. `times`: the time of each
    /// builder. `None` if no time was measured.
    pub fn from_measurements(ledger: &Ledger, seconds: f64, bytes: u64, times: &[TimeUse]) -> Option<Self> {
        // The builder that waited for offers for the shortest time is the one that others wait for.
        let measured = times.iter().filter(|time| time.total_seconds() > 0.0);
        let busiest = measured.min_by(|one, other| one.idle_part().total_cmp(&other.idle_part()))?;
        if seconds <= 0.0 {
            return None;
        }
        // A source that is waited for at the end of a run for long lowers no rate.
        let active = times.iter().map(|time| time.active).fold(0.0, f64::max);
        let seconds = if active > 0.0 && active < MIN_ACTIVE * seconds { active } else { seconds };
        let carried = 8.0 * bytes as f64 / seconds;
        let offered = offered_bytes(ledger, seconds).map(|bytes| 8.0 * bytes / seconds);
        let (kind, name, cause) = find_limit(ledger, seconds, busiest);
        let as_taken = ledger.sources.iter().any(|entry| gives_as_taken(entry, seconds));
        let before = match offered {
            Some(offered) => format!("offered {}, ", format_bit_rate(offered)),
            None if as_taken => "the sources had more than was taken; ".to_owned(),
            None => String::new(),
        };
        Some(Self {
            offered_bits_per_second: offered,
            carried_bits_per_second: carried,
            limit: Limit { kind, name },
            sentence: format!("{before}carried {}: {cause}", format_bit_rate(carried)),
        })
    }
}

/// Kind of a stage that limited a run, its name, and the end of the sentence.
type Finding = (LimitKind, String, String);

/// Returns the stage that limited a run; `time` is that of the busiest builder.
fn find_limit(ledger: &Ledger, seconds: f64, time: &TimeUse) -> Finding {
    if ledger.sources.iter().all(|entry| held_back_part(entry, seconds) < HELD_BACK) {
        return limit_without_back_pressure(ledger, seconds);
    }
    if let Some(found) = late_node(ledger, seconds).or_else(|| cut_off_source(ledger)) {
        return found;
    }
    let TimeUse { builder, link, directory, working, disk, filter, data, offers, .. } = time;
    if time.part_of_total(*working) >= BUSY {
        let cause = format!("limited by node '{builder}', which was at work {}", time.percent_text(*working));
        return (LimitKind::Node, builder.clone(), cause);
    }
    let longest = disk.max(*filter).max(*data).max(*offers);
    if longest <= *disk {
        let cause =
            format!("limited by the disk under {directory}, which '{builder}' waited for {}", time.percent_text(*disk));
        return (LimitKind::Disk, directory.clone(), cause);
    }
    if longest <= *filter {
        let cause = format!("limited by the event filter, which '{builder}' waited for {}", time.percent_text(*filter));
        return (LimitKind::Filter, builder.clone(), cause);
    }
    if let Some(found) = limit_at_source(ledger, seconds, longest <= *offers) {
        return found;
    }
    if longest <= *offers {
        // All sources had data and no slot, and the builder took none of it.
        let cause = format!("limited by node '{builder}', which did not run while the sources waited for it");
        return (LimitKind::Node, builder.clone(), cause);
    }
    let cause = format!("limited by the link {link}, whose data '{builder}' waited for {}", time.percent_text(*data));
    (LimitKind::Link, link.clone(), cause)
}

/// Returns the node of the source that took most of its fragments too late, if they are many and more than those that
/// found all slots full: its process had no processor then.
fn late_node(ledger: &Ledger, seconds: f64) -> Option<Finding> {
    let late =
        ledger.sources.iter().max_by(|one, other| late_part(one, seconds).total_cmp(&late_part(other, seconds)))?;
    let part = late_part(late, seconds);
    let cause =
        format!("limited by node '{}', which was too late for {:.0} % of its fragments", late.name, 100.0 * part);
    (part >= HELD_BACK && part > dead_part(late, seconds)).then(|| (LimitKind::Node, late.name.clone(), cause))
}

/// Returns the source of which many fragments were lost or late, if another source lost far fewer.
fn cut_off_source(ledger: &Ledger) -> Option<Finding> {
    let worst = ledger.sources.iter().max_by(|one, other| lost_part(one).total_cmp(&lost_part(other)))?;
    let least = ledger.sources.iter().map(lost_part).fold(f64::INFINITY, f64::min);
    let (part, name) = (lost_part(worst), worst.name.clone());
    let cause =
        format!("{:.1} % of the fragments of source '{name}' were lost or late (see the reasons)", 100.0 * part);
    (part >= MUCH_LOST && least < 0.25 * part).then_some((LimitKind::Loss, name, cause))
}

/// Returns the source that limited a run: one for whose events the others waited, if the builder mostly `waits_for_offers`,
/// or one whose processor was busy.
fn limit_at_source(ledger: &Ledger, seconds: f64, waits_for_offers: bool) -> Option<Finding> {
    let slowest = ledger
        .sources
        .iter()
        .min_by(|one, other| held_back_part(one, seconds).total_cmp(&held_back_part(other, seconds)));
    if let Some(slow) = slowest.filter(|slow| waits_for_offers && held_back_part(slow, seconds) < HELD_BACK) {
        let cause = format!("limited by source '{}', for whose events the other sources waited", slow.name);
        return Some((LimitKind::Source, slow.name.clone(), cause));
    }
    let sender = ledger.sources.iter().max_by_key(|entry| entry.cpu_ms)?;
    let part = sender.cpu_ms as f64 / 1e3 / seconds;
    let cause =
        format!("limited by node '{}', which used its processor {:.0} % of the time", sender.name, 100.0 * part);
    (part >= BUSY_PROCESS).then(|| (LimitKind::Node, sender.name.clone(), cause))
}

/// Returns the result for a run in which no source was held back.
fn limit_without_back_pressure(ledger: &Ledger, seconds: f64) -> Finding {
    let worst = ledger.sources.iter().max_by(|one, other| device_loss(one).total_cmp(&device_loss(other)));
    if let Some(worst) = worst.filter(|worst| device_loss(worst) >= MUCH_LOST) {
        let percent = 100.0 * device_loss(worst);
        let cause = format!("limited by source '{}', whose device lost {percent:.1} % of its fragments", worst.name);
        return (LimitKind::Source, worst.name.clone(), cause);
    }
    if let Some(found) = late_node(ledger, seconds).or_else(|| cut_off_source(ledger)) {
        return found;
    }
    let accepted = ledger.sources.iter().map(|entry| entry.accepted).fold(0, u64::saturating_add);
    let lost = part(ledger.sources.iter().map(lost_fragments).fold(0, u64::saturating_add), accepted);
    if lost >= MUCH_LOST {
        let cause = format!("{:.1} % of the fragments were lost (see the reasons)", 100.0 * lost);
        return (LimitKind::Loss, String::new(), cause);
    }
    (LimitKind::Sources, String::new(), "the sources offered no more".to_owned())
}

/// Returns the part of a source's fragments that its device lost.
fn device_loss(entry: &LedgerEntry) -> f64 {
    part(entry.lost_in_device, entry.accepted)
}

/// Returns the part of a source's fragments that it did not take at its rate, without those that were due while all
/// slots were full.
fn late_part(entry: &LedgerEntry, seconds: f64) -> f64 {
    let not_taken = part(entry.not_taken, entry.accepted.saturating_add(entry.not_taken));
    (not_taken - dead_part(entry, seconds)).max(0.0)
}

/// Returns the part of a source's fragments that were lost on the way or at the builder.
fn lost_part(entry: &LedgerEntry) -> f64 {
    part(lost_fragments(entry), entry.accepted)
}

/// Returns the number of a source's fragments that were lost on the way or at the builder.
fn lost_fragments(entry: &LedgerEntry) -> u64 {
    [entry.lost, entry.corrupt, entry.late, entry.unaccounted.unsigned_abs()].into_iter().fold(0, u64::saturating_add)
}

/// Returns the part of the run for which a source was held back, or the part of its fragments that were dropped for want
/// of a slot, whichever is larger.
fn held_back_part(entry: &LedgerEntry, seconds: f64) -> f64 {
    let dropped = entry.dropped_newest.saturating_add(entry.dropped_oldest);
    dead_part(entry, seconds).max(part(dropped, entry.accepted))
}

fn dead_part(entry: &LedgerEntry, seconds: f64) -> f64 {
    entry.dead_time_ms as f64 / 1e3 / seconds
}

/// Returns whether a source had more than it gave, and how much is unknown: its device has no rate.
fn gives_as_taken(entry: &LedgerEntry, seconds: f64) -> bool {
    dead_part(entry, seconds) >= HELD_BACK && entry.not_taken == 0
}

/// Returns the payload bytes that the sources' devices had, at the average length of their fragments.
fn offered_bytes(ledger: &Ledger, seconds: f64) -> Option<f64> {
    let mut bytes = 0.0;
    for entry in &ledger.sources {
        if gives_as_taken(entry, seconds) || entry.rejected > 0 {
            return None;
        }
        // Fragments of events beyond the end were built, too, before it was known.
        let kept = entry.recorded.saturating_add(entry.discarded).saturating_add(entry.beyond_end);
        // Where most were lost, the disk failed: those were built.
        let built = if entry.lost > kept { kept.saturating_add(entry.lost) } else { kept };
        let offered = entry.accepted.saturating_add(entry.not_taken);
        match built {
            0 if offered == 0 => {}
            // None arrived: their length is unknown.
            0 => return None,
            built => bytes += entry.bytes as f64 / built as f64 * offered as f64,
        }
    }
    Some(bytes)
}

fn part(count: u64, of: u64) -> f64 {
    if of > 0 { count as f64 / of as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source of 1000 fragments of 125,000 bytes in 10 s: 100 Mbit/s.
    fn source(name: &str) -> LedgerEntry {
        LedgerEntry {
            name: name.into(),
            accepted: 1000,
            recorded: 1000,
            bytes: 125_000_000,
            final_counters: true,
            ..LedgerEntry::default()
        }
    }

    fn times(change: impl FnOnce(&mut TimeUse)) -> TimeUse {
        let mut times = TimeUse {
            builder: "builder".into(),
            link: "tcp:10.0.0.1:7400".into(),
            directory: "/data/runs".into(),
            working: 4.0,
            ..TimeUse::default()
        };
        change(&mut times);
        times
    }

    fn verdict(sources: Vec<LedgerEntry>, time: TimeUse) -> Verdict {
        let bytes = sources.iter().map(|source| source.bytes).sum();
        let ledger = Ledger { sources, ..Ledger::default() };
        Verdict::from_measurements(&ledger, 10.0, bytes, &[time]).unwrap()
    }

    #[test]
    fn sources_that_were_never_held_back_offered_no_more() {
        let verdict = verdict(vec![source("adc-0"), source("adc-1")], times(|times| times.offers = 6.0));
        assert_eq!(verdict.sentence, "offered 200 Mbit/s, carried 200 Mbit/s: the sources offered no more");
        assert_eq!(verdict.limit, Limit { kind: LimitKind::Sources, name: String::new() });
    }

    fn limit(sources: Vec<LedgerEntry>, time: TimeUse) -> (LimitKind, String, String) {
        let Verdict { limit, sentence, .. } = verdict(sources, time);
        (limit.kind, limit.name, sentence)
    }

    #[test]
    fn the_stage_that_sources_were_held_back_for_is_the_limit() {
        let held = LedgerEntry { not_taken: 1000, dead_time_ms: 5_000, ..source("adc-0") };
        let (kind, name, sentence) = limit(vec![held.clone()], times(|times| times.disk = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Disk, "/data/runs"));
        assert_eq!(
            sentence,
            "offered 200 Mbit/s, carried 100 Mbit/s: limited by the disk under /data/runs, which 'builder' waited for \
             60 % of the time"
        );
        let (kind, name, _) = limit(vec![held.clone()], times(|times| times.data = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Link, "tcp:10.0.0.1:7400"));
        let (kind, name, _) = limit(vec![held.clone()], times(|times| times.working = 100.0));
        assert_eq!((kind, &name[..]), (LimitKind::Node, "builder"));
        let (kind, ..) = limit(vec![held.clone()], times(|times| times.filter = 6.0));
        assert_eq!(kind, LimitKind::Filter);
        // The other source waits for the events of the slow one.
        let (kind, name, _) = limit(vec![held.clone(), source("slow")], times(|times| times.offers = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Source, "slow"));
        let busy = LedgerEntry { cpu_ms: 9_900, ..held };
        let (kind, name, _) = limit(vec![busy], times(|times| times.data = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Node, "adc-0"));
    }

    #[test]
    fn a_device_that_gives_as_much_as_is_taken_offers_no_certain_rate() {
        let held = LedgerEntry { dead_time_ms: 9_000, ..source("adc-0") };
        let verdict = verdict(vec![held], times(|times| times.data = 6.0));
        assert_eq!(verdict.offered_bits_per_second, None);
        assert!(
            verdict.sentence.starts_with("the sources had more than was taken; carried 100 Mbit/s: limited by the")
        );
    }

    #[test]
    fn what_was_lost_on_the_way_or_in_a_device_is_no_limit_of_the_sources() {
        let lost = LedgerEntry { recorded: 900, lost: 100, ..source("adc-0") };
        assert_eq!(verdict(vec![lost], times(|times| times.offers = 6.0)).limit.kind, LimitKind::Loss);
        let lost = LedgerEntry { recorded: 900, lost_in_device: 100, ..source("camera") };
        let verdict = verdict(vec![lost, source("adc-0")], times(|times| times.offers = 6.0));
        assert_eq!(verdict.limit, Limit { kind: LimitKind::Source, name: "camera".into() });
    }

    #[test]
    fn a_source_that_falls_behind_its_own_rate_is_the_limit() {
        let late = LedgerEntry { not_taken: 1000, ..source("adc-0") };
        let (kind, name, sentence) = limit(vec![late, source("adc-1")], times(|times| times.offers = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Node, "adc-0"));
        assert!(
            sentence.starts_with("offered 300 Mbit/s, carried 200 Mbit/s: limited by node 'adc-0', which was too late")
        );
    }

    #[test]
    fn a_source_that_was_cut_off_is_named_and_not_the_one_that_was_not() {
        let cut_off = LedgerEntry { recorded: 790, late: 210, dead_time_ms: 3_100, ..source("adc-1") };
        let (kind, name, _) = limit(vec![source("adc-0"), cut_off], times(|times| times.offers = 6.0));
        assert_eq!((kind, &name[..]), (LimitKind::Loss, "adc-1"));
    }

    #[test]
    fn a_builder_that_did_not_run_is_the_limit_and_not_its_link() {
        let held = LedgerEntry { not_taken: 300, dead_time_ms: 3_000, ..source("adc-0") };
        let (kind, name, _) = limit(vec![held.clone(), held], times(|times| times.offers = 7.5));
        assert_eq!((kind, &name[..]), (LimitKind::Node, "builder"));
    }

    #[test]
    fn fragments_that_were_due_long_before_all_slots_were_full_were_taken_too_late() {
        let late = LedgerEntry { not_taken: 1_000, dead_time_ms: 400, ..source("adc-0") };
        let (kind, name, _) = limit(vec![late], times(|times| times.data = 6.8));
        assert_eq!((kind, &name[..]), (LimitKind::Node, "adc-0"));
    }

    #[test]
    fn the_wait_for_a_source_at_the_end_lowers_no_rate() {
        let verdict = verdict(vec![source("adc-0")], times(|times| times.active = 5.0));
        assert_eq!(verdict.carried_bits_per_second, 200e6);
    }

    #[test]
    fn where_nothing_of_a_source_was_built_the_offered_rate_is_unknown() {
        let silent = LedgerEntry { accepted: 100, recorded: 0, late: 100, bytes: 0, ..source("adc-1") };
        assert_eq!(verdict(vec![source("adc-0"), silent], times(|_| ())).offered_bits_per_second, None);
    }

    #[test]
    fn without_a_measurement_there_is_no_verdict() {
        assert_eq!(Verdict::from_measurements(&Ledger::default(), 10.0, 0, &[]), None);
        assert_eq!(Verdict::from_measurements(&Ledger::default(), 10.0, 0, &[TimeUse::default()]), None);
    }
}
