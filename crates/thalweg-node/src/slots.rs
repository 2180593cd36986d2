//! Filling of slots: fragments one after the other, each with its header; content already there is reused.

use thalweg_arena::Slot;
use thalweg_device::{Device, DeviceError, Filled, Frame};
use thalweg_wire::{
    EventId, FragmentHeader, HEADER_LEN, PayloadType, RunNumber, SourceId, Status, TaiNanos, crc32c, record_len,
};

/// Content of a record in a slot from an earlier use: a device whose data repeat, as those of a DMA ring do, need not
/// write them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    key: u64,
    len: usize,
    crc: u32,
}

/// Traces of all slots.
#[derive(Debug)]
pub(crate) struct Traces(Vec<Vec<Trace>>);

impl Traces {
    pub(crate) fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| Vec::new()).collect())
    }

    /// Forgets the content of a slot that a device writes into by itself.
    pub(crate) fn forget(&mut self, slot: u32) {
        if let Some(traces) = self.0.get_mut(slot as usize) {
            traces.clear();
        }
    }

    /// Returns whether the slot begins with the content of this key.
    pub(crate) fn begins_with(&self, slot: u32, key: Option<u64>) -> bool {
        key.is_some() && self.0.get(slot as usize).and_then(|t| t.first()).map(|trace| trace.key) == key
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

/// Values that are the same in all headers of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) run: RunNumber,
    pub(crate) source: SourceId,
}

impl Stamp {
    /// Returns the header of a fragment of `len` bytes that its source received at `now`.
    fn header(
        self,
        event: EventId,
        sequence: u32,
        len: usize,
        payload_crc: u32,
        filled: Filled,
        now: TaiNanos,
    ) -> FragmentHeader {
        #[expect(clippy::cast_possible_truncation, reason = "a payload fits a slot, which has at most 1 GiB")]
        let length = len as u32;
        let Self { run, source } = self;
        let Filled { payload_type, mut status, window, timestamp } = filled;
        status.set(Status::EMPTY, status.contains(Status::EMPTY) || len == 0);
        // The time of simulated or replayed data is the time at which they are requested.
        let is_measured = !status.intersects(Status::SIMULATED | Status::REPLAYED);
        status.set(Status::ARRIVAL_TIME, timestamp.is_none() && is_measured);
        FragmentHeader {
            payload_type,
            status,
            run,
            event,
            timestamp: timestamp.unwrap_or(now),
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
    /// Creates a slot from a device's frame, with one fragment. Fails, with the room there was in bytes, if the frame
    /// is longer.
    pub(crate) fn acquired(
        frame: Frame,
        stamp: Stamp,
        event: EventId,
        sequence: u32,
        now: TaiNanos,
    ) -> Result<Self, usize> {
        let Frame { buffer, len, filled, crc, .. } = frame;
        let mut slot = buffer.into_slot();
        let room = slot.len() - HEADER_LEN;
        let Some(payload) = slot[HEADER_LEN..].get(..len) else { return Err(room) };
        let crc = crc.unwrap_or_else(|| crc32c(payload));
        let header = stamp.header(event, sequence, len, crc, filled, now);
        slot[..HEADER_LEN].copy_from_slice(&header.encode());
        Ok(Self { slot, first: event, count: 1, used: record_len(len) })
    }

    pub(crate) fn new(slot: Slot, first: EventId) -> Self {
        Self { slot, first, count: 0, used: 0 }
    }

    /// Returns whether a fragment with `payload` bytes fits after those already there, with at most `most_records` in
    /// all.
    pub(crate) fn has_room(&self, payload: usize, most_records: u32) -> bool {
        self.count < most_records && self.used + record_len(payload) <= self.slot.len()
    }

    /// Returns the header of the last fragment, whose payload has `len` bytes.
    pub(crate) fn last_header(&self, len: usize) -> Option<FragmentHeader> {
        let at = self.used.checked_sub(record_len(len))?;
        FragmentHeader::decode(&self.slot[at..]).ok()
    }

    /// Returns the bytes of records so far.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Takes the next fragment from the device. Returns false if the device has none for this event because its
    /// recording has a gap.
    #[expect(clippy::too_many_arguments, reason = "what a header needs comes from as many places")]
    pub(crate) fn take(
        &mut self,
        device: &mut dyn Device,
        traces: &mut Traces,
        stamp: Stamp,
        event: EventId,
        sequence: u32,
        len: usize,
        now: TaiNanos,
    ) -> Result<bool, DeviceError> {
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
                // The content after this record may have been overwritten.
                traces.truncate(at);
                if let Some(key) = key {
                    traces.push(Trace { key, len, crc });
                }
                (filled, crc)
            }
        };
        if len == 0 && filled.status.contains(Status::MISSING) {
            return Ok(false);
        }
        let header = stamp.header(event, sequence, len, crc, filled, now);
        record[..HEADER_LEN].copy_from_slice(&header.encode());
        self.used += record_len(len);
        self.count += 1;
        Ok(true)
    }

    /// Puts a pushed fragment after those already there.
    pub(crate) fn put(
        &mut self,
        traces: &mut Traces,
        stamp: Stamp,
        event: EventId,
        sequence: u32,
        fragment: &PushedFragment<'_>,
        now: TaiNanos,
    ) {
        // Pushed content has no key: all earlier knowledge of this slot's content is void.
        traces.0[self.slot.index() as usize].clear();
        let len = fragment.payload.len();
        let record = &mut self.slot[self.used..self.used + record_len(len)];
        let payload = &mut record[HEADER_LEN..HEADER_LEN + len];
        payload.copy_from_slice(fragment.payload);
        let PushedFragment { payload_type, status, timestamp, window, .. } = *fragment;
        let filled = Filled { payload_type, status, window, timestamp };
        let header = stamp.header(event, sequence, len, crc32c(payload), filled, now);
        record[..HEADER_LEN].copy_from_slice(&header.encode());
        self.used += record_len(len);
        self.count += 1;
    }
}
