//! Results as a page that needs nothing else: no server, no scripts, no fonts.

use super::heat::{Scale, Tile, svg};
use super::text::{Layout, Panel, SHOWN, Shown};
use super::{Contest, Results};
use crate::Report;
use std::fmt::Write;

impl Results {
    /// The whole page.
    pub fn html(&self) -> String {
        page(&self.sweep.title, &self.html_body())
    }

    /// What is in it: how the checks went, which control is the best where, and a heat map for every figure.
    pub(crate) fn html_body(&self) -> String {
        let mut body = String::new();
        let (done, of) = (self.done(), self.outcomes.len());
        let quick = if self.sweep.quick { ", a sample with short measurements" } else { "" };
        let missing = if done < of { format!(", of which {} are not done", of - done) } else { String::new() };
        let about = format!(
            "thalweg lab sweep {}; laboratory: {}; {of} cells{quick}{missing}.",
            self.sweep.name, self.laboratory
        );
        body.push_str(&paragraph("quiet", &about));
        let failures = self.failures();
        if !self.sweep.checks.is_empty() {
            let checks: Vec<String> = self.sweep.checks.iter().map(ToString::to_string).collect();
            let passed = done - failures.len();
            body.push_str(&paragraph("", &format!("{}: {passed} of {done} cells pass.", checks.join(", "))));
        }
        body.push_str(&list("warnings", failures.iter().map(|(cell, why)| format!("{cell}: {why}"))));
        let layout = Layout::of(self);
        if let (Some(contest), Some(control)) = (self.contest(), layout.control) {
            body.push_str(&contest.html());
            body.push_str("<div class=\"maps\">\n");
            for panel in layout.panels(self, &layout.others) {
                let tile = |at: &[usize]| {
                    let best = self.best(at, control);
                    Tile {
                        value: best.map(|(_, share)| share),
                        text: best.map_or("-".into(), |(name, share)| format!("{name} {:.1}", 100.0 * share)),
                        marked: false,
                    }
                };
                let title = "The best control, and its share of the ceiling in %";
                body.push_str(&panel.html(title, tile, Scale::Linear { from: 0.0, to: 1.0 }));
            }
            body.push_str("</div>\n");
        }
        for shown in &SHOWN {
            let _ = writeln!(body, "<h2>{}</h2>\n<div class=\"maps\">", escaped(shown.title));
            let scale = self.scale(shown);
            for panel in layout.panels(self, &layout.all_others()) {
                body.push_str(&panel.html("", |at| self.tile(at, shown), scale));
            }
            body.push_str("</div>\n");
        }
        body
    }

    pub(crate) fn tile(&self, at: &[usize], shown: &Shown) -> Tile {
        match self.outcome(at) {
            None => Tile { text: "-".into(), ..Tile::default() },
            Some(Err(_)) => Tile { text: "error".into(), marked: true, value: None },
            Some(Ok(report)) => {
                let value = (shown.value)(report);
                let marked = self.checked(report).iter().any(|checked| !checked.holds);
                Tile { value, text: value.map_or("-".into(), shown.text), marked }
            }
        }
    }

    /// Better is brighter: from nothing to the best where more is better, by ratios from the worst to the best where less is.
    pub(crate) fn scale(&self, shown: &Shown) -> Scale {
        let reports = self.outcomes.iter().flatten().filter_map(|outcome| outcome.as_deref().ok());
        let values: Vec<f64> = reports.filter_map(|report: &Report| (shown.value)(report)).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        match shown.more {
            true => Scale::Linear { from: 0.0, to: most },
            false => {
                let least =
                    values.iter().copied().fold(f64::INFINITY, f64::min).max(if most > 1.0 { 0.5 } else { 0.01 });
                Scale::Log { from: most.max(least), to: least }
            }
        }
    }
}

impl Panel<'_> {
    pub(crate) fn html(&self, title: &str, tile: impl Fn(&[usize]) -> Tile, scale: Scale) -> String {
        let tiles: Vec<Vec<Tile>> = self.cells.iter().map(|row| row.iter().map(|at| tile(at)).collect()).collect();
        let columns = self.columns.map_or(vec![String::new()], |columns| columns.values.clone());
        let corner = match self.columns {
            Some(columns) => format!("{} \\ {}", self.rows.name(), columns.name()),
            None => self.rows.name().to_owned(),
        };
        let caption = [title, &self.of].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
        figure(&caption, &svg(&corner, &self.rows.values, &columns, &tiles, scale))
    }
}

impl Contest {
    fn html(&self) -> String {
        let headings = ["", "best in", "mean %", "least %", "sent again", "timeouts", "slowest ms"];
        let rows = self.standings.iter().map(|one| {
            vec![
                one.control.clone(),
                one.best.to_string(),
                format!("{:.1}", 100.0 * one.mean_share),
                format!("{:.1}", 100.0 * one.least_share),
                one.retransmissions.to_string(),
                one.timeouts.to_string(),
                one.worst_us.map_or("-".into(), |us| (super::text::WORST.text)(us * 1e-3)),
            ]
        });
        let mut out = format!("<h2>Controls over {} cells</h2>\n{}", self.cells, table("figures", &headings, rows));
        out.push_str(&paragraph(
            "quiet",
            "Best: nobody has 0.5 % more goodput (or one event more, where events come at intervals).",
        ));
        if !self.lost.is_empty() {
            out.push_str(&paragraph("", "Cells in which credit is not the best:"));
        }
        out + &list("warnings", self.lost.iter().map(ToString::to_string))
    }
}

pub(crate) fn figure(caption: &str, svg: &str) -> String {
    let caption = match caption {
        "" => String::new(),
        caption => format!("<figcaption>{}</figcaption>", escaped(caption)),
    };
    format!("<figure>{caption}<div class=\"wide\">{svg}</div></figure>\n")
}

pub(crate) fn paragraph(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escaped(text))
}

/// A list; nothing for nothing.
pub(crate) fn list(class: &str, items: impl Iterator<Item = String>) -> String {
    let items: String = items.map(|item| format!("<li>{}</li>\n", escaped(&item))).collect();
    if items.is_empty() { items } else { format!("<ul class=\"{class}\">\n{items}</ul>\n") }
}

pub(crate) fn table(class: &str, headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let headings: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    let rows: String = rows.map(|row| cells("td", &row)).collect();
    format!(
        "<div class=\"wide\"><table class=\"{class}\">\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
        cells("th", &headings)
    )
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

const STYLE: &str = concat!(include_str!("../page.css"), include_str!("heat.css"));
