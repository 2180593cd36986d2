//! `thalweg export`: a run as a file of another format. The exporter is a part of the Python package, which this program
//! becomes.

use crate::terminal::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use thalweg_wire::EventRange;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Formats:
  nexus    an HDF5 file with an NXdetector for each source: DAWN, silx, NeXpy
  hdf5     the same file, named .h5
  sigmf    a folder with a recording for each source
  parquet  a folder of tables, a row for each fragment: pandas, DuckDB
  zarr     a folder of arrays (Zarr v3): xarray, Dask
  root     a folder of ROOT files with an RNTuple for each source
  csv      a folder of text tables, a row for each fragment

Fragments that are missing or damaged are not among the data: each export lists \
them, with the reason. Until it is finished the export is PATH.part; the same \
command continues it, whatever ended it.

Examples:
  thalweg export runs/run-000042 --to nexus
  thalweg export runs/run-000042 --to parquet --source camera --event 100..200
  thalweg export http://daq-0:8042/runs/42 --to zarr --out /data/42.zarr

It needs Python with the package: pip install 'thalweg[export]'.

Exit code: 0; 1 where something could not be read, or the export could not be \
written; 2 where there is no such run, event or source, or PATH is there already; 130 \
where it was interrupted.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042, or its URL on a data server
    #[arg(value_name = "RUN")]
    run: OsString,
    /// Format of the export
    #[arg(long, value_name = "FORMAT")]
    to: Format,
    /// File or folder to write; without it run-000042.nxs and the like, in the working directory
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Only this event, or those from A on and before B; A or B may be left out
    #[arg(long, alias = "events", value_name = "E|A..B")]
    event: Option<EventRange>,
    /// Only fragments of this source, by its name or as 1.0; several with commas between
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    source: Vec<String>,
    /// Compress the data; not with sigmf and csv
    #[arg(long, value_name = "HOW", default_value = "none")]
    compression: Compression,
    /// Replace what is at PATH, and begin a partial export anew that has other options
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

/// Becomes the exporter. Returns only if there is none.
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

/// Returns a range in the form in which it is parsed.
fn range_text(range: EventRange) -> String {
    match range {
        EventRange { first, last } if first == last => first.to_string(),
        EventRange { first, last: u64::MAX } => format!("{first}.."),
        EventRange { first, last } => format!("{first}..{}", last + 1),
    }
}

/// Returns the Python that has the package: the one beside this program, as where both are of a wheel, or else the one
/// in `PATH`.
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
        "export needs the Python package of Thalweg, which {} does not have: pip install 'thalweg[export]'",
        tried.join(" or ")
    )))
}

fn has_exporter(python: &Path) -> bool {
    let mut probe = Command::new(python);
    probe.args([OsStr::new("-c"), OsStr::new(PROBE)]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

const PYTHON: &str = "python3";
/// Modules are not looked for in the working directory, where files of any name may be.
const PROBE: &str = "import sys; sys.path = [p for p in sys.path if p]; import thalweg.export";
const START: &str = "import sys; sys.path = [p for p in sys.path if p]; \
                     from thalweg.export.__main__ import main; sys.exit(main('thalweg export'))";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_handed_on_as_it_was_given() {
        for text in ["7", "7..10", "7..", "0..18446744073709551615"] {
            let range: EventRange = text.parse().expect("a range");
            assert_eq!(range_text(range), text);
        }
        assert_eq!(range_text("..10".parse().expect("a range")), "0..10");
    }
}
