//! Report in Markdown.

use super::sections::{SummaryTable, facts, sections, together};
use crate::{Host, Report};
use std::fmt::Write;
use thalweg_text::NOTHING;

/// Formats a whole report: the machine, the warnings, and a table for each group of points.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("# thalweg bench {}\n\n", escaped(&report.instrument));
    let _ = writeln!(out, "{}\n", code(&report.command_line.join(" ")));
    let _ = writeln!(out, "Begun {}.\n", escaped(&report.began));
    out.push_str(&warnings(&report.warnings));
    out.push_str(&tables(report));
    out.push_str(&host("Host", &report.host));
    if let Some(peer) = &report.peer {
        out.push_str(&host("Other end", peer));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Formats a table for each group of points.
pub(crate) fn tables(report: &Report) -> String {
    let mut out = String::new();
    for section in sections(report) {
        let _ = writeln!(out, "## {}\n", escaped(&section.title));
        if section.measured().next().is_some() {
            let headings = section.columns.iter().map(super::columns::Column::heading);
            let rows = section.measured().map(|point| {
                section.columns.iter().map(|column| column.cell(point).unwrap_or_else(|| NOTHING.to_owned())).collect()
            });
            out.push_str(&table(&headings.collect::<Vec<_>>(), "--:", rows));
        }
        out.push_str(&list(&section.remarks()));
    }
    if let Some(SummaryTable { title, headings, rows }) = together(report) {
        let _ = writeln!(out, "## {title}\n");
        let headings: Vec<String> = headings.into_iter().map(str::to_owned).collect();
        out.push_str(&table(&headings, "--:", rows.into_iter()));
    }
    out
}

/// Formats the warnings.
pub(crate) fn warnings(warnings: &[String]) -> String {
    list(&warnings.iter().map(|warning| format!("Warning: {warning}")).collect::<Vec<_>>())
}

/// Formats the description of a machine, under a heading.
pub(crate) fn host(heading: &str, host: &Host) -> String {
    let rows = facts(host).into_iter().map(|(name, value)| vec![name.to_owned(), value]);
    format!("## {heading}\n\n{}", table(&[String::new(), String::new()], "---", rows))
}

/// Formats a table and an empty line; `align` is the mark under each heading.
pub(crate) fn table(headings: &[String], align: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = table_row(headings.iter().map(|heading| escaped(heading)));
    out.push_str(&table_row(headings.iter().map(|_| align.to_owned())));
    for row in rows {
        out.push_str(&table_row(row.iter().map(|cell| escaped(cell))));
    }
    out.push('\n');
    out
}

fn table_row(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Formats a list and an empty line; an empty text for no items.
pub(crate) fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        items => items.iter().map(|item| format!("- {}\n", escaped(item))).collect::<String>() + "\n",
    }
}

/// Escapes a text so that none of it is Markdown.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '&' | '#' | '~' => out.extend(['\\', char]),
            char if char.is_control() => out.push(' '),
            char => out.push(char),
        }
    }
    out
}

/// Formats a text as code: between more back quotes than it has in a row.
pub(crate) fn code(text: &str) -> String {
    let longest = text.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    match longest {
        0 => format!("{fence}{text}{fence}"),
        _ => format!("{fence} {text} {fence}"),
    }
}
