//! Results as a self-contained page: no server, no scripts, no fonts.

use super::heat::{STYLE, Scale, Tile, draw_heat_map, heat_map_figure};
use super::text::{Layout, Panel, SHOWN, Shown};
use super::{Contest, Results};
use crate::Report;
use std::fmt::Write;
use thalweg_text::html::{escape_html, list_html, paragraph_html, render_page, table_html};

impl Results {
    /// Returns the whole page.
    pub fn results_page(&self) -> String {
        render_page(&self.sweep.title, STYLE, &self.results_page_body())
    }

    /// Returns the page's content: the results of the checks, the best control of each cell, and a heat map for every
    /// figure.
    pub(crate) fn results_page_body(&self) -> String {
        let mut body = String::new();
        let (done, of) = (self.finished_count(), self.outcomes.len());
        let quick = if self.sweep.quick { ", a sample with short measurements" } else { "" };
        let missing = if done < of { format!(", of which {} are not done", of - done) } else { String::new() };
        let about = format!(
            "thalweg lab sweep {}; laboratory: {}; {of} cells{quick}{missing}.",
            self.sweep.name, self.laboratory
        );
        body.push_str(&paragraph_html("quiet", &about));
        let failures = self.failed_cells();
        if !self.sweep.checks.is_empty() {
            let checks: Vec<String> = self.sweep.checks.iter().map(ToString::to_string).collect();
            let passed = done - failures.len();
            body.push_str(&paragraph_html("", &format!("{}: {passed} of {done} cells pass.", checks.join(", "))));
        }
        body.push_str(&list_html("warnings", failures.iter().map(|(cell, why)| format!("{cell}: {why}"))));
        let layout = Layout::for_results(self);
        if let (Some(contest), Some(control)) = (self.compare_controls(), layout.control) {
            body.push_str(&contest.contest_section());
            body.push_str("<div class=\"maps\">\n");
            for panel in layout.panels_for_axes(self, &layout.others) {
                let title = "The best control, and its share of the ceiling in %";
                let scale = Scale::Linear { from: 0.0, to: 1.0 };
                body.push_str(&panel.panel_figure(title, |at| self.best_control_tile(at, control), scale));
            }
            body.push_str("</div>\n");
        }
        for shown in &SHOWN {
            let _ = writeln!(body, "<h2>{}</h2>\n<div class=\"maps\">", escape_html(shown.title));
            let scale = self.figure_scale(shown);
            for panel in layout.panels_for_axes(self, &layout.all_panel_axes()) {
                body.push_str(&panel.panel_figure("", |at| self.figure_tile(at, shown), scale));
            }
            body.push_str("</div>\n");
        }
        body
    }

    fn best_control_tile(&self, at: &[usize], control: usize) -> Tile {
        let best = self.best_control(at, control);
        Tile {
            value: best.map(|(_, share)| share),
            text: best.map_or("-".into(), |(name, share)| format!("{name} {:.1}", 100.0 * share)),
            marked: false,
        }
    }

    pub(crate) fn figure_tile(&self, at: &[usize], shown: &Shown) -> Tile {
        match self.outcome_of_cell(at) {
            None => Tile { text: "-".into(), ..Tile::default() },
            Some(Err(_)) => Tile { text: "error".into(), marked: true, value: None },
            Some(Ok(report)) => {
                let value = (shown.value)(report);
                let marked = self.check_results(report).iter().any(|checked| !checked.holds);
                Tile { value, text: value.map_or("-".into(), shown.text), marked }
            }
        }
    }

    /// Returns the scale of a figure, on which better is brighter: linear from 0 to the best if more is better,
    /// logarithmic from the worst to the best if less is better.
    pub(crate) fn figure_scale(&self, shown: &Shown) -> Scale {
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
    pub(crate) fn panel_figure(&self, title: &str, tile: impl Fn(&[usize]) -> Tile, scale: Scale) -> String {
        let tiles: Vec<Vec<Tile>> = self.cells.iter().map(|row| row.iter().map(|at| tile(at)).collect()).collect();
        let columns = self.columns.map_or(vec![String::new()], |columns| columns.values.clone());
        let corner = match self.columns {
            Some(columns) => format!("{} \\ {}", self.rows.short_name(), columns.short_name()),
            None => self.rows.short_name().to_owned(),
        };
        let caption = [title, &self.of].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
        heat_map_figure(&caption, &draw_heat_map(&corner, &self.rows.values, &columns, &tiles, scale))
    }
}

impl Contest {
    fn contest_section(&self) -> String {
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
        let mut out =
            format!("<h2>Controls over {} cells</h2>\n{}", self.cells, table_html("figures", &headings, rows));
        out.push_str(&paragraph_html(
            "quiet",
            "Best: no other has 0.5 % more goodput (or one event more, where events come at intervals).",
        ));
        if !self.lost.is_empty() {
            out.push_str(&paragraph_html("", "Cells in which credit is not the best:"));
        }
        out + &list_html("warnings", self.lost.iter().map(ToString::to_string))
    }
}
