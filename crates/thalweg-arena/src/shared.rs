//! Memory of several programs that do not trust each other, which all of them may write: what an RDMA adapter reads from
//! and writes to.
//!
//! The bytes are never a slice: they are copied in and out by accesses that are defined however many others there are at
//! the same time. A program that writes where another reads changes what is read, and nothing else.

use crate::PAGE_BYTES;
use crate::arena::{Arena, ArenaError, check_received};
use crate::pin::{PinError, lock_pages};
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Number of bytes that are copied at a time.
const WORD_BYTES: usize = size_of::<u64>();

/// A mapped memfd that other programs may read and write, or memory of this program that foreign code in it may read and
/// write.
pub struct SharedMemory {
    memory: Mapping,
    writable: bool,
}

/// Mapping of shared memory.
enum Mapping {
    /// A mapping of its own.
    Own(MmapRaw),
    /// That of an arena of this program.
    Arena(Arc<Arena>),
    /// Memory that foreign code of this process has mapped: address of the first word, and length in bytes.
    Foreign(usize, usize),
}

impl SharedMemory {
    /// Creates memory of `len` bytes, all zero and present, and returns its file descriptor, for registering it. The
    /// memory is sealed against changes of its length.
    ///
    /// # Errors
    /// `len` is 0 or exceeds the address space, or the kernel refuses, most likely for lack of memory.
    pub fn create(name: &str, len: usize) -> Result<(OwnedFd, Self), ArenaError> {
        if len == 0 || len > isize::MAX as usize {
            return Err(ArenaError::Size(len));
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(ArenaError::from_errno("memfd_create", len))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(ArenaError::from_errno("ftruncate", len))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(ArenaError::from_errno("sealing", len))?;
        let memory = MmapOptions::new().len(len).map_raw(&fd).map_err(ArenaError::from_io_error("mmap", len))?;
        let _ = memory.advise(Advice::HugePage);
        // Populating reports a lack of memory here instead of by SIGBUS later.
        memory.advise(Advice::PopulateWrite).map_err(ArenaError::from_io_error("allocating memory", len))?;
        Ok((fd, Self { memory: Mapping::Own(memory), writable: true }))
    }

    /// Maps all of the memory that another program made, for reading, or for writing as well. It must be sealed against
    /// shrinking, and not consist of reserved huge pages, as for [`Arena::import`](crate::Arena::import). Pages are
    /// entered into this process's page table when they are first accessed.
    ///
    /// # Errors
    /// `fd` is not such memory, or is empty, or is to be written and sealed against that, or the kernel cannot map it.
    pub fn import(fd: &OwnedFd, writable: bool) -> Result<Self, ArenaError> {
        let (len, seals) = check_received(fd)?;
        if writable && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(ArenaError::WriteSealed);
        }
        let options = MmapOptions::new().len(len).to_owned();
        let memory = if writable { options.map_raw(fd) } else { options.map_raw_read_only(fd) };
        let memory = memory.map_err(ArenaError::from_io_error("mmap", len))?;
        Ok(Self { memory: Mapping::Own(memory), writable })
    }

    /// Returns an arena of this program as memory for an RDMA adapter in this program. It needs no second mapping, which
    /// the arena's seals would forbid. It is writable if this program made the arena.
    ///
    /// # Safety
    /// Until the returned memory is dropped, the caller lets it be written only in ranges whose
    /// [`Span`](crate::Span) it owns and does not read or write itself meanwhile.
    pub unsafe fn of_arena(arena: &Arc<Arena>) -> Self {
        Self { writable: arena.is_own(), memory: Mapping::Arena(Arc::clone(arena)) }
    }

    /// Takes memory of this process that is not Rust's: what a C program registers with its RDMA adapter. The result begins at
    /// the word that contains the first byte; also returned is the offset of that byte in it. The pages are populated, so
    /// that a lack of memory shows here.
    ///
    /// # Errors
    /// The range is empty, or exceeds the address space, or parts of it are not mapped, or cannot be written although they
    /// are to be, or the kernel has no memory for them.
    ///
    /// # Safety
    /// As long as the value exists, the range stays mapped, and writable if that is asked for, and no Rust reference to any
    /// of its bytes, or of the first word's, exists, except to atomics. (It does not matter whether others access it.)
    pub unsafe fn from_process_memory(address: usize, len: usize, writable: bool) -> Result<(Self, usize), ArenaError> {
        let page = address & !(PAGE_BYTES - 1);
        let first = address & !(WORD_BYTES - 1);
        let end = address.checked_add(len).filter(|end| len > 0 && end.checked_next_multiple_of(PAGE_BYTES).is_some());
        let Some(end) = end.filter(|end| end - first <= isize::MAX as usize) else {
            return Err(ArenaError::Size(len));
        };
        let advice =
            if writable { rustix::mm::Advice::LinuxPopulateWrite } else { rustix::mm::Advice::LinuxPopulateRead };
        let pages = end.next_multiple_of(PAGE_BYTES) - page;
        // SAFETY: populating changes no content, and fails for pages that are not mapped.
        unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(page), pages, advice) }
            .map_err(ArenaError::from_errno("populating memory of the program", len))?;
        Ok((Self { memory: Mapping::Foreign(first, end - first), writable }, address - first))
    }

    /// Returns the length in bytes.
    pub fn size_bytes(&self) -> usize {
        match &self.memory {
            Mapping::Own(memory) => memory.len(),
            Mapping::Arena(arena) => arena.size_bytes(),
            Mapping::Foreign(_, bytes) => *bytes,
        }
    }

    /// Returns the first byte of the mapping. It may be written through if the memory is writable.
    #[inline]
    fn first_byte(&self) -> *mut u8 {
        match &self.memory {
            Mapping::Own(memory) => memory.as_mut_ptr(),
            Mapping::Arena(arena) => arena.first_byte(),
            Mapping::Foreign(address, _) => std::ptr::with_exposed_provenance_mut(*address),
        }
    }

    /// Returns whether the memory may be written through this mapping.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of the first byte in this process; for addresses that a peer is given, not for reading.
    pub fn base_address(&self) -> u64 {
        self.first_byte() as u64
    }

    /// Pins the pages, as [`pin_bytes`](crate::pin_bytes) does, until the memory is unmapped.
    ///
    /// # Errors
    /// As [`pin_bytes`](crate::pin_bytes).
    pub fn pin_pages(&self) -> Result<(), PinError> {
        lock_pages(std::ptr::slice_from_raw_parts(self.first_byte(), self.size_bytes()))
    }

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Panics
    /// There are fewer than `out.len()` bytes from `at` on.
    #[inline]
    pub fn load_bytes(&self, at: usize, out: &mut [u8]) {
        let from = self.checked_address(at, out.len());
        // SAFETY: inside the mapping, which cannot shrink (sealed) and lives as long as `self`.
        unsafe { load_shared(from, out) };
    }

    /// Writes `bytes` from `at` on.
    ///
    /// # Panics
    /// There are fewer than `bytes.len()` bytes from `at` on, or the memory is not writable.
    #[inline]
    pub fn store_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable, "memory that is mapped for reading was to be written");
        let to = self.checked_address(at, bytes.len());
        // SAFETY: `bytes` is valid; `to` lies in the mapping, which cannot shrink (sealed), lives as long as `self`, and
        // may be written.
        unsafe { copy_shared(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies `len` bytes from `at` on to `to_at` of `to`: once, without a buffer between. The last byte is written
    /// last, as programs expect that wait for a message by looking at its end.
    ///
    /// # Panics
    /// One of the ranges is not inside its memory, or `to` is not writable.
    #[inline]
    pub fn copy_bytes_to(&self, at: usize, to: &Self, to_at: usize, len: usize) {
        assert!(to.writable, "memory that is mapped for reading was to be written");
        let (from, to) = (self.checked_address(at, len), to.checked_address(to_at, len));
        // SAFETY: both lie in mappings that cannot shrink (sealed) and live as long as the references; `to` may be
        // written.
        unsafe { copy_shared(from, to, len) };
    }

    /// Adds to the eight bytes at `at`, in the machine's byte order, as one access, and returns what they were.
    ///
    /// # Panics
    /// `at` is not a multiple of 8, or the bytes are not inside the memory, or it is not writable.
    pub fn fetch_add(&self, at: usize, added: u64) -> u64 {
        self.atomic_word(at).fetch_add(added, Ordering::SeqCst)
    }

    /// Replaces the eight bytes at `at`, in the machine's byte order, by `swap` if they are `compare`, as one access, and
    /// returns what they were.
    ///
    /// # Panics
    /// As [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(&self, at: usize, compare: u64, swap: u64) -> u64 {
        let word = self.atomic_word(at);
        word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|was| was)
    }

    fn atomic_word(&self, at: usize) -> &AtomicU64 {
        assert!(self.writable && at.is_multiple_of(WORD_BYTES), "atomic access at {at} of {self:?}");
        let word = self.checked_address(at, WORD_BYTES);
        // SAFETY: inside the mapping, which cannot shrink (sealed), lives as long as `self`, and may be written; aligned,
        // since the mapping begins with a page or a word; atomics may be accessed by others at the same time.
        unsafe { &*word.cast::<AtomicU64>() }
    }

    /// Returns the address of `at`, after comparing the range with the mapping.
    #[inline]
    fn checked_address(&self, at: usize, len: usize) -> *mut u8 {
        let end = at.checked_add(len).filter(|end| *end <= self.size_bytes());
        assert!(end.is_some(), "bytes {at}+{len} of shared memory of {}", self.size_bytes());
        // SAFETY: inside the mapping or one past its end, as was just compared. (It lives as long as `self`: a memfd's is
        // sealed against shrinking, and foreign memory stays mapped, as `from_process_memory` demands.)
        unsafe { self.first_byte().add(at) }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes{})", self.size_bytes(), if self.writable { "" } else { ", read only" })
    }
}

/// Copies `out.len()` bytes out of memory that others may write at the same time.
///
/// # Safety
/// `from` is valid for reading as many bytes.
#[inline]
pub(crate) unsafe fn load_shared(from: *const u8, out: &mut [u8]) {
    // SAFETY: `from` is valid for reads, says the caller. Concurrent writers do not matter to atomics, and a relaxed load
    // of a word or less does not write, which the mapping may forbid.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<AtomicU8>(), out.len()) };
    // SAFETY: eight atomic bytes are an atomic word of any content, which is only read.
    let (head, words, tail) = unsafe { bytes.align_to::<AtomicU64>() };
    let (first, rest) = out.split_at_mut(head.len());
    let (middle, last) = rest.split_at_mut(words.len() * WORD_BYTES);
    first.iter_mut().zip(head).for_each(|(byte, from)| *byte = from.load(Ordering::Relaxed));
    let middle = middle.as_chunks_mut::<WORD_BYTES>().0;
    middle.iter_mut().zip(words).for_each(|(word, from)| *word = from.load(Ordering::Relaxed).to_ne_bytes());
    last.iter_mut().zip(tail).for_each(|(byte, from)| *byte = from.load(Ordering::Relaxed));
}

/// Copies between memories that others may read and write at the same time, the last byte last.
///
/// # Safety
/// `from` is valid for reading `len` bytes and `to` for writing them. They may overlap: the result is then unspecified.
#[inline]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    let Some(last) = len.checked_sub(1) else { return };
    if last > 0 {
        // SAFETY: as the caller's.
        unsafe { copy_forward(from, to, last) };
    }
    // SAFETY: the last byte of the range, which is valid for reading; an atomic may be accessed by others.
    let from = unsafe { &*from.wrapping_add(last).cast::<AtomicU8>() };
    // SAFETY: the last byte of the range, which is valid for writing; an atomic may be accessed by others.
    let to = unsafe { &*to.wrapping_add(last).cast::<AtomicU8>() };
    // Release: on processors that would show this store first. (On x86-64, a store after a string instruction is seen
    // after all of it: AMD64 Architecture Programmer's Manual 2, section 7.1; Intel SDM 3A, section 10.2.4.)
    to.store(from.load(Ordering::Relaxed), Ordering::Release);
}

/// Copies `len` bytes by the processor's string instruction, for which accesses by others are no undefined behaviour: to
/// the compiler it is a copy byte by byte with relaxed atomics.
///
/// # Safety
/// As [`copy_shared`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_forward(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: reads `len` bytes and writes as many, in ranges that the caller vouches for; the direction flag is clear
    // (System V ABI), the stack is not used.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies `len` bytes by words where both ranges are aligned alike, otherwise byte by byte.
///
/// # Safety
/// As [`copy_shared`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
unsafe fn copy_forward(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the ranges are valid, says the caller; atomics may be accessed by others at the same time.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<AtomicU8>(), len) };
    // SAFETY: as above.
    let to = unsafe { std::slice::from_raw_parts(to.cast::<AtomicU8>(), len) };
    // SAFETY: eight atomic bytes are an atomic word of any content.
    let from_parts = unsafe { from.align_to::<AtomicU64>() };
    // SAFETY: as above.
    let to_parts = unsafe { to.align_to::<AtomicU64>() };
    if from_parts.0.len() != to_parts.0.len() {
        to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        return;
    }
    to_parts
        .0
        .iter()
        .zip(from_parts.0)
        .for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
    to_parts
        .1
        .iter()
        .zip(from_parts.1)
        .for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
    to_parts
        .2
        .iter()
        .zip(from_parts.2)
        .for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Arena;

    #[test]
    fn bytes_go_from_memory_to_memory_at_any_offset_and_length() {
        let (_fd, from) = SharedMemory::create("from", 300).unwrap();
        let (fd, to) = SharedMemory::create("to", 300).unwrap();
        let bytes: Vec<u8> = (0..300).map(|at| at as u8).collect();
        from.store_bytes(0, &bytes);
        let theirs = SharedMemory::import(&fd, false).unwrap();
        for (at, to_at, len) in
            (0..17).flat_map(|at| (0..9).flat_map(move |to| [0, 1, 7, 8, 64, 250].map(|len| (at, to, len))))
        {
            to.store_bytes(0, &[255; 300]);
            from.copy_bytes_to(at, &to, to_at, len);
            let mut seen = [0; 300];
            theirs.load_bytes(0, &mut seen);
            assert_eq!(seen[to_at..to_at + len], bytes[at..at + len]);
            assert!(seen[..to_at].iter().chain(&seen[to_at + len..]).all(|byte| *byte == 255));
        }
    }

    #[test]
    fn an_arena_of_this_program_is_written_in_a_span_that_its_owner_does_not_touch() {
        let mut arena = Arena::create("arena", 1).unwrap();
        let span = arena.take_front(64);
        // SAFETY: only the span is written, and read afterwards.
        let memory = unsafe { SharedMemory::of_arena(arena.arena()) };
        assert_eq!((memory.size_bytes(), memory.is_writable()), (arena.arena().size_bytes(), true));
        memory.store_bytes(8, &[7; 16]);
        assert_eq!((&span[..8], &span[8..24], &span[24..]), (&[0; 8][..], &[7; 16][..], &[0; 40][..]));
        let theirs = Arena::import(arena.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        // SAFETY: nothing is written.
        let memory = unsafe { SharedMemory::of_arena(&theirs) };
        let mut seen = [0; 2];
        memory.load_bytes(7, &mut seen);
        assert_eq!((seen, memory.is_writable()), ([0, 7], false));
    }

    #[test]
    fn memory_of_the_program_is_taken_as_it_is_and_what_is_not_mapped_is_refused() {
        let words: Vec<AtomicU64> = (0..2000).map(AtomicU64::new).collect();
        let (address, len) = (words.as_ptr() as usize, words.len() * WORD_BYTES);
        // SAFETY: the words outlive it, and are atomics.
        let (memory, at) = unsafe { SharedMemory::from_process_memory(address, len, true) }.unwrap();
        assert_eq!(memory.base_address() as usize + at, address);
        assert_eq!((memory.fetch_add(at + 8, 5), words[1].load(Ordering::Relaxed)), (1, 6));
        memory.store_bytes(at + 16, &[255; 3]);
        assert_eq!(words[2].load(Ordering::Relaxed), 0x00ff_ffff);
        let (_fd, page) = SharedMemory::create("page", PAGE_BYTES).unwrap();
        let free = page.base_address() as usize;
        drop(page);
        for (address, len) in [(free, PAGE_BYTES), (0, 8), (address, 0), (usize::MAX - 8, 16)] {
            // SAFETY: it is not taken.
            assert!(unsafe { SharedMemory::from_process_memory(address, len, false) }.is_err(), "{address:#x}");
        }
    }

    #[test]
    fn atomics_return_what_there_was() {
        let (_fd, memory) = SharedMemory::create("atomics", 64).unwrap();
        assert_eq!((memory.fetch_add(8, 5), memory.fetch_add(8, u64::MAX)), (0, 5));
        assert_eq!((memory.compare_swap(8, 3, 9), memory.compare_swap(8, 4, 9), memory.fetch_add(8, 0)), (4, 4, 9));
        assert!(std::panic::catch_unwind(|| memory.fetch_add(4, 1)).is_err(), "not aligned");
        assert!(std::panic::catch_unwind(|| memory.fetch_add(64, 1)).is_err(), "beyond the end");
    }

    #[test]
    fn memory_is_received_for_what_its_seals_allow() {
        let span = Arena::create("arena", 1).unwrap();
        let fd = span.arena().fd().try_clone_to_owned().unwrap();
        assert!(matches!(SharedMemory::import(&fd, true), Err(ArenaError::WriteSealed)));
        let memory = SharedMemory::import(&fd, false).unwrap();
        assert!(std::panic::catch_unwind(|| memory.store_bytes(0, &[1])).is_err(), "read only");
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert!(matches!(SharedMemory::import(&loose, false), Err(ArenaError::NotSealed)));
        assert!(matches!(SharedMemory::create("none", 0), Err(ArenaError::Size(0))));
    }
}
