//! Table in a terminal that is filled in as points are done.

use super::columns::{Column, group_title, instrument_columns};
use super::sections::{SummaryTable, summary_table};
use crate::{Point, Report};
use std::collections::BTreeSet;
use std::fmt::Write;
use thalweg_text::{Align, NOTHING, format_size, replace_controls, wrap_words};

/// Formatter of rows, one at a time: a line names the link, method and settings wherever these change.
#[derive(Debug)]
pub struct Table {
    instrument: String,
    columns: Vec<Column>,
    group: Option<String>,
    shown_notes: BTreeSet<String>,
}

impl Table {
    /// Makes a table for an instrument's points.
    pub fn new(instrument: &str) -> Self {
        Self {
            instrument: instrument.to_owned(),
            columns: instrument_columns(instrument),
            group: None,
            shown_notes: BTreeSet::new(),
        }
    }

    /// Formats the whole table of a report, with its warnings.
    pub fn format_report(report: &Report) -> String {
        let mut table = Self::new(&report.instrument);
        let rows: String = report.points.iter().map(|point| table.format_point(point)).collect();
        rows + &Self::format_end(report)
    }

    /// Formats a point's row, after the headings that it needs. A failed point shows its error; each note is shown
    /// once.
    pub fn format_point(&mut self, point: &Point) -> String {
        let mut out = String::new();
        if self.group.is_none() {
            out.push_str(&self.format_row(|column| column.name.to_owned()));
            out.push_str(&self.format_row(|column| column.unit.to_owned()));
        }
        let group = group_title(&self.instrument, &point.key);
        if self.group.as_ref() != Some(&group) {
            out.push_str(&wrap_words("", &group));
            self.group = Some(group);
        }
        if !point.repeats.is_empty() {
            let row = self.format_row(|column| column.cell_text(point).unwrap_or_else(|| NOTHING.to_owned()));
            out.push_str(&if point.warnings.is_empty() { row } else { mark_as_doubtful(&row) });
        }
        if let Some(error) = &point.error {
            out.push_str(&wrap_words(&format!("{:>8}  ", format_size(point.key.size)), error));
        }
        for note in &point.notes {
            if self.shown_notes.insert(note.clone()) {
                out.push_str(&wrap_words("          ", note));
            }
        }
        out
    }

    /// Formats the end of the output: the table over all points, and the warnings.
    pub fn format_end(report: &Report) -> String {
        let mut out = String::new();
        if let Some(SummaryTable { title, headings, rows }) = summary_table(report) {
            out.push('\n');
            out.push_str(&wrap_words("", title));
            out.push_str(&align_columns(&headings, rows));
        }
        if !report.warnings.is_empty() {
            out.push('\n');
        }
        report.warnings.iter().for_each(|warning| out.push_str(&wrap_words("warning: ", warning)));
        if report.points.iter().any(|point| !point.warnings.is_empty() && !point.repeats.is_empty()) {
            out.push_str(&wrap_words("!        ", "a warning applies to the row; --json and --out FILE.json have it"));
        }
        out
    }

    fn format_row(&self, cell: impl Fn(&Column) -> String) -> String {
        let mut out = String::new();
        for (at, column) in self.columns.iter().enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            let _ = write!(out, "{gap}{:>width$}", replace_controls(&cell(column)), width = column.width);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}

/// Marks a row: in the margin, if its first cell leaves one.
fn mark_as_doubtful(row: &str) -> String {
    format!("!{}", row.strip_prefix(' ').unwrap_or(row))
}

/// Formats a table with numbers and sizes at the right, words at the left.
fn align_columns(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let columns = headings.iter().enumerate().map(|(at, heading)| {
        let mut cells = rows.iter().map(|row| &row[at]);
        let numeric = cells.all(|cell| cell == NOTHING || cell.starts_with(|first: char| first.is_ascii_digit()));
        (*heading, if numeric { Align::Right } else { Align::Left })
    });
    let mut table = thalweg_text::Table::new(columns);
    rows.into_iter().for_each(|row| table.add_row(row));
    table.render_text(0)
}
