//! Where records begin and end in a stream of bytes: all of one length, or each with its length in front.

use crate::LengthPrefix;

/// How records are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Each has so many bytes.
    Fixed(usize),
    /// In front of each stands a number: how many bytes it has, at most so many.
    Prefixed { prefix: LengthPrefix, longest: usize },
}

/// How far the stream is. Without IO: it says what to read next, and is told how many bytes came.
#[derive(Debug)]
pub(crate) struct Records {
    rule: Rule,
    head: [u8; 8],
    /// Bytes of `head` that are there.
    head_has: usize,
    /// Bytes of the record that are there.
    has: usize,
    /// Where the record's length, or the record, begins in the stream.
    pub(crate) at: u64,
}

impl Records {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, head: [0; 8], head_has: 0, has: 0, at: 0 }
    }

    /// How many bytes the record in front has, once that is known.
    pub(crate) fn len(&self) -> Option<usize> {
        match self.rule {
            Rule::Fixed(bytes) => Some(bytes),
            Rule::Prefixed { prefix, .. } => {
                let bytes = usize::from(prefix.bytes);
                // `came` has seen that it is no longer than may be.
                let number =
                    || usize::try_from(number(&self.head[..bytes], prefix.little_endian)).unwrap_or(usize::MAX);
                (self.head_has == bytes).then(number)
            }
        }
    }

    /// Bytes of the record in front that are there.
    pub(crate) fn has(&self) -> usize {
        self.has
    }

    /// Bytes that are missing of the number in front of the record.
    pub(crate) fn missing_head(&mut self) -> &mut [u8] {
        match self.rule {
            Rule::Fixed(_) => &mut [],
            Rule::Prefixed { prefix, .. } => &mut self.head[self.head_has..usize::from(prefix.bytes)],
        }
    }

    /// Bytes of the number in front of the next record.
    pub(crate) fn next_head(&self) -> usize {
        match self.rule {
            Rule::Fixed(_) => 0,
            Rule::Prefixed { prefix, .. } => usize::from(prefix.bytes),
        }
    }

    /// So many bytes came of what is missing of the number.
    ///
    /// # Errors
    /// The record would be longer than any. What to do.
    pub(crate) fn head_came(&mut self, bytes: usize) -> Result<(), String> {
        self.head_has += bytes;
        let Rule::Prefixed { longest, .. } = self.rule else { return Ok(()) };
        self.len().filter(|len| *len > longest).map_or(Ok(()), |len| Err(too_long(len, longest)))
    }

    /// So many bytes came of the record. Its length, if that is all of it; then the next one is in front.
    pub(crate) fn came(&mut self, bytes: usize) -> Option<usize> {
        self.has += bytes;
        let len = self.len().filter(|len| self.has == *len)?;
        self.at += (self.head_has + len) as u64;
        (self.head_has, self.has) = (0, 0);
        Some(len)
    }

    /// What was there of a record goes. How many bytes that were.
    pub(crate) fn cut_off(&mut self) -> usize {
        let bytes = self.head_has + self.has;
        self.at += bytes as u64;
        (self.head_has, self.has) = (0, 0);
        bytes
    }
}

fn too_long(len: usize, longest: usize) -> String {
    format!(
        "a record of {len} bytes is announced, and size says {longest}: make size as large, or look whether the length in \
         front of records has as many bytes, in that order"
    )
}

/// A number of up to eight bytes.
pub(crate) fn number(bytes: &[u8], little_endian: bool) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    match little_endian {
        true => bytes.iter().rev().fold(0, join),
        false => bytes.iter().fold(0, join),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What comes out of a stream of which so many bytes are read at a time.
    fn records(rule: Rule, stream: &[u8], pieces: &[usize]) -> Result<(Vec<Vec<u8>>, usize), String> {
        let (mut records, mut rest, mut out, mut payload) = (Records::new(rule), stream, Vec::new(), Vec::new());
        let mut pieces = pieces.iter().copied().cycle();
        loop {
            if records.len() == Some(0) {
                assert_eq!(records.came(0), Some(0));
                out.push(Vec::new());
                continue;
            }
            let missing = records.len().map_or(records.missing_head().len(), |len| len - records.has());
            let bytes = missing.min(rest.len()).min(pieces.next().unwrap());
            if rest.is_empty() {
                return Ok((out, records.cut_off()));
            }
            let (piece, later) = rest.split_at(bytes);
            rest = later;
            if records.len().is_none() {
                records.missing_head()[..bytes].copy_from_slice(piece);
                records.head_came(bytes)?;
            } else {
                payload.extend_from_slice(piece);
                if let Some(len) = records.came(bytes) {
                    assert_eq!(payload.len(), len);
                    out.push(std::mem::take(&mut payload));
                }
            }
        }
    }

    proptest! {
        /// However a stream is cut into reads: its records come out, and what is left at its end is counted.
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

        /// Whatever comes: no record is longer than what was said.
        #[test]
        fn a_record_that_is_too_long_is_refused(stream in proptest::collection::vec(any::<u8>(), 0..200), bytes in 1u8..=8) {
            let prefix = LengthPrefix { bytes, little_endian: false };
            if let Ok((out, _)) = records(Rule::Prefixed { prefix, longest: 20 }, &stream, &[5]) {
                prop_assert!(out.iter().all(|record| record.len() <= 20));
            }
        }
    }
}
