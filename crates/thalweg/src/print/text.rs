//! Numbers, times and tables as a person reads them.

use std::borrow::Cow;
use std::fmt::{Display, Write};
use std::time::{Duration, UNIX_EPOCH};

pub(crate) use thalweg_page::text::many;

/// Columns that text is broken at.
pub(crate) const WIDTH: usize = 80;

/// A whole number, its digits in groups of three: `1,234,567`.
pub(crate) fn count(number: impl Display) -> String {
    let text = number.to_string();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", &text[..]),
    };
    let mut out = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How often: `never`, `once`, `twice`, `5 times`.
pub(crate) fn times(number: u64) -> String {
    match number {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        more => format!("{} times", count(more)),
    }
}

/// Bytes in three digits, in powers of 1000: `287 MB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    // 999.5 would be shown as 1000.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Bytes of something that was chosen as a power of two: `4 MiB`; others as they are.
pub(crate) fn binary_size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = UNITS.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match whole {
        Some((shift, unit)) => format!("{} {unit}", count(bytes >> shift)),
        None => many(bytes, "byte"),
    }
}

/// How long something took: `0.5 s`, `183 s`, `2h 13m 5s`.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 99.95 => format!("{short:.1} s"),
        short if short < 600.0 => format!("{short:.0} s"),
        long => match Duration::try_from_secs_f64(long.round()) {
            Ok(long) => humantime::format_duration(long).to_string(),
            Err(_) => format!("{long} s"),
        },
    }
}

/// A time of TAI in the time of day, UTC: `2026-11-21 20:19:18`. `tai_utc_offset` is in seconds.
pub(crate) fn utc(tai_nanos: u64, tai_utc_offset: i32) -> String {
    let nanos = i128::from(tai_nanos) - i128::from(tai_utc_offset) * 1_000_000_000;
    let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', "")
}

/// A time of TAI to the nanosecond: `2026-11-21T20:19:55.285473552`.
pub(crate) fn tai(tai_nanos: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(tai_nanos);
    humantime::format_rfc3339_nanos(time).to_string().replace('Z', "")
}

/// Text from a file or a peer, with everything in it that could move a terminal's cursor replaced.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// As [`plain`], for text of several lines.
pub(crate) fn plain_lines(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Words in lines of at most [`WIDTH`] columns, the first behind `head`, the others indented as far.
pub(crate) fn wrapped(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let mut out = head.to_owned();
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Rows under a heading. Columns are as wide as what is in them, two spaces apart.
#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

/// Which side a column's cells stand at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let heading = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { align: columns.iter().map(|(_, align)| *align).collect(), rows: vec![heading] }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// All rows, each behind `indent` spaces.
    pub(crate) fn text(&self, indent: usize) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                let _ = match self.align[column] {
                    Align::Left => write!(line, "{cell:<width$}"),
                    Align::Right => write!(line, "{cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_named() {
        let counts: Vec<String> = [0, 999, 1000, -22_869, 1_234_567, i64::MIN].map(count).into();
        assert_eq!(counts, ["0", "999", "1,000", "-22,869", "1,234,567", "-9,223,372,036,854,775,808"]);
        assert_eq!([0, 1, 2, 3].map(|n| many(n, "block")), ["0 blocks", "1 block", "2 blocks", "3 blocks"]);
        assert_eq!([0, 1, 2, 5].map(times), ["never", "once", "twice", "5 times"]);
    }

    #[test]
    fn sizes_keep_three_digits() {
        let bytes = [0, 999, 1000, 9_994, 9_995, 99_950, 286_670_848, 999_500_000, u64::MAX];
        let sizes = ["0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "100 kB", "287 MB", "1.00 GB", "18.4 EB"];
        assert_eq!(bytes.map(size), sizes);
        let chosen = [0, 1, 1000, 4096, 4 << 20, 3 << 30].map(binary_size);
        assert_eq!(chosen, ["0 bytes", "1 byte", "1,000 bytes", "4 KiB", "4 MiB", "3 GiB"]);
    }

    #[test]
    fn lengths_of_time() {
        let lengths = [0.0, 0.4589, 12.34, 599.0, 7985.2, f64::INFINITY].map(seconds);
        assert_eq!(lengths, ["0.0 s", "0.5 s", "12.3 s", "599 s", "2h 13m 5s", "inf s"]);
    }

    #[test]
    fn times_are_told_in_utc_or_tai_and_never_overflow() {
        let began = 1_795_292_395_285_473_552;
        assert_eq!(utc(began, 37), "2026-11-21 20:19:18");
        assert_eq!(tai(began), "2026-11-21T20:19:55.285473552");
        assert_eq!(utc(0, 37), "1970-01-01 00:00:00");
        assert_eq!(utc(u64::MAX, i32::MIN), "2554-07-21 23:34:33");
        assert_eq!(tai(u64::MAX), "2554-07-21T23:34:33.709551615");
    }

    #[test]
    fn a_file_cannot_speak_to_the_terminal() {
        assert_eq!(plain("adc \u{1b}[2J\n"), "adc \u{fffd}[2J\u{fffd}");
        assert_eq!(plain("Δt"), "Δt");
        assert_eq!(plain_lines("one\ntwo\u{9b}2J"), "one\ntwo\u{fffd}2J");
    }

    #[test]
    fn long_text_goes_on_under_its_beginning() {
        let text = wrapped("  because: ", &"seven letters ".repeat(10));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("           s")), "{text}");
    }
}
