//! A simulated device that records its fragments.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, Device, DeviceError, Frame, HeaderValues};
use thalweg_wire::{EventId, PayloadType, Status, mix_bits};

/// Fate of an event's fragment at its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Had {
    /// The fragment was written into a slot.
    HeaderValues,
    /// The event was skipped, because no slot was free.
    Skipped,
    /// The device lost it: it had no slot, or was unplugged.
    Lost,
}

/// Fragments of a device, by event.
#[derive(Debug, Clone, Default)]
pub struct Truth(Arc<Mutex<BTreeMap<u64, Had>>>);

impl Truth {
    /// Returns all fragments so far.
    pub fn fragments(&self) -> MutexGuard<'_, BTreeMap<u64, Had>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the payload of a source's fragment.
pub(crate) fn fragment_payload(seed: u64, source: usize, event: u64, longest: usize) -> Vec<u8> {
    let drawn = mix_bits(seed ^ mix_bits(event ^ (source as u64) << 48));
    let length = usize::try_from(drawn % (longest as u64 + 1)).unwrap_or(0);
    let words = (0..length.div_ceil(8) as u64).map(|at| mix_bits(drawn.wrapping_add(at)));
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

/// A device whose fragments are distinguishable.
#[derive(Debug)]
pub(crate) struct WorldDevice {
    pub(crate) seed: u64,
    pub(crate) source: usize,
    pub(crate) longest: usize,
    /// Number of events of the device.
    pub(crate) events: u64,
    /// Number of the next event.
    pub(crate) next: u64,
    pub(crate) truth: Truth,
    description: Description,
}

impl WorldDevice {
    pub(crate) fn new(seed: u64, source: usize, longest: usize, events: u64, truth: Truth) -> Self {
        let description = Description { kind: "world".into(), simulated: true, ..Description::default() };
        Self { seed, source, longest, events, next: 0, truth, description }
    }

    fn record_and_advance(&mut self, event: EventId, had: Had) -> HeaderValues {
        self.next = event.0 + 1;
        self.truth.fragments().insert(event.0, had);
        HeaderValues { payload_type: PayloadType::RAW, status: Status::SIMULATED, window: 0, timestamp: None }
    }
}

impl Device for WorldDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.longest
    }

    fn next_payload_bytes(&mut self) -> Option<usize> {
        (self.next < self.events).then(|| fragment_payload(self.seed, self.source, self.next, self.longest).len())
    }

    fn content_key(&self, _event: EventId) -> Option<u64> {
        None
    }

    fn fill_payload(&mut self, event: EventId, bytes: &mut [u8]) -> Result<HeaderValues, DeviceError> {
        bytes.copy_from_slice(&fragment_payload(self.seed, self.source, event.0, self.longest));
        Ok(self.record_and_advance(event, Had::HeaderValues))
    }

    fn skip_fragment(&mut self, event: EventId) -> HeaderValues {
        self.record_and_advance(event, Had::Skipped)
    }
}

/// Number of buffers that a self-driven device has at a time.
const BUFFER_COUNT: u32 = 4;

/// Time until which a device is unplugged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plug(Arc<AtomicU64>);

impl Plug {
    pub(crate) fn unplug_until(&self, at: Duration) {
        self.0.fetch_max(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn is_plugged_in(&self, now: Duration) -> bool {
        now >= self.unplugged_until()
    }

    fn unplugged_until(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A self-driven device, at a rate of its own, whether or not it has a buffer.
#[derive(Debug)]
pub(crate) struct WorldAcquisition {
    device: WorldDevice,
    interval: Duration,
    plug: Plug,
    buffers: VecDeque<Buffer>,
    /// Time at which the first frame was due, once the device was started.
    began: Option<Duration>,
    away: bool,
}

impl WorldAcquisition {
    pub(crate) fn new(device: WorldDevice, rate: f64, plug: Plug) -> Self {
        let interval = Duration::from_secs_f64(1.0 / rate);
        Self { device, interval, plug, buffers: VecDeque::new(), began: None, away: false }
    }

    /// Loses the events that are due by now.
    fn lose_fragments(&mut self, due: u64) -> Acquired {
        let first = self.device.next;
        (first..due).for_each(|event| {
            self.device.record_and_advance(EventId(event), Had::Lost);
        });
        Acquired::Lost { first, count: due - first }
    }
}

impl Acquisition for WorldAcquisition {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn max_payload_bytes(&self) -> usize {
        self.device.max_payload_bytes()
    }

    fn max_posted_buffers(&self) -> u32 {
        BUFFER_COUNT
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.buffers.push_back(buffer);
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        let began = *self.began.get_or_insert(now);
        let passed = (now - began).as_nanos() / self.interval.as_nanos().max(1);
        let due = u64::try_from(passed + 1).unwrap_or(u64::MAX).min(self.device.events);
        self.away = !self.plug.is_plugged_in(now);
        if self.device.next >= self.device.events {
            return Ok(Acquired::Over);
        }
        if self.away || self.device.next >= due {
            return Ok(Acquired::NotYet);
        }
        // Events without a buffer are lost; the last ones are filled.
        let kept = u64::try_from(self.buffers.len()).unwrap_or(u64::MAX);
        if due - self.device.next > kept {
            return Ok(self.lose_fragments(due - kept));
        }
        let Some(mut buffer) = self.buffers.pop_front() else { return Ok(Acquired::NotYet) };
        let number = self.device.next;
        let len = self.device.next_payload_bytes().unwrap_or(0);
        let filled = self.device.fill_payload(EventId(number), &mut buffer.payload_mut()[..len])?;
        Ok(Acquired::Frame(Frame { buffer, number, len, filled, crc: None, copied: 0 }))
    }

    fn is_away(&self) -> bool {
        self.away
    }

    fn next_poll_time(&self) -> Option<Duration> {
        let began = self.began?;
        if self.away {
            return Some(self.plug.unplugged_until());
        }
        let next = u32::try_from(self.device.next).unwrap_or(u32::MAX);
        Some(began + self.interval.saturating_mul(next))
    }
}
