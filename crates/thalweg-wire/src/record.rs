//! Records laid out back to back, each header directly before its payload: the layout of a slot, of a fetched range and
//! of a block on disk.

use crate::{Crc32c, FragmentHeader, HEADER_LEN, HeaderError, crc32c};
use std::ops::Range;
use thiserror::Error;

/// Alignment of records in bytes: headers and payloads are aligned to cache lines.
pub const RECORD_ALIGN: usize = 64;

/// Maximum number of records in one slot: limits the space that a builder must reserve in addition to a slot's bytes.
pub const MAX_RECORDS: u32 = 4096;

/// Returns the number of bytes that a fragment with `payload` bytes takes: header, payload, and padding to
/// [`RECORD_ALIGN`].
pub const fn record_bytes(payload: usize) -> usize {
    (HEADER_LEN + payload).next_multiple_of(RECORD_ALIGN)
}

/// Reason why a run of records cannot be read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// No valid header where one should be.
    #[error("record at byte {at}: {error}")]
    Header {
        /// Offset of the record in bytes.
        at: usize,
        /// Error in its header.
        error: HeaderError,
    },
    /// The payload ends past the end of the run of records.
    #[error("record at byte {at}: its payload of {length} bytes ends beyond the {available} available bytes")]
    Payload {
        /// Offset of the record in bytes.
        at: usize,
        /// Length of the payload in bytes, by the header.
        length: u32,
        /// Number of bytes after the header.
        available: usize,
    },
}

/// Bytes of records, either in private memory (`[u8]`) or in memory that another process may write to while they are
/// read. Bytes are therefore copied out before they are examined.
pub trait RecordBytes {
    /// Returns the number of bytes.
    fn byte_count(&self) -> usize;

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Panics
    /// There are fewer than `out.len()` bytes from `at` on.
    fn copy_bytes_to(&self, at: usize, out: &mut [u8]);

    /// Returns the CRC32C of a range of the bytes.
    ///
    /// # Panics
    /// The range does not lie within the bytes.
    fn crc32c_of_range(&self, range: Range<usize>) -> u32 {
        let (mut crc, mut piece) = (Crc32c::new(), [0; 4096]);
        for at in range.clone().step_by(piece.len()) {
            let piece = &mut piece[..4096.min(range.end - at)];
            self.copy_bytes_to(at, piece);
            crc.update(piece);
        }
        crc.checksum()
    }
}

impl RecordBytes for [u8] {
    fn byte_count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self[at..at + out.len()]);
    }

    fn crc32c_of_range(&self, range: Range<usize>) -> u32 {
        crc32c(&self[range])
    }
}

/// Iterator over records. Stops after the first error, since the records after a bad header cannot be located.
#[derive(Debug, Clone)]
pub struct Records<'a, B: ?Sized = [u8]> {
    bytes: &'a B,
    at: usize,
}

impl<'a, B: RecordBytes + ?Sized> Records<'a, B> {
    /// Iterates over the records in `bytes`, the first of which begins at byte 0.
    pub fn new(bytes: &'a B) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the bytes in which the records lie.
    pub fn bytes(&self) -> &'a B {
        self.bytes
    }
}

impl<B: RecordBytes + ?Sized> Iterator for Records<'_, B> {
    /// Offset of the record, its header, and the range of its payload.
    type Item = Result<(usize, FragmentHeader, Range<usize>), RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (at, all) = (self.at, self.bytes.byte_count());
        if at >= all {
            return None;
        }
        self.at = all;
        let mut header = [0; HEADER_LEN];
        let header = &mut header[..HEADER_LEN.min(all - at)];
        self.bytes.copy_bytes_to(at, header);
        let header = match FragmentHeader::decode(header) {
            Ok(header) => header,
            Err(error) => return Some(Err(RecordError::Header { at, error })),
        };
        let (begin, length) = (at + HEADER_LEN, header.piece_length);
        if length as usize > all - begin {
            return Some(Err(RecordError::Payload { at, length, available: all - begin }));
        }
        self.at = at + record_bytes(length as usize);
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
                *at += record_bytes(payload.len());
                Some((begin, begin + HEADER_LEN + payload.len(), *at))
            });
            let mut records = Records::new(&bytes[..cut]);
            for ((begin, end, next), payload) in ends.zip(&payloads) {
                match records.next() {
                    // All of the record is there but for its padding.
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
