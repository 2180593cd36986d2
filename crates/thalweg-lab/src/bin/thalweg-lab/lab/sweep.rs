//! `thalweg lab sweep`: every combination of a scenario's lists.

use super::outputs::{OutputPath, Outputs};
use super::{NOTHING_OFFERED, failure, machine_provenance, rfc3339_now, with_kernel_progress};
use crate::bench::{INTERRUPTED, stop_on_signals};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg::terminal::{Failure, Output, outlet};
use thalweg_lab::Laboratory;
use thalweg_lab::kernel::Kernel;
use thalweg_lab::sweep::{self, Progress, Results, Sweep};
use thalweg_text::{FileFormat, format_seconds, wrap_words};

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// A sweep file, or the name of a sweep that comes with Thalweg. Without it, their names
    sweep: Option<String>,
    #[command(flatten)]
    how: How,
    /// Write the results to this file, too; its ending gives the format: .svg (charts), .html (page), .json or .csv
    /// (data), .md (Markdown). A directory, sweep-NAME if none is given, gets results.jsonl (which a later run goes on
    /// from), report.json and report.html. May be given several times
    #[arg(long, value_name = "FILE|DIRECTORY")]
    out: Vec<OutputPath>,
    /// Exit with code 1 if a cell does not carry its offered rate: less than 99 % of it, or an event incomplete. Every
    /// cell needs an interval
    #[arg(long, requires = "sweep")]
    must_carry: bool,
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
    if options.must_carry && asked.cells.iter().any(|cell| cell.scenario.traffic.interval.is_none()) {
        return Err(Failure::Usage(NOTHING_OFFERED.into()));
    }
    let outputs = Outputs::open_all(&options.out)?;
    let out = outputs.directory.clone().unwrap_or_else(|| format!("sweep-{}", asked.name).into());
    let stop = stop_on_signals()?.shared_flag();
    let results = run_sweep_into(asked, options.how, &out, &stop)?;
    let mut output = Output::new();
    match json {
        true => output.json(&results)?,
        false => output.text(&results.summary_text())?,
    }
    output.flush()?;
    for (name, format) in [("report.json", FileFormat::Json), ("report.html", FileFormat::Html)] {
        write_report(&out, name, &results_file(&results, format)?)?;
    }
    outputs.write_files(|format| results_file(&results, format))?;
    let passed = results.has_passed() && !(options.must_carry && results.has_uncarried_cells());
    Ok(match (passed, stop.load(Ordering::Relaxed)) {
        (_, true) => ExitCode::from(INTERRUPTED),
        (true, _) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(1),
    })
}

/// Returns the results in the format of a file.
fn results_file(results: &Results, format: FileFormat) -> Result<String, Failure> {
    match format {
        FileFormat::Svg => results.charts_svg().map_err(Failure::broken),
        FileFormat::Html => results.results_page().map_err(Failure::broken),
        FileFormat::Csv => Ok(results.results_csv()),
        FileFormat::Markdown => Ok(results.results_markdown()),
        FileFormat::Json => serde_json::to_string_pretty(results).map(|text| text + "\n").map_err(Failure::broken),
    }
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
    let laboratory = thalweg_lab::laboratory_title(&how.on.to_string());
    let subject = format!("lab sweep {}, on {laboratory}", asked.name);
    let began = rfc3339_now();
    let results = sweep::run_sweep(asked, how.on, jobs, directory, stop, |progress| {
        outlet::stderr().put_text(progress_line(&names, &progress));
    });
    let results = results.map_err(failure)?;
    Ok(Results { provenance: machine_provenance(&subject, &began), ..results })
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
                Ok(report) => {
                    let sentence = report.verdict.as_ref().map_or("", |verdict| &verdict.sentence);
                    format!("{sentence} {}", format_seconds(report.wall_seconds))
                }
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
