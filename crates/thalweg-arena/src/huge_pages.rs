//! The lock on a host's free huge pages.

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longest wait for another process that is taking huge pages.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Lock on the host's free huge pages: while it is held, only this process may count and take them. Released when
/// dropped.
#[derive(Debug)]
pub struct HugePagesLock {
    _file: OwnedFd,
}

impl HugePagesLock {
    /// Acquires the lock, waiting at most ten seconds. Processes that start together and rely on the pages that they
    /// have counted (DPDK takes them one by one) would otherwise all rely on the same ones. Returns `None` if another
    /// process keeps the lock, or this system has none; a caller that continues without it may find fewer pages than
    /// were counted.
    pub fn acquire_lock() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/sys/vm/nr_hugepages", flags, Mode::empty()).ok()?;
        let begun = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_huge_pages_are_counted_by_one_process_at_a_time() {
        let Some(first) = HugePagesLock::acquire_lock() else { panic!("/proc/sys/vm/nr_hugepages can be locked") };
        let second = std::thread::spawn(HugePagesLock::acquire_lock);
        let file = rustix::fs::open("/proc/sys/vm/nr_hugepages", OFlags::RDONLY, Mode::empty()).unwrap();
        let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        assert_eq!(lock, Err(Errno::WOULDBLOCK), "the first has it, or the second has");
        drop(first);
        assert!(second.join().unwrap().is_some(), "it has waited for the first");
    }
}
