//! Report as a self-contained page: no server, no scripts, no fonts.

use super::plot::{PlotError, plots};
use super::sections::{SummaryTable, facts, sections, together};
use crate::{Host, Report};
use std::fmt::Write;
use thalweg_text::NOTHING;
use thalweg_text::html::{escaped, figure, list, page, paragraph, table};

/// Formats a whole report: the machine, the warnings, pictures, and a table for each group of points.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(report: &Report) -> Result<String, PlotError> {
    let title = format!("thalweg bench {}", report.instrument);
    let mut body = paragraph("quiet", &format!("Begun {}.", report.began));
    body.push_str(&warnings(&report.warnings));
    body.push_str(&pictures(report)?);
    body.push_str(&tables(report));
    body.push_str(&host("Host", &report.host));
    if let Some(peer) = &report.peer {
        body.push_str(&host("Other end", peer));
    }
    let _ = writeln!(body, "<h2>Command</h2>\n<pre>{}</pre>", escaped(&report.command_line.join(" ")));
    Ok(page(&title, "", &body))
}

/// Draws the pictures of a report, for inclusion in the page.
pub(crate) fn pictures(report: &Report) -> Result<String, PlotError> {
    plots(report).iter().map(|plot| Ok(figure("", &plot.svg()?))).collect()
}

/// Formats a table for each group of points.
pub(crate) fn tables(report: &Report) -> String {
    let mut out = String::new();
    for section in sections(report) {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(&section.title));
        if section.measured().next().is_some() {
            let headings: Vec<String> = section.columns.iter().map(super::columns::Column::heading).collect();
            let rows = section.measured().map(|point| -> Vec<String> {
                section.columns.iter().map(|column| column.cell(point).unwrap_or_else(|| NOTHING.to_owned())).collect()
            });
            out.push_str(&table("figures", &headings, rows));
        }
        out.push_str(&list("", section.remarks()));
    }
    if let Some(SummaryTable { title, headings, rows }) = together(report) {
        let _ = writeln!(out, "<h2>{title}</h2>");
        out.push_str(&table("figures", &headings, rows));
    }
    out
}

/// Formats the warnings.
pub(crate) fn warnings(warnings: &[String]) -> String {
    list("warnings", warnings)
}

/// Formats the description of a machine, under a heading.
pub(crate) fn host(heading: &str, host: &Host) -> String {
    let rows = facts(host).into_iter().map(|(name, value)| [name.to_owned(), value]);
    format!("<h2>{}</h2>\n{}", escaped(heading), table::<&str>("facts", &[], rows))
}
