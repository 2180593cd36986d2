//! `thalweg export`: export of a run to another format. Replaces this process by the exporter of the Python package.

use crate::terminal::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use thalweg_wire::EventRange;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Formats:
  nexus    an HDF5 file with one NXdetector per source: DAWN, silx, NeXpy
  hdf5     the same file with the suffix .h5
  sigmf    a folder with one recording per source
  parquet  a folder of tables with one row per fragment: pandas, DuckDB
  zarr     a folder of arrays (Zarr v3): xarray, Dask
  root     a folder of ROOT files with one RNTuple per source
  csv      a folder of text tables with one row per fragment

Missing and damaged fragments are not part of the data: the export lists them \
with the reason. Until the export is complete, it is the folder PATH.part; run \
the same command again to continue an interrupted export.

Examples:
  thalweg export runs/run-000042 --to nexus
  thalweg export runs/run-000042 --to parquet --source camera --event 100..200
  thalweg export http://daq-0:8042/runs/42 --to zarr --out /data/42.zarr

Requires Python with the package thalweg: pip install 'thalweg[export]'.

Exit code: 0; 1 if the run cannot be read or is damaged, or the export cannot be \
written; 2 if the run, event or source does not exist, or PATH already exists; 130 \
after an interrupt.")]
pub(crate) struct Options {
    /// Directory of a run, such as runs/run-000042, or its URL on a data server
    #[arg(value_name = "RUN")]
    run: OsString,
    /// Format of the export
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// File or folder to write; the default is the run's number in the working directory, such as run-000042.nxs
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Only this event, or those from A up to but not including B; A or B can be omitted
    #[arg(long, alias = "events", value_name = "E|A..B")]
    event: Option<EventRange>,
    /// Only fragments of this source, by name or id such as 1.0; separate several by commas
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    source: Vec<String>,
    /// Compression of the data; sigmf and csv have none
    #[arg(long, value_name = "METHOD", default_value = "none")]
    compression: Compression,
    /// Replace PATH if it exists, and discard a partial export of other data or options
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    Nexus,
    Hdf5,
    Sigmf,
    Parquet,
    Zarr,
    Root,
    Csv,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Compression {
    None,
    Gzip,
}

/// Replaces this process by the exporter. Returns only if that fails.
pub(crate) fn run_export(options: &Options, json: bool, quiet: bool) -> Result<ExitCode, Failure> {
    let python = find_python()?;
    let error = Command::new(&python).arg("-c").arg(START).args(exporter_arguments(options, json, quiet)).exec();
    Err(Failure::broken(format!("{}: {error}", python.display())))
}

fn exporter_arguments(options: &Options, json: bool, quiet: bool) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--to".into(), value_name(options.to).into()];
    if let Some(out) = &options.out {
        words.extend(["--out".into(), out.into()]);
    }
    if let Some(range) = options.event {
        words.push(format!("--event={}", range_text(range)).into());
    }
    for source in &options.source {
        words.push(format!("--source={source}").into());
    }
    words.push(format!("--compression={}", value_name(options.compression)).into());
    for (flag, is_set) in [("--force", options.force), ("--json", json), ("--quiet", quiet)] {
        if is_set {
            words.push(flag.into());
        }
    }
    words.extend(["--".into(), options.run.clone()]);
    words
}

fn value_name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the text from which a range is parsed.
fn range_text(range: EventRange) -> String {
    match range {
        EventRange { first, last } if first == last => first.to_string(),
        EventRange { first, last: u64::MAX } => format!("{first}.."),
        EventRange { first, last } => format!("{first}..{}", last + 1),
    }
}

/// Returns the path of a Python that has the package: next to this program, as installed by pip, or else in `PATH`.
fn find_python() -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(PYTHON));
    let candidates = beside.filter(|python| python.exists()).into_iter().chain([PathBuf::from(PYTHON)]);
    let mut tried = Vec::new();
    for python in candidates {
        if has_exporter(&python) {
            return Ok(python);
        }
        tried.push(python.display().to_string());
    }
    Err(Failure::Usage(format!(
        "export requires the Python package thalweg, which {} does not have: pip install 'thalweg[export]'",
        tried.join(" or ")
    )))
}

fn has_exporter(python: &Path) -> bool {
    let mut probe = Command::new(python);
    probe.args([OsStr::new("-c"), OsStr::new(PROBE)]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Name of the Python interpreter.
const PYTHON: &str = "python3";
/// Program that succeeds if the package is installed. The working directory is removed from the module path, since it
/// may contain files with the names of modules.
const PROBE: &str = "import sys; sys.path = [p for p in sys.path if p]; import thalweg.export";
/// Program that runs the exporter.
const START: &str = "import sys; sys.path = [p for p in sys.path if p]; \
                     from thalweg.export.__main__ import main; sys.exit(main('thalweg export'))";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_texts_are_those_from_which_the_ranges_were_parsed() {
        for text in ["7", "7..10", "7..", "0..18446744073709551615"] {
            let range: EventRange = text.parse().expect("a range");
            assert_eq!(range_text(range), text);
        }
        assert_eq!(range_text("..10".parse().expect("a range")), "0..10");
    }
}
