//! The directory that holds what was set up, and the setup itself, done once however many processes request it.

use crate::pc::setup::{self, PrepareError, Progress, file};
use crate::pc::{initramfs, modules};
use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The files that a machine boots from: a directory of `$XDG_CACHE_HOME/thalweg/machine` (or below `~/.cache`). It may
/// be removed while no machine runs; [`prepare`] makes it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    directory: PathBuf,
}

/// Sets up what is missing: one to two minutes, 260 MB from the system's package archive, 1.1 GB of temporary space in
/// the cache directory, 0.5 GB of it kept. A finished setup is used as it is, also when the archive has newer packages.
///
/// Waits while another process sets up. Files of a setup that was killed are never used.
///
/// # Errors
/// Fails if a program, a package or space is missing, or a step fails: its log is kept, and the error names it.
pub fn prepare(mut progress: impl FnMut(Progress)) -> Result<Prepared, PrepareError> {
    if let Some(prepared) = Prepared::cached() {
        return Ok(prepared);
    }
    setup::check_tools()?;
    let shelf = shelf();
    fs::create_dir_all(&shelf).map_err(file(&shelf))?;
    let lock_path = shelf.join("lock");
    let lock = File::options().read(true).append(true).create(true).open(&lock_path).map_err(file(&lock_path))?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        progress(Progress::Waiting);
    }
    lock.lock().map_err(file(&lock_path))?;
    if let Some(prepared) = Prepared::cached() {
        return Ok(prepared);
    }

    // Removes what a killed setup left. No other process works in it, not even a program that the killed one had
    // started, since this process holds the lock.
    let room = shelf.join("setup");
    remove(&room)?;
    fs::create_dir(&room).map_err(file(&room))?;
    let ready = setup::set_up(&room, &shelf.join("setup.log"), &lock, &mut progress);
    let published = ready.and_then(|ready| {
        let directory = shelf.join(format!("{}{}", ready.version, suffix()));
        fs::rename(&ready.directory, &directory).map_err(file(&directory))?;
        Ok(Prepared { directory })
    });
    remove(&room)?;
    published
}

impl Prepared {
    /// Returns what was set up before, or `None`.
    pub fn cached() -> Option<Self> {
        let mut all: Vec<_> = fs::read_dir(shelf()).ok()?.flatten().map(|entry| entry.path()).collect();
        // Sorted by name, the newest kernel is last, nearly always; any of them will do.
        all.sort();
        all.into_iter().rfind(|path| path.to_string_lossy().ends_with(&suffix())).map(|directory| Self { directory })
    }

    /// Returns the kernel's version, such as `6.1.0-41-amd64`.
    pub fn kernel(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(&suffix()).unwrap_or(&name).to_owned()
    }

    /// Returns the directory that holds it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the size of its files, in bytes.
    ///
    /// # Errors
    /// Fails if a file cannot be examined.
    pub fn size(&self) -> io::Result<u64> {
        size(&self.directory)
    }

    pub(crate) fn vmlinux(&self) -> PathBuf {
        self.directory.join(setup::VMLINUX)
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.directory.join(setup::INITRAMFS)
    }

    pub(crate) fn packages(&self) -> PathBuf {
        self.directory.join(setup::LAID_OUT)
    }
}

/// Returns the directory of all setups and runs: `$XDG_CACHE_HOME/thalweg/machine`, or below `~/.cache`.
pub(crate) fn shelf() -> PathBuf {
    let [cache, home] =
        ["XDG_CACHE_HOME", "HOME"].map(|name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute()));
    let cache = cache.or_else(|| Some(home?.join(".cache"))).unwrap_or_else(env::temp_dir);
    cache.join("thalweg").join("machine")
}

/// Returns the end of the name of this recipe's directories: a hash of all that goes into them, so that each change
/// gets a directory of its own.
fn suffix() -> String {
    let parts = setup::recipe().chain(modules::recipe()).chain(initramfs::recipe());
    format!("-{:016x}", fnv1a(parts))
}

/// FNV-1a, <http://www.isthe.com/chongo/tech/comp/fnv/>, with a byte after each part that occurs in no text.
fn fnv1a<'a>(parts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = parts.flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn size(directory: &Path) -> io::Result<u64> {
    fs::read_dir(directory)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        let data = entry.metadata()?;
        Ok(sum + if data.is_dir() { size(&entry.path())? } else { data.len() })
    })
}

fn remove(directory: &Path) -> Result<(), PrepareError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(directory)(error)),
        _ => Ok(()),
    }
}
