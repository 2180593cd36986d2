//! Physical addresses of memory, for a device that writes to it directly.
//!
//! The kernel discloses the frame of each page to the process through `/proc/self/pagemap`
//! (Documentation/admin-guide/mm/pagemap.rst): 8 bytes per page; bits 0–54 are the frame number, bit 62 is set if
//! swapped, bit 63 if present. Since Linux 4.2 the frame number reads as zero without `CAP_SYS_ADMIN`, because knowing
//! it helps an attack ("rowhammer").
//!
//! An address stays valid only as long as the kernel leaves the page where it is. [`crate::pin`] describes what does,
//! and what does not, keep it there. Behind an IOMMU a device needs addresses of the IOMMU, not these: ask VFIO.
//!
//! Memory that was read but never written may lie in a page that all processes share (the zero page, the page cache),
//! and no device must write to that. The pages of an [`crate::Arena`] are its own from the beginning.

use std::fs::File;
use std::os::unix::fs::FileExt;
use thiserror::Error;

/// Length of a pagemap entry in bytes.
const ENTRY_BYTES: usize = 8;
/// Mask of the frame number, in the entry of a page that is present.
const FRAME_NUMBER_MASK: u64 = (1 << 55) - 1;
const SWAPPED_BIT: u64 = 1 << 62;
const PRESENT_BIT: u64 = 1 << 63;

/// Reason why a page list could not be made.
#[derive(Debug, Error)]
pub enum PageListError {
    /// The kernel hides frame numbers from this process.
    #[error(
        "physical addresses are hidden from this process: it lacks CAP_SYS_ADMIN (run it as root outside of a user \
         namespace, or give its file the capability: setcap cap_sys_admin+ep PROGRAM)"
    )]
    NotPermitted,
    /// A page has no frame now: it was never touched, or is swapped out.
    #[error(
        "page {page} of the range is not in memory ({}); touch and pin the memory first",
        if *.swapped { "swapped out or moving" } else { "never touched" }
    )]
    NotPresent {
        /// Index of the page, counted from the one in which the range begins.
        page: usize,
        /// True if its content lies elsewhere.
        swapped: bool,
    },
    /// `/proc/self/pagemap` could not be read.
    #[error("reading /proc/self/pagemap: {0} (is /proc mounted, and the kernel built with CONFIG_PROC_PAGE_MONITOR?)")]
    Pagemap(#[source] std::io::Error),
}

/// A physically contiguous part of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Physical address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Physical addresses of a range, as they were when the list was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageList {
    page_bytes: usize,
    /// Offset of the range's first byte in its first page.
    first: usize,
    len: usize,
    frames: Vec<u64>,
}

/// Returns the pages that contain `bytes`, in order.
///
/// # Errors
/// A page is not present, or the kernel does not disclose its address.
pub fn page_list(bytes: &[u8]) -> Result<PageList, PageListError> {
    page_list_at(bytes.as_ptr() as usize, bytes.len())
}

/// Returns the pages that contain `len` bytes at `address`.
pub(crate) fn page_list_at(address: usize, len: usize) -> Result<PageList, PageListError> {
    let page_bytes = rustix::param::page_size();
    let first = address % page_bytes;
    let pages = if len == 0 { 0 } else { (first + len).div_ceil(page_bytes) };
    let mut entries = vec![0; pages * ENTRY_BYTES];
    if pages > 0 {
        let pagemap = File::open("/proc/self/pagemap").map_err(pagemap_error)?;
        // One pread for all entries: the kernel walks the page tables once.
        pagemap.read_exact_at(&mut entries, (address / page_bytes * ENTRY_BYTES) as u64).map_err(pagemap_error)?;
    }
    let entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
    let frames = entries.enumerate().map(|(page, entry)| frame_number(page, entry)).collect::<Result<_, _>>()?;
    Ok(PageList { page_bytes, first, len, frames })
}

impl PageList {
    /// Returns the frame number of each page; times [`PageList::page_bytes`] it is a physical address.
    pub fn page_frames(&self) -> &[u64] {
        &self.frames
    }

    /// Returns the length of a page in bytes: 4096 on x86-64, whatever pages the memory consists of. A page of 2 MiB is
    /// 512 frames in a row.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the physical address of the range's first byte; `None` for an empty range.
    pub fn contiguous_address(&self) -> Option<u64> {
        self.merged_extents().next().map(|extent| extent.address)
    }

    /// Returns the range as physically contiguous parts, each as long as possible, in order; together exactly as long
    /// as the range.
    pub fn merged_extents(&self) -> impl Iterator<Item = Extent> {
        let mut page = 0;
        std::iter::from_fn(move || {
            let start = page;
            let frame = *self.frames.get(start)?;
            page += 1;
            while page < self.frames.len() && self.frames[page] == frame + (page - start) as u64 {
                page += 1;
            }
            let skipped = if start == 0 { self.first } else { 0 };
            let end = (page * self.page_bytes).min(self.first + self.len);
            Some(Extent {
                address: frame * self.page_bytes as u64 + skipped as u64,
                bytes: (end - start * self.page_bytes - skipped) as u64,
            })
        })
    }
}

fn frame_number(page: usize, entry: u64) -> Result<u64, PageListError> {
    if entry & PRESENT_BIT == 0 {
        return Err(PageListError::NotPresent { page, swapped: entry & SWAPPED_BIT != 0 });
    }
    // Frame 0 is never given to a process: the kernel reports it in place of the true number.
    match entry & FRAME_NUMBER_MASK {
        0 => Err(PageListError::NotPermitted),
        frame => Ok(frame),
    }
}

fn pagemap_error(error: std::io::Error) -> PageListError {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => PageListError::NotPermitted,
        _ => PageListError::Pagemap(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Backing, PAGE_BYTES};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use thalweg_testing::skip::skipped;

    #[test]
    fn an_arena_is_where_the_kernel_says() {
        let mut span = Arena::create("page-list", 1).unwrap();
        let pages = span.arena().page_backing();
        let list = match page_list(&span) {
            Err(PageListError::NotPermitted) => return skipped(PageListError::NotPermitted),
            list => list.unwrap(),
        };
        assert_eq!(list.page_frames().len(), span.len() / list.page_bytes());
        assert_eq!(list.merged_extents().map(|extent| extent.bytes).sum::<u64>(), span.len() as u64);
        if pages == Backing::Huge {
            assert_eq!(list.merged_extents().count(), 1);
        }
        // Two mappings of one memory are in the same frames; the list of the middle is the middle of the list.
        let theirs = Arena::import(span.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        let view = theirs.view_range(0, span.len()).unwrap();
        let mut bytes = vec![1; view.len()];
        view.copy_bytes_to(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(view.page_list().unwrap(), list);
        let _front = span.take_front(PAGE_BYTES + 100);
        let middle = page_list(&span[..50]).unwrap();
        let expected = list.page_frames()[(PAGE_BYTES + 100) / list.page_bytes()] * list.page_bytes() as u64;
        assert_eq!(middle.contiguous_address(), Some(expected + ((PAGE_BYTES + 100) % list.page_bytes()) as u64));
        assert_eq!(middle.merged_extents().map(|extent| extent.bytes).collect::<Vec<_>>(), [50]);
    }

    #[test]
    fn neighbouring_frames_are_one_extent() {
        let list = PageList { page_bytes: 4096, first: 96, len: 4 * 4096, frames: vec![7, 8, 9, 20, 21] };
        let extents: Vec<_> = list.merged_extents().collect();
        assert_eq!(
            extents,
            [Extent { address: 7 * 4096 + 96, bytes: 3 * 4096 - 96 }, Extent { address: 20 * 4096, bytes: 4096 + 96 }]
        );
    }

    #[test]
    fn nothing_is_nowhere() {
        let list = page_list(&[]).unwrap();
        assert_eq!((list.contiguous_address(), list.merged_extents().count()), (None, 0));
    }

    #[test]
    fn without_the_privilege_it_says_what_is_missing() {
        let span = Arena::create("page-list", 1).unwrap();
        // Capabilities belong to a thread: this one gives up its own.
        let refused = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            page_list(&span).unwrap_err()
        });
        let refused = refused.join().unwrap();
        assert!(matches!(refused, PageListError::NotPermitted));
        assert!(refused.to_string().contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn memory_that_was_never_touched_here_is_nowhere_yet() {
        let span = Arena::create("page-list", 1).unwrap();
        let theirs = Arena::import(span.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        let refused = theirs.view_range(0, span.len()).unwrap().page_list();
        assert!(matches!(refused, Err(PageListError::NotPresent { page: 0, swapped: false })), "{refused:?}");
    }
}
