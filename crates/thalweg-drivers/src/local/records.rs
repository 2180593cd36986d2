//! Boundaries of records in a stream of bytes: all of one length, or each preceded by its length.

use crate::local::LengthPrefix;

/// Rule by which records are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordLength {
    /// Each record has this number of bytes.
    Fixed(usize),
    /// Each record is preceded by a number, its length in bytes, which is at most `max_bytes`.
    Prefixed { prefix: LengthPrefix, max_bytes: usize },
}

/// Parser state of a stream of records. Does no IO: the caller asks where the next bytes go, reads them, and reports
/// their number.
#[derive(Debug)]
pub(crate) struct RecordParser {
    rule: RecordLength,
    prefix_bytes: [u8; 8],
    /// Number of bytes of `prefix_bytes` that have arrived.
    prefix_received: usize,
    /// Number of bytes of the record that have arrived.
    received: usize,
    /// Offset of the current record in the stream, in bytes: of its length prefix, if it has one.
    pub(crate) offset: u64,
}

impl RecordParser {
    pub(crate) fn new(rule: RecordLength) -> Self {
        Self { rule, prefix_bytes: [0; 8], prefix_received: 0, received: 0, offset: 0 }
    }

    /// Returns the length of the current record in bytes, or `None` until it is known.
    pub(crate) fn record_len(&self) -> Option<usize> {
        match self.rule {
            RecordLength::Fixed(bytes) => Some(bytes),
            RecordLength::Prefixed { prefix, .. } => {
                let bytes = usize::from(prefix.bytes);
                // Saturates: `receive_head` refuses a length above the limit.
                let prefix_bytes = self.prefix_bytes.get(..bytes).filter(|_| self.prefix_received == bytes)?;
                Some(usize::try_from(decode_number(prefix_bytes, prefix.little_endian)).unwrap_or(usize::MAX))
            }
        }
    }

    /// Returns the number of bytes of the current record that have arrived.
    pub(crate) fn received_bytes(&self) -> usize {
        self.received
    }

    /// Returns the buffer for the bytes of the length prefix that have not arrived; empty once the length is known.
    pub(crate) fn missing_head_mut(&mut self) -> &mut [u8] {
        match self.rule {
            RecordLength::Fixed(_) => &mut [],
            RecordLength::Prefixed { prefix, .. } => {
                &mut self.prefix_bytes[self.prefix_received..usize::from(prefix.bytes)]
            }
        }
    }

    /// Returns the number of bytes of the next record's length prefix; 0 for records of fixed length.
    pub(crate) fn next_head_bytes(&self) -> usize {
        match self.rule {
            RecordLength::Fixed(_) => 0,
            RecordLength::Prefixed { prefix, .. } => usize::from(prefix.bytes),
        }
    }

    /// Counts `bytes` more bytes of the length prefix as arrived.
    ///
    /// # Errors
    /// The record's length is above the limit; the text states what to do.
    pub(crate) fn receive_head(&mut self, bytes: usize) -> Result<(), String> {
        self.prefix_received += bytes;
        let RecordLength::Prefixed { max_bytes, .. } = self.rule else { return Ok(()) };
        self.record_len().filter(|len| *len > max_bytes).map_or(Ok(()), |len| Err(too_long_problem(len, max_bytes)))
    }

    /// Counts `bytes` more bytes of the current record as arrived. If that completes the record, advances to the next
    /// one and returns the length of the completed record, in bytes; otherwise `None`.
    pub(crate) fn receive_bytes(&mut self, bytes: usize) -> Option<usize> {
        self.received += bytes;
        let len = self.record_len().filter(|len| self.received == *len)?;
        self.offset += (self.prefix_received + len) as u64;
        (self.prefix_received, self.received) = (0, 0);
        Some(len)
    }

    /// Drops the incomplete record. Returns the number of bytes dropped, those of its length prefix included.
    pub(crate) fn drop_incomplete(&mut self) -> usize {
        let bytes = self.prefix_received + self.received;
        self.offset += bytes as u64;
        (self.prefix_received, self.received) = (0, 0);
        bytes
    }
}

fn too_long_problem(len: usize, max_bytes: usize) -> String {
    format!(
        "the length before a record is {len} bytes, and size allows {max_bytes}: raise size, or check the number of \
         bytes and the byte order of length"
    )
}

/// Returns the unsigned number that up to eight bytes encode.
pub(crate) fn decode_number(bytes: &[u8], little_endian: bool) -> u64 {
    (0..bytes.len()).fold(0, |number, i| {
        let byte = bytes[if little_endian { bytes.len() - 1 - i } else { i }];
        number << 8 | u64::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the records of a stream that is read in pieces of these lengths.
    fn records(rule: RecordLength, stream: &[u8], pieces: &[usize]) -> Result<(Vec<Vec<u8>>, usize), String> {
        let (mut records, mut rest, mut out, mut payload) = (RecordParser::new(rule), stream, Vec::new(), Vec::new());
        let mut pieces = pieces.iter().copied().cycle();
        loop {
            if records.record_len() == Some(0) {
                assert_eq!(records.receive_bytes(0), Some(0));
                out.push(Vec::new());
                continue;
            }
            let missing =
                records.record_len().map_or(records.missing_head_mut().len(), |len| len - records.received_bytes());
            let bytes = missing.min(rest.len()).min(pieces.next().unwrap());
            if rest.is_empty() {
                return Ok((out, records.drop_incomplete()));
            }
            let (piece, later) = rest.split_at(bytes);
            rest = later;
            if records.record_len().is_none() {
                records.missing_head_mut()[..bytes].copy_from_slice(piece);
                records.receive_head(bytes)?;
            } else {
                payload.extend_from_slice(piece);
                if let Some(len) = records.receive_bytes(bytes) {
                    assert_eq!(payload.len(), len);
                    out.push(std::mem::take(&mut payload));
                }
            }
        }
    }

    proptest! {
        /// For any division of a stream into reads, the records are returned, and the bytes left at its end are
        /// counted.
        #[test]
        fn records_come_out_however_the_stream_is_cut(
            written in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..12),
            pieces in proptest::collection::vec(1usize..50, 1..8),
            bytes in 1u8..=8,
            little_endian: bool,
            lacking in 0usize..30,
        ) {
            let prefix = LengthPrefix { bytes, little_endian };
            let mut stream = Vec::new();
            for record in &written {
                let length = (record.len() as u64).to_be_bytes();
                let mut number = length[8 - usize::from(bytes)..].to_vec();
                if little_endian {
                    number.reverse();
                }
                stream.extend(number);
                stream.extend(record);
            }
            let whole = stream.len().saturating_sub(lacking);
            let (out, left) = records(RecordLength::Prefixed { prefix, max_bytes: 40 }, &stream[..whole], &pieces).unwrap();
            prop_assert_eq!(&out[..], &written[..out.len()]);
            let taken: usize = out.iter().map(|record| record.len() + usize::from(bytes)).sum();
            prop_assert_eq!(taken + left, whole);
            prop_assert!(out.len() == written.len() || left < usize::from(bytes) + written[out.len()].len());

            let (out, left) = records(RecordLength::Fixed(7), &stream, &pieces).unwrap();
            prop_assert!(out.iter().flatten().eq(&stream[..stream.len() / 7 * 7]));
            prop_assert_eq!(left, stream.len() % 7);
        }

        /// For any bytes, no record is longer than the limit.
        #[test]
        fn a_record_that_is_too_long_is_refused(stream in proptest::collection::vec(any::<u8>(), 0..200), bytes in 1u8..=8) {
            let prefix = LengthPrefix { bytes, little_endian: false };
            if let Ok((out, _)) = records(RecordLength::Prefixed { prefix, max_bytes: 20 }, &stream, &[5]) {
                prop_assert!(out.iter().all(|record| record.len() <= 20));
            }
        }
    }
}
