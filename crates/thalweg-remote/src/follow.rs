//! Fetches a run while it is being recorded, so that local readers can follow it.

use crate::listing::Kind;
use crate::moved::Moved;
use crate::part::settle;
use crate::pull::{Destination, LocalRun, Pull, RUN_JSON, RunJson, create, fill, none_missing};
use crate::run::parts;
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
/// As [`pull`](crate::pull()), and if another process writes the same copy. Bytes that arrived are kept: another call
/// resumes from there.
pub fn pull_following(server: &Server, into: &Path, streams: usize, progress: &Progress) -> Result<Moved, RemoteError> {
    let pull = Pull::new(streams, progress);
    match RunJson::read(server) {
        Err(RemoteError::NotARun(_)) => {}
        run_json => {
            let to = follow(&pull, server, run_json?, into)?;
            return Ok(pull.moved(to.display().to_string(), vec![to]));
        }
    }
    // All builders write at once. The part of a builder that begins later is there when the others have ended.
    let (mut known, mut runs) = (Vec::new(), Vec::new());
    loop {
        let mut new = parts(server)?;
        new.retain(|part| !known.contains(&part.url("")));
        if new.is_empty() {
            break;
        }
        known.extend(new.iter().map(|part| part.url("")));
        runs.extend(std::thread::scope(|scope| {
            let pull = &pull;
            let follow_part = new.iter().map(|part| move || follow(pull, part, RunJson::read(part)?, into));
            let threads: Vec<_> = follow_part.map(|follow_part| scope.spawn(follow_part)).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Result<Vec<_>, RemoteError>>()
        })?);
    }
    let Some(first) = runs.first() else { return Err(RemoteError::NotARun(server.url(""))) };
    let run = RunInfo::read(first)?.run;
    let to = into.join(run_directory_name(RunNumber(run), 0, 1));
    Ok(pull.moved(to.display().to_string(), runs))
}

/// Fetches the part of one builder. Returns its local path.
fn follow(pull: &Pull, server: &Server, run_json: RunJson, into: &Path) -> Result<PathBuf, RemoteError> {
    let to = run_json.directory(Destination::In(into));
    let here = run_json.is_here(&to)?;
    if run_json.info.state != RunState::Open && here != LocalRun::Open {
        return pull.run(server, Destination::In(into));
    }
    create(&to)?;
    let _lock = lock(&to)?;
    if here == LocalRun::Nothing {
        run_json.write(&to)?;
    }
    // All segments but the last do not grow any more: these are fetched with all streams.
    let listing = server.list("")?;
    let mut segments: Vec<_> = listing.entries.iter().filter(|entry| number(&entry.name).is_some()).collect();
    segments.retain(|entry| entry.kind == Kind::File);
    segments.sort_by_key(|entry| number(&entry.name));
    let still = segments.split_last().map_or(&[][..], |(_, still)| still);
    let absent = still.iter().filter(|entry| !to.join(&entry.name).exists());
    let jobs: Vec<_> = absent.map(|entry| pull.job(server, entry, &to, true, false)).collect();
    pull.files(&jobs)?;
    let mut replica = Replica { server, pull, to: &to, segments: Vec::new(), run_json };
    replica.resume()?;
    if replica.keep_up()? {
        replica.finish()?;
    } else {
        pull.abandoned(&to);
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
    fn resume(&mut self) -> Result<(), RemoteError> {
        while self.to.join(name(self.segments.len())).exists() {
            let segment = Segment::open(self.to, self.segments.len())?;
            self.pull.resumed(segment.extent.bytes);
            self.segments.push(segment);
        }
        Ok(())
    }

    /// Fetches new data until the run has ended and no more arrive; returns false if its recorder died.
    fn keep_up(&mut self) -> Result<bool, RemoteError> {
        let mut pause = MIN_POLL_INTERVAL;
        let mut is_gone = false;
        loop {
            // The state is read before the segments: if the run had ended by then, these are all.
            let ended = self.run_json.info.state != RunState::Open;
            if self.fetch()? {
                pause = MIN_POLL_INTERVAL;
                continue;
            }
            if ended || is_gone {
                return Ok(ended);
            }
            if self.has_new_book()? {
                continue;
            }
            if pause == MAX_POLL_INTERVAL {
                // Checked before `run.json` is read once more: a recorder that ends in between does not count as dead.
                is_gone = self.server.list("")?.writer == Some(WriterLife::Gone);
                self.has_new_book()?;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_POLL_INTERVAL);
        }
    }

    /// Fetches the new data of segments that may grow, and the next segment. Returns whether there were any.
    fn fetch(&mut self) -> Result<bool, RemoteError> {
        let mut news = false;
        for segment in &mut self.segments {
            if !segment.extent.closed {
                news |= segment.fetch(self.server, self.pull)?;
            }
        }
        // A segment that could not be given a footer has a successor, too.
        if !news || self.segments.last().is_none_or(|last| last.extent.closed) {
            let next = name(self.segments.len());
            match self.server.head(&next) {
                Err(error) if error.is_not_found() => return Ok(news),
                head => head?,
            };
            self.segments.push(Segment::open(self.to, self.segments.len())?);
            news = true;
        }
        Ok(news)
    }

    fn has_new_book(&mut self) -> Result<bool, RemoteError> {
        if self.server.head(RUN_JSON)? == self.run_json.head {
            return Ok(false);
        }
        let run_json = RunJson::read(self.server)?;
        let (was, is) = (&self.run_json.info, &run_json.info);
        if was.identity() != is.identity() {
            return Err(RemoteError::Changed(self.server.url(RUN_JSON)));
        }
        self.run_json = run_json;
        Ok(true)
    }

    /// Compares the segments with the server's, syncs them to disk, and marks the run as ended.
    fn finish(&mut self) -> Result<(), RemoteError> {
        for segment in &self.segments {
            let head = self.server.head(&segment.name)?;
            let Extent { bytes, crc32c: found, .. } = segment.extent;
            let expected = head.crc32c.unwrap_or(found);
            if (head.length, expected) != (bytes, found) {
                std::fs::remove_file(&segment.path).map_err(RemoteError::io("removing", &segment.path))?;
                let name = segment.path.display().to_string();
                return Err(RemoteError::Digest { name, found, expected });
            }
            settle(&segment.file, &segment.path, &segment.path, head.modified)?;
            self.pull.another_file();
        }
        self.pull.another_file();
        self.run_json.write(self.to)?;
        none_missing(self.server.url(""), self.to, &self.run_json.info)
    }
}

impl Segment {
    /// Opens the segment of this number, or creates it. Data after its last complete block are cut off.
    fn open(to: &Path, number: usize) -> Result<Self, RemoteError> {
        let name = name(number);
        let path = to.join(&name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(RemoteError::io("opening", &path))?;
        let mut segment = Self { name, path, file, extent: Extent::nothing() };
        segment.advance()?;
        segment.file.set_len(segment.extent.bytes).map_err(RemoteError::io("cutting", &segment.path))?;
        Ok(segment)
    }

    fn advance(&mut self) -> Result<(), RemoteError> {
        self.extent.advance(&self.file).map_err(RemoteError::io("reading", &self.path))
    }

    /// Fetches the bytes after those that are here. Returns whether there were any.
    fn fetch(&mut self, server: &Server, pull: &Pull) -> Result<bool, RemoteError> {
        let before = self.extent.bytes;
        let mut reader = server.reader(&self.name, before.., None)?;
        if reader.head().length < before {
            // The recorder cut the segment off, before a block that it could not write.
            self.file.set_len(reader.head().length).map_err(RemoteError::io("cutting", &self.path))?;
            self.extent = Extent::nothing();
            self.advance()?;
            return Ok(true);
        }
        let mut at = before;
        let mut buffer = vec![0; WRITE_CHUNK_BYTES];
        while reader.remaining() > 0 {
            let (arrived, error) = fill(&mut reader, &mut buffer);
            self.file.write_all_at(&buffer[..arrived], at).map_err(RemoteError::io("writing", &self.path))?;
            at += arrived as u64;
            pull.count(arrived as u64);
            self.advance()?;
            if let Some(error) = error {
                return Err(reader.error(error));
            }
            if arrived < buffer.len() {
                break;
            }
        }
        // The server sends whole blocks. If it does not, the rest of a block is asked for again.
        let whole = self.extent.bytes;
        if at > before && whole == before {
            return Err(RemoteError::Answer { url: server.url(&self.name), what: "bytes that are no blocks of a run" });
        }
        Ok(whole > before)
    }
}

/// Takes the lock that marks a run as being written. It is held until the returned file is dropped.
fn lock(directory: &Path) -> Result<File, RemoteError> {
    let file = File::open(directory).map_err(RemoteError::io("opening", directory))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(RemoteError::InUse(directory.to_owned())),
        Err(error) => Err(RemoteError::io("locking", directory)(error.into())),
    }
}

/// Returns the number of a segment, from its name.
fn number(name: &str) -> Option<u32> {
    name.strip_suffix(".seg")?.parse().ok()
}

fn name(number: usize) -> String {
    format!("{number:05}.seg")
}

/// Shortest pause between two looks at a run that is being recorded, while data arrive.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause, while none arrive.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes written and checked at once.
const WRITE_CHUNK_BYTES: usize = 8 << 20;
