//! Looks in a recorded run for sources whose event numbers are shifted against each other.

use crate::verify::SourceCount;
use std::collections::BTreeMap;
use thalweg_wire::{EventTimes, FragmentHeader, SHIFT_WINDOW, Shift, SourceId, trigger_time};

/// Times of some events of a run: of the first thousand, and of a window at every quarter of each power of two. The
/// times of a run's parts can be merged.
#[derive(Debug, Clone, Default)]
pub struct RunTimes(BTreeMap<(u64, SourceId), EventTimes>);

impl RunTimes {
    /// Adds the time of a record.
    pub(crate) fn note_record(&mut self, header: &FragmentHeader) {
        let event = header.event.0;
        let distance = match event.checked_ilog2() {
            Some(power @ 10..) => 1 << (power - 2),
            _ => SHIFT_WINDOW,
        };
        let first = event - event % distance;
        if event - first < SHIFT_WINDOW
            && let Some(time) = trigger_time(header)
        {
            self.0
                .entry((first, header.source))
                .or_insert_with(|| EventTimes::new(first))
                .record_time(header.event, time);
        }
    }

    /// Adds the times of another part.
    pub fn merge_times(&mut self, other: Self) {
        for (key, times) in other.0 {
            self.0.entry(key).and_modify(|ours| ours.fill_missing_from(&times)).or_insert(times);
        }
    }

    /// Returns a sentence for each shift, with the first event for which it was found.
    pub fn find_shifts(&self, sources: &[SourceCount]) -> Vec<String> {
        let mut found = BTreeMap::new();
        let all: Vec<_> = self.0.iter().collect();
        for window in all.chunk_by(|one, other| one.0.0 == other.0.0) {
            let Some(reference) = EventTimes::best_reference(window.iter().map(|(_, times)| *times)) else { continue };
            let shifts: Vec<_> = window.iter().map(|(_, times)| times.triggers_behind(window[reference].1)).collect();
            for shift in Shift::against_majority(&shifts) {
                let (event, source) = window[shift.source].0;
                let other = window[shift.other].0.1;
                found.entry((source, shift.behind)).or_insert_with(|| {
                    let (source, other) = (source_display_name(*source, sources), source_display_name(other, sources));
                    (*event, shift.describe_shift(&source, &other, *event))
                });
            }
        }
        let mut found: Vec<_> = found.into_values().collect();
        found.sort_unstable();
        found.into_iter().map(|(_, text)| text).collect()
    }
}

/// Returns the number of a source, and its name in brackets.
fn source_display_name(id: SourceId, sources: &[SourceCount]) -> String {
    let id = id.to_string();
    match sources.iter().find(|source| source.source == id) {
        Some(source) => format!("{id} ({})", source.name),
        None => id,
    }
}
