//! What can be wrong with a device: the file, the place in it, and what to do.

use std::io;
use std::path::PathBuf;
use thalweg_wire::EventId;
use thiserror::Error;

/// Why a device cannot be opened, or cannot produce its next fragment.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The operating system refused.
    #[error("{doing} {}: {error}", file.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// A read failed, or the file became shorter while it was played.
    #[error("reading {length} bytes at byte {at} of {}: {error}; the file must stay unchanged while it is played", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Where the read began.
        at: u64,
        /// How many bytes were wanted.
        length: usize,
        /// The system's answer.
        error: io::Error,
    },
    /// The network, or the kernel's part of it.
    #[error("{doing}: {error}")]
    Network {
        /// What was being done, and where.
        doing: String,
        /// The system's answer.
        error: io::Error,
    },
    /// What comes out of a pipe or a serial port is not what was said.
    #[error("{} at byte {at}: {problem}", file.display())]
    Stream {
        /// The pipe or port.
        file: PathBuf,
        /// Where in what came out of it.
        at: u64,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A device that works by itself is not asked.
    #[error("a device of kind {0} works by itself: a node opens it (thalweg run, thalweg node)")]
    WorksByItself(&'static str),
    /// An option of the device has a value that makes no sense.
    #[error("device option {option} = {value}: it must be {expected}")]
    Setting {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Options of the device that do not go together, or that make no payload.
    #[error("device option {option}: {problem}")]
    Option {
        /// The option to look at first.
        option: &'static str,
        /// What is wrong, and what to write.
        problem: String,
    },
    /// Hardware that cannot be used, or does not do what it should.
    #[error("device {device}: {problem}")]
    Hardware {
        /// Which.
        device: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// There is nothing to play.
    #[error("{} holds no data to play", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The file's length is not a whole number of records.
    #[error(
        "{} has {length} bytes of data: {} records of {record} bytes and {} bytes left over; the recording was cut off, \
         its records have another size, or other bytes stand in front of them (in raw files, skip passes over these)",
        file.display(), length / record, length % record
    )]
    Leftover {
        /// The file.
        file: PathBuf,
        /// Its length in bytes, without what is passed over.
        length: u64,
        /// Bytes in a record.
        record: u64,
    },
    /// What the file announces is longer than what is left of it.
    #[error(
        "{}: {what} at byte {at} needs {needed} bytes, and {left} are left: the recording was cut off; the file is whole \
         up to byte {at}", file.display()
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Where it begins.
        at: u64,
        /// What is cut off.
        what: &'static str,
        /// Bytes it would take.
        needed: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// A field of a binary header.
    #[error("{}: {field} at byte {at} is {found}; it must be {expected}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Where the header or field begins.
        at: u64,
        /// The field.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// Metadata that are not JSON.
    #[error("{} is not SigMF metadata: {error}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why parsing stopped.
        error: serde_json::Error,
    },
    /// A field of the metadata.
    #[error("{}: {field} is {found}; it must be {expected}", file.display())]
    Metadata {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// What stands there.
        found: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// An image that is unlike the first of its sequence.
    #[error("{} is {shape}, but {} is {first_shape}: the images of one device must be alike", file.display(), first.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// What it is.
        shape: String,
        /// The sequence's first file.
        first: PathBuf,
        /// What that is.
        first_shape: String,
    },
    /// A TIFF file that cannot be read.
    #[error("page {page} of {}: {error}", file.display())]
    Tiff {
        /// The file.
        file: PathBuf,
        /// The page, from 0.
        page: usize,
        /// What the decoder says.
        error: tiff::TiffError,
    },
    /// The recording asked for is not in the archive or collection, or none was asked for where there are several.
    #[error("{}: {}; it has {}: set the option recording to one of these", file.display(),
        match wanted { Some(wanted) => format!("no recording '{wanted}'"), None => "more than one recording".to_owned() },
        listed(recordings))]
    Recording {
        /// The file.
        file: PathBuf,
        /// The recording asked for.
        wanted: Option<String>,
        /// The recordings it has.
        recordings: Vec<String>,
    },
    /// The VDIF thread asked for is not there, or none was asked for where there are several.
    #[error("{}: {}; it has threads {threads:?}: set the option thread to one of these", file.display(),
        match wanted { Some(wanted) => format!("no thread {wanted}"), None => "more than one thread".to_owned() })]
    Thread {
        /// The file.
        file: PathBuf,
        /// The thread asked for.
        wanted: Option<u16>,
        /// The threads it has.
        threads: Vec<u16>,
    },
    /// More records than an index is kept of.
    #[error("{} has more than {limit} frames, which is more than is indexed; play it in parts", file.display())]
    TooMany {
        /// The file.
        file: PathBuf,
        /// How many can be indexed.
        limit: usize,
    },
    /// None of the formats that are known by looking.
    #[error(
        "{} is not a recording that can be recognised: give a SigMF recording (.sigmf-meta and .sigmf-data, .sigmf, \
         .sigmf-collection), a VDIF file (.vdif), a NumPy array (.npy), PGM or TIFF images (.pgm, .tif) or a directory of \
         them; a file of raw records needs a topology file that states their size, device = {{ kind = \"raw\", \
         file = \"…\", record = … }}", file.display()
    )]
    NotRecognised {
        /// The file.
        file: PathBuf,
    },
    /// The caller's buffer is not as long as the next payload.
    #[error("event {}: a payload of {expected} bytes cannot be written into {given} bytes", event.0)]
    Buffer {
        /// The event.
        event: EventId,
        /// The next payload's length.
        expected: usize,
        /// The buffer's length.
        given: usize,
    },
    /// An event before the first or behind the last of the recording.
    #[error("event {} is not in the recording, which has {records} records from the first event that was asked for", event.0)]
    Event {
        /// The event.
        event: EventId,
        /// Records in the recording.
        records: u64,
    },
}

/// Names, but not more than a person reads.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let mut text = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        text.push_str("none");
    }
    if names.len() > SHOWN {
        text.push_str(&format!(", and {} more", names.len() - SHOWN));
    }
    text
}
