//! The CRC32C of a whole file, as it travels in `Repr-Digest` (RFC 9530) and is put together from those of its parts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum_combine};
use std::fmt;

/// The CRC32C of so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// The checksum.
    pub crc32c: u32,
    /// Of how many bytes.
    pub length: u64,
}

impl Digest {
    /// That of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { crc32c: thalweg_wire::crc32c(bytes), length: bytes.len() as u64 }
    }

    /// That of these bytes with others behind them.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in the library's 64-bit result")]
    pub fn then(self, next: Self) -> Self {
        let crc32c = match (self.length, next.length) {
            (0, _) => next.crc32c,
            (_, 0) => self.crc32c,
            (_, length) => {
                checksum_combine(CrcAlgorithm::Crc32Iscsi, self.crc32c.into(), next.crc32c.into(), length) as u32
            }
        };
        Self { crc32c, length: self.length + next.length }
    }
}

/// The checksum in a `Repr-Digest` field (`crc32c=:…:`, a dictionary that may have other members), if it is there.
pub(crate) fn parse(field: &str) -> Option<u32> {
    let member = field.split(',').find_map(|member| member.trim().strip_prefix("crc32c="))?;
    let value = member.split(';').next().unwrap_or_default().trim();
    let bytes = STANDARD.decode(value.strip_prefix(':')?.strip_suffix(':')?).ok()?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// A checksum as the value of a `Repr-Digest` field.
pub(crate) struct Field(pub(crate) u32);

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crc32c=:{}:", STANDARD.encode(self.0.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_file_is_put_together_from_those_of_its_parts() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for parts in [&[0, 1, 99_999][..], &[100_000], &[4096, 95_904], &[0, 0, 50_000, 50_000, 0]] {
            let mut at = 0;
            let mut whole = Digest::default();
            for part in parts {
                whole = whole.then(Digest::of(&bytes[at..at + part]));
                at += part;
            }
            assert_eq!(whole, Digest::of(&bytes), "{parts:?}");
        }
    }

    #[test]
    fn a_field_is_read_as_it_is_written_and_anything_else_is_none() {
        // The check value of the CRC catalogue, and how the field has it: e3069283.
        assert_eq!(Field(thalweg_wire::crc32c(b"123456789")).to_string(), "crc32c=:4waSgw==:");
        assert_eq!(parse("crc32c=:4waSgw==:"), Some(0xe306_9283));
        assert_eq!(parse("sha-256=:AAAA:, crc32c=:4waSgw==:;a=1"), Some(0xe306_9283));
        for none in ["", "crc32c", "crc32c=4waSgw==", "crc32c=:4waSg:", "crc32c=:4waSg4waSgw==:", "sha-256=:4waSgw==:"]
        {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
