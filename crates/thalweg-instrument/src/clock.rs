//! The instrument's own time, in each of its datagrams or fragments.

use crate::Epoch;
use thalweg_device::DeviceClock;
use thalweg_wire::TaiNanos;

/// Nanoseconds in a second.
pub(crate) const NANOS: u64 = 1_000_000_000;

/// What a datagram says of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) ticks: u64,
    /// Bits of the field that they were in.
    pub(crate) bits: u32,
    /// Nanoseconds that are beside whole seconds.
    pub(crate) nanos: u64,
}

/// A clock that counts so many ticks in a second.
#[derive(Debug)]
pub(crate) struct Clock {
    hertz: u64,
    /// Since when it counts, where that is known.
    epoch: Option<Epoch>,
    /// Where it counts since anything.
    clock: DeviceClock,
    /// The ticks seen last, in 64 bits.
    ticks: Option<u64>,
}

impl Clock {
    pub(crate) fn new(hertz: u64, epoch: Option<Epoch>) -> Self {
        Self { hertz, epoch, clock: DeviceClock { hertz, offset: None }, ticks: None }
    }

    /// Whether it counts since anything, and is set by when the first datagram comes.
    pub(crate) fn is_free_running(&self) -> bool {
        self.epoch.is_none()
    }

    /// It may have begun anew.
    pub(crate) fn restarted(&mut self) {
        *self = Self::new(self.hertz, self.epoch);
    }

    /// Returns ticks in 64 bits: those that end in these bits and are nearest to the last.
    fn extend(&mut self, ticks: u64, bits: u32) -> u64 {
        let missing = 64 - bits;
        if missing == 0 {
            return ticks;
        }
        let last = self.ticks.unwrap_or(ticks + (1 << bits));
        let ahead = (ticks.wrapping_sub(last) << missing).cast_signed() >> missing;
        *self.ticks.insert(last.wrapping_add_signed(ahead))
    }

    /// Returns when that was; nothing where it is no time. `now` is by this machine's clock.
    pub(crate) fn date(&mut self, time: Ticks, now: TaiNanos) -> Option<TaiNanos> {
        let Ticks { ticks, bits, nanos } = time;
        if nanos >= NANOS {
            return None;
        }
        let Some(epoch) = self.epoch else {
            let ticks = self.extend(ticks, bits);
            if self.clock.offset.is_none() {
                self.clock.set(ticks, TaiNanos(now.0.saturating_sub(nanos)));
            }
            return self.clock.at(ticks)?.0.checked_add(nanos).map(TaiNanos);
        };
        let second = epoch.tai_second(ticks / self.hertz)?;
        let part = u64::try_from(u128::from(ticks % self.hertz) * u128::from(NANOS) / u128::from(self.hertz)).ok()?;
        second.checked_mul(NANOS)?.checked_add(part)?.checked_add(nanos).map(TaiNanos)
    }
}
