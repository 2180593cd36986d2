//! Durations, in the forms in which people and other programs write them.

use crate::decimal::Decimal;
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;
use std::time::Duration;

/// Error for a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number, or an unknown unit.
    #[error("'{0}' is not a time: write 10s, 1.5s, 500ms, 100us, 2m or 1h 30m")]
    Unreadable(String),
    /// Less than a nanosecond, or more than five centuries.
    #[error("'{0}' is out of range: a time is between 1ns and 500 years")]
    OutOfRange(String),
}

/// Parses a duration with its unit, as for fio, `tc` and systemd: `10s`, `1.5s`, `500ms`, `100us`, `2m`, `1h 30m`. A
/// number alone is in seconds, as for `iperf3 -t`.
///
/// # Errors
/// Text that is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    match (text.trim(), Decimal::split_unit(text)) {
        ("", _) => Err(DurationError::Unreadable(text.to_owned())),
        ("0", _) => Ok(Duration::ZERO),
        (trimmed, Some((_, ""))) => parse_spans(text, &format!("{trimmed}s")),
        (trimmed, _) => parse_spans(text, trimmed),
    }
}

/// Parses spans, one after the other: `1h30m`, `1s 500ms`.
fn parse_spans(text: &str, mut rest: &str) -> Result<Duration, DurationError> {
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let (number, unit) = Decimal::split_unit(rest).ok_or_else(|| DurationError::Unreadable(text.to_owned()))?;
        let end = unit.find(|char: char| !char.is_alphabetic()).unwrap_or(unit.len());
        let unit_nanos = parse_time_unit(&unit[..end]).ok_or_else(|| DurationError::Unreadable(text.to_owned()))?;
        let span = number.scale_rounded(unit_nanos);
        let sum = span.and_then(|span| nanos.checked_add(span));
        nanos = sum.ok_or_else(|| DurationError::OutOfRange(text.to_owned()))?;
        rest = unit[end..].trim_start();
    }
    Ok(Duration::from_nanos(nanos))
}

/// Returns the nanoseconds of a unit. The names are those of `humantime`, which also writes durations, but for its `M`
/// (months), which is taken for minutes too easily.
fn parse_time_unit(name: &str) -> Option<u64> {
    let name = match name {
        "μs" => "us",
        "M" => return None,
        name => name,
    };
    let unit = humantime::parse_duration(&format!("1{name}")).ok()?;
    u64::try_from(unit.as_nanos()).ok()
}

/// Writes a duration as text: `10s`, `1s 500ms`. With [`deserialize`] for serde's `with`.
///
/// # Errors
/// The errors of the serializer.
pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*value))
}

/// Reads a duration from text, as [`parse_duration`], or from a number of seconds.
///
/// # Errors
/// The value is not a duration; the error gives examples of the form.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(TextOrSeconds)
}

struct TextOrSeconds;

impl Visitor<'_> for TextOrSeconds {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time with its unit, \"10s\" or \"500ms\", or in seconds")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
        self.visit_str(&seconds.to_string())
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<Duration, E> {
        self.visit_str(&seconds.to_string())
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
        self.visit_str(&seconds.to_string())
    }
}

/// Durations that may be left out.
pub mod option {
    use serde::{Deserializer, Serializer};
    use std::time::Duration;

    /// Writes a duration, or none.
    ///
    /// # Errors
    /// The errors of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a duration that was not left out.
    ///
    /// # Errors
    /// The text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::de::IntoDeserializer;

    #[test]
    fn times_are_read_as_people_fio_and_systemd_write_them() {
        for (text, nanos) in [
            ("1s", 1_000_000_000),
            ("1 sec", 1_000_000_000),
            ("500ms", 500_000_000),
            ("100us", 100_000),
            ("100 µs", 100_000),
            ("100μs", 100_000),
            ("50ns", 50),
            ("2m", 120_000_000_000),
            ("2min", 120_000_000_000),
            ("1.5s", 1_500_000_000),
            ("0.1ms", 100_000),
            ("1h 30m", 5_400_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1s 500ms", 1_500_000_000),
            ("1.5s 3ms", 1_503_000_000),
            ("0", 0),
            ("0s", 0),
            ("1d", 86_400_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn a_number_alone_is_in_seconds() {
        for (text, millis) in [("10", 10_000), (" 10 ", 10_000), ("0.5", 500), ("1e1", 10_000), ("0", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(read_value(10_u64), Ok(Duration::from_secs(10)));
        assert_eq!(read_value(10_i64), Ok(Duration::from_secs(10)));
        assert_eq!((read_value(0.5), read_value(2.0)), (Ok(Duration::from_millis(500)), Ok(Duration::from_secs(2))));
        assert_eq!(
            (read_value("10"), read_value("10ms")),
            (Ok(Duration::from_secs(10)), Ok(Duration::from_millis(10)))
        );
        read_value(-1_i64).unwrap_err();
        read_value(u64::MAX).unwrap_err();
        for seconds in [-0.5, f64::NAN, f64::INFINITY, 1e300] {
            read_value(seconds).unwrap_err();
        }
    }

    /// Reads a duration from a value of a file.
    fn read_value<'de>(
        value: impl IntoDeserializer<'de, serde::de::value::Error>,
    ) -> Result<Duration, serde::de::value::Error> {
        deserialize(value.into_deserializer())
    }

    #[test]
    fn an_error_says_what_to_write() {
        for text in
            ["", " ", "1.", ".5s", "-1s", "1.5 lightyears", "soon", "s", "5M", "1s,2s", "1s 10", "1 10", "NaN", "inf"]
        {
            assert_eq!(parse_duration(text), Err(DurationError::Unreadable(text.to_owned())));
        }
        for text in ["0.1ns", "600years", "18446744073709551615s", "1e20s", "1e20"] {
            assert_eq!(parse_duration(text), Err(DurationError::OutOfRange(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn every_printed_duration_is_parsed_to_the_same(nanos: u64, shift in 0..64_u32) {
            let time = Duration::from_nanos(nanos >> shift);
            prop_assert_eq!(parse_duration(&humantime::format_duration(time).to_string()), Ok(time));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,24}|([0-9.eE+-]{1,9} ?[nuµmshd]{0,2} ?){0,3}") {
            let _ = parse_duration(&text);
        }
    }
}
