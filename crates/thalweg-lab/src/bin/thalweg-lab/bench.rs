//! `thalweg bench`: measures a leg of the path, shows the progress, and writes the results to files.

mod compare;
pub(crate) mod files;
mod peers;
pub(crate) mod show;

use files::{Files, write_targets};
use show::Show;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::process::ExitCode;
use thalweg::terminal::{Failure, outlet};
use thalweg_bench::{BenchError, Plan, Report, Stop, net, render};
use thalweg_text::FileFormat;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    files: Files,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(flatten)]
    Measure(Box<Plan>),
    /// Be the other end of latency, bandwidth and under-load, for other hosts
    Listen(net::listen::Options),
    /// The same work by Thalweg and by the programs that people use today, in turns
    Peers(thalweg_bench::peers::Options),
    /// Differences between two reports
    Compare(compare::Options),
}

pub(crate) fn run_bench(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    match &options.command {
        Command::Measure(plan) => run_measurement(plan, &options.files, json),
        Command::Listen(options) => serve_measurements(options),
        Command::Peers(pairings) => peers::run_peers(pairings, &options.files, json),
        Command::Compare(reports) => compare::run_compare(reports, &options.files, json),
    }
}

fn serve_measurements(options: &net::listen::Options) -> Result<ExitCode, Failure> {
    if options.local {
        // An interrupt from the terminal reaches both ends. The end that measures decides, and this one ends with it.
        flag::register(SIGINT, Stop::default().shared_flag()).map_err(Failure::broken)?;
    }
    net::listen::serve_asking_ends(options, |line| outlet::stderr().put_text(format!("{line}\n"))).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// Exit code of a program that was interrupted: 128 and the number of SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

fn run_measurement(plan: &Plan, files: &Files, json: bool) -> Result<ExitCode, Failure> {
    let open = files.open_targets()?;
    let stop = stop_on_signals()?;
    let mut show = Show::new(plan, json, open.is_empty(), stop.clone());
    let report = thalweg_bench::measure_plan(plan, command_line(), &mut show, &stop);
    let interrupted = stop.is_requested() && !show.has_no_reader();
    let report = match report {
        Ok(report) => report,
        Err(BenchError::Stopped) if interrupted => return Ok(ExitCode::from(INTERRUPTED)),
        Err(error) => return Err(failure(error)),
    };
    let shown = show.finish_display(&report);
    let written = write_targets(open, |format| report_text(&report, format));
    shown.and(written)?;
    let failed = report.points.iter().any(|point| point.error.is_some());
    Ok(match interrupted {
        true => ExitCode::from(INTERRUPTED),
        false if failed => ExitCode::from(1),
        false => ExitCode::SUCCESS,
    })
}

/// Returns a report in a format.
fn report_text(report: &Report, format: FileFormat) -> Result<String, Failure> {
    match format {
        FileFormat::Json => serde_json::to_string_pretty(report).map(|text| text + "\n").map_err(Failure::broken),
        FileFormat::Csv => Ok(render::report_csv(report)),
        FileFormat::Markdown => Ok(render::report_markdown(report)),
        FileFormat::Svg => render::report_svg(report).map_err(Failure::broken),
        FileFormat::Html => render::report_html(report).map_err(Failure::broken),
    }
}

/// Returns the command line as it was given, for the report.
pub(crate) fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Handles signals: the first interrupt ends the work and keeps the results so far, the second ends the program at once.
pub(crate) fn stop_on_signals() -> Result<Stop, Failure> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), stop.shared_flag()).map_err(Failure::broken)?;
        flag::register(signal, stop.shared_flag()).map_err(Failure::broken)?;
    }
    Ok(stop)
}

/// Returns the failure of a command whose measurement failed.
pub(crate) fn failure(error: BenchError) -> Failure {
    if error.is_usage_error() { Failure::usage(error) } else { Failure::broken(error) }
}
