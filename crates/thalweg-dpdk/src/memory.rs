//! Arenas that DPDK may read.

use crate::shim::{self, Shim};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_arena::{Arena, Backing, PAGE_BYTES, Piece, Registration};
use thalweg_pci::Held;

/// Memory that one port may read.
///
/// A view may belong to another mapping than the registered one: the process that made an arena reads it through its
/// own import, which it cannot write, and VFIO accepts only writable memory (it maps for both directions:
/// `vfio_type1_dma_mem_map`, lib/eal/linux/eal_vfio.c). So an arena is identified by its file, and pieces are read at
/// their place in the registered mapping.
pub(crate) struct Admitted {
    /// Memory of the shim, which belongs to the port, and is valid until the port is closed.
    memory: NonNull<shim::Memory>,
    length: usize,
    /// Mappings of that file that were seen, the registered one first. Keeping them ensures that their addresses are
    /// not reused.
    mappings: Vec<Arc<Arena>>,
}

impl Admitted {
    /// Lets a port read an arena.
    ///
    /// # Safety
    /// `port` is open, and no other thread opens, closes or changes ports meanwhile.
    pub(crate) unsafe fn new(
        shim: &'static Shim,
        port: NonNull<shim::Port>,
        arena: &Arc<Arena>,
        physical: bool,
    ) -> io::Result<Self> {
        let held = if physical { Some(Held::new(arena).map_err(io::Error::other)?) } else { None };
        let addresses = held.as_ref().map_or(std::ptr::null(), |held| held.page_addresses().as_ptr());
        let owner = Box::new(Owner::new(shim, arena, held)?);
        let mapping = arena.mapped_range();
        let owner = Box::into_raw(owner);
        let mut error: c_int = 0;
        // SAFETY: the caller guarantees that the port is open. The mapping exists as long as the owner lives, which is
        // until the port gives it back.
        let memory = unsafe {
            let start = mapping.cast_mut().cast::<c_void>();
            (shim.admit)(
                port.as_ptr(),
                start,
                mapping.len(),
                PAGE_BYTES,
                addresses,
                owner.cast(),
                drop_owner,
                &raw mut error,
            )
        };
        match NonNull::new(memory) {
            Some(memory) => Ok(Self { memory, length: mapping.len(), mappings: vec![Arc::clone(arena)] }),
            None => {
                // SAFETY: the pointer comes from a box, and the shim has not kept it.
                drop(unsafe { Box::from_raw(owner) });
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    /// Returns true if this is the arena, through any mapping of it.
    pub(crate) fn is_arena(&mut self, arena: &Arc<Arena>) -> bool {
        if self.mappings.iter().any(|known| Arc::ptr_eq(known, arena)) {
            return true;
        }
        let same = self.mappings[0].is_same_memory(arena);
        if same {
            self.mappings.push(Arc::clone(arena));
        }
        same
    }

    /// Returns the memory of a view into this arena, and the offset at which the view begins.
    ///
    /// # Panics
    /// The view does not lie within the registered memory.
    pub(crate) fn memory_and_offset(&self, view: Piece<'_>) -> (NonNull<shim::Memory>, usize) {
        let end = view.arena_offset() + view.len();
        assert!(end <= self.length, "a piece up to byte {end} of an arena of {} bytes", self.length);
        (self.memory, view.arena_offset())
    }
}

/// Keeps an arena while DPDK may read it.
struct Owner {
    shim: &'static Shim,
    arena: Arc<Arena>,
    _registration: Registration,
    /// The arena's physical addresses, for a device that reads by them.
    _held: Option<Held>,
}

/// Number of owners of each arena, by its address: each arena is registered with DPDK once.
static OWNERS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

impl Owner {
    fn new(shim: &'static Shim, arena: &Arc<Arena>, held: Option<Held>) -> io::Result<Self> {
        let (mapping, page) = (arena.mapped_range(), page_bytes(arena));
        // One address for each page of the size that DPDK is given: that of its first byte.
        let step = page / PAGE_BYTES;
        let mut addresses: Option<Vec<u64>> =
            held.as_ref().map(|held| held.page_addresses().iter().step_by(step).copied().collect());
        let addresses = addresses.as_mut().map_or(std::ptr::null_mut(), |all| all.as_mut_ptr());
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = owners.entry(mapping.addr()).or_insert(0);
        if *count == 0 {
            let length = mapping.len().next_multiple_of(page);
            // SAFETY: a mapping that stays until it is forgotten, in whole pages, which DPDK does not know yet.
            // Addresses are copied: one for each page, if there are any.
            let answer = unsafe { (shim.learn)(mapping.cast_mut().cast(), length, page, addresses) };
            if answer != 0 {
                owners.remove(&mapping.addr());
                return Err(io::Error::from_raw_os_error(-answer));
            }
        }
        *count += 1;
        Ok(Self { shim, arena: Arc::clone(arena), _registration: arena.record_registration("DPDK"), _held: held })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let (mapping, page) = (self.arena.mapped_range(), page_bytes(&self.arena));
        let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = owners.get_mut(&mapping.addr()) else { return };
        *count -= 1;
        if *count == 0 {
            owners.remove(&mapping.addr());
            // SAFETY: the same range as was learned, and no port reads there any more.
            let answer = unsafe { (self.shim.forget)(mapping.cast_mut().cast(), mapping.len().next_multiple_of(page)) };
            if answer != 0 {
                tracing::warn!("DPDK cannot unregister an arena: {}", io::Error::from_raw_os_error(-answer));
            }
        }
    }
}

/// Returns the size of an arena's pages in bytes. Huge pages that the kernel has merged by itself do not count: they
/// may be split again.
fn page_bytes(arena: &Arena) -> usize {
    if arena.page_backing() == Backing::Reserved { 2 << 20 } else { PAGE_BYTES }
}

/// Called when the port gives an owner back.
extern "C" fn drop_owner(owner: *mut c_void) {
    // SAFETY: the pointer comes from `Box::into_raw`, and is given back once.
    drop(unsafe { Box::from_raw(owner.cast::<Owner>()) });
}
