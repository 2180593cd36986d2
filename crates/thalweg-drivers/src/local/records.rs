//! Boundaries of records in a stream of bytes: all of one length, or each preceded by its length.

use crate::local::LengthPrefix;

/// Rule by which records are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Each record has this number of bytes.
    Fixed(usize),
    /// Each record is preceded by a number, its length in bytes, which is at most `longest`.
    Prefixed { prefix: LengthPrefix, longest: usize },
}

/// Position in a stream of records. Without IO: it determines what to read next, and receives the number of bytes that
/// arrived.
#[derive(Debug)]
pub(crate) struct Records {
    rule: Rule,
    head: [u8; 8],
    /// Number of bytes of `head` that have arrived.
    head_has: usize,
    /// Number of bytes of the record that have arrived.
    has: usize,
    /// Offset in the stream at which the record begins, with the length before it.
    pub(crate) at: u64,
}

impl Records {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, head: [0; 8], head_has: 0, has: 0, at: 0 }
    }

    /// Returns the length of the current record in bytes, or `None` until it is known.
    pub(crate) fn record_len(&self) -> Option<usize> {
        match self.rule {
            Rule::Fixed(bytes) => Some(bytes),
            Rule::Prefixed { prefix, .. } => {
                let bytes = usize::from(prefix.bytes);
                // `head_came` has checked that it is no longer than allowed.
                let head = self.head.get(..bytes).filter(|_| self.head_has == bytes)?;
                Some(usize::try_from(decode_number(head, prefix.little_endian)).unwrap_or(usize::MAX))
            }
        }
    }

    /// Returns the number of bytes of the current record that have arrived.
    pub(crate) fn received_bytes(&self) -> usize {
        self.has
    }

    /// Returns the place of the missing bytes of the length before the record.
    pub(crate) fn missing_head_mut(&mut self) -> &mut [u8] {
        match self.rule {
            Rule::Fixed(_) => &mut [],
            Rule::Prefixed { prefix, .. } => &mut self.head[self.head_has..usize::from(prefix.bytes)],
        }
    }

    /// Returns the number of bytes of the length before the next record.
    pub(crate) fn next_head_bytes(&self) -> usize {
        match self.rule {
            Rule::Fixed(_) => 0,
            Rule::Prefixed { prefix, .. } => usize::from(prefix.bytes),
        }
    }

    /// Records that `bytes` more bytes of the length have arrived.
    ///
    /// # Errors
    /// Fails if the record would be longer than allowed; the text states what to do.
    pub(crate) fn receive_head(&mut self, bytes: usize) -> Result<(), String> {
        self.head_has += bytes;
        let Rule::Prefixed { longest, .. } = self.rule else { return Ok(()) };
        self.record_len().filter(|len| *len > longest).map_or(Ok(()), |len| Err(too_long_problem(len, longest)))
    }

    /// Records that `bytes` more bytes of the record have arrived. Returns its length if it is whole now; then the next
    /// record is the current one.
    pub(crate) fn receive_bytes(&mut self, bytes: usize) -> Option<usize> {
        self.has += bytes;
        let len = self.record_len().filter(|len| self.has == *len)?;
        self.at += (self.head_has + len) as u64;
        (self.head_has, self.has) = (0, 0);
        Some(len)
    }

    /// Drops the incomplete record, and returns the number of its bytes.
    pub(crate) fn drop_incomplete(&mut self) -> usize {
        let bytes = self.head_has + self.has;
        self.at += bytes as u64;
        (self.head_has, self.has) = (0, 0);
        bytes
    }
}

fn too_long_problem(len: usize, longest: usize) -> String {
    format!(
        "a record of {len} bytes is announced, but size is {longest}: increase size, or check the number of bytes and \
         the byte order of the length field"
    )
}

/// Returns a number of up to eight bytes.
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
    fn records(rule: Rule, stream: &[u8], pieces: &[usize]) -> Result<(Vec<Vec<u8>>, usize), String> {
        let (mut records, mut rest, mut out, mut payload) = (Records::new(rule), stream, Vec::new(), Vec::new());
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
            let (out, left) = records(Rule::Prefixed { prefix, longest: 40 }, &stream[..whole], &pieces).unwrap();
            prop_assert_eq!(&out[..], &written[..out.len()]);
            let taken: usize = out.iter().map(|record| record.len() + usize::from(bytes)).sum();
            prop_assert_eq!(taken + left, whole);
            prop_assert!(out.len() == written.len() || left < usize::from(bytes) + written[out.len()].len());

            let (out, left) = records(Rule::Fixed(7), &stream, &pieces).unwrap();
            prop_assert!(out.iter().flatten().eq(&stream[..stream.len() / 7 * 7]));
            prop_assert_eq!(left, stream.len() % 7);
        }

        /// For any bytes, no record is longer than the limit.
        #[test]
        fn a_record_that_is_too_long_is_refused(stream in proptest::collection::vec(any::<u8>(), 0..200), bytes in 1u8..=8) {
            let prefix = LengthPrefix { bytes, little_endian: false };
            if let Ok((out, _)) = records(Rule::Prefixed { prefix, longest: 20 }, &stream, &[5]) {
                prop_assert!(out.iter().all(|record| record.len() <= 20));
            }
        }
    }
}
