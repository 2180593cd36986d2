//! Access to a run's files: in a directory of this machine, or elsewhere, through range reads.

use crate::format::{BLOCK_HEADER_LEN, BlockHeader};
use crate::info::check_writer_life;
use crate::segment::{parse_segment_number, segment_file_name};
use crate::walk::Expected;
use crate::{RunInfo, StoreError, WriterLife};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Files of a run that are not in a directory of this machine: on a server, in an archive.
///
/// For a segment that is being written, [`read_file_at`](Self::read_file_at) ends after the last whole block: a reader that opens
/// such a run relies on its tables before it has seen all of its bytes. Data read is trusted no further than its
/// checksums; errors are those of [`io`], with [`NotFound`](io::ErrorKind::NotFound) for files that do not exist.
pub trait RunFiles: fmt::Debug + Send + Sync {
    /// Returns the name of the run in messages, for instance its URL. The name of a file is joined to it.
    fn display_path(&self) -> &Path;

    /// Returns the current contents of `run.json`.
    ///
    /// # Errors
    /// `NotFound` if there is no run; others if it cannot be read.
    fn read_run_json(&self) -> io::Result<Vec<u8>>;

    /// Returns the names of the current files, and their lengths in bytes. A segment that is being written is read only
    /// up to the length returned here, however much is added meanwhile.
    ///
    /// # Errors
    /// If the files cannot be listed.
    fn list_files(&self) -> io::Result<Vec<(String, u64)>>;

    /// Returns whether an open run is still being written; `Unknown` if that cannot be determined.
    fn writer_life(&self) -> WriterLife {
        WriterLife::Unknown
    }

    /// Reads a file into `into`, starting at byte `offset`, and returns the number of bytes read: fewer than requested
    /// only at the end of the file.
    ///
    /// # Errors
    /// `NotFound` if there is no such file, or not yet; others if it cannot be read.
    fn read_file_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// Files of a run, wherever they are.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    Here(Arc<Path>),
    Elsewhere(Arc<dyn RunFiles>),
}

impl Files {
    /// Returns the files of the directory `path`, or of the directory that contains the file `path`.
    pub(crate) fn in_directory(path: &Path) -> Self {
        let inside = path.is_file().then(|| path.parent()).flatten();
        Self::Here(match inside {
            Some(parent) if parent.as_os_str().is_empty() => Path::new(".").into(),
            Some(parent) => parent.into(),
            None => path.into(),
        })
    }

    pub(crate) fn run_path(&self) -> &Path {
        match self {
            Self::Here(directory) => directory,
            Self::Elsewhere(files) => files.display_path(),
        }
    }

    /// Returns the current contents of `run.json`.
    pub(crate) fn read_run_info(&self) -> Result<RunInfo, StoreError> {
        match self {
            Self::Here(directory) => RunInfo::read_run_json(directory),
            Self::Elsewhere(files) => RunInfo::decode_run_json(files.display_path(), files.read_run_json()),
        }
    }

    /// Returns whether an open run is still being written.
    pub(crate) fn writer_life(&self) -> WriterLife {
        match self {
            Self::Here(directory) => check_writer_life(directory),
            Self::Elsewhere(files) => files.writer_life(),
        }
    }

    /// Returns the numbers of the segments, in ascending order, with their lengths in bytes if these cannot be read
    /// from the file.
    pub(crate) fn list_segments(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut segments = Vec::new();
        match self {
            Self::Here(directory) => {
                for entry in std::fs::read_dir(directory).map_err(StoreError::io_error("reading", directory))? {
                    let name = entry.map_err(StoreError::io_error("reading", directory))?.file_name();
                    segments.extend(name.to_str().and_then(parse_segment_number).map(|number| (number, 0)));
                }
            }
            Self::Elsewhere(files) => {
                for (name, length) in
                    files.list_files().map_err(StoreError::io_error("listing", files.display_path()))?
                {
                    // No file is longer; arithmetic with an invented length would overflow.
                    let length = length.min(i64::MAX as u64);
                    segments.extend(parse_segment_number(&name).map(|number| (number, length)));
                }
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    /// Opens a segment, which was listed with `length` bytes.
    pub(crate) fn open_segment(&self, number: u32, length: u64) -> Result<SegmentFile, StoreError> {
        let name = segment_file_name(number);
        let path: Arc<Path> = self.run_path().join(&name).into();
        let bytes = match self {
            Self::Here(_) => Bytes::Here(open_regular_file(&path)?),
            Self::Elsewhere(files) => Bytes::Elsewhere { files: Arc::clone(files), name, length },
        };
        Ok(SegmentFile { path, bytes })
    }
}

/// Opens a file for reading, but nothing else that may have its name: opening a pipe would wait for a writer.
pub(crate) fn open_regular_file(path: &Path) -> Result<File, StoreError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // A socket, or a device that does not exist.
        Err(Errno::NXIO | Errno::NODEV) => return Err(StoreError::NotAFile(path.to_owned())),
        file => File::from(file.map_err(StoreError::errno_error("opening", path))?),
    };
    match file.metadata().map_err(StoreError::io_error("opening", path))?.is_file() {
        true => Ok(file),
        false => Err(StoreError::NotAFile(path.to_owned())),
    }
}

/// File of a segment, wherever it is.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    path: Arc<Path>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Here(File),
    Elsewhere { files: Arc<dyn RunFiles>, name: String, length: u64 },
}

impl SegmentFile {
    pub(crate) fn file_path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Returns the file if it can be mapped.
    pub(crate) fn local_file(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::Here(file) => Some(file),
            Bytes::Elsewhere { .. } => None,
        }
    }

    /// Returns its current length in bytes, or that of when it was listed.
    pub(crate) fn length_bytes(&self) -> io::Result<u64> {
        match &self.bytes {
            Bytes::Here(file) => Ok(file.metadata()?.len()),
            Bytes::Elsewhere { length, .. } => Ok(*length),
        }
    }

    /// Returns whether its first block is the expected one, as far as the block's header shows.
    pub(crate) fn begins_with_block(&self, expected: Expected) -> io::Result<bool> {
        let mut head = [0; BLOCK_HEADER_LEN];
        let filled = self.read_up_to(&mut head, 0)?;
        Ok(BlockHeader::decode(&head[..filled]).is_ok_and(|header| expected.check_header(&header).is_ok()))
    }

    /// Reads from `offset` on, as many bytes of `into` as the file has; returns their number.
    pub(crate) fn read_up_to(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = match &self.bytes {
            Bytes::Here(file) => file,
            // The reported number of bytes is used as a length, so it must not exceed the buffer.
            Bytes::Elsewhere { files, name, .. } => return Ok(files.read_file_at(name, offset, into)?.min(into.len())),
        };
        let mut filled = 0;
        while filled < into.len() {
            match file.read_at(&mut into[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}
