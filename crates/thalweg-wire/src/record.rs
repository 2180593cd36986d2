//! Fragments laid one behind the other, each header in place in front of its payload: how a slot is filled, what a
//! fetch moves, and how a block on disk is made.

use crate::{FragmentHeader, HEADER_LEN, HeaderError};
use thiserror::Error;

/// Each record begins at a multiple of this many bytes, so that headers and payloads are cache-line aligned.
pub const RECORD_ALIGN: usize = 64;

/// The most records in one slot: bounds what a builder must keep room for beside a slot's bytes.
pub const MAX_RECORDS: u32 = 4096;

/// Bytes that a fragment with `payload` bytes takes: header, payload, and padding to [`RECORD_ALIGN`].
pub const fn record_len(payload: usize) -> usize {
    (HEADER_LEN + payload).next_multiple_of(RECORD_ALIGN)
}

/// Why a run of records cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// No header where one should be.
    #[error("record at byte {at}: {error}")]
    Header {
        /// Where the record begins.
        at: usize,
        /// What is wrong with it.
        error: HeaderError,
    },
    /// The payload reaches past the end of the run of records.
    #[error("record at byte {at}: its payload of {length} bytes ends past the {available} bytes that are there")]
    Payload {
        /// Where the record begins.
        at: usize,
        /// Payload bytes the header promises.
        length: u32,
        /// Bytes present behind the header.
        available: usize,
    },
}

/// Walks over records. Stops after the first error, since nothing behind a bad header can be found again.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    /// The records in `bytes`, which begin at its first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    /// Where the record begins, its header, its payload.
    type Item = Result<(usize, FragmentHeader, &'a [u8]), RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        let rest = self.bytes.get(at..).filter(|rest| !rest.is_empty())?;
        self.at = self.bytes.len();
        let header = match FragmentHeader::decode(rest) {
            Ok(header) => header,
            Err(error) => return Some(Err(RecordError::Header { at, error })),
        };
        let behind = &rest[HEADER_LEN..];
        let length = header.piece_length;
        let Some(payload) = behind.get(..length as usize) else {
            return Some(Err(RecordError::Payload { at, length, available: behind.len() }));
        };
        self.at = at + record_len(length as usize);
        Some(Ok((at, header, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lay(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for payload in payloads {
            let length = payload.len() as u32;
            let header = FragmentHeader { total_length: length, piece_length: length, ..Default::default() };
            bytes.extend(header.encode());
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
        }
        bytes
    }

    proptest! {
        #[test]
        fn what_was_laid_is_found(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let bytes = lay(&payloads);
            let found: Vec<Vec<u8>> = Records::new(&bytes).map(|r| r.unwrap().2.to_vec()).collect();
            prop_assert_eq!(found, payloads);
        }

        #[test]
        fn a_cut_run_of_records_is_an_error_not_a_panic(cut in 0usize..600) {
            let payloads = [vec![1; 100], vec![2; 200], vec![3; 65]];
            let bytes = lay(&payloads);
            let cut = cut.min(bytes.len());
            let ends = payloads.iter().scan(0, |at, payload| {
                let begin = *at;
                *at += record_len(payload.len());
                Some((begin, begin + HEADER_LEN + payload.len(), *at))
            });
            let mut records = Records::new(&bytes[..cut]);
            for ((begin, end, next), payload) in ends.zip(&payloads) {
                match records.next() {
                    // All of it is there but for its padding.
                    Some(Ok((at, _, found))) => prop_assert!(at == begin && cut >= end && found == &payload[..]),
                    Some(Err(RecordError::Header { at, .. })) => {
                        prop_assert!(at == begin && (1..HEADER_LEN).contains(&(cut - begin)));
                    }
                    Some(Err(RecordError::Payload { at, length, available })) => {
                        prop_assert_eq!((at, length as usize, available), (begin, payload.len(), cut - begin - HEADER_LEN));
                        prop_assert!(cut < end);
                    }
                    None => prop_assert!(cut <= begin),
                }
                if cut < next {
                    break;
                }
            }
            prop_assert!(records.next().is_none(), "nothing is read behind a cut");
        }
    }
}
