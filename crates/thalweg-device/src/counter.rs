//! Place of a number in a frame: a device's count, or its time.

use serde::{Deserialize, Serialize};

/// Place of a sequence counter before the data: `{ at = 0, bytes = 8 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Offset of the counter's first byte in the datagram or the fragment.
    pub at: u32,
    /// Number of bytes of the counter: 1 to 8.
    pub bytes: u32,
    /// True if the least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
}

impl Counter {
    /// Returns whether the counter has 1 to 8 bytes, all of them within the first `length` bytes.
    pub fn is_within(&self, length: u64) -> bool {
        (1..=8).contains(&self.bytes) && u64::from(self.at) + u64::from(self.bytes) <= length
    }

    /// Returns the counter's value; `None` if `from` does not contain all of it.
    pub fn read_count(&self, from: &[u8]) -> Option<u64> {
        let (at, length) = (self.at as usize, self.bytes as usize);
        let bytes = from.get(at..)?.get(..length)?;
        Some((0..length).fold(0, |value, i| {
            let byte = bytes[if self.little_endian { length - 1 - i } else { i }];
            value << 8 | u64::from(byte)
        }))
    }
}
