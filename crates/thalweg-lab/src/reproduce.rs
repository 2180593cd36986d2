//! Published measurements repeated in the laboratory: experiments whose measurements are [sweeps](crate::sweep).
//!
//! An experiment is data, `experiments/NAME.toml`: texts, sweeps, and the tables and findings that are made of their
//! figures. If that does not suffice, a function computes them: those of the TDAQ paper.

mod file;
mod tdaq;
#[cfg(test)]
mod tests;

use crate::Laboratory;
use crate::report::Report;
use crate::sweep::text::grid_text;
use crate::sweep::{Results, Sweep, SweepError, heat};
use std::fmt::Write;
use thalweg_bench::render::PlotError;
use thalweg_bench::reproduce::{Experiment, ExperimentReport, Finding, Measured, Table, reports};
use thalweg_text::html::escape_html;

impl ExperimentReport for Results {
    type Measure = file::Part;
    type Table = file::TableSpec;
    type Finding = file::FindingSpec;

    const EXPERIMENTS: &'static [(&'static str, &'static str)] =
        &[("tdaq", include_str!("../experiments/tdaq.toml")), ("fabric", include_str!("../experiments/fabric.toml"))];
    const QUICK: &'static str = "A first look: a sample of the cells, with short measurements.";
    const STYLE: &'static str = heat::STYLE;

    fn conclusions(experiment: &Experiment<Self>, measured: &[Measured<Self>]) -> (Vec<Table>, Vec<Finding>, String) {
        let results: Vec<&Self> = reports(measured).collect();
        if let ("tdaq", &[sizes, grid, each, whole]) = (experiment.name.as_str(), &results[..]) {
            return tdaq::conclusions([sizes, grid, each, whole]);
        }
        let tables = experiment.tables.iter().filter_map(|spec| spec.table(&results));
        let findings = experiment.findings.iter().map(|spec| spec.finding(&results));
        (tables.collect(), findings.collect(), String::new())
    }

    fn laboratory(&self) -> Option<&str> {
        Some(&self.laboratory)
    }

    /// Formats the paper's rows, then ours, in columns as wide as they need.
    fn rows_text(table: &Table) -> String {
        let mut out = String::new();
        let sides = [("the paper", &table.paper), ("here", &table.here)];
        for (side, rows) in sides.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            if !table.paper.is_empty() {
                let _ = writeln!(out, "{side}");
            }
            let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
            let cells = rows.iter().map(|row| row.cells.clone()).collect();
            out.push_str(&grid_text(&table.headings[0], &names, &table.headings[1..], cells));
        }
        out
    }

    fn measured_html(measured: &[Measured<Self>]) -> Result<String, PlotError> {
        let mut body = String::new();
        for (one, results) in measured.iter().zip(reports(measured)) {
            let (title, line) = (escape_html(&results.sweep.title), escape_html(&one.line));
            let _ = writeln!(body, "<h2>Measured: {title}</h2>\n<pre>{line}</pre>");
            body.push_str(&results.results_page_body()?.replace("<h2>", "<h3>").replace("</h2>", "</h3>"));
        }
        Ok(body)
    }
}

/// Returns the sweeps of an experiment, each with its laboratory: `on`, unless the sweep is only for another. `quick`
/// selects their samples.
///
/// # Errors
/// Fails as [`Sweep::load_by_name`].
pub fn sweeps(
    experiment: &Experiment<Results>,
    on: Laboratory,
    quick: bool,
) -> Result<Vec<(Sweep, Laboratory)>, SweepError> {
    let sweeps = experiment.measures.iter();
    sweeps.map(|part| Ok((Sweep::load_by_name(&part.name, quick)?, part.on.unwrap_or(on)))).collect()
}

/// Returns the results of a sweep as a measurement of an experiment, with the command that repeats the sweep alone.
pub fn measured(results: Results) -> Measured<Results> {
    let quick = if results.sweep.quick { " --quick" } else { "" };
    let line = format!("thalweg lab sweep {} --on {}{quick}", results.sweep.name, results.laboratory);
    Measured { id: results.sweep.name.clone(), line, report: Some(results), error: None }
}

const NOTHING: &str = "this run has no cells to compare";

/// Returns the values of an axis that this run has.
fn axis_values<'a>(results: &'a Results, key: &str) -> &'a [String] {
    results.sweep.axis_index(key).map_or(&[], |axis| &results.sweep.axes[axis].values)
}

/// Returns the report of the cell in which these keys have these values.
fn find_report<'a>(results: &'a Results, at: &[(&str, &str)]) -> Option<&'a Report> {
    let mut wanted = Vec::new();
    for (key, value) in at {
        let axis = results.sweep.axis_index(key)?;
        wanted.push((axis, results.sweep.axes[axis].values.iter().position(|own| own == value)?));
    }
    let mut cells = results.sweep.cells.iter();
    let cell = cells.find(|cell| wanted.iter().all(|(axis, value)| cell.at[*axis] == *value))?;
    results.report_of_cell(&cell.at)
}
