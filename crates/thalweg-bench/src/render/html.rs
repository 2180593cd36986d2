//! A report as a page that needs nothing else: no server, no scripts, no fonts.

use super::plot::{Plot, PlotError, plots};
use super::sections::{facts, sections, together};
use super::text::NOTHING;
use crate::{Host, Report};
use std::fmt::Write;

/// A whole report: the machine, what makes it less certain, pictures, and a table for each group of points.
pub fn html(report: &Report) -> Result<String, PlotError> {
    let title = format!("thalweg bench {}", report.instrument);
    let mut body = format!("<p class=\"quiet\">Begun {}.</p>\n", escaped(&report.began));
    body.push_str(&warnings(&report.warnings));
    body.push_str(&pictures(report)?);
    body.push_str(&tables(report));
    body.push_str(&host("Host", &report.host));
    if let Some(peer) = &report.peer {
        body.push_str(&host("Other end", peer));
    }
    let _ = writeln!(body, "<h2>Command</h2>\n<pre>{}</pre>", escaped(&report.command_line.join(" ")));
    Ok(page(&title, &body))
}

/// A page around its content.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// The pictures of a report, in the page itself.
pub(crate) fn pictures(report: &Report) -> Result<String, PlotError> {
    plots(report).iter().map(picture).collect()
}

/// One of them.
pub(crate) fn picture(plot: &Plot) -> Result<String, PlotError> {
    Ok(format!("<figure>{}</figure>\n", plot.svg()?))
}

/// A table for each group of points.
pub(crate) fn tables(report: &Report) -> String {
    let mut out = String::new();
    for section in sections(report) {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(&section.title));
        if section.measured().next().is_some() {
            let headings: Vec<String> = section.columns.iter().map(super::columns::Column::heading).collect();
            let rows = section.measured().map(|point| {
                section.columns.iter().map(|column| column.cell(point).unwrap_or_else(|| NOTHING.to_owned())).collect()
            });
            out.push_str(&table("figures", &headings, rows));
        }
        out.push_str(&list("", &section.remarks()));
    }
    if let Some((headings, rows)) = together(report) {
        out.push_str("<h2>Page list beside mlock</h2>\n");
        out.push_str(&table("figures", &headings.map(str::to_owned), rows.into_iter().map(Vec::from)));
    }
    out
}

/// What makes the figures less certain.
pub(crate) fn warnings(warnings: &[String]) -> String {
    list("warnings", warnings)
}

/// A machine, under a heading.
pub(crate) fn host(heading: &str, host: &Host) -> String {
    let rows = facts(host).into_iter().map(|(name, value)| vec![name.to_owned(), value]);
    format!("<h2>{}</h2>\n{}", escaped(heading), table("facts", &[], rows))
}

/// A table; a class `figures` has its cells at the right.
pub(crate) fn table(class: &str, headings: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let mut out = format!("<div class=\"wide\"><table class=\"{class}\">\n");
    if !headings.is_empty() {
        let _ = write!(out, "<thead>{}</thead>\n<tbody>\n", cells("th", headings));
    } else {
        out.push_str("<tbody>\n");
    }
    rows.for_each(|row| out.push_str(&cells("td", &row)));
    out.push_str("</tbody>\n</table></div>\n");
    out
}

/// A list; nothing for nothing.
pub(crate) fn list(class: &str, items: &[String]) -> String {
    match items {
        [] => String::new(),
        items => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
            format!("<ul class=\"{class}\">\n{items}</ul>\n")
        }
    }
}

/// Text of which nothing is HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char if char.is_control() && char != '\n' => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
    out
}

/// Pictures name their colours themselves, for light paper; for dark paper the page overrules them.
const STYLE: &str = include_str!("page.css");
