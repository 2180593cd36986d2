//! Parts of which pictures are made: sections with titles, columns, times.

use super::{Look, Tone};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use thalweg_text::{break_into_lines, format_count, replace_controls};

/// Part of the screen: a title and rows.
pub(super) struct Section {
    pub(super) title: Line<'static>,
    pub(super) rows: Vec<Line<'static>>,
    /// Number of rows by which it is scrolled.
    pub(super) scroll: usize,
    /// Number of rows that it gets before others get more.
    pub(super) least_rows: usize,
    /// True if its last row tells how many have no room.
    pub(super) tells_rest: bool,
}

impl Section {
    /// Returns the lines of sections below one another: each has its least, and then the first ones have more.
    pub(super) fn stack_sections(sections: Vec<Self>, height: usize, has_gaps: bool) -> Vec<Line<'static>> {
        let gap = usize::from(has_gaps);
        let least = |section: &Self| section.rows.len().min(section.least_rows) + 1 + gap;
        let mut spare = height.saturating_sub(sections.iter().map(least).sum());
        let mut lines = Vec::new();
        for section in sections {
            let more = (section.rows.len() + 1 + gap - least(&section)).min(spare);
            spare -= more;
            let rows = least(&section) - 1 - gap + more;
            lines.push(section.title.clone());
            lines.extend(cut_rows(section.rows, section.scroll, rows, section.tells_rest));
            lines.extend(std::iter::repeat_n(Line::default(), gap));
        }
        lines
    }
}

/// Returns the rows that fit, from `scroll` on. The last one tells how many are left out, if that is wanted.
fn cut_rows(rows: Vec<Line<'static>>, scroll: usize, height: usize, tells_rest: bool) -> Vec<Line<'static>> {
    let count = rows.len();
    if count <= height {
        return rows;
    }
    let first = scroll.min(count - height);
    let mut shown: Vec<Line<'static>> = rows.into_iter().skip(first).take(height).collect();
    let left_out = count - first - height;
    if left_out > 0
        && tells_rest
        && let Some(last) = shown.last_mut()
    {
        *last = Line::from(format!("  and {} more", format_count(left_out + 1)));
    }
    shown
}

/// Column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Width in columns of the terminal; the last one has what is left.
    pub(super) width: usize,
    pub(super) is_number: bool,
}

impl Column {
    pub(super) const fn text_column(title: &'static str, width: usize) -> Self {
        Self { title, width, is_number: false }
    }

    pub(super) const fn number_column(title: &'static str, width: usize) -> Self {
        Self { title, width, is_number: true }
    }

    /// Returns a text in this column, shortened or filled up.
    fn fill_cell(&self, text: &str) -> String {
        let text = shorten_text(&replace_controls(text), self.width);
        let gap = " ".repeat(self.width - width_of(&text));
        if self.is_number { format!("{gap}{text}") } else { format!("{text}{gap}") }
    }
}

/// Returns the texts of a row in their columns, each after a space.
pub(super) fn join_cells<'a>(columns: &[Column], cells: impl IntoIterator<Item = &'a str>) -> String {
    columns.iter().zip(cells).map(|(column, text)| format!(" {}", column.fill_cell(text))).collect()
}

/// Returns the head of a table over the whole width.
pub(super) fn head_of(columns: &[Column], look: Look, width: usize) -> Line<'static> {
    let titles = join_cells(columns, columns.iter().map(|column| column.title));
    let gap = " ".repeat(width.saturating_sub(width_of(&titles) + 1));
    Line::from(look.span(format!(" {titles}{gap}"), Tone::Title))
}

/// Gives the last column what the others leave of a width.
pub(super) fn fill_width(columns: &mut [Column], width: usize) {
    let used: usize = columns.iter().map(|column| column.width + 1).sum();
    if let Some(last) = columns.last_mut() {
        last.width = (last.width + width).saturating_sub(used + 1);
    }
}

/// Returns the number of columns that a text takes in a terminal.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Shortens a text to a width.
pub(super) fn shorten_text(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for char in text.chars() {
        short.push(char);
        if width_of(&short) >= width {
            short.pop();
            break;
        }
    }
    if width > 0 {
        short.push('…');
    }
    short
}

/// Columns by which the second line of a text is indented, and those after it.
const INDENT: &str = "   ";

/// Returns the end of a text that fits into a width.
pub(super) fn end_of_text(text: &str, width: usize) -> &str {
    let starts = text.char_indices().rev().map(|(start, _)| start);
    starts.take_while(|start| width_of(&text[*start..]) <= width).last().map_or("", |start| &text[start..])
}

/// Returns a text in at most `max_lines` lines.
pub(super) fn wrap_lines(text: &str, width: usize, max_lines: usize, style: Style) -> Vec<Line<'static>> {
    if text.is_empty() {
        return Vec::new();
    }
    if width_of(text) <= width {
        return vec![Line::styled(text.to_owned(), style)];
    }
    let lines = break_into_lines(text, width.saturating_sub(INDENT.len()).max(1));
    let is_cut = lines.len() > max_lines;
    let lines = lines.into_iter().take(max_lines).enumerate().map(|(index, line)| {
        let indent = if index > 0 { INDENT } else { "" };
        let mark = if is_cut && index + 1 == max_lines { " …" } else { "" };
        Line::styled(shorten_text(&format!("{indent}{line}{mark}"), width), style)
    });
    lines.collect()
}

pub(super) fn span_text(span: &Span<'_>) -> String {
    span.content.to_string()
}

/// Returns names in a sentence; of many, the first.
pub(super) fn list_names(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let list = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Returns the time of day of a Unix time, in UTC; a dash if there is none.
pub(super) fn clock_time(unix: f64) -> String {
    if !(1.0..1e11).contains(&unix) {
        return "-".into();
    }
    let seconds = unix.rem_euclid(86_400.0).floor();
    let (hours, minutes) = ((seconds / 3600.0).floor(), (seconds / 60.0).floor() % 60.0);
    format!("{hours:02.0}:{minutes:02.0}:{:02.0}", seconds % 60.0)
}

/// Returns a duration in seconds as hours, minutes and seconds.
pub(super) fn format_stopwatch(seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.max(0.0).floor() } else { 0.0 };
    format!("{:.0}:{:02.0}:{:02.0}", (seconds / 3600.0).floor(), (seconds / 60.0).floor() % 60.0, seconds % 60.0)
}

/// Returns a long duration in two units.
pub(super) fn format_span(seconds: f64) -> String {
    let minutes = (seconds / 60.0).floor();
    match minutes {
        _ if !seconds.is_finite() => "-".into(),
        m if m < 1.0 => format!("{:.0} s", seconds.max(0.0)),
        m if m < 60.0 => format!("{m:.0} min"),
        m if m < 2880.0 => format!("{:.0} h {:02.0} min", (m / 60.0).floor(), m % 60.0),
        m => format!("{} days", format_count(format!("{:.0}", (m / 1440.0).floor()))),
    }
}

/// Returns a share in per cent.
pub(super) fn format_percent(percent: f64) -> String {
    match percent {
        p if !p.is_finite() => "-".into(),
        p if p > 0.0 && p < 0.5 => "< 1 %".into(),
        p => format!("{p:.0} %"),
    }
}
