//! `thalweg lab sweep`: every combination of a scenario's lists.

use super::{failure, with_kernel_progress};
use crate::bench::{INTERRUPTED, stop_on_signals};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg::terminal::{Failure, Output, outlet};
use thalweg_lab::Laboratory;
use thalweg_lab::kernel::Kernel;
use thalweg_lab::sweep::{self, Progress, Results, Sweep};
use thalweg_text::{format_seconds, wrap_words};

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// A sweep file, or the name of a sweep that comes with Thalweg. Without it, their names
    sweep: Option<String>,
    #[command(flatten)]
    how: How,
    /// Directory of results.jsonl (which a later run goes on from), report.json and report.html. Without it: sweep-NAME
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Only the sample that the file's `[quick]` defines: fewer cells, shorter measurements
    #[arg(long, requires = "sweep")]
    quick: bool,
    /// Only cells with this value of a key, or one of several: delay=1ms, senders=1,2
    #[arg(long, value_name = "KEY=VALUE", requires = "sweep")]
    only: Vec<String>,
}

/// Laboratory of the cells, and number of cells at a time.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct How {
    /// Laboratory that runs the cells: virtual (real TCP under virtual time), host (namespaces of this machine, in real time, as
    /// root), ns3, model
    #[arg(long, default_value = "virtual", value_name = "LABORATORY")]
    pub(crate) on: Laboratory,
    /// Number of cells that run at a time; each takes about one processor. On the host: one, which is not to be disturbed
    #[arg(long, value_name = "NUMBER")]
    pub(crate) jobs: Option<usize>,
}

impl How {
    /// Returns a rough estimate of the time that a complete sweep takes.
    pub(crate) fn estimate_duration(self, of: &Sweep) -> Duration {
        sweep::estimate_sweep_time(of, self.on, self.parallel_jobs().unwrap_or(1))
    }

    fn parallel_jobs(self) -> Result<usize, Failure> {
        match (self.on, self.jobs) {
            (_, Some(0)) => Err(Failure::Usage("--jobs 0: at least one cell at a time".into())),
            (Laboratory::Host, Some(2..)) => {
                Err(Failure::Usage("--jobs: on the host, in real time, cells run one at a time".into()))
            }
            (Laboratory::Host, _) => Ok(1),
            (_, jobs) => Ok(jobs.unwrap_or(2)),
        }
    }
}

pub(super) fn run_sweep(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let Some(name) = &options.sweep else { return list_sweeps(options, json) };
    let mut asked = Sweep::load_by_name(name, options.quick).map_err(Failure::usage)?;
    for only in &options.only {
        asked.select_cells(only).map_err(Failure::usage)?;
    }
    let out = options.out.clone().unwrap_or_else(|| format!("sweep-{}", asked.name).into());
    let stop = stop_on_signals()?.shared_flag();
    let results = run_sweep_into(asked, options.how, &out, &stop)?;
    let mut output = Output::new();
    match json {
        true => output.json(&results)?,
        false => output.text(&results.summary_text())?,
    }
    output.flush()?;
    let all = serde_json::to_string_pretty(&results).map_err(Failure::broken)? + "\n";
    write_report(&out, "report.json", &all)?;
    write_report(&out, "report.html", &results.results_page())?;
    Ok(match (results.has_passed(), stop.load(Ordering::Relaxed)) {
        (_, true) => ExitCode::from(INTERRUPTED),
        (true, _) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(1),
    })
}

/// Runs a sweep into a directory, and reports its progress on standard error.
pub(crate) fn run_sweep_into(asked: Sweep, how: How, directory: &Path, stop: &AtomicBool) -> Result<Results, Failure> {
    let jobs = how.parallel_jobs()?;
    std::fs::create_dir_all(directory).map_err(|error| Failure::Usage(format!("{}: {error}", directory.display())))?;
    if how.on == Laboratory::Virtual {
        // The kernel is built once, and not in the time of the first cells.
        with_kernel_progress(|progress| Kernel::build_or_cached(progress)).map_err(failure)?;
    }
    let names = asked.clone();
    let results = sweep::run_sweep(asked, how.on, jobs, directory, stop, |progress| {
        outlet::stderr().put_text(progress_line(&names, &progress));
    });
    results.map_err(failure)
}

/// Returns a line on the cell that has just ended, and the remaining time.
fn progress_line(sweep: &Sweep, progress: &Progress<'_>) -> String {
    let Progress { cell, done, of, left } = progress;
    let left = if done < of { format!("; about {} left", format_seconds(left.as_secs_f64())) } else { String::new() };
    match cell {
        None => {
            let before = if *done > 0 { format!(", {done} of them done before") } else { String::new() };
            wrap_words(&format!("{}: ", sweep.name), &format!("{of} cells{before}{left}"))
        }
        Some((cell, outcome)) => {
            let what = match outcome {
                Ok(report) => format!(
                    "{:.1} % of the ceiling, {} sent again, {}",
                    100.0 * report.share_of_ceiling,
                    report.retransmissions,
                    format_seconds(report.wall_seconds)
                ),
                Err(error) => error.clone(),
            };
            wrap_words(&format!("{done:4} of {of}: "), &format!("{}: {what}{left}", sweep.describe_cell(cell)))
        }
    }
}

fn list_sweeps(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let all: Vec<Sweep> = sweep::embedded_names()
        .map(|name| Sweep::load_by_name(name, false))
        .collect::<Result<_, _>>()
        .map_err(Failure::broken)?;
    let mut output = Output::new();
    if json {
        let all: Vec<_> = all
            .iter()
            .map(|one| serde_json::json!({ "name": one.name, "title": one.title, "cells": one.cells.len() }))
            .collect();
        output.json(&serde_json::json!({ "sweeps": all }))?;
    } else {
        for one in all {
            let time = format_seconds(options.how.estimate_duration(&one).as_secs_f64().round());
            let text = format!("{} ({} cells, about {time})", one.title, one.cells.len());
            output.text(&wrap_words(&format!("{:<18}", one.name), &text))?;
        }
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn write_report(directory: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = directory.join(name);
    std::fs::write(&path, text).map_err(|error| Failure::Broken(format!("writing {}: {error}", path.display())))
}
