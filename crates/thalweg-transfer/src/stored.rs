//! A file that bytes are sent from.

use crate::send::DONTCACHE;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// A file that bytes are sent from; opened a second time, with `O_DIRECT`, when a method first needs that.
#[derive(Debug)]
pub struct Stored {
    file: File,
    direct: OnceLock<Result<Arc<OwnedFd>, Errno>>,
}

impl Stored {
    /// Wraps a file that is open for reading.
    pub fn new(file: File) -> Self {
        Self { file, direct: OnceLock::new() }
    }

    /// Returns the file, through the page cache.
    pub fn buffered_file(&self) -> &File {
        &self.file
    }

    /// Returns the same file past the page cache.
    ///
    /// # Errors
    /// The file system does not support `O_DIRECT`, or the file cannot be opened again. This is tried once: each call
    /// has the same result.
    pub fn direct_file(&self) -> io::Result<&Arc<OwnedFd>> {
        let direct = self.direct.get_or_init(|| reopen_file(&self.file, OFlags::RDONLY | OFlags::DIRECT));
        direct.as_ref().map_err(|error| (*error).into())
    }
}

/// Reads a range of a file, and passes it to `each` in parts that fit into the buffer. Bytes that were not in the page
/// cache do not stay there, if kernel and file system support that (`RWF_DONTCACHE`, Linux 6.14).
///
/// # Errors
/// `UnexpectedEof` if the file ends within the range, and the errors of the file and of `each`.
pub fn read_in_parts(
    file: &File,
    mut range: Range<u64>,
    buffer: &mut [u8],
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut how = DONTCACHE;
    while !range.is_empty() {
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(buffer.len());
        match preadv2(file, &mut [IoSliceMut::new(&mut buffer[..length])], range.start, how) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                range.start += read as u64;
                each(&buffer[..read])?;
            }
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::INVAL) if how == DONTCACHE => how = ReadWriteFlags::empty(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Opens the same file once more, with other flags. Its name is not looked up again: a file renamed meanwhile is found.
pub(crate) fn reopen_file(file: &File, flags: OFlags) -> Result<Arc<OwnedFd>, Errno> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(same, flags | OFlags::CLOEXEC, Mode::empty()).map(Arc::new)
}

/// Alignment of `O_DIRECT` offsets and lengths, in bytes. The file system may be content with less (`STATX_DIOALIGN`),
/// never with more than a page on existing disks.
pub(crate) const DIRECT_ALIGNMENT_BYTES: u64 = 4096;
