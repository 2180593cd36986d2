//! What all recordings have in common: records in a row, played once or again and again.

use crate::{Contents, Description, Device, DeviceError, Filled, Rate};
use std::fmt::Debug;
use std::path::Path;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// A recording cut into records, counted from 0; there is at least one.
pub(crate) trait Recording: Debug + Send {
    /// How many there are.
    fn records(&self) -> u64;
    /// Bytes in one record's payload.
    fn payload_len(&self, record: u64) -> usize;
    /// What the header of its fragment says in the first pass.
    fn filled(&self, record: u64) -> Filled;
    /// Writes its payload; `payload` has the right length.
    fn read(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError>;
    /// Time from the first record to the end of the last, in nanoseconds; 0 where unknown.
    fn pass_nanos(&self) -> u64;
    /// The files of the first and of the last record, where it has several.
    fn ends(&self) -> Option<(&Path, &Path)> {
        None
    }
    /// Records that it says are invalid, and those that it has no payload of.
    fn marked(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// The times of records that come at one rate, counted from 0; no times where nobody says the rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(pub(crate) Option<Rate>);

impl Clock {
    /// What the header says of a record without more to say.
    pub(crate) fn filled(self, record: u64, payload_type: PayloadType) -> Filled {
        Filled {
            payload_type,
            status: Status::REPLAYED,
            window: u32::try_from(self.nanos(1)).unwrap_or(u32::MAX),
            timestamp: Some(TaiNanos(self.nanos(record))),
        }
    }

    /// How long so many records take.
    pub(crate) fn nanos(self, records: u64) -> u64 {
        self.0.map_or(0, |rate| rate.nanos(records))
    }
}

/// Plays a recording.
///
/// Which record an event carries follows from the event's number alone: the first event asked for, whatever its number,
/// carries record 0, the one after it record 1, and so on. So `content_key` can never promise other bytes than `fill`
/// writes.
#[derive(Debug)]
pub(crate) struct Replay<R> {
    recording: R,
    description: Description,
    max_payload: usize,
    looped: bool,
    /// The event that carries record 0 of the first pass.
    origin: Option<EventId>,
    /// Events taken so far: the position of the next one.
    next: u64,
}

impl<R: Recording> Replay<R> {
    /// Plays `recording`, whose longest payload is `max_payload` bytes.
    pub(crate) fn new(recording: R, description: Description, max_payload: usize, looped: bool) -> Self {
        debug_assert!(recording.records() > 0);
        let description = Description { replayed: true, looped, records: Some(recording.records()), ..description };
        Self { recording, description, max_payload, looped, origin: None, next: 0 }
    }

    /// How many events after the first `event` comes.
    fn position(&self, event: EventId) -> Option<u64> {
        let position = event.0.checked_sub(self.origin.unwrap_or(event).0)?;
        (self.looped || position < self.recording.records()).then_some(position)
    }

    fn filled(&self, position: u64) -> Filled {
        let records = self.recording.records();
        let (pass, record) = (position / records, position % records);
        let mut filled = self.recording.filled(record);
        // A repeated recording's clock runs on, so that time never goes back within a run.
        let later = pass.saturating_mul(self.recording.pass_nanos());
        let first = filled.timestamp.unwrap_or_default();
        filled.timestamp = Some(TaiNanos(first.0.saturating_add(later)));
        filled
    }

    fn advance(&mut self, event: EventId, position: u64) {
        self.origin.get_or_insert(event);
        self.next = position.saturating_add(1);
    }
}

impl<R: Recording> Device for Replay<R> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn contents(&self) -> Option<Contents> {
        let records = self.recording.records();
        let at = |record| self.recording.filled(record).timestamp.unwrap_or_default();
        let (invalid, missing) = self.recording.marked();
        Some(Contents {
            records,
            first: at(0),
            last: at(records - 1),
            nanos: self.recording.pass_nanos(),
            files: self.recording.ends().map(|(first, last)| [first, last].map(|file| file.display().to_string())),
            invalid,
            missing,
        })
    }

    fn next_len(&mut self) -> Option<usize> {
        let records = self.recording.records();
        (self.looped || self.next < records).then(|| self.recording.payload_len(self.next % records))
    }

    fn content_key(&self, event: EventId) -> Option<u64> {
        Some(self.position(event)? % self.recording.records())
    }

    fn fill(&mut self, event: EventId, payload: &mut [u8]) -> Result<Filled, DeviceError> {
        let records = self.recording.records();
        let position = self.position(event).ok_or(DeviceError::Event { event, records })?;
        let record = position % records;
        let expected = self.recording.payload_len(record);
        if payload.len() != expected {
            return Err(DeviceError::Buffer { event, expected, given: payload.len() });
        }
        self.recording.read(record, payload)?;
        self.advance(event, position);
        Ok(self.filled(position))
    }

    fn skip(&mut self, event: EventId) -> Filled {
        let position = self.position(event).expect("an event behind the end of the recording was skipped");
        self.advance(event, position);
        self.filled(position)
    }
}
