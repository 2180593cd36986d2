//! How far the builder is with one source.

use super::Builder;
use crate::LedgerEntry;

/// How far the builder is with one source, while a run goes on.
#[derive(Debug, Clone, Copy)]
pub struct SourceProgress<'a> {
    /// Its line in the ledger, so far. What was built is in [`built`](Self::built) until it is known whether it was
    /// recorded.
    pub ledger: &'a LedgerEntry,
    /// Fragments that it has offered.
    pub accepted: u64,
    /// Fragments built.
    pub built: u64,
    /// Offers that are open.
    pub backlog: u64,
    /// Whether it has sent its final counters.
    pub ended: bool,
    /// Whether it was given up.
    pub given_up: bool,
}

impl Builder {
    /// How far it is with a source.
    pub fn progress_of(&self, source: usize) -> SourceProgress<'_> {
        let entry = &self.sources[source];
        SourceProgress {
            ledger: &entry.ledger,
            accepted: entry.offered,
            built: entry.built,
            backlog: entry.open(),
            ended: entry.accounts.is_some(),
            given_up: self.is_given_up(source),
        }
    }
}
