//! A partly fetched file: `.NAME.part`, with a journal that makes it resumable.
//!
//! The journal `.NAME.part.journal`, beside the file, has one line of JSON that identifies the content, and then a line
//! for each piece that was written: its offset, its length, and the CRC32C of the bytes that arrived. A piece is
//! recorded after it was written, so a process that is killed leaves a correct journal. The disk may receive both in
//! another order: after a restart of the machine the pieces are read back and compared before they are trusted. A
//! journal whose file is gone is not trusted at all. The journal is a cache: if it cannot be read, the file is fetched
//! anew.

use crate::server::Head;
use crate::{Digest, RemoteError};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, Timespec, Timestamps};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A file that is being fetched, by several threads at once.
#[derive(Debug)]
pub(crate) struct Part {
    /// Final path of the file.
    path: PathBuf,
    file: File,
    length: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    journal: File,
    /// Pieces that are written, by offset.
    pieces: Pieces,
    /// Number of bytes in these pieces.
    there: u64,
    /// Ranges that no thread fetches yet.
    missing: Vec<Range<u64>>,
}

/// Identity of the content being fetched. Pieces of one content are never combined with those of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    url: String,
    length: u64,
    /// Version that distinguishes it from other contents; `None` for a file that only grows.
    version: Option<String>,
}

/// Pieces that are written: offset and digest.
type Pieces = BTreeMap<u64, Digest>;

/// First line of the journal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Begin {
    content: Content,
    /// The kernel's identifier of the current boot.
    boot: String,
}

impl Content {
    /// Returns the identity of the server's content under `url`. In a file that `grows`, written bytes never change.
    pub(crate) fn new(url: String, head: &Head, grows: bool) -> Self {
        let version = match (&head.etag, head.modified) {
            _ if grows => None,
            (Some(etag), _) => Some(etag.clone()),
            (None, Some(modified)) => Some(format!("modified {}", unix_seconds(modified))),
            (None, None) => Some(String::new()),
        };
        Self { url, length: head.length, version }
    }

    /// Returns whether the pieces fetched of `other` are also part of this content.
    fn continues_content(&self, other: &Self) -> bool {
        let grew = self.version.is_none() && other.length <= self.length;
        // If the server sends nothing that distinguishes contents, they may differ.
        let is_known = self.version.as_deref() != Some("");
        is_known && self.url == other.url && self.version == other.version && (grew || self.length == other.length)
    }
}

impl Part {
    /// Begins to fetch `content` into the future file `path`, or resumes an earlier fetch.
    pub(crate) fn open_or_resume(path: &Path, content: &Content) -> Result<Self, RemoteError> {
        let (at, journal_at) = (hidden_path(path, ".part"), hidden_path(path, ".part.journal"));
        let file = open_or_create(&at)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RemoteError::InUse(at)),
            result => result.map_err(|error| RemoteError::io_error("locking", &at)(error.into()))?,
        }
        let metadata = file.metadata().map_err(RemoteError::io_error("reading", &at))?;
        // The previous holder of the lock may have renamed the file since it was opened here.
        if !is_still_named(&metadata, &at) {
            return Err(RemoteError::InUse(at));
        }
        let mut journal = open_or_create(&journal_at)?;
        let begin = Begin { content: content.clone(), boot: boot_id() };
        let mut pieces = Pieces::new();
        let mut is_right = false;
        let mut text = Vec::new();
        journal.read_to_end(&mut text).map_err(RemoteError::io_error("reading", &journal_at))?;
        if let Some((before, noted)) = parse_journal(&text)
            && content.continues_content(&before.content)
        {
            let count = noted.len();
            pieces = noted;
            // The journal may be older than the file: pieces beyond the end of the file were never in it.
            pieces.retain(|offset, digest| offset + digest.length <= metadata.len());
            if before.boot != begin.boot || begin.boot.is_empty() {
                pieces.retain(|offset, digest| {
                    digest_of_range(&file, *offset..*offset + digest.length).is_ok_and(|found| found == *digest)
                });
            }
            is_right = before == begin && pieces.len() == count && text.ends_with(b"\n");
        }
        // A process killed during the rewrite has to begin anew: a correct journal is therefore only appended to.
        if !is_right {
            rewrite_journal(&mut journal, &begin, &pieces).map_err(RemoteError::io_error("writing", &journal_at))?;
        }
        allocate_space(&file, content.length).map_err(RemoteError::io_error("reserving disk space for", &at))?;
        let missing = missing_ranges(&pieces, content.length);
        let there = pieces.values().map(|digest| digest.length).sum();
        let state = Mutex::new(State { journal, pieces, there, missing });
        Ok(Self { path: path.to_owned(), file, length: content.length, state })
    }

    /// Returns the number of bytes that are written.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.state.lock().there
    }

    pub(crate) fn is_fully_written(&self) -> bool {
        self.written_bytes() == self.length
    }

    /// Returns a range that no thread fetches yet, for one of `streams` threads: long at first, so that few requests
    /// are made, and shorter towards the end, so that all threads finish together.
    pub(crate) fn take_missing_range(&self, streams: usize) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let left: u64 = state.missing.iter().map(|range| range.end - range.start).sum();
        let fair = (left / (2 * streams as u64)).clamp(MIN_RANGE_BYTES, MAX_RANGE_BYTES);
        let first = state.missing.first_mut()?;
        let end = (first.start + fair).next_multiple_of(MIN_RANGE_BYTES).min(first.end);
        let range = first.start..end;
        first.start = end;
        state.missing.retain(|range| !range.is_empty());
        Some(range)
    }

    /// Writes bytes that arrived.
    pub(crate) fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<(), RemoteError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(RemoteError::io_error("writing", &hidden_path(&self.path, ".part")))
    }

    /// Records that these bytes are written. Returns whether they were the last that were missing.
    pub(crate) fn record_piece(&self, offset: u64, digest: Digest) -> Result<bool, RemoteError> {
        let mut state = self.state.lock();
        let written = state.journal.write_all(journal_line(offset, digest).as_bytes());
        written.map_err(RemoteError::io_error("writing", &hidden_path(&self.path, ".part.journal")))?;
        state.pieces.insert(offset, digest);
        state.there += digest.length;
        Ok(state.there == self.length)
    }

    /// Renames the file to its final name, once it is complete, matches the server's checksum, and is synced to disk. A
    /// file that does not match is removed.
    pub(crate) fn finish_file(&self, head: &Head) -> Result<(), RemoteError> {
        let found = self.state.lock().pieces.values().fold(Digest::default(), |whole, piece| whole.followed_by(*piece));
        let (part, journal) = (hidden_path(&self.path, ".part"), hidden_path(&self.path, ".part.journal"));
        if let Some(expected) = head.crc32c.filter(|expected| *expected != found.crc32c) {
            // The journal first: without it, the other file is not used.
            for file in [&journal, &part] {
                std::fs::remove_file(file).map_err(RemoteError::io_error("removing", file))?;
            }
            let name = self.path.display().to_string();
            return Err(RemoteError::Digest { name, found: found.crc32c, expected });
        }
        // The journal is removed before the file gets its name, and so never describes another file. After an
        // interruption in between, the file is fetched again.
        self.file.sync_all().map_err(RemoteError::io_error("syncing", &part))?;
        std::fs::remove_file(&journal).map_err(RemoteError::io_error("removing", &journal))?;
        publish_file(&self.file, &part, &self.path, head.modified)
    }
}

fn open_or_create(path: &Path) -> Result<File, RemoteError> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(RemoteError::io_error("creating", path))
}

/// Returns a piece's line in the journal.
fn journal_line(offset: u64, digest: Digest) -> String {
    format!("{offset} {} {:08x}\n", digest.length, digest.crc32c)
}

fn parse_journal_line(line: &str) -> Option<(u64, Digest)> {
    let mut words = line.split(' ');
    let (offset, length) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let crc32c = u32::from_str_radix(words.next()?, 16).ok()?;
    words.next().is_none().then_some((offset, Digest { crc32c, length }))
}

/// Publishes a written file under its final name: sets the server's date, syncs it to disk, and renames it.
pub(crate) fn publish_file(
    file: &File,
    from: &Path,
    to: &Path,
    modified: Option<SystemTime>,
) -> Result<(), RemoteError> {
    if let Some(modified) = modified {
        let time = Timespec { tv_sec: unix_seconds(modified), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(file, &times).map_err(|error| RemoteError::io_error("dating", from)(error.into()))?;
    }
    file.sync_all().map_err(RemoteError::io_error("syncing", from))?;
    std::fs::rename(from, to).map_err(RemoteError::io_error("renaming", from))?;
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(RemoteError::io_error("syncing", directory))
}

/// Returns whether a file that was opened as `path` is still the one of that name.
fn is_still_named(opened: &Metadata, path: &Path) -> bool {
    let named = std::fs::metadata(path);
    named.is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()))
}

/// Returns the path `.NAME.part` beside `NAME`.
pub(crate) fn hidden_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(suffix);
    path.with_file_name(name)
}

/// Computes the digest of a range of a file by reading it.
pub(crate) fn digest_of_range(file: &File, range: Range<u64>) -> io::Result<Digest> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut crc = thalweg_wire::Crc32c::new();
    let mut at = range.start;
    while at < range.end {
        let length = CHUNK_BYTES.min(usize::try_from(range.end - at).unwrap_or(CHUNK_BYTES));
        file.read_exact_at(&mut buffer[..length], at)?;
        crc.update(&buffer[..length]);
        at += length as u64;
    }
    Ok(Digest { crc32c: crc.checksum(), length: range.end - range.start })
}

/// Returns the seconds since 1970, rounded down, as in `Last-Modified`.
pub(crate) fn unix_seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    }
}

/// Parses a journal. Returns `None` unless all pieces lie within the file and do not overlap. A truncated last line is
/// ignored.
fn parse_journal(text: &[u8]) -> Option<(Begin, Pieces)> {
    let text = std::str::from_utf8(text).ok()?;
    let (begin, lines) = text.split_once('\n')?;
    let begin: Begin = serde_json::from_str(begin).ok()?;
    let whole = &lines[..lines.rfind('\n').map_or(0, |end| end + 1)];
    let mut pieces = Pieces::new();
    for line in whole.lines() {
        let (offset, digest) = parse_journal_line(line)?;
        let is_new = pieces.insert(offset, digest).is_none();
        is_new.then_some(())?;
    }
    let mut at = 0;
    for (offset, digest) in &pieces {
        (*offset >= at).then_some(())?;
        at = offset.checked_add(digest.length).filter(|end| *end <= begin.content.length)?;
    }
    Some((begin, pieces))
}

fn rewrite_journal(journal: &mut File, begin: &Begin, pieces: &Pieces) -> io::Result<()> {
    let mut text = serde_json::to_string(begin).map_err(io::Error::other)?;
    text.push('\n');
    text.extend(pieces.iter().map(|(offset, digest)| journal_line(*offset, *digest)));
    journal.set_len(0)?;
    io::Seek::rewind(journal)?;
    journal.write_all(text.as_bytes())
}

/// Returns the missing ranges, in ascending order.
fn missing_ranges(pieces: &Pieces, length: u64) -> Vec<Range<u64>> {
    let mut at = 0;
    let mut missing = Vec::new();
    for (offset, digest) in pieces {
        missing.push(at..*offset);
        at = offset + digest.length;
    }
    missing.push(at..length);
    missing.retain(|range| !range.is_empty());
    missing
}

/// Allocates the file's space, so that a full disk is reported now and the file stays contiguous.
fn allocate_space(file: &File, length: u64) -> io::Result<()> {
    if length > file.metadata()?.len() {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            result => result?,
        }
    }
    file.set_len(length)
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Returns the number of bytes in a piece, which one line of the journal describes, for the number of streams: a kill
/// loses at most one piece of each.
pub(crate) fn piece_bytes(streams: usize) -> u64 {
    (MAX_LOST_BYTES / streams as u64).clamp(CHUNK_BYTES as u64, MAX_LOST_BYTES / 4)
}

/// Maximum number of bytes that a kill loses, of all streams together, unless their chunks alone exceed it.
const MAX_LOST_BYTES: u64 = 4 << 20;
/// Smallest and largest number of bytes requested at once.
const MIN_RANGE_BYTES: u64 = 8 << 20;
const MAX_RANGE_BYTES: u64 = 1 << 30;
/// Number of bytes read and written at once: small enough to be still in the cache when they are written.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn head(length: u64, etag: &str) -> Head {
        Head { length, etag: Some(etag.into()), modified: Some(UNIX_EPOCH), crc32c: None }
    }

    fn content(length: u64, etag: &str) -> Content {
        Content::new("http://h/a".into(), &head(length, etag), false)
    }

    fn fill(part: &Part, range: Range<u64>, with: u8) -> bool {
        let bytes = vec![with; usize::try_from(range.end - range.start).unwrap()];
        part.write_bytes(&bytes, range.start).unwrap();
        part.record_piece(range.start, Digest::from_bytes(&bytes)).unwrap()
    }

    /// A file of three pieces, of which the second was fetched before the process died.
    fn begun() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let part = Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap();
        assert_eq!(part.take_missing_range(1), Some(0..2 * MIN_RANGE_BYTES));
        assert!(!fill(&part, MIN_RANGE_BYTES..2 * MIN_RANGE_BYTES, 7));
        (directory, path)
    }

    #[test]
    fn it_goes_on_where_it_was_left_and_is_named_when_it_is_whole() {
        let (directory, path) = begun();
        let part = Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap();
        assert_eq!(part.written_bytes(), MIN_RANGE_BYTES);
        let (first, second) = (part.take_missing_range(8).unwrap(), part.take_missing_range(8).unwrap());
        assert_eq!(
            (first.clone(), second.clone(), part.take_missing_range(8)),
            (0..MIN_RANGE_BYTES, 2 * MIN_RANGE_BYTES..3 * MIN_RANGE_BYTES, None)
        );
        assert!(!fill(&part, first, 7) && fill(&part, second, 7));

        let whole = vec![7; usize::try_from(3 * MIN_RANGE_BYTES).unwrap()];
        let crc32c = Some(Digest::from_bytes(&whole).crc32c);
        part.finish_file(&Head { crc32c, ..head(3 * MIN_RANGE_BYTES, "\"1\"") }).unwrap();
        assert!(std::fs::read(&path).unwrap() == whole);
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), UNIX_EPOCH);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_kill_loses_little_of_all_streams_together() {
        for streams in 1..=64 {
            let lost = piece_bytes(streams) * streams as u64;
            assert!(lost <= MAX_LOST_BYTES.max(CHUNK_BYTES as u64 * streams as u64), "{streams} streams: {lost} bytes");
        }
        assert_eq!(piece_bytes(4), 1 << 20);
    }

    #[test]
    fn a_journal_that_is_right_is_only_gone_on_with() {
        let (_directory, path) = begun();
        let open = || Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap();
        assert!(!fill(&open(), 0..5, 7));
        // In the order of arrival: a rewritten journal would be in the order of the file.
        let journal = std::fs::read_to_string(hidden_path(&path, ".part.journal")).unwrap();
        assert!(!fill(&open(), 5..9, 7));
        let now = std::fs::read_to_string(hidden_path(&path, ".part.journal")).unwrap();
        assert_eq!(
            (now.strip_prefix(&journal), open().written_bytes()),
            (Some(&*journal_line(5, Digest::from_bytes(&[7; 4]))), MIN_RANGE_BYTES + 9)
        );
    }

    #[test]
    fn another_content_begins_anew() {
        for other in [content(3 * MIN_RANGE_BYTES, "\"2\""), content(3 * MIN_RANGE_BYTES + 1, "\"1\"")] {
            let (_directory, path) = begun();
            assert_eq!(Part::open_or_resume(&path, &other).unwrap().written_bytes(), 0, "{other:?}");
        }
        // No property shows whether the content is another one.
        let unknown = Content::new("http://h/a".into(), &Head { etag: None, modified: None, ..head(9, "") }, false);
        assert!(!unknown.continues_content(&unknown));
    }

    #[test]
    fn what_only_grows_keeps_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let content = |length| Content::new("http://h/a".into(), &head(length, &format!("\"{length}\"")), true);
        let part = Part::open_or_resume(&path, &content(MIN_RANGE_BYTES)).unwrap();
        assert!(fill(&part, 0..MIN_RANGE_BYTES, 1));
        drop(part);
        let part = Part::open_or_resume(&path, &content(MIN_RANGE_BYTES + 5)).unwrap();
        assert_eq!(
            (part.written_bytes(), part.take_missing_range(4)),
            (MIN_RANGE_BYTES, Some(MIN_RANGE_BYTES..MIN_RANGE_BYTES + 5))
        );
        drop(part);
        assert_eq!(
            Part::open_or_resume(&path, &content(MIN_RANGE_BYTES - 1)).unwrap().written_bytes(),
            0,
            "and what shrank begins anew"
        );
    }

    #[test]
    fn a_wrong_digest_keeps_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let part = Part::open_or_resume(&path, &content(4, "\"1\"")).unwrap();
        assert!(fill(&part, 0..4, 1));
        let error = part.finish_file(&Head { crc32c: Some(0), ..head(4, "\"1\"") }).unwrap_err();
        assert!(matches!(error, RemoteError::Digest { expected: 0, .. }), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_do_not_write_the_same_file() {
        let (_directory, path) = begun();
        let _first = Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap();
        let second = Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\""));
        assert!(matches!(second, Err(RemoteError::InUse(_))), "{second:?}");
    }

    #[test]
    fn a_journal_of_a_file_that_is_gone_counts_for_nothing() {
        let (_directory, path) = begun();
        std::fs::remove_file(hidden_path(&path, ".part")).unwrap();
        let part = Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap();
        assert_eq!((part.written_bytes(), part.take_missing_range(1)), (0, Some(0..2 * MIN_RANGE_BYTES)));
    }

    #[test]
    fn a_file_that_was_renamed_is_known_to_be_another() {
        let directory = tempfile::tempdir().unwrap();
        let [part, path] = ["part", "path"].map(|name| directory.path().join(name));
        let opened = File::create(&part).unwrap().metadata().unwrap();
        assert!(is_still_named(&opened, &part));
        std::fs::rename(&part, &path).unwrap();
        assert!(!is_still_named(&opened, &part));
        File::create(&part).unwrap();
        assert!(!is_still_named(&opened, &part));
    }

    #[test]
    fn a_file_gets_its_name_after_its_journal_went() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let part = Part::open_or_resume(&path, &content(4, "\"1\"")).unwrap();
        assert!(fill(&part, 0..4, 1));
        let journal = hidden_path(&path, ".part.journal");
        // A journal that cannot be removed: the steps before leave the file without its name.
        std::fs::remove_file(&journal).unwrap();
        std::fs::create_dir(&journal).unwrap();
        assert!(part.finish_file(&head(4, "\"1\"")).is_err());
        assert!(!path.exists() && hidden_path(&path, ".part").exists());
    }

    #[test]
    fn after_a_restart_of_the_machine_only_what_the_disk_has_is_believed() {
        let (_directory, path) = begun();
        let journal = hidden_path(&path, ".part.journal");
        let text = std::fs::read_to_string(&journal).unwrap().replace(&boot_id(), "another boot");
        std::fs::write(&journal, &text).unwrap();
        assert_eq!(
            Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap().written_bytes(),
            MIN_RANGE_BYTES
        );

        std::fs::write(&journal, &text).unwrap();
        File::options()
            .write(true)
            .open(hidden_path(&path, ".part"))
            .unwrap()
            .write_all_at(&[0], MIN_RANGE_BYTES + 9)
            .unwrap();
        assert_eq!(Part::open_or_resume(&path, &content(3 * MIN_RANGE_BYTES, "\"1\"")).unwrap().written_bytes(), 0);
    }

    #[test]
    fn a_journal_that_makes_no_sense_counts_for_nothing() {
        let begin = serde_json::to_string(&Begin { content: content(100, "\"1\""), boot: boot_id() }).unwrap();
        for (lines, there) in [
            ("0 10 00000000\n50 50 ffffffff\n", Some(60)),
            ("50 50 ffffffff\n0 10 00000000\n12 1", Some(60)),
            ("", Some(0)),
            ("0 10 00000000\n9 10 00000000\n", None),
            ("0 101 00000000\n", None),
            ("18446744073709551615 2 00000000\n", None),
            ("0 18446744073709551615 00000000\n1 2 00000000\n", None),
            ("0 -1 00000000\n", None),
            ("0 10\n", None),
            ("0 10 00000000 1\n", None),
            ("\u{0}\u{0}\n", None),
        ] {
            let parsed = parse_journal(format!("{begin}\n{lines}").as_bytes());
            let found = parsed.map(|(_, pieces)| pieces.values().map(|digest| digest.length).sum::<u64>());
            assert_eq!(found, there, "{lines:?}");
        }
        for text in ["", "\n", "{}\n", "\u{0}\u{0}"] {
            assert!(parse_journal(text.as_bytes()).is_none());
        }
    }
}
