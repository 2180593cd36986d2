//! Clocks of a node: monotonic time, date, and processor time.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fmt::Debug;
use std::time::Duration;
use thalweg_device::TaiClock;
use thalweg_wire::TaiNanos;

/// Clocks of a node: monotonic time, date, and processor time.
pub trait Clock: Debug + Send + Sync {
    /// Returns the time since an arbitrary beginning, which never goes back.
    fn now(&self) -> Duration;

    /// Returns the date in TAI, which may be set forwards and back.
    fn date(&self) -> TaiNanos;

    /// Returns TAI minus UTC in seconds.
    fn tai_utc_offset(&self) -> i32;

    /// Returns the processor time of this process so far, user and system, all threads.
    fn processor_time(&self) -> Duration;
}

/// Clocks of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        now()
    }

    fn date(&self) -> TaiNanos {
        TaiClock.now()
    }

    fn tai_utc_offset(&self) -> i32 {
        TaiClock.tai_minus_utc_seconds()
    }

    fn processor_time(&self) -> Duration {
        duration(clock_gettime(ClockId::ProcessCPUTime))
    }
}

/// Returns the time since an arbitrary beginning, which never goes back (`CLOCK_MONOTONIC`).
pub(crate) fn now() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
