//! Time as run control counts it.

use std::time::Duration;

/// Time that passes in steps. A step counts at most [`LONGEST_STEP`](Self::LONGEST_STEP), so that a process that was
/// held up, or a clock that jumped forward, does not look like a source that kept silent; a clock that jumps back makes
/// none.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    clock: Option<Duration>,
    elapsed: Duration,
    held_up: bool,
}

impl Pace {
    /// The node looks at its run control at least this often while a run is under way.
    pub(crate) const LONGEST_STEP: Duration = Duration::from_millis(500);

    /// What the clock showed last.
    pub(crate) fn clock(&self) -> Duration {
        self.clock.unwrap_or_default()
    }

    /// All that has passed.
    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The clock shows `now`. Returns what passed, cut to one step, and what of it the builder itself did not hold up.
    pub(crate) fn step(&mut self, now: Duration) -> (Duration, Duration) {
        let before = self.clock.replace(now).unwrap_or(now);
        let passed = now.saturating_sub(before).min(Self::LONGEST_STEP);
        self.elapsed += passed;
        let free = if self.held_up { Duration::ZERO } else { passed };
        (passed, free)
    }

    /// Whether the builder holds its sources up from now on: no block is free.
    pub(crate) fn hold_up(&mut self, held_up: bool) {
        self.held_up = held_up;
    }
}
