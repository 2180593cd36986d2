//! The ledger: every fragment a source accepted ends in exactly one bucket.

use serde::{Deserialize, Serialize};

/// One source's entry in the ledger. Counts are fragments, for the share of one builder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Id of the source, `subsystem.element`.
    pub source: String,
    /// Name of the source in the topology.
    pub name: String,
    /// Fragments that the device had for the source, as the source reports, including those that the device lost; for a
    /// source that died, those it offered.
    pub accepted: u64,
    /// Fragments on disk.
    pub recorded: u64,
    /// Fragments built into events and then freed, because the run was not recorded.
    pub discarded: u64,
    /// Fragments of events that level 2 or the event filter rejected: fetched, or never fetched.
    #[serde(default)]
    pub rejected: u64,
    /// Fragments dropped by the source because no slot was free.
    pub dropped_newest: u64,
    /// Fragments dropped by the source to make room for newer ones.
    pub dropped_oldest: u64,
    /// Fragments lost in the device, before the source had them: the device reports it, or its own counter skips them.
    #[serde(default)]
    pub lost_in_device: u64,
    /// Fragments that came after their event was closed.
    pub late: u64,
    /// Fragments that arrived damaged: a header or payload that fails its checks, or an impossible position.
    pub corrupt: u64,
    /// Fragments accepted by the source and not delivered for a known reason: the source died with them, the disk
    /// failed with them, or the run was abandoned.
    pub lost: u64,
    /// Fragments of events at or beyond the end of the run: accepted before the source was informed of the end.
    #[serde(default)]
    pub beyond_end: u64,
    /// Fragments that the buckets do not explain. Zero, or the run is INCOMPLETE.
    pub unaccounted: i64,
    /// Built fragments that are explicitly *empty*.
    pub empty: u64,
    /// Built fragments that were damaged or cut short before the source had them, as their status reports. Not a
    /// bucket.
    #[serde(default)]
    pub damaged: u64,
    /// Built fragments that may belong to other events, as their status reports. Not a bucket.
    #[serde(default)]
    pub uncertain: u64,
    /// Fragments that arrived a second time and were not counted again. Not a bucket: the first arrival is in one.
    pub duplicates: u64,
    /// Events that other sources delivered and that this source did not mention, though it went on to later ones. Not a
    /// bucket: nothing was accepted.
    pub skipped: u64,
    /// Fragments that a device with a rate was to give, and that the source did not take because all slots were full
    /// when it came to them (policy `block`): dead time. Not a bucket, and no reason why a run is INCOMPLETE: no event
    /// has these. Builder 0 counts it for the whole run.
    #[serde(default)]
    pub not_taken: u64,
    /// Frames that came from the device and belong to no event, as far as their numbers or times tell. Not a bucket:
    /// the fragments they would have been are unknown. Builder 0 counts it for the whole run.
    #[serde(default)]
    pub of_no_event: u64,
    /// Events that other sources delivered and that this source did not mention before it ended or before their
    /// deadline. Not a bucket: nothing was accepted, or it came late.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub absent: u64,
    /// True if the source's device was away when the run ended: the number of frames that it had is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub device_away: bool,
    /// Time for which the source could take nothing, in milliseconds.
    #[serde(default)]
    pub dead_time_ms: u64,
    /// Processor time that the source's process used, user and system, in milliseconds, as it reports at its end.
    #[serde(default)]
    pub cpu_ms: u64,
    /// Payload bytes built, including those of events that were rejected later.
    pub bytes: u64,
    /// True if the source ended the run with its final counters.
    pub final_counters: bool,
}

/// Column of a ledger that is shown to people, in fragments.
#[derive(Debug, Clone, Copy)]
pub struct LedgerColumn {
    /// Heading of the column.
    pub name: &'static str,
    /// Figure of a source.
    pub figure: fn(&LedgerEntry) -> i128,
}

impl LedgerColumn {
    /// Returns whether the column of a ledger is shown: one that is 0 everywhere is left out, except for the sum and
    /// what does not add up.
    pub fn is_shown(&self, ledger: &Ledger) -> bool {
        ["accepted", "unaccounted"].contains(&self.name) || ledger.sources.iter().any(|entry| (self.figure)(entry) != 0)
    }
}

/// Returns whether a count is 0, so that it is not written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl LedgerEntry {
    /// Columns of a ledger, in the order in which they are shown.
    pub const COLUMNS: [LedgerColumn; 18] = [
        LedgerColumn { name: "accepted", figure: |e| e.accepted.into() },
        LedgerColumn { name: "recorded", figure: |e| e.recorded.into() },
        LedgerColumn { name: "discarded", figure: |e| e.discarded.into() },
        LedgerColumn { name: "rejected", figure: |e| e.rejected.into() },
        LedgerColumn { name: "dropped", figure: |e| i128::from(e.dropped_newest) + i128::from(e.dropped_oldest) },
        LedgerColumn { name: "lost in device", figure: |e| e.lost_in_device.into() },
        LedgerColumn { name: "late", figure: |e| e.late.into() },
        LedgerColumn { name: "corrupt", figure: |e| e.corrupt.into() },
        LedgerColumn { name: "lost", figure: |e| e.lost.into() },
        LedgerColumn { name: "beyond end", figure: |e| e.beyond_end.into() },
        LedgerColumn { name: "empty", figure: |e| e.empty.into() },
        LedgerColumn { name: "damaged", figure: |e| e.damaged.into() },
        LedgerColumn { name: "uncertain", figure: |e| e.uncertain.into() },
        LedgerColumn { name: "skipped", figure: |e| e.skipped.into() },
        LedgerColumn { name: "absent", figure: |e| e.absent.into() },
        LedgerColumn { name: "of no event", figure: |e| e.of_no_event.into() },
        LedgerColumn { name: "duplicates", figure: |e| e.duplicates.into() },
        LedgerColumn { name: "unaccounted", figure: |e| e.unaccounted.into() },
    ];

    fn compute_unaccounted(&mut self) {
        let explained = [
            self.recorded,
            self.discarded,
            self.rejected,
            self.dropped_newest,
            self.dropped_oldest,
            self.lost_in_device,
            self.late,
            self.corrupt,
            self.lost,
            self.beyond_end,
        ];
        // The number of accepted fragments comes from the source, and may be any number.
        let difference = i128::from(self.accepted) - explained.into_iter().map(i128::from).sum::<i128>();
        self.unaccounted = i64::try_from(difference).unwrap_or(if difference > 0 { i64::MAX } else { i64::MIN });
    }

    fn merge_entry(&mut self, other: &Self) {
        let counts = [
            (&mut self.accepted, other.accepted),
            (&mut self.recorded, other.recorded),
            (&mut self.discarded, other.discarded),
            (&mut self.rejected, other.rejected),
            (&mut self.dropped_newest, other.dropped_newest),
            (&mut self.dropped_oldest, other.dropped_oldest),
            (&mut self.lost_in_device, other.lost_in_device),
            (&mut self.late, other.late),
            (&mut self.corrupt, other.corrupt),
            (&mut self.lost, other.lost),
            (&mut self.beyond_end, other.beyond_end),
            (&mut self.empty, other.empty),
            (&mut self.damaged, other.damaged),
            (&mut self.uncertain, other.uncertain),
            (&mut self.duplicates, other.duplicates),
            (&mut self.skipped, other.skipped),
            (&mut self.not_taken, other.not_taken),
            (&mut self.dead_time_ms, other.dead_time_ms),
            (&mut self.of_no_event, other.of_no_event),
            (&mut self.absent, other.absent),
            (&mut self.bytes, other.bytes),
        ];
        for (ours, theirs) in counts {
            *ours = ours.saturating_add(theirs);
        }
        // Every builder receives the time of the same process.
        self.cpu_ms = self.cpu_ms.max(other.cpu_ms);
        self.final_counters &= other.final_counters;
        self.device_away |= other.device_away;
        // A surplus at one builder does not make up for a lack at another.
        let opposite = self.unaccounted.signum() * other.unaccounted.signum() < 0;
        let theirs = if opposite { other.unaccounted.saturating_neg() } else { other.unaccounted };
        self.unaccounted = self.unaccounted.saturating_add(theirs);
    }
}

/// The final counters of a run, as one builder keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Sum of the absolute values of `unaccounted` over all sources.
    pub unaccounted: u64,
    /// One entry for each source, in the order of the topology.
    pub sources: Vec<LedgerEntry>,
    /// Number of connections refused because their source is not in the topology.
    pub unknown_sources: u64,
}

impl Ledger {
    /// Computes `unaccounted` of each source, and the sum.
    pub fn into_balanced(mut self) -> Self {
        for entry in &mut self.sources {
            entry.compute_unaccounted();
        }
        self.sum_unaccounted();
        self
    }

    fn sum_unaccounted(&mut self) {
        let unaccounted = self.sources.iter().map(|entry| entry.unaccounted.unsigned_abs());
        self.unaccounted = unaccounted.fold(0, u64::saturating_add);
    }

    /// Returns the sentences that explain why this ledger does not make a COMPLETE run; none if it does. `at_once`: the
    /// run was aborted, so that no source had time for its final counters.
    pub fn incomplete_reasons(&self, at_once: bool) -> Vec<String> {
        let mut reasons = Vec::new();
        for entry in &self.sources {
            let source = format!("source {} ({})", entry.source, entry.name);
            if !entry.final_counters && !at_once {
                reasons.push(format!("{source} sent no final counters: it died, hung or was disconnected"));
            }
            for (count, condition) in [
                (entry.lost, "lost"),
                (entry.damaged, "damaged in the device"),
                (entry.uncertain, "that may belong to other events"),
                (entry.corrupt, "damaged in transit"),
                (entry.late, "late"),
                (entry.dropped_newest.saturating_add(entry.dropped_oldest), "dropped at the source"),
                (entry.lost_in_device, "lost in the device"),
                (entry.skipped, "never mentioned by the source"),
            ] {
                if count > 0 {
                    let fragments = if count == 1 { "fragment" } else { "fragments" };
                    reasons.push(format!("{source}: {count} {fragments} {condition}"));
                }
            }
            // A fragment that came late has a reason of its own, and so has a source that died.
            let absent = entry.absent.saturating_sub(entry.late);
            if absent > 0 && entry.final_counters {
                let events = if absent == 1 { "event" } else { "events" };
                reasons.push(format!("{source}: {absent} {events} that it ended before, or did not mention in time"));
            }
            if entry.device_away {
                reasons.push(format!("{source}: its device was away when the run ended; how much it had is unknown"));
            }
            if entry.of_no_event > 0 {
                reasons.push(format!(
                    "{source}: {} frames or packets of frames could not be assigned to an event",
                    entry.of_no_event
                ));
            }
            if entry.unaccounted != 0 {
                reasons.push(format!("{source}: {} fragments UNACCOUNTED for", entry.unaccounted));
            }
        }
        reasons
    }

    /// Adds the final counters of another builder of the same run.
    pub fn merge_ledger(&mut self, other: &Self) {
        self.unknown_sources = self.unknown_sources.saturating_add(other.unknown_sources);
        for theirs in &other.sources {
            match self.sources.iter_mut().find(|ours| ours.source == theirs.source) {
                Some(ours) => ours.merge_entry(theirs),
                None => self.sources.push(theirs.clone()),
            }
        }
        self.sum_unaccounted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_damaged_from_its_device_is_a_reason_as_is_what_was_damaged_on_the_way() {
        let entry = LedgerEntry {
            source: "1.0".into(),
            name: "camera".into(),
            accepted: 5,
            recorded: 4,
            damaged: 3,
            corrupt: 1,
            final_counters: true,
            ..LedgerEntry::default()
        };
        let ledger = Ledger { sources: vec![entry], ..Ledger::default() }.into_balanced();
        let source = "source 1.0 (camera)";
        let reasons = [
            format!("{source}: 3 fragments damaged in the device"),
            format!("{source}: 1 fragment damaged in transit"),
        ];
        assert_eq!(ledger.incomplete_reasons(false), reasons);
    }
}
