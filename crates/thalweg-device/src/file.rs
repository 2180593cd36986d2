//! File of a recording: opened once, read at given offsets straight into the slot; errors name the file.

use crate::DeviceError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An open file, or part of one, with its name and its length.
#[derive(Debug)]
pub(crate) struct InputFile {
    file: File,
    path: PathBuf,
    /// Offset of the part in the file, in bytes.
    start: u64,
    len: u64,
}

impl InputFile {
    /// Opens a regular file for reading.
    pub(crate) fn open(path: &Path) -> Result<Self, DeviceError> {
        // A pipe or a terminal has no length to check against, and cannot be played twice; opening one might never end.
        let regular = std::fs::metadata(path).and_then(|metadata| match metadata.is_file() {
            true => File::open(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        });
        let file = regular.map_err(|error| file_error("opening", path, error))?;
        let len = file.metadata().map_err(|error| file_error("looking at", path, error))?.len();
        Ok(Self { file, path: path.to_owned(), start: 0, len })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the part of `len` bytes from byte `at` on; `None` if the file is too short.
    pub(crate) fn into_part(self, at: u64, len: u64) -> Option<Self> {
        let within = at.checked_add(len).is_some_and(|end| end <= self.len);
        within.then(|| Self { start: self.start + at, len, ..self })
    }

    /// Returns the whole file, for a library that reads by itself.
    pub(crate) fn into_inner(self) -> File {
        self.file
    }

    /// Returns the number of bytes in the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `bytes` from byte `at` of the file.
    pub(crate) fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.start.saturating_add(at);
        self.file.read_exact_at(bytes, at).map_err(|error| DeviceError::Read {
            file: self.path.clone(),
            at,
            length: bytes.len(),
            error,
        })
    }

    /// Returns the file's first bytes, at most `limit` of them.
    pub(crate) fn read_head(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(usize::MAX).min(limit)];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the error of an operation on a file that the system refused.
pub(crate) fn file_error(doing: &'static str, path: &Path, error: io::Error) -> DeviceError {
    DeviceError::File { doing, file: path.to_owned(), error }
}

/// One of the real recordings that tests are run with.
#[cfg(test)]
pub(crate) fn recording_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings").join(name)
}
