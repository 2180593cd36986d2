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
    /// Number without a unit.
    #[error("'{0}' is a time without a unit: write {0}s, {0}ms or {0}us")]
    Unitless(String),
    /// Less than a nanosecond, or more than five centuries.
    #[error("'{0}' is out of range: a time is between 1ns and 500 years")]
    OutOfRange(String),
}

/// Parses a duration with its unit: `10s`, `1.5s`, `500ms`, `100us`, `2m`, `1h 30m`, as for fio, `tc` and systemd.
///
/// # Errors
/// Text without a unit, other than 0, and text that is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    match text.trim() {
        "" => Err(DurationError::Unreadable(text.to_owned())),
        "0" => Ok(Duration::ZERO),
        trimmed => parse_spans(text, trimmed),
    }
}

/// Parses a duration as [`parse_duration`], or a number of seconds: `10`, as for `iperf3 -t`.
///
/// # Errors
/// Text that is not a duration.
pub fn parse_duration_or_seconds(text: &str) -> Result<Duration, DurationError> {
    match Decimal::split_unit(text) {
        Some((_, "")) => {
            parse_duration(&format!("{}s", text.trim())).map_err(|_| DurationError::OutOfRange(text.to_owned()))
        }
        _ => parse_duration(text),
    }
}

/// Parses spans, one after the other: `1h30m`, `1s 500ms`.
fn parse_spans(text: &str, mut rest: &str) -> Result<Duration, DurationError> {
    let mut nanos = 0_u64;
    while !rest.is_empty() {
        let (number, unit) = Decimal::split_unit(rest).ok_or_else(|| DurationError::Unreadable(text.to_owned()))?;
        let end = unit.find(|char: char| !char.is_alphabetic()).unwrap_or(unit.len());
        let unit_nanos = match &unit[..end] {
            "" if unit.is_empty() => return Err(DurationError::Unitless(text.trim().to_owned())),
            name => parse_time_unit(name).ok_or_else(|| DurationError::Unreadable(text.to_owned()))?,
        };
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

/// Reads a duration from text with its unit.
///
/// # Errors
/// The text is not a duration; the error gives examples of the form.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text)
}

struct Text;

impl Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time with its unit, \"10s\" or \"500ms\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
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
            assert_eq!(parse_duration_or_seconds(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        assert_eq!(parse_duration_or_seconds("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration_or_seconds("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn an_error_says_what_to_write() {
        for text in ["", " ", "1.", ".5s", "-1s", "1.5 lightyears", "soon", "s", "5M", "1s,2s", "NaN", "inf"] {
            let error = Err(DurationError::Unreadable(text.to_owned()));
            assert_eq!((parse_duration(text), parse_duration_or_seconds(text)), (error.clone(), error));
        }
        for text in ["1", "1.5", "1s 10"] {
            assert_eq!(parse_duration(text), Err(DurationError::Unitless(text.to_owned())));
        }
        for text in ["0.1ns", "600years", "18446744073709551615s", "1e20s"] {
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
            let _ = (parse_duration(&text), parse_duration_or_seconds(&text));
        }
    }
}
