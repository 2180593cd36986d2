//! CRC32C (Castagnoli, RFC 3720 appendix B.4), as used by iSCSI, SCTP and iWARP.

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

/// Returns the CRC32C of `bytes`. One pass runs at the speed of the cache: about 60 GB/s where the processor has
/// VPCLMULQDQ.
// The library's code is generic: inlined into a crate that is not optimised, it would be a twentieth as fast.
#[cfg_attr(not(debug_assertions), inline)]
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in the library's 64-bit result")]
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC32C of two byte strings back to back, from the CRC32C of each and the length of the second in bytes.
/// The CRC32C of an empty string is 0.
#[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in the library's 64-bit result")]
pub fn crc32c_combine(first: u32, second: u32, second_length: u64) -> u32 {
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), second_length) as u32
}

/// A CRC32C that is computed incrementally.
#[derive(Debug, Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Returns the checksum of an empty string.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes added so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in the library's 64-bit result")]
    pub fn checksum(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720 appendix B.4, and the check value of the CRC catalogue.
    #[test]
    fn agrees_with_the_published_vectors() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 31) as u8).collect();
        let mut crc = Crc32c::new();
        for piece in bytes.chunks(37) {
            crc.update(piece);
        }
        assert_eq!(crc.checksum(), crc32c(&bytes));
        for at in [0, 1, 500, 1000] {
            let (front, back) = bytes.split_at(at);
            assert_eq!(crc32c_combine(crc32c(front), crc32c(back), back.len() as u64), crc32c(&bytes), "{at}");
        }
    }
}
