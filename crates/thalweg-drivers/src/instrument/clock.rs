//! The instrument's own time, in each of its datagrams or fragments.

use crate::instrument::Epoch;
use thalweg_device::DeviceClock;
use thalweg_wire::TaiNanos;

/// Nanoseconds in a second.
pub(crate) const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Time that a datagram carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) ticks: u64,
    /// Number of bits of the field that held the ticks.
    pub(crate) bits: u32,
    /// Nanoseconds in addition to whole seconds.
    pub(crate) nanos: u64,
}

/// A clock that counts `hertz` ticks in a second.
#[derive(Debug)]
pub(crate) struct Clock {
    hertz: u64,
    /// Epoch of the count, if it is known.
    epoch: Option<Epoch>,
    /// Clock that is used if the epoch is unknown.
    clock: DeviceClock,
    /// Ticks that were seen last, extended to 64 bits.
    ticks: Option<u64>,
}

impl Clock {
    pub(crate) fn new(hertz: u64, epoch: Option<Epoch>) -> Self {
        Self { hertz, epoch, clock: DeviceClock { hertz, offset: None }, ticks: None }
    }

    /// Returns true if the epoch is unknown, so that the arrival of the first datagram sets the clock.
    pub(crate) fn is_free_running(&self) -> bool {
        self.epoch.is_none()
    }

    /// Forgets the setting of the clock, since the instrument may have restarted its count.
    pub(crate) fn forget_setting(&mut self) {
        *self = Self::new(self.hertz, self.epoch);
    }

    /// Returns the ticks extended to 64 bits: the value with these low bits that is nearest to the last one.
    fn extend_ticks(&mut self, ticks: u64, bits: u32) -> u64 {
        let missing = 64 - bits;
        if missing == 0 {
            return ticks;
        }
        let last = self.ticks.unwrap_or(ticks + (1 << bits));
        let ahead = (ticks.wrapping_sub(last) << missing).cast_signed() >> missing;
        *self.ticks.insert(last.wrapping_add_signed(ahead))
    }

    /// Returns the date of a datagram's time; `None` if it is not a valid time. `now` is by this machine's clock.
    pub(crate) fn date_of_ticks(&mut self, time: Ticks, now: TaiNanos) -> Option<TaiNanos> {
        let Ticks { ticks, bits, nanos } = time;
        if nanos >= NANOS_PER_SECOND {
            return None;
        }
        let Some(epoch) = self.epoch else {
            let ticks = self.extend_ticks(ticks, bits);
            if self.clock.offset.is_none() {
                self.clock.set_offset(ticks, TaiNanos(now.0.saturating_sub(nanos)));
            }
            return self.clock.time_of_ticks(ticks)?.0.checked_add(nanos).map(TaiNanos);
        };
        let second = epoch.tai_second(ticks / self.hertz)?;
        let part =
            u64::try_from(u128::from(ticks % self.hertz) * u128::from(NANOS_PER_SECOND) / u128::from(self.hertz))
                .ok()?;
        second.checked_mul(NANOS_PER_SECOND)?.checked_add(part)?.checked_add(nanos).map(TaiNanos)
    }
}
