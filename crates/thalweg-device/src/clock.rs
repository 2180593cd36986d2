//! The clock that dates fragments and runs.

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use thalweg_wire::{TAI_MINUS_UTC, TaiNanos};

/// The clock that dates fragments and runs.
#[derive(Debug, Clone, Copy)]
pub struct TaiClock {
    /// Seconds to add to `CLOCK_TAI`: zero where the kernel knows the offset.
    correction: i64,
    offset: i64,
}

impl TaiClock {
    /// Finds out whether the kernel knows TAI minus UTC (`adjtimex(2)`, usually from the NTP or PTP daemon).
    pub fn probe() -> Self {
        let known = tai().tv_sec - clock_gettime(ClockId::Realtime).tv_sec;
        // The two readings may lie on both sides of a second.
        let (correction, offset) = if known > 1 { (0, known) } else { (TAI_MINUS_UTC.into(), TAI_MINUS_UTC.into()) };
        Self { correction, offset }
    }

    /// Now.
    pub fn now(self) -> TaiNanos {
        let time = tai();
        let seconds = u64::try_from(time.tv_sec + self.correction).unwrap_or(0);
        TaiNanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// TAI minus UTC in seconds.
    pub fn offset(self) -> i32 {
        i32::try_from(self.offset).unwrap_or(0)
    }
}

/// `CLOCK_TAI`, which every Linux since 3.10 has.
fn tai() -> Timespec {
    clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_else(|_| clock_gettime(ClockId::Realtime))
}
