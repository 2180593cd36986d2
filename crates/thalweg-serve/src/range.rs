//! Byte ranges that a `Range` field asks for (RFC 9110, section 14.1.2 and 14.2).

use std::ops::Range;

/// The part of a representation that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it: the field is absent, invalid or ignored.
    Whole,
    /// These bytes, in the order they were asked for; at least one range, and no range is empty.
    Ranges(Vec<Range<u64>>),
    /// No bytes: the ranges lie beyond the end.
    Unsatisfiable,
}

/// Maximum number of ranges in one request that are answered one by one: a viewer asks for a few, an attacker for
/// thousands.
pub(crate) const MAX_RANGES: usize = 64;

/// Returns the part that a field asks for, of a representation of `length` bytes.
///
/// As section 14.2 allows, a field is ignored if it is not understood, asks for more ranges than [`MAX_RANGES`], or
/// for more bytes than there are (its ranges overlap).
pub(crate) fn select_part(field: &str, length: u64) -> Part {
    let Some(set) = split_range_set(field) else { return Part::Whole };
    let Some(specs) = set.into_iter().map(parse_spec).collect::<Option<Vec<Spec>>>() else { return Part::Whole };
    if specs.is_empty() || specs.len() > MAX_RANGES || length == 0 {
        return Part::Whole;
    }
    let ranges: Vec<Range<u64>> = specs.iter().filter_map(|spec| spec.resolve_range(length)).collect();
    let bytes = ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.end - range.start));
    match bytes {
        _ if ranges.is_empty() => Part::Unsatisfiable,
        Some(bytes) if bytes <= length => Part::Ranges(ranges),
        _ => Part::Whole,
    }
}

/// A single range, as it is written.
#[derive(Debug, Clone, Copy)]
enum Spec {
    /// `first-` and `first-last`
    From(u64, Option<u64>),
    /// `-suffix`
    Last(u64),
}

impl Spec {
    fn resolve_range(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::From(first, None) => first..length,
            Self::From(first, Some(last)) => first..last.saturating_add(1).min(length),
            Self::Last(suffix) => length.saturating_sub(suffix)..length,
        };
        (range.start < range.end).then_some(range)
    }
}

/// Returns the elements of the list after `bytes=`. Empty ones do not count (section 5.6.1.2).
fn split_range_set(field: &str) -> Option<Vec<&str>> {
    let (unit, set) = field.trim_matches([' ', '\t']).split_once('=')?;
    let elements =
        set.split(',').map(|element| element.trim_matches([' ', '\t'])).filter(|element| !element.is_empty());
    unit.eq_ignore_ascii_case("bytes").then(|| elements.collect())
}

fn parse_spec(text: &str) -> Option<Spec> {
    let (first, last) = text.split_once('-')?;
    match (first.is_empty(), last.is_empty()) {
        (true, _) => Some(Spec::Last(parse_number(last)?)),
        (false, true) => Some(Spec::From(parse_number(first)?, None)),
        (false, false) => {
            let (first, last) = (parse_number(first)?, parse_number(last)?);
            (first <= last).then_some(Spec::From(first, Some(last)))
        }
    }
}

/// Parses digits. A number that is too large for a `u64` is larger than any offset and becomes the maximum.
fn parse_number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is a list of ranges, too")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn asks_for(field: &str, length: u64, ranges: &[Range<u64>]) {
        assert_eq!(select_part(field, length), Part::Ranges(ranges.to_vec()), "{field}");
    }

    /// The examples of RFC 9110, section 14.1.2, of 10000 bytes.
    #[test]
    fn ranges_are_what_the_standard_says() {
        asks_for("bytes=0-499", 10_000, &[0..500]);
        asks_for("bytes=500-999", 10_000, &[500..1000]);
        asks_for("bytes=-500", 10_000, &[9500..10_000]);
        asks_for("bytes=9500-", 10_000, &[9500..10_000]);
        asks_for("bytes=0-0,-1", 10_000, &[0..1, 9999..10_000]);
        asks_for("bytes= 0-999, 4500-5499, -1000", 10_000, &[0..1000, 4500..5500, 9000..10_000]);
        asks_for("bytes=500-600,601-999", 10_000, &[500..601, 601..1000]);
        asks_for("bytes=500-700,601-999", 10_000, &[500..701, 601..1000]);
    }

    #[test]
    fn what_lies_beyond_the_end_is_cut_off_or_left_out() {
        asks_for("bytes=9999-10000", 10_000, &[9999..10_000]);
        asks_for("bytes=-20000", 10_000, &[0..10_000]);
        asks_for("bytes=0-99999999999999999999999999", 10_000, &[0..10_000]);
        asks_for("bytes=20000-,5-6", 10_000, &[5..7]);
        assert_eq!(select_part("bytes=10000-", 10_000), Part::Unsatisfiable);
        assert_eq!(select_part("bytes=-0", 10_000), Part::Unsatisfiable);
    }

    #[test]
    fn the_unit_is_not_case_sensitive_and_empty_elements_do_not_count() {
        asks_for("Bytes=0-1", 10, &[0..2]);
        asks_for("bytes=,0-1, ,3-3,", 10, &[0..2, 3..4]);
    }

    #[test]
    fn what_is_not_understood_is_ignored() {
        for field in
            ["", "bytes", "bytes=", "bytes=a-b", "bytes=5-4", "bytes=--1", "bytes=1-2-3", "events=1-2", "bytes=+1-2"]
        {
            assert_eq!(select_part(field, 10), Part::Whole, "{field}");
        }
        assert_eq!(select_part("bytes=0-", 0), Part::Whole);
    }

    #[test]
    fn nobody_gets_more_than_there_is() {
        assert_eq!(select_part("bytes=0-,0-", 10), Part::Whole);
        let many = format!("bytes={}", (0..65).map(|i| format!("{i}-{i}")).collect::<Vec<_>>().join(","));
        assert_eq!(select_part(&many, 1000), Part::Whole);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_lies_within(field in "(bytes=)?[0-9, \\-]{0,40}", length in 0_u64..200) {
            if let Part::Ranges(ranges) = select_part(&field, length) {
                prop_assert!(!ranges.is_empty());
                prop_assert!(ranges.iter().all(|range| range.start < range.end && range.end <= length));
                prop_assert!(ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= length);
            }
        }
    }
}
