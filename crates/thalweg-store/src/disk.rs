//! The file system interface of a recorder: the kernel's file system, or a simulated one for tests.

mod simulated;

pub(crate) use simulated::SimulatedEngine;
pub use simulated::{Access, DiskFault, Exposure, SimulatedDisk};

use crate::engine::Engine;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use simulated::Change;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// File system that a recorder writes to.
#[derive(Debug, Clone, Default)]
pub enum Disk {
    /// The kernel's file system.
    #[default]
    System,
    /// Simulated file system of a test: its operations take time and fail on demand, and it loses data that was not
    /// synced.
    Simulated(SimulatedDisk),
}

impl Disk {
    /// Creates a directory.
    pub(crate) fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mode = Mode::from_bits_retain(0o777);
        Ok(self.apply_change(|| Change::Directory(path.into()), || rustix::fs::mkdir(path, mode))?)
    }

    /// Creates a file to be written to; `direct` bypasses the page cache.
    pub(crate) fn create_file(&self, path: &Path, direct: bool) -> Result<OwnedFd, Errno> {
        let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, direct);
        let mode = Mode::from_bits_retain(0o644);
        let file = self.apply_change(|| Change::File(path.into()), || rustix::fs::open(path, flags, mode))?;
        if let Self::Simulated(disk) = self {
            disk.note_opened_file(file.as_raw_fd(), path);
        }
        Ok(file)
    }

    /// Announces an opened directory, so that a simulated disk knows its path.
    pub(crate) fn announce_directory(&self, directory: &impl AsRawFd, path: &Path) {
        if let Self::Simulated(disk) = self {
            disk.note_opened_file(directory.as_raw_fd(), path);
        }
    }

    /// Allocates space in a file, which grows over it.
    pub(crate) fn allocate_space(&self, file: &OwnedFd, length: u64) -> Result<(), Errno> {
        self.apply_change(
            || Change::Allocate { file: file.as_raw_fd(), offset: 0, length },
            || rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length),
        )
    }

    /// Truncates or extends a file.
    pub(crate) fn truncate_file(&self, file: &OwnedFd, length: u64) -> Result<(), Errno> {
        self.apply_change(
            || Change::Truncate { file: file.as_raw_fd(), length },
            || rustix::fs::ftruncate(file, length),
        )
    }

    /// Writes at the beginning of a file.
    pub(crate) fn write_at_start(&self, file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
        self.apply_change(
            || Change::Write { file: file.as_raw_fd(), offset: 0, bytes: bytes.into() },
            || write_whole_buffer(file, bytes),
        )
    }

    /// Syncs a file to disk.
    pub(crate) fn sync_file(&self, file: &OwnedFd) -> Result<(), Errno> {
        self.apply_change(|| Change::Sync { file: file.as_raw_fd() }, || rustix::fs::fsync(file))
    }

    /// Syncs the names in a directory to disk.
    pub(crate) fn sync_directory(&self, path: &Path) -> Result<(), Errno> {
        self.apply_change(
            || Change::SyncDirectory(path.into()),
            || rustix::fs::fsync(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
        )
    }

    /// Renames a file, replacing any file of the new name.
    pub(crate) fn rename_file(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.apply_change(|| Change::Rename(from.into(), to.into()), || rustix::fs::rename(from, to))
    }

    /// Removes a file.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), Errno> {
        self.apply_change(|| Change::Remove(path.into()), || rustix::fs::unlink(path))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        self.apply_change(|| Change::Remove(path.into()), || rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR))
    }

    /// Returns the engine of a simulated disk, which carries out writes in place of the kernel; `None` for the kernel's
    /// file system.
    pub(crate) fn simulated_engine(&self) -> Option<io::Result<Engine>> {
        let Self::Simulated(disk) = self else { return None };
        Some(disk.create_engine().map(Engine::Simulated))
    }

    fn apply_change<T>(
        &self,
        change: impl FnOnce() -> Change,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self {
            Self::System => make(),
            Self::Simulated(disk) => disk.apply_change(change(), make),
        }
    }
}

fn write_whole_buffer(file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
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
}
