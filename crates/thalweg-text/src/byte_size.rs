//! Numbers of bytes, in the form in which people write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A number of bytes; written as a number, or as text with a unit: `4096`, `"64KiB"`, `"1MiB"`, `"1.5 MB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Error for a text that is not a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a size: write a number of bytes, or one with a unit (B, KiB, MiB, GiB, kB, MB, GB), such as 64KiB"
)]
pub struct ByteSizeError(String);

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        parse_byte_size(text).map(Self).ok_or_else(|| ByteSizeError(text.to_owned()))
    }
}

/// Parses a number of bytes.
fn parse_byte_size(text: &str) -> Option<u64> {
    let trimmed = text.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((trimmed.strip_suffix(name)?.trim_end(), *unit)))
        .unwrap_or((trimmed, 1));
    // Decimals are allowed as far as they give whole bytes: 1.5KiB is 1536, 1.5 is an error.
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || decimals.len() > 9 {
        return None;
    }
    let digits = format!("{whole}{decimals}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let scale = 10u128.pow(decimals.len() as u32);
    let bytes = digits.parse::<u128>().ok()?.checked_mul(u128::from(unit))?;
    u64::try_from(bytes / scale).ok().filter(|_| bytes.is_multiple_of(scale))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the commas the text can be parsed again.
        f.write_str(&crate::format_size(self.0).replace(',', ""))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, such as 4096 or \"64KiB\"")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
        u64::try_from(value).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("1.5kB", 1500),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "1.5", "1.", ".5KiB", "-1", "1e3", "1 k", "99999999999999999999", "17179869184GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(3 << 19).to_string(), "1536 KiB");
        assert_eq!(ByteSize(1001).to_string(), "1001 B");
        for bytes in [0, 1, 1001, 340_000, 3 << 19, 5_000_000_000, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)), "{bytes}");
        }
    }
}
