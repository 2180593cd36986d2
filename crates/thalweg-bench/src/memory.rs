//! Memory to measure with: fresh, page-aligned, made of the requested kind of page, and used by no one else.

use crate::BenchError;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use thalweg_arena::PAGE_BYTES;
use thalweg_text::ByteSize;

/// Size of a huge page, in bytes.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Kind of page that memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PageKind {
    /// Ordinary pages of 4 KiB, whatever the system prefers.
    Small,
    /// Ordinary memory for which the kernel is asked to use huge pages.
    Transparent,
    /// Reserved huge pages of 2 MiB.
    Huge,
}

impl PageKind {
    /// Returns the name as shown in tables.
    pub(crate) fn display_name(self) -> &'static str {
        match self {
            Self::Small => "4 KiB",
            Self::Transparent => "transparent",
            Self::Huge => "2 MiB",
        }
    }
}

/// Range of addresses to which no memory is mapped yet. It begins at a huge page's boundary, and the pages on both
/// sides of it stay unmapped, so that the kernel does not merge it with a neighbour.
#[derive(Debug)]
pub(crate) struct Room {
    all: NonNull<u8>,
    all_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of addresses of this process belongs to no thread.
unsafe impl Send for Room {}
// SAFETY: as above; there is nothing to reach through a shared reference.
unsafe impl Sync for Room {}

/// Anonymous private memory, initially all zeros.
#[derive(Debug)]
pub(crate) struct Memory(Room);

impl Room {
    /// Reserves addresses for `len` bytes, rounded up to whole pages of `kind`.
    pub(crate) fn reserve(len: u64, kind: PageKind) -> Result<Self, BenchError> {
        let page = if kind == PageKind::Huge { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let doing = format!("setting aside addresses for {}", ByteSize(len));
        let lengths = usize::try_from(len).ok().filter(|len| *len > 0).and_then(|len| {
            let len = len.checked_next_multiple_of(page)?;
            Some((len, len.checked_add(2 * HUGE_PAGE_BYTES).filter(|all| isize::try_from(*all).is_ok())?))
        });
        let (len, all_len) =
            lengths.ok_or_else(|| BenchError::os_error(&*doing)(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choosing overlaps nothing.
        let all = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), all_len, ProtFlags::empty(), flags) };
        let all =
            NonNull::new(all.map_err(BenchError::os_error(doing))?.cast::<u8>()).expect("Linux maps nothing at 0");
        let skip = (all.as_ptr() as usize + PAGE_BYTES).next_multiple_of(HUGE_PAGE_BYTES) - all.as_ptr() as usize;
        // SAFETY: `skip` is at most HUGE_PAGE_BYTES + PAGE_BYTES, and the range is `len` + 2 HUGE_PAGE_BYTES long.
        let start = unsafe { all.add(skip) };
        Ok(Self { all, all_len, start, len })
    }

    /// Maps memory into the range. Its pages are populated at once (`MAP_POPULATE`) or when they are touched.
    pub(crate) fn map_memory(self, kind: PageKind, populate: bool) -> Result<Memory, BenchError> {
        let mut flags = MapFlags::PRIVATE | MapFlags::FIXED;
        if kind == PageKind::Huge {
            // 21: pages of 2^21 bytes, whatever size the system prefers (mmap(2), MAP_HUGE_2MB).
            flags |= MapFlags::HUGETLB | MapFlags::from_bits_retain(21 << 26);
        }
        // The choice between small and transparent pages can be made for mapped memory only: populate after it.
        let choose = match kind {
            PageKind::Small if always_uses_huge_pages() => Some(Advice::LinuxNoHugepage),
            PageKind::Transparent => Some(Advice::LinuxHugepage),
            PageKind::Small | PageKind::Huge => None,
        };
        if populate && choose.is_none() {
            flags |= MapFlags::POPULATE;
        }
        let (start, len) = (self.start.as_ptr().cast(), self.len);
        // SAFETY: the range belongs to this room alone, and nothing refers to it yet.
        unsafe { rustix::mm::mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|error| mapping_error(kind, len, error))?;
        if let Some(advice) = choose {
            // SAFETY: the range is mapped; the advice changes no content.
            let advised = unsafe { rustix::mm::madvise(start, len, advice) };
            match advised {
                // A kernel without transparent huge pages has only small ones.
                Err(rustix::io::Errno::INVAL) if kind == PageKind::Small => {}
                advised => advised.map_err(|error| mapping_error(kind, len, error))?,
            }
            if populate {
                // SAFETY: the range is mapped; populating it changes no content.
                unsafe { rustix::mm::madvise(start, len, Advice::LinuxPopulateWrite) }.map_err(
                    BenchError::os_error(format!("populating {} (MADV_POPULATE_WRITE)", ByteSize(len as u64))),
                )?;
            }
        }
        Ok(Memory(self))
    }
}

/// Returns whether every mapping gets huge pages without asking for them.
fn always_uses_huge_pages() -> bool {
    transparent_huge_page_mode().is_some_and(|mode| mode == "always")
}

/// Returns the mode in `/sys/kernel/mm/transparent_hugepage/enabled`: `always`, `madvise` or `never`.
pub(crate) fn transparent_huge_page_mode() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn mapping_error(kind: PageKind, len: usize, error: rustix::io::Errno) -> BenchError {
    let bytes = ByteSize(len as u64);
    match (kind, error) {
        (PageKind::Huge, rustix::io::Errno::NOMEM | rustix::io::Errno::INVAL) => {
            let pages = len / HUGE_PAGE_BYTES;
            BenchError::Unavailable {
                what: format!("{bytes} of reserved huge pages"),
                why: format!("too few of 2 MiB are free; reserve {pages} with `sysctl vm.nr_hugepages={pages}`"),
            }
        }
        (PageKind::Transparent, rustix::io::Errno::INVAL) => BenchError::Unavailable {
            what: "transparent huge pages".to_owned(),
            why: "the kernel is built without them".to_owned(),
        },
        _ => BenchError::os_error(format!("mapping {bytes} of memory"))(error),
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length; all references to it borrow the room.
        let _ = unsafe { rustix::mm::munmap(self.all.as_ptr().cast(), self.all_len) };
    }
}

impl Memory {
    /// Maps memory whose pages have not been touched yet.
    pub(crate) fn map_untouched(len: u64, kind: PageKind) -> Result<Self, BenchError> {
        Room::reserve(len, kind)?.map_memory(kind, false)
    }

    /// Maps memory and writes to each of its pages once.
    pub(crate) fn map_touched(len: u64, kind: PageKind) -> Result<Self, BenchError> {
        let mut memory = Self::map_untouched(len, kind)?;
        memory.touch_pages();
        Ok(memory)
    }

    /// Writes to every page.
    pub(crate) fn touch_pages(&mut self) {
        for page in self.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
        }
    }

    /// Returns the fraction of the memory that lies in transparent huge pages, by `/proc/self/smaps`; `None` if that
    /// file does not state it.
    pub(crate) fn transparent_fraction(&self) -> Option<f64> {
        let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
        Some(
            (parse_anon_huge_bytes(&smaps, self.0.start.as_ptr() as usize, self.0.len)? as f64 / self.0.len as f64)
                .min(1.0),
        )
    }
}

/// Returns the bytes in transparent huge pages of all mappings that begin inside a range: `mlock` and `madvise` may
/// have split it.
fn parse_anon_huge_bytes(smaps: &str, start: usize, len: usize) -> Option<u64> {
    let (mut inside, mut bytes) = (false, None);
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        let begins = first.split_once('-').and_then(|(from, _)| usize::from_str_radix(from, 16).ok());
        if let Some(begins) = begins {
            inside = (start..start + len).contains(&begins);
        } else if inside && first == "AnonHugePages:" {
            let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
            bytes = Some(bytes.unwrap_or(0) + kib * 1024);
        }
    }
    bytes
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `Room::map` mapped the range for reading and writing; anonymous memory is zeros until it is written,
        // no one else has a pointer to it, and it is unmapped only when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

// SAFETY: the range stays mapped where it is until `self` is dropped, and no one else has a pointer to it.
unsafe impl thalweg_sys::uring::Memory for Memory {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Returns the bytes that can be allocated without evicting others: the available memory by `/proc/meminfo`, or less
/// where a control group has less.
pub(crate) fn available_memory_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut least = parse_mem_available(&meminfo).unwrap_or(u64::MAX);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // A limit may be set on any group above this one; "max" is no number and no limit.
    let mut group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    while let Some(name) = group {
        if let [Some(limit), Some(used)] = ["memory.max", "memory.current"].map(|file| read_group_bytes(name, file)) {
            least = least.min(limit.saturating_sub(used));
        }
        group = if name.is_empty() { None } else { Some(name.rsplit_once('/').map_or("", |(above, _)| above)) };
    }
    least
}

fn read_group_bytes(group: &str, file: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/fs/cgroup/{group}/{file}")).ok()?.trim().parse().ok()
}

fn parse_mem_available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns an error if `bytes` more would leave the machine short of memory.
pub(crate) fn ensure_memory_available(bytes: u64) -> Result<(), BenchError> {
    // A sixteenth is left for page tables and for other processes.
    let (available, needed) = (available_memory_bytes(), bytes.saturating_add(bytes / 16));
    if needed <= available {
        return Ok(());
    }
    Err(BenchError::Unavailable {
        what: format!("{} of memory", ByteSize(bytes)),
        why: format!("{} are available", ByteSize(available >> 20 << 20)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_testing::skip::skipped;

    #[test]
    fn memory_is_zero_and_begins_at_a_huge_page_whatever_its_length() {
        for len in [1, 4096, 4097, 3 << 20] {
            let mut memory = Memory::map_untouched(len, PageKind::Small).unwrap();
            assert_eq!(memory.len() as u64, len.next_multiple_of(4096));
            assert_eq!(memory.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.touch_pages();
            assert_eq!(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>(), len.div_ceil(4096));
        }
    }

    #[test]
    fn impossible_lengths_are_errors() {
        for len in [0, u64::MAX, 1 << 62] {
            assert!(matches!(Room::reserve(len, PageKind::Small), Err(BenchError::Os { .. })), "{len}");
        }
    }

    #[test]
    fn small_pages_are_small_and_transparent_ones_are_counted() {
        assert_eq!(Memory::map_touched(4 << 20, PageKind::Small).unwrap().transparent_fraction(), Some(0.0));
        let memory = match Memory::map_touched(4 << 20, PageKind::Transparent) {
            Err(error) => return skipped(error),
            memory => memory.unwrap(),
        };
        assert!((0.0..=1.0).contains(&memory.transparent_fraction().unwrap()));
    }

    #[test]
    fn populated_memory_is_there_before_it_is_touched() {
        for kind in [PageKind::Small, PageKind::Transparent] {
            let memory = match Room::reserve(4 << 20, kind).unwrap().map_memory(kind, true) {
                Err(error) => return skipped(error),
                memory => memory.unwrap(),
            };
            let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
            let start = format!("{:x}-", memory.as_ptr() as usize);
            let rss =
                smaps.lines().skip_while(|line| !line.starts_with(&start)).find_map(|line| line.strip_prefix("Rss:"));
            assert_eq!(rss.unwrap().trim(), "4096 kB");
        }
    }

    #[test]
    fn missing_huge_pages_are_reported_with_the_remedy() {
        let error = Memory::map_untouched(1 << 40, PageKind::Huge).unwrap_err().to_string();
        assert!(error.contains("sysctl vm.nr_hugepages="), "{error}");
    }

    #[test]
    fn mappings_that_were_split_are_added_up() {
        let smaps = "1000-3000 rw-p 0 00:00 0 \nRss: 8 kB\nAnonHugePages:  4 kB\n3000-4000 rw-p 0 00:00 0\nAnonHugePages: 2 kB\n\
                     9000-a000 r--p 0 00:00 0\nAnonHugePages: 64 kB\n";
        assert_eq!(parse_anon_huge_bytes(smaps, 0x1000, 0x3000), Some(6 * 1024));
        assert_eq!(parse_anon_huge_bytes(smaps, 0x5000, 0x1000), None);
    }

    #[test]
    fn a_shortage_is_reported_with_the_available_memory() {
        assert!(ensure_memory_available(1).is_ok());
        let error = ensure_memory_available(1 << 60).unwrap_err().to_string();
        assert!(
            error.starts_with("1048576 TiB of memory not available here: ") && error.ends_with("are available"),
            "{error}"
        );
        assert_eq!(parse_mem_available("MemFree: 1 kB\nMemAvailable:   23 kB\n"), Some(23 * 1024));
        assert_eq!(parse_mem_available("MemAvailable: x kB"), None);
    }
}
