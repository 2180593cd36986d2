//! From the UTC that recordings carry to the TAI of the fragment header.

use thalweg_wire::TaiNanos;

/// TAI − UTC in seconds from 00:00 UTC of a date on (IERS Bulletin C; `leap-seconds.list` of the IETF time-zone archive). No leap
/// second has been announced after the last of these; one that comes needs a line here.
const LEAPS: [((i64, i64, i64), i64); 28] = [
    ((1972, 1, 1), 10),
    ((1972, 7, 1), 11),
    ((1973, 1, 1), 12),
    ((1974, 1, 1), 13),
    ((1975, 1, 1), 14),
    ((1976, 1, 1), 15),
    ((1977, 1, 1), 16),
    ((1978, 1, 1), 17),
    ((1979, 1, 1), 18),
    ((1980, 1, 1), 19),
    ((1981, 7, 1), 20),
    ((1982, 7, 1), 21),
    ((1983, 7, 1), 22),
    ((1985, 7, 1), 23),
    ((1988, 1, 1), 24),
    ((1990, 1, 1), 25),
    ((1991, 1, 1), 26),
    ((1992, 7, 1), 27),
    ((1993, 7, 1), 28),
    ((1994, 7, 1), 29),
    ((1996, 1, 1), 30),
    ((1997, 7, 1), 31),
    ((1999, 1, 1), 32),
    ((2006, 1, 1), 33),
    ((2009, 1, 1), 34),
    ((2012, 7, 1), 35),
    ((2015, 7, 1), 36),
    ((2017, 1, 1), 37),
];

/// Seconds of TAI since 1970-01-01 00:00:00 TAI at midnight UTC of a date; nothing before 1972, when UTC began to differ
/// from TAI by whole seconds.
pub(crate) fn tai_at_midnight(year: i64, month: i64, day: i64) -> Option<u64> {
    let (_, offset) = LEAPS.iter().rev().find(|(date, _)| *date <= (year, month, day))?;
    u64::try_from(days_since_1970(year, month, day) * 86_400 + offset).ok()
}

/// The moment that an ISO 8601 date and time in UTC names, as SigMF writes it: `2020-03-01T12:00:00.5Z`. Digits behind the
/// ninth decimal are ignored. Nothing where it is not one, or before 1972, or in a year of more than four digits.
pub(crate) fn parse_utc(text: &str) -> Option<TaiNanos> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, decimals) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let month_length = match month {
        2 => 28 + i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    // Second 60 exists only at 23:59 in front of a leap, where it is the second after second 59.
    if !(1..=month_length).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if second == 60 && (hour, minute) != (23, 59) {
        return None;
    }
    if decimals.is_empty() || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos = decimals.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, |n, b| n * 10 + u64::from(b - b'0'));
    let seconds = tai_at_midnight(year, month, day)? + (hour * 3600 + minute * 60 + second) as u64;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos).map(TaiNanos)
}

/// Three numbers of so many digits each.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits && part.bytes().all(|b| b.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (H. Hinnant, *chrono-compatible low-level date algorithms*).
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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
            "2020-03-01T12:00:00.Z",
            "2020-03-01T12:00:00.1xZ",
            "-020-03-01T12:00:00Z",
            "1971-12-31T23:59:59Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
