//! Fragments laid one behind the other, each header in place in front of its payload: how a slot is filled, what a
//! fetch moves, and how a block on disk is made.

use crate::{Crc32c, FragmentHeader, HEADER_LEN, HeaderError, crc32c};
use std::ops::Range;
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

/// The bytes of records, wherever they lie: in memory of our own (`[u8]`), or where another process may write while
/// they are read. So what is looked at is copied out first.
pub trait RecordBytes {
    /// How many there are.
    fn bytes(&self) -> usize;

    /// Copies as many as `out` has, from byte `at` on.
    ///
    /// # Panics
    /// There are not so many.
    fn copy_to(&self, at: usize, out: &mut [u8]);

    /// The CRC32C of a range of them.
    ///
    /// # Panics
    /// It is not inside them.
    fn crc32c(&self, range: Range<usize>) -> u32 {
        let (mut crc, mut piece) = (Crc32c::new(), [0; 4096]);
        for at in range.clone().step_by(piece.len()) {
            let piece = &mut piece[..4096.min(range.end - at)];
            self.copy_to(at, piece);
            crc.update(piece);
        }
        crc.value()
    }
}

impl RecordBytes for [u8] {
    fn bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn copy_to(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }

    fn crc32c(&self, range: Range<usize>) -> u32 {
        crc32c(&self[range])
    }
}

/// Walks over records. Stops after the first error, since nothing behind a bad header can be found again.
#[derive(Debug, Clone)]
pub struct Records<'a, B: ?Sized = [u8]> {
    bytes: &'a B,
    at: usize,
}

impl<'a, B: RecordBytes + ?Sized> Records<'a, B> {
    /// The records in `bytes`, which begin at its first byte.
    pub fn new(bytes: &'a B) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<B: RecordBytes + ?Sized> Iterator for Records<'_, B> {
    /// Where the record begins, its header, and where its payload lies.
    type Item = Result<(usize, FragmentHeader, Range<usize>), RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (at, all) = (self.at, self.bytes.bytes());
        if at >= all {
            return None;
        }
        self.at = all;
        let mut header = [0; HEADER_LEN];
        let header = &mut header[..HEADER_LEN.min(all - at)];
        self.bytes.copy_to(at, header);
        let header = match FragmentHeader::decode(header) {
            Ok(header) => header,
            Err(error) => return Some(Err(RecordError::Header { at, error })),
        };
        let (begin, length) = (at + HEADER_LEN, header.piece_length);
        if length as usize > all - begin {
            return Some(Err(RecordError::Payload { at, length, available: all - begin }));
        }
        self.at = at + record_len(length as usize);
        Some(Ok((at, header, begin..begin + length as usize)))
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
            let found: Vec<Vec<u8>> = Records::new(&bytes[..]).map(|r| bytes[r.unwrap().2].to_vec()).collect();
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
                    Some(Ok((at, _, found))) => prop_assert!(at == begin && cut >= end && bytes[found] == payload[..]),
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
