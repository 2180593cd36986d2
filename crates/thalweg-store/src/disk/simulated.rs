//! A simulated disk with its own time, for tests: operations take as long as configured, fail on demand, and data that
//! was not synced may be lost in a power failure. The same seed gives the same course.
//!
//! Bytes are stored in files of the directory that the recorder is given, as usual (preferably on tmpfs). In addition,
//! every change is recorded, and from that record [`SimulatedDisk::write_after_power_failure`] produces what a real disk
//! could have kept.

use crate::engine::{Done, Job};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thalweg_sys::uring::{Effect, File, Operation};
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// Number of bytes that a disk writes atomically, whatever happens.
const SECTOR_BYTES: usize = 512;

/// Durations of operations.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Duration of each operation.
    pub latency: Duration,
    /// Maximum additional duration, drawn for each operation: slower operations are overtaken.
    pub jitter: Duration,
    /// Additional duration for each MiB written.
    pub per_mebibyte: Duration,
}

/// Fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// Every operation fails with this error number.
    Fails(i32),
    /// Writes and allocations fail: there is no space.
    Full,
    /// No operation completes before this time.
    Stuck(Duration),
}

/// A simulated disk with its own time. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct SimulatedDisk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    access: Access,
    now: Duration,
    random: Random,
    fault: Option<DiskFault>,
    stuck_until: Duration,
    /// All changes, in the order in which they were made.
    changes: Vec<Change>,
    /// Path of the open file or directory of each descriptor.
    open: BTreeMap<RawFd, PathBuf>,
    /// Number of operations that complete at each time.
    due: BTreeMap<Duration, usize>,
    unsynced: Unsynced,
}

/// Data of segments that a power failure could lose.
#[derive(Debug, Default)]
struct Unsynced {
    /// Time since which a file has unsynced bytes; in `names`, since which a name is unsynced.
    bytes: BTreeMap<PathBuf, Duration>,
    names: BTreeMap<PathBuf, Duration>,
    /// Longest time that any were unsynced before they were synced.
    longest: Exposure,
}

/// Data of segments that a power failure can lose, at worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Longest time that bytes were written and not synced.
    pub bytes: Duration,
    /// Longest time that the name of a file was not synced.
    pub name: Duration,
    /// True if some bytes or names are unsynced now.
    pub now: bool,
}

impl Unsynced {
    fn record_change(&mut self, change: &Change, now: Duration) {
        match change {
            Change::File(path) if path.extension().is_some_and(|extension| extension == "seg") => {
                self.names.insert(path.clone(), now);
            }
            Change::SyncDirectory(directory) => {
                let Self { names, longest, .. } = self;
                names.retain(|path, since| {
                    let is_synced = path.parent() == Some(directory);
                    if is_synced {
                        longest.name = longest.name.max(now.saturating_sub(*since));
                    }
                    !is_synced
                });
            }
            Change::Remove(path) => {
                self.bytes.remove(path);
                self.names.remove(path);
            }
            Change::At(path, change) if path.extension().is_some_and(|extension| extension == "seg") => {
                match **change {
                    Change::Write { .. } => _ = self.bytes.entry(path.clone()).or_insert(now),
                    Change::Sync { .. } => {
                        let since = self.bytes.remove(path).unwrap_or(now);
                        self.longest.bytes = self.longest.bytes.max(now.saturating_sub(since));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// A change of the contents of a disk. Files are named by a descriptor until they are entered into the record.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Directory(PathBuf),
    File(PathBuf),
    Write {
        file: RawFd,
        offset: u64,
        bytes: Vec<u8>,
    },
    Allocate {
        file: RawFd,
        offset: u64,
        length: u64,
    },
    Truncate {
        file: RawFd,
        length: u64,
    },
    Sync {
        file: RawFd,
    },
    SyncDirectory(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// One of the changes above, of a file named by its path at the time of the change.
    At(PathBuf, Box<Change>),
}

impl SimulatedDisk {
    /// Returns a disk at time zero.
    pub fn new(access: Access, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            access,
            now: Duration::ZERO,
            random: Random(seed),
            fault: None,
            stuck_until: Duration::ZERO,
            changes: Vec::new(),
            open: BTreeMap::new(),
            due: BTreeMap::new(),
            unsynced: Unsynced::default(),
        })))
    }

    /// Advances the time to `at`.
    pub fn advance_time_to(&self, at: Duration) {
        let mut inner = self.0.lock();
        inner.now = inner.now.max(at);
    }

    /// Returns the time at which the next operation completes.
    pub fn next_completion_time(&self) -> Option<Duration> {
        self.0.lock().due.first_key_value().map(|(at, _)| *at)
    }

    /// Sets the fault of the disk from now on; `None` ends it, except for [`DiskFault::Stuck`], which ends at its own
    /// time.
    pub fn set_fault(&self, fault: Option<DiskFault>) {
        let mut inner = self.0.lock();
        if let Some(DiskFault::Stuck(until)) = fault {
            inner.stuck_until = inner.stuck_until.max(until);
        } else {
            inner.fault = fault;
        }
    }

    /// Creates the directory `to` with what would be found of the directory `of` after a power failure now: everything
    /// that was synced, and any part of the rest, drawn by `seed`.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn write_after_power_failure(&self, of: &Path, to: &Path, seed: u64) -> io::Result<()> {
        DiskImage::draw_surviving_data(&self.0.lock().changes, seed).write_files(of, to)
    }

    /// Returns how long, at most, data written to segments was not synced.
    pub fn longest_exposure(&self) -> Exposure {
        let inner = self.0.lock();
        let Unsynced { bytes, names, longest } = &inner.unsynced;
        Exposure {
            bytes: longest_unsynced(bytes, inner.now, longest.bytes),
            name: longest_unsynced(names, inner.now, longest.name),
            now: !bytes.is_empty() || !names.is_empty(),
        }
    }

    pub(super) fn create_engine(&self) -> io::Result<SimulatedEngine> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(SimulatedEngine { disk: self.clone(), under_way: Vec::new(), bell })
    }

    /// Makes a change, unless it fails.
    pub(super) fn apply_change<T>(&self, change: Change, make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let mut inner = self.0.lock();
        inner.check_fault(&change)?;
        let made = make()?;
        inner.record_change(change);
        Ok(made)
    }

    pub(super) fn note_opened_file(&self, file: RawFd, path: &Path) {
        self.0.lock().open.insert(file, path.to_owned());
    }
}

/// Returns the longest time since one of these files changed; at least `synced`, the longest before a sync.
fn longest_unsynced(since: &BTreeMap<PathBuf, Duration>, now: Duration, synced: Duration) -> Duration {
    since.values().map(|since| now.saturating_sub(*since)).fold(synced, Duration::max)
}

/// Generator of random numbers from a seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix_bits(self.0)
    }

    fn next_bool(&mut self) -> bool {
        self.next_number().is_multiple_of(2)
    }
}

impl Inner {
    /// Returns the path of a file in an open directory.
    fn path_in_directory(&self, directory: RawFd, name: &CStr) -> Option<PathBuf> {
        Some(self.open.get(&directory)?.join(name.to_str().ok()?))
    }

    /// Returns the error with which the disk refuses the change, if it does.
    fn check_fault(&self, change: &Change) -> Result<(), Errno> {
        match self.fault {
            Some(DiskFault::Fails(error)) => Err(Errno::from_raw_os_error(error)),
            Some(DiskFault::Full) if matches!(change, Change::Write { .. } | Change::Allocate { .. }) => {
                Err(Errno::NOSPC)
            }
            _ => Ok(()),
        }
    }

    /// Removes an operation from the count of those that complete at `due`.
    fn remove_pending(&mut self, due: Duration) {
        if let Some(count) = self.due.get_mut(&due) {
            *count -= 1;
            if *count == 0 {
                self.due.remove(&due);
            }
        }
    }

    fn record_change(&mut self, change: Change) {
        let file = match &change {
            Change::Write { file, .. }
            | Change::Allocate { file, .. }
            | Change::Truncate { file, .. }
            | Change::Sync { file } => self.open.get(file).cloned(),
            _ => None,
        };
        let change = match file {
            Some(path) if path.is_dir() => Change::SyncDirectory(path),
            Some(path) => Change::At(path, Box::new(change)),
            None => change,
        };
        self.unsynced.record_change(&change, self.now);
        self.changes.push(change);
    }
}

/// Carries out operations after the delays of its disk. Its descriptor is never readable: a node on such a disk is
/// woken by [`SimulatedDisk::next_completion_time`].
#[derive(Debug)]
pub(crate) struct SimulatedEngine {
    disk: SimulatedDisk,
    under_way: Vec<(Duration, Operation<Job>)>,
    bell: OwnedFd,
}

impl SimulatedEngine {
    pub(crate) fn start_operation(&mut self, mut operation: Operation<Job>) {
        let mut inner = self.disk.0.lock();
        let Access { latency, jitter, per_mebibyte } = inner.access;
        let bytes = match operation.file_effect() {
            Effect::Write { bytes, .. } => bytes.len(),
            _ => 0,
        };
        let late = match operation.file_effect() {
            Effect::Nothing => Duration::ZERO,
            _ => latency + jitter.mul_f64(inner.random.next_number() as f64 / u64::MAX as f64),
        };
        let due = inner.now.max(inner.stuck_until) + late + per_mebibyte.mul_f64(bytes as f64 / f64::from(1 << 20));
        *inner.due.entry(due).or_insert(0) += 1;
        self.under_way.push((due, operation));
    }

    pub(crate) fn take_finished(&mut self) -> Option<Done> {
        let disk = self.disk.clone();
        let mut inner = disk.0.lock();
        let now = inner.now;
        if now < inner.stuck_until {
            return None;
        }
        let at = (0..self.under_way.len()).min_by_key(|at| self.under_way[*at].0)?;
        if self.under_way[at].0 > now {
            return None;
        }
        let (due, mut operation) = self.under_way.remove(at);
        inner.remove_pending(due);
        let file = match operation.target_file() {
            File::Open(file) => file.as_raw_fd(),
            _ => -1,
        };
        let change = match operation.file_effect() {
            Effect::Write { offset, bytes } => Some(Change::Write { file, offset, bytes: bytes.to_vec() }),
            Effect::Allocate { offset, length } => Some(Change::Allocate { file, offset, length }),
            Effect::Truncate { length } => Some(Change::Truncate { file, length }),
            Effect::Create { name } => inner.path_in_directory(file, name).map(Change::File),
            Effect::Remove { name } => inner.path_in_directory(file, name).map(Change::Remove),
            Effect::Sync => Some(Change::Sync { file }),
            Effect::Nothing => None,
        };
        if let Some(Err(error)) = change.as_ref().map(|change| inner.check_fault(change)) {
            return Some(Done { job: operation.into_memory(), result: Err(error) });
        }
        let (job, result) = operation.carry_out_blocking();
        if let (Job::Create { file: Some(made), .. }, Some(Change::File(path))) = (&job, &change) {
            inner.open.insert(made.as_raw_fd(), path.clone());
        }
        if result.is_ok() {
            change.into_iter().for_each(|change| inner.record_change(change));
        }
        Some(Done { job, result })
    }

    /// Fails: the time of a simulated disk does not pass by itself, so it cannot be waited for.
    pub(crate) fn wait_for_completion(&self) -> io::Result<()> {
        Err(io::Error::other("the time of a simulated disk does not pass by itself"))
    }
}

impl AsFd for SimulatedEngine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for SimulatedEngine {
    fn drop(&mut self) {
        let mut inner = self.disk.0.lock();
        self.under_way.iter().for_each(|(due, _)| inner.remove_pending(*due));
    }
}

/// Data that a disk kept: names, each of a file or a directory, and the files' bytes.
#[derive(Debug, Default)]
struct DiskImage {
    directories: BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, usize>,
    files: Vec<Vec<u8>>,
}

impl DiskImage {
    /// Determines for each change whether a later sync covers it; applies those changes, and a random part of the
    /// others.
    fn draw_surviving_data(changes: &[Change], seed: u64) -> Self {
        let mut random = Random(seed);
        let mut kept = Self::default();
        // Current names in memory: writes go to the file of this name, whatever name it has on the disk.
        let mut now: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for (at, change) in changes.iter().enumerate() {
            let later = &changes[at + 1..];
            match change {
                Change::Directory(path) if is_name_synced(path, later) || random.next_bool() => {
                    kept.directories.insert(path.clone());
                }
                Change::File(path) => {
                    let file = kept.files.len();
                    kept.files.push(Vec::new());
                    now.insert(path.clone(), file);
                    if is_name_synced(path, later) || random.next_bool() {
                        kept.names.insert(path.clone(), file);
                    }
                }
                Change::Rename(from, to) => {
                    let Some(file) = now.remove(from) else { continue };
                    now.insert(to.clone(), file);
                    if is_name_synced(to, later) || random.next_bool() {
                        kept.names.retain(|path, _| path != from);
                        kept.names.insert(to.clone(), file);
                    }
                }
                Change::Remove(path) => {
                    now.remove(path);
                    if is_name_synced(path, later) || random.next_bool() {
                        kept.names.remove(path);
                        kept.directories.remove(path);
                    }
                }
                Change::At(path, change) => {
                    let Some(bytes) = now.get(path).map(|file| &mut kept.files[*file]) else { continue };
                    let safe = are_bytes_synced(path, later);
                    match &**change {
                        Change::Write { offset, bytes: written, .. } => {
                            write_kept_sectors(bytes, *offset, written, || safe || random.next_bool());
                        }
                        Change::Allocate { offset, length, .. } if safe || random.next_bool() => {
                            let end = usize::try_from(offset + length).unwrap_or(usize::MAX);
                            bytes.resize(bytes.len().max(end), 0);
                        }
                        Change::Truncate { length, .. } if safe || random.next_bool() => {
                            bytes.resize(usize::try_from(*length).unwrap_or(usize::MAX), 0);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        kept
    }

    fn write_files(&self, of: &Path, to: &Path) -> io::Result<()> {
        std::fs::create_dir_all(to)?;
        for directory in &self.directories {
            if let Ok(inside) = directory.strip_prefix(of) {
                std::fs::create_dir_all(to.join(inside))?;
            }
        }
        for (path, file) in &self.names {
            let Ok(inside) = path.strip_prefix(of) else { continue };
            let copy = to.join(inside);
            if !copy.parent().is_some_and(Path::is_dir) {
                continue;
            }
            let out = OpenOptions::new().write(true).create(true).truncate(true).open(copy)?;
            let bytes = &self.files[*file];
            out.set_len(bytes.len() as u64)?;
            // Allocated space stays a hole.
            for (at, page) in bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
                out.write_all_at(page, at as u64 * 4096)?;
            }
        }
        Ok(())
    }
}

/// Writes the sectors that are kept.
fn write_kept_sectors(file: &mut Vec<u8>, offset: u64, bytes: &[u8], mut keeps: impl FnMut() -> bool) {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    for (at, sector) in bytes.chunks(SECTOR_BYTES).enumerate().filter(|_| keeps()) {
        let begin = offset + at * SECTOR_BYTES;
        file.resize(file.len().max(begin + sector.len()), 0);
        file[begin..begin + sector.len()].copy_from_slice(sector);
    }
}

/// Returns whether the names in the directory of `path` were synced later.
fn is_name_synced(path: &Path, later: &[Change]) -> bool {
    later.iter().any(|change| matches!(change, Change::SyncDirectory(directory) if Some(&**directory) == path.parent()))
}

/// Returns whether the bytes of the file at `path` were synced later.
fn are_bytes_synced(path: &Path, later: &[Change]) -> bool {
    later
        .iter()
        .any(|change| matches!(change, Change::At(at, change) if at == path && matches!(**change, Change::Sync { .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    const QUICK: Access = Access { latency: Duration::ZERO, jitter: Duration::ZERO, per_mebibyte: Duration::ZERO };

    /// Returns what is left of a file of two pages, the first of them synced, whose directory was not synced.
    fn left(seed: u64, synced: bool) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        std::fs::create_dir(&here).unwrap();
        let simulated = SimulatedDisk::new(QUICK, seed);
        let disk = Disk::Simulated(simulated.clone());
        let file = disk.create_file(&here.join("file"), false).unwrap();
        disk.write_at_start(&file, &[1; 4096]).unwrap();
        disk.sync_file(&file).unwrap();
        if synced {
            disk.sync_directory(&here).unwrap();
        }
        disk.write_at_start(&file, &[2; 8192]).unwrap();
        simulated.write_after_power_failure(&here, &there, seed).unwrap();
        std::fs::read(there.join("file")).ok()
    }

    #[test]
    fn what_was_synced_is_there_after_a_power_failure_and_the_rest_in_part() {
        let left: Vec<Vec<u8>> = (0..100).map(|seed| left(seed, true).expect("its name was synced")).collect();
        let sector = |bytes: &[u8], at: usize| bytes[at * SECTOR_BYTES];
        assert!(left.iter().all(|bytes| bytes.len() >= 4096 && bytes[..4096].iter().all(|byte| *byte > 0)));
        let torn = |bytes: &Vec<u8>| (0..8).any(|at| sector(bytes, at) != sector(bytes, 0));
        assert!(left.iter().any(torn), "some writes are torn");
        assert!(left.iter().any(|bytes| bytes.len() < 8192), "some are lost");
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_gone() {
        let left: Vec<Option<Vec<u8>>> = (0..100).map(|seed| left(seed, false)).collect();
        assert!(left.iter().any(Option::is_some) && left.iter().any(Option::is_none));
    }

    #[test]
    fn operations_fail_with_the_configured_fault() {
        let folder = tempfile::tempdir().unwrap();
        let simulated = SimulatedDisk::new(QUICK, 1);
        let disk = Disk::Simulated(simulated.clone());
        let file = disk.create_file(&folder.path().join("file"), false).unwrap();
        simulated.set_fault(Some(DiskFault::Full));
        assert_eq!((disk.write_at_start(&file, &[1]), disk.sync_file(&file)), (Err(Errno::NOSPC), Ok(())));
        simulated.set_fault(Some(DiskFault::Fails(Errno::IO.raw_os_error())));
        assert_eq!(disk.sync_file(&file), Err(Errno::IO));
        simulated.set_fault(None);
        assert_eq!(disk.write_at_start(&file, &[1]), Ok(()));
    }
}
