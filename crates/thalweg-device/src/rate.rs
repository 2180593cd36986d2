//! Rates of recordings, in samples or fragments per second.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// Number of samples or fragments per second, as the whole number of millionths that times are computed from. Written
/// as a number: `100`, `12.5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    micro: u64,
}

impl Rate {
    /// Creates a rate. `None` if a clock of that rate could not be counted: below a millionth or above 10¹² per second.
    pub fn new(hertz: f64) -> Option<Self> {
        let micro = (hertz * 1e6).round();
        (1.0..=1e18).contains(&micro).then_some(Self { micro: micro as u64 })
    }

    /// Returns the rate per second.
    pub fn hertz(self) -> f64 {
        self.micro as f64 / 1e6
    }

    /// Returns the time that `count` samples or fragments take, in nanoseconds, rounded down.
    pub(crate) fn nanos_for_count(self, count: u64) -> u64 {
        let nanos = u128::from(count) * 1_000_000_000_000_000 / u128::from(self.micro);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.hertz())
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Rate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number per second without a unit, such as 100.0, from 1e-6 to 1e12")
            }

            fn visit_f64<E: de::Error>(self, hertz: f64) -> Result<Rate, E> {
                Rate::new(hertz).ok_or_else(|| E::invalid_value(de::Unexpected::Float(hertz), &self))
            }

            fn visit_i64<E: de::Error>(self, hertz: i64) -> Result<Rate, E> {
                self.visit_f64(hertz as f64)
            }

            fn visit_u64<E: de::Error>(self, hertz: u64) -> Result<Rate, E> {
                self.visit_f64(hertz as f64)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
