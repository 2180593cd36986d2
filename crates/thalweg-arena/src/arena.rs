//! The arena itself: one memfd, one mapping, and the parts of it that can be owned.

use crate::page_list::{PageList, PageListError, page_list_at};
use crate::shared::load_shared;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FsWord, MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use thiserror::Error;

/// Length in bytes of a huge page on x86-64, and on arm64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Magic number of the file system of reserved huge pages (linux/magic.h).
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Kind of pages an arena's memory consists of. The data path treats all kinds alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Shared memory in 2 MiB pages: one TLB entry and one page-list entry for 512 small ones.
    Huge,
    /// Like [`Huge`](Self::Huge), in pages that were reserved (`vm.nr_hugepages`): such memory cannot be spliced
    /// (`sendfile`).
    Reserved,
    /// Shared memory in 4 KiB pages: the kernel had no huge page to give, or shared-memory huge pages are switched off
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
    Small,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "2 MiB pages",
            Self::Reserved => "reserved 2 MiB pages",
            Self::Small => "4 KiB pages",
        })
    }
}

/// Reason why an arena could not be made or imported.
#[derive(Debug, Error)]
pub enum ArenaError {
    /// The size is zero, or larger than the address space.
    #[error("cannot create an arena of {0} bytes")]
    Size(usize),
    /// The kernel refused.
    #[error("{doing} for an arena of {bytes} bytes: {error}")]
    Os {
        /// Operation that failed.
        doing: &'static str,
        /// Size of the arena in bytes.
        bytes: usize,
        /// Error returned by the kernel.
        error: Errno,
    },
    /// The other process could shrink the memory while it is in use here.
    #[error("the received arena is not sealed against shrinking: its owner must set F_SEAL_SHRINK")]
    NotSealed,
    /// The other process could remove pages while they are in use here.
    #[error("the received arena uses reserved huge pages (MFD_HUGETLB): its owner must use ordinary pages")]
    Reserved,
    /// The memory was to be written, and its owner has sealed it against that.
    #[error(
        "the received memory is sealed against writing (F_SEAL_WRITE or F_SEAL_FUTURE_WRITE): use it for reading only, \
         or create it without that seal"
    )]
    WriteSealed,
    /// The kernel could not make a DMA buffer of the memory.
    #[error("creating a DMA buffer of {bytes} bytes of an arena with /dev/udmabuf: {error}")]
    DmaBuf {
        /// Length that the buffer was to have, in bytes.
        bytes: usize,
        /// Error returned by the kernel.
        #[source]
        error: Errno,
    },
}

impl ArenaError {
    /// Returns a function for `map_err` on a system call for an arena of `bytes` bytes.
    pub(crate) fn from_errno(doing: &'static str, bytes: usize) -> impl FnOnce(Errno) -> Self {
        move |error| Self::Os { doing, bytes, error }
    }

    /// Returns a function for `map_err` as [`from_errno`](Self::from_errno) does, for a mapping's error.
    pub(crate) fn from_io_error(doing: &'static str, bytes: usize) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Os { doing, bytes, error: errno_from_io(&error) }
    }
}

/// A mapped memfd. Shared by reference counting; bytes are reached only through [`Span`]s and [`View`]s.
pub struct Arena {
    fd: OwnedFd,
    memory: MmapRaw,
    /// Kind of its pages, looked up on first use: the look-up takes longer the more memory the process has.
    backing: OnceLock<Backing>,
    /// True if made by this process, false if imported.
    owned: bool,
    /// Users that have registered the pages.
    registrations: Mutex<Vec<&'static str>>,
}

impl Arena {
    /// Creates an arena of `len` bytes, rounded up to whole huge pages, and returns the one span that owns all of it.
    /// Its pages can be spliced (`sendfile`). The memory is populated, so that no page fault happens later on the data
    /// path.
    ///
    /// # Errors
    /// `len` is 0 or exceeds the address space, or the kernel refuses, most likely for lack of memory.
    pub fn create(name: &str, len: usize) -> Result<Span, ArenaError> {
        Self::create_of_kind(name, len, MemfdFlags::empty())
    }

    /// Like [`create`](Self::create), for memory that is never spliced: uses reserved huge pages (`vm.nr_hugepages`) if
    /// the system has enough of them. A file of such pages cannot be sent by `sendfile` (hugetlbfs has no
    /// `splice_read`).
    ///
    /// # Errors
    /// As [`create`](Self::create). A lack of reserved huge pages is not an error.
    pub fn create_local(name: &str, len: usize) -> Result<Span, ArenaError> {
        match Self::create_of_kind(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            Ok(span) => Ok(span),
            // No huge pages are reserved, or too few: fall back to ordinary ones.
            Err(ArenaError::Os { .. }) => Self::create_of_kind(name, len, MemfdFlags::empty()),
            Err(error) => Err(error),
        }
    }

    fn create_of_kind(name: &str, len: usize, kind: MemfdFlags) -> Result<Span, ArenaError> {
        Self::create_of_kind_with(name, len, kind, |_| Ok(())).map(|(span, ())| span)
    }

    /// Like [`create`](Self::create). Calls `early` before the memory is sealed against all writers but this process.
    pub(crate) fn create_with<T>(
        name: &str,
        len: usize,
        early: impl FnOnce(BorrowedFd<'_>) -> Result<T, ArenaError>,
    ) -> Result<(Span, T), ArenaError> {
        Self::create_of_kind_with(name, len, MemfdFlags::empty(), early)
    }

    fn create_of_kind_with<T>(
        name: &str,
        len: usize,
        kind: MemfdFlags,
        early: impl FnOnce(BorrowedFd<'_>) -> Result<T, ArenaError>,
    ) -> Result<(Span, T), ArenaError> {
        let rounded =
            len.checked_next_multiple_of(HUGE_PAGE_BYTES).filter(|len| *len > 0).ok_or(ArenaError::Size(len))?;
        let fd = rustix::fs::memfd_create(name, kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(ArenaError::from_errno("memfd_create", rounded))?;
        rustix::fs::ftruncate(&fd, rounded as u64).map_err(ArenaError::from_errno("ftruncate", rounded))?;
        let memory =
            MmapOptions::new().len(rounded).map_raw(&fd).map_err(ArenaError::from_io_error("mmap", rounded))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(ArenaError::from_errno("sealing", rounded))?;
        let reserved = kind.contains(MemfdFlags::HUGETLB);
        if !reserved {
            let _ = memory.advise(Advice::HugePage);
        }
        // Populating allocates zeroed pages; it reports a lack of memory here instead of by SIGBUS later.
        memory.advise(Advice::PopulateWrite).map_err(ArenaError::from_io_error("allocating memory", rounded))?;
        let early = early(fd.as_fd())?;
        // FUTURE_WRITE: this mapping stays the only writable one; a process that gets the descriptor can only read.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(ArenaError::from_errno("sealing", rounded))?;
        let backing = if reserved { OnceLock::from(Backing::Reserved) } else { OnceLock::new() };
        let arena = Arc::new(Self { fd, memory, backing, owned: true, registrations: Mutex::default() });
        Ok((Span { lender: Lender::new(arena, None), range: 0..rounded }, early))
    }

    /// Maps, for reading, an arena that another process made. It must be sealed against shrinking, and must not consist
    /// of reserved huge pages: otherwise its owner could turn every read of this process into a SIGBUS.
    ///
    /// The owner may punch holes (`FALLOC_FL_PUNCH_HOLE`) as long as the file is sealed neither by `F_SEAL_WRITE` nor
    /// by `F_SEAL_FUTURE_WRITE`. In ordinary shared memory that is one more way to change bytes while they are read: a
    /// hole reads as zeros, from a page that the kernel allocates then, and only if it has none left is the result a
    /// SIGBUS. Reserved huge pages may be exhausted at any time, since the hole gives up its reservation
    /// (`shmem_fallocate` in mm/shmem.c, `hugetlbfs_punch_hole` in fs/hugetlbfs/inode.c, Linux 6.18).
    ///
    /// # Errors
    /// `fd` is not such an arena, or is empty, or the kernel cannot map it. The descriptor is then closed.
    pub fn import(fd: OwnedFd) -> Result<Arc<Self>, ArenaError> {
        let (len, _) = check_received(&fd)?;
        let memory =
            MmapOptions::new().len(len).map_raw_read_only(&fd).map_err(ArenaError::from_io_error("mmap", 0))?;
        let backing = OnceLock::new();
        Ok(Arc::new(Self { fd, memory, backing, owned: false, registrations: Mutex::default() }))
    }

    /// Returns the file descriptor, for `sendfile` and for handing over to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the size of the arena in bytes.
    pub fn size_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Returns the address and length of the mapping; for the kernel or a device, not for reading.
    pub fn mapped_range(&self) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.memory.as_ptr(), self.size_bytes())
    }

    /// Returns whether this process made the arena, and may write to it.
    pub(crate) fn is_own(&self) -> bool {
        self.owned
    }

    /// Returns the first byte of the mapping, which may be written through if the arena is this process's own.
    #[inline]
    pub(crate) fn first_byte(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Returns the kind of pages the arena consists of.
    pub fn page_backing(&self) -> Backing {
        *self.backing.get_or_init(|| backing_of_mapping(&self.memory))
    }

    /// Returns whether both arenas are the same memory, mapped twice.
    pub fn is_same_memory(&self, other: &Self) -> bool {
        match (rustix::fs::fstat(&self.fd), rustix::fs::fstat(&other.fd)) {
            (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
            _ => false,
        }
    }

    /// Maps an arena of this process once more, at an address that the caller has reserved for it: for a device that
    /// wants all the memory it reads in one range of addresses. The second mapping is writable, since the kernel pins
    /// memory for a device only where the device may write to it (`FOLL_WRITE`, xdp_umem_pin_pages in
    /// net/xdp/xdp_umem.c).
    ///
    /// # Errors
    /// The arena is imported, or the kernel refuses. The addresses are then as they were, or unmapped.
    ///
    /// # Safety
    /// The caller owns the addresses from `at` on, as many as the arena has bytes, all of them mapped; whatever was
    /// there is gone afterwards. Nothing may be written there: the bytes belong to [`Span`]s.
    pub unsafe fn map_again(&self, at: *mut u8) -> Result<(), Errno> {
        if !self.owned {
            return Err(Errno::PERM);
        }
        // mremap(2): with an old size of 0, a shared mapping is not moved but mapped a second time. The second mapping
        // keeps the right to write, which a new mapping of the sealed file could not have (F_SEAL_FUTURE_WRITE).
        let flags = rustix::mm::MremapFlags::MAYMOVE;
        // SAFETY: the old mapping stays as it is; the caller vouches for the new addresses.
        unsafe { rustix::mm::mremap_fixed(self.memory.as_mut_ptr().cast(), 0, self.size_bytes(), flags, at.cast()) }?;
        Ok(())
    }

    /// Records that the pages were registered with a ring, an adapter or an IOMMU, which keeps them in place (a
    /// long-term reference, Documentation/core-api/pin_user_pages.rst) until the returned value is dropped. `with` is a
    /// name for people.
    pub fn record_registration(self: &Arc<Self>, with: &'static str) -> Registration {
        self.lock_registrations().push(with);
        Registration { arena: Arc::clone(self), with }
    }

    /// Returns the names of those that have the pages registered now.
    pub fn registration_names(&self) -> Vec<&'static str> {
        self.lock_registrations().clone()
    }

    fn lock_registrations(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a range of an imported arena; `None` if the range is not inside it. An arena of this process is reached
    /// only through its spans: a view would read bytes to which a span has the exclusive right.
    pub fn view_range(self: &Arc<Self>, offset: u64, len: usize) -> Option<View> {
        if self.owned {
            return None;
        }
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len).filter(|end| *end <= self.size_bytes())?;
        Some(View { arena: Arc::clone(self), range: start..end })
    }

    /// Returns the physical addresses of the pages now: see [`page_list`](crate::page_list()).
    ///
    /// # Errors
    /// A page is not present, or the kernel does not disclose its address.
    pub fn page_list(&self) -> Result<PageList, PageListError> {
        page_list_at(self.memory.as_ptr() as usize, self.size_bytes())
    }

    /// Copies bytes that another thread, process or device may write to at the same time.
    #[inline]
    fn load_bytes(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.size_bytes());
        // SAFETY: inside the mapping, as was just compared.
        let start = unsafe { self.memory.as_ptr().add(at) };
        // SAFETY: as above. The mapping cannot shrink (sealed) and lives as long as the arena.
        unsafe { load_shared(start, out) };
    }

    /// Returns a range for the kernel or a device to read from; `None` if the range is not inside the arena.
    pub fn piece_of_range(self: &Arc<Self>, offset: u64, len: usize) -> Option<Piece<'_>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len).filter(|end| *end <= self.size_bytes())?;
        Some(Piece { arena: self, start, len: end - start })
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes, {self})", self.size_bytes())
    }
}

/// Writes the kind of pages, and the names of those that have them registered.
impl fmt::Display for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.page_backing())?;
        self.lock_registrations().iter().try_for_each(|with| write!(f, ", registered with {with}"))
    }
}

/// Registration of an arena's pages, in force until this is dropped. Keep it beside the object that has registered
/// them, and drop it after that object.
#[must_use = "dropping it records that the arena is no longer registered"]
#[derive(Debug)]
pub struct Registration {
    arena: Arc<Arena>,
    with: &'static str,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registrations = self.arena.lock_registrations();
        if let Some(at) = registrations.iter().position(|with| *with == self.with) {
            registrations.remove(at);
        }
    }
}

/// Returns the length in bytes and the seals of memory that another process made; refuses it where its owner could turn
/// an access of this process into a SIGBUS.
pub(crate) fn check_received(fd: &OwnedFd) -> Result<(usize, SealFlags), ArenaError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ArenaError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(ArenaError::NotSealed);
    }
    if rustix::fs::fstatfs(fd).map_err(ArenaError::from_errno("fstatfs", 0))?.f_type == HUGETLBFS_MAGIC {
        return Err(ArenaError::Reserved);
    }
    let size = rustix::fs::fstat(fd).map_err(ArenaError::from_errno("fstat", 0))?.st_size;
    let len = usize::try_from(size).ok().filter(|len| *len > 0).ok_or(ArenaError::Size(0))?;
    Ok((len, seals))
}

/// Returns the kernel's error code; mapping memory produces no other error.
pub(crate) fn errno_from_io(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::NOMEM)
}

/// Returns the kind of pages of a mapping, from `/proc/self/smaps` (`ShmemPmdMapped`). Reading that takes longer the
/// more memory a process has, so it is skipped where there can be no huge pages.
fn backing_of_mapping(memory: &MmapRaw) -> Backing {
    if memory.len() < HUGE_PAGE_BYTES || !is_shared_memory_huge() {
        return Backing::Small;
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let start = format!("{:x}-", memory.as_ptr() as usize);
    let mapped = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse::<usize>().ok());
    if mapped.is_some_and(|kib| kib * 1024 >= memory.len()) { Backing::Huge } else { Backing::Small }
}

/// Returns whether this system uses huge pages for shared memory without a request
/// (Documentation/admin-guide/mm/transhuge.rst).
fn is_shared_memory_huge() -> bool {
    static IS_HUGE: OnceLock<bool> = OnceLock::new();
    *IS_HUGE.get_or_init(|| {
        let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        !modes.contains("[never]") && !modes.contains("[deny]")
    })
}

/// The exclusive right to a range of an arena: there is never a second span over the same bytes.
///
/// A span returns itself when it is dropped, by any owner: it then no longer keeps its [`Block`](crate::Block) busy,
/// and the last span of a place of a [`PlacePool`](crate::PlacePool) makes that place free. An operation that writes to
/// the bytes after the call that began it has returned (io_uring, a device) must therefore own the span until it has
/// ended.
pub struct Span {
    lender: Arc<Lender>,
    range: Range<usize>,
}

/// The lender of spans' bytes: a whole arena, a block, or a place of a pool. Each span that is out holds a reference to
/// it, so that `Arc::get_mut` shows whether all are back, and orders accesses through them before what comes next.
pub(crate) struct Lender {
    arena: Arc<Arena>,
    /// Destination of the place once the last span is dropped.
    home: Option<Home>,
}

/// A pool's free places, by their offsets, and the offset of this one.
type Home = (Arc<Mutex<Vec<usize>>>, usize);

impl Lender {
    pub(crate) fn new(arena: Arc<Arena>, home: Option<Home>) -> Arc<Self> {
        Arc::new(Self { arena, home })
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lender({:?})", self.arena)
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if let Some((free, start)) = &self.home {
            free.lock().unwrap_or_else(PoisonError::into_inner).push(*start);
        }
    }
}

impl Span {
    /// Makes a span from a range that the caller owns.
    ///
    /// # Safety
    /// No other span may cover any byte of `range` while this one lives, and `range` lies inside the arena.
    pub(crate) unsafe fn new(lender: Arc<Lender>, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= lender.arena.size_bytes());
        Self { lender, range }
    }

    /// Splits off the first `len` bytes and returns them.
    ///
    /// # Panics
    /// The span is shorter than `len`.
    pub fn take_front(&mut self, len: usize) -> Self {
        assert!(len <= self.len(), "{len} bytes taken from a span of {}", self.len());
        let middle = self.range.start + len;
        let front = self.range.start..middle;
        self.range.start = middle;
        Self { lender: Arc::clone(&self.lender), range: front }
    }

    /// Returns whether the span was lent by `lender`.
    pub(crate) fn is_lent_by(&self, lender: &Arc<Lender>) -> bool {
        Arc::ptr_eq(&self.lender, lender)
    }

    /// Returns the arena that contains the span.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.lender.arena
    }

    /// Returns the offset of the span in the arena, in bytes.
    pub fn arena_offset(&self) -> usize {
        self.range.start
    }
}

impl Deref for Span {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside the mapping (checked where spans are made), which the `Arc` keeps alive.
        let start = unsafe { self.lender.arena.memory.as_ptr().add(self.range.start) };
        // SAFETY: all bytes of a memfd are initialised; the span is the only one over them, and `&self` keeps `&mut`
        // slices away for as long as this one lives.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl DerefMut for Span {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        let start = unsafe { self.lender.arena.memory.as_mut_ptr().add(self.range.start) };
        // SAFETY: as in `deref`, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(start, self.range.len()) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({:?} of {:?})", self.range, self.lender.arena)
    }
}

/// A range of an arena for another reader: the kernel, an adapter. Its content is the responsibility of the owner of
/// the [`Span`].
///
/// A piece borrows the arena, since frames are made of millions of pieces per second: counting references to the arena
/// would cost as much as all other work on a short one. A later reader [keeps](Self::keep_arena) the piece.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    arena: &'a Arc<Arena>,
    start: usize,
    len: usize,
}

impl<'a> Piece<'a> {
    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns whether the piece is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the arena that contains the piece.
    pub fn arena(self) -> &'a Arc<Arena> {
        self.arena
    }

    /// Returns the offset of the piece in the arena, in bytes.
    pub fn arena_offset(self) -> usize {
        self.start
    }

    /// Returns the same piece for later use: the memory stays where it is.
    pub fn keep_arena(self) -> KeptPiece {
        KeptPiece { arena: Arc::clone(self.arena), start: self.start, len: self.len }
    }

    /// Returns the address of the piece in this process, for the kernel or a device: this program must not read there,
    /// since a span may be written to.
    pub fn as_ptr(self) -> *const u8 {
        // SAFETY: inside the mapping: `Arena::piece` checked the range.
        unsafe { self.arena.memory.as_ptr().add(self.start) }
    }

    /// Fills `out` with the bytes from `at` on, for a medium that cannot read them in place. Reads like a device: bytes
    /// that are being written at the same time may be old or new. (A slot's bytes do not change from its offer to its
    /// release; a piece of the slot that is sent even later is discarded by the receiver.)
    ///
    /// # Panics
    /// There are fewer than `out.len()` bytes from `at` on.
    #[inline]
    pub fn copy_bytes_to(self, at: usize, out: &mut [u8]) {
        let end = at.checked_add(out.len()).filter(|end| *end <= self.len);
        assert!(end.is_some(), "bytes {at}+{} of a piece of {}", out.len(), self.len);
        self.arena.load_bytes(self.start + at, out);
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({:?} of {:?})", self.start..self.start + self.len, self.arena)
    }
}

/// A [`Piece`] that keeps the memory where it is.
#[derive(Clone)]
pub struct KeptPiece {
    arena: Arc<Arena>,
    start: usize,
    len: usize,
}

impl KeptPiece {
    /// Returns the piece.
    pub fn borrowed_piece(&self) -> Piece<'_> {
        Piece { arena: &self.arena, start: self.start, len: self.len }
    }
}

impl fmt::Debug for KeptPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrowed_piece().fmt(f)
    }
}

/// A range of an arena that another process writes, for reading here.
///
/// By the protocol, the owner does not change the bytes until they are released. An owner that breaks this changes the
/// bytes that are read, and nothing else: the bytes are never a slice, and are copied out, by atomic accesses, before
/// they are examined.
#[derive(Clone)]
pub struct View {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl View {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether the view is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Panics
    /// There are fewer than `out.len()` bytes from `at` on.
    #[inline]
    pub fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
        let end = at.checked_add(out.len()).filter(|end| *end <= self.len());
        assert!(end.is_some(), "bytes {at}+{} of a view of {}", out.len(), self.len());
        self.arena.load_bytes(self.range.start + at, out);
    }

    /// Returns the pages that contain the view, in order.
    ///
    /// # Errors
    /// As [`page_list`](crate::page_list).
    pub fn page_list(&self) -> Result<PageList, PageListError> {
        page_list_at(self.arena.memory.as_ptr() as usize + self.range.start, self.len())
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?} of {:?})", self.range, self.arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_testing::skip::skipped;

    fn read(arena: &Arc<Arena>, at: u64) -> [u8; 2] {
        let mut bytes = [0; 2];
        arena.view_range(at, 2).unwrap().copy_bytes_to(0, &mut bytes);
        bytes
    }

    #[test]
    fn every_part_of_a_view_is_copied_as_it_is() {
        let mut span = Arena::create("test", 100).unwrap();
        (0..100).for_each(|at| span[at] = at as u8);
        let theirs = Arena::import(span.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        let view = theirs.view_range(3, 90).unwrap();
        for (at, len) in (0..90).flat_map(|at| (0..=90 - at).map(move |len| (at, len))) {
            let mut bytes = vec![0; len];
            view.copy_bytes_to(at, &mut bytes);
            assert_eq!(bytes, span[3 + at..3 + at + len]);
        }
        let beyond = std::panic::catch_unwind(|| view.copy_bytes_to(89, &mut [0; 2]));
        assert!(beyond.is_err(), "there are fewer bytes");
    }

    #[test]
    fn a_second_mapping_sees_what_the_first_wrote() {
        let mut span = Arena::create("test", 100).unwrap();
        assert_eq!(span.len(), HUGE_PAGE_BYTES);
        span[17] = 42;
        let theirs = Arena::import(span.arena().fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(read(&theirs, 16), [0, 42]);
        assert!(theirs.view_range(HUGE_PAGE_BYTES as u64 - 1, 2).is_none());
        assert!(theirs.view_range(u64::MAX, 1).is_none());
        assert!(span.arena().view_range(16, 2).is_none(), "our own arena is reached through its spans");
    }

    #[test]
    fn it_says_what_it_is_made_of_and_who_knows_its_pages() {
        let span = Arena::create("test", 1).unwrap();
        let made_of = span.arena().page_backing().to_string();
        let (ring, adapter) =
            (span.arena().record_registration("io_uring"), span.arena().record_registration("an adapter"));
        let text = span.arena().to_string();
        assert_eq!(text, format!("{made_of}, registered with io_uring, registered with an adapter"));
        drop(ring);
        assert_eq!(span.arena().registration_names(), ["an adapter"]);
        drop(adapter);
        assert_eq!(span.arena().to_string(), made_of);
    }

    #[test]
    fn who_gets_the_descriptor_can_read_but_not_write() {
        let span = Arena::create("test", 1).unwrap();
        let fd = span.arena().fd().try_clone_to_owned().unwrap();
        assert_eq!(rustix::io::pwrite(&fd, &[1], 0), Err(Errno::PERM));
        assert_eq!(MmapRaw::map_raw(&fd).map_err(|error| errno_from_io(&error)).err(), Some(Errno::PERM));
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Arena::import(fd), Err(ArenaError::NotSealed)));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Arena::import(file.into()), Err(ArenaError::NotSealed)));
    }

    #[test]
    fn local_memory_is_there_whether_or_not_huge_pages_are_reserved() {
        let mut span = Arena::create_local("test", 3 * HUGE_PAGE_BYTES).unwrap();
        span[3 * HUGE_PAGE_BYTES - 1] = 1;
        let reserved = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap().trim() != "0";
        if !reserved {
            skipped("reserved huge pages: vm.nr_hugepages is 0 here; only the fallback was tested");
        }
        assert_eq!(span.arena().size_bytes(), 3 * HUGE_PAGE_BYTES);
    }

    #[test]
    fn memory_that_could_go_away_page_by_page_is_refused() {
        // The file is never mapped here, so no page needs to be reserved.
        let fd = rustix::fs::memfd_create("huge", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB).unwrap();
        rustix::fs::ftruncate(&fd, HUGE_PAGE_BYTES as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(Arena::import(fd), Err(ArenaError::Reserved)));
    }

    #[test]
    fn a_hole_in_ordinary_memory_reads_as_zeros() {
        let punch = |fd: &OwnedFd| {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, flags, 0, 4096)
        };
        let fd = rustix::fs::memfd_create("holes", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::pwrite(&fd, &[7; 8192], 0).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let arena = Arena::import(fd.try_clone().unwrap()).unwrap();
        assert_eq!(read(&arena, 4095), [7, 7]);
        punch(&fd).unwrap();
        assert_eq!(read(&arena, 4095), [0, 7]);
        // An arena of this process cannot be punched by a receiver of its descriptor.
        let ours = Arena::create("test", 1).unwrap();
        assert_eq!(punch(&ours.arena().fd().try_clone_to_owned().unwrap()), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(Arena::create("none", 0), Err(ArenaError::Size(0))));
        assert!(matches!(Arena::create("all", usize::MAX), Err(ArenaError::Size(_))));
        assert!(matches!(Arena::create("most", 1 << 60), Err(ArenaError::Os { .. })));
    }
}
