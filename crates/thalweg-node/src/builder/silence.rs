//! Sources that are connected and silent while events are closed without them: found once for each silence.

use std::collections::BTreeMap;

/// Silences of a builder's sources.
#[derive(Debug)]
pub(super) struct Silences {
    /// Number of incomplete events at the last check.
    incomplete: u64,
    /// By source, the number of events that were closed without it, at the last check.
    absent: Vec<u64>,
    /// By silent source, that number before its silence.
    before: BTreeMap<usize, u64>,
}

/// Beginning or end of a silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SilenceChange {
    /// A first event was closed without the source.
    Begun,
    /// The source has caught up, or is not waited for any more.
    Ended {
        /// Number of events that were closed without it.
        events: u64,
    },
}

impl Silences {
    /// Creates the state before a run of this number of sources.
    pub(super) fn new(sources: usize) -> Self {
        Self { incomplete: 0, absent: vec![0; sources], before: BTreeMap::new() }
    }

    /// Returns whether the sources are to be checked, given the number of incomplete events so far.
    pub(super) fn is_check_due(&mut self, incomplete: u64) -> bool {
        std::mem::replace(&mut self.incomplete, incomplete) != incomplete || !self.before.is_empty()
    }

    /// Checks a source. `absent`: number of events so far that were closed without it. `is_awaited`: it is connected, and
    /// has neither ended nor been given up. `has_caught_up`: it has mentioned all events that are closed.
    pub(super) fn check_source(
        &mut self,
        source: usize,
        absent: u64,
        is_awaited: bool,
        has_caught_up: bool,
    ) -> Option<SilenceChange> {
        let last = std::mem::replace(&mut self.absent[source], absent);
        match self.before.get(&source) {
            None if is_awaited && absent > last => {
                self.before.insert(source, last);
                Some(SilenceChange::Begun)
            }
            Some(before) if !is_awaited || has_caught_up => {
                let events = absent.saturating_sub(*before);
                self.before.remove(&source);
                Some(SilenceChange::Ended { events })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_found_once_and_its_events_are_counted_at_its_end() {
        let mut silences = Silences::new(2);
        assert!(!silences.is_check_due(0));
        assert!(silences.is_check_due(3));
        assert_eq!(silences.check_source(0, 0, true, true), None, "the other source is silent");
        assert_eq!(silences.check_source(1, 3, true, false), Some(SilenceChange::Begun));
        assert!(silences.is_check_due(3), "its end is looked for");
        assert_eq!(silences.check_source(1, 7, true, false), None);
        // It sends again, but events that it has not come to are still closed without it.
        assert_eq!(silences.check_source(1, 9, true, false), None);
        assert_eq!(silences.check_source(1, 9, true, true), Some(SilenceChange::Ended { events: 9 }));
        assert!(!silences.is_check_due(3));
        // The next silence is one of its own, and ends with the connection.
        assert_eq!(silences.check_source(1, 11, true, false), Some(SilenceChange::Begun));
        assert_eq!(silences.check_source(1, 12, false, false), Some(SilenceChange::Ended { events: 3 }));
        // The absence of a source that is not connected is reported as such.
        assert_eq!(silences.check_source(1, 13, false, false), None);
    }
}
