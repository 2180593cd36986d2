//! Published measurements taken again in the laboratory: what was measured there, the [sweeps](crate::sweep) that
//! measure it here, what stands beside what, and which findings hold.
//!
//! An experiment is data, `experiments/NAME.toml`: texts, sweeps, and the tables and findings that are made of their
//! figures. Where that does not suffice, a function works out more: of the TDAQ paper, all of it.

mod file;
mod page;
mod tdaq;
#[cfg(test)]
mod tests;

use crate::Laboratory;
use crate::report::Report;
use crate::sweep::{Results, Sweep, SweepError};
use serde::Serialize;
use thalweg_page::paper::{FORMAT, Finding, Table};

/// What is said of results: tables, findings, and further parts of the page.
type Worked = (Vec<Table>, Vec<Finding>, String);

/// Says so of results, which are in the order of the file's sweeps.
type WorkOut = fn(&[Results]) -> Worked;

/// Each one's name, its file, and what is worked out besides.
const EXPERIMENTS: [(&str, &str, Option<WorkOut>); 2] = [
    ("tdaq", include_str!("../experiments/tdaq.toml"), Some(tdaq::worked_out)),
    ("fabric", include_str!("../experiments/fabric.toml"), None),
];

/// What was published, and how it is measured here.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its short name.
    pub name: &'static str,
    file: file::File,
    worked_out: Option<WorkOut>,
}

impl Experiment {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        EXPERIMENTS.into_iter().map(|(name, text, worked_out)| Self { name, file: file::parse(name, text), worked_out })
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|one| one.name == name)
    }

    /// What it is about.
    pub fn title(&self) -> &str {
        &self.file.title
    }

    /// What was published: authors, title.
    pub fn source(&self) -> &str {
        &self.file.source
    }

    /// The sweeps to run, and where: in the laboratory that is asked for, unless one is only for another. `quick`:
    /// their samples.
    ///
    /// # Errors
    /// As [`Sweep::load`].
    pub fn sweeps(&self, on: Laboratory, quick: bool) -> Result<Vec<(Sweep, Laboratory)>, SweepError> {
        let one = |part: &file::Part| Ok((Sweep::load(&part.name, quick)?, part.on.unwrap_or(on)));
        self.file.sweeps.iter().map(one).collect()
    }

    /// From what came out of [`sweeps`](Self::sweeps), in their order. Cells that are lacking make findings that cannot
    /// be tested.
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

/// What was published beside what the laboratory has.
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
    /// Published tables, with this laboratory's rows, and tables beyond them.
    pub tables: Vec<Table>,
    /// What was found, there and here.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    pictures: String,
    /// The sweeps.
    pub measured: Vec<Measured>,
}

/// A sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Its name.
    pub id: String,
    /// What repeats it alone.
    pub line: String,
    /// What came out.
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

/// Values of an axis that this run has.
fn values<'a>(results: &'a Results, key: &str) -> &'a [String] {
    results.sweep.axis(key).map_or(&[], |axis| &results.sweep.axes[axis].values)
}

/// The report where these keys have these values.
fn find<'a>(results: &'a Results, at: &[(&str, &str)]) -> Option<&'a Report> {
    let value = |(key, value): &(&str, &str)| {
        let axis = results.sweep.axis(key)?;
        Some((axis, results.sweep.axes[axis].values.iter().position(|own| own == value)?))
    };
    let wanted: Vec<(usize, usize)> = at.iter().map(value).collect::<Option<_>>()?;
    let mut cells = results.sweep.cells.iter();
    let cell = cells.find(|cell| wanted.iter().all(|(axis, value)| cell.at[*axis] == *value))?;
    results.report(&cell.at)
}
