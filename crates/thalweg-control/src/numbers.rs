//! Numbers of runs: each is given out once, also to several services, and across restarts of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Reason why there is no number for a run.
#[derive(Debug, Error)]
pub enum NumberError {
    /// The file of the last number cannot be read or written.
    #[error("{}: {error}: no run can start without a number of its own", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file of the last number holds something else.
    #[error("{}: it holds '{text}', and not the number of the last run: write that into it", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Beginning of the content.
        text: String,
    },
    /// The etcd that holds the last number did not give one.
    #[error("{0}: no run can start without a number of its own")]
    Etcd(#[from] crate::etcd::EtcdError),
    /// All numbers were given out.
    #[error("all numbers of runs were given out")]
    Exhausted,
}

/// The file that holds the last number that was given out. Processes that share it take turns by a lock (`flock`); the
/// new number is on disk before it is returned.
#[derive(Debug, Clone)]
pub struct NumberFile {
    path: PathBuf,
}

impl NumberFile {
    /// Returns the file in a directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("number") }
    }

    /// Returns the number that the next run gets, unless another service takes it; at least `least`.
    ///
    /// # Errors
    /// Those of [`reserve_number`](Self::reserve_number).
    pub fn next_number(&self, least: u32) -> Result<u32, NumberError> {
        let next = self.last_number()?.map_or(Some(0), |last| last.checked_add(1));
        Ok(next.ok_or(NumberError::Exhausted)?.max(least))
    }

    /// Reserves the next number, which is at least `least`, and returns it.
    ///
    /// # Errors
    /// The file cannot be read or written, or holds something else.
    pub fn reserve_number(&self, least: u32) -> Result<u32, NumberError> {
        let _lock = self.lock()?;
        let number = self.next_number(least)?;
        self.write_number(number).map_err(|error| self.file_error(error))?;
        Ok(number)
    }

    /// Notes a number that was reserved elsewhere.
    ///
    /// # Errors
    /// Those of [`reserve_number`](Self::reserve_number).
    pub fn raise_number(&self, number: u32) -> Result<(), NumberError> {
        let _lock = self.lock()?;
        if self.last_number()?.is_none_or(|last| last < number) {
            self.write_number(number).map_err(|error| self.file_error(error))?;
        }
        Ok(())
    }

    fn lock(&self) -> Result<File, NumberError> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(self.path.with_extension("lock"));
        lock.and_then(|lock| lock.lock().map(|()| lock)).map_err(|error| self.file_error(error))
    }

    fn last_number(&self) -> Result<Option<u32>, NumberError> {
        let mut text = String::new();
        match File::open(&self.path).and_then(|file| file.take(64).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.file_error(error)),
        }
        let number = text.trim().parse();
        number
            .map(Some)
            .map_err(|_| NumberError::Content { path: self.path.clone(), text: text.escape_debug().to_string() })
    }

    /// Replaces the file in one step, and brings it to the disk with its directory.
    fn write_number(&self, number: u32) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, format!("{number}\n"))?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &self.path)?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }

    fn file_error(&self, error: io::Error) -> NumberError {
        NumberError::File { path: self.path.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_is_given_out_once_by_whatever_number_of_services() {
        let folder = tempfile::tempdir().unwrap();
        let reserved = std::thread::scope(|scope| {
            let services: Vec<_> = (0..4)
                .map(|_| {
                    let numbers = NumberFile::in_directory(folder.path());
                    scope.spawn(move || (0..25).map(|_| numbers.reserve_number(5).unwrap()).collect::<Vec<_>>())
                })
                .collect();
            services.into_iter().flat_map(|service| service.join().unwrap()).collect::<Vec<_>>()
        });
        let distinct: BTreeSet<u32> = reserved.iter().copied().collect();
        assert_eq!(distinct, (5..105).collect(), "none twice, and none left out");
        assert_eq!(NumberFile::in_directory(folder.path()).next_number(0).unwrap(), 105);
        assert_eq!(NumberFile::in_directory(folder.path()).next_number(300).unwrap(), 300);
    }

    #[test]
    fn a_file_that_holds_no_number_stops_the_next_run_and_not_a_number() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("number"), "12 monkeys\u{1b}[2J").unwrap();
        let error = NumberFile::in_directory(folder.path()).reserve_number(0).unwrap_err().to_string();
        assert!(error.contains("12 monkeys\\u{1b}"), "{error}");
    }
}
