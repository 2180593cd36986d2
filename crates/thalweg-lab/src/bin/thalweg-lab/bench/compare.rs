//! `thalweg bench compare`: the differences between two reports.

use super::files::{Files, write_targets};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg::terminal::{Failure, Output};
use thalweg_bench::compare::{Comparison, compare_reports, read_report};
use thalweg_text::FileFormat;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The report to compare with, as `--out FILE.json` wrote it
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The report to compare
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// End with exit code 1 if a point of B is worse than in A by more than so much, or failed
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_above: Option<f64>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Comparison(&'a Comparison),
}

pub(crate) fn run_compare(options: &Options, files: &Files, json: bool) -> Result<ExitCode, Failure> {
    let open = files.open_targets()?;
    if open.iter().any(|target| !matches!(target.format(), FileFormat::Json | FileFormat::Markdown)) {
        return Err(Failure::Usage("a comparison is written as .json or .md".to_owned()));
    }
    let (a, b) = (read_report(&options.a).map_err(Failure::usage)?, read_report(&options.b).map_err(Failure::usage)?);
    let comparison = compare_reports(&a, &b).map_err(Failure::usage)?;
    let mut out = Output::new();
    match json {
        true => out.json(&Line::Comparison(&comparison)),
        false => out.text(&comparison.format_text()),
    }?;
    out.flush()?;
    write_targets(open, |format| match format {
        FileFormat::Json => serde_json::to_string_pretty(&comparison).map(|text| text + "\n").map_err(Failure::broken),
        _ => Ok(comparison.format_markdown()),
    })?;
    let worse = options.fail_above.is_some_and(|percent| comparison.is_worse_than(percent));
    Ok(ExitCode::from(u8::from(worse)))
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("write percent, such as 5 or 2.5".to_owned()),
    }
}
