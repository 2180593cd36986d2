//! Steps of a build that is done once, and whose result is kept in the user's cache.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use thiserror::Error;

/// Reason why a step failed.
#[derive(Debug, Error)]
pub enum StepError {
    /// A step failed.
    #[error("{step} failed ({status}): {last}\nthe whole log is in {}", log.display())]
    Failed {
        /// Name of the step.
        step: &'static str,
        /// Exit status of its program.
        status: ExitStatus,
        /// Line of the log that reports the error, or its last line.
        last: String,
        /// File with the whole output of all steps.
        log: PathBuf,
    },
    /// A program cannot be started.
    #[error("{program}: {error}")]
    Start {
        /// Name of the program.
        program: &'static str,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file or directory cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

impl StepError {
    /// Returns the error of a step, with the line of the log that reports it.
    pub(crate) fn failed_step(step: &'static str, status: ExitStatus, log: &Path) -> Self {
        Self::Failed { step, status, last: last_log_lines(log), log: log.to_owned() }
    }

    /// Returns a conversion for `map_err` that adds the program.
    pub(crate) fn start_error(program: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Start { program, error }
    }

    /// Returns a conversion for `map_err` that adds the file.
    pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |error| Self::File { path, error }
    }
}

/// Creates a directory of the cache if it is missing, and locks it until the file is closed. `wait` is called if
/// another process has the lock.
pub(crate) fn lock_directory(directory: &Path, wait: impl FnOnce()) -> Result<File, StepError> {
    fs::create_dir_all(directory).map_err(StepError::file_error(directory))?;
    let path = directory.join("lock");
    let lock =
        File::options().read(true).append(true).create(true).open(&path).map_err(StepError::file_error(&path))?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        wait();
    }
    lock.lock().map_err(StepError::file_error(&path))?;
    Ok(lock)
}

/// Removes a directory with all that is in it, if it exists.
pub(crate) fn remove_directory(directory: &Path) -> Result<(), StepError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StepError::file_error(directory)(error)),
        _ => Ok(()),
    }
}

/// Returns the free space of a directory's file system, in bytes.
pub(crate) fn free_bytes(directory: &Path) -> Result<u64, StepError> {
    let found = rustix::fs::statvfs(directory).map_err(|error| StepError::file_error(directory)(error.into()))?;
    Ok(found.f_bavail * found.f_frsize)
}

/// Removes the variables that influence builds from a command's environment.
pub(crate) fn clear_environment(command: &mut Command) -> &mut Command {
    let kept = ["PATH", "HOME", "TMPDIR"].into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
    command.env_clear().envs(kept).env("LC_ALL", "C")
}

/// Returns the first line of a log with a compiler's error, or else the last line that reports an error, or the last.
fn last_log_lines(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    // `make` repeats an error on each of its levels: the compiler's own message is more useful.
    let first = text.lines().find(|line| line.contains("error:"));
    first
        .or_else(|| text.lines().rfind(|line| line.starts_with("E: ") || line.contains("Error")))
        .or_else(|| text.lines().last())
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// FNV-1a of 64 bits, over the texts and the byte `end` after each (<https://www.rfc-editor.org/rfc/rfc9923>).
pub(crate) fn fnv1a_hash<'a>(texts: impl Iterator<Item = &'a str>, end: u8) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([end]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
