//! Numbers drawn from a seed.

use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// Random number generator with a seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix_bits(seed))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.0)
    }

    /// Returns a number within a range that is not empty.
    pub(crate) fn draw_from(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next_u64() % (range.end - range.start).max(1)
    }

    /// Returns true on average once in `times` calls.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.next_u64().is_multiple_of(times)
    }

    pub(crate) fn pick_one<T: Clone>(&mut self, of: &[T]) -> T {
        let at = usize::try_from(self.draw_from(0..of.len() as u64)).unwrap_or(0);
        of[at].clone()
    }

    /// Returns a duration of a number of milliseconds within a range.
    pub(crate) fn draw_milliseconds(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.draw_from(range))
    }

    /// Returns a number within a range, whose logarithm is uniformly distributed.
    pub(crate) fn draw_logarithmic(&mut self, range: Range<u64>) -> u64 {
        let (low, high) = ((range.start.max(1) as f64).ln(), (range.end.max(2) as f64).ln());
        let part = self.next_u64() as f64 / u64::MAX as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the range")]
        let drawn = (low + (high - low) * part).exp() as u64;
        drawn.clamp(range.start, range.end.saturating_sub(1))
    }
}
