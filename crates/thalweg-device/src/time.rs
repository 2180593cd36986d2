//! From the UTC that recordings carry to the TAI of the fragment header.

use std::time::SystemTime;
use thalweg_wire::TaiNanos;

/// TAI − UTC in seconds, from so many seconds since 1900 on (`leap-seconds.list` of the IETF time-zone archive, from IERS
/// Bulletin C). No leap second has been announced after the last of these; one that comes needs a line here.
const LEAPS: [(u64, u64); 28] = [
    (2_272_060_800, 10), // 1972-01-01
    (2_287_785_600, 11), // 1972-07-01
    (2_303_683_200, 12), // 1973-01-01
    (2_335_219_200, 13), // 1974-01-01
    (2_366_755_200, 14), // 1975-01-01
    (2_398_291_200, 15), // 1976-01-01
    (2_429_913_600, 16), // 1977-01-01
    (2_461_449_600, 17), // 1978-01-01
    (2_492_985_600, 18), // 1979-01-01
    (2_524_521_600, 19), // 1980-01-01
    (2_571_782_400, 20), // 1981-07-01
    (2_603_318_400, 21), // 1982-07-01
    (2_634_854_400, 22), // 1983-07-01
    (2_698_012_800, 23), // 1985-07-01
    (2_776_982_400, 24), // 1988-01-01
    (2_840_140_800, 25), // 1990-01-01
    (2_871_676_800, 26), // 1991-01-01
    (2_918_937_600, 27), // 1992-07-01
    (2_950_473_600, 28), // 1993-07-01
    (2_982_009_600, 29), // 1994-07-01
    (3_029_443_200, 30), // 1996-01-01
    (3_076_704_000, 31), // 1997-07-01
    (3_124_137_600, 32), // 1999-01-01
    (3_345_062_400, 33), // 2006-01-01
    (3_439_756_800, 34), // 2009-01-01
    (3_550_089_600, 35), // 2012-07-01
    (3_644_697_600, 36), // 2015-07-01
    (3_692_217_600, 37), // 2017-01-01
];
/// Seconds from 1900 to 1970.
const FROM_1900: u64 = 2_208_988_800;

/// The moment that an ISO 8601 date and time in UTC names, as SigMF writes it: `2020-03-01T12:00:00.5Z`. Digits behind the
/// ninth decimal are ignored. Nothing where it is not one, or before 1972, when UTC began to differ from TAI by whole
/// seconds.
pub(crate) fn parse_utc(text: &str) -> Option<TaiNanos> {
    // A leap second is the one after the last of a day. The library takes any second 60, and takes it for the one before.
    let leap = text.get(10..19) == Some("T23:59:60");
    if text.get(16..19) == Some(":60") && !leap {
        return None;
    }
    let unix = humantime::parse_rfc3339(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let (_, offset) = LEAPS.iter().rev().find(|(begin, _)| *begin <= unix.as_secs() + FROM_1900)?;
    let seconds = unix.as_secs() + offset + u64::from(leap);
    seconds.checked_mul(1_000_000_000)?.checked_add(unix.subsec_nanos().into()).map(TaiNanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse_utc(text).map(|time| time.0 / 1_000_000_000)
    }

    #[test]
    fn dates_agree_with_the_unix_clock() {
        // `date -u -d @1583064000`, and the offset of its day.
        assert_eq!(seconds("2020-03-01T12:00:00Z"), Some(1_583_064_000 + 37));
        assert_eq!(seconds("1972-01-01T00:00:00Z"), Some(63_072_000 + 10));
        assert_eq!(seconds("2000-02-29T23:59:59Z"), Some(951_868_799 + 32));
        assert_eq!(parse_utc("2020-03-01T12:00:00.25Z").unwrap().0 % 1_000_000_000, 250_000_000);
        assert_eq!(parse_utc("2020-03-01T12:00:00.1234567899Z").unwrap().0 % 1_000_000_000, 123_456_789);
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
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
