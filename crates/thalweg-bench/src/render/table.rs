//! A table in a terminal that fills in as points are done.

use super::columns::{Column, columns, group};
use super::text::{NOTHING, plain, size, wrapped};
use crate::{Point, Report};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Rows as they come: a line says which link, method and settings follow, wherever these change.
#[derive(Debug)]
pub struct Table {
    instrument: String,
    columns: Vec<Column>,
    group: Option<String>,
    told: BTreeSet<String>,
}

impl Table {
    /// For an instrument's points.
    pub fn new(instrument: &str) -> Self {
        Self { instrument: instrument.to_owned(), columns: columns(instrument), group: None, told: BTreeSet::new() }
    }

    /// The whole table of a report, with its warnings.
    pub fn whole(report: &Report) -> String {
        let mut table = Self::new(&report.instrument);
        let rows: String = report.points.iter().map(|point| table.point(point)).collect();
        rows + &Self::warnings(&report.warnings)
    }

    /// A point's row, behind the headings that it needs. What failed says why, and a note is told once.
    pub fn point(&mut self, point: &Point) -> String {
        let mut out = String::new();
        if self.group.is_none() {
            out.push_str(&self.row(|column| column.name.to_owned()));
            out.push_str(&self.row(|column| column.unit.to_owned()));
        }
        let group = group(&self.instrument, &point.key);
        if self.group.as_ref() != Some(&group) {
            out.push_str(&wrapped("", &group));
            self.group = Some(group);
        }
        if !point.repeats.is_empty() {
            out.push_str(&self.row(|column| column.cell(point).unwrap_or_else(|| NOTHING.to_owned())));
        }
        if let Some(error) = &point.error {
            out.push_str(&wrapped(&format!("{:>11}  ", size(point.key.size)), error));
        }
        for note in &point.notes {
            if self.told.insert(note.clone()) {
                out.push_str(&wrapped("             ", note));
            }
        }
        out
    }

    /// What makes the figures less certain, each on lines of its own.
    pub fn warnings(warnings: &[String]) -> String {
        let lines: String = warnings.iter().map(|warning| wrapped("warning: ", warning)).collect();
        if lines.is_empty() { lines } else { format!("\n{lines}") }
    }

    fn row(&self, cell: impl Fn(&Column) -> String) -> String {
        let mut out = String::new();
        for column in &self.columns {
            let _ = write!(out, "  {:>width$}", plain(&cell(column)), width = column.width);
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}
