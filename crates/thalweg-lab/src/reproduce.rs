//! Published measurements repeated in the laboratory. An experiment has the original results, the
//! [sweeps](crate::sweep) that repeat them, the comparison of both, and the findings, which hold here or not.
//!
//! An experiment is data, `experiments/NAME.toml`: texts, sweeps, and the tables and findings that are made of their
//! figures. If that does not suffice, a function computes more: of the TDAQ paper, everything.

mod file;
mod page;
mod tdaq;
#[cfg(test)]
mod tests;

use crate::Laboratory;
use crate::report::Report;
use crate::sweep::{Results, Sweep, SweepError};
use serde::Serialize;
use thalweg_bench::paper::{FORMAT, Finding, Table};

/// Conclusions from results: tables, findings, and further parts of the page.
type Conclusions = (Vec<Table>, Vec<Finding>, String);

/// Function that draws conclusions from results, which are in the order of the file's sweeps.
type DrawConclusions = fn(&[Results]) -> Conclusions;

/// All experiments: name, file, and a function for additional conclusions.
const EXPERIMENTS: [(&str, &str, Option<DrawConclusions>); 2] = [
    ("tdaq", include_str!("../experiments/tdaq.toml"), Some(tdaq::worked_out)),
    ("fabric", include_str!("../experiments/fabric.toml"), None),
];

/// A published measurement, and its repetition here.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Short name of the experiment.
    pub name: &'static str,
    file: file::File,
    worked_out: Option<DrawConclusions>,
}

impl Experiment {
    /// Returns all experiments.
    pub fn all() -> impl Iterator<Item = Self> {
        EXPERIMENTS.into_iter().map(|(name, text, worked_out)| Self { name, file: file::parse(name, text), worked_out })
    }

    /// Returns the experiment of this name, or `None`.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|one| one.name == name)
    }

    /// Returns the title.
    pub fn title(&self) -> &str {
        &self.file.title
    }

    /// Returns the publication: authors, title.
    pub fn source(&self) -> &str {
        &self.file.source
    }

    /// Returns the sweeps to run, each with its laboratory: `on`, unless the sweep is only for another. `quick` selects
    /// their samples.
    ///
    /// # Errors
    /// Fails as [`Sweep::load`].
    pub fn sweeps(&self, on: Laboratory, quick: bool) -> Result<Vec<(Sweep, Laboratory)>, SweepError> {
        let sweeps = self.file.sweeps.iter();
        sweeps.map(|part| Ok((Sweep::load(&part.name, quick)?, part.on.unwrap_or(on)))).collect()
    }

    /// Compares the results of [`sweeps`](Self::sweeps), in their order, with the publication. Findings whose cells are
    /// missing cannot be tested.
    pub fn reproduction(&self, measured: Vec<Results>) -> Reproduction {
        let (mut tables, mut findings) = self.file.work_out(&measured);
        let mut pictures = String::new();
        if let Some(more) = self.worked_out {
            let (more_tables, more_findings, more_pictures) = more(&measured);
            tables.extend(more_tables);
            findings.extend(more_findings);
            pictures = more_pictures;
        }
        let mut laboratories: Vec<&str> = measured.iter().map(|one| one.laboratory.as_str()).collect();
        laboratories.dedup();
        Reproduction {
            format: FORMAT,
            name: self.name,
            title: self.file.title.clone(),
            source: self.file.source.clone(),
            method: self.file.method.clone(),
            here: self.file.here.clone(),
            laboratory: laboratories.join(", "),
            quick: measured.iter().any(|one| one.sweep.quick),
            tables,
            findings,
            pictures,
            measured: measured.into_iter().map(Measured::new).collect(),
        }
    }
}

/// A publication beside the results of the laboratory.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    format: &'static str,
    name: &'static str,
    title: String,
    source: String,
    method: String,
    here: String,
    laboratory: String,
    quick: bool,
    /// Published tables, with this laboratory's rows, and additional tables.
    pub tables: Vec<Table>,
    /// Findings of the publication, and their results here.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    pictures: String,
    /// Results of the sweeps.
    pub measured: Vec<Measured>,
}

/// Result of a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Name of the sweep.
    pub id: String,
    /// Command that repeats it alone.
    pub line: String,
    /// Results of its cells.
    pub report: Results,
}

impl Measured {
    fn new(report: Results) -> Self {
        let quick = if report.sweep.quick { " --quick" } else { "" };
        let line = format!("thalweg lab sweep {} --on {}{quick}", report.sweep.name, report.laboratory);
        Self { id: report.sweep.name.clone(), line, report }
    }
}

const NOTHING: &str = "this run has no cells to compare";

/// Returns the values of an axis that this run has.
fn values<'a>(results: &'a Results, key: &str) -> &'a [String] {
    results.sweep.axis(key).map_or(&[], |axis| &results.sweep.axes[axis].values)
}

/// Returns the report of the cell in which these keys have these values.
fn find<'a>(results: &'a Results, at: &[(&str, &str)]) -> Option<&'a Report> {
    let mut wanted = Vec::new();
    for (key, value) in at {
        let axis = results.sweep.axis(key)?;
        wanted.push((axis, results.sweep.axes[axis].values.iter().position(|own| own == value)?));
    }
    let mut cells = results.sweep.cells.iter();
    let cell = cells.find(|cell| wanted.iter().all(|(axis, value)| cell.at[*axis] == *value))?;
    results.report(&cell.at)
}
