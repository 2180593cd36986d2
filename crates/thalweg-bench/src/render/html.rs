//! Report as a self-contained page: no server, no scripts, no fonts.

use super::plot::{PlotError, report_pictures};
use super::sections::{SummaryTable, group_sections, host_facts, summary_table};
use crate::{Host, Report};
use std::fmt::Write;
use thalweg_text::html::{escape_html, list_html, paragraph_html, render_page, table_html};

/// Formats a whole report: the machine, the warnings, pictures, and a table for each group of points.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn report_html(report: &Report) -> Result<String, PlotError> {
    let title = format!("thalweg bench {}", report.instrument);
    let mut body = paragraph_html("quiet", &format!("Begun {}.", report.began));
    body.push_str(&warning_list(&report.warnings));
    body.push_str(&picture_figures(report)?);
    body.push_str(&group_tables(report));
    body.push_str(&host_table("Host", &report.host));
    if let Some(peer) = &report.peer {
        body.push_str(&host_table("Other end", peer));
    }
    let _ = writeln!(body, "<h2>Command</h2>\n<pre>{}</pre>", escape_html(&report.command_line.join(" ")));
    Ok(render_page(&title, "", &body))
}

/// Draws the pictures of a report, for inclusion in the page.
pub(crate) fn picture_figures(report: &Report) -> Result<String, PlotError> {
    report_pictures(report).iter().map(|picture| Ok(picture.figure_html()?)).collect()
}

/// Formats a table for each group of points.
pub(crate) fn group_tables(report: &Report) -> String {
    let mut out = String::new();
    for section in group_sections(report) {
        let _ = writeln!(out, "<h2>{}</h2>", escape_html(&section.title));
        if section.measured_points().next().is_some() {
            let headings: Vec<String> = section.columns.iter().map(super::columns::Column::heading_line).collect();
            let rows = section.measured_points().map(|point| section.row_cells(point));
            out.push_str(&table_html("figures", &headings, rows));
        }
        out.push_str(&list_html("", section.point_remarks()));
    }
    if let Some(SummaryTable { title, headings, rows }) = summary_table(report) {
        let _ = writeln!(out, "<h2>{title}</h2>");
        out.push_str(&table_html("figures", &headings, rows));
    }
    out
}

/// Formats the warnings.
pub(crate) fn warning_list(warnings: &[String]) -> String {
    list_html("warnings", warnings)
}

/// Formats the description of a machine, under a heading.
pub(crate) fn host_table(heading: &str, host: &Host) -> String {
    let rows = host_facts(host).into_iter().map(|(name, value)| [name.to_owned(), value]);
    format!("<h2>{}</h2>\n{}", escape_html(heading), table_html::<&str>("facts", &[], rows))
}
