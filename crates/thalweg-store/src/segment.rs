//! One segment file while it is being written.

use crate::StoreError;
use crate::disk::Disk;
use crate::engine::{Engine, Job};
use crate::format::{Closing, Footer, FooterEntry, FragmentEntry};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use thalweg_arena::BlockPool;
use thalweg_sys::uring::{File, Operation};
use thalweg_wire::{RunNumber, TaiNanos};

/// Returns the file name of segment `number`: `00000.seg`.
pub(crate) fn segment_file_name(number: u32) -> String {
    format!("{number:05}.seg")
}

/// Returns the number in a name that [`segment_file_name`] returns.
pub(crate) fn parse_segment_number(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    (name == segment_file_name(number)).then_some(number)
}

/// A segment file, and the contents of its future footer.
///
/// Space is allocated ahead of the writes, and the file grows over it at once: O_DIRECT writes that do not change a
/// file's size go to the disk several at a time, those that do one after the other (`ext4_dio_write_checks` in Linux
/// `fs/ext4/file.c` takes the inode's lock exclusively for them).
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    /// Number of the segment's first block.
    first_block: u64,
    pub(crate) path: Arc<Path>,
    /// File of the segment; `None` before it is created, and if that failed.
    file: Option<Arc<OwnedFd>>,
    disk: Disk,
    /// Set once the file is created, or being created.
    pub(crate) is_begun: bool,
    stage: Stage,
    /// Offset at which the next block goes, in bytes.
    pub(crate) end: u64,
    /// Offset up to which space is allocated, in bytes.
    allocated: u64,
    /// Set once no more space is to be allocated: the limit is reached, the disk is full, or the file system cannot
    /// allocate ahead.
    allocated_enough: bool,
    allocating: bool,
    /// Number of blocks given to the engine and not known to be written yet.
    pub(crate) outstanding: u32,
    /// Footer entries of the blocks known to be written.
    blocks: Vec<FooterEntry>,
    closings: Vec<Closing>,
    last_written: TaiNanos,
    closing: CloseStage,
}

/// Progress of a segment towards taking blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The file is being created, or its first space allocated.
    Preparing,
    /// Blocks can be written.
    Ready,
    /// The file could not be created, for the given reason.
    Failed(Errno),
}

/// Progress of a segment towards being closed.
#[derive(Debug)]
enum CloseStage {
    /// Blocks may still come, or be under way.
    NotYet,
    /// The space after the last block is being given back; the footer comes next.
    Cut { footer: Footer },
    /// The partial footer that could not be completed is being cut off.
    CutAgain,
    /// The footer is being written.
    Footer { length: u32 },
    /// The file is being synced to disk.
    Sync,
    /// The segment is closed.
    Closed,
}

impl Segment {
    /// Creates the file of a segment, allocates its first space, and waits for both. Also returns the error if space
    /// could not be allocated; a full disk does not count as one.
    pub(crate) fn create_ready(
        disk: &Disk,
        directory: &Path,
        number: u32,
        direct: bool,
        space: u64,
    ) -> Result<(Self, Option<Errno>), StoreError> {
        let mut segment = Self::new_pending(disk, directory, number, 0);
        segment.create_file(direct).map_err(StoreError::errno_error("creating", &segment.path))?;
        let first = space.min(ALLOCATE_AHEAD);
        let error = segment.file.as_ref().and_then(|file| disk.allocate_space(file, first).err());
        segment.note_allocated(error.map_or(Ok(0), Err), space);
        if error.is_some() {
            segment.truncate_now().map_err(StoreError::errno_error("creating", &segment.path))?;
        }
        (segment.is_begun, segment.stage) = (true, Stage::Ready);
        Ok((segment, error.filter(|error| *error != Errno::NOSPC)))
    }

    /// Returns a segment whose file is still to be created: [`note_created`](Self::note_created) continues from there.
    pub(crate) fn new_pending(disk: &Disk, directory: &Path, number: u32, first_block: u64) -> Self {
        Self {
            number,
            first_block,
            path: directory.join(segment_file_name(number)).into(),
            file: None,
            disk: disk.clone(),
            is_begun: false,
            stage: Stage::Preparing,
            end: 0,
            allocated: 0,
            allocated_enough: false,
            allocating: false,
            outstanding: 0,
            blocks: Vec::new(),
            closings: Vec::new(),
            last_written: TaiNanos(0),
            closing: CloseStage::NotYet,
        }
    }

    /// Creates the file, and waits for it.
    fn create_file(&mut self, direct: bool) -> Result<(), Errno> {
        let made = self.disk.create_file(&self.path, direct).inspect_err(|error| {
            // A file system that refuses O_DIRECT may have created the file before it refused.
            if direct && *error == Errno::INVAL {
                let _ = self.disk.remove_file(&self.path);
            }
        })?;
        self.file = Some(Arc::new(made));
        Ok(())
    }

    /// Handles the result of creating the file. Then begins to allocate the first space, if `space` gives the total to
    /// allocate.
    pub(crate) fn note_created(
        &mut self,
        made: Result<Option<OwnedFd>, Errno>,
        direct: bool,
        space: Option<u64>,
        engine: &mut Engine,
    ) -> Result<(), StoreError> {
        let outcome = match made {
            Ok(file) => {
                self.file = file.map(Arc::new);
                Ok(())
            }
            // A kernel that cannot create files through io_uring.
            Err(Errno::INVAL) => self.create_file(direct),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            self.stage = Stage::Failed(error);
            return Err(StoreError::errno_error("creating", &self.path)(error));
        }
        self.stage = Stage::Ready;
        if let Some(space) = space {
            self.stage = Stage::Preparing;
            self.allocating = true;
            let (job, length) = (Job::Allocate { segment: self.number }, self.next_allocation_bytes(space));
            engine.start_operation(Operation::allocate_space(self.operation_file(), job, 0, length));
        }
        Ok(())
    }

    pub(crate) fn operation_file(&self) -> File {
        self.file.as_ref().map_or(File::None, |file| File::Open(Arc::clone(file)))
    }

    /// Returns whether blocks can be written now: false before the file is ready, and if it could not be created.
    pub(crate) fn is_ready_for_blocks(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Returns the error if the file could not be created.
    pub(crate) fn creation_error(&self) -> Option<Errno> {
        match self.stage {
            Stage::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the operation that allocates more space, if it is due.
    pub(crate) fn next_allocate_operation(&mut self, limit: u64) -> Option<Operation<Job>> {
        let due = self.end + ALLOCATE_AHEAD / 2 > self.allocated;
        if !due || !self.is_ready_for_blocks() || self.allocating || self.allocated_enough || self.allocated >= limit {
            return None;
        }
        self.allocating = true;
        let (job, length) = (Job::Allocate { segment: self.number }, self.next_allocation_bytes(limit));
        Some(Operation::allocate_space(self.operation_file(), job, self.allocated, length))
    }

    fn next_allocation_bytes(&self, limit: u64) -> u64 {
        (limit - self.allocated).min(ALLOCATE_AHEAD)
    }

    /// Processes the result of allocating space.
    pub(crate) fn note_allocated(&mut self, result: Result<u32, Errno>, limit: u64) {
        self.allocating = false;
        if result.is_err() {
            // From here on writes extend the file; if the disk is full, they fail.
            self.allocated_enough = true;
        } else {
            self.allocated += self.next_allocation_bytes(limit);
        }
    }

    /// Handles the result of allocating the first space. If it failed, the space that ext4 allocated before the disk
    /// was full is given back; otherwise it would stay with the file, and leave none for other files.
    pub(crate) fn note_prepared(&mut self, engine: &mut Engine) {
        if self.stage != Stage::Preparing {
            return;
        }
        if self.allocated_enough {
            engine.start_operation(Operation::set_file_length(
                self.operation_file(),
                Job::Truncate { segment: self.number },
                self.end,
            ));
        } else {
            self.stage = Stage::Ready;
        }
    }

    /// Adds a written block to the future footer.
    pub(crate) fn add_block(
        &mut self,
        offset: u64,
        block: u64,
        written: TaiNanos,
        fragments: &[FragmentEntry],
        closings: &[Closing],
    ) {
        self.blocks.push(FooterEntry::new(offset, block, fragments.iter().copied()));
        for closing in closings {
            if !self.closings.last_mut().is_some_and(|last| last.merge_next(closing)) {
                self.closings.push(*closing);
            }
        }
        self.last_written = written;
    }

    /// Returns whether no operation uses the file any more.
    pub(crate) fn is_idle(&self) -> bool {
        let closes = !matches!(self.closing, CloseStage::NotYet | CloseStage::Closed);
        self.outstanding == 0 && self.stage != Stage::Preparing && !self.allocating && !closes
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.closing, CloseStage::Closed)
    }

    /// Begins to give back the space after the last block; the footer comes next. The segment is idle.
    pub(crate) fn begin_closing(&mut self, run: RunNumber, builder: u32, engine: &mut Engine) {
        debug_assert!(self.is_idle());
        let footer = Footer {
            run,
            builder,
            next_block: self.first_block + self.blocks.len() as u64,
            offset: self.end,
            written: self.last_written,
            blocks: std::mem::take(&mut self.blocks),
            closings: std::mem::take(&mut self.closings),
        };
        self.closing = CloseStage::Cut { footer };
        engine.start_operation(Operation::set_file_length(
            self.operation_file(),
            Job::Truncate { segment: self.number },
            self.end,
        ));
    }

    /// Handles the result of truncating the file after its last block.
    pub(crate) fn note_truncated(&mut self, result: Result<u32, Errno>, engine: &mut Engine) -> Result<(), StoreError> {
        let result = match result {
            // A kernel that cannot truncate files through io_uring.
            Err(Errno::INVAL) => self.truncate_now(),
            other => other.map(drop),
        };
        match std::mem::replace(&mut self.closing, CloseStage::NotYet) {
            CloseStage::Cut { footer } => match result {
                Ok(()) => return self.write_footer(&footer, engine),
                Err(error) => {
                    self.abandon_closing();
                    return Err(StoreError::errno_error("closing", &self.path)(error));
                }
            },
            CloseStage::CutAgain => self.begin_sync(engine),
            other => {
                self.closing = other;
                self.stage = Stage::Ready;
            }
        }
        Ok(())
    }

    /// Truncates the file after its last block, and waits for it.
    fn truncate_now(&self) -> Result<(), Errno> {
        self.file.as_ref().map_or(Ok(()), |file| self.disk.truncate_file(file, self.end))
    }

    fn write_footer(&mut self, footer: &Footer, engine: &mut Engine) -> Result<(), StoreError> {
        // A footer longer than the longest block is left out: readers of its segment walk the headers.
        let Some(length) = footer.encoded_bytes() else {
            self.begin_sync(engine);
            return Ok(());
        };
        let memory = BlockPool::new("footer", 1, length).map(|mut pool| pool.take_block());
        let Ok(Some(mut block)) = memory else {
            self.begin_sync(engine);
            return memory.map(drop).map_err(StoreError::from);
        };
        footer.encode_into(&mut block.bytes_mut()[..length]);
        let job = Job::Footer { segment: self.number, memory: block };
        engine.start_operation(Operation::write_range(self.operation_file(), job, 0..length, self.end));
        #[expect(clippy::cast_possible_truncation, reason = "encoded_len stays below MAX_BLOCK_LEN")]
        let length = length as u32;
        self.closing = CloseStage::Footer { length };
        Ok(())
    }

    /// Continues once the footer is written or has failed; on failure the file is to end after its last block.
    pub(crate) fn note_footer_written(
        &mut self,
        result: Result<u32, Errno>,
        engine: &mut Engine,
    ) -> Result<(), StoreError> {
        let CloseStage::Footer { length } = self.closing else { return Ok(()) };
        if result == Ok(length) {
            self.end += u64::from(length);
            self.begin_sync(engine);
            return Ok(());
        }
        // The blocks must be synced to disk all the same.
        self.closing = CloseStage::CutAgain;
        engine.start_operation(Operation::set_file_length(
            self.operation_file(),
            Job::Truncate { segment: self.number },
            self.end,
        ));
        let errno = result.err().unwrap_or(Errno::NOSPC);
        Err(StoreError::errno_error("writing the footer of", &self.path)(errno))
    }

    fn begin_sync(&mut self, engine: &mut Engine) {
        self.closing = CloseStage::Sync;
        engine.start_operation(Operation::sync_file(self.operation_file(), Job::Sync { segment: self.number }));
    }

    pub(crate) fn note_synced(&mut self, result: Result<u32, Errno>) -> Result<(), StoreError> {
        self.closing = CloseStage::Closed;
        result.map(drop).map_err(StoreError::errno_error("syncing", &self.path))
    }

    /// Gives up closing the segment; readers can still walk its headers.
    pub(crate) fn abandon_closing(&mut self) {
        self.closing = CloseStage::Closed;
    }
}

/// Number of bytes allocated at a time; a crash leaves at most twice as many after the last block.
const ALLOCATE_AHEAD: u64 = 256 << 20;
