//! The difference between TAI and UTC.

/// TAI − UTC in seconds now, and until the next leap second is announced.
pub const TAI_MINUS_UTC: u32 = LEAPS[LEAPS.len() - 1].1;

/// Returns TAI − UTC in whole seconds at a UTC time, given in seconds since 1970 without leap seconds, as in the
/// system's clock; `None` before 1972, when the difference was not a whole number.
pub fn tai_minus_utc(unix_seconds: u64) -> Option<u32> {
    let since_1900 = unix_seconds.saturating_add(2_208_988_800);
    LEAPS.iter().rev().find(|(begin, _)| *begin <= since_1900).map(|(_, offset)| *offset)
}

/// Times in seconds since 1900, and TAI − UTC in seconds from each of them on (`leap-seconds.list` of the IETF
/// time-zone archive, from IERS Bulletin C). No leap second has been announced after the last of these; a new one needs
/// a line here.
const LEAPS: [(u64, u32); 28] = [
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_changes_behind_a_leap_second() {
        // Output of `date -u -d 2017-01-01 +%s`, and of 1972.
        assert_eq!(
            [1_483_228_799, 1_483_228_800, u64::MAX].map(tai_minus_utc),
            [Some(36), Some(37), Some(TAI_MINUS_UTC)]
        );
        assert_eq!([0, 63_071_999, 63_072_000].map(tai_minus_utc), [None, None, Some(10)]);
    }
}
