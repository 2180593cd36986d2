//! Results as a self-contained page: no server, no scripts, no fonts.

use super::heat::{STYLE, Scale, Tile, draw_colour_scale, draw_heat_map, heat_map_figure};
use super::text::{LIMIT_TITLE, Layout, Panel, Shown};
use super::{Contest, Results};
use crate::Report;
use std::fmt::Write;
use thalweg_text::html::{escape_html, list_html, paragraph_html, render_page, table_html};
use thalweg_text::plot::{DrawError, Provenance, draw_panels_svg, format_csv};

impl Results {
    /// Returns the whole page.
    ///
    /// # Errors
    /// Fails if a chart cannot be drawn.
    pub fn results_page(&self) -> Result<String, DrawError> {
        Ok(render_page(&self.sweep.title, STYLE, &self.results_page_body()?))
    }

    /// Returns the line charts, with their origin, as one picture.
    ///
    /// # Errors
    /// Fails if no key has several numbers as its values, or a chart cannot be drawn.
    pub fn charts_svg(&self) -> Result<String, DrawError> {
        let mut charts = self.line_charts(&self.provenance);
        if let (Some(last), Some(verdict)) = (charts.last_mut(), self.sweep_verdict()) {
            last.notes.insert(0, verdict.sentence);
        }
        draw_panels_svg(&charts)
    }

    /// Returns a row for each cell as CSV: its values, its figures, its verdict.
    pub fn results_csv(&self) -> String {
        let axes = self.sweep.axes.iter().map(|axis| axis.key.as_str());
        let figures = self.shown_figures().map(|shown| shown.title);
        let headings: Vec<&str> = axes.chain(figures).chain(["limit", "verdict", "error"]).collect();
        let cells = self.sweep.cells.iter().zip(&self.outcomes);
        let rows = cells.filter_map(|(cell, outcome)| Some((cell, outcome.as_ref()?))).map(|(cell, outcome)| {
            let values = self.sweep.axes.iter().zip(&cell.at).map(|(axis, at)| axis.values[*at].clone());
            let mut row: Vec<String> = values.collect();
            let report = outcome.as_deref().ok();
            row.extend(self.shown_figures().map(|shown| {
                let value = report.and_then(|report| (shown.value)(report));
                value.map(|value| value.to_string()).unwrap_or_default()
            }));
            let verdict = report.and_then(|report| report.verdict.as_ref());
            row.push(verdict.map(|verdict| verdict.limit.title()).unwrap_or_default());
            row.push(verdict.map(|verdict| verdict.sentence.clone()).unwrap_or_default());
            row.push(outcome.as_ref().err().cloned().unwrap_or_default());
            row
        });
        format_csv(&self.provenance, &headings, rows)
    }

    /// Returns the verdict, and a table with a row for each cell, in Markdown.
    pub fn results_markdown(&self) -> String {
        let mut out = format!("# {}\n\n", self.sweep.title);
        if let Some(verdict) = self.sweep_verdict() {
            let _ = writeln!(out, "{}\n", verdict.sentence);
        }
        let axes: Vec<&str> = self.sweep.axes.iter().map(super::Axis::short_name).collect();
        let headings: Vec<&str> =
            axes.into_iter().chain(self.shown_figures().map(|shown| shown.title)).chain([LIMIT_TITLE]).collect();
        let _ = writeln!(out, "| {} |\n|{}", headings.join(" | "), " --- |".repeat(headings.len()));
        for cell in &self.sweep.cells {
            let values = self.sweep.axes.iter().zip(&cell.at).map(|(axis, at)| axis.values[*at].clone());
            let figures = self.shown_figures().map(|shown| self.figure_tile(&cell.at, &shown).text);
            let figures = figures.chain([self.limit_text(&cell.at)]);
            let _ = writeln!(out, "| {} |", values.chain(figures).collect::<Vec<_>>().join(" | "));
        }
        let _ = writeln!(out, "\n{}", self.provenance.sentences().join(" "));
        out
    }

    /// Returns the page's content: the results of the checks, the best control of each cell, and a heat map for every
    /// figure.
    pub(crate) fn results_page_body(&self) -> Result<String, DrawError> {
        let mut body = String::new();
        if let Some(verdict) = self.sweep_verdict() {
            body.push_str(&paragraph_html("finding", &verdict.sentence));
        }
        let (done, of) = (self.finished_count(), self.outcomes.len());
        let quick = if self.sweep.quick { ", a sample with short measurements" } else { "" };
        let missing = if done < of { format!(", of which {} are not done", of - done) } else { String::new() };
        let about = format!(
            "thalweg lab sweep {}; laboratory: {}; {of} cells{quick}{missing}.",
            self.sweep.name,
            crate::laboratory_title(&self.laboratory)
        );
        body.push_str(&paragraph_html("quiet", &about));
        body.push_str(&paragraph_html("quiet", &self.provenance.sentences().join(" ")));
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
                let title = "The best control, and its share of the ceiling in % (dark 0 to bright 100)";
                let scale = Scale::Linear { from: 0.0, to: 1.0 };
                body.push_str(&panel.panel_figure(title, |at| self.best_control_tile(at, control), scale));
            }
            body.push_str("</div>\n");
        }
        for shown in &self.shown_figures().collect::<Vec<_>>() {
            let _ = writeln!(body, "<h2>{}</h2>", escape_html(shown.title));
            // On the page the origin is given once.
            for chart in self.charts_of_figure(shown, &Provenance::default()) {
                body.push_str(&chart.figure_html()?);
            }
            body.push_str("<div class=\"maps\">\n");
            let scale = self.figure_scale(shown);
            body.push_str(&heat_map_figure("", &draw_colour_scale(shown.title, scale, shown.text)));
            for panel in layout.panels_for_axes(self, &layout.all_panel_axes()) {
                body.push_str(&panel.panel_figure("", |at| self.figure_tile(at, shown), scale));
            }
            body.push_str("</div>\n");
        }
        if self.has_offered_rates() {
            body.push_str(&self.limit_section(&layout));
        }
        Ok(body)
    }

    /// Returns the tables of each cell's limit.
    fn limit_section(&self, layout: &Layout) -> String {
        let mut out = format!("<h2>{LIMIT_TITLE}</h2>\n");
        for panel in layout.panels_for_axes(self, &layout.all_panel_axes()) {
            let columns = panel.columns.map_or(vec![String::new()], |columns| columns.values.clone());
            let headings: Vec<String> = std::iter::once(panel.corner_text()).chain(columns).collect();
            let rows = panel.rows.values.iter().zip(&panel.cells).map(|(name, cells)| {
                std::iter::once(name.clone()).chain(cells.iter().map(|at| self.limit_text(at))).collect::<Vec<_>>()
            });
            if !panel.of.is_empty() {
                out.push_str(&paragraph_html("", &panel.of));
            }
            out.push_str(&table_html("words", &headings, rows));
        }
        out
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
        let corner = self.corner_text();
        let caption = [title, &self.of].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
        heat_map_figure(&caption, &draw_heat_map(&corner, &self.rows.values, &columns, &tiles, scale))
    }
}

impl Contest {
    fn contest_section(&self) -> String {
        let headings = ["", "best in", "mean %", "least %", "retransmitted", "timeouts", "slowest ms"];
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
