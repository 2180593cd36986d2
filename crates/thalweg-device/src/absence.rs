//! Number of frames that an absent device would have sent meanwhile, by its rate.

use std::time::Duration;

/// Maximum relative deviation of a good device's rate from its nominal value.
const MAX_DRIFT: f64 = 1e-4;

/// Time since which no frame has come from a device, and the number that was next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// Arrival time of the device's last frame.
    pub since: Duration,
    /// Number after that of the last frame.
    pub next: u64,
}

impl Absence {
    /// Returns the number of a frame that comes now from a device with `rate` frames per second: the frames before it
    /// are lost. Without a rate no frames are counted as lost.
    pub fn expected_number(self, rate: Option<f64>, now: Duration) -> u64 {
        let frames = rate.map_or(0.0, |rate| (now.saturating_sub(self.since).as_secs_f64() * rate).round() - 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is limited")]
        let frames = frames.clamp(0.0, 1e9) as u64;
        self.next.saturating_add(frames)
    }

    /// Returns whether that number is more than a guess: the time passed is a whole number of frames by the rate, to
    /// within a quarter, and clocks that differ by 100 ppm agree on that number.
    pub fn is_certain(self, rate: Option<f64>, now: Duration) -> bool {
        let frames = rate.map_or(f64::NAN, |rate| now.saturating_sub(self.since).as_secs_f64() * rate);
        (frames - frames.round()).abs() + frames * MAX_DRIFT <= 0.25
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_goes_by_the_rate() {
        let absence = Absence { since: Duration::from_secs(3), next: 7 };
        let due = |rate, millis| absence.expected_number(rate, Duration::from_millis(millis));
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
