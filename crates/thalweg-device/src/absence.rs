//! What a device that is away would have sent meanwhile, by its rate.

use std::time::Duration;

/// Since when nothing has come of a device, and which of its numbers was next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// When its last frame came.
    pub since: Duration,
    /// The number after that one's.
    pub next: u64,
}

impl Absence {
    /// The number of a frame that comes now, of a device with so many frames per second: those before it are lost. Without a
    /// rate nobody knows of any.
    pub fn due(self, rate: Option<f64>, now: Duration) -> u64 {
        let frames = rate.map_or(0.0, |rate| (now.saturating_sub(self.since).as_secs_f64() * rate).round() - 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is limited")]
        let frames = frames.clamp(0.0, 1e9) as u64;
        self.next.saturating_add(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_goes_by_the_rate() {
        let absence = Absence { since: Duration::from_secs(3), next: 7 };
        let due = |rate, millis| absence.due(rate, Duration::from_millis(millis));
        assert_eq!([3000, 3010, 3020, 3029, 3031, 4000].map(|at| due(Some(50.0), at)), [7, 7, 7, 7, 8, 56]);
        assert_eq!([due(None, 9000), due(Some(50.0), 0), due(Some(f64::NAN), 9000)], [7; 3]);
    }
}
