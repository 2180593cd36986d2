//! Rates in bits or bytes per second, in the forms in which people and other programs write them.

use crate::decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Rate of a link, in bits per second.
///
/// | text | unit | as in |
/// | --- | --- | --- |
/// | `1 Gbit/s`, `100mbit`, `940 Mbits/sec` | bits, powers of 1000 | `tc`, the output of iperf3 |
/// | `10G`, `100m`, `1e9` | bits, powers of 1000 | `iperf3 -b` |
/// | `1Gbps`, `1Gb/s` | bits, powers of 1000 | data sheets (in `tc`, `gbps` is bytes) |
/// | `125 MB/s`, `125MBps` | bytes, powers of 1000 | |
/// | `1 Gibit/s`, `119 MiB/s` | powers of 1024 | `tc` |
///
/// A small `b` is a bit and a capital `B` a byte. `1GB` and `1Gb` are errors, since they lack *per second*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl BitRate {
    /// Returns the rate in bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }
}

/// Rate of data, in bytes per second: `800MB/s`, `1.5 GiB/s`, `10 Gbit/s`, or a number of bytes per second.
///
/// Units are those of [`BitRate`]; `/s` may be left out after bytes (`800MB`). `800M` is an error: for iperf3 it is bits,
/// for fio bytes.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct ByteRate(pub f64);

/// Error for a text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BitRateError {
    /// No number, or an unknown unit.
    #[error("'{0}' is not a rate: write a number above 0 with a unit, such as 1 Gbit/s, 1Gbps, 10G or 125 MB/s")]
    Unreadable(String),
    /// Unit of bits or bytes without the time.
    #[error("'{0}' lacks the time: write Mbit/s for bits per second, or MB/s for bytes per second")]
    Timeless(String),
    /// Number outside of the limits.
    #[error("'{0}' is out of range: a rate is between 10 kbit/s and 1 Tbit/s")]
    OutOfRange(String),
}

/// Error for a text that is not a number of bytes per second.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ByteRateError {
    /// No number, no rate above 0, or an unknown unit.
    #[error("'{0}' is not a rate above 0: write 800MB/s, 1.5GiB/s or 10Gbit/s")]
    Unreadable(String),
    /// Prefix without a unit.
    #[error("'{0}' may mean bits or bytes: write MB/s for bytes per second, or Mbit/s for bits per second")]
    Ambiguous(String),
}

const MAX_BIT_RATE: u64 = 1_000_000_000_000;
/// Minimum rate, in bits per second: below it a single packet takes longer than most measurements.
const MIN_BIT_RATE: u64 = 10_000;

/// Unit of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RateUnit {
    /// Factor of its prefix.
    factor: u64,
    quantity: Quantity,
    per_second: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    /// Written out: `bit`, `bits`.
    Bit,
    /// A small b.
    B,
    /// A capital B.
    Byte,
    /// None: a bare number or prefix.
    Bare,
}

impl RateUnit {
    /// Parses a unit: a prefix in either case (`k`, `Ki`), a quantity, and a time (`/s`, `/sec`, `ps`).
    fn parse(unit: &str) -> Option<Self> {
        let (power, rest) = match unit.chars().next().map(|prefix| prefix.to_ascii_uppercase()) {
            Some('K') => (1, &unit[1..]),
            Some('M') => (2, &unit[1..]),
            Some('G') => (3, &unit[1..]),
            Some('T') => (4, &unit[1..]),
            _ => (0, unit),
        };
        let (factor, rest) = match rest.strip_prefix(['i', 'I']).filter(|_| power > 0) {
            Some(rest) => (1 << (10 * power), rest),
            None => (1000_u64.pow(power), rest),
        };
        let times = ["/s", "/sec", "ps"];
        let timed = times.iter().find_map(|time| rest.strip_suffix(time)).filter(|rest| !rest.is_empty());
        let quantity = match timed.unwrap_or(rest) {
            "" => Quantity::Bare,
            "b" => Quantity::B,
            "B" => Quantity::Byte,
            word if ["bit", "bits"].contains(&word.to_ascii_lowercase().as_str()) => Quantity::Bit,
            _ => return None,
        };
        Some(Self { factor, quantity, per_second: timed.is_some() })
    }
}

impl FromStr for BitRate {
    type Err = BitRateError;

    fn from_str(text: &str) -> Result<Self, BitRateError> {
        let parts = Decimal::split_unit(text).and_then(|(number, unit)| Some((number, RateUnit::parse(unit)?)));
        let (number, unit) = parts.ok_or_else(|| BitRateError::Unreadable(text.to_owned()))?;
        let bits = match (unit.quantity, unit.per_second) {
            (Quantity::B | Quantity::Byte, false) => return Err(BitRateError::Timeless(text.to_owned())),
            (Quantity::Byte, true) => 8 * unit.factor,
            _ => unit.factor,
        };
        let rate = number.scale_rounded(bits).filter(|rate| (MIN_BIT_RATE..=MAX_BIT_RATE).contains(rate));
        rate.map(Self).ok_or_else(|| BitRateError::OutOfRange(text.to_owned()))
    }
}

impl FromStr for ByteRate {
    type Err = ByteRateError;

    #[expect(clippy::cast_precision_loss, reason = "a measured rate has fewer digits")]
    fn from_str(text: &str) -> Result<Self, ByteRateError> {
        let parts = Decimal::split_unit(text).and_then(|(number, unit)| Some((number, RateUnit::parse(unit)?)));
        let (number, unit) = parts.ok_or_else(|| ByteRateError::Unreadable(text.to_owned()))?;
        let bits = match (unit.quantity, unit.per_second) {
            (Quantity::Bare, _) if unit.factor > 1 => return Err(ByteRateError::Ambiguous(text.to_owned())),
            (Quantity::B, false) => return Err(ByteRateError::Ambiguous(text.to_owned())),
            (Quantity::Byte | Quantity::Bare, _) => 8 * unit.factor,
            (Quantity::Bit | Quantity::B, _) => unit.factor,
        };
        let rate = number.scale_rounded(bits).filter(|rate| *rate > 0);
        rate.map(|bits| Self(bits as f64 / 8.0)).ok_or_else(|| ByteRateError::Unreadable(text.to_owned()))
    }
}

impl fmt::Display for BitRate {
    /// Writes the rate exactly, so that it can be parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000)];
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(unit / 1000)) {
            Some((name, unit)) => {
                write!(f, "{} {name}", crate::text::format_thousandths((self.0 / (unit / 1000)).into()))
            }
            None => write!(f, "{} bit/s", self.0),
        }
    }
}

impl Serialize for BitRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BitRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = BitRate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate with its unit, such as \"1 Gbit/s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<BitRate, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_as_people_tc_and_iperf3_write_them() {
        for text in [
            "1 Gbit/s",
            "1gbit",
            "1GBIT",
            "1000 Mbit/s",
            "1000000kbit",
            "1.0Gbit",
            "1 Gbits/sec",
            "1G",
            "1g",
            "1e9",
            "1000000000",
            "1000M",
            "1Gbps",
            "1gbps",
            "1 Gb/s",
            "125 MB/s",
            "0.125 GB/s",
            "125MBps",
            "1e9 bit/s",
        ] {
            assert_eq!(text.parse(), Ok(BitRate(1_000_000_000)), "{text}");
        }
        assert_eq!("10kbps".parse(), Ok(BitRate(10_000)));
        assert_eq!("1 Mibit/s".parse(), Ok(BitRate(1 << 20)));
        assert_eq!("1MiB/s".parse(), Ok(BitRate(8 << 20)));
        assert_eq!("1T".parse(), Ok(BitRate(1_000_000_000_000)));
    }

    #[test]
    fn an_error_says_what_to_write() {
        let error = |text: &str| text.parse::<BitRate>().unwrap_err();
        for text in
            ["", "-1gbit", "inf gbit", "1 gbit/h", "1..0gbit", "1 s", "1/s", "1 ps", "1 GBPS", "fast", "10 G bit"]
        {
            assert_eq!(error(text), BitRateError::Unreadable(text.to_owned()));
        }
        for text in ["1GB", "1Gb", "125 MiB", "1b"] {
            assert_eq!(error(text), BitRateError::Timeless(text.to_owned()));
        }
        for text in ["1", "0 Gbit/s", "2 Tbit/s", "1e20", "1e-9 Gbps", "0.0000001 kbit"] {
            assert_eq!(error(text), BitRateError::OutOfRange(text.to_owned()));
        }
    }

    #[test]
    fn rates_of_data_are_bytes_unless_bits_are_written() {
        for text in ["800MB/s", "800 MB", "800MBps", "800000000", "8e8", "6.4 Gbit/s", "6400Mbps", "6.4gbit"] {
            assert_eq!(text.parse(), Ok(ByteRate(8e8)), "{text}");
        }
        assert_eq!("1.5 GiB".parse(), Ok(ByteRate(1.5 * f64::from(1 << 30))));
        for text in ["800M", "800Mb", "1K"] {
            assert_eq!(text.parse::<ByteRate>(), Err(ByteRateError::Ambiguous(text.to_owned())));
        }
        for text in ["0", "fast", "-1", "/s", "0 MB/s", "1 furlong/s"] {
            assert_eq!(text.parse::<ByteRate>(), Err(ByteRateError::Unreadable(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn every_printed_rate_is_parsed_to_the_same(bits in MIN_BIT_RATE..=MAX_BIT_RATE, unit in 0..4_u32) {
            let unit = 1000_u64.pow(unit);
            for rate in [BitRate(bits), BitRate((bits / unit * unit).max(MIN_BIT_RATE))] {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,24}|[0-9.eE+-]{1,12} ?[kKmMgG]?i?[bB]?(it|its|ps|/s|/sec)?") {
            let _ = (text.parse::<BitRate>(), text.parse::<ByteRate>());
        }
    }
}
