//! Summary of the results: the cells that fail their checks, and the best congestion control of each cell.

use super::check::Checked;
use super::verdict::SweepVerdict;
use super::{Cell, Outcome, Results, Sweep};
use crate::scenario::Traffic;
use crate::{Report, Scenario};
use serde::{Serialize, Serializer, ser::SerializeSeq};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use thalweg_text::plot::Provenance;

/// Fraction of the larger of two goodputs; those that differ by less are equal.
const GOODPUT_TOLERANCE: f64 = 0.005;
const CONTROL: &str = "traffic.control";
pub(super) const CREDIT: &str = "credit";

/// Comparison of congestion controls, cell by cell.
#[derive(Debug, Clone, Serialize)]
pub struct Contest {
    /// Number of cells that were compared.
    pub cells: usize,
    /// Results of each control, the one that is best most often first.
    pub standings: Vec<Standing>,
    /// Cells in which `credit` is neither the best nor equal to it.
    pub lost: Vec<Loss>,
}

/// Results of a control over all cells.
#[derive(Debug, Clone, Serialize)]
pub struct Standing {
    /// Name of the control.
    pub control: String,
    /// Number of cells in which no other was better by more than 0.5 %, or by one event if events come at intervals.
    pub best: usize,
    /// Mean share of the ceiling.
    pub mean_share: f64,
    /// Least share of the ceiling.
    pub least_share: f64,
    /// Number of retransmitted segments, in all cells.
    pub retransmissions: u64,
    /// Number of retransmission timeouts, in all cells.
    pub timeouts: u64,
    /// Time of the slowest event of all cells, in µs.
    pub worst_us: Option<f64>,
}

/// A cell in which another control is better than `credit`.
#[derive(Debug, Clone, Serialize)]
pub struct Loss {
    /// Description of the cell.
    pub cell: String,
    /// Share of the ceiling that `credit` has.
    pub credit: f64,
    /// Name of the best control.
    pub best: String,
    /// Share of the ceiling that the best control has.
    pub share: f64,
}

impl Results {
    /// Returns the number of cells that have a result.
    pub fn finished_count(&self) -> usize {
        self.outcomes.iter().flatten().count()
    }

    /// Returns the outcome of a cell, or `None` if it was not reached.
    pub(crate) fn outcome_of_cell(&self, at: &[usize]) -> Option<&Outcome> {
        let number = self.sweep.axes.iter().zip(at).fold(0, |number, (axis, at)| number * axis.values.len() + at);
        self.outcomes.get(number)?.as_ref()
    }

    /// Returns the report of a cell, or `None` if it has none.
    pub(crate) fn report_of_cell(&self, at: &[usize]) -> Option<&Report> {
        self.outcome_of_cell(at)?.as_ref().ok().map(Box::as_ref)
    }

    /// Returns the results of all checks of a report.
    pub fn check_results(&self, report: &Report) -> Vec<Checked> {
        self.sweep.checks.iter().map(|check| check.check_report(report)).collect()
    }

    /// Returns the cells that have no report, or that fail a check: a description of each, and the reason.
    pub fn failed_cells(&self) -> Vec<(String, String)> {
        let mut failures = Vec::new();
        for (cell, outcome) in self.sweep.cells.iter().zip(&self.outcomes) {
            let why = match outcome {
                None => continue,
                Some(Err(error)) => error.clone(),
                Some(Ok(report)) => {
                    let checks = self.check_results(report);
                    let failed = checks.iter().filter(|checked| !checked.holds).map(Checked::to_string);
                    failed.collect::<Vec<_>>().join("; ")
                }
            };
            if !why.is_empty() {
                failures.push((self.sweep.describe_cell(cell), why));
            }
        }
        failures
    }

    /// True if every cell has a report that passes every check.
    pub fn has_passed(&self) -> bool {
        self.finished_count() == self.outcomes.len() && self.failed_cells().is_empty()
    }

    /// Returns the comparison of the congestion controls, or `None` if there are not several.
    pub fn compare_controls(&self) -> Option<Contest> {
        let axis = self.sweep.axis_index(CONTROL)?;
        let controls = &self.sweep.axes[axis].values;
        let mut standings: Vec<Standing> =
            controls.iter().map(|control| Standing::for_control(self, axis, control)).collect();
        let mut contest = Contest { cells: 0, standings: Vec::new(), lost: Vec::new() };
        for cell in self.sweep.cells.iter().filter(|cell| cell.at[axis] == 0) {
            let reports = self.reports_of_all_controls(cell, axis);
            let Some(&(best, most)) = reports.iter().max_by(|a, b| compare_goodput(a.1, b.1)) else { continue };
            if reports.len() < 2 {
                continue;
            }
            contest.cells += 1;
            for (control, report) in reports {
                if is_equal_rate(report, comparable_goodput(report), comparable_goodput(most)) {
                    standings[control].best += 1;
                } else if controls[control] == CREDIT {
                    let (cell, best) =
                        (self.sweep.describe_cell_axes(cell, |other| other != axis), controls[best].clone());
                    let (credit, share) = (report.share_of_ceiling, most.share_of_ceiling);
                    contest.lost.push(Loss { cell, credit, best, share });
                }
            }
        }
        standings.sort_by(|a, b| b.best.cmp(&a.best).then(b.mean_share.total_cmp(&a.mean_share)));
        contest.standings = standings;
        (contest.cells > 0).then_some(contest)
    }

    /// Returns the reports of all controls for the other values of this cell.
    pub(super) fn reports_of_all_controls(&self, cell: &Cell, axis: usize) -> Vec<(usize, &Report)> {
        let mut at = cell.at.clone();
        let reports = (0..self.sweep.axes[axis].values.len()).filter_map(|control| {
            at[axis] = control;
            Some((control, self.report_of_cell(&at)?))
        });
        reports.collect()
    }
}

pub(super) fn compare_goodput(one: &Report, other: &Report) -> Ordering {
    comparable_goodput(one).total_cmp(&comparable_goodput(other))
}

/// Returns the goodput, at most the ceiling: more is what waited in the switch when the measured time began.
fn comparable_goodput(report: &Report) -> f64 {
    report.goodput_bits_per_second.min(report.ceiling_bits_per_second)
}

/// True if neither has clearly more goodput: they differ by less than 0.5 %, or, if less is offered than could
/// be carried, by one event (or burst of them), which may have come before or after the end.
pub(crate) fn has_equal_goodput(one: &Report, other: &Report) -> bool {
    is_equal_rate(one, one.goodput_bits_per_second, other.goodput_bits_per_second)
}

/// True if two goodputs in the cell of this report are equal, as [`has_equal_goodput`] says.
fn is_equal_rate(report: &Report, one: f64, other: f64) -> bool {
    let Report { scenario, ceiling_bits_per_second: ceiling, measured_seconds: seconds, .. } = report;
    let offered_less =
        Scenario { traffic: Traffic { interval: None, burst: None, ..scenario.traffic.clone() }, ..scenario.clone() }
            .ceiling_bits_per_second()
            > 1.001 * ceiling;
    let event = match scenario.burst_period() {
        Some(period) if offered_less => ceiling * period.as_secs_f64() / seconds.max(1e-9),
        _ => 0.0,
    };
    (one - other).abs() <= (GOODPUT_TOLERANCE * one.max(other)).max(1.001 * event)
}

impl Standing {
    fn for_control(results: &Results, axis: usize, control: &str) -> Self {
        let cells = results.sweep.cells.iter();
        let own = cells.filter(|cell| results.sweep.axes[axis].values[cell.at[axis]] == control);
        let reports: Vec<&Report> = own.filter_map(|cell| results.report_of_cell(&cell.at)).collect();
        let shares: Vec<f64> = reports.iter().map(|report| report.share_of_ceiling).collect();
        Self {
            control: control.to_owned(),
            best: 0,
            mean_share: shares.iter().sum::<f64>() / reports.len().max(1) as f64,
            least_share: shares.into_iter().reduce(f64::min).unwrap_or(0.0),
            retransmissions: reports.iter().map(|report| report.retransmissions).sum(),
            timeouts: reports.iter().map(|report| report.timeouts).sum(),
            worst_us: reports.iter().filter_map(|report| Some(report.completion?.max_us)).reduce(f64::max),
        }
    }
}

impl Sweep {
    fn values_of_cell(&self, cell: &Cell) -> Map<String, Value> {
        self.axes.iter().zip(&cell.at).map(|(axis, at)| (axis.key.clone(), json!(axis.values[*at]))).collect()
    }
}

/// Serializes one object: `axes`, `cells` (each with its values, its report or its error, and its checks), and
/// `contest`.
impl Serialize for Results {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            format: &'static str,
            name: &'a str,
            title: &'a str,
            verdict: Option<SweepVerdict>,
            provenance: &'a Provenance,
            laboratory: &'a str,
            quick: bool,
            passed: bool,
            axes: Vec<Value>,
            cells: Cells<'a>,
            contest: Option<Contest>,
        }
        Whole {
            format: "thalweg-sweep/1",
            name: &self.sweep.name,
            title: &self.sweep.title,
            verdict: self.sweep_verdict(),
            provenance: &self.provenance,
            laboratory: &self.laboratory,
            quick: self.sweep.quick,
            passed: self.has_passed(),
            axes: self.sweep.axes.iter().map(|axis| json!({ "key": axis.key, "values": axis.values })).collect(),
            cells: Cells(self),
            contest: self.compare_controls(),
        }
        .serialize(serializer)
    }
}

/// The cells that have a result.
struct Cells<'a>(&'a Results);

impl Serialize for Cells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct One<'a> {
            at: Map<String, Value>,
            checks: Vec<Checked>,
            #[serde(skip_serializing_if = "Option::is_none")]
            report: Option<&'a Report>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<&'a str>,
        }
        let mut sequence = serializer.serialize_seq(None)?;
        for (cell, outcome) in self.0.sweep.cells.iter().zip(&self.0.outcomes) {
            let Some(outcome) = outcome else { continue };
            let report = outcome.as_deref().ok();
            sequence.serialize_element(&One {
                at: self.0.sweep.values_of_cell(cell),
                checks: report.map(|report| self.0.check_results(report)).unwrap_or_default(),
                report,
                error: outcome.as_ref().err().map(String::as_str),
            })?;
        }
        sequence.end()
    }
}
