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
    file: Arc<OwnedFd>,
    disk: Disk,
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

/// How far a segment is on its way to being closed.
#[derive(Debug)]
enum Close {
    /// Blocks may still come, or be under way.
    NotYet,
    /// The footer is being written.
    Footer { length: u32 },
    /// The file is being brought to the disk itself.
    Sync,
    /// Done.
    Closed,
}

impl Segment {
    pub(crate) fn create(
        disk: &Disk,
        directory: &Path,
        number: u32,
        first_block: u64,
        direct: bool,
    ) -> Result<Self, StoreError> {
        let path: Arc<Path> = directory.join(segment_name(number)).into();
        let file = disk.create(&path, direct).map_err(|error| {
            // A file system that refuses O_DIRECT may have made the file before it said so.
            if direct && error == Errno::INVAL {
                let _ = disk.remove_file(&path);
            }
            StoreError::os("creating", &path)(error)
        })?;
        Ok(Self {
            number,
            first_block,
            path,
            file: Arc::new(file),
            disk: disk.clone(),
            end: 0,
            allocated: 0,
            allocated_enough: false,
            allocating: false,
            outstanding: 0,
            blocks: Vec::new(),
            closings: Vec::new(),
            last_written: TaiNanos(0),
            closing: Close::NotYet,
        })
    }

    pub(crate) fn file(&self) -> File {
        File::Open(Arc::clone(&self.file))
    }

    /// Sets the first space aside, while waiting for it. An error other than a full disk means that the file system
    /// cannot do it.
    pub(crate) fn allocate_first(&mut self, limit: u64) -> Result<(), Errno> {
        let length = limit.min(ALLOCATE_AHEAD);
        match self.disk.allocate(&self.file, length) {
            Ok(()) => {
                self.allocated = length;
                Ok(())
            }
            Err(error) => {
                self.allocated_enough = true;
                // What ext4 could allocate of it before the disk was full stays with the file otherwise, and nothing is
                // left for anybody.
                self.disk.truncate(&self.file, 0)?;
                if error == Errno::NOSPC { Ok(()) } else { Err(error) }
            }
        }
    }

    /// The operation that sets more space aside, when it is time.
    pub(crate) fn allocate_next(&mut self, limit: u64) -> Option<Operation<Job>> {
        let due = self.end + ALLOCATE_AHEAD / 2 > self.allocated;
        if !due || self.allocating || self.allocated_enough || self.allocated >= limit {
            return None;
        }
        self.allocating = true;
        let (job, length) = (Job::Allocate { segment: self.number }, self.next_allocation(limit));
        Some(Operation::allocate(self.file(), job, self.allocated, length))
    }

    fn next_allocation(&self, limit: u64) -> u64 {
        (limit - self.allocated).min(ALLOCATE_AHEAD)
    }

    pub(crate) fn allocated(&mut self, result: Result<u32, Errno>, limit: u64) {
        self.allocating = false;
        if result.is_err() {
            // Writes extend the file from here on; if the disk is full, they will say so.
            self.allocated_enough = true;
        } else {
            self.allocated += self.next_allocation(limit);
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
        self.outstanding == 0 && !self.has_job()
    }

    /// Whether the engine has something to do with it beside blocks.
    pub(crate) fn has_job(&self) -> bool {
        self.allocating || matches!(self.closing, Close::Footer { .. } | Close::Sync)
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.closing, Close::Closed)
    }

    /// Gives back the space behind the last block and begins to write the footer. The segment is idle.
    pub(crate) fn begin_close(&mut self, run: RunNumber, builder: u32, engine: &mut Engine) -> Result<(), StoreError> {
        debug_assert!(self.is_idle());
        self.disk.truncate(&self.file, self.end).map_err(StoreError::os("closing", &self.path))?;
        let footer = Footer {
            run,
            builder,
            next_block: self.first_block + self.blocks.len() as u64,
            offset: self.end,
            written: self.last_written,
            blocks: std::mem::take(&mut self.blocks),
            closings: std::mem::take(&mut self.closings),
        };
        // A footer past the longest block there can be is left out: its segment is read by walking the headers.
        let Some(length) = footer.encoded_len() else {
            self.begin_sync(engine);
            return Ok(());
        };
        let mut pool = BlockPool::new("footer", 1, length)?;
        let Some(mut block) = pool.take() else {
            self.begin_sync(engine);
            return Ok(());
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
        let _ = self.disk.truncate(&self.file, self.end);
        self.begin_sync(engine);
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
