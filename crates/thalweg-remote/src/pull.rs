//! Fetches files, runs and directories in parallel: resumed, verified, named only when complete.

use crate::listing::Kind;
use crate::moved::{Moved, Tally};
use crate::part::{CHUNK_BYTES, Content, Part, digest_of_range, hidden_path, piece_bytes, publish_file, unix_seconds};
use crate::server::Head;
use crate::{Digest, Entry, Progress, RemoteError, Server};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use thalweg_store::{RunInfo, RunState, run_directory_name};
use thalweg_wire::RunNumber;

/// Fetches the entry that the server's URL names into the directory `into`, with the given number of streams: a file
/// under its name, a run under the name of its directory, a directory with all its content.
///
/// A local file that is the same, by length and date or checksum, is not fetched again. A local file that differs is
/// not overwritten, except for a run that was fetched while it was [`Open`](RunState::Open).
///
/// # Errors
/// [`RemoteError::Partly`] if the server refuses some of it: all else was fetched. Other errors if the server cannot be
/// reached for [`Options::timeout`](crate::Options::timeout), something else has the name here, or the content does not
/// match its checksum. Bytes that arrived are kept: another call resumes from there.
pub fn pull_entry(server: &Server, into: &Path, streams: usize, progress: &Progress) -> Result<Moved, RemoteError> {
    let pull = Pull::new(streams, progress);
    let (to, runs) = match server.fetch_head("") {
        Ok(head) => {
            let name = server.last_name().unwrap_or_default();
            if !crate::listing::is_plain_name(&name) {
                return Err(RemoteError::Url {
                    url: server.url_of_resource(""),
                    why: "its last part cannot be a file name",
                });
            }
            create_directory(into)?;
            progress.expect_bytes(head.length);
            let to = into.join(name);
            let (server, name, listed) = (server.clone(), String::new(), head.length);
            pull.fetch_files(&[Job { server, name, to: to.clone(), listed, grows: false, replace: false }])?;
            (to, Vec::new())
        }
        Err(RemoteError::Directory(_)) => pull.fetch_directory(server, Destination::In(into), 0)?,
        Err(error) => return Err(error),
    };
    let mut refused = std::mem::take(&mut *pull.refused.lock()).into_iter();
    if let Some(first) = refused.next() {
        return Err(RemoteError::Partly { first: Box::new(first), more: refused.len() });
    }
    Ok(pull.result_so_far(to.display().to_string(), runs))
}

/// A fetch in progress.
#[derive(Debug)]
pub(crate) struct Pull<'a> {
    streams: usize,
    progress: &'a Progress,
    tally: Tally,
    /// Errors for entries that the server refused while it sent others.
    refused: Mutex<Vec<RemoteError>>,
}

/// A file that is to be fetched.
#[derive(Debug)]
pub(crate) struct Job {
    /// Server and name of the file; the name is empty if the server's own URL is the file.
    pub(crate) server: Server,
    pub(crate) name: String,
    pub(crate) to: PathBuf,
    /// Length in bytes that the listing reports: too large for a segment that is being written.
    pub(crate) listed: u64,
    /// True for a segment of a run that is being written.
    pub(crate) grows: bool,
    /// True if a local file of this name may be overwritten.
    pub(crate) replace: bool,
}

/// Destination of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// Inside this directory, under its own name.
    In(&'a Path),
    /// At this path.
    As(&'a Path),
}

impl<'a> Pull<'a> {
    pub(crate) fn new(streams: usize, progress: &'a Progress) -> Self {
        Self { streams: streams.max(1), progress, tally: Tally::default(), refused: Mutex::default() }
    }

    pub(crate) fn result_so_far(&self, to: String, runs: Vec<PathBuf>) -> Moved {
        self.tally.result_so_far(to, runs)
    }

    /// Fetches a directory or a run. Returns the local path and the runs in it.
    fn fetch_directory(
        &self,
        server: &Server,
        place: Destination,
        depth: u32,
    ) -> Result<(PathBuf, Vec<PathBuf>), RemoteError> {
        if depth > MAX_DIRECTORY_DEPTH {
            return Err(RemoteError::Answer { url: server.url_of_resource(""), what: "endlessly nested directories" });
        }
        let listing = server.list_directory("")?;
        if let (false, Destination::In(into), Some(info)) = (listing.parts.is_empty(), place, &listing.info) {
            let runs = listing.parts.iter().map(|name| self.fetch_run(&server.beside_name(name), place));
            let runs = runs.collect::<Result<_, _>>()?;
            return Ok((into.join(run_directory_name(RunNumber(info.run), 0, 1)), runs));
        }
        if listing.info.is_some() {
            let to = self.fetch_run(server, place)?;
            return Ok((to.clone(), vec![to]));
        }
        if depth == 0 && listing.entries.iter().any(|entry| entry.kind == Kind::File && entry.name == RUN_JSON) {
            // The server could not read it either; the error contains the reason.
            RunJson::read_from_server(server)?;
        }
        let by_number = server.last_name().is_some_and(|name| name == RUNS);
        let to = match (place, server.last_name()) {
            (Destination::As(to), _) => to.to_owned(),
            // On a server, `runs` holds the directories of runs.
            (Destination::In(into), Some(name)) if crate::listing::is_plain_name(&name) && !by_number => {
                into.join(name)
            }
            (Destination::In(into), _) => into.to_owned(),
        };
        create_directory(&to)?;
        let files = listing.entries.iter().filter(|entry| entry.kind == Kind::File);
        let jobs: Vec<Job> = files.map(|entry| self.create_job(server, entry, &to, false, false)).collect();
        self.note_refusal(self.fetch_files(&jobs))?;
        let mut runs = Vec::new();
        for entry in &listing.entries {
            match entry.kind {
                Kind::File | Kind::Other => {}
                Kind::Run => {
                    let here = to.join(&entry.name);
                    let place = if by_number { Destination::In(&to) } else { Destination::As(&here) };
                    runs.extend(self.note_refusal(self.fetch_run(&server.beneath_path(&entry.name), place))?);
                }
                Kind::Directory => {
                    let inner = server.beneath_path(&entry.name);
                    let inner = self.fetch_directory(&inner, Destination::As(&to.join(&entry.name)), depth + 1);
                    runs.extend(self.note_refusal(inner)?.into_iter().flat_map(|(_, runs)| runs));
                }
            }
        }
        Ok((to, runs))
    }

    /// Records a refusal of the server, so that the rest is still fetched; it is reported at the end.
    fn note_refusal<T>(&self, result: Result<T, RemoteError>) -> Result<Option<T>, RemoteError> {
        match result {
            Err(error) if error.is_server_refusal() => {
                self.refused.lock().push(error);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Fetches a run: its segments, and then `run.json`, which makes the directory a run.
    pub(crate) fn fetch_run(&self, server: &Server, place: Destination) -> Result<PathBuf, RemoteError> {
        // Read before the segments: otherwise it might mark the run as ended while the segments are older.
        let run_json = RunJson::read_from_server(server)?;
        let to = run_json.local_directory(place);
        create_directory(&to)?;
        let here = run_json.compare_with_local(&to)?;
        let listing = server.list_directory("")?;
        let grows = run_json.info.state == RunState::Open;
        let segments = listing.entries.iter().filter(|entry| entry.kind == Kind::File && entry.name != RUN_JSON);
        let jobs: Vec<Job> =
            segments.map(|entry| self.create_job(server, entry, &to, grows, here != LocalRun::Same)).collect();
        self.fetch_files(&jobs)?;
        if grows {
            self.tally.note_unended_run(&to);
        }
        if here == LocalRun::Same {
            self.tally.count_same_file();
        } else {
            run_json.write_to_directory(&to)?;
            self.count_bytes(run_json.text.len() as u64);
            self.tally.count_file();
        }
        check_nothing_missing(server.url_of_resource(""), &to, &run_json.info)?;
        Ok(to)
    }

    /// Records a run whose recorder died.
    pub(crate) fn note_abandoned_run(&self, run: &Path) {
        self.tally.note_abandoned_run(run);
    }

    pub(crate) fn create_job(&self, server: &Server, entry: &Entry, to: &Path, grows: bool, replace: bool) -> Job {
        self.progress.expect_bytes(entry.bytes);
        let (server, name, listed) = (server.clone(), entry.name.clone(), entry.bytes);
        Job { server, to: to.join(&name), name, listed, grows, replace }
    }

    /// Counts bytes that arrived.
    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.tally.count_bytes(bytes);
        self.progress.add_moved(bytes);
    }

    pub(crate) fn count_resumed_bytes(&self, bytes: u64) {
        self.tally.count_resumed_bytes(bytes);
        self.progress.add_moved(bytes);
    }

    pub(crate) fn count_file(&self) {
        self.tally.count_file();
    }

    /// Fetches files, with all streams.
    pub(crate) fn fetch_files(&self, jobs: &[Job]) -> Result<(), RemoteError> {
        let queue = Queue {
            state: Mutex::new(QueueState { jobs: jobs.iter().collect(), ..QueueState::default() }),
            changed: Condvar::new(),
            failed: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for _ in 0..self.streams {
                scope.spawn(|| self.run_stream(&queue));
            }
        });
        let state = queue.state.into_inner();
        state.error.or(state.refused).map_or(Ok(()), Err)
    }

    /// Runs one stream: takes work until none is left or a failure occurred.
    fn run_stream(&self, queue: &Queue) {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(work) = queue.take_work(self.streams) {
            let done = match work {
                Work::Begin(job) => {
                    let begun = self.begin_file(job);
                    let (file, result) = begun.map_or_else(|error| (None, Err(error)), |file| (file, Ok(())));
                    queue.add_begun_file(file);
                    result
                }
                Work::Fetch(file, range) => self.fetch_range(&file, range, &mut buffer, &queue.failed),
            };
            match done {
                Err(error) if error.is_server_refusal() => queue.note_refusal(error),
                Err(error) => queue.fail_all(error),
                Ok(()) => {}
            }
        }
    }

    /// Compares a file here and on the server. Returns `None` if it does not have to be fetched.
    fn begin_file(&self, job: &Job) -> Result<Option<Arc<FetchedFile>>, RemoteError> {
        let head = job.server.fetch_head(&job.name)?;
        self.progress.correct_expected(job.listed, head.length);
        match std::fs::metadata(&job.to) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(RemoteError::io_error("reading", &job.to)(error)),
            Ok(_) if is_same_file(&job.to, &head)? => {
                self.tally.count_same_file();
                self.progress.add_moved(head.length);
                return Ok(None);
            }
            Ok(_) if !job.replace => return Err(RemoteError::Here(job.to.clone())),
            Ok(_) => {}
        }
        let part =
            Part::open_or_resume(&job.to, &Content::new(job.server.url_of_resource(&job.name), &head, job.grows))?;
        self.count_resumed_bytes(part.written_bytes());
        let file = FetchedFile { server: job.server.clone(), name: job.name.clone(), head, grows: job.grows, part };
        if file.part.is_fully_written() {
            self.finish_file(&file)?;
            return Ok(None);
        }
        Ok(Some(Arc::new(file)))
    }

    /// Fetches a range of a file; bytes that arrived are recorded even if the rest fails.
    fn fetch_range(
        &self,
        file: &FetchedFile,
        range: Range<u64>,
        buffer: &mut [u8],
        failed: &AtomicBool,
    ) -> Result<(), RemoteError> {
        // A growing file may have other properties in each answer, and yet contain all earlier bytes.
        let same = (!file.grows).then_some(&file.head);
        let mut reader = file.server.open_reader(&file.name, range.clone(), same)?;
        let piece = piece_bytes(self.streams);
        let mut at = range.start;
        while at < range.end && !failed.load(Relaxed) {
            let end = (at + 1).next_multiple_of(piece).min(range.end);
            let mut digest = Digest::default();
            let mut result = Ok(());
            while at + digest.length < end && result.is_ok() && !failed.load(Relaxed) {
                let most = buffer.len().min(usize::try_from(end - at - digest.length).unwrap_or(usize::MAX));
                // Whole chunks, so that all writes except those around a break are aligned.
                let (arrived, error) = fill_buffer(&mut reader, &mut buffer[..most]);
                file.part.write_bytes(&buffer[..arrived], at + digest.length)?;
                digest = digest.followed_by(Digest::from_bytes(&buffer[..arrived]));
                self.count_bytes(arrived as u64);
                if arrived < most {
                    result = Err(match error {
                        Some(error) => reader.original_error(error),
                        None => RemoteError::Changed(file.server.url_of_resource(&file.name)),
                    });
                }
            }
            if digest.length > 0 && file.part.record_piece(at, digest)? {
                self.finish_file(file)?;
            }
            at += digest.length;
            result?;
        }
        Ok(())
    }

    fn finish_file(&self, file: &FetchedFile) -> Result<(), RemoteError> {
        self.tally.count_file();
        file.part.finish_file(&file.head)
    }
}

/// A file that is being fetched.
#[derive(Debug)]
struct FetchedFile {
    server: Server,
    name: String,
    head: Head,
    grows: bool,
    part: Part,
}

/// Work for the streams.
#[derive(Debug)]
struct Queue<'a> {
    state: Mutex<QueueState<'a>>,
    changed: Condvar,
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct QueueState<'a> {
    /// Files that no stream has compared yet.
    jobs: VecDeque<&'a Job>,
    /// Number of files being compared, which may still add work.
    comparing: usize,
    /// Files with ranges that no stream fetches yet.
    files: VecDeque<Arc<FetchedFile>>,
    error: Option<RemoteError>,
    /// First refusal of a file; other files can still be fetched.
    refused: Option<RemoteError>,
}

#[derive(Debug)]
enum Work<'a> {
    Begin(&'a Job),
    Fetch(Arc<FetchedFile>, Range<u64>),
}

impl<'a> Queue<'a> {
    /// Returns the next work for one of `streams`: files that were begun come first. Returns `None` when no work is
    /// left.
    fn take_work(&self, streams: usize) -> Option<Work<'a>> {
        let mut state = self.state.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            while let Some(file) = state.files.front() {
                if let Some(range) = file.part.take_missing_range(streams) {
                    return Some(Work::Fetch(Arc::clone(file), range));
                }
                state.files.pop_front();
            }
            if let Some(job) = state.jobs.pop_front() {
                state.comparing += 1;
                return Some(Work::Begin(job));
            }
            if state.comparing == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Adds the result of comparing a file.
    fn add_begun_file(&self, file: Option<Arc<FetchedFile>>) {
        let mut state = self.state.lock();
        state.comparing -= 1;
        state.files.extend(file);
        self.changed.notify_all();
    }

    /// Stops all streams. Only the first error is kept; later ones follow from it.
    fn fail_all(&self, error: RemoteError) {
        self.failed.store(true, Relaxed);
        self.state.lock().error.get_or_insert(error);
        self.changed.notify_all();
    }

    fn note_refusal(&self, error: RemoteError) {
        self.state.lock().refused.get_or_insert(error);
    }
}

/// The `run.json` on the server.
#[derive(Debug)]
pub(crate) struct RunJson {
    pub(crate) text: Vec<u8>,
    pub(crate) info: RunInfo,
    pub(crate) head: Head,
}

/// Local state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalRun {
    /// There is no `run.json`.
    Nothing,
    /// The `run.json` is an earlier state.
    Open,
    /// The `run.json` is identical.
    Same,
}

impl RunJson {
    pub(crate) fn read_from_server(server: &Server) -> Result<Self, RemoteError> {
        let (head, text) = Self::fetch_text(server).map_err(|error| match error {
            error if error.is_not_found() => RemoteError::NotARun(server.url_of_resource("")),
            error => error,
        })?;
        let info = serde_json::from_slice(&text)
            .map_err(|error| RemoteError::Json { url: server.url_of_resource(RUN_JSON), error })?;
        Ok(Self { text, info, head })
    }

    /// Fetches the text, all of one state.
    pub(crate) fn fetch_text(server: &Server) -> Result<(Head, Vec<u8>), RemoteError> {
        // The file is replaced once, when the run ends; so at most one of these attempts finds it changed.
        let mut tries = 0..3;
        loop {
            let head = server.fetch_head(RUN_JSON)?;
            if head.length > MAX_RUN_JSON_BYTES {
                return Err(RemoteError::Answer {
                    url: server.url_of_resource(RUN_JSON),
                    what: "a run.json of more than 256 MiB",
                });
            }
            match server.read_range(RUN_JSON, 0..head.length, Some(&head)) {
                Err(RemoteError::Changed(_)) if tries.next().is_some() => {}
                text => return Ok((head, text?)),
            }
        }
    }

    /// Returns the local directory of the run.
    pub(crate) fn local_directory(&self, place: Destination) -> PathBuf {
        let RunInfo { run, builder, builders, .. } = self.info;
        match place {
            Destination::In(into) => into.join(run_directory_name(RunNumber(run), builder, builders)),
            Destination::As(to) => to.to_owned(),
        }
    }

    /// Returns the state of the run in `directory`. Fails if another run is there.
    pub(crate) fn compare_with_local(&self, directory: &Path) -> Result<LocalRun, RemoteError> {
        let path = directory.join(RUN_JSON);
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(LocalRun::Nothing),
            Err(error) => return Err(RemoteError::io_error("reading", &path)(error)),
            Ok(text) if text == self.text => {
                return Ok(if self.info.state == RunState::Open { LocalRun::Open } else { LocalRun::Same });
            }
            Ok(_) => {}
        }
        let here = RunInfo::read_run_json(directory)?;
        let earlier = here.state == RunState::Open && here.run_identity() == self.info.run_identity();
        if earlier { Ok(LocalRun::Open) } else { Err(RemoteError::Here(path)) }
    }

    /// Writes the text as the `run.json` of `directory`.
    pub(crate) fn write_to_directory(&self, directory: &Path) -> Result<(), RemoteError> {
        let path = directory.join(RUN_JSON);
        let part = hidden_path(&path, ".part");
        let mut file = File::create(&part).map_err(RemoteError::io_error("creating", &part))?;
        file.write_all(&self.text).map_err(RemoteError::io_error("writing", &part))?;
        publish_file(&file, &part, &path, self.head.modified)
    }
}

pub(crate) fn create_directory(directory: &Path) -> Result<(), RemoteError> {
    std::fs::create_dir_all(directory).map_err(|error| match directory.is_file() {
        true => RemoteError::io_error("writing into", directory)(std::io::ErrorKind::NotADirectory.into()),
        false => RemoteError::io_error("creating", directory)(error),
    })
}

/// Fails if a run that has ended, and is here in `directory`, holds less than its `run.json` lists. Errors call it
/// `name`.
pub(crate) fn check_nothing_missing(name: String, directory: &Path, info: &RunInfo) -> Result<(), RemoteError> {
    // The counts of newer formats are unknown here.
    if info.state == RunState::Open || info.version != RunInfo::FORMAT_VERSION {
        return Ok(());
    }
    let run = thalweg_store::Part::open(directory)?;
    if run.has_declared_data() {
        return Ok(());
    }
    let (events, blocks) = (run.len(), run.data_blocks().len() as u64);
    let (of_events, of_blocks) = (info.totals.events, info.totals.blocks);
    Err(RemoteError::NotWhole { name, events, of_events, blocks, of_blocks })
}

/// Returns whether a local file is the one on the server: of the same length, and of the same date (which a fetched
/// file gets) or checksum.
fn is_same_file(path: &Path, head: &Head) -> Result<bool, RemoteError> {
    let file = File::open(path).map_err(RemoteError::io_error("reading", path))?;
    let metadata = file.metadata().map_err(RemoteError::io_error("reading", path))?;
    if !metadata.is_file() || metadata.len() != head.length {
        return Ok(false);
    }
    if head
        .modified
        .is_some_and(|there| metadata.modified().is_ok_and(|here| unix_seconds(here) == unix_seconds(there)))
    {
        return Ok(true);
    }
    match head.crc32c {
        Some(expected) => {
            let found = digest_of_range(&file, 0..head.length).map_err(RemoteError::io_error("reading", path))?;
            Ok(found.crc32c == expected)
        }
        None => Ok(false),
    }
}

/// Fills the buffer. Returns fewer bytes than fit if the stream ended or broke.
pub(crate) fn fill_buffer(from: &mut impl Read, buffer: &mut [u8]) -> (usize, Option<std::io::Error>) {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return (filled, Some(error)),
        }
    }
    (filled, None)
}

/// Name on a server beneath which runs are found by their numbers.
pub(crate) const RUNS: &str = "runs";
/// File that makes a directory a run.
pub(crate) const RUN_JSON: &str = "run.json";
/// Maximum size of `run.json` in bytes.
const MAX_RUN_JSON_BYTES: u64 = 256 << 20;
/// Maximum depth of nested directories.
const MAX_DIRECTORY_DEPTH: u32 = 64;
