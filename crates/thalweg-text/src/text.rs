//! Numbers, times, sentences and tables for a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::{Duration, UNIX_EPOCH};
use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Number of columns at which text in a terminal is wrapped.
pub const TEXT_COLUMNS: usize = 80;

/// Text for a missing figure.
pub const NOTHING: &str = "-";

/// Formats a number with three digits, never with an exponent: `0.0123`, `1.23`, `12.3`, `123`, `12,345`.
pub fn format_number(value: f64) -> String {
    let magnitude = value.abs();
    let digits = match magnitude {
        _ if !value.is_finite() => return NOTHING.to_owned(),
        // If the third digit would round up to a fourth, as in 9.995, one decimal less is shown.
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
    format!("{}{}{rest}", if value < 0.0 { "-" } else { "" }, format_count(whole))
}

/// Formats a whole number, its digits in groups of three: `1,234,567`.
pub fn format_count(number: impl Display) -> String {
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

/// Formats a number of times: `never`, `once`, `twice`, `5 times`.
pub fn format_times(number: u64) -> String {
    match number {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        more => format!("{} times", format_count(more)),
    }
}

/// Formats a number with its noun: `1 block`, `1,069 blocks`.
pub fn format_quantity(number: u64, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", format_count(number)),
    }
}

/// Formats a measured value with three digits, in the largest of ascending units that it reaches.
fn format_in_unit(value: f64, units: &[(f64, &str)]) -> String {
    // The value 999.5 of a unit would be shown as 1000.
    let reached = units.iter().rev().find(|(unit, _)| value.abs() >= unit * 0.9995);
    let base = units.iter().find(|(unit, _)| *unit == 1.0);
    match reached.or(base.filter(|_| value == 0.0)).or(units.first()) {
        Some((unit, name)) if value.is_finite() => format!("{} {name}", format_number(value / unit)),
        _ => NOTHING.to_owned(),
    }
}

/// Rounds a value to three significant digits.
fn round_to_three_digits(value: f64) -> f64 {
    let power = 10_f64.powf(value.abs().log10().floor() - 2.0);
    if power.is_normal() { (value / power).round() * power } else { value }
}

/// Formats a number of bytes with three digits, in powers of 1000: `287 MB`.
pub fn format_volume(bytes: u64) -> String {
    const UNITS: [(f64, &str); 6] = [(1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"), (1e18, "EB")];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    format_in_unit(bytes as f64, &UNITS)
}

/// Formats a chosen number of bytes exactly, in the shortest form that [`ByteSize`](crate::ByteSize) parses: `1 B`,
/// `1500 B`, `340 kB`, `64 KiB`, `1.5 MiB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 8] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
        (1_000_000_000_000, "TB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
        (1_000, "kB"),
    ];
    // Below ten thousand, bytes are as short as powers of 1000.
    let units = UNITS.iter().filter(|(unit, _)| bytes >= *unit && (unit.is_power_of_two() || bytes >= 10_000));
    let forms = units.filter_map(|(unit, name)| {
        let thousandths = u128::from(bytes) * 1000;
        let whole = thousandths.is_multiple_of(u128::from(*unit));
        whole.then(|| format!("{} {name}", format_thousandths(thousandths / u128::from(*unit))))
    });
    let shortest = forms.min_by_key(String::len);
    let exact = format!("{bytes} B");
    shortest.filter(|form| bytes >= 10_000 || form.len() <= exact.len()).unwrap_or(exact)
}

/// Formats a number of thousandths as a decimal number, exactly: 2500 as `2.5`.
pub(crate) fn format_thousandths(thousandths: u128) -> String {
    let (whole, rest) = (thousandths / 1000, thousandths % 1000);
    match rest {
        0 => whole.to_string(),
        _ => format!("{whole}.{rest:03}").trim_end_matches('0').to_owned(),
    }
}

/// Formats a rate in bytes per second, in powers of 1000: `287 MB/s`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "three digits are shown")]
pub fn format_rate(bytes_per_second: f64) -> String {
    format!("{}/s", format_volume(bytes_per_second.max(0.0).round() as u64))
}

/// Formats a rate in bits per second with three digits, in powers of 1000: `940 Mbit/s`, `12.5 Gbit/s`.
pub fn format_bit_rate(bits_per_second: f64) -> String {
    const UNITS: [(f64, &str); 5] =
        [(1.0, "bit/s"), (1e3, "kbit/s"), (1e6, "Mbit/s"), (1e9, "Gbit/s"), (1e12, "Tbit/s")];
    format_in_unit(bits_per_second, &UNITS)
}

/// Formats a number per second with three digits and its noun: `0.500 events/s`, `12,300 events/s`,
/// `1.24 million events/s`.
pub fn format_per_second(per_second: f64, noun: &str) -> String {
    match round_to_three_digits(per_second) {
        many if many.abs() >= 1e6 => format!("{} million {noun}/s", format_number(many * 1e-6)),
        few => format!("{} {noun}/s", format_number(few)),
    }
}

/// Formats the processor time that a gigabyte costs, with three digits: `35.0 CPU ms/GB`, `1.25 CPU s/GB`,
/// `636,000 CPU s/GB`.
pub fn format_cpu_cost(seconds_per_gigabyte: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e-6, "CPU µs/GB"), (1e-3, "CPU ms/GB"), (1.0, "CPU s/GB")];
    format_in_unit(round_to_three_digits(seconds_per_gigabyte), &UNITS)
}

/// Formats the part of a whole with three digits, a small one as its inverse: `90.9 %`, `1 in 1,234`, `none`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn format_share(part: u64, whole: u64) -> String {
    let share = part as f64 / whole as f64;
    match share {
        _ if whole == 0 => NOTHING.to_owned(),
        _ if part == 0 => "none".to_owned(),
        _ if part == whole => "all".to_owned(),
        // Rounding must not make all of most.
        most if (0.9995..1.0).contains(&most) => format!("all but {}", format_share(whole - part, whole)),
        large if large >= 0.01 => format!("{} %", format_number(large * 100.0)),
        small => format!("1 in {}", format_number(round_to_three_digits(small.recip()))),
    }
}

/// Formats a measured duration, given in seconds, with three digits: `120 ns`, `4.50 ms`, `183 s`, `2h 13m 5s`.
pub fn format_seconds(seconds: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")];
    match Duration::try_from_secs_f64(seconds.round()) {
        _ if seconds == 0.0 => "0 s".to_owned(),
        Ok(long) if seconds >= 600.0 => humantime::format_duration(long).to_string(),
        _ => format_in_unit(seconds, &UNITS),
    }
}

/// Formats a time of TAI, in nanoseconds, as UTC: `2026-11-21 20:19:18`. `tai_utc_offset` is in seconds.
pub fn format_utc(tai_nanos: u64, tai_utc_offset: i32) -> String {
    let nanos = i128::from(tai_nanos) - i128::from(tai_utc_offset) * 1_000_000_000;
    let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
    humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', "")
}

/// Formats a time of TAI, in nanoseconds, to the nanosecond: `2026-11-21T20:19:55.285473552`.
pub fn format_tai(tai_nanos: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(tai_nanos);
    humantime::format_rfc3339_nanos(time).to_string().replace('Z', "")
}

/// Returns text from a file or another host with all control characters replaced, since they could move a terminal's
/// cursor.
pub fn replace_controls(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => text.replace(char::is_control, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Returns text of several lines, with control characters replaced as by [`replace_controls`].
pub fn replace_controls_in_lines(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Wraps words into lines of at most [`TEXT_COLUMNS`], the first after `head`, the others indented by its width.
/// Control characters in the text are replaced, so that it cannot move the cursor.
pub fn wrap_words(head: &str, text: &str) -> String {
    let indent = " ".repeat(display_width(head));
    let words: Vec<Cow<'_, str>> = text.split_whitespace().map(replace_controls).collect();
    let text =
        textwrap::fill(&words.join(" "), wrap_options(TEXT_COLUMNS).initial_indent(head).subsequent_indent(&indent));
    text.trim_end().to_owned() + "\n"
}

/// Wraps a text into lines of at most `width` columns, broken at spaces. A longer word has a line of its own.
pub fn break_into_lines(text: &str, width: usize) -> Vec<Cow<'_, str>> {
    textwrap::wrap(text, wrap_options(width))
}

fn wrap_options(width: usize) -> Options<'static> {
    Options::new(width)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit)
}

/// Rows under a heading. Columns are as wide as their content, two spaces apart.
#[derive(Debug)]
pub struct Table {
    align: Vec<Align>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

/// Alignment of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

impl Table {
    /// Creates a table with headings and no rows.
    pub fn new<'a>(columns: impl IntoIterator<Item = (&'a str, Align)>) -> Self {
        let (heading, align): (Vec<_>, Vec<_>) =
            columns.into_iter().map(|(name, align)| (name.to_owned(), align)).unzip();
        let mut table = Self { widths: vec![0; align.len()], align, rows: Vec::new() };
        table.add_row(heading);
        table
    }

    /// Adds a row, with a cell for each column.
    pub fn add_row(&mut self, cells: Vec<String>) {
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = display_width(cell).max(*width);
        }
        self.rows.push(cells);
    }

    /// Returns all rows, each indented by `indent` spaces.
    pub fn render_text(&self, indent: usize) -> String {
        self.render_columns(indent, 0..self.align.len())
    }

    /// Returns the table as [`Table::render_text`] does, in [`TEXT_COLUMNS`]: columns that do not fit follow below,
    /// again after the first column.
    pub fn render_folded(&self, indent: usize) -> String {
        let mut out = String::new();
        let mut from = 1;
        while from < self.align.len() {
            let mut end = indent + self.widths[0];
            let fits = self.widths[from..].iter().take_while(|width| {
                end += 2 + **width;
                end <= TEXT_COLUMNS
            });
            let to = from + fits.count().max(1);
            out.push_str(&self.render_columns(indent, std::iter::once(0).chain(from..to)));
            from = to;
        }
        out
    }

    fn render_columns(&self, indent: usize, columns: impl Iterator<Item = usize> + Clone) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for column in columns.clone() {
                let Some(cell) = row.get(column) else { break };
                let space = " ".repeat(self.widths[column] - display_width(cell));
                match self.align[column] {
                    Align::Left => line.extend([cell, &space, "  "]),
                    Align::Right => line.extend([&space, cell, "  "]),
                }
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
    fn numbers_have_three_digits_and_no_exponent() {
        let values = [0.0, 1e-9, 0.012_345, 0.5, 0.9996, 1.234, 9.996, 12.34, 99.96, 123.4, 12_345.6, 1e12, -1.5];
        let texts = ["0", "0", "0.0123", "0.500", "1.00", "1.23", "10.0", "12.3", "100", "123"];
        assert_eq!(values.map(format_number)[..10], texts);
        assert_eq!(values.map(format_number)[10..], ["12,346", "1,000,000,000,000", "-1.50"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(format_number), ["-", "-"]);
    }

    #[test]
    fn sizes_are_those_that_were_chosen() {
        let sizes = [0, 1, 1500, 1024, 1536, 65536, 1 << 20, 3 << 30].map(format_size);
        assert_eq!(sizes, ["0 B", "1 B", "1500 B", "1 KiB", "1536 B", "64 KiB", "1 MiB", "3 GiB"]);
        let sizes = [9_000, 340_000, 73_792, 3_400_000, 3 << 19, 5_000_000_000].map(format_size);
        assert_eq!(sizes, ["9000 B", "340 kB", "73.792 kB", "3.4 MB", "1.5 MiB", "5 GB"]);
        assert_eq!([0.4, 286_670_848.2, f64::NAN].map(format_rate), ["0 B/s", "287 MB/s", "0 B/s"]);
    }

    #[test]
    fn a_note_cannot_speak_to_the_terminal_and_stays_in_its_columns() {
        assert_eq!(wrap_words("  ", "a \u{1b}[2J\nb"), "  a \u{fffd}[2J b\n");
        let text = wrap_words("  note: ", &"seven letters ".repeat(10));
        assert!(text.lines().all(|line| line.chars().count() <= TEXT_COLUMNS), "{text}");
    }

    #[test]
    fn numbers_are_grouped_and_named() {
        let counts: Vec<String> = [0, 999, 1000, -22_869, 1_234_567, i64::MIN].map(format_count).into();
        assert_eq!(counts, ["0", "999", "1,000", "-22,869", "1,234,567", "-9,223,372,036,854,775,808"]);
        assert_eq!([0, 1, 2, 3].map(|n| format_quantity(n, "block")), ["0 blocks", "1 block", "2 blocks", "3 blocks"]);
        assert_eq!([0, 1, 2, 5].map(format_times), ["never", "once", "twice", "5 times"]);
    }

    #[test]
    fn sizes_keep_three_digits() {
        let volumes = [0, 999, 1000, 9_994, 9_995, 99_950, 286_670_848, 999_500_000, u64::MAX];
        let sizes = ["0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "100 kB", "287 MB", "1.00 GB", "18.4 EB"];
        assert_eq!(volumes.map(format_volume), sizes);
    }

    #[test]
    fn lengths_of_time() {
        let lengths = [0.0, 1.2e-7, 45e-6, 0.9996, 0.4589, 12.34, 599.0, 7985.2].map(format_seconds);
        assert_eq!(lengths, ["0 s", "120 ns", "45.0 µs", "1.00 s", "459 ms", "12.3 s", "599 s", "2h 13m 5s"]);
        assert_eq!([f64::INFINITY, f64::NAN, -0.25].map(format_seconds), ["-", "-", "-250 ms"]);
    }

    #[test]
    fn rates_keep_three_digits() {
        let rates = [0.0, 0.5, 9600.0, 999_600.0, 9.4e8, 1.25e10, 3.2e12, f64::NAN].map(format_bit_rate);
        let texts =
            ["0 bit/s", "0.500 bit/s", "9.60 kbit/s", "1.00 Mbit/s", "940 Mbit/s", "12.5 Gbit/s", "3.20 Tbit/s"];
        assert_eq!((&rates[..7], &rates[7][..]), (&texts.map(str::to_owned)[..], "-"));
        let rates =
            [0.0, 0.25, 19.6, 2500.0, 12_345.6, 999_900.0, 1.244e6].map(|rate| format_per_second(rate, "events"));
        let texts = ["0", "0.250", "19.6", "2,500", "12,300", "1.00 million", "1.24 million"];
        assert_eq!(rates, texts.map(|text| format!("{text} events/s")));
        let costs = [0.0, 1.5e-6, 0.035, 1.25, 635_912.875].map(format_cpu_cost);
        assert_eq!(costs, ["0 CPU s/GB", "1.50 CPU µs/GB", "35.0 CPU ms/GB", "1.25 CPU s/GB", "636,000 CPU s/GB"]);
    }

    #[test]
    fn shares_are_percent_or_one_in_so_many() {
        let shares = [(0, 0), (0, 9), (9, 9), (10, 11), (1, 3), (1, 100), (1, 1234), (3, 100_000), (99_999, 100_000)];
        let texts =
            ["-", "none", "all", "90.9 %", "33.3 %", "1.00 %", "1 in 1,230", "1 in 33,300", "all but 1 in 100,000"];
        assert_eq!(shares.map(|(part, whole)| format_share(part, whole)), texts);
    }

    #[test]
    fn times_are_told_in_utc_or_tai_and_never_overflow() {
        let began = 1_795_292_395_285_473_552;
        assert_eq!(format_utc(began, 37), "2026-11-21 20:19:18");
        assert_eq!(format_tai(began), "2026-11-21T20:19:55.285473552");
        assert_eq!(format_utc(0, 37), "1970-01-01 00:00:00");
        assert_eq!(format_utc(u64::MAX, i32::MIN), "2554-07-21 23:34:33");
        assert_eq!(format_tai(u64::MAX), "2554-07-21T23:34:33.709551615");
    }

    #[test]
    fn a_file_cannot_speak_to_the_terminal() {
        assert_eq!(replace_controls("adc \u{1b}[2J\n"), "adc \u{fffd}[2J\u{fffd}");
        assert_eq!(replace_controls("Δt"), "Δt");
        assert_eq!(replace_controls_in_lines("one\ntwo\u{9b}2J"), "one\ntwo\u{fffd}2J");
    }

    #[test]
    fn long_text_goes_on_under_its_beginning() {
        let text = wrap_words("  because: ", &"seven letters ".repeat(10));
        assert!(text.lines().all(|line| line.len() <= TEXT_COLUMNS), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("           s")), "{text}");
    }
}
