//! The clocks of a node: one that orders, and one that charges. The one that dates is `thalweg_device::TaiClock`.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// Time since an arbitrary beginning that never goes back (`CLOCK_MONOTONIC`).
pub fn now() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

/// Processor time of this process so far, user and system, all threads.
pub fn cpu() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
