//! Progress of the builder with one source.

use super::Builder;
use crate::build::LedgerEntry;

/// Progress of the builder with one source, during a run.
#[derive(Debug, Clone, Copy)]
pub struct SourceProgress<'a> {
    /// Ledger entry of the source, up to now. A built fragment is counted in [`built`](Self::built) alone until it is
    /// known whether it was recorded.
    pub ledger: &'a LedgerEntry,
    /// Number of fragments that the source has offered.
    pub offered: u64,
    /// Number of fragments built.
    pub built: u64,
    /// Number of offers that are not completed: waiting, requested, or held until their events are closed.
    pub open_offers: u64,
    /// True if the source has sent its final counters.
    pub ended: bool,
    /// True if the source was given up: nothing more is expected of it in this run.
    pub given_up: bool,
}

impl Builder {
    /// Returns the progress with the source at index `source` of the builder's list of sources.
    ///
    /// # Panics
    /// There is no source at this index.
    pub fn progress_of(&self, source: usize) -> SourceProgress<'_> {
        let entry = &self.sources[source];
        SourceProgress {
            ledger: &entry.ledger,
            offered: entry.offered,
            built: entry.built,
            open_offers: entry.open_offers(),
            ended: entry.final_counters.is_some(),
            given_up: self.is_given_up(source),
        }
    }
}
