//! What of a file is in the page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// How many bytes of a range of a file the page cache holds, in whole pages (`cachestat(2)`, Linux 6.5).
pub fn cached_bytes(file: &File, range: &Range<u64>) -> io::Result<u64> {
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
    Ok(answer.cached * rustix::param::page_size() as u64)
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// In pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The same number on every architecture.
const CACHESTAT: libc::c_long = 451;
