//! Errors of devices: the file, the place in it, and what to do.

use std::io;
use std::path::PathBuf;
use thalweg_wire::EventId;
use thiserror::Error;

/// Reason why a device cannot be opened, or cannot produce its next fragment.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The operating system refused an operation on a file.
    #[error("{doing} {}: {error}", file.display())]
    File {
        /// Action that failed.
        doing: &'static str,
        /// Path of the file.
        file: PathBuf,
        /// Error from the system.
        error: io::Error,
    },
    /// A read failed, or the file became shorter while it was played.
    #[error("reading {length} bytes at byte {at} of {}: {error}; the file must not change while it is replayed", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Offset at which the read began, in bytes.
        at: u64,
        /// Number of bytes wanted.
        length: usize,
        /// Error from the system.
        error: io::Error,
    },
    /// The network failed, or the kernel's part of it.
    #[error("{doing}: {error}")]
    Network {
        /// Action that failed, and its address.
        doing: String,
        /// Error from the system.
        error: io::Error,
    },
    /// Data from a pipe or a serial port is not as configured.
    #[error("{} at byte {at}: {problem}", file.display())]
    Stream {
        /// Path of the pipe or port.
        file: PathBuf,
        /// Offset in the data received, in bytes.
        at: u64,
        /// Description of the problem, and what to do.
        problem: String,
    },
    /// A device that works by itself was opened as one that is asked for its data.
    #[error("a device of kind {0} acquires by itself and can only be opened by a node (thalweg run, thalweg node)")]
    WorksByItself(String),
    /// The kind of the device is not registered in this process.
    #[error("unknown kind `{kind}`, expected one of {known}")]
    UnknownKind {
        /// Name of the kind.
        kind: String,
        /// Names of the registered kinds, as a list.
        known: String,
    },
    /// An option of the device has a value that makes no sense.
    #[error("device option {option} = {value}: it must be {expected}")]
    Setting {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: u64,
        /// Description of the accepted values.
        expected: &'static str,
    },
    /// Options of the device that do not go together, or that make no payload.
    #[error("device option {option}: {problem}")]
    Option {
        /// Name of the option to look at first.
        option: &'static str,
        /// Description of the problem, and what to write.
        problem: String,
    },
    /// Hardware that cannot be used, or does not do what it should.
    #[error("device {device}: {problem}")]
    Hardware {
        /// Name of the device.
        device: String,
        /// Description of the problem, and what to do.
        problem: String,
    },
    /// The recording holds no data to play.
    #[error("{} contains no data to replay", file.display())]
    Empty {
        /// Path of the file.
        file: PathBuf,
    },
    /// The file's length is not a whole number of records.
    #[error(
        "{} has {length} bytes of data: {} records of {record} bytes and {} bytes left over; the recording is \
         truncated, its records have a different size, or a header precedes them (option skip of raw files)",
        file.display(), length / record, length % record
    )]
    Leftover {
        /// Path of the file.
        file: PathBuf,
        /// Length of the data in bytes, without the skipped part.
        length: u64,
        /// Length of a record, in bytes.
        record: u64,
    },
    /// The file announces more data than it has left.
    #[error(
        "{}: {what} at byte {at} needs {needed} bytes, but only {left} are left: the recording is truncated; the file \
         is intact up to byte {at}", file.display()
    )]
    Truncated {
        /// Path of the file.
        file: PathBuf,
        /// Offset at which the cut-off part begins, in bytes.
        at: u64,
        /// Name of the part that is cut off.
        what: &'static str,
        /// Number of bytes that the part needs.
        needed: u64,
        /// Number of bytes left in the file.
        left: u64,
    },
    /// A field of a binary header has an unusable value.
    #[error("{}: {field} at byte {at} is {found}; it must be {expected}", file.display())]
    Header {
        /// Path of the file.
        file: PathBuf,
        /// Offset of the header or field, in bytes.
        at: u64,
        /// Name of the field.
        field: &'static str,
        /// Value found.
        found: String,
        /// Description of the accepted values.
        expected: &'static str,
    },
    /// Metadata that are not JSON.
    #[error("{} is not SigMF metadata: {error}", file.display())]
    Json {
        /// Path of the file.
        file: PathBuf,
        /// Position and reason at which parsing stopped.
        error: serde_json::Error,
    },
    /// A field of the metadata has an unusable value.
    #[error("{}: {field} is {found}; it must be {expected}", file.display())]
    Metadata {
        /// Path of the file.
        file: PathBuf,
        /// Name of the field.
        field: String,
        /// Value found.
        found: String,
        /// Description of the accepted values.
        expected: &'static str,
    },
    /// An image that is unlike the first of its sequence.
    #[error("{} is {shape}, but {} is {first_shape}: all images of one device must have the same shape", file.display(), first.display())]
    Shape {
        /// Path of the image that differs.
        file: PathBuf,
        /// Description of this image.
        shape: String,
        /// Path of the sequence's first file.
        first: PathBuf,
        /// Description of the first image.
        first_shape: String,
    },
    /// A TIFF file that cannot be read.
    #[error("page {page} of {}: {error}", file.display())]
    Tiff {
        /// Path of the file.
        file: PathBuf,
        /// Number of the page, from 0.
        page: usize,
        /// Error from the decoder.
        error: tiff::TiffError,
    },
    /// The requested recording is not in the archive or collection, or none was requested where there are several.
    #[error("{}: {}; it has {}: set the option recording to one of these", file.display(),
        match wanted { Some(wanted) => format!("no recording '{wanted}'"), None => "more than one recording".to_owned() },
        list_names(recordings))]
    Recording {
        /// Path of the file.
        file: PathBuf,
        /// Name of the requested recording, if any.
        wanted: Option<String>,
        /// Names of the recordings in the file.
        recordings: Vec<String>,
    },
    /// The requested VDIF thread is not there, or none was requested where there are several.
    #[error("{}: {}; it has threads {threads:?}: set the option thread to one of these", file.display(),
        match wanted { Some(wanted) => format!("no thread {wanted}"), None => "more than one thread".to_owned() })]
    Thread {
        /// Path of the file.
        file: PathBuf,
        /// Number of the requested thread, if any.
        wanted: Option<u16>,
        /// Numbers of the threads in the file.
        threads: Vec<u16>,
    },
    /// The recording has more records than an index can hold.
    #[error("{} has more than {limit} frames, the largest number that can be indexed: split the file", file.display())]
    TooMany {
        /// Path of the file.
        file: PathBuf,
        /// Maximum number of records in an index.
        limit: usize,
    },
    /// The file has none of the formats that are recognised by their content.
    #[error(
        "{} is not a recording of a known format: give a SigMF recording (.sigmf-meta and .sigmf-data, .sigmf, \
         .sigmf-collection), a VDIF file (.vdif), a NumPy array (.npy), PGM or TIFF images (.pgm, .tif) or a \
         directory of \
         them; a file of raw records needs a topology file that states their size, device = {{ kind = \"raw\", \
         file = \"…\", record = … }}", file.display()
    )]
    NotRecognised {
        /// Path of the file.
        file: PathBuf,
    },
    /// The caller's buffer is not as long as the next payload.
    #[error("event {}: a payload of {expected} bytes cannot be written into {given} bytes", event.0)]
    Buffer {
        /// Number of the event.
        event: EventId,
        /// Length of the next payload, in bytes.
        expected: usize,
        /// Length of the buffer, in bytes.
        given: usize,
    },
    /// An event before the first or after the last of the recording.
    #[error("event {} is not in the recording, which has {records} records after the first requested event", event.0)]
    Event {
        /// Number of the event.
        event: EventId,
        /// Number of records in the recording.
        records: u64,
    },
}

/// Returns the names as a list for a message: at most ten, and the number of the others.
fn list_names(names: &[String]) -> String {
    const MAX_SHOWN_NAMES: usize = 10;
    let mut text = names.iter().take(MAX_SHOWN_NAMES).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        text.push_str("none");
    }
    if names.len() > MAX_SHOWN_NAMES {
        text.push_str(&format!(", and {} more", names.len() - MAX_SHOWN_NAMES));
    }
    text
}
