//! Numbers of bytes, in the forms in which people and other programs write them.

use crate::decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Number of bytes, read from a number or from text with a unit.
///
/// | text | unit | as in |
/// | --- | --- | --- |
/// | `4096`, `1e9`, `7B` | bytes | |
/// | `64K`, `64k`, `1.5M`, `10G`, `1T` | powers of 1024 | `iperf3 -l`, `fio --bs` |
/// | `64KiB`, `64 KiB`, `64Ki` | powers of 1024 | IEC 80000-13 |
/// | `64kB`, `64 KB`, `1.5 MB`, `2GB` | powers of 1000 | SI |
///
/// A small `b` is an error, since `10mb` may mean bits as well as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Error for a text that is not a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ByteSizeError {
    /// No number, or an unknown unit.
    #[error("'{0}' is not a size: write 65536, 64K or 64KiB (powers of 1024), or 64kB (powers of 1000)")]
    Unreadable(String),
    /// Unit with a small b.
    #[error(
        "'{0}' may mean bits or bytes: write kB, MB or GB for powers of 1000, or KiB, MiB or GiB for powers of 1024"
    )]
    Ambiguous(String),
    /// Fraction of a byte, or more bytes than 64 bits count.
    #[error("'{0}' is not a whole number of bytes below 16 EiB")]
    OutOfRange(String),
}

/// Unit of a size.
enum SizeUnit {
    Bytes(u64),
    /// Unit that ends in a small b.
    BitsOrBytes,
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let parts = Decimal::split_unit(text).and_then(|(number, unit)| Some((number, parse_size_unit(unit)?)));
        match parts {
            None => Err(ByteSizeError::Unreadable(text.to_owned())),
            Some((_, SizeUnit::BitsOrBytes)) => Err(ByteSizeError::Ambiguous(text.to_owned())),
            Some((number, SizeUnit::Bytes(unit))) => {
                number.scale_exactly(unit).map(Self).ok_or_else(|| ByteSizeError::OutOfRange(text.to_owned()))
            }
        }
    }
}

/// Parses the unit of a size: a prefix (K, M, G or T in either case), then nothing or `i` for powers of 1024, or `B` for
/// powers of 1000.
fn parse_size_unit(unit: &str) -> Option<SizeUnit> {
    let (power, rest) = match unit.chars().next().map(|prefix| prefix.to_ascii_uppercase()) {
        Some('K') => (1, &unit[1..]),
        Some('M') => (2, &unit[1..]),
        Some('G') => (3, &unit[1..]),
        Some('T') => (4, &unit[1..]),
        _ => (0, unit),
    };
    match rest {
        "" | "i" | "iB" if power > 0 => Some(SizeUnit::Bytes(1 << (10 * power))),
        "" | "B" => Some(SizeUnit::Bytes(1000_u64.pow(power))),
        "b" | "ib" => Some(SizeUnit::BitsOrBytes),
        _ => None,
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::format_size(self.0))
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
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_people_and_other_programs_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("10G", 10 << 30),
            ("1.5m", 3 << 19),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("64Ki", 65536),
            ("64 kB", 64_000),
            ("64KB", 64_000),
            ("1.5kB", 1500),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("2T", 2 << 40),
            ("1e9", 1_000_000_000),
            ("1.5e3", 1500),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_to_write() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err();
        for text in ["", "KiB", "1.", ".5KiB", "-1", "1 parsec", "1 k B", "64Kbit", "1,500", "99999999999999999999"] {
            assert_eq!(error(text), ByteSizeError::Unreadable(text.to_owned()));
        }
        for text in ["10mb", "10Mb", "64kib", "8b"] {
            assert_eq!(error(text), ByteSizeError::Ambiguous(text.to_owned()));
        }
        for text in ["1.5", "1.0001K", "17179869184GiB", "1e20", "1e-3"] {
            assert_eq!(error(text), ByteSizeError::OutOfRange(text.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn every_printed_size_is_parsed_to_the_same(mantissa: u64, shift in 0..64_u32, power in 0..20_u32) {
            for bytes in [mantissa >> shift << (shift / 2), (mantissa >> shift).saturating_mul(10_u64.pow(power))] {
                prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
                prop_assert_eq!(bytes.to_string().parse(), Ok(ByteSize(bytes)));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,24}|[0-9.eE+-]{1,12} ?[kKmMgGtTiBb]{0,3}") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
