//! A sweep: one scenario with lists in it. Every combination is run, checked, and drawn.
//!
//! A sweep file is a scenario file with additional tables:
//!
//! - `[sweep]`: keys of the scenario, each with a list of values. `rounds = 20` makes every measurement at least that
//!   many round trips, and a whole number of intervals and at least that many, long, so that cells with a short delay
//!   stay cheap. Each `[[sweep.together]]` is a list of keys that change together.
//! - `[quick]`: a sample. For a key of `[sweep]` some of its values, for any other key of the scenario another value.
//! - `[check]`: conditions on every cell, such as `share_of_ceiling = ">= 0.98"`: see [`check::FIGURES`].
//!
//! Some sweeps come with Thalweg: `NAMES`.

pub mod check;
mod file;
pub(crate) mod heat;
mod lines;
pub(crate) mod page;
mod run;
pub(crate) mod summary;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod text;
mod verdict;

pub use run::{Outcome, Progress, Results, estimate_sweep_time, run_sweep};
pub use summary::{Contest, Loss};

use crate::scenario::{InvalidLine, Scenario, ScenarioError};
use check::Check;
use std::path::Path;
use thiserror::Error;

/// A scenario with lists in it, and all its combinations.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Name of the file, without its ending.
    pub name: String,
    /// Title of the sweep.
    pub title: String,
    /// Keys that change, in the file's order.
    pub axes: Vec<Axis>,
    /// Conditions on every cell.
    pub checks: Vec<Check>,
    /// Every combination of values.
    pub cells: Vec<Cell>,
    /// True if this is the sample.
    pub quick: bool,
}

/// A key that changes, or several that change together and are named by the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Path of the key, such as `network.delay`.
    pub key: String,
    /// Values of the key, as text.
    pub values: Vec<String>,
}

/// One combination of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Index of the value of each axis.
    pub at: Vec<usize>,
    /// Scenario of the cell.
    pub scenario: Scenario,
}

const EMBEDDED: [(&str, &str); 19] = [
    ("judge-1g", include_str!("../sweeps/judge-1g.toml")),
    ("judge-10g", include_str!("../sweeps/judge-10g.toml")),
    ("judge-100g", include_str!("../sweeps/judge-100g.toml")),
    ("judge-controls", include_str!("../sweeps/judge-controls.toml")),
    ("judge-uneven", include_str!("../sweeps/judge-uneven.toml")),
    ("judge-bursts", include_str!("../sweeps/judge-bursts.toml")),
    ("judge-slow", include_str!("../sweeps/judge-slow.toml")),
    ("judge-loss", include_str!("../sweeps/judge-loss.toml")),
    ("judge-cross", include_str!("../sweeps/judge-cross.toml")),
    ("judge-paced", include_str!("../sweeps/judge-paced.toml")),
    ("judge-fabric", include_str!("../sweeps/judge-fabric.toml")),
    ("judge-fabric-uneven", include_str!("../sweeps/judge-fabric-uneven.toml")),
    ("judge-fabric-10g", include_str!("../sweeps/judge-fabric-10g.toml")),
    ("fabric-controls", include_str!("../sweeps/fabric-controls.toml")),
    ("fabric-scale", include_str!("../sweeps/fabric-scale.toml")),
    ("tdaq-measured", include_str!("../sweeps/tdaq-measured.toml")),
    ("tdaq-simulated", include_str!("../sweeps/tdaq-simulated.toml")),
    ("tdaq-incast-whole", include_str!("../sweeps/tdaq-incast-whole.toml")),
    ("tdaq-incast-each", include_str!("../sweeps/tdaq-incast-each.toml")),
];

/// Returns the names of the sweeps that come with Thalweg.
pub fn embedded_names() -> impl Iterator<Item = &'static str> {
    EMBEDDED.iter().map(|(name, _)| *name)
}

/// Reason why there is no sweep.
#[derive(Debug, Error)]
pub enum SweepError {
    /// The argument is neither a readable file nor a name of a sweep.
    #[error(transparent)]
    File(#[from] ScenarioError),
    /// The file is not a sweep, or has a value that is not possible.
    #[error("{name}, {wrong}")]
    Invalid {
        /// Name of the sweep.
        name: String,
        /// The problem and its line.
        wrong: InvalidLine,
    },
    /// The selected cells do not exist.
    #[error("'{selection}' takes nothing out of {name}: write KEY=VALUE or KEY=VALUE,VALUE with {axes}")]
    Only {
        /// The selection, as it was given.
        selection: String,
        /// Name of the sweep.
        name: String,
        /// Keys of the sweep and their values.
        axes: String,
    },
}

impl Sweep {
    /// Returns a sweep that comes with Thalweg, by its name, or else that of a file. `quick` selects its sample.
    ///
    /// # Errors
    /// Fails if there is neither such a sweep nor such a file, or it has a value that is not possible.
    pub fn load_by_name(name: &str, quick: bool) -> Result<Self, SweepError> {
        if let Some((_, text)) = EMBEDDED.iter().find(|(own, _)| *own == name) {
            return Self::parse_text(name, text, quick);
        }
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).map_err(|error| match path.components().count() {
            1 if path.extension().is_none() => {
                let names = embedded_names().collect::<Vec<_>>().join(", ");
                let error = std::io::Error::new(error.kind(), format!("{error}; nor is it one of {names}"));
                ScenarioError::Read { path: path.to_owned(), error }
            }
            _ => ScenarioError::Read { path: path.to_owned(), error },
        })?;
        let own_name = path.file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        // An error names the file, a sweep has a name without its ending.
        file::parse_sweep(&own_name, &text, quick)
            .map_err(|wrong| SweepError::Invalid { name: path.display().to_string(), wrong })
    }

    /// Parses and checks the text of a file, and every cell of it.
    pub(crate) fn parse_text(name: &str, text: &str, quick: bool) -> Result<Self, SweepError> {
        file::parse_sweep(name, text, quick).map_err(|wrong| SweepError::Invalid { name: name.to_owned(), wrong })
    }

    /// Keeps only cells whose key has one of the values: `delay=1ms` or `network.senders=1,2`. Axes are reduced as
    /// well.
    ///
    /// # Errors
    /// Fails if the sweep has no such key, or lacks one of the values; the sweep is unchanged in this case.
    pub fn select_cells(&mut self, selection: &str) -> Result<(), SweepError> {
        let (key, values) = selection.split_once('=').ok_or_else(|| self.selection_error(selection))?;
        let mut axes = self.axes.iter();
        let number = axes.position(|axis| axis.key == key.trim() || axis.short_name() == key.trim());
        let number = number.ok_or_else(|| self.selection_error(selection))?;
        let axis = &self.axes[number];
        let mut kept = Vec::new();
        for value in values.split(',') {
            let at = axis.values.iter().position(|own| is_same_value(own, value));
            kept.push(at.ok_or_else(|| self.selection_error(selection))?);
        }
        kept.sort_unstable();
        kept.dedup();
        self.axes[number].values = kept.iter().map(|at| self.axes[number].values[*at].clone()).collect();
        self.cells.retain_mut(|cell| match kept.binary_search(&cell.at[number]) {
            Ok(at) => {
                cell.at[number] = at;
                true
            }
            Err(_) => false,
        });
        Ok(())
    }

    fn selection_error(&self, selection: &str) -> SweepError {
        let axes = self.axes.iter().map(|axis| format!("{} = {}", axis.key, axis.values.join(", ")));
        let axes = axes.collect::<Vec<_>>().join("; ");
        SweepError::Only { selection: selection.to_owned(), name: self.name.clone(), axes }
    }

    /// Returns the index of the axis with this key.
    pub fn axis_index(&self, key: &str) -> Option<usize> {
        self.axes.iter().position(|axis| axis.key == key)
    }

    /// Returns a description of a cell: `senders 3, delay 1ms`.
    pub fn describe_cell(&self, cell: &Cell) -> String {
        self.describe_cell_axes(cell, |_| true)
    }

    /// Returns the description of a cell with some of its axes.
    pub(crate) fn describe_cell_axes(&self, cell: &Cell, of: impl Fn(usize) -> bool) -> String {
        let axes = self.axes.iter().zip(&cell.at).enumerate().filter(|(number, _)| of(*number));
        let words: Vec<String> =
            axes.map(|(_, (axis, at))| format!("{} {}", axis.short_name(), axis.values[*at])).collect();
        words.join(", ")
    }
}

impl Axis {
    /// Returns the last part of the key.
    pub fn short_name(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }
}

/// True if two texts mean one value, apart from spaces and capitals.
fn is_same_value(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|text| text.split_whitespace().collect::<String>().to_ascii_lowercase());
    one == other
}
