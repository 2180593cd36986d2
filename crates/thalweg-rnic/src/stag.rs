//! The STag management table (SMT) and the table of page lists (PBLMT): memory, who may reach it, and how.
//!
//! An RNIC in hardware keeps, for each buffer, the list of its physical pages (PBL). Here the kernel keeps it: a file that
//! memory is registered of is mapped once, and the processor's page tables are the list. A region or window is an entry
//! of the SMT by its STag and refers to such a mapping.
//!
//! A STag is an index of 24 bits, drawn at random, and a key of 8 bits, drawn by the RNIC for a region and chosen by the
//! program for each binding of a window. So valid STags are sparse and cannot be guessed from others (RFC 5040 section
//! 8.1.1, RFC 5042 section 6.3.1), and that of an earlier binding is refused.

use crate::attributes::{Access, Fault, FaultKind, WindowKind};
use crate::command::CommandError;
use rustix::fs::fstat;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use thalweg_arena::SharedMemory;

/// Hash of a number that is random already: the number.
#[derive(Debug, Default)]
pub(crate) struct RandomNumberHasher(u64);

impl Hasher for RandomNumberHasher {
    fn finish(&self) -> u64 {
        // The table takes its 7 control bits from the top.
        self.0 | self.0 << 40
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number);
    }
}

/// Bits of a STag that are its key.
const KEY_BITS: u32 = 8;

/// A mapped file: program, device and inode, whether it is mapped for writing.
type FileKey = (u32, u64, u64, bool);

/// Requester of an access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Accessor {
    /// Protection domain of its queue pair.
    pub(crate) domain: u32,
    /// Queue pair, if a peer accesses memory through it: windows are open to peers only.
    pub(crate) remote_through: Option<u32>,
}

/// Bytes that an access has been granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) memory: &'a Arc<SharedMemory>,
    pub(crate) at: usize,
}

#[derive(Debug)]
struct Entry {
    key: u8,
    client: u32,
    domain: u32,
    kind: EntryKind,
    /// Rights; of an unbound window, none.
    access: Access,
    /// Address of the first byte, and length.
    base: u64,
    length: u64,
}

#[derive(Debug)]
enum EntryKind {
    Region { memory: Arc<SharedMemory>, file_offset: u64, windows: u32 },
    Window { kind: WindowKind, bound: Option<Binding> },
}

impl EntryKind {
    fn count_index(&self) -> usize {
        usize::from(matches!(self, Self::Window { .. }))
    }
}

/// Region that a window is bound to, and queue pair that bound it.
#[derive(Debug, Clone, Copy)]
struct Binding {
    region: u32,
    queue: u32,
}

/// Memory to register.
#[derive(Debug)]
pub(crate) struct RegionRequest {
    pub(crate) client: u32,
    pub(crate) domain: u32,
    pub(crate) file_offset: u64,
    pub(crate) length: u64,
    pub(crate) base: u64,
    pub(crate) access: Access,
}

/// Both tables.
#[derive(Debug, Default)]
pub(crate) struct StagTable {
    entries: HashMap<u32, Entry, BuildHasherDefault<RandomNumberHasher>>,
    files: HashMap<FileKey, Weak<SharedMemory>>,
    /// Numbers of regions and windows of each program.
    counts: HashMap<u32, [usize; 2]>,
    random: RandomPool,
}

impl StagTable {
    /// Registers memory and returns its STag.
    pub(crate) fn register_region(
        &mut self,
        fd: &OwnedFd,
        request: &RegionRequest,
        max_file_bytes: u64,
    ) -> Result<u32, CommandError> {
        let memory = self.map_file(request.client, fd, request.access.intersects(Access::WRITING), max_file_bytes)?;
        self.register_mapped(memory, request, None)
    }

    /// Registers memory that is mapped already and returns its STag: that of the region whose place it takes, if there is one.
    pub(crate) fn register_mapped(
        &mut self,
        memory: Arc<SharedMemory>,
        request: &RegionRequest,
        replaced: Option<u32>,
    ) -> Result<u32, CommandError> {
        let RegionRequest { client, domain, file_offset, length, base, access } = *request;
        if access.intersects(Access::WRITING) && !memory.is_writable() {
            return Err(CommandError::Memory("the memory is mapped for reading only".into()));
        }
        let end = file_offset.checked_add(length).filter(|end| *end <= memory.size_bytes() as u64);
        if end.is_none() || length == 0 || base.checked_add(length).is_none() {
            return Err(CommandError::Range { offset: file_offset, length, limit: memory.size_bytes() as u64 });
        }
        let kind = EntryKind::Region { memory, file_offset, windows: 0 };
        let Some(stag) = replaced else {
            return self.add_entry(Entry { key: 0, client, domain, kind, access, base, length });
        };
        let entry = self.entries.get_mut(&(stag >> KEY_BITS)).filter(|entry| entry.client == client);
        let entry = entry.ok_or(CommandError::NoSuch { what: "memory region".into(), handle: stag })?;
        match entry.kind {
            EntryKind::Region { windows: 0, .. } => {
                *entry = Entry { key: entry.key, client, domain, kind, access, base, length };
                Ok(stag)
            }
            EntryKind::Region { windows, .. } => Err(bound_windows(windows)),
            EntryKind::Window { .. } => Err(CommandError::NoSuch { what: "memory region".into(), handle: stag }),
        }
    }

    /// Maps a file, or returns the mapping there is.
    fn map_file(
        &mut self,
        client: u32,
        fd: &OwnedFd,
        writable: bool,
        limit: u64,
    ) -> Result<Arc<SharedMemory>, CommandError> {
        let status = fstat(fd).map_err(|error| CommandError::Memory(format!("fstat: {error}")))?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        if size > limit {
            return Err(CommandError::Limit { what: "bytes of a registered file".into(), limit, requested: size });
        }
        let key = (client, status.st_dev, status.st_ino, writable);
        if let Some(memory) = self.files.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let memory = SharedMemory::import(fd, writable).map_err(|error| CommandError::Memory(error.to_string()))?;
        let memory = Arc::new(memory);
        if self.files.len() > 64 {
            self.files.retain(|_, memory| memory.strong_count() > 0);
        }
        self.files.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// Allocates a window that is not bound and returns its STag.
    pub(crate) fn allocate_window(&mut self, client: u32, domain: u32, kind: WindowKind) -> Result<u32, CommandError> {
        let kind = EntryKind::Window { kind, bound: None };
        self.add_entry(Entry { key: 0, client, domain, kind, access: Access::empty(), base: 0, length: 0 })
    }

    fn add_entry(&mut self, mut entry: Entry) -> Result<u32, CommandError> {
        // With a quarter of all indices in use, a draw finds a free one in 4 of 3 tries.
        if self.entries.len() > 1 << 22 {
            return Err(CommandError::Limit { what: "STags of the RNIC".into(), limit: 1 << 22, requested: 1 << 22 });
        }
        loop {
            let stag = self.random.next_number()?;
            let index = stag >> KEY_BITS;
            // Index 0 is that of the STag 1 in the ready-to-receive message of some peers, and of unset fields.
            if index == 0 || self.entries.contains_key(&index) {
                continue;
            }
            entry.key = stag as u8;
            self.counts.entry(entry.client).or_default()[entry.kind.count_index()] += 1;
            self.entries.insert(index, entry);
            return Ok(stag);
        }
    }

    /// Removes a region or window.
    pub(crate) fn remove_entry(&mut self, client: u32, stag: u32) -> Result<(), CommandError> {
        let entry = self.entries.get(&(stag >> KEY_BITS)).filter(|entry| entry.client == client);
        let entry = entry.ok_or(CommandError::NoSuch { what: "STag".into(), handle: stag })?;
        if let EntryKind::Region { windows: windows @ 1.., .. } = entry.kind {
            return Err(bound_windows(windows));
        }
        self.unbind_window(stag >> KEY_BITS);
        if let Some(entry) = self.entries.remove(&(stag >> KEY_BITS)) {
            self.counts.entry(client).or_default()[entry.kind.count_index()] -= 1;
        }
        Ok(())
    }

    /// Removes all of a program.
    pub(crate) fn remove_client(&mut self, client: u32) {
        self.entries.retain(|_, entry| entry.client != client);
        self.files.retain(|key, _| key.0 != client);
        self.counts.remove(&client);
    }

    /// Returns the number of regions, or of windows, of a program.
    pub(crate) fn count_entries(&self, client: u32, windows: bool) -> usize {
        self.counts.get(&client).map_or(0, |counts| counts[usize::from(windows)])
    }

    /// Returns the number of regions and windows of a protection domain.
    pub(crate) fn count_in_domain(&self, domain: u32) -> usize {
        self.entries.values().filter(|entry| entry.domain == domain).count()
    }

    /// Returns the buffers of a region: offset in the RNIC's mapping of the file, and length.
    pub(crate) fn page_list(&self, client: u32, stag: u32) -> Result<Vec<(u64, u64)>, CommandError> {
        match self.entries.get(&(stag >> KEY_BITS)) {
            Some(Entry { client: owner, kind: EntryKind::Region { file_offset, .. }, length, .. })
                if *owner == client =>
            {
                Ok(vec![(*file_offset, *length)])
            }
            _ => Err(CommandError::NoSuch { what: "memory region".into(), handle: stag }),
        }
    }

    /// Checks an access to `bytes` bytes, more than 0, and returns where they lie.
    #[inline]
    pub(crate) fn resolve_access(
        &self,
        stag: u32,
        address: u64,
        bytes: u64,
        needs: Access,
        by: Accessor,
    ) -> Result<Place<'_>, Fault> {
        let entry = self.find_entry(stag)?;
        if entry.domain != by.domain {
            return Err(Fault::new(FaultKind::OtherDomain, stag, 0, 0));
        }
        if !entry.access.contains(needs) {
            let (needs, has) = (u64::from(needs.bits()), u64::from(entry.access.bits()));
            return Err(Fault::new(FaultKind::MissingRight, stag, needs, has));
        }
        let end = address.checked_add(bytes).ok_or(Fault::new(FaultKind::Wrapped, stag, address, bytes))?;
        if address < entry.base || end > entry.base + entry.length {
            return Err(Fault::new(FaultKind::OutOfBounds, stag, end, entry.base + entry.length));
        }
        match &entry.kind {
            EntryKind::Region { memory, file_offset, .. } => {
                Ok(Place { memory, at: (file_offset + (address - entry.base)) as usize })
            }
            EntryKind::Window { kind, bound } => {
                let bound = bound.ok_or(Fault::new(FaultKind::StagUnknown, stag, 0, 0))?;
                let Some(queue) = by.remote_through else {
                    return Err(Fault::new(FaultKind::MissingRight, stag, u64::from(needs.bits()), 0));
                };
                if *kind == WindowKind::Queue && queue != bound.queue {
                    return Err(Fault::new(FaultKind::OtherQueue, stag, 0, 0));
                }
                self.place_in_region(bound.region, address).ok_or(Fault::new(FaultKind::StagUnknown, stag, 0, 0))
            }
        }
    }

    /// Returns the place of an address that was checked when a window was bound.
    fn place_in_region(&self, region: u32, address: u64) -> Option<Place<'_>> {
        let region = self.entries.get(&region)?;
        let EntryKind::Region { memory, file_offset, .. } = &region.kind else { return None };
        Some(Place { memory, at: (file_offset + address.checked_sub(region.base)?) as usize })
    }

    fn find_entry(&self, stag: u32) -> Result<&Entry, Fault> {
        let entry = self.entries.get(&(stag >> KEY_BITS));
        let entry = entry.ok_or(Fault::new(FaultKind::StagUnknown, stag, 0, 0))?;
        if entry.key != stag as u8 {
            return Err(Fault::new(FaultKind::StagStale, stag, u64::from(stag as u8), u64::from(entry.key)));
        }
        Ok(entry)
    }

    /// Binds a window: `new_stag` has its index and a key of the program's choice. A length of 0 unbinds a window of type
    /// 1.
    pub(crate) fn bind_window(
        &mut self,
        new_stag: u32,
        region_stag: u32,
        range: (u64, u64),
        access: Access,
        by: (u32, u32),
    ) -> Result<(), Fault> {
        let ((base, length), (domain, queue)) = (range, by);
        let fault = Fault::new(FaultKind::WindowKind, new_stag, 0, 0);
        let index = new_stag >> KEY_BITS;
        let window = self.entries.get(&index).ok_or(Fault::new(FaultKind::StagUnknown, new_stag, 0, 0))?;
        if window.domain != domain {
            return Err(Fault::new(FaultKind::OtherDomain, new_stag, 0, 0));
        }
        match window.kind {
            EntryKind::Window { kind: WindowKind::Queue, bound: None } if length > 0 => {}
            EntryKind::Window { kind: WindowKind::Domain, .. } => {}
            // A window of type 2 is bound once, until it is invalidated.
            _ => return Err(fault),
        }
        let bound = if length == 0 {
            None
        } else {
            let needs = if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
                Access::WINDOW_BIND | Access::LOCAL_WRITE
            } else {
                Access::WINDOW_BIND
            };
            self.resolve_access(region_stag, base, length, needs, Accessor { domain, remote_through: None })?;
            Some(Binding { region: region_stag >> KEY_BITS, queue })
        };
        self.unbind_window(index);
        if let Some(Entry { kind: EntryKind::Region { windows, .. }, .. }) =
            bound.and_then(|bound| self.entries.get_mut(&bound.region))
        {
            *windows += 1;
        }
        if let Some(entry) = self.entries.get_mut(&index) {
            (entry.key, entry.access, entry.base, entry.length) =
                (new_stag as u8, access & Access::REMOTE, base, length);
            if let EntryKind::Window { bound: now, .. } = &mut entry.kind {
                *now = bound;
            }
        }
        Ok(())
    }

    /// Invalidates a window of type 2 that is bound to `queue`. Regions, and windows of type 1, are open to all queue
    /// pairs of their domain: a peer must not invalidate them (RFC 5042 section 6.2.2, "shared STags").
    pub(crate) fn invalidate_window(&mut self, stag: u32, queue: u32) -> Result<(), Fault> {
        match &self.find_entry(stag)?.kind {
            EntryKind::Window { kind: WindowKind::Queue, bound: Some(bound) } if bound.queue == queue => {}
            _ => return Err(Fault::new(FaultKind::NotInvalidatable, stag, 0, 0)),
        }
        self.unbind_window(stag >> KEY_BITS);
        Ok(())
    }

    /// Invalidates all windows of type 2 that are bound to a queue pair, which is about to be removed.
    pub(crate) fn unbind_queue(&mut self, queue: u32) {
        let bound = self.entries.iter().filter(|(_, entry)| match entry.kind {
            EntryKind::Window { kind: WindowKind::Queue, bound: Some(bound) } => bound.queue == queue,
            _ => false,
        });
        let bound: Vec<u32> = bound.map(|(index, _)| *index).collect();
        bound.into_iter().for_each(|index| self.unbind_window(index));
    }

    fn unbind_window(&mut self, index: u32) {
        let Some(Entry { kind: EntryKind::Window { bound, .. }, access, length, .. }) = self.entries.get_mut(&index)
        else {
            return;
        };
        let was = bound.take();
        (*access, *length) = (Access::empty(), 0);
        if let Some(Entry { kind: EntryKind::Region { windows, .. }, .. }) =
            was.and_then(|bound| self.entries.get_mut(&bound.region))
        {
            *windows -= 1;
        }
    }
}

fn bound_windows(windows: u32) -> CommandError {
    CommandError::Busy { what: "memory region".into(), users: windows, by: "bound memory windows".into() }
}

/// Random numbers of the kernel, fetched many at a time.
#[derive(Debug)]
struct RandomPool {
    bytes: [u8; 256],
    next: usize,
}

impl Default for RandomPool {
    fn default() -> Self {
        Self { bytes: [0; 256], next: 256 }
    }
}

impl RandomPool {
    fn next_number(&mut self) -> Result<u32, CommandError> {
        if self.next == self.bytes.len() {
            getrandom::fill(&mut self.bytes).map_err(|error| CommandError::Memory(format!("getrandom: {error}")))?;
            self.next = 0;
        }
        let number = self.bytes[self.next..].first_chunk().map_or(0, |number| u32::from_ne_bytes(*number));
        self.next += 4;
        Ok(number)
    }
}
