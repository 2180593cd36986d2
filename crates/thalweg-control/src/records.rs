//! Records of runs: each number that was given out, and what became of it. One file, to which a line is added with each
//! change; the lines about a run are merged.

use serde::{Deserialize, Serialize};
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thalweg_node::RunKind;
use thalweg_node::service::cut_text;
use thiserror::Error;
use utoipa::ToSchema;

/// Number of runs whose records are kept in memory: the newest.
pub const MAX_RUNS: usize = 1000;

/// Number of bytes of the file that are read at a time.
const MAX_READ_BYTES: u64 = 4 << 20;
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
    /// Names of the sources that were left out.
    pub left_out: Vec<String>,
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

impl RunRecord {
    /// Returns the record of the same run, as it is after what is in another one of it, too. The order in which records
    /// are merged makes no difference.
    pub fn merge(&self, other: &Self) -> Self {
        let asked = if self.asked_rank() >= other.asked_rank() { self } else { other };
        let ended = if self.end_rank() >= other.end_rank() { self } else { other };
        let mut notes: Vec<Note> = self.notes.iter().chain(&other.notes).cloned().collect();
        notes.sort_by(|one, other| one.rank().partial_cmp(&other.rank()).unwrap_or(Ordering::Equal));
        notes.dedup();
        Self {
            number: self.number.max(other.number),
            kind: asked.kind,
            note: asked.note.clone(),
            left_out: asked.left_out.clone(),
            asked_by: asked.asked_by.clone(),
            asked_at: asked.asked_at,
            began_at: earlier(self.began_at, other.began_at),
            stop_asked_at: earlier(self.stop_asked_at, other.stop_asked_at),
            flag: [&self.flag, &other.flag].into_iter().flatten().max_by(|one, other| one.cmp_age(other)).cloned(),
            notes,
            process: self.process.clone().max(other.process.clone()),
            ..ended.clone()
        }
    }

    /// Returns the record of the run, which did not begin.
    pub fn failed(&self, reason: &str) -> Self {
        let mut record = Self { state: RunState::Failed, ended_at: self.asked_at, ..self.clone() };
        record.reasons.push(reason.to_owned());
        record
    }

    /// Returns the rank of what is known of the request for it; the highest counts.
    fn asked_rank(&self) -> impl Ord {
        let asked_at = self.asked_at.map(|time| Reverse(time.to_bits()));
        (asked_at, self.asked_by.clone(), self.note.clone(), self.left_out.clone(), self.kind == RunKind::Test)
    }

    /// Returns the rank of what is known of its end; the highest counts.
    fn end_rank(&self) -> impl Ord {
        let times = [self.ended_at, self.seconds].map(|time| time.map(f64::to_bits));
        let counts = [self.events, self.incomplete, self.bytes];
        (self.state.rank(), times, counts, self.reasons.clone(), self.directory.clone())
    }
}

/// Returns the earlier of two times, as far as they are known.
fn earlier(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    [one, other].into_iter().flatten().min_by(f64::total_cmp)
}

impl RunState {
    /// Returns the rank of the state: a run goes through them in this order. A start that took too long may have led to a
    /// run all the same.
    fn rank(self) -> u8 {
        match self {
            Self::Reserved => 0,
            Self::Failed => 1,
            Self::Running => 2,
            Self::Lost => 3,
            Self::Incomplete => 4,
            Self::Complete => 5,
        }
    }

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

impl Flag {
    fn cmp_age(&self, other: &Self) -> Ordering {
        let ages = self.at.total_cmp(&other.at);
        ages.then_with(|| (self.flag as u8, &self.why, &self.by).cmp(&(other.flag as u8, &other.why, &other.by)))
    }
}

impl Note {
    fn rank(&self) -> (f64, &str, &str) {
        (self.at, &self.text, &self.by)
    }
}

/// File of the records of all runs. Several services can add to it.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: File,
    /// Length of what was read.
    read_bytes: u64,
}

impl RecordFile {
    /// Opens the file in a directory, and returns the records in it. Lines that are broken off, as by a crash, are passed
    /// over.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open_records(directory: &Path) -> io::Result<(Self, BTreeMap<u32, RunRecord>)> {
        let path = directory.join("runs.jsonl");
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(&path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        if !text.is_empty() && !text.ends_with(b"\n") {
            file.write_all(b"\n")?;
        }
        let mut runs: BTreeMap<u32, RunRecord> = BTreeMap::new();
        for record in parse_lines(&text) {
            let merged = runs.get(&record.number).map_or_else(|| record.clone(), |run| run.merge(&record));
            runs.insert(record.number, merged);
            if runs.len() > MAX_RUNS {
                runs.pop_first();
            }
        }
        Ok((Self { path, file, read_bytes: text.len() as u64 }, runs))
    }

    /// Returns the records that were added since the last call, by this service or another one. A file that cannot be
    /// read has none.
    pub fn added_records(&mut self) -> Vec<RunRecord> {
        let mut text = Vec::new();
        let read = self.file.seek(SeekFrom::Start(self.read_bytes));
        if read.and_then(|_| Read::by_ref(&mut self.file).take(MAX_READ_BYTES).read_to_end(&mut text)).is_err() {
            return Vec::new();
        }
        // The last line may not be whole yet.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.read_bytes += text.len() as u64;
        parse_lines(&text).collect()
    }

    /// Adds a record, which is merged with earlier ones of that run, and brings it to the disk.
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

fn parse_lines(text: &[u8]) -> impl Iterator<Item = RunRecord> {
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
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

    /// Draws a record with few different values, of which many are equal.
    fn draw_record(random: &mut fastrand::Rng) -> RunRecord {
        let mut time = || random.bool().then(|| f64::from(random.u8(0..3)));
        let (asked_at, began_at, stop_asked_at, ended_at, seconds) = (time(), time(), time(), time(), time());
        let states = [
            RunState::Reserved,
            RunState::Running,
            RunState::Complete,
            RunState::Incomplete,
            RunState::Failed,
            RunState::Lost,
        ];
        let note = Note { text: random.u8(0..3).to_string(), by: "anna".into(), at: f64::from(random.u8(0..2)) };
        let quality = if random.bool() { Quality::Good } else { Quality::Bad };
        let flag = Flag { flag: quality, why: random.u8(0..2).to_string(), by: "anna".into(), at: note.at };
        RunRecord {
            number: 1,
            kind: if random.bool() { RunKind::Test } else { RunKind::Physics },
            note: random.u8(0..2).to_string(),
            state: states[random.usize(0..states.len())],
            reasons: vec![random.u8(0..2).to_string()],
            asked_by: random.u8(0..2).to_string(),
            asked_at,
            began_at,
            stop_asked_at,
            ended_at,
            seconds,
            events: random.u64(0..2),
            flag: random.bool().then_some(flag),
            notes: if random.bool() { vec![note] } else { Vec::new() },
            process: random.u8(0..2).to_string(),
            ..RunRecord::default()
        }
    }

    #[test]
    fn the_order_in_which_records_are_merged_makes_no_difference() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let [one, two, three] = std::array::from_fn(|_| draw_record(&mut random));
            assert_eq!(one.merge(&one), one);
            assert_eq!(one.merge(&two), two.merge(&one));
            assert_eq!(one.merge(&two).merge(&three), one.merge(&two.merge(&three)));
        }
    }

    #[test]
    fn two_services_read_what_the_other_one_has_added() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, _) = RecordFile::open_records(folder.path()).unwrap();
        let (mut two, _) = RecordFile::open_records(folder.path()).unwrap();
        let record = RunRecord { number: 3, note: "x".into(), ..RunRecord::default() };
        one.add_record(&record).unwrap();
        one.file.write_all(b"{\"number\": 4, \"sta").unwrap();
        assert_eq!((two.added_records(), two.added_records()), (vec![record], Vec::new()));
        one.file.write_all(b"te\": \"failed\"}\n").unwrap();
        assert_eq!(two.added_records()[0].number, 4, "a line that was not whole yet");
    }
}
