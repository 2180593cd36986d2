//! What a recorder asks of the file system: the kernel's, or one that a test makes up.

mod simulated;

pub(crate) use simulated::SimulatedEngine;
pub use simulated::{Access, DiskFault, Exposure, SimulatedDisk};

use crate::engine::Engine;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use simulated::Change;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// The file system that a recorder writes to.
#[derive(Debug, Clone, Default)]
pub enum Disk {
    /// The kernel's.
    #[default]
    System,
    /// One of a test: it takes its time, fails, and forgets what was not synced.
    Simulated(SimulatedDisk),
}

impl Disk {
    /// Makes a directory.
    pub(crate) fn create_directory(&self, path: &Path) -> io::Result<()> {
        let make = || rustix::fs::mkdir(path, Mode::from_bits_retain(0o777));
        Ok(self.change(|| Change::Directory(path.into()), make)?)
    }

    /// Makes a file to be written to; `direct`: past the page cache.
    pub(crate) fn create(&self, path: &Path, direct: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, direct);
        let make = || rustix::fs::open(path, flags, Mode::from_bits_retain(0o644));
        let file = self.change(|| Change::File(path.into()), make)?;
        if let Self::Simulated(disk) = self {
            disk.opened(file.as_raw_fd(), path);
        }
        Ok(file)
    }

    /// Of a directory that was opened: a simulated disk is to know which it is.
    pub(crate) fn knows(&self, directory: &impl AsRawFd, path: &Path) {
        if let Self::Simulated(disk) = self {
            disk.opened(directory.as_raw_fd(), path);
        }
    }

    /// Sets space aside in a file, which grows over it.
    pub(crate) fn allocate(&self, file: &OwnedFd, length: u64) -> Result<(), Errno> {
        let make = || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length);
        self.change(|| Change::Allocate { file: file.as_raw_fd(), offset: 0, length }, make)
    }

    /// Cuts a file, or lets it grow.
    pub(crate) fn truncate(&self, file: &OwnedFd, length: u64) -> Result<(), Errno> {
        let make = || rustix::fs::ftruncate(file, length);
        self.change(|| Change::Truncate { file: file.as_raw_fd(), length }, make)
    }

    /// Writes at the beginning of a file.
    pub(crate) fn write(&self, file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
        let change = || Change::Write { file: file.as_raw_fd(), offset: 0, bytes: bytes.into() };
        self.change(change, || {
            let mut done = 0;
            while done < bytes.len() {
                match rustix::io::pwrite(file, &bytes[done..], done as u64) {
                    Ok(0) => return Err(Errno::NOSPC),
                    Ok(written) => done += written,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Brings a file to the disk itself.
    pub(crate) fn sync(&self, file: &OwnedFd) -> Result<(), Errno> {
        self.change(|| Change::Sync { file: file.as_raw_fd() }, || rustix::fs::fsync(file))
    }

    /// Brings the names in a directory to the disk itself.
    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), Errno> {
        let make = || {
            let directory = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::fsync(directory.as_fd())
        };
        self.change(|| Change::SyncDirectory(path.into()), make)
    }

    /// Gives a file another name, in place of what had it.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.change(|| Change::Rename(from.into(), to.into()), || rustix::fs::rename(from, to))
    }

    /// Removes a file.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), Errno> {
        self.change(|| Change::Remove(path.into()), || rustix::fs::unlink(path))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        self.change(|| Change::Remove(path.into()), || rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR))
    }

    /// What carries out writes, in place of the kernel.
    pub(crate) fn engine(&self) -> Option<io::Result<Engine>> {
        let Self::Simulated(disk) = self else { return None };
        Some(disk.engine().map(Engine::Simulated))
    }

    fn change<T>(&self, change: impl FnOnce() -> Change, make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        match self {
            Self::System => make(),
            Self::Simulated(disk) => disk.change(change(), make),
        }
    }
}
