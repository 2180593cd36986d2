//! Common part of all recordings: consecutive records, played once or repeatedly.

use crate::{Contents, Description, Device, DeviceError, HeaderValues, Rate};
use std::fmt::Debug;
use std::path::Path;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// A recording cut into records, counted from 0; there is at least one.
pub(crate) trait Recording: Debug + Send {
    /// Returns the number of records.
    fn record_count(&self) -> u64;
    /// Returns the length of one record's payload, in bytes.
    fn payload_len(&self, record: u64) -> usize;
    /// Returns the header values of a record's fragment in the first pass.
    fn header_values(&self, record: u64) -> HeaderValues;
    /// Writes a record's payload; `payload` has the right length.
    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError>;
    /// Returns the time from the first record to the end of the last, in nanoseconds; 0 if unknown.
    fn pass_nanos(&self) -> u64;
    /// Returns the files of the first and of the last record, if there are several.
    fn boundary_files(&self) -> Option<(&Path, &Path)> {
        None
    }
    /// Returns the number of records that are marked as invalid, and of those without a payload.
    fn marked_counts(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// Times of records that come at one rate, counted from 0; without a rate there are no times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(pub(crate) Option<Rate>);

impl Clock {
    /// Returns the header values of a record that has no others.
    pub(crate) fn header_values(self, record: u64, payload_type: PayloadType) -> HeaderValues {
        HeaderValues {
            payload_type,
            status: Status::REPLAYED,
            window: u32::try_from(self.record_nanos(1)).unwrap_or(u32::MAX),
            timestamp: Some(TaiNanos(self.record_nanos(record))),
        }
    }

    /// Returns the time that `records` records take, in nanoseconds.
    pub(crate) fn record_nanos(self, records: u64) -> u64 {
        self.0.map_or(0, |rate| rate.nanos_for_count(records))
    }
}

/// Player of a recording.
///
/// The event's number alone determines its record: the first event requested, whatever its number, carries record 0,
/// the one after it record 1, and so on. So `content_key` never promises bytes other than those that `fill_payload`
/// writes.
#[derive(Debug)]
pub(crate) struct Replay<R> {
    recording: R,
    description: Description,
    max_payload: usize,
    looped: bool,
    /// Event that carries record 0 of the first pass.
    origin: Option<EventId>,
    /// Number of events taken so far: the position of the next one.
    next: u64,
}

impl<R: Recording> Replay<R> {
    /// Creates a player of `recording`, whose longest payload is `max_payload` bytes.
    pub(crate) fn new(recording: R, description: Description, max_payload: usize, looped: bool) -> Self {
        debug_assert!(recording.record_count() > 0);
        let description =
            Description { replayed: true, looped, records: Some(recording.record_count()), ..description };
        Self { recording, description, max_payload, looped, origin: None, next: 0 }
    }

    /// Returns the number of events from the first to `event`, or `None` if that is not in the recording.
    fn event_position(&self, event: EventId) -> Option<u64> {
        let position = event.0.checked_sub(self.origin.unwrap_or(event).0)?;
        (self.looped || position < self.recording.record_count()).then_some(position)
    }

    fn header_values(&self, position: u64) -> HeaderValues {
        let records = self.recording.record_count();
        let (pass, record) = (position / records, position % records);
        let mut filled = self.recording.header_values(record);
        // A repeated recording's clock runs on, so that time never goes back within a run.
        let later = pass.saturating_mul(self.recording.pass_nanos());
        let first = filled.timestamp.unwrap_or_default();
        filled.timestamp = Some(TaiNanos(first.0.saturating_add(later)));
        filled
    }

    fn advance_past(&mut self, event: EventId, position: u64) {
        self.origin.get_or_insert(event);
        self.next = position.saturating_add(1);
    }
}

impl<R: Recording> Device for Replay<R> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.max_payload
    }

    fn recording_contents(&self) -> Option<Contents> {
        let records = self.recording.record_count();
        let [first, last] =
            [0, records - 1].map(|record| self.recording.header_values(record).timestamp.unwrap_or_default());
        let (invalid, missing) = self.recording.marked_counts();
        Some(Contents {
            records,
            first,
            last,
            nanos: self.recording.pass_nanos(),
            files: self
                .recording
                .boundary_files()
                .map(|(first, last)| [first, last].map(|file| file.display().to_string())),
            invalid,
            missing,
        })
    }

    fn next_payload_bytes(&mut self) -> Option<usize> {
        let records = self.recording.record_count();
        (self.looped || self.next < records).then(|| self.recording.payload_len(self.next % records))
    }

    fn content_key(&self, event: EventId) -> Option<u64> {
        Some(self.event_position(event)? % self.recording.record_count())
    }

    fn fill_payload(&mut self, event: EventId, payload: &mut [u8]) -> Result<HeaderValues, DeviceError> {
        let records = self.recording.record_count();
        let position = self.event_position(event).ok_or(DeviceError::Event { event, records })?;
        let record = position % records;
        let expected = self.recording.payload_len(record);
        if payload.len() != expected {
            return Err(DeviceError::Buffer { event, expected, given: payload.len() });
        }
        self.recording.read_payload(record, payload)?;
        self.advance_past(event, position);
        Ok(self.header_values(position))
    }

    fn skip_fragment(&mut self, event: EventId) -> HeaderValues {
        let position = self.event_position(event).expect("an event after the end of the recording was skipped");
        self.advance_past(event, position);
        self.header_values(position)
    }
}
