//! The CRC32C of a whole file, combined from those of its parts.

/// The CRC32C of a sequence of bytes, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// CRC32C of the bytes.
    pub crc32c: u32,
    /// Number of bytes.
    pub length: u64,
}

impl Digest {
    /// Computes the digest of some bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { crc32c: thalweg_wire::crc32c(bytes), length: bytes.len() as u64 }
    }

    /// Returns the digest of these bytes followed by those of `next`.
    #[must_use]
    pub fn followed_by(self, next: Self) -> Self {
        let crc32c = thalweg_wire::crc32c_combine(self.crc32c, next.crc32c, next.length);
        Self { crc32c, length: self.length + next.length }
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
                whole = whole.followed_by(Digest::from_bytes(&bytes[at..at + part]));
                at += part;
            }
            assert_eq!(whole, Digest::from_bytes(&bytes), "{parts:?}");
        }
    }
}
