//! From the ticks of a device's own clock to TAI.

use thalweg_wire::TaiNanos;

/// How a device's clock goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceClock {
    /// Ticks in a second; 0: it has none.
    pub hertz: u64,
    /// What is to be added to its nanoseconds. Nothing: found out by when the first frame comes.
    pub offset: Option<i128>,
}

impl DeviceClock {
    /// A device without one.
    pub const NONE: Self = Self { hertz: 0, offset: None };

    /// Its time in nanoseconds, from where it counts.
    pub fn nanos(&self, ticks: u64) -> Option<i128> {
        (self.hertz > 0).then(|| i128::from(ticks) * 1_000_000_000 / i128::from(self.hertz))
    }

    /// These ticks were now.
    pub fn set(&mut self, ticks: u64, now: TaiNanos) {
        self.offset = self.nanos(ticks).map(|nanos| i128::from(now.0) - nanos);
    }

    /// When that was, where it is known.
    pub fn at(&self, ticks: u64) -> Option<TaiNanos> {
        let time = self.nanos(ticks)?.checked_add(self.offset?)?;
        u64::try_from(time).ok().filter(|time| *time > 0).map(TaiNanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_times() {
        let mut clock = DeviceClock { hertz: 125_000_000, offset: None };
        assert_eq!(clock.at(125_000_000), None);
        clock.set(125_000_000, TaiNanos(10_000_000_000));
        assert_eq!(clock.at(125_000_001), Some(TaiNanos(10_000_000_008)));
        assert_eq!(clock.at(0), Some(TaiNanos(9_000_000_000)));
        assert_eq!(clock.at(u64::MAX), None, "beyond all time");
        assert_eq!(DeviceClock::NONE.at(5), None);
    }
}
