//! The clocks of a node: one that orders, one that dates, one that charges.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fmt::Debug;
use std::time::Duration;
use thalweg_device::TaiClock;
use thalweg_wire::TaiNanos;

/// The clocks of a node: one that orders, one that dates, one that charges.
pub trait Clock: Debug + Send + Sync {
    /// Time since an arbitrary beginning that never goes back.
    fn now(&self) -> Duration;

    /// The date, in TAI: it may be set, forwards and back.
    fn date(&self) -> TaiNanos;

    /// TAI minus UTC in seconds.
    fn tai_utc_offset(&self) -> i32;

    /// Processor time of this process so far, user and system, all threads.
    fn cpu(&self) -> Duration;
}

/// The kernel's clocks.
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
        TaiClock.offset()
    }

    fn cpu(&self) -> Duration {
        duration(clock_gettime(ClockId::ProcessCPUTime))
    }
}

/// Time since an arbitrary beginning that never goes back (`CLOCK_MONOTONIC`).
pub(crate) fn now() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
