//! Rates of links in bits per second, in the form in which people write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Rate of a link, in bits per second; written as text with a unit: `"1 Gbit/s"`, `"100mbit"`, `"2.5 Gbit/s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl BitRate {
    /// Returns the rate in bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0 as f64 / 8.0
    }
}

/// Error for a text that is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a rate: write a number above 0 with a unit (kbit/s, Mbit/s, Gbit/s, up to 1 Tbit/s), such as 1 Gbit/s"
)]
pub struct BitRateError(String);

const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const MAX_BIT_RATE: u64 = 1_000_000_000_000;
/// Minimum rate, in bits per second: below it a single packet takes longer than most measurements.
const MIN_BIT_RATE: u64 = 10_000;

impl FromStr for BitRate {
    type Err = BitRateError;

    fn from_str(text: &str) -> Result<Self, BitRateError> {
        parse_bit_rate(text).map(Self).ok_or_else(|| BitRateError(text.to_owned()))
    }
}

/// Parses a rate in bits per second.
fn parse_bit_rate(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_suffix("/s").unwrap_or(&lower);
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((lower.strip_suffix(name)?.trim_end(), *unit)))?;
    if !number.chars().all(|char| char.is_ascii_digit() || char == '.') {
        return None;
    }
    let bits = (number.parse::<f64>().ok()? * unit as f64).round();
    (MIN_BIT_RATE as f64..=MAX_BIT_RATE as f64).contains(&bits).then_some(bits as u64)
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, u64); 3] = [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000)];
        match NAMES.iter().find(|(_, unit)| self.0 >= *unit && (self.0 * 1000).is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{} {name}", self.0 as f64 / *unit as f64),
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
