//! Sends files and runs: resumed, verified by the server, visible only when complete.

use crate::moved::{Moved, Tally};
use crate::part::digest_of_range;
use crate::pull::{RUN_JSON, RUNS, RunJson, check_nothing_missing};
use crate::server::{PreparedRequest, header_field, refusal_error};
use crate::{Head, Progress, RemoteError, Resource, Server};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use thalweg_store::{Extent, RunInfo, RunState};
use ureq::http::{StatusCode, header};

/// Sends a file, or a run's directory, into the directory that the server's URL names, with `streams` files at once.
///
/// `run.json` is sent last, so that a directory is a run only when it is complete. A file that is on the server already
/// is not sent again if it is the same, and is left as it is if it differs.
///
/// # Errors
/// Fails if `path` is not a file or a run, or is a run that is being recorded or is incomplete; or if the server cannot
/// be reached for [`Options::timeout`](crate::Options::timeout), refuses, or has another file of that name. Bytes that
/// arrived are kept: another call resumes from there.
pub fn push_path(server: &Server, path: &Path, streams: usize, progress: &Progress) -> Result<Moved, RemoteError> {
    let name = plain_file_name(path)?;
    check_not_runs_listing(server)?;
    let push = Push::new(streams, progress);
    if path.is_file() {
        push.send_files(&[Job::new(server, path.to_owned(), name.clone())?])?;
        return Ok(push.tally.result_so_far(server.url_of_resource(&name), Vec::new()));
    }
    let info = read_run_info(path)?;
    if info.state == RunState::Open && is_being_written(path)? {
        return Err(RemoteError::BeingWritten(path.to_owned()));
    }
    let server = server.beneath_path(&name);
    let jobs = segment_jobs(&server, path)?;
    check_nothing_missing(path.display().to_string(), path, &info)?;
    check_no_other_run(&server, path, jobs.first())?;
    push.send_files(&jobs)?;
    push.send_run_json(&server, path)?;
    Ok(push.tally.result_so_far(server.url_of_resource(""), vec![path.to_owned()]))
}

/// Refuses a URL that ends in `runs`: a server lists the runs of a directory there, and there is no such directory.
fn check_not_runs_listing(server: &Server) -> Result<(), RemoteError> {
    match server.last_name() {
        Some(name) if name == RUNS => Err(RemoteError::Url {
            url: server.url_of_resource(""),
            why: "`runs` is a view of the runs in the directory above: remove it from the URL",
        }),
        _ => Ok(()),
    }
}

/// Sends a run while it is being recorded, until it has ended and was sent completely.
///
/// Whole blocks of the segment that is being written are sent as they are written; the segment appears on the server
/// when it is closed, and `run.json` at the end.
///
/// # Errors
/// As [`push_path`], except that the run may be one that is being recorded.
pub fn push_while_recorded(
    server: &Server,
    path: &Path,
    streams: usize,
    progress: &Progress,
) -> Result<Moved, RemoteError> {
    check_not_runs_listing(server)?;
    let name = plain_file_name(path)?;
    let push = Push::new(streams, progress);
    read_run_info(path)?;
    let server = server.beneath_path(&name);
    // Segments that are closed already are sent with all streams.
    let mut closed = Vec::new();
    for job in segment_jobs(&server, path)? {
        if thalweg_store::closed_segment_crc32c(&job.file)
            .map_err(RemoteError::io_error("reading", &job.path))?
            .is_some()
        {
            closed.push(job);
        }
    }
    check_no_other_run(&server, path, closed.first())?;
    push.send_files(&closed)?;

    let mut segments: Vec<Segment> = Vec::new();
    let mut pause = MIN_POLL_INTERVAL;
    loop {
        // The state is read before the segments: if the run had ended by then, these are all.
        let ended = read_run_info(path)?.state != RunState::Open || !is_being_written(path)?;
        let mut news = false;
        for job in segment_jobs(&server, path)? {
            let is_sent = closed.iter().any(|other| other.name == job.name);
            if !is_sent && !segments.iter().any(|segment| segment.job.name == job.name) {
                segments.push(Segment::new(job));
            }
        }
        for segment in segments.iter_mut().filter(|segment| !segment.is_there) {
            news |= segment.send_new_data(&push, ended)?;
        }
        if ended {
            break;
        }
        if !news {
            std::thread::sleep(pause);
        }
        pause = if news { MIN_POLL_INTERVAL } else { (pause * 2).min(MAX_POLL_INTERVAL) };
    }
    check_nothing_missing(path.display().to_string(), path, &read_run_info(path)?)?;
    push.send_run_json(&server, path)?;
    Ok(push.tally.result_so_far(server.url_of_resource(""), vec![path.to_owned()]))
}

/// A sending operation in progress.
#[derive(Debug)]
struct Push<'a> {
    streams: usize,
    progress: &'a Progress,
    tally: Tally,
}

/// A file that is to be sent.
#[derive(Debug)]
struct Job {
    server: Server,
    path: PathBuf,
    name: String,
    file: File,
    length: u64,
}

impl Job {
    fn new(server: &Server, path: PathBuf, name: String) -> Result<Self, RemoteError> {
        let file = File::open(&path).map_err(RemoteError::io_error("opening", &path))?;
        let length = file.metadata().map_err(RemoteError::io_error("reading", &path))?.len();
        Ok(Self { server: server.clone(), path, name, file, length })
    }

    /// Returns the checksum of the whole file. For a segment, this is the recorded one: if the disk has lost bits
    /// since, the server detects it.
    fn whole_file_crc32c(&self) -> Result<u32, RemoteError> {
        let is_segment = self.path.extension().is_some_and(|extension| extension == "seg");
        let recorded = if is_segment { thalweg_store::closed_segment_crc32c(&self.file) } else { Ok(None) };
        let crc32c = match recorded {
            Ok(None) => digest_of_range(&self.file, 0..self.length).map(|digest| digest.crc32c),
            Ok(Some(crc32c)) => Ok(crc32c),
            Err(error) => Err(error),
        };
        crc32c.map_err(RemoteError::io_error("reading", &self.path))
    }

    /// Returns the properties of the server's file of this name, or `None` if there is none.
    fn server_head(&self) -> Result<Option<Head>, RemoteError> {
        match self.server.fetch_head(&self.name) {
            Ok(head) => Ok(Some(head)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the server has this file, of this length and checksum. A file of the same length whose checksum
    /// the server does not know counts as another one.
    fn is_on_server(&self, length: u64, crc32c: u32) -> Result<bool, RemoteError> {
        let there = self.server_head()?;
        Ok(there.is_some_and(|head| (head.length, head.crc32c) == (length, Some(crc32c))))
    }

    /// Fails if the server's file is not this one.
    fn check_is_same(&self) -> Result<(), RemoteError> {
        let same = self.is_on_server(self.length, self.whole_file_crc32c()?)?;
        if same { Ok(()) } else { Err(RemoteError::Exists(self.server.url_of_resource(&self.name))) }
    }
}

impl<'a> Push<'a> {
    fn new(streams: usize, progress: &'a Progress) -> Self {
        Self { streams: streams.max(1), progress, tally: Tally::default() }
    }

    /// Sends files, with all streams.
    fn send_files(&self, jobs: &[Job]) -> Result<(), RemoteError> {
        self.progress.expect_bytes(jobs.iter().map(|job| job.length).sum());
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let first = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.streams.min(jobs.len()) {
                scope.spawn(|| {
                    while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)).filter(|_| !failed.load(Relaxed)) {
                        if let Err(error) = self.send_file(job, &failed) {
                            failed.store(true, Relaxed);
                            first.lock().get_or_insert(error);
                        }
                    }
                });
            }
        });
        first.into_inner().map_or(Ok(()), Err)
    }

    /// Sends a file, unless the server has it.
    fn send_file(&self, job: &Job, stop: &AtomicBool) -> Result<(), RemoteError> {
        if job.server_head()?.is_some() {
            job.check_is_same()?;
            self.tally.count_same_file();
            self.progress.add_moved(job.length);
            return Ok(());
        }
        let mut upload = Upload::new(job, self.progress, stop);
        upload.send_whole(job.length, job.whole_file_crc32c()?, None)?;
        self.count_upload(&upload);
        Ok(())
    }

    /// Sends `run.json`. One of the same run that was still open is replaced.
    fn send_run_json(&self, server: &Server, directory: &Path) -> Result<(), RemoteError> {
        let job = Job::new(server, directory.join(RUN_JSON), RUN_JSON.to_owned())?;
        self.progress.expect_bytes(job.length);
        let replaced = match RemoteRun::compare_run_json(server, directory)? {
            RemoteRun::Nothing => None,
            RemoteRun::Open(head) => head.etag,
            RemoteRun::Same => {
                self.tally.count_same_file();
                self.progress.add_moved(job.length);
                return Ok(());
            }
        };
        let stop = AtomicBool::new(false);
        let mut upload = Upload::new(&job, self.progress, &stop);
        upload.send_whole(job.length, job.whole_file_crc32c()?, replaced.as_deref())?;
        self.count_upload(&upload);
        Ok(())
    }

    fn count_upload(&self, upload: &Upload) {
        self.tally.count_file();
        self.tally.count_resumed_bytes(upload.resumed);
        self.tally.count_bytes(upload.at - upload.resumed);
    }
}

/// State of a run's `run.json` on the server.
#[derive(Debug)]
enum RemoteRun {
    /// There is no `run.json`.
    Nothing,
    /// The file is an earlier state, of the run while it was open.
    Open(Head),
    /// The file is identical.
    Same,
}

impl RemoteRun {
    /// Compares the server's file with the one in `directory`. Fails if it belongs to another run.
    fn compare_run_json(server: &Server, directory: &Path) -> Result<Self, RemoteError> {
        let (head, there) = match RunJson::fetch_text(server) {
            Err(error) if error.is_not_found() => return Ok(Self::Nothing),
            fetched => fetched?,
        };
        let path = directory.join(RUN_JSON);
        if there == std::fs::read(&path).map_err(RemoteError::io_error("reading", &path))? {
            return Ok(Self::Same);
        }
        let here = read_run_info(directory)?;
        let earlier = serde_json::from_slice::<RunInfo>(&there)
            .is_ok_and(|there| there.state == RunState::Open && there.run_identity() == here.run_identity());
        if earlier { Ok(Self::Open(head)) } else { Err(RemoteError::Exists(server.url_of_resource(RUN_JSON))) }
    }
}

/// Fails if the server has another run in this place, judging by its `run.json` or its first segment: no file of this
/// run would belong there.
fn check_no_other_run(server: &Server, directory: &Path, first: Option<&Job>) -> Result<(), RemoteError> {
    let run_json = RemoteRun::compare_run_json(server, directory)?;
    match first {
        Some(job) if matches!(run_json, RemoteRun::Nothing) && job.server_head()?.is_some() => job.check_is_same(),
        _ => Ok(()),
    }
}

/// A file that is being sent.
#[derive(Debug)]
struct Upload<'a> {
    job: &'a Job,
    progress: &'a Progress,
    stop: &'a AtomicBool,
    /// Number of bytes that the server has, as far as known.
    at: u64,
    /// Number of these bytes that the server had at first.
    resumed: u64,
}

/// Result of a request that sends bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The file is complete and visible under its name.
    Published,
    /// The server has this number of bytes of the file.
    There(u64),
}

impl<'a> Upload<'a> {
    fn new(job: &'a Job, progress: &'a Progress, stop: &'a AtomicBool) -> Self {
        Self { job, progress, stop, at: 0, resumed: 0 }
    }

    /// Sends the first `length` bytes of the file, which are all of it. Replaces the server's file of the ETag
    /// `replaced`.
    fn send_whole(&mut self, length: u64, crc32c: u32, replaced: Option<&str>) -> Result<(), RemoteError> {
        self.resume_upload(length)?;
        self.resumed = self.at;
        let mut began_anew = false;
        let mut timeout = self.job.server.new_retries();
        // The largest number of bytes that the server ever had, and whether it fell back below that.
        let (mut most, mut fell_back) = (self.at, false);
        loop {
            let from = self.at;
            let result = self.send_range(from..length, Some(length), Some(crc32c), replaced);
            let error = match result {
                Ok(Answer::Published) => {
                    self.set_position(length);
                    return Ok(());
                }
                Ok(Answer::There(there)) if there < length && there > most => {
                    self.set_position(there);
                    (most, fell_back) = (there, false);
                    timeout.reset_after_progress();
                    continue;
                }
                // A server that was killed may have lost some, but not again and again.
                Ok(Answer::There(there)) if there < length && there != from && !fell_back => {
                    self.set_position(there);
                    fell_back = true;
                    continue;
                }
                // The bytes from an earlier attempt are of a file of another length.
                Ok(Answer::There(_)) if from > 0 && !began_anew => {
                    began_anew = true;
                    self.resumed = 0;
                    self.set_position(0);
                    most = 0;
                    continue;
                }
                Ok(Answer::There(_)) => self.invalid_answer("it neither continues nor ends the upload"),
                // The file was published, and the answer that reported it was lost.
                Err(RemoteError::Exists(_) | RemoteError::Status { status: 412, .. })
                    if self.job.is_on_server(length, crc32c)? =>
                {
                    self.set_position(length);
                    return Ok(());
                }
                Err(error) => error,
            };
            let refused = matches!(error, RemoteError::Status { status: 400, .. });
            if refused && from > 0 && !began_anew {
                // The bytes from an earlier attempt were of another file. The server has discarded them.
                began_anew = true;
                self.resumed = 0;
                most = 0;
            } else {
                timeout.wait_or_fail(error)?;
            }
            self.resume_upload(length)?;
            if self.at > most {
                most = self.at;
                timeout.reset_after_progress();
            }
        }
    }

    /// Asks for the number of bytes that the server has. More bytes than there are to send are discarded, and so are
    /// those that leave nothing to send: only a request with some bytes can publish the file.
    fn resume_upload(&mut self, length: u64) -> Result<(), RemoteError> {
        let prepared = self.upload_request();
        let server = &self.job.server;
        let there = server.retry_transient(|| {
            let response = server.send_head(&prepared)?;
            match response.status() {
                StatusCode::NO_CONTENT | StatusCode::OK => upload_offset(&response).ok_or(RemoteError::Answer {
                    url: prepared.url.clone(),
                    what: "no Upload-Offset although it was requested",
                }),
                _ => Err(refusal_error(&prepared.url, response)),
            }
        })?;
        let leaves_nothing = there > 0 && there >= length;
        if leaves_nothing {
            match server.retry_transient(|| server.send_delete(&prepared)) {
                // The upload was published meanwhile.
                Err(error) if error.is_not_found() => {}
                done => done?,
            }
        }
        self.set_position(if leaves_nothing { 0 } else { there });
        Ok(())
    }

    /// Sends a range of the file, with the total length if it is known.
    fn send_range(
        &mut self,
        range: Range<u64>,
        total: Option<u64>,
        crc32c: Option<u32>,
        replaced: Option<&str>,
    ) -> Result<Answer, RemoteError> {
        let Range { start, end } = range;
        let mut prepared = PreparedRequest::new(self.job.server.url_of_resource(&self.job.name));
        if (start, Some(end)) != (0, total) {
            let total = total.map_or_else(|| "*".to_owned(), |total| total.to_string());
            prepared =
                prepared.with_field(header::CONTENT_RANGE, format!("bytes {start}-{}/{total}", end.saturating_sub(1)));
        }
        if let Some(crc32c) = crc32c {
            let name = header::HeaderName::from_static("repr-digest");
            prepared = prepared.with_field(name, thalweg_wire::format_repr_digest(crc32c));
        }
        if let Some(etag) = replaced {
            prepared = prepared.with_field(header::IF_MATCH, etag);
        }
        if end - start > MIN_EXPECT_BYTES {
            // A server that refuses the upload answers before all bytes are sent (RFC 9110, section 10.1.1).
            prepared = prepared.with_field(header::EXPECT, "100-continue");
        }
        let mut body = Body { upload: self, range: start..end, error: None };
        let result = self.job.server.send_put(&prepared, end - start, &mut body);
        let Body { range, error, .. } = body;
        // Bytes that are not on the server's disk do not count.
        self.progress.remove_moved(range.start - start);
        if let Some(error) = error {
            return Err(RemoteError::io_error("reading", &self.job.path)(error));
        }
        let response = result?;
        match (response.status(), upload_offset(&response)) {
            (StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT, _) => Ok(Answer::Published),
            (StatusCode::ACCEPTED | StatusCode::CONFLICT, Some(offset)) => Ok(Answer::There(offset)),
            (StatusCode::CONFLICT, None) => Err(RemoteError::Exists(prepared.url)),
            (StatusCode::BAD_REQUEST, _) if start == 0 && crc32c.is_some() => Err(RemoteError::Refused {
                path: self.job.path.clone(),
                error: Box::new(refusal_error(&prepared.url, response)),
            }),
            _ => Err(refusal_error(&prepared.url, response)),
        }
    }

    fn upload_request(&self) -> PreparedRequest {
        let path = &self.job.name;
        PreparedRequest::new(self.job.server.url_of_resource(Resource { path, query: &[("upload", "")] }))
    }

    fn invalid_answer(&self, what: &'static str) -> RemoteError {
        RemoteError::Answer { url: self.job.server.url_of_resource(&self.job.name), what }
    }

    fn set_position(&mut self, at: u64) {
        self.progress.remove_moved(self.at);
        self.progress.add_moved(at);
        self.at = at;
    }
}

/// A range of a file as the body of a request.
#[derive(Debug)]
struct Body<'a, 'b> {
    upload: &'a Upload<'b>,
    range: Range<u64>,
    /// Error of reading the file, as opposed to one of the connection.
    error: Option<io::Error>,
}

impl Read for Body<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.upload.stop.load(Relaxed) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let most = into.len().min(usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let read = match self.upload.job.file.read_at(&mut into[..most], self.range.start) {
            // The file was longer a moment ago.
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        match read {
            Ok(read) => {
                self.range.start += read as u64;
                self.upload.progress.add_moved(read as u64);
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.error = Some(error);
                Err(kind.into())
            }
        }
    }
}

/// A segment that is sent while it is being written.
#[derive(Debug)]
struct Segment {
    job: Job,
    extent: Extent,
    /// Number of bytes that the server has; `None` before it was asked.
    sent: Option<u64>,
    is_there: bool,
    /// True if the server accepts no bytes of a file of unknown length.
    waits: bool,
}

impl Segment {
    fn new(job: Job) -> Self {
        Self { job, extent: Extent::empty(), sent: None, is_there: false, waits: false }
    }

    /// Sends the new part of the segment, or all the rest if the segment is closed or the run has `ended`. Returns
    /// whether there was anything to send.
    fn send_new_data(&mut self, push: &Push, ended: bool) -> Result<bool, RemoteError> {
        self.extent.advance_to_last_block(&self.job.file).map_err(RemoteError::io_error("reading", &self.job.path))?;
        let Extent { bytes, crc32c, closed } = self.extent;
        let stop = AtomicBool::new(false);
        let mut upload = Upload::new(&self.job, push.progress, &stop);
        let sent = match self.sent {
            Some(sent) => sent,
            None => {
                if self.job.server_head()?.is_some() {
                    // Sent by an earlier attempt.
                    self.is_there = self.job.is_on_server(bytes, crc32c)?;
                    push.tally.count_same_file();
                    if !self.is_there {
                        return Err(RemoteError::Exists(self.job.server.url_of_resource(&self.job.name)));
                    }
                    return Ok(true);
                }
                upload.resume_upload(u64::MAX)?;
                push.tally.count_resumed_bytes(upload.at);
                *self.sent.insert(upload.at)
            }
        };
        upload.at = sent;
        if closed || ended {
            upload.send_whole(bytes, crc32c, None)?;
            push.tally.count_bytes(bytes - sent.min(bytes));
            push.tally.count_file();
            self.is_there = true;
            return Ok(true);
        }
        // A few bytes are held back: the last request, which publishes the file, must contain some.
        let end = bytes.saturating_sub(WITHHELD_BYTES);
        if end <= sent || self.waits {
            return Ok(false);
        }
        let mut timeout = self.job.server.new_retries();
        loop {
            match upload.send_range(sent..end, None, None, None) {
                Ok(Answer::There(there)) => {
                    upload.set_position(there);
                    push.tally.count_bytes(there.saturating_sub(sent));
                    self.sent = Some(there);
                    return Ok(there > sent);
                }
                Ok(Answer::Published) => {
                    return Err(upload.invalid_answer("an unfinished file is reported as complete"));
                }
                Err(RemoteError::Status { status: 400, .. }) => {
                    let url = self.job.server.url_of_resource(&self.job.name);
                    tracing::warn!(
                        "{url}: the server does not accept files of unknown length; the file is sent when \
                        it is closed"
                    );
                    self.waits = true;
                    return Ok(false);
                }
                Err(error) => timeout.wait_or_fail(error)?,
            }
            upload.resume_upload(u64::MAX)?;
            if upload.at != sent {
                self.sent = Some(upload.at);
                return Ok(true);
            }
        }
    }
}

/// Returns the segments of a run, in the order of their numbers.
fn segment_jobs(server: &Server, directory: &Path) -> Result<Vec<Job>, RemoteError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(RemoteError::io_error("reading", directory))? {
        let path = entry.map_err(RemoteError::io_error("reading", directory))?.path();
        if path.extension().is_some_and(|extension| extension == "seg") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    paths.into_iter().map(|path| plain_file_name(&path).and_then(|name| Job::new(server, path, name))).collect()
}

fn read_run_info(directory: &Path) -> Result<RunInfo, RemoteError> {
    match RunInfo::read_run_json(directory) {
        Err(thalweg_store::StoreError::NotARun(path)) => Err(RemoteError::NotARun(path.display().to_string())),
        info => Ok(info?),
    }
}

/// Returns whether the run's writer holds its lock.
fn is_being_written(directory: &Path) -> Result<bool, RemoteError> {
    let file = File::open(directory).map_err(RemoteError::io_error("opening", directory))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(RemoteError::io_error("locking", directory)(error.into())),
    }
}

/// Returns the name of a file or directory, also if it is given as `.`.
fn plain_file_name(path: &Path) -> Result<String, RemoteError> {
    let whole = path.canonicalize().map_err(RemoteError::io_error("reading", path))?;
    let name = whole.file_name().and_then(|name| name.to_str()).filter(|name| crate::listing::is_plain_name(name));
    name.map(str::to_owned).ok_or_else(|| RemoteError::NoName(path.to_owned()))
}

/// Returns the number of bytes that the server has (`Upload-Offset`).
fn upload_offset(response: &ureq::http::Response<ureq::Body>) -> Option<u64> {
    header_field(response, "upload-offset")?.parse().ok()
}

/// Shortest pause between two looks at a run that is being recorded, while data arrive.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause, while none arrive.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes of an open segment that are not sent before it is closed.
const WITHHELD_BYTES: u64 = 4096;
/// Number of bytes above which the server is asked before they are sent.
const MIN_EXPECT_BYTES: u64 = 1 << 20;
