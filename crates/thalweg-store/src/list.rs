//! Lists the runs of a directory.

use crate::info::{FILE_NAME, check_writer_life};
use crate::segment::parse_segment_number;
use crate::{RunInfo, RunState, StoreError, WriterLife, run_directory_name};
use serde::Serialize;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use thalweg_wire::RunNumber;

/// Entry of a list of runs. Only `run.json` is read, no segment.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Directory of the run.
    pub path: PathBuf,
    /// Number of the run.
    pub run: u32,
    /// Number of the builder whose directory it is, in a run with several.
    pub builder: u32,
    /// Number of bytes in its segment files.
    pub bytes: u64,
    /// Status of the writer of an open run; `None` for a run that has ended.
    pub writer: Option<WriterLife>,
    /// Contents of `run.json`; `None` if it cannot be read.
    pub info: Option<RunInfo>,
    /// Reason why `run.json` cannot be read.
    pub error: Option<String>,
    /// Description of the damage, as far as it shows without reading a segment.
    pub damage: Option<String>,
}

impl Listed {
    /// Returns the run's state in a word or two for display: `COMPLETE`, `OPEN, live`, `BROKEN`.
    pub fn state_text(&self) -> &'static str {
        match &self.info {
            None => "BROKEN",
            Some(_) if self.damage.is_some() => "DAMAGED",
            Some(info) => run_state_text(info.state, self.writer),
        }
    }

    /// Returns whether the name of the directory is that of a run with a number, `run-000042` or `run-000042-b1`, and
    /// not another one, such as that of a copy.
    pub fn has_numbered_name(&self) -> bool {
        self.path.file_name().and_then(|name| name.to_str()).and_then(parse_directory_name).is_some()
    }

    /// Returns whether both are directories of one run of several builders.
    fn is_of_same_run(&self, other: &Self) -> bool {
        if !self.has_numbered_name() || !other.has_numbered_name() {
            return false;
        }
        let builders = self.builder_count_if_several();
        builders.is_some() && (self.run, builders) == (other.run, other.builder_count_if_several())
    }

    /// Returns the number of builders in the run; `None` if there is one, or the number cannot be read.
    fn builder_count_if_several(&self) -> Option<u32> {
        self.info.as_ref().map(|info| info.builders).filter(|builders| *builders > 1)
    }
}

/// Returns the state of a run whose `run.json` can be read, in a word or two.
pub fn run_state_text(state: RunState, writer: Option<WriterLife>) -> &'static str {
    match (state, writer) {
        (RunState::Open, Some(WriterLife::Writing)) => "OPEN, live",
        (RunState::Open, Some(WriterLife::Gone)) => "OPEN, died",
        (RunState::Open, _) => "OPEN",
        (RunState::Complete, _) => "COMPLETE",
        (RunState::Incomplete, _) => "INCOMPLETE",
    }
}

/// Returns the runs in `directory`, in ascending order of their numbers: all directories with a `run.json`, except
/// hidden ones. Copies and salvaged runs may have any name; of the same number, they are after `run-000042`.
///
/// # Errors
/// If the directory itself cannot be read. A directory with the name of a run that cannot be read is listed, with the
/// reason. One with another name is left out then, since its `run.json` may be that of another program.
pub fn list_runs(directory: &Path) -> Result<Vec<Listed>, StoreError> {
    let entries = std::fs::read_dir(directory).map_err(StoreError::io_error("reading", directory))?;
    let mut runs = Vec::new();
    for entry in entries {
        let entry = entry.map_err(StoreError::io_error("reading", directory))?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let numbered = name.to_str().and_then(parse_directory_name);
        let path = entry.path();
        let (info, error) = match (RunInfo::read_run_json(&path), numbered) {
            (Ok(info), _) => (Some(info), None),
            // Created just now, or not a run.
            (Err(StoreError::NotARun(_)), _) | (Err(_), None) => continue,
            (Err(error), Some(_)) => (None, Some(error.to_string())),
        };
        let named_by_file = info.as_ref().map(|info| (RunNumber(info.run), info.builder));
        let Some((run, builder)) = numbered.or(named_by_file) else { continue };
        let open = info.as_ref().is_some_and(|info| info.state == RunState::Open);
        let writer = open.then(|| check_writer_life(&path));
        let (segments, bytes) = count_segments(&path);
        let damage = info.as_ref().and_then(|info| describe_damage(info, segments, bytes));
        runs.push(Listed { bytes, path, run: run.0, builder, writer, info, error, damage });
    }
    runs.sort_by_cached_key(|listed| (listed.run, !listed.has_numbered_name(), listed.builder, listed.path.clone()));
    Ok(runs)
}

/// Returns the same runs, with one entry for all directories of a run of several builders. A directory among them whose
/// `run.json` cannot be read keeps an entry of its own.
pub fn combine_builder_directories(listed: Vec<Listed>) -> Vec<Listed> {
    let mut runs: Vec<Vec<Listed>> = Vec::new();
    for one in listed {
        match runs.last_mut().filter(|run| run.last().is_some_and(|last| last.is_of_same_run(&one))) {
            Some(run) => run.push(one),
            None => runs.push(vec![one]),
        }
    }
    runs.into_iter().filter_map(combine_parts).collect()
}

/// Returns one entry for the parts of a run that several builders wrote.
fn combine_parts(parts: Vec<Listed>) -> Option<Listed> {
    let infos: Vec<&RunInfo> = parts.iter().filter_map(|part| part.info.as_ref()).collect();
    let is_numbered = parts.first().is_some_and(Listed::has_numbered_name);
    let several = is_numbered && infos.first().is_some_and(|info| info.builders > 1);
    let info = if several { RunInfo::combine_parts(&infos) } else { infos.first().map(|info| (*info).clone()) };
    let writer = WriterLife::combined_status(parts.iter().filter_map(|part| part.writer));
    let bytes = parts.iter().map(|part| part.bytes).sum();
    let damage = parts.iter().find_map(|part| part.damage.clone());
    let first = parts.into_iter().next()?;
    let path =
        if several { first.path.with_file_name(run_directory_name(RunNumber(first.run), 0, 1)) } else { first.path };
    Some(Listed { path, bytes, writer, info, damage, ..first })
}

/// Returns the run and builder in the name of a run's directory, `run-000042` or `run-000042-b1`.
pub(crate) fn parse_directory_name(name: &str) -> Option<(RunNumber, u32)> {
    let rest = name.strip_prefix("run-")?;
    let (run, builder) = match rest.split_once("-b") {
        Some((run, builder)) => (run, builder.parse().ok()?),
        None => (rest, 0),
    };
    let digits = run.len() >= 6 && run.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| run.parse().ok()).flatten().map(|run| (RunNumber(run), builder))
}

/// Returns the directories of all builders of the run `run-000042`, in ascending order of builders; none if this path
/// itself exists.
pub fn builder_directories(run: &Path) -> Vec<PathBuf> {
    let Some(name) = run.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let names_whole_run = !name.contains("-b") && parse_directory_name(name).is_some();
    if !names_whole_run || run.symlink_metadata().is_ok() {
        return Vec::new();
    }
    let parent = run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut parts: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let file_name = entry.file_name();
        let Some(part) = file_name.to_str().filter(|part| part.strip_prefix(name).is_some_and(|b| b.starts_with("-b")))
        else {
            continue;
        };
        // The path as the caller wrote it, not as it was searched for.
        let path = run.with_file_name(part);
        let builder = parse_directory_name(part).map(|(_, builder)| builder);
        parts.extend(builder.filter(|_| path.join(FILE_NAME).exists()).map(|builder| (builder, path)));
    }
    parts.sort();
    parts.into_iter().map(|(_, path)| path).collect()
}

/// Returns the number of segment files, and the number of bytes in them.
fn count_segments(path: &Path) -> (u32, u64) {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let segments = entries.filter(|entry| entry.file_name().to_str().and_then(parse_segment_number).is_some());
    let files = segments.filter_map(|entry| std::fs::metadata(entry.path()).ok()).filter(Metadata::is_file);
    files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.len()))
}

fn describe_damage(info: &RunInfo, segments: u32, bytes: u64) -> Option<String> {
    let RunInfo { totals, state, .. } = info;
    let less = match state {
        RunState::Open => None,
        _ if segments < totals.segments => {
            Some(format!("only {segments} of its {} segment files exist", totals.segments))
        }
        _ if bytes < totals.bytes => {
            Some(format!("its segment files have {bytes} bytes, fewer than its blocks with {} bytes", totals.bytes))
        }
        _ => None,
    };
    less.or_else(|| info.find_contradictions().into_iter().next().map(|found| format!("run.json: {found}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_are_read_as_they_are_written() {
        for (run, builder, builders) in [(0, 0, 1), (42, 0, 3), (42, 2, 3), (u32::MAX, 0, 1)] {
            let name = run_directory_name(RunNumber(run), builder, builders);
            assert_eq!(parse_directory_name(&name), Some((RunNumber(run), builder)), "{name}");
        }
        for name in ["run-42", "run-", "run-000042-b", "run-000042x", "run-+00042", "walk-000042", "run-99999999999"] {
            assert_eq!(parse_directory_name(name), None, "{name}");
        }
    }
}
