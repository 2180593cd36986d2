//! Time as counted by run control.

use std::time::Duration;

/// Longest interval at which the node calls its run control while a run is under way. A longer one is a standstill of the
/// node.
pub const LONGEST_STEP: Duration = Duration::from_millis(500);

/// Time that passes in steps. A step counts at most [`LONGEST_STEP`], so that a process that was
/// stalled, or a clock that jumped forward, does not look like a silent source; a clock that jumps back counts as no
/// time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    clock: Option<Duration>,
    elapsed: Duration,
    held_up: bool,
}

impl Pace {
    /// Returns the last reading of the clock.
    pub(crate) fn last_reading(&self) -> Duration {
        self.clock.unwrap_or_default()
    }

    /// Returns the total time that has passed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Advances the clock to `now`. Returns the time that passed, cut to one step, and the part of it during which the
    /// builder itself did not hold its sources up.
    pub(crate) fn advance_to(&mut self, now: Duration) -> (Duration, Duration) {
        let before = self.clock.replace(now).unwrap_or(now);
        let passed = now.saturating_sub(before).min(LONGEST_STEP);
        self.elapsed += passed;
        let free = if self.held_up { Duration::ZERO } else { passed };
        (passed, free)
    }

    /// Sets whether the builder holds its sources up: no block is free.
    pub(crate) fn set_held_up(&mut self, held_up: bool) {
        self.held_up = held_up;
    }
}
