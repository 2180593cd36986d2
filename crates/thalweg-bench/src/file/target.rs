//! The temporary file that is read and written: what it holds, and whether it is in the page cache.

use crate::BenchError;
use crate::drive::Stop;
use crate::memory::must_fit;
use rustix::fs::{
    Advice, AtFlags, OFlags, StatxFlags, fadvise, fcntl_getfl, fcntl_setfl, fdatasync, fstatfs, fstatvfs, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thalweg_device::ByteSize;

/// A file that nobody else can open, and that is gone when this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct Target {
    file: File,
    dir: PathBuf,
    size: u64,
    content: Content,
}

/// What every byte of the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Not written: a hole.
    Nothing,
    /// What [`pattern`] says.
    Pattern,
    /// Something that was written.
    Something,
}

/// Bytes that are written at once where nobody measures.
const CHUNK: usize = 4 << 20;

impl Target {
    /// An empty file in `dir`: without a name (`O_TMPFILE`) where the file system can, otherwise its name is taken away at
    /// once.
    pub(super) fn create(dir: &Path, size: u64) -> Result<Self, BenchError> {
        let doing = format!("making a temporary file in {}", dir.display());
        let file = tempfile::tempfile_in(dir).map_err(BenchError::os(doing))?;
        let target = Self { file, dir: dir.to_owned(), size, content: Content::Nothing };
        let space = fstatvfs(&target.file).map_err(target.error("asking for free space"))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < size {
            return Err(target.no_space(free));
        }
        if target.memory_is_its_disk() {
            must_fit(size)?;
        }
        Ok(target)
    }

    /// Bytes in it.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// For `map_err`: what was being done to a file where.
    pub(super) fn error<E: Into<io::Error>>(&self, doing: &str) -> impl FnOnce(E) -> BenchError + use<E> {
        BenchError::os(format!("{doing} in {}", self.dir.display()))
    }

    fn no_space(&self, free: u64) -> BenchError {
        BenchError::Unavailable {
            what: format!("a file of {} in {}", ByteSize(self.size), self.dir.display()),
            why: format!(
                "{} are free; ask for a smaller --file-size, or for another directory with --path",
                ByteSize(if free > 1 << 20 { free >> 20 << 20 } else { free })
            ),
        }
    }

    /// Has every byte written: with the pattern, or with whatever.
    pub(super) fn fill(&mut self, with_pattern: bool, stop: &Stop) -> Result<(), BenchError> {
        if self.content == Content::Pattern || (self.content == Content::Something && !with_pattern) {
            return Ok(());
        }
        self.write_all(stop, pattern)?;
        self.content = Content::Pattern;
        Ok(())
    }

    /// Has every byte zero, on disk.
    pub(super) fn clear(&mut self, stop: &Stop) -> Result<(), BenchError> {
        let flags = fcntl_getfl(&self.file).map_err(self.error("reading a file's flags"))?;
        self.write_all(stop, |chunk, _| chunk.fill(0))?;
        self.content = Content::Something;
        self.set_direct(flags.contains(OFlags::DIRECT))
    }

    fn write_all(&mut self, stop: &Stop, make: impl Fn(&mut [u8], u64)) -> Result<(), BenchError> {
        self.set_direct(false)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        while at < self.size {
            if stop.pressed() {
                return Err(BenchError::Stopped);
            }
            let len = usize::try_from(self.size - at).map_or(CHUNK, |left| left.min(CHUNK));
            make(&mut chunk[..len], at);
            self.file.write_all_at(&chunk[..len], at).map_err(|error| self.not_written(error))?;
            at += len as u64;
        }
        fdatasync(&self.file).map_err(|error| self.not_written(error.into()))
    }

    fn not_written(&self, error: io::Error) -> BenchError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let space = fstatvfs(&self.file);
                self.no_space(space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize)))
            }
            _ => self.error("writing a file")(error),
        }
    }

    /// It is written to by others now.
    pub(super) fn overwritten(&mut self) {
        self.content = Content::Something;
    }

    /// Reads every byte into the page cache.
    pub(super) fn warm(&mut self, stop: &Stop) -> Result<(), BenchError> {
        self.set_direct(false)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        while at < self.size {
            if stop.pressed() {
                return Err(BenchError::Stopped);
            }
            let read = self.file.read_at(&mut chunk, at).map_err(self.error("reading a file"))?;
            if read == 0 {
                return Err(self.error("reading a file")(io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
            at += read as u64;
        }
        Ok(())
    }

    /// Tells the kernel what comes, so that it reads ahead or does not.
    pub(super) fn advise(&self, random: bool) -> Result<(), BenchError> {
        let advice = if random { Advice::Random } else { Advice::Sequential };
        fadvise(&self.file, 0, None, advice).map_err(self.error("advising about a file"))
    }

    /// Has no page of the file in the page cache.
    pub(super) fn drop_cache(&self) -> Result<(), BenchError> {
        fdatasync(&self.file).map_err(|error| self.not_written(error.into()))?;
        fadvise(&self.file, 0, None, Advice::DontNeed).map_err(self.error("dropping a file from the page cache"))?;
        let left = cached_bytes(self.fd()).unwrap_or(0);
        if left > self.size / 100 {
            let why = if self.memory_is_its_disk() {
                format!("{} is on tmpfs, which keeps files in the page cache and nowhere else", self.dir.display())
            } else {
                format!("the kernel kept {} of {} in the page cache", ByteSize(left), ByteSize(self.size))
            };
            return Err(BenchError::Unavailable { what: "a cold read".to_owned(), why });
        }
        Ok(())
    }

    /// Past the page cache, or through it.
    pub(super) fn set_direct(&self, direct: bool) -> Result<(), BenchError> {
        let flags = fcntl_getfl(&self.file).map_err(self.error("reading a file's flags"))?;
        let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        if wanted == flags {
            return Ok(());
        }
        fcntl_setfl(&self.file, wanted).map_err(|error| match error {
            Errno::INVAL => self.never_direct("the file system refuses O_DIRECT"),
            error => self.error("setting O_DIRECT for a file")(error),
        })
    }

    /// An error where blocks of `size` cannot go past the page cache.
    pub(super) fn can_be_direct(&self, size: u64) -> Result<(), BenchError> {
        if self.memory_is_its_disk() {
            return Err(self.never_direct("tmpfs keeps files in the page cache and nowhere else"));
        }
        let wanted = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        // Linux before 6.1, and some file systems, do not say: then the first read or write does.
        let Some(told) = wanted.ok().filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0) else {
            return Ok(());
        };
        match u64::from(told.stx_dio_offset_align) {
            0 => Err(self.never_direct("the file system does not do O_DIRECT with this file")),
            align if !size.is_multiple_of(align) => {
                Err(misaligned(size, &format!("the disk takes multiples of {align} B")))
            }
            _ => Ok(()),
        }
    }

    fn never_direct(&self, why: &str) -> BenchError {
        BenchError::Unavailable {
            what: format!("direct access in {}", self.dir.display()),
            why: format!("{why}; use --method buffered, or another directory with --path"),
        }
    }

    /// tmpfs or ramfs (statfs(2)).
    fn memory_is_its_disk(&self) -> bool {
        fstatfs(&self.file).is_ok_and(|told| matches!(told.f_type, 0x0102_1994 | 0x8584_58f6))
    }
}

pub(super) fn misaligned(size: u64, why: &str) -> BenchError {
    BenchError::Unavailable { what: format!("direct access in blocks of {}", ByteSize(size)), why: why.to_owned() }
}

/// Bytes of the file in the page cache; nothing before Linux 6.5.
fn cached_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    /// cachestat(2), the same number on every architecture but Alpha.
    const CACHESTAT: libc::c_long = 451;
    // struct cachestat_range: from byte 0 to the end, which is written 0.
    let range = [0u64; 2];
    // struct cachestat: pages in the cache, dirty, under writeback, evicted, recently evicted.
    let mut pages = [0u64; 5];
    // SAFETY: the kernel reads `range` and writes `pages`, which have the sizes of its structures, before it returns.
    let result = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0u32) };
    (result == 0).then(|| pages[0].saturating_mul(rustix::param::page_size() as u64))
}

/// What the file holds from `offset` on: eight bytes that say where they are, mixed so that no disk can compress them.
pub(super) fn pattern(bytes: &mut [u8], offset: u64) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = mix(at / 8).to_le_bytes();
        let skip = usize::try_from(at % 8).expect("below 8");
        let (now, later) = rest.split_at_mut((8 - skip).min(rest.len()));
        now.copy_from_slice(&word[skip..skip + now.len()]);
        at += now.len() as u64;
        rest = later;
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
