//! What a device that is away would have sent meanwhile, by its rate.

use std::time::Duration;

/// By how much the rate of a device differs from what it should be, at most, where it is a good one.
const MOST_DRIFT: f64 = 1e-4;

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
    /// rate none are known.
    pub fn due(self, rate: Option<f64>, now: Duration) -> u64 {
        let frames = rate.map_or(0.0, |rate| (now.saturating_sub(self.since).as_secs_f64() * rate).round() - 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is limited")]
        let frames = frames.clamp(0.0, 1e9) as u64;
        self.next.saturating_add(frames)
    }

    /// Whether that number is more than a guess: as many frames have passed as the rate says, give or take a quarter, and
    /// clocks that differ by 100 ppm agree on how many.
    pub fn is_certain(self, rate: Option<f64>, now: Duration) -> bool {
        let frames = rate.map_or(f64::NAN, |rate| now.saturating_sub(self.since).as_secs_f64() * rate);
        (frames - frames.round()).abs() + frames * MOST_DRIFT <= 0.25
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
        let is_certain = |rate, millis| absence.is_certain(rate, Duration::from_millis(millis));
        assert_eq!(
            [4000, 4004, 4006, 4014, 4016].map(|at| is_certain(Some(50.0), at)),
            [true, true, false, false, true]
        );
        assert!(!is_certain(None, 4000), "there is no rate");
        assert!(!is_certain(Some(50.0), 60_000), "clocks may differ by a frame by then");
    }
}
