//! Filling of slots: fragments one after the other, each with its header; content already there is reused.

use std::sync::Arc;
use thalweg_arena::{Arena, Slot, SlotPool};
use thalweg_device::{Device, DeviceError, Frame, HeaderValues};
use thalweg_wire::{
    EventId, FragmentHeader, HEADER_LEN, PayloadType, RunNumber, SourceId, Status, TaiNanos, crc32c, record_bytes,
};

/// Content of a record in a slot from an earlier use: a device whose data repeat, as those of a DMA ring do, need not
/// write them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    key: u64,
    len: usize,
    crc: u32,
}

/// Slots of a source: the free ones, and the content that each has from an earlier use.
#[derive(Debug)]
pub(crate) struct Slots {
    pool: SlotPool,
    /// Traces of each slot's records, by the slot's number.
    traces: Vec<Vec<Trace>>,
}

impl Slots {
    /// Takes over a pool whose slots are all free.
    pub(crate) fn new(pool: SlotPool) -> Self {
        Self { traces: (0..pool.slot_count()).map(|_| Vec::new()).collect(), pool }
    }

    /// Returns the arena in which the slots lie.
    pub(crate) fn slot_arena(&self) -> &Arc<Arena> {
        self.pool.arena()
    }

    /// Takes a free slot, if possible one that already begins with the content of this key.
    pub(crate) fn take_free(&mut self, key: Option<u64>) -> Option<Slot> {
        let Self { pool, traces } = self;
        pool.take_preferred_slot(|slot| {
            let first = traces.get(slot as usize).and_then(|traces| traces.first());
            key.is_some() && first.map(|trace| trace.key) == key
        })
    }

    /// Takes a free slot for a device that writes into it by itself.
    pub(crate) fn take_for_acquisition(&mut self) -> Option<Slot> {
        let slot = self.pool.take_slot()?;
        self.traces[slot.slot_index() as usize].clear();
        Some(slot)
    }

    /// Frees a slot.
    pub(crate) fn give_back_slot(&mut self, slot: Slot) {
        self.pool.return_slot(slot);
    }
}

/// One fragment as a program provides it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PushedFragment<'a> {
    /// Payload bytes.
    pub payload: &'a [u8],
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// Status bits. *Empty* is set automatically if there is no payload.
    pub status: Status,
    /// Time at which it happened; now, when absent.
    pub timestamp: Option<TaiNanos>,
    /// Time that the payload covers, in nanoseconds.
    pub window: u32,
}

/// Slot that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) slot: Slot,
    pub(crate) first: EventId,
    pub(crate) count: u32,
    used: usize,
}

/// Values of a fragment's header that do not depend on its payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) run: RunNumber,
    pub(crate) source: SourceId,
    pub(crate) event: EventId,
    pub(crate) sequence: u32,
    /// Time at which the source received the fragment.
    pub(crate) received: TaiNanos,
}

impl Stamp {
    /// Returns the header of a fragment of `len` bytes.
    fn fragment_header(self, len: usize, payload_crc: u32, filled: HeaderValues) -> FragmentHeader {
        #[expect(clippy::cast_possible_truncation, reason = "a payload fits a slot, which has at most 1 GiB")]
        let length = len as u32;
        let Self { run, source, event, sequence, received } = self;
        let HeaderValues { payload_type, mut status, window, timestamp } = filled;
        status.set(Status::EMPTY, status.contains(Status::EMPTY) || len == 0);
        // The time of simulated or replayed data is the time at which they are requested.
        let is_measured = !status.intersects(Status::SIMULATED | Status::REPLAYED);
        status.set(Status::ARRIVAL_TIME, timestamp.is_none() && is_measured);
        FragmentHeader {
            payload_type,
            status,
            run,
            event,
            timestamp: timestamp.unwrap_or(received),
            source,
            sequence,
            total_length: length,
            offset: 0,
            piece_length: length,
            window,
            payload_crc,
        }
    }
}

impl Filling {
    /// Begins to fill an empty slot.
    pub(crate) fn new(slot: Slot, first: EventId) -> Self {
        Self { slot, first, count: 0, used: 0 }
    }

    /// Creates a slot from a device's frame, with one fragment. Fails, with the room there was in bytes, if the frame
    /// is longer.
    pub(crate) fn from_frame(frame: Frame, stamp: Stamp) -> Result<Self, usize> {
        let Frame { buffer, len, filled, crc, .. } = frame;
        let mut filling = Self::new(buffer.into_slot(), stamp.event);
        let room = filling.slot.len() - HEADER_LEN;
        if len > room {
            return Err(room);
        }
        let crc = crc.unwrap_or_else(|| crc32c(filling.payload_mut(len)));
        filling.seal_record(len, stamp.fragment_header(len, crc, filled));
        Ok(filling)
    }

    /// Returns whether a fragment with `payload` bytes fits after those already there, with at most `max_records` in
    /// all.
    pub(crate) fn has_room_for(&self, payload: usize, max_records: u32) -> bool {
        self.count < max_records && self.used + record_bytes(payload) <= self.slot.len()
    }

    /// Returns the header of the last fragment, whose payload has `len` bytes.
    pub(crate) fn last_header(&self, len: usize) -> Option<FragmentHeader> {
        let at = self.used.checked_sub(record_bytes(len))?;
        FragmentHeader::decode(&self.slot[at..]).ok()
    }

    /// Returns the bytes of records so far.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used
    }

    /// Takes the next fragment from the device. Returns false if the device has none for this event because its
    /// recording has a gap.
    pub(crate) fn take_from_device(
        &mut self,
        device: &mut dyn Device,
        slots: &mut Slots,
        stamp: Stamp,
        len: usize,
    ) -> Result<bool, DeviceError> {
        let traces = &mut slots.traces[self.slot.slot_index() as usize];
        let position = self.count as usize;
        let key = device.content_key(stamp.event);
        let (filled, crc) = match traces.get(position) {
            Some(trace) if Some(trace.key) == key && trace.len == len => (device.skip_fragment(stamp.event), trace.crc),
            _ => {
                let payload = self.payload_mut(len);
                let filled = device.fill_payload(stamp.event, payload)?;
                let crc = crc32c(payload);
                // The content after this record may have been overwritten.
                traces.truncate(position);
                if let Some(key) = key {
                    traces.push(Trace { key, len, crc });
                }
                (filled, crc)
            }
        };
        if len == 0 && filled.status.contains(Status::MISSING) {
            return Ok(false);
        }
        self.seal_record(len, stamp.fragment_header(len, crc, filled));
        Ok(true)
    }

    /// Puts a pushed fragment after those already there.
    pub(crate) fn put(&mut self, slots: &mut Slots, stamp: Stamp, fragment: &PushedFragment<'_>) {
        // Pushed content has no key: all earlier knowledge of this slot's content is void.
        slots.traces[self.slot.slot_index() as usize].clear();
        let payload = self.payload_mut(fragment.payload.len());
        payload.copy_from_slice(fragment.payload);
        let crc = crc32c(payload);
        let PushedFragment { payload_type, status, timestamp, window, .. } = *fragment;
        let filled = HeaderValues { payload_type, status, window, timestamp };
        self.seal_record(fragment.payload.len(), stamp.fragment_header(fragment.payload.len(), crc, filled));
    }

    /// Returns the bytes of the next fragment's payload.
    fn payload_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.slot[self.used + HEADER_LEN..][..len]
    }

    /// Ends the next fragment, whose payload is in its place, with its header.
    fn seal_record(&mut self, len: usize, header: FragmentHeader) {
        self.slot[self.used..][..HEADER_LEN].copy_from_slice(&header.encode());
        self.used += record_bytes(len);
        self.count += 1;
    }
}
