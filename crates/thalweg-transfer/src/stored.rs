//! A file that bytes are sent from.

use crate::outward::DONTCACHE;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// A file that bytes are sent from; opened a second time, with `O_DIRECT`, when a way first asks for it.
#[derive(Debug)]
pub struct Stored {
    file: File,
    direct: OnceLock<Result<Arc<OwnedFd>, Errno>>,
}

impl Stored {
    /// A file that is open for reading.
    pub fn new(file: File) -> Self {
        Self { file, direct: OnceLock::new() }
    }

    /// The file, through the page cache.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The same file past the page cache.
    ///
    /// # Errors
    /// Where the file system cannot do it, or the file cannot be opened again. It is tried once: each call says the
    /// same.
    pub fn direct(&self) -> io::Result<&Arc<OwnedFd>> {
        let open = || reopen(&self.file, OFlags::RDONLY | OFlags::DIRECT);
        self.direct.get_or_init(open).as_ref().map_err(|error| (*error).into())
    }
}

/// Gives out a range of a file, as much at a time as fits into the buffer, for whoever has to do something with the
/// bytes. What was not in the page cache does not stay there, where kernel and file system know how to
/// (`RWF_DONTCACHE`, Linux 6.14).
///
/// # Errors
/// `UnexpectedEof` where the file ends within the range, and whatever the file and `each` say.
pub fn read(
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

/// The same file once more, with other flags. Its name is not looked up again: what it is called now does not matter.
pub(crate) fn reopen(file: &File, flags: OFlags) -> Result<Arc<OwnedFd>, Errno> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(same, flags | OFlags::CLOEXEC, Mode::empty()).map(Arc::new)
}

/// What `O_DIRECT` offsets and lengths are multiples of. The file system may be content with less (`STATX_DIOALIGN`),
/// never with more than a page on the disks there are.
pub(crate) const ALIGNMENT: u64 = 4096;
