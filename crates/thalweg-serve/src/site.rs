//! The answer to each request.

use crate::answer::{Answer, Content};
use crate::coding::{Coding, MAX_PLAIN_BYTES, compress_if_shorter};
use crate::condition::Validators;
use crate::events::{EventsError, Selection};
use crate::fields::{DIGEST, REPR_DIGEST};
use crate::head::{Body, Head};
use crate::listing::{Format, Kind, Listing, builder_directories, query_parameter};
use crate::token::{Tokens, Verdict};
use crate::tree::{Name, NameError, Tree};
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, LOCATION, RANGE, VARY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use percent_encoding::{CONTROLS, utf8_percent_encode};
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use thalweg_store::{Extent, Run, RunFiles, RunInfo, RunState, StoreError};
use thalweg_transfer::Stored;
use thalweg_wire::{EventRange, format_repr_digest};

/// The served directory, with permissions and caches.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) tree: Tree,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) write: bool,
    /// True if files and events are compressed for clients that ask for it.
    compress: bool,
    /// Number of valid bytes of each segment, and their checksum.
    extents: Mutex<Known<KnownExtent>>,
    /// Checksums of other files, or that they have none, as of a time of change.
    crcs: Mutex<Known<(Changed, Option<u32>)>>,
    /// Runs whose events were asked for recently.
    runs: Mutex<Vec<KnownRun>>,
}

/// Facts about files, by `st_dev` and `st_ino`.
type Known<T> = HashMap<(u64, u64), T>;

/// A time of change: `st_ctime` and `st_ctime_nsec`.
type Changed = (i64, u64);

#[derive(Debug, Clone, Copy)]
struct KnownExtent {
    extent: Extent,
    size: u64,
    changed: Changed,
    /// Time of creation (`stx_btime`): another file may get the inode number of a deleted one.
    created: Option<(i64, u32)>,
    /// True if the extent holds as long as size and time of change stay the same.
    is_reliable: bool,
}

/// A run that was opened, with the keys under which it is kept: a difference in any of them means another state of the
/// run.
#[derive(Debug)]
struct KnownRun {
    directory: PathBuf,
    changed: SystemTime,
    /// Number of valid bytes in the segments of a run that is being written; 0 for others.
    bytes: u64,
    run: Arc<Run>,
}

impl Site {
    pub(crate) fn new(tree: Tree, tokens: Option<Tokens>, write: bool, compress: bool) -> Self {
        Self {
            tree,
            tokens,
            write,
            compress,
            extents: Mutex::default(),
            crcs: Mutex::default(),
            runs: Mutex::default(),
        }
    }

    /// Answers a request that needs no body; a body that comes all the same is not read. A `HEAD` is answered like a
    /// `GET`, and its content is not sent.
    pub(crate) fn answer_request(&self, head: &Head) -> Answer {
        let about_upload = crate::upload::is_about_upload(head);
        let answer = match head.method {
            Method::HEAD if about_upload => crate::upload::answer_offset(self, head),
            Method::DELETE if about_upload => crate::upload::answer_discard(self, head),
            Method::GET | Method::HEAD => self.answer_get(head, true).unwrap_or_else(answer_not_found),
            Method::OPTIONS => Answer::new(StatusCode::NO_CONTENT).with_field(ALLOW, self.allowed_methods(head)),
            Method::POST | Method::PUT | Method::DELETE | Method::PATCH | Method::TRACE | Method::CONNECT => {
                self.method_not_allowed(head)
            }
            _ => Answer::with_sentence(StatusCode::NOT_IMPLEMENTED, format!("the method {} is unknown", head.method)),
        };
        if head.body == Body::Length(0) { answer } else { answer.with_close() }
    }

    /// Answers with a file or a sentence. Returns `None` for requests that take longer: listings, events, uploads, and
    /// a segment whose extent is not known.
    pub(crate) fn answer_without_waiting(&self, head: &Head) -> Option<Answer> {
        let is_quick = matches!(head.method, Method::GET | Method::HEAD)
            && !crate::upload::is_about_upload(head)
            && matches!(Name::from_path(&head.path), Ok(Name::Entry(_, false)) | Err(_));
        let answer = if is_quick { self.answer_get(head, false)? } else { return None };
        Some(if head.body == Body::Length(0) { answer } else { answer.with_close() })
    }

    /// Returns a 405 answer that lists the methods that are possible.
    pub(crate) fn method_not_allowed(&self, head: &Head) -> Answer {
        let answer = Answer::with_sentence(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{} is not possible for this resource", head.method),
        );
        answer.with_field(ALLOW, self.allowed_methods(head))
    }

    fn allowed_methods(&self, head: &Head) -> &'static str {
        match (self.write, crate::upload::is_about_upload(head)) {
            (false, _) => "GET, HEAD, OPTIONS",
            (true, false) => "GET, HEAD, OPTIONS, PUT",
            (true, true) => "GET, HEAD, OPTIONS, DELETE",
        }
    }

    /// Returns the name in a request, if its sender may read or write it.
    pub(crate) fn authorize_request(&self, head: &Head, write: bool) -> Result<Name, Answer> {
        let name = Name::from_path(&head.path);
        let path = match &name {
            Ok(Name::Entry(path, _) | Name::Runs(path) | Name::Events(path, ..)) => path.as_path(),
            Err(_) => Path::new(""),
        };
        if let Some(tokens) = &self.tokens {
            let authorization = head.fields.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
            match tokens.check_permission(authorization, path, write) {
                Verdict::Allowed => {}
                Verdict::Unknown => {
                    let answer = Answer::with_sentence(
                        StatusCode::UNAUTHORIZED,
                        "a token is required: Authorization: Bearer TOKEN",
                    );
                    return Err(answer.with_field(WWW_AUTHENTICATE, "Bearer realm=\"thalweg\""));
                }
                Verdict::Forbidden => {
                    return Err(Answer::with_sentence(StatusCode::FORBIDDEN, "this token does not permit the request"));
                }
            }
        }
        name.map_err(|error| match error {
            NameError::Bad => Answer::with_sentence(StatusCode::BAD_REQUEST, "this is not a path"),
            NameError::None => answer_not_found(),
            NameError::Events => Answer::with_sentence(
                StatusCode::NOT_FOUND,
                "select events as 7, 10..20 (from 10 up to but not including 20), 10.. or ..20",
            ),
        })
    }

    /// Returns `None` if the disk would have to be waited for and `wait` is false.
    fn answer_get(&self, head: &Head, wait: bool) -> Option<Answer> {
        let answer = self.authorize_request(head, false).and_then(|name| match name {
            Name::Runs(path) => {
                if !head.path.ends_with('/') {
                    return Ok(Some(redirect_to_directory(head)));
                }
                let mut listing =
                    Listing::list_runs(&self.tree, &path, head.path.clone()).map_err(answer_system_error)?;
                self.correct_listed_sizes(&mut listing, &path);
                Ok(Some(answer_listing(&listing, head)))
            }
            Name::Events(path, range) => self.answer_events(head, &path, range).map(Some),
            Name::Entry(path, slash) => self.answer_entry(head, &path, slash, wait),
        });
        answer.unwrap_or_else(Some)
    }

    fn answer_entry(&self, head: &Head, path: &Path, slash: bool, wait: bool) -> Result<Option<Answer>, Answer> {
        let file = match self.tree.open_file(path) {
            Err(Errno::NOENT) => {
                let listing = Listing::list_parts(&self.tree, path, head.path.clone()).ok_or_else(answer_not_found)?;
                return Ok(Some(if slash { answer_listing(&listing, head) } else { redirect_to_directory(head) }));
            }
            file => file.map_err(answer_system_error)?,
        };
        let stat = rustix::fs::fstat(&file).map_err(answer_system_error)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if !slash => Ok(Some(redirect_to_directory(head))),
            FileType::Directory => {
                let mut listing =
                    Listing::list_directory(&self.tree, path, head.path.clone()).map_err(answer_system_error)?;
                self.correct_listed_sizes(&mut listing, path);
                Ok(Some(answer_listing(&listing, head)))
            }
            FileType::RegularFile if !slash => self.answer_file(head, path, file, &stat, wait),
            _ => Err(answer_not_found()),
        }
    }

    fn answer_file(
        &self,
        head: &Head,
        path: &Path,
        file: File,
        stat: &Stat,
        wait: bool,
    ) -> Result<Option<Answer>, Answer> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let segment = match is_segment_path(path).then(|| self.known_extent(stat, size)) {
            Some(None) if !wait => return Ok(None),
            Some(None) => Some(self.segment_extent(&file, stat, size).map_err(answer_server_error)?),
            known => known.flatten(),
        };
        let (length, crc, validators) = match segment {
            // The blocks of an open segment never change, so neither do the checksum and the tag of this many bytes.
            Some(Extent { bytes, crc32c, closed: false, .. }) => {
                let state = Validators::from_state(format!("{:x}-{bytes:x}-{crc32c:x}", stat.st_ino));
                (bytes, Some(crc32c), state.with_modification_time(stat.st_mtime))
            }
            Some(extent) if extent.bytes == size => (size, Some(extent.crc32c), Validators::from_file(stat)),
            // Closed, and damaged since: shown as it is.
            Some(_) => (size, None, Validators::from_file(stat)),
            None => (size, self.known_file_crc32c(&file, stat), Validators::from_file(stat)),
        };
        let mut content = Content::default();
        content.push_file_range(&Arc::new(Stored::new(file)), 0..length);
        // The file may grow or be replaced: caches have to revalidate.
        let mut whole = Answer::new(StatusCode::OK)
            .with_field(CONTENT_TYPE, content_type(path))
            .with_field(CACHE_CONTROL, "no-cache")
            .with_field(X_CONTENT_TYPE_OPTIONS, "nosniff")
            .with_content(content);
        if let Some(crc) = crc {
            let digest = format_repr_digest(crc);
            whole = whole.with_field(REPR_DIGEST, &digest).with_field(DIGEST, digest.replace(':', ""));
        }
        Ok(Some(self.answer_stored_content(head, validators, whole)))
    }

    /// Returns bytes as they are stored, or compressed if the server compresses and the client asks for all of them
    /// that way.
    fn answer_stored_content(&self, head: &Head, validators: Validators, whole: Answer) -> Answer {
        if !self.compress {
            return validators.answer_conditionally(head, whole);
        }
        let can = head.version > 0 && whole.content.length > MAX_PLAIN_BYTES as u64 && !head.fields.contains_key(RANGE);
        let coding = Coding::preferred_coding(&head.fields).filter(|_| can);
        let answer =
            validators.with_coding(coding).answer_conditionally(head, whole.with_field(VARY, "accept-encoding"));
        match coding {
            Some(coding) if answer.status == StatusCode::OK => answer.with_coding(coding),
            _ => answer,
        }
    }

    /// Corrects the sizes in a listing to the bytes that would be served: a segment that is being written is longer
    /// than its content, since space is set aside for it.
    fn correct_listed_sizes(&self, listing: &mut Listing, path: &Path) {
        let is_open = listing.writer.is_some();
        for entry in &mut listing.entries {
            match &mut entry.kind {
                Kind::File { bytes } if is_open => {
                    *bytes = self.valid_segment_bytes(&path.join(&entry.name)).unwrap_or(*bytes);
                }
                Kind::Run { directory, writer: Some(_), bytes, .. } => {
                    let segments = (0..).map_while(|number| {
                        self.valid_segment_bytes(&path.join(&*directory).join(format!("{number:05}.seg")))
                    });
                    *bytes = segments.sum();
                }
                _ => {}
            }
        }
    }

    /// Returns the number of valid bytes in a segment, or `None` if there is no such segment.
    fn valid_segment_bytes(&self, segment: &Path) -> Option<u64> {
        let file = self.tree.open_file(segment).ok().filter(|_| is_segment_path(segment))?;
        let stat = rustix::fs::fstat(&file).ok()?;
        self.segment_extent(&file, &stat, u64::try_from(stat.st_size).ok()?).ok().map(|extent| extent.bytes)
    }

    /// Returns the checksum of a file that was uploaded.
    fn known_file_crc32c(&self, file: &File, stat: &Stat) -> Option<u32> {
        let key = (stat.st_dev, stat.st_ino);
        if let Some((_, crc)) = self.crcs.lock().get(&key).filter(|(of, _)| *of == time_of_change(stat)) {
            return *crc;
        }
        let crc = crate::upload::read_stored_crc32c(file, stat);
        if would_change_be_seen(stat) {
            insert_fact(&mut self.crcs.lock(), key, (time_of_change(stat), crc));
        }
        crc
    }

    /// Returns the extent of a segment if it is known and nothing has changed since.
    fn known_extent(&self, stat: &Stat, size: u64) -> Option<Extent> {
        let extents = self.extents.lock();
        let known = extents.get(&(stat.st_dev, stat.st_ino))?;
        let is_unchanged = known.size == size && known.changed == time_of_change(stat);
        (is_unchanged && known.is_reliable).then_some(known.extent)
    }

    /// Determines the extent of a segment. The result is kept, and the next call continues from it.
    fn segment_extent(&self, file: &File, stat: &Stat, size: u64) -> std::io::Result<Extent> {
        if let Some(extent) = self.known_extent(stat, size) {
            return Ok(extent);
        }
        let key = (stat.st_dev, stat.st_ino);
        let created = time_of_creation(file);
        let known = self.extents.lock().get(&key).copied();
        let mut extent = match known {
            // A segment grows, and is cut off after its last block when it is closed.
            Some(known)
                if !known.extent.closed
                    && known.extent.bytes <= size
                    && created.is_some()
                    && created == known.created =>
            {
                known.extent
            }
            _ => Extent::empty(),
        };
        extent.advance_to_last_block(file)?;
        let is_reliable = extent.closed || would_change_be_seen(stat);
        let known = KnownExtent { extent, size, changed: time_of_change(stat), created, is_reliable };
        insert_fact(&mut self.extents.lock(), key, known);
        Ok(extent)
    }

    fn answer_events(&self, head: &Head, path: &Path, range: EventRange) -> Result<Answer, Answer> {
        let run = self.open_run_or_parts(path)?;
        let sources: Vec<String> = query_parameter(&head.query, "source").collect();
        let selection =
            Selection::select_events(&run, range.first, range.last, &sources).map_err(answer_events_error)?;
        if let Some(format) = query_parameter(&head.query, "format").find(|format| format != "json") {
            return Err(Answer::with_sentence(
                StatusCode::BAD_REQUEST,
                format!("unknown format {format:?}: the only one is json"),
            ));
        }
        if query_parameter(&head.query, "format").next().is_some() {
            #[derive(serde::Serialize)]
            struct Events {
                events: Vec<crate::events::Described>,
            }
            let events = selection.describe_records(&run).map_err(answer_events_error)?;
            let text = serde_json::to_vec(&Events { events }).map_err(answer_server_error)?;
            let whole = Answer::new(StatusCode::OK)
                .with_field(CONTENT_TYPE, "application/json")
                .with_field(VARY, "accept-encoding");
            let (whole, text) = compress_if_shorter(whole, text, &head.fields);
            return Ok(Validators::from_bytes(&text).answer_conditionally(head, whole.with_bytes(text)));
        }
        let (content, state) = selection.record_ranges(&run).map_err(answer_events_error)?;
        let whole = Answer::new(StatusCode::OK).with_field(CONTENT_TYPE, "application/vnd.thalweg.records");
        let whole = whole.with_field(CACHE_CONTROL, "no-cache").with_content(content);
        Ok(self.answer_stored_content(head, Validators::from_state(format!("{state:016x}")), whole))
    }

    /// Opens a run of one or several builders.
    fn open_run_or_parts(&self, path: &Path) -> Result<Arc<Run>, Answer> {
        let parts = builder_directories(&self.tree, path);
        if parts.is_empty() {
            return self.open_run(path);
        }
        let runs = parts.iter().map(|part| self.open_run(part)).collect::<Result<Vec<_>, _>>()?;
        let parts = runs.iter().flat_map(|run| run.builder_parts()).map(Arc::clone).collect();
        Run::from_parts(self.tree.root_path().join(path), parts).map(Arc::new).map_err(answer_server_error)
    }

    /// Opens a run of one builder, or the part of one builder, and keeps it open for the next request.
    fn open_run(&self, path: &Path) -> Result<Arc<Run>, Answer> {
        // Every requested path lies beneath the root, and so does the run, whatever links exist.
        self.tree.open_file(&path.join("run.json")).map_err(answer_system_error)?;
        let directory = self.tree.root_path().join(path);
        let changed = std::fs::metadata(directory.join("run.json")).and_then(|data| data.modified());
        let changed = changed.map_err(|_| answer_not_found())?;
        if let Some(run) = self.find_known_run(&directory, changed, 0) {
            return Ok(run);
        }
        let info = RunInfo::read_run_json(&directory).map_err(answer_run_error)?;
        let (bytes, run) = if info.state == RunState::Open {
            // The extent of a segment is determined past the page cache, and only for bytes added since the last time:
            // the run is opened by the blocks' headers and tables.
            let growing = Growing::new(self, path, directory.clone()).map_err(answer_server_error)?;
            let bytes = growing.total_bytes();
            if let Some(run) = self.find_known_run(&directory, changed, bytes) {
                return Ok(run);
            }
            (bytes, Run::open_remote(Arc::new(growing)))
        } else {
            (0, Run::open(&directory))
        };
        let run = Arc::new(run.map_err(answer_run_error)?);
        let mut runs = self.runs.lock();
        runs.retain(|known| known.directory != directory);
        if runs.len() >= MAX_OPEN_RUNS {
            runs.remove(0);
        }
        runs.push(KnownRun { directory, changed, bytes, run: Arc::clone(&run) });
        Ok(run)
    }

    fn find_known_run(&self, directory: &Path, changed: SystemTime, bytes: u64) -> Option<Arc<Run>> {
        let runs = self.runs.lock();
        let known = runs
            .iter()
            .find(|known| (known.directory.as_path(), known.changed, known.bytes) == (directory, changed, bytes))?;
        Some(Arc::clone(&known.run))
    }
}

/// A run that is being written, up to the last complete block of each segment.
#[derive(Debug)]
struct Growing {
    directory: PathBuf,
    info: Vec<u8>,
    segments: Vec<(String, File, u64)>,
}

impl Growing {
    fn new(site: &Site, path: &Path, directory: PathBuf) -> io::Result<Self> {
        let mut info = Vec::new();
        site.tree.open_file(&path.join("run.json"))?.read_to_end(&mut info)?;
        let mut segments = Vec::new();
        for name in (0..).map(|number: u32| format!("{number:05}.seg")) {
            let file = match site.tree.open_file(&path.join(&name)) {
                Err(Errno::NOENT) => break,
                file => file?,
            };
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                break;
            }
            let bytes = site.segment_extent(&file, &stat, u64::try_from(stat.st_size).unwrap_or(0))?.bytes;
            segments.push((name, file, bytes));
        }
        Ok(Self { directory, info, segments })
    }

    fn total_bytes(&self) -> u64 {
        self.segments.iter().map(|(.., bytes)| bytes).sum()
    }
}

impl RunFiles for Growing {
    fn display_path(&self) -> &Path {
        &self.directory
    }

    fn read_run_json(&self) -> io::Result<Vec<u8>> {
        Ok(self.info.clone())
    }

    fn list_files(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.segments.iter().map(|(name, _, bytes)| (name.clone(), *bytes)).collect())
    }

    fn read_file_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let (_, file, bytes) = self.segments.iter().find(|(name, ..)| name == file).ok_or(io::ErrorKind::NotFound)?;
        let end = offset.saturating_add(into.len() as u64).min(*bytes);
        let length = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
        let (mut buffer, mut read) = (vec![0; length.min(READ_CHUNK_BYTES)], 0);
        thalweg_transfer::read_in_parts(file, offset..end.max(offset), &mut buffer, |bytes| {
            into[read..read + bytes.len()].copy_from_slice(bytes);
            read += bytes.len();
            Ok(())
        })?;
        Ok(read)
    }
}

/// Returns whether a path has the form `run-000042/00000.seg`, judging by the names alone.
fn is_segment_path(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".seg"));
    let parent = path
        .parent()
        .and_then(|parent| parent.file_name())
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"run-"));
    parent && name.is_some_and(|name| name.len() >= 5 && name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("toml") => "application/toml",
        Some("txt" | "log" | "md") => "text/plain; charset=utf-8",
        Some("csv") => "text/csv; charset=utf-8",
        Some("h5" | "hdf5" | "nxs") => "application/x-hdf5",
        Some("parquet") => "application/vnd.apache.parquet",
        Some("arrow") => "application/vnd.apache.arrow.file",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

fn time_of_change(stat: &Stat) -> Changed {
    (stat.st_ctime, stat.st_ctime_nsec)
}

/// Returns whether a change of a file since its time of change would have changed that time: the file system's clock
/// stands still for some milliseconds.
fn would_change_be_seen(stat: &Stat) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    i64::try_from(now).is_ok_and(|now| stat.st_ctime + 2 <= now)
}

/// Returns the time of creation of a file, if the file system records it.
fn time_of_creation(file: &File) -> Option<(i64, u32)> {
    let known = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_there = StatxFlags::from_bits_retain(known.stx_mask).contains(StatxFlags::BTIME);
    is_there.then_some((known.stx_btime.tv_sec, known.stx_btime.tv_nsec))
}

/// Stores a fact about a file; clears the table first when it is full.
fn insert_fact<T>(known: &mut Known<T>, file: (u64, u64), what: T) {
    if known.len() >= MAX_KNOWN_FILES {
        known.clear();
    }
    known.insert(file, what);
}

fn answer_listing(listing: &Listing, head: &Head) -> Answer {
    let (kind, bytes) = match Format::preferred_format(&head.fields, &head.query) {
        Format::Html => ("text/html; charset=utf-8", listing.to_html()),
        Format::Json => ("application/json", listing.to_json()),
    };
    let whole = Answer::new(StatusCode::OK).with_field(CONTENT_TYPE, kind).with_field(CACHE_CONTROL, "no-cache");
    let (whole, bytes) = compress_if_shorter(whole, bytes, &head.fields);
    // Each coding of the content is a state of its own (RFC 9110, section 8.8.3.3).
    let validators = Validators::from_bytes(&bytes);
    validators.answer_conditionally(head, whole.with_field(VARY, "accept, accept-encoding").with_bytes(bytes))
}

fn redirect_to_directory(head: &Head) -> Answer {
    let query = if head.query.is_empty() { String::new() } else { format!("?{}", head.query) };
    // Characters that a client did not encode are returned to it encoded.
    let place = format!("{}/{query}", utf8_percent_encode(&head.path, CONTROLS));
    Answer::with_sentence(StatusCode::MOVED_PERMANENTLY, format!("it is at {place}"))
        .with_field(LOCATION, place)
        .with_field(CACHE_CONTROL, "no-cache")
}

pub(crate) fn answer_not_found() -> Answer {
    Answer::with_sentence(StatusCode::NOT_FOUND, "nothing found here")
}

/// Returns the answer to a client for a file system error.
pub(crate) fn answer_system_error(error: Errno) -> Answer {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::ISDIR | Errno::NXIO => answer_not_found(),
        Errno::XDEV | Errno::LOOP => Answer::with_sentence(
            StatusCode::FORBIDDEN,
            "the path leaves the served \
            directory",
        ),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Answer::with_sentence(StatusCode::FORBIDDEN, "the server lacks permission")
        }
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            Answer::with_sentence(StatusCode::INSUFFICIENT_STORAGE, "the disk is full")
        }
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
            Answer::with_sentence(StatusCode::SERVICE_UNAVAILABLE, "the server is overloaded")
        }
        error => answer_server_error(error),
    }
}

/// Answers an unexpected error with 500: the cause is written to the log, not sent to the client.
pub(crate) fn answer_server_error(error: impl std::fmt::Display) -> Answer {
    tracing::warn!("a request failed: {error}");
    Answer::with_sentence(StatusCode::INTERNAL_SERVER_ERROR, "the server cannot read this; see its log")
}

fn answer_run_error(error: StoreError) -> Answer {
    match error {
        StoreError::NotARun(_) => answer_not_found(),
        error => answer_server_error(error),
    }
}

fn answer_events_error(error: EventsError) -> Answer {
    match error {
        EventsError::Source(_) => Answer::with_sentence(StatusCode::NOT_FOUND, error.to_string()),
        EventsError::TooMany => Answer::with_sentence(StatusCode::BAD_REQUEST, error.to_string()),
        error => answer_server_error(error),
    }
}

/// Maximum number of files whose facts are kept.
const MAX_KNOWN_FILES: usize = 65536;
/// Number of bytes read at a time of a run that is being written.
const READ_CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of runs kept open.
const MAX_OPEN_RUNS: usize = 16;
