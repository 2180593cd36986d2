//! Copies of the latest fragments of a builder's sources, for clients that show a run.

use crate::Handle;
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
    pub payload: Vec<u8>,
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

    /// Publishes what was copied, with the sources' descriptions, and takes a request for newer fragments.
    pub(crate) fn exchange_samples(&mut self, handle: &Handle, describe: impl Fn(usize) -> Value) {
        if self.has_copies {
            for (source, sample) in self.copied.iter_mut().enumerate() {
                if let Some(sample) = sample {
                    sample.description = describe(source);
                }
            }
            self.has_copies = !handle.publish_samples(&mut self.copied);
        }
        if handle.take_sample_request() {
            self.wanted.fill(true);
        }
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
fn copy_first_fragment(id: SourceId, bytes: &Bytes) -> Option<(FragmentHeader, Vec<u8>)> {
    let (_, header, range) = Records::new(bytes).next()?.ok()?;
    if header.source != id || !header.is_whole_fragment() || range.is_empty() || range.len() > MAX_SAMPLE_BYTES {
        return None;
    }
    let mut payload = vec![0; range.len()];
    bytes.copy_bytes_to(range.start, &mut payload);
    // The copy is checked, and not what another process may still write.
    let is_intact = header.crc_matches(|| thalweg_wire::crc32c(&payload));
    is_intact.then_some((header, payload))
}
