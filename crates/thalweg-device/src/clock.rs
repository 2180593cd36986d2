//! The clock that dates fragments and runs.

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use thalweg_wire::{TAI_MINUS_UTC, TaiNanos};

/// The clock that dates fragments and runs.
///
/// The kernel may learn TAI minus UTC at any time (`adjtimex(2)`, from the NTP or PTP daemon). Until then the value
/// since 2017 is assumed: times do not jump when the kernel learns it.
#[derive(Debug, Clone, Copy)]
pub struct TaiClock;

impl TaiClock {
    /// Returns the present time.
    pub fn now(self) -> TaiNanos {
        let (utc, tai) = (clock_gettime(ClockId::Realtime), read_tai_clock());
        let seconds = u64::try_from(tai.tv_sec + correction_seconds(utc, tai)).unwrap_or(0);
        let nanos = u64::try_from(tai.tv_nsec).unwrap_or(0);
        TaiNanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// Returns TAI minus UTC in seconds.
    pub fn tai_minus_utc_seconds(self) -> i32 {
        let (utc, tai) = (clock_gettime(ClockId::Realtime), read_tai_clock());
        let known = (timespec_nanos(tai) - timespec_nanos(utc) + 500_000_000).div_euclid(1_000_000_000);
        i32::try_from(known + i128::from(correction_seconds(utc, tai))).unwrap_or(0)
    }
}

fn timespec_nanos(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Returns the seconds to add to `CLOCK_TAI`: zero if the kernel knows the offset.
fn correction_seconds(utc: Timespec, tai: Timespec) -> i64 {
    // The two readings may lie on either side of a second's beginning.
    if tai.tv_sec - utc.tv_sec > 1 { 0 } else { TAI_MINUS_UTC.into() }
}

/// Reads `CLOCK_TAI`, which every Linux since 3.10 has.
fn read_tai_clock() -> Timespec {
    clock_gettime_dynamic(DynamicClockId::Tai).unwrap_or_else(|_| clock_gettime(ClockId::Realtime))
}
