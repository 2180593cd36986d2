//! Numbers and sentences as a person reads them.

use std::borrow::Cow;

/// Columns that text in a terminal is broken at.
pub const WIDTH: usize = 80;

/// What stands where there is no figure.
pub const NOTHING: &str = "-";

/// Three digits, never an exponent: `0.0123`, `1.23`, `12.3`, `123`, `12,345`.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if !value.is_finite() => return NOTHING.to_owned(),
        // Where the third digit would round up to a fourth, as 9.995 would, one less is shown.
        m if m >= 99.95 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        m if m >= 0.09995 => 3,
        m if m >= 0.009_995 => 4,
        m if m >= 0.000_005 => 5,
        _ => return "0".to_owned(),
    };
    let text = format!("{magnitude:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    format!("{}{}{rest}", if value < 0.0 { "-" } else { "" }, grouped(whole))
}

/// Digits in groups of three: `1,234,567`.
fn grouped(digits: &str) -> String {
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// So many of something: `1 block`, `1,069 blocks`.
pub fn many(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", grouped(&number.to_string())),
    }
}

/// Bytes as they were chosen: `1 B`, `1,500 B`, `64 KiB`, `1 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 5] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
    let whole = UNITS.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    let (shift, unit) = whole.unwrap_or(&(0, "B"));
    format!("{} {unit}", grouped(&(bytes >> shift).to_string()))
}

/// Text from a file or another host, with everything in it that could move a terminal's cursor replaced.
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Words in lines of at most [`WIDTH`] columns, the first behind `head`, the others indented as far. What comes from outside
/// cannot move the cursor.
pub fn wrapped(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let mut out = head.to_owned();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(&plain(word));
        column += length;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_exponent() {
        let values = [0.0, 1e-9, 0.012_345, 0.5, 0.9996, 1.234, 9.996, 12.34, 99.96, 123.4, 12_345.6, 1e12, -1.5];
        let texts = ["0", "0", "0.0123", "0.500", "1.00", "1.23", "10.0", "12.3", "100", "123"];
        assert_eq!(values.map(number)[..10], texts);
        assert_eq!(values.map(number)[10..], ["12,346", "1,000,000,000,000", "-1.50"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(number), ["-", "-"]);
    }

    #[test]
    fn sizes_are_those_that_were_chosen() {
        let sizes = [0, 1, 1500, 1024, 1536, 65536, 1 << 20, 3 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1 B", "1,500 B", "1 KiB", "1,536 B", "64 KiB", "1 MiB", "3 GiB"]);
    }

    #[test]
    fn a_note_cannot_speak_to_the_terminal_and_stays_in_its_columns() {
        assert_eq!(wrapped("  ", "a \u{1b}[2J\nb"), "  a \u{fffd}[2J b\n");
        let text = wrapped("  note: ", &"seven letters ".repeat(10));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
