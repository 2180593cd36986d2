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
use thalweg_uring::{File, Operation};
use thalweg_wire::{RunNumber, TaiNanos};

/// The name of segment `number`: `00000.seg`.
pub(crate) fn segment_name(number: u32) -> String {
    format!("{number:05}.seg")
}

/// The number in a name that [`segment_name`] gives.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".seg")?.parse().ok()?;
    (name == segment_name(number)).then_some(number)
}

/// A segment file, and what its footer will say.
///
/// Space is set aside ahead of the writes, and the file grows over it at once: O_DIRECT writes that do not change a
/// file's size go to the disk several at a time, those that do one after the other (`ext4_dio_write_checks` in Linux
/// `fs/ext4/file.c` takes the inode's lock alone for them).
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    /// The number of its first block.
    first_block: u64,
    pub(crate) path: Arc<Path>,
    /// Nothing before it is made, and where that failed.
    file: Option<Arc<OwnedFd>>,
    disk: Disk,
    /// Its file is made, or is being made.
    pub(crate) is_begun: bool,
    stage: Stage,
    /// Where the next block goes.
    pub(crate) end: u64,
    /// How far space is set aside.
    allocated: u64,
    /// Nothing more is set aside: the limit is reached, the disk is full, or the file system cannot.
    allocated_enough: bool,
    allocating: bool,
    /// Blocks given to the engine and not known to be written yet.
    pub(crate) outstanding: u32,
    /// Blocks known to be written.
    blocks: Vec<FooterEntry>,
    closings: Vec<Closing>,
    last_written: TaiNanos,
    closing: Close,
}

/// How far a segment is on its way to taking blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its file is being made, or the first space set aside.
    Preparing,
    /// Blocks can be written.
    Ready,
    /// There is no file, and why.
    Failed(Errno),
}

/// How far a segment is on its way to being closed.
#[derive(Debug)]
enum Close {
    /// Blocks may still come, or be under way.
    NotYet,
    /// The space behind the last block is being given back; the footer comes next.
    Cut { footer: Footer },
    /// What there is of a footer that could not be written is being given back.
    CutAgain,
    /// The footer is being written.
    Footer { length: u32 },
    /// The file is being brought to the disk itself.
    Sync,
    /// Done.
    Closed,
}

impl Segment {
    /// Makes the file of a segment, and sets the first space aside where `space` is given, while waiting for both.
    /// Returns beside it why space could not be set aside; that the disk is full is no such reason.
    pub(crate) fn create(
        disk: &Disk,
        directory: &Path,
        number: u32,
        direct: bool,
        space: u64,
    ) -> Result<(Self, Option<Errno>), StoreError> {
        let mut segment = Self::announced(disk, directory, number, 0);
        segment.make(direct).map_err(StoreError::os("creating", &segment.path))?;
        let first = space.min(ALLOCATE_AHEAD);
        let error = segment.file.as_ref().and_then(|file| disk.allocate(file, first).err());
        segment.allocated(error.map_or(Ok(0), Err), space);
        if error.is_some() {
            segment.truncate_now().map_err(StoreError::os("creating", &segment.path))?;
        }
        (segment.is_begun, segment.stage) = (true, Stage::Ready);
        Ok((segment, error.filter(|error| *error != Errno::NOSPC)))
    }

    /// A segment whose file is still to be made: [`made`](Self::made) goes on from there.
    pub(crate) fn announced(disk: &Disk, directory: &Path, number: u32, first_block: u64) -> Self {
        Self {
            number,
            first_block,
            path: directory.join(segment_name(number)).into(),
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
            closing: Close::NotYet,
        }
    }

    /// Makes the file, while waiting for it.
    fn make(&mut self, direct: bool) -> Result<(), Errno> {
        let made = self.disk.create(&self.path, direct).inspect_err(|error| {
            // A file system that refuses O_DIRECT may have made the file before it said so.
            if direct && *error == Errno::INVAL {
                let _ = self.disk.remove_file(&self.path);
            }
        })?;
        self.file = Some(Arc::new(made));
        Ok(())
    }

    /// The file was made, or not. Then the first space is set aside, of a whole of `space`, where that is wanted.
    pub(crate) fn made(
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
            // A kernel that does not make files by io_uring.
            Err(Errno::INVAL) => self.make(direct),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            self.stage = Stage::Failed(error);
            return Err(StoreError::os("creating", &self.path)(error));
        }
        self.stage = Stage::Ready;
        if let Some(space) = space {
            self.stage = Stage::Preparing;
            self.allocating = true;
            let (job, length) = (Job::Allocate { segment: self.number }, self.next_allocation(space));
            engine.start(Operation::allocate(self.file(), job, 0, length));
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> File {
        self.file.as_ref().map_or(File::None, |file| File::Open(Arc::clone(file)))
    }

    /// Whether blocks can be written; not where their time is still to come, or will never come.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Why its file could not be made, where that is so.
    pub(crate) fn failure(&self) -> Option<Errno> {
        match self.stage {
            Stage::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The operation that sets more space aside, when it is time.
    pub(crate) fn allocate_next(&mut self, limit: u64) -> Option<Operation<Job>> {
        let due = self.end + ALLOCATE_AHEAD / 2 > self.allocated;
        if !due || !self.is_ready() || self.allocating || self.allocated_enough || self.allocated >= limit {
            return None;
        }
        self.allocating = true;
        let (job, length) = (Job::Allocate { segment: self.number }, self.next_allocation(limit));
        Some(Operation::allocate(self.file(), job, self.allocated, length))
    }

    fn next_allocation(&self, limit: u64) -> u64 {
        (limit - self.allocated).min(ALLOCATE_AHEAD)
    }

    /// Takes note of space that was set aside, or could not be.
    pub(crate) fn allocated(&mut self, result: Result<u32, Errno>, limit: u64) {
        self.allocating = false;
        if result.is_err() {
            // Writes extend the file from here on; if the disk is full, they will say so.
            self.allocated_enough = true;
        } else {
            self.allocated += self.next_allocation(limit);
        }
    }

    /// The first space was set aside, or could not be: then what ext4 could allocate of it before the disk was full is
    /// given back. It stays with the file otherwise, and nothing is left for anybody.
    pub(crate) fn prepared(&mut self, engine: &mut Engine) {
        if self.stage != Stage::Preparing {
            return;
        }
        if self.allocated_enough {
            engine.start(Operation::truncate(self.file(), Job::Truncate { segment: self.number }, self.end));
        } else {
            self.stage = Stage::Ready;
        }
    }

    /// Notes a block that is written.
    pub(crate) fn add(
        &mut self,
        offset: u64,
        block: u64,
        written: TaiNanos,
        fragments: &[FragmentEntry],
        closings: &[Closing],
    ) {
        self.blocks.push(FooterEntry::new(offset, block, fragments.iter().copied()));
        for closing in closings {
            if !self.closings.last_mut().is_some_and(|last| last.absorb(closing)) {
                self.closings.push(*closing);
            }
        }
        self.last_written = written;
    }

    /// Whether nothing refers to the file any more.
    pub(crate) fn is_idle(&self) -> bool {
        let closes = !matches!(self.closing, Close::NotYet | Close::Closed);
        self.outstanding == 0 && self.stage != Stage::Preparing && !self.allocating && !closes
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.closing, Close::Closed)
    }

    /// Begins to give back the space behind the last block; the footer comes next. The segment is idle.
    pub(crate) fn begin_close(&mut self, run: RunNumber, builder: u32, engine: &mut Engine) {
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
        self.closing = Close::Cut { footer };
        engine.start(Operation::truncate(self.file(), Job::Truncate { segment: self.number }, self.end));
    }

    /// The file was cut behind its last block, or not.
    pub(crate) fn truncated(&mut self, result: Result<u32, Errno>, engine: &mut Engine) -> Result<(), StoreError> {
        let result = match result {
            // A kernel that does not cut files by io_uring.
            Err(Errno::INVAL) => self.truncate_now(),
            other => other.map(drop),
        };
        match std::mem::replace(&mut self.closing, Close::NotYet) {
            Close::Cut { footer } => match result {
                Ok(()) => return self.write_footer(&footer, engine),
                Err(error) => {
                    self.abandon();
                    return Err(StoreError::os("closing", &self.path)(error));
                }
            },
            Close::CutAgain => self.begin_sync(engine),
            other => {
                self.closing = other;
                self.stage = Stage::Ready;
            }
        }
        Ok(())
    }

    /// Cuts the file behind its last block, while waiting for it.
    fn truncate_now(&self) -> Result<(), Errno> {
        self.file.as_ref().map_or(Ok(()), |file| self.disk.truncate(file, self.end))
    }

    fn write_footer(&mut self, footer: &Footer, engine: &mut Engine) -> Result<(), StoreError> {
        // A footer past the longest block there can be is left out: its segment is read by walking the headers.
        let Some(length) = footer.encoded_len() else {
            self.begin_sync(engine);
            return Ok(());
        };
        let memory = BlockPool::new("footer", 1, length).map(|mut pool| pool.take());
        let Ok(Some(mut block)) = memory else {
            self.begin_sync(engine);
            return memory.map(drop).map_err(StoreError::from);
        };
        footer.encode(&mut block.bytes_mut()[..length]);
        let job = Job::Footer { segment: self.number, memory: block };
        engine.start(Operation::write(self.file(), job, 0..length, self.end));
        #[expect(clippy::cast_possible_truncation, reason = "encoded_len stays below MAX_BLOCK_LEN")]
        let length = length as u32;
        self.closing = Close::Footer { length };
        Ok(())
    }

    /// Goes on once the footer is written, or is not: then the file ends behind its last block.
    pub(crate) fn footer_written(&mut self, result: Result<u32, Errno>, engine: &mut Engine) -> Result<(), StoreError> {
        let Close::Footer { length } = self.closing else { return Ok(()) };
        if result == Ok(length) {
            self.end += u64::from(length);
            self.begin_sync(engine);
            return Ok(());
        }
        // Its blocks are to be on the disk itself all the same.
        self.closing = Close::CutAgain;
        engine.start(Operation::truncate(self.file(), Job::Truncate { segment: self.number }, self.end));
        let errno = result.err().unwrap_or(Errno::NOSPC);
        Err(StoreError::os("writing the footer of", &self.path)(errno))
    }

    fn begin_sync(&mut self, engine: &mut Engine) {
        self.closing = Close::Sync;
        engine.start(Operation::sync(self.file(), Job::Sync { segment: self.number }));
    }

    pub(crate) fn synced(&mut self, result: Result<u32, Errno>) -> Result<(), StoreError> {
        self.closing = Close::Closed;
        result.map(drop).map_err(StoreError::os("bringing to the disk", &self.path))
    }

    /// Gives up closing it; it stays readable by walking its headers.
    pub(crate) fn abandon(&mut self) {
        self.closing = Close::Closed;
    }
}

/// Bytes of space set aside at once; a crash leaves at most twice as many behind the last block.
const ALLOCATE_AHEAD: u64 = 256 << 20;
