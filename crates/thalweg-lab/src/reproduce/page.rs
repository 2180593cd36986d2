//! The reproduction as text for a terminal and as a page.

use super::Reproduction;
use crate::sweep::heat::STYLE;
use crate::sweep::text::grid;
use std::fmt::Write;
use thalweg_bench::paper::{self, Table};
use thalweg_text::html::{escaped, list, page, paragraph};
use thalweg_text::wrapped;

const QUICK: &str = "A first look: a sample of the cells, with short measurements.";

impl Reproduction {
    /// Returns the comparison and the findings as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = wrapped("", &self.title) + &wrapped("", &self.source);
        out.push_str(&wrapped("", &format!("laboratory: {}", self.laboratory)));
        if self.quick {
            out.push_str(&wrapped("", QUICK));
        }
        for table in &self.tables {
            let _ = write!(out, "\n{}", text(table));
        }
        out + "\n" + &paper::findings_text(&self.findings)
    }

    /// Returns the whole report as a self-contained page.
    pub fn html(&self) -> String {
        let mut body = paragraph("quiet", &self.source);
        body.push_str(&paragraph("quiet", &format!("laboratory: {}", self.laboratory)));
        body.push_str(&list("warnings", self.quick.then_some(QUICK)));
        body.push_str(&paper::html(&self.method, &self.here, &self.findings, &self.tables));
        body.push_str(&self.pictures);
        for one in &self.measured {
            let title = escaped(&one.report.sweep.title);
            let _ = writeln!(body, "<h2>Measured: {title}</h2>\n<pre>{}</pre>", escaped(&one.line));
            body.push_str(&one.report.html_body().replace("<h2>", "<h3>").replace("</h2>", "</h3>"));
        }
        page(&self.title, STYLE, &body)
    }
}

/// Returns a table for a terminal: the paper's rows, then ours, in columns as wide as they need.
fn text(table: &Table) -> String {
    let mut out = wrapped("", &table.title);
    let (first, rest) = table.headings.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    for (side, rows) in [("the paper", &table.paper), ("here", &table.here)] {
        if rows.is_empty() {
            continue;
        }
        if !table.paper.is_empty() {
            let _ = writeln!(out, "{side}");
        }
        let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
        let cells = rows.iter().map(|row| row.cells.clone()).collect();
        out.push_str(&grid(first, &names, rest, cells));
    }
    for remark in &table.remarks {
        out.push_str(&wrapped("  * ", remark));
    }
    out
}
