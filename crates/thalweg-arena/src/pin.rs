//! Keeping memory from being swapped out or reclaimed, so that the data path never waits for a page.
//!
//! Pinning here is `mlock`. It keeps pages *in memory*; it does not keep them *in place*: the kernel may still move
//! them to another frame to make room for huge pages (compaction; `vm.compact_unevictable_allowed`,
//! Documentation/admin-guide/sysctl/vm.rst) or to another NUMA node. A physical address from [`crate::page_list`] stays
//! valid only while there is a long-term reference to the pages (`FOLL_LONGTERM`,
//! Documentation/core-api/pin_user_pages.rst): memory registered with io_uring, as the recorder's blocks are, with an
//! RDMA device or with VFIO.
//!
//! Of the two calls, `mlock` and `mlock2` with `MLOCK_ONFAULT`, this is the first: all pages are brought in now, so
//! that a lack of memory is an error here and not a stall, or the end of the process, in the middle of a run.

use crate::Arena;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use thiserror::Error;

/// Reason why memory could not be pinned.
#[derive(Debug, Error)]
pub enum PinError {
    /// The memory exceeds what this process may pin.
    #[error(
        "pinning {bytes} bytes: the limit RLIMIT_MEMLOCK is {limit} bytes in all; raise it with `ulimit -l`, \
         LimitMEMLOCK= in the systemd unit, `memlock` in /etc/security/limits.conf, or give the program CAP_IPC_LOCK"
    )]
    Limit {
        /// Number of bytes to be pinned.
        bytes: usize,
        /// Current limit in bytes.
        limit: u64,
    },
    /// The kernel refused for another reason, such as a lack of memory.
    #[error("pinning {bytes} bytes: {error}")]
    Os {
        /// Number of bytes to be pinned.
        bytes: usize,
        /// Error returned by the kernel.
        error: Errno,
    },
}

/// Memory that is kept from being swapped out until this is dropped.
///
/// Pins do not add up: where two cover the same page, the first to be dropped unpins it.
#[must_use = "dropping it unpins the memory"]
pub struct Pinned<'a> {
    range: *const [u8],
    arena: Option<Arc<Arena>>,
    bytes: PhantomData<&'a [u8]>,
}

// SAFETY: `range` is only an address, for `munlock`; the borrow or the `Arc` guarantees that the memory is still there,
// and both may cross threads.
unsafe impl Send for Pinned<'_> {}
// SAFETY: as above; nothing can be reached through a shared reference.
unsafe impl Sync for Pinned<'_> {}

/// Pins the pages that contain `bytes`.
///
/// # Errors
/// [`PinError::Limit`], which names the limit, if this process may not pin that much; [`PinError::Os`] if the kernel
/// refuses for another reason.
pub fn pin_bytes(bytes: &[u8]) -> Result<Pinned<'_>, PinError> {
    lock_pages(bytes)?;
    Ok(Pinned { range: bytes, arena: None, bytes: PhantomData })
}

/// Pins a whole arena, regardless of the owners of its spans.
///
/// # Errors
/// As [`pin_bytes`].
pub fn pin_arena(arena: &Arc<Arena>) -> Result<Pinned<'static>, PinError> {
    let range = arena.mapped_range();
    lock_pages(range)?;
    Ok(Pinned { range, arena: Some(Arc::clone(arena)), bytes: PhantomData })
}

impl Pinned<'_> {
    /// Returns the number of pinned bytes, not counting what rounding to pages adds.
    pub fn size_bytes(&self) -> usize {
        self.range.len()
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: the range is still mapped, see `Send`; unlocking changes no content.
        let _ = unsafe { rustix::mm::munlock(self.range.cast_mut().cast(), self.range.len()) };
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.arena {
            Some(arena) => write!(f, "Pinned({arena:?})"),
            None => write!(f, "Pinned({} bytes)", self.size_bytes()),
        }
    }
}

pub(crate) fn lock_pages(range: *const [u8]) -> Result<(), PinError> {
    let bytes = range.len();
    // SAFETY: the callers' range is mapped; locking changes no content.
    let locked = unsafe { rustix::mm::mlock(range.cast_mut().cast(), bytes) };
    locked.map_err(|error| {
        // mlock(2): without CAP_IPC_LOCK, ENOMEM means that the soft limit is exceeded, EPERM that it is zero.
        let limited = matches!(error, Errno::NOMEM | Errno::PERM) && !may_pin_without_limit();
        match getrlimit(Resource::Memlock).current {
            Some(limit) if limited => PinError::Limit { bytes, limit },
            _ => PinError::Os { bytes, error },
        }
    })
}

fn may_pin_without_limit() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::set_capabilities;
    use thalweg_testing::skip::skipped;

    #[test]
    fn pinned_memory_is_counted_by_the_kernel_until_it_is_dropped() {
        let span = Arena::create("pin-test", 1).unwrap();
        let (mine, arena) = (pin_bytes(&span[..8192]), pin_arena(span.arena()));
        let (Ok(mine), Ok(arena)) = (mine, arena) else {
            return skipped("this process may not pin 2 MiB (RLIMIT_MEMLOCK)");
        };
        assert_eq!((mine.size_bytes(), arena.size_bytes()), (8192, span.len()));
        assert_eq!(locked_bytes(&span), span.len());
        drop((mine, arena));
        assert_eq!(locked_bytes(&span), 0);
    }

    #[test]
    fn the_limit_is_named() {
        let Some(limit) = getrlimit(Resource::Memlock).current.filter(|limit| *limit < 1 << 28) else {
            return skipped("RLIMIT_MEMLOCK is too high to exceed");
        };
        // Capabilities belong to a thread: this one gives up its own.
        let refused = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, sets).unwrap();
            let span = Arena::create("pin-test", limit as usize + 1).unwrap();
            pin_bytes(&span).map(drop).unwrap_err()
        });
        let refused = refused.join().unwrap();
        assert!(matches!(refused, PinError::Limit { limit: named, .. } if named == limit), "{refused:?}");
        assert!(refused.to_string().contains(&format!("RLIMIT_MEMLOCK is {limit} bytes")));
    }

    /// Returns the locked bytes by `/proc/self/smaps` of the mapping that contains `bytes` (all parts of it: pinning a
    /// part splits it).
    fn locked_bytes(bytes: &[u8]) -> usize {
        let range = bytes.as_ptr_range();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let mut locked = 0;
        for line in smaps.lines() {
            if let Some(start) = line.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok()) {
                inside = start >= range.start as usize && start < range.end as usize;
            } else if let Some(kib) = line.strip_prefix("Locked:").filter(|_| inside) {
                locked += kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024;
            }
        }
        locked
    }
}
