//! The directory that holds what was set up, and the setup itself, done once however many processes request it.

use crate::pc::setup::{self, PrepareError, Progress};
use crate::pc::{initramfs, modules};
use crate::steps::{self, StepError, remove_directory};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files that a machine boots from: a directory of `$XDG_CACHE_HOME/thalweg/machine` (or below `~/.cache`). It may
/// be removed while no machine runs; [`prepare_machine`] makes it again.
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
pub fn prepare_machine(mut progress: impl FnMut(Progress)) -> Result<Prepared, PrepareError> {
    if let Some(prepared) = Prepared::find_cached() {
        return Ok(prepared);
    }
    setup::check_tools()?;
    let shelf = cache_directory();
    let lock = steps::lock_directory(&shelf, || progress(Progress::Waiting))?;
    if let Some(prepared) = Prepared::find_cached() {
        return Ok(prepared);
    }

    // Removes what a killed setup left. No other process works in it, not even a program that the killed one had
    // started, since this process holds the lock.
    let room = shelf.join("setup");
    remove_directory(&room)?;
    fs::create_dir(&room).map_err(StepError::file_error(&room))?;
    let ready = setup::set_up_machine(&room, &shelf.join("setup.log"), &lock, &mut progress);
    let published = ready.and_then(|ready| {
        let directory = shelf.join(format!("{}{}", ready.version, recipe_suffix()));
        fs::rename(&ready.directory, &directory).map_err(StepError::file_error(&directory))?;
        Ok(Prepared { directory })
    });
    remove_directory(&room)?;
    published
}

impl Prepared {
    /// Returns what was set up before, or `None`.
    pub fn find_cached() -> Option<Self> {
        let mut all: Vec<_> = fs::read_dir(cache_directory()).ok()?.flatten().map(|entry| entry.path()).collect();
        // Sorted by name, the newest kernel is last, nearly always; any of them will do.
        all.sort();
        all.into_iter()
            .rfind(|path| path.to_string_lossy().ends_with(&recipe_suffix()))
            .map(|directory| Self { directory })
    }

    /// Returns the kernel's version, such as `6.1.0-41-amd64`.
    pub fn kernel_version(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(&recipe_suffix()).unwrap_or(&name).to_owned()
    }

    /// Returns the directory that holds it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the size of its files, in bytes.
    ///
    /// # Errors
    /// Fails if a file cannot be examined.
    pub fn size_bytes(&self) -> io::Result<u64> {
        directory_size_bytes(&self.directory)
    }

    pub(crate) fn vmlinux_path(&self) -> PathBuf {
        self.directory.join(setup::VMLINUX)
    }

    pub(crate) fn initramfs_path(&self) -> PathBuf {
        self.directory.join(setup::INITRAMFS)
    }

    pub(crate) fn packages_path(&self) -> PathBuf {
        self.directory.join(setup::LAID_OUT)
    }
}

/// Returns the directory of all setups and runs: `$XDG_CACHE_HOME/thalweg/machine`, or below `~/.cache`.
pub(crate) fn cache_directory() -> PathBuf {
    thalweg_bench::cache_directory("machine")
}

/// Returns the end of the name of this recipe's directories: a hash of all that goes into them, so that each change
/// gets a directory of its own.
fn recipe_suffix() -> String {
    let parts = setup::recipe_texts().chain(modules::recipe_texts()).chain(initramfs::recipe_texts());
    // The byte after each part occurs in no text.
    format!("-{:016x}", steps::fnv1a_hash(parts, 0xff))
}

fn directory_size_bytes(directory: &Path) -> io::Result<u64> {
    fs::read_dir(directory)?.try_fold(0, |sum, entry| {
        let entry = entry?;
        let data = entry.metadata()?;
        Ok(sum + if data.is_dir() { directory_size_bytes(&entry.path())? } else { data.len() })
    })
}
