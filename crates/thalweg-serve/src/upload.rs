//! Uploads: files that stay hidden until they are complete, on disk and verified.

use crate::answer::Answer;
use crate::client::Activity;
use crate::condition::{Condition, Validators, precondition_failed};
use crate::fields::{DIGEST, REPR_DIGEST};
use crate::head::{Body, Head};
use crate::listing::query_parameter;
use crate::site::{Site, answer_not_found, answer_system_error};
use crate::tree::{Name, open_beneath, parse_unsigned};
use crc_fast::{CrcAlgorithm, Digest};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, IF_MATCH};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use thalweg_store::{RunInfo, RunState};
use thalweg_transfer::{Incoming, Interrupted, Inward, Receiver};
use thalweg_wire::{crc32c_combine, format_repr_digest, parse_repr_digest};

/// An upload in progress. It holds a lock on the file, so that no other client writes the same file meanwhile.
#[derive(Debug)]
pub(crate) struct Upload {
    directory: OwnedFd,
    name: String,
    file: File,
    /// Length of the whole file in bytes, once known.
    total: Option<u64>,
    /// Number of bytes received, and their CRC32C.
    received: u64,
    crc: u32,
    /// Number of bytes that this request still has to bring.
    coming: u64,
    /// True if an existing file of this name is replaced.
    replace: bool,
}

/// Position of a request's bytes in the file (`Content-Range: bytes first-last/total`, RFC 9110 section 14.4 and 14.5).
/// The total is `*` for a file that is still growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    first: u64,
    length: u64,
    total: Option<u64>,
}

/// Progress of an upload, as recorded in the attribute [`PROGRESS`].
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    received: u64,
    total: Option<u64>,
    crc: u32,
}

impl Upload {
    /// Prepares for the body of a `PUT`: checks the request, and opens and locks the hidden file.
    pub(crate) fn open_hidden_file(site: &Site, head: &Head) -> Result<Self, Answer> {
        let (directory, name) = open_target(site, head, true)?;
        let place = requested_position(head)?;
        expected_crc32c(&head.fields)?;
        if place.first + place.length > MAX_FILE_BYTES || place.total.is_some_and(|total| total > MAX_FILE_BYTES) {
            return Err(Answer::with_sentence(StatusCode::PAYLOAD_TOO_LARGE, "files cannot be that large"));
        }
        let replace = check_replacement(&directory, &name, &head.fields)?;
        let hidden = hidden_name(&name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let file = File::from(
            open_beneath(&directory, Path::new(&hidden), flags, Mode::from_bits_retain(0o644))
                .map_err(answer_system_error)?,
        );
        let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        // The previous holder of the lock may have published the file.
        if lock.is_err() || !is_still_named(&file, &directory, &hidden) {
            return Err(answer_locked());
        }
        // A publisher was killed between two names and left this one over.
        if rustix::fs::fstat(&file).map_err(answer_system_error)?.st_nlink > 1 {
            rustix::fs::unlinkat(&directory, &hidden, AtFlags::empty()).map_err(answer_system_error)?;
            return Err(answer_locked());
        }
        let Progress { received, total, crc } = read_progress(&file).unwrap_or_default();
        let agreed = place.total.is_none() || total.is_none() || place.total == total;
        let total = place.total.or(total);
        let mut upload = Self { directory, name, file, total, received, crc, coming: place.length, replace };
        if place.first == 0 {
            upload.total = place.total;
            upload.start_from_zero()?;
        } else if place.first != received || !agreed || total.is_some_and(|total| place.first + place.length > total) {
            let answer = Answer::with_sentence(StatusCode::CONFLICT, format!("{received} bytes received"));
            return Err(answer.with_field(UPLOAD_OFFSET, received.to_string()));
        }
        Ok(upload)
    }

    /// Returns the number of bytes received so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received
    }

    fn start_from_zero(&mut self) -> Result<(), Answer> {
        // Removed first, and durably: no one may resume from bytes that are gone.
        if rustix::fs::fremovexattr(&self.file, PROGRESS).is_ok() {
            rustix::fs::fsync(&self.file).map_err(answer_system_error)?;
        }
        rustix::fs::ftruncate(&self.file, 0).map_err(answer_system_error)?;
        (self.received, self.crc) = (0, 0);
        if let Some(total) = self.total {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, total.max(1)) {
                // A file system that cannot set space aside extends the file as it is written.
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => {
                    self.discard_file();
                    return Err(answer_system_error(error));
                }
            }
        }
        self.record_progress();
        Ok(())
    }

    /// Receives the request's body. The outer error is the network's: no client is left to be answered.
    pub(crate) fn receive_body(
        &mut self,
        receiver: &mut Receiver,
        way: Inward,
        from: &mut Incoming<'_>,
        note: &dyn Fn(Activity),
    ) -> Result<Result<(), Answer>, Interrupted> {
        while self.coming > 0 {
            note(Activity::Receive);
            let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
            let part = self.coming.min(SYNC_INTERVAL_BYTES);
            let written = receiver.receive_file(way, from, &self.file, self.received, part, &mut crc);
            // From here on the client may be waiting for the disk.
            note(Activity::Answer);
            if let Err(Interrupted::File(error)) = written.end {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                return Ok(Err(answer_system_error(errno)));
            }
            self.received += written.bytes;
            self.coming -= written.bytes;
            self.crc = crc32c_combine(self.crc, crc.finalize() as u32, written.bytes);
            // Bytes that are recorded as received are on disk.
            if let Err(error) = rustix::fs::fdatasync(&self.file) {
                return Ok(Err(answer_system_error(error)));
            }
            self.record_progress();
            written.end?;
        }
        Ok(Ok(()))
    }

    /// Publishes the file if it is complete.
    pub(crate) fn publish_if_complete(self, head: &Head) -> Answer {
        let Some(total) = self.total.filter(|total| self.received >= *total) else {
            let answer =
                Answer::with_sentence(StatusCode::ACCEPTED, format!("{} bytes received, but not all", self.received));
            return answer.with_field(UPLOAD_OFFSET, self.received.to_string());
        };
        match expected_crc32c(&head.fields) {
            Ok(Some(wanted)) if wanted != self.crc => {
                self.discard_file();
                let text = format!("its crc32c is {:08x} instead of {wanted:08x}: the upload was discarded", self.crc);
                Answer::with_sentence(StatusCode::BAD_REQUEST, text)
            }
            Ok(_) => self.publish_file(total, &head.fields).unwrap_or_else(|answer| answer),
            Err(answer) => answer,
        }
    }

    fn publish_file(&self, total: u64, fields: &HeaderMap) -> Result<Answer, Answer> {
        rustix::fs::ftruncate(&self.file, total).map_err(answer_system_error)?;
        let stat = rustix::fs::fstat(&self.file).map_err(answer_system_error)?;
        let known = format!("{:08x} {} {}.{}", self.crc, stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
        // A file system without extended attributes only loses the digest.
        let _ = rustix::fs::fsetxattr(&self.file, CRC, known.as_bytes(), XattrFlags::empty());
        rustix::fs::fsync(&self.file).map_err(answer_system_error)?;
        check_not_recording(&self.directory)?;
        check_not_finished(&self.directory)?;
        if self.replace {
            // The file must still be the one that the client wants to replace.
            check_replacement(&self.directory, &self.name, fields)?;
        }
        self.rename_to_final()
            .map_err(|error| if error == Errno::EXIST { answer_exists() } else { answer_system_error(error) })?;
        let _ = rustix::fs::fremovexattr(&self.file, PROGRESS);
        sync_directory(&self.directory).map_err(answer_system_error)?;
        let answer = Answer::new(if self.replace { StatusCode::NO_CONTENT } else { StatusCode::CREATED });
        Ok(Validators::from_file(&stat).add_to_answer(answer).with_field(REPR_DIGEST, format_repr_digest(self.crc)))
    }

    /// Renames the hidden file to its final name.
    fn rename_to_final(&self) -> Result<(), Errno> {
        let (directory, hidden) = (&self.directory, hidden_name(&self.name));
        let flags = if self.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(directory, &hidden, directory, &self.name, flags) {
            // Some file systems, such as NFS, cannot rename without replacing; a link does not replace.
            Err(Errno::INVAL | Errno::NOSYS) if !self.replace => {
                rustix::fs::linkat(directory, &hidden, directory, &self.name, AtFlags::empty())?;
                rustix::fs::unlinkat(directory, &hidden, AtFlags::empty())
            }
            result => result,
        }
    }

    /// Records the number of bytes received, for a client that resumes. Without extended attributes it starts over.
    fn record_progress(&self) {
        let total = self.total.map_or("*".to_owned(), |total| total.to_string());
        let text = format!("{} {total} {:08x}", self.received, self.crc);
        if rustix::fs::fsetxattr(&self.file, PROGRESS, text.as_bytes(), XattrFlags::empty()).is_err() {
            let _ = rustix::fs::fremovexattr(&self.file, PROGRESS);
        }
    }

    fn discard_file(&self) {
        let _ = rustix::fs::unlinkat(&self.directory, hidden_name(&self.name), AtFlags::empty());
    }
}

/// Answers `HEAD PATH?upload` with the number of bytes received.
pub(crate) fn answer_offset(site: &Site, head: &Head) -> Answer {
    let here = open_target(site, head, false).and_then(|(directory, name)| {
        let Ok(file) = open_beneath(&directory, Path::new(&hidden_name(&name)), OFlags::RDONLY, Mode::empty()) else {
            return Ok(0);
        };
        // While a client writes the file, there is no offset from which another could resume.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).map_err(|_| answer_locked())?;
        Ok(read_progress(&file.into()).unwrap_or_default().received)
    });
    match here {
        Ok(received) => Answer::new(StatusCode::NO_CONTENT).with_field(UPLOAD_OFFSET, received.to_string()),
        // A directory that does not exist yet holds no bytes.
        Err(answer) if answer.status == StatusCode::NOT_FOUND => {
            Answer::new(StatusCode::NO_CONTENT).with_field(UPLOAD_OFFSET, "0")
        }
        Err(answer) => answer,
    }
}

/// Answers `DELETE PATH?upload`: removes an upload that will not be finished.
pub(crate) fn answer_discard(site: &Site, head: &Head) -> Answer {
    let removed = open_target(site, head, false).and_then(|(directory, name)| {
        let hidden = hidden_name(&name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = open_beneath(&directory, Path::new(&hidden), flags, Mode::empty()).map_err(answer_system_error)?;
        // A client that writes the file holds this lock.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| answer_locked())?;
        rustix::fs::unlinkat(&directory, hidden, AtFlags::empty()).map_err(answer_system_error)
    });
    removed.map_or_else(|answer| answer, |()| Answer::new(StatusCode::NO_CONTENT))
}

/// Returns whether a request's body is an upload.
pub(crate) fn is_upload_request(head: &Head) -> bool {
    head.method == Method::PUT && !is_about_upload(head)
}

/// Returns whether a request is about an upload, not about a file.
pub(crate) fn is_about_upload(head: &Head) -> bool {
    query_parameter(&head.query, "upload").next().is_some()
}

/// Returns the CRC32C of a file that was uploaded, unless the file has changed since.
pub(crate) fn read_stored_crc32c(file: &File, stat: &Stat) -> Option<u32> {
    let text = read_attribute(file, CRC)?;
    let (crc, of) = text.split_once(' ')?;
    let now = format!("{} {}.{}", stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    (of == now).then(|| u32::from_str_radix(crc, 16).ok()).flatten()
}

/// Asserts invariants of the position and the digest of every upload.
pub(crate) fn check_upload_request(head: &Head) {
    if let Ok(place) = requested_position(head) {
        assert!(place.first.checked_add(place.length).is_some());
        assert!(place.total.is_none_or(|total| place.first + place.length <= total));
    }
    let _ = expected_crc32c(&head.fields);
}

/// Returns the directory that a file is written into, and the file's name in it. Creates the directory if `make` is
/// set.
fn open_target(site: &Site, head: &Head, make: bool) -> Result<(OwnedFd, String), Answer> {
    let name = site.authorize_request(head, true)?;
    if !site.write {
        return Err(site.method_not_allowed(head));
    }
    let Name::Entry(path, false) = name else {
        return Err(Answer::with_sentence(
            StatusCode::BAD_REQUEST,
            "only files can be written, not directories or events",
        ));
    };
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| hidden_name(name).len() <= 255);
    let name = name.ok_or_else(answer_not_found)?.to_owned();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = site.tree.open_within(Path::new(""), flags, Mode::empty()).map_err(answer_system_error)?;
    for part in path.parent().into_iter().flat_map(Path::iter) {
        if make {
            check_not_finished(&directory)?;
        }
        let next = open_beneath(&directory, Path::new(part), flags, Mode::empty());
        directory = match next {
            Err(Errno::NOENT) if make => {
                match rustix::fs::mkdirat(&directory, part, Mode::from_bits_retain(0o755)) {
                    Ok(()) => sync_directory(&directory).map_err(answer_system_error)?,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(answer_system_error(error)),
                }
                open_beneath(&directory, Path::new(part), flags, Mode::empty()).map_err(answer_system_error)?
            }
            next => next.map_err(answer_system_error)?,
        };
    }
    check_not_recording(&directory)?;
    if make {
        check_not_finished(&directory)?;
    }
    Ok((directory, name))
}

/// Refuses a directory whose run is being recorded here: the recorder would stumble over additional files. The lock of
/// its writer marks such a directory.
fn check_not_recording(directory: &OwnedFd) -> Result<(), Answer> {
    match rustix::fs::flock(directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {
            Err(Answer::with_sentence(StatusCode::LOCKED, "this run is being recorded on the server"))
        }
        _ => {
            let _ = rustix::fs::flock(directory, FlockOperation::Unlock);
            Ok(())
        }
    }
}

/// Refuses a directory with a run that has ended: its files are those that its `run.json` lists, and stay so.
fn check_not_finished(directory: &OwnedFd) -> Result<(), Answer> {
    #[derive(serde::Deserialize)]
    struct RunHeader {
        format: String,
        state: RunState,
    }
    // Opening a pipe of this name would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = open_beneath(directory, Path::new("run.json"), flags, Mode::empty()).map(File::from);
    let Some(file) = file.ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file())) else { return Ok(()) };
    match serde_json::from_reader::<_, RunHeader>(BufReader::new(file)) {
        Ok(RunHeader { format, state }) if format == RunInfo::FORMAT && state != RunState::Open => {
            Err(Answer::with_sentence(
                StatusCode::CONFLICT,
                "this run has ended, and no files can be added to it: put the file beside the run",
            ))
        }
        _ => Ok(()),
    }
}

/// Returns whether a file of this name is to be replaced. Fails if it exists and must not, or does not exist and must.
fn check_replacement(directory: &OwnedFd, name: &str, fields: &HeaderMap) -> Result<bool, Answer> {
    let must_be_there = fields.contains_key(IF_MATCH);
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            match Validators::from_file(&stat).evaluate_conditions(&Method::PUT, fields) {
                Condition::Go if must_be_there => Ok(true),
                Condition::Go => Err(answer_exists()),
                Condition::NotModified | Condition::Failed => Err(precondition_failed()),
            }
        }
        Ok(_) => Err(Answer::with_sentence(
            StatusCode::CONFLICT,
            "this name exists and is not a file: it cannot be replaced",
        )),
        Err(_) if must_be_there => Err(precondition_failed()),
        Err(_) => Ok(false),
    }
}

fn answer_locked() -> Answer {
    Answer::with_sentence(StatusCode::LOCKED, "another client is writing this file")
}

fn answer_exists() -> Answer {
    Answer::with_sentence(StatusCode::CONFLICT, "a file of this name exists; replace it with If-Match and its ETag")
}

fn requested_position(head: &Head) -> Result<Place, Answer> {
    let Body::Length(length) = head.body else {
        return Err(Answer::with_sentence(StatusCode::LENGTH_REQUIRED, "Content-Length is required"));
    };
    if head.fields.get(CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let answer = Answer::with_sentence(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a Content-Encoding is not supported: files are stored as they are",
        );
        return Err(answer.with_field(ACCEPT_ENCODING, "identity"));
    }
    let Some(field) = head.fields.get(CONTENT_RANGE) else {
        return Ok(Place { first: 0, length, total: Some(length) });
    };
    let place = field.to_str().ok().and_then(parse_content_range).filter(|place| place.length == length);
    place.ok_or_else(|| {
        Answer::with_sentence(
            StatusCode::BAD_REQUEST,
            "Content-Range is not bytes FIRST-LAST/TOTAL of as many bytes as Content-Length",
        )
    })
}

fn parse_content_range(field: &str) -> Option<Place> {
    let (range, total) = field.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(parse_unsigned(total)?) };
    let (first, last) = (parse_unsigned(first)?, parse_unsigned(last)?);
    let fits = first <= last && last < total.unwrap_or(u64::MAX);
    fits.then(|| Place { first, length: last - first + 1, total })
}

/// Returns the CRC32C that the client expects of the file (RFC 9530, RFC 3230). Other algorithms are ignored.
fn expected_crc32c(fields: &HeaderMap) -> Result<Option<u32>, Answer> {
    let crc = match parse_repr_digest(&joined_values(fields, REPR_DIGEST)) {
        // The value has the same form as the other field's, without the colons.
        Ok(None) => match joined_values(fields, DIGEST).split(',').find_map(|part| part.trim().strip_prefix("crc32c="))
        {
            Some(value) => parse_repr_digest(&format!("crc32c=:{value}:")),
            None => Ok(None),
        },
        crc => crc,
    };
    crc.map_err(|_| Answer::with_sentence(StatusCode::BAD_REQUEST, "the digest is not a crc32c in base64"))
}

/// Returns all values of a field as one list.
fn joined_values(fields: &HeaderMap, name: HeaderName) -> String {
    let values: Vec<&str> = fields.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

fn is_still_named(file: &File, directory: &OwnedFd, name: &str) -> bool {
    let named = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    match (rustix::fs::fstat(file), named) {
        (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
        _ => false,
    }
}

/// Returns the recorded progress of an upload, if the file holds that many bytes.
fn read_progress(file: &File) -> Option<Progress> {
    let text = read_attribute(file, PROGRESS)?;
    let mut numbers = text.split(' ');
    let received = numbers.next()?.parse().ok()?;
    let total = match numbers.next()? {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let crc = u32::from_str_radix(numbers.next()?, 16).ok()?;
    let has_bytes = file.metadata().is_ok_and(|data| received <= data.len());
    has_bytes.then_some(Progress { received, total, crc })
}

fn read_attribute(file: impl AsFd, name: &str) -> Option<String> {
    let mut value = [0_u8; 128];
    let length = rustix::fs::fgetxattr(file, name, &mut value).ok()?;
    std::str::from_utf8(&value[..length]).ok().map(str::to_owned)
}

fn sync_directory(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fsync(directory)
}

fn hidden_name(name: &str) -> String {
    format!(".{name}.upload")
}

/// Largest file size that the system can address, in bytes.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Number of bytes after which received data is synced to disk and recorded.
const SYNC_INTERVAL_BYTES: u64 = 256 << 20;
/// Extended attribute of an upload: bytes received, bytes in all (or `*`), CRC32C of those received.
const PROGRESS: &str = "user.thalweg.upload";
/// Extended attribute of an uploaded file: its CRC32C, and the size and time of modification for which it holds.
const CRC: &str = "user.thalweg.crc32c";
/// Field of the IETF's draft of resumable uploads (draft-ietf-httpbis-resumable-upload).
const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        assert_eq!(parse_content_range("bytes 0-9/20"), Some(Place { first: 0, length: 10, total: Some(20) }));
        assert_eq!(parse_content_range("bytes 19-19/20"), Some(Place { first: 19, length: 1, total: Some(20) }));
        assert_eq!(parse_content_range("bytes 0-9/*"), Some(Place { first: 0, length: 10, total: None }));
        for field in ["", "bytes */20", "bytes 5-4/20", "bytes 0-20/20", "items 0-1/2", "bytes -1/2", "bytes +0-1/2"] {
            assert_eq!(parse_content_range(field), None, "{field}");
        }
    }

    #[test]
    fn a_digest_is_found_among_others() {
        let fields =
            |name: HeaderName, value: &'static str| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        let wanted = |fields: &HeaderMap| expected_crc32c(fields).unwrap();
        assert_eq!(wanted(&fields(REPR_DIGEST, "sha-256=:AAAA:, crc32c=:4waSgw==:")), Some(0xe306_9283));
        assert_eq!(wanted(&fields(DIGEST, "crc32c=4waSgw==")), Some(0xe306_9283));
        assert_eq!(wanted(&fields(DIGEST, "md5=AAAA")), None);
        for (name, value) in
            [(DIGEST, "crc32c=AAAAAAAA"), (DIGEST, "crc32c=:4waSgw==:"), (REPR_DIGEST, "crc32c=4waSgw==")]
        {
            assert!(expected_crc32c(&fields(name, value)).is_err(), "{value}");
        }
        assert_eq!(wanted(&HeaderMap::new()), None);
    }
}
