//! Results for a terminal of eighty columns.

use super::{Axis, Contest, Results};
use crate::Report;
use std::fmt::Write;
use thalweg_text::{Align, Table, wrap_words};

/// Largest number of congestion controls that have a table each. More of them have one table of the best of each cell,
/// and one of how often each was best.
const FEW_CONTROLS: usize = 4;

/// A figure of a report that is shown.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) title: &'static str,
    pub(crate) value: fn(&Report) -> Option<f64>,
    pub(crate) text: fn(f64) -> String,
    /// True if more is better.
    pub(crate) more: bool,
}

pub(crate) const SHARE: Shown = Shown {
    title: "Share of the ceiling, %",
    value: |report| Some(100.0 * report.share_of_ceiling),
    text: |value| format!("{value:.1}"),
    more: true,
};
pub(crate) const GOODPUT: Shown = Shown {
    title: "Goodput, Mbit/s",
    value: |report| Some(report.goodput_bits_per_second * 1e-6),
    text: |value| format!("{value:.0}"),
    more: true,
};
/// Part of the offered rate that was carried; of sources that always have more there is none.
pub(crate) const CARRIED: Shown = Shown {
    title: "Carried part of the offered rate, %",
    value: |report| Some(100.0 * report.goodput_bits_per_second / report.scenario.offered_bits_per_second()?),
    text: |value| format!("{value:.1}"),
    more: true,
};
pub(crate) const OFFERED: Shown = Shown {
    title: "Offered, Mbit/s",
    value: |report| Some(report.scenario.offered_bits_per_second()? * 1e-6),
    text: |value| format!("{value:.0}"),
    more: true,
};
pub(crate) const WORST: Shown = Shown {
    title: "Slowest event, ms",
    value: |report| Some(report.completion?.max_us * 1e-3),
    text: |value| if value < 9.995 { format!("{value:.2}") } else { format!("{value:.0}") },
    more: false,
};
const SHOWN: [Shown; 4] = [
    SHARE,
    GOODPUT,
    Shown {
        title: "Retransmitted segments",
        value: |report| Some(report.retransmissions as f64),
        text: |value| format!("{value:.0}"),
        more: false,
    },
    WORST,
];

/// Title of the table of each cell's limit.
pub(crate) const LIMIT_TITLE: &str = "Limit";

/// Layout of the axes: rows, columns, controls, and everything else.
pub(crate) struct Layout {
    rows: usize,
    columns: Option<usize>,
    pub(crate) control: Option<usize>,
    pub(crate) others: Vec<usize>,
}

/// One table: its rows and columns, and a description of the values that all of it shares.
pub(crate) struct Panel<'a> {
    pub(crate) rows: &'a Axis,
    pub(crate) columns: Option<&'a Axis>,
    pub(crate) cells: Vec<Vec<Vec<usize>>>,
    pub(crate) of: String,
}

impl Layout {
    /// Lays out the axes: the two with the most values are rows and columns, in the file's order; controls are neither,
    /// unless there is no other axis.
    pub(crate) fn for_results(results: &Results) -> Self {
        let axes = &results.sweep.axes;
        let mut control = results.sweep.axis_index("traffic.control");
        let mut shown: Vec<usize> = (0..axes.len()).filter(|axis| Some(*axis) != control).collect();
        if shown.is_empty() {
            shown.extend(control.take());
        }
        shown.sort_by_key(|axis| std::cmp::Reverse(axes[*axis].values.len()));
        shown.truncate(2);
        shown.sort_unstable();
        let others = (0..axes.len()).filter(|axis| !shown.contains(axis) && Some(*axis) != control).collect();
        Self { rows: shown[0], columns: shown.get(1).copied(), control, others }
    }

    /// Returns a table for each combination of the values of `over`.
    pub(crate) fn panels_for_axes<'a>(&self, results: &'a Results, over: &[usize]) -> Vec<Panel<'a>> {
        let axes = &results.sweep.axes;
        let first = results.sweep.cells.iter();
        let first = first.filter(|cell| (0..axes.len()).all(|axis| over.contains(&axis) || cell.at[axis] == 0));
        first.map(|cell| self.panel_of_cell(results, cell, over)).collect()
    }

    fn panel_of_cell<'a>(&self, results: &'a Results, cell: &super::Cell, over: &[usize]) -> Panel<'a> {
        let axes = &results.sweep.axes;
        let rows = &axes[self.rows];
        let columns = self.columns.map(|axis| &axes[axis]);
        let mut cells = vec![vec![cell.at.clone(); columns.map_or(1, |axis| axis.values.len())]; rows.values.len()];
        for (row, line) in cells.iter_mut().enumerate() {
            for (column, at) in line.iter_mut().enumerate() {
                at[self.rows] = row;
                if let Some(columns) = self.columns {
                    at[columns] = column;
                }
            }
        }
        Panel { rows, columns, cells, of: results.sweep.describe_cell_axes(cell, |axis| over.contains(&axis)) }
    }

    /// Returns the axes in which panels of single reports differ.
    pub(crate) fn all_panel_axes(&self) -> Vec<usize> {
        self.others.iter().copied().chain(self.control).collect()
    }
}

impl Panel<'_> {
    pub(super) fn corner_text(&self) -> String {
        match self.columns {
            Some(columns) => format!("{} \\ {}", self.rows.short_name(), columns.short_name()),
            None => self.rows.short_name().to_owned(),
        }
    }

    /// Returns the table as text, with the result of a function in each cell.
    pub(crate) fn panel_text(&self, title: &str, of: impl Fn(&[usize]) -> String) -> String {
        let title = if self.of.is_empty() { title.to_owned() } else { format!("{title} ({})", self.of) };
        let headings = self.columns.map_or(vec![String::new()], |columns| columns.values.clone());
        let cells = self.cells.iter().map(|row| row.iter().map(|at| of(at)).collect()).collect();
        wrap_words("", &title) + &grid_text(&self.corner_text(), &self.rows.values, &headings, cells)
    }
}

impl Results {
    /// Returns whether a cell has an offered rate.
    pub(crate) fn has_offered_rates(&self) -> bool {
        self.sweep.cells.iter().any(|cell| cell.scenario.traffic.interval.is_some())
    }

    /// Returns the figures that are shown of each cell: with an offered rate, first the part that was carried.
    pub(crate) fn shown_figures(&self) -> impl Iterator<Item = Shown> + use<> {
        let offered = self.has_offered_rates().then_some([CARRIED, OFFERED]);
        offered.into_iter().flatten().chain(SHOWN)
    }

    /// Returns the limit of a cell in a few words.
    pub(crate) fn limit_text(&self, at: &[usize]) -> String {
        let verdict = self.report_of_cell(at).and_then(|report| report.verdict.as_ref());
        verdict.map_or_else(|| "-".into(), |verdict| verdict.limit.title())
    }

    /// Returns the whole summary for a terminal.
    pub fn summary_text(&self) -> String {
        let mut out = self.sweep_verdict().map_or_else(String::new, |verdict| wrap_words("", &verdict.sentence) + "\n");
        out.push_str(&wrap_words("", &self.sweep.title));
        let (done, of) = (self.finished_count(), self.outcomes.len());
        let quick = if self.sweep.quick { ", a sample with short measurements" } else { "" };
        let missing = if done < of { format!(", of which {} are not done", of - done) } else { String::new() };
        out.push_str(&wrap_words(
            "",
            &format!("laboratory: {}; {of} cells{quick}{missing}", crate::laboratory_title(&self.laboratory)),
        ));
        let layout = Layout::for_results(self);
        let contest = self.compare_controls();
        let few = layout.control.is_none_or(|axis| self.sweep.axes[axis].values.len() <= FEW_CONTROLS);
        for shown in self.shown_figures().filter(|_| few) {
            for panel in layout.panels_for_axes(self, &layout.all_panel_axes()) {
                let _ = write!(out, "\n{}", panel.panel_text(shown.title, |at| self.figure_text(at, &shown)));
            }
        }
        if few && self.has_offered_rates() {
            for panel in layout.panels_for_axes(self, &layout.all_panel_axes()) {
                let _ = write!(out, "\n{}", panel.panel_text(LIMIT_TITLE, |at| self.limit_text(at)));
            }
        }
        if let (Some(contest), Some(control)) = (&contest, layout.control) {
            for panel in layout.panels_for_axes(self, &layout.others) {
                let text = panel.panel_text("The best control, and its share of the ceiling in %", |at| {
                    self.best_control(at, control)
                        .map_or("-".into(), |(name, share)| format!("{name} {:.1}", 100.0 * share))
                });
                let _ = write!(out, "\n{text}");
            }
            out.push_str(&contest.contest_text());
        }
        out.push_str(&self.checks_text());
        out
    }

    /// Returns a figure of a cell, with a mark if a check fails.
    fn figure_text(&self, at: &[usize], shown: &Shown) -> String {
        match self.outcome_of_cell(at) {
            None => "-".into(),
            Some(Err(_)) => "error".into(),
            Some(Ok(report)) => {
                let failed = self.check_results(report).iter().any(|checked| !checked.holds);
                let text = (shown.value)(report).map_or("-".into(), shown.text);
                if failed { text + "!" } else { text }
            }
        }
    }

    /// Returns the best control for the other values of a cell, and its share of the ceiling.
    pub(crate) fn best_control(&self, at: &[usize], control: usize) -> Option<(&str, f64)> {
        let cell = self.sweep.cells.iter().find(|cell| cell.at == at)?;
        let best = self
            .reports_of_all_controls(cell, control)
            .into_iter()
            .max_by(|a, b| super::summary::compare_goodput(a.1, b.1))?;
        Some((&self.sweep.axes[control].values[best.0], best.1.share_of_ceiling))
    }

    fn checks_text(&self) -> String {
        let failures = self.failed_cells();
        let checks: Vec<String> = self.sweep.checks.iter().map(ToString::to_string).collect();
        let mut out = String::new();
        if !checks.is_empty() {
            let passed = self.finished_count() - failures.len();
            let text = format!("{}: {passed} of {} cells pass", checks.join(", "), self.finished_count());
            let _ = write!(out, "\n{}", wrap_words("", &text));
        } else if !failures.is_empty() {
            out.push('\n');
        }
        for (cell, why) in failures {
            out.push_str(&wrap_words("  ! ", &format!("{cell}: {why}")));
        }
        out
    }
}

impl Contest {
    fn contest_text(&self) -> String {
        let headings = ["best in", "mean %", "least %", "retransmitted", "timeouts", "slowest ms"].map(str::to_owned);
        let names: Vec<String> = self.standings.iter().map(|one| one.control.clone()).collect();
        let rows = self.standings.iter().map(|one| {
            vec![
                one.best.to_string(),
                format!("{:.1}", 100.0 * one.mean_share),
                format!("{:.1}", 100.0 * one.least_share),
                one.retransmissions.to_string(),
                one.timeouts.to_string(),
                one.worst_us.map_or("-".into(), |us| (WORST.text)(us * 1e-3)),
            ]
        });
        let title = format!(
            "Controls over {} cells; best: no other has 0.5 % more goodput (or one event, where events come at intervals)",
            self.cells
        );
        let mut out = format!("\n{}{}", wrap_words("", &title), grid_text("", &names, &headings, rows.collect()));
        if self.standings.iter().any(|one| one.control == super::summary::CREDIT) {
            out.push('\n');
            out.push_str(&match self.lost.len() {
                0 => "credit is the best or as good in every cell\n".to_owned(),
                lost => wrap_words("", &format!("credit is not the best in {lost} of {} cells:", self.cells)),
            });
            self.lost.iter().for_each(|loss| out.push_str(&wrap_words("  ! ", &loss.to_string())));
        }
        out
    }
}

impl std::fmt::Display for super::Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cell, credit, best, share } = self;
        write!(f, "{cell}: credit {:.1} %, {best} {:.1} %", 100.0 * credit, 100.0 * share)
    }
}

/// Returns rows and columns with their names as text; columns beyond a terminal's width continue below.
pub(crate) fn grid_text(corner: &str, rows: &[String], columns: &[String], cells: Vec<Vec<String>>) -> String {
    let columns = columns.iter().map(|column| (column.as_str(), Align::Right));
    let mut table = Table::new([(corner, Align::Left)].into_iter().chain(columns));
    rows.iter().zip(cells).for_each(|(name, row)| table.add_row([name.clone()].into_iter().chain(row).collect()));
    table.render_folded(2)
}
