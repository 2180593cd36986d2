//! Creation of a run on disk: its directory, its lock, its first segment, and the engine.

use super::{EngineChoice, EngineKind, Recorder, RecorderConfig, RecorderMethod, RunBegin};
use crate::disk::Disk;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::format::{BLOCK_ALIGN, FOOTER_ENTRY_LEN, MAX_BLOCK_LEN};
use crate::info::{
    EventCounts, FILE_NAME, FIRST_NAME, LAST_NAME, Milestones, RecorderInfo, RunFile, RunInfo, RunState, Totals,
    WriterInfo, run_directory_name,
};
use crate::list::{builder_directories, parse_directory_name};
use crate::segment::{Segment, segment_file_name};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Block, BlockPool, Registration};
use thalweg_wire::RunNumber;

impl Recorder {
    /// Creates the run's directory, its `run.json` and its first segment. Registers the blocks of `pool` with the kernel,
    /// unless some are in use by a run before this one.
    ///
    /// # Errors
    /// If a run of this number exists, blocks of this size cannot be recorded, or the system refuses. In these cases no
    /// run directory remains.
    pub fn create_run(config: RecorderConfig, pool: &mut BlockPool) -> Result<Self, StoreError> {
        let RecorderConfig {
            directory,
            run,
            builder,
            builders,
            assignment,
            segment_bytes,
            direct,
            engine,
            disk,
            mut begin,
        } = config;
        let block_bytes = pool.block_bytes();
        check_limits(block_bytes, builder, builders)?;
        let mut notes = Vec::new();
        let (mut engine, kind) = start_engine(&disk, engine, &mut notes)?;
        let registration = match kind {
            EngineKind::IoUring => register_pool(&mut engine, pool, &mut notes),
            EngineKind::Threads => None,
        };
        let registered = registration.is_some();

        let (path, run) = make_directory(&disk, &directory, run, builder, builders)?;
        let unfinished = NewDirectory(&disk, &path);
        let lock = File::open(&path).map_err(StoreError::io_error("opening", &path))?;
        lock_exclusively(&lock, &path)?;
        begin.sources.sort_by_key(|source| source.id);
        let next_info = RunFile::reserve_space(&disk, &path, &begin.sources, words_bytes(&begin))?;
        let segment_bytes = segment_bytes.max(block_bytes as u64).next_multiple_of(BLOCK_ALIGN as u64);
        let segment_space = segment_bytes + footer_reserve_bytes(segment_bytes, block_bytes as u64);
        let (segment, direct, allocated_ahead) = create_first_segment(&disk, &path, direct, segment_space, &mut notes)?;
        let method = RecorderMethod { engine: kind, direct, registered, allocated_ahead, notes };

        let info = RunInfo {
            run: run.0,
            builder,
            builders: builders.max(1),
            assignment,
            recorder: recorder_info(&method, block_bytes as u64, segment_bytes),
            ..open_run_info(begin)
        };
        info.write_first_run_json(&disk, &path)?;
        disk.announce_directory(&lock, &path);
        disk.sync_directory(&directory).map_err(StoreError::errno_error("syncing", &directory))?;
        std::mem::forget(unfinished);
        tracing::info!(run = run.0, path = %path.display(), recorder = %method, "recording");
        Ok(Self {
            engine,
            disk,
            _registration: registration,
            method,
            path,
            info,
            next_info,
            segment_bytes,
            segment_space,
            segments: VecDeque::from([segment]),
            ending: false,
            in_flight: VecDeque::new(),
            submitted: 0,
            failure: None,
            complaints: Vec::new(),
            unsynced: 0,
            syncing: 0,
            directory: Arc::new(lock.into()),
        })
    }
}

fn check_limits(block_bytes: usize, builder: u32, builders: u32) -> Result<(), StoreError> {
    if !(2 * BLOCK_ALIGN..=MAX_BLOCK_LEN).contains(&block_bytes) {
        return Err(StoreError::BlockSize(block_bytes));
    }
    if builder >= builders.max(1) {
        return Err(StoreError::Builder { builder, builders });
    }
    Ok(())
}

fn start_engine(
    disk: &Disk,
    choice: EngineChoice,
    notes: &mut Vec<String>,
) -> Result<(Engine, EngineKind), StoreError> {
    let simulated = disk.simulated_engine();
    if simulated.is_some() {
        notes.push("the disk is simulated".into());
    } else if choice == EngineChoice::Best {
        match Engine::with_io_uring() {
            Ok(ring) => return Ok((ring, EngineKind::IoUring)),
            Err(error) => notes.push(format!(
                "io_uring is not available ({error}): a container's seccomp profile or kernel.io_uring_disabled \
                 forbids it"
            )),
        }
    }
    let engine = simulated.unwrap_or_else(Engine::with_threads);
    Ok((engine.map_err(StoreError::io_error("starting threads for", Path::new("the recorder")))?, EngineKind::Threads))
}

/// Registers the pool's blocks under their own numbers, if the kernel allows it.
fn register_pool(engine: &mut Engine, pool: &mut BlockPool, notes: &mut Vec<String>) -> Option<Registration> {
    let (free, count, total) =
        (pool.free_count(), pool.block_count(), pool.block_count() as usize * pool.block_bytes());
    if free != count as usize {
        notes.push(format!(
            "the pool could not be registered with io_uring: {} of its {count} blocks were in use by the run before",
            count as usize - free
        ));
        return None;
    }
    let mut blocks: Vec<&mut Block> = pool.free_blocks_mut().iter_mut().collect();
    blocks.sort_by_key(|block| block.block_index());
    let mut buffers: Vec<&mut [u8]> = blocks.into_iter().map(Block::bytes_mut).collect();
    let Err(error) = engine.register_buffers(&mut buffers) else {
        return Some(pool.arena().record_registration("io_uring"));
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    notes.push(format!(
        "the pool's {} KiB could not be registered with io_uring ({error}): RLIMIT_MEMLOCK is {limit}, raise it with \
         'ulimit -l' or LimitMEMLOCK=",
        total >> 10
    ));
    None
}

/// Creates the run's directory: the requested one, or the next free one. The process that creates it owns the number.
fn make_directory(
    disk: &Disk,
    parent: &Path,
    run: Option<RunNumber>,
    builder: u32,
    builders: u32,
) -> Result<(PathBuf, RunNumber), StoreError> {
    std::fs::create_dir_all(parent).map_err(StoreError::io_error("creating", parent))?;
    let mut number = match run {
        Some(run) => run,
        None => next_run_number(parent)?,
    };
    loop {
        let path = parent.join(run_directory_name(number, builder, builders));
        if let Some(other) = find_other_run(parent, number, builders).filter(|_| run.is_some()) {
            return Err(StoreError::Exists(other));
        }
        match disk.create_directory(&path) {
            Ok(()) => return Ok((path, number)),
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::io_error("creating", &path)(error));
            }
            Err(_) if run.is_some() => return Err(StoreError::Exists(path)),
            // Another process was faster: try the next number.
            Err(_) => {
                let next = number.0.checked_add(1).ok_or_else(|| StoreError::NoNumber(parent.to_owned()))?;
                number = RunNumber(next);
            }
        }
    }
}

/// Returns a directory of a run of this number that has another number of builders: its parts and ours would be taken
/// for one run.
fn find_other_run(parent: &Path, number: RunNumber, builders: u32) -> Option<PathBuf> {
    let alone = parent.join(run_directory_name(number, 0, 1));
    if builders > 1 && alone.symlink_metadata().is_ok() {
        return Some(alone);
    }
    builder_directories(&alone)
        .into_iter()
        .find(|part| RunInfo::read_run_json(part).is_ok_and(|info| info.builders != builders))
}

/// Takes the lock that shows readers that the run is being written. A reader that checks it holds it for an instant, so
/// locking is retried for a while; a process that keeps it must not delay the run for ever.
fn lock_exclusively(directory: &File, path: &Path) -> Result<(), StoreError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked(path.to_owned())),
            // On a file system without locks, readers cannot know whether the writer lives; nothing else depends on the
            // lock.
            _ => return Ok(()),
        }
    }
}

/// A run's directory until everything that makes it a run is in it; removed on failure.
struct NewDirectory<'a>(&'a Disk, &'a Path);

impl Recorder {
    /// Removes a run that was created and is not to begin: none of its blocks were submitted.
    pub fn discard_run(self) {
        if self.submitted == 0 {
            drop(NewDirectory(&self.disk, &self.path));
            tracing::info!(run = self.info.run, "run discarded before it began");
        }
    }
}

impl Drop for NewDirectory<'_> {
    fn drop(&mut self) {
        for name in [segment_file_name(0).as_str(), LAST_NAME, FIRST_NAME, FILE_NAME] {
            let _ = self.0.remove_file(&self.1.join(name));
        }
        let _ = self.0.remove_directory(self.1);
    }
}

/// Returns one more than the highest number in use.
fn next_run_number(parent: &Path) -> Result<RunNumber, StoreError> {
    let entries = std::fs::read_dir(parent).map_err(StoreError::io_error("reading", parent))?;
    let taken = entries.flatten().filter_map(|entry| parse_directory_name(entry.file_name().to_str()?));
    match taken.map(|(run, _)| run.0).max() {
        None => Ok(RunNumber(1)),
        Some(highest) => highest.checked_add(1).map(RunNumber).ok_or_else(|| StoreError::NoNumber(parent.to_owned())),
    }
}

/// Opens segment 0, and finds out what the file system allows: O_DIRECT, and allocating space ahead.
fn create_first_segment(
    disk: &Disk,
    path: &Path,
    direct: bool,
    space: u64,
    notes: &mut Vec<String>,
) -> Result<(Segment, bool, bool), StoreError> {
    let mut uses_direct = direct;
    let (segment, error) = match Segment::create_ready(disk, path, 0, direct, space) {
        Err(StoreError::Io { error, .. }) if direct && error.raw_os_error() == Some(libc::EINVAL) => {
            notes.push("the file system does not support O_DIRECT: blocks pass through the page cache".into());
            uses_direct = false;
            Segment::create_ready(disk, path, 0, false, space)?
        }
        other => other?,
    };
    if let Some(error) = error {
        notes.push(format!("the file system cannot reserve space ({error}): files grow with each block"));
    }
    Ok((segment, uses_direct, error.is_none()))
}

/// Returns the number of bytes of JSON that a run's topology, metadata and comment have.
fn words_bytes(begin: &RunBegin) -> usize {
    let metadata = serde_json::to_vec(&begin.metadata).map_or(0, |text| text.len());
    // A character may have an escape of six.
    begin.configuration.to_string().len() + metadata + 6 * begin.comment.len()
}

/// Returns twice the number of bytes that the footer of a segment full of full blocks takes.
fn footer_reserve_bytes(segment_bytes: u64, block_bytes: u64) -> u64 {
    let blocks = segment_bytes / block_bytes + 64;
    (2 * blocks * FOOTER_ENTRY_LEN as u64).next_multiple_of(BLOCK_ALIGN as u64)
}

/// Returns the contents of `run.json` for a run that has just begun, without its number, its builder and its recorder.
fn open_run_info(begin: RunBegin) -> RunInfo {
    RunInfo {
        format: RunInfo::FORMAT.into(),
        version: RunInfo::FORMAT_VERSION,
        run: 0,
        builder: 0,
        builders: 0,
        assignment: crate::info::modulo(),
        state: RunState::Open,
        reasons: Vec::new(),
        began: begin.began.0,
        ended: None,
        tai_utc_offset: begin.tai_utc_offset,
        times: Milestones { asked: begin.asked.map(|asked| asked.0), ..Milestones::default() },
        kind: begin.kind,
        steps: Vec::new(),
        comment: begin.comment,
        metadata: begin.metadata,
        writer: writer_info(begin.program, begin.version),
        recorder: RecorderInfo::default(),
        sources: begin.sources,
        configuration: begin.configuration,
        events: EventCounts::default(),
        trigger: serde_json::Value::Null,
        left_out: serde_json::Value::Null,
        time_use: serde_json::Value::Null,
        ledger: serde_json::Value::Array(Vec::new()),
        totals: Totals { segments: 1, ..Totals::default() },
    }
}

fn recorder_info(method: &RecorderMethod, block_size: u64, segment_size: u64) -> RecorderInfo {
    RecorderInfo {
        engine: method.engine.to_string(),
        direct: method.direct,
        registered: method.registered,
        allocated_ahead: method.allocated_ahead,
        block_size,
        segment_size,
        notes: method.notes.clone(),
    }
}

fn writer_info(program: String, version: String) -> WriterInfo {
    let system = rustix::system::uname();
    WriterInfo {
        program,
        version,
        host: system.nodename().to_string_lossy().into_owned(),
        kernel: system.release().to_string_lossy().into_owned(),
        pid: std::process::id(),
    }
}

/// Maximum time that a run waits for its lock before it begins.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_who_keeps_a_runs_lock_does_not_keep_it_from_beginning_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::open(directory.path()).unwrap();
        let reader = open();
        rustix::fs::flock(&reader, FlockOperation::LockShared).unwrap();
        let refused = lock_exclusively(&open(), directory.path()).unwrap_err();
        assert!(refused.to_string().contains("is locked by another process"), "{refused}");
        // Another process that checks the lock, and releases it in the meantime.
        std::thread::scope(|scope| {
            let recorder = scope.spawn(|| {
                let lock = open();
                lock_exclusively(&lock, directory.path()).map(|()| lock)
            });
            drop(reader);
            recorder.join().unwrap().unwrap();
        });
    }
}
