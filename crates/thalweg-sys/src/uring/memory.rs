//! Memory of operations, which the kernel may use while nothing else does.

use memmap2::MmapMut;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that an operation reads from or writes to.
///
/// # Safety
/// [`as_mut_bytes`](Self::as_mut_bytes) returns the same bytes, at the same address, each time, also after the value was moved. They
/// exist until the value is dropped, and nothing but the value gives access to them.
pub unsafe trait Memory: 'static {
    /// Returns all bytes of the memory.
    fn as_mut_bytes(&mut self) -> &mut [u8];

    /// Returns the index of the memory among those registered with the ring
    /// ([`Ring::register_memory`](crate::uring::Ring::register_memory)); `None` if it is not registered.
    fn registered_index(&self) -> Option<u16> {
        None
    }

    /// Takes the file that the operation has created ([`Operation::create_file`](crate::uring::Operation::create_file)).
    fn accept_opened_file(&mut self, file: OwnedFd) {
        drop(file);
    }
}

// SAFETY: the mapping stays where it is until it is dropped, and belongs to this value alone.
unsafe impl Memory for MmapMut {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// A part of a larger memory that has the exclusive right to its bytes; made by [`divide_into_slots`].
pub struct Slot<M> {
    start: NonNull<u8>,
    length: usize,
    number: u16,
    /// Keeps the whole memory where it is; no bytes are accessed through this reference.
    _whole: Arc<M>,
}

// SAFETY: `start` is the address of bytes that belong to this value alone, and to no thread; `M` may be dropped on any.
unsafe impl<M: Send + Sync> Send for Slot<M> {}
// SAFETY: a shared slot only gives shared access to its bytes.
unsafe impl<M: Send + Sync> Sync for Slot<M> {}

/// Divides memory into slots of `bytes` each, numbered from 0 on, in the order in which they are to be registered. A
/// remainder shorter than a slot is in none.
///
/// # Panics
/// There would be more than 65536 slots, or `bytes` is 0.
pub fn divide_into_slots<M: Memory>(mut memory: M, bytes: usize) -> Vec<Slot<M>> {
    let starts: Vec<NonNull<u8>> =
        memory.as_mut_bytes().chunks_exact_mut(bytes).map(|slot| NonNull::from(slot).cast()).collect();
    let whole = Arc::new(memory);
    let numbered = starts.into_iter().enumerate();
    numbered
        .map(|(number, start)| Slot {
            start,
            length: bytes,
            number: u16::try_from(number).expect("at most 65536 slots"),
            _whole: Arc::clone(&whole),
        })
        .collect()
}

impl<M> Slot<M> {
    /// Returns the number of the slot.
    pub fn slot_number(&self) -> u16 {
        self.number
    }
}

// SAFETY: `start` and `length` never change, the whole stays at its address while it is moved (`Memory`) and is kept
// until all slots are dropped, and `slots` gave out disjoint parts of it and keeps no other access.
unsafe impl<M: 'static> Memory for Slot<M> {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self
    }

    fn registered_index(&self) -> Option<u16> {
        Some(self.number)
    }
}

impl<M> Deref for Slot<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are this slot's own (see `Memory for Slot`), initialised since they came from a slice, and
        // `&self` keeps `&mut` slices away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl<M> DerefMut for Slot<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl<M> fmt::Debug for Slot<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({}, {} bytes)", self.number, self.length)
    }
}
