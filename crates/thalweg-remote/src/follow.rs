//! Fetches a run while it is being recorded, so that local readers can follow it.

use crate::listing::Kind;
use crate::moved::Moved;
use crate::part::publish_file;
use crate::pull::{
    Destination, LocalRun, Pull, RUN_JSON, RunJson, check_nothing_missing, create_directory, fill_buffer,
};
use crate::run::builder_parts;
use crate::{Progress, RemoteError, Server};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_store::{Extent, RunInfo, RunState, WriterLife, run_directory_name};
use thalweg_wire::RunNumber;

/// Fetches the run that the server's URL names into the directory `into`, and continues while it is recorded, until it
/// has ended and is complete here.
///
/// Segments grow block by block under their own names, each block is compared with its checksum, and the directory is
/// locked as the recorder locks it: local readers see a run that is being written. When the run has ended, each
/// segment's checksum is compared with the server's, and the last `run.json` is written. After an interruption at any
/// point, another call resumes from there. If the server reports that the recorder died, the run stays OPEN here, too,
/// and is listed in [`Moved::abandoned`].
///
/// # Errors
/// As [`pull_entry`](crate::pull()), and if another process writes the same copy. Bytes that arrived are kept: another
/// call resumes from there.
pub fn pull_while_recorded(
    server: &Server,
    into: &Path,
    streams: usize,
    progress: &Progress,
) -> Result<Moved, RemoteError> {
    let pull = Pull::new(streams, progress);
    match RunJson::read_from_server(server) {
        Err(RemoteError::NotARun(_)) => {}
        run_json => {
            let to = follow_part(&pull, server, run_json?, into)?;
            return Ok(pull.result_so_far(to.display().to_string(), vec![to]));
        }
    }
    // All builders write at once. The part of a builder that begins later is there when the others have ended.
    let (mut known, mut runs) = (Vec::new(), Vec::new());
    loop {
        let mut new = builder_parts(server)?;
        new.retain(|part| !known.contains(&part.url_of_resource("")));
        if new.is_empty() {
            break;
        }
        known.extend(new.iter().map(|part| part.url_of_resource("")));
        runs.extend(std::thread::scope(|scope| {
            let pull = &pull;
            let follow_part =
                new.iter().map(|part| move || follow_part(pull, part, RunJson::read_from_server(part)?, into));
            let threads: Vec<_> = follow_part.map(|follow_part| scope.spawn(follow_part)).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Result<Vec<_>, RemoteError>>()
        })?);
    }
    let Some(first) = runs.first() else { return Err(RemoteError::NotARun(server.url_of_resource(""))) };
    let run = RunInfo::read_run_json(first)?.run;
    let to = into.join(run_directory_name(RunNumber(run), 0, 1));
    Ok(pull.result_so_far(to.display().to_string(), runs))
}

/// Fetches the part of one builder. Returns its local path.
fn follow_part(pull: &Pull, server: &Server, run_json: RunJson, into: &Path) -> Result<PathBuf, RemoteError> {
    let to = run_json.local_directory(Destination::In(into));
    let here = run_json.compare_with_local(&to)?;
    if run_json.info.state != RunState::Open && here != LocalRun::Open {
        return pull.fetch_run(server, Destination::In(into));
    }
    create_directory(&to)?;
    let _lock = lock_directory(&to)?;
    if here == LocalRun::Nothing {
        run_json.write_to_directory(&to)?;
    }
    // All segments but the last do not grow any more: these are fetched with all streams.
    let listing = server.list_directory("")?;
    let mut segments: Vec<_> =
        listing.entries.iter().filter(|entry| parse_segment_number(&entry.name).is_some()).collect();
    segments.retain(|entry| entry.kind == Kind::File);
    segments.sort_by_key(|entry| parse_segment_number(&entry.name));
    let still = segments.split_last().map_or(&[][..], |(_, still)| still);
    let absent = still.iter().filter(|entry| !to.join(&entry.name).exists());
    let jobs: Vec<_> = absent.map(|entry| pull.create_job(server, entry, &to, true, false)).collect();
    pull.fetch_files(&jobs)?;
    let mut replica = Replica { server, pull, to: &to, segments: Vec::new(), run_json };
    replica.open_existing_segments()?;
    if replica.fetch_until_end()? {
        replica.finish_replica()?;
    } else {
        pull.note_abandoned_run(&to);
    }
    Ok(to)
}

/// A local copy that follows the run on the server.
#[derive(Debug)]
struct Replica<'a> {
    server: &'a Server,
    pull: &'a Pull<'a>,
    to: &'a Path,
    segments: Vec<Segment>,
    run_json: RunJson,
}

/// A local segment.
#[derive(Debug)]
struct Segment {
    name: String,
    path: PathBuf,
    file: File,
    /// Part of the segment that is here, up to its last complete block.
    extent: Extent,
}

impl Replica<'_> {
    /// Opens the segments that are here, up to their last complete block.
    fn open_existing_segments(&mut self) -> Result<(), RemoteError> {
        while self.to.join(segment_file_name(self.segments.len())).exists() {
            let segment = Segment::open_or_create(self.to, self.segments.len())?;
            self.pull.count_resumed_bytes(segment.extent.bytes);
            self.segments.push(segment);
        }
        Ok(())
    }

    /// Fetches new data until the run has ended and no more arrive; returns false if its recorder died.
    fn fetch_until_end(&mut self) -> Result<bool, RemoteError> {
        let mut pause = MIN_POLL_INTERVAL;
        let mut is_gone = false;
        loop {
            // The state is read before the segments: if the run had ended by then, these are all.
            let ended = self.run_json.info.state != RunState::Open;
            if self.fetch_new_data()? {
                pause = MIN_POLL_INTERVAL;
                continue;
            }
            if ended || is_gone {
                return Ok(ended);
            }
            if self.update_run_json()? {
                continue;
            }
            if pause == MAX_POLL_INTERVAL {
                // Checked before `run.json` is read once more: a recorder that ends in between does not count as dead.
                is_gone = self.server.list_directory("")?.writer == Some(WriterLife::Gone);
                self.update_run_json()?;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Fetches the new data of segments that may grow, and the next segment. Returns whether there were any.
    fn fetch_new_data(&mut self) -> Result<bool, RemoteError> {
        let mut news = false;
        for segment in &mut self.segments {
            if !segment.extent.closed {
                news |= segment.fetch_new_bytes(self.server, self.pull)?;
            }
        }
        // A segment that could not be given a footer has a successor, too.
        if !news || self.segments.last().is_none_or(|last| last.extent.closed) {
            let next = segment_file_name(self.segments.len());
            match self.server.fetch_head(&next) {
                Err(error) if error.is_not_found() => return Ok(news),
                head => head?,
            };
            self.segments.push(Segment::open_or_create(self.to, self.segments.len())?);
            news = true;
        }
        Ok(news)
    }

    fn update_run_json(&mut self) -> Result<bool, RemoteError> {
        if self.server.fetch_head(RUN_JSON)? == self.run_json.head {
            return Ok(false);
        }
        let run_json = RunJson::read_from_server(self.server)?;
        let (was, is) = (&self.run_json.info, &run_json.info);
        if was.run_identity() != is.run_identity() {
            return Err(RemoteError::Changed(self.server.url_of_resource(RUN_JSON)));
        }
        self.run_json = run_json;
        Ok(true)
    }

    /// Compares the segments with the server's, syncs them to disk, and marks the run as ended.
    fn finish_replica(&mut self) -> Result<(), RemoteError> {
        for segment in &self.segments {
            let head = self.server.fetch_head(&segment.name)?;
            let Extent { bytes, crc32c: found, .. } = segment.extent;
            let expected = head.crc32c.unwrap_or(found);
            if (head.length, expected) != (bytes, found) {
                std::fs::remove_file(&segment.path).map_err(RemoteError::io_error("removing", &segment.path))?;
                let name = segment.path.display().to_string();
                return Err(RemoteError::Digest { name, found, expected });
            }
            publish_file(&segment.file, &segment.path, &segment.path, head.modified)?;
            self.pull.count_file();
        }
        self.pull.count_file();
        self.run_json.write_to_directory(self.to)?;
        check_nothing_missing(self.server.url_of_resource(""), self.to, &self.run_json.info)
    }
}

impl Segment {
    /// Opens the segment of this number, or creates it. Data after its last complete block are cut off.
    fn open_or_create(to: &Path, number: usize) -> Result<Self, RemoteError> {
        let name = segment_file_name(number);
        let path = to.join(&name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(RemoteError::io_error("opening", &path))?;
        let mut segment = Self { name, path, file, extent: Extent::empty() };
        segment.advance_extent()?;
        segment.file.set_len(segment.extent.bytes).map_err(RemoteError::io_error("cutting", &segment.path))?;
        Ok(segment)
    }

    fn advance_extent(&mut self) -> Result<(), RemoteError> {
        self.extent.advance_to_last_block(&self.file).map_err(RemoteError::io_error("reading", &self.path))
    }

    /// Fetches the bytes after those that are here. Returns whether there were any.
    fn fetch_new_bytes(&mut self, server: &Server, pull: &Pull) -> Result<bool, RemoteError> {
        let before = self.extent.bytes;
        let mut reader = server.open_reader(&self.name, before.., None)?;
        if reader.file_head().length < before {
            // The recorder cut the segment off, before a block that it could not write.
            self.file.set_len(reader.file_head().length).map_err(RemoteError::io_error("cutting", &self.path))?;
            self.extent = Extent::empty();
            self.advance_extent()?;
            return Ok(true);
        }
        let mut at = before;
        let mut buffer = vec![0; WRITE_CHUNK_BYTES];
        while reader.remaining_bytes() > 0 {
            let (arrived, error) = fill_buffer(&mut reader, &mut buffer);
            self.file.write_all_at(&buffer[..arrived], at).map_err(RemoteError::io_error("writing", &self.path))?;
            at += arrived as u64;
            pull.count_bytes(arrived as u64);
            self.advance_extent()?;
            if let Some(error) = error {
                return Err(reader.original_error(error));
            }
            if arrived < buffer.len() {
                break;
            }
        }
        // The server sends whole blocks. If it does not, the rest of a block is asked for again.
        let whole = self.extent.bytes;
        if at > before && whole == before {
            return Err(RemoteError::Answer {
                url: server.url_of_resource(&self.name),
                what: "bytes that are not blocks of a run",
            });
        }
        Ok(whole > before)
    }
}

/// Takes the lock that marks a run as being written. It is held until the returned file is dropped.
fn lock_directory(directory: &Path) -> Result<File, RemoteError> {
    let file = File::open(directory).map_err(RemoteError::io_error("opening", directory))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(RemoteError::InUse(directory.to_owned())),
        Err(error) => Err(RemoteError::io_error("locking", directory)(error.into())),
    }
}

/// Returns the number of a segment, from its name.
fn parse_segment_number(name: &str) -> Option<u32> {
    name.strip_suffix(".seg")?.parse().ok()
}

fn segment_file_name(number: usize) -> String {
    format!("{number:05}.seg")
}

/// Shortest pause between two looks at a run that is being recorded, while data arrive.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause, while none arrive.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes written and checked at once.
const WRITE_CHUNK_BYTES: usize = 8 << 20;
