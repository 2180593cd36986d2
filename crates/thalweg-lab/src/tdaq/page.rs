//! The reproduction as people see it: in a terminal, as a page.

use super::paper::SENDERS;
use super::{Reproduction, Table, findings};
use crate::sweep::Results;
use crate::sweep::heat::{Scale, Tile, svg};
use crate::sweep::page::{escaped, figure, list, page, paragraph, table};
use crate::sweep::text::{grid, wrapped};
use std::fmt::Write;

const QUICK: &str = "A first look: a sample of the cells, with short measurements.";

impl Reproduction {
    /// What stands beside what, and which findings hold, for a terminal.
    pub fn text(&self) -> String {
        let mut out = wrapped("", self.title) + &wrapped("", self.source);
        out.push_str(&wrapped("", &format!("laboratory: {}", self.laboratory)));
        if self.quick {
            out.push_str(&wrapped("", QUICK));
        }
        for table in &self.tables {
            let _ = write!(out, "\n{}", table.text());
        }
        out.push_str("\nFindings\n");
        for finding in &self.findings {
            out.push_str(&wrapped("  - ", &finding.paper));
            out.push_str(&wrapped("    ", &finding.here));
            out.push_str(&wrapped(&format!("    {}: ", finding.verdict), &finding.measured));
        }
        out
    }

    /// The whole report as a page that needs nothing else, with the surfaces of the paper's figures 5 and 6 as heat maps.
    pub fn html(&self) -> String {
        let mut body = paragraph("quiet", self.source);
        body.push_str(&paragraph("quiet", &format!("laboratory: {}", self.laboratory)));
        body.push_str(&list("warnings", self.quick.then(|| QUICK.to_owned()).into_iter()));
        for (heading, text) in [("How the paper measured", self.method), ("How it is measured here", self.here)] {
            let _ = writeln!(body, "<h2>{heading}</h2>");
            text.split("\n\n").for_each(|text| body.push_str(&paragraph("", text)));
        }
        body.push_str("<h2>Findings</h2>\n");
        let rows = self.findings.iter().map(|finding| {
            vec![finding.paper.clone(), finding.here.clone(), finding.verdict.to_string(), finding.measured.clone()]
        });
        body.push_str(&table("words", &["The paper finds", "Tested here", "", "Measured"], rows));
        for one in &self.tables {
            let _ = writeln!(body, "<h2>{}</h2>", escaped(&one.title));
            body.push_str(&one.html());
        }
        body.push_str(&surfaces(&self.measured[1].report));
        for one in &self.measured {
            let title = escaped(&one.report.sweep.title);
            let _ = writeln!(body, "<h2>Measured: {title}</h2>\n<pre>{}</pre>", escaped(&one.line));
            body.push_str(&one.report.html_body().replace("<h2>", "<h3>").replace("</h2>", "</h3>"));
        }
        page(self.title, &body)
    }
}

/// Vegas minus BIC over interval and delay, for each number of senders.
fn surfaces(results: &Results) -> String {
    let mut out = "<h2>Simulated: Vegas minus BIC in Mbit/s</h2>\n<div class=\"maps\">\n".to_owned();
    let [intervals, delays] = findings::sides(results);
    for senders in SENDERS {
        let values = findings::surface(results, senders);
        if values.iter().flatten().all(Option::is_none) {
            continue;
        }
        let tile = |value: &Option<f64>| Tile {
            value: *value,
            text: value.map_or("-".into(), |value| format!("{value:+.1}")),
            marked: false,
        };
        let tiles: Vec<Vec<Tile>> = values.iter().map(|row| row.iter().map(tile).collect()).collect();
        let map = svg("interval \\ delay", intervals, delays, &tiles, Scale::Around { most: 700.0 });
        out.push_str(&figure(&format!("{senders} to 1"), &map));
    }
    out + "</div>\n"
}

impl Table {
    fn text(&self) -> String {
        let mut out = wrapped("", &self.title);
        let (first, rest) = self.headings.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        for (side, rows) in [("the paper", &self.paper), ("here", &self.here)] {
            if rows.is_empty() {
                continue;
            }
            if !self.paper.is_empty() {
                let _ = writeln!(out, "{side}");
            }
            let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
            let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells.clone()).collect();
            out.push_str(&grid(first, &names, rest, &cells));
        }
        for remark in &self.remarks {
            out.push_str(&wrapped("  * ", remark));
        }
        out
    }

    fn html(&self) -> String {
        let beside = !self.paper.is_empty();
        let side = beside.then_some("");
        let headings: Vec<&str> = side.into_iter().chain(self.headings.iter().map(String::as_str)).collect();
        let rows = [("paper", &self.paper), ("here", &self.here)].into_iter().flat_map(|(side, rows)| {
            rows.iter().map(move |row| {
                let side = beside.then(|| side.to_owned());
                side.into_iter().chain([row.name.clone()]).chain(row.cells.iter().cloned()).collect()
            })
        });
        table(if beside { "beside" } else { "figures" }, &headings, rows) + &list("", self.remarks.iter().cloned())
    }
}
