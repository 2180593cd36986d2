//! A device that knows what it had.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thalweg_device::{Description, Device, DeviceError, Filled};
use thalweg_wire::{EventId, PayloadType, Status, mix};

/// What became of an event's fragment at its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Had {
    /// It was written into a slot.
    Filled,
    /// It was passed over, because no slot was free.
    Skipped,
}

/// What a device had, by event.
#[derive(Debug, Clone, Default)]
pub struct Truth(Arc<Mutex<BTreeMap<u64, Had>>>);

impl Truth {
    /// All that it had.
    pub fn had(&self) -> MutexGuard<'_, BTreeMap<u64, Had>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Payload bytes of a source's fragment.
pub(crate) fn payload(seed: u64, source: usize, event: u64, longest: usize) -> Vec<u8> {
    let drawn = mix(seed ^ mix(event ^ (source as u64) << 48));
    let length = usize::try_from(drawn % (longest as u64 + 1)).unwrap_or(0);
    let word = |at: u64| mix(drawn.wrapping_add(at)).to_le_bytes();
    (0..length.div_ceil(8) as u64).flat_map(word).take(length).collect()
}

/// A device whose fragments can be told from each other.
#[derive(Debug)]
pub(crate) struct WorldDevice {
    pub(crate) seed: u64,
    pub(crate) source: usize,
    pub(crate) longest: usize,
    /// How many events it has.
    pub(crate) events: u64,
    /// The next one.
    pub(crate) next: u64,
    pub(crate) truth: Truth,
    description: Description,
}

impl WorldDevice {
    pub(crate) fn new(seed: u64, source: usize, longest: usize, events: u64, truth: Truth) -> Self {
        let description = Description { kind: "world".into(), simulated: true, ..Description::default() };
        Self { seed, source, longest, events, next: 0, truth, description }
    }

    fn step(&mut self, event: EventId, had: Had) -> Filled {
        self.next = event.0 + 1;
        self.truth.had().insert(event.0, had);
        Filled { payload_type: PayloadType::RAW, status: Status::SIMULATED, window: 0, timestamp: None }
    }
}

impl Device for WorldDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload(&self) -> usize {
        self.longest
    }

    fn next_len(&mut self) -> Option<usize> {
        (self.next < self.events).then(|| payload(self.seed, self.source, self.next, self.longest).len())
    }

    fn content_key(&self, _event: EventId) -> Option<u64> {
        None
    }

    fn fill(&mut self, event: EventId, bytes: &mut [u8]) -> Result<Filled, DeviceError> {
        bytes.copy_from_slice(&payload(self.seed, self.source, event.0, self.longest));
        Ok(self.step(event, Had::Filled))
    }

    fn skip(&mut self, event: EventId) -> Filled {
        self.step(event, Had::Skipped)
    }
}
