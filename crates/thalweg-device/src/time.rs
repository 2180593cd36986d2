//! Conversion from the UTC of recordings to the TAI of the fragment header.

use std::time::SystemTime;
use thalweg_wire::{TaiNanos, tai_minus_utc};

/// Returns the time of an ISO 8601 date and time in UTC, as SigMF writes it: `2020-03-01T12:00:00.5Z`. Digits after the
/// ninth decimal are ignored. `None` if it is not one, or before 1972, when UTC began to differ from TAI by whole
/// seconds.
pub(crate) fn parse_utc_time(text: &str) -> Option<TaiNanos> {
    // A leap second is the one after the last of a day. The library accepts second 60 in any minute, and takes it for
    // the one before.
    let leap = text.get(10..19) == Some("T23:59:60");
    if text.get(16..19) == Some(":60") && !leap {
        return None;
    }
    let unix = humantime::parse_rfc3339(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let seconds = unix.as_secs() + u64::from(tai_minus_utc(unix.as_secs())?) + u64::from(leap);
    seconds.checked_mul(1_000_000_000)?.checked_add(unix.subsec_nanos().into()).map(TaiNanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse_utc_time(text).map(|time| time.0 / 1_000_000_000)
    }

    #[test]
    fn dates_agree_with_the_unix_clock() {
        // `date -u -d @1583064000`, and the offset of its day.
        assert_eq!(seconds("2020-03-01T12:00:00Z"), Some(1_583_064_000 + 37));
        assert_eq!(seconds("1972-01-01T00:00:00Z"), Some(63_072_000 + 10));
        assert_eq!(seconds("2000-02-29T23:59:59Z"), Some(951_868_799 + 32));
        assert_eq!(parse_utc_time("2020-03-01T12:00:00.25Z").unwrap().0 % 1_000_000_000, 250_000_000);
        assert_eq!(parse_utc_time("2020-03-01T12:00:00.1234567899Z").unwrap().0 % 1_000_000_000, 123_456_789);
    }

    #[test]
    fn a_leap_second_lies_between_its_neighbours() {
        let before = seconds("2016-12-31T23:59:59Z").unwrap();
        assert_eq!(seconds("2016-12-31T23:59:60Z"), Some(before + 1));
        assert_eq!(seconds("2017-01-01T00:00:00Z"), Some(before + 2));
    }

    #[test]
    fn what_is_no_time_is_nothing() {
        for text in [
            "",
            "Z",
            "T",
            "2020-03-01",
            "2020-03-01T12:00:00",
            "2020-03-01T12:00:00+01:00",
            "2020-3-1T12:00:00Z",
            "2020-02-30T12:00:00Z",
            "2021-02-29T12:00:00Z",
            "2020-13-01T12:00:00Z",
            "2020-03-01T24:00:00Z",
            "2020-03-01T12:00:60Z",
            "2020-03-01T12:00:00.1xZ",
            "-020-03-01T12:00:00Z",
            "1971-12-31T23:59:59Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(parse_utc_time(text), None, "{text}");
        }
    }
}
