//! A paper taken again: which congestion control suits an event builder (Nagasaka and Oki, 2012), in the laboratory,
//! with credits beside them.
//!
//! It is made of the [sweeps](crate::sweep) [`SWEEPS`]. What is said of them (tables beside the paper's, findings and
//! whether they hold) is worked out from their results here.

mod findings;
mod page;
mod paper;
#[cfg(test)]
mod tests;

use crate::report::Report;
use crate::sweep::{Results, Sweep, SweepError};
use serde::Serialize;
use thalweg_page::paper::{FORMAT, Finding, Table};

/// The sweeps it is made of, in this order.
pub const SWEEPS: [&str; 4] = ["tdaq-measured", "tdaq-simulated", "tdaq-incast-each", "tdaq-incast-whole"];

/// The paper's name among those that can be reproduced.
pub const NAME: &str = "tdaq";
/// What it is about.
pub const TITLE: &str = "A large data-acquisition system: which congestion control for N to 1?";
/// The paper.
pub const SOURCE: &str = "Nagasaka, Oki (Hiroshima Institute of Technology): A study on an improvement of communication efficiency in a large-scale data acquisition system (2012, in Japanese)";

/// The paper's measurements beside the laboratory's.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    format: &'static str,
    name: &'static str,
    title: &'static str,
    source: &'static str,
    method: &'static str,
    here: &'static str,
    laboratory: String,
    quick: bool,
    /// The paper's tables, with this laboratory's rows.
    pub tables: Vec<Table>,
    /// What was found, there and here.
    pub findings: Vec<Finding>,
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

/// The sweeps to run. `quick`: their samples.
///
/// # Errors
/// As [`Sweep::load`].
pub fn sweeps(quick: bool) -> Result<Vec<Sweep>, SweepError> {
    SWEEPS.iter().map(|name| Sweep::load(name, quick)).collect()
}

impl Reproduction {
    /// From what came out of [`sweeps`], in their order. Cells that are lacking make findings that cannot be tested.
    pub fn new(measured: [Results; 4]) -> Self {
        let line = |sweep: &Sweep, laboratory: &str| {
            let quick = if sweep.quick { " --quick" } else { "" };
            format!("thalweg lab sweep {} --on {laboratory}{quick}", sweep.name)
        };
        Self {
            format: FORMAT,
            name: NAME,
            title: TITLE,
            source: SOURCE,
            method: paper::METHOD,
            here: paper::HERE,
            laboratory: measured[0].laboratory.clone(),
            quick: measured[0].sweep.quick,
            tables: findings::tables(&measured),
            findings: findings::findings(&measured),
            measured: measured
                .map(|report| Measured {
                    id: report.sweep.name.clone(),
                    line: line(&report.sweep, &report.laboratory),
                    report,
                })
                .into(),
        }
    }
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
