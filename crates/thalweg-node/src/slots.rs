//! Filling slots: fragments laid one behind the other, each header in place, and what is already there used again.

use thalweg_arena::Slot;
use thalweg_device::{Device, DeviceError};
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, RunNumber, SourceId, Status, TaiNanos, crc32c, record_len};

/// What stands in a slot from an earlier use, record by record: a device whose data repeat, as those of a DMA ring do,
/// need not write them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    key: u64,
    len: usize,
    crc: u32,
}

/// The traces of all slots.
#[derive(Debug)]
pub(crate) struct Traces(Vec<Vec<Trace>>);

impl Traces {
    pub(crate) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| Vec::new()).collect())
    }

    /// Whether the slot begins with the content of this key.
    pub(crate) fn begins_with(&self, slot: u32, key: Option<u64>) -> bool {
        key.is_some() && self.0.get(slot as usize).and_then(|t| t.first()).map(|trace| trace.key) == key
    }
}

/// A slot that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) slot: Slot,
    pub(crate) first: EventId,
    pub(crate) count: u32,
    used: usize,
}

/// What is the same in all headers of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) run: RunNumber,
    pub(crate) source: SourceId,
}

impl Filling {
    pub(crate) fn new(slot: Slot, first: EventId) -> Self {
        Self { slot, first, count: 0, used: 0 }
    }

    /// Whether a fragment with so many payload bytes fits behind those that are there.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        self.used + record_len(payload) <= self.slot.len()
    }

    /// Bytes of records so far.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Takes the next fragment from the device. Returns its payload's length.
    pub(crate) fn take(
        &mut self,
        device: &mut dyn Device,
        traces: &mut Traces,
        stamp: Stamp,
        event: EventId,
        sequence: u32,
        len: usize,
        now: impl FnOnce() -> TaiNanos,
    ) -> Result<(), DeviceError> {
        let traces = &mut traces.0[self.slot.index() as usize];
        let at = self.count as usize;
        let record = &mut self.slot[self.used..self.used + record_len(len)];
        let payload = &mut record[HEADER_LEN..HEADER_LEN + len];
        let key = device.content_key(event);
        let (filled, crc) = match traces.get(at) {
            Some(trace) if Some(trace.key) == key && trace.len == len => (device.skip(event), trace.crc),
            _ => {
                let filled = device.fill(event, payload)?;
                let crc = crc32c(payload);
                // What stood behind this record may have been overwritten.
                traces.truncate(at);
                if let Some(key) = key {
                    traces.push(Trace { key, len, crc });
                }
                (filled, crc)
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "a device's payload is at most 1 GiB")]
        let length = len as u32;
        let empty = if len == 0 && !filled.status.contains(Status::MISSING) { Status::EMPTY } else { Status::empty() };
        let header = FragmentHeader {
            payload_type: filled.payload_type,
            status: filled.status | empty,
            run: stamp.run,
            event,
            timestamp: filled.timestamp.unwrap_or_else(now),
            source: stamp.source,
            sequence,
            total_length: length,
            offset: 0,
            piece_length: length,
            window: filled.window,
            payload_crc: crc,
        };
        record[..HEADER_LEN].copy_from_slice(&header.encode());
        self.used += record_len(len);
        self.count += 1;
        Ok(())
    }
}
