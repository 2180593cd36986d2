//! Records of runs: each number that was given out, and what became of it. One file, to which a line is added with each
//! change; the last line about a run counts.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use thalweg_node::RunKind;
use thalweg_node::service::cut_text;
use thiserror::Error;
use utoipa::ToSchema;

/// Number of runs whose records are kept in memory: the newest.
pub const MAX_RUNS: usize = 1000;

/// Number of notes that a run can have, and the length of all of them, in bytes: clients receive them with each status.
pub const MAX_NOTES: usize = 100;
/// See [`MAX_NOTES`].
pub const MAX_NOTES_BYTES: usize = 64 << 10;
/// Number of reasons that a record keeps, and the longest of them, in bytes.
const MAX_REASONS: usize = 50;
const MAX_REASON_BYTES: usize = 1000;

/// Record of a run. Times are Unix times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RunRecord {
    /// Number of the run.
    pub number: u32,
    /// Kind of the run: `physics` or `test`.
    #[schema(value_type = String)]
    pub kind: RunKind,
    /// Comment that was given at its start.
    pub note: String,
    /// State of the run.
    pub state: RunState,
    /// Reasons why it is incomplete, or failed.
    pub reasons: Vec<String>,
    /// Name of the token with which it was asked for.
    pub asked_by: String,
    /// Time at which it was asked for.
    pub asked_at: Option<f64>,
    /// Time at which it began.
    pub began_at: Option<f64>,
    /// Time at which its end was asked for.
    pub stop_asked_at: Option<f64>,
    /// Time at which its report came.
    pub ended_at: Option<f64>,
    /// Duration of the run in seconds, as the builder reported it.
    pub seconds: Option<f64>,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Judgement on the run.
    pub flag: Option<Flag>,
    /// Notes that were added later.
    pub notes: Vec<Note>,
    /// Directory of the run.
    pub directory: Option<String>,
    /// Name of the process of builder 0 that took it: another one knows nothing of the run.
    pub process: String,
}

/// Reason why a note is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoteError {
    /// There is no record of the run.
    #[error("there is no record of run {0}")]
    NoRun(u32),
    /// The note has no text.
    #[error("text: the note is empty")]
    Empty,
    /// The run has too many notes.
    #[error(
        "run {0} has as many notes as a run can have ({MAX_NOTES}, of {MAX_NOTES_BYTES} bytes together): write further \
         ones into a log book"
    )]
    TooMany(u32),
}

impl RunRecord {
    /// Checks whether there is room for a note.
    ///
    /// # Errors
    /// The note is empty, or the run has too many notes.
    pub fn check_note(&self, text: &str) -> Result<(), NoteError> {
        let bytes: usize = self.notes.iter().map(|note| note.text.len()).sum();
        match text.trim() {
            "" => Err(NoteError::Empty),
            _ if self.notes.len() >= MAX_NOTES || bytes + text.len() > MAX_NOTES_BYTES => {
                Err(NoteError::TooMany(self.number))
            }
            _ => Ok(()),
        }
    }

    /// Sets the reasons, as nodes have sent them: of many, the first ones; of each, the beginning.
    pub fn set_reasons(&mut self, mut reasons: Vec<String>) {
        let count = reasons.len();
        reasons.truncate(MAX_REASONS);
        reasons.iter_mut().for_each(|reason| cut_text(reason, MAX_REASON_BYTES));
        if count > MAX_REASONS {
            reasons.push(format!("and {} more reasons", count - MAX_REASONS));
        }
        self.reasons = reasons;
    }
}

/// State of a run in its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Number given out; the run has not begun.
    #[default]
    Reserved,
    /// Run under way.
    Running,
    /// Run that has ended, with nothing missing.
    Complete,
    /// Run that has ended, with something missing.
    Incomplete,
    /// Run that did not begin.
    Failed,
    /// Run whose builder ended without a report.
    Lost,
}

impl RunState {
    /// Returns whether nothing more happens to the run.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Reserved | Self::Running)
    }
}

/// Judgement on a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flag {
    /// The judgement.
    pub flag: Quality,
    /// Reason for it.
    pub why: String,
    /// Name of the token with which it was given.
    pub by: String,
    /// Time at which it was given.
    pub at: f64,
}

/// Quality of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// To be analysed.
    Good,
    /// Not to be analysed.
    Bad,
    /// Not judged.
    Unknown,
}

/// Note on a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Note {
    /// The text.
    pub text: String,
    /// Name of the token with which it was given.
    pub by: String,
    /// Time at which it was given.
    pub at: f64,
}

/// File of the records of all runs.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: File,
}

impl RecordFile {
    /// Opens the file in a directory, and returns the records in it. Lines that are broken off, as by a crash, are passed
    /// over.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open_records(directory: &Path) -> io::Result<(Self, BTreeMap<u32, RunRecord>)> {
        let path = directory.join("runs.jsonl");
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let lines = text.split(|byte| *byte == b'\n');
        let mut runs: BTreeMap<u32, RunRecord> = lines
            .filter_map(|line| serde_json::from_slice::<RunRecord>(line).ok())
            .map(|record| (record.number, record))
            .collect();
        while runs.len() > MAX_RUNS {
            runs.pop_first();
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            file.write_all(b"\n")?;
        }
        Ok((Self { path, file }, runs))
    }

    /// Adds a record, which takes the place of an earlier one of that run, and brings it to the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_record(&mut self, record: &RunRecord) -> Result<(), String> {
        let mut line = serde_json::to_string(record).unwrap_or_default();
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_reasons_are_bounded_in_number_and_size() {
        let mut record = RunRecord { number: 7, ..RunRecord::default() };
        let note = |length: usize| Note { text: "x".repeat(length), by: "anna".into(), at: 0.0 };
        assert_eq!(record.check_note(" \n"), Err(NoteError::Empty));
        record.notes = vec![note(1); MAX_NOTES - 1];
        assert_eq!(record.check_note("x"), Ok(()));
        record.notes.push(note(1));
        assert_eq!(record.check_note("x"), Err(NoteError::TooMany(7)));
        record.notes = vec![note(MAX_NOTES_BYTES - 4)];
        assert_eq!((record.check_note("four"), record.check_note("fives")), (Ok(()), Err(NoteError::TooMany(7))));
        record.set_reasons(vec!["é".repeat(MAX_REASON_BYTES); MAX_REASONS + 3]);
        assert_eq!((record.reasons.len(), record.reasons[0].len()), (MAX_REASONS + 1, MAX_REASON_BYTES));
        assert_eq!(record.reasons[MAX_REASONS], "and 3 more reasons");
    }

    #[test]
    fn the_last_line_about_a_run_counts_and_a_torn_one_costs_only_itself() {
        let folder = tempfile::tempdir().unwrap();
        let record = |number, state| RunRecord { number, state, ..RunRecord::default() };
        let (mut records, runs) = RecordFile::open_records(folder.path()).unwrap();
        assert!(runs.is_empty());
        records.add_record(&record(7, RunState::Running)).unwrap();
        records.add_record(&record(8, RunState::Failed)).unwrap();
        records.add_record(&record(7, RunState::Complete)).unwrap();
        records.file.write_all(b"{\"number\": 9, \"sta").unwrap();
        let (mut records, _) = RecordFile::open_records(folder.path()).unwrap();
        records.add_record(&record(10, RunState::Lost)).unwrap();
        let (_, runs) = RecordFile::open_records(folder.path()).unwrap();
        let states: Vec<_> = runs.values().map(|run| (run.number, run.state)).collect();
        assert_eq!(states, [(7, RunState::Complete), (8, RunState::Failed), (10, RunState::Lost)]);
    }
}
