//! Where a run's files are: in a directory of this machine, or elsewhere, behind whatever reads ranges of them.

use crate::format::{BLOCK_HEADER_LEN, BlockHeader};
use crate::info::writer_life;
use crate::segment::{segment_name, segment_number};
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

/// The files of a run that are not in a directory of this machine: on a server, in an archive.
///
/// Of a segment that is being written, [`read_at`](Self::read_at) ends behind the last whole block: whoever opens such
/// a run believes its tables before it has seen all of its bytes. What is read is believed no further than its
/// checksums; errors are those of [`io`], with [`NotFound`](io::ErrorKind::NotFound) for what is not there.
pub trait RunFiles: fmt::Debug + Send + Sync {
    /// What messages call the run: its URL, for instance. The name of a file is joined to it.
    fn path(&self) -> &Path;

    /// What `run.json` says now.
    ///
    /// # Errors
    /// `NotFound` where there is no run; others where it cannot be read.
    fn info(&self) -> io::Result<Vec<u8>>;

    /// The names of the files that there are now, and their lengths in bytes. A segment that is being written is read no
    /// further than to the length it has here, however much comes meanwhile.
    ///
    /// # Errors
    /// Where nobody can say which there are.
    fn files(&self) -> io::Result<Vec<(String, u64)>>;

    /// Whether a run that is open is still being written; unknown where that cannot be told.
    fn writer(&self) -> WriterLife {
        WriterLife::Unknown
    }

    /// Reads a file into `into`, from byte `offset` of it on, and says how many bytes that were: fewer than asked for
    /// only where the file ends.
    ///
    /// # Errors
    /// `NotFound` where there is no such file, or not yet; others where it cannot be read.
    fn read_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// The files of a run, wherever they are.
#[derive(Debug, Clone)]
pub(crate) enum Files {
    Here(Arc<Path>),
    Elsewhere(Arc<dyn RunFiles>),
}

impl Files {
    /// Those of the directory that `path` is, or lies in.
    pub(crate) fn here(path: &Path) -> Self {
        let inside = path.is_file().then(|| path.parent()).flatten();
        Self::Here(match inside {
            Some(parent) if parent.as_os_str().is_empty() => Path::new(".").into(),
            Some(parent) => parent.into(),
            None => path.into(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Here(directory) => directory,
            Self::Elsewhere(files) => files.path(),
        }
    }

    /// What `run.json` says now.
    pub(crate) fn info(&self) -> Result<RunInfo, StoreError> {
        match self {
            Self::Here(directory) => RunInfo::read(directory),
            Self::Elsewhere(files) => RunInfo::decode(files.path(), files.info()),
        }
    }

    /// Whether a run that is open is still being written.
    pub(crate) fn writer(&self) -> WriterLife {
        match self {
            Self::Here(directory) => writer_life(directory),
            Self::Elsewhere(files) => files.writer(),
        }
    }

    /// The segments, in the order of their numbers, with their lengths where these are not to be had from the file.
    pub(crate) fn segments(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut segments = Vec::new();
        match self {
            Self::Here(directory) => {
                for entry in std::fs::read_dir(directory).map_err(StoreError::io("reading", directory))? {
                    let name = entry.map_err(StoreError::io("reading", directory))?.file_name();
                    segments.extend(name.to_str().and_then(segment_number).map(|number| (number, 0)));
                }
            }
            Self::Elsewhere(files) => {
                let listed = files.files().map_err(StoreError::io("listing", files.path()))?;
                // No file is longer; arithmetic with a length that is made up would overflow.
                let length = |length: u64| length.min(i64::MAX as u64);
                let numbered = |(name, bytes): (String, u64)| Some((segment_number(&name)?, length(bytes)));
                segments.extend(listed.into_iter().filter_map(numbered));
            }
        }
        segments.sort_unstable();
        Ok(segments)
    }

    /// A segment, which was listed with `length`.
    pub(crate) fn segment(&self, number: u32, length: u64) -> Result<SegmentFile, StoreError> {
        let name = segment_name(number);
        let path: Arc<Path> = self.path().join(&name).into();
        let bytes = match self {
            Self::Here(_) => Bytes::Here(open_file(&path)?),
            Self::Elsewhere(files) => Bytes::Elsewhere { files: Arc::clone(files), name, length },
        };
        Ok(SegmentFile { path, bytes })
    }
}

/// Opens a file for reading, and nothing else that may have its name: a pipe would keep us waiting for somebody who
/// writes into it.
pub(crate) fn open_file(path: &Path) -> Result<File, StoreError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        // A socket, or a device that is not there.
        Err(Errno::NXIO | Errno::NODEV) => return Err(StoreError::NotAFile(path.to_owned())),
        file => File::from(file.map_err(StoreError::os("opening", path))?),
    };
    match file.metadata().map_err(StoreError::io("opening", path))?.is_file() {
        true => Ok(file),
        false => Err(StoreError::NotAFile(path.to_owned())),
    }
}

/// A segment's file, wherever it is.
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
    pub(crate) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The file, where it can be mapped.
    pub(crate) fn here(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::Here(file) => Some(file),
            Bytes::Elsewhere { .. } => None,
        }
    }

    /// Its bytes, now or when it was listed.
    pub(crate) fn length(&self) -> io::Result<u64> {
        match &self.bytes {
            Bytes::Here(file) => Ok(file.metadata()?.len()),
            Bytes::Elsewhere { length, .. } => Ok(*length),
        }
    }

    /// Whether its first block, as far as its header tells, is the one that is expected.
    pub(crate) fn begins_with(&self, expected: Expected) -> io::Result<bool> {
        let mut head = [0; BLOCK_HEADER_LEN];
        let there = self.read_up_to(&mut head, 0)?;
        Ok(BlockHeader::decode(&head[..there]).is_ok_and(|header| expected.check(&header).is_ok()))
    }

    /// Reads as much of `into` as there is from `offset` on.
    pub(crate) fn read_up_to(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = match &self.bytes {
            Bytes::Here(file) => file,
            // What it says was read is used as a length.
            Bytes::Elsewhere { files, name, .. } => return Ok(files.read_at(name, offset, into)?.min(into.len())),
        };
        let mut there = 0;
        while there < into.len() {
            match file.read_at(&mut into[there..], offset + there as u64) {
                Ok(0) => break,
                Ok(read) => there += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(there)
    }
}
