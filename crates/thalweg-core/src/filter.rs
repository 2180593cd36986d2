//! Trigger levels: decisions, from an event's fragments, on whether the event is kept.
//!
//! A decision is any implementation of [`Decide`]. Level 2 gets the fragments of the few sources it is configured with,
//! the event filter those of all sources. A [`Condition`] evaluates features: rows of numbers that sources send.
//! [`Simulated`] decides without reading any fragment: it stands in for the physics where only the flow of data is
//! studied, and reports that it does. A [`Program`] is a separate process, which answers [`Questions`] in any language
//! and at its own pace.

mod condition;
mod process;
mod program;
mod questions;

pub use condition::Condition;
pub use process::{Process, Programs, SystemPrograms};
pub use program::{Program, ProgramConfig, Undecided};
pub use questions::{Question, Questions};

use std::fmt::{self, Debug};
use thalweg_wire::{EventId, FragmentHeader, GOLDEN_GAMMA, RecordBytes, mix_bits};

/// A fragment that a decision is made on. Its header and, where the builder checks payloads, its payload were checked.
#[derive(Clone, Copy)]
pub struct Fragment<'a> {
    /// Header: source, time and description of the content.
    pub header: FragmentHeader,
    bytes: &'a dyn RecordBytes,
    payload: usize,
}

impl<'a> Fragment<'a> {
    /// Returns the fragment whose payload begins at byte `payload` of `bytes`.
    pub fn new(header: FragmentHeader, bytes: &'a dyn RecordBytes, payload: usize) -> Self {
        Self { header, bytes, payload }
    }

    /// Returns the length of the payload, in bytes.
    pub fn len(&self) -> usize {
        self.header.piece_length as usize
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes of the payload to `out`, from byte `at` on: over shared memory the payload is in memory
    /// that the source can still write to.
    ///
    /// # Panics
    /// The payload has fewer bytes.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.len() && out.len() <= self.len() - at, "a payload has {} bytes", self.len());
        self.bytes.copy_bytes_to(self.payload + at, out);
    }
}

impl fmt::Debug for Fragment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fragment").field("header", &self.header).finish_non_exhaustive()
    }
}

/// A trigger level: accepts events, or rejects them.
pub trait Decide: Debug + Send {
    /// Returns whether the event is kept. `fragments` are those that have arrived, in no particular order; sources that
    /// had none, or whose fragment was damaged or lost, are not among them, so there may be none at all.
    fn accept_event(&mut self, event: EventId, fragments: &mut dyn Iterator<Item = Fragment<'_>>) -> bool;

    /// Returns the number of events so far that could not be decided.
    fn undecided_events(&self) -> u64 {
        0
    }

    /// Returns whether decisions are random draws.
    fn is_simulated(&self) -> bool;
}

/// Accepts a fraction of the events, drawn from their number alone: the same events in each run and at each builder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    accept: f64,
    seed: u64,
}

impl Simulated {
    /// Returns a level that accepts the fraction `accept`, from 0 (no event) to 1 (all). Two levels need different
    /// seeds: with the same seed the second would accept what the first accepted.
    pub fn new(accept: f64, seed: u64) -> Self {
        Self { accept, seed }
    }
}

impl Decide for Simulated {
    fn accept_event(&mut self, event: EventId, _fragments: &mut dyn Iterator<Item = Fragment<'_>>) -> bool {
        draw_fraction(self.seed, event.0) < self.accept
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

/// Returns a number from 0 up to, but not including, 1: the upper 53 bits of SplitMix64's first output for a seed made
/// of its first output for `seed` and the event's number.
fn draw_fraction(seed: u64, event: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let upper = (first_output(first_output(seed) ^ event) >> 11) as f64;
    upper / (1u64 << 53) as f64
}

/// Returns SplitMix64's first output for a seed.
fn first_output(seed: u64) -> u64 {
    mix_bits(seed.wrapping_add(GOLDEN_GAMMA))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(mut level: impl Decide, events: impl IntoIterator<Item = u64>) -> Vec<u64> {
        events.into_iter().filter(|event| level.accept_event(EventId(*event), &mut std::iter::empty())).collect()
    }

    #[test]
    fn a_simulated_level_accepts_its_fraction_of_any_share_of_the_events() {
        for stride in [1, 2, 3, 64] {
            let accepted = accepted(Simulated::new(0.03, 1), (0..100_000).map(|event| event * stride)).len();
            // Five standard deviations of 100 000 draws.
            assert!((2730..3270).contains(&accepted), "{accepted} with stride {stride}");
        }
    }

    #[test]
    fn it_accepts_the_same_events_every_time_and_others_with_another_seed() {
        let events = || 0..10_000;
        let [one, again, other] = [1, 1, 2].map(|seed| accepted(Simulated::new(0.1, seed), events()));
        assert_eq!(one, again);
        let both = one.iter().filter(|event| other.contains(event)).count();
        assert!((50..150).contains(&both), "{both} of about a hundred");
    }

    #[test]
    fn none_and_all_are_none_and_all() {
        let events = || (0..1000).chain(u64::MAX - 1000..=u64::MAX);
        assert_eq!(accepted(Simulated::new(0.0, 3), events()), [] as [u64; 0]);
        assert_eq!(accepted(Simulated::new(1.0, 3), events()).len(), 2001);
    }
}
