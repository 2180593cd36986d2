//! Places of runs: the directories that a RUN on the command line stands for, and those that belong together.

use crate::terminal::Failure;
use serde::Serialize;
use std::path::{Path, PathBuf};
use thalweg_core::build::Ledger;
use thalweg_store::{Run, RunInfo, StoreError, builder_directories};

/// Directory of a run that was named on the command line.
#[derive(Debug, Serialize)]
pub(super) struct Named {
    pub(super) path: PathBuf,
    /// True if the whole run was named, without a builder, instead of this directory.
    #[serde(skip)]
    pub(super) as_whole: bool,
}

/// Returns the directories that each RUN stands for, each one once. A run of several builders may be named without its
/// builder, and stands for the directories of all of them.
pub(super) fn run_directories(runs: &[PathBuf]) -> Result<Vec<Named>, Failure> {
    let mut found: Vec<Named> = Vec::new();
    for run in runs {
        let several = builder_directories(run);
        let as_whole = !several.is_empty();
        for path in if as_whole { several } else { vec![containing_directory(run)] } {
            match RunInfo::read_run_json(&path) {
                Err(error @ (StoreError::NotARun(_) | StoreError::Version { .. })) => {
                    return Err(explained_error(run, &error));
                }
                // The command reports other errors of the directory.
                _ => match found.iter_mut().find(|named| named.path == path) {
                    Some(named) => named.as_whole |= as_whole,
                    None => found.push(Named { path, as_whole }),
                },
            }
        }
    }
    Ok(found)
}

/// Opens the run in this directory.
pub(super) fn open_run(directory: &Path) -> Result<Run, Failure> {
    Run::open(directory).map_err(|error| explained_error(directory, &error))
}

/// Returns the error for `path`, with the remedy.
pub(super) fn explained_error(path: &Path, error: &StoreError) -> Failure {
    let shown = path.display();
    match error {
        StoreError::NotARun(_) if is_url(path) => Failure::Usage(format!(
            "{shown} is on a server: fetch it with `thalweg pull {shown}`, or mount the server with `thalweg mount`"
        )),
        StoreError::NotARun(_) if !path.exists() => {
            Failure::Usage(format!("{shown}: no such directory; `thalweg ls DIR` lists the runs in DIR"))
        }
        StoreError::NotARun(_) if path.is_file() => Failure::Usage(format!(
            "{shown} is a file in a directory that is not a run: it has no run.json; name a run's directory"
        )),
        StoreError::NotARun(_) if thalweg_store::list_runs(path).is_ok_and(|runs| !runs.is_empty()) => {
            Failure::Usage(format!("{shown} is not a run, but contains runs: `thalweg ls {shown}` lists them"))
        }
        StoreError::NotARun(_) | StoreError::Version { .. } => Failure::usage(error),
        _ => Failure::broken(error),
    }
}

/// A run of several builders, with those of its directories that were named.
#[derive(Debug)]
pub(super) struct Together {
    /// Number of the run.
    pub(super) run: u32,
    /// Number of its builders.
    pub(super) builders: u32,
    /// Builders whose directories were named, in ascending order.
    pub(super) present: Vec<u32>,
    /// Indices of their directories among those that were named, in the same order.
    pub(super) members: Vec<usize>,
}

impl Together {
    /// Returns the runs of several builders that were named as a whole, or by more than one directory.
    pub(super) fn find_split_runs<'a>(named: impl Iterator<Item = (&'a Named, &'a RunInfo)>) -> Vec<Self> {
        let mut runs: Vec<(&Path, Self)> = Vec::new();
        let mut whole = Vec::new();
        for (place, (Named { path, as_whole }, info)) in named.enumerate().filter(|(_, (_, info))| info.builders > 1) {
            whole.extend(as_whole.then_some(place));
            let parent = path.parent().unwrap_or(Path::new(""));
            let known = runs.iter_mut().find(|(there, run)| {
                (*there, run.run, run.builders) == (parent, info.run, info.builders)
                    && !run.present.contains(&info.builder)
            });
            match known {
                Some((_, run)) => {
                    let at = run.present.partition_point(|builder| *builder < info.builder);
                    run.present.insert(at, info.builder);
                    run.members.insert(at, place);
                }
                None => {
                    let (run, builders) = (info.run, info.builders);
                    runs.push((parent, Self { run, builders, present: vec![info.builder], members: vec![place] }));
                }
            }
        }
        let runs = runs.into_iter().map(|(_, run)| run);
        runs.filter(|run| run.members.len() > 1 || run.members.iter().any(|at| whole.contains(at))).collect()
    }

    /// Returns true if all builders' directories are among those that were named.
    pub(super) fn has_all_builders(&self) -> bool {
        self.present.len() as u64 == u64::from(self.builders)
    }

    /// Returns the name of the run in a heading.
    pub(super) fn heading_title(&self) -> String {
        let Self { run, builders, .. } = self;
        match self.has_all_builders() {
            true => format!("run {run}, all {builders} builders together"),
            false => {
                let present: Vec<String> = self.present.iter().map(ToString::to_string).collect();
                let noun = if present.len() == 1 { "builder" } else { "builders" };
                format!("run {run}, only {noun} {} of {builders}", present.join(", "))
            }
        }
    }
}

/// Reads the final counters in `run.json`. A run that is open has none.
pub(super) fn read_ledger(info: &RunInfo) -> Result<Ledger, serde_json::Error> {
    let mut ledger = Ledger::default();
    if !info.ledger.is_null() {
        // Sources are added one by one, so that their sum is computed here.
        let sources = serde_json::from_value(info.ledger.clone())?;
        ledger.merge_ledger(&Ledger { sources, ..Ledger::default() });
    }
    Ok(ledger)
}

/// Returns the directory that holds `path` if that is a file, as [`Run::open`] does; otherwise `path`.
pub(super) fn containing_directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if path.is_file() && parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) if path.is_file() => parent.to_owned(),
        _ => path.to_owned(),
    }
}

/// Returns true for the address of a run on a server.
pub(super) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(thalweg_remote::is_run_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_run_are_found_among_others() {
        let info = |run, builder, builders| {
            let text = serde_json::json!({
                "format": "thalweg-run", "version": 1, "run": run, "builder": builder, "builders": builders,
                "state": "COMPLETE", "began": 0, "ended": 1, "writer": {}, "recorder": {},
            });
            serde_json::from_value::<RunInfo>(text).unwrap()
        };
        let named = |path: &str, as_whole| Named { path: path.into(), as_whole };
        let named = [
            (named("runs/run-000001", false), info(1, 0, 1)),
            (named("runs/run-000042-b1", false), info(42, 1, 3)),
            (named("other/run-000042-b2", false), info(42, 2, 3)),
            (named("runs/run-000042-b0", false), info(42, 0, 3)),
            (named("runs/run-000043-b0", false), info(43, 0, 2)),
            (named("runs/run-000044-b0", true), info(44, 0, 2)),
        ];
        let runs = Together::find_split_runs(named.iter().map(|(named, info)| (named, info)));
        let found: Vec<_> = runs.iter().map(|run| (run.heading_title(), &run.members[..])).collect();
        let expected = [
            ("run 42, only builders 0, 1 of 3".to_owned(), &[3, 1][..]),
            ("run 44, only builder 0 of 2".to_owned(), &[5][..]),
        ];
        assert_eq!(found, expected);
    }
}
