//! Decimal numbers in front of a unit, scaled without rounding errors.

/// Largest exponent that is accepted, in either direction: 1e30 is more than any unit counts.
const MAX_EXPONENT: i32 = 30;

/// Number as written: `digits` × 10^`exponent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u64,
    exponent: i32,
}

impl Decimal {
    /// Splits a text into the number at its beginning and the unit after it, without the spaces around them: `64`,
    /// `1.5`, `1e9`. Returns `None` if it does not begin with a number, or if the number is out of range.
    pub(crate) fn split_unit(text: &str) -> Option<(Self, &str)> {
        let text = text.trim();
        let (whole, rest) = split_digits(text);
        let (decimals, rest) = match rest.strip_prefix('.') {
            Some(rest) => Some(split_digits(rest)).filter(|(decimals, _)| !decimals.is_empty())?,
            None => ("", rest),
        };
        if whole.is_empty() {
            return None;
        }
        let (exponent, rest) = split_exponent(rest).unwrap_or((0, rest));
        // Zeros at the end say nothing about the value.
        let decimals = decimals.trim_end_matches('0');
        let digits = format!("{whole}{decimals}").parse().ok()?;
        let exponent = exponent.checked_sub(i32::try_from(decimals.len()).ok()?)?;
        let in_range = (-MAX_EXPONENT..=MAX_EXPONENT).contains(&exponent);
        in_range.then_some((Self { digits, exponent }, rest.trim_start()))
    }

    /// Returns the number of whole parts in this number of units of `parts` each, or `None` if a fraction is left or
    /// the result is too large.
    pub(crate) fn scale_exactly(self, parts: u64) -> Option<u64> {
        let scaled = u128::from(self.digits) * u128::from(parts);
        let power = 10_u128.pow(self.exponent.unsigned_abs());
        let whole = match self.exponent {
            0.. => scaled.checked_mul(power)?,
            _ => Some(scaled / power).filter(|_| scaled.is_multiple_of(power))?,
        };
        u64::try_from(whole).ok()
    }

    /// Returns the same rounded to the nearest whole number, or `None` if the result is too large, or is 0 only by
    /// rounding.
    pub(crate) fn scale_rounded(self, parts: u64) -> Option<u64> {
        let scaled = u128::from(self.digits) * u128::from(parts);
        let power = 10_u128.pow(self.exponent.unsigned_abs());
        let rounded = match self.exponent {
            0.. => scaled.checked_mul(power)?,
            _ => scaled.checked_add(power / 2)? / power,
        };
        u64::try_from(rounded).ok().filter(|rounded| *rounded > 0 || self.digits == 0)
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len()))
}

/// Splits an exponent from the beginning of a text: `e9`, `E-3`. A letter without digits is left as a unit.
fn split_exponent(text: &str) -> Option<(i32, &str)> {
    let rest = text.strip_prefix(['e', 'E'])?;
    let (sign, rest) = match rest.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, rest.strip_prefix('+').unwrap_or(rest)),
    };
    let (digits, rest) = split_digits(rest);
    Some((sign * digits.parse::<i32>().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Option<(u64, i32, &str)> {
        Decimal::split_unit(text).map(|(number, unit)| (number.digits, number.exponent, unit))
    }

    #[test]
    fn a_number_is_split_from_its_unit() {
        assert_eq!(split(" 64 KiB "), Some((64, 0, "KiB")));
        assert_eq!(split("1.50Mbit/s"), Some((15, -1, "Mbit/s")));
        assert_eq!(split("1e9"), Some((1, 9, "")));
        assert_eq!(split("2.5E-3s"), Some((25, -4, "s")));
        assert_eq!(split("3E"), Some((3, 0, "E")), "a letter without digits is a unit");
        for text in ["", "KiB", ".5", "1.", "-1", "+1", "1e99", "99999999999999999999", "1e99999999999"] {
            assert_eq!(split(text).filter(|(.., unit)| !unit.starts_with('e')), None, "{text}");
        }
    }

    #[test]
    fn scaling_is_exact_or_rounds_to_nearest() {
        let number = |text| Decimal::split_unit(text).unwrap().0;
        assert_eq!(number("1.5").scale_exactly(1024), Some(1536));
        assert_eq!(number("1.5").scale_exactly(1), None);
        assert_eq!(number("1.5").scale_rounded(1), Some(2));
        assert_eq!(number("0.1").scale_rounded(1), None, "a value above 0 never becomes 0");
        assert_eq!(number("0").scale_rounded(1), Some(0));
        assert_eq!(number("18446744073709551615").scale_exactly(1), Some(u64::MAX));
        assert_eq!(number("18446744073709551615").scale_exactly(2), None);
        assert_eq!(number("1e30").scale_rounded(u64::MAX), None);
    }
}
