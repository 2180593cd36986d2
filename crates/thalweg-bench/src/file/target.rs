//! File that is read and written: its content, and its pages in the page cache.

use crate::BenchError;
use crate::drive::Stop;
use crate::memory::ensure_memory_available;
use crate::net::bind_to_processor;
use rustix::fs::{
    Advice, AtFlags, OFlags, StatxFlags, fadvise, fcntl_getfl, fcntl_setfl, fdatasync, fstatfs, fstatvfs, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thalweg_text::ByteSize;
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

/// File whose content identifies the offset of every byte.
#[derive(Debug)]
pub(crate) struct Target {
    file: File,
    dir: PathBuf,
    size: u64,
    content: Content,
}

/// Content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Hole: not written yet.
    Hole,
    /// Output of [`fill_with_pattern`].
    Pattern,
    /// Other data written by a measurement.
    Arbitrary,
    /// Data that another program has written.
    Foreign,
}

/// Longest time that other users may hold pages that are to leave the page cache.
const CACHE_DROP_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes in one write outside of measurements.
const CHUNK_BYTES: usize = 4 << 20;

impl Target {
    /// Makes an empty file in `dir` that no one else can open, and that is gone when this is dropped or the process
    /// ends: without a name (`O_TMPFILE`) if the file system supports that, otherwise its name is removed at once.
    pub(crate) fn create_unnamed(dir: &Path, size: u64) -> Result<Self, BenchError> {
        let doing = format!("making a temporary file in {}", dir.display());
        let file = tempfile::tempfile_in(dir).map_err(BenchError::os_error(doing))?;
        Self::from_empty_file(file, dir, size)
    }

    /// Makes an empty file that others can open; the caller deletes it.
    pub(crate) fn create_named(path: &Path, size: u64) -> Result<Self, BenchError> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(BenchError::file_error(path))?;
        Self::from_empty_file(file, path.parent().unwrap_or(path), size)
    }

    /// Opens an existing file for reading.
    pub(crate) fn open_existing(path: &Path) -> Result<Self, BenchError> {
        let file = File::open(path).map_err(BenchError::file_error(path))?;
        let metadata = file.metadata().map_err(BenchError::file_error(path))?;
        if !metadata.is_file() || metadata.len() == 0 {
            return Err(BenchError::Usage(format!("{}: there is nothing in it to read", path.display())));
        }
        Ok(Self { file, dir: path.to_owned(), size: metadata.len(), content: Content::Foreign })
    }

    fn from_empty_file(file: File, dir: &Path, size: u64) -> Result<Self, BenchError> {
        let target = Self { file, dir: dir.to_owned(), size, content: Content::Hole };
        let space = fstatvfs(&target.file).map_err(target.error_in_directory("asking for free space"))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < size {
            return Err(target.no_space_error(free));
        }
        if target.is_memory_file_system() {
            ensure_memory_available(size)?;
        }
        Ok(target)
    }

    /// Returns the size of the file, in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn borrowed_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes an error in `map_err` that names the failed operation and the directory.
    pub(crate) fn error_in_directory<E: Into<io::Error>>(&self, doing: &str) -> impl FnOnce(E) -> BenchError + use<E> {
        BenchError::os_error(format!("{doing} in {}", self.dir.display()))
    }

    fn no_space_error(&self, free: u64) -> BenchError {
        BenchError::Unavailable {
            what: format!("a file of {} in {}", ByteSize(self.size), self.dir.display()),
            why: format!(
                "{} are free; ask for a smaller --file-size, or for another directory with --path",
                ByteSize(if free > 1 << 20 { free >> 20 << 20 } else { free })
            ),
        }
    }

    /// Ensures that every byte is written: with the pattern, or with any data.
    pub(crate) fn ensure_written(&mut self, with_pattern: bool, stop: &Stop) -> Result<(), BenchError> {
        if self.content == Content::Foreign
            || self.content == Content::Pattern
            || (self.content == Content::Arbitrary && !with_pattern)
        {
            return Ok(());
        }
        self.write_generated(stop, fill_with_pattern)?;
        self.content = Content::Pattern;
        Ok(())
    }

    /// Writes zeros to every byte, on the disk.
    pub(crate) fn overwrite_with_zeros(&mut self, stop: &Stop) -> Result<(), BenchError> {
        let flags = fcntl_getfl(&self.file).map_err(self.error_in_directory("reading a file's flags"))?;
        self.write_generated(stop, |chunk, _| chunk.fill(0))?;
        self.content = Content::Arbitrary;
        self.set_direct_access(flags.contains(OFlags::DIRECT))
    }

    fn write_generated(&mut self, stop: &Stop, make: impl Fn(&mut [u8], u64)) -> Result<(), BenchError> {
        self.set_direct_access(false)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < self.size {
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            let len = usize::try_from(self.size - at).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
            make(&mut chunk[..len], at);
            self.file.write_all_at(&chunk[..len], at).map_err(|error| self.write_error(error))?;
            at += len as u64;
        }
        fdatasync(&self.file).map_err(|error| self.write_error(error.into()))
    }

    fn write_error(&self, error: io::Error) -> BenchError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let space = fstatvfs(&self.file);
                self.no_space_error(space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize)))
            }
            _ => self.error_in_directory("writing a file")(error),
        }
    }

    /// Records that others write to the file from now on.
    pub(crate) fn mark_overwritten(&mut self) {
        self.content = Content::Arbitrary;
    }

    /// Ensures that every byte is in the page cache.
    pub(crate) fn load_into_page_cache(&mut self, stop: &Stop) -> Result<(), BenchError> {
        if thalweg_transfer::cached_bytes(&self.file, &(0..self.size)).is_ok_and(|cached| cached >= self.size) {
            return Ok(());
        }
        self.set_direct_access(false)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < self.size {
            if stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            let read = self.file.read_at(&mut chunk, at).map_err(self.error_in_directory("reading a file"))?;
            if read == 0 {
                return Err(self.error_in_directory("reading a file")(io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
            at += read as u64;
        }
        Ok(())
    }

    /// Announces to the kernel which access follows, so that it reads ahead or does not.
    pub(crate) fn advise_access_pattern(&self, random: bool) -> Result<(), BenchError> {
        let advice = if random { Advice::Random } else { Advice::Sequential };
        fadvise(&self.file, 0, None, advice).map_err(self.error_in_directory("advising about a file"))
    }

    /// Ensures that no page of the file is in the page cache.
    pub(crate) fn drop_page_cache(&self) -> Result<(), BenchError> {
        fdatasync(&self.file).map_err(|error| self.write_error(error.into()))?;
        let begun = Instant::now();
        let left = loop {
            fadvise(&self.file, 0, None, Advice::DontNeed)
                .map_err(self.error_in_directory("dropping a file from the page cache"))?;
            // Linux before 6.5 does not report it.
            let left = thalweg_transfer::cached_bytes(&self.file, &(0..self.size)).unwrap_or(0);
            if left <= self.size / 100 || begun.elapsed() > CACHE_DROP_TIMEOUT || self.is_memory_file_system() {
                break left;
            }
            release_network_pages();
        };
        if left > self.size / 100 {
            let why = if self.is_memory_file_system() {
                format!("{} is on tmpfs, which keeps files in the page cache and nowhere else", self.dir.display())
            } else {
                format!("the kernel kept {} of {} in the page cache", ByteSize(left), ByteSize(self.size))
            };
            return Err(BenchError::Unavailable { what: "a cold read".to_owned(), why });
        }
        Ok(())
    }

    /// Makes access bypass the page cache, or go through it.
    pub(crate) fn set_direct_access(&self, direct: bool) -> Result<(), BenchError> {
        let flags = fcntl_getfl(&self.file).map_err(self.error_in_directory("reading a file's flags"))?;
        let wanted = if direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        if wanted == flags {
            return Ok(());
        }
        fcntl_setfl(&self.file, wanted).map_err(|error| match error {
            Errno::INVAL => self.no_direct_access_error("the file system refuses O_DIRECT"),
            error => self.error_in_directory("setting O_DIRECT for a file")(error),
        })
    }

    /// Returns an error if blocks of `size` cannot bypass the page cache.
    pub(crate) fn check_direct_access(&self, size: u64) -> Result<(), BenchError> {
        if self.is_memory_file_system() {
            return Err(self.no_direct_access_error("tmpfs keeps files in the page cache and nowhere else"));
        }
        let wanted = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        // Linux before 6.1, and some file systems, do not report it: the first read or write fails instead.
        let Some(stat) = wanted.ok().filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0) else {
            return Ok(());
        };
        match u64::from(stat.stx_dio_offset_align) {
            0 => Err(self.no_direct_access_error("the file system does not do O_DIRECT with this file")),
            align if !size.is_multiple_of(align) => {
                Err(misaligned_error(size, &format!("the disk takes multiples of {align} B")))
            }
            _ => Ok(()),
        }
    }

    fn no_direct_access_error(&self, why: &str) -> BenchError {
        BenchError::Unavailable {
            what: format!("direct access in {}", self.dir.display()),
            why: format!("{why}; use --method buffered, or another directory with --path"),
        }
    }

    /// Returns whether the file is on tmpfs or ramfs (statfs(2)).
    fn is_memory_file_system(&self) -> bool {
        fstatfs(&self.file).is_ok_and(|stat| matches!(stat.f_type, 0x0102_1994 | 0x8584_58f6))
    }
}

/// Makes the kernel free the pages of files that were sent to a receiver on this host. The kernel frees them on the
/// processor that sent them, several at a time, and not before that processor has network work again
/// (`skb_attempt_defer_free`, net/core/skbuff.c). A datagram on each processor is such work.
fn release_network_pages() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| rustix::thread::CpuSet::new());
    let cpus = (0..1024).filter(|cpu| allowed.is_set(*cpu as usize));
    // A thread of its own, since it gets bound to processors. If it fails, pages stay where they are, and the caller
    // sees that.
    std::thread::scope(|scope| drop(scope.spawn(|| cpus.filter_map(send_datagram_on).count()).join()));
}

/// Binds this thread to a processor and sends a datagram to itself.
fn send_datagram_on(cpu: u32) -> Option<usize> {
    bind_to_processor(Some(cpu)).ok()?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    socket.send_to(&[0], socket.local_addr().ok()?).ok()
}

pub(crate) fn misaligned_error(size: u64, why: &str) -> BenchError {
    BenchError::Unavailable { what: format!("direct access in blocks of {}", ByteSize(size)), why: why.to_owned() }
}

/// Returns the file system that a directory lies on, and its device, for people: `ext4 on /dev/vda`
/// (proc_pid_mountinfo(5)).
pub(crate) fn describe_mount(dir: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    find_mount(&mounts, &dir).unwrap_or_else(|| "a file system that has no name".to_owned())
}

/// Returns the last of the longest mount points above the directory: a later mount covers an earlier one.
fn find_mount(mounts: &str, dir: &Path) -> Option<String> {
    let lines = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let mut after = after.split(' ');
        Some((point, after.next()?, after.next()?))
    });
    let covering = lines.filter(|(point, ..)| dir.starts_with(point));
    covering.max_by_key(|(point, ..)| point.len()).map(|(_, kind, device)| format!("{kind} on {device}"))
}

/// Fills `bytes` with the file's content from `offset` on: eight bytes that encode their offset, mixed so that no disk
/// can compress them.
pub(crate) fn fill_with_pattern(bytes: &mut [u8], offset: u64) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = mix_bits((at / 8).wrapping_add(GOLDEN_GAMMA)).to_le_bytes();
        let skip = usize::try_from(at % 8).expect("below 8");
        let (now, later) = rest.split_at_mut((8 - skip).min(rest.len()));
        now.copy_from_slice(&word[skip..skip + now.len()]);
        at += now.len() as u64;
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_what_is_mounted_closest_to_it() {
        let mounts = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      44 21 7:0 / /mnt/a\\040disk rw shared:9 - xfs /dev/loop0 rw\n\
                      nonsense\n";
        let on = |dir: &str| find_mount(mounts, Path::new(dir));
        assert_eq!(on("/home/daq").as_deref(), Some("ext4 on /dev/vda"));
        assert_eq!(on("/mnt/a disk/runs").as_deref(), Some("xfs on /dev/loop0"));
        assert_eq!(on("/mnt/a diskette").as_deref(), Some("ext4 on /dev/vda"));
        assert_eq!(find_mount("", Path::new("/")), None);
    }
}
