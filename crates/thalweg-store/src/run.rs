//! Reads a run: the events of all its builders, in order.

use crate::event::{EventIds, Events};
use crate::files::RunFiles;
use crate::follow::Follow;
use crate::format::EventStatus;
use crate::info::FILE_NAME;
use crate::list::builder_directories;
use crate::{Event, Part, Problem, ProblemKind, Recovery, RunInfo, RunState, StoreError, StoredBlock, WriterLife};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_wire::EventId;

/// A run, open for reading. It shows the state of the run when it was opened; [`follow_events`](Self::follow_events)
/// shows later events.
///
/// A run written by several builders consists of one [`Part`] for each of them; this type presents them together: their
/// events in order, and one `run.json` with their sums.
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    info: RunInfo,
    /// Parts in ascending order of builders; at least one.
    parts: Vec<Arc<Part>>,
    problems: Vec<Problem>,
}

impl Run {
    /// Opens a run by its directory, or by any path inside it. If there is no directory `runs/run-000042`, this path
    /// names the run that lies in `runs/run-000042-b0`, `runs/run-000042-b1`, …; one of these, named itself, is opened
    /// alone. A missing builder directory is among the [`problems`](Self::problems), and the run is then not COMPLETE.
    ///
    /// # Errors
    /// If there is no run, or its `run.json` or a segment cannot be read. Damage in a segment is not an error.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let parts = builder_directories(path);
        if parts.is_empty() {
            return Ok(Self::from_single_part(Part::open(path)?));
        }
        let parts = parts.iter().map(|part| Part::open(part).map(Arc::new)).collect::<Result<_, _>>()?;
        Self::from_parts(path.to_owned(), parts)
    }

    /// Opens a run of one builder, or one builder's part of a run, whose files are elsewhere: see
    /// [`Part::open_remote`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_remote(files: Arc<dyn RunFiles>) -> Result<Self, StoreError> {
        Ok(Self::from_single_part(Part::open_remote(files)?))
    }

    /// Returns the run that consists of the given parts of several builders. `path` is the name of the run in messages.
    ///
    /// # Errors
    /// [`StoreError::NotARun`] if there are no parts, [`StoreError::Parts`] if they belong to different runs.
    pub fn from_parts(path: PathBuf, mut parts: Vec<Arc<Part>>) -> Result<Self, StoreError> {
        parts.sort_by_key(|part| part.run_info().builder);
        let infos: Vec<&RunInfo> = parts.iter().map(|part| part.run_info()).collect();
        let Some(info) = RunInfo::combine_parts(&infos) else { return Err(StoreError::NotARun(path)) };
        if let Some(difference) = infos.windows(2).find_map(|pair| describe_difference(pair[0], pair[1])) {
            return Err(StoreError::Parts { path, difference });
        }
        let mut problems = Vec::new();
        for part in &parts {
            problems.extend(part.found_problems().iter().map(|problem| problem.in_directory(&part.directory_name())));
        }
        if let Some(found) = info.describe_absent_builders(&infos) {
            problems.push(Problem::new(FILE_NAME.to_owned(), None, ProblemKind::RunJson { found }));
        }
        Ok(Self { path, info, parts, problems })
    }

    fn from_single_part(part: Part) -> Self {
        let (path, info, problems) =
            (part.run_path().to_owned(), part.run_info().clone(), part.found_problems().to_vec());
        Self { path, info, parts: vec![Arc::new(part)], problems }
    }

    /// Returns the run's directory, or the path that names the directories of all its builders; for a run that is
    /// elsewhere, its name in messages.
    pub fn run_path(&self) -> &Path {
        &self.path
    }

    /// Returns the contents of its `run.json`; for several builders, their combined contents.
    pub fn run_info(&self) -> &RunInfo {
        &self.info
    }

    /// Returns the part that each builder wrote, in ascending order of builders.
    pub fn builder_parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    /// Returns whether the run was being written when it was opened; `None` for a run that had ended.
    pub fn writer_life(&self) -> Option<WriterLife> {
        WriterLife::combined_status(self.parts.iter().filter_map(|part| part.writer_life()))
    }

    /// Returns where reading had to stop in a run that was not ended; `None` if the last segment ends with its footer.
    pub fn recovery_point(&self) -> Option<&Recovery> {
        self.parts.iter().find_map(|part| part.recovery_point())
    }

    /// Returns the problems found on opening the run: see [`Part::problems`], and builders' parts that are missing.
    pub fn found_problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of events, complete or not.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len()).fold(0, u64::saturating_add)
    }

    /// Returns whether all events and blocks are present that `run.json` declares as written; true for a run that has
    /// not ended, whose `run.json` does not declare them.
    pub fn has_declared_data(&self) -> bool {
        self.parts.iter().all(|part| part.has_declared_data())
    }

    /// Returns whether the run has no event.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.is_empty())
    }

    /// Returns the number of bytes in its data blocks.
    pub fn data_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.data_bytes()).sum()
    }

    /// Returns the number of its segment files.
    pub fn segment_count(&self) -> u32 {
        self.parts.iter().map(|part| part.segment_count()).sum()
    }

    /// Returns its data blocks, by builder, in the order of the files.
    pub fn data_blocks(&self) -> Vec<&StoredBlock> {
        self.parts.iter().flat_map(|part| part.data_blocks()).collect()
    }

    /// Returns its events, in ascending order.
    pub fn events(&self) -> Events<'_> {
        Events::new(self)
    }

    /// Returns the numbers of its events, in ascending order; for iterating over a shared run with
    /// [`read_event`](Self::read_event).
    pub fn event_ids(&self) -> EventIds {
        self.event_ids_from(EventId(0))
    }

    /// As [`event_ids`](Self::event_ids), from event `first` on, whether or not an event of this number exists.
    pub fn event_ids_from(&self, first: EventId) -> EventIds {
        EventIds::new(self.parts.iter().map(|part| part.event_ids_from(first)).collect())
    }

    /// Returns the highest event number; `None` if there is no event.
    pub fn last_event(&self) -> Option<EventId> {
        self.parts.iter().flat_map(|part| part.event_closings()).map(|closing| closing.last_event()).max()
    }

    /// Returns the number of the event at position `place`, counted from 0 in ascending order; `None` if there are
    /// fewer events.
    pub fn nth_event(&self, place: u64) -> Option<EventId> {
        if let [part] = &self.parts[..] {
            return part.nth_event(place);
        }
        if place >= self.len() {
            return None;
        }
        // Search for the lowest number up to which there are more than `place` events.
        let (mut low, mut high) = (0, self.last_event()?.0);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.events_before(EventId(middle.saturating_add(1))) > place {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Some(EventId(low))
    }

    /// Returns the number of events whose numbers are below `id`, whether or not an event of this number exists.
    pub fn events_before(&self, id: EventId) -> u64 {
        self.parts.iter().map(|part| part.events_before(id)).fold(0, u64::saturating_add)
    }

    /// Returns one event; `None` if the run has no closed event of this number.
    ///
    /// # Errors
    /// As [`read_event`](Self::read_event).
    pub fn find_event(&self, id: EventId) -> Result<Option<Event>, StoreError> {
        match self.event_status(id) {
            Some(status) => self.read_event(id, status).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the status with which an event was closed; `None` if it was not closed.
    pub fn event_status(&self, id: EventId) -> Option<EventStatus> {
        self.parts.iter().find_map(|part| part.event_status(id))
    }

    /// Returns the fragments of an event that is known to be closed. When a block is first accessed, its CRC is
    /// checked.
    ///
    /// # Errors
    /// If the event does not have exactly one record of each source in the readable blocks.
    pub fn read_event(&self, id: EventId, status: EventStatus) -> Result<Event, StoreError> {
        let (last, others) = self.parts.split_last().ok_or_else(|| StoreError::NotARun(self.path.clone()))?;
        let part = others.iter().find(|part| part.event_status(id).is_some()).unwrap_or(last);
        part.read_event(id, status)
    }

    /// Follows the run from its first event on, while it is being written and until it ends.
    ///
    /// # Errors
    /// As [`Follow::open`].
    pub fn follow_events(&self) -> Result<Follow, StoreError> {
        Follow::from_files(&self.path, self.parts.iter().map(|part| part.run_files().clone()).collect())
    }
}

/// Returns a description of the difference that shows that the parts of two builders belong to different runs; `None`
/// if there is none.
fn describe_difference(one: &RunInfo, other: &RunInfo) -> Option<String> {
    let [(a, here), (b, there)] = [one, other].map(|info| (info.builder, info));
    if here.run != there.run {
        return Some(format!("builder {a} wrote run {}, but builder {b} run {}", here.run, there.run));
    }
    if here.builders != there.builders {
        let (here, there) = (here.builders, there.builders);
        return Some(format!("builder {a} was one of {here}, but builder {b} one of {there}"));
    }
    if a == b {
        return Some(format!("two of them are of builder {a}"));
    }
    let differ = here.source_ids() != there.source_ids();
    differ.then(|| format!("builders {a} and {b} had different sources"))
}

impl RunInfo {
    /// Returns the combined `run.json` of several builders, given in ascending order; `None` if there are none. Counts
    /// are added up, the state is the worst of them, and a reason names its builder.
    pub fn combine_parts(parts: &[&Self]) -> Option<Self> {
        let (first, others) = parts.split_first()?;
        let mut sum = (*first).clone();
        for part in others {
            sum.began = sum.began.min(part.began);
            sum.ended = sum.ended.zip(part.ended).map(|(one, other)| one.max(other));
            sum.times.last_event = sum.times.last_event.max(part.times.last_event);
            sum.times.on_disk = sum.times.on_disk.max(part.times.on_disk);
            add_event_counts(&mut sum, part);
            add_numbers(&mut sum.trigger, &part.trigger);
            add_entries(&mut sum.time_use, &part.time_use);
            add_ledger_lines(&mut sum.ledger, &part.ledger);
        }
        sum.state = parts.iter().map(|part| part.state).max_by_key(|state| state_rank(*state))?;
        sum.reasons = combine_reasons(parts.iter().map(|part| (part.builder, &part.reasons[..])));
        if let Some(absent) = sum.describe_absent_builders(parts) {
            sum.state = if sum.state == RunState::Complete { RunState::Incomplete } else { sum.state };
            sum.reasons.push(absent);
        }
        Some(sum)
    }

    /// Returns a sentence about the builders whose parts are missing; `None` if all are present.
    fn describe_absent_builders(&self, parts: &[&Self]) -> Option<String> {
        let count = u64::from(self.builders).saturating_sub(parts.len() as u64);
        let mut absent: Vec<String> = (0..self.builders)
            .filter(|builder| parts.iter().all(|part| part.builder != *builder))
            .take(MAX_LISTED_BUILDERS)
            .map(|builder| builder.to_string())
            .collect();
        if count > absent.len() as u64 {
            absent.push("…".to_owned());
        }
        let (noun, verb) = if count == 1 { ("builder", "is") } else { ("builders", "are") };
        (count > 0).then(|| format!("the data of {noun} {} of {} {verb} missing", absent.join(", "), self.builders))
    }
}

/// Returns the reasons why a run is incomplete, from pairs of a builder's number and its reasons. With several
/// builders, a reason begins with the builder that has it, or with `each builder`: a count in it is that of one
/// builder.
pub fn combine_reasons<'a>(parts: impl Iterator<Item = (u32, &'a [String])> + Clone) -> Vec<String> {
    let named: Vec<HashSet<&String>> = parts.clone().map(|(_, reasons)| reasons.iter().collect()).collect();
    let mut together: Vec<String> = Vec::new();
    for (place, (builder, reasons)) in parts.enumerate() {
        if named.len() == 1 {
            return reasons.to_vec();
        }
        let (shared, own): (Vec<&String>, Vec<&String>) =
            reasons.iter().partition(|reason| named.iter().all(|reasons| reasons.contains(reason)));
        if place == 0 {
            together.extend(shared.iter().map(|reason| format!("each builder: {reason}")));
        }
        together.extend(own.iter().map(|reason| format!("builder {builder}: {reason}")));
    }
    together
}

fn add_event_counts(sum: &mut RunInfo, part: &RunInfo) {
    let (ours, theirs) = (&mut sum.totals, &part.totals);
    ours.seconds = ours.seconds.max(theirs.seconds);
    ours.segments = ours.segments.saturating_add(theirs.segments);
    for (ours, theirs) in [
        (&mut sum.events.built, part.events.built),
        (&mut sum.events.incomplete, part.events.incomplete),
        (&mut ours.bytes, theirs.bytes),
        (&mut ours.blocks, theirs.blocks),
        (&mut ours.fragments, theirs.fragments),
        (&mut ours.missing, theirs.missing),
        (&mut ours.events, theirs.events),
        (&mut ours.incomplete_events, theirs.incomplete_events),
    ] {
        *ours = ours.saturating_add(theirs);
    }
}

/// Adds the lines of another builder's ledger to those of the same sources.
/// Adds the entries of an array.
fn add_entries(ours: &mut Value, theirs: &Value) {
    if let (Some(ours), Some(theirs)) = (ours.as_array_mut(), theirs.as_array()) {
        ours.extend(theirs.iter().cloned());
    }
}

fn add_ledger_lines(ours: &mut Value, theirs: &Value) {
    if ours.is_null() {
        *ours = theirs.clone();
        return;
    }
    let (Some(ours), Some(theirs)) = (ours.as_array_mut(), theirs.as_array()) else { return };
    let mut places: HashMap<_, _> = ours.iter().map(ledger_line_source).zip(0..).collect();
    for line in theirs {
        match places.get(&ledger_line_source(line)) {
            Some(place) => add_numbers(&mut ours[*place], line),
            None => {
                places.insert(ledger_line_source(line), ours.len());
                ours.push(line.clone());
            }
        }
    }
}

/// Returns the source that a line of a ledger names.
fn ledger_line_source(line: &Value) -> Option<String> {
    line["source"].as_str().map(str::to_owned)
}

/// Adds numbers to those of the same names, at any depth; a boolean stays true only if both are true. A surplus does
/// not compensate a deficit: a number of the opposite sign is added as if it had the same sign.
fn add_numbers(ours: &mut Value, theirs: &Value) {
    match (&mut *ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, value) in theirs {
                match ours.get_mut(key) {
                    // Every builder has the time of the same process of a source.
                    Some(known) if key == "cpu_ms" => {
                        if known.as_u64() < value.as_u64() {
                            *known = value.clone();
                        }
                    }
                    Some(known) => add_numbers(known, value),
                    None => drop(ours.insert(key.clone(), value.clone())),
                }
            }
        }
        (Value::Bool(ours), Value::Bool(theirs)) => *ours &= theirs,
        (Value::Number(one), Value::Number(other)) => {
            let sum: Value = match (one.as_u64().zip(other.as_u64()), one.as_i64().zip(other.as_i64())) {
                (Some((one, other)), _) => one.saturating_add(other).into(),
                (None, Some((one, other))) => {
                    let is_opposite = one.signum() * other.signum() < 0;
                    one.saturating_add(if is_opposite { other.saturating_neg() } else { other }).into()
                }
                _ => (one.as_f64().unwrap_or(0.0) + other.as_f64().unwrap_or(0.0)).into(),
            };
            *ours = sum;
        }
        (Value::Null, theirs) => *ours = theirs.clone(),
        _ => {}
    }
}

/// Returns the rank of a state: a run of several builders is in the worst state of its parts.
fn state_rank(state: RunState) -> u8 {
    match state {
        RunState::Complete => 0,
        RunState::Incomplete => 1,
        RunState::Open => 2,
    }
}

/// Maximum number of builders that are listed by number.
const MAX_LISTED_BUILDERS: usize = 8;
