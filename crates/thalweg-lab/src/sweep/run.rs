//! Runs the cells: several at a time, the cheapest first. Results are appended to `results.jsonl`, and not measured
//! again.

use super::{Cell, Sweep};
use crate::{LabError, Laboratory, Report, Scenario, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use thalweg_text::plot::Provenance;

/// Result of a cell: its report, or the reason why there is none.
pub type Outcome = Result<Box<Report>, String>;

/// Results of a sweep, which may have been interrupted.
#[derive(Debug, Clone)]
pub struct Results {
    /// Sweep that was run.
    pub sweep: Sweep,
    /// Name of the laboratory: `virtual`, `host`, `ns3` or `model`.
    pub laboratory: String,
    /// Outcome of each cell; `None` for those that were not reached.
    pub outcomes: Vec<Option<Outcome>>,
    /// Origin of the figures.
    pub provenance: Provenance,
}

/// Progress of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Cell that has just ended; `None` at the beginning.
    pub cell: Option<(&'a Cell, &'a Outcome)>,
    /// Number of cells with a result, including those of earlier runs.
    pub done: usize,
    /// Number of all cells.
    pub of: usize,
    /// Estimated time of the rest: by the time of the cells that are done, and before the first by a rule of thumb.
    pub left: Duration,
}

/// A line of `results.jsonl`.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    laboratory: String,
    scenario: Scenario,
    wall_seconds: f64,
    #[serde(flatten)]
    outcome: StoredOutcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredOutcome {
    Report(Box<Report>),
    Error(String),
}

const RESULTS: &str = "results.jsonl";

/// Runs the cells that have no report in `directory/results.jsonl` yet, `jobs` at a time, until all are done or
/// `stop` becomes true. A cell that fails has its error as its result, and is tried again by the next run; its files
/// are kept in `directory`.
///
/// # Errors
///
/// Fails if the laboratory is not available at all, or results cannot be written.
pub fn run_sweep(
    sweep: Sweep,
    laboratory: Laboratory,
    jobs: usize,
    directory: &Path,
    stop: &AtomicBool,
    progress: impl FnMut(Progress<'_>),
) -> Result<Results, LabError> {
    run_sweep_with(
        |scenario, directory, stop| crate::run_scenario(scenario, laboratory, directory, stop, |_| {}),
        sweep,
        laboratory,
        jobs,
        directory,
        stop,
        progress,
    )
}

/// Returns a cell's outcome as a line of the results file.
fn result_line(laboratory: &str, cell: &Cell, wall_seconds: f64, outcome: &Outcome) -> std::io::Result<String> {
    let outcome = match outcome.clone() {
        Ok(report) => StoredOutcome::Report(report),
        Err(error) => StoredOutcome::Error(error),
    };
    let line = Line { laboratory: laboratory.to_owned(), scenario: cell.scenario.clone(), wall_seconds, outcome };
    serde_json::to_string(&line).map_err(std::io::Error::from)
}

pub(super) fn run_sweep_with(
    measure: impl Fn(&Scenario, &Path, &AtomicBool) -> Result<Report, LabError> + Sync,
    sweep: Sweep,
    laboratory: Laboratory,
    jobs: usize,
    directory: &Path,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Results, LabError> {
    let path = directory.join(RESULTS);
    let (mut results, mut file) = resume_results(sweep, laboratory, &path)?;
    let cells = results.sweep.cells.clone();
    let todo = cells_without_report(&results, laboratory);
    let of = results.outcomes.len();
    let mut done = of - todo.len();
    let mut estimate = Estimate { laboratory, jobs, left: 0.0, expected: 0.0, took: 0.0 };
    estimate.left = todo.iter().map(|at| estimated_cpu_seconds(&cells[*at].scenario, laboratory)).sum();
    progress(Progress { cell: None, done, of, left: estimate.remaining_time() });

    let workers = jobs.clamp(1, todo.len().max(1));
    let queue = CellQueue { cells: &cells, todo, next: AtomicUsize::new(0), halt: AtomicBool::new(false), directory };
    let mut failed = None;
    std::thread::scope(|scope| {
        let (to, from) = mpsc::channel();
        for _ in 0..workers {
            let (queue, measure, to) = (&queue, &measure, to.clone());
            scope.spawn(move || queue.run_remaining_cells(measure, &to));
        }
        drop(to);
        loop {
            if stop.load(Ordering::Relaxed) {
                queue.halt.store(true, Ordering::Relaxed);
            }
            let (at, outcome, seconds) = match from.recv_timeout(Duration::from_millis(100)) {
                Ok(ended) => ended,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(LabError::Interrupted) => continue,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let written = result_line(&results.laboratory, &cells[at], seconds, &outcome);
            if let Err(error) = written.and_then(|line| file.write_all((line + "\n").as_bytes())) {
                queue.halt.store(true, Ordering::Relaxed);
                failed.get_or_insert(LabError::File { path: path.clone(), error });
                continue;
            }
            done += 1;
            estimate.add_finished_cell(&cells[at].scenario, seconds);
            progress(Progress { cell: Some((&cells[at], &outcome)), done, of, left: estimate.remaining_time() });
            results.outcomes[at] = Some(outcome);
        }
    });
    failed.map_or(Ok(results), Err)
}

/// Reads the results of earlier runs, and opens the file to append more.
fn resume_results(sweep: Sweep, laboratory: Laboratory, path: &Path) -> Result<(Results, File), LabError> {
    let name = laboratory.to_string();
    let (mut known, torn) = read_results_file(path)?;
    let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(LabError::file_error(path))?;
    if torn {
        file.write_all(b"\n").map_err(LabError::file_error(path))?;
    }
    let outcomes = sweep.cells.iter().map(|cell| known.remove(&result_key(&name, &cell.scenario))).collect();
    Ok((Results { sweep, laboratory: name, outcomes, provenance: Provenance::default() }, file))
}

/// Returns the cells that have no report yet, those that take the least time first.
fn cells_without_report(results: &Results, laboratory: Laboratory) -> Vec<usize> {
    let all = results.outcomes.iter().enumerate();
    let mut todo: Vec<(usize, f64)> = all
        .filter(|(_, outcome)| !matches!(outcome, Some(Ok(_))))
        .map(|(at, _)| (at, estimated_cpu_seconds(&results.sweep.cells[at].scenario, laboratory)))
        .collect();
    todo.sort_by(|a, b| a.1.total_cmp(&b.1));
    todo.into_iter().map(|(at, _)| at).collect()
}

/// Estimate of the time that the rest takes. The rule of thumb is corrected by the time of the cells that are done.
struct Estimate {
    laboratory: Laboratory,
    jobs: usize,
    /// Time of the remaining cells by the rule of thumb, in seconds of one processor.
    left: f64,
    /// Time of the cells that are done by the rule of thumb, and as measured.
    expected: f64,
    took: f64,
}

impl Estimate {
    /// Adds a cell that is done.
    fn add_finished_cell(&mut self, scenario: &Scenario, seconds: f64) {
        let cost = estimated_cpu_seconds(scenario, self.laboratory);
        self.left -= cost;
        self.expected += cost;
        self.took += seconds;
    }

    fn remaining_time(&self) -> Duration {
        let correction = if self.expected > 0.0 { self.took / self.expected } else { 1.0 };
        duration_per_job(self.left.max(0.0) * correction, self.jobs)
    }
}

fn duration_per_job(seconds: f64, jobs: usize) -> Duration {
    Duration::try_from_secs_f64(seconds / jobs.max(1) as f64).unwrap_or(Duration::MAX)
}

/// Index of a cell, its outcome, and the seconds that it took.
type EndedCell = (usize, Result<Outcome, LabError>, f64);

/// Cells to be run, shared by the workers.
struct CellQueue<'a> {
    cells: &'a [Cell],
    /// Indices of the cells, in order.
    todo: Vec<usize>,
    next: AtomicUsize,
    /// Flag that ends running cells: when requested, and when a result cannot be written.
    halt: AtomicBool,
    directory: &'a Path,
}

impl CellQueue<'_> {
    /// Runs cells until none is left, and sends the result of each.
    fn run_remaining_cells(
        &self,
        measure: impl Fn(&Scenario, &Path, &AtomicBool) -> Result<Report, LabError>,
        ended: &mpsc::Sender<EndedCell>,
    ) {
        while let Some(&at) = self.todo.get(self.next.fetch_add(1, Ordering::Relaxed))
            && !self.halt.load(Ordering::Relaxed)
        {
            let begun = Instant::now();
            let outcome = run_cell(&measure, &self.cells[at].scenario, self.directory, &self.halt);
            // Set before the result is received, as other cells would begin until then.
            if outcome.is_err() {
                self.halt.store(true, Ordering::Relaxed);
            }
            if ended.send((at, outcome, begun.elapsed().as_secs_f64())).is_err() {
                return;
            }
        }
    }
}

/// Runs one cell in a directory of its own, which is kept if the cell fails. Returns only errors that all cells would
/// have.
fn run_cell(
    measure: impl Fn(&Scenario, &Path, &AtomicBool) -> Result<Report, LabError>,
    scenario: &Scenario,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Outcome, LabError> {
    let own =
        tempfile::Builder::new().prefix("cell-").tempdir_in(directory).map_err(LabError::file_error(directory))?;
    match measure(scenario, own.path(), stop) {
        Ok(mut report) => {
            // A thousand pairs in every cell would be most of the results file.
            report.queue.over_time.clear();
            report.ports.iter_mut().for_each(|port| port.queue.over_time.clear());
            report.timeline = None;
            report.receivers.iter_mut().for_each(|receiver| receiver.queue.over_time.clear());
            Ok(Ok(Box::new(report)))
        }
        Err(error @ (LabError::Interrupted | LabError::Unavailable { .. } | LabError::Kernel(_))) => Err(error),
        Err(error) => Ok(Err(match own.path().read_dir().is_ok_and(|mut files| files.next().is_some()) {
            true => format!("{error} (see {})", own.keep().display()),
            false => error.to_string(),
        })),
    }
}

/// Reads a results file. Returns its outcomes by [`result_key`], and true if its last line has no end. A line that cannot be
/// read, as an interrupted write leaves one, is skipped: its cell is measured again.
fn read_results_file(path: &Path) -> Result<(HashMap<String, Outcome>, bool), LabError> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((HashMap::new(), false)),
        text => text.map_err(LabError::file_error(path))?,
    };
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let outcomes = lines.map(|line| {
        let outcome = match line.outcome {
            // Earlier versions wrote no verdict.
            StoredOutcome::Report(mut report) => {
                report.verdict = report.verdict.take().or_else(|| Some(Verdict::for_report(&report)));
                Ok(report)
            }
            StoredOutcome::Error(error) => Err(error),
        };
        (result_key(&line.laboratory, &line.scenario), outcome)
    });
    let torn = text.last().is_some_and(|byte| *byte != b'\n');
    Ok((outcomes.collect(), torn))
}

fn result_key(laboratory: &str, scenario: &Scenario) -> String {
    // A scenario that was read can always be written.
    format!("{laboratory} {}", serde_json::to_string(scenario).unwrap_or_default())
}

/// Estimates the time of a whole sweep by a rule of thumb.
pub fn estimate_sweep_time(sweep: &Sweep, laboratory: Laboratory, jobs: usize) -> Duration {
    let seconds: f64 = sweep.cells.iter().map(|cell| estimated_cpu_seconds(&cell.scenario, laboratory)).sum();
    duration_per_job(seconds, jobs)
}

/// Estimates the time of a cell here, in seconds of one processor, as measured with two of 2 to 3 GHz: most is spent on
/// packets.
fn estimated_cpu_seconds(scenario: &Scenario, laboratory: Laboratory) -> f64 {
    let seconds = (scenario.warm_up_time() + scenario.measured_time()).as_secs_f64();
    // The number counts packets of 1500 bytes.
    let gigabits = scenario.ceiling_bits_per_second() * 1e-9 * seconds * 1500.0 / f64::from(scenario.network.mtu);
    let hosts = f64::from(scenario.network.senders + scenario.network.receivers);
    match laboratory {
        Laboratory::Virtual => 2.0 + 0.1 * hosts + 10.0 * gigabits,
        Laboratory::Host => 1.0 + 0.1 * hosts + seconds,
        Laboratory::Ns3 => 0.2 + 7.5 * gigabits,
        Laboratory::Model => 0.1 + gigabits,
    }
}
