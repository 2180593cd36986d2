//! Copies of the latest fragments of a builder's sources, for clients that show a run.

use crate::Handle;
use bytes::Bytes as SharedBytes;
use serde_json::Value;
use thalweg_link::Bytes;
use thalweg_wire::{EventId, FragmentHeader, PayloadType, RecordBytes, Records, RunNumber, SourceId, TaiNanos};

/// Longest payload that is copied, in bytes.
const MAX_SAMPLE_BYTES: usize = 32 << 20;

/// Copy of a fragment, as a builder received it: whole, and with a payload that agrees with its checksum.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Number of the run.
    pub run: RunNumber,
    /// Number of the event.
    pub event: EventId,
    /// Time of the event.
    pub timestamp: TaiNanos,
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// The payload.
    pub payload: SharedBytes,
    /// Description of the source, as in `run.json`.
    pub description: Value,
}

/// Fragments that are to be copied, and copies that are to be published.
#[derive(Debug)]
pub(crate) struct Samples {
    /// For each source: its next fragment is to be copied.
    wanted: Vec<bool>,
    copied: Vec<Option<Sample>>,
    /// True if there are copies to be published.
    has_copies: bool,
}

impl Samples {
    /// Creates an empty list for this number of sources.
    pub(crate) fn new(sources: usize) -> Self {
        Self { wanted: vec![false; sources], copied: vec![None; sources], has_copies: false }
    }

    /// Publishes what was copied, with the sources' descriptions, and takes the requests for newer fragments.
    pub(crate) fn exchange_samples(&mut self, handle: &Handle, describe: impl Fn(usize) -> Value) {
        if self.has_copies {
            for (source, sample) in self.copied.iter_mut().enumerate() {
                if let Some(sample) = sample {
                    sample.description = describe(source);
                }
            }
            self.has_copies = !handle.publish_samples(&mut self.copied);
        }
        handle.take_sample_requests(&mut self.wanted);
    }

    /// Copies the first fragment of a slot, if one of this source is wanted. One that is not whole, not that source's,
    /// damaged or too long is passed over, and the next slot has its turn.
    #[inline]
    pub(crate) fn copy_if_wanted(&mut self, source: usize, id: SourceId, bytes: &Bytes) {
        if self.wanted[source]
            && let Some((header, payload)) = copy_first_fragment(id, bytes)
        {
            self.wanted[source] = false;
            self.has_copies = true;
            self.copied[source] = Some(Sample {
                run: header.run,
                event: header.event,
                timestamp: header.timestamp,
                payload_type: header.payload_type,
                payload,
                description: Value::Null,
            });
        }
    }
}

#[cold]
fn copy_first_fragment(id: SourceId, bytes: &Bytes) -> Option<(FragmentHeader, SharedBytes)> {
    let (_, header, range) = Records::new(bytes).next()?.ok()?;
    if header.source != id || !header.is_whole_fragment() || range.is_empty() || range.len() > MAX_SAMPLE_BYTES {
        return None;
    }
    let mut payload = vec![0; range.len()];
    bytes.copy_bytes_to(range.start, &mut payload);
    // The copy is checked, and not what another process may still write.
    let is_intact = header.crc_matches(|| thalweg_wire::crc32c(&payload));
    is_intact.then(|| (header, payload.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_that_was_asked_for_is_copied_and_no_other() {
        let (handle, mut samples) = (Handle::new().unwrap(), Samples::new(3));
        handle.request_sample(1);
        // A source that another topology has.
        handle.request_sample(7);
        samples.exchange_samples(&handle, |_| Value::Null);
        assert_eq!(samples.wanted, [false, true, false]);
        samples.copied[1] = Some(Sample {
            run: RunNumber(1),
            event: EventId(2),
            timestamp: TaiNanos(3),
            payload_type: PayloadType::RAW,
            payload: vec![4].into(),
            description: Value::Null,
        });
        (samples.has_copies, samples.wanted[1]) = (true, false);
        samples.exchange_samples(&handle, Value::from);
        let shown = handle.latest_sample(1).unwrap();
        assert_eq!((shown.event, &shown.description), (EventId(2), &Value::from(1)));
        assert_eq!((handle.latest_sample(0), handle.latest_sample(7)), (None, None));
        assert_eq!(samples.wanted, [false; 3], "it is copied once for each request");
    }
}
