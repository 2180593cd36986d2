//! Progress of the builder with one source.

use super::Builder;
use crate::build::LedgerEntry;

/// Progress of the builder with one source, during a run.
#[derive(Debug, Clone, Copy)]
pub struct SourceProgress<'a> {
    /// The source's entry in the ledger, so far. Built fragments are in [`built`](Self::built) until it is known
    /// whether they were recorded.
    pub ledger: &'a LedgerEntry,
    /// Number of fragments that the source has offered.
    pub accepted: u64,
    /// Number of fragments built.
    pub built: u64,
    /// Number of open offers.
    pub backlog: u64,
    /// True if the source has sent its final counters.
    pub ended: bool,
    /// True if the source was given up.
    pub given_up: bool,
}

impl Builder {
    /// Returns the progress with a source.
    pub fn progress_of(&self, source: usize) -> SourceProgress<'_> {
        let entry = &self.sources[source];
        SourceProgress {
            ledger: &entry.ledger,
            accepted: entry.offered,
            built: entry.built,
            backlog: entry.open_offers(),
            ended: entry.accounts.is_some(),
            given_up: self.is_given_up(source),
        }
    }
}
