//! State of a file in the page cache.

use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Returns the number of bytes of a range of a file that the page cache holds, in whole pages (`cachestat(2)`, Linux
/// 6.5).
///
/// # Errors
/// The kernel is too old to report it, or the file system keeps no such pages.
pub fn cached_bytes(file: &File, range: &Range<u64>) -> io::Result<u64> {
    if range.is_empty() {
        return Ok(0);
    }
    let page = rustix::param::page_size() as u64;
    let start = range.start - range.start % page;
    let cached = cached_pages(file, start..range.end)? * page;
    if cached >= range.end.saturating_sub(start) {
        return Ok(cached);
    }
    // For a range that begins inside a folio of 2 MiB the kernel counts that folio and none after it (Linux 6.18;
    // `mincore` sees them all). The count is right from a possible beginning of a folio.
    let folio = start - start % (page << LARGEST_FOLIO);
    let (whole, before) = (cached_pages(file, folio..range.end)?, cached_pages(file, folio..start)?);
    // Pages may be added and removed between the two calls.
    Ok(whole.saturating_sub(before) * page)
}

/// Returns whether the page cache seems to hold a range of a file, judging by its last byte and one in every 512 KiB
/// before it: the cost of checking all pages is noticeable beside the cost of sending them, and so is that of each
/// system call. The check changes nothing; without `cachestat` the kernel is asked to read a byte without waiting
/// (`RWF_NOWAIT`, preadv2(2)), and if that byte is not in memory the kernel may fetch it.
pub fn seems_cached(file: &File, range: &Range<u64>) -> bool {
    let mut places = range.clone().rev().step_by(512 << 10);
    places.all(|place| match cached_pages(file, place..place + 1) {
        Ok(pages) => pages > 0,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            matches!(preadv2(file, &mut [IoSliceMut::new(&mut [0])], place, ReadWriteFlags::NOWAIT), Ok(1))
        }
        Err(_) => false,
    })
}

fn cached_pages(file: &File, range: Range<u64>) -> io::Result<u64> {
    let mut question = CachestatRange { offset: range.start, length: range.end.saturating_sub(range.start) };
    if question.length == 0 {
        // The system call takes 0 for "to the end".
        return Ok(0);
    }
    let mut answer = Cachestat::default();
    // SAFETY: both structures are those of the system call (`include/uapi/linux/mman.h`) and outlive it.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw mut question, &raw mut answer, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer.cached)
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// Result of `cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Number of the system call, the same on every architecture.
const CACHESTAT: libc::c_long = 451;
/// Largest number of pages of a folio of the page cache, as a power of two; each folio begins at a multiple of its
/// length (`MAX_XAS_ORDER`, include/linux/pagemap.h).
const LARGEST_FOLIO: u32 = 11;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use thalweg_testing::skip::skipped;

    #[test]
    fn what_was_just_written_is_there_wherever_one_begins() {
        let page = rustix::param::page_size() as u64;
        // On a file system that has folios, in the largest ones.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let pages = 4096;
        file.write_all_at(&vec![1; (pages * page) as usize], 0).unwrap();
        for start in (0..pages).step_by(31) {
            for end in [start + 1, start + 256, pages].map(|end| end.min(pages)) {
                let range = start * page..end * page;
                assert_eq!(cached_bytes(&file, &range).unwrap(), range.end - range.start, "{range:?}");
            }
        }
        assert!(seems_cached(&file, &(1..pages * page)));
        assert!(!seems_cached(&file, &(1..pages * page + 1)));
        assert_eq!(cached_bytes(&file, &(5..5)).unwrap(), 0);
        assert_eq!(cached_bytes(&file, &(pages * page..2 * pages * page)).unwrap(), 0);
    }

    #[test]
    fn to_ask_whether_it_is_there_does_not_bring_it_there() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if cached_bytes(&file, &(0..4 << 20)).unwrap() > 0 {
            return skipped("this file system keeps what it is asked to forget");
        }
        for _ in 0..5 {
            assert!(!seems_cached(&file, &(0..1 << 20)));
        }
        assert_eq!(cached_bytes(&file, &(0..4 << 20)).unwrap(), 0);
    }
}
