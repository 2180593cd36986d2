//! Entries of an experiment's file: sweeps, and the specifications of tables and findings.

use super::{NOTHING, axis_values, find_report};
use crate::Laboratory;
use crate::report::Report;
use crate::sweep::check::{Check, Figure};
use crate::sweep::{Cell, Results, Sweep};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use thalweg_bench::reproduce::{Finding, Row, Table};

/// A sweep, and the only laboratory it is for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub(super) name: String,
    #[serde(default, deserialize_with = "laboratory")]
    pub(super) on: Option<Laboratory>,
}

/// A table with a row for each value of one key, and some figures, for each value of another key if there is one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    title: String,
    pub(super) sweep: String,
    pub(super) rows: String,
    pub(super) columns: Option<String>,
    #[serde(deserialize_with = "figures")]
    show: Vec<Figure>,
    note: Option<String>,
}

/// A finding: either `check`, which must pass in every cell, or `against`: cells that differ only in these values,
/// whose share of the ceiling may be larger by the fraction `within`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingSpec {
    paper: String,
    here: String,
    pub(super) sweep: String,
    /// Values of the cells to which it is limited.
    #[serde(default)]
    pub(super) at: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "check")]
    check: Option<Check>,
    #[serde(default)]
    pub(super) against: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    within: f64,
}

fn results_of_sweep<'a>(measured: &[&'a Results], sweep: &str) -> Option<&'a Results> {
    measured.iter().copied().find(|results| results.sweep.name == sweep)
}

impl TableSpec {
    /// Returns the table with the rows that were measured, or `None` if its sweep was not run.
    pub(super) fn table(&self, measured: &[&Results]) -> Option<Table> {
        let results = results_of_sweep(measured, &self.sweep)?;
        // Without a key for columns there is one column.
        let columns = self.columns.as_deref();
        let columns: Vec<Option<(&str, &str)>> = match columns {
            Some(key) => axis_values(results, key).iter().map(|value| Some((key, value.as_str()))).collect(),
            None => vec![None],
        };
        let mut headings = vec![self.rows.rsplit('.').next().unwrap_or(&self.rows).to_owned()];
        for column in &columns {
            headings.extend(self.show.iter().map(|figure| match column {
                Some((_, value)) => format!("{value}: {}", figure.spaced_name()),
                None => figure.spaced_name(),
            }));
        }
        Some(Table {
            title: self.title.clone(),
            headings,
            paper: Vec::new(),
            here: axis_values(results, &self.rows).iter().map(|name| self.build_row(results, &columns, name)).collect(),
            remarks: self.note.iter().cloned().collect(),
        })
    }

    fn build_row(&self, results: &Results, columns: &[Option<(&str, &str)>], name: &str) -> Row {
        let mut cells = Vec::new();
        for column in columns {
            let at: Vec<_> = [(self.rows.as_str(), name)].into_iter().chain(*column).collect();
            let report = find_report(results, &at);
            cells.extend(self.show.iter().map(|figure| Some(figure.format_value(figure.value_in_report(report?)?))));
        }
        Row::new(name, cells)
    }
}

impl FindingSpec {
    /// Tests the finding.
    pub(super) fn finding(&self, measured: &[&Results]) -> Finding {
        let outcome = results_of_sweep(measured, &self.sweep).and_then(|results| self.evaluate_finding(results));
        Finding::new(&self.paper, &self.here, outcome.ok_or(NOTHING))
    }

    fn evaluate_finding(&self, results: &Results) -> Option<(bool, String)> {
        let cells = results.sweep.cells.iter();
        let cells = cells.filter(|cell| {
            self.at.iter().all(|(key, value)| axis_value_of_cell(&results.sweep, cell, key) == Some(value))
        });
        let cells: Vec<(&Cell, &Report)> =
            cells.filter_map(|cell| Some((cell, results.report_of_cell(&cell.at)?))).collect();
        match &self.check {
            Some(check) => evaluate_check(check, results, &cells),
            None => self.compare_with_others(results, &cells),
        }
    }

    /// Returns whether the finding holds, with the cell in which another is ahead most, or nearest to that.
    fn compare_with_others(&self, results: &Results, cells: &[(&Cell, &Report)]) -> Option<(bool, String)> {
        let mut nearest: Option<(f64, String)> = None;
        for (cell, own) in cells {
            let axes = results.sweep.axes.iter().zip(&cell.at);
            let keys: Vec<(&str, &str)> =
                axes.map(|(axis, at)| (axis.key.as_str(), axis.values[*at].as_str())).collect();
            for (key, others) in &self.against {
                for other in others {
                    let at: Vec<_> =
                        keys.iter().map(|(own, value)| (*own, if own == key { other } else { *value })).collect();
                    let Some(theirs) = find_report(results, &at) else { continue };
                    let ahead = theirs.share_of_ceiling / own.share_of_ceiling;
                    if nearest.as_ref().is_none_or(|(most, _)| ahead > *most) {
                        let [own, theirs] =
                            [*own, theirs].map(|report| format!("{:.1} %", 100.0 * report.share_of_ceiling));
                        let text = format!("{}: {own}, and {theirs} with {other}", results.sweep.describe_cell(cell));
                        nearest = Some((ahead, text));
                    }
                }
            }
        }
        let (ahead, text) = nearest?;
        let holds = ahead <= 1.0 + self.within;
        Some((holds, format!("the {} is {text}", if holds { "closest" } else { "furthest off" })))
    }
}

/// Returns whether the check passes in all cells, with the worst value and the cells that fail.
fn evaluate_check(check: &Check, results: &Results, cells: &[(&Cell, &Report)]) -> Option<(bool, String)> {
    let mut all = Vec::new();
    for (cell, report) in cells {
        all.push((*cell, check.check_report(report), check.figure().value_in_report(report)?));
    }
    let worst = all.iter().max_by(|a, b| check.failure_margin(a.2).total_cmp(&check.failure_margin(b.2)))?;
    let broken: Vec<String> = all
        .iter()
        .filter(|(_, checked, _)| !checked.holds)
        .map(|(cell, ..)| results.sweep.describe_cell(cell))
        .collect();
    let (cell, figure) = (results.sweep.describe_cell(worst.0), check.figure());
    let worst = format!("{cell} ({} {})", figure.spaced_name(), figure.format_value(worst.2));
    Some(match broken.len() {
        0 => (true, format!("in all of {} cells; the closest is {worst}", all.len())),
        many => {
            let broken = broken.join("; ");
            (false, format!("not in {many} of {} cells ({broken}); the furthest off is {worst}", all.len()))
        }
    })
}

fn axis_value_of_cell<'a>(sweep: &'a Sweep, cell: &Cell, key: &str) -> Option<&'a String> {
    let axis = sweep.axis_index(key)?;
    Some(&sweep.axes[axis].values[cell.at[axis]])
}

fn laboratory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Laboratory>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
}

fn figures<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Figure>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let figures = names
        .into_iter()
        .map(|name| Figure::find_by_name(&name).ok_or_else(|| de::Error::custom(format!("no figure '{name}'"))));
    figures.collect()
}

fn check<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Check>, D::Error> {
    let named = BTreeMap::<String, String>::deserialize(from)?;
    let one = named.iter().next().filter(|_| named.len() == 1);
    let check = one.and_then(|(name, text)| Check::parse(name, text));
    check.map(Some).ok_or_else(|| de::Error::custom("one figure, and what it is compared with"))
}
