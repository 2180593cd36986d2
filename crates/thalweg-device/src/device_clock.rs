//! Conversion from the ticks of a device's own clock to TAI.

use thalweg_wire::TaiNanos;

/// Rate and offset of a device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceClock {
    /// Ticks in a second; 0: the device has no clock.
    pub hertz: u64,
    /// Nanoseconds to add to the device's time. `None`: determined when the first frame comes.
    pub offset: Option<i128>,
}

impl DeviceClock {
    /// Clock of a device without one.
    pub const NONE: Self = Self { hertz: 0, offset: None };

    /// Returns the device's time in nanoseconds since its own epoch; `None` if it has no clock.
    pub fn nanos_from_ticks(&self, ticks: u64) -> Option<i128> {
        (self.hertz > 0).then(|| i128::from(ticks) * 1_000_000_000 / i128::from(self.hertz))
    }

    /// Sets the offset so that `ticks` corresponds to `now`.
    pub fn set_offset(&mut self, ticks: u64, now: TaiNanos) {
        self.offset = self.nanos_from_ticks(ticks).map(|nanos| i128::from(now.0) - nanos);
    }

    /// Returns the time of `ticks`, if it is known.
    pub fn time_of_ticks(&self, ticks: u64) -> Option<TaiNanos> {
        let time = self.nanos_from_ticks(ticks)?.checked_add(self.offset?)?;
        u64::try_from(time).ok().filter(|time| *time > 0).map(TaiNanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_times() {
        let mut clock = DeviceClock { hertz: 125_000_000, offset: None };
        assert_eq!(clock.time_of_ticks(125_000_000), None);
        clock.set_offset(125_000_000, TaiNanos(10_000_000_000));
        assert_eq!(clock.time_of_ticks(125_000_001), Some(TaiNanos(10_000_000_008)));
        assert_eq!(clock.time_of_ticks(0), Some(TaiNanos(9_000_000_000)));
        assert_eq!(clock.time_of_ticks(u64::MAX), None, "beyond all time");
        assert_eq!(DeviceClock::NONE.time_of_ticks(5), None);
    }
}
