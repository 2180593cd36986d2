//! The clocks of a host.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use thalweg_node::Clock;
use thalweg_wire::TaiNanos;

/// Date at time zero: 2026-01-01 00:00:37 TAI, in nanoseconds since 1970.
pub(crate) const EPOCH_TAI_NANOS: u64 = 1_767_225_637_000_000_000;

/// The time, which is shared by all hosts, and the date, which each host has its own of.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostClock {
    now: Arc<AtomicU64>,
    /// Offset of the host's date in nanoseconds.
    off: Arc<AtomicI64>,
}

impl HostClock {
    /// Returns the clock of another host, with the same time.
    pub(crate) fn for_another_host(&self) -> Self {
        Self { now: Arc::clone(&self.now), off: Arc::default() }
    }

    pub(crate) fn advance_to(&self, at: Duration) {
        self.now.fetch_max(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the host's date to this offset from the true one, in nanoseconds.
    pub(crate) fn shift_date(&self, nanos: i64) {
        self.off.store(nanos, Ordering::Relaxed);
    }
}

impl Clock for HostClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn date(&self) -> TaiNanos {
        let date = EPOCH_TAI_NANOS.saturating_add(self.now.load(Ordering::Relaxed));
        TaiNanos(date.saturating_add_signed(self.off.load(Ordering::Relaxed)))
    }

    fn tai_utc_offset(&self) -> i32 {
        37
    }

    fn processor_time(&self) -> Duration {
        Duration::ZERO
    }
}
