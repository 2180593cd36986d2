//! A file that bytes are sent from.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// A file that bytes are sent from; opened a second time, with `O_DIRECT`, when a way first asks for it.
#[derive(Debug)]
pub struct Stored {
    file: File,
    direct: OnceLock<Result<File, rustix::io::Errno>>,
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

    /// The same file past the page cache. An error where the file system cannot do it.
    pub fn direct(&self) -> io::Result<&File> {
        let open = || reopen(&self.file, OFlags::RDONLY | OFlags::DIRECT);
        self.direct.get_or_init(open).as_ref().map_err(|error| (*error).into())
    }
}

/// The same file once more, with other flags. Its name is not looked up again: what it is called now does not matter.
pub(crate) fn reopen(file: &File, flags: OFlags) -> Result<File, rustix::io::Errno> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(same, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

/// What `O_DIRECT` offsets and lengths are multiples of. The file system may be content with less (`STATX_DIOALIGN`), never with
/// more than a page on the disks there are.
pub(crate) const ALIGNMENT: u64 = 4096;
