//! The memory of a ring under loom: on the heap, made of loom's atomics. Cells are loom's checked cells, so that loom
//! reports any write of a cell that is not ordered relative to each read of it.

use super::CELL_BYTES;
#[cfg(test)]
use super::Ring;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
#[cfg(test)]
use std::sync::Arc;

#[cfg(test)]
impl Ring {
    /// Returns a ring for a model. Both indices begin at `start`, so that a model can let them wrap.
    pub(super) fn modelled(cells: u32, start: u32) -> Self {
        assert!(cells.is_power_of_two());
        Self { memory: Arc::new(Memory::new(cells, start)), start }
    }
}

pub(super) struct Memory {
    tail: AtomicU32,
    head: AtomicU32,
    receiver_waits: AtomicU32,
    sender_waits: AtomicU32,
    cells: Vec<Cell>,
}

impl Memory {
    #[cfg(test)]
    fn new(cells: u32, start: u32) -> Self {
        Self {
            tail: AtomicU32::new(start),
            head: AtomicU32::new(start),
            receiver_waits: AtomicU32::new(0),
            sender_waits: AtomicU32::new(0),
            cells: (0..cells).map(|_| Cell(UnsafeCell::new([0; CELL_BYTES]))).collect(),
        }
    }

    pub(super) fn cells(&self) -> u32 {
        self.cells.len() as u32
    }

    pub(super) fn tail(&self) -> &AtomicU32 {
        &self.tail
    }

    pub(super) fn head(&self) -> &AtomicU32 {
        &self.head
    }

    pub(super) fn receiver_waits(&self) -> &AtomicU32 {
        &self.receiver_waits
    }

    pub(super) fn sender_waits(&self) -> &AtomicU32 {
        &self.sender_waits
    }

    pub(super) fn cell(&self, index: u32) -> &Cell {
        &self.cells[(index & (self.cells() - 1)) as usize]
    }
}

pub(super) struct Cell(UnsafeCell<[u8; CELL_BYTES]>);

// SAFETY: loom checks that reads and writes of a cell never overlap; a protocol that lets them overlap fails the model.
unsafe impl Sync for Cell {}

impl Cell {
    pub(super) fn write(&self, bytes: &[u8; CELL_BYTES]) {
        // SAFETY: loom panics if another access is not ordered relative to this one.
        self.0.with_mut(|cell| unsafe { *cell = *bytes });
    }

    pub(super) fn read(&self) -> [u8; CELL_BYTES] {
        // SAFETY: as in `write`.
        self.0.with(|cell| unsafe { *cell })
    }
}
