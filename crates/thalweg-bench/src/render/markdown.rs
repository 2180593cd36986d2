//! Report in Markdown.

use super::sections::{SummaryTable, group_sections, host_facts, summary_table};
use crate::{Host, Report};
use std::fmt::Write;

/// Formats a whole report: the machine, the warnings, and a table for each group of points.
pub fn report_markdown(report: &Report) -> String {
    let mut out = format!("# thalweg bench {}\n\n", escape_text(&report.instrument));
    let _ = writeln!(out, "{}\n", format_code(&report.command_line.join(" ")));
    let _ = writeln!(out, "Begun {}.\n", escape_text(&report.began));
    out.push_str(&warning_list(&report.warnings));
    out.push_str(&group_tables(report));
    out.push_str(&host_table("Host", &report.host));
    if let Some(peer) = &report.peer {
        out.push_str(&host_table("Other end", peer));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Formats a table for each group of points.
pub(crate) fn group_tables(report: &Report) -> String {
    let mut out = String::new();
    for section in group_sections(report) {
        let _ = writeln!(out, "## {}\n", escape_text(&section.title));
        if section.measured_points().next().is_some() {
            let headings = section.columns.iter().map(super::columns::Column::heading_line);
            let rows = section.measured_points().map(|point| section.row_cells(point));
            out.push_str(&format_table(&headings.collect::<Vec<_>>(), "--:", rows));
        }
        out.push_str(&format_list(&section.point_remarks()));
    }
    if let Some(SummaryTable { title, headings, rows }) = summary_table(report) {
        let _ = writeln!(out, "## {title}\n");
        let headings: Vec<String> = headings.into_iter().map(str::to_owned).collect();
        out.push_str(&format_table(&headings, "--:", rows.into_iter()));
    }
    out
}

/// Formats the warnings.
pub(crate) fn warning_list(warnings: &[String]) -> String {
    format_list(&warnings.iter().map(|warning| format!("Warning: {warning}")).collect::<Vec<_>>())
}

/// Formats the description of a machine, under a heading.
pub(crate) fn host_table(heading: &str, host: &Host) -> String {
    let rows = host_facts(host).into_iter().map(|(name, value)| vec![name.to_owned(), value]);
    format!("## {heading}\n\n{}", format_table(&[String::new(), String::new()], "---", rows))
}

/// Formats a table and an empty line; `align` is the mark under each heading.
pub(crate) fn format_table(headings: &[String], align: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = table_row(headings.iter().map(|heading| escape_text(heading)));
    out.push_str(&table_row(headings.iter().map(|_| align.to_owned())));
    for row in rows {
        out.push_str(&table_row(row.iter().map(|cell| escape_text(cell))));
    }
    out.push('\n');
    out
}

fn table_row(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Formats a list and an empty line; an empty text for no items.
pub(crate) fn format_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        items => items.iter().map(|item| format!("- {}\n", escape_text(item))).collect::<String>() + "\n",
    }
}

/// Escapes a text so that none of it is Markdown.
pub(crate) fn escape_text(text: &str) -> String {
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
pub(crate) fn format_code(text: &str) -> String {
    let longest = text.split(|char| char != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    match longest {
        0 => format!("{fence}{text}{fence}"),
        _ => format!("{fence} {text} {fence}"),
    }
}
